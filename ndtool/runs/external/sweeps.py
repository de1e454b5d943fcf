"""The tasks of a partition of data: rows gathered from it, or updates applied to it.

A hot partition, which many tuples select, is swept in ranges of its tuples: each gathers its rows.
Updates whose order does not matter are combined first: `combine` applies a range of them to neutral
elements, and sweep applies the results. Other updates are applied in order, by one task.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ndtool import _kernels
from ndtool._kernels import Addressing, Indices, KernelOptions, UpdateSpec, WorkItem
from ndtool.engine import bind, copies
from ndtool.errors import OutputError
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.reductions import identity
from ndtool.runs.external import spill
from ndtool.runs.external.batches import Allocate, SpilledTuples
from ndtool.runs.external.partitioning import MOST_CHILDREN
from ndtool.runs.external.results import TaskResult
from ndtool.runs.external.tables import Group
from ndtool.runs.external.work import Work

if TYPE_CHECKING:
    from ndtool._kernels import UpdateCounts


def sweep(work: Work, number: int, depth: int = 0) -> TaskResult:
    """Read a partition of data, and gather a range of its rows, or update and write it."""
    partition, at = divmod(number, work.partitioning.ranges)
    group = work.tables.group(work.partitioning.levels, partition)
    if work.partitioning.gathers:
        return _gather(work, group, number, at) if group.tuples else TaskResult(0)
    _update(work, group)
    return TaskResult(0)


def combine(work: Work, number: int, depth: int = 0) -> TaskResult:
    """Combine a range of the updates of a hot partition, and spill the result."""
    partitioning, dtype = work.partitioning, work.inference.dtype
    partition, at = divmod(number, partitioning.ranges)
    group = work.tables.group(partitioning.levels, partition)
    height = partitioning.height(partition)
    first, stop = _range(work, group, at)
    segment = spill.Segment("combine", number, (group.segment + at) * partitioning.partition_bytes)
    with work.partition_buffer() as whole:
        buffer = whole[: height * partitioning.rows.width]
        neutral = identity(dtype, work.reduction)
        for start in range(0, len(buffer), 1 << 20):
            chunk = buffer[start : start + (1 << 20)]
            chunk[:] = neutral * (len(chunk) // len(neutral))
        _apply(work, group, first, stop, buffer, None)
        segment = work.spills.create(segment)
        work.spills.write(segment, 0, buffer)
        work.spills.finish(segment)
    return TaskResult(segment.attempt)


def _range(work: Work, group: Group, at: int) -> tuple[int, int]:
    """Return the tuples of a partition that a task sweeps."""
    range_tuples = work.partitioning.segment_tuples(group.depth)
    return at * range_tuples, min(group.tuples, (at + 1) * range_tuples)


def _spilled(work: Work, group: Group) -> SpilledTuples:
    """Return the spilled tuples of a partition."""
    tuples = work.tables.tuples(group.depth, group.number)
    _prefetch(work, group)
    return SpilledTuples(work.partitioning, work.spills, tuples)


def _prefetch(work: Work, group: Group) -> None:
    """Prefetch the spilled tuples of the next partitions, as the first of its parent is swept.

    They are contiguous; read one partition at a time, each would take a random read, because reads
    of data evict them from the page cache.
    """
    partitioning, fan = work.partitioning, work.partitioning.fan_out(group.depth - 1)
    if group.number % fan or not work.spills.prefetches:
        return
    for number in (group.number, group.number + fan):
        if number < partitioning.groups(group.depth):
            tuples = work.tables.tuples(group.depth, number)
            if (
                tuples.parent.tuples * partitioning.spilled_per_tuple(group.depth - 1)
                <= partitioning.memory
            ):
                SpilledTuples(partitioning, work.spills, tuples).prefetch()


def _gather(work: Work, group: Group, number: int, at: int) -> TaskResult:
    """Gather rows of a partition and spill them; only chunks that they are in are read."""
    partitioning, spills, width = work.partitioning, work.spills, work.partitioning.rows.width
    box, height = partitioning.box(group.number), partitioning.height(group.number)
    first, stop = _range(work, group, at)
    is_read = bytearray(_chunks(work, box))
    segment = spills.create(spill.Segment("sweep", number, (group.first + first) * width))
    done, tuples = 0, _spilled(work, group)
    with work.partition_buffer() as whole:
        buffer = whole[: height * width]
        for batch in tuples.batches(first, stop):
            n = batch.tuples
            with work.arena() as allocate:
                local = allocate(n * tuples.local_bytes)
                tuples.read_local(batch, local)
                if new := _missing(work, box, local, n, allocate, is_read):
                    work.arrays.data.read(box, buffer, new)
                gathered = allocate(n * width)
                a, indices, items = bound(height, local, n, width)
                if _kernels.gather(a, buffer, 0, indices, items, gathered, KernelOptions(1)):
                    raise changed()
                spills.write(segment, done, gathered)
                done += len(gathered)
    spills.finish(segment)
    return TaskResult(segment.attempt)


def _chunks(work: Work, box: Box) -> int:
    """Return the number of chunks of a partition; 1 if all are read together."""
    sizes = grid.sizes(box)
    count = grid.blocks(sizes, work.arrays.data.chunk or sizes)
    return 1 if count > MOST_CHILDREN else count


def _missing(
    work: Work, box: Box, local: memoryview, n: int, allocate: Allocate, is_read: bytearray
) -> Sequence[int]:
    """Return the numbers of a partition's chunks that rows need and that are not read yet.

    is_read: a flag for each chunk, which this sets.
    """
    sizes = grid.sizes(box)
    steps = tuple(map(min, sizes, work.arrays.data.chunk or sizes))
    if len(is_read) == 1:
        is_new, is_read[0] = not is_read[0], 1
        return range(grid.blocks(sizes, steps) if is_new else 0)
    boxes = bind.bind_boxes(sizes, steps)
    counts = memoryview(bytearray(8 * (len(is_read) + 1))).cast("q")
    a, indices, tuples = bound(grid.blocks(sizes, (1,) * len(sizes)), local, n, 1)
    ids, rows = allocate(2 * n), allocate(n * boxes.row_bytes)
    if _kernels.partition_ids(a, indices, 0, tuples, boxes, ids, rows, counts):
        raise changed()
    new = [chunk for chunk, (a, b) in enumerate(pairwise(counts)) if b > a and not is_read[chunk]]
    for chunk in new:
        is_read[chunk] = 1
    return new


def _update(work: Work, group: Group) -> None:
    """Apply the updates of a partition, in order, and write it."""
    partitioning, dtype = work.partitioning, work.inference.dtype
    width, height = partitioning.rows.width, partitioning.height(group.number)
    box = partitioning.box(group.number)
    with work.partition_buffer() as whole:
        buffer = whole[: height * width]
        work.arrays.data.read(box, buffer)
        swaps = bool(group.tuples) and work.swaps_data
        if swaps:
            copies.swap_bytes(buffer, dtype.unit)
        counts = None
        if group.tuples and work.reduction_options.is_counted:
            zeros = memoryview(bytearray(height * partitioning.rows.count_bytes))
            counts = work.reduction_options.bind_counts(zeros, partitioning.rows.tuples, width)
        if partitioning.is_combined(group.tuples):
            _apply_combined(work, group, buffer)
        elif group.tuples:
            _apply(work, group, 0, group.tuples, buffer, counts)
        work.reduction_options.divide_sums(counts, buffer, width, dtype, 1)
        if swaps:
            copies.swap_bytes(buffer, dtype.unit)
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
    """Apply the combined updates of all ranges of a partition, as updates of one long row."""
    partitioning, zero = work.partitioning, memoryview(bytes(8))
    count = -(-group.tuples // partitioning.range_tuples)
    slice_bytes = partitioning.block * partitioning.rows.width
    for at, attempt in enumerate(work.tables.attempts(group, count)):
        start = (group.segment + at) * partitioning.partition_bytes
        number = group.number * partitioning.ranges + at
        segment = spill.Segment("combine", number, start, attempt)
        for first in range(0, len(buffer), slice_bytes):
            rows = buffer[first : first + slice_bytes]
            with work.arena() as allocate:
                updates = allocate(len(rows))
                work.spills.read(segment, first, updates)
                _scatter(work, zero, 1, updates, rows, len(rows), None)


def _scatter(
    work: Work, local: memoryview, n: int, updates: memoryview, buffer: memoryview, width: int,
    counts: UpdateCounts | None,
) -> None:  # fmt: skip
    change = UpdateSpec(updates, width, work.reduction, work.inference.dtype.name, counts)
    a, indices, tuples = bound(len(buffer) // width, local, n, width)
    if _kernels.scatter(a, indices, tuples, change, buffer, False, KernelOptions(1)):
        raise changed()


def bound(
    height: int, local: memoryview, n: int, width: int, size: int = 4
) -> tuple[Addressing, Indices, WorkItem]:
    """Bind rows of a group, and the numbers of n of them, of `size` bytes each."""
    addressing = Addressing((height,), (width,), n, (), (), False)
    return addressing, Indices(local, size, True, False), WorkItem(0, n, 0, width)


def changed() -> OutputError:
    """Return the error about spilled data that others have changed."""
    return OutputError("a temporary file changed during the run")
