"""How often each number comes, exactly, in memory that does not depend on how many there are.

Few different numbers have a counter each. Where they would be too many, all numbers go to a file
without a name, each to the part of it that is about its size, where they are sorted and counted.
"""

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.reference import Tick, part
from ndtool.arrays import spill

Numbers = NDArray[np.int64]

COUNTERS = 1 << 23  # numbers that have one each: 64 MiB
PARTS = 256  # of the file, as many as a byte can tell apart
STEP = 1 << 20  # of what was counted that is told at once


class Tally:
    """Numbers below `limit`, block by block: first all to `add`, then, if `again`, to `sort`."""

    def __init__(self, limit: int) -> None:
        self._counters = np.zeros(limit, np.int64) if limit <= COUNTERS else None
        self._width = -(-limit // PARTS) or 1
        self._sizes = np.zeros(PARTS, np.int64)
        self._room: Numbers | None = None
        self._next = np.zeros(PARTS, np.int64)

    @property
    def again(self) -> bool:
        """Whether all numbers must be given once more."""
        return self._counters is None and bool(self._sizes.any())

    def add(self, numbers: Numbers) -> None:
        """Count numbers, or how many of them belong to each part."""
        if self._counters is not None:
            np.add.at(self._counters, numbers, 1)
        else:
            self._sizes += np.bincount(numbers // self._width, minlength=PARTS)

    def sort(self, numbers: Numbers) -> None:
        """Put numbers that were added where they belong."""
        if self._room is None:
            count = int(self._sizes.sum())
            room = spill.room(8 * count, "temporary copy of what indices name")
            self._room = np.frombuffer(room, np.int64)
            self._next[1:] = np.cumsum(self._sizes)[:-1]
        parts = (numbers // self._width).astype(np.uint8)
        numbers = numbers[np.argsort(parts, kind="stable")]  # by radix, which is fast
        stops = [0, *np.cumsum(np.bincount(parts, minlength=PARTS)).tolist()]
        for one, (first, stop) in enumerate(pairwise(stops)):
            start = self._next[one]
            self._room[start : start + stop - first] = numbers[first:stop]
            self._next[one] += stop - first

    def ascending(self, tick: Tick) -> Iterator[tuple[Numbers, Numbers]]:
        """Yield the numbers that came, ascending, none twice, and how often each of them did."""
        if self._counters is not None:
            for first in range(0, len(self._counters), STEP):
                counts = self._counters[first : first + STEP]
                (there,) = np.nonzero(counts)
                yield there + first, counts[there]
                tick((first + len(counts)) / len(self._counters))
        elif self._room is not None:
            stops = [0, *np.cumsum(self._sizes).tolist()]
            for one, (first, stop) in enumerate(pairwise(stops)):
                yield from _counted(
                    self._room[first:stop], part(tick, one / PARTS, (one + 1) / PARTS)
                )


def _counted(numbers: Numbers, tick: Tick) -> Iterator[tuple[Numbers, Numbers]]:
    """Sort numbers where they are; yield each of them, and how often it comes."""
    numbers.sort()
    last, count = -1, 0  # what may go on in the next block
    for first in range(0, len(numbers), STEP):
        block = numbers[first : first + STEP]
        (changes,) = np.nonzero(block[1:] != block[:-1])
        starts = np.concatenate([[0], changes + 1])
        there, counts = block[starts], np.diff(starts, append=len(block))
        if there[0] == last:
            counts[0] += count
        elif count:
            yield np.array([last]), np.array([count])
        last, count = int(there[-1]), int(counts[-1])
        yield there[:-1], counts[:-1]
        tick((first + len(block)) / len(numbers))
    if count:
        yield np.array([last]), np.array([count])
