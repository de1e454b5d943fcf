"""Direct execution: each input is one buffer; the output is one buffer, or work items."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from ndtool._kernels import MADVISE_BYTES, PAGE, WorkItem, partition_ids, permute
from ndtool.arrays.sink import Sink, output_buffer
from ndtool.arrays.source import Constant, ContiguousSource, Source, load, row_major
from ndtool.engine import bind, gathers, layouts, tuning
from ndtool.engine.bind import BoundSlices, Operand
from ndtool.engine.gathers import GatherKernel, ProgressCallback
from ndtool.machine import memory
from ndtool.machine.threads import BufferPool, limit_threads, run_all
from ndtool.rules import grid
from ndtool.rules.inference import Inference
from ndtool.runs import operands
from ndtool.runs.operands import Validated

if TYPE_CHECKING:
    from numpy.typing import NDArray


def gather(
    validated: Validated, sink: Sink, progress: ProgressCallback, dry: bool = False
) -> Generator[str]:
    """Gather into a sink; yield once, when all memory and disk space is reserved.

    dry: whether the caller stops at the yield, so that no data are read.
    """
    call, inference = validated.call, validated.call.inference
    source, nbytes = call.sources["data"], inference.nbytes
    if gathers_by_block(source, inference, in_memory=sink.buffer is not None):
        with output_buffer(sink, call.threads, progress, call.spill) as (out, _):
            yield ""
            _gather_blocks(validated, source, out, progress)
        return
    data = operands.load_data(validated, dry)
    if not source.metadata.nbytes:
        with output_buffer(sink, call.threads, progress, call.spill) as (out, _):
            yield ""
            gathers.fill(
                out, inference.fill_bytes * (tuning.WRITE_SIZE // inference.dtype.itemsize or 1)
            )
        return

    def choose_kernel() -> GatherKernel:
        shape, item = inference.inputs["data"].shape, inference.dtype.itemsize
        return gathers.choose_gather(inference.plan, item, shape, data, nbytes)

    kernel, stored = choose_kernel(), _stored(source)
    if kernel.packs_data and not isinstance(source, Constant):
        if not dry and stored is not None and stored.cached_fraction() < 0.5:
            _prefetch_all(stored)
        _, dtype, shape = inference.inputs["data"]
        buffer = row_major(call, "data", dtype.order, dry=dry, operand=data)
        data = Operand(buffer, 0, layouts.contiguous_strides(shape, dtype.itemsize))
        kernel, stored = choose_kernel(), None
    if kernel.slices is not None and sink.metadata.block_shape == sink.metadata.shape:
        yield ""
        _gather_items(validated, kernel.slices, stored, data, sink, progress)
        return
    with output_buffer(sink, call.threads, progress, call.spill) as (out, _):
        yield ""
        if not gathers.gather(kernel, data, validated.bound_indices, out, call.threads, progress):
            raise operands.changed_error(inference)


def gathers_by_block(source: Source, inference: Inference, in_memory: bool) -> bool:
    """Whether rows are copied from each block to the output, since few of a block are gathered.

    in_memory: whether the output is. Rows in any order cost more in a map of a file.
    """
    plan, metadata = inference.plan, source.metadata
    if isinstance(source, ContiguousSource) or plan.tuples > tuning.MAX_BLOCK_TUPLES:
        return False
    blocks = grid.count_blocks(plan.all_slices, metadata.block_shape[: len(plan.all_slices)])
    cost = plan.tuples * tuning.BLOCK_TUPLE_COST + inference.nbytes * (1 if in_memory else 2)
    return blocks <= bind.MAX_PARTITIONS and cost <= metadata.nbytes


def _gather_blocks(
    validated: Validated, source: Source, out: memoryview, progress: ProgressCallback
) -> None:
    """Gather from the blocks that tuples select; each is read once."""
    import numpy as np

    from ndtool.arrays import assembly

    assert isinstance(source, assembly.ChunkedSource), "other data have no blocks"
    metadata, inference = source.metadata, validated.call.inference
    plan, shape, steps = inference.plan, metadata.shape, metadata.block_shape
    count, axes, slice_shape = plan.tuples, len(plan.all_slices), plan.slice_shape
    boxes = bind.bind_boxes(plan.all_slices, steps[:axes])
    total = boxes.partitions + validated.attributes.may_skip_tuples  # the last: skipped tuples
    ids = np.empty(count * bind.id_bytes(total), np.uint8)
    rows, offsets = np.empty(count, f"u{boxes.row_bytes}"), np.zeros(total + 1, np.int64)
    if partition_ids(
        bind.bind_rows(plan), validated.bound_indices, 0, WorkItem(0, count, 0, 0), boxes, ids,
        rows.view(np.uint8), offsets,
    ):  # fmt: skip
        raise operands.changed_error(inference)

    def by_block(values: NDArray[Any]) -> NDArray[Any]:
        result, starts = np.empty_like(values), offsets[:-1].copy()
        if permute(ids, starts, values.view(np.uint8), result.view(np.uint8), count, False):
            raise operands.changed_error(inference)
        return result

    rows, tuples = by_block(rows), by_block(np.arange(count, dtype=np.uint32))
    table = assembly.as_array(out, (count, *slice_shape), metadata.dtype.itemsize)
    if len(skipped := tuples[offsets[boxes.partitions] :]):
        table[skipped] = np.frombuffer(inference.fill_bytes, table.dtype)[0]
    along_slices = grid.count_blocks(slice_shape, steps[axes:])

    def gather_block(number: int) -> None:
        part = slice(offsets[number], offsets[number + 1])
        for index in range(number * along_slices, (number + 1) * along_slices):
            box = grid.box(shape, steps, index)
            block = source.read_block(index, box).view(table.dtype)
            block = block.reshape(-1, *block.shape[axes:])
            table[(tuples[part], *assembly.box_slices(box[axes:]))] = block.take(rows[part], 0)
        progress(float(offsets[number + 1] / count))

    source.prefetch(operands.touched_by(validated))
    selected = np.flatnonzero(np.diff(offsets[: boxes.partitions + 1])).tolist()
    is_decoded = metadata.layout is not None and not metadata.layout.is_unencoded
    threads = max(source.concurrency, validated.call.threads if is_decoded else 1)
    run_all(gather_block, iter(selected), min(threads, len(selected)))


def _stored(source: Source) -> ContiguousSource | None:
    """Return a source whose bytes are read where they are stored, None for other sources."""
    if isinstance(source, ContiguousSource) and not isinstance(source, Constant):
        return source
    return None


def _gather_items(
    validated: Validated,
    slices: BoundSlices,
    source: ContiguousSource | None,
    data: Operand,
    sink: Sink,
    progress: ProgressCallback,
) -> None:
    """Gather in work items; write each when it is complete.

    source: of data, None if they are a copy.
    """
    inference, indices = validated.call.inference, validated.bound_indices
    nbytes, threads = inference.nbytes, validated.call.threads
    workers = 1 if sink.streamed else limit_threads(threads, nbytes)
    team_size, item_bytes = threads if workers == 1 else 1, tuning.WRITE_SIZE
    # whether to prefetch for each work item
    prefetches = source is not None and _advise_access(source, slices, nbytes)
    limit = validated.call.request.memory
    releases = limit is not None and not memory.can_hold(len(data.buffer), limit)
    if limit is not None and releases:  # each tuple may fault in a page
        tuples = max(1, limit // 4 // workers // (PAGE + slices.width))
        item_bytes = min(item_bytes, tuples * slices.width)

    def gather_item(item: WorkItem) -> None:
        if prefetches:
            gathers.prefetch_pages(slices, data, indices, item)
        written = item.byte_range(slices.width)
        buffer = buffers.acquire() if sink.buffer is None else sink.buffer[written]
        rows = buffer[: item.tuples * item.width]
        if not gathers.gather_item(slices, data, indices, item, rows, team_size):
            raise operands.changed_error(inference)
        if releases and source is not None:
            source.advise("dontneed")
        if sink.buffer is None:
            sink.write(written.start, rows)
            buffers.release(buffer)
        progress(written.stop / nbytes)

    buffers = BufferPool(min(nbytes, max(item_bytes, slices.itemsize)))
    run_all(gather_item, gathers.work_items(slices, item_bytes), workers)


def _advise_access(data: ContiguousSource, slices: BoundSlices, output_bytes: int) -> bool:
    """Advise the system how data will be read; return whether each work item must prefetch."""
    size = len(data.buffer)
    is_cold = data.cached_fraction() < 0.5
    if is_cold and gathers.reads_all_pages(slices, size):
        if not memory.can_hold(size):  # then direct execution implies that its tuples are in order
            return False
        _prefetch_all(data)
        is_cold = False
    if output_bytes < size // 2:
        data.advise("random")  # no readahead around each slice
    return is_cold


def _prefetch_all(data: ContiguousSource) -> None:
    """Prefetch all of data, sequentially."""
    for start in range(0, len(data.buffer), MADVISE_BYTES):
        data.advise("willneed", start, MADVISE_BYTES)


def scatter(
    validated: Validated, sink: Sink, progress: ProgressCallback, dry: bool = False
) -> Generator[str]:
    """Scatter into a sink: data with the updates applied; yield as `gather` does."""
    from ndtool.engine import scatters
    from ndtool.engine.updates import ScatterCall

    call, inference = validated.call, validated.call.inference
    dtype, reduction = inference.dtype, inference.plan.attributes.reduction
    order = scatters.arithmetic_order(dtype, reduction)
    updates = row_major(call, "updates", order, aligned=reduction != "none", dry=dry)
    origin, copy = call.sources["data"], None
    data: Operand | None = None
    if not isinstance(origin, Constant):
        touched = None
        if sink.metadata.layout and inference.plan.tuples <= tuning.FEW_TUPLES and not dry:
            touched = sink.copy_chunks(origin, operands.touched_by(validated))
        data = load(call, "data", touched, dry)  # a copy may need disk space: reserve it
        shape = inference.plan.data
        if not data.buffer.readonly and layouts.is_normalized(shape, data.strides, dtype, order):
            copy = data.buffer  # updated where it is, unless the sink has a map
    with output_buffer(sink, call.threads, progress, call.spill, copy) as (out, write):
        yield ""
        if out is copy:
            data = None
        if isinstance(origin, Constant):
            origin.fill(out)
        work = ScatterCall(
            inference.plan, dtype, None, validated.bound_indices, updates, out, call.threads,
            tuning.FILE_SCRATCH, progress, write,
        )  # fmt: skip
        if not scatters.scatter(work, data, inference.plan.data):
            raise operands.changed_error(inference)
