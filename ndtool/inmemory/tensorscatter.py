"""ONNX TensorScatter on NumPy arrays: a scatter along an axis, with computed indices."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.errors import BoundsError, RuleError
from ndtool.inmemory import calls
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


def tensor_scatter(
    call: tuple[Any, ...], past: Any, write_indices: Any, update: Any, out: Any
) -> Any:
    """Write update into a copy of past; call: (name, threads, spec, *attributes)."""
    result = calls.COMPILED.execute(call, past, write_indices, update, out)
    if result is not None:
        return result
    _, threads, spec, *values = call
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
    try:
        lowering = rules.infer(sizes, integer("axis", axis))[1]
    except RuleError as error:
        from ndtool import notebook

        notebook.use_notebook_trace(error)
        raise
    starts = start_positions(lowering, arrays.get("write_indices"), mode)
    if out is not None:
        require_no_overlap(array("out", out), **{n: arrays[n] for n in arrays if n != "past"})
    scatter_call = "scatter", threads, "ndtool", *Attributes(batch_dims=1, axis=lowering.axis)
    indices = scatter_indices(lowering, starts)
    return calls.COMPILED.call(scatter_call, past, indices, arrays["update"], out)


def start_positions(lowering: Lowering, write_indices: Array | None, mode: str) -> Array:
    """Return the first index of each batch along the axis; BoundsError if one is invalid."""
    if write_indices is None:
        return np.zeros(lowering.batch, np.int64)
    if mode == "linear":
        _require_bounds(lowering, write_indices)
        return write_indices.astype(np.int64)
    integer_type = np.uint64 if write_indices.dtype.kind == "u" else np.int64
    return (write_indices.astype(integer_type) % integer_type(max(lowering.size, 1))).astype(
        np.int64
    )


def scatter_indices(lowering: Lowering, firsts: Array) -> Array:
    """Return the indices of the scatter, shape (B, n).

    Only the index along the axis is taken modulo its size, as in the standard's prose. Older texts
    of its pseudocode take all coordinates modulo the size, the batch included. In linear mode,
    indices do not wrap around.
    """
    dtype: Any = np.int32 if lowering.size < 1 << 30 else np.int64  # holds sums of two indices
    indices: Array = firsts.astype(dtype)[:, None] + np.arange(lowering.length, dtype=dtype)
    if lowering.length and firsts.max(initial=0) > lowering.size - lowering.length:
        np.remainder(indices, dtype(lowering.size), out=indices)
    return indices


def _require_bounds(lowering: Lowering, write_indices: Array) -> None:
    size, length = lowering.size, lowering.length
    is_invalid = (write_indices < 0) | (write_indices > size - length)
    if not is_invalid.any():
        return
    position = int(is_invalid.argmax())
    error = BoundsError(
        position=(position,), axis=lowering.axis, value=int(write_indices[position]), size=size,
        count=int(is_invalid.sum()), total=len(write_indices), lowest=0, length=length,
    )  # fmt: skip
    error.name("write_indices", "past")
    error.hint = ""  # the hint about negative indices is for other operators
    raise error
