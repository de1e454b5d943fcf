"""NumPy arrays' memory as the kernels take it: bytes without gaps, or what strides lead to."""

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
    """Return records as plain bytes, so that a copy takes the gaps between fields along."""
    return array if array.dtype.names is None else array.view(f"V{array.dtype.itemsize}")


def operand(array: Array) -> Operand:
    """Return an array's memory from its lowest byte on, whatever its strides."""
    if array.flags.c_contiguous:
        return Operand(raw(array), 0, array.strides)
    strides, origin, extent = array.strides, 0, 0
    for step, size in zip(strides, array.shape, strict=True):
        if step < 0:
            origin -= step * (size - 1)
        extent += abs(step) * (size - 1)
    return Operand(np.asarray(_Memory(array, origin, extent + array.itemsize)), origin, strides)


def put_right(array: Array, dtype: Dtype, order: str, aligned: bool, team: int) -> Array:
    """Return the bytes of an array in row-major order, of a byte order, aligned if they must be."""
    ready = array.flags.c_contiguous and (dtype.order == order or dtype.unit == 1)
    if ready and (array.flags.aligned or not aligned):
        return raw(array)
    room = np.empty(array.nbytes, np.uint8)
    copy_right(array, dtype, order, room, team)
    return room


def copy_right(array: Array, dtype: Dtype, order: str, room: Array, team: int) -> None:
    """Copy an array to bytes in row-major order, of a byte order."""
    if array.nbytes > tuning.COPIED:
        copies.put_right(operand(array), array.shape, dtype, order, room, team)
        return
    plain = opaque(array)
    np.copyto(room.view(plain.dtype).reshape(plain.shape), plain)
    if dtype.order != order and dtype.unit > 1:
        copies.swap(room, dtype.unit)


class _Memory:
    """The bytes from an array's lowest one on, which it keeps alive; as_strided takes 10 us."""

    def __init__(self, data: Array, origin: int, nbytes: int) -> None:
        self._data = data
        lowest = data.__array_interface__["data"][0] - origin
        self.__array_interface__ = {
            "shape": (nbytes,), "typestr": "|u1", "data": (lowest, True), "version": 3,
        }  # fmt: skip
