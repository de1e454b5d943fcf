"""The slow reference of every reduction, on arrays of one type in native byte order."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
ORDERED = (
    *("bool", "float16", "bfloat16", "float32", "float64"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
FLOATS = ORDERED[1:5]
COMPLEX = ("complex64", "complex128")


class Reduction(NamedTuple):
    """A reduction.

    apply: the function of the current values and the updates. types: the element types it has.
    ufunc: NumPy's function, whose updates may be regrouped, up to rounding.
    """

    apply: Callable[[Array, Array], Array]
    types: tuple[str, ...]
    ufunc: np.ufunc | None


def _add(current: Array, update: Array) -> Array:
    """Return current + update; of two NaNs, the accumulated one."""
    if current.dtype.kind == "c":
        return _complex(_add(current.real, update.real), _add(current.imag, update.imag))
    if current.dtype.name == "bfloat16":
        return _add(_wide(update), _wide(current)).astype(current.dtype)
    return _one_nan(current, update, current + update)


def _mul(current: Array, update: Array) -> Array:
    """Return current * update; of two NaNs, the accumulated one."""
    if current.dtype.kind == "c":
        real = _sub(_mul(current.real, update.real), _mul(current.imag, update.imag))
        return _complex(
            real, _add(_mul(current.real, update.imag), _mul(current.imag, update.real))
        )
    if current.dtype.name == "bfloat16":
        return _mul(_wide(update), _wide(current)).astype(current.dtype)
    return _one_nan(current, update, current * update)


def _max(current: Array, update: Array) -> Array:
    """Return the larger value or the first NaN; of equals the update, in float16 the current."""
    keeps_current = current >= update if current.dtype.name == "float16" else current > update
    return np.where(np.isnan(current) | keeps_current, current, update)


def _min(current: Array, update: Array) -> Array:
    """Return the smaller value or the first NaN; of equals the update, in float16 the current."""
    keeps_current = current <= update if current.dtype.name == "float16" else current < update
    return np.where(np.isnan(current) | keeps_current, current, update)


def _subtract(current: Array, update: Array) -> Array:
    """Return current - update; of NaNs, the accumulated one; of booleans, whether they differ."""
    if current.dtype.kind == "c":
        return _complex(_sub(current.real, update.real), _sub(current.imag, update.imag))
    if current.dtype.kind == "b":
        return current ^ update
    if current.dtype.name == "bfloat16":
        return _sub(_wide(current), _wide(update)).astype(current.dtype)
    return _sub(current, update)


def _divide(current: Array, update: Array) -> Array:
    """Return current / update; of two NaNs, the accumulated one."""
    if current.dtype.name == "bfloat16":
        return _divide(_wide(current), _wide(update)).astype(current.dtype)
    return _one_nan(current, update, current / update)


def mean(total: Array, count: Array) -> Array:
    """Return the sums divided by the numbers of summands: of integers, rounded down."""
    if total.dtype.kind == "c":
        return _complex(mean(total.real, count), mean(total.imag, count))
    if total.dtype.kind in "iu":
        wide = np.uint64 if total.dtype.kind == "u" else np.int64
        return (total.astype(wide) // count.astype(wide)).astype(total.dtype)
    if total.dtype.itemsize == 2:
        return mean(_wide(total), count).astype(total.dtype)
    divided: Array = total / count.astype(total.dtype)
    return divided


REDUCTIONS = {
    "add": Reduction(_add, ORDERED + COMPLEX, np.add),
    "sub": Reduction(_subtract, ORDERED + COMPLEX, None),
    "mul": Reduction(_mul, ORDERED + COMPLEX, np.multiply),
    "div": Reduction(_divide, FLOATS, None),
    "mean": Reduction(_add, ORDERED[1:] + COMPLEX, None),  # then divided by `mean`
    "max": Reduction(_max, ORDERED, np.maximum),
    "min": Reduction(_min, ORDERED, np.minimum),
}


def _sub(left: Array, right: Array) -> Array:
    return _one_nan(left, right, left - right)


def _one_nan(first: Array, second: Array, result: Array) -> Array:
    """Return the result, each NaN replaced by the operands' first NaN, or a new negative one."""
    # Processors and compilers differ in the NaN they propagate or make; x + x only quiets x.
    if result.dtype.kind != "f":
        return result
    nans = np.where(np.isnan(first), first + first, second + second)
    new_nan = np.copysign(np.array(np.nan, result.dtype), -1)
    nan = np.where(np.isnan(first) | np.isnan(second), nans, new_nan)
    return np.where(np.isnan(result), nan, result)


def _wide(slice_: Array) -> Array:
    return slice_.astype(np.float32)


def _complex(real: Array, imag: Array) -> Array:
    result = np.empty(real.shape, np.result_type(real, np.complex64))
    result.real, result.imag = real, imag
    return result


def native(slice_: Array) -> Array:
    """Return the slice in native byte order, with booleans 0 and 1."""
    if slice_.dtype.kind == "b":
        return np.not_equal(slice_.view(np.uint8), 0)
    return slice_.astype(slice_.dtype.newbyteorder("="), copy=False)
