"""NumPy arrays as operands of the kernels: contiguous bytes, or memory with strides."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.engine import copies, tuning
from ndtool.engine.bind import Operand
from ndtool.rules.dtypes import Dtype

Array = NDArray[Any]
_BYTE = np.dtype(np.uint8)


def raw(array: Array) -> Array:
    """Return the bytes of a contiguous array, without a copy."""
    return array.ravel().view(_BYTE)


def opaque(array: Array) -> Array:
    """Return a structured array as void bytes, so that copies include the padding of fields."""
    return array if array.dtype.names is None else array.view(f"V{array.dtype.itemsize}")


def operand(array: Array) -> Operand:
    """Return an array of any strides as an operand: its memory from the lowest address on."""
    if array.flags.c_contiguous:
        return Operand(raw(array), 0, array.strides)
    strides, origin, extent = array.strides, 0, 0
    for step, size in zip(strides, array.shape, strict=True):
        if step < 0:
            origin -= step * (size - 1)
        extent += abs(step) * (size - 1)
    return Operand(np.asarray(_Memory(array, origin, extent + array.itemsize)), origin, strides)


def normalize(array: Array, dtype: Dtype, order: str, aligned: bool, team: int) -> Array:
    """Normalize an array: return its bytes in row-major order and the given byte order.

    aligned: whether the bytes must be aligned. Copies only what is not normalized.
    """
    ready = array.flags.c_contiguous and (dtype.order == order or dtype.unit == 1)
    if ready and (array.flags.aligned or not aligned):
        return raw(array)
    buffer = np.empty(array.nbytes, np.uint8)
    copy_normalized(array, dtype, order, buffer, team)
    return buffer


def copy_normalized(array: Array, dtype: Dtype, order: str, buffer: Array, team: int) -> None:
    """Copy an array to a buffer, in row-major order and the given byte order."""
    if array.nbytes > tuning.NUMPY_COPY:
        copies.normalize(operand(array), array.shape, dtype, order, buffer, team)
        return
    plain = opaque(array)
    np.copyto(buffer.view(plain.dtype).reshape(plain.shape), plain)
    if dtype.order != order and dtype.unit > 1:
        copies.swap_bytes(buffer, dtype.unit)


class _Memory:
    """The bytes from an array's lowest address, which keep it alive; as_strided takes 10 us."""

    def __init__(self, data: Array, origin: int, nbytes: int) -> None:
        self._data = data
        lowest = data.__array_interface__["data"][0] - origin
        self.__array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (lowest, True), "version": 3,
        }  # fmt: skip
