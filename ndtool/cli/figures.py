"""Statistics and comparisons as text, with bar charts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod

from ndtool.analysis import values
from ndtool.analysis.oracle.distances import has_distances
from ndtool.analysis.records import bytes_of_data
from ndtool.analysis.stats import FrequentSlice, Stats, causes
from ndtool.analysis.verify import Comparison
from ndtool.cli.explanations import ElementNames
from ndtool.cli.wrapping import terminal_columns, wrap_lines
from ndtool.errors import format_columns, format_count, format_size
from ndtool.rules.reductions import REDUCTIONS
from ndtool.runs.calls import OpenCall

DISTANCE_COLUMNS = ("ulps apart", "elements")
_MAX_LISTED_TUPLES = 4
_MAX_BAR_LENGTH = 40  # characters of a bar
COMPONENT_COLUMNS = ("axis", "size", "valid", "lowest", "highest", "negative", "out of bounds")


def statistics_lines(call: OpenCall, stats: Stats) -> list[str]:
    """Return statistics as lines of text; the first line is the number of index tuples."""
    names = ElementNames(call)
    statistics = [format_count(stats.tuples, "index tuple"), *_bounds_lines(names, stats)]
    statistics += [
        f"hint: {guess}" for guess in causes(stats, call.inference.inputs["indices"].dtype)
    ]
    statistics += [f"sorted: {'yes' if stats.sorted else 'no'}", _selection_line(call, stats)]
    return statistics + _duplicate_lines(call, names, stats)


def component_rows(stats: Stats) -> list[tuple[str, ...]]:
    """Return a table row for each component of index tuples: axis, bounds and counts."""
    return [
        (
            str(component.axis),
            str(component.size),
            f"{component.lowest_valid}..{component.size - 1 + max(component.lowest_valid, 0)}"
            if component.size
            else "none",
            "" if component.lowest is None else str(component.lowest),
            "" if component.highest is None else str(component.highest),
            str(component.negative),
            str(component.out_of_bounds),
        )
        for component in stats.components
    ]


def _bounds_lines(names: ElementNames, stats: Stats) -> list[str]:
    if not stats.out_of_bounds:
        return []
    first = ", ".join(
        names.name_of(
            "indices",
            index.position if names.has_integer_indices else (*index.position, index.component),
        )
        + f" = {index.value}"
        for index in stats.first_out_of_bounds
    )
    return [f"out of bounds: {format_count(stats.out_of_bounds, 'tuple')}, first {first}"]


def _selection_line(call: OpenCall, stats: Stats) -> str:
    slice_count, total = prod(stats.slice_grid), bytes_of_data(call)
    page_count = (
        "" if stats.pages_touched is None else f", in {format_count(stats.pages_touched, 'page')}"
    )
    fraction = f" ({100 * stats.distinct / slice_count:.3g}%)" if slice_count else ""
    selected = f"{stats.distinct} of {format_count(slice_count, 'slice')}{fraction}"
    return (
        f"selected: {selected}; {format_size(stats.bytes_touched)} of"
        f" {format_size(total)}{page_count}"
    )


def _duplicate_lines(call: OpenCall, names: ElementNames, stats: Stats) -> list[str]:
    if not stats.duplicated:
        return ["duplicates: none"]
    lines = [f"duplicates: {format_count(stats.duplicated, 'slice')}; {_consequence(call)}"]
    return lines + [_frequency_line(names, frequent) for frequent in stats.most_frequent]


def _frequency_line(names: ElementNames, frequent: FrequentSlice) -> str:
    """Describe how often a slice is selected, and which tuples select it."""
    tuple_names = [names.name_of("indices", position) for position in frequent.tuples]
    if frequent.frequency > _MAX_LISTED_TUPLES:
        tuple_names[_MAX_LISTED_TUPLES - 1 : -1] = ["..."]
    return (
        f"  [{', '.join(map(str, frequent.row))}]: {frequent.frequency} times, by"
        f" {', '.join(tuple_names)}"
    )


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


def histogram(stats: Stats) -> list[str]:
    """Return the histogram as a bar chart, [] if it has one bin."""
    if len(stats.histogram) < 2 or not stats.distinct:
        return []
    last_slice = prod(stats.slice_grid) - 1
    bin_ranges = [
        (first, min(first + stats.bin_width - 1, last_slice))
        for first in range(0, last_slice + 1, stats.bin_width)
    ]
    labels = [f"{first}..{stop}" if first < stop else str(first) for first, stop in bin_ranges]
    return bar_chart(("slices", "tuples"), list(zip(labels, stats.histogram, strict=True)), 1)


def bar_chart(titles: tuple[str, str], counts: Sequence[tuple[str, int]], fd: int) -> list[str]:
    """Return a bar chart as lines of text: a header, and a line for each count."""
    rows = [(label, str(count)) for label, count in counts]
    largest = max(1, *(count for _, count in counts))
    table_lines = format_columns([titles, *rows]).splitlines()
    label_width = max(map(len, table_lines)) + 2
    length = max(1, min(_MAX_BAR_LENGTH, terminal_columns(fd) - label_width))
    character = _bar_character(fd)
    return table_lines[:1] + [
        f"{head:{label_width}}{character * -(-count * length // largest)}".rstrip()
        for head, (_, count) in zip(table_lines[1:], counts, strict=True)
    ]


def _bar_character(fd: int) -> str:
    """Return the character that bars consist of: "#" if the encoding of the stream lacks "━"."""
    try:
        "━".encode(getattr(sys.stdout if fd == 1 else sys.stderr, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "━"


def comparison_text(comparison: Comparison, fd: int) -> str:
    """Return the comparison of an output as text for a standard stream."""
    rows = distance_counts(comparison)
    chart = bar_chart(DISTANCE_COLUMNS, rows, fd) if rows else []
    return wrap_lines([*chart, *difference_lines(comparison)], fd)


def distance_counts(comparison: Comparison) -> list[tuple[str, int]]:
    """Return counts of elements by distance in ulp; [] for types without distances."""
    if comparison.largest is None or not has_distances(comparison.largest.output.dtype):
        return []
    return [("same bits" if name == "0" else name, n) for name, n in comparison.ulps.items()]


def difference_lines(comparison: Comparison) -> list[str]:
    """Return a description of the elements that differ, as lines of text."""
    largest, lines = comparison.largest, list[str]()
    if largest is not None and has_distances(largest.output.dtype):
        distance = "infinitely many" if largest.ulps is None else largest.ulps
        position = f"[{', '.join(map(str, largest.position))}]"
        actual, expected = values.short_text(largest.output), values.short_text(largest.expected)
        lines.append(
            f"largest difference: {position} is {actual}, not {expected}: {distance} ulps apart"
        )
    return lines + comparison.findings
