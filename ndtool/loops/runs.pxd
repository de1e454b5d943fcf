# cython: language_level=3, wraparound=False, cdivision=True
# Runs: walks over a range of index tuples that copy or reduce the run of bytes each one names.
#
# A struct holds what one call is about; `..._part` is one of the parts that a team shares out, and
# `..._range` the walk over some of its tuples. Tuples are numbered from the walk's first one.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.arithmetic cimport reduce_block, reduce_row
from ndtool.loops.blocks cimport (
    BLOCK, BYTES, ENTRIES, LINE, SHORT, Cursor, Nd, Walk, block_of, column_of, gather_block,
    next_batch, next_offsets, outside, scatter_block, seek, widened,
)
from ndtool.loops.memory cimport (
    AHEAD, prefetch, prefetch_lines, prefetch_soon, stream, stream_end, touch, write_window,
)
from ndtool.loops.views cimport View, copy_view

cdef enum:
    TURN = 32            # short updates that are applied between asking for some more


cdef struct Check:
    Walk walk
    int64_t count, parts


cdef inline uint64_t check_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const Check* c = <const Check*> call
    return check_range(
        &c.walk, c.count * part // c.parts, c.count * (part + 1) // c.parts
    )


cdef inline uint64_t check_range(const Walk* walk, int64_t t, int64_t stop) noexcept nogil:
    cdef int64_t entries[ENTRIES]
    cdef uint64_t wraps[ENTRIES]
    cdef uint64_t limits[ENTRIES]
    cdef const Nd* nd = walk.nd
    cdef const uint8_t* stored
    cdef uint64_t bad = 0
    cdef int bytes_each = walk.kind & BYTES
    cdef int64_t i, end = stop * nd.k, take, at = t * nd.k, step = ENTRIES // max(nd.k, 1) * nd.k
    for i in range(min(step, end - at)):
        wraps[i] = <uint64_t> nd.wraps[i % nd.k]
        limits[i] = <uint64_t> nd.sizes[i % nd.k] + wraps[i]
    while at < end:
        take = min(step, end - at)
        stored = walk.index + at * bytes_each
        bad |= outside(
            widened(stored, walk.kind, take, entries), take, wraps, limits, stored, bytes_each
        )
        at += take
    return bad


cdef struct Gather:
    Walk walk
    const uint8_t* source     # the first wanted byte of the run at offset 0
    uint8_t* to               # `width` bytes a tuple, side by side
    int64_t count, parts
    Py_ssize_t width
    bint by_columns, streamed


cdef inline uint64_t gather_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const Gather* g = <const Gather*> call
    if g.by_columns:
        return gather_range(
            g, 0, g.count, column_of(part, g.parts, g.width),
            column_of(part + 1, g.parts, g.width),
        )
    return gather_range(
        g, g.count * part // g.parts, g.count * (part + 1) // g.parts, 0, g.width
    )


cdef inline uint64_t gather_range(
    const Gather* g, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end
) noexcept nogil:
    """Copy bytes [column, end) of runs, with the offsets of two blocks at hand: one to ask for."""
    cdef int64_t offsets[2 * BLOCK]
    cdef uint8_t stage[SHORT * LINE]
    cdef const Nd* nd = g.walk.nd
    cdef const uint8_t* source = g.source
    cdef uint8_t* to = g.to
    cdef uint8_t* block
    cdef Cursor at
    cdef Py_ssize_t pitch = g.width, width = end - column
    cdef bint small = width == pitch <= LINE, streamed = g.streamed
    cdef int64_t n, known = 0, step = min(block_of(nd), SHORT) if small else block_of(nd)
    cdef double share = nd.reach / <double> nd.per_batch
    seek(&at, &g.walk, t)
    if nd.near and nd.batch_rank:
        touch(source + at.base + nd.lowest, nd.reach)
    while t < stop:
        n = min(step, stop - t)
        if not known:
            ask_next_batch(&at, nd, source, n, share)
            if offsets_from(&at, &g.walk, t, n, offsets):
                return 1
        known = 0 if nd.near else min(step, stop - t - n)
        if known and offsets_from(&at, &g.walk, t + n, known, offsets + n):
            return 1
        if not small:
            gather_rows(
                to + t * pitch + column, source + column, offsets, n, known, width, pitch, streamed
            )
        else:
            block = &stage[0] if streamed else to + t * pitch
            gather_block(block, source, offsets, n, width, n if known == n else 0)
            if streamed:
                stream(to + t * pitch, stage, n * width)
        memcpy(offsets, offsets + n, known * 8)
        t += n
    if streamed:
        stream_end()
    return 0


cdef inline uint64_t offsets_from(
    Cursor* at, const Walk* walk, int64_t t, int64_t n, int64_t* offsets
) noexcept nogil:
    """Turn tuples t.. of a walk into offsets, and ask for the indices that follow."""
    prefetch_lines(walk.index + (t + n) * walk.entry, n * walk.entry)
    return next_offsets(at, walk, t, n, offsets)


