# cython: language_level=3, wraparound=False, cdivision=True
# Blocks: conversion of up to BLOCK index tuples to byte offsets on the stack, with bounds checks.
# If another process changes the indices meanwhile, no access is out of bounds: offsets are copies.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.indices cimport (
    CLIP, ENTRIES, ERROR, REDIRECT, UNVECTORIZED, WRAP, as_int64, as_int64_bits, bound_index,
    bound_index_exact, read_once,
)
from ndtool.loops.memory cimport PREFETCH_DISTANCE, prefetch_lines

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t ndtool_tuple_offsets(
        void const *, int64_t const *, Py_ssize_t, int, int64_t *
    ) ndtool_clones;
    static inline uint64_t ndtool_offsets_by_mode(
        void const *, int64_t const *, Py_ssize_t, int, int64_t *
    ) ndtool_inline;
    static inline uint64_t ndtool_offsets_in_mode(
        void const *, int64_t const *, Py_ssize_t, int, int, int64_t *
    ) ndtool_inline;
    static inline Py_ssize_t ndtool_plain_offsets_of(
        int64_t const *, Py_ssize_t, int, void const *, uint64_t, int64_t *
    ) ndtool_inline;
    """

cdef enum:
    FEW = 8                 # tuples, from which vectorized loops convert exceptional ones
    BLOCK = 512             # index tuples of a block; their offsets are on the stack
    SHORT_BLOCK = 128       # tuples of a block of slices of at most LINE bytes
    LINE = 64               # bytes of a cache line
    MAX_RANK = 64           # axes
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


cdef struct Bounds:
    # arguments of tuple_offsets: the indexed axes, and what to do with an index out of bounds
    const int64_t* sizes
    const int64_t* wraps          # in mode "error", added to negative indices: the size or 0
    const int64_t* strides        # bytes
    uint64_t base, base_stride    # the offset of index 0, and its increment for each tuple
    int mode
    int64_t redirect_offset
    bint has_pad                  # for resolve_offsets alone
    int64_t pad


cdef inline uint64_t tuple_offsets "ndtool_tuple_offsets"(
    const void* bounds, const int64_t* index, Py_ssize_t n, int k, int64_t* offsets
) noexcept nogil:
    """offsets[i] = base + i * base_stride + the offset of tuple i, of k components.

    Non-zero if an index is out of bounds in mode "error", or too far to be wrapped in floating
    point.
    """
    if k == 1:
        return offsets_by_mode(bounds, index, n, 1, offsets)
    if k == 2:
        return offsets_by_mode(bounds, index, n, 2, offsets)
    if k == 3:
        return offsets_by_mode(bounds, index, n, 3, offsets)
    return offsets_by_mode(bounds, index, n, k, offsets)


cdef inline uint64_t offsets_by_mode "ndtool_offsets_by_mode"(
    const void* bounds, const int64_t* index, Py_ssize_t n, int k, int64_t* offsets
) noexcept nogil:
    """Call offsets_in_mode with a constant mode."""
    cdef int mode = (<const Bounds*> bounds).mode
    if mode == ERROR:
        return offsets_in_mode(bounds, index, n, k, ERROR, offsets)
    if mode == CLIP:
        return offsets_in_mode(bounds, index, n, k, CLIP, offsets)
    if mode == WRAP:
        return offsets_in_mode(bounds, index, n, k, WRAP, offsets)
    return offsets_in_mode(bounds, index, n, k, REDIRECT, offsets)


cdef inline uint64_t offsets_in_mode "ndtool_offsets_in_mode"(
    const void* args, const int64_t* index, Py_ssize_t n, int k, int mode, int64_t* offsets
) noexcept nogil:
    """tuple_offsets, without branches; a constant mode, and k to 3, so that the loop vectorizes."""
    cdef const Bounds* bounds = <const Bounds*> args
    cdef int64_t sizes[MAX_RANK]
    cdef int64_t wraps[MAX_RANK]
    cdef uint64_t strides[MAX_RANK]
    cdef double inverses[MAX_RANK]
    cdef Py_ssize_t i
    cdef int j
    cdef int64_t v, out_mask, redirect_offset = bounds.redirect_offset
    cdef uint64_t sum, bad_bits = 0, base = bounds.base, base_stride = bounds.base_stride
    for j in range(k):
        sizes[j], strides[j] = bounds.sizes[j], bounds.strides[j]
        wraps[j] = bounds.wraps[j]
        inverses[j] = 1.0 / sizes[j]
    for i in range(n):
        out_mask = 0
        sum = base
        for j in range(k):
            v = bound_index(
                index[k * i + j], sizes[j], wraps[j] if mode == ERROR else sizes[j], inverses[j],
                mode, &out_mask, &bad_bits,
            )
            sum += <uint64_t> v * strides[j]
        if mode == REDIRECT:
            sum = (sum & ~<uint64_t> out_mask) | <uint64_t> (redirect_offset & out_mask)
        offsets[i] = <int64_t> sum
        base += base_stride
    return bad_bits >> 52


cdef inline Py_ssize_t plain_offsets(
    const int64_t* index, Py_ssize_t n, const IndexSpace* space, uint64_t base, int64_t* offsets
) noexcept nogil:
    """Convert tuples up to the first that has a negative index or one out of bounds.

    Returns their number. A branch that is predicted takes half of the time of `tuple_offsets`.
    """
    if space.k == 1:
        return plain_offsets_of(index, n, 1, space, base, offsets)
    if space.k == 2:
        return plain_offsets_of(index, n, 2, space, base, offsets)
    if space.k == 3:
        return plain_offsets_of(index, n, 3, space, base, offsets)
    return plain_offsets_of(index, n, space.k, space, base, offsets)


cdef inline Py_ssize_t plain_offsets_of "ndtool_plain_offsets_of"(
    const int64_t* index, Py_ssize_t n, int k, const void* index_space, uint64_t base,
    int64_t* offsets
) noexcept nogil:
    """plain_offsets, with a constant number of components if there are few."""
    cdef const IndexSpace* space = <const IndexSpace*> index_space
    cdef uint64_t sizes[MAX_RANK]
    cdef uint64_t strides[MAX_RANK]
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


cdef inline Py_ssize_t short_offsets(
    Cursor* cursor, const IndexSpace* space, const int64_t* index, Py_ssize_t n, int64_t* offsets
) noexcept nogil:
    """plain_offsets of single indices in several short batches, which moves the cursor."""
    cdef uint64_t v, base, size = space.sizes[0], stride = space.strides[0]
    cdef Py_ssize_t i = 0, end
    while i < n:
        if cursor.remaining == 0:
            next_batch(cursor, space)
        base, end = cursor.base, min(n, i + cursor.remaining)
        cursor.remaining -= end - i
        while i < end:
            v = index[i]
            read_once(v)
            if v >= size:
                cursor.remaining += end - i
                return i
            offsets[i] = <int64_t> (base + v * stride)
            i += 1
    return n


cdef inline uint64_t resolve_offsets(
    const Bounds* bounds, const uint8_t* indices, int kind, Py_ssize_t n, int k, int64_t* offsets
) noexcept nogil:
    """tuple_offsets one by one, for what its loops cannot convert: padding, or such an index."""
    cdef int64_t values[ENTRIES]
    cdef const int64_t* index
    cdef Py_ssize_t i
    cdef int64_t v
    cdef uint64_t sum, base = bounds.base
    cdef int j
    cdef bint is_uint64 = False, out_of_bounds, skips
    if bounds.mode == ERROR and not bounds.has_pad:
        return 1
    index = as_int64_bits(indices, kind, n * k, values, &is_uint64)
    for i in range(n):
        sum = base
        skips = False
        for j in range(k):
            v = index[k * i + j]
            if bounds.has_pad and v == bounds.pad:
                skips = True
                continue
            out_of_bounds = bound_index_exact(
                &v, bounds.sizes[j], bounds.wraps[j], bounds.mode, is_uint64
            )
            if out_of_bounds and bounds.mode == ERROR:
                return 1
            skips |= out_of_bounds
            sum += <uint64_t> v * <uint64_t> bounds.strides[j]
        offsets[i] = bounds.redirect_offset if skips else <int64_t> sum
        base += bounds.base_stride
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
    cdef int64_t start, skipped
    cdef uint64_t bad
    cdef int last_axis = space.batch_rank - 1
    cdef bint is_one_by_one = walk.kind & UNVECTORIZED != 0
    cdef bint is_one_per_batch = (
        space.per_batch == 1 and space.k == 1 and space.batch_rank > 0 and not is_one_by_one
    )
    cdef bint is_short = space.k == 1 and space.per_batch < 2 * FEW
    cdef Bounds bounds = Bounds(
        &space.sizes[0], &space.wraps[0], &space.strides[0], 0, 0, walk.mode, walk.redirect_offset,
        walk.has_pad, walk.pad,
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
        if is_one_per_batch:    # those along the last batch axis together
            n_batch = min(
                n - converted, space.batch_sizes[last_axis] - cursor.coordinates[last_axis]
            )
            bounds.base_stride = space.batch_strides[last_axis]
        elif not is_one_by_one and (space.k > 1 or is_short and few < BLOCK):
            # also short batches, unless several had such an index
            if is_short:
                n_plain = short_offsets(
                    cursor, space, index + converted, n - converted, offsets + converted
                )
                n_batch = min(n - converted, n_plain + cursor.remaining)
            else:
                n_plain = plain_offsets(
                    index + converted * space.k, n_batch, space, cursor.base, offsets + converted
                )
                cursor.remaining -= n_plain
            converted += n_plain
            n_batch -= n_plain
            if n_batch == 0:
                continue
            few = 1 if n_plain >= 4 * FEW else min(4 * few, BLOCK)
            if walk.mode == ERROR and space.k > 1:    # else all others are converted as fast
                n_batch = min(n_batch, few)
        bad, bounds.base = is_one_by_one, cursor.base
        if not bad:
            bad = tuple_offsets(
                &bounds, index + converted * space.k, n_batch, space.k, offsets + converted
            )
        if bad and is_one_per_batch and walk.mode != ERROR:    # too large to wrap
            is_one_per_batch, bounds.base_stride = False, 0
            continue
        if bad:
            start = t + converted
            if space.repeats > 1:
                start = stored_batch(space, cursor.batch) + space.per_batch - cursor.remaining
            if resolve_offsets(
                &bounds, walk.index + start * walk.tuple_bytes, walk.kind, n_batch, space.k,
                offsets + converted
            ):
                return 1
        if is_one_per_batch:
            skipped = n_batch - 1
            cursor.coordinates[last_axis] += skipped
            cursor.batch += skipped
            cursor.base += skipped * space.batch_strides[last_axis]
            cursor.remaining += skipped
        converted += n_batch
        cursor.remaining -= n_batch
    return 0


cdef inline uint64_t convert_next_offsets(
    Cursor* cursor, const Walk* walk, int64_t t, int64_t n, int64_t* offsets
) noexcept nogil:
    """Prefetch indices some distance ahead, then call `next_offsets`."""
    prefetch_lines(walk.index + t * walk.tuple_bytes + PREFETCH_DISTANCE, n * walk.tuple_bytes)
    return next_offsets(cursor, walk, t, n, offsets)


cdef inline int64_t shared_offsets(
    const Walk* walk, int64_t batches, int64_t* offsets
) noexcept nogil:
    """Convert the tuples that batches share to offsets from a batch's first slice, in a block.

    The block continues with as many of the other batches as fit. Returns how many are in it; 0 if a
    tuple is out of bounds.
    """
    cdef int64_t n = walk.space.per_batch, i
    cdef Cursor cursor
    seek(&cursor, walk, 0)
    cursor.base = 0
    if next_offsets(&cursor, walk, 0, n, offsets):
        return 0
    batches = min(batches, BLOCK // n)
    for i in range(n, batches * n):
        offsets[i] = offsets[i - n] + walk.space.batch_strides[0]
    return batches


cdef inline Py_ssize_t task_column(int64_t task, int64_t tasks, Py_ssize_t width) noexcept nogil:
    """Return the first column of a task, a multiple of LINE: no two tasks write to one line."""
    return width if task == tasks else width * task // tasks // LINE * LINE
