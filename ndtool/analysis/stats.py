"""Statistics of an index array: the slices of data that it selects, their counts, and bounds.

One pass reads the indices, in blocks; another one searches for the tuples that select the most
frequent slices.
"""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import PAGE
from ndtool.analysis import tuples
from ndtool.analysis.answers import HIDDEN, Answer, Value
from ndtool.analysis.infer import inferred
from ndtool.analysis.names import ElementNames
from ndtool.analysis.oracle.blocks import ProgressCallback, portion, silent
from ndtool.analysis.running import rounding_advice
from ndtool.analysis.tally import Int64Array, Tally
from ndtool.analysis.tuples import Ends, Tuples
from ndtool.analysis.typed import TypeSource, header_source, open_typed_call
from ndtool.arrays.source import ArrayMetadata, Source
from ndtool.engine import layouts
from ndtool.errors import format_count, format_size, option
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.notebook import Table
from ndtool.rules import mistakes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import LOWERED, OPERATORS
from ndtool.rules.plans import Position, Shape
from ndtool.rules.reductions import REDUCTIONS
from ndtool.runs.calls import OpenCall, Request

Array = NDArray[Any]

MAX_LISTED = 5  # listed slices, and listed indices out of bounds
BINS = 16  # bins of the histogram
_MASK_HINT = (
    "all indices are 0 or 1, and there are as many as slices: is it a mask?"
    " np.argwhere gives indices"
)


COMPONENT_COLUMNS = ("axis", "size", "valid", "lowest", "highest", "negative", "out of bounds")
_MAX_NAMED_TUPLES = 4  # of a frequent slice, in a line


@dataclass(frozen=True, slots=True)
class Component(Value):
    """The range of one component of all tuples.

    axis, size: those of data. lowest, highest: the extremes, None without tuples. negative,
    out_of_bounds: counts of indices. valid: the lowest and the highest valid index.
    """

    axis: int
    size: int
    lowest: int | None
    highest: int | None
    negative: int
    out_of_bounds: int
    valid: tuple[int, int] = field(metadata=HIDDEN)

    @property
    def row(self) -> tuple[str, ...]:
        """The row of a table with COMPONENT_COLUMNS."""
        valid = "..".join(map(str, self.valid)) if self.size else "none"
        bounds = ("" if value is None else str(value) for value in (self.lowest, self.highest))
        counts = str(self.negative), str(self.out_of_bounds)
        return str(self.axis), str(self.size), valid, *bounds, *counts


@dataclass(frozen=True, slots=True)
class BadIndex(Value):
    """An index out of bounds: the position of its tuple, its component, its value.

    component: from 0, None if an index is an integer, not a tuple.
    """

    position: Position
    component: int | None
    value: int

    @property
    def place(self) -> Position:
        """The position of the index in indices."""
        return self.position if self.component is None else (*self.position, self.component)


@dataclass(frozen=True, slots=True)
class FrequentSlice(Value):
    """A slice of data selected more than once. tuples: the first and last tuples that select it."""

    row: Position
    count: int
    tuples: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Histogram(Value):
    """A histogram of slices. width: the slices of a bin. tuples: the index tuples of each bin."""

    width: int
    tuples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stats(Answer):
    """The statistics of a call's indices; tuples out of bounds select no slice.

    tuples, out_of_bounds: counts of tuples. first_out_of_bounds: the first indices out of bounds.
    hints: likely causes of suspicious indices. sorted: whether slices are selected in ascending
    order. slices: the shape of all slices that tuples can select. distinct, duplicated: counts of
    slices selected at all, and more than once. most: the most frequent slices. pages_touched: None
    if slices are not contiguous in order. title: the call as text. remarks: the statistics as
    sentences.
    """

    operator: str
    tuples: int
    components: tuple[Component, ...]
    out_of_bounds: int
    first_out_of_bounds: tuple[BadIndex, ...]
    hints: tuple[str, ...]
    sorted: bool
    slices: Position
    distinct: int
    duplicated: int
    most: tuple[FrequentSlice, ...]
    bytes_touched: int
    pages_touched: int | None
    bytes_of_data: int
    histogram: Histogram
    title: str = field(metadata=HIDDEN)
    remarks: tuple[str, ...] = field(metadata=HIDDEN)

    def tables(self) -> list[Table]:
        """Return the ranges of components, the statistics, and the histogram if it has bins."""
        rows = [component.row for component in self.components]
        count = format_count(self.tuples, "index tuple")
        columns = COMPONENT_COLUMNS if rows else ()
        tables = [Table(f"{self.title}\n{count}", columns, rows, self.remarks)]
        bins, width = self.histogram.tuples, self.histogram.width
        if len(bins) > 1 and self.distinct:
            last = prod(self.slices) - 1
            ranges = [(n * width, min((n + 1) * width - 1, last)) for n in range(len(bins))]
            labels = [f"{first}..{stop}" if first < stop else str(first) for first, stop in ranges]
            counts = list(zip(labels, map(str, bins), strict=True))
            tables.append(Table("", ("slices", "tuples"), counts, bars=True))
        return tables


