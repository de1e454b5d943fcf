# cython: language_level=3, wraparound=False, cdivision=True
# Counts of the updates of each slice of an output. Means are sums divided by counts. If current
# values are excluded, the first update of a slice (its count is 0) is copied. The thread that owns
# a slice counts its updates.

from libc.stdint cimport (
    int8_t, int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t,
)

from libc.string cimport memchr

from ndtool.loops.arithmetic cimport (
    BFLOAT16, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32, INT64, UINT8,
    UINT16, UINT32, bfloat16, bfloat16_to_float, complex64, complex128, float_to_bfloat16,
    float_to_half, half, half_to_float, number, real,
)
from ndtool.loops.blocks cimport DROPPED
from ndtool.loops.indices cimport read_once, load_row_index
from ndtool.loops.memory cimport PREFETCH_DISTANCE    # it defines ndtool_twice
from ndtool.loops.rowtable cimport RowTable, first_slot, slot_of

cdef extern from *:
    """
    static inline uint64_t ndtool_means_part(void const *, int64_t) ndtool_twice;
    """

cdef enum:
    UNROLLED = 16    # tuples

ctypedef fused counter:
    uint8_t     # a flag: the slice has updates
    uint32_t
    uint64_t


cdef struct Counts:
    # a count for each slice from `origin` on; data: NULL if the reduction needs none
    uint8_t* data
    int count_itemsize
    const uint8_t* origin
    Py_ssize_t width            # bytes of a slice
    int64_t slices
    bint has_totals             # the upper halves, of 8 bytes, are the counts after all updates
    int shift                   # log2 of the width, -1 if it is no power of two
    bint copies_first_update    # whether the first update replaces the current value
    bint per_window             # counts are in a thread's scratch, zeroed for each window
    RowTable table              # of few updates: numbers the slices that have any


cdef inline Counts no_counts() noexcept nogil:
    return Counts(NULL, 0, NULL, 0, 0, 0, False, False, False, RowTable(NULL, 0, 0))


cdef inline int64_t slice_index(const Counts* c, const uint8_t* slice_address) noexcept nogil:
    if c.shift >= 0:
        return (slice_address - c.origin) >> c.shift
    return (slice_address - c.origin) // c.width


cdef inline int64_t count_index(const Counts* c, const uint8_t* slice_address) noexcept nogil:
    """Return the index of a slice's count."""
    cdef int64_t n = slice_index(c, slice_address)
    cdef bint is_new
    return n if c.table.keys == NULL else slot_of(&c.table, n, &is_new)


cdef inline const uint8_t* count_address(
    const Counts* c, const uint8_t* slice_address
) noexcept nogil:
    """Return an address to prefetch before a slice's update is counted."""
    cdef int64_t n = slice_index(c, slice_address)
    if c.table.keys:
        return <const uint8_t*> (c.table.keys + first_slot(&c.table, n))
    return c.data + n * c.count_itemsize


cdef inline uint64_t count_at(const Counts* c, int64_t n) noexcept nogil:
    return (<uint32_t*> c.data)[n] if c.count_itemsize == 4 else (<uint64_t*> c.data)[n]


cdef inline bint count_update(counter* count) noexcept nogil:
    """Count an update; return whether it is the first."""
    cdef bint is_first = count[0] == 0
    if counter is uint8_t:
        count[0] = 1
    else:
        count[0] += 1
    return is_first


cdef inline bint count_slice(const Counts* c, const uint8_t* slice_address) noexcept nogil:
    """Count an update of the slice at an address; return whether it replaces the current value."""
    cdef int64_t n = count_index(c, slice_address)
    cdef bint is_first
    if c.count_itemsize == 1:
        is_first = count_update(c.data + n)
    elif c.count_itemsize == 4:
        is_first = count_update(<uint32_t*> c.data + n)
    else:
        is_first = count_update(<uint64_t*> c.data + n)
    return is_first and c.copies_first_update


cdef struct Occurrence:
    # an update of a slice: whether it is the first or the last one of `total`
    bint first, last
    uint64_t total


cdef inline Occurrence next_occurrence(
    const Counts* c, const uint8_t* slice_address
) noexcept nogil:
    """Count an update of the slice at `slice_address`, whose count of 8 bytes has a total."""
    cdef uint64_t* count = <uint64_t*> c.data + count_index(c, slice_address)
    cdef Occurrence occurrence
    occurrence.first = <uint32_t> count[0] == 0
    count[0] += 1
    occurrence.total = count[0] >> 32
    occurrence.last = <uint32_t> count[0] == occurrence.total
    return occurrence


