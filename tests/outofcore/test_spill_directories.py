"""Spilled data in several directories: the bits, the shares, full disks, and the variable."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save, snapshot
from limits import mount_small_disk

from ndtool import files
from ndtool.errors import UsageError
from ndtool.outofcore import segments
from ndtool.outofcore.segments import LocalStore, Segment
from ndtool.storage import tempfiles

RUN = ("gather-nd", "data.npy", "idx.npy", "-o", "out.npy", "--no-trace")


@pytest.fixture
def inputs(workdir: Path) -> Path:
    rng = np.random.default_rng(5)
    save(data=rng.random((1024, 1024), np.float32), idx=rng.integers(0, 1024, (300_000, 2)))
    for name in "abc":
        os.mkdir(name)
    return workdir


@pytest.fixture
def created_directories(monkeypatch: pytest.MonkeyPatch) -> list[str | None]:
    """Return the directories of temporary files, as they are created."""
    directories: list[str | None] = []
    unnamed = tempfiles.unnamed_file

    def note(directory: str | None = None) -> int:
        directories.append(directory)
        return unnamed(directory)

    monkeypatch.setattr(tempfiles, "unnamed_file", note)
    return directories


@pytest.mark.parametrize(("count", "held"), [(1, 5), (2, 0), (3, 64), (7, 5)])
def test_stripes_have_the_bytes_of_one_file(
    count: int, held: int, workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "STRIPE", 10)
    rng, content = np.random.default_rng(count), np.arange(997, dtype=np.uint8)
    regions = {("sweep", 0): (50, 20), ("split", 0): (len(content), held)}
    store = LocalStore(regions, ["."] * count)
    try:
        sizes = [os.fstat(fd).st_size for fd, _ in store._files]
        assert 0 <= sum(sizes) - (len(content) - held + 30) < 10
        assert max(sizes) - min(sizes) <= 10
        for start in range(0, len(content), 83):
            store.write(Segment("split", (), 0, start), [content[start : start + 83].data])
        for start, stop in np.sort(rng.integers(0, len(content) + 1, (200, 2))).tolist():
            buffer = bytearray(stop - start)
            store.read([(Segment("split", (), 0, 0), start, memoryview(buffer))])
            assert buffer == content[start:stop].tobytes()
        assert [os.fstat(fd).st_size for fd, _ in store._files] == sizes
    finally:
        store.close()


def test_a_run_with_several_directories(
    inputs: Path, created_directories: list[str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segments, "STRIPE", 100_000)
    expected = np.load("data.npy")[tuple(np.load("idx.npy").T)]
    spill: Any
    for spill in (["a", Path("b"), "c"], "a", ("a",)):
        created_directories.clear()
        files.gather_nd("data.npy", "idx.npy", out="out.npy", memory=2 << 20, spill=spill)
        assert created_directories[:3] == (["a", "b", "c"] if isinstance(spill, list) else ["a"])
        assert np.array_equal(np.load("out.npy"), expected)
        assert os.listdir("a") == os.listdir("b") == []


def test_the_option_and_its_variable(inputs: Path) -> None:
    def plan_run(*options: str, **env: str) -> Any:
        return ndtool(*RUN, "--memory", "2MiB", "--dry-run", *options, env=env)

    result = plan_run("--spill", "a", "--spill", "b", "-v")
    assert (result.status, "temporary files in a, b" in result.err) == (0, True), result.err
    result = plan_run("--spill", "a", "--spill", "missing")
    assert (result.status, "--spill missing does not exist: expected" in result.err) == (2, True)
    message = "error: --spill idx.npy is not a directory: expected an existing directory\n"
    for command in (plan_run("--spill", "idx.npy"), ndtool(*RUN, "--spill", "idx.npy")):
        assert (command.status, command.err) == (2, message)  # whether or not it would be used
    result = ndtool(*RUN, "--spill", "")
    assert (result.status, "--spill is empty: expected a directory" in result.err) == (2, True)
    assert plan_run(NDTOOL_SPILL="a:b:").status == 0
    result = plan_run(NDTOOL_SPILL="a:missing")
    assert (result.status, "--spill missing does not exist" in result.err) == (2, True)
    result = plan_run(NDTOOL_SPILL="s3://bucket/spill")  # not split at the colon
    assert (result.status, "only a cluster spills to a URL" in result.err) == (2, True)
    assert plan_run("--spill", "c", NDTOOL_SPILL="a:missing").status == 0


def test_a_cluster_spills_to_one_directory(inputs: Path) -> None:
    with pytest.raises(UsageError, match="spill has 2 directories: a cluster spills to one"):
        files.gather_nd("data.npy", "idx.npy", out="out.npy", workers=1, spill=["a", "b"])


def test_a_full_disk_is_named(inputs: Path) -> None:
    with mount_small_disk(inputs / "disk"):
        before = snapshot(inputs)
        for options in ((), ("--dry-run",)):
            result = ndtool(*RUN, "--memory", "2MiB", "--spill", "disk", "--spill", "a", *options)
            assert (result.status, "temporary file in disk: needs " in result.err) == (6, True)
        assert snapshot(inputs) == before
        for name in "defgh":
            os.mkdir(name)
        many = [word for name in (*"abcdefgh", "disk") for word in ("--spill", name)]
        assert (
            ndtool(*RUN, "--memory", "2MiB", *many).status == 0
        )  # of nine directories, each needs less space
