"""The partitioning of an external run into tasks, and the layout of its spilled data.

A row is the contiguous slice of row-major data that an index tuple selects. In rows all operators
are alike: tuples in order, a row of data for each. Rows are numbered over the leading axes of data.
A partition is a box of rows made of complete chunks, or a range of rows of a flat array. A block is
a range of tuples.

Levels: all rows are divided into groups, groups into smaller groups, the last ones into partitions.
`split` runs once for each level, on the tuples of a group in their order, block by block. With I
blocks of tuples and G partitions, one level reads I x G segments, and its tables have as many
offsets. With L levels, a group has about f = G^(1/L) children, and a level at most (I + f^d) x f of
them, where f^d is the number of groups at its depth d: a group has one incomplete block at most.
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

ENTRY = 512  # bytes of a task's bookkeeping for a segment that it reads
CHILD = 128  # the same for a child of a group
LINE = 32  # the same for a block of a group: its attempt and offsets
MOST_SEGMENTS = 256  # segments that a task reads together, at most
MOST_CHILDREN = (1 << 16) - 1  # partition IDs have 16 bits; the last is for dropped tuples
SHORT = 1 << 32  # rows of a group whose numbers have 4 bytes; larger numbers have 8
MOST_ROWS = SHORT  # of a partition
MOST_LEVELS = 6
MOST_WORKERS = 4
HOT = 4  # times the tuples of a mean partition from which one is swept in ranges of tuples


class Partitioning(NamedTuple):
    """The partitioning of a run. block: the tuples of a block.

    group_shapes: the shape of a group at each depth, of a partition at the last. gathers: whether
    rows are gathered, else updated. in_memory: spilled bytes that stay in memory. chunk: bytes of
    the buffers that read or write a chunk. workers: the number of concurrent tasks. indices: bytes
    of repeated indices that are held in memory, 0 if each block reads its own. concurrency: the
    number of chunks that a task reads or writes concurrently. range_tuples: the tuples of a
    partition that one task sweeps, at most; 0 for all.
    """

    rows: Rows
    gathers: bool
    block: int
    group_shapes: tuple[Shape, ...]
    in_memory: int
    chunk: int
    workers: int
    indices: int = 0
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
        """The number of blocks of all tuples; no group has more."""
        return -(-self.rows.tuples // self.block)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return grid.count_blocks(self.rows.over, self.partition_shape)

    @property
    def partition_bytes(self) -> int:
        """The bytes of a partition."""
        return prod(self.partition_shape) * self.rows.width

    @property
    def counts(self) -> int:
        """The bytes of the counts of a partition's updates."""
        return prod(self.partition_shape) * self.rows.count_bytes

    @property
    def ranges(self) -> int:
        """The number of ranges of tuples that a partition is swept in, at most."""
        return max(1, -(-self.rows.tuples // self.range_tuples)) if self.range_tuples else 1

    def fan_out(self, depth: int) -> int:
        """Return the number of children that a group at a depth has, at most."""
        return grid.count_blocks(
            self.group_shapes[depth - 1] if depth else self.rows.over, self.group_shapes[depth]
        )

    def groups(self, depth: int) -> int:
        """Return how many numbers groups at a depth have; smaller groups do not use all."""
        return prod(map(self.fan_out, range(depth)))

    def blocks_at(self, depth: int) -> int:
        """Return the number of blocks of all groups at a depth, at most."""
        return self.blocks + self.groups(depth) - 1

    def segments(self, depth: int) -> int:
        """Return the number of segments that groups at a depth read from their parents, at most."""
        return min(self.blocks_at(depth - 1) * self.fan_out(depth - 1), self.rows.tuples)

    def segment_tuples(self, depth: int) -> int:
        """Return the tuples of a segment of gathered rows of a group at a depth."""
        return self.block if depth < self.levels else self.range_tuples or self.rows.tuples

    def local_bytes(self, depth: int) -> int:
        """Return the bytes of a row's number within its group at a depth."""
        return 4 if prod(self.group_shapes[depth - 1]) <= SHORT else 8

    def id_count(self, depth: int) -> int:
        """Return the number of partition IDs: with dropped tuples one more, the last."""
        return self.fan_out(depth) + (self.rows.drops and not depth)

    def id_bytes(self, depth: int) -> int:
        """Return the bytes of a partition ID."""
        return 1 if self.id_count(depth) <= MAX_BYTE_IDS else 2

    def spilled_per_tuple(self, depth: int) -> int:
        """Return the bytes that split spills for a tuple of a group at a depth.

        They are the row's number in the child, and the update or the partition ID.
        """
        return self.local_bytes(depth + 1) + (
            self.id_bytes(depth) if self.gathers else self.rows.width
        )

    @property
    def tasks(self) -> dict[str, int]:
        """The number of tasks by phase: of deeper levels at most, and without hot partitions."""
        depths = range(self.levels)
        splits = {phase("split", depth): self.blocks_at(depth) for depth in depths}
        replays = {phase("replay", depth): self.blocks_at(depth) for depth in reversed(depths)}
        return {**splits, "sweep": self.partitions, **(replays if self.gathers else {})}

    @property
    def layout(self) -> dict[str, int]:
        """The offset of the segments of each phase in a file of all, and of its end as ""."""
        depths, sizes, offsets = range(self.levels), dict[str, int](), dict[str, int]()
        sizes |= {
            phase("split", depth): self.rows.tuples * self.spilled_per_tuple(depth)
            for depth in depths
        }
        if self.gathers:
            rows = self.rows.tuples * self.rows.width
            sizes |= {"sweep": rows, **{phase("replay", d): rows for d in depths[1:]}}
        elif self.range_tuples and self.rows.combines:
            sizes["combine"] = 2 * (self.rows.tuples // self.range_tuples) * self.partition_bytes
        end = 0
        for name, nbytes in sizes.items():
            offsets[name], end = end, end + nbytes
        return {**offsets, "": end}

    @property
    def spilled_total(self) -> int:
        """The bytes that all tasks spill, in memory or to a file, but for hot partitions."""
        per_tuple = sum(map(self.spilled_per_tuple, range(self.levels)))
        return self.rows.tuples * (per_tuple + self.rows.width * self.gathers * self.levels)

    @property
    def spilled(self) -> int:
        """The bytes that are spilled to a file."""
        return max(0, self.spilled_total - self.in_memory)

    @property
    def scratch(self) -> int:
        """The bytes of a task's scratch buffer."""
        entry = self.rows.tuple_bytes * (
            1 if self.rows.repeats == 1 else 3
        )  # as stored, and expanded
        per_tuple = 0
        for depth in range(self.levels):
            read = self.local_bytes(depth) if depth else entry
            moved = self.rows.width + self.local_bytes(depth + 1)
            per_tuple = max(per_tuple, read + 2 * moved + self.id_bytes(depth))
        return min(self.block, self.rows.tuples) * per_tuple + 1024

    @property
    def tables(self) -> int:
        """The bytes of the tables that the phases pass on, see tables.py."""
        depths, total = range(self.levels), 0
        starts = [8 * (self.fan_out(depth) + 2) * self.blocks_at(depth) for depth in depths]
        for depth in depths:
            children = self.groups(depth + 1)
            segments = self.blocks if depth + 1 < self.levels else 2 * self.ranges
            total += 16 * (children + 1) + 8 * (children + segments)
        if not self.gathers:
            return total + max(map(add, [0, *starts], starts), default=0)
        fan_out = max(map(self.fan_out, depths))  # places replace starts, a group at a time
        places = 8 * (fan_out + 1) * (self.blocks + sum(map(self.groups, depths)) + 1)
        return int(total + sum(starts) + places)

    @property
    def memory(self) -> int:
        """The maximum bytes of memory of the run."""
        in_memory = min(self.in_memory, self.spilled_total)
        return self.tables + self.indices + in_memory + self.workers * self.task

    @property
    def task(self) -> int:
        """The maximum bytes of memory of a task."""
        fan_out, segments = max(map(self.fan_out, range(self.levels))), 0
        for depth in range(self.levels):
            segments = max(segments, min(MOST_SEGMENTS, max(self.fan_out(depth), self.blocks)))
        entries = CHILD * fan_out + LINE * self.blocks + ENTRY * segments
        return (
            entries
            + self.partition_bytes
            + self.counts
            + self.scratch
            + self.chunk * self.concurrency
        )

    def within(self, allowed: int) -> Partitioning:
        """Return the partitioning with less concurrency, to fit `allowed` bytes if possible."""
        partitioning = self
        while partitioning.memory > allowed and partitioning.concurrency > 1:
            partitioning = partitioning._replace(concurrency=partitioning.concurrency // 2)
        while partitioning.memory > allowed and partitioning.workers > 1:
            partitioning = partitioning._replace(workers=partitioning.workers - 1)
        return partitioning

    def in_ranges(self) -> Partitioning:
        """Return the partitioning with hot partitions swept in ranges, by several tasks.

        A range has so many tuples that reading the partition again adds a quarter to its bytes.
        """
        if not (self.gathers or self.rows.combines):
            return self
        mean = -(-self.rows.tuples // self.partitions)
        range_tuples = HOT * max(
            self.block, mean, self.partition_bytes // self.spilled_per_tuple(self.levels - 1)
        )
        return self._replace(range_tuples=range_tuples if range_tuples < self.rows.tuples else 0)

    def tuples(self, block: int) -> int:
        """Return the number of tuples of a block of all tuples."""
        return min(self.block, self.rows.tuples - block * self.block)

    def first_occurrences(self, block: int) -> tuple[int, int]:
        """Return the range of stored tuples that occur in a block for the first time."""
        first = block * self.block
        return self.rows.stored_before(first), self.rows.stored_before(first + self.tuples(block))

    def box(self, number: int, depth: int | None = None) -> Box:
        """Return the start and stop of a group along every axis; depth: None for a partition."""
        depth = self.levels if depth is None else depth
        if not depth:
            return tuple((0, size) for size in self.rows.over)
        group, child = divmod(number, self.fan_out(depth - 1))
        outer = self.box(group, depth - 1)
        sizes = grid.box_shape(outer)
        inner = grid.box(sizes, tuple(map(min, self.group_shapes[depth - 1], sizes)), child)
        return tuple((at + a, at + b) for (at, _), (a, b) in zip(outer, inner, strict=True))

    def height(self, number: int, depth: int | None = None) -> int:
        """Return the number of rows of a group; depth: None for a partition."""
        return prod(grid.box_shape(self.box(number, depth)))

    def is_combined(self, tuples: int) -> bool:
        """Whether the updates of a partition with so many are combined before they are applied."""
        return self.rows.combines and 0 < self.range_tuples < tuples

    def children(self, number: int, depth: int) -> int:
        """Return the number of children of a group at a depth."""
        return grid.count_blocks(grid.box_shape(self.box(number, depth)), self.group_shapes[depth])

    def used(self, depth: int) -> Iterator[int]:
        """Yield the numbers of all groups at a depth."""
        if not depth:
            yield 0
            return
        for group in self.used(depth - 1):
            first = group * self.fan_out(depth - 1)
            yield from range(first, first + self.children(group, depth - 1))


def phase(kind: str, depth: int) -> str:
    """Return the name of a phase, which that of the first level shares with its kind."""
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

    A quarter is for spilled data; a worker has an eighth for a partition, and half of that for
    scratch. Repeated indices are held if they take no more than an eighth. levels: fewer if there
    are few partitions, more if IDs require it.
    """
    most = max(1, budget // 8 // max(1, rows.width + rows.count_bytes))
    doubles, box = units is None, (1,) if units is None else units.box
    shapes = _group_shapes(rows.over, _shape_of(rows.over, most, box, doubles), doubles, levels)
    block = max(1, budget // 16 // (2 * (rows.width + 4) + 2))
    if units is not None:
        common = lcm(units.read, units.written)
        unit = common if common <= block else units.written
        block = max(1, block // unit) * unit
    workers = min(threads + (threads > 1), MOST_WORKERS)
    chunk = 0 if units is None else units.held
    repeated = rows.tuples // rows.repeats * rows.tuple_bytes
    indices = repeated if rows.repeats > 1 and repeated <= budget // 8 else 0
    concurrency = 1 if units is None else units.concurrency
    return Partitioning(
        rows, gathers, block, shapes, budget // 4, chunk, workers, indices, concurrency
    )


def _group_shapes(over: Shape, partition: Shape, doubles: bool, levels: int) -> tuple[Shape, ...]:
    """Return the shape of a group at each depth, from that of a partition."""
    count = grid.count_blocks(over, partition)
    while True:
        fan_out = max(2, round(count ** (1 / levels)))
        shapes = [partition]
        while len(shapes) < levels and shapes[0] != over:
            shapes.insert(0, _shape_of(over, fan_out * prod(shapes[0]), shapes[0], doubles))
            if shapes[0] == shapes[1]:
                del shapes[0]
                break
        if len(shapes) > 1 and shapes[0] == over:
            del shapes[0]
        if max(map(grid.count_blocks, [over, *shapes], shapes)) <= MOST_CHILDREN:
            return tuple(shapes)
        levels += 1


def _shape_of(over: Shape, most: int, unit: Shape, doubles: bool) -> Shape:
    """Return the shape of about `most` rows, a multiple of a unit; doubles: by a power of two."""
    shape = list(unit)
    for d in reversed(range(len(shape))):
        times = most // prod(shape)
        if times > 1:
            times = 1 << (times.bit_length() - 1) if doubles else times
            shape[d] = min(over[d], shape[d] * times)
        if shape[d] < over[d]:
            break
    return tuple(shape)
