"""The index tuples of a call in row-major order, in blocks; links to the elements they select."""

from collections.abc import Iterable, Iterator
from math import prod
from operator import mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import _kernels
from ndtool._kernels import WorkItem
from ndtool.analysis import values
from ndtool.analysis.oracle.blocks import ProgressCallback, flat_view
from ndtool.arrays.source import ContiguousSource, row_major
from ndtool.engine import bind, check, distinct, layouts
from ndtool.errors import UsageError
from ndtool.formats import computed
from ndtool.inmemory.arguments import rebase
from ndtool.inmemory.buffers import as_bytes
from ndtool.rules import dtypes, shapes
from ndtool.rules.plans import Plan, Position, Shape
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall, named_inputs

Array = NDArray[Any]
Int64Array = NDArray[np.int64]

BLOCK = 1 << 17  # index components in a block, which fits in a core's cache
EDGE_TUPLES = 5  # links listed at each end of a long list
MAX_EDGE_TUPLES = 5000  # links listed at each end if all are requested


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
    """The index tuples of a call: the bytes of indices, and rows with a tuple each, as stored.

    raw: of indices that count from 0. mapped: the source of the indices, None if they are a copy.
    """

    call: OpenCall
    raw: memoryview
    rows: Array
    mapped: ContiguousSource | None

    def blocks(self, progress: ProgressCallback) -> Iterator[tuple[int, Array]]:
        """Yield blocks: the linear index of the first tuple, and the tuples as rows."""
        limit, unreleased = self.call.request.memory, 0
        for first, block in blocks(self.plan, self.rows):
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
                with named_inputs(self.call):
                    raise check.locate_bounds_error(self.plan, bound)
            yield first, block

    @property
    def plan(self) -> Plan:
        """The plan of the call's shapes."""
        return self.call.inference.plan

    def at(self, position: Position) -> tuple[Position, Position | None]:
        """Return the tuple at a position as stored, and as `tuple_at` returns it."""
        number = linear_index(position, self.plan.positions)
        return tuple(self.rows[number].tolist()), tuple_at(self.plan, self.rows, position)


def blocks(plan: Plan, indices: Array) -> Iterator[tuple[int, Array]]:
    """Yield blocks: the linear index of the first tuple, and the tuples as rows of an array."""
    count, k = prod(plan.positions), plan.k
    step = max(1, BLOCK // max(k, 1))
    flat = flat_view(indices)
    for first in range(0, count, step):
        stop = min(first + step, count)
        yield first, flat[first * k : stop * k].reshape(stop - first, k)


def select(plan: Plan, first: int, block: Array) -> tuple[Int64Array, Int64Array]:
    """Return the linear indices of the tuples of a block that select a slice, and of the slices.

    block: tuples as stored. first: the linear index of its first tuple. Modes may redirect indices
    out of bounds; in other modes, such tuples select no slice.
    """
    stored, attributes = distinct.stored_tuples(plan), plan.attributes
    if not stored.rows or not len(block):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    block = rebase(block, attributes)
    if attributes.out_of_bounds == "error":
        attributes = attributes._replace(out_of_bounds="drop")
    indices = bind.bind_indices(
        as_bytes(np.ascontiguousarray(block)).data, dtypes.from_numpy(block.dtype), attributes
    )
    boxes = bind.bind_boxes((stored.rows,), (stored.rows,))
    is_skipped = np.empty(len(block), np.uint8)
    rows = np.empty(len(block), f"u{boxes.row_bytes}")
    _kernels.partition_ids(
        stored.addressing, indices, first, WorkItem(first, len(block), 0, 0), boxes, is_skipped,
        rows.view(np.uint8), np.zeros(2 + indices.skips, np.int64),
    )  # fmt: skip
    (selecting,) = np.nonzero(is_skipped == 0)
    return first + selecting, rows[selecting].astype(np.int64)


def tuple_at(plan: Plan, rows: Array, position: Position) -> Position | None:
    """Return the tuple at a position without negative components; None if it selects nothing.

    rows: all tuples.
    """
    number = linear_index(position, plan.positions)
    _, selected = select(plan, number, rows[number : number + 1])
    if not len(selected):
        return None
    coordinates = layouts.unravel_index(int(selected[0]), plan.slice_grid)
    pairs = zip(coordinates, plan.grid_axes, strict=True)
    return tuple(coordinate for coordinate, axis in pairs if axis is None)


def linear_index(position: Position, shape: Shape) -> int:
    """Return the linear index of a position."""
    return sum(map(mul, position, layouts.contiguous_strides(shape, 1)))


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
    order = np.argsort(target_slices, kind="stable")  # by slice
    slices, starts, counts = np.unique(target_slices[order], return_index=True, return_counts=True)
    step = max(1, BLOCK // int(counts.max(initial=1)))
    slices_and_none = np.append(slices, -1)
    for first, block in tuple_blocks:
        numbers, rows = select(plan, first, block)
        nearest = np.searchsorted(slices, rows)
        (selecting,) = np.nonzero(slices_and_none[nearest] == rows)
        for begin in range(0, len(selecting), step):
            part = selecting[begin : begin + step]
            found = nearest[part]
            repeated, ends = np.repeat(found, counts[found]), np.cumsum(counts[found])
            nth = np.arange(len(repeated)) - np.repeat(ends - counts[found], counts[found])
            positions = order[starts[repeated] + nth]
            skipped = group[positions] * (repeats - 1) + repeat[positions]
            linked = np.repeat(numbers[part], counts[found]) + skipped * tuples_per_batch
            yield positions, linked * width + targets[positions] % max(width, 1)


def load_tuples(call: OpenCall) -> Tuples:
    """Load the index tuples of a call, without validation."""
    _, dtype, shape = call.inference.inputs["indices"]
    plan, source = call.inference.plan, call.sources["indices"]
    if prod(plan.slice_grid) > shapes.MAX_SIZE:  # of a type, such as int8[N,N]
        raise UsageError(
            f"data of shape {shapes.format_shape(plan.data)} have too many slices to select from:"
            " at most 2^63 - 1"
        )
    raw = row_major(call, "indices", dtype.order)
    stored = values.as_array(raw, dtype, shape)
    if plan.attributes.rebases_indices:
        stored = computed.as_array(call.stored_indices)
    rows = stored.reshape(prod(plan.positions), plan.k)
    if isinstance(source, ContiguousSource) and raw is source.buffer:
        return Tuples(call, raw, rows, source)
    return Tuples(call, raw, rows, None)
