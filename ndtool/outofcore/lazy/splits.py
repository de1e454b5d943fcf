"""Splits: the tuples of a chunk of indices, validated and sorted by chunk of data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool.engine import check, layouts
from ndtool.errors import DuplicatesError
from ndtool.inmemory.normalizing import normalize_indices
from ndtool.outofcore.lazy.calls import ChunkedCall, require_declared
from ndtool.rules.plans import ElementsPlan, Shape

Array = NDArray[Any]
BATCH_TUPLES = 1 << 20  # tuples to search for duplicates at a time


class BoundsReport(NamedTuple):
    """The indices out of bounds of a chunk.

    number, component, value: the first of them: the linear index of its tuple, its component, its
    value. tuple_count: the number of tuples with such an index.
    """

    number: int
    component: int
    value: int
    tuple_count: int


@dataclass(frozen=True, eq=False)
class Split:
    """The tuples of a chunk of indices, sorted stably by the chunk of data they select from.

    number: the number of the chunk of indices. origin, shape: its origin and shape in the array of
    all tuples. ids: the numbers of the chunks of data, ascending; the last may be the number of
    skipped tuples. offsets: the first tuple of each chunk of data, and the end. order: the position
    of each tuple in its chunk of indices. local: the row index of each tuple in its chunk of data.
    """

    number: int
    origin: Shape
    shape: Shape
    ids: Array
    offsets: Array
    order: Array
    local: Array
    report: BoundsReport | None

    def tuple_range(self, data_chunk: int) -> slice:
        """Return the range of the tuples that select from a chunk of data."""
        i = int(np.searchsorted(self.ids, data_chunk))
        if i == len(self.ids) or self.ids[i] != data_chunk:
            return slice(0, 0)
        return slice(int(self.offsets[i]), int(self.offsets[i + 1]))

    def get(self, data_chunk: int, default: Sequence[Split] = ()) -> Sequence[Split]:
        """Return the tuples that select from a chunk of data as the entries of a bundle."""
        selected = self.tuple_range(data_chunk)
        return [self.subset(data_chunk)] if selected.stop > selected.start else default

    def subset(self, data_chunk: int) -> Split:
        """Return a split of only the tuples that select from one chunk of data."""
        if len(self.ids) == 1 and self.ids[0] == data_chunk:
            return self
        selected = self.tuple_range(data_chunk)
        order, local = self.order[selected].copy(), self.local[selected].copy()
        return replace(
            self,
            ids=np.array([data_chunk]),
            offsets=np.array([0, len(order)]),
            order=order,
            local=local,
        )

    def flat_indices(self, positions: Shape) -> Array:
        """Return the linear indices of the tuples among all tuples, whose shape is `positions`."""
        if not positions:
            return np.zeros(len(self.order), np.int64)
        coordinates = np.unravel_index(self.order, self.shape)
        shifted = tuple(
            coordinate + start for coordinate, start in zip(coordinates, self.origin, strict=True)
        )
        return np.ravel_multi_index(shifted, positions)


# Entries from the results of several tasks, by the chunk of data or of indices that needs them.
Bundle = Mapping[int, list[Any]] | Split


def select(bundles: Sequence[Bundle], chunks: Sequence[int]) -> Bundle:
    """Collect what several tasks have for some chunks, in the order of the tasks' bundles."""
    entries_by_chunk = {int(chunk): entries_for(bundles, chunk) for chunk in chunks}
    return {chunk: entries for chunk, entries in entries_by_chunk.items() if entries}


def entries_for(bundles: Sequence[Bundle], chunk: int) -> list[Any]:
    """Collect what several tasks have for a chunk, in the order of their bundles."""
    return [entry for bundle in bundles for entry in bundle.get(chunk, ())]


