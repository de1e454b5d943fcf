# cython: language_level=3, wraparound=False, cdivision=True
# Reductions: loops over `out = out op update`, compiled for each element type and operation: over
# rows of elements (vectorized), over single elements, and over single elements by row index.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)

from ndtool.loops.indices cimport load_row_index, read_once
from ndtool.loops.memory cimport PREFETCH_DISTANCE, prefetch_lines, prefetch_slice
from ndtool.loops.arithmetic cimport (
    ADD, BFLOAT16, BOOL, COMPLEX64, COMPLEX128, DIV, FLOAT16, FLOAT32, FLOAT64, INT8, INT64, MAX,
    MIN, MUL, SUB, UINT8, bfloat16, boolean, complex64, complex128, half, half_key, itemsizes,
    number, ordered_extreme, reduce_pair, reduce_pair_scalar, signed_integer,
)

ctypedef Py_ssize_t (*TypedLoop)(const void* reduction) noexcept nogil

ctypedef void (*HalfLoop)(
    uint8_t* target, const int64_t* offsets, const void* updates, Py_ssize_t n, Py_ssize_t elements
) noexcept nogil

cdef extern from *:
    """
    #if defined(__GNUC__) && !defined(__clang__)
      #define ndtool_flatten __attribute__((flatten, used)) /* inlines calls, is not inlined */
    #else
      #define ndtool_flatten
    #endif
    /* a function for each type: gcc takes several times as long for one that has all loops */
    #define NDTOOL_REDUCE(type) \\
        static inline Py_ssize_t ndtool_reduce_##type(void const *) ndtool_flatten
    NDTOOL_REDUCE(bool);
    NDTOOL_REDUCE(int8);
    NDTOOL_REDUCE(int16);
    NDTOOL_REDUCE(int32);
    NDTOOL_REDUCE(int64);
    NDTOOL_REDUCE(uint8);
    NDTOOL_REDUCE(uint16);
    NDTOOL_REDUCE(uint32);
    NDTOOL_REDUCE(uint64);
    NDTOOL_REDUCE(float16);
    NDTOOL_REDUCE(bfloat16) ndtool_twice;
    NDTOOL_REDUCE(float32);
    NDTOOL_REDUCE(float64);
    NDTOOL_REDUCE(complex64);
    NDTOOL_REDUCE(complex128);
    static Py_ssize_t (*const ndtool_typed_loops[])(void const *) = { /* by arithmetic type */
        ndtool_reduce_bool, ndtool_reduce_int8, ndtool_reduce_int16, ndtool_reduce_int32,
        ndtool_reduce_int64, ndtool_reduce_uint8, ndtool_reduce_uint16, ndtool_reduce_uint32,
        ndtool_reduce_uint64, ndtool_reduce_float16, ndtool_reduce_bfloat16,
        ndtool_reduce_float32, ndtool_reduce_float64, ndtool_reduce_complex64,
        ndtool_reduce_complex128,
    };
    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
      #include <immintrin.h>
      /* n slices of float16, by conversions in hardware, which ignore the state of floats; also
         single elements, so that the division of a row affects no bit */
      #define NDTOOL_F16C __attribute__((target("avx,f16c"))) static
      #define NDTOOL_HALF_TO_NEAREST _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC
      #define NDTOOL_HALF_OP(name, instruction) \\
          NDTOOL_F16C void ndtool_half_##name( \\
              uint8_t *target, const int64_t *offsets, const void *updates, Py_ssize_t n, \\
              Py_ssize_t elements) { \\
              const uint16_t *update = (const uint16_t *) updates; \\
              Py_ssize_t i, c; \\
              for (i = 0; i < n; i++, update += elements) { \\
                  uint16_t *out = (uint16_t *) (target + offsets[i]); \\
                  for (c = 0; c + 8 <= elements; c += 8) { \\
                      __m256 a = _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *) (out + c))); \\
                      __m256 b = _mm256_cvtph_ps( \\
                          _mm_loadu_si128((const __m128i *) (update + c))); \\
                      __asm__(instruction " %1, %0, %0" : "+x"(a) : "x"(b)); \\
                      _mm_storeu_si128( \\
                          (__m128i *) (out + c), _mm256_cvtps_ph(a, NDTOOL_HALF_TO_NEAREST)); \\
                  } \\
                  for (; c < elements; c++) { \\
                      __m128 a = _mm_cvtph_ps(_mm_cvtsi32_si128(out[c])); \\
                      __m128 b = _mm_cvtph_ps(_mm_cvtsi32_si128(update[c])); \\
                      __asm__(instruction " %1, %0, %0" : "+x"(a) : "x"(b)); \\
                      out[c] = (uint16_t) _mm_cvtsi128_si32( \\
                          _mm_cvtps_ph(a, NDTOOL_HALF_TO_NEAREST)); \\
                  } \\
              } \\
          }
      /* of two NaNs, the first: compilers would swap operands of a C expression */
      NDTOOL_HALF_OP(add, "vaddps")
      NDTOOL_HALF_OP(multiply, "vmulps")
      NDTOOL_HALF_OP(subtract, "vsubps")
      NDTOOL_HALF_OP(divide, "vdivps")
      #define ndtool_has_half_loops 1
      #define ndtool_has_f16c() __builtin_cpu_supports("f16c")
    #else
      #define ndtool_half_add NULL
      #define ndtool_half_multiply NULL
      #define ndtool_half_subtract NULL
      #define ndtool_half_divide NULL
      #define ndtool_has_half_loops 0
      #define ndtool_has_f16c() 0
    #endif
    """
    const TypedLoop[] typed_loops "ndtool_typed_loops"
    HalfLoop half_add "ndtool_half_add"
    HalfLoop half_multiply "ndtool_half_multiply"
    HalfLoop half_subtract "ndtool_half_subtract"
    HalfLoop half_divide "ndtool_half_divide"
    bint has_half_loops "ndtool_has_half_loops"
    bint has_f16c "ndtool_has_f16c"() noexcept nogil

