"""ndtool.dask and dask's own vindex and take: tasks, seconds and peak memory.

Each measurement runs in a new process, the methods in alternation; the table has the minimum of
ROUNDS runs. Tasks of the graph compute data, in which each element is its linear index, so that
every result is verified and no input is read. Tasks are counted after optimization, without those
of data. Peak memory is that of the process, without its memory before the graph was built.

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
    """A benchmark. shape, chunks: of data. n: the number of selected points, or rows."""

    name: str
    shape: tuple[int, int]
    chunks: tuple[int, int]
    n: int
    selects_points: bool
    sort: bool = False


CASES = (
    Case("10^4 points, 400 chunks", (20_000, 20_000), (1000, 1000), 10_000, True),
    Case("2^22 points, 64 chunks", (8192, 8192), (1024, 1024), 1 << 22, True),
    Case("2^20 rows of 512 bytes, 64 chunks", (1 << 20, 64), (1 << 14, 64), 1 << 20, False),
    Case("the same, sorted", (1 << 20, 64), (1 << 14, 64), 1 << 20, False, True),
)
# dask; ndtool with indices in memory or in a dask array; a scatter of ndtool.
METHODS = ("dask", "memory", "lazy", "scatter add")


def element_indices(block: Any, block_info: Any) -> Any:
    """Return a chunk of data: the linear index of each element."""
    (rows, columns), width = block_info[None]["array-location"], block_info[None]["shape"][1]
    return np.arange(*rows)[:, None] * width + np.arange(*columns)


def result(case: Case, method: str, data: Any, indices: Any) -> tuple[Any, Any]:
    """Return a lazy result and the expected values."""
    import ndtool.dask as lazy

    expected = (
        indices @ np.array([case.shape[1], 1]) if case.selects_points else indices * case.shape[1]
    )
    if method == "dask":
        return (
            data.vindex[indices[:, 0], indices[:, 1]]
            if case.selects_points
            else da.take(data, indices, axis=0)
        ), expected
    if method != "memory":
        indices = da.from_array(indices, chunks=(1 << 16, *indices.shape[1:]))
    if method == "scatter add":
        updates = da.ones(
            (len(indices), *(() if case.selects_points else case.shape[1:])), dtype=int
        )
        return (lazy.scatter_nd if case.selects_points else lazy.scatter)(
            data, indices, updates, reduction="add"
        ), None
    return (lazy.gather_nd if case.selects_points else lazy.gather)(data, indices), expected


def measure(case: Case, method: str) -> dict[str, float]:
    """Run a case once with a method; return the measurements."""
    indices = np.random.default_rng(0).integers(
        0, case.shape[0], (case.n, 2)[: 1 + case.selects_points]
    )
    if case.sort:
        indices.sort()
    zeros = da.zeros(case.shape, chunks=case.chunks, dtype=bool)
    data = da.map_blocks(element_indices, zeros, dtype=int, meta=np.zeros((0, 0), int))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.perf_counter()
    lazy_result, expected = result(case, method, data, indices)
    build_seconds = time.perf_counter() - started
    if expected is None:
        check = (
            lazy_result.sum() - data.sum() - case.n * (1 if case.selects_points else case.shape[1])
        )
    else:
        columns = lazy_result if case.selects_points else lazy_result[:, 0]
        check = (columns != da.from_array(expected, chunks=columns.chunks)).sum()
    started = time.perf_counter()
    wrong = check.compute(scheduler="threads", num_workers=WORKERS)
    seconds = time.perf_counter() - started
    assert not wrong, "the result is wrong"
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    (optimized,) = dask.optimize(lazy_result)
    tasks = len(optimized.__dask_graph__()) - len(dask.optimize(data)[0].__dask_graph__())
    return {"tasks": tasks, "build": build_seconds, "compute": seconds, "peak": peak / 1024}


def main() -> None:
    """Print the table, or with arguments the measurements of one case."""
    if len(sys.argv) > 1:
        print(json.dumps(measure(CASES[int(sys.argv[1])], sys.argv[2])))
        return
    print("| case | method | tasks | build, s | compute, s | peak, MB |\n|---|---|---|---|---|---|")
    for case_number, case in enumerate(CASES):
        runs_by_method: dict[str, list[dict[str, float]]] = {method: [] for method in METHODS}
        for _ in range(ROUNDS):
            for method, runs in runs_by_method.items():
                command = [sys.executable, __file__, str(case_number), method]
                process = subprocess.run(command, capture_output=True, text=True, check=True)
                runs.append(json.loads(process.stdout))
        for method, runs in runs_by_method.items():
            best = {key: min(run[key] for run in runs) for key in runs[0]}
            print(
                f"| {case.name} | {method} | {best['tasks']:.0f} | {best['build']:.2f}"
                f" | {best['compute']:.2f} | {best['peak']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
