"""A plan and raw buffers to kernels, in pieces that Ctrl-C can end; scatters.py stands on it.

Buffers are flat and of bytes (memoryviews, maps, uint8 arrays). Indices and updates are in row-
major order without gaps; data of a gather may have any strides.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ndtool import _kernels
from ndtool._kernels import BLOCK, LINE, PAGE, How, Indices, Piece
from ndtool.engine import layouts, tuning
from ndtool.engine.layouts import Strides
from ndtool.engine.threads import team
from ndtool.errors import BoundsError, NdtoolError, OutputError
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import ElementsPlan, NdPlan, Plan, Shape

Buffer = Any  # what supports the buffer protocol and slicing: memoryview, uint8 ndarray

Tick = Callable[[float], object]  # called with the share of the work that is done


def silent(share: float) -> None:
    """Tell nobody how much is done."""


class Operand(NamedTuple):
    """An array as the kernels see it: its bytes, where element [0, ..., 0] stands, its strides."""

    buffer: Buffer
    origin: int
    strides: Strides


def bind_indices(buffer: Buffer, dtype: Dtype) -> Indices:
    """Bind the bytes of indices to their type."""
    return Indices(buffer, dtype.itemsize, dtype.kind == "u", dtype.swapped)


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


def check(plan: Plan, indices: Indices, negatives: bool, threads: int) -> None:
    """Raise BoundsError, which names the first bad index in row-major order, if there is one."""
    addressing, tuples, entries = bind_check(plan, negatives)
    pitch = entries * indices.itemsize
    if not tuples or not pitch:
        return
    step = max(1, tuning.PIECE // pitch)
    for first in range(0, tuples, step):
        count = min(step, tuples - first)
        if _kernels.check(addressing, indices, first, count, team(threads, count * pitch)):
            raise refusal(plan, indices, negatives)


def refusal(plan: Plan, indices: Indices, negatives: bool) -> NdtoolError:
    """Return the error that names the first index out of bounds and counts them all.

    Found one after the other; if there is none any more, the indices changed during the run.
    """
    addressing, tuples, entries = bind_check(plan, negatives)
    step = max(1, tuning.PIECE // (entries * indices.itemsize))
    count = 0
    for first in range(0, tuples, step):
        number, which, bad = _kernels.find(addressing, indices, first, min(step, tuples - first))
        if bad and not count:
            place, component = number, which
        count += bad
    if not count:
        return OutputError("indices changed during the run")
    nd = isinstance(plan, NdPlan)
    axis = len(plan.batch) + component if isinstance(plan, NdPlan) else plan.axis
    size = plan.data[axis]
    return BoundsError(
        position=layouts.unravel(place, plan.indices[:-1] if nd else plan.indices),
        component=component if nd else None,
        axis=axis,
        value=indices.value(place * entries + component),
        size=size,
        count=count,
        total=tuples,
        lowest=-size if negatives else 0,
    )


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
    # a streamed row that ends within a line would have that line written twice
    streamed = size >= tuning.STREAMED and (runs.width <= LINE or runs.width % LINE == 0)
    if size <= tuning.PIECE:
        whole = Piece(0, runs.tuples, 0, runs.width)
        return gather_piece(runs, data, indices, whole, out, threads, streamed)
    for piece in pieces(runs, tuning.PIECE):
        to = out[piece.place(runs.width)]
        if not gather_piece(runs, data, indices, piece, to, threads, streamed):
            return False
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


class Units(NamedTuple):
    """An elements operator along an axis that is not the last, bound to bytes."""

    grid: _kernels.Grid
    scratch: int  # bytes of a packed tile
    packs: bool  # whether reading through packed tiles pays by itself
    work: int  # bytes that one unit moves, about


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
    cached = tuning.TILE
    tile = min(columns, BLOCK, max(LINE // itemsize, cached // max(1, size * itemsize), 1))
    if tile < columns and tile > LINE:
        tile = tile // LINE * LINE
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
    fits = scratch <= 2 * cached
    packs = fits and not dense and 2 * length >= size
    work = tile * (length * (itemsize + 8) + (size * itemsize if packs else 0))
    return Units(grid, scratch if fits else 0, packs, work)


def gather_units(
    units: Units, data: Operand, indices: Indices, out: Buffer, threads: int, tick: Tick = silent
) -> bool:
    """Gather along an axis that is not the last; False if an index is out of bounds."""
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


def copy_strips(data: Operand, shape: Shape, itemsize: int, out: Buffer, threads: int) -> None:
    """Copy an array that is scattered (see layouts) to row-major order."""
    layout = _kernels.Layout(*layouts.merge(shape, data.strides), itemsize)
    size = prod(shape) * itemsize
    how = How(team(threads, 2 * size))
    step = -(-layout.strips * tuning.PIECE // size)
    for first in range(0, layout.strips, step):
        stop = min(layout.strips, first + step)
        _kernels.copy_strips(layout, data.buffer, data.origin, out, first, stop, how)


def row_major(
    buffer: Buffer, shape: Shape, strides: Strides, itemsize: int, unit: int = 1
) -> Iterator[memoryview]:
    """Give the elements of any array in row-major order, in pieces; units of bytes reversed.

    A piece is valid until the next one.
    """
    merged, steps = layouts.merge(shape, strides)
    layout = _kernels.Layout(merged or (1,), steps or (itemsize,), itemsize)
    count = prod(shape)
    step = max(1, tuning.TURNED // itemsize)
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
    step = whole_elements(unit, tuning.PIECE)
    for first in range(0, len(buffer), step):
        _kernels.swap(buffer[first : first + step], unit)
