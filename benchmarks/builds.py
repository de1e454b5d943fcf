"""Compare two builds of ndtool: `builds.py FOLDER FOLDER [NAME ...]`, each with a package ndtool.

A process for each build has the same arrays; their calls alternate. It prints the second build's
time divided by the first one's: in processor time on one thread, which other processes disturb
little, the best of all rounds; small calls in the median, too.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

SECONDS = 0.02  # of calls in a round
ROUNDS = 15
BATCH = "batch "  # a command to a server: prefix of a number of calls
NAMES = "names"


def small_calls() -> dict[str, Callable[[], Any]]:
    """Return a small call of every operator, kind of arguments and reduction."""
    import numpy as np

    import ndtool

    data = np.arange(12, dtype=np.float32).reshape(3, 4)
    rows, picks = np.array([[2], [0]]), np.array([[0, -1, 2, 1]])
    updates, out = np.full((2, 4), 7, np.float32), np.empty((2, 4), np.float32)
    line, big = np.arange(1000.0), np.arange(64).reshape(64, 1)
    past, update = np.zeros((1, 8, 4), np.float32), np.ones((1, 2, 4), np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "gather_nd": lambda: ndtool.gather_nd(data, rows),
        "gather_nd out": lambda: ndtool.gather_nd(data, rows, out=out),
        "gather_nd 64": lambda: ndtool.gather_nd(line, big),
        "gather_nd pad": lambda: ndtool.gather_nd(data, rows, pad=-1, fill=1),
        "gather_nd general": lambda: ndtool.gather_nd(data[::-1], rows),
        "gather": lambda: ndtool.gather(data, rows[:, 0]),
        "gather_elements": lambda: ndtool.gather_elements(data, picks, 0),
        "scatter": lambda: ndtool.scatter(data, rows[:, 0], updates, 0),
        "tensor_scatter": lambda: ndtool.tensor_scatter(past, update, axis=-2),
    }
    for reduction in ("none", "add", "sub", "mul", "div", "max", "min", "mean"):
        calls[f"scatter_nd {reduction}"] = lambda how=reduction: ndtool.scatter_nd(
            data, rows, updates, how
        )
        calls[f"scatter_elements {reduction}"] = lambda how=reduction: ndtool.scatter_elements(
            data, picks, updates[:1], 0, how
        )
    return {f"small {name}": call for name, call in calls.items()}


def serve() -> None:
    """Execute commands from standard input: a name prepares a call, "batch N" times N calls."""
    import problems
    from cases import CASES, LADDER
    from numpy import empty

    import ndtool

    cases = {case.name: case for case in (*CASES, *LADDER)}
    small = small_calls()
    call: Callable[[], Any] = dict

    def prepare(name: str) -> Callable[[], Any]:
        if name in small:
            return small[name]
        problem = problems.make(cases[name])
        case, arguments = problem.case, problem.arguments
        out = empty(case.output, problem.data.dtype)
        operator = getattr(ndtool, case.operator)
        return lambda: operator(*arguments, out=out, threads=1)

    for line in sys.stdin:
        command = line.strip()
        if command == NAMES:
            answer = ",".join([*small, *cases])
        elif command.startswith(BATCH):
            times = int(command.removeprefix(BATCH))
            started = time.process_time()
            for _ in range(times):
                call()
            answer = str((time.process_time() - started) / times)
        else:
            call = dict  # frees the arrays of the case before
            call = prepare(command)
            answer = str(call() is None)
        print(answer, flush=True)


class Build:
    """A process that calls one build."""

    def __init__(self, folder: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env=os.environ | {"PYTHONPATH": str(Path(folder).resolve())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, command: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"a build failed: {command}")
        return answer.strip()

    def seconds(self, times: int) -> float:
        return float(self.ask(f"{BATCH}{times}"))


def compare(first: Build, second: Build, name: str) -> tuple[float, float, float]:
    """Return the first build's best time of a call, and the ratios of best times and medians."""
    for build in (first, second):
        build.ask(name)
    one = max(build.seconds(1) for build in (first, second))
    times = max(1, round(SECONDS / one))
    taken = [(first.seconds(times), second.seconds(times)) for _ in range(ROUNDS)]
    ours, theirs = zip(*taken, strict=True)
    return min(ours), min(theirs) / min(ours), median(theirs) / median(ours)


def measured(folders: list[str], only: list[str]) -> Iterator[float]:
    first, second = map(Build, folders)
    for name in first.ask(NAMES).split(","):
        if only and not any(fnmatchcase(name, pattern) for pattern in only):
            continue
        took, best, middle = compare(first, second, name)
        print(f"{name:40} {took * 1e6:12.2f} us  {best:6.3f} {middle:6.3f}", flush=True)
        yield best


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        ratios = list(measured(sys.argv[1:3], sys.argv[3:]))
        print(f"geometric mean {geometric_mean(ratios):.3f}, worst {max(ratios):.3f}")
