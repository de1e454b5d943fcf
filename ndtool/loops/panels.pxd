# cython: language_level=3, wraparound=False, cdivision=True
# Panels: gathers and scatters of elements along an axis that is not the last, in units: tiles of
# columns that fit in cache, often packed, because rows a power of two apart share few cache sets.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memset

from ndtool.loops.blocks cimport BLOCK, LINE, MOST_RANK, offsets_1
from ndtool.loops.indices cimport (
    BYTES, REFUSE, SPECIAL, BoundsMode, apply_mode, bounded_exact, widened, widened_exact,
)
from ndtool.loops.memory cimport prefetch_lines, store, stream, stream_end
from ndtool.loops.moves cimport gather_block
from ndtool.loops.scatters cimport (
    BAD, FIRST_PASS, SINK, Updates, after_first_pass, apply_block, complete, first_pass_of,
    of_window, sink_offset,
)
from ndtool.loops.views cimport copy_strided

cdef enum:
    ROWS_AHEAD = 4       # prefetch distance, in rows of a tile
    STAGED = 16          # largest itemsize whose rows are staged before they are streamed


cdef struct Panels:
    int rank                          # number of axes over the panels, which have two axes each
    int64_t sizes[MOST_RANK]
    int64_t index_strides[MOST_RANK]  # elements
    int64_t data_strides[MOST_RANK]   # bytes
    int64_t length                    # of indices along the axis
    int64_t index_step                # stride of indices along the axis, in elements
    int64_t size                      # of data along the axis
    int64_t wrap                      # the size if negative indices count from the end, else 0
    int64_t step                      # stride of data along the axis, in bytes
    int64_t columns
    int64_t column_stride             # bytes
    int64_t tile                      # columns of a unit, at most BLOCK
    int64_t tiles                     # units of a panel
    int64_t low                       # first row of the band that a scatter updates
    int64_t band                      # rows of the band
    int64_t pitch                     # row stride of the output in bytes; 0: that of the array
    Py_ssize_t itemsize


cdef struct Units:
    # units to gather or update, from `first` on
    const Panels* p
    const uint8_t* data
    const uint8_t* index
    int kind                  # the index type: see indices.pxd
    int mode                  # the out-of-bounds mode
    bint pads                 # an index that is `pad` selects nothing
    int64_t pad
    const uint8_t* filling    # the fill value: one element
    uint8_t* to
    Updates updates
    uint8_t* buffers          # a packed tile per thread, `scratch` bytes apart, or NULL
    Py_ssize_t scratch
    int64_t first
    bint streamed


cdef struct Unit:
    int64_t index    # elements before the unit's first index
    int64_t data     # bytes before the unit's first element
    int64_t columns
    int64_t rows     # rows of indices at once: 1 unless they are contiguous


cdef inline Unit unit_at(const Panels* p, int64_t number) noexcept nogil:
    cdef Unit u
    cdef int64_t panel = number // p.tiles, column = number % p.tiles * p.tile
    cdef int d
    u.index = column
    u.data = column * p.column_stride
    u.columns = min(p.tile, p.columns - column)
    for d in reversed(range(p.rank)):
        u.index += panel % p.sizes[d] * p.index_strides[d]
        u.data += panel % p.sizes[d] * p.data_strides[d]
        panel //= p.sizes[d]
    u.rows = BLOCK // u.columns if p.index_step == u.columns else 1
    return u


cdef inline uint64_t unit_offsets(
    const Units* c, const Unit* u, const int64_t* index, int64_t rows, int64_t step,
    int64_t column_stride, int64_t redirect, int64_t* offsets
) noexcept nogil:
    """Convert rows of indices to byte offsets from the unit's first element in the band."""
    cdef const Panels* p = c.p
    cdef uint64_t bad = 0
    cdef int64_t i, n = u.columns, base = -p.low * step
    cdef BoundsMode mode
    if c.kind & SPECIAL:
        return 1
    for i in range(rows):
        if c.mode == REFUSE:
            bad |= offsets_1(
                index + i * n, n, p.size, p.wrap, step, base, column_stride, offsets + i * n
            )
        else:
            mode = BoundsMode(&p.size, &step, base, column_stride, c.mode, redirect)
            bad |= apply_mode(&mode, index + i * n, n, 1, offsets + i * n)
    return bad


