"""The index tuples of a call in row-major order, in blocks; searches for those of an element."""

from collections.abc import Callable, Iterator, Sequence
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
from ndtool.rules.plans import Plan, Position
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall

Array = NDArray[Any]
Int64Array = NDArray[np.int64]

BLOCK = 1 << 17  # index components in a block, which fits in a core's cache


EDGE_TUPLES = 5  # tuples listed at each end of a long list
MAX_EDGE_TUPLES = 5000  # tuples listed at each end if all are requested


class Search:
    """A search for the tuples that select an element: the first few, the last few, and the count.

    edge: how many to store at each end. on_unlisted: a callback for the linear indices that are not
    stored, in order.
    """

    def __init__(
        self,
        target: Position,
        edge: int = EDGE_TUPLES,
        on_unlisted: Callable[[Array], None] = lambda _: None,
    ) -> None:
        self.target, self.count = target, 0
        self.first: list[int] = []
        self.last = np.empty(0, np.int64)
        self._edge, self._on_unlisted = edge, on_unlisted

    def add(self, indices: Array) -> None:
        """Add the linear indices of the next tuples that select the element."""
        self.count += len(indices)
        free = self._edge - len(self.first)
        self.first += indices[:free].tolist()
        self.last = np.concatenate([self.last, indices[free:]])
        if len(self.last) > self._edge:
            self._on_unlisted(self.last[: -self._edge])
            self.last = self.last[-self._edge :]

    @property
    def stored(self) -> Int64Array:
        """The stored linear indices, once the search is complete."""
        return np.concatenate([np.array(self.first, np.int64), self.last])


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

    def search(self, searches: Sequence[Search], blocks: Iterator[tuple[int, Array]]) -> None:
        """Read all blocks; add to every search the tuples that select its element."""
        plan = self.plan
        for first, block in blocks:
            if not plan.is_elementwise:
                for search in searches:
                    self._add_matches(search, first, block)
        if plan.is_elementwise:
            for search in searches:
                for first, block in self._line_blocks(search.target):
                    self._add_matches(search, first, block)

    def _add_matches(self, search: Search, first: int, block: Array) -> None:
        """Add the tuples of a block that select a search's element, in its batch, to the search."""
        plan, skipped = self.plan, 0
        if plan.index_batch:
            batch = int(
                np.ravel_multi_index(search.target[: len(plan.index_batch)], plan.index_batch)
            )
            start, stop = (max(0, n * plan.tuples_per_batch - first) for n in (batch, batch + 1))
            skipped, block = start, block[start:stop]
        valid = None
        if plan.attributes.may_alter_tuples:
            valid, block = select_valid(plan, block)
        rows = matches(block, plan.components_of(search.target), plan)
        search.add(first + skipped + (rows if valid is None else valid[rows]))

    def _line_blocks(self, target: Position) -> Iterator[tuple[int, Array]]:
        """Yield blocks of the indices that can select an element: its line along the axis."""
        line_start = self.plan.data_position(target, (0,))
        if any(i >= size for i, size in zip(line_start, self.plan.indices, strict=True)):
            return
        line_index: Any = self._along_axis(target, slice(None))
        line = self.indices[line_index]
        for first in range(0, len(line), BLOCK):
            yield first, line[first : first + BLOCK, None]

    def position(self, target: Position, linear_index: int) -> Position:
        """Return the position in indices of a tuple that a search found."""
        coordinates = self.positions(target, np.array([linear_index]))
        return tuple(int(i if np.ndim(i) == 0 else i[0]) for i in coordinates)

    def positions(self, target: Position, linear_indices: Array) -> tuple[Any, ...]:
        """Return the coordinates in indices of tuples that a search found, as index arrays."""
        plan = self.plan
        if plan.is_elementwise:
            return self._along_axis(target, linear_indices)
        return np.unravel_index(linear_indices, plan.positions) if plan.positions else ()

    def _along_axis(self, target: Position, indices: object) -> tuple[Any, ...]:
        """Return the position of an element with other indices along the indexed axis."""
        axis = self.plan.axis_of(0)
        return (*target[:axis], indices, *target[axis + 1 :])


def blocks(plan: Plan, indices: Array, values_per_tuple: int = 1) -> Iterator[tuple[int, Array]]:
    """Yield blocks: the linear index of the first tuple, and the tuples as rows of an array.

    values_per_tuple: how many integers the caller stores for each tuple; it bounds a block, too.
    """
    count, k = prod(plan.positions), len(plan.sizes)
    step = max(1, BLOCK // max(k, values_per_tuple))
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


def slice_indices(plan: Plan, first: int, block: Array, valid: Array) -> Int64Array:
    """Return the linear indices of the slices that tuples from `select_valid` select.

    first: the linear index of the block's first tuple. valid: the rows of the tuples in the block.
    """
    tuple_indices, components = first + valid, iter(block.T)
    position_strides = layouts.contiguous_strides(plan.positions, 1)
    grid_strides = layouts.contiguous_strides(plan.slice_grid, 1)
    result = np.zeros(len(block), np.int64)
    for axis, stride in zip(plan.grid_axes, grid_strides, strict=True):
        if axis is None:
            result += next(components) * stride
        else:
            result += tuple_indices // position_strides[axis] % plan.positions[axis] * stride
    return result


def element_updates(
    plan: Plan, indices: Array, targets: Int64Array
) -> Iterator[tuple[Int64Array, Int64Array]]:
    """Yield the updates of some elements of a scatter's output, in order, in blocks.

    targets: the elements' linear indices, ascending. A block has the position in `targets` of each
    update's element, and the linear index of each update.
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
    for first, block in blocks(plan, indices, int(target_counts.max(initial=1))):
        valid, normalized = select_valid(plan, block)
        rows = slice_indices(plan, first, normalized, valid)
        starts, stops = (np.searchsorted(target_slices, rows, side) for side in ("left", "right"))
        counts = stops - starts
        tuples = np.repeat(np.arange(len(rows)), counts)  # tuples that select any target
        nth = np.arange(len(tuples)) - np.repeat(np.cumsum(counts) - counts, counts)
        target_positions = order[starts[tuples] + nth]
        if len(target_positions):
            update_tuples = first + valid[tuples]
            if repeats > 1:
                update_tuples = (
                    update_tuples
                    + (group[target_positions] * (repeats - 1) + repeat[target_positions])
                    * tuples_per_batch
                )
            yield target_positions, update_tuples * width + targets[target_positions] % width


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


def matches(block: Array, index_tuple: Position, plan: Plan) -> Array:
    """Return the rows of a block that equal an index tuple, also in its negative form if valid."""
    rows = np.arange(len(block)) if not index_tuple else None
    for column, target, size in zip(block.T, index_tuple, plan.sizes, strict=True):
        candidates = column if rows is None else column[rows]
        is_match = candidates == target
        if plan.attributes.negatives and block.dtype.kind == "i":
            is_match |= candidates == target - size
        (matching_rows,) = np.nonzero(is_match)
        rows = matching_rows if rows is None else rows[matching_rows]
    assert rows is not None
    return rows
