# cython: language_level=3, wraparound=False, cdivision=True
# Counts of the updates of each slice of an output: they identify the first one, and are the
# divisors of means. The thread that owns a slice counts its updates.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)

from ndtool.loops.arithmetic cimport (
    BFLOAT16, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64, UINT8,
    UINT16, UINT32, bfloat16, bfloat16_to_float, complex64, complex128, float_to_bfloat16,
    float_to_half, half, half_to_float, number, real,
)
from ndtool.loops.blocks cimport DROPPED
from ndtool.loops.indices cimport load_row_index, read_once
from ndtool.loops.memory cimport PREFETCH_DISTANCE    # it defines ndtool_twice
from ndtool.loops.rowtable cimport RowTable, first_slot, slot_of

cdef extern from *:
    """
    static inline uint64_t ndtool_divide_task(void const *, int64_t, int) ndtool_twice;
    """


cdef struct Counts:
    # a count for each slice from `origin` on
    uint8_t* data          # NULL if updates are not counted, or each window has its own counts
    int itemsize           # bytes of a count, 4 or 8; 0 if updates are not counted
    const uint8_t* origin
    Py_ssize_t width       # bytes of a slice
    int shift              # log2 of the width, -1 if it is no power of two
    RowTable table         # of few updates: numbers the slices that have any


cdef inline Counts no_counts() noexcept nogil:
    return Counts(NULL, 0, NULL, 0, 0, RowTable(NULL, 0, 0))


cdef inline int64_t slice_index(const Counts* c, const uint8_t* slice_address) noexcept nogil:
    if c.shift >= 0:
        return (slice_address - c.origin) >> c.shift
    return (slice_address - c.origin) // c.width


cdef inline const uint8_t* count_address(
    const Counts* c, const uint8_t* slice_address
) noexcept nogil:
    """Return an address to prefetch before a slice's update is counted."""
    cdef int64_t n = slice_index(c, slice_address)
    if c.table.keys:
        return <const uint8_t*> (c.table.keys + first_slot(&c.table, n))
    return c.data + n * c.itemsize


cdef inline uint64_t count_at(const Counts* c, int64_t n) noexcept nogil:
    return (<uint32_t*> c.data)[n] if c.itemsize == 4 else (<uint64_t*> c.data)[n]


cdef inline void increment(const Counts* c, int64_t n) noexcept nogil:
    if c.itemsize == 4:
        (<uint32_t*> c.data)[n] += 1
    else:
        (<uint64_t*> c.data)[n] += 1


cdef inline bint count_update(const Counts* c, const uint8_t* slice_address) noexcept nogil:
    """Count an update of the slice at an address; return whether it is the slice's first."""
    cdef int64_t n = slice_index(c, slice_address)
    cdef bint is_first
    if c.table.keys:
        n = slot_of(&c.table, n, &is_first)
    is_first = count_at(c, n) == 0
    increment(c, n)
    return is_first


cdef inline bint any_dropped(const int64_t* offsets, Py_ssize_t n) noexcept nogil:
    """Return whether any of n tuples is dropped."""
    cdef Py_ssize_t i
    cdef bint dropped = False
    for i in range(n):
        dropped |= offsets[i] == DROPPED
    return dropped


cdef inline bint count_block(
    const Counts* c, const uint8_t* target, const int64_t* offsets, Py_ssize_t n, uint8_t* is_first
) noexcept nogil:
    """Count n updates, and set which are the first of their slices; return whether any is."""
    cdef uint32_t* counts = <uint32_t*> c.data
    cdef const uint8_t* origin = c.origin
    cdef Py_ssize_t i
    cdef int64_t row
    cdef uint32_t count
    cdef int shift = c.shift
    cdef uint8_t result = 0
    if c.itemsize == 4 and shift >= 0 and not c.table.keys and not any_dropped(offsets, n):
        for i in range(n):    # the same, without branches
            row = (target + offsets[i] - origin) >> shift
            count = counts[row]
            counts[row] = count + 1
            is_first[i] = count == 0
            result |= is_first[i]
        return result
    for i in range(n):
        is_first[i] = offsets[i] != DROPPED and count_update(c, target + offsets[i])
        result |= is_first[i]
    return result


cdef inline void count_rows(
    const Counts* c, const uint8_t* target, const uint8_t* rows, int index_itemsize, Py_ssize_t n,
    uint64_t size
) noexcept nogil:
    """Count n updates by row index from `target` on, of `size` rows; none is dropped."""
    cdef int64_t first = slice_index(c, target)
    cdef uint64_t row
    cdef Py_ssize_t i
    for i in range(n):
        row = load_row_index(rows, i, index_itemsize)
        read_once(row)
        if row >= size:    # another process changed it after the reduction
            return
        increment(c, first + row)


