"""Assemble an array's blocks in one row-major buffer, and split such a buffer into blocks."""

from collections.abc import Callable, Iterator
from itertools import count, product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from ndtool.engine import layouts
from ndtool.machine import pool
from ndtool.rules import grid
from ndtool.rules.plans import Shape
from ndtool.storage import tempfiles
from ndtool.storage.local import ByteRange, ProgressCallback

GAP = 1 << 16  # bytes; disk space of extents with smaller gaps is reserved in one call


class BlockGrid(NamedTuple):
    """An array divided into blocks of one shape, `step`."""

    shape: Shape
    step: Shape
    itemsize: int

    @property
    def blocks(self) -> int:
        return grid.blocks(self.shape, self.step)

    def box(self, number: int) -> grid.Box:
        """Return the bounds of a block along every axis."""
        return grid.box(self.shape, self.step, number)


def assembled(
    block_grid: BlockGrid,
    block: Callable[[int], memoryview] | None,
    touched: Callable[[Shape], Iterator[int]] | None,
    label: str,
    threads: int,
    progress: ProgressCallback | None,
    directory: str | None,
) -> ByteRange:
    """Read the blocks of an array, each once, and return its elements in row-major order.

    block: reads a block by its number; None only reserves the buffer. touched: yields the numbers
    of the blocks to read, given the grid; the others are zeros. label: the buffer's name in errors.
    progress: progress callback. directory: location of the unnamed file that holds a large buffer.
    """
    total, numbers, used = block_grid.blocks, iter(range(block_grid.blocks)), None
    if touched is not None:
        total = sum(1 for _ in touched(block_grid.step))
        numbers = touched(block_grid.step)
        if 2 * total < block_grid.blocks:
            used = _extents(block_grid, touched(block_grid.step))
    nbytes = prod(block_grid.shape) * block_grid.itemsize
    buffer = tempfiles.allocate(nbytes, label, used, directory)
    if block is None:
        return ByteRange(buffer.toreadonly())
    array = as_array(buffer, block_grid.shape, block_grid.itemsize)

    def put(number: int) -> None:
        box = block_grid.box(number)
        array[window(box)] = as_array(block(number), grid.sizes(box), block_grid.itemsize)

    pool.run_all(_counted(put, total, progress), numbers, min(threads, total))
    return ByteRange(buffer.toreadonly())


def write_blocks(
    buffer: memoryview,
    block_grid: BlockGrid,
    write: Callable[[int, memoryview, int], object],
    threads: int,
    progress: ProgressCallback | None,
) -> None:
    """Call write(0, bytes, number) with every block of an array in row-major order."""
    array = as_array(buffer, block_grid.shape, block_grid.itemsize)

    def put(number: int) -> None:
        write(0, bytes_of(array[window(block_grid.box(number))]), number)

    blocks = block_grid.blocks
    pool.run_all(_counted(put, blocks, progress), iter(range(blocks)), min(threads, blocks))


def _counted(
    work: Callable[[int], object], total: int, progress: ProgressCallback | None
) -> Callable[[int], object]:
    """Wrap a work item so that the progress callback is called after it."""
    if progress is None:
        return work
    done = count(1)
    progress(0.0)

    def counted(number: int) -> None:
        work(number)
        progress(next(done) / total)

    return counted


def as_array(buffer: memoryview, shape: Shape, itemsize: int) -> Any:
    """Return a buffer as an array of void elements, which NumPy copies whatever their dtype."""
    return np.ndarray(shape, f"V{itemsize}", buffer)


def bytes_of(array: Any) -> memoryview:
    """Return the bytes of an array in row-major order, without a copy if it is contiguous."""
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def window(box: grid.Box) -> tuple[Any, ...]:
    """Return the NumPy index that selects a block."""
    return (*(slice(*ends) for ends in box), ...)


def _extents(block_grid: BlockGrid, numbers: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Yield byte ranges that cover blocks of an array; gaps of up to GAP are included."""
    steps = layouts.contiguous_strides(block_grid.shape, block_grid.itemsize)
    first = stop = 0
    for number in numbers:
        box = block_grid.box(number)
        axis, length = len(box), block_grid.itemsize
        while axis and (
            steps[axis - 1] - length <= GAP or box[axis - 1][1] - box[axis - 1][0] == 1
        ):
            axis -= 1
            length += (box[axis][1] - box[axis][0] - 1) * steps[axis]
        inner = sum(start * step for (start, _), step in zip(box[axis:], steps[axis:], strict=True))
        for outer in product(*(range(*ends) for ends in box[:axis])):
            offset = inner + sum(i * step for i, step in zip(outer, steps, strict=False))
            if not first <= offset <= stop:
                if stop > first:
                    yield first, stop
                first = stop = offset
            stop = max(stop, offset + length)
    if stop > first:
        yield first, stop
