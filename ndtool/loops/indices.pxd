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
    static inline uint64_t ndtool_ruled(
        int64_t const *, Py_ssize_t, int, int64_t const *, int64_t const *, uint64_t, uint64_t, int,
        int64_t, int64_t *
    ) ndtool_clones;
    static inline uint64_t ndtool_ruled_by(
        int64_t const *, Py_ssize_t, int, int64_t, int64_t, uint64_t, uint64_t, uint64_t, uint64_t,
        int, int64_t, int64_t *
    ) ndtool_inline;
    static inline int64_t ndtool_moved(
        int64_t, int64_t, double, int, int64_t *, uint64_t *
    ) ndtool_inline;
    /* what was read once stays as it is: the number that is looked at is the one that is used,
       whatever others write to memory meanwhile */
    #if defined(__GNUC__) || defined(__clang__)
      #define ndtool_once(number) __asm__("" : "+r"(number))
    #else
      #define ndtool_once(number) ((number) = *(volatile uint64_t *) &(number))
    #endif
    /* 1.5 * 2^52, whose last bit is worth 1: a double to which it is added is rounded to a whole
       number, which stands in its lowest bits */
    #define NDTOOL_ROUNDING 6755399441055744.0
    #define NDTOOL_ROUNDING_BITS ((uint64_t) 0x4338000000000000)
    """
    const double ROUNDING "NDTOOL_ROUNDING"
    const uint64_t ROUNDING_BITS "NDTOOL_ROUNDING_BITS"
    void once "ndtool_once"(uint64_t number) noexcept nogil

cdef enum:
    ENTRIES = 1024       # indices widened at once

cdef enum:               # an index type, or kind: the bytes of one, and these
    BYTES = 15
    UNSIGNED = 16
    SWAPPED = 32
    CHECKED = 64         # all are within bounds, and nobody else writes there

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


cdef inline bint is_plain(int kind) noexcept nogil:
    """Whether number_at reads indices of a kind."""
    return kind & CHECKED or kind & ~UNSIGNED == 8 or kind == 4


cdef inline uint64_t number_at(
    const uint8_t* numbers, Py_ssize_t i, int bytes_each
) noexcept nogil:
    """Return number i of those in 8 bytes, of an int32, or of a uint16; negative ones are huge."""
    cdef uint16_t n2
    cdef int32_t n4
    cdef uint64_t n8
    if bytes_each == 2:
        memcpy(&n2, numbers + 2 * i, 2)
        return n2
    if bytes_each == 4:
        memcpy(&n4, numbers + 4 * i, 4)
        return <uint64_t> <int64_t> n4
    memcpy(&n8, numbers + 8 * i, 8)
    return n8


cdef inline uint64_t ruled "ndtool_ruled"(
    const int64_t* index, Py_ssize_t n, int k, const int64_t* sizes, const int64_t* strides,
    uint64_t base, uint64_t drift, int rule, int64_t elsewhere, int64_t* offsets
) noexcept nogil:
    """offsets[i] = base + i * drift + what tuple i, of 1 or 2 components, comes to by a rule.

    Non-zero if an index is too far out to be wrapped so.
    """
    cdef int64_t size = sizes[0], size2 = sizes[k - 1]
    cdef uint64_t stride = strides[0], stride2 = strides[k - 1]
    if k == 1 and rule == CLIP:
        return ruled_by(
            index, n, 1, size, 0, stride, 0, base, drift, CLIP, elsewhere, offsets
        )
    if k == 1 and rule == WRAP:
        return ruled_by(
            index, n, 1, size, 0, stride, 0, base, drift, WRAP, elsewhere, offsets
        )
    if k == 1:
        return ruled_by(
            index, n, 1, size, 0, stride, 0, base, drift, ELSEWHERE, elsewhere, offsets
        )
    if rule == CLIP:
        return ruled_by(
            index, n, 2, size, size2, stride, stride2, base, drift, CLIP, elsewhere, offsets
        )
    if rule == WRAP:
        return ruled_by(
            index, n, 2, size, size2, stride, stride2, base, drift, WRAP, elsewhere, offsets
        )
    return ruled_by(
        index, n, 2, size, size2, stride, stride2, base, drift, ELSEWHERE, elsewhere, offsets
    )


cdef inline uint64_t ruled_by "ndtool_ruled_by"(
    const int64_t* index, Py_ssize_t n, int k, int64_t size, int64_t size2, uint64_t stride,
    uint64_t stride2, uint64_t base, uint64_t drift, int rule, int64_t elsewhere, int64_t* offsets
) noexcept nogil:
    """The same, without branches: where k and the rule are constants, loops become vectors."""
    cdef Py_ssize_t i
    cdef int64_t v, outside
    cdef uint64_t sum, far = 0
    cdef double inverse = 1.0 / size, inverse2 = 1.0 / size2 if k == 2 else 0.0
    for i in range(n):
        outside = 0
        v = moved(index[k * i], size, inverse, rule, &outside, &far)
        sum = base + <uint64_t> v * stride
        if k == 2:
            v = moved(index[2 * i + 1], size2, inverse2, rule, &outside, &far)
            sum += <uint64_t> v * stride2
        offsets[i] = (<int64_t> sum & ~outside) | (elsewhere & outside)
        base += drift
    return far >> 52


cdef inline int64_t moved "ndtool_moved"(
    int64_t v, int64_t size, double inverse, int rule, int64_t* outside, uint64_t* far
) noexcept nogil:
    """Return an index as a rule has it; `outside` gets all bits where its tuple goes elsewhere.

    inverse: 1 / size. far: gets bits from 2^52 on if wrapping was not exact: it is within 2^51.
    """
    cdef uint64_t bits
    cdef double quotient
    if rule == WRAP:
        bits = <uint64_t> v + ROUNDING_BITS
        far[0] |= bits ^ ROUNDING_BITS
        memcpy(&quotient, &bits, 8)
        quotient = (quotient - ROUNDING) * inverse + ROUNDING
        memcpy(&bits, &quotient, 8)
        v = <int64_t> (<uint64_t> v - (bits - ROUNDING_BITS) * <uint64_t> size)
        return v + (size & (v >> 63))
    v += size & (v >> 63)
    if rule == CLIP:
        return min(max(v, 0), size - 1)
    outside[0] |= -<int64_t> (<uint64_t> v >= <uint64_t> size)
    return v


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
