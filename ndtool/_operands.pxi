# The kernels' arguments other than buffers: index tuples (Addressing, Indices, WorkItem), updates
# (UpdateSpec, UpdateCounts, RadixPartitions), the elements of an array (Layout, Grid, Boxes), and
# KernelOptions.


@cython.final
cdef class Indices:
    """Contiguous, row-major indices of an integer type.

    out_of_bounds: the out-of-bounds mode. filling: for mode "fill", the fill value, repeated for as
    much of a slice as a work item has. below: if not 0, the indices are validated: all of them are
    in 0..below-1, and no other process can write to their memory, so no loop checks them again.
    pad: an index equal to it selects nothing. negatives: whether negative indices are valid.
    """

    cdef const uint8_t[::1] bytes, filling
    cdef int kind, mode
    cdef readonly str out_of_bounds
    cdef int64_t bound
    cdef readonly object pad
    cdef readonly bint negatives
    cdef bint pads
    cdef int64_t pad_bits

    def __cinit__(
        self, const uint8_t[::1] buffer, int itemsize, bint unsigned, bint swapped,
        str out_of_bounds="error", const uint8_t[::1] filling=None, int64_t below=0,
        object pad=None, bint negatives=True,
    ):
        if itemsize not in (1, 2, 4, 8):
            raise ValueError("an index has 1, 2, 4 or 8 bytes")
        if below and (
            itemsize not in (2, 4) or unsigned != (itemsize == 2) or swapped
            or below > <int64_t> 1 << (16 if itemsize == 2 else 31)
        ):
            raise ValueError("validated indices must be uint16 or int32, in native order")
        self.bytes = buffer
        self.kind = itemsize | (UNSIGNED if unsigned else 0) | (SWAPPED if swapped else 0)
        self.out_of_bounds, self.mode = out_of_bounds, _MODES[out_of_bounds]
        self.filling = filling
        self.bound = below
        if below:
            self.kind |= VALIDATED
        self.pad, self.negatives = pad, negatives
        if pad is not None:    # as an exact integer: -1 equals no unsigned index
            self.pads = 0 <= pad < 1 << 64 if unsigned else -(1 << 63) <= pad < 1 << 63
            self.pad_bits = <int64_t> <uint64_t> (pad & 0xFFFFFFFFFFFFFFFF) if self.pads else 0
        if self.pads or (not negatives and out_of_bounds != "error"):
            self.kind |= SPECIAL

    @property
    def skips(self) -> bool:
        """Whether tuples may select nothing."""
        return self.pads or self.mode == REDIRECT

    cdef const uint8_t* _filling(self, Py_ssize_t nbytes) except? NULL:
        """Return the fill value for tuples that select nothing; NULL if all tuples select."""
        if self.mode != REDIRECT and not self.pads:
            return NULL
        if self.filling is None or self.filling.shape[0] < nbytes:
            raise ValueError("the fill value is shorter than a slice")
        return &self.filling[0]

    @property
    def itemsize(self) -> int:
        """Bytes per index."""
        return self.kind & BYTES

    def since(self, Py_ssize_t number) -> Indices:
        """Return the indices from `number` on, without a copy."""
        cdef Py_ssize_t size = self.kind & BYTES
        return Indices(
            self.bytes[number * size:], size, self.kind & UNSIGNED != 0, self.kind & SWAPPED != 0,
            self.out_of_bounds, self.filling, self.bound, self.pad, self.negatives,
        )

    def value(self, Py_ssize_t number) -> int:
        """Return one index as stored: neither wrapped nor clamped."""
        cdef Py_ssize_t size = self.kind & BYTES
        raw = bytes(self.bytes[number * size:(number + 1) * size])
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

    def byte_range(self, Py_ssize_t run) -> slice:
        """Return the item's byte range in an output of contiguous slices of `run` bytes."""
        cdef int64_t at = self.first * run + self.column
        return slice(at, at + self.tuples * self.width)


