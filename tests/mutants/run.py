"""Flip operators and bounds in the sources, one at a time, and expect the tests to fail.

    python tests/mutants/run.py [--sample N] [--minutes M] [--jobs J] [--seed S] [--only FILE]
                                [--check] [--show]

A sample is drawn at random: one mutant of each file, then any. Mutants that no test kills are
listed: either a test is missing, or the mutant is equivalent, and belongs in EQUIVALENT with the
reason. Sources are copied to build/mutants; kernels are built there once, with all mutants in them:
see schemata.py. A killed mutant takes one to ten CPU seconds, a survivor a minute or two. Exit
status 1 if one survives, 2 if the tests fail without a mutant. --check first tests mutants whose
fate is known, a fatal and an equivalent one of both kinds.
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
# Files without mutants, and why.
WITHOUT_VALUES = {
    "_signals.pxd": "C in strings, about the end of a process",
    "_process.pxi": "the process: its signals, its pages of memory",
    "loops/startable.pxd": "how many threads run affects only speed",
    "loops/pages.pxd": "constants of the system",
}


def below_package(*patterns: str) -> tuple[str, ...]:
    """Return the paths of the files that match, relative to the package, without omissions."""
    found = (path.relative_to(PACKAGE).as_posix() for one in patterns for path in PACKAGE.glob(one))
    return tuple(sorted(set(found) - set(WITHOUT_VALUES)))


SOURCES = (
    *below_package("engine/[a-z]*.py"), "rules/shapes.py", "rules/grid.py", "machine/scratch.py",
)  # fmt: skip
KERNELS = below_package("*.pyx", "*.pxi", "*.pxd", "loops/*.pxd")
# Fast tests first, each with few examples: nearly all mutants are detected within five seconds.
TESTS = (
    "test_layouts.py", "test_blocks.py", "test_threads.py", "test_counts.py", "test_properties.py",
    "test_sizes.py", "test_determinism.py", "test_copies.py", "test_guard_pages.py", "test_narrow.py",
    "test_small_calls.py", "test_columns.py", "test_out_of_bounds.py", "test_pad.py",
    "test_sweep.py", "test_sweep_chunks.py", "test_report.py", "test_spec_examples.py",
    "test_cli.py",
)  # fmt: skip
# Gigabytes each, which the limit on memory refuses.
LARGE = tuple(
    f"--deselect=tests/test_sizes.py::{name}"
    for name in (
        "test_one_huge_run", "test_indices_beyond_31_bits", "test_scatter_to_a_file_beyond_31_bits",
    )
)  # fmt: skip
KERNEL_TESTS = TESTS[1:-3]  # the others call the same kernels with fewer cases
# The tests of a file run first, and some only there: most mutants are killed by them.
OWN = {
    **dict.fromkeys(("engine/columns.py", "loops/panels.pxd"), ("test_columns.py",)),
    **dict.fromkeys(
        ("engine/updates.py", "loops/counts.pxd", "loops/neutral.pxd"), ("test_counts.py",)
    ),
    **dict.fromkeys(("engine/narrow.py", "loops/rowindices.pxd"), ("test_narrow.py",)),
    **dict.fromkeys(("engine/small.py", "_small.pxi"), ("test_small_calls.py",)),
    **dict.fromkeys(("engine/distinct.py", "loops/duplicates.pxd"), ("test_duplicates.py",)),
    **dict.fromkeys(
        ("engine/copies.py", "_copies.pxi", "loops/views.pxd"),
        ("test_layouts.py", "test_normalize.py"),
    ),
    **dict.fromkeys(
        ("engine/check.py", "loops/checks.pxd", "loops/indices.pxd"), ("test_out_of_bounds.py",)
    ),
    **dict.fromkeys(
        ("rules/grid.py", "loops/boxes.pxd"), ("test_sweep_chunks.py", "test_normalize.py")
    ),
    "engine/counting.py": ("test_counts.py", "test_explain.py"),
    "engine/gathers.py": ("test_columns.py", "test_sizes.py"),
    "engine/packing.py": ("test_packed_types.py",),
    "rules/shapes.py": ("test_spec_examples.py", "test_reference.py", "test_symbols.py"),
    "loops/arithmetic.pxd": ("test_counts.py", "test_determinism.py"),
    "_kernels.pyx": ("test_kernel_arguments.py",),
    "_operands.pxi": ("test_kernel_arguments.py",),
}
# One seed, so that results are reproducible, and no shrinking of examples.
# A test that takes 60 CPU seconds hangs, and ends with SIGPROF.
PROFILE = """
import pytest
from hypothesis import Phase, settings

