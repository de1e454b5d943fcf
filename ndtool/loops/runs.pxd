# cython: language_level=3, wraparound=False, cdivision=True
# Runs: walks over a range of index tuples that copy or reduce the run of bytes each one names.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.arithmetic cimport reduce_block, reduce_row
from ndtool.loops.blocks cimport (
    BLOCK, ENTRIES, LINE, SHORT, Cursor, Nd, block_of, gather_block, next_batch, next_offsets,
    outside, scatter_block, seek, widened,
)
from ndtool.loops.memory cimport (
    AHEAD, prefetch, prefetch_lines, prefetch_soon, stream, stream_end, touch, write_window,
)
from ndtool.loops.views cimport View, copy_view

cdef enum:
    TURN = 32            # short updates that are applied between asking for some more


cdef inline uint64_t check_range(
    const Nd* nd, const uint8_t* index, int kind, int64_t t, int64_t stop
) noexcept nogil:
    cdef int64_t entries[ENTRIES]
    cdef uint64_t wraps[ENTRIES]
    cdef uint64_t limits[ENTRIES]
    cdef const uint8_t* stored
    cdef uint64_t bad = 0
    cdef int64_t i, end = stop * nd.k, take, at = t * nd.k, step = ENTRIES // max(nd.k, 1) * nd.k
    for i in range(min(step, end - at)):
        wraps[i] = <uint64_t> nd.wraps[i % nd.k]
        limits[i] = <uint64_t> nd.sizes[i % nd.k] + wraps[i]
    while at < end:
        take = min(step, end - at)
        stored = index + at * (kind & 15)
        bad |= outside(
            widened(stored, kind, take, entries), take, wraps, limits, stored, kind & 15
        )
        at += take
    return bad


cdef extern from *:
    """
    #if defined(__unix__) || defined(__APPLE__)
      #include <sys/mman.h>
      #include <unistd.h>
      /* asks for the pages of a mapped file without waiting for them */
      static inline void ndtool_will_need(uint8_t const *from, Py_ssize_t n) {
          uintptr_t page = (uintptr_t) sysconf(_SC_PAGESIZE);
          uintptr_t begin = (uintptr_t) from & ~(page - 1);
          (void) madvise((void *) begin, (uintptr_t) from + (uintptr_t) n - begin, MADV_WILLNEED);
      }
    #else
      #define ndtool_will_need(from, n) ((void) (from))
    #endif
    """
    void ask_for "ndtool_will_need"(const uint8_t* source, Py_ssize_t n) noexcept nogil


cdef inline void will_need_range(
    const Nd* nd, const uint8_t* source, const uint8_t* index, int kind, int64_t first,
    int64_t count, Py_ssize_t width
) noexcept nogil:
    """Ask the system for every run, until an index is out of bounds."""
    cdef int64_t offsets[BLOCK]
    cdef int64_t t = 0, take, i
    cdef Cursor at
    seek(&at, nd, first)
    while t < count:
        take = min(block_of(nd), count - t)
        if next_offsets(&at, nd, index + t * nd.k * (kind & 15), kind, take, offsets):
            return
        for i in range(take):
            ask_for(source + offsets[i], width)
        t += take


cdef inline uint64_t gather_range(
    const Nd* nd, const uint8_t* source, const uint8_t* index, int kind, uint8_t* to,
    int64_t first, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end, Py_ssize_t pitch,
    bint streamed,
) noexcept nogil:
    """Copy bytes [column, end) of runs, with the offsets of two blocks at hand: one to ask for."""
    cdef int64_t offsets[2 * BLOCK]
    cdef uint8_t stage[SHORT * LINE]
    cdef uint8_t* block
    cdef Cursor at
    cdef Py_ssize_t width = end - column
    cdef bint small = width == pitch <= LINE
    cdef int64_t n, known = 0, step = min(block_of(nd), SHORT) if small else block_of(nd)
    cdef double share = nd.reach / <double> nd.per_batch
    seek(&at, nd, first + t)
    if nd.near and nd.batch_rank:
        touch(source + at.base + nd.lowest, nd.reach)
    while t < stop:
        n = min(step, stop - t)
        if not known:
            ask_next_batch(&at, nd, source, n, share)
            if offsets_from(&at, nd, index, kind, t, n, offsets):
                return 1
        known = 0 if nd.near else min(step, stop - t - n)
        if known and offsets_from(&at, nd, index, kind, t + n, known, offsets + n):
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
    Cursor* at, const Nd* nd, const uint8_t* index, int kind, int64_t t, int64_t n,
    int64_t* offsets
) noexcept nogil:
    """Turn tuples t.. of a walk into offsets, and ask for the indices that follow."""
    cdef Py_ssize_t entry = nd.k * (kind & 15)
    prefetch_lines(index + (t + n) * entry, n * entry)
    return next_offsets(at, nd, index + t * entry, kind, n, offsets)


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


