# cython: language_level=3, wraparound=False, cdivision=True
# Panels: the elements operators along an axis that is not the last. A panel is what stands at
# one coordinate of all axes but the indexed one and the last: (axis) x (columns). A unit is one
# tile of a panel's columns: narrow enough for its part of data to stay in cache while indices
# jump about in it. Rows of a tile may lie a power of two apart, which maps them to few cache
# sets; a packed tile stands in scratch without gaps. A band is some rows of a panel: a scatter
# leaves out what falls on others.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memset

from ndtool.loops.blocks cimport BLOCK, LINE, MOST_RANK, NEAR, offsets_1
from ndtool.loops.indices cimport BYTES, REFUSE, exact, ruled, settle, widened
from ndtool.loops.memory cimport prefetch_lines, store, stream, stream_end
from ndtool.loops.moves cimport ask_runs, gather_block
from ndtool.loops.runs cimport BIN, Updates, apply_block, bin_of
from ndtool.loops.views cimport copy_line

cdef enum:
    SOON = 4             # rows of a tile that are asked for ahead
    STAGED = 16          # bytes of an element whose rows are collected before they are streamed


cdef struct Panels:
    int rank                            # the axes that number the panels
    int64_t sizes[MOST_RANK]
    int64_t index_strides[MOST_RANK]    # elements
    int64_t data_strides[MOST_RANK]     # bytes
    int64_t length                      # of indices along the axis
    int64_t index_step                  # elements from one to the next along the axis
    int64_t size                        # of data along the axis
    int64_t wrap                        # the size where negative indices count from the end
    int64_t step                        # bytes from one to the next along the axis
    int64_t columns
    int64_t column_stride               # bytes
    int64_t tile                        # columns of a unit, at most BLOCK
    int64_t tiles                       # units of a panel
    int64_t low                         # the first row of the band that a scatter changes
    int64_t band                        # how many rows it has
    int64_t pitch                       # bytes from one row to the next of what is written
    Py_ssize_t item


cdef struct Units:
    # units of a grid from number `first` on: gathered, or changed by updates
    const Panels* p
    const uint8_t* data
    const uint8_t* index
    int kind                            # of index type
    int rule                            # for indices out of bounds
    const uint8_t* filling              # an element for them
    uint8_t* to
    Updates updates
    uint8_t* rooms                      # one for each thread's packed tile, or NULL
    int64_t first
    bint streamed


cdef struct Unit:
    int64_t index                       # elements before the unit's first index
    int64_t data                        # bytes before the unit's first element
    int64_t columns
    int64_t rows                        # of indices that stand side by side, at most BLOCK


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
    int64_t column_stride, int64_t elsewhere, int64_t* offsets
) noexcept nogil:
    """Turn rows of indices into byte offsets from the unit's first element in the band."""
    cdef const Panels* p = c.p
    cdef uint64_t bad = 0
    cdef int64_t i, n = u.columns, base = -p.low * step
    for i in range(rows):
        if c.rule == REFUSE:
            bad |= offsets_1(
                index + i * n, n, p.size, p.wrap, step, base, column_stride, offsets + i * n
            )
        else:
            bad |= ruled(
                index + i * n, n, 1, &p.size, &step, base, column_stride, c.rule, elsewhere,
                offsets + i * n,
            )
    return bad


cdef inline uint64_t resolve_unit(
    const Units* c, const Unit* u, int64_t place, int64_t rows, int64_t step,
    int64_t column_stride, int64_t elsewhere, int64_t* offsets
) noexcept nogil:
    """Do the same one after the other, wherever they are; non-zero where that is an error."""
    cdef int64_t entries[BLOCK]
    cdef const int64_t* index
    cdef int64_t i, j, v, n = u.columns, base = -c.p.low * step
    cdef bint whole = False, outside
    if c.rule == REFUSE:
        return 1
    index = exact(c.index + place * (c.kind & BYTES), c.kind, rows * n, entries, &whole)
    for i in range(rows):
        for j in range(n):
            v = index[i * n + j]
            outside = settle(&v, c.p.size, c.rule, whole)
            offsets[i * n + j] = elsewhere if outside else v * step + base + j * column_stride
    return 0


cdef inline void leave_out(
    const Panels* p, const Unit* u, int64_t rows, int64_t* offsets
) noexcept nogil:
    """Let what falls outside of the band change the row behind it, in a packed tile."""
    cdef int64_t j, out, n = u.columns, end = p.band * n * p.item
    for _ in range(rows):
        for j in range(n):
            out = (offsets[j] | (end - 1 - offsets[j])) >> 63    # no branch: it is hard to foresee
            offsets[j] = (offsets[j] & ~out) | ((end + j * p.item) & out)
        offsets += n


cdef inline void pack(
    const Panels* p, const Unit* u, const uint8_t* data, uint8_t* scratch
) noexcept nogil:
    cdef int64_t i, width = u.columns * p.item
    data += p.low * p.step
    for i in range(p.band):
        copy_line(scratch + i * width, data + i * p.step, p.column_stride, u.columns, p.item)


