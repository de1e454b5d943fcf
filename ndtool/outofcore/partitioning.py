"""The partitioning of a run: the rows of data, partitions of them, and blocks of tuples.

A row is the contiguous slice of row-major data that an index tuple selects. In terms of rows all
operators are alike: tuples in order, each of which selects a row. The leading axes of data are the
axes of rows. A partition is a box of rows that consists of complete chunks, or a range of rows of a
flat array. A block is a range of tuples.

With I blocks and P partitions, a run reads I x P segments of spilled data. If these are too many,
data are divided into groups first, and each group is partitioned like the data of a call: its
tuples are read from the segments that its parent spilled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import lcm, prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import MAX_BYTE_IDS
from ndtool.arrays.source import ArrayMetadata, ContiguousSource, Source
from ndtool.engine import bind, counting, tuning
from ndtool.errors import ResourceError, format_size
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference
from ndtool.rules.plans import Plan, Shape

SEGMENT_BYTES = 512  # memory of a task for each segment that it reads
CHILD_BYTES = 128  # memory of a task for each child of its group
BLOCK_BYTES = 32  # memory of a task for each block of its group
MAX_SEGMENTS = 256  # segments that a task reads together
MAX_CHILDREN = (1 << 16) - 1  # partition IDs have 16 bits; the last is for dropped tuples
MAX_ROWS = 1 << 32  # rows of a partition, whose indices are stored in 4 bytes
MAX_DEPTH = 6
MAX_WORKERS = 4
MIN_POWER, MAX_POWER = 10, 34  # if memory is short, budgets of 2^10 to 2^33 bytes are tried
CODEC_BUFFERS = 4  # buffers of a chunk's size to decode or encode it, with any codec
PLAIN_BUFFERS = 2  # buffers of a chunk's size without a codec
WRITTEN_CHUNK_BYTES = 1 << 12  # memory for each chunk of a shard to write
READ_CHUNK_BYTES = 64  # memory for each chunk of a shard to read from


class Rows(NamedTuple):
    """The index tuples and the rows of data of a call.

    tuples: the number of tuples. tuple_bytes: bytes of a tuple. shape: the axes of rows. width:
    bytes of a row. drops: whether tuples may be dropped. period, repeats: the number of tuples of a
    batch, and of consecutive batches that share stored tuples. count_bytes: bytes of the count of a
    row's updates, 0 if updates are not counted.
    """

    tuples: int
    tuple_bytes: int
    shape: Shape
    width: int
    drops: bool = False
    period: int = 1
    repeats: int = 1
    count_bytes: int = 0

    @property
    def row_count(self) -> int:
        """The number of rows of data."""
        return prod(self.shape)


def rows_of(inference: Inference, flat: bool = True) -> Rows:
    """Return the rows of a call; flat: whether to merge the axes of rows into one."""
    plan, itemsize = inference.plan, inference.dtype.itemsize
    size = inference.inputs["indices"].dtype.itemsize
    rows = Rows(
        plan.tuples, plan.k * size, plan.all_slices, plan.width * itemsize,
        plan.attributes.may_skip_tuples, plan.tuples_per_batch, plan.batch_repeats,
    )  # fmt: skip
    return rows._replace(
        shape=(rows.row_count,) if flat else rows.shape,
        count_bytes=counting.count_itemsize(plan.attributes, rows.tuples),
    )


class Units(NamedTuple):
    """The units of partitions and blocks, so that chunks are not divided.

    box: the shape of rows; partitions are multiples of it. written: a number of tuples; blocks are
    multiples of it, so that a task writes complete chunks. read: a number of tuples; if possible,
    blocks are multiples of it, so that no two blocks read the same chunk. buffer_bytes: bytes of
    the buffers that read or write a chunk. concurrency: the number of chunks to read or write
    concurrently.
    """

    box: Shape
    written: int
    read: int
    buffer_bytes: int
    concurrency: int = 1


def units_of(
    inference: Inference,
    sources: dict[str, ArrayMetadata],
    output: ArrayMetadata,
    concurrency: int = 1,
) -> Units:
    """Return the units of partitions and blocks from the chunks and shards of a call's arrays."""
    plan = inference.plan
    steps = [file_shape(sources["data"])]
    gathers = not inference.scatters
    if not gathers:
        steps.append(file_shape(output))
    box = tuple(
        min(size, lcm(*(step[d] for step in steps if step)))
        for d, size in enumerate(plan.all_slices)
    )
    positions = tuple_shape(plan) if gathers else ()
    slabs = {"indices": plan.positions, "updates": tuple_shape(plan)}
    if plan.batch_repeats > 1:
        del slabs["indices"]
    read = [
        slab(file_shape(sources[role]), positions_shape)
        for role, positions_shape in slabs.items()
        if role in sources
    ]
    written = slab(file_shape(output), positions) if gathers else 1
    buffer_bytes = max(
        chunk_buffers(output, True), *(chunk_buffers(source) for source in sources.values())
    )
    return Units(box, written, lcm(*read), buffer_bytes, concurrency)


