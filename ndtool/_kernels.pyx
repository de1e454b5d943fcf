# cython: language_level=3, wraparound=False, cdivision=True, initializedcheck=False
# cython: freethreading_compatible=True
"""Loops over bytes: checked, parallel, without the GIL; engine.py and scatters.py call them.

Every function takes flat byte buffers and compares their sizes once, here at the door; inside,
nothing allocates or raises. A non-zero return means that an index is out of bounds: nothing of
its block was read or written, and `find` tells which one it is.
"""

cimport cython
from cython.parallel cimport prange, threadid
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from ndtool.loops.blocks cimport (
    BLOCK, LINE, MOST_RANK, NEAR, Nd, swap16, swap32, swap64, widened,
)
from ndtool._endings cimport nd_end_on, nd_remove_at_end, nd_settle
from ndtool.loops.memory cimport write_window
from ndtool.loops.panels cimport Panels, gather_unit, scatter_unit
from ndtool.loops.parts cimport (
    GROUP, apply_part, carried_bytes, partition_group, region_bytes, room_bytes,
)
from ndtool.loops.runs cimport (
    check_range, gather_range, gather_views, scatter_lines_range, scatter_range, will_need_range,
)
from ndtool._startable cimport nd_startable
from ndtool.loops.views cimport View, copy_strip, copy_view, strips_of


cdef inline int64_t shares(int threads) noexcept nogil:
    """Return into how many parts work is cut: a thread that is held up leaves them to others."""
    return 16 * threads if threads > 1 else 1


@cython.final
@cython.auto_pickle(False)
cdef class Addressing:
    """How index tuples address bytes: k components over sizes and strides, in batches.

    sizes, strides: length of and bytes per step along each indexed axis. per_batch: tuples of
    one batch. batch_sizes, batch_strides: the batches, in row-major order. negatives: whether
    indices count from the end.
    """

    cdef Nd nd
    cdef int64_t lowest, highest     # byte offsets that valid tuples can have

    def __cinit__(
        self, tuple sizes, tuple strides, int64_t per_batch, tuple batch_sizes,
        tuple batch_strides, bint negatives,
    ):
        cdef int j
        cdef bint often
        self.nd.k = len(sizes)
        self.nd.per_batch = max(per_batch, 1)
        self.nd.batch_rank = len(batch_sizes)
        if self.nd.k > MOST_RANK or self.nd.batch_rank > MOST_RANK:
            raise ValueError("more axes than an array can have")
        for j in range(self.nd.k):
            self.nd.sizes[j] = sizes[j]
            self.nd.wraps[j] = self.nd.sizes[j] if negatives else 0
            self.nd.strides[j] = strides[j]
            self._reach(self.nd.sizes[j], self.nd.strides[j])
        self.nd.lowest = self.lowest
        self.nd.reach = self.highest - self.lowest
        often = per_batch >= BLOCK and per_batch * LINE >= self.nd.reach
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
        self, Py_ssize_t origin, Py_ssize_t run, Py_ssize_t bytes_there, Py_ssize_t index_bytes,
        int kind, int64_t count,
    ) except -1:
        """Refuse buffers that valid tuples would leave: a bug in the caller, never in the input."""
        if origin + self.lowest < 0 or origin + self.highest + run > bytes_there:
            raise ValueError("the data buffer is shorter than its shape")
        if index_bytes < count * self.nd.k * (kind & 15):
            raise ValueError("the indices buffer is shorter than its shape")
        return 0


