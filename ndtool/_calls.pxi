# Calls on arrays in memory: one function validates, plans and executes a call, whatever its shapes.
#
# `Calls.call` is the entry point of all operators. What does not depend on shapes (attributes,
# spec, element types) is a TypedCall, made once by Python code; `infer_call` has the rules for
# shapes.
# A call that breaks a rule, and one that Python code must plan (other arrays, large ones), returns
# None from `Calls.execute`: the general path then computes it or raises the error.

cdef extern from "Python.h":
    ctypedef struct PyMethodDef:
        const char* ml_name
        void* ml_meth
        int ml_flags
        const char* ml_doc
    int METH_FASTCALL
    object new_function "PyCFunction_NewEx"(PyMethodDef* method, object owner, PyObject* module)


cdef extern from *:
    """
    #define NDTOOL_MAX_ELEMENTS ((int64_t) 1 << 62)

    /* The fields of every ndarray, as compiled code of any package for NumPy 2 reads them: buffers
       and attributes of arrays would take a fifth of the instructions of a small call. */
    typedef struct {
        PyObject_HEAD
        uint8_t* data;
        int rank;
        const Py_ssize_t* shape;
        const Py_ssize_t* strides;
        PyObject* base;
        PyObject* dtype;
        int flags;
    } NdtoolFields;
    """
    ctypedef struct Fields "NdtoolFields":
        uint8_t* data
        int rank
        const Py_ssize_t* shape
        const Py_ssize_t* strides
        PyObject* dtype
        int flags
    const int64_t MAX_ELEMENTS "NDTOOL_MAX_ELEMENTS"    # of any array of a call
    const int64_t MAX_INDEX "INT64_MAX"

cdef enum:
    MAX_TYPED = 1024            # cached TypedCalls, and slots for recent ones
    MIN_SQUARES = 1 << 15       # bytes of data, from which narrow elements are copied in squares
    LARGE = 1 << 20             # bytes of a scatter with an algorithm, of a batch for threads
    SPARSE = 16                 # slices per tuple, from which a table numbers those with updates
    LONG_SLAB = 1024            # bytes along the axis of runs, from which each is copied in pieces
    MAX_TEMPORARIES = 12
    ARRAYS = 4                  # arguments of a call that are arrays: they precede the others
    MAX_ARGUMENTS = 17          # other arguments of a call, and three element types
    NEW_ARRAY = 94              # the position of PyArray_NewFromDescr in NumPy's table of functions
    WRITEABLE = 1 << 10         # flags of an ndarray
    WARNS = 1 << 31

cdef enum:              # how index tuples select slices
    BY_TUPLES = 1       # gather_nd, scatter_nd
    ALONG_AXIS = 2      # gather, scatter
    BY_ELEMENTS = 3     # gather_elements, scatter_elements
    BY_RUNS = 4         # tensor_scatter: an index for the run of elements of each batch

_FAMILIES = {
    "gather_nd": BY_TUPLES, "scatter_nd": BY_TUPLES, "gather": ALONG_AXIS, "scatter": ALONG_AXIS,
    "gather_elements": BY_ELEMENTS, "scatter_elements": BY_ELEMENTS, "tensor_scatter": BY_RUNS,
}


# Types of arguments whose calls are cached.
_PLAIN_TYPES = frozenset({int, str, bool, float, type(None)})


@cython.final
cdef class TypedCall:
    """A call of an operator but for its shapes.

    threads: at most this many. indices: their type, mode and padding, without a buffer; the fill
    value is one element. stored: the same as given, if they are normalized to int64; else None.
    spec: None for a gather.
    itemsize: of data. data_swap, updates_swap: bytes to reverse for the byte order that arithmetic
    needs, or 0.
    """

    cdef int family, threads, data_swap, updates_swap
    cdef int64_t batch_dims, axis
    cdef bint counts_from_1, is_counted, is_distinct, is_circular
    cdef Indices indices, stored
    cdef UpdateSpec spec
    cdef Py_ssize_t itemsize

    def __cinit__(
        self, str operator, object attributes, int threads, Indices indices, Indices stored,
        UpdateSpec spec, Py_ssize_t itemsize, int data_swap, int updates_swap,
    ):
        self.family, self.threads = _FAMILIES[operator], threads
        self.batch_dims, self.axis = attributes.batch_dims, attributes.resolved_axis
        self.is_counted, self.is_distinct = attributes.is_counted, attributes.duplicates == "error"
        self.counts_from_1 = attributes.index_base != 0
        self.is_circular = self.family == BY_RUNS and attributes.mode == "circular"
        self.indices, self.stored = indices, stored
        self.spec, self.itemsize = spec, itemsize
        self.data_swap, self.updates_swap = data_swap, updates_swap


ctypedef object (*NewArray)(
    PyObject* array, PyObject* dtype, int rank, const Py_ssize_t* shape, const Py_ssize_t* strides,
    void* data, int flags, PyObject* base
)


cdef struct Array:
    # an ndarray; with a copy of its shape, which other code may change meanwhile
    uint8_t* data
    int rank
    int itemsize
    Py_ssize_t nbytes
    Py_ssize_t shape[_blocks.MAX_RANK]
    Py_ssize_t strides[_blocks.MAX_RANK]


cdef void read_array(Array* a, PyObject* array, int itemsize) noexcept:
    cdef const Fields* fields = <const Fields*> array
    cdef int d
    a.data, a.rank, a.itemsize, a.nbytes = fields.data, fields.rank, itemsize, itemsize
    for d in range(a.rank):
        a.shape[d], a.strides[d] = fields.shape[d], fields.strides[d]
        a.nbytes *= a.shape[d]


cdef struct CallPlan:
    # N index tuples of k components, each of which selects a slice of data, as in rules/plans.py
    int rank                          # of the output
    Py_ssize_t shape[_blocks.MAX_RANK]   # of the output
    int first, k                      # the indexed axes of data: k from `first` on
    int64_t tuples, per_batch, repeats
    int64_t run                       # elements along the axis of a run, 0 if tuples select slices
    Py_ssize_t width                  # bytes of a slice
    bint by_panels                    # elements along an axis that is not the last


cdef struct Source:
    # an array to read: where it is, or as a contiguous copy
    const uint8_t* data
    uint8_t* copy        # NULL to read it where it is
    View view            # of the array; of rank 0 if it is contiguous
    Py_ssize_t nbytes
    int swap             # bytes to reverse in the copy; 0 for none


cdef struct Job:
    # all that the execution of a call needs, without Python objects
    int threads
    Source data, indices, updates
    bint copies_data         # of a scatter: whether the target does not contain data yet
    Py_ssize_t slab          # bytes of data along the axis of runs, which their copy skips; or 0
    bint validates           # whether to validate all indices before the target changes
    int stored_kind          # of indices to normalize to int64, in their copy; else 0
    bint has_stored_pad      # whether one that is `stored_pad` is padding
    int64_t stored_pad       # others count from 1
    int64_t stored_tuples
    IndexSpace space, row_space
    Walk walk
    uint8_t* offsets         # of a gather, where tuples become offsets before it; else NULL
    int offset_bytes         # of each, 4 or 8
    RowBits rows             # of size 0 unless duplicates are an error; row_space addresses them
    Panels panels
    int64_t units            # of panels; 0 if tuples select slices
    uint8_t* tiles           # packed tiles of panels, of `tile_bytes` for each thread; or NULL
    Py_ssize_t tile_bytes
    View slice               # of strided slices; of rank 0 if all are contiguous
    int64_t listed_strides[_blocks.MAX_RANK]    # of updates or the output, along its axes
    const uint8_t* fill_value
    uint8_t* target
    Py_ssize_t target_bytes
    int64_t tuples
    Py_ssize_t width
    Py_ssize_t moved         # bytes
    bint scatters, non_temporal
    bint is_staged           # whether elements are not aligned or in another byte order, in place
    int swap                 # bytes to reverse in these
    Updates update
    int64_t counts           # of updates, one for each slice of the target
    uint8_t* out             # where to copy the target to; NULL if the target is the output
    View out_view


