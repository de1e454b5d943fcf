"""The parts of data that a gather reads, computed from its indices before data are read.

Only data that cannot be mapped need this: then NumPy processes the indices in slabs. The result is
a superset of the bytes that the gather reads.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from ndtool.arrays.source import ArrayMetadata
from ndtool.engine import layouts
from ndtool.rules import grid
from ndtool.rules.dtypes import Dtype
from ndtool.rules.modes import Handling
from ndtool.rules.plans import ElementsPlan, Plan, Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

SLAB = 1 << 18  # index components that are processed together
GRANULE = 1 << 16  # bytes of contiguous data that one mark covers
FLAGS = 1 << 25  # marks, at most, for which an array of flags is used
_ARRAYS = 6  # arrays of SLAB int64 numbers that exist at a time


def memory(metadata: ArrayMetadata) -> int:
    """Estimate the bytes of memory that computing the touched parts takes."""
    count = (
        grid.blocks(metadata.shape, metadata.grid)
        if metadata.in_chunks
        else metadata.nbytes // GRANULE
    )
    return min(count, FLAGS) + _ARRAYS * 8 * SLAB


class Gathered:
    """The parts of data that a gather reads.

    indices: their bytes, of type `dtype`, in row-major order. handling: what happens to each.
    """

    def __init__(
        self,
        plan: Plan,
        indices: memoryview,
        dtype: Dtype,
        handling: Handling = Handling(),  # noqa: B008 - a value that never changes
    ) -> None:
        self._plan, self._indices, self._handling = plan, indices, handling
        self._code = f"{dtype.order}{dtype.kind}{dtype.itemsize}"
        if isinstance(plan, ElementsPlan):
            self._row_shape: Shape = plan.data
            self._slice_shape: Shape = ()
            self._axes: tuple[int, ...] = (plan.axis,)
            self._positions = plan.indices
        else:
            b = len(plan.batch)
            self._row_shape, self._slice_shape = plan.data[: b + plan.k], plan.slice_shape
            self._axes = tuple(range(b, b + plan.k))
            self._positions = plan.unrolled.indices[:-1] if plan.plain else plan.positions
        self._step: Shape | None = None
        self._marks: Marks | None = None

    def blocks(self, step: Shape) -> Iterator[int]:
        """Yield the numbers of the blocks of a grid that the gather reads, ascending."""
        coordinates = grid.blocks_along(self._plan.data, step)
        row_count = len(self._row_shape)
        if self._marks is None or self._step != step:
            strides = layouts.contiguous_strides(coordinates[:row_count], 1)
            self._marks = self._marked(step[:row_count], strides, 1, prod(coordinates[:row_count]))
            self._step = step
        each = prod(coordinates[row_count:])  # a slice is in all blocks along its axes
        for numbers in self._marks.ascending():
            for number in numbers:
                yield from range(number * each, (number + 1) * each)

    def ranges(self, itemsize: int, order: str) -> Iterator[tuple[int, int]]:
        """Yield the disjoint byte ranges (start, stop) that the gather reads, ascending.

        order: the memory order of data, "C" or "F".
        """
        fortran = order == "F"
        width = prod(self._slice_shape)
        unit = itemsize if fortran else itemsize * width  # contiguous bytes that are read together
        if not unit:
            return
        row_count = prod(self._row_shape)
        granule = max(1, GRANULE // unit)
        strides = layouts.contiguous_strides(self._row_shape, 1, fortran)
        ones = (1,) * len(self._row_shape)
        marks = self._marked(ones, strides, granule, -(-row_count // granule))
        first = stop = 0
        for lane in range(width if fortran else 1):
            for numbers in marks.ascending():
                for number in numbers:
                    offset = (lane * row_count + number * granule) * unit
                    if offset != stop:
                        if stop > first:
                            yield first, stop
                        first = offset
                    stop = (lane * row_count + min(row_count, (number + 1) * granule)) * unit
        if stop > first:
            yield first, stop

    def _stored_numbers(self, numbers: Numbers) -> Numbers:
        """Return the rows of the stored indices that have tuples; batches may share them."""
        plan = self._plan
        if isinstance(plan, ElementsPlan) or plan.repeats == 1:
            return numbers
        per_batch = plan.per_batch
        return numbers // (plan.repeats * per_batch) * per_batch + numbers % per_batch

    def _marked(self, steps: Shape, strides: Shape, granule: int, count: int) -> Marks:
        """Mark position // granule of tuples; position: sum of strides * (coordinate // steps)."""
        marks = Marks(count)
        if not prod(self._plan.output) or not prod(self._plan.data):
            return marks
        import numpy as np

        from ndtool.runs import bounds

        k, tuples = len(self._axes), prod(self._positions)
        values = np.frombuffer(self._indices, self._code).reshape(-1, k)
        pitches = layouts.contiguous_strides(self._positions, 1)
        step = max(1, SLAB // k)
        for first in range(0, tuples, step):
            numbers = np.arange(first, min(first + step, tuples))
            slab = values[self._stored_numbers(numbers)]
            rows = np.zeros(len(slab), np.int64)
            for component, axis in enumerate(self._axes):
                size = self._row_shape[axis]
                coordinates = bounds.normalized_indices(slab[:, component], size, self._handling)
                # clip dropped indices: any block will do
                rows += coordinates.clip(0, size - 1) // steps[axis] * strides[axis]
            for axis, size in enumerate(self._row_shape):
                if axis not in self._axes and steps[axis] < size:
                    coordinates = numbers // pitches[axis] % self._positions[axis]
                    rows += coordinates // steps[axis] * strides[axis]
            marks.add(rows // granule)
        return marks


class Marks:
    """A set of numbers below `count`: an array of flags, or a sorted list if that is too large."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._flags: NDArray[np.bool_] | None = None
        self._batches: list[Any] = []
        self._merged = self._waiting = 0

    def add(self, numbers: Numbers) -> None:
        """Add numbers to the set."""
        import numpy as np

        if self._count <= FLAGS:
            if self._flags is None:
                self._flags = np.zeros(self._count, np.bool_)
            self._flags[numbers] = True
            return
        self._batches.append(np.unique(numbers))
        self._waiting += len(self._batches[-1])
        if self._waiting > max(self._merged, SLAB):
            self._merge()

    def ascending(self) -> Iterator[list[int]]:
        """Yield all numbers, ascending, in batches."""
        import numpy as np

        if self._flags is not None:
            for first in range(0, self._count, SLAB):
                flags = self._flags[first : first + SLAB]
                yield (np.flatnonzero(flags) + first).tolist()
        elif self._batches:
            self._merge()
            (sorted_numbers,) = self._batches
            for first in range(0, len(sorted_numbers), SLAB):
                yield sorted_numbers[first : first + SLAB].tolist()

    def _merge(self) -> None:
        import numpy as np

        self._batches = [np.unique(np.concatenate(self._batches))]
        self._merged, self._waiting = len(self._batches[0]), 0