def check(
    Addressing a, const uint8_t[::1] indices, int kind, int64_t count, int threads
) -> int:
    """Return non-zero if one of `count` index tuples is out of bounds."""
    cdef const uint8_t* index = &indices[0]
    cdef const Nd* nd = &a.nd
    cdef uint64_t bad = 0
    cdef int64_t part, parts = shares(threads)
    a._door(-a.lowest, 0, a.highest - a.lowest, indices.shape[0], kind, count)
    with nogil:
        for part in prange(
            parts, num_threads=threads, schedule="dynamic", use_threads_if=threads > 1
        ):
            bad |= check_range(nd, index, kind, count * part // parts, count * (part + 1) // parts)
    return bad != 0


def find(Addressing a, const uint8_t[::1] indices, int kind, int64_t count) -> tuple[int, int, int]:
    """Return (tuple, component) of the first index out of bounds and how many tuples are bad."""
    cdef int64_t t, first = -1, bad = 0, v
    cdef int64_t block[MOST_RANK]
    cdef const int64_t* index
    cdef int j, component = -1
    cdef Py_ssize_t pitch = a.nd.k * (kind & 15)
    a._door(-a.lowest, 0, a.highest - a.lowest, indices.shape[0], kind, count)
    with nogil:
        for t in range(count):
            index = widened(&indices[0] + t * pitch, kind, a.nd.k, block)
            for j in range(a.nd.k):
                v = index[j]
                v += a.nd.wraps[j] & (v >> 63)
                if <uint64_t> v >= <uint64_t> a.nd.sizes[j]:
                    bad += 1
                    if first < 0:
                        first = t
                        component = j
                    break
    return first, component, bad


def gather(
    Addressing a, const uint8_t[::1] data, Py_ssize_t origin, const uint8_t[::1] indices, int kind,
    uint8_t[::1] out, int64_t first, int64_t count, Py_ssize_t column, Py_ssize_t width,
    int threads, bint streamed,
) -> int:
    """Copy bytes [column, column + width) of the runs of tuples first.. to consecutive places.

    `origin` is where data's element [0, ..., 0] stands; `indices` begins at tuple `first`.
    `streamed` bypasses the cache: for outputs that do not fit into it.
    """
    a._door(origin, column + width, data.shape[0], indices.shape[0], kind, count)
    if out.shape[0] < count * width:
        raise ValueError("the output buffer is shorter than its shape")
    cdef const uint8_t* source = &data[0] + origin + column
    cdef const uint8_t* index = &indices[0]
    cdef uint8_t* to = &out[0]
    cdef const Nd* nd = &a.nd
    cdef uint64_t bad = 0
    cdef int64_t part, parts = threads
    cdef bint by_columns = count < 8 * parts and width >= 65536
    with nogil:
        if parts == 1:
            bad = gather_range(
                nd, source, index, kind, to, first, 0, count, 0, width, width, streamed)
        elif by_columns:
            for part in prange(parts, num_threads=threads, schedule="static"):
                bad |= gather_range(
                    nd, source, index, kind, to, first, 0, count,
                    column_of(part, parts, width), column_of(part + 1, parts, width), width,
                    streamed,
                )
        else:
            parts = shares(threads)
            for part in prange(parts, num_threads=threads, schedule="dynamic"):
                bad |= gather_range(
                    nd, source, index, kind, to, first, count * part // parts,
                    count * (part + 1) // parts, 0, width, width, streamed,
                )
    return bad != 0


def scatter(
    Addressing a, uint8_t[::1] out, const uint8_t[::1] indices, int kind,
    const uint8_t[::1] updates, int64_t first, int64_t count, Py_ssize_t column, Py_ssize_t width,
    Py_ssize_t pitch, int code, int op, int threads, bint by_batches, bint streamed,
) -> int:
    """Apply bytes [column, column + width) of the updates of tuples first.., in order.

    `pitch` is the length of one update; `code` the arithmetic type, `op` the reduction (0: none,
    bytes). Threads share the batches, whose destinations must be disjoint, or the runs of the
    output, or, for a few long ones, their columns. `streamed` bypasses the cache.
    """
    a._door(0, column + width, out.shape[0], indices.shape[0], kind, count)
    if count and updates.shape[0] < (count - 1) * pitch + column + width:
        raise ValueError("the updates buffer is shorter than its shape")
    cdef uint8_t* to = &out[0] + column
    cdef const uint8_t* index = &indices[0]
    cdef const uint8_t* source = &updates[0] + column
    cdef const Nd* nd = &a.nd
    cdef uint64_t bad = 0
    cdef int64_t part, parts = threads, batches = count // a.nd.per_batch, per = a.nd.per_batch
    cdef bint owned = count >= 16 * parts and width > LINE
    streamed = streamed and (width | pitch | <Py_ssize_t> to) % LINE == 0
    if by_batches and (first % per or count % per):
        raise ValueError("batches are shared out whole")
    with nogil:
        if parts == 1:
            bad = scatter_range(
                nd, to, index, kind, source, first, 0, count, 0, width, pitch, code, op, 0, 1,
                streamed,
            )
        elif by_batches:
            parts = shares(threads)
            for part in prange(parts, num_threads=threads, schedule="dynamic"):
                bad |= scatter_range(
                    nd, to, index, kind, source, first, batches * part // parts * per,
                    batches * (part + 1) // parts * per, 0, width, pitch, code, op, 0, 1, streamed,
                )
        elif owned:  # every thread goes through all tuples, in order
            for part in prange(parts, num_threads=threads, schedule="static"):
                bad |= scatter_range(
                    nd, to, index, kind, source, first, 0, count, 0, width, pitch, code, op,
                    part, parts, streamed,
                )
        else:
            for part in prange(parts, num_threads=threads, schedule="static"):
                bad |= scatter_range(
                    nd, to, index, kind, source, first, 0, count,
                    column_of(part, parts, width), column_of(part + 1, parts, width), pitch,
                    code, op, 0, 1, streamed,
                )
    return bad != 0


def scatter_lines(
    Addressing a, const uint8_t[::1] data, Py_ssize_t line, uint8_t[::1] out,
    const uint8_t[::1] indices, int kind, const uint8_t[::1] updates, int64_t first,
    int64_t count, Py_ssize_t width, int code, int op, uint8_t[::1] windows, int threads,
    bint streamed,
) -> int:
    """Apply updates of `width` bytes to whole batches, each on the `line` bytes that it can name.

    Each line is copied from data to a window of its thread, changed there, and written to out.
    """
    a._door(0, width, out.shape[0], indices.shape[0], kind, count)
    if updates.shape[0] < count * width:
        raise ValueError("the updates buffer is shorter than its shape")
    if data.shape[0] < out.shape[0] or a.lowest < 0 or a.nd.k != 1 or line != a.nd.reach + width:
        raise ValueError("the data buffer is shorter than its shape")
    if windows.shape[0] < threads * line:
        raise ValueError("the window buffer is too short")
    if first % a.nd.per_batch or count % a.nd.per_batch:
        raise ValueError("batches are shared out whole")
    cdef const uint8_t* old = &data[0]
    cdef uint8_t* to = &out[0]
    cdef const uint8_t* index = &indices[0]
    cdef const uint8_t* source = &updates[0]
    cdef uint8_t* window = &windows[0]
    cdef uint64_t bad = 0
    cdef int64_t part, parts = shares(threads), per = a.nd.per_batch, batches = count // per
    with nogil:
        for part in prange(
            parts, num_threads=threads, schedule="dynamic", use_threads_if=threads > 1
        ):
            bad |= scatter_lines_range(
                &a.nd, old, line, window + threadid() * line, to, index, kind, source, first,
                batches * part // parts * per, batches * (part + 1) // parts * per, width,
                code, op, streamed,
            )
    return bad != 0


def partition(
    Addressing rows, const uint8_t[::1] indices, int kind, const uint8_t[::1] updates,
    Py_ssize_t width, int64_t first, int64_t count, int shift, uint8_t[::1] scratch,
    uint32_t[:, ::1] ends, int threads, bint streamed,
) -> int:
    """Sort tuples first.. by destination, stably, into parts of 2^shift rows.

    `rows` addresses rows of `width` bytes, not bytes. Each GROUP of tuples becomes one region of
    scratch: the rows within their parts, then the updates (or, for long runs, their numbers);
    ends[g, p] is where part p of group g ends. Scratch also holds each thread's room_bytes.
    """
    cdef int64_t groups = ends.shape[0], group
    cdef Py_ssize_t carried = carried_bytes(width), region = region_bytes(width)
    cdef Py_ssize_t room = room_bytes(width)
    cdef uint64_t bad = 0
    rows._door(-rows.lowest, 0, rows.highest - rows.lowest, indices.shape[0], kind, count)
    if groups * GROUP < count or scratch.shape[0] < groups * region + threads * room:
        raise ValueError("the scratch buffer is too short")
    if rows.lowest < 0 or shift > 32 or rows.highest >> shift >= ends.shape[1]:
        raise ValueError("the rows are more than the parts hold")
    if updates.shape[0] < count * width:
        raise ValueError("the updates buffer is shorter than its shape")
    cdef uint8_t* base = &scratch[0]
    cdef const uint8_t* index = &indices[0]
    cdef const uint8_t* source = &updates[0]
    cdef const Nd* nd = &rows.nd
    cdef uint32_t* end = &ends[0, 0]
    cdef Py_ssize_t columns = ends.shape[1]
    with nogil:
        for group in prange(
            groups, num_threads=threads, schedule="dynamic", use_threads_if=threads > 1
        ):
            bad |= partition_group(
                nd, index, kind, source, width, first, group * GROUP,
                min(count, group * GROUP + GROUP), shift, base + group * region, carried,
                base + groups * region + threadid() * room, streamed, end + group * columns,
                columns,
            )
    return bad != 0


def apply_parts(
    const uint8_t[::1] data, const uint8_t[::1] updates, uint8_t[::1] out,
    const uint8_t[::1] scratch, const uint32_t[:, ::1] ends, int shift, Py_ssize_t width,
    int64_t rows, int64_t part, int64_t stop, int code, int op, uint8_t[::1] windows, int threads,
    bint streamed,
) -> None:
    """Apply parts [part, stop) of a partition to out, whose first byte is row part << shift.

    With data (of the same rows) each part is copied from it to a window of its own first, so
    that it is changed in cache and written once; without, out is changed in place. `rows` is
    how many rows there are up to the end of the last part.
    """
    cdef int64_t p, first_row = part << shift
    cdef Py_ssize_t region = region_bytes(width)
    cdef Py_ssize_t window = width << shift
    cdef bint copied = data.shape[0] > 0
    if out.shape[0] < (rows - first_row) * width or (copied and data.shape[0] < out.shape[0]):
        raise ValueError("the output buffer is shorter than its shape")
    if copied and windows.shape[0] < threads * window:
        raise ValueError("the window buffer is too short")
    if scratch.shape[0] < ends.shape[0] * region:
        raise ValueError("the scratch buffer is too short")
    cdef uint8_t* to = &out[0]
    cdef const uint8_t* source = &data[0] if copied else NULL
    cdef const uint8_t* update = &updates[0]
    cdef const uint8_t* base = &scratch[0]
    cdef const uint32_t* end = &ends[0, 0]
    cdef uint8_t* room = &windows[0] if copied else NULL
    cdef int64_t groups = ends.shape[0]
    cdef Py_ssize_t parts = ends.shape[1], offset, length
    with nogil:
        for p in prange(
            part, stop, num_threads=threads, schedule="dynamic", use_threads_if=threads > 1
        ):
            offset = ((p << shift) - first_row) * width
            length = min(window, (rows - first_row) * width - offset)
            if copied:
                memcpy(room + threadid() * window, source + offset, length)
                apply_part(
                    room + threadid() * window, update, base, region, end, groups, parts, p,
                    width, code, op,
                )
                write_window(to + offset, room + threadid() * window, length, streamed)
            else:
                apply_part(
                    to + offset, update, base, region, end, groups, parts, p, width, code, op
                )


@cython.final
@cython.auto_pickle(False)
cdef class Layout:
    """An array's shape, byte strides and bytes per element."""

    cdef View view
    cdef readonly int64_t strips     # see copy_strips; 0 for an array of one axis
    cdef int near
    cdef int64_t lowest, highest

    def __cinit__(self, tuple sizes, tuple strides, Py_ssize_t item):
        cdef int d
        self.view.rank = len(sizes)
        self.view.item = item
        if not 1 <= self.view.rank <= MOST_RANK:
            raise ValueError("a layout has 1 to 64 axes")
        for d in range(self.view.rank):
            self.view.sizes[d] = sizes[d]
            self.view.strides[d] = strides[d]
            self.lowest += min(0, (self.view.sizes[d] - 1) * self.view.strides[d])
            self.highest += max(0, (self.view.sizes[d] - 1) * self.view.strides[d])
            if d + 1 < self.view.rank and abs(strides[d]) < abs(strides[self.near]):
                self.near = d
        if self.view.rank > 1:
            self.strips = strips_of(&self.view, self.near)


def gather_strided(
    Addressing a, Layout run, const uint8_t[::1] data, Py_ssize_t origin,
    const uint8_t[::1] indices, int kind, uint8_t[::1] out, int64_t first, int64_t count,
    int64_t element, int64_t elements, int threads,
) -> int:
    """Like gather, where the elements of a run are not side by side; columns are elements."""
    a._door(
        origin + run.lowest, run.highest - run.lowest + run.view.item, data.shape[0],
        indices.shape[0], kind, count,
    )
    if out.shape[0] < count * elements * run.view.item:
        raise ValueError("the output buffer is shorter than its shape")
    cdef const uint8_t* source = &data[0] + origin
    cdef const uint8_t* index = &indices[0]
    cdef uint8_t* to = &out[0]
    cdef uint64_t bad = 0
    cdef int64_t part, parts = shares(threads)
    with nogil:
        for part in prange(
            parts, num_threads=threads, schedule="dynamic", use_threads_if=threads > 1
        ):
            bad |= gather_views(
                &a.nd, &run.view, source, index, kind, to, first, count * part // parts,
                count * (part + 1) // parts, element, elements,
            )
    return bad != 0


def pack(
    Layout layout, const uint8_t[::1] data, Py_ssize_t origin, uint8_t[::1] out, int64_t first,
    int64_t count,
) -> None:
    """Copy elements [first, first + count), in row-major order, side by side."""
    if origin + layout.lowest < 0 or origin + layout.highest + layout.view.item > data.shape[0]:
        raise ValueError("the data buffer is shorter than its shape")
    if out.shape[0] < count * layout.view.item:
        raise ValueError("the output buffer is shorter than its shape")
    cdef const uint8_t* source = &data[0] + origin
    cdef uint8_t* to = &out[0]
    with nogil:
        copy_view(to, source, &layout.view, first, count)


def copy_strips(
    Layout layout, const uint8_t[::1] data, Py_ssize_t origin, uint8_t[::1] out, int64_t strip,
    int64_t stop, int threads,
) -> None:
    """Copy strips [strip, stop) of an array whose last axis steps far to row-major order."""
    cdef int64_t s
    cdef Py_ssize_t size = layout.view.item
    for s in range(layout.view.rank):
        size *= layout.view.sizes[s]
    if origin + layout.lowest < 0 or origin + layout.highest + layout.view.item > data.shape[0]:
        raise ValueError("the data buffer is shorter than its shape")
    if out.shape[0] < size or stop > layout.strips:
        raise ValueError("the output buffer is shorter than its shape")
    cdef const uint8_t* source = &data[0] + origin
    cdef uint8_t* to = &out[0]
    with nogil:
        for s in prange(
            strip, stop, num_threads=threads, schedule="dynamic", use_threads_if=threads > 1
        ):
            copy_strip(to, source, &layout.view, layout.near, s)


@cython.final
@cython.auto_pickle(False)
cdef class Grid:
    """An elements operator along an axis that is not the last, as units (see _panels.pxd).

    sizes, index_strides (elements), data_strides (bytes): the axes that number the panels.
    along: (length of indices, step in elements, size of data, step in bytes) of the indexed axis.
    across: (columns, bytes per column, columns of a unit) of the last axis.
    """

    cdef Panels p
    cdef readonly int64_t units
    cdef int64_t lowest, highest, last_index

    def __cinit__(
        self, tuple sizes, tuple index_strides, tuple data_strides, tuple along, tuple across,
        Py_ssize_t item, bint negatives,
    ):
        cdef int d
        self.p.rank = len(sizes)
        if self.p.rank > MOST_RANK:
            raise ValueError("more axes than an array can have")
        self.p.item = item
        self.p.length, self.p.index_step, self.p.size, self.p.step = along
        self.p.columns, self.p.column_stride, self.p.tile = across
        self.p.wrap = self.p.size if negatives else 0
        if not 1 <= self.p.tile <= BLOCK:
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
        self, Py_ssize_t origin, Py_ssize_t data_bytes, Py_ssize_t index_bytes, int kind,
        Py_ssize_t element_bytes, Py_ssize_t scratch_bytes, int threads, int64_t stop,
    ) except -1:
        if origin + self.lowest < 0 or origin + self.highest + self.p.item > data_bytes:
            raise ValueError("the data buffer is shorter than its shape")
        if index_bytes <= self.last_index * (kind & 15) or stop > self.units:
            raise ValueError("the indices buffer is shorter than its shape")
        if element_bytes <= self.last_index * self.p.item:
            raise ValueError("a buffer of the indices' shape is shorter than it")
        if scratch_bytes and scratch_bytes < threads * self.p.size * self.p.tile * self.p.item:
            raise ValueError("the scratch buffer is too short")
        return 0


