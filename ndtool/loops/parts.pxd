# cython: language_level=3, wraparound=False, cdivision=True
# Parts: tuples sorted by destination, so that each part of the output is changed in cache, by one
# thread, in the original order.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport (
    BLOCK, LINE, Cursor, Nd, block_of, copy_run, next_offsets, seek,
)
from ndtool.loops.memory cimport prefetch, stream, stream_end
from ndtool.loops.runs cimport apply_block, apply_row, prefetch_run

cdef enum:
    GROUP = 32768        # tuples that are sorted at once: their destinations fit the L2 cache


cdef inline Py_ssize_t carried_bytes(Py_ssize_t width) noexcept nogil:
    """Return how many bytes follow a tuple into its part: a short update itself, or its number."""
    return width if width < LINE else 4


cdef inline Py_ssize_t region_bytes(Py_ssize_t width) noexcept nogil:
    """Return how many bytes a sorted group takes: rows within parts, then what they carry."""
    return GROUP * (4 + carried_bytes(width))


cdef inline Py_ssize_t room_bytes(Py_ssize_t width) noexcept nogil:
    """Return how many bytes a thread needs to sort a group: rows, and a region in cache."""
    return GROUP * 8 + region_bytes(width)


cdef inline uint64_t partition_group(
    const Nd* nd, const uint8_t* index, int kind, const uint8_t* updates, Py_ssize_t width,
    int64_t first, int64_t t, int64_t stop, int shift, uint8_t* region, Py_ssize_t carried,
    uint8_t* room, bint streamed, uint32_t* ends, Py_ssize_t parts,
) noexcept nogil:
    """Sort tuples [t, stop) into a region; `room` is the thread's own: see room_bytes.

    Streamed, they are sorted in the room, where every line is in cache, and copied out as a whole.
    """
    cdef int64_t* destination = <int64_t*> room
    cdef uint8_t* sorted_here = room + GROUP * 8 if streamed else region
    cdef uint32_t* local = <uint32_t*> sorted_here
    cdef uint8_t* payload = sorted_here + GROUP * 4
    cdef int64_t begin = t, take, row
    cdef Py_ssize_t i, part, count = stop - t
    cdef uint32_t place, total = 0
    cdef uint32_t mask = <uint32_t> ((<uint64_t> 1 << shift) - 1), number
    cdef Cursor at
    for part in range(parts):
        ends[part] = 0
    seek(&at, nd, first + t)
    while t < stop:
        take = min(block_of(nd), stop - t)
        if next_offsets(
            &at, nd, index + t * nd.k * (kind & 15), kind, take, destination + t - begin
        ):
            return 1
        t += take
    for i in range(count):
        ends[destination[i] >> shift] += 1
    for part in range(parts):
        total += ends[part]
        ends[part] = total - ends[part]
    for i in range(count):
        row = destination[i]
        place = ends[row >> shift]
        ends[row >> shift] = place + 1
        local[place] = <uint32_t> row & mask
        if width == 4:
            memcpy(payload + 4 * <Py_ssize_t> place, updates + 4 * (begin + i), 4)
        elif width == 8:
            memcpy(payload + 8 * <Py_ssize_t> place, updates + 8 * (begin + i), 8)
        elif width < LINE:
            copy_run(payload + width * <Py_ssize_t> place, updates + width * (begin + i), width)
        else:
            number = <uint32_t> i
            memcpy(payload + 4 * <Py_ssize_t> place, &number, 4)
    if streamed:
        stream(region, sorted_here, GROUP * 4 + count * carried)
        stream_end()
    return 0


cdef struct Span:
    # the entries of one group for one part
    Py_ssize_t begin, end


cdef inline Span span_of(
    const uint32_t* ends, int64_t groups, Py_ssize_t parts, int64_t group, int64_t part
) noexcept nogil:
    cdef Span span
    span.begin = span.end = 0
    if group < groups:
        span.begin = ends[group * parts + part - 1] if part else 0
        span.end = ends[group * parts + part]
    return span


cdef inline void apply_part(
    uint8_t* window, const uint8_t* updates, const uint8_t* base, Py_ssize_t region,
    const uint32_t* ends, int64_t groups, Py_ssize_t parts, int64_t part, Py_ssize_t width,
    int code, int op,
) noexcept nogil:
    """Apply what every group holds for one part, group after group: the original order."""
    cdef int64_t group
    cdef Span here = span_of(ends, groups, parts, 0, part), later
    for group in range(groups):
        later = span_of(ends, groups, parts, group + 1, part)
        if later.end > later.begin:
            prefetch_entries(base + (group + 1) * region, later.begin, carried_bytes(width))
        if width < LINE:
            apply_carried(window, base + group * region, here, width, code, op)
        else:
            apply_numbered(
                window, updates + group * GROUP * width, base + group * region, here, region,
                later, width, code, op,
            )
        here = later


cdef inline void prefetch_entries(
    const uint8_t* region, Py_ssize_t place, Py_ssize_t carried
) noexcept nogil:
    """Ask for the first lines of a run of entries; the hardware finds the others itself."""
    prefetch(region + 4 * place)
    prefetch(region + 4 * place + LINE)
    prefetch(region + GROUP * 4 + carried * place)
    prefetch(region + GROUP * 4 + carried * place + LINE)


cdef inline void apply_carried(
    uint8_t* window, const uint8_t* region, Span here, Py_ssize_t width, int code, int op
) noexcept nogil:
    """Apply short updates, which stand beside their rows."""
    cdef int64_t offsets[BLOCK]
    cdef const uint32_t* rows = <const uint32_t*> region
    cdef Py_ssize_t i, take, place = here.begin
    while place < here.end:
        take = min(BLOCK, here.end - place)
        for i in range(take):
            offsets[i] = <int64_t> rows[place + i] * width
        apply_block(
            window, offsets, region + GROUP * 4 + place * width, take, width, code, op
        )
        place += take


cdef inline void apply_numbered(
    uint8_t* window, const uint8_t* updates, const uint8_t* region, Span here, Py_ssize_t step,
    Span later, Py_ssize_t width, int code, int op,
) noexcept nogil:
    """Apply long updates, found by their numbers, and ask for those of the next group."""
    cdef const uint32_t* rows = <const uint32_t*> region
    cdef const uint32_t* numbers = <const uint32_t*> (region + GROUP * 4)
    cdef const uint32_t* next_numbers = <const uint32_t*> (region + step + GROUP * 4)
    cdef Py_ssize_t i, n = here.end - here.begin
    for i in range(max(n, later.end - later.begin)):
        if i < later.end - later.begin:
            prefetch_run(updates + (GROUP + next_numbers[later.begin + i]) * width, width)
        if i < n:
            apply_row(
                window + <int64_t> rows[here.begin + i] * width,
                updates + numbers[here.begin + i] * width, width, code, op,
            )
