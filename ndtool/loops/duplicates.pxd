# cython: language_level=3, wraparound=False, cdivision=True
# Duplicates: tuples that select the same row, found by a bit per row.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ndtool.loops.blocks cimport BLOCK, Cursor, Walk, block_size, offsets_from, seek
from ndtool.loops.memory cimport prefetch

cdef enum:
    OUTSIDE = -2         # instead of a tuple: an index is out of bounds


cdef struct Repeated:
    int64_t at     # the tuple, -1 if there is none
    int64_t row


cdef struct Rows:
    # the rows [low, low + size) that are looked at, a bit for each; or the one row that is sought
    int64_t low
    int64_t size
    uint8_t* bits


cdef inline Repeated first_repeated(const Walk* walk, int64_t count, const Rows* rows) noexcept nogil:
    """Return the first tuple that selects a row whose bit is set, and set the bits of others.

    Without bits, return the first tuple that selects a row.
    """
    cdef int64_t selected[BLOCK]
    cdef Repeated found
    cdef Cursor at
    cdef int64_t t = 0, n, i
    cdef uint64_t row
    cdef uint8_t bit
    found.at, found.row = -1, 0
    seek(&at, walk, 0)
    while t < count:
        n = min(block_size(walk.nd), count - t)
        if offsets_from(&at, walk, t, n, selected):
            found.at = OUTSIDE
            return found
        if rows.bits:
            for i in range(n):
                if <uint64_t> (selected[i] - rows.low) < <uint64_t> rows.size:
                    prefetch(rows.bits + ((selected[i] - rows.low) >> 3))
        for i in range(n):
            row = <uint64_t> (selected[i] - rows.low)
            if row >= <uint64_t> rows.size:    # of another pass, or dropped
                continue
            bit = <uint8_t> (1 << (row & 7))
            if rows.bits == NULL or rows.bits[row >> 3] & bit:
                found.at, found.row = walk.first + t + i, selected[i]
                return found
            rows.bits[row >> 3] |= bit
        t += n
    return found
