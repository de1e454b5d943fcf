"""Read and write arrays of any format in boxes, or in ranges of row-major order.

Boxes of a chunked array should align with its chunks: a chunk is decoded again for every box that
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

    over: the shape of the leading axes. width: bytes of the slice at each of their positions.
    chunk: the chunk shape along them; None if a read fetches exactly the bytes of its box.
    """

    over: Shape
    width: int
    chunk: Shape | None

    def read(self, box: Box, buffer: memoryview, chosen: Iterable[int] | None = None) -> None:
        """Read a box into a buffer; chosen: read only these chunks, numbered within the box."""


class Writer(Protocol):
    """An array that is written in boxes of complete chunks over its leading axes, see Reader."""

    over: Shape
    width: int

    def write(self, box: Box, buffer: memoryview) -> None:
        """Write a box from a buffer, in which its elements are contiguous."""


def range_boxes(shape: Shape, first: int, stop: int) -> Iterator[Box]:
    """Yield the boxes, in order, that cover elements [first, stop) of an array.

    >>> list(range_boxes((3, 4), 2, 12))
    [((0, 1), (2, 4)), ((1, 3), (0, 4))]
    """
    if not shape:
        yield ()
        return
    inner = prod(shape[1:])
    row, skipped = divmod(first, inner)
    last, rest = divmod(stop, inner)
    if skipped or row == last:
        end = rest if row == last else inner
        for box in range_boxes(shape[1:], skipped, end) if skipped < end else ():
            yield (row, row + 1), *box
        row += 1
    if row < last:
        yield (row, last), *((0, size) for size in shape[1:])
    if rest and row <= last:
        for box in range_boxes(shape[1:], 0, rest):
            yield (last, last + 1), *box


def read_range(reader: Reader, first: int, buffer: memoryview) -> None:
    """Fill a buffer with the slices at consecutive positions from `first` on."""
    for box, buffer_part in _buffers(reader, first, buffer):
        reader.read(box, buffer_part)


def read_shared(reader: Reader, first: int, buffer: memoryview, period: int, repeats: int) -> None:
    """Fill a buffer with slices from number `first` on; each period occurs `repeats` times.

    The reader has the periods once.
    """
    width, group_size = reader.width, period * repeats
    n, done = len(buffer) // width, 0
    while done < n:
        group, rest = divmod(first + done, group_size)
        part, groups = buffer[done * width :], 0 if rest else (n - done) // group_size
        if groups > 1:
            part = part[: groups * group_size * width]
            _read_groups(reader, group * period, part, (groups, repeats, period * width))
        else:
            part = part[: (group_size - rest) * width]
            _read_wrapped(reader, group * period, rest % period, period, part)
        done += len(part) // width


def _read_groups(reader: Reader, first: int, buffer: memoryview, shape: Shape) -> None:
    """Fill a buffer with successive periods; shape: (periods, repeats of each, its bytes)."""
    import numpy as np

    groups, _, nbytes = shape
    stored = np.empty((groups, 1, nbytes), np.uint8)
    read_range(reader, first, stored.reshape(-1).data)
    np.frombuffer(buffer, np.uint8).reshape(shape)[...] = stored


def _read_wrapped(
    reader: Reader, base: int, first: int, positions: int, buffer: memoryview
) -> None:
    """Fill a buffer from position `first` of a period on, and wrap to 0 after the last."""
    period = min(len(buffer), positions * reader.width)
    end = min(period, (positions - first) * reader.width)
    read_range(reader, base + first, buffer[:end])
    if end < period:
        read_range(reader, base, buffer[end:period])
    done = period
    while done < len(buffer):
        more = min(done, len(buffer) - done)
        buffer[done : done + more] = buffer[:more]
        done += more


def write_range(writer: Writer, first: int, buffer: memoryview) -> None:
    """Write a buffer to the slices at consecutive positions from `first` on."""
    for box, buffer_part in _buffers(writer, first, buffer):
        writer.write(box, buffer_part)


