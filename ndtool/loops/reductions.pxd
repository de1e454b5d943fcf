# cython: language_level=3, wraparound=False, cdivision=True
# Reductions: loops over `out = out op update`, compiled for each element type and operation: over
# long rows (vectorized), over short rows, and over single elements by row index.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)

from ndtool.loops.indices cimport load_row_index, read_once
from ndtool.loops.memory cimport PREFETCH_DISTANCE, prefetch_lines, prefetch_slice
from ndtool.loops.arithmetic cimport (
    ADD, BFLOAT16, BOOL, COMPLEX64, COMPLEX128, DIV, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32,
    INT64, MAX, MIN, MUL, SUB, UINT8, UINT16, UINT32, UINT64, bfloat16, boolean, reduce_pair,
    reduce_pair_scalar, complex64, complex128, half, number, signed_integer,
)

cdef extern from *:
    """
    #if defined(__GNUC__) && !defined(__clang__)
      #define ndtool_flatten __attribute__((flatten))  /* inlines all calls */
    #else
      #define ndtool_flatten
    #endif
    static inline Py_ssize_t ndtool_reduce_rows(int, int, void const *) ndtool_flatten;
    static inline Py_ssize_t ndtool_reduce_bfloat16(int, void const *) ndtool_flatten ndtool_twice;
    static inline Py_ssize_t ndtool_reduce_block(int, int, void const *) ndtool_flatten;
    static inline Py_ssize_t ndtool_reduce_elements(int, int, void const *) ndtool_flatten;
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
      #include <immintrin.h>
      /* out = out op updates of float16, by conversions in hardware, which ignore the state of
         floats; also the last elements, so that the division of a row affects no bit */
      #define NDTOOL_F16C __attribute__((target("avx,f16c"))) static
      #define NDTOOL_HALF_OP(name, result) \\
          NDTOOL_F16C inline __m128i ndtool_half8_##name(__m128i out, __m128i updates) { \\
              __m256 a = _mm256_cvtph_ps(out), b = _mm256_cvtph_ps(updates); \\
              return _mm256_cvtps_ph(result, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); \\
          } \\
          NDTOOL_F16C void ndtool_half_##name(void *target, const void *source, Py_ssize_t n) { \\
              uint16_t *out = (uint16_t *) target; \\
              const uint16_t *updates = (const uint16_t *) source; \\
              __m128i rest[2] = {_mm_setzero_si128(), _mm_setzero_si128()}; \\
              Py_ssize_t i; \\
              for (i = 0; i + 8 <= n; i += 8) \\
                  _mm_storeu_si128((__m128i *) (out + i), ndtool_half8_##name( \\
                      _mm_loadu_si128((const __m128i *) (out + i)), \\
                      _mm_loadu_si128((const __m128i *) (updates + i)))); \\
              if (i == n) return; \\
              memcpy(&rest[0], out + i, (size_t) (n - i) * 2); \\
              memcpy(&rest[1], updates + i, (size_t) (n - i) * 2); \\
              rest[0] = ndtool_half8_##name(rest[0], rest[1]); \\
              memcpy(out + i, &rest[0], (size_t) (n - i) * 2); \\
          }
      /* of two NaNs, an addition returns the first; compilers may swap its operands */
      #define NDTOOL_FIRST_NAN _mm256_blendv_ps(b, a, _mm256_cmp_ps(a, a, _CMP_UNORD_Q))
      NDTOOL_HALF_OP(add, _mm256_add_ps(a, NDTOOL_FIRST_NAN))
      NDTOOL_HALF_OP(multiply, _mm256_mul_ps(a, NDTOOL_FIRST_NAN))
      NDTOOL_HALF_OP(subtract, _mm256_sub_ps(a, b))
      NDTOOL_HALF_OP(divide, _mm256_div_ps(a, b))
      #define ndtool_has_f16c() __builtin_cpu_supports("f16c")
    #else
      #define ndtool_half_add(out, updates, n) ((void) 0)
      #define ndtool_half_multiply(out, updates, n) ((void) 0)
      #define ndtool_half_subtract(out, updates, n) ((void) 0)
      #define ndtool_half_divide(out, updates, n) ((void) 0)
      #define ndtool_has_f16c() 0
    #endif
    """
    bint has_f16c "ndtool_has_f16c"() noexcept nogil
    void half_add "ndtool_half_add"(void* out, const void* updates, Py_ssize_t n) noexcept nogil
    void half_multiply "ndtool_half_multiply"(
        void* out, const void* updates, Py_ssize_t n
    ) noexcept nogil
    void half_subtract "ndtool_half_subtract"(
        void* out, const void* updates, Py_ssize_t n
    ) noexcept nogil
    void half_divide "ndtool_half_divide"(
        void* out, const void* updates, Py_ssize_t n
    ) noexcept nogil


cdef enum:
    PREFETCH_INTERVAL = 16    # elements between prefetches

cdef enum:    # which loop
    ROWS
    SHORT_ROWS
    ELEMENTS


