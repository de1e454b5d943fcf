"""Statistics of an index array: the slices of data that it selects, their counts, and bounds.

One pass reads the indices, in blocks; a second one if data have too many slices for a counter each;
a last one searches for the tuples that select the most frequent slices.
"""

from contextlib import ExitStack
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import PAGE
from ndtool.analysis import tuples
from ndtool.analysis.mapping import Position
from ndtool.analysis.oracle.blocks import ProgressCallback, portion, silent
from ndtool.analysis.tally import Int64Array, Tally
from ndtool.analysis.tuples import Search, Tuples
from ndtool.analysis.typed import TypeSource, open_typed_call, type_source
from ndtool.arrays.source import ArrayMetadata, Source
from ndtool.engine import layouts
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.rules import mistakes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import LOWERED, OPERATORS
from ndtool.rules.plans import ElementsPlan, Shape
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request

Array = NDArray[Any]

MAX_LISTED = 5  # listed slices, and listed indices out of bounds
TEXT_BINS = 16  # bins of the histogram in text
PICTURE_BINS = 240  # bins of the histogram in a picture
_MASK_HINT = (
    "all indices are 0 or 1, and there are as many as slices: is it a mask?"
    " np.argwhere gives indices"
)


class Component(NamedTuple):
    """The range of one component of all tuples.

    axis, size: those of data. lowest_valid: the lowest valid index. lowest, highest: the extremes,
    None without tuples. negative, out_of_bounds: counts of indices.
    """

    axis: int
    size: int
    lowest_valid: int
    lowest: int | None
    highest: int | None
    negative: int
    out_of_bounds: int


class BadIndex(NamedTuple):
    """An index out of bounds: the position of its tuple, its component from 0, its value."""

    position: Position
    component: int
    value: int


class FrequentSlice(NamedTuple):
    """A slice of data selected more than once. tuples: the first and last tuples that select it."""

    row: Position
    frequency: int
    tuples: list[Position]


class Stats(NamedTuple):
    """The statistics of a call's indices; tuples out of bounds select no slice.

    tuples, out_of_bounds: counts of tuples. all_minus_one: the count of tuples whose components are
    all -1, as in padding. sorted: whether slices are selected in ascending order. slice_grid: the
    shape of all slices that tuples can select. distinct, duplicated: counts of slices selected at
    all, and more than once. most_frequent: the most frequent slices. pages_touched: None if slices
    are not contiguous in order. histogram: counts of tuples by `bin_width` slices. fine_histogram:
    the same in narrower bins. selection_histogram: counts of slices selected once, twice, 3 or 4
    times, and so on.
    """

    tuples: int
    out_of_bounds: int
    all_minus_one: int
    components: list[Component]
    first_out_of_bounds: list[BadIndex]
    sorted: bool
    slice_grid: Shape
    distinct: int
    duplicated: int
    most_frequent: list[FrequentSlice]
    bytes_touched: int
    pages_touched: int | None
    histogram: list[int]
    bin_width: int
    fine_histogram: list[int]
    selection_histogram: list[int]


def open_call(request: Request, sources: dict[str, Source] | None = None) -> OpenCall:
    """Open a call for statistics: data may be a type such as float32[3,4].

    The updates of a scatter are a type, of the dtype and shape that the call requires. sources:
    open inputs of the caller, by role.
    """
    if request.operator in LOWERED:
        return open_typed_call(request, sources)
    streams, opened_sources = Streams(), dict(sources or {})
    with ExitStack() as stack:
        for role in ("data", "indices"):
            if role in opened_sources:
                continue
            name = request.arguments[role]
            source: Source = type_source(name) or locators.open_source(
                name, streams, literals=role == "indices"
            )
            stack.callback(source.close)
            opened_sources[role] = source
        stack.pop_all()  # the call closes them
    if OPERATORS[request.operator].scatters:
        data, indices = opened_sources["data"].metadata, opened_sources["indices"].metadata
        shape = shapes.updates_shape(
            request.operator, data.shape, indices.shape, request.attributes
        )
        opened_sources["updates"] = TypeSource(
            "updates", ArrayMetadata(data.dtype, shape, "C", shape, {})
        )
    return OpenCall(request, opened_sources)


