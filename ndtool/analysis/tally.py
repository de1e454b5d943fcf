"""Exact counts of integers, in bounded memory for any range and number of integers.

A small range has a counter for each integer. For a large one, all integers are written to an
unnamed temporary file and sorted there.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.oracle.blocks import ProgressCallback
from ndtool.storage import tempfiles

Int64Array = NDArray[np.int64]

MAX_COUNTERS = 1 << 23  # counters of 4 bytes: 32 MiB
BLOCK = 1 << 16  # counts yielded together, which bounds the temporary arrays


class Tally:
    """Counts of integers below `limit`, passed in blocks to `add`.

    total: the largest count of integers. memory: the limit in bytes, of which a quarter is for
    counters; None for no limit.
    """

    def __init__(self, limit: int, total: int, memory: int | None = None) -> None:
        counter_dtype = np.dtype(np.uint32 if total < 1 << 32 else np.int64)
        nbytes = 4 * MAX_COUNTERS if memory is None else min(4 * MAX_COUNTERS, memory // 4)
        self._counters = self._integers = None
        self._count = 0
        if limit * counter_dtype.itemsize <= nbytes:
            self._counters = np.zeros(limit, counter_dtype)
        else:
            buffer = tempfiles.allocate(8 * max(total, 1), "temporary table of selected slices")
            self._integers = np.frombuffer(buffer, np.int64)

    def add(self, integers: Int64Array) -> None:
        """Count integers, or write them to the file."""
        if self._counters is not None:
            np.add.at(self._counters, integers, 1)
        elif self._integers is not None:
            self._integers[self._count : self._count + len(integers)] = integers
            self._count += len(integers)

    def iterate_counts(self, progress: ProgressCallback) -> Iterator[tuple[Int64Array, Int64Array]]:
        """Yield the distinct integers, ascending, and their counts, in blocks."""
        if self._integers is not None:
            yield from _sort_and_count(self._integers[: self._count], progress)
        elif self._counters is not None:
            for first in range(0, len(self._counters), BLOCK):
                counts = self._counters[first : first + BLOCK]
                (distinct,) = np.nonzero(counts)
                yield distinct + first, counts[distinct].astype(np.int64)
                progress((first + len(counts)) / len(self._counters))


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
