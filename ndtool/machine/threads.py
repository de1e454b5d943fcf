"""Number of threads for a run: the option, OMP_NUM_THREADS, or the available processors."""

import os
from functools import cache

from ndtool.errors import UsageError, format_value
from ndtool.machine import cgroups

MAX_THREADS = 1024
MIN_WORK = 0  # bytes of work per thread; 0: those in which a thread works much longer than it wakes
MEASURED_WORK = range(1 << 18, 1 << 24)  # such bytes


def limit_threads(threads: int, work: int) -> int:
    """Return the number of threads for `work` bytes: MIN_WORK bytes each, at most `threads`."""
    if threads == 1 or (not MIN_WORK and work < 2 * MEASURED_WORK.start):
        return 1
    return max(1, min(threads, work // (MIN_WORK or _measured_work())))


@cache
def _measured_work() -> int:
    """Return the bytes of work from which another thread is worth its start, on this machine."""
    from ndtool import _kernels  # the command line starts without them

    return min(max(8 * _kernels.measure_wake(), MEASURED_WORK.start), MEASURED_WORK[-1])


def resolve_threads(threads: int | None) -> int:
    """Return `threads`, or `default_threads()` if it is None.

    Raises UsageError if `threads` is not in 1..1024.
    """
    if threads is None:
        return default_threads()
    if not 1 <= threads <= MAX_THREADS:
        raise UsageError(f"threads is {format_value(threads)}: it must be in 1..{MAX_THREADS}")
    return threads


@cache
def default_threads() -> int:
    """Return OMP_NUM_THREADS if it is a valid number, else the processors of this process."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if first.isascii() and first.isdecimal() and len(first) < 10 and 1 <= int(first) <= MAX_THREADS:
        return int(first)
    return _available()


def _available() -> int:
    try:
        processors = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # the call is missing or not permitted
        processors = os.cpu_count() or 1
    return min(processors, _quota(processors), MAX_THREADS)


def _quota(default: int) -> int:
    """Return the CPU quota of this process's control groups, `default` if there is none."""
    return cgroups.lowest_limit("cpu", _processors, default)


def _processors(folder: str) -> int | None:
    """Return a group's CPU quota in whole processors, None if unlimited (cgroup v2 or v1)."""
    for names in (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us")):
        fields: list[str] = []
        try:
            for name in names:
                with open(f"{folder}/{name}") as file:
                    fields += file.read().split()
            quota, period = map(int, fields)  # in microseconds; "max" raises ValueError: unlimited
        except (OSError, ValueError):
            continue
        if quota > 0 and period > 0:
            return max(1, quota // period)
    return None
