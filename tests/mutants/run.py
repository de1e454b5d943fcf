"""Flip operators and bounds in the sources, one at a time, and expect the tests to fail.

    python tests/mutants/run.py [--sample N] [--minutes M] [--jobs J] [--seed S] [--only FILE]
                                [--check] [--show]

A random sample has one mutant of each file, then any mutants. Mutants that no test kills are
listed: either a test is missing, or the mutant is equivalent, and belongs in EQUIVALENT with the
reason. Sources are copied to build/mutants; kernels are built there once, with all mutants in them:
see schemata.py. A killed mutant takes one to ten CPU seconds, a survivor a minute or two. Exit
status 1 if a mutant survives, 2 if the tests fail without a mutant. --check first tests mutants
with a known outcome: of Python and of the kernels, one that tests kill and an equivalent one.
"""

import argparse
import compileall
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ndtool"
# Files without mutants, and the reason.
WITHOUT_MUTANTS = {
    "_signals.pxd": "C code in strings, for the end of a process",
    "_process.pxi": "signals and memory pages of the process",
    "loops/startable.pxd": "the number of threads affects only speed",
    "loops/pages.pxd": "constants of the system",
}


def package_files(*patterns: str) -> tuple[str, ...]:
    """Return the files that match, relative to the package, except those without mutants."""
    paths = (
        path.relative_to(PACKAGE).as_posix()
        for pattern in patterns
        for path in PACKAGE.glob(pattern)
    )
    return tuple(sorted(set(paths) - set(WITHOUT_MUTANTS)))


SOURCES = (
    *package_files("engine/[a-z]*.py"), "rules/shapes.py", "rules/grid.py", "machine/scratch.py",
)  # fmt: skip
KERNELS = package_files("*.pyx", "*.pxi", "*.pxd", "loops/*.pxd")
# Fast tests first, each with few examples: nearly all mutants are detected within five seconds.
TESTS = (
    "kernels/test_layouts.py", "kernels/test_blocks.py", "outofcore/test_threads.py", "kernels/test_counts.py", "inmemory/test_properties.py",
    "inmemory/test_sizes.py", "kernels/test_determinism.py", "kernels/test_copies.py", "kernels/test_guard_pages.py", "kernels/test_narrow.py",
    "inmemory/test_small_calls.py", "kernels/test_columns.py", "inmemory/test_out_of_bounds.py", "inmemory/test_pad.py",
    "outofcore/test_sweep.py", "outofcore/test_sweep_chunks.py", "cli/test_report.py", "rules/test_spec_examples.py",
    "cli/test_cli.py",
)  # fmt: skip
# Tests that take gigabytes of memory each, more than the limit.
DESELECTED = tuple(
    f"--deselect=tests/inmemory/test_sizes.py::{name}"
    for name in (
        "test_one_huge_run", "test_indices_beyond_31_bits", "test_scatter_to_a_file_beyond_31_bits",
    )
)  # fmt: skip
KERNEL_TESTS = TESTS[1:-3]  # the excluded tests call the same kernels with fewer cases
# Tests that run first for mutants of a file, because they kill most of them.
FILE_TESTS = {
    **dict.fromkeys(("engine/columns.py", "loops/panels.pxd"), ("kernels/test_columns.py",)),
    **dict.fromkeys(
        ("engine/updates.py", "loops/counts.pxd", "loops/neutral.pxd"), ("kernels/test_counts.py",)
    ),
    **dict.fromkeys(("engine/narrow.py", "loops/rowindices.pxd"), ("kernels/test_narrow.py",)),
    **dict.fromkeys(("engine/small.py", "_small.pxi"), ("inmemory/test_small_calls.py",)),
    **dict.fromkeys(
        ("engine/distinct.py", "loops/duplicates.pxd"), ("inmemory/test_duplicates.py",)
    ),
    **dict.fromkeys(
        ("engine/copies.py", "_copies.pxi", "loops/views.pxd"),
        ("kernels/test_layouts.py", "kernels/test_normalize.py"),
    ),
    **dict.fromkeys(
        ("engine/check.py", "loops/checks.pxd", "loops/indices.pxd"),
        ("inmemory/test_out_of_bounds.py",),
    ),
    **dict.fromkeys(
        ("rules/grid.py", "loops/boxes.pxd"),
        ("outofcore/test_sweep_chunks.py", "kernels/test_normalize.py"),
    ),
    "engine/counting.py": ("kernels/test_counts.py", "analysis/test_explain.py"),
    "engine/gathers.py": ("kernels/test_columns.py", "inmemory/test_sizes.py"),
    "engine/packing.py": ("inmemory/test_packed_types.py",),
    "rules/shapes.py": (
        "rules/test_spec_examples.py",
        "rules/test_reference.py",
        "rules/test_symbols.py",
    ),
    "loops/arithmetic.pxd": ("kernels/test_counts.py", "kernels/test_determinism.py"),
    "_kernels.pyx": ("kernels/test_kernel_arguments.py",),
    "_operands.pxi": ("kernels/test_kernel_arguments.py",),
}
# One seed, so that results are reproducible, and no shrinking of examples.
# A test that takes 60 CPU seconds hangs, and ends with SIGPROF.
HYPOTHESIS_PROFILE = """
import pytest
from hypothesis import Phase, settings

settings.register_profile("mutants", derandomize=True, database=None, phases=[Phase.generate])
settings.load_profile("mutants")


@pytest.fixture(autouse=True)
def no_hang():
    signal.setitimer(signal.ITIMER_PROF, 60)
"""
WALL_SECONDS = 3600  # timeout of the tests of one mutant; a timeout counts as killed
CPU_SECONDS = 300  # limit of each process, because a test may start one that hangs
MAX_ADDRESS_SPACE = 64 << 30  # bytes of address space, so that a wrong size fails at once

