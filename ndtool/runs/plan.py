"""The plan of a run: the choice between direct and external execution by cost.

The unit of cost is the sequential read of a byte. Random access costs nothing if the bytes that it
touches fit in memory.
"""

from __future__ import annotations

from copy import copy
from itertools import pairwise
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from ndtool._kernels import PAGE, WorkItem, partition_ids
from ndtool.arrays.source import ArrayMetadata, Constant, ContiguousSource
from ndtool.engine import tuning
from ndtool.engine.bind import bind_boxes, bind_rows
from ndtool.engine.counting import count_itemsize
from ndtool.errors import ResourceError, argument_name, format_size, option
from ndtool.machine import memory
from ndtool.rules.operators import CLIP, Attributes
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall
from ndtool.runs.direct import gathers_by_block

if TYPE_CHECKING:
    from ndtool.formats.outputs import Output
    from ndtool.outofcore.partitioning import Partitioning, Rows


SAMPLES = 61  # samples of successive tuples: a prime number, to avoid periods of indices
TUPLES_PER_SAMPLE = 64
BLOCK_TUPLE_BYTES = 32  # memory for each tuple that is gathered from its block


class Plan(NamedTuple):
    """The execution of a run, and upper bounds of its costs.

    way: how to execute, "direct", "sweep" or "cluster". partitions, blocks: their numbers, 0 if
    direct. read, written, spilled: bytes. memory: bytes that the run allocates. requests: those to
    URLs by kind, empty if direct. reason: why the plan chose this execution. partitioning: the
    partitioning of external execution.
    """

    way: str
    partitions: int
    blocks: int
    read: int
    written: int
    spilled: int
    memory: int
    requests: dict[str, int]
    reason: str
    partitioning: Partitioning | None = None


def choose(call: OpenCall, limit: int | None, output: Output | None) -> Plan:
    """Choose how to execute a call; limit: bytes of memory, None for all available memory."""
    out, concurrency = _destination(call, output)
    chunked, data, slices = _in_chunks(call, out), call.sources["data"], call.inference.plan
    allowed = max(memory.available(), tuning.ASSUMED_MEMORY) if limit is None else limit
    partitioning, gathers = None, not call.inference.scatters
    by_block = gathers and gathers_by_block(data, call.inference, in_memory=output is None)
    if isinstance(data, ContiguousSource) and not _is_partitionable(data):
        if limit is not None:
            _require_partitionable(call, data, allowed)
        reason = "data cannot be partitioned: not a local file or store in C order"
    elif not slices.tuples or not slices.width or prod(slices.all_slices) < 2:
        reason = "nothing is accessed at random"
    elif chunked:
        partitioning, reason = _partition_chunked(call, limit, allowed, out, concurrency, by_block)
    else:
        partitioning, reason = _partition_flat(call, limit, allowed)
    if partitioning is not None:
        return partitioned_plan("sweep", call, partitioning, reason, output)
    written = call.inference.nbytes
    sizes = {role: source.metadata.nbytes for role, source in call.sources.items()}
    data_read = 0 if isinstance(data, Constant) else sizes["data"]
    read = sum(sizes.values()) - sizes["data"] + (min(data_read, written) if gathers else data_read)
    nbytes = _buffer_bytes(call, out, concurrency if chunked else None)
    nbytes += BLOCK_TUPLE_BYTES * slices.tuples if by_block else 0
    return Plan("direct", 0, 0, read, written, 0, nbytes, {}, reason)


def _destination(call: OpenCall, output: Output | None) -> tuple[ArrayMetadata, int]:
    """Return the metadata of the output, and how many of its chunks to write concurrently."""
    return (call.metadata, 1) if output is None else (output.metadata, output.concurrency)


