"""Elements to which updates are applied in several calls, with the bits of a single call."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import UpdateCounts
from ndtool.analysis import values
from ndtool.engine import counting
from ndtool.inmemory import ops
from ndtool.inmemory.buffers import as_bytes
from ndtool.rules.dtypes import from_numpy
from ndtool.rules.operators import Attributes
from ndtool.rules.reductions import ADD, REDUCTIONS
from ndtool.rules.shapes import format_shape
from ndtool.runs.calls import OpenCall

Array = NDArray[Any]


class RunningValues:
    """A vector of elements, and the count of updates that each has received."""

    def __init__(self, elements: Array, attributes: Attributes) -> None:
        self._sums, self._attributes = elements, attributes
        self._counts = np.zeros(len(elements), np.uint64)

    def apply(self, targets: Array, updates: Array) -> None:
        """Apply updates in order; targets: the index of the element of each."""
        attributes = self._attributes
        reduction: Any = ADD if attributes.is_mean else attributes.reduction
        duplicates: Any = attributes.duplicates
        is_first = np.full(len(targets), False)
        if attributes.copies_first_update:
            is_first = self._counts[targets] == 0
        for mask, include_self in ((is_first, False), (~is_first, True)):
            if mask.any() and not (include_self and duplicates == "first"):
                selected = values.as_void(updates)[mask].view(updates.dtype)  # with padding
                self._sums = ops.scatter_nd(
                    self._sums, targets[mask][:, None], selected, reduction, threads=1,
                    include_self=include_self, duplicates=duplicates,
                )  # fmt: skip
        self._counts = self._counts + np.bincount(targets, minlength=len(self._sums)).astype(
            np.uint64
        )

    def values(self) -> Array:
        """Return the elements that a run with the updates so far would write."""
        if not self._attributes.is_mean:
            return self._sums
        dtype = self._sums.dtype
        sums = self._sums.astype(dtype.newbyteorder("="))
        counts = UpdateCounts(as_bytes(self._counts), self._counts.itemsize)
        element_type = from_numpy(sums.dtype)
        counting.divide_sums(
            self._attributes, counts, as_bytes(sums), element_type.itemsize, element_type, 1
        )
        return sums.astype(dtype)


def rounding_advice(call: OpenCall) -> list[str]:
    """Return a line on sums in a type of 16 bits, with the commands that sum in float32."""
    inference = call.inference
    limit = {"float16": 2048, "bfloat16": 256}.get(inference.dtype.name)
    attributes = inference.attributes
    is_sum = REDUCTIONS[attributes.reduction].kind in ("sum", "difference")
    if limit is None or not is_sum or attributes.is_mean:
        return []
    command, reduction = inference.operator.replace("_", "-"), attributes.reduction
    shape = format_shape(inference.inputs["data"].shape)
    return [
        f"each update rounds to {inference.dtype.name}: a sum of ones ends at {limit}. In float32:"
        f" ndtool convert UPDATES upd.csv, then ndtool {command} zeros:float32{shape} INDICES"
        f" upd.csv --reduction {reduction}"
    ]
