"""Assembly of the blocks of an array in a row-major buffer, and the reverse."""

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

MAX_GAP = 1 << 16  # maximum bytes of a gap in an extent, whose disk space is reserved in one call


class BlockGrid(NamedTuple):
    """An array that is divided into blocks of one shape."""

    shape: Shape
    block_shape: Shape
    itemsize: int

    @property
    def block_count(self) -> int:
        return grid.count_blocks(self.shape, self.block_shape)

    def bounds_of(self, index: int) -> grid.Box:
        """Return the bounds of a block along every axis."""
        return grid.box(self.shape, self.block_shape, index)


def assemble(
    block_grid: BlockGrid,
    read_block: Callable[[int], memoryview] | None,
    touched_blocks: Callable[[Shape], Iterator[int]] | None,
    label: str,
    threads: int,
    progress: ProgressCallback | None,
    directory: str | None,
) -> ByteRange:
    """Read the blocks of an array, each once, and return its elements in row-major order.

    read_block: reads a block by its index in the grid; None only reserves the buffer.
    touched_blocks: a function of the block shape that yields the indices of the blocks to read; the
    other blocks are zeros. label: the buffer's name in errors. progress: progress callback.
    directory: the directory of the unnamed file of a large buffer.
    """
    total, indices, extents = block_grid.block_count, iter(range(block_grid.block_count)), None
    if touched_blocks is not None:
        total = sum(1 for _ in touched_blocks(block_grid.block_shape))
        indices = touched_blocks(block_grid.block_shape)
        if 2 * total < block_grid.block_count:
            extents = _extents(block_grid, touched_blocks(block_grid.block_shape))
    nbytes = prod(block_grid.shape) * block_grid.itemsize
    buffer = tempfiles.allocate(nbytes, label, extents, directory)
    if read_block is None:
        return ByteRange(buffer.toreadonly())
    array = as_array(buffer, block_grid.shape, block_grid.itemsize)

    def copy_block(index: int) -> None:
        box = block_grid.bounds_of(index)
        array[box_slices(box)] = as_array(
            read_block(index), grid.box_shape(box), block_grid.itemsize
        )

    pool.run_all(_report_progress(copy_block, total, progress), indices, min(threads, total))
    return ByteRange(buffer.toreadonly())


def write_blocks(
    buffer: memoryview,
    block_grid: BlockGrid,
    write: Callable[[int, memoryview, int], object],
    threads: int,
    progress: ProgressCallback | None,
) -> None:
    """Call write(0, bytes, index) for every block of an array in row-major order."""
    array = as_array(buffer, block_grid.shape, block_grid.itemsize)

    def write_block(index: int) -> None:
        write(0, as_bytes(array[box_slices(block_grid.bounds_of(index))]), index)

    blocks = block_grid.block_count
    pool.run_all(
        _report_progress(write_block, blocks, progress), iter(range(blocks)), min(threads, blocks)
    )


def _report_progress(
    task: Callable[[int], object], total: int, progress: ProgressCallback | None
) -> Callable[[int], object]:
    """Return a task that calls the progress callback when it completes."""
    if progress is None:
        return task
    completed = count(1)
    progress(0.0)

    def run_task(index: int) -> None:
        task(index)
        progress(next(completed) / total)

    return run_task


def as_array(buffer: memoryview, shape: Shape, itemsize: int) -> Any:
    """Return a buffer as an array of void elements, for copies by NumPy of any dtype."""
    return np.ndarray(shape, f"V{itemsize}", buffer)


def as_bytes(array: Any) -> memoryview:
    """Return the bytes of an array in row-major order, without a copy if it is contiguous."""
    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def box_slices(box: grid.Box) -> tuple[Any, ...]:
    """Return the NumPy index that selects a block."""
    return (*(slice(*ends) for ends in box), ...)


def _extents(block_grid: BlockGrid, indices: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Yield byte ranges that cover blocks of an array, with gaps of up to MAX_GAP bytes."""
    strides = layouts.contiguous_strides(block_grid.shape, block_grid.itemsize)
    first = stop = 0
    for index in indices:
        box = block_grid.bounds_of(index)
        axis, length = len(box), block_grid.itemsize
        while axis and (
            strides[axis - 1] - length <= MAX_GAP or box[axis - 1][1] - box[axis - 1][0] == 1
        ):
            axis -= 1
            length += (box[axis][1] - box[axis][0] - 1) * strides[axis]
        inner = sum(
            start * stride for (start, _), stride in zip(box[axis:], strides[axis:], strict=True)
        )
        for outer in product(*(range(*ends) for ends in box[:axis])):
            offset = inner + sum(i * stride for i, stride in zip(outer, strides, strict=False))
            if not first <= offset <= stop:
                if stop > first:
                    yield first, stop
                first = stop = offset
            stop = max(stop, offset + length)
    if stop > first:
        yield first, stop
