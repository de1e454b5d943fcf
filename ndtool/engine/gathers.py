"""Gathers: copies of slices and elements to contiguous output, in work items.

Ctrl-C takes effect between two work items. Buffers are one-dimensional and of bytes (memoryviews,
maps, uint8 arrays). Indices are C-contiguous; data may have any strides.
"""

from collections.abc import Callable, Iterator
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import PAGE, Grid, Indices, KernelOptions, WorkItem
from ndtool.engine import bind, layouts, tuning
from ndtool.engine.bind import BoundSlices, Buffer, Operand
from ndtool.machine.threads import limit_threads
from ndtool.rules.plans import Plan, Shape

ProgressCallback = Callable[[float], object]  # its argument: the completed fraction


def ignore_progress(completed: float) -> None:
    """Ignore progress."""


def round_to_elements(itemsize: int, limit: int) -> int:
    """Round `limit` bytes down to complete elements, at least one element."""
    return max(1, limit // itemsize) * itemsize


def work_items(slices: BoundSlices, limit: int) -> Iterator[WorkItem]:
    """Yield work items of about `limit` bytes of output, in row-major order."""
    step = max(1, limit // slices.width)
    width = round_to_elements(slices.itemsize, limit)
    for first in range(0, slices.tuples, step):
        for column in range(0, slices.width, width):
            n = min(step, slices.tuples - first)
            yield WorkItem(first, n, column, min(width, slices.width - column))


class GatherKernel(NamedTuple):
    """The kernel of a gather: of slices or of a grid, one of which is None.

    slices: each tuple selects a slice of data. grid: elements along an axis that is not the last.
    packs_data: whether data is copied to row-major order first, as its slices are strided.
    """

    slices: BoundSlices | None
    grid: Grid | None = None
    packs_data: bool = False


def choose_gather(
    plan: Plan, itemsize: int, shape: Shape, data: Operand, gathered: int
) -> GatherKernel:
    """Select the kernel to gather `gathered` bytes from data of any strides."""
    slices = bind.bind_slices(plan, data.strides, itemsize)
    if slices is None:
        return GatherKernel(None, bind.bind_grid(plan, data.strides, itemsize))
    is_scattered = slices.layout is not None and layouts.is_scattered(shape, data.strides)
    limit = min(tuning.MAX_PACKED, 2 * gathered)
    return GatherKernel(slices, None, is_scattered and prod(shape) * itemsize <= limit)


def gather(
    kernel: GatherKernel,
    data: Operand,
    indices: Indices,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = ignore_progress,
) -> bool:
    """Gather all of out; return False if an index is out of bounds."""
    slices, size = kernel.slices, len(out)
    if slices is not None:
        for item in work_items(slices, tuning.WORK_ITEM) if slices.width else ():
            part = item.byte_range(slices.width)
            non_temporal = size >= tuning.NON_TEMPORAL
            if not gather_item(slices, data, indices, item, out[part], threads, non_temporal):
                return False
            progress(part.stop / size)
        return True
    assert kernel.grid is not None, "a GatherKernel has either slices or a grid"
    threads = limit_threads(threads, size)
    grid = kernel.grid.divided(threads)
    unit_count = grid.units
    step = max(threads, tuning.WORK_ITEM // max(1, grid.unit_bytes))
    buffers = memoryview(bytearray(threads * grid.scratch)) if grid.is_packing_faster else None
    options = KernelOptions(threads, size >= tuning.NON_TEMPORAL, buffers)
    for first in range(0, unit_count, step):
        stop = min(unit_count, first + step)
        if _kernels.gather_tiles(
            grid, data.buffer, data.origin, indices, first, stop, out, options
        ):
            return False
        progress(stop / unit_count)
    return True


def fill(out: Buffer, filling: bytes | None) -> bool:
    """Write the fill value to all of `out`; return False if there is none."""
    if filling is None:
        return False
    step = len(filling)
    for begin in range(0, len(out), step):
        end = min(begin + step, len(out))
        out[begin:end] = memoryview(filling)[: end - begin]
    return True


def gather_item(
    slices: BoundSlices,
    data: Operand,
    indices: Indices,
    item: WorkItem,
    out: Buffer,
    threads: int,
    non_temporal: bool = False,
) -> bool:
    """Gather one work item to the start of out; return False if an index is out of bounds."""
    options = KernelOptions(limit_threads(threads, len(out)), non_temporal)
    buffer, origin, _ = data
    return not _kernels.gather(
        slices.addressing, buffer, origin, indices, item, out, options, slices.layout
    )


def reads_all_pages(slices: BoundSlices, nbytes: int) -> bool:
    """Whether a gather reads nearly every page of data, so that sequential reads are faster."""
    return slices.tuples * max(slices.width, PAGE) >= nbytes


def prefetch_pages(slices: BoundSlices, data: Operand, indices: Indices, item: WorkItem) -> None:
    """Prefetch the pages of a mapped file that a work item reads, by madvise(MADV_WILLNEED)."""
    if slices.layout is None:
        _kernels.will_need(slices.addressing, data.buffer, data.origin, indices, item)
