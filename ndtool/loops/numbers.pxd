# cython: language_level=3, wraparound=False, cdivision=True
# Numbers: tuples as the numbers of the rows that they name, in fewer bytes than they have.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ndtool.loops.blocks cimport BLOCK, Cursor, Walk, block_of, offsets_from, seek
from ndtool.loops.memory cimport stream, stream_end

cdef extern from *:
    """
    #include <stdint.h>
    static inline void ndtool_narrowed(
        int64_t const *, Py_ssize_t, uint8_t *, int
    ) ndtool_clones;
    """


cdef enum:
    STEP = 1024          # bytes of indices that are asked for at once, while others are numbered


cdef struct Numbering:
    # tuples that address rows, and where their numbers go, each of 2 or 4 bytes
    Walk walk
    uint8_t* to
    int bytes_each
    int64_t count, parts


cdef inline uint64_t number_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const Numbering* c = <const Numbering*> call
    cdef int64_t rows[BLOCK]
    cdef uint8_t stage[BLOCK * 4]
    cdef int64_t t = c.count * part // c.parts, stop = c.count * (part + 1) // c.parts, take
    cdef int64_t step = max(1, STEP // c.walk.entry)
    cdef Cursor at
    seek(&at, &c.walk, t)
    while t < stop:
        take = min(step, stop - t)
        if offsets_from(&at, &c.walk, t, take, rows):
            return 1
        narrowed(rows, take, stage, c.bytes_each)
        stream(c.to + t * c.bytes_each, stage, take * c.bytes_each)
        t += take
    stream_end()
    return 0


cdef inline void narrowed "ndtool_narrowed"(
    const int64_t* rows, Py_ssize_t n, uint8_t* to, int bytes_each
) noexcept nogil:
    cdef Py_ssize_t i
    if bytes_each == 2:
        for i in range(n):
            (<uint16_t*> to)[i] = <uint16_t> rows[i]
    else:
        for i in range(n):
            (<uint32_t*> to)[i] = <uint32_t> rows[i]