def tuple_shape(plan: Plan) -> Shape:
    """Return the shape of all tuples: the leading axes of a gather's output, or of updates.

    Plain indices count once for each batch that shares them.
    """
    return plan.with_index_tuples.positions


def chunk_buffers(metadata: ArrayMetadata, written: bool = False) -> int:
    """Return the bytes of the buffers that read, or write, a chunk of an array."""
    if not metadata.is_chunked:
        return 0
    layout, nbytes = metadata.layout, prod(metadata.block_shape) * metadata.dtype.itemsize
    if layout is not None and layout.is_unencoded:
        return PLAIN_BUFFERS * nbytes
    count = grid.count_blocks(layout.shards, layout.chunks) if layout and layout.shards else 0
    return CODEC_BUFFERS * nbytes + count * (WRITTEN_CHUNK_BYTES if written else READ_CHUNK_BYTES)


def file_shape(metadata: ArrayMetadata) -> Shape | None:
    """Return the shape of the chunk or shard that a file contains; None for a flat array."""
    return metadata.file_shape if metadata.is_chunked else None


def slab(step: Shape | None, positions: Shape) -> int:
    """Return the smallest number of consecutive positions that fill complete chunks."""
    if step is None or not prod(positions):
        return 1
    for d, length in enumerate(positions):
        if min(step[d], length) > 1:
            if prod(positions[:d]) > 1 and length % step[d]:  # lines end in an incomplete chunk
                return prod(positions[d:])
            return min(step[d], length) * prod(positions[d + 1 :])
    return 1


