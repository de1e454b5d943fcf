"""Scatters by destination: tuples are sorted by partition of the output, each updated in cache."""

from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import GROUP, LINE, KernelOptions, RadixPartitions, UpdateSpec
from ndtool.engine import check, counting, tuning
from ndtool.engine.bind import BoundSlices, Buffer, bind_rows
from ndtool.engine.updates import ScatterCall, copy_data
from ndtool.machine import scratch
from ndtool.machine.threads import BufferPool, limit_threads, run_all


def scatter_by_destination(
    call: ScatterCall, spec: UpdateSpec, slices: BoundSlices, rows: int
) -> bool:
    """Sort tuples by partition of the output, then update each partition in cache."""
    width, data = slices.width, call.data
    shift = _partition_shift(rows, width)
    entry_bytes = 4 + (width if width < LINE else 4)
    tuple_bytes = slices.components * call.indices.itemsize
    threads = limit_threads(call.threads, slices.tuples * (tuple_bytes + width))
    thread_buffers = threads * GROUP * 8
    limit = tuning.SCRATCH if call.scratch_limit is None else call.scratch_limit
    max_groups = max(1, (limit - thread_buffers) // (GROUP * entry_bytes))
    groups = min(max_groups, -(-slices.tuples // GROUP))
    exceeds_window = data is not None and width << shift > tuning.MAX_PARTITION
    if call.validates_first and (exceeds_window or groups * GROUP < slices.tuples):
        # the output changes before all indices are validated
        check.check(call.plan, call.indices, call.threads)
    if exceeds_window:
        copy_data(call)
        data = None
    regions = scratch.acquire(groups * GROUP * entry_bytes + thread_buffers)
    counts, partition_bytes, windows = None, width << shift, None
    needs_windows = data is not None or call.attributes.is_counted
    if groups * GROUP < slices.tuples and call.attributes.is_counted:  # of all groups
        counts = counting.allocate_counts(call.attributes, slices.tuples, rows)
        spec = counting.update_spec(call.updates, width, call.attributes, call.dtype, counts)
        needs_windows = data is not None
    if needs_windows:
        windows = memoryview(bytearray(threads * spec.window(partition_bytes)))
    ends = memoryview(bytearray(groups * (((rows - 1) >> shift) + 2) * 4)).cast("I")
    partitions = RadixPartitions(rows, width, shift, regions, ends)
    sorted_tuples = SortedTuples(partitions, spec, partition_bytes)
    addressing, options = (
        bind_rows(call.plan),
        KernelOptions(threads, call.exceeds_cache, windows),
    )
    for first in range(0, slices.tuples, groups * GROUP):
        n = min(groups * GROUP, slices.tuples - first)
        if _kernels.partition(addressing, call.indices, first, n, spec, partitions, options):
            return False
        if data is not None and call.write_at is not None:
            _write_partitions(call, sorted_tuples, data, threads)
        else:
            progress_span = first / slices.tuples, n / slices.tuples
            _store_partitions(call, sorted_tuples, data, options, progress_span)
        data = None  # it was copied to out
    scratch.release(regions)
    counting.divide_sums(call.attributes, counts, call.out, width, call.dtype, call.threads)
    return True


class SortedTuples(NamedTuple):
    """Tuples sorted by destination, their updates, and the bytes of an output partition."""

    partitions: RadixPartitions
    spec: UpdateSpec
    partition_bytes: int


def _store_partitions(
    call: ScatterCall,
    sorted_tuples: SortedTuples,
    data: Buffer | None,
    options: KernelOptions,
    progress_span: tuple[float, float],
) -> None:
    """Update the output's partitions in place; with `data`, in copies of its partitions in cache.

    progress_span: (fraction of all work that is complete, fraction of it in these tuples).
    """
    completed, fraction = progress_span
    partitions, spec, partition_bytes = sorted_tuples
    step = max(options.threads, tuning.WORK_ITEM // partition_bytes)
    for first in range(0, partitions.partitions, step):
        stop = min(partitions.partitions, first + step)
        byte_range = partitions.byte_range(first, stop)
        source = None if data is None else data[byte_range]
        _kernels.apply_partitions(
            partitions, spec, source, call.out[byte_range], first, stop, options
        )
        call.progress(completed + fraction * stop / partitions.partitions)


def _write_partitions(
    call: ScatterCall, sorted_tuples: SortedTuples, data: Buffer, threads: int
) -> None:
    """Update copies of partitions in buffers, and write these to the output file."""
    partitions, spec, partition_bytes = sorted_tuples
    step = max(1, tuning.WRITE_SIZE // partition_bytes)
    buffers = BufferPool(step * partition_bytes + spec.window(partition_bytes))

    def write_partitions(first: int) -> None:
        stop = min(partitions.partitions, first + step)
        byte_range = partitions.byte_range(first, stop)
        buffer = buffers.acquire()
        output = buffer[: byte_range.stop - byte_range.start]
        output[:] = data[byte_range]
        options = KernelOptions(1, call.exceeds_cache, buffer[step * partition_bytes :])
        _kernels.apply_partitions(partitions, spec, None, output, first, stop, options)
        assert call.write_at is not None
        call.write_at(byte_range.start, output)
        buffers.release(buffer)
        call.progress(stop / partitions.partitions)

    run_all(write_partitions, iter(range(0, partitions.partitions, step)), threads)


def _partition_shift(rows: int, width: int) -> int:
    """Return log2 of a partition's rows: they fill half a cache, or more to limit partitions.

    At most MAX_PARTITIONS, unless rows exceed 2^42: row indices in a partition have 32 bits.
    """
    shift, half_cache = 0, tuning.CACHE_SIZE // 2
    while (width << shift) < half_cache or ((rows >> shift) > tuning.MAX_PARTITIONS and shift < 32):
        shift += 1
    return shift