cdef enum:
    PREFETCH_INTERVAL = 16    # elements between prefetches
    FEW_ELEMENTS = 3          # elements of a slice, up to which vectors are not faster
    FEW_COMPLEX = 8           # the same of complex64

cdef enum:    # which loop
    ROWS
    SINGLE
    ELEMENTS


cdef struct Reduction:
    # n slices of `width` bytes, the i-th at target + offsets[i], and their updates
    uint8_t* target
    const int64_t* offsets
    const uint8_t* updates
    Py_ssize_t n, width
    const int64_t* positions    # of the updates of rows, in units of `pitch` bytes; NULL: in order
    Py_ssize_t pitch
    Py_ssize_t n_next           # rows after the first n, to prefetch
    const uint8_t* rows         # instead of offsets: row indices of elements from `target` on
    int index_itemsize          # itemsize of these indices, 4 or 8
    uint64_t size               # the number of rows: indices from `size` on are out of bounds


cdef struct TypedReduction:
    # arguments of the functions below that are compiled for one element type
    const Reduction* slices
    int loop, op


cdef inline bint reduce_halves(
    int op, uint8_t* target, const int64_t* offsets, const void* updates, Py_ssize_t n,
    Py_ssize_t elements
) noexcept nogil:
    """Apply n contiguous updates by conversions in hardware; return whether there are any."""
    cdef HalfLoop loop = half_divide
    if op == MAX or op == MIN or not has_f16c():
        return False
    if op == ADD:
        loop = half_add
    elif op == MUL:
        loop = half_multiply
    elif op == SUB:
        loop = half_subtract
    loop(target, offsets, updates, n, elements)
    return True


cdef inline void reduce_slice(
    int op, number* out, const number* updates, Py_ssize_t elements
) noexcept nogil:
    """out[c] = out[c] op updates[c] for the elements of one slice."""
    cdef Py_ssize_t i, few = FEW_ELEMENTS
    cdef uint64_t c
    cdef int64_t zero = 0
    if number is half:
        if reduce_halves(op, <uint8_t*> out, &zero, updates, 1, elements):
            return
    if number is complex64:
        few = FEW_COMPLEX
    if number is complex128 or elements <= few:
        for i in range(elements):
            c = i
            read_once(c)    # which prevents vectors: they are not faster
            out[c] = reduce_pair_scalar(op, out[c], updates[c])
        return
    for i in range(elements):
        out[i] = reduce_pair(op, out[i], updates[i])


