"""Exact counts of integers, in memory bounded whatever their range and number.

A small range has a counter for each integer. For a large one, all integers go to an unnamed
temporary file, partitioned by value; each partition is then sorted and counted.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.oracle.blocks import ProgressCallback, portion
from ndtool.storage import tempfiles

Numbers = NDArray[np.int64]

COUNTERS = 1 << 23  # counters of 4 bytes: 32 MiB
PARTITIONS = 256  # partitions of the file: their ID fits in a byte
STEP = 1 << 16  # counts yielded together, which bounds the temporary arrays


class Tally:
    """Counts of integers below `limit`, passed in blocks to `add`.

    If `needs_second_pass`, pass them once more to `sort`. total: how many there are at most.
    """

    def __init__(self, limit: int, total: int) -> None:
        kind = np.dtype(np.uint32 if total < 1 << 32 else np.int64)
        fits = limit * kind.itemsize <= 4 * COUNTERS
        self._counters = np.zeros(limit, kind) if fits else None
        self._width = -(-limit // PARTITIONS) or 1
        self._sizes = np.zeros(PARTITIONS, np.int64)
        self._buffer: Numbers | None = None
        self._next = np.zeros(PARTITIONS, np.int64)

    @property
    def needs_second_pass(self) -> bool:
        """Whether all integers must be passed again, to `sort`."""
        return self._counters is None and bool(self._sizes.any())

    def add(self, numbers: Numbers) -> None:
        """Count integers, or the size of each partition."""
        if self._counters is not None:
            np.add.at(self._counters, numbers, 1)
        else:
            self._sizes += np.bincount(numbers // self._width, minlength=PARTITIONS)

    def sort(self, numbers: Numbers) -> None:
        """Write integers to their partitions."""
        if self._buffer is None:
            count = int(self._sizes.sum())
            buffer = tempfiles.allocate(8 * count, "temporary table of selected slices")
            self._buffer = np.frombuffer(buffer, np.int64)
            self._next[1:] = np.cumsum(self._sizes)[:-1]
        partitions = (numbers // self._width).astype(np.uint8)
        numbers = numbers[np.argsort(partitions, kind="stable")]  # a radix sort
        stops = [0, *np.cumsum(np.bincount(partitions, minlength=PARTITIONS)).tolist()]
        for partition, (first, stop) in enumerate(pairwise(stops)):
            start = self._next[partition]
            self._buffer[start : start + stop - first] = numbers[first:stop]
            self._next[partition] += stop - first

    def ascending(self, progress: ProgressCallback) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield the distinct integers, ascending, and their counts, in blocks."""
        if self._counters is not None:
            for first in range(0, len(self._counters), STEP):
                counts = self._counters[first : first + STEP]
                (present,) = np.nonzero(counts)
                yield present + first, counts[present].astype(np.int64)
                progress((first + len(counts)) / len(self._counters))
        elif self._buffer is not None:
            stops = [0, *np.cumsum(self._sizes).tolist()]
            for partition, (first, stop) in enumerate(pairwise(stops)):
                yield from _counted(
                    self._buffer[first:stop],
                    portion(progress, partition / PARTITIONS, (partition + 1) / PARTITIONS),
                )


def _counted(numbers: Numbers, progress: ProgressCallback) -> Iterator[tuple[Numbers, Numbers]]:
    """Sort integers in place; yield the distinct ones and their counts, in blocks."""
    numbers.sort()
    last, count = -1, 0  # may continue in the next block
    for first in range(0, len(numbers), STEP):
        block = numbers[first : first + STEP]
        (changes,) = np.nonzero(block[1:] != block[:-1])
        starts = np.concatenate([[0], changes + 1])
        present, counts = block[starts], np.diff(starts, append=len(block))
        if present[0] == last:
            counts[0] += count
        elif count:
            yield np.array([last]), np.array([count])
        last, count = int(present[-1]), int(counts[-1])
        yield present[:-1], counts[:-1]
        progress((first + len(block)) / len(numbers))
    if count:
        yield np.array([last]), np.array([count])
