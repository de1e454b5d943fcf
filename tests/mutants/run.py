"""Flip operators and bounds in the sources, one at a time, and expect the tests to fail.

    python tests/mutants/run.py [--sample N] [--seed S] [--only FILE] [--show]

Mutants that no test detects are listed: either a test is missing, or the mutant is equivalent, and
belongs in EQUIVALENT with the reason. Sources are copied to build/mutants; kernels are built there
once, with all mutants in them: see schemata.py. A detected mutant takes one to ten CPU seconds,
a survivor a minute. Exit status 1 if one survives.
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
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ndtool"
# C in strings, and lines that affect only speed or the end of a process.
WITHOUT_VALUES = {"_endings.pxd", "_process.pxi", "loops/startable.pxd", "loops/pages.pxd"}


def below_package(*patterns: str) -> tuple[str, ...]:
    """Return the paths of the files that match, relative to the package, without omissions."""
    found = (path.relative_to(PACKAGE).as_posix() for one in patterns for path in PACKAGE.glob(one))
    return tuple(sorted(set(found) - WITHOUT_VALUES))


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
WORKERS = 2
LIMIT = 900  # timeout of one mutant's tests; a hang counts as detected
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
    r"prefetch|ahead|AHEAD|SOON|touch|LOCAL_SHARE|stream|STREAMED|PIECE|work_items\(|progress\(|team\("
    r"|CACHED|FEW|LONG|TILE|LARGEST_PART|MOST_PARTS|WRITTEN|WIDE|SCRATCH|HUGEPAGE|MADV_FREE"
    r"|by_columns|sharing|often|last_index|lowest \+=|highest \+="
    r"|\bwork =|\bmoved =|\bmost =|\bsoon\b|strict=|\bpacks =|\bdense =|\bmany =|lru_cache|team == 1"
    r"|view\.rank == 1|group \+ 1|_bind\(|_check_span\(|_buffers\(|&\w+\[0|\.shape\["
    r"|in_cache|load_lines|locality|n_local|closest"
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
    ("loops/scatters.pxd", "        mine = ", "*"): "the same",
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
        "change, s.out, True, how",
        "True",
    ): "threads share otherwise: one result",
    ("machine/scratch.py", "if len(buffer) >= size", ">="): "a new buffer instead",
    (
        "engine/destinations.py",
        "entry = 4 +",
        "<",
    ): "runs of a whole line get more room than they need",
}


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
    """Yield all mutants of a file."""
    for number, line in code_lines(file):
        same = [token for name, part, token in EQUIVALENT if name == file and part in line]
        for token in TOKEN.finditer(line):
            before = line[: token.start()].rstrip()
            unary = token[0] in "-*&" and (not before or before[-1] in "(,=:[+-*/<>")
            tight = token[0] == "*" and not line[: token.start()].endswith(" ")  # a pointer
            if (
                token[0] in FLIPS
                and token[0] not in same
                and not (unary and token[0] != "-")
                and not tight
            ):
                yield Mutant(file, number, token.start(), token[0], FLIPS[token[0]])


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


def succeeds(folder: Path, *arguments: str, number: int = -1) -> bool:
    """Run Python in the folder, where its ndtool is found first; a hang counts as failure."""
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
        return process.wait(LIMIT) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def passes(folder: Path, tests: Sequence[str], number: int = -1) -> bool:
    return succeeds(
        folder, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--assert=plain",
        "-m", "not huge", *LARGE, *(f"tests/{name}" for name in tests), number=number,
    )  # fmt: skip


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


def survives(mutant: Mutant, folder: Path) -> bool:
    """Build, if necessary, and test a mutant; one that does not compile counts as detected."""
    path = folder / "ndtool" / mutant.file
    original = path.read_text()
    path.write_text(mutant.apply(original))
    try:
        if mutant.file not in KERNELS:
            return passes(folder, TESTS)
        return rebuilt(folder)
    finally:
        path.write_text(original)


def rebuilt(folder: Path) -> bool:
    """Build and test changed kernels; restore the original ones."""
    kernels = next((folder / "ndtool").glob("_kernels*.so"))
    built = kernels.read_bytes()
    (folder / "ndtool" / "_kernels.c").unlink(missing_ok=True)
    try:
        return succeeds(folder, "setup.py", "-q", "build_ext", "--inplace") and passes(
            folder, KERNEL_TESTS
        )
    finally:
        kernels.unlink(missing_ok=True)
        kernels.write_bytes(built)
        kernels.chmod(0o755)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=60, help="mutants of Python, and of kernels")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="one file")
    parser.add_argument("--show", action="store_true", help="list the mutants, run nothing")
    options = parser.parse_args()
    chosen: list[Mutant] = []
    for group in (SOURCES, KERNELS):
        files = [name for name in group if options.only in (None, name)]
        every = [mutant for name in files for mutant in mutants(name)]
        random.Random(options.seed).shuffle(every)
        chosen += every[: options.sample]
    if options.show:
        print(*chosen, sep="\n")
        return 0
    every_folder = [prepare(worker) for worker in range(WORKERS)]
    folders: SimpleQueue[Path] = SimpleQueue()
    for folder in every_folder:
        folders.put(folder)
    together = build_all(every_folder[0], chosen)
    if together:
        kernels = next((every_folder[0] / "ndtool").glob("_kernels*.so"))
        for folder in every_folder[1:]:
            shutil.copy(kernels, folder / "ndtool")

    def judge(number: int, mutant: Mutant) -> bool:
        folder = folders.get()
        try:
            if number in together:
                alive = passes(folder, KERNEL_TESTS, number)
            else:
                alive = survives(mutant, folder)
        finally:
            folders.put(folder)
        print(f"{'SURVIVED' if alive else 'noticed':8} {mutant}", flush=True)
        return alive

    with ThreadPoolExecutor(WORKERS) as pool:
        if not all(pool.map(passes, every_folder, (TESTS, KERNEL_TESTS))):
            print("the tests fail without a mutant, see build/mutants/*/log")
            return 2
        print("the tests pass without a mutant", flush=True)
        judged = pool.map(judge, range(len(chosen)), chosen)
        alive = [m for m, lives in zip(chosen, judged, strict=True) if lives]
    print(f"{len(chosen)} mutants, {len(alive)} survived", *alive, sep="\n")
    return 1 if alive else 0


if __name__ == "__main__":
    sys.exit(main())
