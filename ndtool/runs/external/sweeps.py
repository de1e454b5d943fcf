"""The tasks that sweep a partition of data: gather rows from it, or apply updates to it.

A hot partition, which many tuples select, is swept in ranges of its tuples: each gathers its rows.
Updates whose order does not matter are combined first: `combine` applies a range of updates to
identity elements of the reduction, and `sweep` applies the results. One task applies other updates
in order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ndtool import _kernels
from ndtool._kernels import Addressing, Indices, KernelOptions, UpdateSpec, WorkItem
from ndtool.engine import bind, copies, counting
from ndtool.errors import OutputError
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.reductions import combining_identity
from ndtool.runs.external import spill
from ndtool.runs.external.batches import Allocate, SpilledTuples
from ndtool.runs.external.partitioning import MAX_CHILDREN
from ndtool.runs.external.results import TaskResult
from ndtool.runs.external.tables import Group
from ndtool.runs.external.work import Work

if TYPE_CHECKING:
    from ndtool._kernels import UpdateCounts


def sweep(work: Work, number: int, depth: int = 0) -> TaskResult:
    """Read a partition of data, and gather a range of its rows, or update and write it."""
    partition, range_number = divmod(number, work.partitioning.max_ranges)
    group = work.tables.group(work.partitioning.levels, partition)
    if work.partitioning.gathers:
        return _gather(work, group, number, range_number) if group.tuples else TaskResult(0)
    _update(work, group)
    return TaskResult(0)


def combine(work: Work, number: int, depth: int = 0) -> TaskResult:
    """Combine a range of the updates of a hot partition, and spill the result."""
    partitioning, dtype = work.partitioning, work.inference.dtype
    partition, range_number = divmod(number, partitioning.max_ranges)
    group = work.tables.group(partitioning.levels, partition)
    row_count = partitioning.row_count(partition)
    first, stop = _tuple_range(work, group, range_number)
    segment = spill.Segment(
        "combine", number, (group.segment + range_number) * partitioning.partition_bytes
    )
    with work.partition_buffer() as partition_buffer:
        buffer = partition_buffer[: row_count * partitioning.rows.width]
        identity_element = combining_identity(dtype, work.attributes.reduction)
        for start in range(0, len(buffer), 1 << 20):
            chunk = buffer[start : start + (1 << 20)]
            chunk[:] = identity_element * (len(chunk) // len(identity_element))
        _apply(work, group, first, stop, buffer, None)
        segment = work.store.create(segment)
        work.store.write(segment, 0, buffer)
        work.store.finish(segment)
    return TaskResult(segment.attempt)


def _tuple_range(work: Work, group: Group, range_number: int) -> tuple[int, int]:
    """Return the start and stop of the partition's tuples that a task sweeps."""
    range_tuples = work.partitioning.segment_tuples(group.depth)
    return range_number * range_tuples, min(group.tuples, (range_number + 1) * range_tuples)


def _spilled(work: Work, group: Group) -> SpilledTuples:
    """Return the spilled tuples of a partition."""
    tuples = work.tables.tuples(group.depth, group.number)
    _prefetch(work, group)
    return SpilledTuples(work.partitioning, work.store, tuples)


def _prefetch(work: Work, group: Group) -> None:
    """Prefetch the spilled tuples of all children of a parent when the first child is swept.

    They are contiguous. Without prefetching, each child would take a random read, because reads of
    data evict the spilled tuples from the page cache.
    """
    partitioning, fan_out = work.partitioning, work.partitioning.fan_out(group.depth - 1)
    if group.number % fan_out or not work.store.can_prefetch:
        return
    for number in (group.number, group.number + fan_out):
        if number < partitioning.groups(group.depth):
            tuples = work.tables.tuples(group.depth, number)
            if (
                tuples.parent.tuples * partitioning.spilled_per_tuple(group.depth - 1)
                <= partitioning.memory
            ):
                SpilledTuples(partitioning, work.store, tuples).prefetch()


def _gather(work: Work, group: Group, number: int, range_number: int) -> TaskResult:
    """Gather rows of a partition and spill them; read only chunks that contain them."""
    partitioning, store, width = work.partitioning, work.store, work.partitioning.rows.width
    box, row_count = partitioning.box(group.number), partitioning.row_count(group.number)
    first, stop = _tuple_range(work, group, range_number)
    is_read = bytearray(_chunk_count(work, box))
    segment = store.create(spill.Segment("sweep", number, (group.first + first) * width))
    offset, tuples = 0, _spilled(work, group)
    with work.partition_buffer() as partition_buffer:
        buffer = partition_buffer[: row_count * width]
        for batch in tuples.batches(first, stop):
            n = batch.tuples
            with work.arena() as allocate:
                local = allocate(n * tuples.local_bytes)
                tuples.read_local(batch, local)
                if missing := _missing_chunks(work, box, local, n, allocate, is_read):
                    work.arrays.data.read(box, buffer, missing)
                gathered = allocate(n * width)
                addressing, indices, items = bind_local_rows(row_count, local, n, width)
                if _kernels.gather(
                    addressing, buffer, 0, indices, items, gathered, KernelOptions(1)
                ):
                    raise changed_error()
                store.write(segment, offset, gathered)
                offset += len(gathered)
    store.finish(segment)
    return TaskResult(segment.attempt)


