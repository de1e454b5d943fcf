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
from ndtool.chunkwise.calls import ChunkedCall, held
from ndtool.chunkwise.splits import Bundle, Split, Tuples, in_order, parts_for
from ndtool.engine import bind, copies, dispatch, layouts
from ndtool.engine.counting import Combining
from ndtool.errors import OutputError
from ndtool.inmemory import ops
from ndtool.inmemory.buffers import copy_normalized, normalize, raw
from ndtool.rules import dtypes, shapes
from ndtool.rules.plans import Shape

Array = NDArray[Any]
BATCH = 1 << 22  # bytes of updates to apply at a time, at least


class Picked(NamedTuple):
    """The rows that a chunk of indices selects from a chunk of data; row: its number."""

    row: int
    rows: Array


class Dealt(NamedTuple):
    """The updates, as (lanes, tuples, run), of the tuples that select from a chunk of data."""

    piece: Split
    rows: Array


def _bytes(call: ChunkedCall, role: str, chunk: object, shape: Shape) -> Array:
    """Return a chunk with void elements: NumPy copies the padding and the byte order of these."""
    made = held(call, role, chunk, shape)
    return made.view(f"V{made.dtype.itemsize}")


def _in_rows(call: ChunkedCall, chunk: Array) -> Array:
    """Return a chunk of data as an array (lanes, rows, run), without a copy if possible."""
    axes = call.axes
    return _folded(chunk.transpose(axes.transposed), len(axes.lanes), len(axes.rows))


def _folded(chunk: Array, lanes: int, rows: int) -> Array:
    """Return an array of axes (lanes, rows, run) with one axis for each of the three."""
    ends = chunk.shape[:lanes], chunk.shape[lanes : lanes + rows], chunk.shape[lanes + rows :]
    return chunk.reshape(tuple(map(prod, ends)))


def pick(
    call: ChunkedCall,
    verdict: None,
    chunk: object,
    shape: Shape,
    row: int,
    bundles: Sequence[Bundle],
) -> Bundle:
    """Gather from a chunk of data what tuples select; bundle it by chunk of indices."""
    data = _in_rows(call, _bytes(call, "data", chunk, shape))
    pieces: list[Split] = parts_for(bundles, row)
    if not pieces:
        return {}
    rows = ops.gather(data, np.concatenate([one.local for one in pieces]), 1, threads=1)
    ends = np.cumsum([len(one.local) for one in pieces])[:-1]
    found = zip(pieces, np.split(rows, ends, 1), strict=True)
    return {one.number: [Picked(row, new)] for one, new in found}


def merge(
    call: ChunkedCall,
    verdict: None,
    piece: Split,
    free: tuple[Shape, Shape],
    bundles: Sequence[Bundle],
) -> Array:
    """Return a chunk of a gather's output, from what was picked from chunks of data.

    free: the shapes of its lanes and of its run.
    """
    lanes, run = free
    kind = call.kinds["data"]
    sizes: Shape = (prod(lanes), prod(piece.shape), prod(run))
    out = np.empty(sizes, f"V{kind.itemsize}")
    for row, rows in parts_for(bundles, piece.number):
        _place(out, piece.order[piece.of(row)], rows)
    skipped = piece.order[piece.of(call.skipped)]
    if len(skipped):
        element = np.frombuffer(call.inference.filling, out.dtype)
        _place(out, skipped, np.broadcast_to(element, (sizes[0], len(skipped), sizes[2])))
    a, b = len(lanes), len(piece.shape)
    every = range(a + b + len(run))
    order = call.axes.arranged(every[a : a + b], every[:a], every[a + b :])
    return out.view(kind).reshape(lanes + piece.shape + run).transpose(order)


def _place(out: Array, positions: Array, rows: Array) -> None:
    if rows.size:
        ops.scatter(out, positions, rows, 1, out=out, threads=1)