def gather_units(
    Grid g, const uint8_t[::1] data, Py_ssize_t origin, const uint8_t[::1] indices, int kind,
    uint8_t[::1] out, int64_t unit, int64_t stop, uint8_t[::1] scratch, int threads,
    bint streamed,
) -> int:
    """Gather units [unit, stop); with scratch, through packed copies of their part of data.

    `streamed` bypasses the cache.
    """
    g._door(
        origin, data.shape[0], indices.shape[0], kind, out.shape[0], scratch.shape[0], threads, stop
    )
    cdef const uint8_t* source = &data[0] + origin
    cdef const uint8_t* index = &indices[0]
    cdef uint8_t* to = &out[0]
    cdef uint8_t* room = &scratch[0] if scratch.shape[0] else NULL
    cdef Py_ssize_t room_each = g.p.size * g.p.tile * g.p.item if scratch.shape[0] else 0
    cdef uint64_t bad = 0
    cdef int64_t u
    with nogil:
        for u in prange(
            unit, stop, num_threads=threads, schedule="dynamic", use_threads_if=threads > 1
        ):
            bad |= gather_unit(
                &g.p, u, source, index, kind, to, room + threadid() * room_each, streamed
            )
    return bad != 0


def scatter_units(
    Grid g, const uint8_t[::1] data, uint8_t[::1] out, const uint8_t[::1] indices, int kind,
    const uint8_t[::1] updates, int64_t unit, int64_t stop, int code, int op,
    uint8_t[::1] scratch, int threads, bint streamed,
) -> int:
    """Apply units [unit, stop) to out; with scratch, through packed copies of data's."""
    g._door(
        0, out.shape[0], indices.shape[0], kind, updates.shape[0], scratch.shape[0], threads, stop
    )
    if scratch.shape[0] and data.shape[0] < out.shape[0]:
        raise ValueError("the data buffer is shorter than its shape")
    cdef const uint8_t* source = &data[0] if scratch.shape[0] else NULL
    cdef const uint8_t* index = &indices[0]
    cdef const uint8_t* update = &updates[0]
    cdef uint8_t* to = &out[0]
    cdef uint8_t* room = &scratch[0] if scratch.shape[0] else NULL
    cdef Py_ssize_t room_each = g.p.size * g.p.tile * g.p.item if scratch.shape[0] else 0
    cdef uint64_t bad = 0
    cdef int64_t u
    with nogil:
        for u in prange(
            unit, stop, num_threads=threads, schedule="dynamic", use_threads_if=threads > 1
        ):
            bad |= scatter_unit(
                &g.p, u, source, to, index, kind, update, code, op,
                room + threadid() * room_each, streamed,
            )
    return bad != 0


