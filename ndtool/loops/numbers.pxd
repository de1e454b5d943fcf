# cython: language_level=3, wraparound=False, cdivision=True
# Numbers: tuples as the numbers of the rows that they name, in fewer bytes than they have; and
# gathers of short rows by them.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport (
    BLOCK, LINE, SHORT, Cursor, Nd, Walk, block_of, by_number, next_batch, next_offsets,
    offsets_from, seek,
)
from ndtool.loops.gathers cimport Gather, stream_whole
from ndtool.loops.indices cimport CHECKED, number_at, once
from ndtool.loops.memory cimport AHEAD, prefetch, prefetch_lines, stream, stream_end, touch
from ndtool.loops.moves cimport gather_block

cdef extern from *:
    """
    #include <stdint.h>
    static inline void ndtool_narrowed(
        int64_t const *, Py_ssize_t, uint8_t *, int
    ) ndtool_clones;
    static inline Py_ssize_t ndtool_copy_numbered(
        void const *, Py_ssize_t, int, int
    ) ndtool_inline;
    """


cdef enum:
    STEP = 1024          # bytes of indices that are asked for at once, while others are numbered
    LATER = 128          # rows after which one is copied that was asked for
    PACE = 16            # rows for which what comes later is asked for at once


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
    cdef int64_t step = min(block_of(c.walk.nd), STEP // max(1, c.walk.entry))
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


cdef struct Numbered:
    # rows that are copied to consecutive places: those of one batch
    const uint8_t* source
    const uint8_t* numbers
    uint8_t* to
    Py_ssize_t n
    uint64_t size             # numbers from there on name none
    const uint8_t* soon       # what another batch can name
    Py_ssize_t pace           # bytes of it that are asked for with PACE rows


cdef inline bint goes_by_numbers(const Gather* g) noexcept nogil:
    """Whether runs can be copied by what stands there as their numbers, without offsets."""
    return by_number(&g.walk, g.width) and (g.walk.kind & CHECKED or g.walk.nd.near)


cdef inline uint64_t gather_numbered_part(
    const void* call, int64_t part, int thread
) noexcept nogil:
    """Gather runs by their numbers; those that were checked are not looked at again.

    From an index that is not such a number on, the rest of a step is gathered as others are.
    """
    cdef const Gather* g = <const Gather*> call
    cdef const Nd* nd = g.walk.nd
    cdef uint8_t stage[SHORT * LINE + LINE]
    cdef int64_t t = g.count * part // g.parts, stop = g.count * (part + 1) // g.parts
    cdef int64_t batches = 1 + AHEAD // max(1, nd.reach)    # what is asked for last may come first
    cdef int64_t pace = nd.reach * PACE // nd.per_batch if nd.near and nd.batch_rank else 0
    cdef int64_t step = min(BLOCK, SHORT * LINE // g.width)
    cdef Py_ssize_t done, held = 0          # bytes in the stage
    cdef bint far
    cdef int64_t offsets[BLOCK]
    cdef Cursor at
    cdef Numbered rows
    cdef uint8_t* to = g.to + t * g.width
    seek(&at, &g.walk, t)
    if nd.near and nd.batch_rank:
        touch(g.source + at.base + nd.lowest, nd.reach)
    rows.pace = pace
    rows.size = nd.sizes[0]
    while t < stop:
        if at.left == 0:
            next_batch(&at, nd)
        rows.n = min(min(step, stop - t), at.left)
        rows.source = g.source + at.base
        rows.numbers = g.walk.index + t * g.walk.entry
        rows.soon = rows.source + nd.lowest + (nd.per_batch - at.left) // PACE * pace
        if nd.batch_rank:
            rows.soon += batches * nd.batch_strides[nd.batch_rank - 1]
        rows.to = to
        if g.streamed:
            rows.to = stage + held
        far = not nd.near and t + rows.n + LATER <= g.count
        done = copy_rows(&rows, g.width, g.walk.entry, far)
        at.left -= done
        if done < rows.n:
            if next_offsets(&at, &g.walk, t + done, rows.n - done, offsets):
                return 1
            gather_block(
                rows.to + done * g.width, g.source, offsets, rows.n - done, g.width, 0
            )
        if g.streamed:
            to += stream_whole(to, stage, held + rows.n * g.width, &held)
        else:
            to += rows.n * g.width
        t += rows.n
    if g.streamed:
        stream(to, stage, held)
        stream_end()
    return 0


cdef inline Py_ssize_t copy_rows(
    const Numbered* rows, Py_ssize_t width, int bytes_each, bint far
) noexcept nogil:
    """copy_numbered, in a loop for each case."""
    if far and bytes_each == 2:
        return by_width(rows, width, 2, True)
    if far:
        return by_width(rows, width, 4, True)
    if bytes_each == 2:
        return by_width(rows, width, 2, False)
    if bytes_each == 4:
        return by_width(rows, width, 4, False)
    return by_width(rows, width, 8, False)


cdef inline Py_ssize_t by_width(
    const Numbered* rows, Py_ssize_t width, int bytes_each, bint far
) noexcept nogil:
    if width == 1:
        return copy_numbered(rows, 1, bytes_each, far)
    if width == 2:
        return copy_numbered(rows, 2, bytes_each, far)
    if width == 4:
        return copy_numbered(rows, 4, bytes_each, far)
    if width == 8:
        return copy_numbered(rows, 8, bytes_each, far)
    return copy_numbered(rows, 16, bytes_each, far)


cdef inline Py_ssize_t copy_numbered "ndtool_copy_numbered"(
    const void* of, Py_ssize_t width, int bytes_each, bint far
) noexcept nogil:
    """Copy rows up to a number that names none; return how many.

    Those that are far away were checked, as were all numbers in two bytes, and are asked for LATER
    rows before.
    """
    cdef const Numbered* rows = <const Numbered*> of
    cdef const uint8_t* source = rows.source
    cdef const uint8_t* numbers = rows.numbers
    cdef const uint8_t* soon = rows.soon
    cdef uint8_t* to = rows.to
    cdef uint64_t row, size = rows.size
    cdef Py_ssize_t i = 0, j, k, n = rows.n, pace = rows.pace
    while i < n:
        prefetch_lines(numbers + i * bytes_each + AHEAD, PACE * bytes_each)
        for k in range(0, pace, 64):
            prefetch(soon + k)
        soon += pace
        for j in range(i, min(i + PACE, n)):
            if far:
                prefetch(source + number_at(numbers, j + LATER, bytes_each) * width)
            row = number_at(numbers, j, bytes_each)
            if bytes_each != 2 and not far:
                once(row)
                if row >= size:
                    return j
            memcpy(to + j * width, source + row * width, width)
        i += PACE
    return n
