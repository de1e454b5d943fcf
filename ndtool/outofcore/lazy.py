"""The phases of a call on dask arrays, as a task graph: segments are values on its edges.

Data have the axes of rows first, as in `partitioning`, then inner axes: batch axes along which the
same tuples apply, and those of a slice. A gather's output and updates have the axes of tuples, then
the inner ones. A partition is a chunk of data along the axes of rows, a block is a chunk of tuples,
and a lane is a chunk along the inner axes. In a lane, each block is split by partition; each
partition is swept; the blocks of a gather are replayed.

A segment is what a block and a partition exchange, in the order of the block's sorted tuples. The
graph has dask's format: a task is a tuple (function, argument, ...), a key is a tuple of a name and
numbers, and an argument that is a key, or a list of keys, stands for the results of these tasks.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise, product
from math import ceil, prod, sqrt
from operator import attrgetter, getitem, mul
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import Indices
from ndtool.engine import bind, check, distinct, layouts
from ndtool.engine.check import OutOfBounds
from ndtool.errors import RuleError
from ndtool.inmemory import ops
from ndtool.inmemory.arguments import array, element_type
from ndtool.inmemory.buffers import as_bytes, normalize
from ndtool.outofcore import phases
from ndtool.rules import shapes
from ndtool.rules.inference import Inference
from ndtool.rules.plans import Plan, Shape

Array = NDArray[Any]
Chunks = tuple[tuple[int, ...], ...]  # the sizes of chunks along each axis, as in dask
Key = tuple[Any, ...]
Bundle = Mapping[int, list[Any]]  # segments by the partition or block that needs them
MIN_EXCHANGED = 4  # a task depends on up to so many others without an exchange


@dataclass(frozen=True, eq=False)
class Call:
    """The values that all tasks of a call share: types by role, chunks in the order of the graph.

    data: the chunks of data, of one size along the axes of rows. tuples: those of tuples.
    """

    inference: Inference
    dtypes: dict[str, np.dtype[Any]]
    data: Chunks
    tuples: Chunks

    @property
    def plan(self) -> Plan:
        return self.inference.plan

    @property
    def rows(self) -> Chunks:
        """The chunks of data along the axes of rows."""
        return self.data[: len(self.plan.grid_axes)]

    @property
    def ids(self) -> int:
        """The number of partition IDs; the last may be for dropped tuples."""
        return prod(map(len, self.rows)) + self.plan.attributes.may_skip_tuples


@dataclass(frozen=True, eq=False)
class Split:
    """The tuples of a block, sorted stably by partition.

    number: of the block. shape: of the array of its tuples. ids: the bytes of the partition ID of
    each tuple, in order. segments: the block and its row indices, for each partition from which
    tuples select. report: its indices out of bounds if they are an error.
    """

    number: int
    shape: Shape
    ids: Array
    segments: Bundle
    report: OutOfBounds | None = None


def select(sources: Iterable[Bundle | Split], targets: Iterable[int]) -> Bundle:
    """Return the segments of several tasks for partitions or blocks, in the order of tasks."""
    found, wanted = defaultdict[int, list[Any]](list), set(map(int, targets))
    for source in sources:
        bundle = source.segments if isinstance(source, Split) else source
        for target in bundle.keys() & wanted:
            found[target] += bundle[target]
    return found


def _declared(call: Call, role: str, value: object, shape: Shape) -> Array:
    """Return a chunk with void elements, which NumPy copies with padding and unchanged bytes.

    Raises RuleError unless it has the declared dtype and shape.
    """
    chunk, declared = array(role, value), call.dtypes[role]
    if chunk.dtype != declared and chunk.dtype == declared.newbyteorder():
        chunk = chunk.astype(declared)
    if chunk.shape != shape or chunk.dtype != declared:
        actual, expected = (element_type(role, dtype) for dtype in (chunk.dtype, declared))
        raise RuleError(
            f"a chunk of {role} is {shapes.format_type(actual, chunk.shape)}: its array declares"
            f" {shapes.format_type(expected, shape)}"
        )
    return chunk.view(f"V{declared.itemsize}")


def _bind_indices(call: Call, chunk: object, shape: Shape) -> Indices:
    """Bind the indices of an array of tuples for kernels."""
    plan, dtype = call.plan, call.inference.inputs["indices"].dtype
    components = () if plan.has_scalar_indices else (plan.k,)
    index = _declared(call, "indices", chunk, shape + components)
    return bind.bind_indices(normalize(index, dtype, dtype.order, False, 1), dtype, plan.attributes)


def split(call: Call, number: int, origin: Shape, shape: Shape, chunk: object) -> Split:
    """Validate the tuples of a block, and sort them by partition."""
    plan, n = call.plan, prod(shape)
    indices = _bind_indices(call, chunk, shape)
    if n and prod(plan.slice_grid):
        boxes = bind.bind_boxes(plan.slice_grid, tuple(sizes[0] for sizes in call.rows))
        drops, allocate = plan.attributes.may_skip_tuples, partial(np.empty, dtype=np.uint8)
        rows = bind.bind_box(plan, origin, shape)
        ordered = phases.sort_tuples(rows, indices, n, n, boxes, drops, allocate)
        if ordered is not None:
            ids, offsets, local = map(np.asarray, ordered)
            local = local.view(f"u{boxes.row_bytes}")
            reached = np.flatnonzero(np.diff(offsets[: boxes.partitions + 1])).tolist()
            segments = {p: [(number, local[offsets[p] : offsets[p + 1]])] for p in reached}
            return Split(number, shape, ids, segments)
    report = check.find_out_of_bounds(plan, indices, 0, n) if n else None
    ids = np.zeros(n * bind.id_bytes(call.ids), np.uint8)  # without rows, all are dropped
    return Split(number, shape, ids, {}, report)


def _reorder(call: Call, split: Split, rows: Array, by: Callable[..., None]) -> Array:
    """Return the rows of a block's tuples sorted by partition, or restored: by a function."""
    ends = [*accumulate((len(local) for [(_, local)] in split.segments.values()), initial=0)]
    offsets, out = np.full(call.ids + 1, ends.pop()), np.empty_like(rows)
    offsets[[*split.segments]], offsets[-1] = ends, len(rows)
    if rows.size:
        by(split.ids, offsets, as_bytes(rows), as_bytes(out))
    return out


