"""A pool of Python threads for work that blocks on I/O, and reusable buffers for it."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import TypeVar

from ndtool import _kernels

Item = TypeVar("Item")
MAX_THREADS = 8  # threads: more do not write faster, and each has a buffer


def run_all(work: Callable[[Item], object], items: Iterator[Item], threads: int) -> None:
    """Call work(item) for every item, from several threads at once.

    At the first exception, all threads stop after their current item, and it is raised.
    """
    lock, stop = Lock(), Event()
    workers: list[Thread] = []
    failures: list[BaseException] = []

    def loop() -> None:
        try:
            while not stop.is_set():
                with lock:
                    item = next(items, None)
                if item is None:
                    return
                work(item)
        except BaseException as failure:
            failures.append(failure)
            stop.set()

    try:
        if threads > 1:
            # another run may have tested that the system can start threads, and depend on it
            with _kernels.AdmissionLock(), suppress(RuntimeError):  # it may refuse more of them
                for _ in range(min(threads, MAX_THREADS) - 1):
                    workers.append(Thread(target=loop))
                    workers[-1].start()
        loop()
    finally:
        stop.set()
        for worker in workers:
            if worker.ident is not None:  # it was started
                worker.join()
    if failures:
        raise failures[0]


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
