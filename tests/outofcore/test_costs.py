"""The requests of a plan, compared with the requests that a store counts."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bucket
import numpy as np
import pytest
from bucket import Bucket, RequestCounts
from command import ndtool, save
from toy_executor import Toy

from ndtool.formats import outputs
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.executors.simulator import Meter, Simulator
from ndtool.runs.external import costs, estimates, partitioning, simulation, spillfiles, spillstore
from ndtool.runs.machines import STORE, Machine
from ndtool.runs.prices import Prices
from ndtool.runs.request import Request
from ndtool.storage import descriptors

ROOT = f"s3://{bucket.NAME}"
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class RunOnce(Toy):
    """Runs each task once."""

    def _attempts(self, task: Any) -> list[Any]:
        return [task.execute()]


@pytest.fixture
def stores(s3: Bucket, workdir: Path) -> Iterator[RequestCounts]:
    """Write chunked arrays to the bucket; blocks of tuples do not align with all chunks."""
    with bucket.count_requests() as counts:
        write_stores(s3)
        counts.requests.clear()
        counts.nbytes.clear()
        yield counts


def write_stores(s3: Bucket) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    rng, tuples = np.random.default_rng(5), 100_000
    arrays: dict[str, tuple[Any, tuple[int, ...]]] = {
        "data": (rng.random((512, 512), np.float32), (128, 128)),
        "idx": (rng.integers(0, 512, (tuples, 2)), (12_500, 2)),
        "upd": (rng.random(tuples, np.float32), (25_000,)),
    }
    for name, (array, chunks) in arrays.items():
        zarr.create_array(
            f"{name}.zarr", shape=array.shape, chunks=chunks, dtype=array.dtype, compressors=None
        )[...] = array
        for path in Path(f"{name}.zarr").rglob("*"):
            if path.is_file():
                s3.put(str(path), path.read_bytes())


def task_requests(counts: Counter[tuple[str, str]]) -> dict[str, int]:
    """Return the requests or bytes of tasks, without the ones to open and close a run."""
    names = r"(.*/c(/[0-9]+)+|.*spill-\w+/(split|sweep|replay|starts|blocks|offsets|attempts).*)"
    kinds: Counter[str] = Counter()
    for (kind, key), count in counts.items():
        kinds[kind] += count * bool(re.fullmatch(names, key))
    return {kind: count for kind, count in kinds.items() if count}


def simulate_requests(
    operator: str, inputs: tuple[str, ...], options: Any, partitioning: Any
) -> dict[str, int]:
    """Return the requests of the same run on a simulated cluster with local copies."""
    paths, meter = [f"{name}.zarr" for name in inputs], Meter()
    with OpenCall(Request(operator, *paths, output="out.zarr", **options)) as call:
        output = steps.resolve_output(call)
        assert output is not None
        sink = outputs.create(output)
        try:
            simulator = Simulator(partitioning.workers, STORE, meter)
            simulation.run(call, partitioning, sink, simulator, meter, STORE, lambda _: None)
        finally:
            sink.abort()
    return dict(meter.totals)


@pytest.mark.parametrize(("levels", "object_bytes"), [(1, 8 << 20), (1, 100_000), (2, 8 << 20)])
@pytest.mark.parametrize(
    ("operator", "inputs", "options"),
    [
        ("gather_nd", ("data", "idx"), {"chunks": (12_500,)}),
        ("scatter_nd", ("data", "idx", "upd"), {"attributes": Attributes(reduction="add")}),
    ],
)
def test_the_store_counts_the_planned_requests(
    operator: str,
    inputs: tuple[str, ...],
    options: dict[str, Any],
    levels: int,
    object_bytes: int,
    stores: RequestCounts,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spillfiles, "OBJECT_BYTES", object_bytes)
    original = partitioning.partitioning_for

    def partition_in_levels(*arguments: Any) -> Any:
        return original(*arguments[:5], levels=levels)

    monkeypatch.setattr(partitioning, "partitioning_for", partition_in_levels)
    request = Request(
        operator, *(f"{ROOT}/{name}.zarr" for name in inputs), output=f"{ROOT}/out.zarr",
        spill=f"{ROOT}/tmp", scheduler=RunOnce(1, 1 << 23), **options,
    )  # fmt: skip
    with OpenCall(request) as call:
        output = steps.resolve_output(call)
        with steps.prepare(call, output) as prepared:
            plan = prepared.plan
            assert plan.partitioning is not None
            run = estimates.cost_model_for(call, plan.partitioning, output, f"{ROOT}/tmp")
            phases = run.phases()
            steps.execute(prepared)
    assert (sum(plan.tasks.values()) > 12, plan.levels) == (True, levels)
    planned_requests, counted = (
        sum((phase.requests for phase in phases), Counter[str]()),
        task_requests(stores.requests),
    )
    heads = planned_requests.pop("head"), counted.pop("head")
    assert heads[1] <= heads[0] < 2 * heads[1]  # workers that share a chunk request its size twice
    if levels == 1 and object_bytes > 1 << 20:
        assert counted == dict(planned_requests)
    assert all(
        counted[kind] <= planned_requests[kind] < 1.2 * counted[kind] for kind in planned_requests
    )
    partition_plan = plan.partitioning
    task_bytes = task_requests(stores.nbytes)
    simulated = simulate_requests(operator, inputs, options, partition_plan)
    assert simulated == {**counted, "bytes": task_bytes["get"] + task_bytes["put"]}
    planned = plan.read + plan.written
    assert simulated["bytes"] <= planned < (1.01 if levels > 1 else 1 + 1e-9) * simulated["bytes"]
    total: Counter[str] = Counter()
    for (kind, _), count in stores.requests.items():
        total[kind] += count
    assert all(count <= plan.requests[kind] for kind, count in total.items())
    assert plan.requests["get"] < 1.3 * total["get"]


class CallCounter:
    """Counts the calls of functions of a module."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, **names: str) -> None:
        self.counts: Counter[str] = Counter()
        for name, kind in names.items():
            monkeypatch.setattr(module, name, self._count_calls(getattr(module, name), kind))

    def _count_calls(self, function: Any, kind: str) -> Any:
        def wrapper(*arguments: Any) -> Any:
            self.counts[kind] += len(arguments[-1]) > 0
            return function(*arguments)

        return wrapper


