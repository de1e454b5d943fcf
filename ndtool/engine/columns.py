"""Blocks of columns: how an output that is a mapped file is made in whole pages.

Along an axis that is not the last, a unit is a tile of columns as wide as a cache line, and a page
of the output has those of many units: where more pages wait for the rest than the system lets wait,
which depends on its memory, each is written again and again. There a group of columns, as wide as
a page or more, is finished in a room, in bands of rows where not all of them fit; then its rows are
copied to where they belong.
"""

import mmap
from collections.abc import Iterator
from itertools import pairwise
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import LINE, PAGE, How
from ndtool.engine import layouts, memory, scratch, tuning
from ndtool.engine.bind import Buffer, Panels
from ndtool.engine.threads import team


class Block(NamedTuple):
    """Some columns of a band of a panel's rows.

    place: elements before the panel's first index in these columns. data: bytes before its first
    element in them. first, rows: the band. panels: as which the columns are bound.
    """

    place: int
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


def suit(p: Panels, rows: int) -> bool:
    """Whether panels of so many rows are made in blocks: they keep many pages waiting.

    Where memory lets them wait, stores through the map cost the system less.
    """
    width = p.columns * p.itemsize
    whole = p.columns == p.index_step and width > LINE and p.itemsize <= LINE
    if not whole or rows * min(PAGE, width) <= tuning.WAITING:
        return False
    return prod(p.sizes) * rows * width > memory.available() // tuning.DIRTY


def blocks(p: Panels, rows: int, out: Buffer, bands: int) -> Iterator[Block]:
    """Cut the panels of an output, each of so many rows, into blocks, in `bands` bands at most."""
    band, limit = _cut(p, rows, bands)
    edges = _edges(p, limit, _kernels.within_page(out))
    for panel in range(prod(p.sizes)):
        at = layouts.unravel(panel, p.sizes)
        place = sum(map(int.__mul__, at, p.index_strides))
        data = sum(map(int.__mul__, at, p.data_strides))
        for column, stop in pairwise(edges):
            part = p._replace(sizes=(), index_strides=(), data_strides=(), columns=stop - column)
            for first in range(0, rows, band):
                yield Block(
                    place + column,
                    data + column * p.column_stride,
                    first,
                    min(band, rows - first),
                    part,
                )


def _cut(p: Panels, rows: int, bands: int) -> tuple[int, int]:
    """Return the rows of a band and the most bytes of a group: pages, where that can be."""
    width = p.columns * p.itemsize
    band = -(-rows // min(rows, bands, -(-rows * min(PAGE, width) // tuning.BLOCK)))
    limit = tuning.BLOCK // band
    return band, limit // PAGE * PAGE or max(limit // LINE, 1) * LINE


def _edges(p: Panels, width: int, skew: int) -> list[int]:
    """Return where groups of columns begin and end, at pages where the rows of an output do.

    width: bytes of a group. skew: those of a page before the output.
    """
    whole, lead = p.columns * p.itemsize, width
    if whole % PAGE == 0 and width < whole:
        lead -= skew % min(width, PAGE)
    edges = {0, p.columns}
    for end in range(lead, whole, width):
        edges.add(end // p.itemsize)
    return sorted(edges)


def spread(block: Block, room: Buffer, out: Buffer, pitch: int, threads: int) -> None:
    """Copy the rows of a block to out, where they begin `pitch` bytes apart."""
    how = How(team(threads, 2 * block.nbytes))
    _kernels.spread(room[: block.nbytes], block.rows, out, pitch, how)


def room(p: Panels, rows: int, bands: int, out: Buffer) -> memoryview:
    """Return room for any block of panels of so many rows of an output.

    Where that is mapped, its pages shall each stand for itself from now on: of those that the
    system keeps together, it would write all where one is changed.
    """
    if isinstance(out, memoryview) and isinstance(out.obj, mmap.mmap):
        scratch.advise(out.obj, "MADV_RANDOM")
    band, limit = _cut(p, rows, bands)
    return memoryview(scratch.take(band * min(limit + p.itemsize, p.columns * p.itemsize)))
