"""Scatter algorithms, and the choice among them.

Results equal those of the sequential loop: each slice of the output is updated by one thread, in
row-major order of the indices. The algorithms: by destination (a radix partition of the tuples, so
that each partition of the output fits in cache), by copies (each thread reduces into a copy of a
small output), by batches (no two of which update the same slice), in order (each thread owns some
of the long slices), by units (elements along an axis that is not the last).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

from ndtool import _kernels
from ndtool._kernels import BAD, LINE, Addressing, Indices, KernelOptions, UpdateSpec, WorkItem
from ndtool.engine import check, columns, layouts, narrow, tuning
from ndtool.engine.bind import BoundSlices, Buffer, Panels, bind_panels, bind_slices, bind_units
from ndtool.engine.destinations import scatter_by_destination
from ndtool.engine.gathers import round_to_elements
from ndtool.engine.updates import ScatterCall, apply_counted, copy_data
from ndtool.machine.threads import limit_threads
from ndtool.rules.modes import MODES
from ndtool.rules.plans import ElementsPlan
from ndtool.rules.reductions import identity


def scatter(s: ScatterCall) -> bool:
    """Copy data to out, then apply the updates with the algorithm that suits the plan.

    Returns False if an index is out of bounds; raises BoundsError if the scatter is guarded.
    """
    if not len(s.updates):
        copy_data(s)
        return True
    if not len(s.out):  # no index is valid in an empty array
        if MODES[s.indices.out_of_bounds].skips:
            return True
        return s.indices.skips and not check.find_bounds_error(
            s.plan, s.indices, s.negatives, s.threads
        )
    plan, runs = s.plan, _runs(s)
    if runs is None:
        with _guarded(s) as work:
            return _by_panels(work)
    rows = len(s.out) // runs.width
    size = plan.data[plan.axis] if isinstance(plan, ElementsPlan) else prod(plan.sizes)
    batch_bytes = size * runs.width  # the range of the output that one batch updates
    one_batch = runs.per_batch == runs.tuples
    threads = limit_threads(s.threads, len(s.updates))
    wide = runs.width >= tuning.WIDE_SLICE and s.write_at is None
    if one_batch and threads > 1 and _is_worth_copies(s, threads):
        return _by_copies(s, runs, threads)
    is_worth_sorting = (
        runs.tuples >= tuning.MIN_SORTED and rows >= 4 * threads and runs.width <= tuning.CACHE_SIZE
    )
    exceeds_cache = (
        len(s.out) > (1 if threads > 1 else 2) * tuning.SORTED_OUTPUT * tuning.CACHE_SIZE
    )
    # on one thread, prefetched updates in order are faster, unless windows help more
    gains = threads > 1 or s.reduction_options.is_counted or s.write_at is not None
    spans_cache = one_batch or batch_bytes > tuning.CACHE_SIZE
    if gains and is_worth_sorting and exceeds_cache and spans_cache and not wide:
        local = _kernels.sample_locality(runs.addressing, s.indices, runs.tuples)
        if local < tuning.LOCAL_FRACTION:
            return scatter_by_destination(s, runs, rows)
    with _guarded(s) as work:
        batches = runs.tuples // runs.per_batch
        if not one_batch and (runs.width < tuning.WIDE_SLICE or batches >= threads):
            return _by_batches(work, batch_bytes)
        copy_data(work)
        return _in_order(work)


@contextmanager
def _guarded(s: ScatterCall) -> Iterator[ScatterCall]:
    """Validate all indices of a guarded scatter before out changes; yield the scatter to do."""
    if not s.validates_first:
        yield s
        return
    with narrow.validate(s.plan, s.indices, s.negatives, s.threads) as (plan, indices, negatives):
        yield s._replace(plan=plan, indices=indices, negatives=negatives, validates_first=False)


def _runs(s: ScatterCall) -> BoundSlices | None:
    """Bind the plan to the strides of out; None along an axis that is not the last."""
    itemsize = s.dtype.itemsize
    strides = layouts.contiguous_strides(s.plan.data, itemsize)
    return bind_slices(s.plan, strides, itemsize, s.negatives)


def _in_order(s: ScatterCall) -> bool:
    """Scatter in order: each thread reads all tuples and updates the slices that it owns."""
    runs = _runs(s)
    assert runs is not None
    threads = limit_threads(s.threads, len(s.updates)) if runs.width >= tuning.WIDE_SLICE else 1
    options = KernelOptions(threads, s.reduction == "none" and s.exceeds_cache)
    step = max(1, tuning.WORK_ITEM // (runs.width + runs.components * s.indices.itemsize))
    complete = s.reduction_options.is_counted
    step_bytes = runs.width if complete else round_to_elements(runs.itemsize, tuning.WORK_ITEM)

    def apply(spec: UpdateSpec) -> int:
        found = 0
        for first in range(0, runs.tuples, step):
            n = min(step, runs.tuples - first)
            for column in range(0, runs.width, step_bytes):
                item = WorkItem(first, n, column, min(step_bytes, runs.width - column))
                found |= _kernels.scatter(
                    runs.addressing, s.indices, item, spec, s.out, False, options
                )
            if found & BAD:
                return found
            s.progress((first + n) / runs.tuples)
        return found

    return apply_counted(s, runs.width, apply)


def _is_worth_copies(s: ScatterCall, threads: int) -> bool:
    """Whether each thread can update its own copy: copies are small, and results are the same."""
    small = threads * len(s.out) <= min(tuning.CACHE_SIZE, len(s.updates))
    return small and not s.reduction_options.is_counted and bool(identity(s.dtype, s.reduction))


def _by_copies(s: ScatterCall, runs: BoundSlices, threads: int) -> bool:
    """Scatter by copies: each thread reduces into neutral elements; then data take them."""
    size, spec, addressing = len(s.out), s.update_spec(runs.width), runs.addressing
    copies = memoryview(bytearray(threads * size))
    options = KernelOptions(threads, False, copies)
    neutral = identity(s.dtype, s.reduction) * (size // s.dtype.itemsize)
    copies[:size] = neutral
    step = max(1, tuning.WORK_ITEM // (runs.width + runs.components * s.indices.itemsize))
    for first in range(0, runs.tuples, step):
        n = min(step, runs.tuples - first)
        copies[size:] = neutral * (threads - 1)
        if _kernels.scatter_copies(addressing, s.indices, first, n, spec, size, options):
            return False
        _combine_copies(s, copies[size:], copies[:size])
        s.progress((first + n) / runs.tuples)
    copy_data(s)
    _combine_copies(s, copies[:size], s.out)
    return True


def _combine_copies(s: ScatterCall, copies: Buffer, out: Buffer) -> None:
    """Reduce copies of out into it, in order: each copy is an update of the complete output."""
    complete, n = Addressing((), (), 1, (), (), False), len(copies) // len(out)
    spec = UpdateSpec(copies, len(out), s.reduction, s.dtype.name)
    no_indices = Indices(copies, s.indices.itemsize, False, False)  # tuples of no components
    _kernels.scatter(
        complete, no_indices, WorkItem(0, n, 0, len(out)), spec, out, False, KernelOptions(1)
    )


def _by_batches(s: ScatterCall, batch_bytes: int) -> bool:
    """Scatter by batches: if they are contiguous, each is updated in cache and written once."""
    runs = _runs(s)
    assert runs is not None
    batches, data, per = runs.tuples // runs.per_batch, s.data, runs.per_batch
    scattered = batches * batch_bytes != len(s.out) or runs.components != 1
    if scattered or per < tuning.LONG_BATCH or batch_bytes > tuning.CACHE_SIZE:
        copy_data(s)
        data = None
    elif data is None and s.reduction_options.is_counted:
        data = s.out  # counts of a window are in cache
    moved = batch_bytes + per * (runs.width + runs.components * s.indices.itemsize)
    threads = min(limit_threads(s.threads, batches * moved), batches)
    step = max(threads, tuning.WORK_ITEM // moved)
    windowed = s.window_spec(runs.width)
    windows = (
        None if data is None else memoryview(bytearray(threads * windowed.window(batch_bytes)))
    )
    options = KernelOptions(threads, data is not None and s.exceeds_cache, windows)

    def apply(spec: UpdateSpec) -> int:
        found = 0
        for first in range(0, batches, step):
            n = min(step, batches - first)
            at, count = first * per, n * per
            if data is None:
                item = WorkItem(at, count, 0, runs.width)
                found |= _kernels.scatter(
                    runs.addressing, s.indices, item, spec, s.out, True, options
                )
            else:
                found |= _kernels.scatter_batches(
                    runs.addressing, s.indices, at, count, spec, data, s.out, options
                )
            if found & BAD:
                return found
            s.progress((first + n) / batches)
        return found

    return apply_counted(s, runs.width, apply) if data is None else not apply(windowed)


def _by_panels(s: ScatterCall) -> bool:
    """Scatter along an axis that is not the last: by blocks of columns, or by units."""
    plan, itemsize = s.plan, s.dtype.itemsize
    assert isinstance(plan, ElementsPlan)
    strides = layouts.contiguous_strides(plan.data, itemsize)
    panels = bind_panels(plan, strides, itemsize, s.negatives)
    off_axis = [d for d in range(len(plan.data)) if d != plan.axis]
    covered = all(plan.indices[d] == plan.data[d] for d in off_axis)
    if covered and s.write_at is not None and columns.are_blocks_faster(panels, panels.size):
        return _by_columns(s, panels)
    return _by_units(s, panels, covered)


def _by_columns(s: ScatterCall, panels: Panels) -> bool:
    """Scatter blocks of columns into a mapped file, each written in complete pages."""
    data, itemsize = s.out if s.data is None else s.data, s.dtype.itemsize
    # each band reads all indices again, but its tiles must fit into the cache
    bands = max(tuning.BANDS, -(-panels.size * LINE // (2 * tuning.TILE)))
    buffer, done = columns.allocate_buffer(panels, panels.size, bands, s.out), 0
    for block in columns.divide_into_blocks(panels, panels.size, s.out, bands):
        units = bind_units(block.panels, (block.first, block.rows, block.width))
        work = units.unit_bytes + 2 * units.scratch
        threads = limit_threads(s.threads, units.grid.units * work)
        indices, first_update = s.indices.since(block.first_index), block.first_index * itemsize
        spec = s._replace(updates=s.updates[first_update:]).window_spec(itemsize)
        tiles = memoryview(bytearray(threads * spec.window(units.scratch)))
        options = KernelOptions(threads, s.exceeds_cache, tiles)
        source, step = data[block.data :], max(threads, tuning.WORK_ITEM // work)
        for first in range(0, units.grid.units, step):
            stop = min(units.grid.units, first + step)
            grid = units.grid
            if _kernels.scatter_units(grid, indices, spec, source, buffer, first, stop, options):
                return False
        at = block.data + block.first * panels.step
        columns.write_rows(block, buffer, s.out[at:], panels.step, s.threads)
        done += block.nbytes
        s.progress(done / len(s.out))
    return True


def _by_units(s: ScatterCall, panels: Panels, covered: bool) -> bool:
    """Scatter by units: tiles of columns, packed if they cover all of data."""
    units = bind_units(panels)
    threads = limit_threads(s.threads, units.grid.units * units.unit_bytes)
    units = bind_units(panels, threads=threads)
    total, grid, source, buffer = units.grid.units, units.grid, s.data, units.scratch
    itemsize, counted = s.dtype.itemsize, s.reduction_options.is_counted
    if source is None or not covered or not buffer or len(s.out) <= tuning.TILE:
        copy_data(s)
        packs = panels.column_stride == itemsize if counted else units.is_packing_faster and covered
        source, buffer = s.out, units.scratch if packs else 0
    work = units.unit_bytes + 2 * buffer
    threads = limit_threads(s.threads, total * work)
    windowed = s.window_spec(itemsize)
    tiles = memoryview(bytearray(threads * windowed.window(buffer))) if buffer else None
    options = KernelOptions(threads, s.exceeds_cache, tiles)
    step = max(threads, tuning.WORK_ITEM // work)

    def apply(spec: UpdateSpec) -> int:
        found = 0
        for first in range(0, total, step):
            stop = min(total, first + step)
            found |= _kernels.scatter_units(
                grid, s.indices, spec, source, s.out, first, stop, options
            )
            if found & BAD:
                return found
            s.progress(stop / total)
        return found

    return not apply(windowed) if buffer else apply_counted(s, itemsize, apply)
