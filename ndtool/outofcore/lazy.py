"""The phases of a call on dask arrays, as a task graph: segments are values on its edges.

Data have the axes of rows first, as in `partitioning`, then inner axes: batch axes along which the
same tuples apply, and those of a slice. A gather's output and updates have the axes of tuples, then
the inner ones. A partition is a chunk of data, a block is a chunk of tuples, and a lane is a chunk
along the inner axes. Along an axis that gives tuples a coordinate by their position (a batch axis,
or an axis of elements operators that is not indexed), data and tuples have the same chunks, so that
the graph consists of independent cells. In a cell, each block is split by partition; each partition
is swept; the blocks of a gather are replayed.

The graph has dask's format: a task is a tuple (function, argument, ...), a key is a tuple of a name
and numbers, and an argument that is a key, or a list of keys, stands for the results of these
tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, combinations, count, pairwise, product
from math import isqrt, prod
from operator import add, attrgetter, mul
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import Indices
from ndtool.engine import bind, check, copies, distinct, layouts, scatters
from ndtool.errors import RuleError
from ndtool.inmemory import ops
from ndtool.inmemory.arguments import array, element_type
from ndtool.inmemory.buffers import as_bytes, normalize
from ndtool.outofcore.phases import (
    BoundsReports,
    OutOfBounds,
    find_out_of_bounds,
    restore_rows,
    sort_rows,
    sort_tuples,
    update_rows,
)
from ndtool.rules import shapes
from ndtool.rules.inference import Inference
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan, Shape

Array = NDArray[Any]
Chunks = tuple[tuple[int, ...], ...]  # the sizes of chunks along each axis, as in dask
Key = tuple[Any, ...]
MIN_EXCHANGED = 4  # a task depends on up to so many others without an exchange


class Axes(NamedTuple):
    """The axes of data and of tuples, in the order of the graph.

    rows, inner: of data. grid_axes: for each axis of rows the axis of tuples that gives the
    coordinate, None for a component. indexed: the axes of rows along which components are
    coordinates. shared: the axes of tuples that data share, by which cells are divided. output: the
    axes of a gather's output, and of updates, among those of tuples and the inner ones.
    """

    rows: Shape
    inner: Shape
    grid_axes: tuple[int | None, ...]
    indexed: Shape
    shared: Shape
    output: Shape


def axes_of(plan: Plan) -> Axes:
    """Return the axes of a plan."""
    axes, front, components = range(len(plan.data)), len(plan.index_batch), count()
    grid_axes, rank = plan.grid_axes, len(plan.positions)
    rows = tuple(plan.axis_of(next(components)) if i is None else i for i in grid_axes)
    outer, slice_axes = axes[front : len(plan.batch)], axes[len(axes) - len(plan.slice_shape) :]
    inner = (*outer, *slice_axes)
    last = rank + len(outer)
    return Axes(
        rows, inner, grid_axes,
        tuple(r for r, i in enumerate(grid_axes) if i is None),
        tuple(i for i in grid_axes if i is not None),
        (*range(front), *range(rank, last), *range(front, rank), *range(last, rank + len(inner))),
    )  # fmt: skip


def align(inference: Inference, data: Chunks, tuples: Chunks) -> tuple[Chunks, Chunks]:
    """Return the chunks of data and of tuples that the graph needs, from those of the arrays.

    Along the axes of cells both have the same bounds. Partitions have one size. In a scatter, the
    tuples of each block of a cell are consecutive ones.
    """
    axes, data_chunks, tuple_chunks = axes_of(inference.plan), [*data], [*tuples]
    for r, i in enumerate(axes.grid_axes):
        if i is None:
            data_chunks[r] = _regular(sum(data[r]), max(data[r]))
            continue
        bounds = sorted({*accumulate(data[r]), *accumulate(tuples[i])} - {0})
        data_chunks[r] = _sizes(bounds)
        tuple_chunks[i] = _sizes([bound for bound in bounds if bound <= sum(tuples[i])])
    while prod(len(data_chunks[r]) for r in axes.indexed) > bind.MAX_PARTITIONS:
        r = max(axes.indexed, key=lambda r: len(data_chunks[r]))
        data_chunks[r] = _regular(sum(data[r]), 2 * data_chunks[r][0])
    free = [i for i in range(len(tuples)) if i not in axes.shared]
    if inference.scatters and any(
        len(tuples[later]) > 1 and max(tuples[i]) > 1 for i, later in combinations(free, 2)
    ):
        remaining = prod(max(tuples[i]) for i in free)
        for i in reversed(free):
            tuple_chunks[i] = _regular(sum(tuples[i]), min(sum(tuples[i]), remaining))
            remaining //= tuple_chunks[i][0] or 1
    return tuple(data_chunks), tuple(tuple_chunks)


def _sizes(bounds: Sequence[int]) -> tuple[int, ...]:
    return tuple(b - a for a, b in pairwise([0, *bounds])) or (0,)


def _regular(size: int, step: int) -> tuple[int, ...]:
    step = max(1, step)
    return _sizes([*range(step, size, step), size] if size else [])


@dataclass(frozen=True, eq=False)
class Call:
    """The values that all tasks of a call share. chunks: those of data, in the graph's order."""

    inference: Inference
    dtypes: dict[str, np.dtype[Any]]
    chunks: Chunks

    @property
    def plan(self) -> Plan:
        return self.inference.plan

    @cached_property
    def axes(self) -> Axes:
        return axes_of(self.plan)

    @cached_property
    def grid(self) -> Shape:
        """The number of chunks along each indexed axis."""
        return tuple(len(self.chunks[r]) for r in self.axes.indexed)

    @cached_property
    def partitions(self) -> int:
        """The number of partitions of a cell."""
        return prod(self.grid)


