"""The operators on dask arrays: lazily, a chunk at a time.

Each function takes dask arrays or arrays in memory and returns a dask array. The number of tasks is
proportional to the number of chunks. Shapes and types are checked at once, indices when the result
is computed.

>>> import dask.array as da
>>> from ndtool.dask import gather_nd
>>> x = da.arange(12, chunks=5).reshape(4, 3)
>>> gather_nd(x, da.from_array([[3], [-4]], chunks=1)).compute()
array([[ 9, 10, 11],
       [ 0,  1,  2]])
"""

from __future__ import annotations

from itertools import chain
from math import prod
from typing import Any, SupportsIndex, Unpack

try:
    import dask
    import dask.array as da
except ImportError as error:
    raise ImportError("ndtool.dask needs dask: pip install 'ndtool[dask]'") from error
from dask.array.core import normalize_chunks
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.utils import parse_bytes

from ndtool import notebook
from ndtool.chunkwise.calls import ChunkedCall, Chunks
from ndtool.chunkwise.graph import TaskGraph
from ndtool.errors import RuleError, format_value
from ndtool.inmemory.arguments import array, element_type, index_array, make_attributes, string
from ndtool.inmemory.nulls import libraries
from ndtool.literals import LazyGatherOptions, LazyScatterOptions, Reduction
from ndtool.rules import inference
from ndtool.rules.inference import Inference, Input
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Shape
from ndtool.rules.symbols import Sizes
from ndtool.rules.trace import Trace

MIN_CHUNK_BYTES = 1 << 22  # of the output, if indices are in memory


class GatherOptions(LazyGatherOptions, total=False):
    """The keyword arguments of gathers, as in ndtool.gather_nd."""


class ScatterOptions(LazyScatterOptions, total=False):
    """The keyword arguments of scatters, as in ndtool.scatter_nd."""


def gather_nd(
    data: Any, indices: Any, batch_dims: SupportsIndex = 0, **options: Unpack[GatherOptions]
) -> da.Array:
    """Gather the slices of data that index tuples select, lazily; see ndtool.gather_nd.

    data, indices: dask arrays, or arrays in memory. The chunks of the result are those of indices,
    and of data along the axes of a slice. If indices are in memory, only chunks of data that they
    select from are read. Computing raises BoundsError; RuleError and DtypeError are raised at once.
    """
    return _call("gather_nd", (data, indices), {"batch_dims": batch_dims}, options)


def scatter_nd(
    data: Any,
    indices: Any,
    updates: Any,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    **options: Unpack[ScatterOptions],
) -> da.Array:
    """Copy data and update the slices that index tuples select, lazily; see ndtool.scatter_nd.

    The chunks of the result are those of data. Updates are applied in row-major order of all
    indices, whatever the chunks. Errors are those of gather_nd, and DuplicatesError.
    """
    attributes = {"reduction": reduction, "batch_dims": batch_dims}
    return _call("scatter_nd", (data, indices, updates), attributes, options)


def gather_elements(
    data: Any, indices: Any, axis: SupportsIndex = 0, **options: Unpack[GatherOptions]
) -> da.Array:
    """Gather one element per index along an axis, lazily; see ndtool.gather_elements, gather_nd."""
    return _call("gather_elements", (data, indices), {"axis": axis}, options)


def scatter_elements(
    data: Any,
    indices: Any,
    updates: Any,
    axis: SupportsIndex = 0,
    reduction: Reduction = "none",
    **options: Unpack[ScatterOptions],
) -> da.Array:
    """Copy data and update one element per index along an axis, lazily.

    See ndtool.scatter_elements, and scatter_nd here.
    """
    attributes = {"axis": axis, "reduction": reduction}
    return _call("scatter_elements", (data, indices, updates), attributes, options)


def gather(
    data: Any,
    indices: Any,
    axis: SupportsIndex | None = None,
    *,
    batch_dims: SupportsIndex = 0,
    **options: Unpack[GatherOptions],
) -> da.Array:
    """Gather the slices of data that indices select along an axis, lazily.

    See ndtool.gather, and gather_nd here.
    """
    return _call("gather", (data, indices), {"axis": axis, "batch_dims": batch_dims}, options)


def scatter(
    data: Any,
    indices: Any,
    updates: Any,
    axis: SupportsIndex | None = None,
    reduction: Reduction = "none",
    *,
    batch_dims: SupportsIndex = 0,
    **options: Unpack[ScatterOptions],
) -> da.Array:
    """Copy data and update the slices that indices select along an axis, lazily.

    See ndtool.scatter, and scatter_nd here.
    """
    attributes = {"axis": axis, "reduction": reduction, "batch_dims": batch_dims}
    return _call("scatter", (data, indices, updates), attributes, options)


