"""The smallest executor: the complete contract of a new one.

Tasks run in this process, in random order. Some are lost, before or after they run;
some run twice, and either attempt may be reported first, or both are.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from ndtool.runs.executors import Lost, Task

MOST = 3  # losses of a task


class Toy:
    """One process. memory: bytes that a task may take."""

    slots = 2

    def __init__(self, seed: int, memory: int = 1 << 20) -> None:
        self.memory = memory
        self.attempt_results: Counter[str] = Counter()
        self._random = Random(seed)
        self._waiting: list[Task] = []
        self._lost: Counter[Task] = Counter()
        self._clock = 0.0

    def submit(self, task: Task) -> None:
        self._waiting.append(task)

    def completed(self) -> Iterator[tuple[Task, Any] | None]:
        while self._waiting:
            task = self._waiting.pop(self._random.randrange(len(self._waiting)))
            self._clock += 1  # a task takes a second
            for outcome in self._attempts(task):
                yield task, outcome

    def cancel(self, *tasks: Task) -> None:
        self._waiting = [task for task in self._waiting if task not in tasks]

    def wait(self, seconds: float) -> None:
        self._clock += seconds

    def now(self) -> float:
        return self._clock

    def run_on_workers(self, call: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
        return {"toy": call(*arguments)}

    def abort(self, call: Callable[..., Any], *arguments: Any, seconds: float) -> None:
        call(*arguments)

    def _attempts(self, task: Task) -> list[Any]:
        attempt_result = self._random.choice(
            ("done", "lost before", "lost after", "first", "second", "both")
        )
        if attempt_result.startswith("lost"):
            self._lost[task] += 1
            if self._lost[task] > MOST:
                attempt_result = "done"
        self.attempt_results[attempt_result] += 1
        times = {"done": 1, "lost before": 0, "lost after": 1}.get(attempt_result, 2)
        outcomes = [task.execute() for _ in range(times)]
        if attempt_result.startswith("lost"):
            return [Lost()]
        return {"first": outcomes[:1], "second": outcomes[1:]}.get(attempt_result, outcomes)
