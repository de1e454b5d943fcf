"""Runs on a cluster at scale: simulations from plans, and simulations compared with real runs.

    python benchmarks/scale.py --tables   the tables of docs/scale.md, by the simulator alone
    python benchmarks/scale.py            runs on this machine, compared with simulations of them

The tables follow from the plans' counts, the machines below and prices; none of these runs was
executed. The policy that submits tasks is that of real runs.
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
from ndtool.runs.external.costs import CostModel, Costs, StoredArray
from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.rows import Rows
from ndtool.runs.machines import Machine
from ndtool.runs.prices import Prices

# A sixteenth of an i4i.4xlarge, the machine of the CloudSort record: 25 Gbit/s, 128 GiB, $1.373 an
# hour. S3: requests of 30 ms, 5,500 reads and 3,500 writes per second on the prefix of a run.
THREAD = Machine(0.03, 16, 195e6, 5500.0, 3500.0, scheduler_seconds=0.002)
MACHINE = THREAD._replace(bandwidth=16 * 195e6, concurrency=256)  # all threads as one worker
THREAD_PRICES = Prices(machine_hour=1.373 / 16)
MACHINE_PRICES = THREAD_PRICES._replace(machine_hour=1.373)
CHUNK = 64 << 20  # bytes
DASK_PARTITION = 128 << 20  # bytes of a partition of a dask dataframe
MAX_LEVELS = 4
NO_FAULTS = Faults()
# For runs on this machine.
WORKERS = 2
STARTUP_SIZE = 1 << 8, 1 << 12  # rows of data, tuples; to measure the time to start
SIZES = (1 << 14, 1 << 20), (1 << 16, 1 << 22), (1 << 17, 1 << 23)
SLOW_STORE = Machine(0.04, 1, 50e6)  # a store whose requests are simulated by sleeping


class Case(NamedTuple):
    """A gather of `tuples` rows of `width` bytes.

    nbytes: of data. workers: the number of workers. partition_bytes: bytes of a partition. block:
    tuples of a block. whole_machines: whether a worker is a complete machine.
    """

    nbytes: float
    tuples: float
    width: int
    workers: int
    partition_bytes: int = 1 << 30
    block: int = 1 << 25
    whole_machines: bool = False

    @property
    def machine(self) -> Machine:
        """The performance of a worker."""
        return MACHINE if self.whole_machines else THREAD

    @property
    def prices(self) -> Prices:
        """The prices of requests and of a worker."""
        return MACHINE_PRICES if self.whole_machines else THREAD_PRICES


CASES = (
    Case(1e12, 1e9, 4, 64), Case(1e12, 1e10, 4, 64), Case(1e13, 1e10, 4, 160),
    Case(1e13, 1e11, 4, 160), Case(1e14, 1e10, 4, 640), Case(1e14, 1e11, 4, 640),
    Case(1e14, 1e12, 4, 640), Case(1e14, 1e12, 100, 640, block=1 << 23),
    Case(1e16, 1e12, 4, 1000, 1 << 34, 1 << 29, True),
    Case(1e16, 1e13, 4, 1000, 1 << 34, 1 << 29, True),
)  # fmt: skip


def cost_model(case: Case, levels: int) -> CostModel:
    """Return the cost model of a case with a number of levels."""
    row_count, tuples = int(case.nbytes) // case.width, int(case.tuples)
    partition_rows = case.partition_bytes // case.width
    partition_count = -(-row_count // partition_rows)
    fan_out = 1
    while fan_out**levels < partition_count:
        fan_out *= 2
    group_shapes = tuple(
        (min(row_count, partition_rows * fan_out ** (levels - 1 - depth)),)
        for depth in range(levels)
    )
    rows = Rows(tuples, 8, (row_count,), case.width)
    partitioning = Partitioning(rows, True, case.block, group_shapes, 0, 2 * CHUNK, case.workers)
    inputs = {"data": _array(row_count, case.width), "indices": _array(tuples, 8, (tuples,))}
    return CostModel(partitioning, "objects", inputs, 0, _array(tuples, case.width, (tuples,)))


def _array(count: int, width: int, positions: tuple[int, ...] = ()) -> StoredArray:
    """Return an array of `count` elements at a URL, in uncompressed chunks."""
    step = CHUNK // width
    dtype = dtypes.from_descr(f"|V{width}")
    layout = ChunkLayout((step,), None, ("bytes",), 3)
    return StoredArray(ArrayMetadata(dtype, (count,), "C", (step,), {}, layout), True, positions)


class Simulated(NamedTuple):
    """A simulated run."""

    seconds: float
    dollars: float
    spent: dict[str, float]


def simulate(
    phases: list[Costs], machine: Machine, workers: int, prices: Prices, faults: Faults = NO_FAULTS
) -> Simulated:
    """Run the tasks of all phases on a simulated cluster; each has the mean costs of its phase."""
    meter, by_name = Meter(), {phase_costs.phase: phase_costs for phase_costs in phases}
    simulator = Simulator(workers, machine, meter, faults)

    def run_task(phase: str, number: int) -> None:
        for step in steps_of(by_name[phase], number, machine):
            meter.add(step)

    for phase_costs in phases:
        tasks = (Task(run_task, phase_costs.phase, number) for number in range(phase_costs.tasks))
        policy.complete(simulator, tasks, lambda *_: None)
    seconds = simulator.now()
    dollars = estimates.dollars(phases, prices) + workers * seconds / 3600 * prices.machine_hour
    return Simulated(seconds, dollars, dict(simulator.spent))


def steps_of(phase: Costs, number: int, machine: Machine) -> list[Step]:
    """Return the steps of a task: an equal share of the phase's reads, computing and writes."""

    def share(total: int) -> int:
        return total * (number + 1) // phase.tasks - total * number // phase.tasks

    gets, puts = estimates.billed_requests(phase.requests)
    nbytes, tuples = share(phase.read + phase.written), share(phase.tuples)
    seconds = nbytes / machine.copy_rate + tuples / machine.sort_rate
    return [
        Step("tables", gets=phase.steps - 2),
        Step("get", gets=share(gets), nbytes=share(phase.read)),
        Step("computing", seconds=seconds),
        Step("put", puts=share(puts), nbytes=share(phase.written)),
    ]


