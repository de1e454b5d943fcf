"""NumPy arrays as operands of the kernels: contiguous bytes, or strided memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.engine import copies
from ndtool.engine.bind import Operand
from ndtool.rules.dtypes import Dtype

Array = NDArray[Any]
_BYTE = np.dtype(np.uint8)


def as_bytes(array: Array) -> Array:
    """Return the bytes of a contiguous array, without a copy."""
    return array.ravel().view(_BYTE)


def as_void(array: Array) -> Array:
    """Return a structured array as void bytes, so that copies include the padding of fields."""
    return array if array.dtype.names is None else array.view(f"V{array.dtype.itemsize}")


def as_operand(array: Array) -> Operand:
    """Return an array of any strides as an operand: its memory from the lowest address on."""
    if array.flags.c_contiguous:
        return Operand(as_bytes(array), 0, array.strides)
    strides, origin, extent = array.strides, 0, 0
    for stride, size in zip(strides, array.shape, strict=True):
        if stride < 0:
            origin -= stride * (size - 1)
        extent += abs(stride) * (size - 1)
    return Operand(np.asarray(_Memory(array, origin, extent + array.itemsize)), origin, strides)


def normalize(array: Array, dtype: Dtype, order: str, aligned: bool, team: int) -> Array:
    """Normalize an array: return its bytes in row-major order and the given byte order.

    aligned: whether the bytes must be aligned. An array that is normalized already is not copied.
    """
    is_normalized = array.flags.c_contiguous and (dtype.order == order or dtype.swap_size == 1)
    if is_normalized and (array.flags.aligned or not aligned):
        return as_bytes(array)
    buffer = np.empty(array.nbytes, np.uint8)
    copies.normalize(as_operand(array), array.shape, dtype, order, buffer, team)
    return buffer


class _Memory:
    """The memory of an array from its lowest address on; as_strided would take 10 us."""

    def __init__(self, data: Array, origin: int, nbytes: int) -> None:
        self._data = data
        lowest = data.__array_interface__["data"][0] - origin
        self.__array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (lowest, True), "version": 3,
        }  # fmt: skip
