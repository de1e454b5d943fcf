"""The first two steps of a run: open the inputs, and infer types and shapes."""

import time
from typing import Any

from ndtool.arrays.source import ArrayMetadata, Source
from ndtool.errors import BoundsError, OutputError, UsageError, argument_name
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.machine import threads
from ndtool.rules import inference
from ndtool.rules.dtypes import Dtype
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference, Input
from ndtool.rules.operators import LOWERED
from ndtool.runs.request import Request
from ndtool.storage import locations


class OpenCall:
    """A call of an operator with open inputs; a context manager that closes them.

    open_sources: inputs that the caller has open, by role; the constructor opens the other ones
    from the request's arguments. Raises NdtoolError for an invalid argument, type, shape or
    attribute. A call is immutable: each later step takes it and returns a new value. A lowered
    operator becomes the operator that computes it.

    sources: all inputs by role. inference: the trace and the plan of shapes. reported: the
    inference to report, with the inputs as the user gave them. threads: the maximum number of
    threads. spill_directories: the directories for spilled data, empty for TMPDIR. spill: the
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
            self.inference = self._infer()
            self.reported = self._as_stored(self.inference)
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

    def _as_stored(self, inferred: Inference) -> Inference:
        """Return an inference with the type of indices before they were made to count from 0."""
        inputs, origin = inferred.inputs, getattr(self.sources.get("indices"), "origin", None)
        if origin is None:
            return inferred
        indices = inputs["indices"]._replace(dtype=origin.metadata.dtype)
        return inferred._replace(inputs={**inputs, "indices": indices})

    def _open(self, open_sources: dict[str, Source]) -> None:
        streams = Streams(directory=self.spill)
        for role, argument in self.request.arguments.items():
            source = open_sources.get(role)
            source = source or locators.open_role(role, argument, streams, self._data_dtype)
            if role == "indices" and self.request.attributes.rebases_indices:
                from ndtool.formats import computed

                source = computed.rebased(source, self.request.attributes)
            self.sources[role] = source
            if self.request.output == "-" and source.is_same_file(1):
                raise OutputError(
                    f"standard output is redirected to {argument_name(argument)}, which is an input"
                )

    def _lower(self) -> None:
        """Turn a call of TensorScatter into one of a scatter with computed indices."""
        import numpy as np

        from ndtool.formats import computed
        from ndtool.inmemory import tensorscatter
        from ndtool.rules import tensorscatter as rules

        if self.request.on_cluster:
            raise UsageError(
                "tensor-scatter does not run on a cluster: omit --scheduler and --workers"
            )
        attributes, inputs = self.request.attributes, self.inference.inputs
        sizes = {role: info.shape for role, info in inputs.items()}
        lowering, stored = rules.infer(sizes, attributes.axis)[1], self.sources.get("write_indices")
        firsts: Any = np.broadcast_to(np.int64(0), lowering.batch)
        if stored is not None:
            firsts = computed.as_array(stored, self.spill)
        try:
            tensorscatter.require_bounds(lowering, firsts, attributes.mode)
        except BoundsError as error:
            inference.name_inputs(error, inputs)
            raise

        def compute(_: int, box: Box) -> Any:
            (first, stop), columns = box
            return tensorscatter.scatter_indices(
                lowering, firsts[first:stop], attributes.mode, columns
            )

        dtype, name = tensorscatter.index_type(lowering), "the computed indices"
        indices: Source = computed.ComputedSource(name, dtype, lowering.indices, compute, stored)
        self.sources = {
            "data": self.sources["past"], "indices": indices, "updates": self.sources["update"],
        }  # fmt: skip
        self.request = self.request._replace(
            operator="scatter", attributes=lowering.attributes, spec="ndtool", indices=name
        )

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
