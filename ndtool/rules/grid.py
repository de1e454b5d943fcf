"""Grids: arrays divided into blocks of one shape, numbered in row-major order."""

from collections.abc import Iterator
from itertools import product
from math import prod

from ndtool.rules.plans import Shape

Box = tuple[tuple[int, int], ...]  # (start, stop) of a block along every axis


def grid_shape(shape: Shape, block_shape: Shape) -> Shape:
    """Return the number of blocks along every axis.

    >>> grid_shape((5, 4), (2, 4))
    (3, 1)
    """
    return tuple(
        -(-size // max(1, block_size)) for size, block_size in zip(shape, block_shape, strict=True)
    )


def count_blocks(shape: Shape, block_shape: Shape) -> int:
    """Return the number of blocks of a grid.

    >>> count_blocks((5, 4), (2, 4))
    3
    """
    return prod(grid_shape(shape, block_shape))


def box(shape: Shape, block_shape: Shape, index: int) -> Box:
    """Return (start, stop) along every axis of a block, by its row-major index in the grid.

    >>> box((5, 4), (2, 4), 2)
    ((4, 5), (0, 4))
    """
    bounds = []
    for size, step in zip(reversed(shape), reversed(block_shape), strict=True):
        index, coordinate = divmod(index, -(-size // max(1, step)))
        bounds.append((coordinate * step, min(size, (coordinate + 1) * step)))
    return tuple(reversed(bounds))


def coordinates(bounds: Box, block_shape: Shape) -> Shape:
    """Return the grid coordinates of the block that contains the first element of a box."""
    return tuple(
        start // block_size for (start, _), block_size in zip(bounds, block_shape, strict=True)
    )


def box_shape(bounds: Box) -> Shape:
    """Return the shape of a block."""
    return tuple(stop - first for first, stop in bounds)


def byte_ranges(shape: Shape, bounds: Box, itemsize: int) -> Iterator[tuple[int, int, int]]:
    """Yield (offset in the array, offset in the block, bytes) of each contiguous byte range.

    >>> list(byte_ranges((5, 4), ((4, 5), (1, 3)), 8))
    [(136, 0, 16)]
    """
    length, axis, extent = itemsize, len(shape), itemsize
    while axis and length == extent:  # a complete axis extends the byte range
        axis -= 1
        length *= bounds[axis][1] - bounds[axis][0]
        extent *= shape[axis]
    strides = [itemsize * prod(shape[d + 1 :]) for d in range(len(shape))]
    inner = sum(bounds[d][0] * strides[d] for d in range(axis, len(shape)))
    ranges = (range(first, stop) for first, stop in bounds[:axis])
    for row, position in enumerate(product(*ranges)):
        outer = sum(i * s for i, s in zip(position, strides, strict=False))
        if length:
            yield outer + inner, row * length, length
