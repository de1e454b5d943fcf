# cython: language_level=3, wraparound=False, cdivision=True
# Reductions: loops over `out = out op update`, compiled for each element type and operation: over
# long rows (vectorized), over short rows, and over single elements by row index.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)

from ndtool.loops.indices cimport read_once, row_at
from ndtool.loops.memory cimport AHEAD, prefetch_lines, prefetch_slice
from ndtool.loops.arithmetic cimport (
    ADD, BFLOAT16, BOOL, COMPLEX64, COMPLEX128, DIV, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32,
    INT64, MAX, MIN, MUL, SUB, UINT8, UINT16, UINT32, UINT64, bfloat16, boolean, combined,
    combined_scalar, complex64, complex128, half, number, signed_integer,
)

cdef extern from *:
    """
    #if defined(__GNUC__) && !defined(__clang__)
      #define ndtool_flatten __attribute__((flatten))  /* inlines all calls */
    #else
      #define ndtool_flatten
    #endif
    static inline Py_ssize_t ndtool_reduce_rows(int, int, void const *) ndtool_flatten ndtool_twice;
    static inline Py_ssize_t ndtool_reduce_block(int, int, void const *) ndtool_flatten;
    static inline Py_ssize_t ndtool_reduce_elements(int, int, void const *) ndtool_flatten;
    """


cdef enum:
    UNROLLED = 256       # bytes of a long row per loop of constant length
    PACE = 16            # elements between prefetches

cdef enum:    # which loop
    ROWS
    SHORT_ROWS
    ELEMENTS


cdef struct Reduction:
    # n slices of `width` bytes, the i-th at to + offsets[i], and their updates
    uint8_t* to
    const int64_t* offsets
    const uint8_t* updates
    Py_ssize_t n, width
    const int64_t* positions  # of long rows: those of their updates, in units of `pitch` bytes
    Py_ssize_t pitch
    Py_ssize_t more           # long rows after the first n, to prefetch
    const uint8_t* rows       # instead of offsets: stored row indices of elements from `to` on
    int bytes_each            # itemsize of these indices
    uint64_t size             # indices from here on are out of bounds


cdef inline void reduce_slice(
    int op, number* out, const number* updates, Py_ssize_t m
) noexcept nogil:
    """out[c] = out[c] op updates[c] for the m elements of one slice."""
    cdef Py_ssize_t c
    for c in range(m):
        out[c] = combined(op, out[c], updates[c])


