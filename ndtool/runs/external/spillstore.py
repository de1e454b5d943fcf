"""The spill store of a run in one process: memory first, then unnamed temporary files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence

from ndtool.errors import ResourceError, printable
from ndtool.runs.external.spill import Segment, Table
from ndtool.runs.external.spillfiles import failed
from ndtool.storage import descriptors, tempfiles

STRIPE = 1 << 20  # bytes in one directory before the next one, if there are several
_FILE = "temporary file"


class Store:
    """A spill store of `nbytes` bytes, the first `in_memory` of them in memory; thread-safe.

    directories: one file is in each, and they are striped; none for TMPDIR. phases: the offset of
    each phase's segments. Disk space is reserved for the bytes that are not in memory. Raises
    ResourceError if a directory has too little.
    """

    concurrency = 1
    prefetches = True

    def __init__(
        self, nbytes: int, in_memory: int, directories: Sequence[str], phases: dict[str, int]
    ) -> None:
        self._files: list[tuple[int, str]] = []  # descriptors, and names in errors
        self._phases = phases
        self._tables: dict[str, memoryview] = {}
        self._in_memory = min(nbytes, in_memory)
        self._buffer = _memory(self._in_memory)
        if nbytes > self._in_memory:
            shares = _shares(nbytes - self._in_memory, max(1, len(directories)))
            try:
                for directory, share in zip(directories or (None,), shares, strict=True):
                    several = len(directories) > 1
                    name = f"{_FILE} in {printable(directory or '')}" if several else _FILE
                    fd = tempfiles.unnamed_file(directory)
                    self._files.append((fd, name))
                    descriptors.reserve(fd, share, name)
                    descriptors.advise(fd, "RANDOM")
            except BaseException as exc:
                self.close()
                raise failed(exc) from None

    def create(self, segment: Segment) -> Segment:
        return segment

    def write(self, segment: Segment, at: int, view: memoryview) -> None:
        start = self._phases[segment.phase] + segment.start + at
        head = max(0, min(len(view), self._in_memory - start))
        self._buffer[start : start + head] = view[:head]
        for (fd, name), position, first, stop in self._stripes(start + head, len(view) - head):
            try:
                descriptors.write_at(fd, position, view[head + first : head + stop])
            except OSError as exc:
                raise failed(exc, name) from None

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        pass  # no other run can resume it

    def expect(self, segment: Segment, at: int, nbytes: int) -> None:
        first = self._phases[segment.phase] + segment.start + at
        start = max(self._in_memory, first)
        for (fd, _), position, begin, stop in self._stripes(start, first + nbytes - start):
            descriptors.advise(fd, "WILLNEED", position, stop - begin)

    def read(self, segment: Segment, at: int, buffer: memoryview) -> None:
        start = self._phases[segment.phase] + segment.start + at
        head = max(0, min(len(buffer), self._in_memory - start))
        buffer[:head] = self._buffer[start : start + head]
        for (fd, name), position, first, stop in self._stripes(start + head, len(buffer) - head):
            try:
                descriptors.read_into(fd, position, buffer[head + first : head + stop])
            except OSError as exc:
                raise failed(exc, name) from None

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        self._tables[table.name] = numbers

    def discard(self, table: Table) -> None:
        self._tables.pop(table.name, None)

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        return self._tables[table.name][first * table.columns : stop * table.columns]

    def close(self) -> None:
        """Close the files, which removes them."""
        while self._files:
            os.close(self._files.pop()[0])

    def _stripes(self, start: int, nbytes: int) -> Iterator[tuple[tuple[int, str], int, int, int]]:
        """Yield the file, the offset in it, and the range in a buffer of each stripe of bytes.

        start: their offset in the store, not in memory.
        """
        at, done, count = start - self._in_memory, 0, len(self._files)
        while done < nbytes:
            stripe, inside = divmod(at + done, STRIPE) if count > 1 else (0, at)
            size = min(STRIPE - inside, nbytes - done) if count > 1 else nbytes
            file = self._files[stripe % count]
            yield file, stripe // count * STRIPE + inside, done, done + size
            done += size


def _shares(nbytes: int, count: int) -> list[int]:
    """Return the bytes of each file: the end of its last stripe."""
    if count == 1:
        return [nbytes]
    stripes, rest = divmod(nbytes, STRIPE)
    whole = [(stripes + count - 1 - number) // count * STRIPE for number in range(count)]
    whole[stripes % count] += rest
    return whole


def _memory(nbytes: int) -> memoryview:
    """Return a writable buffer whose pages are allocated on first use."""
    try:
        return memoryview(mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError:
        raise ResourceError(f"not enough memory for a buffer of {nbytes} bytes") from None
