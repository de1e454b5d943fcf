"""The tasks of external execution: pure functions of open arrays and a number.

    split   sorts the index tuples (and updates) of a block stably by partition of data; dropped
            tuples come last
    sweep   reads a partition of data once, sequentially; gathers its rows, or applies the updates
            of all blocks in the order of the blocks and writes the partition once
    replay  for gathers only: restores the rows of a block to the order of its tuples, writes them

A task spills a segment under the ID of its attempt, which it returns, so that any worker can retry
it. Within a partition tuples are in row-major order, so results equal those of the sequential loop.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from math import prod
from operator import sub
from threading import Lock
from typing import Any, NamedTuple

from ndtool import _kernels
from ndtool._kernels import LINE, Addressing, Indices, KernelOptions, UpdateSpec, WorkItem
from ndtool.arrays.boxes import FlatReader, Reader, Writer, read_range, read_shared, write_range
from ndtool.engine import bind, copies
from ndtool.engine.check import is_error
from ndtool.engine.counting import Combining
from ndtool.errors import OutputError
from ndtool.machine import pool
from ndtool.rules import grid
from ndtool.rules.dtypes import NATIVE
from ndtool.rules.grid import Box
from ndtool.rules.inference import Inference
from ndtool.rules.plans import NdPlan
from ndtool.runs.external import spill
from ndtool.runs.external.batches import Batch, Take, batches, fetched
from ndtool.runs.external.partitioning import LOCAL, MOST_PARTS, Partitioning
from ndtool.runs.external.spill import SpillStore, Table
from ndtool.storage.local import ByteRange

NOTE = 128  # bytes of a block's bounds report in the trailer of its segment


class TaskResult(NamedTuple):
    """The result of a task. attempt: its ID. starts: for split, the partition offsets.

    outside: the indices of a block that are out of bounds, if that is no error.
    """

    attempt: int
    starts: bytes = b""
    outside: OutOfBounds | None = None

    @property
    def end(self) -> bytes:
        """The trailer of a segment of split: all that another run needs to resume it."""
        return self.starts + json.dumps(self.outside).encode().ljust(NOTE)

    @classmethod
    def of(cls, attempt: int, end: bytes) -> TaskResult:
        """Parse the trailer of a segment into its result; ValueError if it is malformed."""
        outside = json.loads(end[-NOTE:])
        return cls(
            attempt, end[:-NOTE], None if outside is None else OutOfBounds(*map(int, outside))
        )


class OutOfBounds(NamedTuple):
    """The first index of a block that is out of bounds, and the number of tuples with one.

    Repeated tuples of later batches are not counted.
    """

    position: int
    component: int
    value: int
    tuples: int


class Arrays(NamedTuple):
    """The arrays of a run. updates: None for gathers. output: None if nothing is written."""

    data: Reader
    indices: Reader
    updates: Reader | None
    output: Writer | None


class Work:
    """The state that the tasks of a run share: open arrays, bound plans and buffers."""

    def __init__(
        self, inference: Inference, partitioning: Partitioning, arrays: Arrays, spills: SpillStore
    ) -> None:
        self.inference, self.partitioning, self.arrays, self.spills = (
            inference,
            partitioning,
            arrays,
            spills,
        )
        plan, dtype, handling = inference.plan, inference.dtype, inference.handling
        if is_error(plan, handling.mode):
            handling = handling._replace(mode="error")
        self.rule, self.handling = handling.mode, handling
        self.plan = plan.unrolled if isinstance(plan, NdPlan) else plan
        self.rows = bind.bind_rows(self.plan, inference.row.negatives)
        self.boxes = bind.bind_boxes(partitioning.rows.over, partitioning.step)
        self.filling = inference.filling * (partitioning.rows.width // dtype.itemsize)  # a row
        self.combining = Combining.of(inference.attributes)
        self.reduction = self.combining.reduction
        order = dtype.order if self.reduction == "none" else NATIVE
        # Whether arithmetic needs a byte swap of data, and of updates.
        self.turned = dtype.unit > 1 and dtype.order != order
        updates = inference.inputs.get("updates")
        self.updates_turned = bool(updates and dtype.unit > 1 and updates.dtype.order != order)
        self.starts = Table("starts", partitioning.blocks)
        self.table = Table("places", partitioning.parts)
        self._parts, self._scratch = (
            pool.BufferPool(partitioning.part),
            pool.BufferPool(partitioning.scratch),
        )
        self._indices = arrays.indices
        if partitioning.indices:
            held = memoryview(bytearray(partitioning.indices))
            read_range(arrays.indices, 0, held)
            self._indices = FlatReader(ByteRange(held), arrays.indices.over, Lock())

    def do(self, phase: str, number: int) -> Any:
        """Run a task; return its result for the policy."""
        return PHASES[phase](self, number)

    def indices(self, block: int, take: Take) -> Indices:
        """Return the indices of a block."""
        rows, first = self.partitioning.rows, block * self.partitioning.block
        n = self.partitioning.tuples(block)
        buffer = take(n * rows.entry)
        if rows.repeats > 1:
            read_shared(self._indices, first, buffer, rows.period, rows.repeats)
        elif buffer:  # tuples may have no components
            read_range(self._indices, first, buffer)
        return self._bound(buffer)

    def fresh(self, block: int, take: Take, indices: Indices | None = None) -> Indices:
        """Return the stored indices that occur in a block for the first time.

        indices: those of the block; the same, unless batches share tuples.
        """
        if indices is not None and self.partitioning.rows.repeats == 1:
            return indices
        first, stop = self.partitioning.fresh(block)
        buffer = take((stop - first) * self.partitioning.rows.entry)
        if buffer:
            read_range(self._indices, first, buffer)
        return self._bound(buffer)

    def _bound(self, buffer: memoryview) -> Indices:
        return bind.bind_indices(buffer, self.inference.inputs["indices"].dtype, self.handling)

    @contextmanager
    def part(self) -> Iterator[memoryview]:
        """Yield a buffer for a partition of data."""
        buffer = self._parts.take()
        yield buffer
        self._parts.give(buffer)

    @contextmanager
    def arena(self) -> Iterator[Take]:
        """Yield an allocator of scratch, aligned to cache lines."""
        buffer, at = self._scratch.take(), 0

        def take(nbytes: int) -> memoryview:
            nonlocal at
            start = at
            at += -(-nbytes // LINE) * LINE
            return buffer[start : start + nbytes]

        yield take
        self._scratch.give(buffer)


def check(work: Work, block: int) -> OutOfBounds | None:
    """Validate the indices of a block; return those out of bounds, None if all are valid."""
    with work.arena() as take:
        return _bad(work, work.fresh(block, take), block)


def _bad(
    work: Work, fresh: Indices, block: int, indices: Indices | None = None
) -> OutOfBounds | None:
    """Return the indices of a block out of bounds, None if all are valid.

    fresh: the tuples not in an earlier block, which are counted. indices: all tuples.
    """
    addressing, _, entries = bind.bind_check(work.plan, work.inference.row.negatives)
    first, stop = work.partitioning.fresh(block)
    number, component, count = _kernels.find(addressing, fresh, 0, stop - first)
    if count or indices is None:
        value = fresh.value(number * entries + component) if count else 0
        return OutOfBounds(first + number, component, value, count) if count else None
    number, component, bad = _kernels.find(addressing, indices, 0, work.partitioning.tuples(block))
    if not bad:
        return None
    value = indices.value(number * entries + component)
    stored = work.partitioning.rows.stored(block * work.partitioning.block + number)
    return OutOfBounds(stored, component, value, 0)


def split(work: Work, block: int) -> TaskResult | OutOfBounds:
    """Sort the tuples of a block by partition and spill them; return the partition offsets."""
    partitioning, spills = work.partitioning, work.spills
    first, n = block * partitioning.block, partitioning.tuples(block)
    width = partitioning.rows.width
    starts = memoryview(bytearray(8 * (partitioning.id_count + 1))).cast("q")
    with work.arena() as take:
        ids, local, permuted = take(n * partitioning.id_bytes), take(n * LOCAL), take(n * LOCAL)
        indices, tuples = work.indices(block, take), WorkItem(first, n, 0, 0)
        into = local.cast("I")
        if _kernels.partition_ids(work.rows, indices, first, tuples, work.boxes, ids, into, starts):
            if (bad := _bad(work, work.fresh(block, take, indices), block, indices)) is None:
                raise OutputError("indices changed during the run")
            return bad
        outside = None
        if work.rule != "error":
            outside = _bad(work, work.fresh(block, take, indices), block)
        piece = spills.create(spill.Segment("split", block, first * partitioning.pitch))
        _permute(ids, starts[:-1], local, permuted, n, back=False)
        spills.write(piece, 0, permuted)
        if work.arrays.updates is None:
            spills.write(piece, n * LOCAL, ids)
        else:
            updates, ordered = take(n * width), take(n * width)
            read_range(work.arrays.updates, first, updates)
            if work.updates_turned:
                copies.swap(updates, work.inference.dtype.unit)
            _permute(ids, starts[:-1], updates, ordered, n, back=False)
            spills.write(piece, n * LOCAL, ordered)
        done = TaskResult(piece.attempt, bytes(starts[: partitioning.parts + 1]), outside)
        spills.finish(piece, done.end)
    return done


def sweep(work: Work, part: int) -> TaskResult:
    """Read a partition of data, and gather rows of it, or update and write it."""
    attempts = work.spills.lines(work.starts, 0, 1)
    both = work.spills.lines(work.starts, 1 + part, 3 + part)
    begins, ends = both[: len(attempts)], both[len(attempts) :]
    found = list(batches(begins, ends, work.partitioning.block))
    if work.arrays.updates is None:
        return _gather(work, part, found, attempts, sum(begins)) if found else TaskResult(0)
    _update(work, part, found, attempts)
    return TaskResult(0)


def replay(work: Work, block: int) -> TaskResult:
    """Restore the rows of a block to the order of its tuples, and write them."""
    partitioning, spills, table = work.partitioning, work.spills, work.table
    n, width = partitioning.tuples(block), partitioning.rows.width
    attempts, bases = spills.lines(table, 0, 1), spills.lines(table, 1, 2)
    both = spills.lines(table, 2 + block, 4 + block)
    before, after = both[: partitioning.parts], both[partitioning.parts :]
    counts = list(map(sub, after, before))
    with work.arena() as take:
        ids, found, out = take(n * partitioning.id_bytes), take(n * width), take(n * width)
        attempt = spills.lines(work.starts, 0, 1)[block]
        piece = spill.Segment(
            "split", block, block * partitioning.block * partitioning.pitch, attempt
        )
        spills.read(piece, n * LOCAL, ids)
        wanted = [
            (spill.Segment("sweep", part, bases[part] * width, attempts[part]),
             before[part] * width, counts[part] * width)
            for part in filter(counts.__getitem__, range(partitioning.parts))
        ]  # fmt: skip
        spill.read_all(spills, wanted, found)
        if partitioning.rows.strays:
            counts.append(n - sum(counts))
            found[len(found) - counts[-1] * width :] = work.filling * counts[-1]
        starts = memoryview(array("q", accumulate(counts[:-1], initial=0)))
        _permute(ids, starts, found, out, n, back=True)
        assert work.arrays.output is not None
        write_range(work.arrays.output, block * partitioning.block, out)
    return TaskResult(0)


PHASES = {one.__name__: one for one in (check, split, sweep, replay)}


def _gather(
    work: Work, part: int, batches: list[Batch], attempts: memoryview, before: int
) -> TaskResult:
    """Gather rows of a partition and spill them; only chunks that they are in are read."""
    partitioning, spills, width = work.partitioning, work.spills, work.partitioning.rows.width
    box, at = partitioning.box(part), 0
    there = bytearray(MOST_PARTS)
    piece = spills.create(spill.Segment("sweep", part, before * width))
    with work.part() as whole:
        buffer = whole[: _height(box) * width]
        for batch in batches:
            with work.arena() as take:
                local, n = fetched(work.partitioning, work.spills, batch, attempts, "local", take)
                if new := _missing(work, box, local, n, take, there):
                    work.arrays.data.read(box, buffer, new)
                found = take(n * width)
                a, indices, tuples = _bound(_height(box), local, n, width)
                if _kernels.gather(a, buffer, 0, indices, tuples, found, KernelOptions(1)):
                    raise _changed()
                spills.write(piece, at, found)
                at += len(found)
    spills.finish(piece)
    return TaskResult(piece.attempt)


def _missing(
    work: Work, box: Box, local: memoryview, n: int, take: Take, there: bytearray
) -> Sequence[int]:
    """Return the numbers of a partition's chunks that rows need and that are not read yet.

    there: a flag for each chunk that is read, which this sets. If there are more than MOST_PARTS
    chunks, or data are flat, the first flag is for all.
    """
    sizes = tuple(stop - first for first, stop in box)
    steps = tuple(map(min, sizes, work.arrays.data.chunk or sizes))
    count = grid.blocks(sizes, steps)
    if count == 1 or count > MOST_PARTS:
        is_new, there[0] = not there[0], 1
        return range(count if is_new else 0)
    boxes, counts = bind.bind_boxes(sizes, steps), memoryview(bytearray(8 * (count + 1))).cast("q")
    a, indices, tuples = _bound(_height(box), local, n, 1)
    ids, rows = take(2 * n), take(n * LOCAL).cast("I")
    if _kernels.partition_ids(a, indices, 0, tuples, boxes, ids, rows, counts):
        raise _changed()
    new = [one for one, (a, b) in enumerate(pairwise(counts)) if b > a and not there[one]]
    for one in new:
        there[one] = 1
    return new


def _update(work: Work, part: int, batches: list[Batch], attempts: memoryview) -> None:
    """Apply the updates of a partition, in order, and write it."""
    width, dtype, box = (
        work.partitioning.rows.width,
        work.inference.dtype,
        work.partitioning.box(part),
    )
    with work.part() as whole:
        buffer = whole[: _height(box) * width]
        work.arrays.data.read(box, buffer)
        turn = bool(batches) and work.turned
        if turn:
            copies.swap(buffer, dtype.unit)
        counts = None
        if batches and work.combining.is_counted:
            zeros = memoryview(bytearray(_height(box) * work.partitioning.rows.count_bytes))
            counts = work.combining.counts(zeros, work.partitioning.rows.tuples, width)
        for batch in batches:
            with work.arena() as take:
                local, n = fetched(work.partitioning, work.spills, batch, attempts, "local", take)
                updates, _ = fetched(work.partitioning, work.spills, batch, attempts, "rows", take)
                change = UpdateSpec(updates, width, work.reduction, dtype.name, counts)
                a, indices, tuples = _bound(_height(box), local, n, width)
                if _kernels.scatter(a, indices, tuples, change, buffer, False, KernelOptions(1)):
                    raise _changed()
        work.combining.divide(counts, buffer, width, dtype, 1)
        if turn:
            copies.swap(buffer, dtype.unit)
        assert work.arrays.output is not None
        work.arrays.output.write(box, buffer)


def _bound(
    height: int, local: memoryview, n: int, width: int
) -> tuple[Addressing, Indices, WorkItem]:
    """Bind the rows of a partition, and the numbers of n of them."""
    addressing = Addressing((height,), (width,), n, (), (), False)
    return addressing, Indices(local, LOCAL, True, False), WorkItem(0, n, 0, width)


def _permute(
    ids: memoryview, starts: memoryview, rows: memoryview, out: memoryview, n: int, back: bool
) -> None:
    """Permute the rows of tuples by partition, stably, or back to the order of tuples."""
    table = memoryview(bytearray(starts)).cast("q")
    if _kernels.permute(ids, table, rows, out, n, back):
        raise _changed()


def _height(box: Box) -> int:
    return prod(stop - first for first, stop in box)


def _changed() -> OutputError:
    return OutputError("a temporary file changed during the run")
