"""The first two steps of a run: open the inputs, and infer types and shapes."""

import time
from copy import copy
from math import prod
from typing import Any

from ndtool.arrays import memory as arrays
from ndtool.arrays.source import ArrayMetadata, Source, load_bytes
from ndtool.errors import BoundsError, OutputError, ResourceError, UsageError, argument_name
from ndtool.formats import literal, locators
from ndtool.formats.streams import Streams
from ndtool.machine import memory, threads
from ndtool.rules import inference
from ndtool.rules.dtypes import INTEGERS, Dtype
from ndtool.rules.inference import Inference, Input
from ndtool.rules.operators import LOWERED
from ndtool.rules.plans import Shape
from ndtool.runs.request import Request
from ndtool.storage import locations


class OpenCall:
    """A call of an operator with open inputs; a context manager that closes them.

    open_sources: inputs that the caller has open, by role; the constructor opens the other ones
    from the request's arguments. Raises NdtoolError for an invalid argument, type, shape or
    attribute. A call is immutable: each later step takes it and returns a new value. A lowered
    operator becomes the operator that computes it.

    sources: all inputs by role. inference: the trace and the plan of shapes. reported: the
    inference to report; of a lowered operator that of the user's call. threads: the maximum number
    of threads. spill_directories: the directories for spilled data, empty for TMPDIR. spill: the
    directory for other temporary files, None for TMPDIR. started: the start time by
    time.perf_counter. from_caller: the roles of inputs that the caller had open.
    """

    def __init__(self, request: Request, open_sources: dict[str, Source] | None = None) -> None:
        self.request, self.started = request, time.perf_counter()
        self.threads = threads.resolve_threads(request.threads)
        self.spill_directories = request.spill_locations
        self.spill = self.spill_directories[0] if self.spill_directories else None
        self.from_caller = frozenset(open_sources or ())
        self.sources: dict[str, Source] = {}
        try:
            self._open(open_sources or {})
            self.inference = self.reported = self._infer()
            if request.operator in LOWERED:
                self._lower()
                self.inference = self._infer()
        except BaseException:
            self.close()
            raise

    def _infer(self) -> Inference:
        inputs = {
            role: Input(source.name, source.metadata.dtype, source.metadata.shape)
            for role, source in self.sources.items()
        }
        request = self.request
        return inference.infer(
            request.operator, inputs, request.attributes, request.spec, request.dtype
        )

    def _open(self, open_sources: dict[str, Source]) -> None:
        streams = Streams(directory=self.spill)
        for role, argument in self.request.arguments.items():
            source = open_sources.get(role)
            source = source or locators.open_role(role, argument, streams, self._data_dtype)
            if role == "indices" and self.request.attributes.index_base:
                source = self._rebased(source)
            self.sources[role] = source
            if self.request.output == "-" and source.is_same_file(1):
                raise OutputError(
                    f"standard output is redirected to {argument_name(argument)}, which is an input"
                )

    def _rebased(self, source: Source) -> Source:
        """Return the indices of a source, in memory, as ones that count from 0."""
        from ndtool.inmemory.arguments import rebase

        if self.request.on_cluster:
            raise UsageError("--index-base 1: a run on a cluster has indices that count from 0")
        name = argument_name(source.name)
        self._require_memory(source.metadata.shape, f"{name}: with --index-base 1 the indices must")
        if source.metadata.dtype.name not in INTEGERS:
            return source
        rebased = rebase(self._array(source), self.request.attributes)
        source.require_unchanged()
        source.close()
        return arrays.source(source.name, rebased)

    def _lower(self) -> None:
        """Turn a call of TensorScatter into one of a scatter with computed indices."""
        from ndtool.inmemory import tensorscatter
        from ndtool.rules import tensorscatter as rules

        attributes, inputs = self.request.attributes, self.inference.inputs
        sizes = {role: info.shape for role, info in inputs.items()}
        lowering, stored = rules.infer(sizes, attributes.axis)[1], self.sources.get("write_indices")
        values = None if stored is None else self._array(stored)
        try:
            firsts = tensorscatter.start_positions(lowering, values, attributes.mode)
        except BoundsError as error:
            inference.name_inputs(error, inputs)
            raise
        count = prod(lowering.indices)
        self._require_memory(
            lowering.indices, f"{count} computed indices are {8 * count} bytes: they must"
        )
        indices = tensorscatter.scatter_indices(lowering, firsts)
        name = "the computed indices"
        if self.request.on_cluster:
            indices = indices.astype("int64")  # as workers parse the literal
            name = str(indices.tolist())
            if len(name) > literal.MAX_CHARACTERS:
                raise UsageError(
                    f"{indices.size} computed indices are too many for a cluster: valid up to"
                    f" {literal.MAX_CHARACTERS} characters",
                    hint="without --scheduler and --workers, there is no limit",
                )
        if stored is not None:
            stored.require_unchanged()
            stored.close()
        self.sources = {
            "data": self.sources["past"],
            "indices": arrays.source("the computed indices", indices),
            "updates": self.sources["update"],
        }
        self.request = self.request._replace(
            operator="scatter", attributes=lowering.attributes, spec="ndtool", indices=name
        )

    def _array(self, source: Source) -> Any:
        """Return the array of a source."""
        import numpy as np

        metadata, dtype = source.metadata, source.metadata.dtype
        buffer = load_bytes(source, directory=self.spill).buffer
        code = f"{dtype.order}{dtype.kind}{dtype.itemsize}"
        return np.ndarray(metadata.shape, code, buffer, order="F" if metadata.order == "F" else "C")

    def _require_memory(self, shape: Shape, subject: str) -> None:
        """Raise ResourceError if indices of a shape do not fit in memory."""
        limit = self.request.memory
        allowed = memory.available() if limit is None else limit
        if 8 * prod(shape) > allowed:
            raise ResourceError(f"{subject} fit in memory of {allowed} bytes")

    @property
    def _data_dtype(self) -> Dtype | None:
        """The element type of data; None before data are open, which is first."""
        source = next(iter(self.sources.values()), None)
        if source is None:
            return None
        info = Input(source.name, source.metadata.dtype, source.metadata.shape)
        return info.view_as(self.request.dtype).dtype

    @property
    def remote_roles(self) -> set[str]:
        """The roles of inputs at URLs."""
        arguments = self.request.arguments.items()
        return {
            role
            for role, argument in arguments
            if role not in self.from_caller and locations.is_url(locators.parse(argument).path)
        }

    @property
    def metadata(self) -> ArrayMetadata:
        """The metadata of the output, whatever its format."""
        shape = self.inference.plan.output
        return ArrayMetadata(self.inference.dtype, shape, "C", shape, {})

    @property
    def warnings(self) -> list[str]:
        return [source.warning for source in self.sources.values() if source.warning]

    def with_threads(self, count: int) -> "OpenCall":
        """Return a call with another number of threads. Both share the inputs: close only one."""
        call = copy(self)
        call.threads = count
        return call

    def require_unchanged(self) -> None:
        """Raise OutputError if an input changed since it was opened."""
        for source in self.sources.values():
            source.require_unchanged()

    def close(self) -> None:
        for source in self.sources.values():
            source.close()

    def __enter__(self) -> "OpenCall":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
