"""The index tuples of a call in row-major order, in blocks; links to the elements they select."""

from collections.abc import Iterable, Iterator
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import _kernels
from ndtool.analysis import values
from ndtool.analysis.oracle.blocks import ProgressCallback, flat_view
from ndtool.arrays.source import ContiguousSource, row_major
from ndtool.engine import bind, check, layouts
from ndtool.errors import BoundsError
from ndtool.inmemory.normalizing import normalize_indices
from ndtool.rules import inference
from ndtool.rules.plans import Plan, Position, Shape
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall

Array = NDArray[Any]
Int64Array = NDArray[np.int64]

BLOCK = 1 << 17  # index components in a block, which fits in a core's cache


EDGE_TUPLES = 5  # links listed at each end of a long list
MAX_EDGE_TUPLES = 5000  # links listed at each end if all are requested
_MAX_FILTERED = 32  # targets for which tuples are filtered before they are normalized


class Ends:
    """The first and last items of a sequence, `edge` at each end, and the count of all."""

    def __init__(self, edge: int = EDGE_TUPLES) -> None:
        self.count, self._edge = 0, edge
        self.first = self.last = np.empty(0, np.int64)

    def add(self, items: Int64Array) -> Int64Array:
        """Add the next items; return those between the ends, which are not stored any more."""
        self.count += len(items)
        free = self._edge - len(self.first)
        self.first = np.concatenate([self.first, items[:free]])
        last = np.concatenate([self.last, items[free:]])
        omitted, self.last = np.split(last, [max(0, len(last) - self._edge)])
        return omitted

    @property
    def stored(self) -> list[int]:
        """The stored items, once all were added."""
        return [*self.first.tolist(), *self.last.tolist()]


class Tuples(NamedTuple):
    """The index tuples of a call: the bytes and array of indices, and rows with a tuple each.

    mapped: the source of the indices, None if they are a copy.
    """

    call: OpenCall
    raw: memoryview
    indices: Array
    rows: Array
    mapped: ContiguousSource | None

    def blocks(self, progress: ProgressCallback) -> Iterator[tuple[int, Array]]:
        """Yield blocks: the linear index of the first tuple, and the tuples as rows."""
        limit, unreleased = self.call.request.memory, 0
        for first, block in blocks(self.plan, self.indices):
            yield first, block
            progress((first + len(block)) / len(self.rows))
            unreleased += block.nbytes
            if self.mapped is not None and limit is not None and unreleased > limit // 4:
                self.mapped.advise("dontneed")  # pages of files count, too
                unreleased = 0

    def checked(self, progress: ProgressCallback) -> Iterator[tuple[int, Array]]:
        """Yield blocks as `blocks` does; raise BoundsError before the first one out of bounds.

        Modes other than "error" raise only if an axis of size 0 has no valid index.
        """
        call_inference = self.call.inference
        addressing, _, k = bind.bind_check(self.plan)
        bound = operands.bind_indices(
            call_inference, self.raw, self.plan.attributes._replace(out_of_bounds="error")
        )
        raises = check.is_error(self.plan)
        for first, block in self.blocks(progress):
            if k and raises and _kernels.check(addressing, bound, first, len(block), 1):
                error = check.locate_bounds_error(self.plan, bound)
                if isinstance(error, BoundsError):
                    inference.name_inputs(error, call_inference.inputs)
                raise error
            yield first, block

    @property
    def plan(self) -> Plan:
        """The plan of the call's shapes."""
        return self.call.inference.plan

    def normalized(self, index: Position) -> Position | None:
        """Return a tuple without negative components; None if it selects nothing."""
        block = np.array([index], self.indices.dtype)  # int64 cannot hold every uint64
        _, rows = select_valid(self.plan, block)
        return tuple(rows[0].tolist()) if len(rows) else None

    @property
    def linked_shape(self) -> Shape:
        """The shape of the array whose elements tuples link with data: the output, or updates."""
        inferred = self.call.inference
        return inferred.inputs["updates"].shape if inferred.scatters else self.plan.output


