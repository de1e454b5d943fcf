# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Loops over bytes, checked and parallel; every door to them, as there is but one extension.

What belongs together comes as one object: which tuples (Addressing, Indices, Piece), which change
(Change), how it is done (How). Every function compares the sizes of its buffers once, here at the
door; inside, nothing allocates or raises. A non-zero return means that an index is out of bounds:
nothing of its block was read or written, and `find` tells which one it is.
"""

import os
import sys

cimport cython
from cpython.pyport cimport PY_SSIZE_T_MAX
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t

from ndtool.loops cimport blocks as _blocks, pages as _pages, parts as _parts
from ndtool.loops.arithmetic cimport (
    ADD, BFLOAT16, BOOL, COMPLEX64, COMPLEX128, FLOAT16, FLOAT32, FLOAT64, INT8, INT16, INT32,
    INT64, MAX, MIN, MUL, UINT8, UINT16, UINT32, UINT64,
)
from ndtool.loops.blocks cimport NEAR, NOWHERE, Nd, Walk, column_of
from ndtool._endings cimport nd_end_on, nd_forget, nd_remember, nd_settle
from ndtool.loops.checks cimport Check, check_part, check_range, nearness
from ndtool.loops.deals cimport NARROW, Cut, deal_rows, mark_rows
from ndtool.loops.gathers cimport Gather, GatherViews, gather_part, gather_views_part
from ndtool.loops.indices cimport (
    BYTES, CHECKED, CLIP, ELSEWHERE, REFUSE, SWAPPED, UNSIGNED, WRAP, widened,
)
from ndtool.loops.memory cimport swap_units, write_window
from ndtool.loops.numbers cimport (
    Numbering, gather_numbered_part, goes_by_numbers, number_part,
)
from ndtool.loops.pages cimport will_need_range
from ndtool.loops.panels cimport Panels, Units, gather_unit, room_rows, scatter_unit
from ndtool.loops.parts cimport (
    Apply, Partition, Sorted, apply_part, partition_part, region_bytes, room_bytes,
)
from ndtool.loops.runs cimport (
    BY_BATCHES, BY_COLUMNS, BY_COPIES, BY_RUNS, Lines, Scatter, Updates, lines_part,
    scatter_part,
)
from ndtool.loops.share cimport share
from ndtool.loops.startable cimport enter, leave, prepare
from ndtool.loops.views cimport (
    Spread, Strips, View, copy_strip, copy_view, spread_part, strips_of,
)

# What the callers share with the loops.
BLOCK, GROUP, LINE, MOST_RANK = _blocks.BLOCK, _parts.GROUP, _blocks.LINE, _blocks.MOST_RANK
PAGE, ASKED = _pages.PAGE, _pages.ASKED
MARKED = NARROW

_TYPES = {
    "bool": BOOL, "int8": INT8, "int16": INT16, "int32": INT32, "int64": INT64, "uint8": UINT8,
    "uint16": UINT16, "uint32": UINT32, "uint64": UINT64, "float16": FLOAT16,
    "bfloat16": BFLOAT16, "float32": FLOAT32, "float64": FLOAT64, "complex64": COMPLEX64,
    "complex128": COMPLEX128,
}
_RULES = {"error": REFUSE, "clip": CLIP, "wrap": WRAP, "fill": ELSEWHERE, "drop": ELSEWHERE}
_OPS = {"none": 0, "add": ADD, "mul": MUL, "max": MAX, "min": MIN}

prepare(os.fsencode(__file__))


cdef inline int64_t shares(int threads) noexcept nogil:
    """Return into how many parts work is cut: a thread that is held up leaves them to others."""
    return 16 * threads if threads > 1 else 1


@cython.final
@cython.auto_pickle(False)
cdef class Indices:
    """Stored indices of an integer type, in row-major order without gaps.

    rule: what becomes of those out of bounds. filling: for "fill", elements of what is gathered
    instead, as many as a piece of a run has. below: where it is not 0, all are known to be within
    0..below-1, and stand where nobody else writes: none is checked again.
    """

    cdef const uint8_t[::1] bytes, filling
    cdef int kind, code
    cdef readonly str rule
    cdef int64_t below

    def __cinit__(
        self, const uint8_t[::1] buffer, int itemsize, bint unsigned, bint swapped,
        str rule="error", const uint8_t[::1] filling=None, int64_t below=0,
    ):
        if itemsize not in (1, 2, 4, 8):
            raise ValueError("an index has 1, 2, 4 or 8 bytes")
        if below and (
            itemsize not in (2, 4) or unsigned != (itemsize == 2) or swapped
            or below > <int64_t> 1 << (16 if itemsize == 2 else 31)
        ):
            raise ValueError("what is not checked again is uint16 or int32, in native order")
        self.bytes = buffer
        self.kind = itemsize | (UNSIGNED if unsigned else 0) | (SWAPPED if swapped else 0)
        self.rule, self.code = rule, _RULES[rule]
        self.filling = filling
        self.below = below
        if below:
            self.kind |= CHECKED

    cdef const uint8_t* _filling(self, Py_ssize_t nbytes) except? NULL:
        """Return what is gathered instead of a run out of bounds, NULL where nothing is."""
        if self.code != ELSEWHERE:
            return NULL
        if self.filling is None or self.filling.shape[0] < nbytes:
            raise ValueError("the filling is shorter than a run")
        return &self.filling[0]

    @property
    def itemsize(self) -> int:
        """Bytes of an index."""
        return self.kind & BYTES

    def since(self, Py_ssize_t number) -> Indices:
        """Return the same indices from `number` on."""
        cdef Py_ssize_t size = self.kind & BYTES
        return Indices(
            self.bytes[number * size:], size, self.kind & UNSIGNED != 0, self.kind & SWAPPED != 0,
            self.rule, self.filling, self.below,
        )

    def value(self, Py_ssize_t number) -> int:
        """Return an index as it is stored, whatever its size."""
        cdef Py_ssize_t size = self.kind & BYTES
        raw = bytes(self.bytes[number * size:(number + 1) * size])
        little = (sys.byteorder == "little") != bool(self.kind & SWAPPED)
        return int.from_bytes(
            raw, "little" if little else "big", signed=not self.kind & UNSIGNED
        )


@cython.final
@cython.auto_pickle(False)
cdef class Piece:
    """Bytes [column, column + width) of the runs of `tuples` index tuples, from `first` on."""

    cdef readonly int64_t first, tuples
    cdef readonly Py_ssize_t column, width

    def __cinit__(self, int64_t first, int64_t tuples, Py_ssize_t column, Py_ssize_t width):
        if first < 0 or tuples < 0 or column < 0 or width < 0:
            raise ValueError("a piece begins and ends within its runs")
        self.first, self.tuples, self.column, self.width = first, tuples, column, width

    def place(self, Py_ssize_t run) -> slice:
        """Return where the piece stands among all runs, each of `run` bytes, side by side."""
        cdef int64_t at = self.first * run + self.column
        return slice(at, at + self.tuples * self.width)


@cython.final
@cython.auto_pickle(False)
cdef class Change:
    """What is done with runs: a reduction of elements, or a copy ("none").

    name: the elements' type, where it counts. updates: `pitch` bytes for each tuple, in order.
    """

    cdef const uint8_t[::1] updates
    cdef Py_ssize_t pitch
    cdef int code, op

    def __cinit__(
        self, const uint8_t[::1] updates, Py_ssize_t pitch, str reduction, str name
    ):
        self.updates = updates
        self.pitch = pitch
        self.op = _OPS[reduction]
        self.code = _TYPES[name] if self.op else -1

    cdef int _door(self, Updates* u, int64_t first, int64_t count) except -1:
        if self.updates.shape[0] < (first + count) * self.pitch:
            raise ValueError("the updates buffer is shorter than its shape")
        u.first = &self.updates[0] + first * self.pitch
        u.pitch = self.pitch
        u.code = self.code
        u.op = self.op
        return 0


@cython.final
@cython.auto_pickle(False)
cdef class How:
    """How the work is done: by how many threads, each with a room of its own, around the cache.

    streamed: whether stores bypass the cache; for outputs that do not fit into it. rooms: scratch
    that the threads share out.
    """

    cdef readonly int threads
    cdef readonly bint streamed
    cdef uint8_t[::1] rooms

    def __cinit__(self, int threads, bint streamed=False, uint8_t[::1] rooms=None):
        if threads < 1:
            raise ValueError("work needs a thread")
        self.threads, self.streamed, self.rooms = threads, streamed, rooms

    cdef uint8_t* _rooms(self, Py_ssize_t each) except? NULL:
        """Return where the threads' rooms stand, NULL where there are none."""
        if self.rooms is None:
            return NULL
        if self.rooms.shape[0] < self.threads * each:
            raise ValueError("the scratch buffer is too short")
        return &self.rooms[0]