def will_need(
    Addressing a, const uint8_t[::1] data, Py_ssize_t origin, const uint8_t[::1] indices, int kind,
    int64_t first, int64_t count, Py_ssize_t column, Py_ssize_t width,
) -> None:
    """Ask the system for the pages that gather, called the same way, would wait for."""
    a._door(origin, column + width, data.shape[0], indices.shape[0], kind, count)
    cdef const uint8_t* source = &data[0] + origin + column
    cdef const uint8_t* index = &indices[0]
    with nogil:
        will_need_range(&a.nd, source, index, kind, first, count, width)


cdef inline Py_ssize_t column_of(int64_t part, int64_t parts, Py_ssize_t width) noexcept nogil:
    """Return where a part's columns begin: whole cache lines, so that no two parts share one."""
    return width if part == parts else width * part // parts // LINE * LINE


def copy(const uint8_t[::1] data, uint8_t[::1] out, int threads, bint streamed) -> None:
    """Copy all of data to the beginning of out."""
    cdef int64_t part, parts = shares(threads)
    cdef Py_ssize_t n = data.shape[0], begin
    if out.shape[0] < n:
        raise ValueError("the output buffer is shorter than its shape")
    cdef const uint8_t* source = &data[0]
    cdef uint8_t* to = &out[0]
    with nogil:
        for part in prange(
            parts, num_threads=threads, schedule="dynamic", use_threads_if=threads > 1
        ):
            begin = column_of(part, parts, n)
            write_window(
                to + begin, source + begin, column_of(part + 1, parts, n) - begin, streamed
            )