def split(call: ChunkedCall, chunk: object, number: int, origin: Shape, shape: Shape) -> Split:
    """Validate the tuples of a chunk of indices, and sort them by chunk of data."""
    k = 1 if isinstance(call.plan, ElementsPlan) else call.plan.k
    index = require_declared(
        call, "indices", chunk, shape if call.has_scalar_indices else (*shape, k)
    )
    columns = iter([index] if call.has_scalar_indices else np.moveaxis(index, -1, 0))
    ids, rows = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    skipped, out_of_bounds = np.zeros(shape, bool), []
    for axis, index_axis in zip(call.axes.rows, call.axes.index_axes, strict=True):
        sizes = np.array(call.chunks[axis])
        if index_axis is None:
            size = call.plan.data[axis]
            coordinates, invalid = normalize_indices(next(columns), size, call.plan.attributes)
            out_of_bounds.append(invalid)
            skipped |= coordinates == size
            coordinates = np.where(coordinates == size, 0, coordinates)
        else:
            broadcast_shape = [-1 if d == index_axis else 1 for d in range(len(shape))]
            coordinates = np.arange(
                origin[index_axis], origin[index_axis] + shape[index_axis]
            ).reshape(broadcast_shape)
        chunk_along_axis, in_chunk = _locate(coordinates, sizes)
        ids = ids * len(sizes) + chunk_along_axis
        rows = rows * sizes[chunk_along_axis] + in_chunk
    ids, rows = np.where(skipped, call.skipped, ids), np.where(skipped, 0, rows)
    report = _report(call, out_of_bounds, index, origin, shape) if call.is_strict else None
    return _sort(call, ids.ravel(), rows.ravel(), (number, origin, shape, report))


def _locate(coordinates: Array, sizes: Array) -> tuple[Array, Array]:
    """Return the chunk of each coordinate along an axis, and the position in the chunk."""
    chunk_size = int(sizes[0])
    if chunk_size and (sizes[1:-1] == chunk_size).all() and sizes[-1] <= chunk_size:
        chunk = np.minimum(coordinates // chunk_size, len(sizes) - 1)
        return chunk, coordinates - chunk * chunk_size
    offsets = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    chunk = np.searchsorted(offsets, coordinates, side="right") - 1
    return chunk, coordinates - offsets[chunk]


def _report(
    call: ChunkedCall, out_of_bounds: list[Array], index: Array, origin: Shape, shape: Shape
) -> BoundsReport | None:
    """Return the indices of a chunk that are out of bounds, None if all are valid."""
    any_invalid = np.logical_or.reduce(out_of_bounds) if out_of_bounds else np.zeros(shape, bool)
    count = int(np.count_nonzero(any_invalid))
    if not count:
        return None
    position = np.unravel_index(int(np.argmax(any_invalid)), shape) if shape else ()
    component = next(j for j, coordinate in enumerate(out_of_bounds) if coordinate[position])
    value = int(index[position] if index.ndim == len(shape) else index[(*position, component)])
    flat_index = 0
    for start, coordinate, size in zip(origin, position, call.plan.positions, strict=True):
        flat_index = flat_index * size + start + int(coordinate)
    return BoundsReport(flat_index, component, value, count)


def _sort(call: ChunkedCall, ids: Array, local: Array, chunk: tuple[Any, ...]) -> Split:
    """Sort tuples stably by the numbers of their chunks of data."""
    keys = ids.astype(np.uint16) if call.skipped < 1 << 16 else ids  # NumPy uses a radix sort
    order = np.argsort(keys, kind="stable")
    ids = ids[order]
    starts = np.flatnonzero(np.diff(ids, prepend=-1))
    number, origin, shape, report = chunk
    positions = order.astype(np.uint32) if len(ids) <= 1 << 32 else order
    offsets = np.append(starts, len(ids))
    return Split(
        number,
        origin,
        shape,
        ids[starts],
        offsets,
        positions,
        local[order].astype(call.row_type),
        report,
    )


def bounds_verdict(call: ChunkedCall, reports: Sequence[BoundsReport | None]) -> None:
    """Raise BoundsError if a chunk has indices out of bounds."""
    invalid = [report for report in reports if report is not None]
    if invalid:
        first = min(invalid)
        count = sum(report.tuple_count for report in invalid)
        raise check.make_bounds_error(call.plan, first[:3], count)


def find_duplicate(
    call: ChunkedCall, verdict: None, data_chunk: int, bundles: Sequence[Bundle]
) -> tuple[int, int] | None:
    """Return the first tuple that selects the same row as an earlier one, and the earliest such.

    None if all rows differ. Tuples are linear indices among all tuples.
    """
    splits = entries_for(bundles, data_chunk)
    selected: Array = np.zeros(call.rows_in_chunk(data_chunk), bool)
    for tuples in batches(call, splits, BATCH_TUPLES, with_indices=True):
        first_uses = np.unique(tuples.local, return_index=True)[1]
        repeats = selected[tuples.local]
        repeats[np.delete(np.arange(len(repeats)), first_uses)] = True
        if repeats.any():
            second = int(np.argmax(repeats))
            for earlier in batches(call, splits, BATCH_TUPLES, with_indices=True):
                if (matches := earlier.local == tuples.local[second]).any():
                    return int(tuples.flat_indices[second]), int(
                        earlier.flat_indices[np.argmax(matches)]
                    )
        selected[tuples.local] = True
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
            first=layouts.unravel_index(first, shape), second=layouts.unravel_index(second, shape)
        )


