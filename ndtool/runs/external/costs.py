"""The requests and the bytes of an external run, from its plan alone.

Counts are exact if the tuples of each block select rows of all partitions equally often, and no
task is repeated; requests of remote stores are upper bounds for any tuples. `estimates.py` has time
and money.
"""

from __future__ import annotations

from collections import Counter
from math import lcm, prod
from typing import NamedTuple

from ndtool.arrays.source import ArrayMetadata
from ndtool.rules import grid
from ndtool.runs.external import spillfiles, spillstore
from ndtool.runs.external.partitioning import MOST_SEGMENTS, Partitioning, phase
from ndtool.runs.external.results import NOTE
from ndtool.storage import http, upload

LISTED = 1000  # objects in the response of a list request, and in a request to delete
# Requests at most to open and close a run at URLs: of a process for an input, of a run for the
# output and for the spilled data, and of a process for the output.
INPUT = Counter(get=4, head=4)
OUTPUT = Counter(get=20, put=4, list=8, delete=2)
SPILL = Counter(get=12, put=4, list=8, delete=2)
WRITER = Counter(get=2)


class Stored(NamedTuple):
    """An array of a run as its requests see it.

    is_remote: whether it is at a URL. shape: that of the positions of index tuples, () for data.
    is_constant: whether it is one value, of which nothing is read.
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
    def files(self) -> int:
        """The number of objects of a chunked array."""
        return grid.count_blocks(self.metadata.shape, self.metadata.file_shape)

    def reads(self, partitioning: Partitioning) -> Counter[str]:
        """Return the requests that read it: each chunk once, or once for each block in it."""
        metadata = self.metadata
        if not self.is_remote or not metadata.nbytes:
            return Counter()
        if not metadata.is_chunked:
            return Counter(get=1 + -(-metadata.nbytes // http.MAX_REQUEST), head=1)
        chunks, is_sharded = (
            grid.count_blocks(metadata.shape, metadata.block_shape),
            int(self.is_sharded),
        )
        per_chunk = (
            -(-prod(metadata.block_shape) * metadata.dtype.itemsize // http.MAX_REQUEST)
            + is_sharded
        )
        reread = self._chunks_read_again(partitioning, chunks)
        # At the end each process looks for changes of the chunks that it read.
        head = self.files + min(reread, self.files * (partitioning.workers - 1))
        return Counter(get=(chunks + reread) * per_chunk, head=head * (1 + is_sharded))

    @property
    def is_sharded(self) -> bool:
        """Whether an object has several chunks."""
        return self.metadata.file_shape != self.metadata.block_shape

    def _chunks_read_again(self, partitioning: Partitioning, chunks: int) -> int:
        """Return how many chunks are read again because a block ends in them."""
        slab, step = 1, self.metadata.block_shape
        for d, size in enumerate(self.shape):
            if min(step[d], size) > 1:
                incomplete = d and size % step[d]
                slab = prod(self.shape[d:]) if incomplete else step[d] * prod(self.shape[d + 1 :])
                break
        if slab == 1:
            return 0
        ends = partitioning.blocks - 1
        inside = ends - ends * partitioning.block // lcm(partitioning.block, slab)
        boxes = 2 * len(self.shape) - 1  # of a range that begins and ends anywhere
        return inside * -(-chunks * slab // max(1, prod(self.shape))) * boxes

    def writes(self) -> Counter[str]:
        """Return the requests that write it."""
        if not self.is_remote:
            return Counter()
        if self.metadata.is_chunked:
            return Counter(put=self.files)
        parts = -(-self.metadata.nbytes // upload.MIN_PART)
        return Counter(put=parts + 2 if parts > 1 else 1)


class Costs(NamedTuple):
    """What the tasks of a phase do together.

    requests: by kind, of spilled data and tables, and of arrays at URLs. read, written: bytes of
    arrays and of spilled data. tuples: partitioned or restored to order. steps: of a
    task, one after the other, each of several requests.
    """

    phase: str
    tasks: int
    requests: Counter[str]
    read: int
    written: int
    tuples: int
    steps: int


class Run(NamedTuple):
    """What the costs of a run follow from.

    spill: "memory" of a process with a file for the rest, a shared "folder", or "objects". inputs:
    the inputs by role. again: bytes of them that are read again. output: the output. directories:
    the number of those with spilled data, of which each stripe takes requests of its own.
    """

    partitioning: Partitioning
    spill: str
    inputs: dict[str, Stored]
    again: int
    output: Stored
    directories: int = 1

    @property
    def is_shared(self) -> bool:
        """Whether workers share the spilled data, which then have tables and trailers."""
        return self.spill != "memory"

    def phases(self) -> list[Costs]:
        """Return the costs of each phase, in order."""
        depths = range(self.partitioning.levels)
        replays = map(self._replay, reversed(depths)) if self.partitioning.gathers else ()
        return [*map(self._split, depths), self._sweep(), *replays]

    def requests(self, phases: list[Costs]) -> dict[str, int]:
        """Return all requests of a run by kind, those of its phases, its start and its end."""
        total = sum((phase.requests for phase in phases), Counter[str]()) + self._opening()
        if self.directories > 1:
            ends = self.partitioning.spilled // spillstore.STRIPE
            total += Counter(read=ends, write=ends)
        kinds = ("read", "write", "get", "put", "head", "list", "delete")
        return {kind: total[kind] for kind in kinds if total[kind]}

    @property
    def is_remote(self) -> bool:
        """Whether any of its data are at URLs."""
        arrays = (*self.inputs.values(), self.output)
        return self.spill == "objects" or any(array.is_remote for array in arrays)

    def _opening(self) -> Counter[str]:
        """Return the requests at most to open and close a run."""
        processes = 1 + self.partitioning.workers * self.is_shared
        requests = Counter[str]()
        for role, array in self.inputs.items():
            if array.is_remote:
                requests += Counter({kind: n * processes for kind, n in INPUT.items()})
            if array.is_remote and self.is_shared and (role != "data" or self.partitioning.gathers):
                requests["list"] += -(-array.files // LISTED)  # to fingerprint it
        if self.output.is_remote:
            requests += OUTPUT + Counter({kind: n * processes for kind, n in WRITER.items()})
        if self.spill == "objects":
            objects = sum(spilled.puts for spilled in self._spilled().values())
            requests += SPILL + Counter(
                list=1 + -(-objects // LISTED), delete=-(-objects // LISTED)
            )
        return requests

    def _spilled(self) -> dict[str, Spilled]:
        """Return what each phase spills, by its name."""
        partitioning, rows = self.partitioning, self.partitioning.rows
        spilled = dict[str, Spilled]()
        for depth in range(partitioning.levels):
            trailer = (8 * (partitioning.fan_out(depth) + 1) + NOTE) * self.is_shared
            per_tuple = partitioning.spilled_per_tuple(depth)
            spilled[phase("split", depth)] = Spilled(
                self._blocks(depth), partitioning.block, rows.tuples, per_tuple, trailer
            )
        if partitioning.gathers:
            count, mean = partitioning.partitions, -(-rows.tuples // partitioning.partitions)
            spilled["sweep"] = Spilled(min(count, rows.tuples), mean, rows.tuples, rows.width)
            for depth in range(1, partitioning.levels):
                spilled[phase("replay", depth)] = Spilled(
                    self._blocks(depth), partitioning.block, rows.tuples, rows.width
                )
        return spilled

    def _split(self, depth: int) -> Costs:
        partitioning, name = self.partitioning, phase("split", depth)
        written, requests = self._write(name, 2), Counter[str]()
        if depth:
            requests, read = self._read_tuples(depth, self._blocks(depth) - self._groups(depth))
        else:
            arrays = [array for role, array in self.inputs.items() if role != "data"]
            requests = sum((array.reads(partitioning) for array in arrays), Counter[str]())
            # Each worker holds repeated indices.
            reread = self.again + (partitioning.workers - 1) * partitioning.indices * self.is_shared
            read = sum(array.nbytes for array in arrays) + reread
        groups, blocks = self._groups(depth), self._blocks(depth)
        fan_out = partitioning.fan_out(depth)
        nbytes = self._in_file(name) + self._spilled()[name].trailer * blocks
        if self.is_shared:
            nbytes += 16 * (groups * fan_out + 1) + 8 * (2 + fan_out) * blocks
            requests += self._tables("put", 1 + groups)
        return Costs(
            name,
            blocks,
            requests + written,
            read,
            nbytes,
            partitioning.rows.tuples,
            2 + 2 * (depth > 0),
        )

    def _sweep(self) -> Costs:
        partitioning, data = self.partitioning, self.inputs["data"]
        requests, read = self._read_tuples(partitioning.levels, 0)
        requests += data.reads(partitioning)
        written = self.output.metadata.nbytes
        if partitioning.gathers:
            segments = self._segments(partitioning.levels)
            segment_tuples = max(1, -(-partitioning.rows.tuples // segments))  # tuples of one
            concurrency = max(
                1, min(MOST_SEGMENTS, partitioning.block // segment_tuples)
            )  # in a batch
            batches = -(-segments // partitioning.partitions // concurrency)
            requests += self._write("sweep", batches)
            written = self._in_file("sweep")
        else:
            requests += self.output.writes()
        return Costs(
            "sweep",
            partitioning.partitions,
            requests,
            read + data.nbytes,
            written,
            partitioning.rows.tuples,
            4,
        )

    def _replay(self, depth: int) -> Costs:
        partitioning, name = self.partitioning, phase("replay", depth)
        n, per_tuple = partitioning.rows.tuples, partitioning.spilled_per_tuple(depth)
        groups, blocks = self._groups(depth), self._blocks(depth)
        fan_out = partitioning.fan_out(depth)
        split, inner = phase("split", depth), depth + 1 < partitioning.levels
        rows = phase("replay", depth + 1) if inner else "sweep"
        ends = self._blocks(depth + 1) - self._groups(depth + 1) if inner else 0
        size = partitioning.local_bytes(depth + 1)
        requests = self._read(split, blocks, size, per_tuple)
        requests += self._read(rows, min(blocks * fan_out + ends, n), 0, partitioning.rows.width)
        read = self._in_file(split) * partitioning.id_bytes(depth) // per_tuple + self._in_file(
            rows
        )
        written = self._in_file(name) if depth else self.output.metadata.nbytes
        requests += self._write(name, 1) if depth else self.output.writes()
        if self.is_shared:
            segments = self._blocks(depth + 1) if inner else partitioning.partitions
            read += blocks * (16 * (fan_out + 3) + 16 * (fan_out + 1) + 32 * (depth > 0))
            read += blocks * 8 * segments // groups
            written += 8 * (segments + (fan_out + 1) * (blocks + groups))
            requests += self._tables("get", blocks * (4 + (depth > 0)))
            requests += self._tables("put", 1 + groups)
        return Costs(name, blocks, requests, read, written, n, 4)

    def _groups(self, depth: int) -> int:
        """Return the number of groups at a depth."""
        over, shapes = self.partitioning.rows.over, self.partitioning.group_shapes
        return grid.count_blocks(over, shapes[depth - 1]) if depth else 1

    def _blocks(self, depth: int) -> int:
        """Return the number of blocks of all groups at a depth, at most."""
        return min(
            self.partitioning.blocks + self._groups(depth) - 1, self.partitioning.rows.tuples
        )

    def _segments(self, depth: int) -> int:
        """Return the number of segments that groups at a depth read from their parents."""
        most = self._blocks(depth - 1) * self.partitioning.fan_out(depth - 1)
        return min(most, self.partitioning.rows.tuples)

    def _read_tuples(self, depth: int, ends: int) -> tuple[Counter[str], int]:
        """Return the requests and bytes that read the spilled tuples of groups at a depth.

        ends: segments of which two tasks read a slice each.
        """
        partitioning, name = self.partitioning, phase("split", depth - 1)
        size, per_tuple = partitioning.local_bytes(depth), partitioning.spilled_per_tuple(depth - 1)
        nbytes = self._in_file(name)
        slices = min(self._segments(depth) + ends, partitioning.rows.tuples)
        requests = self._read(name, slices, 0, size)
        if partitioning.gathers:
            nbytes = nbytes * size // per_tuple
        else:
            requests += self._read(name, slices, size, per_tuple)
        tasks = partitioning.partitions if depth == partitioning.levels else self._blocks(depth)
        if self.is_shared:
            parent_blocks = -(-self._blocks(depth - 1) // self._groups(depth - 1))
            nbytes += tasks * (32 * (1 + (depth > 1)) + 24 * parent_blocks)
            requests += self._tables("get", tasks * (3 + (depth > 1)))
        return requests, nbytes

    def _in_file(self, name: str) -> int:
        """Return how many bytes of the segments of a phase are not in memory."""
        spilled = self._spilled()[name]
        in_memory = 0 if self.is_shared else self.partitioning.in_memory
        end = self.partitioning.layout[name] + spilled.nbytes
        return max(0, min(spilled.nbytes, end - in_memory))

    def _write(self, name: str, calls: int) -> Counter[str]:
        """Return the requests that write the segments of a phase, each by several calls."""
        spilled = self._spilled()[name]
        if self.spill == "objects":
            return Counter(put=spilled.puts)
        return Counter(write=self._in_files(name) * (calls + (spilled.trailer > 0)))

    def _in_files(self, name: str) -> int:
        """Return the number of segments of a phase that are not completely in memory."""
        spilled = self._spilled()[name]
        return -(-spilled.segments * self._in_file(name) // max(1, spilled.nbytes))

    def _read(self, name: str, slices: int, first: int, stop: int) -> Counter[str]:
        """Return the requests that read so many slices of the segments of a phase.

        first, stop: bytes of a tuple before the slices and at their end, in each segment; a slice
        across the end of an object takes two requests.
        """
        spilled = self._spilled()[name]
        if self.spill == "objects":
            return Counter(get=slices + spilled.ends(first, stop))
        return Counter(read=-(-slices * self._in_files(name) // max(1, spilled.segments)))

    def _tables(self, kind: str, count: int) -> Counter[str]:
        """Return requests of tables that workers share."""
        if self.spill == "folder":
            kind = {"get": "read", "put": "write"}[kind]
        return Counter({kind: count})


class Spilled(NamedTuple):
    """What a phase spills. segments: their number. each: the tuples of one, the last has fewer.

    tuples: of all. per_tuple: bytes of a tuple. trailer: bytes at the end of a segment.
    """

    segments: int
    each: int
    tuples: int
    per_tuple: int
    trailer: int = 0

    @property
    def nbytes(self) -> int:
        """The bytes of all segments, without trailers."""
        return self.tuples * self.per_tuple

    @property
    def puts(self) -> int:
        """The number of their objects, at most."""
        size, last = spillfiles.OBJECT_BYTES, self.tuples - (self.segments - 1) * self.each
        if not self.trailer or last <= 0:  # segments of any sizes
            return (self.nbytes + self.segments * self.trailer) // size + self.segments
        objects, last_objects = (
            -(-(n * self.per_tuple + self.trailer) // size) for n in (self.each, last)
        )
        return (self.segments - 1) * objects + last_objects

    def ends(self, first: int, stop: int) -> int:
        """Return how many ends of objects are between two bytes of each tuple of a segment."""
        size = spillfiles.OBJECT_BYTES
        if not self.trailer:
            return self.nbytes // size
        n = min(self.each, self.tuples)
        return self.segments * max(0, max(0, n * stop - 1) // size - n * first // size)
