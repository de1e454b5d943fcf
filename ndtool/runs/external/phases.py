"""The phases of external execution: the tasks of each, and the tables that it writes for the next.

`tasks.py` defines the tasks, `tables.py` the tables; `policy.py` runs a phase.
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
from ndtool.runs.external.partitioning import HOT_FACTOR, Partitioning, phase_name
from ndtool.runs.external.policy import ResultCallback, RetryLog
from ndtool.runs.external.results import OutOfBounds, TaskResult
from ndtool.runs.external.resume import AbandonedRun
from ndtool.runs.external.spill import SpillStore
from ndtool.runs.external.tables import Group, TableBuilder

ReportCallback = Callable[[BoundsError], object]  # receives the bounds report


def run(
    inference: Inference,
    partitioning: Partitioning,
    store: SpillStore,
    executor: Executor,
    do: Callable[[str, int], Any],
    progress: ProgressCallback,
    report: ReportCallback,
    abandoned: AbandonedRun | None = None,
    in_order: bool = False,
    retry_log: RetryLog | None = None,
) -> Iterator[str]:
    """Run all phases; yield the name of each before it begins.

    do: runs a task. abandoned: the abandoned run to resume. in_order: whether the tasks of the last
    phase run one at a time, in order. retry_log: see `policy.complete`.
    """
    rows, width, levels = partitioning.rows, partitioning.rows.width, partitioning.levels
    tables, bounds_reports = TableBuilder(partitioning, store), BoundsReports(inference)
    spilled = map(partitioning.spilled_per_tuple, range(levels - 1))
    bytes_read = [rows.tuple_bytes, *spilled]  # of a tuple, by split
    total_bytes = rows.tuples * (sum(bytes_read) + width * partitioning.gathers * levels)
    total_bytes += rows.row_count * width
    moved_bytes, last = 0.0, "replay" if partitioning.gathers else "sweep"

    def run_phase(
        name: str, numbers: Iterable[int], count: int, nbytes: int, add_result: ResultCallback,
        resumed: dict[int, TaskResult],
    ) -> None:  # fmt: skip
        """Run a phase of `count` tasks that move `nbytes`.

        resumed: results of the abandoned run.
        """

        def add_outcome(number: int, result: Any) -> None:
            nonlocal moved_bytes
            add_result(number, result)
            moved_bytes += nbytes / count
            progress(min(1.0, moved_bytes / total_bytes))

        for number, result in resumed.items():
            add_outcome(number, result)
        pending = (Task(do, name, number) for number in numbers if number not in resumed)
        policy.complete(executor, pending, add_outcome, in_order and name == last, retry_log)

    def add_replay(number: int, result: TaskResult) -> None:
        if depth:
            group, block = divmod(number, partitioning.blocks)
            tables.add_segment(tables.group(depth, group), block, result.attempt)

    def add_split(number: int, result: TaskResult | OutOfBounds) -> None:
        if isinstance(result, TaskResult):
            tables.add_split(number, result)
        if not depth:
            bounds_reports.add(
                number, result.out_of_bounds if isinstance(result, TaskResult) else result
            )

    for depth in range(levels):
        yield (name := phase_name("split", depth))
        tables.begin_splits(depth)
        resumed = abandoned.splits(depth, tables) if abandoned else {}
        count, nbytes = tables.blocks(depth), rows.tuples * bytes_read[depth]
        run_phase(
            name, _blocks(tables.groups(depth), partitioning), count, nbytes, add_split, resumed
        )
        if not depth:
            bounds_reports.raise_or_report(report)
        tables.write_splits()

    def add_rows(number: int, result: TaskResult) -> None:
        partition, range_number = divmod(number, partitioning.max_ranges)
        group = tables.group(levels, partition)
        if group.tuples:
            tables.add_segment(group, range_number, result.attempt)

    hot = list(_combined(partitioning, tables))
    if hot:
        yield "combine"
        resumed = abandoned.rows("combine", tables) if abandoned else {}
        run_phase("combine", hot, len(hot), 0, add_rows, resumed)
        tables.write_attempts(levels)
    yield "sweep"
    resumed = abandoned.rows("sweep", tables) if abandoned and partitioning.gathers else {}
    count = partitioning.partitions + _additional_sweeps(partitioning, tables)
    numbers = _sweeps(partitioning, tables, hot_first=not in_order)
    add_result = add_rows if partitioning.gathers else ignore
    run_phase("sweep", numbers, count, rows.row_count * width, add_result, resumed)
    for depth in reversed(range(levels if partitioning.gathers else 0)):
        tables.write_attempts(depth + 1)
        tables.write_block_offsets(depth)
        yield (name := phase_name("replay", depth))
        resumed = abandoned.rows(name, tables) if abandoned and depth else {}

        numbers, nbytes = _blocks(tables.groups(depth), partitioning), rows.tuples * width
        run_phase(name, numbers, tables.blocks(depth), nbytes, add_replay, resumed)
        tables.discard_block_offsets(depth)


def _blocks(groups: Iterable[Group], partitioning: Partitioning) -> Iterator[int]:
    """Yield the numbers of the tasks for all blocks of groups."""
    return (
        group.task_number(block, partitioning) for group in groups for block in range(group.blocks)
    )


def _sweeps(partitioning: Partitioning, tables: TableBuilder, hot_first: bool) -> Iterator[int]:
    """Yield the numbers of the tasks that sweep partitions; hot_first: hot partitions first."""
    hot: list[int] = []
    if hot_first:
        threshold = HOT_FACTOR * -(-partitioning.rows.tuples // partitioning.partitions)
        groups = tables.groups(partitioning.levels)
        hot += (group.number for group in groups if group.tuples > threshold)
    remaining = filterfalse(set(hot).__contains__, partitioning.group_numbers(partitioning.levels))
    for partition in chain(hot, remaining):
        yield from _ranges(partitioning, tables.group(partitioning.levels, partition))


def _combined(partitioning: Partitioning, tables: TableBuilder) -> Iterator[int]:
    """Yield the numbers of the tasks that combine updates of hot partitions."""
    for group in tables.groups(partitioning.levels):
        if not partitioning.gathers and partitioning.is_combined(group.tuples):
            yield from _ranges(partitioning, group, combines=True)


def _additional_sweeps(partitioning: Partitioning, tables: TableBuilder) -> int:
    """Return how many tasks sweep partitions in addition to one for each partition."""
    if not partitioning.range_tuples:
        return 0
    return sum(
        len(_ranges(partitioning, group)) - 1 for group in tables.groups(partitioning.levels)
    )


def ignore(*_: object) -> None:
    """Ignore the result of a task that writes to the output."""


def _ranges(partitioning: Partitioning, group: Group, combines: bool = False) -> range:
    """Return the numbers of the tasks for the ranges of a partition's tuples."""
    first, count = group.number * partitioning.max_ranges, 1
    if partitioning.range_tuples and (partitioning.gathers or combines):
        count = max(1, -(-group.tuples // partitioning.range_tuples))
    return range(first, first + count)


class BoundsReports:
    """Collects the bounds reports of tasks for the bounds report of a run."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._first: tuple[int, OutOfBounds] | None = None  # with the number of its block
        self._count = 0

    def add(self, block: int, report: OutOfBounds | None) -> None:
        """Add the report of a block."""
        if report is not None:
            self._count += report.tuples
            if self._first is None or block < self._first[0]:
                self._first = block, report

    def raise_or_report(self, report: ReportCallback) -> None:
        """Raise BoundsError if an index is out of bounds, or pass it to `report` if allowed."""
        if self._first is None:
            return
        if not self._count:  # indices that batches share were read with different values
            raise OutputError("indices changed during the run")
        plan = self._inference.plan
        error = indices.make_bounds_error(plan, self._first[1][:3], self._count)
        if indices.is_error(plan):
            raise error
        report(error)
