"""The plan of a run: the choice between direct and external execution by cost.

The unit of cost is the sequential read of a byte. Random access costs nothing if the bytes that it
touches fit in memory.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool.arrays.constant import Constant
from ndtool.arrays.source import ArrayMetadata, ContiguousSource
from ndtool.engine import distinct, tuning
from ndtool.errors import ResourceError, argument_name, format_size
from ndtool.machine import memory
from ndtool.rules.plans import ElementsPlan
from ndtool.runs import access
from ndtool.runs.calls import OpenCall
from ndtool.runs.direct import PAGE

if TYPE_CHECKING:
    from ndtool.formats.outputs import Output
    from ndtool.runs.external.partitioning import Partitioning
    from ndtool.runs.external.rows import Rows


class Plan(NamedTuple):
    """The execution of a run, and upper bounds of its costs.

    way: how to execute, "direct", "sweep" or "cluster". tasks: the number of tasks by phase, an
    upper bound for deeper levels. read, written, spilled: bytes. memory: bytes that the run
    allocates. reason: why the plan chose this execution. levels: how often each tuple is
    partitioned, 0 if direct. partitioning: the partitioning of external execution. requests: the
    requests of external execution by kind.
    """

    way: str
    tasks: dict[str, int]
    read: int
    written: int
    spilled: int
    memory: int
    reason: str
    levels: int = 0
    partitioning: Partitioning | None = None
    requests: dict[str, int] = {}  # noqa: RUF012

    @property
    def moved(self) -> int:
        """The bytes read and written while the output is computed, for progress."""
        if self.partitioning is None:
            return self.written
        return self.read + self.written + 2 * self.spilled


def choose(call: OpenCall, limit: int | None, output: Output | None) -> Plan:
    """Choose how to execute a call; limit: bytes of memory, None for all available memory."""
    out, concurrency = destination(call, output)
    chunked = _in_chunks(call, out)
    partitioning, reason = (
        _partition_chunked(call, limit, out, concurrency)
        if chunked
        else _partition_flat(call, limit)
    )
    if partitioning is not None:
        return external_plan("sweep", call, partitioning, reason, output)
    gathers, written = not call.inference.scatters, call.inference.nbytes
    sizes = {role: source.metadata.nbytes for role, source in call.sources.items()}
    data = 0 if isinstance(call.sources["data"], Constant) else sizes["data"]
    read = sum(sizes.values()) - sizes["data"] + (min(data, written) if gathers else data)
    nbytes = _buffer_bytes(call, out, concurrency if chunked else None)
    return Plan("direct", {}, read, written, 0, nbytes, reason)


def destination(call: OpenCall, output: Output | None) -> tuple[ArrayMetadata, int]:
    """Return the metadata of the output, and how many of its chunks to write concurrently."""
    return (call.metadata, 1) if output is None else (output.metadata, output.concurrency)


def fit_threads(call: OpenCall, limit: int | None, output: Output | None) -> OpenCall:
    """Return a call with fewer threads if their chunks exceed memory; ResourceError if one does."""
    out, _ = destination(call, output)
    if limit is None or not _in_chunks(call, out):
        return call
    from ndtool.runs.external.units import chunk_buffers

    arrays = [
        (chunk_buffers(item.metadata), item.name, item.metadata) for item in call.sources.values()
    ]
    arrays.append((chunk_buffers(out, True), "the output", out))
    buffers, name, metadata = max(arrays, key=lambda item: item[0])
    if buffers > limit:
        nbytes = prod(metadata.block_shape) * metadata.dtype.itemsize
        raise ResourceError(
            f"{argument_name(name)}: a chunk of {nbytes} bytes takes {buffers} bytes of memory:"
            f" more than the {limit} of --memory"
        )
    if not buffers:
        return call
    # The other half of memory is for other buffers.
    return call.with_threads(max(1, min(call.threads, limit // 2 // buffers)))


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
        from ndtool.runs.external.units import chunk_buffers

        metadata = (source.metadata for source in call.sources.values())
        chunk_bytes = max(chunk_buffers(out, True), *map(chunk_buffers, metadata))
        nbytes += max(call.threads, _concurrent_chunks(call, concurrency)) * chunk_bytes
    if gathers and (not isinstance(data, ContiguousSource) or data.local_range is None):
        from ndtool.runs import touched

        nbytes += touched.memory(data.metadata)
    return nbytes


def _update_count_nbytes(call: OpenCall) -> int:
    """Return the bytes that counts of updates take, and the bits of a check for duplicates."""
    from ndtool.runs.external.rows import rows_of

    rows = rows_of(call.inference)
    bits = distinct.memory_bytes(call.inference.plan) if call.inference.requires_distinct else 0
    return rows.row_count * rows.count_bytes + bits


def external_plan(
    way: str,
    call: OpenCall,
    partitioning: Partitioning,
    reason: str,
    output: Output | None,
    spill: str | None = None,
) -> Plan:
    """Return the plan of external execution; spill: the location of a cluster's spilled data."""
    from ndtool.runs.external import costs

    run = costs.cost_model_for(call, partitioning, output, spill)
    phases = run.phases()
    return Plan(
        way, partitioning.tasks, sum(item.read for item in phases),
        sum(item.written for item in phases), partitioning.spilled, partitioning.memory, reason,
        partitioning.levels, partitioning, run.requests(phases),
    )  # fmt: skip


