"""The tasks that read and make chunks of data and of the output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import ops
from ndtool.buffers import copy_right, normalize, raw
from ndtool.chunkwise.calls import ChunkedCall, held
from ndtool.chunkwise.splits import Split, Tuples, in_order
from ndtool.engine import bind, copies, dispatch, scatters
from ndtool.engine.counting import Combining
from ndtool.errors import OutputError
from ndtool.rules import dtypes, shapes
from ndtool.rules.plans import Shape

Array = NDArray[Any]
BATCH = 1 << 22  # bytes of updates to apply at a time, at least


class Picked(NamedTuple):
    """The rows gathered from a chunk of data, by the origins of the chunks of indices."""

    row: int
    found: dict[Shape, Array]


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
    call: ChunkedCall, verdict: None, chunk: object, shape: Shape, row: int, splits: Sequence[Split]
) -> Picked:
    """Gather from a chunk of data what tuples select."""
    data = _in_rows(call, _bytes(call, "data", chunk, shape))
    ranges = [(one, one.of(row)) for one in splits]
    some = [(one, part) for one, part in ranges if part.stop > part.start]
    if not some:
        return Picked(row, {})
    rows = ops.gather(data, np.concatenate([one.local[part] for one, part in some]), 1, threads=1)
    ends = np.cumsum([part.stop - part.start for _, part in some])[:-1]
    found = np.split(rows, ends, 1)
    return Picked(row, {one.origin: new for (one, _), new in zip(some, found, strict=True)})


def merge(
    call: ChunkedCall,
    verdict: None,
    piece: Split,
    free: tuple[Shape, Shape],
    picked: Sequence[Picked],
) -> Array:
    """Return a chunk of a gather's output, from what was picked from chunks of data.

    free: the shapes of its lanes and of its run.
    """
    lanes, run = free
    kind = call.kinds["data"]
    sizes: Shape = (prod(lanes), prod(piece.shape), prod(run))
    out = np.empty(sizes, f"V{kind.itemsize}")
    for row, found in picked:
        if piece.origin in found and sizes[1]:
            _place(out, piece.order[piece.of(row)], found[piece.origin])
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


def update(
    call: ChunkedCall,
    verdict: None,
    chunk: object,
    shape: Shape,
    row: int,
    splits: Sequence[Split],
    updates: Sequence[object],
) -> Array:
    """Return a chunk of data with its updates applied; updates: a chunk for each split."""
    data = _in_rows(call, _bytes(call, "data", chunk, shape))
    dtype, combining = call.inference.dtype, Combining.of(call.inference.attributes)
    order = dispatch.arithmetic_order(dtype, combining.reduction)
    out = np.empty(data.nbytes, np.uint8)
    copy_right(data, dtype, order, out, 1)
    total = sum(one.count(row) for one in splits)
    if total and out.size:
        width = data.shape[2] * dtype.itemsize
        counts = combining.new_counts(total, len(out) // width)
        most = max(1, max(out.size, BATCH) // (len(data) * width))
        for tuples in in_order(call, row, splits, most):
            new = _updates(call, shape, splits, updates, tuples)
            given = call.inference.inputs["updates"].dtype
            ready = normalize(new, given, order, combining.reduction != "none", 1)
            plan = shapes.scatter(data.shape, tuples.local.shape, new.shape, 1)[1]
            index = bind.bind_indices(raw(tuples.local), dtypes.from_numpy(tuples.local.dtype))
            work = scatters.Scatter(
                plan, dtype, None, index, ready, combining, out, False, 1, counts=counts
            )
            if not scatters.apply(work):
                raise OutputError("indices changed during the run")
        combining.divide(counts, out, width, dtype, 1)
    if order != dtype.order and dtype.unit > 1:
        copies.swap(out, dtype.unit)
    axes = call.axes.transposed
    result = out.view(call.kinds["data"]).reshape(tuple(shape[d] for d in axes))
    return result.transpose(tuple(np.argsort(axes)))


def _updates(
    call: ChunkedCall,
    shape: Shape,
    splits: Sequence[Split],
    updates: Sequence[object],
    tuples: Tuples,
) -> Array:
    """Return the updates of some tuples as an array (lanes, tuples, run)."""
    axes = call.axes
    lanes, run = (tuple(shape[d] for d in some) for some in (axes.lanes, axes.run))
    n, item = len(tuples.local), call.kinds["updates"].itemsize
    sizes: Shape = (prod(lanes), n, prod(run))
    out = np.empty(sizes, f"V{item}")
    by = np.argsort(tuples.splits, kind="stable")
    ends = [0, *(np.flatnonzero(np.diff(tuples.splits[by])) + 1).tolist(), n]
    for first, stop in pairwise(ends):
        positions = by[first:stop]
        at = int(tuples.splits[positions[0]])
        over = splits[at].shape
        chunk = _bytes(call, "updates", updates[at], axes.arranged(over, lanes, run))
        a, b, f = len(lanes), len(over), axes.front
        every = (*range(f, f + a), *range(f), *range(f + a, a + b), *range(a + b, chunk.ndim))
        given = _folded(chunk.transpose(every), a, b)
        rows = ops.gather(given, tuples.order[positions], 1, threads=1)
        if stop - first == n:
            return rows
        _place(out, positions, rows)
    return out
