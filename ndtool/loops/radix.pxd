# cython: language_level=3, wraparound=False, cdivision=True
# Radix partitions: tuples sorted stably by partition of the output, so that one thread updates each
# partition in cache, in the original order.

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport (
    BLOCK, LINE, Cursor, Walk, block_size, next_offsets, seek,
)
from ndtool.loops.memory cimport prefetch_slice, write_window
from ndtool.loops.moves cimport copy_bytes
from ndtool.loops.scatters cimport (
    NEUTRAL, Updates, apply_block, apply_row, divide_window, fill_pass, window_updates,
)

cdef enum:
    GROUP = 32768    # tuples of a group, partitioned at once: their destinations fit in L2


cdef struct Sorted:
    # radix-partitioned tuples: the entries (row, payload) of each group are sorted separately
    uint8_t* regions    # for each group: row indices in their partitions, then payloads
    uint32_t* ends      # ends[g * partitions + p]: where partition p of group g ends
    int64_t groups
    Py_ssize_t partitions
    Py_ssize_t width    # bytes of a row
    int shift           # log2 of the rows of a partition


cdef inline Py_ssize_t payload_bytes(Py_ssize_t width) noexcept nogil:
    """Return the bytes of a payload: a short update, or a long one's position in the group."""
    return width if width < LINE else 4


cdef inline Py_ssize_t region_bytes(Py_ssize_t width) noexcept nogil:
    """Return the bytes of a partitioned group."""
    return GROUP * (4 + payload_bytes(width))


cdef struct Partition:
    # arguments of partition_group; the tuples address rows
    Walk walk
    const uint8_t* updates
    const Sorted* sorted_tuples
    int64_t count


cdef inline uint64_t partition_group(const void* args, int64_t group, int thread) noexcept nogil:
    """Partition one group into its region; the threads' row indices follow the regions."""
    cdef const Partition* p = <const Partition*> args
    cdef Py_ssize_t width = p.sorted_tuples.width, partitions = p.sorted_tuples.partitions, n
    cdef uint8_t* region = p.sorted_tuples.regions + group * region_bytes(width)
    cdef int64_t* rows = <int64_t*> (
        p.sorted_tuples.regions + p.sorted_tuples.groups * region_bytes(width)
    ) + thread * GROUP
    cdef uint32_t* ends = p.sorted_tuples.ends + group * partitions
    cdef int64_t first = group * GROUP
    n = min(p.count - first, GROUP)
    if row_indices(&p.walk, first, n, rows):
        return 1
    partition_offsets(ends, partitions, rows, n, p.sorted_tuples.shift)
    write_entries(p.sorted_tuples, ends, rows, n, p.updates + first * width, region)
    return 0


cdef inline uint64_t row_indices(
    const Walk* walk, int64_t first, Py_ssize_t n, int64_t* rows
) noexcept nogil:
    """Convert tuples [first, first + n) to linear row indices."""
    cdef Py_ssize_t converted = 0, n_block
    cdef Cursor cursor
    seek(&cursor, walk, first)
    while converted < n:
        n_block = min(block_size(walk.space), n - converted)
        if next_offsets(&cursor, walk, first + converted, n_block, rows + converted):
            return 1
        converted += n_block
    return 0


cdef inline void partition_offsets(
    uint32_t* begins, Py_ssize_t partitions, const int64_t* rows, Py_ssize_t n, int shift
) noexcept nogil:
    """Compute the offset of each partition in a group: a prefix sum of the partitions' sizes."""
    cdef Py_ssize_t i, partition
    cdef uint32_t total = 0
    for partition in range(partitions):
        begins[partition] = 0
    for i in range(n):
        begins[rows[i] >> shift] += 1
    for partition in range(partitions):
        total += begins[partition]
        begins[partition] = total - begins[partition]


cdef inline void write_entries(
    const Sorted* sorted_tuples, uint32_t* ends, const int64_t* rows, Py_ssize_t n,
    const uint8_t* updates,
    uint8_t* region,
) noexcept nogil:
    """Append n entries to their partitions; `ends`: partition offsets, which are advanced."""
    cdef uint32_t* local_rows = <uint32_t*> region
    cdef uint8_t* payload = region + GROUP * 4
    cdef Py_ssize_t i, width = sorted_tuples.width
    cdef int shift = sorted_tuples.shift
    cdef int64_t row
    cdef uint32_t position, mask = <uint32_t> ((<uint64_t> 1 << shift) - 1), index
    for i in range(n):
        row = rows[i]
        position = ends[row >> shift]
        ends[row >> shift] = position + 1
        local_rows[position] = <uint32_t> row & mask
        if width < LINE:
            copy_bytes(payload + width * <Py_ssize_t> position, updates + width * i, width)
        else:
            index = <uint32_t> i
            memcpy(payload + 4 * <Py_ssize_t> position, &index, 4)


