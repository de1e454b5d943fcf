"""Out-of-core execution in this process: opens the arrays, and runs the tasks on threads."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from ndtool.arrays.boxes import Reader, Writer
from ndtool.arrays.sink import Sink, output_buffer
from ndtool.arrays.source import Constant, ContiguousSource, Inputs, row_major
from ndtool.engine import distinct
from ndtool.engine.check import OutOfBounds, find_out_of_bounds, merge
from ndtool.engine.distinct import TupleBlock
from ndtool.engine.gathers import ProgressCallback
from ndtool.machine import threads
from ndtool.outofcore import phases
from ndtool.outofcore.partitioning import Partitioning
from ndtool.outofcore.phases import Group, ReportCallback, Results, Task, Work
from ndtool.outofcore.segments import LocalStore, SegmentStore


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
        buffer, rows = None, partitioning.rows
        if rows.buffers_output or (sink.streamed and len(rows.shape) > 1):
            count = min(call.threads, partitioning.workers)
            complete = output_buffer(sink, count, directory=call.spill)
            buffer, _ = stack.enter_context(complete)
        store = LocalStore(partitioning.regions, spill_directories)
        stack.callback(store.close)
        unread = tuple(call.sources) if dry else ()
        work = open_work(call, partitioning, store, sink, buffer, unread)

        def map_threads(phase: str, group: Group, tasks: Iterable[Task]) -> Results:
            function, count = phases.TASKS[phase], partitioning.workers
            if phase == "sweep" and group.depth + 1 < partitioning.depth:
                # groups one after another, each on all threads
                function, count = partial(phases.sweep, mapper=map_threads), 1
            if sink.streamed and phase == work.last_phase:
                count = 1  # in order
            return threads.map_all(lambda task: (task[0], function(group, *task)), tasks, count)

        yield from phases.run(Group(work), map_threads, progress, report)


def check(call: Inputs, partitioning: Partitioning, report: ReportCallback) -> None:
    """Validate all indices by blocks; raise BoundsError, or pass it to `report` if allowed.

    Raises DuplicatesError if two tuples select the same slice, and duplicates are an error.
    """
    rows = partitioning.rows
    rows = rows._replace(tuples=rows.tuples // rows.repeats, repeats=1)  # stored ones
    work = open_work(call, replace(partitioning, rows=rows), LocalStore({}, ()), unread=("data",))
    group = Group(work)

    def read(numbers: Iterable[int] = range(work.partitioning.blocks)) -> Iterator[TupleBlock]:
        for number in numbers:
            first, n = number * partitioning.block_tuples, group.tuple_count(number)
            with phases.arena(work.scratch) as allocate:
                indices, _ = group.read(first, n, allocate)
                yield TupleBlock(first, n, work.bind_indices(indices))

    def find(number: int) -> OutOfBounds | None:
        blocks = read([number])
        return merge(
            find_out_of_bounds(work.plan, indices, first, n) for first, n, indices in blocks
        )

    numbers = range(work.partitioning.blocks)
    found = merge(threads.map_all(find, numbers, partitioning.workers))
    phases.raise_or_report(call.inference.plan, found, report)
    if call.inference.requires_distinct:
        stored = distinct.stored_tuples(call.inference.plan)
        buffers = partitioning.scratch_bytes * min(partitioning.workers, threads.MAX_WRITERS)
        bitmap = max(1, partitioning.memory - buffers)
        distinct.check_blocks(stored, read, bitmap)


def open_work(
    call: Inputs,
    partitioning: Partitioning,
    store: SegmentStore,
    sink: Sink | None = None,
    buffer: memoryview | None = None,
    unread: tuple[str, ...] = (),
) -> Work:
    """Return the state of a run's tasks; without a sink, they only read data and indices.

    buffer: to write to instead of the sink. unread: the roles of inputs that will not be read:
    space for a copy is reserved, not filled.
    """
    plan, output = call.inference.plan, None
    shapes = {"data": partitioning.rows.shape, "indices": plan.positions}
    if sink is not None:
        positions = plan.output[: len(plan.output) - len(plan.slice_shape)]
        if call.inference.scatters:
            shapes["updates"] = plan.with_index_tuples.positions
            positions = partitioning.rows.shape
        output = Writer(sink, positions, partitioning.concurrency, buffer)
    readers = dict[str, Reader]()
    for role, shape in shapes.items():
        source = call.sources[role]
        if isinstance(source, ContiguousSource) and not isinstance(source, Constant):
            order = call.inference.inputs[role].dtype.order
            rows, metadata = row_major(call, role, order, dry=role in unread), source.metadata
            if metadata.order == "F":
                source = ContiguousSource(source.name, metadata._replace(order="C"), rows)
        readers[role] = Reader(source, shape, partitioning.concurrency)
    return Work(call.inference, partitioning, store, readers, output)
