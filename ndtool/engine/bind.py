"""Plans bound to strides: what the kernels are told once for all calls of one kind."""

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ndtool import _kernels
from ndtool._kernels import BLOCK, LINE, Indices
from ndtool.engine import layouts, tuning
from ndtool.engine.layouts import Strides
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import ElementsPlan, NdPlan, Plan, Shape

Buffer = Any  # what supports the buffer protocol and slicing: memoryview, uint8 ndarray


class Operand(NamedTuple):
    """An array as the kernels see it: its bytes, where element [0, ..., 0] stands, its strides."""

    buffer: Buffer
    origin: int
    strides: Strides


def bind_indices(
    buffer: Buffer, dtype: Dtype, rule: str = "error", filling: bytes | None = None
) -> Indices:
    """Bind the bytes of indices to their type, and to what becomes of those out of bounds."""
    return Indices(buffer, dtype.itemsize, dtype.kind == "u", dtype.swapped, rule, filling)


def filling_for(plan: Plan, element: bytes) -> bytes:
    """Return what stands for a run of data, or as much of a long one as is moved at once."""
    width = 1 if isinstance(plan, ElementsPlan) else plan.width
    return element * max(1, min(width, tuning.PIECE // len(element)))


class Runs(NamedTuple):
    """Index tuples bound to bytes: how they address, the run each names, how many there are."""

    addressing: _kernels.Addressing
    layout: _kernels.Layout | None  # of a run whose elements do not stand side by side
    width: int  # bytes of a run
    itemsize: int
    tuples: int
    entries: int  # components per tuple
    per_batch: int


@lru_cache(maxsize=1024)
def bind_runs(plan: Plan, strides: Strides, itemsize: int, negatives: bool) -> Runs | None:
    """Bind a plan to strides; None for an elements operator that is no walk over index tuples."""
    if isinstance(plan, ElementsPlan):
        return _bind_last_axis(plan, strides, itemsize, negatives)
    b, k = len(plan.batch), plan.k
    batch = layouts.merge(plan.batch, strides[:b])
    addressing = _kernels.Addressing(
        plan.sizes, strides[b : b + k], plan.per_batch, *batch, negatives, plan.repeated
    )
    run, run_strides = layouts.merge(plan.run, strides[b + k :])
    layout = None
    if plan.width and not layouts.is_contiguous(run, run_strides, itemsize):
        layout = _kernels.Layout(run, run_strides, itemsize)
    width = plan.width * itemsize
    return Runs(addressing, layout, width, itemsize, plan.tuples, k, plan.per_batch)


def _bind_last_axis(
    plan: ElementsPlan, strides: Strides, itemsize: int, negatives: bool
) -> Runs | None:
    """Elements along the last axis are tuples of one component, in batches: a batch per line."""
    a = plan.axis
    if prod(plan.indices[a + 1 :]) != 1:
        return None
    batch = layouts.merge(plan.indices[:a], strides[:a])
    length = plan.indices[a]
    addressing = _kernels.Addressing((plan.data[a],), (strides[a],), length, *batch, negatives)
    return Runs(addressing, None, itemsize, itemsize, prod(plan.indices), 1, length)


@lru_cache(maxsize=1024)
def bind_rows(plan: Plan, negatives: bool) -> _kernels.Addressing:
    """Bind a plan to numbers of rows of data, what one tuple names, instead of bytes."""
    if isinstance(plan, ElementsPlan):
        strides = layouts.contiguous(plan.data, 1)
        runs = bind_runs(plan, strides, 1, negatives)
        if runs is not None:
            return runs.addressing
        a = plan.axis  # every index is a batch, whose place says where it stands off the axis
        batch = layouts.merge(plan.indices, (*strides[:a], 0, *strides[a + 1 :]))
        return _kernels.Addressing((plan.data[a],), (strides[a],), 1, *batch, negatives)
    b = len(plan.batch)
    strides = layouts.contiguous(plan.batch + plan.sizes, 1)
    batch = layouts.merge(plan.batch, strides[:b])
    return _kernels.Addressing(
        plan.sizes, strides[b:], plan.per_batch, *batch, negatives, plan.repeated
    )


@lru_cache(maxsize=1024)
def bind_boxes(sizes: Shape, steps: Shape) -> _kernels.Boxes:
    """Bind boxes of rows; an axis that is never cut is one with the axis before it."""
    merged: list[tuple[int, int]] = []
    for size, step in zip(sizes, steps, strict=True):
        if merged and step == size:
            before = merged.pop()
            merged.append((before[0] * size, before[1] * size))
        else:
            merged.append((size, step))
    return _kernels.Boxes(*zip(*(merged or [(1, 1)]), strict=True))


@lru_cache(maxsize=1024)
def bind_check(plan: Plan, negatives: bool) -> tuple[_kernels.Addressing, int, int]:
    """Return how indices are checked: (addressing, tuples, components per tuple)."""
    sizes = plan.sizes if isinstance(plan, NdPlan) else (plan.data[plan.axis],)
    tuples = prod(plan.positions)
    none = (0,) * len(sizes)
    return _kernels.Addressing(sizes, none, tuples, (), (), negatives), tuples, len(sizes)


class Panels(NamedTuple):
    """An elements operator along an axis that is not the last, bound to strides.

    sizes, index_strides (elements), data_strides (bytes): the axes that number the panels. length,
    size: of indices and of data along the indexed axis; index_step, step: from one to the next.
    columns: of the last axis, `column_stride` bytes apart.
    """

    sizes: Shape
    index_strides: Strides
    data_strides: Strides
    length: int
    index_step: int
    size: int
    step: int
    columns: int
    column_stride: int
    itemsize: int
    negatives: bool


@lru_cache(maxsize=1024)
def bind_panels(plan: ElementsPlan, strides: Strides, itemsize: int, negatives: bool) -> Panels:
    """Bind an elements plan to strides."""
    a, length = plan.axis, plan.indices[plan.axis]
    inner_shape, inner = layouts.merge(plan.indices[a + 1 :], strides[a + 1 :])
    outer_shape, outer = layouts.merge(plan.indices[:a], strides[:a])
    inner_index = layouts.contiguous(inner_shape, 1)
    index_step = prod(inner_shape)
    outer_index = tuple(s * length * index_step for s in layouts.contiguous(outer_shape, 1))
    return Panels(
        outer_shape + inner_shape[:-1],
        outer_index + inner_index[:-1],
        outer + inner[:-1],
        length,
        index_step,
        plan.data[a],
        strides[a],
        inner_shape[-1],
        inner[-1],
        itemsize,
        negatives,
    )


class Units(NamedTuple):
    """Panels as units, tiles of columns that fit into the cache."""

    grid: _kernels.Grid
    scratch: int  # bytes of a packed tile
    packs: bool  # whether reading through packed tiles pays by itself
    work: int  # bytes that one unit moves, about


@lru_cache(maxsize=1024)
def bind_units(p: Panels, within: tuple[int, int, int] | None = None, threads: int = 1) -> Units:
    """Cut panels into units; within: what stands apart, and which rows (see Grid).

    threads: how many are to have a unit, as far as columns make whole cache lines.
    """
    rows = p.size if within is None else within[1]
    itemsize, cached = p.itemsize, tuning.TILE
    tile = min(p.columns, BLOCK, max(LINE // itemsize, cached // max(1, rows * itemsize), 1))
    panels = prod(p.sizes)
    if panels < threads:
        tile = min(tile, max(LINE // itemsize, 1, -(-p.columns * panels // threads)))
    if tile < p.columns and tile > LINE:
        tile = tile // LINE * LINE
    scratch = (rows + (rows < p.size)) * tile * itemsize
    dense = p.step == tile * itemsize and p.column_stride == itemsize
    grid = _kernels.Grid(
        p.sizes,
        p.index_strides,
        p.data_strides,
        (p.length, p.index_step, p.size, p.step),
        (p.columns, p.column_stride, tile),
        itemsize,
        p.negatives,
        within,
    )
    fits = scratch <= 2 * cached
    often = 2 * p.length >= p.size if within is None else p.length * tile >= p.size
    packs = fits and not dense and often
    work = tile * (p.length * (itemsize + 8) + (rows * itemsize if packs else 0))
    return Units(grid, scratch if fits else 0, packs, work)
