# cython: language_level=3, wraparound=False, cdivision=True
# The reductions, one element type at a time: what `out = out op update` means, to the bit.
#
# The bits are those of NumPy's ufunc.at on x86, one element after the other, on aarch64 too. Where
# both operands of an add or mul are NaN the hardware keeps one of them, and compilers may swap
# operands: the functions below choose explicitly, so that every loop, however vectorised, gives
# the same. A NaN that comes from none has the sign that x86 gives it.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memcpy

cimport ndtool.loops.memory  # for ndtool_clones

cdef extern from *:
    """
    #if defined(__GNUC__) && !defined(__clang__)
      #define ndtool_whole __attribute__((flatten))  /* with all that it calls */
    #else
      #define ndtool_whole
    #endif
    static inline void ndtool_reduce_row(
        int, int, uint8_t *, uint8_t const *, Py_ssize_t
    ) ndtool_whole ndtool_clones;
    #if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
      #define ndtool_new_nan_is_positive 0
    #else
      #define ndtool_new_nan_is_positive 1
    #endif
    """
    bint new_nan_is_positive "ndtool_new_nan_is_positive"

cdef enum:
    ADD = 1
    MUL = 2
    MAX = 3
    MIN = 4

cdef enum:               # the types
    BOOL
    INT8
    INT16
    INT32
    INT64
    UINT8
    UINT16
    UINT32
    UINT64
    FLOAT16
    BFLOAT16
    FLOAT32
    FLOAT64
    COMPLEX64
    COMPLEX128

ctypedef struct truth:
    uint8_t byte

ctypedef struct half:
    uint16_t bits

ctypedef struct brain:
    uint16_t bits

ctypedef struct complex64:
    float re
    float im

ctypedef struct complex128:
    double re
    double im

ctypedef fused number:
    truth
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    half
    brain
    float
    double
    complex64
    complex128

ctypedef fused real:
    float
    double


cdef inline uint32_t bits_of(float value) noexcept nogil:
    cdef uint32_t bits
    memcpy(&bits, &value, 4)
    return bits


cdef inline float float_of(uint32_t bits) noexcept nogil:
    cdef float value
    memcpy(&value, &bits, 4)
    return value


cdef inline float half_to_float(half h) noexcept nogil:
    cdef uint32_t sign = <uint32_t> (h.bits & 0x8000) << 16
    cdef uint32_t rest = h.bits & 0x7FFF
    if rest >= 0x7C00:
        return float_of(sign | 0x7F800000 | (rest & 0x3FF) << 13)
    if rest >= 0x0400:
        return float_of(sign | (rest << 13) + 0x38000000)
    return float_of(sign | bits_of(<float> rest * <float> 5.9604644775390625e-08))


cdef inline half float_to_half(float value) noexcept nogil:
    """Round to nearest even; a NaN keeps the upper bits of its payload."""
    cdef uint32_t bits = bits_of(value)
    cdef uint32_t rest = bits & 0x7FFFFFFF
    cdef uint32_t sign = bits >> 16 & 0x8000
    cdef half h
    if rest > 0x7F800000:
        rest = 0x7C00 | (rest >> 13 & 0x3FF)
        h.bits = <uint16_t> (sign | rest + (rest == 0x7C00))
    elif rest >= 0x477FF000:
        h.bits = <uint16_t> (sign | 0x7C00)
    elif rest >= 0x38800000:
        h.bits = <uint16_t> (sign | (rest - 0x38000000 + 0xFFF + (rest >> 13 & 1)) >> 13)
    else:
        # 0.5 has the ulp of the smallest subnormal half: the addition does the rounding
        h.bits = <uint16_t> (sign | bits_of(float_of(rest) + <float> 0.5) - 0x3F000000)
    return h


cdef inline float brain_to_float(brain b) noexcept nogil:
    return float_of(<uint32_t> b.bits << 16)


cdef inline brain float_to_brain(float value) noexcept nogil:
    """Round to nearest even; every NaN becomes the quiet one of its sign, as in ml_dtypes."""
    cdef uint32_t bits = bits_of(value)
    cdef brain b
    if value != value:
        b.bits = <uint16_t> (bits >> 16 & 0x8000 | 0x7FC0)
    else:
        b.bits = <uint16_t> ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return b


cdef inline real signed(real a, real b, real result) noexcept nogil:
    """Return a result of a and b; a NaN that is neither's is negative, as x86 makes it."""
    if new_nan_is_positive and result != result and a == a and b == b:
        return -result
    return result


