"""Arrays of any format, read and written piece by piece: boxes, and stretches in row-major order.

Of an array in chunks a piece should be whole ones: a chunk that is cut is read for each part of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import product
from math import prod
from threading import Lock
from typing import Any, Protocol

from ndtool.arrays import grid
from ndtool.arrays.grid import Box
from ndtool.arrays.local import Stretch
from ndtool.arrays.sink import FileSink, Sink
from ndtool.arrays.source import Facts, Source
from ndtool.engine import crew, layouts
from ndtool.rules.shapes import Shape


class Reader(Protocol):
    """An array that is read by boxes of its first axes, of the others all; any thread may do so.

    over: the sizes of those axes. width: bytes of what each of their positions has. chunk: the
    steps of chunks along them, None where all that is asked for is read and nothing else.
    """

    over: Shape
    width: int
    chunk: Shape | None

    def read(self, box: Box, room: memoryview, chosen: Iterable[int] | None = None) -> None:
        """Fill a room; chosen: with these chunks only, by their numbers among those of the box."""


class Writer(Protocol):
    """An array that is written by boxes of its first axes, see Reader; each of whole chunks."""

    over: Shape
    width: int

    def write(self, box: Box, room: memoryview) -> None:
        """Write what is side by side in a room."""


def stretches(shape: Shape, first: int, stop: int) -> Iterator[Box]:
    """Yield the boxes, in order, that elements [first, stop) of an array are.

    >>> list(stretches((3, 4), 2, 12))
    [((0, 1), (2, 4)), ((1, 3), (0, 4))]
    """
    if not shape:
        yield ()
        return
    inner = prod(shape[1:])
    here, before = divmod(first, inner)
    last, after = divmod(stop, inner)
    if before or here == last:
        end = after if here == last else inner
        for box in stretches(shape[1:], before, end) if before < end else ():
            yield (here, here + 1), *box
        here += 1
    if here < last:
        yield (here, last), *((0, size) for size in shape[1:])
    if after and here <= last:
        for box in stretches(shape[1:], 0, after):
            yield (last, last + 1), *box


def read_stretch(reader: Reader, first: int, room: memoryview) -> None:
    """Fill a room with what positions from `first` on have."""
    for box, piece in _pieces(reader, first, room):
        reader.read(box, piece)


def write_stretch(writer: Writer, first: int, room: memoryview) -> None:
    """Write what positions from `first` on have."""
    for box, piece in _pieces(writer, first, room):
        writer.write(box, piece)


def _pieces(
    array: Reader | Writer, first: int, room: memoryview
) -> Iterator[tuple[Box, memoryview]]:
    at = 0
    for box in stretches(array.over, first, first + len(room) // array.width):
        nbytes = prod(_sizes(box)) * array.width
        yield box, room[at : at + nbytes]
        at += nbytes


class FlatReader:
    """Bytes that stand together in row-major order, of a file or in memory.

    turn: who reads a file waits for the others: disks, and the system's reading ahead, like it.
    """

    chunk: Shape | None = None

    def __init__(self, stretch: Stretch, over: Shape, turn: Lock) -> None:
        self.over, self.width = over, len(stretch.buffer) // max(1, prod(over))
        self._stretch, self._turn = stretch, turn

    def read(self, box: Box, room: memoryview, chosen: Iterable[int] | None = None) -> None:
        for start, at, nbytes in grid.runs(self.over, box, self.width):
            with self._turn:
                self._stretch.read(start, room[at : at + nbytes])
            self._stretch.let_go(start, nbytes)


class GridReader:
    """A source in chunks, each of which is read for every box that has a part of it."""

    def __init__(self, source: Source, axes: int) -> None:
        self._source, facts = source, source.facts
        self.over = facts.shape[:axes]
        self.chunk: Shape | None = facts.grid[:axes]
        self.width = prod(facts.shape[axes:]) * facts.dtype.itemsize

    def read(self, box: Box, room: memoryview, chosen: Iterable[int] | None = None) -> None:
        from ndtool.arrays.assembly import as_array, window

        shape, step, itemsize = _grid(self._source.facts)
        axes, box = len(box), (*box, *((0, size) for size in shape[len(box) :]))
        whole = as_array(room, _sizes(box), itemsize)

        def put(at: Shape) -> None:
            number, place = _chunk(shape, step, at)
            chunk = as_array(self._source.block(number), _sizes(place), itemsize)
            both = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(box, place, strict=True))
            whole[window(_within(both, box))] = chunk[window(_within(both, place))]

        along = _chunks(box, step)
        over: Iterable[Shape] = product(*along[:axes])
        if chosen is not None:
            over = map(list(over).__getitem__, chosen)
        numbers = ((*one, *rest) for one in over for rest in product(*along[axes:]))
        crew.share(put, numbers, self._source.at_once)


class FlatWriter:
    """A sink whose bytes stand together; of a file they are written at once, and let go.

    room: where they are gathered for the sink, if it cannot take them in any order.
    """

    def __init__(self, sink: Sink, over: Shape, room: memoryview | None = None) -> None:
        self.over, self.width = over, sink.facts.nbytes // max(1, prod(over))
        self._sink, self._room = sink, room

    def write(self, box: Box, room: memoryview) -> None:
        for start, at, nbytes in grid.runs(self.over, box, self.width):
            piece = room[at : at + nbytes]
            if self._room is not None:
                self._room[start : start + nbytes] = piece
                continue
            self._sink.write(start, piece)
            if isinstance(self._sink, FileSink):
                self._sink.let_go(start, nbytes)


class GridWriter:
    """A sink in chunks, each of which is written once."""

    def __init__(self, sink: Sink, axes: int) -> None:
        self._sink, facts = sink, sink.facts
        self.over, self.width = facts.shape[:axes], prod(facts.shape[axes:]) * facts.dtype.itemsize

    def write(self, box: Box, room: memoryview) -> None:
        import numpy as np

        from ndtool.arrays.assembly import as_array, window

        shape, step, itemsize = _grid(self._sink.facts)
        box = (*box, *((0, size) for size in shape[len(box) :]))
        whole = as_array(room, _sizes(box), itemsize)

        def put(at: Shape) -> None:
            number, place = _chunk(shape, step, at)
            chunk: Any = np.ascontiguousarray(whole[window(_within(place, box))])
            self._sink.write(0, memoryview(chunk.reshape(-1).view(np.uint8)), number)

        crew.share(put, product(*_chunks(box, step)), self._sink.at_once)


def _grid(facts: Facts) -> tuple[Shape, Shape, int]:
    return facts.shape, facts.grid, facts.dtype.itemsize


def _chunk(shape: Shape, step: Shape, at: Shape) -> tuple[int, Box]:
    """Return the number of a chunk and where it is."""
    along = layouts.contiguous(grid.blocks_along(shape, step), 1)
    number = sum(map(int.__mul__, at, along))
    return number, grid.box(shape, step, number)


def _chunks(box: Box, step: Shape) -> list[range]:
    """Return for each axis the chunks that a box has parts of."""
    ends = zip(box, step, strict=True)
    return [range(first // size, -(-stop // size)) for (first, stop), size in ends]


def _within(box: Box, outer: Box) -> Box:
    """Return where a box is in another one."""
    return tuple((first - at, stop - at) for (first, stop), (at, _) in zip(box, outer, strict=True))


def _sizes(box: Box) -> Shape:
    return tuple(stop - first for first, stop in box)