@cython.final
@cython.auto_pickle(False)
cdef class Addressing:
    """How index tuples address bytes: k components over sizes and strides, in batches.

    sizes, strides: length of and bytes per step along each indexed axis. per_batch: tuples of
    one batch. batch_sizes, batch_strides: the batches, in row-major order. negatives: whether
    indices count from the end. repeated: whether every batch has the same tuples, which then
    stand there once.
    """

    cdef Nd nd
    cdef int64_t lowest, highest     # byte offsets that valid tuples can have

    def __cinit__(
        self, tuple sizes, tuple strides, int64_t per_batch, tuple batch_sizes,
        tuple batch_strides, bint negatives, bint repeated=False,
    ):
        cdef int j
        cdef bint often
        self.nd.k = len(sizes)
        self.nd.per_batch = max(per_batch, 1)
        self.nd.batch_rank = len(batch_sizes)
        self.nd.repeated = repeated
        if repeated and self.nd.k != 1:
            raise ValueError("tuples of one component can be repeated")
        if self.nd.k > _blocks.MOST_RANK or self.nd.batch_rank > _blocks.MOST_RANK:
            raise ValueError("more axes than an array can have")
        for j in range(self.nd.k):
            self.nd.sizes[j] = sizes[j]
            self.nd.wraps[j] = self.nd.sizes[j] if negatives else 0
            self.nd.strides[j] = strides[j]
            self._reach(self.nd.sizes[j], self.nd.strides[j])
        self.nd.lowest = self.lowest
        self.nd.reach = self.highest - self.lowest
        often = per_batch >= _blocks.BLOCK and per_batch * _blocks.LINE >= self.nd.reach
        self.nd.near = self.nd.reach <= NEAR and (self.nd.batch_rank == 0 or often)
        for j in range(self.nd.batch_rank):
            self.nd.batch_sizes[j] = batch_sizes[j]
            self.nd.batch_strides[j] = batch_strides[j]
            self._reach(self.nd.batch_sizes[j], self.nd.batch_strides[j])

    cdef void _reach(self, int64_t size, int64_t stride):
        if size > 0:
            self.lowest += min(0, (size - 1) * stride)
            self.highest += max(0, (size - 1) * stride)

    cdef int _door(
        self, Walk* walk, Indices indices, int64_t first, int64_t count
    ) except -1:
        """Bind a walk to tuples [first, first + count)."""
        cdef Py_ssize_t entry = self.nd.k * (indices.kind & BYTES)
        cdef int64_t stored = self.nd.per_batch if self.nd.repeated else first + count
        if indices.bytes.shape[0] < stored * entry:
            raise ValueError("the indices buffer is shorter than its shape")
        if indices.below and (self.nd.k != 1 or indices.below > self.nd.sizes[0]):
            raise ValueError("the indices were checked for other rows")
        walk.nd = &self.nd
        walk.index = &indices.bytes[0] + (0 if self.nd.repeated else first * entry)
        walk.kind = indices.kind
        walk.entry = entry
        walk.first = first
        walk.rule = indices.code
        walk.elsewhere = NOWHERE
        return 0

    cdef int _reaches(
        self, Py_ssize_t nbytes, Py_ssize_t origin, Py_ssize_t begin, Py_ssize_t end
    ) except -1:
        """Refuse a buffer that bytes [begin, end) of valid tuples' runs would leave.

        A bug in the caller, never in the input.
        """
        if origin + self.lowest + begin < 0 or origin + self.highest + end > nbytes:
            raise ValueError("the data buffer is shorter than its shape")
        return 0


