# cython: language_level=3, wraparound=False, cdivision=True
# Gathers and scatters of slices that are not contiguous, where they are: index tuples select slices
# of data (of the output of a scatter), whose elements are listed in the output of a gather or the
# updates of a scatter, at any strides, too.

from libc.stdint cimport int64_t, uint8_t, uint64_t

from ndtool.loops.blocks cimport (
    BLOCK, DROPPED, LINE, MAX_RANK, Cursor, block_size, next_offsets, seek,
)
from ndtool.loops.memory cimport swap_units
from ndtool.loops.moves cimport copy_bytes, move_block
from ndtool.loops.scatters cimport FILL, Scatter, Updates, apply_block, apply_row, filter_owned
from ndtool.loops.views cimport View, copy_run, seek_element

cdef enum:
    FEW = 16    # tuples or elements, up to which a call for those of one slice costs more


cdef struct Strided:
    # a gather or a scatter, whose width is that of an element of `view`
    Scatter scatter                  # of a gather: `target` is data, and `updates` the output
    bint gathers
    const View* view                 # of a slice
    const int64_t* listed_strides    # of an update or the output, along the same axes
    int64_t first, elements          # elements of the slices: [first, first + elements)
    bint by_tuples                   # tasks have some tuples, not some elements of all slices
    const uint8_t* fill_value        # of a gather: an element for tuples that are DROPPED; or NULL
    bint is_staged                   # elements are reduced in an aligned buffer, slice by slice
    int swap                         # bytes to reverse there; 0 for none


cdef struct Elements:
    # n elements of a slice, and of the update or of the output of a tuple
    int64_t selected[BLOCK]
    int64_t listed[BLOCK]
    Py_ssize_t n
    bint is_run    # both are at equal distances


cdef inline uint64_t strided_task(const void* args, int64_t task, int thread) noexcept nogil:
    """Move a task's elements of all slices: a slice at a time if these are near, else an element.

    Then as many elements are moved at a time as a cache line of updates or of the output has.
    """
    cdef const Strided* a = <const Strided*> args
    cdef const Scatter* s = &a.scatter
    cdef const View* view = a.view
    cdef int64_t coordinates[MAX_RANK]
    cdef int64_t t = 0, end = s.count, element = a.first, stop = a.first + a.elements
    cdef int64_t selected, listed = 0, n = max(1, LINE // s.width), i
    cdef int last = view.rank - 1, d
    cdef int64_t size = view.sizes[last], step = view.strides[last], run
    cdef int64_t listed_step = a.listed_strides[last]
    cdef bint by_slices
    cdef Elements e
    if a.by_tuples:
        t, end = end * task // s.tasks, end * (task + 1) // s.tasks
    else:
        element += a.elements * task // s.tasks
        stop = a.first + a.elements * (task + 1) // s.tasks
    by_slices = a.is_staged or end - t <= FEW or (max(step, -step) < LINE and stop - element > FEW)
    if by_slices:    # of distant elements, as many as the first cache holds the lines of
        n = BLOCK if max(step, -step) < LINE else BLOCK // 8
    selected = seek_element(view, element, coordinates)
    for d in range(view.rank):
        listed += coordinates[d] * a.listed_strides[d]
    while element < stop:
        e.n = 0
        while e.n < min(n, stop - element):
            run = min(min(n, stop - element) - e.n, size - coordinates[last])
            for i in range(run):
                e.selected[e.n + i] = selected + i * step
                e.listed[e.n + i] = listed + i * listed_step
            e.is_run = e.n == 0
            e.n += run
            coordinates[last] += run
            selected += run * step
            listed += run * listed_step
            for d in reversed(range(1, view.rank)):
                if coordinates[d] < view.sizes[d]:
                    break
                coordinates[d] = 0
                coordinates[d - 1] += 1
                selected += view.strides[d - 1] - view.sizes[d] * view.strides[d]
                listed += a.listed_strides[d - 1] - view.sizes[d] * a.listed_strides[d]
            if by_slices and size > FEW:    # a run at a time
                break
        if move_elements(a, t, end, &e, by_slices):
            return 1
        element += e.n
    return 0


cdef inline uint64_t move_elements(
    const Strided* a, int64_t t, int64_t end, const Elements* e, bint by_slices
) noexcept nogil:
    """Move elements of the slices of tuples [t, end)."""
    cdef const Scatter* s = &a.scatter
    cdef uint8_t* listed = <uint8_t*> s.updates.first
    cdef int64_t offsets[BLOCK]
    cdef int64_t positions[BLOCK]
    cdef Cursor cursor
    cdef int64_t n, i, j
    seek(&cursor, &s.walk, t)
    while t < end:
        n = min(block_size(s.walk.space), end - t)
        if next_offsets(&cursor, &s.walk, t, n, offsets):
            return 1
        if a.fill_value != NULL:
            for i in range(n):
                for j in range(e.n if offsets[i] == DROPPED else 0):
                    copy_bytes(
                        listed + (t + i) * s.updates.pitch + e.listed[j], a.fill_value, s.width
                    )
        t += n
        n = filter_owned(offsets, positions, n, t - n, 0, 1)    # but for those that are DROPPED
        for i in range(n):
            positions[i] *= s.updates.pitch
        if by_slices:
            for i in range(n):
                apply_elements(
                    a, s.target + offsets[i], e.selected, listed + positions[i], e.listed, e.n,
                    e.is_run,
                )
        else:
            for j in range(e.n):
                apply_elements(
                    a, s.target + e.selected[j], offsets, listed + e.listed[j], positions, n, False
                )
    return 0


cdef inline void apply_elements(
    const Strided* a, uint8_t* selected, const int64_t* selected_offsets, uint8_t* listed,
    const int64_t* listed_offsets, Py_ssize_t n, bint is_run,
) noexcept nogil:
    """Gather n elements, or apply n updates in order."""
    cdef uint8_t packed[BLOCK * LINE]
    cdef uint8_t stage[BLOCK * LINE]
    cdef const Updates* u = &a.scatter.updates
    cdef Py_ssize_t width = a.scatter.width, i
    if a.gathers:
        move(listed, listed_offsets, selected, selected_offsets, n, width, is_run)
    elif not (u.op or u.current == FILL or u.counts.data):
        move(selected, selected_offsets, listed, listed_offsets, n, width, is_run)
    elif width > LINE:
        for i in range(n):
            apply_row(u, selected + selected_offsets[i], listed + listed_offsets[i], width)
    else:
        move_block(packed, NULL, listed, listed_offsets, n, width, width, 0)
        if a.is_staged:
            move_block(stage, NULL, selected, selected_offsets, n, width, width, 0)
            if a.swap:
                swap_units(stage, n * width // a.swap, a.swap)
            apply_row(u, stage, packed, n * width)
            if a.swap:
                swap_units(stage, n * width // a.swap, a.swap)
            move_block(selected, selected_offsets, stage, NULL, n, width, width, 0)
            return
        apply_block(u, selected, selected_offsets, packed, n, width)


cdef inline void move(
    uint8_t* target, const int64_t* target_offsets, const uint8_t* source,
    const int64_t* source_offsets, Py_ssize_t n, Py_ssize_t width, bint is_run,
) noexcept nogil:
    """Copy n elements from offsets to offsets, in order; is_run: whether at equal distances."""
    if is_run and n > 1:
        copy_run(
            target + target_offsets[0], target_offsets[1] - target_offsets[0],
            source + source_offsets[0], source_offsets[1] - source_offsets[0], n, width,
        )
    else:
        move_block(target, target_offsets, source, source_offsets, n, width, 0, 0)
