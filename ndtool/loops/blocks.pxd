# cython: language_level=3, wraparound=False, cdivision=True
# Blocks: conversion of up to BLOCK index tuples to byte offsets on the stack, with bounds checks.
# If another process changes the indices meanwhile, no access is out of bounds: offsets are copies.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.indices cimport (
    ENTRIES, REFUSE, SPECIAL, VALIDATED, BoundsMode, apply_mode, bounded_exact, is_plain, row_at,
    widened, widened_exact,
)
from ndtool.loops.memory cimport AHEAD, prefetch_lines

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t ndtool_offsets_1(
        int64_t const *, Py_ssize_t, uint64_t, int64_t, uint64_t, uint64_t, uint64_t, int64_t *
    ) ndtool_clones;
    static inline void ndtool_row_offsets(
        uint8_t const *, int, Py_ssize_t, uint64_t, uint64_t, int64_t *
    ) ndtool_clones;
    static inline uint64_t ndtool_offsets_2(
        int64_t const *, Py_ssize_t, uint64_t, uint64_t, int64_t, int64_t, uint64_t, uint64_t,
        uint64_t, int64_t *
    ) ndtool_clones;
    """

cdef enum:
    BLOCK = 512          # index tuples of a block; their offsets are on the stack
    SHORT = 128          # tuples of a block of short slices, for evenly spaced prefetches
    MOST_RANK = 64       # axes
    LINE = 64            # bytes of a cache line
    FEW = 16             # tuples of a batch, from which batches are converted one by one
    CACHED = 524288      # bytes that stay in a core's cache during a loop

cdef extern from *:
    """
    #define NDTOOL_DROPPED INT64_MIN  /* the offset of a dropped tuple */
    """
    const int64_t DROPPED "NDTOOL_DROPPED"


cdef struct Nd:
    # the indexed axes of data (a component of a tuple each) and its batch axes
    int k                         # components of a tuple
    int64_t sizes[MOST_RANK]
    int64_t wraps[MOST_RANK]      # the size if negative indices count from the end, else 0
    int64_t strides[MOST_RANK]    # bytes
    int64_t lowest, span          # the range of a batch's offsets: the least one, its length
    bint in_cache                 # a batch's slices fit in the cache and are reused: no prefetches
    int64_t repeats               # consecutive batches that share their tuples, stored once; or 1
    bint one_group                # all batches share the same tuples
    int64_t per_batch             # tuples of a batch
    int batch_rank
    int64_t batch_sizes[MOST_RANK]
    int64_t batch_strides[MOST_RANK]


cdef struct Cursor:
    # a position in a walk: its batch, as coordinates and as a byte offset
    int64_t coordinates[MOST_RANK]
    int64_t base
    int64_t batch        # the number of the batch
    int64_t remaining    # tuples until the end of the batch


cdef struct Walk:
    # a range of index tuples to convert to byte offsets
    const Nd* nd
    const uint8_t* index          # the first tuple
    int kind                      # the index type: see indices.pxd
    Py_ssize_t tuple_bytes        # bytes of a tuple
    int64_t first                 # the first tuple's position among all; it determines the batch
    int mode                      # the out-of-bounds mode
    int64_t redirect              # the offset of tuples that select nothing
    bint pads                     # tuples with an index that is `pad` select nothing
    int64_t pad


cdef inline void seek(Cursor* at, const Walk* walk, int64_t t) noexcept nogil:
    """Move the cursor to tuple t of a walk."""
    cdef const Nd* nd = walk.nd
    cdef int64_t tuple_number = walk.first + t, batch = tuple_number // nd.per_batch
    cdef int d
    at.remaining = nd.per_batch - tuple_number % nd.per_batch
    at.base = 0
    at.batch = batch
    for d in reversed(range(nd.batch_rank)):
        at.coordinates[d] = batch % nd.batch_sizes[d]
        at.base += at.coordinates[d] * nd.batch_strides[d]
        batch //= nd.batch_sizes[d]


cdef inline void next_batch(Cursor* at, const Nd* nd) noexcept nogil:
    cdef int d
    at.remaining = nd.per_batch
    at.batch += 1
    for d in reversed(range(nd.batch_rank)):
        at.coordinates[d] += 1
        at.base += nd.batch_strides[d]
        if at.coordinates[d] < nd.batch_sizes[d]:
            return
        at.base -= nd.batch_sizes[d] * nd.batch_strides[d]
        at.coordinates[d] = 0


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


cdef inline uint64_t offsets_2 "ndtool_offsets_2"(
    const int64_t* index, Py_ssize_t n, uint64_t size, uint64_t size2, int64_t wrap,
    int64_t wrap2, uint64_t stride, uint64_t stride2, uint64_t base, int64_t* offsets
) noexcept nogil:
    """offsets_1 for tuples of two components."""
    cdef Py_ssize_t i
    cdef int64_t v, w
    cdef uint64_t bad = 0
    for i in range(n):
        v = index[2 * i]
        w = index[2 * i + 1]
        v += wrap & (v >> 63)
        w += wrap2 & (w >> 63)
        bad |= (<uint64_t> v >= size) | (<uint64_t> w >= size2)
        offsets[i] = <int64_t> (<uint64_t> v * stride + <uint64_t> w * stride2 + base)
    return bad


cdef inline uint64_t offsets_k(
    const int64_t* index, Py_ssize_t n, int k, const Nd* nd, int64_t base, int64_t* offsets
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
            v += nd.wraps[j] & (v >> 63)
            bad |= <uint64_t> v >= <uint64_t> nd.sizes[j]
            sum += <uint64_t> v * <uint64_t> nd.strides[j]
        offsets[i] = <int64_t> sum
    return bad


cdef inline uint64_t offsets_by_mode(
    const Walk* walk, const int64_t* index, Py_ssize_t n, int64_t base, int64_t base_stride,
    int64_t* offsets
) noexcept nogil:
    """offsets_1 for tuples of one or two components, in the walk's out-of-bounds mode."""
    cdef const Nd* nd = walk.nd
    cdef BoundsMode mode = BoundsMode(
        &nd.sizes[0], &nd.strides[0], base, base_stride, walk.mode, walk.redirect
    )
    return apply_mode(&mode, index, n, nd.k, offsets)


