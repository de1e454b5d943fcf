"""A plan and raw buffers to kernels, in pieces that Ctrl-C can end.

Buffers are flat and of bytes (memoryviews, maps, uint8 arrays). Indices and updates are in row-
major order without gaps; data of a gather may have any strides.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ndtool import _kernels
from ndtool.engine import layouts
from ndtool.engine.layouts import LINE, Strides
from ndtool.engine.threads import team
from ndtool.errors import BoundsError, NdtoolError, OutputError
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import ElementsPlan, NdPlan, Plan, Shape

Buffer = Any  # what supports the buffer protocol and slicing: memoryview, uint8 ndarray

Tick = Callable[[float], object]  # called with the share of the work that is done

PIECE = 1 << 26  # bytes that one kernel call may move: a fraction of a second, even from disk
STREAMED = 1 << 24  # outputs from here on bypass the cache, which they would only flush
UNSIGNED, SWAPPED = 16, 32


def silent(share: float) -> None:
    """Tell nobody how much is done."""


class Operand(NamedTuple):
    """An array as the kernels see it: its bytes, where element [0, ..., 0] stands, its strides."""

    buffer: Buffer
    origin: int
    strides: Strides


def index_kind(dtype: Dtype) -> int:
    """Return the kernels' code of an index type."""
    unsigned = UNSIGNED if dtype.kind == "u" else 0
    return dtype.itemsize | unsigned | (SWAPPED if dtype.swapped else 0)


class Runs(NamedTuple):
    """Index tuples bound to bytes: how they address, the run each names, how many there are."""

    addressing: _kernels.Addressing
    layout: _kernels.Layout | None  # of a run whose elements do not stand side by side
    width: int  # bytes of a run
    itemsize: int
    tuples: int
    entries: int  # components per tuple
    per_batch: int


@lru_cache(maxsize=1024)
def bind_runs(plan: Plan, strides: Strides, itemsize: int, negatives: bool) -> Runs | None:
    """Bind a plan to strides; None for an elements operator that is no walk over index tuples."""
    if isinstance(plan, ElementsPlan):
        return _bind_last_axis(plan, strides, itemsize, negatives)
    b, k = len(plan.batch), plan.k
    batch = layouts.merge(plan.batch, strides[:b])
    addressing = _kernels.Addressing(
        plan.sizes, strides[b : b + k], plan.per_batch, *batch, negatives
    )
    run, run_strides = layouts.merge(plan.run, strides[b + k :])
    layout = None
    if plan.width and not layouts.is_contiguous(run, run_strides, itemsize):
        layout = _kernels.Layout(run, run_strides, itemsize)
    width = plan.width * itemsize
    return Runs(addressing, layout, width, itemsize, plan.tuples, k, plan.per_batch)


def _bind_last_axis(
    plan: ElementsPlan, strides: Strides, itemsize: int, negatives: bool
) -> Runs | None:
    """Elements along the last axis are tuples of one component, in batches: a batch per line."""
    a = plan.axis
    if prod(plan.indices[a + 1 :]) != 1:
        return None
    batch = layouts.merge(plan.indices[:a], strides[:a])
    length = plan.indices[a]
    addressing = _kernels.Addressing((plan.data[a],), (strides[a],), length, *batch, negatives)
    return Runs(addressing, None, itemsize, itemsize, prod(plan.indices), 1, length)


@lru_cache(maxsize=1024)
def bind_rows(plan: Plan, negatives: bool) -> _kernels.Addressing:
    """Bind a plan that walks over index tuples to numbers of rows of data, instead of bytes."""
    if isinstance(plan, NdPlan):
        strides = layouts.contiguous(plan.sizes, 1)
        return _kernels.Addressing(plan.sizes, strides, plan.tuples, (), (), negatives)
    runs = bind_runs(plan, layouts.contiguous(plan.data, 1), 1, negatives)
    assert runs is not None
    return runs.addressing


@lru_cache(maxsize=1024)
def bind_check(plan: Plan, negatives: bool) -> tuple[_kernels.Addressing, int, int]:
    """Return how indices are checked: (addressing, tuples, components per tuple)."""
    sizes = plan.sizes if isinstance(plan, NdPlan) else (plan.data[plan.axis],)
    tuples = plan.tuples if isinstance(plan, NdPlan) else prod(plan.indices)
    none = (0,) * len(sizes)
    return _kernels.Addressing(sizes, none, tuples, (), (), negatives), tuples, len(sizes)


