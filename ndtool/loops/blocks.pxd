# cython: language_level=3, wraparound=False, cdivision=True
# Blocks: conversion of up to BLOCK index tuples to byte offsets on the stack, with bounds checks.
# If another process changes the indices meanwhile, no access is out of bounds: offsets are copies.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.indices cimport (
    ENTRIES, ERROR, REDIRECT, UNVECTORIZED, BoundsMode, apply_mode, as_int64, as_int64_bits,
    bound_index_exact, read_once,
)
from ndtool.loops.memory cimport PREFETCH_DISTANCE, prefetch_lines

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t ndtool_offsets_1(
        int64_t const *, Py_ssize_t, uint64_t, int64_t, uint64_t, uint64_t, uint64_t, int64_t *
    ) ndtool_clones;
    static inline Py_ssize_t ndtool_plain_offsets(
        int64_t const *, Py_ssize_t, int, void const *, uint64_t, int64_t *
    ) ndtool_inline;
    """

cdef enum:
    FEW = 8                 # tuples, from which vectorized loops convert exceptional ones
    BLOCK = 512             # index tuples of a block; their offsets are on the stack
    SHORT_BLOCK = 128       # tuples of a block of slices of at most LINE bytes
    MAX_RANK = 64           # axes
    LINE = 64               # bytes of a cache line
    CACHE_BYTES = 524288    # bytes that fit in a core's cache during a loop

cdef extern from *:
    """
    #define NDTOOL_DROPPED INT64_MIN  /* the offset of a dropped tuple */
    """
    const int64_t DROPPED "NDTOOL_DROPPED"


cdef struct IndexSpace:
    # the axes of data that tuples index, one for each component of a tuple, and the batch axes
    int k                        # components of a tuple
    int64_t sizes[MAX_RANK]
    int64_t wraps[MAX_RANK]      # the size if negative indices count from the end, else 0
    int64_t strides[MAX_RANK]    # bytes
    int64_t lowest, span         # the minimum offset of a batch, and the maximum less it
    bint fits_in_cache           # no prefetches: all slices do, or a batch's, which are reused
    int64_t repeats              # the number of consecutive batches that share stored tuples
    bint is_one_group            # all batches share the same tuples
    int64_t per_batch            # tuples of a batch
    int batch_rank
    int64_t batch_sizes[MAX_RANK]
    int64_t batch_strides[MAX_RANK]


cdef struct Cursor:
    # a position in a walk: its batch, as coordinates and as a byte offset
    int64_t coordinates[MAX_RANK]
    int64_t base
    int64_t batch        # the index of the batch
    int64_t remaining    # tuples until the end of the batch


cdef struct Walk:
    # a range of index tuples to convert to byte offsets
    const IndexSpace* space
    const uint8_t* index       # the first tuple
    int kind                   # the index type: see indices.pxd
    Py_ssize_t tuple_bytes     # bytes of a tuple
    int64_t first              # the index of the first tuple among all tuples
    int mode                   # the out-of-bounds mode
    int64_t redirect_offset    # the offset of tuples that select nothing
    bint has_pad               # tuples with an index that is `pad` select nothing
    int64_t pad


cdef inline void seek(Cursor* cursor, const Walk* walk, int64_t t) noexcept nogil:
    """Move the cursor to tuple t of a walk."""
    cdef const IndexSpace* space = walk.space
    cdef int64_t tuple_index = walk.first + t, batch = tuple_index // space.per_batch
    cdef int d
    cursor.remaining = space.per_batch - tuple_index % space.per_batch
    cursor.base = 0
    cursor.batch = batch
    for d in reversed(range(space.batch_rank)):
        cursor.coordinates[d] = batch % space.batch_sizes[d]
        cursor.base += cursor.coordinates[d] * space.batch_strides[d]
        batch //= space.batch_sizes[d]


cdef inline void next_batch(Cursor* cursor, const IndexSpace* space) noexcept nogil:
    cdef int d
    cursor.remaining = space.per_batch
    cursor.batch += 1
    for d in reversed(range(space.batch_rank)):
        cursor.coordinates[d] += 1
        cursor.base += space.batch_strides[d]
        if cursor.coordinates[d] < space.batch_sizes[d]:
            return
        cursor.base -= space.batch_sizes[d] * space.batch_strides[d]
        cursor.coordinates[d] = 0


cdef inline uint64_t offsets_1 "ndtool_offsets_1"(
    const int64_t* index, Py_ssize_t n, uint64_t size, int64_t wrap, uint64_t stride,
    uint64_t base, uint64_t base_stride, int64_t* offsets
) noexcept nogil:
    """offsets[i] = index[i] * stride + base + i * base_stride; non-zero if any is out of bounds."""
    cdef Py_ssize_t i
    cdef int64_t v
    cdef uint64_t bad = 0
    for i in range(n):
        v = index[i]
        v += wrap & (v >> 63)
        bad |= <uint64_t> v >= size
        offsets[i] = <int64_t> (<uint64_t> v * stride + base)
        base += base_stride
    return bad


cdef inline Py_ssize_t plain_offsets "ndtool_plain_offsets"(
    const int64_t* index, Py_ssize_t n, int k, const void* index_space, uint64_t base,
    int64_t* offsets
) noexcept nogil:
    """Convert tuples up to the first that has a negative index or one out of bounds.

    Returns their number. k: a constant of at most 3. A branch that is predicted takes half of the
    time of `offsets_k`.
    """
    cdef const IndexSpace* space = <const IndexSpace*> index_space
    cdef uint64_t sizes[3]
    cdef uint64_t strides[3]
    cdef uint64_t v, sum
    cdef Py_ssize_t i
    cdef int j
    for j in range(k):
        sizes[j], strides[j] = space.sizes[j], space.strides[j]
    for i in range(n):
        sum = base
        for j in range(k):
            v = index[k * i + j]
            read_once(v)
            if v >= sizes[j]:
                return i
            sum += v * strides[j]
        offsets[i] = <int64_t> sum
    return n


cdef inline uint64_t offsets_k(
    const int64_t* index, Py_ssize_t n, int k, const IndexSpace* space, int64_t base,
    int64_t* offsets
) noexcept nogil:
    """offsets_1 for tuples of k components; a constant k lets the compiler unroll the loop."""
    cdef Py_ssize_t i
    cdef int j
    cdef int64_t v
    cdef uint64_t bad = 0, sum
    for i in range(n):
        sum = <uint64_t> base
        for j in range(k):
            v = index[k * i + j]
            v += space.wraps[j] & (v >> 63)
            bad |= <uint64_t> v >= <uint64_t> space.sizes[j]
            sum += <uint64_t> v * <uint64_t> space.strides[j]
        offsets[i] = <int64_t> sum
    return bad


cdef inline uint64_t offsets_by_mode(
    const Walk* walk, const int64_t* index, Py_ssize_t n, int64_t base, int64_t base_stride,
    int64_t* offsets
) noexcept nogil:
    """offsets_1 for tuples of up to three components, in the walk's out-of-bounds mode."""
    cdef const IndexSpace* space = walk.space
    cdef BoundsMode mode = BoundsMode(
        &space.sizes[0], &space.strides[0], base, base_stride, walk.mode, walk.redirect_offset
    )
    return apply_mode(&mode, index, n, space.k, offsets)


