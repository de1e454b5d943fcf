"""The operators on NumPy arrays."""

from __future__ import annotations

from typing import Any, SupportsIndex, TypeVar, Unpack, overload

from numpy.typing import ArrayLike, NDArray

from ndtool.inmemory import calls
from ndtool.literals import (
    BatchedGatherOptions,
    BatchedScatterOptions,
    Duplicates,
    GatherMode,
    GatherOptions,
    Reduction,
    ScatterMode,
    ScatterOptions,
    Tensor,
)  # fmt: skip

Array = NDArray[Any]
__all__ = ["gather", "gather_elements", "gather_nd", "scatter", "scatter_elements", "scatter_nd"]


T = TypeVar("T", bound=Tensor)


@overload
def gather_nd(
    data: T, indices: ArrayLike, batch_dims: SupportsIndex = 0, **options: Unpack[GatherOptions]
) -> T: ...
@overload
def gather_nd(
    data: ArrayLike,
    indices: ArrayLike,
    batch_dims: SupportsIndex = 0,
    **options: Unpack[GatherOptions],
) -> Array: ...
def gather_nd(
    data: Any,
    indices: ArrayLike | Tensor,
    batch_dims: SupportsIndex = 0,
    *,
    out: Any = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: GatherMode = "error",
    fill: object = None,
    pad: SupportsIndex | None = None,
    negatives: bool = True,
) -> Any:
    """Gather the slices of data that index tuples select (ONNX GatherND, OpenVINO GatherND-8).

    data: shape (d0, .., dr-1), any fixed-size dtype. indices: shape (.., k), any integer dtype;
    each value in -s..s-1 for its axis of size s. batch_dims: the number of leading axes that both
    share. out: an array that receives the result; unchanged when an index is out of bounds.
    threads: 1..1024, default all processors. spec: the standard to validate against, "ndtool",
    "onnx:N" or "openvino:N". out_of_bounds: "error", or what other libraries do silently: "clip"
    (an index clamps to the first or last one), "wrap" (it is taken modulo the axis size), "fill"
    (the slice is filled with `fill`, a number, 0 if None). Valid negative indices stay valid. pad:
    an index equal to it selects nothing: its slice is filled with `fill`. negatives: if False,
    negative indices are out of bounds.

    Returns an array of data's dtype, shape indices.shape[:-1] + data.shape[batch_dims + k:].
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> gather_nd([[0, 1], [2, 3]], [[0, 0], [1, 1]])
    array([0, 3])
    """
    call = "gather_nd", threads, spec, batch_dims, None, "none", out_of_bounds, fill, pad, negatives
    return _CALLS.call(call, data, indices, None, out)


@overload
def scatter_nd(
    data: T,
    indices: ArrayLike | Tensor,
    updates: ArrayLike | Tensor,
    reduction: Reduction = "none",
    **options: Unpack[BatchedScatterOptions],
) -> T: ...
@overload
def scatter_nd(
    data: ArrayLike,
    indices: ArrayLike | Tensor,
    updates: ArrayLike | Tensor,
    reduction: Reduction = "none",
    **options: Unpack[BatchedScatterOptions],
) -> Array: ...
def scatter_nd(
    data: Any,
    indices: ArrayLike | Tensor,
    updates: ArrayLike | Tensor,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    out: Any = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: ScatterMode = "error",
    pad: SupportsIndex | None = None,
    negatives: bool = True,
    include_self: bool = True,
    duplicates: Duplicates = "last",
) -> Any:
    """Copy data, then set or reduce the slices that index tuples select (ONNX ScatterND).

    data: any fixed-size dtype. indices: shape (.., k), any integer dtype. updates: data's dtype,
    shape indices.shape[:-1] + data.shape[batch_dims + k:]. reduction: how an update is combined
    with the current value: "none" (assignment), "add", "sub", "mul", "div" (of floats), "max",
    "min" or "mean" (the sum, divided once by the number of summands; of integers rounded down), in
    row-major order of indices; other libraries' names, as "amax", are accepted. include_self: if
    False, the first update of an element is copied and the next ones are reduced, so that old
    values take no part. duplicates: which of several updates of an element "none" assigns, "last"
    or "first"; with "error" there must be no element with several. batch_dims: the number of
    leading axes that data and indices share. out: an array that receives the result; `out=data`
    updates in place. threads: 1..1024, default all processors. spec: the standard to validate
    against, "ndtool", "onnx:N" or "openvino:N". out_of_bounds: "error", "clip" to the first or last
    index, "wrap" modulo the axis size, or "drop", which skips the update. pad: an update with an
    index equal to it is skipped. negatives: if False, negative indices are out of bounds. The bits
    are those of the sequential loop at any number of threads.

    Returns an array of data's dtype and shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError), or DuplicatesError or another
    RuleError (a ValueError).

    >>> scatter_nd([1, 2, 3, 4], [[1], [1]], [10, 10], "add")
    array([ 1, 22,  3,  4])
    """
    call = (
        "scatter_nd", threads, spec, batch_dims, None, reduction, out_of_bounds, None, pad,
        negatives, include_self, duplicates,
    )  # fmt: skip
    return _CALLS.call(call, data, indices, updates, out)