def check(Addressing a, Indices indices, int64_t first, int64_t count, int threads) -> int:
    """Return non-zero if one of `count` index tuples is out of bounds."""
    cdef Check c
    cdef uint64_t bad
    a._door(&c.walk, indices, first, count)
    c.count = count
    c.parts = shares(threads)
    with nogil:
        bad = share(check_part, &c, c.parts, threads)
    return bad != 0


def near(Addressing a, Indices indices, int64_t count) -> float:
    """Return the share of `count` index tuples that lead near the one before, by some of them."""
    cdef Walk walk
    a._door(&walk, indices, 0, count)
    return nearness(&walk, count)


def number(
    Addressing a, Indices indices, int64_t first, int64_t count, uint8_t[::1] out, int itemsize,
    int threads,
) -> int:
    """Write the number of the row that each tuple names, in 2 bytes without a sign or in 4.

    `a` addresses rows.
    """
    cdef Numbering c
    cdef uint64_t bad
    a._door(&c.walk, indices, first, count)
    if indices.code == ELSEWHERE:
        raise ValueError("every tuple must name a row")
    if itemsize not in (2, 4):
        raise ValueError("a number has 2 or 4 bytes")
    if out.shape[0] < count * itemsize:
        raise ValueError("the output buffer is shorter than its shape")
    if a.lowest < 0 or a.highest >= (<int64_t> 1 << (16 if itemsize == 2 else 31)):
        raise ValueError("the rows are more than a number of its size tells apart")
    c.to = &out[0]
    c.bytes_each = itemsize
    c.count = count
    c.parts = shares(threads)
    with nogil:
        bad = share(number_part, &c, c.parts, threads)
    return bad != 0


def find(Addressing a, Indices indices, int64_t first, int64_t count) -> tuple[int, int, int]:
    """Return (tuple, component) of the first index out of bounds and how many tuples are bad."""
    cdef int64_t t, found = -1, bad = 0, v
    cdef int64_t block[_blocks.MOST_RANK]
    cdef const int64_t* index
    cdef int j, component = -1
    cdef bint clean = False
    cdef Walk walk
    a._door(&walk, indices, first, count)
    with nogil:
        for t in range(count):
            if t % 4096 == 0:
                clean = not check_range(&walk, t, min(t + 4096, count))
            if clean:
                continue
            index = widened(walk.index + t * walk.entry, walk.kind, a.nd.k, block)
            for j in range(a.nd.k):
                v = index[j]
                v += a.nd.wraps[j] & (v >> 63)
                if <uint64_t> v >= <uint64_t> a.nd.sizes[j]:
                    bad += 1
                    if found < 0:
                        found = first + t
                        component = j
                    break
    return found, component, bad


