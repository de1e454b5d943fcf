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

from collections.abc import Iterator
from itertools import product
from math import lcm, prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool.arrays.source import ArrayMetadata, ContiguousSource, Source
from ndtool.engine import bind, counting, tuning
from ndtool.errors import ResourceError, format_size, option
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference
from ndtool.rules.plans import Plan, Shape

SEGMENT_BYTES = 512  # memory of a task for each segment that it reads
CHILD_BYTES = 128  # memory of a task for each child of its group
BLOCK_BYTES = 32  # memory of a task for each block of its group
MAX_SEGMENTS = 256  # segments that a task reads together
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


def slab(step: Shape, positions: Shape) -> int:
    """Return the smallest number of consecutive positions that fill complete chunks."""
    if not prod(positions):
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

    def blocks_of(self, tuples: int) -> int:
        """Return the number of blocks of a group with so many tuples."""
        return -(-tuples // self.block_tuples)

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
        return bind.id_bytes(self.fan_out(depth) + (self.rows.drops and not depth))

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
        return 8 * tables * (self.blocks + 1)

    @property
    def memory(self) -> int:
        """The maximum bytes of memory of a run in this process."""
        in_memory = min(self.in_memory, self.spilled_total)
        return self.tables_bytes(0) + in_memory + self.workers * self._buffer_bytes

    @property
    def task_memory(self) -> int:
        """The maximum bytes of memory of a task on a cluster, with shared indices."""
        return self.tables_bytes(1) + self._buffer_bytes

    @property
    def _buffer_bytes(self) -> int:
        fan_out = max(map(self.fan_out, range(self.depth)))
        segments = min(MAX_SEGMENTS, max(fan_out, self.blocks))
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

    @property
    def segment_count(self) -> int:
        """The maximum number of segments that all groups read."""
        return sum(map(self.segments, range(self.depth)))


class Layout(NamedTuple):
    """What the partitionings of a call have in common, so that chunks are not divided.

    box: the shape of rows; partitions are multiples of it. written: a number of tuples; blocks are
    multiples of it, so that a task writes complete chunks. read: a number of tuples; if possible,
    blocks are multiples of it, so that no two blocks read the same chunk. chunk_bytes, concurrency:
    see Partitioning. in_chunks: whether an array has chunks; else the rows of a partition are a
    power of two. threads: at most so many tasks run concurrently. on_cluster: whether tasks run on
    a cluster, of so many threads.
    """

    rows: Rows
    gathers: bool
    threads: int
    box: Shape = (1,)
    written: int = 1
    read: int = 1
    chunk_bytes: int = 0
    concurrency: int = 1
    in_chunks: bool = False
    on_cluster: bool = False

    def partition(self, budget: int, depth: int = 1) -> Partitioning:
        """Partition a run to take about `budget` bytes of memory, or as much as chunks need.

        A quarter of the budget is for spilled data. Each worker has an eighth for a partition, and
        half of that for scratch. depth: how often tuples are partitioned, reduced if there are few
        partitions, increased if there are more than IDs.
        """
        rows = self.rows
        max_rows = max(1, budget // 8 // max(1, rows.width + rows.count_bytes))
        shapes = self._group_shapes(self._shape_of(max_rows, self.box), depth)
        block = max(1, budget // 16 // (2 * (rows.width + 4) + 2))
        common = lcm(self.read, self.written)
        unit = common if common <= block else self.written
        block, in_memory = max(1, block // unit) * unit, 0 if self.on_cluster else budget // 4
        workers = self.threads
        if not self.on_cluster:
            workers = min(workers + (workers > 1), MAX_WORKERS)
        return Partitioning(
            rows, self.gathers, block, shapes, in_memory, self.chunk_bytes, workers,
            self.concurrency,
        )  # fmt: skip

    def _group_shapes(self, partition: Shape, depth: int) -> tuple[Shape, ...]:
        """Return the shape of the children at each depth, from the shape of a partition."""
        rows = self.rows.shape
        while True:
            fan_out = max(2, round(grid.count_blocks(rows, partition) ** (1 / depth)))
            shapes = [partition]
            while len(shapes) < depth:
                outer = self._shape_of(fan_out * prod(shapes[0]), shapes[0])
                if outer in (rows, shapes[0]):
                    break
                shapes.insert(0, outer)
            if max(map(grid.count_blocks, [rows, *shapes], shapes)) <= bind.MAX_PARTITIONS:
                return tuple(shapes)
            depth += 1

    def _shape_of(self, max_rows: int, unit: Shape) -> Shape:
        """Return the shape of about `max_rows` rows, a multiple of a unit."""
        shape = list(unit)
        for d, size in reversed([*enumerate(self.rows.shape)]):
            times = max_rows // prod(shape)
            if times > 1:
                times = times if self.in_chunks else 1 << (times.bit_length() - 1)
                shape[d] = min(size, shape[d] * times)
            if shape[d] < size:
                break
        return tuple(shape)

    def writes_complete_chunks(self, partitioning: Partitioning) -> bool:
        """Whether tasks write complete chunks of the output."""
        if self.gathers:
            return partitioning.blocks == 1 or partitioning.block_tuples % self.written == 0
        return len(self.box) == len(partitioning.partition_shape) and all(
            step in (size, step // unit * unit)
            for size, step, unit in zip(
                self.rows.shape, partitioning.partition_shape, self.box, strict=True
            )
        )

    def choose(self, budget: int, allowed: int) -> Partitioning | None:
        """Return the partitioning for a budget, else a minimal one; None if none fits.

        allowed: the maximum bytes of memory. While segments are small, a partitioning that halves
        their number replaces another.
        """
        least = tuning.REQUEST_BYTES if self.on_cluster else tuning.SEGMENT_BYTES
        best: Partitioning | None = None
        for candidates in (self.by_depth(budget), self._minimal()):
            for candidate in candidates:
                if not self.on_cluster:
                    candidate = candidate.fit_to(allowed)
                needed = candidate.task_memory if self.on_cluster else candidate.memory
                halved = 2 * candidate.segment_count
                if needed <= allowed and (
                    best is None or best.segment_count >= max(halved, best.spilled_total // least)
                ):
                    best = candidate
            if best is not None:
                break
        return best

    def by_depth(self, budget: int) -> list[Partitioning]:
        """Return the partitionings for a budget, each deeper than the previous one.

        Partitions of more than MAX_ROWS rows are left out.
        """
        found = {
            partitioning.depth: partitioning
            for depth in range(1, MAX_DEPTH + 1)
            if prod((partitioning := self.partition(budget, depth)).partition_shape) <= MAX_ROWS
        }
        return list(found.values())

    def _minimal(self) -> Iterator[Partitioning]:
        """Yield partitionings of runs that buffer nothing in memory and execute one task at a time.

        Larger blocks have smaller tables.
        """
        for power, multiplier in product(reversed(range(MIN_POWER, MAX_POWER)), (16, 8, 4, 2, 1)):
            for partitioning in self.by_depth(1 << power):
                block = partitioning.block_tuples * multiplier
                workers = self.threads if self.on_cluster else 1
                yield partitioning._replace(
                    block_tuples=block, in_memory=0, workers=workers, concurrency=1
                )

    def min_memory(self) -> int:
        """Return the bytes of memory that the smallest partitioning takes; 0 if there is none."""
        return min((each.memory for each in self._minimal()), default=0)


def layout_of(
    inference: Inference,
    sources: dict[str, Source],
    output: ArrayMetadata,
    threads: int,
    concurrency: int = 1,
    on_cluster: bool = False,
) -> Layout:
    """Return the layout of a call: box and units from the chunks and shards of its arrays.

    concurrency: how many chunks of the output to write concurrently. Rows are linear if data and
    output are contiguous.
    """
    plan, gathers = inference.plan, not inference.scatters
    metadata = {role: source.metadata for role, source in sources.items()} | {"output": output}
    chunked = {role: array.file_shape for role, array in metadata.items() if array.is_chunked}
    is_flat = isinstance(sources["data"], ContiguousSource) and (gathers or not output.is_chunked)
    rows = rows_of(inference, is_flat)
    in_boxes = () if is_flat else ("data", "output")[: 2 - gathers]
    steps = [chunked[role] for role in in_boxes if role in chunked]
    slabs = {"indices": plan.positions, "updates": tuple_shape(plan)}
    if plan.batch_repeats > 1:
        del slabs["indices"]
    written = slab(chunked["output"], tuple_shape(plan)) if gathers and "output" in chunked else 1
    box = (min(size, lcm(*(step[d] for step in steps))) for d, size in enumerate(rows.shape))
    read = lcm(*(slab(chunked[role], shape) for role, shape in slabs.items() if role in chunked))
    chunk_bytes = max(chunk_buffers(array, role == "output") for role, array in metadata.items())
    if chunked:
        concurrency = max(concurrency, *(source.concurrency for source in sources.values()))
    return Layout(
        rows, gathers, threads, tuple(box), written, read, chunk_bytes,
        concurrency if chunked else 1, bool(chunked), on_cluster,
    )  # fmt: skip


def memory_error(needed: int, allowed: int) -> ResourceError:
    """Return the error that a run needs more memory than --memory allows."""
    unit = 10 ** max(0, len(str(needed)) - 3)
    needed = -(-needed // unit) * unit  # rounded up to three digits
    return ResourceError(
        f"{option('memory')} {format_size(allowed)} is less than the {format_size(needed)} that"
        " this run needs at least",
        hint=f"{option('memory', needed)}, or more",
    )
