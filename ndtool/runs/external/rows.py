"""The rows of a call: the slices that index tuples select, described alike for all operators."""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ndtool.engine import counting
from ndtool.rules.inference import Inference
from ndtool.rules.plans import ElementsPlan, Shape
from ndtool.rules.reductions import combining_identity


class Rows(NamedTuple):
    """The index tuples and the rows of data of a call.

    tuples: the number of tuples. tuple_bytes: bytes of a tuple. shape: the axes of rows. width:
    bytes of a row. drops: whether tuples may be dropped. period, repeats: the number of tuples of a
    batch, and of consecutive batches that share stored tuples. count_bytes: bytes of the count of a
    row's updates, 0 if updates are not counted. combines: whether updates can be combined in any
    order before they are applied.
    """

    tuples: int
    tuple_bytes: int
    shape: Shape
    width: int
    drops: bool = False
    period: int = 1
    repeats: int = 1
    count_bytes: int = 0
    combines: bool = False

    @property
    def row_count(self) -> int:
        """The number of rows of data."""
        return prod(self.shape)

    def stored_index(self, tuple_index: int) -> int:
        """Return the index of a tuple among the stored tuples."""
        if self.repeats == 1:
            return tuple_index
        return tuple_index // (self.repeats * self.period) * self.period + tuple_index % self.period

    def count_stored(self, tuple_index: int) -> int:
        """Return how many stored tuples occur before tuple `tuple_index`."""
        if self.repeats == 1:
            return tuple_index
        group, offset = divmod(tuple_index, self.repeats * self.period)
        return group * self.period + min(offset, self.period)


def rows_of(inference: Inference, flat: bool = True) -> Rows:
    """Return the rows of a call; flat: whether to merge the axes of rows into one."""
    plan, itemsize = inference.plan, inference.dtype.itemsize
    size = inference.inputs["indices"].dtype.itemsize
    drops = plan.attributes.may_skip_tuples
    if isinstance(plan, ElementsPlan):
        rows = Rows(prod(plan.indices), size, plan.data, itemsize, drops)
    else:
        shape = plan.batch + plan.sizes
        entry, width = plan.k * size, plan.width * itemsize
        rows = Rows(
            plan.tuples, entry, shape, width, drops, plan.tuples_per_batch, plan.batch_repeats
        )
    dtype, attributes = inference.dtype, plan.attributes
    identity_element = (
        combining_identity(dtype, attributes.reduction) if inference.scatters else b""
    )
    return rows._replace(
        shape=(rows.row_count,) if flat else rows.shape,
        count_bytes=counting.count_itemsize(attributes, rows.tuples, rows.width),
        combines=bool(identity_element) and dtype.kind in "iu" and not attributes.is_counted,
    )
