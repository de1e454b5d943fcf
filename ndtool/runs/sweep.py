"""The way for arrays larger than memory: split, sweep, replay.

    split   a block of index tuples (and updates): sorted stably by the part of data they touch
    sweep   a part of data, read once, in order: its rows gathered, or the updates of all blocks
            applied in the order of the blocks, and the part written, once
    replay  gathers only: the rows of a block, put back into the order of its tuples and written

A task is a number, and what it needs is the cut and what the tasks before it kept. Within a part
tuples are in row-major order, so the results are those of the sequential loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from threading import Lock
from typing import Any

from ndtool import _kernels
from ndtool._kernels import LINE, Addressing, Change, How, Indices, Piece
from ndtool.arrays.local import Stretch
from ndtool.arrays.sink import FileSink, Sink
from ndtool.engine import copies, crew
from ndtool.engine.bind import bind_rows
from ndtool.engine.gathers import Tick
from ndtool.errors import OutputError
from ndtool.rules.dtypes import NATIVE
from ndtool.runs import direct
from ndtool.runs.cut import LOCAL, Cut
from ndtool.runs.direct import Operands
from ndtool.runs.spilling import Store

Batch = list[tuple[int, int, int]]  # block, first and last tuple of it, as they were sorted
Write = Callable[[int, memoryview], object]


def each(work: Callable[[int], Any], count: int, workers: int) -> list[Any]:
    """Return what tasks 0 to count - 1 return; several are done at once."""
    found: list[Any] = [None] * count

    def do(number: int) -> None:
        found[number] = work(number)

    crew.share(do, iter(range(count)), workers)
    return found


def run(operands: Operands, sink: Sink, cut: Cut, spill: str | None, tick: Tick) -> Iterator[str]:
    """Do a run into a sink; yield the name of each phase before it begins.

    spill: the directory of a temporary file, None for TMPDIR.
    """
    with ExitStack() as stack:
        write: Write = sink.write
        if sink.facts.grid != sink.facts.shape:
            room, _ = stack.enter_context(direct.whole_output(sink, operands.threads))
            write = partial(_store, room)
        store = Store(cut.kept, cut.held, spill)
        stack.callback(store.close)
        sweep = _Sweep(operands, cut, store, write, sink, tick)
        ordered = 1 if sink.streamed else cut.workers  # a stream takes bytes in order
        yield "split"
        sweep.starts = each(sweep.split, cut.blocks, cut.workers)
        yield "sweep"
        each(sweep.sweep, cut.parts, cut.workers if cut.gathers else ordered)
        if cut.gathers:
            yield "replay"
            each(sweep.replay, cut.blocks, ordered)


class _Sweep:
    """The tasks of a run.

    starts: for every block, where the tuples of each part begin among its own, and where they end.
    """

    def __init__(
        self, operands: Operands, cut: Cut, store: Store, write: Write, sink: Sink, tick: Tick
    ) -> None:
        self.starts: list[memoryview] = []
        self._operands, self._cut, self._store = operands, cut, store
        self._write, self._sink = write, sink
        self._data = operands.stretch("data")
        inference, width = operands.inference, cut.rows.width
        self._rows = bind_rows(inference.plan, operands.negatives)
        self._dtype, self._reduction = inference.dtype, inference.attributes.reduction
        self._turned = False  # whether the arithmetic needs another byte order than data's
        if not cut.gathers:
            order = self._dtype.order if self._reduction == "none" else NATIVE
            self._turned = self._dtype.unit > 1 and self._dtype.order != order
            updates, stretch = (
                operands.put_right("updates", order, False),
                operands.stretch("updates"),
            )
            self._updates = stretch if stretch.buffer is updates else Stretch(updates)
        self._reading = Lock()
        self._parts, self._desks = crew.Rooms(cut.part), crew.Rooms(cut.scratch)
        moved = cut.rows.tuples * (cut.rows.entry + width * cut.gathers)
        self._meter = _Meter(tick, moved + cut.rows.height * width)

    def split(self, block: int) -> memoryview:
        """Deal the tuples of a block by part, and keep them; return where each part begins."""
        cut, first, n = self._cut, block * self._cut.block, self._cut.tuples(block)
        starts = memoryview(bytearray(8 * (cut.parts + 1))).cast("q")
        with self._desk() as take:
            marks, local, dealt = take(n * cut.mark), take(n * LOCAL), take(n * LOCAL)
            indices = self._operands.bound
            if _kernels.mark(
                self._rows, indices, first, n, cut.shift, marks, local.cast("I"), starts
            ):
                raise self._operands.changed()
            self._deal(marks, starts, local, dealt, n)
            self._store.write(cut.place(block, "local"), dealt)
            if cut.gathers:
                self._store.write(cut.place(block, "marks"), marks)
            else:
                updates, dealt = take(n * cut.rows.width), take(n * cut.rows.width)
                self._read(self._updates, first * cut.rows.width, updates)
                self._deal(marks, starts, updates, dealt, n)
                self._store.write(cut.place(block, "rows"), dealt)
        self._meter.add(n * cut.rows.entry)
        return starts

    def sweep(self, part: int) -> None:
        """Read a part of data, and gather rows of it, or update and write it."""
        cut, start = self._cut, part * self._cut.part
        nbytes = min(cut.part, cut.rows.height * cut.rows.width - start)
        batches = list(self._batches(part))
        if batches or not cut.gathers:
            whole = self._parts.take()
            room = whole[:nbytes]
            self._read(self._data, start, room)
            if cut.gathers:
                for batch in batches:
                    self._found(batch, room)
            else:
                self._update(batches, room)
                self._put(start, room)
            self._parts.give(whole)
        self._meter.add(nbytes)

    def replay(self, block: int) -> None:
        """Put the rows of a block into the order of its tuples, and write them."""
        cut, n, width = self._cut, self._cut.tuples(block), self._cut.rows.width
        with self._desk() as take:
            marks, found, out = take(n * cut.mark), take(n * width), take(n * width)
            self._store.read(cut.place(block, "marks"), marks)
            self._store.read(cut.place(block, "rows"), found)
            self._deal(marks, self.starts[block], found, out, n, back=True)
            self._put(block * cut.block * width, out)
        self._meter.add(n * width)

    def _batches(self, part: int) -> Iterator[Batch]:
        """Yield the tuples of a part, of no more at a time than a block has."""
        batch: Batch = []
        held = 0
        for block, starts in enumerate(self.starts):
            first, stop = starts[part], starts[part + 1]
            if held + stop - first > self._cut.block:
                yield batch
                batch, held = [], 0
            if stop > first:
                batch.append((block, first, stop))
                held += stop - first
        if batch:
            yield batch

    def _found(self, batch: Batch, room: memoryview) -> None:
        """Gather rows of a part, and keep them."""
        width, at = self._cut.rows.width, 0
        with self._desk() as take:
            local, n = self._fetched(batch, "local", LOCAL, take)
            found = take(n * width)
            a, indices, piece = self._bound(room, local, n)
            if _kernels.gather(a, room, 0, indices, piece, found, How(1)):
                raise self._operands.changed()
            for block, first, stop in batch:
                size = (stop - first) * width
                self._store.write(self._cut.place(block, "rows", first), found[at : at + size])
                at += size

    def _update(self, batches: list[Batch], room: memoryview) -> None:
        """Apply the updates of a part, in order."""
        turn, width = batches and self._turned, self._cut.rows.width
        if turn:
            copies.swap(room, self._dtype.unit)
        for batch in batches:
            with self._desk() as take:
                local, n = self._fetched(batch, "local", LOCAL, take)
                updates, _ = self._fetched(batch, "rows", width, take)
                change = Change(updates, width, self._reduction, self._dtype.name)
                a, indices, piece = self._bound(room, local, n)
                if _kernels.scatter(a, indices, piece, change, room, False, How(1)):
                    raise self._operands.changed()
        if turn:
            copies.swap(room, self._dtype.unit)

    def _bound(
        self, room: memoryview, local: memoryview, n: int
    ) -> tuple[Addressing, Indices, Piece]:
        """Bind the rows of a part, and the numbers of n of them."""
        width = self._cut.rows.width
        addressing = Addressing((len(room) // width,), (width,), n, (), (), False)
        return addressing, Indices(local, LOCAL, True, False), Piece(0, n, 0, width)

    def _fetched(
        self, batch: Batch, what: str, size: int, take: Callable[[int], memoryview]
    ) -> tuple[memoryview, int]:
        """Return what is kept for some tuples, side by side, and how many they are."""
        n, at = sum(stop - first for _, first, stop in batch), 0
        room = take(n * size)
        for block, first, stop in batch:
            nbytes = (stop - first) * size
            self._store.read(self._cut.place(block, what, first), room[at : at + nbytes])
            at += nbytes
        return room, n

    def _deal(
        self,
        marks: memoryview,
        starts: memoryview,
        rows: memoryview,
        out: memoryview,
        n: int,
        back: bool = False,
    ) -> None:
        """Copy rows of tuples to where their parts begin, in order, or back from there."""
        places = memoryview(bytearray(starts[:-1])).cast("q")
        if _kernels.deal(marks, places, rows, out, n, back):
            raise OutputError("a temporary file changed during the run")

    def _read(self, stretch: Stretch, start: int, room: memoryview) -> None:
        """Read some bytes: one after the other, as disks and the system's reading ahead like it."""
        with self._reading:
            stretch.read(start, room)
        stretch.let_go(start, len(room))

    def _put(self, start: int, view: memoryview) -> None:
        """Write bytes of the output."""
        self._write(start, view)
        if isinstance(self._sink, FileSink):
            self._sink.let_go(start, len(view))

    @contextmanager
    def _desk(self) -> Iterator[Callable[[int], memoryview]]:
        """Give what hands out scratch, aligned for every type."""
        room, at = self._desks.take(), 0

        def take(nbytes: int) -> memoryview:
            nonlocal at
            start = at
            at += -(-nbytes // LINE) * LINE
            return room[start : start + nbytes]

        yield take
        self._desks.give(room)


def _store(room: memoryview, start: int, view: memoryview) -> None:
    room[start : start + len(view)] = view


class _Meter:
    """Adds up bytes that tasks are done with, and tells which share of all that is."""

    def __init__(self, tick: Tick, total: int) -> None:
        self._tick, self._total, self._done = tick, total, 0
        self._lock = Lock()

    def add(self, nbytes: int) -> None:
        with self._lock:
            self._done += nbytes
            share = self._done / self._total
        self._tick(share)
