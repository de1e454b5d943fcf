"""Direct execution: each input is one buffer; the output is one buffer, or work items."""

from __future__ import annotations

from collections.abc import Generator

from ndtool._kernels import MADVISE_BYTES, WorkItem
from ndtool.arrays.constant import Constant
from ndtool.arrays.loaded import LoadedInput, load
from ndtool.arrays.sink import Sink, output_buffer
from ndtool.engine import dispatch, gathers, layouts, tuning
from ndtool.engine.bind import BoundSlices, Operand
from ndtool.engine.dispatch import GatherKernel
from ndtool.engine.gathers import ProgressCallback
from ndtool.machine import memory
from ndtool.machine.pool import BufferPool, run_all
from ndtool.machine.threads import limit_threads
from ndtool.runs import operands
from ndtool.runs.operands import Validated
from ndtool.storage.local import ByteRange

PAGE = 1 << 12  # bytes: the system's smallest read


def gather(
    validated: Validated, sink: Sink, progress: ProgressCallback, dry: bool = False
) -> Generator[str]:
    """Gather into a sink; yield once, when all memory and disk space is reserved.

    dry: whether the caller stops at the yield, so that no data are read.
    """
    call, inference = validated.call, validated.call.inference
    loaded = operands.load_data(validated, dry)
    data, nbytes = loaded.operand, inference.nbytes
    if not inference.inputs["data"].size:
        with output_buffer(sink, call.threads, progress, call.spill) as (out, _):
            yield ""
            gathers.fill(
                out, inference.fill_bytes * (tuning.WRITE_SIZE // inference.dtype.itemsize or 1)
            )
        return

    def choose_kernel() -> GatherKernel:
        shape, item = inference.inputs["data"].shape, inference.dtype.itemsize
        return dispatch.choose_gather(inference.plan, item, shape, data, nbytes)

    kernel, byte_range = choose_kernel(), loaded.byte_range
    if kernel.packs_data and loaded.constant is None:
        byte_range, data = _copy_row_major(loaded)
        kernel = choose_kernel()
    if kernel.slices is not None and sink.metadata.block_shape == sink.metadata.shape:
        yield ""
        _gather_items(validated, kernel.slices, byte_range, data, sink, progress)
        return
    with output_buffer(sink, call.threads, progress, call.spill) as (out, _):
        yield ""
        if not dispatch.gather(kernel, data, validated.bound_indices, out, call.threads, progress):
            raise operands.changed_error(inference)


def _copy_row_major(data: LoadedInput) -> tuple[ByteRange, Operand]:
    """Copy data to row-major order; return the buffer and its operand."""
    if not data.dry and data.byte_range.cached_fraction() < 0.5:
        _prefetch_all(data.byte_range)
    _, dtype, shape = data.info
    packed = data.normalized(dtype.order, False)
    return ByteRange(packed), Operand(packed, 0, layouts.contiguous_strides(shape, dtype.itemsize))


def _gather_items(
    validated: Validated,
    slices: BoundSlices,
    byte_range: ByteRange,
    data: Operand,
    sink: Sink,
    progress: ProgressCallback,
) -> None:
    """Gather in work items; write each when it is complete."""
    inference, indices = validated.call.inference, validated.bound_indices
    nbytes, threads = inference.nbytes, validated.call.threads
    workers = 1 if sink.streamed else limit_threads(threads, nbytes)
    team_size, item_bytes = threads if workers == 1 else 1, tuning.WRITE_SIZE
    prefetches = _advise_access(byte_range, slices, nbytes)  # prefetch for each work item
    limit = validated.call.request.memory
    releases = limit is not None and not memory.can_hold(len(byte_range.buffer), limit)
    if limit is not None and releases:  # each tuple may fault in a page
        tuples = max(1, limit // 4 // workers // (PAGE + slices.width))
        item_bytes = min(item_bytes, tuples * slices.width)

    def gather_item(item: WorkItem) -> None:
        if prefetches:
            gathers.prefetch_pages(slices, data, indices, item)
        buffer = buffers.acquire()
        rows = buffer[: item.tuples * item.width]
        if not gathers.gather_item(slices, data, indices, item, rows, team_size):
            raise operands.changed_error(inference)
        if releases:
            byte_range.advise("dontneed")
        written = item.byte_range(slices.width)
        sink.write(written.start, rows)
        buffers.release(buffer)
        progress(written.stop / nbytes)

    buffers = BufferPool(min(nbytes, max(item_bytes, slices.itemsize)))
    run_all(gather_item, gathers.work_items(slices, item_bytes), workers)


def _advise_access(data: ByteRange, slices: BoundSlices, output_bytes: int) -> bool:
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


def _prefetch_all(data: ByteRange) -> None:
    """Prefetch all of data, sequentially."""
    for start in range(0, len(data.buffer), MADVISE_BYTES):
        data.advise("willneed", start, MADVISE_BYTES)


def scatter(
    validated: Validated, sink: Sink, progress: ProgressCallback, dry: bool = False
) -> Generator[str]:
    """Scatter into a sink: data with the updates applied; yield as `gather` does."""
    from ndtool.engine.updates import ScatterCall

    call, inference = validated.call, validated.call.inference
    dtype, reduction = inference.dtype, inference.plan.attributes.reduction
    order = dispatch.arithmetic_order(dtype, reduction)
    updates = load(call, "updates", dry=dry).normalized(order, reduction != "none")
    origin = call.sources["data"]
    data: Operand | None = None
    if not isinstance(origin, Constant):
        data = operands.load_data(validated, dry).operand  # a copy may need disk space: reserve it
    with output_buffer(sink, call.threads, progress, call.spill) as (out, write):
        yield ""
        if isinstance(origin, Constant):
            origin.fill(out)
        work = ScatterCall(
            inference.plan, dtype, None, validated.bound_indices, updates, out, call.threads,
            tuning.FILE_SCRATCH, progress, write,
        )  # fmt: skip
        if not dispatch.scatter(work, data, inference.plan.data):
            raise operands.changed_error(inference)
