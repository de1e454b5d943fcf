"""Build ndtool._kernels; pyproject.toml has all other metadata.

NDTOOL_DEBUG=1: check every memoryview access. NDTOOL_COVERAGE=1: coverage includes .pyx lines.
"""

import os
import sys
from glob import glob
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, LinkError

DEBUG = os.environ.get("NDTOOL_DEBUG") == "1"
COVERAGE = os.environ.get("NDTOOL_COVERAGE") == "1"
# -ffp-contract=off: a fused multiply-add rounds once where the sequential loop rounds twice.
# -fno-trapping-math: allows loops with a select to be vectorized; results are unchanged.
# -falign-loops=64: a short loop that crosses a cache line takes up to
# 1.7 times as long, and without alignment that is random.
# -g0: debug sections would be most of the file.
FLAGS = ["-ffp-contract=off", "-fno-trapping-math", "-falign-loops=64"]
FLAGS += ["-O1", "-g", "-UNDEBUG"] if DEBUG else ["-O3", "-g0"]
DIRECTIVES = {"boundscheck": DEBUG, "linetrace": COVERAGE, "autotestdict": False}


class BuildKernels(build_ext):
    def build_extensions(self):
        self.force = True  # modification times do not show a change of flags
        self.cython_directives = DIRECTIVES
        openmp, links = ["-fopenmp"], ["-fopenmp"]
        if sys.platform == "darwin":  # Apple's clang disguises the option and has no library
            openmp, links = ["-Xpreprocessor", "-fopenmp"], ["-lomp"]
        probe = Path(self.build_temp, "openmp.c")
        probe.parent.mkdir(parents=True, exist_ok=True)
        probe.write_text("#include <omp.h>\nint main(void) { return omp_in_parallel(); }\n")
        try:
            objects = self.compiler.compile([str(probe)], self.build_temp, extra_postargs=openmp)
            self.compiler.link_executable(objects, "openmp", self.build_temp, extra_postargs=links)
        except (CompileError, LinkError):
            print("notice: no OpenMP here, ndtool will run on one thread", file=sys.stderr)
            openmp = links = []
        KERNELS.extra_compile_args, KERNELS.extra_link_args = FLAGS + openmp, links
        super().build_extensions()


# Setuptools passes the .pyx to Cython; cythonize() here would omit it from the sdist.
PARTS = glob("ndtool/**/*.px[di]", recursive=True)
KERNELS = Extension("ndtool._kernels", ["ndtool/_kernels.pyx"], depends=PARTS)
KERNELS.define_macros = [("CYTHON_TRACE_NOGIL", "1")] if COVERAGE else []
# Manual pages, if `make wheel` built them: an sdist has them, a checkout does not.
MANUAL = [("share/man/man1", sorted(glob("man/*.1")))]
setup(ext_modules=[KERNELS], cmdclass={"build_ext": BuildKernels}, data_files=MANUAL)
