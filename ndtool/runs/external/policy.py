"""The policy of external execution: which tasks are submitted and retried, which attempt counts.

The policy submits a lost task again. It submits a late task again while no other task waits for a
slot; the first attempt that completes counts. After a transient error, such as a full disk or a
server that throttles, it submits the task again after a delay, and reduces the concurrency.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from statistics import median
from typing import Any

from ndtool.errors import NdtoolError, ResourceError, format_count
from ndtool.runs.executors import Executor, Lost, Task

ResultCallback = Callable[[int, Any], None]  # receives a task's number and its result
TASKS_PER_SLOT = 16  # maximum unfinished tasks for each slot
MAX_LOSSES = 3  # workers that a task may lose
LATE_FACTOR = 5  # a task is late after this multiple of the median duration of its phase
MIN_LATE_SECONDS = 5  # and not before
MIN_DURATIONS = 3  # completed tasks from which the median is used
MAX_DURATIONS = 999  # latest completed tasks whose median is used
MAX_RETRIES = 7  # transient errors of a task
BACKOFF = 1  # seconds of delay after the first transient error; each further delay is doubled


class RetryLog:
    """Counts tasks that were restarted or delayed, for the warnings of a run."""

    def __init__(self) -> None:
        self._restarts, self._retries = Counter[str](), Counter[str]()
        self._examples: dict[str, str] = {}  # the first message of each reason

    def add_restart(self, task: Task) -> None:
        """Count a late task that was restarted."""
        self._restarts[task.phase] += 1

    def add_delay(self, error: NdtoolError) -> None:
        """Count a task that was delayed after a transient error."""
        reason = error.message.rpartition(": ")[2]  # without the file or object
        self._examples.setdefault(reason, error.message)
        self._retries[reason] += 1

    def warnings(self) -> list[str]:
        """Return a sentence for each phase with restarts, and for each kind of error."""
        restarts = [
            f"{format_count(count, f'{phase} task')} took {LATE_FACTOR} times as long as others,"
            f" and {'was' if count == 1 else 'were'} restarted on another worker"
            for phase, count in self._restarts.items()
        ]
        delays = [
            f"{self._examples[reason]}: {format_count(count, 'task')}"
            f" {'was' if count == 1 else 'were'} retried later, with fewer at once"
            for reason, count in self._retries.items()
        ]
        return restarts + delays


def complete(
    executor: Executor,
    tasks: Iterable[Task],
    add_result: ResultCallback,
    in_order: bool = False,
    retry_log: RetryLog | None = None,
) -> None:
    """Run tasks to completion, one at a time if in order; resubmit lost ones.

    The first outcome of a task counts. retry_log: counts late tasks, and errors that may pass,
    which end the run without it.
    """
    run = _PhaseRun(
        executor,
        iter(tasks),
        add_result,
        1 if in_order else TASKS_PER_SLOT * executor.slots,
        retry_log,
    )
    try:
        run.submit_next()
        while run.wait():
            for event in executor.completed():
                if event is not None:
                    run.add_outcome(*event)
                run.submit_next()
    finally:
        executor.cancel(*run.unfinished)


def with_retries(action: Callable[[], object]) -> None:
    """Run an action of the client; repeat it after transient errors, with growing delays."""
    for retries in range(MAX_RETRIES):
        try:
            action()
            return
        except NdtoolError as error:
            if not error.passing:
                raise
        time.sleep(_backoff(retries))
    action()


def _backoff(retries: int) -> float:
    """Return the seconds to wait after a transient error that `retries` others preceded."""
    return BACKOFF * 2.0**retries


class _PhaseRun:
    """The tasks of a phase. unfinished: the number of attempts of each submitted task.

    An executor starts tasks in the order of submission, so as many of the first ones are running as
    it has slots.
    """

    def __init__(
        self, executor: Executor, tasks: Iterator[Task], add_result: ResultCallback,
        max_unfinished: int, retry_log: RetryLog | None,
    ) -> None:  # fmt: skip
        self.unfinished: dict[Task, int] = {}
        self._executor, self._tasks, self._add_result = executor, tasks, add_result
        self._max_unfinished, self._limit, self._retry_log = (
            max_unfinished,
            max_unfinished,
            retry_log,
        )
        self._losses, self._retries = Counter[Task](), Counter[Task]()
        self._failures = Counter[Task]()
        self._running: dict[Task, float] = {}  # their start times
        self._queued: dict[Task, None] = {}
        self._delayed: deque[tuple[float, Task]] = deque()
        self._durations: deque[float] = deque(maxlen=MAX_DURATIONS)

    def submit_next(self) -> None:
        """Submit tasks up to the limit of unfinished ones, and restart late tasks."""
        now = self._executor.now()
        for _ in range(len(self._delayed)):
            start, task = self._delayed.popleft()
            if start <= now and len(self.unfinished) < self._limit:
                self._submit(task)
            else:
                self._delayed.append((start, task))
        for task in islice(self._tasks, max(0, self._limit - len(self.unfinished))):
            self._submit(task)
        if self._retry_log is not None and not self._queued:
            self._restart_late_tasks(now, self._retry_log)

    def wait(self) -> bool:
        """If only delayed tasks remain, wait for the first; return False if none remains."""
        if not self.unfinished and self._delayed:
            start = min(start for start, _ in self._delayed)
            self._executor.wait(max(0.0, start - self._executor.now()))
            self.submit_next()
        return bool(self.unfinished or self._delayed)

    def add_outcome(self, task: Task, outcome: Any) -> None:
        """Process the outcome of an attempt."""
        if task not in self.unfinished:  # another attempt completed first
            return
        if isinstance(outcome, Lost):
            self._losses[task] += outcome.losses
            if self._losses[task] > MAX_LOSSES:
                raise ResourceError(
                    f"workers were lost repeatedly in a {task.phase} task",
                    hint="a smaller --memory makes tasks smaller",
                )
            self._executor.submit(task)
            return
        if isinstance(outcome, BaseException):
            self._failures[task] += 1
            if self.unfinished[task] > 1 == self._failures[task]:  # the other attempt may succeed
                self.unfinished[task] -= 1
                return
            self._delay(task, outcome)
            return
        started = self._remove(task)
        if started is not None:
            self._durations.append(self._executor.now() - started)
        self._limit = min(self._max_unfinished, self._limit + 1)
        self._add_result(task.number, outcome)

    def _submit(self, task: Task) -> None:
        self.unfinished[task] = 1
        self._queued[task] = None
        self._record_started()
        self._executor.submit(task)

    def _record_started(self) -> None:
        """Record the start times of tasks for which a slot is free."""
        while self._queued and len(self._running) < self._executor.slots:
            task = next(iter(self._queued))
            del self._queued[task]
            self._running[task] = self._executor.now()

    def _remove(self, task: Task) -> float | None:
        """Remove a task; return its start time, None if it is unknown."""
        if self.unfinished.pop(task) > 1:
            self._executor.cancel(task)
        self._queued.pop(task, None)
        started = self._running.pop(task, None)
        self._record_started()
        return started

    def _delay(self, task: Task, error: BaseException) -> None:
        """Submit a task again later if its error is transient; else raise the error."""
        is_transient = isinstance(error, NdtoolError) and error.passing
        self._retries[task] += 1
        if self._retry_log is None or not is_transient or self._retries[task] > MAX_RETRIES:
            raise error
        assert isinstance(error, NdtoolError)
        self._retry_log.add_delay(error)
        self._remove(task)
        self._limit = max(1, min(self._limit, self._executor.slots) // 2)
        start = self._executor.now() + _backoff(self._retries[task] - 1)
        self._delayed.append((start, task))

    def _restart_late_tasks(self, now: float, retry_log: RetryLog) -> None:
        """Submit late tasks again, if no other task waits for a slot.

        An executor may have queued tasks for the slot of a late one, so that some slots are idle
        although as many tasks are unfinished.
        """
        are_waiting = self._delayed or len(self.unfinished) >= self._limit
        if are_waiting or self._executor.slots < 2 or len(self._durations) < MIN_DURATIONS:
            return
        limit = max(LATE_FACTOR * median(self._durations), MIN_LATE_SECONDS)
        late = [task for task, started in self._running.items() if now - started > limit]
        for task in [task for task in late if self.unfinished[task] == 1]:
            self.unfinished[task] += 1
            retry_log.add_restart(task)
            self._executor.submit(task)
