"""External execution in this process: opens the arrays, and runs the tasks on threads."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import ExitStack
from functools import partial
from operator import lt
from threading import Lock

from ndtool.arrays.boxes import (
    ConstantReader,
    FlatReader,
    FlatWriter,
    GridReader,
    GridWriter,
    Reader,
    Writer,
)
from ndtool.arrays.constant import Constant
from ndtool.arrays.sink import Sink
from ndtool.arrays.source import ArrayMetadata, ContiguousSource
from ndtool.engine import distinct
from ndtool.engine.distinct import TupleBlock
from ndtool.engine.gathers import ProgressCallback
from ndtool.machine import pool
from ndtool.rules.plans import ElementsPlan, Plan, Shape
from ndtool.runs import direct, operands
from ndtool.runs.calls import OpenCall, OpenInputs
from ndtool.runs.executors import Task
from ndtool.runs.executors.threads import Threads
from ndtool.runs.external import phases, policy
from ndtool.runs.external.partitioning import Partitioning
from ndtool.runs.external.phases import ReportCallback
from ndtool.runs.external.spillstore import Store
from ndtool.runs.external.tasks import run_task
from ndtool.runs.external.units import tuple_shape, units_of
from ndtool.runs.external.work import Arrays, Work
from ndtool.storage.local import ByteRange


def run(
    call: OpenCall,
    partitioning: Partitioning,
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
        layout = partitioning.layout
        store = Store(layout[""], partitioning.in_memory, call.spill_directories, layout)
        stack.callback(store.close)
        work = Work(call.inference, partitioning, arrays(call, partitioning, output, unread), store)
        threads = stack.enter_context(Threads(partitioning.workers))
        yield from phases.run(
            call.inference,
            partitioning,
            store,
            threads,
            partial(run_task, work),
            progress,
            report,
            in_order=sink.streamed,
        )


def check(call: OpenCall, partitioning: Partitioning, report: ReportCallback) -> None:
    """Validate all indices by blocks; raise BoundsError, or pass it to `report` if allowed.

    Raises DuplicatesError if two tuples select the same slice, and duplicates are an error.
    """
    inputs = arrays(call, partitioning, None, unread=("data",))
    work = Work(call.inference, partitioning, inputs, Store(0, 0, (), {}))
    bounds_reports = phases.BoundsReports(call.inference)
    blocks = [
        block for block in range(partitioning.blocks) if lt(*partitioning.first_occurrences(block))
    ]
    limit = pool.MAX_THREADS  # a cluster may have more slots
    with Threads(min(partitioning.workers, limit)) as threads:
        call_task = partial(run_task, work)
        checks = (Task(call_task, "check", block) for block in blocks)
        policy.complete(threads, checks, bounds_reports.add)
    bounds_reports.raise_or_report(report)
    if call.inference.requires_distinct:
        stored = distinct.stored_tuples(call.inference.plan)
        distinct.check_blocks(stored, partial(_stored_blocks, work), partitioning.partition_bytes)


def _stored_blocks(work: Work) -> Iterator[TupleBlock]:
    """Yield all index tuples by blocks; tuples that batches share are yielded once."""
    for block in range(work.partitioning.blocks):
        first, stop = work.partitioning.first_occurrences(block)
        if first < stop:
            with work.arena() as allocate:
                yield TupleBlock(first, stop - first, work.first_occurrences(block, allocate))


def arrays(
    call: OpenCall | OpenInputs,
    partitioning: Partitioning,
    output: Writer | None,
    unread: tuple[str, ...] = (),
) -> Arrays:
    """Return the readers of inputs and the writer of the output; without output, updates are None.

    unread: the roles of inputs that will not be read: space for a copy is reserved, not filled.
    """
    plan, lock = call.inference.plan, Lock()

    def reader(role: str, axes_shape: Shape) -> Reader:
        source = call.sources[role]
        if isinstance(source, Constant) and role == "data":
            return ConstantReader(source, axes_shape)
        if not isinstance(source, ContiguousSource):
            return GridReader(source, len(axes_shape), partitioning.concurrency)
        loaded = operands.load(call, role, dry=role in unread)
        byte_range, (_, dtype, shape) = loaded.byte_range, loaded.info
        if loaded.fortran and len(shape) > 1:
            byte_range = ByteRange(loaded.normalized(dtype.order, False))
        return FlatReader(byte_range, axes_shape, lock)

    return Arrays(
        reader("data", partitioning.rows.shape),
        reader("indices", plan.positions),
        None if partitioning.gathers or output is None else reader("updates", tuple_shape(plan)),
        output,
    )


def writer(
    sink: Sink, partitioning: Partitioning, plan: Plan, buffer: memoryview | None = None
) -> Writer:
    """Return the writer of an output for tasks; buffer: a buffer to write to instead, or None."""
    shape, slice_shape = (
        partitioning.rows.shape,
        () if isinstance(plan, ElementsPlan) else plan.slice_shape,
    )
    if partitioning.gathers:
        shape = plan.output[: len(plan.output) - len(slice_shape)]
    if buffer is None and sink.metadata.is_chunked:
        return GridWriter(sink, len(shape), partitioning.concurrency)
    return FlatWriter(sink, shape, buffer)


def _output_writer(
    call: OpenCall, sink: Sink, partitioning: Partitioning, stack: ExitStack
) -> Writer:
    """Return the writer of an output; it has a buffer if tasks cannot write to the sink."""
    buffer = None
    if not writes_complete_chunks(call, sink.metadata, partitioning) or (
        sink.streamed and len(partitioning.rows.shape) > 1
    ):
        threads = min(call.threads, partitioning.workers)
        complete = direct.output_buffer(sink, threads, directory=call.spill)
        buffer, _ = stack.enter_context(complete)
    return writer(sink, partitioning, call.inference.plan, buffer)


def writes_complete_chunks(
    call: OpenCall, output: ArrayMetadata, partitioning: Partitioning
) -> bool:
    """Whether tasks write complete chunks of an output."""
    if not output.is_chunked:
        return True
    metadata = {role: source.metadata for role, source in call.sources.items()}
    units = units_of(call.inference, metadata, output)
    if partitioning.gathers:
        return partitioning.blocks == 1 or partitioning.block_tuples % units.written == 0
    return len(units.box) == len(partitioning.partition_shape) and all(
        step in (size, step // unit * unit)
        for size, step, unit in zip(
            partitioning.rows.shape, partitioning.partition_shape, units.box, strict=True
        )
    )
