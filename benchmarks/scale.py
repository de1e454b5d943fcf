"""Runs on a cluster at scale: simulated from their plans, and simulations compared with runs.

    python benchmarks/scale.py --tables   the tables of docs/scale.md, by the simulator alone
    python benchmarks/scale.py            runs on this machine, beside the same runs simulated

The tables follow from the plans' counts, from the machines below and from prices; no such run was
made. The policy that submits the tasks is that of all runs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import tempfile
import time
from typing import Any, NamedTuple

import numpy as np

from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.rules import dtypes
from ndtool.runs.executors import Task
from ndtool.runs.executors.simulator import Faults, Meter, Simulator, Step
from ndtool.runs.external import estimates, policy
from ndtool.runs.external.costs import Costs, Run, Stored
from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.rows import Rows
from ndtool.runs.machines import Machine
from ndtool.runs.prices import Prices

# A sixteenth of an i4i.4xlarge, the machine of the CloudSort record: 25 Gbit/s, 128 GiB, $1.373 an
# hour. Of S3: requests of 30 ms, 5,500 reads and 3,500 writes a second on the prefix of a run.
THREAD = Machine(0.03, 16, 195e6, 5500.0, 3500.0, scheduled=0.002)
MACHINE = THREAD._replace(bandwidth=16 * 195e6, concurrency=256)  # all of it, as one worker
PRICES = Prices(machine_hour=1.373 / 16)
WHOLE = PRICES._replace(machine_hour=1.373)
CHUNK, PIECE = 64 << 20, 1 << 20  # bytes
FRAME = 128 << 20  # bytes of a partition of a dask dataframe
MOST_LEVELS = 4
HEALTHY = Faults()
# For runs on this machine.
WORKERS = 2
TINY = 1 << 8, 1 << 12  # lines of data, tuples
SIZES = (1 << 14, 1 << 20), (1 << 16, 1 << 22), (1 << 17, 1 << 23)
SLOW = Machine(0.04, 1, 50e6)  # a store whose latency is slept


class Case(NamedTuple):
    """A gather of `tuples` rows of `width` bytes.

    workers: their number. part: bytes of a partition. block: tuples of a block.
    is_machine: whether a worker is a complete machine.
    """

    nbytes: float
    tuples: float
    width: int
    workers: int
    part: int = 1 << 30
    block: int = 1 << 25
    is_machine: bool = False

    @property
    def machine(self) -> Machine:
        """The worker."""
        return MACHINE if self.is_machine else THREAD

    @property
    def prices(self) -> Prices:
        """The prices of requests and of a worker."""
        return WHOLE if self.is_machine else PRICES


CASES = (
    Case(1e12, 1e9, 4, 64), Case(1e12, 1e10, 4, 64), Case(1e13, 1e10, 4, 160),
    Case(1e13, 1e11, 4, 160), Case(1e14, 1e10, 4, 640), Case(1e14, 1e11, 4, 640),
    Case(1e14, 1e12, 4, 640), Case(1e14, 1e12, 100, 640, block=1 << 23),
    Case(1e16, 1e12, 4, 1000, 1 << 34, 1 << 29, True),
    Case(1e16, 1e13, 4, 1000, 1 << 34, 1 << 29, True),
)  # fmt: skip


def planned(case: Case, levels: int) -> Run:
    """Return what the costs of a case follow from, with a number of levels."""
    height, tuples = int(case.nbytes) // case.width, int(case.tuples)
    part = case.part // case.width
    parts = -(-height // part)
    fan = 1
    while fan**levels < parts:
        fan *= 2
    steps = tuple((min(height, part * fan ** (levels - 1 - depth)),) for depth in range(levels))
    rows = Rows(tuples, 8, (height,), case.width)
    cut = Partitioning(rows, True, case.block, steps, 0, 2 * CHUNK, case.workers)
    given = {"data": _array(height, case.width), "indices": _array(tuples, 8, (tuples,))}
    return Run(cut, "objects", given, 0, _array(tuples, case.width, (tuples,)))


def _array(count: int, width: int, positions: tuple[int, ...] = ()) -> Stored:
    """Return an array of `count` elements at a URL, in plain chunks."""
    step = CHUNK // width
    dtype = dtypes.from_descr(f"|V{width}")
    layout = ChunkLayout((step,), None, ("bytes",), 3)
    return Stored(ArrayMetadata(dtype, (count,), "C", (step,), {}, layout), True, positions)


class Simulated(NamedTuple):
    """A simulated run."""

    seconds: float
    dollars: float
    spent: dict[str, float]


def simulated(
    phases: list[Costs], machine: Machine, workers: int, prices: Prices, faults: Faults = HEALTHY
) -> Simulated:
    """Run the tasks of all phases on a simulated cluster; each does the mean of its phase."""
    meter, by_name = Meter(), {one.phase: one for one in phases}
    simulator = Simulator(workers, machine, meter, faults)

    def do(phase: str, number: int) -> None:
        for step in steps_of(by_name[phase], number, machine):
            meter.add(step)

    for one in phases:
        tasks = (Task(do, one.phase, number) for number in range(one.tasks))
        policy.complete(simulator, tasks, lambda *_: None)
    seconds = simulator.now()
    money = estimates.dollars(phases, prices) + workers * seconds / 3600 * prices.machine_hour
    return Simulated(seconds, money, dict(simulator.spent))


def steps_of(phase: Costs, number: int, machine: Machine) -> list[Step]:
    """Return the steps of a task: reads, computing, writes, each its share of the phase's."""

    def share(total: int) -> int:
        return total * (number + 1) // phase.tasks - total * number // phase.tasks

    gets, puts = estimates.paid(phase.requests)
    nbytes, tuples = share(phase.read + phase.written), share(phase.tuples)
    seconds = nbytes / machine.moved + tuples / machine.sorted
    return [
        Step("tables", gets=phase.steps - 2),
        Step("get", gets=share(gets), nbytes=share(phase.read)),
        Step("computing", seconds=seconds),
        Step("put", puts=share(puts), nbytes=share(phase.written)),
    ]


