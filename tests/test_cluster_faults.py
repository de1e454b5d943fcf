"""Runs whose scheduler, workers or client are killed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from command import NDTOOL, environment, execute, save, state
from strategies import same

from ndtool.analysis.oracle import reference
from ndtool.errors import ResourceError
from ndtool.publish import cleanup
from ndtool.publish.newfile import NewFile

distributed = pytest.importorskip("distributed", exc_type=ImportError)

# Workers first load this: they record tasks, and obey a file.
PRELOAD = """
import os, signal, time
from ndtool.runs.external import tasks

HERE = {folder!r}

def noted(phase, what):
    with open(HERE + "/notes", "a") as notes:
        notes.write(f"{{what}} {{phase}} {{os.getpid()}}\\n")

def follow_orders(phase, before):
    def after(work, number, depth):
        noted(phase, "begin")
        end = before(work, number, depth)
        try:
            with open(HERE + "/order") as order:
                what, where = order.read().split()
            if where == phase and what == "die":
                os.kill(os.getpid(), signal.SIGKILL)
            if where == phase and what == "once":
                os.unlink(HERE + "/order")
                os.kill(os.getpid(), signal.SIGKILL)
            if where == phase and what == "stall":
                os.unlink(HERE + "/order")
                time.sleep(600)
            while where == phase and what == "wait" and os.path.exists(HERE + "/order"):
                time.sleep(0.02)
            if where == phase and what == "work":
                time.sleep(1)
        except FileNotFoundError:
            pass
        noted(phase, "end")
        return end
    return after

if not hasattr(tasks, "follow_orders"):  # a worker loads it twice
    tasks.PHASES.update({{phase: follow_orders(phase, do) for phase, do in tasks.PHASES.items()}})
    tasks.follow_orders = True
