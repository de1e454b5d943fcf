"""A pool of Python threads for work that blocks on I/O, and reusable buffers for it."""

from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread, current_thread
from typing import TypeVar

from ndtool import _kernels

Item = TypeVar("Item")
MAX_THREADS = 8  # threads: more do not write faster, and each has a buffer


def run_all(work: Callable[[Item], object], items: Iterator[Item], threads: int) -> None:
    """Call work(item) for every item, from several threads at once.

    At the first exception, all threads stop after their current item, and it is raised.
    """
    lock, stop = Lock(), Event()
    workers: list[Thread] = []  # running threads; each appends itself
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

    def join_loop() -> None:
        with lock:
            if stop.is_set():
                return
            workers.append(current_thread())
        loop()

    try:
        if threads > 1:
            start_threads(join_loop, min(threads, MAX_THREADS) - 1)
        loop()
    finally:
        with lock:
            stop.set()
        for worker in workers:
            worker.join()
    if failures:
        raise failures[0]


def start_threads(target: Callable[[], object], count: int) -> None:
    """Start up to `count` threads, fewer if the system refuses more."""
    # another run may have tested that the system can start threads, and depend on it
    with _kernels.AdmissionLock():
        for _ in range(count):
            try:
                Thread(target=target).start()
            except RuntimeError:
                return


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
