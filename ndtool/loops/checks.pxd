# cython: language_level=3, wraparound=False, cdivision=True
# Checks: bounds checks of index tuples without a gather or scatter, the search for the first tuple
# out of bounds, and a sample of how many tuples are spatially local.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ndtool.loops.blocks cimport MAX_RANK, Cursor, IndexSpace, Walk, next_offsets, seek
from ndtool.loops.indices cimport (
    ITEMSIZE_MASK, ENTRIES, ERROR, UNVECTORIZED, bound_index_exact, as_int64,
    as_int64_bits,
)

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint64_t ndtool_out_of_bounds(
        int64_t const *, Py_ssize_t, uint64_t const *, uint64_t const *, int
    ) ndtool_clones;
    static inline uint64_t ndtool_out_of_bounds_in(
        int64_t const *, Py_ssize_t, uint64_t const *, uint64_t const *, int
    ) ndtool_inline;
    """


cdef enum:
    LANES = 8             # indices in a SIMD vector
    SAMPLES = 64          # samples of a walk
    SAMPLE_TUPLES = 16    # tuples of a sample
    RANGE = 4096          # tuples checked at once; if the check fails, they are searched one by one
    LOCAL_BYTES = 4096    # bytes: slices at most this far apart are spatially local


cdef struct Check:
    Walk walk
    int64_t count, tasks


cdef inline uint64_t check_task(const void* args, int64_t task, int thread) noexcept nogil:
    cdef const Check* c = <const Check*> args
    return check_range(
        &c.walk, c.count * task // c.tasks, c.count * (task + 1) // c.tasks
    )


cdef inline int bad_component(const Walk* walk, int64_t t) noexcept nogil:
    """Return the first component of a tuple that is out of bounds and not padding, or -1."""
    cdef int64_t block[MAX_RANK]
    cdef const IndexSpace* space = walk.space
    cdef bint is_uint64 = False
    cdef const int64_t* index = as_int64_bits(
        walk.index + t * walk.tuple_bytes, walk.kind, space.k, block, &is_uint64
    )
    cdef int64_t v
    cdef int j
    for j in range(space.k):
        v = index[j]
        if walk.has_pad and v == walk.pad:
            continue
        if bound_index_exact(&v, space.sizes[j], space.wraps[j], ERROR, is_uint64):
            return j
    return -1


cdef inline uint64_t check_one_by_one(const Walk* walk, int64_t t, int64_t stop) noexcept nogil:
    cdef int64_t position
    for position in range(t, stop):
        if bad_component(walk, position) >= 0:
            return 1
    return 0


cdef inline uint64_t check_range(const Walk* walk, int64_t t, int64_t stop) noexcept nogil:
    cdef int64_t entries[ENTRIES]
    cdef uint64_t wraps[ENTRIES]
    cdef uint64_t limits[ENTRIES]
    cdef const IndexSpace* space = walk.space
    cdef const uint8_t* stored
    cdef uint64_t bad = 0
    cdef int index_itemsize = walk.kind & ITEMSIZE_MASK
    cdef int64_t i, end = stop * space.k, n, position = t * space.k
    cdef int64_t step = ENTRIES // max(space.k, 1) * space.k
    cdef bint is_cyclic = space.k and LANES % space.k == 0    # all vectors hold the same components
    cdef int j = 0
    if walk.kind & UNVECTORIZED:
        return check_one_by_one(walk, t, stop)
    for i in range(LANES if is_cyclic else min(step, end - position)):
        wraps[i] = <uint64_t> space.wraps[j]
        limits[i] = <uint64_t> space.sizes[j] + wraps[i]
        j = j + 1 if j + 1 < space.k else 0
    while position < end:
        n = min(step, end - position)
        stored = walk.index + position * index_itemsize
        bad |= out_of_bounds(as_int64(stored, walk.kind, n, entries), n, wraps, limits, is_cyclic)
        position += n
    return bad


cdef inline uint64_t out_of_bounds "ndtool_out_of_bounds"(
    const int64_t* index, Py_ssize_t n, const uint64_t* wraps, const uint64_t* limits,
    bint is_cyclic
) noexcept nogil:
    """Return non-zero if one of n indices is not in -wraps[i]..limits[i]-wraps[i]-1.

    is_cyclic: wraps and limits are those of one vector, the same for all. No software prefetches:
    the hardware prefetches a single stream, and they would slow it down.
    """
    if is_cyclic:
        return out_of_bounds_in(index, n, wraps, limits, True)
    return out_of_bounds_in(index, n, wraps, limits, False)


cdef inline uint64_t out_of_bounds_in "ndtool_out_of_bounds_in"(
    const int64_t* index, Py_ssize_t n, const uint64_t* wraps, const uint64_t* limits,
    bint is_cyclic
) noexcept nogil:
    cdef Py_ssize_t i, j, first
    cdef uint64_t bad = 0
    cdef uint64_t lane_flags[LANES]    # a flag for each lane, combined after the loop
    for j in range(LANES):
        lane_flags[j] = 0
    for i in range(n // LANES):
        first = 0 if is_cyclic else LANES * i
        for j in range(LANES):
            lane_flags[j] |= <uint64_t> index[LANES * i + j] + wraps[first + j] >= limits[first + j]
    first = 0 if is_cyclic else n // LANES * LANES
    for i in range(n % LANES):
        bad |= <uint64_t> index[n // LANES * LANES + i] + wraps[first + i] >= limits[first + i]
    for j in range(LANES):
        bad |= lane_flags[j]
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
    cdef int j
    cdef bint is_range_valid = False
    cdef OutOfBounds result = OutOfBounds(-1, 0, -1)
    for t in range(count):
        if t % RANGE == 0:
            is_range_valid = not check_range(walk, t, min(t + RANGE, count))
        if is_range_valid:
            continue
        j = bad_component(walk, t)
        if j >= 0:
            result.bad += 1
            if result.position < 0:
                result.position = t
                result.component = j
    return result
