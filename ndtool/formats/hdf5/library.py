"""HDF5 files, opened by the h5py package through ndtool's file objects."""

from __future__ import annotations

import gc
import os
from functools import partial
from typing import Any

from ndtool.errors import InputError, NdtoolError, OutputError, import_extra, printable
from ndtool.formats.decoding import InputFile
from ndtool.storage.descriptors import failure, read_into, write_at
from ndtool.storage.local import File, LocalFile

SIGNATURE = b"\x89HDF\r\n\x1a\n"
# The signature may be at offset 0, 512, 1024 and so on.
_SECOND_OFFSET = 512


library = partial(import_extra, "h5py", "an HDF5 file", "hdf5")


def signature_offset(storage: File) -> int | None:
    """Return the offset of the signature, the size of the user block; None if there is none."""
    offset = 0
    while offset + len(SIGNATURE) <= storage.size:
        if storage.peek(offset, len(SIGNATURE)) == SIGNATURE:
            return offset
        offset = 2 * offset or _SECOND_OFFSET
    return None


class CheckedFile(InputFile):
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


class OutputFile(InputFile):
    """A file object through which h5py writes a file; after an error or `drop`, writes are ignored.

    start: the offset of the signature. size: of the file. h5py continues after an exception, so
    `raise_error` raises it when h5py has returned.
    """

    def __init__(self, fd: int, name: str, start: int, size: int) -> None:
        super().__init__(LocalFile(fd, None), name, start)
        self.storage.size = size
        self._error: NdtoolError | None = None
        self._is_dropped = False

    def drop(self) -> None:
        """Ignore all further writes."""
        self._is_dropped = True

    def raise_error(self) -> None:
        """Raise the first error of a write."""
        if self._error is not None:
            raise self._error from None

    def writable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        view, offset = memoryview(buffer), self.start + self.position
        count = 0 if self._is_dropped else read_into(self.storage.fd, offset, view)
        view[count:] = bytes(len(view) - count)
        self.position += len(view)
        return len(view)

    def write(self, data: Any) -> int:
        try:
            if not self._is_dropped:
                write_at(self.storage.fd, self.start + self.position, memoryview(data))
        except OSError as exc:
            self._error = failure(exc, self.label, OutputError)
            self.drop()
        self.position += len(data)
        self.storage.size = max(self.storage.size, self.start + self.position)
        return len(data)

    def truncate(self, size: int | None = None) -> int:
        size = self.position if size is None else size
        self.storage.size = self.start + size
        if not self._is_dropped:
            os.ftruncate(self.storage.fd, self.storage.size)
        return size
