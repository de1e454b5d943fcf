"""Clusters whose workers record tasks, reads and writes, and have the faults that a test injects."""

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from command import environment

PATIENT = {"distributed.deploy.lost-worker-timeout": "1 day"}  # including one that a test stops

# Workers load this first. Faults happen at the end of a task of a phase: `die`, `once` (once),
# `wait` until the fault is removed.
# `once check_access` happens before the tasks.
_PRELOAD = """
import os, signal, time
from ndtool.formats.zarr import ZarrSource
from ndtool.formats.zarr.writer import ChunkWriter
from ndtool.outofcore import phases, worker

FOLDER = {folder!r}

def record(*words):
    with open(FOLDER + "/records", "a") as records:
        print(*words, file=records)

def fault():
    try:
        with open(FOLDER + "/fault") as file:
            return file.read().split()
    except FileNotFoundError:
        return None, None

def record_calls(kind, method):
    def wrapper(self, *arguments):
        record(kind, self.name, arguments[0])
        return method(self, *arguments)
    return wrapper

def inject_faults(kind, task):
    def wrapper(group, *arguments):
        phase = f"{{kind}}{{group.depth + 1}}" if group.depth else kind
        record("begin", phase, os.getpid())
        end = task(group, *arguments)
        action, target = fault()
        if target == phase and action == "once":
            os.unlink(FOLDER + "/fault")
        if target == phase and action in ("die", "once"):
            os.kill(os.getpid(), signal.SIGKILL)
        while fault() == ["wait", phase]:
            time.sleep(0.02)
        record("end", phase, os.getpid())
        return end
    return wrapper

def die_once(step, call):
    def wrapper(*arguments):
        if fault() == ["once", step]:
            os.unlink(FOLDER + "/fault")
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*arguments)
    return wrapper

if not hasattr(phases, "has_fault_wrappers"):  # a worker loads it twice
    ZarrSource.read_chunk = record_calls("read", ZarrSource.read_chunk)
    ChunkWriter.write_chunk = record_calls("write", ChunkWriter.write_chunk)
    phases.TASKS.update({{phase: inject_faults(phase, task) for phase, task in phases.TASKS.items()}})
    worker.check_access = die_once("check_access", worker.check_access)
    phases.has_fault_wrappers = True
"""

# Runs ndtool; SIGUSR1 makes it give up 3 seconds after the last sign of the cluster.
_IMPATIENT = """
import signal
from ndtool.__main__ import program
from ndtool.outofcore import cluster

def give_up_soon(*_):
    cluster.CHECK_INTERVAL, cluster.SILENCE_TIMEOUT = 0.1, 3

signal.signal(signal.SIGUSR1, give_up_soon)
program()
"""


class Workers:
    """Workers that load a module in a folder first: their records, and injected faults."""

    def __init__(self, folder: Path, client: Any = None) -> None:
        self.folder, self.client = folder, client
        self.address = client and client.scheduler.address
        self.preload = folder / "preload.py"
        self.preload.write_text(_PRELOAD.format(folder=str(folder)))

    def inject_fault(self, action: str, phase: str) -> None:
        (self.folder / "fault").write_text(f"{action} {phase}")

    def is_fault_injected(self) -> bool:
        """Whether a fault of one task has happened."""
        return not (self.folder / "fault").exists()

    def release(self) -> None:
        """Cancel the fault: workers that wait continue."""
        (self.folder / "fault").unlink(missing_ok=True)

    def records(self) -> list[str]:
        """Return the records: of tasks `begin` or `end`, the phase, the process ID."""
        path = self.folder / "records"
        return path.read_text().splitlines() if path.exists() else []

    def tasks(self, event: str, phase: str = "") -> list[tuple[str, int]]:
        """Return the phase and the process ID of each task that began or ended."""
        words = [line.split() for line in self.records() if line.startswith(f"{event} {phase}")]
        return [(phase, int(pid)) for _, phase, pid in words]

    def wait_for_task(self, event: str, phase: str, count: int = 1) -> None:
        """Wait until tasks of a phase have begun or ended."""
        wait_for(lambda: len(self.tasks(event, f"{phase} ")) >= count)

    def pop_records(self) -> Counter[str]:
        """Return the records since the last call, with their numbers."""
        records = Counter(self.records())
        (self.folder / "records").unlink(missing_ok=True)
        return records

    def count_begun_tasks(self) -> Counter[str]:
        """Return the number of tasks begun in each phase since the last call."""
        begun = Counter(phase for phase, _ in self.tasks("begin"))
        self.pop_records()
        return begun


def wait_for(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.02)


@contextmanager
def two_workers(folder: Path, **settings: Any) -> Iterator[Workers]:
    """Start two workers in this process, each with one thread; settings: dask's."""
    import dask
    import distributed

    preload = str(Workers(folder).preload)
    with (
        dask.config.set({"temporary-directory": str(folder), **settings}),
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, host="127.0.0.1", scheduler_kwargs={"dashboard": False, "dashboard_address": "127.0.0.1:0"},
            preload=[preload], local_directory=str(folder), memory_limit=0, silence_logs=100,
        ) as local,
        distributed.Client(local, set_as_default=False) as client,
    ):  # fmt: skip
        yield Workers(folder, client)


class ProcessCluster(Workers):
    """A scheduler and workers, each in a process, and runs that use them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._processes: list[subprocess.Popen[bytes]] = []
        self.file = str(folder / "scheduler.json")

    def start(self, *command: object) -> subprocess.Popen[bytes]:
        """Start a process, which is killed at the end of the test."""
        variables = environment(
            DASK_DISTRIBUTED__WORKER__PRELOAD=str(self.preload),
            DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT="1 day",
            DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL="3s",
        )
        process = subprocess.Popen(
            list(map(str, command)),
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if "ndtool" in str(command) else subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process

    def run(self, call: tuple[str, ...], *options: str) -> Any:
        """Start a run, on the scheduler unless options say otherwise."""
        command = (sys.executable, "-c", _IMPATIENT)
        options = ("-o", "out.npy", *(options or ("--scheduler", self.file)), "-q")
        return self.start(*command, *call, *options)

    def start_scheduler(self) -> subprocess.Popen[bytes]:
        """Start a scheduler."""
        module = "from distributed.cli.dask_scheduler import main; main()"
        options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show")
        process = self.start(sys.executable, "-c", module, *options, "--scheduler-file", self.file)
        wait_for(Path(self.file).exists)
        return process

    def start_worker(self, *options: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Start a worker; prefix: of its command line."""
        module = "from distributed.cli.dask_worker import main; main()"
        return self.start(
            *prefix, sys.executable, "-c", module, "--scheduler-file", self.file, "--nthreads", "1",
            "--no-dashboard", "--local-directory", self.folder / "own", *options,
        )  # fmt: skip

    def wait_for_workers(self, count: int) -> None:
        """Wait until workers have joined the scheduler: a run counts them when it begins."""
        import distributed

        with distributed.Client(scheduler_file=self.file, set_as_default=False) as client:
            client.wait_for_workers(count)

    def kill_all(self) -> None:
        """Kill all processes started."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stderr is not None:
                process.stderr.close()