@pytest.mark.parametrize(
    ("operator", "inputs"), [("gather_nd", ("data", "idx")), ("scatter_nd", ("data", "idx", "upd"))]
)
@pytest.mark.parametrize("memory", [2 << 20, 3 << 20])
def test_files_of_spilled_data_have_the_planned_reads_and_writes(
    operator: str,
    inputs: tuple[str, ...],
    memory: int,
    workdir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, n = np.random.default_rng(5), 300_000
    save(data=rng.random((1024, 1024), np.float32), idx=rng.integers(0, 1024, (n, 2)))
    save(upd=rng.random(n, np.float32))
    request = Request(
        operator, *(f"{name}.npy" for name in inputs), output="out.npy", memory=memory, threads=2
    )
    with OpenCall(request) as call, steps.prepare(call, steps.resolve_output(call)) as prepared:
        plan = prepared.plan
        calls = SimpleNamespace(**vars(descriptors))
        counter = CallCounter(monkeypatch, calls, read_into="read", write_at="write")
        monkeypatch.setattr(spillstore, "descriptors", calls)
        steps.execute(prepared)
    assert plan.way == "sweep"
    # Not exact: segments are partly in memory, and batches end at block boundaries.
    for kind, count in counter.counts.items():
        assert abs(plan.requests[kind] - count) < 0.06 * count


RUN = ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy", "--memory", "2MiB", "--dry-run")


@pytest.fixture
def large_inputs(workdir: Path) -> Path:
    """Save inputs of a run that is external with 2 MiB of memory."""
    rng = np.random.default_rng(5)
    save(data=rng.random((1024, 1024), np.float32), idx=rng.integers(0, 1024, (300_000, 2)))
    return workdir


@pytest.mark.usefixtures("large_inputs")
def test_a_dry_run_prints_requests_time_and_cost() -> None:
    plan = ndtool(*RUN, "--json").json["plan"]
    assert (plan["way"], list(plan["requests"])) == ("sweep", ["read", "write"])
    assert [estimate["workers"] for estimate in plan["estimates"]] == [1, 10, 100, 1000]
    assert all(
        list(estimate) == ["workers", "seconds", "dollars"] for estimate in plan["estimates"]
    )
    seconds = [estimate["seconds"] for estimate in plan["estimates"]]
    assert seconds == sorted(seconds, reverse=True)
    text = ndtool(*RUN, "--no-trace").err
    counts = ", ".join(f"{count} {kind}" for kind, count in plan["requests"].items())
    assert f"\nrequests: {counts}\nestimates: 1 worker " in text
    line = text.partition("estimates: ")[2]
    assert (line.count("; 1"), line.count(", $")) == (3, 4)


@pytest.mark.usefixtures("large_inputs")
def test_prices_are_read_from_a_file() -> None:
    Path("prices.json").write_text('{"machine_hour": 3600}')
    plan = ndtool(*RUN, "--json", "--prices", "prices.json").json["plan"]
    for estimate in plan["estimates"]:
        assert estimate["dollars"] == pytest.approx(
            estimate["workers"] * estimate["seconds"], rel=1e-3
        )
    Path("free.json").write_text('{"machine_hour": 0, "get": 0, "put": 0.0, "gb": 1}')
    plan = ndtool(*RUN, "--json", env={"NDTOOL_PRICES": "free.json"}).json["plan"]
    assert {estimate["dollars"] for estimate in plan["estimates"]} == {0}  # no storage is remote


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"gett": 1}', "'gett' is not a price: expected get, put, gb or machine_hour"),
        ('{"get": "1"}', "get is '1': expected a number of dollars, at least 0"),
        ('{"put": -1}', "put is -1: expected a number of dollars, at least 0"),
        ('{"gb": true}', "gb is True: expected a number of dollars, at least 0"),
        ('{"gb": NaN}', "gb is nan: expected a number of dollars, at least 0"),
        ('{"machine_hour": 1e400}', "machine_hour is inf: expected a number of dollars"),
        ("[1]", "expected an object with get, put, gb or machine_hour"),
        ("{", "is not JSON: expected an object with get, put, gb or machine_hour"),
        ("[" * 100_000, "is not JSON"),
        (None, "No such file or directory: expected a file of prices"),
    ],
)
def test_malformed_prices_are_refused(text: str | None, message: str, workdir: Path) -> None:
    if text is not None:
        Path("prices.json").write_text(text)
    completed = ndtool(*RUN, "--prices", "prices.json")
    assert (completed.status, "prices.json" in completed.err, message in completed.err) == (
        2,
        True,
        True,
    ), completed.err


