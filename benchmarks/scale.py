"""The cost of a sweep on a cluster: a schedule of measured costs, compared with real runs.

    python benchmarks/scale.py            empty tasks, then three sizes, run and simulated
    python benchmarks/scale.py --tables   the table of docs/scale.md, from the costs below

Runs use this machine's workers; tables assume other workers, and follow
only from the counts and from the costs below.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import math
import tempfile
import time
from typing import NamedTuple

import dask
import distributed
import numpy as np

WORKERS = 2
TINY = 1 << 8, 1 << 12  # lines of data, tuples
SIZES = (1 << 14, 1 << 20), (1 << 16, 1 << 22), (1 << 17, 1 << 23)

# For the tables. A worker has 8 GiB and reads and writes 100 MB/s in requests of 30 ms, 16 at once.
TASK = 0.01  # seconds of dask's scheduler for a task; `empty` measured 0.002 with two workers
STORE, LATENCY, AT_ONCE = 100e6, 0.03, 16
SORTED = 20e6  # tuples per second that a worker sorts, or restores to order
CHUNK, PART, BLOCK = 64 << 20, 1 << 30, 1 << 25  # bytes, bytes, tuples
GET, PUT = 0.4e-6, 5e-6  # dollars
CASES = (
    (1e12, 1e9, 10), (1e12, 1e10, 100), (1e14, 1e10, 100), (1e14, 1e11, 1000), (1e16, 1e12, 10_000),
)  # fmt: skip


class Costs(NamedTuple):
    """Seconds of one task of each phase."""

    split: float
    sweep: float
    replay: float


def simulated(tasks: dict[str, int], costs: Costs, workers: int, each: float) -> float:
    """Return the seconds of phases in sequence: each task goes to the first idle worker.

    each: the scheduler's seconds for a task; it sends one at a time.
    """
    now = 0.0
    for phase, count in tasks.items():
        free, given = [now] * workers, now
        for _ in range(count):
            given = max(given + each, heapq.heappop(free))
            heapq.heappush(free, given + getattr(costs, phase))
        now = max(*free, given)
    return now


def empty(client: object, count: int = 5000) -> float:
    """Return the scheduler's seconds for an empty task."""
    started = time.perf_counter()
    client.gather(client.map(abs, range(count), pure=False))
    return (time.perf_counter() - started) / count


def prepare(rows: int, tuples: int) -> None:
    """Write data of `rows` lines of 4 KiB in chunks of 1 MiB, and indices of single elements."""
    import zarr

    rng = np.random.default_rng(rows)
    kinds = {"data": ((rows, 1024), (256, 1024), "f4"), "idx": ((tuples, 2), (1 << 16, 2), "i8")}
    for name, (shape, chunks, kind) in kinds.items():
        made = zarr.create_array(
            f"{name}.zarr", shape=shape, chunks=chunks, dtype=kind, overwrite=True, compressors=None
        )
        for first in range(0, shape[0], 1 << 16):
            count = min(1 << 16, shape[0] - first)
            made[first : first + count] = (
                rng.random((count, shape[1]), np.float32)
                if name == "data"
                else rng.integers(0, (rows, 1024), (count, 2))
            )


def ran(client: object) -> tuple[float, dict[str, int], Costs]:
    """Gather on a cluster; return the seconds, the tasks, and the seconds of one of each phase."""
    from ndtool.runs import steps
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.request import Request

    request = Request(
        "gather_nd", "data.zarr", "idx.zarr", output="out.zarr", scheduler=client, chunks=(1 << 16,)
    )  # fmt: skip
    with (
        OpenCall(request) as call,
        distributed.get_task_stream(client=client) as stream,
        steps.prepared(call, steps.resolved(call)) as ready,
    ):
        tasks = ready.plan.tasks
        started = time.perf_counter()
        steps.execute(ready)
        seconds = time.perf_counter() - started
    spent: dict[str, list[float]] = {phase: [] for phase in tasks}
    for one in stream.data:
        phase = one["key"].split("-")[1]
        if phase in spent:
            steps = [step for step in one["startstops"] if step["action"] == "compute"]
            spent[phase].append(sum(step["stop"] - step["start"] for step in steps))
    return seconds, tasks, Costs(*(float(np.mean(spent[phase])) for phase in Costs._fields))


