"""The slow reference of every operator: the oracle of the tests and of `verify`.

Each function is the loop of the ONNX text, in row-major order, over validated indices. It shares
only errors with the fast implementation, so comparisons find a mistake in either. Arrays may
exceed memory: `allocate` allocates the output, and loops process blocks. `progress` is a callback
for the completed fraction.

Indices out of bounds raise unless `out_of_bounds` is another mode: "clip" clamps to the first or
last index, "wrap" takes the index modulo the axis size, "fill" gathers `filling`, the bytes of an
element, for the whole slice, "drop" skips the update. A tuple with an index equal to `pad` selects
nothing; without `negatives`, negative indices are out of bounds; with `index_base` 1 the first
index is 1, and all below are. Without `include_self`, the first
update of an element replaces its current value, and later ones are combined with it. `duplicates`
says which of several updates of an element the reduction "none" assigns; with "error", two tuples
that select the same slice raise DuplicatesError.
"""

from collections.abc import Callable
from functools import partial
from math import prod
from operator import index as as_integer
from typing import Any, NamedTuple

import numpy as np

from ndtool.analysis.oracle.blocks import (
    Allocator,
    Blocks,
    IndexResolver,
    Options,
    Position,
    ProgressCallback,
    axis_blocks,
    block_ranges,
    flat_view,
    portion,
    tuple_blocks,
)
from ndtool.analysis.oracle.reductions import REDUCTIONS, Array
from ndtool.analysis.oracle.updating import as_bytes, update_slices
from ndtool.errors import BoundsError, DtypeError, RuleError, UsageError


class Selection(NamedTuple):
    """The slices of data that index tuples select.

    axes: the axes of data that the components index. leading: the shape of the tuples' positions in
    indices. shape: of the gathered slices. blocks: a function that yields blocks of tuples. rank:
    the number of axes of data before those of a slice. repeated: the axes of shape along which all
    positions have the same indices.
    """

    axes: range
    leading: Position
    shape: Position
    blocks: Callable[[IndexResolver, ProgressCallback], Blocks]
    rank: int
    repeated: slice = slice(0, 0)


def gather_nd(data: Array, indices: Array, batch_dims: int = 0, **options: Any) -> Array:
    """Return the slices of `data` that index tuples select, as ONNX GatherND does.

    output[i] = data[i[:b], indices[i], ...] for every i in indices.shape[:-1], b = batch_dims.
    """
    select = partial(_by_tuples, b=as_integer(batch_dims), min_components=1)
    return _gather(data, indices, select, Options(**options))


def scatter_nd(
    data: Array, indices: Array, updates: Array, reduction: str = "none", *, batch_dims: int = 0,
    **options: Any,
) -> Array:  # fmt: skip
    """Return a copy of `data` with slices updated, as ONNX ScatterND does.

    output[i[:b], indices[i]] = f(output[i[:b], indices[i]], updates[i]) for every i in
    indices.shape[:-1], b = batch_dims.
    """
    select = partial(_by_tuples, b=as_integer(batch_dims), min_components=0)
    return _scatter(data, indices, updates, select, Options(reduction, **options))


def gather_elements(data: Array, indices: Array, axis: int = 0, **options: Any) -> Array:
    """Return the elements of `data` that `indices` select along `axis`, as ONNX GatherElements.

    output[i][j][k] = data[i][indices[i][j][k]][k] where axis = 1, and so on.
    """
    return _gather(data, indices, partial(_along_elements, axis=axis), Options(**options))


def scatter_elements(
    data: Array, indices: Array, updates: Array, axis: int = 0, reduction: str = "none",
    **options: Any,
) -> Array:  # fmt: skip
    """Return a copy of `data` with elements updated along `axis`, as ONNX ScatterElements.

    output[i][indices[i][j]] = f(output[i][indices[i][j]], updates[i][j]) where axis = 1.
    """
    select = partial(_along_elements, axis=axis)
    return _scatter(data, indices, updates, select, Options(reduction, **options))


def gather(
    data: Array, indices: Array, axis: int | None = None, batch_dims: int = 0, **options: Any
) -> Array:
    """Return the slices of `data` that `indices` select along `axis`, as ONNX Gather does.

    output[p][i][q] = data[p][indices[p[:b], i]][q] for p in data.shape[:axis], i in
    indices.shape[b:], q in data.shape[axis+1:], b = batch_dims.
    """
    select = partial(_along_axis, axis=axis, b=as_integer(batch_dims))
    return _gather(data, indices, select, Options(**options))


