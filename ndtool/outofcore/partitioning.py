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

from dataclasses import dataclass, replace
from functools import cached_property
from math import isqrt, lcm, prod
from typing import NamedTuple

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, Source
from ndtool.engine import bind, counting, tuning
from ndtool.errors import ResourceError, format_size, option
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference
from ndtool.rules.plans import Shape

SEGMENT_BYTES = 512  # memory of a task for each segment that it reads
CHILD_BYTES = 128  # memory of a task for each child of its group
BLOCK_BYTES = 32  # memory of a task for each block of its group
MAX_SEGMENTS = 256  # segments that a task reads together
SHORT_ROWS = 1 << 32  # rows of a partition whose indices have 4 bytes, else 8
MAX_WORKERS = 4
DEPTHS = range(1, 7)
BUDGETS = [1 << power for power in range(33, 9, -1)]  # tried if memory is short
CODEC_BUFFERS = 4  # buffers of a chunk's size to decode or encode it, with any codec
PLAIN_BUFFERS = 2  # buffers of a chunk's size without a codec
WRITTEN_CHUNK_BYTES = 1 << 12  # memory for each chunk of a shard to write
READ_CHUNK_BYTES = 64  # memory for each chunk of a shard to read from


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


class Rows(NamedTuple):
    """The index tuples and the rows of data of a call, the chunks of its arrays, and its tasks.

    tuples: the number of tuples. tuple_bytes: bytes of a tuple. shape: the axes of rows. width:
    bytes of a row. gathers: whether rows are gathered, else updated. drops: whether tuples may be
    dropped. period, repeats: the number of tuples of a batch, and of consecutive batches that share
    stored tuples. count_bytes: bytes of the count of a row's updates, 0 if updates are not counted.

    box: the shape of rows of which partitions are multiples, so that no chunk is divided.
    block_unit: a number of tuples of which blocks are multiples, so that each writes complete
    chunks. read_unit: the same, if possible, so that no two blocks read the same chunk.
    buffers_output: whether tasks write to a buffer instead of the output's chunks. chunk_bytes:
    bytes of the buffers that read or write a chunk, 0 if no array has chunks. concurrency: the
    number of chunks that a task reads or writes concurrently. workers: the number of concurrent
    tasks. on_cluster: whether they run on a cluster.
    """

    tuples: int
    tuple_bytes: int
    shape: Shape
    width: int
    gathers: bool
    drops: bool = False
    period: int = 1
    repeats: int = 1
    count_bytes: int = 0
    box: Shape = (1,)
    block_unit: int = 1
    read_unit: int = 1
    buffers_output: bool = False
    chunk_bytes: int = 0
    concurrency: int = 1
    workers: int = 1
    on_cluster: bool = False

    def partition(self, budget: int, depth: int = 1) -> Partitioning:
        """Partition a run to take about `budget` bytes of memory, or as much as chunks need.

        A quarter of the budget is for spilled data. Each worker has an eighth for a partition, and
        half of that for scratch; blocks are larger if their tables would take more. depth: how
        often tuples are partitioned, reduced if there are few partitions.
        """
        max_rows = max(1, budget // 8 // max(1, self.width + self.count_bytes))
        shapes = [self._shape_of(max_rows, self.box)]
        fan_out = max(2, round(grid.count_blocks(self.shape, shapes[0]) ** (1 / depth)))
        while len(shapes) < depth:
            outer = self._shape_of(fan_out * prod(shapes[0]), shapes[0])
            if outer in (self.shape, shapes[0]):
                break
            shapes.insert(0, outer)
        fan_outs = [*map(grid.count_blocks, [self.shape, *shapes], shapes)][self.on_cluster :]
        tuple_scratch = 2 * (self.width + 4) + 2
        balanced = isqrt(8 * sum(fan_outs) * self.tuples // tuple_scratch)
        block = max(1, budget // 16 // tuple_scratch, min(balanced, budget // tuple_scratch))
        common = lcm(self.read_unit, self.block_unit)
        unit = common if common <= block else self.block_unit
        block, in_memory = max(1, block // unit) * unit, 0 if self.on_cluster else budget // 4
        return Partitioning(self, block, tuple(shapes), in_memory, self.workers, self.concurrency)

    def _shape_of(self, max_rows: int, unit: Shape) -> Shape:
        """Return the shape of about `max_rows` rows, a multiple of a unit."""
        shape = list(unit)
        for d, size in reversed([*enumerate(self.shape)]):
            times = max_rows // prod(shape)
            if times > 1:
                if not self.chunk_bytes:
                    times = 1 << (times.bit_length() - 1)  # kernels shift by its logarithm
                shape[d] = min(size, shape[d] * times)
            if shape[d] < size:
                break
        return tuple(shape)

    def choose(self, budget: int, allowed: int) -> Partitioning:
        """Return the partitioning for a budget, or for the largest other one, that fits.

        If none fits in `allowed` bytes of memory, return the one that takes the least. While
        segments are small, a partitioning that halves their number replaces another.
        """
        small = tuning.REQUEST_BYTES if self.on_cluster else tuning.SEGMENT_BYTES
        possible = list[Partitioning]()
        for size in (budget, *BUDGETS):
            by_depth = [self.partition(size, depth).fit_to(allowed) for depth in DEPTHS]
            possible += (each for each in by_depth if each.fan_out <= bind.MAX_PARTITIONS)
            if fitting := [each for each in possible if each.limited_memory <= allowed]:
                best = fitting[0]
                for deeper in fitting:
                    if best.segments >= max(2 * deeper.segments, best.spilled_total // small):
                        best = deeper
                return best
        return min(possible, key=lambda each: each.limited_memory)


def rows_of(
    inference: Inference,
    sources: dict[str, Source],
    output: ArrayMetadata,
    threads: int,
    concurrency: int = 1,
    on_cluster: bool = False,
    buffers_output: bool = False,
) -> Rows:
    """Return the rows of a call, with box and units from the chunks and shards of its arrays.

    Rows are linear if data and output are contiguous. threads: of this process, or of a cluster.
    concurrency: how many chunks of the output to write concurrently. buffers_output: see Rows.
    """
    plan, gathers = inference.plan, not inference.scatters
    metadata = {role: source.metadata for role, source in sources.items()} | {"output": output}
    chunk_bytes = max(chunk_buffers(array, role == "output") for role, array in metadata.items())
    chunked = {role: array.file_shape for role, array in metadata.items() if array.is_chunked}
    if chunked:
        concurrency = max(concurrency, *(source.concurrency for source in sources.values()))
    steps = {role: step for role, step in chunked.items() if role != "output" or not buffers_output}
    boxes = [steps[role] for role in ("data", "output")[: 2 - gathers] if role in steps]
    is_flat = isinstance(sources["data"], ContiguousSource) and not boxes
    shape = (prod(plan.all_slices),) if is_flat else plan.all_slices
    tuples = plan.with_index_tuples.positions
    read = {"updates": tuples}
    if plan.batch_repeats == 1:
        read["indices"] = plan.positions
    return Rows(
        plan.tuples,
        plan.k * inference.inputs["indices"].dtype.itemsize,
        shape,
        plan.width * inference.dtype.itemsize,
        gathers,
        plan.attributes.may_skip_tuples,
        plan.tuples_per_batch,
        plan.batch_repeats,
        counting.count_itemsize(plan.attributes, plan.tuples),
        tuple(min(size, lcm(*(box[d] for box in boxes))) for d, size in enumerate(shape)),
        slab(steps["output"], tuples) if gathers and "output" in steps else 1,
        lcm(*(slab(steps[role], axes) for role, axes in read.items() if role in steps)),
        buffers_output,
        chunk_bytes,
        concurrency if chunked else 1,
        threads if on_cluster else min(threads + (threads > 1), MAX_WORKERS),
        on_cluster,
    )


class Level(NamedTuple):
    """The groups at a depth, whose children are groups, at the last depth partitions.

    groups: their number. fan_out: the maximum number of children of a group. blocks, segments: the
    maximum number of blocks of all groups, and of segments that all children read. row_bytes: the
    maximum bytes of a row index in a child. spilled: the bytes that each phase spills for a tuple.
    """

    groups: int
    fan_out: int
    blocks: int
    segments: int
    row_bytes: int
    spilled: dict[str, int]


@dataclass(frozen=True)
class Partitioning:
    """The partitioning of a run. block_tuples: the tuples of a block.

    shapes: the shape of the children at each depth; the children of a call are groups, those of the
    last groups are partitions. in_memory: spilled bytes that stay in memory. workers: the number of
    concurrent tasks. concurrency: the number of chunks that a task reads or writes concurrently.
    """

    rows: Rows
    block_tuples: int
    shapes: tuple[Shape, ...]
    in_memory: int
    workers: int
    concurrency: int

    @property
    def depth(self) -> int:
        """How often each tuple is partitioned."""
        return len(self.shapes)

    @property
    def blocks(self) -> int:
        """The number of blocks of all tuples, and the maximum number of a group's blocks."""
        return -(-self.rows.tuples // self.block_tuples)

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return grid.count_blocks(self.rows.shape, self.shapes[-1])

    @property
    def fan_out(self) -> int:
        """The maximum number of children of a group."""
        return max(level.fan_out for level in self.levels)

    @property
    def segments(self) -> int:
        """The maximum number of segments that all groups read."""
        return sum(level.segments for level in self.levels)

    @cached_property
    def levels(self) -> list[Level]:
        """The groups at each depth."""
        rows, outer, levels = self.rows, self.rows.shape, list[Level]()
        for shape in self.shapes:
            groups, fan_out = grid.count_blocks(rows.shape, outer), grid.count_blocks(outer, shape)
            blocks = min(self.blocks + groups - 1, rows.tuples)
            segments = min(blocks * fan_out, rows.tuples)
            row_bytes = 4 if prod(shape) <= SHORT_ROWS else 8
            spilled = {"split": row_bytes + rows.width}
            if rows.gathers:
                id_bytes = bind.id_bytes(fan_out + (rows.drops and not levels))
                spilled = {"split": row_bytes + id_bytes, "sweep": rows.width}
            levels.append(Level(groups, fan_out, blocks, segments, row_bytes, spilled))
            outer = shape
        return levels

    def child(self, box: Box, depth: int, number: int) -> Box:
        """Return the box of a child of a group at a depth."""
        inner = grid.box(grid.box_shape(box), self.shapes[depth], number)
        return tuple((start + a, start + b) for (start, _), (a, b) in zip(box, inner, strict=True))

    @cached_property
    def regions(self) -> dict[tuple[str, int], tuple[int, int]]:
        """The regions of a spill file by phase and depth: the size, and the bytes in memory.

        A region has the segments of one group, since groups are swept one after another; all tuples
        may select from one group. Those of the deepest groups stay in memory first.
        """
        sizes, available = dict[tuple[str, int], tuple[int, int]](), self.in_memory
        for depth, level in reversed([*enumerate(self.levels)]):
            mean = -(-self.rows.tuples // level.groups)
            for phase, nbytes in level.spilled.items():
                in_memory = min(available, self.rows.tuples * nbytes, 2 * mean * nbytes)
                sizes[phase, depth] = self.rows.tuples * nbytes, in_memory
                available -= in_memory
        return sizes

    @property
    def spilled(self) -> int:
        """The bytes that are spilled to files, if all groups have equally many tuples."""
        levels = self.levels
        return sum(
            max(0, size - in_memory * levels[depth].groups)
            for (_, depth), (size, in_memory) in self.regions.items()
        )

    @property
    def spilled_total(self) -> int:
        """The bytes that all tasks spill to memory and files."""
        return self.rows.tuples * sum(sum(level.spilled.values()) for level in self.levels)

    @property
    def scratch_bytes(self) -> int:
        """The bytes of a task's scratch buffer."""
        rows, row_bytes = self.rows, self.levels[0].row_bytes  # those of other levels are shorter
        read = rows.tuple_bytes * (1 if rows.repeats == 1 else 2)  # and expanded
        moved = 2 * (rows.width + row_bytes) + 2
        return min(self.block_tuples, rows.tuples) * (max(read, row_bytes) + moved) + 1024

    @property
    def task_bytes(self) -> int:
        """The maximum bytes of memory of a task without tables of offsets."""
        rows, segments = self.rows, min(MAX_SEGMENTS, max(self.fan_out, self.blocks))
        entries = CHILD_BYTES * self.fan_out + BLOCK_BYTES * self.blocks
        partition = prod(self.shapes[-1]) * (rows.width + rows.count_bytes)
        chunks = rows.chunk_bytes * self.concurrency
        return entries + SEGMENT_BYTES * segments + partition + self.scratch_bytes + chunks

    def tables_bytes(self, first: int) -> int:
        """Return the bytes of the offsets of segments, of one group at each depth from `first`."""
        tables = sum(level.fan_out + 2 for level in self.levels[first:])
        return 8 * tables * (self.blocks + 1)

    @property
    def memory(self) -> int:
        """The maximum bytes of memory of a run."""
        in_memory = sum(in_memory for _, in_memory in self.regions.values())
        return self.tables_bytes(0) + in_memory + self.workers * self.task_bytes

    @property
    def limited_memory(self) -> int:
        """The bytes of memory that are limited: of a run, or of a task on a cluster."""
        return self.tables_bytes(1) + self.task_bytes if self.rows.on_cluster else self.memory

    def fit_to(self, allowed: int) -> Partitioning:
        """Return the partitioning with fewer tasks and buffers, to fit in `allowed` bytes."""
        on_cluster, chunk_bytes = self.rows.on_cluster, self.rows.chunk_bytes
        spare = allowed - self.tables_bytes(on_cluster)
        excess = self.task_bytes - spare // (1 if on_cluster else self.workers)
        fewer = min(self.concurrency - 1, max(0, -(-excess // max(1, chunk_bytes))))
        fitted = replace(self, concurrency=self.concurrency - fewer)
        if on_cluster:
            return fitted
        workers = max(1, min(self.workers, spare // fitted.task_bytes))
        in_memory = max(0, min(self.in_memory, spare - workers * fitted.task_bytes))
        return replace(fitted, workers=workers, in_memory=in_memory)


def memory_error(needed: int, allowed: int) -> ResourceError:
    """Return the error that a run needs more memory than --memory allows."""
    unit = 10 ** max(0, len(str(needed)) - 3)
    needed = -(-needed // unit) * unit  # rounded up to three digits
    return ResourceError(
        f"{option('memory')} {format_size(allowed)} is less than the {format_size(needed)} that"
        " this run needs at least",
        hint=f"{option('memory', needed)}, or more",
    )
