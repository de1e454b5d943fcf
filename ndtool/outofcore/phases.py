"""The phases of a run, their tasks, and the state that tasks share."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, count, pairwise
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool import _kernels
from ndtool._kernels import LINE, Addressing, Indices, KernelOptions, UpdateCounts, WorkItem
from ndtool.arrays.boxes import Reader, Writer, read_range, read_repeated, write_range
from ndtool.engine import bind, check, copies, counting, scatters
from ndtool.engine.check import OutOfBounds
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.errors import BoundsError, OutputError
from ndtool.machine.threads import BufferPool
from ndtool.outofcore.partitioning import Partitioning
from ndtool.outofcore.segments import Part, Segment, SegmentStore, SharedStore
from ndtool.rules import grid
from ndtool.rules.dtypes import Dtype
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference
from ndtool.rules.plans import Plan, Shape

SELECTED_ROWS = 1 << 16  # rows of which coordinates are computed together
REPORT_BYTES = 128  # bytes of a block's bounds report in the result of its split
Allocate = Callable[[int], Any]  # returns a buffer of so many bytes
ReportCallback = Callable[[BoundsError], object]  # receives the bounds report
Line = NDArray[np.int64]  # of a table of offsets
NO_OFFSETS: Line = np.zeros(0, np.int64)
Task = tuple[Any, ...]  # the arguments of a phase's function after the group: a number first


@dataclass(eq=False)
class Work:
    """The state that the tasks of a run share: open arrays, spilled segments, and buffers.

    readers: of the arrays that tasks read, by role. output: None if nothing is written.
    """

    inference: Inference
    partitioning: Partitioning
    store: SegmentStore
    readers: Mapping[str, Reader]
    output: Writer | None = None

    def __post_init__(self) -> None:
        plan = self.inference.plan
        if check.is_error(plan):
            plan = plan._replace(attributes=plan.attributes._replace(out_of_bounds="error"))
        self.plan, self.width = plan.with_index_tuples, self.partitioning.rows.width
        self.is_shared = isinstance(self.store, SharedStore)
        self.partitions = BufferPool(prod(self.partitioning.shapes[-1]) * self.width)
        self.scratch = BufferPool(self.partitioning.scratch_bytes)

    @property
    def last_phase(self) -> str:
        """The phase that writes the output."""
        return "replay" if self.partitioning.rows.gathers else "sweep"

    def bind_indices(self, buffer: Any) -> Indices:
        """Bind index tuples for kernels."""
        dtype = self.inference.inputs["indices"].dtype
        return bind.bind_indices(buffer, dtype, self.plan.attributes)


class Group:
    """A box of rows, and the tuples that select from them, in order.

    Tuples of a call are in its arrays, those of another group in a segment of each block of its
    parent. path: the numbers of its ancestors and of itself among their siblings. starts, stops:
    the offsets of its tuples in these segments.
    """

    def __init__(
        self,
        work: Work,
        parent: Group | None = None,
        number: int = 0,
        starts: Line = NO_OFFSETS,
        stops: Line = NO_OFFSETS,
    ) -> None:
        self.work, self.parent, rows = work, parent, work.partitioning.rows
        self.path: tuple[int, ...] = (*parent.path, number) if parent else ()
        self.box: Box = tuple((0, size) for size in rows.shape)
        if parent is not None:
            self.box = work.partitioning.child(parent.box, parent.depth, number)
        self.depth: int = len(self.path)
        self.row_count = prod(grid.box_shape(self.box))
        ends = np.cumsum(stops - starts)
        # Of its tuples in each segment: the end among all its tuples, and in the segment from it.
        self._ends, self._shifts = ends.data, (stops - ends).data
        self.first = int(starts.sum())  # of its tuples among those of its parent
        self.tuples = rows.tuples if parent is None else int(stops.sum()) - self.first
        self.drops = rows.drops and parent is None  # whether split has an ID for dropped tuples
        # Of an index tuple of a call, of a row index of another group.
        self.index_bytes = parent.boxes.row_bytes if parent else rows.tuple_bytes

    @cached_property
    def boxes(self) -> _kernels.Boxes:
        """The children, bound for kernels."""
        return bind.bind_boxes(grid.box_shape(self.box), self.work.partitioning.shapes[self.depth])

    @property
    def spilled_per_tuple(self) -> int:
        """The bytes that split spills for a tuple."""
        return self.work.partitioning.levels[self.depth].spilled["split"]

    def tuple_count(self, block: int) -> int:
        """Return the number of tuples of a block."""
        size = self.work.partitioning.block_tuples
        return min(size, self.tuples - block * size)

    def split_segment(self, block: int) -> Segment:
        """Return the segment of a block: its row indices, and its updates or partition IDs."""
        first = block * self.work.partitioning.block_tuples
        return Segment("split", self.path, block, first * self.spilled_per_tuple)

    @property
    def rows_segment(self) -> Segment:
        """The segment of the rows that its tuples select."""
        return Segment("sweep", self.path[:-1], self.path[-1], self.first * self.work.width)

    def batches(self) -> Iterator[tuple[Allocate, Any, Any]]:
        """Yield its tuples in batches: an allocator of scratch memory, and what `read` returns.

        A batch has all tuples of the group in some segments, at most as many as a block.
        """
        first, size = 0, self.work.partitioning.block_tuples
        while first < self.tuples:
            stop = self._ends[bisect_right(self._ends, first + size) - 1]
            if not first < stop <= first + size:
                raise changed_error()
            with arena(self.work.scratch) as allocate:
                yield allocate, *self.read(first, stop - first, allocate)
            first = stop

    def read(self, first: int, n: int, allocate: Allocate) -> tuple[Any, Any]:
        """Read n tuples: their indices, and their updates in the byte order of arithmetic, if any.

        The indices are index tuples of a call, or of the rows in the box of another group.
        """
        work, parent, size, width = self.work, self.parent, self.index_bytes, self.work.width
        reader, indices = work.readers.get("updates"), allocate(n * size)
        updates: Any = allocate(n * width) if reader else None
        if parent is None:
            if reader:
                read_range(reader, first, updates)
                swap_for_arithmetic(updates, work.inference.inputs["updates"].dtype, work.inference)
            reader, rows = work.readers["indices"], work.partitioning.rows
            if rows.repeats > 1:
                read_repeated(reader, first, indices, rows.period, rows.repeats)
            elif indices:  # tuples may have no components
                read_range(reader, first, indices)
            return indices, updates

        def parts() -> Iterator[Part]:
            start, block = first, bisect_right(self._ends, first)
            while start < first + n:
                stop = min(self._ends[block], first + n)
                if start < stop:
                    segment, offset = parent.split_segment(block), start + self._shifts[block]
                    a, b = start - first, stop - first
                    yield segment, offset * size, indices[a * size : b * size]
                    if updates is not None:
                        offset = parent.tuple_count(block) * size + offset * width
                        yield segment, offset, updates[a * width : b * width]
                start, block = stop, block + 1

        work.store.read(parts())
        return indices, updates


@contextmanager
def arena(pool: BufferPool) -> Iterator[Allocate]:
    """Yield an allocator of memory in a buffer of a pool, aligned to cache lines."""
    buffer, offset = pool.acquire(), 0

    def allocate(nbytes: int) -> memoryview:
        nonlocal offset
        start = offset
        offset += -(-nbytes // LINE) * LINE
        return buffer[start : start + nbytes]

    yield allocate
    pool.release(buffer)


def encode_result(offsets: Any, report: OutOfBounds | None) -> bytes:
    """Encode the result of a split: its partition offsets, and its indices out of bounds.

    These are the last bytes of its segment, too, from which a resumed run reads the result.
    """
    return bytes(offsets) + json.dumps(report).encode().ljust(REPORT_BYTES)


def decode_result(result: bytes | bytearray) -> tuple[Line, OutOfBounds | None]:
    """Decode the result of a split; ValueError or TypeError if it is malformed."""
    report = json.loads(result[-REPORT_BYTES:])
    report = None if report is None else OutOfBounds(*map(int, report))
    return np.frombuffer(result[:-REPORT_BYTES], np.int64), report


def split(group: Group, block: int) -> bytes:
    """Sort the tuples of a block by child and spill them; return the encoded result.

    It has no offsets if an index is out of bounds and the mode does not allow that.
    """
    work, boxes, report = group.work, group.boxes, None
    n, first = group.tuple_count(block), block * work.partitioning.block_tuples
    with arena(work.scratch) as allocate:
        indices, updates = group.read(first, n, allocate)
        if group.parent is None:
            rows, bound = bind.bind_rows(work.plan), work.bind_indices(indices)
            ordered = sort_tuples(rows, bound, first, n, boxes, group.drops, allocate)
            if ordered is None or work.plan.attributes.out_of_bounds != "error":
                report = check.find_out_of_bounds(work.plan, bound, first, n)
        else:
            rows, bound, _ = bind_local(group.row_count, indices, n, 1)
            ordered = sort_tuples(rows, bound, 0, n, boxes, False, allocate)
        if ordered is None:
            if report is None:
                raise changed_error("a temporary file" if group.parent else "indices")
            return encode_result(b"", report)
        result = encode_result(ordered.offsets[: boxes.partitions + 1], report)
        views = [ordered.local, ordered.ids]
        if updates is not None:
            views[1] = allocate(n * work.width)
            sort_rows(ordered.ids, ordered.offsets, updates, views[1])
        if work.is_shared and group.parent is None:
            views.append(result)
        work.store.write(group.split_segment(block), views)
    return result


def run_serially(phase: str, group: Group, tasks: Iterable[Task]) -> Results:
    """Run the tasks of a phase in this thread, see Map."""
    return ((task[0], TASKS[phase](group, *task)) for task in tasks)


def sweep(group: Group, number: int, starts: Line, stops: Line, mapper: Map = run_serially) -> None:
    """Read a child of a group, and gather rows from it, or update and write it.

    starts, stops: of its tuples in the segment of each block. mapper: runs the tasks of a child
    that is a group.
    """
    work, partitioning = group.work, group.work.partitioning
    child = Group(work, group, number, starts, stops)
    if partitioning.rows.gathers and not child.tuples:
        return
    if child.depth < partitioning.depth:
        for _ in run(child, mapper):
            pass
    elif partitioning.rows.gathers:
        work.store.write(child.rows_segment, _gather(child))
    else:
        _update(child)


def _gather(partition: Group) -> Iterator[memoryview]:
    """Yield the gathered rows of a partition; read only chunks that contain them."""
    work, row_count, width = partition.work, partition.row_count, partition.work.width
    data, sizes = work.readers["data"], grid.box_shape(partition.box)
    steps = tuple(map(min, sizes, data.chunk_shape or sizes))
    is_read = np.zeros(grid.grid_shape(sizes, steps), np.bool_)
    with arena(work.partitions) as allocate_rows:
        buffer = allocate_rows(row_count * width)
        for allocate, local, _ in partition.batches():
            rows = np.frombuffer(local, f"u{partition.index_bytes}")
            if missing := _missing_chunks(rows, sizes, steps, is_read):
                data.read(partition.box, buffer, missing)
            gathered = allocate(len(rows) * width)
            bound = bind_local(row_count, local, len(rows), width)
            if _kernels.gather(bound[0], buffer, 0, *bound[1:], gathered, KernelOptions(1)):
                raise changed_error()
            yield gathered


def _missing_chunks(rows: Any, sizes: Shape, steps: Shape, is_read: Any) -> list[int]:
    """Return the indices of a partition's unread chunks that contain selected rows.

    sizes, steps: the shapes of the partition and of its chunks. is_read: a flag
    for each chunk, set for the returned chunks.
    """
    has_rows = np.full_like(is_read, is_read.size == 1)
    for first in range(0, len(rows) if is_read.size > 1 else 0, SELECTED_ROWS):
        try:
            coordinates = np.unravel_index(rows[first : first + SELECTED_ROWS], sizes)
        except ValueError:
            raise changed_error() from None
        has_rows[tuple(map(np.floor_divide, coordinates, steps))] = True
    missing = np.flatnonzero(has_rows & ~is_read).tolist()
    is_read |= has_rows
    return missing


def _update(partition: Group) -> None:
    """Apply the updates of a partition, in order, and write it."""
    work, tuples = partition.work, partition.work.partitioning.rows.tuples
    assert work.output is not None
    with arena(work.partitions) as allocate:
        buffer = allocate(partition.row_count * work.width)
        work.readers["data"].read(partition.box, buffer)
        if partition.tuples:
            batches = ((local, updates) for _, local, updates in partition.batches())
            update_rows(work.inference, buffer, work.width, tuples, batches)
        work.output.write(partition.box, buffer)


def update_rows(
    inference: Inference, buffer: Any, width: int, tuples: int, batches: Iterable[tuple[Any, Any]]
) -> None:
    """Apply updates, in order, to a buffer of rows of `width` bytes in data's byte order.

    tuples: at least the number of updates. batches: the indices of rows, and their updates in the
    byte order of arithmetic.
    """
    attributes, dtype, row_count = inference.plan.attributes, inference.dtype, len(buffer) // width
    swap_for_arithmetic(buffer, dtype, inference)
    counts, itemsize = None, counting.count_itemsize(attributes, tuples)
    if itemsize:
        counts = UpdateCounts(bytearray(row_count * itemsize), itemsize)
    for local, updates in batches:
        spec = counting.update_spec(updates, width, attributes, dtype, counts)
        bound = bind_local(row_count, local, len(updates) // width, width)
        if _kernels.scatter(*bound, spec, buffer, False, KernelOptions(1)):
            raise changed_error()
    counting.divide_sums(attributes, counts, buffer, width, dtype, 1)
    swap_for_arithmetic(buffer, dtype, inference)


def swap_for_arithmetic(buffer: Any, dtype: Dtype, inference: Inference) -> None:
    """Swap the bytes of elements if arithmetic needs them in the other byte order."""
    order = scatters.arithmetic_order(inference.dtype, inference.plan.attributes.reduction)
    if dtype.swap_size > 1 and dtype.order != order:
        copies.swap_bytes(buffer, dtype.swap_size)


def replay(group: Group, block: int, starts: Line, stops: Line) -> None:
    """Restore the rows of a block to the order of its tuples, and write them to the output.

    starts, stops: of its rows in the rows of each child.
    """
    assert group.work.output is not None
    for rows in _restored_rows(group, [(block, starts, stops)]):
        write_range(group.work.output, block * group.work.partitioning.block_tuples, rows)


def _restored_rows(group: Group, replays: Iterable[Task]) -> Iterator[Any]:
    """Yield the rows of each block of replays, in the order of its tuples."""
    work, boxes, width = group.work, group.boxes, group.work.width
    fill = work.inference.fill_bytes * (width // work.inference.dtype.itemsize) * group.drops

    def parts(block: int, starts: Line, ends: list[int], ids: Any, rows: Any) -> Iterator[Part]:
        yield group.split_segment(block), len(rows) // width * boxes.row_bytes, ids
        for number, start in enumerate(starts.tolist()):
            if part := rows[ends[number] * width : ends[number + 1] * width]:
                yield Segment("sweep", group.path, number, 0), start * width, part

    for block, starts, stops in replays:
        n, ends = group.tuple_count(block), [*accumulate((stops - starts).tolist(), initial=0)]
        with arena(work.scratch) as allocate:
            ids = allocate(n * bind.id_bytes(boxes.partitions + group.drops))
            rows, restored = allocate(n * width), allocate(n * width)
            work.store.read(parts(block, starts, ends, ids, rows))
            offsets = [*(ends if group.drops else ends[:-1]), n]
            restore_rows(ids, offsets, rows, restored, fill)
            yield restored


def find_result(group: Group, phase: str, number: int, *lines: Line) -> bytes:
    """Return the result of a call's split or sweep from its segment, which a killed run wrote.

    Raises OutputError, ValueError or TypeError if the segment is not complete.
    """
    if phase == "split":
        segment, size = group.split_segment(number), 8 * (group.boxes.partitions + 1) + REPORT_BYTES
        end = group.tuple_count(number) * group.spilled_per_tuple + size
    else:
        child = Group(group.work, group, number, *lines)
        segment, end = child.rows_segment, child.tuples * group.work.width
        size = min(1, end)
    result = bytearray(size)
    group.work.store.read([(segment, end - size, memoryview(result))])
    if phase == "split":
        decode_result(result)
    return bytes(result)


TASKS: dict[str, Callable[..., Any]] = {"split": split, "sweep": sweep, "replay": replay}

Results = Iterable[tuple[int, Any]]  # of tasks, by their numbers, in any order
Map = Callable[[str, Group, Iterable[Task]], Results]  # runs the tasks of a phase of a group


def run(
    group: Group,
    mapper: Map,
    progress: ProgressCallback = ignore_progress,
    report: ReportCallback | None = None,
) -> Generator[str]:
    """Run split, sweep and replay of a group; yield each phase of a call before it begins.

    mapper: runs the tasks. progress: receives the fraction of tasks that are complete. report:
    receives the bounds report of a call, if the mode allows indices out of bounds.
    """
    work, partitioning = group.work, group.work.partitioning
    blocks, children = range(-(-group.tuples // partitioning.block_tuples)), group.boxes.partitions
    # In column i + 1, the offsets of the children in the segment of block i, in tuples.
    offsets = np.zeros((children + 1, len(blocks) + 1), np.int64)
    found: OutOfBounds | None = None
    total, done = children + len(blocks) * (1 + partitioning.rows.gathers), count(1)

    yield "split"
    for block, result in mapper("split", group, ((block,) for block in blocks)):
        column, out_of_bounds = decode_result(result)
        found = check.merge((found, out_of_bounds))
        if len(column):
            offsets[:, block + 1] = column
        progress(next(done) / total)
    if report is not None:
        raise_or_report(work.inference.plan, found, report, partitioning.rows.repeats)
    yield "sweep"
    sweeps = ((number, *lines) for number, lines in enumerate(pairwise(offsets[:, 1:])))
    for _ in mapper("sweep", group, sweeps):
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
        work.store.write(group.rows_segment, _restored_rows(group, replays))
        return
    yield "replay"
    for _ in mapper("replay", group, replays):
        progress(next(done) / total)


def raise_or_report(
    plan: Plan, found: OutOfBounds | None, report: ReportCallback, repeats: int = 1
) -> None:
    """Raise BoundsError if an index is out of bounds, or pass it to `report` if allowed.

    repeats: in how many consecutive batches the tuples that these share were found.
    """
    if found is None:
        return
    batch, position = divmod(found.position, plan.tuples_per_batch)
    position += batch // repeats * plan.tuples_per_batch
    found = found._replace(position=position, tuples=found.tuples // repeats)
    if not found.tuples:  # indices that batches share were read with different values
        raise changed_error("indices")
    error = check.make_bounds_error(plan, found)
    if check.is_error(plan):
        raise error
    report(error)


def changed_error(changed: str = "a temporary file") -> OutputError:
    """Return the error about bytes that another program has changed."""
    return OutputError(f"{changed} changed during the run")


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


def sort_rows(ids: Any, offsets: Any, rows: Any, out: Any, inverse: bool = False) -> None:
    """Sort the rows of tuples stably by partition, see SortedTuples; inverse: restore the order."""
    table = array("q", offsets[:-1])  # the kernel advances them
    if _kernels.permute(ids, table, rows, out, offsets[-1], inverse):
        raise changed_error()


def restore_rows(ids: Any, offsets: Any, rows: Any, out: Any, fill: bytes = b"") -> None:
    """Restore sorted rows to the order of tuples; fill: the rows of the last partition, if any."""
    if fill:
        rows[offsets[-2] * len(fill) :] = fill * (offsets[-1] - offsets[-2])
    sort_rows(ids, offsets, rows, out, inverse=True)
