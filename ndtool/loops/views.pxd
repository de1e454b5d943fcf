# cython: language_level=3, wraparound=False, cdivision=True
# Views: arrays with any strides, copied into row-major order.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport LINE, MOST_RANK
from ndtool.loops.moves cimport copy_run

cdef enum:
    TALL = 4096          # elements of a strip along the axis whose neighbours are closest


cdef struct View:
    # an array with any strides, in bytes
    int rank
    int64_t sizes[MOST_RANK]
    int64_t strides[MOST_RANK]
    Py_ssize_t item


cdef inline void copy_view(
    uint8_t* to, const uint8_t* source, const View* view, int64_t first, int64_t count
) noexcept nogil:
    """Copy elements [first, first + count) in row-major order to consecutive places."""
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
        copy_line(to, source, stride, take, view.item)
        to += take * view.item
        count -= take
        coordinates[view.rank - 1] += take
        source += take * stride
        for d in reversed(range(1, view.rank)):
            if coordinates[d] < view.sizes[d]:
                break
            source += view.strides[d - 1] - view.sizes[d] * view.strides[d]
            coordinates[d] = 0
            coordinates[d - 1] += 1


cdef inline void copy_line(
    uint8_t* to, const uint8_t* source, int64_t stride, int64_t n, Py_ssize_t item
) noexcept nogil:
    """Copy n elements that lie `stride` bytes apart to consecutive places."""
    cdef int64_t i
    if stride == item:
        memcpy(to, source, n * item)
    elif item == 4:
        for i in range(n):
            memcpy(to + 4 * i, source + i * stride, 4)
    elif item == 8:
        for i in range(n):
            memcpy(to + 8 * i, source + i * stride, 8)
    else:
        for i in range(n):
            copy_run(to + item * i, source + i * stride, item)


cdef inline int64_t strips_of(const View* view, int near) noexcept nogil:
    """Return how many strips a view has; `near` is the axis, not the last, of closest neighbours.

    A strip is up to TALL elements of that axis, and of the last as many as a cache line holds.
    """
    cdef int64_t across = max(1, LINE // view.item)
    cdef int64_t count = 1
    cdef int d
    for d in range(view.rank):
        if d == view.rank - 1:
            count *= (view.sizes[d] + across - 1) // across
        elif d == near:
            count *= (view.sizes[d] + TALL - 1) // TALL
        else:
            count *= view.sizes[d]
    return count


cdef struct Strips:
    # strips of a view from number `first` on, each copied to its place in row-major order
    const View* view
    int near
    const uint8_t* source
    uint8_t* to
    int64_t first


cdef inline uint64_t copy_strip(const void* call, int64_t part, int thread) noexcept nogil:
    """Copy one strip: lines are read and written as a whole."""
    cdef const Strips* c = <const Strips*> call
    cdef const View* view = c.view
    cdef const uint8_t* source = c.source
    cdef uint8_t* to = c.to
    cdef int last = view.rank - 1, near = c.near, d
    cdef int64_t number = c.first + part
    cdef int64_t wide = view.sizes[last], tall = view.sizes[near]
    cdef int64_t across = max(1, LINE // view.item)
    cdef int64_t tiles = (wide + across - 1) // across, chunks = (tall + TALL - 1) // TALL
    cdef int64_t column = number % tiles * across, row = number // tiles % chunks * TALL
    cdef int64_t i, place = number // tiles // chunks, step = view.item, pitch = 0
    for d in reversed(range(view.rank)):
        if d == near:
            pitch = step
        elif d != last:
            to += place % view.sizes[d] * step
            source += place % view.sizes[d] * view.strides[d]
            place //= view.sizes[d]
        step *= view.sizes[d]
    to += row * pitch + column * view.item
    source += row * view.strides[near] + column * view.strides[last]
    for i in range(min(TALL, tall - row)):
        copy_line(
            to + i * pitch, source + i * view.strides[near], view.strides[last],
            min(across, wide - column), view.item,
        )
    return 0


cdef struct Spread:
    # rows that stand side by side, and the array that they belong into, `pitch` bytes apart
    const uint8_t* source
    uint8_t* to
    int64_t rows
    int64_t width
    int64_t pitch
    int64_t parts


cdef inline uint64_t spread_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const Spread* c = <const Spread*> call
    cdef int64_t i
    for i in range(c.rows * part // c.parts, c.rows * (part + 1) // c.parts):
        memcpy(c.to + i * c.pitch, c.source + i * c.width, c.width)
    return 0
