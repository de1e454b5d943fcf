"""Batches: the spilled tuples of a group, read from several blocks of its parent at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from ndtool.runs.external import spill
from ndtool.runs.external.partitioning import PIECES, Partitioning, phase
from ndtool.runs.external.spill import SpillStore
from ndtool.runs.external.tables import Tuples

Piece = tuple[int, int, int]  # (block, first, stop) of its sorted tuples
Take = Callable[[int], memoryview]


class Batch(NamedTuple):
    """Successive tuples of a group, in several blocks. tuples: their number."""

    pieces: list[Piece]
    tuples: int


def batches(tuples: Tuples, first: int, stop: int, most: int) -> Iterator[Batch]:
    """Yield tuples first..stop of a group in batches of at most `most`, and PIECES blocks."""
    pieces: list[Piece] = []
    held = 0
    for piece in _pieces(tuples, first, stop):
        count = piece[2] - piece[1]
        if held + count > most or len(pieces) == PIECES:
            yield Batch(pieces, held)
            pieces, held = [], 0
        pieces.append(piece)
        held += count
    if pieces:
        yield Batch(pieces, held)


def _pieces(tuples: Tuples, first: int, stop: int) -> Iterator[Piece]:
    """Yield the blocks that have tuples first..stop of a group, and where in each."""
    at = 0
    for block, (begin, end) in enumerate(zip(tuples.begins, tuples.ends, strict=True)):
        count = end - begin
        if count and at + count > first:
            yield block, begin + max(0, first - at), min(end, begin + stop - at)
        at += count
        if at >= stop:
            return


class SpilledTuples:
    """The tuples of a group at a depth, as the blocks of its parent spilled them."""

    def __init__(self, partitioning: Partitioning, store: SpillStore, tuples: Tuples) -> None:
        self._store, self._tuples, self._partitioning = store, tuples, partitioning
        depth = tuples.parent.depth
        self._phase, self._pitch = phase("split", depth), partitioning.pitch(depth)
        self.local_bytes = partitioning.local_bytes(depth + 1)

    def batches(self, first: int, stop: int) -> Iterator[Batch]:
        """Yield tuples first..stop in batches of a block at most."""
        return batches(self._tuples, first, stop, self._partitioning.block)

    def read_local(self, batch: Batch, buffer: memoryview) -> None:
        """Read the row numbers of a batch."""
        self._read(batch, self.local_bytes, False, buffer)

    def read_rows(self, batch: Batch, buffer: memoryview) -> None:
        """Read the updates of a batch."""
        self._read(batch, self._partitioning.rows.width, True, buffer)

    def _read(self, batch: Batch, size: int, follows: bool, buffer: memoryview) -> None:
        wanted = []
        for block, first, stop in batch.pieces:
            before = self.local_bytes * self._tuples.parent.tuples_of(block) if follows else 0
            segment = self.segment(block)
            wanted.append((segment, before + first * size, (stop - first) * size))
        spill.read_all(self._store, wanted, buffer)

    def prefetch(self) -> None:
        """Prefetch the tuples of all children of the parent, which are contiguous."""
        parent = self._tuples.parent
        for block in range(parent.blocks):
            nbytes = parent.tuples_of(block) * self._pitch
            self._store.expect(self.segment(block), 0, nbytes)

    def segment(self, block: int) -> spill.Segment:
        """Return the segment of a block of the parent."""
        parent = self._tuples.parent
        number, first = parent.task(block, self._partitioning), parent.first + block * parent.block
        return spill.Segment(self._phase, number, first * self._pitch, self._tuples.attempts[block])