def fit_threads(call: OpenCall, limit: int | None, output: Output | None) -> OpenCall:
    """Return a call with fewer threads if their chunks exceed memory; ResourceError if one does."""
    out, _ = _destination(call, output)
    if limit is None or not _in_chunks(call, out):
        return call
    from ndtool.outofcore.partitioning import chunk_buffers

    arrays = [
        (chunk_buffers(item.metadata), item.name, item.metadata) for item in call.sources.values()
    ]
    arrays.append((chunk_buffers(out, True), "the output", out))
    buffers, name, metadata = max(arrays, key=lambda item: item[0])
    if buffers > limit:
        nbytes = prod(metadata.block_shape) * metadata.dtype.itemsize
        raise ResourceError(
            f"{argument_name(name)}: a chunk of {nbytes} bytes takes {buffers} bytes of memory:"
            f" more than the {limit} of {option('memory')}"
        )
    if not buffers:
        return call
    call = copy(call)  # both share the inputs
    # The other half of memory is for other buffers.
    call.threads = max(1, min(call.threads, limit // 2 // buffers))
    return call


def _buffer_bytes(call: OpenCall, out: ArrayMetadata, concurrency: int | None) -> int:
    """Return the bytes of buffers of direct execution.

    concurrency: how many chunks of the output to write concurrently, None if no array has chunks.
    """
    data, gathers = call.sources["data"], not call.inference.scatters
    nbytes = (
        call.threads * tuning.WRITE_SIZE
        if gathers
        else tuning.FILE_SCRATCH + _update_count_nbytes(call)
    )
    if concurrency is not None:
        from ndtool.outofcore.partitioning import rows_of

        rows = rows_of(call.inference, call.sources, out, call.threads, concurrency)
        nbytes += max(call.threads, rows.concurrency) * rows.chunk_bytes
    if gathers and (not isinstance(data, ContiguousSource) or not data.is_local):
        from ndtool.runs import touched

        nbytes += touched.memory(data.metadata)
    return nbytes


def _update_count_nbytes(call: OpenCall) -> int:
    """Return the bytes that counts of updates take, and the bits of a check for duplicates."""
    inferred, nbytes = call.inference, 0
    if inferred.attributes.is_counted:
        slices = inferred.plan
        nbytes += prod(slices.all_slices) * count_itemsize(slices.attributes, slices.tuples)
    if inferred.requires_distinct:
        from ndtool.engine import distinct

        nbytes += distinct.memory_bytes(inferred.plan)
    return nbytes


def partitioned_plan(
    way: str,
    call: OpenCall,
    partitioning: Partitioning,
    reason: str,
    output: Output | None,
    spill: str | None = None,
) -> Plan:
    """Return the plan of external execution; spill: the location of a cluster's spilled data."""
    from ndtool.outofcore import costs

    is_remote = output is not None and output.is_remote
    requests, read, written = costs.count(
        call, call.remote_roles, partitioning, _destination(call, output)[0], is_remote, spill
    )
    return Plan(
        way, partitioning.partitions, partitioning.blocks, read, written, partitioning.spilled,
        partitioning.memory, requests, reason, partitioning,
    )  # fmt: skip


def _in_chunks(call: OpenCall, out: ArrayMetadata) -> bool:
    """Whether an input or the output has chunks."""
    inputs_chunked = any(
        not isinstance(source, ContiguousSource) for source in call.sources.values()
    )
    return inputs_chunked or out.is_chunked


def _partition_chunked(
    call: OpenCall,
    limit: int | None,
    allowed: int,
    out: ArrayMetadata,
    concurrency: int,
    by_block: bool,
) -> tuple[Partitioning | None, str]:
    """Return the partitioning of a run with chunked arrays, None if direct, and the reason.

    by_block: whether direct execution does not assemble blocks.
    """
    from ndtool.outofcore.partitioning import memory_error, rows_of

    metadata = {role: source.metadata for role, source in call.sources.items()}
    data, gathers = call.sources["data"], not call.inference.scatters

    chunk_bytes = (
        PAGE + call.inference.plan.width * out.dtype.itemsize
        if isinstance(data, ContiguousSource)
        else prod(metadata["data"].block_shape) * out.dtype.itemsize
    )
    assembled = metadata["data"].nbytes
    if gathers:
        assembled = min(assembled, call.inference.plan.tuples * chunk_bytes)
    working_set = (
        assembled
        + _update_count_nbytes(call)
        + sum(item.nbytes for role, item in metadata.items() if role != "data")
        + out.nbytes
    )
    fits_in_memory = memory.can_hold(working_set, allowed)
    budget = min(allowed // 2, tuning.MAX_SWEEP_MEMORY)
    fits = "fit" if fits_in_memory else "do not fit"
    reason = f"the {working_set} bytes that are read and written {fits} in memory of {allowed}"
    if fits_in_memory:
        budget = min(budget, tuning.UNUSED_CHUNKS)
        is_read_in_turn = metadata["data"].is_chunked and data.concurrency == 1
        may_sweep = gathers and is_read_in_turn and assembled >= tuning.UNUSED_CHUNKS
        if by_block or not may_sweep:
            return None, reason

    for buffers_output in (False, True):
        rows = rows_of(
            call.inference, call.sources, out, call.threads, concurrency,
            buffers_output=buffers_output,
        )  # fmt: skip
        partitioning = rows.choose(budget, allowed)
        if partitioning.memory <= allowed:
            break
    else:
        if fits_in_memory:
            return None, reason
        if limit is not None:
            raise memory_error(partitioning.memory, limit)
        return None, f"a partition of data would take more than {allowed} bytes"
    if fits_in_memory:
        sweep_cost = _sweep_cost(partitioning)  # direct execution reads the chunks, too
        reason = (
            f"buffering chunks costs as much as writing {assembled} bytes, a sweep {sweep_cost}"
            " bytes"
        )
        return (partitioning if sweep_cost < assembled else None), reason
    return partitioning, reason


def _partition_flat(
    call: OpenCall, limit: int | None, allowed: int
) -> tuple[Partitioning | None, str]:
    """Return the partitioning of a run on flat arrays, None if direct, and the reason."""
    data, gathers = call.sources["data"], not call.inference.scatters
    assert isinstance(data, ContiguousSource), "no array has chunks"
    is_constant = isinstance(data, Constant)
    if is_constant and gathers:
        return None, "data are one value"
    if limit is None and not data.is_mapped and not is_constant:
        return None, "data are in memory"
    size = data.metadata.nbytes
    if call.inference.plan.is_elementwise:
        size = max(size, call.inference.nbytes)
    size += _update_count_nbytes(call)
    if memory.can_hold(size, allowed):
        return None, f"the {size} bytes that are accessed at random fit in memory of {allowed}"

    from ndtool.outofcore.partitioning import memory_error, rows_of

    rows = rows_of(call.inference, call.sources, call.metadata, call.threads)
    partitioning = rows.choose(min(allowed // 2, tuning.MAX_SWEEP_MEMORY), allowed)
    is_sparse = memory.can_hold(rows.tuples * (PAGE + rows.width), allowed)
    if partitioning.memory > allowed:
        minimum = partitioning.memory
        is_fast = is_bounded(call) and rows.width >= tuning.RANDOM_READ_COST
        if limit is not None and not (is_sparse or is_fast):
            raise memory_error(minimum, limit)
        return None, f"a sweep would take {minimum} bytes of memory, more than {allowed}"
    local_fraction, span = sample_locality(call, rows)
    nonlocal_tuples = rows.tuples * (1 - local_fraction)
    random_reads = nonlocal_tuples * max(1 - allowed / size, 0.25)
    if memory.can_hold(span, allowed):
        random_reads = min(random_reads, span / PAGE)  # pages stay in the page cache
    read_cost, sweep_cost = tuning.RANDOM_READ_COST, _sweep_cost(partitioning)
    sweep_cost += data.metadata.nbytes * gathers
    if gathers and data.is_mapped and sweep_cost < random_reads * (read_cost + rows.width):
        uncached = 1 - data.cached_fraction(1, default=0.0) if limit is None else 1.0
        touched_bytes = min(int(nonlocal_tuples * (PAGE + rows.width)), span)
        if memory.can_hold(int(touched_bytes * uncached), allowed):
            prefetches = not call.inference.plan.is_elementwise
            read_cost = max(PAGE, int(uncached * page_cost(data, prefetches)))
    direct_cost = int(random_reads * (read_cost + rows.width) * (1 if gathers else 2))
    reason = (
        f"random access takes as long as reading {direct_cost} bytes sequentially, a sweep"
        f" {sweep_cost}"
    )
    if limit is not None and not (is_sparse or is_bounded(call) or memory.can_hold(span, allowed)):
        return partitioning, f"direct access would take more memory than {allowed}"
    return (partitioning if sweep_cost < direct_cost else None), reason


def _sweep_cost(partitioning: Partitioning) -> int:
    """Return the cost of a sweep in addition to reads and writes of data."""
    sorted_tuples = partitioning.rows.tuples * partitioning.depth
    return 2 * partitioning.spilled + sorted_tuples * tuning.SORT_COST


def is_bounded(call: OpenCall) -> bool:
    """Whether direct execution can release pages of data after it has read them."""
    return not call.inference.scatters and not call.inference.plan.is_elementwise


def _is_partitionable(data: ContiguousSource) -> bool:
    """Whether partitions of contiguous data are byte ranges of a local file."""
    is_transposed = data.metadata.order == "F" and len(data.metadata.shape) > 1
    return data.is_local and not is_transposed


def _require_partitionable(call: OpenCall, data: ContiguousSource, allowed: int) -> None:
    """Raise ResourceError if data that cannot be partitioned do not fit in memory.

    A gather of few tuples needs only their pages in memory.
    """
    slices, metadata = call.inference.plan, data.metadata
    pages = slices.tuples * (slices.width if metadata.order == "F" else 1)
    if memory.can_hold(metadata.nbytes, allowed) or (
        not call.inference.scatters and memory.can_hold(pages * PAGE, allowed)
    ):
        return
    obstacle = "is in Fortran order" if metadata.order == "F" else "is remote"
    raise ResourceError(
        f"{argument_name(data.name)} {obstacle} and larger than {option('memory')}"
        f" {format_size(allowed)}, so it cannot be read in parts: expected a local file or a store,"
        " in C order",
        hint=f"ndtool convert {argument_name(data.name)} NEW makes one",
    )


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
    row_count = prod(rows.shape)
    boxes = bind_boxes((row_count,), (row_count,))
    attributes = call.inference.plan.attributes
    is_strict = attributes.out_of_bounds == "error" and attributes.pad is None
    sampled = Attributes(out_of_bounds="error" if is_strict and attributes.negatives else CLIP)
    indices = operands.bind_indices(call.inference, operands.load_indices(call), sampled)
    ids, buffer = (bytearray(n * TUPLES_PER_SAMPLE) for n in (1, boxes.row_bytes))
    selected = memoryview(buffer).cast("I" if boxes.row_bytes == 4 else "q")
    local_count = total = highest = 0
    lowest = row_count
    source = call.sources["indices"]
    for first in range(0, rows.tuples, max(TUPLES_PER_SAMPLE, rows.tuples // SAMPLES)):
        if isinstance(source, ContiguousSource) and source.is_local:
            source.advise("dontneed")  # else each sample leaves up to 2 MiB in memory
        item = WorkItem(first, min(TUPLES_PER_SAMPLE, rows.tuples - first), 0, 0)
        offsets = memoryview(bytearray(16)).cast("q")
        if partition_ids(addressing, indices, 0, item, boxes, ids, buffer, offsets):
            continue  # out of bounds: the run reports it
        row_indices = selected[: item.tuples].tolist()
        lowest, highest = min(lowest, *row_indices), max(highest, *row_indices)
        distances = [abs(b - a) * rows.width for a, b in pairwise(row_indices)]
        local_count += sum(distance <= tuning.RANDOM_READ_COST for distance in distances)
        total += len(distances)
    span = max(0, highest + 1 - lowest) * rows.width
    return local_count / total if total else 0.0, span
