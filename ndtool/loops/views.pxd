# cython: language_level=3, wraparound=False, cdivision=True
# Views: copies of arrays of any strides to row-major order, and copies of bytes by several threads.
# An array with a large last stride is copied in strips, to read and write complete cache lines.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport LINE, MOST_RANK, column_of
from ndtool.loops.memory cimport write_window
from ndtool.loops.moves cimport copy_bytes

cdef enum:
    TALL = 4096          # elements of a strip along the axis of the smallest stride


cdef struct View:
    # an array with any strides, in bytes
    int rank
    int64_t sizes[MOST_RANK]
    int64_t strides[MOST_RANK]
    Py_ssize_t itemsize


cdef inline void copy_view(
    uint8_t* to, const uint8_t* source, const View* view, int64_t first, int64_t count
) noexcept nogil:
    """Copy elements [first, first + count), in row-major order, to contiguous memory."""
    cdef int64_t coordinates[MOST_RANK]
    cdef int64_t rest = first, last, stride, take
    cdef int d
    for d in reversed(range(view.rank)):
        coordinates[d] = rest % view.sizes[d]
        source += coordinates[d] * view.strides[d]
        rest //= view.sizes[d]
    last = view.sizes[view.rank - 1]
    stride = view.strides[view.rank - 1]
    while count > 0:
        take = min(count, last - coordinates[view.rank - 1])
        copy_strided(to, source, stride, take, view.itemsize)
        to += take * view.itemsize
        count -= take
        coordinates[view.rank - 1] += take
        source += take * stride
        for d in reversed(range(1, view.rank)):
            if coordinates[d] < view.sizes[d]:
                break
            source += view.strides[d - 1] - view.sizes[d] * view.strides[d]
            coordinates[d] = 0
            coordinates[d - 1] += 1


cdef inline void copy_strided(
    uint8_t* to, const uint8_t* source, int64_t stride, int64_t n, Py_ssize_t itemsize
) noexcept nogil:
    """Copy n elements, `stride` bytes apart, to contiguous memory."""
    cdef int64_t i
    if stride == itemsize:
        memcpy(to, source, n * itemsize)
    elif itemsize == 4:
        for i in range(n):
            memcpy(to + 4 * i, source + i * stride, 4)
    elif itemsize == 8:
        for i in range(n):
            memcpy(to + 8 * i, source + i * stride, 8)
    else:
        for i in range(n):
            copy_bytes(to + itemsize * i, source + i * stride, itemsize)


cdef inline int64_t strips_of(const View* view, int closest) noexcept nogil:
    """Return the number of strips; closest: the axis of the smallest stride, not the last one.

    A strip is up to TALL elements of that axis, and a cache line's elements of the last.
    """
    cdef int64_t across = max(1, LINE // view.itemsize)
    cdef int64_t count = 1
    cdef int d
    for d in range(view.rank):
        if d == view.rank - 1:
            count *= (view.sizes[d] + across - 1) // across
        elif d == closest:
            count *= (view.sizes[d] + TALL - 1) // TALL
        else:
            count *= view.sizes[d]
    return count


cdef struct Strips:
    # strips of a view from `first` on, copied to row-major order
    const View* view
    int closest
    const uint8_t* source
    uint8_t* to
    int64_t first


cdef inline uint64_t copy_strip(const Strips* c, int64_t task) noexcept nogil:
    """Copy one strip: full lines are read and written."""
    cdef const View* view = c.view
    cdef const uint8_t* source = c.source
    cdef uint8_t* to = c.to
    cdef int last = view.rank - 1, closest = c.closest, d
    cdef int64_t number = c.first + task
    cdef int64_t wide = view.sizes[last], tall = view.sizes[closest]
    cdef int64_t across = max(1, LINE // view.itemsize)
    cdef int64_t tiles = (wide + across - 1) // across, bands = (tall + TALL - 1) // TALL
    cdef int64_t column = number % tiles * across, row = number // tiles % bands * TALL
    cdef int64_t i, outer = number // tiles // bands, step = view.itemsize, pitch = 0
    for d in reversed(range(view.rank)):
        if d == closest:
            pitch = step
        elif d != last:
            to += outer % view.sizes[d] * step
            source += outer % view.sizes[d] * view.strides[d]
            outer //= view.sizes[d]
        step *= view.sizes[d]
    to += row * pitch + column * view.itemsize
    source += row * view.strides[closest] + column * view.strides[last]
    for i in range(min(TALL, tall - row)):
        copy_strided(
            to + i * pitch, source + i * view.strides[closest], view.strides[last],
            min(across, wide - column), view.itemsize,
        )
    return 0


cdef struct Spread:
    # contiguous rows to copy to an output in which they are `pitch` bytes apart
    const uint8_t* source
    uint8_t* to
    int64_t rows
    int64_t width
    int64_t pitch
    int64_t tasks


cdef inline uint64_t spread_task(const Spread* c, int64_t task) noexcept nogil:
    cdef int64_t i
    for i in range(c.rows * task // c.tasks, c.rows * (task + 1) // c.tasks):
        memcpy(c.to + i * c.pitch, c.source + i * c.width, c.width)
    return 0


cdef struct Copy:
    # bytes to copy as they are
    const uint8_t* source
    uint8_t* to
    Py_ssize_t nbytes
    int64_t tasks
    bint streamed


cdef inline uint64_t copy_task(const Copy* c, int64_t task) noexcept nogil:
    cdef Py_ssize_t begin = column_of(task, c.tasks, c.nbytes)
    write_window(
        c.to + begin, c.source + begin, column_of(task + 1, c.tasks, c.nbytes) - begin, c.streamed
    )
    return 0
