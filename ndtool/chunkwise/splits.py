"""Splits: the tuples of a chunk of indices, validated and sorted by chunk of data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.chunkwise.calls import ChunkedCall, held
from ndtool.engine import check, layouts
from ndtool.errors import DuplicatesError
from ndtool.rules.modes import MODES
from ndtool.rules.plans import ElementsPlan, Shape

Array = NDArray[Any]
BATCH = 1 << 20  # tuples in which to look for duplicates at a time


class Report(NamedTuple):
    """The indices of a chunk out of bounds: number, component and value of the first; how many."""

    number: int
    component: int
    value: int
    tuples: int


@dataclass(frozen=True, eq=False)
class Split:
    """The tuples of a chunk of indices, sorted stably by the chunk of data they select from.

    number: of the chunk of indices. origin, shape: of it among all tuples. ids: the chunks of data,
    in rows, ascending; the last may be that of skipped tuples. starts: where the tuples of each
    begin. order: the position of each tuple in its chunk of indices. local: the row of each in its
    chunk of data.
    """

    number: int
    origin: Shape
    shape: Shape
    ids: Array
    starts: Array
    order: Array
    local: Array
    report: Report | None

    def of(self, row: int) -> slice:
        """Return the range of the tuples that select from a chunk of data."""
        at = int(np.searchsorted(self.ids, row))
        if at == len(self.ids) or self.ids[at] != row:
            return slice(0, 0)
        return slice(int(self.starts[at]), int(self.starts[at + 1]))

    def get(self, row: int, default: Sequence[Split] = ()) -> Sequence[Split]:
        """Return those tuples, if any, as a bundle does."""
        part = self.of(row)
        return [self.only(row)] if part.stop > part.start else default

    def only(self, row: int) -> Split:
        """Return the tuples that select from one chunk of data."""
        if len(self.ids) == 1 and self.ids[0] == row:
            return self
        part = self.of(row)
        order, local = self.order[part].copy(), self.local[part].copy()
        return replace(
            self, ids=np.array([row]), starts=np.array([0, len(order)]), order=order, local=local
        )

    def numbers(self, positions: Shape) -> Array:
        """Return the numbers of the tuples, in row-major order of all indices."""
        if not positions:
            return np.zeros(len(self.order), np.int64)
        at = np.unravel_index(self.order, self.shape)
        whole = tuple(one + first for one, first in zip(at, self.origin, strict=True))
        return np.ravel_multi_index(whole, positions)


# Parts of the results of several tasks, by what they are for: a chunk of data or of indices.
Bundle = Mapping[int, list[Any]] | Split


def select(bundles: Sequence[Bundle], wanted: Sequence[int]) -> Bundle:
    """Return the parts of bundles that are for some chunks, in the order of the bundles."""
    found = {int(one): parts_for(bundles, one) for one in wanted}
    return {one: parts for one, parts in found.items() if parts}


def parts_for(bundles: Sequence[Bundle], one: int) -> list[Any]:
    """Return the parts of bundles that are for a chunk."""
    return [part for bundle in bundles for part in bundle.get(one, ())]


def split(call: ChunkedCall, chunk: object, number: int, origin: Shape, shape: Shape) -> Split:
    """Validate the tuples of a chunk of indices, and sort them by chunk of data."""
    k = 1 if isinstance(call.plan, ElementsPlan) else call.plan.k
    index = held(call, "indices", chunk, shape if call.is_plain else (*shape, k))
    columns = iter([index] if call.is_plain else np.moveaxis(index, -1, 0))
    ids, local = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    skipped, wrong = np.zeros(shape, bool), []
    for axis, source in zip(call.axes.rows, call.axes.sources, strict=True):
        sizes = np.array(call.chunks[axis])
        if source is None:
            at, outside = _resolved(call, next(columns), call.plan.data[axis], skipped)
            wrong.append(outside)
            skipped |= outside
        else:
            along = [-1 if d == source else 1 for d in range(len(shape))]
            at = np.arange(origin[source], origin[source] + shape[source]).reshape(along)
        along_axis, row = _located(at, sizes)
        ids = ids * len(sizes) + along_axis
        local = local * sizes[along_axis] + row
    ids, local = np.where(skipped, call.skipped, ids), np.where(skipped, 0, local)
    report = _report(call, wrong, index, origin, shape) if call.is_strict else None
    return _sorted(call, ids.ravel(), local.ravel(), (number, origin, shape, report))


def _resolved(call: ChunkedCall, column: Array, size: int, skipped: Array) -> tuple[Array, Array]:
    """Return one component of tuples as coordinates >= 0, and which of them select nothing.

    skipped: a mask, in which components equal to the pad are set.
    """
    mode, pad, negatives = call.inference.handling
    wide = column if column.dtype == np.uint64 else column.astype(np.int64)
    lowest = -size if negatives else 0
    outside = (wide < lowest) | (wide >= size)
    if pad is not None:
        padded = wide == pad
        outside &= ~padded
        skipped |= padded
        wide = np.where(padded, 0, wide)
    redirect = None if call.is_strict else MODES[mode].redirect
    if outside.any():
        other = 0 if redirect is None else redirect(wide, size)
        wide = np.where(outside, other, wide)
    at = wide.astype(np.int64)
    at += (at < 0) * size
    return at, np.zeros_like(outside) if redirect is not None else outside


def _located(at: Array, sizes: Array) -> tuple[Array, Array]:
    """Return the chunks that coordinates along an axis are in, and the positions in them."""
    step = int(sizes[0])
    if step and (sizes[1:-1] == step).all() and sizes[-1] <= step:
        number = np.minimum(at // step, len(sizes) - 1)
        return number, at - number * step
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    number = np.searchsorted(starts, at, side="right") - 1
    return number, at - starts[number]


def _report(
    call: ChunkedCall, wrong: list[Array], index: Array, origin: Shape, shape: Shape
) -> Report | None:
    """Return the indices of a chunk that are out of bounds, None if all are valid."""
    some = np.logical_or.reduce(wrong) if wrong else np.zeros(shape, bool)
    count = int(np.count_nonzero(some))
    if not count:
        return None
    at = np.unravel_index(int(np.argmax(some)), shape) if shape else ()
    component = next(j for j, one in enumerate(wrong) if one[at])
    value = int(index[at] if index.ndim == len(shape) else index[(*at, component)])
    number = 0
    for first, one, size in zip(origin, at, call.plan.positions, strict=True):
        number = number * size + first + int(one)
    return Report(number, component, value, count)


def _sorted(call: ChunkedCall, ids: Array, local: Array, box: tuple[Any, ...]) -> Split:
    """Sort tuples by the numbers of their chunks, stably."""
    short = ids.astype(np.uint16) if call.skipped < 1 << 16 else ids  # a radix sort
    order = np.argsort(short, kind="stable")
    ids = ids[order]
    first = np.flatnonzero(np.diff(ids, prepend=-1))
    number, origin, shape, report = box
    positions = order.astype(np.uint32) if len(ids) <= 1 << 32 else order
    starts = np.append(first, len(ids))
    return Split(
        number,
        origin,
        shape,
        ids[first],
        starts,
        positions,
        local[order].astype(call.row_type),
        report,
    )


def bounds_verdict(call: ChunkedCall, reports: Sequence[Report | None]) -> None:
    """Raise BoundsError if a chunk of indices has some out of bounds."""
    bad = [report for report in reports if report is not None]
    if bad:
        first = min(bad)
        count = sum(report.tuples for report in bad)
        raise check.bounds_error(call.plan, first[:3], count, call.inference.row.negatives)


def repeated(
    call: ChunkedCall, verdict: None, row: int, bundles: Sequence[Bundle]
) -> tuple[int, int] | None:
    """Return the first tuple that selects a row of a chunk of data again, and the earliest such.

    None if all rows differ.
    """
    pieces = parts_for(bundles, row)
    seen: Array = np.zeros(call.height(row), bool)
    for tuples in in_order(call, pieces, BATCH, numbered=True):
        once = np.unique(tuples.local, return_index=True)[1]
        again = seen[tuples.local]
        again[np.delete(np.arange(len(again)), once)] = True
        if again.any():
            at = int(np.argmax(again))
            for before in in_order(call, pieces, BATCH, numbered=True):
                if (same := before.local == tuples.local[at]).any():
                    return int(tuples.numbers[at]), int(before.numbers[np.argmax(same)])
        seen[tuples.local] = True
    return None


def duplicates_verdict(
    call: ChunkedCall, verdict: None, found: Sequence[tuple[int, int] | None]
) -> None:
    """Raise DuplicatesError if tuples select the same row of some chunk of data."""
    pairs = [pair for pair in found if pair is not None]
    if pairs:
        second, first = min(pairs)
        over = call.plan.positions
        raise DuplicatesError(layouts.unravel(first, over), layouts.unravel(second, over))


class Tuples(NamedTuple):
    """Tuples that select from one chunk of data, in row-major order of indices.

    pieces: the number of the piece that each is of. at: its position in that. local: its row in the
    chunk of data. numbers: its number among all tuples; empty unless `numbered`.
    """

    pieces: Array
    at: Array
    local: Array
    numbers: Array

    def sorted(self) -> Tuples:
        """Return the tuples sorted by their numbers."""
        by = np.argsort(self.numbers, kind="stable")
        return Tuples(*(one[by] for one in self))

    def cut(self, most: int) -> Iterator[Tuples]:
        """Yield the tuples, at most `most` at a time."""
        for at in range(0, len(self.local), most):
            yield Tuples(*(one[at : at + most] for one in self))


def in_order(
    call: ChunkedCall, pieces: Sequence[Split], most: int, numbered: bool = False
) -> Iterator[Tuples]:
    """Yield the tuples that select from a chunk of data, at most `most` at a time."""
    batch: list[int] = []
    count = 0
    for group in _groups(pieces, call.plan.positions):
        size = sum(len(pieces[one].order) for one in group)
        if batch and (count + size > most or len(group) > 1):
            yield from _joined(call, pieces, batch, numbered).cut(most)
            batch, count = [], 0
        if len(group) > 1:
            yield from _joined(call, pieces, group, True).sorted().cut(most)
            continue
        batch += group
        count += size
    if batch:
        yield from _joined(call, pieces, batch, numbered).cut(most)


def _joined(call: ChunkedCall, pieces: Sequence[Split], group: list[int], numbered: bool) -> Tuples:
    """Return the tuples of several pieces, one after the other."""
    sizes = [len(pieces[one].order) for one in group]
    numbers = np.empty(0, np.int64)
    if numbered:
        numbers = np.concatenate([pieces[one].numbers(call.plan.positions) for one in group])
    return Tuples(
        np.repeat(np.array(group, np.uint32), sizes),
        np.concatenate([np.arange(size) for size in sizes]),
        np.concatenate([pieces[one].local for one in group]),
        numbers,
    )


def _groups(pieces: Sequence[Split], over: Shape) -> Iterator[list[int]]:
    """Yield pieces by their positions, in row-major order of their chunks of indices.

    Pieces whose tuples alternate in this order are yielded together.
    """
    group: list[int] = []
    last = -1
    for first, at in sorted((_number(one.origin, over), at) for at, one in enumerate(pieces)):
        if group and first > last:
            yield group
            group = []
        group.append(at)
        box = zip(pieces[at].origin, pieces[at].shape, strict=True)
        last = max(last, _number(tuple(begin + size - 1 for begin, size in box), over))
    if group:
        yield group


def _number(at: Shape, over: Shape) -> int:
    """Return the number of a position in row-major order."""
    number = 0
    for one, size in zip(at, over, strict=True):
        number = number * size + one
    return number
