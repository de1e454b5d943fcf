"""Running values: elements to which updates are applied in several calls, as one call does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool import ops
from ndtool._kernels import UpdateCounts
from ndtool.analysis import values
from ndtool.buffers import raw
from ndtool.engine.counting import Combining
from ndtool.rules.dtypes import from_numpy
from ndtool.rules.operators import Attributes
from ndtool.rules.reductions import REDUCTIONS

Array = NDArray[Any]


class Running:
    """Elements, and how many updates each has received.

    elements: of one axis. attributes: the reduction, and whether the old values take part.
    """

    def __init__(
        self, elements: Array, attributes: Attributes, counts: NDArray[np.uint64] | None = None
    ) -> None:
        self._sums, self._attributes = elements, attributes
        self._counts = np.zeros(len(elements), np.uint64) if counts is None else counts

    def apply(self, at: Array, updates: Array) -> None:
        """Apply updates, in order, to the elements with these numbers."""
        reduction, include_self = self._attributes.reduction, self._attributes.include_self
        step: Any = "add" if REDUCTIONS[reduction].counts else reduction
        first = np.full(len(at), False) if include_self else self._counts[at] == 0
        for some, included in ((first, False), (~first, True)):
            if some.any():
                self._sums = ops.scatter_nd(
                    self._sums, at[some][:, None], updates[some], step, include_self=included,
                    threads=1,
                )  # fmt: skip
        self._counts = self._counts + np.bincount(at, minlength=len(self._sums)).astype(np.uint64)

    def values(self) -> Array:
        """Return what a run would that ended workdir."""
        reduction, include_self = self._attributes.reduction, self._attributes.include_self
        if not REDUCTIONS[reduction].counts:
            return self._sums
        dtype = self._sums.dtype
        sums = self._sums.astype(dtype.newbyteorder("="))
        counts = UpdateCounts(raw(self._counts), self._counts.itemsize, include_self)
        combining, kind = Combining(reduction, include_self), from_numpy(sums.dtype)
        combining.divide(counts, raw(sums), kind.itemsize, kind, 1)
        return sums.astype(dtype)

    def repeated(self, times: int) -> Running:
        """Return copies of a single element, which has as many numbers."""
        copies = np.repeat(values.opaque(self._sums), times).view(self._sums.dtype)
        return Running(copies, self._attributes, np.repeat(self._counts, times))

    def one(self, n: int) -> Running:
        """Return a single one of the elements."""
        return Running(self._sums[n : n + 1], self._attributes, self._counts[n : n + 1])