def open_call(request: Request, sources: dict[str, Source] | None = None) -> OpenCall:
    """Open a call for statistics: data may be a type such as float32[3,4].

    The updates of a scatter are a type, of the dtype and shape that the call requires. sources:
    open inputs of the caller, by role.
    """
    if request.operator in LOWERED:
        return open_typed_call(request, sources)
    streams, opened_sources = Streams(), dict(sources or {})
    if "data" not in opened_sources:
        opened_sources["data"] = header_source(request.arguments["data"], streams)
    if "indices" not in opened_sources:
        name = request.arguments["indices"]
        opened_sources["indices"] = locators.open_role("indices", name, streams, None)
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
    for first, block in index_tuples.blocks(portion(progress, 0, 0.5)):
        first_pass.add(first, block)
    totals = _SliceTotals(call, first_pass.slice_grid)
    for rows, counts in first_pass.tally.iterate_counts(portion(progress, 0.5, 0.8)):
        totals.add(rows, counts)
    most_frequent = totals.most_frequent
    ends = [Ends() for _ in most_frequent]
    if ends:
        for first, block in index_tuples.blocks(portion(progress, 0.8, 1)):
            numbers, rows = tuples.select(index_tuples.plan, first, block)
            for end, (row, _) in zip(ends, most_frequent, strict=True):
                end.add(numbers[rows == row])
    call.require_unchanged()
    names = ElementNames.of(call)
    data, indices = (call.inference.inputs[role] for role in ("data", "indices"))
    indices = call.reported.inputs.get("indices", indices)  # the type as stored
    components = tuple(first_pass.components)
    count, out_of_bounds = len(index_tuples.rows), first_pass.first_out_of_bounds
    hints = _causes(components, out_of_bounds, count, indices.dtype, first_pass.all_minus_one)
    if names.plan.has_scalar_indices:
        out_of_bounds = [replace(index, component=None) for index in out_of_bounds]
    result = Stats(
        operator=call.reported.operator,
        tuples=count,
        components=components,
        out_of_bounds=first_pass.out_of_bounds,
        first_out_of_bounds=tuple(out_of_bounds),
        hints=tuple(hints),
        sorted=first_pass.is_sorted,
        slices=tuple(first_pass.slice_grid),
        distinct=totals.distinct,
        duplicated=totals.duplicated,
        most=tuple(
            FrequentSlice(
                layouts.unravel_index(row, first_pass.slice_grid),
                count,
                tuple(layouts.unravel_index(n, index_tuples.plan.positions) for n in end.stored),
            )
            for end, (row, count) in zip(ends, most_frequent, strict=True)
        ),
        bytes_touched=totals.distinct * totals.slice_nbytes,
        pages_touched=totals.pages if totals.contiguous else None,
        bytes_of_data=prod(data.shape) * data.dtype.itemsize,
        histogram=Histogram(totals.bin_width, tuple(totals.bins.tolist())),
        title=inferred(call.reported).title,
        remarks=(),
    )
    return replace(result, remarks=tuple(_remarks(call, names, result)))


def _remarks(call: OpenCall, names: ElementNames, stats: Stats) -> list[str]:
    """Return statistics as sentences."""
    lines = []
    if stats.out_of_bounds:
        first = ", ".join(
            names.name_of("indices", index.place) + f" = {index.value}"
            for index in stats.first_out_of_bounds
        )
        lines.append(f"out of bounds: {format_count(stats.out_of_bounds, 'tuple')}, first {first}")
    lines += [f"hint: {guess}" for guess in stats.hints]
    lines.append(f"sorted: {'yes' if stats.sorted else 'no'}")
    total = prod(stats.slices)
    fraction = f" ({100 * stats.distinct / total:.3g}%)" if total else ""
    pages = (
        "" if stats.pages_touched is None else f", in {format_count(stats.pages_touched, 'page')}"
    )
    lines.append(
        f"selected: {stats.distinct} of {format_count(total, 'slice')}{fraction};"
        f" {format_size(stats.bytes_touched)} of {format_size(stats.bytes_of_data)}{pages}"
    )
    if not stats.duplicated:
        return [*lines, "duplicates: none"]
    lines.append(f"duplicates: {format_count(stats.duplicated, 'slice')}; {_consequence(call)}")
    for frequent in stats.most:
        tuple_names = [names.name_of("indices", position) for position in frequent.tuples]
        if frequent.count > _MAX_NAMED_TUPLES:
            tuple_names[_MAX_NAMED_TUPLES - 1 : -1] = ["..."]
        row = f"[{', '.join(map(str, frequent.row))}]"
        lines.append(f"  {row}: {frequent.count} times, by {', '.join(tuple_names)}")
    return [*lines, *rounding_advice(call)]