def chosen(case: Case) -> tuple[Run, Simulated]:
    """Return the plan of a case with the levels that cost least, and its simulation."""
    prices = case.prices

    def price(levels: int) -> float:
        phases = planned(case, levels).phases()
        took = sum(estimates.seconds(one, case.machine, case.workers) for one in phases)
        return estimates.dollars(phases, prices) + case.workers * took / 3600 * prices.machine_hour

    run = planned(case, min(range(1, MOST_LEVELS + 1), key=price))
    return run, simulated(run.phases(), case.machine, case.workers, prices)


def lower_bound(case: Case) -> float:
    """Return the seconds to read inputs and write the output once, at the line rate."""
    nbytes = case.nbytes + case.tuples * (8 + case.width)
    return nbytes / (case.workers * case.machine.bandwidth)


def dask_shuffle(case: Case) -> tuple[float, float]:
    """Estimate the seconds and dollars of two shuffles by dask's P2P algorithm.

    The tuples, with their positions, go to the partitions of data, and the rows back. A partition
    is a task on both sides of a shuffle; each byte crosses the network once, and is written to and
    read from a local disk.
    """
    there, back = 16 * case.tuples, (8 + case.width) * case.tuples
    tasks = 2 * (there + back) / FRAME + case.nbytes / FRAME
    moved = case.nbytes + case.tuples * (8 + case.width) + 3 * (there + back)
    took = max(tasks * case.machine.scheduled, moved / case.workers / case.machine.bandwidth)
    gets, puts = (case.nbytes + 8 * case.tuples) / CHUNK, case.width * case.tuples / CHUNK
    requests = gets / 1000 * case.prices.get + puts / 1000 * case.prices.put
    return took, requests + case.workers * took / 3600 * case.prices.machine_hour


