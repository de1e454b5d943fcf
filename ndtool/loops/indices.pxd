# cython: language_level=3, wraparound=False, cdivision=True
# Indices: numbers of any integer type as int64, and what becomes of those out of bounds.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memcpy

from ndtool.loops.memory cimport swap16, swap32, swap64

cdef extern from *:
    """
    #include <stdint.h>
    static inline void ndtool_widen(uint8_t const *, int, Py_ssize_t, int64_t *) ndtool_clones;
    static inline int ndtool_settle(int64_t *, int64_t, int, int) ndtool_inline;
    """

cdef enum:
    ENTRIES = 1024       # indices widened at once

cdef enum:               # an index type, or kind: the bytes of one, and these
    BYTES = 15
    UNSIGNED = 16
    SWAPPED = 32

cdef enum:               # what becomes of an index out of bounds
    REFUSE = 0           # nothing: it is an error
    CLIP = 1             # the end of its axis that is next to it
    WRAP = 2             # what it is modulo the size of its axis
    ELSEWHERE = 3        # its tuple names a place beside the others, or NOWHERE


cdef inline const int64_t* widened(
    const uint8_t* indices, int kind, Py_ssize_t n, int64_t* block
) noexcept nogil:
    """Return n <= ENTRIES indices as int64: in place if they are, else copied into block."""
    if kind == 8 and not <size_t> indices & 7:
        return <const int64_t*> indices
    widen(indices, kind, n, block)
    return block


cdef inline void widen "ndtool_widen"(
    const uint8_t* indices, int kind, Py_ssize_t n, int64_t* block
) noexcept nogil:
    """Copy n indices as int64.

    uint64 values above INT64_MAX become INT64_MAX, which no axis is long enough for.
    """
    cdef Py_ssize_t i
    cdef uint64_t v8
    cdef uint32_t v4
    cdef uint16_t v2
    if kind == 8:
        memcpy(block, indices, n * 8)
    elif kind == 4:
        for i in range(n):
            memcpy(&v4, indices + 4 * i, 4)
            block[i] = <int32_t> v4
    elif kind & BYTES == 8:
        for i in range(n):
            memcpy(&v8, indices + 8 * i, 8)
            if kind & SWAPPED:
                v8 = swap64(v8)
            if kind & UNSIGNED and v8 >> 63:
                v8 = <uint64_t> 0x7FFFFFFFFFFFFFFF
            block[i] = <int64_t> v8
    elif kind & BYTES == 4:
        for i in range(n):
            memcpy(&v4, indices + 4 * i, 4)
            if kind & SWAPPED:
                v4 = swap32(v4)
            block[i] = <int64_t> v4 if kind & UNSIGNED else <int64_t> <int32_t> v4
    elif kind & BYTES == 2:
        for i in range(n):
            memcpy(&v2, indices + 2 * i, 2)
            if kind & SWAPPED:
                v2 = swap16(v2)
            block[i] = <int64_t> v2 if kind & UNSIGNED else <int64_t> <int16_t> v2
    elif kind & UNSIGNED:
        for i in range(n):
            block[i] = indices[i]
    else:
        for i in range(n):
            block[i] = <int8_t> indices[i]


cdef inline bint settle "ndtool_settle"(
    int64_t* index, int64_t size, int rule, bint whole
) noexcept nogil:
    """Make an index one within bounds, as a rule has it; whether there is no such one.

    whole: whether it is one of a uint64.
    """
    cdef int64_t v = index[0]
    if not whole:
        v += size & (v >> 63)
    if rule == CLIP:    # without branches: they would be hard to foresee
        if whole:
            index[0] = <int64_t> min(<uint64_t> v, <uint64_t> (size - 1))
        else:
            index[0] = min(max(v, 0), size - 1)
        return False
    if rule == ELSEWHERE:
        index[0] = v
        return <uint64_t> v >= <uint64_t> size
    if <uint64_t> v >= <uint64_t> size:
        if whole:
            v = <int64_t> (<uint64_t> v % <uint64_t> size)
        else:
            v %= size
            v += size & (v >> 63)
    index[0] = v
    return False


cdef inline const int64_t* exact(
    const uint8_t* indices, int kind, Py_ssize_t n, int64_t* block, bint* whole
) noexcept nogil:
    """Return what `widened` does, but uint64 as they are; whether they are, as bits of an int64."""
    whole[0] = kind & BYTES == 8 and kind & UNSIGNED
    return widened(indices, kind & ~UNSIGNED if whole[0] else kind, n, block)
