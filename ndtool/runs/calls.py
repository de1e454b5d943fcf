"""The request of a run and its first two steps: open the inputs, infer types and shapes."""

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any, NamedTuple

from ndtool.arrays.source import ArrayMetadata, Source
from ndtool.errors import (
    BoundsError,
    DuplicatesError,
    OutputError,
    UsageError,
    argument_name,
    option,
)
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.machine import threads
from ndtool.rules import inference
from ndtool.rules.dtypes import Dtype
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference, Input
from ndtool.rules.operators import LOWERED, LOWERED_INPUTS, Attributes, operator_of
from ndtool.storage import locations


class Request(NamedTuple):
    """The arguments of one run; inputs and output are locations such as `a.npz:x` or `-`.

    dtype: the actual type of void elements. output: None for no output. only: whether to drop the
    other members of the output's archive. memory: the limit in bytes, including pages of files;
    None for available memory. spill: the directory of temporary files, or several; on a cluster
    one, or a URL; None for TMPDIR. scheduler: a scheduler's address, a scheduler file, or a client.
    workers: the number of processes to start, None for none. resume: whether a cluster reuses the
    spilled data of a killed run. text: whether indices and updates in an unknown format are text.
    chunks, shards, codec: see Encoding in arrays/sink.py.
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
    memory: int | None = None
    spill: str | Sequence[str] | None = None
    scheduler: Any = None
    workers: int | None = None
    resume: bool = False
    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: str | None = None
    text: bool = False

    @property
    def on_cluster(self) -> bool:
        """Whether a cluster executes the run."""
        return self.scheduler is not None or self.workers is not None

    @property
    def arguments(self) -> dict[str, str]:
        """The inputs by the standards' names, without an omitted optional input."""
        roles = operator_of(self.operator).inputs
        arguments = {role: getattr(self, LOWERED_INPUTS.get(role, role)) for role in roles}
        if arguments.get("write_indices", "") is None:
            del arguments["write_indices"]
        for role in roles[1:] if self.text else ():  # data are never text
            if arguments.get(role) is not None:  # stats has no updates
                arguments[role] = locators.as_text(arguments[role])
        return arguments

    @property
    def spill_locations(self) -> tuple[str, ...]:
        """The locations of temporary files, none for TMPDIR; UsageError if one is unusable."""
        if self.resume and not self.on_cluster:
            raise UsageError(
                f"{option('resume', True)}: only a run on a cluster can be resumed: expected"
                f" {option('scheduler')} or {option('workers')}"
            )
        spill = [self.spill] if isinstance(self.spill, str) else self.spill or ()
        if self.on_cluster and len(spill) > 1:
            raise UsageError(
                f"{option('spill')} has {len(spill)} directories: a cluster spills to one, or to a"
                " URL, which all workers share"
            )
        return tuple(map(self._spill_location, spill))

    def _spill_location(self, argument: str) -> str:
        location = locations.local_path(argument)
        if not location:
            raise UsageError(f"{option('spill')} is empty: expected a directory")
        if locations.is_url(location):
            if not self.on_cluster:
                raise UsageError(
                    f"{option('spill')} {argument_name(location)}: only a cluster spills to a URL:"
                    " expected a directory"
                )
        elif not os.path.isdir(location):
            problem = "is not a directory" if os.path.lexists(location) else "does not exist"
            raise UsageError(
                f"{option('spill')} {argument_name(location)} {problem}: expected an existing"
                " directory"
            )
        return location


@contextmanager
def named_inputs(call: "OpenCall") -> Iterator[None]:
    """Add the names of the inputs to errors about indices."""
    try:
        yield
    except (BoundsError, DuplicatesError) as error:
        call.name_inputs(error)
        raise


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
    time.perf_counter. from_caller: the roles of inputs that the caller had open. streams: pipes
    whose next arrays are not read yet.
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
        self.streams = Streams(directory=self.spill)
        for role, argument in self.request.arguments.items():
            source = open_sources.get(role)
            source = source or locators.open_role(role, argument, self.streams, self._data_dtype)
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

        from ndtool.formats import computed, declared
        from ndtool.inmemory import tensorscatter
        from ndtool.rules import tensorscatter as rules

        attributes, inputs = self.request.attributes, self.inference.inputs
        sizes = {role: info.shape for role, info in inputs.items()}
        lowering, stored = rules.infer(sizes, attributes.axis)[1], self.sources.get("write_indices")
        firsts: Any = np.broadcast_to(np.int64(0), lowering.batch)
        if stored is not None:
            firsts = computed.as_array(stored, self.spill)
        with named_inputs(self):
            tensorscatter.require_bounds(lowering, firsts, attributes.mode)

        def compute(_: int, box: Box) -> Any:
            (first, stop), columns = box
            return tensorscatter.scatter_indices(
                lowering, firsts[first:stop], attributes.mode, columns
            )

        dtype, name = tensorscatter.index_type(lowering), "the computed indices"
        indices: Source = computed.ComputedSource(name, dtype, lowering.indices, compute, stored)
        if self.request.on_cluster:  # whose workers parse arguments
            if 3 * prod(lowering.indices) > declared.MAX_CHARACTERS:
                raise UsageError(
                    f"{prod(lowering.indices)} computed indices are too many for a cluster",
                    hint="without a cluster there is no limit",
                )
            indices = declared.open_source(str(computed.as_array(indices).tolist()))
            name = indices.name
        self.sources = {
            "data": self.sources["past"], "indices": indices, "updates": self.sources["update"],
        }  # fmt: skip
        self.request = self.request._replace(
            operator="scatter", attributes=lowering.attributes, spec="ndtool", indices=name
        )

    @property
    def stored_indices(self) -> Source:
        """The indices, or write_indices, from which `sources` has computed ones, or themselves."""
        source = self.sources["indices"]
        return getattr(source, "origin", None) or source

    def name_inputs(self, error: BoundsError | DuplicatesError) -> None:
        """Add the names of the inputs to an error about indices, and an index as it is stored."""
        inputs = self.inference.inputs
        if isinstance(error, BoundsError) and self.request.attributes.rebases_indices:
            from ndtool.formats import computed
            from ndtool.inmemory.arguments import restore_exact_index

            restore_exact_index(error, computed.as_array(self.stored_indices))
            inputs = self.reported.inputs
        inference.name_inputs(error, inputs)

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
