"""Dispatch: chooses the kernels for a call, on arrays in memory and on files alike."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool._kernels import Indices
from ndtool.engine import bind, columns, copies, gathers
from ndtool.engine.bind import BoundSlices, Buffer, Operand, Panels
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.rules.dtypes import NATIVE, Dtype
from ndtool.rules.plans import Plan, Shape

if TYPE_CHECKING:
    from ndtool.engine.updates import ScatterCall


class GatherKernel(NamedTuple):
    """The kernel that a gather is executed by.

    slices: set if each tuple selects a slice of data. panels: set for elements along an axis that
    is not the last. packs: whether copying data to row-major order first is faster, because their
    slices are strided.
    """

    slices: BoundSlices | None
    panels: Panels | None = None
    packs_data: bool = False


def choose_gather(
    plan: Plan, itemsize: int, shape: Shape, data: Operand, gathered: int, negatives: bool
) -> GatherKernel:
    """Choose how to gather `gathered` bytes from data of any shape and strides."""
    slices = bind.bind_slices(plan, data.strides, itemsize, negatives)
    if slices is None:
        return GatherKernel(None, bind.bind_panels(plan, data.strides, itemsize, negatives))
    packs = slices.layout is not None and copies.is_worth_packing(
        shape, data.strides, prod(shape) * itemsize, gathered
    )
    return GatherKernel(slices, None, packs)


def gather(
    kernel: GatherKernel,
    data: Operand,
    indices: Indices,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = ignore_progress,
    is_mapped_file: bool = False,
) -> bool:
    """Gather all of out; return False if an index is out of bounds.

    paged: whether out is a mapped file, where writing whole pages is faster.
    """
    if kernel.slices is not None:
        return gathers.gather(kernel.slices, data, indices, out, threads, progress)
    assert kernel.panels is not None, "a gather is of slices or of panels"
    if is_mapped_file and columns.are_blocks_faster(kernel.panels, kernel.panels.length):
        return gathers.gather_columns(kernel.panels, data, indices, out, threads, progress)
    return gathers.gather_panels(kernel.panels, data, indices, out, threads, progress)


def arithmetic_order(dtype: Dtype, reduction: str) -> str:
    """Return the byte order of updates: native for arithmetic, else that of data."""
    return dtype.order if reduction == "none" else NATIVE


def scatter(work: ScatterCall, data: Operand | None, shape: Shape) -> bool:
    """Copy data to the output, normalized, and apply the updates; False if out of bounds.

    data: None if the output has them already. work: a Scatter whose own data are not set yet.
    """
    from ndtool.engine import scatters  # gathers need not import them

    dtype, order = work.dtype, arithmetic_order(work.dtype, work.reduction)
    if data is not None and copies.is_normalized(shape, data.strides, dtype, order):
        work = work._replace(data=data.buffer)
    elif data is not None and work.write_at is not None:
        copies.write_normalized(data, shape, dtype, order, work.write_at, work.threads)
    elif data is not None:
        copies.normalize(data, shape, dtype, order, work.out, work.threads)
    if not scatters.scatter(work):
        return False
    if dtype.unit > 1 and order != dtype.order:
        copies.swap_bytes(work.out, dtype.unit)
    return True
