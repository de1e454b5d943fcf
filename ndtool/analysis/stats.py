"""Statistics of an index array: which slices of data it selects, how often, and bounds.

One pass over the indices, in blocks; another if data have too many slices for a counter each; and
one more to find the tuples that select the most frequent slices.
"""

from contextlib import ExitStack
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import PAGE
from ndtool.analysis import mapping, tuples
from ndtool.analysis.mapping import Position
from ndtool.analysis.oracle.blocks import ProgressCallback, portion, silent
from ndtool.analysis.tally import Numbers, Tally
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

MOST = 5  # most frequent slices, and indices out of bounds, to list
BINS = 16  # of the histogram in text
FINE = 240  # of the histogram in a picture
_MASK = "all are 0 or 1, as many as slices: is it a mask? np.argwhere gives indices"


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
    """An index out of bounds: its tuple's position, its component's number, its value."""

    position: Position
    component: int
    value: int


class Frequent(NamedTuple):
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
    the same in narrower bins. repeats: counts of slices selected once, twice, 3 or 4 times, and so
    on.
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
    most_frequent: list[Frequent]
    bytes_touched: int
    pages_touched: int | None
    histogram: list[int]
    bin_width: int
    fine_histogram: list[int]
    repeats: list[int]


def open_call(request: Request, sources: dict[str, Source] | None = None) -> OpenCall:
    """Open a call whose inputs may be types; updates are of the type and shape it requires.

    sources: open inputs of the caller, by role.
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
    """Return the statistics of a call's indices; counts those out of bounds without raising."""
    index_tuples = tuples.of(call)
    first_pass = _TuplePass(index_tuples)
    for first, block in index_tuples.blocks(portion(progress, 0, 0.4)):
        first_pass.add(first, block)
    tally = first_pass.tally
    if tally.needs_second_pass:
        try:
            for first, block in index_tuples.blocks(portion(progress, 0.4, 0.6)):
                tally.sort(first_pass.rows(first, block))
        except ValueError:  # fewer numbers in the first pass
            raise operands.changed_error(call.inference) from None
    totals = _SliceTotals(call, first_pass.runs)
    for rows, counts in tally.ascending(portion(progress, 0.6, 0.8)):
        totals.add(rows, counts)
    most = totals.most
    searches = [Search(first_pass.first_element(row), False) for row, _ in most]
    if searches:
        index_tuples.search(searches, index_tuples.blocks(portion(progress, 0.8, 1)))
    call.recheck()
    return Stats(
        len(index_tuples.rows),
        first_pass.out_of_bounds,
        first_pass.all_minus_one,
        [column.component for column in first_pass.columns],
        first_pass.first_out_of_bounds,
        first_pass.ascending,
        first_pass.runs,
        totals.distinct,
        totals.duplicated,
        [
            Frequent(
                layouts.unravel_index(row, first_pass.runs),
                count,
                [index_tuples.position(search.target, number) for number in search.stored.tolist()],
            )
            for search, (row, count) in zip(searches, most, strict=True)
        ],
        totals.distinct * totals.nbytes,
        totals.pages if totals.contiguous else None,
        totals.histogram.counts.tolist(),
        totals.histogram.width,
        totals.fine.counts.tolist(),
        np.trim_zeros(totals.repeats, "b").tolist(),
    )


