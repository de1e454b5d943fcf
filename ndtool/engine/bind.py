"""Bound plans: kernel arguments that depend on shapes and strides only, computed once."""

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ndtool import _kernels
from ndtool._kernels import BLOCK, LINE, Indices
from ndtool.engine import layouts, tuning
from ndtool.engine.layouts import Strides
from ndtool.rules.dtypes import Dtype
from ndtool.rules.modes import Handling
from ndtool.rules.plans import ElementsPlan, NdPlan, Plan, Shape

Buffer = Any  # an object with the buffer protocol and slicing: memoryview, uint8 ndarray


class Operand(NamedTuple):
    """An array for the kernels: its buffer, the offset of element [0, ..., 0], its strides."""

    buffer: Buffer
    origin: int
    strides: Strides


def bind_indices(
    buffer: Buffer,
    dtype: Dtype,
    handling: Handling = Handling(),  # noqa: B008 - a value that never changes
    fill_bytes: bytes | None = None,
) -> Indices:
    """Bind the bytes of indices to their type, and to what happens to each of them."""
    mode, pad, negatives = handling
    unsigned = dtype.kind == "u"
    return Indices(
        buffer, dtype.itemsize, unsigned, dtype.swapped, mode, fill_bytes, 0, pad, negatives
    )


def repeat_fill_value(plan: Plan, element: bytes) -> bytes:
    """Return the fill value repeated for a slice, or for the part of it that one call moves."""
    width = 1 if isinstance(plan, ElementsPlan) else plan.width
    return element * max(1, min(width, tuning.WORK_ITEM // len(element)))


class BoundSlices(NamedTuple):
    """A plan bound to strides: N index tuples, each of which selects a slice of `width` bytes."""

    addressing: _kernels.Addressing
    layout: _kernels.Layout | None  # of a slice that is not contiguous
    width: int  # bytes of a slice
    itemsize: int
    tuples: int
    components: int  # components per tuple
    per_batch: int


@lru_cache(maxsize=1024)
def bind_slices(plan: Plan, strides: Strides, itemsize: int, negatives: bool) -> BoundSlices | None:
    """Bind a plan to strides; None for an elements operator along an axis that is not the last."""
    if isinstance(plan, ElementsPlan):
        return _bind_last_axis(plan, strides, itemsize, negatives)
    b, k = len(plan.batch), plan.k
    batch = layouts.merge_axes(plan.batch, strides[:b])
    addressing = _kernels.Addressing(
        plan.sizes, strides[b : b + k], plan.per_batch, *batch, negatives, plan.repeats
    )
    run, run_strides = layouts.merge_axes(plan.slice_shape, strides[b + k :])
    layout = None
    if plan.width and not layouts.is_contiguous(run, run_strides, itemsize):
        layout = _kernels.Layout(run, run_strides, itemsize)
    width = plan.width * itemsize
    return BoundSlices(addressing, layout, width, itemsize, plan.tuples, k, plan.per_batch)


def _bind_last_axis(
    plan: ElementsPlan, strides: Strides, itemsize: int, negatives: bool
) -> BoundSlices | None:
    """Bind elements along the last axis as tuples of one component, with a batch per line."""
    a = plan.axis
    if prod(plan.indices[a + 1 :]) != 1:
        return None
    batch = layouts.merge_axes(plan.indices[:a], strides[:a])
    length = plan.indices[a]
    addressing = _kernels.Addressing((plan.data[a],), (strides[a],), length, *batch, negatives)
    return BoundSlices(addressing, None, itemsize, itemsize, prod(plan.indices), 1, length)


@lru_cache(maxsize=1024)
def bind_rows(plan: Plan, negatives: bool) -> _kernels.Addressing:
    """Bind a plan to linear row indices instead of offsets; a row is what one tuple selects."""
    if isinstance(plan, ElementsPlan):
        strides = layouts.contiguous_strides(plan.data, 1)
        runs = bind_slices(plan, strides, 1, negatives)
        if runs is not None:
            return runs.addressing
        a = plan.axis  # every index is a batch of its own, at its coordinates off the axis
        batch = layouts.merge_axes(plan.indices, (*strides[:a], 0, *strides[a + 1 :]))
        return _kernels.Addressing((plan.data[a],), (strides[a],), 1, *batch, negatives)
    b = len(plan.batch)
    strides = layouts.contiguous_strides(plan.batch + plan.sizes, 1)
    batch = layouts.merge_axes(plan.batch, strides[:b])
    return _kernels.Addressing(
        plan.sizes, strides[b:], plan.per_batch, *batch, negatives, plan.repeats
    )


@lru_cache(maxsize=1024)
def bind_boxes(sizes: Shape, steps: Shape) -> _kernels.Boxes:
    """Bind partitions of rows, boxes of shape `steps`; merge axes that are not divided."""
    merged: list[tuple[int, int]] = []
    for size, step in zip(sizes, steps, strict=True):
        if merged and step == size:
            previous = merged.pop()
            merged.append((previous[0] * size, previous[1] * size))
        else:
            merged.append((size, step))
    return _kernels.Boxes(*zip(*(merged or [(1, 1)]), strict=True))


@lru_cache(maxsize=1024)
def bind_check(plan: Plan, negatives: bool) -> tuple[_kernels.Addressing, int, int]:
    """Return the arguments of an index check: (addressing, tuples, components per tuple)."""
    sizes = plan.sizes if isinstance(plan, NdPlan) else (plan.data[plan.axis],)
    tuples = prod(plan.positions)
    zero_strides = (0,) * len(sizes)
    return _kernels.Addressing(sizes, zero_strides, tuples, (), (), negatives), tuples, len(sizes)


class Panels(NamedTuple):
    """An elements operator along an axis that is not the last, bound to strides.

    sizes, index_strides (elements), data_strides (bytes): the axes over panels. length, size: of
    indices and of data along the indexed axis. index_step, step: their strides along it. columns:
    the length of the last axis. column_stride: its stride in bytes.
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
    inner_shape, inner = layouts.merge_axes(plan.indices[a + 1 :], strides[a + 1 :])
    outer_shape, outer = layouts.merge_axes(plan.indices[:a], strides[:a])
    inner_index = layouts.contiguous_strides(inner_shape, 1)
    index_step = prod(inner_shape)
    outer_index = tuple(s * length * index_step for s in layouts.contiguous_strides(outer_shape, 1))
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
    """Panels divided into units, tiles of columns that fit into the cache."""

    grid: _kernels.Grid
    scratch: int  # bytes of a packed tile, 0 if it should not be packed
    is_packing_faster: bool  # whether packing tiles is faster for gathers
    unit_bytes: int  # estimated bytes that one unit moves


@lru_cache(maxsize=1024)
def bind_units(p: Panels, band: tuple[int, int, int] | None = None, threads: int = 1) -> Units:
    """Divide panels into units.

    within: (first row, rows, bytes per row) of a band, see Grid. threads: the number of units
    wanted, as far as tiles of whole cache lines allow.
    """
    rows = p.size if band is None else band[1]
    itemsize, tile_limit = p.itemsize, tuning.TILE
    tile = min(p.columns, BLOCK, max(LINE // itemsize, tile_limit // max(1, rows * itemsize), 1))
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
        band,
    )
    fits = scratch <= 2 * tile_limit
    often = 2 * p.length >= p.size if band is None else p.length * tile >= p.size
    packs = fits and not dense and often
    work = tile * (p.length * (itemsize + 8) + (rows * itemsize if packs else 0))
    needs = band is not None  # a band is updated in its packed tile only
    return Units(grid, scratch if fits or needs else 0, packs, work)
