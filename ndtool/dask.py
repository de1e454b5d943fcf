"""The operators on dask arrays: lazily, a chunk at a time.

Each function takes dask arrays or arrays in memory and returns a dask array. A chunk of data, of
indices and of the output each take one task; the number of tasks does not depend on how they
meet. Shapes and types are checked at once, indices when the result is computed.

>>> import dask.array as da
>>> from ndtool.dask import gather_nd
>>> x = da.arange(12, chunks=5).reshape(4, 3)
>>> gather_nd(x, da.from_array([[3], [-4]], chunks=1)).compute()
array([[ 9, 10, 11],
       [ 0,  1,  2]])
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from itertools import accumulate, product
from math import prod
from operator import attrgetter
from typing import Any, SupportsIndex, TypedDict, Unpack

import dask
import dask.array as da
import numpy as np
from dask.array.core import normalize_chunks
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.utils import parse_bytes

from ndtool import notebook
from ndtool.arguments import array, attributes_of, index_array, name_exactly, type_of, word
from ndtool.chunkwise import parts, splits
from ndtool.chunkwise.calls import ChunkedCall, Chunks
from ndtool.chunkwise.splits import Split
from ndtool.engine import layouts
from ndtool.errors import BoundsError, RuleError
from ndtool.literals import Duplicates, GatherMode, Reduction, ScatterMode
from ndtool.nulls import libraries
from ndtool.rules import inference
from ndtool.rules.inference import Given, Inference
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Shape

Key = tuple[Any, ...]


class GatherOptions(TypedDict, total=False):
    """The keyword arguments of gathers, as in ndtool.gather_nd."""

    spec: str
    out_of_bounds: GatherMode
    fill: object
    pad: SupportsIndex | None
    negatives: bool


class ScatterOptions(TypedDict, total=False):
    """The keyword arguments of scatters, as in ndtool.scatter_nd."""

    spec: str
    out_of_bounds: ScatterMode
    pad: SupportsIndex | None
    negatives: bool
    include_self: bool
    duplicates: Duplicates


def gather_nd(
    data: Any, indices: Any, batch_dims: SupportsIndex = 0, **how: Unpack[GatherOptions]
) -> da.Array:
    """Gather the slices of data that index tuples select, lazily; see ndtool.gather_nd.

    data, indices: dask arrays, or arrays in memory. The chunks of the result are those of indices,
    and of data along the axes of a slice. If indices are in memory, only chunks of data that they
    select from are read. Computing raises BoundsError; RuleError and DtypeError are raised at once.
    """
    return _call("gather_nd", (data, indices), {"batch_dims": batch_dims}, how)


def scatter_nd(
    data: Any,
    indices: Any,
    updates: Any,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    **how: Unpack[ScatterOptions],
) -> da.Array:
    """Copy data and update the slices that index tuples select, lazily; see ndtool.scatter_nd.

    The chunks of the result are those of data. Updates are applied in row-major order of all
    indices, whatever the chunks. Errors are those of gather_nd, and DuplicatesError.
    """
    attributes = {"reduction": reduction, "batch_dims": batch_dims}
    return _call("scatter_nd", (data, indices, updates), attributes, how)


def gather_elements(
    data: Any, indices: Any, axis: SupportsIndex = 0, **how: Unpack[GatherOptions]
) -> da.Array:
    """Gather one element per index along an axis, lazily; see ndtool.gather_elements, gather_nd."""
    return _call("gather_elements", (data, indices), {"axis": axis}, how)


def scatter_elements(
    data: Any,
    indices: Any,
    updates: Any,
    axis: SupportsIndex = 0,
    reduction: Reduction = "none",
    **how: Unpack[ScatterOptions],
) -> da.Array:
    """Copy data and update one element per index along an axis, lazily.

    See ndtool.scatter_elements, and scatter_nd here.
    """
    attributes = {"axis": axis, "reduction": reduction}
    return _call("scatter_elements", (data, indices, updates), attributes, how)


def gather(
    data: Any,
    indices: Any,
    axis: SupportsIndex | None = None,
    *,
    batch_dims: SupportsIndex = 0,
    **how: Unpack[GatherOptions],
) -> da.Array:
    """Gather the slices of data that indices select along an axis, lazily.

    See ndtool.gather, and gather_nd here.
    """
    return _call("gather", (data, indices), {"axis": axis, "batch_dims": batch_dims}, how)


def scatter(
    data: Any,
    indices: Any,
    updates: Any,
    axis: SupportsIndex | None = None,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    **how: Unpack[ScatterOptions],
) -> da.Array:
    """Copy data and update the slices that indices select along an axis, lazily.

    See ndtool.scatter, and scatter_nd here.
    """
    attributes = {"axis": axis, "reduction": reduction, "batch_dims": batch_dims}
    return _call("scatter", (data, indices, updates), attributes, how)


def _call(
    operator: str, given: tuple[Any, ...], attributes: dict[str, Any], how: Any
) -> da.Array:
    """Infer a call, arrange its arrays in chunks, and return its graph as an array."""
    how = dict(how)
    spec = word("spec", how.pop("spec", "ndtool"))
    made = attributes_of(operator, (attributes | how).items())
    arrays = {
        role: _taken(role, value, made)
        for role, value in zip(("data", "indices", "updates"), given, strict=False)
    }
    try:
        found = _inferred(operator, arrays, made, spec)
    except RuleError as error:
        notebook.show_trace(error)
        raise
    return _Graph(found, arrays, given[1]).array()


def _taken(role: str, value: Any, attributes: Attributes) -> Any:
    """Return an argument as a dask array of known chunks, or as an ndarray."""
    if "xarray" in libraries(value) and isinstance(getattr(value, "data", None), da.Array):
        value = value.data
    if not isinstance(value, da.Array):
        if role == "indices":
            return index_array(value, attributes.out_of_bounds)
        return array(role, value)
    array(role, value._meta)
    if any(size != size for size in value.shape):
        raise RuleError(
            f"{role} has chunks of unknown sizes: call {role}.compute_chunk_sizes() first"
        )
    return value


def _inferred(
    operator: str, arrays: dict[str, Any], attributes: Attributes, spec: str
) -> Inference:
    inputs = {
        role: Given(role, type_of(role, one.dtype), tuple(map(int, one.shape)))
        for role, one in arrays.items()
    }
    types = {role: one.dtype for role, one in inputs.items()}
    sizes = {role: one.shape for role, one in inputs.items()}
    row, trace, plan = inference.check(operator, types, sizes, attributes, spec)
    return Inference(operator, spec, attributes, inputs, row, trace, plan)


class _Graph:
    """The graph of a call, under construction.

    A position is that of a chunk in a grid: of indices (`at`), of data along the rows (`row`), or
    along the lanes and the run (`free`). touching: for each row the indices that may select from
    it; touched: the inverse.
    """

    def __init__(self, found: Inference, arrays: dict[str, Any], given: Any) -> None:
        data, self.indices = arrays["data"], arrays["indices"]
        self.data = data if isinstance(data, da.Array) else da.from_array(data)
        kinds = {role: one.dtype for role, one in arrays.items()}
        self.call = ChunkedCall(found, kinds, self.data.chunks)
        self.axes, self.given = self.call.axes, given
        updates = arrays.get("updates")
        self.over = self._chunks_of_tuples(updates)
        self.updates = None
        if updates is not None:
            chunks = self.axes.arranged(self.over, *self._along(self.data.chunks))
            lazy = isinstance(updates, da.Array)
            self.updates = updates.rechunk(chunks) if lazy else da.from_array(updates, chunks)
        self.token = tokenize(found.attributes, found.spec, self.data, self.indices, self.updates)
        self.name = f"{found.operator}-{self.token}"
        self.tasks: dict[Any, Any] = {self._key("call"): self.call}
        self.touching: dict[Shape, list[Shape]] = {row: [] for row in _grid(self.call.grid)}
        self.touched: dict[Shape, list[Shape]] = {}

    def _along(self, values: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """Return data's values along the lanes and along the run."""
        return [values[d] for d in self.axes.lanes], [values[d] for d in self.axes.run]

    def _key(self, what: str, *at: int) -> Key:
        return (f"{self.call.inference.operator}-{what}-{self.token}", *at)

    def _chunks_of_tuples(self, updates: Any) -> Chunks:
        """Return the chunks of tuples; indices in a dask array get one for their components."""
        plan = self.call.plan
        rank = len(plan.positions)
        if isinstance(self.indices, da.Array):
            over: Chunks = self.indices.chunks[:rank]
            self.indices = self.indices.rechunk((*over, *self.indices.shape[rank:]))
            return over
        if isinstance(updates, da.Array):
            lanes, front = len(self.axes.lanes), self.axes.front
            return (*updates.chunks[:front], *updates.chunks[front + lanes : rank + lanes])
        free = sum(self._along(self.data.chunks), [])
        width = prod(max(*sizes, 1) for sizes in free)
        return _divided(plan.positions, width * self.call.inference.dtype.itemsize)

    def array(self) -> da.Array:
        """Return the call as a dask array."""
        lazy = isinstance(self.indices, da.Array)
        verdict = self._split_later() if lazy else self._split_now()
        if self.call.inference.requires_distinct:
            verdict = self._require_distinct(verdict)
        if self.updates is None:
            self._gather(verdict)
            chunks = self.axes.arranged(self.over, *self._along(self.data.chunks))
        else:
            self._scatter(verdict)
            chunks = self.data.chunks
        given = (self.data, self.indices, self.updates)
        inputs = [one for one in given if isinstance(one, da.Array)]
        graph = HighLevelGraph.from_collections(self.name, self.tasks, dependencies=inputs)
        return da.Array(graph, self.name, chunks, dtype=self.data.dtype)

    def _split_later(self) -> Key:
        """Add the tasks that split indices, and the verdict on them; return its key."""
        reports = []
        rest = (0,) * (self.indices.ndim - len(self.over))
        for at, origin, shape in _boxes(self.over):
            key = self._key("split", *at)
            chunk = (self.indices.name, *at, *rest)
            self.tasks[key] = (splits.split, self._key("call"), chunk, origin, shape)
            if self.call.is_strict:
                reports.append(self._key("report", *at))
                self.tasks[reports[-1]] = (attrgetter("report"), key)
        self._connect()
        verdict = self._key("verdict")
        self.tasks[verdict] = (splits.bounds_verdict, self._key("call"), reports)
        return verdict

    def _connect(self) -> None:
        """Connect chunks of indices with the chunks of data that their tuples may select from."""
        sources = list(zip(self.axes.rows, self.axes.sources, strict=True))
        for at, origin, shape in _boxes(self.over):
            ranges = []
            for axis, source in sources:
                sizes = self.call.chunks[axis]
                low = 0 if source is None else origin[source]
                high = self.call.plan.data[axis] if source is None else low + shape[source]
                starts = np.cumsum([0, *sizes[:-1]])
                some = np.flatnonzero((starts < high) & (starts + sizes > low) & (np.array(sizes) > 0))
                ranges.append(some.tolist())
            rows = list(product(*ranges)) if prod(shape) else []
            self.touched[at] = rows
            for row in rows:
                self.touching[row].append(at)

    def _split_now(self) -> Key:
        """Split indices in memory, and connect only chunks that meet; return the verdict's key."""
        verdict, reports = self._key("verdict"), []
        pieces: dict[Shape, list[Split]] = {}
        for at, origin, shape in _boxes(self.over):
            box = tuple(slice(o, o + size) for o, size in zip(origin, shape, strict=True))
            found = splits.split(self.call, self.indices[box], origin, shape)
            reports.append(found.report)
            self.tasks[self._key("split", *at)] = found
            self.touched[at] = []
            for number in map(int, found.ids):
                if number < self.call.skipped:
                    row = layouts.unravel(number, self.call.grid)
                    self.touched[at].append(row)
                    self.touching[row].append(at)
                    pieces.setdefault(row, []).append(found.only(number))
        for row, some in pieces.items():
            self.tasks[self._key("piece", *row)] = some
        try:
            self.tasks[verdict] = splits.bounds_verdict(self.call, reports)
        except BoundsError as error:
            name_exactly(error, self.given)
            self.tasks[verdict] = (_fail, error)
        return verdict

    def _pieces(self, row: Shape) -> Any:
        """Return the key of a chunk's tuples, or those of the splits that may have some."""
        if not isinstance(self.indices, da.Array) and self.touching[row]:
            return self._key("piece", *row)
        return [self._key("split", *at) for at in self.touching[row]]

    def _require_distinct(self, verdict: Key) -> Key:
        """Add the tasks that look for duplicates; return the key of their verdict."""
        found = []
        for number, row in enumerate(self.touching):
            key = self._key("repeated", *row)
            pieces = self._pieces(row)
            self.tasks[key] = (splits.repeated, self._key("call"), verdict, number, pieces)
            found.append(key)
        key = self._key("distinct")
        self.tasks[key] = (splits.duplicates_verdict, self._key("call"), found)
        return key

    def _free(self) -> Iterator[tuple[Shape, Shape, tuple[Shape, Shape]]]:
        """Yield the positions of the chunks along the lanes and the run, and their shapes."""
        lanes, run = self._along(self.data.chunks)
        for lane, _, lane_sizes in _boxes(lanes):
            for one, _, sizes in _boxes(run):
                yield lane, one, (lane_sizes, sizes)

    def _chunk(self, row: Shape, lane: Shape, run: Shape) -> tuple[Key, Shape]:
        """Return the key and the shape of a chunk of data."""
        at = [0] * self.data.ndim
        for d, one in zip(self.axes.transposed, lane + row + run, strict=True):
            at[d] = one
        sizes = tuple(self.data.chunks[d][one] for d, one in enumerate(at))
        return (self.data.name, *at), sizes

    def _gather(self, verdict: Key) -> None:
        call = self._key("call")
        some = [(n, row, self._pieces(row)) for n, (row, by) in enumerate(self.touching.items()) if by]
        for lane, run, free in self._free():
            for number, row, pieces in some:
                chunk, shape = self._chunk(row, lane, run)
                key = self._key("pick", *row, *lane, *run)
                self.tasks[key] = (parts.pick, call, verdict, chunk, shape, number, pieces)
            for at, rows in self.touched.items():
                keys = [self._key("pick", *row, *lane, *run) for row in rows]
                key = (self.name, *self.axes.arranged(at, lane, run))
                piece = self._key("split", *at)
                self.tasks[key] = (parts.merge, call, verdict, piece, free, keys)

    def _scatter(self, verdict: Key) -> None:
        call = self._key("call")
        for number, (row, by) in enumerate(self.touching.items()):
            pieces = self._pieces(row)
            for lane, run, _ in self._free():
                chunk, shape = self._chunk(row, lane, run)
                keys = [(self.updates.name, *self.axes.arranged(at, lane, run)) for at in by]
                key = (self.name, *chunk[1:])
                self.tasks[key] = (
                    parts.update, call, verdict, chunk, shape, number, pieces, keys
                )  # fmt: skip


def _fail(error: BoundsError) -> None:
    """Raise the error of indices that were in memory, when a result is computed."""
    raise copy(error)


def _grid(grid: Shape) -> Iterator[Shape]:
    """Yield the positions of a grid, in row-major order."""
    return product(*map(range, grid))


def _boxes(chunks: Sequence[tuple[int, ...]]) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Yield the position, the origin and the shape of each chunk, in row-major order."""
    begins = [(0, *accumulate(sizes)) for sizes in chunks]
    for at in _grid(tuple(map(len, chunks))):
        origin = tuple(some[one] for some, one in zip(begins, at, strict=True))
        yield at, origin, tuple(some[one] for some, one in zip(chunks, at, strict=True))


def _divided(positions: Shape, width: int) -> Chunks:
    """Return chunks of tuples, along the first axis, so that a chunk of rows has dask's size."""
    limit = max(1, parse_bytes(dask.config.get("array.chunk-size")) // max(width, 8))
    sizes = ("auto", *(-1,) * len(positions))[: len(positions)]
    chunks: Chunks = normalize_chunks(sizes, positions, limit=limit, dtype=np.uint8)
    return chunks