class Tuples(NamedTuple):
    """Tuples that select from one chunk of data, in row-major order of indices.

    For each tuple, sources: the number of its split. positions: its position in the split. local:
    its row index in the chunk of data. flat_indices: its linear index among all tuples; empty
    unless required.
    """

    sources: Array
    positions: Array
    local: Array
    flat_indices: Array

    def sorted(self) -> Tuples:
        """Return the tuples sorted by their linear indices."""
        order = np.argsort(self.flat_indices, kind="stable")
        return Tuples(*(array[order] for array in self))

    def batches(self, limit: int) -> Iterator[Tuples]:
        """Yield the tuples, at most `limit` at a time."""
        for positions in range(0, len(self.local), limit):
            yield Tuples(*(array[positions : positions + limit] for array in self))


def batches(
    call: ChunkedCall, splits: Sequence[Split], limit: int, with_indices: bool = False
) -> Iterator[Tuples]:
    """Yield the tuples that select from a chunk of data, at most `limit` at a time."""
    batch: list[int] = []
    count = 0
    for group in _groups(splits, call.plan.positions):
        size = sum(len(splits[i].order) for i in group)
        if batch and (count + size > limit or len(group) > 1):
            yield from _join(call, splits, batch, with_indices).batches(limit)
            batch, count = [], 0
        if len(group) > 1:
            yield from _join(call, splits, group, True).sorted().batches(limit)
            continue
        batch += group
        count += size
    if batch:
        yield from _join(call, splits, batch, with_indices).batches(limit)


def _join(
    call: ChunkedCall, splits: Sequence[Split], group: list[int], with_indices: bool
) -> Tuples:
    """Concatenate the tuples of several splits."""
    sizes = [len(splits[i].order) for i in group]
    flat_indices = np.empty(0, np.int64)
    if with_indices:
        flat_indices = np.concatenate([splits[i].flat_indices(call.plan.positions) for i in group])
    return Tuples(
        np.repeat(np.array(group, np.uint32), sizes),
        np.concatenate([np.arange(size) for size in sizes]),
        np.concatenate([splits[i].local for i in group]),
        flat_indices,
    )


def _groups(splits: Sequence[Split], shape: Shape) -> Iterator[list[int]]:
    """Yield splits in row-major order, in groups of splits whose tuples alternate."""
    group: list[int] = []
    end = -1
    for start, i in sorted((_flat_index(split.origin, shape), i) for i, split in enumerate(splits)):
        if group and start > end:
            yield group
            group = []
        group.append(i)
        box = zip(splits[i].origin, splits[i].shape, strict=True)
        end = max(end, _flat_index(tuple(begin + size - 1 for begin, size in box), shape))
    if group:
        yield group


def _flat_index(position: Shape, shape: Shape) -> int:
    """Return the linear index of a position in row-major order."""
    flat_index = 0
    for coordinate, size in zip(position, shape, strict=True):
        flat_index = flat_index * size + coordinate
    return flat_index
