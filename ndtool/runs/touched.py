"""Which parts of data a gather comes to, told by its indices before anything of data is read.

Needed only where data cannot be mapped where they stand: then NumPy walks over the indices, in
slabs. What comes out may be a little more than is touched, never less.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from ndtool.arrays import grid
from ndtool.engine import layouts
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import ElementsPlan, Plan, Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

SLAB = 1 << 18  # index components that are looked at together
GRANULE = 1 << 16  # bytes that are told apart where they stand together
FLAGS = 1 << 25  # numbers up to which each has a flag of its own


class Gathered:
    """What a gather touches.

    indices: bytes in row-major order of the type `dtype`. rule: for those out of bounds.
    """

    def __init__(self, plan: Plan, indices: memoryview, dtype: Dtype, rule: str = "error") -> None:
        self._plan, self._indices, self._rule = plan, indices, rule
        self._code = f"{dtype.order}{dtype.kind}{dtype.itemsize}"
        if isinstance(plan, ElementsPlan):
            self._lead: Shape = plan.data
            self._run: Shape = ()
            self._axes: tuple[int, ...] = (plan.axis,)
            self._positions = plan.indices
        else:
            b = len(plan.batch)
            self._lead, self._run = plan.data[: b + plan.k], plan.run
            self._axes = tuple(range(b, b + plan.k))
            self._positions = plan.batch + plan.indices if plan.repeated else plan.positions
        self._cut: Shape | None = None
        self._marks: Marks | None = None

    def blocks(self, step: Shape) -> Iterator[int]:
        """Yield the numbers of the blocks of a grid that hold what is touched, ascending."""
        along = grid.blocks_along(self._plan.data, step)
        lead = len(self._lead)
        if self._marks is None or self._cut != step:
            strides = layouts.contiguous(along[:lead], 1)
            self._marks = self._marked(step[:lead], strides, 1, prod(along[:lead]))
            self._cut = step
        each = prod(along[lead:])  # a run goes through all blocks of its axes
        for numbers in self._marks.ascending():
            for number in numbers:
                yield from range(number * each, (number + 1) * each)

    def ranges(self, itemsize: int, order: str) -> Iterator[tuple[int, int]]:
        """Yield where the bytes that are touched begin and stop, ascending, none twice.

        order: "C" or "F", how the elements of data follow each other.
        """
        fortran = order == "F"
        width = prod(self._run)
        item = itemsize if fortran else itemsize * width  # bytes that belong together
        if not item:
            return
        lead = prod(self._lead)
        granule = max(1, GRANULE // item)
        strides = layouts.contiguous(self._lead, 1, fortran)
        ones = (1,) * len(self._lead)
        marks = self._marked(ones, strides, granule, -(-lead // granule))
        first = stop = 0
        for turn in range(width if fortran else 1):
            for numbers in marks.ascending():
                for number in numbers:
                    at = (turn * lead + number * granule) * item
                    if at != stop:
                        if stop > first:
                            yield first, stop
                        first = at
                    stop = (turn * lead + min(lead, (number + 1) * granule)) * item
        if stop > first:
            yield first, stop

    def _marked(self, cut: Shape, strides: Shape, granule: int, count: int) -> Marks:
        """Mark places // granule of all tuples: the sum of strides times coordinates // cut."""
        marks = Marks(count)
        if not prod(self._plan.output) or not prod(self._plan.data):
            return marks
        import numpy as np

        from ndtool.runs import within

        k, tuples = len(self._axes), prod(self._positions)
        values = np.frombuffer(self._indices, self._code).reshape(-1, k)
        pitches = layouts.contiguous(self._positions, 1)
        step = max(1, SLAB // k)
        for first in range(0, tuples, step):
            numbers = np.arange(first, min(first + step, tuples))
            slab = values[numbers % len(values)]  # every batch of a plan that repeats them
            places = np.zeros(len(slab), np.int64)
            for component, axis in enumerate(self._axes):
                size = self._lead[axis]
                along = within.within(slab[:, component], size, self._rule)
                # one that names nothing may touch anything; one changed since is found in the run
                places += along.clip(0, size - 1) // cut[axis] * strides[axis]
            for axis, size in enumerate(self._lead):
                if axis not in self._axes and cut[axis] < size:
                    along = numbers // pitches[axis] % self._positions[axis]
                    places += along // cut[axis] * strides[axis]
            marks.add(places // granule)
        return marks


class Marks:
    """Numbers below `count`, each of them once: flags, or where they would be too many a list."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._flags: NDArray[np.bool_] | None = None
        self._known: list[Any] = []
        self._merged = self._waiting = 0

    def add(self, numbers: Numbers) -> None:
        """Mark numbers."""
        import numpy as np

        if self._count <= FLAGS:
            if self._flags is None:
                self._flags = np.zeros(self._count, np.bool_)
            self._flags[numbers] = True
            return
        self._known.append(np.unique(numbers))
        self._waiting += len(self._known[-1])
        if self._waiting > max(self._merged, SLAB):
            self._merge()

    def ascending(self) -> Iterator[list[int]]:
        """Yield all marked numbers, some at a time."""
        import numpy as np

        if self._flags is not None:
            for first in range(0, self._count, SLAB):
                flags = self._flags[first : first + SLAB]
                yield (np.flatnonzero(flags) + first).tolist()
        elif self._known:
            self._merge()
            (known,) = self._known
            for first in range(0, len(known), SLAB):
                yield known[first : first + SLAB].tolist()

    def _merge(self) -> None:
        import numpy as np

        self._known = [np.unique(np.concatenate(self._known))]
        self._merged, self._waiting = len(self._known[0]), 0
