"""The spill store of a run in one process: in memory, then in unnamed temporary files."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence

from ndtool.errors import ResourceError, printable
from ndtool.runs.external.spill import Segment, Table
from ndtool.runs.external.spillfiles import convert_error
from ndtool.storage import descriptors, tempfiles

STRIPE = 1 << 20  # bytes written to one file before the next file, if there are several
_FILE = "temporary file"


class Store:
    """A spill store of `nbytes` bytes, the first `in_memory` of them in memory; thread-safe.

    directories: each has one file, and data are striped over the files; empty for TMPDIR. phases:
    the offset of each phase's segments. Reserves disk space for the bytes that are not in memory;
    raises ResourceError if a directory has too little.
    """

    concurrency = 1
    can_prefetch = True

    def __init__(
        self, nbytes: int, in_memory: int, directories: Sequence[str], phases: dict[str, int]
    ) -> None:
        self._files: list[tuple[int, str]] = []  # descriptors, and names for messages
        self._phase_offsets = phases
        self._tables: dict[str, memoryview] = {}
        self._in_memory = min(nbytes, in_memory)
        self._buffer = _allocate(self._in_memory)
        if nbytes > self._in_memory:
            file_sizes = _file_sizes(nbytes - self._in_memory, max(1, len(directories)))
            try:
                for directory, file_size in zip(directories or (None,), file_sizes, strict=True):
                    is_striped = len(directories) > 1
                    name = f"{_FILE} in {printable(directory or '')}" if is_striped else _FILE
                    fd = tempfiles.unnamed_file(directory)
                    self._files.append((fd, name))
                    descriptors.reserve(fd, file_size, name)
                    descriptors.advise(fd, "RANDOM")
            except BaseException as exc:
                self.close()
                raise convert_error(exc) from None

    def create(self, segment: Segment) -> Segment:
        return segment

    def write(self, segment: Segment, offset: int, view: memoryview) -> None:
        start = self._phase_offsets[segment.phase] + segment.start + offset
        in_memory = max(0, min(len(view), self._in_memory - start))
        self._buffer[start : start + in_memory] = view[:in_memory]
        for (fd, name), position, first, stop in self._stripes(
            start + in_memory, len(view) - in_memory
        ):
            try:
                descriptors.write_at(fd, position, view[in_memory + first : in_memory + stop])
            except OSError as exc:
                raise convert_error(exc, name) from None

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        pass  # no other run can resume it

    def prefetch(self, segment: Segment, offset: int, nbytes: int) -> None:
        first = self._phase_offsets[segment.phase] + segment.start + offset
        start = max(self._in_memory, first)
        for (fd, _), position, begin, stop in self._stripes(start, first + nbytes - start):
            descriptors.advise(fd, "WILLNEED", position, stop - begin)

    def read(self, segment: Segment, offset: int, buffer: memoryview) -> None:
        start = self._phase_offsets[segment.phase] + segment.start + offset
        in_memory = max(0, min(len(buffer), self._in_memory - start))
        buffer[:in_memory] = self._buffer[start : start + in_memory]
        for (fd, name), position, first, stop in self._stripes(
            start + in_memory, len(buffer) - in_memory
        ):
            try:
                descriptors.read_into(fd, position, buffer[in_memory + first : in_memory + stop])
            except OSError as exc:
                raise convert_error(exc, name) from None

    def write_table(self, table: Table, numbers: memoryview) -> None:
        self._tables[table.name] = numbers

    def discard_table(self, table: Table) -> None:
        self._tables.pop(table.name, None)

    def read_lines(self, table: Table, first: int, stop: int) -> memoryview:
        return self._tables[table.name][first * table.columns : stop * table.columns]

    def close(self) -> None:
        """Close the files, which removes them."""
        while self._files:
            os.close(self._files.pop()[0])

    def _stripes(self, start: int, nbytes: int) -> Iterator[tuple[tuple[int, str], int, int, int]]:
        """Yield the file, the offset in it, and the range in a buffer of each stripe of bytes.

        start: the offset of the bytes in the store, past those in memory.
        """
        offset, position, count = start - self._in_memory, 0, len(self._files)
        while position < nbytes:
            stripe, stripe_offset = divmod(offset + position, STRIPE) if count > 1 else (0, offset)
            size = min(STRIPE - stripe_offset, nbytes - position) if count > 1 else nbytes
            file = self._files[stripe % count]
            yield file, stripe // count * STRIPE + stripe_offset, position, position + size
            position += size


def _file_sizes(nbytes: int, count: int) -> list[int]:
    """Return the size of each file: the end of its last stripe."""
    if count == 1:
        return [nbytes]
    stripes, remainder = divmod(nbytes, STRIPE)
    sizes = [(stripes + count - 1 - number) // count * STRIPE for number in range(count)]
    sizes[stripes % count] += remainder
    return sizes


def _allocate(nbytes: int) -> memoryview:
    """Return a writable buffer whose pages are allocated on first use."""
    try:
        return memoryview(mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError:
        raise ResourceError(f"not enough memory for a buffer of {nbytes} bytes") from None