def swap(uint8_t[::1] buffer, int unit) -> None:
    """Reverse the bytes of every unit of 2, 4 or 8 bytes, in place."""
    cdef uint8_t* at = &buffer[0]
    cdef Py_ssize_t i, n = buffer.shape[0] // unit
    cdef uint16_t v2
    cdef uint32_t v4
    cdef uint64_t v8
    with nogil:
        for i in range(n):
            if unit == 2:
                memcpy(&v2, at + 2 * i, 2)
                v2 = swap16(v2)
                memcpy(at + 2 * i, &v2, 2)
            elif unit == 4:
                memcpy(&v4, at + 4 * i, 4)
                v4 = swap32(v4)
                memcpy(at + 4 * i, &v4, 4)
            else:
                memcpy(&v8, at + 8 * i, 8)
                v8 = swap64(v8)
                memcpy(at + 8 * i, &v8, 8)


def end_on(int number, int status, bytes words) -> None:
    """From now on, end the process when a signal comes, unless it is ignored; see endings.py."""
    nd_end_on(number, status, words, len(words))


def remove_at_end(int folder, bytes name) -> None:
    """Name the file in a directory that such an end removes; an empty name for none."""
    nd_remove_at_end(folder, name)


def settle(bint settled) -> None:
    """Say whether the output has its name, so that signals no longer end the process."""
    with nogil:
        nd_settle(settled)


def startable(int wanted) -> int:
    """Return how many threads there can be, up to `wanted`, and let OpenMP keep so many."""
    cdef int64_t part, last = 0
    with nogil:
        wanted = nd_startable(wanted)
        for part in prange(wanted, num_threads=wanted, use_threads_if=wanted > 1):
            last = part
    return last + 1
