# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True, auto_pickle=False
"""Compiled kernels: gather and scatter loops over raw bytes, bounds-checked and parallel.

Read `gather` and `scatter` first. Each function checks the sizes of its buffers once, fills a
struct with the call's arguments, and divides the work into tasks, which the threads of a parallel
loop execute. The code of a task is in loops/: it neither allocates nor raises. Classes of arguments
are in _operands.pxi. A non-zero result means that an index is out of bounds: no slice of its block
was copied, and `locate_out_of_bounds` finds it.
"""

import os
import sys

cimport cython
from cython.parallel cimport prange, threadid
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.pycapsule cimport PyCapsule_GetPointer
from cpython.pyport cimport PY_SSIZE_T_MAX
from cpython.ref cimport Py_INCREF
from cpython.tuple cimport PyTuple_GetItem
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcmp, memcpy, memset

from ndtool._signals cimport (
    nd_handle_signal, nd_install_handler, nd_register_file, nd_set_published, nd_unregister_file,
)
from ndtool.loops cimport blocks as _blocks, pages as _pages, radix as _radix
from ndtool.loops.arithmetic cimport (
    ADD, BFLOAT16, BOOL, COMPLEX64, COMPLEX128, DIV, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32,
    INT64, MAX, MIN, MUL, SUB, UINT8, UINT16, UINT32, UINT64,
)
from ndtool.loops.blocks cimport CACHE_BYTES, Cursor, DROPPED, IndexSpace, Walk, seek
from ndtool.loops.boxes cimport BYTE_IDS, Partitioning, assign_partitions, permute_rows
from ndtool.loops.checks cimport (
    Check, OutOfBounds, check_task, find_out_of_bounds, flatten_task, local_fraction,
)
from ndtool.loops.counts cimport Counts, Means, divide_task, no_counts
from ndtool.loops.duplicates cimport OUT_OF_BOUNDS_ROW, Duplicate, RowBits, first_duplicate
from ndtool.loops.floats cimport DEFAULT_STATE, float_state, set_float_state
from ndtool.loops.gathers cimport (
    SHARED_CACHE_BYTES, Gather, gather_by_row_task, gather_task, is_gather_by_row,
)
from ndtool.loops.indices cimport (
    CLIP, ENTRIES, ERROR, ITEMSIZE_MASK, REDIRECT, SWAPPED, UNSIGNED, UNVECTORIZED, WRAP,
    are_in_bounds, as_int64,
)
from ndtool.loops.memory cimport swap_units
from ndtool.loops.pages cimport will_need_range
from ndtool.loops.panels cimport Panels, Units, gather_unit, scatter_unit
from ndtool.loops.radix cimport (
    Apply, Partition, Sorted, apply_partition, partition_group, region_bytes,
)
from ndtool.loops.rowtable cimport RowTable
from ndtool.loops.scatters cimport (
    BY_BATCHES, BY_COLUMNS, BY_SLICES, FILL, INCLUDED, NEUTRAL, REPLACED, BatchWindows,
    NanSearch, Runs, Scatter, Updates, copy_runs_task, fill_pass, has_nan, nan_task, scatter_task,
    window_bytes, windows_task,
)
from ndtool.loops.startable cimport (
    bytes_per_wake, lock_admission, prepare, team_size, unlock_admission,
)
from ndtool.loops.strided cimport FEW, Strided, strided_task
from ndtool.loops.views cimport (
    Copy, Strips, View, copy_strip, copy_task, copy_view, count_strips, has_strips,
)

# Constants of the loops that Python code needs, too.
BLOCK, GROUP, LINE, MAX_RANK = _blocks.BLOCK, _radix.GROUP, _blocks.LINE, _blocks.MAX_RANK
PAGE, MADVISE_BYTES = _pages.PAGE, _pages.MADVISE_BYTES
MAX_BYTE_IDS = BYTE_IDS
OUT_OF_BOUNDS = OUT_OF_BOUNDS_ROW