class _TuplePass:
    """The pass that checks each index tuple and counts the slices."""

    def __init__(self, call: Tuples) -> None:
        self._call = call
        plan, negatives = call.plan, call.negatives
        axis = plan.axis if isinstance(plan, ElementsPlan) else len(plan.batch)
        self.columns = [
            _Column(axis + j, size, negatives, call.handling.pad)
            for j, size in enumerate(mapping.indexed_sizes(plan))
        ]
        self.runs = mapping.slice_grid(plan)
        self.tally = Tally(prod(self.runs), len(call.rows))
        self.out_of_bounds = self.all_minus_one = 0
        self.first_out_of_bounds: list[BadIndex] = []
        self.ascending = True
        self._last = 0

    def add(self, first: int, block: Array) -> None:
        """Process the next block of tuples."""
        bad = [column.add(block[:, j]) for j, column in enumerate(self.columns)]
        if any(column_bad is not None for column_bad in bad):
            self._list_out_of_bounds(first, block, bad)
        pads = self._call.handling.pad is not None
        if not pads and all(column.component.negative for column in self.columns):
            self.all_minus_one += int((block == -1).all(axis=1).sum())
        rows = self.rows(first, block)
        if self.ascending and len(rows):
            self.ascending = bool(rows[0] >= self._last and (rows[1:] >= rows[:-1]).all())
            self._last = int(rows[-1])
        self.tally.add(rows)

    def _list_out_of_bounds(self, first: int, block: Array, bad: list[Array | None]) -> None:
        """Count tuples that are out of bounds; list the first ones."""
        none = np.zeros(len(block), np.bool_)
        wrong = np.stack([none if column_bad is None else column_bad for column_bad in bad], axis=1)
        self.out_of_bounds += int(wrong.any(axis=1).sum())
        for number, j in np.argwhere(wrong)[: MOST - len(self.first_out_of_bounds)].tolist():
            position = layouts.unravel_index(first + number, self._call.plan.positions)
            self.first_out_of_bounds.append(BadIndex(position, j, int(block[number, j])))

    def rows(self, first: int, block: Array) -> Numbers:
        """Return the linear indices of the slices that tuples select.

        Applies modes that redirect indices out of bounds; in other modes such tuples select none.
        """
        call, valid = self._call, np.arange(len(block))
        if call.handling.may_alter_tuples:
            valid, block = tuples.selecting(call.plan, block, call.handling)
            return tuples.slice_numbers(call.plan, first, block, valid)
        for j, column in enumerate(self.columns):
            bad = column.bad(block[:, j])
            if bad is not None:
                valid, block = valid[~bad], block[~bad]
        return tuples.slice_numbers(call.plan, first, block, valid)

    def first_element(self, row: int) -> Position:
        """Return the position in data of a slice's first element."""
        plan, at = self._call.plan, layouts.unravel_index(row, self.runs)
        if isinstance(plan, ElementsPlan):
            return at
        groups, skipped = len(plan.index_batch), len(plan.batch) - len(plan.index_batch)
        return (*at[:groups], *(0,) * skipped, *at[groups:])


class _Column:
    """The pass over one component of all tuples."""

    def __init__(self, axis: int, size: int, negatives: bool, pad: int | None) -> None:
        self._pad = pad
        self.component = Component(axis, size, -size if negatives else 0, None, None, 0, 0)

    def add(self, column: Array) -> Array | None:
        """Process the next values; return which are out of bounds, None if none is."""
        so_far, bad = self.component, self.bad(column)
        low, high = int(column.min()), int(column.max())
        self.component = so_far._replace(
            lowest=low if so_far.lowest is None else min(so_far.lowest, low),
            highest=high if so_far.highest is None else max(so_far.highest, high),
            negative=so_far.negative + (int((column < 0).sum()) if low < 0 else 0),
            out_of_bounds=so_far.out_of_bounds + (0 if bad is None else int(bad.sum())),
        )
        return bad

    def bad(self, column: Array) -> Array | None:
        """Return which values are out of bounds, None if none is."""
        first, size = self.component.lowest_valid, self.component.size
        if not len(column) or (column.min() >= first and column.max() < size):
            return None
        bad: Array = (column < first) | (column >= size)
        return bad if self._pad is None else bad & (column != self._pad)