def _call(
    operator: str, inputs: tuple[Any, ...], attributes: dict[str, Any], keywords: Any
) -> da.Array:
    """Infer a call, and return its graph as a dask array."""
    options = GatherOptions if len(inputs) == 2 else ScatterOptions
    for name in keywords:
        if name not in options.__annotations__:
            raise TypeError(f"{operator}() got an unexpected keyword argument {format_value(name)}")
    keywords = dict(keywords)
    spec = string("spec", keywords.pop("spec", "ndtool"))
    parsed = make_attributes(operator, (attributes | keywords).items())
    arrays = {
        role: _argument(role, value, parsed)
        for role, value in zip(("data", "indices", "updates"), inputs, strict=False)
    }
    try:
        inferred = _infer(operator, arrays, parsed, spec)
    except RuleError as error:
        notebook.use_notebook_trace(error)
        raise
    return _lazy_array(inferred, arrays, inputs[1])


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


def _infer(operator: str, arrays: dict[str, Any], attributes: Attributes, spec: str) -> Inference:
    inputs = {
        role: Input(role, element_type(role, array.dtype), tuple(map(int, array.shape)))
        for role, array in arrays.items()
    }
    types = {role: argument.dtype for role, argument in inputs.items()}
    sizes = {role: argument.shape for role, argument in inputs.items()}
    row, trace, plan = inference.check(operator, types, sizes, attributes, spec)
    return Inference(operator, spec, attributes, inputs, row, trace, plan)


def _lazy_array(inference: Inference, arrays: dict[str, Any], raw_indices: Any) -> da.Array:
    """Rechunk the arrays of a call to matching chunks, and return its graph as a dask array."""
    data, indices, updates = map(arrays.get, ("data", "indices", "updates"))
    data = _in_chunks(data)
    dtypes = {role: array.dtype for role, array in arrays.items()}
    call = ChunkedCall(
        inference._replace(trace=Trace(inference.operator, (), Sizes())), dtypes, data.chunks
    )
    tuple_chunks = _chunks_of_tuples(call, indices, updates)
    lazy = {"data": data}
    if isinstance(indices, da.Array):
        lazy["indices"] = indices.rechunk((*tuple_chunks, *indices.shape[len(tuple_chunks) :]))
    if updates is not None:
        lazy["updates"] = _in_chunks(
            updates, call.axes.arrange(tuple_chunks, *call.axes.outer_and_slice_values(data.chunks))
        )
    token = tokenize(inference.attributes, inference.spec, tuple_chunks, indices, *lazy.values())
    names = {role: array.name for role, array in lazy.items()}
    graph = TaskGraph(
        call, tuple_chunks, names, None if "indices" in lazy else indices, raw_indices, token
    )
    chunks = data.chunks
    if not inference.scatters:
        chunks = call.axes.arrange(tuple_chunks, *call.axes.outer_and_slice_values(chunks))
    inputs: Any = list(lazy.values())
    layers = HighLevelGraph.from_collections(graph.name, graph.tasks, dependencies=inputs)
    return da.Array(layers, graph.name, chunks, dtype=data.dtype)


def _in_chunks(value: Any, chunks: Any = "auto") -> da.Array:
    """Return an array as a dask array, in the given chunks if any."""
    if not isinstance(value, da.Array):
        return da.from_array(value, chunks)
    rechunked = value if chunks == "auto" else value.rechunk(chunks)
    if chunks not in ("auto", rechunked.chunks):  # dask does not rechunk arrays without elements
        return da.empty(value.shape, dtype=value.dtype, chunks=chunks)
    return rechunked


def _chunks_of_tuples(call: ChunkedCall, indices: Any, updates: Any) -> Chunks:
    """Return the chunks of index tuples: those of indices, else of updates, else the default."""
    rank = len(call.plan.positions)
    if isinstance(indices, da.Array):
        return tuple(indices.chunks[:rank])
    if isinstance(updates, da.Array):
        outer_rank, front = len(call.axes.outer), call.axes.front
        return (*updates.chunks[:front], *updates.chunks[front + outer_rank : rank + outer_rank])
    itemsize = call.inference.dtype.itemsize
    width = itemsize * prod(
        max(*sizes, 1) for sizes in chain(*call.axes.outer_and_slice_values(call.chunks))
    )
    chunk_bytes = itemsize * prod(max(*sizes, 1) for sizes in call.chunks)
    return _default_chunks(call.plan.positions, width, max(chunk_bytes, MIN_CHUNK_BYTES))


def _default_chunks(positions: Shape, width: int, nbytes: int) -> Chunks:
    """Return chunks of tuples whose rows have about `nbytes` bytes, at most dask's default.

    width: the bytes of a row.
    """
    limit = min(nbytes, parse_bytes(dask.config.get("array.chunk-size")))
    remaining = max(1, limit // max(width, 8))
    steps = [1 for _ in positions]
    for d in reversed(range(len(positions))):
        steps[d] = max(1, min(positions[d], remaining))
        if steps[d] < positions[d]:
            break
        remaining = max(1, remaining // steps[d])
    chunks: Chunks = normalize_chunks(tuple(steps), positions)
    return chunks
