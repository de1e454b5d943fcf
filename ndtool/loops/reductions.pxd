# cython: language_level=3, wraparound=False, cdivision=True
# Reductions: loops over `out = out op update`, one for each element type and operation.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)

from ndtool.loops.indices cimport number_at, once
from ndtool.loops.memory cimport AHEAD, prefetch_lines, prefetch_span
from ndtool.loops.arithmetic cimport (
    ADD, BFLOAT16, BOOL, COMPLEX64, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64, MAX, MUL,
    UINT8, UINT16, UINT32, UINT64, MIN, brain, combined, combined_alone, combined_evenly, complex64,
    complex128, half, number, truth,
)

cdef extern from *:
    """
    #if defined(__GNUC__) && !defined(__clang__)
      #define ndtool_whole __attribute__((flatten))  /* with all that it calls */
    #else
      #define ndtool_whole
    #endif
    static inline void ndtool_reduce_rows(int, int, void const *) ndtool_whole ndtool_clones;
    static inline Py_ssize_t ndtool_reduce_elements(int, int, void const *) ndtool_whole;
    """


cdef enum:
    UNROLLED = 256       # bytes of a long run that are reduced in a loop of constant length
    PACE = 16            # elements for which what comes later is asked for at once


cdef struct Reduced:
    # n runs of `width` bytes, the first byte of each at to + its offset, and their updates
    uint8_t* to
    const int64_t* offsets
    const uint8_t* updates
    Py_ssize_t n, width
    const int64_t* numbers    # which updates, `pitch` bytes apart; NULL for all, side by side
    Py_ssize_t pitch
    Py_ssize_t more           # numbered runs that follow the n, to be asked for
    const uint8_t* elements   # instead of offsets: the numbers of elements that begin at `to`
    int bytes_each            # of these numbers
    uint64_t size             # from where on they name none


cdef inline void reduce_run(
    int op, number* out, const number* updates, Py_ssize_t m
) noexcept nogil:
    """out[c] = out[c] op updates[c] for the m elements of one run."""
    cdef Py_ssize_t c
    if op == ADD:
        for c in range(m):
            out[c] = combined_evenly(ADD, out[c], updates[c])
    elif op == MUL:
        for c in range(m):
            out[c] = combined_evenly(MUL, out[c], updates[c])
    elif op == MAX:
        for c in range(m):
            out[c] = combined_evenly(MAX, out[c], updates[c])
    else:
        for c in range(m):
            out[c] = combined_evenly(MIN, out[c], updates[c])


