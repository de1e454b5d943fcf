"""Distances between numbers in units in the last place (ulp)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.oracle.reductions import Array, native

Ulps = NDArray[np.uint64]

INFINITE = 2**64 - 1  # between a number and a NaN, or in types without distances; the largest
_EXTENDED = ("bfloat16", "float8_e3", "float8_e4", "float8_e5")


def distances(x1: Array, x2: Array) -> Ulps:
    """Return distances of elements, counted in representable numbers: 0 only if bits are equal.

    Of integers, the difference; of complex numbers, the larger distance of real and imaginary
    parts. Zeros of different sign, and NaNs of different bits, have distance 1. Both arrays have
    the same type, in any byte order.
    """
    if not has_distances(x1.dtype):
        return np.where(
            (value_bits(x1) != value_bits(x2)).any(axis=1), np.uint64(INFINITE), np.uint64(0)
        )
    with np.errstate(all="ignore"):  # signaling NaNs
        return _distances(native(x1), native(x2))


def _distances(x1: Array, x2: Array) -> Ulps:
    if x1.dtype.kind == "c":
        real, imag = distances(x1.real, x2.real), distances(x1.imag, x2.imag)
        return np.maximum(real, imag)
    if x1.dtype.kind in "iu":
        return _absolute_difference(_as_offsets(x1), _as_offsets(x2))
    result = _absolute_difference(_as_ordered_integers(x1), _as_ordered_integers(x2))
    nans = np.isnan(x1).astype(np.uint8) + np.isnan(x2)
    result[nans == 1] = INFINITE
    result[(nans == 2) & (result > 0)] = 1
    return result


def has_distances(dtype: np.dtype[Any]) -> bool:
    """Whether elements of a type have distances."""
    is_numeric = dtype.kind in "iuc" or (dtype.kind == "f" and dtype.itemsize <= 8)
    return (is_numeric and dtype.name != "complex256") or dtype.name.startswith(_EXTENDED)


def _as_offsets(integers: Array) -> Ulps:
    """Return integers as unsigned offsets from the lowest 64-bit integer."""
    if integers.dtype.kind == "u":
        return integers.astype(np.uint64)
    return integers.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)


def _as_ordered_integers(floats: Array) -> Ulps:
    """Map floats to unsigned integers in the same order; neighbours are consecutive."""
    words = floats.view(f"u{floats.itemsize}").astype(np.uint64)
    sign = np.uint64(1 << (8 * floats.itemsize - 1))
    mask = np.uint64((1 << 8 * floats.itemsize) - 1)
    return np.where(words & sign, ~words & mask, words | sign)


def _absolute_difference(x1: Ulps, x2: Ulps) -> Ulps:
    result: Ulps = np.maximum(x1, x2) - np.minimum(x1, x2)
    return result


def bits(elements: Array) -> NDArray[np.uint8]:
    """Return the bytes of each element as a row."""
    rows = np.ascontiguousarray(elements).view(np.uint8)
    return rows.reshape(len(elements), elements.itemsize)


def value_bits(elements: Array) -> NDArray[np.uint8]:
    """Return the bytes of each element as a row, without the padding of x86-64's long doubles.

    NumPy leaves it undefined when it copies them.
    """
    rows = bits(elements)
    is_padded = elements.dtype.char in "gG" and np.finfo(np.longdouble).nmant == 63
    if not is_padded or not elements.dtype.isnative:
        return rows
    return rows.reshape(-1, np.dtype("g").itemsize)[:, :10].reshape(len(rows), -1)
