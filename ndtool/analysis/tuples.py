"""The index tuples of a call in row-major order, in blocks, and searches for tuples."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import _kernels
from ndtool.analysis import mapping, values
from ndtool.analysis.mapping import Position
from ndtool.analysis.oracle.blocks import ProgressCallback, flat_view
from ndtool.engine import bind, check, layouts
from ndtool.errors import BoundsError
from ndtool.rules import inference
from ndtool.rules.modes import Handling
from ndtool.rules.plans import ElementsPlan, NdPlan, Plan, Shape
from ndtool.runs import operands
from ndtool.runs.bounds import normalize_indices
from ndtool.runs.calls import OpenCall
from ndtool.storage.tempfiles import Spool

Array = NDArray[Any]
Numbers = NDArray[np.int64]

BLOCK = 1 << 17  # index components to process at a time: a core's cache holds them


EDGE_TUPLES = 5  # tuples to list at each end of a long list


class Search:
    """A search for the tuples that select an element: the first few, the last few, and the count.

    list_all: whether to store the linear indices of all, in a temporary file if they are many.
    between: a callback for the linear indices that are not stored.
    """

    def __init__(
        self, target: Position, list_all: bool, between: Callable[[Array], None] = lambda _: None
    ) -> None:
        self.target, self.count = target, 0
        self.first: list[int] = []
        self.last = np.empty(0, np.int64)
        self._all = Spool() if list_all else None
        self._between = between

    def add(self, numbers: Array) -> None:
        """Add the linear indices of the next tuples found."""
        self.count += len(numbers)
        if self._all is not None:
            self._all.write(numbers.astype(np.int64).tobytes())
            return
        free = EDGE_TUPLES - len(self.first)
        self.first += numbers[:free].tolist()
        self.last = np.concatenate([self.last, numbers[free:]])
        if len(self.last) > EDGE_TUPLES:
            self._between(self.last[:-EDGE_TUPLES])
            self.last = self.last[-EDGE_TUPLES:]

    @cached_property
    def stored(self) -> Numbers:
        """The linear indices stored, after the search."""
        if self._all is not None:
            return np.frombuffer(self._all.finish(), np.int64)
        return np.concatenate([np.array(self.first, np.int64), self.last])


class Tuples(NamedTuple):
    """The index tuples of a call: their bytes, the array of indices, and a row per tuple."""

    call: OpenCall
    raw: memoryview
    indices: Array
    rows: Array

    def blocks(self, progress: ProgressCallback) -> Iterator[tuple[int, Array]]:
        """Yield blocks: the linear index of the first tuple, and the tuples as rows."""
        for first, block in blocks(self.plan, self.indices):
            yield first, block
            progress((first + len(block)) / len(self.rows))

    def checked(self, progress: ProgressCallback) -> Iterator[tuple[int, Array]]:
        """Yield the same; raise BoundsError, as a run does, at the first block out of bounds.

        Does not raise in a mode other than "error", unless an axis of size 0 leaves no valid index.
        """
        call_inference = self.call.inference
        addressing, _, k = bind.bind_check(call_inference.plan, self.negatives)
        bound = operands.bind_indices(
            call_inference, self.raw, self.handling._replace(mode="error")
        )
        strict = self.mode == "error" or check.lacks_valid_indices(call_inference.plan, self.mode)
        for first, block in self.blocks(progress):
            if k and strict and _kernels.check(addressing, bound, first, len(block), 1):
                error = check.locate_bounds_error(call_inference.plan, bound, self.negatives)
                if isinstance(error, BoundsError):
                    inference.name_inputs(error, call_inference.inputs)
                raise error
            yield first, block

    @property
    def mode(self) -> str:
        """The out-of-bounds mode."""
        return self.call.inference.attributes.out_of_bounds

    @property
    def handling(self) -> Handling:
        """The out-of-bounds mode, the padding, and whether negative indices are valid."""
        return self.call.inference.handling

    @property
    def negatives(self) -> bool:
        """Whether negative indices are valid."""
        return self.call.inference.row.negatives

    @property
    def plan(self) -> Plan:
        """The plan of the call's shapes."""
        return self.call.inference.plan

    def normalized(self, index: Position) -> Position | None:
        """Return a tuple without negative components; None if it selects nothing."""
        block = np.array([index], self.indices.dtype)  # int64 cannot hold every uint64
        _, rows = selecting(self.plan, block, self.handling)
        return tuple(rows[0].tolist()) if len(rows) else None

    def search(self, searches: Sequence[Search], blocks: Iterator[tuple[int, Array]]) -> None:
        """Pass over all blocks; add to every search the tuples that select its element."""
        plan = self.plan
        for first, block in blocks:
            if isinstance(plan, NdPlan):
                for search in searches:
                    self._look(search, first, block)
        if isinstance(plan, ElementsPlan):
            for search in searches:
                for first, block in self._line(plan, search.target):
                    self._look(search, first, block)

    def _look(self, search: Search, first: int, block: Array) -> None:
        """Add the tuples of a block to a search, except those of other batches."""
        plan, skipped = self.plan, 0
        if isinstance(plan, NdPlan) and plan.index_batch:
            batch = int(
                np.ravel_multi_index(search.target[: len(plan.index_batch)], plan.index_batch)
            )
            begin, end = (max(0, n * plan.tuples_per_batch - first) for n in (batch, batch + 1))
            skipped, block = begin, block[begin:end]
        index_tuple, sizes = (
            mapping.index_tuple_of(plan, search.target),
            mapping.indexed_sizes(plan),
        )
        valid = None
        if self.handling.may_alter_tuples:
            valid, block = selecting(plan, block, self.handling)
        hits = matches(block, index_tuple, sizes, self.negatives)
        search.add(first + skipped + (hits if valid is None else valid[hits]))

    def _line(self, plan: ElementsPlan, target: Position) -> Iterator[tuple[int, Array]]:
        """Yield blocks of the indices that can select an element: its line along the axis."""
        a = plan.axis
        line_start = (*target[:a], 0, *target[a + 1 :])
        if any(i >= size for i, size in zip(line_start, plan.indices, strict=True)):
            return
        along: Any = (*target[:a], slice(None), *target[a + 1 :])
        line = self.indices[along]
        for first in range(0, len(line), BLOCK):
            yield first, line[first : first + BLOCK, None]

    def position(self, target: Position, number: int) -> Position:
        """Return the position in indices of a tuple that a search found."""
        coordinates = self.positions(target, np.array([number]))
        return tuple(int(i if np.ndim(i) == 0 else i[0]) for i in coordinates)

    def positions(self, target: Position, numbers: Array) -> tuple[Any, ...]:
        """Return the coordinates in indices of tuples that a search found, as index arrays."""
        plan = self.plan
        if isinstance(plan, ElementsPlan):
            return (*target[: plan.axis], numbers, *target[plan.axis + 1 :])
        return np.unravel_index(numbers, plan.positions) if plan.positions else ()


