"""The partitioning of an external run into tasks, and the layout of its spilled data.

A row is the contiguous slice of row-major data that an index tuple selects. In rows all operators
are alike: tuples in order, a row of data for each. Rows are numbered over the leading axes of data.
A partition is a box of rows made of complete chunks, or a range of rows of a flat array. A block is
a range of tuples.
"""

from __future__ import annotations

from math import lcm, prod
from typing import NamedTuple

from ndtool._kernels import MAX_BYTE_IDS
from ndtool.arrays.source import ArrayMetadata
from ndtool.engine.counting import Combining
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference
from ndtool.rules.plans import ElementsPlan, NdPlan, Plan, Shape

LOCAL = 4  # bytes of a row's number within its partition
ENTRY = 512  # bytes of a task's bookkeeping for a partition or a block
COPIES = 4  # buffers of a chunk's size to decode or encode it, with any codec
PLAIN = 2  # the same without a codec
INNER = 1 << 12  # bytes of the zarr package for each chunk of a shard that it writes
INDEXED = 64  # the same for each chunk of a shard that it reads from
MOST_PARTS = (1 << 16) - 1  # partition IDs have 16 bits; the last is for dropped tuples
MOST_ROWS = 1 << 32  # of a partition
MOST_WORKERS = 4


class Rows(NamedTuple):
    """A call in rows: the index tuples and the rows of data.

    tuples: their number. entry: bytes of a tuple. over: the shape of the axes that number the rows.
    width: bytes of a row. strays: whether tuples may be dropped. period, repeats: the tuples of a
    batch, and how many successive batches share them, stored once. count_bytes: bytes of the number
    of a row's updates, 0 if they are not counted.
    """

    tuples: int
    entry: int
    over: Shape
    width: int
    strays: bool = False
    period: int = 1
    repeats: int = 1
    count_bytes: int = 0

    @property
    def height(self) -> int:
        """The number of rows of data."""
        return prod(self.over)

    def stored(self, number: int) -> int:
        """Return the number of a tuple among those stored."""
        if self.repeats == 1:
            return number
        return number // (self.repeats * self.period) * self.period + number % self.period

    def fresh(self, number: int) -> int:
        """Return how many stored tuples occur before a tuple."""
        if self.repeats == 1:
            return number
        group, rest = divmod(number, self.repeats * self.period)
        return group * self.period + min(rest, self.period)


class Units(NamedTuple):
    """The units of partitions and blocks, so that chunks are not divided.

    box: the rows of data of which partitions are multiples. written: the tuples of which blocks are
    multiples, so that a task writes complete chunks. read: the same so that no two blocks read the
    same chunk; only a preference. held: bytes of the buffers that read or write a chunk. at_once:
    the number of chunks to read or write concurrently.
    """

    box: Shape
    written: int
    read: int
    held: int
    at_once: int = 1