cdef inline uint64_t resolve_offsets(
    const Walk* walk, const uint8_t* indices, Py_ssize_t n, int64_t base, int64_t* offsets
) noexcept nogil:
    """Convert n tuples to offsets one by one; non-zero if one is out of bounds in mode "error".

    For blocks that the vectorized loops cannot convert: with padding, or with such an index.
    """
    cdef const IndexSpace* space = walk.space
    cdef int64_t values[ENTRIES]
    cdef const int64_t* index
    cdef Py_ssize_t i
    cdef int64_t v
    cdef uint64_t sum
    cdef int j
    cdef bint is_uint64 = False, out_of_bounds, skips
    if walk.mode == ERROR and not walk.has_pad:
        return 1
    index = as_int64_bits(indices, walk.kind, n * space.k, values, &is_uint64)
    for i in range(n):
        sum = <uint64_t> base
        skips = False
        for j in range(space.k):
            v = index[space.k * i + j]
            if walk.has_pad and v == walk.pad:
                skips = True
                continue
            out_of_bounds = bound_index_exact(
                &v, space.sizes[j], space.wraps[j], walk.mode, is_uint64
            )
            if out_of_bounds and walk.mode == ERROR:
                return 1
            skips |= out_of_bounds
            sum += <uint64_t> v * <uint64_t> space.strides[j]
        offsets[i] = walk.redirect_offset if skips else <int64_t> sum
    return 0


