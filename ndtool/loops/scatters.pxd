# cython: language_level=3, wraparound=False, cdivision=True
# Scatters: a block of index tuples is converted to offsets, then updates are applied to them in
# order. Begin with `scatter_task`; `windows_task` updates a copy of each batch in cache.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from ndtool.loops.blocks cimport (
    BLOCK, DROPPED, LINE, SHORT, Cursor, Nd, Walk, block_size, column_of, has_row_indices,
    next_batch, offsets_from, prefetch_next_batch, seek,
)
from ndtool.loops.counts cimport (
    Counts, Divided, Means, Occurrence, add_totals, all_counted, count_address, count_block,
    count_rows, count_slice, divide, drops, means_task, next_occurrence,
)
from ndtool.loops.memory cimport (
    AHEAD, prefetch, prefetch_lines, prefetch_slice, stream, stream_end, write_window,
)
from ndtool.loops.moves cimport copy_bytes, fill_block, scatter_block
from ndtool.loops.neutral cimport has_nan
from ndtool.loops.reductions cimport Reduction, is_light, reduce_block, reduce_elements, reduce_rows

cdef enum:
    BURST = 32    # short updates between prefetches
    SINK = 8      # int64s of the sink: a cache line to which dropped short updates are redirected
    FIRST_PASS = -1    # instead of a reduction: write neutral elements, or count totals
    EVERY = 4096  # tuples between two tests whether all slices have updates

cdef enum:            # bits of the result of a scatter
    BAD = 1           # an index is out of bounds
    NAN = 2           # of a first pass: an update has a NaN


cdef inline Py_ssize_t owned(
    int64_t* offsets, int64_t* positions, Py_ssize_t n, int64_t first, int64_t owner, int64_t owners
) noexcept nogil:
    """Filter n offsets by owner, in place, and list their positions; return their number.

    Threads own slices by a hash of the offset, so that each slice is updated by one thread.
    """
    cdef Py_ssize_t i, n_owned = 0
    cdef uint64_t mixed
    cdef bint is_owned
    for i in range(n):
        mixed = <uint64_t> offsets[i] * <uint64_t> 0x9E3779B97F4A7C15 >> 32    # a hash
        offsets[n_owned] = offsets[i]
        positions[n_owned] = first + i
        is_owned = <int64_t> (mixed * <uint64_t> owners >> 32) == owner
        n_owned += is_owned & (offsets[n_owned] != DROPPED)
    return n_owned


cdef struct Updates:
    # the updates of a walk's tuples, and their reduction
    const uint8_t* first      # the update of the walk's first tuple
    Py_ssize_t pitch          # bytes from one update to the next
    int code, op              # arithmetic type, and reduction: 0 copies
    Counts counts             # of the slices' updates, if the reduction needs them
    int means                 # the type of sums to be divided, 0 if there are none
    const uint8_t* neutral    # neutral elements for a slice, to replace current values; or NULL
    uint64_t* found           # where a first pass sets NAN


cdef inline int64_t sink_offset(
    const Updates* u, const int64_t* sink, const uint8_t* to
) noexcept nogil:
    """Return the offset for dropped updates: that of the sink from `to`, or DROPPED.

    The loops skip long updates and counted ones that are DROPPED; a sink saves short ones the test.
    """
    return <const uint8_t*> sink - to if u.pitch <= LINE and not u.counts.data else DROPPED


cdef inline void redirect_dropped(int64_t* offsets, Py_ssize_t n, int64_t redirect) noexcept nogil:
    """Replace the offsets of dropped tuples by `redirect`."""
    cdef Py_ssize_t i
    for i in range(n):
        if offsets[i] == DROPPED:
            offsets[i] = redirect


cdef inline bint goes_by_row(const Updates* u, const Walk* walk) noexcept nogil:
    """Return whether elements can be reduced by stored row index, without computing offsets."""
    return (
        u.op > 0 and is_light(u.code) and has_row_indices(walk, u.pitch)
        and not (u.counts.data and u.counts.copies_first)
    )


cdef inline Py_ssize_t window_bytes(Py_ssize_t nbytes) noexcept nogil:
    """Return the bytes from the start of a window to its counts, which begin with a cache line."""
    return (nbytes + LINE - 1) // LINE * LINE


