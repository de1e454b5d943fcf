"""Dispatch: selects the kernels for a call, for arrays in memory and for files."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool._kernels import LINE, Grid, Indices
from ndtool.engine import bind, copies, gathers, layouts, tuning
from ndtool.engine.bind import BoundSlices, Buffer, Operand
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.rules.dtypes import NATIVE, Dtype
from ndtool.rules.plans import Plan, Shape

if TYPE_CHECKING:
    from ndtool.engine.updates import ScatterCall


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
    slices, nbytes = bind.bind_slices(plan, data.strides, itemsize), prod(shape) * itemsize
    is_reused = nbytes <= min(tuning.PACKED_IN_CACHE, gathered // 2)
    if is_reused and layouts.is_contiguous(shape, data.strides, itemsize):
        is_reused = False
    if slices is None:
        grid = bind.bind_grid(plan, data.strides, itemsize)
        return GatherKernel(None, grid, is_reused and not grid.has_contiguous_rows)
    if is_reused and (slices.layout is not None or slices.width <= LINE):
        return GatherKernel(slices, None, True)
    packs_data = slices.layout is not None and copies.is_worth_packing(
        shape, data.strides, nbytes, gathered
    )
    return GatherKernel(slices, None, packs_data)


def gather(
    kernel: GatherKernel,
    data: Operand,
    indices: Indices,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = ignore_progress,
) -> bool:
    """Gather all of out; return False if an index is out of bounds."""
    if kernel.slices is not None:
        return gathers.gather(kernel.slices, data, indices, out, threads, progress)
    assert kernel.grid is not None, "a GatherKernel has either slices or a grid"
    return gathers.gather_tiles(kernel.grid, data, indices, out, threads, progress)


def needs_algorithm(
    is_counted: bool,
    nbytes: int,
    width: int,
    tuples: int,
    per_batch: int,
    by_panels: bool,
    in_place: bool,
    threads: int,
) -> bool:
    """Whether a large scatter to `nbytes` bytes needs more than one pass in order of the tuples.

    width: bytes of a slice. per_batch: tuples of a batch. by_panels: along an axis that is not the
    last. See engine/scatters.py.
    """
    is_one_batch, updates = per_batch == tuples, tuples * width
    if is_counted or by_panels:
        return is_counted or (nbytes > tuning.TILE and 2 * updates >= nbytes)  # packed tiles
    batch_bytes = nbytes * per_batch // max(tuples, 1)
    limit = (1 if threads > 1 else 2) * tuning.SORTED_OUTPUT * tuning.CACHE_SIZE
    if width < tuning.WIDE_SLICE and nbytes > limit and tuples >= tuning.MIN_SORTED:
        return threads > 1 and (is_one_batch or batch_bytes > tuning.CACHE_SIZE)
    is_in_windows = not is_one_batch and not in_place and per_batch >= tuning.LONG_BATCH
    return is_in_windows and nbytes > limit and width < tuning.WIDE_SLICE


def arithmetic_order(dtype: Dtype, reduction: str) -> str:
    """Return the byte order required of updates: native for a reduction, else that of data."""
    return dtype.order if reduction == "none" else NATIVE


def scatter(call: ScatterCall, data: Operand | None, shape: Shape) -> bool:
    """Copy data to the output, normalized, and apply updates; False if an index is out of bounds.

    data: None if the output already contains it. call: its `data` is not set yet.
    """
    from ndtool.engine import scatters  # imported here, as gathers do not need it

    dtype, order = call.dtype, arithmetic_order(call.dtype, call.attributes.reduction)
    if data is not None and copies.is_normalized(shape, data.strides, dtype, order):
        call = call._replace(data=data.buffer)
    elif data is not None and call.write_at is not None:
        copies.write_normalized(data, shape, dtype, order, call.write_at, call.threads)
    elif data is not None:
        copies.normalize(data, shape, dtype, order, call.out, call.threads)
    if not scatters.scatter(call):
        return False
    if dtype.swap_size > 1 and order != dtype.order:
        copies.swap_bytes(call.out, dtype.swap_size)
    return True