def tables() -> None:
    """Print the table of docs/scale.md."""
    print(
        "| data | tuples of | workers | levels | tasks | requests | spilled | piece | hours | $ |"
        " bottleneck | lower bound, hours | dask's shuffle, estimate |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        run, found = chosen(case)
        phases = run.phases()
        cut = run.partitioning
        requests = sum(sum(estimates.paid(one.requests)) for one in phases)
        piece = case.block * cut.spilled_per_tuple(0) / max(map(cut.fan_out, range(cut.levels)))
        took, money = dask_shuffle(case)
        print(
            f"| {sized(case.nbytes)} | {case.tuples:.0e} of {case.width} B | {case.workers}"
            f"{' machines' if case.is_machine else ''} | {cut.levels} |"
            f" {sum(one.tasks for one in phases):.1e} | {requests:.1e} |"
            f" {sized(cut.spilled_total)} | {sized(piece)} | {found.seconds / 3600:.2g} |"
            f" {found.dollars:.0f} | {bottleneck(found)} | {lower_bound(case) / 3600:.2g} |"
            f" {took / 3600:.2g} h, ${money:.0f} |",
            flush=True,
        )


def bottleneck(found: Simulated) -> str:
    """Return what most of the time is spent on."""
    return max(found.spent, key=lambda name: found.spent[name])


def sized(nbytes: float) -> str:
    """Return a number of bytes as text with a unit."""
    for power, unit in ((15, "PB"), (12, "TB"), (9, "GB"), (6, "MB")):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:.3g} {unit}"
    return f"{nbytes / 1e3:.3g} kB"


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


def ran(client: object) -> tuple[float, dict[str, int], dict[str, float]]:
    """Gather on a cluster; return the seconds, the tasks, and the seconds of one of each phase."""
    import distributed

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
    return seconds, tasks, {phase: float(np.mean(each)) for phase, each in spent.items()}


def scheduled(tasks: dict[str, int], costs: dict[str, float], each: float) -> float:
    """Return the simulated seconds of tasks whose durations are known."""
    meter = Meter()
    simulator = Simulator(WORKERS, Machine(0.0, 1, 1e18, scheduled=each), meter)

    def do(phase: str, number: int) -> None:
        meter.add(Step("computing", seconds=costs[phase]))

    for phase, count in tasks.items():
        numbers = (Task(do, phase, number) for number in range(count))
        policy.complete(simulator, numbers, lambda *_: None)
    return simulator.now()


def on_dask() -> None:
    """Compare gathers on two workers with the schedule of the measured tasks."""
    import dask
    import distributed

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
            guess = fixed + scheduled(tasks, costs, each)
            if (rows, tuples) == TINY:
                fixed = seconds - guess
                continue
            spent = ", ".join(f"{1000 * cost:.0f}" for cost in costs.values())
            print(
                f"| {rows >> 8} MiB | {tuples} | {sum(tasks.values())} | {spent} ms"
                f" | {seconds:.2f} s | {guess:.2f} s | {100 * (guess / seconds - 1):+.0f} % |"
            )


class Sleeping(Meter):
    """Sleeps as long as a store takes for each request, which the simulator adds to its clock."""

    def add(self, step: Step) -> None:
        """Wait for the requests of a step."""
        if step.kind != "computing":
            time.sleep(SLOW.latency * (step.gets + step.puts) + step.nbytes / SLOW.bandwidth)


