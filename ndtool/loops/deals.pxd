# cython: language_level=3, wraparound=False, cdivision=True
# Deals: tuples by the part of a large array that they name, in the original order within each, and
# what belongs to them there and back. A part is a power of two of rows; its number is a mark, of
# one byte or two.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ndtool.loops.blocks cimport BLOCK, Cursor, Walk, block_of, copy_run, offsets_from, seek

cdef enum:
    NARROW = 256         # parts whose marks have one byte


cdef inline int64_t mark_of(const uint8_t* marks, bint wide, int64_t t) noexcept nogil:
    return (<const uint16_t*> marks)[t] if wide else marks[t]


cdef inline uint64_t mark_rows(
    const Walk* walk, int64_t count, int shift, int64_t parts, uint8_t* marks, uint32_t* local,
    int64_t* starts
) noexcept nogil:
    """Write the part of each tuple and its row there; non-zero if an index is out of bounds.

    starts: zeros, one more than there are parts; comes to be where each part begins if dealt.
    """
    cdef int64_t offsets[BLOCK]
    cdef int64_t t = 0, take, i, part
    cdef bint wide = parts > NARROW
    cdef Cursor at
    seek(&at, walk, 0)
    while t < count:
        take = min(block_of(walk.nd), count - t)
        if offsets_from(&at, walk, t, take, offsets):
            return 1
        for i in range(take):
            part = offsets[i] >> shift
            if wide:
                (<uint16_t*> marks)[t + i] = <uint16_t> part
            else:
                marks[t + i] = <uint8_t> part
            local[t + i] = <uint32_t> (offsets[i] - (part << shift))
            starts[part + 1] += 1
        t += take
    for part in range(parts):
        starts[part + 1] += starts[part]
    return 0


cdef inline uint64_t deal_rows(
    const uint8_t* marks, bint wide, int64_t count, int64_t parts, int64_t* next,
    const uint8_t* source, uint8_t* to, Py_ssize_t width, bint back
) noexcept nogil:
    """Copy each tuple's row to the next place of its part, or back from there.

    next: the first place of each part. Non-zero if marks name others than there are.
    """
    cdef int64_t t, part, place
    for t in range(count):
        part = mark_of(marks, wide, t)
        if part >= parts:
            return 1
        place = next[part]
        if <uint64_t> place >= <uint64_t> count:
            return 1
        next[part] = place + 1
        if back:
            copy_run(to + t * width, source + place * width, width)
        else:
            copy_run(to + place * width, source + t * width, width)
    return 0
