"""The units of external execution: chunks and shards that partitions and blocks do not divide."""

from __future__ import annotations

from math import lcm, prod
from typing import NamedTuple

from ndtool.arrays.source import ArrayMetadata
from ndtool.rules import grid
from ndtool.rules.inference import Inference
from ndtool.rules.plans import ElementsPlan, NdPlan, Plan, Shape

CODEC_BUFFERS = 4  # buffers of a chunk's size to decode or encode it, with any codec
PLAIN_BUFFERS = 2  # buffers of a chunk's size without a codec
WRITTEN_CHUNK_BYTES = 1 << 12  # memory for each chunk of a shard to write
READ_CHUNK_BYTES = 64  # memory for each chunk of a shard to read from


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
    axes = len(plan.data if isinstance(plan, ElementsPlan) else plan.batch + plan.sizes)
    steps = [file_shape(sources["data"])]
    gathers = not inference.scatters
    if not gathers:
        steps.append(file_shape(output))
    box = tuple(
        min(size, lcm(*(step[d] for step in steps if step)))
        for d, size in enumerate(plan.data[:axes])
    )
    positions = tuple_shape(plan) if gathers else ()
    slabs = {"indices": plan.positions, "updates": tuple_shape(plan)}
    if not isinstance(plan, ElementsPlan) and plan.batch_repeats > 1:
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
    return plan.with_index_tuples.positions if isinstance(plan, NdPlan) else plan.positions


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
            if d and length % step[d]:  # lines end in an incomplete chunk
                return prod(positions[d:])
            return min(step[d], length) * prod(positions[d + 1 :])
    return 1