def blocks(plan: Plan, indices: Array, each: int = 1) -> Iterator[tuple[int, Array]]:
    """Yield blocks: the linear index of the first tuple, and the tuples as rows of an array.

    each: the numbers that the caller stores per tuple, if more than a tuple's components.
    """
    count, k = prod(plan.positions), len(mapping.indexed_sizes(plan))
    step = max(1, BLOCK // max(k, each))
    ordered = flat_view(indices)
    for first in range(0, count, step):
        stop = min(first + step, count)
        yield first, ordered[first * k : stop * k].reshape(stop - first, k)


def selecting(plan: Plan, block: Array, handling: Handling) -> tuple[Numbers, Array]:
    """Return the rows of a block that select a slice, and their tuples without negatives."""
    sizes = np.array(mapping.indexed_sizes(plan), np.int64)
    normalized = np.empty(block.shape, np.int64)
    for j, size in enumerate(mapping.indexed_sizes(plan)):
        normalized[:, j] = normalize_indices(block[:, j], size, handling)
    valid = ((normalized >= 0) & (normalized < sizes)).all(axis=1)
    if handling.pad is not None:
        valid &= (block != handling.pad).all(axis=1)
    (numbers,) = np.nonzero(valid)
    return numbers, normalized[numbers]


def slice_numbers(plan: Plan, first: int, block: Array, valid: Array | None = None) -> Numbers:
    """Return the linear indices of the slices that valid tuples select.

    first: the linear index of the block's first tuple. valid: the rows of the tuples in the block.
    """
    numbers = np.arange(first, first + len(block)) if valid is None else first + valid
    columns = list[Array]()
    for column, size in zip(block.T, mapping.indexed_sizes(plan), strict=True):
        wide = column.astype(np.int64)
        if column.dtype.kind == "i":
            wide += (wide >> 63) & np.int64(size)
        columns.append(wide)
    if isinstance(plan, ElementsPlan):
        at = list(np.unravel_index(numbers, plan.indices))
        at[plan.axis] = columns[0]
    elif plan.index_batch:
        at = [*np.unravel_index(numbers // plan.tuples_per_batch, plan.index_batch), *columns]
    else:
        at = columns
    result = np.zeros(len(block), np.int64)
    for along, step in zip(
        at, layouts.contiguous_strides(mapping.slice_grid(plan), 1), strict=True
    ):
        result += along * step
    return result


def element_updates(
    plan: Plan, indices: Array, handling: Handling, targets: Numbers
) -> Iterator[tuple[Numbers, Numbers]]:
    """Yield the updates of some elements of a scatter's output, in order, by blocks.

    targets: the elements' linear indices, ascending. Yields positions in `targets`, and the linear
    indices of the updates.
    """
    width = repeats = sizes = tuples_per_batch = 1
    if isinstance(plan, NdPlan):
        width, repeats, sizes, tuples_per_batch = (
            plan.width,
            plan.batch_repeats,
            prod(plan.sizes),
            plan.tuples_per_batch,
        )
    # The linear index of each slice in one repeat of the stored tuples, and the repeat.
    batch, row = np.divmod(targets // max(width, 1), max(sizes, 1))
    group, repeat = np.divmod(batch, max(repeats, 1))
    target_slices = group * sizes + row
    order = np.argsort(target_slices, kind="stable")
    target_slices = target_slices[order]
    _, target_counts = np.unique(target_slices, return_counts=True)
    for first, block in blocks(plan, indices, int(target_counts.max(initial=1))):
        valid, normalized = selecting(plan, block, handling)
        rows = slice_numbers(plan, first, normalized, valid)
        begin, end = (np.searchsorted(target_slices, rows, side) for side in ("left", "right"))
        counts = end - begin
        tuples = np.repeat(np.arange(len(rows)), counts)  # those with any
        nth = np.arange(len(tuples)) - np.repeat(np.cumsum(counts) - counts, counts)
        ordinals = order[begin[tuples] + nth]
        if len(ordinals):
            numbers = first + valid[tuples]
            if repeats > 1:
                numbers = (
                    numbers
                    + (group[ordinals] * (repeats - 1) + repeat[ordinals]) * tuples_per_batch
                )
            yield ordinals, numbers * width + targets[ordinals] % width


def of(call: OpenCall) -> Tuples:
    """Return the index tuples of a call, not validated."""
    _, dtype, shape = call.inference.inputs["indices"]
    _, count, k = bind.bind_check(call.inference.plan, call.inference.row.negatives)
    raw = operands.load_indices(call)
    indices = values.as_array(raw, dtype, shape)
    return Tuples(call, raw, indices, indices.reshape(count, k))


def matches(block: Array, index_tuple: Shape, sizes: Shape, negatives: bool) -> Array:
    """Return the rows of a block equal to an index tuple, or to its negative form if allowed."""
    numbers = np.arange(len(block)) if not index_tuple else None
    for column, target, size in zip(block.T, index_tuple, sizes, strict=True):
        candidates = column if numbers is None else column[numbers]
        hits = candidates == target
        if negatives and block.dtype.kind == "i":
            hits |= candidates == target - size
        (hit_rows,) = np.nonzero(hits)
        numbers = hit_rows if numbers is None else numbers[hit_rows]
    assert numbers is not None
    return numbers
