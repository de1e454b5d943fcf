# Copies of whole arrays: packed, spread, in strips, byte-swapped, in parallel.


def pack(
    Layout layout, const uint8_t[::1] data, Py_ssize_t origin, uint8_t[::1] out, int64_t first,
    int64_t count,
) -> None:
    """Copy elements [first, first + count), in row-major order, to contiguous memory."""
    layout._bind(data.shape[0], origin)
    if out.shape[0] < count * layout.view.itemsize:
        raise ValueError("the output buffer is shorter than its shape")
    cdef const uint8_t* source = &data[0] + origin
    cdef uint8_t* target = &out[0]
    with nogil:
        copy_view(target, source, &layout.view, first, count)


def copy_strips(
    Layout layout, const uint8_t[::1] data, Py_ssize_t origin, uint8_t[::1] out, int64_t strip,
    int64_t stop, KernelOptions options,
) -> None:
    """Copy strips [strip, stop) of an array with a large last stride to row-major order."""
    cdef Strips c
    layout._bind(data.shape[0], origin)
    if out.shape[0] < layout.nbytes or stop > layout.strips:
        raise ValueError("the output buffer is shorter than its shape")
    c.view = &layout.view
    c.smallest_stride_axis = layout.smallest_stride_axis
    c.source = &data[0] + origin
    c.target = &out[0]
    c.first = strip
    run_tasks(copy_strip, &c, stop - strip, options.threads)


def copy(const uint8_t[::1] data, uint8_t[::1] out, KernelOptions options) -> None:
    """Copy all of data to the start of out."""
    cdef Copy c
    if out.shape[0] < data.shape[0]:
        raise ValueError("the output buffer is shorter than its shape")
    c.source = &data[0]
    c.target = &out[0]
    c.nbytes = data.shape[0]
    c.tasks = task_count(options.threads)
    c.non_temporal = options.non_temporal
    run_tasks(copy_task, &c, c.tasks, options.threads)


def swap(uint8_t[::1] buffer, int unit) -> None:
    """Byte-swap every `unit` bytes, in place."""
    if unit < 1 or buffer.shape[0] % unit:
        raise ValueError("the buffer is no multiple of the unit")
    cdef uint8_t* at = &buffer[0]
    cdef Py_ssize_t n = buffer.shape[0] // unit
    with nogil:
        swap_units(at, n, unit)