def _require_declared(call: Call, role: str, value: object, shape: Shape) -> Array:
    """Return a chunk as an ndarray; RuleError unless it has the declared dtype and shape."""
    chunk, declared = array(role, value), call.dtypes[role]
    if chunk.dtype != declared and chunk.dtype == declared.newbyteorder():
        chunk = chunk.astype(declared)
    if chunk.shape != shape or chunk.dtype != declared:
        actual, expected = (element_type(role, dtype) for dtype in (chunk.dtype, declared))
        raise RuleError(
            f"a chunk of {role} is {shapes.format_type(actual, chunk.shape)}: its array declares"
            f" {shapes.format_type(expected, shape)}"
        )
    return chunk


def _as_void(call: Call, role: str, chunk: object, shape: Shape) -> Array:
    """Return a chunk with void elements, which NumPy copies with padding and unchanged bytes."""
    declared = _require_declared(call, role, chunk, shape)
    return declared.view(f"V{declared.dtype.itemsize}")


class Segment(NamedTuple):
    """Tuples of one block that select from one partition, in order.

    number: of the block. local: row indices. rows: the updates or gathered rows, void elements.
    """

    number: int
    local: Array
    rows: Any = None


Bundle = Mapping[int, list[Segment]]  # segments by the partition or block that needs them


@dataclass(frozen=True, eq=False)
class Split:
    """The tuples of a block, sorted stably by partition.

    number: of the block. shape: of the array of its tuples. ids: the partition ID of each tuple, in
    order; the last ID is for dropped tuples. offsets: of each partition in the sorted tuples, and
    the end. segments: of the partitions from which tuples select. report: its indices out of bounds
    if they are an error.
    """

    number: int
    shape: Shape
    ids: Array
    offsets: Array
    segments: Bundle
    report: OutOfBounds | None = None


def select(sources: Iterable[Bundle | Split], targets: Iterable[int]) -> Bundle:
    """Return the segments of several tasks for partitions or blocks, in the order of tasks."""
    found, wanted = defaultdict[int, list[Segment]](list), set(map(int, targets))
    for source in sources:
        bundle = source.segments if isinstance(source, Split) else source
        for target in bundle.keys() & wanted:
            found[target] += bundle[target]
    return found


def _bind(call: Call, index: Array, attributes: Attributes) -> Indices:
    """Bind a chunk of indices for kernels."""
    dtype = call.inference.inputs["indices"].dtype
    buffer = normalize(index, dtype, dtype.order, False, 1)
    return bind.bind_indices(buffer, dtype, attributes)


def _allocate(nbytes: int) -> Array:
    return np.empty(nbytes, np.uint8)


