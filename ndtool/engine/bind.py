"""Bound plans: kernel arguments that depend on shapes and strides only, computed once."""

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ndtool import _kernels
from ndtool._kernels import Indices
from ndtool.engine import layouts, tuning
from ndtool.engine.layouts import Strides
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan, Shape

Buffer = Any  # an object with the buffer protocol and slicing: memoryview, uint8 ndarray

MAX_PARTITIONS = (1 << 16) - 1  # partition IDs have 16 bits; the last is for dropped tuples


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
    """Bind the bytes of indices, which count from 0, to their type and to their attributes."""
    attributes = attributes.rebased
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
        return bind_box(plan, (0,) * len(plan.indices), plan.indices)
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


def bind_box(plan: Plan, origin: Shape, shape: Shape) -> _kernels.Addressing:
    """Bind the tuples in a box of the stored tuples to linear row indices of slice_grid.

    The box is the second of two batches, so that its first tuple is tuple prod(shape) of a walk.
    """
    row_strides = layouts.contiguous_strides(plan.slice_grid, 1)
    strides = dict(zip(plan.grid_axes, row_strides, strict=True))  # by axis of tuples
    outer = max((i + 1 for i in strides if i is not None and shape[i] > 1), default=0)
    first_row = sum(origin[i] * stride for i, stride in strides.items() if i is not None)
    batch_strides = (first_row, *(strides.get(i, 0) for i in range(outer)))
    return _kernels.Addressing(
        plan.sizes,
        tuple(s for i, s in zip(plan.grid_axes, row_strides, strict=True) if i is None),
        prod(shape[outer:]),
        *layouts.merge_axes((2, *shape[:outer]), batch_strides),
        plan.attributes.negatives,
    )


@lru_cache(maxsize=1024)
def bind_boxes(sizes: Shape, box_shape: Shape) -> _kernels.Boxes:
    """Bind partitions of rows, boxes of at most `box_shape`; merge axes that are not divided."""
    merged: list[tuple[int, int]] = []
    for size, step in zip(sizes, box_shape, strict=True):
        if merged and step >= size:
            previous = merged.pop()
            merged.append((previous[0] * size, previous[1] * size))
        else:
            merged.append((size, min(size, step)))
    return _kernels.Boxes(*zip(*(merged or [(1, 1)]), strict=True))


def id_bytes(partitions: int) -> int:
    """Return the bytes of a partition ID; partitions: with the one of dropped tuples, if any."""
    return 1 if partitions <= _kernels.MAX_BYTE_IDS else 2


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


def bind_grid(plan: Plan, strides: Strides, itemsize: int) -> _kernels.Grid:
    """Bind an elements plan to strides, as tiles of panels; its axis is not the last."""
    return _kernels.Grid(
        plan.data, plan.indices, strides, plan.axis_of(0), itemsize, plan.attributes.negatives,
        tuning.TILE,
    )  # fmt: skip