cdef inline void reduce_long(
    int op, number* out, const number* updates, Py_ssize_t m
) noexcept nogil:
    """reduce_run, a constant number of elements at a time, whose loop is unrolled."""
    cdef Py_ssize_t c = 0, some = UNROLLED // sizeof(number)
    while c + some <= m:
        reduce_run(op, out + c, updates + c, UNROLLED // sizeof(number))
        c += some
    reduce_run(op, out + c, updates + c, m - c)


cdef inline number extreme(
    int op, number value, const number* updates, Py_ssize_t n
) noexcept nogil:
    """Return the maximum or minimum of a value and n updates.

    Which of equal ones or of NaNs it is depends on their order alone, not on what is compared
    first: so quarters are gone through side by side, since each comparison waits for the last.
    """
    cdef Py_ssize_t i, m = n // 4
    cdef number a, b, c, d
    if m:
        a, b, c, d = updates[0], updates[m], updates[2 * m], updates[3 * m]
        for i in range(1, m):
            a = combined(op, a, updates[i])
            b = combined(op, b, updates[m + i])
            c = combined(op, c, updates[2 * m + i])
            d = combined(op, d, updates[3 * m + i])
        value = combined(op, combined(op, value, a), b)
        value = combined(op, combined(op, value, c), d)
    for i in range(4 * m, n):
        value = combined(op, value, updates[i])
    return value


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
        value = extreme(MAX, value, updates, n)
    else:
        value = extreme(MIN, value, updates, n)
    slot[0] = value


cdef inline bint all_same(const int64_t* offsets, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(1, n):
        if offsets[i] != offsets[0]:
            return False
    return n > 1


cdef inline void reduce_numbered(
    int op, number* of, const Reduced* r, Py_ssize_t width
) noexcept nogil:
    """Apply long updates, found by their numbers, asking for those some way ahead.

    A constant width lets loops be unrolled, which takes a tenth less.
    """
    cdef Py_ssize_t i, m = width // <Py_ssize_t> sizeof(number), ahead = max(1, AHEAD // 2 // width)
    cdef Py_ssize_t n = r.n, known = r.n + r.more
    for i in range(n):
        if i + ahead < known:
            prefetch_span(r.updates + r.numbers[i + ahead] * r.pitch, width)
            prefetch_span(r.to + r.offsets[i + ahead], width)
        reduce_long(
            op, <number*> (r.to + r.offsets[i]),
            <const number*> (r.updates + r.numbers[i] * r.pitch), m,
        )


cdef inline Py_ssize_t reduce_some(
    number* out, int op, int bytes_each, const uint8_t* elements, const number* updates,
    uint64_t size, Py_ssize_t n
) noexcept nogil:
    """Apply n updates to the elements of these numbers; return how many come before one of none.

    Numbers in two bytes were checked.
    """
    cdef uint64_t at
    cdef Py_ssize_t i
    for i in range(n):
        at = number_at(elements, i, bytes_each)
        if bytes_each != 2:
            once(at)
            if at >= size:
                return i
        out[at] = combined_alone(op, out[at], updates[i])
    return n


cdef inline Py_ssize_t reduce_by(
    number* out, int op, int bytes_each, const Reduced* r
) noexcept nogil:
    """reduce_some, asking for what follows with every PACE of them.

    Sums and products take a tenth less in a loop that is unrolled, maxima a tenth more.
    """
    cdef const number* updates = <const number*> r.updates
    cdef const uint8_t* elements = r.elements
    cdef Py_ssize_t i = 0, done, take, n = r.n
    while i < n:
        take = min(PACE, n - i)
        prefetch_lines(elements + AHEAD, PACE * bytes_each)
        prefetch_lines(<const uint8_t*> updates + AHEAD, PACE * sizeof(number))
        if take == PACE and (op == ADD or op == MUL):
            done = reduce_some(out, op, bytes_each, elements, updates, r.size, PACE)
        else:
            done = reduce_some(out, op, bytes_each, elements, updates, r.size, take)
        i += done
        if done < take:
            break
        elements += take * bytes_each
        updates += take
    return i


cdef inline Py_ssize_t reduce_sized(
    number* out, int op, int bytes_each, const Reduced* r
) noexcept nogil:
    """reduce_by, in a loop for each operation."""
    if op == ADD:
        return reduce_by(out, ADD, bytes_each, r)
    if op == MUL:
        return reduce_by(out, MUL, bytes_each, r)
    if op == MAX:
        return reduce_by(out, MAX, bytes_each, r)
    return reduce_by(out, MIN, bytes_each, r)


cdef inline Py_ssize_t reduce_elements_of(number* out, int op, const Reduced* r) noexcept nogil:
    if r.bytes_each == 8:
        return reduce_sized(out, op, 8, r)
    if r.bytes_each == 4:
        return reduce_sized(out, op, 4, r)
    return reduce_sized(out, op, 2, r)


cdef inline Py_ssize_t reduce_typed(
    number* of, int op, const Reduced* r, bint by_number
) noexcept nogil:
    """Apply n runs of elements of the type that `of` points to, in order."""
    cdef Py_ssize_t i, n = r.n, m = r.width // sizeof(number)
    cdef uint8_t* out = r.to
    cdef const int64_t* offsets = r.offsets
    cdef const number* updates = <const number*> r.updates
    cdef number* slot
    if by_number:
        return reduce_elements_of(of, op, r) if m == 1 else 0
    if r.numbers and r.width == UNROLLED:
        reduce_numbered(op, of, r, UNROLLED)
    elif r.numbers:
        reduce_numbered(op, of, r, r.width)
    elif m != 1:
        for i in range(n):
            reduce_run(op, <number*> (out + offsets[i]), updates + i * m, m)
    elif all_same(offsets, n):
        reduce_slot(op, <number*> (out + offsets[0]), updates, n)
    elif op == ADD:
        for i in range(n):
            slot = <number*> (out + offsets[i])
            slot[0] = combined_alone(ADD, slot[0], updates[i])
    elif op == MUL:
        for i in range(n):
            slot = <number*> (out + offsets[i])
            slot[0] = combined_alone(MUL, slot[0], updates[i])
    elif op == MAX:
        for i in range(n):
            slot = <number*> (out + offsets[i])
            slot[0] = combined_alone(MAX, slot[0], updates[i])
    else:
        for i in range(n):
            slot = <number*> (out + offsets[i])
            slot[0] = combined_alone(MIN, slot[0], updates[i])
    return n


cdef inline Py_ssize_t reduce_block(
    int code, int op, const Reduced* r, bint by_number
) noexcept nogil:
    """Apply n runs of the type `code`, or up to n elements by their numbers; return how many."""
    if code == BOOL:
        return reduce_typed(<truth*> r.to, op, r, by_number)
    if code == INT8:
        return reduce_typed(<int8_t*> r.to, op, r, by_number)
    if code == INT16:
        return reduce_typed(<int16_t*> r.to, op, r, by_number)
    if code == INT32:
        return reduce_typed(<int32_t*> r.to, op, r, by_number)
    if code == INT64:
        return reduce_typed(<int64_t*> r.to, op, r, by_number)
    if code == UINT8:
        return reduce_typed(<uint8_t*> r.to, op, r, by_number)
    if code == UINT16:
        return reduce_typed(<uint16_t*> r.to, op, r, by_number)
    if code == UINT32:
        return reduce_typed(<uint32_t*> r.to, op, r, by_number)
    if code == UINT64:
        return reduce_typed(<uint64_t*> r.to, op, r, by_number)
    if code == FLOAT16:
        return reduce_typed(<half*> r.to, op, r, by_number)
    if code == BFLOAT16:
        return reduce_typed(<brain*> r.to, op, r, by_number)
    if code == FLOAT32:
        return reduce_typed(<float*> r.to, op, r, by_number)
    if code == FLOAT64:
        return reduce_typed(<double*> r.to, op, r, by_number)
    if code == COMPLEX64:
        return reduce_typed(<complex64*> r.to, op, r, by_number)
    return reduce_typed(<complex128*> r.to, op, r, by_number)


cdef inline void reduce_rows "ndtool_reduce_rows"(
    int code, int op, const void* reduced
) noexcept nogil:
    """Apply long runs, in vectors."""
    reduce_block(code, op, <const Reduced*> reduced, False)


cdef inline Py_ssize_t reduce_elements "ndtool_reduce_elements"(
    int code, int op, const void* reduced
) noexcept nogil:
    """Apply single elements by their numbers, up to one that names none; return how many."""
    return reduce_block(code, op, <const Reduced*> reduced, True)
