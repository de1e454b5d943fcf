"""The conformance suite of executors, and the policy that submits the tasks of each phase."""

import threading
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from command import save, snapshot
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import Case, bits_equal, cases, void_view
from toy_executor import Toy

from ndtool import files
from ndtool.analysis.oracle import reference
from ndtool.arrays import memory
from ndtool.engine.gathers import ignore_progress
from ndtool.errors import BoundsError, OutputError, ResourceError
from ndtool.machine import pool
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs.calls import OpenCall
from ndtool.runs.executors import Executor, Lost, Task
from ndtool.runs.executors.threads import Threads
from ndtool.runs.external import execution, policy
from ndtool.runs.external.partitioning import partitioning_for
from ndtool.runs.external.rows import rows_of
from ndtool.runs.request import Request

SEEDS = range(6)


def raise_error(error: BoundsError) -> None:
    raise error


@pytest.mark.slow("tasks may end in any order and be repeated")
@settings(max_examples=200, deadline=None)
@given(
    cases, st.sampled_from((1, 600, 4000)), st.integers(0, 1 << 32), st.integers(1, 3),
    st.integers(0, 6),
)  # fmt: skip
def test_another_executor_gives_the_bits_of_the_reference(
    case: Case, budget: int, seed: int, levels: int, range_tuples: int
) -> None:
    attributes, roles = Attributes(**case.arguments), OPERATORS[case.operator].inputs
    arrays = [np.array(void_view(a), order="C").view(a.dtype) for a in case.arrays]
    sources = {role: memory.source(role, a) for role, a in zip(roles, arrays, strict=True)}
    with OpenCall(Request(case.operator, *roles, attributes=attributes), sources) as call:
        rows = rows_of(call.inference)
        if not rows.tuples or not rows.width or rows.row_count < 2:
            return
        partitioning = partitioning_for(rows, not call.inference.scatters, budget, 2, None, levels)
        partitioning = partitioning._replace(range_tuples=range_tuples)
        buffer = np.zeros(call.inference.nbytes, np.uint8)
        sink = memory.BufferSink(buffer.data, call.metadata)
        with patch.object(execution, "Threads", lambda _: nullcontext(Toy(seed))):
            assert list(execution.run(call, partitioning, sink, ignore_progress, raise_error))
        result = buffer.view(arrays[0].dtype).reshape(call.inference.plan.output)
    assert bits_equal(result, getattr(reference, case.operator)(*case.arrays, **case.arguments))


@pytest.fixture
def folder(workdir: Path) -> Path:
    rng = np.random.default_rng(5)
    save(
        data=rng.random((512, 256), np.float32),
        idx=rng.integers(-256, 256, (20_000, 2)),
        upd=rng.random(20_000, np.float32),
    )
    return workdir


@pytest.mark.parametrize("seed", SEEDS)
def test_another_cluster_gives_the_bits_of_the_reference(folder: Path, seed: int) -> None:
    data, idx, upd = (np.load(f"{name}.npy") for name in ("data", "idx", "upd"))
    before, toy = snapshot(folder), Toy(seed)
    files.gather_nd("data.npy", "idx.npy", out="gathered.npy", scheduler=toy)
    options: dict[str, Any] = {"reduction": "add", "out": "scattered.npy", "scheduler": toy}
    files.scatter_nd("data.npy", "idx.npy", "upd.npy", **options)
    assert bits_equal(np.load("gathered.npy"), reference.gather_nd(data, idx))
    scattered = reference.scatter_nd(data, idx, upd, reduction="add")
    assert bits_equal(np.load("scattered.npy"), scattered)
    assert snapshot(folder).keys() - before.keys() == {"gathered.npy", "scattered.npy"}
    assert toy.now() == sum(toy.attempt_results.values())
    assert len(toy.attempt_results) == 6