REPLACEMENTS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+",
    "*": "+", "//": "*", "%": "+", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "and": "or",
    "or": "and", "min": "max", "max": "min", "0": "1", "1": "2", "True": "False", "False": "True",
}  # fmt: skip
TOKEN = re.compile(r"<<|>>|//|<=|>=|==|!=|->|\*\*|[-+*/%<>&|=]=?|(?<!\d\.)\b\w+\b(?!\.\d)")
CAST = re.compile(
    r"<(?:const )?(?:u?int\d*_t|Py_ssize_t|size_t|number|float|double) ?\*?>"
    r"|\[(?::, )?::1\]"
)
FUNCTION = re.compile(
    r" *def (\w+)|cdef inline .*?(\w+)(?: \"\w+\")?\(|    cdef (?:int|void) (_\w+)\("
)
OPTIONAL_ANNOTATION = re.compile(r"^    \w+: .*\| None")  # fields and parameters
# Lines that affect only speed.
SPEED_ONLY = re.compile(
    r"prefetch|ahead|PREFETCH|LOCAL_FRACTION|stream|non_temporal|NON_TEMPORAL|WORK_ITEM|task_count\(|progress\(|limit_threads\("
    r"|CACHE_SIZE|MIN_SORTED|LONG_BATCH|TILE|MAX_PARTITIONS?\b|WRITE_SIZE|WIDE_SLICE|SCRATCH|HUGEPAGE|MADV_FREE"
    r"|by_columns|division|is_reused|last_index|lowest \+=|highest \+="
    r"|\b(?:work|moved|unit)_bytes =|\bmax_(?:elements|groups) =|strict=|lru_cache"
    r"|is_packing_faster|is_contiguous = panels\.row_stride|packs_data =|packs_tiles ="
    r"|view\.rank == 1|group \+ 1|_bind\(|_check_span\(|_buffers\(|&\w+\[0|\.shape\["
    r"|space\.fits_in_cache|local_fraction|is_local|n_local|smallest_stride_axis"
)
# In the kernels, a condition in the line before this text detects only bugs of callers.
ARGUMENT_CHECK = "raise ValueError"
# Functions that detect only bugs of callers, or that only prefetch.
UNTESTED_FUNCTIONS = ("_bind", "_extend", "_check_span", "_buffers", "will_need")
NO_CODE = re.compile(r"^\s*(#|import|from|cimport|cdef extern|@|raise|assert|\"\"\")|import ")

