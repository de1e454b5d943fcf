"""A local cluster: a scheduler in this process, and worker processes for one run."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import dask
import distributed

from ndtool.errors import ResourceError
from ndtool.machine import signals
from ndtool.publish.newfolder import NewFolder

SILENCE_TIMEOUT = 60  # seconds without a heartbeat, after which a worker is lost
CHECK_INTERVAL = 1  # seconds between checks of starting processes
# A worker: it ends with this process, which holds the other end of its standard input.
_PROGRAM = """
import os, sys, threading
sys.path[:] = {path}
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
from distributed.cli.dask_worker import main
main()
"""


class Processes:
    """Worker processes, which no terminal interrupts: each has a session of its own."""

    def __init__(self, count: int, *options: str) -> None:
        command = sys.executable, "-c", _PROGRAM.format(path=sys.path), *options
        streams: dict[str, Any] = {"stdin": PIPE, "stdout": DEVNULL, "stderr": DEVNULL}
        self._start = partial(Popen, command, start_new_session=True, **streams)
        self._count, self._processes = count, list[Popen[Any]]()

    def start_missing(self) -> int:
        """Start the processes, or those that have ended anew; return the number of these."""
        ended = [process for process in self._processes if process.poll() is not None]
        for process in ended:
            process.communicate()  # closes its pipe
            self._processes.remove(process)
        missing = self._count - len(self._processes)
        self._processes += [self._start() for _ in range(missing)]
        return len(ended)

    def kill(self) -> None:
        """Kill the processes and wait until they have ended, since their folder is removed next."""
        self._count = 0
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()


@contextmanager
def cluster(
    workers: int, threads: int, seconds: float, cleans: bool
) -> Iterator[tuple[Any, Processes]]:
    """Start a cluster of worker processes; yield it, and the processes.

    cleans: whether to remove what killed runs have left in the folder of temporary files. Raises
    ResourceError if the processes do not start within `seconds`.
    """
    with ExitStack() as stack:
        scratch = NewFolder(os.path.join(tempfile.gettempdir(), "workers"), cleans=cleans)
        stack.callback(scratch.drop)
        settings = {
            "temporary-directory": scratch.working_folder,
            "distributed.scheduler.worker-ttl": f"{SILENCE_TIMEOUT}s",
        }
        stack.enter_context(dask.config.set(settings))
        create: Any = distributed.LocalCluster  # untyped
        local_cluster = create(
            n_workers=0, host="127.0.0.1", silence_logs=logging.CRITICAL + 1,
            scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
        )  # fmt: skip
        stack.enter_context(local_cluster)
        processes = Processes(
            workers, local_cluster.scheduler_address, "--host", "127.0.0.1", "--no-nanny",
            "--no-dashboard", "--nthreads", str(max(1, threads // workers)), "--memory-limit", "0",
            "--local-directory", scratch.working_folder,
        )  # fmt: skip
        signals.add_cleanup(processes.kill)
        stack.callback(signals.remove_cleanup, processes.kill)
        stack.callback(processes.kill)
        deadline = time.monotonic() + seconds
        while True:
            if processes.start_missing() or time.monotonic() > deadline:
                raise ResourceError("the workers could not be started")
            try:
                local_cluster.wait_for_workers(workers, timeout=CHECK_INTERVAL)
                break
            except TimeoutError:
                pass
        yield local_cluster, processes
