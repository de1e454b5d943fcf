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
    "_endings.pxd": "C in strings, about the end of a process",
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
    r"prefetch|ahead|AHEAD|SOON|touch|LOCAL_SHARE|stream|STREAMED|PIECE|task_count\(|progress\(|team\("
    r"|CACHED|FEW|LONG|TILE|LARGEST_PART|MOST_PARTS|WRITTEN|WIDE|SCRATCH|HUGEPAGE|MADV_FREE"
    r"|by_columns|division|often|last_index|lowest \+=|highest \+="
    r"|\bwork =|\bmoved =|\bmost =|\bsoon\b|strict=|\bpacks =|\bdense =|\bmany =|lru_cache|team == 1"
    r"|view\.rank == 1|group \+ 1|_bind\(|_check_span\(|_buffers\(|&\w+\[0|\.shape\["
    r"|in_cache|locality|n_local|closest"
)
# A condition of the kernels before one of these detects only bugs of callers.
DOOR = "raise ValueError"
# These detect the same, or only prefetch.
UNSEEN = ("_bind", "_extend", "_check_span", "_buffers", "will_need", "prefetch_strided")
TEXT = re.compile(r"^\s*(#|import|from|cimport|cdef extern|@|raise|assert|\"\"\")|import ")

# (file, a part of the line, the token): why the mutant is equivalent.
EQUIVALENT = {
    ("loops/indices.pxd", "indices & 7", "&"): "aligned indices are copied, too",
    ("loops/blocks.pxd", "return BLOCK if nd.k", "<="): "for two components both are BLOCK",
    ("loops/gathers.pxd", "return 1", "1"): "whatever is not 0 says so",
    ("loops/radix.pxd", "return 1", "1"): "the same",
    ("loops/panels.pxd", "return 1", "1"): "the same",
    ("loops/scatters.pxd", "        mixed = ", "*"): "threads share the runs otherwise",
    ("loops/scatters.pxd", "        is_owned = ", "*"): "the same",
    ("_kernels.pyx", "return 16 * threads", "*"): "work is divided otherwise: one result",
    ("_kernels.pyx", "return 16 * threads", ">"): "the same",
    ("_kernels.pyx", "return 16 * threads", "1"): "the same",
    ("_operands.pxi", "max(per_batch, 1)", "1"): "0 only where there are no tuples",
    ("_operands.pxi", "self.nd.span = ", "-"): "fewer bytes are prefetched",
    (
        "loops/checks.pxd",
        "found = Found(-1, 0, -1)",
        "1",
    ): "below 0 is none; nobody reads the other",
    ("loops/checks.pxd", "found = Found(-1, 0, -1)", "-"): "the same",
    ("loops/moves.pxd", "    elif width == 1:", "1"): "copy_bytes does the same",
    ("loops/moves.pxd", "if width > ", ">"): "two halves that overlap wholly, or one whole",
    ("engine/bind.py", "tile = tile // LINE * LINE", "*"): "another width of tile: one result",
    ("engine/bind.py", "tile = tile // LINE * LINE", "//"): "a tile as wide as the panel: the same",
    ("engine/bind.py", "if tile < p.columns and tile > LINE", ">"): "the same",
    ("engine/bind.py", "if tile < p.columns and tile > LINE", "<"): "the same",
    ("engine/bind.py", "none = (0,)", "0"): "a check reads and writes nothing there",
    (
        "engine/bind.py",
        "runs = bind_runs(plan, strides, 1, negatives)",
        "1",
    ): "only the addressing of these runs is used",
    ("engine/destinations.py", "        shift += 1", "1"): "parts of another size: one result",
    ("engine/destinations.py", "groups = min(most", "min"): "bounds memory",
    ("engine/destinations.py", "groups = min(most", "//"): "bounds memory",
    (
        "engine/scatters.py",
        "spec, s.out, True, options",
        "True",
    ): "threads share otherwise: one result",
    ("machine/scratch.py", "if len(buffer) >= size", ">="): "a new buffer instead",
    (
        "engine/destinations.py",
        "entry = 4 +",
        "<",
    ): "runs of a whole line get more room than they need",
}


# Mutants whose fate is known, as (file, a part of the line, the token).
FATAL = (("loops/gathers.pxd", "to += n * width", "*"), ("rules/shapes.py", "+ data[b + k :]", "+"))
HARMLESS = (
    ("loops/moves.pxd", "    elif width == 1:", "1"),
    ("engine/bind.py", "tile = tile // LINE * LINE", "*"),
)
KILLED, TIMEOUT, SURVIVED = "killed", "timeout", "SURVIVED"
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


