"""Retries of late tasks, and of tasks on full disks and throttling stores, on a simulated clock."""

import errno
import heapq
import os
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import save, snapshot
from strategies import bits_equal
from toy_executor import Toy

from ndtool import files
from ndtool.analysis.oracle import reference
from ndtool.errors import OutputError, ResourceError
from ndtool.runs.executors import Task
from ndtool.runs.external import policy, spillfiles
from ndtool.runs.external.policy import RetryLog
from ndtool.runs.external.spill import Segment, Table
from ndtool.storage import descriptors, failures


class SimulatedExecutor:
    """Runs no task; an attempt takes as many seconds as a function of its number says.

    It yields None after each second in which nothing has ended.
    """

    def __init__(self, slots: int, seconds: Callable[[int, int], float]) -> None:
        self.slots, self.attempts, self.max_running = slots, Counter[int](), 0
        self._seconds, self._clock = seconds, 0.0
        self._running: list[tuple[float, int, Task]] = []
        self._waiting: deque[Task] = deque()

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def completed(self) -> Iterator[tuple[Task, Any] | None]:
        while True:
            while self._waiting and len(self._running) < self.slots:
                task = self._waiting.popleft()
                ends = self._clock + self._seconds(task.number, self.attempts[task.number])
                self.attempts[task.number] += 1
                heapq.heappush(self._running, (ends, sum(self.attempts.values()), task))
                self.max_running = max(self.max_running, len(self._running))
            if not self._running:
                return
            if self._running[0][0] > self._clock + 1:
                self._clock += 1
                yield None
                continue
            self._clock, _, task = heapq.heappop(self._running)
            yield task, task.execute()

    def cancel(self, *tasks: Task) -> None:
        self._waiting = deque(task for task in self._waiting if task not in tasks)
        self._running = [item for item in self._running if item[2] not in tasks]
        heapq.heapify(self._running)

    def wait(self, seconds: float) -> None:
        self._clock += seconds

    def now(self) -> float:
        return self._clock


def return_number(phase: str, number: int) -> int:
    return number


def run(
    executor: SimulatedExecutor, count: int, do: Callable[[str, int], Any] = return_number,
    retry_log: RetryLog | None = None,
) -> list[int]:  # fmt: skip
    """Run tasks; return their numbers in the order of their ends."""
    ended: list[int] = []
    tasks = (Task(do, "sweep", number) for number in range(count))
    policy.complete(executor, tasks, lambda number, _: ended.append(number), retry_log=retry_log)
    assert sorted(ended) == list(range(count))
    return ended


def test_a_late_task_is_started_again_and_the_first_to_end_counts() -> None:
    stuck = SimulatedExecutor(4, lambda number, attempt: 1e9 if (number, attempt) == (5, 0) else 10)
    retry_log = RetryLog()
    assert run(stuck, 20, retry_log=retry_log)[-1] == 5
    assert stuck.attempts == {number: 1 + (number == 5) for number in range(20)}
    # It is late after 50 s, with slots free since then at the latest; the other attempt takes 10.
    assert stuck.now() <= 10 + 51 + 10 + 1
    assert retry_log.warnings() == [
        "1 sweep task took 5 times as long as others, and was restarted on another worker"
    ]


def test_the_first_attempt_may_still_be_the_first_to_end() -> None:
    slow = SimulatedExecutor(2, lambda number, attempt: 60 if number == 7 else 10)
    assert run(slow, 8, retry_log=RetryLog())[-1] == 7
    assert slow.attempts[7] == 2
    assert slow.now() == 30 + 60


@pytest.mark.parametrize(
    ("slots", "seconds"),
    [
        (1, lambda number, _: 100 if number == 9 else 1),  # no slot is free
        (4, lambda number, _: 45 if number == 9 else 10),  # not five times as long
        (4, lambda number, _: 4 if number == 9 else 0.1),  # not long
        (4, lambda number, _: 100 if number < 4 else 1),  # others wait; then no median is known
    ],
    ids=["one slot", "not late", "short", "the first ones"],
)
def test_tasks_that_run_once(slots: int, seconds: Callable[[int, int], float]) -> None:
    executor, retry_log = SimulatedExecutor(slots, seconds), RetryLog()
    run(executor, 10, retry_log=retry_log)
    assert set(executor.attempts.values()) == {1}
    assert retry_log.warnings() == []


def fail_when_full(times: int) -> Callable[[str, int], int]:
    """Return a task that finds a full disk, the first times that it runs."""
    remaining_failures = Counter(dict.fromkeys(range(0, 40, 3), times))

    def run_task(phase: str, number: int) -> int:
        remaining_failures[number] -= 1
        if remaining_failures[number] >= 0:
            full_disk = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            raise spillfiles.convert_error(full_disk, f"file {number}")
        return number

    return run_task


