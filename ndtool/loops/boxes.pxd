# cython: language_level=3, wraparound=False, cdivision=True
# Boxes: assigns tuples to partitions of a large array, and permutes rows by partition.
# A partition is a box of the array's rows, or 2^shift consecutive ones, with an ID of 1 or 2 bytes.

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from ndtool.loops.blocks cimport (
    BLOCK, DROPPED, MAX_RANK, Cursor, Walk, block_size, convert_next_offsets, seek,
)
from ndtool.loops.moves cimport copy_bytes

cdef enum:
    BYTE_IDS = 256    # the maximum number of partitions whose IDs have one byte


cdef struct Partitioning:
    # rows of an array of shape `sizes`, partitioned into boxes of shape `steps` or less
    int rank
    int shift                 # log2 of a partition's consecutive rows, -1 for boxes
    int64_t partitions
    int64_t partition_rows    # rows of a partition
    int64_t sizes[MAX_RANK]
    int64_t steps[MAX_RANK]


cdef inline int64_t partition_of(
    const Partitioning* p, int64_t row, int64_t* local_row
) noexcept nogil:
    """Return the partition of a row; `local_row` receives the row's index in it."""
    cdef int64_t partition = 0, stride = 1, local_stride = 1, coordinate, begin, step
    cdef int d
    local_row[0] = 0
    for d in reversed(range(p.rank)):
        step = p.steps[d]
        coordinate = row % p.sizes[d]
        row //= p.sizes[d]
        partition += coordinate // step * stride
        begin = coordinate - coordinate % step
        local_row[0] += (coordinate - begin) * local_stride
        local_stride *= min(step, p.sizes[d] - begin)
        stride *= (p.sizes[d] - 1) // step + 1
    return partition


cdef inline int64_t partition_id(const uint8_t* ids, bint has_wide_ids, int64_t t) noexcept nogil:
    return (<const uint16_t*> ids)[t] if has_wide_ids else ids[t]


cdef inline uint64_t assign_partitions(
    const Walk* walk, int64_t count, const Partitioning* p, int64_t partitions,
    uint8_t* ids, uint8_t* local_rows, int64_t* partition_offsets
) noexcept nogil:
    """Write each tuple's partition ID and local row index; non-zero if an index is out of bounds.

    partitions: those of the partitioning, and one more for DROPPED tuples. partition_offsets: an
    array of zeros, one more than partitions; receives the offset of each partition.
    """
    cdef int64_t offsets[BLOCK]
    cdef int64_t t = 0, take, i, partition, row
    cdef int shift = p.shift
    cdef bint has_wide_ids = partitions > BYTE_IDS
    cdef bint has_long_row_indices = p.partition_rows > <int64_t> 1 << 32
    cdef Cursor cursor
    seek(&cursor, walk, 0)
    while t < count:
        take = min(block_size(walk.space), count - t)
        if convert_next_offsets(&cursor, walk, t, take, offsets):
            return 1
        for i in range(take):
            if offsets[i] == DROPPED:
                partition = p.partitions
                row = 0
            elif shift >= 0:
                partition = offsets[i] >> shift
                row = offsets[i] - (partition << shift)
            else:
                partition = partition_of(p, offsets[i], &row)
            if has_wide_ids:
                (<uint16_t*> ids)[t + i] = <uint16_t> partition
            else:
                ids[t + i] = <uint8_t> partition
            if has_long_row_indices:
                (<int64_t*> local_rows)[t + i] = row
            else:
                (<uint32_t*> local_rows)[t + i] = <uint32_t> row
            partition_offsets[partition + 1] += 1
        t += take
    for partition in range(partitions):
        partition_offsets[partition + 1] += partition_offsets[partition]
    return 0


cdef inline uint64_t permute_rows(
    const uint8_t* ids, bint has_wide_ids, int64_t count, int64_t partitions, int64_t* positions,
    const uint8_t* source, uint8_t* target, Py_ssize_t width, bint inverse
) noexcept nogil:
    """Copy each tuple's row to the next position in its partition; `inverse`: from there back.

    positions: the partition offsets, which are advanced. Non-zero if IDs do not match them.
    """
    cdef int64_t t, partition, position
    for t in range(count):
        partition = partition_id(ids, has_wide_ids, t)
        if partition >= partitions:
            return 1
        position = positions[partition]
        if <uint64_t> position >= <uint64_t> count:
            return 1
        positions[partition] = position + 1
        if inverse:
            copy_bytes(target + t * width, source + position * width, width)
        else:
            copy_bytes(target + position * width, source + t * width, width)
    return 0
