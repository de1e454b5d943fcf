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
    strides, shape = array.strides, array.shape
    origin = sum(-stride * (n - 1) for stride, n in zip(strides, shape, strict=True) if stride < 0)
    extent = sum(abs(stride) * (n - 1) for stride, n in zip(strides, shape, strict=True))
    lowest = array[(*(-1 if stride < 0 else 0 for stride in strides), ...)]
    first = lowest.reshape(1).view(_BYTE)
    memory = np.lib.stride_tricks.as_strided(first, (extent + first.size,), (1,), writeable=False)
    return Operand(memory, origin, strides)


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
