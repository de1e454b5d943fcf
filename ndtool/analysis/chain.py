"""The value of one element of a scatter's output while its updates are applied, in order.

The kernels apply them, so that values are those of a run.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import ops
from ndtool.analysis import values
from ndtool.analysis.oracle.reductions import accumulator, mean, native
from ndtool.rules.reductions import Combining

Array = NDArray[Any]


class Chain(NamedTuple):
    """An element after some updates.

    alone: the value while it has no more than one summand, shape (1,). total: the running value; of
    a mean the sum, in the type of sums. count: the number of updates so far.
    """

    combining: Combining
    alone: Array
    total: Array
    count: int = 0

    @classmethod
    def begin(cls, combining: Combining, old: Array) -> Chain:
        """Return the element before all updates."""
        alone = old.reshape(1)
        total = native(alone).astype(_summed(alone)) if combining.reduction == "mean" else alone
        return cls(combining, alone, total)

    @property
    def value(self) -> Array:
        """The value of the element, a 0-d array."""
        summands = self.count + self.combining.include_self
        if self.combining.reduction != "mean":
            return self.total[0, ...]
        if not self.count or summands < 2:
            return self.alone[0, ...]
        with np.errstate(all="ignore"):
            whole = mean(self.total, np.array([summands]), native(self.alone).dtype)
        return whole.astype(self.alone.dtype)[0, ...]

    def after(self, updates: Array) -> Chain:
        """Return the element after some more updates."""
        if not len(updates):
            return self
        there = np.zeros((len(updates), 1), np.int64)
        return self._next(self._applied(self.total, there, updates), updates)

    def each(self, updates: Array) -> list[Chain]:
        """Return the element after each of some more updates.

        A run returns only the last value. So each result gets an element of its own, to which all
        updates up to its own are applied.
        """
        update, result = np.triu_indices(len(updates))
        before = np.repeat(values.opaque(self.total), len(updates)).view(self.total.dtype)
        taken = values.opaque(updates)[update].view(updates.dtype)
        totals = self._applied(before, result[:, None], taken)
        return [self._next(totals[n : n + 1], updates[: n + 1]) for n in range(len(updates))]

    def _next(self, total: Array, updates: Array) -> Chain:
        copied = not self.count and not self.combining.include_self
        alone = updates[:1].astype(self.alone.dtype, copy=False) if copied else self.alone
        return Chain(self.combining, alone, total, self.count + len(updates))

    def _applied(self, totals: Array, there: Array, updates: Array) -> Array:
        """Return totals after updates: `updates` applied at `there`."""
        loop, begun = self.combining.loop, self.count > 0
        if loop == "first" and begun:
            return totals
        if loop == "mean":
            updates = native(updates).astype(_summed(self.alone))
        reduction: Any = {"mean": "add", "first": "none"}.get(loop, loop)
        applied: Array = ops.scatter_nd(
            totals, there, updates, reduction, threads=1,
            include_self=begun or self.combining.include_self,
            duplicates="first" if loop == "first" else "last",
        )  # fmt: skip
        return applied


def _summed(alone: Array) -> np.dtype[Any]:
    """Return the type in which a mean of elements is summed."""
    return accumulator(native(alone).dtype)
