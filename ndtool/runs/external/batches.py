"""Batches: spilled tuples of a group, read from several blocks of its parent group at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ndtool.runs.external import spill
from ndtool.runs.external.partitioning import MAX_SEGMENTS, Partitioning, phase_name
from ndtool.runs.external.spill import SpillStore
from ndtool.runs.external.tables import Tuples

Slice = tuple[int, int, int]  # (block, first, stop) of its sorted tuples
Allocate = Callable[[int], memoryview]


class Batch(NamedTuple):
    """Consecutive tuples of a group, from several blocks. tuples: their number."""

    slices: list[Slice]
    tuples: int


def batches(tuples: Tuples, first: int, stop: int, limit: int) -> Iterator[Batch]:
    """Yield batches of a group's tuples first..stop: up to `limit`, of MAX_SEGMENTS blocks."""
    slices: list[Slice] = []
    tuple_count = 0
    for block_slice in _block_slices(tuples, first, stop):
        count = block_slice[2] - block_slice[1]
        if tuple_count + count > limit or len(slices) == MAX_SEGMENTS:
            yield Batch(slices, tuple_count)
            slices, tuple_count = [], 0
        slices.append(block_slice)
        tuple_count += count
    if slices:
        yield Batch(slices, tuple_count)


def _block_slices(tuples: Tuples, first: int, stop: int) -> Iterator[Slice]:
    """Yield the blocks that contain tuples first..stop of a group, with the range in each."""
    position = 0
    for block, (start, end) in enumerate(zip(tuples.starts, tuples.stops, strict=True)):
        count = end - start
        if count and position + count > first:
            yield block, start + max(0, first - position), min(end, start + stop - position)
        position += count
        if position >= stop:
            return


class SpilledTuples:
    """The tuples of a group at a depth, as the blocks of its parent spilled them."""

    def __init__(self, partitioning: Partitioning, store: SpillStore, tuples: Tuples) -> None:
        self._store, self._tuples, self._partitioning = store, tuples, partitioning
        depth = tuples.parent.depth
        self._phase, self._per_tuple = (
            phase_name("split", depth),
            partitioning.spilled_per_tuple(depth),
        )
        self.local_bytes = partitioning.local_bytes(depth + 1)

    def batches(self, first: int, stop: int) -> Iterator[Batch]:
        """Yield tuples first..stop in batches of up to a block."""
        return batches(self._tuples, first, stop, self._partitioning.block)

    def read_local(self, batch: Batch, buffer: memoryview) -> None:
        """Read the row indices of a batch, local to the group."""
        self._read(batch, self.local_bytes, False, buffer)

    def read_rows(self, batch: Batch, buffer: memoryview) -> None:
        """Read the updates of a batch."""
        self._read(batch, self._partitioning.rows.width, True, buffer)

    def _read(self, batch: Batch, size: int, is_row: bool, buffer: memoryview) -> None:
        ranges = []
        for block, first, stop in batch.slices:
            offset = self.local_bytes * self._tuples.parent.tuples_of(block) if is_row else 0
            segment = self.segment(block)
            ranges.append((segment, offset + first * size, (stop - first) * size))
        spill.read_all(self._store, ranges, buffer)

    def prefetch(self) -> None:
        """Prefetch the tuples of all children of the parent group, which are contiguous."""
        parent = self._tuples.parent
        for block in range(parent.blocks):
            nbytes = parent.tuples_of(block) * self._per_tuple
            self._store.prefetch(self.segment(block), 0, nbytes)

    def segment(self, block: int) -> spill.Segment:
        """Return the segment of a block of the parent group."""
        parent = self._tuples.parent
        number, first = (
            parent.task_number(block, self._partitioning),
            parent.first + block * parent.block,
        )
        return spill.Segment(
            self._phase, number, first * self._per_tuple, self._tuples.attempts[block]
        )
