# cython: language_level=3, wraparound=False, cdivision=True
# Views: copies of arrays of any strides to row-major order, and copies of bytes by several threads.
# An array with a large last stride is copied in strips, to read and write complete cache lines.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport LINE, MAX_RANK, task_column
from ndtool.loops.memory cimport write_window
from ndtool.loops.moves cimport copy_bytes

cdef extern from *:
    """
    static inline void ndtool_copy_fixed(
        uint8_t *, uint8_t const *, int64_t, int64_t, Py_ssize_t
    ) ndtool_inline;
    """

cdef enum:
    STRIP_ROWS = 4096    # rows of a strip: elements along the axis of the smallest stride


cdef struct View:
    # an array with any strides, in bytes
    int rank
    int64_t sizes[MAX_RANK]
    int64_t strides[MAX_RANK]
    Py_ssize_t itemsize


cdef inline void copy_view(
    uint8_t* target, const uint8_t* source, const View* view, int64_t first, int64_t count
) noexcept nogil:
    """Copy elements [first, first + count), in row-major order, to contiguous memory."""
    cdef int64_t coordinates[MAX_RANK]
    cdef int64_t remaining = first, last_size, stride, n
    cdef int d
    for d in reversed(range(view.rank)):
        coordinates[d] = remaining % view.sizes[d]
        source += coordinates[d] * view.strides[d]
        remaining //= view.sizes[d]
    last_size = view.sizes[view.rank - 1]
    stride = view.strides[view.rank - 1]
    while count > 0:
        n = min(count, last_size - coordinates[view.rank - 1])
        copy_strided(target, source, stride, n, view.itemsize)
        target += n * view.itemsize
        count -= n
        coordinates[view.rank - 1] += n
        source += n * stride
        for d in reversed(range(1, view.rank)):
            if coordinates[d] < view.sizes[d]:
                break
            source += view.strides[d - 1] - view.sizes[d] * view.strides[d]
            coordinates[d] = 0
            coordinates[d - 1] += 1


cdef inline void copy_strided(
    uint8_t* target, const uint8_t* source, int64_t stride, int64_t n, Py_ssize_t itemsize
) noexcept nogil:
    """Copy n elements, `stride` bytes apart, to contiguous memory."""
    cdef int64_t i
    if stride == itemsize:
        memcpy(target, source, n * itemsize)
    elif itemsize == 1:
        copy_fixed(target, source, stride, n, 1)
    elif itemsize == 2:
        copy_fixed(target, source, stride, n, 2)
    elif itemsize == 4:
        copy_fixed(target, source, stride, n, 4)
    elif itemsize == 8:
        copy_fixed(target, source, stride, n, 8)
    elif itemsize == 16:
        copy_fixed(target, source, stride, n, 16)
    else:
        for i in range(n):
            copy_bytes(target + itemsize * i, source + i * stride, itemsize)


cdef inline void copy_fixed "ndtool_copy_fixed"(
    uint8_t* target, const uint8_t* source, int64_t stride, int64_t n, Py_ssize_t itemsize
) noexcept nogil:
    """copy_strided, with a constant itemsize."""
    cdef int64_t i
    for i in range(n):
        memcpy(target + itemsize * i, source + i * stride, itemsize)


cdef inline int64_t count_strips(const View* view, int smallest_stride_axis) noexcept nogil:
    """Return the number of strips; smallest_stride_axis is not the last axis.

    A strip is up to STRIP_ROWS elements along it, and a cache line of elements of the last axis.
    """
    cdef int64_t strip_columns = max(1, LINE // view.itemsize)
    cdef int64_t count = 1
    cdef int d
    for d in range(view.rank):
        if d == view.rank - 1:
            count *= (view.sizes[d] + strip_columns - 1) // strip_columns
        elif d == smallest_stride_axis:
            count *= (view.sizes[d] + STRIP_ROWS - 1) // STRIP_ROWS
        else:
            count *= view.sizes[d]
    return count


cdef struct Strips:
    # strips of a view from `first` on, copied to row-major order
    const View* view
    int smallest_stride_axis
    const uint8_t* source
    uint8_t* target
    int64_t first


cdef inline uint64_t copy_strip(const void* args, int64_t task, int thread) noexcept nogil:
    """Copy one strip; it reads and writes full cache lines."""
    cdef const Strips* c = <const Strips*> args
    cdef const View* view = c.view
    cdef const uint8_t* source = c.source
    cdef uint8_t* target = c.target
    cdef int last = view.rank - 1, smallest_stride_axis = c.smallest_stride_axis, d
    cdef int64_t strip = c.first + task
    cdef int64_t columns = view.sizes[last], rows = view.sizes[smallest_stride_axis]
    cdef int64_t strip_columns = max(1, LINE // view.itemsize)
    cdef int64_t tiles = (columns + strip_columns - 1) // strip_columns
    cdef int64_t bands = (rows + STRIP_ROWS - 1) // STRIP_ROWS
    cdef int64_t column = strip % tiles * strip_columns, row = strip // tiles % bands * STRIP_ROWS
    cdef int64_t i, outer = strip // tiles // bands, step = view.itemsize, pitch = 0
    for d in reversed(range(view.rank)):
        if d == smallest_stride_axis:
            pitch = step
        elif d != last:
            target += outer % view.sizes[d] * step
            source += outer % view.sizes[d] * view.strides[d]
            outer //= view.sizes[d]
        step *= view.sizes[d]
    target += row * pitch + column * view.itemsize
    source += row * view.strides[smallest_stride_axis] + column * view.strides[last]
    for i in range(min(STRIP_ROWS, rows - row)):
        copy_strided(
            target + i * pitch, source + i * view.strides[smallest_stride_axis], view.strides[last],
            min(strip_columns, columns - column), view.itemsize,
        )
    return 0


cdef struct Copy:
    # contiguous bytes to copy
    const uint8_t* source
    uint8_t* target
    Py_ssize_t nbytes
    int64_t tasks
    bint non_temporal


cdef inline uint64_t copy_task(const void* args, int64_t task, int thread) noexcept nogil:
    cdef const Copy* c = <const Copy*> args
    cdef Py_ssize_t begin = task_column(task, c.tasks, c.nbytes)
    write_window(
        c.target + begin, c.source + begin, task_column(task + 1, c.tasks, c.nbytes) - begin,
        c.non_temporal
    )
    return 0