def test_full_disks_are_waited_for_with_fewer_tasks_at_once() -> None:
    executor, retry_log = SimulatedExecutor(8, lambda *_: 1), RetryLog()
    run(executor, 40, fail_when_full(3), retry_log)
    assert executor.now() > (1 + 2 + 4) * policy.BACKOFF
    assert set(executor.attempts.values()) == {1, 4}
    message = "file 0: No space left on device: 42 tasks were retried later, with fewer"
    assert retry_log.warnings() == [f"{message} at once"]


def test_a_disk_that_stays_full_ends_the_run() -> None:
    executor = SimulatedExecutor(8, lambda *_: 1)
    with pytest.raises(ResourceError, match="No space left on device"):
        run(executor, 40, fail_when_full(policy.MAX_RETRIES + 1), RetryLog())
    assert list(executor.completed()) == []
    with pytest.raises(ResourceError, match="No space left on device"):
        run(
            SimulatedExecutor(8, lambda *_: 1), 40, fail_when_full(1)
        )  # in this process, whose disk was reserved


@pytest.mark.parametrize("store", ["folder", "objects"])
def test_tables_are_written_again_while_a_disk_is_full(
    store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the policy repeats tasks; another error ends the run at once."""
    written, delays = list[bytes](), list[float]()
    error = spillfiles.convert_error(OSError(errno.ENOSPC, "full"))

    def write_file(_: object, name: str, body: memoryview) -> None:
        written.append(bytes(body))
        if len(written) < 4:
            raise error

    kind = spillfiles.FolderStore if store == "folder" else spillfiles.ObjectStore
    monkeypatch.setattr(kind, "write_file", write_file)
    monkeypatch.setattr(policy.time, "sleep", delays.append)
    location = str(tmp_path) if store == "folder" else "memory://spill"
    spillfiles.open_store(location).write_table(Table("offsets0", 1), memoryview(bytes(8)))
    assert (written, delays) == ([bytes(8)] * 4, [1, 2, 4])
    error.passing = False
    written.clear()
    with pytest.raises(ResourceError, match="full"):
        spillfiles.open_store(location).write_table(Table("offsets0", 1), memoryview(bytes(8)))
    assert len(written) == 1


def test_which_errors_may_pass() -> None:
    class RefusedError(Exception):
        def __init__(self, status: int) -> None:
            super().__init__("reason")
            self.status = status

    transient = {status: failures.failure(RefusedError(status), "s3://a/b").passing for status in (
        429, 500, 503, 403,
    )}  # fmt: skip
    assert transient == {429: True, 500: False, 503: True, 403: False}
    assert not spillfiles.convert_error(OSError(errno.EIO, "I/O error")).passing
    assert spillfiles.convert_error(OSError(errno.EDQUOT, "quota")).passing


def test_another_attempt_may_fail_without_harm() -> None:
    stuck = SimulatedExecutor(4, lambda number, attempt: 200 if (number, attempt) == (5, 0) else 10)
    calls = Counter[int]()

    def run_task(phase: str, number: int) -> int:
        calls[number] += 1
        if number == 5 and calls[5] == 1:  # the second attempt ends first
            raise OutputError("one worker's fault")
        return number

    assert run(stuck, 20, run_task, RetryLog())[-1] == 5
    assert calls[5] == 2


@pytest.mark.parametrize("where", ["write", "finish"])
def test_a_run_survives_a_disk_that_is_full_for_a_while(
    workdir: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    rng = np.random.default_rng(5)
    data, idx = rng.random((512, 256), np.float32), rng.integers(-256, 256, (20_000, 2))
    save(data=data, idx=idx)
    before, calls = snapshot(workdir), Counter[str]()
    original_function = {"write": descriptors.write_at, "finish": os.rename}[where]

    def fail(*arguments: Any) -> Any:
        calls[where] += 1
        if calls[where] in (2, 3, 7):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original_function(*arguments)

    module, name = {"write": (descriptors, "write_at"), "finish": (os, "rename")}[where]
    store = spillfiles.FolderStore
    for method in ("write", "finish") if where == "write" else ("finish",):
        unpatched = getattr(store, method)

        def patched(self: Any, *arguments: Any, unpatched: Any = unpatched) -> Any:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(module, name, fail)
                return unpatched(self, *arguments)

        monkeypatch.setattr(store, method, patched)
    result = files.gather_nd("data.npy", "idx.npy", out="out.npy", scheduler=Toy(3))
    assert bits_equal(np.load("out.npy"), reference.gather_nd(data, idx))
    assert [warning.partition(":")[0] for warning in result.warnings] == ["temporary file"]
    assert snapshot(workdir).keys() - before.keys() == {"out.npy"}


def test_an_attempt_without_space_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = spillfiles.FolderStore(str(tmp_path))
    segment = store.create(Segment("split", 0, 0))

    def fail(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(descriptors, "write_at", fail)
    with pytest.raises(ResourceError) as excinfo:
        store.write(segment, 0, memoryview(b"rows"))
    assert excinfo.value.passing
    assert os.listdir(tmp_path) == []
