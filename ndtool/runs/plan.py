"""The plan of a run: the choice between direct and external execution by cost.

The unit of cost is a byte of sequential reading. Random access costs nothing if the bytes it
touches fit into memory.
"""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool.arrays.constant import Constant
from ndtool.arrays.source import ArrayMetadata, Flat
from ndtool.engine import distinct, tuning
from ndtool.errors import ResourceError, argument_name, format_size
from ndtool.machine import memory
from ndtool.rules.plans import ElementsPlan
from ndtool.runs import access
from ndtool.runs.calls import OpenCall
from ndtool.runs.direct import PAGE
from ndtool.runs.prices import Estimate, Prices

if TYPE_CHECKING:
    from ndtool.formats.outputs import Output
    from ndtool.runs.external.partitioning import Partitioning
    from ndtool.runs.external.rows import Rows


class Plan(NamedTuple):
    """The execution of a run, and upper bounds of its costs.

    way: "direct", "sweep" or "cluster". tasks: the number of tasks by phase, of deeper levels at
    most. read, written, spilled: bytes. memory: bytes that the run allocates. reason: why this way.
    levels: how often each tuple is partitioned, 0 if direct. partitioning: the partitioning of
    external execution. requests: the requests of external execution by kind. estimates: its time
    and money for some numbers of workers.
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
    estimates: list[Estimate] = []  # noqa: RUF012

    @property
    def moved(self) -> int:
        """The bytes read and written while the output is computed, for progress."""
        if self.partitioning is None:
            return self.written
        return self.read + self.written + 2 * self.spilled


def choose(call: OpenCall, limit: int | None, output: Output | None) -> Plan:
    """Choose how to execute a call; limit: bytes of memory, None for all that is available."""
    out, at_once = destination(call, output)
    chunked = _in_chunks(call, out)
    partitioning, reason = (
        _partition_chunked(call, limit, out, at_once) if chunked else _partition_flat(call, limit)
    )
    if partitioning is not None:
        return planned("sweep", call, partitioning, reason, output)
    gathers, written = not call.inference.scatters, call.inference.nbytes
    sizes = {role: source.metadata.nbytes for role, source in call.sources.items()}
    data = 0 if isinstance(call.sources["data"], Constant) else sizes["data"]
    read = sum(sizes.values()) - sizes["data"] + (min(data, written) if gathers else data)
    nbytes = _buffer_bytes(call, out, at_once if chunked else None)
    return Plan("direct", {}, read, written, 0, nbytes, reason)


def destination(call: OpenCall, output: Output | None) -> tuple[ArrayMetadata, int]:
    """Return the metadata of the output, and how many of its chunks are worth writing at once."""
    return (call.metadata, 1) if output is None else (output.metadata, output.at_once)


def fitted(call: OpenCall, limit: int | None, output: Output | None) -> OpenCall:
    """Return a call with threads whose chunks fit in memory; ResourceError if one does not."""
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
        nbytes = prod(metadata.grid) * metadata.dtype.itemsize
        raise ResourceError(
            f"{argument_name(name)}: a chunk of {nbytes} bytes takes {buffers} bytes of memory:"
            f" more than the {limit} of --memory"
        )
    if not buffers:
        return call
    return call.with_threads(max(1, min(call.threads, limit // 2 // buffers)))  # and other buffers


def _buffer_bytes(call: OpenCall, out: ArrayMetadata, at_once: int | None) -> int:
    """Return the bytes of buffers of direct execution; at_once: output chunks, None without any."""
    data, gathers = call.sources["data"], not call.inference.scatters
    nbytes = call.threads * tuning.WRITE_SIZE if gathers else tuning.FILE_SCRATCH + _counts(call)
    if at_once is not None:
        from ndtool.runs.external.units import chunk_buffers

        metadata = (source.metadata for source in call.sources.values())
        chunk_bytes = max(chunk_buffers(out, True), *map(chunk_buffers, metadata))
        nbytes += max(call.threads, _at_once(call, at_once)) * chunk_bytes
    if gathers and (not isinstance(data, Flat) or data.local_range is None):
        from ndtool.runs import touched

        nbytes += touched.memory(data.metadata)
    return nbytes


def _counts(call: OpenCall) -> int:
    """Return the bytes of the counts of updates, and of the bits of a check for duplicates."""
    from ndtool.runs.external.rows import rows_of

    rows = rows_of(call.inference)
    bits = distinct.bitmap_bytes(call.inference.plan) if call.inference.requires_distinct else 0
    return rows.height * rows.count_bytes + bits


def planned(
    way: str,
    call: OpenCall,
    partitioning: Partitioning,
    reason: str,
    output: Output | None,
    spill: str | None = None,
) -> Plan:
    """Return the plan of external execution; spill: the location of a cluster's spilled data."""
    from ndtool.runs.external import estimates

    run = estimates.run_of(call, partitioning, output, spill)
    phases = run.phases()
    return Plan(
        way, partitioning.tasks, sum(item.read for item in phases),
        sum(item.written for item in phases), partitioning.spilled, partitioning.memory, reason,
        partitioning.levels, partitioning, run.requests(phases),
        estimates.estimates(run, phases, call.request.prices or Prices()),
    )  # fmt: skip