_TYPES = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "int32": INT32, "int64": INT64, "uint8": UINT8,
    "uint16": UINT16, "uint32": UINT32, "uint64": UINT64, "float16": FLOAT16,
    "bfloat16": BFLOAT16, "float32": FLOAT32, "float64": FLOAT64, "complex64": COMPLEX64,
    "complex128": COMPLEX128,
}
_MODES = {"error": ERROR, "clip": CLIP, "wrap": WRAP, "fill": REDIRECT, "drop": REDIRECT}
_OPS = {
    "none": 0, "add": ADD, "sub": SUB, "mul": MUL, "div": DIV, "max": MAX, "min": MIN, "mean": ADD,
}
_MEANS = frozenset({"mean"})  # reductions whose sums are divided by the number of summands

_CURRENT = {"included": INCLUDED, "replaced": REPLACED, "neutral": NEUTRAL, "fill": FILL}

prepare(os.fsencode(__file__))


cdef inline int64_t task_count(int threads) noexcept nogil:
    """Return the number of tasks of a parallel loop: several per thread, to balance the load."""
    return 16 * threads if threads > 1 else 1


ctypedef uint64_t (*Task)(const void* args, int64_t task, int thread) noexcept nogil


cdef uint64_t run_tasks(
    Task task, const void* args, int64_t tasks, int threads
) noexcept nogil:
    """Execute tasks on threads, in the caller's floating-point state; non-zero if any is."""
    cdef uint64_t bad = 0, previous, floats
    cdef int64_t i
    if threads == 1:    # without OpenMP, whose system calls take longer than a small call
        for i in range(tasks):
            bad |= task(args, i, 0)
        return bad
    floats = float_state()
    for i in prange(tasks, num_threads=team_size(threads), schedule="dynamic"):
        previous = set_float_state(floats)
        bad |= task(args, i, threadid())
        set_float_state(previous)
    return bad


cdef int run_released(Task task, const void* args, int64_t tasks, int threads) noexcept:
    """Execute tasks without the GIL; 1 if any returns non-zero."""
    cdef uint64_t bad
    with nogil:
        bad = run_tasks(task, args, tasks, threads)
    return bad != 0


cdef uint64_t run_gather(Gather* g, int threads) noexcept nogil:
    """Gather with at most `threads` threads; few long slices by columns."""
    g.by_columns = threads > 1 and g.count < 8 * threads and g.width >= 65536
    g.tasks = threads if g.by_columns else task_count(threads)
    g.is_local = (
        g.width <= _blocks.LINE and g.count >= CACHE_BYTES // 8
        and local_fraction(&g.walk, g.count) == 1
    )
    return run_tasks(
        gather_by_row_task if is_gather_by_row(g) else gather_task, g, g.tasks, threads
    )


cdef uint64_t run_strided(Strided* a, int threads) noexcept nogil:
    """Gather or scatter strided slices: threads have some elements of all, or some of a gather."""
    cdef Scatter* s = &a.scatter
    if not a.gathers and s.updates.counts.table.keys:    # all threads would number slices in it
        threads = 1
    s.tasks = task_count(threads)
    a.by_tuples = a.gathers and (
        s.count >= s.tasks * _blocks.SHORT_BLOCK or a.elements < 16 * s.tasks
    )
    return run_tasks(strided_task, a, s.tasks, threads)


cdef uint64_t run_scatter(Scatter* s, bint by_batches, int threads) noexcept nogil:
    """Scatter with at most `threads` threads: by batches, if these have disjoint destinations.

    Else by slices of the output or, for a few long slices, by columns.
    """
    cdef const Updates* u = &s.updates
    s.non_temporal = s.non_temporal and (
        (s.width | u.pitch | <Py_ssize_t> s.target) % _blocks.LINE == 0
        or s.width >= 4 * _blocks.LINE
    )
    if not by_batches and s.width <= _blocks.LINE:
        threads = 1
    s.division = BY_COLUMNS
    if by_batches and threads > 1:
        s.division = BY_BATCHES
    elif threads > 1 and (s.count >= 16 * threads or u.counts.data != NULL):
        s.division = BY_SLICES
    s.tasks = task_count(threads) if s.division == BY_BATCHES else threads
    return run_tasks(scatter_task, s, s.tasks, threads)


