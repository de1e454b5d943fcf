"""The four operators file to file, in bounded memory: what a command does, without its words."""

import time
from collections.abc import Iterator
from typing import NamedTuple

from ndtool._kernels import ASKED, Indices, Piece
from ndtool.arrays import names, sink
from ndtool.arrays.storage import Spool
from ndtool.engine import gathers, layouts, scatters, threads, tuning
from ndtool.engine.crew import Rooms, share
from ndtool.engine.gathers import Operand, Tick, silent
from ndtool.engine.threads import team
from ndtool.errors import BoundsError, OutputError, called
from ndtool.rules import inference
from ndtool.rules.dtypes import Dtype
from ndtool.rules.inference import Given
from ndtool.rules.operators import OPERATORS, Attributes


class Request(NamedTuple):
    """One run as a user asks for it; sources and output are arguments such as `a.npz:x` or `-`.

    dtype: what elements stored as void are. output: None to keep the result for a preview. only:
    whether the archive it goes to loses its other members.
    """

    operator: str
    data: str
    indices: str
    updates: str | None = None
    output: str | None = None
    attributes: Attributes = Attributes()
    spec: str = "ndtool"
    dtype: str | None = None
    threads: int | None = None
    clobber: bool = True
    sync: bool = False
    only: bool = False

    @property
    def arguments(self) -> dict[str, str]:
        """The inputs by the standards' names."""
        return {role: getattr(self, role) for role in OPERATORS[self.operator].inputs}


