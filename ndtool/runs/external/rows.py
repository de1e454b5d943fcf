"""A call in rows: the slices that index tuples select, in which all operators are alike."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ndtool.engine.counting import ReductionOptions
from ndtool.rules.inference import Inference
from ndtool.rules.plans import ElementsPlan, Shape
from ndtool.rules.reductions import identity


class Rows(NamedTuple):
    """A call in rows: the index tuples and the rows of data.

    tuples: their number. tuple_bytes: bytes of a tuple. over: the shape of the axes that number the
    rows. width: bytes of a row. drops: whether tuples may be dropped. period, repeats: the tuples
    of a batch, and how many successive batches share them, stored once. count_bytes: bytes of the
    number of a row's updates, 0 if they are not counted. combines: whether updates can be combined
    before they are applied, in any order.
    """

    tuples: int
    tuple_bytes: int
    over: Shape
    width: int
    drops: bool = False
    period: int = 1
    repeats: int = 1
    count_bytes: int = 0
    combines: bool = False

    @property
    def height(self) -> int:
        """The number of rows of data."""
        return prod(self.over)

    def stored(self, number: int) -> int:
        """Return the number of a tuple among those stored."""
        if self.repeats == 1:
            return number
        return number // (self.repeats * self.period) * self.period + number % self.period

    def stored_before(self, number: int) -> int:
        """Return how many stored tuples occur before a tuple."""
        if self.repeats == 1:
            return number
        group, rest = divmod(number, self.repeats * self.period)
        return group * self.period + min(rest, self.period)


def rows_of(inference: Inference, flat: bool = True) -> Rows:
    """Return a call in rows; flat: whether to number the rows along one axis."""
    plan, itemsize = inference.plan, inference.dtype.itemsize
    size = inference.inputs["indices"].dtype.itemsize
    drops = inference.handling.skips
    if isinstance(plan, ElementsPlan):
        rows = Rows(prod(plan.indices), size, plan.data, itemsize, drops)
    else:
        over = plan.batch + plan.sizes
        entry, width = plan.k * size, plan.width * itemsize
        rows = Rows(plan.tuples, entry, over, width, drops, plan.per_batch, plan.repeats)
    reduction_options, dtype = (
        ReductionOptions.from_attributes(inference.attributes),
        inference.dtype,
    )
    neutral = identity(dtype, reduction_options.reduction) if inference.scatters else b""
    return rows._replace(
        over=(rows.height,) if flat else rows.over,
        count_bytes=reduction_options.count_itemsize(rows.tuples, rows.width),
        combines=bool(neutral) and dtype.kind in "iu" and not reduction_options.is_counted,
    )
