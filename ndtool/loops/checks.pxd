# cython: language_level=3, wraparound=False, cdivision=True
# Checks: every index of a range of tuples against the size of its axis, and nothing else; and how
# near to each other some of them lead.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ndtool.loops.blocks cimport Cursor, Nd, Walk, next_offsets, seek
from ndtool.loops.indices cimport BYTES, ENTRIES, widened

cdef extern from *:
    """
    #include <stdint.h>
    static inline uint64_t ndtool_outside(
        int64_t const *, Py_ssize_t, uint64_t const *, uint64_t const *, int
    ) ndtool_clones;
    static inline uint64_t ndtool_outside_by(
        int64_t const *, Py_ssize_t, uint64_t const *, uint64_t const *, int
    ) ndtool_inline;
    """


cdef enum:
    LANES = 8            # indices in a vector
    LOOKS = 64           # places of a walk where tuples are looked at
    LOOK = 16            # tuples that are looked at in each
    NEXT = 4096          # bytes within which one run follows another


cdef struct Check:
    Walk walk
    int64_t count, parts


cdef inline uint64_t check_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const Check* c = <const Check*> call
    return check_range(
        &c.walk, c.count * part // c.parts, c.count * (part + 1) // c.parts
    )


cdef inline uint64_t check_range(const Walk* walk, int64_t t, int64_t stop) noexcept nogil:
    cdef int64_t entries[ENTRIES]
    cdef uint64_t wraps[ENTRIES]
    cdef uint64_t limits[ENTRIES]
    cdef const Nd* nd = walk.nd
    cdef const uint8_t* stored
    cdef uint64_t bad = 0
    cdef int bytes_each = walk.kind & BYTES
    cdef int64_t i, end = stop * nd.k, take, at = t * nd.k, step = ENTRIES // max(nd.k, 1) * nd.k
    cdef bint even = nd.k and LANES % nd.k == 0    # every vector has the same components
    cdef int j = 0
    for i in range(LANES if even else min(step, end - at)):
        wraps[i] = <uint64_t> nd.wraps[j]
        limits[i] = <uint64_t> nd.sizes[j] + wraps[i]
        j = j + 1 if j + 1 < nd.k else 0
    while at < end:
        take = min(step, end - at)
        stored = walk.index + at * bytes_each
        bad |= outside(widened(stored, walk.kind, take, entries), take, wraps, limits, even)
        at += take
    return bad


cdef inline uint64_t outside "ndtool_outside"(
    const int64_t* index, Py_ssize_t n, const uint64_t* wraps, const uint64_t* limits, bint even
) noexcept nogil:
    """Return non-zero if one of n indices is not in -wraps[i]..limits[i]-wraps[i]-1.

    even: whether wraps and limits are those of one vector, the same for every one. Nothing is asked
    for: the hardware foresees a single stream, and is held up by those who ask for it.
    """
    if even:
        return outside_by(index, n, wraps, limits, True)
    return outside_by(index, n, wraps, limits, False)


cdef inline uint64_t outside_by "ndtool_outside_by"(
    const int64_t* index, Py_ssize_t n, const uint64_t* wraps, const uint64_t* limits, bint even
) noexcept nogil:
    cdef Py_ssize_t i, j, at
    cdef uint64_t bad = 0
    cdef uint64_t seen[LANES]    # their sum is left to the end
    for j in range(LANES):
        seen[j] = 0
    for i in range(n // LANES):
        at = 0 if even else LANES * i
        for j in range(LANES):
            seen[j] |= <uint64_t> index[LANES * i + j] + wraps[at + j] >= limits[at + j]
    at = 0 if even else n // LANES * LANES
    for i in range(n % LANES):
        bad |= <uint64_t> index[n // LANES * LANES + i] + wraps[at + i] >= limits[at + i]
    for j in range(LANES):
        bad |= seen[j]
    return bad


cdef inline double nearness(const Walk* walk, int64_t count) noexcept nogil:
    """Return the share of some of `count` tuples whose runs are near the one before."""
    cdef int64_t offsets[LOOK]
    cdef int64_t look, i, t, take = min(count, LOOK), near = 0
    cdef Cursor at
    for look in range(LOOKS):
        t = (count - take) * look // LOOKS
        seek(&at, walk, t)
        if next_offsets(&at, walk, t, take, offsets):
            return 0
        for i in range(1, take):
            near += <uint64_t> offsets[i] - <uint64_t> offsets[i - 1] + NEXT <= 2 * NEXT
    return near / <double> (LOOKS * max(1, take - 1))