def gather(
    Addressing a, const uint8_t[::1] data, Py_ssize_t origin, Indices indices, Piece piece,
    uint8_t[::1] out, How how,
) -> int:
    """Copy a piece to consecutive places; `origin` is where data's element [0, ..., 0] stands."""
    cdef Gather g
    cdef uint64_t bad
    cdef int threads = how.threads
    a._door(&g.walk, indices, piece.first, piece.tuples)
    a._reaches(data.shape[0], origin, 0, piece.column + piece.width)
    if out.shape[0] < piece.tuples * piece.width:
        raise ValueError("the output buffer is shorter than its shape")
    g.source = &data[0] + origin + piece.column
    g.walk.elsewhere = indices._filling(piece.width) - g.source
    g.to = &out[0]
    g.count = piece.tuples
    g.width = piece.width
    g.by_columns = threads > 1 and g.count < 8 * threads and g.width >= 65536
    g.parts = threads if g.by_columns else shares(threads)
    g.streamed = how.streamed
    g.sorted = (
        g.width <= _blocks.LINE and g.count >= _blocks.NEAR // 8 and nearness(&g.walk, g.count) == 1
    )
    with nogil:
        if goes_by_numbers(&g):
            bad = share(gather_numbered_part, &g, g.parts, threads)
        else:
            bad = share(gather_part, &g, g.parts, threads)
    return bad != 0


def scatter(
    Addressing a, Indices indices, Piece piece, Change change, uint8_t[::1] out, bint by_batches,
    How how,
) -> int:
    """Apply a piece of the updates, in order.

    Threads share the batches, whose destinations must be disjoint, or the runs of the output, or,
    for a few long ones, their columns.
    """
    cdef Scatter s
    cdef uint64_t bad
    cdef int threads = how.threads
    cdef bint whole
    cdef int64_t per = a.nd.per_batch
    a._door(&s.walk, indices, piece.first, piece.tuples)
    a._reaches(out.shape[0], 0, 0, piece.column + piece.width)
    change._door(&s.updates, piece.first, piece.tuples)
    if piece.column + piece.width > change.pitch:
        raise ValueError("an update is shorter than a run")
    if by_batches and (piece.first % per or piece.tuples % per):
        raise ValueError("batches are shared out whole")
    s.updates.first += piece.column
    s.to = &out[0] + piece.column
    s.count = piece.tuples
    s.width = piece.width
    whole = (s.width | change.pitch | <Py_ssize_t> s.to) % _blocks.LINE == 0
    s.streamed = how.streamed and (whole or s.width >= 4 * _blocks.LINE)
    if threads == 1:
        s.sharing = BY_COLUMNS
    elif by_batches:
        s.sharing = BY_BATCHES
    else:
        s.sharing = BY_RUNS if s.count >= 16 * threads and s.width > _blocks.LINE else BY_COLUMNS
    s.parts = shares(threads) if s.sharing == BY_BATCHES else threads
    with nogil:
        bad = share(scatter_part, &s, s.parts, threads)
    return bad != 0


def scatter_copies(
    Addressing a, Indices indices, int64_t first, int64_t count, Change change, Py_ssize_t size,
    How how,
) -> int:
    """Apply updates to the rooms, copies of the output of `size` bytes: one for each thread.

    Each takes a share of the tuples; the first room changes by the first of them.
    """
    cdef Scatter s
    cdef uint64_t bad
    a._door(&s.walk, indices, first, count)
    a._reaches(size, 0, 0, change.pitch)
    change._door(&s.updates, first, count)
    s.to = how._rooms(size)
    if s.to == NULL:
        raise ValueError("the scratch buffer is too short")
    s.count = count
    s.width = change.pitch
    s.copy = size
    s.streamed = False
    s.sharing = BY_COPIES
    s.parts = how.threads
    with nogil:
        bad = share(scatter_part, &s, s.parts, how.threads)
    return bad != 0


def scatter_lines(
    Addressing a, Indices indices, int64_t first, int64_t count, Change change,
    const uint8_t[::1] data, uint8_t[::1] out, How how,
) -> int:
    """Apply the updates of whole batches, each on the bytes that it can name: its line.

    Each line is copied from data to the room of its thread, changed there, and written to out.
    """
    cdef Lines s
    cdef uint64_t bad
    cdef int threads = how.threads
    a._door(&s.walk, indices, first, count)
    a._reaches(out.shape[0], 0, 0, change.pitch)
    change._door(&s.updates, first, count)
    s.line = a.nd.reach + change.pitch
    if data.shape[0] < out.shape[0] or a.lowest < 0 or a.nd.k != 1:
        raise ValueError("the data buffer is shorter than its shape")
    if first % a.nd.per_batch or count % a.nd.per_batch:
        raise ValueError("batches are shared out whole")
    s.windows = how._rooms(s.line)
    if s.windows == NULL:
        raise ValueError("the scratch buffer is too short")
    s.data = &data[0]
    s.to = &out[0]
    s.batches = count // a.nd.per_batch
    s.parts = shares(threads)
    s.streamed = how.streamed
    with nogil:
        bad = share(lines_part, &s, s.parts, threads)
    return bad != 0


