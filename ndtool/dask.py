"""The operators on dask arrays: lazily, a chunk at a time.

Each function takes dask arrays or arrays in memory and returns a dask array. The number of tasks is
proportional to the number of chunks. Shapes and types are checked at once, also indices
in memory; lazy indices when the result is computed.

>>> import dask.array as da
>>> from ndtool.dask import gather_nd
>>> x = da.arange(12, chunks=5).reshape(4, 3)
>>> gather_nd(x, da.from_array([[3], [-4]], chunks=1)).compute()
array([[ 9, 10, 11],
       [ 0,  1,  2]])
"""

from __future__ import annotations

from itertools import combinations
from math import prod
from typing import Any, Never

import numpy as np

try:
    import dask
    import dask.array as da
except ImportError as error:
    raise ImportError("ndtool.dask needs dask: pip install 'ndtool[dask]'") from error
from dask.array.core import normalize_chunks
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.utils import parse_bytes

from ndtool.engine.bind import MAX_PARTITIONS
from ndtool.errors import BoundsError, RuleError
from ndtool.inmemory import arguments
from ndtool.inmemory.nulls import libraries
from ndtool.outofcore import lazy
from ndtool.outofcore.lazy import Chunks
from ndtool.rules import grid, inference
from ndtool.rules.inference import Inference, Input
from ndtool.rules.operators import Attributes, operator_of
from ndtool.rules.plans import Plan
from ndtool.rules.trace import Sizes, Trace
from ndtool.signatures import Operators, bind

MIN_CHUNK_BYTES = 1 << 22  # of the output, if indices are in memory


def _call(
    data: Any, indices: Any, updates: Any, _: None, operator: str, __: None, spec: Any, *values: Any
) -> da.Array:
    """Infer a call, and return its graph as a dask array."""
    spec = arguments.string("spec", spec)
    parsed = arguments.make_attributes(operator, zip(Attributes._fields, values, strict=True))
    inputs = {"data": data, "indices": indices, "updates": updates}
    arrays = {role: _argument(role, inputs[role], parsed) for role in operator_of(operator).inputs}
    described = {
        role: Input(role, arguments.element_type(role, array.dtype), tuple(map(int, array.shape)))
        for role, array in arrays.items()
    }
    types = {role: argument.dtype for role, argument in described.items()}
    sizes = {role: argument.shape for role, argument in described.items()}
    checked = inference.check(operator, types, sizes, parsed, spec)
    try:
        return _lazy_array(Inference(operator, spec, parsed, described, *checked), arrays)
    except BoundsError as error:
        arguments.restore_exact_index(error, indices)
        raise


def _argument(role: str, value: Any, attributes: Attributes) -> Any:
    """Return an argument as a dask array with known chunks, or as an ndarray."""
    if "xarray" in libraries(value) and isinstance(getattr(value, "data", None), da.Array):
        value = value.data
    is_indices = role == "indices"
    if not isinstance(value, da.Array):
        if not is_indices:
            return arguments.array(role, value)
        return arguments.rebase(arguments.index_array(value, attributes.out_of_bounds), attributes)
    meta = arguments.array(role, value._meta)
    if any(size != size for size in value.shape):
        raise RuleError(
            f"{role} has chunks of unknown sizes: call {role}.compute_chunk_sizes() first"
        )
    if is_indices and attributes.rebases_indices:
        meta = arguments.rebase(meta, attributes)
        return da.map_blocks(arguments.rebase, value, attributes=attributes, meta=meta)
    return value


def _lazy_array(inference: Inference, arrays: dict[str, Any]) -> da.Array:
    """Rechunk the arrays of a call to matching chunks, and return its graph as a dask array."""
    plan = inference.plan
    rows, rank = len(plan.grid_axes), len(plan.positions)
    outer = range(len(plan.index_batch), len(plan.batch))  # behind the axes of rows or tuples
    data, indices, updates = arrays["data"], arrays["indices"], arrays.get("updates")
    if not isinstance(data, da.Array):
        data = _in_chunks(data, "auto" if data.size else -1)
    data = _move(data, outer, range(rows, rows + len(outer)))
    if updates is not None:
        updates = _move(updates, outer, range(rank, rank + len(outer)))
    tuple_chunks = _chunks_of_tuples(inference, data, indices, updates)
    if inference.scatters:
        tuple_chunks = _consecutive(plan, tuple_chunks)
    data_chunks = _partitions(plan, data.chunks)
    inner = data_chunks[rows:]
    chunked: dict[str, Any] = {"data": _in_chunks(data, data_chunks)}
    if isinstance(indices, da.Array):
        components = tuple((size,) for size in indices.shape[rank:])
        chunked["indices"] = _in_chunks(indices, tuple_chunks + components)
        if inference.requires_distinct:
            chunked["all indices"] = _in_chunks(indices, tuple((size,) for size in indices.shape))
    if updates is not None:
        chunked["updates"] = _in_chunks(updates, tuple_chunks + inner)
    dtypes = {role: array.dtype for role, array in arrays.items()}
    untraced = inference._replace(trace=Trace(inference.operator, (), Sizes(), ()))
    graph = lazy.TaskGraph(
        lazy.Call(untraced, dtypes, data_chunks, tuple_chunks),
        {role: array.name for role, array in chunked.items()},
        indices,
        tokenize(inference.attributes, inference.spec, tuple_chunks, indices, *chunked.values()),
    )
    layers = HighLevelGraph.from_collections(graph.name, graph.tasks, [*chunked.values()])
    first, chunks = (rows, data_chunks) if inference.scatters else (rank, tuple_chunks + inner)
    result = da.Array(layers, graph.name, chunks, dtype=data.dtype)
    if inference.scatters and result.size:  # else its tasks, which validate indices, would be lost
        result = _in_chunks(result, data.chunks)
    return _move(result, range(first, first + len(outer)), outer)