def test_a_store_charges_requests_and_bytes() -> None:
    requests = Counter(get=900, head=100, put=1900, list=100, delete=50, read=7)
    phases = [costs.Costs("split", 10, requests, 10**9, 10**9, 10**6, 2)]
    assert estimates.dollars(phases, Prices(0.5, 5.0, 0.1, 9.0)) == pytest.approx(10.7)
    assert Prices() == (0.0004, 0.005, 0.0, 0.192)


def test_time_is_limited_by_the_slowest_resource() -> None:
    phase = costs.Costs("sweep", 100, Counter(get=100_000), 10**11, 0, 0, 4)
    machine = Machine(0.01, 10, 1e9, copy_rate=float("inf"))
    assert estimates.seconds(phase, machine, 1) == pytest.approx(200)
    assert estimates.seconds(phase, machine, 100) == pytest.approx(2)
    assert estimates.seconds(phase, machine, 1000) == pytest.approx(2)  # there are 100 tasks
    assert estimates.seconds(phase, machine._replace(get_rate=1000.0), 100) == pytest.approx(100)
    assert estimates.seconds(phase, machine._replace(total_bandwidth=1e10), 100) == pytest.approx(
        10
    )
    assert estimates.seconds(phase, machine._replace(scheduler_seconds=1.0), 100) == pytest.approx(
        100
    )
