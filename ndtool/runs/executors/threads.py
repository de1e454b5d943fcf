"""An executor with threads of this process; the thread that waits for outcomes runs tasks, too."""

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

    If the system cannot start all threads, fewer threads run the tasks.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._changed = Condition()
        self._waiting: deque[Task] = deque()
        self._outcomes: deque[tuple[Task, Any]] = deque()
        self._running = 0
        self._threads: list[Thread] = []  # each thread appends itself
        self._active_count = 0  # threads that will request another task

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def completed(self) -> Iterator[tuple[Task, Any]]:
        with self._changed:
            thread_count = min(self.slots, len(self._waiting)) - 1 - self._active_count
        pool.start_threads(self._run_tasks, thread_count)
        while True:
            with self._changed:
                while self._running and not (self._waiting or self._outcomes):
                    self._changed.wait()
                result = self._outcomes.popleft() if self._outcomes else None
                if result is None and not self._waiting:
                    return
            if result is not None:
                yield result
            else:
                self._run_next()

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
        for thread in self._threads:
            thread.join()

    def _run_tasks(self) -> None:
        with self._changed:
            self._threads.append(current_thread())
            self._active_count += 1
        while self._run_next(is_helper=True):
            pass

    def _run_next(self, is_helper: bool = False) -> bool:
        """Run the next queued task; return False if there is none.

        is_helper: whether the caller is one of the executor's threads, which then ends.
        """
        with self._changed:
            if not self._waiting:
                self._active_count -= is_helper
                return False
            task = self._waiting.popleft()
            self._running += 1
        outcome = task.execute()
        with self._changed:
            self._running -= 1
            self._outcomes.append((task, outcome))
            self._changed.notify_all()
        return True