def check(plan: Plan, indices: Buffer, dtype: Dtype, negatives: bool, threads: int) -> None:
    """Raise BoundsError, which names the first bad index in row-major order, if there is one."""
    addressing, tuples, entries = bind_check(plan, negatives)
    kind, pitch = index_kind(dtype), entries * dtype.itemsize
    if not tuples or not pitch:
        return
    step = max(1, PIECE // pitch)
    for first in range(0, tuples, step):
        count = min(step, tuples - first)
        piece = indices[first * pitch : (first + count) * pitch]
        if _kernels.check(addressing, piece, kind, count, team(threads, count * pitch)):
            raise refusal(plan, indices, dtype, negatives)


def refusal(plan: Plan, indices: Buffer, dtype: Dtype, negatives: bool) -> NdtoolError:
    """Return the error that names the first index out of bounds and counts them all.

    Found one after the other; if there is none any more, the indices changed during the run.
    """
    addressing, tuples, entries = bind_check(plan, negatives)
    kind, pitch = index_kind(dtype), entries * dtype.itemsize
    step = max(1, PIECE // pitch)
    count = 0
    for first in range(0, tuples, step):
        n = min(step, tuples - first)
        piece = indices[first * pitch : (first + n) * pitch]
        number, which, bad = _kernels.find(addressing, piece, kind, n)
        if bad and not count:
            place, component = first + number, which
        count += bad
    if not count:
        return OutputError("indices changed during the run")
    begin = place * pitch + component * dtype.itemsize
    raw = bytes(indices[begin : begin + dtype.itemsize])
    value = int.from_bytes(raw, "big" if dtype.order == ">" else "little", signed=dtype.kind == "i")
    nd = isinstance(plan, NdPlan)
    axis = len(plan.batch) + component if isinstance(plan, NdPlan) else plan.axis
    size = plan.data[axis]
    return BoundsError(
        position=layouts.unravel(place, plan.indices[:-1] if nd else plan.indices),
        component=component if nd else None,
        axis=axis,
        value=value,
        size=size,
        count=count,
        total=tuples,
        lowest=-size if negatives else 0,
    )


def whole_elements(itemsize: int, limit: int) -> int:
    """Return the most bytes within `limit` that cut no element, one element at least."""
    return max(1, limit // itemsize) * itemsize


class Piece(NamedTuple):
    """A part of a gather's output: bytes [column, column + width) of runs first.. ."""

    first: int
    tuples: int
    column: int
    width: int

    def place(self, runs: Runs) -> slice:
        """Return where the piece stands in the output."""
        at = self.first * runs.width + self.column
        return slice(at, at + self.tuples * self.width)


def pieces(runs: Runs, limit: int) -> Iterator[Piece]:
    """Cut an output into pieces of about `limit` bytes, in row-major order."""
    step = max(1, limit // runs.width)
    window = whole_elements(runs.itemsize, limit)
    for first in range(0, runs.tuples, step):
        for column in range(0, runs.width, window):
            width = min(window, runs.width - column)
            yield Piece(first, min(step, runs.tuples - first), column, width)


def gather(
    runs: Runs, data: Operand, indices: Buffer, kind: int, out: Buffer, threads: int
) -> bool:
    """Copy all runs to out; False if an index is out of bounds."""
    size = runs.tuples * runs.width
    # a streamed row that ends within a line would have that line written twice
    streamed = size >= STREAMED and (runs.width <= LINE or runs.width % LINE == 0)
    if size <= PIECE:
        whole = Piece(0, runs.tuples, 0, runs.width)
        return gather_piece(runs, data, indices, kind, out, whole, threads, streamed)
    for piece in pieces(runs, PIECE):
        to = out[piece.place(runs)]
        if not gather_piece(runs, data, indices, kind, to, piece, threads, streamed):
            return False
    return True


def gather_piece(
    runs: Runs,
    data: Operand,
    indices: Buffer,
    kind: int,
    out: Buffer,
    piece: Piece,
    threads: int,
    streamed: bool,
) -> bool:
    """Copy one piece to the beginning of out; False if an index is out of bounds."""
    first, count, column, width = piece
    pitch = runs.entries * (kind & 15)
    index = indices[first * pitch : (first + count) * pitch]
    threads = team(threads, count * (width + pitch))
    if runs.layout is None:
        return not _kernels.gather(
            runs.addressing, data.buffer, data.origin, index, kind, out,
            first, count, column, width, threads, streamed,
        )  # fmt: skip
    return not _kernels.gather_strided(
        runs.addressing, runs.layout, data.buffer, data.origin, index, kind, out,
        first, count, column // runs.itemsize, width // runs.itemsize, threads,
    )  # fmt: skip


def will_need(runs: Runs, data: Operand, indices: Buffer, kind: int, piece: Piece) -> None:
    """Ask the system to read what a piece will gather from a mapped file."""
    first, count, column, width = piece
    pitch = runs.entries * (kind & 15)
    index = indices[first * pitch : (first + count) * pitch]
    if runs.layout is None:
        _kernels.will_need(
            runs.addressing, data.buffer, data.origin, index, kind, first, count, column, width
        )


class Units(NamedTuple):
    """An elements operator along an axis that is not the last, bound to bytes."""

    grid: _kernels.Grid
    scratch: int  # bytes of a packed tile
    packs: bool  # whether reading through packed tiles pays by itself
    work: int  # bytes that one unit moves, about


CACHED = 1 << 19  # bytes that stay in a core's cache while indices jump about in them
TILE = 1 << 20  # bytes of a tile: half of what a core caches, beside what streams through it


@lru_cache(maxsize=1024)
def bind_units(plan: ElementsPlan, strides: Strides, itemsize: int, negatives: bool) -> Units:
    """Bind an elements plan to strides, as tiles of columns that fit into the cache."""
    a, length, size = plan.axis, plan.indices[plan.axis], plan.data[plan.axis]
    inner_shape, inner = layouts.merge(plan.indices[a + 1 :], strides[a + 1 :])
    outer_shape, outer = layouts.merge(plan.indices[:a], strides[:a])
    columns = inner_shape[-1]
    inner_index = layouts.contiguous(inner_shape, 1)
    index_step = prod(inner_shape)
    outer_index = tuple(s * length * index_step for s in layouts.contiguous(outer_shape, 1))
    tile = min(columns, 512, max(64 // itemsize, TILE // max(1, size * itemsize), 1))
    if tile < columns and tile > 64:
        tile = tile // 64 * 64
    scratch = size * tile * itemsize
    dense = strides[a] == tile * itemsize and inner[-1] == itemsize
    grid = _kernels.Grid(
        outer_shape + inner_shape[:-1],
        outer_index + inner_index[:-1],
        outer + inner[:-1],
        (length, index_step, size, strides[a]),
        (columns, inner[-1], tile),
        itemsize,
        negatives,
    )
    fits = scratch <= 2 * TILE
    packs = fits and not dense and 2 * length >= size
    work = tile * (length * (itemsize + 8) + (size * itemsize if packs else 0))
    return Units(grid, scratch if fits else 0, packs, work)


def gather_units(
    units: Units,
    data: Operand,
    indices: Buffer,
    kind: int,
    out: Buffer,
    threads: int,
    tick: Tick = silent,
) -> bool:
    """Gather along an axis that is not the last; False if an index is out of bounds."""
    total = units.grid.units
    step = max(threads, PIECE // max(1, units.work))
    threads = team(threads, total * units.work)
    scratch = memoryview(bytearray(threads * units.scratch if units.packs else 0))
    for first in range(0, total, step):
        if _kernels.gather_units(
            units.grid,
            data.buffer,
            data.origin,
            indices,
            kind,
            out,
            first,
            min(total, first + step),
            scratch,
            threads,
            len(out) >= STREAMED,
        ):
            return False
        tick(min(total, first + step) / total)
    return True


def copy_strips(data: Operand, shape: Shape, itemsize: int, out: Buffer, threads: int) -> None:
    """Copy an array that is scattered (see layouts) to row-major order."""
    layout = _kernels.Layout(*layouts.merge(shape, data.strides), itemsize)
    size = prod(shape) * itemsize
    threads = team(threads, 2 * size)
    step = -(-layout.strips * PIECE // size)
    for first in range(0, layout.strips, step):
        stop = min(layout.strips, first + step)
        _kernels.copy_strips(layout, data.buffer, data.origin, out, first, stop, threads)


def row_major(
    buffer: Buffer, shape: Shape, strides: Strides, itemsize: int, unit: int = 1
) -> Iterator[memoryview]:
    """Give the elements of any array in row-major order, in pieces; units of bytes reversed.

    A piece is valid until the next one.
    """
    merged, steps = layouts.merge(shape, strides)
    layout = _kernels.Layout(merged or (1,), steps or (itemsize,), itemsize)
    count = prod(shape)
    step = max(1, (1 << 20) // itemsize)
    room = memoryview(bytearray(min(step, count) * itemsize))
    for first in range(0, count, step):
        n = min(step, count - first)
        _kernels.pack(layout, buffer, 0, room, first, n)
        piece = room[: n * itemsize]
        if unit > 1:
            _kernels.swap(piece, unit)
        yield piece


def swap(buffer: Buffer, unit: int) -> None:
    """Reverse the bytes of every unit, in place, in pieces."""
    for first in range(0, len(buffer), PIECE):
        _kernels.swap(buffer[first : first + PIECE], unit)