@overload
def gather_elements(
    data: T, indices: ArrayLike, axis: SupportsIndex = 0, **options: Unpack[GatherOptions]
) -> T: ...
@overload
def gather_elements(
    data: ArrayLike, indices: ArrayLike, axis: SupportsIndex = 0, **options: Unpack[GatherOptions]
) -> Array: ...
def gather_elements(
    data: Any,
    indices: ArrayLike | Tensor,
    axis: SupportsIndex = 0,
    *,
    out: Any = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: GatherMode = "error",
    fill: object = None,
    pad: SupportsIndex | None = None,
    negatives: bool = True,
) -> Any:
    """Gather one element per index, along an axis (ONNX GatherElements).

    data: rank r >= 1, any fixed-size dtype. indices: rank r, any integer dtype, no longer than data
    off the axis. axis: -r..r-1. out: an array that receives the result; unchanged when an index is
    out of bounds. threads: 1..1024, default all processors. spec: the standard to validate against,
    "ndtool", "onnx:N" or "openvino:N". out_of_bounds: "error", or what other libraries do silently:
    "clip" (an index clamps to the first or last one), "wrap" (it is taken modulo the axis size),
    "fill" (the slice is filled with `fill`, a number, 0 if None). Valid negative indices stay
    valid. pad: an index equal to it selects nothing: its slice is filled with `fill`. negatives: if
    False, negative indices are out of bounds.

    Returns an array of data's dtype and indices' shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> gather_elements([[1, 2], [3, 4]], [[0, 0], [1, 0]], axis=1)
    array([[1, 1],
           [4, 3]])
    """
    call = "gather_elements", threads, spec, 0, axis, "none", out_of_bounds, fill, pad, negatives
    return _CALLS.call(call, data, indices, None, out)


@overload
def scatter_elements(
    data: T,
    indices: ArrayLike | Tensor,
    updates: ArrayLike | Tensor,
    axis: SupportsIndex = 0,
    reduction: Reduction = "none",
    **options: Unpack[ScatterOptions],
) -> T: ...
@overload
def scatter_elements(
    data: ArrayLike,
    indices: ArrayLike | Tensor,
    updates: ArrayLike | Tensor,
    axis: SupportsIndex = 0,
    reduction: Reduction = "none",
    **options: Unpack[ScatterOptions],
) -> Array: ...
def scatter_elements(
    data: Any,
    indices: ArrayLike | Tensor,
    updates: ArrayLike | Tensor,
    axis: SupportsIndex = 0,
    reduction: Reduction = "none",
    *,
    out: Any = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: ScatterMode = "error",
    pad: SupportsIndex | None = None,
    negatives: bool = True,
    include_self: bool = True,
    duplicates: Duplicates = "last",
) -> Any:
    """Copy data, then set or reduce one element per index, along an axis (ONNX ScatterElements).

    data: rank r >= 1, any fixed-size dtype. indices: rank r, any integer dtype, no longer than data
    off the axis. updates: data's dtype, indices' shape. axis: -r..r-1. reduction: how an update is
    combined with the current value: "none" (assignment), "add", "sub", "mul", "div" (of floats),
    "max", "min" or "mean", in row-major order of indices; other libraries' names, as "amax", are
    accepted. include_self: if False, the first update of an element is copied and the next ones are
    reduced. duplicates: which of several updates of an element "none" assigns, "last" or "first";
    with "error" no element may have several. out: an array that receives the result; `out=data`
    updates in place. threads: 1..1024, default all processors. spec: the standard to validate
    against, "ndtool", "onnx:N" or "openvino:N". out_of_bounds: "error", "clip" to the first or last
    index, "wrap" modulo the axis size, or "drop", which skips the update. pad: an update with an
    index equal to it is skipped. negatives: if False, negative indices are out of bounds.

    Returns an array of data's dtype and shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> scatter_elements([[1, 2, 3]], [[0, 2]], [[9, 8]], axis=1)
    array([[9, 2, 8]])
    """
    call = (
        "scatter_elements", threads, spec, 0, axis, reduction, out_of_bounds, None, pad, negatives,
        include_self, duplicates,
    )  # fmt: skip
    return _CALLS.call(call, data, indices, updates, out)


