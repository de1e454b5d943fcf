"""A cluster of processes on this machine, for one run: where it fails they are killed."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import active_children, resource_tracker
from typing import Any

import dask
import distributed

from ndtool.arrays.newfolder import NewFolder

MISSED = 0.2  # seconds until a process that was killed is taken for dead


@contextmanager
def cluster(workers: int, threads: int) -> Iterator[tuple[Any, Callable[[], None]]]:
    """Start a cluster of some processes; give it, and what kills them.

    They would end only after their tasks, and what they do counts no more once the run has failed.
    """
    others = set(active_children())
    with ExitStack() as stack:
        scratch = NewFolder(os.path.join(tempfile.gettempdir(), "workers"), False, False, False)
        stack.callback(scratch.drop)
        # A worker that was lost some time ago may be lost again just now: it is not given up.
        patient = {"distributed.deploy.lost-worker-timeout": "1 day"}
        stack.enter_context(dask.config.set({"temporary-directory": scratch.inside, **patient}))
        made: Any = distributed.LocalCluster  # which has no types
        started = made(
            n_workers=0, threads_per_worker=max(1, threads // workers), host="127.0.0.1",
            memory_limit=0, local_directory=scratch.inside, silence_logs=logging.CRITICAL + 1,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        )  # fmt: skip
        stack.enter_context(started)
        kill = partial(started.sync, _kill, started, others)
        try:
            # Processes inherit what the thread that starts them does not hear: Ctrl-C is for us.
            resource_tracker.ensure_running()  # which would have that thread hear again
            started.loop.add_callback(signal.pthread_sigmask, signal.SIG_BLOCK, {signal.SIGINT})
            started.scale(workers)  # now that whatever ends the run ends them, too
            yield started, kill
        except BaseException:
            kill()
            raise


async def _kill(started: Any, others: set[Any]) -> None:
    """Kill the processes, those that are just starting, too; nobody starts them again."""
    logging.getLogger("distributed").setLevel(logging.WARNING)  # that they are lost is no news
    for process in set(active_children()) - others:
        process.kill()
    closing = [one.close(timeout=MISSED) for one in started.workers.values()]
    await asyncio.gather(*closing, return_exceptions=True)
