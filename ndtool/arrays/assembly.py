"""Boxes of an array assembled from its blocks, and divided into them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count, product
from math import prod
from typing import Any

from ndtool.arrays.source import AccessedElements, ArrayMetadata, Source
from ndtool.engine import layouts
from ndtool.errors import (
    InputError,
    NdtoolError,
    ResourceError,
    argument_name,
    lacks_memory,
    library_message,
    printable,
)
from ndtool.machine.threads import run_all
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.plans import Shape
from ndtool.storage import tempfiles
from ndtool.storage.descriptors import failure
from ndtool.storage.local import ProgressCallback
from ndtool.storage.tempfiles import WriteAt

MAX_GAP = 1 << 16  # bytes of a gap in an extent, whose disk space is reserved in one call


@contextmanager
def library_errors(
    label: str, error_type: type[NdtoolError] = InputError, limit: int = 200
) -> Iterator[None]:
    """Convert a library's exceptions, of any type if a file is damaged, to NdtoolErrors.

    limit: characters of the library's message.
    """
    try:
        yield
    except NdtoolError:
        raise
    except MemoryError:
        raise ResourceError(f"{printable(label)}: not enough memory") from None
    except Exception as exc:
        if isinstance(exc, OSError) and exc.errno and exc.strerror == os.strerror(exc.errno):
            raise failure(exc, label, error_type) from None
        kind = ResourceError if lacks_memory(exc) else error_type
        raise kind(f"{printable(label)}: {library_message(exc, limit)}") from None


class ChunkedSource(Source):
    """A source of blocks, such as chunks, each of which a subclass reads at once.

    fill: the element of missing chunks.
    """

    fill: Any = 0

    def read_chunk(self, index: int, box: Box) -> Any:
        """Read and decode the chunk at a box; return an array, None if the chunk is missing.

        A chunk at the end of an axis may have more elements than the box.
        """
        raise NotImplementedError

    def read_block(self, index: int, box: Box) -> Any:
        """Return the elements of the block at a box; from any thread."""
        import numpy as np

        sizes = grid.box_shape(box)
        with library_errors(self.name):
            chunk = self.read_chunk(index, box)
            if chunk is None:
                return np.broadcast_to(self.fill, sizes)
            return chunk if chunk.shape == sizes else chunk[(*map(slice, sizes), ...)]

    def prefetch(self, touched: AccessedElements | None) -> None:
        """Prepare to read the blocks with touched elements, None for all."""

    def load(
        self,
        touched: AccessedElements | None = None,
        threads: int = 1,
        directory: str | None = None,
        dry: bool = False,
    ) -> memoryview:
        metadata, extents = self.metadata, None
        block_shape = metadata.block_shape
        blocks = total = grid.count_blocks(metadata.shape, block_shape)
        indices: Iterable[int] = range(total)
        if touched is not None:
            total = sum(1 for _ in touched.blocks(block_shape))
            indices = touched.blocks(block_shape)
            if 2 * total < blocks:
                extents = _extents(metadata, touched.blocks(block_shape))
        label = f"temporary copy of {argument_name(self.name)}"
        with tempfiles.open_buffer(metadata.nbytes, label, extents, directory) as (buffer, write):
            if not dry:
                self.prefetch(touched)
                copy = _reporting(self._copier((), buffer, write), total, self.progress)
                run_all(copy, iter(indices), min(max(threads, self.concurrency), total))
        return buffer

    def read(
        self, shape: Shape, box: Box, buffer: memoryview, chunks: Iterable[int] | None, threads: int
    ) -> None:
        """Read a box; a block is read again for every box that overlaps it."""
        blocks = box_blocks(self.metadata, box, chunks)
        run_all(self._copier(box, buffer), blocks, min(self.concurrency, threads))

    def _copier(
        self, box: Box, buffer: memoryview, write: WriteAt | None = None
    ) -> Callable[[int], None]:
        """Return a function that copies the part of a block in a box to the box's buffer.

        write: writes to the buffer of all elements, for blocks that are contiguous in it.
        """
        metadata = self.metadata
        box, itemsize = (*box, *_complete(metadata.shape[len(box) :])), metadata.dtype.itemsize
        array = as_array(buffer, grid.box_shape(box), itemsize)

        def copy(index: int) -> None:
            bounds = grid.box(metadata.shape, metadata.block_shape, index)
            block = self.read_block(index, bounds).view(array.dtype)
            if write is not None:
                offset, _, length = next(grid.byte_ranges(metadata.shape, bounds, itemsize))
                if length == block.nbytes:
                    write(offset, as_bytes(block))
                    return
            overlap = tuple(
                (max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, bounds, strict=True)
            )
            if overlap != bounds:
                block = block[box_slices(overlap, bounds)]
            array[box_slices(overlap, box)] = block

        return copy


def write_blocks(
    buffer: memoryview,
    metadata: ArrayMetadata,
    box: Box,
    write: Callable[[int, memoryview, int], object],
    threads: int,
    progress: ProgressCallback | None = None,
) -> None:
    """Call write(0, bytes, index) for every block in a box of complete blocks."""
    box = (*box, *_complete(metadata.shape[len(box) :]))
    array = as_array(buffer, grid.box_shape(box), metadata.dtype.itemsize)

    def write_block(index: int) -> None:
        bounds = grid.box(metadata.shape, metadata.block_shape, index)
        write(0, as_bytes(array[box_slices(bounds, box)]), index)

    total = grid.count_blocks(grid.box_shape(box), metadata.block_shape)
    task = _reporting(write_block, total, progress)
    run_all(task, box_blocks(metadata, box), min(threads, total))


def box_blocks(
    metadata: ArrayMetadata, box: Box, chunks: Iterable[int] | None = None
) -> Iterator[int]:
    """Yield the indices of the blocks that a box over the leading axes overlaps.

    chunks: only those with these row-major indices in the box.
    """
    counts = grid.grid_shape(metadata.shape, metadata.block_shape)
    strides = layouts.contiguous_strides(counts, 1)
    ranges = [
        range(first // size, -(-stop // size))
        for (first, stop), size in zip(box, metadata.block_shape, strict=False)
    ]
    leading: Iterable[Shape] = product(*ranges)
    if chunks is not None:
        sizes = tuple(map(len, ranges))
        positions = (layouts.unravel_index(index, sizes) for index in chunks)
        leading = (tuple(map(range.__getitem__, ranges, position)) for position in positions)
    trailing = prod(counts[len(box) :])
    for coordinates in leading:
        first = sum(map(int.__mul__, coordinates, strides))
        yield from range(first, first + trailing)


def _complete(shape: Shape) -> Box:
    return tuple((0, size) for size in shape)


def _reporting(
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
    """Return a buffer as an array of integers or bytes, for copies by NumPy of any dtype."""
    import numpy as np

    return np.ndarray(shape, f"{'u' if itemsize in (1, 2, 4, 8) else 'V'}{itemsize}", buffer)


def as_bytes(array: Any) -> memoryview:
    """Return the bytes of an array in row-major order, without a copy if it is contiguous."""
    import numpy as np

    flat: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return memoryview(flat)


def box_slices(box: Box, outer: Box | None = None) -> tuple[Any, ...]:
    """Return the NumPy index that selects a box in an array, or in another box of it."""
    origins = [first for first, _ in outer] if outer else [0] * len(box)
    pairs = zip(box, origins, strict=True)
    return (*(slice(first - origin, stop - origin) for (first, stop), origin in pairs), ...)


def _extents(metadata: ArrayMetadata, indices: Iterator[int]) -> Iterator[tuple[int, int]]:
    """Yield byte ranges that cover blocks of an array, with gaps of about MAX_GAP bytes."""
    shape, itemsize = metadata.shape, metadata.dtype.itemsize
    strides = layouts.contiguous_strides(shape, itemsize)
    first = stop = 0
    for index in indices:
        box = tuple(
            (0, size) if size * stride <= MAX_GAP else ends  # with the gaps along the axis
            for ends, size, stride in zip(
                grid.box(shape, metadata.block_shape, index), shape, strides, strict=True
            )
        )
        for offset, _, nbytes in grid.byte_ranges(shape, box, itemsize):
            if not first <= offset <= stop:
                if stop > first:
                    yield first, stop
                first = stop = offset
            stop = max(stop, offset + nbytes)
    if stop > first:
        yield first, stop
