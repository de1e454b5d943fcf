# cython: language_level=3, wraparound=False, cdivision=True
# Arithmetic, one element type at a time: what `out op update` means, to the bit.
#
# The bits are those of NumPy's ufunc.at on x86, one element after the other, on aarch64 too. Where
# both operands of an add or mul are NaN the hardware keeps one of them, and compilers may swap
# operands: the functions below choose explicitly, so that every loop, however vectorised, gives
# the same. A NaN that comes from none has the sign that x86 gives it.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)
from libc.string cimport memcpy

cdef extern from *:
    """
    #if defined(__x86_64__) || defined(__i386__) || defined(_M_X64) || defined(_M_IX86)
      #define ndtool_new_nan_is_positive 0
    #else
      #define ndtool_new_nan_is_positive 1
    #endif
    #if defined(__SSE2__) && (defined(__GNUC__) || defined(__clang__))
      /* one instruction keeps the first of two NaNs, where its operands are not swapped */
      #define NDTOOL_ALONE(name, real, instruction)                                            \\
          static inline real ndtool_##name(real a, real b) {                                   \\
              __asm__(instruction " %1, %0" : "+x"(a) : "xm"(b));                              \\
              return a;                                                                        \\
          }
      NDTOOL_ALONE(add4, float, "addss")
      NDTOOL_ALONE(add8, double, "addsd")
      NDTOOL_ALONE(mul4, float, "mulss")
      NDTOOL_ALONE(mul8, double, "mulsd")
      #define ndtool_alone 1
    #else
      #define ndtool_add4(a, b) (a)
      #define ndtool_add8(a, b) (a)
      #define ndtool_mul4(a, b) (a)
      #define ndtool_mul8(a, b) (a)
      #define ndtool_alone 0
    #endif
    """
    bint new_nan_is_positive "ndtool_new_nan_is_positive"
    bint one_instruction "ndtool_alone"
    float add4 "ndtool_add4"(float, float) noexcept nogil
    double add8 "ndtool_add8"(double, double) noexcept nogil
    float mul4 "ndtool_mul4"(float, float) noexcept nogil
    double mul8 "ndtool_mul8"(double, double) noexcept nogil

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
        if op == ADD:  # of two NaNs the first one comes twice
            return signed(a, b, a + (b if a == a else a))
        if op == MUL:
            return signed(a, b, a * (b if a == a else a))
        if op == MAX:
            return chosen(a, b, (a > b) | (a != a))
        if op == MIN:
            return chosen(a, b, (a < b) | (a != a))
    if number is half or number is brain:
        if op == MAX or op == MIN:
            a.bits = b.bits ^ ((a.bits ^ b.bits) & <uint16_t> -<int16_t> stays(op, a, b))
            return a
    return combined(op, a, b)


cdef inline number combined_alone(int op, number a, number b) noexcept nogil:
    """combined, for loops that no vectors suit: with no second look at NaN where none is needed."""
    if one_instruction:
        if number is float:
            if op == ADD:
                return add4(a, b)
            if op == MUL:
                return mul4(a, b)
        if number is double:
            if op == ADD:
                return add8(a, b)
            if op == MUL:
                return mul8(a, b)
    return combined(op, a, b)
