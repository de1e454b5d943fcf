"""The contract of spill stores: the data that tasks spill between phases of an external run."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple, Protocol

from ndtool.machine import pool


class Segment(NamedTuple):
    """The segment that one task spills. start: its offset among all segments of its phase.

    attempt: an ID of the attempt; segments of other attempts are ignored.
    """

    phase: str
    number: int
    start: int
    attempt: int = 0


class Table(NamedTuple):
    """A table of numbers from one phase for the next, of `columns` int64 in each line."""

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
    """A store of spilled segments and tables, safe to use from any task.

    concurrency: the number of segments to read concurrently. prefetches: whether `expect` has an
    effect.
    """

    concurrency: int
    prefetches: bool

    def create(self, segment: Segment) -> Segment:
        """Begin a segment; return it with the ID of its attempt."""

    def write(self, segment: Segment, at: int, view: memoryview) -> None:
        """Write the next bytes of a segment, at offset `at`."""

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        """Complete a segment; end: a trailer for a run that resumes."""

    def expect(self, segment: Segment, at: int, nbytes: int) -> None:
        """Prefetch bytes of a segment."""

    def read(self, segment: Segment, at: int, buffer: memoryview) -> None:
        """Fill a buffer with bytes of a segment."""

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        """Store a table."""

    def discard(self, table: Table) -> None:
        """Release the memory of a table that no task reads any more."""

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        """Return lines of a table, concatenated."""


def read_all(store: SpillStore, ranges: list[tuple[Segment, int, int]], buffer: memoryview) -> None:
    """Fill a buffer with bytes of segments, concatenated; ranges: (segment, offset, bytes) of each.

    Prefetches all of them before it reads the first, so that a disk can reorder the requests.
    """
    for segment, start, nbytes in ranges:
        store.expect(segment, start, nbytes)
    offsets = list(accumulate((nbytes for *_, nbytes in ranges), initial=0))

    def fetch(number: int) -> None:
        segment, start, nbytes = ranges[number]
        store.read(segment, start, buffer[offsets[number] : offsets[number] + nbytes])

    pool.run_all(fetch, iter(range(len(ranges))), store.concurrency)
