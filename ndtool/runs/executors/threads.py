"""An executor of threads in this process; the thread that waits for outcomes runs tasks too."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from threading import Condition, Thread, current_thread
from typing import Any

from ndtool.machine import pool
from ndtool.runs.executors import Task


class Threads:
    """Starts tasks in the order of submission; a context manager that joins its threads.

    If the system cannot start all threads, fewer run the tasks.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._changed = Condition()
        self._waiting: deque[Task] = deque()
        self._outcomes: deque[tuple[Task, Any]] = deque()
        self._running = 0
        self._helpers: list[Thread] = []  # each appends itself
        self._helping = 0  # helpers that will look for another task

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def completed(self) -> Iterator[tuple[Task, Any]]:
        with self._changed:
            missing = min(self.slots, len(self._waiting)) - 1 - self._helping
        pool.start_threads(self._help, missing)
        while True:
            with self._changed:
                while self._running and not (self._waiting or self._outcomes):
                    self._changed.wait()
                ended = self._outcomes.popleft() if self._outcomes else None
                if ended is None and not self._waiting:
                    return
            if ended is not None:
                yield ended
            else:
                self._do_next()

    def cancel(self, *tasks: Task) -> None:
        dropped = set(tasks)
        with self._changed:
            self._waiting = deque(task for task in self._waiting if task not in dropped)

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._waiting.clear()
        for helper in self._helpers:
            helper.join()

    def _help(self) -> None:
        with self._changed:
            self._helpers.append(current_thread())
            self._helping += 1
        while self._do_next(helps=True):
            pass

    def _do_next(self, helps: bool = False) -> bool:
        """Run the next queued task; return False if there is none.

        helps: whether the caller is a helper, which ends then.
        """
        with self._changed:
            if not self._waiting:
                self._helping -= helps
                return False
            task = self._waiting.popleft()
            self._running += 1
        outcome = task.outcome()
        with self._changed:
            self._running -= 1
            self._outcomes.append((task, outcome))
            self._changed.notify_all()
        return True