cdef inline Py_ssize_t reduce_slices(
    int op, number* typed_pointer, const Reduction* r
) noexcept nogil:
    """Apply n updates of several elements each, prefetching those some distance ahead."""
    cdef Py_ssize_t i, n = r.n, total = r.n + r.n_next, width = r.width, pitch = r.pitch
    cdef Py_ssize_t elements = width // <Py_ssize_t> sizeof(number)
    cdef Py_ssize_t ahead = max(1, PREFETCH_DISTANCE // 2 // width)
    cdef const int64_t* offsets = r.offsets
    cdef const int64_t* positions = r.positions
    cdef const uint8_t* update = r.updates
    cdef uint8_t* target = r.target
    for i in range(n):
        if positions != NULL:
            if i + ahead < total:
                prefetch_slice(r.updates + positions[i + ahead] * pitch, width)
                prefetch_slice(target + offsets[i + ahead], width)
            update = r.updates + positions[i] * pitch
        reduce_slice(op, <number*> (target + offsets[i]), <const number*> update, elements)
        update += pitch
    return n


cdef inline Py_ssize_t reduce_singles(
    int op, number* typed_pointer, const Reduction* r
) noexcept nogil:
    """Apply n contiguous updates of one element each."""
    cdef Py_ssize_t i, n = r.n
    cdef const int64_t* offsets = r.offsets
    cdef const number* updates = <const number*> r.updates
    cdef uint8_t* target = r.target
    cdef number* out
    if number is half:
        if reduce_halves(op, target, offsets, updates, n, 1):
            return n
    if all_equal(offsets, n):
        reduce_one_element(op, <number*> (target + offsets[0]), updates, n)
        return n
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
    cdef int16_t key, highest
    if number is half:
        if op == MAX or op == MIN:    # of which the loop compares no more than keys
            highest = half_key(op, value)
            for i in range(n):
                key = half_key(op, updates[i])
                if key > highest if op == MAX else key < highest:
                    highest, value = key, updates[i]
            element[0] = value
            return
    for i in range(n):
        if number is float or number is double:
            if op == MAX or op == MIN:    # without a select, which would double the latency
                if value != value:
                    break
                value = ordered_extreme(op, value, updates[i])
                continue
        value = reduce_pair_scalar(op, value, updates[i])
    element[0] = value


cdef inline Py_ssize_t reduce_element_group(
    int op, number* out, int index_itemsize, const uint8_t* rows,
    const number* updates, uint64_t size, Py_ssize_t n
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


cdef inline Py_ssize_t reduce_by_index(
    int op, number* out, int index_itemsize, const Reduction* r
) noexcept nogil:
    """Apply updates by row index, in groups of PREFETCH_INTERVAL, so that the loop is unrolled.

    Returns the number of updates applied; the caller applies the others by offset.
    """
    cdef const number* updates = <const number*> r.updates
    cdef const uint8_t* rows = r.rows
    cdef Py_ssize_t i = 0, applied = PREFETCH_INTERVAL
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
        if number is complex64 or number is complex128:
            if op != MUL:    # sums are rows of real numbers
                return 0
        return reduce_slices(op, typed_pointer, r)
    if loop == SINGLE:
        return reduce_singles(op, typed_pointer, r)
    if number is half or number is bfloat16:
        return 0
    if op == SUB or op == DIV:
        return 0
    if r.index_itemsize == 8:
        return reduce_by_index(op, typed_pointer, 8, r)
    return reduce_by_index(op, typed_pointer, 4, r)


cdef inline Py_ssize_t reduce_typed(const TypedReduction* c, number* no_element) noexcept nogil:
    """Call the loop for an operation and the type of `no_element`; return how many updates."""
    cdef const Reduction* r = c.slices
    cdef number* typed_pointer = <number*> r.target
    cdef int loop = c.loop, op = c.op
    if number is half or number is bfloat16:    # conversions cost more than branches
        if loop == SINGLE and op != MAX and op != MIN:
            return reduce_singles(op, typed_pointer, r)
        if number is half and has_half_loops and op != MAX and op != MIN:
            return reduce_slices(op, typed_pointer, r)
    if number is not boolean and number is not complex64 and number is not complex128:
        if op == MAX:
            return run_reduction_loop(loop, MAX, typed_pointer, r)
        if op == MIN:
            return run_reduction_loop(loop, MIN, typed_pointer, r)
    if number in signed_integer:    # the other operations are those of unsigned integers
        return 0
    if number is half or number is bfloat16 or number is float or number is double:
        if op == DIV:
            return run_reduction_loop(loop, DIV, typed_pointer, r)
    if op == ADD:
        return run_reduction_loop(loop, ADD, typed_pointer, r)
    if op == SUB:
        return run_reduction_loop(loop, SUB, typed_pointer, r)
    return run_reduction_loop(loop, MUL, typed_pointer, r)


cdef inline Py_ssize_t reduce_bool "ndtool_reduce_bool"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <boolean*> NULL)


cdef inline Py_ssize_t reduce_int8 "ndtool_reduce_int8"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <int8_t*> NULL)


