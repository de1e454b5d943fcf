"""Gathers: runs and units to consecutive places, in pieces that Ctrl-C can end.

Buffers are flat and of bytes (memoryviews, maps, uint8 arrays). Indices are in row-major order
without gaps; data may have any strides.
"""

from collections.abc import Callable, Iterator

from ndtool import _kernels
from ndtool._kernels import PAGE, How, Indices, Piece
from ndtool.engine import columns, tuning
from ndtool.engine.bind import Buffer, Operand, Panels, Runs, Units, bind_units
from ndtool.engine.threads import team

Tick = Callable[[float], object]  # called with the share of the work that is done


def silent(share: float) -> None:
    """Tell nobody how much is done."""


def whole_elements(itemsize: int, limit: int) -> int:
    """Return the most bytes within `limit` that cut no element, one element at least."""
    return max(1, limit // itemsize) * itemsize


def pieces(runs: Runs, limit: int) -> Iterator[Piece]:
    """Cut an output into pieces of about `limit` bytes, in row-major order."""
    step = max(1, limit // runs.width)
    window = whole_elements(runs.itemsize, limit)
    for first in range(0, runs.tuples, step):
        for column in range(0, runs.width, window):
            width = min(window, runs.width - column)
            yield Piece(first, min(step, runs.tuples - first), column, width)


def gather(runs: Runs, data: Operand, indices: Indices, out: Buffer, threads: int) -> bool:
    """Copy all runs to out; False if an index is out of bounds."""
    size = runs.tuples * runs.width
    streamed = size >= tuning.STREAMED
    if size <= tuning.PIECE:
        whole = Piece(0, runs.tuples, 0, runs.width)
        return gather_piece(runs, data, indices, whole, out, threads, streamed)
    for piece in pieces(runs, tuning.PIECE):
        to = out[piece.place(runs.width)]
        if not gather_piece(runs, data, indices, piece, to, threads, streamed):
            return False
    return True


def fill(out: Buffer, filling: bytes | None) -> bool:
    """Fill all of out, where every index is out of bounds; False if that has no filling."""
    if filling is None:
        return False
    step = len(filling)
    for begin in range(0, len(out), step):
        end = min(begin + step, len(out))
        out[begin:end] = memoryview(filling)[: end - begin]
    return True


def gather_piece(
    runs: Runs,
    data: Operand,
    indices: Indices,
    piece: Piece,
    out: Buffer,
    threads: int,
    streamed: bool = False,
) -> bool:
    """Copy one piece to the beginning of out; False if an index is out of bounds."""
    work = piece.tuples * (piece.width + runs.entries * indices.itemsize)
    how, addressing = How(team(threads, work), streamed), runs.addressing
    buffer, origin, _ = data
    if runs.layout is None:
        return not _kernels.gather(addressing, buffer, origin, indices, piece, out, how)
    return not _kernels.gather_strided(
        addressing, runs.layout, buffer, origin, indices, piece, out, how
    )


def needs_all(runs: Runs, nbytes: int) -> bool:
    """Whether a gather comes to about every page of data: then they are best read in order."""
    return runs.tuples * max(runs.width, PAGE) >= nbytes


def will_need(runs: Runs, data: Operand, indices: Indices, piece: Piece) -> None:
    """Ask the system to read what a piece will gather from a mapped file."""
    if runs.layout is None:
        _kernels.will_need(runs.addressing, data.buffer, data.origin, indices, piece)


def gather_panels(
    p: Panels, data: Operand, indices: Indices, out: Buffer, threads: int, tick: Tick = silent
) -> bool:
    """Gather along an axis that is not the last; False if an index is out of bounds."""
    units = bind_units(p)
    threads = team(threads, units.grid.units * units.work)
    return gather_units(bind_units(p, threads=threads), data, indices, out, threads, tick)


def gather_units(
    units: Units, data: Operand, indices: Indices, out: Buffer, threads: int, tick: Tick = silent
) -> bool:
    """Gather units of panels; False if an index is out of bounds."""
    total, grid = units.grid.units, units.grid
    step = max(threads, tuning.PIECE // max(1, units.work))
    threads = team(threads, total * units.work)
    rooms = memoryview(bytearray(threads * units.scratch)) if units.packs else None
    how = How(threads, len(out) >= tuning.STREAMED, rooms)
    for first in range(0, total, step):
        stop = min(total, first + step)
        if _kernels.gather_units(grid, data.buffer, data.origin, indices, first, stop, out, how):
            return False
        tick(stop / total)
    return True


def gather_columns(
    p: Panels, data: Operand, indices: Indices, out: Buffer, threads: int, tick: Tick = silent
) -> bool:
    """Do the same in blocks of columns, each written to a mapped file in whole pages."""
    room, done, pitch = columns.room(p, p.length, p.length, out), 0, p.columns * p.itemsize
    for block in columns.blocks(p, p.length, out, p.length):
        part = block.panels._replace(length=block.rows)
        units = bind_units(part, (0, p.size, block.width))
        first = block.place + block.first * p.index_step
        source = data._replace(origin=data.origin + block.data)
        to = room[: block.nbytes]
        if not gather_units(units, source, indices.since(first), to, threads):
            return False
        columns.spread(block, to, out[first * p.itemsize :], pitch, threads)
        done += block.nbytes
        tick(done / len(out))
    return True
