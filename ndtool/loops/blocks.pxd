# cython: language_level=3, wraparound=False, cdivision=True
# Blocks: every kernel turns up to BLOCK index tuples at a time into checked byte offsets on the
# stack, then moves or reduces the runs there. Offsets are private copies: indices that another
# process changes meanwhile can give wrong values, never an access outside the arrays.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.indices cimport (
    CHECKED, ENTRIES, REFUSE, exact, is_plain, number_at, ruled, settle, widened,
)
from ndtool.loops.memory cimport AHEAD, prefetch_lines

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    static inline uint64_t ndtool_offsets_1(
        int64_t const *, Py_ssize_t, uint64_t, int64_t, uint64_t, uint64_t, uint64_t, int64_t *
    ) ndtool_clones;
    static inline void ndtool_numbered_offsets(
        uint8_t const *, int, Py_ssize_t, uint64_t, uint64_t, int64_t *
    ) ndtool_clones;
    static inline uint64_t ndtool_offsets_2(
        int64_t const *, Py_ssize_t, uint64_t, uint64_t, int64_t, int64_t, uint64_t, uint64_t,
        uint64_t, int64_t *
    ) ndtool_clones;
    """

cdef enum:
    BLOCK = 512          # index tuples whose offsets stand on the stack at once
    SHORT = 128          # tuples of a block where runs are short: memory is asked at an even pace
    MOST_RANK = 64
    LINE = 64            # bytes of a cache line
    FEW = 16             # tuples of one batch that are not worth a call
    NEAR = 524288        # bytes that fit a core's cache beside all else

cdef extern from *:
    """
    #define NDTOOL_NOWHERE INT64_MIN
    """
    const int64_t NOWHERE "NDTOOL_NOWHERE"


cdef struct Nd:
    # how index tuples address bytes: one component per axis, batches of `per_batch` tuples
    int k
    int64_t sizes[MOST_RANK]
    int64_t wraps[MOST_RANK]      # the size where negative indices count from the end, else 0
    int64_t strides[MOST_RANK]    # bytes
    int64_t lowest, reach         # the bytes that one batch can name: where, how many
    bint near                     # they fit the cache, and are read often: none is prefetched
    bint repeated                 # every batch has the same tuples, which stand there once
    int64_t per_batch
    int batch_rank
    int64_t batch_sizes[MOST_RANK]
    int64_t batch_strides[MOST_RANK]


cdef struct Cursor:
    # where a walk over the tuples stands: its batch, as coordinates and as a byte offset
    int64_t coordinates[MOST_RANK]
    int64_t base
    int64_t left                  # tuples left in this batch


cdef struct Walk:
    # index tuples and how they address bytes
    const Nd* nd
    const uint8_t* index          # where the tuples stand
    int kind                      # of index type
    Py_ssize_t entry              # bytes of a tuple
    int64_t first                 # the number of the first one, which tells its batch
    int rule                      # for indices out of bounds
    int64_t elsewhere             # the offset of tuples that are sent there


cdef inline void seek(Cursor* at, const Walk* walk, int64_t t) noexcept nogil:
    """Go to tuple t of a walk."""
    cdef const Nd* nd = walk.nd
    cdef int64_t tuple_number = walk.first + t, batch = tuple_number // nd.per_batch
    cdef int d
    at.left = nd.per_batch - tuple_number % nd.per_batch
    at.base = 0
    for d in reversed(range(nd.batch_rank)):
        at.coordinates[d] = batch % nd.batch_sizes[d]
        at.base += at.coordinates[d] * nd.batch_strides[d]
        batch //= nd.batch_sizes[d]


cdef inline void next_batch(Cursor* at, const Nd* nd) noexcept nogil:
    cdef int d
    at.left = nd.per_batch
    for d in reversed(range(nd.batch_rank)):
        at.coordinates[d] += 1
        at.base += nd.batch_strides[d]
        if at.coordinates[d] < nd.batch_sizes[d]:
            return
        at.base -= nd.batch_sizes[d] * nd.batch_strides[d]
        at.coordinates[d] = 0


cdef inline uint64_t offsets_1 "ndtool_offsets_1"(
    const int64_t* index, Py_ssize_t n, uint64_t size, int64_t wrap, uint64_t stride,
    uint64_t base, uint64_t drift, int64_t* offsets
) noexcept nogil:
    """offsets[i] = index[i] * stride + base + i * drift; non-zero if an index is out of bounds."""
    cdef Py_ssize_t i
    cdef int64_t v
    cdef uint64_t bad = 0
    for i in range(n):
        v = index[i]
        v += wrap & (v >> 63)
        bad |= <uint64_t> v >= size
        offsets[i] = <int64_t> (<uint64_t> v * stride + base)
        base += drift
    return bad


cdef inline uint64_t offsets_2 "ndtool_offsets_2"(
    const int64_t* index, Py_ssize_t n, uint64_t size, uint64_t size2, int64_t wrap,
    int64_t wrap2, uint64_t stride, uint64_t stride2, uint64_t base, int64_t* offsets
) noexcept nogil:
    """The same for tuples of two components."""
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
    """The same for tuples of any number of components; a constant one lets loops be unrolled."""
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


cdef inline uint64_t resolve(
    const Walk* walk, const uint8_t* stored, Py_ssize_t n, int64_t base, int64_t* offsets
) noexcept nogil:
    """Turn n tuples into offsets, some of them out of bounds; non-zero where that is an error.

    One after the other, wherever they are.
    """
    cdef const Nd* nd = walk.nd
    cdef int64_t entries[ENTRIES]
    cdef const int64_t* index
    cdef Py_ssize_t i
    cdef int64_t v
    cdef uint64_t sum
    cdef int j
    cdef bint whole = False, outside
    if walk.rule == REFUSE:
        return 1
    index = exact(stored, walk.kind, n * nd.k, entries, &whole)
    for i in range(n):
        sum = <uint64_t> base
        outside = False
        for j in range(nd.k):
            v = index[nd.k * i + j]
            outside |= settle(&v, nd.sizes[j], walk.rule, whole)
            sum += <uint64_t> v * <uint64_t> nd.strides[j]
        offsets[i] = walk.elsewhere if outside else <int64_t> sum
    return 0


cdef inline Py_ssize_t block_of(const Nd* nd) noexcept nogil:
    """Return how many tuples are taken at once: what BLOCK and ENTRIES admit."""
    return BLOCK if nd.k <= 2 else ENTRIES // nd.k


cdef inline const int64_t* repeated(
    const Cursor* at, const Walk* walk, Py_ssize_t n, int64_t* entries
) noexcept nogil:
    """Return n indices from the cursor on, of tuples that every batch begins anew."""
    cdef int64_t per_batch = walk.nd.per_batch, first = per_batch - at.left, take
    cdef Py_ssize_t done = 0
    cdef const int64_t* index
    while done < n:
        first = 0 if first == per_batch else first
        take = min(n - done, per_batch - first)
        index = widened(walk.index + first * walk.entry, walk.kind, take, entries + done)
        if index != entries + done:
            memcpy(entries + done, index, take * 8)
        done += take
        first += take
    return entries


cdef inline void numbered_offsets "ndtool_numbered_offsets"(
    const uint8_t* numbers, int bytes_each, Py_ssize_t n, uint64_t stride, uint64_t base,
    int64_t* offsets
) noexcept nogil:
    """offsets[i] = numbers[i] * stride + base, of numbers that were checked."""
    cdef Py_ssize_t i
    if bytes_each == 2:
        for i in range(n):
            offsets[i] = <int64_t> (number_at(numbers, i, 2) * stride + base)
    else:
        for i in range(n):
            offsets[i] = <int64_t> (number_at(numbers, i, 4) * stride + base)


cdef inline bint by_number(const Walk* walk, Py_ssize_t width) noexcept nogil:
    """Whether tuples are plain numbers of runs of `width` bytes that stand side by side."""
    cdef const Nd* nd = walk.nd
    cdef bint usual = width in (1, 2, 4, 8, 16)
    return (
        usual and nd.k == 1 and nd.strides[0] == width and not nd.repeated
        and nd.per_batch >= SHORT and is_plain(walk.kind)
    )


cdef inline void next_numbered(
    Cursor* at, const Walk* walk, int64_t t, Py_ssize_t n, int64_t* offsets
) noexcept nogil:
    """Do what `next_offsets` does, of numbers that were checked."""
    cdef const Nd* nd = walk.nd
    cdef Py_ssize_t done = 0, take
    while done < n:
        if at.left == 0:
            next_batch(at, nd)
        take = min(n - done, at.left)
        numbered_offsets(
            walk.index + (t + done) * walk.entry, walk.entry, take, nd.strides[0], at.base,
            offsets + done,
        )
        done += take
        at.left -= take


cdef inline uint64_t next_offsets(
    Cursor* at, const Walk* walk, int64_t t, Py_ssize_t n, int64_t* offsets
) noexcept nogil:
    """Turn tuples [t, t + n) of a walk, n <= block_of(nd), into byte offsets; non-zero if bad.

    The cursor must stand at tuple t.
    """
    cdef int64_t entries[ENTRIES]
    cdef const Nd* nd = walk.nd
    cdef const int64_t* index
    cdef Py_ssize_t done = 0, take
    cdef int64_t place
    cdef uint64_t bad = 0
    cdef int64_t drift
    cdef int last
    cdef bint alone = nd.per_batch == 1 and nd.k == 1 and nd.batch_rank > 0
    if walk.kind & CHECKED and nd.per_batch >= FEW and not nd.repeated:
        next_numbered(at, walk, t, n, offsets)
        return 0
    if nd.repeated:
        index = repeated(at, walk, n, entries)
    else:
        index = widened(walk.index + t * walk.entry, walk.kind, n * nd.k, entries)
    while done < n:
        if at.left == 0:
            next_batch(at, nd)
        take = min(n - done, at.left)
        if alone:
            last = nd.batch_rank - 1
            take = min(n - done, nd.batch_sizes[last] - at.coordinates[last])
            drift = nd.batch_strides[last]
            if walk.rule == REFUSE:
                bad = offsets_1(
                    index + done, take, nd.sizes[0], nd.wraps[0], nd.strides[0], at.base, drift,
                    offsets + done,
                )
            elif ruled(
                index + done, take, 1, nd.sizes, nd.strides, at.base, drift, walk.rule,
                walk.elsewhere, offsets + done,
            ):
                alone = False    # one by one: an index is too far out
                continue
            at.coordinates[last] += take - 1
            at.base += (take - 1) * nd.batch_strides[last]
            at.left += take - 1
        elif take < FEW:
            bad = offsets_k(index + done * nd.k, take, nd.k, nd, at.base, offsets + done)
        elif walk.rule != REFUSE and 1 <= nd.k <= 2:
            bad = ruled(
                index + done * nd.k, take, nd.k, nd.sizes, nd.strides, at.base, 0, walk.rule,
                walk.elsewhere, offsets + done,
            )
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
        elif nd.k == 4:
            bad = offsets_k(index + done * 4, take, 4, nd, at.base, offsets + done)
        else:
            bad = offsets_k(index + done * nd.k, take, nd.k, nd, at.base, offsets + done)
        if bad:
            place = nd.per_batch - at.left if nd.repeated else t + done
            if resolve(walk, walk.index + place * walk.entry, take, at.base, offsets + done):
                return 1
        done += take
        at.left -= take
    return 0


cdef inline uint64_t offsets_from(
    Cursor* at, const Walk* walk, int64_t t, int64_t n, int64_t* offsets
) noexcept nogil:
    """Turn tuples t.. of a walk into offsets, and ask for the indices that follow."""
    prefetch_lines(walk.index + t * walk.entry + AHEAD, n * walk.entry)
    return next_offsets(at, walk, t, n, offsets)


cdef inline void ask_next_batch(
    const Cursor* at, const Nd* nd, const uint8_t* source, int64_t take, double share
) noexcept nogil:
    """Ask for `share` bytes of what the next batch can name for each of `take` tuples of this."""
    cdef int64_t done = nd.per_batch - at.left
    if nd.near and nd.batch_rank:
        source += at.base + nd.batch_strides[nd.batch_rank - 1] + nd.lowest
        prefetch_lines(source + <int64_t> (share * done), <int64_t> (share * take))


cdef inline Py_ssize_t column_of(int64_t part, int64_t parts, Py_ssize_t width) noexcept nogil:
    """Return where a part's columns begin: whole cache lines, so that no two parts share one."""
    return width if part == parts else width * part // parts // LINE * LINE
