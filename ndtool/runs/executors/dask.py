"""An executor that submits each task to a dask.distributed cluster as a future, without a graph."""

from __future__ import annotations

import gc
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread
from typing import Any

from ndtool.errors import NdtoolError, ResourceError, UsageError, library_message, printable
from ndtool.machine import memory
from ndtool.redaction import register
from ndtool.runs import executors
from ndtool.runs.executors import Lost, Task

ANSWER_TIMEOUT = 10  # seconds to wait for the scheduler
JOIN_TIMEOUT = 60  # seconds to wait for the first worker
WORKER_TIMEOUT = 60  # seconds after which a run without workers fails
CHECK_INTERVAL = 1  # seconds between checks for workers
_MAX_CHARACTERS = 1 << 20  # of a scheduler file
_LOGGERS = "distributed", "distributed.client"  # the package's loggers that have handlers


class Cluster:
    """A connection to a scheduler. slots: threads of all workers. memory: bytes for each thread.

    local: the number of workers that this run started. kill: a function that kills them.
    """

    def __init__(
        self, client: Any, limit: int | None, local: int | None, kill: Callable[[], None] | None
    ) -> None:
        self._client, self._kill = client, kill
        workers = self._identity(-1)["workers"].values()
        self.slots = sum(worker["nthreads"] for worker in workers)
        threads = max(worker["nthreads"] for worker in workers)
        if limit is None:
            limits = [worker["memory_limit"] for worker in workers if worker["memory_limit"]]
            limit = min(limits, default=memory.available() // (local or len(workers)))
        self.memory = limit // threads
        self._tasks: dict[Any, Task] = {}  # by future
        self._completed_futures = library().as_completed(
            loop=client.loop, with_results=True, raise_errors=False
        )
        self._token, self._submitted = os.urandom(8).hex(), 0
        self._seconds_without_worker = 0.0  # seconds without a worker

    def submit(self, task: Task) -> None:
        self._submitted += 1
        key = f"ndtool-{task.phase}-{task.number}-{self._token}-{self._submitted}"
        options = {"key": key, "pure": False, **self._worker_options(task)}
        future = self._request(self._client.submit, *task, **options)
        self._tasks[future] = task
        self._completed_futures.add(future)

    def completed(self) -> Iterator[tuple[Task, Any] | None]:
        while self._tasks:
            if not self._wait_for_outcome():
                yield None
                continue
            future, outcome = next(self._completed_futures)
            if future not in self._tasks:  # cancelled
                continue
            if future.status == "error":
                _, error, trace = outcome
                outcome = error.with_traceback(trace)
            if isinstance(outcome, library().KilledWorker):
                outcome = Lost(outcome.allowed_failures + 1)
            if isinstance(outcome, _connection_errors()):
                self._tasks.clear()  # without a scheduler, none can be cancelled
                raise _connection_lost()
            yield self._tasks.pop(future), outcome

    def _worker_options(self, task: Task) -> dict[str, Any]:
        """Return options of submit that prefer workers which are not running the task."""
        keys = {future.key for future, submitted in self._tasks.items() if submitted == task}
        if not keys:
            return {}
        running = self._request(self._client.processing)
        idle_workers = [name for name, tasks in running.items() if not keys.intersection(tasks)]
        return {"workers": idle_workers, "allow_other_workers": True} if idle_workers else {}

    def cancel(self, *tasks: Task) -> None:
        dropped = set(tasks)
        futures = [future for future, task in self._tasks.items() if task in dropped]
        for future in futures:
            del self._tasks[future]
        if futures:
            self._client.cancel(futures, force=True, reason="the run ended")

    def wait(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    def _wait_for_outcome(self) -> bool:
        """Wait CHECK_INTERVAL seconds for a completed task; return whether one is available.

        Raises ResourceError if the cluster has had no worker for WORKER_TIMEOUT seconds.
        """
        changed = self._completed_futures.thread_condition
        with changed:
            if changed.wait_for(self._completed_futures.has_ready, CHECK_INTERVAL):
                self._seconds_without_worker = 0.0
                return True
        self._seconds_without_worker = (
            0.0 if self._identity(0)["n_workers"] else self._seconds_without_worker + CHECK_INTERVAL
        )
        if self._seconds_without_worker > WORKER_TIMEOUT:
            raise ResourceError(
                f"no worker is left, and none has joined in {WORKER_TIMEOUT} seconds"
            )
        return False

    def _identity(self, workers: int) -> Any:
        """Return the scheduler's identity, including up to `workers` workers; -1 for all."""
        identity = self._client.scheduler.identity
        return self._request(self._client.sync, identity, n_workers=workers)

    def _request(self, call: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Send a request to the scheduler; ResourceError if the connection is lost."""
        connection_errors: tuple[type[BaseException], ...] = (*_connection_errors(), OSError)
        try:
            return call(*arguments, **options)
        except connection_errors:
            raise _connection_lost() from None

    def run_on_workers(self, call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        outcomes: dict[str, Any] = self._request(
            self._client.run, call, *arguments, on_error="return"
        )
        return outcomes

    def abort(self, call: Callable[..., Any], *arguments: Any, seconds: float) -> None:
        if self._kill is not None:
            self._kill()
            return

        def request() -> None:
            with suppress(*_connection_errors(), OSError):
                self._client.run(call, *arguments, on_error="ignore")

        thread = Thread(target=request, daemon=True)
        thread.start()
        thread.join(seconds)


def _connection_lost() -> ResourceError:
    return ResourceError("the connection to the scheduler was lost")


def _connection_errors() -> tuple[type[BaseException], ...]:
    """Return the exceptions that the package raises if the connection to the scheduler is lost."""
    from asyncio import CancelledError
    from concurrent import futures

    closed: type[BaseException] = library().comm.CommClosedError
    return closed, CancelledError, futures.CancelledError, TimeoutError, StopIteration


@contextmanager
def connect(
    scheduler: Any, workers: int | None, threads: int, limit: int | None
) -> Iterator[executors.Cluster]:
    """Connect to a cluster, or start one of `workers` processes until the context ends.

    scheduler: an address, the path of a scheduler file, a client, or an executor, which is yielded
    unchanged; None to start a cluster.
    """
    if scheduler is not None and workers is not None:
        raise UsageError("--scheduler and --workers: expected one of them")
    if isinstance(scheduler, executors.Cluster):
        yield scheduler
        return
    distributed, kill = library(), None
    with ExitStack() as stack:
        if scheduler is None:
            assert workers is not None, "a scheduler or workers are given"
            from ndtool.runs.executors import localcluster

            local_cluster, kill = stack.enter_context(
                localcluster.cluster(workers, threads, JOIN_TIMEOUT)
            )
            client = stack.enter_context(distributed.Client(local_cluster, set_as_default=False))
        elif isinstance(scheduler, str):
            for name in _LOGGERS:  # the client raises the same errors as exceptions
                silenced = distributed.utils.silence_logging_cmgr(logging.CRITICAL + 1, name)
                stack.enter_context(silenced)
            client = stack.enter_context(_client(distributed, scheduler))
        else:
            client = scheduler
        try:
            client.wait_for_workers(1, timeout=JOIN_TIMEOUT)
        except TimeoutError:
            raise ResourceError(
                f"no worker has joined the cluster in {JOIN_TIMEOUT} seconds"
            ) from None
        yield Cluster(client, limit, workers, kill)


def library() -> Any:
    """Import the distributed package; UsageError if it is missing."""
    try:
        import distributed
    except ImportError:
        raise UsageError(
            "a cluster needs the distributed package", hint="pip install 'ndtool[cluster]'"
        ) from None
    return distributed


def _client(distributed: Any, scheduler: str) -> Any:
    is_file = "://" not in scheduler and (os.path.exists(scheduler) or scheduler.endswith(".json"))
    display_name = printable(
        scheduler if is_file or "://" in scheduler else scheduler.rpartition("@")[2]
    )
    address = _address(scheduler) if is_file else scheduler
    register(address)
    try:
        return distributed.Client(address, timeout=ANSWER_TIMEOUT, set_as_default=False)
    except ValueError as exc:
        error: NdtoolError = UsageError(
            f"--scheduler {display_name} is not an address: {library_message(exc)}:"
            " expected tcp://host:port, or a scheduler file"
        )
    except Exception as exc:  # the package documents no exception type
        error = ResourceError(
            f"{display_name}: cannot connect to a scheduler: {library_message(exc)}"
        )
    gc.collect()  # closes the failed client now: while another client starts, it would deadlock
    raise error


def _address(file: str) -> str:
    """Return the address in a scheduler file; UsageError if it has none."""
    if not os.path.exists(file):
        raise UsageError(f"{printable(file)}: there is no such scheduler file")
    try:
        with open(file) as lines:
            address = json.loads(lines.read(_MAX_CHARACTERS))["address"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        address = None
    if not isinstance(address, str):
        raise UsageError(
            f"{printable(file)} is not a scheduler file: expected JSON with an address"
        )
    return address
