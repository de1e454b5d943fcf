"""Reading and writing of arrays of any format in boxes, or in ranges of row-major order.

Boxes should align with the chunks of a chunked array: a chunk is decoded again for every box that
overlaps it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import prod

from ndtool.arrays import assembly
from ndtool.arrays.sink import Sink
from ndtool.arrays.source import ContiguousSource, Source
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.plans import Shape


class Reader:
    """An array that is read in boxes over its leading axes, from any thread.

    leading_shape: the shape of the leading axes, merged or not. width: bytes of the slice at each
    of their positions. chunk_shape: the chunk shape along these; None if a read fetches exactly the
    bytes of its box. threads: the maximum number of chunks that a box reads concurrently.
    """

    def __init__(self, source: Source, leading_shape: Shape, threads: int = 1) -> None:
        self.leading_shape, self.chunk_shape = leading_shape, None
        self.width = source.metadata.nbytes // max(1, prod(leading_shape))
        if not isinstance(source, ContiguousSource):
            self.chunk_shape = source.metadata.block_shape[: len(leading_shape)]
        self._source, self._threads = source, threads

    def read(self, box: Box, buffer: memoryview, chunks: Iterable[int] | None = None) -> None:
        """Read a box into a buffer; chunks: read only these, by row-major index in the box."""
        self._source.read(self.leading_shape, box, buffer, chunks, self._threads)


class Writer:
    """An array that is written in boxes of complete chunks over its leading axes, see Reader.

    Written pages of a file are dropped from the page cache. buffer: collects the bytes for a sink
    that requires them in order.
    """

    def __init__(
        self, sink: Sink, leading_shape: Shape, threads: int = 1, buffer: memoryview | None = None
    ) -> None:
        self.leading_shape = leading_shape
        self.width = sink.metadata.nbytes // max(1, prod(leading_shape))
        self._sink, self._buffer, self._threads = sink, buffer, min(sink.concurrency, threads)

    def write(self, box: Box, buffer: memoryview) -> None:
        """Write a box from a buffer, in which its elements are contiguous."""
        sink = self._sink
        if self._buffer is None and sink.metadata.is_chunked:
            assembly.write_blocks(buffer, sink.metadata, box, sink.write, self._threads)
            return
        for start, offset, nbytes in grid.byte_ranges(self.leading_shape, box, self.width):
            part = buffer[offset : offset + nbytes]
            if self._buffer is not None:
                self._buffer[start : start + nbytes] = part
                continue
            sink.write(start, part)
            sink.release(start, nbytes)


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
    import numpy as np

    width = reader.width

    def read(position: int, segment: memoryview) -> None:  # within a period
        number, offset = divmod(position, period)
        read_range(reader, number // repeats * period + offset, segment)

    stop = first + len(buffer) // width
    start = min(stop, first + -first % period)  # of the first complete period
    count = (stop - start) // period
    head, tail = (start - first) * width, (start + count * period - first) * width
    if head:
        read(first, buffer[:head])
    if count:
        numbers = np.arange(start // period, start // period + count) // repeats
        stored = np.empty((int(numbers[-1] - numbers[0]) + 1, period * width), np.uint8)
        read_range(reader, int(numbers[0]) * period, stored.reshape(-1).data)
        periods = np.frombuffer(buffer[head:tail], np.uint8).reshape(count, -1)
        np.take(stored, numbers - numbers[0], axis=0, out=periods, mode="clip")
    if tail < len(buffer):
        read(start + count * period, buffer[tail:])


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
