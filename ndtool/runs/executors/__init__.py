"""The protocol of executors of tasks, such as threads or a dask cluster.

An executor makes calls concurrently and reports the outcome of each. It knows nothing of
partitions, attempts, resuming or cleanup: the policy (`runs/external/policy.py`) decides which
tasks to submit and to retry, and which outcome counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Protocol, runtime_checkable


class Task(NamedTuple):
    """An idempotent call, call(phase, number), that any process can make."""

    call: Callable[[str, int], Any]
    phase: str
    number: int

    def execute(self) -> Any:
        """Make the call in this thread; return its result, or the exception that it raises."""
        try:
            return self.call(self.phase, self.number)
        except BaseException as error:
            return error


class Lost(NamedTuple):
    """The outcome of a task whose worker was lost; its progress is unknown.

    losses: how many workers were lost before the executor reported it.
    """

    losses: int = 1


class Executor(Protocol):
    """Starts tasks in the order of submission; slots: the number of concurrent tasks.

    An executor may run a task twice.
    """

    @property
    def slots(self) -> int: ...

    def submit(self, task: Task) -> None:
        """Queue a task for a free slot; on another worker, if it is already running."""

    def completed(self) -> Iterator[tuple[Task, Any] | None]:
        """Yield each task with its outcome, in order of completion, until all have finished.

        An outcome is the call's result, its exception, or Lost. Tasks can be submitted meanwhile.
        An executor that can restart tasks on other workers yields None from time to time while it
        waits, so that the caller can detect late tasks. Raises ResourceError if all workers are
        lost.
        """

    def wait(self, seconds: float) -> None:
        """Sleep, when no submitted task is unfinished."""

    def cancel(self, *tasks: Task) -> None:
        """Cancel tasks that have not started, and discard the outcomes of running ones."""

    def now(self) -> float:
        """Return the time in seconds."""


@runtime_checkable
class Cluster(Executor, Protocol):
    """An executor with worker processes. memory: the limit of a task in bytes."""

    @property
    def memory(self) -> int: ...

    def run_on_workers(self, call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        """Make a call in each worker process; return the outcomes by process name."""

    def abort(self, call: Callable[..., Any], *arguments: Any, seconds: float) -> None:
        """Stop the tasks that still run after a failure.

        Kills worker processes that this run started. Other worker processes make the call, with a
        timeout in seconds.
        """
