# Every target sets up its requirements. .venv/*.txt are stamps: the requirements installed from
# pyproject.toml; .venv/kernels is the stamp of the editable install with its compiled extension.
PYTHON ?= python3
ARGS ?=
IN_VENV := PATH="$(CURDIR)/.venv/bin:$$PATH"
CYTHON := $(wildcard ndtool/*.pyx ndtool/*.pxi ndtool/*.pxd ndtool/*/*.pxd)
MODE := debug=$(NDTOOL_DEBUG) coverage=$(NDTOOL_COVERAGE)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_PROGRESS_BAR := off
.DELETE_ON_ERROR:
# Concurrent pips would corrupt an environment.
.NOTPARALLEL:

.PHONY: help
help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

.PHONY: demo
demo: .venv/kernels ## the four commands on small fixtures and on a large table
	@$(IN_VENV) fixtures/demo.sh

# Large packages; without them, their tests are skipped.
OTHERS := $(if $(CI),.venv/others.txt)

# One more than processors: many tests wait for processes that they start.
WORKERS = $(shell $(PYTHON) -c 'import os; print((os.cpu_count() or 1) + 1)')

# OpenMP threads that wait would otherwise spin, on processors that the other workers need.
test test-slow test-plain coverage: export OMP_WAIT_POLICY := passive

# Without bytecode, each worker and each process that a test starts would compile all modules.
unexport PYTHONDONTWRITEBYTECODE
.PHONY: test test-slow
test: .venv/kernels .venv/test.txt $(OTHERS) ## all tests; ARGS="-k name" for some
	@$(IN_VENV) python -m compileall -q ndtool tests/support
	@$(IN_VENV) pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

# Stubtest ignores a missing stub, so it is a prerequisite. mypy's results depend on whether the
# classes of extras are installed, so all extras are required.
test-slow: .venv/kernels .venv/test.txt $(OTHERS) ## the tests that take seconds each, and more random cases
	@$(IN_VENV) pytest -q -n auto --dist worksteal -m "slow and not huge" $(ARGS)
	@$(IN_VENV) NDTOOL_TEST_EXAMPLES=600 pytest -q -n auto --dist worksteal \
	  -m "hypothesis and not slow and not huge" $(ARGS)

# Without any extra, with one version of NumPy, and on an interpreter without a GIL: in an
# environment of their own. The tests themselves need ml_dtypes and safetensors, for their arrays.
NUMPY ?= numpy
PLAIN := .venv-plain/bin
.PHONY: test-plain test-free-threaded
test-plain: .venv-plain/kernels ## the tests without any extra; NUMPY="numpy==2.0.*" for another version
	@$(PLAIN)/python -m pip install -q "$(NUMPY)" ml_dtypes safetensors \
	  pytest pytest-xdist hypothesis
	@PATH="$(CURDIR)/$(PLAIN):$$PATH" pytest -q -n auto --dist worksteal $(ARGS)

THREADED := tests/kernels/test_calls_at_once.py tests/inmemory/test_compiled_calls.py tests/kernels/test_kernel_arguments.py \
  tests/kernels/test_determinism.py tests/inmemory/test_arrays.py
test-free-threaded: .venv-plain/kernels ## on a free-threaded PYTHON: operators from many threads at once
	@$(PLAIN)/python -m pip install -q pytest hypothesis ml_dtypes
	@$(PLAIN)/python -c 'import sys; sys.exit(sys._is_gil_enabled() and "this Python has a GIL")'
	@PYTHON_GIL=0 NDTOOL_TEST_REPEATS=20 $(PLAIN)/python -m pytest -q $(THREADED) $(ARGS)

.PHONY: lint lint-workflows
lint-workflows: .venv/workflows.txt ## the workflows: syntax, shell, permissions
	@$(IN_VENV) actionlint
	@$(IN_VENV) zizmor --quiet --offline --min-severity medium .github

lint: .venv/kernels .venv/test.txt .venv/lint.txt ndtool/_kernels.pyi ## style and types of the Python and Cython sources
	@$(IN_VENV) ruff check -q
	@$(IN_VENV) ruff format --check -q
	@$(IN_VENV) cython-lint $(CYTHON)
	@$(IN_VENV) mypy ndtool
	@$(IN_VENV) python -m mypy.stubtest --mypy-config-file pyproject.toml ndtool._kernels

# The tests run the terminal sessions of the pages. ARGS=linkcheck also checks external links.
SITE := sphinx-build -q -W --keep-going -d build/doctrees
.PHONY: docs
docs: .venv/kernels .venv/docs.txt ## the site in build/html, manual pages in build/man
	@rm -rf build/doctrees build/html build/man docs/commands
	@$(IN_VENV) && for builder in doctest man html $(ARGS); do \
	  $(SITE) -b $$builder docs build/$$builder || exit; \
	done
	@$(IN_VENV) python docs/gallery.py build/html/gallery > /dev/null
	@$(IN_VENV) python docs/check.py build/html

