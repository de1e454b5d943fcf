# cython: language_level=3, wraparound=False, cdivision=True
# Parts: tuples sorted by destination, so that each part of the output is changed in cache, by one
# thread, in the original order.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport (
    BLOCK, LINE, Cursor, Walk, block_of, next_offsets, seek,
)
from ndtool.loops.memory cimport prefetch, prefetch_run, stream, stream_end, write_window
from ndtool.loops.moves cimport copy_run
from ndtool.loops.runs cimport Updates, apply_block, apply_row

cdef enum:
    GROUP = 32768        # tuples that are sorted at once: their destinations fit the L2 cache


cdef struct Sorted:
    # tuples sorted by destination, group by group
    uint8_t* regions          # one for each group: rows within their parts, then what they carry
    uint32_t* ends            # ends[g * parts + p]: where part p of group g ends
    int64_t groups
    Py_ssize_t parts
    Py_ssize_t width          # bytes of a row
    int shift                 # log2 of the rows of a part


cdef inline Py_ssize_t carried_bytes(Py_ssize_t width) noexcept nogil:
    """Return how many bytes follow a tuple into its part: a short update itself, or its number."""
    return width if width < LINE else 4


cdef inline Py_ssize_t region_bytes(Py_ssize_t width) noexcept nogil:
    """Return how many bytes a sorted group takes."""
    return GROUP * (4 + carried_bytes(width))


cdef inline Py_ssize_t room_bytes(Py_ssize_t width) noexcept nogil:
    """Return how many bytes a thread needs to sort a group: rows, and a region in cache."""
    return GROUP * 8 + region_bytes(width)


cdef struct Partition:
    # sorting tuples that address rows
    Walk walk
    const uint8_t* updates
    const Sorted* into
    int64_t count
    bint streamed


cdef inline uint64_t partition_part(const void* call, int64_t group, int thread) noexcept nogil:
    """Sort one group into its region; the thread's own room follows the regions.

    Streamed, they are sorted in the room, where every line is in cache, and copied out as a whole.
    """
    cdef const Partition* p = <const Partition*> call
    cdef Py_ssize_t width = p.into.width, parts = p.into.parts, n
    cdef uint8_t* region = p.into.regions + group * region_bytes(width)
    cdef uint8_t* room = (
        p.into.regions + p.into.groups * region_bytes(width) + thread * room_bytes(width)
    )
    cdef int64_t* rows = <int64_t*> room
    cdef uint8_t* sorted_here = room + GROUP * 8 if p.streamed else region
    cdef uint32_t* ends = p.into.ends + group * parts
    cdef int64_t first = group * GROUP
    n = min(p.count - first, GROUP)
    if rows_of(&p.walk, first, n, rows):
        return 1
    count_parts(ends, parts, rows, n, p.into.shift)
    place_rows(p.into, ends, rows, n, p.updates + first * width, sorted_here)
    if p.streamed:
        stream(region, sorted_here, GROUP * 4 + n * carried_bytes(width))
        stream_end()
    return 0


cdef inline uint64_t rows_of(
    const Walk* walk, int64_t first, Py_ssize_t n, int64_t* rows
) noexcept nogil:
    """Turn tuples [first, first + n) into numbers of rows."""
    cdef Py_ssize_t done = 0, take
    cdef Cursor at
    seek(&at, walk, first)
    while done < n:
        take = min(block_of(walk.nd), n - done)
        if next_offsets(&at, walk, first + done, take, rows + done):
            return 1
        done += take
    return 0


cdef inline void count_parts(
    uint32_t* begins, Py_ssize_t parts, const int64_t* rows, Py_ssize_t n, int shift
) noexcept nogil:
    """Find where each part of a group begins."""
    cdef Py_ssize_t i, part
    cdef uint32_t total = 0
    for part in range(parts):
        begins[part] = 0
    for i in range(n):
        begins[rows[i] >> shift] += 1
    for part in range(parts):
        total += begins[part]
        begins[part] = total - begins[part]


cdef inline void place_rows(
    const Sorted* into, uint32_t* ends, const int64_t* rows, Py_ssize_t n, const uint8_t* updates,
    uint8_t* region,
) noexcept nogil:
    """Write n rows and what they carry to where their parts go on, which ends where parts do."""
    cdef uint32_t* local = <uint32_t*> region
    cdef uint8_t* payload = region + GROUP * 4
    cdef Py_ssize_t i, width = into.width
    cdef int shift = into.shift
    cdef int64_t row
    cdef uint32_t place, mask = <uint32_t> ((<uint64_t> 1 << shift) - 1), number
    for i in range(n):
        row = rows[i]
        place = ends[row >> shift]
        ends[row >> shift] = place + 1
        local[place] = <uint32_t> row & mask
        if width == 4:
            memcpy(payload + 4 * <Py_ssize_t> place, updates + 4 * i, 4)
        elif width == 8:
            memcpy(payload + 8 * <Py_ssize_t> place, updates + 8 * i, 8)
        elif width < LINE:
            copy_run(payload + width * <Py_ssize_t> place, updates + width * i, width)
        else:
            number = <uint32_t> i
            memcpy(payload + 4 * <Py_ssize_t> place, &number, 4)


