"""A simulated cluster: tasks run in this process, and a simulated clock determines their ends.

A task reports its requests and its computing as steps to a `Meter`. A model of workers and of a
store converts the steps to seconds. A simulation is deterministic, given the steps and a seed.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from math import ceil
from random import Random
from typing import Any, NamedTuple

from ndtool.runs.executors import Lost, Task
from ndtool.runs.machines import Machine


class Step(NamedTuple):
    """Concurrent requests of a task, and the computing before them.

    kind: consecutive steps of the same kind are combined. nbytes: bytes sent or received.
    """

    kind: str
    gets: int = 0
    puts: int = 0
    nbytes: int = 0
    seconds: float = 0.0


class Faults(NamedTuple):
    """Faults of workers and of the store, as fractions of all attempts, or of all requests.

    lost: attempts whose worker is lost, before or after the task is executed. late: attempts that
    take `slowdown` times as long. throttled: requests that the store rejects once (status 503) and
    that are repeated after `retry_delay` seconds.
    """

    lost: float = 0.0
    late: float = 0.0
    slowdown: float = 10.0
    throttled: float = 0.0
    retry_delay: float = 1.0


class Meter:
    """Collects the steps of the running task. totals: requests and bytes of all tasks."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Add a step; combine it with the previous one if that is of the same kind."""
        self.totals.update(get=step.gets, put=step.puts, bytes=step.nbytes)
        last = self._steps[-1] if self._steps else None
        if last is not None and last.kind == step.kind:
            _, gets, puts, nbytes, seconds = last
            self._steps[-1] = Step(
                step.kind, gets + step.gets, puts + step.puts, nbytes + step.nbytes,
                seconds + step.seconds,
            )  # fmt: skip
        else:
            self._steps.append(step)

    def pop_steps(self) -> list[Step]:
        """Return the steps since the last call."""
        steps, self._steps = self._steps, []
        return steps


class Simulator:
    """A cluster of `slots` workers. memory: bytes of a worker. spent: seconds of tasks by cause.

    meter: collects the steps of tasks. interval: the seconds after which `completed` yields None if
    no task completes; None for never. Tasks start in order, and the store serves the requests of
    the task that started first before those of later tasks.
    """

    def __init__(
        self,
        slots: int,
        machine: Machine,
        meter: Meter,
        faults: Faults = Faults(),  # noqa: B008
        seed: int = 0,
        memory: int = 4 << 30,
        interval: float | None = None,
    ) -> None:
        self.slots, self.memory, self.meter = slots, memory, meter
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._machine, self._faults, self._random = machine, faults, Random(seed)
        self._waiting: deque[Task] = deque()
        self._running: list[tuple[float, int, Task, Any]] = []  # a heap, by end
        self._cancelled: set[int] = set()
        self._busy_until: defaultdict[str, float] = defaultdict(
            float
        )  # the time at which a limited resource becomes idle
        self._clock, self._started_count, self._interval = 0.0, 0, interval

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def completed(self) -> Iterator[Any]:
        # Cancelled attempts keep their slots, and `completed` does not wait for them.
        while self._waiting or len(self._running) > len(self._cancelled):
            while self._waiting and len(self._running) < self.slots:
                self._start(self._waiting.popleft())
            end, number, task, outcome = self._running[0]
            if self._interval and end > self._clock + self._interval:
                self._clock += self._interval
                yield None
                continue
            heapq.heappop(self._running)
            self._clock = max(self._clock, end)
            if number in self._cancelled:
                self._cancelled.remove(number)
            else:
                yield task, outcome

    def cancel(self, *tasks: Task) -> None:
        dropped = set(tasks)
        self._waiting = deque(task for task in self._waiting if task not in dropped)
        self._cancelled |= {number for _, number, task, _ in self._running if task in dropped}

    def now(self) -> float:
        return self._clock

    def wait(self, seconds: float) -> None:
        """Advance the clock."""
        self._clock += seconds

    def run_on_workers(self, call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return {"simulated": call(*arguments)}

    def abort(self, call: Callable[..., Any], *arguments: Any, seconds: float) -> None:
        call(*arguments)

    def _start(self, task: Task) -> None:
        """Run a task, and compute its end time."""
        draw, faults = self._random.random(), self._faults
        start = self._completion_time("scheduler", self._clock, self._machine.scheduler_seconds)
        self.spent["scheduler"] += start - self._clock
        lost, executes = draw < faults.lost, draw >= faults.lost / 2
        self.meter.pop_steps()
        outcome = task.execute() if executes else None
        end = start
        for step in self.meter.pop_steps():
            end = self._end_of_step(end, step)
        if faults.lost <= draw < faults.lost + faults.late:
            end = start + (end - start) * faults.slowdown
        self._started_count += 1
        result = Lost() if lost else outcome
        heapq.heappush(self._running, (end, self._started_count, task, result))

    def _end_of_step(self, start: float, step: Step) -> float:
        """Return the end time of a step that starts at `start`."""
        machine, requests = self._machine, step.gets + step.puts
        computed, latency = (
            start + step.seconds,
            machine.latency * ceil(requests / machine.concurrency),
        )
        self.spent["computing"] += step.seconds
        self.spent["latency"] += latency
        self.spent["bandwidth"] += step.nbytes / machine.bandwidth
        end = computed + latency + step.nbytes / machine.bandwidth
        for name, amount, rate in (
            ("requests to read", step.gets, machine.get_rate),
            ("requests to write", step.puts, machine.put_rate),
            ("total bandwidth", step.nbytes, machine.total_bandwidth),
        ):
            if amount and rate:
                available = self._completion_time(name, computed, amount / rate)
                self.spent[name] += max(0.0, available - end)
                end = max(end, available)
        if self._faults.throttled and requests:
            throttled = sum(
                self._random.random() < self._faults.throttled for _ in range(min(requests, 1000))
            )
            self.meter.totals["throttled"] += throttled
            end += self._faults.retry_delay if throttled else 0.0
        return end

    def _completion_time(self, name: str, start: float, seconds: float) -> float:
        """Return when a shared resource completes a request that occupies it for `seconds`."""
        self._busy_until[name] = max(self._busy_until[name], start) + seconds
        return self._busy_until[name]