cdef inline real added(real a, real b) noexcept nogil:
    cdef real sum = a + b
    return signed(a, b, sum if sum == sum else a + (b if a == a else a))


cdef inline real subtracted(real a, real b) noexcept nogil:
    return signed(a, b, a - b)


cdef inline real multiplied(real a, real b) noexcept nogil:
    cdef real product = a * b
    return signed(a, b, product if product == product else a * (b if a == a else a))


cdef inline bint stays(int op, number a, number b) noexcept nogil:
    """Whether the maximum or minimum of two half floats is the first one; it is if it is NaN."""
    cdef float fa = 0, fb = 0
    if number is half:  # of two equal ones the first, for bfloat16 the second: as NumPy's types do
        fa, fb = half_to_float(a), half_to_float(b)
        return ((fa >= fb) if op == MAX else (fa <= fb)) | (fa != fa)
    if number is brain:
        fa, fb = brain_to_float(a), brain_to_float(b)
        return ((fa > fb) if op == MAX else (fa < fb)) | (fa != fa)
    return True


cdef inline number combined(int op, number a, number b) noexcept nogil:
    """Return `a op b`; callers pass a constant op, so that only one branch is compiled."""
    cdef number r
    cdef float fa, fb
    if number is truth:
        if op == ADD or op == MAX:
            r.byte = a.byte != 0 or b.byte != 0
        else:
            r.byte = a.byte != 0 and b.byte != 0
    elif number is half:
        fa, fb = half_to_float(a), half_to_float(b)
        if op == ADD:
            r = float_to_half(added(fa, fb))
        elif op == MUL:
            r = float_to_half(multiplied(fa, fb))
        else:
            r = a if stays(op, a, b) else b
    elif number is brain:
        fa, fb = brain_to_float(a), brain_to_float(b)
        if op == ADD:
            r = float_to_brain(added(fb, fa))
        elif op == MUL:
            r = float_to_brain(multiplied(fb, fa))
        else:
            r = a if stays(op, a, b) else b
    elif number is complex64 or number is complex128:
        if op == ADD:
            r.re = added(a.re, b.re)
            r.im = added(a.im, b.im)
        else:
            r.re = subtracted(multiplied(a.re, b.re), multiplied(a.im, b.im))
            r.im = added(multiplied(a.re, b.im), multiplied(a.im, b.re))
    elif number is float or number is double:
        if op == ADD:
            r = added(a, b)
        elif op == MUL:
            r = multiplied(a, b)
        elif op == MAX:  # the first choice is one instruction, the second can be foreseen
            r = a if a > b else b
            r = a if a != a else r
        else:
            r = a if a < b else b
            r = a if a != a else r
    else:
        # through uint64, where overflow wraps by definition, for every width and sign
        if op == ADD:
            r = <number> (<uint64_t> a + <uint64_t> b)
        elif op == MUL:
            r = <number> (<uint64_t> a * <uint64_t> b)
        elif op == MAX:
            r = a if a > b else b
        else:
            r = a if a < b else b
    return r


cdef inline real chosen(real a, real b, bint first) noexcept nogil:
    """Return a or b, without a branch."""
    cdef uint32_t a4, b4
    cdef uint64_t a8, b8
    if real is float:
        memcpy(&a4, &a, 4)
        memcpy(&b4, &b, 4)
        a4 = b4 ^ ((a4 ^ b4) & <uint32_t> -<int32_t> first)
        memcpy(&a, &a4, 4)
    else:
        memcpy(&a8, &a, 8)
        memcpy(&b8, &b, 8)
        a8 = b8 ^ ((a8 ^ b8) & <uint64_t> -<int64_t> first)
        memcpy(&a, &a8, 8)
    return a


cdef inline number combined_evenly(int op, number a, number b) noexcept nogil:
    """combined, but with no branch for NaN: loops over it become vectors."""
    if number is float or number is double:
        if op == MAX:
            return chosen(a, b, (a > b) | (a != a))
        if op == MIN:
            return chosen(a, b, (a < b) | (a != a))
    if number is half or number is brain:
        if op == MAX or op == MIN:
            a.bits = b.bits ^ ((a.bits ^ b.bits) & <uint16_t> -<int16_t> stays(op, a, b))
            return a
    return combined(op, a, b)


cdef inline void reduce_run(
    int op, number* out, const number* updates, Py_ssize_t m
) noexcept nogil:
    """out[c] = out[c] op updates[c] for the m elements of one run."""
    cdef Py_ssize_t c
    if op == ADD:
        for c in range(m):
            out[c] = combined(ADD, out[c], updates[c])
    elif op == MUL:
        for c in range(m):
            out[c] = combined(MUL, out[c], updates[c])
    elif op == MAX:
        for c in range(m):
            out[c] = combined_evenly(MAX, out[c], updates[c])
    else:
        for c in range(m):
            out[c] = combined_evenly(MIN, out[c], updates[c])