def split(call: Call, chunk: object, number: int, origin: Shape, shape: Shape) -> Split:
    """Validate the tuples of a block, and sort them by partition."""
    plan, partitions, n = call.plan.block(shape), call.partitions, prod(shape)
    if check.is_error(call.plan):
        plan = plan._replace(attributes=plan.attributes._replace(out_of_bounds="error"))
    component = () if call.plan.has_scalar_indices else (plan.k,)
    index = _require_declared(call, "indices", chunk, (*shape, *component))
    drops = plan.attributes.may_skip_tuples
    offsets = np.zeros(partitions + drops + 1, np.int64)
    ids = np.zeros(n, f"u{bind.id_bytes(partitions + drops)}")
    if not n:
        return Split(number, shape, ids, offsets, {})
    indices = _bind(call, index, plan.attributes)
    if prod(plan.data):
        pairs = enumerate(plan.grid_axes)
        steps = tuple(call.chunks[r][0] if i is None else shape[i] for r, i in pairs)
        boxes = bind.bind_boxes(plan.slice_grid, steps)
        ordered = sort_tuples(bind.bind_rows(plan), indices, 0, n, boxes, drops, _allocate)
        if ordered is not None:
            ids, offsets = ordered.ids.view(ids.dtype), np.frombuffer(ordered.offsets, np.int64)
            local = ordered.local.view(f"u{boxes.row_bytes}")
            bounds = enumerate(pairwise(offsets[: partitions + 1].tolist()))
            segments = {p: [Segment(number, local[a:b])] for p, (a, b) in bounds if a < b}
            return Split(number, shape, ids, offsets, segments)
    report = find_out_of_bounds(plan, indices, 0, n)
    if report is None or not check.is_error(call.plan):  # there are no rows: all are dropped
        offsets[-1], ids[:] = n, partitions
        return Split(number, shape, ids, offsets, {})
    place = map(add, origin, layouts.unravel_index(report.position, shape))
    strides = layouts.contiguous_strides(call.plan.positions, 1)
    report = report._replace(position=sum(map(mul, place, strides)))
    return Split(number, shape, ids[:0], offsets, {}, report)


def validate(call: Call, reports: Sequence[OutOfBounds | None], indices: object) -> None:
    """Raise BoundsError if a block has indices out of bounds.

    indices: all of them if they must be distinct, else None: DuplicatesError if two tuples select
    the same row.
    """
    collected = BoundsReports(call.inference)
    for report in reports:
        collected.add(report)
    collected.raise_or_report(lambda _: None)
    if indices is not None:
        component = () if call.plan.has_scalar_indices else (call.plan.k,)
        index = _require_declared(call, "indices", indices, (*call.plan.positions, *component))
        distinct.check(call.plan, _bind(call, index, call.plan.attributes))


def gather_rows(
    call: Call, verdict: None, chunk: object, shape: Shape, partition: int,
    bundles: Sequence[Bundle | Split],
) -> Bundle:  # fmt: skip
    """Sweep a partition: gather the rows that tuples select, for each block."""
    stored = _as_void(call, "data", chunk, shape)
    segments = select(bundles, [partition])[partition]
    if not segments:
        return {}
    local, rank = [segment.local for segment in segments], len(call.axes.rows)
    data = stored.reshape(prod(shape[:rank]), *shape[rank:])
    gathered = ops.gather(data, np.concatenate(local), 0, threads=1)
    rows = gathered.reshape(len(gathered), prod(shape[rank:]))
    ends = [0, *accumulate(map(len, local))]
    return {
        segment.number: [segment._replace(rows=rows[ends[i] : ends[i + 1]])]
        for i, segment in enumerate(segments)
    }


def replay(
    call: Call, verdict: None, split: Split, lane: Shape, bundles: Sequence[Bundle]
) -> Array:
    """Restore the order of a block's tuples: return a chunk of a gather's output.

    lane: its shape along the inner axes.
    """
    dtype, n = call.dtypes["data"], prod(split.shape)
    sorted_rows = np.empty((n, prod(lane)), f"V{dtype.itemsize}")
    filled = 0
    for segment in select(bundles, [split.number])[split.number]:
        sorted_rows[filled : filled + len(segment.rows)] = segment.rows
        filled += len(segment.rows)
    if sorted_rows[filled:].size:  # of dropped tuples
        sorted_rows[filled:] = np.frombuffer(call.inference.fill_bytes, sorted_rows.dtype)
    out = np.empty_like(sorted_rows)
    if out.size:
        ids = as_bytes(split.ids)
        restore_rows(ids, split.offsets.tolist(), as_bytes(sorted_rows), as_bytes(out))
    return out.view(dtype).reshape(split.shape + lane)