"""
PATIENCE = (
    "from ndtool.runs.executors import dask; dask.WORKER_TIMEOUT = dask.CHECK_INTERVAL = 0.1; "
)
IMPATIENT = (sys.executable, "-c", PATIENCE + "from ndtool.__main__ import program; program()")
HASTE = (
    "from ndtool.runs.external import policy; policy.MIN_LATE_SECONDS = 0.5; policy.MIN_DURATIONS = 1; "
    "from ndtool.runs.executors import dask; dask.CHECK_INTERVAL = 0.1; "
)
HASTY = (sys.executable, "-c", HASTE + "from ndtool.__main__ import program; program()")
GATHER = ("gather-nd", "data.npy", "idx.npy")
SCATTER = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")


class Site:
    """A scheduler and workers, each in a process, and runs that use them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []
        (folder / "preload.py").write_text(PRELOAD.format(folder=str(folder)))
        self.file = str(folder / "scheduler.json")

    def start(self, *command: object) -> subprocess.Popen[bytes]:
        """Start a process, which is killed at the end of the test."""
        report = environment(
            DASK_DISTRIBUTED__WORKER__PRELOAD=str(self._folder / "preload.py"),
            DASK_DISTRIBUTED__DEPLOY__LOST_WORKER_TIMEOUT="1 day",
        )
        process = subprocess.Popen(
            list(map(str, command)),
            env=report,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE if "ndtool" in str(command) else subprocess.DEVNULL,
        )
        self._processes.append(process)
        return process

    def scheduler(self) -> subprocess.Popen[bytes]:
        """Start a scheduler."""
        module = "from distributed.cli.dask_scheduler import main; main()"
        options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--no-show")
        process = self.start(sys.executable, "-c", module, *options, "--scheduler-file", self.file)
        wait_for(Path(self.file).exists)
        return process

    def worker(self, *options: str, before: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
        """Start a worker; before: a prefix of its command line."""
        module = "from distributed.cli.dask_worker import main; main()"
        return self.start(
            *before, sys.executable, "-c", module, "--scheduler-file", self.file, "--nthreads", "1",
            "--no-dashboard", "--local-directory", self._folder / "own", *options,
        )  # fmt: skip

    def wait_for_workers(self, count: int) -> None:
        """Wait until workers have joined the scheduler: a run counts them as it begins."""
        with distributed.Client(scheduler_file=self.file, set_as_default=False) as client:
            client.wait_for_workers(count)

    def order(self, what: str, phase: str) -> None:
        """Order workers to fail in a phase: die, once, wait, work."""
        (self._folder / "order").write_text(f"{what} {phase}")

    def release(self) -> None:
        """Cancel the order to workers."""
        (self._folder / "order").unlink(missing_ok=True)

    def notes(self) -> list[list[str]]:
        """Return the records of workers: begin or end, the phase, the process ID."""
        notes = self._folder / "notes"
        return [line.split() for line in notes.read_text().splitlines()] if notes.exists() else []

    def until(self, what: str, phase: str) -> None:
        """Wait for a record of a worker."""
        wait_for(lambda: [what, phase] in [note[:2] for note in self.notes()])

    def end(self) -> None:
        """Kill all processes started."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            if process.stderr is not None:
                process.stderr.close()


def wait_for(condition: Callable[[], Any]) -> None:
    while not condition():
        time.sleep(0.02)


@pytest.fixture
def site(workdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    rng = np.random.default_rng(3)
    save(
        data=rng.random((256, 256), np.float32),
        idx=rng.integers(-256, 256, (30_000, 2)),
        upd=rng.random(30_000, np.float32),
    )
    site = Site(tmp_path_factory.mktemp("site"))
    yield site
    site.end()


def wanted(call: tuple[str, ...]) -> Any:
    arrays = [np.load(name) for name in call[1:] if name.endswith(".npy")]
    if call is GATHER:
        return reference.gather_nd(*arrays)
    return reference.scatter_nd(*arrays, reduction="add")


def ended(run: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, report = run.communicate()
    return run.returncode, report.decode()


def test_a_scheduler_that_is_killed_ends_the_run(site: Site) -> None:
    before = state(Path())
    scheduler, _ = site.scheduler(), site.worker("--no-nanny")
    site.order("wait", "sweep")
    run = site.start(*NDTOOL, *SCATTER, "-o", "out.npy", "--scheduler", site.file, "-q")
    site.until("begin", "sweep")
    scheduler.kill()
    end = ended(run)
    print(end[1])
    assert state(Path()) == before


@pytest.mark.slow("a run ends without the worker that it began with")
@pytest.mark.parametrize(
    ("call", "phase"),
    [(GATHER, "sweep"), (GATHER, "replay"), (SCATTER, "split"), (SCATTER, "sweep")],
)  # fmt: skip
def test_a_worker_without_a_nanny_is_replaced_by_others(
    site: Site, call: tuple[str, ...], phase: str
) -> None:
    before = state(Path())
    site.scheduler()
    lost = [site.worker("--no-nanny") for _ in range(2)]
    site.order("once", phase)
    run = site.start(*NDTOOL, *call, "-o", "out.npy", "--scheduler", site.file, "-q")
    assert ended(run) == (0, "")
    assert -signal.SIGKILL in [one.poll() for one in lost]
    assert same(np.load("out.npy"), wanted(call))
    assert state(Path()).keys() - before.keys() == {"out.npy"}


@pytest.mark.parametrize(
    ("call", "phase"),
    [
        (GATHER, "sweep"),
        pytest.param(GATHER, "replay", marks=pytest.mark.slow("so with tasks that write")),
        pytest.param(SCATTER, "sweep", marks=pytest.mark.slow("and with those that update")),
    ],
)  # fmt: skip
def test_a_task_that_does_not_end_is_started_elsewhere(
    site: Site, call: tuple[str, ...], phase: str
) -> None:
    before = state(Path())
    site.scheduler()
    for _ in range(2):
        site.worker("--no-nanny")
    site.wait_for_workers(2)
    site.order("stall", phase)
    run = site.start(*HASTY, *call, "-o", "out.npy", "--scheduler", site.file, "--no-trace")
    status, report = ended(run)
    assert status == 0, report
    late = rf"warning: [1-9] {phase} tasks? took 5 times as long as others, and"
    assert re.search(late, report), report
    assert same(np.load("out.npy"), wanted(call))
    assert state(Path()).keys() - before.keys() == {"out.npy"}


@pytest.mark.slow("a run goes on with workers that join after all were lost")
def test_all_workers_may_be_gone_for_a_while(site: Site) -> None:
    site.scheduler()
    lost = site.worker("--no-nanny")
    site.order("once", "sweep")
    run = site.start(*NDTOOL, *SCATTER, "-o", "out.npy", "--scheduler", site.file, "-q")
    assert lost.wait() == -signal.SIGKILL
    site.worker("--no-nanny")
    assert ended(run) == (0, "")
    assert same(np.load("out.npy"), wanted(SCATTER))


def test_workers_that_do_not_come_back_end_the_run(site: Site) -> None:
    before = state(Path())
    site.scheduler()
    site.worker("--no-nanny")
    site.order("once", "sweep")
    run = site.start(*IMPATIENT, *SCATTER, "-o", "out.npy", "--scheduler", site.file, "-q")
    message = "error: no worker is left, and none has joined in 0.1 seconds\n"
    assert ended(run) == (6, message)
    assert state(Path()) == before


def test_workers_that_cannot_be_started_end_the_run(site: Site) -> None:
    before, hint = state(Path()), "  hint: each worker is a Python process in the current"
    script = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    call = ("gather-nd", os.path.abspath("data.npy"), os.path.abspath("idx.npy"))
    out = os.path.abspath("out.npy")
    ran = execute("bash", "-c", script, "bash", *NDTOOL, *call, "-o", out, "--workers", 2)
    assert ran.status == 6
    assert ran.err == f"error: the workers could not be started\n{hint} directory\n"
    assert state(Path()) == before


def test_workers_that_do_not_start_in_time_end_the_run() -> None:
    local = pytest.importorskip("ndtool.runs.executors.localcluster", exc_type=ImportError)
    starting = SimpleNamespace(status=SimpleNamespace(name="starting"))
    started = SimpleNamespace(
        wait_for_workers=Mock(side_effect=TimeoutError), workers={0: starting}
    )
    with pytest.raises(ResourceError, match="2 workers have not started in 0 seconds"):
        local._wait_for_workers(started, 2, 0)


@pytest.mark.slow("attempts are limited, which takes a worker a start each")
def test_a_task_that_kills_its_worker_each_time_ends_the_run(site: Site) -> None:
    before = state(Path())
    site.order("die", "sweep")
    run = site.start(*NDTOOL, *SCATTER, "-o", "out.npy", "--workers", 1, "-q")
    message = "error: workers were lost repeatedly in a sweep task\n"
    assert ended(run) == (6, message + "  hint: a smaller --memory makes tasks smaller\n")
    assert state(Path()) == before


@pytest.mark.parametrize(
    "phase",
    [pytest.param("split", marks=pytest.mark.slow("nor for those of the first phase")), "sweep"],
)
def test_an_interrupt_does_not_wait_for_tasks(site: Site, phase: str) -> None:
    before = state(Path())
    site.order("work", phase)
    run = site.start(*NDTOOL, *SCATTER, "-o", "out.npy", "--workers", 2)
    site.until("begin", phase)
    run.send_signal(signal.SIGINT)
    assert ended(run) == (130, "")
    assert ["end", phase] not in [note[:2] for note in site.notes()]
    for pid in {int(note[2]) for note in site.notes()}:
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    assert state(Path()) == before


@pytest.mark.slow("the next run removes the spilled data of a killed one")
@pytest.mark.parametrize("out", ["out.npy", "out.zarr"])
def test_files_of_a_killed_client_are_removed_by_the_next_run(site: Site, out: str) -> None:
    if out.endswith("zarr"):
        pytest.importorskip("zarr", exc_type=ImportError)
    before = set(os.listdir())
    site.order("wait", "sweep")
    run = site.start(*NDTOOL, *SCATTER, "-o", out, "--workers", 1, "-q")
    site.until("begin", "sweep")
    run.kill()
    assert ended(run)[0] == -signal.SIGKILL
    left = set(os.listdir()) - before
    assert {name[0] for name in left} == {"."}
    site.release()
    run = site.start(*NDTOOL, *SCATTER, "-o", out, "--workers", 1, "-q")
    assert ended(run) == (0, "")
    assert set(os.listdir()) - before == {out}


def test_the_temporary_file_of_a_live_run_is_preserved(workdir: Path) -> None:
    one, other = (NewFile("out.npy", None, True, False) for _ in range(2))
    names = [os.path.basename(file.share()) for file in (one, other)]
    assert sorted(os.listdir()) == sorted(names)
    for file in (one, other):
        file.drop()
    assert os.listdir() == []


def test_sweeps_may_meet(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = Path(f".out.npy.ndtool-{'0' * 12}-{cleanup.boot_id()}")
    left.touch()
    locked = cleanup.open_locked

    def late(path: str, kind: int) -> int:
        held = locked(path, kind)
        left.unlink()
        return held

    monkeypatch.setattr(cleanup, "open_locked", late)
    assert cleanup.clean(".").removed == [f"./{left}"]