# (file, text in the line, token): the reason why the mutant is equivalent.
EQUIVALENT = {
    ("loops/indices.pxd", "indices & 7", "&"): "aligned indices are copied, too",
    ("loops/blocks.pxd", "return BLOCK if space.k", "<="): "for two components both are BLOCK",
    ("loops/gathers.pxd", "return 1", "1"): "any value but 0 reports an index out of bounds",
    ("loops/radix.pxd", "return 1", "1"): "any value but 0 reports an index out of bounds",
    ("loops/panels.pxd", "return 1", "1"): "any value but 0 reports an index out of bounds",
    (
        "loops/scatters.pxd",
        "        hashed = ",
        "*",
    ): "slices are distributed to threads in another way",
    (
        "loops/scatters.pxd",
        "        is_owned = ",
        "*",
    ): "slices are distributed to threads in another way",
    ("_kernels.pyx", "return 16 * threads", "*"): "other work items have the same result",
    ("_kernels.pyx", "return 16 * threads", ">"): "other work items have the same result",
    ("_kernels.pyx", "return 16 * threads", "1"): "other work items have the same result",
    ("_operands.pxi", "max(per_batch, 1)", "1"): "per_batch is 0 only without tuples",
    ("_operands.pxi", "self.space.span = ", "-"): "fewer bytes are prefetched",
    (
        "loops/checks.pxd",
        "result = OutOfBounds(-1, 0, -1)",
        "1",
    ): "a negative position means: no index out of bounds; the other fields are not read",
    (
        "loops/checks.pxd",
        "result = OutOfBounds(-1, 0, -1)",
        "-",
    ): "a negative position means: no index out of bounds",
    ("loops/moves.pxd", "    elif width == 1:", "1"): "copy_bytes does the same",
    ("loops/moves.pxd", "if width > ", ">"): "two halves that overlap completely equal one copy",
    (
        "engine/bind.py",
        "columns = columns // LINE * LINE",
        "*",
    ): "a tile of another width has the same result",
    (
        "engine/bind.py",
        "columns = columns // LINE * LINE",
        "//",
    ): "a tile as wide as the panel has the same result",
    (
        "engine/bind.py",
        "if columns < panels.columns and columns > LINE",
        ">",
    ): "a tile of another width has the same result",
    (
        "engine/bind.py",
        "if columns < panels.columns and columns > LINE",
        "<",
    ): "a tile of another width has the same result",
    ("engine/bind.py", "zero_strides = (0,)", "0"): "a check accesses no data at these strides",
    (
        "engine/bind.py",
        "slices = bind_slices(plan, strides, 1)",
        "1",
    ): "only the addressing of the result is used",
    (
        "engine/distinct.py",
        "            if position >= 0:",
        ">=",
    ): "the second of two duplicates is never at position 0",
    (
        "engine/distinct.py",
        "            if position >= 0:",
        "0",
    ): "the second of two duplicates is never at position 0",
    (
        "engine/narrow.py",
        "is_faster = tuple_bytes >= 4",
        ">=",
    ): "narrowed or not, the result is the same",
    (
        "engine/bind.py",
        "fits_in_cache = scratch <= 2 * tile_limit",
        "*",
    ): "packed or not, the result is the same",
    ("engine/small.py", "> tuning.SMALL_CALL", "//"): "the general path gives the same result",
    (
        "loops/reductions.pxd",
        "    return n > 1",
        "1",
    ): "two updates of an element are combined by another algorithm",
    (
        "loops/reductions.pxd",
        "    return n > 1",
        ">",
    ): "two updates of an element are combined by another algorithm",
    (
        "loops/scatters.pxd",
        "for j in range(n + i, min(n + i + n_block, n + n_next)):",
        "+",
    ): "affects only prefetching",
    (
        "loops/gathers.pxd",
        "return width % LINE and width < 3 * LINE or",
        "<",
    ): "staged or not, the result is the same",
    (
        "_operands.pxi",
        "if width & (width - 1) == 0:",
        "1",
    ): "offsets of width 1 are divided instead of shifted",
    (
        "engine/destinations.py",
        "        shift += 1",
        "1",
    ): "partitions of another size have the same result",
    ("engine/destinations.py", "groups = min(max_groups", "min"): "affects only memory use",
    ("engine/destinations.py", "groups = min(max_groups", "//"): "affects only memory use",
    (
        "engine/scatters.py",
        "spec, call.out, True, options",
        "True",
    ): "work distributed to threads in another way has the same result",
    ("machine/scratch.py", "if len(buffer) >= size", ">="): "a new buffer is allocated instead",
    (
        "engine/destinations.py",
        "entry_bytes = 4 +",
        "<",
    ): "slices of a cache line get a scratch buffer than necessary",
}


