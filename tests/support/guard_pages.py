"""Arrays between guard pages: an access outside of them ends the process by SIGSEGV.

position: where the next arrays are placed: at the "start" or "end" of the accessible pages, or
"unaligned" after the start.
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
    """Return a buffer between two guard pages; later calls reuse the pages."""
    inner_size = PAGE << ((size + PAGE) // PAGE - 1).bit_length()
    pool = _pools.setdefault(inner_size, deque())
    pages = pool.popleft() if len(pool) == 8 else _map_pages(inner_size)
    pool.append(pages)
    start = PAGE + inner_size - size if position == "end" else PAGE + (position == "unaligned")
    return pages[start : start + size]


def _map_pages(inner_size: int) -> Array:
    """Map pages between two guard pages."""
    protect = ctypes.CDLL(None).mprotect
    protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    pages = np.frombuffer(mmap.mmap(-1, inner_size + 2 * PAGE), np.uint8)
    for guard in (0, PAGE + inner_size):
        if protect(pages.ctypes.data + guard, PAGE, 0):
            raise OSError("mprotect failed")
    return pages


def guarded_copy(array: Array) -> Array:
    """Return a copy of an array between guard pages, with its strides and gaps."""
    low, high = np.lib.array_utils.byte_bounds(array)
    address = array.ctypes.data
    copy = memory_block(high - low if array.size else 0)
    ctypes.memmove(copy.ctypes.data, low, copy.size)
    return np.ndarray(array.shape, array.dtype, copy, address - low, array.strides)


def guarded_buffer(size: int) -> memoryview:
    """Return a nonzero buffer between guard pages, in place of a bytearray for the kernels."""
    global position
    requested = position
    position = "start" if position == "unaligned" else position  # a bytearray is aligned
    buffer, position = memory_block(size), requested
    buffer[: 1 << 14] = 0xA5
    return memoryview(buffer)
