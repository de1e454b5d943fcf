"""Scatter algorithms, and the selection of one for each call.

The result has the bits of the sequential loop: each slice of the output is updated by one thread,
in row-major order of the indices. The algorithms: by destination (a radix partition of the tuples,
so that each partition of the output fits in cache), by batches (no two batches update the same
slice), in order (each thread applies the updates of the slices that it owns), by units (tiles of
columns, for elements along an axis that is not the last).
"""

from math import prod

from ndtool import _kernels
from ndtool._kernels import KernelOptions, UpdateSpec, WorkItem
from ndtool.engine import check, copies, counting, layouts, tuning
from ndtool.engine.bind import BoundSlices, Operand, bind_grid, bind_slices
from ndtool.engine.destinations import scatter_by_destination
from ndtool.engine.gathers import round_to_elements
from ndtool.engine.updates import ScatterCall, apply_in_passes, copy_data
from ndtool.machine.threads import limit_threads
from ndtool.rules.dtypes import NATIVE, Dtype
from ndtool.rules.operators import MODES
from ndtool.rules.plans import Shape
from ndtool.rules.reductions import neutral_element


def needs_algorithm(
    is_counted: bool,
    nbytes: int,
    width: int,
    tuples: int,
    per_batch: int,
    by_panels: bool,
    in_place: bool,
    threads: int,
) -> bool:
    """Whether a large scatter to `nbytes` bytes needs more than one pass in order of the tuples.

    width: bytes of a slice. per_batch: tuples of a batch. by_panels: along an axis that is not the
    last.
    """
    is_one_batch, updates = per_batch == tuples, tuples * width
    if is_counted or by_panels:
        return is_counted or (nbytes > tuning.TILE and 2 * updates >= nbytes)  # packed tiles
    batch_bytes = nbytes * per_batch // max(tuples, 1)
    limit = (1 if threads > 1 else 2) * tuning.SORTED_OUTPUT * tuning.CACHE_SIZE
    if width < tuning.WIDE_SLICE and nbytes > limit and tuples >= tuning.MIN_SORTED:
        return threads > 1 and (is_one_batch or batch_bytes > tuning.CACHE_SIZE)
    is_in_windows = not is_one_batch and not in_place and per_batch >= tuning.LONG_BATCH
    return is_in_windows and nbytes > limit and width < tuning.WIDE_SLICE


def arithmetic_order(dtype: Dtype, reduction: str) -> str:
    """Return the byte order required of updates: native for a reduction, else that of data."""
    return dtype.order if reduction == "none" else NATIVE


def scatter(call: ScatterCall, data: Operand | None, shape: Shape) -> bool:
    """Copy data to the output, normalized, and apply updates; False if an index is out of bounds.

    data: None if the output already contains it. call: its `data` is not set yet.
    """
    dtype, order = call.dtype, arithmetic_order(call.dtype, call.attributes.reduction)
    if data is not None and layouts.is_normalized(shape, data.strides, dtype, order):
        call = call._replace(data=data.buffer)
    elif data is not None and call.write_at is not None:
        copies.write_normalized(data, shape, dtype, order, call.write_at, call.threads)
    elif data is not None:
        _validate(call)
        call = call._replace(validates_first=False)
        copies.normalize(data, shape, dtype, order, call.out, call.threads)
    if not _apply(call):
        return False
    if dtype.swap_size > 1 and order != dtype.order:
        copies.swap_bytes(call.out, dtype.swap_size)
    return True