def choose_levels(case: Case) -> tuple[CostModel, Simulated]:
    """Return the cost model of a case with the cheapest number of levels, and its simulation."""
    prices = case.prices

    def price(levels: int) -> float:
        phases = cost_model(case, levels).phases()
        seconds = sum(estimates.seconds(phase, case.machine, case.workers) for phase in phases)
        return (
            estimates.dollars(phases, prices) + case.workers * seconds / 3600 * prices.machine_hour
        )

    run = cost_model(case, min(range(1, MAX_LEVELS + 1), key=price))
    return run, simulate(run.phases(), case.machine, case.workers, prices)


def lower_bound(case: Case) -> float:
    """Return the seconds to read inputs and write the output once at the line rate."""
    nbytes = case.nbytes + case.tuples * (8 + case.width)
    return nbytes / (case.workers * case.machine.bandwidth)


def dask_shuffle(case: Case) -> tuple[float, float]:
    """Estimate the seconds and dollars of two shuffles by dask's P2P algorithm.

    The first shuffle sends tuples, with their positions, to the partitions of data; the second
    sends the rows back. A partition is a task on both sides of a shuffle; each byte crosses the
    network once, and is written to and read from a local disk.
    """
    tuple_bytes, row_bytes = 16 * case.tuples, (8 + case.width) * case.tuples
    tasks = 2 * (tuple_bytes + row_bytes) / DASK_PARTITION + case.nbytes / DASK_PARTITION
    moved_bytes = case.nbytes + case.tuples * (8 + case.width) + 3 * (tuple_bytes + row_bytes)
    seconds = max(
        tasks * case.machine.scheduler_seconds, moved_bytes / case.workers / case.machine.bandwidth
    )
    gets, puts = (case.nbytes + 8 * case.tuples) / CHUNK, case.width * case.tuples / CHUNK
    request_dollars = gets / 1000 * case.prices.get + puts / 1000 * case.prices.put
    return seconds, request_dollars + case.workers * seconds / 3600 * case.prices.machine_hour


