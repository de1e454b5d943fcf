# cython: language_level=3, wraparound=False, cdivision=True
# Scatters: a block of index tuples becomes offsets, then updates are applied there, in order. Begin
# with `scatter_part`: short updates go by blocks, long ones one by one, whole batches by windows.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from ndtool.loops.blocks cimport (
    BLOCK, DROPPED, LINE, SHORT, Cursor, Nd, Walk, block_size, column_of, has_row_indices,
    next_batch, offsets_from, prefetch_next_batch, seek,
)
from ndtool.loops.counts cimport (
    Counts, Divided, Means, Turn, add_totals, all_counted, count_address, count_block, count_rows,
    count_slice, divide, drops, means_part, next_turn,
)
from ndtool.loops.memory cimport (
    AHEAD, prefetch, prefetch_lines, prefetch_slice, stream, stream_end, write_window,
)
from ndtool.loops.moves cimport copy_bytes, fill_block, scatter_block
from ndtool.loops.neutral cimport has_nan
from ndtool.loops.reductions cimport Reduction, is_light, reduce_block, reduce_elements, reduce_rows

cdef enum:
    BURST = 32    # short updates between prefetches
    SINK = 8      # int64s of a cache line that receives dropped short updates
    MARK = -1     # instead of a reduction: the neutral element goes where updates will go
    EVERY = 4096  # tuples between tests whether all slices have updates

cdef enum:            # bits of the result of a scatter
    BAD = 1           # an index is out of bounds
    NAN = 2           # of a pass that marks: an update has a NaN


cdef inline Py_ssize_t owned(
    int64_t* offsets, int64_t* positions, Py_ssize_t n, int64_t first, int64_t owner, int64_t owners
) noexcept nogil:
    """Select those of n offsets that `owner` updates, and their updates; return how many."""
    cdef Py_ssize_t i, n_owned = 0
    cdef uint64_t mixed
    cdef bint mine
    for i in range(n):
        mixed = <uint64_t> offsets[i] * <uint64_t> 0x9E3779B97F4A7C15 >> 32    # a hash
        offsets[n_owned] = offsets[i]
        positions[n_owned] = first + i
        mine = <int64_t> (mixed * <uint64_t> owners >> 32) == owner
        n_owned += mine & (offsets[n_owned] != DROPPED)
    return n_owned


cdef struct Updates:
    # the updates of a walk's tuples, and their reduction
    const uint8_t* first      # that of the walk's first tuple
    Py_ssize_t pitch          # bytes from one to the next
    int code, op              # arithmetic type, and reduction: 0 copies
    Counts counts             # of the slices' updates, if the reduction needs them
    int means                 # the type of sums to be divided, 0 if there are none
    const uint8_t* neutral    # a slice of neutral elements, if they can replace current values
    uint64_t* found           # where a pass that marks sets NAN


cdef inline int64_t sink_offset(
    const Updates* u, const int64_t* sink, const uint8_t* to
) noexcept nogil:
    """Return the offset from `to` of the sink for dropped short updates.

    Long ones are skipped, and so are those that are counted.
    """
    return <const uint8_t*> sink - to if u.pitch <= LINE and not u.counts.data else DROPPED


cdef inline void redirect_dropped(int64_t* offsets, Py_ssize_t n, int64_t redirect) noexcept nogil:
    """Redirect those of n tuples that are dropped."""
    cdef Py_ssize_t i
    for i in range(n):
        if offsets[i] == DROPPED:
            offsets[i] = redirect


cdef inline bint goes_by_row(const Updates* u, const Walk* walk) noexcept nogil:
    """Return whether elements can be reduced by stored row index."""
    return (
        u.op > 0 and is_light(u.code) and has_row_indices(walk, u.pitch)
        and not (u.counts.data and u.counts.copies_first)
    )


cdef inline Py_ssize_t window_bytes(Py_ssize_t nbytes) noexcept nogil:
    """Return the bytes of a window, up to its counts."""
    return (nbytes + LINE - 1) // LINE * LINE


