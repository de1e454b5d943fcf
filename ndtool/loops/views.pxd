# cython: language_level=3, wraparound=False, cdivision=True
# Views: copies of arrays of any strides to row-major order, by several threads, and back. An array
# with a large last stride is copied in strips, to read and write complete cache lines.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport LINE, MAX_RANK, task_column
from ndtool.loops.memory cimport write_window
from ndtool.loops.moves cimport copy_bytes

cdef extern from *:
    """
    static inline void ndtool_copy_fixed(
        uint8_t *, int64_t, uint8_t const *, int64_t, int64_t, Py_ssize_t
    ) ndtool_inline;
    static inline void ndtool_copy_square(
        uint8_t *, uint8_t const *, int64_t, int64_t, int
    ) ndtool_inline;
    static inline void ndtool_exchange_blocks(uint64_t *, int, int, int) ndtool_inline;
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ || defined(_WIN32)
      #define NDTOOL_WORD 8
    #else
      #define NDTOOL_WORD 0
    #endif
    """
    const int WORD "NDTOOL_WORD"    # bytes of a word in which elements are in memory's order

cdef enum:
    STRIP_COLUMNS = 512    # columns of a strip, whose lines are reused from cache
    STRIP_ROWS = 256       # rows of it: elements along the axis of the smallest stride
    ALIASED = 2048         # bytes: strides of a multiple of it have too few lines of a cache
    LONG = 2048            # bytes of contiguous elements, from which threads divide them


cdef struct View:
    # an array with any strides, in bytes
    int rank
    int64_t sizes[MAX_RANK]
    int64_t strides[MAX_RANK]
    Py_ssize_t itemsize


cdef inline int64_t seek_element(
    const View* view, int64_t element, int64_t* coordinates
) noexcept nogil:
    """Fill in the coordinates of an element, in row-major order; return its byte offset."""
    cdef int64_t offset = 0
    cdef int d
    for d in reversed(range(view.rank)):
        coordinates[d] = element % view.sizes[d]
        offset += coordinates[d] * view.strides[d]
        element //= view.sizes[d]
    return offset


cdef inline void copy_view(
    uint8_t* packed, uint8_t* strided, const View* view, int64_t first, int64_t count, bint packs
) noexcept nogil:
    """Copy elements [first, first + count), in row-major order, to or from contiguous memory."""
    cdef int64_t coordinates[MAX_RANK]
    cdef Py_ssize_t itemsize = view.itemsize
    cdef int last = view.rank - 1, d
    cdef int64_t stride = view.strides[last], n
    strided += seek_element(view, first, coordinates)
    while count > 0:
        n = min(count, view.sizes[last] - coordinates[last])
        if packs:
            copy_run(packed, itemsize, strided, stride, n, itemsize)
        else:
            copy_run(strided, stride, packed, itemsize, n, itemsize)
        packed += n * itemsize
        count -= n
        coordinates[last] += n
        strided += n * stride
        for d in reversed(range(1, view.rank)):
            if coordinates[d] < view.sizes[d]:
                break
            strided += view.strides[d - 1] - view.sizes[d] * view.strides[d]
            coordinates[d] = 0
            coordinates[d - 1] += 1


cdef inline void copy_run(
    uint8_t* target, int64_t target_step, const uint8_t* source, int64_t source_step, int64_t n,
    Py_ssize_t itemsize,
) noexcept nogil:
    """Copy n elements at equal distances to others at equal distances, in order."""
    cdef int64_t i
    if source_step == itemsize == target_step:
        memcpy(target, source, n * itemsize)
    elif itemsize == 1:
        copy_fixed(target, target_step, source, source_step, n, 1)
    elif itemsize == 2:
        copy_fixed(target, target_step, source, source_step, n, 2)
    elif itemsize == 4:
        copy_fixed(target, target_step, source, source_step, n, 4)
    elif itemsize == 8:
        copy_fixed(target, target_step, source, source_step, n, 8)
    elif itemsize == 16:
        copy_fixed(target, target_step, source, source_step, n, 16)
    else:
        for i in range(n):
            copy_bytes(target + i * target_step, source + i * source_step, itemsize)