def stats(call: OpenCall, progress: ProgressCallback = silent) -> Stats:
    """Return the statistics of a call's indices; indices out of bounds are counted."""
    index_tuples = tuples.load_tuples(call)
    first_pass = _TuplePass(index_tuples)
    for first, block in index_tuples.blocks(portion(progress, 0, 0.4)):
        first_pass.add(first, block)
    tally = first_pass.tally
    if tally.needs_second_pass:
        try:
            for first, block in index_tuples.blocks(portion(progress, 0.4, 0.6)):
                tally.sort(first_pass.rows(first, block))
        except ValueError:  # the first pass counted fewer slices
            raise operands.changed_error(call.inference) from None
    totals = _SliceTotals(call, first_pass.slice_grid)
    for rows, counts in tally.iterate_counts(portion(progress, 0.6, 0.8)):
        totals.add(rows, counts)
    most_frequent = totals.most_frequent
    searches = [Search(first_pass.first_element(row), False) for row, _ in most_frequent]
    if searches:
        index_tuples.search(searches, index_tuples.blocks(portion(progress, 0.8, 1)))
    call.require_unchanged()
    return Stats(
        len(index_tuples.rows),
        first_pass.out_of_bounds,
        first_pass.all_minus_one,
        [column.component for column in first_pass.columns],
        first_pass.first_out_of_bounds,
        first_pass.iterate_counts,
        first_pass.slice_grid,
        totals.distinct,
        totals.duplicated,
        [
            FrequentSlice(
                layouts.unravel_index(row, first_pass.slice_grid),
                count,
                [
                    index_tuples.position(search.target, linear_index)
                    for linear_index in search.stored.tolist()
                ],
            )
            for search, (row, count) in zip(searches, most_frequent, strict=True)
        ],
        totals.distinct * totals.slice_nbytes,
        totals.pages if totals.contiguous else None,
        totals.histogram.counts.tolist(),
        totals.histogram.width,
        totals.fine_histogram.counts.tolist(),
        np.trim_zeros(totals.selection_histogram, "b").tolist(),
    )


class _TuplePass:
    """The pass that checks each index tuple and counts the slices."""

    def __init__(self, call: Tuples) -> None:
        self._call = call
        plan, attributes = call.plan, call.plan.attributes
        self.columns = [
            _Column(plan.axis_of(j), size, attributes.negatives, attributes.pad)
            for j, size in enumerate(plan.sizes)
        ]
        self.slice_grid = plan.slice_grid
        self.tally = Tally(prod(self.slice_grid), len(call.rows))
        self.out_of_bounds = self.all_minus_one = 0
        self.first_out_of_bounds: list[BadIndex] = []
        self.iterate_counts = True
        self._last = 0

    def add(self, first: int, block: Array) -> None:
        """Process the next block of tuples."""
        masks = [column.add(block[:, j]) for j, column in enumerate(self.columns)]
        if any(mask is not None for mask in masks):
            self._list_out_of_bounds(first, block, masks)
        pads = self._call.plan.attributes.pad is not None
        if not pads and all(column.component.negative for column in self.columns):
            self.all_minus_one += int((block == -1).all(axis=1).sum())
        rows = self.rows(first, block)
        if self.iterate_counts and len(rows):
            self.iterate_counts = bool(rows[0] >= self._last and (rows[1:] >= rows[:-1]).all())
            self._last = int(rows[-1])
        self.tally.add(rows)

    def _list_out_of_bounds(self, first: int, block: Array, masks: list[Array | None]) -> None:
        """Count tuples that are out of bounds; list the first ones."""
        all_valid = np.zeros(len(block), np.bool_)
        is_wrong = np.stack([all_valid if mask is None else mask for mask in masks], axis=1)
        self.out_of_bounds += int(is_wrong.any(axis=1).sum())
        for row, j in np.argwhere(is_wrong)[: MAX_LISTED - len(self.first_out_of_bounds)].tolist():
            position = layouts.unravel_index(first + row, self._call.plan.positions)
            self.first_out_of_bounds.append(BadIndex(position, j, int(block[row, j])))

    def rows(self, first: int, block: Array) -> Int64Array:
        """Return the linear indices of the slices that the tuples of a block select.

        Modes may redirect indices out of bounds; in other modes such tuples select no slice.
        """
        valid, normalized = tuples.select_valid(self._call.plan, block)
        return tuples.slice_indices(self._call.plan, first, normalized, valid)

    def first_element(self, row: int) -> Position:
        """Return the position in data of a slice's first element."""
        plan, coordinates = self._call.plan, layouts.unravel_index(row, self.slice_grid)
        if isinstance(plan, ElementsPlan):
            return coordinates
        groups, skipped = len(plan.index_batch), len(plan.batch) - len(plan.index_batch)
        return (*coordinates[:groups], *(0,) * skipped, *coordinates[groups:])


class _Column:
    """The pass over one component of all tuples."""

    def __init__(self, axis: int, size: int, negatives: bool, pad: int | None) -> None:
        self._pad = pad
        self.component = Component(axis, size, -size if negatives else 0, None, None, 0, 0)

    def add(self, column: Array) -> Array | None:
        """Process the next indices; return a mask of those out of bounds, None if none is."""
        previous, mask = self.component, self.out_of_bounds_mask(column)
        lowest, highest = int(column.min()), int(column.max())
        self.component = previous._replace(
            lowest=lowest if previous.lowest is None else min(previous.lowest, lowest),
            highest=highest if previous.highest is None else max(previous.highest, highest),
            negative=previous.negative + (int((column < 0).sum()) if lowest < 0 else 0),
            out_of_bounds=previous.out_of_bounds + (0 if mask is None else int(mask.sum())),
        )
        return mask

    def out_of_bounds_mask(self, column: Array) -> Array | None:
        """Return a mask of the indices that are out of bounds, None if none is."""
        lowest_valid, size = self.component.lowest_valid, self.component.size
        if not len(column) or (column.min() >= lowest_valid and column.max() < size):
            return None
        mask: Array = (column < lowest_valid) | (column >= size)
        return mask if self._pad is None else mask & (column != self._pad)


