"""What a sweep keeps between its phases: in memory as far as that goes, else in a nameless file."""

from __future__ import annotations

import mmap
import os
from typing import Any

from ndtool.arrays import spill, storage
from ndtool.errors import NdtoolError, OutputError, ResourceError


class Store:
    """Bytes of a known number, of which the first `held` are in memory; any thread may use it.

    Room on disk is reserved for the others. Raises ResourceError where there is too little.
    """

    def __init__(self, nbytes: int, held: int, directory: str | None) -> None:
        self._fd: int | None = None
        self._held = min(nbytes, held)
        self._room = _memory(self._held)
        if nbytes > self._held:
            try:
                self._fd = spill.unnamed_file(directory)
                storage.reserve(self._fd, nbytes - self._held, "temporary file")
                storage.advise_random(self._fd)
            except BaseException as exc:
                self.close()
                raise _told(exc) from None

    def write(self, start: int, view: memoryview) -> None:
        """Put bytes at `start`."""
        here = max(0, min(len(view), self._held - start))
        self._room[start : start + here] = view[:here]
        if here < len(view):
            assert self._fd is not None
            try:
                storage.write_at(self._fd, start + here - self._held, view[here:])
            except OSError as exc:
                raise _told(exc) from None

    def read(self, start: int, room: memoryview) -> None:
        """Fill a room with the bytes from `start` on."""
        here = max(0, min(len(room), self._held - start))
        room[:here] = self._room[start : start + here]
        if here < len(room):
            assert self._fd is not None
            try:
                storage.read_into(self._fd, start + here - self._held, room[here:])
            except OSError as exc:
                raise _told(exc) from None

    def close(self) -> None:
        """Drop everything."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _memory(nbytes: int) -> memoryview:
    """Return writable bytes, whose pages are taken when they are used."""
    try:
        return memoryview(mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError:
        raise ResourceError(f"no memory for {nbytes} bytes to work in") from None


def _told(exc: BaseException) -> Any:
    if isinstance(exc, OSError) and not isinstance(exc, NdtoolError):
        return storage.failure(exc, "temporary file", OutputError)
    return exc