cdef struct Reduction:
    # n slices of `width` bytes, the i-th at target + offsets[i], and their updates
    uint8_t* target
    const int64_t* offsets
    const uint8_t* updates
    Py_ssize_t n, width
    const int64_t* positions    # of the updates of long rows, in units of `pitch` bytes
    Py_ssize_t pitch
    Py_ssize_t n_next           # long rows after the first n, to prefetch
    const uint8_t* rows         # instead of offsets: row indices of elements from `target` on
    int index_itemsize          # itemsize of these indices, 4 or 8
    uint64_t size               # the number of rows: indices from `size` on are out of bounds


cdef inline void reduce_slice(
    int op, number* out, const number* updates, Py_ssize_t elements
) noexcept nogil:
    """out[c] = out[c] op updates[c] for the elements of one slice."""
    cdef Py_ssize_t c
    if number is half:
        if elements >= 8 and op != MAX and op != MIN and has_f16c():
            if op == ADD:
                half_add(out, updates, elements)
            elif op == MUL:
                half_multiply(out, updates, elements)
            elif op == SUB:
                half_subtract(out, updates, elements)
            else:
                half_divide(out, updates, elements)
            return
    for c in range(elements):
        out[c] = reduce_pair(op, out[c], updates[c])


cdef inline Py_ssize_t reduce_long_rows(
    int op, number* typed_pointer, const Reduction* r
) noexcept nogil:
    """Apply n updates longer than a cache line, prefetching those some distance ahead."""
    cdef Py_ssize_t i, n = r.n, total = r.n + r.n_next, width = r.width
    cdef Py_ssize_t elements = width // <Py_ssize_t> sizeof(number)
    cdef Py_ssize_t ahead = max(1, PREFETCH_DISTANCE // 2 // width)
    for i in range(n):
        if i + ahead < total:
            prefetch_slice(r.updates + r.positions[i + ahead] * r.pitch, width)
            prefetch_slice(r.target + r.offsets[i + ahead], width)
        reduce_slice(
            op, <number*> (r.target + r.offsets[i]),
            <const number*> (r.updates + r.positions[i] * r.pitch), elements,
        )
    return n


cdef inline Py_ssize_t reduce_short_rows(
    int op, number* typed_pointer, const Reduction* r
) noexcept nogil:
    """Apply n contiguous updates of at most a cache line each."""
    cdef Py_ssize_t i, n = r.n, elements = r.width // sizeof(number)
    cdef const int64_t* offsets = r.offsets
    cdef const number* updates = <const number*> r.updates
    cdef uint8_t* target = r.target
    cdef number* out
    if elements != 1:
        for i in range(n):
            reduce_slice(op, <number*> (target + offsets[i]), updates + i * elements, elements)
    elif all_equal(offsets, n):
        reduce_one_element(op, <number*> (target + offsets[0]), updates, n)
    else:
        for i in range(n):
            out = <number*> (target + offsets[i])
            out[0] = reduce_pair_scalar(op, out[0], updates[i])
    return n


cdef inline bint all_equal(const int64_t* offsets, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(1, n):
        if offsets[i] != offsets[0]:
            return False
    return n > 1


cdef inline void reduce_one_element(
    int op, number* element, const number* updates, Py_ssize_t n
) noexcept nogil:
    """Apply n updates to one element, in a register: each update depends on the previous result."""
    cdef Py_ssize_t i
    cdef number value = element[0]
    for i in range(n):
        value = reduce_pair_scalar(op, value, updates[i])
    element[0] = value


cdef inline Py_ssize_t reduce_element_group(
    int op, number* out, int index_itemsize, const uint8_t* rows, const number* updates,
    uint64_t size, Py_ssize_t n
) noexcept nogil:
    """Apply n updates by row index, up to one out of bounds; return the number applied."""
    cdef uint64_t row
    cdef Py_ssize_t i
    for i in range(n):
        row = load_row_index(rows, i, index_itemsize)
        read_once(row)
        if row >= size:
            return i
        out[row] = reduce_pair_scalar(op, out[row], updates[i])
    return n


cdef inline Py_ssize_t reduce_row_elements(
    int op, number* out, int index_itemsize, const Reduction* r
) noexcept nogil:
    """Apply updates by row index, in groups of PREFETCH_INTERVAL, so that the loop is unrolled.

    Returns the number of updates applied; the caller applies the others by offset.
    """
    cdef const number* updates = <const number*> r.updates
    cdef const uint8_t* rows = r.rows
    cdef Py_ssize_t i = 0, applied = PREFETCH_INTERVAL
    if r.width != <Py_ssize_t> sizeof(number):
        return 0
    while applied == PREFETCH_INTERVAL and i + PREFETCH_INTERVAL <= r.n:
        prefetch_lines(rows + PREFETCH_DISTANCE, PREFETCH_INTERVAL * index_itemsize)
        prefetch_lines(
            <const uint8_t*> updates + PREFETCH_DISTANCE, PREFETCH_INTERVAL * sizeof(number)
        )
        applied = reduce_element_group(
            op, out, index_itemsize, rows, updates, r.size, PREFETCH_INTERVAL
        )
        i += applied
        rows += PREFETCH_INTERVAL * index_itemsize
        updates += PREFETCH_INTERVAL
    if applied == PREFETCH_INTERVAL:
        i += reduce_element_group(op, out, index_itemsize, rows, updates, r.size, r.n - i)
    return i


cdef inline Py_ssize_t run_reduction_loop(
    int loop, int op, number* typed_pointer, const Reduction* r
) noexcept nogil:
    """Run a loop with the operation and the itemsize of row indices as compile-time constants."""
    if loop == ROWS:
        return reduce_long_rows(op, typed_pointer, r)
    if loop == SHORT_ROWS:
        return reduce_short_rows(op, typed_pointer, r)
    if r.index_itemsize == 8:
        return reduce_row_elements(op, typed_pointer, 8, r)
    return reduce_row_elements(op, typed_pointer, 4, r)


cdef inline Py_ssize_t reduce_typed(
    int loop, int op, number* typed_pointer, const Reduction* r
) noexcept nogil:
    """Call the loop for an operation and the type of `typed_pointer`; return how many updates."""
    if number is not complex64 and number is not complex128:
        if op == MAX:
            return run_reduction_loop(loop, MAX, typed_pointer, r)
        if op == MIN:
            return run_reduction_loop(loop, MIN, typed_pointer, r)
    if number in signed_integer:    # add, sub and mul use the unsigned types
        return 0
    if op == ADD:
        return run_reduction_loop(loop, ADD, typed_pointer, r)
    if op == SUB:
        return run_reduction_loop(loop, SUB, typed_pointer, r)
    if number is half or number is bfloat16 or number is float or number is double:
        if op == DIV:
            return run_reduction_loop(loop, DIV, typed_pointer, r)
    return run_reduction_loop(loop, MUL, typed_pointer, r)


cdef inline bint is_light(int code) noexcept nogil:
    """Return whether the arithmetic of a type costs less than computing an element's offset."""
    return code not in (FLOAT16, BFLOAT16)


cdef inline Py_ssize_t reduce_updates(
    int loop, int code, int op, const Reduction* r
) noexcept nogil:
    """Call the loop for the element type `code`; return the number of updates applied."""
    if code == INT32:
        return reduce_typed(loop, op, <int32_t*> r.target, r)
    if code == INT64:
        return reduce_typed(loop, op, <int64_t*> r.target, r)
    if code == UINT32:
        return reduce_typed(loop, op, <uint32_t*> r.target, r)
    if code == UINT64:
        return reduce_typed(loop, op, <uint64_t*> r.target, r)
    if code == FLOAT32:
        return reduce_typed(loop, op, <float*> r.target, r)
    if code == FLOAT64:
        return reduce_typed(loop, op, <double*> r.target, r)
    if code == BOOL:
        return reduce_typed(loop, op, <boolean*> r.target, r)
    if code == INT8:
        return reduce_typed(loop, op, <int8_t*> r.target, r)
    if code == INT16:
        return reduce_typed(loop, op, <int16_t*> r.target, r)
    if code == UINT8:
        return reduce_typed(loop, op, <uint8_t*> r.target, r)
    if code == UINT16:
        return reduce_typed(loop, op, <uint16_t*> r.target, r)
    if code == COMPLEX64:
        return reduce_typed(loop, op, <complex64*> r.target, r)
    if code == COMPLEX128:
        return reduce_typed(loop, op, <complex128*> r.target, r)
    if loop == ELEMENTS:    # is_light excludes the types below
        return 0
    if code == FLOAT16:
        return reduce_typed(loop, op, <half*> r.target, r)
    if loop == ROWS:    # long rows of bfloat16 have a function of their own
        return 0
    return reduce_typed(loop, op, <bfloat16*> r.target, r)


cdef inline Py_ssize_t reduce_rows(int code, int op, const void* slices) noexcept nogil:
    """Apply the updates of a Reduction, each longer than a cache line."""
    if code == BFLOAT16:
        return reduce_bfloat16(op, slices)
    return reduce_other_rows(code, op, slices)


cdef inline Py_ssize_t reduce_bfloat16 "ndtool_reduce_bfloat16"(
    int op, const void* slices
) noexcept nogil:
    """Apply updates of bfloat16, whose conversions gain from wider SIMD."""
    cdef const Reduction* r = <const Reduction*> slices
    return reduce_typed(ROWS, op, <bfloat16*> r.target, r)


cdef inline Py_ssize_t reduce_other_rows "ndtool_reduce_rows"(
    int code, int op, const void* slices
) noexcept nogil:
    return reduce_updates(ROWS, code, op, <const Reduction*> slices)


cdef inline Py_ssize_t reduce_block "ndtool_reduce_block"(
    int code, int op, const void* slices
) noexcept nogil:
    """Apply the updates of a Reduction, each of at most a cache line."""
    return reduce_updates(SHORT_ROWS, code, op, <const Reduction*> slices)


cdef inline Py_ssize_t reduce_elements "ndtool_reduce_elements"(
    int code, int op, const void* slices
) noexcept nogil:
    """Apply single elements of a Reduction, up to an index out of bounds; return their count."""
    return reduce_updates(ELEMENTS, code, op, <const Reduction*> slices)
