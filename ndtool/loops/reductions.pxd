# cython: language_level=3, wraparound=False, cdivision=True
# Reductions: loops over `out = out op update`, one for each element type and operation.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)

cimport ndtool.loops.memory  # for ndtool_clones
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
    static inline void ndtool_reduce_row(
        int, int, uint8_t *, uint8_t const *, Py_ssize_t
    ) ndtool_whole ndtool_clones;
    """


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