def _apply(call: ScatterCall) -> bool:
    """Copy data to out, then apply the updates, with the fastest algorithm for the plan.

    Returns False if an index is out of bounds, or raises BoundsError if call.validates_first.
    """
    if not len(call.updates):
        copy_data(call)
        return True
    if not len(call.out):  # no index is valid in an empty array
        if MODES[call.indices.out_of_bounds].skips:
            return True
        return call.indices.skips and not check.find_bounds_error(
            call.plan, call.indices, call.threads
        )
    plan, slices = call.plan, _bind_output(call)
    width = call.dtype.itemsize if slices is None else slices.width
    threads = limit_threads(call.threads, len(call.updates))
    spec = counting.update_spec(call.updates, width, call.attributes, call.dtype).exact(threads)
    if slices is None:
        _validate(call)
        return _by_units(call, spec)
    rows = len(call.out) // slices.width
    batch_bytes = prod(plan.sizes) * slices.width  # the range of the output that one batch updates
    is_one_batch = slices.per_batch == slices.tuples
    is_wide_slice = slices.width >= tuning.WIDE_SLICE and call.write_at is None
    has_enough_tuples = slices.tuples >= tuning.MIN_SORTED and rows >= 4 * threads
    is_sortable = has_enough_tuples and slices.width <= tuning.CACHE_SIZE and not is_wide_slice
    if call.data is None and call.attributes.is_counted:
        is_sortable &= not call.is_sparse(slices.width)  # counts would be in windows
    limit = (1 if threads > 1 else 2) * tuning.SORTED_OUTPUT * tuning.CACHE_SIZE
    exceeds_cache = len(call.out) > limit and (is_one_batch or batch_bytes > tuning.CACHE_SIZE)
    # on one thread, prefetched updates in order are faster, unless counts or writes need windows
    needs_windows = call.attributes.is_counted or call.write_at is not None
    if is_sortable and exceeds_cache and (threads > 1 or needs_windows):
        local_fraction = _kernels.sample_locality(slices.addressing, call.indices, slices.tuples)
        if local_fraction < tuning.LOCAL_FRACTION:
            return scatter_by_destination(call, spec, slices, rows)
    _validate(call)
    batches = slices.tuples // slices.per_batch
    if not is_one_batch and (slices.width < tuning.WIDE_SLICE or batches >= threads):
        return _by_batches(call, spec, slices, batch_bytes)
    copy_data(call)
    return _in_order(call, spec, slices)


def _validate(call: ScatterCall) -> None:
    """Validate all indices if call.validates_first."""
    if call.validates_first:
        check.check(call.plan, call.indices, call.threads)


def _bind_output(call: ScatterCall) -> BoundSlices | None:
    """Bind the plan to the strides of out; None for an axis that is not the last."""
    itemsize = call.dtype.itemsize
    strides = layouts.contiguous_strides(call.plan.data, itemsize)
    return bind_slices(call.plan, strides, itemsize)