def validate(call: Call, reports: Sequence[OutOfBounds | None], indices: object) -> None:
    """Raise BoundsError if a block has indices out of bounds.

    reports: of all blocks. indices: all of them, if they must be distinct: DuplicatesError if two
    tuples select the same row.
    """
    found, positions = list[OutOfBounds](), call.plan.positions
    strides = layouts.contiguous_strides(positions, 1)
    for (_, box, shape), report in zip(chunks_of(call.tuples), reports, strict=False):
        if report is not None:
            coordinates = layouts.unravel_index(report.position, shape)
            place = (part.start + i for part, i in zip(box, coordinates, strict=True))
            found.append(report._replace(position=sum(map(mul, place, strides))))
    phases.raise_or_report(call.plan, check.merge(found), lambda _: None)
    if call.inference.requires_distinct:
        distinct.check(call.plan, _bind_indices(call, indices, positions))


def gather_rows(
    call: Call, verdict: None, chunk: object, shape: Shape, partition: int,
    bundles: Sequence[Bundle | Split],
) -> Bundle:  # fmt: skip
    """Sweep a partition: gather the rows that tuples select, for each block."""
    stored = _declared(call, "data", chunk, shape)
    segments = select(bundles, [partition])[partition]
    if not segments:
        return {}
    blocks, local = zip(*segments, strict=True)
    rank = len(call.rows)
    data = stored.reshape(prod(shape[:rank]), *shape[rank:])
    gathered = ops.gather(data, np.concatenate(local), 0, threads=1)
    rows = gathered.reshape(len(gathered), prod(shape[rank:]))
    pieces = np.split(rows, [*accumulate(map(len, local))])
    return {block: [piece] for block, piece in zip(blocks, pieces, strict=False)}


def replay(
    call: Call, verdict: None, split: Split, lane: Shape, bundles: Sequence[Bundle]
) -> Array:
    """Restore the order of a block's tuples: return a chunk of a gather's output.

    lane: its shape along the inner axes.
    """
    dtype, segments = call.dtypes["data"], select(bundles, [split.number])[split.number]
    dropped = prod(split.shape) - sum(map(len, segments)), prod(lane)
    fill = np.frombuffer(call.inference.fill_bytes, f"V{dtype.itemsize}")
    rows = np.concatenate([*segments, np.broadcast_to(fill, dropped)])
    return _reorder(call, split, rows, phases.restore_rows).view(dtype).reshape(split.shape + lane)


