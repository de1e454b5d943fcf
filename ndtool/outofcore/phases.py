"""The phases of a run, their tasks, and the state that tasks share."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate
from math import prod
from operator import sub
from typing import Any, NamedTuple

import numpy as np

from ndtool import _kernels
from ndtool._kernels import (
    LINE,
    MAX_BYTE_IDS,
    Addressing,
    Indices,
    KernelOptions,
    UpdateCounts,
    WorkItem,
)
from ndtool.arrays.assembly import as_bytes
from ndtool.arrays.boxes import Reader, Writer, read_range, read_repeated, write_range
from ndtool.engine import bind, check, copies, counting, scatters
from ndtool.errors import BoundsError, OutputError
from ndtool.machine import threads
from ndtool.outofcore.partitioning import MAX_SEGMENTS, Partitioning, Rows
from ndtool.outofcore.segments import Segment, SegmentStore, SharedStore, read_all
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference
from ndtool.rules.plans import Plan, Shape

SELECTED_ROWS = 1 << 16  # rows of which coordinates are computed together
REPORT_BYTES = 128  # bytes of a block's bounds report in the trailer of its segment
Allocate = Callable[[int], memoryview]
ReportCallback = Callable[[BoundsError], object]  # receives the bounds report
Advance = Callable[[int], object]  # receives the bytes that a task has moved


class OutOfBounds(NamedTuple):
    """The first index out of bounds of a block, and the number of tuples with such an index."""

    position: int
    component: int
    value: int
    tuples: int


class SplitResult(NamedTuple):
    """The result of a split: the partition offsets of a block, and its indices out of bounds.

    offsets: empty if an index is out of bounds and the mode does not allow that.
    """

    offsets: bytes
    out_of_bounds: OutOfBounds | None = None

    @property
    def trailer(self) -> bytes:
        """The last bytes of a split's segment, from which a resumed run reads the result."""
        return self.offsets + json.dumps(self.out_of_bounds).encode().ljust(REPORT_BYTES)

    @classmethod
    def parse(cls, trailer: bytes) -> SplitResult:
        """Parse the trailer of a segment; ValueError or TypeError if it is malformed."""
        report = json.loads(trailer[-REPORT_BYTES:])
        report = None if report is None else OutOfBounds(*map(int, report))
        return cls(trailer[:-REPORT_BYTES], report)


class OffsetTable:
    """The offsets of a group's segments, in tuples.

    by_child: a line for each child and for the end, with the offset in each block. by_block: a line
    for each block and for the end, with the offset in each child. firsts: the first tuple of each
    child among those of all children.
    """

    def __init__(self, children: int, blocks: int) -> None:
        self.by_child = np.zeros((children + 1, blocks), np.int64)
        self.by_block = np.zeros((0, 0), np.int64)
        self.firsts: Sequence[int] = ()

    def add(self, block: int, offsets: bytes) -> None:
        """Add the partition offsets of a block."""
        self.by_child[:, block] = np.frombuffer(offsets, np.int64)

    def of_child(self, number: int) -> tuple[memoryview, memoryview]:
        """Return the start and stop of a child's tuples in the segment of each block."""
        return self.by_child[number].data, self.by_child[number + 1].data

    def transpose(self) -> None:
        """Replace the offsets by child with those by block."""
        children, blocks = self.by_child.shape
        self.by_block = np.zeros((blocks + 1, children - 1), np.int64)
        counts = self.by_block[1:]
        np.subtract(self.by_child[1:], self.by_child[:-1], out=counts.T)
        np.cumsum(counts, axis=0, out=counts)
        self.firsts = list(accumulate(self.by_block[-1].tolist(), initial=0))
        self.by_child = np.zeros((0, 0), np.int64)

    def of_block(self, block: int) -> tuple[memoryview, memoryview]:
        """Return the start and stop of a block's rows in the segment of each child."""
        return self.by_block[block].data, self.by_block[block + 1].data


