"""The requests and bytes of a run's tasks, counted from its partitioning alone.

Counts are exact if the tuples of each block select rows of all partitions equally often, and no
task is repeated; requests to remote stores are upper bounds for any tuples.
"""

from __future__ import annotations

from collections import Counter
from math import lcm, prod

from ndtool.arrays.source import ArrayMetadata, Constant, Inputs
from ndtool.outofcore import segments
from ndtool.outofcore.partitioning import Partitioning, slab, tuple_shape
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
    positions = {"data": (), "indices": plan.positions, "updates": tuple_shape(plan)}
    for role, source in call.sources.items():
        if isinstance(source, Constant) or not source.metadata.nbytes:
            continue
        is_shared = role == "indices" and partitioning.rows.repeats > 1
        shape = None if is_shared else positions[role]
        nbytes, kinds = _reads(source.metadata, shape, partitioning, spill is not None)
        read += nbytes
        if role in remote_roles:
            requests += kinds
    written = output.nbytes + _padding(output) + partitioning.spilled
    if is_remote and output.is_chunked:
        requests["put"] += grid.count_blocks(output.shape, output.file_shape)
    elif is_remote:
        upload_parts = -(-output.nbytes // objects.MIN_PART)
        requests["put"] += upload_parts + 2 if upload_parts > 1 else 1
    if spill is not None:
        trailers = partitioning.blocks * (8 * (partitioning.fan_out(0) + 1) + REPORT_BYTES)
        written += trailers
        if locations.is_url(spill):
            requests += _spilled_requests(partitioning, trailers)
    return {kind: requests[kind] for kind in sorted(requests) if requests[kind]}, read, written


def _padding(metadata: ArrayMetadata) -> int:
    """Return the bytes that chunks at the edges of a Zarr array have in addition to the array's."""
    if metadata.layout is None or metadata.layout.version is None:
        return 0
    chunks = grid.count_blocks(metadata.shape, metadata.block_shape)
    return chunks * prod(metadata.block_shape) * metadata.dtype.itemsize - metadata.nbytes


def _reads(
    metadata: ArrayMetadata, shape: Shape | None, partitioning: Partitioning, on_cluster: bool
) -> tuple[int, Counter[str]]:
    """Return the bytes that are read of an input, and the requests for them if it is at a URL.

    Each chunk is read once for each block of tuples that needs it. shape: of its axes of tuples, ()
    for data; None for indices that batches share, of which each block may read all.
    """
    rows, nbytes, ends = partitioning.rows, metadata.nbytes, partitioning.blocks - 1
    reread = max(0, rows.tuples * rows.tuple_bytes - nbytes) if shape is None else 0
    if not metadata.is_chunked:
        return nbytes + reread, Counter(get=1 + -(-nbytes // objects.MAX_REQUEST), head=1)
    chunks = grid.count_blocks(metadata.shape, metadata.block_shape)
    files = grid.count_blocks(metadata.shape, metadata.file_shape)
    chunk_bytes = prod(metadata.block_shape) * metadata.dtype.itemsize
    if shape is None:
        reread += 2 * partitioning.blocks * chunk_bytes
    elif shape:
        unit = slab(metadata.block_shape, shape)
        boxes = 2 * len(shape) - 1  # that cover a range with any start and stop
        # The ends of blocks, some of which are also ends of units.
        ends -= ends * partitioning.block_tuples // lcm(partitioning.block_tuples, unit)
        reread = ends * -(-chunks * unit // max(1, prod(shape))) * boxes * chunk_bytes
    repeated, is_sharded = reread // chunk_bytes, metadata.file_shape != metadata.block_shape
    get = (chunks + repeated) * (-(-chunk_bytes // objects.MAX_REQUEST) + is_sharded)
    head = is_sharded * files  # each process requests the size of a shard
    if on_cluster:
        head += is_sharded * min(repeated, files * (partitioning.workers - 1))
    else:  # at the end, whether a chunk has changed; a cluster lists the store instead
        head += files
    return nbytes + _padding(metadata) + reread, Counter(get=get, head=head)


def _spilled_requests(partitioning: Partitioning, trailers: int) -> Counter[str]:
    """Return the requests for spilled data at a URL, with so many bytes of trailers."""
    rows, requests = partitioning.rows, Counter[str]()
    for depth in range(partitioning.depth):
        blocks, groups = partitioning.blocks_at(depth), partitioning.groups(depth + 1)
        is_last = depth + 1 == partitioning.depth
        ends = 0 if is_last else partitioning.blocks_at(depth + 1) - groups
        slices = min(partitioning.segments(depth) + ends, rows.tuples)
        # A sweep reads row indices, and of a scatter updates; a replay reads partition IDs.
        reads = slices + (blocks if partitioning.gathers else slices)
        nbytes = rows.tuples * partitioning.spilled_per_tuple(depth)
        requests += _segments(blocks, nbytes + (0 if depth else trailers), reads)
        if partitioning.gathers:
            reads = min(blocks * partitioning.fan_out(depth), rows.tuples)
            requests += _segments(min(groups, rows.tuples), rows.tuples * rows.width, reads)
    return requests


def _segments(number: int, nbytes: int, reads: int) -> Counter[str]:
    """Return the requests that write and read segments of so many bytes together.

    A segment has an object for each FILE_BYTES; a read that crosses a boundary takes two requests.
    """
    boundaries = nbytes // segments.FILE_BYTES
    return Counter(put=number + boundaries, get=reads + boundaries)
