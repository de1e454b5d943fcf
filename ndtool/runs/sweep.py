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
from contextlib import ExitStack
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from ndtool import _kernels
from ndtool._kernels import Addressing, Change, How, Indices, Piece
from ndtool.arrays.local import Stretch
from ndtool.arrays.sink import FileSink, Sink
from ndtool.engine import copies, crew
from ndtool.engine.gathers import Tick
from ndtool.rules.dtypes import NATIVE
from ndtool.runs import direct
from ndtool.runs.cut import LOCAL, Cut
from ndtool.runs.direct import Operands
from ndtool.runs.spilling import Store, scratch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

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
        self.starts: list[NDArray[np.int64]] = []
        self._operands, self._cut, self._store = operands, cut, store
        self._write, self._sink = write, sink
        self._data = operands.stretch("data")
        self._indices = _stretch(operands, "indices", operands.indices)
        self._dtype, width = operands.inference.dtype, cut.rows.width
        self._reduction = operands.inference.attributes.reduction
        self._turned = False  # whether the arithmetic needs another byte order than data's
        if not cut.gathers:
            order = self._dtype.order if self._reduction == "none" else NATIVE
            self._turned = self._dtype.unit > 1 and self._dtype.order != order
            updates = operands.put_right("updates", order, False)
            self._updates = _stretch(operands, "updates", updates)
        self._reading = Lock()
        self._rooms = crew.Rooms(min(cut.part, cut.rows.height) * width)
        moved = cut.rows.tuples * (cut.rows.entry + width * cut.gathers)
        self._meter = _Meter(tick, moved + cut.rows.height * width)

    def split(self, block: int) -> NDArray[np.int64]:
        """Sort the tuples of a block by part, and keep them; return where each part begins."""
        import numpy as np

        cut, first, n = self._cut, block * self._cut.block, self._cut.tuples(block)
        rows = cut.rows.of(first, self._stored(first, n))
        if rows is None:
            raise self._operands.changed()
        parts = (rows >> cut.part.bit_length() - 1).astype("u1" if cut.parts <= 256 else "u2")
        order = parts.argsort(kind="stable")
        self._keep(block, "locals", (rows & cut.part - 1).astype("u4")[order].data)
        if cut.gathers:
            self._keep(block, "marks", parts.data)
        else:
            width = cut.rows.width
            updates, moved = scratch(n * width), scratch(n * width)
            self._read(self._updates, first * width, updates)
            self._gather(updates, order.data, moved)
            self._keep(block, "rows", moved)
        self._meter.add(n * cut.rows.entry)
        return np.concatenate(([0], np.bincount(parts, minlength=cut.parts).cumsum()))

    def _stored(self, first: int, count: int) -> memoryview:
        """Return the bytes of some index tuples."""
        places = list(self._cut.rows.stored(first, count))
        room, at = scratch(sum(stop - start for start, stop in places)), 0
        for start, stop in places:
            self._read(self._indices, start, room[at : at + stop - start])
            at += stop - start
        return room

    def sweep(self, part: int) -> None:
        """Read a part of data, and gather rows of it, or update and write it."""
        cut, width = self._cut, self._cut.rows.width
        start = part * cut.part * width
        nbytes = min(cut.part * width, cut.rows.height * width - start)
        batches = list(self._batches(part))
        if batches or not cut.gathers:
            whole = self._rooms.take()
            room = whole[:nbytes]
            self._read(self._data, start, room)
            self._data.let_go(start, nbytes)
            if cut.gathers:
                for batch in batches:
                    self._found(batch, room)
            else:
                self._update(batches, room)
                self._put(start, room)
            self._rooms.give(whole)
        self._meter.add(nbytes)

    def _batches(self, part: int) -> Iterator[Batch]:
        """Yield the tuples of a part, of about as many at a time as a block has."""
        batch: Batch = []
        held = 0
        for block, starts in enumerate(self.starts):
            first, stop = int(starts[part]), int(starts[part + 1])
            if held and held + stop - first > self._cut.block:
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
        local = self._fetched(batch, "locals", LOCAL)
        found = scratch(len(local) // LOCAL * width)
        self._gather(room, local.cast("I"), found)
        for block, first, stop in batch:
            size = (stop - first) * width
            self._store.write(self._cut.place(block, "rows", first), found[at : at + size])
            at += size

    def _update(self, batches: list[Batch], room: memoryview) -> None:
        """Apply the updates of a part, in order."""
        width = self._cut.rows.width
        turn = batches and self._turned
        if turn:
            copies.swap(room, self._dtype.unit)
        for batch in batches:
            local = self._fetched(batch, "locals", LOCAL)
            updates = self._fetched(batch, "rows", width)
            self._scatter(updates, local.cast("I"), room, self._reduction)
        if turn:
            copies.swap(room, self._dtype.unit)

    def _fetched(self, batch: Batch, what: str, size: int) -> memoryview:
        """Return what is kept for some tuples, side by side."""
        room, at = scratch(sum(stop - first for _, first, stop in batch) * size), 0
        for block, first, stop in batch:
            nbytes = (stop - first) * size
            self._store.read(self._cut.place(block, what, first), room[at : at + nbytes])
            at += nbytes
        return room

    def replay(self, block: int) -> None:
        """Put the rows of a block into the order of its tuples, and write them."""
        import numpy as np

        cut, n, width = self._cut, self._cut.tuples(block), self._cut.rows.width
        marks, found, out = scratch(n * cut.mark), scratch(n * width), scratch(n * width)
        self._store.read(cut.place(block, "marks"), marks)
        self._store.read(cut.place(block, "rows"), found)
        order = np.frombuffer(marks, f"u{cut.mark}").argsort(kind="stable")
        self._scatter(found, order.data, out, "none")
        self._put(block * cut.block * width, out)
        self._meter.add(n * width)

    def _keep(self, block: int, what: str, view: memoryview) -> None:
        self._store.write(self._cut.place(block, what), view.cast("B"))

    def _read(self, stretch: Stretch, start: int, room: memoryview) -> None:
        """Read some bytes: one after the other, as disks and the system's reading ahead like it."""
        with self._reading:
            stretch.read(start, room)

    def _put(self, start: int, view: memoryview) -> None:
        """Write bytes of the output."""
        self._write(start, view)
        if isinstance(self._sink, FileSink):
            self._sink.let_go(start, len(view))

    def _gather(self, rows: memoryview, numbers: memoryview, out: memoryview) -> None:
        """Copy rows to out, by their numbers."""
        a, indices, piece = self._bound(rows, numbers)
        if _kernels.gather(a, rows, 0, indices, piece, out, How(1)):
            raise self._operands.changed()

    def _scatter(
        self, updates: memoryview, numbers: memoryview, rows: memoryview, reduction: str
    ) -> None:
        """Update rows by their numbers, in order."""
        a, indices, piece = self._bound(rows, numbers)
        change = Change(updates, self._cut.rows.width, reduction, self._dtype.name)
        if _kernels.scatter(a, indices, piece, change, rows, False, How(1)):
            raise self._operands.changed()

    def _bound(self, rows: memoryview, numbers: memoryview) -> tuple[Addressing, Indices, Piece]:
        """Bind rows that stand side by side, and their numbers."""
        n, width = len(numbers), self._cut.rows.width
        addressing = Addressing((len(rows) // width,), (width,), n, (), (), False)
        indices = Indices(numbers.cast("B"), numbers.itemsize, True, False)
        return addressing, indices, Piece(0, n, 0, width)


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


def _stretch(operands: Operands, role: str, buffer: memoryview) -> Stretch:
    """Return the bytes of an input: where they are, unless they had to be put right."""
    stretch = operands.stretch(role)
    return stretch if stretch.buffer is buffer else Stretch(buffer)
