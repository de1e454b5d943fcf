"""Batches: the spilled tuples of a partition, read from several blocks at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ndtool.runs.external import spill
from ndtool.runs.external.partitioning import LOCAL, Partitioning
from ndtool.runs.external.spill import SpillStore

Batch = list[tuple[int, int, int]]  # (block, first, stop) of its sorted tuples
Take = Callable[[int], memoryview]


def batches(begins: memoryview, ends: memoryview, most: int) -> Iterator[Batch]:
    """Yield the tuples of a partition in batches of at most `most`."""
    batch: Batch = []
    held = 0
    for block, (first, stop) in enumerate(zip(begins, ends, strict=True)):
        if held + stop - first > most:
            yield batch
            batch, held = [], 0
        if stop > first:
            batch.append((block, first, stop))
            held += stop - first
    if batch:
        yield batch


def fetched(
    partitioning: Partitioning,
    store: SpillStore,
    batch: Batch,
    attempts: memoryview,
    what: str,
    take: Take,
) -> tuple[memoryview, int]:
    """Read the spilled row numbers ("local") or updates ("rows") of a batch, and their count."""
    size = LOCAL if what == "local" else partitioning.rows.width
    n = sum(stop - first for _, first, stop in batch)
    buffer = take(n * size)
    wanted = []
    for block, first, stop in batch:
        segment = spill.Segment(
            "split", block, block * partitioning.block * partitioning.pitch, attempts[block]
        )
        before = 0 if what == "local" else partitioning.tuples(block) * LOCAL
        wanted.append((segment, before + first * size, (stop - first) * size))
    spill.read_all(store, wanted, buffer)
    return buffer, n
