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

SILENCE_TIMEOUT = 60  # seconds without a heartbeat, after which a worker is lost
CHECK_INTERVAL = 1  # seconds between checks of starting processes
KILL_TIMEOUT = 5  # seconds to wait until processes are killed
CLOSE_TIMEOUT = 0.2  # seconds to wait until the connection to a killed process is closed


@contextmanager
def cluster(
    workers: int, threads: int, seconds: float, cleans: bool
) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Start a cluster of worker processes; yield it, and a function that kills the processes.

    The function is for a failed run: to close the cluster would wait for its tasks. cleans: whether
    to remove what killed runs have left in the folder of temporary files. Raises ResourceError if
    the processes do not start within `seconds`.
    """
    other_processes = set(active_children())
    with ExitStack() as stack:
        scratch = NewFolder(os.path.join(tempfile.gettempdir(), "workers"), cleans=cleans)
        stack.callback(scratch.drop)
        settings = {
            "temporary-directory": scratch.working_folder,
            # The cluster would not restart a worker that is lost again within this timeout.
            "distributed.deploy.lost-worker-timeout": "1 day",
            "distributed.scheduler.worker-ttl": f"{SILENCE_TIMEOUT}s",
        }
        stack.enter_context(dask.config.set(settings))
        with _blocked_signals():
            create: Any = distributed.LocalCluster  # untyped
            local_cluster = create(
                n_workers=0, threads_per_worker=max(1, threads // workers), host="127.0.0.1",
                memory_limit=0, local_directory=scratch.working_folder,
                silence_logs=logging.CRITICAL + 1,
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            )  # fmt: skip
        kill = partial(_kill_workers, local_cluster, other_processes)
        signals.add_cleanup(kill)
        stack.callback(signals.remove_cleanup, kill)
        stack.enter_context(local_cluster)
        try:
            local_cluster.scale(workers)  # after the cleanup is registered
            _wait_for_workers(local_cluster, workers, seconds)
            yield local_cluster, kill
        except BaseException:
            kill()
            raise


def _wait_for_workers(local_cluster: Any, workers: int, seconds: float) -> None:
    """Wait until the workers have started."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            local_cluster.wait_for_workers(workers, timeout=CHECK_INTERVAL)
            return
        except TimeoutError:
            failed = [each.status.name == "failed" for each in local_cluster.workers.values()]
            if any(failed) or time.monotonic() > deadline:
                raise ResourceError(
                    "the workers could not be started",
                    hint="each worker is a Python process in the current directory",
                ) from None


@contextmanager
def _blocked_signals() -> Iterator[None]:
    """Block Ctrl-C, and a terminal's hangup, in the processes that threads started here start.

    The client kills them. Starts the tracker that removes semaphores of killed processes, which
    would end before them and unblocks Ctrl-C, without its warnings.
    """
    sys.warnoptions.append("ignore:resource_tracker")
    previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    try:
        resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, previous)
        sys.warnoptions.remove("ignore:resource_tracker")


def _kill_workers(local_cluster: Any, other_processes: set[Any]) -> None:
    """Kill the processes and wait until they have ended, since their folder is removed next."""
    # The event loop may be closed, or wait for the main thread.
    with suppress(RuntimeError, TimeoutError):
        local_cluster.sync(
            _kill_processes, local_cluster, other_processes, callback_timeout=KILL_TIMEOUT
        )
    for process in set(active_children()) - other_processes:
        process.kill()
        process.join(KILL_TIMEOUT)


async def _kill_processes(local_cluster: Any, other_processes: set[Any]) -> None:
    """Kill all worker processes, including starting ones, and prevent their restart."""
    local_cluster.worker_spec.clear()  # no further starts, no restarts
    logging.getLogger("distributed").setLevel(logging.WARNING)  # no messages about lost workers
    for process in set(active_children()) - other_processes:
        process.kill()
    closing = [worker.close(timeout=CLOSE_TIMEOUT) for worker in local_cluster.workers.values()]
    await asyncio.gather(*closing, return_exceptions=True)
