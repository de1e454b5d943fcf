"""Blocks of columns, which write an output that is a mapped file in complete pages.

Along an axis that is not the last, a unit is a tile of columns as wide as a cache line, and many
units write to each page of the output. If more pages are dirty than the system allows (a fraction
of its memory), it writes each of them many times. So a block, which is a group of columns at least
a page wide, is computed in a buffer; then its rows are copied to the output. If all rows do not fit
in the buffer, they are divided into bands.
"""

import mmap
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import LINE, PAGE, KernelOptions
from ndtool.engine import layouts, tuning
from ndtool.engine.bind import Buffer, Panels
from ndtool.machine import memory, scratch
from ndtool.machine.threads import limit_threads


class Block(NamedTuple):
    """Some columns of a band of a panel's rows.

    first_index: the flat position of the columns' first index. data_offset: the byte offset of
    their first element. first_row, rows: the band. panels: a panel of these columns only.
    """

    first_index: int
    data_offset: int
    first_row: int
    rows: int
    panels: Panels

    @property
    def width(self) -> int:
        """Bytes of a row."""
        return self.panels.columns * self.panels.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all rows."""
        return self.rows * self.width


def are_blocks_faster(panels: Panels, rows: int) -> bool:
    """Whether blocks are faster than stores to the mapped output: it has too many dirty pages.

    rows: rows of a panel of the output. If memory can hold the dirty pages, stores are faster.
    """
    width = panels.columns * panels.itemsize
    is_contiguous = panels.columns == panels.index_row_stride
    if not is_contiguous or width <= LINE or panels.itemsize > LINE:
        return False
    if rows * min(PAGE, width) <= tuning.INCOMPLETE_PAGES:
        return False
    return prod(panels.sizes) * rows * width > memory.available() // tuning.DIRTY_FRACTION


def divide_into_blocks(panels: Panels, rows: int, out: Buffer, bands: int) -> Iterator[Block]:
    """Yield the blocks of an output whose panels have `rows` rows, in at most `bands` bands."""
    band_rows, row_bytes = _block_shape(panels, rows, bands)
    boundaries = _column_boundaries(panels, row_bytes, _kernels.page_offset(out))
    for panel in range(prod(panels.sizes)):
        coordinates = layouts.unravel_index(panel, panels.sizes)
        first_index = sum(map(int.__mul__, coordinates, panels.index_strides))
        data_offset = sum(map(int.__mul__, coordinates, panels.data_strides))
        for column, stop in pairwise(boundaries):
            column_panels = panels._replace(
                sizes=(), index_strides=(), data_strides=(), columns=stop - column
            )
            for first_row in range(0, rows, band_rows):
                yield Block(
                    first_index + column,
                    data_offset + column * panels.column_stride,
                    first_row,
                    min(band_rows, rows - first_row),
                    column_panels,
                )


def _block_shape(panels: Panels, rows: int, bands: int) -> tuple[int, int]:
    """Return a block's rows (those of a band) and bytes per row, complete pages if possible."""
    width = panels.columns * panels.itemsize
    band_rows = -(-rows // min(rows, bands, -(-rows * min(PAGE, width) // tuning.COLUMN_BLOCK)))
    row_bytes = tuning.COLUMN_BLOCK // band_rows
    return band_rows, row_bytes // PAGE * PAGE or max(row_bytes // LINE, 1) * LINE


def _column_boundaries(panels: Panels, width: int, page_offset: int) -> list[int]:
    """Return the first columns of all blocks, and the end; page boundaries if rows are full pages.

    width: bytes of a block's row. page_offset: the output's offset within its first page.
    """
    row_bytes, first_width = panels.columns * panels.itemsize, width
    if row_bytes % PAGE == 0 and width < row_bytes:
        first_width -= page_offset % min(width, PAGE)
    columns = {0, panels.columns}
    for end in range(first_width, row_bytes, width):
        columns.add(end // panels.itemsize)
    return sorted(columns)


def write_rows(block: Block, buffer: Buffer, out: Buffer, pitch: int, threads: int) -> None:
    """Copy the rows of a block to out, with a row stride of `pitch` bytes."""
    options = KernelOptions(limit_threads(threads, 2 * block.nbytes))
    _kernels.spread(buffer[: block.nbytes], block.rows, out, pitch, options)


def allocate_buffer(panels: Panels, rows: int, bands: int, out: Buffer) -> memoryview:
    """Return a buffer for a block of an output whose panels have `rows` rows.

    Applies MADV_RANDOM to a mapped output: otherwise Linux writes a complete large folio where one
    page is dirty.
    """
    if isinstance(out, memoryview) and isinstance(out.obj, mmap.mmap):
        scratch.advise(out.obj, "MADV_RANDOM")
    band_rows, row_bytes = _block_shape(panels, rows, bands)
    max_row_bytes = min(row_bytes + panels.itemsize, panels.columns * panels.itemsize)
    return memoryview(scratch.acquire(band_rows * max_row_bytes))
