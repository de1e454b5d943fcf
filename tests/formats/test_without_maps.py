"""File systems without shared maps, such as some FUSE and 9p mounts: runs give the same files."""

import errno
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import save
from inputs import open_input

from ndtool.errors import OutputError, ResourceError
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.storage import tempfiles


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
