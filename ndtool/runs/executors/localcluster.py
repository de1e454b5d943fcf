"""A local cluster: worker processes on this machine for one run, killed if it fails."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from multiprocessing import active_children, resource_tracker
from typing import Any

import dask
import distributed

from ndtool.errors import ResourceError
from ndtool.machine import signals
from ndtool.publish.newfolder import NewFolder

OFTEN = 1  # seconds between checks of processes that start
KILL_TIMEOUT = 5  # seconds that killing processes may take
MISSED = 0.2  # seconds to wait for a killed process to close


@contextmanager
def cluster(workers: int, threads: int, seconds: float) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Start a cluster of worker processes; yield it, and a function that kills them.

    Closing it would wait for tasks, whose results are useless once the run has failed. Raises
    ResourceError if the processes do not start within `seconds`.
    """
    other_processes = set(active_children())
    with ExitStack() as stack:
        scratch = NewFolder(os.path.join(tempfile.gettempdir(), "workers"), False, False, False)
        stack.callback(scratch.drop)
        # A restarted worker that is lost again at this timeout would be dropped for good.
        patient = {"distributed.deploy.lost-worker-timeout": "1 day"}
        stack.enter_context(dask.config.set({"temporary-directory": scratch.inside, **patient}))
        made: Any = distributed.LocalCluster  # untyped
        started = made(
            n_workers=0, threads_per_worker=max(1, threads // workers), host="127.0.0.1",
            memory_limit=0, local_directory=scratch.inside, silence_logs=logging.CRITICAL + 1,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        )  # fmt: skip
        kill = partial(_killed, started, other_processes)
        signals.add_cleanup(kill)
        stack.callback(signals.remove_cleanup, kill)
        stack.enter_context(started)
        try:
            # Processes inherit the signal mask of the thread that starts them: block Ctrl-C.
            _start_tracker()  # which would unblock it in that thread
            started.loop.add_callback(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})
            started.scale(workers)  # after the cleanup is registered
            _await(started, workers, seconds)
            yield started, kill
        except BaseException:
            kill()
            raise


def _start_tracker() -> None:
    """Start the tracker that removes the semaphores of killed processes, without its warnings."""
    sys.warnoptions.append("ignore:resource_tracker")
    try:
        resource_tracker.ensure_running()
    finally:
        sys.warnoptions.remove("ignore:resource_tracker")


def _await(started: Any, workers: int, seconds: float) -> None:
    """Wait until the workers have started."""
    hint = "each worker is a Python process in the current directory"
    last = time.monotonic() + seconds
    while True:
        try:
            started.wait_for_workers(workers, timeout=OFTEN)
            return
        except TimeoutError:
            if any(worker.status.name == "failed" for worker in started.workers.values()):
                raise ResourceError("the workers could not be started", hint=hint) from None
            if time.monotonic() > last:
                message = f"{workers} workers have not started in {seconds} seconds"
                raise ResourceError(message, hint=hint) from None


def _killed(started: Any, other_processes: set[Any]) -> None:
    """Kill the processes and wait until they have ended, since their folder is removed next."""
    with suppress(RuntimeError, TimeoutError):  # its loop is closed, or waits for the main thread
        started.sync(_kill, started, other_processes, callback_timeout=KILL_TIMEOUT)
    for process in set(active_children()) - other_processes:
        process.kill()
        process.join(KILL_TIMEOUT)


async def _kill(started: Any, other_processes: set[Any]) -> None:
    """Kill all worker processes, starting ones too, and prevent their restart."""
    started.worker_spec.clear()  # no further starts, no restarts
    logging.getLogger("distributed").setLevel(logging.WARNING)  # no messages about lost workers
    for process in set(active_children()) - other_processes:
        process.kill()
    closing = [worker.close(timeout=MISSED) for worker in started.workers.values()]
    await asyncio.gather(*closing, return_exceptions=True)
