"""Timers: two alternating calls, and a copy of the same bytes by two threads."""

import ctypes
import gc
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Call = Callable[[], Any]
Clock = Callable[[], float]


TICK = 0.025  # seconds after which the system has accounted the CPU time of running threads


def rest() -> None:
    """Wait until none of our threads runs: pools spin after a call, and would slow the next."""
    for _ in range(20):
        used = time.process_time()
        time.sleep(TICK)
        if time.process_time() - used < 0.001:
            return


WARM = 0.03  # seconds in which some systems migrate woken threads between processors


def warm_up(call: Call) -> None:
    until = time.perf_counter() + WARM
    call()
    while time.perf_counter() < until:
        call()


def seconds(call: Call, clock: Clock = time.perf_counter) -> float:
    started = clock()
    call()
    return clock() - started


def clock_of(threads: int) -> Clock:
    """Return the clock of calls: that of one thread excludes time in which it is preempted."""
    return time.process_time if threads == 1 else time.perf_counter


class Pair(NamedTuple):
    """Times of ndtool's call and the peer's, in ms: the median, and the best."""

    ours: float
    theirs: float
    our_best: float
    their_best: float


def alternate(ours: Call, theirs: Call, repeats: int, clock: Clock = time.perf_counter) -> Pair:
    """Time two calls alternately: ours, theirs, ours, theirs, ...

    Each is preceded by calls that are not timed, to warm up.
    """
    times: tuple[list[float], list[float]] = ([], [])
    gc.disable()
    try:
        for _ in range(repeats):
            for call, taken in zip((ours, theirs), times, strict=True):
                rest()
                warm_up(call)
                taken.append(seconds(call, clock) * 1e3)
    finally:
        gc.enable()
    return Pair(*map(median, times), *map(min, times))


def alternate_loops(calls: list[Call], loops: int, repeats: int) -> list[float]:
    """Return the median time of one call each, in us, from loops of alternating calls."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, taken in zip(calls, times, strict=True):
            rest()
            started = time.perf_counter()
            for _ in range(loops):
                call()
            taken.append((time.perf_counter() - started) / loops)
    return [median(taken) * 1e6 for taken in times]


LARGE = 1 << 20  # bytes below which a memcpy by two threads measures their wake-up


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
        other = self._pool.submit(self._part, self._half, self._source.nbytes - self._half)
        self._part(0, self._half)
        other.result()

    def _part(self, begin: int, size: int) -> None:
        self._copy(_address(self._target) + begin, _address(self._source) + begin, size)


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
