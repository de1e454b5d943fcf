"""An array from one format to another: its values as they are, in row-major order."""

from __future__ import annotations

import time
from typing import NamedTuple

from ndtool.arrays import names, sink, source
from ndtool.arrays.sink import Sink, deliver
from ndtool.arrays.source import Facts, Source
from ndtool.arrays.streams import Streams
from ndtool.arrays.targets import Storing
from ndtool.engine import copies, layouts, threads
from ndtool.engine.bind import Operand
from ndtool.engine.gathers import Tick, silent
from ndtool.errors import DtypeError, OutputError, called
from ndtool.rules.dtypes import Dtype
from ndtool.rules.inference import Given
from ndtool.runs import direct


class Request(NamedTuple):
    """A conversion as a user asks for it; source and output are arguments such as `a.npz:x`.

    dtype: what elements stored as void are. as_void: whether types that the output's format lacks
    may be stored as void. The others as in a run.
    """

    source: str
    output: str
    dtype: str | None = None
    as_void: bool = False
    clobber: bool = True
    sync: bool = False
    only: bool = False
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: str | None = None


class Conversion:
    """A conversion whose source is open; a context manager that lets go of it.

    facts: of the array as it is written. stored: its type in the output. started: when, by
    time.perf_counter.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.source: Source = names.open_source(request.source, Streams())
        try:
            if request.output == "-" and self.source.is_open_as(1):
                what = f"standard output is {called(request.source)}"
                raise OutputError(f"{what}, which is the input")
            facts = self.source.facts
            dtype = Given(request.source, facts.dtype, facts.shape).taken_as(request.dtype).dtype
            self.stored = _stored(dtype, request)
            self.facts = Facts(dtype, facts.shape, "C", facts.shape, {})
        except BaseException:
            self.close()
            raise

    @property
    def warnings(self) -> list[str]:
        """What is odd about the source without being wrong."""
        return [self.source.warning] if self.source.warning else []

    def run(self, tick: Tick = silent) -> tuple[str, ...] | None:
        """Write the output and publish it, whole; return the members that stay in its file."""
        request = self.request
        output: Sink = names.create(
            request.output,
            self.facts,
            clobber=request.clobber,
            sync=request.sync,
            only=request.only,
            storing=Storing(request.chunks, request.shards, request.codec, self.source.facts.notes),
        )
        try:
            if self.facts.nbytes:
                _copy(self.source, output, tick)
            self.source.recheck()
            sink.commit(output)
        finally:
            output.abort()
        return output.kept

    def close(self) -> None:
        """Let go of the source."""
        self.source.close()

    def __enter__(self) -> Conversion:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _stored(dtype: Dtype, request: Request) -> Dtype:
    """Return the type that the output has; DtypeError if it would forget the element type."""
    stored = names.stored(request.output, dtype)
    if stored.name != dtype.name and not request.as_void:
        output = "standard output" if request.output == "-" else called(request.output)
        raise DtypeError(
            f"{output}: its format does not know {dtype.name}, which would be stored as"
            f" {stored.name}: expected a format that does, such as .safetensors",
            hint=f"--as-void stores it so, and --dtype {dtype.name} reads it again",
        )
    return stored


def _copy(origin: Source, output: Sink, tick: Tick) -> None:
    """Copy all bytes; from column-major order they are put right on the way."""
    facts = origin.facts
    origin.tick = tick
    stretch = source.whole(origin)
    strides = layouts.contiguous(facts.shape, facts.dtype.itemsize, facts.order == "F")
    if not copies.is_right(facts.shape, strides, facts.dtype, facts.dtype.order):
        data = Operand(stretch.buffer, 0, strides)
        with direct.whole_output(output, tick=tick) as (room, _):
            copies.put_right(
                data, facts.shape, facts.dtype, facts.dtype.order, room, threads.resolve(None), tick
            )
        return
    stretch.advise("sequential")
    deliver(stretch.buffer, output, tick=tick)