cdef inline Py_ssize_t block_size(const IndexSpace* space) noexcept nogil:
    """Return the number of tuples of a block, limited by BLOCK and ENTRIES."""
    return BLOCK if space.k <= 2 else ENTRIES // space.k


cdef inline int64_t stored_batch(const IndexSpace* space, int64_t batch) noexcept nogil:
    """Return the index of a batch's first tuple among the stored tuples."""
    return 0 if space.is_one_group else batch // space.repeats * space.per_batch


cdef inline const int64_t* broadcast_indices(
    const Cursor* cursor, const Walk* walk, Py_ssize_t n, int64_t* values
) noexcept nogil:
    """Return the indices of n tuples from the cursor on, where batches share stored tuples."""
    cdef int64_t tuples_per_batch = walk.space.per_batch
    cdef int64_t first = tuples_per_batch - cursor.remaining, n_batch
    cdef int64_t batch = cursor.batch, stored = stored_batch(walk.space, batch)
    cdef Py_ssize_t converted = 0
    cdef const int64_t* index
    while converted < n:
        if first == tuples_per_batch:
            first = 0
            batch += 1
            stored = stored_batch(walk.space, batch)
        n_batch = min(n - converted, tuples_per_batch - first)
        index = as_int64(
            walk.index + (stored + first) * walk.tuple_bytes, walk.kind, n_batch, values + converted
        )
        if index != values + converted:
            memcpy(values + converted, index, n_batch * 8)
        converted += n_batch
        first += n_batch
    return values


cdef inline const uint8_t* stored_index(
    const Cursor* cursor, const Walk* walk, int64_t t
) noexcept nogil:
    """Return the stored index of tuple t of a walk, at which the cursor is."""
    if walk.space.repeats > 1:
        t = stored_batch(walk.space, cursor.batch) + walk.space.per_batch - cursor.remaining
    return walk.index + t * walk.tuple_bytes


cdef inline bint has_shared_tuples(const Walk* walk, int64_t count) noexcept nogil:
    """Return whether `count` tuples are complete short batches that share the same few tuples."""
    cdef const IndexSpace* space = walk.space
    return (
        space.is_one_group and space.batch_rank == 1 and 1 < space.repeats
        and space.per_batch <= SHORT_BLOCK and walk.mode != REDIRECT and not walk.has_pad
        and walk.first % space.per_batch == 0 and count % space.per_batch == 0
    )


cdef inline bint is_usual_width(Py_ssize_t width) noexcept nogil:
    """Return whether loops are compiled for elements of `width` bytes."""
    return width in (1, 2, 4, 8, 16)


cdef inline bint has_row_indices(const Walk* walk, Py_ssize_t width) noexcept nogil:
    """Return whether stored indices are row indices of elements of `width` bytes."""
    cdef const IndexSpace* space = walk.space
    return is_usual_width(width) and space.k == 1 and not walk.kind & UNVECTORIZED


