# cython: language_level=3, wraparound=False, cdivision=True
# Panels: gathers and scatters of elements along an axis that is not the last, in units: tiles of
# columns that fit in cache, often packed, because rows a power of two apart share few cache sets.

from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memset

from ndtool.loops.blocks cimport (
    BLOCK, FEW, LINE, MAX_RANK, Bounds, is_usual_width, resolve_offsets, tuple_offsets,
)
from ndtool.loops.gathers cimport RowBlock, bind_row_indices, copy_by_width, stream_full_lines
from ndtool.loops.indices cimport ERROR, ITEMSIZE_MASK, UNVECTORIZED, as_int64
from ndtool.loops.memory cimport prefetch_lines, stream, stream_end
from ndtool.loops.moves cimport move_block
from ndtool.loops.scatters cimport (
    NEUTRAL, SINK, Updates, apply_block, divide_window, fill_pass, sink_offset, window_updates,
)
from ndtool.loops.views cimport copy_run

cdef enum:
    ROWS_AHEAD = 4              # prefetch distance, in rows of a tile
    NEAR_BYTES = 16777216       # bytes of lines that are read, up to which elements go by row
    MAX_STAGED_ITEMSIZE = 16    # bytes of an element, up to which rows are staged


cdef struct Panels:
    int rank                           # number of axes that enumerate the panels
    int64_t sizes[MAX_RANK]
    int64_t index_strides[MAX_RANK]    # elements
    int64_t data_strides[MAX_RANK]     # bytes
    int64_t index_rows                 # rows of a panel of indices
    int64_t index_row_stride           # elements
    int64_t data_rows                  # rows of a panel of data
    int64_t wrap                       # the size if negative indices count from the end, else 0
    int64_t row_stride                 # bytes
    int64_t columns
    int64_t column_stride              # bytes
    int64_t tile                       # columns of a unit, at most BLOCK
    int64_t tiles                      # of a panel
    int64_t bands                      # units of a tile: of a gather, each has some rows of indices
    Py_ssize_t itemsize


cdef struct Units:
    # units to gather or update, from `first` on
    const Panels* p
    const uint8_t* data
    const uint8_t* index
    int kind                     # the index type: see indices.pxd
    int mode                     # the out-of-bounds mode
    bint has_pad                 # an index that is `pad` selects nothing
    int64_t pad
    const uint8_t* fill_value    # the fill value: one element
    uint8_t* target
    Updates updates
    uint8_t* buffers             # a packed tile for each thread, each of `scratch` bytes; or NULL
    Py_ssize_t scratch
    int64_t first
    bint non_temporal


cdef struct Unit:
    int64_t index    # elements before the unit's first index
    int64_t data     # bytes before the unit's first element
    int64_t columns
    int64_t rows     # rows of indices per block: 1 unless they are contiguous
    int64_t first_row, stop_row    # of indices


