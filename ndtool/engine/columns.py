"""Blocks of columns, which write an output that is a mapped file in complete pages.

Along an axis that is not the last, a unit is a tile of columns as wide as a cache line, and many
units write to each page of the output. If more pages are dirty than the system allows, which
depends on its memory, it writes each of them many times. So a group of columns, at least a page
wide, is computed in a buffer, in bands of rows if not all fit; then its rows are copied to the
output.
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

    first_index: the position of the columns' first index. data: the byte offset of their first
    element. first, rows: the band. panels: the plan of these columns alone.
    """

    first_index: int
    data: int
    first: int
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


def are_blocks_faster(p: Panels, rows: int) -> bool:
    """Whether panels of `rows` rows need blocks, since they would dirty too many pages at once.

    If memory can hold the dirty pages, stores through the map are faster.
    """
    width = p.columns * p.itemsize
    whole = p.columns == p.index_step and width > LINE and p.itemsize <= LINE
    if not whole or rows * min(PAGE, width) <= tuning.INCOMPLETE_PAGES:
        return False
    return prod(p.sizes) * rows * width > memory.available() // tuning.DIRTY_FRACTION


def divide_into_blocks(p: Panels, rows: int, out: Buffer, bands: int) -> Iterator[Block]:
    """Yield the blocks of an output's panels of `rows` rows each, in at most `bands` bands."""
    band, limit = _block_shape(p, rows, bands)
    edges = _edges(p, limit, _kernels.page_offset(out))
    for panel in range(prod(p.sizes)):
        at = layouts.unravel_index(panel, p.sizes)
        first_index = sum(map(int.__mul__, at, p.index_strides))
        data = sum(map(int.__mul__, at, p.data_strides))
        for column, stop in pairwise(edges):
            panels = p._replace(sizes=(), index_strides=(), data_strides=(), columns=stop - column)
            for first in range(0, rows, band):
                yield Block(
                    first_index + column,
                    data + column * p.column_stride,
                    first,
                    min(band, rows - first),
                    panels,
                )


def _block_shape(p: Panels, rows: int, bands: int) -> tuple[int, int]:
    """Return the rows of a band and the bytes of a row in a group: complete pages if possible."""
    width = p.columns * p.itemsize
    band = -(-rows // min(rows, bands, -(-rows * min(PAGE, width) // tuning.COLUMN_BLOCK)))
    limit = tuning.COLUMN_BLOCK // band
    return band, limit // PAGE * PAGE or max(limit // LINE, 1) * LINE


def _edges(p: Panels, width: int, skew: int) -> list[int]:
    """Return the edges of groups of columns, at page boundaries if rows are complete pages.

    width: bytes of a group's row. skew: the output's offset within its first page.
    """
    whole, lead = p.columns * p.itemsize, width
    if whole % PAGE == 0 and width < whole:
        lead -= skew % min(width, PAGE)
    edges = {0, p.columns}
    for end in range(lead, whole, width):
        edges.add(end // p.itemsize)
    return sorted(edges)


def write_rows(block: Block, buffer: Buffer, out: Buffer, pitch: int, threads: int) -> None:
    """Copy the rows of a block to out, `pitch` bytes from row to row."""
    options = KernelOptions(limit_threads(threads, 2 * block.nbytes))
    _kernels.spread(buffer[: block.nbytes], block.rows, out, pitch, options)


def allocate_buffer(p: Panels, rows: int, bands: int, out: Buffer) -> memoryview:
    """Return a buffer for the blocks of an output's panels of `rows` rows each.

    A mapped output gets MADV_RANDOM, since the system would write a complete large folio where one
    page is dirty.
    """
    if isinstance(out, memoryview) and isinstance(out.obj, mmap.mmap):
        scratch.advise(out.obj, "MADV_RANDOM")
    band, limit = _block_shape(p, rows, bands)
    return memoryview(scratch.acquire(band * min(limit + p.itemsize, p.columns * p.itemsize)))
