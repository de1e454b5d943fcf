"""Change operators and numbers in the sources, one at a time, and expect the tests to fail.

    python tests/mutants/run.py [--sample N] [--seconds S] [--seed S] [--only FILE] [--show]

Lists the mutants of a random sample that no test kills: a test is missing, or the mutant changes
only speed or nothing. Exit status 1 if one survives, 2 if the tests fail without a mutant or do not
notice a mutant that breaks every gather. Sources are copied to build/mutants. The kernels are built
once, with all mutants in them: see schemata.py.
"""

import argparse
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import schemata

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ndtool"
KERNELS = ("*.pyx", "*.pxi", "*.pxd", "loops/*.pxd")
SOURCES = ("engine/[a-z]*.py", "rules/shapes.py", "rules/grid.py", *KERNELS)
# The tests that notice most mutants first; -x ends them at the first failure.
TESTS = ("tests/rules", "tests/inmemory", "tests/kernels", "tests/outofcore/test_sweep.py")
# A mutant that every test of gathers must notice.
KNOWN = ("rules/shapes.py", "data[b + k :]", "+")
REPLACEMENTS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "+": "-", "-": "+",
    "*": "+", "//": "*", "%": "+", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "and": "or",
    "or": "and", "min": "max", "max": "min", "0": "1", "1": "2", "True": "False", "False": "True",
}  # fmt: skip
TOKEN = re.compile(r"<<|>>|//|<=|>=|==|!=|->|\*\*|[-+*/%<>&|=]=?|(?<!\d\.)\b\w+\b(?!\.\d)")
CAST = re.compile(r"<(?:const )?[\w ]+\*?>(?= ?[\w(&<])|\[(?::, )?::1\]")
NO_CODE = re.compile(
    r"^\S|^\s*(#|import|from|cimport|cdef extern|@|raise|assert)|import |: .*\| None"
)
# Statements that affect only speed.
SPEED_ONLY = re.compile(r"prefetch|non_temporal|NON_TEMPORAL|progress\(|limit_threads\(|lru_cache")
ERROR = re.compile(r"^ndtool/(\S+?):(\d+):\d+: (?!warning|note)", re.MULTILINE)
ORIGIN = re.compile(r'\s*/\* "ndtool/(\S+)":(\d+)$')  # in the generated C
# One seed, so that results are reproducible, and no shrinking of examples.
PROFILE = """
from hypothesis import Phase

settings.register_profile("mutants", derandomize=True, database=None, phases=[Phase.generate])
settings.load_profile("mutants")
"""


class Mutant(NamedTuple):
    """A token of a source, and its replacement; the line counts from 1, the column from 0."""

    file: str
    line: int
    column: int
    token: str
    replacement: str

    @property
    def is_compiled(self) -> bool:
        return not self.file.endswith(".py")

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column + 1}: {self.token} -> {self.replacement}"

    def apply(self, text: str) -> str:
        """Return the source with the token replaced."""
        lines = text.splitlines(keepends=True)
        line, end = lines[self.line - 1], self.column + len(self.token)
        lines[self.line - 1] = line[: self.column] + self.replacement + line[end:]
        return "".join(lines)