def _in_chunks(call: OpenCall, out: ArrayMetadata) -> bool:
    """Whether an input or the output has chunks."""
    inputs_chunked = any(not isinstance(source, Flat) for source in call.sources.values())
    return inputs_chunked or out.in_chunks


def _partition_chunked(
    call: OpenCall, limit: int | None, out: ArrayMetadata, at_once: int
) -> tuple[Partitioning | None, str]:
    """Return the partitioning of a run with chunked arrays, None for direct, and the reason."""
    from ndtool.runs.external.units import chunk_buffers

    metadata = {role: source.metadata for role, source in call.sources.items()}
    data, rows = call.sources["data"], rows_in(call, out)
    gathers = not call.inference.scatters
    allowed = max(memory.available(), tuning.ASSUMED_MEMORY) if limit is None else limit
    if isinstance(data, Flat) and not _is_readable_in_parts(data):
        if limit is not None:
            _require_parts(call, data, allowed)
        return None, "data cannot be read in parts"
    if not rows.tuples or not rows.width or rows.height < 2:
        return None, "nothing is accessed at random"
    chunk_bytes = (
        PAGE + rows.width
        if isinstance(data, Flat)
        else prod(metadata["data"].grid) * out.dtype.itemsize
    )
    assembled = metadata["data"].nbytes
    if gathers:
        assembled = min(assembled, rows.tuples * chunk_bytes)
    working_set = (
        assembled
        + _counts(call)
        + sum(item.nbytes for role, item in metadata.items() if role != "data")
        + out.nbytes
    )
    fits, budget = memory.can_hold(working_set, allowed), min(allowed // 2, tuning.MAX_SWEEP_MEMORY)
    reason = f"the {working_set} bytes that are read and written do not fit in memory of {allowed}"
    if fits:
        budget = min(budget, tuning.UNUSED_CHUNKS)
        reason = f"the {working_set} bytes that are read and written fit in memory of {allowed}"
        is_read_in_turn = metadata["data"].in_chunks and data.at_once == 1
        if not (gathers and is_read_in_turn and assembled >= tuning.UNUSED_CHUNKS):
            return None, reason
    from ndtool.runs.external import choice

    minimums = list[int]()
    for output in (out, out._replace(grid=out.shape, layout=None)):  # or assemble its chunks
        written = chunk_buffers(out, True)
        partition = partial(_for_chunks, call, output, (written, at_once, allowed))
        if partitioning := choice.chosen(partition, budget, allowed):
            break
        minimums.append(choice.least(partition))
    else:
        if fits:
            return None, reason
        if limit is not None and any(minimums):
            raise choice.refusal(min(filter(None, minimums)), limit)
        return None, f"a partition of data would take more than {allowed} bytes"
    if fits:
        swept = choice.cost(partitioning) - rows.height * rows.width  # both read the chunks
        reason = f"assembling chunks takes as long as writing {assembled} bytes, a sweep {swept}"
        return (partitioning if swept < assembled else None), reason
    return partitioning, reason


def _for_chunks(
    call: OpenCall, out: ArrayMetadata, limits: tuple[int, int, int], budget: int, levels: int
) -> Partitioning | None:
    """Partition for this process; limits: buffers that write a chunk, chunks at once, memory."""
    written, at_once, allowed = limits
    partitioning = partition_chunks(call, out, at_once, budget, levels)
    if partitioning is None:
        return None
    return partitioning._replace(chunk=max(partitioning.chunk, written)).within(allowed)


def rows_in(call: OpenCall, out: ArrayMetadata) -> Rows:
    """Return a call in rows; they have linear numbers if data and output are flat."""
    from ndtool.runs.external.rows import rows_of

    gathers = not call.inference.scatters
    flat = isinstance(call.sources["data"], Flat) and (gathers or not out.in_chunks)
    return rows_of(call.inference, flat)


def partition_chunks(
    call: OpenCall, out: ArrayMetadata, at_once: int, budget: int, levels: int = 1
) -> Partitioning | None:
    """Partition a run with chunked arrays; None if a partition exceeds MOST_ROWS rows."""
    from ndtool.runs.external.partitioning import MOST_ROWS, partitioning_for
    from ndtool.runs.external.units import units_of

    metadata = {role: source.metadata for role, source in call.sources.items()}
    rows = rows_in(call, out)
    units = units_of(call.inference, metadata, out, _at_once(call, at_once))
    if not metadata["data"].in_chunks and (not call.inference.scatters or not out.in_chunks):
        units = units._replace(box=(1,))
    gathers = not call.inference.scatters
    partitioning = partitioning_for(rows, gathers, budget, call.threads, units, levels)
    return partitioning if prod(partitioning.partition_shape) <= MOST_ROWS else None


def _at_once(call: OpenCall, written: int) -> int:
    """Return how many chunks to read or write concurrently, independent of processors."""
    return max(written, *(item.at_once for item in call.sources.values()))


def _partition_flat(call: OpenCall, limit: int | None) -> tuple[Partitioning | None, str]:
    """Return the partitioning of a run on flat arrays, None for direct, and the reason."""
    data, output = call.sources["data"], call.inference.nbytes
    allowed = max(memory.available(), tuning.ASSUMED_MEMORY) if limit is None else limit
    assert isinstance(data, Flat), "no array has chunks"
    local_range = data.local_range
    if local_range is None or not _is_readable_in_parts(data):
        if limit is not None:
            _require_parts(call, data, allowed)
        return None, "data cannot be read in parts"
    constant = isinstance(data, Constant)
    if constant and not call.inference.scatters:
        return None, "data are one value"
    if limit is None and not local_range.mapped and not constant:
        return None, "data are in memory"
    size = data.metadata.nbytes
    if isinstance(call.inference.plan, ElementsPlan):
        size = max(size, output)
    size += _counts(call)
    if memory.can_hold(size, allowed):
        return None, f"the {size} bytes that are accessed at random fit in memory of {allowed}"
    from ndtool.runs.external import choice
    from ndtool.runs.external.partitioning import partitioning_for
    from ndtool.runs.external.rows import rows_of

    rows, gathers = rows_of(call.inference), not call.inference.scatters
    if not rows.tuples or not rows.width or rows.height < 2:
        return None, "nothing is accessed at random"

    def partition(budget: int, levels: int) -> Partitioning:
        partitioning = partitioning_for(rows, gathers, budget, call.threads, None, levels)
        return partitioning.within(allowed)

    partitioning = choice.chosen(partition, min(allowed // 2, tuning.MAX_SWEEP_MEMORY), allowed)
    is_sparse = memory.can_hold(rows.tuples * (PAGE + rows.width), allowed)
    if partitioning is None:
        minimum = choice.least(partition)
        is_fast = is_bounded(call) and rows.width >= tuning.RANDOM_READ_COST
        if limit is not None and not (is_sparse or is_fast):
            raise choice.refusal(minimum, limit)
        return None, f"a sweep would take {minimum} bytes of memory, more than {allowed}"
    local_fraction, span = access.sample_locality(call, rows)
    scattered = rows.tuples * (1 - local_fraction)
    random_reads = scattered * max(1 - allowed / size, 0.25)
    if memory.can_hold(span, allowed):
        random_reads = min(random_reads, span / PAGE)  # pages stay in the page cache
    read_cost, sweep = tuning.RANDOM_READ_COST, choice.cost(partitioning)
    if gathers and local_range.mapped and sweep < random_reads * (read_cost + rows.width):
        uncached = 1 - local_range.cached(1, unknown=0.0) if limit is None else 1.0
        touched = min(int(scattered * (PAGE + rows.width)), span)
        if memory.can_hold(int(touched * uncached), allowed):
            prefetches = not isinstance(call.inference.plan, ElementsPlan)
            read_cost = max(PAGE, int(uncached * access.page_cost(local_range, prefetches)))
    direct = int(random_reads * (read_cost + rows.width) * (1 if gathers else 2))
    reason = f"access at random takes as long as reading {direct} bytes in order, a sweep {sweep}"
    if limit is not None and not (is_sparse or is_bounded(call) or memory.can_hold(span, allowed)):
        return partitioning, f"direct access would take more memory than {allowed}"
    return (partitioning if sweep < direct else None), reason


def is_bounded(call: OpenCall) -> bool:
    """Whether direct execution releases the pages of data that it has read, see `direct`."""
    return not call.inference.scatters and not isinstance(call.inference.plan, ElementsPlan)


def _is_readable_in_parts(data: Flat) -> bool:
    """Whether partitions of flat data are byte ranges of a local file."""
    is_turned = data.metadata.order == "F" and len(data.metadata.shape) > 1
    return data.local_range is not None and not is_turned


def _require_parts(call: OpenCall, data: Flat, allowed: int) -> None:
    """Raise ResourceError if data that cannot be read in parts do not fit in memory.

    A few tuples touch only some pages of a file.
    """
    from ndtool.runs.external.rows import rows_of

    rows, metadata = rows_of(call.inference), data.metadata
    pages = rows.tuples * (rows.width // metadata.dtype.itemsize if metadata.order == "F" else 1)
    if memory.can_hold(metadata.nbytes, allowed) or (
        not call.inference.scatters and memory.can_hold(pages * PAGE, allowed)
    ):
        return
    what = "is in Fortran order" if metadata.order == "F" else "is remote"
    raise ResourceError(
        f"{argument_name(data.name)} {what} and larger than --memory {format_size(allowed)}, so"
        " it cannot be read in parts: expected a local file or a store, in C order",
        hint=f"ndtool convert {argument_name(data.name)} NEW makes one",
    )
