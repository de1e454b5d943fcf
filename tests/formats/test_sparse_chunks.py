"""Gathers that select few elements of many chunks: the chunks are not assembled."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import save
from webserver import serving

from ndtool.engine import tuning
from ndtool.rules.operators import Attributes
from ndtool.runs import steps
from ndtool.runs.calls import OpenCall, Request

TABLE = np.random.default_rng(2).integers(0, 256, (20_000, 64), "u1").view("<f4")


def write_table(path: str) -> str:
    """Write the table in chunks of 100 rows, uncompressed."""
    if path.endswith("h5"):
        h5py = pytest.importorskip("h5py", exc_type=ImportError)
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=TABLE, chunks=(100, 16))
    elif path.endswith("zarr"):
        zarr = pytest.importorskip("zarr", exc_type=ImportError)
        zarr.create_array(path, data=TABLE, chunks=(100, 16))
    else:
        arrow = pytest.importorskip("pyarrow", exc_type=ImportError)
        parquet = pytest.importorskip("pyarrow.parquet", exc_type=ImportError)
        column = arrow.FixedSizeListArray.from_arrays(TABLE.ravel(), 16)
        parquet.write_table(arrow.table({"x": column}), path, row_group_size=100)
    return path


def run_gather(data: str, indices: Any, **options: Any) -> tuple[str, Any]:
    """Return how a gather of rows was executed, and its output."""
    save(i=indices)
    with OpenCall(Request("gather", data, "i.npy", output="o.npy", **options)) as call:
        outcome = steps.run(call)
    return outcome.plan.way, np.load("o.npy")


@pytest.mark.parametrize("name", ["x.h5", "x.zarr", "x.parquet"])
@pytest.mark.parametrize("threads", [1, 2])
def test_few_rows_are_copied_from_their_chunks_more_swept_and_many_assembled(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, name: str, threads: int
) -> None:
    data, rng = write_table(name), np.random.default_rng(3)
    few, many = rng.integers(-20_000, 20_000, 300), rng.integers(-20_000, 20_000, 30_000)
    monkeypatch.setattr(tuning, "UNUSED_CHUNKS", TABLE.nbytes // 2)
    executed_way, output = run_gather(data, few, threads=threads)
    assert executed_way == "direct"
    assert output.tobytes() == TABLE[few].tobytes()
    monkeypatch.setattr(tuning, "MAX_BLOCK_TUPLES", 0)
    for rows, expected in ((few, "sweep"), (many, "direct"), (np.array([3, 7]), "direct")):
        executed_way, output = run_gather(data, rows, threads=threads)
        assert executed_way == expected
        assert output.tobytes() == TABLE[rows].tobytes()


@pytest.mark.parametrize("chunks", [255, 256, 257])
@pytest.mark.parametrize("pad", [None, -1])
def test_rows_of_as_many_chunks_as_numbers_of_one_byte(
    workdir: Path, chunks: int, pad: int | None
) -> None:
    h5py = pytest.importorskip("h5py", exc_type=ImportError)
    with h5py.File("x.h5", "w") as file:
        file.create_dataset("x", data=TABLE[: 10 * chunks], chunks=(10, 16))
    rows = np.random.default_rng(4).integers(-1, 10 * chunks, 300)
    attributes = Attributes(pad=pad)
    executed_way, output = run_gather("x.h5", rows, attributes=attributes)
    expected = TABLE[: 10 * chunks][rows]
    if pad is not None:
        expected = np.where((rows == pad)[:, None], np.float32(0), expected)
    assert executed_way == "direct"
    assert output.tobytes() == expected.tobytes()


def test_reads_of_h5py_never_wait_for_a_thread_that_collects_garbage(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp", reason="aiohttp is not installed")
    h5py = pytest.importorskip("h5py", exc_type=ImportError)
    path, rows = write_table("x.h5"), np.arange(0, 20_000, 150)
    monkeypatch.setattr("ndtool.storage.failures.TIMEOUT", 20)  # a wait is an error, not for ever
    monkeypatch.setattr("ndtool.storage.failures.MAX_ATTEMPTS", 1)
    datasets = [h5py.File(path)["x"] for _ in range(200)]

    def collect(number: int) -> None:
        """Leave an h5py object in a cycle, and allocate until automatic collections have run."""
        cycle: list[Any] = [datasets.pop()]
        cycle.append(cycle)
        del cycle
        assert [[] for _ in range(100_000)]

    with serving() as server:
        _, output = run_gather(server.add("/x.h5", Path(path), before=collect), rows)
    assert output.tobytes() == TABLE[rows].tobytes()
