"""Updates of slices by the slow reference: one after another, as the standards define them."""

from collections.abc import Iterator
from math import prod

import numpy as np

from ndtool.analysis.oracle.blocks import Blocks, Index, Position, in_order, slices
from ndtool.analysis.oracle.reductions import REDUCTIONS, Reduction, mean, native
from ndtool.analysis.oracle.refusals import Array, Combination
from ndtool.errors import DuplicatesError


def updated(
    output: Array,
    updates: Array,
    combination: Combination,
    blocks: Blocks,
    m: int,
    repeated: slice = slice(0, 0),
) -> Array:
    """Update slices of `output`, each at coordinates along its first m axes; return it.

    repeated: the axes of updates along which the same indices apply.
    """
    if combination.duplicates != "last":
        blocks = _distinct(blocks, output.shape[:m], combination.duplicates == "error", repeated)
    if not updates.size:
        if combination.duplicates == "error":
            list(blocks)
        return output  # skips loops over many empty slices
    if combination.reduction != "none":
        _reduce(output, updates, combination, blocks, m)
        return output
    same = updates.dtype == output.dtype
    target, source = (as_bytes(output), as_bytes(updates)) if same else (output, updates)
    for positions, selected in blocks:
        for i, coordinates in zip(positions, selected, strict=True):
            if coordinates is not None:
                target[*coordinates, ...] = source[*i, ...]
    return output


def _distinct(blocks: Blocks, shape: Position, refuse: bool, repeated: slice) -> Blocks:
    """Yield blocks without duplicates: a later one selects nothing, or raises if `refuse`."""
    earlier: dict[int, Position] = {}
    for block_positions, selected in blocks:
        positions, distinct = list(block_positions), list(selected)
        for n, (position, coordinates) in enumerate(zip(positions, selected, strict=True)):
            if coordinates is None:
                continue
            (row,) = _row_numbers([coordinates], shape).tolist()
            if row not in earlier:
                earlier[row] = position[: repeated.start] + position[repeated.stop :]
            elif refuse:
                second = position[: repeated.start] + position[repeated.stop :]
                raise DuplicatesError(earlier[row], second)
            else:
                distinct[n] = None
        yield positions, distinct


def _reduce(
    output: Array, updates: Array, combination: Combination, blocks: Blocks, m: int
) -> None:
    """Apply updates in row-major order, several at a time if their slices are distinct."""
    leading, width, reduce = (
        output.shape[:m],
        prod(output.shape[m:]),
        REDUCTIONS[combination.reduction],
    )
    runs, flat, start = output.reshape(-1, width), in_order(updates), 0
    counted = combination.reduction == "mean" or not combination.include_self
    counts = np.zeros(len(runs) if counted else 0, np.int64)
    for _, selected in blocks:
        applied = [n for n, coordinates in enumerate(selected) if coordinates is not None]
        rows = _row_numbers([selected[n] or () for n in applied], leading)
        for columns in slices(width, output.itemsize):  # several only if the block is one slice
            first, shape = start + columns.start, (len(selected), columns.stop - columns.start)
            block_updates = flat[first : first + prod(shape)].reshape(shape)[applied]
            for span in _without_duplicates(rows):
                if combination.include_self:
                    _combine(runs, (rows[span], columns), reduce, block_updates[span])
                else:
                    fresh = counts[rows[span]] == 0
                    as_bytes(runs)[rows[span][fresh], columns] = as_bytes(
                        block_updates[span][fresh].astype(runs.dtype)
                    )
                    _combine(
                        runs, (rows[span][~fresh], columns), reduce, block_updates[span][~fresh]
                    )
                if counted and columns.stop == width:
                    counts[rows[span]] += 1
        start += len(selected) * width
    if combination.reduction == "mean":
        _divide(runs, counts, combination.include_self)


def _combine(runs: Array, at: tuple[Array, slice], reduce: Reduction, updates: Array) -> None:
    with np.errstate(all="ignore"):
        runs[at] = reduce.apply(native(runs[at]), native(updates))


def _divide(runs: Array, counts: Array, include_self: bool) -> None:
    """Divide sums by the numbers of their summands, a slice at a time."""
    for row in np.flatnonzero(counts):
        number = np.array(int(counts[row]) + include_self)
        for columns in slices(runs.shape[1], runs.itemsize):
            with np.errstate(all="ignore"):
                runs[row, columns] = mean(native(runs[row, columns]), number)


def _row_numbers(selected: list[Index], shape: Position) -> Array:
    """Return the linear indices of coordinates in `shape`; negative ones count from the end."""
    numbers = np.zeros(len(selected), np.int64)
    for axis, size in enumerate(shape):
        numbers = (
            numbers * size
            + np.array([coordinates[axis] for coordinates in selected], np.int64) % size
        )
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


def as_bytes(array: Array) -> Array:
    """Return the array as void bytes: moves copy padding, and booleans other than 0 and 1, too."""
    return array.view(np.dtype((np.void, array.dtype.itemsize)))