def deal(call: ChunkedCall, piece: Split, chunk: object, free: tuple[Shape, Shape]) -> Bundle:
    """Bundle the updates of a chunk of indices by chunk of data; free: as in merge."""
    (lanes, run), front = free, call.axes.front
    a, b = len(lanes), len(piece.shape)
    given = _bytes(call, "updates", chunk, call.axes.arranged(piece.shape, lanes, run))
    rank = given.ndim
    order = (*range(front, front + a), *range(front), *range(front + a, rank))
    updates = _folded(given.transpose(order), a, b)
    pieces = [piece.only(row) for row in map(int, piece.ids) if row < call.skipped]
    rows = (ops.gather(updates, one.order, 1, threads=1) for one in pieces)
    return {int(one.ids[0]): [Dealt(one, new)] for one, new in zip(pieces, rows, strict=True)}


def update(
    call: ChunkedCall,
    verdict: None,
    chunk: object,
    shape: Shape,
    row: int,
    bundles: Sequence[Bundle],
) -> Array:
    """Return a chunk of data with its updates applied."""
    dealt: list[Dealt] = parts_for(bundles, row)
    data = _in_rows(call, _bytes(call, "data", chunk, shape))
    dtype, combining = call.inference.dtype, Combining.of(call.inference.attributes)
    order = dispatch.arithmetic_order(dtype, combining.reduction)
    out = np.empty(data.nbytes, np.uint8)
    copy_normalized(data, dtype, order, out, 1)
    total = sum(len(one.piece.order) for one in dealt)
    if total and out.size:
        width = data.shape[2] * dtype.itemsize
        zeros = bytearray(len(out) // width * combining.bytes_each(total, width))
        counts = combining.counts(zeros, total, width)
        most = max(1, max(out.size, BATCH) // (len(data) * width))
        for tuples in in_order(call, [one.piece for one in dealt], most):
            new = _updates(tuples, [one.rows for one in dealt])
            given = call.inference.inputs["updates"].dtype
            ready = normalize(new, given, order, combining.reduction != "none", 1)
            plan = shapes.scatter(data.shape, tuples.local.shape, new.shape, 1)[1]
            strides = layouts.contiguous(plan.data, dtype.itemsize)
            runs = bind.bind_runs(plan, strides, dtype.itemsize, False)
            assert runs is not None, "rows are contiguous"
            index = bind.bind_indices(raw(tuples.local), dtypes.from_numpy(tuples.local.dtype))
            change = UpdateSpec(ready, width, combining.reduction, dtype.name, counts)
            item = WorkItem(0, runs.tuples, 0, width)
            if _kernels.scatter(runs.addressing, index, item, change, out, False, KernelOptions(1)):
                raise OutputError("indices changed during the run")
        combining.divide(counts, out, width, dtype, 1)
    if order != dtype.order and dtype.unit > 1:
        copies.swap(out, dtype.unit)
    axes = call.axes.transposed
    result = out.view(call.kinds["data"]).reshape(tuple(shape[d] for d in axes))
    return result.transpose(tuple(np.argsort(axes)))


def _updates(tuples: Tuples, pieces: Sequence[Array]) -> Array:
    """Return the updates of some tuples, from those of pieces, as (lanes, tuples, run)."""
    n = len(tuples.local)
    by = np.argsort(tuples.pieces, kind="stable")
    ends = [0, *(np.flatnonzero(np.diff(tuples.pieces[by])) + 1).tolist(), n]
    lanes, _, run = pieces[0].shape
    out = np.empty((lanes, n, run), pieces[0].dtype)
    for first, stop in pairwise(ends):
        positions = by[first:stop]
        given = pieces[int(tuples.pieces[positions[0]])]
        at = tuples.at[positions]
        whole = len(at) == given.shape[1]  # tuples of one piece stay in their order
        rows = given if whole else ops.gather(given, at, 1, threads=1)
        if stop - first == n:
            return rows
        _place(out, positions, rows)
    return out
