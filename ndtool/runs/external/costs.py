"""The cost model of an external run: its requests and bytes, from the plan alone.

Counts are exact if the tuples of each block select rows of all partitions equally often, and no
task is repeated; requests to remote stores are upper bounds for any tuples.
"""

from __future__ import annotations

from collections import Counter
from math import lcm, prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool.arrays.constant import Constant
from ndtool.arrays.source import ArrayMetadata
from ndtool.formats import locators
from ndtool.rules import grid
from ndtool.runs.external import spillfiles, spillstore
from ndtool.runs.external.choice import reread_bytes
from ndtool.runs.external.partitioning import MAX_SEGMENTS, Partitioning, phase_name
from ndtool.runs.external.results import REPORT_BYTES
from ndtool.runs.external.units import tuple_shape
from ndtool.storage import locations, objects

if TYPE_CHECKING:
    from ndtool.formats.outputs import Output
    from ndtool.runs.calls import OpenCall

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
        """The bytes that are read."""
        return 0 if self.is_constant else self.metadata.nbytes

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
                incomplete = d and size % step[d]
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
    """The costs of all tasks of a phase.

    requests: the number by kind, for spilled data, tables, and arrays at URLs. read, written: bytes
    of arrays and of spilled data.
    """

    phase: str
    tasks: int
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
    def has_shared_spill(self) -> bool:
        """Whether workers share the spilled data, so that tables and trailers are stored, too."""
        return self.spill != "memory"

    def phases(self) -> list[Costs]:
        """Return the costs of each phase, in order."""
        depths = range(self.partitioning.levels)
        replays = map(self._replay, reversed(depths)) if self.partitioning.gathers else ()
        return [*map(self._split, depths), self._sweep(), *replays]

    def requests(self, phases: list[Costs]) -> dict[str, int]:
        """Return the requests of all phases, and to open and close the run, by kind."""
        total = sum((phase.requests for phase in phases), Counter[str]()) + self._setup_requests()
        if self.directories > 1:
            ends = self.partitioning.spilled // spillstore.STRIPE
            total += Counter(read=ends, write=ends)
        kinds = ("read", "write", "get", "put", "head", "list", "delete")
        return {kind: total[kind] for kind in kinds if total[kind]}

    @property
    def is_remote(self) -> bool:
        """Whether an array or the spilled data are at a URL."""
        arrays = (*self.inputs.values(), self.output)
        return self.spill == "objects" or any(array.is_remote for array in arrays)

    def _setup_requests(self) -> Counter[str]:
        """Return the maximum requests to open and close a run."""
        processes = 1 + self.partitioning.workers * self.has_shared_spill
        requests = Counter[str]()
        for role, array in self.inputs.items():
            if array.is_remote:
                requests += Counter({kind: n * processes for kind, n in INPUT_REQUESTS.items()})
            if (
                array.is_remote
                and self.has_shared_spill
                and (role != "data" or self.partitioning.gathers)
            ):
                requests["list"] += -(-array.object_count // LIST_PAGE)  # to fingerprint it
        if self.output.is_remote:
            requests += OUTPUT_REQUESTS + Counter(
                {kind: n * processes for kind, n in WRITER_REQUESTS.items()}
            )
        if self.spill == "objects":
            objects = sum(spilled.object_count for spilled in self._spilled_by_phase().values())
            requests += SPILL_REQUESTS + Counter(
                list=1 + -(-objects // LIST_PAGE), delete=-(-objects // LIST_PAGE)
            )
        return requests

    def _spilled_by_phase(self) -> dict[str, SpilledPhase]:
        """Return the spilled data of each phase, by its name."""
        partitioning, rows = self.partitioning, self.partitioning.rows
        spilled = dict[str, SpilledPhase]()
        for depth in range(partitioning.levels):
            trailer = (8 * (partitioning.fan_out(depth) + 1) + REPORT_BYTES) * self.has_shared_spill
            per_tuple = partitioning.spilled_per_tuple(depth)
            spilled[phase_name("split", depth)] = SpilledPhase(
                self._block_count(depth), partitioning.block_tuples, rows.tuples, per_tuple, trailer
            )
        if partitioning.gathers:
            count, mean = partitioning.partitions, -(-rows.tuples // partitioning.partitions)
            spilled["sweep"] = SpilledPhase(min(count, rows.tuples), mean, rows.tuples, rows.width)
            for depth in range(1, partitioning.levels):
                spilled[phase_name("replay", depth)] = SpilledPhase(
                    self._block_count(depth), partitioning.block_tuples, rows.tuples, rows.width
                )
        return spilled

    def _split(self, depth: int) -> Costs:
        partitioning, name = self.partitioning, phase_name("split", depth)
        written, requests = self._write_requests(name, 2), Counter[str]()
        if depth:
            requests, read = self._read_tuple_requests(
                depth, self._block_count(depth) - self._group_count(depth)
            )
        else:
            arrays = [array for role, array in self.inputs.items() if role != "data"]
            requests = sum((array.read_requests(partitioning) for array in arrays), Counter[str]())
            # Each worker reads the indices that batches share.
            reread = (
                self.reread
                + (partitioning.workers - 1) * partitioning.index_bytes * self.has_shared_spill
            )
            read = sum(array.nbytes for array in arrays) + reread
        groups, blocks = self._group_count(depth), self._block_count(depth)
        fan_out = partitioning.fan_out(depth)
        nbytes = self._file_bytes(name) + self._spilled_by_phase()[name].trailer * blocks
        if self.has_shared_spill:
            nbytes += 16 * (groups * fan_out + 1) + 8 * (2 + fan_out) * blocks
            requests += self._table_requests("put", 1 + groups)
        return Costs(name, blocks, requests + written, read, nbytes)

    def _sweep(self) -> Costs:
        partitioning, data = self.partitioning, self.inputs["data"]
        requests, read = self._read_tuple_requests(partitioning.levels, 0)
        requests += data.read_requests(partitioning)
        written = self.output.metadata.nbytes
        if partitioning.gathers:
            segments = self._segment_count(partitioning.levels)
            segment_tuples = max(1, -(-partitioning.rows.tuples // segments))  # tuples of one
            concurrency = max(1, min(MAX_SEGMENTS, partitioning.block_tuples // segment_tuples))
            batches = -(-segments // partitioning.partitions // concurrency)
            requests += self._write_requests("sweep", batches)
            written = self._file_bytes("sweep")
        else:
            requests += self.output.write_requests()
        return Costs("sweep", partitioning.partitions, requests, read + data.nbytes, written)

    def _replay(self, depth: int) -> Costs:
        partitioning, name = self.partitioning, phase_name("replay", depth)
        n, per_tuple = partitioning.rows.tuples, partitioning.spilled_per_tuple(depth)
        groups, blocks = self._group_count(depth), self._block_count(depth)
        fan_out = partitioning.fan_out(depth)
        split, is_inner = phase_name("split", depth), depth + 1 < partitioning.levels
        rows = phase_name("replay", depth + 1) if is_inner else "sweep"
        ends = self._block_count(depth + 1) - self._group_count(depth + 1) if is_inner else 0
        size = partitioning.local_bytes(depth + 1)
        requests = self._read_requests(split, blocks, size, per_tuple)
        requests += self._read_requests(
            rows, min(blocks * fan_out + ends, n), 0, partitioning.rows.width
        )
        read = self._file_bytes(split) * partitioning.id_bytes(
            depth
        ) // per_tuple + self._file_bytes(rows)
        written = self._file_bytes(name) if depth else self.output.metadata.nbytes
        requests += self._write_requests(name, 1) if depth else self.output.write_requests()
        if self.has_shared_spill:
            segments = self._block_count(depth + 1) if is_inner else partitioning.partitions
            read += blocks * (16 * (fan_out + 3) + 16 * (fan_out + 1) + 32 * (depth > 0))
            read += blocks * 8 * segments // groups
            written += 8 * (segments + (fan_out + 1) * (blocks + groups))
            requests += self._table_requests("get", blocks * (4 + (depth > 0)))
            requests += self._table_requests("put", 1 + groups)
        return Costs(name, blocks, requests, read, written)

    def _group_count(self, depth: int) -> int:
        """Return the number of groups at a depth."""
        shape, shapes = self.partitioning.rows.shape, self.partitioning.group_shapes
        return grid.count_blocks(shape, shapes[depth - 1]) if depth else 1

    def _block_count(self, depth: int) -> int:
        """Return the maximum number of blocks of all groups at a depth."""
        return min(
            self.partitioning.blocks + self._group_count(depth) - 1, self.partitioning.rows.tuples
        )

    def _segment_count(self, depth: int) -> int:
        """Return the number of segments that groups at a depth read from their parents."""
        maximum = self._block_count(depth - 1) * self.partitioning.fan_out(depth - 1)
        return min(maximum, self.partitioning.rows.tuples)

    def _read_tuple_requests(self, depth: int, ends: int) -> tuple[Counter[str], int]:
        """Return the requests and bytes that read the spilled tuples of groups at a depth.

        ends: the number of segments from which two tasks read.
        """
        partitioning, name = self.partitioning, phase_name("split", depth - 1)
        size, per_tuple = partitioning.local_bytes(depth), partitioning.spilled_per_tuple(depth - 1)
        nbytes = self._file_bytes(name)
        slices = min(self._segment_count(depth) + ends, partitioning.rows.tuples)
        requests = self._read_requests(name, slices, 0, size)
        if partitioning.gathers:
            nbytes = nbytes * size // per_tuple
        else:
            requests += self._read_requests(name, slices, size, per_tuple)
        tasks = (
            partitioning.partitions if depth == partitioning.levels else self._block_count(depth)
        )
        if self.has_shared_spill:
            parent_blocks = -(-self._block_count(depth - 1) // self._group_count(depth - 1))
            nbytes += tasks * (32 * (1 + (depth > 1)) + 24 * parent_blocks)
            requests += self._table_requests("get", tasks * (3 + (depth > 1)))
        return requests, nbytes

    def _file_bytes(self, name: str) -> int:
        """Return how many bytes of the segments of a phase are in files."""
        spilled = self._spilled_by_phase()[name]
        in_memory = 0 if self.has_shared_spill else self.partitioning.in_memory
        end = self.partitioning.layout[name] + spilled.nbytes
        return max(0, min(spilled.nbytes, end - in_memory))

    def _write_requests(self, name: str, calls: int) -> Counter[str]:
        """Return the requests that write the segments of a phase, each with `calls` writes."""
        spilled = self._spilled_by_phase()[name]
        if self.spill == "objects":
            return Counter(put=spilled.object_count)
        return Counter(write=self._file_segments(name) * (calls + (spilled.trailer > 0)))

    def _file_segments(self, name: str) -> int:
        """Return the number of segments of a phase that are partly or completely in files."""
        spilled = self._spilled_by_phase()[name]
        return -(-spilled.segments * self._file_bytes(name) // max(1, spilled.nbytes))

    def _read_requests(self, name: str, slices: int, first: int, stop: int) -> Counter[str]:
        """Return the requests that read `slices` slices of the segments of a phase.

        first, stop: the bytes of a segment that slices are in, per tuple. A slice that crosses a
        boundary of objects takes two requests.
        """
        spilled = self._spilled_by_phase()[name]
        if self.spill == "objects":
            return Counter(get=slices + spilled.object_boundaries(first, stop))
        return Counter(read=-(-slices * self._file_segments(name) // max(1, spilled.segments)))

    def _table_requests(self, kind: str, count: int) -> Counter[str]:
        """Return requests for tables that workers share."""
        if self.spill == "folder":
            kind = {"get": "read", "put": "write"}[kind]
        return Counter({kind: count})


class SpilledPhase(NamedTuple):
    """The spilled data of a phase.

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
            spillfiles.OBJECT_BYTES,
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
        size = spillfiles.OBJECT_BYTES
        if not self.trailer:
            return self.nbytes // size
        n = min(self.segment_tuples, self.tuples)
        return self.segments * max(0, max(0, n * stop - 1) // size - n * first // size)


def cost_model_for(
    call: OpenCall, partitioning: Partitioning, output: Output | None, spill: str | None
) -> CostModel:
    """Return the cost model of an external run.

    spill: the location of a cluster's spilled data, None for a run in one process.
    """
    kind = "memory"
    if spill is not None:
        kind = "objects" if locations.is_url(spill) else "folder"
    positions = {
        "indices": call.inference.plan.positions,
        "updates": tuple_shape(call.inference.plan),
    }
    inputs = {
        role: StoredArray(
            source.metadata,
            _is_remote(call, role),
            positions.get(role, ()),
            isinstance(source, Constant),
        )
        for role, source in call.sources.items()
    }
    metadata: dict[str, ArrayMetadata] = {role: stored.metadata for role, stored in inputs.items()}
    reread = reread_bytes(call.inference, metadata, partitioning)
    target = call.metadata if output is None else output.metadata
    writes_to_url = output is not None and locations.is_url(locators.parse(output.name).path)
    directories = max(1, len(call.spill_directories)) if kind == "memory" else 1
    return CostModel(
        partitioning, kind, inputs, reread, StoredArray(target, writes_to_url), directories
    )


def _is_remote(call: OpenCall, role: str) -> bool:
    argument = call.request.arguments.get(role)
    if role in call.from_caller or argument is None:
        return False
    return locations.is_url(locators.parse(argument).path)
