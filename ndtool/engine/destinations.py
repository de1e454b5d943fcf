"""Scatters by destination: tuples are sorted by partition of the output, each updated in cache."""

from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import GROUP, LINE, KernelOptions, RadixPartitions, UpdateSpec
from ndtool.engine import check, tuning
from ndtool.engine.bind import BoundSlices, Buffer, bind_rows
from ndtool.engine.updates import ScatterCall, copy_data
from ndtool.machine import scratch
from ndtool.machine.pool import BufferPool, run_all
from ndtool.machine.threads import limit_threads


def scatter_by_destination(s: ScatterCall, runs: BoundSlices, rows: int) -> bool:
    """Sort tuples by partition of the output, then update each partition in cache."""
    width, data = runs.width, s.data
    shift = _partition_shift(rows, width)
    entry = 4 + (width if width < LINE else 4)
    threads = limit_threads(s.threads, runs.tuples * (runs.components * s.indices.itemsize + width))
    buffers = threads * GROUP * (8 + entry)
    limit = tuning.SCRATCH if s.scratch_limit is None else s.scratch_limit
    most = max(1, (limit - buffers) // (GROUP * entry))
    groups = min(most, -(-runs.tuples // GROUP))
    large = data is not None and width << shift > tuning.MAX_PARTITION
    if s.validates_first and (large or groups * GROUP < runs.tuples):
        # the output changes before all indices are validated
        check.check(s.plan, s.indices, s.negatives, s.threads)
    if large:
        copy_data(s)
        data = None
    space = scratch.acquire(groups * GROUP * entry + buffers)
    counts, size = None, width << shift
    if groups * GROUP < runs.tuples:
        counts = s.reduction_options.allocate_counts(runs.tuples, rows, width)
    spec = s.window_spec(width) if counts is None else s.update_spec(width, counts)
    needs = data is not None or (s.reduction_options.is_counted and counts is None)
    windows = memoryview(bytearray(threads * spec.window(size))) if needs else None
    ends = memoryview(bytearray(groups * (((rows - 1) >> shift) + 2) * 4)).cast("I")
    work = SortedTuples(RadixPartitions(rows, width, shift, space, ends), spec, size)
    addressing, options = (
        bind_rows(s.plan, s.negatives),
        KernelOptions(threads, s.exceeds_cache, windows),
    )
    for first in range(0, runs.tuples, groups * GROUP):
        n = min(groups * GROUP, runs.tuples - first)
        sorting = KernelOptions(threads, n * entry >= tuning.NON_TEMPORAL)
        if _kernels.partition(addressing, s.indices, first, n, work.spec, work.partitions, sorting):
            return False
        if data is not None and s.write_at is not None:
            _write_partitions(s, work, data, threads)
        else:
            _store_partitions(s, work, data, options, (first / runs.tuples, n / runs.tuples))
        data = None  # from now on out has it
    scratch.release(space)
    s.reduction_options.divide_sums(counts, s.out, width, s.dtype, s.threads)
    return True


class SortedTuples(NamedTuple):
    """Tuples sorted by destination, their updates, and the bytes of a partition."""

    partitions: RadixPartitions
    spec: UpdateSpec
    size: int


def _store_partitions(
    s: ScatterCall,
    work: SortedTuples,
    data: Buffer | None,
    options: KernelOptions,
    done: tuple[float, float],
) -> None:
    """Update partitions in the output; if `data` are given, from copies of them in cache.

    done: the fraction of all work that is complete, and the fraction that this call does.
    """
    before, share_of_all = done
    partitions, spec, size = work
    step = max(options.threads, tuning.WORK_ITEM // size)
    for first in range(0, partitions.partitions, step):
        stop = min(partitions.partitions, first + step)
        byte_range = partitions.byte_range(first, stop)
        source = None if data is None else data[byte_range]
        _kernels.apply_partitions(partitions, spec, source, s.out[byte_range], first, stop, options)
        s.progress(before + share_of_all * stop / partitions.partitions)


def _write_partitions(s: ScatterCall, work: SortedTuples, data: Buffer, threads: int) -> None:
    """Update partitions in buffers and write those: faster than stores to a mapped file."""
    partitions, spec, size = work
    step = max(1, tuning.WRITE_SIZE // size)
    buffers = BufferPool(step * size + spec.window(size))

    def finish(first: int) -> None:
        stop = min(partitions.partitions, first + step)
        byte_range = partitions.byte_range(first, stop)
        buffer = buffers.acquire()
        to = buffer[: byte_range.stop - byte_range.start]
        to[:] = data[byte_range]
        options = KernelOptions(1, s.exceeds_cache, buffer[step * size :])
        _kernels.apply_partitions(partitions, spec, None, to, first, stop, options)
        assert s.write_at is not None
        s.write_at(byte_range.start, to)
        buffers.release(buffer)
        s.progress(stop / partitions.partitions)

    run_all(finish, iter(range(0, partitions.partitions, step)), threads)


def _partition_shift(rows: int, width: int) -> int:
    """Return log2 of a partition's rows: they fill half a cache, or more beyond MOST_PARTS of them.

    Row indices in a partition have 32 bits, so more than 2^42 rows need more partitions.
    """
    shift, half = 0, tuning.CACHE_SIZE // 2
    while (width << shift) < half or ((rows >> shift) > tuning.MAX_PARTITIONS and shift < 32):
        shift += 1
    return shift
