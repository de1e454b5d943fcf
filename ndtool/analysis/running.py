"""Elements to which updates are applied in several calls, with the bits of a single call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import UpdateCounts
from ndtool.analysis import values
from ndtool.engine.counting import ReductionOptions
from ndtool.inmemory import ops
from ndtool.inmemory.buffers import raw
from ndtool.rules.dtypes import from_numpy
from ndtool.rules.reductions import REDUCTIONS

Array = NDArray[Any]


class RunningValues:
    """Elements along one axis, and how many updates each has received."""

    def __init__(
        self,
        elements: Array,
        reduction_options: ReductionOptions,
        counts: NDArray[np.uint64] | None = None,
    ) -> None:
        self._sums, self._reduction_options = elements, reduction_options
        self._counts = np.zeros(len(elements), np.uint64) if counts is None else counts

    def apply(self, at: Array, updates: Array) -> None:
        """Apply updates, in order, to the elements numbered `at`."""
        reduction_options = self._reduction_options
        step: Any = (
            "add" if REDUCTIONS[reduction_options.reduction].counts else reduction_options.reduction
        )
        duplicates: Any = reduction_options.duplicates
        fresh = np.full(len(at), False)
        if reduction_options.copies_first_update:
            fresh = self._counts[at] == 0
        for selection, include_self in ((fresh, False), (~fresh, True)):
            if selection.any() and not (include_self and duplicates == "first"):
                selected = values.as_void(updates)[selection].view(updates.dtype)  # with padding
                self._sums = ops.scatter_nd(
                    self._sums, at[selection][:, None], selected, step, threads=1,
                    include_self=include_self, duplicates=duplicates,
                )  # fmt: skip
        self._counts = self._counts + np.bincount(at, minlength=len(self._sums)).astype(np.uint64)

    def values(self) -> Array:
        """Return the output of a run with the updates so far."""
        if not REDUCTIONS[self._reduction_options.reduction].counts:
            return self._sums
        dtype = self._sums.dtype
        sums = self._sums.astype(dtype.newbyteorder("="))
        counts = UpdateCounts(
            raw(self._counts), self._counts.itemsize, self._reduction_options.copies_first_update
        )
        kind = from_numpy(sums.dtype)
        self._reduction_options.divide_sums(counts, raw(sums), kind.itemsize, kind, 1)
        return sums.astype(dtype)

    def repeated(self, times: int) -> RunningValues:
        """Return copies of a single element, which has as many numbers."""
        copies = np.repeat(values.as_void(self._sums), times).view(self._sums.dtype)
        return RunningValues(copies, self._reduction_options, np.repeat(self._counts, times))

    def element(self, n: int) -> RunningValues:
        """Return a single element."""
        return RunningValues(
            self._sums[n : n + 1], self._reduction_options, self._counts[n : n + 1]
        )
