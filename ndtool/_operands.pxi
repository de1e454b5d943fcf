# The kernels' arguments other than buffers: index tuples (Addressing, Indices, WorkItem), updates
# (UpdateSpec, UpdateCounts, RadixPartitions), the elements of an array (Layout, Grid, Boxes), and
# KernelOptions.


@cython.final
cdef class Indices:
    """Contiguous, row-major indices of an integer type.

    out_of_bounds: the out-of-bounds mode. fill_bytes: for mode "fill", the fill value, repeated for
    the bytes of a slice that a work item has. pad: a tuple with this
    index selects nothing. negatives: whether negative indices are valid.
    """

    cdef const uint8_t[::1] bytes, fill_bytes
    cdef int kind, mode
    cdef readonly str out_of_bounds
    cdef readonly object pad
    cdef readonly bint negatives
    cdef bint has_pad
    cdef int64_t pad_bits

    def __cinit__(
        self, const uint8_t[::1] buffer, int itemsize, bint unsigned, bint swapped,
        str out_of_bounds="error", const uint8_t[::1] fill_bytes=None, object pad=None,
        bint negatives=True,
    ):
        if itemsize not in (1, 2, 4, 8):
            raise ValueError("an index has 1, 2, 4 or 8 bytes")
        self.bytes = buffer
        self.kind = itemsize | (UNSIGNED if unsigned else 0) | (SWAPPED if swapped else 0)
        self.out_of_bounds, self.mode = out_of_bounds, _MODES[out_of_bounds]
        self.fill_bytes = fill_bytes
        self.pad, self.negatives = pad, negatives
        if pad is not None:    # as an exact integer: -1 equals no unsigned index
            self.has_pad = 0 <= pad < 1 << 64 if unsigned else -(1 << 63) <= pad < 1 << 63
            self.pad_bits = <int64_t> <uint64_t> (pad & 0xFFFFFFFFFFFFFFFF) if self.has_pad else 0
        if self.has_pad or (not negatives and out_of_bounds != "error"):
            self.kind |= UNVECTORIZED

    @property
    def skips(self) -> bool:
        """Whether tuples may select nothing."""
        return self.has_pad or self.mode == REDIRECT

    cdef const uint8_t* _fill_value(self, Py_ssize_t nbytes) except? NULL:
        """Return the fill value for tuples that select nothing; NULL if all select a slice."""
        if self.mode != REDIRECT and not self.has_pad:
            return NULL
        if self.fill_bytes is None or self.fill_bytes.shape[0] < nbytes:
            raise ValueError("the fill value is shorter than a slice")
        return &self.fill_bytes[0]

    @property
    def itemsize(self) -> int:
        """Bytes per index."""
        return self.kind & ITEMSIZE_MASK

    def since(self, Py_ssize_t position) -> Indices:
        """Return the indices from `position` on, without a copy."""
        cdef Py_ssize_t size = self.kind & ITEMSIZE_MASK
        return Indices(
            self.bytes[position * size:], size, self.kind & UNSIGNED != 0, self.kind & SWAPPED != 0,
            self.out_of_bounds, self.fill_bytes, self.pad, self.negatives,
        )

    def value(self, Py_ssize_t position) -> int:
        """Return one index as stored: neither wrapped nor clamped."""
        cdef Py_ssize_t size = self.kind & ITEMSIZE_MASK
        raw = bytes(self.bytes[position * size:(position + 1) * size])
        little = (sys.byteorder == "little") != bool(self.kind & SWAPPED)
        return int.from_bytes(
            raw, "little" if little else "big", signed=not self.kind & UNSIGNED
        )


@cython.final
cdef class WorkItem:
    """A work item: bytes [column, column + width) of the slices of `tuples` tuples from `first`."""

    cdef readonly int64_t first, tuples
    cdef readonly Py_ssize_t column, width

    def __cinit__(self, int64_t first, int64_t tuples, Py_ssize_t column, Py_ssize_t width):
        if first < 0 or tuples < 0 or column < 0 or width < 0:
            raise ValueError("a work item is within its slices")
        self.first, self.tuples, self.column, self.width = first, tuples, column, width

    def byte_range(self, Py_ssize_t slice_bytes) -> slice:
        """Return the item's byte range in an output of slices of `slice_bytes` bytes."""
        cdef int64_t start = self.first * slice_bytes + self.column
        return slice(start, start + self.tuples * self.width)