@cython.final
cdef class UpdateCounts:
    """The number of updates of each slice of an output.

    counts: zeros at first, of `bytes_each` bytes (1: a flag, 4 or 8); None if each window (a part
    of the output that receives all its updates at once) has counts of its own. copies_first:
    whether the first update of a slice replaces its current value. has_totals: whether the upper
    halves of counts of 8 bytes are the counts after all updates, from a first pass over them.
    """

    cdef uint8_t[::1] counts
    cdef readonly int bytes_each
    cdef readonly bint copies_first
    cdef bint has_totals

    def __cinit__(
        self, uint8_t[::1] counts, int bytes_each, bint copies_first, bint has_totals=False
    ):
        if bytes_each not in (1, 4, 8):
            raise ValueError("a count has 1, 4 or 8 bytes")
        if has_totals and (counts is None or bytes_each != 8):
            raise ValueError("a count has 8 bytes, if its upper half is a total")
        self.counts, self.bytes_each, self.copies_first = counts, bytes_each, copies_first
        self.has_totals = has_totals

    cdef int _bind(
        self, Counts* c, const uint8_t* out, Py_ssize_t nbytes, Py_ssize_t width
    ) except -1:
        """Bind the counts of an output of `nbytes` bytes to its slices of `width` bytes."""
        self._describe(c, out, width)
        c.slices = nbytes // width
        c.data = NULL
        if c.per_window:
            return 0
        if self.counts.shape[0] < (nbytes // width) * self.bytes_each:
            raise ValueError("the counts are fewer than the slices")
        c.data = &self.counts[0]
        return 0

    cdef void _describe(self, Counts* c, const uint8_t* out, Py_ssize_t width) noexcept:
        """Describe the counts of slices of `width` bytes from `out` on."""
        cdef Py_ssize_t bits = width
        c.per_window = self.counts is None
        c.has_totals = self.has_totals
        c.bytes_each = self.bytes_each
        c.origin = out
        c.width = width
        c.shift = -1
        if width & (width - 1) == 0:
            while bits:
                bits >>= 1
                c.shift += 1
        c.copies_first = self.copies_first


@cython.final
cdef class UpdateSpec:
    """An update spec: the updates and their reduction ("none" copies them).

    name: the element type, for reductions. updates: `pitch` bytes per tuple, in order. counts: of
    the updates of each slice, for reductions that need them. neutral: the reduction's neutral
    element, repeated for a slice; it replaces current values that the result does not include.
    first_pass: a first pass over the tuples, which writes neutral elements or counts totals, and
    applies no update.
    """

    cdef const uint8_t[::1] updates
    cdef Py_ssize_t pitch
    cdef int code, op, means
    cdef UpdateCounts counts
    cdef const uint8_t[::1] neutral

    def __cinit__(
        self, const uint8_t[::1] updates, Py_ssize_t pitch, str reduction, str name,
        UpdateCounts counts=None, const uint8_t[::1] neutral=None, bint first_pass=False,
    ):
        self.updates = updates
        self.pitch = pitch
        self.counts = counts
        self.op = _OPS[reduction]
        self.code = _TYPES[name] if self.op else -1
        self.means = self.code if reduction == "mean" else 0
        if self.op == ADD or self.op == SUB or self.op == MUL:
            self.code = _UNSIGNED.get(self.code, self.code)
        if first_pass:
            self.op = FIRST_PASS
        self.neutral = neutral
        if neutral is not None and neutral.shape[0] < pitch:
            raise ValueError("the neutral elements are shorter than a slice")
        if first_pass and (counts is None or not counts.has_totals) == (neutral is None):
            raise ValueError("a first pass writes neutral elements or counts totals")
        if neutral is not None and not first_pass and (counts is None or counts.counts is not None):
            raise ValueError("neutral elements are for windows")

    def window(self, Py_ssize_t nbytes) -> int:
        """Return the bytes of scratch for a window of `nbytes` bytes and its counts."""
        if self.counts is None or self.counts.counts is not None:
            return nbytes
        return window_bytes(nbytes) + window_bytes(nbytes // self.pitch * self.counts.bytes_each)

    cdef int _bind(
        self, Updates* u, int64_t first, int64_t count, const uint8_t[::1] out=None,
        int64_t before=0, bint first_pass=False,
    ) except -1:
        """Bind updates [first, first + count), to be applied to `out`, from byte `before` on.

        Without `out`, they are only permuted. first_pass: whether this may be a first pass.
        """
        if self.op == FIRST_PASS and not first_pass:
            raise ValueError("windows have no separate first pass")
        if self.updates.shape[0] < (first + count) * self.pitch:
            raise ValueError("the updates buffer is shorter than its shape")
        u.first = &self.updates[0] + first * self.pitch
        u.pitch = self.pitch
        u.code = self.code
        u.op = self.op
        u.means = self.means
        u.neutral = NULL
        if self.neutral is not None:
            u.neutral = &self.neutral[0]
        u.counts.data = NULL
        u.counts.per_window = u.counts.has_totals = False
        if self.counts is not None and out is not None:
            self.counts._bind(&u.counts, &out[0] - before, before + out.shape[0], self.pitch)
        return 0


@cython.final
cdef class KernelOptions:
    """Kernel options: number of threads, scratch for each of them, and non-temporal stores.

    streamed: non-temporal stores, for outputs that exceed the cache. scratch_memory: divided
    evenly among the threads.
    """

    cdef readonly int threads
    cdef readonly bint streamed
    cdef uint8_t[::1] buffers

    def __cinit__(self, int threads, bint streamed=False, uint8_t[::1] scratch_memory=None):
        if threads < 1:
            raise ValueError("at least one thread is required")
        self.threads, self.streamed, self.buffers = threads, streamed, scratch_memory

    cdef uint8_t* _buffers(self, Py_ssize_t each) except? NULL:
        """Return the scratch, `each` bytes per thread, NULL if there is none."""
        if self.buffers is None:
            return NULL
        if self.buffers.shape[0] < self.threads * each:
            raise ValueError("the scratch buffer is too short")
        return &self.buffers[0]


@cython.final
cdef class Addressing:
    """How index tuples become byte offsets: k components with sizes and strides, in batches.

    sizes, strides: length of and bytes per step along each indexed axis. per_batch: tuples of
    one batch. batch_sizes, batch_strides: the batch axes, in row-major order. negatives: whether
    negative indices count from the end. repeats: how many consecutive batches share their tuples,
    which are stored once.
    """

    cdef Nd nd
    cdef int64_t lowest, highest     # range of the byte offsets of valid tuples
    cdef int64_t batches

    def __cinit__(
        self, tuple sizes, tuple strides, int64_t per_batch, tuple batch_sizes,
        tuple batch_strides, bint negatives, int64_t repeats=1,
    ):
        cdef int j
        cdef bint often
        self.nd.k = len(sizes)
        self.nd.per_batch = max(per_batch, 1)
        self.nd.batch_rank = len(batch_sizes)
        self.nd.repeats = max(repeats, 1)
        self.batches = 1
        if repeats > 1 and self.nd.k != 1:
            raise ValueError("tuples of one component can be repeated")
        if self.nd.k > _blocks.MOST_RANK or self.nd.batch_rank > _blocks.MOST_RANK:
            raise ValueError("more axes than an array can have")
        for j in range(self.nd.k):
            self.nd.sizes[j] = sizes[j]
            self.nd.wraps[j] = self.nd.sizes[j] if negatives else 0
            self.nd.strides[j] = strides[j]
            self._extend(self.nd.sizes[j], self.nd.strides[j])
        self.nd.lowest = self.lowest
        self.nd.span = self.highest - self.lowest
        often = per_batch >= _blocks.BLOCK and per_batch * _blocks.LINE >= self.nd.span
        self.nd.in_cache = self.nd.span <= CACHED and (self.nd.batch_rank == 0 or often)
        for j in range(self.nd.batch_rank):
            self.nd.batch_sizes[j] = batch_sizes[j]
            self.nd.batch_strides[j] = batch_strides[j]
            self.batches *= self.nd.batch_sizes[j]
            self._extend(self.nd.batch_sizes[j], self.nd.batch_strides[j])
        if self.batches % self.nd.repeats:
            raise ValueError("groups of batches share tuples")
        self.nd.one_group = self.nd.repeats == self.batches

    cdef void _extend(self, int64_t size, int64_t stride):
        if size > 0:
            self.lowest += min(0, (size - 1) * stride)
            self.highest += max(0, (size - 1) * stride)

    cdef int _bind(
        self, Walk* walk, Indices indices, int64_t first, int64_t count
    ) except -1:
        """Bind a walk to tuples [first, first + count)."""
        cdef Py_ssize_t tuple_bytes = self.nd.k * (indices.kind & BYTES)
        cdef bint shared = self.nd.repeats > 1
        cdef int64_t stored = first + count
        if shared:
            stored = self.batches // self.nd.repeats * self.nd.per_batch
        if indices.bytes.shape[0] < stored * tuple_bytes:
            raise ValueError("the indices buffer is shorter than its shape")
        if indices.bound and (self.nd.k != 1 or indices.bound > self.nd.sizes[0]):
            raise ValueError("the indices were validated for other rows")
        walk.nd = &self.nd
        walk.index = &indices.bytes[0] + (0 if shared else first * tuple_bytes)
        walk.kind = indices.kind
        walk.tuple_bytes = tuple_bytes
        walk.first = first
        walk.mode = indices.mode
        walk.redirect = DROPPED
        walk.pads, walk.pad = indices.pads, indices.pad_bits
        return 0

    cdef int _check_span(
        self, Py_ssize_t nbytes, Py_ssize_t origin, Py_ssize_t begin, Py_ssize_t end
    ) except -1:
        """Raise if bytes [begin, end) of a valid tuple's slice may be outside of the buffer.

        Only a bug in the caller leads here, never the input.
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


@cython.final
cdef class Layout:
    """An array's shape, byte strides and itemsize."""

    cdef View view
    cdef readonly int64_t strips     # number of strips for copy_strips; 0 if there is one axis
    cdef int closest
    cdef int64_t lowest, highest
    cdef Py_ssize_t nbytes

    def __cinit__(self, tuple sizes, tuple strides, Py_ssize_t itemsize):
        cdef int d
        self.view.rank = len(sizes)
        self.view.itemsize = itemsize
        self.nbytes = itemsize
        if not 1 <= self.view.rank <= _blocks.MOST_RANK:
            raise ValueError("a layout has 1 to 64 axes")
        for d in range(self.view.rank):
            self.view.sizes[d] = sizes[d]
            self.view.strides[d] = strides[d]
            self.nbytes *= self.view.sizes[d]
            self.lowest += min(0, (self.view.sizes[d] - 1) * self.view.strides[d])
            self.highest += max(0, (self.view.sizes[d] - 1) * self.view.strides[d])
            if d + 1 < self.view.rank and abs(strides[d]) < abs(strides[self.closest]):
                self.closest = d
        if self.view.rank > 1:
            self.strips = strips_of(&self.view, self.closest)

    cdef int _bind(self, Py_ssize_t nbytes, Py_ssize_t origin) except -1:
        if origin + self.lowest < 0 or origin + self.highest + self.view.itemsize > nbytes:
            raise ValueError("the data buffer is shorter than its shape")
        return 0


@cython.final
cdef class Grid:
    """An elements operator along an axis that is not the last, as units (see loops/panels.pxd).

    sizes, index_strides (elements), data_strides (bytes): the axes that enumerate the panels.
    along: the indexed axis (length of indices, stride in elements, size of data, stride in bytes).
    across: the last axis (columns, bytes per column, columns of a unit).
    band: (first row, rows, bytes per output row). Data has one panel; a scatter updates only
    this band of its rows, in packed tiles. The output's rows have this stride.
    """

    cdef Panels p
    cdef readonly int64_t units
    cdef int64_t lowest, highest, last_index

    def __cinit__(
        self, tuple sizes, tuple index_strides, tuple data_strides, tuple along, tuple across,
        Py_ssize_t itemsize, bint negatives, tuple band=None,
    ):
        cdef int d
        self.p.rank = len(sizes)
        if self.p.rank > _blocks.MOST_RANK:
            raise ValueError("more axes than an array can have")
        self.p.itemsize = itemsize
        self.p.length, self.p.index_step, self.p.size, self.p.step = along
        self.p.columns, self.p.column_stride, self.p.tile = across
        self.p.wrap = self.p.size if negatives else 0
        self.p.low, self.p.band, self.p.pitch = band or (0, self.p.size, 0)
        if band is not None and (
            self.p.rank or self.p.low < 0 or self.p.band < 1
            or self.p.low + self.p.band > self.p.size or self.p.pitch < self.p.columns * itemsize
        ):
            raise ValueError("a band is some rows of one panel")
        if not 1 <= self.p.tile <= _blocks.BLOCK:
            raise ValueError("a unit has 1 to 512 columns")
        self.p.tiles = (self.p.columns + self.p.tile - 1) // self.p.tile
        self.units = self.p.tiles
        self.last_index = (self.p.length - 1) * self.p.index_step + self.p.columns - 1
        self._extend(self.p.size, self.p.step)
        self._extend(self.p.columns, self.p.column_stride)
        for d in range(self.p.rank):
            self.p.sizes[d] = sizes[d]
            self.p.index_strides[d] = index_strides[d]
            self.p.data_strides[d] = data_strides[d]
            self.units *= self.p.sizes[d]
            self.last_index += (self.p.sizes[d] - 1) * self.p.index_strides[d]
            self._extend(self.p.sizes[d], self.p.data_strides[d])

    cdef void _extend(self, int64_t size, int64_t stride):
        self.lowest += min(0, (size - 1) * stride)
        self.highest += max(0, (size - 1) * stride)

    cdef Py_ssize_t _packed_bytes(self):
        """Return the bytes of a packed tile."""
        return packed_rows(&self.p) * self.p.tile * self.p.itemsize

    cdef int _bind(
        self, Units* c, Indices indices, int64_t unit, int64_t stop, Py_ssize_t scratch,
        KernelOptions options,
    ) except -1:
        """Bind units [unit, stop) to their indices and `scratch` bytes per thread."""
        if (
            indices.bytes.shape[0] <= self.last_index * (indices.kind & BYTES)
            or not 0 <= unit <= stop <= self.units
        ):
            raise ValueError("the indices buffer is shorter than its shape")
        if indices.bound > self.p.size:
            raise ValueError("the indices were validated for other rows")
        c.p = &self.p
        c.index = &indices.bytes[0]
        c.kind = indices.kind
        c.mode = indices.mode
        c.pads, c.pad = indices.pads, indices.pad_bits
        c.first = unit
        c.buffers = options._buffers(scratch)
        c.scratch = scratch
        c.streamed = options.streamed
        return 0

    cdef int _check_span(
        self, Py_ssize_t data_bytes, Py_ssize_t origin, Py_ssize_t element_bytes
    ) except -1:
        """Raise if units may access bytes beyond a buffer of the shape of data or of indices."""
        if origin + self.lowest < 0 or origin + self.highest + self.p.itemsize > data_bytes:
            raise ValueError("the data buffer is shorter than its shape")
        if element_bytes <= self.last_index * self.p.itemsize:
            raise ValueError("a buffer of the indices' shape is shorter than it")
        return 0

    cdef Py_ssize_t _output_bytes(self, int64_t rows):
        """Return the bytes that this many rows of a panel span in the output."""
        return (rows - 1) * self.p.pitch + self.p.columns * self.p.itemsize


@cython.final
cdef class Boxes:
    """Linear row indices over `sizes`, partitioned into boxes of `steps`, smaller at the ends."""

    cdef Partitioning partitioning
    cdef int64_t rows

    def __cinit__(self, tuple sizes, tuple steps):
        cdef int d
        cdef object partition_rows = 1, partitions = 1, rows = 1
        if not 0 < len(sizes) == len(steps) <= _blocks.MOST_RANK:
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
        power = len(sizes) == 1 and partition_rows & (partition_rows - 1) == 0
        self.partitioning.shift = partition_rows.bit_length() - 1 if power else -1

    @property
    def partitions(self) -> int:
        """The number of partitions."""
        return self.partitioning.partitions

    @property
    def row_bytes(self) -> int:
        """The bytes of a row's index in its partition."""
        return 8 if self.partitioning.partition_rows > <int64_t> 1 << 32 else 4