def tables() -> None:
    """Print the table of docs/scale.md."""
    print(
        "| data | tuples of | workers | levels | tasks | requests | spilled | segment | hours | $ |"
        " bottleneck | lower bound, hours | dask's shuffle, estimate |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|---|---|---|")
    for case in CASES:
        run, simulation = choose_levels(case)
        phases = run.phases()
        partitioning = run.partitioning
        requests = sum(sum(estimates.billed_requests(phase.requests)) for phase in phases)
        fan_out = max(map(partitioning.fan_out, range(partitioning.levels)))
        segment_bytes = case.block * partitioning.spilled_per_tuple(0) / fan_out
        shuffle_seconds, shuffle_dollars = dask_shuffle(case)
        print(
            f"| {format_bytes(case.nbytes)} | {case.tuples:.0e} of {case.width} B | {case.workers}"
            f"{' machines' if case.whole_machines else ''} | {partitioning.levels} |"
            f" {sum(phase.tasks for phase in phases):.1e} | {requests:.1e} |"
            f" {format_bytes(partitioning.spilled_total)} | {format_bytes(segment_bytes)} |"
            f" {simulation.seconds / 3600:.2g} |"
            f" {simulation.dollars:.0f} | {bottleneck(simulation)} |"
            f" {lower_bound(case) / 3600:.2g} |"
            f" {shuffle_seconds / 3600:.2g} h, ${shuffle_dollars:.0f} |",
            flush=True,
        )


def bottleneck(simulation: Simulated) -> str:
    """Return the cause that takes most of the time."""
    return max(simulation.spent, key=lambda name: simulation.spent[name])


def format_bytes(nbytes: float) -> str:
    """Format a number of bytes with a unit."""
    for power, unit in ((15, "PB"), (12, "TB"), (9, "GB"), (6, "MB")):
        if nbytes >= 10**power:
            return f"{nbytes / 10**power:.3g} {unit}"
    return f"{nbytes / 1e3:.3g} kB"


def empty_task_seconds(client: object, count: int = 5000) -> float:
    """Return the seconds that the scheduler takes for an empty task."""
    started = time.perf_counter()
    client.gather(client.map(abs, range(count), pure=False))
    return (time.perf_counter() - started) / count


def prepare(rows: int, tuples: int) -> None:
    """Write data of `rows` rows of 4 KiB in chunks of 1 MiB, and indices of scalars."""
    import zarr

    rng = np.random.default_rng(rows)
    arrays = {"data": ((rows, 1024), (256, 1024), "f4"), "idx": ((tuples, 2), (1 << 16, 2), "i8")}
    for name, (shape, chunks, dtype) in arrays.items():
        array = zarr.create_array(
            f"{name}.zarr",
            shape=shape,
            chunks=chunks,
            dtype=dtype,
            overwrite=True,
            compressors=None,
        )
        for first in range(0, shape[0], 1 << 16):
            count = min(1 << 16, shape[0] - first)
            array[first : first + count] = (
                rng.random((count, shape[1]), np.float32)
                if name == "data"
                else rng.integers(0, (rows, 1024), (count, 2))
            )


def run_gather(client: object) -> tuple[float, dict[str, int], dict[str, float]]:
    """Gather on a cluster; return the seconds, the tasks by phase, and the mean seconds of each."""
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
        steps.prepare(call, steps.resolve_output(call)) as prepared,
    ):
        tasks = prepared.plan.tasks
        started = time.perf_counter()
        steps.execute(prepared)
        seconds = time.perf_counter() - started
    durations: dict[str, list[float]] = {phase: [] for phase in tasks}
    for task in stream.data:
        phase = task["key"].split("-")[1]
        if phase in durations:
            computing = [entry for entry in task["startstops"] if entry["action"] == "compute"]
            durations[phase].append(sum(entry["stop"] - entry["start"] for entry in computing))
    return seconds, tasks, {phase: float(np.mean(times)) for phase, times in durations.items()}


def schedule_seconds(
    tasks: dict[str, int], costs: dict[str, float], scheduler_seconds: float
) -> float:
    """Return the simulated seconds of tasks with the given durations by phase."""
    meter = Meter()
    simulator = Simulator(
        WORKERS, Machine(0.0, 1, 1e18, scheduler_seconds=scheduler_seconds), meter
    )

    def run_task(phase: str, number: int) -> None:
        meter.add(Step("computing", seconds=costs[phase]))

    for phase, count in tasks.items():
        numbers = (Task(run_task, phase, number) for number in range(count))
        policy.complete(simulator, numbers, lambda *_: None)
    return simulator.now()