cdef inline uint64_t resolve(
    const Walk* walk, const uint8_t* stored, Py_ssize_t n, int64_t base, int64_t* offsets
) noexcept nogil:
    """Convert n tuples to offsets one by one; non-zero if one is out of bounds in mode "error".

    For blocks that the vectorized loops cannot convert: with padding, or with such an index.
    """
    cdef const Nd* nd = walk.nd
    cdef int64_t entries[ENTRIES]
    cdef const int64_t* index
    cdef Py_ssize_t i
    cdef int64_t v
    cdef uint64_t sum
    cdef int j
    cdef bint is_uint64 = False, out_of_bounds, skips
    if walk.mode == REFUSE and not walk.pads:
        return 1
    index = widened_exact(stored, walk.kind, n * nd.k, entries, &is_uint64)
    for i in range(n):
        sum = <uint64_t> base
        skips = False
        for j in range(nd.k):
            v = index[nd.k * i + j]
            if walk.pads and v == walk.pad:
                skips = True
                continue
            out_of_bounds = bounded_exact(&v, nd.sizes[j], nd.wraps[j], walk.mode, is_uint64)
            if out_of_bounds and walk.mode == REFUSE:
                return 1
            skips |= out_of_bounds
            sum += <uint64_t> v * <uint64_t> nd.strides[j]
        offsets[i] = walk.redirect if skips else <int64_t> sum
    return 0


cdef inline Py_ssize_t block_size(const Nd* nd) noexcept nogil:
    """Return the tuples of a block: as many as BLOCK and ENTRIES admit."""
    return BLOCK if nd.k <= 2 else ENTRIES // nd.k


cdef inline int64_t stored_batch(const Nd* nd, int64_t batch) noexcept nogil:
    """Return the number of the first tuple of a batch among those stored."""
    return 0 if nd.one_group else batch // nd.repeats * nd.per_batch


cdef inline const int64_t* broadcast_indices(
    const Cursor* at, const Walk* walk, Py_ssize_t n, int64_t* entries
) noexcept nogil:
    """Return the indices of n tuples from the cursor on, if several batches share stored tuples."""
    cdef int64_t per_batch = walk.nd.per_batch, first = per_batch - at.remaining, take
    cdef int64_t batch = at.batch, stored = stored_batch(walk.nd, batch)
    cdef Py_ssize_t done = 0
    cdef const int64_t* index
    while done < n:
        if first == per_batch:
            first = 0
            batch += 1
            stored = stored_batch(walk.nd, batch)
        take = min(n - done, per_batch - first)
        index = widened(
            walk.index + (stored + first) * walk.tuple_bytes, walk.kind, take, entries + done
        )
        if index != entries + done:
            memcpy(entries + done, index, take * 8)
        done += take
        first += take
    return entries


cdef inline void row_offsets "ndtool_row_offsets"(
    const uint8_t* rows, int bytes_each, Py_ssize_t n, uint64_t stride, uint64_t base,
    int64_t* offsets
) noexcept nogil:
    """offsets[i] = rows[i] * stride + base, of validated row indices."""
    cdef Py_ssize_t i
    for i in range(n):
        offsets[i] = <int64_t> (row_at(rows, i, bytes_each) * stride + base)


cdef inline bint has_row_indices(const Walk* walk, Py_ssize_t width) noexcept nogil:
    """Return whether indices are linear row indices of contiguous rows of `width` bytes."""
    cdef const Nd* nd = walk.nd
    cdef bint usual = width in (1, 2, 4, 8, 16)
    return (
        usual and nd.k == 1 and nd.strides[0] == width and nd.repeats == 1
        and nd.per_batch >= SHORT and is_plain(walk.kind)
    )


