"""Pieces of work shared out to Python threads, for what waits in the system: reads and writes."""

from collections.abc import Callable, Iterator
from threading import Event, Lock, Thread, current_thread
from typing import TypeVar

from ndtool import _kernels

Item = TypeVar("Item")
MOST = 8  # more do not write faster, and each has a buffer


def share(work: Callable[[Item], object], items: Iterator[Item], threads: int) -> None:
    """Call work(item) for every item, from several threads at once.

    The first failure, or a signal, ends all of them after their current item and is raised.
    """
    lock, stop = Lock(), Event()
    others: list[Thread] = []  # those that work, each of which has put itself down
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

    def help_out() -> None:
        with lock:
            if stop.is_set():
                return
            others.append(current_thread())
        loop()

    try:
        if threads > 1:
            _start(help_out, min(threads, MOST) - 1)
        loop()
    finally:
        with lock:
            stop.set()
        for other in others:
            other.join()
    if failures:
        raise failures[0]


def _start(target: Callable[[], object], count: int) -> None:
    """Start up to `count` threads; where the system has none left, fewer do the work."""
    with _kernels.Turn():  # to take none that another run was just told it can have
        for _ in range(count):
            try:
                Thread(target=target).start()
            except RuntimeError:
                return


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
