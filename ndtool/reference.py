"""The four operators, slow and obvious: the oracle of the tests and of `verify`.

Each one is the loop that the ONNX text prints, in row-major order, over values that were checked
first. Nothing is shared with the fast side but the errors, so both can only agree by being right.
"""

from collections.abc import Callable, Iterator
from operator import index as whole
from typing import Any

import numpy as np

from ndtool.errors import BoundsError, DtypeError, RuleError, UsageError

Array = np.ndarray[Any, Any]
Position = tuple[int, ...]
Places = Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]]

_ORDERED = (
    ["bool", "float16", "bfloat16", "float32", "float64"]
    + [f"int{bits}" for bits in (8, 16, 32, 64)]
    + [f"uint{bits}" for bits in (8, 16, 32, 64)]
)
_UNORDERED = ["complex64", "complex128"]


def gather_nd(data: Array, indices: Array, batch_dims: int = 0) -> Array:
    """Return the slices of `data` that the index tuples name, as ONNX GatherND does.

    output[i] = data[i[:b], indices[i], ...] for every i in indices.shape[:-1], b = batch_dims.
    """
    data, indices, b = np.asarray(data), np.asarray(indices), whole(batch_dims)
    _check_types(data, indices)
    r, q = data.ndim, indices.ndim
    _require(r >= 1 and q >= 1, f"ranks {r} and {q}: both must be at least 1")
    _require(0 <= b < min(r, q), f"batch_dims {b}: valid 0..{min(r, q) - 1}")
    _require(data.shape[:b] == indices.shape[:b], "the batch axes must be equal")
    k = indices.shape[-1]
    _require(1 <= k <= r - b, f"index tuples of {k}: valid 1..{r - b}")

    output = np.empty(indices.shape[:-1] + data.shape[b + k :], data.dtype)
    source, target = _bytes(data), _bytes(output)
    for i, place in _nd_places(indices, data.shape, b):
        target[i] = source[place]
    return output


def scatter_nd(data: Array, indices: Array, updates: Array, reduction: str = "none") -> Array:
    """Return a copy of `data` with slices updated, as ONNX ScatterND does.

    output[indices[i]] = f(output[indices[i]], updates[i]) for every i in indices.shape[:-1].
    """
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    _check_types(data, indices, updates, reduction)
    r, q = data.ndim, indices.ndim
    _require(r >= 1 and q >= 1, f"ranks {r} and {q}: both must be at least 1")
    k = indices.shape[-1]
    _require(k <= r, f"index tuples of {k}: valid 0..{r}")
    expected = indices.shape[:-1] + data.shape[k:]
    _require(updates.shape == expected, f"updates {updates.shape}: it must be {expected}")
    return _update(data, updates, reduction, _nd_places(indices, data.shape, 0))


def gather_elements(data: Array, indices: Array, axis: int = 0) -> Array:
    """Return the elements of `data` that `indices` names along `axis`, as ONNX GatherElements.

    output[i][j][k] = data[i][indices[i][j][k]][k] where axis = 1, and so on.
    """
    data, indices = np.asarray(data), np.asarray(indices)
    _check_types(data, indices)
    axis = _elements_axis(data, indices, axis)
    output = np.empty(indices.shape, data.dtype)
    source, target = _bytes(data), _bytes(output)
    for i, place in _elements_places(indices, data.shape, axis):
        target[i] = source[place]
    return output


def scatter_elements(
    data: Array, indices: Array, updates: Array, axis: int = 0, reduction: str = "none"
) -> Array:
    """Return a copy of `data` with elements updated along `axis`, as ONNX ScatterElements.

    output[i][indices[i][j]] = f(output[i][indices[i][j]], updates[i][j]) where axis = 1.
    """
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    _check_types(data, indices, updates, reduction)
    axis = _elements_axis(data, indices, axis)
    _require(
        updates.shape == indices.shape,
        f"updates {updates.shape}: it must be {indices.shape} as indices are",
    )
    return _update(data, updates, reduction, _elements_places(indices, data.shape, axis))


def _update(data: Array, updates: Array, reduction: str, places: Places) -> Array:
    output = _bytes(data).copy(order="C").view(data.dtype)
    if updates.dtype != data.dtype:
        updates = updates.astype(data.dtype)
    if reduction == "none":
        target, source = _bytes(output), _bytes(updates)
        for i, place in places:
            target[place] = source[i]
        return output
    reduce = REDUCTIONS[reduction]
    with np.errstate(all="ignore"):
        for i, place in places:
            old, new = output[place], updates[i]
            output[place] = reduce(_native(old), _native(new))
    return output


def _add(old: Array, new: Array) -> Array:
    """Return old + new; where both are NaN, the accumulated one survives."""
    if old.dtype.kind == "c":
        return _complex(_add(old.real, new.real), _add(old.imag, new.imag))
    if old.dtype.name == "bfloat16":
        return _add(_wide(new), _wide(old)).astype(old.dtype)
    return _one_nan(old, new, old + new)


def _mul(old: Array, new: Array) -> Array:
    """Return old * new; where both are NaN, the accumulated one survives."""
    if old.dtype.kind == "c":
        real = _sub(_mul(old.real, new.real), _mul(old.imag, new.imag))
        return _complex(real, _add(_mul(old.real, new.imag), _mul(old.imag, new.real)))
    if old.dtype.name == "bfloat16":
        return _mul(_wide(new), _wide(old)).astype(old.dtype)
    return _one_nan(old, new, old * new)


