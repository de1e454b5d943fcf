"""Exact counts of integers, in bounded memory for any range and number of integers.

A small range has a counter for each integer. For a large one, all integers are written to an
unnamed temporary file, partitioned by value; then each partition is sorted and counted.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.oracle.blocks import ProgressCallback, portion
from ndtool.storage import tempfiles

Int64Array = NDArray[np.int64]

MAX_COUNTERS = 1 << 23  # counters of 4 bytes: 32 MiB
PARTITIONS = 256  # of the file: a partition ID is one byte
BLOCK = 1 << 16  # counts yielded together, which bounds the temporary arrays


class Tally:
    """Counts of integers below `limit`, passed in blocks to `add`.

    If `needs_second_pass`, pass them once more to `sort`. total: the largest count of integers.
    memory: the limit in bytes, of which a quarter is for counters; None for no limit.
    """

    def __init__(self, limit: int, total: int, memory: int | None = None) -> None:
        counter_dtype = np.dtype(np.uint32 if total < 1 << 32 else np.int64)
        nbytes = 4 * MAX_COUNTERS if memory is None else min(4 * MAX_COUNTERS, memory // 4)
        has_counters = limit * counter_dtype.itemsize <= nbytes
        self._counters = np.zeros(limit, counter_dtype) if has_counters else None
        self._partition_width = -(-limit // PARTITIONS) or 1
        self._sizes = np.zeros(PARTITIONS, np.int64)
        self._buffer: Int64Array | None = None
        self._offsets = np.zeros(PARTITIONS, np.int64)

    @property
    def needs_second_pass(self) -> bool:
        """Whether all integers must be passed again, to `sort`."""
        return self._counters is None and bool(self._sizes.any())

    def add(self, integers: Int64Array) -> None:
        """Count integers, or only the number of integers in each partition."""
        if self._counters is not None:
            np.add.at(self._counters, integers, 1)
        else:
            self._sizes += np.bincount(integers // self._partition_width, minlength=PARTITIONS)

    def sort(self, integers: Int64Array) -> None:
        """Write integers to their partitions."""
        if self._buffer is None:
            count = int(self._sizes.sum())
            buffer = tempfiles.allocate(8 * count, "temporary table of selected slices")
            self._buffer = np.frombuffer(buffer, np.int64)
            self._offsets[1:] = np.cumsum(self._sizes)[:-1]
        partitions = (integers // self._partition_width).astype(np.uint8)
        integers = integers[np.argsort(partitions, kind="stable")]  # a radix sort
        stops = [0, *np.cumsum(np.bincount(partitions, minlength=PARTITIONS)).tolist()]
        for partition, (first, stop) in enumerate(pairwise(stops)):
            start = self._offsets[partition]
            self._buffer[start : start + stop - first] = integers[first:stop]
            self._offsets[partition] += stop - first

    def iterate_counts(self, progress: ProgressCallback) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yield the distinct integers, ascending, and their counts, in blocks."""
        if self._counters is not None:
            for first in range(0, len(self._counters), BLOCK):
                counts = self._counters[first : first + BLOCK]
                (distinct,) = np.nonzero(counts)
                yield distinct + first, counts[distinct].astype(np.int64)
                progress((first + len(counts)) / len(self._counters))
        elif self._buffer is not None:
            stops = [0, *np.cumsum(self._sizes).tolist()]
            for partition, (first, stop) in enumerate(pairwise(stops)):
                yield from _sort_and_count(
                    self._buffer[first:stop],
                    portion(progress, partition / PARTITIONS, (partition + 1) / PARTITIONS),
                )


def _sort_and_count(
    integers: Int64Array, progress: ProgressCallback
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Sort integers in place; yield the distinct ones and their counts, in blocks."""
    integers.sort()
    last, count = -1, 0  # the last integer may continue in the next block
    for first in range(0, len(integers), BLOCK):
        block = integers[first : first + BLOCK]
        (changes,) = np.nonzero(block[1:] != block[:-1])
        starts = np.concatenate([[0], changes + 1])
        distinct, counts = block[starts], np.diff(starts, append=len(block))
        if distinct[0] == last:
            counts[0] += count
        elif count:
            yield np.array([last]), np.array([count])
        last, count = int(distinct[-1]), int(counts[-1])
        yield distinct[:-1], counts[:-1]
        progress((first + len(block)) / len(integers))
    if count:
        yield np.array([last]), np.array([count])