# Mutants with a known outcome, as (file, text in the line, token).
KNOWN_KILLED = (
    ("loops/gathers.pxd", "target += n * width", "*"),
    ("rules/shapes.py", "+ data[b + k :]", "+"),
)
KNOWN_EQUIVALENT = (
    ("loops/moves.pxd", "    elif width == 1:", "1"),
    ("engine/bind.py", "columns = columns // LINE * LINE", "*"),
)
# Quick tests kill nearly all mutants; slow tests are run on the survivors.
ROUNDS = (("not slow and not huge", 0.7), ("slow and not huge", 0.3))  # with shares of the time
KILLED, TIMEOUT, SURVIVED = "killed", "timeout", "SURVIVED"
INVALID = "invalid"  # does not compile
ERROR = re.compile(r"^ndtool/(\S+?):(\d+):\d+: (?!warning|note)", re.MULTILINE)
ORIGIN = re.compile(r'\s*/\* "ndtool/(\S+)":(\d+)$')  # in the generated C
HANG_STATUSES = (-signal.SIGPROF, -signal.SIGXCPU)


class Mutant(NamedTuple):
    """A token of a source, and its replacement."""

    file: str
    line: int  # from 0
    column: int
    token: str
    replacement: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line + 1}:{self.column + 1}: {self.token} -> {self.replacement}"

    def apply(self, text: str) -> str:
        """Return the source with the token replaced."""
        lines = text.splitlines(keepends=True)
        line, token_end = lines[self.line], self.column + len(self.token)
        lines[self.line] = line[: self.column] + self.replacement + line[token_end:]
        return "".join(lines)


