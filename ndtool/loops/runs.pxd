# cython: language_level=3, wraparound=False, cdivision=True
# Runs: walks over a range of index tuples that change the run of bytes each one names.
#
# A struct holds what one call is about; `..._part` is one of the parts that a team shares out, and
# `..._range` the walk over some of its tuples. Tuples are numbered from the walk's first one.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from ndtool.loops.blocks cimport (
    BLOCK, LINE, NOWHERE, SHORT, Cursor, Nd, Walk, ask_next_batch, block_of, by_number, column_of,
    next_batch, offsets_from, seek,
)
from ndtool.loops.memory cimport (
    AHEAD, prefetch, prefetch_lines, prefetch_run, stream, stream_end, write_window,
)
from ndtool.loops.moves cimport scatter_block
from ndtool.loops.reductions cimport Reduced, reduce_block, reduce_elements, reduce_rows

cdef enum:
    TURN = 32            # short updates that are applied between asking for some more
    BIN = 8              # numbers in a line, into which short updates are dropped


cdef inline Py_ssize_t kept(
    int64_t* offsets, int64_t* numbers, Py_ssize_t n, int64_t first, int64_t owner, int64_t owners
) noexcept nogil:
    """Keep those of n offsets whose bytes `owner` changes; return how many.

    With the numbers of their tuples, of which the first one's is `first`.
    """
    cdef Py_ssize_t i, n_kept = 0
    cdef uint64_t mixed
    cdef bint mine
    for i in range(n):
        mixed = <uint64_t> offsets[i] * <uint64_t> 0x9E3779B97F4A7C15 >> 32
        offsets[n_kept] = offsets[i]
        numbers[n_kept] = first + i
        mine = <int64_t> (mixed * <uint64_t> owners >> 32) == owner
        n_kept += mine & (offsets[n_kept] != NOWHERE)
    return n_kept


cdef struct Updates:
    # what is done with the runs that a walk names
    const uint8_t* first      # that of the walk's first tuple
    Py_ssize_t pitch          # bytes from one to the next
    int code, op              # of the arithmetic type and the reduction; 0 for none, which copies


cdef inline int64_t bin_of(const int64_t* bin, const uint8_t* to, Py_ssize_t width) noexcept nogil:
    """Return the offset from `to` of a bin of a line, where short updates are dropped."""
    return <const uint8_t*> bin - to if width <= LINE else NOWHERE


cdef enum:                    # how threads share a scatter
    BY_COLUMNS = 0
    BY_RUNS = 1               # every thread goes through all tuples and changes the runs it owns
    BY_BATCHES = 2            # whose destinations are disjoint
    BY_COPIES = 3             # each changes a copy of its own with a share of the tuples


cdef struct Scatter:
    Walk walk
    Updates updates
    uint8_t* to               # the first byte to change of the run at offset 0
    int64_t count, parts
    Py_ssize_t width          # bytes to change of each run
    Py_ssize_t copy           # bytes from one copy to the next
    int sharing
    bint streamed


cdef inline uint64_t scatter_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const Scatter* s = <const Scatter*> call
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
    if s.sharing == BY_RUNS:
        return scatter_range(s, s.to, 0, s.count, 0, s.width, part, s.parts)
    return scatter_range(
        s, s.to, 0, s.count, column_of(part, s.parts, s.width),
        column_of(part + 1, s.parts, s.width), 0, 1,
    )


cdef inline uint64_t scatter_range(
    const Scatter* s, uint8_t* to, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end,
    int64_t owner, int64_t owners,
) noexcept nogil:
    """Change bytes [column, end) of the runs of tuples [t, stop) that `owner` changes."""
    cdef Py_ssize_t width = end - column
    if width == 0:
        return 0
    if width == s.updates.pitch <= LINE:
        return scatter_short(s, to, t, stop)
    return scatter_rows(s, to + column, t, stop, column, width, owner, owners)


cdef inline uint64_t scatter_short(
    const Scatter* s, uint8_t* to, int64_t t, int64_t stop
) noexcept nogil:
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t bin[BIN]
    cdef const Nd* nd = s.walk.nd
    cdef Walk walk = s.walk
    cdef Cursor at
    cdef Py_ssize_t width = s.updates.pitch
    cdef int64_t n, done, known = 0, step = min(block_of(nd), SHORT)
    cdef bint plain = s.updates.op and nd.near and by_number(&walk, width)
    memset(bin, 0, LINE)
    walk.elsewhere = bin_of(bin, to, width)
    seek(&at, &walk, t)
    while t < stop:
        n = min(step, stop - t)
        done = reduce_plainly(&s.updates, to, &walk, &at, t, min(BLOCK, stop - t)) if plain else 0
        if done:
            t += done
            continue
        if not known and offsets_from(&at, &walk, t, n, offsets):
            return 1
        known = 0 if nd.near else min(step, stop - t - n)
        if known and offsets_from(&at, &walk, t + n, known, offsets + n):
            return 1
        apply_short(&s.updates, to, offsets, s.updates.first + t * width, n, known)
        memcpy(offsets, offsets + n, known * 8)
        t += n
    return 0


