"""Splits: the tuples of a chunk of indices, validated and sorted by chunk of data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.chunkwise.calls import ChunkedCall, require_declared
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
    in rows, ascending; the last may be that of skipped tuples. offsets: of the first tuple of each.
    order: the position of each tuple in its chunk of indices. local: the row of each in its chunk
    of data.
    """

    number: int
    origin: Shape
    shape: Shape
    ids: Array
    offsets: Array
    order: Array
    local: Array
    report: Report | None

    def of(self, row: int) -> slice:
        """Return the range of the tuples that select from a chunk of data."""
        i = int(np.searchsorted(self.ids, row))
        if i == len(self.ids) or self.ids[i] != row:
            return slice(0, 0)
        return slice(int(self.offsets[i]), int(self.offsets[i + 1]))

    def get(self, row: int, default: Sequence[Split] = ()) -> Sequence[Split]:
        """Return these tuples, if any, as the entries of a bundle."""
        selected = self.of(row)
        return [self.only(row)] if selected.stop > selected.start else default

    def only(self, row: int) -> Split:
        """Return the tuples that select from one chunk of data."""
        if len(self.ids) == 1 and self.ids[0] == row:
            return self
        selected = self.of(row)
        order, local = self.order[selected].copy(), self.local[selected].copy()
        return replace(
            self, ids=np.array([row]), offsets=np.array([0, len(order)]), order=order, local=local
        )

    def numbers(self, positions: Shape) -> Array:
        """Return the numbers of the tuples, in row-major order of all indices."""
        if not positions:
            return np.zeros(len(self.order), np.int64)
        at = np.unravel_index(self.order, self.shape)
        whole = tuple(one + first for one, first in zip(at, self.origin, strict=True))
        return np.ravel_multi_index(whole, positions)


# Entries of the results of several tasks, by the chunk of data or of indices that needs them.
Bundle = Mapping[int, list[Any]] | Split


def select(bundles: Sequence[Bundle], numbers: Sequence[int]) -> Bundle:
    """Return the parts of bundles that are for some chunks, in the order of the bundles."""
    entries_by_number = {int(number): entries_for(bundles, number) for number in numbers}
    return {number: entries for number, entries in entries_by_number.items() if entries}


def entries_for(bundles: Sequence[Bundle], number: int) -> list[Any]:
    """Return the parts of bundles that are for a chunk."""
    return [entry for bundle in bundles for entry in bundle.get(number, ())]


def split(call: ChunkedCall, chunk: object, number: int, origin: Shape, shape: Shape) -> Split:
    """Validate the tuples of a chunk of indices, and sort them by chunk of data."""
    k = 1 if isinstance(call.plan, ElementsPlan) else call.plan.k
    index = require_declared(call, "indices", chunk, shape if call.is_plain else (*shape, k))
    columns = iter([index] if call.is_plain else np.moveaxis(index, -1, 0))
    ids, rows = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    skipped, out_of_bounds = np.zeros(shape, bool), []
    for axis, source in zip(call.axes.rows, call.axes.sources, strict=True):
        sizes = np.array(call.chunks[axis])
        if source is None:
            coordinates, invalid = _resolved(call, next(columns), call.plan.data[axis], skipped)
            out_of_bounds.append(invalid)
            skipped |= invalid
        else:
            along = [-1 if d == source else 1 for d in range(len(shape))]
            coordinates = np.arange(origin[source], origin[source] + shape[source]).reshape(along)
        number_along, in_chunk = _located(coordinates, sizes)
        ids = ids * len(sizes) + number_along
        rows = rows * sizes[number_along] + in_chunk
    ids, rows = np.where(skipped, call.skipped, ids), np.where(skipped, 0, rows)
    report = _report(call, out_of_bounds, index, origin, shape) if call.is_strict else None
    return _sorted(call, ids.ravel(), rows.ravel(), (number, origin, shape, report))


def _resolved(call: ChunkedCall, column: Array, size: int, skipped: Array) -> tuple[Array, Array]:
    """Return a component of tuples as coordinates >= 0, and which are invalid; marks padding."""
    mode, pad, negatives = call.inference.handling
    values = column if column.dtype == np.uint64 else column.astype(np.int64)
    lowest = -size if negatives else 0
    invalid = (values < lowest) | (values >= size)
    if pad is not None:
        padded = values == pad
        invalid &= ~padded
        skipped |= padded
        values = np.where(padded, 0, values)
    redirect = None if call.is_strict else MODES[mode].redirect
    if invalid.any():
        replacement = 0 if redirect is None else redirect(values, size)
        values = np.where(invalid, replacement, values)
    coordinates = values.astype(np.int64)
    coordinates += (coordinates < 0) * size
    return coordinates, np.zeros_like(invalid) if redirect is not None else invalid


