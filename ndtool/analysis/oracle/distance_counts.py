"""Distances between numbers in units in the last place (ulp)."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis.oracle.reductions import Array, native

Ulps = NDArray[np.uint64]

INFINITE = 2**64 - 1  # of a number and a NaN, or of types without distances; larger than any other
_EXTENDED = ("bfloat16", "float8_e3", "float8_e4", "float8_e5")


def distances(left: Array, right: Array) -> Ulps:
    """Return the distances of elements in representable numbers: 0 only if all bits are equal.

    Integers: the difference. Complex numbers: the larger distance of the two parts. Zeros of
    different sign, and NaNs of different bits, have distance 1. Both arrays have one type, in any
    byte order.
    """
    if not measurable(left.dtype):
        return np.where((bits(left) != bits(right)).any(axis=1), np.uint64(INFINITE), np.uint64(0))
    with np.errstate(all="ignore"):  # signaling NaNs
        return _distances(native(left), native(right))


def _distances(left: Array, right: Array) -> Ulps:
    if left.dtype.kind == "c":
        real, imag = distances(left.real, right.real), distances(left.imag, right.imag)
        return np.maximum(real, imag)
    if left.dtype.kind in "iu":
        return _absolute_difference(_as_offsets(left), _as_offsets(right))
    result = _absolute_difference(_as_ordered_integers(left), _as_ordered_integers(right))
    nans = np.isnan(left).astype(np.uint8) + np.isnan(right)
    result[nans == 1] = INFINITE
    result[(nans == 2) & (result > 0)] = 1
    return result


def measurable(dtype: np.dtype[Any]) -> bool:
    """Whether elements of a type have distances."""
    plain = dtype.kind in "iuc" or (dtype.kind == "f" and dtype.itemsize <= 8)
    return (plain and dtype.name != "complex256") or dtype.name.startswith(_EXTENDED)


def _as_offsets(integers: Array) -> Ulps:
    """Return integers as unsigned offsets from the lowest 64-bit integer."""
    if integers.dtype.kind == "u":
        return integers.astype(np.uint64)
    return integers.astype(np.int64).view(np.uint64) ^ np.uint64(1 << 63)


def _as_ordered_integers(floats: Array) -> Ulps:
    """Return integers in the order of floats, consecutive for neighbours."""
    words = floats.view(f"u{floats.itemsize}").astype(np.uint64)
    sign = np.uint64(1 << (8 * floats.itemsize - 1))
    mask = np.uint64((1 << 8 * floats.itemsize) - 1)
    return np.where(words & sign, ~words & mask, words | sign)


def _absolute_difference(left: Ulps, right: Ulps) -> Ulps:
    result: Ulps = np.maximum(left, right) - np.minimum(left, right)
    return result


def opaque(array: Array) -> Array:
    """Return records as void bytes, as copies of records would drop the padding of fields."""
    return array if array.dtype.names is None else array.view(f"V{array.dtype.itemsize}")


def bits(elements: Array) -> NDArray[np.uint8]:
    """Return the bytes of each element as a row."""
    rows = np.ascontiguousarray(elements).view(np.uint8)
    return rows.reshape(len(elements), elements.itemsize)
