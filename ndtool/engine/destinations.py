"""Scatters by destination: tuples are sorted by partition of the output, each updated in cache."""

from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import GROUP, LINE, KernelOptions, RadixPartitions, UpdateSpec
from ndtool.engine import check, tuning
from ndtool.engine.bind import Buffer, Runs, bind_rows
from ndtool.engine.updates import Scatter, copy
from ndtool.machine import scratch
from ndtool.machine.pool import BufferPool, run_all
from ndtool.machine.threads import team


def by_destination(s: Scatter, runs: Runs, rows: int) -> bool:
    """Scatter by destination: sort tuples by partition of the output, then update each in cache."""
    width, data = runs.width, s.data
    shift = _part_shift(rows, width)
    entry = 4 + (width if width < LINE else 4)
    threads = team(s.threads, runs.tuples * (runs.entries * s.indices.itemsize + width))
    buffers = threads * GROUP * (8 + entry)
    limit = tuning.SCRATCH if s.limit is None else s.limit
    most = max(1, (limit - buffers) // (GROUP * entry))
    groups = min(most, -(-runs.tuples // GROUP))
    large = data is not None and width << shift > tuning.LARGEST_PART
    if s.guarded and (large or groups * GROUP < runs.tuples):
        # the output changes before all indices are validated
        check.check(s.plan, s.indices, s.negatives, s.threads)
    if large:
        copy(s)
        data = None
    space = scratch.take(groups * GROUP * entry + buffers)
    counts, size = None, width << shift
    if groups * GROUP < runs.tuples:
        counts = s.combining.new_counts(runs.tuples, rows, width)
    change = s.windowed(width) if counts is None else s.change(width, counts)
    needs = data is not None or (s.combining.is_counted and counts is None)
    windows = memoryview(bytearray(threads * change.window(size))) if needs else None
    ends = memoryview(bytearray(groups * (((rows - 1) >> shift) + 2) * 4)).cast("I")
    work = Sorted(RadixPartitions(rows, width, shift, space, ends), change, size)
    addressing, how = bind_rows(s.plan, s.negatives), KernelOptions(threads, s.streamed, windows)
    for first in range(0, runs.tuples, groups * GROUP):
        n = min(groups * GROUP, runs.tuples - first)
        sorting = KernelOptions(threads, n * entry >= tuning.STREAMED)
        if _kernels.partition(addressing, s.indices, first, n, work.change, work.parts, sorting):
            return False
        if data is not None and s.write is not None:
            _write_parts(s, work, data, threads)
        else:
            _store_parts(s, work, data, how, (first / runs.tuples, n / runs.tuples))
        data = None  # from now on out has it
    scratch.keep(space)
    s.combining.divide(counts, s.out, width, s.dtype, s.threads)
    return True


class Sorted(NamedTuple):
    """Tuples sorted by destination, their updates, and the bytes of a partition."""

    parts: RadixPartitions
    change: UpdateSpec
    size: int


def _store_parts(
    s: Scatter, work: Sorted, data: Buffer | None, how: KernelOptions, done: tuple[float, float]
) -> None:
    """Update partitions in the output; if `data` are given, from copies of them in cache.

    done: the fraction of all work that is complete, and the fraction that this call does.
    """
    before, share_of_all = done
    parts, change, size = work
    step = max(how.threads, tuning.PIECE // size)
    for part in range(0, parts.parts, step):
        stop = min(parts.parts, part + step)
        byte_range = parts.byte_range(part, stop)
        source = None if data is None else data[byte_range]
        _kernels.apply_partitions(parts, change, source, s.out[byte_range], part, stop, how)
        s.progress(before + share_of_all * stop / parts.parts)


def _write_parts(s: Scatter, work: Sorted, data: Buffer, threads: int) -> None:
    """Update partitions in buffers and write those: faster than stores to a mapped file."""
    parts, change, size = work
    step = max(1, tuning.WRITTEN // size)
    buffers = BufferPool(step * size + change.window(size))

    def finish(part: int) -> None:
        stop = min(parts.parts, part + step)
        byte_range = parts.byte_range(part, stop)
        buffer = buffers.take()
        to = buffer[: byte_range.stop - byte_range.start]
        to[:] = data[byte_range]
        how = KernelOptions(1, s.streamed, buffer[step * size :])
        _kernels.apply_partitions(parts, change, None, to, part, stop, how)
        assert s.write is not None
        s.write(byte_range.start, to)
        buffers.give(buffer)
        s.progress(stop / parts.parts)

    run_all(finish, iter(range(0, parts.parts, step)), threads)


def _part_shift(rows: int, width: int) -> int:
    """Return log2 of a partition's rows: half a cache, in at most MOST_PARTS partitions.

    Local row numbers have 32 bits, so more than 2^42 rows need more partitions.
    """
    shift, half = 0, tuning.CACHED // 2
    while (width << shift) < half or ((rows >> shift) > tuning.MOST_PARTS and shift < 32):
        shift += 1
    return shift