def split_updates(call: Call, split: Split, chunk: object, lane: Shape) -> Bundle:
    """Return row indices and updates of a block for each partition; lane: as in replay."""
    stored = _declared(call, "updates", chunk, split.shape + lane)
    rows = np.array(stored, order="C").reshape(prod(split.shape), prod(lane))
    dtype = call.inference.inputs["updates"].dtype
    phases.swap_for_arithmetic(as_bytes(rows), dtype, call.inference)
    moved, end, bundle = _reorder(call, split, rows, phases.sort_rows), 0, {}
    for partition, [(_, local)] in split.segments.items():
        bundle[partition] = [(local, moved[end : end + len(local)].copy())]
        end += len(local)
    return bundle


def apply_updates(
    call: Call, verdict: None, chunk: object, shape: Shape, partition: int,
    bundles: Sequence[Bundle],
) -> Array:  # fmt: skip
    """Sweep a partition: return the chunk of data with its updates applied."""
    out = np.array(_declared(call, "data", chunk, shape), order="C")
    segments = select(bundles, [partition])[partition]
    if out.size and segments:
        width = out.nbytes // prod(shape[: len(call.rows)])
        tuples = sum(len(local) for local, _ in segments)
        batches = ((as_bytes(local), as_bytes(updates)) for local, updates in segments)
        phases.update_rows(call.inference, as_bytes(out), width, tuples, batches)
    return out.view(call.dtypes["data"])