def _chunk_count(work: Work, box: Box) -> int:
    """Return the number of chunks of a partition; 1 if all of them are read together."""
    sizes = grid.box_shape(box)
    count = grid.count_blocks(sizes, work.arrays.data.chunk_shape or sizes)
    return 1 if count > MAX_CHILDREN else count


def _missing_chunks(
    work: Work, box: Box, local: memoryview, n: int, allocate: Allocate, is_read: bytearray
) -> Sequence[int]:
    """Return the indices of a partition's unread chunks that contain selected rows.

    is_read: a flag for each chunk, set for the returned chunks.
    """
    sizes = grid.box_shape(box)
    steps = tuple(map(min, sizes, work.arrays.data.chunk_shape or sizes))
    if len(is_read) == 1:
        is_new, is_read[0] = not is_read[0], 1
        return range(grid.count_blocks(sizes, steps) if is_new else 0)
    boxes = bind.bind_boxes(sizes, steps)
    counts = memoryview(bytearray(8 * (len(is_read) + 1))).cast("q")
    addressing, indices, tuples = bind_local_rows(
        grid.count_blocks(sizes, (1,) * len(sizes)), local, n, 1
    )
    ids, rows = allocate(2 * n), allocate(n * boxes.row_bytes)
    if _kernels.partition_ids(addressing, indices, 0, tuples, boxes, ids, rows, counts):
        raise changed_error()
    missing = [
        chunk
        for chunk, (addressing, b) in enumerate(pairwise(counts))
        if b > addressing and not is_read[chunk]
    ]
    for chunk in missing:
        is_read[chunk] = 1
    return missing


def _update(work: Work, group: Group) -> None:
    """Apply the updates of a partition, in order, and write it."""
    partitioning, dtype = work.partitioning, work.inference.dtype
    width, row_count = partitioning.rows.width, partitioning.row_count(group.number)
    box = partitioning.box(group.number)
    with work.partition_buffer() as partition_buffer:
        buffer = partition_buffer[: row_count * width]
        work.arrays.data.read(box, buffer)
        swaps = bool(group.tuples) and work.swaps_data
        if swaps:
            copies.swap_bytes(buffer, dtype.swap_size)
        counts = None
        if group.tuples and work.attributes.is_counted:
            zeros = memoryview(bytearray(row_count * partitioning.rows.count_bytes))
            counts = counting.bind_counts(work.attributes, zeros, partitioning.rows.tuples, width)
        if partitioning.is_combined(group.tuples):
            _apply_combined(work, group, buffer)
        elif group.tuples:
            _apply(work, group, 0, group.tuples, buffer, counts)
        counting.divide_sums(work.attributes, counts, buffer, width, dtype, 1)
        if swaps:
            copies.swap_bytes(buffer, dtype.swap_size)
        assert work.arrays.output is not None
        work.arrays.output.write(box, buffer)


def _apply(
    work: Work, group: Group, first: int, stop: int, buffer: memoryview,
    counts: UpdateCounts | None,
) -> None:  # fmt: skip
    """Apply updates first..stop of a partition to its rows in a buffer, in order."""
    width, tuples = work.partitioning.rows.width, _spilled(work, group)
    for batch in tuples.batches(first, stop):
        n = batch.tuples
        with work.arena() as allocate:
            local, updates = allocate(n * tuples.local_bytes), allocate(n * width)
            tuples.read_local(batch, local)
            tuples.read_rows(batch, updates)
            _scatter(work, local, n, updates, buffer, width, counts)


def _apply_combined(work: Work, group: Group, buffer: memoryview) -> None:
    """Apply the combined updates of all ranges of a partition, each as updates of one large row."""
    partitioning, zero_index = work.partitioning, memoryview(bytes(8))
    count = -(-group.tuples // partitioning.range_tuples)
    slice_bytes = partitioning.block_tuples * partitioning.rows.width
    for range_number, attempt in enumerate(work.tables.attempts(group, count)):
        start = (group.segment + range_number) * partitioning.partition_bytes
        number = group.number * partitioning.max_ranges + range_number
        segment = spill.Segment("combine", number, start, attempt)
        for first in range(0, len(buffer), slice_bytes):
            rows = buffer[first : first + slice_bytes]
            with work.arena() as allocate:
                updates = allocate(len(rows))
                work.store.read(segment, first, updates)
                _scatter(work, zero_index, 1, updates, rows, len(rows), None)


def _scatter(
    work: Work, local: memoryview, n: int, updates: memoryview, buffer: memoryview, width: int,
    counts: UpdateCounts | None,
) -> None:  # fmt: skip
    spec = UpdateSpec(updates, width, work.attributes.reduction, work.inference.dtype.name, counts)
    addressing, indices, tuples = bind_local_rows(len(buffer) // width, local, n, width)
    if _kernels.scatter(addressing, indices, tuples, spec, buffer, False, KernelOptions(1)):
        raise changed_error()


def bind_local_rows(
    row_count: int, local: memoryview, n: int, width: int, size: int = 4
) -> tuple[Addressing, Indices, WorkItem]:
    """Bind the rows of a group, and n local row indices of `size` bytes each."""
    addressing = Addressing((row_count,), (width,), n, (), (), False)
    return addressing, Indices(local, size, True, False), WorkItem(0, n, 0, width)


def changed_error() -> OutputError:
    """Return the error about spilled data that another program has changed."""
    return OutputError("a temporary file changed during the run")
