"""The operators on NumPy arrays."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndtool import tensors
from ndtool._kernels import Indices
from ndtool.arguments import (
    array,
    index_array,
    integer,
    name_exactly,
    number,
    require_apart,
    room_of,
    team_of,
    type_of,
    word,
)
from ndtool.buffers import copy_right, opaque, operand, put_right, raw
from ndtool.engine import bind, check, copies, gathers, narrow, scatters, tuning
from ndtool.errors import BoundsError, NdtoolError, ResourceError, RuleError, shown
from ndtool.rules import filling, inference, shapes
from ndtool.rules.dtypes import NATIVE, Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.shapes import Plan, Shape

Array = NDArray[Any]


def gather_nd(
    data: ArrayLike,
    indices: ArrayLike,
    batch_dims: SupportsIndex = 0,
    *,
    out: Array | None = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: str = "error",
    fill: object = None,
) -> Array:
    """Gather slices of data named by index tuples (ONNX GatherND, OpenVINO GatherND-8).

    data: shape (d0, .., dr-1), any fixed-size dtype. indices: shape (.., k), any integer dtype;
    each value in -s..s-1 for its axis of size s. batch_dims: leading axes that both share.
    out: receives the result if given; unchanged when an index is out of bounds. threads: 1..1024,
    default all processors. spec: "ndtool", "onnx:N" or "openvino:N", what must be satisfied.
    out_of_bounds: "error", or what other libraries do silently: "clip" (to the nearer end of the
    axis, valid negative ones as they are), "wrap" (modulo its size), "fill" (the whole slice is
    `fill`, a number, 0 if None).

    Returns an array of data's dtype, shape indices.shape[:-1] + data.shape[batch_dims + k:].
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> gather_nd([[0, 1], [2, 3]], [[0, 0], [1, 1]])
    array([0, 3])
    """
    attributes = _ruled(out_of_bounds, fill, batch_dims=integer("batch_dims", batch_dims))
    return _gather("gather_nd", data, indices, attributes, out, threads, spec)


def scatter_nd(
    data: ArrayLike,
    indices: ArrayLike,
    updates: ArrayLike,
    reduction: str = "none",
    *,
    out: Array | None = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: str = "error",
) -> Array:
    """Copy data, then set or reduce the slices named by index tuples (ONNX ScatterND).

    data: any fixed-size dtype. indices: shape (.., k), any integer dtype. updates: data's dtype,
    shape indices.shape[:-1] + data.shape[k:]. reduction: "none" (the last of duplicates wins),
    "add", "mul", "max" or "min", applied in row-major order of indices. out: receives the result;
    `out=data` updates in place. threads, spec: as in gather_nd. out_of_bounds: "error", "clip" and
    "wrap" as there, or "drop", which skips the update. The bits are those of the sequential loop at
    any number of threads.

    Returns an array of data's dtype and shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> scatter_nd([1, 2, 3, 4], [[1], [1]], [10, 10], "add")
    array([ 1, 22,  3,  4])
    """
    arrays = data, indices, updates
    attributes = _ruled(out_of_bounds, reduction=word("reduction", reduction))
    return _scatter("scatter_nd", arrays, attributes, out, threads, spec)


def gather_elements(
    data: ArrayLike,
    indices: ArrayLike,
    axis: SupportsIndex = 0,
    *,
    out: Array | None = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: str = "error",
    fill: object = None,
) -> Array:
    """Gather one element for each index, along an axis (ONNX GatherElements).

    data: rank r >= 1, any fixed-size dtype. indices: rank r, any integer dtype, no longer than
    data off the axis. axis: -r..r-1. out, threads, spec, out_of_bounds, fill: as in gather_nd.

    Returns an array of data's dtype and indices' shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> gather_elements([[1, 2], [3, 4]], [[0, 0], [1, 0]], axis=1)
    array([[1, 1],
           [4, 3]])
    """
    attributes = _ruled(out_of_bounds, fill, axis=integer("axis", axis))
    return _gather("gather_elements", data, indices, attributes, out, threads, spec)


def scatter_elements(
    data: ArrayLike,
    indices: ArrayLike,
    updates: ArrayLike,
    axis: SupportsIndex = 0,
    reduction: str = "none",
    *,
    out: Array | None = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: str = "error",
) -> Array:
    """Copy data, then set or reduce one element for each index, along an axis.

    The standard is ONNX ScatterElements. data: rank r >= 1. indices: rank r, any integer dtype, no
    longer than data off the axis. updates: data's dtype, indices' shape. axis: -r..r-1.
    reduction, out, out_of_bounds: as in scatter_nd. threads, spec: as in gather_nd.

    Returns an array of data's dtype and shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> scatter_elements([[1, 2, 3]], [[0, 2]], [[9, 8]], axis=1)
    array([[9, 2, 8]])
    """
    arrays = data, indices, updates
    reduction = word("reduction", reduction)
    attributes = _ruled(out_of_bounds, axis=integer("axis", axis), reduction=reduction)
    return _scatter("scatter_elements", arrays, attributes, out, threads, spec)


def gather(
    data: ArrayLike,
    indices: ArrayLike,
    axis: SupportsIndex = 0,
    *,
    out: Array | None = None,
    threads: int | None = None,
    spec: str = "ndtool",
    out_of_bounds: str = "error",
    fill: object = None,
) -> Array:
    """Gather slices of data named by plain numbers along an axis (ONNX Gather, NumPy's take).

    data: rank r >= 1, any fixed-size dtype. indices: any shape, any integer dtype; each value in
    -s..s-1 for the axis of size s. axis: -r..r-1. out, threads, spec, out_of_bounds, fill: as in
    gather_nd.

    Returns an array of data's dtype, shape data.shape[:axis] + indices.shape + data.shape[axis+1:].
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> gather([[0, 1], [2, 3], [4, 5]], [2, 0])
    array([[4, 5],
           [0, 1]])
    """
    attributes = _ruled(out_of_bounds, fill, axis=integer("axis", axis))
    return _gather("gather", data, indices, attributes, out, threads, spec)


def _ruled(out_of_bounds: str, fill: object = None, **attributes: Any) -> Attributes:
    rule = word("out_of_bounds", out_of_bounds)
    return Attributes(out_of_bounds=rule, fill=number("fill", fill), **attributes)


class Bound(NamedTuple):
    """A kind of call: types of the inputs, whether -1 is valid, what is done if -99 is not."""

    plan: Plan
    types: dict[str, Dtype]
    negatives: bool
    rule: str
    filling: bytes | None


@lru_cache(maxsize=1024)
def _bind(
    name: str,
    data: Shape,
    data_dtype: np.dtype[Any],
    indices: Shape,
    indices_dtype: np.dtype[Any],
    updates: Shape | None,
    updates_dtype: np.dtype[Any] | None,
    attributes: Attributes,
    spec: str,
) -> Bound:
    """Infer shapes and check types; what depends on no value is done once per kind of call."""
    types = {"data": type_of("data", data_dtype), "indices": type_of("indices", indices_dtype)}
    sizes = {"data": data, "indices": indices}
    if updates is not None and updates_dtype is not None:
        types["updates"], sizes["updates"] = type_of("updates", updates_dtype), updates
    row, _, plan = inference.check(name, types, sizes, attributes, spec)
    if prod(d or 1 for d in plan.output) * data_dtype.itemsize > shapes.MOST:
        raise RuleError(f"the output {shapes.written(plan.output)} has axes that NumPy cannot have")
    rule, element = attributes.out_of_bounds, filling.element(attributes.fill, types["data"])
    fills = bind.filling_for(plan, element) if rule == "fill" else None
    return Bound(plan, types, row.negatives, rule, fills)


def _gather(
    name: str,
    data: object,
    indices: object,
    attributes: Attributes,
    out: Array | None,
    threads: int | None,
    spec: str,
) -> Array:
    """Gather, the arguments as they came but for the attributes."""
    try:
        source, index = array("data", data), index_array(indices, attributes.out_of_bounds)
        bound = _bind(
            name, source.shape, source.dtype, index.shape, index.dtype,
            None, None, attributes, word("spec", spec),
        )  # fmt: skip
        room = None
        if out is not None:
            room = room_of(out, source.dtype, bound.plan.output)
            require_apart(room, data=source, indices=index)
        result = _gathered(bound, source, index, room, team_of(threads))
    except BoundsError as error:
        name_exactly(error, indices)
        raise
    except NdtoolError:
        raise
    except (MemoryError, OSError) as error:
        raise _short(name, error) from error
    return tensors.like(data, result) if out is None else out


def _scatter(
    name: str,
    arrays: tuple[object, object, object],
    attributes: Attributes,
    out: Array | None,
    threads: int | None,
    spec: str,
) -> Array:
    """Scatter, the arguments as they came but for the attributes."""
    data, indices, updates = arrays
    try:
        source, index = array("data", data), index_array(indices, attributes.out_of_bounds)
        new = array("updates", updates)
        bound = _bind(
            name, source.shape, source.dtype, index.shape, index.dtype,
            new.shape, new.dtype, attributes, word("spec", spec),
        )  # fmt: skip
        room = None
        if out is not None:
            room = room_of(out, source.dtype, bound.plan.output)
            if out is data:
                room = source
            else:
                require_apart(room, data=source)
            require_apart(room, indices=index, updates=new)
        result = _scattered(bound, source, index, new, attributes.reduction, room, team_of(threads))
    except BoundsError as error:
        name_exactly(error, indices)
        raise
    except NdtoolError:
        raise
    except (MemoryError, OSError) as error:
        raise _short(name, error) from error
    return tensors.like(data, result) if out is None else out


def _short(name: str, error: Exception) -> ResourceError:
    """Return what memory that cannot be had, or cannot be mapped, is for who calls."""
    return ResourceError(f"{name} needs more memory than there is: {shown(error, str)}")


def _gathered(bound: Bound, data: Array, indices: Array, out: Array | None, team: int) -> Array:
    """Gather, into `out` if there is one."""
    plan, _, negatives = bound[:3]
    index = _bound_indices(bound, indices, team)
    target = out
    if target is None or not target.flags.c_contiguous:
        target = np.empty(plan.output, data.dtype)
    if out is None and target.size and not check.lacks_places(plan, bound.rule):
        done = _move(bound, data, index, target, team)
    else:  # a gather that met a bad index half-way would have changed what is not ours
        flat = data.flags.c_contiguous
        with narrow.checked(plan, index, negatives, team, flat) as work:
            source = data.reshape(work.plan.data) if flat else data
            bound = bound._replace(plan=work.plan, negatives=work.negatives)
            done = not target.size or _move(bound, source, work.indices, target, team)
    if not done:
        raise check.refusal(plan, index, negatives)
    return _delivered(target, out)


def _move(bound: Bound, data: Array, index: Indices, target: Array, team: int) -> bool:
    """Gather into a contiguous target; False if an index is out of bounds."""
    plan, types, negatives = bound[:3]
    dtype = types["data"]
    if not data.size:
        return gathers.fill(raw(target), bound.filling)
    if data.nbytes <= tuning.COPIED and not data.flags.c_contiguous:
        return _move(bound, _packed(data, dtype, team), index, target, team)
    source = operand(data)
    runs = bind.bind_runs(plan, source.strides, dtype.itemsize, negatives)
    if runs is None:
        panels = bind.bind_panels(plan, source.strides, dtype.itemsize, negatives)
        return gathers.gather_panels(panels, source, index, raw(target), team)
    if runs.layout is not None and copies.is_worth_packing(
        data.shape, data.strides, data.nbytes, target.nbytes
    ):
        return _move(bound, _packed(data, dtype, team), index, target, team)
    return gathers.gather(runs, source, index, raw(target), team)


def _packed(data: Array, dtype: Dtype, team: int) -> Array:
    """Return a copy of data in row-major order."""
    packed = np.empty(data.shape, data.dtype)
    copy_right(data, dtype, dtype.order, raw(packed), team)
    return packed


def _scattered(
    bound: Bound,
    data: Array,
    indices: Array,
    updates: Array,
    reduction: str,
    out: Array | None,
    team: int,
) -> Array:
    """Scatter, into `out` if there is one; it may be data itself."""
    plan, types, negatives = bound[:3]
    dtype, index = types["data"], _bound_indices(bound, indices, team)
    order = dtype.order if reduction == "none" else NATIVE
    plain = copies.is_right(data.shape, data.strides, dtype, order)
    target = out
    if target is None or not (plain and _direct(target)):
        target = np.empty(plan.output, data.dtype)
    if not updates.size or check.lacks_places(plan, bound.rule):
        check.check(plan, index, negatives, team)
    source: Array | None = data
    if target is data:
        source = None
    elif not plain or not updates.size:
        copy_right(data, dtype, order, raw(target), team)
        source = None
    if updates.size:
        new = put_right(updates, types["updates"], order, reduction != "none", team)
        work = scatters.Scatter(
            plan, dtype, None if source is None else raw(source), index,
            new, reduction, raw(target), negatives, team, guarded=target is out,
        )  # fmt: skip
        if not scatters.scatter(work):
            raise check.refusal(plan, index, negatives)
    if dtype.unit > 1 and order != dtype.order:
        copies.swap(raw(target), dtype.unit)
    return _delivered(target, out)


def _direct(out: Array) -> bool:
    """Whether to scatter into the caller's array, which then must be checked for beforehand.

    A small one is better done aside: the indices are then read once.
    """
    return out.flags.c_contiguous and out.flags.aligned and out.nbytes > tuning.ASIDE


def _delivered(result: Array, out: Array | None) -> Array:
    """Return the result, in `out` if the caller gave one."""
    if out is None or result is out:
        return result
    np.copyto(opaque(out), opaque(result))
    return out


def _bound_indices(bound: Bound, indices: Array, team: int) -> Indices:
    dtype = bound.types["indices"]
    right = put_right(indices, dtype, dtype.order, False, team)
    return bind.bind_indices(right, dtype, bound.rule, bound.filling)