include "_operands.pxi"


def check(Addressing a, Indices indices, int64_t first, int64_t count, int threads) -> int:
    """Return non-zero if any of tuples [first, first + count) is out of bounds."""
    cdef Check c
    a._bind(&c.walk, indices, first, count)
    c.count = count
    c.tasks = task_count(threads)
    return run_released(check_task, &c, c.tasks, threads)


def sample_locality(Addressing a, Indices indices, int64_t count) -> float:
    """Return the fraction of sampled tuples that are spatially local: near the previous tuple."""
    cdef Walk walk
    a._bind(&walk, indices, 0, count)
    return local_fraction(&walk, count)


def locate_out_of_bounds(
    Addressing a, Indices indices, int64_t first, int64_t count
) -> tuple[int, int, int]:
    """Return (tuple, component) of the first index out of bounds, and the number of such tuples."""
    cdef Walk walk
    cdef OutOfBounds result
    a._bind(&walk, indices, first, count)
    with nogil:
        result = find_out_of_bounds(&walk, count)
    return first + result.position if result.bad else -1, result.component, result.bad


def find_duplicate(
    Addressing a, Indices indices, int64_t first, int64_t count, int64_t low, int64_t size,
    uint8_t[::1] bits, uint64_t key=0,
) -> tuple[int, int]:
    """Return the first of tuples [first, first + count) that selects a row again, and the row.

    indices: of these tuples only. `a` addresses rows, of which only [low, low + size) are
    considered. bits: a bit for each of these rows, set if an earlier tuple selects it; with an odd
    key, instead a hash table of these rows (`bind_table`); None to find the first tuple that
    selects any of these rows. The result is -1 instead of a tuple if there is no duplicate,
    OUT_OF_BOUNDS if an index is out of bounds.
    """
    cdef Walk walk
    cdef RowBits rows
    cdef Duplicate result
    a._bind(&walk, indices, 0, count)
    walk.first = first
    walk.redirect_offset = DROPPED
    rows.low, rows.size = low, size
    rows.bits = NULL
    rows.table.keys = NULL
    if key:
        bind_table(&rows.table, bits, first + count, key)
    elif bits is not None:
        rows.bits = &bits[0]
        if bits.shape[0] * 8 < size:
            raise ValueError("there are fewer bits than rows")
    with nogil:
        result = first_duplicate(&walk, count, &rows)
    return first + result.position if result.position >= 0 else result.position, result.row


def gather(
    Addressing a, const uint8_t[::1] data, Py_ssize_t origin, Indices indices, WorkItem item,
    uint8_t[::1] out, KernelOptions options, Layout layout=None,
) -> int:
    """Gather a work item of the slices into out; `origin`: byte offset of data[0, ..., 0].

    layout: of slices that are not contiguous, of which a work item has complete elements.
    """
    cdef Gather g
    cdef uint64_t bad
    if layout is not None:
        return gather_strided(a, data, origin, indices, item, out, options, layout)
    a._bind(&g.walk, indices, item.first, item.tuples)
    a._check_span(data.shape[0], origin, 0, item.column + item.width)
    if out.shape[0] < item.tuples * item.width:
        raise ValueError("the output buffer is shorter than its shape")
    g.source = &data[0] + origin + item.column
    g.walk.redirect_offset = indices._fill_value(item.width) - g.source
    g.target = &out[0]
    g.count = item.tuples
    g.width = item.width
    g.non_temporal = options.non_temporal
    with nogil:
        bad = run_gather(&g, options.threads)
    return bad != 0


