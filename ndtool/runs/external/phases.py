"""The phases of external execution: which tasks each has, and what it passes to the next.

`tasks.py` defines the tasks, `tables.py` what they pass on; `policy.py` runs a phase.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, filterfalse
from typing import Any

from ndtool.engine import check as indices
from ndtool.engine.gathers import ProgressCallback
from ndtool.errors import BoundsError, OutputError
from ndtool.rules.inference import Inference
from ndtool.runs.executors import Executor, Task
from ndtool.runs.external import policy
from ndtool.runs.external.partitioning import HOT, Partitioning, phase
from ndtool.runs.external.policy import ResultCallback, Troubles
from ndtool.runs.external.results import OutOfBounds, TaskResult
from ndtool.runs.external.resume import AbandonedRun
from ndtool.runs.external.spill import SpillStore
from ndtool.runs.external.tables import Collected, Group

ReportCallback = Callable[[BoundsError], object]  # receives the bounds report


def run(
    inference: Inference,
    partitioning: Partitioning,
    spills: SpillStore,
    executor: Executor,
    do: Callable[[str, int], Any],
    progress: ProgressCallback,
    report: ReportCallback,
    abandoned: AbandonedRun | None = None,
    in_order: bool = False,
    troubles: Troubles | None = None,
) -> Iterator[str]:
    """Run all phases; yield the name of each before it begins.

    do: runs a task. abandoned: the abandoned run to resume. in_order: whether the tasks of the last
    phase run one at a time, in order. troubles: see `policy.complete`.
    """
    rows, width, levels = partitioning.rows, partitioning.rows.width, partitioning.levels
    tables, outside = Collected(partitioning, spills), Outside(inference)
    spilled = map(partitioning.spilled_per_tuple, range(levels - 1))
    bytes_read = [rows.tuple_bytes, *spilled]  # of a tuple, by split
    total_bytes = rows.tuples * (sum(bytes_read) + width * partitioning.gathers * levels)
    total_bytes += rows.height * width
    done, last = 0.0, "replay" if partitioning.gathers else "sweep"

    def run_phase(
        name: str, numbers: Iterable[int], count: int, nbytes: int, add_result: ResultCallback,
        resumed: dict[int, TaskResult],
    ) -> None:  # fmt: skip
        """Run a phase of `count` tasks that move `nbytes`; resumed: results of a killed run."""

        def ended(number: int, end: Any) -> None:
            nonlocal done
            add_result(number, end)
            done += nbytes / count
            progress(min(1.0, done / total_bytes))

        for number, end in resumed.items():
            ended(number, end)
        new = (Task(do, name, number) for number in numbers if number not in resumed)
        policy.complete(executor, new, ended, in_order and name == last, troubles)

    def replays_ended(number: int, end: TaskResult) -> None:
        if depth:
            group, block = divmod(number, partitioning.blocks)
            tables.add_rows(tables.group(depth, group), block, end.attempt)

    def splits_ended(number: int, end: TaskResult | OutOfBounds) -> None:
        if isinstance(end, TaskResult):
            tables.add(number, end)
        if not depth:
            outside.add(number, end.outside if isinstance(end, TaskResult) else end)

    for depth in range(levels):
        yield (name := phase("split", depth))
        tables.begin(depth)
        resumed = abandoned.splits(depth, tables) if abandoned else {}
        count, nbytes = tables.blocks(depth), rows.tuples * bytes_read[depth]
        run_phase(
            name, _blocks(tables.groups(depth), partitioning), count, nbytes, splits_ended, resumed
        )
        if not depth:
            outside.raise_or_report(report)
        tables.split()

    def rows_ended(number: int, end: TaskResult) -> None:
        partition, at = divmod(number, partitioning.ranges)
        group = tables.group(levels, partition)
        if group.tuples:
            tables.add_rows(group, at, end.attempt)

    hot = list(_combined(partitioning, tables))
    if hot:
        yield "combine"
        resumed = abandoned.rows("combine", tables) if abandoned else {}
        run_phase("combine", hot, len(hot), 0, rows_ended, resumed)
        tables.write_attempts(levels)
    yield "sweep"
    resumed = abandoned.rows("sweep", tables) if abandoned and partitioning.gathers else {}
    count = partitioning.partitions + _additional_sweeps(partitioning, tables)
    numbers = _sweeps(partitioning, tables, hot_first=not in_order)
    add_result = rows_ended if partitioning.gathers else ignore
    run_phase("sweep", numbers, count, rows.height * width, add_result, resumed)
    for depth in reversed(range(levels if partitioning.gathers else 0)):
        tables.write_attempts(depth + 1)
        tables.write_places(depth)
        yield (name := phase("replay", depth))
        resumed = abandoned.rows(name, tables) if abandoned and depth else {}

        numbers, nbytes = _blocks(tables.groups(depth), partitioning), rows.tuples * width
        run_phase(name, numbers, tables.blocks(depth), nbytes, replays_ended, resumed)
        tables.discard_places(depth)


def _blocks(groups: Iterable[Group], partitioning: Partitioning) -> Iterator[int]:
    """Yield the numbers of the tasks for all blocks of groups."""
    return (group.task(block, partitioning) for group in groups for block in range(group.blocks))


def _sweeps(partitioning: Partitioning, tables: Collected, hot_first: bool) -> Iterator[int]:
    """Yield the numbers of the tasks that sweep partitions; hot_first: the longest tasks first."""
    hot: list[int] = []
    if hot_first:
        few = HOT * -(-partitioning.rows.tuples // partitioning.partitions)
        groups = tables.groups(partitioning.levels)
        hot += (group.number for group in groups if group.tuples > few)
    others = filterfalse(set(hot).__contains__, partitioning.used(partitioning.levels))
    for partition in chain(hot, others):
        yield from _ranges(partitioning, tables.group(partitioning.levels, partition))


def _combined(partitioning: Partitioning, tables: Collected) -> Iterator[int]:
    """Yield the numbers of the tasks that combine updates of hot partitions."""
    for group in tables.groups(partitioning.levels):
        if not partitioning.gathers and partitioning.is_combined(group.tuples):
            yield from _ranges(partitioning, group, combines=True)


def _additional_sweeps(partitioning: Partitioning, tables: Collected) -> int:
    """Return how many tasks sweep partitions in addition to one for each."""
    if not partitioning.range_tuples:
        return 0
    return sum(
        len(_ranges(partitioning, group)) - 1 for group in tables.groups(partitioning.levels)
    )


def ignore(*_: object) -> None:
    """Ignore the result of a task that writes to the output."""


def _ranges(partitioning: Partitioning, group: Group, combines: bool = False) -> range:
    """Return the numbers of the tasks for the ranges of a partition's tuples."""
    first, count = group.number * partitioning.ranges, 1
    if partitioning.range_tuples and (partitioning.gathers or combines):
        count = max(1, -(-group.tuples // partitioning.range_tuples))
    return range(first, first + count)


class Outside:
    """Collects the bounds report of a run from its tasks."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._first: tuple[int, OutOfBounds] | None = None  # with the number of its block
        self._count = 0

    def add(self, block: int, end: OutOfBounds | None) -> None:
        """Add the report of a block."""
        if end is not None:
            self._count += end.tuples
            if self._first is None or block < self._first[0]:
                self._first = block, end

    def raise_or_report(self, report: ReportCallback) -> None:
        """Raise BoundsError if an index is out of bounds, or pass it to `report` if allowed."""
        if self._first is None:
            return
        if not self._count:  # repeated tuples differ between batches
            raise OutputError("indices changed during the run")
        plan, negatives = self._inference.plan, self._inference.row.negatives
        error = indices.make_bounds_error(plan, self._first[1][:3], self._count, negatives)
        if indices.is_error(plan, self._inference.attributes.out_of_bounds):
            raise error
        report(error)
