"""The requests and bytes of a run, counted from its partitioning alone.

Counts are exact if the tuples of each block select rows of all partitions equally often, and no
task is repeated; requests to remote stores are upper bounds for any tuples.
"""

from __future__ import annotations

from collections import Counter
from math import lcm, prod
from typing import NamedTuple

from ndtool.arrays.constant import Constant
from ndtool.arrays.loaded import Inputs
from ndtool.arrays.source import ArrayMetadata
from ndtool.outofcore import segments
from ndtool.outofcore.partitioning import MAX_SEGMENTS, Partitioning, reread_bytes, tuple_shape
from ndtool.outofcore.phases import REPORT_BYTES
from ndtool.rules import grid
from ndtool.storage import locations, objects

LIST_PAGE = 1000  # maximum objects in the response to a list request, and in a delete request
# Maximum requests to open and close a run at URLs: of each process for an input, of the run for the
# output and for spilled data, and of each process for the output.
INPUT_REQUESTS = Counter(get=4, head=4)
OUTPUT_REQUESTS = Counter(get=20, put=4, list=8, delete=2)
SPILL_REQUESTS = Counter(get=12, put=4, list=8, delete=2)
WRITER_REQUESTS = Counter(get=2)


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
        slab, step = 1, self.metadata.block_shape
        for d, size in enumerate(self.shape):
            if min(step[d], size) > 1:
                incomplete = prod(self.shape[:d]) > 1 and size % step[d]
                slab = prod(self.shape[d:]) if incomplete else step[d] * prod(self.shape[d + 1 :])
                break
        if slab == 1:
            return 0
        ends = partitioning.blocks - 1
        divided = ends - ends * partitioning.block_tuples // lcm(partitioning.block_tuples, slab)
        boxes = 2 * len(self.shape) - 1  # that cover a range with any start and stop
        return divided * -(-chunks * slab // max(1, prod(self.shape))) * boxes

    def write_requests(self) -> Counter[str]:
        """Return the requests that write it."""
        if not self.is_remote:
            return Counter()
        if self.metadata.is_chunked:
            return Counter(put=self.object_count)
        upload_parts = -(-self.metadata.nbytes // objects.MIN_PART)
        return Counter(put=upload_parts + 2 if upload_parts > 1 else 1)


class Costs(NamedTuple):
    """The costs of all tasks of a phase at a depth.

    requests: the number by kind, for spilled data, tables, and arrays at URLs. read, written: bytes
    of arrays and of spilled data.
    """

    requests: Counter[str]
    read: int
    written: int


class CostModel(NamedTuple):
    """The cost model of a run.

    spill: where data are spilled, "memory" (of one process, with a temporary file), a shared
    "folder" or "objects". inputs: the inputs by role. reread: bytes of indices and updates that are
    read repeatedly. output: the output. directories: how many directories spilled data are
    striped over; each stripe takes a request of its own.
    """

    partitioning: Partitioning
    spill: str
    inputs: dict[str, StoredArray]
    reread: int
    output: StoredArray
    directories: int = 1

    @property
    def is_shared(self) -> bool:
        """Whether workers share the spilled data, so that tables and trailers are stored, too."""
        return self.spill != "memory"

    def phases(self) -> list[Costs]:
        """Return the costs of each phase, in order."""
        depths = range(self.partitioning.depth)
        replays = map(self._replay, reversed(depths)) if self.partitioning.gathers else ()
        return [*map(self._split, depths), self._sweep(), *replays]

    def requests(self, phases: list[Costs]) -> dict[str, int]:
        """Return the requests of all phases, and to open and close the run, by kind."""
        total = sum((phase.requests for phase in phases), Counter[str]()) + self._setup_requests()
        if self.directories > 1:
            ends = self.partitioning.spilled // segments.STRIPE
            total += Counter(read=ends, write=ends)
        kinds = ("read", "write", "get", "put", "head", "list", "delete")
        return {kind: total[kind] for kind in kinds if total[kind]}

    def _setup_requests(self) -> Counter[str]:
        """Return the maximum requests to open and close a run."""
        processes = 1 + self.partitioning.workers * self.is_shared
        requests = Counter[str]()
        for array in self.inputs.values():
            if array.is_remote:
                requests += Counter({kind: n * processes for kind, n in INPUT_REQUESTS.items()})
            if array.is_remote and self.is_shared:  # its fingerprints before and after the run
                requests["list"] += 2 * -(-array.object_count // LIST_PAGE)
        if self.output.is_remote:
            requests += OUTPUT_REQUESTS + Counter(
                {kind: n * processes for kind, n in WRITER_REQUESTS.items()}
            )
        if self.spill == "objects":
            depths = range(self.partitioning.depth)
            spilled = [self._segments(phase, d) for phase in ("split", "sweep") for d in depths]
            objects = sum(each.object_count for each in spilled)
            requests += SPILL_REQUESTS + Counter(
                list=1 + -(-objects // LIST_PAGE), delete=-(-objects // LIST_PAGE)
            )
        return requests

    def _segments(self, phase: str, depth: int) -> SpilledSegments:
        """Return the segments of a phase of all groups at a depth."""
        partitioning, rows = self.partitioning, self.partitioning.rows
        if phase == "sweep":
            count = min(partitioning.groups(depth + 1), rows.tuples) if partitioning.gathers else 0
            return SpilledSegments(count, -(-rows.tuples // max(1, count)), rows.tuples, rows.width)
        trailer = 8 * (partitioning.fan_out(0) + 1) + REPORT_BYTES
        return SpilledSegments(
            partitioning.blocks_at(depth), partitioning.block_tuples, rows.tuples,
            partitioning.spilled_per_tuple(depth), trailer * (self.is_shared and not depth),
        )  # fmt: skip

    def _split(self, depth: int) -> Costs:
        partitioning, requests = self.partitioning, self._write_requests("split", depth, 2)
        if depth:
            ends = partitioning.blocks_at(depth) - partitioning.groups(depth)
            reads, read = self._read_tuples(depth, ends)
        else:
            arrays = [array for role, array in self.inputs.items() if role != "data"]
            reads = sum((array.read_requests(partitioning) for array in arrays), Counter[str]())
            read = sum(array.nbytes for array in arrays) + self.reread
            # Each worker reads the indices that batches share.
            read += (partitioning.workers - 1) * partitioning.index_bytes * self.is_shared
        written = self._file_bytes("split", depth)
        written += self._segments("split", depth).trailer * partitioning.blocks
        if self.is_shared and not depth:
            table = 8 * (partitioning.fan_out(0) + 1) * partitioning.blocks
            written += table
            requests += self._table_requests("put", self._objects(table))
        return Costs(requests + reads, read, written)

    def _sweep(self) -> Costs:
        partitioning, data = self.partitioning, self.inputs["data"]
        last = partitioning.depth - 1
        requests, read = self._read_tuples(partitioning.depth, 0)
        requests += data.read_requests(partitioning)
        written = self.output.nbytes
        if self.is_shared:
            read += 16 * partitioning.blocks * partitioning.fan_out(0)
            requests += self._table_requests("get", partitioning.fan_out(0))
        if partitioning.gathers:
            count = partitioning.segments(last)
            segment_tuples = max(1, -(-partitioning.rows.tuples // count))  # tuples of one
            together = max(1, min(MAX_SEGMENTS, partitioning.block_tuples // segment_tuples))
            batches = -(-count // partitioning.partitions // together)
            requests += self._write_requests("sweep", last, batches)
            written = self._file_bytes("sweep", last)
        else:
            requests += self.output.write_requests()
        return Costs(requests, read + data.nbytes, written)

    def _replay(self, depth: int) -> Costs:
        partitioning, n = self.partitioning, self.partitioning.rows.tuples
        blocks, fan_out = partitioning.blocks_at(depth), partitioning.fan_out(depth)
        per_tuple, width = partitioning.spilled_per_tuple(depth), partitioning.rows.width
        size = partitioning.local_bytes(depth)
        requests = self._read_requests("split", depth, blocks, size, per_tuple)
        requests += self._read_requests("sweep", depth, min(blocks * fan_out, n), 0, width)
        read = self._file_bytes("split", depth) * partitioning.id_bytes(depth) // per_tuple
        read += self._file_bytes("sweep", depth)
        if depth:
            written = self._file_bytes("sweep", depth - 1)
            blocks_of_group = -(-blocks // partitioning.groups(depth))
            requests += self._write_requests("sweep", depth - 1, blocks_of_group)
        else:
            written = self.output.nbytes
            requests += self.output.write_requests()
        if self.is_shared and not depth:
            table = 8 * fan_out * (blocks + 1)
            written += table
            read += 16 * fan_out * blocks
            requests += self._table_requests("put", self._objects(table))
            requests += self._table_requests("get", blocks)
        return Costs(requests, read, written)

    def _read_tuples(self, depth: int, ends: int) -> tuple[Counter[str], int]:
        """Return the requests and bytes that read the spilled tuples of groups at a depth.

        ends: the number of segments from which two tasks read.
        """
        partitioning, above = self.partitioning, depth - 1
        size, per_tuple = partitioning.local_bytes(above), partitioning.spilled_per_tuple(above)
        nbytes = self._file_bytes("split", above)
        slices = min(partitioning.segments(above) + ends, partitioning.rows.tuples)
        requests = self._read_requests("split", above, slices, 0, size)
        if partitioning.gathers:
            return requests, nbytes * size // per_tuple
        return requests + self._read_requests("split", above, slices, size, per_tuple), nbytes

    def _file_bytes(self, phase: str, depth: int) -> int:
        """Return how many bytes of the segments of a phase are in files."""
        nbytes = self._segments(phase, depth).nbytes
        if self.is_shared:
            return nbytes
        _, in_memory = self.partitioning.regions[phase, depth]
        return max(0, nbytes - in_memory * self.partitioning.groups(depth))

    def _write_requests(self, phase: str, depth: int, calls: int) -> Counter[str]:
        """Return the requests that write the segments of a phase, each with `calls` writes."""
        spilled = self._segments(phase, depth)
        if self.spill == "objects":
            return Counter(put=spilled.object_count)
        return Counter(write=self._in_files(phase, depth) * (calls + (spilled.trailer > 0)))

    def _in_files(self, phase: str, depth: int) -> int:
        """Return the number of segments of a phase that are partly or completely in files."""
        spilled = self._segments(phase, depth)
        return -(-spilled.segments * self._file_bytes(phase, depth) // max(1, spilled.nbytes))

    def _read_requests(
        self, phase: str, depth: int, slices: int, first: int, stop: int
    ) -> Counter[str]:
        """Return the requests that read `slices` slices of the segments of a phase.

        first, stop: the bytes of a segment that slices are in, per tuple. A slice that crosses a
        boundary of objects takes two requests.
        """
        spilled = self._segments(phase, depth)
        if self.spill == "objects":
            return Counter(get=slices + spilled.object_boundaries(first, stop))
        in_files = self._in_files(phase, depth)
        return Counter(read=-(-slices * in_files // max(1, spilled.segments)))

    def _objects(self, nbytes: int) -> int:
        """Return the number of files or objects that store so many bytes."""
        return -(-nbytes // segments.OBJECT_BYTES) if self.spill == "objects" else 1

    def _table_requests(self, kind: str, count: int) -> Counter[str]:
        """Return requests for tables that workers share."""
        if self.spill == "folder":
            kind = {"get": "read", "put": "write"}[kind]
        return Counter({kind: count})


class SpilledSegments(NamedTuple):
    """The segments of a phase.

    segments: the number of segments. segment_tuples: the tuples of each but the last. tuples: the
    tuples of all. per_tuple: bytes of a tuple. trailer: bytes at the end of each segment.
    """

    segments: int
    segment_tuples: int
    tuples: int
    per_tuple: int
    trailer: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all segments, without trailers."""
        return self.tuples * self.per_tuple

    @property
    def object_count(self) -> int:
        """The maximum number of objects that store the segments."""
        size, last = (
            segments.OBJECT_BYTES,
            self.tuples - (self.segments - 1) * self.segment_tuples,
        )
        if not self.trailer or last <= 0:  # segments of any size
            return (self.nbytes + self.segments * self.trailer) // size + self.segments
        objects, last_objects = (
            -(-(n * self.per_tuple + self.trailer) // size) for n in (self.segment_tuples, last)
        )
        return (self.segments - 1) * objects + last_objects

    def object_boundaries(self, first: int, stop: int) -> int:
        """Return how many boundaries of objects are between two offsets in segments, per tuple."""
        size = segments.OBJECT_BYTES
        if not self.trailer:
            return self.nbytes // size
        n = min(self.segment_tuples, self.tuples)
        return self.segments * max(0, max(0, n * stop - 1) // size - n * first // size)


def cost_model_for(
    call: Inputs, remote_roles: set[str], partitioning: Partitioning, output: StoredArray,
    spill: str | None, directories: int,
) -> CostModel:  # fmt: skip
    """Return the cost model of a run.

    remote_roles: the inputs at URLs. spill: the location of a cluster's spilled data, None for a
    run in one process, which spills to so many directories.
    """
    kind = "memory"
    if spill is not None:
        kind = "objects" if locations.is_url(spill) else "folder"
    plan = call.inference.plan
    positions = {"indices": plan.positions, "updates": tuple_shape(plan)}
    inputs = {
        role: StoredArray(
            source.metadata, role in remote_roles, positions.get(role, ()),
            isinstance(source, Constant),
        )
        for role, source in call.sources.items()
    }  # fmt: skip
    metadata: dict[str, ArrayMetadata] = {role: stored.metadata for role, stored in inputs.items()}
    reread = reread_bytes(call.inference, metadata, partitioning)
    directories = max(1, directories) if kind == "memory" else 1
    return CostModel(partitioning, kind, inputs, reread, output, directories)
