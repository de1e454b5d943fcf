# cython: language_level=3, wraparound=False, cdivision=True
# Gathers: a block of index tuples is converted to offsets, then the slices there are copied.
# Begin with `gather_range`; `gather_pipelined` is for short slices of data that exceed the cache.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove

from ndtool.loops.blocks cimport (
    BLOCK, DROPPED, LINE, SHORT, Cursor, Nd, Walk, block_size, column_of, next_batch, next_offsets,
    offsets_by_mode, offsets_from, prefetch_next_batch, resolve, seek,
)
from ndtool.loops.indices cimport ENTRIES, REFUSE, SPECIAL, widened
from ndtool.loops.memory cimport (
    AHEAD, prefetch, prefetch_lines, prefetch_slice, stream, stream_end,
)
from ndtool.loops.moves cimport copy_bytes, gather_block, has_vbmi, stream_slices
from ndtool.loops.views cimport View, copy_view

cdef extern from *:
    """
    static inline uint64_t ndtool_by_components(void const *, Py_ssize_t, int) ndtool_inline;
    static inline uint64_t ndtool_copy_and_check(void const *, Py_ssize_t, int, int) ndtool_inline;
    """

cdef enum:
    MODE_STEPS = 16      # steps that apply the mode first, after one with an index out of bounds


cdef struct Gather:
    Walk walk
    const uint8_t* source     # the first byte to gather of the slice at offset 0
    uint8_t* to               # `width` bytes per tuple, contiguous
    int64_t count, tasks
    Py_ssize_t width
    bint by_columns, streamed
    bint local                # tuples are spatially local: the hardware prefetches short slices


cdef inline uint64_t gather_task(const Gather* g, int64_t task) noexcept nogil:
    """Gather a share of the columns of all slices, or of the tuples."""
    if g.by_columns:
        return gather_range(
            g, 0, g.count, column_of(task, g.tasks, g.width),
            column_of(task + 1, g.tasks, g.width),
        )
    return gather_range(
        g, g.count * task // g.tasks, g.count * (task + 1) // g.tasks, 0, g.width
    )


