# Small calls on plain arrays: one entry point for all operators, with a cache of bound plans.

cdef extern from "Python.h":
    # cpython.buffer declares it with an exception, whose traceback costs more than a small call
    int try_buffer "PyObject_GetBuffer"(object array, Py_buffer* view, int flags)


cdef enum:
    MAX_AXES = 8        # axes of an array in a small call
    MAX_BOUND = 1024    # cached plans


@cython.final
cdef class SmallCall:
    """An operator bound to shapes and element types, to be executed on one thread.

    addressing: of the tuples; with a grid, only for the bounds check. grid: None unless the
    operator gathers or scatters elements along an axis that is not the last. indices: their type
    and out-of-bounds mode, without a buffer. spec: None for a gather. shape: of the output. width:
    bytes of a slice. The argument `views` of methods: buffers of data, indices, updates, output.
    """

    cdef Addressing addressing
    cdef Grid grid
    cdef Indices indices
    cdef UpdateSpec spec
    cdef tuple shape, shape_and_type
    cdef int64_t tuples
    cdef Py_ssize_t width
    cdef const uint8_t* fill_value
    cdef int mean_type

    def __cinit__(
        self, Addressing addressing, Grid grid, Indices indices, UpdateSpec spec, tuple shape,
        int64_t tuples, Py_ssize_t width,
    ):
        self.addressing, self.grid, self.indices, self.spec = addressing, grid, indices, spec
        self.shape, self.tuples, self.width = shape, tuples, width
        self.fill_value = indices._fill_value(width) if spec is None else NULL
        self.mean_type = 0 if spec is None else spec.mean_type

    cdef void _bind_walk(self, Walk* walk, const uint8_t* index) noexcept:
        walk.space = &self.addressing.space
        walk.index = index
        walk.kind = self.indices.kind
        walk.tuple_bytes = self.addressing.space.k * (walk.kind & ITEMSIZE_MASK)
        walk.first = 0
        walk.mode = self.indices.mode
        walk.redirect_offset = DROPPED
        walk.has_pad, walk.pad = self.indices.has_pad, self.indices.pad_bits

    cdef uint64_t run_tiles(self, const uint8_t* data, Py_buffer* views, Counts counts) noexcept:
        """Gather or scatter every unit of the grid."""
        cdef Units c
        cdef uint64_t bad = 0
        cdef int64_t unit
        c.p = &self.grid.p
        c.data = data
        c.index = <const uint8_t*> views[1].buf
        c.kind, c.mode = self.indices.kind, self.indices.mode
        c.has_pad, c.pad = self.indices.has_pad, self.indices.pad_bits
        c.fill_value = self.fill_value
        c.target = <uint8_t*> views[3].buf
        c.buffers = NULL
        c.first = 0
        c.non_temporal = False
        if self.spec is not None:
            c.updates = Updates(
                <const uint8_t*> views[2].buf, self.width, self.spec.code, self.spec.op, counts,
                self.mean_type, NULL, NULL,
            )
        for unit in range(self.grid.units):
            bad |= gather_unit(&c, unit, 0) if self.spec is None else scatter_unit(&c, unit, 0)
        return bad

    cdef uint64_t gather(self, Py_buffer* views) noexcept:
        """Gather from data (views[0]) to the output (views[3]); non-zero if out of bounds."""
        cdef Gather g
        if self.grid is not None:
            return self.run_tiles(
                <const uint8_t*> views[0].buf, views,
                no_counts(),
            )
        self._bind_walk(&g.walk, <const uint8_t*> views[1].buf)
        g.source = <const uint8_t*> views[0].buf
        g.walk.redirect_offset = self.fill_value - g.source
        g.target = <uint8_t*> views[3].buf
        g.count, g.width = self.tuples, self.width
        g.tasks = 1
        g.by_columns = g.non_temporal = g.is_local = False
        return gather_task(&g, 0)

    cdef uint64_t scatter(self, Py_buffer* views) noexcept:
        """Copy data (views[0]) to the output (views[3]), unless they are one, and apply updates."""
        cdef Counts counts = no_counts()
        cdef uint64_t bad
        cdef Means m
        cdef UpdateCounts update_counts = self.spec.counts
        if update_counts is not None:
            counts.data = <uint8_t*> calloc(
                views[3].len // self.width, update_counts.count_itemsize
            )
            if counts.data == NULL:
                return 1
            update_counts._describe(&counts, <const uint8_t*> views[3].buf, self.width)
            counts.slices = views[3].len // self.width
        if views[3].buf != views[0].buf:
            memcpy(views[3].buf, views[0].buf, views[0].len)
        bad = self._apply(views, counts)
        if counts.data and counts.count_itemsize > 1 and not bad:
            m = Means(
                counts, <uint8_t*> views[3].buf, views[3].len // self.width, 1, self.mean_type,
                not counts.copies_first_update,
            )
            means_task(&m, 0)
        free(counts.data)
        return bad

    cdef uint64_t _apply(self, Py_buffer* views, Counts counts) noexcept:
        """Apply the updates (views[2]) to the output (views[3])."""
        cdef Scatter s
        if self.grid is not None:
            return self.run_tiles(<const uint8_t*> views[3].buf, views, counts)
        self._bind_walk(&s.walk, <const uint8_t*> views[1].buf)
        s.updates = Updates(
            <const uint8_t*> views[2].buf, self.width, self.spec.code, self.spec.op, counts,
            self.mean_type, NULL, NULL,
        )
        s.target = <uint8_t*> views[3].buf
        s.count, s.width = self.tuples, self.width
        s.division, s.tasks, s.non_temporal = BY_COLUMNS, 1, False
        return scatter_task(&s, 0)

    cdef bint has_index_error(self, Py_buffer* views) noexcept:
        """Return whether an index is out of bounds in mode "error"."""
        cdef Walk walk
        self._bind_walk(&walk, <const uint8_t*> views[1].buf)
        return walk.mode == ERROR and check_range(
            &walk, 0, views[1].len // max(1, walk.tuple_bytes)
        ) != 0