settings.register_profile("mutants", derandomize=True, database=None, phases=[Phase.generate])
settings.load_profile("mutants")


@pytest.fixture(autouse=True)
def no_hang():
    signal.setitimer(signal.ITIMER_PROF, 60)
"""
LIMIT = 3600  # timeout of one mutant's tests; a hang counts as killed
SECONDS = 300  # CPU seconds of each process: tests start some that hang
MEMORY = 64 << 30  # bytes of address space, so that a wrong size fails at once

FLIPS = {
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
TYPED = re.compile(r"^    \w+: .*\| None")  # fields and parameters
# Lines that affect only speed; texts; and checks of arguments that only a bug violates.
SPEED = re.compile(
    r"prefetch|ahead|PREFETCH|SOON|touch|LOCAL_FRACTION|stream|non_temporal|NON_TEMPORAL|WORK_ITEM|task_count\(|progress\(|limit_threads\("
    r"|CACHE_SIZE|MIN_SORTED|LONG_BATCH|TILE|MAX_PARTITIONS?\b|WRITE_SIZE|WIDE_SLICE|SCRATCH|HUGEPAGE|MADV_FREE"
    r"|by_columns|division|is_reused|last_index|lowest \+=|highest \+="
    r"|\b(?:work|moved|unit)_bytes =|\bmax_(?:elements|groups) =|strict=|is_packing_faster =|is_contiguous =|\bmany =|lru_cache|team == 1"
    r"|view\.rank == 1|group \+ 1|_bind\(|_check_span\(|_buffers\(|&\w+\[0|\.shape\["
    r"|fits_in_cache|local_fraction|is_local|n_local|smallest_stride_axis"
)
# A condition of the kernels before one of these detects only bugs of callers.
DOOR = "raise ValueError"
# These detect the same, or only prefetch.
UNSEEN = ("_bind", "_extend", "_check_span", "_buffers", "will_need", "prefetch_strided")
TEXT = re.compile(r"^\s*(#|import|from|cimport|cdef extern|@|raise|assert|\"\"\")|import ")

# (file, a part of the line, the token): why the mutant is equivalent.
EQUIVALENT = {
    ("loops/indices.pxd", "indices & 7", "&"): "aligned indices are copied, too",
    ("loops/blocks.pxd", "return BLOCK if space.k", "<="): "for two components both are BLOCK",
    ("loops/gathers.pxd", "return 1", "1"): "whatever is not 0 says so",
    ("loops/radix.pxd", "return 1", "1"): "the same",
    ("loops/panels.pxd", "return 1", "1"): "the same",
    ("loops/scatters.pxd", "        hashed = ", "*"): "threads own other slices",
    ("loops/scatters.pxd", "        is_owned = ", "*"): "the same",
    ("_kernels.pyx", "return 16 * threads", "*"): "work is divided otherwise: one result",
    ("_kernels.pyx", "return 16 * threads", ">"): "the same",
    ("_kernels.pyx", "return 16 * threads", "1"): "the same",
    ("_operands.pxi", "max(per_batch, 1)", "1"): "0 only where there are no tuples",
    ("_operands.pxi", "self.space.span = ", "-"): "fewer bytes are prefetched",
    (
        "loops/checks.pxd",
        "result = OutOfBounds(-1, 0, -1)",
        "1",
    ): "below 0 is none; nobody reads the other",
    ("loops/checks.pxd", "result = OutOfBounds(-1, 0, -1)", "-"): "the same",
    ("loops/moves.pxd", "    elif width == 1:", "1"): "copy_bytes does the same",
    ("loops/moves.pxd", "if width > ", ">"): "two halves that overlap wholly, or one whole",
    (
        "engine/bind.py",
        "columns = columns // LINE * LINE",
        "*",
    ): "another width of tile: one result",
    (
        "engine/bind.py",
        "columns = columns // LINE * LINE",
        "//",
    ): "a tile as wide as the panel: the same",
    ("engine/bind.py", "if columns < panels.columns and columns > LINE", ">"): "the same",
    ("engine/bind.py", "if columns < panels.columns and columns > LINE", "<"): "the same",
    ("engine/bind.py", "zero_strides = (0,)", "0"): "a check reads and writes nothing there",
    (
        "engine/bind.py",
        "slices = bind_slices(plan, strides, 1, negatives)",
        "1",
    ): "only the addressing of these slices is used",
    (
        "engine/distinct.py",
        "            if position >= 0:",
        ">=",
    ): "the second of two is never at 0",
    ("engine/distinct.py", "            if position >= 0:", "0"): "the same",
    ("engine/narrow.py", "is_faster = tuple_bytes >= 4", ">="): "narrowed or not: one result",
    (
        "engine/bind.py",
        "fits_in_cache = scratch <= 2 * tile_limit",
        "*",
    ): "packed or not: one result",
    ("engine/small.py", "> tuning.SMALL_CALL", "//"): "the general path gives the same result",
    ("loops/reductions.pxd", "    return n > 1", "1"): "two of one element are combined otherwise",
    ("loops/reductions.pxd", "    return n > 1", ">"): "the same",
    (
        "loops/scatters.pxd",
        "for j in range(n + i, min(n + i + n_block, n + n_next)):",
        "+",
    ): "prefetches",
    ("loops/gathers.pxd", "return width % LINE and width < 3 * LINE or", "<"): "staged or not",
    ("_operands.pxi", "if width & (width - 1) == 0:", "1"): "a width of 1 divides, not shifts",
    ("engine/destinations.py", "        shift += 1", "1"): "parts of another size: one result",
    ("engine/destinations.py", "groups = min(max_groups", "min"): "bounds memory",
    ("engine/destinations.py", "groups = min(max_groups", "//"): "bounds memory",
    (
        "engine/scatters.py",
        "spec, call.out, True, options",
        "True",
    ): "threads share otherwise: one result",
    ("machine/scratch.py", "if len(buffer) >= size", ">="): "a new buffer instead",
    (
        "engine/destinations.py",
        "entry_bytes = 4 +",
        "<",
    ): "slices of a cache line get more scratch than they need",
}


# Mutants whose fate is known, as (file, a part of the line, the token).
FATAL = (
    ("loops/gathers.pxd", "target += n * width", "*"),
    ("rules/shapes.py", "+ data[b + k :]", "+"),
)
HARMLESS = (
    ("loops/moves.pxd", "    elif width == 1:", "1"),
    ("engine/bind.py", "columns = columns // LINE * LINE", "*"),
)
# Quick tests kill nearly all mutants; then slow ones are run on the survivors.
ROUNDS = (("not slow and not huge", 0.7), ("slow and not huge", 0.3))  # with shares of the time
KILLED, TIMEOUT, SURVIVED = "killed", "timeout", "SURVIVED"
INVALID = "invalid"  # does not compile
ERROR = re.compile(r"^ndtool/(\S+?):(\d+):\d+: (?!warning|note)", re.MULTILINE)
ORIGIN = re.compile(r'\s*/\* "ndtool/(\S+)":(\d+)$')  # in the generated C
HANGS = (-signal.SIGPROF, -signal.SIGXCPU)


class Mutant(NamedTuple):
    """A token of a source, and its replacement."""

    file: str
    line: int  # from 0
    column: int
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line + 1}:{self.column + 1}: {self.old} -> {self.new}"

    def apply(self, text: str) -> str:
        """Return the source with the token replaced."""
        lines = text.splitlines(keepends=True)
        line, end = lines[self.line], self.column + len(self.old)
        lines[self.line] = line[: self.column] + self.new + line[end:]
        return "".join(lines)


def code_lines(file: str) -> Iterator[tuple[int, str]]:
    """Yield the lines whose tokens affect results, with texts and casts blanked."""
    text = (ROOT / "ndtool" / file).read_text()
    text = re.sub(r'""".*?"""', lambda m: re.sub(r"[^\n]", " ", m[0]), text, flags=re.DOTALL)
    lines = [*text.splitlines(), ""]
    function = ""
    for number, line in enumerate(lines[:-1]):
        if begins := FUNCTION.match(line):
            function = begins[1] or begins[2] or begins[3]
        if begins or function in UNSEEN or not line.startswith(" "):
            continue
        if TEXT.search(line) or SPEED.search(line) or TYPED.search(line):
            continue
        if file in KERNELS and DOOR in lines[number + 1]:
            continue
        line = CAST.sub(lambda m: " " * len(m[0]), line)
        line = re.sub(r'"[^"]*"|\'[^\']*\'', lambda m: " " * len(m[0]), line)
        yield number, line.partition("#")[0]


def mutants(file: str) -> Iterator[Mutant]:
    """Yield all mutants of a file, without equivalent ones."""
    known = [(part, token) for name, part, token in EQUIVALENT if name == file]
    for number, line in code_lines(file):
        same = [token for part, token in known if part in line]
        yield from (one for one in flips(file, number, line) if one.old not in same)


def flips(file: str, number: int, line: str) -> Iterator[Mutant]:
    """Yield all mutants of a line."""
    for token in TOKEN.finditer(line):
        before = line[: token.start()].rstrip()
        unary = token[0] in "-*&" and (not before or before[-1] in "(,=:[+-*/<>")
        tight = token[0] == "*" and not line[: token.start()].endswith(" ")  # a pointer
        if token[0] in FLIPS and not (unary and token[0] != "-") and not tight:
            yield Mutant(file, number, token.start(), token[0], FLIPS[token[0]])


def find(file: str, part: str, old: str) -> Mutant:
    """Return the first mutant of a token in a line that contains a text."""
    lines = (line for line in code_lines(file) if part in line[1])
    return next(one for line in lines for one in flips(file, *line) if one.old == old)


def drawn(files: Sequence[str], size: int, seed: int) -> list[Mutant]:
    """Return a random sample: a mutant of each file first, then any."""
    generator = random.Random(seed)
    first, others = [], []
    for name in files:
        every = list(mutants(name))
        generator.shuffle(every)
        first += every[:1]
        others += every[1:]
    generator.shuffle(first)
    generator.shuffle(others)
    return [*first, *others][:size]


def prepare(worker: int) -> Path:
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
        file.write(PROFILE)
    # Cache .pyc files by content, not by time: a second less for each mutant.
    for name in ("ndtool", "tests"):
        compileall.compile_dir(
            folder / name, quiet=1, invalidation_mode=PycInvalidationMode.CHECKED_HASH
        )
    return folder


def limits() -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))


def status(folder: Path, *arguments: str, number: int = -1) -> int | None:
    """Run Python in the folder, where its ndtool is found first; return its status, None of a hang."""
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
            [sys.executable, *arguments], cwd=folder, preexec_fn=limits, env=environment,
            stdout=log, stderr=log,
        )  # fmt: skip
    try:
        ended = process.wait(LIMIT)
        return None if ended in HANGS else ended
    except subprocess.TimeoutExpired:
        return None
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def tests_of(file: str) -> tuple[str, ...]:
    """Return the tests for mutants of a file, its own first."""
    return tuple(dict.fromkeys((*OWN.get(file, ()), *(KERNEL_TESTS if file in KERNELS else TESTS))))


def run_tests(folder: Path, tests: Sequence[str], marks: str, number: int = -1) -> str:
    """Run tests with some marks until one fails; return what becomes of a mutant."""
    ended = status(
        folder, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--assert=plain",
        "-m", marks, *LARGE, *(f"tests/{name}" for name in tests), number=number,
    )  # fmt: skip
    return TIMEOUT if ended is None else SURVIVED if ended == 0 else KILLED


def build_all(folder: Path, chosen: list[Mutant]) -> set[int]:
    """Build as many mutants of kernels in one build as possible; return which, by number."""
    together = {number for number, mutant in enumerate(chosen) if mutant.file in KERNELS}
    originals = {name: (folder / "ndtool" / name).read_text() for name in KERNELS}
    script, path = Path(__file__).with_name("schemata.py"), folder / "locations.json"
    while together:
        records = [(*place(chosen[number]), chosen[number].new, number) for number in together]
        path.write_text(json.dumps(records))
        (folder / "ndtool" / "_kernels.c").unlink(missing_ok=True)
        built = subprocess.run(
            [sys.executable, str(script), str(path)], cwd=folder, check=False, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        (folder / "log").write_text(built.stdout)
        for name, text in originals.items():
            (folder / "ndtool" / name).write_text(text)
        if not built.returncode:
            return together - set(json.loads(built.stdout.splitlines()[-1]))
        wrong = set(erroneous(built.stdout, folder / "ndtool" / "_kernels.c"))
        invalid = {number for number in together if place(chosen[number])[:2] in wrong}
        if not invalid:
            raise SystemExit(f"the kernels do not build with mutants, see {folder / 'log'}")
        together -= invalid
    return set()


def erroneous(log: str, generated: Path) -> Iterator[tuple[str, int]]:
    """Yield the lines of the sources that Cython or the C compiler reports, each with its file."""
    lines = generated.read_text().splitlines() if generated.exists() else []
    for file, number in ERROR.findall(log):
        if file != generated.name:
            yield file, int(number)
            continue
        origins = (ORIGIN.match(line) for line in reversed(lines[: int(number)]))
        found = next(filter(None, origins))
        yield found[1], int(found[2])


def place(mutant: Mutant) -> tuple[str, int, int]:
    """Return a mutant's file, its line from 1 and its column from 0."""
    return mutant.file, mutant.line + 1, mutant.column