def run_tests(folder: Path, tests: Sequence[str], number: int = -1) -> str:
    """Run tests until one fails; return what becomes of a mutant."""
    ended = status(
        folder, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--assert=plain",
        "-m", "not huge", *LARGE, *(f"tests/{name}" for name in tests), number=number,
    )  # fmt: skip
    return TIMEOUT if ended is None else SURVIVED if ended == 0 else KILLED


def build_all(folder: Path, chosen: list[Mutant]) -> set[int]:
    """Build as many mutants of kernels in one build as possible; return which, by number."""
    records = [
        (m.file, m.line + 1, m.column, m.new, number)
        for number, m in enumerate(chosen)
        if m.file in KERNELS
    ]
    if not records:
        return set()
    path = folder / "locations.json"
    path.write_text(json.dumps(records))
    originals = {name: (folder / "ndtool" / name).read_text() for name in KERNELS}
    (folder / "ndtool" / "_kernels.c").unlink(missing_ok=True)
    script = Path(__file__).with_name("schemata.py")
    with (folder / "log").open("w") as log:
        built = subprocess.run(
            [sys.executable, str(script), str(path)], cwd=folder, check=True, text=True,
            stdout=subprocess.PIPE, stderr=log,
        )  # fmt: skip
    for name, text in originals.items():
        (folder / "ndtool" / name).write_text(text)
    skipped = set(json.loads(built.stdout.splitlines()[-1]))
    return {number for *_, number in records} - skipped


def outcome(mutant: Mutant, folder: Path) -> str:
    """Build, if necessary, and test a mutant; one that does not compile counts as killed."""
    path = folder / "ndtool" / mutant.file
    original = path.read_text()
    path.write_text(mutant.apply(original))
    try:
        if mutant.file not in KERNELS:
            return run_tests(folder, TESTS)
        return rebuilt(folder)
    finally:
        path.write_text(original)


def rebuilt(folder: Path) -> str:
    """Build and test changed kernels; restore the original ones."""
    kernels = next((folder / "ndtool").glob("_kernels*.so"))
    built = kernels.read_bytes()
    (folder / "ndtool" / "_kernels.c").unlink(missing_ok=True)
    try:
        if status(folder, "setup.py", "-q", "build_ext", "--inplace") != 0:
            return KILLED
        return run_tests(folder, KERNEL_TESTS)
    finally:
        kernels.unlink(missing_ok=True)
        kernels.write_bytes(built)
        kernels.chmod(0o755)


def pass_without_mutants(folders: Sequence[Path], pool: ThreadPoolExecutor) -> bool:
    """Run both lists of tests on the original sources."""
    every = [(folders[0], TESTS), (folders[-1], KERNEL_TESTS)]
    return set(pool.map(run_tests, *zip(*every, strict=True))) == {SURVIVED}


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
    parser.add_argument("--minutes", type=float, default=float("inf"), help="then none is begun")
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
    end = time.monotonic() + options.minutes * 60

    def judge(number: int, mutant: Mutant) -> str | None:
        folder, started = folders.get(), time.monotonic()
        try:
            if started > end:
                return None
            if number in together:
                fate = run_tests(folder, KERNEL_TESTS, number)
            else:
                fate = outcome(mutant, folder)
        finally:
            folders.put(folder)
        print(f"{fate:8} {time.monotonic() - started:5.0f} s {mutant}", flush=True)
        return fate

    print(f"seed {options.seed}, {len(together)} mutants compiled together", flush=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        if not pass_without_mutants(every_folder, pool):
            print("the tests fail without a mutant, see build/mutants/*/log")
            return 2
        print("the tests pass without a mutant", flush=True)
        fates = list(pool.map(judge, range(len(every_mutant)), every_mutant))
    expected = [KILLED] * len(FATAL) + [SURVIVED] * len(HARMLESS) if known else []
    if fates[: len(known)] != expected:
        print("a mutant with a known fate met another one")
        return 2
    begun = list(zip(every_mutant, fates, strict=True))[len(known) :]
    judged = [(mutant, fate) for mutant, fate in begun if fate]
    print(*summary(judged), sep="\n")
    return 1 if any(fate == SURVIVED for _, fate in judged) else 0


if __name__ == "__main__":
    sys.exit(main())
