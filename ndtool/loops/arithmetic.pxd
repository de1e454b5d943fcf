# cython: language_level=3, wraparound=False, cdivision=True
# Arithmetic: the result of `out op update` for each element type, to the bit that of NumPy's
# ufunc.at on x86, on every processor.
#
# Of two NaN operands, an x86 add or mul returns the first, but compilers may swap operands. The
# functions below choose explicitly, so that scalar and vectorized loops agree. A NaN that comes
# from no NaN has the sign that x86 gives it.

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
      /* returns the first of two NaNs; inline asm keeps the operands' order */
      #define NDTOOL_ONE_INSTRUCTION(name, real, instruction)                                  \\
          static inline real ndtool_##name(real a, real b) {                                   \\
              __asm__(instruction " %1, %0" : "+x"(a) : "xm"(b));                              \\
              return a;                                                                        \\
          }
      NDTOOL_ONE_INSTRUCTION(add4, float, "addss")
      NDTOOL_ONE_INSTRUCTION(add8, double, "addsd")
      NDTOOL_ONE_INSTRUCTION(mul4, float, "mulss")
      NDTOOL_ONE_INSTRUCTION(mul8, double, "mulsd")
      NDTOOL_ONE_INSTRUCTION(sub4, float, "subss")
      NDTOOL_ONE_INSTRUCTION(sub8, double, "subsd")
      NDTOOL_ONE_INSTRUCTION(div4, float, "divss")
      NDTOOL_ONE_INSTRUCTION(div8, double, "divsd")
      #define ndtool_one_instruction 1
    #else
      #define ndtool_add4(a, b) (a)
      #define ndtool_add8(a, b) (a)
      #define ndtool_mul4(a, b) (a)
      #define ndtool_mul8(a, b) (a)
      #define ndtool_sub4(a, b) (a)
      #define ndtool_sub8(a, b) (a)
      #define ndtool_div4(a, b) (a)
      #define ndtool_div8(a, b) (a)
      #define ndtool_one_instruction 0
    #endif
    """
    bint new_nan_is_positive "ndtool_new_nan_is_positive"
    bint one_instruction "ndtool_one_instruction"
    float add4 "ndtool_add4"(float, float) noexcept nogil
    double add8 "ndtool_add8"(double, double) noexcept nogil
    float mul4 "ndtool_mul4"(float, float) noexcept nogil
    double mul8 "ndtool_mul8"(double, double) noexcept nogil
    float sub4 "ndtool_sub4"(float, float) noexcept nogil
    double sub8 "ndtool_sub8"(double, double) noexcept nogil
    float div4 "ndtool_div4"(float, float) noexcept nogil
    double div8 "ndtool_div8"(double, double) noexcept nogil

cdef enum:
    ADD = 1
    MUL = 2
    MAX = 3
    MIN = 4
    SUB = 5
    DIV = 6    # of real types only

cdef enum:    # arithmetic types
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

cdef extern from *:
    """
    static const uint8_t ndtool_itemsizes[] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 2, 4, 8, 8, 16};
    """
    const uint8_t[] itemsizes "ndtool_itemsizes"    # of these

ctypedef struct boolean:
    uint8_t byte

ctypedef struct half:
    uint16_t bits

ctypedef struct bfloat16:
    uint16_t bits

ctypedef struct complex64:
    float re
    float im

ctypedef struct complex128:
    double re
    double im

ctypedef fused number:
    boolean
    int8_t
    int16_t
    int32_t
    int64_t
    uint8_t
    uint16_t
    uint32_t
    uint64_t
    half
    bfloat16
    float
    double
    complex64
    complex128

ctypedef fused signed_integer:
    int8_t
    int16_t
    int32_t
    int64_t

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
    cdef uint32_t magnitude = h.bits & 0x7FFF
    if magnitude >= 0x7C00:
        return float_of(sign | 0x7F800000 | (magnitude & 0x3FF) << 13)
    if magnitude >= 0x0400:
        return float_of(sign | (magnitude << 13) + 0x38000000)
    return float_of(sign | bits_of(<float> magnitude * <float> 5.9604644775390625e-08))


cdef inline half float_to_half(float value) noexcept nogil:
    """Round to nearest even; a NaN keeps the upper bits of its payload."""
    cdef uint32_t bits = bits_of(value)
    cdef uint32_t magnitude = bits & 0x7FFFFFFF
    cdef uint32_t sign = bits >> 16 & 0x8000
    cdef half h
    if magnitude > 0x7F800000:
        magnitude = 0x7C00 | (magnitude >> 13 & 0x3FF)
        h.bits = <uint16_t> (sign | magnitude + (magnitude == 0x7C00))
    elif magnitude >= 0x477FF000:
        h.bits = <uint16_t> (sign | 0x7C00)
    elif magnitude >= 0x38800000:
        h.bits = <uint16_t> (sign | (magnitude - 0x38000000 + 0xFFF + (magnitude >> 13 & 1)) >> 13)
    else:
        # 0.5 has the ulp of the smallest subnormal half: the addition does the rounding
        h.bits = <uint16_t> (sign | bits_of(float_of(magnitude) + <float> 0.5) - 0x3F000000)
    return h


cdef inline float bfloat16_to_float(bfloat16 b) noexcept nogil:
    return float_of(<uint32_t> b.bits << 16)


cdef inline bfloat16 float_to_bfloat16(float value) noexcept nogil:
    """Round to nearest even; every NaN becomes the quiet NaN of its sign, as in ml_dtypes."""
    cdef uint32_t bits = bits_of(value)
    cdef bfloat16 b
    if value != value:
        b.bits = <uint16_t> (bits >> 16 & 0x8000 | 0x7FC0)
    else:
        b.bits = <uint16_t> ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
    return b


cdef inline real x86_nan(real a, real b, real result) noexcept nogil:
    """Return a result of a and b; a NaN that neither operand was is negative, as on x86."""
    if new_nan_is_positive and result != result and a == a and b == b:
        return -result
    return result


cdef inline real add_floats(real a, real b) noexcept nogil:
    """Return a + b; a NaN in a wins over one in b. Branchless, so that loops vectorize."""
    return x86_nan(a, b, a + (b if a == a else a))


cdef inline real subtract_floats(real a, real b) noexcept nogil:
    return x86_nan(a, b, a - b)


cdef inline real multiply_floats(real a, real b) noexcept nogil:
    return x86_nan(a, b, a * (b if a == a else a))


cdef inline real divide_floats(real a, real b) noexcept nogil:
    return x86_nan(a, b, a / b)


cdef inline real reduce_floats(int op, real a, real b) noexcept nogil:
    if op == ADD:
        return add_floats(a, b)
    if op == MUL:
        return multiply_floats(a, b)
    return subtract_floats(a, b) if op == SUB else divide_floats(a, b)


cdef inline real ordered_extreme(int op, real a, real b) noexcept nogil:
    """Return the maximum or minimum unless a is a NaN, by an instruction, which may flush to 0."""
    return (a if a > b else b) if op == MAX else (a if a < b else b)


cdef inline int16_t half_key(int op, half h) noexcept nogil:
    """Return an integer in the order of halves; a NaN's is beyond all others, as op requires."""
    cdef int16_t sign = -<int16_t> (h.bits >> 15), magnitude = h.bits & 0x7FFF
    if magnitude > 0x7C00:
        return 0x7FFF if op == MAX else -0x7FFF
    return (magnitude ^ sign) - sign