cdef int gather_strided(
    Addressing a, const uint8_t[::1] data, Py_ssize_t origin, Indices indices, WorkItem item,
    uint8_t[::1] out, KernelOptions options, Layout layout,
) except -1:
    cdef Strided s
    cdef uint64_t bad
    cdef const View* view = &layout.view
    cdef int64_t strides[_blocks.MAX_RANK]
    cdef int d
    a._bind(&s.scatter.walk, indices, item.first, item.tuples)
    a._check_span(data.shape[0], origin, layout.lowest, layout.highest + view.itemsize)
    if out.shape[0] < item.tuples * item.width:
        raise ValueError("the output buffer is shorter than its shape")
    if item.column % view.itemsize or item.width % view.itemsize or (
        item.column + item.width > layout.nbytes
    ):
        raise ValueError("a work item is within its slices")
    strides[view.rank - 1] = view.itemsize
    for d in reversed(range(view.rank - 1)):
        strides[d] = strides[d + 1] * view.sizes[d + 1]
    s.scatter.target = <uint8_t*> &data[0] + origin
    s.scatter.updates.first, s.scatter.updates.pitch = &out[0] - item.column, item.width
    s.scatter.count, s.scatter.width = item.tuples, view.itemsize
    s.gathers, s.is_staged, s.view, s.listed_strides = True, False, view, strides
    s.first, s.elements = item.column // view.itemsize, item.width // view.itemsize
    s.fill_value = indices._fill_value(item.width)
    with nogil:
        bad = run_strided(&s, options.threads)
    return bad != 0


def scatter(
    Addressing a, Indices indices, WorkItem item, UpdateSpec spec, uint8_t[::1] out,
    bint by_batches, KernelOptions options,
) -> int:
    """Apply a work item of the updates, in order; by_batches: these have disjoint destinations."""
    cdef Scatter s
    cdef uint64_t bad
    cdef int64_t per_batch = a.space.per_batch
    a._bind(&s.walk, indices, item.first, item.tuples)
    a._check_span(out.shape[0], 0, 0, item.column + item.width)
    spec._bind(&s.updates, item.first, item.tuples, out, 0, False)
    if item.column + item.width > spec.pitch:
        raise ValueError("an update is shorter than a slice")
    if (spec.counts is not None or spec.state == FILL) and (
        item.column or item.width != spec.pitch
    ):
        raise ValueError("complete slices are counted or filled")
    if by_batches and (item.first % per_batch or item.tuples % per_batch):
        raise ValueError("a work item has complete batches")
    s.updates.first += item.column
    s.target = &out[0] + item.column
    s.count = item.tuples
    s.width = item.width
    s.non_temporal = options.non_temporal
    with nogil:
        bad = run_scatter(&s, by_batches, options.threads)
    return bad != 0


def scatter_batches(
    Addressing a, Indices indices, int64_t first, int64_t count, UpdateSpec spec,
    const uint8_t[::1] data, uint8_t[::1] out, KernelOptions options,
) -> int:
    """Apply the updates of complete batches, each in a window: a copy of the bytes it addresses.

    Each window is copied from data to its thread's scratch, updated there, and written to out.
    """
    cdef BatchWindows s
    a._bind(&s.walk, indices, first, count)
    a._check_span(out.shape[0], 0, 0, spec.pitch)
    spec._bind(&s.updates, first, count, out)
    s.span = a.space.span + spec.pitch
    if data.shape[0] < out.shape[0] or a.lowest < 0 or a.space.k != 1:
        raise ValueError("the data buffer is shorter than its shape")
    if first % a.space.per_batch or count % a.space.per_batch:
        raise ValueError("a work item has complete batches")
    s.scratch = spec.window(s.span)
    s.windows = options._buffers(s.scratch)
    if s.windows == NULL:
        raise ValueError("the scratch buffer is too short")
    s.data = &data[0]
    s.target = &out[0]
    s.batches = count // a.space.per_batch
    s.tasks = task_count(options.threads)
    s.non_temporal = options.non_temporal
    return run_released(windows_task, &s, s.tasks, options.threads)