cdef inline Updates of_window(
    const Updates* u, uint8_t* window, uint8_t* scratch, Py_ssize_t nbytes
) noexcept nogil:
    """Return the updates of a window; its own counts are zeroed, behind a window in scratch."""
    cdef Updates own = u[0]
    if u.counts.per_window:
        own.counts.data = scratch + window_bytes(nbytes)
        own.counts.origin = window
        memset(own.counts.data, 0, nbytes // u.pitch * u.counts.bytes_each)
    return own


cdef inline Updates marking(const Updates* u, uint64_t* found) noexcept nogil:
    """Return updates that put the neutral element where `u` goes, and set NAN if `u` has one."""
    cdef Updates marks = u[0]
    marks.op = MARK
    marks.counts.data = NULL
    marks.found = found
    return marks


cdef inline void marked(Updates* u, uint64_t found) noexcept nogil:
    """Reduce first updates, too, after neutral elements have replaced the current values."""
    u.counts.copies_first = found & NAN != 0
    if not u.counts.copies_first and not u.means:
        u.counts.data = NULL


cdef inline void complete(
    const Updates* given, const Updates* own, uint8_t* window, Py_ssize_t nbytes
) noexcept nogil:
    """Divide the sums of a window that has its own counts."""
    cdef Means m
    if given.means and given.counts.per_window:
        m = Means(
            own.counts, window, nbytes // given.pitch, 1, given.means,
            not given.counts.copies_first,
        )
        means_part(&m, 0)


cdef enum:            # how threads divide a scatter
    BY_COLUMNS = 0
    BY_SLICES = 1     # every thread walks all tuples and updates the slices it owns
    BY_BATCHES = 2    # whose destinations are disjoint
    BY_COPIES = 3     # each updates its own copy with a share of the tuples


cdef struct Scatter:
    Walk walk
    Updates updates
    uint8_t* to               # first byte to update of the slice at offset 0
    int64_t count, parts
    Py_ssize_t width          # bytes to update of each slice
    Py_ssize_t copy           # bytes from one copy to the next
    int sharing
    bint streamed


cdef inline uint64_t scatter_part(const Scatter* s, int64_t part) noexcept nogil:
    cdef int64_t per = s.walk.nd.per_batch, batches = s.count // per
    if s.sharing == BY_BATCHES:
        return scatter_range(
            s, s.to, batches * part // s.parts * per, batches * (part + 1) // s.parts * per,
            0, s.width, 0, 1,
        )
    if s.sharing == BY_COPIES:
        return scatter_range(
            s, s.to + part * s.copy, s.count * part // s.parts,
            s.count * (part + 1) // s.parts, 0, s.width, 0, 1,
        )
    if s.sharing == BY_SLICES:
        return scatter_range(s, s.to, 0, s.count, 0, s.width, part, s.parts)
    return scatter_range(
        s, s.to, 0, s.count, column_of(part, s.parts, s.width),
        column_of(part + 1, s.parts, s.width), 0, 1,
    )


cdef inline uint64_t scatter_range(
    const Scatter* s, uint8_t* to, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end,
    int64_t owner, int64_t owners,
) noexcept nogil:
    """Update bytes [column, end) of the slices of tuples [t, stop) that `owner` owns."""
    cdef Py_ssize_t width = end - column
    if width == 0:
        return 0
    if width == s.updates.pitch <= LINE:
        return scatter_short(s, to, t, stop)
    return scatter_rows(s, to + column, t, stop, column, width, owner, owners)


cdef inline uint64_t scatter_short(
    const Scatter* s, uint8_t* to, int64_t t, int64_t stop
) noexcept nogil:
    """Apply updates of at most a line, block by block, prefetching the next block's slices."""
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t sink[SINK]
    cdef const Nd* nd = s.walk.nd
    cdef Walk walk = s.walk
    cdef Cursor at
    cdef Updates updates = s.updates
    cdef Py_ssize_t width = updates.pitch
    cdef int64_t n, done, test = t + EVERY, known = 0, step = min(block_size(nd), SHORT)
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
        if not known and offsets_from(&at, &walk, t, n, offsets):
            return BAD
        known = 0 if nd.in_cache else min(step, stop - t - n)
        if known and offsets_from(&at, &walk, t + n, known, offsets + n):
            return BAD
        apply_short(&updates, to, offsets, updates.first + t * width, n, known)
        memcpy(offsets, offsets + n, known * 8)
        t += n
        if t >= test and updates.op > 0 and updates.counts.copies_first:
            test = t + max(EVERY, updates.counts.slices)
            if updates.counts.data and s.sharing != BY_BATCHES and all_counted(&updates.counts):
                marked(&updates, 0)
                by_row = nd.in_cache and goes_by_row(&updates, &walk)
                walk.redirect = sink_offset(&updates, sink, to)
                redirect_dropped(offsets, known, walk.redirect)
    return found


cdef inline uint64_t scatter_rows(
    const Scatter* s, uint8_t* to, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t width,
    int64_t owner, int64_t owners,
) noexcept nogil:
    """Apply long updates, block by block, prefetching the next block's."""
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
    """Apply n short updates, interleaved with prefetches of `more` destinations and updates."""
    cdef Py_ssize_t i = 0, j, take, burst = BURST if more else n, width = u.pitch
    while i < n:
        take = min(burst, n - i)
        prefetch_lines(updates + i * width + AHEAD, take * width)
        for j in range(n + i, min(n + i + take, n + more)):
            prefetch(to + offsets[j])
        if u.counts.data:
            for j in range(n + i, min(n + i + take, n + more)):
                prefetch(count_address(&u.counts, to + offsets[j]))
        apply_block(u, to, offsets + i, updates + i * width, take, width)
        i += take


cdef struct BatchWindows:
    # whole batches, each applied in a window: a copy of the span it addresses
    Walk walk
    Updates updates
    const uint8_t* data
    uint8_t* to
    uint8_t* windows          # one per thread, of `scratch` bytes
    Py_ssize_t span, scratch
    int64_t batches, parts
    bint streamed


cdef inline uint64_t windows_part(const BatchWindows* s, int64_t part, int thread) noexcept nogil:
    """Copy the span of each batch to the window, update it there, write it once."""
    cdef uint8_t* window = s.windows + thread * s.scratch
    cdef Updates updates
    cdef Cursor at
    cdef int64_t per = s.walk.nd.per_batch, base, t = s.batches * part // s.parts * per
    cdef int64_t stop = s.batches * (part + 1) // s.parts * per
    cdef uint64_t nan
    seek(&at, &s.walk, t)
    while t < stop:
        base, at.base = at.base, 0    # offsets are into the window
        memcpy(window, s.data + base, s.span)
        updates = of_window(&s.updates, window, window, s.span)
        if updates.neutral:
            nan = 0
            if apply_batch(s, marking(&updates, &nan), window, &at, t, base):
                return BAD
            marked(&updates, nan)
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
    """Apply the updates of a batch, whose first tuple is t, prefetching the next batch's span."""
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
    """Apply n long updates, found by their positions, prefetching the next, `more` after these."""
    cdef Py_ssize_t i, ahead = max(1, AHEAD // 2 // width), pitch = u.pitch
    cdef Reduction r = Reduction(to, offsets, updates, n, width, positions, pitch, more, NULL, 0, 0)
    if u.op == MARK:
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
    """Apply n <= BLOCK short updates."""
    if u.op == MARK:
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
    """Apply n updates that are not counted, or have been; long ones may be DROPPED."""
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
    """Apply n updates and count them: of short ones first the copies, then the reductions.

    A slice's copy is its first update, so within a block the copies may precede all else.
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
    """Apply those of at most SHORT updates that are listed."""
    cdef int64_t chosen[SHORT]
    cdef uint8_t packed[SHORT * LINE]
    cdef Py_ssize_t i
    for i in range(n):
        chosen[i] = offsets[listed[i]]
    if width == 4:
        for i in range(n):
            memcpy(packed + 4 * i, updates + 4 * listed[i], 4)
    elif width == 8:
        for i in range(n):
            memcpy(packed + 8 * i, updates + 8 * listed[i], 8)
    else:
        for i in range(n):
            copy_bytes(packed + width * i, updates + width * listed[i], width)
    apply_plain(op, code, to, &chosen[0], &packed[0], n, width)


cdef inline int64_t reduce_by_row(
    const Updates* u, uint8_t* to, const Walk* walk, Cursor* at, int64_t t, int64_t most
) noexcept nogil:
    """Reduce up to `most` updates from t on by stored row index, up to one out of bounds.

    Returns how many: 0 if all have the same index, for which `one_element` is faster.
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
    cdef Turn turn = Turn(u.op == 0, False, 0)
    cdef Means m
    if u.op == MARK:
        apply_block(u, to, &zero, update, 1, width)
        return
    if u.counts.has_totals:
        turn = next_turn(&u.counts, to)
        turn.first &= u.counts.copies_first
    elif u.counts.data:
        turn.first = count_slice(&u.counts, to)
    if turn.first:
        memcpy(to, update, width)
    elif u.op:
        reduce_rows(u.code, u.op, &r)
    if turn.last:    # still in cache
        counts = u.counts
        counts.data = <uint8_t*> &turn.total
        m = Means(counts, to, 1, 1, u.means, not counts.copies_first)
        means_part(&m, 0)
