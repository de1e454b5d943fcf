"""Change operators and numbers in the sources, one at a time, and expect the tests to fail.

    python tests/mutants/run.py [--sample N] [--seconds S] [--seed S] [--only FILE] [--show]

Lists the mutants of a random sample that no test kills: a test is missing, or the mutant changes
only speed or nothing. Exit status 1 if one survives, 2 if the tests fail without a mutant or do not
notice a mutant that breaks every gather. Sources are copied to build/mutants, where the kernels are
built anew for each of their mutants; one that does not compile is not counted.
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


def blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def mutants(file: str) -> Iterator[Mutant]:
    """Yield all mutants of a file: of lines in functions, without strings, comments and casts."""
    text = re.sub(r'""".*?"""', blank, (PACKAGE / file).read_text(), flags=re.DOTALL)
    for number, line in enumerate(text.splitlines(), 1):
        if NO_CODE.search(line) or SPEED_ONLY.search(line):
            continue
        line = re.sub(r'"[^"]*"|\'[^\']*\'|#.*', blank, CAST.sub(blank, line))
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


def run_tests(folder: Path, seconds: int) -> int:
    """Run the tests, and return the exit status."""
    environment = {
        **os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_WAIT_POLICY": "passive", "NDTOOL_TEST_EXAMPLES": "100",
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


def build(folder: Path) -> bool:
    """Build the kernels; return whether they compile."""
    (folder / "ndtool" / "_kernels.c").unlink(missing_ok=True)
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    return not subprocess.run(command, cwd=folder, check=False, capture_output=True).returncode


def run_mutant(folder: Path, mutant: Mutant, seconds: int) -> str:
    """Return whether a test fails with a mutant, or the mutant does not compile."""
    path = folder / "ndtool" / mutant.file
    changed = [path, *(folder / "ndtool").glob("_kernels*.so")]
    originals = {file: file.read_bytes() for file in changed}
    path.write_text(mutant.apply(path.read_text()))
    try:
        if mutant.is_compiled and not build(folder):
            return "invalid"
        return "killed" if run_tests(folder, seconds) else "SURVIVED"
    finally:
        for file, content in originals.items():
            file.write_bytes(content)


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
    if not build(folder) or run_tests(folder, 10 * options.seconds) != 0:
        print("the tests fail without a mutant, see build/mutants/log")
        return 2
    if run_mutant(folder, find_mutant(*KNOWN), options.seconds) != "killed":
        print("the tests do not notice a mutant that breaks every gather")
        return 2
    results = []
    for mutant in sample:
        results.append(run_mutant(folder, mutant, options.seconds))
        print(f"{results[-1]:8} {mutant}", flush=True)
    print(f"{len(sample) - results.count('invalid')} mutants, {results.count('SURVIVED')} survive")
    return int("SURVIVED" in results)


if __name__ == "__main__":
    sys.exit(main())
