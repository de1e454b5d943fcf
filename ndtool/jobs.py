"""The four operators file to file, in bounded memory: what a command does, without its words."""

import time
from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from ndtool import dtypes, engine, files, layouts, outputs, scatters, shapes, specs, threads
from ndtool.crew import share
from ndtool.dtypes import Dtype
from ndtool.engine import Operand, Piece, Tick, silent
from ndtool.errors import BoundsError, DtypeError, NdtoolError, OutputError, RuleError, printable
from ndtool.shapes import Shape
from ndtool.storage import Spool
from ndtool.threads import team

SCRATCH = 48 << 20  # bytes that a scatter may take to sort its tuples


class Request(NamedTuple):
    """One run as a user asks for it; sources and output are arguments such as `a.npz:x` or `-`.

    attribute: batch_dims or the axis. dtype: what elements stored as void are. output: None to
    keep the result for a preview. only: whether the archive it goes to loses its other members.
    """

    operator: str
    data: str
    indices: str
    updates: str | None = None
    output: str | None = None
    attribute: int = 0
    reduction: str = "none"
    spec: str = "ndtool"
    dtype: str | None = None
    threads: int | None = None
    clobber: bool = True
    sync: bool = False
    only: bool = False

    @property
    def arguments(self) -> dict[str, str]:
        """The inputs by the standards' names."""
        named = {"data": self.data, "indices": self.indices}
        return named if self.updates is None else {**named, "updates": self.updates}


class Operands(NamedTuple):
    """The inputs of one run, opened: element types with `--dtype` applied, and the files."""

    sources: dict[str, files.Source]
    types: dict[str, Dtype]

    def shape(self, name: str) -> Shape:
        return self.sources[name].shape