cdef struct Apply:
    # the parts from `first_part` on, applied to `to`, where the first row of that one stands
    const Sorted* done
    Updates updates
    const uint8_t* data       # what each part is copied from to a window first, or NULL
    uint8_t* to
    uint8_t* windows          # one for each thread, as long as a part
    int64_t first_part
    Py_ssize_t length         # bytes up to the end of the last part
    bint streamed


cdef inline uint64_t apply_part(const void* call, int64_t part, int thread) noexcept nogil:
    """Change one part where it stands, or in a window, from which it is written once."""
    cdef const Apply* a = <const Apply*> call
    cdef Py_ssize_t size = a.done.width << a.done.shift, at = part * size
    cdef uint8_t* window = a.to + at
    if a.data:
        window = a.windows + thread * size
        memcpy(window, a.data + at, min(size, a.length - at))
    apply_groups(a.done, &a.updates, window, a.first_part + part)
    if a.data:
        write_window(a.to + at, window, min(size, a.length - at), a.streamed)
    return 0


cdef struct Span:
    # the entries of one group for one part
    Py_ssize_t begin, end


cdef inline Span span_of(const Sorted* done, int64_t group, int64_t part) noexcept nogil:
    cdef Span span
    span.begin = span.end = 0
    if group < done.groups:
        span.begin = done.ends[group * done.parts + part - 1] if part else 0
        span.end = done.ends[group * done.parts + part]
    return span


cdef inline void apply_groups(
    const Sorted* done, const Updates* u, uint8_t* window, int64_t part
) noexcept nogil:
    """Apply what every group holds for one part, group after group: the original order."""
    cdef int64_t group
    cdef Py_ssize_t size = region_bytes(done.width)
    cdef const uint8_t* region = done.regions
    cdef Span here = span_of(done, 0, part), later
    for group in range(done.groups):
        later = span_of(done, group + 1, part)
        if later.end > later.begin:
            prefetch_entries(region + size, later.begin, carried_bytes(done.width))
        if done.width < LINE:
            apply_carried(u, window, region, here)
        else:
            apply_numbered(
                u, window, u.first + group * GROUP * u.pitch, region, here, region + size, later
            )
        here = later
        region += size


cdef inline void prefetch_entries(
    const uint8_t* region, Py_ssize_t place, Py_ssize_t carried
) noexcept nogil:
    """Ask for the first lines of a run of entries; the hardware finds the others itself."""
    prefetch(region + 4 * place)
    prefetch(region + 4 * place + LINE)
    prefetch(region + GROUP * 4 + carried * place)
    prefetch(region + GROUP * 4 + carried * place + LINE)


cdef inline void apply_carried(
    const Updates* u, uint8_t* window, const uint8_t* region, Span here
) noexcept nogil:
    """Apply short updates, which stand beside their rows."""
    cdef int64_t offsets[BLOCK]
    cdef const uint32_t* rows = <const uint32_t*> region
    cdef Py_ssize_t i, take, place = here.begin, width = u.pitch
    while place < here.end:
        take = min(BLOCK, here.end - place)
        for i in range(take):
            offsets[i] = <int64_t> rows[place + i] * width
        apply_block(u, window, offsets, region + GROUP * 4 + place * width, take, width)
        place += take


cdef inline void apply_numbered(
    const Updates* u, uint8_t* window, const uint8_t* updates, const uint8_t* region, Span here,
    const uint8_t* next_region, Span later,
) noexcept nogil:
    """Apply long updates, found by their numbers, and ask for those of the next group."""
    cdef const uint32_t* rows = <const uint32_t*> region
    cdef const uint32_t* numbers = <const uint32_t*> (region + GROUP * 4)
    cdef const uint32_t* next_numbers = <const uint32_t*> (next_region + GROUP * 4)
    cdef Py_ssize_t i, n = here.end - here.begin, width = u.pitch
    for i in range(max(n, later.end - later.begin)):
        if i < later.end - later.begin:
            prefetch_run(updates + (GROUP + next_numbers[later.begin + i]) * width, width)
        if i < n:
            apply_row(
                u, window + <int64_t> rows[here.begin + i] * width,
                updates + numbers[here.begin + i] * width, width,
            )