cdef inline void next_row_offsets(
    Cursor* at, const Walk* walk, int64_t t, Py_ssize_t n, int64_t* offsets
) noexcept nogil:
    """Convert validated row indices as `next_offsets` does, without another check."""
    cdef const Nd* nd = walk.nd
    cdef Py_ssize_t done = 0, take
    while done < n:
        if at.remaining == 0:
            next_batch(at, nd)
        take = min(n - done, at.remaining)
        row_offsets(
            walk.index + (t + done) * walk.tuple_bytes, walk.tuple_bytes, take, nd.strides[0],
            at.base, offsets + done,
        )
        done += take
        at.remaining -= take


cdef inline uint64_t next_offsets(
    Cursor* at, const Walk* walk, int64_t t, Py_ssize_t n, int64_t* offsets
) noexcept nogil:
    """Convert tuples [t, t + n) of a walk to byte offsets; non-zero if one is out of bounds.

    n <= block_size(nd). The cursor must be at tuple t, and is moved to t + n.
    """
    cdef int64_t entries[ENTRIES]
    cdef const Nd* nd = walk.nd
    cdef const int64_t* index
    cdef Py_ssize_t done = 0, take
    cdef int64_t start
    cdef uint64_t bad = 0
    cdef int64_t base_stride
    cdef int last
    cdef bint special = walk.kind & SPECIAL != 0
    cdef bint one_per_batch = (
        nd.per_batch == 1 and nd.k == 1 and nd.batch_rank > 0 and not special
    )
    if walk.kind & VALIDATED and nd.per_batch >= FEW and nd.repeats == 1:
        next_row_offsets(at, walk, t, n, offsets)
        return 0
    if special:
        index = NULL
    elif nd.repeats > 1:
        index = broadcast_indices(at, walk, n, entries)
    else:
        index = widened(walk.index + t * walk.tuple_bytes, walk.kind, n * nd.k, entries)
    while done < n:
        if at.remaining == 0:
            next_batch(at, nd)
        take = min(n - done, at.remaining)
        if one_per_batch:
            last = nd.batch_rank - 1
            take = min(n - done, nd.batch_sizes[last] - at.coordinates[last])
            base_stride = nd.batch_strides[last]
            if walk.mode == REFUSE:
                bad = offsets_1(
                    index + done, take, nd.sizes[0], nd.wraps[0], nd.strides[0], at.base,
                    base_stride, offsets + done,
                )
            elif offsets_by_mode(walk, index + done, take, at.base, base_stride, offsets + done):
                one_per_batch = False    # too large to wrap in floating point
                continue
            at.coordinates[last] += take - 1
            at.batch += take - 1
            at.base += (take - 1) * nd.batch_strides[last]
            at.remaining += take - 1
        elif special:
            bad = 1
        elif walk.mode != REFUSE and 1 <= nd.k <= 2:
            bad = offsets_by_mode(walk, index + done * nd.k, take, at.base, 0, offsets + done)
        elif nd.k == 1:
            bad = offsets_1(
                index + done, take, nd.sizes[0], nd.wraps[0], nd.strides[0], at.base, 0,
                offsets + done,
            )
        elif nd.k == 2:
            bad = offsets_2(
                index + 2 * done, take, nd.sizes[0], nd.sizes[1], nd.wraps[0], nd.wraps[1],
                nd.strides[0], nd.strides[1], at.base, offsets + done,
            )
        elif nd.k == 3:
            bad = offsets_k(index + done * 3, take, 3, nd, at.base, offsets + done)
        else:
            bad = offsets_k(index + done * nd.k, take, nd.k, nd, at.base, offsets + done)
        if bad:
            start = t + done
            if nd.repeats > 1:
                start = stored_batch(nd, at.batch) + nd.per_batch - at.remaining
            if resolve(walk, walk.index + start * walk.tuple_bytes, take, at.base, offsets + done):
                return 1
        done += take
        at.remaining -= take
    return 0


cdef inline uint64_t offsets_from(
    Cursor* at, const Walk* walk, int64_t t, int64_t n, int64_t* offsets
) noexcept nogil:
    """Prefetch indices some distance ahead, then call `next_offsets`."""
    prefetch_lines(walk.index + t * walk.tuple_bytes + AHEAD, n * walk.tuple_bytes)
    return next_offsets(at, walk, t, n, offsets)


cdef inline void prefetch_next_batch(
    const Cursor* at, const Nd* nd, const uint8_t* source, int64_t take, double share
) noexcept nogil:
    """Prefetch the next batch's bytes evenly: `share` of them for each of `take` tuples."""
    cdef int64_t done = nd.per_batch - at.remaining
    if nd.in_cache and nd.batch_rank:
        source += at.base + nd.batch_strides[nd.batch_rank - 1] + nd.lowest
        prefetch_lines(source + <int64_t> (share * done), <int64_t> (share * take))


cdef inline Py_ssize_t column_of(int64_t task, int64_t tasks, Py_ssize_t width) noexcept nogil:
    """Return the first column of a task, at a cache line: no two tasks write to one line."""
    return width if task == tasks else width * task // tasks // LINE * LINE