def partition(
    Addressing a, Indices indices, int64_t first, int64_t count, UpdateSpec spec,
    RadixPartitions partitions, KernelOptions options
) -> int:
    """Radix-partition tuples [first, first + count) by their row; `a` addresses rows, not bytes.

    The scratch of `partitions` receives the sorted groups, followed by a buffer for each thread.
    """
    cdef Partition p
    cdef Updates updates
    cdef Py_ssize_t width = partitions.sorted.width
    cdef int64_t groups = (count + _radix.GROUP - 1) // _radix.GROUP
    a._bind(&p.walk, indices, first, count)
    spec._bind(&updates, first, count)
    if spec.pitch != width:
        raise ValueError("an update is shorter than a slice")
    if partitions.ends.shape[0] < groups * partitions.sorted.partitions or (
        partitions.scratch.shape[0]
        < groups * region_bytes(width) + options.threads * _radix.GROUP * 8
    ):
        raise ValueError("the scratch buffer is too short")
    if a.lowest < 0 or a.highest >= partitions.rows:
        raise ValueError("more rows than the partitions hold")
    # dropped tuples form an additional, last partition
    p.walk.redirect_offset = partitions.partitions << partitions.sorted.shift
    partitions.first, partitions.count = first, count
    partitions.sorted.groups = groups
    p.sorted_tuples = &partitions.sorted
    p.updates = updates.first
    p.count = count
    return run_released(partition_group, &p, groups, options.threads)


def apply_partitions(
    RadixPartitions partitions, UpdateSpec spec, const uint8_t[::1] data, uint8_t[::1] out,
    int64_t first, int64_t stop, KernelOptions options,
) -> None:
    """Apply partitions [first, stop) to out, which begins at the first row of the first partition.

    With data (the same rows), each partition is copied to its thread's scratch, updated in cache,
    and written once. Without (None), out is updated in place.
    """
    cdef Apply a
    cdef Py_ssize_t width = partitions.sorted.width
    cdef int shift = partitions.sorted.shift
    if spec.pitch != width or not 0 <= first <= stop <= partitions.partitions:
        raise ValueError("the updates have another width, or the partitions are out of range")
    spec._bind(&a.updates, partitions.first, partitions.count, out, (first << shift) * width)
    a.length = (min(partitions.rows, stop << shift) - (first << shift)) * width
    if out.shape[0] < a.length or (data is not None and data.shape[0] < a.length):
        raise ValueError("the output buffer is shorter than its shape")
    a.sorted_tuples = &partitions.sorted
    a.data = NULL
    if data is not None:
        a.data = &data[0]
    a.scratch = spec.window(width << shift)
    a.windows = options._buffers(a.scratch)
    if a.windows == NULL and (a.data != NULL or spec._has_window_counts()):
        raise ValueError("the scratch buffer is too short")
    a.target = &out[0]
    a.first = first
    a.non_temporal = options.non_temporal
    run_released(apply_partition, &a, stop - first, options.threads)


def gather_tiles(
    Grid g, const uint8_t[::1] data, Py_ssize_t origin, Indices indices, int64_t unit,
    int64_t stop, uint8_t[::1] out, KernelOptions options,
) -> int:
    """Gather units [unit, stop) of a grid; with scratch, from packed copies of data's tiles."""
    cdef Units c
    g._check_span(data.shape[0], origin, out.shape[0])
    g._bind(&c, indices, unit, stop, packed_bytes(&g.p), options)
    c.fill_value = indices._fill_value(g.p.itemsize)
    c.data = &data[0] + origin
    c.target = &out[0]
    return run_released(gather_unit, &c, stop - unit, options.threads)


def scatter_tiles(
    Grid g, Indices indices, UpdateSpec spec, const uint8_t[::1] data, uint8_t[::1] out,
    int64_t unit, int64_t stop, KernelOptions options,
) -> int:
    """Apply updates in units [unit, stop); with scratch, in packed tiles."""
    cdef Units c
    g._check_span(data.shape[0], 0, spec.updates.shape[0])
    g._bind(&c, indices, unit, stop, spec.window(packed_bytes(&g.p)), options)
    spec._bind(&c.updates, 0, 1, out, 0, c.buffers != NULL)
    if spec.counts is not None and spec._has_window_counts() != (c.buffers != NULL):
        raise ValueError("packed tiles, and only they, have their own counts")
    if spec.pitch != g.p.itemsize:
        raise ValueError("an update is shorter than a slice")
    if data.shape[0] < out.shape[0]:
        raise ValueError("the data buffer is shorter than its shape")
    g._check_span(out.shape[0], 0, PY_SSIZE_T_MAX)
    c.data = &data[0]
    c.target = &out[0]
    return run_released(scatter_unit, &c, stop - unit, options.threads)


