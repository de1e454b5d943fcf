"""The requests and bytes of a run's tasks, counted from its partitioning alone.

Counts are exact if the tuples of each block select rows of all partitions equally often, and no
task is repeated; requests to remote stores are upper bounds for any tuples.
"""

from __future__ import annotations

from collections import Counter
from math import lcm, prod
from typing import NamedTuple

from ndtool.arrays.source import ArrayMetadata, Constant, Inputs
from ndtool.outofcore import segments
from ndtool.outofcore.partitioning import Partitioning, slab, tuple_shape
from ndtool.outofcore.phases import REPORT_BYTES
from ndtool.rules import grid
from ndtool.storage import locations, objects


class StoredArray(NamedTuple):
    """An input or the output of a run.

    is_remote: whether it is at a URL. shape: the shape of its axes of index tuples, () for data.
    is_constant: whether all elements are equal, so that nothing is read. is_shared: whether it is
    indices that batches share, so that each block may read all of them.
    """

    metadata: ArrayMetadata
    is_remote: bool
    shape: tuple[int, ...] = ()
    is_constant: bool = False
    is_shared: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes that are read; chunks at the edges of a Zarr array are stored complete."""
        if self.is_constant:
            return 0
        metadata = self.metadata
        if metadata.layout is None or metadata.layout.version is None:
            return metadata.nbytes
        return self.chunks * self.chunk_bytes

    @property
    def chunks(self) -> int:
        """The number of chunks."""
        return grid.count_blocks(self.metadata.shape, self.metadata.block_shape)

    @property
    def chunk_bytes(self) -> int:
        """The bytes of a chunk."""
        return prod(self.metadata.block_shape) * self.metadata.dtype.itemsize

    @property
    def object_count(self) -> int:
        """The number of objects of a chunked array."""
        return grid.count_blocks(self.metadata.shape, self.metadata.file_shape)

    def read_requests(self, partitioning: Partitioning, on_cluster: bool) -> Counter[str]:
        """Return the requests that read it: each chunk once for each block that needs it."""
        metadata = self.metadata
        if not self.is_remote or not metadata.nbytes:
            return Counter()
        if not metadata.is_chunked:
            return Counter(get=1 + -(-metadata.nbytes // objects.MAX_REQUEST), head=1)
        is_sharded = metadata.file_shape != metadata.block_shape
        per_chunk = -(-self.chunk_bytes // objects.MAX_REQUEST) + is_sharded
        reread = self.reread_bytes(partitioning) // self.chunk_bytes
        head = is_sharded * self.object_count  # each process requests the size of a shard
        if on_cluster:
            head += is_sharded * min(reread, self.object_count * (partitioning.workers - 1))
        else:  # at the end, whether a chunk has changed; a cluster lists the store instead
            head += self.object_count
        return Counter(get=(self.chunks + reread) * per_chunk, head=head)

    def reread_bytes(self, partitioning: Partitioning) -> int:
        """Return the bytes that are read again, as two blocks need them."""
        metadata, rows = self.metadata, partitioning.rows
        if self.is_shared:
            ends = 2 * partitioning.blocks * self.chunk_bytes if metadata.is_chunked else 0
            return max(0, rows.tuples * rows.tuple_bytes - metadata.nbytes) + ends
        if not metadata.is_chunked or not self.shape:
            return 0
        unit = slab(metadata.block_shape, self.shape)
        boxes = 2 * len(self.shape) - 1  # that cover a range with any start and stop
        per_end = -(-self.chunks * unit // max(1, prod(self.shape))) * boxes
        ends = partitioning.blocks - 1  # of blocks, some of which are also ends of units
        ends -= ends * partitioning.block_tuples // lcm(partitioning.block_tuples, unit)
        return ends * per_end * self.chunk_bytes

    def write_requests(self) -> Counter[str]:
        """Return the requests that write it."""
        if not self.is_remote:
            return Counter()
        if self.metadata.is_chunked:
            return Counter(put=self.object_count)
        upload_parts = -(-self.metadata.nbytes // objects.MIN_PART)
        return Counter(put=upload_parts + 2 if upload_parts > 1 else 1)


def count(
    call: Inputs, remote_roles: set[str], partitioning: Partitioning, output: StoredArray,
    spill: str | None,
) -> tuple[dict[str, int], int, int]:  # fmt: skip
    """Return a run's requests to URLs by kind, and the bytes that are read and written.

    remote_roles: the inputs at URLs. spill: the location of a cluster's spilled data, None for a
    run in one process.
    """
    plan = call.inference.plan
    positions = {"indices": plan.positions, "updates": tuple_shape(plan)}
    inputs = {
        role: StoredArray(
            source.metadata, role in remote_roles, positions.get(role, ()),
            isinstance(source, Constant), role == "indices" and partitioning.rows.repeats > 1,
        )
        for role, source in call.sources.items()
    }  # fmt: skip
    requests = output.write_requests()
    for array in inputs.values():
        requests += array.read_requests(partitioning, spill is not None)
    read = sum(array.nbytes + array.reread_bytes(partitioning) for array in inputs.values())
    read += partitioning.spilled
    written = output.nbytes + partitioning.spilled
    if spill is not None:
        trailers = partitioning.blocks * (8 * (partitioning.fan_out(0) + 1) + REPORT_BYTES)
        written += trailers
        if locations.is_url(spill):
            requests += _spilled_requests(partitioning, trailers)
    kinds = sorted(kind for kind in requests if requests[kind])
    return {kind: requests[kind] for kind in kinds}, read, written


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