def mutants(file: str) -> Iterator[Mutant]:
    """Yield all mutants of a file: of lines in functions, without strings, comments and casts."""
    text = re.sub(r'""".*?"""', schemata.blank, (PACKAGE / file).read_text(), flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        if NO_CODE.search(line) or SPEED_ONLY.search(line):
            continue
        line = re.sub(r'"[^"]*"|\'[^\']*\'|#.*', schemata.blank, CAST.sub(schemata.blank, line))
        for token in TOKEN.finditer(line):
            before = line[: token.start()].rstrip()
            is_unary = token[0] in "*&" and (not before or before[-1] in "(,=:[+-*/<>")
            is_pointer = token[0] == "*" and not line[: token.start()].endswith(" ")
            if token[0] in REPLACEMENTS and not is_unary and not is_pointer:
                yield Mutant(file, number, token.start(), token[0], REPLACEMENTS[token[0]])


def find_mutant(file: str, text: str, token: str) -> Mutant:
    """Return the first mutant of a token in a line that contains a text."""
    lines = (PACKAGE / file).read_text().splitlines()
    return next(m for m in mutants(file) if m.token == token and text in lines[m.line - 1])


def sources() -> list[str]:
    """Return the files with mutants, relative to the package."""
    paths = {path for pattern in SOURCES for path in PACKAGE.glob(pattern)}
    return sorted(path.relative_to(PACKAGE).as_posix() for path in paths)


def draw_sample(files: list[str], size: int, seed: int) -> list[Mutant]:
    """Return a random sample: a mutant of each file first, then any."""
    generator = random.Random(seed)
    first_mutants, other_mutants = [], []
    for name in files:
        file_mutants = list(mutants(name))
        generator.shuffle(file_mutants)
        first_mutants += file_mutants[:1]
        other_mutants += file_mutants[1:]
    generator.shuffle(other_mutants)
    return [*first_mutants, *other_mutants][:size]


def prepare_folder() -> Path:
    """Return a folder with a copy of all files that the tests need."""
    folder = ROOT / "build" / "mutants"
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
    return folder


def run_tests(folder: Path, seconds: int, number: int = -1) -> int:
    """Run the tests with a mutant of the kernels, and return the exit status."""
    environment = {
        **os.environ, "KERNEL_MUTANT": str(number), "PYTHONPATH": str(folder),
        "PYTHONDONTWRITEBYTECODE": "1", "OMP_WAIT_POLICY": "passive", "NDTOOL_TEST_EXAMPLES": "100",
    }  # fmt: skip

    def set_limits() -> None:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))  # a wrong size fails at once
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))  # a mutant may never end

    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *TESTS]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--assert=plain"], cwd=folder, env=environment, preexec_fn=set_limits,
            stdout=log, stderr=log,
        )  # fmt: skip
        try:
            return process.wait(10 * seconds)
        except subprocess.TimeoutExpired:
            return -signal.SIGXCPU
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()


def build(folder: Path, sample: list[Mutant]) -> set[int]:
    """Build the kernels with all mutants that compile; return the numbers of these mutants."""
    compiled = {number for number, mutant in enumerate(sample) if mutant.is_compiled}
    files = {sample[number].file for number in compiled}
    while True:
        origins, inserted = {}, set[int]()
        for file in files:
            mutants = {
                number: sample[number][1:] for number in compiled if sample[number].file == file
            }
            text, origins[file], numbers = schemata.insert_mutants(
                (PACKAGE / file).read_text(), mutants
            )
            (folder / "ndtool" / file).write_text(text)
            inserted |= numbers
        (folder / "ndtool" / "_kernels.c").unlink(missing_ok=True)
        built = subprocess.run(
            [sys.executable, "setup.py", "-q", "build_ext", "--inplace"], cwd=folder, check=False,
            text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        if not built.returncode:
            return inserted
        locations = list(error_locations(built.stdout, folder / "ndtool" / "_kernels.c"))
        first = locations[0][0] if locations else ""  # others only lack what this file defines
        numbers = {number - 1 for file, number in locations if file == first in origins}
        wrong = {line for number in numbers for line in origins[first][number]}
        invalid = {n for n in compiled if sample[n].file == first and sample[n].line in wrong}
        if not invalid:
            raise SystemExit(built.stdout)
        compiled -= invalid


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


def is_killed(folder: Path, mutant: Mutant, seconds: int, number: int) -> bool:
    """Whether a test fails with a mutant; one of the kernels is selected by its number."""
    if mutant.is_compiled:
        return run_tests(folder, seconds, number) != 0
    path = folder / "ndtool" / mutant.file
    original = path.read_text()
    path.write_text(mutant.apply(original))
    try:
        return run_tests(folder, seconds) != 0
    finally:
        path.write_text(original)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sample", type=int, default=60, help="number of mutants")
    parser.add_argument("--seconds", type=int, default=600, help="processor time of the tests")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="mutants of one file")
    parser.add_argument("--show", action="store_true", help="list the mutants, run nothing")
    options = parser.parse_args()
    files = [name for name in sources() if options.only in (None, name)]
    sample = draw_sample(files, options.sample, options.seed)
    if options.show:
        print(*sample, sep="\n")
        return 0
    folder = prepare_folder()
    compiled = build(folder, sample)
    if run_tests(folder, 10 * options.seconds) != 0:
        print("the tests fail without a mutant, see build/mutants/log")
        return 2
    if not is_killed(folder, find_mutant(*KNOWN), options.seconds, -1):
        print("the tests do not notice a mutant that breaks every gather")
        return 2
    tested = [n for n, mutant in enumerate(sample) if n in compiled or not mutant.is_compiled]
    survivors = []
    for number in tested:
        killed = is_killed(folder, sample[number], options.seconds, number)
        print("killed  " if killed else "SURVIVED", sample[number], flush=True)
        survivors += [] if killed else [number]
    print(f"{len(tested)} mutants, {len(survivors)} survive")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