class Partitioning(NamedTuple):
    """The partitioning of a run. block: the tuples of a block. step: the shape of a partition.

    gathers: whether rows are gathered, else updated. held: spilled bytes that stay in memory.
    chunk: bytes of the buffers that read or write a chunk. workers: the number of concurrent tasks.
    indices: bytes of repeated indices that are held in memory, 0 if each block reads its own.
    at_once: the number of chunks that a task reads or writes concurrently.
    """

    rows: Rows
    gathers: bool
    block: int
    step: Shape
    held: int
    chunk: int
    workers: int
    indices: int = 0
    at_once: int = 1

    @property
    def blocks(self) -> int:
        """The number of blocks."""
        return -(-self.rows.tuples // self.block)

    @property
    def parts(self) -> int:
        """The number of partitions."""
        return grid.blocks(self.rows.over, self.step)

    @property
    def part(self) -> int:
        """The bytes of a partition."""
        return prod(self.step) * self.rows.width

    @property
    def counts(self) -> int:
        """The bytes of the counts of a partition's updates."""
        return prod(self.step) * self.rows.count_bytes

    @property
    def id_count(self) -> int:
        """The number of partition IDs: with dropped tuples one more, the last."""
        return self.parts + self.rows.strays

    @property
    def id_bytes(self) -> int:
        """The bytes of a partition ID."""
        return 1 if self.id_count <= MAX_BYTE_IDS else 2

    @property
    def pitch(self) -> int:
        """The bytes that split spills for a tuple.

        They are the row's number in its partition, and the update or the partition ID.
        """
        return LOCAL + (self.id_bytes if self.gathers else self.rows.width)

    @property
    def sorted(self) -> int:
        """The bytes that split spills for all blocks; gathered rows follow them."""
        return self.rows.tuples * self.pitch

    @property
    def spilled_total(self) -> int:
        """The bytes that all tasks spill, in memory or to a file."""
        return self.sorted + self.rows.tuples * self.rows.width * self.gathers

    @property
    def spilled(self) -> int:
        """The bytes that are spilled to a file."""
        return max(0, self.spilled_total - self.held)

    @property
    def scratch(self) -> int:
        """The bytes of a task's scratch buffer."""
        entry = self.rows.entry * (1 if self.rows.repeats == 1 else 3)  # as stored, and expanded
        each = entry + 2 * (self.rows.width + LOCAL) + self.id_bytes
        return min(self.block, self.rows.tuples) * each + 1024

    @property
    def memory(self) -> int:
        """The maximum bytes of memory of the run."""
        tables = 8 * (self.parts + 3) * (self.blocks + 2) * (1 + self.gathers)
        return tables + self.indices + min(self.held, self.spilled_total) + self.workers * self.task

    @property
    def task(self) -> int:
        """The maximum bytes of memory of a task."""
        entries = ENTRY * (self.parts + self.blocks)
        return entries + self.part + self.counts + self.scratch + self.chunk * self.at_once

    def within(self, allowed: int) -> Partitioning:
        """Return the partitioning with less concurrency, to fit `allowed` bytes if possible."""
        partitioning = self
        while partitioning.memory > allowed and partitioning.at_once > 1:
            partitioning = partitioning._replace(at_once=partitioning.at_once // 2)
        while partitioning.memory > allowed and partitioning.workers > 1:
            partitioning = partitioning._replace(workers=partitioning.workers - 1)
        return partitioning

    def tuples(self, block: int) -> int:
        """Return the number of tuples of a block."""
        return min(self.block, self.rows.tuples - block * self.block)

    def fresh(self, block: int) -> tuple[int, int]:
        """Return the range of stored tuples that occur in a block for the first time."""
        first = block * self.block
        return self.rows.fresh(first), self.rows.fresh(first + self.tuples(block))

    def box(self, part: int) -> Box:
        """Return the start and stop of a partition along every axis of the rows."""
        return grid.box(self.rows.over, self.step, part)


def rows_of(inference: Inference, flat: bool = True) -> Rows:
    """Return a call in rows; flat: whether to number the rows along one axis."""
    plan, itemsize = inference.plan, inference.dtype.itemsize
    size = inference.inputs["indices"].dtype.itemsize
    strays = inference.handling.skips
    if isinstance(plan, ElementsPlan):
        rows = Rows(prod(plan.indices), size, plan.data, itemsize, strays)
    else:
        over = plan.batch + plan.sizes
        entry, width = plan.k * size, plan.width * itemsize
        rows = Rows(plan.tuples, entry, over, width, strays, plan.per_batch, plan.repeats)
    count = Combining.of(inference.attributes).bytes_each(rows.tuples, rows.width)
    return rows._replace(over=(rows.height,) if flat else rows.over, count_bytes=count)


def units_of(
    inference: Inference, sources: dict[str, ArrayMetadata], output: ArrayMetadata, at_once: int = 1
) -> Units:
    """Return the units of partitions and blocks from the chunks and shards of a call's arrays."""
    plan = inference.plan
    axes = len(plan.data if isinstance(plan, ElementsPlan) else plan.batch + plan.sizes)
    steps = [_files(sources["data"])]
    gathers = not inference.scatters
    if not gathers:
        steps.append(_files(output))
    box = tuple(
        min(size, lcm(*(step[d] for step in steps if step)))
        for d, size in enumerate(plan.data[:axes])
    )
    positions = positions_of(plan) if gathers else ()
    slabs = {"indices": plan.positions, "updates": positions_of(plan)}
    if not isinstance(plan, ElementsPlan) and plan.repeats > 1:
        del slabs["indices"]
    read = [_slab(_files(sources[role]), over) for role, over in slabs.items() if role in sources]
    written = _slab(_files(output), positions) if gathers else 1
    held = max(chunk_buffers(output, True), *(chunk_buffers(one) for one in sources.values()))
    return Units(box, written, lcm(*read), held, at_once)


def positions_of(plan: Plan) -> Shape:
    """Return the shape of all tuples, the leading axes of a gather's output, or of updates.

    Plain indices are repeated for the batches that share them.
    """
    return plan.unrolled.positions if isinstance(plan, NdPlan) else plan.positions


def chunk_buffers(metadata: ArrayMetadata, written: bool = False) -> int:
    """Return the bytes of the buffers that read, or write, a chunk of an array."""
    if not metadata.in_chunks:
        return 0
    layout, nbytes = metadata.layout, prod(metadata.grid) * metadata.dtype.itemsize
    if layout is not None and layout.is_plain:
        return PLAIN * nbytes
    count = grid.blocks(layout.shards, layout.chunks) if layout and layout.shards else 0
    return COPIES * nbytes + count * (INNER if written else INDEXED)


def read_again(
    inference: Inference, sources: dict[str, ArrayMetadata], partitioning: Partitioning
) -> int:
    """Return the maximum bytes of indices and updates that are read again.

    The next block reads a chunk again in which a block ends; every batch reads repeated indices
    again that are not held.
    """
    again, ends, rows = 0, partitioning.blocks - 1, partitioning.rows
    for role, metadata in sources.items():
        if role == "data" or (role == "indices" and partitioning.indices):
            continue
        over = inference.plan.positions if role == "indices" else positions_of(inference.plan)
        slab = _slab(_files(metadata), over)
        if role == "indices" and rows.repeats > 1:
            read = rows.tuples
            if (
                rows.period * rows.repeats == rows.tuples
            ):  # one group: a period is read once a block
                read = ends * min(partitioning.block, rows.period) + min(
                    partitioning.tuples(ends), rows.period
                )
            again += (read + 2 * partitioning.blocks * (slab - 1)) * rows.entry - metadata.nbytes
        else:
            within = ends - ends * partitioning.block // lcm(partitioning.block, slab)
            again += within * slab * (metadata.nbytes // rows.tuples)
    return again


def _files(metadata: ArrayMetadata) -> Shape | None:
    """Return the shape of the array in one file, a chunk or shard; None for a flat array."""
    return metadata.unit if metadata.in_chunks else None


def _slab(step: Shape | None, positions: Shape) -> int:
    """Return the smallest number of successive positions that make complete chunks."""
    if step is None or not prod(positions):
        return 1
    for d, length in enumerate(positions):
        if min(step[d], length) > 1:
            if d and length % step[d]:  # lines end in an incomplete chunk
                return prod(positions[d:])
            return min(step[d], length) * prod(positions[d + 1 :])
    return 1


def partitioning_for(
    rows: Rows, gathers: bool, budget: int, threads: int, units: Units | None = None
) -> Partitioning:
    """Partition a run to take about `budget` bytes of memory, or as much as chunks need.

    A quarter is for spilled data; a worker has an eighth for a partition, and half of that for
    scratch. Repeated indices are held if they take no more than an eighth.
    """
    buffer = budget // 8
    step = _step(rows, buffer, units)
    while grid.blocks(rows.over, step) > MOST_PARTS:
        buffer *= 2
        step = _step(rows, buffer, units)
    block = max(1, budget // 16 // (2 * (rows.width + LOCAL) + 2))
    if units is not None:
        both = lcm(units.read, units.written)
        unit = both if both <= block else units.written
        block = max(1, block // unit) * unit
    workers = min(threads + (threads > 1), MOST_WORKERS)
    chunk = 0 if units is None else units.held
    repeated = rows.tuples // rows.repeats * rows.entry
    indices = repeated if rows.repeats > 1 and repeated <= budget // 8 else 0
    at_once = 1 if units is None else units.at_once
    return Partitioning(rows, gathers, block, step, budget // 4, chunk, workers, indices, at_once)


def _step(rows: Rows, buffer: int, units: Units | None) -> Shape:
    """Return the shape of a partition of about `buffer` bytes."""
    most = max(1, buffer // max(1, rows.width + rows.count_bytes))
    if units is None:
        step = 1
        while step * 2 <= most and step < rows.height:
            step *= 2
        return (min(step, rows.height),)
    shape = list(units.box)
    for d in reversed(range(len(shape))):
        times = most // prod(shape)
        if times > 1:
            shape[d] = min(rows.over[d], shape[d] * times)
        if shape[d] < rows.over[d]:
            break
    return tuple(shape)
