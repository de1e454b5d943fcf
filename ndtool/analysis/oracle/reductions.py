"""The slow reference of every reduction, on arrays of one type in native byte order."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
ORDERED = (
    *("bool", "float16", "bfloat16", "float32", "float64"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
COMPLEX = ("complex64", "complex128")


class Reduction(NamedTuple):
    """A reduction.

    apply: the function of the current values and the updates. types: the element types it has.
    ufunc: NumPy's function, whose updates may be regrouped, up to rounding.
    """

    apply: Callable[[Array, Array], Array]
    types: tuple[str, ...]
    ufunc: np.ufunc | None


def _add(old: Array, new: Array) -> Array:
    """Return old + new; of two NaNs, the accumulated one."""
    if old.dtype.kind == "c":
        return _complex(_add(old.real, new.real), _add(old.imag, new.imag))
    if old.dtype.name == "bfloat16":
        return _add(_wide(new), _wide(old)).astype(old.dtype)
    return _one_nan(old, new, old + new)


def _mul(old: Array, new: Array) -> Array:
    """Return old * new; of two NaNs, the accumulated one."""
    if old.dtype.kind == "c":
        real = _sub(_mul(old.real, new.real), _mul(old.imag, new.imag))
        return _complex(real, _add(_mul(old.real, new.imag), _mul(old.imag, new.real)))
    if old.dtype.name == "bfloat16":
        return _mul(_wide(new), _wide(old)).astype(old.dtype)
    return _one_nan(old, new, old * new)


def _max(old: Array, new: Array) -> Array:
    """Return the larger one, or the first NaN; of equals the update, in float16 the current."""
    stays = old >= new if old.dtype.name == "float16" else old > new
    return np.where(np.isnan(old) | stays, old, new)


def _min(old: Array, new: Array) -> Array:
    """Return the smaller one, or the first NaN; of equals the update, in float16 the current."""
    stays = old <= new if old.dtype.name == "float16" else old < new
    return np.where(np.isnan(old) | stays, old, new)


def _sub(old: Array, new: Array) -> Array:
    """Return old - new, of booleans exclusive or; of two NaNs, the accumulated one."""
    if old.dtype.kind == "b":
        return np.logical_xor(old, new)
    if old.dtype.kind == "c":
        return _complex(_sub(old.real, new.real), _sub(old.imag, new.imag))
    if old.dtype.name == "bfloat16":
        return _sub(_wide(old), _wide(new)).astype(old.dtype)
    return _one_nan(old, new, old - new)


def _div(old: Array, new: Array) -> Array:
    """Return old / new; of two NaNs, the accumulated one."""
    if old.dtype.name == "bfloat16":
        return _div(_wide(old), _wide(new)).astype(old.dtype)
    return _one_nan(old, new, old / new)


FLOATS = ("float16", "bfloat16", "float32", "float64")
REDUCTIONS = {
    "add": Reduction(_add, ORDERED + COMPLEX, np.add),
    "sub": Reduction(_sub, ORDERED + COMPLEX, None),
    "mul": Reduction(_mul, ORDERED + COMPLEX, np.multiply),
    "div": Reduction(_div, FLOATS, None),
    "max": Reduction(_max, ORDERED, np.maximum),
    "min": Reduction(_min, ORDERED, np.minimum),
    "mean": Reduction(_add, ORDERED[1:] + COMPLEX, None),
}


def accumulator(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type in which a mean is summed: float32 for types of two bytes."""
    return np.dtype(np.float32) if dtype.name in ("float16", "bfloat16") else dtype


def mean(total: Array, count: Array, dtype: np.dtype[Any]) -> Array:
    """Return sums divided by counts: of integers rounded down, of floats rounded once to dtype."""
    count = count.reshape(-1, *(1,) * (total.ndim - 1))
    if dtype.kind == "c":
        n = count.astype(total.real.dtype)
        return _complex(_div(total.real, n), _div(total.imag, n))
    if dtype.kind in "iu":
        return (total // count.astype(f"{dtype.kind}8")).astype(dtype)
    return _div(total, count.astype(total.dtype)).astype(dtype)


def _one_nan(first: Array, second: Array, result: Array) -> Array:
    """Return the result, each NaN replaced by the operands' first NaN, or a new negative one."""
    # Processors and compilers differ in the NaN they propagate or make; x + x only quiets x.
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


def native(slice_: Array) -> Array:
    """Return the slice in native byte order, with booleans 0 and 1."""
    if slice_.dtype.kind == "b":
        return np.not_equal(slice_.view(np.uint8), 0)
    return slice_.astype(slice_.dtype.newbyteorder("="), copy=False)
