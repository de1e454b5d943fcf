"""A plan's bytes read, written and spilled, compared with the system's counts of the
processes."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import save

from ndtool.runs import steps
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the system counts no bytes"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
OVERHEAD = 64 << 10  # bytes of headers, metadata and modules that a process also reads or writes
CALLS = [("gather_nd", None), ("scatter_nd", "upd")]


def io_counts(pid: int | str = "self") -> dict[str, int]:
    """Return the bytes that a process has read and written, cached or not."""
    lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    return {key: int(value) for key, value in (line.split(": ") for line in lines)}


@pytest.fixture
def stores(workdir: Path) -> None:
    """Write every array as a file, and in chunks, of which blocks of tuples divide some."""
    rng, tuples = np.random.default_rng(5), 200_000
    arrays: dict[str, tuple[Any, tuple[int, ...]]] = {
        "data": (rng.random((1024, 1024), np.float32), (128, 256)),
        "idx": (rng.integers(0, 1024, (tuples, 2)), (25_000, 2)),
        "upd": (rng.random(tuples, np.float32), (50_000,)),
    }
    save(**{name: array for name, (array, _) in arrays.items()})
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    for name, (array, chunks) in arrays.items():
        zarr.create_array(
            f"{name}.zarr", shape=array.shape, chunks=chunks, dtype=array.dtype, compressors=None
        )[...] = array


def request(operator: str, suffix: str, updates: str | None, **options: Any) -> Request:
    inputs = [name + suffix for name in ("data", "idx", updates) if name is not None]
    return Request(operator, *inputs, output="out.npy", **options)


@pytest.mark.usefixtures("stores")
@pytest.mark.parametrize(("suffix", "memory", "depth"), [
    (".npy", 3 << 20, 1), (".npy", 1 << 20, 2), (".zarr", 3 << 20, 1),
])  # fmt: skip
@pytest.mark.parametrize(("operator", "updates"), CALLS)
def test_a_sweep_moves_the_planned_bytes(
    operator: str, updates: str | None, suffix: str, memory: int, depth: int
) -> None:
    for _ in range(2):  # modules are read the first time
        run_request = request(operator, suffix, updates, memory=memory, threads=2)
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


@pytest.mark.usefixtures("stores")
@pytest.mark.skipif(sys.platform != "linux", reason="processes are counted in /proc")
@pytest.mark.parametrize(
    "suffix",
    [pytest.param(".npy", marks=pytest.mark.slow("workers read no byte of files twice")), ".zarr"],
)
def test_workers_move_the_planned_bytes(suffix: str, tmp_path_factory: Any) -> None:
    distributed = pytest.importorskip("distributed", exc_type=ImportError)
    folder = str(tmp_path_factory.mktemp("workers"))
    quiet = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", scheduler_kwargs=quiet,
            local_directory=folder, memory_limit=0, silence_logs=100,
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):  # fmt: skip
        pids = client.run(os.getpid).values()

        def total(key: str) -> int:
            return sum(io_counts(pid)[key] for pid in pids)

        for operator, updates in CALLS:
            for _ in range(5):  # each worker reads modules the first time
                run_request = request(operator, suffix, updates, scheduler=client)
                with (
                    OpenCall(run_request) as call,
                    steps.prepare(call, steps.resolve_output(call)) as prepared_run,
                ):
                    plan, before = prepared_run.plan, (total("rchar"), total("wchar"))
                    steps.execute(prepared_run)
                    after = total("rchar"), total("wchar")
            assert 0 <= after[0] - before[0] - plan.read < 4 * OVERHEAD
            assert 0 <= after[1] - before[1] - plan.written < OVERHEAD
