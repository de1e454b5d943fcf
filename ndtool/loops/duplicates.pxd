# cython: language_level=3, wraparound=False, cdivision=True
# Duplicates: index tuples that select the same row, found with one bit per row. A search considers
# rows [low, low + size), so that several searches suffice if memory has fewer bits than rows.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ndtool.loops.blocks cimport BLOCK, Cursor, Walk, block_size, convert_next_offsets, seek
from ndtool.loops.memory cimport prefetch

cdef enum:
    OUT_OF_BOUNDS_ROW = -2    # instead of a tuple's position: an index is out of bounds


cdef struct Duplicate:
    int64_t position    # of the tuple, -1 if there is no duplicate
    int64_t row


cdef struct RowBits:
    int64_t low, size
    uint8_t* bits    # NULL to find the first tuple that selects any of the rows


cdef inline Duplicate first_duplicate(
    const Walk* walk, int64_t count, const RowBits* rows
) noexcept nogil:
    """Return the first of count tuples that selects a row whose bit is set; set bits until then."""
    cdef int64_t selected_rows[BLOCK]
    cdef Duplicate duplicate = Duplicate(-1, 0)
    cdef Cursor cursor
    cdef int64_t t = 0, n, i
    cdef uint64_t row
    cdef uint8_t bit
    seek(&cursor, walk, 0)
    while t < count:
        n = min(block_size(walk.space), count - t)
        if convert_next_offsets(&cursor, walk, t, n, selected_rows):
            return Duplicate(OUT_OF_BOUNDS_ROW, 0)
        if rows.bits:
            for i in range(n):
                if <uint64_t> (selected_rows[i] - rows.low) < <uint64_t> rows.size:
                    prefetch(rows.bits + ((selected_rows[i] - rows.low) >> 3))
        for i in range(n):
            row = <uint64_t> (selected_rows[i] - rows.low)
            if row >= <uint64_t> rows.size:    # not considered by this search, or dropped
                continue
            bit = <uint8_t> (1 << (row & 7))
            if rows.bits == NULL or rows.bits[row >> 3] & bit:
                return Duplicate(t + i, selected_rows[i])
            rows.bits[row >> 3] |= bit
        t += n
    return duplicate
