"""Out-of-core execution in this process: opens the arrays, and runs the tasks on threads."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from typing import Any

from ndtool.arrays.boxes import Reader, Writer
from ndtool.arrays.sink import Sink, output_buffer
from ndtool.arrays.source import Constant, ContiguousSource, Inputs, load, row_major
from ndtool.engine import distinct
from ndtool.engine.distinct import TupleBlock
from ndtool.engine.gathers import ProgressCallback
from ndtool.machine import threads
from ndtool.outofcore import phases
from ndtool.outofcore.partitioning import Partitioning
from ndtool.outofcore.phases import Arrays, Group, OutOfBounds, ReportCallback, Task, Work
from ndtool.outofcore.segments import LocalStore
from ndtool.rules.plans import Plan, Shape


def run(
    call: Inputs,
    partitioning: Partitioning,
    spill_directories: tuple[str, ...],
    sink: Sink,
    progress: ProgressCallback,
    report: ReportCallback,
    dry: bool = False,
) -> Generator[str]:
    """Execute a run in this process, into a sink; yield the name of each phase before it begins.

    report: a callback for the bounds report, if the mode allows indices out of bounds. dry: whether
    the caller stops at the first phase, so that no data are read.
    """
    if call.inference.requires_distinct and not dry:
        check(call, partitioning, lambda _: None)
    with ExitStack() as stack:
        output = _output_writer(call, sink, partitioning, stack)
        unread = tuple(call.sources) if dry else ()
        store = LocalStore(partitioning.regions, spill_directories)
        stack.callback(store.close)
        work = Work(call.inference, partitioning, arrays(call, partitioning, output, unread), store)

        def map_threads(
            phase: str, group: Group, tasks: Iterable[Task]
        ) -> Iterator[tuple[int, Any]]:
            def execute(task: Task) -> tuple[int, Any]:
                return task[0], phases.TASKS[phase](work, group, *task)

            in_order = sink.streamed and phase == work.last_phase
            return threads.map_all(execute, tasks, 1 if in_order else partitioning.workers)

        yield from phases.run(work, work.root, map_threads, progress, report)


def check(call: Inputs, partitioning: Partitioning, report: ReportCallback) -> None:
    """Validate all indices by blocks; raise BoundsError, or pass it to `report` if allowed.

    Raises DuplicatesError if two tuples select the same slice, and duplicates are an error.
    """
    inputs = arrays(call, partitioning, None, unread=("data",))
    work, rows = Work(call.inference, partitioning, inputs, None), partitioning.rows
    step = partitioning.block_tuples
    reports, total = phases.BoundsReports(call.inference), rows.tuples // rows.repeats

    def check_block(first: int) -> OutOfBounds | None:
        n = min(step, total - first)
        with work.arena() as allocate:
            indices = work.indices(first, n, allocate, are_stored=True)
            return phases.find_out_of_bounds(work.plan, indices, first, n)

    def stored_blocks() -> Iterator[TupleBlock]:
        for first in range(0, total, step):
            n = min(step, total - first)
            with work.arena() as allocate:
                yield TupleBlock(first, n, work.indices(first, n, allocate, are_stored=True))

    for found in threads.map_all(check_block, range(0, total, step), partitioning.workers):
        reports.add(found)
    reports.raise_or_report(report)
    if call.inference.requires_distinct:
        stored = distinct.stored_tuples(call.inference.plan)
        buffers = partitioning.scratch_bytes * min(partitioning.workers, threads.MAX_WRITERS)
        bitmap = max(1, partitioning.memory - buffers)
        distinct.check_blocks(stored, stored_blocks, bitmap)


def arrays(
    call: Inputs, partitioning: Partitioning, output: Writer | None, unread: tuple[str, ...] = ()
) -> Arrays:
    """Return the readers of inputs and the writer of the output; without output, updates are None.

    unread: the roles of inputs that will not be read: space for a copy is reserved, not filled.
    """
    plan = call.inference.plan

    def reader(role: str, axes_shape: Shape) -> Reader:
        source = call.sources[role]
        if isinstance(source, ContiguousSource) and not isinstance(source, Constant):
            metadata, dry = source.metadata, role in unread
            if metadata.order == "F" and len(metadata.shape) > 1:
                buffer = row_major(call, role, metadata.dtype.order, dry=dry)
                source = ContiguousSource(source.name, metadata._replace(order="C"), buffer)
            else:
                load(call, role, dry=dry)
        return Reader(source, axes_shape, partitioning.concurrency)

    return Arrays(
        reader("data", partitioning.rows.shape),
        reader("indices", plan.positions),
        None
        if partitioning.rows.gathers or output is None
        else reader("updates", plan.with_index_tuples.positions),
        output,
    )


def writer(
    sink: Sink, partitioning: Partitioning, plan: Plan, buffer: memoryview | None = None
) -> Writer:
    """Return the writer of an output for tasks; buffer: a buffer to write to instead, or None."""
    shape = partitioning.rows.shape
    if partitioning.rows.gathers:
        shape = plan.output[: len(plan.output) - len(plan.slice_shape)]
    return Writer(sink, shape, partitioning.concurrency, buffer)


def _output_writer(
    call: Inputs, sink: Sink, partitioning: Partitioning, stack: ExitStack
) -> Writer:
    """Return the writer of an output; it has a buffer if tasks cannot write to the sink."""
    buffer = None
    rows = partitioning.rows
    if rows.buffers_output or (sink.streamed and len(rows.shape) > 1):
        threads = min(call.threads, partitioning.workers)
        complete = output_buffer(sink, threads, directory=call.spill)
        buffer, _ = stack.enter_context(complete)
    return writer(sink, partitioning, call.inference.plan, buffer)