cdef inline bint selects_first(int op, number a, number b) noexcept nogil:
    """Return whether the max or min of two 16-bit floats is a, which it is if a is a NaN."""
    cdef float fa = 0, fb = 0
    if number is half:    # of equal values the first; of bfloat16 the second, as in ml_dtypes
        if op == MAX:
            return half_key(op, a) >= half_key(op, b)
        return half_key(op, a) <= half_key(op, b)
    if number is bfloat16:
        fa, fb = bfloat16_to_float(a), bfloat16_to_float(b)
        return ((fa > fb) if op == MAX else (fa < fb)) | (fa != fa)
    return True


cdef inline number reduce_pair(int op, number a, number b) noexcept nogil:
    """Return `a op b`, in a form that compilers vectorize; op is a constant, but for scalars."""
    cdef number r
    if number is boolean:    # without branches, which would mispredict
        if op == ADD:
            r.byte = (a.byte != 0) | (b.byte != 0)
        elif op == SUB:
            r.byte = (a.byte != 0) != (b.byte != 0)
        else:
            r.byte = (a.byte != 0) & (b.byte != 0)
    elif number is half or number is bfloat16:
        if op == MAX or op == MIN:
            r.bits = b.bits ^ ((a.bits ^ b.bits) & <uint16_t> -<int16_t> selects_first(op, a, b))
        elif number is half:
            r = float_to_half(reduce_floats(op, half_to_float(a), half_to_float(b)))
        elif op == ADD or op == MUL:    # of two NaNs, the second
            r = float_to_bfloat16(
                reduce_floats(op, bfloat16_to_float(b), bfloat16_to_float(a))
            )
        else:
            r = float_to_bfloat16(
                reduce_floats(op, bfloat16_to_float(a), bfloat16_to_float(b))
            )
    elif number is complex64 or number is complex128:
        if op == ADD:
            r.re = add_floats(a.re, b.re)
            r.im = add_floats(a.im, b.im)
        elif op == SUB:
            r.re = subtract_floats(a.re, b.re)
            r.im = subtract_floats(a.im, b.im)
        else:
            r.re = subtract_floats(multiply_floats(a.re, b.re), multiply_floats(a.im, b.im))
            r.im = add_floats(multiply_floats(a.re, b.im), multiply_floats(a.im, b.re))
    elif number is float or number is double:
        if op == MAX or op == MIN:
            r = ordered_extreme(op, a, b)
            r = a if a != a else r
        else:
            r = reduce_floats(op, a, b)
    else:
        # through uint64, where overflow wraps by definition, for every width and sign
        if op == ADD:
            r = <number> (<uint64_t> a + <uint64_t> b)
        elif op == MUL:
            r = <number> (<uint64_t> a * <uint64_t> b)
        elif op == SUB:
            r = <number> (<uint64_t> a - <uint64_t> b)
        elif op == MAX:
            r = a if a > b else b
        else:
            r = a if a < b else b
    return r


