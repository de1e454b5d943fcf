"""Statistics as words for people and as objects for JSON; numbers as bars."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from ndtool import __version__
from ndtool.analysis import values
from ndtool.analysis.causes import causes
from ndtool.analysis.distances import measurable
from ndtool.analysis.stats import Frequent, Stats
from ndtool.analysis.verify import Comparison, Difference
from ndtool.cli import records
from ndtool.cli.answers import Names
from ndtool.cli.folding import columns, lines
from ndtool.cli.records import sized
from ndtool.errors import printable

if TYPE_CHECKING:
    from ndtool.runs.jobs import Job

DISTANCE_COLUMNS = ("ulps apart", "elements")
_FEW = 4  # tuples that are named
_LONGEST = 40  # characters of a bar
COMPONENT_COLUMNS = ("axis", "size", "valid", "lowest", "highest", "negative", "out of bounds")


def stats_record(job: Job, found: Stats) -> dict[str, Any]:
    """Return statistics for JSON."""
    alone = Names(job).alone
    return {
        "version": __version__,
        "operator": job.inference.operator,
        "tuples": found.tuples,
        "components": [
            {
                "axis": one.axis,
                "size": one.size,
                "lowest": one.lowest,
                "highest": one.highest,
                "negative": one.negative,
                "out_of_bounds": one.out_of_bounds,
            }
            for one in found.components
        ],
        "out_of_bounds": found.out_of_bounds,
        "first_out_of_bounds": [
            {
                "position": one.position,
                "component": None if alone else one.component,
                "value": one.value,
            }
            for one in found.beyond
        ],
        "hints": causes(found, job.inference.inputs["indices"].dtype),
        "sorted": found.ascending,
        "runs": found.runs,
        "distinct": found.distinct,
        "duplicated": found.duplicated,
        "most": [{"row": one.row, "count": one.times, "tuples": one.tuples} for one in found.most],
        "bytes_touched": found.touched,
        "pages_touched": found.pages,
        "bytes_of_data": _bytes_of_data(job),
        "histogram": {"runs": found.width, "tuples": found.histogram},
    }


def _bytes_of_data(job: Job) -> int:
    data = job.inference.inputs["data"]
    return prod(data.shape) * data.dtype.itemsize


def facts(job: Job, found: Stats) -> list[str]:
    """Return what there is to say, a line each: how many tuples there are first."""
    names = Names(job)
    parts = [_counted(found.tuples, "index tuple"), *_beyond(names, found)]
    parts += [f"hint: {guess}" for guess in causes(found, job.inference.inputs["indices"].dtype)]
    parts += [f"sorted: {'yes' if found.ascending else 'no'}", _touched(job, found)]
    return parts + _duplicates(job, names, found)


def component_cells(found: Stats) -> list[tuple[str, ...]]:
    """Return a row for each component of the tuples."""
    return [
        (
            str(one.axis),
            str(one.size),
            f"{one.first}..{one.size - 1}" if one.size else "none",
            "" if one.lowest is None else str(one.lowest),
            "" if one.highest is None else str(one.highest),
            str(one.negative),
            str(one.out_of_bounds),
        )
        for one in found.components
    ]


def _beyond(names: Names, found: Stats) -> list[str]:
    if not found.out_of_bounds:
        return []
    first = ", ".join(
        names.place("indices", one.position if names.alone else (*one.position, one.component))
        + f" = {one.value}"
        for one in found.beyond
    )
    return [f"out of bounds: {_counted(found.out_of_bounds, 'tuple')}, first {first}"]


def _touched(job: Job, found: Stats) -> str:
    runs, total = prod(found.runs), _bytes_of_data(job)
    pages = "" if found.pages is None else f", in {_counted(found.pages, 'page')}"
    named = f"{found.distinct} of {_counted(runs, 'run')}{_percent(found.distinct, runs)}"
    return f"named: {named}; {sized(found.touched)} of {sized(total)}{pages}"


def _percent(count: int, total: int) -> str:
    return f" ({100 * count / total:.3g}%)" if total else ""


def _duplicates(job: Job, names: Names, found: Stats) -> list[str]:
    if not found.duplicated:
        return ["more than once: none"]
    lines = [f"more than once: {_counted(found.duplicated, 'run')}; {_consequence(job)}"]
    return lines + [_frequent(names, one) for one in found.most]


def _frequent(names: Names, one: Frequent) -> str:
    """Say how often a run is named, and by whom."""
    by = [names.place("indices", where) for where in one.tuples]
    if one.times > _FEW:
        by[_FEW - 1 : -1] = ["..."]
    return f"  [{', '.join(map(str, one.row))}]: {one.times} times, by {', '.join(by)}"


def _consequence(job: Job) -> str:
    """Say what follows from runs that are named more than once."""
    reduction, dtype = job.inference.attributes.reduction, job.inference.dtype
    if "updates" not in job.sources:
        return "they are read more than once"
    if reduction == "none":
        return "the last update wins there; onnxruntime does not promise that"
    if reduction in ("add", "mul") and dtype.kind not in "biu":
        return (
            "their updates are applied in the order of indices; engines that do it in another"
            " one round otherwise"
        )
    return "the order of their updates does not matter"


def histogram(found: Stats) -> list[str]:
    """Return how many tuples name each part of all runs, as bars where there is a choice."""
    if len(found.histogram) < 2 or not found.distinct:
        return []
    last = prod(found.runs) - 1
    ends = [
        (first, min(first + found.width - 1, last)) for first in range(0, last + 1, found.width)
    ]
    labels = [f"{first}..{stop}" if first < stop else str(first) for first, stop in ends]
    return bars(("runs", "tuples"), list(zip(labels, found.histogram, strict=True)), 1)


def bars(titles: tuple[str, str], counts: Sequence[tuple[str, int]], fd: int) -> list[str]:
    """Return a line for each count, with a bar as long as it is large."""
    rows = [(label, str(count)) for label, count in counts]
    most = max(1, *(count for _, count in counts))
    heads = records.aligned(titles, rows).splitlines()
    wide = max(map(len, heads)) + 2
    length = max(1, min(_LONGEST, columns(fd) - wide))
    bar = _bar(fd)
    return heads[:1] + [
        f"{head:{wide}}{bar * -(-count * length // most)}".rstrip()
        for head, (_, count) in zip(heads[1:], counts, strict=True)
    ]


def _bar(fd: int) -> str:
    """Return the character of bars: a plain one where the stream has no other."""
    try:
        "━".encode(getattr(sys.stdout if fd == 1 else sys.stderr, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "━"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + "s" * (count != 1)


def comparison_record(compared: Comparison) -> dict[str, Any]:
    """Return how an output compares with what it must be, for JSON."""
    return {
        "equal": compared.total - compared.different,
        "different": compared.different,
        "total": compared.total,
        "first": _difference_record(compared.first),
        "largest": _difference_record(compared.largest),
        "ulps": compared.ulps,
        "examined": compared.examined,
        "lost_updates": compared.lost,
        "doubled_updates": compared.doubled,
        "within": compared.within,
    }


def _difference_record(one: Difference | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {
        "position": one.position,
        "output": values.plain(one.output),
        "expected": values.plain(one.expected),
        "ulps": one.ulps,
    }


def comparison(compared: Comparison, fd: int) -> str:
    """Return in words how far an output is from what it must be, for a standard stream."""
    rows = distances(compared)
    measured = bars(DISTANCE_COLUMNS, rows, fd) if rows else []
    return lines([*measured, *differences(compared)], fd)


def distances(compared: Comparison) -> list[tuple[str, int]]:
    """Return how many elements are how far apart; none where there is no distance."""
    if compared.largest is None or not measurable(compared.largest.output.dtype):
        return []
    return [("same bits" if name == "0" else name, n) for name, n in compared.ulps.items()]


def differences(compared: Comparison) -> list[str]:
    """Return what there is to say of elements that differ, a line each."""
    largest, lines = compared.largest, list[str]()
    if largest is not None and measurable(largest.output.dtype):
        far = "infinitely many" if largest.ulps is None else largest.ulps
        place = f"[{', '.join(map(str, largest.position))}]"
        lines.append(
            f"largest: {place} is {_value(largest.output)}, not {_value(largest.expected)}:"
            f" {far} ulps apart"
        )
    if blamed := (compared.lost or 0) + (compared.doubled or 0):
        lines.append(
            f"{blamed} of {compared.looked_into} are off by exactly one update:"
            f" {compared.lost} lack one, {compared.doubled} met one twice"
        )
    return lines


def _value(one: Any) -> str:
    return printable(values.element(one), 80)
