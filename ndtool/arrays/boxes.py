"""Reading and writing of arrays of any format in boxes, or in ranges of row-major order.

Boxes should align with the chunks of a chunked array: a chunk is decoded again for every box that
overlaps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from threading import Lock
from typing import Protocol

from ndtool.arrays.constant import Constant
from ndtool.arrays.sink import Sink
from ndtool.arrays.source import ArrayMetadata, Source
from ndtool.engine import layouts
from ndtool.machine import pool
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.plans import Shape
from ndtool.storage.local import ByteRange


class Reader(Protocol):
    """An array that is read in boxes over its leading axes, from any thread.

    leading_shape: the shape of the leading axes. width: bytes of the slice at each of their
    positions. chunk_shape: the chunk shape along these; None if a read fetches exactly the bytes of
    its box.
    """

    leading_shape: Shape
    width: int
    chunk_shape: Shape | None

    def read(self, box: Box, buffer: memoryview, chunks: Iterable[int] | None = None) -> None:
        """Read a box into a buffer; chunks: read only these, by row-major index in the box."""


class Writer(Protocol):
    """An array that is written in boxes of complete chunks over its leading axes, see Reader."""

    leading_shape: Shape
    width: int

    def write(self, box: Box, buffer: memoryview) -> None:
        """Write a box from a buffer, in which its elements are contiguous."""


def range_boxes(shape: Shape, first: int, stop: int) -> Iterator[Box]:
    """Yield the boxes that cover elements [first, stop) of an array, in row-major order.

    >>> list(range_boxes((3, 4), 2, 12))
    [((0, 1), (2, 4)), ((1, 3), (0, 4))]
    """
    if not shape:
        yield ()
        return
    inner_size = prod(shape[1:])
    row, offset = divmod(first, inner_size)
    last, remainder = divmod(stop, inner_size)
    if offset or row == last:
        end = remainder if row == last else inner_size
        for box in range_boxes(shape[1:], offset, end) if offset < end else ():
            yield (row, row + 1), *box
        row += 1
    if row < last:
        yield (row, last), *((0, size) for size in shape[1:])
    if remainder and row <= last:
        for box in range_boxes(shape[1:], 0, remainder):
            yield (last, last + 1), *box


def read_range(reader: Reader, first: int, buffer: memoryview) -> None:
    """Fill a buffer with the slices at consecutive positions from `first` on."""
    for box, segment in _segments(reader, first, buffer):
        reader.read(box, segment)


def read_repeated(
    reader: Reader, first: int, buffer: memoryview, period: int, repeats: int
) -> None:
    """Fill a buffer with slices from index `first` of a sequence that repeats periods.

    Each period of `period` slices occurs `repeats` times in a row; the reader has it once.
    """
    width, group_size = reader.width, period * repeats
    n, position = len(buffer) // width, 0
    while position < n:
        group, offset = divmod(first + position, group_size)
        segment, groups = buffer[position * width :], 0 if offset else (n - position) // group_size
        if groups > 1:
            segment = segment[: groups * group_size * width]
            _read_groups(reader, group * period, segment, (groups, repeats, period * width))
        else:
            segment = segment[: (group_size - offset) * width]
            _read_wrapped(reader, group * period, offset % period, period, segment)
        position += len(segment) // width


def _read_groups(reader: Reader, first: int, buffer: memoryview, shape: Shape) -> None:
    """Fill a buffer with consecutive periods; shape: (periods, repeats, bytes of a period)."""
    import numpy as np

    groups, _, nbytes = shape
    stored = np.empty((groups, 1, nbytes), np.uint8)
    read_range(reader, first, stored.reshape(-1).data)
    np.frombuffer(buffer, np.uint8).reshape(shape)[...] = stored


def _read_wrapped(
    reader: Reader, base: int, first: int, positions: int, buffer: memoryview
) -> None:
    """Fill a buffer with `positions` rows that begin at `base`, repeated, from row `first` on."""
    period = min(len(buffer), positions * reader.width)
    end = min(period, (positions - first) * reader.width)
    read_range(reader, base + first, buffer[:end])
    if end < period:
        read_range(reader, base, buffer[end:period])
    filled = period
    while filled < len(buffer):
        count = min(filled, len(buffer) - filled)
        buffer[filled : filled + count] = buffer[:count]
        filled += count


def write_range(writer: Writer, first: int, buffer: memoryview) -> None:
    """Write a buffer to the slices at consecutive positions from `first` on."""
    for box, segment in _segments(writer, first, buffer):
        writer.write(box, segment)


def _segments(
    array: Reader | Writer, first: int, buffer: memoryview
) -> Iterator[tuple[Box, memoryview]]:
    offset = 0
    for box in range_boxes(array.leading_shape, first, first + len(buffer) // array.width):
        nbytes = prod(grid.box_shape(box)) * array.width
        yield box, buffer[offset : offset + nbytes]
        offset += nbytes


class FlatReader:
    """A reader of a contiguous row-major array in a file or in memory.

    lock: serializes reads, which is fastest for disks and for the kernel's readahead.
    """

    chunk_shape: Shape | None = None

    def __init__(self, byte_range: ByteRange, leading_shape: Shape, lock: Lock) -> None:
        self.leading_shape, self.width = (
            leading_shape,
            len(byte_range.buffer) // max(1, prod(leading_shape)),
        )
        self._range, self._lock = byte_range, lock

    def read(self, box: Box, buffer: memoryview, chunks: Iterable[int] | None = None) -> None:
        for start, offset, nbytes in grid.byte_ranges(self.leading_shape, box, self.width):
            with self._lock:
                self._range.read(start, buffer[offset : offset + nbytes])
            self._range.drop_cached(start, nbytes)


class ConstantReader:
    """A reader of an array whose elements are all equal."""

    chunk_shape: Shape | None = None

    def __init__(self, source: Constant, leading_shape: Shape) -> None:
        self.leading_shape, self._source = leading_shape, source
        self.width = source.metadata.nbytes // max(1, prod(leading_shape))

    def read(self, box: Box, buffer: memoryview, chunks: Iterable[int] | None = None) -> None:
        self._source.fill(buffer)


class GridReader:
    """A reader of a chunked source; a chunk is read for every box that overlaps it.

    concurrency: the maximum number of chunks that a box reads concurrently.
    """

    def __init__(self, source: Source, axes: int, concurrency: int) -> None:
        self._source, metadata = source, source.metadata
        self._concurrency = min(source.concurrency, concurrency)
        self.leading_shape = metadata.shape[:axes]
        self.chunk_shape: Shape | None = metadata.block_shape[:axes]
        self.width = prod(metadata.shape[axes:]) * metadata.dtype.itemsize

    def read(self, box: Box, buffer: memoryview, chunks: Iterable[int] | None = None) -> None:
        from ndtool.arrays.assembly import as_array, box_slices

        shape, chunk_shape, itemsize = _layout(self._source.metadata)
        axes, box = len(box), (*box, *((0, size) for size in shape[len(box) :]))
        array = as_array(buffer, grid.box_shape(box), itemsize)

        def copy_chunk(coordinates: Shape) -> None:
            index, bounds = _locate_chunk(shape, chunk_shape, coordinates)
            chunk = as_array(self._source.block(index), grid.box_shape(bounds), itemsize)
            overlap = tuple(
                (max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, bounds, strict=True)
            )
            array[box_slices(_relative_to(overlap, box))] = chunk[
                box_slices(_relative_to(overlap, bounds))
            ]

        chunk_ranges = _chunk_ranges(box, chunk_shape)
        counts = tuple(map(len, chunk_ranges[:axes]))
        chunk_coordinates: Iterable[Shape] = product(*chunk_ranges[:axes])
        if chunks is not None:
            coordinates = (layouts.unravel_index(index, counts) for index in chunks)
            chunk_coordinates = (
                tuple(map(range.__getitem__, chunk_ranges, bounds)) for bounds in coordinates
            )
        selected = (
            (*leading, *trailing)
            for leading in chunk_coordinates
            for trailing in product(*chunk_ranges[axes:])
        )
        pool.run_all(copy_chunk, selected, self._concurrency)


class FlatWriter:
    """A writer to a contiguous sink; written pages of a file are dropped from the page cache.

    buffer: collects the bytes for a sink that requires them in order.
    """

    def __init__(self, sink: Sink, leading_shape: Shape, buffer: memoryview | None = None) -> None:
        self.leading_shape, self.width = (
            leading_shape,
            sink.metadata.nbytes // max(1, prod(leading_shape)),
        )
        self._sink, self._buffer = sink, buffer
        self._release = getattr(sink, "release", None)

    def write(self, box: Box, buffer: memoryview) -> None:
        for start, offset, nbytes in grid.byte_ranges(self.leading_shape, box, self.width):
            buffer_part = buffer[offset : offset + nbytes]
            if self._buffer is not None:
                self._buffer[start : start + nbytes] = buffer_part
                continue
            self._sink.write(start, buffer_part)
            if self._release is not None:
                self._release(start, nbytes)


class GridWriter:
    """A writer to a chunked sink, which writes each chunk once; concurrency: see GridReader."""

    def __init__(self, sink: Sink, axes: int, concurrency: int) -> None:
        self._sink, metadata = sink, sink.metadata
        self._concurrency = min(sink.concurrency, concurrency)
        self.leading_shape = metadata.shape[:axes]
        self.width = prod(metadata.shape[axes:]) * metadata.dtype.itemsize

    def write(self, box: Box, buffer: memoryview) -> None:
        from ndtool.arrays.assembly import as_array, as_bytes, box_slices

        shape, chunk_shape, itemsize = _layout(self._sink.metadata)
        box = (*box, *((0, size) for size in shape[len(box) :]))
        array = as_array(buffer, grid.box_shape(box), itemsize)

        def write_chunk(coordinates: Shape) -> None:
            index, bounds = _locate_chunk(shape, chunk_shape, coordinates)
            self._sink.write(0, as_bytes(array[box_slices(_relative_to(bounds, box))]), index)

        pool.run_all(write_chunk, product(*_chunk_ranges(box, chunk_shape)), self._concurrency)


def _layout(metadata: ArrayMetadata) -> tuple[Shape, Shape, int]:
    return metadata.shape, metadata.block_shape, metadata.dtype.itemsize


def _locate_chunk(shape: Shape, chunk_shape: Shape, coordinates: Shape) -> tuple[int, Box]:
    """Return the row-major index and the bounds of the chunk at grid coordinates."""
    strides = layouts.contiguous_strides(grid.grid_shape(shape, chunk_shape), 1)
    index = sum(map(int.__mul__, coordinates, strides))
    return index, grid.box(shape, chunk_shape, index)


def _chunk_ranges(box: Box, chunk_shape: Shape) -> list[range]:
    """Return for each axis the range of chunks that a box overlaps."""
    ends = zip(box, chunk_shape, strict=True)
    return [range(first // size, -(-stop // size)) for (first, stop), size in ends]


def _relative_to(box: Box, outer: Box) -> Box:
    """Return a box relative to the origin of another box."""
    pairs = zip(box, outer, strict=True)
    return tuple((first - origin, stop - origin) for (first, stop), (origin, _) in pairs)