cdef inline real by_instruction(int op, real a, real b) noexcept nogil:
    if real is float:
        if op == SUB or op == DIV:
            return sub4(a, b) if op == SUB else div4(a, b)
        return add4(a, b) if op == ADD else mul4(a, b)
    else:
        if op == SUB or op == DIV:
            return sub8(a, b) if op == SUB else div8(a, b)
        return add8(a, b) if op == ADD else mul8(a, b)


cdef inline number reduce_pair_scalar(int op, number a, number b) noexcept nogil:
    """Return `a op b` with the lowest latency, for loops with a loop-carried dependency."""
    cdef number r
    if number is float or number is double:
        if op == MAX or op == MIN:    # maxss or minss, then a predictable branch
            r = ordered_extreme(op, a, b)
            return a if a != a else r
    if one_instruction:
        if number is float or number is double:
            return by_instruction(op, a, b)
        if number is complex64 or number is complex128:
            if op == ADD:
                r.re = by_instruction(ADD, a.re, b.re)
                r.im = by_instruction(ADD, a.im, b.im)
                return r
            if op == MUL:
                r.re = by_instruction(
                    SUB, by_instruction(MUL, a.re, b.re), by_instruction(MUL, a.im, b.im)
                )
                r.im = by_instruction(
                    ADD, by_instruction(MUL, a.re, b.im), by_instruction(MUL, a.im, b.re)
                )
                return r
    return reduce_pair(op, a, b)
