"""The requests and bytes of a run's tasks, counted from its partitioning alone.

Counts are exact if the tuples of each block select rows of all partitions equally often, and no
task is repeated; requests to remote stores are upper bounds for any tuples.
"""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import NamedTuple

from ndtool.arrays.constant import Constant
from ndtool.arrays.loaded import Inputs
from ndtool.arrays.source import ArrayMetadata
from ndtool.outofcore import segments
from ndtool.outofcore.partitioning import (
    MAX_SEGMENTS,
    Partitioning,
    reread_bytes,
    slab,
    tuple_shape,
)
from ndtool.outofcore.phases import REPORT_BYTES
from ndtool.rules import grid
from ndtool.storage import locations, objects

KINDS = "read", "write", "get", "put", "head"


class StoredArray(NamedTuple):
    """An input or the output of a run.

    is_remote: whether it is at a URL. shape: the shape of its axes of index tuples, () for data.
    is_constant: whether all elements are equal, so that nothing is read.
    """

    metadata: ArrayMetadata
    is_remote: bool
    shape: tuple[int, ...] = ()
    is_constant: bool = False

    @property
    def nbytes(self) -> int:
        """The bytes that are read; chunks at the edges of a Zarr array are stored complete."""
        if self.is_constant:
            return 0
        metadata = self.metadata
        if metadata.layout is None or metadata.layout.version is None:
            return metadata.nbytes
        chunks = grid.count_blocks(metadata.shape, metadata.block_shape)
        return chunks * prod(metadata.block_shape) * metadata.dtype.itemsize

    @property
    def object_count(self) -> int:
        """The number of objects of a chunked array."""
        return grid.count_blocks(self.metadata.shape, self.metadata.file_shape)

    def read_requests(self, partitioning: Partitioning) -> Counter[str]:
        """Return the requests that read it: each chunk once for each block that needs it."""
        metadata = self.metadata
        if not self.is_remote or not metadata.nbytes:
            return Counter()
        if not metadata.is_chunked:
            return Counter(get=1 + -(-metadata.nbytes // objects.MAX_REQUEST), head=1)
        chunks = grid.count_blocks(metadata.shape, metadata.block_shape)
        is_sharded = int(self.is_sharded)
        chunk_nbytes = prod(metadata.block_shape) * metadata.dtype.itemsize
        per_chunk = -(-chunk_nbytes // objects.MAX_REQUEST) + is_sharded
        reread = self._reread_chunks(partitioning, chunks)
        # At the end, each process checks whether the chunks that it read have changed.
        head = self.object_count + min(reread, self.object_count * (partitioning.workers - 1))
        return Counter(get=(chunks + reread) * per_chunk, head=head * (1 + is_sharded))

    @property
    def is_sharded(self) -> bool:
        """Whether an object has several chunks."""
        return self.metadata.file_shape != self.metadata.block_shape

    def _reread_chunks(self, partitioning: Partitioning, chunks: int) -> int:
        """Return how many chunks are read more than once because a block ends in them."""
        unit = slab(self.metadata.block_shape, self.shape)
        boxes = 2 * len(self.shape) - 1  # that cover a range with any start and stop
        per_end = -(-chunks * unit // max(1, prod(self.shape))) * boxes
        return partitioning.divided_ends(unit) * per_end

    def write_requests(self) -> Counter[str]:
        """Return the requests that write it."""
        if not self.is_remote:
            return Counter()
        if self.metadata.is_chunked:
            return Counter(put=self.object_count)
        upload_parts = -(-self.metadata.nbytes // objects.MIN_PART)
        return Counter(put=upload_parts + 2 if upload_parts > 1 else 1)


class SpilledSegments(NamedTuple):
    """The segments that a phase spills at a depth.

    in_objects: whether they are objects at a URL. segments: their number. segment_tuples: the
    tuples of each but the last. tuples: the tuples of all. per_tuple: bytes of a tuple. in_memory:
    bytes that stay in memory. trailer: bytes at the end of each segment.
    """

    in_objects: bool
    segments: int
    segment_tuples: int
    tuples: int
    per_tuple: int
    in_memory: int = 0
    trailer: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all segments, without trailers."""
        return self.tuples * self.per_tuple

    @property
    def file_bytes(self) -> int:
        """The bytes of all segments, without trailers, that are not in memory."""
        return max(0, self.nbytes - self.in_memory)

    @property
    def object_count(self) -> int:
        """The maximum number of objects that store the segments."""
        size = segments.OBJECT_BYTES
        last = self.tuples - (self.segments - 1) * self.segment_tuples
        if not self.trailer or last <= 0:  # segments of any size
            return (self.nbytes + self.segments * self.trailer) // size + self.segments
        each, last = (
            -(-(n * self.per_tuple + self.trailer) // size) for n in (self.segment_tuples, last)
        )
        return (self.segments - 1) * each + last

    def writes(self, calls: int) -> Counter[str]:
        """Return the requests that write the segments, each with `calls` writes."""
        if self.in_objects:
            return Counter(put=self.object_count)
        return Counter(write=self._in_files * (calls + (self.trailer > 0)))

    def reads(self, slices: int, first: int, stop: int) -> Counter[str]:
        """Return the requests that read `slices` slices.

        first, stop: the bytes of a segment that slices are in, per tuple. A slice that crosses a
        boundary of objects takes two requests.
        """
        if not self.in_objects:
            return Counter(read=-(-slices * self._in_files // max(1, self.segments)))
        size, n = segments.OBJECT_BYTES, min(self.segment_tuples, self.tuples)
        boundaries = self.nbytes // size
        if self.trailer:
            boundaries = self.segments * max(0, max(0, n * stop - 1) // size - n * first // size)
        return Counter(get=slices + boundaries)

    @property
    def _in_files(self) -> int:
        """The number of segments that are partly or completely in files."""
        return -(-self.segments * self.file_bytes // max(1, self.nbytes))


class Costs(NamedTuple):
    """The costs of a run's tasks.

    requests: by kind, for spilled data and for arrays at URLs. read, written: bytes of arrays and
    of spilled data.
    """

    requests: dict[str, int]
    read: int
    written: int


def count(
    call: Inputs, remote_roles: set[str], partitioning: Partitioning, output: StoredArray,
    spill: str | None, directories: int,
) -> Costs:  # fmt: skip
    """Count the costs of a run.

    remote_roles: the inputs at URLs. spill: the location of a cluster's spilled data, None for a
    run in one process, which stripes spilled data over so many directories.
    """
    plan, rows = call.inference.plan, partitioning.rows
    positions = {"indices": plan.positions, "updates": tuple_shape(plan)}
    inputs = {
        role: StoredArray(
            source.metadata, role in remote_roles, positions.get(role, ()),
            isinstance(source, Constant),
        )
        for role, source in call.sources.items()
    }  # fmt: skip
    metadata = {role: stored.metadata for role, stored in inputs.items()}
    requests = output.write_requests()
    for array in inputs.values():
        requests += array.read_requests(partitioning)
    read = sum(array.nbytes for array in inputs.values())
    read += reread_bytes(call.inference, metadata, partitioning)
    if spill is not None:  # each worker reads the indices that batches share
        read += (partitioning.workers - 1) * partitioning.index_bytes
    written = output.nbytes
    for depth in range(partitioning.depth):
        is_last, n = depth + 1 == partitioning.depth, rows.tuples
        size, per_tuple = partitioning.local_bytes(depth), partitioning.spilled_per_tuple(depth)
        split, swept = spilled_segments(partitioning, depth, spill)
        ends = 0 if is_last else partitioning.blocks_at(depth + 1) - partitioning.groups(depth + 1)
        slices = min(partitioning.segments(depth) + ends, n)
        requests += split.writes(2) + split.reads(slices, 0, size)
        written += split.file_bytes + split.trailer * split.segments
        read += split.file_bytes
        if not partitioning.gathers:
            requests += split.reads(slices, size, per_tuple)
            continue
        writes = -(-partitioning.blocks_at(depth + 1) // partitioning.groups(depth + 1))
        if is_last:
            segment_tuples = max(1, -(-n // partitioning.segments(depth)))
            together = max(1, min(MAX_SEGMENTS, partitioning.block_tuples // segment_tuples))
            writes = -(-partitioning.segments(depth) // partitioning.partitions // together)
        blocks = partitioning.blocks_at(depth)
        requests += swept.writes(writes) + split.reads(blocks, size, per_tuple)
        requests += swept.reads(min(blocks * partitioning.fan_out(depth), n), 0, rows.width)
        written, read = written + swept.file_bytes, read + swept.file_bytes
    if spill is None and directories > 1:  # each stripe takes a request of its own
        ends = partitioning.spilled // segments.STRIPE
        requests += Counter(read=ends, write=ends)
    return Costs({kind: requests[kind] for kind in KINDS if requests[kind]}, read, written)


def spilled_segments(
    partitioning: Partitioning, depth: int, spill: str | None
) -> tuple[SpilledSegments, SpilledSegments]:
    """Return the segments that split and, of gathers, sweep spill for all groups at a depth."""
    n, regions = partitioning.rows.tuples, {} if spill is not None else partitioning.regions
    in_memory = [
        regions.get((phase, depth), (0, 0))[1] * partitioning.groups(depth)
        for phase in ("split", "sweep")
    ]
    in_objects = spill is not None and locations.is_url(spill)
    has_trailer = spill is not None and not depth
    children = min(partitioning.groups(depth + 1), n) if partitioning.gathers else 0
    return (
        SpilledSegments(
            in_objects, partitioning.blocks_at(depth), partitioning.block_tuples, n,
            partitioning.spilled_per_tuple(depth), in_memory[0],
            has_trailer * (8 * (partitioning.fan_out(0) + 1) + REPORT_BYTES),
        ),
        SpilledSegments(
            in_objects, children, -(-n // max(1, children)), n, partitioning.rows.width,
            in_memory[1],
        ),
    )  # fmt: skip
