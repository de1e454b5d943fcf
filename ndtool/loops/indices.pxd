# cython: language_level=3, wraparound=False, cdivision=True
# Indices: integers of any type converted to int64, and out-of-bounds modes applied to them.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memcpy

from ndtool.loops.memory cimport swap16, swap32, swap64

cdef extern from *:
    """
    #include <stdint.h>
    static inline void ndtool_widen(uint8_t const *, int, Py_ssize_t, int64_t *) ndtool_twice;
    static inline int ndtool_bounded_exact(int64_t *, int64_t, int64_t, int, int) ndtool_inline;
    static inline int64_t ndtool_bounded(
        int64_t, int64_t, int64_t, double, int, int64_t *, uint64_t *
    ) ndtool_inline;
    /* prevents the compiler from loading a value again: the index that was checked is the one
       that is used, whatever others write to memory meanwhile */
    #if defined(__GNUC__) || defined(__clang__)
      #define ndtool_read_once(number) __asm__("" : "+r"(number))
    #else
      #define ndtool_read_once(number) ((number) = *(volatile uint64_t *) &(number))
    #endif
    /* 1.5 * 2^52, whose ulp is 1: adding it rounds a double to an integer, which is then in
       the low bits of the mantissa */
    #define NDTOOL_ROUNDING 6755399441055744.0
    #define NDTOOL_ROUNDING_BITS ((uint64_t) 0x4338000000000000)
    """
    const double ROUNDING "NDTOOL_ROUNDING"
    const uint64_t ROUNDING_BITS "NDTOOL_ROUNDING_BITS"
    void read_once "ndtool_read_once"(uint64_t number) noexcept nogil

cdef enum:
    ENTRIES = 1024    # indices converted to int64 at once

cdef enum:               # an index type, or kind: its itemsize, and these flags
    ITEMSIZE_MASK = 15
    UNSIGNED = 16
    SWAPPED = 32
    UNVECTORIZED = 64     # not vectorized: there is padding, or negative indices are out of bounds

cdef enum:               # out-of-bounds modes
    ERROR = 0       # error: the result is non-zero
    CLIP = 1        # clamp to the first or last index
    WRAP = 2        # index modulo the axis size
    REDIRECT = 3    # fill, drop: the tuple's offset is redirect_offset, or DROPPED


cdef inline const int64_t* as_int64(
    const uint8_t* indices, int kind, Py_ssize_t n, int64_t* block
) noexcept nogil:
    """Return n <= ENTRIES indices as int64: in place if they are aligned int64, else in block."""
    if kind == 8 and not <size_t> indices & 7:
        return <const int64_t*> indices
    convert_to_int64(indices, kind, n, block)
    return block


cdef inline void convert_to_int64 "ndtool_widen"(
    const uint8_t* indices, int kind, Py_ssize_t n, int64_t* block
) noexcept nogil:
    """Copy n indices as int64.

    uint64 values above INT64_MAX become INT64_MAX, which is out of bounds for every axis.
    """
    cdef Py_ssize_t i
    cdef uint64_t v8
    cdef uint32_t v4
    cdef uint16_t v2
    if kind == 8:
        memcpy(block, indices, n * 8)
    elif kind & ITEMSIZE_MASK == 8:
        for i in range(n):
            memcpy(&v8, indices + 8 * i, 8)
            if kind & SWAPPED:
                v8 = swap64(v8)
            if kind & UNSIGNED and v8 >> 63:
                v8 = <uint64_t> 0x7FFFFFFFFFFFFFFF
            block[i] = <int64_t> v8
    elif kind & ITEMSIZE_MASK == 4:
        for i in range(n):
            memcpy(&v4, indices + 4 * i, 4)
            if kind & SWAPPED:
                v4 = swap32(v4)
            block[i] = <int64_t> v4 if kind & UNSIGNED else <int64_t> <int32_t> v4
    elif kind & ITEMSIZE_MASK == 2:
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


cdef inline const uint8_t* as_row_indices(
    const uint8_t* indices, int* kind, Py_ssize_t n, int narrowest, int64_t* block
) noexcept nogil:
    """Return n <= ENTRIES indices that load_row_index can read: in place, or as int64 in block.

    kind: of the indices; receives that of the result, of at least `narrowest` bytes.
    """
    if not kind[0] & SWAPPED and kind[0] & ITEMSIZE_MASK >= narrowest:
        return indices
    convert_to_int64(indices, kind[0], n, block)
    kind[0] = 8
    return <const uint8_t*> block


