"""Bound plans: kernel arguments that depend on shapes and strides only, computed once."""

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ndtool import _kernels
from ndtool._kernels import BLOCK, LINE, Indices
from ndtool.engine import layouts, tuning
from ndtool.engine.layouts import Strides
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan, Shape

Buffer = Any  # an object with the buffer protocol and slicing: memoryview, uint8 ndarray


class Operand(NamedTuple):
    """An array for the kernels: its buffer, the offset of element [0, ..., 0], its strides."""

    buffer: Buffer
    origin: int
    strides: Strides


def bind_indices(
    buffer: Buffer,
    dtype: Dtype,
    attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
    fill_bytes: bytes | None = None,
) -> Indices:
    """Bind the bytes of indices to their type, out-of-bounds mode, padding and fill value."""
    return Indices(
        buffer, dtype.itemsize, dtype.kind == "u", dtype.is_swapped, attributes.out_of_bounds,
        fill_bytes, attributes.pad, attributes.negatives,
    )  # fmt: skip


def repeat_fill_value(plan: Plan, element: bytes) -> bytes:
    """Return the fill value, repeated for the bytes of a slice that one kernel call copies."""
    return element * max(1, min(plan.width, tuning.WORK_ITEM // len(element)))


class BoundSlices(NamedTuple):
    """A plan bound to strides: N index tuples, each of which selects a slice of `width` bytes."""

    addressing: _kernels.Addressing
    layout: _kernels.Layout | None  # of a slice that is not contiguous
    width: int  # bytes of a slice
    itemsize: int
    tuples: int  # the number of index tuples
    components: int  # components per tuple
    per_batch: int  # tuples per batch


@lru_cache(maxsize=1024)
def bind_slices(plan: Plan, strides: Strides, itemsize: int) -> BoundSlices | None:
    """Bind a plan to strides; None for an elements operator along an axis that is not the last."""
    if plan.is_elementwise:
        return _bind_last_axis(plan, strides, itemsize)
    b, k = len(plan.batch), plan.k
    batch = layouts.merge_axes(plan.batch, strides[:b])
    addressing = _kernels.Addressing(
        plan.sizes,
        strides[b : b + k],
        plan.tuples_per_batch,
        *batch,
        plan.attributes.negatives,
        plan.batch_repeats,
    )
    slice_shape, slice_strides = layouts.merge_axes(plan.slice_shape, strides[b + k :])
    layout = None
    if plan.width and not layouts.is_contiguous(slice_shape, slice_strides, itemsize):
        layout = _kernels.Layout(slice_shape, slice_strides, itemsize)
    width = plan.width * itemsize
    return BoundSlices(addressing, layout, width, itemsize, plan.tuples, k, plan.tuples_per_batch)


def _bind_last_axis(plan: Plan, strides: Strides, itemsize: int) -> BoundSlices | None:
    """Bind elements along the last axis as tuples of one component, with a batch per row."""
    axis = plan.axis_of(0)
    if prod(plan.indices[axis + 1 :]) != 1:
        return None
    batch = layouts.merge_axes(plan.indices[:axis], strides[:axis])
    length = plan.indices[axis]
    addressing = _kernels.Addressing(
        (plan.data[axis],), (strides[axis],), length, *batch, plan.attributes.negatives
    )
    return BoundSlices(addressing, None, itemsize, itemsize, prod(plan.indices), 1, length)


@lru_cache(maxsize=1024)
def bind_rows(plan: Plan) -> _kernels.Addressing:
    """Bind a plan to linear row indices instead of byte offsets; each tuple selects a row."""
    if plan.is_elementwise:
        strides = layouts.contiguous_strides(plan.data, 1)
        slices = bind_slices(plan, strides, 1)
        if slices is not None:
            return slices.addressing
        axis = plan.axis_of(0)  # every index is a batch: the axes other than `axis` are batch axes
        batch = layouts.merge_axes(plan.indices, (*strides[:axis], 0, *strides[axis + 1 :]))
        return _kernels.Addressing(
            (plan.data[axis],), (strides[axis],), 1, *batch, plan.attributes.negatives
        )
    b = len(plan.batch)
    strides = layouts.contiguous_strides(plan.batch + plan.sizes, 1)
    batch = layouts.merge_axes(plan.batch, strides[:b])
    return _kernels.Addressing(
        plan.sizes,
        strides[b:],
        plan.tuples_per_batch,
        *batch,
        plan.attributes.negatives,
        plan.batch_repeats,
    )


@lru_cache(maxsize=1024)
def bind_boxes(sizes: Shape, box_shape: Shape) -> _kernels.Boxes:
    """Bind partitions of rows, boxes of shape `box_shape`; merge axes that are not divided."""
    merged: list[tuple[int, int]] = []
    for size, step in zip(sizes, box_shape, strict=True):
        if merged and step == size:
            previous = merged.pop()
            merged.append((previous[0] * size, previous[1] * size))
        else:
            merged.append((size, step))
    return _kernels.Boxes(*zip(*(merged or [(1, 1)]), strict=True))


@lru_cache(maxsize=1024)
def bind_check(plan: Plan) -> tuple[_kernels.Addressing, int, int]:
    """Return the arguments of an index check: (addressing, tuples, components per tuple)."""
    sizes = plan.sizes
    tuples = prod(plan.positions)
    zero_strides = (0,) * len(sizes)
    return (
        _kernels.Addressing(sizes, zero_strides, tuples, (), (), plan.attributes.negatives),
        tuples,
        len(sizes),
    )


class Panels(NamedTuple):
    """An elements operator along an axis that is not the last, bound to strides.

    A panel is a matrix whose rows are along the indexed axis. sizes, index_strides (elements),
    data_strides (bytes): the axes that enumerate the panels. index_rows, data_rows: rows of a panel
    of indices and of data. index_row_stride (elements), row_stride (bytes): their row strides.
    columns: columns of a panel. column_stride: its column stride in bytes.
    """

    sizes: Shape
    index_strides: Strides
    data_strides: Strides
    index_rows: int
    index_row_stride: int
    data_rows: int
    row_stride: int
    columns: int
    column_stride: int
    itemsize: int
    negatives: bool


@lru_cache(maxsize=1024)
def bind_panels(plan: Plan, strides: Strides, itemsize: int) -> Panels:
    """Bind an elements plan to strides, as panels; its axis is not the last."""
    axis = plan.axis_of(0)
    index_rows = plan.indices[axis]
    inner_shape, inner_strides = layouts.merge_axes(plan.indices[axis + 1 :], strides[axis + 1 :])
    outer_shape, outer_strides = layouts.merge_axes(plan.indices[:axis], strides[:axis])
    inner_index_strides = layouts.contiguous_strides(inner_shape, 1)
    index_row_stride = prod(inner_shape)
    outer_index_strides = layouts.contiguous_strides(outer_shape, index_rows * index_row_stride)
    return Panels(
        outer_shape + inner_shape[:-1],
        outer_index_strides + inner_index_strides[:-1],
        outer_strides + inner_strides[:-1],
        index_rows,
        index_row_stride,
        plan.data[axis],
        strides[axis],
        inner_shape[-1],
        inner_strides[-1],
        itemsize,
        plan.attributes.negatives,
    )


class Units(NamedTuple):
    """Panels divided into units: tiles of columns that fit in the cache."""

    grid: _kernels.Grid
    scratch: int  # bytes of a packed tile, 0 if tiles are not packed
    is_packing_faster: bool  # of gathers
    unit_bytes: int  # estimated bytes that one unit moves


@lru_cache(maxsize=1024)
def bind_tiles(panels: Panels, threads: int = 1) -> Units:
    """Divide panels into at least `threads` units, if tiles of full cache lines allow it."""
    rows = panels.data_rows
    itemsize, tile_limit = panels.itemsize, tuning.TILE
    line_items = max(LINE // itemsize, 1)  # elements of a cache line
    columns = min(panels.columns, BLOCK, max(line_items, tile_limit // max(1, rows * itemsize)))
    panel_count = prod(panels.sizes)
    if panel_count < threads:
        columns = min(columns, max(line_items, -(-panels.columns * panel_count // threads)))
    if columns < panels.columns and columns > LINE:
        columns = columns // LINE * LINE
    row_bytes = columns * itemsize
    scratch = rows * row_bytes
    is_contiguous = panels.row_stride == row_bytes and panels.column_stride == itemsize
    grid = _kernels.Grid(
        panels.sizes,
        panels.index_strides,
        panels.data_strides,
        (panels.index_rows, panels.index_row_stride, panels.data_rows, panels.row_stride),
        (panels.columns, panels.column_stride, columns),
        itemsize,
        panels.negatives,
    )
    fits_in_cache = scratch <= 2 * tile_limit
    is_reused = 2 * panels.index_rows >= panels.data_rows
    is_packing_faster = fits_in_cache and not is_contiguous and is_reused
    unit_bytes = columns * panels.index_rows * (itemsize + 8)
    if is_packing_faster:
        unit_bytes += rows * row_bytes
    return Units(grid, scratch if fits_in_cache else 0, is_packing_faster, unit_bytes)
