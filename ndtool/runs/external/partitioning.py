"""The partitioning of an external run into tasks, and the layout of its spilled data.

A row is the contiguous slice of row-major data that an index tuple selects. In terms of rows all
operators are alike: tuples in order, each of which selects a row. The leading axes of data are the
axes of rows. A partition is a box of rows that consists of complete chunks, or a range of rows of a
flat array. A block is a range of tuples.

Levels: all rows are divided into groups, groups into smaller groups, the smallest into partitions.
`split` runs once for each level, on the tuples of a group in order, block by block. With I blocks
of tuples and G partitions, one level reads I x G segments, and its tables have as many offsets.
With L levels, a group has about f = G^(1/L) children. A level at depth d has f^d groups and reads
at most (I + f^d) x f segments, since each group has at most one incomplete block.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import lcm, prod
from operator import add
from typing import NamedTuple

from ndtool._kernels import MAX_BYTE_IDS
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.plans import Shape
from ndtool.runs.external.rows import Rows
from ndtool.runs.external.units import Units

SEGMENT_BYTES = 512  # memory of a task for each segment that it reads
CHILD_BYTES = 128  # memory of a task for each child of its group
BLOCK_BYTES = 32  # memory of a task for each block of its group: the attempt and offsets
MAX_SEGMENTS = 256  # segments that a task reads together
MAX_CHILDREN = (1 << 16) - 1  # partition IDs have 16 bits; the last is for dropped tuples
MAX_4_BYTE_ROWS = 1 << 32  # rows of a group whose indices are stored in 4 bytes instead of 8
MAX_ROWS = MAX_4_BYTE_ROWS  # rows of a partition
MAX_LEVELS = 6
MAX_WORKERS = 4
HOT_FACTOR = 4  # a partition is hot if it has this multiple of the mean number of tuples


class Partitioning(NamedTuple):
    """The partitioning of a run. block: the tuples of a block.

    gathers: whether rows are gathered, else updated. group_shapes: the shape of a group at each
    depth, the last one that of a partition. in_memory: spilled bytes that stay in memory.
    chunk_bytes: bytes of the buffers that read or write a chunk. workers: the number of concurrent
    tasks. index_bytes: bytes of indices in memory that batches share, 0 if each block reads its
    own. concurrency: the number of chunks that a task reads or writes concurrently. range_tuples:
    the maximum tuples of a partition that one task sweeps, 0 for no limit.
    """

    rows: Rows
    gathers: bool
    block_tuples: int
    group_shapes: tuple[Shape, ...]
    in_memory: int
    chunk_bytes: int
    workers: int
    index_bytes: int = 0
    concurrency: int = 1
    range_tuples: int = 0

    @property
    def levels(self) -> int:
        """The number of levels."""
        return len(self.group_shapes)

    @property
    def partition_shape(self) -> Shape:
        """The shape of a partition."""
        return self.group_shapes[-1]

    @property
    def blocks(self) -> int:
        """The number of blocks of all tuples, and the maximum number of a group's blocks."""
        return -(-self.rows.tuples // self.block_tuples)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return grid.count_blocks(self.rows.shape, self.partition_shape)

    @property
    def partition_bytes(self) -> int:
        """The bytes of a partition."""
        return prod(self.partition_shape) * self.rows.width

    @property
    def counts_bytes(self) -> int:
        """The bytes of the counts of a partition's updates."""
        return prod(self.partition_shape) * self.rows.count_bytes

    @property
    def max_ranges(self) -> int:
        """The maximum number of ranges of tuples of a partition."""
        return max(1, -(-self.rows.tuples // self.range_tuples)) if self.range_tuples else 1

    def fan_out(self, depth: int) -> int:
        """Return the maximum number of children of a group at a depth."""
        return grid.count_blocks(
            self.group_shapes[depth - 1] if depth else self.rows.shape, self.group_shapes[depth]
        )

    def groups(self, depth: int) -> int:
        """Return the upper bound of group numbers at a depth; smaller groups leave gaps."""
        return prod(map(self.fan_out, range(depth)))

    def blocks_at(self, depth: int) -> int:
        """Return the maximum number of blocks of all groups at a depth."""
        return self.blocks + self.groups(depth) - 1

    def segments(self, depth: int) -> int:
        """Return the maximum number of segments that groups at a depth read from their parents."""
        return min(self.blocks_at(depth - 1) * self.fan_out(depth - 1), self.rows.tuples)

    def segment_tuples(self, depth: int) -> int:
        """Return the tuples of a segment of gathered rows of a group at a depth."""
        return self.block_tuples if depth < self.levels else self.range_tuples or self.rows.tuples

    def local_bytes(self, depth: int) -> int:
        """Return the bytes of a row index within a group at a depth."""
        return 4 if prod(self.group_shapes[depth - 1]) <= MAX_4_BYTE_ROWS else 8

    def id_count(self, depth: int) -> int:
        """Return the number of partition IDs; the last one is for dropped tuples, if any."""
        return self.fan_out(depth) + (self.rows.drops and not depth)

    def id_bytes(self, depth: int) -> int:
        """Return the bytes of a partition ID."""
        return 1 if self.id_count(depth) <= MAX_BYTE_IDS else 2

    def spilled_per_tuple(self, depth: int) -> int:
        """Return the bytes that split spills for a tuple of a group at a depth.

        They are the row index within the child, and the update or the partition ID.
        """
        return self.local_bytes(depth + 1) + (
            self.id_bytes(depth) if self.gathers else self.rows.width
        )

    @property
    def tasks(self) -> dict[str, int]:
        """The number of tasks by phase, without hot partitions; of deeper levels, at most."""
        depths = range(self.levels)
        splits = {phase_name("split", depth): self.blocks_at(depth) for depth in depths}
        replays = {phase_name("replay", depth): self.blocks_at(depth) for depth in reversed(depths)}
        return {**splits, "sweep": self.partitions, **(replays if self.gathers else {})}

    @property
    def layout(self) -> dict[str, int]:
        """The offset of each phase's segments in a spill file; the key "" has the file's size."""
        depths, sizes, offsets = range(self.levels), dict[str, int](), dict[str, int]()
        sizes |= {
            phase_name("split", depth): self.rows.tuples * self.spilled_per_tuple(depth)
            for depth in depths
        }
        if self.gathers:
            rows = self.rows.tuples * self.rows.width
            sizes |= {"sweep": rows, **{phase_name("replay", d): rows for d in depths[1:]}}
        elif self.range_tuples and self.rows.combines:
            sizes["combine"] = 2 * (self.rows.tuples // self.range_tuples) * self.partition_bytes
        end = 0
        for name, nbytes in sizes.items():
            offsets[name], end = end, end + nbytes
        return {**offsets, "": end}

    @property
    def spilled_total(self) -> int:
        """The bytes that all tasks spill to memory and files, without those of hot partitions."""
        per_tuple = sum(map(self.spilled_per_tuple, range(self.levels)))
        return self.rows.tuples * (per_tuple + self.rows.width * self.gathers * self.levels)

    @property
    def spilled(self) -> int:
        """The bytes that are spilled to a file."""
        return max(0, self.spilled_total - self.in_memory)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of a task's scratch buffer."""
        entry = self.rows.tuple_bytes * (
            1 if self.rows.repeats == 1 else 3
        )  # as stored, and expanded
        per_tuple = 0
        for depth in range(self.levels):
            read = self.local_bytes(depth) if depth else entry
            moved = self.rows.width + self.local_bytes(depth + 1)
            per_tuple = max(per_tuple, read + 2 * moved + self.id_bytes(depth))
        return min(self.block_tuples, self.rows.tuples) * per_tuple + 1024

    @property
    def tables_bytes(self) -> int:
        """The bytes of all tables of offsets that a phase writes for the next (see tables.py)."""
        depths, total = range(self.levels), 0
        child_offsets_bytes = [
            8 * (self.fan_out(depth) + 2) * self.blocks_at(depth) for depth in depths
        ]
        for depth in depths:
            children = self.groups(depth + 1)
            segments = self.blocks if depth + 1 < self.levels else 2 * self.max_ranges
            total += 16 * (children + 1) + 8 * (children + segments)
        if not self.gathers:
            return total + max(map(add, [0, *child_offsets_bytes], child_offsets_bytes), default=0)
        fan_out = max(
            map(self.fan_out, depths)
        )  # block offsets replace starts, one group at a time
        positions_bytes = 8 * (fan_out + 1) * (self.blocks + sum(map(self.groups, depths)) + 1)
        return int(total + sum(child_offsets_bytes) + positions_bytes)

    @property
    def memory(self) -> int:
        """The maximum bytes of memory of the run."""
        in_memory = min(self.in_memory, self.spilled_total)
        return self.tables_bytes + self.index_bytes + in_memory + self.workers * self.task_memory

    @property
    def task_memory(self) -> int:
        """The maximum bytes of memory of a task."""
        fan_out, segments = max(map(self.fan_out, range(self.levels))), 0
        for depth in range(self.levels):
            segments = max(segments, min(MAX_SEGMENTS, max(self.fan_out(depth), self.blocks)))
        entries = CHILD_BYTES * fan_out + BLOCK_BYTES * self.blocks + SEGMENT_BYTES * segments
        return (
            entries
            + self.partition_bytes
            + self.counts_bytes
            + self.scratch_bytes
            + self.chunk_bytes * self.concurrency
        )

    def fit_to(self, allowed: int) -> Partitioning:
        """Return the partitioning with concurrency reduced to fit in `allowed` bytes, if it can."""
        partitioning = self
        while partitioning.memory > allowed and partitioning.concurrency > 1:
            partitioning = partitioning._replace(concurrency=partitioning.concurrency // 2)
        while partitioning.memory > allowed and partitioning.workers > 1:
            partitioning = partitioning._replace(workers=partitioning.workers - 1)
        return partitioning

    def with_ranges(self) -> Partitioning:
        """Return the partitioning with ranges, so that several tasks sweep a hot partition.

        A range has enough tuples that reading the partition again adds at most a quarter to its
        bytes.
        """
        if not (self.gathers or self.rows.combines):
            return self
        mean = -(-self.rows.tuples // self.partitions)
        range_tuples = HOT_FACTOR * max(
            self.block_tuples, mean, self.partition_bytes // self.spilled_per_tuple(self.levels - 1)
        )
        return self._replace(range_tuples=range_tuples if range_tuples < self.rows.tuples else 0)

    def tuple_count(self, block: int) -> int:
        """Return the number of tuples of a block of all tuples."""
        return min(self.block_tuples, self.rows.tuples - block * self.block_tuples)

    def first_occurrences(self, block: int) -> tuple[int, int]:
        """Return the range of stored tuples that occur in a block for the first time."""
        first = block * self.block_tuples
        return self.rows.count_stored(first), self.rows.count_stored(
            first + self.tuple_count(block)
        )

    def box(self, number: int, depth: int | None = None) -> Box:
        """Return the start and stop of a group along each axis; depth: None for a partition."""
        depth = self.levels if depth is None else depth
        if not depth:
            return tuple((0, size) for size in self.rows.shape)
        group, child = divmod(number, self.fan_out(depth - 1))
        outer = self.box(group, depth - 1)
        sizes = grid.box_shape(outer)
        inner = grid.box(sizes, tuple(map(min, self.group_shapes[depth - 1], sizes)), child)
        return tuple(
            (start + a, start + b) for (start, _), (a, b) in zip(outer, inner, strict=True)
        )

    def row_count(self, number: int, depth: int | None = None) -> int:
        """Return the number of rows of a group; depth: None for a partition."""
        return prod(grid.box_shape(self.box(number, depth)))

    def is_combined(self, tuples: int) -> bool:
        """Whether `tuples` updates of a partition are combined before they are applied."""
        return self.rows.combines and 0 < self.range_tuples < tuples

    def children(self, number: int, depth: int) -> int:
        """Return the number of children of a group at a depth."""
        return grid.count_blocks(grid.box_shape(self.box(number, depth)), self.group_shapes[depth])

    def group_numbers(self, depth: int) -> Iterator[int]:
        """Yield the numbers of all groups at a depth."""
        if not depth:
            yield 0
            return
        for group in self.group_numbers(depth - 1):
            first = group * self.fan_out(depth - 1)
            yield from range(first, first + self.children(group, depth - 1))


def phase_name(kind: str, depth: int) -> str:
    """Return the name of a phase: its kind, with the level appended from the second level on."""
    return f"{kind}{depth + 1}" if depth else kind


def partitioning_for(
    rows: Rows,
    gathers: bool,
    budget: int,
    threads: int,
    units: Units | None = None,
    levels: int = 1,
) -> Partitioning:
    """Partition a run to take about `budget` bytes of memory, or as much as chunks need.

    A quarter of the budget is for spilled data. Each worker has an eighth for a partition, and half
    of that for scratch. Indices that batches share stay in memory if they take at most an eighth.
    levels: the number of levels, reduced if there are few partitions, increased if there are more
    than IDs.
    """
    max_rows = max(1, budget // 8 // max(1, rows.width + rows.count_bytes))
    powers_of_two, box = units is None, (1,) if units is None else units.box
    shapes = _group_shapes(
        rows.shape, _shape_of(rows.shape, max_rows, box, powers_of_two), powers_of_two, levels
    )
    block = max(1, budget // 16 // (2 * (rows.width + 4) + 2))
    if units is not None:
        common = lcm(units.read, units.written)
        unit = common if common <= block else units.written
        block = max(1, block // unit) * unit
    workers = min(threads + (threads > 1), MAX_WORKERS)
    chunk_bytes = 0 if units is None else units.buffer_bytes
    repeated = rows.tuples // rows.repeats * rows.tuple_bytes
    index_bytes = repeated if rows.repeats > 1 and repeated <= budget // 8 else 0
    concurrency = 1 if units is None else units.concurrency
    return Partitioning(
        rows, gathers, block, shapes, budget // 4, chunk_bytes, workers, index_bytes, concurrency
    )


def _group_shapes(
    rows_shape: Shape, partition: Shape, powers_of_two: bool, levels: int
) -> tuple[Shape, ...]:
    """Return the shape of a group at each depth, from the shape of a partition."""
    count = grid.count_blocks(rows_shape, partition)
    while True:
        fan_out = max(2, round(count ** (1 / levels)))
        shapes = [partition]
        while len(shapes) < levels and shapes[0] != rows_shape:
            shapes.insert(
                0, _shape_of(rows_shape, fan_out * prod(shapes[0]), shapes[0], powers_of_two)
            )
            if shapes[0] == shapes[1]:
                del shapes[0]
                break
        if len(shapes) > 1 and shapes[0] == rows_shape:
            del shapes[0]
        if max(map(grid.count_blocks, [rows_shape, *shapes], shapes)) <= MAX_CHILDREN:
            return tuple(shapes)
        levels += 1


def _shape_of(rows_shape: Shape, max_rows: int, unit: Shape, powers_of_two: bool) -> Shape:
    """Return the shape of about `max_rows` rows, a multiple of a unit.

    powers_of_two: whether to multiply the unit by powers of two only.
    """
    shape = list(unit)
    for d in reversed(range(len(shape))):
        times = max_rows // prod(shape)
        if times > 1:
            times = 1 << (times.bit_length() - 1) if powers_of_two else times
            shape[d] = min(rows_shape[d], shape[d] * times)
        if shape[d] < rows_shape[d]:
            break
    return tuple(shape)
