# cython: language_level=3, wraparound=False, cdivision=True
# Duplicates: index tuples that select the same row, found with one bit per row, or with a hash
# table of the rows, which is smaller for few tuples. A search considers rows [low, low + size), so
# that several searches suffice if memory has fewer bits than rows.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ndtool.loops.blocks cimport BLOCK, Cursor, Walk, block_size, convert_next_offsets, seek
from ndtool.loops.memory cimport prefetch
from ndtool.loops.rowtable cimport RowTable, slot_of

cdef enum:
    OUT_OF_BOUNDS_ROW = -2    # instead of a tuple's position: an index is out of bounds


cdef struct Duplicate:
    int64_t position    # of the tuple, -1 if there is no duplicate
    int64_t row


cdef struct RowBits:
    int64_t low, size
    uint8_t* bits    # NULL to find the first tuple that selects any of the rows
    RowTable table    # instead of bits


cdef inline bint insert_row(const RowBits* rows, uint64_t row) noexcept nogil:
    """Insert a row; return whether an earlier tuple selected it."""
    cdef uint8_t bit = <uint8_t> (1 << (row & 7))
    cdef bint is_new
    if rows.table.keys:
        slot_of(&rows.table, row, &is_new)
    else:
        is_new = rows.bits[row >> 3] & bit == 0
        rows.bits[row >> 3] |= bit
    return not is_new


cdef inline Duplicate first_duplicate(
    const Walk* walk, int64_t count, const RowBits* rows
) noexcept nogil:
    """Return the first of count tuples that selects a row whose bit is set; set bits until then."""
    cdef int64_t selected_rows[BLOCK]
    cdef Duplicate duplicate = Duplicate(-1, 0)
    cdef Cursor cursor
    cdef int64_t t = 0, n, i
    cdef uint64_t row
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
            if (rows.bits == NULL and rows.table.keys == NULL) or insert_row(rows, row):
                return Duplicate(t + i, selected_rows[i])
        t += n
    return duplicate
