"""The four operators on NumPy arrays."""

import operator
from functools import lru_cache
from math import prod
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ndtool.engine import gathers, layouts, scatters
from ndtool.engine import threads as _threads
from ndtool.engine.layouts import Strides
from ndtool.errors import DtypeError, RuleError, UsageError
from ndtool.rules import dtypes, inference, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.shapes import Plan, Shape

Array = NDArray[Any]
ASIDE = 1 << 16  # bytes of an output that are computed aside, then copied
PACKED = 1 << 28  # bytes of data that are put into row-major order before rows of it are gathered


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
    data, indices = np.asarray(data), np.asarray(indices)
    bound = _bind(
        "gather_nd",
        data.shape,
        data.dtype,
        indices.shape,
        indices.dtype,
        None,
        None,
        Attributes(batch_dims=_integer("batch_dims", batch_dims)),
        _word("spec", spec),
    )
    return _gather(bound, data, indices, out, threads)


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
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    bound = _bind(
        "scatter_nd",
        data.shape,
        data.dtype,
        indices.shape,
        indices.dtype,
        updates.shape,
        updates.dtype,
        Attributes(reduction=_word("reduction", reduction)),
        _word("spec", spec),
    )
    return _scatter(bound, data, indices, updates, reduction, out, threads)


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
    data, indices = np.asarray(data), np.asarray(indices)
    bound = _bind(
        "gather_elements",
        data.shape,
        data.dtype,
        indices.shape,
        indices.dtype,
        None,
        None,
        Attributes(axis=_integer("axis", axis)),
        _word("spec", spec),
    )
    return _gather(bound, data, indices, out, threads)


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
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    bound = _bind(
        "scatter_elements",
        data.shape,
        data.dtype,
        indices.shape,
        indices.dtype,
        updates.shape,
        updates.dtype,
        Attributes(axis=_integer("axis", axis), reduction=_word("reduction", reduction)),
        _word("spec", spec),
    )
    return _scatter(bound, data, indices, updates, reduction, out, threads)


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
    types = {"data": dtypes.from_numpy(data_dtype), "indices": dtypes.from_numpy(indices_dtype)}
    sizes = {"data": data, "indices": indices}
    if updates is not None:
        types["updates"], sizes["updates"] = dtypes.from_numpy(updates_dtype), updates
    row, _, plan = inference.check(name, types, sizes, attributes, spec)
    return plan, types["data"], types["indices"], row.negatives


def _word(name: str, value: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name} is {value!r}: it must be a str")
    return value


def _integer(name: str, value: SupportsIndex) -> int:
    try:
        return operator.index(value)
    except TypeError:
        raise RuleError(f"{name} is {value!r}: it must be an integer") from None


def _gather(
    bound: Bound, data: Array, indices: Array, out: Array | None, threads: int | None
) -> Array:
    plan, _, index_dtype, negatives = bound
    team = _threads.resolve(threads)
    index = _bytes(np.ascontiguousarray(indices))
    if out is not None:
        _check_out(out, plan, data, {"data": data, "indices": indices})
    if out is not None or not prod(plan.output):
        # a gather that met a bad index half-way would have changed what is not ours
        gathers.check(plan, index, index_dtype, negatives, team)
    target = out
    if target is None or not target.flags.c_contiguous:
        target = np.empty(plan.output, data.dtype)
    if target.size and not _move(bound, data, index, target, team):
        raise gathers.refusal(plan, index, index_dtype, negatives)
    return _delivered(target, out)


def _move(bound: Bound, data: Array, index: Array, target: Array, team: int) -> bool:
    """Gather into a contiguous target; False if an index is out of bounds."""
    plan, dtype, index_dtype, negatives = bound
    if not data.size:
        return False
    kind, operand = gathers.index_kind(index_dtype), _operand(data)
    runs = gathers.bind_runs(plan, data.strides, dtype.itemsize, negatives)
    if runs is not None:
        if runs.layout is not None and _is_worth_packing(data, target):
            packed = np.empty(data.shape, data.dtype)
            _copy_data(packed, data, team)
            return _move(bound, packed, index, target, team)
        return gathers.gather(runs, operand, index, kind, _bytes(target), team)
    units = gathers.bind_units(plan, data.strides, dtype.itemsize, negatives)
    return gathers.gather_units(units, operand, index, kind, _bytes(target), team)


def _is_worth_packing(data: Array, target: Array) -> bool:
    """Whether rows whose elements stand apart are better put side by side first, all of them."""
    scattered = layouts.is_scattered(data.shape, data.strides)
    return scattered and data.nbytes <= min(PACKED, 2 * target.nbytes)


def _scatter(
    bound: Bound,
    data: Array,
    indices: Array,
    updates: Array,
    reduction: str,
    out: Array | None,
    threads: int | None,
) -> Array:
    plan, dtype, index_dtype, negatives = bound
    team = _threads.resolve(threads)
    index = _bytes(np.ascontiguousarray(indices))
    if out is not None:
        inputs = {"indices": indices, "updates": updates}
        _check_out(out, plan, data, inputs if out is data else {"data": data, **inputs})
    native = data.dtype if reduction == "none" else data.dtype.newbyteorder("=")
    plain = native == data.dtype and data.flags.c_contiguous
    target = out
    if target is None or not (plain and _direct(target)):
        target = np.empty(plan.output, native)
    if target is out or not updates.size:
        gathers.check(plan, index, index_dtype, negatives, team)
    source: Array | None = data
    if target is data:
        source = None
    elif not plain or not updates.size:
        _copy_data(target, data, team)
        source = None
    if updates.size:
        new = np.require(_opaque(updates), _opaque(target).dtype, ["C", "A"])
        work = scatters.Scatter(
            plan, dtype, None if source is None else _bytes(source), index, index_dtype,
            _bytes(new), reduction, _bytes(target), negatives, team,
        )  # fmt: skip
        if not scatters.scatter(work):
            raise gathers.refusal(plan, index, index_dtype, negatives)
    return _delivered(target if native == data.dtype else target.astype(data.dtype), out)


def _direct(out: Array) -> bool:
    """Whether to scatter into the caller's array, which then must be checked for beforehand.

    A small one is better done aside: the indices are then read once.
    """
    return out.flags.c_contiguous and out.flags.aligned and out.nbytes > ASIDE


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


def _check_out(out: Array, plan: Plan, data: Array, inputs: dict[str, Array]) -> None:
    """Refuse an `out` of the wrong type, dtype or shape, or that shares memory with an input."""
    if not isinstance(out, np.ndarray):
        raise DtypeError(f"out is a {type(out).__name__}: it must be an ndarray")
    if out.dtype != data.dtype:
        raise DtypeError(f"out has dtype {out.dtype}: it must be data's, {data.dtype}")
    if out.shape != plan.output:
        expected = shapes.written(plan.output)
        raise RuleError(f"out has shape {shapes.written(out.shape)}: {expected} is required")
    if not out.flags.writeable:
        raise RuleError("out is read-only: it must be writeable")
    for name, array in inputs.items():
        if _overlap(out, array):
            raise RuleError(f"out overlaps {name}: only scatter's out may be data itself")


def _overlap(a: Array, b: Array) -> bool:
    try:
        return bool(np.shares_memory(a, b, max_work=1 << 16))  # type: ignore[arg-type]
    except np.exceptions.TooHardError:
        return True


def _bytes(array: Array) -> Array:
    """Return the bytes of a contiguous array, without a copy."""
    return array.reshape(-1).view(np.uint8)


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