def outcome(mutant: Mutant, folder: Path, marks: str) -> str:
    """Build, if necessary, and test a mutant."""
    path = folder / "ndtool" / mutant.file
    original = path.read_text()
    path.write_text(mutant.apply(original))
    try:
        if mutant.file not in KERNELS:
            return run_tests(folder, tests_of(mutant.file), marks)
        return rebuilt(folder, tests_of(mutant.file), marks)
    finally:
        path.write_text(original)


def rebuilt(folder: Path, tests: Sequence[str], marks: str) -> str:
    """Build and test changed kernels; restore the original ones."""
    kernels = next((folder / "ndtool").glob("_kernels*.so"))
    built = kernels.read_bytes()
    (folder / "ndtool" / "_kernels.c").unlink(missing_ok=True)
    try:
        if status(folder, "setup.py", "-q", "build_ext", "--inplace") != 0:
            return INVALID
        return run_tests(folder, tests, marks)
    finally:
        kernels.unlink(missing_ok=True)
        kernels.write_bytes(built)
        kernels.chmod(0o755)


def pass_without_mutants(folder: Path) -> bool:
    """Run all tests on the original sources."""
    every = dict.fromkeys(name for names in (TESTS, *OWN.values()) for name in names)
    return run_tests(folder, tuple(every), "not huge") == SURVIVED