def _max(old: Array, new: Array) -> Array:
    """Return the larger one, or the first NaN; of equals the update, in float16 the old one."""
    stays = old >= new if old.dtype.name == "float16" else old > new
    return np.where(np.isnan(old) | stays, old, new)


def _min(old: Array, new: Array) -> Array:
    """Return the smaller one, or the first NaN; of equals the update, in float16 the old one."""
    stays = old <= new if old.dtype.name == "float16" else old < new
    return np.where(np.isnan(old) | stays, old, new)


REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "add": _add,
    "mul": _mul,
    "max": _max,
    "min": _min,
}


def _sub(left: Array, right: Array) -> Array:
    return _one_nan(left, right, left - right)


def _one_nan(first: Array, second: Array, result: Array) -> Array:
    """Return the result; where it is NaN, the first NaN of the two, or a new negative one."""
    # Processors and compilers differ in which NaN they keep and make; x + x only quiets x.
    if result.dtype.kind != "f":
        return result
    kept = np.where(np.isnan(first), first + first, second + second)
    made = np.copysign(np.array(np.nan, result.dtype), -1)
    nan = np.where(np.isnan(first) | np.isnan(second), kept, made)
    return np.where(np.isnan(result), nan, result)


def _wide(slice_: Array) -> Array:
    return slice_.astype(np.float32)


def _complex(real: Array, imag: Array) -> Array:
    result = np.empty(real.shape, np.result_type(real, np.complex64))
    result.real, result.imag = real, imag
    return result


def _native(slice_: Array) -> Array:
    """Return the slice in this machine's byte order, booleans as 0 and 1."""
    if slice_.dtype.kind == "b":
        return np.not_equal(slice_.view(np.uint8), 0)
    return slice_.astype(slice_.dtype.newbyteorder("="), copy=False)


def _bytes(array: Array) -> Array:
    """Return the array as opaque bytes, so that a move copies padding and odd booleans too."""
    return array.view(np.dtype((np.void, array.dtype.itemsize)))


def _nd_places(indices: Array, shape: Position, b: int) -> Places:
    """Yield (position in indices, place in data) in row-major order, all checked before."""
    places = [
        (i, (*i[:b], *(int(value) for value in indices[i]))) for i in np.ndindex(indices.shape[:-1])
    ]
    return _check_bounds(places, shape, b)


def _elements_places(indices: Array, shape: Position, axis: int) -> Places:
    """Yield (position in indices, place in data) in row-major order, all checked before."""
    places = [(i, (*i[:axis], int(indices[i]), *i[axis + 1 :])) for i in np.ndindex(indices.shape)]
    return _check_bounds(places, shape, None)


def _check_bounds(
    places: list[tuple[Position, Position]], shape: Position, b: int | None
) -> Places:
    bad = [
        (i, axis, value)
        for i, place in places
        for axis, value in enumerate(place)
        if not -shape[axis] <= value < shape[axis]
    ]
    if bad:
        i, axis, value = bad[0]
        raise BoundsError(
            position=i,
            component=None if b is None else axis - b,
            axis=axis,
            value=value,
            size=shape[axis],
            count=len({i for i, _, _ in bad}),
            total=len(places),
        )
    # The ellipsis keeps a single element an array.
    return (((*i, ...), (*place, ...)) for i, place in places)


def _check_types(
    data: Array, indices: Array, updates: Array | None = None, reduction: str = "none"
) -> None:
    if data.dtype.hasobject or not data.dtype.itemsize:
        raise DtypeError(f"data {data.dtype}: elements must have a fixed size above 0")
    if indices.dtype.kind not in "iu":
        raise DtypeError(f"indices {indices.dtype}: they must be integers")
    if updates is not None and not _same_type(data.dtype, updates.dtype):
        raise DtypeError(f"updates {updates.dtype}: they must be {data.dtype} as data is")
    if reduction != "none" and reduction not in REDUCTIONS:
        raise UsageError(f"reduction {reduction!r}: valid none, {', '.join(REDUCTIONS)}")
    ordered = reduction in ("max", "min")
    names = _ORDERED if ordered else _ORDERED + _UNORDERED
    if reduction != "none" and data.dtype.name not in names:
        raise DtypeError(f"data {data.dtype} has no {reduction}: valid {', '.join(names)}")


def _same_type(data: np.dtype[Any], updates: np.dtype[Any]) -> bool:
    """Whether two types are one but for the byte order; a record's fields may not differ in it."""
    if data.names is None and updates.names is None:
        return data.newbyteorder("=") == updates.newbyteorder("=")
    return data == updates


def _elements_axis(data: Array, indices: Array, axis: int) -> int:
    axis, r = whole(axis), data.ndim
    _require(r >= 1 and indices.ndim == r, f"ranks {r} and {indices.ndim}: equal, at least 1")
    _require(-r <= axis < r, f"axis {axis}: valid {-r}..{r - 1}")
    axis %= r
    for d, (size, limit) in enumerate(zip(indices.shape, data.shape, strict=True)):
        _require(d == axis or size <= limit, f"indices axis {d} has size {size}: at most {limit}")
    return axis


def _require(holds: bool, rule: str) -> None:
    if not holds:
        raise RuleError(rule)