cdef inline uint64_t scatter_rows(
    const Scatter* s, uint8_t* to, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t width,
    int64_t owner, int64_t owners,
) noexcept nogil:
    """Apply long updates, with those of two blocks at hand: some to ask for."""
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t numbers[2 * BLOCK]
    cdef Cursor at
    cdef Py_ssize_t n = 0, more
    cdef int64_t take
    seek(&at, &s.walk, t)
    while n or t < stop:
        take = min(block_of(s.walk.nd), stop - t)
        if take and offsets_from(&at, &s.walk, t, take, offsets + n):
            return 1
        more = kept(offsets + n, numbers + n, take, t, owner, owners)
        apply_rows(
            &s.updates, to, offsets, s.updates.first + column, numbers, n, more, width, s.streamed
        )
        memcpy(offsets, offsets + n, more * 8)
        memcpy(numbers, numbers + n, more * 8)
        n = more
        t += take
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
        prefetch_lines(updates + i * width + AHEAD, take * width)
        for j in range(n + i, min(n + i + take, n + more)):
            prefetch(to + offsets[j])
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
    cdef int64_t bin[BIN]
    cdef Walk walk = s.walk
    cdef Cursor at
    cdef Py_ssize_t width = s.updates.pitch
    cdef int64_t t = s.batches * part // s.parts * nd.per_batch
    cdef int64_t stop = s.batches * (part + 1) // s.parts * nd.per_batch
    cdef int64_t take, done, end, base
    cdef bint plain = s.updates.op and by_number(&s.walk, width)
    cdef double share = nd.reach / <double> nd.per_batch
    memset(bin, 0, LINE)
    walk.elsewhere = bin_of(bin, window, width)
    seek(&at, &walk, t)
    while t < stop:
        base, at.base = at.base, 0
        memcpy(window, s.data + base, s.line)
        end = t + nd.per_batch
        while t < end:
            take = min(SHORT, end - t)
            ask_next_batch(&at, nd, s.data + base, take, share)
            done = reduce_plainly(&s.updates, window, &walk, &at, t, take) if plain else 0
            if done:
                t += done
                continue
            if offsets_from(&at, &walk, t, take, offsets):
                return 1
            apply_short(&s.updates, window, offsets, s.updates.first + t * width, take, 0)
            t += take
        write_window(s.to + base, window, s.line, s.streamed)
        at.base = base
        next_batch(&at, nd)
    return 0


cdef inline void apply_rows(
    const Updates* u, uint8_t* to, const int64_t* offsets, const uint8_t* updates,
    const int64_t* numbers, Py_ssize_t n, Py_ssize_t more, Py_ssize_t width, bint streamed,
) noexcept nogil:
    """Apply n long updates, found by their numbers, asking for the next ones and for `more`."""
    cdef Py_ssize_t i, ahead = max(1, AHEAD // 2 // width), pitch = u.pitch
    cdef Reduced r = Reduced(to, offsets, updates, n, width, numbers, pitch, more, NULL, 0, 0)
    if u.op:
        reduce_rows(u.code, u.op, &r)
        return
    for i in range(n):
        if i + ahead < n + more:
            prefetch_run(updates + numbers[i + ahead] * pitch, width)
            if not streamed:  # else whole lines are overwritten without being read
                prefetch_run(to + offsets[i + ahead], width)
        if streamed:
            stream(to + offsets[i], updates + numbers[i] * pitch, width)
        else:
            memcpy(to + offsets[i], updates + numbers[i] * pitch, width)


cdef inline void apply_block(
    const Updates* u, uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n,
    Py_ssize_t width,
) noexcept nogil:
    """Apply n <= BLOCK short updates."""
    cdef Reduced r = Reduced(to, offsets, updates, n, width, NULL, width, 0, NULL, 0, 0)
    if u.op:
        reduce_block(u.code, u.op, &r, False)
    else:
        scatter_block(to, offsets, updates, n, width)


cdef inline int64_t reduce_plainly(
    const Updates* u, uint8_t* to, const Walk* walk, Cursor* at, int64_t t, int64_t most
) noexcept nogil:
    """Reduce up to `most` updates from t on, as far as they name elements by plain numbers.

    Returns how many. Those that all name one are left to others, which keep it in a register.
    """
    cdef const uint8_t* numbers = walk.index + t * walk.entry
    cdef const uint8_t* updates = u.first + t * u.pitch
    cdef int bytes_each = walk.entry
    cdef Reduced r
    cdef int64_t n, done
    if at.left == 0:
        next_batch(at, walk.nd)
    n = min(most, at.left)
    if memcmp(numbers, numbers + (n - 1) * bytes_each, bytes_each) == 0:
        return 0
    r = Reduced(
        to + at.base, NULL, updates, n, u.pitch, NULL, 0, 0, numbers, bytes_each, walk.nd.sizes[0]
    )
    done = reduce_elements(u.code, u.op, &r)
    at.left -= done
    return done


cdef inline void apply_row(
    const Updates* u, uint8_t* to, const uint8_t* update, Py_ssize_t width
) noexcept nogil:
    """Apply one long update."""
    cdef int64_t here = 0
    cdef Reduced r = Reduced(to, &here, update, 1, width, NULL, width, 0, NULL, 0, 0)
    if u.op:
        reduce_rows(u.code, u.op, &r)
    else:
        memcpy(to, update, width)
