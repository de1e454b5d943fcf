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
    rows, indices = np.array([[2], [0]]), np.array([[0, -1, 2, 1]])
    updates, out = np.full((2, 4), 7, np.float32), np.empty((2, 4), np.float32)
    vector, tuples = np.arange(1000.0), np.arange(64).reshape(64, 1)
    cache, update = np.zeros((1, 8, 4), np.float32), np.ones((1, 2, 4), np.float32)
    calls: dict[str, Callable[[], Any]] = {
        "gather_nd": lambda: ndtool.gather_nd(data, rows),
        "gather_nd out": lambda: ndtool.gather_nd(data, rows, out=out),
        "gather_nd 64": lambda: ndtool.gather_nd(vector, tuples),
        "gather_nd pad": lambda: ndtool.gather_nd(data, rows, pad=-1, fill=1),
        "gather_nd general": lambda: ndtool.gather_nd(data[::-1], rows),
        "gather": lambda: ndtool.gather(data, rows[:, 0]),
        "gather_elements": lambda: ndtool.gather_elements(data, indices, 0),
        "scatter": lambda: ndtool.scatter(data, rows[:, 0], updates, 0),
        "tensor_scatter": lambda: ndtool.tensor_scatter(cache, update, axis=-2),
    }
    for reduction in ("none", "add", "sub", "mul", "div", "max", "min", "mean"):
        calls[f"scatter_nd {reduction}"] = lambda op=reduction: ndtool.scatter_nd(
            data, rows, updates, op
        )
        calls[f"scatter_elements {reduction}"] = lambda op=reduction: ndtool.scatter_elements(
            data, indices, updates[:1], 0, op
        )
    return {f"small {name}": call for name, call in calls.items()}


def serve() -> None:
    """Execute commands from standard input: a name prepares a call, "batch N" times N calls."""
    import problems
    from cases import CASES, OTHER_CASES
    from numpy import empty

    import ndtool

    cases = {case.name: case for case in (*CASES, *OTHER_CASES)}
    calls = small_calls()
    call: Callable[[], Any] = dict

    def prepare(name: str) -> Callable[[], Any]:
        if name in calls:
            return calls[name]
        problem = problems.generate(cases[name])
        case, arguments = problem.case, problem.arguments
        out = empty(case.output, problem.data.dtype)
        operator = getattr(ndtool, case.operator)
        return lambda: operator(*arguments, out=out, threads=1)

    for vector in sys.stdin:
        command = vector.strip()
        if command == NAMES:
            reply = ",".join([*calls, *cases])
        elif command.startswith(BATCH):
            count = int(command.removeprefix(BATCH))
            start = time.process_time()
            for _ in range(count):
                call()
            reply = str((time.process_time() - start) / count)
        else:
            call = dict  # frees the arrays of the previous case
            call = prepare(command)
            reply = str(call() is None)
        print(reply, flush=True)


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

    def send(self, command: str) -> str:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        reply = self._process.stdout.readline()
        if not reply:
            sys.exit(f"a build failed: {command}")
        return reply.strip()

    def seconds(self, count: int) -> float:
        return float(self.send(f"{BATCH}{count}"))


def compare(first: Build, second: Build, name: str) -> tuple[float, float, float]:
    """Return the first build's best time of a call, and the ratios of best times and medians."""
    for build in (first, second):
        build.send(name)
    duration = max(build.seconds(1) for build in (first, second))
    count = max(1, round(SECONDS / duration))
    pairs = [(first.seconds(count), second.seconds(count)) for _ in range(ROUNDS)]
    first_times, second_times = zip(*pairs, strict=True)
    return (
        min(first_times),
        min(second_times) / min(first_times),
        median(second_times) / median(first_times),
    )


def compare_all(folders: list[str], only: list[str]) -> Iterator[float]:
    first, second = map(Build, folders)
    for name in first.send(NAMES).split(","):
        if only and not any(fnmatchcase(name, pattern) for pattern in only):
            continue
        duration, best_ratio, median_ratio = compare(first, second, name)
        print(
            f"{name:40} {duration * 1e6:12.2f} us  {best_ratio:6.3f} {median_ratio:6.3f}",
            flush=True,
        )
        yield best_ratio


if __name__ == "__main__":
    if sys.argv[1:] == ["--serve"]:
        serve()
    else:
        ratios = list(compare_all(sys.argv[1:3], sys.argv[3:]))
        print(f"geometric mean {geometric_mean(ratios):.3f}, worst {max(ratios):.3f}")
