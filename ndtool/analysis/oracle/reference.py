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
from math import prod
from operator import index as as_integer
from typing import Any

import numpy as np

from ndtool.analysis.oracle.blocks import (
    Blocks,
    IndexResolver,
    Position,
    ProgressCallback,
    axis_blocks,
    block_ranges,
    elements_blocks,
    flat_view,
    nd_blocks,
    portion,
    silent,
)
from ndtool.analysis.oracle.caches import tensor_scatter as tensor_scatter
from ndtool.analysis.oracle.refusals import Array, Combination, check_types, elements_axis, require
from ndtool.analysis.oracle.updating import as_bytes, update_slices

Allocator = Callable[[Position, np.dtype[Any]], Array]


def gather_nd(
    data: Array,
    indices: Array,
    batch_dims: int = 0,
    *,
    out_of_bounds: str = "error",
    pad: int | None = None,
    negatives: bool = True,
    index_base: int = 0,
    filling: bytes = b"",
    allocate: Allocator = np.zeros,
    progress: ProgressCallback = silent,
) -> Array:
    """Return the slices of `data` that index tuples select, as ONNX GatherND does.

    output[i] = data[i[:b], indices[i], ...] for every i in indices.shape[:-1], b = batch_dims.
    """
    data, indices, b = np.asarray(data), np.asarray(indices), as_integer(batch_dims)
    check_types(data, indices)
    k = _components(data, indices, b, min_components=1)
    bounds = IndexResolver((out_of_bounds, pad, negatives, index_base), data.shape, range(b, b + k))
    bounds.check(indices, indices.shape[:-1], portion(progress, 0, 0.1))
    output = allocate(indices.shape[:-1] + data.shape[b + k :], data.dtype)
    slice_size = prod(data.shape[b + k :]) * data.itemsize
    return _copy_slices(
        output, data, filling, nd_blocks(indices, b, slice_size, bounds, portion(progress, 0.1, 1))
    )


def scatter_nd(
    data: Array,
    indices: Array,
    updates: Array,
    reduction: str = "none",
    *,
    batch_dims: int = 0,
    out_of_bounds: str = "error",
    pad: int | None = None,
    negatives: bool = True,
    index_base: int = 0,
    include_self: bool = True,
    duplicates: str = "last",
    allocate: Allocator = np.zeros,
    progress: ProgressCallback = silent,
) -> Array:
    """Return a copy of `data` with slices updated, as ONNX ScatterND does.

    output[i[:b], indices[i]] = f(output[i[:b], indices[i]], updates[i]) for every i in
    indices.shape[:-1], b = batch_dims.
    """
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    combination = Combination(reduction, include_self, duplicates)
    check_types(data, indices, updates, combination)
    b = as_integer(batch_dims)
    k = _components(data, indices, b, min_components=0)
    expected = indices.shape[:-1] + data.shape[b + k :]
    require(updates.shape == expected, f"updates {updates.shape}: it must be {expected}")
    bounds = IndexResolver((out_of_bounds, pad, negatives, index_base), data.shape, range(b, b + k))
    bounds.check(indices, indices.shape[:-1], portion(progress, 0, 0.1))
    output = _copy(data, allocate, portion(progress, 0.1, 0.2))
    slice_size = prod(data.shape[b + k :]) * data.itemsize
    blocks = nd_blocks(indices, b, slice_size, bounds, portion(progress, 0.2, 1))
    return update_slices(output, updates, combination, blocks, b + k, allocate=allocate)


def gather_elements(
    data: Array,
    indices: Array,
    axis: int = 0,
    *,
    out_of_bounds: str = "error",
    pad: int | None = None,
    negatives: bool = True,
    index_base: int = 0,
    filling: bytes = b"",
    allocate: Allocator = np.zeros,
    progress: ProgressCallback = silent,
) -> Array:
    """Return the elements of `data` that `indices` select along `axis`, as ONNX GatherElements.

    output[i][j][k] = data[i][indices[i][j][k]][k] where axis = 1, and so on.
    """
    data, indices = np.asarray(data), np.asarray(indices)
    check_types(data, indices)
    axis = elements_axis(data, indices, axis)
    bounds = IndexResolver((out_of_bounds, pad, negatives, index_base), data.shape, (axis,))
    bounds.check(indices, indices.shape, portion(progress, 0, 0.1))
    output = allocate(indices.shape, data.dtype)
    blocks = elements_blocks(indices, axis, data.itemsize, bounds, portion(progress, 0.1, 1))
    return _copy_slices(output, data, filling, blocks)


def gather(
    data: Array,
    indices: Array,
    axis: int | None = None,
    batch_dims: int = 0,
    *,
    out_of_bounds: str = "error",
    pad: int | None = None,
    negatives: bool = True,
    index_base: int = 0,
    filling: bytes = b"",
    allocate: Allocator = np.zeros,
    progress: ProgressCallback = silent,
) -> Array:
    """Return the slices of `data` that `indices` select along `axis`, as ONNX Gather does.

    output[p][i][q] = data[p][indices[p[:b], i]][q] for p in data.shape[:axis], i in
    indices.shape[b:], q in data.shape[axis+1:], b = batch_dims.
    """
    data, indices, b = np.asarray(data), np.asarray(indices), as_integer(batch_dims)
    check_types(data, indices)
    axis = _plain_axis(data, indices, axis, b)
    bounds = IndexResolver((out_of_bounds, pad, negatives, index_base), data.shape, (axis,))
    bounds.check(indices, indices.shape, portion(progress, 0, 0.1))
    output = allocate(_plain_shape(data, indices, axis, b), data.dtype)
    return _copy_slices(
        output,
        data,
        filling,
        axis_blocks(data, indices, axis, b, bounds, portion(progress, 0.1, 1)),
    )


