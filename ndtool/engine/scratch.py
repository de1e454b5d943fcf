"""Scratch: memory that the work of one call takes, on huge pages where the system has them."""

import mmap
from collections import deque

from ndtool.errors import ResourceError

_PRIVATE = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # or a forked child would sort in the same memory
# Scratch of the last call, whoever made it: fresh pages cost more than their use.
_spare: deque[mmap.mmap] = deque(maxlen=1)


def take(size: int) -> mmap.mmap:
    """Return at least `size` bytes."""
    try:
        room = _spare.pop()
        if len(room) >= size:
            return room
    except IndexError:
        pass
    try:
        room = mmap.mmap(-1, size, _PRIVATE)
    except OSError:
        raise ResourceError(f"no memory for {size} bytes to work in") from None
    advise(room, "MADV_HUGEPAGE")
    return room


def keep(room: mmap.mmap) -> None:
    """Keep scratch for the next call; its pages are the system's where memory gets short."""
    advise(room, "MADV_FREE")
    _spare.append(room)


def advise(room: mmap.mmap, advice: str) -> None:
    """Tell the system how memory will be used."""
    try:
        room.madvise(getattr(mmap, advice))
    except (OSError, AttributeError):
        pass  # only advice: a system may know the word and not the thing