cdef inline void reduce_slot(
    int op, number* slot, const number* updates, Py_ssize_t n
) noexcept nogil:
    """Apply n updates to one element, which stays in a register: its memory would be waited for."""
    cdef Py_ssize_t i
    cdef number value = slot[0]
    if op == ADD:
        for i in range(n):
            value = combined(ADD, value, updates[i])
    elif op == MUL:
        for i in range(n):
            value = combined(MUL, value, updates[i])
    elif op == MAX:
        for i in range(n):
            value = combined(MAX, value, updates[i])
    else:
        for i in range(n):
            value = combined(MIN, value, updates[i])
    slot[0] = value


cdef inline bint all_same(const int64_t* offsets, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(1, n):
        if offsets[i] != offsets[0]:
            return False
    return n > 1


cdef inline void reduce_typed(
    const number* updates, int op, uint8_t* out, const int64_t* offsets, Py_ssize_t n, Py_ssize_t m
) noexcept nogil:
    """Apply n runs of m elements, in order: run i to the bytes at out + offsets[i]."""
    cdef Py_ssize_t i
    cdef number* slot
    if m != 1:
        for i in range(n):
            reduce_run(op, <number*> (out + offsets[i]), updates + i * m, m)
    elif all_same(offsets, n):
        reduce_slot(op, <number*> (out + offsets[0]), updates, n)
    elif op == ADD:
        for i in range(n):
            slot = <number*> (out + offsets[i])
            slot[0] = combined(ADD, slot[0], updates[i])
    elif op == MUL:
        for i in range(n):
            slot = <number*> (out + offsets[i])
            slot[0] = combined(MUL, slot[0], updates[i])
    elif op == MAX:
        for i in range(n):
            slot = <number*> (out + offsets[i])
            slot[0] = combined(MAX, slot[0], updates[i])
    else:
        for i in range(n):
            slot = <number*> (out + offsets[i])
            slot[0] = combined(MIN, slot[0], updates[i])


cdef inline void reduce_block(
    int code, int op, uint8_t* out, const int64_t* offsets, const uint8_t* updates,
    Py_ssize_t n, Py_ssize_t width,
) noexcept nogil:
    """Apply n runs of `width` bytes of the type `code`."""
    if code == BOOL:
        reduce_typed(<const truth*> updates, op, out, offsets, n, width)
    elif code == INT8:
        reduce_typed(<const int8_t*> updates, op, out, offsets, n, width)
    elif code == INT16:
        reduce_typed(<const int16_t*> updates, op, out, offsets, n, width >> 1)
    elif code == INT32:
        reduce_typed(<const int32_t*> updates, op, out, offsets, n, width >> 2)
    elif code == INT64:
        reduce_typed(<const int64_t*> updates, op, out, offsets, n, width >> 3)
    elif code == UINT8:
        reduce_typed(<const uint8_t*> updates, op, out, offsets, n, width)
    elif code == UINT16:
        reduce_typed(<const uint16_t*> updates, op, out, offsets, n, width >> 1)
    elif code == UINT32:
        reduce_typed(<const uint32_t*> updates, op, out, offsets, n, width >> 2)
    elif code == UINT64:
        reduce_typed(<const uint64_t*> updates, op, out, offsets, n, width >> 3)
    elif code == FLOAT16:
        reduce_typed(<const half*> updates, op, out, offsets, n, width >> 1)
    elif code == BFLOAT16:
        reduce_typed(<const brain*> updates, op, out, offsets, n, width >> 1)
    elif code == FLOAT32:
        reduce_typed(<const float*> updates, op, out, offsets, n, width >> 2)
    elif code == FLOAT64:
        reduce_typed(<const double*> updates, op, out, offsets, n, width >> 3)
    elif code == COMPLEX64:
        reduce_typed(<const complex64*> updates, op, out, offsets, n, width >> 3)
    else:
        reduce_typed(<const complex128*> updates, op, out, offsets, n, width >> 4)


cdef inline void reduce_row "ndtool_reduce_row"(
    int code, int op, uint8_t* out, const uint8_t* update, Py_ssize_t width
) noexcept nogil:
    """Apply one long run of `width` bytes."""
    cdef int64_t here = 0
    reduce_block(code, op, out, &here, update, 1, width)