cdef int bind_table(
    RowTable* table, uint8_t[::1] buffer, int64_t tuples, uint64_t factor
) except -1:
    """Bind zeros of 8 bytes for each slot to a table of the rows that tuples select."""
    cdef Py_ssize_t slots = buffer.shape[0] // 8
    if slots & (slots - 1) != 0 or slots <= tuples or slots > <int64_t> 1 << 44 or factor % 2 == 0:
        raise ValueError("a table has a power of two of slots, more than tuples")
    if <size_t> &buffer[0] % 8:
        raise ValueError("the slots of a table are aligned")
    table.keys, table.mask, table.factor = <uint64_t*> &buffer[0], slots - 1, factor
    return 0


cdef void describe_counts(
    Counts* c, int itemsize, const uint8_t* out, Py_ssize_t width
) noexcept:
    """Describe counts of `itemsize` bytes of the slices of `width` bytes from `out` on."""
    cdef Py_ssize_t remaining_width = width
    c.data = NULL
    c.itemsize = itemsize
    c.origin = out
    c.width = width
    c.shift = -1
    c.table.keys = NULL
    if width & (width - 1) == 0:
        while remaining_width:
            remaining_width >>= 1
            c.shift += 1


@cython.final
cdef class UpdateCounts:
    """The numbers of updates of the slices of an output.

    counts: a buffer of zeros. itemsize: bytes of a count, 4 or 8. table: zeros for a table of the
    slices with updates (see `bind_table`), each of which has a slot, and a count for each slot;
    None if each slice has a count. tuples: how many there are at most. factor: of the table.
    """

    cdef uint8_t[::1] counts, table
    cdef readonly int64_t tuples
    cdef uint64_t factor
    cdef int itemsize

    def __cinit__(
        self, uint8_t[::1] counts not None, int itemsize, uint8_t[::1] table=None,
        int64_t tuples=0, uint64_t factor=0,
    ):
        if itemsize not in (4, 8):
            raise ValueError("a count has 4 or 8 bytes")
        self.counts, self.itemsize = counts, itemsize
        self.table, self.tuples, self.factor = table, tuples, factor

    cdef int _bind(
        self, Counts* c, const uint8_t* out, Py_ssize_t nbytes, Py_ssize_t width
    ) except -1:
        """Bind the counts of an output of `nbytes` bytes to its slices of `width` bytes."""
        describe_counts(c, self.itemsize, out, width)
        if self.table is not None:
            bind_table(&c.table, self.table, self.tuples, self.factor)
        if self.counts.shape[0] < self.itemsize * (
            nbytes // width if self.table is None else <int64_t> c.table.mask + 1
        ):
            raise ValueError("the counts are fewer than the slices")
        c.data = &self.counts[0]
        return 0