def blocks(plan: Plan, indices: Array) -> Iterator[tuple[int, Array]]:
    """Yield blocks: the linear index of the first tuple, and the tuples as rows of an array."""
    count, k = prod(plan.positions), len(plan.sizes)
    step = max(1, BLOCK // max(k, 1))
    flat = flat_view(indices)
    for first in range(0, count, step):
        stop = min(first + step, count)
        yield first, flat[first * k : stop * k].reshape(stop - first, k)


def select_valid(plan: Plan, block: Array) -> tuple[Int64Array, Array]:
    """Return the rows of a block whose tuples select a slice, and these tuples, normalized."""
    sizes = np.array(plan.sizes, np.int64)
    normalized = np.empty(block.shape, np.int64)
    for j, size in enumerate(plan.sizes):
        normalized[:, j], _ = normalize_indices(block[:, j], size, plan.attributes)
    (rows,) = np.nonzero((normalized < sizes).all(axis=1))
    return rows, normalized[rows]


def slice_indices(plan: Plan, tuple_indices: Int64Array, block: Array) -> Int64Array:
    """Return the linear indices of the slices that tuples from `select_valid` select.

    tuple_indices: the linear indices of the tuples.
    """
    components = iter(block.T)
    position_strides = layouts.contiguous_strides(plan.positions, 1)
    grid_strides = layouts.contiguous_strides(plan.slice_grid, 1)
    result = np.zeros(len(block), np.int64)
    for axis, stride in zip(plan.grid_axes, grid_strides, strict=True):
        if axis is None:
            result += next(components) * stride
        else:
            result += tuple_indices // position_strides[axis] % plan.positions[axis] * stride
    return result


def links(
    plan: Plan, tuple_blocks: Iterable[tuple[int, Array]], targets: Int64Array
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Yield the elements of updates, or of a gather's output, that tuples link with data.

    tuple_blocks: as from `blocks`. targets: linear indices in data. Yields arrays, in the order of
    tuples: the position in `targets` of each link, and the linear index of the other element.
    """
    width, repeats, tuples_per_batch = plan.width, plan.batch_repeats, plan.tuples_per_batch
    slices_per_group = prod(plan.slice_grid[len(plan.index_batch) :])
    # The slice of each target within the first repeat of the stored tuples, and the repeat.
    batch, row = np.divmod(targets // max(width, 1), max(slices_per_group, 1))
    group, repeat = np.divmod(batch, max(repeats, 1))
    target_slices = group * slices_per_group + row
    order = np.argsort(target_slices, kind="stable")
    target_slices = target_slices[order]
    _, target_counts = np.unique(target_slices, return_counts=True)
    step = max(1, BLOCK // int(target_counts.max(initial=1)))
    components = np.array(
        [plan.components_of(layouts.unravel_index(t, plan.data)) for t in targets.tolist()],
        np.int64,
    ).reshape(len(targets), plan.k)
    for first, block in tuple_blocks:
        candidates = first + np.arange(len(block))
        if len(targets) <= _MAX_FILTERED and not plan.attributes.may_alter_tuples:
            mask = _mask_of_candidates(plan, block, components)
            candidates, block = candidates[mask], block[mask]
        valid, normalized = select_valid(plan, block)
        numbers = candidates[valid]
        rows = slice_indices(plan, numbers, normalized)
        for begin in range(0, len(rows), step):
            part = rows[begin : begin + step]
            starts, stops = (
                np.searchsorted(target_slices, part, side) for side in ("left", "right")
            )
            counts = stops - starts
            selecting = np.repeat(np.arange(len(part)), counts)  # tuples that select any target
            nth = np.arange(len(selecting)) - np.repeat(np.cumsum(counts) - counts, counts)
            positions = order[starts[selecting] + nth]
            if len(positions):
                skipped = group[positions] * (repeats - 1) + repeat[positions]
                linked = numbers[begin + selecting] + skipped * tuples_per_batch
                yield positions, linked * width + targets[positions] % max(width, 1)


def _mask_of_candidates(plan: Plan, block: Array, components: Int64Array) -> Array:
    """Return a mask of the tuples of a block each of whose components selects a target's."""
    mask, limits = np.full(len(block), True), np.iinfo(block.dtype)
    for column, own, size in zip(block.T, components.T, plan.sizes, strict=True):
        wanted = np.concatenate([own, own - size])
        wanted = wanted[(wanted >= limits.min) & (wanted <= limits.max)].astype(block.dtype)
        mask &= np.isin(column, wanted, kind="sort")
    return mask


def load_tuples(call: OpenCall) -> Tuples:
    """Load the index tuples of a call, without validation."""
    _, dtype, shape = call.inference.inputs["indices"]
    _, count, k = bind.bind_check(call.inference.plan)
    raw, source = row_major(call, "indices", dtype.order), call.sources["indices"]
    indices = values.as_array(raw, dtype, shape)
    mapped = None
    if isinstance(source, ContiguousSource) and raw is source.buffer:
        mapped = source
    return Tuples(call, raw, indices, indices.reshape(count, k), mapped)
