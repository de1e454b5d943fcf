"""ONNX TensorScatter on NumPy arrays: a scatter along an axis, with computed indices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.errors import BoundsError
from ndtool.inmemory.arguments import (
    array,
    element_type,
    index_array,
    integer,
    require_no_overlap,
    string,
)
from ndtool.rules import tensorscatter as rules
from ndtool.rules.operators import Attributes
from ndtool.rules.tensorscatter import Lowering

Array = NDArray[Any]
_PART = 1 << 20  # write indices that are checked together


def lower(
    past: Any, write_indices: Any, update: Any, out: Any, _: str, threads: Any, spec: Any,
    *values: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Return the arguments of the scatter that a call becomes; values: its attributes."""
    attributes = Attributes(*values)
    axis, mode = attributes.axis, attributes.mode
    inputs = {"past": past, "update": update}
    if write_indices is not None:
        inputs["write_indices"] = write_indices
    arrays = {
        role: index_array(value, name=role) if role == "write_indices" else array(role, value)
        for role, value in inputs.items()
    }
    types = {role: element_type(role, value.dtype) for role, value in arrays.items()}
    rules.accept(string("spec", spec), types, string("mode", mode))
    sizes = {role: value.shape for role, value in arrays.items()}
    lowering = rules.infer(sizes, integer("axis", axis))[1]
    positions = arrays.get("write_indices", np.broadcast_to(np.int64(0), lowering.batch))
    require_bounds(lowering, positions, mode)
    if out is not None:
        require_no_overlap(array("out", out), **{n: arrays[n] for n in arrays if n != "past"})
    scatter_call = "scatter", threads, "ndtool", *Attributes(batch_dims=1, axis=lowering.axis)
    indices = scatter_indices(lowering, positions, mode, (0, lowering.length))
    return past, indices, arrays["update"], out, *scatter_call


def index_type(lowering: Lowering) -> str:
    """Return the type of the computed indices, which holds the sum of two of them."""
    return "int32" if lowering.size < 1 << 30 else "int64"


def scatter_indices(
    lowering: Lowering, write_indices: Array, mode: str, columns: tuple[int, int]
) -> Array:
    """Return the indices of the scatter for some batches, in a range of columns; shape (B, n).

    Only the index along the axis is taken modulo its size, as in the standard's prose. Older texts
    of its pseudocode take all coordinates modulo the size, the batch included. In linear mode,
    indices do not wrap around.
    """
    dtype: Any = np.dtype(index_type(lowering)).type
    if mode == "circular":
        integer_type = np.uint64 if write_indices.dtype.kind == "u" else np.int64
        write_indices = write_indices.astype(integer_type) % integer_type(max(lowering.size, 1))
    firsts = write_indices.astype(dtype)[:, None]
    indices: Array = firsts + np.arange(*columns, dtype=dtype)
    if lowering.length and firsts.max(initial=0) > lowering.size - lowering.length:
        np.remainder(indices, dtype(lowering.size), out=indices)
    return indices


def require_bounds(lowering: Lowering, write_indices: Array, mode: str) -> None:
    """Raise BoundsError if a write index is out of bounds; in circular mode, none is."""
    size, length, count, first = lowering.size, lowering.length, 0, -1
    for start in range(0, len(write_indices) if mode == "linear" else 0, _PART):
        part = write_indices[start : start + _PART]
        positions = np.flatnonzero((part < 0) | (part > size - length))
        count += len(positions)
        if first < 0 and len(positions):
            first = start + int(positions[0])
    if not count:
        return
    error = BoundsError(
        position=(first,), axis=lowering.axis, value=int(write_indices[first]), size=size,
        count=count, total=len(write_indices), lowest=0, length=length,
    )  # fmt: skip
    error.name("write_indices", "past")
    error.hint = ""  # the hint about negative indices is for other operators
    raise error
