"""ndtool.dask and dask's own vindex and take: tasks, seconds and peak memory.

Each case runs in a process of its own, in alternation with its peer; the table has the fastest of
ROUNDS. An element of data is its own number, made in the graph, so that every result is verified
and nothing but the graph is measured. Tasks are those after optimization, without data's. Peak
memory is that of the process, less what it had before the graph was built.

    python benchmarks/lazy.py
"""

import json
import resource
import subprocess
import sys
import time
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np

ROUNDS = 2
WORKERS = 2


class Case(NamedTuple):
    """shape, chunks: of data. n: selections. points: of two components; else rows."""

    name: str
    shape: tuple[int, int]
    chunks: tuple[int, int]
    n: int
    points: bool
    sort: bool = False


CASES = (
    Case("10^4 points, 400 chunks", (20_000, 20_000), (1000, 1000), 10_000, True),
    Case("2^22 points, 64 chunks", (8192, 8192), (1024, 1024), 1 << 22, True),
    Case("2^20 rows of 512 bytes, 64 chunks", (1 << 20, 64), (1 << 14, 64), 1 << 20, False),
    Case("the same, sorted", (1 << 20, 64), (1 << 14, 64), 1 << 20, False, True),
)
# How each is computed: by dask, by ndtool from indices in memory or in a dask array, or scattered.
MAKERS = ("dask", "memory", "lazy", "scatter add")


def numbers(block: Any, block_info: Any) -> Any:
    """Return a chunk of data: the number of each element."""
    (rows, columns), width = block_info[None]["array-location"], block_info[None]["shape"][1]
    return np.arange(*rows)[:, None] * width + np.arange(*columns)


def result(case: Case, maker: str, x: Any, i: Any) -> tuple[Any, Any]:
    """Return a lazy result, and the values that it must have."""
    import ndtool.dask as lazy

    expected = i @ np.array([case.shape[1], 1]) if case.points else i * case.shape[1]
    if maker == "dask":
        return (x.vindex[i[:, 0], i[:, 1]] if case.points else da.take(x, i, axis=0)), expected
    given = i if maker == "memory" else da.from_array(i, chunks=(1 << 16, *i.shape[1:]))
    if maker == "scatter add":
        updates = da.ones((len(i), *(() if case.points else case.shape[1:])), dtype=int)
        return (lazy.scatter_nd if case.points else lazy.scatter)(
            x, given, updates, reduction="add"
        ), None
    return (lazy.gather_nd if case.points else lazy.gather)(x, given), expected


def measure(case: Case, maker: str) -> dict[str, float]:
    """Run a case once; return its figures."""
    i = np.random.default_rng(0).integers(0, case.shape[0], (case.n, 2)[: 1 + case.points])
    if case.sort:
        i.sort()
    none = da.zeros(case.shape, chunks=case.chunks, dtype=bool)
    x = da.map_blocks(numbers, none, dtype=int, meta=np.zeros((0, 0), int))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began = time.perf_counter()
    made, expected = result(case, maker, x, i)
    built = time.perf_counter() - began
    if expected is None:
        check = made.sum() - x.sum() - case.n * (1 if case.points else case.shape[1])
    else:
        columns = made if case.points else made[:, 0]
        check = (columns != da.from_array(expected, chunks=columns.chunks)).sum()
    began = time.perf_counter()
    wrong = check.compute(scheduler="threads", num_workers=WORKERS)
    seconds = time.perf_counter() - began
    assert not wrong, "the result is wrong"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    (optimized,) = dask.optimize(made)
    tasks = len(optimized.__dask_graph__()) - len(dask.optimize(x)[0].__dask_graph__())
    return {"tasks": tasks, "build": built, "compute": seconds, "peak": peak / 1024}


def main() -> None:
    """Print the table, or with arguments the figures of one case."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(CASES[int(sys.argv[1])], sys.argv[2])))
        return
    print("| case | by | tasks | build, s | compute, s | peak, MB |\n|---|---|---|---|---|---|")
    for number, case in enumerate(CASES):
        found: dict[str, list[dict[str, float]]] = {maker: [] for maker in MAKERS}
        for _ in range(ROUNDS):
            for maker, runs in found.items():
                call = [sys.executable, __file__, str(number), maker]
                ran = subprocess.run(call, capture_output=True, text=True, check=True)
                runs.append(json.loads(ran.stdout))
        for maker, runs in found.items():
            best = {key: min(run[key] for run in runs) for key in runs[0]}
            print(
                f"| {case.name} | {maker} | {best['tasks']:.0f} | {best['build']:.2f}"
                f" | {best['compute']:.2f} | {best['peak']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