cdef inline uint64_t resolve_unit(
    const Units* c, const Unit* u, int64_t start, int64_t rows, int64_t step,
    int64_t column_stride, int64_t redirect, int64_t* offsets
) noexcept nogil:
    """Convert rows of indices one by one; non-zero if one is out of bounds in mode "error"."""
    cdef int64_t entries[BLOCK]
    cdef const int64_t* index
    cdef int64_t i, j, v, n = u.columns, base = -c.p.low * step
    cdef bint is_uint64 = False, out_of_bounds
    if c.mode == REFUSE and not c.pads:
        return 1
    index = widened_exact(c.index + start * (c.kind & BYTES), c.kind, rows * n, entries, &is_uint64)
    for i in range(rows):
        for j in range(n):
            v = index[i * n + j]
            out_of_bounds = c.pads and v == c.pad
            if not out_of_bounds:
                out_of_bounds = bounded_exact(&v, c.p.size, c.p.wrap, c.mode, is_uint64)
                if out_of_bounds and c.mode == REFUSE:
                    return 1
            offsets[i * n + j] = redirect if out_of_bounds else v * step + base + j * column_stride
    return 0


cdef inline void drop_outside_band(
    const Panels* p, const Unit* u, int64_t rows, int64_t* offsets
) noexcept nogil:
    """Redirect updates outside of the band to an additional last row of the packed tile."""
    cdef int64_t j, out, n = u.columns, end = p.band * n * p.itemsize
    for _ in range(rows):
        for j in range(n):
            out = (offsets[j] | (end - 1 - offsets[j])) >> 63    # a branch would mispredict
            offsets[j] = (offsets[j] & ~out) | ((end + j * p.itemsize) & out)
        offsets += n


cdef inline void pack_tile(
    const Panels* p, const Unit* u, const uint8_t* data, uint8_t* scratch
) noexcept nogil:
    cdef int64_t i, width = u.columns * p.itemsize
    data += p.low * p.step
    for i in range(p.band):
        copy_strided(scratch + i * width, data + i * p.step, p.column_stride, u.columns, p.itemsize)


cdef inline void unpack_tile(
    const Panels* p, const Unit* u, const uint8_t* scratch, uint8_t* out, bint streamed
) noexcept nogil:
    cdef int64_t i, width = u.columns * p.itemsize, pitch = p.pitch if p.pitch else p.step
    for i in range(p.band):
        store(out + i * pitch, scratch + i * width, width, streamed)
    if streamed:
        stream_end()


cdef inline int64_t packed_rows(const Panels* p) noexcept nogil:
    """Return the rows of a packed tile: the band, and one for updates outside of it."""
    return p.band + (p.band < p.size)


cdef inline uint8_t* packed_buffer(const Units* c, int thread) noexcept nogil:
    return c.buffers + thread * c.scratch if c.buffers else NULL


