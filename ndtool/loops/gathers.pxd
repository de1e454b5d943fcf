# cython: language_level=3, wraparound=False, cdivision=True
# Gathers: a block of index tuples is converted to offsets, then the slices at these are copied.
# Begin with `gather_range`. `gather_by_row_task` is for elements in cache, by their stored indices.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove

from ndtool.loops.blocks cimport (
    BLOCK, CACHE_BYTES, FEW, LINE, SHORT_BLOCK, Cursor, IndexSpace, Walk,
    block_size, convert_next_offsets, has_row_indices, has_shared_tuples, next_batch, next_offsets,
    seek, shared_offsets, stored_index, task_column,
)
from ndtool.loops.indices cimport (
    ITEMSIZE_MASK, as_row_indices, load_row_index, read_once, row_limit,
)
from ndtool.loops.memory cimport (
    PREFETCH_DISTANCE, prefetch_lines, prefetch_slice, stream, stream_end,
)
from ndtool.loops.moves cimport has_vbmi, move_block, stream_slices

cdef extern from *:
    """
    static inline Py_ssize_t ndtool_copy_by_itemsize(void const *, Py_ssize_t) ndtool_inline;
    static inline Py_ssize_t ndtool_copy_by_layout(
        void const *, Py_ssize_t, int
    ) ndtool_inline;
    static inline Py_ssize_t ndtool_copy_by_row(void const *, Py_ssize_t, int, int) ndtool_inline;
    """

cdef enum:
    SHARED_CACHE_BYTES = 8388608    # bytes that fit in the last level of most caches
    SHORT_BATCH = 16   # tuples of a batch in cache, from which elements are gathered by row
    MANY_LINES = 2048  # bytes of a slice that is streamed although its ends do not fill lines

cdef enum:           # where elements of a row index are
    CONTIGUOUS = 0   # one after the other
    STRIDED = 1
    IN_TILE = 2      # also in the columns of a tile


cdef struct Gather:
    Walk walk
    const uint8_t* source    # the first byte to gather of the slice at offset 0
    uint8_t* target          # `width` bytes per tuple, contiguous
    int64_t count, tasks
    Py_ssize_t width
    bint by_columns          # tasks have some bytes of all slices
    bint non_temporal
    bint is_local            # tuples are spatially local: the hardware prefetches short slices


cdef inline uint64_t gather_task(const void* args, int64_t task, int thread) noexcept nogil:
    """Gather a task's columns of all slices, or the slices of its tuples."""
    cdef const Gather* g = <const Gather*> args
    if g.width <= LINE and has_shared_tuples(&g.walk, g.count):
        return gather_shared(g, task)
    if g.by_columns:
        return gather_range(
            g, 0, g.count, task_column(task, g.tasks, g.width),
            task_column(task + 1, g.tasks, g.width),
        )
    return gather_range(
        g, g.count * task // g.tasks, g.count * (task + 1) // g.tasks, 0, g.width
    )