def scatter(
    data: Array, indices: Array, updates: Array, axis: int | None = None, reduction: str = "none",
    batch_dims: int = 0, **options: Any,
) -> Array:  # fmt: skip
    """Return a copy of `data` with slices along `axis` updated: the inverse of `gather`.

    output[p][indices[p[:b], i]][q] = f(output[p][indices[p[:b], i]][q], updates[p][i][q]).
    """
    b = as_integer(batch_dims)
    select = partial(_along_axis, axis=axis, b=b)
    output = _scatter(data, indices, updates, select, Options(reduction, **options))
    a = b if axis is None else axis % output.ndim
    if options.get("duplicates") == "error" and 0 in output.shape[b:a]:  # of empty slices
        empty_data = np.empty((*output.shape[:b], output.shape[a], 0), output.dtype)
        no_updates = np.empty((*np.shape(indices), 0), output.dtype)
        scatter(empty_data, indices, no_updates, b, reduction, b, **options)
    return output


def tensor_scatter(
    past: Array,
    update: Array,
    write_indices: Array | None = None,
    axis: int = -2,
    mode: str = "linear",
    *,
    allocate: Allocator = np.empty,
) -> Array:
    """Return a copy of `past` with `update` written along `axis`, as ONNX TensorScatter does.

    output[p][w[p[0]] + i] = update[p][i] for p in past.shape[:axis], i < update.shape[axis],
    w = write_indices. The mode circular takes the position along the axis modulo the axis size.
    """
    past, update, r = np.asarray(past), np.asarray(update), np.ndim(past)
    _require(mode in ("linear", "circular"), f"mode {mode}: valid linear, circular")
    _require(past.dtype == update.dtype, f"update of {update.dtype}: it must be {past.dtype}")
    _require(r >= 2, f"rank {r}: it must be at least 2")
    _require(-r <= as_integer(axis) < r and axis % r != 0, f"axis {axis}: valid 1..{r - 1}")
    axis %= r
    size, length = past.shape[axis], update.shape[axis : axis + 1]
    expected = past.shape[:axis] + length + past.shape[axis + 1 :]
    _require(update.shape == expected, f"update {update.shape}: it must be {expected}")
    _require(length[0] <= size, f"{length[0]} elements along the axis: valid 0..{size}")
    starts = [0] * past.shape[0] if write_indices is None else np.asarray(write_indices).tolist()
    _require(len(starts) == past.shape[0], "one index for each batch")
    last = size - length[0]
    bad = [n for n, start in enumerate(starts) if not 0 <= start <= last]
    if mode == "linear" and bad:
        raise BoundsError(
            position=(bad[0],), axis=axis, value=starts[bad[0]], size=size, count=len(bad),
            total=len(starts), lowest=0, length=length[0],
        )  # fmt: skip
    output = allocate(past.shape, past.dtype)
    output_bytes, update_bytes = as_bytes(output), as_bytes(update)
    output_bytes[...] = as_bytes(past)
    for prefix in np.ndindex(past.shape[:axis]):
        for i in range(length[0]):
            position = starts[prefix[0]] + i
            destination = position % size if mode == "circular" else position
            output_bytes[*prefix, destination, ...] = update_bytes[*prefix, i, ...]
    return output


def _gather(
    data: Array, indices: Array, select: Callable[[Array, Array], Selection], options: Options
) -> Array:
    data, indices = np.asarray(data), np.asarray(indices)
    _check_types(data, indices, None, options)
    s, progress = select(data, indices), options.progress
    bounds = IndexResolver(options, data.shape, s.axes)
    bounds.check(indices, s.leading, portion(progress, 0, 0.1))
    output = options.allocate(s.shape, data.dtype)
    blocks = s.blocks(bounds, portion(progress, 0.1, 1))
    return _copy_slices(output, data, options.filling, blocks)


def _scatter(
    data: Array, indices: Array, updates: Array, select: Callable[[Array, Array], Selection],
    options: Options,
) -> Array:  # fmt: skip
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    _check_types(data, indices, updates, options)
    s, progress = select(data, indices), options.progress
    _require(updates.shape == s.shape, f"updates {updates.shape}: it must be {s.shape}")
    bounds = IndexResolver(options, data.shape, s.axes)
    bounds.check(indices, s.leading, portion(progress, 0, 0.1))
    output = _copy(data, options.allocate, portion(progress, 0.1, 0.2))
    blocks = s.blocks(bounds, portion(progress, 0.2, 1))
    return update_slices(output, updates, options, blocks, s.rank, s.repeated)


def _by_tuples(data: Array, indices: Array, b: int, min_components: int) -> Selection:
    """Check the batch axes and the components of index tuples."""
    r, q = data.ndim, indices.ndim
    _require(r >= 1 and q >= 1, f"ranks {r} and {q}: both must be at least 1")
    _require(0 <= b < min(r, q), f"batch_dims {b}: valid 0..{min(r, q) - 1}")
    _require(data.shape[:b] == indices.shape[:b], "the batch axes must be equal")
    k = int(indices.shape[-1])
    _require(min_components <= k <= r - b, f"index tuples of {k}: valid {min_components}..{r - b}")
    leading, slice_shape = indices.shape[:-1], data.shape[b + k :]
    slice_size = prod(slice_shape) * data.itemsize
    blocks = partial(tuple_blocks, indices, leading, b, len(leading), slice_size)
    return Selection(range(b, b + k), leading, leading + slice_shape, blocks, b + k)


