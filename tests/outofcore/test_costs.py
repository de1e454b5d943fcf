"""The requests and bytes of a plan, compared with those that a store and the system count."""

import re
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bucket
import numpy as np
import pytest
from bucket import Bucket, RequestCounts
from command import save

from ndtool.outofcore import segments
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request

ROOT = f"s3://{bucket.NAME}"
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


OVERHEAD = 64 << 10  # bytes of headers, metadata and modules that a process also reads or writes
CALLS = [("gather_nd", ("data", "idx")), ("scatter_nd", ("data", "idx", "upd"))]
has_io_counts = pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="the system counts no bytes"
)


def write_arrays() -> None:
    """Write each array as a file, and in chunks, of which blocks of tuples divide some."""
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    rng, tuples = np.random.default_rng(5), 200_000
    arrays: dict[str, tuple[Any, tuple[int, ...]]] = {
        "data": (rng.random((1024, 1024), np.float32), (128, 256)),
        "idx": (rng.integers(0, 1024, (tuples, 2)), (25_000, 2)),
        "upd": (rng.random(tuples, np.float32), (50_000,)),
    }
    save(**{name: array for name, (array, _) in arrays.items()})
    for name, (array, chunks) in arrays.items():
        zarr.create_array(
            f"{name}.zarr", shape=array.shape, chunks=chunks, dtype=array.dtype, compressors=None
        )[...] = array


@pytest.fixture
def arrays(workdir: Path) -> None:
    write_arrays()


@pytest.fixture
def stores(s3: Bucket, workdir: Path) -> Iterator[RequestCounts]:
    """Write the chunked arrays to the bucket."""
    with bucket.count_requests() as counts:
        write_arrays()
        for path in Path().rglob("*.zarr/**/*"):
            if path.is_file():
                s3.put(str(path), path.read_bytes())
        counts.requests.clear()
        counts.nbytes.clear()
        yield counts


def task_requests(counts: Counter[tuple[str, str]]) -> dict[str, int]:
    """Return the requests or bytes of tasks, without those that open a run or remove its files."""
    names = r"(.*/c(/[0-9]+)+|.*spill-[^/]+/(split|sweep).*)"
    kinds: Counter[str] = Counter()
    for (kind, key), count in counts.items():
        kinds[kind] += count * bool(re.fullmatch(names, key))
    return {kind: count for kind, count in kinds.items() if count and kind != "delete"}


GATHER = "gather_nd", ("data", "idx"), {"chunks": (25_000,)}
SCATTER = "scatter_nd", ("data", "idx", "upd"), {"attributes": Attributes(reduction="add")}


@pytest.mark.slow("the plan counts the requests that a store answers")
@pytest.mark.parametrize(
    ("operator", "inputs", "options", "depth", "object_bytes"),
    [(*GATHER, 1, 8 << 20), (*SCATTER, 1, 8 << 20), (*GATHER, 1, 100_000), (*SCATTER, 2, 8 << 20)],
)
def test_the_store_counts_the_planned_requests(
    operator: str,
    inputs: tuple[str, ...],
    options: dict[str, Any],
    depth: int,
    object_bytes: int,
    stores: RequestCounts,
    force_depth: Callable[[int], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    distributed = pytest.importorskip("distributed", exc_type=ImportError)
    monkeypatch.setattr(segments, "FILE_BYTES", object_bytes)
    force_depth(depth)
    with distributed.Client(
        processes=False, n_workers=1, threads_per_worker=2, dashboard_address="127.0.0.1:0",
        set_as_default=False,
    ) as client:  # fmt: skip
        request = Request(
            operator, *(f"{ROOT}/{name}.zarr" for name in inputs), output=f"{ROOT}/out.zarr",
            spill=f"{ROOT}/tmp", scheduler=client, memory=2 << 23, **options,
        )  # fmt: skip
        with OpenCall(request) as call, steps.prepare(call, steps.resolve_output(call)) as run:
            plan = run.plan
            steps.execute(run)
    assert plan.partitioning is not None
    assert (plan.partitions > 4, plan.partitioning.depth) == (True, depth)
    planned_requests, counted = plan.requests, task_requests(stores.requests)
    if depth == 1 and object_bytes > 1 << 20:
        assert counted == planned_requests
    assert all(
        counted[kind] <= planned_requests[kind] < 1.2 * counted[kind] for kind in planned_requests
    )
    task_bytes = task_requests(stores.nbytes)
    moved, planned = task_bytes["get"] + task_bytes["put"], plan.read + plan.written
    assert moved <= planned < (1.01 if depth > 1 else 1 + 1e-9) * moved


def io_counts(pid: int | str = "self") -> dict[str, int]:
    """Return the bytes that a process has read and written, cached or not."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {key: int(value) for key, value in (line.split(": ") for line in lines)}


def request(operator: str, suffix: str, inputs: tuple[str, ...], **options: Any) -> Request:
    return Request(operator, *(name + suffix for name in inputs), output="out.npy", **options)


@has_io_counts
@pytest.mark.usefixtures("arrays")
@pytest.mark.parametrize(
    ("operator", "inputs", "suffix", "memory", "depth"),
    [
        (*CALLS[0], ".npy", 3 << 20, 1), (*CALLS[1], ".npy", 1 << 20, 2),
        (*CALLS[0], ".zarr", 3 << 20, 1), (*CALLS[1], ".zarr", 3 << 20, 1),
    ],
)  # fmt: skip
def test_a_sweep_moves_the_planned_bytes(
    operator: str, inputs: tuple[str, ...], suffix: str, memory: int, depth: int
) -> None:
    for _ in range(2):  # modules are read the first time
        run_request = request(operator, suffix, inputs, memory=memory, threads=2)
        with (
            OpenCall(run_request) as call,
            steps.prepare(call, steps.resolve_output(call)) as prepared_run,
        ):
            plan, before = prepared_run.plan, io_counts()
            steps.execute(prepared_run)
            after = io_counts()
    assert plan.partitioning is not None
    assert (plan.way, plan.partitioning.depth >= depth) == ("sweep", True)
    assert 0 <= after["rchar"] - before["rchar"] - plan.read < OVERHEAD
    assert 0 <= after["wchar"] - before["wchar"] - plan.written < OVERHEAD
