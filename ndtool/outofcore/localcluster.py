"""A local cluster: a scheduler in this process, and worker processes for one run."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from subprocess import DEVNULL, PIPE, Popen
from typing import Any

import dask
import distributed

from ndtool.machine import signals
from ndtool.publish.newfolder import NewFolder

WORKER_TTL = "60s"  # without a heartbeat, after which a worker is lost
# A worker: it ends with this process, which holds the other end of its standard input. Nothing uses
# its profile, which can deadlock with the start of a thread before Python 3.11.9 (CPython 106883).
_PROGRAM = """
import os, sys, threading
sys.path[:] = {path}
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(1)), daemon=True).start()
import dask
dask.config.set({{"distributed.worker.profile.enabled": False}})
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
def start(workers: int, threads: int, cleans: bool) -> Iterator[tuple[Any, Processes]]:
    """Start a scheduler, and processes that join it as workers; yield a client, and these.

    cleans: whether to remove what killed runs have left in the folder of temporary files.
    """
    library: Any = distributed  # untyped
    with ExitStack() as stack:
        scratch = NewFolder(os.path.join(tempfile.gettempdir(), "workers"), cleans=cleans)
        stack.callback(scratch.drop)
        settings = {
            "temporary-directory": scratch.working_folder,
            "distributed.scheduler.worker-ttl": WORKER_TTL,
        }
        stack.enter_context(dask.config.set(settings))
        scheduler = stack.enter_context(
            library.LocalCluster(
                n_workers=0, host="127.0.0.1", silence_logs=False,
                scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            )
        )  # fmt: skip
        processes = Processes(
            workers, scheduler.scheduler_address, "--host", "127.0.0.1", "--no-nanny",
            "--no-dashboard", "--nthreads", str(max(1, threads // workers)), "--memory-limit", "0",
            "--local-directory", scratch.working_folder,
        )  # fmt: skip
        signals.add_cleanup(processes.kill)
        stack.callback(signals.remove_cleanup, processes.kill)
        stack.callback(processes.kill)
        processes.start_missing()
        yield stack.enter_context(library.Client(scheduler, set_as_default=False)), processes
