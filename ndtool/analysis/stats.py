"""What an index array does: where in data it goes, how often, and what of it is out of bounds.

Indices are gone through in blocks: once, where data have few runs, and once more to find who names
the most frequent ones; once more, too, where runs are too many to have a counter each.
"""

from contextlib import ExitStack
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import places, tuples
from ndtool.analysis.places import Position
from ndtool.analysis.reference import Tick, part, silent
from ndtool.analysis.tally import Numbers, Tally
from ndtool.analysis.tuples import Hunt, Tuples
from ndtool.analysis.typed import Typed, typed
from ndtool.arrays import names
from ndtool.arrays.source import Facts, Source
from ndtool.arrays.streams import Streams
from ndtool.engine import layouts
from ndtool.rules.operators import OPERATORS
from ndtool.rules.shapes import ElementsPlan, Shape
from ndtool.runs.jobs import Job, Request

Array = NDArray[Any]

MOST = 5  # of the runs that are named most often, and of the indices that are out of bounds
BINS = 16  # of the histogram
FINE = 240  # of the one that a picture shows
PAGE = 4096  # bytes that a system reads and keeps together


class Component(NamedTuple):
    """What one component of all tuples is; axis, size: of data. lowest, highest: None without any.

    negative, out_of_bounds: how many; first: the lowest that is valid.
    """

    axis: int
    size: int
    first: int
    lowest: int | None
    highest: int | None
    negative: int
    out_of_bounds: int


class Beyond(NamedTuple):
    """An index out of bounds: the position of its tuple, its number there, its value."""

    position: Position
    component: int
    value: int


class Frequent(NamedTuple):
    """A run that is named more than once; tuples: the first and last that name it."""

    row: Position
    times: int
    tuples: list[Position]


class Stats(NamedTuple):
    """All of it; only tuples within bounds name runs.

    tuples, out_of_bounds: how many. beyond: the first of the latter. ascending: whether no tuple
    names a run before that of the one before. runs: the shape of all that there are. distinct,
    duplicated: how many are named, and more than once. most: those that are named most often.
    touched: bytes of data. pages: how many those are in, None where runs do not follow each other.
    histogram: how many tuples name each of the parts of `width` runs. fine: the same, of smaller
    parts. repeats: how many runs are named 1, 2, 3 or 4, 5 to 8 times, and so on.
    """

    tuples: int
    out_of_bounds: int
    components: list[Component]
    beyond: list[Beyond]
    ascending: bool
    runs: Shape
    distinct: int
    duplicated: int
    most: list[Frequent]
    touched: int
    pages: int | None
    histogram: list[int]
    width: int
    fine: list[int]
    repeats: list[int]


def open_call(request: Request) -> Job:
    """Return the job of a call whose inputs may be types, with updates as they must be."""
    streams, given = Streams(), dict[str, Source]()
    with ExitStack() as opened:
        for role in ("data", "indices"):
            name = request.arguments[role]
            one: Source = typed(name) or names.open_source(
                name, streams, literals=role == "indices"
            )
            opened.callback(one.close)
            given[role] = one
        opened.pop_all()  # the job closes them
    if "updates" in OPERATORS[request.operator].inputs:
        data, shape = given["data"].facts, given["indices"].facts.shape
        if request.operator == "scatter_nd" and shape:
            shape = shape[:-1] + data.shape[shape[-1] :]
        given["updates"] = Typed("updates", Facts(data.dtype, shape, "C", shape, {}))
    return Job(request, given)


def stats(job: Job, tick: Tick = silent) -> Stats:
    """Return what the indices of a call do; indices out of bounds are counted, not refused."""
    call = tuples.of(job)
    first_look = _Look(call)
    for first, block in call.blocks(part(tick, 0, 0.4)):
        first_look.meet(first, block)
    tally = first_look.tally
    if tally.again:
        try:
            for first, block in call.blocks(part(tick, 0.4, 0.6)):
                tally.sort(first_look.rows(first, block))
        except ValueError:  # there were fewer
            raise call.operands.changed() from None
    spread = _Spread(job, first_look.runs)
    for rows, counts in tally.ascending(part(tick, 0.6, 0.8)):
        spread.meet(rows, counts)
    most = spread.most
    hunts = [Hunt(first_look.place(row), False) for row, _ in most]
    if hunts:
        call.search(hunts, call.blocks(part(tick, 0.8, 1)))
    job.recheck()
    return Stats(
        len(call.rows),
        first_look.out_of_bounds,
        [look.component for look in first_look.columns],
        first_look.beyond,
        first_look.ascending,
        first_look.runs,
        spread.distinct,
        spread.duplicated,
        [
            Frequent(
                layouts.unravel(row, first_look.runs),
                count,
                [call.position(hunt.place, number) for number in hunt.told],
            )
            for hunt, (row, count) in zip(hunts, most, strict=True)
        ],
        spread.distinct * spread.nbytes,
        spread.pages if spread.follows else None,
        spread.histogram.counts.tolist(),
        spread.histogram.width,
        spread.fine.counts.tolist(),
        np.trim_zeros(spread.repeats, "b").tolist(),
    )


