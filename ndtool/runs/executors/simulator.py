"""A simulated cluster: tasks run in this process, and a clock of its own says when each ends.

A task reports its requests and its computing as steps, to a `Meter`; a model of workers and of a
store turns them into seconds. Everything follows from the steps and a seed.
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
    """Requests of a task that are in flight together, and the computing before them.

    kind: steps of one kind that follow each other are one step. nbytes: sent or received.
    """

    kind: str
    gets: int = 0
    puts: int = 0
    nbytes: int = 0
    seconds: float = 0.0


class Faults(NamedTuple):
    """Faults of workers and of the store, as fractions of all tasks, or of requests.

    lost: attempts whose worker is lost, before or after the work is done. late: attempts that take
    `times` as long. refused: requests that the store refuses once (503), which wait `pause` seconds
    and are sent again.
    """

    lost: float = 0.0
    late: float = 0.0
    times: float = 10.0
    refused: float = 0.0
    pause: float = 1.0


class Meter:
    """Collects the steps of the task that runs. totals: those of all tasks that ran."""

    def __init__(self) -> None:
        self.totals: Counter[str] = Counter()
        self._steps: list[Step] = []

    def add(self, step: Step) -> None:
        """Add a step, which a step of the same kind before it takes in."""
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

    def take(self) -> list[Step]:
        """Return the steps since the last call."""
        steps, self._steps = self._steps, []
        return steps


class Simulator:
    """A cluster of `slots` workers. memory: bytes of a worker. spent: seconds of tasks by cause.

    meter: to which tasks report. tick: the interval at which `completed` yields None while time
    passes; None for never. Tasks begin in order, so of two tasks the one that begins first has its
    requests served first.
    """

    def __init__(
        self,
        slots: int,
        machine: Machine,
        meter: Meter,
        faults: Faults = Faults(),  # noqa: B008
        seed: int = 0,
        memory: int = 4 << 30,
        tick: float | None = None,
    ) -> None:
        self.slots, self.memory, self.meter = slots, memory, meter
        self.spent: defaultdict[str, float] = defaultdict(float)
        self._machine, self._faults, self._random = machine, faults, Random(seed)
        self._waiting: deque[Task] = deque()
        self._running: list[tuple[float, int, Task, Any]] = []  # a heap, by end
        self._cancelled: set[int] = set()
        self._free: defaultdict[str, float] = defaultdict(
            float
        )  # until when a limited resource is busy
        self._clock, self._begun, self._tick = 0.0, 0, tick

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def completed(self) -> Iterator[Any]:
        # Attempts that do not count any more keep their slots, and are not waited for.
        while self._waiting or len(self._running) > len(self._cancelled):
            while self._waiting and len(self._running) < self.slots:
                self._begin(self._waiting.popleft())
            end, number, task, outcome = self._running[0]
            if self._tick and end > self._clock + self._tick:
                self._clock += self._tick
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
        """Let time pass."""
        self._clock += seconds

    def everywhere(self, call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return {"simulated": call(*arguments)}

    def abandon(self, call: Callable[..., Any], *arguments: Any, seconds: float) -> None:
        call(*arguments)

    def _begin(self, task: Task) -> None:
        """Run a task, and compute when it ends."""
        draw, faults = self._random.random(), self._faults
        begin = self._served("scheduler", self._clock, self._machine.scheduled)
        self.spent["scheduler"] += begin - self._clock
        lost, works = draw < faults.lost, draw >= faults.lost / 2
        self.meter.take()
        outcome = task.outcome() if works else None
        end = begin
        for step in self.meter.take():
            end = self._ended(end, step)
        if faults.lost <= draw < faults.lost + faults.late:
            end = begin + (end - begin) * faults.times
        self._begun += 1
        result = Lost() if lost else outcome
        heapq.heappush(self._running, (end, self._begun, task, result))

    def _ended(self, start: float, step: Step) -> float:
        """Return when a step ends that begins at `start`."""
        machine, requests = self._machine, step.gets + step.puts
        begin, at = start + step.seconds, machine.latency * ceil(requests / machine.concurrency)
        self.spent["computing"] += step.seconds
        self.spent["latency"] += at
        self.spent["bandwidth"] += step.nbytes / machine.bandwidth
        end = begin + at + step.nbytes / machine.bandwidth
        for name, amount, rate in (
            ("requests to read", step.gets, machine.gets),
            ("requests to write", step.puts, machine.puts),
            ("bandwidth of all", step.nbytes, machine.every),
        ):
            if amount and rate:
                served = self._served(name, begin, amount / rate)
                self.spent[name] += max(0.0, served - end)
                end = max(end, served)
        if self._faults.refused and requests:
            refused = sum(
                self._random.random() < self._faults.refused for _ in range(min(requests, 1000))
            )
            self.meter.totals["refused"] += refused
            end += self._faults.pause if refused else 0.0
        return end

    def _served(self, name: str, start: float, seconds: float) -> float:
        """Return when a resource that all share has served a request that takes it so long."""
        self._free[name] = max(self._free[name], start) + seconds
        return self._free[name]