cdef inline uint64_t gather_views(
    const Nd* nd, const View* run, const uint8_t* source, const uint8_t* index, int kind,
    uint8_t* to, int64_t first, int64_t t, int64_t stop, int64_t element, int64_t elements
) noexcept nogil:
    cdef int64_t offsets[BLOCK]
    cdef Cursor at
    cdef int64_t i, take
    seek(&at, nd, first + t)
    while t < stop:
        take = min(block_of(nd), stop - t)
        if next_offsets(&at, nd, index + t * nd.k * (kind & 15), kind, take, offsets):
            return 1
        for i in range(take):
            if run.rank == 1 and i + 2 < take:
                prefetch_line(source + offsets[i + 2], run.strides[0], min(elements, LINE))
            copy_view(
                to + (t + i) * elements * run.item, source + offsets[i], run, element, elements
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


cdef inline uint64_t scatter_range(
    const Nd* nd, uint8_t* to, const uint8_t* index, int kind, const uint8_t* updates,
    int64_t first, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end, Py_ssize_t pitch,
    int code, int op, int64_t owner, int64_t owners, bint streamed,
) noexcept nogil:
    cdef int64_t offsets[2 * BLOCK]
    cdef int64_t numbers[BLOCK]
    cdef Cursor at
    cdef Py_ssize_t width = end - column
    cdef bint small = width == pitch <= LINE
    cdef int64_t n, known = 0, step = min(block_of(nd), SHORT) if small else block_of(nd)
    if width == 0:
        return 0
    seek(&at, nd, first + t)
    while t < stop:
        n = min(step, stop - t)
        if not known and offsets_from(&at, nd, index, kind, t, n, offsets):
            return 1
        known = 0 if nd.near or not small else min(step, stop - t - n)
        if known and offsets_from(&at, nd, index, kind, t + n, known, offsets + n):
            return 1
        if small:
            apply_short(to, offsets, updates + t * pitch, n, known, width, code, op)
        else:
            apply_rows(
                to + column, offsets, updates + t * pitch + column, numbers,
                kept(offsets, numbers, n, owner, owners), width, pitch, code, op, streamed,
            )
        memcpy(offsets, offsets + n, known * 8)
        t += n
    if streamed:
        stream_end()
    return 0


cdef inline void apply_short(
    uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n, Py_ssize_t more,
    Py_ssize_t width, int code, int op,
) noexcept nogil:
    """Apply n short updates, and ask in turn for `more` destinations and updates that follow."""
    cdef Py_ssize_t i = 0, j, take, turn = TURN if more else n
    while i < n:
        take = min(turn, n - i)
        prefetch_lines(updates + (n + i) * width, take * width)
        for j in range(n + i, min(n + i + take, n + more)):
            prefetch_soon(to + offsets[j])
        apply_block(to, offsets + i, updates + i * width, take, width, code, op)
        i += take


cdef inline uint64_t scatter_lines_range(
    const Nd* nd, const uint8_t* data, Py_ssize_t line, uint8_t* window, uint8_t* to,
    const uint8_t* index, int kind, const uint8_t* updates, int64_t first, int64_t t,
    int64_t stop, Py_ssize_t width, int code, int op, bint streamed,
) noexcept nogil:
    """Copy the bytes that a batch can name to the window, change them there, write them once."""
    cdef int64_t offsets[BLOCK]
    cdef Cursor at
    cdef int64_t take, end, base
    cdef double share = nd.reach / <double> nd.per_batch
    seek(&at, nd, first + t)
    while t < stop:
        base, at.base = at.base, 0
        memcpy(window, data + base, line)
        end = t + nd.per_batch
        while t < end:
            take = min(SHORT, end - t)
            ask_next_batch(&at, nd, data + base, take, share)
            if offsets_from(&at, nd, index, kind, t, take, offsets):
                return 1
            apply_short(window, offsets, updates + t * width, take, 0, width, code, op)
            t += take
        write_window(to + base, window, line, streamed)
        at.base = base
        next_batch(&at, nd)
    return 0


cdef inline void apply_rows(
    uint8_t* to, const int64_t* offsets, const uint8_t* updates, const int64_t* numbers,
    Py_ssize_t n, Py_ssize_t width, Py_ssize_t pitch, int code, int op, bint streamed,
) noexcept nogil:
    """Apply n long updates, found by their numbers, asking for the next ones ahead of time."""
    cdef Py_ssize_t i, ahead = max(1, AHEAD // 2 // width)
    for i in range(n):
        if streamed:  # whole lines, overwritten without being read
            stream(to + offsets[i], updates + numbers[i] * pitch, width)
            continue
        if i + ahead < n:
            prefetch_run(to + offsets[i + ahead], width)
            prefetch_run(updates + numbers[i + ahead] * pitch, width)
        apply_row(to + offsets[i], updates + numbers[i] * pitch, width, code, op)


cdef inline void apply_block(
    uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n, Py_ssize_t width,
    int code, int op,
) noexcept nogil:
    if op:
        reduce_block(code, op, to, offsets, updates, n, width)
    else:
        scatter_block(to, offsets, updates, n, width)


cdef inline void apply_row(
    uint8_t* to, const uint8_t* update, Py_ssize_t width, int code, int op
) noexcept nogil:
    if op:
        reduce_row(code, op, to, update, width)
    else:
        memcpy(to, update, width)
