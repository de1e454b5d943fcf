"""How the tuples of a run access data: how near their rows are, and what a random read costs."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING

from ndtool import _kernels
from ndtool._kernels import MAX_BYTE_IDS, WorkItem
from ndtool.arrays.source import Flat
from ndtool.engine import tuning
from ndtool.engine.bind import bind_boxes, bind_rows
from ndtool.rules.modes import Handling
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall
from ndtool.storage.local import ByteRange

if TYPE_CHECKING:
    from ndtool.runs.external.rows import Rows

SHIFT = 32  # a row number is a partition and a local number of so many bits
SAMPLES = 61  # positions in indices where locality is sampled: a prime, to avoid periods
TOGETHER = 64  # tuples sampled at each position


def page_cost(data: ByteRange, ahead: bool) -> int:
    """Measure the cost of a random page read, in bytes of sequential reading.

    ahead: whether many pages are prefetched at once, as a gather of rows does.
    """
    size = len(data.buffer)
    buffer = memoryview(bytearray(min(tuning.ORDERED, size // 4)))
    starts = [(2 * i + 1) * size // (2 * tuning.FOUND) for i in range(tuning.FOUND)]
    started = perf_counter()
    for start in starts if ahead else ():
        data.advise("willneed", start, 1)
    for start in starts:
        data.read(start, buffer[:1])
    found = perf_counter()
    data.read(size // 4, buffer)
    each, whole = (found - started) / len(starts), perf_counter() - found
    return min(int(each / whole * len(buffer)), tuning.RANDOM)


def sampled(call: OpenCall, rows: Rows) -> tuple[float, int]:
    """Estimate the fraction of spatially local tuples, and the touched span of data in bytes.

    A tuple is local if its row is near that of the preceding tuple. Both are from a sample.
    """
    addressing = bind_rows(call.inference.plan, call.inference.row.negatives)
    boxes = bind_boxes((rows.height,), (min(rows.height, 1 << SHIFT),))
    strict = call.inference.handling == Handling()
    handling = Handling("error" if strict else "clip")
    indices = operands.bound(call.inference, operands.load_indices(call), handling)
    marks, buffer = bytearray(2 * TOGETHER), memoryview(bytearray(4 * TOGETHER))
    local = buffer.cast("I")
    found = total = highest = 0
    lowest = rows.height
    source = call.sources["indices"]
    mapped = source.local_range if isinstance(source, Flat) else None
    for first in range(0, rows.tuples, max(TOGETHER, rows.tuples // SAMPLES)):
        if mapped is not None:
            mapped.advise("dontneed")  # or up to 2 MiB of it stay in memory for each sample
        piece = WorkItem(first, min(TOGETHER, rows.tuples - first), 0, 0)
        starts = memoryview(bytearray(8 * (boxes.partitions + 1))).cast("q")
        if _kernels.partition_ids(addressing, indices, 0, piece, boxes, marks, buffer, starts):
            continue  # out of bounds: the run reports it
        wide = boxes.partitions > MAX_BYTE_IDS
        parts = memoryview(marks).cast("H") if wide else marks
        numbers = [(parts[i] << SHIFT) + local[i] for i in range(piece.tuples)]
        lowest, highest = min(lowest, *numbers), max(highest, *numbers)
        steps = [abs(b - a) * rows.width for a, b in pairwise(numbers)]
        found += sum(step <= tuning.RANDOM for step in steps)
        total += len(steps)
    reach = max(0, highest + 1 - lowest) * rows.width
    return found / total if total else 0.0, reach