def scatter(
    data: Array,
    indices: Array,
    updates: Array,
    axis: int | None = None,
    reduction: str = "none",
    batch_dims: int = 0,
    *,
    out_of_bounds: str = "error",
    pad: int | None = None,
    negatives: bool = True,
    index_base: int = 0,
    include_self: bool = True,
    duplicates: str = "last",
    allocate: Allocator = np.zeros,
    progress: ProgressCallback = silent,
) -> Array:
    """Return a copy of `data` with slices along `axis` updated: the inverse of `gather`.

    output[p][indices[p[:b], i]][q] = f(output[p][indices[p[:b], i]][q], updates[p][i][q]).
    """
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    combination = Combination(reduction, include_self, duplicates)
    check_types(data, indices, updates, combination)
    b = as_integer(batch_dims)
    axis = _plain_axis(data, indices, axis, b)
    expected = _plain_shape(data, indices, axis, b)
    require(updates.shape == expected, f"updates {updates.shape}: it must be {expected}")
    bounds = IndexResolver((out_of_bounds, pad, negatives, index_base), data.shape, (axis,))
    bounds.check(indices, indices.shape, portion(progress, 0, 0.1))
    output = _copy(data, allocate, portion(progress, 0.1, 0.2))
    if duplicates == "error" and 0 in data.shape[b:axis]:  # duplicates of empty slices
        empty_data = np.empty((*data.shape[:b], data.shape[axis], 0), data.dtype)
        no_updates = np.empty((*indices.shape, 0), data.dtype)
        options: Any = {
            "out_of_bounds": out_of_bounds, "pad": pad, "negatives": negatives,
            "index_base": index_base,
        }  # fmt: skip
        scatter(
            empty_data,
            indices,
            no_updates,
            b,
            reduction,
            b,
            duplicates="error",
            allocate=allocate,
            **options,
        )
    blocks = axis_blocks(data, indices, axis, b, bounds, portion(progress, 0.2, 1))
    return update_slices(
        output, updates, combination, blocks, axis + 1, slice(b, axis), allocate=allocate
    )


def _components(data: Array, indices: Array, b: int, min_components: int) -> int:
    """Check the batch axes and the components of index tuples; return the number of components."""
    r, q = data.ndim, indices.ndim
    require(r >= 1 and q >= 1, f"ranks {r} and {q}: both must be at least 1")
    require(0 <= b < min(r, q), f"batch_dims {b}: valid 0..{min(r, q) - 1}")
    require(data.shape[:b] == indices.shape[:b], "the batch axes must be equal")
    k = int(indices.shape[-1])
    require(min_components <= k <= r - b, f"index tuples of {k}: valid {min_components}..{r - b}")
    return k


def _plain_axis(data: Array, indices: Array, axis: int | None, b: int) -> int:
    """Check the axis and the batch axes of plain indices; return the non-negative axis."""
    require(data.ndim >= 1, "rank 0: data must have an axis")
    axis = b if axis is None else as_integer(axis)
    require(-data.ndim <= axis < data.ndim, f"axis {axis}: valid {-data.ndim}..{data.ndim - 1}")
    axis %= data.ndim
    highest = min(axis, indices.ndim)
    require(0 <= b <= highest, f"batch_dims {b}: valid 0..{highest}")
    require(data.shape[:b] == indices.shape[:b], "the batch axes must be equal")
    return axis


def _plain_shape(data: Array, indices: Array, axis: int, b: int) -> Position:
    shape: Position = data.shape[:axis] + indices.shape[b:] + data.shape[axis + 1 :]
    return shape


def scatter_elements(
    data: Array,
    indices: Array,
    updates: Array,
    axis: int = 0,
    reduction: str = "none",
    *,
    out_of_bounds: str = "error",
    pad: int | None = None,
    negatives: bool = True,
    index_base: int = 0,
    include_self: bool = True,
    duplicates: str = "last",
    allocate: Allocator = np.zeros,
    progress: ProgressCallback = silent,
) -> Array:
    """Return a copy of `data` with elements updated along `axis`, as ONNX ScatterElements.

    output[i][indices[i][j]] = f(output[i][indices[i][j]], updates[i][j]) where axis = 1.
    """
    data, indices, updates = np.asarray(data), np.asarray(indices), np.asarray(updates)
    combination = Combination(reduction, include_self, duplicates)
    check_types(data, indices, updates, combination)
    axis = elements_axis(data, indices, axis)
    require(
        updates.shape == indices.shape,
        f"updates {updates.shape}: it must be {indices.shape} as indices are",
    )
    bounds = IndexResolver((out_of_bounds, pad, negatives, index_base), data.shape, (axis,))
    bounds.check(indices, indices.shape, portion(progress, 0, 0.1))
    output = _copy(data, allocate, portion(progress, 0.1, 0.2))
    blocks = elements_blocks(indices, axis, data.itemsize, bounds, portion(progress, 0.2, 1))
    return update_slices(output, updates, combination, blocks, data.ndim, allocate=allocate)


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
