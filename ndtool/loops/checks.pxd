# cython: language_level=3, wraparound=False, cdivision=True
# Checks: bounds checks of index tuples without a gather or scatter; the search for the first tuple
# out of bounds; and a sample of how many tuples are spatially local.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport (
    BLOCK, Cursor, IndexSpace, Walk, block_size, convert_next_offsets, next_offsets, seek,
)
from ndtool.loops.indices cimport (
    ENTRIES, ERROR, UNVECTORIZED, as_int64, as_int64_bits, bound_index_exact,
)
from ndtool.loops.memory cimport PREFETCH_DISTANCE, prefetch_lines

cdef enum:
    SAMPLES = 64          # samples of a walk
    SAMPLE_TUPLES = 16    # tuples of a sample
    RANGE = 4096          # tuples checked at once; if the check fails, they are searched one by one
    LOCAL_BYTES = 4096    # bytes: slices at most this far apart are spatially local


cdef struct Check:
    Walk walk
    int64_t count, tasks
    uint8_t* offsets       # for flatten_task: where the offset of each tuple is stored
    int offset_bytes       # 4 or 8


cdef inline uint64_t check_task(const void* args, int64_t task, int thread) noexcept nogil:
    cdef const Check* c = <const Check*> args
    return check_range(
        &c.walk, c.count * task // c.tasks, c.count * (task + 1) // c.tasks
    )


cdef inline uint64_t flatten_task(const void* args, int64_t task, int thread) noexcept nogil:
    """Store the offset of each stored tuple, from the lowest; non-zero if one is out of bounds."""
    cdef const Check* c = <const Check*> args
    cdef int64_t offsets[BLOCK]
    cdef IndexSpace space = without_batches(c.walk.space, c.count)
    cdef Walk walk = c.walk
    cdef int64_t t = c.count * task // c.tasks, stop = c.count * (task + 1) // c.tasks, n, i
    cdef Cursor cursor
    walk.space, walk.first = &space, 0
    seek(&cursor, &walk, t)
    while t < stop:
        n = min(block_size(&space), stop - t)
        if convert_next_offsets(&cursor, &walk, t, n, offsets):
            return 1
        for i in range(n):
            offsets[i] -= space.lowest
        if c.offset_bytes == 8:
            memcpy(c.offsets + 8 * t, offsets, 8 * n)
        else:
            for i in range(n):
                (<uint32_t*> c.offsets)[t + i] = <uint32_t> offsets[i]
        t += n
    return 0


cdef inline IndexSpace without_batches(const IndexSpace* space, int64_t count) noexcept nogil:
    """Return the space of a range of `count` stored tuples."""
    cdef IndexSpace one = space[0]
    one.per_batch, one.batch_rank, one.repeats, one.is_one_group = max(count, 1), 0, 1, False
    return one


cdef inline Py_ssize_t first_bad(const Walk* walk, int64_t t, Py_ssize_t n) noexcept nogil:
    """Return the first component of n tuples that is out of bounds and not padding, or -1."""
    cdef int64_t values[ENTRIES]
    cdef const IndexSpace* space = walk.space
    cdef bint is_uint64 = False
    cdef const int64_t* index = as_int64_bits(
        walk.index + t * walk.tuple_bytes, walk.kind, n * space.k, values, &is_uint64
    )
    cdef Py_ssize_t i
    cdef int64_t v
    cdef int j = 0
    for i in range(n * space.k):
        v = index[i]
        if not (walk.has_pad and v == walk.pad) and bound_index_exact(
            &v, space.sizes[j], space.wraps[j], ERROR, is_uint64
        ):
            return i
        j = j + 1 if j + 1 < space.k else 0
    return -1


cdef inline uint64_t outside(
    const int64_t* index, Py_ssize_t n, int step, int64_t size, int64_t wrap
) noexcept nogil:
    """Return non-zero if any of n indices, `step` apart, is out of bounds.

    By sign bits, because comparisons of 64 bits do not vectorize everywhere: of a sum that is
    negative below the bounds, also if it overflows, and of a difference that is above them.
    """
    cdef Py_ssize_t i
    cdef uint64_t bits = 0
    for i in range(n):
        bits |= (<uint64_t> index[i * step] + wrap) | (<uint64_t> (size - 1) - index[i * step])
    return bits >> 63


cdef inline uint64_t check_range(const Walk* walk, int64_t t, int64_t stop) noexcept nogil:
    """Return non-zero if a stored tuple of [t, stop) is out of bounds, whatever the mode."""
    cdef int64_t values[ENTRIES]
    cdef const int64_t* index
    cdef const IndexSpace* space = walk.space
    cdef Py_ssize_t n
    cdef uint64_t bad = 0
    cdef int j
    while t < stop and not bad:
        n = min(block_size(space), stop - t)
        prefetch_lines(
            walk.index + t * walk.tuple_bytes + PREFETCH_DISTANCE, n * walk.tuple_bytes
        )
        if walk.has_pad:
            bad = first_bad(walk, t, n) >= 0
        else:
            index = as_int64(
                walk.index + t * walk.tuple_bytes, walk.kind & ~UNVECTORIZED, n * space.k, values
            )
            if space.k == 1:
                bad = outside(index, n, 1, space.sizes[0], space.wraps[0])
            else:
                for j in range(space.k):
                    bad |= outside(index + j, n, space.k, space.sizes[j], space.wraps[j])
        t += n
    return bad


cdef inline double local_fraction(const Walk* walk, int64_t count) noexcept nogil:
    """Return the fraction of sampled tuples that are spatially local to the previous one."""
    cdef int64_t offsets[SAMPLE_TUPLES]
    cdef int64_t sample, i, t, n = min(count, SAMPLE_TUPLES), n_local = 0
    cdef Cursor cursor
    for sample in range(SAMPLES):
        t = (count - n) * sample // SAMPLES
        seek(&cursor, walk, t)
        if next_offsets(&cursor, walk, t, n, offsets):
            return 0
        for i in range(1, n):
            n_local += (
                <uint64_t> offsets[i] - <uint64_t> offsets[i - 1] + LOCAL_BYTES <= 2 * LOCAL_BYTES
            )
    return n_local / <double> (SAMPLES * max(1, n - 1))


cdef struct OutOfBounds:
    # the first tuple out of bounds, its first bad component, and the number of such tuples
    int64_t position, bad
    int component


cdef inline OutOfBounds find_out_of_bounds(const Walk* walk, int64_t count) noexcept nogil:
    """Search for tuples out of bounds one by one, skipping ranges without any."""
    cdef int64_t t
    cdef Py_ssize_t j
    cdef bint is_range_valid = False
    cdef OutOfBounds result = OutOfBounds(-1, 0, -1)
    for t in range(count):
        if t % RANGE == 0:
            is_range_valid = not check_range(walk, t, min(t + RANGE, count))
        if is_range_valid:
            continue
        j = first_bad(walk, t, 1)
        if j >= 0:
            result.bad += 1
            if result.position < 0:
                result.position = t
                result.component = <int> j
    return result