class Job:
    """A run whose inputs are open and fit together; a context manager that lets go of them.

    trace, plan, row: what was inferred, and the spec's row that was satisfied. started: when, by
    time.perf_counter. held: the result of a run without an output. kept: the members that stay
    in the archive to which the output goes, None where there is none.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.threads = threads.resolve(request.threads)
        self.held: memoryview | None = None
        self.kept: tuple[str, ...] | None = None
        self._opened: list[files.Source] = []
        try:
            self.operands = self._open()
            sizes = {name: source.shape for name, source in self.operands.sources.items()}
            self.row, self.trace, self.plan = specs.infer(
                request.operator, self.operands.types, sizes, request.attribute,
                request.reduction, request.spec,
            )  # fmt: skip
        except BaseException as error:
            self.close()
            if isinstance(error, NdtoolError):
                self._explain(error)
            raise

    def _open(self) -> Operands:
        stdin = files.Stdin()
        sources = {}
        for name, argument in self.request.arguments.items():
            source = files.open_source(argument, stdin)
            self._opened.append(source)
            sources[name] = source
            if self.request.output == "-" and source.is_open_as(1):
                raise OutputError(f"standard output is {printable(argument)}, which is an input")
        types = {name: source.dtype for name, source in sources.items()}
        if self.request.dtype is not None:
            for name in types.keys() - {"indices"}:
                types[name] = dtypes.view_as(types[name], self.request.dtype)
        return Operands(sources, types)

    def _explain(self, error: NdtoolError) -> None:
        """Add the files to an error that knows only data, indices and updates."""
        if isinstance(error, BoundsError):
            error.name(*map(_shown, (self.request.indices, self.request.data)))
        elif isinstance(error, RuleError | DtypeError) and hasattr(self, "operands"):
            error.places = tuple(
                f"{name} {argument}: {self._described(name)}"
                for name, argument in self.request.arguments.items()
            )

    def _described(self, name: str) -> str:
        return self.operands.types[name].name + shapes.written(self.operands.shape(name))

    @property
    def nbytes(self) -> int:
        """Bytes of the output's data."""
        return prod(self.plan.output) * self.operands.types["data"].itemsize

    @property
    def warnings(self) -> list[str]:
        """What is odd about the inputs without being wrong."""
        return [s.warning for s in self._opened if s.warning]

    def check(self) -> None:
        """Raise BoundsError if an index is out of bounds: every one is looked at."""
        self.indices = self._in_row_major_order("indices")
        dtype = self.operands.types["indices"]
        try:
            engine.check(self.plan, self.indices, dtype, self.row.negatives, self.threads)
        except BoundsError as error:
            self._explain(error)
            raise

    def run(self, tick: Tick = silent) -> None:
        """Compute the output and publish it, whole; call `check` before."""
        request, dtype = self.request, self.operands.types["data"]
        with outputs.open_output(
            request.output, dtype, self.plan.output,
            clobber=request.clobber, sync=request.sync, only=request.only,
        ) as output:  # fmt: skip
            if self.nbytes:
                if "updates" in self.operands.sources:
                    self._scatter(output, tick)
                else:
                    self._gather(output, tick)
            for source in self._opened:
                source.recheck()
            output.commit()
            self.kept = output.kept
            if isinstance(output, outputs.HeldOutput):
                self.held = output.map()

    def check_output(self) -> None:
        """Raise what `run` would about the output, as far as that shows without writing."""
        request = self.request
        if request.output is not None:
            self.kept = outputs.check_target(
                request.output, clobber=request.clobber, only=request.only
            )

    def _changed(self) -> OutputError:
        """An index that was checked is out of bounds now: say that somebody changed it."""
        return OutputError(f"{_shown(self.request.indices)} changed during the run")

    def _gather(self, output: outputs.Output, tick: Tick) -> None:
        source, dtype = self.operands.sources["data"], self.operands.types["data"]
        strides = layouts.contiguous(source.shape, dtype.itemsize, source.fortran)
        data = Operand(source.buffer, 0, strides)
        kind = engine.index_kind(self.operands.types["indices"])
        runs = engine.bind_runs(self.plan, strides, dtype.itemsize, self.row.negatives)
        if runs is None:
            units = engine.bind_units(self.plan, strides, dtype.itemsize, self.row.negatives)
            out = output.map()
            if not engine.gather_units(units, data, self.indices, kind, out, self.threads, tick):
                raise self._changed()
            return
        rooms: list[memoryview] = []
        writers = 1 if output.streamed else team(self.threads, self.nbytes)
        each = self.threads if writers == 1 else 1
        cold = source.cached() < 0.5
        if self.nbytes < source.nbytes // 2:
            source.advise("random")  # or every run would bring its neighbours along

        def move(piece: Piece) -> None:
            if cold:
                engine.will_need(runs, data, self.indices, kind, piece)
            room = rooms.pop() if rooms else memoryview(bytearray(min(self.nbytes, most)))
            to = room[: piece.tuples * piece.width]
            if not engine.gather_piece(runs, data, self.indices, kind, to, piece, each, False):
                raise self._changed()
            place = piece.place(runs)
            output.write(place.start, to)
            rooms.append(room)
            tick(place.stop / self.nbytes)

        most = max(scatters.WRITTEN, dtype.itemsize)
        share(move, engine.pieces(runs, scatters.WRITTEN), writers)

    def _scatter(self, output: outputs.Output, tick: Tick) -> None:
        source, dtype = self.operands.sources["data"], self.operands.types["data"]
        reduces = self.request.reduction != "none"
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
            self.plan, dtype, data, self.indices, self.operands.types["indices"], updates,
            self.request.reduction, out, self.row.negatives, self.threads, SCRATCH, tick,
            output.writer,
        )  # fmt: skip
        if not scatters.scatter(work):
            raise self._changed()
        if turned:
            engine.swap(out, dtype.unit)

    def _in_row_major_order(
        self, name: str, like: Dtype | None = None, aligned: bool = False, turned: bool = False
    ) -> memoryview:
        """Return an input's bytes in row-major order, as they are in the file where they can be.

        like: the type whose byte order is wanted; turned: the other order than that.
        """
        source, dtype = self.operands.sources[name], self.operands.types[name]
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


def _shown(argument: str) -> str:
    return "standard input" if argument == "-" else printable(argument)


def _gaps(source: files.Source) -> bool:
    """Whether the elements of a file do not stand in row-major order."""
    if not source.fortran:
        return False
    strides = layouts.contiguous(source.shape, 1, fortran=True)
    return source.nbytes > 0 and not layouts.is_contiguous(source.shape, strides, 1)


def _elements(source: files.Source, unit: int) -> Iterator[memoryview]:
    strides = layouts.contiguous(source.shape, source.dtype.itemsize, source.fortran)
    return engine.row_major(source.buffer, source.shape, strides, source.dtype.itemsize, unit)
