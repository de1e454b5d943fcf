"""The number of threads for a run (the option, OMP_NUM_THREADS, or the available processors).

Also a pool of Python threads for work that blocks on I/O, reusable buffers for it, and a lock that
stops the threads that write an output before the output is removed.
"""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from threading import Condition, Event, Lock, Thread, get_ident
from typing import TypeVar

from ndtool.errors import OutputError, UsageError, argument_name, format_value
from ndtool.machine import memory

Item = TypeVar("Item")
Result = TypeVar("Result")
MAX_THREADS = 1024
MAX_WRITERS = 8  # threads of a pool: more do not write faster, and each has a buffer
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
    from ndtool._kernels import measure_wake  # the command line starts without them

    return min(max(8 * measure_wake(), MEASURED_WORK.start), MEASURED_WORK[-1])


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
    return memory.lowest_limit("cpu", _processors, default)


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


def run_all(function: Callable[[Item], object], items: Iterable[Item], threads: int) -> None:
    """Call function(item) for every item, from several threads at once, see `map_all`."""
    for _ in map_all(function, items, threads):
        pass


def map_all(
    function: Callable[[Item], Result], items: Iterable[Item], threads: int
) -> Iterator[Result]:
    """Yield function(item) of every item as they complete, from several threads at once.

    This thread is one of them. At the first exception, all stop after their current item, and it is
    raised.
    """
    from ndtool._kernels import AdmissionLock

    lock, stop, remaining = Lock(), Event(), iter(items)
    workers, failures, results = list[Thread](), list[BaseException](), deque[Result]()

    def loop() -> Iterator[Result]:
        while not stop.is_set():
            with lock:
                item = next(remaining, None)
            if item is None:
                return
            yield function(item)

    def work() -> None:
        try:
            for result in loop():
                results.append(result)
        except BaseException as failure:
            failures.append(failure)
            stop.set()

    try:
        if threads > 1:
            # another run may have tested that the system can start threads, and depend on it
            with AdmissionLock(), suppress(RuntimeError):  # it may refuse more of them
                for _ in range(min(threads, MAX_WRITERS) - 1):
                    workers.append(Thread(target=work))
                    workers[-1].start()
        for result in loop():
            yield result
            while results:
                yield results.popleft()
    finally:
        stop.set()
        for worker in workers:
            if worker.ident is not None:  # it was started
                worker.join()
    if failures:
        raise failures[0]
    yield from results


class BufferPool:
    """Free list of buffers of one size, shared by threads."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[memoryview] = []

    def acquire(self) -> memoryview:
        """Return a free buffer; allocate one if there is none."""
        try:
            return self._free.pop()
        except IndexError:
            return memoryview(bytearray(self._size))

    def release(self, buffer: memoryview) -> None:
        """Return a buffer to the free list."""
        self._free.append(buffer)


class AdmissionLock:
    """A lock that admits writers until it is closed, so that none recreates a removed folder.

    name: the output's name in messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._threads, self._closed = list[int](), False  # IDs of the threads that write
        self._changed = Condition()

    @contextmanager
    def admit(self) -> Iterator[None]:
        """Admit a writer; OutputError if the lock is closed."""
        with self._changed:
            if self._closed:
                raise OutputError(f"{argument_name(self._name)}: the run has ended")
            self._threads.append(get_ident())
        try:
            yield
        finally:
            with self._changed:
                self._threads.remove(get_ident())
                self._changed.notify_all()

    def close(self, timeout: float | None = None) -> None:
        """Admit no more writers, and wait for the admitted ones, at most `timeout` seconds.

        Writers of this thread are ignored: if this is called by a signal handler, the handler has
        interrupted the write, which never completes.
        """
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: {*self._threads} <= {get_ident()}, timeout)
