"""The ways to scatter, and which plan takes which; beside engine.py the door to _kernels.

Results are those of the sequential loop: a thread owns a part of the output, and applies what
falls there in row-major order of indices. Ways: by destination (tuples are sorted into parts of
the output that fit the cache), by lines (batches have disjoint outputs), by columns (every run is
shared out), by units (along an axis that is not the last). Updates and out are aligned, native
and without gaps; indices have been checked.
"""

import mmap as _mmap
from math import prod
from mmap import mmap
from typing import NamedTuple

from ndtool import _kernels, layouts
from ndtool.engine import (
    CACHED,
    PIECE,
    STREAMED,
    Buffer,
    Runs,
    Tick,
    Units,
    bind_rows,
    bind_runs,
    bind_units,
    index_kind,
    silent,
    whole_elements,
)
from ndtool.dtypes import REDUCTIONS, Dtype
from ndtool.shapes import ElementsPlan, NdPlan, Plan
from ndtool.threads import team

GROUP = 1 << 15  # tuples sorted at once, as in _parts.pxd
MOST_PARTS = 1024
SCRATCH = 1 << 27  # bytes that sorting may take
FEW = 1 << 14  # tuples that are not worth sorting


class Update(NamedTuple):
    """What is applied, and how: the bytes of updates, the arithmetic type and the reduction."""

    buffer: Buffer
    code: int
    op: int


def update_of(buffer: Buffer, dtype: Dtype, reduction: str) -> Update:
    """Return the updates as the kernels take them."""
    return Update(buffer, dtype.arithmetic, REDUCTIONS.index(reduction))


def scatter(
    plan: Plan, data: Buffer | None, indices: Buffer, index_dtype: Dtype, update: Update,
    out: Buffer, itemsize: int, negatives: bool, threads: int, scratch_limit: int = SCRATCH,
    tick: Tick = silent,
) -> bool:
    """Copy data to out (None: it stands there already), then apply the updates.

    Returns False if an index is out of bounds after all: somebody changed it meanwhile.
    """
    kind = index_kind(index_dtype)
    strides = layouts.contiguous(plan.data, itemsize)
    if not prod(plan.indices[:-1] if isinstance(plan, NdPlan) else plan.indices):
        copy(data, out, threads)
        return True
    runs = bind_runs(plan, strides, itemsize, negatives)
    if runs is None:
        units = bind_units(plan, strides, itemsize, negatives)  # type: ignore[arg-type]
        return _by_units(plan, units, data, indices, kind, update, out, threads, tick)
    rows = prod(plan.data) * itemsize // max(1, runs.width)
    lines = isinstance(plan, ElementsPlan) and runs.per_batch < runs.tuples
    spread = rows * runs.width > 2 * CACHED and runs.tuples >= FEW and rows >= 4 * threads
    if spread and runs.width <= CACHED and not (lines and plan.data[plan.axis] * itemsize <= CACHED):
        return _by_destination(
            plan, runs, rows, data, indices, kind, update, out, negatives, threads, scratch_limit,
            tick,
        )
    if isinstance(plan, ElementsPlan) and lines:
        return _by_lines(plan, runs, data, indices, kind, update, out, threads, tick)
    copy(data, out, threads)
    return _by_columns(runs, indices, kind, update, out, threads, tick)


def copy(data: Buffer | None, out: Buffer, threads: int) -> None:
    """Copy data to out in pieces; nothing to do where data stands there already."""
    if data is None:
        return
    size = len(data)
    for begin in range(0, size, PIECE):
        piece = data[begin : begin + PIECE]
        to = out[begin : begin + PIECE]
        _kernels.copy(piece, to, team(threads, len(piece)), size >= STREAMED)


