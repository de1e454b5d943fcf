"""HDF5 files, opened by the h5py package through ndtool's file objects."""

from __future__ import annotations

import gc
import os
from typing import Any

from ndtool.arrays.assembly import library_errors
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, printable, refuse
from ndtool.formats.decoding import InputFile
from ndtool.rules.mistakes import quote
from ndtool.storage.descriptors import failure, read_into, write_at
from ndtool.storage.local import File

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# The signature may be at offset 0, 512, 1024 and so on.
_SECOND_OFFSET = 512


def library() -> Any:
    """Import and return the h5py package; UsageError if it is missing."""
    try:
        import h5py
    except ModuleNotFoundError:  # other ImportErrors, of a broken package, are raised
        raise UsageError(
            "an HDF5 file needs the h5py package", hint="pip install 'ndtool[hdf5]'"
        ) from None
    return h5py


def signature_offset(storage: File) -> int | None:
    """Return the offset of the signature, the size of the user block; None if there is none."""
    offset = 0
    while offset + len(SIGNATURE) <= storage.size:
        if storage.peek(offset, len(SIGNATURE)) == SIGNATURE:
            return offset
        offset = 2 * offset or _SECOND_OFFSET
    return None


class _File(InputFile):
    """A file object from which h5py reads a storage.

    Reads beyond the end raise InputError: h5py would return uninitialized memory. h5py holds its
    lock during a read, and takes it to free an object. A thread that collected such objects would
    wait for the read, and the read perhaps for its request: collections are off meanwhile.
    """

    def readinto(self, buffer: Any) -> int:
        offset, nbytes = self.start + self.position, len(memoryview(buffer))
        if offset + nbytes > self.storage.size:
            raise InputError(
                f"{printable(self.label)} is truncated, or damaged: {nbytes} bytes at byte"
                f" {offset} are beyond its {self.storage.size} bytes"
            )
        collects = gc.isenabled()
        gc.disable()
        try:
            return super().readinto(buffer)
        finally:
            if collects:
                gc.enable()


class OutputFile:
    """A file object through which h5py writes a file; after an error or `drop`, writes are ignored.

    start: the offset of the signature. size: of the content from that offset on. h5py continues
    after an exception, so `raise_error` raises it when h5py has returned.
    """

    def __init__(self, fd: int, name: str, start: int, size: int) -> None:
        self._fd, self._name, self._start, self._size, self._offset = fd, name, start, size, 0
        self._error: NdtoolError | None = None
        self._is_dropped = False

    def drop(self) -> None:
        """Ignore all further writes."""
        self._is_dropped = True

    def raise_error(self) -> None:
        """Raise the first error of a write."""
        if self._error is not None:
            raise self._error from None

    def seek(self, offset: int, whence: int = 0) -> int:
        self._offset = offset + (self._size if whence == 2 else 0)
        return self._offset

    def tell(self) -> int:
        return self._offset

    def read(self, count: int = -1) -> bytes:
        """Raise an error: h5py calls `readinto`, but requires both methods."""
        raise NotImplementedError

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        count = 0 if self._is_dropped else read_into(self._fd, self._start + self._offset, view)
        view[count:] = bytes(len(view) - count)
        self._offset += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        try:
            if not self._is_dropped:
                write_at(self._fd, self._start + self._offset, memoryview(data))
        except OSError as exc:
            self._error = failure(exc, self._name, OutputError)
            self.drop()
        self._offset += len(data)
        self._size = max(self._size, self._offset)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        self._size = self._offset if size is None else size
        if not self._is_dropped:
            os.ftruncate(self._fd, self._start + self._size)
        return self._size

    def flush(self) -> None:
        """Do nothing: nothing is buffered."""


def open_file(storage: File, path: str) -> tuple[Any, int]:
    """Open an HDF5 file for reading; return h5py's file and the offset of its signature.

    h5py opens no other file: external links and data in other files are not followed.
    """
    h5py = library()
    start = signature_offset(storage)
    if storage.peek(0, 3) == b"CDF":
        refuse(
            path,
            "NetCDF-3: expected NetCDF-4",
            hint=f"Then: nccopy -k nc4 {quote(path)} {quote(path.removesuffix('.nc') + '-nc4.nc')}",
        )
    if start is None:
        refuse(path, "not an HDF5 file: expected its signature at byte 0, 512, 1024 and so on")
    with library_errors(path):
        return h5py.File(_File(storage, path, start), "r", rdcc_nbytes=0), start