cdef inline void copy_fixed "ndtool_copy_fixed"(
    uint8_t* target, int64_t target_step, const uint8_t* source, int64_t source_step, int64_t n,
    Py_ssize_t itemsize,
) noexcept nogil:
    """copy_run, with a constant itemsize; also with a constant step."""
    cdef int64_t i
    if target_step == itemsize:
        for i in range(n):
            memcpy(target + i * itemsize, source + i * source_step, itemsize)
    else:
        for i in range(n):
            memcpy(target + i * target_step, source + i * source_step, itemsize)


cdef inline int64_t copy_squares(
    uint8_t* target, const uint8_t* source, int64_t pitch, int64_t stride, int64_t rows,
    int64_t columns, Py_ssize_t itemsize,
) noexcept nogil:
    """Copy all but the last rows of columns, which are contiguous, to rows; return their number.

    stride, pitch: bytes from one column to the next, and from one row to the next.
    """
    cdef int64_t n = WORD // itemsize, i, j
    if itemsize > 2 or n == 0:
        return 0
    for i in range(rows // n):
        for j in range(columns // n):
            if itemsize == 1:
                copy_square(target + 8 * j, source + 8 * i, pitch, stride, 1)
            else:
                copy_square(target + 8 * j, source + 8 * i, pitch, stride, 2)
            source += n * stride
        for j in range(columns % n):
            copy_run(
                target + (columns - columns % n + j) * itemsize, pitch, source + j * stride + 8 * i,
                itemsize, n, itemsize,
            )
        source -= (columns - columns % n) * stride
        target += n * pitch
    return rows - rows % n


cdef inline void copy_square "ndtool_copy_square"(
    uint8_t* target, const uint8_t* source, int64_t pitch, int64_t stride, int itemsize
) noexcept nogil:
    """Copy as many columns as a word has elements to rows, each of a word."""
    cdef uint64_t words[8]
    cdef int n = 8 // itemsize, i
    for i in range(n):
        memcpy(&words[i], source + i * stride, 8)
    if n == 8:
        exchange_blocks(words, n, 4, itemsize)
    exchange_blocks(words, n, 2, itemsize)
    exchange_blocks(words, n, 1, itemsize)
    for i in range(n):
        memcpy(target + i * pitch, &words[i], 8)


cdef inline void exchange_blocks "ndtool_exchange_blocks"(
    uint64_t* words, int n, int step, int itemsize
) noexcept nogil:
    """Exchange the blocks of step x step elements off the diagonal of n words."""
    cdef int bits = 8 * itemsize * step, i
    cdef uint64_t mask = <uint64_t> 0xFFFFFFFFFFFFFFFF // ((<uint64_t> 1 << bits) + 1), exchanged
    for i in range(n):
        if not i & step:
            exchanged = (words[i] >> bits ^ words[i + step]) & mask
            words[i + step] ^= exchanged
            words[i] ^= exchanged << bits


cdef inline bint has_strips(const View* view) noexcept nogil:
    """Return whether to copy a view in strips: successive elements are in distinct cache lines."""
    cdef int64_t stride = view.strides[view.rank - 1] if view.rank > 1 else 0
    return max(stride, -stride) >= LINE and view.itemsize < LINE


cdef struct Strips:
    # strips of a view from `first` on, copied to row-major order
    const View* view
    int row_axis        # the axis of the smallest stride, but for the last one
    int64_t rows, columns    # of a strip
    const uint8_t* source
    uint8_t* target
    int64_t first


cdef inline int64_t count_strips(Strips* c) noexcept nogil:
    """Choose the axis of rows and the size of strips; return their number."""
    cdef const View* view = c.view
    cdef int64_t count = 1, smallest = 0, stride
    cdef int d
    for d in range(view.rank - 1):
        stride = max(view.strides[d], -view.strides[d])
        if d == 0 or stride < smallest:
            smallest, c.row_axis = stride, d
    c.rows, c.columns = STRIP_ROWS, STRIP_COLUMNS
    if view.strides[view.rank - 1] % ALIASED == 0:    # as few lines as elements of a line
        c.rows, c.columns = 16 * STRIP_ROWS, max(1, LINE // view.itemsize)
    for d in range(view.rank):
        if d == view.rank - 1:
            count *= (view.sizes[d] + c.columns - 1) // c.columns
        elif d == c.row_axis:
            count *= (view.sizes[d] + c.rows - 1) // c.rows
        else:
            count *= view.sizes[d]
    return count


cdef inline uint64_t copy_strip(const void* args, int64_t task, int thread) noexcept nogil:
    """Copy one strip, as many rows at a time as are in the same line of each column."""
    cdef const Strips* c = <const Strips*> args
    cdef const View* view = c.view
    cdef const uint8_t* source = c.source
    cdef uint8_t* target = c.target
    cdef int last = view.rank - 1, row_axis = c.row_axis, d
    cdef int64_t strip = c.first + task, itemsize = view.itemsize, side = max(1, LINE // itemsize)
    cdef int64_t columns = view.sizes[last], rows = view.sizes[row_axis]
    cdef int64_t stride = view.strides[last], row_stride = view.strides[row_axis]
    cdef int64_t tiles = (columns + c.columns - 1) // c.columns
    cdef int64_t bands = (rows + c.rows - 1) // c.rows
    cdef int64_t column = strip % tiles * c.columns, row = strip // tiles % bands * c.rows
    cdef int64_t outer = strip // tiles // bands, step = itemsize, pitch = 0, n, copied
    for d in reversed(range(view.rank)):
        if d == row_axis:
            pitch = step
        elif d != last:
            target += outer % view.sizes[d] * step
            source += outer % view.sizes[d] * view.strides[d]
            outer //= view.sizes[d]
        step *= view.sizes[d]
    target += row * pitch + column * itemsize
    source += row * row_stride + column * stride
    rows, columns = min(c.rows, rows - row), min(c.columns, columns - column)
    while rows > 0:
        n, copied = min(side, rows), 0
        if row_stride == itemsize:
            copied = copy_squares(target, source, pitch, stride, n, columns, itemsize)
        for row in range(copied, n):
            copy_run(
                target + row * pitch, itemsize, source + row * row_stride, stride, columns, itemsize
            )
        target += side * pitch
        source += side * row_stride
        rows -= side
    return 0


cdef struct Copy:
    # elements [first, first + count) of a view, copied to row-major order
    const View* view
    const uint8_t* source
    uint8_t* target
    int64_t first, count, tasks
    bint non_temporal


cdef inline uint64_t copy_task(const void* args, int64_t task, int thread) noexcept nogil:
    """Copy a task's elements or, if these are long, its bytes."""
    cdef const Copy* c = <const Copy*> args
    cdef const View* view = c.view
    cdef int64_t itemsize = view.itemsize, n, begin, end
    cdef int64_t coordinates[MAX_RANK]
    if itemsize < LONG and view.rank:
        begin, end = c.count * task // c.tasks, c.count * (task + 1) // c.tasks
        copy_view(
            c.target + begin * itemsize, <uint8_t*> c.source, view, c.first + begin, end - begin,
            True,
        )
        return 0
    begin = task_column(task, c.tasks, c.count * itemsize)
    end = task_column(task + 1, c.tasks, c.count * itemsize)
    while begin < end:
        n = min(end - begin, itemsize - begin % itemsize)
        write_window(
            c.target + begin,
            c.source + seek_element(view, c.first + begin // itemsize, coordinates)
            + begin % itemsize, n, c.non_temporal
        )
        begin += n
    return 0