@cython.final
@cython.auto_pickle(False)
cdef class Parts:
    """Tuples sorted by destination, stably, into parts of 2^shift rows of `width` bytes.

    Each GROUP of tuples becomes one region of scratch: the rows within their parts, then the
    updates (or, for long runs, their numbers). ends: where each part of each group ends; behind all
    parts is one for what goes nowhere.
    """

    cdef Sorted sorted
    cdef int64_t rows, first, count
    cdef readonly int64_t parts
    cdef uint8_t[::1] scratch
    cdef uint32_t[::1] ends

    def __cinit__(
        self, int64_t rows, Py_ssize_t width, int shift, uint8_t[::1] scratch, uint32_t[::1] ends
    ):
        if not 0 <= shift <= 32 or width < 1 or rows < 1:
            raise ValueError("rows are numbered by 32 bits within their part")
        self.rows = rows
        self.parts = ((rows - 1) >> shift) + 1
        self.scratch, self.ends = scratch, ends
        self.sorted.width = width
        self.sorted.shift = shift
        self.sorted.parts = self.parts + 1
        self.sorted.regions = &scratch[0]
        self.sorted.ends = &ends[0]

    def place(self, int64_t part, int64_t stop) -> slice:
        """Return where parts [part, stop) stand among the rows, in bytes."""
        cdef int64_t end = min(self.rows, stop << self.sorted.shift)
        return slice((part << self.sorted.shift) * self.sorted.width, end * self.sorted.width)


def partition(
    Addressing a, Indices indices, int64_t first, int64_t count, Change change, Parts into, How how
) -> int:
    """Sort tuples [first, first + count) into parts; `a` addresses rows, not bytes.

    The scratch of the parts also holds a room for each thread.
    """
    cdef Partition p
    cdef Updates updates
    cdef uint64_t bad
    cdef Py_ssize_t width = into.sorted.width
    cdef int64_t groups = (count + _parts.GROUP - 1) // _parts.GROUP
    a._door(&p.walk, indices, first, count)
    change._door(&updates, first, count)
    if change.pitch != width:
        raise ValueError("an update is shorter than a run")
    if into.ends.shape[0] < groups * into.sorted.parts or (
        into.scratch.shape[0] < groups * region_bytes(width) + how.threads * room_bytes(width)
    ):
        raise ValueError("the scratch buffer is too short")
    if a.lowest < 0 or a.highest >= into.rows:
        raise ValueError("the rows are more than the parts hold")
    p.walk.elsewhere = into.parts << into.sorted.shift
    into.first, into.count = first, count
    into.sorted.groups = groups
    p.into = &into.sorted
    p.updates = updates.first
    p.count = count
    p.streamed = how.streamed
    with nogil:
        bad = share(partition_part, &p, groups, how.threads)
    return bad != 0


def apply_parts(
    Parts parts, Change change, const uint8_t[::1] data, uint8_t[::1] out, int64_t part,
    int64_t stop, How how,
) -> None:
    """Apply parts [part, stop) to out, which begins with the first row of the first one.

    With data (of the same rows) each part is copied from it to the room of its thread first, so
    that it is changed in cache and written once; with None, out is changed in place.
    """
    cdef Apply a
    cdef Py_ssize_t width = parts.sorted.width
    change._door(&a.updates, parts.first, parts.count)
    if change.pitch != width or not 0 <= part <= stop <= parts.parts:
        raise ValueError("the parts are others")
    a.length = (min(parts.rows, stop << parts.sorted.shift) - (part << parts.sorted.shift)) * width
    if out.shape[0] < a.length or (data is not None and data.shape[0] < a.length):
        raise ValueError("the output buffer is shorter than its shape")
    a.done = &parts.sorted
    a.data = NULL
    a.windows = NULL
    if data is not None:
        a.data = &data[0]
        a.windows = how._rooms(width << parts.sorted.shift)
        if a.windows == NULL:
            raise ValueError("the scratch buffer is too short")
    a.to = &out[0]
    a.first_part = part
    a.streamed = how.streamed
    with nogil:
        share(apply_part, &a, stop - part, how.threads)


@cython.final
@cython.auto_pickle(False)
cdef class Layout:
    """An array's shape, byte strides and bytes per element."""

    cdef View view
    cdef readonly int64_t strips     # see copy_strips; 0 for an array of one axis
    cdef int near
    cdef int64_t lowest, highest
    cdef Py_ssize_t nbytes

    def __cinit__(self, tuple sizes, tuple strides, Py_ssize_t item):
        cdef int d
        self.view.rank = len(sizes)
        self.view.item = item
        self.nbytes = item
        if not 1 <= self.view.rank <= _blocks.MOST_RANK:
            raise ValueError("a layout has 1 to 64 axes")
        for d in range(self.view.rank):
            self.view.sizes[d] = sizes[d]
            self.view.strides[d] = strides[d]
            self.nbytes *= self.view.sizes[d]
            self.lowest += min(0, (self.view.sizes[d] - 1) * self.view.strides[d])
            self.highest += max(0, (self.view.sizes[d] - 1) * self.view.strides[d])
            if d + 1 < self.view.rank and abs(strides[d]) < abs(strides[self.near]):
                self.near = d
        if self.view.rank > 1:
            self.strips = strips_of(&self.view, self.near)

    cdef int _door(self, Py_ssize_t nbytes, Py_ssize_t origin) except -1:
        if origin + self.lowest < 0 or origin + self.highest + self.view.item > nbytes:
            raise ValueError("the data buffer is shorter than its shape")
        return 0


