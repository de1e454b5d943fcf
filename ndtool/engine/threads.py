"""How many threads a run may use."""

import os
from functools import cache

from ndtool.engine import cgroups, tuning
from ndtool.errors import UsageError, shown

MOST = 1024


def team(threads: int, work: int) -> int:
    """Return how many of `threads` to use for `work` bytes."""
    return max(1, min(threads, work // tuning.WORTH))


def resolve(threads: int | None) -> int:
    """Return `threads`, or the default: OMP_NUM_THREADS, else the processors we may use.

    Raises UsageError where `threads` is not in 1..1024.
    """
    if threads is None:
        return default()
    if not 1 <= threads <= MOST:
        raise UsageError(f"threads is {shown(threads)}: it must be in 1..{MOST}")
    return threads


@cache
def default() -> int:
    """Return OMP_NUM_THREADS if it is a number, else the processors that this process may use."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isascii() and first.isdecimal() and len(first) < 10 and 1 <= int(first) <= MOST:
        return int(first)
    return _available()


def _available() -> int:
    try:
        processors = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # not every system has it, or lets everybody ask
        processors = os.cpu_count() or 1
    return min(processors, _quota(processors), MOST)


def _quota(otherwise: int) -> int:
    """Return the whole processors of this process's cgroup (v2 or v1), `otherwise` if unlimited."""
    return cgroups.lowest("cpu", _processors, otherwise)


def _processors(folder: str) -> int | None:
    quota, period = _read_limit(folder)
    return max(1, quota // period) if quota > 0 and period > 0 else None


def _read_limit(folder: str) -> tuple[int, int]:
    """Return (quota, period) in microseconds; a quota of -1 or 0 is none."""
    try:
        with open(folder + "/cpu.max") as file:
            quota, period = file.read().split()
            return (-1 if quota == "max" else int(quota)), int(period)
    except (OSError, ValueError):
        pass
    try:
        with open(folder + "/cpu.cfs_quota_us") as q, open(folder + "/cpu.cfs_period_us") as p:
            return int(q.read()), int(p.read())
    except (OSError, ValueError):
        return -1, 0