cdef inline int64_t multiply(int64_t total, int64_t size) noexcept nogil:
    """Return total * size, at most MAX_ELEMENTS + 1."""
    if size and total > MAX_ELEMENTS // size:
        return MAX_ELEMENTS + 1
    return total * size


cdef inline bint is_same_shape(const Array* view, const CallPlan* p) noexcept nogil:
    cdef int d
    if view.rank != p.rank:
        return False
    for d in range(p.rank):
        if view.shape[d] != p.shape[d]:
            return False
    return True


cdef bint infer_call(
    int family, int64_t b, int64_t a, Py_ssize_t itemsize, const Array* data,
    const Array* indices, const Array* updates, CallPlan* p,
) noexcept:
    """Infer the plan of a call with these shapes; False if a rule of rules/shapes.py is broken.

    b, a: batch_dims and axis. updates: NULL for a gather.
    """
    cdef int r = data.rank, q = indices.rank, d, n = 0
    cdef int last                  # axes of indices in the shape of gathered slices
    cdef int64_t size = itemsize
    p.repeats = p.per_batch = p.tuples = 1
    p.width = itemsize
    p.by_panels = False
    p.run = 0
    if r < 1 or b < 0:
        return False
    if family == BY_TUPLES:
        if q < 1 or b >= min(r, q) or not 1 <= indices.shape[q - 1] <= r - b:
            return False
        p.first, p.k = <int> b, <int> indices.shape[q - 1]
        last = q - 1
    else:
        if not -r <= a < r:
            return False
        p.first, p.k = <int> (a + r if a < 0 else a), 1
        last = q
        if family == ALONG_AXIS and b > min(p.first, q):
            return False
        if family == BY_ELEMENTS and q != r:
            return False
        if family == BY_RUNS and (
            p.first == 0 or updates.rank != r or updates.shape[p.first] > data.shape[p.first]
            or q != 1 or indices.shape[0] != data.shape[0]
        ):
            return False
    for d in range(b):
        if data.shape[d] != indices.shape[d]:
            return False
    if family == BY_ELEMENTS:
        for d in range(r):
            if d != p.first and indices.shape[d] > data.shape[d]:
                return False
            p.shape[d] = indices.shape[d]
            p.tuples = multiply(p.tuples, indices.shape[d])
            if d > p.first:
                p.by_panels |= indices.shape[d] != 1
        p.per_batch = indices.shape[p.first]
        p.rank = r
    elif family == BY_RUNS:
        p.run = updates.shape[p.first]
        for d in range(r):
            p.shape[d] = updates.shape[d] if d == p.first else data.shape[d]
            if d < p.first:
                p.tuples = multiply(p.tuples, data.shape[d])
            else:
                p.width *= p.shape[d]    # no more than updates have
        for d in range(1, p.first):
            p.repeats = multiply(p.repeats, data.shape[d])
        p.rank = r
    else:
        if family == ALONG_AXIS:
            for d in range(p.first):
                p.shape[n] = data.shape[d]
                n += 1
                if d >= b:
                    p.repeats = multiply(p.repeats, data.shape[d])
        else:
            for d in range(b):
                p.shape[n] = data.shape[d]
                n += 1
        if n + last - b + r - p.first - p.k > _blocks.MAX_RANK:
            return False
        for d in range(b, last):
            p.shape[n] = indices.shape[d]
            n += 1
            p.per_batch = multiply(p.per_batch, indices.shape[d])
        p.tuples = p.per_batch
        for d in range(p.first):
            p.tuples = multiply(p.tuples, data.shape[d])
        for d in range(p.first + p.k, r):
            p.shape[n] = data.shape[d]
            n += 1
            p.width *= data.shape[d]    # no more than data have
        p.rank = n
    for d in range(p.rank):    # NumPy limits the size without axes of size 0
        size = multiply(size, max(1, p.shape[d]))
    if size > MAX_ELEMENTS:
        return False
    if p.tuples and p.width and not data.nbytes:    # every index is out of bounds
        return False
    if updates != NULL:
        if not is_same_shape(updates, p):
            return False
        p.rank = r
        for d in range(r):
            p.shape[d] = data.shape[d]
    return True


cdef void fill_strides(Array* a, const int* order=NULL) noexcept nogil:
    """Fill in the strides of a contiguous array, or of one that is contiguous in this order."""
    cdef Py_ssize_t stride = a.itemsize
    cdef int d, axis
    for d in reversed(range(a.rank)):
        axis = d if order == NULL else order[d]
        a.strides[axis] = stride
        stride *= max(1, a.shape[axis])


cdef bint sort_axes(
    int* order, const Array* a, const CallPlan* p, int rank, int fixed
) noexcept nogil:
    """Sort data's axes by the strides of an array, the smallest last; return whether any moves.

    a: of data's axes or the output's. fixed: how many axes stay; axes of size 1 or stride 0 do not
    move themselves.
    """
    cdef Py_ssize_t keys[_blocks.MAX_RANK]
    cdef Py_ssize_t key
    cdef int d, n, axis
    cdef bint is_moved = False
    for d in range(rank):
        axis, n = d if d < p.first else d + a.rank - rank, d
        key = PY_SSIZE_T_MAX if d <= fixed else keys[d - 1]
        if axis >= 0 and a.shape[axis] != 1 and a.strides[axis]:
            key = max(a.strides[axis], -a.strides[axis])
        while n > fixed and keys[n - 1] < key:
            keys[n], order[n] = keys[n - 1], order[n - 1]
            n -= 1
        keys[n], order[n] = key, d
        is_moved |= n != d
    return is_moved


cdef void order_output(
    int* output_order, const int* order, const CallPlan* p, int rank, int output_rank
) noexcept nogil:
    """Fill in the order of the axes of slices' positions and slices, from that of data's axes."""
    cdef int d, e, n = 0
    for d in range(rank):
        if order[d] == p.first:
            for e in range(p.first, p.first + p.k + output_rank - rank):
                output_order[n] = e
                n += 1
        elif not p.first < order[d] < p.first + p.k:
            output_order[n] = order[d] if order[d] < p.first else order[d] + output_rank - rank
            n += 1


cdef void permute_axes(Array* a, const int* order) noexcept nogil:
    """Permute the axes of an array."""
    cdef Array given = a[0]
    cdef int d
    for d in range(a.rank):
        a.shape[d], a.strides[d] = given.shape[order[d]], given.strides[order[d]]


cdef bint order_as(Array* a, const Array* target, const CallPlan* p) noexcept nogil:
    """Sort a's axes by the strides of the target; return whether it is contiguous then."""
    cdef Array ordered = target[0]
    cdef int order[_blocks.MAX_RANK]
    cdef View view
    sort_axes(order, target, p, target.rank, 0)
    permute_axes(a, order)
    permute_axes(&ordered, order)
    return merge_view(&view, ordered.shape, ordered.strides, 0, ordered.rank, a.itemsize) == 0


cdef bint has_smaller_stride(const Array* a, int axis) noexcept nogil:
    """Return whether an axis before the given one has a smaller stride."""
    cdef Py_ssize_t stride = max(a.strides[axis], -a.strides[axis])
    cdef int d
    for d in range(axis):
        if a.shape[d] != 1 and max(a.strides[d], -a.strides[d]) < stride:
            return True
    return False


