# cython: language_level=3, wraparound=False, cdivision=True
# Runs: walks over a range of index tuples that copy or reduce the run of bytes each one names.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool._arithmetic cimport reduce_block
from ndtool._blocks cimport (
    AHEAD, BLOCK, LINE, Cursor, Nd, block_of, gather_block, next_batch, next_offsets,
    scatter_block, seek,
)
from ndtool._memory cimport prefetch, prefetch_lines, stream, stream_end, touch, write_window
from ndtool._views cimport View, copy_view

cdef enum:
    STAGE = 16384        # bytes that a gather of small runs collects before it streams them


cdef inline uint64_t check_range(
    const Nd* nd, const uint8_t* index, int kind, int64_t t, int64_t stop
) noexcept nogil:
    cdef int64_t offsets[BLOCK]
    cdef inline uint64_t bad = 0
    cdef int64_t take
    cdef Cursor at
    seek(&at, nd, t)
    while t < stop:
        take = min(block_of(nd), stop - t)
        bad |= next_offsets(&at, nd, index + t * nd.k * (kind & 15), kind, take, offsets)
        t += take
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
    cdef int64_t offsets[BLOCK]
    cdef uint8_t stage[STAGE]
    cdef Cursor at
    cdef Py_ssize_t width = end - column
    cdef int64_t take, step = block_of(nd)
    cdef bint small = width == pitch <= LINE
    if small:
        step = min(step, STAGE // width)
    seek(&at, nd, first + t)
    while t < stop:
        take = min(step, stop - t)
        if nd.near and nd.batch_rank:
            if at.left == 0:
                next_batch(&at, nd)
            if at.left == nd.per_batch:
                touch(source + at.base + nd.lowest, nd.reach)
            take = min(take, at.left)
        if next_offsets(&at, nd, index + t * nd.k * (kind & 15), kind, take, offsets):
            return 1
        if not small:
            gather_rows(
                to + t * pitch + column, source + column, offsets, take, width, pitch, streamed
            )
        elif streamed:
            gather_block(stage, source, offsets, take, width, nd.near)
            stream(to + t * pitch, stage, take * width)
        else:
            gather_block(to + t * pitch, source, offsets, take, width, nd.near)
        t += take
    if streamed:
        stream_end()
    return 0


cdef inline void gather_rows(
    uint8_t* to, const uint8_t* source, const int64_t* offsets, Py_ssize_t n, Py_ssize_t width,
    Py_ssize_t pitch, bint streamed,
) noexcept nogil:
    """Copy n runs longer than a cache line, asking for the next ones ahead of time."""
    cdef Py_ssize_t i, ahead = max(1, AHEAD // width)
    for i in range(n):
        if i + ahead < n:
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
    cdef int64_t offsets[BLOCK]
    cdef int64_t numbers[BLOCK]
    cdef Cursor at
    cdef Py_ssize_t i, width = end - column
    cdef int64_t take, step = block_of(nd)
    if width == 0:
        return 0
    seek(&at, nd, first + t)
    while t < stop:
        take = min(step, stop - t)
        if next_offsets(&at, nd, index + t * nd.k * (kind & 15), kind, take, offsets):
            return 1
        if width == pitch and width <= LINE:
            if not nd.near:
                for i in range(take):
                    prefetch(to + offsets[i])
            prefetch_lines(updates + (t + take) * pitch, take * width)
            apply_block(to, offsets, updates + t * pitch, take, width, code, op)
        else:
            apply_rows(
                to + column, offsets, updates + t * pitch + column, numbers,
                kept(offsets, numbers, take, owner, owners), width, pitch, code, op, streamed,
            )
        t += take
    if streamed:
        stream_end()
    return 0


cdef inline uint64_t scatter_lines_range(
    const Nd* nd, const uint8_t* data, Py_ssize_t line, uint8_t* window, uint8_t* to,
    const uint8_t* index, int kind, const uint8_t* updates, int64_t first, int64_t t,
    int64_t stop, Py_ssize_t width, int code, int op, bint streamed,
) noexcept nogil:
    """Copy the bytes that a batch can name to the window, change them there, write them once."""
    cdef int64_t offsets[BLOCK]
    cdef Cursor at, within
    cdef int64_t take, end
    seek(&at, nd, first + t)
    while t < stop:
        within = at
        within.base = 0
        memcpy(window, data + at.base, line)
        end = t + nd.per_batch
        while t < end:
            take = min(BLOCK, end - t)
            if next_offsets(&within, nd, index + t * (kind & 15), kind, take, offsets):
                return 1
            prefetch_lines(updates + (t + take) * width, take * width)
            apply_block(window, offsets, updates + t * width, take, width, code, op)
            t += take
        write_window(to + at.base, window, line, streamed)
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
        apply_block(to, offsets + i, updates + numbers[i] * pitch, 1, width, code, op)


cdef inline void apply_block(
    uint8_t* to, const int64_t* offsets, const uint8_t* updates, Py_ssize_t n, Py_ssize_t width,
    int code, int op,
) noexcept nogil:
    if op:
        reduce_block(code, op, to, offsets, updates, n, width)
    else:
        scatter_block(to, offsets, updates, n, width)
