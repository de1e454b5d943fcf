# cython: language_level=3, wraparound=False, cdivision=True
# Scatters into slices that are not contiguous, from updates of any strides: where both are, without
# copies of them. The twin of `gather_strided_task`.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ndtool.loops.blocks cimport BLOCK, LINE, MAX_RANK, Cursor, block_size, next_offsets, seek
from ndtool.loops.moves cimport move_block
from ndtool.loops.scatters cimport FILL, Scatter, Updates, apply_block, apply_row, filter_owned
from ndtool.loops.views cimport View

cdef enum:
    FEW = 16    # tuples or elements, up to which a call for those of one slice costs more


cdef struct Strided:
    # a scatter, whose width is that of an element of `view`
    Scatter scatter
    const View* view                 # of a slice
    const int64_t* update_strides    # of an update, along the same axes
    int64_t elements                 # of a slice


cdef inline uint64_t scatter_strided_task(
    const void* args, int64_t task, int thread
) noexcept nogil:
    """Update a task's elements of all slices: a slice at a time if these are near, else an element.

    Then as many elements are updated at a time as updates have in a cache line.
    """
    cdef const Strided* a = <const Strided*> args
    cdef const Scatter* s = &a.scatter
    cdef int64_t targets[BLOCK]
    cdef int64_t updates[BLOCK]
    cdef int64_t coordinates[MAX_RANK]
    cdef int64_t element = a.elements * task // s.tasks, stop = a.elements * (task + 1) // s.tasks
    cdef int64_t n = max(1, LINE // s.width), i, rest = element, target = 0, update = 0
    cdef int64_t step = a.view.strides[a.view.rank - 1]
    cdef int d
    cdef bint by_slices = s.count <= FEW or (max(step, -step) < LINE and stop - element > FEW)
    if by_slices:
        n = BLOCK
    for d in reversed(range(a.view.rank)):
        coordinates[d] = rest % a.view.sizes[d]
        target += coordinates[d] * a.view.strides[d]
        update += coordinates[d] * a.update_strides[d]
        rest //= a.view.sizes[d]
    while element < stop:
        n = min(n, stop - element)
        for i in range(n):
            targets[i], updates[i] = target, update
            for d in reversed(range(a.view.rank)):
                coordinates[d] += 1
                target += a.view.strides[d]
                update += a.update_strides[d]
                if coordinates[d] < a.view.sizes[d]:
                    break
                target -= a.view.sizes[d] * a.view.strides[d]
                update -= a.view.sizes[d] * a.update_strides[d]
                coordinates[d] = 0
        if update_elements(s, targets, updates, n, by_slices):
            return 1
        element += n
    return 0


cdef inline uint64_t update_elements(
    const Scatter* s, const int64_t* targets, const int64_t* updates, Py_ssize_t elements,
    bint by_slices,
) noexcept nogil:
    """Update elements of all slices, which are at these offsets in a slice and in its update."""
    cdef int64_t offsets[BLOCK]
    cdef int64_t positions[BLOCK]
    cdef Cursor cursor
    cdef int64_t t = 0, n, i, j
    seek(&cursor, &s.walk, 0)
    while t < s.count:
        n = min(block_size(s.walk.space), s.count - t)
        if next_offsets(&cursor, &s.walk, t, n, offsets):
            return 1
        t += n
        n = filter_owned(offsets, positions, n, t - n, 0, 1)    # but for those that are DROPPED
        for i in range(n):
            positions[i] *= s.updates.pitch
        if by_slices:
            for i in range(n):
                apply_strided(
                    &s.updates, s.target + offsets[i], targets, s.updates.first + positions[i],
                    updates, elements, s.width,
                )
        else:
            for j in range(elements):
                apply_strided(
                    &s.updates, s.target + targets[j], offsets, s.updates.first + updates[j],
                    positions, n, s.width,
                )
    return 0


cdef inline void apply_strided(
    const Updates* u, uint8_t* target, const int64_t* offsets, const uint8_t* updates,
    const int64_t* update_offsets, Py_ssize_t n, Py_ssize_t width,
) noexcept nogil:
    """Apply n updates at offsets to elements at offsets, in order."""
    cdef uint8_t packed[BLOCK * LINE]
    cdef Py_ssize_t i
    if width > LINE:
        for i in range(n):
            apply_row(u, target + offsets[i], updates + update_offsets[i], width)
    elif u.op or u.current == FILL or u.counts.data:
        move_block(packed, NULL, updates, update_offsets, n, width, width, 0)
        apply_block(u, target, offsets, packed, n, width)
    else:
        move_block(target, offsets, updates, update_offsets, n, width, 0, 0)