cdef inline Updates of_window(
    const Updates* u, uint8_t* window, uint8_t* scratch, Py_ssize_t nbytes
) noexcept nogil:
    """Return the updates for a window; zero its own counts, which follow the window in scratch."""
    cdef Updates own = u[0]
    if u.counts.per_window:
        own.counts.data = scratch + window_bytes(nbytes)
        own.counts.origin = window
        memset(own.counts.data, 0, nbytes // u.pitch * u.counts.bytes_each)
    return own


cdef inline Updates first_pass_of(const Updates* u, uint64_t* found) noexcept nogil:
    """Return the first pass of updates: it writes neutral elements and sets NAN if `u` has one."""
    cdef Updates first_pass = u[0]
    first_pass.op = FIRST_PASS
    first_pass.counts.data = NULL
    first_pass.found = found
    return first_pass


cdef inline void after_first_pass(Updates* u, uint64_t found) noexcept nogil:
    """Set updates to be all reduced, as neutral elements replaced current values; not after NAN."""
    u.counts.copies_first = found & NAN != 0
    if not u.counts.copies_first and not u.means:
        u.counts.data = NULL


cdef inline void complete(
    const Updates* given, const Updates* own, uint8_t* window, Py_ssize_t nbytes
) noexcept nogil:
    """Divide the sums of a window by its own counts, if it has any."""
    cdef Means m
    if given.means and given.counts.per_window:
        m = Means(
            own.counts, window, nbytes // given.pitch, 1, given.means,
            not given.counts.copies_first,
        )
        means_task(&m, 0)


cdef enum:            # how threads divide a scatter
    BY_COLUMNS = 0
    BY_SLICES = 1     # every thread reads all tuples and updates the slices that it owns
    BY_BATCHES = 2    # of which no two update the same slice
    BY_COPIES = 3     # each thread applies a share of the tuples to its own copy of the output


cdef struct Scatter:
    Walk walk
    Updates updates
    uint8_t* to               # the first byte to update of the slice at offset 0
    int64_t count, tasks
    Py_ssize_t width          # bytes to update of each slice
    Py_ssize_t copy           # bytes from one copy to the next
    int division
    bint streamed


cdef inline uint64_t scatter_task(const Scatter* s, int64_t task) noexcept nogil:
    """Apply a task's share of the batches, tuples, slices or columns."""
    cdef int64_t per = s.walk.nd.per_batch, batches = s.count // per
    if s.division == BY_BATCHES:
        return scatter_range(
            s, s.to, batches * task // s.tasks * per, batches * (task + 1) // s.tasks * per,
            0, s.width, 0, 1,
        )
    if s.division == BY_COPIES:
        return scatter_range(
            s, s.to + task * s.copy, s.count * task // s.tasks,
            s.count * (task + 1) // s.tasks, 0, s.width, 0, 1,
        )
    if s.division == BY_SLICES:
        return scatter_range(s, s.to, 0, s.count, 0, s.width, task, s.tasks)
    return scatter_range(
        s, s.to, 0, s.count, column_of(task, s.tasks, s.width),
        column_of(task + 1, s.tasks, s.width), 0, 1,
    )


cdef inline uint64_t scatter_range(
    const Scatter* s, uint8_t* to, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end,
    int64_t owner, int64_t owners,
) noexcept nogil:
    """Update bytes [column, end) of those slices of tuples [t, stop) that `owner` owns."""
    cdef Py_ssize_t width = end - column
    if width == 0:
        return 0
    if width == s.updates.pitch <= LINE:
        return scatter_short(s, to, t, stop)
    return scatter_rows(s, to + column, t, stop, column, width, owner, owners)


cdef inline uint64_t scatter_short(
    const Scatter* s, uint8_t* to, int64_t t, int64_t stop
) noexcept nogil:
    """Apply updates of at most a cache line, prefetching the slices of the next block."""
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t sink[SINK]
    cdef const Nd* nd = s.walk.nd
    cdef Walk walk = s.walk
    cdef Cursor at
    cdef Updates updates = s.updates
    cdef Py_ssize_t width = updates.pitch
    cdef int64_t n, done, test = t + EVERY, upcoming = 0, step = min(block_size(nd), SHORT)
    cdef bint by_row = nd.in_cache and goes_by_row(&updates, &walk)
    cdef uint64_t found = 0
    updates.found = &found
    memset(sink, 0, LINE)
    walk.redirect = sink_offset(&updates, sink, to)
    seek(&at, &walk, t)
    while t < stop:
        n = min(step, stop - t)
        done = reduce_by_row(&updates, to, &walk, &at, t, min(BLOCK, stop - t)) if by_row else 0
        if done:
            t += done
            continue
        if not upcoming and offsets_from(&at, &walk, t, n, offsets):
            return BAD
        upcoming = 0 if nd.in_cache else min(step, stop - t - n)
        if upcoming and offsets_from(&at, &walk, t + n, upcoming, offsets + n):
            return BAD
        apply_short(&updates, to, offsets, updates.first + t * width, n, upcoming)
        memcpy(offsets, offsets + n, upcoming * 8)
        t += n
        if t >= test and updates.op > 0 and updates.counts.copies_first:
            test = t + max(EVERY, updates.counts.slices)
            if updates.counts.data and s.division != BY_BATCHES and all_counted(&updates.counts):
                after_first_pass(&updates, 0)
                by_row = nd.in_cache and goes_by_row(&updates, &walk)
                walk.redirect = sink_offset(&updates, sink, to)
                redirect_dropped(offsets, upcoming, walk.redirect)
    return found


cdef inline uint64_t scatter_rows(
    const Scatter* s, uint8_t* to, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t width,
    int64_t owner, int64_t owners,
) noexcept nogil:
    """Apply updates longer than a cache line, prefetching those of the next block."""
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t positions[2 * BLOCK]
    cdef Cursor at
    cdef Py_ssize_t n = 0, more
    cdef int64_t take
    seek(&at, &s.walk, t)
    while n or t < stop:
        take = min(block_size(s.walk.nd), stop - t)
        if take and offsets_from(&at, &s.walk, t, take, offsets + n):
            return BAD
        more = owned(offsets + n, positions + n, take, t, owner, owners)
        apply_rows(
            &s.updates, to, offsets, s.updates.first + column, positions, n, more, width, s.streamed
        )
        memcpy(offsets, offsets + n, more * 8)
        memcpy(positions, positions + n, more * 8)
        n = more
        t += take
    if s.streamed:
        stream_end()
    return 0


cdef inline void apply_short(
    const Updates* u, uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t more,
) noexcept nogil:
    """Apply n short updates, interleaved with prefetches of the next `more` destinations."""
    cdef Py_ssize_t i = 0, j, take, burst = BURST if more else n, width = u.pitch
    cdef bint spans = width > 16 or width & (width - 1)    # slices may span two cache lines
    while i < n:
        take = min(burst, n - i)
        prefetch_lines(updates + i * width + AHEAD, take * width)
        for j in range(n + i, min(n + i + take, n + more)):
            prefetch(to + offsets[j])
            if spans:
                prefetch(to + offsets[j] + width - 1)
        if u.counts.data:
            for j in range(n + i, min(n + i + take, n + more)):
                prefetch(count_address(&u.counts, to + offsets[j]))
        apply_block(u, to, offsets + i, updates + i * width, take, width)
        i += take


cdef struct BatchWindows:
    # complete batches, each applied in a window: a copy of the bytes that it updates, in scratch
    Walk walk
    Updates updates
    const uint8_t* data
    uint8_t* to
    uint8_t* windows          # one per thread, of `scratch` bytes
    Py_ssize_t span, scratch
    int64_t batches, tasks
    bint streamed


cdef inline uint64_t windows_task(const BatchWindows* s, int64_t task, int thread) noexcept nogil:
    """For each batch, copy the bytes that it updates to a window, update it, and write it once."""
    cdef uint8_t* window = s.windows + thread * s.scratch
    cdef Updates updates
    cdef Cursor at
    cdef int64_t per = s.walk.nd.per_batch, base, t = s.batches * task // s.tasks * per
    cdef int64_t stop = s.batches * (task + 1) // s.tasks * per
    cdef uint64_t nan
    seek(&at, &s.walk, t)
    while t < stop:
        base, at.base = at.base, 0    # offsets are into the window
        memcpy(window, s.data + base, s.span)
        updates = of_window(&s.updates, window, window, s.span)
        if updates.neutral:
            nan = 0
            if apply_batch(s, first_pass_of(&updates, &nan), window, &at, t, base):
                return BAD
            after_first_pass(&updates, nan)
            at.remaining = per
        if apply_batch(s, updates, window, &at, t, base):
            return BAD
        complete(&s.updates, &updates, window, s.span)
        write_window(s.to + base, window, s.span, s.streamed)
        t += per
        at.base = base
        next_batch(&at, s.walk.nd)
    return 0


cdef inline uint64_t apply_batch(
    const BatchWindows* s, Updates updates, uint8_t* window, Cursor* at, int64_t t, int64_t base
) noexcept nogil:
    """Apply the updates of a batch, whose first tuple is t, prefetching the next batch's data."""
    cdef const Nd* nd = s.walk.nd
    cdef int64_t offsets[BLOCK]
    cdef int64_t sink[SINK]
    cdef Walk walk = s.walk
    cdef int64_t take, done, end = t + nd.per_batch
    cdef double share = nd.span / <double> nd.per_batch
    cdef bint by_row = goes_by_row(&updates, &walk)
    memset(sink, 0, LINE)
    walk.redirect = sink_offset(&updates, sink, window)
    while t < end:
        take = min(SHORT, end - t)
        prefetch_next_batch(at, nd, s.data + base, take, share)
        done = reduce_by_row(&updates, window, &walk, at, t, take) if by_row else 0
        if done:
            t += done
            continue
        if offsets_from(at, &walk, t, take, offsets):
            return BAD
        apply_short(&updates, window, offsets, updates.first + t * updates.pitch, take, 0)
        t += take
    return 0


cdef inline void apply_rows(
    const Updates* u, uint8_t* to, const int64_t* offsets, const uint8_t* updates,
    const int64_t* positions, Py_ssize_t n, Py_ssize_t more, Py_ssize_t width, bint streamed,
) noexcept nogil:
    """Apply n long updates, listed by their positions, prefetching the next `more` ones."""
    cdef Py_ssize_t i, ahead = max(1, AHEAD // 2 // width), pitch = u.pitch
    cdef Reduction r = Reduction(to, offsets, updates, n, width, positions, pitch, more, NULL, 0, 0)
    if u.op == FIRST_PASS:
        add_totals(&u.counts, to, offsets, n)
        return
    if u.counts.data and (u.counts.copies_first or u.counts.has_totals):
        for i in range(n):
            if i + BURST < n + more:
                prefetch(count_address(&u.counts, to + offsets[i + BURST]))
            if i + ahead < n + more:
                prefetch_slice(updates + positions[i + ahead] * pitch, width)
                prefetch_slice(to + offsets[i + ahead], width)
            apply_row(u, to + offsets[i], updates + positions[i] * pitch, width)
        return
    if u.counts.data:
        count_block(&u.counts, to, offsets, n)
    if u.op:
        reduce_rows(u.code, u.op, &r)
        return
    for i in range(n):
        if i + ahead < n + more:
            prefetch_slice(updates + positions[i + ahead] * pitch, width)
            if not streamed:  # non-temporal stores do not read the lines
                prefetch_slice(to + offsets[i + ahead], width)
        if streamed:
            stream(to + offsets[i], updates + positions[i] * pitch, width)
        else:
            memcpy(to + offsets[i], updates + positions[i] * pitch, width)


cdef inline void apply_block(
    const Updates* u, uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """Apply n <= BLOCK contiguous updates to their offsets: write, reduce, count, as `u` says."""
    if u.op == FIRST_PASS:
        fill_block(to, offsets, u.neutral, n, width)
        if has_nan(u.code, updates, n * width):
            u.found[0] |= NAN
    elif u.counts.data:
        apply_counted(u, to, offsets, updates, n, width)
    else:
        apply_plain(u.op, u.code, to, offsets, updates, n, width)


cdef inline void apply_plain(
    int op, int code, uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """Apply n updates without counting them; offsets of long ones may be DROPPED."""
    cdef Reduction r = Reduction(to, offsets, updates, n, width, NULL, width, 0, NULL, 0, 0)
    cdef Py_ssize_t i
    if not op:
        scatter_block(to, offsets, updates, n, width)
    elif width <= LINE or not drops(offsets, n):
        reduce_block(code, op, &r)
    else:
        r.n = 1
        for i in range(n):
            r.offsets, r.updates = offsets + i, updates + i * width
            if offsets[i] != DROPPED:
                reduce_block(code, op, &r)


cdef inline void apply_counted(
    const Updates* u, uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """Apply n updates and count them; an update whose count is 0 may be copied, not reduced.

    Short updates are divided into those to copy and those to reduce. As a copy is the first update
    of its slice, all copies of a block precede its reductions.
    """
    cdef int64_t lists[2][SHORT]
    cdef Divided d
    cdef Py_ssize_t i = 0, take
    while width > LINE and i < n:
        if offsets[i] != DROPPED:
            apply_row(u, to + offsets[i], updates + i * width, width)
        i += 1
    if i < n and not u.counts.copies_first and not drops(offsets, n):
        count_block(&u.counts, to, offsets, n)
        apply_plain(u.op, u.code, to, offsets, updates, n, width)
        return
    while i < n:
        take = min(SHORT, n - i)
        d = divide(&u.counts, to, offsets + i, take, lists[0], lists[1])
        if u.op and d.reduced == take:
            apply_plain(u.op, u.code, to, offsets + i, updates + i * width, take, width)
        else:
            apply_listed(
                0, u.code, to, offsets + i, updates + i * width, lists[0], d.copied, width
            )
            if u.op:
                apply_listed(
                    u.op, u.code, to, offsets + i, updates + i * width, lists[1], d.reduced, width
                )
        i += take


cdef inline void apply_listed(
    int op, int code, uint8_t* to, const int64_t* offsets, const uint8_t* updates,
    const int64_t* listed, Py_ssize_t n, Py_ssize_t width
) noexcept nogil:
    """Apply some of at most SHORT updates: the `n` whose numbers are listed."""
    cdef int64_t chosen[SHORT]
    cdef uint8_t packed[SHORT * LINE]
    cdef Py_ssize_t i
    for i in range(n):
        chosen[i] = offsets[listed[i]]
        copy_bytes(packed + width * i, updates + width * listed[i], width)
    apply_plain(op, code, to, &chosen[0], &packed[0], n, width)


cdef inline int64_t reduce_by_row(
    const Updates* u, uint8_t* to, const Walk* walk, Cursor* at, int64_t t, int64_t most
) noexcept nogil:
    """Reduce at most `most` updates from t on by stored row index, up to an index out of bounds.

    Returns their number: 0 if all have the same index, since `one_element` is faster for these.
    """
    cdef const uint8_t* rows = walk.index + t * walk.tuple_bytes
    cdef const uint8_t* updates = u.first + t * u.pitch
    cdef int bytes_each = walk.tuple_bytes
    cdef Reduction r
    cdef int64_t n, done
    if at.remaining == 0:
        next_batch(at, walk.nd)
    n = min(most, at.remaining)
    if memcmp(rows, rows + (n - 1) * bytes_each, bytes_each) == 0:
        return 0
    r = Reduction(
        to + at.base, NULL, updates, n, u.pitch, NULL, 0, 0, rows, bytes_each, walk.nd.sizes[0]
    )
    done = reduce_elements(u.code, u.op, &r)
    if u.counts.data:
        count_rows(&u.counts, to + at.base, rows, bytes_each, done, walk.nd.sizes[0])
    at.remaining -= done
    return done


cdef inline void apply_row(
    const Updates* u, uint8_t* to, const uint8_t* update, Py_ssize_t width
) noexcept nogil:
    """Apply one long update."""
    cdef int64_t zero = 0
    cdef Reduction r = Reduction(to, &zero, update, 1, width, &zero, width, 0, NULL, 0, 0)
    cdef Counts counts
    cdef Occurrence occurrence = Occurrence(u.op == 0, False, 0)
    cdef Means m
    if u.op == FIRST_PASS:
        apply_block(u, to, &zero, update, 1, width)
        return
    if u.counts.has_totals:
        occurrence = next_occurrence(&u.counts, to)
        occurrence.first &= u.counts.copies_first
    elif u.counts.data:
        occurrence.first = count_slice(&u.counts, to)
    if occurrence.first:
        memcpy(to, update, width)
    elif u.op:
        reduce_rows(u.code, u.op, &r)
    if occurrence.last:    # divide the mean while the slice is in cache
        counts = u.counts
        counts.data = <uint8_t*> &occurrence.total
        m = Means(counts, to, 1, 1, u.means, not counts.copies_first)
        means_task(&m, 0)
