"""The tasks that read and make chunks of data and of the output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import _kernels
from ndtool._kernels import KernelOptions, UpdateSpec, WorkItem
from ndtool.chunkwise.calls import ChunkedCall, require_declared
from ndtool.chunkwise.splits import Bundle, Split, Tuples, batches, entries_for
from ndtool.engine import bind, copies, dispatch, layouts
from ndtool.engine.counting import ReductionOptions
from ndtool.errors import OutputError
from ndtool.inmemory import ops
from ndtool.inmemory.buffers import copy_normalized, normalize, raw
from ndtool.rules import dtypes, shapes
from ndtool.rules.plans import Shape

Array = NDArray[Any]
BATCH = 1 << 22  # bytes of updates to apply at a time, at least


class GatheredRows(NamedTuple):
    """The rows that a chunk of indices selects from a chunk of data; row: its number."""

    row: int
    rows: Array


class SplitUpdates(NamedTuple):
    """The updates, as (lanes, tuples, slice), of the tuples that select from a chunk of data."""

    split: Split
    rows: Array


def _bytes(call: ChunkedCall, role: str, chunk: object, shape: Shape) -> Array:
    """Return a chunk with void elements: NumPy copies the padding and the byte order of these."""
    made = require_declared(call, role, chunk, shape)
    return made.view(f"V{made.dtype.itemsize}")


def _in_rows(call: ChunkedCall, chunk: Array) -> Array:
    """Return a chunk of data as an array (lanes, rows, slice), without a copy if possible."""
    axes = call.axes
    return _folded(chunk.transpose(axes.transposed), len(axes.lanes), len(axes.rows))


def _folded(chunk: Array, lanes: int, rows: int) -> Array:
    """Return an array of axes (lanes, rows, slice) with one axis for each of the three."""
    ends = chunk.shape[:lanes], chunk.shape[lanes : lanes + rows], chunk.shape[lanes + rows :]
    return chunk.reshape(tuple(map(prod, ends)))


def gather_rows(
    call: ChunkedCall,
    verdict: None,
    chunk: object,
    shape: Shape,
    row: int,
    bundles: Sequence[Bundle],
) -> Bundle:
    """Gather from a chunk of data the rows that tuples select; bundle them by chunk of indices."""
    data = _in_rows(call, _bytes(call, "data", chunk, shape))
    splits: list[Split] = entries_for(bundles, row)
    if not splits:
        return {}
    rows = ops.gather(data, np.concatenate([split.local for split in splits]), 1, threads=1)
    ends = np.cumsum([len(split.local) for split in splits])[:-1]
    gathered = zip(splits, np.split(rows, ends, 1), strict=True)
    return {split.number: [GatheredRows(row, rows_of_split)] for split, rows_of_split in gathered}


def merge_rows(
    call: ChunkedCall,
    verdict: None,
    split: Split,
    inner: tuple[Shape, Shape],
    bundles: Sequence[Bundle],
) -> Array:
    """Return a chunk of a gather's output, from rows gathered from chunks of data.

    inner: the shapes of its lanes and of a slice.
    """
    lanes, slice_shape = inner
    kind = call.input_dtypes["data"]
    sizes: Shape = (prod(lanes), prod(split.shape), prod(slice_shape))
    out = np.empty(sizes, f"V{kind.itemsize}")
    for row, rows in entries_for(bundles, split.number):
        _place(out, split.order[split.of(row)], rows)
    skipped = split.order[split.of(call.skipped)]
    if len(skipped):
        element = np.frombuffer(call.inference.filling, out.dtype)
        _place(out, skipped, np.broadcast_to(element, (sizes[0], len(skipped), sizes[2])))
    a, b = len(lanes), len(split.shape)
    every = range(a + b + len(slice_shape))
    order = call.axes.arranged(every[a : a + b], every[:a], every[a + b :])
    return out.view(kind).reshape(lanes + split.shape + slice_shape).transpose(order)


def _place(out: Array, positions: Array, rows: Array) -> None:
    if rows.size:
        ops.scatter(out, positions, rows, 1, out=out, threads=1)


def split_updates(
    call: ChunkedCall, split: Split, chunk: object, inner: tuple[Shape, Shape]
) -> Bundle:
    """Bundle the updates of a chunk of indices by chunk of data; inner: as in merge_rows."""
    (lanes, slice_shape), front = inner, call.axes.front
    a, b = len(lanes), len(split.shape)
    shape = call.axes.arranged(split.shape, lanes, slice_shape)
    stored = _bytes(call, "updates", chunk, shape)
    rank = stored.ndim
    order = (*range(front, front + a), *range(front), *range(front + a, rank))
    updates = _folded(stored.transpose(order), a, b)
    splits = [split.only(row) for row in map(int, split.ids) if row < call.skipped]
    rows = (ops.gather(updates, part.order, 1, threads=1) for part in splits)
    return {
        int(part.ids[0]): [SplitUpdates(part, new)] for part, new in zip(splits, rows, strict=True)
    }


def apply_updates(
    call: ChunkedCall,
    verdict: None,
    chunk: object,
    shape: Shape,
    row: int,
    bundles: Sequence[Bundle],
) -> Array:
    """Return a chunk of data with its updates applied."""
    bundled: list[SplitUpdates] = entries_for(bundles, row)
    data = _in_rows(call, _bytes(call, "data", chunk, shape))
    dtype, reduction_options = (
        call.inference.dtype,
        ReductionOptions.from_attributes(call.inference.attributes),
    )
    order = dispatch.arithmetic_order(dtype, reduction_options.reduction)
    out = np.empty(data.nbytes, np.uint8)
    copy_normalized(data, dtype, order, out, 1)
    total = sum(len(part.split.order) for part in bundled)
    if total and out.size:
        width = data.shape[2] * dtype.itemsize
        zeros = bytearray(len(out) // width * reduction_options.count_itemsize(total, width))
        counts = reduction_options.bind_counts(zeros, total, width)
        limit = max(1, max(out.size, BATCH) // (len(data) * width))
        for tuples in batches(call, [part.split for part in bundled], limit):
            new = _updates(tuples, [part.rows for part in bundled])
            updates_dtype = call.inference.inputs["updates"].dtype
            normalized = normalize(
                new, updates_dtype, order, reduction_options.reduction != "none", 1
            )
            plan = shapes.scatter(data.shape, tuples.local.shape, new.shape, 1)[1]
            strides = layouts.contiguous_strides(plan.data, dtype.itemsize)
            slices = bind.bind_slices(plan, strides, dtype.itemsize, False)
            assert slices is not None, "rows are contiguous"
            index = bind.bind_indices(raw(tuples.local), dtypes.from_numpy(tuples.local.dtype))
            spec = UpdateSpec(normalized, width, reduction_options.reduction, dtype.name, counts)
            item = WorkItem(0, slices.tuples, 0, width)
            if _kernels.scatter(slices.addressing, index, item, spec, out, False, KernelOptions(1)):
                raise OutputError("indices changed during the run")
        reduction_options.divide_sums(counts, out, width, dtype, 1)
    if order != dtype.order and dtype.unit > 1:
        copies.swap_bytes(out, dtype.unit)
    axes = call.axes.transposed
    result = out.view(call.input_dtypes["data"]).reshape(tuple(shape[d] for d in axes))
    return result.transpose(tuple(np.argsort(axes)))


def _updates(tuples: Tuples, updates: Sequence[Array]) -> Array:
    """Return the updates of some tuples, from those of all splits, as (lanes, tuples, slice)."""
    n = len(tuples.local)
    order = np.argsort(tuples.sources, kind="stable")
    ends = [0, *(np.flatnonzero(np.diff(tuples.sources[order])) + 1).tolist(), n]
    lanes, _, slice_shape = updates[0].shape
    out = np.empty((lanes, n, slice_shape), updates[0].dtype)
    for first, stop in pairwise(ends):
        positions = order[first:stop]
        source = updates[int(tuples.sources[positions[0]])]
        selected = tuples.positions[positions]
        is_all = len(selected) == source.shape[1]  # tuples of one split are in their order
        rows = source if is_all else ops.gather(source, selected, 1, threads=1)
        if stop - first == n:
            return rows
        _place(out, positions, rows)
    return out