cdef inline void unpack(
    const Panels* p, const Unit* u, const uint8_t* scratch, uint8_t* out, bint streamed
) noexcept nogil:
    cdef int64_t i, width = u.columns * p.item, pitch = p.pitch if p.pitch else p.step
    for i in range(p.band):
        store(out + i * pitch, scratch + i * width, width, streamed)
    if streamed:
        stream_end()


cdef inline int64_t room_rows(const Panels* p) noexcept nogil:
    """Return the rows of a packed tile: the band's, and one for what falls outside of it."""
    return p.band + (p.band < p.size)


cdef inline uint8_t* room_of(const Units* c, int thread) noexcept nogil:
    return c.rooms + thread * room_rows(c.p) * c.p.tile * c.p.item if c.rooms else NULL


cdef inline uint64_t gather_unit(const void* call, int64_t part, int thread) noexcept nogil:
    """Gather one unit; through a packed copy where there are rooms."""
    cdef const Units* c = <const Units*> call
    cdef const Panels* p = c.p
    cdef const uint8_t* indices = c.index
    cdef uint8_t* room = room_of(c, thread)
    cdef int64_t offsets[BLOCK]
    cdef int64_t entries[BLOCK]
    cdef uint8_t stage[BLOCK * STAGED]
    cdef Unit u = unit_at(p, c.first + part)
    cdef int64_t row = 0, rows, place, soon, step = p.step, column_stride = p.column_stride
    cdef int64_t pitch = p.pitch if p.pitch else p.index_step * p.item
    cdef int bytes_each = c.kind & BYTES
    cdef const uint8_t* source = c.data + u.data
    cdef uint8_t* out = c.to + u.index * p.item
    cdef uint8_t* to
    cdef const int64_t* index
    cdef int64_t elsewhere
    cdef bint streamed = c.streamed and p.item <= STAGED
    cdef bint near = p.size * u.columns * p.item <= NEAR
    if room:
        pack(p, &u, source, room)
        source = room
        step = u.columns * p.item
        column_stride = p.item
    elsewhere = c.filling - source
    while row < p.length:
        rows = min(u.rows, p.length - row)
        place = u.index + row * p.index_step
        index = widened(indices + place * bytes_each, c.kind, rows * u.columns, entries)
        if u.rows == 1 and row + SOON < p.length:
            soon = place + SOON * p.index_step
            prefetch_lines(indices + soon * bytes_each, u.columns * bytes_each)
        if unit_offsets(
            c, &u, index, rows, step, column_stride, elsewhere, offsets
        ) and resolve_unit(c, &u, place, rows, step, column_stride, elsewhere, offsets):
            return 1
        if not room and not near:
            ask_runs(source, offsets, rows * u.columns)
        to = &stage[0] if streamed else out + row * pitch
        gather_block(to, source, offsets, rows * u.columns, p.item, 0)
        if streamed:
            stream(out + row * pitch, stage, rows * u.columns * p.item)
        row += rows
    if streamed:
        stream_end()
    return 0


cdef inline uint64_t scatter_unit(const void* call, int64_t part, int thread) noexcept nogil:
    """Change one unit, in row-major order; through a packed copy of data where there are rooms."""
    cdef const Units* c = <const Units*> call
    cdef const Panels* p = c.p
    cdef const uint8_t* indices = c.index
    cdef const uint8_t* updates = c.updates.first
    cdef uint8_t* room = room_of(c, thread)
    cdef int64_t offsets[BLOCK]
    cdef int64_t entries[BLOCK]
    cdef Unit u = unit_at(p, c.first + part)
    cdef int64_t row = 0, rows, place, soon, step = p.step, column_stride = p.column_stride
    cdef int bytes_each = c.kind & BYTES
    cdef uint8_t* to = c.to + u.data
    cdef const int64_t* index
    cdef int64_t bin[BIN]
    cdef int64_t elsewhere
    if room:
        pack(p, &u, c.data + u.data, room)
        to = room
        step = u.columns * p.item
        column_stride = p.item
    memset(bin, 0, LINE)
    elsewhere = bin_of(bin, to, p.item)
    while row < p.length:
        rows = min(u.rows, p.length - row)
        place = u.index + row * p.index_step
        index = widened(indices + place * bytes_each, c.kind, rows * u.columns, entries)
        if u.rows == 1 and row + SOON < p.length:
            soon = place + SOON * p.index_step
            prefetch_lines(indices + soon * bytes_each, u.columns * bytes_each)
            prefetch_lines(updates + soon * p.item, u.columns * p.item)
        if unit_offsets(
            c, &u, index, rows, step, column_stride, elsewhere, offsets
        ) and resolve_unit(c, &u, place, rows, step, column_stride, elsewhere, offsets):
            return 1
        if p.band < p.size:
            leave_out(p, &u, rows, offsets)
        apply_block(
            &c.updates, to, offsets, updates + place * p.item, rows * u.columns, p.item
        )
        row += rows
    if room:
        unpack(p, &u, room, c.to + u.data, c.streamed)
    return 0
