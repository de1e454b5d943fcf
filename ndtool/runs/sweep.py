"""The way for arrays larger than memory: split, sweep, replay; see tasks.py for what each does.

Here is what comes between the phases: which attempt of each task counts, and where what it kept
stands. Who does the tasks, threads of this process or a cluster, is an executor's business.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import accumulate
from operator import add, sub
from threading import Lock
from typing import Any

from ndtool.arrays.local import Stretch
from ndtool.arrays.pieces import FlatReader, FlatWriter, GridReader, GridWriter, Reader, Writer
from ndtool.arrays.sink import Sink
from ndtool.arrays.source import Facts, Flat
from ndtool.engine import check as indices
from ndtool.engine import crew
from ndtool.engine.gathers import Tick
from ndtool.errors import BoundsError
from ndtool.rules.inference import Inference
from ndtool.rules.shapes import ElementsPlan, NdPlan, Plan, Shape
from ndtool.runs import direct, tasks
from ndtool.runs.cut import Cut, units_of
from ndtool.runs.direct import Operands
from ndtool.runs.resuming import Left
from ndtool.runs.spilling import Keep, Table
from ndtool.runs.store import Store
from ndtool.runs.tasks import Arrays, Bad, Done, Work

Take = Callable[[int, Any], None]  # is given each task that is done, and what it returned
Each = Callable[[str, Sequence[int], Take], None]  # does tasks of a phase
Note = Callable[[BoundsError], object]  # is given what is known of indices out of bounds


def run(operands: Operands, sink: Sink, cut: Cut, tick: Tick, note: Note) -> Iterator[str]:
    """Do a run in this process, into a sink; yield the name of each phase before it begins.

    note: for what is no error.
    """
    with ExitStack() as stack:
        output = _output(operands, sink, cut, stack)
        store = Store(cut.kept, cut.held, operands.spill, {"split": 0, "sweep": cut.sorted})
        stack.callback(store.close)
        work = Work(operands.inference, cut, arrays(operands, cut, output), store)
        last = "replay" if cut.gathers else "sweep"

        def each(phase: str, numbers: Sequence[int], take: Take) -> None:
            in_order = sink.streamed and phase == last  # a stream takes bytes in order
            in_threads(work, phase, numbers, take, 1 if in_order else cut.workers)

        try:
            yield from phases(operands.inference, cut, store, each, tick, note)
        except BoundsError:
            if operands.indices:  # all of them were within bounds
                raise operands.changed() from None
            raise


def check(operands: Operands, cut: Cut, note: Note) -> None:
    """Read all indices by blocks; raise BoundsError if one is out of bounds, or note it."""
    work = Work(operands.inference, cut, arrays(operands, cut, None), Store(0, 0, None, {}))
    outside = _Outside(operands.inference)
    in_threads(work, "check", range(cut.blocks), outside.add, cut.workers)
    outside.tell(note)


def in_threads(work: Work, phase: str, numbers: Sequence[int], take: Take, workers: int) -> None:
    """Do tasks in this process, several at once."""

    def do(number: int) -> None:
        end = tasks.PHASES[phase](work, number)
        with turn:
            take(number, end)

    turn = Lock()
    crew.share(do, iter(numbers), workers)


def phases(
    inference: Inference,
    cut: Cut,
    keep: Keep,
    each: Each,
    tick: Tick,
    note: Note,
    left: Left | None = None,
) -> Iterator[str]:
    """Have all tasks done, phase by phase; yield the name of each before it begins.

    left: what of another run counts as done.
    """
    meter, tables, outside = _Meter(tick, cut), _Tables(cut), _Outside(inference)
    rows = cut.rows
    yield "split"
    take = meter.of(cut.blocks, rows.tuples * rows.entry, partial(_ended, tables, outside))
    each("split", _rest(cut.blocks, left.splits() if left else {}, take), take)
    outside.tell(note)
    keep.tabulate(Table("starts", cut.blocks), tables.starts)
    yield "sweep"
    places = tables.places() if cut.gathers else memoryview(b"")

    def swept(part: int, end: Done) -> None:
        if cut.gathers:
            places[part] = end.attempt

    take = meter.of(cut.parts, rows.height * rows.width, swept)
    known = left.sweeps(cut, places[-cut.parts :]) if left and cut.gathers else {}
    each("sweep", _rest(cut.parts, known, take), take)
    if cut.gathers:
        keep.tabulate(Table("places", cut.parts), places)
        yield "replay"
        take = meter.of(cut.blocks, rows.tuples * rows.width)
        each("replay", range(cut.blocks), take)


def _rest(count: int, known: dict[int, Done], take: Take) -> list[int]:
    """Take what is known of tasks; return the others."""
    for number, end in known.items():
        take(number, end)
    return [number for number in range(count) if number not in known]


def _ended(tables: _Tables, outside: _Outside, block: int, end: Done | Bad) -> None:
    if isinstance(end, Done):
        tables.add(block, end)
        outside.add(block, end.outside)
    else:
        outside.add(block, end)


class _Outside:
    """Collects indices that are out of bounds."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self._bad: dict[int, Bad] = {}

    def add(self, block: int, end: Bad | None) -> None:
        """Take what a task found."""
        if end is not None:
            self._bad[block] = end

    def tell(self, note: Note) -> None:
        """Raise BoundsError if there are any: the first one, and how many; or note it."""
        if not self._bad:
            return
        plan, negatives = self._inference.plan, self._inference.row.negatives
        first = self._bad[min(self._bad)]
        count = sum(one.tuples for one in self._bad.values())
        if isinstance(plan, NdPlan) and plan.repeated:
            count = first.tuples  # every block has all of them
        error = indices.bounds_error(plan, first[:3], count, negatives)
        if indices.is_error(plan, self._inference.attributes.out_of_bounds):
            raise error
        note(error)


