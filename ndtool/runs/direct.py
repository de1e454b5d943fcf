"""The direct way: inputs as whole buffers, the output as one, or in pieces written in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ndtool._kernels import ASKED, Indices, Piece
from ndtool.arrays import source
from ndtool.arrays.local import Stretch
from ndtool.arrays.sink import Sink, deliver
from ndtool.arrays.source import Source
from ndtool.engine import bind, check, columns, copies, gathers, layouts, tuning
from ndtool.engine.bind import Operand, Runs
from ndtool.engine.crew import Rooms, share
from ndtool.engine.gathers import Tick
from ndtool.engine.threads import team
from ndtool.errors import OutputError, called
from ndtool.rules.dtypes import NATIVE
from ndtool.rules.inference import Inference

Write = Callable[[int, memoryview], object]


class Operands(NamedTuple):
    """The inputs of a run whose indices are all within bounds.

    stretches: their bytes, by the standards' names. orders: "C" or "F", how elements stand there.
    indices: their bytes in row-major order.
    """

    inference: Inference
    stretches: dict[str, Stretch]
    orders: dict[str, str]
    indices: memoryview
    threads: int

    @property
    def bound(self) -> Indices:
        """The indices as the kernels take them."""
        return bind.bind_indices(self.indices, self.inference.inputs["indices"].dtype)

    @property
    def negatives(self) -> bool:
        """Whether indices count from the end."""
        return self.inference.row.negatives

    def operand(self, role: str) -> Operand:
        """Return an input as the kernels take it."""
        _, dtype, shape = self.inference.inputs[role]
        strides = layouts.contiguous(shape, dtype.itemsize, self.orders[role] == "F")
        return Operand(self.stretches[role].buffer, 0, strides)

    def put_right(self, role: str, order: str, aligned: bool) -> memoryview:
        """Return an input's bytes in row-major order and a byte order, where they are if they can.

        aligned: whether elements must stand at multiples of their size.
        """
        name, dtype, shape = self.inference.inputs[role]
        stretch, data = self.stretches[role], self.operand(role)
        odd = aligned and (stretch.position or 0) % dtype.itemsize != 0
        if copies.is_right(shape, data.strides, dtype, order) and not odd:
            return stretch.buffer
        from ndtool.arrays import spill

        room = spill.room(len(stretch.buffer), f"temporary copy of {called(name)}")
        copies.put_right(data, shape, dtype, order, room, self.threads)
        return room.toreadonly()

    def changed(self) -> OutputError:
        """An index that was checked is out of bounds now: say that somebody changed it."""
        return OutputError(
            f"{called(self.inference.inputs['indices'].name)} changed during the run"
        )


def checked(inference: Inference, sources: dict[str, Source], threads: int) -> Operands:
    """Return the inputs as whole buffers; BoundsError if an index is out of bounds."""
    stretches = {role: source.whole(one) for role, one in sources.items()}
    orders = {role: one.facts.order for role, one in sources.items()}
    operands = Operands(inference, stretches, orders, memoryview(b""), threads)
    order = inference.inputs["indices"].dtype.order
    operands = operands._replace(indices=operands.put_right("indices", order, False))
    check.check(inference.plan, operands.bound, operands.negatives, threads)
    return operands


@contextmanager
def whole_output(sink: Sink) -> Iterator[tuple[memoryview, Write | None]]:
    """Give all of an output as writable bytes, and what is faster than stores to them, if any.

    They are the sink's own where it has them, else a room that is written to it at the end.
    """
    out = sink.map()
    if out is not None:
        yield out, sink.write
        return
    from ndtool.arrays import spill

    room = spill.room(sink.facts.nbytes, f"temporary copy of {sink.name}")
    yield room, None
    deliver(room, sink)


def gather(operands: Operands, sink: Sink, tick: Tick) -> None:
    """Gather into a sink."""
    inference, data = operands.inference, operands.operand("data")
    plan, itemsize = inference.plan, inference.dtype.itemsize
    runs = bind.bind_runs(plan, data.strides, itemsize, operands.negatives)
    if runs is not None and runs.layout is not None:
        shape, nbytes = inference.inputs["data"].shape, len(data.buffer)
        if copies.is_worth_packing(shape, data.strides, nbytes, inference.nbytes):
            order = inference.dtype.order
            strides = layouts.contiguous(shape, itemsize)
            data = Operand(operands.put_right("data", order, False), 0, strides)
            runs = bind.bind_runs(plan, strides, itemsize, operands.negatives)
    flat = sink.facts.grid == sink.facts.shape
    if runs is not None and flat:
        _gather_pieces(operands, runs, data, sink, tick)
        return
    indices, threads = operands.bound, operands.threads
    with whole_output(sink) as (out, write):
        if runs is not None:
            done = gathers.gather(runs, data, indices, out, threads)
        else:
            panels = bind.bind_panels(plan, data.strides, itemsize, operands.negatives)
            if write is not None and columns.suit(panels, panels.length):
                done = gathers.gather_columns(panels, data, indices, out, threads, tick)
            else:
                units = bind.bind_units(panels)
                done = gathers.gather_units(units, data, indices, out, threads, tick)
        if not done:
            raise operands.changed()


def _gather_pieces(operands: Operands, runs: Runs, data: Operand, sink: Sink, tick: Tick) -> None:
    """Gather in pieces, each written when it is complete."""
    nbytes, indices = operands.inference.nbytes, operands.bound
    writers = 1 if sink.streamed else team(operands.threads, nbytes)
    each = operands.threads if writers == 1 else 1
    one_by_one = _read_ahead(operands.stretches["data"], runs, nbytes)

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
        for start in range(0, size, ASKED):
            data.advise("willneed", start, ASKED)
        cold = False
    if gathered < size // 2:
        data.advise("random")  # or every run would bring its neighbours along
    return cold


def scatter(operands: Operands, sink: Sink, tick: Tick) -> None:
    """Copy data to a sink, changed by the updates."""
    from ndtool.engine import scatters

    inference, dtype = operands.inference, operands.inference.dtype
    reduction = inference.attributes.reduction
    order = dtype.order if reduction == "none" else NATIVE
    updates = operands.put_right("updates", order, reduction != "none")
    data, shape = operands.operand("data"), inference.plan.data
    with whole_output(sink) as (out, write):
        source = data.buffer
        if not copies.is_right(shape, data.strides, dtype, order):
            copies.put_right(data, shape, dtype, order, out, operands.threads)
            source = None
        work = scatters.Scatter(
            inference.plan, dtype, source, operands.bound, updates, reduction, out,
            operands.negatives, operands.threads, tuning.FILE_SCRATCH, tick, write,
        )  # fmt: skip
        if not scatters.scatter(work):
            raise operands.changed()
        if dtype.unit > 1 and order != dtype.order:
            copies.swap(out, dtype.unit)
