"""The index tuples of the slow reference, in blocks and in order; the out-of-bounds modes."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ndtool.analysis.oracle.refusals import Array
from ndtool.errors import BoundsError

Position = tuple[int, ...]
Index = tuple[Any, ...]
Coordinates = Index | None  # coordinates of a slice; None if a tuple selects none
Blocks = Iterator[tuple[list[Index], list[Coordinates]]]
ProgressCallback = Callable[[float], object]

TUPLES = 1 << 12  # index tuples in a block
BLOCK_BYTES = 1 << 20  # bytes to copy, reduce or compare at a time


def silent(_: float) -> None:
    """Ignore progress."""


def nd_blocks(
    indices: Array, b: int, run: int, bounds: "Bounds", progress: ProgressCallback
) -> Blocks:
    """Yield positions of tuples, and the coordinates that they select in data, in row-major order.

    run: the slice size in bytes; a block has at most BLOCK_BYTES bytes, or one slice.
    """
    leading, k = indices.shape[:-1], indices.shape[-1]
    for start, tuples in _tuples(indices, prod(leading), k, run, progress):
        positions = _positions(start, len(tuples), leading)
        pairs = zip(positions, map(bounds.coordinates, tuples.tolist()), strict=True)
        yield positions, [None if t is None else (*i[:b], *t) for i, t in pairs]


def elements_blocks(
    indices: Array, axis: int, run: int, bounds: "Bounds", progress: ProgressCallback
) -> Blocks:
    """Yield positions in indices, and the coordinates selected in data, in row-major order."""
    shape = indices.shape
    for start, values in _tuples(indices, prod(shape), 1, run, progress):
        positions = _positions(start, len(values), shape)
        pairs = zip(positions, map(bounds.coordinates, values.tolist()), strict=True)
        yield (
            positions,
            [None if t is None else (*i[:axis], *t, *i[axis + 1 :]) for i, t in pairs],
        )


def plain_blocks(
    data: Array, indices: Array, axis: int, b: int, bounds: "Bounds", progress: ProgressCallback
) -> Blocks:
    """Yield positions in updates or the output, and the coordinates selected in data."""
    before, run = data.shape[:axis], prod(data.shape[axis + 1 :]) * data.itemsize
    count = prod(before)
    for number, p in enumerate(np.ndindex(before)):
        block_progress = portion(progress, number / count, (number + 1) / count)
        own_indices = np.asarray(indices[(*p[:b], ...)])
        for positions, selected in elements_blocks(own_indices, 0, run, bounds, block_progress):
            in_data = [
                None if coordinates is None else (*p, coordinates[0]) for coordinates in selected
            ]
            yield [(*p, *i) for i in positions], in_data


def _tuples(
    indices: Array, count: int, k: int, run: int, progress: ProgressCallback
) -> Iterator[tuple[int, Array]]:
    """Yield blocks: the linear index of the first tuple, and the tuples as rows of k."""
    flat, step = in_order(indices), max(1, min(TUPLES, BLOCK_BYTES // max(run, 1)))
    for start in range(0, count, step):
        stop = min(start + step, count)
        yield start, flat[start * k : stop * k].reshape(stop - start, k)
        progress(stop / count)


def _positions(start: int, count: int, shape: Position) -> list[Index]:
    """Return the positions of `count` elements from linear index `start`."""
    if not shape:
        return [()] * count
    columns = np.unravel_index(np.arange(start, start + count), shape)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def in_order(array: Array) -> Any:
    """Return a flat view of an array in row-major order, or its iterator, to slice."""
    narrow = array.squeeze()  # `flat` supports at most 32 axes
    return array.reshape(-1) if array.flags.c_contiguous or narrow.ndim > 32 else narrow.flat


def slices(count: int, itemsize: int, progress: ProgressCallback = silent) -> Iterator[slice]:
    """Yield slices of `count` elements, each of at most BLOCK_BYTES bytes or one element."""
    step = max(1, BLOCK_BYTES // itemsize)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
        progress(min(start + step, count) / count)


def portion(progress: ProgressCallback, begin: float, end: float) -> ProgressCallback:
    """Return a callback for the portion `begin`..`end` of the work that `progress` is about."""
    return lambda fraction: progress(begin + fraction * (end - begin))


class Bounds:
    """The coordinates that index tuples select; handling: out-of-bounds mode, padding, negatives.

    axes: the axes of data, of shape `shape`, that the components index.
    """

    def __init__(
        self, handling: tuple[str, int | None, bool], shape: Position, axes: Sequence[int]
    ) -> None:
        self._name, self._pad, self._negatives = handling
        self._shape, self._axes = shape, axes
        self._sizes = [shape[axis] for axis in axes]

    def coordinates(self, index: list[int]) -> Coordinates:
        """Return the coordinates of the slice that a tuple selects, None if it selects none."""
        if self._pad is not None and self._pad in index:
            return None
        pairs, counts = list(zip(index, self._sizes, strict=True)), self._negatives
        if all((-size if counts else 0) <= i < size for i, size in pairs):
            return tuple(index)
        if self._name == "clip":
            normalized = [i + size if i < 0 and counts else i for i, size in pairs]
            return tuple(
                min(max(i, 0), size - 1) for i, size in zip(normalized, self._sizes, strict=True)
            )
        if self._name == "wrap":
            return tuple(i % size for i, size in pairs)
        return None

    def _is_bad(self, column: Array, size: int) -> Array:
        """Return which indices are out of bounds, and no padding."""
        bad: Array = (column < (-size if self._negatives else 0)) | (column >= size)
        return bad if self._pad is None else bad & (column != self._pad)

    def check(self, indices: Array, lead: Position, progress: ProgressCallback) -> None:
        """Raise BoundsError if an index is out of bounds and the mode does not allow it.

        lead: the shape of the tuples' positions in `indices`.
        """
        if self._name in ("fill", "drop"):
            return
        if self._name in ("clip", "wrap") and 0 not in self._sizes:
            return
        shape, axes = self._shape, self._axes
        total, k = prod(lead), len(axes)
        first, count = None, 0
        for start, tuples in _tuples(indices, total if k else 0, k, 0, progress):
            bad = np.stack(
                [self._is_bad(tuples[:, j], shape[axis]) for j, axis in enumerate(axes)], axis=1
            )
            if first is None and bad.any():
                row, component = np.argwhere(bad)[0].tolist()
                first = start + row, component, int(tuples[row, component])
            count += int(bad.any(axis=1).sum())
        if first is not None:
            number, component, value = first
            raise BoundsError(
                position=_positions(number, 1, lead)[0],
                component=None if lead == indices.shape else component,
                axis=axes[component],
                value=value,
                size=shape[axes[component]],
                count=count,
                total=total,
            )