cdef inline uint64_t gather_shared(const Gather* g, int64_t task) noexcept nogil:
    """Convert the tuples that all batches share once, and gather the batches of a task."""
    cdef int64_t offsets[BLOCK]
    cdef int64_t n = g.walk.space.per_batch, batches = g.count // n, count
    cdef int64_t first = batches * task // g.tasks, stop = batches * (task + 1) // g.tasks
    cdef int64_t step = shared_offsets(&g.walk, stop - first, offsets)
    if step == 0:
        return first < stop
    while first < stop:
        count = min(step, stop - first)
        move_block(
            g.target + first * n * g.width, NULL,
            g.source + (g.walk.first // n + first) * g.walk.space.batch_strides[0], offsets,
            count * n, g.width, g.width, 0,
        )
        first += count
    return 0


cdef inline uint64_t gather_range(
    const Gather* g, int64_t t, int64_t stop, Py_ssize_t column, Py_ssize_t end
) noexcept nogil:
    """Copy bytes [column, end) of the slices, block by block, prefetching the next block's."""
    cdef int64_t offsets[2 * BLOCK]
    cdef uint8_t stage[SHORT_BLOCK * LINE + LINE]
    cdef const IndexSpace* space = g.walk.space
    cdef const uint8_t* source = g.source
    cdef uint8_t* target = g.target + t * g.width
    cdef Cursor cursor
    cdef Py_ssize_t pitch = g.width, width = end - column
    cdef bint is_short = width == pitch <= LINE, non_temporal = g.non_temporal
    cdef bint is_staged = non_temporal and width == pitch and (is_short or needs_staging(width))
    # no prefetches: also of a few lines, which are often in cache, and whose loads overlap
    cdef bint is_predictable = space.fits_in_cache or (
        g.is_local if is_short else g.count * g.width <= CACHE_BYTES // 2
    )
    cdef Py_ssize_t pending = 0    # bytes in the stage
    cdef int64_t n, step = block_size(space)
    cdef int64_t n_next = 0    # tuples of the next block, whose offsets follow this block's
    if not is_predictable:
        step = min(step, SHORT_BLOCK)
    if is_staged:
        step = min(step, SHORT_BLOCK * LINE // width)
    seek(&cursor, &g.walk, t)
    while t < stop:
        n = min(step, stop - t)
        if not n_next:
            if convert_next_offsets(&cursor, &g.walk, t, n, offsets):
                return 1
        n_next = 0 if is_predictable else min(step, stop - t - n)
        if n_next and convert_next_offsets(&cursor, &g.walk, t + n, n_next, offsets + n):
            return 1
        if not is_short and not is_staged:
            gather_rows(
                target + column, source + column, offsets, n, 0 if is_predictable else n + n_next,
                width, pitch, non_temporal
            )
            target += n * pitch
        elif is_staged:
            move_block(
                stage + pending, NULL, source, offsets, n, width, width, n if n_next == n else 0
            )
            target += stream_full_lines(target, stage, pending + n * width, &pending)
        else:
            move_block(target, NULL, source, offsets, n, width, width, n if n_next == n else 0)
            target += n * width
        memcpy(offsets, offsets + n, n_next * 8)
        t += n
    if non_temporal:
        stream(target, stage, pending)
        stream_end()
    return 0


cdef inline Py_ssize_t stream_full_lines(
    uint8_t* target, uint8_t* stage, Py_ssize_t n, Py_ssize_t* pending
) noexcept nogil:
    """Store the full lines of n staged bytes; move the other bytes (`pending`) to the front."""
    pending[0] = min(n, <Py_ssize_t> (<size_t> (target + n) % LINE))
    n -= pending[0]
    stream(target, stage, n)
    memmove(stage, stage + n, pending[0])
    return n


cdef inline bint needs_staging(Py_ssize_t width) noexcept nogil:
    """Return whether slices longer than a line are staged: copied to a buffer in cache first.

    A line that gets normal and non-temporal stores would be written to memory twice.
    """
    return width % LINE and width < 3 * LINE or not has_vbmi() and width % 16 and width < 8 * LINE


cdef inline void gather_rows(
    uint8_t* target, const uint8_t* source, const int64_t* offsets, Py_ssize_t n, Py_ssize_t stop,
    Py_ssize_t width, Py_ssize_t pitch, bint non_temporal,
) noexcept nogil:
    """Copy n slices longer than a cache line, prefetching later ones, up to that at `stop`."""
    cdef Py_ssize_t i, ahead = max(1, PREFETCH_DISTANCE // width)
    cdef Py_ssize_t distance = PREFETCH_DISTANCE
    cdef Py_ssize_t prefetched_bytes = width if width <= distance // 2 else distance // 8
    if non_temporal and width == pitch and has_vbmi():
        stream_slices(target, source, offsets, n, max(n, stop), width, ahead, prefetched_bytes)
        return
    non_temporal = non_temporal and (
        width >= MANY_LINES or (width | pitch | <Py_ssize_t> <size_t> target) % 16 == 0
    )
    for i in range(n):
        if i + ahead < stop:
            prefetch_slice(source + offsets[i + ahead], width)
        if non_temporal:
            stream(target + i * pitch, source + offsets[i], width)
        else:
            memcpy(target + i * pitch, source + offsets[i], width)


cdef struct RowBlock:
    # n elements to gather by row index: that of the i-th is at index[i] * stride + increments[i]
    const uint8_t* source
    const uint8_t* index
    int index_itemsize           # as load_row_index reads them
    uint64_t limit               # indices are less
    uint8_t* target
    Py_ssize_t n
    int64_t stride
    const int64_t* increments    # NULL if all are 0


cdef inline void bind_row_indices(
    RowBlock* rows, const uint8_t* index, int kind, Py_ssize_t n, int64_t size, int64_t* values
) noexcept nogil:
    """Bind n <= ENTRIES indices of rows 0 to size - 1, as int64 in `values` where needed."""
    rows.index = as_row_indices(index, &kind, n, 1, values)
    rows.n, rows.index_itemsize, rows.limit = n, kind & ITEMSIZE_MASK, row_limit(kind, size)


cdef inline bint is_gather_by_row(const Gather* g) noexcept nogil:
    """Return whether elements are gathered by their stored indices, without offsets.

    Loads from a shared cache, or of few lines that are often in cache, overlap without prefetches.
    """
    cdef const IndexSpace* space = g.walk.space
    cdef int64_t batches = g.count // space.per_batch if space.batch_rank else 1
    cdef int64_t stride = max(space.strides[0], -space.strides[0])
    cdef int64_t reached = <int64_t> row_limit(g.walk.kind, space.sizes[0]) * stride
    cdef bint is_small = (
        batches * min(space.span, reached) <= SHARED_CACHE_BYTES or g.count * LINE <= CACHE_BYTES
    )
    return (
        (space.fits_in_cache or g.is_local or is_small) and has_row_indices(&g.walk, g.width)
        and not has_shared_tuples(&g.walk, g.count)
        and (
            space.per_batch >= (SHORT_BATCH if is_small else SHORT_BLOCK)
            or has_short_batches(space)
        )
    )


cdef inline bint has_short_batches(const IndexSpace* space) noexcept nogil:
    """Return whether a block has the elements of several batches along the last batch axis."""
    return 1 < space.per_batch < SHORT_BATCH and space.batch_rank > 0 and space.repeats == 1


cdef inline uint64_t gather_by_row_task(const void* args, int64_t task, int thread) noexcept nogil:
    """Gather elements by their stored indices.

    After several indices near each other that are negative or out of bounds, the next few are
    gathered by offsets. Where most short batches have one, so are all that follow.
    """
    cdef const Gather* g = <const Gather*> args
    cdef const IndexSpace* space = g.walk.space
    cdef uint8_t stage[SHORT_BLOCK * LINE + LINE]
    cdef int64_t t = g.count * task // g.tasks, stop = g.count * (task + 1) // g.tasks
    cdef int64_t values[BLOCK]
    cdef int64_t offsets[BLOCK]
    cdef Py_ssize_t n, i, n_few, few = 1, pending = 0    # bytes in the stage
    cdef Cursor cursor
    cdef RowBlock rows
    cdef const uint8_t* index
    cdef uint8_t* block
    cdef uint8_t* target = g.target + t * g.width
    cdef const uint8_t* next_rows
    cdef double batch_fraction = space.span / <double> space.per_batch
    # a batch further ahead, as the last bytes to be prefetched may be needed first
    cdef int64_t batches = 1 + PREFETCH_DISTANCE // max(1, space.span)
    cdef int64_t step = SHORT_BLOCK if space.batch_rank else BLOCK
    cdef bint is_short = has_short_batches(space)
    cdef int64_t increments[BLOCK]    # from a batch to those of the elements that follow
    cdef int64_t started = 0          # elements of the batch before the block
    cdef int last_axis = space.batch_rank - 1
    cdef int64_t usual = 4 * FEW if is_short else min(4 * FEW, space.per_batch)
    rows.stride, rows.increments = space.strides[0], NULL
    if is_short:
        for i in range(min(BLOCK, stop - t + space.per_batch)):
            increments[i] = i // space.per_batch * space.batch_strides[last_axis]
    seek(&cursor, &g.walk, t)
    while t < stop:
        if cursor.remaining == 0:
            next_batch(&cursor, space)
        n = min(min(step, stop - t), cursor.remaining)
        if is_short:
            started = space.per_batch - cursor.remaining
            n = space.batch_sizes[last_axis] - cursor.coordinates[last_axis]    # batches
            n = min(min(n * space.per_batch, BLOCK) - started, stop - t)
        index = stored_index(&cursor, &g.walk, t)
        # more streams than hardware prefetches
        if space.batch_rank and space.fits_in_cache and batch_fraction <= LINE:
            prefetch_lines(index + PREFETCH_DISTANCE, n * g.walk.tuple_bytes)
            next_rows = g.source + cursor.base + space.lowest
            next_rows += batches * space.batch_strides[space.batch_rank - 1]
            next_rows += <int64_t> (batch_fraction * (space.per_batch - cursor.remaining))
            prefetch_lines(next_rows, <int64_t> (batch_fraction * n))
        bind_row_indices(&rows, index, g.walk.kind, n, space.sizes[0], values)
        index = rows.index
        rows.source = g.source + cursor.base
        block = target
        if g.non_temporal:
            block = stage + pending
        i = 0
        while i < n:
            rows.index, rows.n = index + i * rows.index_itemsize, n - i
            rows.target = block + i * g.width
            if is_short:
                rows.increments = increments + started + i
            rows.n = copy_by_width(&rows, g.width)
            cursor.remaining -= rows.n
            i += rows.n
            if is_short:
                seek(&cursor, &g.walk, t + i)
            if rows.n >= usual:
                few = 1
            elif i < n:
                few = min(4 * few, BLOCK)
            if i < n:
                n_few = min(few, n - i)
                if next_offsets(&cursor, &g.walk, t + i, n_few, offsets):
                    return 1
                move_block(
                    block + i * g.width, NULL, g.source, offsets, n_few, g.width, g.width, 0
                )
                i += n_few
        if g.non_temporal:
            target += stream_full_lines(target, stage, pending + n * g.width, &pending)
        else:
            target += n * g.width
        t += n
        if few == BLOCK and space.per_batch < BLOCK:    # longer blocks, of several batches
            break
    if g.non_temporal:
        stream(target, stage, pending)
        stream_end()
    return gather_range(g, t, stop, 0, g.width) if t < stop else 0


cdef inline Py_ssize_t copy_by_width(const RowBlock* rows, Py_ssize_t width) noexcept nogil:
    """Call copy_by_row with a constant width."""
    if width == 1:
        return copy_by_itemsize(rows, 1)
    if width == 2:
        return copy_by_itemsize(rows, 2)
    if width == 4:
        return copy_by_itemsize(rows, 4)
    if width == 8:
        return copy_by_itemsize(rows, 8)
    return copy_by_itemsize(rows, 16)


cdef inline Py_ssize_t copy_by_itemsize "ndtool_copy_by_itemsize"(
    const void* rows, Py_ssize_t width
) noexcept nogil:
    """Call copy_by_layout with a constant itemsize of indices."""
    cdef int index_itemsize = (<const RowBlock*> rows).index_itemsize
    if index_itemsize == 8:
        return copy_by_layout(rows, width, 8)
    if index_itemsize == 4:
        return copy_by_layout(rows, width, 4)
    if index_itemsize == 2:
        return copy_by_layout(rows, width, 2)
    return copy_by_layout(rows, width, 1)


cdef inline Py_ssize_t copy_by_layout "ndtool_copy_by_layout"(
    const void* rows, Py_ssize_t width, int index_itemsize
) noexcept nogil:
    """Call copy_by_row with a constant layout, and a constant stride if possible."""
    if (<const RowBlock*> rows).increments != NULL:
        return copy_by_row(rows, width, index_itemsize, IN_TILE)
    if (<const RowBlock*> rows).stride == width:
        return copy_by_row(rows, width, index_itemsize, CONTIGUOUS)
    return copy_by_row(rows, width, index_itemsize, STRIDED)


cdef inline Py_ssize_t copy_by_row "ndtool_copy_by_row"(
    const void* args, Py_ssize_t width, int index_itemsize, int layout
) noexcept nogil:
    """Copy elements up to an index that is negative or out of bounds; return their number."""
    cdef const RowBlock* rows = <const RowBlock*> args
    cdef const uint8_t* source = rows.source
    cdef const uint8_t* index = rows.index
    cdef uint8_t* target = rows.target
    cdef uint64_t row, limit = rows.limit
    cdef int64_t offset, stride = width if layout == CONTIGUOUS else rows.stride
    cdef const int64_t* increments = rows.increments
    cdef Py_ssize_t i, n = rows.n
    for i in range(n):
        row = load_row_index(index, i, index_itemsize)
        read_once(row)
        if row >= limit:
            return i
        offset = <int64_t> row * stride
        if layout == IN_TILE:
            offset += increments[i]
        memcpy(target + i * width, source + offset, width)
    return n
