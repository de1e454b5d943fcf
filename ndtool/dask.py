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

from ndtool.errors import BoundsError, RuleError
from ndtool.inmemory.arguments import (
    array,
    element_type,
    index_array,
    make_attributes,
    rebase,
    restore_exact_index,
    string,
)
from ndtool.inmemory.nulls import libraries
from ndtool.outofcore import lazy
from ndtool.outofcore.lazy import Chunks
from ndtool.rules import inference
from ndtool.rules.inference import Inference, Input
from ndtool.rules.operators import Attributes, operator_of
from ndtool.rules.plans import Shape
from ndtool.rules.trace import Sizes, Trace
from ndtool.signatures import Operators, bind

MIN_CHUNK_BYTES = 1 << 22  # of the output, if indices are in memory


def _call(
    data: Any, indices: Any, updates: Any, _: None, operator: str, __: None, spec: Any, *values: Any
) -> da.Array:
    """Infer a call, and return its graph as a dask array."""
    spec = string("spec", spec)
    parsed = make_attributes(operator, zip(Attributes._fields, values, strict=True))
    inputs = {"data": data, "indices": indices, "updates": updates}
    arrays = {
        role: _argument(role, value, parsed)
        for role, value in inputs.items()
        if role in operator_of(operator).inputs
    }
    if parsed.rebases_indices:
        stored: Any = arrays["indices"]
        is_lazy = isinstance(stored, da.Array)
        arrays["indices"] = (
            stored.map_blocks(rebase, attributes=parsed, dtype=np.int64)
            if is_lazy
            else rebase(stored, parsed)
        )
    described = {
        role: Input(role, element_type(role, array.dtype), tuple(map(int, array.shape)))
        for role, array in arrays.items()
    }
    types = {role: argument.dtype for role, argument in described.items()}
    sizes = {role: argument.shape for role, argument in described.items()}
    checked = inference.check(operator, types, sizes, parsed, spec)
    try:
        return _lazy_array(Inference(operator, spec, parsed, described, *checked), arrays)
    except BoundsError as error:
        restore_exact_index(error, indices)
        raise


def _argument(role: str, value: Any, attributes: Attributes) -> Any:
    """Return an argument as a dask array with known chunks, or as an ndarray."""
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


def _lazy_array(inference: Inference, arrays: dict[str, Any]) -> da.Array:
    """Rechunk the arrays of a call to matching chunks, and return its graph as a dask array."""
    axes, rank = lazy.axes_of(inference.plan), len(inference.plan.positions)
    data_axes = axes.rows + axes.inner
    indices, updates = arrays["indices"], arrays.get("updates")
    data = _in_chunks(arrays["data"]).transpose(data_axes)
    if updates is not None:
        updates = updates.transpose(_inverse(axes.output))
    tuple_chunks = _chunks_of_tuples(inference, data, indices, updates)
    inner_chunks = data.chunks[len(axes.rows) :]
    expected = data.chunks if inference.scatters else tuple_chunks + inner_chunks
    data_chunks, tuple_chunks = lazy.align(inference, data.chunks, tuple_chunks)
    chunked, all_indices = {"data": _in_chunks(data, data_chunks)}, indices
    if isinstance(indices, da.Array):
        components = ((size,) for size in indices.shape[rank:])
        chunked["indices"] = _in_chunks(indices, (*tuple_chunks, *components))
    chunks = tuple_chunks + inner_chunks
    if updates is not None:
        chunked["updates"] = _in_chunks(updates, chunks)
        chunks = data_chunks
    inputs: list[Any] = list(chunked.values())
    if inference.requires_distinct and isinstance(indices, da.Array):
        inputs.append(_in_chunks(indices, tuple((size,) for size in indices.shape)))
        all_indices = inputs[-1].name, *(0 for _ in indices.shape)
    dtypes = {role: array.dtype for role, array in arrays.items()}
    untraced = inference._replace(trace=Trace(inference.operator, (), Sizes()))
    graph = lazy.TaskGraph(
        lazy.Call(untraced, dtypes, data_chunks),
        tuple_chunks,
        {role: array.name for role, array in chunked.items()},
        all_indices,
        tokenize(inference.attributes, inference.spec, tuple_chunks, indices, *chunked.values()),
    )
    layers = HighLevelGraph.from_collections(graph.name, graph.tasks, dependencies=inputs)
    result = da.Array(layers, graph.name, chunks, dtype=data.dtype)
    result = result.rechunk(expected) if result.size else result
    return result.transpose(_inverse(data_axes) if inference.scatters else axes.output)


def _inverse(axes: Shape) -> Shape:
    """Return the permutation that restores the order of permuted axes."""
    return tuple(sorted(range(len(axes)), key=axes.__getitem__))


def _in_chunks(value: Any, chunks: Any = "auto") -> da.Array:
    """Return an array as a dask array, in the given chunks if any."""
    if not isinstance(value, da.Array):
        if not value.size and chunks == "auto":
            chunks = -1  # dask divides by sizes of chunks, some of which are 0
        return da.from_array(value, chunks)
    rechunked = value if chunks == "auto" else value.rechunk(chunks)
    if chunks not in ("auto", rechunked.chunks):  # dask does not rechunk arrays without elements
        return da.empty(value.shape, dtype=value.dtype, chunks=chunks)
    return rechunked


def _chunks_of_tuples(inference: Inference, data: da.Array, indices: Any, updates: Any) -> Chunks:
    """Return the chunks of index tuples: those of indices, else of updates, else the default."""
    rank, rows = len(inference.plan.positions), len(inference.plan.grid_axes)
    for chunked in (indices, updates):
        if isinstance(chunked, da.Array):
            return tuple(chunked.chunks[:rank])
    itemsize = inference.dtype.itemsize
    width = itemsize * prod(max(*sizes, 1) for sizes in data.chunks[rows:])
    chunk_bytes = itemsize * prod(max(*sizes, 1) for sizes in data.chunks)
    default_bytes = parse_bytes(dask.config.get("array.chunk-size"))
    limit = min(max(chunk_bytes, MIN_CHUNK_BYTES), default_bytes)
    positions, steps = inference.plan.positions, "auto" if inference.plan.tuples else -1
    chunks: Chunks = normalize_chunks(steps, positions, limit, np.dtype((np.void, max(width, 8))))
    return chunks


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
