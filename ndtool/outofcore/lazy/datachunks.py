"""The tasks that read chunks of data, and compute chunks of the output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import _kernels
from ndtool._kernels import KernelOptions, WorkItem
from ndtool.engine import bind, copies, counting, dispatch, layouts
from ndtool.errors import OutputError
from ndtool.inmemory import ops
from ndtool.inmemory.buffers import as_bytes, copy_normalized, normalize
from ndtool.outofcore.lazy.calls import ChunkedCall, require_declared
from ndtool.outofcore.lazy.splits import Bundle, Split, Tuples, batches, entries_for
from ndtool.rules import dtypes, shapes
from ndtool.rules.plans import Shape

Array = NDArray[Any]
BATCH_BYTES = 1 << 22  # minimum bytes of updates to apply at a time


class GatheredRows(NamedTuple):
    """The rows that a chunk of indices selects from a chunk of data; data_chunk: its number."""

    data_chunk: int
    rows: Array


class SplitUpdates(NamedTuple):
    """The updates, as (outer axes, tuples, slice), of the tuples that select from a chunk of"
    " data."""

    split: Split
    rows: Array


def _as_void(call: ChunkedCall, role: str, chunk: object, shape: Shape) -> Array:
    """Return a chunk with void elements, which NumPy copies with padding and unchanged bytes."""
    array = require_declared(call, role, chunk, shape)
    return array.view(f"V{array.dtype.itemsize}")


def _data_rows(call: ChunkedCall, chunk: Array) -> Array:
    """Return a chunk of data as an array (outer axes, rows, slice), without a copy if possible."""
    axes = call.axes
    return _fold(chunk.transpose(axes.transposed), len(axes.outer), len(axes.rows))


def _fold(chunk: Array, outer_rank: int, rows: int) -> Array:
    """Reshape an array with axes (outer axes, rows, slice) to three axes."""
    ends = (
        chunk.shape[:outer_rank],
        chunk.shape[outer_rank : outer_rank + rows],
        chunk.shape[outer_rank + rows :],
    )
    return chunk.reshape(tuple(map(prod, ends)))


def gather_rows(
    call: ChunkedCall,
    verdict: None,
    chunk: object,
    shape: Shape,
    data_chunk: int,
    bundles: Sequence[Bundle],
) -> Bundle:
    """Gather the rows that tuples select from a chunk of data; bundle them by chunk of indices."""
    data = _data_rows(call, _as_void(call, "data", chunk, shape))
    splits: list[Split] = entries_for(bundles, data_chunk)
    if not splits:
        return {}
    rows = ops.gather(data, np.concatenate([split.local for split in splits]), 1, threads=1)
    ends = np.cumsum([len(split.local) for split in splits])[:-1]
    gathered = zip(splits, np.split(rows, ends, 1), strict=True)
    return {
        split.number: [GatheredRows(data_chunk, rows_of_split)] for split, rows_of_split in gathered
    }


def merge_rows(
    call: ChunkedCall,
    verdict: None,
    split: Split,
    inner: tuple[Shape, Shape],
    bundles: Sequence[Bundle],
) -> Array:
    """Return a chunk of a gather's output, from the rows gathered from chunks of data.

    inner: the shape of its outer axes, and the shape of a slice.
    """
    outer_shape, slice_shape = inner
    dtype = call.input_dtypes["data"]
    sizes: Shape = (prod(outer_shape), prod(split.shape), prod(slice_shape))
    out = np.empty(sizes, f"V{dtype.itemsize}")
    for data_chunk, rows in entries_for(bundles, split.number):
        _scatter_rows(out, split.order[split.tuple_range(data_chunk)], rows)
    skipped = split.order[split.tuple_range(call.skipped)]
    if len(skipped):
        element = np.frombuffer(call.inference.fill_bytes, out.dtype)
        _scatter_rows(out, skipped, np.broadcast_to(element, (sizes[0], len(skipped), sizes[2])))
    outer_rank, tuple_rank = len(outer_shape), len(split.shape)
    axes = range(outer_rank + tuple_rank + len(slice_shape))
    order = call.axes.arrange(
        axes[outer_rank : outer_rank + tuple_rank],
        axes[:outer_rank],
        axes[outer_rank + tuple_rank :],
    )
    return out.view(dtype).reshape(outer_shape + split.shape + slice_shape).transpose(order)


def _scatter_rows(out: Array, positions: Array, rows: Array) -> None:
    if rows.size:
        ops.scatter(out, positions, rows, 1, out=out, threads=1)