def summary(judged: Sequence[tuple[Mutant, str]]) -> Iterator[str]:
    """Yield a table of outcomes by file, and the survivors."""
    columns = (KILLED, TIMEOUT, SURVIVED)
    counts = Counter((mutant.file, fate) for mutant, fate in judged)
    total = Counter(fate for _, fate in judged)
    width = max((len(mutant.file) for mutant, _ in judged), default=0)
    yield " ".join([" " * width, *columns])
    for file in sorted({mutant.file for mutant, _ in judged}):
        cells = (f"{counts[file, fate]:{len(fate)}}" for fate in columns)
        yield " ".join([f"{file:{width}}", *cells])
    yield f"{len(judged)} mutants: " + ", ".join(f"{total[fate]} {fate}" for fate in columns)
    yield from (str(mutant) for mutant, fate in judged if fate == SURVIVED)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=120, help="mutants")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="without building")
    parser.add_argument("--jobs", type=int, default=2, help="mutants at a time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one file")
    parser.add_argument("--check", action="store_true", help="mutants with a known fate first")
    parser.add_argument("--show", action="store_true", help="list the mutants, run nothing")
    return parser.parse_args()


def main() -> int:
    options = arguments()
    files = [name for name in (*SOURCES, *KERNELS) if options.only in (None, name)]
    chosen = drawn(files, options.sample, options.seed)
    if options.show:
        print(*chosen, sep="\n")
        return 0
    known = [find(*row) for row in (*FATAL, *HARMLESS)] if options.check else []
    every_mutant = [*known, *chosen]
    every_folder = [prepare(job) for job in range(options.jobs)]
    folders: SimpleQueue[Path] = SimpleQueue()
    for folder in every_folder:
        folders.put(folder)
    together = build_all(every_folder[0], every_mutant)
    if together:
        kernels = next((every_folder[0] / "ndtool").glob("_kernels*.so"))
        for folder in every_folder[1:]:
            shutil.copy(kernels, folder / "ndtool")

    fates: dict[int, str] = {}

    def judge(number: int, marks: str, end: float) -> None:
        folder, started, mutant = folders.get(), time.monotonic(), every_mutant[number]
        try:
            if started > end:
                return
            if number in together:
                fates[number] = run_tests(folder, tests_of(mutant.file), marks, number)
            else:
                fates[number] = outcome(mutant, folder, marks)
        finally:
            folders.put(folder)
        seconds = time.monotonic() - started
        print(f"{fates[number]:8} {seconds:5.0f} s {mutant} ({marks})", flush=True)

    print(f"seed {options.seed}, {len(together)} mutants compiled together", flush=True)
    if not pass_without_mutants(every_folder[0]):
        print("the tests fail without a mutant, see build/mutants/0/log")
        return 2
    print("the tests pass without a mutant", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        alive = list(range(len(every_mutant)))
        for marks, share in ROUNDS:
            end = time.monotonic() + options.minutes * share * 60
            list(pool.map(lambda n, marks=marks, end=end: judge(n, marks, end), alive))
            alive = [n for n in alive if fates.get(n) == SURVIVED]
    expected = [KILLED] * len(FATAL) + [SURVIVED] * len(HARMLESS) if known else []
    if [fates.get(n) for n in range(len(known))] != expected:
        print("a mutant with a known fate met another one")
        return 2
    judged = [
        (every_mutant[n], fate) for n, fate in fates.items() if n >= len(known) and fate != INVALID
    ]
    print(*summary(judged), sep="\n")
    return 1 if any(fate == SURVIVED for _, fate in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