cdef inline Unit locate_unit(const Panels* p, int64_t unit_number) noexcept nogil:
    cdef Unit unit
    cdef int64_t band = unit_number % p.bands, column = unit_number // p.bands % p.tiles * p.tile
    cdef int64_t panel = unit_number // p.bands // p.tiles
    cdef int d
    unit.first_row = p.index_rows * band // p.bands
    unit.stop_row = p.index_rows * (band + 1) // p.bands
    unit.index = column
    unit.data = column * p.column_stride
    unit.columns = min(p.tile, p.columns - column)
    for d in reversed(range(p.rank)):
        unit.index += panel % p.sizes[d] * p.index_strides[d]
        unit.data += panel % p.sizes[d] * p.data_strides[d]
        panel //= p.sizes[d]
    unit.rows = 1
    if p.index_row_stride == unit.columns:
        unit.rows = max(1, min(BLOCK // unit.columns, unit.stop_row - unit.first_row))
    return unit


cdef inline void fill_increments(
    const Unit* unit, int64_t column_stride, int64_t* increments
) noexcept nogil:
    """Fill in the offset of each element of a block of rows from its row of data."""
    cdef int64_t i, column = 0
    for i in range(unit.rows * unit.columns):
        increments[i] = column * column_stride
        column = 0 if column + 1 == unit.columns else column + 1


cdef inline void prefetch_index_rows(
    const Units* c, const Unit* unit, int64_t row
) noexcept nogil:
    """Prefetch indices of a later row, which hardware does not where rows are not contiguous."""
    cdef int64_t pitch = c.p.index_row_stride
    cdef int index_itemsize = c.kind & ITEMSIZE_MASK
    if unit.rows == 1 and row + ROWS_AHEAD < c.p.index_rows:
        prefetch_lines(
            c.index + (unit.index + (row + ROWS_AHEAD) * pitch) * index_itemsize,
            unit.columns * index_itemsize,
        )


cdef inline uint64_t tile_offsets(
    const Units* c, const uint8_t* stored, Py_ssize_t n, int64_t step, int64_t column_stride,
    const int64_t* increments, int64_t redirect_offset, int64_t* offsets,
) noexcept nogil:
    """Convert n <= BLOCK stored indices to byte offsets from the first element of a unit.

    step: bytes from one row to the next. column_stride: 0, unless they are a row from its first
    column on. Non-zero if an index is out of bounds in mode "error".
    """
    cdef int64_t values[BLOCK]
    cdef uint64_t bad = c.kind & UNVECTORIZED
    cdef int64_t i
    cdef Bounds bounds = Bounds(
        &c.p.data_rows, &c.p.wrap, &step, 0, column_stride, c.mode, redirect_offset, c.has_pad,
        c.pad,
    )
    if not bad:
        bad = tuple_offsets(&bounds, as_int64(stored, c.kind, n, values), n, 1, offsets)
    if bad and resolve_offsets(&bounds, stored, c.kind, n, 1, offsets):
        return 1
    if column_stride:
        return 0
    if c.mode == ERROR and not c.has_pad:
        for i in range(n):
            offsets[i] += increments[i]
    else:
        for i in range(n):
            offsets[i] += 0 if offsets[i] == redirect_offset else increments[i]
    return 0


cdef inline void pack_tile(
    const Panels* p, const Unit* unit, const uint8_t* data, uint8_t* scratch
) noexcept nogil:
    cdef int64_t i
    for i in range(p.data_rows):
        copy_run(
            scratch + i * unit.columns * p.itemsize, p.itemsize, data + i * p.row_stride,
            p.column_stride, unit.columns, p.itemsize,
        )


cdef inline void unpack_tile(
    const Panels* p, const Unit* unit, const uint8_t* scratch, uint8_t* out
) noexcept nogil:
    cdef int64_t i, width = unit.columns * p.itemsize
    for i in range(p.data_rows):
        memcpy(out + i * p.row_stride, scratch + i * width, width)


cdef inline uint8_t* packed_buffer(const Units* c, int thread) noexcept nogil:
    return c.buffers + thread * c.scratch if c.buffers else NULL


cdef inline uint64_t gather_unit(const void* args, int64_t task, int thread) noexcept nogil:
    """Gather one unit; with buffers, from a packed copy of its tile."""
    cdef const Units* c = <const Units*> args
    cdef const Panels* p = c.p
    cdef uint8_t* packed_tile = packed_buffer(c, thread)
    cdef int64_t increments[BLOCK]
    cdef uint8_t stage[BLOCK * MAX_STAGED_ITEMSIZE + LINE]
    cdef Unit unit = locate_unit(p, c.first + task)
    cdef int64_t row = unit.first_row, rows, step = p.row_stride, column_stride = p.column_stride
    cdef Py_ssize_t pending = 0, nbytes, few = 1    # bytes in the stage
    cdef const uint8_t* source = c.data + unit.data
    cdef uint8_t* block
    cdef uint8_t* target = c.target + (unit.index + row * p.index_row_stride) * p.itemsize
    cdef bint non_temporal = c.non_temporal and p.itemsize <= MAX_STAGED_ITEMSIZE
    if packed_tile:
        pack_tile(p, &unit, source, packed_tile)
        source = packed_tile
        step = unit.columns * p.itemsize
        column_stride = p.itemsize
    fill_increments(&unit, column_stride, increments)
    while row < unit.stop_row:
        rows = min(unit.rows, unit.stop_row - row)
        nbytes = rows * unit.columns * p.itemsize
        prefetch_index_rows(c, &unit, row)
        block = target
        if non_temporal:
            block = stage + pending
        if gather_from_tile(
            c, c.index + (unit.index + row * p.index_row_stride) * (c.kind & ITEMSIZE_MASK),
            rows * unit.columns, source, step, column_stride if rows == 1 else 0, increments,
            block, &few
        ):
            return 1
        row += rows
        if not non_temporal:
            target += rows * p.index_row_stride * p.itemsize
        elif p.index_row_stride == unit.columns:
            target += stream_full_lines(target, stage, pending + nbytes, &pending)
        else:
            stream(target, stage, nbytes)
            target += p.index_row_stride * p.itemsize
    if non_temporal:
        stream(target, stage, pending)
        stream_end()
    return 0


cdef inline uint64_t gather_from_tile(
    const Units* c, const uint8_t* stored, Py_ssize_t n, const uint8_t* source, int64_t step,
    int64_t column_stride, const int64_t* increments, uint8_t* target, Py_ssize_t* few
) noexcept nogil:
    """Gather n <= BLOCK elements of a tile by their stored indices, `few` by offsets after each
    index that is negative or out of bounds; non-zero if the mode does not allow one.

    column_stride: 0, unless the elements are a row.
    """
    cdef int64_t values[BLOCK]
    cdef int64_t offsets[BLOCK]
    cdef const Panels* p = c.p
    cdef int64_t extent = min(p.data_rows * max(step, -step), p.index_rows * p.columns * LINE)
    cdef bint by_row = (
        is_usual_width(p.itemsize) and not c.kind & UNVECTORIZED
        # else loads overlap more by offsets, and those of a row cost less
        and extent <= NEAR_BYTES and (c.mode != ERROR or not column_stride)
    )
    cdef Py_ssize_t gathered, tried, n_few
    cdef RowBlock rows
    rows.stride = step
    while n:
        gathered, n_few = 0, n
        if by_row:
            tried = n if few[0] < BLOCK else min(n, 4 * FEW)
            bind_row_indices(&rows, stored, c.kind, tried, p.data_rows, values)
            rows.source, rows.increments, rows.target = source, increments, target
            gathered = copy_by_width(&rows, p.itemsize)
            few[0] = 1 if gathered >= 4 * FEW else min(4 * few[0], BLOCK)
            n_few = min(few[0], n - gathered) if gathered < tried else 0
        # in a row, offsets are from the column of the first element, else from that of the tile
        source += gathered * column_stride
        increments += 0 if column_stride else gathered
        stored += gathered * (c.kind & ITEMSIZE_MASK)
        target += gathered * p.itemsize
        if tile_offsets(
            c, stored, n_few, step, column_stride, increments, c.fill_value - source, offsets
        ):
            return 1
        move_block(target, NULL, source, offsets, n_few, p.itemsize, p.itemsize, 0)
        source += n_few * column_stride
        increments += 0 if column_stride else n_few
        stored += n_few * (c.kind & ITEMSIZE_MASK)
        target += n_few * p.itemsize
        n -= gathered + n_few
    return 0


cdef inline uint64_t scatter_unit(const void* args, int64_t task, int thread) noexcept nogil:
    """Update one unit, in row-major order; with buffers, in a packed copy of its tile."""
    cdef const Units* c = <const Units*> args
    cdef const Panels* p = c.p
    cdef uint8_t* packed_tile = packed_buffer(c, thread)
    cdef Unit unit = locate_unit(p, c.first + task)
    cdef Py_ssize_t nbytes = p.data_rows * unit.columns * p.itemsize
    cdef uint8_t* target = packed_tile if packed_tile else c.target + unit.data
    cdef Updates updates = c.updates
    if packed_tile:
        pack_tile(p, &unit, c.data + unit.data, packed_tile)
        updates = window_updates(&c.updates, packed_tile, packed_tile, nbytes)
    if updates.current == NEUTRAL and scatter_tile(
        c, &unit, fill_pass(&updates), target, packed_tile != NULL
    ):
        return 1
    if scatter_tile(c, &unit, updates, target, packed_tile != NULL):
        return 1
    if packed_tile:
        divide_window(&c.updates, &updates, packed_tile, nbytes)
        unpack_tile(p, &unit, packed_tile, c.target + unit.data)
    return 0


cdef inline uint64_t scatter_tile(
    const Units* c, const Unit* unit, Updates updates, uint8_t* target, bint packed_tile
) noexcept nogil:
    """Apply the updates of a unit, whose first element is at `target`."""
    cdef const Panels* p = c.p
    cdef int64_t offsets[BLOCK]
    cdef int64_t increments[BLOCK]
    cdef int64_t sink[SINK]
    cdef int64_t row = 0, rows, redirect_offset, position
    cdef int64_t step = unit.columns * p.itemsize if packed_tile else p.row_stride
    cdef int64_t column_stride = p.itemsize if packed_tile else p.column_stride
    cdef const uint8_t* update
    memset(sink, 0, LINE)
    fill_increments(unit, column_stride, increments)
    redirect_offset = sink_offset(&updates, sink, target)
    while row < p.index_rows:
        rows = min(unit.rows, p.index_rows - row)
        position = unit.index + row * p.index_row_stride
        update = updates.first + position * p.itemsize
        prefetch_index_rows(c, unit, row)
        if unit.rows == 1 and row + ROWS_AHEAD < p.index_rows:
            prefetch_lines(
                update + ROWS_AHEAD * p.index_row_stride * p.itemsize, unit.columns * p.itemsize
            )
        if tile_offsets(
            c, c.index + position * (c.kind & ITEMSIZE_MASK), rows * unit.columns, step,
            column_stride if rows == 1 else 0, increments, redirect_offset, offsets
        ):
            return 1
        apply_block(&updates, target, offsets, update, rows * unit.columns, p.itemsize)
        row += rows
    return 0
