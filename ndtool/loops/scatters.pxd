# cython: language_level=3, wraparound=False, cdivision=True
# Scatters: a block of index tuples is converted to offsets, then updates are applied to them in
# order. Begin with `scatter_task`; `windows_task` updates a copy of each batch in cache.

from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memmove, memset

from ndtool.loops.arithmetic cimport (
    BFLOAT16, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, itemsizes,
)
from ndtool.loops.blocks cimport (
    BLOCK, DROPPED, LINE, SHORT_BLOCK, Cursor, IndexSpace, Walk, block_size, convert_next_offsets,
    has_row_indices, has_shared_tuples, next_batch, seek, shared_offsets, stored_index,
    task_column,
)
from ndtool.loops.counts cimport (
    Counts, Means, any_dropped, count_address, count_block, count_rows, count_update, divide_task,
)
from ndtool.loops.indices cimport ITEMSIZE_MASK, as_int64, as_row_indices, row_limit
from ndtool.loops.memory cimport (
    PREFETCH_DISTANCE, prefetch, prefetch_slice, store, stream, stream_end, write_window,
)
from ndtool.loops.moves cimport move_block
from ndtool.loops.reductions cimport (
    ELEMENTS, ROWS, Reduction, is_by_index, reduce_block, reduce_updates,
)

cdef extern from *:
    """
    static inline void ndtool_apply_block(
        void const *, uint8_t *, int64_t const *, uint8_t const *, Py_ssize_t, Py_ssize_t
    ) ndtool_noinline;
    """

cdef enum:
    BURST = 32    # number of short updates between prefetches
    SINK = 8      # int64s of the sink: a line that updates are written to instead of a slice
    MAX_REPEATED = 16384    # slices of a batch, of which only the last updates are copied

cdef enum:      # what becomes of the current value of a slice with updates
    INCLUDED    # all updates are reduced into it, or copied
    REPLACED    # by a copy of the first update, into which the others are reduced
    NEUTRAL     # by the reduction's neutral element, into which all updates are reduced; in windows
    FILL        # by the neutral element: the first of two passes, which applies no updates


ctypedef fused signed_bits:
    int16_t
    int32_t
    int64_t


cdef inline Py_ssize_t filter_owned(
    int64_t* offsets, int64_t* positions, Py_ssize_t n, int64_t first, int64_t owner, int64_t owners
) noexcept nogil:
    """Keep those of n offsets that `owner` owns, in place, and their positions; return the count.

    Threads own slices by a hash of the offset, so that each slice is updated by one thread.
    """
    cdef Py_ssize_t i, n_owned = 0
    cdef uint64_t hashed
    cdef bint is_owned
    for i in range(n):
        hashed = <uint64_t> offsets[i] * <uint64_t> 0x9E3779B97F4A7C15 >> 32    # a hash
        offsets[n_owned] = offsets[i]
        positions[n_owned] = first + i
        is_owned = <int64_t> (hashed * <uint64_t> owners >> 32) == owner
        n_owned += is_owned & (offsets[n_owned] != DROPPED)
    return n_owned


cdef struct Updates:
    # the updates of a range of index tuples, and their reduction
    const uint8_t* first      # the update of the walk's first tuple
    Py_ssize_t pitch          # bytes from one update to the next
    int code, op              # arithmetic type, and reduction: 0 copies
    int current               # what becomes of current values
    const uint8_t* neutral    # BLOCK slices of neutral elements for NEUTRAL and FILL
    Counts counts             # of the slices' updates, for REPLACED and means
    int mean_type             # the type of the sums, if the reduction is a mean; else 0


cdef inline int64_t sink_offset(
    const Updates* u, const int64_t* sink, const uint8_t* target
) noexcept nogil:
    """Return the offset for dropped updates: that of the sink from `target`, or DROPPED.

    Loops skip long or counted updates that are DROPPED; with a sink, short ones need no test.
    """
    return <const uint8_t*> sink - target if u.pitch <= LINE and not u.counts.data else DROPPED


cdef inline bint is_reduction_by_row(const Updates* u, const Walk* walk) noexcept nogil:
    """Return whether updates can be reduced by stored row index, without offsets."""
    return (
        u.op and u.current == INCLUDED and is_by_index(u.code, u.op)
        and u.pitch == itemsizes[u.code] and has_row_indices(walk, u.pitch)
        and walk.space.per_batch >= SHORT_BLOCK
        and walk.space.strides[0] == u.pitch and not u.counts.table.keys
    )