cdef struct Means:
    # sums of the arithmetic type `code`, to divide by the counts of their slices
    Counts counts
    uint8_t* target
    int64_t slices, tasks    # slices: or slots of the table
    int code
    bint include_self    # whether the current value counts


cdef inline number mean_of(number sum, uint64_t count) noexcept nogil:
    """Return sum / count: floats rounded once, integers rounded down."""
    cdef number r = sum
    cdef int64_t quotient, remainder
    if number is half:
        r = float_to_half(half_to_float(sum) / <float> <int64_t> count)
    elif number is bfloat16:
        r = float_to_bfloat16(bfloat16_to_float(sum) / <float> <int64_t> count)
    elif number is complex64:
        r.re = sum.re / <float> <int64_t> count
        r.im = sum.im / <float> <int64_t> count
    elif number is complex128:
        r.re = sum.re / <double> <int64_t> count
        r.im = sum.im / <double> <int64_t> count
    elif number is float or number is double:
        r = sum / <number> <int64_t> count
    elif number is uint8_t or number is uint16_t or number is uint32_t or number is uint64_t:
        r = <number> (<uint64_t> sum // count)
    elif number is int8_t or number is int16_t or number is int32_t or number is int64_t:
        quotient = <int64_t> sum // <int64_t> count
        remainder = <int64_t> sum % <int64_t> count
        r = <number> (quotient - (remainder < 0))
    return r


cdef inline void means_of_elements(
    const Means* m, real* out, int64_t first, int64_t stop
) noexcept nogil:
    """Divide sums of one float per slice, without a branch on the count, which would mispredict."""
    cdef const uint32_t* counts = <const uint32_t*> m.counts.data
    cdef int64_t n
    cdef uint32_t count, n_current = m.include_self
    cdef real mean
    for n in range(first, stop):
        count = counts[n]
        # int32: converted in SIMD
        mean = out[n] / <real> <int32_t> (count + n_current if count else 1)
        out[n] = mean if count else out[n]


cdef inline uint64_t means_typed(
    const Means* m, number* out, int64_t first, int64_t stop
) noexcept nogil:
    cdef Py_ssize_t c, elements = m.counts.width // <Py_ssize_t> sizeof(number)
    cdef int64_t n, row
    cdef uint64_t count
    cdef number* slice
    if number is float or number is double:
        if elements == 1 and m.counts.itemsize == 4 and m.counts.table.keys == NULL:
            means_of_elements(m, out, first, stop)
            return 0
    for n in range(first, stop):
        count = count_at(&m.counts, n)
        if count:
            count += m.include_self
            row = n if m.counts.table.keys == NULL else <int64_t> m.counts.table.keys[n] - 1
            slice = out + row * elements
            for c in range(elements):
                slice[c] = mean_of(slice[c], count)
    return 0


cdef inline uint64_t divide_task "ndtool_divide_task"(
    const void* sums, int64_t task, int thread
) noexcept nogil:
    """Divide a task's share of the sums of a Means by their counts."""
    cdef const Means* m = <const Means*> sums
    cdef int64_t first = m.slices * task // m.tasks, stop = m.slices * (task + 1) // m.tasks
    if m.code == INT8:
        return means_typed(m, <int8_t*> m.target, first, stop)
    if m.code == INT16:
        return means_typed(m, <int16_t*> m.target, first, stop)
    if m.code == INT32:
        return means_typed(m, <int32_t*> m.target, first, stop)
    if m.code == INT64:
        return means_typed(m, <int64_t*> m.target, first, stop)
    if m.code == UINT8:
        return means_typed(m, <uint8_t*> m.target, first, stop)
    if m.code == UINT16:
        return means_typed(m, <uint16_t*> m.target, first, stop)
    if m.code == UINT32:
        return means_typed(m, <uint32_t*> m.target, first, stop)
    if m.code == FLOAT16:
        return means_typed(m, <half*> m.target, first, stop)
    if m.code == BFLOAT16:
        return means_typed(m, <bfloat16*> m.target, first, stop)
    if m.code == FLOAT32:
        return means_typed(m, <float*> m.target, first, stop)
    if m.code == FLOAT64:
        return means_typed(m, <double*> m.target, first, stop)
    if m.code == COMPLEX64:
        return means_typed(m, <complex64*> m.target, first, stop)
    if m.code == COMPLEX128:
        return means_typed(m, <complex128*> m.target, first, stop)
    return means_typed(m, <uint64_t*> m.target, first, stop)