cdef inline Py_ssize_t long_rows(int op, number* of, const Reduction* r) noexcept nogil:
    """Apply n updates longer than a cache line, prefetching others some distance ahead."""
    cdef Py_ssize_t i, c, n = r.n, total = r.n + r.more, width = r.width
    cdef Py_ssize_t m = width // <Py_ssize_t> sizeof(number), ahead = max(1, AHEAD // 2 // width)
    cdef Py_ssize_t chunk = UNROLLED // sizeof(number)
    cdef number* out
    cdef const number* update
    for i in range(n):
        if i + ahead < total:
            prefetch_slice(r.updates + r.positions[i + ahead] * r.pitch, width)
            prefetch_slice(r.to + r.offsets[i + ahead], width)
        out = <number*> (r.to + r.offsets[i])
        update = <const number*> (r.updates + r.positions[i] * r.pitch)
        c = 0
        while c + chunk <= m:    # a constant length, to unroll the loop
            reduce_slice(op, out + c, update + c, UNROLLED // sizeof(number))
            c += chunk
        if c < m:
            reduce_slice(op, out + c, update + c, m - c)
    return n


cdef inline Py_ssize_t short_rows(int op, number* of, const Reduction* r) noexcept nogil:
    """Apply n contiguous updates of at most a cache line each."""
    cdef Py_ssize_t i, n = r.n, m = r.width // sizeof(number)
    cdef const int64_t* offsets = r.offsets
    cdef const number* updates = <const number*> r.updates
    cdef uint8_t* to = r.to
    cdef number* out
    if m != 1:
        for i in range(n):
            reduce_slice(op, <number*> (to + offsets[i]), updates + i * m, m)
    elif all_same(offsets, n):
        one_element(op, <number*> (to + offsets[0]), updates, n)
    else:
        for i in range(n):
            out = <number*> (to + offsets[i])
            out[0] = combined_scalar(op, out[0], updates[i])
    return n


cdef inline bint all_same(const int64_t* offsets, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(1, n):
        if offsets[i] != offsets[0]:
            return False
    return n > 1


cdef inline void one_element(
    int op, number* element, const number* updates, Py_ssize_t n
) noexcept nogil:
    """Apply n updates to one element, held in a register: each update needs the previous result."""
    cdef Py_ssize_t i
    cdef number value = element[0]
    for i in range(n):
        value = combined_scalar(op, value, updates[i])
    element[0] = value


cdef inline Py_ssize_t element_group(
    int op, number* out, int bytes_each, const uint8_t* rows, const number* updates,
    uint64_t size, Py_ssize_t n
) noexcept nogil:
    """Apply n updates by row index, up to one out of bounds; return the number applied.

    Indices of two bytes are validated ones, which need no check.
    """
    cdef uint64_t at
    cdef Py_ssize_t i
    for i in range(n):
        at = row_at(rows, i, bytes_each)
        if bytes_each != 2:
            read_once(at)
            if at >= size:
                return i
        out[at] = combined_scalar(op, out[at], updates[i])
    return n


cdef inline Py_ssize_t row_elements(
    int op, number* out, int bytes_each, const Reduction* r
) noexcept nogil:
    """Apply updates by row index, in groups of PACE, a constant, so that the loop is unrolled.

    Returns the number applied; the caller applies the others by offset.
    """
    cdef const number* updates = <const number*> r.updates
    cdef const uint8_t* rows = r.rows
    cdef Py_ssize_t i = 0, done = PACE
    if r.width != <Py_ssize_t> sizeof(number):
        return 0
    while done == PACE and i + PACE <= r.n:
        prefetch_lines(rows + AHEAD, PACE * bytes_each)
        prefetch_lines(<const uint8_t*> updates + AHEAD, PACE * sizeof(number))
        done = element_group(op, out, bytes_each, rows, updates, r.size, PACE)
        i += done
        rows += PACE * bytes_each
        updates += PACE
    return i


cdef inline Py_ssize_t reduce_with(
    int loop, int op, number* of, const Reduction* r
) noexcept nogil:
    """Run a loop for an operation, which is a constant here, as are the bytes of row indices."""
    if loop == ROWS:
        return long_rows(op, of, r)
    if loop == SHORT_ROWS:
        return short_rows(op, of, r)
    if r.bytes_each == 8:
        return row_elements(op, of, 8, r)
    if r.bytes_each == 4:
        return row_elements(op, of, 4, r)
    return row_elements(op, of, 2, r)


cdef inline Py_ssize_t reduce_typed(
    int loop, int op, number* of, const Reduction* r
) noexcept nogil:
    """Select the operation for elements of the type that `of` points to; return their number."""
    if number is not complex64 and number is not complex128:
        if op == MAX:
            return reduce_with(loop, MAX, of, r)
        if op == MIN:
            return reduce_with(loop, MIN, of, r)
    if number in signed_integer:    # add, sub and mul use the unsigned types
        return 0
    if op == ADD:
        return reduce_with(loop, ADD, of, r)
    if op == SUB:
        return reduce_with(loop, SUB, of, r)
    if number is half or number is bfloat16 or number is float or number is double:
        if op == DIV:
            return reduce_with(loop, DIV, of, r)
    return reduce_with(loop, MUL, of, r)


cdef inline bint is_light(int code) noexcept nogil:
    """Return whether the arithmetic of a type costs less than computing an element's offset."""
    return code not in (FLOAT16, BFLOAT16, COMPLEX64, COMPLEX128)


cdef inline Py_ssize_t reduced(int loop, int code, int op, const Reduction* r) noexcept nogil:
    """Select the element type by its `code`, and run a loop; return the number of updates."""
    if code == INT32:
        return reduce_typed(loop, op, <int32_t*> r.to, r)
    if code == INT64:
        return reduce_typed(loop, op, <int64_t*> r.to, r)
    if code == UINT32:
        return reduce_typed(loop, op, <uint32_t*> r.to, r)
    if code == UINT64:
        return reduce_typed(loop, op, <uint64_t*> r.to, r)
    if code == FLOAT32:
        return reduce_typed(loop, op, <float*> r.to, r)
    if code == FLOAT64:
        return reduce_typed(loop, op, <double*> r.to, r)
    if code == BOOL:
        return reduce_typed(loop, op, <boolean*> r.to, r)
    if code == INT8:
        return reduce_typed(loop, op, <int8_t*> r.to, r)
    if code == INT16:
        return reduce_typed(loop, op, <int16_t*> r.to, r)
    if code == UINT8:
        return reduce_typed(loop, op, <uint8_t*> r.to, r)
    if code == UINT16:
        return reduce_typed(loop, op, <uint16_t*> r.to, r)
    if loop == ELEMENTS:    # is_light excludes the types below
        return 0
    if code == FLOAT16:
        return reduce_typed(loop, op, <half*> r.to, r)
    if code == BFLOAT16:
        return reduce_typed(loop, op, <bfloat16*> r.to, r)
    if code == COMPLEX64:
        return reduce_typed(loop, op, <complex64*> r.to, r)
    return reduce_typed(loop, op, <complex128*> r.to, r)


cdef inline Py_ssize_t reduce_rows "ndtool_reduce_rows"(
    int code, int op, const void* slices
) noexcept nogil:
    """Apply updates longer than a cache line: of a Reduction."""
    return reduced(ROWS, code, op, <const Reduction*> slices)


cdef inline Py_ssize_t reduce_block "ndtool_reduce_block"(
    int code, int op, const void* slices
) noexcept nogil:
    """Apply updates of at most a cache line: of a Reduction."""
    return reduced(SHORT_ROWS, code, op, <const Reduction*> slices)


cdef inline Py_ssize_t reduce_elements "ndtool_reduce_elements"(
    int code, int op, const void* slices
) noexcept nogil:
    """Apply single elements by row index, up to one out of bounds; return their number."""
    return reduced(ELEMENTS, code, op, <const Reduction*> slices)
