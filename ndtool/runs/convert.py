"""Conversion of an array to another format: the same values, in row-major order."""

from __future__ import annotations

import time

from ndtool.arrays.sink import Encoding, Sink, output_buffer, write_array
from ndtool.arrays.source import ArrayMetadata, ContiguousSource, Source
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


class Conversion:
    """A conversion and its open source; a context manager that closes the source.

    source_name, output_name: locations such as `a.npz:x`. open_source: a source that the caller has
    open. dtype: the actual type of void elements. as_void: whether a type that the output's format
    lacks may be stored as void. Other options are those of a run's request. metadata: the metadata
    of the array as written. output: the resolved output. started: the start time by
    time.perf_counter.
    """

    def __init__(
        self,
        source: str,
        output: str,
        open_source: Source | None = None,
        *,
        dtype: str | None = None,
        as_void: bool = False,
        chunks: tuple[int, ...] | None = None,
        shards: tuple[int, ...] | None = None,
        codec: str | None = None,
        **publication: bool,
    ) -> None:
        self.source_name, self.output_name, self.started = source, output, time.perf_counter()
        self.source: Source = open_source or locators.open_source(source, Streams())
        try:
            if output == "-" and self.source.is_same_file(1):
                message = f"standard output is redirected to {argument_name(source)}"
                raise OutputError(f"{message}, which is the input")
            stored = self.source.metadata
            element_type = Input(source, stored.dtype, stored.shape).view_as(dtype).dtype
            self.metadata = ArrayMetadata(element_type, stored.shape, "C", stored.shape, {})
            encoding = Encoding(chunks, shards, codec, stored.layout)
            self.output: Output = outputs.resolve(
                output, self.metadata, encoding=encoding, **publication
            )
            if not as_void:
                self._require_supported()
        except BaseException:
            self.close()
            raise

    def _require_supported(self) -> None:
        """Raise DtypeError if the output's format cannot store the element type."""
        dtype, stored = self.metadata.dtype.name, self.output.stored_dtype.name
        if stored == dtype:
            return
        name = "standard output" if self.output_name == "-" else argument_name(self.output_name)
        raise DtypeError(
            f"{name}: its format does not support {dtype}, which would be stored as"
            f" {stored}: expected a format that does, such as .safetensors",
            hint=f"{option('as_void', True)} stores it as {stored}, and {option('dtype', dtype)}"
            " reads that",
        )

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
