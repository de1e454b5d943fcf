"""Runs whose scheduler, workers or client are killed."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import NDTOOL, save, snapshot
from later import later
from strategies import bits_equal
from twoworkers import ProcessCluster, wait_for

from ndtool.inmemory import ops

distributed = later("distributed")

GATHER = ("gather-nd", "data.npy", "idx.npy")
SCATTER = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")


@pytest.fixture
def cluster(workdir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    rng = np.random.default_rng(3)
    save(
        data=rng.random((256, 256), np.float32),
        idx=rng.integers(-256, 256, (30_000, 2)),
        upd=rng.random(30_000, np.float32),
    )
    started = ProcessCluster(tmp_path_factory.mktemp("cluster"))
    yield started
    started.kill_all()


def expected_result(call: tuple[str, ...]) -> Any:
    arrays = [np.load(name) for name in call[1:] if name.endswith(".npy")]
    if call is GATHER:
        return ops.gather_nd(*arrays)
    return ops.scatter_nd(*arrays, reduction="add")


def wait_for_exit(run: subprocess.Popen[bytes]) -> tuple[int, str]:
    _, stderr = run.communicate()
    return run.returncode, stderr.decode()


SILENT = pytest.mark.slow("a scheduler that no longer answers ends the run")


@pytest.mark.parametrize(
    "signum", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=SILENT)], ids=str
)
def test_a_lost_scheduler_ends_the_run(cluster: ProcessCluster, signum: signal.Signals) -> None:
    before = snapshot(Path())
    scheduler, _ = cluster.start_scheduler(), cluster.start_worker("--no-nanny")
    cluster.inject_fault("wait", "sweep")
    run = cluster.run(SCATTER)
    cluster.wait_for_task("begin", "sweep")
    run.send_signal(signal.SIGUSR1)
    scheduler.send_signal(signum)
    assert wait_for_exit(run) == (6, "error: the connection to the scheduler was lost\n")
    assert snapshot(Path()) == before


@pytest.mark.slow("a run completes without the workers that it began with")
@pytest.mark.parametrize(
    ("call", "phase"),
    [(GATHER, "sweep"), (GATHER, "replay"), (SCATTER, "split"), (SCATTER, "sweep")],
)  # fmt: skip
def test_a_lost_worker_is_replaced_by_the_remaining_one(
    cluster: ProcessCluster, call: tuple[str, ...], phase: str
) -> None:
    before = snapshot(Path())
    cluster.start_scheduler()
    workers = [cluster.start_worker("--no-nanny") for _ in range(2)]
    cluster.inject_fault("once", phase)
    run = cluster.run(call)
    assert wait_for_exit(run) == (0, "")
    assert -signal.SIGKILL in [worker.poll() for worker in workers]
    assert bits_equal(np.load("out.npy"), expected_result(call))
    assert snapshot(Path()).keys() - before.keys() == {"out.npy"}


@pytest.mark.slow("a run replaces a worker that it loses before its first task")
def test_a_worker_that_dies_as_a_run_begins_is_replaced_by_another(cluster: ProcessCluster) -> None:
    cluster.start_scheduler()
    for _ in range(2):
        cluster.start_worker("--no-nanny")
    cluster.wait_for_workers(2)
    cluster.inject_fault("once", "check_access")
    run = cluster.run(SCATTER)
    assert wait_for_exit(run) == (0, "")
    assert cluster.is_fault_injected()
    assert bits_equal(np.load("out.npy"), expected_result(SCATTER))


@pytest.mark.slow("a run ends with its terminal, and its workers with it")
def test_a_hangup_of_the_terminal_ends_a_run_and_its_workers(cluster: ProcessCluster) -> None:
    before = snapshot(Path())
    cluster.inject_fault("wait", "sweep")
    run = cluster.start("setsid", *NDTOOL, *SCATTER, "-o", "out.npy", "--workers", "2", "-q")
    cluster.wait_for_task("begin", "sweep")
    os.killpg(run.pid, signal.SIGHUP)
    assert wait_for_exit(run) == (128 + signal.SIGHUP, "")
    wait_for(lambda: not any(map(is_running, {pid for _, pid in cluster.tasks("begin")})))
    assert snapshot(Path()) == before


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow("a run completes without a worker that no longer answers")
def test_a_frozen_worker_is_removed(cluster: ProcessCluster) -> None:
    """The scheduler gives its tasks to others after its setting worker-ttl."""
    cluster.start_scheduler()
    workers = [cluster.start_worker("--no-nanny") for _ in range(2)]
    cluster.wait_for_workers(2)
    cluster.inject_fault("wait", "sweep")
    run = cluster.run(SCATTER)
    cluster.wait_for_task("begin", "sweep")
    frozen = cluster.tasks("begin")[-1][1]
    os.kill(frozen, signal.SIGSTOP)
    cluster.release()
    assert wait_for_exit(run) == (0, "")
    assert bits_equal(np.load("out.npy"), expected_result(SCATTER))
    assert frozen in [worker.pid for worker in workers]


@pytest.mark.slow("workers outlive the runs that are killed, and hold none of their files")
def test_workers_close_the_files_of_killed_runs(cluster: ProcessCluster) -> None:
    """The next run closes them, or a timer: deleted outputs would fill the disk."""
    cluster.start_scheduler()
    worker = cluster.start_worker("--no-nanny")
    for _ in range(2):
        cluster.inject_fault("wait", "sweep")
        run = cluster.run(SCATTER)
        cluster.wait_for_task("begin", "sweep")
        run.kill()
        run.communicate()
        cluster.release()
    assert wait_for_exit(cluster.run(SCATTER)) == (0, "")
    paths = Path(f"/proc/{worker.pid}/fd").iterdir()
    opened = [os.readlink(path) for path in paths if path.is_symlink()]
    assert not [name for name in opened if "(deleted)" in name and os.getcwd() in name]


@pytest.mark.slow("a run goes on with workers that join after all were lost")
def test_a_run_continues_with_workers_that_join_later(cluster: ProcessCluster) -> None:
    cluster.start_scheduler()
    worker = cluster.start_worker("--no-nanny")
    cluster.inject_fault("once", "sweep")
    run = cluster.run(SCATTER)
    assert worker.wait() == -signal.SIGKILL
    cluster.start_worker("--no-nanny")
    assert wait_for_exit(run) == (0, "")
    assert bits_equal(np.load("out.npy"), expected_result(SCATTER))


def test_a_run_without_workers_ends(cluster: ProcessCluster) -> None:
    before = snapshot(Path())
    cluster.start_scheduler()
    worker = cluster.start_worker("--no-nanny")
    cluster.inject_fault("once", "sweep")
    run = cluster.run(SCATTER)
    assert worker.wait() == -signal.SIGKILL
    run.send_signal(signal.SIGUSR1)
    error = "error: no worker is left, and none has joined in 3 seconds\n"
    assert wait_for_exit(run) == (6, error)
    assert snapshot(Path()) == before


def test_workers_that_cannot_start_end_the_run(cluster: ProcessCluster) -> None:
    before = snapshot(Path())
    cluster.preload.write_text("raise SystemExit(1)")
    run = cluster.run(GATHER, "--workers", "2")
    assert wait_for_exit(run) == (6, "error: the workers could not be started\n")
    assert snapshot(Path()) == before


@pytest.mark.slow("attempts are limited; each takes the start of a worker")
def test_a_task_that_kills_its_worker_each_time_ends_the_run(cluster: ProcessCluster) -> None:
    before = snapshot(Path())
    cluster.inject_fault("die", "sweep")
    run = cluster.run(SCATTER, "--workers", "1")
    message = "error: workers were lost repeatedly in a sweep task\n"
    assert wait_for_exit(run) == (6, message + "  hint: a smaller --memory makes tasks smaller\n")
    assert snapshot(Path()) == before


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param(
            "split",
            marks=pytest.mark.slow("an interrupt does not wait for tasks of the first phase"),
        ),
        "sweep",
    ],
)
def test_an_interrupt_does_not_wait_for_tasks(cluster: ProcessCluster, phase: str) -> None:
    before = snapshot(Path())
    cluster.inject_fault("wait", phase)
    run = cluster.start(*NDTOOL, *SCATTER, "-o", "out.npy", "--workers", 2)
    cluster.wait_for_task("begin", phase)
    run.send_signal(signal.SIGINT)
    assert wait_for_exit(run) == (130, "")
    assert not cluster.tasks("end", phase)
    for pid in {pid for _, pid in cluster.tasks("begin")}:
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())
    assert snapshot(Path()) == before