def test_a_cluster_accepts_inputs_without_index_tuples(folder: Path) -> None:
    data, empty = np.load("data.npy"), np.zeros((0, 1), np.int64)
    save(empty=empty, rows=data[:0])
    files.scatter_nd("data.npy", "empty.npy", "rows.npy", out="out.npy", scheduler=Toy(1))
    assert bits_equal(np.load("out.npy"), data)
    assert files.gather_nd("data.npy", "empty.npy", out="out.npy", scheduler=Toy(1)).nbytes == 0


@pytest.mark.parametrize("seed", SEEDS)
def test_a_bad_index_leaves_nothing_on_another_cluster(folder: Path, seed: int) -> None:
    idx = np.load("idx.npy")
    idx[9999, 1], idx[19_999, 0] = 256, -9000
    save(idx=idx)
    before = snapshot(folder)
    with pytest.raises(BoundsError, match=r"2 of 20000 index tuples\n  --> idx.npy\[9999, 1\]"):
        files.gather_nd("data.npy", "idx.npy", out="out.npy", scheduler=Toy(seed))
    assert snapshot(folder) == before


def double(phase: str, number: int) -> int:
    return 2 * number


def run_tasks(executor: Executor, count: int, in_order: bool = False) -> dict[int, Any]:
    results: dict[int, Any] = {}

    def store_result(number: int, result: Any) -> None:
        assert number not in results
        results[number] = result

    tasks = (Task(double, "sweep", number) for number in range(count))
    policy.complete(executor, tasks, store_result, in_order)
    return results


@pytest.mark.parametrize("seed", SEEDS)
def test_the_first_outcome_of_a_task_counts(seed: int) -> None:
    toy = Toy(seed)
    assert run_tasks(toy, 300) == {number: 2 * number for number in range(300)}
    assert run_tasks(toy, 0) == {}


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_threads_run_all_tasks(slots: int) -> None:
    with Threads(slots) as threads:
        assert run_tasks(threads, 300) == {number: 2 * number for number in range(300)}
        assert list(run_tasks(threads, 50, in_order=True)) == list(range(50))


def test_tasks_run_if_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail_to_start(*_: object, **__: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(pool, "Thread", fail_to_start)
    with Threads(3) as threads:
        assert len(run_tasks(threads, 20)) == 20


def test_a_failure_cancels_waiting_tasks() -> None:
    started: list[int] = []
    thread_count = threading.active_count()
    is_running = threading.Event()

    def fail(phase: str, number: int) -> None:
        started.append(number)
        if number == 1:
            is_running.wait()
            raise OutputError("no space left")
        is_running.set()
        time.sleep(0.05)

    with Threads(2) as threads, pytest.raises(OutputError, match="no space left"):
        policy.complete(threads, (Task(fail, "sweep", n) for n in range(1000)), lambda *_: None)
    assert len(started) < 30
    assert threading.active_count() == thread_count


class LosingExecutor(Toy):
    """An executor that loses the first attempts of each task, `times` in each report."""

    def __init__(self, losses: int, times: int = 1) -> None:
        super().__init__(0)
        self._remaining: dict[Task, int] = {}
        self._losses, self._times = losses, times

    def _attempts(self, task: Task) -> list[Any]:
        remaining = self._remaining.setdefault(task, self._losses)
        self._remaining[task] -= 1
        return [Lost(self._times)] if remaining > 0 else [task.execute()]


@pytest.mark.parametrize(("losses", "times"), [(3, 1), (1, 3)])
def test_a_lost_task_is_submitted_again(losses: int, times: int) -> None:
    assert len(run_tasks(LosingExecutor(losses, times), 100)) == 100


@pytest.mark.parametrize(("losses", "times"), [(4, 1), (1, 4)])
def test_a_task_that_is_lost_repeatedly_ends_the_run(losses: int, times: int) -> None:
    executor = LosingExecutor(losses, times)
    with pytest.raises(ResourceError, match="lost repeatedly in a sweep task"):
        run_tasks(executor, 100)
    assert list(executor.completed()) == []  # the remaining tasks were cancelled