class _SliceTotals:
    """Totals over the selected slices, in ascending order, with the count of each."""

    def __init__(self, call: OpenCall, runs: Shape) -> None:
        plan, metadata = call.inference.plan, call.sources["data"].metadata
        self.nbytes = call.inference.dtype.itemsize  # of a slice
        repeated = 1
        if not isinstance(plan, ElementsPlan):
            repeated = plan.batch_repeats
            self.nbytes *= plan.width * repeated
        self.contiguous = (
            metadata.order == "C" and metadata.block_shape == metadata.shape and repeated == 1
        )
        self.distinct = self.duplicated = self.pages = 0
        self.most: list[tuple[int, int]] = []
        self.histogram, self.fine = (_Histogram(prod(runs), bins) for bins in (BINS, FINE))
        self.repeats = np.zeros(64, np.int64)  # by the count's binary logarithm, rounded up
        self._page = -1  # the last page counted

    def add(self, rows: Numbers, counts: Numbers) -> None:
        """Process the next slices and their counts."""
        self.distinct += len(rows)
        self.duplicated += int((counts > 1).sum())
        self.histogram.add(rows, counts)
        self.fine.add(rows, counts)
        np.add.at(self.repeats, np.frexp(counts - 1.0)[1], 1)
        least = self.most[-1][1] if len(self.most) == MOST else 1
        (more_frequent,) = np.nonzero(counts > least)
        frequent = more_frequent[np.lexsort((rows[more_frequent], -counts[more_frequent]))[:MOST]]
        candidates = self.most + list(
            zip(rows[frequent].tolist(), counts[frequent].tolist(), strict=True)
        )
        self.most = sorted(candidates, key=lambda candidate: (-candidate[1], candidate[0]))[:MOST]
        if self.contiguous and self.nbytes and len(rows):
            first, last = rows * self.nbytes // PAGE, ((rows + 1) * self.nbytes - 1) // PAGE
            before = np.concatenate([[self._page], last[:-1]])
            self.pages += int((last - np.maximum(first, before + 1) + 1).sum())
            self._page = int(last[-1])


class _Histogram:
    """Counts of tuples by equal ranges of slices, at most `bins` of them."""

    def __init__(self, runs: int, bins: int) -> None:
        self.width = -(-runs // bins) or 1
        self.counts = np.zeros(-(-runs // self.width), np.int64)

    def add(self, rows: Numbers, counts: Numbers) -> None:
        """Add slices and their counts."""
        np.add.at(self.counts, rows // self.width, counts)


def causes(statistics: Stats, dtype: Dtype) -> list[str]:
    """Return likely causes of suspicious indices and of indices out of bounds."""
    sizes = [component.size for component in statistics.components]
    if not statistics.first_out_of_bounds:
        return [_MASK] if _is_mask(statistics) else _padding(statistics)
    values = [(index.value, sizes[index.component]) for index in statistics.first_out_of_bounds]
    guesses, (value, _) = mistakes.likely_causes(values, dtype), values[0]
    if all(value == size for value, size in values):
        lowest = min(c.lowest for c in statistics.components if c.lowest is not None)
        base = "are they 1-based?" if lowest > 0 else "is it a placeholder for a missing index?"
        guesses.append(f"{value} equals the size of the axis: {base}")
    if len(sizes) > 1 and all(
        -size <= c.lowest and c.highest < size
        for c, size in zip(statistics.components, reversed(sizes), strict=True)
        if c.lowest is not None and c.highest is not None
    ):
        guesses.append("all are in bounds if the components are reversed: is their order wrong?")
    return guesses


def _is_mask(statistics: Stats) -> bool:
    """Whether indices are a 0 or 1 for each slice along an axis longer than 2."""
    return len(statistics.components) == 1 and all(
        component.lowest == 0 and component.highest == 1 and statistics.tuples == component.size > 2
        for component in statistics.components
    )


def _padding(statistics: Stats) -> list[str]:
    """Return the hint that -1 is padding, [] unless it is the lowest value of all components."""
    if any(component.lowest != -1 for component in statistics.components):
        return []
    padding = mistakes.padding_warning(
        statistics.all_minus_one, statistics.tuples, components=len(statistics.components)
    )
    return [padding] if padding else []
