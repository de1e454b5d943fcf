"""The requests of a plan, compared with those that a store counts."""

import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import bucket
import numpy as np
import pytest
from bucket import Bucket
from command import save
from toy_executor import Toy

from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.external import estimates, spillfiles, spillstore
from ndtool.runs.request import Request
from ndtool.storage import descriptors

ROOT = f"s3://{bucket.NAME}"
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


class Once(Toy):
    """Runs each task once."""

    def _attempts(self, task: Any) -> list[Any]:
        return [task.outcome()]


@pytest.fixture
def stores(s3: Bucket, workdir: Path) -> None:
    """Put arrays in chunks into the bucket, of which blocks of tuples divide some."""
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


def of_tasks(found: Counter[tuple[str, str]]) -> dict[str, int]:
    """Return the requests of tasks, without those that open and close a run."""
    names = r"(.*/c(/[0-9]+)+|.*spill-\w+/(split|sweep|replay|starts|places|offsets|attempts).*)"
    kinds: Counter[str] = Counter()
    for (kind, key), count in found.items():
        kinds[kind] += count * bool(re.fullmatch(names, key))
    return {kind: count for kind, count in kinds.items() if count}


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize("object_bytes", [8 << 20, 100_000])
@pytest.mark.parametrize(
    ("operator", "inputs", "how"),
    [
        ("gather_nd", ("data", "idx"), {"chunks": (12_500,)}),
        ("scatter_nd", ("data", "idx", "upd"), {"attributes": Attributes(reduction="add")}),
    ],
)
def test_the_store_counts_the_planned_requests(
    operator: str,
    inputs: tuple[str, ...],
    how: dict[str, Any],
    object_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(spillfiles, "OBJECT_BYTES", object_bytes)
    requested = Request(
        operator, *(f"{ROOT}/{name}.zarr" for name in inputs), output=f"{ROOT}/out.zarr",
        spill=f"{ROOT}/tmp", scheduler=Once(1, 1 << 23), **how,
    )  # fmt: skip
    with bucket.counted() as found, OpenCall(requested) as call:
        output = steps.resolved(call)
        with steps.prepared(call, output) as ready:
            plan = ready.plan
            run = estimates.run_of(call, plan, output, f"{ROOT}/tmp")
            assert run is not None
            phases = run.phases()
            steps.execute(ready)
    assert sum(plan.tasks.values()) > 12
    wanted, got = sum((one.requests for one in phases), Counter[str]()), of_tasks(found)
    heads = wanted.pop("head"), got.pop("head")
    assert heads[1] <= heads[0] < 2 * heads[1]  # workers that read parts of a chunk look twice
    if object_bytes > 1 << 20:
        assert got == dict(wanted)
    assert all(got[kind] <= wanted[kind] < 1.2 * got[kind] for kind in wanted)
    total: Counter[str] = Counter()
    for (kind, _), count in found.items():
        total[kind] += count
    assert all(count <= plan.requests[kind] for kind, count in total.items())
    assert plan.requests["get"] < 1.3 * total["get"]


class Counting:
    """Counts the calls of a module's functions."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any, **names: str) -> None:
        self.found: Counter[str] = Counter()
        for name, kind in names.items():
            monkeypatch.setattr(module, name, self._counted(getattr(module, name), kind))

    def _counted(self, function: Any, kind: str) -> Any:
        def call(*arguments: Any) -> Any:
            self.found[kind] += len(arguments[-1]) > 0
            return function(*arguments)

        return call


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
    requested = Request(
        operator, *(f"{name}.npy" for name in inputs), output="out.npy", memory=memory, threads=2
    )
    with OpenCall(requested) as call, steps.prepared(call, steps.resolved(call)) as ready:
        plan = ready.plan
        calls = SimpleNamespace(**vars(descriptors))
        counting = Counting(monkeypatch, calls, read_into="read", write_at="write")
        monkeypatch.setattr(spillstore, "descriptors", calls)
        steps.execute(ready)
    assert plan.way == "sweep"
    assert plan.requests["write"] == counting.found["write"]
    # Some rows of one partition are in memory.
    assert 0 <= plan.requests["read"] - counting.found["read"] <= plan.tasks["split"]