def _consequence(call: OpenCall) -> str:
    """Describe the consequence of duplicate indices."""
    reduction, dtype = call.inference.attributes.reduction, call.inference.dtype
    if not call.inference.scatters:
        return "they are read more than once"
    if call.inference.requires_distinct:
        return "they are an error in a run"
    if call.inference.attributes.duplicates == "first":
        return "the first update is assigned"
    if reduction == "none":
        return "the last update is assigned; onnxruntime does not guarantee this"
    if REDUCTIONS[reduction].is_rounded(dtype):
        return "updates are applied in row-major order of indices; another order rounds differently"
    return "the order of their updates does not matter"


class _TuplePass:
    """The pass that checks each index tuple and counts the slices."""

    def __init__(self, call: Tuples) -> None:
        self._call = call
        plan = call.plan
        self.components = [
            Component(plan.axis_of(j), size, None, None, 0, 0, plan.attributes.valid_indices(size))
            for j, size in enumerate(plan.sizes)
        ]
        self.slice_grid = plan.slice_grid
        self.tally = Tally(prod(self.slice_grid), len(call.rows), call.call.request.memory)
        self.out_of_bounds = self.all_minus_one = 0
        self.first_out_of_bounds: list[BadIndex] = []
        self.is_sorted = True
        self._last = 0

    def add(self, first: int, block: Array) -> None:
        """Process the next block of tuples."""
        is_wrong, pad = np.zeros(block.shape, np.bool_), self._call.plan.attributes.pad
        for j, previous in enumerate(self.components):
            column, (first_valid, last_valid) = block[:, j], previous.valid
            lowest, highest = int(column.min()), int(column.max())
            if lowest < first_valid or highest > last_valid:
                is_wrong[:, j] = (column < first_valid) | (column > last_valid)
                if pad is not None:
                    is_wrong[:, j] &= column != pad
            self.components[j] = replace(
                previous,
                lowest=lowest if previous.lowest is None else min(previous.lowest, lowest),
                highest=highest if previous.highest is None else max(previous.highest, highest),
                negative=previous.negative + (int((column < 0).sum()) if lowest < 0 else 0),
                out_of_bounds=previous.out_of_bounds + int(is_wrong[:, j].sum()),
            )
        if is_wrong.any():
            self.out_of_bounds += int(is_wrong.any(axis=1).sum())
            free = MAX_LISTED - len(self.first_out_of_bounds)
            for row, j in np.argwhere(is_wrong)[:free].tolist():
                position = layouts.unravel_index(first + row, self._call.plan.positions)
                self.first_out_of_bounds.append(BadIndex(position, j, int(block[row, j])))
        if pad is None and all(component.negative for component in self.components):
            self.all_minus_one += int((block == -1).all(axis=1).sum())
        _, rows = tuples.select(self._call.plan, first, block)
        if self.is_sorted and len(rows):
            self.is_sorted = bool(rows[0] >= self._last and (rows[1:] >= rows[:-1]).all())
            self._last = int(rows[-1])
        self.tally.add(rows)


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
        self.bin_width = -(-prod(slice_grid) // BINS) or 1
        self.bins = np.zeros(-(-prod(slice_grid) // self.bin_width), np.int64)
        self._page = -1  # the last page that was counted

    def add(self, rows: Int64Array, counts: Int64Array) -> None:
        """Process the next slices and their counts."""
        self.distinct += len(rows)
        self.duplicated += int((counts > 1).sum())
        np.add.at(self.bins, rows // self.bin_width, counts)
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


def _causes(
    components: tuple[Component, ...],
    out_of_bounds: list[BadIndex],
    tuples: int,
    dtype: Dtype,
    all_minus_one: int,
) -> list[str]:
    """Return likely causes of suspicious indices and of indices out of bounds.

    tuples: how many there are; all_minus_one: of these, those whose components are all -1.
    """
    lowest = [component.lowest for component in components if component.lowest is not None]
    if out_of_bounds:
        values = [(index.value, components[index.component or 0].size) for index in out_of_bounds]
        hints, (value, _) = mistakes.likely_causes(values, dtype), values[0]
        if all(value == size for value, size in values):
            question = f"are they 1-based? Then: {option('index_base', 1)}"
            if min(lowest) <= 0:
                question = "is it a placeholder for a missing index?"
            hints.append(f"{value} equals the size of the axis: {question}")
        return hints
    for only in components[: len(components) == 1]:  # 0 or 1 for each slice of a longer axis
        if (only.lowest, only.highest) == (0, 1) and tuples == only.size > 2:
            return [_MASK_HINT]
    if not components or any(component.lowest != -1 for component in components):
        return []
    padding = mistakes.padding_warning(all_minus_one, tuples, components=len(components))
    return [padding] if padding else []