def divide_means(
    UpdateCounts counts, uint8_t[::1] out, Py_ssize_t width, str name, bint include_self,
    KernelOptions options,
) -> None:
    """Divide sums by the counts of their summands, in slices of `width` bytes."""
    cdef Means m
    counts._bind(&m.counts, &out[0], out.shape[0], width)
    m.target = &out[0]
    m.slices = m.counts.table.mask + 1 if m.counts.table.keys else out.shape[0] // width
    m.code = _TYPES[name]
    m.include_self = include_self
    m.tasks = task_count(options.threads)
    run_released(divide_task, &m, m.tasks, options.threads)


def will_need(
    Addressing a, const uint8_t[::1] data, Py_ssize_t origin, Indices indices, WorkItem item
) -> int:
    """Prefetch the pages that the same call of gather would read, by madvise(MADV_WILLNEED).

    Returns the number of system calls.
    """
    cdef Walk walk
    cdef int64_t calls
    a._bind(&walk, indices, item.first, item.tuples)
    a._check_span(data.shape[0], origin, 0, item.column + item.width)
    walk.redirect_offset = 0    # filled slices read no data: any offset is valid
    with nogil:
        calls = will_need_range(&walk, &data[0] + origin + item.column, item.tuples, item.width)
    return calls


def partition_ids(
    Addressing a, Indices indices, int64_t origin, WorkItem item, Boxes boxes,
    uint8_t[::1] ids, uint8_t[::1] local, int64_t[::1] offsets,
) -> int:
    """Write the partition ID of each tuple of a work item, and its row's index in the partition.

    `a` addresses rows. origin: the tuple at which indices begin. offsets: zeros, one more than the
    number of partitions; receives the partition offsets. Tuples out of bounds that are dropped or
    filled form an additional, last partition. IDs have two bytes if there are more than
    MAX_BYTE_IDS partitions, else one; row indices have boxes.row_bytes.
    """
    cdef Walk walk
    cdef uint64_t bad
    cdef int64_t first = item.first, count = item.tuples
    cdef int64_t partitions = boxes.partitioning.partitions + (1 if indices.skips else 0)
    if not 0 <= origin <= first:
        raise ValueError("the indices begin after the tuples")
    a._bind(&walk, indices, first - origin, count)
    walk.first = first
    if a.lowest < 0 or a.highest >= boxes.rows or offsets.shape[0] != partitions + 1:
        raise ValueError("more rows than the partitions hold")
    if ids.shape[0] < count * (1 + (partitions > BYTE_IDS)):
        raise ValueError("the buffer of partition IDs is too short")
    if local.shape[0] < count * boxes.row_bytes:
        raise ValueError("the scratch buffer is too short")
    with nogil:
        bad = assign_partitions(
            &walk, count, &boxes.partitioning, partitions, &ids[0], &local[0], &offsets[0]
        )
    return bad != 0


def permute(
    const uint8_t[::1] ids, int64_t[::1] offsets, const uint8_t[::1] rows, uint8_t[::1] out,
    int64_t count, bint inverse,
) -> int:
    """Permute `count` rows into partition order, stably; inverse: permute them back.

    offsets: the partition offsets, which are advanced. Non-zero if the IDs do not match them.
    """
    cdef uint64_t bad
    cdef int64_t partitions = offsets.shape[0]
    cdef Py_ssize_t width = rows.shape[0] // max(count, 1)
    cdef bint has_wide_ids = partitions > BYTE_IDS
    if count < 1 or out.shape[0] < count * width or ids.shape[0] < count * (1 + has_wide_ids):
        raise ValueError("the output buffer is shorter than its shape")
    with nogil:
        bad = permute_rows(
            &ids[0], has_wide_ids, count, partitions, &offsets[0], &rows[0], &out[0], width, inverse
        )
    return bad != 0


include "_copies.pxi"
include "_calls.pxi"
include "_process.pxi"