@cython.final
cdef class UpdateSpec:
    """An update spec: the updates, their reduction ("none" copies them), and its state.

    updates: `pitch` bytes per tuple, in order. name: the element type, for reductions. neutral: the
    neutral element for "neutral", if there is one. count_itemsize: bytes of a count. counts: of all
    slices; if None, each window (a range of the output that is updated in scratch) has its own.
    current: the state, which says what becomes of the current value of a slice with updates:
    "included": updates are reduced into it. "replaced": by a copy of the first update, the one
    whose count is 0. "neutral": by the neutral element, in a pass that precedes the reductions.
    "fill": this pass alone, outside of windows.
    """

    cdef const uint8_t[::1] updates, neutral
    cdef readonly Py_ssize_t pitch
    cdef readonly str current
    cdef int code, op, mean_type, state, count_itemsize
    cdef UpdateCounts counts
    cdef tuple arguments

    def __cinit__(
        self, const uint8_t[::1] updates, Py_ssize_t pitch, str reduction, str name,
        bytes neutral=b"", int count_itemsize=4, str current="included", UpdateCounts counts=None,
    ):
        self.arguments = updates, pitch, reduction, name, neutral, count_itemsize
        self.updates, self.pitch = updates, pitch
        self.current, self.state = current, _CURRENT[current]
        self.count_itemsize, self.counts = count_itemsize, counts
        self.op = _OPS[reduction]
        self.code = _TYPES[name] if self.op else -1
        self.mean_type = self.code if reduction in _MEANS else 0
        if self.state == NEUTRAL or self.state == FILL:
            if pitch > _blocks.LINE or not neutral:
                raise ValueError("only short slices have neutral elements")
            self.neutral = neutral * (_blocks.BLOCK * _blocks.LINE // len(neutral))

    cdef UpdateSpec _in_state(self, str current, UpdateCounts counts):
        return UpdateSpec(*self.arguments, current, counts)

    def exact(self, int threads) -> UpdateSpec:
        """Return the spec, "replaced" if its neutral elements might alter an update: a NaN."""
        cdef NanSearch search
        if self.state != NEUTRAL:
            return self
        search = NanSearch(
            &self.updates[0], self.updates.shape[0], self.code, task_count(threads)
        )
        if float_state() != DEFAULT_STATE or run_released(
            nan_task, &search, search.tasks, threads
        ):
            return self._in_state("replaced", None)
        return self

    @property
    def is_counted(self) -> bool:
        """Whether the updates of each slice are counted."""
        return self.state == REPLACED or (self.mean_type != 0 and self.state != FILL)

    def passes(self, UpdateCounts counts) -> tuple[UpdateSpec, ...]:
        """Return the specs that have the same result without windows, one after the other.

        counts: of all slices, if updates are counted.
        """
        if self.state != NEUTRAL:
            return (self._in_state(self.current, counts),)
        return self._in_state("fill", None), self._in_state("included", counts)

    cdef bint _has_window_counts(self):
        """Return whether each window has its own counts."""
        return self.is_counted and self.counts is None

    def window(self, Py_ssize_t nbytes) -> int:
        """Return the bytes of scratch for a window of `nbytes` bytes and its counts."""
        if not self._has_window_counts():
            return nbytes
        return window_bytes(nbytes) + window_bytes(nbytes // self.pitch * self.count_itemsize)

    cdef int _bind(
        self, Updates* u, int64_t first, int64_t count, const uint8_t[::1] out=None,
        int64_t before=0, bint in_windows=True,
    ) except -1:
        """Bind updates [first, first + count), to be applied to `out`, from byte `before` on.

        Without `out`, they are only permuted. in_windows: whether they are applied in windows.
        """
        if self.updates.shape[0] < (first + count) * self.pitch:
            raise ValueError("the updates buffer is shorter than its shape")
        if in_windows and self.state == FILL:
            raise ValueError("windows have no separate first pass")
        if not in_windows and (self.state == NEUTRAL or self._has_window_counts()):
            raise ValueError("there is no window")
        u.first = &self.updates[0] + first * self.pitch
        u.pitch = self.pitch
        u.code, u.op, u.current, u.mean_type = self.code, self.op, self.state, self.mean_type
        u.neutral = NULL if self.neutral is None else &self.neutral[0]
        u.counts = no_counts()
        if out is None or not self.is_counted:
            return 0
        if self.counts is None:
            describe_counts(&u.counts, self.count_itemsize, NULL, self.pitch)
            return 0
        if (
            self.counts.table is not None
            and self.updates.shape[0] > self.counts.tuples * self.pitch
        ):
            raise ValueError("there are more updates than tuples in the table")
        self.counts._bind(&u.counts, &out[0] - before, before + out.shape[0], self.pitch)
        return 0


@cython.final
cdef class KernelOptions:
    """Kernel options: number of threads, scratch for each of them, and non-temporal stores.

    non_temporal: whether to use such stores, for outputs that exceed the cache. scratch_memory:
    divided evenly among the threads.
    """

    cdef readonly int threads
    cdef readonly bint non_temporal
    cdef uint8_t[::1] buffers

    def __cinit__(self, int threads, bint non_temporal=False, uint8_t[::1] scratch_memory=None):
        if threads < 1:
            raise ValueError("at least one thread is required")
        self.threads, self.non_temporal, self.buffers = threads, non_temporal, scratch_memory

    cdef uint8_t* _buffers(self, Py_ssize_t thread_bytes) except? NULL:
        """Return the scratch, `thread_bytes` for each thread, NULL if there is none."""
        if self.buffers is None:
            return NULL
        if self.buffers.shape[0] < self.threads * thread_bytes:
            raise ValueError("the scratch buffer is too short")
        return &self.buffers[0]


cdef int merge(
    const Py_ssize_t* shape, const Py_ssize_t* strides, int first, int stop, int64_t* sizes,
    int64_t* merged,
) noexcept nogil:
    """Merge adjacent axes that one stride describes, and drop axes of size 1; return the rank."""
    cdef int d, n = 0
    for d in range(first, stop):
        if shape[d] == 1:
            continue
        if n and merged[n - 1] == shape[d] * strides[d]:
            sizes[n - 1] *= shape[d]
            merged[n - 1] = strides[d]
        else:
            sizes[n], merged[n] = shape[d], strides[d]
            n += 1
    return n


cdef inline void extend(
    int64_t* lowest, int64_t* highest, int64_t size, int64_t stride
) noexcept nogil:
    """Extend a range of byte offsets by an axis."""
    lowest[0] += min(0, max(0, size - 1) * stride)
    highest[0] += max(0, max(0, size - 1) * stride)


cdef int64_t complete_space(IndexSpace* space, int64_t per_batch, int64_t repeats) noexcept nogil:
    """Fill in what follows from the axes of a space; return the number of batches."""
    cdef int d
    cdef int64_t highest = 0, batches = 1, lowest, end
    cdef bint is_reused
    space.lowest = 0
    for d in range(space.k):
        extend(&space.lowest, &highest, space.sizes[d], space.strides[d])
    space.span = highest - space.lowest
    lowest, end = space.lowest, highest
    for d in range(space.batch_rank):
        batches *= space.batch_sizes[d]
        extend(&lowest, &end, space.batch_sizes[d], space.batch_strides[d])
    space.per_batch, space.repeats = max(1, per_batch), max(1, repeats)
    is_reused = per_batch >= _blocks.SHORT_BLOCK and per_batch * _blocks.LINE >= space.span
    space.fits_in_cache = end - lowest <= CACHE_BYTES or (
        space.span <= CACHE_BYTES and space.batch_rank != 0 and is_reused
    )
    space.is_one_group = space.repeats == batches
    return batches


@cython.final
cdef class Addressing:
    """How index tuples are converted to byte offsets: the indexed axes and the batch axes.

    sizes, strides (bytes): the indexed axes, one for each component of a tuple. per_batch: tuples
    of a batch. batch_sizes, batch_strides: the batch axes, in row-major order. negatives: whether
    negative indices count from the end. repeats: the number of consecutive batches that share
    tuples, which are stored once.
    """

    cdef IndexSpace space
    cdef int64_t lowest, highest     # the range of the byte offsets of valid tuples
    cdef int64_t batches

    def __cinit__(
        self, tuple sizes, tuple strides, int64_t per_batch, tuple batch_sizes,
        tuple batch_strides, bint negatives, int64_t repeats=1,
    ):
        cdef int j
        self.space.k, self.space.batch_rank = len(sizes), len(batch_sizes)
        if repeats > 1 and self.space.k != 1:
            raise ValueError("tuples of one component can be repeated")
        if self.space.k > _blocks.MAX_RANK or self.space.batch_rank > _blocks.MAX_RANK:
            raise ValueError("more axes than an array can have")
        for j in range(self.space.k):
            self.space.sizes[j] = sizes[j]
            self.space.wraps[j] = self.space.sizes[j] if negatives else 0
            self.space.strides[j] = strides[j]
        for j in range(self.space.batch_rank):
            self.space.batch_sizes[j] = batch_sizes[j]
            self.space.batch_strides[j] = batch_strides[j]
        self.batches = complete_space(&self.space, per_batch, repeats)
        if self.batches % self.space.repeats:
            raise ValueError("groups of batches share tuples")
        self.lowest, self.highest = self.space.lowest, self.space.lowest + self.space.span
        for j in range(self.space.batch_rank):
            extend(
                &self.lowest, &self.highest, self.space.batch_sizes[j], self.space.batch_strides[j]
            )

    cdef int _bind(
        self, Walk* walk, Indices indices, int64_t first, int64_t count
    ) except -1:
        """Bind a walk to tuples [first, first + count)."""
        cdef Py_ssize_t tuple_bytes = self.space.k * (indices.kind & ITEMSIZE_MASK)
        cdef bint are_tuples_shared = self.space.repeats > 1
        cdef int64_t stored_tuples = first + count
        if are_tuples_shared:
            stored_tuples = self.batches // self.space.repeats * self.space.per_batch
        if indices.bytes.shape[0] < stored_tuples * tuple_bytes:
            raise ValueError("the indices buffer is shorter than its shape")
        walk.space = &self.space
        walk.index = &indices.bytes[0] + (0 if are_tuples_shared else first * tuple_bytes)
        walk.kind = indices.kind
        walk.tuple_bytes = tuple_bytes
        walk.first = first
        walk.mode = indices.mode
        walk.redirect_offset = DROPPED
        walk.has_pad, walk.pad = indices.has_pad, indices.pad_bits
        return 0

    cdef int _check_span(
        self, Py_ssize_t nbytes, Py_ssize_t origin, Py_ssize_t begin, Py_ssize_t end
    ) except -1:
        """Raise if bytes [begin, end) of a valid tuple's slice may be outside of the buffer.

        Only a bug in the caller is the cause, never the input.
        """
        if origin + self.lowest + begin < 0 or origin + self.highest + end > nbytes:
            raise ValueError("the data buffer is shorter than its shape")
        return 0


@cython.final
cdef class RadixPartitions:
    """Tuples radix-partitioned by destination, stably, into partitions of 2^shift rows.

    width: bytes of a row. Each GROUP of tuples fills one region of scratch: row indices within
    their partitions, then the updates (for long slices, their positions in the group). ends: where
    each partition of each group ends; the last partition of a group holds the dropped tuples.
    """

    cdef Sorted sorted
    cdef int64_t rows, first, count
    cdef readonly int64_t partitions
    cdef uint8_t[::1] scratch
    cdef uint32_t[::1] ends

    def __cinit__(
        self, int64_t rows, Py_ssize_t width, int shift, uint8_t[::1] scratch, uint32_t[::1] ends
    ):
        if not 0 <= shift <= 32 or width < 1 or rows < 1:
            raise ValueError("rows are numbered by 32 bits within their partition")
        self.rows = rows
        self.partitions = ((rows - 1) >> shift) + 1
        self.scratch, self.ends = scratch, ends
        self.sorted.width = width
        self.sorted.shift = shift
        self.sorted.partitions = self.partitions + 1
        self.sorted.regions = &scratch[0]
        self.sorted.ends = &ends[0]

    def byte_range(self, int64_t first, int64_t stop) -> slice:
        """Return the byte range of partitions [first, stop) in the output."""
        cdef int64_t end = min(self.rows, stop << self.sorted.shift)
        return slice((first << self.sorted.shift) * self.sorted.width, end * self.sorted.width)


cdef inline int64_t count_pieces(const View* view, Py_ssize_t nbytes) noexcept nogil:
    """Return how many strips an array is copied in, or how many elements."""
    cdef Strips strips = Strips(view, 0, 0, 0, NULL, NULL, 0)
    return count_strips(&strips) if has_strips(view) else nbytes // max(1, view.itemsize)


@cython.final
cdef class Layout:
    """The shape, strides (bytes) and itemsize of an array.

    pieces: what `copy_pieces` copies it in: strips if its last stride is large, else elements.
    """

    cdef View view
    cdef readonly int64_t pieces
    cdef int64_t lowest, highest
    cdef Py_ssize_t nbytes

    def __cinit__(self, tuple sizes, tuple strides, Py_ssize_t itemsize):
        cdef int d
        self.view.rank = len(sizes)
        self.view.itemsize = itemsize
        self.nbytes = itemsize
        if not 1 <= self.view.rank <= _blocks.MAX_RANK:
            raise ValueError("a layout has 1 to 64 axes")
        for d in range(self.view.rank):
            self.view.sizes[d] = sizes[d]
            self.view.strides[d] = strides[d]
            self.nbytes *= self.view.sizes[d]
            extend(&self.lowest, &self.highest, self.view.sizes[d], self.view.strides[d])
        self.pieces = count_pieces(&self.view, self.nbytes)

    @property
    def may_overlap(self) -> bool:
        """Whether elements may share memory (see `may_overlap_itself`)."""
        return may_overlap_itself(&self.view)


cdef void fill_panels(
    Panels* p, int rank, int64_t data_rows, const Py_ssize_t* shape, const Py_ssize_t* strides,
    int axis, Py_ssize_t itemsize, bint negatives, Py_ssize_t tile_bytes, int64_t tile_rows,
    int threads,
) noexcept nogil:
    """Describe elements along an axis that is not the last as panels, divided into tiles.

    data_rows: the size of the axis in data. shape: of indices. strides: of data. Tiles have about
    `tile_bytes` bytes in `tile_rows` rows of data, and there are at least `threads`, unless these
    would have less than four cache lines of a row.
    """
    cdef int64_t inner_sizes[_blocks.MAX_RANK]
    cdef int64_t inner_strides[_blocks.MAX_RANK]
    cdef int d, inner, outer
    cdef int64_t step = 1, line_items = max(1, _blocks.LINE // itemsize), panels = 1
    inner = merge(shape, strides, axis + 1, rank, inner_sizes, inner_strides)
    outer = merge(shape, strides, 0, axis, p.sizes, p.data_strides)
    p.rank = outer + inner - 1
    for d in range(inner - 1):
        p.sizes[outer + d], p.data_strides[outer + d] = inner_sizes[d], inner_strides[d]
    for d in reversed(range(inner)):
        if d < inner - 1:
            p.index_strides[outer + d] = step
        step *= inner_sizes[d]
    p.index_rows, p.index_row_stride = shape[axis], step
    step *= shape[axis]
    for d in reversed(range(outer)):
        p.index_strides[d] = step
        step *= p.sizes[d]
    p.itemsize = itemsize
    p.data_rows, p.row_stride = data_rows, strides[axis]
    p.columns, p.column_stride = inner_sizes[inner - 1], inner_strides[inner - 1]
    p.wrap = p.data_rows if negatives else 0
    p.tile = min(
        min(max(1, p.columns), _blocks.BLOCK),
        max(4 * line_items, tile_bytes // max(1, tile_rows * itemsize)),
    )
    for d in range(p.rank):
        panels *= p.sizes[d]
    if panels < threads:
        p.tile = min(p.tile, max(4 * line_items, (p.columns * panels + threads - 1) // threads))
    if p.tile < p.columns and p.tile > _blocks.LINE:
        p.tile = p.tile // _blocks.LINE * _blocks.LINE
    p.tiles = (p.columns + p.tile - 1) // p.tile
    p.bands = 1


cdef inline int64_t count_units(const Panels* p) noexcept nogil:
    cdef int64_t units = p.tiles * p.bands
    cdef int d
    for d in range(p.rank):
        units *= p.sizes[d]
    return units


cdef inline Py_ssize_t packed_bytes(const Panels* p) noexcept nogil:
    """Return the bytes of a packed tile."""
    return p.data_rows * p.tile * p.itemsize


cdef inline bint are_tiles_packed(const Panels* p, Py_ssize_t tile_bytes) noexcept nogil:
    """Return whether a gather is faster from packed tiles."""
    return packed_bytes(p) <= 2 * tile_bytes and 2 * p.index_rows >= p.data_rows and (
        p.row_stride != p.tile * p.itemsize or p.column_stride != p.itemsize
    )


@cython.final
cdef class Grid:
    """An elements operator along an axis that is not the last, as units (see loops/panels.pxd).

    data, indices: their shapes. strides (bytes): of data. tile_bytes, threads: see `fill_panels`.
    is_packing_faster: whether gathers are. scratch: bytes of a packed tile, 0 if it exceeds the
    cache. unit_bytes: estimated bytes that one unit moves.
    """

    cdef Panels p
    cdef readonly int64_t units, unit_bytes
    cdef readonly Py_ssize_t scratch
    cdef readonly bint is_packing_faster
    cdef int64_t lowest, highest, last_index
    cdef tuple arguments

    def __cinit__(
        self, tuple data, tuple indices, tuple strides, int axis, Py_ssize_t itemsize,
        bint negatives, Py_ssize_t tile_bytes, int threads=1,
    ):
        cdef int d, rank = len(data)
        cdef Py_ssize_t shape[_blocks.MAX_RANK]
        cdef Py_ssize_t steps[_blocks.MAX_RANK]
        if rank > _blocks.MAX_RANK or rank != len(indices) or rank != len(strides):
            raise ValueError("more axes than an array can have")
        self.last_index = 1
        for d in range(rank):
            shape[d], steps[d] = indices[d], strides[d]
            if d > axis:
                self.last_index *= shape[d]
        if not 0 <= axis < rank or self.last_index == 1:
            raise ValueError("the indexed axis is not the last")
        self.arguments = data, indices, strides, axis, itemsize, negatives, tile_bytes
        fill_panels(
            &self.p, rank, data[axis], shape, steps, axis, itemsize, negatives, tile_bytes,
            data[axis], threads,
        )
        self.units = count_units(&self.p)
        self.is_packing_faster = are_tiles_packed(&self.p, tile_bytes)
        self.scratch = packed_bytes(&self.p) if packed_bytes(&self.p) <= 2 * tile_bytes else 0
        self.unit_bytes = self.p.tile * self.p.index_rows * (itemsize + 8)
        if self.is_packing_faster:
            self.unit_bytes += self.scratch
        self.last_index = (self.p.index_rows - 1) * self.p.index_row_stride + self.p.columns - 1
        extend(&self.lowest, &self.highest, self.p.data_rows, self.p.row_stride)
        extend(&self.lowest, &self.highest, self.p.columns, self.p.column_stride)
        for d in range(self.p.rank):
            self.last_index += (self.p.sizes[d] - 1) * self.p.index_strides[d]
            extend(&self.lowest, &self.highest, self.p.sizes[d], self.p.data_strides[d])

    def divided(self, int threads) -> Grid:
        """Return the grid with at least `threads` units, if full cache lines allow it."""
        return Grid(*self.arguments, threads)

    @property
    def has_contiguous_rows(self) -> bool:
        """Whether the elements of a row of a panel are contiguous."""
        return self.p.column_stride == self.p.itemsize

    cdef int _bind(
        self, Units* c, Indices indices, int64_t unit, int64_t stop, Py_ssize_t scratch,
        KernelOptions options,
    ) except -1:
        """Bind units [unit, stop) to their indices and `scratch` bytes per thread."""
        if (
            indices.bytes.shape[0] <= self.last_index * (indices.kind & ITEMSIZE_MASK)
            or not 0 <= unit <= stop <= self.units
        ):
            raise ValueError("the indices buffer is shorter than its shape")
        c.p = &self.p
        c.index = &indices.bytes[0]
        c.kind = indices.kind
        c.mode = indices.mode
        c.has_pad, c.pad = indices.has_pad, indices.pad_bits
        c.first = unit
        c.buffers = options._buffers(scratch)
        c.scratch = scratch
        c.non_temporal = options.non_temporal
        return 0

    cdef int _check_span(
        self, Py_ssize_t data_bytes, Py_ssize_t origin, Py_ssize_t element_bytes
    ) except -1:
        """Raise if units may access bytes beyond the buffers of data or of the indices' shape."""
        if origin + self.lowest < 0 or origin + self.highest + self.p.itemsize > data_bytes:
            raise ValueError("the data buffer is shorter than its shape")
        if element_bytes <= self.last_index * self.p.itemsize:
            raise ValueError("a buffer of the indices' shape is shorter than it")
        return 0


@cython.final
cdef class Boxes:
    """Linear row indices over `sizes`, partitioned into boxes of `steps`, smaller at the ends."""

    cdef Partitioning partitioning
    cdef int64_t rows

    def __cinit__(self, tuple sizes, tuple steps):
        cdef int d
        cdef object partition_rows = 1, partitions = 1, rows = 1
        if not 0 < len(sizes) == len(steps) <= _blocks.MAX_RANK:
            raise ValueError("a box has a step along each axis")
        self.partitioning.rank = len(sizes)
        for d, (size, step) in enumerate(zip(sizes, steps)):
            if not 0 < step <= size:
                raise ValueError("a box is within the rows")
            self.partitioning.sizes[d], self.partitioning.steps[d] = size, step
            partition_rows *= step
            partitions *= -(-size // step)
            rows *= size
        if partitions > 65536 or rows > PY_SSIZE_T_MAX:
            raise ValueError("more rows than the partitions hold")
        self.partitioning.partitions = partitions
        self.partitioning.partition_rows = partition_rows
        self.rows = rows
        is_power_of_two = len(sizes) == 1 and partition_rows & (partition_rows - 1) == 0
        self.partitioning.shift = partition_rows.bit_length() - 1 if is_power_of_two else -1

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.partitioning.partitions

    @property
    def row_bytes(self) -> int:
        """The itemsize of row indices in a partition."""
        return 8 if self.partitioning.partition_rows > <int64_t> 1 << 32 else 4
