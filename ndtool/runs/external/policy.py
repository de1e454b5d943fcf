"""The policy of external execution: submits tasks, retries lost ones, selects attempts.

It drives the phases of a run on any executor, and passes the tables that the next phase needs.
`tasks.py` defines the tasks.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate, islice
from operator import add, sub
from typing import Any

from ndtool.engine import check as indices
from ndtool.engine.gathers import ProgressCallback
from ndtool.errors import BoundsError, OutputError, ResourceError
from ndtool.rules.inference import Inference
from ndtool.runs.executors import Executor, Lost, Task
from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.resume import AbandonedRun
from ndtool.runs.external.spill import SpillStore, Table
from ndtool.runs.external.tasks import OutOfBounds, TaskResult

Take = Callable[[int, Any], None]  # takes a task's number and its result
Note = Callable[[BoundsError], object]  # takes the bounds report
AHEAD = 16  # tasks submitted at once for each slot
LOSSES = 3  # losses of a task, at most


def complete(executor: Executor, tasks: Iterable[Task], take: Take, in_order: bool = False) -> None:
    """Run tasks to completion, one at a time if in order; resubmit lost ones.

    The first outcome of a task counts.
    """
    waiting, unfinished, losses = iter(tasks), set[Task](), Counter[Task]()

    def submit(count: int) -> None:
        for task in islice(waiting, count):
            unfinished.add(task)
            executor.submit(task)

    try:
        submit(1 if in_order else AHEAD * executor.slots)
        for task, outcome in executor.completed():
            if task not in unfinished:  # another attempt counted
                continue
            if isinstance(outcome, Lost):
                losses[task] += outcome.times
                if losses[task] > LOSSES:
                    raise ResourceError(
                        f"workers were lost repeatedly in a {task.phase} task",
                        hint="a smaller --memory makes tasks smaller",
                    )
                executor.submit(task)
                continue
            if isinstance(outcome, BaseException):
                raise outcome
            unfinished.remove(task)
            take(task.number, outcome)
            submit(1)
    finally:
        executor.cancel(*unfinished)


def phases(
    inference: Inference,
    partitioning: Partitioning,
    spills: SpillStore,
    executor: Executor,
    do: Callable[[str, int], Any],
    progress: ProgressCallback,
    note: Note,
    abandoned: AbandonedRun | None = None,
    in_order: bool = False,
) -> Iterator[str]:
    """Run all phases; yield the name of each before it begins.

    do: runs a task. abandoned: the abandoned run to resume. in_order: whether the tasks of the last
    phase run one at a time, in order.
    """
    tables, outside, rows = _Tables(partitioning), Outside(inference), partitioning.rows
    moved = (
        rows.tuples * (rows.entry + rows.width * partitioning.gathers) + rows.height * rows.width
    )
    done, last = 0.0, "replay" if partitioning.gathers else "sweep"

    def each(phase: str, count: int, nbytes: int, known: dict[int, TaskResult], take: Take) -> None:
        """Run a phase whose tasks move `nbytes` in total; known: results of resumed tasks."""

        def ended(number: int, end: Any) -> None:
            nonlocal done
            take(number, end)
            done += nbytes / count
            progress(min(1.0, done / moved))

        for number, end in known.items():
            ended(number, end)
        new = (Task(do, phase, number) for number in range(count) if number not in known)
        complete(executor, new, ended, in_order and phase == last)

    def splits_ended(block: int, end: TaskResult | OutOfBounds) -> None:
        if isinstance(end, TaskResult):
            tables.add(block, end)
        outside.add(block, end.outside if isinstance(end, TaskResult) else end)

    def swept(part: int, end: TaskResult) -> None:
        if partitioning.gathers:
            table[part] = end.attempt

    yield "split"
    each(
        "split",
        partitioning.blocks,
        rows.tuples * rows.entry,
        abandoned.splits() if abandoned else {},
        splits_ended,
    )
    outside.tell(note)
    spills.tabulate(Table("starts", partitioning.blocks), tables.starts)
    yield "sweep"
    table = tables.table() if partitioning.gathers else memoryview(b"")
    known = (
        abandoned.sweeps(partitioning, table[-partitioning.parts :])
        if abandoned and partitioning.gathers
        else {}
    )
    each("sweep", partitioning.parts, rows.height * rows.width, known, swept)
    if partitioning.gathers:
        spills.tabulate(Table("places", partitioning.parts), table)
        yield "replay"
        each("replay", partitioning.blocks, rows.tuples * rows.width, {}, lambda *_: None)


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

    def tell(self, note: Note) -> None:
        """Raise BoundsError if an index is out of bounds, or pass it to `note` if allowed."""
        if self._first is None:
            return
        if not self._count:  # repeated tuples differ between batches
            raise OutputError("indices changed during the run")
        plan, negatives = self._inference.plan, self._inference.row.negatives
        error = indices.bounds_error(plan, self._first[1][:3], self._count, negatives)
        if indices.is_error(plan, self._inference.attributes.out_of_bounds):
            raise error
        note(error)


class _Tables:
    """The tables that split passes to sweep, and sweep to replay.

    starts: a line of attempts, then a line for every partition, and one for the end, with each
    block's offset of it in tuples.
    """

    def __init__(self, partitioning: Partitioning) -> None:
        self._partition_flat = partitioning
        self.starts = _numbers((2 + partitioning.parts) * partitioning.blocks)

    def add(self, block: int, end: TaskResult) -> None:
        """Add the result of a block's split."""
        blocks = self._partition_flat.blocks
        self.starts[block] = end.attempt
        self.starts[blocks + block :: blocks] = memoryview(end.starts).cast("q")

    def table(self) -> memoryview:
        """Return the table for replay.

        A line for attempts, still 0; a line of partition offsets in tuples; then a line for every
        block, and one for the end, with its offset in each partition.
        """
        blocks, parts = self._partition_flat.blocks, self._partition_flat.parts
        table, before = _numbers((3 + blocks) * parts), [0] * parts
        for block in range(blocks):
            table[(2 + block) * parts : (3 + block) * parts] = _line(before)
            here = self.starts[blocks + block :: blocks].tolist()
            before = list(map(add, before, map(sub, here[1:], here)))
        table[(2 + blocks) * parts :] = _line(before)
        table[parts : 2 * parts] = _line(accumulate(before[:-1], initial=0))
        return table


def _numbers(count: int) -> memoryview:
    return memoryview(bytearray(8 * count)).cast("q")


def _line(numbers: Iterable[int]) -> memoryview:
    return memoryview(array("q", numbers))