def measure() -> None:
    """Print the measured and the simulated times."""
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set({"temporary-directory": folder}),
        distributed.LocalCluster(
            n_workers=WORKERS, threads_per_worker=1, host="127.0.0.1", memory_limit=0,
            local_directory=folder, silence_logs=100,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
        contextlib.chdir(folder),
    ):  # fmt: skip
        empty(client)  # as the first ones wait for imports
        each = empty(client)
        print(f"empty tasks: {1 / each:.0f} per second")
        print("| data | tuples | tasks | a split, sweep, replay | run | simulated | |")
        print("|---|---|---|---|---|---|---|")
        fixed = 0.0  # seconds to open and to publish: those of a run without much work
        for rows, tuples in (TINY, *SIZES):
            prepare(rows, tuples)
            ran(client)  # as workers import and the system caches
            seconds, tasks, costs = ran(client)
            guess = fixed + simulated(tasks, costs, WORKERS, each)
            if (rows, tuples) == TINY:
                fixed = seconds - guess
                continue
            spent = ", ".join(f"{1000 * cost:.0f}" for cost in costs)
            print(
                f"| {rows >> 8} MiB | {tuples} | {sum(tasks.values())} | {spent} ms"
                f" | {seconds:.2f} s | {guess:.2f} s | {100 * (guess / seconds - 1):+.0f} % |"
            )


def tables() -> None:
    """Print the cost of gathers of 4 bytes from data in chunks of 64 MiB."""
    print("| data | tuples | workers | I | G | O | range reads | spilled | requests | $ | hours |")
    print("|---|---|---|---|---|---|---|---|---|---|---|")
    for nbytes, tuples, workers in CASES:
        one = at_scale(nbytes, tuples, workers)
        print(
            f"| {sized(nbytes)} | 10^{round(math.log10(tuples))} | {workers} | {one.blocks} |"
            f" {one.parts} | {one.blocks} | {one.pieces:.1e} | {sized(one.spilled)} |"
            f" {one.requests:.1e} | {one.price:.0f} | {one.seconds / 3600:.2g} |"
        )


class Scale(NamedTuple):
    """The costs of a gather."""

    blocks: int
    parts: int
    pieces: float
    spilled: float
    requests: float
    price: float
    seconds: float


def at_scale(nbytes: float, tuples: float, workers: int) -> Scale:
    """Return the costs of a gather of single float32, as runs.external.partitioning counts."""
    part, block = PART, BLOCK
    blocks, parts = math.ceil(tuples / block), math.ceil(nbytes / part)
    here = tuples / blocks
    pieces = 2.0 * min(blocks * parts, tuples)  # of blocks by sweeps, of partitions by replays
    spilled = tuples * (4 + 2 + 4)
    named = 1 - math.exp(-tuples / (nbytes / CHUNK))  # chunks that a tuple selects
    read = named * nbytes / CHUNK
    requests = read + blocks * math.ceil(here * 8 / CHUNK) + pieces + 2 * blocks + parts
    written = blocks * 2 + parts
    per_part, per_block = pieces / 2 / parts, pieces / 2 / blocks
    costs = Costs(
        LATENCY + here * (8 + 6) / STORE + here / SORTED,
        LATENCY * (1 + per_part / AT_ONCE) + (named * part + tuples / parts * 8) / STORE,
        LATENCY * (1 + per_block / AT_ONCE) + here * 10 / STORE + here / SORTED,
    )
    phases = {"split": blocks, "sweep": parts, "replay": blocks}
    seconds = sum(
        max(count * TASK, math.ceil(count / workers) * getattr(costs, phase))
        for phase, count in phases.items()
    )
    price = (requests - written) * GET + written * PUT
    return Scale(blocks, parts, pieces, spilled, requests, price, seconds)


def sized(nbytes: float) -> str:
    """Return a number of bytes as text with a unit."""
    for power, unit in ((15, "PB"), (12, "TB"), (9, "GB")):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:.3g} {unit}"
    return f"{nbytes / 1e6:.3g} MB"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", action="store_true")
    tables() if parser.parse_args().tables else measure()