def _buffers(
    array: Reader | Writer, first: int, buffer: memoryview
) -> Iterator[tuple[Box, memoryview]]:
    offset = 0
    for box in range_boxes(array.over, first, first + len(buffer) // array.width):
        nbytes = prod(grid.sizes(box)) * array.width
        yield box, buffer[offset : offset + nbytes]
        offset += nbytes


class FlatReader:
    """A reader of a contiguous row-major array in a file or in memory.

    lock: a lock that serializes reads, as disks and the kernel's read-ahead work best that way.
    """

    chunk: Shape | None = None

    def __init__(self, byte_range: ByteRange, over: Shape, lock: Lock) -> None:
        self.over, self.width = over, len(byte_range.buffer) // max(1, prod(over))
        self._range, self._lock = byte_range, lock

    def read(self, box: Box, buffer: memoryview, chosen: Iterable[int] | None = None) -> None:
        for start, offset, nbytes in grid.byte_ranges(self.over, box, self.width):
            with self._lock:
                self._range.read(start, buffer[offset : offset + nbytes])
            self._range.drop_cached(start, nbytes)


class ConstantReader:
    """A reader of an array that is one value."""

    chunk: Shape | None = None

    def __init__(self, source: Constant, over: Shape) -> None:
        self.over, self._source = over, source
        self.width = source.metadata.nbytes // max(1, prod(over))

    def read(self, box: Box, buffer: memoryview, chosen: Iterable[int] | None = None) -> None:
        self._source.fill(buffer)


class GridReader:
    """A reader of a chunked source; a chunk is read for every box that overlaps it.

    at_once: the number of chunks that one box reads concurrently, at most.
    """

    def __init__(self, source: Source, axes: int, at_once: int) -> None:
        self._source, metadata = source, source.metadata
        self._at_once = min(source.at_once, at_once)
        self.over = metadata.shape[:axes]
        self.chunk: Shape | None = metadata.grid[:axes]
        self.width = prod(metadata.shape[axes:]) * metadata.dtype.itemsize

    def read(self, box: Box, buffer: memoryview, chosen: Iterable[int] | None = None) -> None:
        from ndtool.arrays.assembly import as_array, window

        shape, step, itemsize = _grid(self._source.metadata)
        axes, box = len(box), (*box, *((0, size) for size in shape[len(box) :]))
        array = as_array(buffer, grid.sizes(box), itemsize)

        def put(coordinates: Shape) -> None:
            number, bounds = _chunk(shape, step, coordinates)
            chunk = as_array(self._source.block(number), grid.sizes(bounds), itemsize)
            both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, bounds, strict=True))
            array[window(_relative_to(both, box))] = chunk[window(_relative_to(both, bounds))]

        along = _chunks(box, step)
        counts = tuple(map(len, along[:axes]))
        over: Iterable[Shape] = product(*along[:axes])
        if chosen is not None:
            coordinates = (layouts.unravel_index(number, counts) for number in chosen)
            over = (tuple(map(range.__getitem__, along, bounds)) for bounds in coordinates)
        numbers = ((*one, *rest) for one in over for rest in product(*along[axes:]))
        pool.run_all(put, numbers, self._at_once)


class FlatWriter:
    """A writer to a contiguous sink; written pages of a file are released from the page cache.

    buffer: a buffer that collects the bytes for a sink that needs them in order.
    """

    def __init__(self, sink: Sink, over: Shape, buffer: memoryview | None = None) -> None:
        self.over, self.width = over, sink.metadata.nbytes // max(1, prod(over))
        self._sink, self._buffer = sink, buffer
        self._release = getattr(sink, "release", None)

    def write(self, box: Box, buffer: memoryview) -> None:
        for start, offset, nbytes in grid.byte_ranges(self.over, box, self.width):
            buffer_part = buffer[offset : offset + nbytes]
            if self._buffer is not None:
                self._buffer[start : start + nbytes] = buffer_part
                continue
            self._sink.write(start, buffer_part)
            if self._release is not None:
                self._release(start, nbytes)


class GridWriter:
    """A writer to a chunked sink, which writes each chunk once; at_once: see GridReader."""

    def __init__(self, sink: Sink, axes: int, at_once: int) -> None:
        self._sink, metadata = sink, sink.metadata
        self._at_once = min(sink.at_once, at_once)
        self.over = metadata.shape[:axes]
        self.width = prod(metadata.shape[axes:]) * metadata.dtype.itemsize

    def write(self, box: Box, buffer: memoryview) -> None:
        from ndtool.arrays.assembly import as_array, bytes_of, window

        shape, step, itemsize = _grid(self._sink.metadata)
        box = (*box, *((0, size) for size in shape[len(box) :]))
        array = as_array(buffer, grid.sizes(box), itemsize)

        def put(coordinates: Shape) -> None:
            number, bounds = _chunk(shape, step, coordinates)
            self._sink.write(0, bytes_of(array[window(_relative_to(bounds, box))]), number)

        pool.run_all(put, product(*_chunks(box, step)), self._at_once)


def _grid(metadata: ArrayMetadata) -> tuple[Shape, Shape, int]:
    return metadata.shape, metadata.grid, metadata.dtype.itemsize


def _chunk(shape: Shape, step: Shape, coordinates: Shape) -> tuple[int, Box]:
    """Return the number and the bounds of the chunk at grid coordinates."""
    strides = layouts.contiguous_strides(grid.blocks_along(shape, step), 1)
    number = sum(map(int.__mul__, coordinates, strides))
    return number, grid.box(shape, step, number)


def _chunks(box: Box, step: Shape) -> list[range]:
    """Return for each axis the range of chunks that a box overlaps."""
    ends = zip(box, step, strict=True)
    return [range(first // size, -(-stop // size)) for (first, stop), size in ends]


def _relative_to(box: Box, outer: Box) -> Box:
    """Return a box relative to the origin of another."""
    pairs = zip(box, outer, strict=True)
    return tuple((first - origin, stop - origin) for (first, stop), (origin, _) in pairs)