.PHONY: bench bench-quick bench-points bench-ci
bench: .venv-bench/kernels .venv-bench/bench.txt ## all measurements, with peers
	@.venv-bench/bin/python benchmarks/run.py $(ARGS)

bench-quick: .venv-bench/kernels .venv-bench/bench.txt ## the fifteen cases with two peers, in a minute or two
	@.venv-bench/bin/python benchmarks/run.py --quick $(ARGS)

bench-points: .venv-bench/kernels .venv-bench/bench.txt ## calls drawn at random; ARGS="--seed 7 --points 300"
	@.venv-bench/bin/python benchmarks/run.py --points 300 $(ARGS)

bench-ci: .venv-bench/kernels ## performance regressions; ARGS=--record writes the baseline
	@.venv-bench/bin/python benchmarks/run.py --ci $(ARGS)

ENDLESS := -o faulthandler_exit_on_timeout=false
.PHONY: torture fuzz
torture: .venv/kernels .venv/test.txt $(OTHERS) ## writers, every system call failing or interrupted, 16 GB; three hours
	@$(IN_VENV) NDTOOL_TEST_ROUNDS=100 pytest -q $(ENDLESS) -m "" tests/publish/test_parallel_writers.py -k concurrent
	@$(IN_VENV) pytest -q $(ENDLESS) -m "slow or huge" tests/publish/test_faults.py tests/publish/test_preserved_members.py
	@$(IN_VENV) NDTOOL_TEST_ALL=1 pytest -q $(ENDLESS) -m "not huge" tests/kernels/test_guard_pages.py tests/kernels/test_large.py

fuzz: .venv-fuzz/kernels .venv-fuzz/fuzz.txt ## fuzz almost valid files, 40 minutes; ARGS=seconds of each kind
	@for kind in "" headers random "random headers"; do \
	  .venv-fuzz/bin/python tests/fuzz/run.py $(or $(ARGS),600) $$kind || exit; \
	done

.PHONY: sanitize sanitize-address sanitize-thread determinism
sanitize: sanitize-address sanitize-thread ## the tests under ASan, UBSan and TSan; 20 minutes

sanitize-address: .venv/kernels .venv/test.txt
	@tests/sanitize/run.sh $(CURDIR)/.venv/bin/python address $(ARGS)

sanitize-thread: .venv/kernels .venv/test.txt
	@tests/sanitize/run.sh $(CURDIR)/.venv/bin/python thread \
	  tests/kernels/test_determinism.py tests/kernels/test_large.py $(ARGS)

determinism: .venv/kernels .venv/test.txt ## every type and reduction, 1 to 16 threads, 5 times each
	@$(IN_VENV) NDTOOL_TEST_REPEATS=5 OMP_WAIT_POLICY=passive pytest -q -m "not huge" tests/kernels/test_determinism.py

# Some lines run only with other libraries, or in slow tests. A process that a test kills leaves no
# data, or a file that `combine` skips with a warning, so the report may list lines that were run.
.PHONY: coverage coverage-kernels
coverage: .venv/kernels .venv/test.txt .venv/others.txt .venv/coverage.txt ## line and branch coverage; 15 minutes
	@$(IN_VENV) coverage erase
	@$(IN_VENV) coverage run -m pytest -q -n $(WORKERS) --dist worksteal -m "not huge" $(ARGS)
	@$(IN_VENV) coverage combine -q
	@$(IN_VENV) coverage report