def gather_strided(
    Addressing a, Layout run, const uint8_t[::1] data, Py_ssize_t origin, Indices indices,
    Piece piece, uint8_t[::1] out, How how,
) -> int:
    """Like gather, where the elements of a run are not side by side; pieces cut none of them."""
    cdef GatherViews g
    cdef uint64_t bad
    a._door(&g.walk, indices, piece.first, piece.tuples)
    a._reaches(data.shape[0], origin, run.lowest, run.highest + run.view.item)
    if out.shape[0] < piece.tuples * piece.width:
        raise ValueError("the output buffer is shorter than its shape")
    if piece.column % run.view.item or piece.width % run.view.item or (
        piece.column + piece.width > run.nbytes
    ):
        raise ValueError("a piece begins and ends within its runs")
    g.run = &run.view
    g.filling = indices._filling(piece.width)
    g.source = &data[0] + origin
    g.to = &out[0]
    g.count = piece.tuples
    g.parts = shares(how.threads)
    g.element = piece.column // run.view.item
    g.elements = piece.width // run.view.item
    with nogil:
        bad = share(gather_views_part, &g, g.parts, how.threads)
    return bad != 0


def pack(
    Layout layout, const uint8_t[::1] data, Py_ssize_t origin, uint8_t[::1] out, int64_t first,
    int64_t count,
) -> None:
    """Copy elements [first, first + count), in row-major order, side by side."""
    layout._door(data.shape[0], origin)
    if out.shape[0] < count * layout.view.item:
        raise ValueError("the output buffer is shorter than its shape")
    cdef const uint8_t* source = &data[0] + origin
    cdef uint8_t* to = &out[0]
    with nogil:
        copy_view(to, source, &layout.view, first, count)


def copy_strips(
    Layout layout, const uint8_t[::1] data, Py_ssize_t origin, uint8_t[::1] out, int64_t strip,
    int64_t stop, How how,
) -> None:
    """Copy strips [strip, stop) of an array whose last axis steps far to row-major order."""
    cdef Strips c
    layout._door(data.shape[0], origin)
    if out.shape[0] < layout.nbytes or stop > layout.strips:
        raise ValueError("the output buffer is shorter than its shape")
    c.view = &layout.view
    c.near = layout.near
    c.source = &data[0] + origin
    c.to = &out[0]
    c.first = strip
    with nogil:
        share(copy_strip, &c, stop - strip, how.threads)


def spread(
    const uint8_t[::1] rows, int64_t count, uint8_t[::1] out, int64_t pitch, How how
) -> None:
    """Copy `count` rows that stand side by side to out, where they begin `pitch` bytes apart."""
    cdef Spread c
    c.rows = count
    c.width = rows.shape[0] // max(1, count)
    c.pitch = pitch
    if count < 1 or c.width < 1 or pitch < c.width or out.shape[0] < (count - 1) * pitch + c.width:
        raise ValueError("the output buffer is shorter than its shape")
    c.source = &rows[0]
    c.to = &out[0]
    c.parts = shares(how.threads)
    with nogil:
        share(spread_part, &c, c.parts, how.threads)


def within_page(const uint8_t[::1] buffer) -> int:
    """Return how many bytes of a page come before a buffer."""
    return <size_t> &buffer[0] % _pages.PAGE


@cython.final
@cython.auto_pickle(False)
cdef class Grid:
    """An elements operator along an axis that is not the last, as units (see _panels.pxd).

    sizes, index_strides (elements), data_strides (bytes): the axes that number the panels.
    along: (length of indices, step in elements, size of data, step in bytes) of the indexed axis.
    across: (columns, bytes per column, columns of a unit) of the last axis.
    within: (first row, rows, bytes per row): of data's one panel a scatter changes only these rows,
    in packed tiles; what is written, these rows or the gathered ones, stands so far apart.
    """

    cdef Panels p
    cdef readonly int64_t units
    cdef int64_t lowest, highest, last_index

    def __cinit__(
        self, tuple sizes, tuple index_strides, tuple data_strides, tuple along, tuple across,
        Py_ssize_t item, bint negatives, tuple within=None,
    ):
        cdef int d
        self.p.rank = len(sizes)
        if self.p.rank > _blocks.MOST_RANK:
            raise ValueError("more axes than an array can have")
        self.p.item = item
        self.p.length, self.p.index_step, self.p.size, self.p.step = along
        self.p.columns, self.p.column_stride, self.p.tile = across
        self.p.wrap = self.p.size if negatives else 0
        self.p.low, self.p.band, self.p.pitch = within or (0, self.p.size, 0)
        if within is not None and (
            self.p.rank or self.p.low < 0 or self.p.band < 1
            or self.p.low + self.p.band > self.p.size or self.p.pitch < self.p.columns * item
        ):
            raise ValueError("a band is some rows of one panel")
        if not 1 <= self.p.tile <= _blocks.BLOCK:
            raise ValueError("a unit has 1 to 512 columns")
        self.p.tiles = (self.p.columns + self.p.tile - 1) // self.p.tile
        self.units = self.p.tiles
        self.last_index = (self.p.length - 1) * self.p.index_step + self.p.columns - 1
        self._reach(self.p.size, self.p.step)
        self._reach(self.p.columns, self.p.column_stride)
        for d in range(self.p.rank):
            self.p.sizes[d] = sizes[d]
            self.p.index_strides[d] = index_strides[d]
            self.p.data_strides[d] = data_strides[d]
            self.units *= self.p.sizes[d]
            self.last_index += (self.p.sizes[d] - 1) * self.p.index_strides[d]
            self._reach(self.p.sizes[d], self.p.data_strides[d])

    cdef void _reach(self, int64_t size, int64_t stride):
        self.lowest += min(0, (size - 1) * stride)
        self.highest += max(0, (size - 1) * stride)

    cdef int _door(
        self, Units* c, Indices indices, int64_t unit, int64_t stop, How how
    ) except -1:
        """Bind units [unit, stop) to their indices and rooms."""
        if (
            indices.bytes.shape[0] <= self.last_index * (indices.kind & BYTES)
            or not 0 <= unit <= stop <= self.units
        ):
            raise ValueError("the indices buffer is shorter than its shape")
        if indices.below > self.p.size:
            raise ValueError("the indices were checked for other rows")
        c.p = &self.p
        c.index = &indices.bytes[0]
        c.kind = indices.kind
        c.rule = indices.code
        c.first = unit
        c.rooms = how._rooms(room_rows(&self.p) * self.p.tile * self.p.item)
        c.streamed = how.streamed
        return 0

    cdef int _reaches(
        self, Py_ssize_t data_bytes, Py_ssize_t origin, Py_ssize_t element_bytes
    ) except -1:
        """Refuse buffers, of data and of the indices' shape, that the units would leave."""
        if origin + self.lowest < 0 or origin + self.highest + self.p.item > data_bytes:
            raise ValueError("the data buffer is shorter than its shape")
        if element_bytes <= self.last_index * self.p.item:
            raise ValueError("a buffer of the indices' shape is shorter than it")
        return 0

    cdef Py_ssize_t _written(self, int64_t rows):
        """Return the bytes that so many rows of one panel take where they are written."""
        return (rows - 1) * self.p.pitch + self.p.columns * self.p.item


