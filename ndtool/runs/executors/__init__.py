"""Executors of tasks, such as threads or a dask cluster: the contract that all of them have.

An executor makes calls, several at once, and reports the outcome of each. It knows nothing of
partitions, attempts, resume or cleanup: the policy (`runs/external/policy.py`) decides which tasks
are submitted and retried, and which outcome counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Task(NamedTuple):
    """An idempotent call, do(phase, number), that any process can make."""

    call: Callable[[str, int], Any]
    phase: str
    number: int

    def outcome(self) -> Any:
        """Make the call in this thread; return its result, or the exception that it raises."""
        try:
            return self.call(self.phase, self.number)
        except BaseException as error:
            return error


class Lost(NamedTuple):
    """The outcome of a task whose worker was lost; its progress is unknown.

    times: the number of losses before the executor reported one.
    """

    losses: int = 1


class Executor(Protocol):
    """Starts tasks in the order of submission; slots: the number of concurrent tasks.

    A task may run twice.
    """

    @property
    def slots(self) -> int: ...

    def submit(self, task: Task) -> None:
        """Queue a task to run when a slot is free; elsewhere, if it is running."""

    def completed(self) -> Iterator[tuple[Task, Any] | None]:
        """Yield each task with its outcome, in order of completion, until none is unfinished.

        An outcome is the call's result, its exception, or Lost. Tasks can be submitted meanwhile.
        An executor that runs attempts elsewhere yields None from time to time while it waits, so
        that late tasks are noticed. Raises ResourceError if no worker is left.
        """

    def wait(self, seconds: float) -> None:
        """Let time pass while no task is unfinished."""

    def cancel(self, *tasks: Task) -> None:
        """Cancel tasks that have not begun, and discard the outcomes of the others."""

    def now(self) -> float:
        """Return the time in seconds, by the clock that tasks run on."""


@runtime_checkable
class Cluster(Executor, Protocol):
    """An executor with worker processes. memory: the limit of a task in bytes."""

    @property
    def memory(self) -> int: ...

    def run_on_workers(self, call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Make a call in each process; return the outcomes by process name."""

    def abort(self, call: Callable[..., Any], *arguments: Any, seconds: float) -> None:
        """Stop the tasks that still run after a failure.

        Kills processes that belong to this run alone; others make the call, with a timeout in
        seconds.
        """
