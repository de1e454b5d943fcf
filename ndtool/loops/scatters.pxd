# cython: language_level=3, wraparound=False, cdivision=True
# Scatters: a block of index tuples is converted to offsets, then updates are applied to them in
# order. Begin with `scatter_task`; `windows_task` updates a copy of each batch in cache.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from ndtool.loops.blocks cimport (
    BLOCK, DROPPED, LINE, SHORT_BLOCK, Cursor, IndexSpace, Walk, block_size, task_column,
    has_row_indices,
    next_batch, convert_next_offsets, prefetch_next_batch, seek,
)
from ndtool.loops.counts cimport (
    Counts, PartitionedUpdates, Means, Occurrence, add_totals, all_counted, count_address,
    count_block,
    count_rows, count_slice, partition_updates, any_dropped, means_task, next_occurrence,
)
from ndtool.loops.memory cimport (
    PREFETCH_DISTANCE, prefetch, prefetch_lines, prefetch_slice, stream, stream_end, write_window,
)
from ndtool.loops.moves cimport copy_bytes, fill_block, scatter_block
from ndtool.loops.neutral cimport has_nan
from ndtool.loops.reductions cimport Reduction, is_light, reduce_block, reduce_elements, reduce_rows

cdef enum:
    BURST = 32              # number of short updates between prefetches
    SINK = 8                # int64s of the sink: a line that dropped short updates are written to
    FIRST_PASS = -1         # instead of a reduction: write neutral elements or count totals
    TEST_INTERVAL = 4096    # tuples between two tests of whether all slices have updates

cdef enum:            # bits of the result of a scatter
    BAD = 1    # an index is out of bounds
    NAN = 2    # of a first pass: an update has a NaN


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
    Counts counts             # of the slices' updates, if the reduction needs them
    int mean_type             # the type of the sums, if the reduction is a mean; else 0
    const uint8_t* neutral    # neutral elements for a slice, to replace current values; or NULL
    uint64_t* result          # a first pass sets NAN here


cdef inline int64_t sink_offset(
    const Updates* u, const int64_t* sink, const uint8_t* target
) noexcept nogil:
    """Return the offset for dropped updates: that of the sink from `target`, or DROPPED.

    Loops skip long or counted updates that are DROPPED; with a sink, short ones need no test.
    """
    return <const uint8_t*> sink - target if u.pitch <= LINE and not u.counts.data else DROPPED


cdef inline void redirect_dropped(
    int64_t* offsets, Py_ssize_t n, int64_t redirect_offset
) noexcept nogil:
    """Replace the offsets of dropped tuples by `redirect_offset`."""
    cdef Py_ssize_t i
    for i in range(n):
        if offsets[i] == DROPPED:
            offsets[i] = redirect_offset


cdef inline bint is_reduction_by_row(const Updates* u, const Walk* walk) noexcept nogil:
    """Return whether updates can be reduced by stored row index, without offsets."""
    return (
        u.op > 0 and is_light(u.code) and has_row_indices(walk, u.pitch)
        and not (u.counts.data and (u.counts.copies_first_update or u.counts.table.keys))
    )


cdef inline Py_ssize_t window_bytes(Py_ssize_t nbytes) noexcept nogil:
    """Round `nbytes` up to full cache lines: the counts of a window follow it at this offset."""
    return (nbytes + LINE - 1) // LINE * LINE


