"""The tasks of external execution: pure functions of open arrays, a phase and a number.

    split   sorts the index tuples (and updates) of a block stably by partition of data, dropped
            tuples last; at deeper levels, those of a block of a group
    combine (see sweeps.py) combines updates of a hot partition, if their order does not matter
    sweep   reads a partition of data once, sequentially; gathers its rows, or applies the updates
            of all blocks in the order of the blocks and writes the partition once
    replay  of gathers: restores the rows of a block to the order of its tuples, and writes them to
            the output; at deeper levels, spills them

A task spills a segment under the ID of its attempt, which it returns, so that any worker can retry
it. The tuples of a group are in row-major order, so results equal those of the sequential loop.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from itertools import accumulate
from operator import sub
from typing import Any

from ndtool import _kernels
from ndtool._kernels import Indices, WorkItem
from ndtool.arrays.boxes import read_range, write_range
from ndtool.engine import bind, copies
from ndtool.errors import OutputError
from ndtool.rules import grid
from ndtool.runs.external import spill, sweeps
from ndtool.runs.external.batches import Allocate, SpilledTuples
from ndtool.runs.external.partitioning import MAX_SEGMENTS, Partitioning, phase_name
from ndtool.runs.external.results import OutOfBounds, TaskResult
from ndtool.runs.external.sweeps import bind_local_rows, changed_error
from ndtool.runs.external.tables import BlockOffsets, Group
from ndtool.runs.external.work import Work


def run_task(work: Work, name: str, number: int) -> Any:
    """Run a task; return its result for the policy."""
    kind = name.rstrip("0123456789")
    return PHASES[kind](work, number, int(name[len(kind) :] or 1) - 1)


def check(work: Work, block: int, depth: int = 0) -> OutOfBounds | None:
    """Validate the indices of a block; return those out of bounds, None if all are valid."""
    with work.arena() as allocate:
        return _find_out_of_bounds(work, work.first_occurrences(block, allocate), block)


def _find_out_of_bounds(
    work: Work, first_occurrences: Indices, block: int, indices: Indices | None = None
) -> OutOfBounds | None:
    """Return the indices of a block out of bounds, None if all are valid.

    first_occurrences: the stored tuples that no earlier block contains; only these are counted.
    indices: all tuples of the block.
    """
    addressing, _, entries = bind.bind_check(work.plan)
    first, stop = work.partitioning.first_occurrences(block)
    number, component, count = _kernels.locate_out_of_bounds(
        addressing, first_occurrences, 0, stop - first
    )
    if count or indices is None:
        value = first_occurrences.value(number * entries + component) if count else 0
        return OutOfBounds(first + number, component, value, count) if count else None
    number, component, invalid_count = _kernels.locate_out_of_bounds(
        addressing, indices, 0, work.partitioning.tuple_count(block)
    )
    if not invalid_count:
        return None
    value = indices.value(number * entries + component)
    stored = work.partitioning.rows.stored_index(block * work.partitioning.block_tuples + number)
    return OutOfBounds(stored, component, value, 0)


def split(work: Work, number: int, depth: int = 0) -> TaskResult | OutOfBounds:
    """Sort the tuples of a block by partition and spill them; return the partition offsets."""
    partitioning, store = work.partitioning, work.store
    group, block = _block(work, number, depth)
    n, out_of_bounds = group.tuples_of(block), None
    width, size = partitioning.rows.width, partitioning.local_bytes(depth + 1)
    box = partitioning.box(group.number, depth)
    sizes = grid.box_shape(box)
    boxes = bind.bind_boxes(sizes, tuple(map(min, partitioning.group_shapes[depth], sizes)))
    starts = memoryview(bytearray(8 * (boxes.partitions + _drops(work, depth) + 1))).cast("q")
    with work.arena() as allocate:
        ids, local, local_by_partition = (
            allocate(n * partitioning.id_bytes(depth)),
            allocate(n * size),
            allocate(n * size),
        )
        updates = None if work.arrays.updates is None else allocate(n * width)
        if depth:
            _partition_spilled_block(
                work, group, block, updates, (ids, local, starts), allocate, boxes
            )
        else:
            first = block * partitioning.block_tuples
            indices, tuples = work.indices(block, allocate), WorkItem(first, n, 0, 0)
            if _kernels.partition_ids(work.rows, indices, first, tuples, boxes, ids, local, starts):
                if (
                    out_of_bounds_indices := _find_out_of_bounds(
                        work, work.first_occurrences(block, allocate, indices), block, indices
                    )
                ) is None:
                    raise OutputError("indices changed during the run")
                return out_of_bounds_indices
            if work.attributes.out_of_bounds != "error":
                out_of_bounds = _find_out_of_bounds(
                    work, work.first_occurrences(block, allocate, indices), block
                )
            if updates is not None:
                assert work.arrays.updates is not None
                read_range(work.arrays.updates, first, updates)
                if work.swaps_updates:
                    copies.swap_bytes(updates, work.inference.dtype.swap_size)
        start = (group.first + block * group.block) * partitioning.spilled_per_tuple(depth)
        segment = store.create(spill.Segment(phase_name("split", depth), number, start))
        _permute(ids, starts[:-1], local, local_by_partition, n, inverse=False)
        store.write(segment, 0, local_by_partition)
        if updates is None:
            store.write(segment, n * size, ids)
        else:
            updates_by_partition = allocate(n * width)
            _permute(ids, starts[:-1], updates, updates_by_partition, n, inverse=False)
            store.write(segment, n * size, updates_by_partition)
        result = TaskResult(segment.attempt, bytes(starts[: boxes.partitions + 1]), out_of_bounds)
        store.finish(segment, result.trailer)
    return result


def _drops(work: Work, depth: int) -> bool:
    """Whether split has an ID for dropped tuples."""
    return work.partitioning.rows.drops and not depth


def _block(work: Work, number: int, depth: int) -> tuple[Group, int]:
    """Return the group and the block of a split or replay task."""
    group, block = divmod(number, work.partitioning.blocks)
    return work.tables.group(depth, group), block


def _partition_spilled_block(
    work: Work, group: Group, block: int, updates: memoryview | None,
    split: tuple[memoryview, memoryview, memoryview], allocate: Allocate, boxes: _kernels.Boxes,
) -> None:  # fmt: skip
    """Read a block of tuples that the parent's splits spilled, and compute the partition IDs.

    updates: the buffer to read updates to. split: the buffers for partition IDs, local row indices
    and partition offsets.
    """
    tuples = SpilledTuples(
        work.partitioning, work.store, work.tables.tuples(group.depth, group.number)
    )
    n, read_count, width = group.tuples_of(block), 0, work.partitioning.rows.width
    size, first = tuples.local_bytes, block * group.block
    parent_rows = allocate(n * size)
    for batch in tuples.batches(first, first + n):
        tuples.read_local(
            batch, parent_rows[read_count * size : (read_count + batch.tuples) * size]
        )
        if updates is not None:
            tuples.read_rows(
                batch, updates[read_count * width : (read_count + batch.tuples) * width]
            )
        read_count += batch.tuples
    ids, local, starts = split
    row_count = work.partitioning.row_count(group.number, group.depth)
    addressing, indices, items = bind_local_rows(row_count, parent_rows, n, 1, size)
    if read_count < n or _kernels.partition_ids(
        addressing, indices, 0, items, boxes, ids, local, starts
    ):
        raise changed_error()


def replay(work: Work, number: int, depth: int = 0) -> TaskResult:
    """Restore the rows of a block to the order of its tuples; write them, or spill them."""
    partitioning, store = work.partitioning, work.store
    group, block = _block(work, number, depth)
    n, width = group.tuples_of(block), partitioning.rows.width
    offsets = work.tables.block_offsets(group, block)
    counts = list(map(sub, offsets.stops, offsets.starts))
    first = group.first + block * group.block
    with work.arena() as allocate:
        ids, rows, restored = (
            allocate(n * partitioning.id_bytes(depth)),
            allocate(n * width),
            allocate(n * width),
        )
        split_phase, per_tuple = phase_name("split", depth), partitioning.spilled_per_tuple(depth)
        segment = spill.Segment(split_phase, number, first * per_tuple, offsets.attempt)
        store.read(segment, n * partitioning.local_bytes(depth + 1), ids)
        _read_rows(work, offsets, rows)
        if _drops(work, depth):
            counts.append(n - sum(counts))
            rows[len(rows) - counts[-1] * width :] = work.fill_bytes * counts[-1]
        starts = memoryview(array("q", accumulate(counts[:-1], initial=0)))
        _permute(ids, starts, rows, restored, n, inverse=True)
        if not depth:
            assert work.arrays.output is not None
            write_range(work.arrays.output, block * partitioning.block_tuples, restored)
            return TaskResult(0)
        segment = store.create(spill.Segment(phase_name("replay", depth), number, first * width))
        store.write(segment, 0, restored)
        store.finish(segment)
        return TaskResult(segment.attempt)


def _read_rows(work: Work, offsets: BlockOffsets, buffer: memoryview) -> None:
    """Read the rows of a block, in the order of the children of its group."""
    ranges: list[tuple[spill.Segment, int, int]] = []
    start_offset = end_offset = 0
    for segment, start, nbytes in _segments(work.partitioning, offsets):
        ranges.append((segment, start, nbytes))
        end_offset += nbytes
        if len(ranges) == MAX_SEGMENTS:
            spill.read_all(work.store, ranges, buffer[start_offset:end_offset])
            ranges, start_offset = [], end_offset
    spill.read_all(work.store, ranges, buffer[start_offset:end_offset])


def _segments(
    partitioning: Partitioning, offsets: BlockOffsets
) -> Iterator[tuple[spill.Segment, int, int]]:
    """Yield the segments of rows that a block needs: (segment, offset, bytes) of each."""
    width, first_segment = partitioning.rows.width, offsets.children[0].segment
    for child, first, stop in zip(offsets.children, offsets.starts, offsets.stops, strict=True):
        is_leaf = child.depth == partitioning.levels
        segment_tuples = partitioning.segment_tuples(child.depth)
        kind = "sweep" if is_leaf else phase_name("replay", child.depth)
        segments = partitioning.max_ranges if is_leaf else partitioning.blocks
        while first < stop:
            index = first // segment_tuples
            end, start = (
                min(stop, (index + 1) * segment_tuples),
                child.first + index * segment_tuples,
            )
            attempt = offsets.attempts[child.segment - first_segment + index]
            segment = spill.Segment(kind, child.number * segments + index, start * width, attempt)
            yield segment, (first - index * segment_tuples) * width, (end - first) * width
            first = end


PHASES = {task.__name__: task for task in (check, split, sweeps.combine, sweeps.sweep, replay)}
sweep = sweeps.sweep


def _permute(
    ids: memoryview, starts: memoryview, rows: memoryview, out: memoryview, n: int, inverse: bool
) -> None:
    """Sort the rows of tuples stably by partition; inverse: restore the order of tuples."""
    table = memoryview(bytearray(starts)).cast("q")
    if _kernels.permute(ids, table, rows, out, n, inverse):
        raise changed_error()
