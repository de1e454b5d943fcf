"""Scratch memory for one call, on huge pages where the system has them."""

import mmap
from collections import deque

from ndtool.errors import ResourceError

PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # or a forked child would share the memory
# Scratch of the last call, for reuse: faulting in new pages costs more than the work on them.
_cached: deque[mmap.mmap] = deque(maxlen=1)


def acquire(size: int) -> mmap.mmap:
    """Return at least `size` bytes of scratch memory; ResourceError if there is too little."""
    try:
        buffer = _cached.pop()
        if len(buffer) >= size:
            return buffer
    except IndexError:
        pass
    try:
        buffer = mmap.mmap(-1, size, PRIVATE)
    except OSError:
        raise ResourceError(f"not enough memory for a buffer of {size} bytes") from None
    advise(buffer, "MADV_HUGEPAGE")
    return buffer


def release(buffer: mmap.mmap) -> None:
    """Cache scratch memory for the next call; the system may reclaim its pages."""
    advise(buffer, "MADV_FREE")
    _cached.append(buffer)


def advise(buffer: mmap.mmap, advice: str) -> None:
    """Call madvise on scratch memory; errors are ignored."""
    try:
        buffer.madvise(getattr(mmap, advice))
    except (OSError, AttributeError):
        pass  # only advice: a system may define the constant and not support it