def split_updates(call: Call, split: Split, chunk: object, lane: Shape) -> Bundle:
    """Return segments of a block with its updates; lane: as in replay."""
    stored = _as_void(call, "updates", chunk, split.shape + lane)
    rows = np.array(stored, order="C").reshape(prod(split.shape), prod(lane))
    dtype = call.inference.inputs["updates"].dtype
    arithmetic = scatters.arithmetic_order(call.inference.dtype, call.plan.attributes.reduction)
    if dtype.swap_size > 1 and dtype.order != arithmetic:
        copies.swap_bytes(as_bytes(rows), dtype.swap_size)
    moved = np.empty_like(rows)
    if split.segments and rows.size:
        ids = as_bytes(split.ids)
        sort_rows(ids, split.offsets, as_bytes(rows), as_bytes(moved))
    return {
        partition: [segment._replace(rows=moved[slice(*split.offsets[partition:][:2])].copy())]
        for partition, (segment,) in split.segments.items()
    }


def apply_updates(
    call: Call, verdict: None, chunk: object, shape: Shape, partition: int,
    bundles: Sequence[Bundle],
) -> Array:  # fmt: skip
    """Sweep a partition: return the chunk of data with its updates applied."""
    out = np.array(_as_void(call, "data", chunk, shape), order="C")
    segments = select(bundles, [partition])[partition]
    if out.size and segments:
        width = out.nbytes // prod(shape[: len(call.axes.rows)])
        tuples = sum(len(segment.local) for segment in segments)
        batches = ((as_bytes(segment.local), as_bytes(segment.rows)) for segment in segments)
        update_rows(call.inference, as_bytes(out), width, tuples, batches)
    return out.view(call.dtypes["data"])


