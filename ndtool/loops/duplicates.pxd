# cython: language_level=3, wraparound=False, cdivision=True
# Duplicates: index tuples that select the same row, found with one bit per row. A search considers
# rows [low, low + size), so that several searches suffice if memory has fewer bits than rows.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ndtool.loops.blocks cimport BLOCK, Cursor, Walk, block_size, offsets_from, seek
from ndtool.loops.memory cimport prefetch

cdef enum:
    OUTSIDE = -2         # instead of a tuple: an index is out of bounds


cdef struct Duplicate:
    int64_t at           # the tuple, -1 if there is none
    int64_t row


cdef struct RowBits:
    int64_t low, size
    uint8_t* bits        # NULL to find the first tuple that selects any of the rows


cdef inline Duplicate first_duplicate(
    const Walk* walk, int64_t count, const RowBits* rows
) noexcept nogil:
    """Return the first of count tuples that selects a row whose bit is set; set other bits."""
    cdef int64_t selected[BLOCK]
    cdef Duplicate found = Duplicate(-1, 0)
    cdef Cursor at
    cdef int64_t t = 0, n, i
    cdef uint64_t row
    cdef uint8_t bit
    seek(&at, walk, 0)
    while t < count:
        n = min(block_size(walk.nd), count - t)
        if offsets_from(&at, walk, t, n, selected):
            return Duplicate(OUTSIDE, 0)
        if rows.bits:
            for i in range(n):
                if <uint64_t> (selected[i] - rows.low) < <uint64_t> rows.size:
                    prefetch(rows.bits + ((selected[i] - rows.low) >> 3))
        for i in range(n):
            row = <uint64_t> (selected[i] - rows.low)
            if row >= <uint64_t> rows.size:    # not considered by this search, or dropped
                continue
            bit = <uint8_t> (1 << (row & 7))
            if rows.bits == NULL or rows.bits[row >> 3] & bit:
                return Duplicate(t + i, selected[i])
            rows.bits[row >> 3] |= bit
        t += n
    return found