class Job:
    """A run whose inputs are open and fit together; a context manager that lets go of them.

    sources: the inputs by the standards' names. inference: what follows from their types and
    shapes. started: when, by time.perf_counter. held: the result of a run without an output.
    kept: the members that stay in the archive to which the output goes, None where there is none.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.threads = threads.resolve(request.threads)
        self.held: memoryview | None = None
        self.kept: tuple[str, ...] | None = None
        self._opened: list[names.Source] = []
        try:
            self.sources = self._open()
            self.inference = inference.infer(
                request.operator,
                {role: Given(s.name, s.dtype, s.shape) for role, s in self.sources.items()},
                request.attributes,
                request.spec,
                request.dtype,
            )
        except BaseException:
            self.close()
            raise
        self.plan = self.inference.plan
        self.types = {role: given.dtype for role, given in self.inference.inputs.items()}
        self.negatives = self.inference.row.negatives

    def _open(self) -> dict[str, names.Source]:
        stdin = names.Stdin()
        sources = {}
        for name, argument in self.request.arguments.items():
            source = names.open_source(argument, stdin)
            self._opened.append(source)
            sources[name] = source
            if self.request.output == "-" and source.is_open_as(1):
                raise OutputError(f"standard output is {called(argument)}, which is an input")
        return sources

    @property
    def warnings(self) -> list[str]:
        """What is odd about the inputs without being wrong."""
        return [s.warning for s in self._opened if s.warning]

    def check(self) -> None:
        """Raise BoundsError if an index is out of bounds: every one is looked at."""
        self.indices = self._in_row_major_order("indices")
        try:
            gathers.check(self.plan, self._bound_indices(), self.negatives, self.threads)
        except BoundsError as error:
            inference.point_out(error, self.inference.inputs)
            raise

    def _bound_indices(self) -> Indices:
        return gathers.bind_indices(self.indices, self.types["indices"])

    def run(self, tick: Tick = silent) -> None:
        """Compute the output and publish it, whole; call `check` before."""
        request, dtype = self.request, self.types["data"]
        with sink.open_output(
            request.output, dtype, self.plan.output,
            clobber=request.clobber, sync=request.sync, only=request.only,
        ) as output:  # fmt: skip
            if self.inference.nbytes:
                if "updates" in self.sources:
                    self._scatter(output, tick)
                else:
                    self._gather(output, tick)
            for source in self._opened:
                source.recheck()
            output.commit()
            self.kept = output.kept
            if isinstance(output, sink.HeldOutput):
                self.held = output.map()

    def check_output(self) -> None:
        """Raise what `run` would about the output, as far as that shows without writing."""
        request = self.request
        if request.output is not None:
            self.kept = sink.check_target(
                request.output, clobber=request.clobber, only=request.only
            )

    def _changed(self) -> OutputError:
        """An index that was checked is out of bounds now: say that somebody changed it."""
        return OutputError(f"{called(self.request.indices)} changed during the run")

    def _gather(self, output: sink.Output, tick: Tick) -> None:
        source, dtype = self.sources["data"], self.types["data"]
        strides = layouts.contiguous(source.shape, dtype.itemsize, source.fortran)
        data = Operand(source.buffer, 0, strides)
        indices = self._bound_indices()
        runs = gathers.bind_runs(self.plan, strides, dtype.itemsize, self.negatives)
        if runs is None:
            units = gathers.bind_units(self.plan, strides, dtype.itemsize, self.negatives)
            out = output.map()
            if not gathers.gather_units(units, data, indices, out, self.threads, tick):
                raise self._changed()
            return
        nbytes = self.inference.nbytes
        writers = 1 if output.streamed else team(self.threads, nbytes)
        each = self.threads if writers == 1 else 1
        cold = source.cached() < 0.5
        if cold and gathers.needs_all(runs, source.nbytes):
            for start in range(0, source.nbytes, ASKED):
                source.advise("willneed", start, ASKED)
            cold = False
        if nbytes < source.nbytes // 2:
            source.advise("random")  # or every run would bring its neighbours along

        def move(piece: Piece) -> None:
            if cold:
                gathers.will_need(runs, data, indices, piece)
            room = rooms.take()
            to = room[: piece.tuples * piece.width]
            if not gathers.gather_piece(runs, data, indices, piece, to, each):
                raise self._changed()
            place = piece.place(runs.width)
            output.write(place.start, to)
            rooms.give(room)
            tick(place.stop / nbytes)

        rooms = Rooms(min(nbytes, max(tuning.WRITTEN, dtype.itemsize)))
        share(move, gathers.pieces(runs, tuning.WRITTEN), writers)

    def _scatter(self, output: sink.Output, tick: Tick) -> None:
        source, dtype = self.sources["data"], self.types["data"]
        reduces = self.request.attributes.reduction != "none"
        turned = reduces and dtype.swapped
        updates = self._in_row_major_order("updates", dtype, aligned=reduces, turned=turned)
        out = output.map()
        data: memoryview | None = source.buffer
        if turned or _gaps(source):
            at = 0
            for piece in _elements(source, dtype.unit if turned else 1):
                out[at : at + len(piece)] = piece
                at += len(piece)
            data = None
        work = scatters.Scatter(
            self.plan, dtype, data, self._bound_indices(), updates,
            self.request.attributes.reduction, out, self.negatives, self.threads,
            tuning.FILE_SCRATCH, tick,
            None if output.streamed or self.request.output is None else output.write,
        )  # fmt: skip
        if not scatters.scatter(work):
            raise self._changed()
        if turned:
            gathers.swap(out, dtype.unit)

    def _in_row_major_order(
        self, name: str, like: Dtype | None = None, aligned: bool = False, turned: bool = False
    ) -> memoryview:
        """Return an input's bytes in row-major order, as they are in the file where they can be.

        like: the type whose byte order is wanted; turned: the other order than that.
        """
        source, dtype = self.sources[name], self.types[name]
        other_order = like is not None and (dtype.order != like.order) != turned
        odd = aligned and source.position is not None and source.position % dtype.itemsize != 0
        if not (_gaps(source) or other_order or odd):
            return source.buffer
        spool = Spool()
        for piece in _elements(source, dtype.unit if other_order else 1):
            spool.write(piece)
        return spool.finish()

    def close(self) -> None:
        """Let go of the inputs."""
        for source in self._opened:
            source.close()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _gaps(source: names.Source) -> bool:
    """Whether the elements of a file do not stand in row-major order."""
    if not source.fortran:
        return False
    strides = layouts.contiguous(source.shape, 1, fortran=True)
    return source.nbytes > 0 and not layouts.is_contiguous(source.shape, strides, 1)


def _elements(source: names.Source, unit: int) -> Iterator[memoryview]:
    strides = layouts.contiguous(source.shape, source.dtype.itemsize, source.fortran)
    return gathers.row_major(source.buffer, source.shape, strides, source.dtype.itemsize, unit)