cdef inline bint are_in_bounds(int kind, int64_t size, int64_t wrap) noexcept nogil:
    """Return whether all indices of a type are valid, whatever their values. wrap: size or 0."""
    cdef int bits = 8 * (kind & ITEMSIZE_MASK)
    if bits == 64:
        return False
    return size >> bits != 0 if kind & UNSIGNED else wrap >> (bits - 1) != 0


cdef inline uint64_t row_limit(int kind, int64_t size) noexcept nogil:
    """Return what is more than every valid index, but at most every other one as it is loaded."""
    cdef int bits = 8 * (kind & ITEMSIZE_MASK) - (0 if kind & UNSIGNED else 1)
    return size if bits >= 63 else min(size, <int64_t> 1 << bits)


cdef inline uint64_t load_row_index(
    const uint8_t* rows, Py_ssize_t i, int index_itemsize
) noexcept nogil:
    """Return index i, as an unsigned integer: negative indices are at least `row_limit`."""
    cdef uint16_t n2
    cdef uint32_t n4
    cdef uint64_t n8
    if index_itemsize == 1:
        return rows[i]
    if index_itemsize == 2:
        memcpy(&n2, rows + 2 * i, 2)
        return n2
    if index_itemsize == 4:
        memcpy(&n4, rows + 4 * i, 4)
        return n4
    memcpy(&n8, rows + 8 * i, 8)
    return n8


cdef inline int64_t bound_index "ndtool_bounded"(
    int64_t value, int64_t size, int64_t wrap, double inverse, int mode, int64_t* out_mask,
    uint64_t* bad_bits,
) noexcept nogil:
    """Return an index clamped or wrapped; set all bits of out_mask if its tuple is redirected.

    inverse: 1 / size. bad_bits: bits from 2^52 on are set if wrapping is inexact, which it may be
    for indices beyond 2^51, or if the index is an error.
    """
    cdef uint64_t bits
    cdef double quotient
    if mode == WRAP:
        bits = <uint64_t> value + ROUNDING_BITS
        bad_bits[0] |= bits ^ ROUNDING_BITS
        memcpy(&quotient, &bits, 8)
        quotient = (quotient - ROUNDING) * inverse + ROUNDING
        memcpy(&bits, &quotient, 8)
        value = <int64_t> (<uint64_t> value - (bits - ROUNDING_BITS) * <uint64_t> size)
        return value + (size & (value >> 63))
    value += wrap & (value >> 63)
    if mode == CLIP:
        return min(max(value, 0), size - 1)
    if mode == ERROR:
        bad_bits[0] |= -<uint64_t> (<uint64_t> value >= <uint64_t> size)
    else:
        out_mask[0] |= -<int64_t> (<uint64_t> value >= <uint64_t> size)
    return value


cdef inline bint bound_index_exact "ndtool_bounded_exact"(
    int64_t* index, int64_t size, int64_t wrap, int mode, bint is_uint64
) noexcept nogil:
    """Clamp or wrap an index, in exact arithmetic; in other modes, return if it is out of bounds.

    wrap: added to negative indices: size or 0. is_uint64: the index has the bits of a uint64.
    """
    cdef int64_t v = index[0]
    if not is_uint64:
        v += wrap & (v >> 63)
    if mode == CLIP:    # branchless: random indices mispredict
        if is_uint64:
            index[0] = <int64_t> min(<uint64_t> v, <uint64_t> (size - 1))
        else:
            index[0] = min(max(v, 0), size - 1)
        return False
    if mode == REDIRECT or mode == ERROR:
        index[0] = v
        return <uint64_t> v >= <uint64_t> size
    if <uint64_t> v >= <uint64_t> size:
        if is_uint64:
            v = <int64_t> (<uint64_t> v % <uint64_t> size)
        else:
            v %= size
            v += size & (v >> 63)
    index[0] = v
    return False


cdef inline const int64_t* as_int64_bits(
    const uint8_t* indices, int kind, Py_ssize_t n, int64_t* block, bint* is_uint64
) noexcept nogil:
    """Return indices as `as_int64` does, but those of uint64 with the same bits; set is_uint64."""
    is_uint64[0] = kind & ITEMSIZE_MASK == 8 and kind & UNSIGNED
    return as_int64(indices, kind & ~UNSIGNED if is_uint64[0] else kind, n, block)
