"""The phases of a run, their tasks, and the state that tasks share."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, count, pairwise, starmap
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import _kernels
from ndtool._kernels import LINE, Addressing, Indices, KernelOptions, UpdateCounts, WorkItem
from ndtool.arrays.boxes import Reader, Writer, read_range, read_repeated, write_range
from ndtool.engine import bind, check, copies, counting, scatters
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.errors import BoundsError, OutputError
from ndtool.machine import threads
from ndtool.outofcore.partitioning import MAX_SEGMENTS, Partitioning, Rows
from ndtool.outofcore.segments import Range, Segment, SegmentStore, SharedStore
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference
from ndtool.rules.plans import Plan, Shape

SELECTED_ROWS = 1 << 16  # rows of which coordinates are computed together
REPORT_BYTES = 128  # bytes of a block's bounds report in the trailer of its segment
Allocate = Callable[[int], Any]  # returns a buffer of so many bytes
ReportCallback = Callable[[BoundsError], object]  # receives the bounds report
Line = NDArray[np.int64]  # of a table of offsets
# Consecutive tuples of a group: the block of its parent, start and stop.
Batch = list[tuple[int, int, int]]
Task = tuple[Any, ...]  # the arguments of a phase's function after the group: a number first


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


class Arrays(NamedTuple):
    """The arrays of a run. updates: None for gathers. output: None if nothing is written."""

    data: Reader
    indices: Reader
    updates: Reader | None
    output: Writer | None


class Work:
    """The state that the tasks of a run share: open arrays, bound plans, buffers and offsets."""

    def __init__(
        self, inference: Inference, partitioning: Partitioning, arrays: Arrays, store: Any
    ) -> None:
        """store: the store of segments, None if nothing is spilled."""
        self.inference, self.partitioning, self.arrays = inference, partitioning, arrays
        self.is_shared = isinstance(store, SharedStore)
        self.store: SegmentStore = store
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
        self._boxes: dict[tuple[int, Shape], _kernels.Boxes] = {}  # by depth and shape of groups
        self._spilled_per_tuple = [level.spilled["split"] for level in partitioning.levels]
        self._partition_buffers = threads.BufferPool(
            prod(partitioning.shapes[-1]) * partitioning.rows.width
        )
        self._scratch = threads.BufferPool(partitioning.scratch_bytes)

    @property
    def last_phase(self) -> str:
        """The phase that writes the output."""
        return "replay" if self.partitioning.rows.gathers else "sweep"

    def tuple_count(self, group: Group, block: int) -> int:
        """Return the number of tuples of a block."""
        size = self.partitioning.block_tuples
        return min(size, group.tuples - block * size)

    def boxes(self, group: Group) -> _kernels.Boxes:
        """Return the children of a group, bound for kernels."""
        key = group.depth, grid.box_shape(group.box)
        if key not in self._boxes:
            self._boxes[key] = bind.bind_boxes(key[1], self.partitioning.shapes[group.depth])
        return self._boxes[key]

    def id_bytes(self, group: Group) -> int:
        """Return the bytes of a partition ID."""
        return bind.id_bytes(self.boxes(group).partitions + self.drops(group))

    def row_bytes(self, group: Group) -> int:
        """Return the bytes of a row index in a group, by which its parent refers to its rows."""
        assert group.parent is not None, "the tuples of a call are not spilled"
        return self.boxes(group.parent).row_bytes

    def drops(self, group: Group) -> bool:
        """Whether split has an ID for dropped tuples."""
        return self.partitioning.rows.drops and not group.depth

    def child(self, group: Group, number: int, starts: Line, stops: Line) -> Group:
        """Return a child of a group; starts, stops: of its tuples in the segment of each block."""
        box, first = self.partitioning.child(group.box, group.depth, number), int(starts.sum())
        path, tuples = (*group.path, number), int(stops.sum()) - first
        return Group(path, box, tuples, first, group, starts.data, stops.data)

    def split_segment(self, group: Group, block: int) -> Segment:
        """Return the segment of a block: its row indices, and its updates or partition IDs."""
        first = block * self.partitioning.block_tuples * self._spilled_per_tuple[group.depth]
        return Segment("split", group.path, block, first)

    def rows_segment(self, path: tuple[int, ...], first: int = 0) -> Segment:
        """Return the segment of the rows that the tuples of a group select, see Group."""
        return Segment("sweep", path[:-1], path[-1], first * self.partitioning.rows.width)

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
    def partition_buffer(self, partition: Group) -> Iterator[memoryview]:
        """Yield a buffer for a partition of data."""
        buffer = self._partition_buffers.acquire()
        yield buffer[: partition.row_count * self.partitioning.rows.width]
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
        batch: Batch = []
        count = position = 0
        for block, (start, end) in enumerate(zip(group.starts, group.stops, strict=True)):
            begin, close = max(start, start + first - position), min(end, start + stop - position)
            position += end - start
            if begin < close:
                full = count + close - begin > self.partitioning.block_tuples
                if batch and (full or len(batch) == MAX_SEGMENTS):
                    yield batch
                    batch, count = [], 0
                batch.append((block, begin, close))
                count += close - begin
            if position >= stop:
                break
        if batch:
            yield batch

    def read_batch(
        self, group: Group, batch: Batch, local: memoryview, updates: memoryview | None
    ) -> None:
        """Read the row indices of a batch, local to the group, and its updates if any."""
        parent, size, width = group.parent, self.row_bytes(group), self.partitioning.rows.width
        assert parent is not None

        def ranges(width: int, follows: int) -> Iterator[Range]:
            for block, start, stop in batch:
                first = follows * self.tuple_count(parent, block) * size + start * width
                yield self.split_segment(parent, block), first, (stop - start) * width

        self.store.read_all(ranges(size, 0), local)
        if updates is not None:
            self.store.read_all(ranges(width, 1), updates)


def count_tuples(batch: Batch) -> int:
    """Return the number of tuples of a batch."""
    return sum(stop - start for _, start, stop in batch)


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
    with work.arena() as allocate:
        updates = None if work.arrays.updates is None else allocate(n * width)
        first = block * partitioning.block_tuples
        if group.depth:
            rows, indices = _read_block(work, group, block, updates, allocate)
            ordered = sort_tuples(rows, indices, 0, n, boxes, False, allocate)
            if ordered is None:
                raise changed_error()
        else:
            indices, drops = work.indices(first, n, allocate), work.drops(group)
            ordered = sort_tuples(work.rows, indices, first, n, boxes, drops, allocate)
            if ordered is None or work.attributes.out_of_bounds != "error":
                out_of_bounds = find_out_of_bounds(work.plan, indices, first, n)
            if ordered is None:
                if out_of_bounds is None:
                    raise OutputError("indices changed during the run")
                return SplitResult(b"", out_of_bounds)
            if updates is not None:
                assert work.arrays.updates is not None
                read_range(work.arrays.updates, first, updates)
                if work.swaps_updates:
                    copies.swap_bytes(updates, work.inference.dtype.swap_size)
        result = SplitResult(bytes(ordered.offsets[: boxes.partitions + 1]), out_of_bounds)
        views = [ordered.local, ordered.ids]
        if updates is not None:
            views[1] = allocate(n * width)
            sort_rows(ordered.ids, ordered.offsets, updates, views[1])
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
    n, first = work.tuple_count(group, block), block * work.partitioning.block_tuples
    size, width, position = work.row_bytes(group), work.partitioning.rows.width, 0
    local = allocate(n * size)
    for batch in work.batches(group, first, first + n):
        end = position + count_tuples(batch)
        rows = None if updates is None else updates[position * width : end * width]
        work.read_batch(group, batch, local[position * size : end * size], rows)
        position = end
    if position < n:
        raise changed_error()
    addressing, indices, _ = bind_local(group.row_count, local, n, 1)
    return addressing, indices


def sweep(
    work: Work, group: Group, number: int, starts: Line, stops: Line, mapper: Map | None = None
) -> None:
    """Read a child of a group, and gather rows from it, or update and write it.

    starts, stops: of its tuples in the segment of each block. mapper: runs the tasks of a child
    that is a group; None to run them in this thread.
    """
    child = work.child(group, number, starts, stops)
    gathers = work.partitioning.rows.gathers
    if gathers and not child.tuples:
        return
    if child.depth < work.partitioning.depth:
        for _ in run(work, child, mapper or partial(_run_serially, work)):
            pass
    elif gathers:
        work.store.write(work.rows_segment(child.path, child.first), _gather(work, child))
    else:
        _update(work, child)


def _run_serially(
    work: Work, phase: str, group: Group, tasks: Iterable[Task]
) -> Iterator[tuple[int, Any]]:
    """Run the tasks of a phase in this thread."""
    return ((task[0], TASKS[phase](work, group, *task)) for task in tasks)


def _gather(work: Work, partition: Group) -> Iterator[memoryview]:
    """Yield the gathered rows of a partition; read only chunks that contain them."""
    row_count, width = partition.row_count, work.partitioning.rows.width
    sizes = grid.box_shape(partition.box)
    steps = tuple(map(min, sizes, work.arrays.data.chunk_shape or sizes))
    is_read = np.zeros(grid.grid_shape(sizes, steps), np.bool_)
    with work.partition_buffer(partition) as buffer:
        for batch in work.batches(partition, 0, partition.tuples):
            n = count_tuples(batch)
            with work.arena() as allocate:
                local = allocate(n * work.row_bytes(partition))
                work.read_batch(partition, batch, local, None)
                if missing := _missing_chunks(local, n, sizes, steps, is_read):
                    work.arrays.data.read(partition.box, buffer, missing)
                gathered = allocate(n * width)
                addressing, indices, items = bind_local(row_count, local, n, width)
                if _kernels.gather(
                    addressing, buffer, 0, indices, items, gathered, KernelOptions(1)
                ):
                    raise changed_error()
                yield gathered


def _missing_chunks(
    local: memoryview, n: int, sizes: Shape, steps: Shape, is_read: Any
) -> list[int]:
    """Return the indices of a partition's unread chunks that contain selected rows.

    local: the n rows. sizes, steps: the shapes of the partition and of its chunks. is_read: a flag
    for each chunk, set for the returned chunks.
    """
    if is_read.size == 1:
        missing_chunks = [] if is_read.item() else [0]
        is_read[...] = True
        return missing_chunks
    missing, rows = np.zeros_like(is_read), np.frombuffer(local, f"u{len(local) // n}")
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
                n = count_tuples(batch)
                local = allocate(n * work.row_bytes(partition))
                updates = allocate(n * width)
                work.read_batch(partition, batch, local, updates)
                yield local, updates

    with work.partition_buffer(partition) as buffer:
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


def replay(work: Work, group: Group, block: int, starts: Line, stops: Line) -> None:
    """Restore the rows of a block to the order of its tuples, and write them to the output.

    starts, stops: of its rows in the rows of each child.
    """
    assert work.arrays.output is not None
    with work.arena() as allocate:
        rows = _restore(work, allocate, group, block, starts, stops)
        write_range(work.arrays.output, block * work.partitioning.block_tuples, rows)


def _restore(
    work: Work, allocate: Allocate, group: Group, block: int, starts: Line, stops: Line
) -> Any:
    """Return the rows of a block, in the order of its tuples."""
    n, width = work.tuple_count(group, block), work.partitioning.rows.width
    firsts, counts = starts.tolist(), (stops - starts).tolist()
    ids, rows, restored = (
        allocate(n * work.id_bytes(group)),
        allocate(n * width),
        allocate(n * width),
    )
    work.store.read(work.split_segment(group, block), n * work.boxes(group).row_bytes, ids)
    ranges = (
        (work.rows_segment((*group.path, number)), first * width, count * width)
        for number, (first, count) in enumerate(zip(firsts, counts, strict=True))
        if count
    )
    work.store.read_all(ranges, rows[: sum(counts) * width])
    drops = work.drops(group)
    offsets = [*accumulate(counts if drops else counts[:-1], initial=0), n]
    restore_rows(ids, offsets, rows, restored, work.fill_bytes if drops else b"")
    return restored


def find_result(work: Work, phase: str, number: int, *lines: Line) -> SplitResult | None:
    """Return the result of a call's split or sweep from its segment, which a killed run wrote.

    Raises OutputError, ValueError or TypeError if the segment is not complete.
    """
    group, width = work.root, work.partitioning.rows.width
    if phase == "split":
        boxes, n = work.boxes(group), work.tuple_count(group, number)
        moved = work.id_bytes(group) if work.partitioning.rows.gathers else width
        trailer = memoryview(bytearray(8 * (boxes.partitions + 1) + REPORT_BYTES))
        segment = work.split_segment(group, number)
        work.store.read(segment, n * (boxes.row_bytes + moved), trailer)
        return SplitResult.parse(bytes(trailer))
    child = work.child(group, number, *lines)
    if child.tuples:
        last = child.tuples * width - 1
        work.store.read(work.rows_segment(child.path), last, memoryview(bytearray(1)))
    return None


TASKS: dict[str, Callable[..., Any]] = {"split": split, "sweep": sweep, "replay": replay}


# Runs the tasks of a phase of a group; yields the number and the result of each, in any order.
Map = Callable[[str, Group, Iterable[Task]], Iterable[tuple[int, Any]]]


def run(
    work: Work,
    group: Group,
    mapper: Map,
    progress: ProgressCallback = ignore_progress,
    report: ReportCallback | None = None,
) -> Generator[str]:
    """Run split, sweep and replay of a group; yield each phase of a call before it begins.

    mapper: runs the tasks. progress: receives the fraction of tasks that are complete. report:
    receives the bounds report of a call, if the mode allows indices out of bounds.
    """
    partitioning = work.partitioning
    blocks = range(-(-group.tuples // partitioning.block_tuples))
    children = work.boxes(group).partitions
    # In column i + 1, the offsets of the children in the segment of block i, in tuples.
    offsets = np.zeros((children + 1, len(blocks) + 1), np.int64)
    reports = BoundsReports(work.inference, partitioning.rows)
    total, done = children + len(blocks) * (1 + partitioning.rows.gathers), count(1)

    yield "split"
    for block, result in mapper("split", group, ((block,) for block in blocks)):
        reports.add(result.out_of_bounds)
        if result.offsets:
            offsets[:, block + 1] = np.frombuffer(result.offsets, np.int64)
        progress(next(done) / total)
    if report is not None:
        reports.raise_or_report(report)
    yield "sweep"
    sweeps = ((number, *lines) for number, lines in enumerate(pairwise(offsets[:, 1:])))
    if group.depth + 1 == partitioning.depth or (work.is_shared and not group.depth):
        swept: Iterable[object] = mapper("sweep", group, sweeps)
    else:  # groups one after another, each on all threads
        swept = starmap(partial(sweep, work, group, mapper=mapper), sweeps)
    for _ in swept:
        progress(next(done) / total)
    if not partitioning.rows.gathers:
        return
    first = 0
    for line, next_line in pairwise(offsets):  # now those of each block in the rows of a child
        line[1:] = np.cumsum(next_line[1:] - line[1:])
        if not work.is_shared:  # which count from the first row of all children
            line += first
            first = line[-1]
    replays = ((block, offsets[:-1, block], offsets[:-1, block + 1]) for block in blocks)
    if group.depth:
        segment = work.rows_segment(group.path, group.first)
        work.store.write(segment, _restored_rows(work, group, replays))
        return
    yield "replay"
    for _ in mapper("replay", group, replays):
        progress(next(done) / total)


def _restored_rows(work: Work, group: Group, replays: Iterable[Task]) -> Iterator[memoryview]:
    """Yield the rows of all blocks of a group, in the order of its tuples."""
    for task in replays:
        with work.arena() as allocate:
            yield _restore(work, allocate, group, *task)


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


class SortedTuples(NamedTuple):
    """The order of tuples by partition: the partition ID of each, and the sorted row indices.

    offsets: of each partition in the sorted tuples, and the end; the last partition is of dropped
    tuples, if any may be.
    """

    ids: Any
    offsets: Any
    local: Any


def sort_tuples(
    rows: Addressing, indices: Indices, first: int, n: int, boxes: _kernels.Boxes, drops: bool,
    allocate: Allocate,
) -> SortedTuples | None:  # fmt: skip
    """Sort n tuples stably by partition; None if an index is out of bounds.

    first: the number of the first one, if `rows` gives a coordinate by it. boxes: the partitions.
    drops: whether tuples may be dropped.
    """
    offsets = memoryview(bytearray(8 * (boxes.partitions + drops + 1))).cast("q")
    ids = allocate(n * bind.id_bytes(boxes.partitions + drops))
    unsorted, local = allocate(n * boxes.row_bytes), allocate(n * boxes.row_bytes)
    item = WorkItem(first, n, 0, 0)
    if _kernels.partition_ids(rows, indices, first, item, boxes, ids, unsorted, offsets):
        return None
    sort_rows(ids, offsets, unsorted, local)
    return SortedTuples(ids, offsets, local)


def sort_rows(ids: Any, offsets: Any, rows: Any, out: Any) -> None:
    """Sort the rows of tuples stably by partition, see SortedTuples."""
    _permute(ids, offsets, rows, out, inverse=False)


def restore_rows(ids: Any, offsets: Any, rows: Any, out: Any, fill: bytes = b"") -> None:
    """Restore sorted rows to the order of tuples; fill: the rows of the last partition, if any."""
    if fill:
        rows[offsets[-2] * len(fill) :] = fill * (offsets[-1] - offsets[-2])
    _permute(ids, offsets, rows, out, inverse=True)


def _permute(ids: Any, offsets: Any, rows: Any, out: Any, inverse: bool) -> None:
    table = array("q", offsets[:-1])  # the kernel advances them
    if _kernels.permute(ids, table, rows, out, offsets[-1], inverse):
        raise changed_error()
