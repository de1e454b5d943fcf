"""Dispatch: chooses the kernels for a call, on arrays in memory and on files alike."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool._kernels import Indices
from ndtool.engine import bind, columns, copies, gathers
from ndtool.engine.bind import Buffer, Operand, Panels, Runs
from ndtool.engine.gathers import ProgressCallback, silent
from ndtool.rules.dtypes import NATIVE, Dtype
from ndtool.rules.plans import Plan, Shape

if TYPE_CHECKING:
    from ndtool.engine.updates import Scatter


class Gathering(NamedTuple):
    """The kernel that a gather is executed by.

    slices: set if each tuple selects a slice of data. panels: set for elements along an axis that
    is not the last. packs: whether copying data to row-major order first is faster, because their
    slices are strided.
    """

    slices: Runs | None
    panels: Panels | None = None
    packs: bool = False


def gathering(
    plan: Plan, itemsize: int, shape: Shape, data: Operand, gathered: int, negatives: bool
) -> Gathering:
    """Choose how to gather `gathered` bytes from data of any shape and strides."""
    slices = bind.bind_runs(plan, data.strides, itemsize, negatives)
    if slices is None:
        return Gathering(None, bind.bind_panels(plan, data.strides, itemsize, negatives))
    packs = slices.layout is not None and copies.is_worth_packing(
        shape, data.strides, prod(shape) * itemsize, gathered
    )
    return Gathering(slices, None, packs)


def gather(
    chosen: Gathering,
    data: Operand,
    indices: Indices,
    out: Buffer,
    threads: int,
    progress: ProgressCallback = silent,
    paged: bool = False,
) -> bool:
    """Gather all of out; return False if an index is out of bounds.

    paged: whether out is a mapped file, where writing whole pages is faster.
    """
    if chosen.slices is not None:
        return gathers.gather(chosen.slices, data, indices, out, threads, progress)
    assert chosen.panels is not None, "a gather is of slices or of panels"
    if paged and columns.suit(chosen.panels, chosen.panels.length):
        return gathers.gather_columns(chosen.panels, data, indices, out, threads, progress)
    return gathers.gather_panels(chosen.panels, data, indices, out, threads, progress)


def arithmetic_order(dtype: Dtype, reduction: str) -> str:
    """Return the byte order of updates: native for arithmetic, else that of data."""
    return dtype.order if reduction == "none" else NATIVE


def scatter(work: Scatter, data: Operand | None, shape: Shape) -> bool:
    """Copy data to the output, normalized, and apply the updates; False if out of bounds.

    data: None if the output has them already. work: a Scatter whose own data are not set yet.
    """
    from ndtool.engine import scatters  # gathers need not import them

    dtype, order = work.dtype, arithmetic_order(work.dtype, work.reduction)
    if data is not None and copies.is_normalized(shape, data.strides, dtype, order):
        work = work._replace(data=data.buffer)
    elif data is not None and work.write is not None:
        copies.write_normalized(data, shape, dtype, order, work.write, work.threads)
    elif data is not None:
        copies.normalize(data, shape, dtype, order, work.out, work.threads)
    if not scatters.scatter(work):
        return False
    if dtype.unit > 1 and order != dtype.order:
        copies.swap(work.out, dtype.unit)
    return True