cdef inline uint64_t gather_range(
    const Gather* g, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end
) noexcept nogil:
    """Copy bytes [column, end) of the slices, block by block, prefetching the next block's."""
    cdef int64_t offsets[2 * BLOCK]
    cdef uint8_t stage[SHORT * LINE + LINE]
    cdef const Nd* nd = g.walk.nd
    cdef const uint8_t* source = g.source
    cdef uint8_t* to = g.to + t * g.width
    cdef Cursor at
    cdef Py_ssize_t pitch = g.width, width = end - column
    cdef bint small = width == pitch <= LINE, streamed = g.streamed
    cdef bint staged = streamed and width == pitch and (small or needs_staging(width))
    cdef bint predictable = nd.in_cache or (g.local and small)    # no prefetches
    cdef Py_ssize_t pending = 0    # bytes in the stage
    cdef int64_t n, step = min(block_size(nd), SHORT)
    cdef int64_t upcoming = 0    # tuples of the next block, whose offsets follow this block's
    cdef double share = nd.span / <double> nd.per_batch
    cdef bint special = g.walk.kind & SPECIAL != 0
    if small or staged:
        step = min(step, SHORT * LINE // width)
    if small and not predictable and nd.repeats == 1 and nd.per_batch >= SHORT and not special:
        return gather_pipelined(g, t, stop)
    seek(&at, &g.walk, t)
    while t < stop:
        n = min(step, stop - t)
        if not upcoming:
            prefetch_next_batch(&at, nd, source, n, share)
            if offsets_from(&at, &g.walk, t, n, offsets):
                return 1
        upcoming = 0 if predictable else min(step, stop - t - n)
        if upcoming and offsets_from(&at, &g.walk, t + n, upcoming, offsets + n):
            return 1
        if not small and not staged:
            gather_rows(
                to + column, source + column, offsets, n, upcoming, width, pitch, streamed
            )
            to += n * pitch
        elif staged:
            gather_block(stage + pending, source, offsets, n, width, n if upcoming == n else 0)
            to += stream_full_lines(to, stage, pending + n * width, &pending)
        else:
            gather_block(to, source, offsets, n, width, n if upcoming == n else 0)
            to += n * width
        memcpy(offsets, offsets + n, upcoming * 8)
        t += n
    if streamed:
        stream(to, stage, pending)
        stream_end()
    return 0


cdef inline uint64_t gather_pipelined(const Gather* g, int64_t t, int64_t stop) noexcept nogil:
    """Copy slices of at most a line from beyond the cache, prefetching each once it is checked."""
    cdef int64_t buffer[2 * SHORT]
    cdef int64_t entries[ENTRIES]
    cdef uint8_t stage[SHORT * LINE + LINE]
    cdef const Walk* walk = &g.walk
    cdef const Nd* nd = walk.nd
    cdef uint8_t* to = g.to + t * g.width
    cdef Cursor at
    cdef Pipeline pipe
    cdef bint by_mode = walk.mode != REFUSE and 1 <= nd.k <= 2
    cdef int mode_steps = 0     # remaining steps that apply the mode first
    cdef uint64_t bad
    cdef Py_ssize_t pending = 0    # bytes in the stage
    pipe.nd = nd
    pipe.source = g.source
    pipe.offsets = buffer
    pipe.upcoming = buffer + SHORT
    pipe.tuple_bytes = walk.tuple_bytes
    pipe.n = 0
    seek(&at, walk, t)
    while pipe.n or t < stop:
        if at.remaining == 0:
            next_batch(&at, nd)
        pipe.more = min(min(SHORT, block_size(nd)), min(at.remaining, stop - t))
        pipe.base = at.base
        pipe.stored = walk.index + t * walk.tuple_bytes
        pipe.index = widened(pipe.stored, walk.kind, pipe.more * nd.k, entries)
        pipe.resolved = mode_steps > 0
        bad = resolve_next(&pipe, walk) if pipe.resolved else 0
        pipe.to = to
        if g.streamed:
            pipe.to = stage + pending
        bad |= pipeline_step(&pipe, g.width)
        if pipe.resolved:
            mode_steps -= 1
        elif bad and by_mode:
            bad = resolve_next(&pipe, walk)
            mode_steps = MODE_STEPS
        if bad and resolve(walk, pipe.stored, pipe.more, pipe.base, pipe.upcoming):
            return 1
        if g.streamed:
            to += stream_full_lines(to, stage, pending + pipe.n * g.width, &pending)
        else:
            to += pipe.n * g.width
        t += pipe.more
        at.remaining -= pipe.more
        pipe.n = pipe.more
        pipe.offsets, pipe.upcoming = pipe.upcoming, pipe.offsets
    if g.streamed:
        stream(to, stage, pending)
        stream_end()
    return 0


cdef struct Pipeline:
    # a step: n slices to copy from their offsets, and the next `more` tuples to convert
    const Nd* nd
    const uint8_t* source
    int64_t* offsets
    Py_ssize_t n
    uint8_t* to
    const int64_t* index
    const uint8_t* stored    # the same tuples, as stored
    Py_ssize_t tuple_bytes
    int64_t* upcoming        # receives their offsets
    bint resolved            # whether it has them already
    Py_ssize_t more
    int64_t base


cdef inline uint64_t resolve_next(const Pipeline* pipe, const Walk* walk) noexcept nogil:
    """Compute the upcoming offsets in the walk's mode; non-zero if that needs `resolve`."""
    return offsets_by_mode(walk, pipe.index, pipe.more, pipe.base, 0, pipe.upcoming)


cdef inline uint64_t pipeline_step(const Pipeline* pipe, Py_ssize_t width) noexcept nogil:
    """Call copy_and_check with a constant width, if it is a usual one, to compile each of them."""
    if width == 1:
        return by_components(pipe, 1, True)
    if width == 2:
        return by_components(pipe, 2, True)
    if width == 4:
        return by_components(pipe, 4, True)
    if width == 8:
        return by_components(pipe, 8, True)
    if width == 16:
        return by_components(pipe, 16, True)
    return by_components(pipe, width, False)


cdef inline uint64_t by_components "ndtool_by_components"(
    const void* pipe, Py_ssize_t width, bint fixed
) noexcept nogil:
    """Call copy_and_check with a constant number of components."""
    cdef int k = (<const Pipeline*> pipe).nd.k
    if (<const Pipeline*> pipe).resolved:
        return copy_and_check(pipe, width, fixed, 0)
    if k == 1:
        return copy_and_check(pipe, width, fixed, 1)
    if k == 2:
        return copy_and_check(pipe, width, fixed, 2)
    return copy_and_check(pipe, width, fixed, k)


cdef inline uint64_t copy_and_check "ndtool_copy_and_check"(
    const void* of, Py_ssize_t width, bint fixed, int k
) noexcept nogil:
    """For each i: check tuple i of the next step, prefetch its slice, and copy slice i of this one.

    k: components of a tuple, 0 if offsets are computed already. fixed: whether `width` is a
    constant. Non-zero if an index is out of bounds. In one loop, memory is always being read; with
    a loop for checks and another for copies, it would idle during the checks.
    """
    cdef const Pipeline* pipe = <const Pipeline*> of
    cdef const Nd* nd = pipe.nd
    cdef const uint8_t* source = pipe.source
    cdef const int64_t* offsets = pipe.offsets
    cdef const int64_t* index = pipe.index
    cdef const uint8_t* stored = pipe.stored + AHEAD
    cdef int64_t* upcoming = pipe.upcoming
    cdef uint8_t* to = pipe.to
    cdef Py_ssize_t i, n = pipe.n, more = pipe.more, eight = 8 * pipe.tuple_bytes
    cdef int64_t v
    cdef uint64_t bad = 0, offset, base = pipe.base
    cdef int j
    for i in range(max(n, more)):
        if i < more:
            if i % 8 == 0:
                prefetch_lines(stored + i // 8 * eight, eight)
            offset = base if k else <uint64_t> upcoming[i]
            for j in range(k):
                v = index[k * i + j]
                v += nd.wraps[j] & (v >> 63)
                bad |= <uint64_t> v >= <uint64_t> nd.sizes[j]
                offset += <uint64_t> v * <uint64_t> nd.strides[j]
            if k:
                upcoming[i] = <int64_t> offset
            prefetch(source + <int64_t> offset)    # never faults, wherever it points
            if not fixed:
                prefetch(source + <int64_t> offset + width - 1)
        if i < n and fixed:
            memcpy(to + width * i, source + offsets[i], width)
        elif i < n:
            copy_bytes(to + width * i, source + offsets[i], width)
    return bad


cdef inline Py_ssize_t stream_full_lines(
    uint8_t* to, uint8_t* stage, Py_ssize_t n, Py_ssize_t* pending
) noexcept nogil:
    """Stream n staged bytes up to the last full line; move the others (`pending`) to the front."""
    pending[0] = min(n, <Py_ssize_t> (<size_t> (to + n) % LINE))
    n -= pending[0]
    stream(to, stage, n)
    memmove(stage, stage + n, pending[0])
    return n


cdef inline bint needs_staging(Py_ssize_t width) noexcept nogil:
    """Return whether slices longer than a line are staged: collected in cache, then streamed.

    A line that gets normal and non-temporal stores would be written to memory twice.
    """
    return width % LINE and width < 3 * LINE or not has_vbmi() and width % 16 and width < 8 * LINE


cdef inline void gather_rows(
    uint8_t* to, const uint8_t* source, const int64_t* offsets, Py_ssize_t n, Py_ssize_t more,
    Py_ssize_t width, Py_ssize_t pitch, bint streamed,
) noexcept nogil:
    """Copy n slices longer than a cache line, prefetching the next ones, `more` after these."""
    cdef Py_ssize_t i, ahead = max(1, AHEAD // width)
    cdef Py_ssize_t prefetched = width if width <= AHEAD // 2 else AHEAD // 8
    if streamed and width == pitch and has_vbmi():
        stream_slices(to, source, offsets, n, n + more, width, ahead, prefetched)
        return
    streamed = streamed and (width | pitch | <Py_ssize_t> <size_t> to) % 16 == 0
    for i in range(n):
        if i + ahead < n + more:
            prefetch_slice(source + offsets[i + ahead], width)
        if streamed:
            stream(to + i * pitch, source + offsets[i], width)
        else:
            memcpy(to + i * pitch, source + offsets[i], width)


cdef struct GatherStrided:
    # a gather of slices that are not contiguous
    Walk walk
    const View* view
    const uint8_t* source
    uint8_t* to
    int64_t count, tasks
    int64_t element, elements     # of each slice: the first to gather, and their number
    const uint8_t* filling        # replaces slices of tuples out of bounds


cdef inline uint64_t gather_strided_task(const GatherStrided* g, int64_t task) noexcept nogil:
    """Gather a share of the tuples, element by element."""
    cdef const View* view = g.view
    cdef int64_t offsets[BLOCK]
    cdef Cursor at
    cdef int64_t t = g.count * task // g.tasks, stop = g.count * (task + 1) // g.tasks, i, take
    cdef Py_ssize_t pitch = g.elements * view.itemsize
    seek(&at, &g.walk, t)
    while t < stop:
        take = min(block_size(g.walk.nd), stop - t)
        if next_offsets(&at, &g.walk, t, take, offsets):
            return 1
        for i in range(take):
            if offsets[i] == DROPPED:
                memcpy(g.to + (t + i) * pitch, g.filling, pitch)
                continue
            copy_view(
                g.to + (t + i) * pitch, g.source + offsets[i], view, g.element, g.elements
            )
        t += take
    return 0