class StoredOffsets:
    """The offsets of a call on a cluster, of which each task reads those of its child or block.

    A child has a segment of its own, which begins with its first tuple.
    """

    firsts: Sequence[int] = ()

    def __init__(self, store: SegmentStore, children: int, blocks: int) -> None:
        self._store, self._children, self._blocks = store, children, blocks

    def of_child(self, number: int) -> tuple[memoryview, memoryview]:
        return self._lines(0, number, self._blocks)

    def of_block(self, block: int) -> tuple[memoryview, memoryview]:
        return self._lines(1, block, self._children)

    def _lines(self, table: int, number: int, count: int) -> tuple[memoryview, memoryview]:
        lines = _zeros(2 * count)
        self._store.read(offsets_segment(table), 8 * count * number, lines.cast("B"))
        return lines[:count], lines[count:]


def offsets_segment(table: int) -> Segment:
    """Return the segment of a table of offsets: by child (0), or by block (1)."""
    return Segment("offsets", (), table, 0)


class Group(NamedTuple):
    """A box of rows, and the tuples that select from them, in order; with no path, those of a call.

    path: the numbers of its ancestors and of itself among their siblings. first: its first tuple
    among those of its parent. parent: its parent; starts, stops: the range of its tuples in the
    segment of each of the parent's blocks.
    """

    path: tuple[int, ...]
    box: Box
    tuples: int
    first: int = 0
    parent: Group | None = None
    starts: Sequence[int] = ()
    stops: Sequence[int] = ()

    @property
    def depth(self) -> int:
        return len(self.path)

    @property
    def row_count(self) -> int:
        return prod(grid.box_shape(self.box))


class Batch(NamedTuple):
    """Consecutive tuples of a group. slices: (block, start, stop) in the segments of its parent."""

    slices: list[tuple[int, int, int]]
    tuples: int


class Arrays(NamedTuple):
    """The arrays of a run. updates: None for gathers. output: None if nothing is written."""

    data: Reader
    indices: Reader
    updates: Reader | None
    output: Writer | None


