"""The direct way: inputs as whole buffers, the output as one, or in pieces written in order."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ndtool._kernels import ASKED, Indices, Piece
from ndtool.arrays import source
from ndtool.arrays.local import Stretch
from ndtool.arrays.sink import Sink, deliver
from ndtool.arrays.source import Source
from ndtool.engine import bind, check, columns, copies, gathers, layouts, memory, tuning
from ndtool.engine.bind import Operand, Runs
from ndtool.engine.copies import Write
from ndtool.engine.crew import Rooms, share
from ndtool.engine.gathers import Tick
from ndtool.engine.threads import team
from ndtool.errors import BoundsError, OutputError, called
from ndtool.rules.dtypes import NATIVE
from ndtool.rules.inference import Inference


class Operands(NamedTuple):
    """The inputs of a run.

    sources: by the standards' names. stretches: their bytes, as far as they were asked for.
    indices: their bytes in row-major order; none before they were checked. outside: what is known
    of those out of bounds, which another rule than "error" lets through. spill: the directory of
    temporary files, None for TMPDIR.
    """

    inference: Inference
    sources: dict[str, Source]
    stretches: dict[str, Stretch]
    indices: memoryview
    threads: int
    outside: BoundsError | None = None
    spill: str | None = None

    @property
    def bound(self) -> Indices:
        """The indices as the kernels take them."""
        return self.bound_by(self.rule)

    def bound_by(self, rule: str) -> Indices:
        """Return the indices as the kernels take them, with a rule for those out of bounds."""
        found = self.inference
        filling = bind.filling_for(found.plan, found.filling) if rule == "fill" else None
        return bind.bind_indices(self.indices, found.inputs["indices"].dtype, rule, filling)

    @property
    def rule(self) -> str:
        """What becomes of indices out of bounds; where there are none, they would be an error."""
        return self.inference.attributes.out_of_bounds if self.outside else "error"

    @property
    def negatives(self) -> bool:
        """Whether indices count from the end."""
        return self.inference.row.negatives

    def stretch(self, role: str) -> Stretch:
        """Return an input's bytes; of what a gather reads from, all that it comes to.

        What is not in memory, nor can be mapped, is read when it is asked for first.
        """
        if role not in self.stretches:
            touched = None
            if role == "data" and "updates" not in self.sources:
                from ndtool.runs.touched import Gathered

                dtype = self.inference.inputs["indices"].dtype
                touched = Gathered(self.inference.plan, self.indices, dtype, self.rule)
            self.stretches[role] = source.whole(
                self.sources[role], touched, self.threads, self.spill
            )
        return self.stretches[role]

    def is_fortran(self, role: str) -> bool:
        """Whether an input's elements stand in Fortran order."""
        return self.sources[role].facts.order == "F"

    def operand(self, role: str) -> Operand:
        """Return an input as the kernels take it."""
        _, dtype, shape = self.inference.inputs[role]
        strides = layouts.contiguous(shape, dtype.itemsize, self.is_fortran(role))
        return Operand(self.stretch(role).buffer, 0, strides)

    def is_right(self, role: str) -> bool:
        """Whether an input's elements stand in row-major order."""
        _, dtype, shape = self.inference.inputs[role]
        return copies.is_right(shape, self.operand(role).strides, dtype, dtype.order)

    def put_right(self, role: str, order: str, aligned: bool) -> memoryview:
        """Return an input's bytes in row-major order and a byte order, where they are if they can.

        aligned: whether elements must stand at multiples of their size.
        """
        name, dtype, shape = self.inference.inputs[role]
        stretch, data = self.stretch(role), self.operand(role)
        odd = aligned and (stretch.position or 0) % dtype.itemsize != 0
        if copies.is_right(shape, data.strides, dtype, order) and not odd:
            return stretch.buffer
        from ndtool.arrays import spill

        return spill.filled(
            len(stretch.buffer),
            f"temporary copy of {called(name)}",
            lambda write: copies.write_right(data, shape, dtype, order, write, self.threads),
            self.spill,
        )

    def changed(self) -> OutputError:
        """An index that was checked is out of bounds now: say that somebody changed it."""
        return OutputError(
            f"{called(self.inference.inputs['indices'].name)} changed during the run"
        )


def unchecked(
    inference: Inference, sources: dict[str, Source], threads: int, spill: str | None = None
) -> Operands:
    """Return the inputs, of which nothing was read."""
    return Operands(inference, sources, {}, memoryview(b""), threads, spill=spill)


def checked(operands: Operands) -> Operands:
    """Return the inputs, of which only indices are read; BoundsError if one is out of bounds.

    Unless another rule than "error" lets them through.
    """
    inference = operands.inference
    order = inference.inputs["indices"].dtype.order
    operands = operands._replace(indices=operands.put_right("indices", order, False))
    rule, plan = inference.attributes.out_of_bounds, inference.plan
    error = check.found(plan, operands.bound, operands.negatives, operands.threads)
    if error is None:
        return operands
    if check.is_error(plan, rule) or not isinstance(error, BoundsError):
        raise error
    return operands._replace(outside=error)