def _in_order(call: ScatterCall, spec: UpdateSpec, slices: BoundSlices) -> bool:
    """Scatter in order: each thread reads all tuples and updates the slices that it owns."""
    is_wide_slice = slices.width >= tuning.WIDE_SLICE
    threads = limit_threads(call.threads, len(call.updates)) if is_wide_slice else 1
    options = KernelOptions(threads, call.attributes.reduction == "none" and call.exceeds_cache)
    step = max(1, tuning.WORK_ITEM // (slices.width + slices.components * call.indices.itemsize))
    step_bytes = slices.width
    if not call.attributes.is_counted:
        step_bytes = round_to_elements(slices.itemsize, tuning.WORK_ITEM)

    def apply_range(spec: UpdateSpec, first: int, n: int) -> bool:
        for column in range(0, slices.width, step_bytes):
            item = WorkItem(first, n, column, min(step_bytes, slices.width - column))
            if _kernels.scatter(
                slices.addressing, call.indices, item, spec, call.out, False, options
            ):
                return False
        call.progress((first + n) / slices.tuples)
        return True

    def apply(spec: UpdateSpec) -> bool:
        ranges = ((t, min(step, slices.tuples - t)) for t in range(0, slices.tuples, step))
        return all(apply_range(spec, first, n) for first, n in ranges)

    first_tuples = tuning.UPDATES_PER_SLICE * len(call.out) // slices.width
    if spec.current == "neutral" and first_tuples <= min(step, slices.tuples):
        # often, they select all slices: then the other tuples need no first pass
        first_pass, reductions = spec.passes(None)
        if not apply_range(first_pass, 0, first_tuples):
            return False
        element = neutral_element(call.dtype, call.attributes.reduction)
        if bytes(call.out) == element * (len(call.out) // len(element)):
            spec = reductions
    return apply_in_passes(call, spec, apply)


def _by_batches(call: ScatterCall, spec: UpdateSpec, slices: BoundSlices, batch_bytes: int) -> bool:
    """Scatter by batches: the contiguous bytes of each are updated in cache and written once."""
    batches, data, per_batch = slices.tuples // slices.per_batch, call.data, slices.per_batch
    is_scattered = batches * batch_bytes != len(call.out) or slices.components != 1
    if is_scattered or per_batch < tuning.LONG_BATCH or batch_bytes > tuning.CACHE_SIZE:
        copy_data(call)
        data = None
    elif data is None and call.attributes.is_counted and not call.is_sparse(slices.width):
        data = call.out  # counts of a window are in cache
    tuple_bytes = slices.width + slices.components * call.indices.itemsize
    moved_bytes, addressing = batch_bytes + per_batch * tuple_bytes, slices.addressing
    threads = min(limit_threads(call.threads, batches * moved_bytes), batches)
    step = max(threads, tuning.WORK_ITEM // moved_bytes)
    windows = None if data is None else memoryview(bytearray(threads * spec.window(batch_bytes)))
    options = KernelOptions(threads, data is not None and call.exceeds_cache, windows)

    def apply(spec: UpdateSpec) -> bool:
        for first in range(0, batches, step):
            n = min(step, batches - first)
            first_tuple, count = first * per_batch, n * per_batch
            if data is None:
                item = WorkItem(first_tuple, count, 0, slices.width)
                is_invalid = _kernels.scatter(
                    addressing, call.indices, item, spec, call.out, True, options
                )
            else:
                is_invalid = _kernels.scatter_batches(
                    addressing, call.indices, first_tuple, count, spec, data, call.out, options
                )
            if is_invalid:
                return False
            call.progress((first + n) / batches)
        return True

    return apply_in_passes(call, spec, apply) if data is None else apply(spec)


def _by_units(call: ScatterCall, spec: UpdateSpec) -> bool:
    """Scatter along an axis that is not the last by tiles of columns, packed if they cover data."""
    plan, itemsize = call.plan, call.dtype.itemsize
    grid = bind_grid(plan, layouts.contiguous_strides(plan.data, itemsize), itemsize)
    covers_data = all(
        plan.indices[d] == plan.data[d] for d in range(len(plan.data)) if d != plan.elements_axis
    )
    grid = grid.divided(limit_threads(call.threads, grid.units * grid.unit_bytes))
    unit_count, source, scratch_bytes = grid.units, call.data, grid.scratch
    is_counted = call.attributes.is_counted
    if source is None or not covers_data or not scratch_bytes or len(call.out) <= tuning.TILE:
        copy_data(call)
        packs_tiles = grid.is_packing_faster and covers_data
        if is_counted:
            packs_tiles = grid.has_contiguous_rows and not call.is_sparse(itemsize)
        source, scratch_bytes = call.out, grid.scratch if packs_tiles else 0
    work_bytes = grid.unit_bytes + 2 * scratch_bytes
    threads = limit_threads(call.threads, unit_count * work_bytes)
    tiles = None
    if scratch_bytes:
        tiles = memoryview(bytearray(threads * spec.window(scratch_bytes)))
    options = KernelOptions(threads, call.exceeds_cache, tiles)
    step = max(threads, tuning.WORK_ITEM // work_bytes)

    def apply(spec: UpdateSpec) -> bool:
        for first in range(0, unit_count, step):
            stop = min(unit_count, first + step)
            if _kernels.scatter_tiles(
                grid, call.indices, spec, source, call.out, first, stop, options
            ):
                return False
            call.progress(stop / unit_count)
        return True

    return apply(spec) if scratch_bytes else apply_in_passes(call, spec, apply)
