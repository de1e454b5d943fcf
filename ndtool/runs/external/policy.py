"""The policy of external execution: submits tasks, retries lost ones, selects attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from ndtool.errors import BoundsError, ResourceError
from ndtool.runs.executors import Executor, Lost, Task

Take = Callable[[int, Any], None]  # takes a task's number and its result
Note = Callable[[BoundsError], object]  # takes the bounds report
AHEAD = 16  # tasks submitted at once for each slot
LOSSES = 3  # losses of a task, at most


def complete(executor: Executor, tasks: Iterable[Task], take: Take, in_order: bool = False) -> None:
    """Run tasks to completion, one at a time if in order; resubmit lost ones.

    The first outcome of a task counts.
    """
    waiting, unfinished, losses = iter(tasks), set[Task](), Counter[Task]()

    def submit(count: int) -> None:
        for task in islice(waiting, count):
            unfinished.add(task)
            executor.submit(task)

    try:
        submit(1 if in_order else AHEAD * executor.slots)
        for task, outcome in executor.completed():
            if task not in unfinished:  # another attempt counted
                continue
            if isinstance(outcome, Lost):
                losses[task] += outcome.times
                if losses[task] > LOSSES:
                    raise ResourceError(
                        f"workers were lost repeatedly in a {task.phase} task",
                        hint="a smaller --memory makes tasks smaller",
                    )
                executor.submit(task)
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            unfinished.remove(task)
            take(task.number, outcome)
            submit(1)
    finally:
        executor.cancel(*unfinished)