cdef inline int append_shape(object array, Py_buffer* view, int64_t* sizes, int n) noexcept:
    """Get the buffer of an array, append its shape to `sizes` at n, and return the end of it.

    Returns 0 if the array is not C-contiguous, has no buffer, or has too many axes.
    """
    cdef int d
    if try_buffer(array, view, PyBUF_ND):
        PyErr_Clear()
        return 0
    if view.ndim > MAX_AXES:
        return 0
    sizes[n] = view.ndim
    for d in range(view.ndim):
        sizes[n + 1 + d] = view.shape[d]
    return n + 1 + view.ndim


cdef inline bint overlap(const Py_buffer* a, const Py_buffer* b) noexcept:
    cdef size_t a_start = <size_t> a.buf, b_start = <size_t> b.buf
    return a_start < b_start + <size_t> b.len and b_start < a_start + <size_t> a.len


@cython.final
cdef class BoundCalls:
    """The entry point of small calls on plain arrays, where dispatch would cost more than the work.

    array, empty: numpy.ndarray and numpy.empty. bind: returns a SmallCall for the arguments, shapes
    and element types of a call, or None; BoundCalls caches these. fallback: the general path, for
    all other calls and all errors. tuning: the module with the limit SMALL_CALL, in bytes.
    """

    cdef object array, empty, bind, fallback, tuning
    cdef dict bound

    def __cinit__(self, type array, object empty, object bind, object fallback, object tuning):
        self.array, self.empty, self.tuning = array, empty, tuning
        self.bind, self.fallback = bind, fallback
        self.bound = {}

    @cython.binding(False)    # with only positional arguments, calls have the lowest overhead
    def call(
        self, tuple arguments, object data, object indices, object updates, object out, /
    ) -> object:
        """Call an operator; arguments: its name and all arguments that are not arrays."""
        cdef Py_buffer views[4]
        cdef object result = None
        cdef int i
        if type(data) is not self.array or type(indices) is not self.array or not (
            (updates is None or type(updates) is self.array)
            and (out is None or type(out) is self.array)
        ):
            return self.fallback(arguments, data, indices, updates, out)
        memset(views, 0, sizeof(views))
        try:
            result = self._call_small(arguments, data, indices, updates, out, views)
        except (ValueError, BufferError, MemoryError):    # such as outputs that are read-only
            pass
        finally:
            for i in range(4):
                PyBuffer_Release(&views[i])
        return self.fallback(arguments, data, indices, updates, out) if result is None else result

    cdef object _call_small(
        self, tuple arguments, object data, object indices, object updates, object out,
        Py_buffer* views,
    ):
        """Return the result; None if the call must take the general path."""
        cdef int64_t sizes[1 + 3 * (1 + MAX_AXES)]
        cdef int d, n
        cdef Py_ssize_t moved_bytes, limit = self.tuning.SMALL_CALL
        cdef object value, dtype = data.dtype
        cdef SmallCall bound
        cdef bint succeeded
        sizes[0] = 0
        for d in range(PyTuple_Size(arguments)):
            # different arguments need different keys: of these types, only bool equals int
            value = <object> PyTuple_GetItem(arguments, d)
            if type(value) is bool:
                sizes[0] = 2 * sizes[0] + (2 if value is True else 1)
            elif type(value) is not int and type(value) is not str and value is not None:
                return None
        n = append_shape(data, &views[0], sizes, 1)
        n = append_shape(indices, &views[1], sizes, n) if n else 0
        if n and updates is not None:
            n = append_shape(updates, &views[2], sizes, n)
        if not n:
            return None
        moved_bytes = views[1].len + views[2].len
        if updates is not None and out is not data:
            moved_bytes += views[0].len
        if moved_bytes > limit:
            return None
        index_dtype = indices.dtype
        update_dtype = None if updates is None else updates.dtype
        shapes = PyBytes_FromStringAndSize(<char*> sizes, n * sizeof(int64_t))
        key = PyTuple_Pack(
            5, <PyObject*> arguments, <PyObject*> dtype, <PyObject*> index_dtype,
            <PyObject*> update_dtype, <PyObject*> shapes,
        )
        value = self.bound.get(key, self)
        if value is self:
            value = self.bind(arguments, data, indices, updates)
            if value is not None:    # before other threads can see it
                bound = value
                bound.shape_and_type = bound.shape, dtype    # the arguments of numpy.empty
            if len(self.bound) >= MAX_BOUND:
                self.bound.clear()
            self.bound[key] = value
        if value is None:
            return None
        bound = value
        if updates is None and bound.width * bound.tuples > limit:
            return None
        if out is not None:
            result = out
        elif <object> PyTuple_GetItem(bound.shape_and_type, 1) is dtype:
            result = self.empty(*bound.shape_and_type)
        else:    # equal, but its metadata may differ
            result = self.empty(bound.shape, dtype)
        PyObject_GetBuffer(result, &views[3], PyBUF_ND | PyBUF_WRITABLE)
        if out is not None and not self._is_valid_output(bound, dtype, out, out is data, views):
            return None
        if bound.spec is None:
            succeeded = not bound.gather(views)
        elif bound.spec.op and not are_aligned(views):
            return None
        else:
            succeeded = not bound.scatter(views)
        return result if succeeded else None

    cdef bint _is_valid_output(
        self, SmallCall bound, object dtype, object out, bint in_place, Py_buffer* views
    ):
        """Return whether out has the right shape and no overlap, and every index is in bounds."""
        cdef int d
        if out.dtype is not dtype or views[3].ndim != len(bound.shape):
            return False
        for d in range(views[3].ndim):
            if views[3].shape[d] != <Py_ssize_t> bound.shape[d]:
                return False
        if overlap(&views[3], &views[1]) or overlap(&views[3], &views[2]):
            return False
        if overlap(&views[3], &views[0]) and not (in_place and bound.spec is not None):
            return False
        return not bound.has_index_error(views)


cdef inline bint are_aligned(const Py_buffer* views) noexcept:
    """Return whether data, updates and the output are aligned for arithmetic."""
    cdef size_t addresses = <size_t> views[0].buf | <size_t> views[2].buf | <size_t> views[3].buf
    return addresses & (<size_t> min(views[0].itemsize, 8) - 1) == 0
