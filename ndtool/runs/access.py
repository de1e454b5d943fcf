"""How the tuples of a run access data: spatial locality, and the cost of a random read."""

from __future__ import annotations

from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING

from ndtool import _kernels
from ndtool._kernels import MAX_BYTE_IDS, WorkItem
from ndtool.arrays.source import ContiguousSource
from ndtool.engine import tuning
from ndtool.engine.bind import bind_boxes, bind_rows
from ndtool.rules.operators import Attributes
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall

if TYPE_CHECKING:
    from ndtool.outofcore.partitioning import Rows

SHIFT = 32  # bits of a row index within a partition; the higher bits are the partition ID
SAMPLES = 61  # samples of successive tuples: a prime number, to avoid periods of indices
TUPLES_PER_SAMPLE = 64


def page_cost(data: ContiguousSource, prefetches: bool) -> int:
    """Measure the cost of a random page read, in bytes of sequential reading.

    prefetches: whether many pages are prefetched at once, as a gather of rows does.
    """
    size = len(data.buffer)
    buffer = memoryview(bytearray(min(tuning.SAMPLED_BYTES, size // 4)))
    offsets = [
        (2 * i + 1) * size // (2 * tuning.SAMPLED_PAGES) for i in range(tuning.SAMPLED_PAGES)
    ]
    started = perf_counter()
    for start in offsets if prefetches else ():
        data.advise("willneed", start, 1)
    for start in offsets:
        data.read_bytes(start, buffer[:1])
    finished = perf_counter()
    data.read_bytes(size // 4, buffer)
    per_read, sequential = (finished - started) / len(offsets), perf_counter() - finished
    return min(int(per_read / sequential * len(buffer)), tuning.RANDOM_READ_COST)


def sample_locality(call: OpenCall, rows: Rows) -> tuple[float, int]:
    """Estimate the fraction of spatially local tuples, and the touched span of data in bytes.

    A tuple is local if its row is near that of the preceding tuple. The estimate uses a sample.
    """
    addressing = bind_rows(call.inference.plan)
    boxes = bind_boxes((rows.row_count,), (min(rows.row_count, 1 << SHIFT),))
    attributes = call.inference.plan.attributes
    is_strict = attributes.out_of_bounds == "error" and not attributes.may_alter_tuples
    sampled = Attributes(out_of_bounds="error" if is_strict else "clip")
    indices = operands.bind_indices(call.inference, operands.load_indices(call), sampled)
    id_buffer, buffer = (
        bytearray(2 * TUPLES_PER_SAMPLE),
        memoryview(bytearray(4 * TUPLES_PER_SAMPLE)),
    )
    local_indices = buffer.cast("I")
    local_count = total = highest = 0
    lowest = rows.row_count
    source = call.sources["indices"]
    for first in range(0, rows.tuples, max(TUPLES_PER_SAMPLE, rows.tuples // SAMPLES)):
        if isinstance(source, ContiguousSource) and source.is_local:
            source.advise("dontneed")  # else each sample leaves up to 2 MiB in memory
        item = WorkItem(first, min(TUPLES_PER_SAMPLE, rows.tuples - first), 0, 0)
        offsets = memoryview(bytearray(8 * (boxes.partitions + 1))).cast("q")
        if _kernels.partition_ids(addressing, indices, 0, item, boxes, id_buffer, buffer, offsets):
            continue  # out of bounds: the run reports it
        is_wide = boxes.partitions > MAX_BYTE_IDS
        partition_ids = memoryview(id_buffer).cast("H") if is_wide else id_buffer
        row_indices = [(partition_ids[i] << SHIFT) + local_indices[i] for i in range(item.tuples)]
        lowest, highest = min(lowest, *row_indices), max(highest, *row_indices)
        distances = [abs(b - a) * rows.width for a, b in pairwise(row_indices)]
        local_count += sum(distance <= tuning.RANDOM_READ_COST for distance in distances)
        total += len(distances)
    span = max(0, highest + 1 - lowest) * rows.width
    return local_count / total if total else 0.0, span
