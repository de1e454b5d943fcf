"""Memory available to this process, including reclaimable page cache; its control groups."""

import os
import re
import sys
from collections.abc import Callable
from functools import cache

MIN_RETURNED = 1 << 22  # bytes from which a freed buffer is returned to the system at once
ASSUMED_BYTES = 1 << 30  # bytes assumed if the system reports none
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt


def parse_size(text: str) -> int | None:
    """Return the bytes of a size such as 500MB, 2GiB or 4G (of 1024); None if it is invalid."""
    match = re.fullmatch(r"([0-9]{1,15})([KMGT]?)(i?B)?", text.strip(), re.ASCII | re.IGNORECASE)
    if match is None:
        return None
    number, unit, suffix = match.groups()
    thousands = unit and suffix and suffix.upper() == "B"
    powers = "KMGT".find(unit.upper()) + 1 if unit else 0
    nbytes: int = int(number) * (1000 if thousands else 1024) ** powers
    return nbytes


def available() -> int:
    """Return the bytes that are free or reclaimable, limited by the control groups."""
    return min(_free(), _group_limit())


@cache
def _group_limit() -> int:
    return lowest_limit("memory", _limit, sys.maxsize)


def can_hold(nbytes: int, limit: int | None = None) -> bool:
    """Whether `nbytes` bytes accessed at random fit in `limit` bytes (default: available())."""
    return nbytes <= (available() if limit is None else limit) // 4 * 3


@cache
def return_freed_memory() -> None:
    """Make the C library return large buffers to the system as soon as they are freed.

    glibc retains freed buffers of up to 32 MiB in each of several threads. Does nothing where
    mallopt is missing. The setting is process-wide, so a library must not call this.
    """
    import ctypes

    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, MIN_RETURNED)
    mallopt(_TRIM_THRESHOLD, 2 * MIN_RETURNED)


def _free() -> int:
    try:
        with open("/proc/meminfo") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) << 10
    except (OSError, ValueError, IndexError):
        pass
    return ASSUMED_BYTES


def _limit(folder: str) -> int | None:
    for name in ("memory.max", "memory.limit_in_bytes"):
        try:
            with open(f"{folder}/{name}") as file:
                return int(file.read())
        except (OSError, ValueError):
            pass  # "max": unlimited
    return None


def lowest_limit(controller: str, limit: Callable[[str], int | None], default: int) -> int:
    """Return the lowest limit from this process's control group up to the root, at most `default`.

    limit: returns the limit set in a group's directory, None if unlimited.
    """
    roots = {"": "/sys/fs/cgroup", controller: f"/sys/fs/cgroup/{controller}"}
    limits = [default]
    try:
        with open("/proc/self/cgroup") as lines:
            for line in lines:
                _, names, path = line.rstrip("\n").split(":", 2)
                for name in names.split(","):
                    if name in roots:
                        limits += _limits(roots[name], path, limit)
    except (OSError, ValueError):
        pass
    return min(limits)


def _limits(mount: str, path: str, limit: Callable[[str], int | None]) -> list[int]:
    """Return the limits from a group up to the root."""
    limits = []
    while True:
        value = limit(mount + path)
        if value is not None:
            limits.append(value)
        if path in ("", "/"):
            return limits
        path = os.path.dirname(path)
