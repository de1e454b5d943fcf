"""The chunks that external execution does not divide."""

from __future__ import annotations

from math import lcm, prod
from typing import NamedTuple

from ndtool.arrays.source import ArrayMetadata
from ndtool.rules import grid
from ndtool.rules.inference import Inference
from ndtool.rules.plans import ElementsPlan, NdPlan, Plan, Shape

COPIES = 4  # buffers of a chunk's size to decode or encode it, with any codec
PLAIN = 2  # the same without a codec
INNER = 1 << 12  # bytes of the zarr package for each chunk of a shard that it writes
INDEXED = 64  # the same for each chunk of a shard that it reads from


class Units(NamedTuple):
    """The units of partitions and blocks, so that chunks are not divided.

    box: the rows of data of which partitions are multiples. written: the tuples of which blocks are
    multiples, so that a task writes complete chunks. read: the same so that no two blocks read the
    same chunk; only a preference. held: bytes of the buffers that read or write a chunk.
    concurrency: the number of chunks to read or write concurrently.
    """

    box: Shape
    written: int
    read: int
    held: int
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
    steps = [files_of(sources["data"])]
    gathers = not inference.scatters
    if not gathers:
        steps.append(files_of(output))
    box = tuple(
        min(size, lcm(*(step[d] for step in steps if step)))
        for d, size in enumerate(plan.data[:axes])
    )
    positions = positions_of(plan) if gathers else ()
    slabs = {"indices": plan.positions, "updates": positions_of(plan)}
    if not isinstance(plan, ElementsPlan) and plan.batch_repeats > 1:
        del slabs["indices"]
    read = [slab(files_of(sources[role]), over) for role, over in slabs.items() if role in sources]
    written = slab(files_of(output), positions) if gathers else 1
    held = max(chunk_buffers(output, True), *(chunk_buffers(source) for source in sources.values()))
    return Units(box, written, lcm(*read), held, concurrency)


def positions_of(plan: Plan) -> Shape:
    """Return the shape of all tuples, the leading axes of a gather's output, or of updates.

    Plain indices are repeated for the batches that share them.
    """
    return plan.with_index_tuples.positions if isinstance(plan, NdPlan) else plan.positions


def chunk_buffers(metadata: ArrayMetadata, written: bool = False) -> int:
    """Return the bytes of the buffers that read, or write, a chunk of an array."""
    if not metadata.is_chunked:
        return 0
    layout, nbytes = metadata.layout, prod(metadata.block_shape) * metadata.dtype.itemsize
    if layout is not None and layout.is_unencoded:
        return PLAIN * nbytes
    count = grid.count_blocks(layout.shards, layout.chunks) if layout and layout.shards else 0
    return COPIES * nbytes + count * (INNER if written else INDEXED)


def files_of(metadata: ArrayMetadata) -> Shape | None:
    """Return the shape of the array in one file, a chunk or shard; None for a flat array."""
    return metadata.file_shape if metadata.is_chunked else None


def slab(step: Shape | None, positions: Shape) -> int:
    """Return the smallest number of successive positions that make complete chunks."""
    if step is None or not prod(positions):
        return 1
    for d, length in enumerate(positions):
        if min(step[d], length) > 1:
            if d and length % step[d]:  # lines end in an incomplete chunk
                return prod(positions[d:])
            return min(step[d], length) * prod(positions[d + 1 :])
    return 1
