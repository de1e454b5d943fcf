"""The index tuples of the slow reference, in blocks and in row-major order; out-of-bounds modes."""

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ndtool.analysis.oracle.reductions import Array
from ndtool.errors import BoundsError

Position = tuple[int, ...]
Index = tuple[Any, ...]
Coordinates = Index | None  # coordinates of a slice; None if a tuple selects none
Allocator = Callable[[Position, np.dtype[Any]], Array]
ProgressCallback = Callable[[float], object]
Blocks = Iterator[tuple[list[Index], list[Coordinates]]]

TUPLES = 1 << 12  # index tuples in a block
BLOCK_BYTES = 1 << 20  # bytes to copy, reduce or compare at a time


def silent(_: float) -> None:
    """Ignore progress."""


class Options(NamedTuple):
    """The keywords of the operators; `filling` of gathers, those after it of scatters."""

    reduction: str = "none"
    out_of_bounds: str = "error"
    pad: int | None = None
    negatives: bool = True
    index_base: int = 0
    filling: bytes = b""
    include_self: bool = True
    duplicates: str = "last"
    allocate: Allocator = np.zeros
    progress: ProgressCallback = silent


def tuple_blocks(
    indices: Array,
    leading: Position,
    first: int,
    last: int,
    slice_size: int,
    bounds: "IndexResolver",
    progress: ProgressCallback,
) -> Blocks:
    """Yield positions of tuples, and coordinates of the slices they select, in row-major order.

    leading: the shape of the positions. first, last: a tuple stands for these axes of its position.
    slice_size: the slice size in bytes; a block has at most BLOCK_BYTES bytes, or one slice.
    """
    k = prod(indices.shape[len(leading) :])
    for start, tuples in _tuples(indices, prod(leading), k, slice_size, progress):
        positions = _positions(start, len(tuples), leading)
        pairs = zip(positions, map(bounds.coordinates, tuples.tolist()), strict=True)
        yield positions, [None if t is None else (*i[:first], *t, *i[last:]) for i, t in pairs]


def axis_blocks(
    data: Array,
    indices: Array,
    axis: int,
    b: int,
    bounds: "IndexResolver",
    progress: ProgressCallback,
) -> Blocks:
    """Yield positions in updates or the output, and coordinates of the slices selected in data."""
    outer_shape, slice_size = data.shape[:axis], prod(data.shape[axis + 1 :]) * data.itemsize
    count = prod(outer_shape)
    for batch, p in enumerate(np.ndindex(outer_shape)):
        block_progress = portion(progress, batch / count, (batch + 1) / count)
        batch_indices = np.asarray(indices[(*p[:b], ...)])
        for positions, selected in tuple_blocks(
            batch_indices, batch_indices.shape, 0, batch_indices.ndim, slice_size, bounds,
            block_progress,
        ):  # fmt: skip
            yield [(*p, *i) for i in positions], [t and (*p, *t) for t in selected]


def _tuples(
    indices: Array, count: int, k: int, slice_size: int, progress: ProgressCallback
) -> Iterator[tuple[int, Array]]:
    """Yield blocks: the linear index of the first tuple, and the tuples as rows of k."""
    flat, step = flat_view(indices), max(1, min(TUPLES, BLOCK_BYTES // max(slice_size, 1)))
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


def flat_view(array: Array) -> Any:
    """Return a flat view of an array in row-major order, or its `flat` iterator."""
    squeezed = array.squeeze()  # `flat` supports at most 32 axes
    return array.reshape(-1) if array.flags.c_contiguous or squeezed.ndim > 32 else squeezed.flat


def block_ranges(count: int, itemsize: int, progress: ProgressCallback = silent) -> Iterator[slice]:
    """Yield slices of `count` elements, each of at most BLOCK_BYTES bytes or one element."""
    step = max(1, BLOCK_BYTES // itemsize)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
        progress(min(start + step, count) / count)


def portion(progress: ProgressCallback, begin: float, end: float) -> ProgressCallback:
    """Return a callback for the portion `begin`..`end` of the work that `progress` reports on."""
    return lambda fraction: progress(begin + fraction * (end - begin))


class IndexResolver:
    """The bounds of index tuples: the coordinates that each selects, and checks.

    shape: that of data. axes: the axes of data that the components index.
    """

    def __init__(self, options: Options, shape: Position, axes: Sequence[int]) -> None:
        self._mode, self._pad, self._base = options.out_of_bounds, options.pad, options.index_base
        self._negatives = options.negatives and not self._base
        self._shape, self._axes = shape, axes
        self._sizes = [shape[axis] for axis in axes]

    def coordinates(self, index: list[int]) -> Coordinates:
        """Return the coordinates of the slice that a tuple selects, None if it selects none."""
        if self._pad is not None and self._pad in index:
            return None
        index = [i - self._base for i in index]
        pairs, negatives = list(zip(index, self._sizes, strict=True)), self._negatives
        if all((-size if negatives else 0) <= i < size for i, size in pairs):
            return tuple(index)
        if self._mode == "clip":
            normalized = [i + size if i < 0 and negatives else i for i, size in pairs]
            return tuple(
                min(max(i, 0), size - 1) for i, size in zip(normalized, self._sizes, strict=True)
            )
        if self._mode == "wrap":
            return tuple(i % size for i, size in pairs)
        return None

    def _is_out_of_bounds(self, column: Array, size: int) -> Array:
        """Return a mask of the indices that are out of bounds and not padding."""
        base = self._base
        bad: Array = (column < (-size if self._negatives else base)) | (column >= size + base)
        return bad if self._pad is None else bad & (column != self._pad)

    def check(self, indices: Array, leading: Position, progress: ProgressCallback) -> None:
        """Raise BoundsError if an index is out of bounds and the mode does not allow it.

        leading: the shape of the tuples' positions in `indices`.
        """
        if self._mode in ("fill", "drop"):
            return
        if self._mode in ("clip", "wrap") and 0 not in self._sizes:
            return
        shape, axes = self._shape, self._axes
        total, k = prod(leading), len(axes)
        first, count = None, 0
        for start, tuples in _tuples(indices, total if k else 0, k, 0, progress):
            is_bad = np.stack(
                [self._is_out_of_bounds(tuples[:, j], shape[axis]) for j, axis in enumerate(axes)],
                axis=1,
            )
            if first is None and is_bad.any():
                row, component = np.argwhere(is_bad)[0].tolist()
                first = start + row, component, int(tuples[row, component])
            count += int(is_bad.any(axis=1).sum())
        if first is not None:
            linear_index, component, value = first
            raise BoundsError(
                position=_positions(linear_index, 1, leading)[0],
                component=None if leading == indices.shape else component,
                axis=axes[component],
                value=value,
                base=self._base,
                lowest=0 if self._base else None,
                size=shape[axes[component]],
                count=count,
                total=total,
            )