class Partitioning(NamedTuple):
    """The partitioning of a run. block_tuples: the tuples of a block.

    gathers: whether rows are gathered, else updated. shapes: the shape of the children at each
    depth; the children of a call are groups, those of the last groups are partitions. in_memory:
    spilled bytes that stay in memory. chunk_bytes: bytes of the buffers that read or write a chunk.
    workers: the number of concurrent tasks. concurrency: the number of chunks that a task reads or
    writes concurrently.
    """

    rows: Rows
    gathers: bool
    block_tuples: int
    shapes: tuple[Shape, ...]
    in_memory: int
    chunk_bytes: int
    workers: int
    concurrency: int = 1

    @property
    def depth(self) -> int:
        """How often each tuple is partitioned."""
        return len(self.shapes)

    @property
    def partition_shape(self) -> Shape:
        """The shape of a partition."""
        return self.shapes[-1]

    @property
    def blocks(self) -> int:
        """The number of blocks of all tuples, and the maximum number of a group's blocks."""
        return self.blocks_of(self.rows.tuples)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.groups(self.depth)

    @property
    def partition_bytes(self) -> int:
        """The bytes of a partition."""
        return prod(self.partition_shape) * self.rows.width

    def blocks_of(self, tuples: int) -> int:
        """Return the number of blocks of a group with so many tuples."""
        return -(-tuples // self.block_tuples)

    def divided_ends(self, unit: int) -> int:
        """Return how many blocks end within a unit of so many tuples."""
        ends = self.blocks - 1
        return ends - ends * self.block_tuples // lcm(self.block_tuples, unit)

    def groups(self, depth: int) -> int:
        """Return the number of groups at a depth; at the last depth they are the partitions."""
        return grid.count_blocks(self.rows.shape, self.shapes[depth - 1]) if depth else 1

    def blocks_at(self, depth: int) -> int:
        """Return the maximum number of blocks of all groups at a depth."""
        return min(self.blocks + self.groups(depth) - 1, self.rows.tuples)

    def fan_out(self, depth: int) -> int:
        """Return the maximum number of children of a group at a depth."""
        outer = self.shapes[depth - 1] if depth else self.rows.shape
        return grid.count_blocks(outer, self.shapes[depth])

    def segments(self, depth: int) -> int:
        """Return the maximum number of segments that the children of groups at a depth read."""
        return min(self.blocks_at(depth) * self.fan_out(depth), self.rows.tuples)

    def boxes(self, box: Box, depth: int) -> _kernels.Boxes:
        """Bind the children of a group for kernels."""
        sizes = grid.box_shape(box)
        return bind.bind_boxes(sizes, tuple(map(min, self.shapes[depth], sizes)))

    def child(self, box: Box, depth: int, number: int) -> Box:
        """Return the box of a child of a group at a depth."""
        sizes = grid.box_shape(box)
        inner = grid.box(sizes, tuple(map(min, self.shapes[depth], sizes)), number)
        return tuple((start + a, start + b) for (start, _), (a, b) in zip(box, inner, strict=True))

    def id_bytes(self, depth: int) -> int:
        """Return the maximum bytes of a partition ID."""
        count = self.fan_out(depth) + (self.rows.drops and not depth)  # the last: dropped tuples
        return 1 if count <= MAX_BYTE_IDS else 2

    def local_bytes(self, depth: int) -> int:
        """Return the maximum bytes of a row index in a child of a group at a depth."""
        return 4 if prod(self.shapes[depth]) <= MAX_ROWS else 8

    def spilled_per_tuple(self, depth: int) -> int:
        """Return the bytes that split spills for a tuple of a group at a depth.

        They are the row index in the child, and the update or the partition ID.
        """
        return self.local_bytes(depth) + (self.id_bytes(depth) if self.gathers else self.rows.width)

    @property
    def regions(self) -> dict[tuple[str, int], tuple[int, int]]:
        """The regions of a spill file by phase and depth: the size, and the bytes in memory.

        A region has the segments of one group, since groups are swept one after another; all tuples
        may select from one group. Those of the deepest groups stay in memory first.
        """
        sizes, available = dict[tuple[str, int], tuple[int, int]](), self.in_memory
        for depth in reversed(range(self.depth)):
            mean = -(-self.rows.tuples // self.groups(depth))
            per_tuple = {"split": self.spilled_per_tuple(depth)}
            if self.gathers:
                per_tuple["sweep"] = self.rows.width
            for phase, nbytes in per_tuple.items():
                in_memory = min(available, self.rows.tuples * nbytes, 2 * mean * nbytes)
                sizes[phase, depth] = self.rows.tuples * nbytes, in_memory
                available -= in_memory
        return sizes

    @property
    def spilled_total(self) -> int:
        """The bytes that all tasks spill to memory and files."""
        return sum(size for size, _ in self.regions.values())

    @property
    def spilled(self) -> int:
        """The bytes that are spilled to files, if all groups have equally many tuples."""
        return sum(
            max(0, size - in_memory * self.groups(depth))
            for (_, depth), (size, in_memory) in self.regions.items()
        )

    @property
    def scratch_bytes(self) -> int:
        """The bytes of a task's scratch buffer."""
        entry = self.rows.tuple_bytes * (1 if self.rows.repeats == 1 else 2)  # and expanded
        per_tuple = 0
        for depth in range(self.depth):
            read = self.local_bytes(depth - 1) if depth else entry
            moved = self.rows.width + self.local_bytes(depth)
            per_tuple = max(per_tuple, read + 2 * moved + self.id_bytes(depth))
        return min(self.block_tuples, self.rows.tuples) * per_tuple + 1024

    def tables_bytes(self, first: int) -> int:
        """Return the bytes of the offsets of segments, of one group at each depth from `first`."""
        tables = sum(self.fan_out(depth) + 2 for depth in range(first, self.depth))
        return 8 * tables * (self.blocks + 1) * (1 + self.gathers)

    @property
    def memory(self) -> int:
        """The maximum bytes of memory of a run in this process."""
        in_memory = min(self.in_memory, self.spilled_total)
        tables = self.tables_bytes(0)
        return tables + in_memory + self.workers * self._buffer_bytes

    @property
    def task_memory(self) -> int:
        """The maximum bytes of memory of a task on a cluster, with shared indices."""
        return self.tables_bytes(1) + self._buffer_bytes

    @property
    def _buffer_bytes(self) -> int:
        fan_out, segments = max(map(self.fan_out, range(self.depth))), 0
        for depth in range(self.depth):
            segments = max(segments, min(MAX_SEGMENTS, max(self.fan_out(depth), self.blocks)))
        entries = CHILD_BYTES * fan_out + BLOCK_BYTES * self.blocks + SEGMENT_BYTES * segments
        row_bytes = self.rows.width + self.rows.count_bytes
        buffers = prod(self.partition_shape) * row_bytes + self.scratch_bytes
        return entries + buffers + self.chunk_bytes * self.concurrency

    def fit_to(self, allowed: int) -> Partitioning:
        """Return the partitioning with concurrency reduced to fit in `allowed` bytes, if it can."""
        partitioning = self
        while partitioning.memory > allowed and partitioning.concurrency > 1:
            partitioning = partitioning._replace(concurrency=partitioning.concurrency // 2)
        while partitioning.memory > allowed and partitioning.workers > 1:
            partitioning = partitioning._replace(workers=partitioning.workers - 1)
        return partitioning


def partitioning_for(
    rows: Rows, gathers: bool, budget: int, threads: int, units: Units | None = None, depth: int = 1
) -> Partitioning:
    """Partition a run to take about `budget` bytes of memory, or as much as chunks need.

    A quarter of the budget is for spilled data. Each worker has an eighth for a partition, and half
    of that for scratch.
    depth: how often tuples are partitioned, reduced if there are few partitions, increased if there
    are more than IDs.
    """
    max_rows = max(1, budget // 8 // max(1, rows.width + rows.count_bytes))
    powers_of_two, box = units is None, (1,) if units is None else units.box
    shapes = _group_shapes(
        rows.shape, _shape_of(rows.shape, max_rows, box, powers_of_two), powers_of_two, depth
    )
    block = max(1, budget // 16 // (2 * (rows.width + 4) + 2))
    if units is not None:
        common = lcm(units.read, units.written)
        unit = common if common <= block else units.written
        block = max(1, block // unit) * unit
    workers = min(threads + (threads > 1), MAX_WORKERS)
    chunk_bytes = 0 if units is None else units.buffer_bytes
    concurrency = 1 if units is None else units.concurrency
    return Partitioning(
        rows, gathers, block, shapes, budget // 4, chunk_bytes, workers, concurrency
    )


def _group_shapes(
    rows_shape: Shape, partition: Shape, powers_of_two: bool, depth: int
) -> tuple[Shape, ...]:
    """Return the shape of the children at each depth, from the shape of a partition."""
    count = grid.count_blocks(rows_shape, partition)
    while True:
        fan_out = max(2, round(count ** (1 / depth)))
        shapes = [partition]
        while len(shapes) < depth and shapes[0] != rows_shape:
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
        depth += 1


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


def rows_in(inference: Inference, sources: dict[str, Source], output: ArrayMetadata) -> Rows:
    """Return the rows of a call, with linear indices if data and output are contiguous."""
    is_flat = isinstance(sources["data"], ContiguousSource)
    return rows_of(inference, is_flat and not (inference.scatters and output.is_chunked))


def partition_chunks(
    inference: Inference,
    sources: dict[str, Source],
    output: ArrayMetadata,
    concurrency: int,
    budget: int,
    threads: int,
    depth: int,
) -> Partitioning | None:
    """Partition a run with chunked arrays; None if a partition exceeds MAX_ROWS rows.

    concurrency: how many chunks of the output to write concurrently.
    """
    rows = rows_in(inference, sources, output)
    metadata = {role: source.metadata for role, source in sources.items()}
    concurrency = max(concurrency, *(source.concurrency for source in sources.values()))
    units = units_of(inference, metadata, output, concurrency)
    if not metadata["data"].is_chunked and not (inference.scatters and output.is_chunked):
        units = units._replace(box=(1,))
    partitioning = partitioning_for(rows, not inference.scatters, budget, threads, units, depth)
    return partitioning if prod(partitioning.partition_shape) <= MAX_ROWS else None


# Partitions a run for a budget in bytes, and a depth; None if that is impossible.
Partition = Callable[[int, int], Partitioning | None]
Memory = Callable[[Partitioning], int]


def choose(
    partition: Partition, budget: int, allowed: int, segment_cost: int = tuning.SEGMENT_COST,
    memory: Memory = lambda partitioning: partitioning.memory,
) -> Partitioning | None:  # fmt: skip
    """Return the cheapest partitioning that takes at most `allowed` bytes of memory, None if none.

    budget: bytes for partitions and blocks; if no such partitioning fits, smaller and larger
    budgets are tried. segment_cost: see `cost`.
    """
    cheapest = _cheapest(partitionings_by_depth(partition, budget), allowed, segment_cost, memory)
    return cheapest or _cheapest(_minimal_partitionings(partition), allowed, segment_cost, memory)


def min_memory(partition: Partition) -> int:
    """Return the bytes of memory that the smallest partitioning takes; 0 if there is none."""
    return min((each.memory for each in _minimal_partitionings(partition)), default=0)


def memory_error(needed: int, allowed: int) -> ResourceError:
    """Return the error that a run needs more memory than --memory allows."""
    unit = 10 ** max(0, len(str(needed)) - 3)
    needed = -(-needed // unit) * unit  # rounded up to three digits
    return ResourceError(
        f"--memory {format_size(allowed)} is less than the {format_size(needed)} that this run"
        " needs at least",
        hint=f"--memory {needed}, or more",
    )


def cost(partitioning: Partitioning, segment_cost: int = tuning.RANDOM_READ_COST) -> int:
    """Return the cost of a sweep in addition to the reads and writes of direct execution.

    The unit of cost is the sequential read of a byte. segment_cost: the cost of a random read of
    spilled data. A gather reads each segment twice.
    """
    rows, depths = partitioning.rows, range(partitioning.depth)
    seek_cost = 2 * _segment_count(partitioning) * segment_cost * partitioning.spilled
    offsets = sum(partitioning.blocks_at(d) * partitioning.fan_out(d) for d in depths)
    sort_cost = (rows.tuples * partitioning.depth + offsets) * tuning.SORT_COST
    read = rows.row_count * rows.width * partitioning.gathers
    seek_cost //= max(1, partitioning.spilled_total)
    return read + 2 * partitioning.spilled + sort_cost + seek_cost


def _segment_count(partitioning: Partitioning) -> int:
    """Return the maximum number of segments that all groups read."""
    return sum(map(partitioning.segments, range(partitioning.depth)))


def partitionings_by_depth(partition: Partition, budget: int) -> Iterator[Partitioning]:
    """Yield the partitionings for a budget, each deeper than the previous one."""
    previous = 0
    for depth in range(1, MAX_DEPTH + 1):
        partitioning = partition(budget, depth)
        if partitioning is not None and partitioning.depth > previous:
            previous = partitioning.depth
            yield partitioning


def _minimal_partitionings(partition: Partition) -> Iterator[Partitioning]:
    """Yield partitionings of runs that buffer nothing in memory and execute one task at a time.

    Larger blocks have smaller tables.
    """
    for power, multiplier in product(reversed(range(MIN_POWER, MAX_POWER)), (1, 2, 4, 8, 16)):
        for partitioning in partitionings_by_depth(partition, 1 << power):
            block = partitioning.block_tuples * multiplier
            yield partitioning._replace(block_tuples=block, in_memory=0).fit_to(0)


def _cheapest(
    partitionings: Iterator[Partitioning], allowed: int, segment_cost: int, memory: Memory
) -> Partitioning | None:
    """Return the cheapest partitioning that fits; greater depth must halve the segments."""
    best: Partitioning | None = None
    for candidate in partitionings:
        if memory(candidate) <= allowed and (
            best is None
            or (
                cost(candidate, segment_cost) < cost(best, segment_cost)
                and (
                    candidate.depth <= best.depth
                    or 2 * _segment_count(candidate) <= _segment_count(best)
                )
            )
        ):
            best = candidate
    return best