class _Look:
    """Each index tuple by itself, and which run it names."""

    def __init__(self, call: Tuples) -> None:
        self._call = call
        plan, negatives = call.plan, call.operands.negatives
        axis = plan.axis if isinstance(plan, ElementsPlan) else len(plan.batch)
        self.columns = [
            _Column(axis + j, size, negatives) for j, size in enumerate(places.sizes(plan))
        ]
        self.runs = places.runs(plan)
        self.tally = Tally(prod(self.runs))
        self.out_of_bounds = 0
        self.beyond: list[Beyond] = []
        self.ascending = True
        self._last = 0

    def meet(self, first: int, block: Array) -> None:
        """Take tuples that come after all others."""
        bad = [column.meet(block[:, j]) for j, column in enumerate(self.columns)]
        if any(one is not None for one in bad):
            self._tell(first, block, bad)
        rows = self.rows(first, block)
        if self.ascending and len(rows):
            self.ascending = bool(rows[0] >= self._last and (rows[1:] >= rows[:-1]).all())
            self._last = int(rows[-1])
        self.tally.add(rows)

    def _tell(self, first: int, block: Array, bad: list[Array | None]) -> None:
        """Count tuples that are out of bounds; keep the first ones."""
        none = np.zeros(len(block), np.bool_)
        wrong = np.stack([none if one is None else one for one in bad], axis=1)
        self.out_of_bounds += int(wrong.any(axis=1).sum())
        for number, j in np.argwhere(wrong)[: MOST - len(self.beyond)].tolist():
            where = layouts.unravel(first + number, self._call.plan.positions)
            self.beyond.append(Beyond(where, j, int(block[number, j])))

    def rows(self, first: int, block: Array) -> Numbers:
        """Return the numbers, in row-major order, of the runs that tuples name.

        Those out of bounds name one where their rule has it.
        """
        call, kept = self._call, np.arange(len(block))
        if call.rule in ("clip", "wrap"):
            kept, block = tuples.settled(call.plan, block, call.rule)
            return tuples.runs(call.plan, first, block, kept)
        for j, column in enumerate(self.columns):
            bad = column.bad(block[:, j])
            if bad is not None:
                kept, block = kept[~bad], block[~bad]
        return tuples.runs(call.plan, first, block, kept)

    def place(self, row: int) -> Position:
        """Return a position in data that belongs to a run."""
        plan, at = self._call.plan, layouts.unravel(row, self.runs)
        skipped = 0 if isinstance(plan, ElementsPlan) or not plan.repeated else len(plan.batch)
        return (0,) * skipped + at


class _Column:
    """One component of all tuples."""

    def __init__(self, axis: int, size: int, negatives: bool) -> None:
        self.component = Component(axis, size, -size if negatives else 0, None, None, 0, 0)

    def meet(self, column: Array) -> Array | None:
        """Take values that come after all others; return which are out of bounds, None for none."""
        known, bad = self.component, self.bad(column)
        low, high = int(column.min()), int(column.max())
        self.component = known._replace(
            lowest=low if known.lowest is None else min(known.lowest, low),
            highest=high if known.highest is None else max(known.highest, high),
            negative=known.negative + (int((column < 0).sum()) if low < 0 else 0),
            out_of_bounds=known.out_of_bounds + (0 if bad is None else int(bad.sum())),
        )
        return bad

    def bad(self, column: Array) -> Array | None:
        """Return which values are out of bounds, None if none is."""
        first, size = self.component.first, self.component.size
        if not len(column) or (column.min() >= first and column.max() < size):
            return None
        return (column < first) | (column >= size)


class _Spread:
    """The runs that are named, in order, and how often each of them is."""

    def __init__(self, job: Job, runs: Shape) -> None:
        plan, facts = job.inference.plan, job.sources["data"].facts
        self.nbytes = job.inference.dtype.itemsize  # of what a row's tuples name
        repeated = 1
        if not isinstance(plan, ElementsPlan):
            repeated = prod(plan.batch) if plan.repeated else 1
            self.nbytes *= plan.width * repeated
        self.follows = facts.order == "C" and facts.grid == facts.shape and repeated == 1
        self.distinct = self.duplicated = self.pages = 0
        self.most: list[tuple[int, int]] = []
        self.histogram, self.fine = (_Histogram(prod(runs), bins) for bins in (BINS, FINE))
        self.repeats = np.zeros(64, np.int64)  # by the power of two that is no less
        self._page = -1  # the last one that was counted

    def meet(self, rows: Numbers, counts: Numbers) -> None:
        """Take runs that come after all others."""
        self.distinct += len(rows)
        self.duplicated += int((counts > 1).sum())
        self.histogram.meet(rows, counts)
        self.fine.meet(rows, counts)
        np.add.at(self.repeats, np.frexp(counts - 1.0)[1], 1)
        least = self.most[-1][1] if len(self.most) == MOST else 1
        (often,) = np.nonzero(counts > least)
        best = often[np.lexsort((rows[often], -counts[often]))[:MOST]]
        known = self.most + list(zip(rows[best].tolist(), counts[best].tolist(), strict=True))
        self.most = sorted(known, key=lambda one: (-one[1], one[0]))[:MOST]
        if self.follows and self.nbytes and len(rows):
            first, last = rows * self.nbytes // PAGE, ((rows + 1) * self.nbytes - 1) // PAGE
            before = np.concatenate([[self._page], last[:-1]])
            self.pages += int((last - np.maximum(first, before + 1) + 1).sum())
            self._page = int(last[-1])


class _Histogram:
    """How many tuples name each part of all runs, of which there are `bins` at most."""

    def __init__(self, runs: int, bins: int) -> None:
        self.width = -(-runs // bins) or 1
        self.counts = np.zeros(-(-runs // self.width), np.int64)

    def meet(self, rows: Numbers, counts: Numbers) -> None:
        """Take runs, and how often each is named."""
        np.add.at(self.counts, rows // self.width, counts)
