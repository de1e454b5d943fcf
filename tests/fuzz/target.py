"""What must hold for any file whatever: it is read, or refused with an error of ours."""

import io
import os
from contextlib import suppress
from math import prod

from ndtool.analysis import values
from ndtool.arrays import names, npy
from ndtool.arrays.streams import Streams
from ndtool.errors import NdtoolError, Status

_ALLOWED = (Status.USAGE, Status.INPUT, Status.RESOURCE)


def check(content: bytes) -> None:
    """Open a file with this content in every way; any failure is a finding."""
    fd = os.memfd_create("fuzz")
    try:
        os.write(fd, content)
        path = f"/proc/self/fd/{fd}"
        members = [entry.member for entry in _described(path)]
        for member in [None, "a", *members[:4]]:
            _read(path if member is None else f"{path}:{member}")
        os.lseek(fd, 0, os.SEEK_SET)
        with suppress(NdtoolError), Streams(fd).read() as source:
            _hold(source)
    finally:
        os.close(fd)


def check_header(content: bytes) -> None:
    """Read only the header of a .npy file with this content: a hundred times as fast."""
    try:
        found = npy.read(io.BytesIO(content).read, len(content), "header")
        data = memoryview(content)[found.offset : found.offset + found.nbytes]
        assert len(data) == found.nbytes
        array = values.as_array(data, found.dtype, found.shape, found.fortran)
    except NdtoolError as error:
        _is_plain(error)
        return
    assert array.dtype.itemsize == found.dtype.itemsize


def _described(path: str) -> list[names.Entry]:
    try:
        return names.describe(path)
    except NdtoolError as error:
        _is_plain(error)
        return []


def _read(argument: str) -> None:
    try:
        with names.open_source(argument, Streams(-1)) as source:
            _hold(source)
            source.recheck()
    except NdtoolError as error:
        _is_plain(error)


def _hold(source: names.Source) -> None:
    """Check that an array is what it says, also to NumPy, and that its header can be written."""
    assert len(source.buffer) == source.nbytes == prod(source.shape) * source.dtype.itemsize
    assert source.dtype.itemsize > 0
    assert len(source.shape) <= npy.RANK
    bytes(source.buffer[:4096])
    array = values.as_array(source.buffer, source.dtype, source.shape, source.fortran)
    assert array.shape == source.shape
    assert array.dtype.itemsize == source.dtype.itemsize
    assert not array.dtype.hasobject
    raw = npy.encode(source.dtype, source.shape)
    again = npy.read(io.BytesIO(raw).read, None, "again")
    assert (again.dtype, again.shape) == (source.dtype, source.shape)


def _is_plain(error: NdtoolError) -> None:
    assert error.status in _ALLOWED, error
    assert "\n" not in error.message
    assert len(error.message) < 1000
    assert error.message.isprintable()
