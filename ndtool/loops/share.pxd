# cython: language_level=3, wraparound=False, cdivision=True
# How threads share out a call's parts: each takes the next one when it is done.

from cython.parallel cimport prange, threadid
from libc.stdint cimport int64_t, uint64_t

from ndtool.loops.startable cimport startable

ctypedef uint64_t (*nd_work)(const void* call, int64_t part, int thread) noexcept nogil


cdef inline uint64_t share(
    nd_work work, const void* call, int64_t parts, int threads
) noexcept nogil:
    """Do every part; return what any of them saw.

    As many threads as can be started, even where there are fewer parts: a smaller team would have
    libgomp dismiss the others.
    """
    cdef uint64_t seen = 0
    cdef int64_t part
    cdef int team = startable(threads)
    if team == 1:
        for part in range(parts):
            seen |= work(call, part, 0)
    else:
        for part in prange(parts, num_threads=team, schedule="dynamic"):
            seen |= work(call, part, threadid())
    return seen