cdef inline uint64_t next_offsets(
    Cursor* cursor, const Walk* walk, int64_t t, Py_ssize_t n, int64_t* offsets
) noexcept nogil:
    """Convert tuples [t, t + n) of a walk to byte offsets; non-zero if one is out of bounds.

    n <= block_size(walk.space). The cursor must be at tuple t, and is moved to t + n.
    """
    cdef int64_t values[ENTRIES]
    cdef const IndexSpace* space = walk.space
    cdef const int64_t* index
    cdef Py_ssize_t converted = 0, n_batch, n_plain, few = 1
    cdef int64_t start
    cdef uint64_t bad = 0
    cdef int64_t base_stride
    cdef int last_axis
    cdef bint is_one_by_one = walk.kind & UNVECTORIZED != 0
    cdef bint is_one_per_batch = (
        space.per_batch == 1 and space.k == 1 and space.batch_rank > 0 and not is_one_by_one
    )
    if is_one_by_one:
        index = NULL
    elif space.repeats > 1:
        index = broadcast_indices(cursor, walk, n, values)
    else:
        index = as_int64(walk.index + t * walk.tuple_bytes, walk.kind, n * space.k, values)
    while converted < n:
        if cursor.remaining == 0:
            next_batch(cursor, space)
        n_batch = min(n - converted, cursor.remaining)
        if not is_one_by_one and not is_one_per_batch and (
            2 <= space.k <= 3 or space.k == 1 and n_batch < FEW and few < BLOCK
        ):    # also a short batch, unless several had such an index
            if space.k == 1:
                n_plain = plain_offsets(
                    index + converted, n_batch, 1, space, cursor.base, offsets + converted
                )
            elif space.k == 2:
                n_plain = plain_offsets(
                    index + 2 * converted, n_batch, 2, space, cursor.base, offsets + converted
                )
            else:
                n_plain = plain_offsets(
                    index + 3 * converted, n_batch, 3, space, cursor.base, offsets + converted
                )
            converted += n_plain
            cursor.remaining -= n_plain
            n_batch -= n_plain
            if n_batch == 0:
                continue
            few = 1 if n_plain >= 4 * FEW else min(4 * few, BLOCK)
            if walk.mode == ERROR and space.k > 1:    # else all others are converted as fast
                n_batch = min(n_batch, few)
        if is_one_per_batch:
            last_axis = space.batch_rank - 1
            n_batch = min(
                n - converted, space.batch_sizes[last_axis] - cursor.coordinates[last_axis]
            )
            base_stride = space.batch_strides[last_axis]
            if walk.mode == ERROR:
                bad = offsets_1(
                    index + converted, n_batch, space.sizes[0], space.wraps[0], space.strides[0],
                    cursor.base,
                    base_stride, offsets + converted,
                )
            elif offsets_by_mode(
                walk, index + converted, n_batch, cursor.base, base_stride, offsets + converted
            ):
                is_one_per_batch = False    # too large to wrap in floating point
                continue
            cursor.coordinates[last_axis] += n_batch - 1
            cursor.batch += n_batch - 1
            cursor.base += (n_batch - 1) * space.batch_strides[last_axis]
            cursor.remaining += n_batch - 1
        elif is_one_by_one:
            bad = 1
        elif walk.mode != ERROR and 1 <= space.k <= 3:
            bad = offsets_by_mode(
                walk, index + converted * space.k, n_batch, cursor.base, 0, offsets + converted
            )
        elif space.k == 1:
            bad = offsets_1(
                index + converted, n_batch, space.sizes[0], space.wraps[0], space.strides[0],
                cursor.base, 0,
                offsets + converted,
            )
        elif space.k == 2:
            bad = offsets_k(
                index + 2 * converted, n_batch, 2, space, cursor.base, offsets + converted
            )
        else:
            bad = offsets_k(
                index + converted * space.k, n_batch, space.k, space, cursor.base,
                offsets + converted
            )
        if bad:
            start = t + converted
            if space.repeats > 1:
                start = stored_batch(space, cursor.batch) + space.per_batch - cursor.remaining
            if resolve_offsets(
                walk, walk.index + start * walk.tuple_bytes, n_batch, cursor.base,
                offsets + converted
            ):
                return 1
        converted += n_batch
        cursor.remaining -= n_batch
    return 0


cdef inline uint64_t convert_next_offsets(
    Cursor* cursor, const Walk* walk, int64_t t, int64_t n, int64_t* offsets
) noexcept nogil:
    """Prefetch indices some distance ahead, then call `next_offsets`."""
    prefetch_lines(walk.index + t * walk.tuple_bytes + PREFETCH_DISTANCE, n * walk.tuple_bytes)
    return next_offsets(cursor, walk, t, n, offsets)


cdef inline Py_ssize_t task_column(int64_t task, int64_t tasks, Py_ssize_t width) noexcept nogil:
    """Return the first column of a task, a multiple of LINE: no two tasks write to one line."""
    return width if task == tasks else width * task // tasks // LINE * LINE