def _in_chunks(call: OpenCall, out: ArrayMetadata) -> bool:
    """Whether an input or the output has chunks."""
    inputs_chunked = any(
        not isinstance(source, ContiguousSource) for source in call.sources.values()
    )
    return inputs_chunked or out.is_chunked


def _partition_chunked(
    call: OpenCall, limit: int | None, out: ArrayMetadata, concurrency: int
) -> tuple[Partitioning | None, str]:
    """Return the partitioning of a run with chunked arrays, None if direct, and the reason."""
    from ndtool.runs.external.units import chunk_buffers

    metadata = {role: source.metadata for role, source in call.sources.items()}
    data, rows = call.sources["data"], rows_in(call, out)
    gathers = not call.inference.scatters
    allowed = max(memory.available(), tuning.ASSUMED_MEMORY) if limit is None else limit
    if isinstance(data, ContiguousSource) and not _is_partitionable(data):
        if limit is not None:
            _require_partitionable(call, data, allowed)
        return None, "data cannot be partitioned: not a local file or store in C order"
    if not rows.tuples or not rows.width or rows.row_count < 2:
        return None, "nothing is accessed at random"
    chunk_bytes = (
        PAGE + rows.width
        if isinstance(data, ContiguousSource)
        else prod(metadata["data"].block_shape) * out.dtype.itemsize
    )
    assembled = metadata["data"].nbytes
    if gathers:
        assembled = min(assembled, rows.tuples * chunk_bytes)
    working_set = (
        assembled
        + _update_count_nbytes(call)
        + sum(item.nbytes for role, item in metadata.items() if role != "data")
        + out.nbytes
    )
    fits_in_memory, budget = (
        memory.can_hold(working_set, allowed),
        min(allowed // 2, tuning.MAX_SWEEP_MEMORY),
    )
    reason = f"the {working_set} bytes that are read and written do not fit in memory of {allowed}"
    if fits_in_memory:
        budget = min(budget, tuning.UNUSED_CHUNKS)
        reason = f"the {working_set} bytes that are read and written fit in memory of {allowed}"
        is_read_in_turn = metadata["data"].is_chunked and data.concurrency == 1
        if not (gathers and is_read_in_turn and assembled >= tuning.UNUSED_CHUNKS):
            return None, reason
    from ndtool.runs.external import choice

    minimums = list[int]()
    # The second layout stands for an output that is assembled in a buffer.
    for output in (out, out._replace(block_shape=out.shape, layout=None)):
        written = chunk_buffers(out, True)
        partition = partial(_for_chunks, call, output, (written, concurrency, allowed))
        if partitioning := choice.choose(partition, budget, allowed):
            break
        minimums.append(choice.min_memory(partition))
    else:
        if fits_in_memory:
            return None, reason
        if limit is not None and any(minimums):
            raise choice.memory_error(min(filter(None, minimums)), limit)
        return None, f"a partition of data would take more than {allowed} bytes"
    if fits_in_memory:
        # Direct execution reads the chunks, too.
        sweep_cost = choice.cost(partitioning) - rows.row_count * rows.width
        reason = (
            f"buffering chunks costs as much as writing {assembled} bytes, a sweep {sweep_cost}"
            " bytes"
        )
        return (partitioning if sweep_cost < assembled else None), reason
    return partitioning, reason


def _for_chunks(
    call: OpenCall, out: ArrayMetadata, limits: tuple[int, int, int], budget: int, levels: int
) -> Partitioning | None:
    """Partition a run in this process.

    limits: bytes of buffers that write a chunk, chunks to write concurrently, bytes of memory.
    """
    written, concurrency, allowed = limits
    partitioning = partition_chunks(call, out, concurrency, budget, levels)
    if partitioning is None:
        return None
    return partitioning._replace(chunk_bytes=max(partitioning.chunk_bytes, written)).fit_to(allowed)


def rows_in(call: OpenCall, out: ArrayMetadata) -> Rows:
    """Return the rows of a call, with linear indices if data and output are contiguous."""
    from ndtool.runs.external.rows import rows_of

    gathers = not call.inference.scatters
    flat = isinstance(call.sources["data"], ContiguousSource) and (gathers or not out.is_chunked)
    return rows_of(call.inference, flat)


def partition_chunks(
    call: OpenCall, out: ArrayMetadata, concurrency: int, budget: int, levels: int = 1
) -> Partitioning | None:
    """Partition a run with chunked arrays; None if a partition exceeds MAX_ROWS rows."""
    from ndtool.runs.external.partitioning import MAX_ROWS, partitioning_for
    from ndtool.runs.external.units import units_of

    metadata = {role: source.metadata for role, source in call.sources.items()}
    rows = rows_in(call, out)
    units = units_of(call.inference, metadata, out, _concurrent_chunks(call, concurrency))
    if not metadata["data"].is_chunked and (not call.inference.scatters or not out.is_chunked):
        units = units._replace(box=(1,))
    gathers = not call.inference.scatters
    partitioning = partitioning_for(rows, gathers, budget, call.threads, units, levels)
    return partitioning if prod(partitioning.partition_shape) <= MAX_ROWS else None


def _concurrent_chunks(call: OpenCall, written: int) -> int:
    """Return how many chunks to read or write concurrently, whatever the number of processors."""
    return max(written, *(item.concurrency for item in call.sources.values()))


def _partition_flat(call: OpenCall, limit: int | None) -> tuple[Partitioning | None, str]:
    """Return the partitioning of a run on flat arrays, None if direct, and the reason."""
    data, output = call.sources["data"], call.inference.nbytes
    allowed = max(memory.available(), tuning.ASSUMED_MEMORY) if limit is None else limit
    assert isinstance(data, ContiguousSource), "no array has chunks"
    local_range = data.local_range
    if local_range is None or not _is_partitionable(data):
        if limit is not None:
            _require_partitionable(call, data, allowed)
        return None, "data cannot be partitioned: not a local file or store in C order"
    is_constant = isinstance(data, Constant)
    if is_constant and not call.inference.scatters:
        return None, "data are one value"
    if limit is None and not local_range.mapped and not is_constant:
        return None, "data are in memory"
    size = data.metadata.nbytes
    if isinstance(call.inference.plan, ElementsPlan):
        size = max(size, output)
    size += _update_count_nbytes(call)
    if memory.can_hold(size, allowed):
        return None, f"the {size} bytes that are accessed at random fit in memory of {allowed}"
    from ndtool.runs.external import choice
    from ndtool.runs.external.partitioning import partitioning_for
    from ndtool.runs.external.rows import rows_of

    rows, gathers = rows_of(call.inference), not call.inference.scatters
    if not rows.tuples or not rows.width or rows.row_count < 2:
        return None, "nothing is accessed at random"

    def partition(budget: int, levels: int) -> Partitioning:
        partitioning = partitioning_for(rows, gathers, budget, call.threads, None, levels)
        return partitioning.fit_to(allowed)

    partitioning = choice.choose(partition, min(allowed // 2, tuning.MAX_SWEEP_MEMORY), allowed)
    is_sparse = memory.can_hold(rows.tuples * (PAGE + rows.width), allowed)
    if partitioning is None:
        minimum = choice.min_memory(partition)
        is_fast = is_bounded(call) and rows.width >= tuning.RANDOM_READ_COST
        if limit is not None and not (is_sparse or is_fast):
            raise choice.memory_error(minimum, limit)
        return None, f"a sweep would take {minimum} bytes of memory, more than {allowed}"
    local_fraction, span = access.sample_locality(call, rows)
    nonlocal_tuples = rows.tuples * (1 - local_fraction)
    random_reads = nonlocal_tuples * max(1 - allowed / size, 0.25)
    if memory.can_hold(span, allowed):
        random_reads = min(random_reads, span / PAGE)  # pages stay in the page cache
    read_cost, sweep_cost = tuning.RANDOM_READ_COST, choice.cost(partitioning)
    if gathers and local_range.mapped and sweep_cost < random_reads * (read_cost + rows.width):
        uncached = 1 - local_range.cached_fraction(1, default=0.0) if limit is None else 1.0
        touched_bytes = min(int(nonlocal_tuples * (PAGE + rows.width)), span)
        if memory.can_hold(int(touched_bytes * uncached), allowed):
            prefetches = not isinstance(call.inference.plan, ElementsPlan)
            read_cost = max(PAGE, int(uncached * access.page_cost(local_range, prefetches)))
    direct_cost = int(random_reads * (read_cost + rows.width) * (1 if gathers else 2))
    reason = (
        f"random access takes as long as reading {direct_cost} bytes sequentially, a sweep"
        f" {sweep_cost}"
    )
    if limit is not None and not (is_sparse or is_bounded(call) or memory.can_hold(span, allowed)):
        return partitioning, f"direct access would take more memory than {allowed}"
    return (partitioning if sweep_cost < direct_cost else None), reason


def is_bounded(call: OpenCall) -> bool:
    """Whether direct execution can release pages of data after it has read them."""
    return not call.inference.scatters and not isinstance(call.inference.plan, ElementsPlan)


def _is_partitionable(data: ContiguousSource) -> bool:
    """Whether partitions of contiguous data are byte ranges of a local file."""
    is_transposed = data.metadata.order == "F" and len(data.metadata.shape) > 1
    return data.local_range is not None and not is_transposed


def _require_partitionable(call: OpenCall, data: ContiguousSource, allowed: int) -> None:
    """Raise ResourceError if data that cannot be partitioned do not fit in memory.

    A gather of few tuples needs only their pages in memory.
    """
    from ndtool.runs.external.rows import rows_of

    rows, metadata = rows_of(call.inference), data.metadata
    pages = rows.tuples * (rows.width // metadata.dtype.itemsize if metadata.order == "F" else 1)
    if memory.can_hold(metadata.nbytes, allowed) or (
        not call.inference.scatters and memory.can_hold(pages * PAGE, allowed)
    ):
        return
    obstacle = "is in Fortran order" if metadata.order == "F" else "is remote"
    raise ResourceError(
        f"{argument_name(data.name)} {obstacle} and larger than --memory {format_size(allowed)}, so"
        " it cannot be read in parts: expected a local file or a store, in C order",
        hint=f"ndtool convert {argument_name(data.name)} NEW makes one",
    )
