"""Updates of slices by the slow reference: one after another, as the standards define them."""

from collections import defaultdict
from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np

from ndtool.analysis.oracle.blocks import Blocks, Index, Options, Position, block_ranges, flat_view
from ndtool.analysis.oracle.reductions import REDUCTIONS, Array, Reduction, mean, native
from ndtool.errors import DuplicatesError

_MAX_IN_DICT = 1 << 16  # tuples, beyond which each slice has its own entry in a table


def update_slices(
    output: Array, updates: Array, options: Options, blocks: Blocks, m: int, repeated: slice
) -> Array:
    """Update slices of `output`, each at coordinates along its first m axes; return `output`.

    repeated: the axes of updates along which all positions have the same indices.
    """
    shape = output.shape[:m]
    if options.duplicates != "last":
        positions_shape = updates.shape[: updates.ndim - (output.ndim - m)]
        many = prod(positions_shape) > _MAX_IN_DICT
        firsts = (
            options.allocate((prod(shape),), np.dtype(np.int64))
            if many
            else defaultdict[int, int](int)
        )
        raises = options.duplicates == "error"
        blocks = _skip_duplicates(blocks, shape, positions_shape, firsts, raises, repeated)
    if not updates.size:
        if options.duplicates == "error":
            for _ in blocks:
                pass
        return output  # avoids loops over many empty slices
    if options.reduction != "none":
        has_counts = REDUCTIONS[options.reduction].is_mean or not options.include_self
        counts = options.allocate((prod(shape) if has_counts else 0,), np.dtype(np.int64))
        _reduce(output, updates, options, blocks, shape, counts)
        return output
    same_type = updates.dtype == output.dtype
    target, source = (as_bytes(output), as_bytes(updates)) if same_type else (output, updates)
    for positions, selected in blocks:
        for i, coordinates in zip(positions, selected, strict=True):
            if coordinates is not None:
                target[*coordinates, ...] = source[*i, ...]
    return output


def _skip_duplicates(
    blocks: Blocks, shape: Position, positions_shape: Position, firsts: Any, raise_error: bool,
    repeated: slice,
) -> Blocks:  # fmt: skip
    """Yield blocks without duplicates: later ones select nothing, or raise if `raise_error`.

    positions_shape: the shape of the positions of updates. firsts: by slice, 0, and then 1 more
    than the linear index of the first position that selects it.
    """

    def in_indices(position: Position) -> Position:
        return position[: repeated.start] + position[repeated.stop :]

    for block_positions, selected in blocks:
        positions, distinct = list(block_positions), list(selected)
        for n, (position, coordinates) in enumerate(zip(positions, selected, strict=True)):
            if coordinates is None:
                continue
            (row,) = _linear_indices([coordinates], shape).tolist()
            if not firsts[row]:
                firsts[row] = 1 + int(np.ravel_multi_index(position, positions_shape))
            elif raise_error:
                first = np.unravel_index(int(firsts[row]) - 1, positions_shape)
                raise DuplicatesError(
                    first=in_indices(tuple(map(int, first))), second=in_indices(position)
                )
            else:
                distinct[n] = None
        yield positions, distinct


def _reduce(
    output: Array, updates: Array, options: Options, blocks: Blocks, leading: Position,
    counts: Array,
) -> None:  # fmt: skip
    """Apply updates in row-major order, several at a time if their slices are distinct.

    leading: the shape of the axes of slices. counts: a zero for each slice, if they are counted.
    """
    width, reduction = prod(output.shape[len(leading) :]), REDUCTIONS[options.reduction]
    output_slices, flat, start = output.reshape(-1, width), flat_view(updates), 0
    for _, selected in blocks:
        applied = [n for n, coordinates in enumerate(selected) if coordinates is not None]
        rows = _linear_indices([selected[n] or () for n in applied], leading)
        for columns in block_ranges(width, output.itemsize):
            first, shape = start + columns.start, (len(selected), columns.stop - columns.start)
            block_updates = flat[first : first + prod(shape)].reshape(shape)[applied]
            for span in _distinct_spans(rows):
                if options.include_self:
                    _combine(output_slices, (rows[span], columns), reduction, block_updates[span])
                else:
                    is_first = counts[rows[span]] == 0
                    as_bytes(output_slices)[rows[span][is_first], columns] = as_bytes(
                        block_updates[span][is_first].astype(output_slices.dtype)
                    )
                    _combine(
                        output_slices,
                        (rows[span][~is_first], columns),
                        reduction,
                        block_updates[span][~is_first],
                    )
                if len(counts) and columns.stop == width:
                    counts[rows[span]] += 1
        start += len(selected) * width
    if reduction.is_mean:
        _divide(output_slices, counts, options.include_self)


def _combine(
    output_slices: Array, index: tuple[Array, slice], reduction: Reduction, updates: Array
) -> None:
    with np.errstate(all="ignore"):
        output_slices[index] = reduction.apply(native(output_slices[index]), native(updates))


def _divide(output_slices: Array, counts: Array, include_self: bool) -> None:
    """Divide sums by the counts of their terms, a slice at a time."""
    for span in block_ranges(len(counts), counts.itemsize):
        for row in span.start + np.flatnonzero(counts[span]):
            count = np.array(int(counts[row]) + include_self)
            for columns in block_ranges(output_slices.shape[1], output_slices.itemsize):
                with np.errstate(all="ignore"):
                    output_slices[row, columns] = mean(native(output_slices[row, columns]), count)


def _linear_indices(selected: list[Index], shape: Position) -> Array:
    """Return the linear indices of coordinates in `shape`; negative ones count from the end."""
    linear_indices = np.zeros(len(selected), np.int64)
    for axis, size in enumerate(shape):
        linear_indices = (
            linear_indices * size
            + np.array([coordinates[axis] for coordinates in selected], np.int64) % size
        )
    return linear_indices


def _distinct_spans(rows: Array) -> Iterator[slice]:
    """Yield consecutive slices of the rows, each without duplicates."""
    start, seen = 0, set[int]()
    for n, row in enumerate(rows.tolist()):
        if row in seen:
            yield slice(start, n)
            start, seen = n, set()
        seen.add(row)
    yield slice(start, len(rows))


def as_bytes(array: Array) -> Array:
    """Return the array as void bytes; copies of them preserve padding and bytes of booleans."""
    return array.view(np.dtype((np.void, array.dtype.itemsize)))
