"""The invariant for every file: it is read, or refused with an NdtoolError."""

import io
import json
import os
import tempfile
from contextlib import closing, suppress
from math import prod

from ndtool.analysis import values
from ndtool.arrays.source import MemberInfo, Source
from ndtool.errors import NdtoolError, Status
from ndtool.formats import locators, npy
from ndtool.formats.streams import Streams
from ndtool.rules import shapes
from ndtool.rules.grid import count_blocks

MAX_BYTES, MAX_CHUNKS = 1 << 20, 1000  # limits of bytes and chunks of an assembled array
_ALLOWED = (Status.USAGE, Status.INPUT, Status.RESOURCE)


def check(content: bytes, suffixes: tuple[str, ...] = ("",)) -> None:
    """Open a file with this content in all ways; fail if it is neither read nor refused.

    suffixes: those of the file names under which it is opened.
    """
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, content)
        with tempfile.TemporaryDirectory() as folder:
            for suffix in suffixes:
                path = f"{folder}/x{suffix}"
                os.symlink(f"/proc/self/fd/{fd}", path)
                _check_members(path)
        os.lseek(fd, 0, os.SEEK_SET)
        with suppress(NdtoolError), closing(Streams(fd).read()) as source:
            _check_array(source)
    finally:
        os.close(fd)


def check_store(files: dict[str, bytes]) -> None:
    """Open a Zarr store of these files in all ways."""
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = os.path.join(folder, "x.zarr", name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "wb") as file:
                file.write(content)
        _check_members(f"{folder}/x.zarr")


def pack_store(files: dict[str, bytes]) -> bytes:
    """Return the files of a store as JSON, as regressions are saved."""
    return json.dumps({name: content.decode("latin-1") for name, content in files.items()}).encode()


def unpack_store(raw: bytes) -> dict[str, bytes]:
    return {name: text.encode("latin-1") for name, text in json.loads(raw).items()}


def _check_members(path: str) -> None:
    members = [entry.member for entry in _describe(path)]
    for member in [None, "a", *members[:4]]:
        _read(path if member is None else f"{path}:{member}")


def check_header(content: bytes) -> None:
    """Read only the header of a .npy file with this content: a hundred times as fast."""
    try:
        header = npy.read_header(io.BytesIO(content).read, len(content), "header")
        data = memoryview(content)[header.offset : header.offset + header.nbytes]
        assert len(data) == header.nbytes
        strides = npy.metadata_of(header).strides
        array = values.as_array(data, header.dtype, header.shape, strides)
    except NdtoolError as error:
        _check_error(error)
        return
    assert array.dtype.itemsize == header.dtype.itemsize


def _describe(path: str) -> list[MemberInfo]:
    try:
        return locators.describe(path)
    except NdtoolError as error:
        _check_error(error)
        return []


def _read(argument: str) -> None:
    try:
        with closing(locators.open_source(argument, Streams(-1))) as source:
            _check_array(source)
            source.require_unchanged()
    except NdtoolError as error:
        _check_error(error)


def _check_array(source: Source) -> None:
    """Check that NumPy reads the same array, and that its header can be written."""
    dtype, shape, _, grid, _, _ = metadata = source.metadata
    if grid != shape and (metadata.nbytes > MAX_BYTES or count_blocks(shape, grid) > MAX_CHUNKS):
        return  # metadata of a few bytes may declare any number of chunks
    buffer = source.load()
    assert len(buffer) == metadata.nbytes == prod(shape) * dtype.itemsize
    assert len(grid) == len(shape)
    assert dtype.itemsize > 0
    assert len(shape) <= shapes.MAX_RANK
    bytes(buffer[:4096])
    array = values.as_array(buffer, dtype, shape, metadata.strides)
    assert array.shape == shape
    assert array.dtype.itemsize == dtype.itemsize
    assert not array.dtype.hasobject
    raw = npy.encode(dtype, shape)
    reread = npy.read_header(io.BytesIO(raw).read, None, "again")
    assert (reread.dtype, reread.shape) == (npy.stored_dtype(dtype), shape)


def _check_error(error: NdtoolError) -> None:
    assert error.status in _ALLOWED, error
    assert "\n" not in error.message
    assert len(error.message) < 1000
    assert error.message.isprintable()
