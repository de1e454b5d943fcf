"""The spill store of a run in one process: memory first, then an unnamed temporary file."""

from __future__ import annotations

import mmap
import os

from ndtool.errors import ResourceError
from ndtool.runs.external.spill import Segment, Table
from ndtool.runs.external.spillfiles import failed
from ndtool.storage import descriptors, tempfiles


class Store:
    """A spill store of `nbytes` bytes, the first `held` of them in memory; thread-safe.

    phases: the offset of each phase's segments. Disk space is reserved for the bytes that are not
    in memory. Raises ResourceError if there is too little.
    """

    at_once = 1

    def __init__(
        self, nbytes: int, held: int, directory: str | None, phases: dict[str, int]
    ) -> None:
        self._fd: int | None = None
        self._phases = phases
        self._tables: dict[str, memoryview] = {}
        self._held = min(nbytes, held)
        self._buffer = _memory(self._held)
        if nbytes > self._held:
            try:
                self._fd = tempfiles.unnamed_file(directory)
                descriptors.reserve(self._fd, nbytes - self._held, "temporary file")
                descriptors.advise(self._fd, "RANDOM")
            except BaseException as exc:
                self.close()
                raise failed(exc) from None

    def create(self, segment: Segment) -> Segment:
        return segment

    def write(self, segment: Segment, at: int, view: memoryview) -> None:
        start = self._phases[segment.phase] + segment.start + at
        here = max(0, min(len(view), self._held - start))
        self._buffer[start : start + here] = view[:here]
        if here < len(view):
            assert self._fd is not None
            try:
                descriptors.write_at(self._fd, start + here - self._held, view[here:])
            except OSError as exc:
                raise failed(exc) from None

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        pass  # no other run can resume it

    def expect(self, segment: Segment, at: int, nbytes: int) -> None:
        first = self._phases[segment.phase] + segment.start + at - self._held
        start, stop = max(0, first), first + nbytes
        if start < stop:
            assert self._fd is not None
            descriptors.advise(self._fd, "WILLNEED", start, stop - start)

    def read(self, segment: Segment, at: int, buffer: memoryview) -> None:
        start = self._phases[segment.phase] + segment.start + at
        here = max(0, min(len(buffer), self._held - start))
        buffer[:here] = self._buffer[start : start + here]
        if here < len(buffer):
            assert self._fd is not None
            try:
                descriptors.read_into(self._fd, start + here - self._held, buffer[here:])
            except OSError as exc:
                raise failed(exc) from None

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        self._tables[table.name] = numbers

    def discard(self, table: Table) -> None:
        self._tables.pop(table.name, None)

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        return self._tables[table.name][first * table.columns : stop * table.columns]

    def close(self) -> None:
        """Close the file, which removes it."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _memory(nbytes: int) -> memoryview:
    """Return a writable buffer whose pages are allocated on first use."""
    try:
        return memoryview(mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError:
        raise ResourceError(f"not enough memory for a buffer of {nbytes} bytes") from None