cdef inline Py_ssize_t window_bytes(Py_ssize_t nbytes) noexcept nogil:
    """Round `nbytes` up to full cache lines: the counts of a window follow it at this offset."""
    return (nbytes + LINE - 1) // LINE * LINE


cdef inline Updates window_updates(
    const Updates* u, uint8_t* window, uint8_t* scratch, Py_ssize_t nbytes
) noexcept nogil:
    """Return the updates for a window, with its own counts, which are zeroed."""
    cdef Updates own = u[0]
    if u.counts.itemsize and not u.counts.data:
        own.counts.data = scratch + window_bytes(nbytes)
        own.counts.origin = window
        memset(own.counts.data, 0, nbytes // u.pitch * u.counts.itemsize)
    return own


cdef inline Updates fill_pass(Updates* u) noexcept nogil:
    """Return the first pass of updates that are NEUTRAL: u becomes the second, which reduces."""
    cdef Updates first_pass = u[0]
    first_pass.current, u.current = FILL, INCLUDED
    first_pass.counts.data = NULL
    return first_pass


cdef inline void divide_window(
    const Updates* u, const Updates* own, uint8_t* window, Py_ssize_t nbytes
) noexcept nogil:
    """Divide the sums of a window by its own counts, if the reduction is a mean."""
    cdef Means m
    if u.mean_type and not u.counts.data:
        m = Means(
            own.counts, window, nbytes // u.pitch, 1, u.mean_type, u.current == INCLUDED
        )
        divide_task(&m, 0, 0)


cdef enum:            # how threads divide a scatter
    BY_COLUMNS = 0
    BY_SLICES = 1     # each thread reads all tuples and updates the slices that it owns
    BY_BATCHES = 2    # no two batches update the same slice


cdef struct Scatter:
    Walk walk
    Updates updates
    uint8_t* target     # the first byte to update of the slice at offset 0
    int64_t count, tasks
    Py_ssize_t width    # bytes to update of each slice
    int division
    bint non_temporal


cdef inline uint64_t scatter_task(const void* args, int64_t task, int thread) noexcept nogil:
    """Apply the updates of a task: of some batches, tuples, slices or columns."""
    cdef const Scatter* s = <const Scatter*> args
    cdef int64_t per_batch = s.walk.space.per_batch, batches = s.count // per_batch
    if s.division == BY_BATCHES:
        return scatter_range(
            s, s.target, batches * task // s.tasks * per_batch,
            batches * (task + 1) // s.tasks * per_batch,
            0, s.width, 0, 1,
        )
    if s.division == BY_SLICES:
        return scatter_range(s, s.target, 0, s.count, 0, s.width, task, s.tasks)
    return scatter_range(
        s, s.target, 0, s.count, task_column(task, s.tasks, s.width),
        task_column(task + 1, s.tasks, s.width), 0, 1,
    )


cdef inline uint64_t scatter_range(
    const Scatter* s, uint8_t* target, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end,
    int64_t owner, int64_t owners,
) noexcept nogil:
    """Update bytes [column, end) of the slices of tuples [t, stop) that `owner` owns."""
    cdef Py_ssize_t width = end - column
    cdef Cursor cursor
    if width == 0:
        return 0
    if width == s.updates.pitch <= LINE and has_shared_tuples(&s.walk, s.count):
        return scatter_shared(s, target, t, stop)
    if width == s.updates.pitch <= LINE:
        seek(&cursor, &s.walk, t)
        return scatter_short(
            &s.updates, target, &s.walk, &cursor, t, stop, s.walk.space.fits_in_cache
        )
    if has_many_updates(s):
        return scatter_last(s, target + column, t, stop, column, width, owner, owners)
    return scatter_rows(s, target + column, t, stop, column, width, owner, owners)


cdef struct Runs:
    # slabs of data, each copied but for a run of bytes, which its update replaces
    Scatter scatter
    const uint8_t* data
    Py_ssize_t slab


cdef inline uint64_t copy_runs_task(const void* args, int64_t task, int thread) noexcept nogil:
    """Write a task's bytes of all slabs once; non-zero if a run is out of bounds."""
    cdef const Runs* r = <const Runs*> args
    cdef const Walk* walk = &r.scatter.walk
    cdef const IndexSpace* space = walk.space
    cdef const uint8_t* source
    cdef Py_ssize_t width = r.scatter.width, n
    cdef int64_t begin = task_column(task, r.scatter.tasks, r.scatter.count * r.slab), first, at, v
    cdef int64_t end = task_column(task + 1, r.scatter.tasks, r.scatter.count * r.slab), batch
    while begin < end:
        batch, at = begin // r.slab, begin % r.slab
        v = as_int64(
            walk.index + batch // space.repeats * walk.tuple_bytes, walk.kind, 1, &v
        )[0]
        if <uint64_t> v >= <uint64_t> space.sizes[0]:
            return 1
        first = v * space.strides[0]
        source, n = r.data + begin, r.slab - at
        if at < first:
            n = first - at
        elif at < first + width:
            n = first + width - at
            source = r.scatter.updates.first + batch * width + at - first
        n = min(n, end - begin)
        store(r.scatter.target + begin, source, n, r.scatter.non_temporal)
        begin += n
    if r.scatter.non_temporal:
        stream_end()
    return 0


cdef inline uint64_t scatter_shared(
    const Scatter* s, uint8_t* target, int64_t t, int64_t stop
) noexcept nogil:
    """Convert the tuples that all batches share once, and apply the updates of complete batches."""
    cdef int64_t offsets[BLOCK]
    cdef int64_t n = s.walk.space.per_batch, count, base
    cdef int64_t step = n * shared_offsets(&s.walk, (stop - t) // n, offsets)
    cdef Py_ssize_t width = s.updates.pitch
    if step == 0:
        return t < stop
    while t < stop:
        count = min(step, stop - t)
        base = (s.walk.first + t) // n * s.walk.space.batch_strides[0]
        apply_block(
            &s.updates, target + base, offsets, s.updates.first + t * width, count, width
        )
        t += count
    return 0


cdef inline uint64_t scatter_short(
    const Updates* updates, uint8_t* target, const Walk* tuples, Cursor* cursor, int64_t t,
    int64_t stop, bint in_cache,
) noexcept nogil:
    """Apply updates of at most a cache line from tuple t on, at which the cursor is.

    in_cache: the target is, so that the slices of the next block are not prefetched.
    """
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t sink[SINK]
    cdef Walk walk = tuples[0]
    cdef Py_ssize_t width = updates.pitch
    cdef int64_t n, applied, n_next = 0, step = min(block_size(walk.space), SHORT_BLOCK)
    cdef bint is_by_row = in_cache and is_reduction_by_row(updates, &walk)
    memset(sink, 0, LINE)
    walk.redirect_offset = sink_offset(updates, sink, target)
    while t < stop:
        n = min(step, stop - t)
        applied = 0
        if is_by_row:
            applied = reduce_by_row(updates, target, &walk, cursor, t, min(BLOCK, stop - t))
        if applied:
            t += applied
            continue
        if not n_next and convert_next_offsets(cursor, &walk, t, n, offsets):
            return 1
        n_next = 0 if in_cache else min(step, stop - t - n)
        if n_next and convert_next_offsets(cursor, &walk, t + n, n_next, offsets + n):
            return 1
        apply_short(updates, target, offsets, updates.first + t * width, n, n_next)
        memcpy(offsets, offsets + n, n_next * 8)
        t += n
    return 0


cdef inline uint64_t scatter_rows(
    const Scatter* s, uint8_t* target, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t width,
    int64_t owner, int64_t owners,
) noexcept nogil:
    """Apply updates longer than a cache line, prefetching those of the next block."""
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t positions[2 * BLOCK]
    cdef Cursor cursor
    cdef Py_ssize_t n = 0, n_next
    cdef int64_t n_block
    seek(&cursor, &s.walk, t)
    while n or t < stop:
        n_block = min(block_size(s.walk.space), stop - t)
        if n_block and convert_next_offsets(&cursor, &s.walk, t, n_block, offsets + n):
            return 1
        n_next = filter_owned(offsets + n, positions + n, n_block, t, owner, owners)
        apply_rows(
            &s.updates, target, offsets, s.updates.first + column, positions, n, n_next, width,
            s.non_temporal
        )
        memmove(offsets, offsets + n, n_next * 8)  # the next block may own more slices
        memmove(positions, positions + n, n_next * 8)
        n = n_next
        t += n_block
    if s.non_temporal:
        stream_end()
    return 0


cdef inline bint has_many_updates(const Scatter* s) noexcept nogil:
    """Return whether most updates of a copy are likely to be overwritten by later ones."""
    cdef const IndexSpace* space = s.walk.space
    cdef int64_t rows = space.span // s.updates.pitch + 1
    return (
        not s.updates.op and s.updates.current == INCLUDED and not s.updates.counts.data
        and rows <= MAX_REPEATED and space.strides[space.k - 1] == s.updates.pitch
        and 2 * rows <= min(space.per_batch, s.count)
    )


cdef inline uint64_t scatter_last(
    const Scatter* s, uint8_t* target, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t width,
    int64_t owner, int64_t owners,
) noexcept nogil:
    """scatter_rows, but only the last update of each slice of a batch is copied: backwards."""
    cdef int64_t offsets[BLOCK]
    cdef int64_t positions[BLOCK]
    cdef uint8_t is_written[MAX_REPEATED]
    cdef const IndexSpace* space = s.walk.space
    cdef Cursor cursor
    cdef int64_t n, i, row, first_slice, batch = -1
    cdef Py_ssize_t n_owned, first_kept
    while t < stop:
        n = min(block_size(space), 1 + (s.walk.first + stop - 1) % space.per_batch)
        n = min(n, stop - t)
        stop -= n
        seek(&cursor, &s.walk, stop)
        if cursor.batch != batch:
            batch = cursor.batch
            memset(is_written, 0, space.span // s.updates.pitch + 1)
        first_slice = cursor.base + space.lowest
        if convert_next_offsets(&cursor, &s.walk, stop, n, offsets):
            return 1
        first_kept = n_owned = filter_owned(offsets, positions, n, stop, owner, owners)
        for i in reversed(range(n_owned)):
            row = (offsets[i] - first_slice) // s.updates.pitch
            if not is_written[row]:
                is_written[row] = True
                first_kept -= 1
                offsets[first_kept], positions[first_kept] = offsets[i], positions[i]
        apply_rows(
            &s.updates, target, offsets + first_kept, s.updates.first + column,
            positions + first_kept, n_owned - first_kept, 0, width, s.non_temporal
        )
    if s.non_temporal:
        stream_end()
    return 0


cdef inline void apply_short(
    const Updates* u, uint8_t* target, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t n_next,
) noexcept nogil:
    """Apply n short updates, interleaved with prefetches of the next n_next destinations."""
    cdef Py_ssize_t i = 0, j, n_block, burst = BURST if n_next else n, width = u.pitch
    cdef size_t next_slice
    cdef bint spans_lines = width > 16 or width & (width - 1)    # slices may span two cache lines
    while i < n:
        n_block = min(burst, n - i)
        for j in range(n + i, min(n + i + n_block, n + n_next)):
            next_slice = <size_t> target + <size_t> offsets[j]    # of dropped tuples, any address
            prefetch(<const uint8_t*> next_slice)
            if spans_lines:
                prefetch(<const uint8_t*> (next_slice + width - 1))
        if u.counts.data:
            for j in range(n + i, min(n + i + n_block, n + n_next)):
                if offsets[j] != DROPPED:
                    prefetch(count_address(&u.counts, target + offsets[j]))
        apply_block(u, target, offsets + i, updates + i * width, n_block, width)
        i += n_block


cdef struct BatchWindows:
    # complete batches, each applied in a window: a copy, in scratch, of the bytes that it updates
    Walk walk
    Updates updates
    const uint8_t* data
    uint8_t* target
    uint8_t* windows    # one per thread, of `scratch` bytes
    Py_ssize_t span, scratch
    int64_t batches, tasks
    bint non_temporal


cdef inline uint64_t windows_task(const void* args, int64_t task, int thread) noexcept nogil:
    """For each batch, copy the bytes that it updates to a window, update it, and write it once."""
    cdef const BatchWindows* s = <const BatchWindows*> args
    cdef uint8_t* window = s.windows + thread * s.scratch
    cdef Updates updates, first_pass
    cdef Cursor cursor
    cdef int64_t per_batch = s.walk.space.per_batch, base
    cdef int64_t t = s.batches * task // s.tasks * per_batch
    cdef int64_t stop = s.batches * (task + 1) // s.tasks * per_batch
    seek(&cursor, &s.walk, t)
    while t < stop:
        base, cursor.base = cursor.base, 0    # offsets are into the window
        memcpy(window, s.data + base, s.span)
        updates = window_updates(&s.updates, window, window, s.span)
        if updates.current == NEUTRAL:
            first_pass = fill_pass(&updates)
            if scatter_short(&first_pass, window, &s.walk, &cursor, t, t + per_batch, True):
                return 1
            cursor.remaining = per_batch
        if scatter_short(&updates, window, &s.walk, &cursor, t, t + per_batch, True):
            return 1
        divide_window(&s.updates, &updates, window, s.span)
        write_window(s.target + base, window, s.span, s.non_temporal)
        t += per_batch
        cursor.base = base
        next_batch(&cursor, s.walk.space)
    return 0


cdef inline void apply_rows(
    const Updates* u, uint8_t* target, const int64_t* offsets, const uint8_t* updates,
    const int64_t* positions, Py_ssize_t n, Py_ssize_t n_next, Py_ssize_t width, bint non_temporal,
) noexcept nogil:
    """Apply the n long updates at `positions`, prefetching the next n_next ones."""
    cdef Py_ssize_t i, ahead = max(1, PREFETCH_DISTANCE // 2 // width), pitch = u.pitch
    cdef Reduction r = Reduction(
        target, offsets, updates, n, width, positions, pitch, n_next, NULL, 0, 0
    )
    if u.counts.data:
        for i in range(n):
            if i + BURST < n + n_next:
                prefetch(count_address(&u.counts, target + offsets[i + BURST]))
            if i + ahead < n + n_next:
                prefetch_slice(updates + positions[i + ahead] * pitch, width)
                prefetch_slice(target + offsets[i + ahead], width)
            apply_row(u, target + offsets[i], updates + positions[i] * pitch, width)
        return
    if u.op:
        reduce_updates(ROWS, u.code, u.op, &r)
        return
    for i in range(n):
        if i + ahead < n + n_next:
            prefetch_slice(updates + positions[i + ahead] * pitch, width)
            if not non_temporal:  # non-temporal stores do not read the lines
                prefetch_slice(target + offsets[i + ahead], width)
        if non_temporal:
            stream(target + offsets[i], updates + positions[i] * pitch, width)
        else:
            memcpy(target + offsets[i], updates + positions[i] * pitch, width)


cdef inline void apply_block "ndtool_apply_block"(
    const void* args, uint8_t* target, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """Apply n <= BLOCK contiguous updates, in order; long ones may have the offset DROPPED."""
    cdef const Updates* u = <const Updates*> args
    cdef Py_ssize_t i
    if width > LINE:
        for i in range(n):
            if offsets[i] != DROPPED:
                apply_row(u, target + offsets[i], updates + i * width, width)
    elif u.current == FILL:
        move_block(target, offsets, u.neutral, NULL, n, width, width, 0)
    elif u.counts.data:
        apply_counted(u, target, offsets, updates, n, width)
    else:
        copy_or_reduce(u.op, u.code, target, offsets, updates, n, width)


cdef inline void copy_or_reduce(
    int op, int code, uint8_t* target, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    cdef Reduction r = Reduction(target, offsets, updates, n, width, NULL, width, 0, NULL, 0, 0)
    if op:
        reduce_block(code, op, &r)
    else:
        move_block(target, offsets, updates, NULL, n, width, width, 0)


cdef inline void apply_counted(
    const Updates* u, uint8_t* target, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """Count n updates and apply them; those that are DROPPED go to a sink instead.

    If first updates replace current values, all of a block are copied, then the others reduced:
    a slice's first update precedes its others. Each step writes what it leaves out to the sink.
    """
    cdef int64_t sink[SINK]
    cdef int64_t copied[BLOCK]
    cdef int64_t reduced[BLOCK]
    cdef uint8_t is_first[BLOCK]
    cdef int64_t sunk = <const uint8_t*> sink - target
    cdef Py_ssize_t i
    cdef bint has_dropped = any_dropped(offsets, n), replaces = u.current == REPLACED
    replaces &= count_block(&u.counts, target, offsets, n, is_first)
    if not replaces and not has_dropped:
        if u.op:
            copy_or_reduce(u.op, u.code, target, offsets, updates, n, width)
        return
    memset(sink, 0, LINE)
    for i in range(n):
        copied[i] = offsets[i] if is_first[i] else sunk    # selected: a branch would mispredict
        reduced[i] = sunk if offsets[i] == DROPPED or replaces and is_first[i] else offsets[i]
    if replaces:
        copy_or_reduce(0, u.code, target, copied, updates, n, width)
    if u.op:
        copy_or_reduce(u.op, u.code, target, reduced, updates, n, width)


cdef inline int64_t reduce_by_row(
    const Updates* u, uint8_t* target, const Walk* walk, Cursor* cursor, int64_t t, int64_t limit
) noexcept nogil:
    """Reduce at most `limit` updates from t on by stored row index, up to an index out of bounds.

    Returns their count: 0 if all have the same index: `reduce_one_element` is faster for these.
    """
    cdef int64_t values[BLOCK]
    cdef const uint8_t* rows
    cdef const uint8_t* updates = u.first + t * u.pitch
    cdef int kind = walk.kind, index_itemsize
    cdef Reduction r
    cdef int64_t n, applied, rows_limit
    if cursor.remaining == 0:
        next_batch(cursor, walk.space)
    n = min(min(limit, BLOCK), cursor.remaining)
    rows = as_row_indices(stored_index(cursor, walk, t), &kind, n, 4, values)
    index_itemsize, rows_limit = kind & ITEMSIZE_MASK, row_limit(kind, walk.space.sizes[0])
    if memcmp(rows, rows + (n - 1) * index_itemsize, index_itemsize) == 0:
        return 0
    r = Reduction(
        target + cursor.base, NULL, updates, n, u.pitch, NULL, 0, 0, rows, index_itemsize,
        rows_limit
    )
    applied = reduce_updates(ELEMENTS, u.code, u.op, &r)
    if u.counts.data:
        count_rows(
            &u.counts, target + cursor.base, rows, index_itemsize, applied, rows_limit
        )
    cursor.remaining -= applied
    return applied


cdef inline void apply_row(
    const Updates* u, uint8_t* target, const uint8_t* update, Py_ssize_t width
) noexcept nogil:
    """Apply one update, of any length, and count it if updates are counted."""
    cdef int64_t zero = 0
    cdef Reduction r = Reduction(target, &zero, update, 1, width, &zero, width, 0, NULL, 0, 0)
    cdef bint is_copied = u.op == 0 or u.current == FILL
    if u.current == FILL:
        update = u.neutral
    elif u.counts.data:
        is_copied = count_update(&u.counts, target) and u.current == REPLACED
    if is_copied:
        memcpy(target, update, width)
    elif u.op:
        reduce_updates(ROWS, u.code, u.op, &r)


cdef inline bint any_magnitude_above(
    const signed_bits* bits, Py_ssize_t nbytes, int64_t infinity
) noexcept nogil:
    """Return whether any float, as bits, has a magnitude above infinity."""
    cdef Py_ssize_t i
    cdef signed_bits is_above = 0, infinity_bits = <signed_bits> infinity
    cdef signed_bits magnitude = <signed_bits> (
        <uint64_t> 0x7FFFFFFFFFFFFFFF >> (64 - 8 * sizeof(signed_bits))
    )
    for i in range(nbytes // <Py_ssize_t> sizeof(signed_bits)):
        is_above |= <signed_bits> ((bits[i] & magnitude) > infinity_bits)
    return is_above != 0


cdef inline bint has_nan(int code, const uint8_t* updates, Py_ssize_t nbytes) noexcept nogil:
    """Return whether any update, of the type `code`, is a NaN: a neutral element may alter it."""
    if code == FLOAT32 or code == COMPLEX64:
        return any_magnitude_above(<const int32_t*> updates, nbytes, 0x7F800000)
    if code == FLOAT64 or code == COMPLEX128:
        return any_magnitude_above(<const int64_t*> updates, nbytes, <int64_t> 0x7FF << 52)
    if code == FLOAT16:
        return any_magnitude_above(<const int16_t*> updates, nbytes, 0x7C00)
    if code == BFLOAT16:
        return any_magnitude_above(<const int16_t*> updates, nbytes, 0x7F80)
    return False


cdef struct NanSearch:
    # updates of the arithmetic type `code` to search
    const uint8_t* updates
    Py_ssize_t nbytes
    int code
    int64_t tasks


cdef inline uint64_t nan_task(const void* args, int64_t task, int thread) noexcept nogil:
    """Return whether any update of a task is a NaN."""
    cdef const NanSearch* search = <const NanSearch*> args
    cdef Py_ssize_t begin = task_column(task, search.tasks, search.nbytes)
    cdef Py_ssize_t end = task_column(task + 1, search.tasks, search.nbytes)
    return has_nan(search.code, search.updates + begin, end - begin)
