"""ONNX TensorScatter on NumPy arrays: a scatter along an axis, with computed indices."""

from __future__ import annotations

from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndtool.errors import BoundsError, RuleError
from ndtool.inmemory import ops
from ndtool.inmemory.arguments import array, integer, require_apart, type_of, word
from ndtool.literals import Tensor, WriteMode
from ndtool.rules import tensorscatter as rules
from ndtool.rules.tensorscatter import Lowering

Array = NDArray[Any]
__all__ = ["tensor_scatter"]


def tensor_scatter(
    past: Any,
    update: ArrayLike | Tensor,
    write_indices: ArrayLike | Tensor | None = None,
    axis: SupportsIndex = rules.AXIS,
    mode: WriteMode = "linear",
    *,
    out: Any = None,
    threads: int | None = None,
    spec: str = "ndtool",
) -> Any:
    """Copy past, and write update along an axis, from an index of each batch (ONNX TensorScatter).

    past: shape (B, .., s, ..), rank r >= 2, any fixed-size dtype: a key or value cache. update:
    past's dtype and shape, but for the axis, where it has n <= s. write_indices: shape (B,), any
    integer dtype; the index along the axis of update's first element in each batch; zeros if None.
    axis: -r..r-1, not the batch axis 0. mode: "linear", where 0 <= write_indices <= s - n, or
    "circular", where every index is taken modulo s. out: an array that receives the result;
    `out=past` updates in place. threads: 1..1024, default all processors. spec: the standard to
    validate against, "ndtool" or "onnx:N".

    Returns an array of past's dtype and shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> tensor_scatter([[[1], [2], [3]]], [[[8], [9]]], [2], mode="circular")
    array([[[9],
            [2],
            [8]]])
    """
    inputs = {"past": past, "update": update}
    if write_indices is not None:
        inputs["write_indices"] = write_indices
    arrays = {role: array(role, value) for role, value in inputs.items()}
    types = {role: type_of(role, value.dtype) for role, value in arrays.items()}
    rules.accept(spec, types, word("mode", mode))
    sizes = {role: value.shape for role, value in arrays.items()}
    try:
        lowering = rules.infer(sizes, integer("axis", axis))[1]
    except RuleError as error:
        from ndtool import notebook

        notebook.use_notebook_trace(error)
        raise
    firsts = first_positions(lowering, arrays.get("write_indices"), mode)
    if out is not None:
        require_apart(array("out", out), **{n: arrays[n] for n in arrays if n != "past"})
    update = arrays["update"]
    if lowering.length <= 1 or update.dtype.names is not None:  # a structure's padding is moved
        indices = positions(lowering, firsts)
        return ops.scatter(
            past, indices, update, lowering.axis, batch_dims=1, out=out, threads=threads
        )
    empty, indices = (slice(None),) * lowering.axis + (slice(0),), firsts[:, None][:, :0]
    result = ops.scatter(
        past, indices, update[empty], lowering.axis, batch_dims=1, out=out, threads=threads
    )
    _write(array("out", result), update, lowering, firsts)
    return result


def _write(out: Array, update: Array, lowering: Lowering, firsts: Array) -> None:
    """Write the update of each batch in one or two slices, 200 times as fast as by indices."""
    out, update = (np.moveaxis(one, lowering.axis, 1) for one in (out, update))
    for batch, first in enumerate(firsts.tolist()):
        fits = min(lowering.size - first, lowering.length)
        out[batch, first : first + fits] = update[batch, :fits]
        out[batch, : lowering.length - fits] = update[batch, fits:]


def first_positions(lowering: Lowering, write_indices: Array | None, mode: str) -> Array:
    """Return the first index of each batch along the axis; BoundsError if one is invalid."""
    if write_indices is None:
        return np.zeros(lowering.batch, np.int64)
    if mode == "linear":
        _require_bounds(lowering, write_indices)
        return write_indices.astype(np.int64)
    wide = np.uint64 if write_indices.dtype.kind == "u" else np.int64
    return (write_indices.astype(wide) % wide(max(lowering.size, 1))).astype(np.int64)


def positions(lowering: Lowering, firsts: Array) -> Array:
    """Return the indices of the scatter, shape (B, n).

    Only the position along the axis is taken modulo its length, as in the standard's prose. Older
    texts of its pseudocode take the whole position modulo, the batch included. An update that fits
    in linear mode does not go round the end.
    """
    indices = firsts[:, None] + np.arange(lowering.length)
    indices[indices >= lowering.size] -= lowering.size
    return indices


def _require_bounds(lowering: Lowering, write_indices: Array) -> None:
    size, length = lowering.size, lowering.length
    bad = (write_indices < 0) | (write_indices > size - length)
    if not bad.any():
        return
    position = int(bad.argmax())
    error = BoundsError(
        position=(position,), axis=lowering.axis, value=int(write_indices[position]), size=size,
        count=int(bad.sum()), total=len(write_indices), lowest=0, length=length,
    )  # fmt: skip
    error.name("write_indices", "past")
    error.hint = ""  # the hint about negative indices is for other operators
    raise error
