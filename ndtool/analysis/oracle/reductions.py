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
    ufunc: the NumPy function of the same result, up to rounding, in any grouping; None without one.
    is_mean: whether results are divided by the number of summands. needs_current: whether current
    values are always included.
    """

    apply: Callable[[Array, Array], Array]
    types: tuple[str, ...]
    ufunc: np.ufunc | None
    is_mean: bool = False
    needs_current: bool = False


def _add(current: Array, update: Array) -> Array:
    """Return current + update; of two NaNs, the current value's."""
    if current.dtype.kind == "c":
        return _complex(_add(current.real, update.real), _add(current.imag, update.imag))
    if current.dtype.name == "bfloat16":
        return _add(_as_float32(update), _as_float32(current)).astype(current.dtype)
    return _propagate_nan(current, update, current + update)


def _mul(current: Array, update: Array) -> Array:
    """Return current * update; of two NaNs, the current value's."""
    if current.dtype.kind == "c":
        real = _sub(_mul(current.real, update.real), _mul(current.imag, update.imag))
        return _complex(
            real, _add(_mul(current.real, update.imag), _mul(current.imag, update.real))
        )
    if current.dtype.name == "bfloat16":
        return _mul(_as_float32(update), _as_float32(current)).astype(current.dtype)
    return _propagate_nan(current, update, current * update)


def _max(current: Array, update: Array) -> Array:
    """Return the larger value or first NaN; of equal ones the update, of float16 the current."""
    keeps_current = current >= update if current.dtype.name == "float16" else current > update
    return np.where(np.isnan(current) | keeps_current, current, update)


def _min(current: Array, update: Array) -> Array:
    """Return the smaller value or first NaN; of equal ones the update, of float16 the current."""
    keeps_current = current <= update if current.dtype.name == "float16" else current < update
    return np.where(np.isnan(current) | keeps_current, current, update)


def _subtract(current: Array, update: Array) -> Array:
    """Return current - update; of two NaNs, the current value's; of booleans, the exclusive or."""
    if current.dtype.kind == "c":
        return _complex(_sub(current.real, update.real), _sub(current.imag, update.imag))
    if current.dtype.kind == "b":
        return current ^ update
    if current.dtype.name == "bfloat16":
        return _sub(_as_float32(current), _as_float32(update)).astype(current.dtype)
    return _sub(current, update)


def _divide(current: Array, update: Array) -> Array:
    """Return current / update; of two NaNs, the current value's."""
    if current.dtype.name == "bfloat16":
        return _divide(_as_float32(current), _as_float32(update)).astype(current.dtype)
    return _propagate_nan(current, update, current / update)


def mean(sums: Array, counts: Array) -> Array:
    """Return sums divided by the counts of their terms; quotients of integers are rounded down."""
    if sums.dtype.kind == "c":
        return _complex(mean(sums.real, counts), mean(sums.imag, counts))
    if sums.dtype.kind in "iu":
        dtype64 = np.uint64 if sums.dtype.kind == "u" else np.int64
        return (sums.astype(dtype64) // counts.astype(dtype64)).astype(sums.dtype)
    if sums.dtype.itemsize == 2:
        return mean(_as_float32(sums), counts).astype(sums.dtype)
    quotients: Array = sums / counts.astype(sums.dtype)
    return quotients


REDUCTIONS = {
    "add": Reduction(_add, ORDERED + COMPLEX, np.add),
    "sub": Reduction(_subtract, ORDERED + COMPLEX, None, needs_current=True),
    "mul": Reduction(_mul, ORDERED + COMPLEX, np.multiply),
    "div": Reduction(_divide, FLOATS, None, needs_current=True),
    "mean": Reduction(_add, ORDERED[1:] + COMPLEX, None, is_mean=True),
    "max": Reduction(_max, ORDERED, np.maximum),
    "min": Reduction(_min, ORDERED, np.minimum),
}


def _sub(x1: Array, x2: Array) -> Array:
    return _propagate_nan(x1, x2, x1 - x2)


def _propagate_nan(x1: Array, x2: Array, result: Array) -> Array:
    """Return the result with each NaN replaced: by that of x1, else of x2, else by the NaN -nan."""
    # Processors and compilers propagate or create different NaNs; x + x is x as a quiet NaN.
    if result.dtype.kind != "f":
        return result
    nans = np.where(np.isnan(x1), x1 + x1, x2 + x2)
    new_nan = np.copysign(np.array(np.nan, result.dtype), -1)
    nan = np.where(np.isnan(x1) | np.isnan(x2), nans, new_nan)
    return np.where(np.isnan(result), nan, result)


def _as_float32(slice_: Array) -> Array:
    return slice_.astype(np.float32)


def _complex(real: Array, imag: Array) -> Array:
    result = np.empty(real.shape, np.result_type(real, np.complex64))
    result.real, result.imag = real, imag
    return result


def native(slice_: Array) -> Array:
    """Return the slice in native byte order, with the bytes of booleans 0 or 1."""
    if slice_.dtype.kind == "b":
        return np.not_equal(slice_.view(np.uint8), 0)
    return slice_.astype(slice_.dtype.newbyteorder("="), copy=False)
