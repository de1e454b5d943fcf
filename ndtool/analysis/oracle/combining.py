"""The slow reference of how updates are combined: reductions, duplicates, the current value."""

from collections.abc import Iterator
from math import prod

import numpy as np

from ndtool.analysis.oracle.blocks import Blocks, Index, Position, in_order, pieces
from ndtool.analysis.oracle.reductions import REDUCTIONS, accumulator, mean, native
from ndtool.analysis.oracle.refusals import Array, Combining
from ndtool.errors import DuplicatesError


def combine(output: Array, updates: Array, combining: Combining, blocks: Blocks, m: int) -> Array:
    """Update slices of `output`, each at coordinates along its first m axes; return it."""
    if not updates.size and combining.duplicates != "error":
        return output  # skips loops over many empty slices
    lead = output.shape[:m]
    if combining.duplicates == "error":
        blocks = _distinct(blocks, lead)
    if combining.reduction == "none":
        _assign(output, updates, combining.duplicates == "first", blocks, lead)
    else:
        _reduce(output, updates, combining, blocks, lead)
    return output


def _distinct(blocks: Blocks, lead: Position) -> Blocks:
    """Yield blocks; DuplicatesError if a tuple selects a slice that an earlier one selects."""
    seen: dict[int, Index] = {}
    for positions, places in blocks:
        for i, place in zip(positions, places, strict=True):
            row = None if place is None else int(_row_numbers([place], lead)[0])
            if row in seen:
                raise DuplicatesError(seen[row], i)
            if row is not None:
                seen[row] = i
        yield positions, places


def _assign(output: Array, updates: Array, first: bool, blocks: Blocks, lead: Position) -> None:
    """Copy updates to slices, of several to the same slice the last one, or the first one."""
    same, seen = updates.dtype == output.dtype, set[int]()
    target, source = (opaque(output), opaque(updates)) if same else (output, updates)
    for positions, places in blocks:
        for i, place in zip(positions, places, strict=True):
            if place is None:
                continue
            if first:
                row = int(_row_numbers([place], lead)[0])
                if row in seen:
                    continue
                seen.add(row)
            target[*place, ...] = source[*i, ...]


def _reduce(
    output: Array, updates: Array, combining: Combining, blocks: Blocks, lead: Position
) -> None:
    """Apply updates in row-major order, several at a time if their slices are distinct."""
    reduce, averages = REDUCTIONS[combining.reduction], combining.reduction == "mean"
    width = prod(output.shape[len(lead) :])
    runs, flat, start = output.reshape(-1, width), in_order(updates), 0
    type_ = native(runs[:0]).dtype
    wide = accumulator(type_) if averages else type_
    totals = native(runs).astype(wide) if averages else runs
    same = updates.dtype == output.dtype
    counts = np.zeros(len(runs), np.int64)  # of updates
    for _, places in blocks:
        kept = [n for n, place in enumerate(places) if place is not None]
        rows = _row_numbers([places[n] or () for n in kept], lead)
        parts = list(_without_duplicates(rows))
        before = np.concatenate([np.zeros(0, np.int64), *_earlier(counts, rows, parts)])
        for columns in pieces(width, output.itemsize):  # several only if the block is one slice
            first, shape = start + columns.start, (len(places), columns.stop - columns.start)
            new = flat[first : first + prod(shape)].reshape(shape)[kept]
            for some in parts:
                at = rows[some], columns
                with np.errstate(all="ignore"):
                    old, taken = native(totals[at]), native(new[some]).astype(wide, copy=False)
                    totals[at] = reduce.apply(old, taken)
                if not combining.include_self:
                    copied = before[some] == 0
                    alone, chosen = (rows[some][copied], columns), new[some][copied]
                    totals[alone] = chosen
                    target = opaque(runs) if same else runs
                    target[alone] = opaque(chosen) if same else chosen
        start += len(places) * width
    if averages:
        count = counts + combining.include_self
        (met,) = np.nonzero((counts > 0) & (count > 1))
        with np.errstate(all="ignore"):
            runs[met] = mean(native(totals[met]), count[met], type_)


def _earlier(counts: Array, rows: Array, parts: list[slice]) -> Iterator[Array]:
    """Yield how many updates each update of distinct rows follows, and count it."""
    for some in parts:
        yield counts[rows[some]]
        counts[rows[some]] += 1


def _row_numbers(places: list[Index], shape: Position) -> Array:
    """Return the linear indices of coordinates in `shape`; negative ones count from the end."""
    numbers = np.zeros(len(places), np.int64)
    for axis, size in enumerate(shape):
        numbers = numbers * size + np.array([place[axis] for place in places], np.int64) % size
    return numbers


def _without_duplicates(rows: Array) -> Iterator[slice]:
    """Yield consecutive slices of the rows, each without duplicates."""
    start, seen = 0, set[int]()
    for n, row in enumerate(rows.tolist()):
        if row in seen:
            yield slice(start, n)
            start, seen = n, set()
        seen.add(row)
    yield slice(start, len(rows))


def opaque(array: Array) -> Array:
    """Return the array as void bytes: moves copy padding, and booleans other than 0 and 1, too."""
    return array.view(np.dtype((np.void, array.dtype.itemsize)))
