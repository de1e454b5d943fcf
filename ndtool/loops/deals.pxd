# cython: language_level=3, wraparound=False, cdivision=True
# Deals: tuples by the part of a large array that they name, in the original order within each, and
# what belongs to them there and back. A part is a power of two of rows, or a box of a grid of them;
# its number is a mark, of one byte or two.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ndtool.loops.blocks cimport (
    BLOCK, MOST_RANK, NOWHERE, Cursor, Walk, block_of, offsets_from, seek,
)
from ndtool.loops.moves cimport copy_run

cdef enum:
    NARROW = 256         # parts whose marks have one byte


cdef struct Cut:
    # rows, numbered over a shape, cut into boxes of one shape, of which the last ones may be less
    int rank
    int shift                     # log2 of the rows of a part that follow each other, -1 for boxes
    int64_t parts
    int64_t sizes[MOST_RANK]
    int64_t steps[MOST_RANK]


cdef inline int64_t part_of(const Cut* cut, int64_t row, int64_t* local) noexcept nogil:
    """Return the part that a row is in, and its number there."""
    cdef int64_t part = 0, along = 1, inner = 1, coordinate, begin, step
    cdef int d
    local[0] = 0
    for d in reversed(range(cut.rank)):
        step = cut.steps[d]
        coordinate = row % cut.sizes[d]
        row //= cut.sizes[d]
        part += coordinate // step * along
        begin = coordinate - coordinate % step
        local[0] += (coordinate - begin) * inner
        inner *= min(step, cut.sizes[d] - begin)
        along *= (cut.sizes[d] - 1) // step + 1
    return part


cdef inline int64_t mark_of(const uint8_t* marks, bint wide, int64_t t) noexcept nogil:
    return (<const uint16_t*> marks)[t] if wide else marks[t]


cdef inline uint64_t mark_rows(
    const Walk* walk, int64_t count, const Cut* cut, int64_t parts, uint8_t* marks,
    uint32_t* local, int64_t* starts
) noexcept nogil:
    """Write the part of each tuple and its row there; non-zero if an index is out of bounds.

    parts: those of the cut, and one more where tuples name NOWHERE. starts: zeros, one more than
    there are parts; comes to be where each part begins if dealt.
    """
    cdef int64_t offsets[BLOCK]
    cdef int64_t t = 0, take, i, part, row
    cdef int shift = cut.shift
    cdef bint wide = parts > NARROW
    cdef Cursor at
    seek(&at, walk, 0)
    while t < count:
        take = min(block_of(walk.nd), count - t)
        if offsets_from(&at, walk, t, take, offsets):
            return 1
        for i in range(take):
            if offsets[i] == NOWHERE:
                part = cut.parts
                row = 0
            elif shift >= 0:
                part = offsets[i] >> shift
                row = offsets[i] - (part << shift)
            else:
                part = part_of(cut, offsets[i], &row)
            if wide:
                (<uint16_t*> marks)[t + i] = <uint16_t> part
            else:
                marks[t + i] = <uint8_t> part
            local[t + i] = <uint32_t> row
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