def gather_units(
    Grid g, const uint8_t[::1] data, Py_ssize_t origin, Indices indices, int64_t unit,
    int64_t stop, uint8_t[::1] out, How how,
) -> int:
    """Gather units [unit, stop); with rooms, through packed copies of their part of data."""
    cdef Units c
    cdef uint64_t bad
    g._reaches(data.shape[0], origin, PY_SSIZE_T_MAX if g.p.pitch else out.shape[0])
    if g.p.pitch and (out.shape[0] < g._written(g.p.length) or g.p.band < g.p.size):
        raise ValueError("the output buffer is shorter than its shape")
    g._door(&c, indices, unit, stop, how)
    c.filling = indices._filling(g.p.item)
    c.data = &data[0] + origin
    c.to = &out[0]
    with nogil:
        bad = share(gather_unit, &c, stop - unit, how.threads)
    return bad != 0


def scatter_units(
    Grid g, Indices indices, Change change, const uint8_t[::1] data, uint8_t[::1] out,
    int64_t unit, int64_t stop, How how,
) -> int:
    """Apply units [unit, stop) to out; with rooms, through packed copies of data's."""
    cdef Units c
    cdef uint64_t bad
    g._reaches(data.shape[0], 0, change.updates.shape[0])
    g._door(&c, indices, unit, stop, how)
    change._door(&c.updates, 0, 1)
    if g.p.pitch:
        if out.shape[0] < g._written(g.p.band) or c.rooms == NULL:
            raise ValueError("the output or the scratch buffer is too short")
    elif data.shape[0] < out.shape[0]:
        raise ValueError("the data buffer is shorter than its shape")
    else:
        g._reaches(out.shape[0], 0, PY_SSIZE_T_MAX)
    c.data = &data[0]
    c.to = &out[0]
    with nogil:
        bad = share(scatter_unit, &c, stop - unit, how.threads)
    return bad != 0


def will_need(
    Addressing a, const uint8_t[::1] data, Py_ssize_t origin, Indices indices, Piece piece
) -> int:
    """Ask the system for the pages that gather, called the same way, would wait for.

    Returns how many system calls it took.
    """
    cdef Walk walk
    cdef int64_t calls
    a._door(&walk, indices, piece.first, piece.tuples)
    a._reaches(data.shape[0], origin, 0, piece.column + piece.width)
    walk.elsewhere = 0    # of which nothing is read
    cdef const uint8_t* source = &data[0] + origin + piece.column
    cdef int64_t count = piece.tuples
    cdef Py_ssize_t width = piece.width
    with nogil:
        calls = will_need_range(&walk, source, count, width)
    return calls


cdef struct Copy:
    const uint8_t* source
    uint8_t* to
    Py_ssize_t nbytes
    int64_t parts
    bint streamed


cdef uint64_t copy_part(const void* call, int64_t part, int thread) noexcept nogil:
    cdef const Copy* c = <const Copy*> call
    cdef Py_ssize_t begin = column_of(part, c.parts, c.nbytes)
    write_window(
        c.to + begin, c.source + begin, column_of(part + 1, c.parts, c.nbytes) - begin, c.streamed
    )
    return 0


