"""The requests and bytes of a run's tasks, counted from its partitioning alone.

Counts are exact if the tuples of each block select rows of all partitions equally often, and no
task is repeated; requests to remote stores are upper bounds for any tuples.
"""

from __future__ import annotations

from collections import Counter
from math import lcm, prod

from ndtool.arrays.source import ArrayMetadata, Constant, Inputs
from ndtool.outofcore import segments
from ndtool.outofcore.partitioning import Partitioning, slab
from ndtool.outofcore.phases import REPORT_BYTES
from ndtool.rules import grid
from ndtool.rules.plans import Shape
from ndtool.storage import locations, objects


def count(
    call: Inputs, remote_roles: set[str], partitioning: Partitioning, output: ArrayMetadata,
    is_remote: bool, spill: str | None,
) -> tuple[dict[str, int], int, int]:  # fmt: skip
    """Return a run's requests to URLs by kind, and the bytes that are read and written.

    remote_roles: the inputs at URLs. is_remote: whether the output is at a URL. spill: the location
    of a cluster's spilled data, None for a run in one process.
    """
    plan, requests, read = call.inference.plan, Counter[str](), partitioning.spilled
    axes = {"data": (), "updates": plan.with_index_tuples.positions}
    if plan.batch_repeats == 1:
        axes["indices"] = plan.positions
    for role, source in call.sources.items():
        if not isinstance(source, Constant) and source.metadata.nbytes:
            nbytes, kinds = _reads(source.metadata, axes.get(role), partitioning)
            read += nbytes
            if role in remote_roles:
                requests += kinds
    written = _stored_bytes(output) + partitioning.spilled
    if is_remote and output.is_chunked:
        requests["put"] += grid.count_blocks(output.shape, output.file_shape)
    elif is_remote:
        upload_parts = -(-output.nbytes // objects.MIN_PART)
        requests["put"] += upload_parts + 2 if upload_parts > 1 else 1
    if spill is not None:
        trailers = partitioning.blocks * (8 * (partitioning.levels[0].fan_out + 1) + REPORT_BYTES)
        written += trailers
        if locations.is_url(spill):
            requests += _spilled_requests(partitioning, trailers)
    return {kind: requests[kind] for kind in sorted(requests) if requests[kind]}, read, written


def _stored_bytes(metadata: ArrayMetadata) -> int:
    """Return the bytes of an array before codecs; chunks at its edges are complete."""
    if metadata.layout is None:
        return metadata.nbytes
    chunks = grid.count_blocks(metadata.shape, metadata.block_shape)
    return chunks * prod(metadata.block_shape) * metadata.dtype.itemsize


def _reads(
    metadata: ArrayMetadata, axes: Shape | None, partitioning: Partitioning
) -> tuple[int, Counter[str]]:
    """Return the bytes that are read of an input, and the requests for them if it is at a URL.

    Each chunk is read once for each block of tuples that needs it. axes: those of its tuples, ()
    for data; None for indices that batches share, of which each block may read all.
    """
    rows, blocks, block_tuples = partitioning.rows, partitioning.blocks, partitioning.block_tuples
    reread = max(0, rows.tuples * rows.tuple_bytes - metadata.nbytes) if axes is None else 0
    if not metadata.is_chunked:
        parts = -(-metadata.nbytes // objects.MAX_REQUEST)
        return metadata.nbytes + reread, Counter(get=1 + parts, head=1)
    chunks = grid.count_blocks(metadata.shape, metadata.block_shape)
    files = grid.count_blocks(metadata.shape, metadata.file_shape)
    chunk_bytes = prod(metadata.block_shape) * metadata.dtype.itemsize
    repeated = 0
    if axes is None:
        repeated = -(-reread // chunk_bytes) + 2 * blocks
    elif axes:
        unit = slab(metadata.block_shape, axes)
        boxes = 2 * len(axes) - 1  # that cover a range with any start and stop
        # The ends of blocks, some of which are also ends of units.
        ends = blocks - 1 - (blocks - 1) * block_tuples // lcm(block_tuples, unit)
        repeated = ends * -(-chunks * unit // max(1, prod(axes))) * boxes
    is_sharded = metadata.file_shape != metadata.block_shape
    get = (chunks + repeated) * (-(-chunk_bytes // objects.MAX_REQUEST) + is_sharded)
    head = is_sharded * files  # each process requests the size of a shard
    if rows.on_cluster:
        head += is_sharded * min(repeated, files * (partitioning.workers - 1))
    else:  # at the end, whether a chunk has changed; a cluster lists the store instead
        head += files
    return _stored_bytes(metadata) + repeated * chunk_bytes, Counter(get=get, head=head)


def _spilled_requests(partitioning: Partitioning, trailers: int) -> Counter[str]:
    """Return the requests for spilled data at a URL, with so many bytes of trailers.

    A segment has an object for each FILE_BYTES; a read that crosses a boundary takes two requests.
    """
    rows, levels, requests = partitioning.rows, partitioning.levels, Counter[str]()
    for level, inner in zip(levels, [*levels[1:], None], strict=True):
        children = inner.groups if inner else partitioning.partitions
        slices = min(level.segments + (inner.blocks - children if inner else 0), rows.tuples)
        # A sweep reads row indices, and of a scatter updates; a replay reads partition IDs.
        reads = slices + (level.blocks if rows.gathers else slices)
        counts = {
            "split": (level.blocks, reads),
            "sweep": (min(children, rows.tuples), level.segments),
        }
        for phase, nbytes in level.spilled.items():
            is_first = phase == "split" and level is levels[0]
            boundaries = (rows.tuples * nbytes + trailers * is_first) // segments.FILE_BYTES
            written, read = counts[phase]
            requests += Counter(put=written + boundaries, get=read + boundaries)
    return requests
