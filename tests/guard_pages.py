"""Arrays between guard pages: an access outside of them ends the process.

position: the alignment of the next arrays: "start" or "end" of the accessible pages, or "unaligned".
"""

import ctypes
import mmap
from collections import deque
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

PAGE = mmap.PAGESIZE
position = "end"
_pools: dict[int, deque[Array]] = {}


def memory_block(size: int) -> Array:
    """Return bytes between two guard pages; later calls reuse them."""
    inner = PAGE << ((size + PAGE) // PAGE - 1).bit_length()
    made = _pools.setdefault(inner, deque())
    whole = made.popleft() if len(made) == 8 else _pages(inner)
    made.append(whole)
    begin = PAGE + inner - size if position == "end" else PAGE + (position == "unaligned")
    return whole[begin : begin + size]


def _pages(inner: int) -> Array:
    """Map pages between two guard pages."""
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    whole = np.frombuffer(mmap.mmap(-1, inner + 2 * PAGE), np.uint8)
    for guard in (0, PAGE + inner):
        if protect(whole.ctypes.data + guard, PAGE, 0):
            raise OSError("mprotect failed")
    return whole


def guarded_copy(array: Array) -> Array:
    """Return a copy of an array between guard pages, with its strides and gaps."""
    low, high = np.lib.array_utils.byte_bounds(array)
    first = array.ctypes.data
    copy = memory_block(high - low if array.size else 0)
    ctypes.memmove(copy.ctypes.data, low, copy.size)
    return np.ndarray(array.shape, array.dtype, copy, first - low, array.strides)


def guarded_buffer(size: int) -> memoryview:
    """Replace bytearray: buffers for the kernels are between guard pages, too, and not zero."""
    global position
    position, requested = (
        "start" if position == "unaligned" else position,
        position,
    )  # bytearrays are aligned
    made, position = memory_block(size), requested
    made[: 1 << 14] = 0xA5
    return memoryview(made)