def _located(coordinates: Array, sizes: Array) -> tuple[Array, Array]:
    """Return the chunks that coordinates along an axis are in, and the positions in them."""
    chunk_size = int(sizes[0])
    if chunk_size and (sizes[1:-1] == chunk_size).all() and sizes[-1] <= chunk_size:
        chunk = np.minimum(coordinates // chunk_size, len(sizes) - 1)
        return chunk, coordinates - chunk * chunk_size
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    chunk = np.searchsorted(offsets, coordinates, side="right") - 1
    return chunk, coordinates - offsets[chunk]


def _report(
    call: ChunkedCall, out_of_bounds: list[Array], index: Array, origin: Shape, shape: Shape
) -> Report | None:
    """Return the indices of a chunk that are out of bounds, None if all are valid."""
    any_invalid = np.logical_or.reduce(out_of_bounds) if out_of_bounds else np.zeros(shape, bool)
    count = int(np.count_nonzero(any_invalid))
    if not count:
        return None
    position = np.unravel_index(int(np.argmax(any_invalid)), shape) if shape else ()
    component = next(j for j, coordinate in enumerate(out_of_bounds) if coordinate[position])
    value = int(index[position] if index.ndim == len(shape) else index[(*position, component)])
    number = 0
    for start, coordinate, size in zip(origin, position, call.plan.positions, strict=True):
        number = number * size + start + int(coordinate)
    return Report(number, component, value, count)


def _sorted(call: ChunkedCall, ids: Array, local: Array, chunk: tuple[Any, ...]) -> Split:
    """Sort tuples by the numbers of their chunks, stably."""
    keys = ids.astype(np.uint16) if call.skipped < 1 << 16 else ids  # a radix sort
    order = np.argsort(keys, kind="stable")
    ids = ids[order]
    firsts = np.flatnonzero(np.diff(ids, prepend=-1))
    number, origin, shape, report = chunk
    positions = order.astype(np.uint32) if len(ids) <= 1 << 32 else order
    offsets = np.append(firsts, len(ids))
    return Split(
        number,
        origin,
        shape,
        ids[firsts],
        offsets,
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
        raise check.make_bounds_error(call.plan, first[:3], count, call.inference.row.negatives)


def repeated(
    call: ChunkedCall, verdict: None, row: int, bundles: Sequence[Bundle]
) -> tuple[int, int] | None:
    """Return the first tuple that repeats an earlier one, and the earliest that it repeats.

    None if all rows differ.
    """
    splits = entries_for(bundles, row)
    seen: Array = np.zeros(call.row_count(row), bool)
    for tuples in batches(call, splits, BATCH, numbered=True):
        first_uses = np.unique(tuples.local, return_index=True)[1]
        repeats = seen[tuples.local]
        repeats[np.delete(np.arange(len(repeats)), first_uses)] = True
        if repeats.any():
            second = int(np.argmax(repeats))
            for earlier in batches(call, splits, BATCH, numbered=True):
                if (matches := earlier.local == tuples.local[second]).any():
                    return int(tuples.numbers[second]), int(earlier.numbers[np.argmax(matches)])
        seen[tuples.local] = True
    return None


def duplicates_verdict(
    call: ChunkedCall, verdict: None, repeats: Sequence[tuple[int, int] | None]
) -> None:
    """Raise DuplicatesError if tuples select the same row of some chunk of data."""
    pairs = [pair for pair in repeats if pair is not None]
    if pairs:
        second, first = min(pairs)
        shape = call.plan.positions
        raise DuplicatesError(
            layouts.unravel_index(first, shape), layouts.unravel_index(second, shape)
        )


class Tuples(NamedTuple):
    """Tuples that select from one chunk of data, in row-major order of indices.

    sources: the number of the split that has each. positions: its position in the split. local: its
    row in the chunk of data. numbers: its number among all tuples; empty unless `numbered`.
    """

    sources: Array
    positions: Array
    local: Array
    numbers: Array

    def sorted(self) -> Tuples:
        """Return the tuples sorted by their numbers."""
        order = np.argsort(self.numbers, kind="stable")
        return Tuples(*(array[order] for array in self))

    def batches(self, limit: int) -> Iterator[Tuples]:
        """Yield the tuples, at most `limit` at a time."""
        for positions in range(0, len(self.local), limit):
            yield Tuples(*(array[positions : positions + limit] for array in self))


def batches(
    call: ChunkedCall, splits: Sequence[Split], limit: int, numbered: bool = False
) -> Iterator[Tuples]:
    """Yield the tuples that select from a chunk of data, at most `limit` at a time."""
    batch: list[int] = []
    count = 0
    for group in _groups(splits, call.plan.positions):
        size = sum(len(splits[i].order) for i in group)
        if batch and (count + size > limit or len(group) > 1):
            yield from _joined(call, splits, batch, numbered).batches(limit)
            batch, count = [], 0
        if len(group) > 1:
            yield from _joined(call, splits, group, True).sorted().batches(limit)
            continue
        batch += group
        count += size
    if batch:
        yield from _joined(call, splits, batch, numbered).batches(limit)


def _joined(call: ChunkedCall, splits: Sequence[Split], group: list[int], numbered: bool) -> Tuples:
    """Concatenate the tuples of several splits."""
    sizes = [len(splits[i].order) for i in group]
    numbers = np.empty(0, np.int64)
    if numbered:
        numbers = np.concatenate([splits[i].numbers(call.plan.positions) for i in group])
    return Tuples(
        np.repeat(np.array(group, np.uint32), sizes),
        np.concatenate([np.arange(size) for size in sizes]),
        np.concatenate([splits[i].local for i in group]),
        numbers,
    )


def _groups(splits: Sequence[Split], shape: Shape) -> Iterator[list[int]]:
    """Yield splits in row-major order; those whose tuples alternate are yielded together."""
    group: list[int] = []
    end = -1
    for start, i in sorted((_number(split.origin, shape), i) for i, split in enumerate(splits)):
        if group and start > end:
            yield group
            group = []
        group.append(i)
        box = zip(splits[i].origin, splits[i].shape, strict=True)
        end = max(end, _number(tuple(begin + size - 1 for begin, size in box), shape))
    if group:
        yield group


def _number(position: Shape, shape: Shape) -> int:
    """Return the number of a position in row-major order."""
    number = 0
    for coordinate, size in zip(position, shape, strict=True):
        number = number * size + coordinate
    return number