cdef bint start_runs(
    const Array* indices, int kind, int64_t size, int64_t run, int64_t* firsts
) noexcept nogil:
    """Store circular write indices modulo `size`; return whether a run continues at index 0."""
    cdef const uint8_t* stored = <const uint8_t*> indices.data
    cdef bint wraps = False
    cdef int64_t i, v
    for i in range(indices.shape[0]):
        v = as_int64(stored + i * indices.strides[0], kind, 1, &v)[0] % size
        firsts[i] = v + (size & (v >> 63))
        wraps |= firsts[i] > size - run
    return wraps


cdef void follow_runs(
    const int64_t* firsts, int64_t count, int64_t size, int64_t run, int64_t* indices
) noexcept nogil:
    """Store the indices of all elements of circular runs."""
    cdef int64_t i, j
    for i in range(count):
        for j in range(run):
            indices[i * run + j] = (firsts[i] + j) % size


cdef inline int merge_view(
    View* view, const Py_ssize_t* shape, const Py_ssize_t* strides, int first, int stop,
    Py_ssize_t itemsize,
) noexcept nogil:
    """Describe axes of an array, contiguous rows as elements; of rank 0 if all is contiguous."""
    view.itemsize = itemsize
    view.rank = merge(shape, strides, first, stop, view.sizes, view.strides)
    if view.rank and view.strides[view.rank - 1] == itemsize:
        view.rank -= 1
        view.itemsize *= view.sizes[view.rank]
    return view.rank


cdef void describe(Source* s, const Array* a, int swap) noexcept nogil:
    """Describe an array to read where it is."""
    s.data, s.copy, s.nbytes, s.swap = a.data, NULL, a.nbytes, swap
    merge_view(&s.view, a.shape, a.strides, 0, a.rank, a.itemsize)


cdef void fill_space(
    IndexSpace* space, const Array* data, const Py_ssize_t* batch_shape,
    const Py_ssize_t* strides, const CallPlan* p, Indices indices,
) noexcept:
    """Fill an index space. batch_shape: data's, or that of indices."""
    cdef int d, axis, bits = 8 * (indices.kind & ITEMSIZE_MASK)
    cdef int64_t reach    # bytes
    space.k = p.k
    for d in range(p.k):
        axis = p.first + d
        space.sizes[d] = data.shape[axis] - p.run + 1 if p.run else data.shape[axis]
        space.wraps[d] = space.sizes[d] if indices.negatives else 0
        space.strides[d] = strides[axis]
    space.batch_rank = merge(
        batch_shape, strides, 0, p.first, space.batch_sizes, space.batch_strides
    )
    complete_space(space, p.per_batch, p.repeats)
    if p.k == 1 and bits <= 16:    # they reach few rows
        reach = max(space.strides[0], -space.strides[0]) << bits
        space.fits_in_cache |= reach <= CACHE_BYTES and (
            space.batch_rank == 0 or p.per_batch * _blocks.LINE >= reach
        )


cdef int64_t fill_row_space(
    IndexSpace* space, const Array* data, const Array* indices, int family, int batch_dims,
    const CallPlan* p, bint negatives,
) noexcept nogil:
    """Fill a space that addresses each stored tuple's row, for the check for duplicates.

    Returns the number of rows.
    """
    cdef int d, stop = p.first + p.k
    cdef int64_t rows = 1
    cdef Py_ssize_t strides[_blocks.MAX_RANK]
    space.k, space.repeats, space.is_one_group = p.k, 1, False
    if family == BY_ELEMENTS:
        stop = data.rank
    for d in reversed(range(stop)):
        if family == ALONG_AXIS and batch_dims <= d < p.first:
            continue    # batches along these axes share tuples
        strides[d] = rows
        rows = multiply(rows, data.shape[d])
    for d in range(p.k):
        space.sizes[d], space.strides[d] = data.shape[p.first + d], strides[p.first + d]
        space.wraps[d] = space.sizes[d] if negatives else 0
    if family == BY_ELEMENTS:    # every index is a batch
        strides[p.first] = 0
        space.per_batch = 1
        space.batch_rank = merge(
            indices.shape, strides, 0, data.rank, space.batch_sizes, space.batch_strides
        )
    else:
        space.per_batch = max(1, p.per_batch)
        space.batch_rank = merge(
            data.shape, strides, 0, batch_dims, space.batch_sizes, space.batch_strides
        )
    space.lowest, space.span, space.fits_in_cache = 0, rows, False
    return rows