class Work:
    """The state that the tasks of a run share: open arrays, bound plans, buffers and offsets."""

    def __init__(
        self,
        inference: Inference,
        partitioning: Partitioning,
        arrays: Arrays,
        store: SegmentStore | None,
    ) -> None:
        self.inference, self.partitioning, self.arrays = inference, partitioning, arrays
        self.is_shared = isinstance(store, SharedStore)
        self._store = store
        plan, dtype = inference.plan, inference.dtype
        if check.is_error(plan):
            plan = plan._replace(attributes=plan.attributes._replace(out_of_bounds="error"))
        self.attributes = plan.attributes
        self.plan = plan.with_index_tuples
        self.rows = bind.bind_rows(self.plan)
        # The bytes of a row.
        self.fill_bytes = inference.fill_bytes * (partitioning.rows.width // dtype.itemsize)
        order = scatters.arithmetic_order(dtype, self.attributes.reduction)
        updates = inference.inputs.get("updates")
        # Whether arithmetic needs another byte order of updates.
        self.swaps_updates = bool(updates and dtype.swap_size > 1 and updates.dtype.order != order)
        box = tuple((0, size) for size in partitioning.rows.shape)
        self.root = Group((), box, partitioning.rows.tuples)
        self.tables: dict[tuple[int, ...], OffsetTable | StoredOffsets] = {}  # by path of groups
        self._boxes: dict[tuple[int, Shape], _kernels.Boxes] = {}  # by depth and shape of groups
        depths = range(partitioning.depth)
        self._spilled_per_tuple = [partitioning.spilled_per_tuple(depth) for depth in depths]
        self._partition_buffers = threads.BufferPool(
            prod(partitioning.partition_shape) * partitioning.rows.width
        )
        self._scratch = threads.BufferPool(partitioning.scratch_bytes)

    @property
    def store(self) -> SegmentStore:
        assert self._store is not None, "a check of indices spills nothing"
        return self._store

    def tuple_count(self, group: Group, block: int) -> int:
        """Return the number of tuples of a block."""
        size = self.partitioning.block_tuples
        return min(size, group.tuples - block * size)

    def boxes(self, group: Group) -> _kernels.Boxes:
        """Return the children of a group, bound for kernels."""
        key = group.depth, grid.box_shape(group.box)
        if key not in self._boxes:
            self._boxes[key] = self.partitioning.boxes(group.box, group.depth)
        return self._boxes[key]

    def id_bytes(self, group: Group) -> int:
        """Return the bytes of a partition ID."""
        return 1 if self.boxes(group).partitions + self.drops(group) <= MAX_BYTE_IDS else 2

    def drops(self, group: Group) -> bool:
        """Whether split has an ID for dropped tuples."""
        return self.partitioning.rows.drops and not group.depth

    def child(self, group: Group, number: int) -> Group:
        """Return a child of a group."""
        starts, stops = self.tables[group.path].of_child(number)
        box, first = self.partitioning.child(group.box, group.depth, number), sum(starts)
        return Group((*group.path, number), box, sum(stops) - first, first, group, starts, stops)

    def split_segment(self, group: Group, block: int) -> Segment:
        """Return the segment of a block: its row indices, and its updates or partition IDs."""
        first = block * self.partitioning.block_tuples * self._spilled_per_tuple[group.depth]
        return Segment("split", group.path, block, first)

    def rows_segment(self, group: Group, number: int, first: int) -> Segment:
        """Return the segment of the rows that the tuples of a child select."""
        return Segment("sweep", group.path, number, first * self.partitioning.rows.width)

    def indices(self, first: int, n: int, allocate: Allocate, are_stored: bool = False) -> Indices:
        """Return the indices of n tuples; are_stored: of those that batches share, once."""
        rows = self.partitioning.rows
        buffer = allocate(n * rows.tuple_bytes)
        if rows.repeats > 1 and not are_stored:
            read_repeated(self.arrays.indices, first, buffer, rows.period, rows.repeats)
        elif buffer:  # tuples may have no components
            read_range(self.arrays.indices, first, buffer)
        return bind.bind_indices(buffer, self.inference.inputs["indices"].dtype, self.attributes)

    @contextmanager
    def partition_buffer(self) -> Iterator[memoryview]:
        """Yield a buffer for a partition of data."""
        buffer = self._partition_buffers.acquire()
        yield buffer
        self._partition_buffers.release(buffer)

    @contextmanager
    def arena(self) -> Iterator[Allocate]:
        """Yield an allocator of scratch memory, aligned to cache lines."""
        buffer, offset = self._scratch.acquire(), 0

        def allocate(nbytes: int) -> memoryview:
            nonlocal offset
            start = offset
            offset += -(-nbytes // LINE) * LINE
            return buffer[start : start + nbytes]

        yield allocate
        self._scratch.release(buffer)

    def batches(self, group: Group, first: int, stop: int) -> Iterator[Batch]:
        """Yield tuples first..stop of a group in batches: of a block, from MAX_SEGMENTS blocks."""
        slices: list[tuple[int, int, int]] = []
        count = position = 0
        for block, (start, end) in enumerate(zip(group.starts, group.stops, strict=True)):
            if start == end:
                continue
            begin, close = max(start, start + first - position), min(end, start + stop - position)
            position += end - start
            if begin < close:
                full = count + close - begin > self.partitioning.block_tuples
                if slices and (full or len(slices) == MAX_SEGMENTS):
                    yield Batch(slices, count)
                    slices, count = [], 0
                slices.append((block, begin, close))
                count += close - begin
            if position >= stop:
                break
        if slices:
            yield Batch(slices, count)

    def read_batch(
        self, group: Group, batch: Batch, local: memoryview, updates: memoryview | None
    ) -> None:
        """Read the row indices of a batch, local to the group, and its updates if any."""
        parent = group.parent
        assert parent is not None, "the tuples of a call are not spilled"
        size, width = self.boxes(parent).row_bytes, self.partitioning.rows.width
        segments = [(self.split_segment(parent, part[0]), *part) for part in batch.slices]
        ranges = [
            (segment, start * size, (stop - start) * size) for segment, _, start, stop in segments
        ]
        read_all(self.store, ranges, local)
        if updates is not None:
            ranges = [
                (
                    segment,
                    self.tuple_count(parent, block) * size + start * width,
                    (stop - start) * width,
                )
                for segment, block, start, stop in segments
            ]
            read_all(self.store, ranges, updates)


def find_out_of_bounds(plan: Plan, indices: Indices, first: int, n: int) -> OutOfBounds | None:
    """Return the indices of n tuples from tuple `first` that are out of bounds, None if none is."""
    addressing, _, components = bind.bind_check(plan)
    number, component, count = _kernels.locate_out_of_bounds(addressing, indices, 0, n)
    if not count:
        return None
    return OutOfBounds(
        first + number, component, indices.value(number * components + component), count
    )


def split(work: Work, group: Group, block: int) -> SplitResult:
    """Sort the tuples of a block by child and spill them; return the partition offsets."""
    partitioning, n, out_of_bounds = work.partitioning, work.tuple_count(group, block), None
    boxes, width = work.boxes(group), partitioning.rows.width
    starts = _zeros(boxes.partitions + work.drops(group) + 1)
    with work.arena() as allocate:
        size = boxes.row_bytes
        ids, local = allocate(n * work.id_bytes(group)), allocate(n * size)
        updates = None if work.arrays.updates is None else allocate(n * width)
        first = block * partitioning.block_tuples
        if group.depth:
            addressing, indices = _read_block(work, group, block, updates, allocate)
            tuples, origin = WorkItem(0, n, 0, 1), 0
        else:
            indices, tuples = work.indices(first, n, allocate), WorkItem(first, n, 0, 0)
            addressing, origin = work.rows, first
        if _kernels.partition_ids(addressing, indices, origin, tuples, boxes, ids, local, starts):
            if group.depth:
                raise changed_error()
            out_of_bounds = find_out_of_bounds(work.plan, indices, first, n)
            if out_of_bounds is None:
                raise OutputError("indices changed during the run")
            return SplitResult(b"", out_of_bounds)
        if not group.depth:
            if work.attributes.out_of_bounds != "error":
                out_of_bounds = find_out_of_bounds(work.plan, indices, first, n)
            if updates is not None:
                assert work.arrays.updates is not None
                read_range(work.arrays.updates, first, updates)
                if work.swaps_updates:
                    copies.swap_bytes(updates, work.inference.dtype.swap_size)
        result = SplitResult(bytes(starts[: boxes.partitions + 1]), out_of_bounds)
        sorted_local = allocate(n * size)
        permute(ids, starts[:-1], local, sorted_local, n, inverse=False)
        views = [sorted_local, ids]
        if updates is not None:
            views[1] = allocate(n * width)
            permute(ids, starts[:-1], updates, views[1], n, inverse=False)
        if work.is_shared and not group.depth:
            views.append(memoryview(result.trailer))
        work.store.write(work.split_segment(group, block), views)
    return result


def _read_block(
    work: Work, group: Group, block: int, updates: memoryview | None, allocate: Allocate
) -> tuple[Addressing, Indices]:
    """Read a block of tuples that the parent's splits spilled, and bind it.

    updates: the buffer to read updates to.
    """
    assert group.parent is not None
    n, first = work.tuple_count(group, block), block * work.partitioning.block_tuples
    size, width, position = work.boxes(group.parent).row_bytes, work.partitioning.rows.width, 0
    local = allocate(n * size)
    for batch in work.batches(group, first, first + n):
        end = position + batch.tuples
        rows = None if updates is None else updates[position * width : end * width]
        work.read_batch(group, batch, local[position * size : end * size], rows)
        position = end
    if position < n:
        raise changed_error()
    addressing, indices, _ = bind_local(group.row_count, local, n, 1)
    return addressing, indices


def sweep(work: Work, group: Group, number: int, mapper: Map | None = None) -> None:
    """Read a child of a group, and gather rows from it, or update and write it.

    mapper: runs the tasks of a child that is a group; None to run them in this thread.
    """
    child = work.child(group, number)
    gathers = work.partitioning.gathers
    if gathers and not child.tuples:
        return
    segment = work.rows_segment(group, number, child.first)
    if child.depth == work.partitioning.depth:
        if gathers:
            work.store.write(segment, _gather(work, child))
        else:
            _update(work, child)
        return
    for _ in run(work, child, mapper or partial(run_serially, work), lambda _: None):
        pass
    if gathers:
        work.store.write(segment, _restored_rows(work, child))
    del work.tables[child.path]


def _gather(work: Work, partition: Group) -> Iterator[memoryview]:
    """Yield the gathered rows of a partition; read only chunks that contain them."""
    row_count, width = partition.row_count, work.partitioning.rows.width
    sizes = grid.box_shape(partition.box)
    steps = tuple(map(min, sizes, work.arrays.data.chunk_shape or sizes))
    is_read = np.zeros(grid.grid_shape(sizes, steps), np.bool_)
    with work.partition_buffer() as partition_buffer:
        buffer = partition_buffer[: row_count * width]
        for batch in work.batches(partition, 0, partition.tuples):
            n = batch.tuples
            with work.arena() as allocate:
                local = allocate(n * 4)
                work.read_batch(partition, batch, local, None)
                if missing := _missing_chunks(local, sizes, steps, is_read):
                    work.arrays.data.read(partition.box, buffer, missing)
                gathered = allocate(n * width)
                addressing, indices, items = bind_local(row_count, local, n, width)
                if _kernels.gather(
                    addressing, buffer, 0, indices, items, gathered, KernelOptions(1)
                ):
                    raise changed_error()
                yield gathered


def _missing_chunks(local: memoryview, sizes: Shape, steps: Shape, is_read: Any) -> list[int]:
    """Return the indices of a partition's unread chunks that contain selected rows.

    local: the rows. sizes, steps: the shapes of the partition and of its chunks. is_read: a flag
    for each chunk, set for the returned chunks.
    """
    if is_read.size == 1:
        missing_chunks = [] if is_read.item() else [0]
        is_read[...] = True
        return missing_chunks
    missing, rows = np.zeros_like(is_read), np.frombuffer(local, np.uint32)
    for first in range(0, len(rows), SELECTED_ROWS):
        try:
            coordinates = np.unravel_index(rows[first : first + SELECTED_ROWS], sizes)
        except ValueError:
            raise changed_error() from None
        missing[tuple(map(np.floor_divide, coordinates, steps))] = True
    missing &= ~is_read
    is_read |= missing
    return np.flatnonzero(missing).tolist()


def _update(work: Work, partition: Group) -> None:
    """Apply the updates of a partition, in order, and write it."""
    width, output = work.partitioning.rows.width, work.arrays.output
    assert output is not None

    def batches() -> Iterator[tuple[memoryview, memoryview]]:
        for batch in work.batches(partition, 0, partition.tuples):
            with work.arena() as allocate:
                local, updates = allocate(batch.tuples * 4), allocate(batch.tuples * width)
                work.read_batch(partition, batch, local, updates)
                yield local, updates

    with work.partition_buffer() as partition_buffer:
        buffer = partition_buffer[: partition.row_count * width]
        work.arrays.data.read(partition.box, buffer)
        if partition.tuples:
            update_rows(work.inference, buffer, width, work.partitioning.rows.tuples, batches())
        output.write(partition.box, buffer)


def update_rows(
    inference: Inference, buffer: Any, width: int, tuples: int, batches: Iterable[tuple[Any, Any]]
) -> None:
    """Apply updates, in order, to a buffer of rows of `width` bytes in data's byte order.

    tuples: at least the number of updates. batches: the indices of rows, and their updates in the
    byte order of arithmetic.
    """
    attributes, dtype, row_count = inference.plan.attributes, inference.dtype, len(buffer) // width
    order = scatters.arithmetic_order(dtype, attributes.reduction)
    swaps = dtype.swap_size > 1 and dtype.order != order
    if swaps:
        copies.swap_bytes(buffer, dtype.swap_size)
    counts, itemsize = None, counting.count_itemsize(attributes, tuples)
    if itemsize:
        counts = UpdateCounts(bytearray(row_count * itemsize), itemsize)
    for local, updates in batches:
        spec = counting.update_spec(updates, width, attributes, dtype, counts)
        bound = bind_local(row_count, local, len(updates) // width, width)
        if _kernels.scatter(*bound, spec, buffer, False, KernelOptions(1)):
            raise changed_error()
    counting.divide_sums(attributes, counts, buffer, width, dtype, 1)
    if swaps:
        copies.swap_bytes(buffer, dtype.swap_size)


def replay(work: Work, group: Group, block: int) -> None:
    """Restore the rows of a block to the order of its tuples, and write them to the output."""
    assert work.arrays.output is not None
    with work.arena() as allocate:
        rows = _restore(work, group, block, allocate)
        write_range(work.arrays.output, block * work.partitioning.block_tuples, rows)


def _restored_rows(work: Work, group: Group) -> Iterator[memoryview]:
    """Yield the rows of all blocks of a group, in the order of its tuples."""
    for block in range(work.partitioning.blocks_of(group.tuples)):
        with work.arena() as allocate:
            yield _restore(work, group, block, allocate)


def _restore(work: Work, group: Group, block: int, allocate: Allocate) -> memoryview:
    """Return the rows of a block, in the order of its tuples."""
    n, width = work.tuple_count(group, block), work.partitioning.rows.width
    offsets = work.tables[group.path]
    starts, stops = offsets.of_block(block)
    counts, firsts = list(map(sub, stops, starts)), offsets.firsts or [0] * len(starts)
    ids, rows, restored = (
        allocate(n * work.id_bytes(group)),
        allocate(n * width),
        allocate(n * width),
    )
    work.store.read(work.split_segment(group, block), n * work.boxes(group).row_bytes, ids)
    selected = [number for number, count in enumerate(counts) if count]
    position = 0
    for first in range(0, len(selected), MAX_SEGMENTS):
        numbers = selected[first : first + MAX_SEGMENTS]
        ranges = [
            (work.rows_segment(group, number, firsts[number]), starts[number] * width,
             counts[number] * width)
            for number in numbers
        ]  # fmt: skip
        end = position + sum(counts[number] for number in numbers) * width
        read_all(work.store, ranges, rows[position:end])
        position = end
    if work.drops(group):
        counts.append(n - sum(counts))
        rows[len(rows) - counts[-1] * width :] = work.fill_bytes * counts[-1]
    table = memoryview(array("q", accumulate(counts[:-1], initial=0)))
    permute(ids, table, rows, restored, n, inverse=True)
    return restored


def find_result(work: Work, phase: str, number: int) -> SplitResult | None:
    """Return the result of a call's split or sweep from its segment, which a killed run wrote.

    Raises OutputError, ValueError or TypeError if the segment is not complete.
    """
    group, partitioning = work.root, work.partitioning
    if phase == "split":
        boxes, n = work.boxes(group), work.tuple_count(group, number)
        moved = work.id_bytes(group) if partitioning.gathers else partitioning.rows.width
        trailer = memoryview(bytearray(8 * (boxes.partitions + 1) + REPORT_BYTES))
        segment = work.split_segment(group, number)
        work.store.read(segment, n * (boxes.row_bytes + moved), trailer)
        return SplitResult.parse(bytes(trailer))
    child = work.child(group, number)
    if child.tuples:
        segment = work.rows_segment(group, number, child.first)
        last = child.tuples * partitioning.rows.width - 1
        work.store.read(segment, last, memoryview(bytearray(1)))
    return None


TASKS: dict[str, Callable[[Work, Group, int], Any]] = {
    "split": split, "sweep": sweep, "replay": replay,
}  # fmt: skip
AddResult = Callable[[int, Any], object]  # receives a task's number and its result


# Runs the tasks of a phase of a group, in any order; passes each result to `add`, one at a time.
Map = Callable[[str, Group, Iterable[int], AddResult], object]


def run_serially(
    work: Work, phase: str, group: Group, numbers: Iterable[int], add: AddResult
) -> None:
    """Run the tasks of a phase in this thread."""
    for number in numbers:
        add(number, TASKS[phase](work, group, number))


def run(
    work: Work, group: Group, mapper: Map, advance: Advance, report: ReportCallback | None = None
) -> Generator[str]:
    """Run split and sweep of a group, and replay of a call; yield each phase before it begins.

    mapper: runs the tasks. advance: a callback for the bytes that the tasks of a call have moved.
    report: receives the bounds report of a call, if the mode allows indices out of bounds.
    """
    partitioning, blocks = work.partitioning, range(work.partitioning.blocks_of(group.tuples))
    children = work.boxes(group).partitions
    table, rows = OffsetTable(children, len(blocks)), partitioning.rows
    reports = BoundsReports(work.inference, rows)

    def add_split(block: int, result: SplitResult) -> None:
        reports.add(result.out_of_bounds)
        if result.offsets:
            table.add(block, result.offsets)
        advance(work.tuple_count(group, block) * rows.tuple_bytes)

    yield "split"
    mapper("split", group, blocks, add_split)
    if report is not None:
        reports.raise_or_report(report)
    work.tables[group.path] = table
    stores = work.is_shared and not group.depth  # a call on a cluster, whose workers need the table
    if stores:
        work.store.write(offsets_segment(0), [as_bytes(table.by_child)])
    yield "sweep"
    is_last = group.depth + 1 == partitioning.depth

    def add_sweep(number: int, _: None) -> None:
        advance(rows.row_count * rows.width // children)

    if is_last or stores:
        mapper("sweep", group, range(children), add_sweep)
    else:
        for number in range(children):
            sweep(work, group, number, mapper)
            add_sweep(number, None)
    if not partitioning.gathers:
        return
    table.transpose()
    if group.depth:
        return
    if stores:
        work.store.write(offsets_segment(1), [as_bytes(table.by_block)])
    yield "replay"
    mapper(
        "replay", group, blocks,
        lambda block, _: advance(work.tuple_count(group, block) * rows.width),
    )  # fmt: skip


class BoundsReports:
    """Collects the bounds reports of tasks for the bounds report of a run.

    rows: of the call, if the tuples that batches share are reported in each batch.
    """

    def __init__(self, inference: Inference, rows: Rows | None = None) -> None:
        self._inference = inference
        self._repeats, self._period = (rows.repeats, rows.period) if rows else (1, 1)
        self._first: OutOfBounds | None = None
        self._count = 0

    def add(self, report: OutOfBounds | None) -> None:
        """Add the report of a block."""
        if report is not None:
            self._count += report.tuples
            self._first = min(self._first or report, report)

    def raise_or_report(self, report: ReportCallback) -> None:
        """Raise BoundsError if an index is out of bounds, or pass it to `report` if allowed."""
        if self._first is None:
            return
        count = self._count // self._repeats
        if not count:  # indices that batches share were read with different values
            raise OutputError("indices changed during the run")
        position, component, value, _ = self._first
        batches, offset = divmod(position, self._repeats * self._period)
        stored = batches * self._period + offset % self._period
        plan = self._inference.plan
        error = check.make_bounds_error(plan, (stored, component, value), count)
        if check.is_error(plan):
            raise error
        report(error)


def changed_error() -> OutputError:
    """Return the error about spilled data that another program has changed."""
    return OutputError("a temporary file changed during the run")


def bind_local(
    row_count: int, local: Any, n: int, width: int
) -> tuple[Addressing, Indices, WorkItem]:
    """Bind the rows of a box, and n local row indices of 4 or 8 bytes each."""
    addressing = Addressing((row_count,), (width,), n, (), (), False)
    return addressing, Indices(local, len(local) // n, True, False), WorkItem(0, n, 0, width)


def permute(ids: Any, starts: Any, rows: Any, out: Any, n: int, inverse: bool) -> None:
    """Sort the rows of tuples stably by partition; inverse: restore the order of tuples."""
    table = memoryview(bytearray(starts)).cast("q")
    if _kernels.permute(ids, table, rows, out, n, inverse):
        raise changed_error()


def _zeros(count: int) -> memoryview:
    return memoryview(bytearray(8 * count)).cast("q")