cdef inline void add_totals(
    const Counts* c, const uint8_t* target, const int64_t* offsets, Py_ssize_t n
) noexcept nogil:
    """Add n updates to the totals of their slices; none is dropped."""
    cdef Py_ssize_t i
    for i in range(n):
        (<uint64_t*> c.data)[count_index(c, target + offsets[i])] += <uint64_t> 1 << 32


cdef inline bint any_dropped(const int64_t* offsets, Py_ssize_t n) noexcept nogil:
    """Return whether any of n tuples is dropped."""
    cdef Py_ssize_t i
    cdef bint dropped = False
    for i in range(n):
        dropped |= offsets[i] == DROPPED
    return dropped


cdef inline void count_block(
    const Counts* c, const uint8_t* target, const int64_t* offsets, Py_ssize_t n
) noexcept nogil:
    """Count n updates, none of them dropped or copied."""
    cdef Py_ssize_t i
    if c.count_itemsize == 4:
        for i in range(n):
            count_update(<uint32_t*> c.data + count_index(c, target + offsets[i]))
    else:
        for i in range(n):
            count_update(<uint64_t*> c.data + count_index(c, target + offsets[i]))


cdef inline bint all_counted(const Counts* c) noexcept nogil:
    """Return whether every slice has updates."""
    cdef int64_t n
    if c.table.keys:    # few slices have any
        return False
    if c.count_itemsize == 1:
        return memchr(c.data, 0, c.slices) == NULL
    for n in range(c.slices):
        if count_at(c, n) == 0:
            return False
    return True


cdef inline void count_rows_of(
    counter* counts, const uint8_t* rows, int index_itemsize, Py_ssize_t n, uint64_t size
) noexcept nogil:
    cdef Py_ssize_t i = 0
    while i + UNROLLED <= n:
        count_group(counts, rows, index_itemsize, i, i + UNROLLED, size)
        i += UNROLLED
    count_group(counts, rows, index_itemsize, i, n, size)


cdef inline void count_group(
    counter* counts, const uint8_t* rows, int index_itemsize, Py_ssize_t i, Py_ssize_t stop,
    uint64_t size
) noexcept nogil:
    cdef uint64_t row
    for i in range(i, stop):
        row = load_row_index(rows, i, index_itemsize)
        if index_itemsize != 2:    # not validated
            read_once(row)
            if row >= size:    # another process changed it after the reduction
                return
        counts[row] += 1


cdef inline void count_rows(
    const Counts* c, const uint8_t* target, const uint8_t* rows, int index_itemsize, Py_ssize_t n,
    uint64_t size
) noexcept nogil:
    """Count n updates by row index from `target` on, of `size` rows; none is dropped or copied."""
    cdef int64_t first = slice_index(c, target)
    if c.count_itemsize == 8:
        count_rows_of(<uint64_t*> c.data + first, rows, index_itemsize, n, size)
    else:
        count_rows_of(<uint32_t*> c.data + first, rows, index_itemsize, n, size)


cdef struct PartitionedUpdates:
    # the numbers of updates of a block to copy and to reduce
    Py_ssize_t n_copied, n_reduced


cdef inline PartitionedUpdates partition_typed(
    const Counts* c, counter* counts, const uint8_t* target, const int64_t* offsets, Py_ssize_t n,
    int64_t* copies, int64_t* reductions,
) noexcept nogil:
    cdef PartitionedUpdates lists = PartitionedUpdates(0, 0)
    cdef Py_ssize_t i
    cdef bint is_first
    for i in range(n):
        if offsets[i] == DROPPED:
            continue
        is_first = count_update(counts + count_index(c, target + offsets[i]))
        is_first = is_first and c.copies_first_update
        copies[lists.n_copied] = i    # to both lists: a branch would mispredict
        reductions[lists.n_reduced] = i
        lists.n_copied += is_first
        lists.n_reduced += not is_first
    return lists


cdef inline PartitionedUpdates partition_updates(
    const Counts* c, const uint8_t* target, const int64_t* offsets, Py_ssize_t n, int64_t* copies,
    int64_t* reductions,
) noexcept nogil:
    """Count n updates, and partition their indices into updates to copy and to reduce."""
    if c.count_itemsize == 1:
        return partition_typed(c, c.data, target, offsets, n, copies, reductions)
    if c.count_itemsize == 4:
        return partition_typed(c, <uint32_t*> c.data, target, offsets, n, copies, reductions)
    return partition_typed(c, <uint64_t*> c.data, target, offsets, n, copies, reductions)


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
        if elements == 1 and m.counts.count_itemsize == 4 and m.counts.table.keys == NULL:
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


cdef inline uint64_t means_task "ndtool_means_part"(const void* sums, int64_t task) noexcept nogil:
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
