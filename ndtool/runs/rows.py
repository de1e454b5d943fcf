"""Which row of data each index tuple names, in NumPy, some tuples at a time.

A row is what one tuple names: some bytes of row-major data, side by side. With rows all operators
are alike: tuples in order, a row of data for each.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool.engine import layouts
from ndtool.rules.dtypes import Dtype
from ndtool.rules.inference import Inference
from ndtool.rules.shapes import ElementsPlan, Plan, Shape

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]


class Rows(NamedTuple):
    """The index tuples of a plan, each with a row of data.

    dtype: of the indices; negatives: whether they count from the end. tuples: how many there are.
    height: rows of data; width: bytes of one.
    """

    plan: Plan
    dtype: Dtype
    negatives: bool
    tuples: int
    height: int
    width: int

    @property
    def sizes(self) -> Shape:
        """How long the axes are that the components of a tuple index."""
        plan = self.plan
        return (plan.data[plan.axis],) if isinstance(plan, ElementsPlan) else plan.sizes

    @property
    def entry(self) -> int:
        """Bytes of the components of a tuple."""
        return len(self.sizes) * self.dtype.itemsize

    def stored(self, first: int, count: int) -> Iterator[tuple[int, int]]:
        """Yield where the bytes of tuples [first, first + count) begin and stop."""
        plan, entry = self.plan, self.entry
        per = count + first
        if not isinstance(plan, ElementsPlan) and plan.repeated:
            per = plan.per_batch  # every batch has the same tuples, which stand there once
        while count:
            at = first % per
            n = min(count, per - at)
            yield at * entry, (at + n) * entry
            first, count = first + n, count - n

    def of(self, first: int, stored: memoryview) -> Numbers | None:
        """Return the rows of tuples from `first` on; None if an index is out of bounds."""
        import numpy as np

        plan, sizes = self.plan, self.sizes
        code = f"{self.dtype.order}{self.dtype.kind}{self.dtype.itemsize}"
        values = np.frombuffer(stored, code).reshape(-1, len(sizes))
        numbers = np.arange(first, first + len(values))
        if isinstance(plan, ElementsPlan):
            strides = layouts.contiguous(plan.data, 1)
            steps, others = strides[plan.axis : plan.axis + 1], _others(plan, strides)
        else:
            steps = layouts.contiguous(sizes, 1)
            others = [(plan.per_batch, prod(plan.batch), prod(sizes))] if plan.batch else []
        rows = np.zeros(len(values), np.int64)
        for component, (size, step) in enumerate(zip(sizes, steps, strict=True)):
            along = self._along(values[:, component], size)
            if along is None:
                return None
            rows += along * step
        for pitch, size, step in others:
            along = numbers // pitch
            rows += (along - along // size * size) * step
        return rows

    def _along(self, values: NDArray[np.integer], size: int) -> Numbers | None:
        """Return indices along an axis, counted from its front; None if one is out of bounds."""
        import numpy as np

        if self.dtype.kind == "u" and int(values.max()) >= size:
            return None
        along = values.astype(np.int64)
        if self.negatives:
            along += (along >> 63) & size
        return None if int(along.view(np.uint64).max()) >= size else along


def _others(plan: ElementsPlan, strides: layouts.Strides) -> list[tuple[int, int, int]]:
    """Return how positions in indices step through data off the axis: (positions, size, rows)."""
    a, shape = plan.axis, plan.indices
    found, pitch = [], 1
    for part in (slice(a + 1, None), slice(a, a + 1), slice(0, a)):
        sizes, steps = layouts.merge(shape[part], strides[part])
        for size, step in zip(reversed(sizes), reversed(steps), strict=True):
            if part.start != a:
                found.append((pitch, size, step))
            pitch *= size
    return found


def rows_of(inference: Inference) -> Rows:
    """Return the index tuples of a call."""
    plan, itemsize = inference.plan, inference.dtype.itemsize
    indices, negatives = inference.inputs["indices"].dtype, inference.row.negatives
    if isinstance(plan, ElementsPlan):
        return Rows(plan, indices, negatives, prod(plan.indices), prod(plan.data), itemsize)
    height = prod(plan.batch) * prod(plan.sizes)
    return Rows(plan, indices, negatives, plan.tuples, height, plan.width * itemsize)