def copy(const uint8_t[::1] data, uint8_t[::1] out, How how) -> None:
    """Copy all of data to the beginning of out."""
    cdef Copy c
    if out.shape[0] < data.shape[0]:
        raise ValueError("the output buffer is shorter than its shape")
    c.source = &data[0]
    c.to = &out[0]
    c.nbytes = data.shape[0]
    c.parts = shares(how.threads)
    c.streamed = how.streamed
    with nogil:
        share(copy_part, &c, c.parts, how.threads)


def swap(uint8_t[::1] buffer, int unit) -> None:
    """Reverse the bytes of every unit, in place."""
    if unit < 1 or buffer.shape[0] % unit:
        raise ValueError("the buffer is not one of whole units")
    cdef uint8_t* at = &buffer[0]
    cdef Py_ssize_t n = buffer.shape[0] // unit
    with nogil:
        swap_units(at, n, unit)


@cython.final
@cython.auto_pickle(False)
cdef class Boxes:
    """Rows, numbered over `sizes`, in parts: boxes of `steps`, of which the last may be less."""

    cdef Cut cut
    cdef int64_t rows

    def __cinit__(self, tuple sizes, tuple steps):
        cdef int d
        cdef object held = 1, parts = 1, rows = 1
        if not 0 < len(sizes) == len(steps) <= _blocks.MOST_RANK:
            raise ValueError("a box has a step along each axis")
        self.cut.rank = len(sizes)
        for d, (size, step) in enumerate(zip(sizes, steps)):
            if not 0 < step <= size:
                raise ValueError("a box is within the rows")
            self.cut.sizes[d], self.cut.steps[d] = size, step
            held, parts, rows = held * step, parts * -(-size // step), rows * size
        if held > 1 << 32 or parts > 65536 or rows > PY_SSIZE_T_MAX:
            raise ValueError("the rows are more than the parts hold")
        self.cut.parts, self.rows = parts, rows
        power = len(sizes) == 1 and held & (held - 1) == 0
        self.cut.shift = held.bit_length() - 1 if power else -1

    @property
    def parts(self) -> int:
        """How many there are."""
        return self.cut.parts


def mark(
    Addressing a, Indices indices, int64_t origin, Piece piece, Boxes boxes,
    uint8_t[::1] marks, uint32_t[::1] local, int64_t[::1] starts,
) -> int:
    """Write the part that each tuple of a piece names a row of, and the row's number there.

    `a` addresses rows. origin: the tuple that indices begin with. starts: zeros, one more than
    there are parts, each of which begins there if it is dealt. By a rule that lets tuples name
    nothing there is a part more, the last, of these. Marks have one byte, or two where there are
    more than NARROW parts.
    """
    cdef Walk walk
    cdef uint64_t bad
    cdef int64_t first = piece.first, count = piece.tuples
    cdef int64_t parts = boxes.cut.parts + (indices.code == ELSEWHERE)
    if not 0 <= origin <= first:
        raise ValueError("the indices begin after the tuples")
    a._door(&walk, indices, first - origin, count)
    walk.first = first
    if a.lowest < 0 or a.highest >= boxes.rows or starts.shape[0] != parts + 1:
        raise ValueError("the rows are more than the parts hold")
    if marks.shape[0] < count * (1 + (parts > NARROW)) or local.shape[0] < count:
        raise ValueError("the scratch buffer is too short")
    with nogil:
        bad = mark_rows(&walk, count, &boxes.cut, parts, &marks[0], &local[0], &starts[0])
    return bad != 0


def deal(
    const uint8_t[::1] marks, int64_t[::1] places, const uint8_t[::1] rows, uint8_t[::1] out,
    int64_t count, bint back,
) -> int:
    """Copy `count` rows to where those of their parts begin, in order, or back from there.

    places: where each part begins, which is changed. Non-zero if the marks are others.
    """
    cdef uint64_t bad
    cdef int64_t parts = places.shape[0]
    cdef Py_ssize_t width = rows.shape[0] // max(count, 1)
    cdef bint wide = parts > NARROW
    if count < 1 or out.shape[0] < count * width or marks.shape[0] < count * (1 + wide):
        raise ValueError("the output buffer is shorter than its shape")
    with nogil:
        bad = deal_rows(
            &marks[0], wide, count, parts, &places[0], &rows[0], &out[0], width, back
        )
    return bad != 0


@cython.final
@cython.auto_pickle(False)
cdef class Turn:
    """A context in which no other run of ndtool asks for threads, unless it has waited too long."""

    cdef int file

    def __enter__(self) -> Turn:
        with nogil:
            self.file = enter()
        return self

    def __exit__(self, *failure: object) -> None:
        leave(self.file)


def end_on(int number, int status, int fd, bytes words) -> None:
    """From now on, end the process when a signal comes, unless it is ignored; see endings.py."""
    nd_end_on(number, status, fd, words, len(words))


def remember(int folder, bytes name) -> int:
    """Let such an end remove a file in a directory; return its slot, -1 where none is free."""
    return nd_remember(folder, name)


def forget(int slot) -> None:
    """Let such an end leave the file of a slot alone."""
    nd_forget(slot)


def settle(bint settled) -> None:
    """Say whether the output has its name, so that signals no longer end the process."""
    with nogil:
        nd_settle(settled)
