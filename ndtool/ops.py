"""The four operators on NumPy arrays."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndtool._kernels import Indices
from ndtool.arguments import array, index_array, integer, name_exactly, require_apart, room_of, word
from ndtool.engine import gathers, layouts, scatters, tuning
from ndtool.engine import threads as _threads
from ndtool.engine.layouts import Strides
from ndtool.errors import (
    BoundsError,
    DtypeError,
    NdtoolError,
    ResourceError,
    RuleError,
    UsageError,
    shown,
)
from ndtool.rules import dtypes, inference, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.shapes import Plan, Shape

Array = NDArray[Any]
_BYTE = np.dtype(np.uint8)


def gather_nd(
    data: ArrayLike,
    indices: ArrayLike,
    batch_dims: SupportsIndex = 0,
    *,
    out: Array | None = None,
    threads: int | None = None,
    spec: str = "ndtool",
) -> Array:
    """Gather slices of data named by index tuples (ONNX GatherND, OpenVINO GatherND-8).

    data: shape (d0, .., dr-1), any fixed-size dtype. indices: shape (.., k), any integer dtype;
    each value in -s..s-1 for its axis of size s. batch_dims: leading axes that both share.
    out: receives the result if given; unchanged when an index is out of bounds. threads: 1..1024,
    default all processors. spec: "ndtool", "onnx:N" or "openvino:N", what must be satisfied.

    Returns an array of data's dtype, shape indices.shape[:-1] + data.shape[batch_dims + k:].
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> gather_nd([[0, 1], [2, 3]], [[0, 0], [1, 1]])
    array([0, 3])
    """
    attributes = Attributes(batch_dims=integer("batch_dims", batch_dims))
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
) -> Array:
    """Copy data, then set or reduce the slices named by index tuples (ONNX ScatterND).

    data: any fixed-size dtype. indices: shape (.., k), any integer dtype. updates: data's dtype,
    shape indices.shape[:-1] + data.shape[k:]. reduction: "none" (the last of duplicates wins),
    "add", "mul", "max" or "min", applied in row-major order of indices. out: receives the result;
    `out=data` updates in place. threads, spec: as in gather_nd. The bits are those of the
    sequential loop at any number of threads.

    Returns an array of data's dtype and shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> scatter_nd([1, 2, 3, 4], [[1], [1]], [10, 10], "add")
    array([ 1, 22,  3,  4])
    """
    arrays = data, indices, updates
    attributes = Attributes(reduction=word("reduction", reduction))
    return _scatter("scatter_nd", arrays, attributes, out, threads, spec)


def gather_elements(
    data: ArrayLike,
    indices: ArrayLike,
    axis: SupportsIndex = 0,
    *,
    out: Array | None = None,
    threads: int | None = None,
    spec: str = "ndtool",
) -> Array:
    """Gather one element for each index, along an axis (ONNX GatherElements).

    data: rank r >= 1, any fixed-size dtype. indices: rank r, any integer dtype, no longer than
    data off the axis. axis: -r..r-1. out, threads, spec: as in gather_nd.

    Returns an array of data's dtype and indices' shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> gather_elements([[1, 2], [3, 4]], [[0, 0], [1, 0]], axis=1)
    array([[1, 1],
           [4, 3]])
    """
    attributes = Attributes(axis=integer("axis", axis))
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
) -> Array:
    """Copy data, then set or reduce one element for each index, along an axis.

    The standard is ONNX ScatterElements. data: rank r >= 1. indices: rank r, any integer dtype, no
    longer than data off the axis. updates: data's dtype, indices' shape. axis: -r..r-1.
    reduction, out: as in scatter_nd. threads, spec: as in gather_nd.

    Returns an array of data's dtype and shape.
    Raises BoundsError (an IndexError), DtypeError (a TypeError) or RuleError (a ValueError).

    >>> scatter_elements([[1, 2, 3]], [[0, 2]], [[9, 8]], axis=1)
    array([[9, 2, 8]])
    """
    arrays = data, indices, updates
    attributes = Attributes(axis=integer("axis", axis), reduction=word("reduction", reduction))
    return _scatter("scatter_elements", arrays, attributes, out, threads, spec)


Bound = tuple[Plan, Dtype, Dtype, bool]  # plan, data's and indices' types, whether -1 is valid


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
    types = {"data": _type("data", data_dtype), "indices": _type("indices", indices_dtype)}
    sizes = {"data": data, "indices": indices}
    if updates is not None and updates_dtype is not None:
        types["updates"], sizes["updates"] = _type("updates", updates_dtype), updates
    row, _, plan = inference.check(name, types, sizes, attributes, spec)
    if prod(d or 1 for d in plan.output) * data_dtype.itemsize > shapes.MOST:
        raise RuleError(f"the output {shapes.written(plan.output)} has axes that NumPy cannot have")
    return plan, types["data"], types["indices"], row.negatives


def _type(name: str, dtype: np.dtype[Any]) -> Dtype:
    if dtype.type is np.record:  # a record array's elements, which are records like others
        dtype = np.dtype((np.void, dtype))
    try:
        return dtypes.from_numpy(dtype)
    except DtypeError as error:
        raise DtypeError(f"{name}: {error.message}", hint=error.hint) from None


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
        source, index = array("data", data), index_array(indices)
        bound = _bind(
            name, source.shape, source.dtype, index.shape, index.dtype,
            None, None, attributes, word("spec", spec),
        )  # fmt: skip
        room = None
        if out is not None:
            room = room_of(out, source.dtype, bound[0].output)
            require_apart(room, data=source, indices=index)
        result = _gathered(bound, source, index, room, _team(threads))
    except BoundsError as error:
        name_exactly(error, indices)
        raise
    except NdtoolError:
        raise
    except (MemoryError, OSError) as error:
        raise _short(name, error) from error
    return result if out is None else out


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
        source, index = array("data", data), index_array(indices)
        new = array("updates", updates)
        bound = _bind(
            name, source.shape, source.dtype, index.shape, index.dtype,
            new.shape, new.dtype, attributes, word("spec", spec),
        )  # fmt: skip
        room = None
        if out is not None:
            room = room_of(out, source.dtype, bound[0].output)
            if out is data:
                room = source
            else:
                require_apart(room, data=source)
            require_apart(room, indices=index, updates=new)
        result = _scattered(bound, source, index, new, attributes.reduction, room, _team(threads))
    except BoundsError as error:
        name_exactly(error, indices)
        raise
    except NdtoolError:
        raise
    except (MemoryError, OSError) as error:
        raise _short(name, error) from error
    return result if out is None else out


def _team(threads: int | None) -> int:
    if threads is None:
        return _threads.default()
    return _threads.resolve(integer("threads", threads, UsageError))


def _short(name: str, error: Exception) -> ResourceError:
    """Return what memory that cannot be had, or cannot be mapped, is for who calls."""
    return ResourceError(f"{name} needs more memory than there is: {shown(error, str)}")


def _gathered(bound: Bound, data: Array, indices: Array, out: Array | None, team: int) -> Array:
    """Gather, into `out` if there is one."""
    plan, _, index_dtype, negatives = bound
    index = gathers.bind_indices(_bytes(np.ascontiguousarray(indices)), index_dtype)
    if out is not None or not prod(plan.output):
        # a gather that met a bad index half-way would have changed what is not ours
        gathers.check(plan, index, negatives, team)
    target = out
    if target is None or not target.flags.c_contiguous:
        target = np.empty(plan.output, data.dtype)
    if target.size and not _move(bound, data, index, target, team):
        raise gathers.refusal(plan, index, negatives)
    return _delivered(target, out)


def _move(bound: Bound, data: Array, index: Indices, target: Array, team: int) -> bool:
    """Gather into a contiguous target; False if an index is out of bounds."""
    plan, dtype, _, negatives = bound
    if not data.size:
        return False
    operand = _operand(data)
    runs = gathers.bind_runs(plan, data.strides, dtype.itemsize, negatives)
    if runs is not None:
        if runs.layout is not None and _is_worth_packing(data, target):
            packed = np.empty(data.shape, data.dtype)
            _copy_data(packed, data, team)
            return _move(bound, packed, index, target, team)
        return gathers.gather(runs, operand, index, _bytes(target), team)
    units = gathers.bind_units(plan, data.strides, dtype.itemsize, negatives)
    return gathers.gather_units(units, operand, index, _bytes(target), team)


def _is_worth_packing(data: Array, target: Array) -> bool:
    """Whether rows whose elements stand apart are better put side by side first, all of them."""
    scattered = layouts.is_scattered(data.shape, data.strides)
    return scattered and data.nbytes <= min(tuning.PACKED, 2 * target.nbytes)


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
    plan, dtype, index_dtype, negatives = bound
    index = gathers.bind_indices(_bytes(np.ascontiguousarray(indices)), index_dtype)
    native = data.dtype if reduction == "none" else data.dtype.newbyteorder("=")
    plain = native == data.dtype and data.flags.c_contiguous
    target = out
    if target is None or not (plain and _direct(target)):
        target = np.empty(plan.output, native)
    if target is out or not updates.size:
        gathers.check(plan, index, negatives, team)
    source: Array | None = data
    if target is data:
        source = None
    elif not plain or not updates.size:
        _copy_data(target, data, team)
        source = None
    if updates.size:
        new = np.require(_opaque(updates), _opaque(target).dtype, ["C", "A"])
        work = scatters.Scatter(
            plan, dtype, None if source is None else _bytes(source), index,
            _bytes(new), reduction, _bytes(target), negatives, team,
        )  # fmt: skip
        if not scatters.scatter(work):
            raise gathers.refusal(plan, index, negatives)
    return _delivered(target if native == data.dtype else target.astype(data.dtype), out)


def _direct(out: Array) -> bool:
    """Whether to scatter into the caller's array, which then must be checked for beforehand.

    A small one is better done aside: the indices are then read once.
    """
    return out.flags.c_contiguous and out.flags.aligned and out.nbytes > tuning.ASIDE


def _delivered(result: Array, out: Array | None) -> Array:
    """Return the result, in `out` if the caller gave one."""
    if out is None or result is out:
        return result
    _copy(out, result)
    return out


def _opaque(array: Array) -> Array:
    """Return records as plain bytes, so that a copy takes the gaps between fields along."""
    return array if array.dtype.names is None else array.view(f"V{array.dtype.itemsize}")


def _copy(to: Array, source: Array) -> None:
    np.copyto(_opaque(to), _opaque(source))


def _copy_data(to: Array, data: Array, team: int) -> None:
    """Copy data to an array without gaps, perhaps of the other byte order."""
    scattered = data.size and layouts.is_scattered(data.shape, data.strides)
    if scattered and to.dtype == data.dtype:
        gathers.copy_strips(_operand(data), data.shape, data.itemsize, _bytes(to), team)
    else:
        _copy(to, data)


def _bytes(array: Array) -> Array:
    """Return the bytes of a contiguous array, without a copy."""
    return array.ravel().view(_BYTE)


def _operand(data: Array) -> gathers.Operand:
    """Return data's memory from its lowest byte on, whatever its strides."""
    if data.flags.c_contiguous:
        return gathers.Operand(_bytes(data), 0, data.strides)
    return _strided_operand(data, data.strides)


def _strided_operand(data: Array, strides: Strides) -> gathers.Operand:
    origin = sum(-s * (n - 1) for s, n in zip(strides, data.shape, strict=True) if s < 0)
    extent = sum(abs(s) * (n - 1) for s, n in zip(strides, data.shape, strict=True))
    lowest = data[tuple(slice(-1, None) if s < 0 else slice(0, 1) for s in strides)]
    first = lowest.reshape(-1).view(np.uint8)
    memory = np.lib.stride_tricks.as_strided(
        first, (extent + data.itemsize,), (1,), writeable=False
    )
    return gathers.Operand(memory, origin, strides)