cdef void copy_source(
    const Source* s, uint8_t* target, int threads, bint non_temporal
) noexcept nogil:
    """Copy an array to contiguous memory, with the byte order that is required."""
    if s.nbytes == 0:
        return
    copy_array(
        &s.view, s.data, target, 0, count_pieces(&s.view, s.nbytes), threads, non_temporal
    )
    if s.swap:
        swap_units(target, s.nbytes // s.swap, s.swap)


cdef inline const uint8_t* load(const Source* s, int threads) noexcept nogil:
    """Return the bytes of an array in row-major order."""
    if s.copy == NULL:
        return s.data
    copy_source(s, s.copy, threads, False)
    return s.copy


cdef uint64_t load_indices(Job* job) noexcept nogil:
    """Let the walk read the indices in row-major order, normalized if the call requires it.

    Non-zero for an index that int64 may not hold once it is.
    """
    cdef const Source* s = &job.indices
    cdef Py_ssize_t itemsize = job.stored_kind & ITEMSIZE_MASK
    cdef int64_t values[ENTRIES]
    cdef const uint8_t* stored = s.data
    cdef const int64_t* index
    cdef int64_t* normalized = <int64_t*> s.copy
    cdef int64_t i = 0, j, n, v, count
    if not job.stored_kind:
        job.walk.index = load(s, job.threads)
        return 0
    job.walk.index = s.copy
    count = s.nbytes // itemsize
    if s.view.rank:    # the end of the copy, so that no index is overwritten before it is read
        stored = s.copy + 8 * count - s.nbytes
        copy_source(s, s.copy + 8 * count - s.nbytes, job.threads, False)
    while i < count:
        n = min(ENTRIES, count - i)
        index = as_int64(stored + i * itemsize, job.stored_kind, n, values)
        for j in range(n):
            v = index[j]
            if v == MAX_INDEX:    # which also stands for a larger uint64
                return 1
            if job.has_stored_pad and v == job.stored_pad:
                normalized[i + j] = job.walk.pad
                continue
            if v < 1 - MAX_INDEX:
                return 1
            normalized[i + j] = v - 1
        i += n
    return 0


cdef uint64_t check_tuples(const Job* job, int64_t first, int64_t count) noexcept nogil:
    """Return non-zero if an index of the stored tuples is out of bounds, in mode "error".

    Also stores the offsets of a gather that reads these instead of the tuples.
    """
    cdef Check c
    c.walk, c.count, c.tasks = job.walk, count, task_count(job.threads)
    c.walk.index += first * job.walk.tuple_bytes
    if not job.offsets:
        return run_tasks(check_task, &c, c.tasks, job.threads)
    c.offsets, c.offset_bytes = job.offsets + first * job.offset_bytes, job.offset_bytes
    return run_tasks(flatten_task, &c, c.tasks, job.threads)


cdef void read_offsets(Job* job) noexcept nogil:
    """Let a gather read the offsets that `check_tuples` stored, as tuples of one component."""
    cdef IndexSpace* space = &job.space
    if job.offsets == NULL:
        return
    job.data.data += space.lowest
    space.k, space.sizes[0], space.strides[0], space.wraps[0] = 1, space.span + 1, 1, 0
    space.lowest = 0
    job.walk.index, job.walk.kind = job.offsets, job.offset_bytes | UNSIGNED
    job.walk.tuple_bytes, job.walk.mode = job.offset_bytes, ERROR


cdef uint64_t load_arrays(Job* job) noexcept nogil:
    """Copy data and updates where they cannot be used as they are; non-zero for a duplicate."""
    cdef Walk walk = job.walk
    if job.rows.size:
        walk.space = &job.row_space
        if first_duplicate(&walk, job.stored_tuples, &job.rows).position != -1:
            return 1
    if job.scatters:
        job.update.first = load(&job.updates, job.threads)
        if job.update.current == NEUTRAL and has_nan(
            job.update.code, job.update.first, job.updates.nbytes
        ):
            return 1    # the general path copies first updates
        if job.copies_data:
            copy_source(&job.data, job.target, job.threads, job.non_temporal)
    elif job.data.copy != NULL:
        job.data.data = load(&job.data, job.threads)
    return 0


cdef void finish_job(Job* job) noexcept nogil:
    """Divide means, and copy the target to the output."""
    cdef Means means
    cdef const Counts* counts = &job.update.counts
    if job.scatters and job.update.mean_type and job.updates.nbytes:
        means = Means(
            job.update.counts, <uint8_t*> counts.origin, job.counts, 1, job.update.mean_type,
            job.update.current == INCLUDED,
        )
        divide_task(&means, 0, 0)
    if job.data.swap:    # it was reversed for arithmetic
        swap_units(job.target, job.target_bytes // job.data.swap, job.data.swap)
    if job.out != NULL and job.target_bytes:
        if job.out_view.rank:
            copy_view(
                job.target, job.out, &job.out_view, 0, job.target_bytes // job.out_view.itemsize,
                False,
            )
        else:
            memcpy(job.out, job.target, job.target_bytes)


cdef int check_signals() except -1 nogil:
    with gil:
        return PyErr_CheckSignals()


cdef int execute_job(Job* job, Py_ssize_t limit) except -1 nogil:
    """Execute a call in items of about `limit` bytes, after each of which Ctrl-C takes effect.

    Returns 1 if an index is out of bounds.
    """
    cdef Updates updates, first_pass
    cdef int64_t first = 0, total = job.units if job.units else job.tuples, n
    cdef Py_ssize_t column = 0, width = job.width, columns = width
    if load_indices(job):
        return 1
    n = max(1, limit // max(1, job.walk.tuple_bytes))
    while job.validates and first < job.stored_tuples:
        if check_tuples(job, first, min(n, job.stored_tuples - first)):
            return 1
        first += n
        if first < job.stored_tuples:
            check_signals()
    if load_arrays(job):
        return 1
    read_offsets(job)
    updates = job.update
    if job.scatters and updates.current == NEUTRAL and total and width:
        first_pass = fill_pass(&updates)
        if execute_item(job, &first_pass, 0, total, 0, width):
            return 1
    first, n = 0, max(1, limit // max(1, width))
    if job.units:
        n = max(job.threads, limit // max(1, job.moved // job.units))
    elif width > limit:
        columns = max(1, limit // _blocks.LINE) * _blocks.LINE
        if job.slice.rank:
            columns = max(1, limit // job.slice.itemsize) * job.slice.itemsize
    while width and first < total:
        if execute_item(
            job, &updates, first, min(n, total - first), column, min(columns, width - column)
        ):
            return 1
        if n < total or columns < width:
            check_signals()
        column += columns
        if column >= width:
            column, first = 0, first + n
    finish_job(job)
    return 0


cdef uint64_t execute_item(
    const Job* job, const Updates* updates, int64_t first, int64_t count, Py_ssize_t column,
    Py_ssize_t width,
) noexcept nogil:
    """Gather bytes [column, column + width) of slices, or apply updates to slices.

    first, count: of units of panels, or of index tuples: of a gather, or all those of a scatter.
    """
    cdef Gather g
    cdef Scatter s
    cdef Runs runs
    cdef Strided strided
    cdef Units units
    cdef Walk walk = job.walk
    cdef uint8_t* target = job.target
    cdef int threads = job.threads
    if job.units:
        units.p = &job.panels
        units.data = job.target if job.scatters else job.data.data
        units.index, units.kind, units.mode = walk.index, walk.kind, walk.mode
        units.has_pad, units.pad = walk.has_pad, walk.pad
        units.fill_value, units.target = job.fill_value, job.target
        units.buffers, units.scratch = job.tiles, job.tile_bytes
        units.first, units.non_temporal = first, job.non_temporal
        if job.scatters:
            units.updates = updates[0]
        return run_tasks(scatter_unit if job.scatters else gather_unit, &units, count, threads)
    if job.slice.rank:
        s.walk, s.updates, s.target = walk, updates[0], target
        s.count, s.width = count, job.slice.itemsize
        if not job.scatters:
            s.walk.first = first
            if job.space.repeats == 1:
                s.walk.index += first * walk.tuple_bytes
            s.target, s.updates.first = <uint8_t*> job.data.data, target + first * updates.pitch
        strided = Strided(
            s, not job.scatters, &job.slice, &job.listed_strides[0],
            column // job.slice.itemsize, width // job.slice.itemsize, False, job.fill_value,
            job.is_staged, job.swap
        )
        return run_strided(&strided, threads)
    if job.scatters:
        s.walk, s.updates, s.target = walk, updates[0], target
        s.count, s.width = count, width
        s.non_temporal = job.non_temporal and s.updates.op == 0
        if job.slab:
            s.tasks = task_count(threads)
            s.non_temporal &= job.slab >= 8 * LONG_SLAB
            runs = Runs(s, job.data.data, job.slab)
            return run_tasks(copy_runs_task, &runs, s.tasks, threads)
        return run_scatter(
            &s, job.space.per_batch != count
            and (width <= _blocks.LINE or count // job.space.per_batch >= threads), threads
        )
    walk.first = first
    if job.space.repeats == 1:
        walk.index += first * walk.tuple_bytes
    target += first * job.width + column
    g.walk, g.target, g.count, g.width = walk, target, count, width
    g.non_temporal = job.non_temporal
    g.source = job.data.data + column
    g.walk.redirect_offset = job.fill_value - g.source
    if count == job.tuples and job.space.repeats > 1 and job.space.per_batch > _blocks.SHORT_BLOCK:
        if threads == 1 or job.space.per_batch * width >= LARGE:
            return gather_batches(&g, threads)
    return run_gather(&g, threads)


cdef uint64_t gather_batches(Gather* g, int threads) noexcept nogil:
    """Gather long batches that share tuples one by one, without copies of the tuples."""
    cdef const IndexSpace* space = g.walk.space
    cdef IndexSpace one = space[0]
    cdef Gather batch = g[0]
    cdef Cursor cursor
    cdef uint64_t bad = 0
    cdef int64_t first = 0
    one.repeats, one.batch_rank, one.is_one_group = 1, 0, False
    batch.walk.space, batch.count = &one, space.per_batch
    while first < g.count and not bad:
        seek(&cursor, &g.walk, first)
        batch.walk.index = g.walk.index
        if not space.is_one_group:
            batch.walk.index += cursor.batch // space.repeats * space.per_batch * g.walk.tuple_bytes
        batch.source = g.source + cursor.base
        batch.walk.redirect_offset = g.walk.redirect_offset - cursor.base
        batch.target = g.target + first * g.width
        bad = run_gather(&batch, threads)
        first += space.per_batch
    return bad


cdef void find_extent(const Array* view, int64_t* low, int64_t* high) noexcept nogil:
    """Return the addresses of the first byte of an array and of the first after it."""
    cdef int d
    low[0] = high[0] = <int64_t> view.data
    for d in range(view.rank):
        extend(low, high, view.shape[d], view.strides[d])
    high[0] += view.itemsize


cdef bint overlap(const Array* a, const Array* b) noexcept nogil:
    """Return whether the memory of two arrays may overlap."""
    cdef int64_t a_low, a_high, b_low, b_high
    find_extent(a, &a_low, &a_high)
    find_extent(b, &b_low, &b_high)
    return a_low < b_high and b_low < a_high


cdef bint may_overlap_itself(const View* view) noexcept nogil:
    """Return whether elements may share memory: unless each stride exceeds all inner extents.

    Slices and transposes of contiguous arrays give False; interleaved strides always give True.
    """
    cdef int64_t strides[_blocks.MAX_RANK]
    cdef int64_t sizes[_blocks.MAX_RANK]
    cdef int64_t extent = view.itemsize, stride
    cdef int d, n
    for d in range(view.rank):
        if view.sizes[d] == 0:
            return False
        stride, n = max(view.strides[d], -view.strides[d]), d
        if view.sizes[d] == 1:
            stride = PY_SSIZE_T_MAX
        while n and strides[n - 1] > stride:
            strides[n], sizes[n] = strides[n - 1], sizes[n - 1]
            n -= 1
        strides[n], sizes[n] = stride, view.sizes[d]
    for d in range(view.rank):
        if strides[d] < extent:
            return True
        extent += strides[d] * (sizes[d] - 1)
    return False


cdef inline bint is_aligned(
    const uint8_t* data, const View* view, Py_ssize_t itemsize
) noexcept nogil:
    """Return whether all elements are aligned for arithmetic."""
    cdef int64_t bits = <int64_t> data
    cdef int d
    for d in range(view.rank):
        bits |= view.strides[d]
    return bits & (min(itemsize, 8) - 1) == 0


cdef inline bint are_multiples(const Array* a, Py_ssize_t unit) noexcept:
    """Return whether all strides are multiples of `unit`."""
    cdef int d
    cdef bint result = True
    for d in range(a.rank):
        result &= a.strides[d] % unit == 0
    return result


cdef bint describe_slices(
    Job* job, const Array* selected, Array* listed, const CallPlan* p, int slice_rank, bint folds,
    bint merges_rows, bint needs_copy,
) noexcept:
    """Describe the slices that tuples select, and the array where they are listed.

    That is updates, or the output of a gather; the result is whether it needs a copy. slice_rank:
    axes of slices, the last ones. folds: whether the axes before the indexed one are axes of a
    slice, too. merges_rows: whether contiguous bytes are one element.
    """
    cdef int64_t sizes[_blocks.MAX_RANK]
    cdef int64_t strides[_blocks.MAX_RANK]
    cdef View* view = &job.slice
    cdef int first = p.first if folds else 0, last = listed.rank - slice_rank, d, n
    cdef int rows = merge(listed.shape, listed.strides, first, last, sizes, strides)
    cdef Py_ssize_t stride, size
    if rows > 1 or needs_copy:
        needs_copy = True
        fill_strides(listed)
        rows = merge(listed.shape, listed.strides, first, last, sizes, strides)
    view.rank, view.itemsize, job.width = 0, selected.itemsize, selected.itemsize
    for d in range(listed.rank):
        size = listed.shape[d]
        if first <= d < last or size == 1:
            continue
        job.width *= size
        stride = selected.strides[d if d < first else d - listed.rank + selected.rank]
        n = view.rank - 1
        if n >= 0 and view.strides[n] == size * stride and (
            job.listed_strides[n] == size * listed.strides[d]
        ):
            view.sizes[n] *= size
        else:
            n += 1
            view.sizes[n], view.rank = size, n + 1
        view.strides[n], job.listed_strides[n] = stride, listed.strides[d]
    n = view.rank - 1
    if merges_rows and n >= 0 and (
        view.strides[n] == view.itemsize and job.listed_strides[n] == view.itemsize
    ):
        view.itemsize *= view.sizes[n]
        view.rank = n
    job.update.pitch = strides[0] if rows else view.itemsize
    if view.rank == 0 and (job.is_staged or job.update.pitch != view.itemsize):    # one element
        view.rank, view.sizes[0], view.strides[0], job.listed_strides[0] = 1, 1, 0, 0
    return needs_copy


cdef struct Temporaries:
    # memory that a call needs until it ends
    void* blocks[MAX_TEMPORARIES]
    int count


cdef uint8_t* allocate(Temporaries* memory, Py_ssize_t nbytes, bint zeroed=False) except NULL:
    cdef void* block = calloc(max(1, nbytes), 1) if zeroed else malloc(max(1, nbytes))
    if block == NULL:
        raise MemoryError
    memory.blocks[memory.count] = block
    memory.count += 1
    return <uint8_t*> block


@cython.final
cdef class _Recent:
    """The TypedCall of the last call with these arguments: identical objects are equal."""

    cdef PyObject* keys[MAX_ARGUMENTS]
    cdef tuple held     # what `keys` point to
    cdef TypedCall call


cdef PyMethodDef CALL = PyMethodDef(
    "call", <void*> call_operator, METH_FASTCALL,
    "call(data, indices, updates, out, name, threads, spec, *attributes)\n\nCall an operator.",
)


cdef object call_operator(object calls, PyObject** arguments, Py_ssize_t n):
    cdef Calls self = <Calls> calls
    cdef object result
    try:
        result = self._run(arguments, n)
    except MemoryError:    # raised again by the general path
        result = None
    return self.fallback(*as_tuple(arguments, n)) if result is None else result


cdef tuple as_tuple(PyObject** arguments, Py_ssize_t n):
    cdef Py_ssize_t d
    return tuple([<object> arguments[d] for d in range(n)])


@cython.final
cdef class Calls:
    """The entry point of calls on arrays in memory.

    array, functions: numpy.ndarray, and NumPy's table of C functions. make: returns the TypedCall
    of a call's arguments and dtypes, or None; Calls caches these. limit_threads: as in
    machine/threads.py. algorithms: whether a large scatter needs an algorithm of
    engine/scatters.py. fallback: the general path, for these and all errors. tuning: the
    thresholds of engine/tuning.py. call: calls an operator.
    """

    cdef object array, make, limit_threads, algorithms, fallback
    cdef readonly object call
    cdef NewArray new_array
    cdef dict typed, tuning
    cdef list recent
    cdef uint64_t factor    # of tables of rows

    def __cinit__(
        self, type array, object functions, object make, object limit_threads, object algorithms,
        object fallback, dict tuning,
    ):
        cdef object example = array((2, 3), "u1"), dtype = example.dtype
        cdef const Fields* fields = <const Fields*> <PyObject*> example
        if fields.dtype != <PyObject*> dtype or fields.rank != 2 or fields.strides[0] != 3:
            raise ImportError("ndtool requires NumPy 2: this version has other arrays")
        self.array, self.tuning = array, tuning
        self.new_array = <NewArray> (<void**> PyCapsule_GetPointer(functions, NULL))[NEW_ARRAY]
        self.make, self.fallback = make, fallback
        self.limit_threads, self.algorithms = limit_threads, algorithms
        self.typed, self.recent = {}, [None] * MAX_TYPED
        self.factor = int.from_bytes(os.urandom(8), "little") | 1
        self.call = new_function(&CALL, self, NULL)

    def execute(self, *arguments) -> object:
        """Return the result of a call on ndarrays; None if the general path must compute it.

        arguments: as those of `call`, or (.., name, threads, spec, Attributes).
        """
        cdef PyObject* given[ARRAYS + MAX_ARGUMENTS]
        cdef Py_ssize_t n = len(arguments), d
        for d in range(min(n, ARRAYS + MAX_ARGUMENTS)):
            given[d] = PyTuple_GetItem(arguments, d)
        return self._run(given, n)

    cdef object _run(self, PyObject** arguments, Py_ssize_t n):
        cdef Temporaries memory
        cdef int i
        if not ARRAYS < n <= ARRAYS + MAX_ARGUMENTS - 3:
            return None
        for i in range(ARRAYS):
            if type(<object> arguments[i]) is not self.array and (
                i == 0 or arguments[i] != <PyObject*> None
            ):
                return None
        memory.count = 0
        try:
            return self._execute(arguments, n, &memory)
        finally:
            for i in range(memory.count):
                free(memory.blocks[i])

    cdef TypedCall _typed_call(self, PyObject** arguments, Py_ssize_t n):
        """Return the call for element types, from the cache if it was made before; or None."""
        cdef PyObject* keys[MAX_ARGUMENTS]
        cdef uint64_t slot = 0
        cdef int d
        cdef object value
        cdef tuple call
        cdef _Recent recent
        memset(keys, 0, sizeof(keys))
        for d in range(3):
            keys[d] = arguments[d]
            if keys[d] != <PyObject*> None:
                keys[d] = (<const Fields*> keys[d]).dtype
        memcpy(&keys[3], arguments + ARRAYS, (n - ARRAYS) * sizeof(keys[0]))
        for d in range(MAX_ARGUMENTS):
            slot = slot * 31 + <size_t> keys[d]
        slot = (slot * <uint64_t> 0x9E3779B97F4A7C15 >> 32) % MAX_TYPED
        value = self.recent[slot]
        if value is not None:
            recent = <_Recent> value
            if memcmp(keys, recent.keys, sizeof(keys)) == 0:
                return recent.call
        call = as_tuple(keys, 3 + n - ARRAYS)
        types = tuple(map(type, call[3:]))
        if n != ARRAYS + 4 and not _PLAIN_TYPES.issuperset(types):
            return None
        key = call, types, tuple([v.hex() for v in call if type(v) is float])    # -0.0 equals 0.0
        value = self.typed.get(key, self)
        if value is self:
            value = self.make(call[3:], *call[:3])
            if len(self.typed) >= MAX_TYPED:
                self.typed.clear()
            self.typed[key] = value
        recent = _Recent()
        memcpy(recent.keys, keys, sizeof(keys))
        recent.held, recent.call = call, value
        self.recent[slot] = recent
        return value

    cdef object _new_array(self, const Array* a, const int* order, bint has_order, PyObject* dtype):
        """Return a new array, of another order of axes than a if `order` is not NULL."""
        cdef Array given = a[0]
        cdef int d
        if order != NULL:
            for d in range(a.rank):
                given.shape[order[d]], given.strides[order[d]] = a.shape[d], a.strides[d]
        Py_INCREF(<object> dtype)    # it takes the reference
        return self.new_array(
            <PyObject*> self.array, dtype, a.rank, given.shape,
            given.strides if has_order else NULL, NULL, 0, NULL
        )

    cdef object _execute(self, PyObject** arguments, Py_ssize_t n, Temporaries* memory):
        cdef Array contiguous, ordered    # of data's shape; data in the target's order
        cdef Array views[5]    # data, indices, updates, output, circular write indices
        cdef CallPlan p
        cdef Job job
        cdef TypedCall c
        cdef int order[_blocks.MAX_RANK]    # of data's axes, by their strides
        cdef int output_order[_blocks.MAX_RANK]
        cdef const Array* key
        cdef const Array* selected
        cdef Array* listed
        cdef const Py_ssize_t* batch_shape
        cdef Array* target_view = &views[3]
        cdef Py_ssize_t limit = 0, moved, gathered, size
        cdef PyObject* out = arguments[3]
        cdef PyObject* dtype = (<const Fields*> arguments[0]).dtype
        cdef bint in_place = out == arguments[0], needs_temporary, is_arithmetic
        cdef bint is_new, keeps_order, is_permuted, is_dense, is_direct, is_listed, needs_copy
        cdef bint folds, releases, is_bad
        cdef int family, fixed, slice_rank, d
        cdef int64_t batch_dims, axis, low, high
        cdef int64_t* firsts
        cdef object result
        job.scatters = arguments[2] != <PyObject*> None
        if job.scatters:
            limit = self.tuning["COMPILED_CALL"]
            if not limit:
                return None
        c = self._typed_call(arguments, n)
        if c is None:
            return None
        read_array(&views[0], arguments[0], c.itemsize)
        if job.scatters:
            read_array(&views[2], arguments[2], c.itemsize)
        if arguments[1] != <PyObject*> None:
            read_array(
                &views[1], arguments[1],
                (c.indices if c.stored is None else c.stored).kind & ITEMSIZE_MASK
            )
        else:    # omitted write indices are 0
            views[1] = views[0]
            views[1].rank, views[1].itemsize, views[1].strides[0] = min(1, views[0].rank), 8, 8
            views[1].nbytes = 8 * views[0].shape[0] if views[0].rank else 8
            views[1].data = allocate(memory, views[1].nbytes, True)
        family, batch_dims, axis = c.family, c.batch_dims, c.axis
        if not infer_call(
            family, batch_dims, c.axis, c.itemsize, &views[0], &views[1],
            &views[2] if job.scatters else NULL, &p,
        ):
            return None
        gathered = p.tuples * p.width
        if c.is_circular:
            size = views[0].shape[p.first]
            if gathered == 0 or gathered > limit:
                return None
            firsts = <int64_t*> allocate(memory, 8 * views[1].shape[0])
            views[4] = views[1]
            views[1].data, views[1].itemsize, views[1].strides[0] = <uint8_t*> firsts, 8, 8
            views[1].nbytes = 8 * views[1].shape[0]
            if start_runs(&views[4], c.stored.kind, size, p.run, firsts):
                views[1].rank, views[1].shape[1] = 2, p.run
                views[1].strides[0], views[1].strides[1] = 8 * p.run, 8
                views[1].nbytes *= p.run
                views[1].data = allocate(memory, views[1].nbytes)
                follow_runs(firsts, views[1].shape[0], size, p.run, <int64_t*> views[1].data)
                family, batch_dims = ALONG_AXIS, 1
                infer_call(
                    family, 1, c.axis, c.itemsize, &views[0], &views[1], &views[2], &p
                )
        in_place = in_place and job.scatters
        is_new = out == <PyObject*> None
        is_arithmetic = job.scatters and c.spec.op != 0
        keeps_order = False
        moved = views[1].nbytes + gathered
        # the order of axes by strides, in which memory is contiguous as far as possible
        if not is_new:
            read_array(target_view, out, c.itemsize)
            if target_view.rank != p.rank:
                return None
        elif job.scatters:
            target_view[0] = views[0]
            keeps_order = gathered <= views[0].nbytes and sort_axes(
                order, &views[0], &p, views[0].rank, 0
            )
            fill_strides(target_view, order if keeps_order else NULL)
        if job.scatters and not in_place and not keeps_order:
            moved += views[0].nbytes
        if moved > (4 * limit if p.run else limit) and job.scatters:    # runs are copied faster
            return None
        if keeps_order:
            moved += views[0].nbytes
        key, fixed = target_view, <int> batch_dims
        if family == BY_TUPLES:
            fixed = p.first + p.k
        elif family == BY_RUNS:
            fixed = p.first + 1
        if family == BY_ELEMENTS and (in_place or not job.scatters and is_new):
            key = &views[1]
        elif is_new and not keeps_order:
            key = &views[2 if job.scatters else 0]
        is_permuted = sort_axes(order, key, &p, views[0].rank, fixed)
        if is_permuted and not job.scatters and is_new and gathered >= 2 * views[0].nbytes:
            size = c.itemsize    # whether slices are longer so than in a copy of data
            for d in reversed(range(views[0].rank)):
                if order[d] == p.first:
                    break
                size *= views[0].shape[order[d]]
            is_permuted = family == BY_ELEMENTS or size >= p.width
        if is_permuted:
            d = views[2].rank if job.scatters else p.rank
            order_output(output_order, order, &p, views[0].rank, d)
            permute_axes(&views[0], order)
            if family == BY_ELEMENTS:
                permute_axes(&views[1], order)
            if job.scatters:
                permute_axes(&views[2], output_order)
                memcpy(output_order, order, sizeof(order))
            if not is_new or keeps_order:
                permute_axes(target_view, output_order)
            for d in range(views[0].rank):
                if order[d] == p.first:
                    axis = d
                    break
            infer_call(
                family, batch_dims, axis, c.itemsize, &views[0], &views[1],
                &views[2] if job.scatters else NULL, &p,
            )
        if is_new and not keeps_order:
            target_view.rank, target_view.itemsize = p.rank, c.itemsize
            memcpy(target_view.shape, p.shape, p.rank * sizeof(p.shape[0]))
            fill_strides(target_view)
        merge_view(&job.out_view, target_view.shape, target_view.strides, 0, p.rank, c.itemsize)
        job.threads, job.non_temporal = 1, False
        job.target_bytes = views[0].nbytes if job.scatters else gathered
        releases = moved >= <Py_ssize_t> self.tuning["RELEASING"]
        if releases:
            if c.threads > 1:
                job.threads = self.limit_threads(c.threads, moved)
            job.non_temporal = job.target_bytes >= self.tuning["NON_TEMPORAL"]
            if job.scatters and not is_permuted and not keeps_order and not (
                job.out_view.rank and in_place
            ) and moved >= LARGE and p.tuples and p.width and self.algorithms(
                c.is_counted, job.target_bytes, p.width, p.tuples, p.per_batch,
                p.by_panels, in_place, job.threads,
            ):
                return None
        # inputs
        describe(&job.indices, &views[1], 0)
        job.stored_kind = 0
        if c.counts_from_1:
            job.stored_kind = c.stored.kind
            job.has_stored_pad, job.stored_pad = c.stored.has_pad, c.stored.pad_bits
            job.indices.copy = allocate(memory, views[1].nbytes // views[1].itemsize * 8)
        elif job.indices.view.rank:
            job.indices.copy = allocate(memory, views[1].nbytes)
        job.stored_tuples = views[1].nbytes // views[1].itemsize // p.k
        if not gathered and job.stored_tuples and c.indices.mode != ERROR:
            return None    # only an axis of size 0 makes an index out of bounds
        # output
        job.out, job.validates = NULL, c.is_distinct or not gathered
        contiguous = views[0]
        fill_strides(&contiguous)
        result = <object> out
        if is_new:
            result = self._new_array(
                target_view, output_order if is_permuted else NULL, is_permuted or keeps_order,
                dtype,
            )
            target_view.data = (<const Fields*> <PyObject*> result).data
        else:
            if not is_same_shape(target_view, &p) or (
                (<const Fields*> out).dtype != dtype and result.dtype != <object> dtype
            ) or (<const Fields*> out).flags & (WRITEABLE | WARNS) != WRITEABLE:
                return None
            if overlap(target_view, &views[4 if c.is_circular else 1]) or (
                job.scatters and overlap(target_view, &views[2])
            ) or (not in_place and overlap(target_view, &views[0])):
                return None
            if may_overlap_itself(&job.out_view):
                return None
        job.target = target_view.data
        describe(&job.data, &views[0], c.data_swap)
        is_direct = job.out_view.rank != 0    # strided where it is
        job.is_staged, job.swap = False, 0
        selected = &views[0]
        if job.scatters:
            needs_temporary = is_arithmetic and (
                (in_place and c.data_swap)
                or not is_aligned(target_view.data, &job.out_view, c.itemsize)
            )
            if (    # updates that are few: not more than they would take in a copy
                needs_temporary and in_place and 8 * gathered <= views[0].nbytes and gathered
                and c.spec.state == INCLUDED and not c.spec.mean_type and family != BY_ELEMENTS
            ):
                job.is_staged, job.swap, job.data.swap = True, c.data_swap, 0
                needs_temporary, is_direct = False, True
            elif is_direct and not needs_temporary:    # a copy costs less than more updates
                ordered = views[0]
                is_dense = order_as(&ordered, target_view, &p)
                needs_temporary = not (gathered <= 4 * views[0].nbytes if in_place else is_dense)
                needs_temporary |= c.spec.mean_type and not are_multiples(target_view, c.itemsize)
            if needs_temporary:
                if job.target_bytes > limit:
                    return None
                job.out, job.target = job.target, allocate(memory, job.target_bytes)
            is_direct &= not needs_temporary
            if is_direct and not in_place:
                describe(&job.data, &ordered, c.data_swap)
            selected = target_view if is_direct else &contiguous
        job.copies_data = job.scatters and (not in_place or job.out != NULL)
        # tuples
        job.moved = moved
        job.units = job.rows.size = 0
        job.tiles = NULL
        batch_shape = &views[1 if family == BY_ELEMENTS else 0].shape[0]
        fill_space(&job.space, &views[0], batch_shape, selected.strides, &p, c.indices)
        job.walk.space, job.walk.kind = &job.space, c.indices.kind
        job.walk.index = job.indices.data
        job.walk.tuple_bytes = p.k * (job.walk.kind & ITEMSIZE_MASK)
        job.walk.first, job.walk.mode = 0, c.indices.mode
        job.walk.redirect_offset = DROPPED
        job.walk.has_pad, job.walk.pad = c.indices.has_pad, c.indices.pad_bits
        # slices, and where their elements are listed: updates, or the output of a gather
        job.tuples, job.width, job.update.pitch, job.slab = p.tuples, p.width, p.width, 0
        slice_rank = 0 if family == BY_ELEMENTS else views[0].rank - p.first - (0 if p.run else p.k)
        merge_view(
            &job.slice, selected.shape, selected.strides, selected.rank - slice_rank, selected.rank,
            c.itemsize,
        )
        listed = target_view
        if job.scatters:
            listed = &views[2]
            describe(&job.updates, listed, c.updates_swap)
            needs_copy = c.updates_swap != 0 or (
                is_arithmetic and not is_aligned(listed.data, &job.updates.view, c.itemsize)
            ) or (job.updates.view.rank and c.spec.state == NEUTRAL)
            is_listed = is_direct or (
                job.updates.view.rank and not needs_copy and not p.run
                and p.width * p.repeats >= FEW * c.itemsize
            )
        else:
            needs_copy = False
            if job.data.view.rank and self._packs_data(&job, &p, gathered, c.itemsize):
                job.data.copy, selected = allocate(memory, views[0].nbytes), &contiguous
                job.slice.rank = 0
                fill_space(&job.space, &views[0], batch_shape, selected.strides, &p, c.indices)
            is_listed = is_direct or job.slice.rank != 0
        folds = family == ALONG_AXIS and batch_dims == 0 and p.first > 0 and (
            has_smaller_stride(selected, p.first)
            or (listed.rank >= views[0].rank and has_smaller_stride(listed, p.first))
            or (p.per_batch <= FEW and (is_listed or (job.scatters and p.width <= _blocks.LINE)))
        )
        if gathered and family != BY_ELEMENTS and (is_listed or folds):
            needs_copy = describe_slices(
                &job, selected, listed, &p, slice_rank, folds,
                not (job.scatters and (c.spec.mean_type or job.is_staged)), needs_copy,
            )
            if folds:
                job.tuples, job.space.batch_rank = p.per_batch, 0
                complete_space(&job.space, p.per_batch, 1)
        else:
            job.slice.rank = 0
            needs_copy |= job.updates.view.rank != 0 if job.scatters else is_direct
            if p.run and job.copies_data and not job.data.view.rank and (
                gathered and views[0].nbytes // p.tuples >= LONG_SLAB
            ):
                job.copies_data, job.slab = False, views[0].nbytes // p.tuples
        if needs_copy and job.scatters:
            job.updates.copy = allocate(memory, views[2].nbytes)
        elif needs_copy:
            job.out, job.target = job.target, allocate(memory, job.target_bytes)
        job.validates |= arguments[3] != <PyObject*> None and job.out == NULL
        self._choose_validation(&job, &p, c.is_distinct, memory)
        if p.by_panels and gathered:
            self._divide_panels(&job, c, &p, views, selected.strides, memory)
        if c.is_distinct and job.stored_tuples:
            job.rows.size = fill_row_space(
                &job.row_space, &views[0], &views[1], family, <int> batch_dims, &p,
                c.indices.negatives,
            )
            job.rows.low, job.rows.bits, job.rows.table.keys = 0, NULL, NULL
            if job.rows.size > SPARSE * job.stored_tuples:
                self._allocate_table(&job.rows.table, job.stored_tuples, memory)
            else:
                job.rows.bits = allocate(memory, job.rows.size // 8 + 1, True)
        # what tuples that select nothing have, and the updates
        job.fill_value = NULL
        if not job.scatters and c.indices.skips:
            job.fill_value = self._repeat_fill_value(
                c, job.slice.itemsize if job.slice.rank else job.width, memory
            )
        if job.scatters:
            low, high = <int64_t> job.target, <int64_t> job.target + job.target_bytes
            if is_direct:
                find_extent(target_view, &low, &high)
            self._fill_updates(&job, c, <uint8_t*> low, high - low, gathered, memory)
        if not releases:
            is_bad = execute_job(&job, PY_SSIZE_T_MAX)
        else:
            limit = PY_SSIZE_T_MAX if job.scatters else self.tuning["WORK_ITEM"]
            with nogil:
                is_bad = execute_job(&job, limit)
        return None if is_bad else result

    cdef int _choose_validation(
        self, Job* job, const CallPlan* p, bint is_distinct, Temporaries* memory
    ) except -1:
        """Decide whether tuples are validated before the output changes, and become offsets."""
        cdef bint bounds = job.walk.mode == CLIP or job.walk.mode == WRAP, in_bounds = True
        cdef int j
        for j in range(job.space.k):
            in_bounds &= are_in_bounds(job.walk.kind, job.space.sizes[j], job.space.wraps[j])
        job.validates &= job.walk.mode == ERROR and not in_bounds
        job.offsets = NULL
        if job.validates and p.width and not (is_distinct or job.slab or job.out_view.rank) and (
            0 < job.target_bytes <= min(job.indices.nbytes // 2, SHARED_CACHE_BYTES)
        ):
            job.validates = False    # a copy of the output is faster
            job.out, job.target = job.target, allocate(memory, job.target_bytes)
            job.copies_data = job.scatters
        if job.scatters:
            return 0
        if p.by_panels or job.walk.has_pad:
            return 0
        if job.space.repeats > 1 if bounds else job.validates and job.space.k > 1:
            job.validates, job.offset_bytes = True, 8 if job.space.span >> 31 else 4
            job.offsets = allocate(memory, job.stored_tuples * job.offset_bytes)
        return 0

    cdef bint _packs_data(
        self, const Job* job, const CallPlan* p, Py_ssize_t gathered, Py_ssize_t itemsize
    ) except -1:
        """Return whether to copy strided data to row-major order before a gather."""
        cdef const View* view = &job.data.view
        cdef bint has_rows = view.itemsize != itemsize
        cdef int64_t last = view.strides[view.rank - 1]
        cdef Py_ssize_t reused
        gathered = reused = min(gathered, PY_SSIZE_T_MAX // 4)    # multiples do not overflow
        if itemsize <= 2 and not has_rows and job.data.nbytes >= MIN_SQUARES:
            reused *= 4    # they are copied in squares, for a quarter of the time
        if job.data.nbytes <= self.tuning["PACKED_IN_CACHE"] and reused >= 2 * job.data.nbytes:
            if p.by_panels:
                return not has_rows
            if job.slice.rank or p.width <= _blocks.LINE:
                return True
        if not (
            job.slice.rank > 0 and not has_rows and view.rank > 1
            and max(last, -last) >= _blocks.LINE and job.data.nbytes <= min(
                2 * gathered if job.data.nbytes > CACHE_BYTES else gathered,
                <Py_ssize_t> self.tuning["MAX_PACKED"],
            )
        ):
            return False
        # slices of successive tuples that are in the same few lines are read where they are
        return (
            p.width // itemsize * _blocks.LINE > CACHE_BYTES or job.indices.copy != NULL
            or local_fraction(&job.walk, p.tuples) < 1
        )

    cdef int _divide_panels(
        self, Job* job, TypedCall c, const CallPlan* p, const Array* views,
        const Py_ssize_t* strides, Temporaries* memory,
    ) except -1:
        """Divide elements along an axis that is not the last into units.

        Threads share tiles, or the rows of indices of a gather, unless it is faster from packed
        tiles.
        """
        cdef Py_ssize_t tile = self.tuning["TILE"]
        cdef int64_t data_rows = views[0].shape[p.first]
        cdef int threads = job.threads if job.scatters else 1
        cdef bint is_packed = False
        while True:
            fill_panels(
                &job.panels, views[0].rank, data_rows, views[1].shape, strides, p.first, c.itemsize,
                c.indices.negatives, tile, min(data_rows, views[1].shape[p.first]), threads,
            )
            if job.scatters or is_packed or job.data.nbytes <= CACHE_BYTES:
                break
            is_packed = are_tiles_packed(&job.panels, tile)
            if not is_packed:
                break
            threads = job.threads
        if is_packed:
            job.tile_bytes = packed_bytes(&job.panels)
            job.tiles = allocate(memory, job.threads * job.tile_bytes)
        elif not job.scatters:
            job.panels.bands = max(
                1, min(job.panels.index_rows, task_count(job.threads) // count_units(&job.panels))
            )
        job.units = count_units(&job.panels)
        return 0

    cdef int _allocate_table(self, RowTable* table, int64_t tuples, Temporaries* memory) except -1:
        """Allocate a table of the rows that tuples select, at most half of its slots used."""
        table.mask = 1
        while table.mask <= <uint64_t> (2 * tuples):
            table.mask *= 2
        table.keys = <uint64_t*> allocate(memory, 8 * table.mask, True)
        table.mask -= 1
        table.factor = self.factor
        return 0

    cdef const uint8_t* _repeat_fill_value(
        self, TypedCall c, Py_ssize_t width, Temporaries* memory
    ) except NULL:
        """Return the fill value, repeated for a slice."""
        cdef const uint8_t* element = c.indices._fill_value(c.itemsize)
        cdef uint8_t* repeated
        cdef Py_ssize_t filled = 0
        if width == c.itemsize:
            return element
        repeated = allocate(memory, width)
        while filled < width:
            memcpy(repeated + filled, element, c.itemsize)
            filled += c.itemsize
        return repeated

    cdef int _fill_updates(
        self, Job* job, TypedCall c, const uint8_t* origin, Py_ssize_t extent, Py_ssize_t nbytes,
        Temporaries* memory,
    ) except -1:
        """Describe the updates of a scatter, with zeroed counts if it needs them.

        origin, extent: the memory of the target. nbytes: of the updates.
        """
        cdef Counts counts = no_counts()
        cdef int current = c.spec.state
        cdef Py_ssize_t width = job.slice.itemsize if job.slice.rank else job.width
        if current == NEUTRAL and (width > _blocks.LINE or float_state() != DEFAULT_STATE):
            current = REPLACED
        if nbytes and (current == REPLACED or c.spec.mean_type):
            describe_counts(&counts, 4, origin, width)
            job.counts = (extent - 1) // width + 1
            if job.counts > SPARSE * (nbytes // width):
                self._allocate_table(&counts.table, nbytes // width, memory)
                job.counts = counts.table.mask + 1
            counts.data = allocate(memory, job.counts * counts.itemsize, True)
        job.update = Updates(
            NULL, job.update.pitch, c.spec.code, c.spec.op, current, NULL, counts, c.spec.mean_type
        )
        if c.spec.neutral is not None:
            job.update.neutral = &c.spec.neutral[0]
        return 0
