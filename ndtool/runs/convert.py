"""Conversion of an array to another format: the same values, in row-major order."""

from __future__ import annotations

import time
from typing import NamedTuple

from ndtool.arrays.sink import Encoding, Sink, output_buffer, write_array
from ndtool.arrays.source import ArrayMetadata, ChunkLayout, ContiguousSource, Source
from ndtool.engine import copies, layouts
from ndtool.engine.bind import Operand
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.errors import DtypeError, OutputError, argument_name, option
from ndtool.formats import locators, outputs
from ndtool.formats.outputs import Output
from ndtool.formats.streams import Streams
from ndtool.machine import threads
from ndtool.publish import sinks
from ndtool.rules.inference import Input


class Request(NamedTuple):
    """The arguments of a conversion; source and output are locations such as `a.npz:x`.

    dtype: the actual type of void elements. as_void: whether a type that the output's format lacks
    may be stored as void. The other fields are those of a run's request.
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
    """A conversion and its open source; a context manager that closes the source.

    open_source: a source that the caller has open, None to open the request's. metadata: the
    metadata of the array as written. output: the resolved output. started: the start time by
    time.perf_counter.
    """

    def __init__(self, request: Request, open_source: Source | None = None) -> None:
        self.request = request
        self.started = time.perf_counter()
        self.source: Source = open_source or locators.open_source(request.source, Streams())
        try:
            if request.output == "-" and self.source.is_same_file(1):
                message = f"standard output is redirected to {argument_name(request.source)}"
                raise OutputError(f"{message}, which is the input")
            metadata = self.source.metadata
            dtype = (
                Input(request.source, metadata.dtype, metadata.shape).view_as(request.dtype).dtype
            )
            self.metadata = ArrayMetadata(dtype, metadata.shape, "C", metadata.shape, {})
            self.output = _resolve_output(request, self.metadata, metadata.layout)
        except BaseException:
            self.close()
            raise

    @property
    def warnings(self) -> list[str]:
        return [self.source.warning] if self.source.warning else []

    def run(self, progress: ProgressCallback = ignore_progress) -> tuple[str, ...] | None:
        """Write the complete output and publish it; return the preserved members of its file."""
        sink: Sink = outputs.create(self.output)
        try:
            if self.metadata.nbytes:
                _copy(self.source, sink, progress)
            self.source.require_unchanged()
            sinks.commit(sink)
        finally:
            sink.abort()
        return sink.preserved

    def close(self) -> None:
        self.source.close()

    def __enter__(self) -> Conversion:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _resolve_output(
    request: Request, metadata: ArrayMetadata, layout: ChunkLayout | None
) -> Output:
    """Resolve the output; DtypeError if its format cannot store the element type."""
    output = outputs.resolve(
        request.output, metadata, clobber=request.clobber, sync=request.sync, only=request.only,
        encoding=Encoding(request.chunks, request.shards, request.codec, layout),
    )  # fmt: skip
    dtype, stored = metadata.dtype.name, output.stored_dtype.name
    if stored != dtype and not request.as_void:
        name = "standard output" if request.output == "-" else argument_name(request.output)
        raise DtypeError(
            f"{name}: its format does not support {dtype}, which would be stored as"
            f" {stored}: expected a format that does, such as .safetensors",
            hint=f"{option('as_void', True)} stores it as {stored}, and {option('dtype', dtype)}"
            " reads that",
        )
    return output


def _copy(origin: Source, output: Sink, progress: ProgressCallback) -> None:
    """Copy all bytes; normalize them if the source is not in row-major order."""
    metadata = origin.metadata
    origin.progress = progress
    buffer, strides = origin.load(), metadata.strides
    if not layouts.is_normalized(metadata.shape, strides, metadata.dtype, metadata.dtype.order):
        data = Operand(buffer, 0, strides)
        with output_buffer(output, progress=progress) as (out, _):
            copies.normalize(
                data,
                metadata.shape,
                metadata.dtype,
                metadata.dtype.order,
                out,
                threads.resolve_threads(None),
                progress,
            )
        return
    if isinstance(origin, ContiguousSource):
        origin.advise("sequential")
    write_array(buffer, output, progress=progress)