@contextmanager
def whole_output(
    sink: Sink, threads: int = 1, tick: Tick | None = None, directory: str | None = None
) -> Iterator[tuple[memoryview, Write | None]]:
    """Give all of an output as writable bytes, and what is faster than stores to them, if any.

    They are the sink's own where it has them, else a room that is written to it at the end.
    directory: where it is if memory is too little, None for TMPDIR.
    """
    out = sink.map()
    if out is not None:
        yield out, sink.write
        return
    from ndtool.arrays import spill

    room = spill.room(sink.facts.nbytes, f"temporary copy of {sink.name}", directory=directory)
    yield room, None
    deliver(room, sink, threads, tick)


def gather(operands: Operands, sink: Sink, tick: Tick) -> None:
    """Gather into a sink."""
    inference, data = operands.inference, operands.operand("data")
    if not len(data.buffer):
        with whole_output(sink, operands.threads, tick, operands.spill) as (out, _):
            gathers.fill(out, inference.filling * (tuning.WRITTEN // inference.dtype.itemsize or 1))
        return
    plan, itemsize, stretch = inference.plan, inference.dtype.itemsize, operands.stretch("data")
    runs = bind.bind_runs(plan, data.strides, itemsize, operands.negatives)
    if runs is not None and runs.layout is not None:
        shape, nbytes = inference.inputs["data"].shape, len(data.buffer)
        if copies.is_worth_packing(shape, data.strides, nbytes, inference.nbytes):
            stretch, data = _packed(operands)
            runs = bind.bind_runs(plan, data.strides, itemsize, operands.negatives)
    flat = sink.facts.grid == sink.facts.shape
    if runs is not None and flat:
        one_by_one = _read_ahead(stretch, runs, inference.nbytes)
        _gather_pieces(operands, runs, data, sink, tick, one_by_one)
        return
    indices, threads = operands.bound, operands.threads
    with whole_output(sink, threads, tick, operands.spill) as (out, write):
        if runs is not None:
            done = gathers.gather(runs, data, indices, out, threads)
        else:
            panels = bind.bind_panels(plan, data.strides, itemsize, operands.negatives)
            if write is not None and columns.suit(panels, panels.length):
                done = gathers.gather_columns(panels, data, indices, out, threads, tick)
            else:
                done = gathers.gather_panels(panels, data, indices, out, threads, tick)
        if not done:
            raise operands.changed()


def _packed(operands: Operands) -> tuple[Stretch, Operand]:
    """Return data in row-major order."""
    stretch = operands.stretch("data")
    if stretch.cached() < 0.5:
        _ask_for_all(stretch)
    _, dtype, shape = operands.inference.inputs["data"]
    packed = operands.put_right("data", dtype.order, False)
    return Stretch(packed), Operand(packed, 0, layouts.contiguous(shape, dtype.itemsize))


def _gather_pieces(
    operands: Operands, runs: Runs, data: Operand, sink: Sink, tick: Tick, one_by_one: bool
) -> None:
    """Gather in pieces, each written when it is complete; one_by_one: ask for each piece's runs."""
    nbytes, indices = operands.inference.nbytes, operands.bound
    writers = 1 if sink.streamed else team(operands.threads, nbytes)
    each = operands.threads if writers == 1 else 1

    def move(piece: Piece) -> None:
        if one_by_one:
            gathers.will_need(runs, data, indices, piece)
        room = rooms.take()
        to = room[: piece.tuples * piece.width]
        if not gathers.gather_piece(runs, data, indices, piece, to, each):
            raise operands.changed()
        place = piece.place(runs.width)
        sink.write(place.start, to)
        rooms.give(room)
        tick(place.stop / nbytes)

    rooms = Rooms(min(nbytes, max(tuning.WRITTEN, runs.itemsize)))
    share(move, gathers.pieces(runs, tuning.WRITTEN), writers)


def _read_ahead(data: Stretch, runs: Runs, gathered: int) -> bool:
    """Tell the system how data will be read; return whether each piece is to ask for its own."""
    size = len(data.buffer)
    cold = data.cached() < 0.5
    if cold and gathers.needs_all(runs, size):
        if not memory.holds(size):  # then so many tuples come here only if they go on in order
            return False
        _ask_for_all(data)
        cold = False
    if gathered < size // 2:
        data.advise("random")  # or every run would bring its neighbours along
    return cold


def _ask_for_all(data: Stretch) -> None:
    """Ask the system to read all of data, in order."""
    for start in range(0, len(data.buffer), ASKED):
        data.advise("willneed", start, ASKED)


def scatter(operands: Operands, sink: Sink, tick: Tick) -> None:
    """Copy data to a sink, changed by the updates."""
    from ndtool.engine import scatters

    inference, dtype = operands.inference, operands.inference.dtype
    reduction = inference.attributes.reduction
    order = dtype.order if reduction == "none" else NATIVE
    updates = operands.put_right("updates", order, reduction != "none")
    data, shape = operands.operand("data"), inference.plan.data
    with whole_output(sink, operands.threads, tick, operands.spill) as (out, write):
        source = data.buffer
        if not copies.is_right(shape, data.strides, dtype, order):
            if write is None:
                copies.put_right(data, shape, dtype, order, out, operands.threads)
            else:
                copies.write_right(data, shape, dtype, order, write, operands.threads)
            source = None
        work = scatters.Scatter(
            inference.plan, dtype, source, operands.bound, updates, reduction, out,
            operands.negatives, operands.threads, tuning.FILE_SCRATCH, tick, write,
        )  # fmt: skip
        if not scatters.scatter(work):
            raise operands.changed()
        if dtype.unit > 1 and order != dtype.order:
            copies.swap(out, dtype.unit)
