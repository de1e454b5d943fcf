"""Scatter algorithms, and the choice among them.

Results equal those of the sequential loop: a thread owns a partition of the output, and applies
its updates in row-major order of the indices. The algorithms: by destination (a radix partition of
the tuples, so that each partition of the output fits the cache), by copies (of a small output,
reduced at the end), by lines (batches have disjoint outputs), in order (each thread owns some of
the long slices), by units (along an axis that is not the last).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import (
    GROUP,
    LINE,
    Addressing,
    Indices,
    KernelOptions,
    RadixPartitions,
    UpdateCounts,
    UpdateSpec,
    WorkItem,
)
from ndtool.engine import check, columns, layouts, narrow, tuning
from ndtool.engine.bind import Buffer, Panels, Runs, bind_panels, bind_rows, bind_runs, bind_units
from ndtool.engine.counting import Combining
from ndtool.engine.gathers import ProgressCallback, silent, whole_elements
from ndtool.machine import scratch
from ndtool.machine.pool import BufferPool, run_all
from ndtool.machine.threads import team
from ndtool.rules.dtypes import Dtype
from ndtool.rules.modes import MODES
from ndtool.rules.plans import ElementsPlan, Plan
from ndtool.rules.reductions import identity


class Scatter(NamedTuple):
    """One scatter, bound to buffers.

    data: the bytes to copy to out first; None if out has them. updates, out: native, aligned and
    contiguous unless reduction is "none". limit: scratch bytes for sorting, SCRATCH if None. write:
    writes bytes to out at an offset, if that is faster than stores. guarded: whether the indices
    are still to be validated before out changes. counts: of the updates, if they are counted.
    """

    plan: Plan
    dtype: Dtype
    data: Buffer | None
    indices: Indices
    updates: Buffer
    combining: Combining
    out: Buffer
    negatives: bool
    threads: int
    limit: int | None = None
    progress: ProgressCallback = silent
    write: Callable[[int, Buffer], object] | None = None
    guarded: bool = False
    counts: UpdateCounts | None = None

    @property
    def reduction(self) -> str:
        """The name of the reduction."""
        return self.combining.reduction

    def change(self, pitch: int) -> UpdateSpec:
        """Bind the updates, each of `pitch` bytes, to the reduction."""
        return UpdateSpec(self.updates, pitch, self.reduction, self.dtype.name, self.counts)

    @property
    def streamed(self) -> bool:
        """Whether the output is too large for the cache."""
        return len(self.out) >= tuning.STREAMED


def scatter(s: Scatter) -> bool:
    """Copy data to out, then apply the updates with the algorithm that suits the plan.

    Returns False if an index is out of bounds; raises BoundsError if the scatter is guarded.
    """
    if not len(s.updates):
        copy(s)
        return True
    if not len(s.out):  # no index is valid in an empty array
        if MODES[s.indices.out_of_bounds].skips:
            return True
        return s.indices.skips and not check.found(s.plan, s.indices, s.negatives, s.threads)
    width = s.dtype.itemsize * (1 if isinstance(s.plan, ElementsPlan) else s.plan.width)
    counts = s.combining.new_counts(len(s.updates) // width, len(s.out) // width)
    if not apply(s._replace(counts=counts)):
        return False
    s.combining.divide(counts, s.out, width, s.dtype, s.threads)
    return True


def apply(s: Scatter) -> bool:
    """Apply the updates with the algorithm that suits the plan; counts are not divided."""
    plan, runs = s.plan, _runs(s)
    if runs is None:
        with _guarded(s) as work:
            return _by_panels(work)
    rows = len(s.out) // runs.width
    size = plan.data[plan.axis] if isinstance(plan, ElementsPlan) else prod(plan.sizes)
    line = size * runs.width  # the part of the output that one batch updates
    one_line = runs.per_batch == runs.tuples
    threads = team(s.threads, len(s.updates))
    wide = runs.width >= tuning.WIDE and s.write is None
    if one_line and threads > 1 and _is_worth_copies(s, threads):
        return _by_copies(s, runs, threads)
    many = runs.tuples >= tuning.FEW and rows >= 4 * threads and runs.width <= tuning.CACHED
    far = len(s.out) > (tuning.SORTED if threads > 1 else 2 * tuning.SORTED) * tuning.CACHED
    if many and far and not wide and (one_line or line > tuning.CACHED):
        local = _kernels.sample_locality(runs.addressing, s.indices, runs.tuples)
        if local < tuning.LOCAL_SHARE:
            return _by_destination(s, runs, rows)
    with _guarded(s) as work:
        lines = runs.tuples // runs.per_batch
        if not one_line and (runs.width < tuning.WIDE or lines >= threads):
            return _by_lines(work, line)
        copy(work)
        return _in_order(work)


@contextmanager
def _guarded(s: Scatter) -> Iterator[Scatter]:
    """Validate all indices of a guarded scatter before out changes; yield the scatter to do."""
    if not s.guarded:
        yield s
        return
    with narrow.checked(s.plan, s.indices, s.negatives, s.threads) as (plan, indices, negatives):
        yield s._replace(plan=plan, indices=indices, negatives=negatives, guarded=False)


def _runs(s: Scatter) -> Runs | None:
    """Bind the plan to the strides of out; None along an axis that is not the last."""
    itemsize = s.dtype.itemsize
    strides = layouts.contiguous(s.plan.data, itemsize)
    return bind_runs(s.plan, strides, itemsize, s.negatives)


def copy(s: Scatter) -> None:
    """Copy data to out, unless out has them already."""
    if s.data is None:
        return
    size, data, write, step = len(s.data), s.data, s.write, tuning.WRITTEN
    if write is not None:
        begins = iter(range(0, size, step))
        run_all(lambda at: write(at, data[at : at + step]), begins, team(s.threads, size))
        return
    for begin in range(0, size, tuning.PIECE):
        end = min(size, begin + tuning.PIECE)
        how = KernelOptions(team(s.threads, end - begin), s.streamed)
        _kernels.copy(data[begin:end], s.out[begin:end], how)


def _in_order(s: Scatter) -> bool:
    """Scatter in order: each thread reads all tuples and updates its share of the slices."""
    runs = _runs(s)
    assert runs is not None
    change, addressing = s.change(runs.width), runs.addressing
    threads = team(s.threads, len(s.updates)) if runs.width >= tuning.WIDE else 1
    how = KernelOptions(threads, s.reduction == "none" and s.streamed)
    step = max(1, tuning.PIECE // (runs.width + runs.entries * s.indices.itemsize))
    window = runs.width if s.counts else whole_elements(runs.itemsize, tuning.PIECE)
    for first in range(0, runs.tuples, step):
        n = min(step, runs.tuples - first)
        for column in range(0, runs.width, window):
            piece = WorkItem(first, n, column, min(window, runs.width - column))
            if _kernels.scatter(addressing, s.indices, piece, change, s.out, False, how):
                return False
        s.progress((first + n) / runs.tuples)
    return True


def _is_worth_copies(s: Scatter, threads: int) -> bool:
    """Whether each thread can update its own copy: copies are small, and results are the same."""
    small = threads * len(s.out) <= min(tuning.CACHED, len(s.updates))
    return small and s.counts is None and bool(identity(s.dtype, s.reduction))


def _by_copies(s: Scatter, runs: Runs, threads: int) -> bool:
    """Scatter by copies: each thread reduces into neutral elements; then data take them."""
    size, change, addressing = len(s.out), s.change(runs.width), runs.addressing
    copies = memoryview(bytearray(threads * size))
    how = KernelOptions(threads, False, copies)
    untouched = identity(s.dtype, s.reduction) * (size // s.dtype.itemsize)
    copies[:size] = untouched
    step = max(1, tuning.PIECE // (runs.width + runs.entries * s.indices.itemsize))
    for first in range(0, runs.tuples, step):
        n = min(step, runs.tuples - first)
        copies[size:] = untouched * (threads - 1)
        if _kernels.scatter_copies(addressing, s.indices, first, n, change, size, how):
            return False
        _put_together(s, copies[size:], copies[:size])
        s.progress((first + n) / runs.tuples)
    copy(s)
    _put_together(s, copies[:size], s.out)
    return True


def _put_together(s: Scatter, copies: Buffer, out: Buffer) -> None:
    """Reduce copies of out into it, in order: each copy is an update of the complete output."""
    whole, n = Addressing((), (), 1, (), (), False), len(copies) // len(out)
    change = UpdateSpec(copies, len(out), s.reduction, s.dtype.name)
    nowhere = Indices(copies, s.indices.itemsize, False, False)  # tuples of no components
    _kernels.scatter(
        whole, nowhere, WorkItem(0, n, 0, len(out)), change, out, False, KernelOptions(1)
    )


def _by_lines(s: Scatter, line: int) -> bool:
    """Scatter by lines along the last axis: a thread updates a line in cache, writes it once."""
    runs = _runs(s)
    assert runs is not None
    lines, data, per = runs.tuples // runs.per_batch, s.data, runs.per_batch
    scattered = lines * line != len(s.out) or runs.entries != 1
    if scattered or per < tuning.LONG or line > tuning.CACHED:
        copy(s)
        data = None
    change, addressing = s.change(runs.width), runs.addressing
    moved = line + per * (runs.width + runs.entries * s.indices.itemsize)
    threads = min(team(s.threads, lines * moved), lines)
    windows = None if data is None else memoryview(bytearray(threads * line))
    how = KernelOptions(threads, data is not None and s.streamed, windows)
    step = max(threads, tuning.PIECE // moved)
    for first in range(0, lines, step):
        n = min(step, lines - first)
        at, count = first * per, n * per
        if data is None:
            piece = WorkItem(at, count, 0, runs.width)
            bad = _kernels.scatter(addressing, s.indices, piece, change, s.out, True, how)
        else:
            bad = _kernels.scatter_lines(addressing, s.indices, at, count, change, data, s.out, how)
        if bad:
            return False
        s.progress((first + n) / lines)
    return True


def _by_panels(s: Scatter) -> bool:
    """Scatter along an axis that is not the last: by blocks of columns, or by units."""
    plan, itemsize = s.plan, s.dtype.itemsize
    assert isinstance(plan, ElementsPlan)
    strides = layouts.contiguous(plan.data, itemsize)
    panels = bind_panels(plan, strides, itemsize, s.negatives)
    off_axis = [d for d in range(len(plan.data)) if d != plan.axis]
    covered = all(plan.indices[d] == plan.data[d] for d in off_axis)
    if covered and s.write is not None and s.counts is None and columns.suit(panels, panels.size):
        return _by_columns(s, panels)
    return _by_units(s, panels, covered)


def _by_columns(s: Scatter, panels: Panels) -> bool:
    """Scatter blocks of columns into a mapped file, each written in complete pages."""
    data, itemsize = s.out if s.data is None else s.data, s.dtype.itemsize
    # each band reads all indices again, but its tiles must fit into the cache
    bands = max(tuning.BANDS, -(-panels.size * LINE // (2 * tuning.TILE)))
    buffer, done = columns.allocate(panels, panels.size, bands, s.out), 0
    for block in columns.blocks(panels, panels.size, s.out, bands):
        units = bind_units(block.panels, (block.first, block.rows, block.width))
        work = units.work + 2 * units.scratch
        threads = team(s.threads, units.grid.units * work)
        how = KernelOptions(threads, s.streamed, memoryview(bytearray(threads * units.scratch)))
        indices, updates = (
            s.indices.since(block.first_index),
            s.updates[block.first_index * itemsize :],
        )
        change = UpdateSpec(updates, itemsize, s.reduction, s.dtype.name)
        source, step = data[block.data :], max(threads, tuning.PIECE // work)
        for first in range(0, units.grid.units, step):
            stop = min(units.grid.units, first + step)
            grid = units.grid
            if _kernels.scatter_units(grid, indices, change, source, buffer, first, stop, how):
                return False
        at = block.data + block.first * panels.step
        columns.spread(block, buffer, s.out[at:], panels.step, s.threads)
        done += block.nbytes
        s.progress(done / len(s.out))
    return True


def _by_units(s: Scatter, panels: Panels, covered: bool) -> bool:
    """Scatter by units: tiles of columns, packed if they cover all of data."""
    units = bind_units(panels)
    threads = team(s.threads, units.grid.units * units.work)
    units = bind_units(panels, threads=threads)
    total, grid, source, buffer = units.grid.units, units.grid, s.data, units.scratch
    if source is None or not covered or not buffer or s.counts or len(s.out) <= tuning.TILE:
        copy(s)
        packs = units.packs and covered and s.counts is None
        source, buffer = s.out, units.scratch if packs else 0
    change, work = s.change(s.dtype.itemsize), units.work + 2 * buffer
    threads = team(s.threads, total * work)
    how = KernelOptions(
        threads, s.streamed, memoryview(bytearray(threads * buffer)) if buffer else None
    )
    step = max(threads, tuning.PIECE // work)
    for first in range(0, total, step):
        stop = min(total, first + step)
        if _kernels.scatter_units(grid, s.indices, change, source, s.out, first, stop, how):
            return False
        s.progress(stop / total)
    return True


def _by_destination(s: Scatter, runs: Runs, rows: int) -> bool:
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
    windows = None if data is None else memoryview(bytearray(threads * (width << shift)))
    ends = memoryview(bytearray(groups * (((rows - 1) >> shift) + 2) * 4)).cast("I")
    work = Sorted(RadixPartitions(rows, width, shift, space, ends), s.change(width), width << shift)
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
    step, how = max(1, tuning.WRITTEN // size), KernelOptions(1, s.streamed)
    buffers = BufferPool(step * size)

    def finish(part: int) -> None:
        stop = min(parts.parts, part + step)
        byte_range = parts.byte_range(part, stop)
        buffer = buffers.take()
        to = buffer[: byte_range.stop - byte_range.start]
        to[:] = data[byte_range]
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
