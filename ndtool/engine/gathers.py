"""Gathers: slices and units to contiguous output, in work items, so that Ctrl-C is noticed.

Buffers are flat and of bytes (memoryviews, maps, uint8 arrays). Indices are C-contiguous; data may
have any strides.
"""

from collections.abc import Callable, Iterator

from ndtool import _kernels
from ndtool._kernels import PAGE, Indices, KernelOptions, WorkItem
from ndtool.engine import columns, tuning
from ndtool.engine.bind import BoundSlices, Buffer, Operand, Panels, Units, bind_units
from ndtool.machine.threads import limit_threads

ProgressCallback = Callable[[float], object]  # progress callback: takes the completed fraction


def ignore_progress(completed: float) -> None:
    """Ignore progress."""


def round_to_elements(itemsize: int, limit: int) -> int:
    """Round `limit` bytes down to complete elements, at least one."""
    return max(1, limit // itemsize) * itemsize


def work_items(runs: BoundSlices, limit: int) -> Iterator[WorkItem]:
    """Yield work items of about `limit` bytes of output, in row-major order."""
    step = max(1, limit // runs.width)
    width = round_to_elements(runs.itemsize, limit)
    for first in range(0, runs.tuples, step):
        for column in range(0, runs.width, width):
            n = min(step, runs.tuples - first)
            yield WorkItem(first, n, column, min(width, runs.width - column))


def gather(
    runs: BoundSlices,
    data: Operand,
    indices: Indices,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = ignore_progress,
) -> bool:
    """Gather all slices to out; return False if an index is out of bounds."""
    size = runs.tuples * runs.width
    streamed = size >= tuning.NON_TEMPORAL
    if size <= tuning.WORK_ITEM:
        item = WorkItem(0, runs.tuples, 0, runs.width)
        return gather_item(runs, data, indices, item, out, threads, streamed)
    for item in work_items(runs, tuning.WORK_ITEM):
        byte_range = item.byte_range(runs.width)
        if not gather_item(runs, data, indices, item, out[byte_range], threads, streamed):
            return False
        progress(byte_range.stop / size)
    return True


def fill(out: Buffer, filling: bytes | None) -> bool:
    """Write the fill value to all of `out`, as no index is valid; False if there is none."""
    if filling is None:
        return False
    step = len(filling)
    for begin in range(0, len(out), step):
        end = min(begin + step, len(out))
        out[begin:end] = memoryview(filling)[: end - begin]
    return True


def gather_item(
    runs: BoundSlices,
    data: Operand,
    indices: Indices,
    item: WorkItem,
    out: Buffer,
    threads: int,
    streamed: bool = False,
) -> bool:
    """Gather one work item to the start of out; return False if an index is out of bounds."""
    work = item.tuples * (item.width + runs.components * indices.itemsize)
    options, addressing = KernelOptions(limit_threads(threads, work), streamed), runs.addressing
    buffer, origin, _ = data
    if runs.layout is None:
        return not _kernels.gather(addressing, buffer, origin, indices, item, out, options)
    return not _kernels.gather_strided(
        addressing, runs.layout, buffer, origin, indices, item, out, options
    )


def reads_all_pages(runs: BoundSlices, nbytes: int) -> bool:
    """Whether a gather reads about every page of data, so that reading data in order is faster."""
    return runs.tuples * max(runs.width, PAGE) >= nbytes


def prefetch_pages(runs: BoundSlices, data: Operand, indices: Indices, item: WorkItem) -> None:
    """Prefetch (madvise) the pages of a mapped file that a work item reads."""
    if runs.layout is None:
        _kernels.will_need(runs.addressing, data.buffer, data.origin, indices, item)


def gather_panels(
    p: Panels,
    data: Operand,
    indices: Indices,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = ignore_progress,
) -> bool:
    """Gather along an axis that is not the last; return False if an index is out of bounds."""
    units = bind_units(p)
    threads = limit_threads(threads, units.grid.units * units.unit_bytes)
    return gather_units(bind_units(p, threads=threads), data, indices, out, threads, progress)


def gather_units(
    units: Units,
    data: Operand,
    indices: Indices,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = ignore_progress,
) -> bool:
    """Gather units of panels; return False if an index is out of bounds."""
    total, grid = units.grid.units, units.grid
    step = max(threads, tuning.WORK_ITEM // max(1, units.unit_bytes))
    threads = limit_threads(threads, total * units.unit_bytes)
    buffers = memoryview(bytearray(threads * units.scratch)) if units.is_packing_faster else None
    options = KernelOptions(threads, len(out) >= tuning.NON_TEMPORAL, buffers)
    for first in range(0, total, step):
        stop = min(total, first + step)
        if _kernels.gather_units(
            grid, data.buffer, data.origin, indices, first, stop, out, options
        ):
            return False
        progress(stop / total)
    return True


def gather_columns(
    p: Panels,
    data: Operand,
    indices: Indices,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = ignore_progress,
) -> bool:
    """Gather panels in blocks of columns, each written to a mapped file in complete pages."""
    buffer, done, pitch = (
        columns.allocate_buffer(p, p.length, p.length, out),
        0,
        p.columns * p.itemsize,
    )
    for block in columns.divide_into_blocks(p, p.length, out, p.length):
        panels = block.panels._replace(length=block.rows)
        units = bind_units(panels, (0, p.size, block.width))
        first = block.first_index + block.first * p.index_step
        source = data._replace(origin=data.origin + block.data)
        to = buffer[: block.nbytes]
        if not gather_units(units, source, indices.since(first), to, threads):
            return False
        columns.write_rows(block, to, out[first * p.itemsize :], pitch, threads)
        done += block.nbytes
        progress(done / len(out))
    return True
