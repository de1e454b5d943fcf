"""Outputs written by several processes, on one machine or on several with shared storage."""

from __future__ import annotations

import os
from typing import NamedTuple

from ndtool.arrays.sink import Sink
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError
from ndtool.storage.descriptors import advise, failure, os_errors, write_at


class SharedOutput(NamedTuple):
    """Location of an unpublished output, for other processes that write to it.

    name: the output's name in messages. path: path of the file, or path or URL of the Zarr store.
    array_path: the array's path in the store. start: the offset of its bytes in the file. For URLs,
    pending_metadata: objects to be written last; lock: the content of the lock object, by which
    writers verify the store.
    """

    name: str
    metadata: ArrayMetadata
    path: str
    array_path: str
    start: int
    pending_metadata: dict[str, bytes] | None = None
    lock: bytes | None = None


class SharedFile(Sink):
    """Writer of an array's bytes in a file that another process created."""

    def __init__(self, shared: SharedOutput) -> None:
        self.name, self.metadata, self._start = shared.name, shared.metadata, shared.start
        with os_errors(self.name, OutputError):
            self._fd = os.open(shared.path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of the data at offset `start`, in any order; thread-safe."""
        try:
            write_at(self._fd, self._start + start, view)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        advise(self._fd, "DONTNEED", self._start + start, len(view))

    def close(self) -> None:
        os.close(self._fd)
