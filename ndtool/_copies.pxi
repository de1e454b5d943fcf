# Copies of whole arrays to row-major order, and byte swaps.


cdef void copy_array(
    const View* view, const uint8_t* source, uint8_t* target, int64_t first, int64_t count,
    int threads, bint non_temporal,
) noexcept nogil:
    """Copy `count` pieces of an array from `first` on: strips if it has them, else elements.

    A contiguous array is a view of rank 0, with one element.
    """
    cdef Strips strips
    cdef Copy c
    if has_strips(view):
        strips = Strips(view, 0, 0, 0, source, target, first)
        count_strips(&strips)
        run_tasks(copy_strip, &strips, count, threads)
        return
    c = Copy(
        view, source, target + first * view.itemsize, first, count, task_count(threads),
        non_temporal,
    )
    run_tasks(copy_task, &c, c.tasks, threads)


def copy_pieces(
    Layout layout, const uint8_t[::1] data, Py_ssize_t origin, uint8_t[::1] out, int64_t first,
    int64_t stop, KernelOptions options,
) -> None:
    """Copy pieces [first, stop) of an array to row-major order."""
    if origin + layout.lowest < 0 or (
        origin + layout.highest + layout.view.itemsize > data.shape[0]
    ):
        raise ValueError("the data buffer is shorter than its shape")
    if out.shape[0] < layout.nbytes or not 0 <= first <= stop <= layout.pieces:
        raise ValueError("the output buffer is shorter than its shape")
    with nogil:
        copy_array(
            &layout.view, &data[0] + origin, &out[0], first, stop - first, options.threads,
            options.non_temporal,
        )


def copy(const uint8_t[::1] data, uint8_t[::1] out, KernelOptions options) -> None:
    """Copy all of data to the start of out."""
    cdef View view
    if out.shape[0] < data.shape[0]:
        raise ValueError("the output buffer is shorter than its shape")
    view.rank, view.itemsize = 0, data.shape[0]
    with nogil:
        copy_array(&view, &data[0], &out[0], 0, 1, options.threads, options.non_temporal)


def swap(uint8_t[::1] buffer, int unit) -> None:
    """Byte-swap every `unit` bytes, in place."""
    if unit < 1 or buffer.shape[0] % unit:
        raise ValueError("the buffer is no multiple of the unit")
    cdef uint8_t* at = &buffer[0]
    cdef Py_ssize_t n = buffer.shape[0] // unit
    with nogil:
        swap_units(at, n, unit)


def interleave(const uint8_t[::1] planes, uint8_t[::1] out, Py_ssize_t count) -> None:
    """Write the first bytes of all planes, then the second ones and so on; count: of the planes."""
    if count < 1 or planes.shape[0] % count or out.shape[0] != planes.shape[0]:
        raise ValueError("the buffers are no multiple of the planes")
    if not planes.shape[0]:
        return
    cdef const uint8_t* source = &planes[0]
    cdef uint8_t* target = &out[0]
    cdef Py_ssize_t size = planes.shape[0] // count, i, plane
    with nogil:
        if count == 2:
            interleave_planes(source, target, size, 2)
        elif count == 4:
            interleave_planes(source, target, size, 4)
        elif count == 8:
            interleave_planes(source, target, size, 8)
        else:
            for plane in range(count):
                for i in range(size):
                    target[i * count + plane] = source[plane * size + i]


cdef inline void interleave_planes(
    const uint8_t* source, uint8_t* target, Py_ssize_t size, Py_ssize_t count
) noexcept nogil:
    """Interleave planes, by vectors of bytes where the compiler knows their number."""
    cdef Py_ssize_t i, plane
    for i in range(size):
        for plane in range(count):
            target[i * count + plane] = source[plane * size + i]