def lines_with_code(file: str) -> Iterator[tuple[int, str]]:
    """Yield lines whose tokens affect results, with their numbers; strings and casts are blank."""
    text = (ROOT / "ndtool" / file).read_text()
    text = re.sub(r'""".*?"""', lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    lines = [*text.splitlines(), ""]
    function = ""
    for number, line in enumerate(lines[:-1]):
        if definition := FUNCTION.match(line):
            function = definition[1] or definition[2] or definition[3]
        if definition or function in UNTESTED_FUNCTIONS or not line.startswith(" "):
            continue
        if NO_CODE.search(line) or SPEED_ONLY.search(line) or OPTIONAL_ANNOTATION.search(line):
            continue
        if file in KERNELS and ARGUMENT_CHECK in lines[number + 1]:
            continue
        line = CAST.sub(lambda m: " " * len(m[0]), line)
        line = re.sub(r'"[^"]*"|\'[^\']*\'', lambda m: " " * len(m[0]), line)
        yield number, line.partition("#")[0]


def mutants(file: str) -> Iterator[Mutant]:
    """Yield all mutants of a file, without equivalent ones."""
    equivalent = [(text, token) for name, text, token in EQUIVALENT if name == file]
    for number, line in lines_with_code(file):
        tokens = [token for text, token in equivalent if text in line]
        yield from (
            mutant for mutant in line_mutants(file, number, line) if mutant.token not in tokens
        )


def line_mutants(file: str, number: int, line: str) -> Iterator[Mutant]:
    """Yield all mutants of a line."""
    for token in TOKEN.finditer(line):
        before = line[: token.start()].rstrip()
        is_unary = token[0] in "-*&" and (not before or before[-1] in "(,=:[+-*/<>")
        is_pointer = token[0] == "*" and not line[: token.start()].endswith(" ")
        if token[0] in REPLACEMENTS and not (is_unary and token[0] != "-") and not is_pointer:
            yield Mutant(file, number, token.start(), token[0], REPLACEMENTS[token[0]])


def find_mutant(file: str, text: str, token: str) -> Mutant:
    """Return the first mutant of a token in a line that contains a text."""
    lines = (line for line in lines_with_code(file) if text in line[1])
    return next(
        mutant for line in lines for mutant in line_mutants(file, *line) if mutant.token == token
    )


def draw_sample(files: Sequence[str], size: int, seed: int) -> list[Mutant]:
    """Return a random sample: a mutant of each file first, then any."""
    generator = random.Random(seed)
    first_mutants, other_mutants = [], []
    for name in files:
        file_mutants = list(mutants(name))
        generator.shuffle(file_mutants)
        first_mutants += file_mutants[:1]
        other_mutants += file_mutants[1:]
    generator.shuffle(first_mutants)
    generator.shuffle(other_mutants)
    return [*first_mutants, *other_mutants][:size]


def prepare_folder(worker: int) -> Path:
    """Return a folder with a copy of all files that the tests need."""
    folder = ROOT / "build" / "mutants" / str(worker)
    shutil.rmtree(folder, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__", "*.c", "regressions")
    for name in ("ndtool", "tests", "fixtures"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignored)
    for name in ("setup.py", "pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    setup = folder / "setup.py"
    setup.write_text(setup.read_text().replace("-O3", "-O1"))  # built in a third of the time
    with (folder / "tests" / "conftest.py").open("a") as file:
        file.write(HYPOTHESIS_PROFILE)
    # Cache .pyc files by content, not by time: a second less for each mutant.
    for name in ("ndtool", "tests"):
        compileall.compile_dir(
            folder / name, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH
        )
    return folder


def set_limits() -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MAX_ADDRESS_SPACE, MAX_ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS))


def run_python(folder: Path, *arguments: str, number: int = -1) -> int | None:
    """Run Python with the folder's ndtool; return its exit status, or None after a timeout."""
    environment = {
        **os.environ,
        "KERNEL_MUTANT": str(number),
        "PYTHONPATH": str(folder),  # for processes that the tests start, too
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "passive",
        "NDTOOL_TEST_EXAMPLES": "100",
        "NDTOOL_TEST_TEAMS": "4",
    }
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=folder, preexec_fn=set_limits, env=environment,
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        exit_status = process.wait(WALL_SECONDS)
        return None if exit_status in HANG_STATUSES else exit_status
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def tests_for(file: str) -> tuple[str, ...]:
    """Return the tests for mutants of a file; the tests that kill most mutants are first."""
    return tuple(
        dict.fromkeys((*FILE_TESTS.get(file, ()), *(KERNEL_TESTS if file in KERNELS else TESTS)))
    )


def run_tests(folder: Path, tests: Sequence[str], marks: str, number: int = -1) -> str:
    """Run tests with some marks until one fails; return the outcome of a mutant."""
    exit_status = run_python(
        folder, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--assert=plain",
        "-m", marks, *DESELECTED, *(f"tests/{name}" for name in tests), number=number,
    )  # fmt: skip
    return TIMEOUT if exit_status is None else SURVIVED if exit_status == 0 else KILLED


def build_all(folder: Path, sample: list[Mutant]) -> set[int]:
    """Build the kernels with as many mutants as possible; return the numbers of these mutants."""
    compiled = {number for number, mutant in enumerate(sample) if mutant.file in KERNELS}
    originals = {name: (folder / "ndtool" / name).read_text() for name in KERNELS}
    script, path = Path(__file__).with_name("schemata.py"), folder / "locations.json"
    while compiled:
        records = [
            (*location(sample[number]), sample[number].replacement, number) for number in compiled
        ]
        path.write_text(json.dumps(records))
        (folder / "ndtool" / "_kernels.c").unlink(missing_ok=True)
        build = subprocess.run(
            [sys.executable, str(script), str(path)], cwd=folder, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        (folder / "log").write_text(build.stdout)
        for name, text in originals.items():
            (folder / "ndtool" / name).write_text(text)
        if not build.returncode:
            return compiled - set(json.loads(build.stdout.splitlines()[-1]))
        error_lines = set(error_locations(build.stdout, folder / "ndtool" / "_kernels.c"))
        invalid = {number for number in compiled if location(sample[number])[:2] in error_lines}
        if not invalid:
            raise SystemExit(f"the kernels do not build with mutants, see {folder / 'log'}")
        compiled -= invalid
    return set()


def error_locations(log: str, generated: Path) -> Iterator[tuple[str, int]]:
    """Yield the lines of the sources that Cython or the C compiler reports, each with its file."""
    lines = generated.read_text().splitlines() if generated.exists() else []
    for file, number in ERROR.findall(log):
        if file != generated.name:
            yield file, int(number)
            continue
        origins = (ORIGIN.match(line) for line in reversed(lines[: int(number)]))
        origin = next(filter(None, origins))
        yield origin[1], int(origin[2])


def location(mutant: Mutant) -> tuple[str, int, int]:
    """Return a mutant's file, its line from 1 and its column from 0."""
    return mutant.file, mutant.line + 1, mutant.column


def test_alone(mutant: Mutant, folder: Path, marks: str) -> str:
    """Build, if necessary, and test a mutant."""
    path = folder / "ndtool" / mutant.file
    original = path.read_text()
    path.write_text(mutant.apply(original))
    try:
        if mutant.file not in KERNELS:
            return run_tests(folder, tests_for(mutant.file), marks)
        return build_and_test(folder, tests_for(mutant.file), marks)
    finally:
        path.write_text(original)


def build_and_test(folder: Path, tests: Sequence[str], marks: str) -> str:
    """Build and test changed kernels; restore the original ones."""
    kernels = next((folder / "ndtool").glob("_kernels*.so"))
    original = kernels.read_bytes()
    (folder / "ndtool" / "_kernels.c").unlink(missing_ok=True)
    try:
        if run_python(folder, "setup.py", "-q", "build_ext", "--inplace") != 0:
            return INVALID
        return run_tests(folder, tests, marks)
    finally:
        kernels.unlink(missing_ok=True)
        kernels.write_bytes(original)
        kernels.chmod(0o755)


def tests_pass(folder: Path) -> bool:
    """Whether all tests pass on the original sources."""
    test_files = dict.fromkeys(name for files in (TESTS, *FILE_TESTS.values()) for name in files)
    return run_tests(folder, tuple(test_files), "not huge") == SURVIVED


def summary(outcomes: Sequence[tuple[Mutant, str]]) -> Iterator[str]:
    """Yield a table of outcomes by file, and the survivors."""
    columns = (KILLED, TIMEOUT, SURVIVED)
    counts = Counter((mutant.file, outcome) for mutant, outcome in outcomes)
    total = Counter(outcome for _, outcome in outcomes)
    width = max((len(mutant.file) for mutant, _ in outcomes), default=0)
    yield " ".join([" " * width, *columns])
    for file in sorted({mutant.file for mutant, _ in outcomes}):
        cells = (f"{counts[file, outcome]:{len(outcome)}}" for outcome in columns)
        yield " ".join([f"{file:{width}}", *cells])
    yield f"{len(outcomes)} mutants: " + ", ".join(
        f"{total[outcome]} {outcome}" for outcome in columns
    )
    yield from (str(mutant) for mutant, outcome in outcomes if outcome == SURVIVED)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=120, help="number of mutants")
    parser.add_argument(
        "--minutes", type=float, default=float("inf"), help="limit of the time for tests"
    )
    parser.add_argument("--jobs", type=int, default=2, help="mutants tested at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="mutants of one file")
    parser.add_argument(
        "--check", action="store_true", help="test mutants with a known outcome first"
    )
    parser.add_argument("--show", action="store_true", help="list the mutants, run nothing")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    files = [name for name in (*SOURCES, *KERNELS) if options.only in (None, name)]
    sample = draw_sample(files, options.sample, options.seed)
    if options.show:
        print(*sample, sep="\n")
        return 0
    known_mutants = (
        [find_mutant(*row) for row in (*KNOWN_KILLED, *KNOWN_EQUIVALENT)] if options.check else []
    )
    mutants_to_test = [*known_mutants, *sample]
    all_folders = [prepare_folder(job) for job in range(options.jobs)]
    folders: SimpleQueue[Path] = SimpleQueue()
    for folder in all_folders:
        folders.put(folder)
    compiled = build_all(all_folders[0], mutants_to_test)
    if compiled:
        kernels = next((all_folders[0] / "ndtool").glob("_kernels*.so"))
        for folder in all_folders[1:]:
            shutil.copy(kernels, folder / "ndtool")

    outcomes: dict[int, str] = {}

    def test_mutant(number: int, marks: str, end: float) -> None:
        folder, started, mutant = folders.get(), time.monotonic(), mutants_to_test[number]
        try:
            if started > end:
                return
            if number in compiled:
                outcomes[number] = run_tests(folder, tests_for(mutant.file), marks, number)
            else:
                outcomes[number] = test_alone(mutant, folder, marks)
        finally:
            folders.put(folder)
        seconds = time.monotonic() - started
        print(f"{outcomes[number]:8} {seconds:5.0f} s {mutant} ({marks})", flush=True)

    print(f"seed {options.seed}, {len(compiled)} mutants compiled together", flush=True)
    if not tests_pass(all_folders[0]):
        print("the tests fail without a mutant, see build/mutants/0/log")
        return 2
    print("the tests pass without a mutant", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        survivors = list(range(len(mutants_to_test)))
        for marks, share in ROUNDS:
            end = time.monotonic() + options.minutes * share * 60
            list(pool.map(lambda n, marks=marks, end=end: test_mutant(n, marks, end), survivors))
            survivors = [n for n in survivors if outcomes.get(n) == SURVIVED]
    expected = (
        [KILLED] * len(KNOWN_KILLED) + [SURVIVED] * len(KNOWN_EQUIVALENT) if known_mutants else []
    )
    if [outcomes.get(n) for n in range(len(known_mutants))] != expected:
        print("a mutant with a known outcome has another one")
        return 2
    sample_outcomes = [
        (mutants_to_test[n], outcome)
        for n, outcome in outcomes.items()
        if n >= len(known_mutants) and outcome != INVALID
    ]
    print(*summary(sample_outcomes), sep="\n")
    return 1 if any(outcome == SURVIVED for _, outcome in sample_outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