@overload
def gather(
    data: T,
    indices: ArrayLike | Tensor,
    axis: SupportsIndex | None = None,
    **options: Unpack[BatchedGatherOptions],
) -> T: ...
@overload
def gather(
    data: ArrayLike,
    indices: ArrayLike | Tensor,
    axis: SupportsIndex | None = None,
    **options: Unpack[BatchedGatherOptions],
) -> Array: ...
def gather(
    data: Any,
    indices: ArrayLike | Tensor,
    axis: SupportsIndex | None = None,
    *,
    batch_dims: SupportsIndex = 0,
    out: Any = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: GatherMode = "error",
    fill: object = None,
    pad: SupportsIndex | None = None,
    negatives: bool = True,
) -> Any:
    """Gather the slices of data that indices select along an axis (ONNX Gather, NumPy's take).

    data: rank r >= 1, any fixed-size dtype. indices: any shape, any integer dtype; each value in
    -s..s-1 for the axis of size s. axis: -r..r-1, default batch_dims. batch_dims: the number of
    leading axes that both share, at most axis (OpenVINO Gather-8, TensorFlow's gather). out: an
    array that receives the result; unchanged when an index is out of bounds. threads: 1..1024,
    default all processors. spec: the standard to validate against, "ndtool", "onnx:N" or
    "openvino:N". out_of_bounds: "error", or what other libraries do silently: "clip" (an index
    clamps to the first or last one), "wrap" (it is taken modulo the axis size), "fill" (the slice
    is filled with `fill`, a number, 0 if None). Valid negative indices stay valid. pad: an index
    equal to it selects nothing: its slice is filled with `fill`. negatives: if False, negative
    indices are out of bounds.

    Returns an array of data's dtype, shape data.shape[:axis] + indices.shape[batch_dims:] +
    data.shape[axis+1:].
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> gather([[0, 1], [2, 3], [4, 5]], [2, 0])
    array([[4, 5],
           [0, 1]])
    """
    call = "gather", threads, spec, batch_dims, axis, "none", out_of_bounds, fill, pad, negatives
    return _CALLS.call(call, data, indices, None, out)


@overload
def scatter(
    data: T,
    indices: ArrayLike | Tensor,
    updates: ArrayLike | Tensor,
    axis: SupportsIndex | None = None,
    reduction: Reduction = "none",
    **options: Unpack[BatchedScatterOptions],
) -> T: ...
@overload
def scatter(
    data: ArrayLike,
    indices: ArrayLike | Tensor,
    updates: ArrayLike | Tensor,
    axis: SupportsIndex | None = None,
    reduction: Reduction = "none",
    **options: Unpack[BatchedScatterOptions],
) -> Array: ...
def scatter(
    data: Any,
    indices: ArrayLike | Tensor,
    updates: ArrayLike | Tensor,
    axis: SupportsIndex | None = None,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    out: Any = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: ScatterMode = "error",
    pad: SupportsIndex | None = None,
    negatives: bool = True,
    include_self: bool = True,
    duplicates: Duplicates = "last",
) -> Any:
    """Copy data, then set or reduce the slices that indices select along an axis.

    The inverse of gather: torch's index_add and index_copy, OpenVINO ScatterUpdate-3. data: rank r
    >= 1, any fixed-size dtype. indices: any shape, any integer dtype; each value in -s..s-1 for the
    axis of size s. updates: data's dtype, the shape that gather returns: data.shape[:axis] +
    indices.shape[batch_dims:] + data.shape[axis+1:]. axis: -r..r-1, default batch_dims. batch_dims:
    the number of leading axes that data and indices share, at most axis. reduction: how an update
    is combined with the current value: "none" (assignment), "add", "sub", "mul", "div" (of floats),
    "max", "min" or "mean", in row-major order of indices; other libraries' names, as "amax", are
    accepted. include_self: if False, the first update of an element is copied and the next ones are
    reduced. duplicates: which of several updates of an element "none" assigns, "last" or "first";
    with "error" no element may have several. out: an array that receives the result; `out=data`
    updates in place. threads: 1..1024, default all processors. spec: the standard to validate
    against, "ndtool", "onnx:N" or "openvino:N". out_of_bounds: "error", "clip" to the first or last
    index, "wrap" modulo the axis size, or "drop", which skips the update. pad: an update with an
    index equal to it is skipped. negatives: if False, negative indices are out of bounds.

    Returns an array of data's dtype and shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> scatter([[0, 1], [2, 3]], [1, 1], [[10, 20], [30, 40]], reduction="add")
    array([[ 0,  1],
           [42, 63]])
    """
    call = (
        "scatter", threads, spec, batch_dims, axis, reduction, out_of_bounds, None, pad, negatives,
        include_self, duplicates,
    )  # fmt: skip
    return _CALLS.call(call, data, indices, updates, out)


_CALLS = calls.COMPILED