class _Tables:
    """What sweeps need to know of splits, and replays of sweeps.

    starts: the attempts, then for every part, and the end, how many tuples of each block are before
    it.
    """

    def __init__(self, cut: Cut) -> None:
        self._cut = cut
        self.starts = _numbers((2 + cut.parts) * cut.blocks)

    def add(self, block: int, end: Done) -> None:
        """Take what the split of a block returned."""
        blocks = self._cut.blocks
        self.starts[block] = end.attempt
        self.starts[blocks + block :: blocks] = memoryview(end.starts).cast("q")

    def places(self) -> memoryview:
        """Return what replays need to know.

        The attempts, to be filled in; how many tuples are before each part; then for every block,
        and the end, how many tuples of each part are before it.
        """
        blocks, parts = self._cut.blocks, self._cut.parts
        places, before = _numbers((3 + blocks) * parts), [0] * parts
        for block in range(blocks):
            places[(2 + block) * parts : (3 + block) * parts] = _line(before)
            here = self.starts[blocks + block :: blocks].tolist()
            before = list(map(add, before, map(sub, here[1:], here)))
        places[(2 + blocks) * parts :] = _line(before)
        places[parts : 2 * parts] = _line(accumulate(before[:-1], initial=0))
        return places


def _numbers(count: int) -> memoryview:
    return memoryview(bytearray(8 * count)).cast("q")


def _line(numbers: Iterable[int]) -> memoryview:
    return memoryview(array("q", numbers))


def arrays(operands: Operands, cut: Cut, output: Writer | None) -> Arrays:
    """Return the arrays of a run as tasks read and write them."""
    plan, turn = operands.inference.plan, Lock()

    def reader(role: str, over: Shape) -> Reader:
        source = operands.sources[role]
        if not isinstance(source, Flat):
            return GridReader(source, len(over))
        stretch, (_, dtype, shape) = operands.stretch(role), operands.inference.inputs[role]
        if operands.is_fortran(role) and len(shape) > 1:
            checked = operands.indices if role == "indices" else None
            stretch = Stretch(checked or operands.put_right(role, dtype.order, False))
        return FlatReader(stretch, over, turn)

    return Arrays(
        reader("data", cut.rows.over),
        reader("indices", plan.positions),
        None if cut.gathers else reader("updates", plan.positions),
        output,
    )


def writer(sink: Sink, cut: Cut, plan: Plan, room: memoryview | None = None) -> Writer:
    """Return an output as tasks write it; room: where it is gathered first."""
    over, run = cut.rows.over, () if isinstance(plan, ElementsPlan) else plan.run
    if cut.gathers:
        over = plan.output[: len(plan.output) - len(run)]
    if room is None and sink.facts.in_chunks:
        return GridWriter(sink, len(over))
    return FlatWriter(sink, over, room)


def _output(operands: Operands, sink: Sink, cut: Cut, stack: ExitStack) -> Writer:
    """Return an output as tasks write it, by way of a room where a sink takes no such pieces."""
    room = None
    if not suits(operands, sink.facts, cut) or (sink.streamed and len(cut.rows.over) > 1):
        whole = direct.whole_output(sink, operands.threads, directory=operands.spill)
        room, _ = stack.enter_context(whole)
    return writer(sink, cut, operands.inference.plan, room)


def suits(operands: Operands, output: Facts, cut: Cut) -> bool:
    """Whether tasks write chunks of an output as a whole."""
    if not output.in_chunks:
        return True
    facts = {role: source.facts for role, source in operands.sources.items()}
    units = units_of(operands.inference, facts, output)
    if cut.gathers:
        return cut.blocks == 1 or cut.block % units.written == 0
    return len(units.box) == len(cut.step) and all(
        step in (size, step // unit * unit)
        for size, step, unit in zip(cut.rows.over, cut.step, units.box, strict=True)
    )


class _Meter:
    """Adds up bytes that tasks are done with, and tells which share of all that is."""

    def __init__(self, tick: Tick, cut: Cut) -> None:
        rows = cut.rows
        moved = rows.tuples * (rows.entry + rows.width * cut.gathers)
        self._tick, self._total, self._done = tick, moved + rows.height * rows.width, 0.0

    def of(self, tasks: int, nbytes: int, then: Take | None = None) -> Take:
        """Return what takes what some tasks return, which are about `nbytes` together."""

        def take(number: int, end: Any) -> None:
            if then is not None:
                then(number, end)
            self._done += nbytes / tasks
            self._tick(min(1.0, self._done / self._total))

        return take
