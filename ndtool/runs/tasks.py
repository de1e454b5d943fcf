"""The tasks of a sweep: pure functions of what is open and a number.

    split   a block of index tuples (and updates): sorted stably by the part of data they touch;
            those that a rule lets name nothing are the last
    sweep   a part of data, read once, in order: its rows gathered, or the updates of all blocks
            applied in the order of the blocks, and the part written, once
    replay  gathers only: the rows of a block, put back into the order of its tuples and written

What a task keeps for those of the next phase has a name of this attempt, which it returns: it can
be done again, by anybody. Within a part tuples are in row-major order, so the results are those of
the sequential loop.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate, pairwise
from math import prod
from operator import sub
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import LINE, Addressing, Change, How, Indices, Piece
from ndtool.arrays import grid
from ndtool.arrays.grid import Box
from ndtool.arrays.pieces import Reader, Writer, read_stretch, write_stretch
from ndtool.engine import bind, copies, crew
from ndtool.engine.check import is_error
from ndtool.errors import OutputError
from ndtool.rules.dtypes import NATIVE
from ndtool.rules.inference import Inference
from ndtool.rules.shapes import NdPlan
from ndtool.runs import spilling
from ndtool.runs.cut import LOCAL, MOST_PARTS, Cut
from ndtool.runs.spilling import Keep, Table

NOTE = 128  # bytes of what is out of bounds of a block, as it is kept
Batch = list[tuple[int, int, int]]  # block, first and last tuple of it, as they were sorted
Take = Callable[[int], memoryview]


class Done(NamedTuple):
    """What a task returns: which attempt counts; of split, where the tuples of each part begin.

    outside: what of a block is out of bounds, where that is no error.
    """

    attempt: int
    starts: bytes = b""
    outside: Bad | None = None

    @property
    def end(self) -> bytes:
        """What follows a piece of split: all that another run needs to take it up."""
        return self.starts + json.dumps(self.outside).encode().ljust(NOTE)

    @classmethod
    def of(cls, attempt: int, end: bytes) -> Done:
        """Return what a task returned, from what follows its piece; ValueError if that is none."""
        outside = json.loads(end[-NOTE:])
        return cls(attempt, end[:-NOTE], None if outside is None else Bad(*map(int, outside)))


class Bad(NamedTuple):
    """Of a block, the first index that is out of bounds, and how many tuples have one."""

    position: int
    component: int
    value: int
    tuples: int


class Arrays(NamedTuple):
    """The arrays of a run; updates: None for gathers. output: None
    where nothing is written."""

    data: Reader
    indices: Reader
    updates: Reader | None
    output: Writer | None


class Work:
    """What the tasks of a run need, open."""

    def __init__(self, inference: Inference, cut: Cut, arrays: Arrays, keep: Keep) -> None:
        self.inference, self.cut, self.arrays, self.keep = inference, cut, arrays, keep
        plan, dtype, rule = inference.plan, inference.dtype, inference.attributes.out_of_bounds
        self.rule = "error" if is_error(plan, rule) else rule
        self.rows = bind.bind_rows(plan, inference.row.negatives)
        self.boxes = bind.bind_boxes(cut.rows.over, cut.step)
        self.filling = inference.filling * (cut.rows.width // dtype.itemsize)  # a row
        self.reduction = inference.attributes.reduction
        order = dtype.order if self.reduction == "none" else NATIVE
        # Whether the arithmetic needs another byte order than data's, and than that of updates.
        self.turned = dtype.unit > 1 and dtype.order != order
        updates = inference.inputs.get("updates")
        self.updates_turned = bool(updates and dtype.unit > 1 and updates.dtype.order != order)
        self.starts = Table("starts", cut.blocks)
        self.places = Table("places", cut.parts)
        self._parts, self._desks = crew.Rooms(cut.part), crew.Rooms(cut.scratch)
        self._repeated: memoryview | None = None
        if isinstance(plan, NdPlan) and plan.repeated:
            self._repeated = memoryview(bytearray(plan.per_batch * cut.rows.entry))
            read_stretch(arrays.indices, 0, self._repeated)

    @property
    def repeats(self) -> bool:
        """Whether every batch has the same tuples, which stand there once."""
        return self._repeated is not None

    def indices(self, first: int, n: int, take: Take) -> tuple[Indices, int]:
        """Return indices, among them those of n tuples, and the tuple that they begin with."""
        dtype = self.inference.inputs["indices"].dtype
        if self._repeated is not None:
            return bind.bind_indices(self._repeated, dtype, self.rule), 0
        room = take(n * self.cut.rows.entry)
        if room:  # tuples may have no components
            read_stretch(self.arrays.indices, first, room)
        return bind.bind_indices(room, dtype, self.rule), first

    @contextmanager
    def part(self) -> Iterator[memoryview]:
        """Give room for a part of data."""
        room = self._parts.take()
        yield room
        self._parts.give(room)

    @contextmanager
    def desk(self) -> Iterator[Take]:
        """Give what hands out scratch, aligned for every type."""
        room, at = self._desks.take(), 0

        def take(nbytes: int) -> memoryview:
            nonlocal at
            start = at
            at += -(-nbytes // LINE) * LINE
            return room[start : start + nbytes]

        yield take
        self._desks.give(room)


def check(work: Work, block: int) -> Bad | None:
    """Look at the indices of a block; return what is out of bounds, None where nothing is."""
    first, n = block * work.cut.block, work.cut.tuples(block)
    with work.desk() as take:
        indices, origin = work.indices(first, n, take)
        return _bad(work, indices, origin, n)


def _bad(work: Work, indices: Indices, origin: int, n: int) -> Bad | None:
    plan = work.inference.plan
    addressing, tuples, entries = bind.bind_check(plan, work.inference.row.negatives)
    if work.repeats:
        n = tuples  # every block has all of them
    number, component, count = _kernels.find(addressing, indices, 0, n)
    if not count:
        return None
    value = indices.value(number * entries + component)
    return Bad(origin + number, component, value, count)


def split(work: Work, block: int) -> Done | Bad:
    """Deal the tuples of a block by part, and keep them; return where each part begins."""
    cut, keep = work.cut, work.keep
    first, n, width = block * cut.block, cut.tuples(block), cut.rows.width
    starts = memoryview(bytearray(8 * (cut.piles + 1))).cast("q")
    with work.desk() as take:
        marks, local, dealt = take(n * cut.mark), take(n * LOCAL), take(n * LOCAL)
        indices, origin = work.indices(first, n, take)
        into = local.cast("I")
        tuples = Piece(first, n, 0, 0)
        if _kernels.mark(work.rows, indices, origin, tuples, work.boxes, marks, into, starts):
            if (bad := _bad(work, indices, origin, n)) is None:
                raise OutputError("indices changed during the run")
            return bad
        outside = None if work.rule == "error" else _bad(work, indices, origin, n)
        piece = keep.create(spilling.Piece("split", block, first * cut.pitch))
        _deal(marks, starts[:-1], local, dealt, n, back=False)
        keep.write(piece, 0, dealt)
        if work.arrays.updates is None:
            keep.write(piece, n * LOCAL, marks)
        else:
            updates, ordered = take(n * width), take(n * width)
            read_stretch(work.arrays.updates, first, updates)
            if work.updates_turned:
                copies.swap(updates, work.inference.dtype.unit)
            _deal(marks, starts[:-1], updates, ordered, n, back=False)
            keep.write(piece, n * LOCAL, ordered)
        done = Done(piece.attempt, bytes(starts[: cut.parts + 1]), outside)
        keep.finish(piece, done.end)
    return done


def sweep(work: Work, part: int) -> Done:
    """Read a part of data, and gather rows of it, or update and write it."""
    attempts = work.keep.lines(work.starts, 0, 1)
    both = work.keep.lines(work.starts, 1 + part, 3 + part)
    begins, ends = both[: len(attempts)], both[len(attempts) :]
    batches = list(_batches(begins, ends, work.cut.block))
    if work.arrays.updates is None:
        return _gather(work, part, batches, attempts, sum(begins)) if batches else Done(0)
    _update(work, part, batches, attempts)
    return Done(0)


def replay(work: Work, block: int) -> Done:
    """Put the rows of a block into the order of its tuples, and write them."""
    cut, keep, places = work.cut, work.keep, work.places
    n, width = cut.tuples(block), cut.rows.width
    attempts, bases = keep.lines(places, 0, 1), keep.lines(places, 1, 2)
    both = keep.lines(places, 2 + block, 4 + block)
    before, after = both[: cut.parts], both[cut.parts :]
    counts = list(map(sub, after, before))
    with work.desk() as take:
        marks, found, out = take(n * cut.mark), take(n * width), take(n * width)
        attempt = keep.lines(work.starts, 0, 1)[block]
        piece = spilling.Piece("split", block, block * cut.block * cut.pitch, attempt)
        keep.read(piece, n * LOCAL, marks)
        wanted = [
            (spilling.Piece("sweep", part, bases[part] * width, attempts[part]),
             before[part] * width, counts[part] * width)
            for part in filter(counts.__getitem__, range(cut.parts))
        ]  # fmt: skip
        spilling.read_all(keep, wanted, found)
        if cut.rows.strays:
            counts.append(n - sum(counts))
            found[len(found) - counts[-1] * width :] = work.filling * counts[-1]
        starts = memoryview(array("q", accumulate(counts[:-1], initial=0)))
        _deal(marks, starts, found, out, n, back=True)
        assert work.arrays.output is not None
        write_stretch(work.arrays.output, block * cut.block, out)
    return Done(0)


PHASES = {one.__name__: one for one in (check, split, sweep, replay)}


def _gather(work: Work, part: int, batches: list[Batch], attempts: memoryview, before: int) -> Done:
    """Gather rows of a part, and keep them; of its chunks, those that are named are read."""
    cut, keep, width = work.cut, work.keep, work.cut.rows.width
    box, there, at = cut.box(part), set[int](), 0
    piece = keep.create(spilling.Piece("sweep", part, before * width))
    with work.part() as whole:
        room = whole[: _height(box) * width]
        for batch in batches:
            with work.desk() as take:
                local, n = _fetched(work, batch, attempts, "local", take)
                if new := _named(work, box, local, n, take) - there:
                    work.arrays.data.read(box, room, sorted(new))
                    there |= new
                found = take(n * width)
                a, indices, tuples = _bound(room, local, n, width)
                if _kernels.gather(a, room, 0, indices, tuples, found, How(1)):
                    raise _changed()
                keep.write(piece, at, found)
                at += len(found)
    keep.finish(piece)
    return Done(piece.attempt)


def _named(work: Work, box: Box, local: memoryview, n: int, take: Take) -> set[int]:
    """Return the numbers of the chunks of a part that rows of it are in; 0 is all that is flat."""
    chunk = work.arrays.data.chunk
    if chunk is None:
        return {0}
    sizes = tuple(stop - first for first, stop in box)
    steps = tuple(map(min, sizes, chunk))
    count = grid.blocks(sizes, steps)
    if count == 1 or count > MOST_PARTS:
        return set(range(count))
    boxes, counts = bind.bind_boxes(sizes, steps), memoryview(bytearray(8 * (count + 1))).cast("q")
    a, indices, tuples = _bound(memoryview(bytes(_height(box))), local, n, 1)
    marks, rows = take(2 * n), take(n * LOCAL).cast("I")
    if _kernels.mark(a, indices, 0, tuples, boxes, marks, rows, counts):
        raise _changed()
    return {number for number, (a, b) in enumerate(pairwise(counts)) if b > a}


def _update(work: Work, part: int, batches: list[Batch], attempts: memoryview) -> None:
    """Apply the updates of a part, in order, and write it."""
    width, dtype, box = work.cut.rows.width, work.inference.dtype, work.cut.box(part)
    with work.part() as whole:
        room = whole[: _height(box) * width]
        work.arrays.data.read(box, room)
        turn = bool(batches) and work.turned
        if turn:
            copies.swap(room, dtype.unit)
        for batch in batches:
            with work.desk() as take:
                local, n = _fetched(work, batch, attempts, "local", take)
                updates, _ = _fetched(work, batch, attempts, "rows", take)
                change = Change(updates, width, work.reduction, dtype.name)
                a, indices, tuples = _bound(room, local, n, width)
                if _kernels.scatter(a, indices, tuples, change, room, False, How(1)):
                    raise _changed()
        if turn:
            copies.swap(room, dtype.unit)
        assert work.arrays.output is not None
        work.arrays.output.write(box, room)


def _batches(begins: memoryview, ends: memoryview, most: int) -> Iterator[Batch]:
    """Yield the tuples of a part, of no more at a time than a block has."""
    batch: Batch = []
    held = 0
    for block, (first, stop) in enumerate(zip(begins, ends, strict=True)):
        if held + stop - first > most:
            yield batch
            batch, held = [], 0
        if stop > first:
            batch.append((block, first, stop))
            held += stop - first
    if batch:
        yield batch


def _fetched(
    work: Work, batch: Batch, attempts: memoryview, what: str, take: Take
) -> tuple[memoryview, int]:
    """Return what is kept for some tuples, "local" or "rows", and how many they are."""
    cut = work.cut
    size = LOCAL if what == "local" else cut.rows.width
    n = sum(stop - first for _, first, stop in batch)
    room = take(n * size)
    wanted = []
    for block, first, stop in batch:
        piece = spilling.Piece("split", block, block * cut.block * cut.pitch, attempts[block])
        before = 0 if what == "local" else cut.tuples(block) * LOCAL
        wanted.append((piece, before + first * size, (stop - first) * size))
    spilling.read_all(work.keep, wanted, room)
    return room, n


def _bound(
    room: memoryview, local: memoryview, n: int, width: int
) -> tuple[Addressing, Indices, Piece]:
    """Bind the rows of a part, and the numbers of n of them."""
    addressing = Addressing((len(room) // width,), (width,), n, (), (), False)
    return addressing, Indices(local, LOCAL, True, False), Piece(0, n, 0, width)


def _deal(
    marks: memoryview, starts: memoryview, rows: memoryview, out: memoryview, n: int, back: bool
) -> None:
    """Copy rows of tuples to where their parts begin, in order, or back from there."""
    places = memoryview(bytearray(starts)).cast("q")
    if _kernels.deal(marks, places, rows, out, n, back):
        raise _changed()


def _height(box: Box) -> int:
    return prod(stop - first for first, stop in box)


def _changed() -> OutputError:
    return OutputError("a temporary file changed during the run")
