"""Calls with any attributes, and the ways to execute them, which all give what the oracle gives."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
from hypothesis import strategies as st
from strategies import Array, Case, cases, random_values, reductions_of, seeds, to_layout, void_view

import ndtool
from ndtool import files
from ndtool.analysis.oracle import reference
from ndtool.arrays import memory
from ndtool.arrays.assembly import ChunkedSource, box_slices
from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.engine.gathers import ignore_progress
from ndtool.errors import BoundsError, DuplicatesError, NdtoolError
from ndtool.outofcore import execution
from ndtool.outofcore.partitioning import rows_of
from ndtool.rules import grid
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.runs import direct as direct_runs
from ndtool.runs import operands, steps
from ndtool.runs.calls import OpenCall, Request

PACKED_RECORD = np.dtype([("a", "i1"), ("b", "i8")])


@st.composite
def calls_with_attributes(draw: st.DrawFn) -> Case:
    """Draw a call: of its indices some are out of bounds, padding or duplicates; any attributes."""
    case = draw(cases)
    data, indices, *updates = case.arrays
    limits, rng = np.iinfo(indices.dtype), np.random.default_rng(draw(seeds))
    options: dict[str, Any] = {}
    modes = ("error", "clip", "wrap", "drop" if updates else "fill")
    options["out_of_bounds"] = draw(st.sampled_from(modes))
    if draw(st.integers(0, 3)) == 3:
        options["index_base"] = 1
        if limits.max > 8:  # numbers drawn for an axis are small
            indices = np.where(indices >= 0, indices + 1, indices).astype(indices.dtype)
    if draw(st.integers(0, 2)) == 2:
        options["negatives"] = False
    near = rng.integers(max(-20, limits.min), min(20, limits.max), indices.shape, endpoint=True)
    extremes = rng.choice(np.array([limits.min, limits.max], indices.dtype), indices.shape)
    if options.get("index_base"):  # an extreme index that counts from 1 is refused with wrap
        extremes = extremes // 2
    unusual = np.where(rng.random(indices.shape) < 0.8, near.astype(indices.dtype), extremes)
    fraction = draw(st.sampled_from((0.0, 0.0, 0.1, 0.5, 1.0)))
    indices = np.where(rng.random(indices.shape) < fraction, unusual, indices).astype(indices.dtype)
    if draw(st.integers(0, 2)) == 2:
        pads = (-1, 0, 1, 7, int(limits.min), int(limits.max))
        options["pad"] = pad = draw(st.sampled_from(pads))
        if limits.min <= pad <= limits.max:
            is_pad = rng.random(indices.shape) < draw(st.sampled_from((0.2, 1.0)))
            indices = np.where(is_pad, indices.dtype.type(pad), indices)
    if not updates and ("pad" in options or options["out_of_bounds"] == "fill"):
        # a fill value for long doubles is 0
        if data.dtype.kind in "if" and data.dtype.itemsize <= 8 and draw(st.booleans()):
            options["fill"] = 7
    elif updates and case.arguments["reduction"] == "none":
        options["duplicates"] = draw(st.sampled_from(("last", "first", "error")))
    return case._replace(arrays=(data, indices, *updates), arguments={**case.arguments, **options})


def outcome(call: Callable[[], Any]) -> Any:
    """Return the array that a call returns, or what its error says about indices."""
    try:
        return call()
    except BoundsError as error:
        return bounds_fields(error)
    except DuplicatesError as error:
        return {"first": error.first, "second": error.second}
    except NdtoolError as error:
        return type(error)


def bounds_fields(error: BoundsError) -> dict[str, Any]:
    return {**error.first(), "count": error.count, "total": error.total}


def expected_outcome(case: Case) -> Any:
    """Return what the oracle gives."""
    arguments = dict(case.arguments)
    if "fill" in arguments:
        fill = np.asarray(arguments.pop("fill")).astype(case.arrays[0].dtype)
        arguments["filling"] = fill.tobytes()
    return outcome(lambda: getattr(reference, case.operator)(*case.arrays, **arguments))


def contiguous(array: Array) -> Array:
    """Return a copy in C order with the same bits."""
    return np.array(void_view(array), order="C").view(array.dtype)


# Each way takes a case and what draws its own parameters; it returns the result, raises an error,
# or returns None if it does not apply to the case.


def arrays(case: Case, draw: st.DrawFn) -> Any:
    """Call the function, perhaps with an output of any layout, perhaps with data as the output."""
    options: dict[str, Any] = {"threads": draw(st.integers(1, 4))}
    operator = getattr(ndtool, case.operator)
    data, *others = case.arrays
    kind = draw(st.sampled_from(("new", "new", "out", "in place")))
    if kind == "in place" and len(others) == 2:
        layout = draw(st.sampled_from(("C", "Fortran", "reversed", "strided", "unaligned")))
        data = options["out"] = to_layout(data, layout)
    elif kind == "out" and isinstance(expected := expected_outcome(case), np.ndarray):
        layout = draw(st.sampled_from(("C", "Fortran", "reversed", "strided", "unaligned")))
        options["out"] = to_layout(np.zeros(expected.shape, data.dtype), layout)
    result = operator(data, *others, **case.arguments, **options)
    assert "out" not in options or result is options["out"]
    assert result.flags.writeable
    assert not any(np.shares_memory(result, array) for array in case.arrays)
    return result


def flat_sources(case: Case) -> dict[str, Any]:
    """Return the arrays of a case as files have them."""
    roles = OPERATORS[case.operator].inputs
    return {
        role: memory.source(role, contiguous(array))
        for role, array in zip(roles, case.arrays, strict=True)
    }


def open_call(case: Case, sources: dict[str, Any], **options: Any) -> OpenCall:
    """Return a call on sources."""
    roles = OPERATORS[case.operator].inputs
    request = Request(case.operator, *roles, attributes=attributes_of(case), **options)
    return OpenCall(request, sources)


def attributes_of(case: Case) -> Attributes:
    """Return the arguments of a call as a run has them: the fill value is text."""
    return Attributes(**{k: str(v) if k == "fill" else v for k, v in case.arguments.items()})


def output_of(call: OpenCall, case: Case) -> tuple[Any, Callable[[], Array]]:
    """Return a sink, and a function that returns what was written to it."""
    buffer = np.zeros(call.inference.nbytes, np.uint8)
    sink = memory.BufferSink(buffer.data, call.metadata)
    shape, dtype = call.inference.plan.output, case.arrays[0].dtype
    return sink, lambda: buffer.view(dtype).reshape(shape)


def direct(case: Case, draw: st.DrawFn) -> Any:
    """Execute a call on files as a run does."""
    with open_call(case, flat_sources(case), threads=draw(st.integers(1, 3))) as call:
        operands.validate(call)
        sink, result = output_of(call, case)
        with steps.prepare(call, None) as prepared:
            steps.execute(prepared, sink=sink)
        return result()


def direct_chunks(case: Case, draw: st.DrawFn) -> Any:
    """Execute a call on chunked data as a run does, by blocks or by an assembled copy."""
    sources = flat_sources(case)
    chunks = np.array(void_view(case.arrays[0]), order="C")
    sources["data"] = Chunks(in_chunks(sources["data"].metadata, draw), chunks)
    by_block = draw(st.booleans())
    with (
        patch.object(direct_runs, "gathers_by_block", lambda *_, **__: by_block),
        open_call(case, sources, threads=draw(st.integers(1, 3))) as call,
    ):
        sink, result = output_of(call, case)
        with steps.prepare(call, None) as prepared:
            steps.execute(prepared, sink=sink)
        assert max(sources["data"].counts.values(), default=0) <= 1
        return result()


def swept(case: Case, draw: st.DrawFn) -> Any:
    """Execute a call on files out of core, with any memory and depth of partitioning."""
    threads = draw(st.integers(1, 3))
    with open_call(case, flat_sources(case), threads=threads) as call:
        report = operands.validate(call).bounds_report
        rows = rows_of(call.inference, call.sources, call.metadata, threads)
        if not rows.tuples or not rows.width or max(rows.shape) < 2:
            return None
        budget = draw(st.sampled_from((1, 600, 4000, 1 << 20)))
        partitioning = rows.partition(budget, draw(st.integers(1, 4)))
        partitioning = replace(partitioning, in_memory=draw(st.integers(0, 300)))
        sink, result = output_of(call, case)
        run_phases(call, partitioning, sink, report)
        return result()


def run_phases(call: OpenCall, partitioning: Any, sink: Any, report: BoundsError | None) -> None:
    """Execute the phases, which report what the validation reported."""
    reports: list[BoundsError] = []
    names = list(execution.run(call, partitioning, (), sink, ignore_progress, reports.append))
    assert names == ["split", "sweep", "replay"][: 2 + ("updates" not in call.sources)]
    expected = [] if report is None else [report]
    assert [*map(bounds_fields, reports)] == [*map(bounds_fields, expected)]


class Chunks(ChunkedSource):
    """A source or sink of a chunked array in memory that counts its calls."""

    name, streamed, kept = "chunks", False, None

    def __init__(self, metadata: ArrayMetadata, array: Any) -> None:
        self.metadata, self.array, self.counts = metadata, array, Counter()

    def _window(self, number: int) -> Any:
        return box_slices(grid.box(self.metadata.shape, self.metadata.block_shape, number))

    def read_chunk(self, index: int, box: grid.Box) -> Any:
        self.counts[index] += 1
        return np.array(self.array[box_slices(box)])

    def map(self) -> None:
        return None

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        self.counts[block] += 1
        to = self.array[self._window(block)]
        assert (start, len(view)) == (0, to.size * to.itemsize)
        to[...] = np.ndarray(to.shape, to.dtype, view)


def in_chunks(metadata: ArrayMetadata, draw: st.DrawFn) -> ArrayMetadata:
    """Return metadata of a chunked array, perhaps of one chunk."""
    steps = tuple(draw(st.integers(1, size + 1)) for size in metadata.shape)
    layout = ChunkLayout(steps, None, ("zstd",), 3)
    return metadata._replace(block_shape=steps, layout=layout, order="C")


def swept_chunks(case: Case, draw: st.DrawFn) -> Any:
    """Execute a call on chunked arrays out of core: each chunk is read and written once."""
    sources = flat_sources(case)
    for (role, flat), array in zip([*sources.items()], case.arrays, strict=True):
        if role == "data" or draw(st.booleans()):
            chunks = np.array(void_view(array), order="C")
            sources[role] = Chunks(in_chunks(flat.metadata, draw), chunks)
    with open_call(case, sources) as call:
        report, shape = operands.validate(call).bounds_report, call.inference.plan.output
        if 0 in shape or not shape or any(0 in array.shape for array in case.arrays):
            return None
        for source in sources.values():
            if isinstance(source, Chunks):
                source.counts.clear()
        to = in_chunks(call.metadata, draw)
        budget = draw(st.sampled_from((1, 600, 4000, 1 << 20)))
        threads, levels = draw(st.integers(1, 3)), draw(st.integers(1, 3))
        rows = rows_of(call.inference, call.sources, to, threads)
        partitioning = rows.partition(budget, levels)
        out = np.zeros(shape, void_view(case.arrays[0]).dtype)
        sink: Any = Chunks(to, out)
        run_phases(call, partitioning, sink, report)
        assert set(sink.counts.values()) == {1}
        assert max(sources["data"].counts.values(), default=0) <= 1
        return out.view(case.arrays[0].dtype)


def from_python(case: Case, draw: st.DrawFn) -> Any:
    """Call the function for files with arrays; it counts indices out of bounds."""
    inputs = [contiguous(array) for array in case.arrays]
    result = getattr(files, case.operator)(*inputs, **case.arguments)
    error = expected_outcome(case._replace(arguments={**case.arguments, "out_of_bounds": "error"}))
    count = error["count"] if isinstance(error, dict) and "count" in error else 0
    if not isinstance(error, dict) or "count" in error:
        assert (result.outside, len(result.warnings)) == (count, count > 0)
    # the order of bytes of elements of one byte is not preserved
    one_byte = case.arrays[0].dtype.itemsize == 1
    return result.array.view(case.arrays[0].dtype) if one_byte else result.array


def lazy(case: Case, draw: st.DrawFn) -> Any:
    """Compute dask arrays with chunks of any sizes, 0 included."""
    import dask
    import dask.array as da

    def sizes(size: int) -> tuple[int, ...]:
        step = draw(st.integers(1, 4))
        if size and draw(st.booleans()):
            return tuple(min(step, size - start) for start in range(0, size, step))
        bounds = sorted(draw(st.lists(st.integers(0, size), max_size=3)))
        return tuple(b - a for a, b in zip([0, *bounds], [*bounds, size], strict=True))

    inputs: list[Any] = list(case.arrays)
    for number, array in enumerate(inputs):
        if draw(st.integers(0, 3)):
            inputs[number] = da.from_array(array, tuple(map(sizes, array.shape)))
    result = getattr(ndtool.dask, case.operator)(*inputs, **case.arguments)
    assert isinstance(result, da.Array)
    blocks = dask.compute(*result.to_delayed().flat, scheduler="sync")
    assert [block.shape for block in blocks] == list(product(*result.chunks))
    return np.asarray(result.compute(scheduler="sync")).astype(result.dtype)


def tensors(case: Case, draw: st.DrawFn) -> Any:
    """Call the function for tensors, which have types of torch."""
    import torch

    data, indices, *updates = case.arrays
    inputs = [torch.from_numpy(data), indices, *map(torch.from_numpy, updates)]
    return getattr(ndtool.torch, case.operator)(*inputs, **case.arguments).numpy()


def with_type_of_torch(case: Case, draw: st.DrawFn) -> Case:
    """Return a case whose data and updates torch has; indices too."""
    dtype = np.dtype(draw(st.sampled_from(("f4", "f8", "i4", "i8", "u1", "?", "c8", "f2"))))
    rng = np.random.default_rng(draw(seeds))
    data, indices, *updates = case.arrays
    data, *updates = (random_values(rng, dtype, array.shape) for array in (data, *updates))
    arguments = dict(case.arguments)
    if arguments.get("reduction", "none") not in reductions_of(dtype):
        arguments = {**arguments, "reduction": "none"}
    if arguments.get("fill") and dtype.kind not in "if":
        del arguments["fill"]
    return Case(case.operator, (data, indices, *updates), arguments)


WAYS: dict[str, Callable[[Case, Any], Any]] = {
    "arrays": arrays,
    "files": direct,
    "chunked files": direct_chunks,
    "functions of files": from_python,
    "out of core": swept,
    "chunks out of core": swept_chunks,
    "lazy": lazy,
    "torch": tensors,
}
