"""Grids: arrays divided into blocks of one shape, numbered in row-major order."""

from collections.abc import Iterator
from itertools import product
from math import prod

from ndtool.rules.plans import Shape

Box = tuple[tuple[int, int], ...]  # (start, stop) of a block along every axis


def grid_shape(shape: Shape, grid: Shape) -> Shape:
    """Return the number of blocks along every axis.

    >>> blocks_along((5, 4), (2, 4))
    (3, 1)
    """
    return tuple(-(-size // max(1, step)) for size, step in zip(shape, grid, strict=True))


def count_blocks(shape: Shape, grid: Shape) -> int:
    """Return the number of blocks of a grid.

    >>> blocks((5, 4), (2, 4))
    3
    """
    return prod(grid_shape(shape, grid))


def box(shape: Shape, grid: Shape, number: int) -> Box:
    """Return (start, stop) along every axis of a block, by its row-major index in the grid.

    >>> box((5, 4), (2, 4), 2)
    ((4, 5), (0, 4))
    """
    bounds = []
    counts = grid_shape(shape, grid)
    for size, step, count in zip(reversed(shape), reversed(grid), reversed(counts), strict=True):
        number, coordinate = divmod(number, count)
        bounds.append((coordinate * step, min(size, (coordinate + 1) * step)))
    return tuple(reversed(bounds))


def coordinates(bounds: Box, grid: Shape) -> Shape:
    """Return the grid coordinates of the block that contains the first element of a box."""
    return tuple(start // step for (start, _), step in zip(bounds, grid, strict=True))


def box_shape(bounds: Box) -> Shape:
    """Return the shape of a block."""
    return tuple(stop - first for first, stop in bounds)


def byte_ranges(shape: Shape, bounds: Box, itemsize: int) -> Iterator[tuple[int, int, int]]:
    """Yield (offset in the array, offset in the block, bytes) of each contiguous byte range.

    >>> list(byte_ranges((5, 4), ((4, 5), (1, 3)), 8))
    [(136, 0, 16)]
    """
    length, axis, step = itemsize, len(shape), itemsize
    while axis and length == step:  # a complete axis extends the byte range
        axis -= 1
        length *= bounds[axis][1] - bounds[axis][0]
        step *= shape[axis]
    steps = [itemsize * prod(shape[d + 1 :]) for d in range(len(shape))]
    inner = sum(bounds[d][0] * steps[d] for d in range(axis, len(shape)))
    ranges = (range(first, stop) for first, stop in bounds[:axis])
    for number, position in enumerate(product(*ranges)):
        outer = sum(i * s for i, s in zip(position, steps, strict=False))
        if length:
            yield outer + inner, number * length, length