def compare_on_dask() -> None:
    """Compare gathers on two workers with simulations of the measured tasks."""
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
        empty_task_seconds(client)  # the first tasks wait for imports
        scheduler_seconds = empty_task_seconds(client)
        print(f"empty tasks: {1 / scheduler_seconds:.0f} per second")
        print("| data | tuples | tasks | time of a split, sweep, replay | run | simulated | |")
        print("|---|---|---|---|---|---|---|")
        fixed = 0.0  # seconds to open and to publish, measured by the smallest run
        for rows, tuples in (STARTUP_SIZE, *SIZES):
            prepare(rows, tuples)
            run_gather(client)  # so that modules are imported and files are cached
            seconds, tasks, costs = run_gather(client)
            estimate = fixed + schedule_seconds(tasks, costs, scheduler_seconds)
            if (rows, tuples) == STARTUP_SIZE:
                fixed = seconds - estimate
                continue
            spent = ", ".join(f"{1000 * cost:.0f}" for cost in costs.values())
            print(
                f"| {rows >> 8} MiB | {tuples} | {sum(tasks.values())} | {spent} ms"
                f" | {seconds:.2f} s | {estimate:.2f} s | {100 * (estimate / seconds - 1):+.0f} % |"
            )


class SleepingMeter(Meter):
    """Sleeps as long as a store takes for each request, instead of advancing a clock."""

    def add(self, step: Step) -> None:
        """Sleep for the requests of a step."""
        if step.kind != "computing":
            time.sleep(
                SLOW_STORE.latency * (step.gets + step.puts) + step.nbytes / SLOW_STORE.bandwidth
            )


def compare_on_a_slow_store() -> None:
    """Compare runs on threads, with a store that sleeps, with simulations of the same runs."""
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
            partitioning = partitioning_for(
                rows_of(call.inference), True, 1 << 20, 2, levels=levels
            )

            def run(
                executor: Any, meter: Meter, call: Any = call, partitioning: Any = partitioning
            ) -> None:
                out = np.zeros(call.inference.nbytes, np.uint8)
                sink = memory.BufferSink(out.data, call.metadata)
                simulation.run(
                    call, partitioning, sink, executor, meter, SLOW_STORE, lambda _: None
                )

            meter = Meter()
            simulator = Simulator(workers, SLOW_STORE, meter)
            run(simulator, meter)
            started = time.perf_counter()
            with Threads(workers) as threads:
                run(threads, SleepingMeter())
            measured = time.perf_counter() - started
        requests, simulated = meter.totals["get"] + meter.totals["put"], simulator.now()
        print(
            f"| {tuples} | {levels} | {workers} | {sum(partitioning.tasks.values())} | {requests} |"
            f" {measured:.2f} s | {simulated:.2f} s | {100 * (simulated / measured - 1):+.0f} % |"
        )


def compare_on_a_disk(gibibytes: int = 1) -> None:
    """Compare estimates of sweeps with runs, as ratios to a sequential read of data."""
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
            times, read_times = [], []
            for _ in range(3):
                read_times.append(sequential_read_seconds("data.npy"))
                drop_from_page_cache("data.npy", "idx.npy", "upd.npy")
                files = [f"{name}.npy" for name in names]
                request = Request(operator, *files, output="out.npy", memory=memory, spill=".")
                with (
                    OpenCall(request) as call,
                    steps.prepare(call, steps.resolve_output(call)) as prepared,
                ):
                    started = time.perf_counter()
                    steps.execute(prepared)
                    times.append(time.perf_counter() - started)
            plan, nbytes = prepared.plan, os.path.getsize("data.npy")
            if plan.partitioning is None:
                print(f"| {operator} | {memory >> 20} MiB | direct |")
                continue
            run = estimates.cost_model_for(call, plan.partitioning, prepared.output, None)
            disk = estimates.DISK._replace(bandwidth=nbytes / min(read_times))
            estimate = estimates.run_seconds(run, run.phases(), disk, 1)
            measured_ratio, estimated_ratio = (
                min(times) / min(read_times),
                estimate / min(read_times),
            )
            print(
                f"| {operator} | {memory >> 20} MiB | {nbytes / min(read_times):.2g} |"
                f" {min(times):.1f} s | {measured_ratio:.1f} | {estimated_ratio:.1f} |"
                f" {estimated_ratio / measured_ratio:.2f} |"
            )


def sequential_read_seconds(name: str) -> float:
    """Return the seconds of a sequential read of an uncached file."""
    drop_from_page_cache(name)
    started, buffer = time.perf_counter(), bytearray(1 << 22)
    with open(name, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass
    return time.perf_counter() - started


def drop_from_page_cache(*names: str) -> None:
    """Drop files from the page cache."""
    for name in names:
        with open(name, "rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--folder", help="the folder for temporary files; default TMPDIR")
    options = parser.parse_args()
    if options.tables:
        tables()
    else:
        with tempfile.TemporaryDirectory(dir=options.folder) as work, contextlib.chdir(work):
            compare_on_a_slow_store()
            compare_on_a_disk()
            compare_on_dask()