def _by_columns(
    runs: Runs, indices: Buffer, kind: int, update: Update, out: Buffer, threads: int, tick: Tick
) -> bool:
    """Each thread applies all tuples, in order, to its share of every run's columns."""
    pitch = runs.entries * (kind & 15)
    threads = team(threads, runs.width * min(runs.tuples, 64)) if runs.width >= 1024 else 1
    step = max(1, PIECE // max(1, runs.width + pitch))
    for first in range(0, runs.tuples, step):
        n = min(step, runs.tuples - first)
        index = indices[first * pitch : (first + n) * pitch]
        piece = update.buffer[first * runs.width : (first + n) * runs.width]
        window = whole_elements(runs.itemsize)
        for column in range(0, runs.width, window):
            width = min(window, runs.width - column)
            if _kernels.scatter(
                runs.addressing, out, index, kind, piece, first, n, column, width, runs.width,
                update.code, update.op, threads, False,
            ):
                return False
        tick((first + n) / runs.tuples)
    return True


def _by_lines(
    plan: ElementsPlan, runs: Runs, data: Buffer | None, indices: Buffer, kind: int,
    update: Update, out: Buffer, threads: int, tick: Tick,
) -> bool:
    """Along the last axis: lines are copied and updated a few at a time, while in cache."""
    line = plan.data[plan.axis] * runs.itemsize
    lines = runs.tuples // runs.per_batch
    whole = lines * line == prod(plan.data) * runs.itemsize
    if not whole:
        copy(data, out, threads)
        data = None
    moved = line + runs.per_batch * (runs.itemsize + (kind & 15))
    threads = min(team(threads, lines * moved), lines)
    step = max(1, (threads * CACHED if data is not None else PIECE) // moved)
    index_pitch, update_pitch = runs.per_batch * (kind & 15), runs.per_batch * runs.itemsize
    for first in range(0, lines, step):
        n = min(step, lines - first)
        if data is not None:
            begin, end = first * line, (first + n) * line
            _kernels.copy(data[begin:end], out[begin:end], threads, False)
        if _kernels.scatter(
            runs.addressing, out, indices[first * index_pitch : (first + n) * index_pitch], kind,
            update.buffer[first * update_pitch : (first + n) * update_pitch],
            first * runs.per_batch, n * runs.per_batch, 0, runs.width, runs.width,
            update.code, update.op, threads, True,
        ):
            return False
        tick((first + n) / lines)
    return True


def _by_units(
    plan: Plan, units: Units, data: Buffer | None, indices: Buffer, kind: int, update: Update,
    out: Buffer, threads: int, tick: Tick,
) -> bool:
    """Along another axis: tiles of columns, packed from data where they cover all of it."""
    off_axis = [d for d in range(len(plan.data)) if d != plan.axis]  # type: ignore[union-attr]
    covered = all(plan.indices[d] == plan.data[d] for d in off_axis)
    total = units.grid.units
    if units.scratch and covered and data is not None:
        source, scratch_each = data, units.scratch
    else:
        copy(data, out, threads)
        source, scratch_each = out, 0
    work = units.work + 2 * scratch_each
    threads = team(threads, total * work)
    scratch = memoryview(bytearray(threads * scratch_each))
    step = max(threads, PIECE // max(1, work))
    for first in range(0, total, step):
        if _kernels.scatter_units(
            units.grid, source, out, indices, kind, update.buffer, first,
            min(total, first + step), update.code, update.op, scratch, threads,
        ):
            return False
        tick(min(total, first + step) / total)
    return True


def _by_destination(
    plan: Plan, runs: Runs, rows: int, data: Buffer | None, indices: Buffer, kind: int,
    update: Update, out: Buffer, negatives: bool, threads: int, scratch_limit: int,
    tick: Tick,
) -> bool:
    """Sort tuples into parts of the output that fit the cache, then finish part after part."""
    width, pitch = runs.width, runs.entries * (kind & 15)
    shift = _part_shift(rows, width)
    parts = (rows + (1 << shift) - 1) >> shift
    entry = 4 + (width if width < 64 else 4)
    threads = team(threads, runs.tuples * (pitch + width))
    most = max(1, (scratch_limit - threads * GROUP * 8) // (GROUP * entry))
    groups = min(most, -(-runs.tuples // GROUP))
    scratch = _room(groups * GROUP * entry + threads * GROUP * 8)
    windows = memoryview(bytearray(threads * (width << shift) if data is not None else 0))
    for first in range(0, runs.tuples, groups * GROUP):
        n = min(groups * GROUP, runs.tuples - first)
        ends = memoryview(bytearray(-(-n // GROUP) * parts * 4)).cast("I", (-(-n // GROUP), parts))
        updates = update.buffer[first * width : (first + n) * width]
        if _kernels.partition(
            bind_rows(plan, negatives), indices[first * pitch : (first + n) * pitch], kind,
            updates, width, first, n, shift, scratch, ends, threads,
        ):
            return False
        step = max(threads, PIECE // (width << shift))
        for part in range(0, parts, step):
            stop = min(parts, part + step)
            begin, end = (part << shift) * width, min(rows, stop << shift) * width
            _kernels.apply_parts(
                _NOTHING if data is None else data[begin:end], updates, out[begin:end], scratch,
                ends, shift, width, min(rows, stop << shift), part, stop, update.code, update.op,
                windows, threads, len(out) >= STREAMED,
            )
            tick((first + n * stop / parts) / runs.tuples)
        data = None
    _spare.append(scratch)
    return True


_NOTHING = memoryview(b"")
_spare: list[mmap] = []  # scratch of the last call: fresh pages cost more than the work in them


def _room(size: int) -> mmap:
    """Return at least `size` bytes of scratch, on huge pages where the system has them."""
    while _spare:
        room = _spare.pop()
        if len(room) >= size:
            return room
    room = mmap(-1, size)
    if hasattr(room, "madvise") and hasattr(_mmap, "MADV_HUGEPAGE"):
        room.madvise(_mmap.MADV_HUGEPAGE)
    return room


def _part_shift(rows: int, width: int) -> int:
    """Return log2 of the rows of a part: half a cache, but no more than MOST_PARTS parts."""
    shift = 0
    while (width << shift) < CACHED // 2 or (rows >> shift) > MOST_PARTS:
        shift += 1
    return shift