def _along_elements(data: Array, indices: Array, axis: int) -> Selection:
    axis = _elements_axis(data, indices, axis)
    blocks = partial(tuple_blocks, indices, indices.shape, axis, axis + 1, data.itemsize)
    return Selection(range(axis, axis + 1), indices.shape, indices.shape, blocks, data.ndim)


def _along_axis(data: Array, indices: Array, axis: int | None, b: int) -> Selection:
    """Check the axis and the batch axes of plain indices."""
    _require(data.ndim >= 1, "rank 0: data must have an axis")
    a = b if axis is None else as_integer(axis)
    _require(-data.ndim <= a < data.ndim, f"axis {a}: valid {-data.ndim}..{data.ndim - 1}")
    a %= data.ndim
    highest = min(a, indices.ndim)
    _require(0 <= b <= highest, f"batch_dims {b}: valid 0..{highest}")
    _require(data.shape[:b] == indices.shape[:b], "the batch axes must be equal")
    shape = data.shape[:a] + indices.shape[b:] + data.shape[a + 1 :]
    blocks = partial(axis_blocks, data, indices, a, b)
    return Selection(range(a, a + 1), indices.shape, shape, blocks, a + 1, slice(b, a))


def _copy_slices(output: Array, data: Array, filling: bytes, blocks: Blocks) -> Array:
    """Copy slices of data to `output`, `filling` where a tuple selects none; return `output`."""
    data_bytes, output_bytes = as_bytes(data), as_bytes(output)
    fill_value: Any = np.frombuffer(filling or bytes(data.itemsize), f"V{data.itemsize}")[0]
    for positions, selected in blocks:
        for i, coordinates in zip(positions, selected, strict=True):
            output_bytes[*i, ...] = (
                fill_value if coordinates is None else data_bytes[*coordinates, ...]
            )
    return output


def _copy(data: Array, allocate: Allocator, progress: ProgressCallback) -> Array:
    output = allocate(data.shape, data.dtype)
    data_bytes, output_bytes = flat_view(as_bytes(data)), flat_view(as_bytes(output))
    for span in block_ranges(data.size, data.itemsize, progress):
        output_bytes[span] = data_bytes[span]
    return output


def _check_types(data: Array, indices: Array, updates: Array | None, options: Options) -> None:
    """Raise DtypeError or UsageError for types that an operator or reduction does not accept."""
    if data.dtype.hasobject or not data.dtype.itemsize:
        raise DtypeError(f"data {data.dtype}: elements must have a fixed size above 0")
    if indices.dtype.kind not in "iu":
        raise DtypeError(f"indices {indices.dtype}: they must be integers")
    if updates is not None and not _same_type(data.dtype, updates.dtype):
        raise DtypeError(f"updates {updates.dtype}: they must be {data.dtype} as data is")
    reduction, duplicates = options.reduction, options.duplicates
    if duplicates not in ("last", "first", "error"):
        raise UsageError(f"duplicates {duplicates!r}: valid last, first, error")
    if reduction == "none":
        return
    if reduction not in REDUCTIONS:
        raise UsageError(f"reduction {reduction!r}: valid none, {', '.join(REDUCTIONS)}")
    names = REDUCTIONS[reduction].types
    if data.dtype.name not in names:
        raise DtypeError(f"data {data.dtype} has no {reduction}: valid {', '.join(names)}")
    _require(
        options.include_self or not REDUCTIONS[reduction].needs_current,
        f"{reduction} needs the current values",
    )
    _require(duplicates != "first", "duplicates first: valid for reduction none only")


def _same_type(data: np.dtype[Any], updates: np.dtype[Any]) -> bool:
    """Whether two types are equal up to byte order; for records including it."""
    if data.names is None and updates.names is None:
        return data.newbyteorder("=") == updates.newbyteorder("=")
    return data == updates


def _elements_axis(data: Array, indices: Array, axis: int) -> int:
    """Check ranks and sizes of GatherElements or ScatterElements; return the non-negative axis."""
    axis, r = as_integer(axis), data.ndim
    _require(r >= 1 and indices.ndim == r, f"ranks {r} and {indices.ndim}: equal, at least 1")
    _require(-r <= axis < r, f"axis {axis}: valid {-r}..{r - 1}")
    axis %= r
    for d, (size, limit) in enumerate(zip(indices.shape, data.shape, strict=True)):
        _require(d == axis or size <= limit, f"indices axis {d} has size {size}: at most {limit}")
    return axis


def _require(condition: bool, rule: str) -> None:
    """Raise RuleError with a rule if its condition is false."""
    if not condition:
        raise RuleError(rule)
