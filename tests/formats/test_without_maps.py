"""File systems without shared maps, such as some FUSE and 9p mounts: runs give the same files."""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
from command import save
from inputs import open_input

from ndtool.arrays.source import ArrayMetadata
from ndtool.engine import gathers, scatters, tuning
from ndtool.errors import OutputError, ResourceError
from ndtool.formats import locators, outputs
from ndtool.formats.streams import Streams
from ndtool.machine import threads as teams
from ndtool.publish import sinks
from ndtool.rules import dtypes
from ndtool.rules.operators import Attributes
from ndtool.runs import direct, steps
from ndtool.runs.calls import OpenCall, Request
from ndtool.storage import tempfiles

REFUSALS = (errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP)


class Case(NamedTuple):
    """A run with one algorithm: shapes of data and indices, and the axis."""

    algorithm: str
    operator: str
    data: tuple[int, ...]
    indices: tuple[int, ...]
    axis: int = 0
    reduction: str = "none"


CASES = (
    Case("scatter_by_destination", "scatter_nd", (100_000,), (50_000, 1)),
    Case("scatter_by_destination", "scatter_nd", (100_000,), (50_000, 1), reduction="add"),
    Case("scatter_by_destination", "scatter_nd", (100_000,), (50_000, 1), reduction="mean"),
    Case("scatter_by_destination", "scatter_nd", (1 << 15, 12), (20_000, 1), reduction="max"),
    Case("scatter_by_destination", "scatter_elements", (300_000,), (60_000,), reduction="mul"),
    Case("_in_order", "scatter_nd", (1 << 15, 24), (20_000, 1), reduction="max"),
    Case("_by_batches", "scatter_elements", (300, 400), (300, 200), 1, "add"),
    Case("_by_batches", "scatter_elements", (300, 400), (300, 200), 1),
    Case("_in_order", "scatter_nd", (400, 300), (50, 1), reduction="min"),
    Case("_in_order", "scatter_nd", (400, 300), (50, 1)),
    Case("_by_units", "scatter_elements", (400, 300), (200, 300), reduction="add"),
    Case("_by_units", "scatter_elements", (400, 300), (200, 200)),
    Case("copy_data", "scatter_nd", (100_000,), (0, 1)),
    Case("gather_item", "gather_nd", (400, 300), (5000, 1)),
    Case("gather_tiles", "gather_elements", (400, 300), (200, 300)),
)
ALGORITHM_MODULES = {
    case.algorithm: gathers if case.algorithm.startswith("gather") else scatters for case in CASES
}


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield the current folder; temporary files are on another file system, which has maps."""
    for name in ("disk", "tmp"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.chdir(tmp_path / "disk")
    yield tmp_path / "disk"
    assert not list((tmp_path / "tmp").iterdir())


def refuse_maps(patch: pytest.MonkeyPatch, disk: Path, number: int, *, reading: bool) -> list[int]:
    """Make maps of files on the disk fail, optionally also read-only ones; return the failures."""
    original_function, refused_calls = mmap.mmap, []

    def instead(fd: int, length: int, **named: Any) -> mmap.mmap:
        on_disk = fd >= 0 and os.readlink(f"/proc/self/fd/{fd}").startswith(f"{disk}/")
        if on_disk and (reading or named.get("access") == mmap.ACCESS_WRITE):
            refused_calls.append(length)
            raise OSError(number, os.strerror(number))
        return original_function(fd, length, **named)

    patch.setattr(mmap, "mmap", instead)
    return refused_calls


def run(case: Case, output: str, threads: int) -> bytes:
    updates = None if case.operator.startswith("gather") else "upd.npy"
    request = Request(
        case.operator,
        "data.npy",
        "idx.npy",
        updates,
        output,
        Attributes(axis=case.axis, reduction=case.reduction),
        threads=threads,
    )
    with OpenCall(request) as call:
        steps.run(call)
    return Path(output).read_bytes()


def make_inputs(case: Case) -> None:
    rng = np.random.default_rng(0)
    nd = case.operator.endswith("nd")
    shape = case.indices[:-1] + case.data[1:] if nd else case.indices
    save(data=rng.random(case.data, "f4"), upd=rng.random(shape, "f4"))
    save(idx=rng.integers(-case.data[case.axis], case.data[case.axis], case.indices))


@pytest.mark.parametrize("reading", [False, True], ids=["writing", "reading too"])
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.algorithm} {case.reduction}")
def test_a_run_gives_the_same_file(
    case: Case, threads: int, reading: bool, disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_inputs(case)
    monkeypatch.setattr(tuning, "SORTED_OUTPUT", 0)
    monkeypatch.setattr(tuning, "LOCAL_FRACTION", 2)
    monkeypatch.setattr(teams, "MIN_WORK", 1)
    expected = case.algorithm
    if expected == "scatter_by_destination" and threads == 1 and case.reduction != "mean":
        expected = "_in_order"
    for name in ("out.npy", "out.npz"):
        expected_result = run(case, name, threads)
        for number, memory in zip(
            REFUSALS, (1 << 12, tempfiles.MAX_IN_MEMORY, 1 << 12), strict=True
        ):
            with monkeypatch.context() as patch:
                patch.setattr(tempfiles, "MAX_IN_MEMORY", memory)
                refused_calls = refuse_maps(patch, disk, number, reading=reading)
                algorithm = Mock(wraps=getattr(ALGORITHM_MODULES[expected], expected))
                patch.setattr(ALGORITHM_MODULES[expected], expected, algorithm)
                assert run(case, name, threads) == expected_result
                assert algorithm.called
                assert refused_calls or (case.algorithm == "gather_item" and not reading)


def test_a_large_input_is_read_within_the_memory_bound(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(data=np.arange(1 << 20))
    refuse_maps(monkeypatch, disk, errno.ENODEV, reading=True)
    with open_input("data.npy") as source:
        buffer = source.load()
        assert not source.is_mapped
        assert type(buffer.obj).__name__ == "mmap"  # of a temporary file: 8 MiB
        assert np.array_equal(np.frombuffer(buffer, "i8"), np.arange(1 << 20))
        source.advise("random")
        assert source.cached_fraction() == 1.0


def test_an_input_that_becomes_shorter_while_it_is_read(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(data=np.arange(1 << 20))
    refuse_maps(monkeypatch, disk, errno.ENODEV, reading=True)
    original_function = tempfiles.Spool.write

    def write(spool: tempfiles.Spool, written: bytes) -> None:
        original_function(spool, written)
        os.truncate("data.npy", 3 << 20)

    monkeypatch.setattr(tempfiles.Spool, "write", write)
    with pytest.raises(OutputError, match=r"^data.npy changed during the run: it is shorter now$"):
        locators.open_source("data.npy", Streams())


def test_temporary_files_that_cannot_be_mapped_either(
    disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(data=np.arange(1 << 20))
    monkeypatch.setenv("TMPDIR", str(disk))
    refuse_maps(monkeypatch, disk, errno.ENODEV, reading=True)
    with pytest.raises(ResourceError, match=r"temporary copy.*No such device") as excinfo:
        locators.open_source("data.npy", Streams())
    assert "TMPDIR" in excinfo.value.hint


def test_outputs_without_maps_are_written(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_maps(monkeypatch, disk, errno.ENODEV, reading=False)
    metadata = ArrayMetadata(dtypes.from_code("|u1"), (6,), "C", (6,), {})
    for target in ("out.npy", "out.npz", "/dev/null"):
        out = outputs.create(outputs.resolve(target, metadata))
        assert out.map() is None
        with direct.output_buffer(out) as (view, write):
            assert write is None
            assert bytes(view) == bytes(6)
            view[:] = b"abcdef"
        sinks.commit(out)
        out.abort()
    assert Path("out.npy").read_bytes()[-6:] == b"abcdef"
    assert np.load("out.npz")["output"].tobytes() == b"abcdef"