cdef inline Py_ssize_t reduce_int16 "ndtool_reduce_int16"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <int16_t*> NULL)


cdef inline Py_ssize_t reduce_int32 "ndtool_reduce_int32"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <int32_t*> NULL)


cdef inline Py_ssize_t reduce_int64 "ndtool_reduce_int64"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <int64_t*> NULL)


cdef inline Py_ssize_t reduce_uint8 "ndtool_reduce_uint8"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <uint8_t*> NULL)


cdef inline Py_ssize_t reduce_uint16 "ndtool_reduce_uint16"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <uint16_t*> NULL)


cdef inline Py_ssize_t reduce_uint32 "ndtool_reduce_uint32"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <uint32_t*> NULL)


cdef inline Py_ssize_t reduce_uint64 "ndtool_reduce_uint64"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <uint64_t*> NULL)


cdef inline Py_ssize_t reduce_float16 "ndtool_reduce_float16"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <half*> NULL)


cdef inline Py_ssize_t reduce_bfloat16 "ndtool_reduce_bfloat16"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <bfloat16*> NULL)


cdef inline Py_ssize_t reduce_float32 "ndtool_reduce_float32"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <float*> NULL)


cdef inline Py_ssize_t reduce_float64 "ndtool_reduce_float64"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <double*> NULL)


cdef inline Py_ssize_t reduce_complex64 "ndtool_reduce_complex64"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <complex64*> NULL)


cdef inline Py_ssize_t reduce_complex128 "ndtool_reduce_complex128"(const void* c) noexcept nogil:
    return reduce_typed(<const TypedReduction*> c, <complex128*> NULL)


cdef inline bint is_by_index(int code, int op) noexcept nogil:
    """Return whether loops by row index are compiled for a reduction.

    Its arithmetic costs less than computing an element's offset.
    """
    return code != FLOAT16 and code != BFLOAT16 and op != SUB and op != DIV


cdef inline Py_ssize_t reduce_updates(
    int loop, int code, int op, const Reduction* r
) noexcept nogil:
    """Call the loop for the element type `code`; return the number of updates applied.

    Types with the same operation share its loops.
    """
    cdef TypedReduction c
    if code == BOOL:
        op = ADD if op == MAX else MUL if op == MIN else op
    elif INT8 <= code <= INT64 and op != MAX and op != MIN:
        code += UINT8 - INT8
    elif loop == ROWS and (op == ADD or op == SUB):
        code = FLOAT32 if code == COMPLEX64 else FLOAT64 if code == COMPLEX128 else code
    c.slices, c.loop, c.op = r, loop, op
    return typed_loops[code](&c)


cdef inline void reduce_block(int code, int op, const Reduction* r) noexcept nogil:
    """Apply the updates of a Reduction, in order, each of at most a cache line."""
    reduce_updates(SINGLE if r.width == itemsizes[code] else ROWS, code, op, r)