cdef inline uint64_t gather_unit(const Units* c, int64_t task, int thread) noexcept nogil:
    """Gather one unit, through a packed copy if there are buffers."""
    cdef const Panels* p = c.p
    cdef const uint8_t* indices = c.index
    cdef uint8_t* packed = packed_buffer(c, thread)
    cdef int64_t offsets[BLOCK]
    cdef int64_t entries[BLOCK]
    cdef uint8_t stage[BLOCK * STAGED]
    cdef Unit u = unit_at(p, c.first + task)
    cdef int64_t row = 0, rows, start, soon, step = p.step, column_stride = p.column_stride
    cdef int64_t redirect, pitch = p.pitch if p.pitch else p.index_step * p.itemsize
    cdef int bytes_each = c.kind & BYTES
    cdef const uint8_t* source = c.data + u.data
    cdef uint8_t* out = c.to + u.index * p.itemsize
    cdef uint8_t* to
    cdef const int64_t* index
    cdef bint streamed = c.streamed and p.itemsize <= STAGED
    if packed:
        pack_tile(p, &u, source, packed)
        source = packed
        step = u.columns * p.itemsize
        column_stride = p.itemsize
    redirect = c.filling - source
    while row < p.length:
        rows = min(u.rows, p.length - row)
        start = u.index + row * p.index_step
        index = widened(indices + start * bytes_each, c.kind, rows * u.columns, entries)
        if u.rows == 1 and row + ROWS_AHEAD < p.length:
            soon = start + ROWS_AHEAD * p.index_step
            prefetch_lines(indices + soon * bytes_each, u.columns * bytes_each)
        if unit_offsets(
            c, &u, index, rows, step, column_stride, redirect, offsets
        ) and resolve_unit(c, &u, start, rows, step, column_stride, redirect, offsets):
            return 1
        to = &stage[0] if streamed else out + row * pitch
        gather_block(to, source, offsets, rows * u.columns, p.itemsize, 0)
        if streamed:
            stream(out + row * pitch, stage, rows * u.columns * p.itemsize)
        row += rows
    if streamed:
        stream_end()
    return 0


cdef inline uint64_t scatter_unit(const Units* c, int64_t task, int thread) noexcept nogil:
    """Update one unit, in row-major order, through a packed copy of data if there are buffers."""
    cdef const Panels* p = c.p
    cdef uint8_t* packed = packed_buffer(c, thread)
    cdef Unit u = unit_at(p, c.first + task)
    cdef Py_ssize_t nbytes = packed_rows(p) * u.columns * p.itemsize
    cdef uint8_t* to = packed if packed else c.to + u.data
    cdef Updates updates = c.updates
    cdef uint64_t nan = 0
    updates.found = &nan
    if packed:
        pack_tile(p, &u, c.data + u.data, packed)
        updates = of_window(&c.updates, packed, packed, nbytes)
    if packed and updates.neutral:
        if scatter_tile(c, &u, first_pass_of(&updates, &nan), to, True):
            return BAD
        after_first_pass(&updates, nan)
    if scatter_tile(c, &u, updates, to, packed != NULL):
        return BAD
    if packed:
        complete(&c.updates, &updates, packed, nbytes)
        unpack_tile(p, &u, packed, c.to + u.data, c.streamed)
    return nan if c.updates.op == FIRST_PASS else 0


cdef inline uint64_t scatter_tile(
    const Units* c, const Unit* u, Updates updates, uint8_t* to, bint packed
) noexcept nogil:
    """Apply the updates of a unit, whose first element in the band is at `to`."""
    cdef const Panels* p = c.p
    cdef int64_t offsets[BLOCK]
    cdef int64_t entries[BLOCK]
    cdef int64_t sink[SINK]
    cdef int64_t row = 0, rows, start, soon, redirect
    cdef int64_t step = u.columns * p.itemsize if packed else p.step
    cdef int64_t column_stride = p.itemsize if packed else p.column_stride
    cdef int bytes_each = c.kind & BYTES
    cdef const int64_t* index
    memset(sink, 0, LINE)
    redirect = sink_offset(&updates, sink, to)
    while row < p.length:
        rows = min(u.rows, p.length - row)
        start = u.index + row * p.index_step
        index = widened(c.index + start * bytes_each, c.kind, rows * u.columns, entries)
        if u.rows == 1 and row + ROWS_AHEAD < p.length:
            soon = start + ROWS_AHEAD * p.index_step
            prefetch_lines(c.index + soon * bytes_each, u.columns * bytes_each)
            prefetch_lines(updates.first + soon * p.itemsize, u.columns * p.itemsize)
        if unit_offsets(
            c, u, index, rows, step, column_stride, redirect, offsets
        ) and resolve_unit(c, u, start, rows, step, column_stride, redirect, offsets):
            return BAD
        if p.band < p.size:
            drop_outside_band(p, u, rows, offsets)
        apply_block(
            &updates, to, offsets, updates.first + start * p.itemsize, rows * u.columns, p.itemsize
        )
        row += rows
    return 0