def on_a_slow_store() -> None:
    """Compare runs on threads, at a store that sleeps, with the same runs simulated."""
    from ndtool.arrays import memory
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.executors.threads import Threads
    from ndtool.runs.external import simulation
    from ndtool.runs.external.partitioning import partitioning_for
    from ndtool.runs.external.rows import rows_of
    from ndtool.runs.request import Request

    print("| tuples | levels | workers | tasks | requests | run | simulated | |")
    print("|---|---|---|---|---|---|---|---|")
    rng = np.random.default_rng(0)
    np.save("data.npy", rng.random((1024, 1024), np.float32))
    for tuples, levels, workers in (
        (20_000, 1, 4),
        (100_000, 1, 8),
        (100_000, 2, 8),
        (200_000, 2, 16),
    ):
        np.save("idx.npy", rng.integers(0, 1024, (tuples, 2)))
        with OpenCall(Request("gather_nd", "data.npy", "idx.npy")) as call:
            cut = partitioning_for(rows_of(call.inference), True, 1 << 20, 2, levels=levels)

            def run(executor: Any, meter: Meter, call: Any = call, cut: Any = cut) -> None:
                out = np.zeros(call.inference.nbytes, np.uint8)
                sink = memory.BufferSink(out.data, call.metadata)
                simulation.run(call, cut, sink, executor, meter, SLOW, lambda _: None)

            meter = Meter()
            simulator = Simulator(workers, SLOW, meter)
            run(simulator, meter)
            started = time.perf_counter()
            with Threads(workers) as threads:
                run(threads, Sleeping())
            took = time.perf_counter() - started
        requests, now = meter.totals["get"] + meter.totals["put"], simulator.now()
        print(
            f"| {tuples} | {levels} | {workers} | {sum(cut.tasks.values())} | {requests} |"
            f" {took:.2f} s | {now:.2f} s | {100 * (now / took - 1):+.0f} % |"
        )


def on_a_disk(gibibytes: int = 1) -> None:
    """Compare the estimate of sweeps with runs, as ratios to a sequential read of data."""
    from ndtool.runs import steps
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.request import Request

    rows = gibibytes << 18
    rng = np.random.default_rng(0)
    data = np.lib.format.open_memmap("data.npy", "w+", np.float32, (rows, 1024))
    for first in range(0, rows, 1 << 14):
        lines = data[first : first + (1 << 14)]
        lines[...] = rng.random(lines.shape, np.float32)
    data.flush()
    del data, lines
    np.save("idx.npy", rng.integers(0, (rows, 1024), (1 << 22, 2)))
    np.save("upd.npy", rng.random(1 << 22, np.float32))
    print("| run | memory | read, bytes a second | run | run / read | estimated / read | |")
    print("|---|---|---|---|---|---|---|")
    for operator, names in (("gather_nd", ["data", "idx"]), ("scatter_nd", ["data", "idx", "upd"])):
        for memory in (64 << 20, 256 << 20):
            times, read = [], []
            for _ in range(3):
                read.append(read_once("data.npy"))
                drop("data.npy", "idx.npy", "upd.npy")
                files = [f"{name}.npy" for name in names]
                request = Request(operator, *files, output="out.npy", memory=memory, spill=".")
                with OpenCall(request) as call, steps.prepared(call, steps.resolved(call)) as ready:
                    started = time.perf_counter()
                    steps.execute(ready)
                    times.append(time.perf_counter() - started)
            plan, nbytes = ready.plan, os.path.getsize("data.npy")
            if plan.partitioning is None:
                print(f"| {operator} | {memory >> 20} MiB | direct |")
                continue
            run = estimates.run_of(call, plan.partitioning, ready.output, None)
            disk = estimates.DISK._replace(bandwidth=nbytes / min(read))
            guess = estimates.run_seconds(run, run.phases(), disk, 1)
            took, guessed = min(times) / min(read), guess / min(read)
            print(
                f"| {operator} | {memory >> 20} MiB | {nbytes / min(read):.2g} |"
                f" {min(times):.1f} s | {took:.1f} | {guessed:.1f} | {guessed / took:.2f} |"
            )


def read_once(name: str) -> float:
    """Return the seconds of a sequential read of a file that is not cached."""
    drop(name)
    started, buffer = time.perf_counter(), bytearray(1 << 22)
    with open(name, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - started


def drop(*names: str) -> None:
    """Drop files from the page cache."""
    for name in names:
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--folder", help="where to write; default TMPDIR")
    given = parser.parse_args()
    if given.tables:
        tables()
    else:
        with tempfile.TemporaryDirectory(dir=given.folder) as work, contextlib.chdir(work):
            on_a_slow_store()
            on_a_disk()
            on_dask()