class TaskGraph:
    """The graph of a call: `tasks` by key; the keys of the output have the name of the graph."""

    def __init__(self, call: Call, names: dict[str, str], indices: Any, token: str) -> None:
        """Build the graph; raise BoundsError or DuplicatesError for indices in memory.

        names: the names of the chunked inputs, by role; also that of lazy indices in one chunk,
        "all indices", if they must be distinct. indices: in memory.
        """
        self.call, self._names, self._token = call, names, token
        self.name = f"{call.inference.operator}-{token}"
        self.tasks: dict[Any, Any] = {}
        self._call = self._add("call", call)
        self._blocks, self._partitions = list(chunks_of(call.tuples)), list(chunks_of(call.rows))
        self._lanes = list(chunks_of(call.data[len(call.rows) :]))
        # Whether tuples of a block may select from a partition.
        self._links = np.zeros((len(self._blocks), len(self._partitions)), np.bool_)
        self._splits: list[Key] = []
        self._verdict = self._split(indices)
        if call.inference.scatters:
            self._scatter()
        else:
            for blocks in self._groups():
                self._gather(blocks)

    def _add(self, kind: str, task: Any) -> Key:
        key = (f"{self.call.inference.operator}-{kind}-{self._token}", len(self.tasks))
        self.tasks[key] = task
        return key

    def _split(self, indices: Any) -> Key | None:
        """Add the splits of blocks; return the key of their verdict, None if none is needed.

        Indices in memory are split and validated at once.
        """
        call, is_lazy, reports = self.call, "indices" in self._names, list[Any]()
        component = () if call.plan.has_scalar_indices else (0,)
        grid = tuple(map(len, call.rows))
        shared = [*zip(call.plan.grid_axes, (sizes[0] or 1 for sizes in call.rows), strict=True)]
        for number, (position, box, shape) in enumerate(self._blocks):
            origin, links = tuple(part.start for part in box), self._links[number]
            if is_lazy:
                chunk = (self._names["indices"], *position, *component)
                key = self._add("split", (split, self._call, number, origin, shape, chunk))
                if check.is_error(call.plan):
                    reports.append(self._add("report", (attrgetter("report"), key)))
                stops = (None if i is None else -(-box[i].stop // step) for i, step in shared)
                starts = (0 if i is None else box[i].start // step for i, step in shared)
                links.reshape(grid)[*map(slice, starts, stops)] = True
            else:
                block = split(call, number, origin, shape, indices[box])
                key = self._add("split", block)
                reports.append(block.report)
                links[[*block.segments]] = True
            self._splits.append(key)
        if not is_lazy:
            validate(call, reports, indices)
        elif reports or call.inference.requires_distinct:
            positions = (0 for _ in call.plan.positions)
            all_indices = (self._names.get("all indices"), *positions, *component)
            return self._add("verdict", (validate, self._call, reports, all_indices))
        return None

    def _groups(self) -> Iterator[list[int]]:
        """Yield blocks that select from at least as many partitions, so that sweeps are small."""
        group, reached = list[int](), np.zeros(len(self._partitions), np.bool_)
        for block in np.argsort(self._links.argmax(1), kind="stable").tolist():
            reached |= self._links[block]
            if group and len(group) >= np.count_nonzero(reached):
                yield group
                group, reached = [], self._links[block].copy()
            group.append(block)
        yield group

    def _exchange(
        self, kind: str, sources: Sequence[Key], targets: Sequence[int], links: NDArray[np.bool_]
    ) -> list[list[Key]]:
        """Return, for each target, the tasks that have the segments of sources for it.

        links: whether a source may have segments for a target. Groups of many sources are selected
        for groups of targets, so that a task depends on about the square root of their number.
        """
        needs = np.ascontiguousarray(links.T)
        size, counts = ceil(sqrt(len(sources))), needs.sum(1)
        result: list[list[Key]] = [
            [sources[i] for i in np.flatnonzero(row).tolist()] if n <= MIN_EXCHANGED else []
            for row, n in zip(needs, counts, strict=True)
        ]
        many = np.flatnonzero(counts > MIN_EXCHANGED)
        if not many.size:
            return result
        many = many[np.argsort(needs.argmax(1)[many], kind="stable")]  # by the same sources
        for group in np.array_split(many, min(size, len(many))):
            needed = np.flatnonzero(needs[group].any(0))
            numbers = np.take(targets, group)  # one object for dask
            keys = [
                self._add(kind, (select, [sources[i] for i in members], numbers))
                for members in np.array_split(needed, ceil(len(needed) / size))
            ]
            for t in group:
                result[t] = keys
        return result

    def _sweep(self, function: Any, partition: int, lane: Shape, bundles: list[Key]) -> Any:
        """Return the task that sweeps a chunk of data."""
        position = self._partitions[partition][0] + lane
        shape = tuple(map(getitem, self.call.data, position))
        chunk = (self._names["data"], *position)
        return function, self._call, self._verdict, chunk, shape, partition, bundles

    def _gather(self, blocks: Sequence[int]) -> None:
        """Add the sweeps and replays of blocks."""
        links = self._links[blocks]
        partitions = np.flatnonzero(links.any(0)).tolist()
        links, splits = links.take(partitions, 1), [self._splits[block] for block in blocks]
        bundles = self._exchange("splits", splits, partitions, links)
        for lane, _, lane_shape in self._lanes:
            swept = [
                self._add("gather", self._sweep(gather_rows, partition, lane, bundle))
                for partition, bundle in zip(partitions, bundles, strict=True)
            ]
            rows = self._exchange("rows", swept, blocks, links.T)
            for block, bundle in zip(blocks, rows, strict=True):
                key = (self.name, *self._blocks[block][0], *lane)
                arguments = self._splits[block], lane_shape, bundle
                self.tasks[key] = (replay, self._call, self._verdict, *arguments)

    def _scatter(self) -> None:
        """Add the tasks of a scatter: one for each chunk of updates, and of data."""
        partitions = range(len(self._partitions))
        for lane, _, lane_shape in self._lanes:
            updates = []
            for key, (position, *_) in zip(self._splits, self._blocks, strict=True):
                chunk = (self._names["updates"], *position, *lane)
                task = (split_updates, self._call, key, chunk, lane_shape)
                updates.append(self._add("bundle", task))
            bundles = self._exchange("updates", updates, partitions, self._links)
            for partition, bundle in enumerate(bundles):
                key = (self.name, *self._partitions[partition][0], *lane)
                self.tasks[key] = self._sweep(apply_updates, partition, lane, bundle)


def chunks_of(chunks: Chunks) -> Iterator[tuple[Shape, tuple[slice, ...], Shape]]:
    """Yield the position, the box and the shape of each chunk, in row-major order."""
    ends = (pairwise(accumulate(sizes, initial=0)) for sizes in chunks)
    boxes = [[slice(*pair) for pair in pairs] for pairs in ends]
    for position in product(*(range(len(sizes)) for sizes in chunks)):
        box = tuple(map(getitem, boxes, position))
        yield position, box, tuple(map(getitem, chunks, position))
