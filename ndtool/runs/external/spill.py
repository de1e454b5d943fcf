"""The protocol of spill stores, for the data that tasks spill between phases of an external run."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple, Protocol

from ndtool.machine import pool


class Segment(NamedTuple):
    """The segment that one task spills. start: its offset among all segments of its phase.

    number: the number of the task. attempt: the ID of the attempt; tables say which attempt of a
    task to read.
    """

    phase: str
    number: int
    start: int
    attempt: int = 0


class Table(NamedTuple):
    """A table of int64 that one phase writes for the next, with `columns` columns."""

    name: str
    columns: int


class SpillFolder(Protocol):
    """The folder for the spilled data of a run on a cluster. working_folder: its path or URL."""

    @property
    def working_folder(self) -> str: ...

    def drop(self) -> None:
        """Remove the folder."""

    def suspend(self) -> None:
        """Release the folder with its data, for another run to resume."""


class SpillStore(Protocol):
    """A thread-safe store of spilled segments and tables.

    concurrency: the number of segments to read concurrently. can_prefetch: whether `prefetch` has
    an effect.
    """

    concurrency: int
    can_prefetch: bool

    def create(self, segment: Segment) -> Segment:
        """Create a segment; return it with the ID of its attempt."""

    def write(self, segment: Segment, offset: int, view: memoryview) -> None:
        """Write the next bytes of a segment, which have offset `offset`."""

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        """Complete a segment; end: a trailer from which a run can resume."""

    def prefetch(self, segment: Segment, offset: int, nbytes: int) -> None:
        """Prefetch bytes of a segment."""

    def read(self, segment: Segment, offset: int, buffer: memoryview) -> None:
        """Fill a buffer with bytes of a segment."""

    def write_table(self, table: Table, numbers: memoryview) -> None:
        """Store a table."""

    def discard_table(self, table: Table) -> None:
        """Release the memory of a table that no later task reads."""

    def read_lines(self, table: Table, first: int, stop: int) -> memoryview:
        """Return lines first..stop of a table, concatenated."""


def read_all(store: SpillStore, ranges: list[tuple[Segment, int, int]], buffer: memoryview) -> None:
    """Fill a buffer with concatenated ranges of segments; a range is (segment, offset, bytes).

    Prefetches all ranges before it reads the first, so that a disk can reorder the requests.
    """
    for segment, start, nbytes in ranges:
        store.prefetch(segment, start, nbytes)
    offsets = list(accumulate((nbytes for *_, nbytes in ranges), initial=0))

    def fetch(i: int) -> None:
        segment, start, nbytes = ranges[i]
        store.read(segment, start, buffer[offsets[i] : offsets[i] + nbytes])

    pool.run_all(fetch, iter(range(len(ranges))), store.concurrency)