cdef struct Apply:
    # partitions from `first` on, to apply to the output; `target`: the first row of the first one
    const Sorted* sorted_tuples
    Updates updates
    const uint8_t* data    # source of the windows, or NULL to update in place
    uint8_t* target
    uint8_t* windows       # one per thread, of `scratch` bytes
    Py_ssize_t scratch
    int64_t first
    Py_ssize_t length      # bytes up to the end of the last partition
    bint non_temporal


cdef inline uint64_t apply_partition(
    const void* args, int64_t partition, int thread
) noexcept nogil:
    """Apply one partition in place, or to a window (a copy in cache), which is written once."""
    cdef const Apply* a = <const Apply*> args
    cdef Py_ssize_t size = a.sorted_tuples.width << a.sorted_tuples.shift, offset = partition * size
    cdef Py_ssize_t length = min(size, a.length - offset)
    cdef uint8_t* window = a.target + offset
    cdef uint8_t* scratch = a.windows + thread * a.scratch
    cdef Updates updates, first_pass
    if a.data:
        window = scratch
        memcpy(window, a.data + offset, length)
    updates = window_updates(&a.updates, window, scratch, size)
    if a.updates.counts.data:
        updates.counts.origin = window - (a.first + partition) * size
    if updates.current == NEUTRAL:
        first_pass = fill_pass(&updates)
        apply_groups(a.sorted_tuples, &first_pass, window, a.first + partition)
    apply_groups(a.sorted_tuples, &updates, window, a.first + partition)
    divide_window(&a.updates, &updates, window, length)
    if a.data:
        write_window(a.target + offset, window, length, a.non_temporal)
    return 0


cdef struct Span:
    # the range of a partition's entries in one group
    Py_ssize_t begin, end


cdef inline Span partition_span(
    const Sorted* sorted_tuples, int64_t group, int64_t partition
) noexcept nogil:
    cdef Span span
    span.begin = span.end = 0
    if group < sorted_tuples.groups:
        if partition:
            span.begin = sorted_tuples.ends[group * sorted_tuples.partitions + partition - 1]
        span.end = sorted_tuples.ends[group * sorted_tuples.partitions + partition]
    return span


cdef inline void apply_groups(
    const Sorted* sorted_tuples, const Updates* u, uint8_t* window, int64_t partition
) noexcept nogil:
    """Apply a partition's entries group by group, in the original order."""
    cdef int64_t group
    cdef Py_ssize_t size = region_bytes(sorted_tuples.width)
    cdef const uint8_t* region = sorted_tuples.regions
    cdef Span span = partition_span(sorted_tuples, 0, partition), next_span
    for group in range(sorted_tuples.groups):
        next_span = partition_span(sorted_tuples, group + 1, partition)
        if sorted_tuples.width < LINE:
            apply_inline(u, window, region, span)
        else:
            apply_by_position(
                u, window, u.first + group * GROUP * u.pitch, region, span, region + size, next_span
            )
        span = next_span
        region += size


cdef inline void apply_inline(
    const Updates* u, uint8_t* window, const uint8_t* region, Span span
) noexcept nogil:
    """Apply a span of short updates, which are the payloads in the region."""
    cdef int64_t offsets[BLOCK]
    cdef const uint32_t* rows = <const uint32_t*> region
    cdef Py_ssize_t i, n_block, position = span.begin, width = u.pitch
    while position < span.end:
        n_block = min(BLOCK, span.end - position)
        for i in range(n_block):
            offsets[i] = <int64_t> rows[position + i] * width
        apply_block(u, window, offsets, region + GROUP * 4 + position * width, n_block, width)
        position += n_block


cdef inline void apply_by_position(
    const Updates* u, uint8_t* window, const uint8_t* updates, const uint8_t* region, Span span,
    const uint8_t* next_region, Span next_span,
) noexcept nogil:
    """Apply long updates, whose payloads are positions; prefetch those of the next group."""
    cdef const uint32_t* rows = <const uint32_t*> region
    cdef const uint32_t* positions = <const uint32_t*> (region + GROUP * 4)
    cdef const uint32_t* next_positions = <const uint32_t*> (next_region + GROUP * 4)
    cdef Py_ssize_t i, n = span.end - span.begin, width = u.pitch
    for i in range(max(n, next_span.end - next_span.begin)):
        if i < next_span.end - next_span.begin:
            prefetch_slice(updates + (GROUP + next_positions[next_span.begin + i]) * width, width)
        if i < n:
            apply_row(
                u, window + <int64_t> rows[span.begin + i] * width,
                updates + positions[span.begin + i] * width, width,
            )
