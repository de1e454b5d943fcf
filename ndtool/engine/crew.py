"""Pieces of work shared out to Python threads, for what waits in the system: reads and writes."""

from collections.abc import Callable, Iterator
from threading import Event, Lock
from typing import TypeVar

from ndtool import _kernels

Item = TypeVar("Item")
MOST = 8  # more do not write faster, and each has a buffer


def share(work: Callable[[Item], object], items: Iterator[Item], threads: int) -> None:
    """Call work(item) for every item, from several threads at once.

    The first failure, or a signal, ends all of them after their current item and is raised.
    """
    lock, stop = Lock(), Event()

    def loop() -> None:
        try:
            while not stop.is_set():
                with lock:
                    item = next(items, None)
                if item is None:
                    return
                work(item)
        except BaseException:
            stop.set()
            raise

    if threads <= 1:
        loop()
        return
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(min(threads, MOST)) as pool:
        try:
            started = []
            with _kernels.Turn():  # to take none that another run was just told it can have
                for _ in range(min(threads, MOST)):
                    try:
                        started.append(pool.submit(loop))
                    except RuntimeError:  # the system has no thread left: fewer do it too
                        break
            if not started:
                loop()
            for one in started:
                one.result()
        except BaseException:
            stop.set()
            raise


class Rooms:
    """Buffers of one size, lent to threads: no more are made than are in use at once."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._free: list[memoryview] = []

    def take(self) -> memoryview:
        """Return a buffer that nobody else has."""
        try:
            return self._free.pop()
        except IndexError:
            return memoryview(bytearray(self._size))

    def give(self, room: memoryview) -> None:
        """Return a buffer for the next one who takes one."""
        self._free.append(room)
