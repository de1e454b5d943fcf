# cython: language_level=3, wraparound=False, cdivision=True
# Checks: the bounds check of index tuples without a gather or scatter, the search for the first one
# out of bounds, and a sample of how many tuples are spatially local.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ndtool.loops.blocks cimport MOST_RANK, Cursor, Nd, Walk, next_offsets, seek
from ndtool.loops.indices cimport (
    BYTES, ENTRIES, REFUSE, SPECIAL, bounded_exact, widened,
    widened_exact,
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
    LANES = 8            # indices in a SIMD vector
    SAMPLES = 64         # positions in a walk where tuples are sampled
    SAMPLE = 16          # tuples of a sample
    RANGE = 4096         # tuples to search one by one if the check of all of them fails
    LOCAL = 4096         # bytes: slices no further apart are spatially local


cdef struct Check:
    Walk walk
    int64_t count, tasks


cdef inline uint64_t check_task(const Check* c, int64_t task) noexcept nogil:
    return check_range(
        &c.walk, c.count * task // c.tasks, c.count * (task + 1) // c.tasks
    )


cdef inline int bad_component(const Walk* walk, int64_t t) noexcept nogil:
    """Return the first component of a tuple that is out of bounds and not padding, or -1."""
    cdef int64_t block[MOST_RANK]
    cdef const Nd* nd = walk.nd
    cdef bint is_uint64 = False
    cdef const int64_t* index = widened_exact(
        walk.index + t * walk.tuple_bytes, walk.kind, nd.k, block, &is_uint64
    )
    cdef int64_t v
    cdef int j
    for j in range(nd.k):
        v = index[j]
        if walk.pads and v == walk.pad:
            continue
        if bounded_exact(&v, nd.sizes[j], nd.wraps[j], REFUSE, is_uint64):
            return j
    return -1


cdef inline uint64_t check_slowly(const Walk* walk, int64_t t, int64_t stop) noexcept nogil:
    cdef int64_t at
    for at in range(t, stop):
        if bad_component(walk, at) >= 0:
            return 1
    return 0


cdef inline uint64_t check_range(const Walk* walk, int64_t t, int64_t stop) noexcept nogil:
    cdef int64_t entries[ENTRIES]
    cdef uint64_t wraps[ENTRIES]
    cdef uint64_t limits[ENTRIES]
    cdef const Nd* nd = walk.nd
    cdef const uint8_t* stored
    cdef uint64_t bad = 0
    cdef int bytes_each = walk.kind & BYTES
    cdef int64_t i, end = stop * nd.k, take, at = t * nd.k, step = ENTRIES // max(nd.k, 1) * nd.k
    cdef bint cyclic = nd.k and LANES % nd.k == 0    # all vectors hold the same components
    cdef int j = 0
    if walk.kind & SPECIAL:
        return check_slowly(walk, t, stop)
    for i in range(LANES if cyclic else min(step, end - at)):
        wraps[i] = <uint64_t> nd.wraps[j]
        limits[i] = <uint64_t> nd.sizes[j] + wraps[i]
        j = j + 1 if j + 1 < nd.k else 0
    while at < end:
        take = min(step, end - at)
        stored = walk.index + at * bytes_each
        bad |= out_of_bounds(widened(stored, walk.kind, take, entries), take, wraps, limits, cyclic)
        at += take
    return bad


cdef inline uint64_t out_of_bounds "ndtool_out_of_bounds"(
    const int64_t* index, Py_ssize_t n, const uint64_t* wraps, const uint64_t* limits, bint cyclic
) noexcept nogil:
    """Return non-zero if one of n indices is not in -wraps[i]..limits[i]-wraps[i]-1.

    cyclic: wraps and limits are those of one vector, the same for all. No software prefetches:
    the hardware prefetches a single stream, and they would slow it down.
    """
    if cyclic:
        return out_of_bounds_in(index, n, wraps, limits, True)
    return out_of_bounds_in(index, n, wraps, limits, False)


cdef inline uint64_t out_of_bounds_in "ndtool_out_of_bounds_in"(
    const int64_t* index, Py_ssize_t n, const uint64_t* wraps, const uint64_t* limits, bint cyclic
) noexcept nogil:
    cdef Py_ssize_t i, j, at
    cdef uint64_t bad = 0
    cdef uint64_t seen[LANES]    # a flag for each lane, combined after the loop
    for j in range(LANES):
        seen[j] = 0
    for i in range(n // LANES):
        at = 0 if cyclic else LANES * i
        for j in range(LANES):
            seen[j] |= <uint64_t> index[LANES * i + j] + wraps[at + j] >= limits[at + j]
    at = 0 if cyclic else n // LANES * LANES
    for i in range(n % LANES):
        bad |= <uint64_t> index[n // LANES * LANES + i] + wraps[at + i] >= limits[at + i]
    for j in range(LANES):
        bad |= seen[j]
    return bad


cdef inline double locality(const Walk* walk, int64_t count) noexcept nogil:
    """Return the share of sampled tuples whose slices are near that of the tuple before."""
    cdef int64_t offsets[SAMPLE]
    cdef int64_t sample, i, t, take = min(count, SAMPLE), n_local = 0
    cdef Cursor at
    for sample in range(SAMPLES):
        t = (count - take) * sample // SAMPLES
        seek(&at, walk, t)
        if next_offsets(&at, walk, t, take, offsets):
            return 0
        for i in range(1, take):
            n_local += <uint64_t> offsets[i] - <uint64_t> offsets[i - 1] + LOCAL <= 2 * LOCAL
    return n_local / <double> (SAMPLES * max(1, take - 1))


cdef struct Found:
    # the first tuple out of bounds, its first bad component, and the number of bad tuples
    int64_t at, bad
    int component


cdef inline Found found_in(const Walk* walk, int64_t count) noexcept nogil:
    """Search for tuples out of bounds one by one, skipping ranges without any."""
    cdef int64_t t
    cdef int j
    cdef bint clean = False
    cdef Found found = Found(-1, 0, -1)
    for t in range(count):
        if t % RANGE == 0:
            clean = not check_range(walk, t, min(t + RANGE, count))
        if clean:
            continue
        j = bad_component(walk, t)
        if j >= 0:
            found.bad += 1
            if found.at < 0:
                found.at = t
                found.component = j
    return found