def _move(value: Any, axes: range, to: range) -> Any:
    """Move axes of an array; dask would add tasks if none are moved."""
    return np.moveaxis(value, axes, to) if axes else value


def _partitions(plan: Plan, data: Chunks) -> Chunks:
    """Return chunks of data that have one size along the axes of rows, as partitions need."""
    steps = [max(sizes) for _, sizes in zip(plan.grid_axes, data, strict=False)]
    while grid.count_blocks(plan.slice_grid, tuple(steps)) > MAX_PARTITIONS:
        steps[max(range(len(steps)), key=lambda r: plan.slice_grid[r] / steps[r])] *= 2
    chunks: Chunks = normalize_chunks(steps, plan.slice_grid)
    return chunks + data[len(steps) :]


def _consecutive(plan: Plan, chunks: Chunks) -> Chunks:
    """Return chunks of tuples that are in order as far as these can select the same row."""
    own = [i for i in range(len(chunks)) if i not in plan.grid_axes]
    if all(len(chunks[j]) < 2 or max(chunks[i]) < 2 for i, j in combinations(own, 2)):
        return chunks
    steps, remaining = list[Any](chunks), prod(max(chunks[i]) for i in own)
    for i in reversed(own):
        steps[i] = max(1, min(sum(chunks[i]), remaining))
        remaining //= steps[i]
    consecutive: Chunks = normalize_chunks(steps, plan.positions)
    return consecutive


def _chunks_of_tuples(inference: Inference, data: da.Array, indices: Any, updates: Any) -> Chunks:
    """Return the chunks of index tuples: those of indices, else of updates, else the default."""
    plan, itemsize = inference.plan, inference.dtype.itemsize
    for chunked in (indices, updates):
        if isinstance(chunked, da.Array):
            return tuple(chunked.chunks[: len(plan.positions)])
    sizes = [max(*sizes, 1) for sizes in data.chunks]
    width = itemsize * prod(sizes[len(plan.grid_axes) :])
    default_bytes = parse_bytes(dask.config.get("array.chunk-size"))
    limit = min(max(itemsize * prod(sizes), MIN_CHUNK_BYTES), default_bytes)
    steps, dtype = "auto" if plan.tuples else -1, np.dtype((np.void, max(width, 8)))
    chunks: Chunks = normalize_chunks(steps, plan.positions, limit, dtype)
    return chunks


def _in_chunks(value: Any, chunks: Any) -> da.Array:
    """Return an array as a dask array, in the given chunks."""
    if not value.size:  # dask does not divide such arrays, nor rechunk them
        return da.empty(value.shape, dtype=value.dtype, chunks=chunks)
    return value.rechunk(chunks) if isinstance(value, da.Array) else da.from_array(value, chunks)


_operators: Operators[Any, Any, da.Array, None, Never] = bind(
    _call,
    __name__,
    {"Data": "Any", "Indices": "Any", "Result": "da.Array"},
    "The arrays are dask arrays, or arrays in memory; the result is a dask array. The chunks of a"
    " gather are those of indices, and of data along the axes of a slice; those of a scatter are"
    " data's. If indices are in memory, only chunks of data that they select from are read."
    " Computing raises BoundsError and DuplicatesError for lazy indices; other errors are raised"
    " at once.",
    omitted=("out", "threads"),
)
gather_nd, scatter_nd = _operators.gather_nd, _operators.scatter_nd
gather_elements, scatter_elements = _operators.gather_elements, _operators.scatter_elements
gather, scatter = _operators.gather, _operators.scatter