cdef inline Updates window_updates(
    const Updates* u, uint8_t* window, uint8_t* scratch, Py_ssize_t nbytes
) noexcept nogil:
    """Return the updates for a window, with its own counts, which are zeroed."""
    cdef Updates copied_updates = u[0]
    if u.counts.per_window:
        copied_updates.counts.data = scratch + window_bytes(nbytes)
        copied_updates.counts.origin = window
        memset(copied_updates.counts.data, 0, nbytes // u.pitch * u.counts.count_itemsize)
    return copied_updates


cdef inline Updates first_pass_updates(const Updates* u, uint64_t* result) noexcept nogil:
    """Return the first pass of updates: it writes neutral elements, and sets NAN for a NaN."""
    cdef Updates first_pass = u[0]
    first_pass.op = FIRST_PASS
    first_pass.counts.data = NULL
    first_pass.result = result
    return first_pass


cdef inline void finish_first_pass(Updates* u, uint64_t result) noexcept nogil:
    """Copy the first update of each slice only if the first pass found a NaN; else reduce all."""
    u.counts.copies_first_update = result & NAN != 0
    if not u.counts.copies_first_update and not u.mean_type:
        u.counts.data = NULL


cdef inline void divide_window(
    const Updates* updates, const Updates* own_updates, uint8_t* window, Py_ssize_t nbytes
) noexcept nogil:
    """Divide the sums of a window by its own counts, if the reduction is a mean."""
    cdef Means m
    if updates.mean_type and updates.counts.per_window:
        m = Means(
            own_updates.counts, window, nbytes // updates.pitch, 1, updates.mean_type,
            not updates.counts.copies_first_update,
        )
        means_task(&m, 0)


cdef enum:            # how threads divide a scatter
    BY_COLUMNS = 0
    BY_SLICES = 1     # each thread reads all tuples and updates the slices that it owns
    BY_BATCHES = 2    # no two batches update the same slice
    BY_COPIES = 3     # each thread applies a share of the tuples to its own copy of the output


cdef struct Scatter:
    Walk walk
    Updates updates
    uint8_t* target     # the first byte to update of the slice at offset 0
    int64_t count, tasks
    Py_ssize_t width    # bytes to update of each slice
    Py_ssize_t copy     # bytes from one copy to the next
    int division
    bint non_temporal


cdef inline uint64_t scatter_task(const Scatter* s, int64_t task) noexcept nogil:
    """Apply the updates of a task: of some batches, tuples, slices or columns."""
    cdef int64_t per_batch = s.walk.space.per_batch, batches = s.count // per_batch
    if s.division == BY_BATCHES:
        return scatter_range(
            s, s.target, batches * task // s.tasks * per_batch,
            batches * (task + 1) // s.tasks * per_batch,
            0, s.width, 0, 1,
        )
    if s.division == BY_COPIES:
        return scatter_range(
            s, s.target + task * s.copy, s.count * task // s.tasks,
            s.count * (task + 1) // s.tasks, 0, s.width, 0, 1,
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
    if width == 0:
        return 0
    if width == s.updates.pitch <= LINE:
        return scatter_short(s, target, t, stop)
    return scatter_rows(s, target + column, t, stop, column, width, owner, owners)


cdef inline uint64_t scatter_short(
    const Scatter* s, uint8_t* target, int64_t t, int64_t stop
) noexcept nogil:
    """Apply updates of at most a cache line, prefetching the slices of the next block."""
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t sink[SINK]
    cdef const IndexSpace* space = s.walk.space
    cdef Walk walk = s.walk
    cdef Cursor cursor
    cdef Updates updates = s.updates
    cdef Py_ssize_t width = updates.pitch
    cdef int64_t n, applied, next_test = t + TEST_INTERVAL, n_next = 0
    cdef int64_t step = min(block_size(space), SHORT_BLOCK)
    cdef bint is_by_row = space.fits_in_cache and is_reduction_by_row(&updates, &walk)
    cdef uint64_t result = 0
    updates.result = &result
    memset(sink, 0, LINE)
    walk.redirect_offset = sink_offset(&updates, sink, target)
    seek(&cursor, &walk, t)
    while t < stop:
        n = min(step, stop - t)
        applied = 0
        if is_by_row:
            applied = reduce_by_row(&updates, target, &walk, &cursor, t, min(BLOCK, stop - t))
        if applied:
            t += applied
            continue
        if not n_next and convert_next_offsets(&cursor, &walk, t, n, offsets):
            return BAD
        n_next = 0 if space.fits_in_cache else min(step, stop - t - n)
        if n_next and convert_next_offsets(&cursor, &walk, t + n, n_next, offsets + n):
            return BAD
        apply_short(&updates, target, offsets, updates.first + t * width, n, n_next)
        memcpy(offsets, offsets + n, n_next * 8)
        t += n
        if t >= next_test and updates.op > 0 and updates.counts.copies_first_update:
            next_test = t + max(TEST_INTERVAL, updates.counts.slices)
            if updates.counts.data and s.division != BY_BATCHES and all_counted(&updates.counts):
                finish_first_pass(&updates, 0)
                is_by_row = space.fits_in_cache and is_reduction_by_row(&updates, &walk)
                walk.redirect_offset = sink_offset(&updates, sink, target)
                redirect_dropped(offsets, n_next, walk.redirect_offset)
    return result


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
            return BAD
        n_next = filter_owned(offsets + n, positions + n, n_block, t, owner, owners)
        apply_rows(
            &s.updates, target, offsets, s.updates.first + column, positions, n, n_next, width,
            s.non_temporal
        )
        memcpy(offsets, offsets + n, n_next * 8)
        memcpy(positions, positions + n, n_next * 8)
        n = n_next
        t += n_block
    if s.non_temporal:
        stream_end()
    return 0


cdef inline void apply_short(
    const Updates* u, uint8_t* target, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t n_next,
) noexcept nogil:
    """Apply n short updates, interleaved with prefetches of the next n_next destinations."""
    cdef Py_ssize_t i = 0, j, n_block, burst = BURST if n_next else n, width = u.pitch
    cdef bint spans_lines = width > 16 or width & (width - 1)    # slices may span two cache lines
    while i < n:
        n_block = min(burst, n - i)
        prefetch_lines(updates + i * width + PREFETCH_DISTANCE, n_block * width)
        for j in range(n + i, min(n + i + n_block, n + n_next)):
            prefetch(target + offsets[j])
            if spans_lines:
                prefetch(target + offsets[j] + width - 1)
        if u.counts.data:
            for j in range(n + i, min(n + i + n_block, n + n_next)):
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


cdef inline uint64_t windows_task(const BatchWindows* s, int64_t task, int thread) noexcept nogil:
    """For each batch, copy the bytes that it updates to a window, update it, and write it once."""
    cdef uint8_t* window = s.windows + thread * s.scratch
    cdef Updates updates
    cdef Cursor cursor
    cdef int64_t per_batch = s.walk.space.per_batch, base
    cdef int64_t t = s.batches * task // s.tasks * per_batch
    cdef int64_t stop = s.batches * (task + 1) // s.tasks * per_batch
    cdef uint64_t nan
    seek(&cursor, &s.walk, t)
    while t < stop:
        base, cursor.base = cursor.base, 0    # offsets are into the window
        memcpy(window, s.data + base, s.span)
        updates = window_updates(&s.updates, window, window, s.span)
        if updates.neutral:
            nan = 0
            if apply_batch(s, first_pass_updates(&updates, &nan), window, &cursor, t, base):
                return BAD
            finish_first_pass(&updates, nan)
            cursor.remaining = per_batch
        if apply_batch(s, updates, window, &cursor, t, base):
            return BAD
        divide_window(&s.updates, &updates, window, s.span)
        write_window(s.target + base, window, s.span, s.non_temporal)
        t += per_batch
        cursor.base = base
        next_batch(&cursor, s.walk.space)
    return 0


cdef inline uint64_t apply_batch(
    const BatchWindows* s, Updates updates, uint8_t* window, Cursor* cursor, int64_t t, int64_t base
) noexcept nogil:
    """Apply the updates of a batch, whose first tuple is t, prefetching the next batch's data."""
    cdef const IndexSpace* space = s.walk.space
    cdef int64_t offsets[BLOCK]
    cdef int64_t sink[SINK]
    cdef Walk walk = s.walk
    cdef int64_t n_block, applied, end = t + space.per_batch
    cdef double batch_fraction = space.span / <double> space.per_batch
    cdef bint is_by_row = is_reduction_by_row(&updates, &walk)
    memset(sink, 0, LINE)
    walk.redirect_offset = sink_offset(&updates, sink, window)
    while t < end:
        n_block = min(SHORT_BLOCK, end - t)
        prefetch_next_batch(cursor, space, s.data + base, n_block, batch_fraction)
        applied = reduce_by_row(&updates, window, &walk, cursor, t, n_block) if is_by_row else 0
        if applied:
            t += applied
            continue
        if convert_next_offsets(cursor, &walk, t, n_block, offsets):
            return BAD
        apply_short(&updates, window, offsets, updates.first + t * updates.pitch, n_block, 0)
        t += n_block
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
    if u.op == FIRST_PASS:
        add_totals(&u.counts, target, offsets, n)
        return
    if u.counts.data and (u.counts.copies_first_update or u.counts.has_totals):
        for i in range(n):
            if i + BURST < n + n_next:
                prefetch(count_address(&u.counts, target + offsets[i + BURST]))
            if i + ahead < n + n_next:
                prefetch_slice(updates + positions[i + ahead] * pitch, width)
                prefetch_slice(target + offsets[i + ahead], width)
            apply_row(u, target + offsets[i], updates + positions[i] * pitch, width)
        return
    if u.counts.data:
        count_block(&u.counts, target, offsets, n)
    if u.op:
        reduce_rows(u.code, u.op, &r)
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


cdef inline void apply_block(
    const Updates* u, uint8_t* target, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """Apply n <= BLOCK contiguous updates to their offsets: copied, reduced or counted."""
    if u.op == FIRST_PASS:
        fill_block(target, offsets, u.neutral, n, width)
        if has_nan(u.code, updates, n * width):
            u.result[0] |= NAN
    elif u.counts.data:
        apply_counted(u, target, offsets, updates, n, width)
    else:
        apply_uncounted(u.op, u.code, target, offsets, updates, n, width)


cdef inline void apply_uncounted(
    int op, int code, uint8_t* target, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """Apply n updates without counts; those of long updates may have the offset DROPPED."""
    cdef Reduction r = Reduction(target, offsets, updates, n, width, NULL, width, 0, NULL, 0, 0)
    cdef Py_ssize_t i
    if not op:
        scatter_block(target, offsets, updates, n, width)
    elif width <= LINE or not any_dropped(offsets, n):
        reduce_block(code, op, &r)
    else:
        r.n = 1
        for i in range(n):
            r.offsets, r.updates = offsets + i, updates + i * width
            if offsets[i] != DROPPED:
                reduce_block(code, op, &r)


cdef inline void apply_counted(
    const Updates* u, uint8_t* target, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """Apply n updates and count them; the first update of a slice may be copied, not reduced.

    Short updates are divided into those to copy and those to reduce. As a copy is the first update
    of its slice, all copies of a block precede its reductions.
    """
    cdef int64_t lists[2][SHORT_BLOCK]
    cdef PartitionedUpdates partitioned
    cdef Py_ssize_t i = 0, n_block
    while width > LINE and i < n:
        if offsets[i] != DROPPED:
            apply_row(u, target + offsets[i], updates + i * width, width)
        i += 1
    if i < n and not u.counts.copies_first_update and not any_dropped(offsets, n):
        count_block(&u.counts, target, offsets, n)
        apply_uncounted(u.op, u.code, target, offsets, updates, n, width)
        return
    while i < n:
        n_block = min(SHORT_BLOCK, n - i)
        partitioned = partition_updates(&u.counts, target, offsets + i, n_block, lists[0], lists[1])
        if u.op and partitioned.n_reduced == n_block:
            apply_uncounted(u.op, u.code, target, offsets + i, updates + i * width, n_block, width)
        else:
            apply_selected(
                0, u.code, target, offsets + i, updates + i * width, lists[0], partitioned.n_copied,
                width
            )
            if u.op:
                apply_selected(
                    u.op, u.code, target, offsets + i, updates + i * width, lists[1],
                    partitioned.n_reduced, width
                )
        i += n_block


cdef inline void apply_selected(
    int op, int code, uint8_t* target, const int64_t* offsets, const uint8_t* updates,
    const int64_t* positions, Py_ssize_t n, Py_ssize_t width
) noexcept nogil:
    """Apply those n of at most SHORT_BLOCK updates that are at `positions`."""
    cdef int64_t selected_offsets[SHORT_BLOCK]
    cdef uint8_t selected_updates[SHORT_BLOCK * LINE]
    cdef Py_ssize_t i
    for i in range(n):
        selected_offsets[i] = offsets[positions[i]]
        copy_bytes(selected_updates + width * i, updates + width * positions[i], width)
    apply_uncounted(op, code, target, &selected_offsets[0], &selected_updates[0], n, width)


cdef inline int64_t reduce_by_row(
    const Updates* u, uint8_t* target, const Walk* walk, Cursor* cursor, int64_t t, int64_t limit
) noexcept nogil:
    """Reduce at most `limit` updates from t on by stored row index, up to an index out of bounds.

    Returns their count: 0 if all have the same index: `reduce_one_element` is faster for these.
    """
    cdef const uint8_t* rows = walk.index + t * walk.tuple_bytes
    cdef const uint8_t* updates = u.first + t * u.pitch
    cdef int index_itemsize = walk.tuple_bytes
    cdef Reduction r
    cdef int64_t n, applied
    if cursor.remaining == 0:
        next_batch(cursor, walk.space)
    n = min(limit, cursor.remaining)
    if memcmp(rows, rows + (n - 1) * index_itemsize, index_itemsize) == 0:
        return 0
    r = Reduction(
        target + cursor.base, NULL, updates, n, u.pitch, NULL, 0, 0, rows, index_itemsize,
        walk.space.sizes[0]
    )
    applied = reduce_elements(u.code, u.op, &r)
    if u.counts.data:
        count_rows(
            &u.counts, target + cursor.base, rows, index_itemsize, applied, walk.space.sizes[0]
        )
    cursor.remaining -= applied
    return applied


cdef inline void apply_row(
    const Updates* u, uint8_t* target, const uint8_t* update, Py_ssize_t width
) noexcept nogil:
    """Apply one long update."""
    cdef int64_t zero = 0
    cdef Reduction r = Reduction(target, &zero, update, 1, width, &zero, width, 0, NULL, 0, 0)
    cdef Counts counts
    cdef Occurrence occurrence = Occurrence(u.op == 0, False, 0)
    cdef Means m
    if u.op == FIRST_PASS:
        apply_block(u, target, &zero, update, 1, width)
        return
    if u.counts.has_totals:
        occurrence = next_occurrence(&u.counts, target)
        occurrence.first &= u.counts.copies_first_update
    elif u.counts.data:
        occurrence.first = count_slice(&u.counts, target)
    if occurrence.first:
        memcpy(target, update, width)
    elif u.op:
        reduce_rows(u.code, u.op, &r)
    if occurrence.last:    # divide the mean while the slice is in cache
        counts = u.counts
        counts.data = <uint8_t*> &occurrence.total
        counts.table.keys = NULL
        m = Means(counts, target, 1, 1, u.mean_type, not counts.copies_first_update)
        means_task(&m, 0)
