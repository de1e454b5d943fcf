"""Timers: two alternating calls, and a copy of the same bytes by two threads."""

import ctypes
import gc
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Call = Callable[[], Any]
Clock = Callable[[], float]

ACCOUNTING_PERIOD = 0.025  # seconds after which the system has counted all CPU time
WARM_UP_TIME = 0.03  # seconds in which some systems migrate woken threads between processors


def use_two_cores() -> None:
    """Pin the process to two cores; libraries without a setting for threads follow this."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cpus = sorted(os.sched_getaffinity(0))
    siblings = {cpus[0]}  # processors that share a core with the first one
    path = Path(f"/sys/devices/system/cpu/cpu{cpus[0]}/topology/thread_siblings_list")
    try:
        for cpu_range in path.read_text().strip().split(","):
            first, _, last = cpu_range.partition("-")
            siblings.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        pass
    os.sched_setaffinity(0, {cpus[0], *[cpu for cpu in cpus if cpu not in siblings][:1]})


def wait_until_idle(period: float = ACCOUNTING_PERIOD) -> None:
    """Wait until none of our threads runs: pools spin after a call, and would slow the next."""
    for _ in range(100):
        cpu_time = time.process_time()
        time.sleep(period)
        if time.process_time() - cpu_time < period / 20:
            return


def warm_up(call: Call) -> None:
    deadline = time.perf_counter() + WARM_UP_TIME
    call()
    while time.perf_counter() < deadline:
        call()


def seconds(call: Call, clock: Clock = time.perf_counter) -> float:
    start = clock()
    call()
    return clock() - start


def select_clock(threads: int) -> Clock:
    """Return the clock of calls: that of one thread excludes time in which it is preempted."""
    return time.process_time if threads == 1 else time.perf_counter


class PairedTimes(NamedTuple):
    """Times of two alternating calls, in ms: the medians, and the best."""

    first: float
    second: float
    first_best: float
    second_best: float


def alternate(
    ndtool: Call, peer: Call, repeats: int, clock: Clock = time.perf_counter
) -> PairedTimes:
    """Time two calls alternately: ndtool, peer, ndtool, peer, ...

    Each is preceded by calls that are not timed, to warm up.
    """
    times: tuple[list[float], list[float]] = ([], [])
    gc.disable()
    try:
        for _ in range(repeats):
            for call, elapsed in zip((ndtool, peer), times, strict=True):
                wait_until_idle()
                warm_up(call)
                elapsed.append(seconds(call, clock) * 1e3)
    finally:
        gc.enable()
    return PairedTimes(*map(median, times), *map(min, times))


def alternate_loops(calls: list[Call], loops: int, repeats: int) -> list[float]:
    """Return the median time of one call each, in us, from loops of alternating calls."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, elapsed in zip(calls, times, strict=True):
            wait_until_idle()
            start = time.perf_counter()
            for _ in range(loops):
                call()
            elapsed.append((time.perf_counter() - start) / loops)
    return [median(elapsed) * 1e6 for elapsed in times]


MIN_MEMCPY = 1 << 20  # bytes below which a memcpy by two threads measures their wake-up


class Memcpy:
    """libc's memcpy of `nbytes`, divided between two threads, between reused buffers."""

    def __init__(self, nbytes: int, pool: ThreadPoolExecutor) -> None:
        self._source = np.ones(nbytes, np.uint8)
        self._target = np.zeros(nbytes, np.uint8)
        self._pool = pool
        self._half = nbytes // 2 // 64 * 64
        self._copy = ctypes.CDLL(None).memcpy
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
        self._copy.restype = ctypes.c_void_p
        self()

    def __call__(self) -> None:
        remaining = self._source.nbytes - self._half
        second_half = self._pool.submit(self._copy_half, self._half, remaining)
        self._copy_half(0, self._half)
        second_half.result()

    def _copy_half(self, offset: int, size: int) -> None:
        self._copy(_address(self._target) + offset, _address(self._source) + offset, size)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