def split_updates(
    call: ChunkedCall, split: Split, chunk: object, inner: tuple[Shape, Shape]
) -> Bundle:
    """Bundle the updates of a chunk of indices by chunk of data; inner: as in merge_rows."""
    (outer_shape, slice_shape), front = inner, call.axes.front
    outer_rank, tuple_rank = len(outer_shape), len(split.shape)
    shape = call.axes.arrange(split.shape, outer_shape, slice_shape)
    stored = _as_void(call, "updates", chunk, shape)
    rank = stored.ndim
    order = (*range(front, front + outer_rank), *range(front), *range(front + outer_rank, rank))
    updates = _fold(stored.transpose(order), outer_rank, tuple_rank)
    selections = [
        split.subset(data_chunk) for data_chunk in map(int, split.ids) if data_chunk < call.skipped
    ]
    rows = (ops.gather(updates, selection.order, 1, threads=1) for selection in selections)
    return {
        int(selection.ids[0]): [SplitUpdates(selection, selected_updates)]
        for selection, selected_updates in zip(selections, rows, strict=True)
    }


def apply_updates(
    call: ChunkedCall,
    verdict: None,
    chunk: object,
    shape: Shape,
    data_chunk: int,
    bundles: Sequence[Bundle],
) -> Array:
    """Return a chunk of data with its updates applied."""
    bundled: list[SplitUpdates] = entries_for(bundles, data_chunk)
    data = _data_rows(call, _as_void(call, "data", chunk, shape))
    dtype = call.inference.dtype
    attributes = call.plan.attributes
    order = dispatch.arithmetic_order(dtype, attributes.reduction)
    out = np.empty(data.nbytes, np.uint8)
    copy_normalized(data, dtype, order, out, 1)
    total = sum(len(entry.split.order) for entry in bundled)
    if total and out.size:
        width = data.shape[2] * dtype.itemsize
        counts = None
        if attributes.is_counted:
            counts = counting.allocate_counts(attributes, total, len(out) // width)
        limit = max(1, max(out.size, BATCH_BYTES) // (len(data) * width))
        for tuples in batches(call, [entry.split for entry in bundled], limit):
            updates = _collect_updates(tuples, [entry.rows for entry in bundled])
            updates_dtype = call.inference.inputs["updates"].dtype
            normalized = normalize(updates, updates_dtype, order, attributes.reduction != "none", 1)
            plan = shapes.scatter(data.shape, tuples.local.shape, updates.shape, 1)[1]
            strides = layouts.contiguous_strides(plan.data, dtype.itemsize)
            slices = bind.bind_slices(plan, strides, dtype.itemsize)
            assert slices is not None, "rows are contiguous"
            index = bind.bind_indices(as_bytes(tuples.local), dtypes.from_numpy(tuples.local.dtype))
            spec = counting.counted_updates(normalized, width, attributes, dtype, counts)
            item = WorkItem(0, slices.tuples, 0, width)
            if _kernels.scatter(slices.addressing, index, item, spec, out, False, KernelOptions(1)):
                raise OutputError("indices changed during the run")
        counting.divide_sums(attributes, counts, out, width, dtype, 1)
    if order != dtype.order and dtype.swap_size > 1:
        copies.swap_bytes(out, dtype.swap_size)
    axes = call.axes.transposed
    result = out.view(call.input_dtypes["data"]).reshape(tuple(shape[d] for d in axes))
    return result.transpose(tuple(np.argsort(axes)))


def _collect_updates(tuples: Tuples, updates: Sequence[Array]) -> Array:
    """Return the updates of some tuples, given the updates of all splits.

    Updates are arrays (outer axes, tuples, slice).
    """
    n = len(tuples.local)
    order = np.argsort(tuples.sources, kind="stable")
    ends = [0, *(np.flatnonzero(np.diff(tuples.sources[order])) + 1).tolist(), n]
    outer_shape, _, slice_shape = updates[0].shape
    out = np.empty((outer_shape, n, slice_shape), updates[0].dtype)
    for first, stop in pairwise(ends):
        positions = order[first:stop]
        source = updates[int(tuples.sources[positions[0]])]
        selected = tuples.positions[positions]
        selects_all = len(selected) == source.shape[1]  # tuples of one split are in their order
        rows = source if selects_all else ops.gather(source, selected, 1, threads=1)
        if stop - first == n:
            return rows
        _scatter_rows(out, positions, rows)
    return out
