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
from ndtool.runs.external.partitioning import LOCAL, Partitioning
from ndtool.runs.external.tasks import NOTE
from ndtool.storage import remote, upload

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
        return grid.blocks(self.metadata.shape, self.metadata.unit)

    def reads(self, partitioning: Partitioning) -> Counter[str]:
        """Return the requests that read it: each chunk once, or once for each block in it."""
        metadata = self.metadata
        if not self.is_remote or not metadata.nbytes:
            return Counter()
        if not metadata.in_chunks:
            return Counter(get=1 + -(-metadata.nbytes // remote.LARGEST), head=1)
        chunks, is_sharded = grid.blocks(metadata.shape, metadata.grid), int(self.is_sharded)
        each = -(-prod(metadata.grid) * metadata.dtype.itemsize // remote.LARGEST) + is_sharded
        again = self._again(partitioning, chunks)
        # At the end each process looks for changes of the chunks that it read.
        head = self.files + min(again, self.files * (partitioning.workers - 1))
        return Counter(get=(chunks + again) * each, head=head * (1 + is_sharded))

    @property
    def is_sharded(self) -> bool:
        """Whether an object has several chunks."""
        return self.metadata.unit != self.metadata.grid

    def _again(self, partitioning: Partitioning, chunks: int) -> int:
        """Return how many chunks are read again because a block ends in them."""
        slab, step = 1, self.metadata.grid
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
        if self.metadata.in_chunks:
            return Counter(put=self.files)
        parts = -(-self.metadata.nbytes // upload.PART)
        return Counter(put=parts + 2 if parts > 1 else 1)


class Costs(NamedTuple):
    """What the tasks of a phase do together.

    requests: by kind, of spilled data and tables, and of arrays at URLs. read, written: bytes of
    arrays and of spilled data. tuples: those that are partitioned or restored to order. steps: of a
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

    spill: "memory" of a process with a file for the rest, a shared "folder", or "objects". given:
    the inputs by role. again: bytes of them that are read again. output: the output. directories:
    the number of those with spilled data, of which each stripe takes requests of its own.
    """

    partitioning: Partitioning
    spill: str
    given: dict[str, Stored]
    again: int
    output: Stored
    directories: int = 1

    @property
    def is_shared(self) -> bool:
        """Whether workers share the spilled data, which then have tables and trailers."""
        return self.spill != "memory"

    def phases(self) -> list[Costs]:
        """Return the costs of each phase, in order."""
        found = [self._split(), self._sweep()]
        return [*found, self._replay()] if self.partitioning.gathers else found

    def requests(self, phases: list[Costs]) -> dict[str, int]:
        """Return the requests of a run by kind, with those that open and close it."""
        total = sum((one.requests for one in phases), Counter[str]()) + self._opening()
        if self.directories > 1:
            ends = self.partitioning.spilled // spillstore.STRIPE
            total += Counter(read=ends, write=ends)
        kinds = ("read", "write", "get", "put", "head", "list", "delete")
        return {kind: total[kind] for kind in kinds if total[kind]}

    @property
    def is_remote(self) -> bool:
        """Whether any of its data are at URLs."""
        arrays = (*self.given.values(), self.output)
        return self.spill == "objects" or any(one.is_remote for one in arrays)

    def _opening(self) -> Counter[str]:
        """Return the requests at most to open and close a run."""
        processes = 1 + self.partitioning.workers * self.is_shared
        found, objects = Counter[str](), 0
        for role, one in self.given.items():
            if one.is_remote:
                found += Counter({kind: n * processes for kind, n in INPUT.items()})
            if one.is_remote and self.is_shared and (role != "data" or self.partitioning.gathers):
                found["list"] += -(-one.files // LISTED)  # to fingerprint it
        if self.output.is_remote:
            found += OUTPUT + Counter({kind: n * processes for kind, n in WRITER.items()})
        if self.spill == "objects":
            found += SPILL
            objects = self._puts("split") + self._puts("sweep")
            found["list"] += 1 + -(-objects // LISTED)
            found["delete"] += -(-objects // LISTED)
        return found

    def _split(self) -> Costs:
        cut, found = self.partitioning, Counter[str]()
        for role, one in self.given.items():
            if role != "data":
                found += one.reads(cut)
        nbytes = sum(one.nbytes for role, one in self.given.items() if role != "data")
        trailers = cut.blocks * self._trailer
        spilled = cut.sorted if self.is_shared else max(0, cut.sorted - cut.held)
        found += self._written("split", self._blocks_in_files, 2)
        if self.is_shared:
            found += self._tables(1, "put")
        table = 8 * (2 + cut.parts) * cut.blocks * self.is_shared
        written = spilled + trailers + table
        # Each worker holds repeated indices.
        read = nbytes + self.again + (cut.workers - 1) * cut.indices * self.is_shared
        return Costs("split", cut.blocks, found, read, written, cut.rows.tuples, 2)

    def _sweep(self) -> Costs:
        cut, rows = self.partitioning, self.partitioning.rows
        n, data = rows.tuples, self.given["data"]
        pieces = min(self._blocks_in_files * cut.parts, n)
        found = data.reads(cut) + self._read(pieces, cut.blocks, 0, LOCAL)
        if not cut.gathers:
            found += self._read(pieces, cut.blocks, LOCAL, LOCAL + rows.width)
            found += self.output.writes()
        lines = 24 * cut.blocks * cut.parts * self.is_shared
        found += self._tables(2 * cut.parts, "get")
        spilled, written = self._in_file(cut.sorted, 0), self.output.metadata.nbytes
        read = data.nbytes + spilled * (LOCAL if cut.gathers else cut.pitch) // cut.pitch
        if cut.gathers:
            written = self._in_file(n * rows.width, cut.sorted)
            piece = max(1, -(-n // (cut.parts * cut.blocks)))  # of a block, in a batch of several
            batches = -(-cut.blocks // max(1, cut.block // piece))
            found += self._written("sweep", self._parts_in_files, batches)
            if self.is_shared:
                found += self._tables(1, "put")
                written += 8 * (3 + cut.blocks) * cut.parts
        return Costs("sweep", cut.parts, found, read + lines, written, n, 4)

    def _replay(self) -> Costs:
        cut, rows = self.partitioning, self.partitioning.rows
        n, ids = rows.tuples, cut.id_bytes
        found = self._read(self._blocks_in_files, cut.blocks, LOCAL, LOCAL + ids)
        pieces = min(self._parts_in_files * cut.blocks, n)
        found += self._read(pieces, 0, 0, 0) + self.output.writes()
        if self.spill == "objects":  # pieces across the ends of objects
            found["get"] += n * rows.width // _object()
        found += self._tables(4 * cut.blocks, "get")
        lines = 8 * (4 * cut.parts + cut.blocks) * cut.blocks * self.is_shared
        spilled = self._in_file(cut.sorted, 0)
        read = spilled - spilled * LOCAL // cut.pitch + self._in_file(n * rows.width, cut.sorted)
        return Costs("replay", cut.blocks, found, read + lines, self.output.metadata.nbytes, n, 4)

    @property
    def _trailer(self) -> int:
        return (8 * (self.partitioning.parts + 1) + NOTE) * self.is_shared

    def _in_file(self, nbytes: int, at: int) -> int:
        """Return how many of the spilled bytes from offset `at` on are not in memory."""
        held = 0 if self.is_shared else self.partitioning.held
        return max(0, nbytes - max(0, held - at))

    @property
    def _blocks_in_files(self) -> int:
        """The number of blocks whose segments are not completely in memory."""
        cut = self.partitioning
        return -(-self._in_file(cut.sorted, 0) // max(1, cut.block * cut.pitch))

    @property
    def _parts_in_files(self) -> int:
        """The number of partitions whose gathered rows are not completely in memory."""
        cut = self.partitioning
        nbytes = cut.rows.tuples * cut.rows.width
        return -(-cut.parts * self._in_file(nbytes, cut.sorted) // max(1, nbytes))

    def _written(self, phase: str, segments: int, calls: int) -> Counter[str]:
        """Return the requests that write the segments of a phase, each by several calls."""
        if self.spill == "objects":
            return Counter(put=self._puts(phase))
        trailer = self.is_shared and phase == "split"
        return Counter(write=segments * (calls + trailer))

    def _puts(self, phase: str) -> int:
        """Return the number of objects of a phase's segments."""
        cut, size = self.partitioning, _object()
        if phase == "sweep":
            return cut.gathers * (cut.rows.tuples * cut.rows.width // size + cut.parts)
        last = cut.tuples(cut.blocks - 1) if cut.blocks else 0
        each, rest = (-(-(n * cut.pitch + self._trailer) // size) for n in (cut.block, last))
        return max(0, cut.blocks - 1) * each + rest

    def _read(self, pieces: int, segments: int, first: int, stop: int) -> Counter[str]:
        """Return the requests that read pieces of segments.

        first, stop: bytes of a tuple before the pieces and at their end, in each segment; a piece
        across the end of an object takes two requests.
        """
        if self.spill != "objects":
            return Counter(read=pieces)
        block, size = min(self.partitioning.block, self.partitioning.rows.tuples), _object()
        ends = max(0, block * stop - 1) // size - block * first // size
        return Counter(get=pieces + segments * max(0, ends))

    def _tables(self, count: int, kind: str) -> Counter[str]:
        """Return requests of tables, which one process has in memory."""
        if self.spill == "folder":
            kind = {"get": "read", "put": "write"}[kind]
        return Counter({kind: count}) if self.is_shared else Counter()


def _object() -> int:
    return spillfiles.OBJECT_BYTES
