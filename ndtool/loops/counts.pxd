# cython: language_level=3, wraparound=False, cdivision=True
# Counts of the updates of each slice of an output: they identify the first one, and are the
# divisors of means. The thread that owns a slice counts its updates.

from libc.stdint cimport int8_t, int16_t, int32_t, int64_t, uint8_t, uint32_t, uint64_t

from ndtool.loops.arithmetic cimport (
    BFLOAT16, COMPLEX64, FLOAT16, FLOAT32, UINT8, UINT64, bfloat16, bfloat16_to_float,
    float_to_bfloat16, float_to_half, half, half_to_float, itemsizes, real,
)
from ndtool.loops.blocks cimport DROPPED
from ndtool.loops.indices cimport load_row_index, read_once
from ndtool.loops.memory cimport PREFETCH_DISTANCE    # it defines ndtool_twice
from ndtool.loops.rowtable cimport RowTable, first_slot, slot_of

cdef extern from *:
    """
    static inline uint64_t ndtool_divide_task(void const *, int64_t, int) ndtool_twice;
    """


ctypedef fused summand:
    uint8_t    # the first byte of an integer of any type
    half
    bfloat16
    float
    double


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


cdef inline void divide_integer(
    uint8_t* sum, int itemsize, bint is_signed, int64_t count
) noexcept nogil:
    """Divide an integer, rounding down. One loop serves all types: the division takes the time."""
    cdef int64_t v
    if itemsize == 1:
        v = (<int8_t*> sum)[0]
    elif itemsize == 2:
        v = (<int16_t*> sum)[0]
    elif itemsize == 4:
        v = (<int32_t*> sum)[0]
    else:
        v = (<int64_t*> sum)[0]
    if is_signed:
        v = v // count - (v % count < 0)
    else:    # without the copies of the sign
        v = <int64_t> (
            (<uint64_t> v << (64 - 8 * itemsize) >> (64 - 8 * itemsize)) // <uint64_t> count
        )
    if itemsize == 1:
        (<int8_t*> sum)[0] = <int8_t> v
    elif itemsize == 2:
        (<int16_t*> sum)[0] = <int16_t> v
    elif itemsize == 4:
        (<int32_t*> sum)[0] = <int32_t> v
    else:
        (<int64_t*> sum)[0] = v


cdef inline void divide_sum(
    summand* sum, int itemsize, bint is_signed, int64_t count
) noexcept nogil:
    """Divide a sum: floats rounded once, integers rounded down."""
    if summand is half:
        sum[0] = float_to_half(half_to_float(sum[0]) / <float> count)
    elif summand is bfloat16:
        sum[0] = float_to_bfloat16(bfloat16_to_float(sum[0]) / <float> count)
    elif summand is uint8_t:
        divide_integer(sum, itemsize, is_signed, count)
    else:
        sum[0] = sum[0] / <summand> count


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
    const Means* m, summand* out, int itemsize, int64_t first, int64_t stop
) noexcept nogil:
    cdef Py_ssize_t c, elements = m.counts.width // itemsize
    cdef int64_t n, row, count
    cdef uint8_t* slice
    if summand is float or summand is double:
        if elements == 1 and m.counts.itemsize == 4 and m.counts.table.keys == NULL:
            means_of_elements(m, out, first, stop)
            return 0
    for n in range(first, stop):
        count = count_at(&m.counts, n)
        if count:
            count += m.include_self
            row = n if m.counts.table.keys == NULL else <int64_t> m.counts.table.keys[n] - 1
            slice = m.target + row * m.counts.width
            for c in range(elements):
                divide_sum(<summand*> (slice + c * itemsize), itemsize, m.code < UINT8, count)
    return 0


cdef inline uint64_t divide_task "ndtool_divide_task"(
    const void* sums, int64_t task, int thread
) noexcept nogil:
    """Divide a task's share of the sums of a Means by their counts."""
    cdef const Means* m = <const Means*> sums
    cdef int64_t first = m.slices * task // m.tasks, stop = m.slices * (task + 1) // m.tasks
    if m.code <= UINT64:
        return means_typed(m, m.target, itemsizes[m.code], first, stop)
    if m.code == FLOAT16:
        return means_typed(m, <half*> m.target, 2, first, stop)
    if m.code == BFLOAT16:
        return means_typed(m, <bfloat16*> m.target, 2, first, stop)
    if m.code == FLOAT32 or m.code == COMPLEX64:    # two real numbers
        return means_typed(m, <float*> m.target, 4, first, stop)
    return means_typed(m, <double*> m.target, 8, first, stop)
