"""Statistics and comparisons as text, with bar charts, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod

from ndtool.analysis import values
from ndtool.analysis.oracle.distances import has_distances
from ndtool.analysis.records import bytes_of_data
from ndtool.analysis.stats import Frequent, Stats, causes
from ndtool.analysis.verify import Comparison
from ndtool.cli.answers import Names
from ndtool.cli.folding import columns, lines
from ndtool.errors import format_columns, format_count, format_size
from ndtool.rules.reductions import REDUCTIONS
from ndtool.runs.calls import OpenCall

DISTANCE_COLUMNS = ("ulps apart", "elements")
_FEW = 4  # tuples to list
_LONGEST = 40  # characters of a bar
COMPONENT_COLUMNS = ("axis", "size", "valid", "lowest", "highest", "negative", "out of bounds")


def metadata(call: OpenCall, stats: Stats) -> list[str]:
    """Return statistics as lines of text, first the number of index tuples."""
    names = Names(call)
    statistics = [format_count(stats.tuples, "index tuple"), *_out_of_bounds(names, stats)]
    statistics += [
        f"hint: {guess}" for guess in causes(stats, call.inference.inputs["indices"].dtype)
    ]
    statistics += [f"sorted: {'yes' if stats.sorted else 'no'}", _selected(call, stats)]
    return statistics + _duplicates(call, names, stats)


def component_cells(stats: Stats) -> list[tuple[str, ...]]:
    """Return a table row for each component of the tuples."""
    return [
        (
            str(component.axis),
            str(component.size),
            f"{component.lowest_valid}..{component.size - 1}" if component.size else "none",
            "" if component.lowest is None else str(component.lowest),
            "" if component.highest is None else str(component.highest),
            str(component.negative),
            str(component.out_of_bounds),
        )
        for component in stats.components
    ]


def _out_of_bounds(names: Names, stats: Stats) -> list[str]:
    if not stats.out_of_bounds:
        return []
    first = ", ".join(
        names.name_of(
            "indices", index.position if names.plain_indices else (*index.position, index.component)
        )
        + f" = {index.value}"
        for index in stats.first_out_of_bounds
    )
    return [f"out of bounds: {format_count(stats.out_of_bounds, 'tuple')}, first {first}"]


def _selected(call: OpenCall, stats: Stats) -> str:
    runs, total = prod(stats.slice_grid), bytes_of_data(call)
    pages = (
        "" if stats.pages_touched is None else f", in {format_count(stats.pages_touched, 'page')}"
    )
    fraction = f" ({100 * stats.distinct / runs:.3g}%)" if runs else ""
    selected = f"{stats.distinct} of {format_count(runs, 'slice')}{fraction}"
    return (
        f"selected: {selected}; {format_size(stats.bytes_touched)} of {format_size(total)}{pages}"
    )


def _duplicates(call: OpenCall, names: Names, stats: Stats) -> list[str]:
    if not stats.duplicated:
        return ["duplicates: none"]
    lines = [f"duplicates: {format_count(stats.duplicated, 'slice')}; {_consequence(call)}"]
    return lines + [_frequent(names, frequent) for frequent in stats.most_frequent]


def _frequent(names: Names, frequent: Frequent) -> str:
    """Describe how often a slice is selected, and by which tuples."""
    by = [names.name_of("indices", position) for position in frequent.tuples]
    if frequent.frequency > _FEW:
        by[_FEW - 1 : -1] = ["..."]
    return (
        f"  [{', '.join(map(str, frequent.row))}]: {frequent.frequency} times, by {', '.join(by)}"
    )


def _consequence(call: OpenCall) -> str:
    """Describe the consequence of duplicate indices."""
    reduction, dtype = call.inference.attributes.reduction, call.inference.dtype
    if not call.inference.scatters:
        return "they are read more than once"
    if call.inference.requires_distinct:
        return "a run refuses them"
    if call.inference.attributes.duplicates == "first":
        return "the first update is assigned there"
    if reduction == "none":
        return "the last update wins there; onnxruntime does not promise that"
    if REDUCTIONS[reduction].is_rounded(dtype):
        return (
            "their updates are applied in the order of indices; engines with another order round"
            " differently"
        )
    return "the order of their updates does not matter"


def histogram(stats: Stats) -> list[str]:
    """Return the histogram as a bar chart, empty if it has one bin."""
    if len(stats.histogram) < 2 or not stats.distinct:
        return []
    last = prod(stats.slice_grid) - 1
    ends = [
        (first, min(first + stats.bin_width - 1, last))
        for first in range(0, last + 1, stats.bin_width)
    ]
    labels = [f"{first}..{stop}" if first < stop else str(first) for first, stop in ends]
    return bars(("slices", "tuples"), list(zip(labels, stats.histogram, strict=True)), 1)


def bars(titles: tuple[str, str], counts: Sequence[tuple[str, int]], fd: int) -> list[str]:
    """Return a bar chart: a line for each count, under a header."""
    rows = [(label, str(count)) for label, count in counts]
    largest = max(1, *(count for _, count in counts))
    table_lines = format_columns([titles, *rows]).splitlines()
    label_width = max(map(len, table_lines)) + 2
    length = max(1, min(_LONGEST, columns(fd) - label_width))
    bar = _bar(fd)
    return table_lines[:1] + [
        f"{head:{label_width}}{bar * -(-count * length // largest)}".rstrip()
        for head, (_, count) in zip(table_lines[1:], counts, strict=True)
    ]


def _bar(fd: int) -> str:
    """Return the character of bars, ASCII if the stream's encoding lacks the other."""
    try:
        "━".encode(getattr(sys.stdout if fd == 1 else sys.stderr, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "━"


def comparison(compared: Comparison, fd: int) -> str:
    """Return the comparison of an output as text for a standard stream."""
    rows = distances(compared)
    measured = bars(DISTANCE_COLUMNS, rows, fd) if rows else []
    return lines([*measured, *differences(compared)], fd)


def distances(compared: Comparison) -> list[tuple[str, int]]:
    """Return counts of elements by distance; empty for types without distances."""
    if compared.largest is None or not has_distances(compared.largest.output.dtype):
        return []
    return [("same bits" if name == "0" else name, n) for name, n in compared.ulps.items()]


def differences(compared: Comparison) -> list[str]:
    """Return a description of the elements that differ, as lines of text."""
    largest, lines = compared.largest, list[str]()
    if largest is not None and has_distances(largest.output.dtype):
        distance = "infinitely many" if largest.ulps is None else largest.ulps
        position = f"[{', '.join(map(str, largest.position))}]"
        actual, expected = values.short_text(largest.output), values.short_text(largest.expected)
        lines.append(f"largest: {position} is {actual}, not {expected}: {distance} ulps apart")
    return lines + compared.findings