# Tracing takes the GIL for every line, so large tests are omitted. It has no branch coverage, and
# its plugin requires a C source with each file's name.
TRACED := $(CURDIR)/build/coverage
FENCED := tests/kernels/test_guard_pages.py::test_no_access_outside_the_arrays
coverage-kernels: .venv/kernels .venv/test.txt .venv/coverage.txt ## line coverage of the Cython sources; 10 minutes
	@rm -rf $(TRACED) && mkdir -p $(TRACED)
	@cp -R setup.py README.md ndtool tests fixtures $(TRACED)
	@sed 's/^branch = true/plugins = ["Cython.Coverage"]/' pyproject.toml > $(TRACED)/pyproject.toml
	@cd $(TRACED) && rm -f ndtool/*.so && $(IN_VENV) NDTOOL_COVERAGE=1 \
	  python setup.py -q build_ext --inplace > build.log 2>&1 || { cat $(TRACED)/build.log; exit 1; }
	@cd $(TRACED)/ndtool && for file in _*.pxd; do ln -s _kernels.c $${file%.pxd}.c; done
	@cd $(TRACED)/ndtool/loops && for file in *.pxd; do ln -s ../_kernels.c $${file%.pxd}.c; done
	@cd $(TRACED) && export PYTHONPATH=$(TRACED) && $(IN_VENV) && \
	  coverage run -m pytest -q -p no:cacheprovider tests/kernels/test_kernel_arguments.py tests/kernels/test_determinism.py \
	  $(foreach way,columns batches index_types array_copies,"$(FENCED)[$(way)]") \
	  -m "not huge" -k "not default_thresholds" $(ARGS) && \
	  coverage combine -q && coverage report --include="*.pyx,*.pxi,*.pxd"

.PHONY: mutants
mutants: .venv/kernels .venv/test.txt ## mutation tests of operators and bounds, a sample; ARGS="--sample 999" for all
	@$(IN_VENV) python tests/mutants/run.py $(ARGS)

# Manual pages and completions are included, so that installation does not require Sphinx. The time
# of the last commit makes builds of it reproducible.
SHELLS := bash-completion/completions/ndtool:bash zsh/site-functions/_ndtool:zsh \
  fish/vendor_completions.d/ndtool.fish:fish
.PHONY: wheel
wheel: export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null)
wheel: .venv/kernels .venv/docs.txt .venv/dist.txt ## sdist and wheel in dist/, with manual pages
	@rm -rf dist share
	@$(IN_VENV) $(SITE) -b man docs share/man/man1
	@$(IN_VENV) && for file in $(SHELLS); do \
	  mkdir -p "share/$$(dirname "$${file%:*}")" && \
	  _NDTOOL_COMPLETE="$${file#*:}_source" ndtool > "share/$${file%:*}" || exit; \
	done
	@$(IN_VENV) python -m build > .venv/dist.log 2>&1 || { cat .venv/dist.log; exit 1; }
	@ls dist

.PHONY: check-wheel check-tag baseline
check-wheel: .venv/kernels .venv/test.txt ## two sdists with the same bytes; what is in dist/
	@$(IN_VENV) pytest -q tests/packaging/test_distribution.py

check-tag: ## whether TAG is v and the version
	@grep -q "^__version__ = \"$(TAG:v%=%)\"$$" ndtool/__init__.py || \
	  { echo "$(TAG) is not the version in ndtool/__init__.py"; exit 1; }
	@grep -q "^## \[$(TAG:v%=%)\] - 2" CHANGELOG.md || \
	  { echo "CHANGELOG.md has no date for $(TAG)"; exit 1; }

baseline: .venv/kernels .venv/test.txt ## renew tests/packaging/public_api.json, the list of what is public
	@$(IN_VENV) python tests/support/public_api.py

.PHONY: clean
clean: ## remove environments, builds and caches
	@rm -rf .venv .venv-bench .venv-fuzz .venv-plain build dist share *.egg-info ndtool/_kernels.c ndtool/*.so
	@rm -rf docs/commands .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache
	@find . -name __pycache__ -prune -exec rm -rf {} +

.venv/pyvenv.cfg .venv-bench/pyvenv.cfg .venv-fuzz/pyvenv.cfg .venv-plain/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "needs Python 3.11 or newer")'
	@echo "setting up $(@D)"
	@$(PYTHON) -m venv --clear $(@D)

# Writes one group of pyproject.toml's requirements, a line each.
define LIST
import sys, tomllib
table = tomllib.load(open("pyproject.toml", "rb"))
groups = {"build": table["build-system"]["requires"], **table["project"]["optional-dependencies"]}
print(*groups[sys.argv[1]], sep="\n")
endef
export LIST

.venv/build.txt .venv/test.txt .venv/lint.txt .venv/workflows.txt .venv/docs.txt .venv/dist.txt .venv/coverage.txt: | .venv/pyvenv.cfg
.venv-bench/build.txt .venv-bench/bench.txt: | .venv-bench/pyvenv.cfg
.venv-fuzz/build.txt .venv-fuzz/fuzz.txt: | .venv-fuzz/pyvenv.cfg
.venv-plain/build.txt: | .venv-plain/pyvenv.cfg
%.txt: pyproject.toml
	@$(@D)/bin/python -c "$$LIST" $(*F) > $@
	@$(@D)/bin/python -m pip install -q -r $@

# Packages that cannot be installed are reported and omitted.
.venv/others.txt: | .venv/pyvenv.cfg
.venv-bench/bench.txt .venv/others.txt: pyproject.toml
	@$(@D)/bin/python -c "$$LIST" $(basename $(@F)) > $@
	@while read -r peer; do \
	  $(@D)/bin/python -m pip install -q "$$peer" < /dev/null || echo "not installed: $$peer"; \
	done < $@

.venv/kernels .venv-bench/kernels .venv-fuzz/kernels .venv-plain/kernels: %/kernels: %/build.txt setup.py $(CYTHON) build/mode
	@echo "building ndtool for $(@D)"
	@rm -f $(@D)/build.log
	@$(@D)/bin/python -m pip install -q --no-build-isolation --log $(@D)/build.log -e .
	@grep -oh 'notice: no OpenMP.*' $(@D)/build.log || :
	@touch $@

# Changes when a debug or coverage build is requested, or no longer.
build/mode: FORCE
	@mkdir -p build
	@[ "$$(cat $@ 2>/dev/null)" = "$(MODE)" ] || echo "$(MODE)" > $@
FORCE:
