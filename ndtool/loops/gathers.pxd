# cython: language_level=3, wraparound=False, cdivision=True
# Gathers: walks over a range of index tuples that copy the run of bytes each one names to
# consecutive places.
#
# A struct holds what one call is about; `..._part` is one of the parts that a team shares out, and
# `..._range` the walk over some of its tuples. Tuples are numbered from the walk's first one.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove

from ndtool.loops.blocks cimport (
    BLOCK, LINE, NOWHERE, SHORT, Cursor, Nd, Walk, ask_next_batch, block_of, column_of, next_batch,
    next_offsets, offsets_from, resolve, seek,
)
from ndtool.loops.indices cimport ENTRIES, REFUSE, ruled, widened
from ndtool.loops.memory cimport (
    AHEAD, prefetch, prefetch_lines, prefetch_run, stream, stream_end, touch,
)
from ndtool.loops.moves cimport copy_run, gather_block, has_turns, stream_runs
from ndtool.loops.views cimport View, copy_view

cdef extern from *:
    """
    static inline uint64_t ndtool_by_components(void const *, Py_ssize_t, int) ndtool_inline;
    static inline uint64_t ndtool_copy_and_ask(void const *, Py_ssize_t, int, int) ndtool_inline;
    """

cdef enum:
    ASTRAY = 16          # turns that are likely to have indices out of bounds after one that has


cdef struct Gather:
    Walk walk
    const uint8_t* source     # the first wanted byte of the run at offset 0
    uint8_t* to               # `width` bytes a tuple, side by side
    int64_t count, parts
    Py_ssize_t width
    bint by_columns, streamed
    bint sorted               # the hardware foresees what short runs will be read


cdef inline uint64_t gather_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const Gather* g = <const Gather*> call
    if g.by_columns:
        return gather_range(
            g, 0, g.count, column_of(part, g.parts, g.width),
            column_of(part + 1, g.parts, g.width),
        )
    return gather_range(
        g, g.count * part // g.parts, g.count * (part + 1) // g.parts, 0, g.width
    )


cdef inline uint64_t gather_range(
    const Gather* g, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end
) noexcept nogil:
    """Copy bytes [column, end) of runs, with the offsets of two blocks at hand: one to ask for."""
    cdef int64_t offsets[2 * BLOCK]
    cdef uint8_t stage[SHORT * LINE + LINE]
    cdef const Nd* nd = g.walk.nd
    cdef const uint8_t* source = g.source
    cdef uint8_t* to = g.to + t * g.width
    cdef Cursor at
    cdef Py_ssize_t pitch = g.width, width = end - column
    cdef bint small = width == pitch <= LINE, streamed = g.streamed
    cdef bint staged = streamed and width == pitch and (small or suits_stage(width))
    cdef bint foreseen = nd.near or (g.sorted and small)
    cdef Py_ssize_t held = 0                # bytes in the stage
    cdef int64_t n, known = 0, step = min(block_of(nd), SHORT)
    cdef double share = nd.reach / <double> nd.per_batch
    if small or staged:
        step = min(step, SHORT * LINE // width)
    if small and not foreseen and not nd.repeated and nd.per_batch >= SHORT:
        return gather_far(g, t, stop)
    seek(&at, &g.walk, t)
    if nd.near and nd.batch_rank:
        touch(source + at.base + nd.lowest, nd.reach)
    while t < stop:
        n = min(step, stop - t)
        if not known:
            ask_next_batch(&at, nd, source, n, share)
            if offsets_from(&at, &g.walk, t, n, offsets):
                return 1
        known = 0 if foreseen else min(step, stop - t - n)
        if known and offsets_from(&at, &g.walk, t + n, known, offsets + n):
            return 1
        if not small and not staged:
            gather_rows(
                to + column, source + column, offsets, n, known, width, pitch, streamed
            )
            to += n * pitch
        elif staged:
            gather_block(stage + held, source, offsets, n, width, n if known == n else 0)
            to += stream_whole(to, stage, held + n * width, &held)
        else:
            gather_block(to, source, offsets, n, width, n if known == n else 0)
            to += n * width
        memcpy(offsets, offsets + n, known * 8)
        t += n
    if streamed:
        stream(to, stage, held)
        stream_end()
    return 0


cdef inline uint64_t gather_far(const Gather* g, int64_t t, int64_t stop) noexcept nogil:
    """Copy runs of at most a line that are far away, each asked for when it is checked."""
    cdef int64_t places[2 * SHORT]
    cdef int64_t entries[ENTRIES]
    cdef uint8_t stage[SHORT * LINE + LINE]
    cdef const Walk* walk = &g.walk
    cdef const Nd* nd = walk.nd
    cdef uint8_t* to = g.to + t * g.width
    cdef Cursor at
    cdef Turn turn
    cdef bint by_rule = walk.rule != REFUSE and 1 <= nd.k <= 2
    cdef int astray = 0                     # turns that begin by rule: one before had to
    cdef uint64_t bad
    cdef Py_ssize_t held = 0                # bytes in the stage
    turn.nd = nd
    turn.source = g.source
    turn.offsets = places
    turn.later = places + SHORT
    turn.entry = walk.entry
    turn.n = 0
    seek(&at, walk, t)
    while turn.n or t < stop:
        if at.left == 0:
            next_batch(&at, nd)
        turn.more = min(min(SHORT, block_of(nd)), min(at.left, stop - t))
        turn.base = at.base
        turn.stored = walk.index + t * walk.entry
        turn.index = widened(turn.stored, walk.kind, turn.more * nd.k, entries)
        turn.known = astray > 0
        bad = ruled_turn(&turn, walk) if turn.known else 0
        turn.to = to
        if g.streamed:
            turn.to = stage + held
        bad |= take_turn(&turn, g.width)
        if turn.known:
            astray -= 1
        elif bad and by_rule:
            bad = ruled_turn(&turn, walk)
            astray = ASTRAY
        if bad and resolve(walk, turn.stored, turn.more, turn.base, turn.later):
            return 1
        if g.streamed:
            to += stream_whole(to, stage, held + turn.n * g.width, &held)
        else:
            to += turn.n * g.width
        t += turn.more
        at.left -= turn.more
        turn.n = turn.more
        turn.offsets, turn.later = turn.later, turn.offsets
    if g.streamed:
        stream(to, stage, held)
        stream_end()
    return 0


cdef struct Turn:
    # n runs whose places are known, and `more` tuples of one batch that follow
    const Nd* nd
    const uint8_t* source
    int64_t* offsets
    Py_ssize_t n
    uint8_t* to
    const int64_t* index
    const uint8_t* stored                   # the same tuples, where they are in memory
    Py_ssize_t entry
    int64_t* later                          # receives their offsets
    bint known                              # whether these stand there
    Py_ssize_t more
    int64_t base


cdef inline uint64_t ruled_turn(const Turn* turn, const Walk* walk) noexcept nogil:
    """Find where the later runs are by the rule for indices out of bounds; non-zero if not."""
    return ruled(
        turn.index, turn.more, turn.nd.k, turn.nd.sizes, turn.nd.strides, turn.base, 0, walk.rule,
        walk.elsewhere, turn.later,
    )


cdef inline uint64_t take_turn(const Turn* turn, Py_ssize_t width) noexcept nogil:
    """copy_and_ask, in a loop for each of the usual widths."""
    if width == 1:
        return by_components(turn, 1, True)
    if width == 2:
        return by_components(turn, 2, True)
    if width == 4:
        return by_components(turn, 4, True)
    if width == 8:
        return by_components(turn, 8, True)
    if width == 16:
        return by_components(turn, 16, True)
    return by_components(turn, width, False)


cdef inline uint64_t by_components "ndtool_by_components"(
    const void* turn, Py_ssize_t width, bint usual
) noexcept nogil:
    cdef int k = (<const Turn*> turn).nd.k
    if (<const Turn*> turn).known:
        return copy_and_ask(turn, width, usual, 0)
    if k == 1:
        return copy_and_ask(turn, width, usual, 1)
    if k == 2:
        return copy_and_ask(turn, width, usual, 2)
    return copy_and_ask(turn, width, usual, k)


cdef inline uint64_t copy_and_ask "ndtool_copy_and_ask"(
    const void* of, Py_ssize_t width, bint usual, int k
) noexcept nogil:
    """Copy a run, check the tuple that comes as many later, ask for its run, and so on.

    k: the components of a tuple, 0 where its place is known. Non-zero if an index is out of bounds.
    Between two passes over a block, one that checks and one that copies, nothing would be asked
    for.
    """
    cdef const Turn* turn = <const Turn*> of
    cdef const Nd* nd = turn.nd
    cdef const uint8_t* source = turn.source
    cdef const int64_t* offsets = turn.offsets
    cdef const int64_t* index = turn.index
    cdef const uint8_t* stored = turn.stored + AHEAD
    cdef int64_t* later = turn.later
    cdef uint8_t* to = turn.to
    cdef Py_ssize_t i, n = turn.n, more = turn.more, eight = 8 * turn.entry
    cdef int64_t v
    cdef uint64_t bad = 0, place, base = turn.base
    cdef int j
    for i in range(max(n, more)):
        if i < more:
            if i % 8 == 0:
                prefetch_lines(stored + i // 8 * eight, eight)
            place = base if k else <uint64_t> later[i]
            for j in range(k):
                v = index[k * i + j]
                v += nd.wraps[j] & (v >> 63)
                bad |= <uint64_t> v >= <uint64_t> nd.sizes[j]
                place += <uint64_t> v * <uint64_t> nd.strides[j]
            if k:
                later[i] = <int64_t> place
            prefetch(source + <int64_t> place)
            if not usual:
                prefetch(source + <int64_t> place + width - 1)
        if i < n and usual:
            memcpy(to + width * i, source + offsets[i], width)
        elif i < n:
            copy_run(to + width * i, source + offsets[i], width)
    return bad


cdef inline Py_ssize_t stream_whole(
    uint8_t* to, uint8_t* stage, Py_ssize_t n, Py_ssize_t* held
) noexcept nogil:
    """Stream n bytes of a stage as far as lines are whole; return how many, keep the others."""
    held[0] = min(n, <Py_ssize_t> (<size_t> (to + n) % LINE))
    n -= held[0]
    stream(to, stage, n)
    memmove(stage, stage + n, held[0])
    return n


cdef inline bint suits_stage(Py_ssize_t width) noexcept nogil:
    """Whether runs longer than a line are best put together in cache before they are streamed.

    Stores that pass the cache by and others must not meet in one line: it would be sent twice.
    """
    return width % LINE and width < 3 * LINE or not has_turns() and width % 16 and width < 8 * LINE


cdef inline void gather_rows(
    uint8_t* to, const uint8_t* source, const int64_t* offsets, Py_ssize_t n, Py_ssize_t more,
    Py_ssize_t width, Py_ssize_t pitch, bint streamed,
) noexcept nogil:
    """Copy n runs longer than a cache line, asking for the next ones, `more` of the next block."""
    cdef Py_ssize_t i, ahead = max(1, AHEAD // width)
    cdef Py_ssize_t asked = width if width <= AHEAD // 2 else AHEAD // 8
    if streamed and width == pitch and has_turns():
        stream_runs(to, source, offsets, n, n + more, width, ahead, asked)
        return
    streamed = streamed and (width | pitch | <Py_ssize_t> <size_t> to) % 16 == 0
    for i in range(n):
        if i + ahead < n + more:
            prefetch_run(source + offsets[i + ahead], width)
        if streamed:
            stream(to + i * pitch, source + offsets[i], width)
        else:
            memcpy(to + i * pitch, source + offsets[i], width)


cdef inline void prefetch_line(
    const uint8_t* source, int64_t stride, int64_t elements
) noexcept nogil:
    """Ask for the first elements of a run that lie apart."""
    cdef int64_t i
    for i in range(elements):
        prefetch(source + i * stride)


cdef struct GatherViews:
    # a gather of runs whose elements lie apart
    Walk walk
    const View* run
    const uint8_t* source
    uint8_t* to
    int64_t count, parts
    int64_t element, elements     # those that are wanted of each run
    const uint8_t* filling        # of tuples that name nothing


cdef inline uint64_t gather_views_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const GatherViews* g = <const GatherViews*> call
    cdef const View* run = g.run
    cdef int64_t offsets[BLOCK]
    cdef Cursor at
    cdef int64_t t = g.count * part // g.parts, stop = g.count * (part + 1) // g.parts, i, take
    cdef Py_ssize_t pitch = g.elements * run.item
    seek(&at, &g.walk, t)
    while t < stop:
        take = min(block_of(g.walk.nd), stop - t)
        if next_offsets(&at, &g.walk, t, take, offsets):
            return 1
        for i in range(take):
            if run.rank == 1 and i + 2 < take:
                prefetch_line(g.source + offsets[i + 2], run.strides[0], min(g.elements, LINE))
            if offsets[i] == NOWHERE:
                memcpy(g.to + (t + i) * pitch, g.filling, pitch)
                continue
            copy_view(
                g.to + (t + i) * pitch, g.source + offsets[i], run, g.element, g.elements
            )
        t += take
    return 0