class _SliceTotals:
    """Totals over the selected slices, in ascending order, with the count of each."""

    def __init__(self, call: OpenCall, slice_grid: Shape) -> None:
        plan, metadata = call.inference.plan, call.sources["data"].metadata
        self.slice_nbytes = call.inference.dtype.itemsize  # of a slice
        batch_repeats = plan.batch_repeats
        self.slice_nbytes *= plan.width * batch_repeats
        self.contiguous = (
            metadata.order == "C" and metadata.block_shape == metadata.shape and batch_repeats == 1
        )
        self.distinct = self.duplicated = self.pages = 0
        self.most_frequent: list[tuple[int, int]] = []
        self.histogram, self.fine_histogram = (
            _Histogram(prod(slice_grid), bins) for bins in (TEXT_BINS, PICTURE_BINS)
        )
        self.selection_histogram = np.zeros(64, np.int64)  # by the rounded logarithm
        self._page = -1  # the last page that was counted

    def add(self, rows: Int64Array, counts: Int64Array) -> None:
        """Process the next slices and their counts."""
        self.distinct += len(rows)
        self.duplicated += int((counts > 1).sum())
        self.histogram.add(rows, counts)
        self.fine_histogram.add(rows, counts)
        np.add.at(self.selection_histogram, np.frexp(counts - 1.0)[1], 1)
        threshold = self.most_frequent[-1][1] if len(self.most_frequent) == MAX_LISTED else 1
        (more_frequent,) = np.nonzero(counts > threshold)
        frequent = more_frequent[
            np.lexsort((rows[more_frequent], -counts[more_frequent]))[:MAX_LISTED]
        ]
        candidates = self.most_frequent + list(
            zip(rows[frequent].tolist(), counts[frequent].tolist(), strict=True)
        )
        self.most_frequent = sorted(
            candidates, key=lambda candidate: (-candidate[1], candidate[0])
        )[:MAX_LISTED]
        if self.contiguous and self.slice_nbytes and len(rows):
            first, last = (
                rows * self.slice_nbytes // PAGE,
                ((rows + 1) * self.slice_nbytes - 1) // PAGE,
            )
            previous_pages = np.concatenate([[self._page], last[:-1]])
            self.pages += int((last - np.maximum(first, previous_pages + 1) + 1).sum())
            self._page = int(last[-1])


class _Histogram:
    """Counts of tuples in at most `bins` equal ranges of slices."""

    def __init__(self, slice_count: int, bins: int) -> None:
        self.width = -(-slice_count // bins) or 1
        self.counts = np.zeros(-(-slice_count // self.width), np.int64)

    def add(self, rows: Int64Array, counts: Int64Array) -> None:
        """Add slices and their counts."""
        np.add.at(self.counts, rows // self.width, counts)


def causes(statistics: Stats, dtype: Dtype) -> list[str]:
    """Return likely causes of suspicious indices and of indices out of bounds."""
    sizes = [component.size for component in statistics.components]
    if not statistics.first_out_of_bounds:
        return [_MASK_HINT] if _is_mask(statistics) else _padding(statistics)
    values = [(index.value, sizes[index.component]) for index in statistics.first_out_of_bounds]
    hints, (value, _) = mistakes.likely_causes(values, dtype), values[0]
    if all(value == size for value, size in values):
        lowest = min(
            component.lowest for component in statistics.components if component.lowest is not None
        )
        question = "are they 1-based?" if lowest > 0 else "is it a placeholder for a missing index?"
        hints.append(f"{value} equals the size of the axis: {question}")
    if len(sizes) > 1 and all(
        -size <= component.lowest and component.highest < size
        for component, size in zip(statistics.components, reversed(sizes), strict=True)
        if component.lowest is not None and component.highest is not None
    ):
        hints.append("all are in bounds if the components are reversed: is their order wrong?")
    return hints


def _is_mask(statistics: Stats) -> bool:
    """Whether there is an index 0 or 1 for each slice along an axis longer than 2."""
    return len(statistics.components) == 1 and all(
        component.lowest == 0 and component.highest == 1 and statistics.tuples == component.size > 2
        for component in statistics.components
    )


def _padding(statistics: Stats) -> list[str]:
    """Return the hint that -1 is padding, if it is the lowest value of every component."""
    if any(component.lowest != -1 for component in statistics.components):
        return []
    padding = mistakes.padding_warning(
        statistics.all_minus_one, statistics.tuples, components=len(statistics.components)
    )
    return [padding] if padding else []