cdef inline void ask_next_batch(
    const Cursor* at, const Nd* nd, const uint8_t* source, int64_t take, double share
) noexcept nogil:
    """Ask for `share` bytes of what the next batch can name for each of `take` tuples of this."""
    cdef int64_t done = nd.per_batch - at.left
    if nd.near and nd.batch_rank:
        source += at.base + nd.batch_strides[nd.batch_rank - 1] + nd.lowest
        prefetch_lines(source + <int64_t> (share * done), <int64_t> (share * take))


cdef inline void gather_rows(
    uint8_t* to, const uint8_t* source, const int64_t* offsets, Py_ssize_t n, Py_ssize_t more,
    Py_ssize_t width, Py_ssize_t pitch, bint streamed,
) noexcept nogil:
    """Copy n runs longer than a cache line, asking for the next ones, `more` of the next block."""
    cdef Py_ssize_t i, ahead = max(1, AHEAD // width)
    for i in range(n):
        if i + ahead < n + more:
            prefetch_run(source + offsets[i + ahead], width)
        if streamed:
            stream(to + i * pitch, source + offsets[i], width)
        else:
            memcpy(to + i * pitch, source + offsets[i], width)


cdef inline void prefetch_line(
    const uint8_t* source, int64_t stride, int64_t elements
) noexcept nogil:
    """Ask for the first elements of a run that lie apart."""
    cdef int64_t i
    for i in range(elements):
        prefetch(source + i * stride)


cdef struct GatherViews:
    # a gather of runs whose elements lie apart
    Walk walk
    const View* run
    const uint8_t* source
    uint8_t* to
    int64_t count, parts
    int64_t element, elements     # those that are wanted of each run


cdef inline uint64_t gather_views_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const GatherViews* g = <const GatherViews*> call
    cdef const View* run = g.run
    cdef int64_t offsets[BLOCK]
    cdef Cursor at
    cdef int64_t t = g.count * part // g.parts, stop = g.count * (part + 1) // g.parts, i, take
    cdef Py_ssize_t pitch = g.elements * run.item
    seek(&at, &g.walk, t)
    while t < stop:
        take = min(block_of(g.walk.nd), stop - t)
        if next_offsets(&at, &g.walk, t, take, offsets):
            return 1
        for i in range(take):
            if run.rank == 1 and i + 2 < take:
                prefetch_line(g.source + offsets[i + 2], run.strides[0], min(g.elements, LINE))
            copy_view(
                g.to + (t + i) * pitch, g.source + offsets[i], run, g.element, g.elements
            )
        t += take
    return 0


cdef inline void prefetch_run(const uint8_t* run, Py_ssize_t width) noexcept nogil:
    cdef Py_ssize_t line
    for line in range(0, min(width, AHEAD // 8), 64):
        prefetch(run + line)


cdef inline Py_ssize_t kept(
    int64_t* offsets, int64_t* numbers, Py_ssize_t n, int64_t owner, int64_t owners
) noexcept nogil:
    """Keep those of n offsets whose bytes `owner` changes, with their numbers; return how many."""
    cdef Py_ssize_t i, n_kept = 0
    cdef uint64_t mixed
    for i in range(n):
        mixed = <uint64_t> offsets[i] * <uint64_t> 0x9E3779B97F4A7C15 >> 32
        offsets[n_kept] = offsets[i]
        numbers[n_kept] = i
        n_kept += <int64_t> (mixed * <uint64_t> owners >> 32) == owner
    return n_kept


cdef struct Updates:
    # what is done with the runs that a walk names
    const uint8_t* first      # that of the walk's first tuple
    Py_ssize_t pitch          # bytes from one to the next
    int code, op              # of the arithmetic type and the reduction; 0 for none, which copies


cdef enum:                    # how threads share a scatter
    BY_COLUMNS = 0
    BY_RUNS = 1               # every thread goes through all tuples and changes the runs it owns
    BY_BATCHES = 2            # whose destinations are disjoint


cdef struct Scatter:
    Walk walk
    Updates updates
    uint8_t* to               # the first byte to change of the run at offset 0
    int64_t count, parts
    Py_ssize_t width          # bytes to change of each run
    int sharing
    bint streamed


cdef inline uint64_t scatter_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const Scatter* s = <const Scatter*> call
    cdef int64_t per = s.walk.nd.per_batch, batches = s.count // per
    if s.sharing == BY_BATCHES:
        return scatter_range(
            s, batches * part // s.parts * per, batches * (part + 1) // s.parts * per,
            0, s.width, 0, 1,
        )
    if s.sharing == BY_RUNS:
        return scatter_range(s, 0, s.count, 0, s.width, part, s.parts)
    return scatter_range(
        s, 0, s.count, column_of(part, s.parts, s.width), column_of(part + 1, s.parts, s.width),
        0, 1,
    )


cdef inline uint64_t scatter_range(
    const Scatter* s, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end, int64_t owner,
    int64_t owners,
) noexcept nogil:
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t numbers[BLOCK]
    cdef const Nd* nd = s.walk.nd
    cdef const uint8_t* updates
    cdef uint8_t* to = s.to
    cdef Cursor at
    cdef Py_ssize_t pitch = s.updates.pitch, width = end - column
    cdef bint small = width == pitch <= LINE
    cdef int64_t n, known = 0, step = min(block_of(nd), SHORT) if small else block_of(nd)
    cdef Py_ssize_t n_kept
    if width == 0:
        return 0
    seek(&at, &s.walk, t)
    while t < stop:
        n = min(step, stop - t)
        if not known and offsets_from(&at, &s.walk, t, n, offsets):
            return 1
        known = 0 if nd.near or not small else min(step, stop - t - n)
        if known and offsets_from(&at, &s.walk, t + n, known, offsets + n):
            return 1
        updates = s.updates.first + t * pitch + column
        if small:
            apply_short(&s.updates, to, offsets, updates, n, known)
        else:
            n_kept = kept(offsets, numbers, n, owner, owners)
            apply_rows(
                &s.updates, to + column, offsets, updates, numbers, n_kept, width, s.streamed
            )
        memcpy(offsets, offsets + n, known * 8)
        t += n
    if s.streamed:
        stream_end()
    return 0


cdef inline void apply_short(
    const Updates* u, uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t more,
) noexcept nogil:
    """Apply n short updates, and ask in turn for `more` destinations and updates that follow."""
    cdef Py_ssize_t i = 0, j, take, turn = TURN if more else n, width = u.pitch
    while i < n:
        take = min(turn, n - i)
        prefetch_lines(updates + (n + i) * width, take * width)
        for j in range(n + i, min(n + i + take, n + more)):
            prefetch_soon(to + offsets[j])
        apply_block(u, to, offsets + i, updates + i * width, take, width)
        i += take


cdef struct Lines:
    # whole batches, each on the bytes that it can name: its line
    Walk walk
    Updates updates
    const uint8_t* data
    uint8_t* to
    uint8_t* windows          # one for each thread, as long as a line
    Py_ssize_t line
    int64_t batches, parts
    bint streamed


cdef inline uint64_t lines_part(const void* call, int64_t part, int thread) noexcept nogil:
    """Copy the bytes that a batch can name to the window, change them there, write them once."""
    cdef const Lines* s = <const Lines*> call
    cdef const Nd* nd = s.walk.nd
    cdef uint8_t* window = s.windows + thread * s.line
    cdef int64_t offsets[BLOCK]
    cdef Cursor at
    cdef Py_ssize_t width = s.updates.pitch
    cdef int64_t t = s.batches * part // s.parts * nd.per_batch
    cdef int64_t stop = s.batches * (part + 1) // s.parts * nd.per_batch
    cdef int64_t take, end, base
    cdef double share = nd.reach / <double> nd.per_batch
    seek(&at, &s.walk, t)
    while t < stop:
        base, at.base = at.base, 0
        memcpy(window, s.data + base, s.line)
        end = t + nd.per_batch
        while t < end:
            take = min(SHORT, end - t)
            ask_next_batch(&at, nd, s.data + base, take, share)
            if offsets_from(&at, &s.walk, t, take, offsets):
                return 1
            apply_short(&s.updates, window, offsets, s.updates.first + t * width, take, 0)
            t += take
        write_window(s.to + base, window, s.line, s.streamed)
        at.base = base
        next_batch(&at, nd)
    return 0


cdef inline void apply_rows(
    const Updates* u, uint8_t* to, const int64_t* offsets, const uint8_t* updates,
    const int64_t* numbers, Py_ssize_t n, Py_ssize_t width, bint streamed,
) noexcept nogil:
    """Apply n long updates, found by their numbers, asking for the next ones ahead of time."""
    cdef Py_ssize_t i, ahead = max(1, AHEAD // 2 // width), pitch = u.pitch
    for i in range(n):
        if streamed:  # whole lines, overwritten without being read
            stream(to + offsets[i], updates + numbers[i] * pitch, width)
            continue
        if i + ahead < n:
            prefetch_run(to + offsets[i + ahead], width)
            prefetch_run(updates + numbers[i + ahead] * pitch, width)
        apply_row(u, to + offsets[i], updates + numbers[i] * pitch, width)


cdef inline void apply_block(
    const Updates* u, uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    if u.op:
        reduce_block(u.code, u.op, to, offsets, updates, n, width)
    else:
        scatter_block(to, offsets, updates, n, width)


cdef inline void apply_row(
    const Updates* u, uint8_t* to, const uint8_t* update, Py_ssize_t width
) noexcept nogil:
    if u.op:
        reduce_row(u.code, u.op, to, update, width)
    else:
        memcpy(to, update, width)