class TaskGraph:
    """The graph of a call: `tasks` by key; the keys of the output have the name of the graph."""

    def __init__(
        self, call: Call, tuple_chunks: Chunks, names: dict[str, str], all_indices: Any,
        token: str,
    ) -> None:  # fmt: skip
        """Build the graph; raise BoundsError or DuplicatesError for indices in memory.

        tuple_chunks: the chunks of tuples. names: the names of the chunked inputs, by role.
        all_indices: in memory, or the key of their only chunk.
        """
        self.call, self._names, self._token = call, names, token
        self.name = f"{call.inference.operator}-{token}"
        self._call_key = self._key("call")
        self.tasks: dict[Any, Any] = {self._call_key: call}
        self._blocks, axes = list(_boxes(tuple_chunks)), call.axes
        self._lanes = list(_boxes(call.chunks[len(axes.rows) :]))
        self._splits = [self._key("split", number) for number in range(len(self._blocks))]
        # Whether tuples of a block may select from a partition.
        self._links = np.broadcast_to(True, (len(self._blocks), call.partitions))
        verdict = self._split(all_indices)
        cells = defaultdict[Shape, list[int]](list)
        for number, (position, *_) in enumerate(self._blocks):
            cells[tuple(position[i] for i in axes.shared)].append(number)
        add_cell = self._scatter if "updates" in names else self._gather
        divided = (call.chunks[r] for r, i in enumerate(axes.grid_axes) if i is not None)
        for cell in product(*(range(len(sizes)) for sizes in divided)):
            add_cell(verdict, cell, cells.get(cell, []))

    def _key(self, kind: str, *numbers: int) -> Key:
        return (f"{self.call.inference.operator}-{kind}-{self._token}", *numbers)

    def _add(self, kind: str, *task: Any) -> Key:
        key = self._key(kind, len(self.tasks))
        self.tasks[key] = task
        return key

    def _split(self, all_indices: Any) -> Key | None:
        """Add the splits of blocks; return the key of their verdict, None if none is needed.

        Indices in memory are split and validated at once.
        """
        call, reports = self.call, list[Any]()
        component = () if call.plan.has_scalar_indices else (0,)
        distinct_indices = all_indices if call.inference.requires_distinct else None
        if "indices" in self._names:
            for number, (position, origin, shape) in enumerate(self._blocks):
                key, chunk = self._splits[number], (self._names["indices"], *position, *component)
                self.tasks[key] = (split, self._call_key, chunk, number, origin, shape)
                if check.is_error(call.plan):
                    reports.append(self._add("report", attrgetter("report"), key))
            if not reports and distinct_indices is None:
                return None
            return self._add("verdict", validate, self._call_key, reports, distinct_indices)
        self._links = np.zeros(self._links.shape, np.bool_)
        for number, (_, origin, shape) in enumerate(self._blocks):
            box = tuple(slice(a, a + size) for a, size in zip(origin, shape, strict=True))
            block = split(call, all_indices[box], number, origin, shape)
            self.tasks[self._splits[number]] = block
            self._links[number, list(block.segments)] = True
            reports.append(block.report)
        validate(call, reports, distinct_indices)
        return None

    def _exchange(
        self, kind: str, sources: Sequence[Key], targets: Sequence[int], links: NDArray[np.bool_]
    ) -> list[list[Key]]:
        """Return, for each target, the tasks that have the segments of sources for it.

        links: whether a source may have segments for a target. Groups of many sources are selected
        for groups of targets, so that a task depends on about the square root of their number.
        """
        size, counts = isqrt(max(0, len(sources) - 1)) + 1, links.sum(0)
        result: list[list[Key]] = [
            [sources[i] for i in np.flatnonzero(links[:, t]).tolist()] if n <= MIN_EXCHANGED else []
            for t, n in enumerate(counts)
        ]
        many = np.flatnonzero(counts > MIN_EXCHANGED).tolist()
        for group in _groups(many, -(-len(many) // size)):
            needed = np.flatnonzero(links[:, group].any(1)).tolist()
            numbers = np.array([targets[t] for t in group])  # one object for dask
            keys = [
                self._add(kind, select, [sources[i] for i in members], numbers)
                for members in _groups(needed, size)
            ]
            for t in group:
                result[t] = keys
        return result

    def _chunk(self, cell: Shape, partition: int, lane: Shape) -> tuple[Key, Shape]:
        """Return the key and the shape of a chunk of data."""
        shared, indexed = iter(cell), iter(layouts.unravel_index(partition, self.call.grid))
        grid_axes = self.call.axes.grid_axes
        coordinates = (*(next(indexed if i is None else shared) for i in grid_axes), *lane)
        shape = tuple(sizes[i] for sizes, i in zip(self.call.chunks, coordinates, strict=True))
        return (self._names["data"], *coordinates), shape

    def _gather(self, verdict: Key | None, cell: Shape, blocks: list[int]) -> None:
        """Add the sweeps and replays of a cell: sweeps of about as many rows as a replay."""
        reached = int(np.count_nonzero(self._links[blocks].any(0)))
        for group in _groups(blocks, reached):
            links = self._links[group]
            partitions = np.flatnonzero(links.any(0)).tolist()
            links = links[:, partitions]
            splits = [self._splits[block] for block in group]
            bundles = self._exchange("splits", splits, partitions, links)
            for lane, _, lane_shape in self._lanes:
                swept = [
                    self._add(
                        "gather", gather_rows, self._call_key, verdict,
                        *self._chunk(cell, partition, lane), partition, bundle,
                    )
                    for partition, bundle in zip(partitions, bundles, strict=True)
                ]  # fmt: skip
                rows = self._exchange("rows", swept, group, links.T)
                for block, bundle in zip(group, rows, strict=True):
                    self.tasks[(self.name, *self._blocks[block][0], *lane)] = (
                        replay, self._call_key, verdict, self._splits[block], lane_shape, bundle,
                    )  # fmt: skip

    def _scatter(self, verdict: Key | None, cell: Shape, blocks: list[int]) -> None:
        """Add the tasks of a cell: one for each chunk of updates, and of data."""
        partitions = range(self.call.partitions)
        for lane, _, lane_shape in self._lanes:
            updates = [
                self._add(
                    "bundle", split_updates, self._call_key, self._splits[block],
                    (self._names["updates"], *self._blocks[block][0], *lane), lane_shape,
                )
                for block in blocks
            ]  # fmt: skip
            bundles = self._exchange("updates", updates, partitions, self._links[blocks])
            for partition, bundle in zip(partitions, bundles, strict=True):
                key, shape = self._chunk(cell, partition, lane)
                self.tasks[(self.name, *key[1:])] = (
                    apply_updates, self._call_key, verdict, key, shape, partition, bundle,
                )  # fmt: skip


def _groups(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    """Yield a sequence in groups of at most `size`."""
    for first in range(0, len(numbers), max(1, size)):
        yield numbers[first : first + max(1, size)]


def _boxes(chunks: Sequence[tuple[int, ...]]) -> Iterator[tuple[Shape, Shape, Shape]]:
    """Yield the position, the origin and the shape of each chunk, in row-major order."""
    offsets = [(0, *accumulate(sizes)) for sizes in chunks]
    for coordinates in product(*(range(len(sizes)) for sizes in chunks)):
        origin = tuple(ends[i] for ends, i in zip(offsets, coordinates, strict=True))
        shape = tuple(sizes[i] for sizes, i in zip(chunks, coordinates, strict=True))
        yield coordinates, origin, shape
