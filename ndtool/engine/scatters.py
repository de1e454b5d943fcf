"""The ways to scatter, and which plan takes which.

Results are those of the sequential loop: a thread owns a part of the output, and applies what
falls there in row-major order of indices. Ways: by destination (tuples are sorted into parts of
the output that fit the cache), by lines (batches have disjoint outputs), in order (of long runs
every thread changes some), by units (along an axis that is not the last).
"""

import mmap
import os
from collections.abc import Callable
from typing import NamedTuple

from ndtool import _kernels
from ndtool.engine import layouts
from ndtool.engine.crew import share
from ndtool.engine.gathers import (
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
from ndtool.engine.layouts import LINE
from ndtool.engine.threads import team
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import REDUCTIONS
from ndtool.rules.shapes import ElementsPlan, Plan

GROUP = 1 << 15  # tuples sorted at once, as in _parts.pxd
MOST_PARTS = 1024
LARGEST_PART = 1 << 22  # bytes of a part that is finished in a buffer, one per thread
WRITTEN = 1 << 21  # bytes that are written to a file at once
WIDE = LINE + 1  # bytes of a run that is changed where it stands, without sorting
LONG = 128  # indices of a line that is worth a copy of its own
FEW = 1 << 14  # tuples that are not worth sorting
SORTED = 16  # times CACHED, and twice that for one thread: outputs that are worth it


class Scatter(NamedTuple):
    """One scatter, bound to bytes; indices have been checked.

    data: what is copied to out first; None where it stands there already. updates, out: native,
    aligned and without gaps unless reduction is "none". limit: bytes that sorting may take.
    write: writes bytes to out from an offset on, where that is faster than to store them there.
    """

    plan: Plan
    dtype: Dtype
    data: Buffer | None
    indices: Buffer
    index_dtype: Dtype
    updates: Buffer
    reduction: str
    out: Buffer
    negatives: bool
    threads: int
    limit: int = 1 << 27
    tick: Tick = silent
    write: Callable[[int, Buffer], object] | None = None

    @property
    def kind(self) -> int:
        """The kernels' code of the index type."""
        return index_kind(self.index_dtype)

    @property
    def how(self) -> tuple[int, int]:
        """The kernels' codes of the arithmetic type and the reduction."""
        return self.dtype.arithmetic, REDUCTIONS.index(self.reduction)


def scatter(s: Scatter) -> bool:
    """Copy data to out, then apply the updates in the way that suits the plan.

    Returns False if an index is out of bounds after all: somebody changed it meanwhile.
    """
    plan, itemsize = s.plan, s.dtype.itemsize
    if not len(s.updates):
        copy(s)
        return True
    if not len(s.out):  # no index is valid where there is nothing
        return False
    strides = layouts.contiguous(plan.data, itemsize)
    runs = bind_runs(plan, strides, itemsize, s.negatives)
    if runs is None:
        assert isinstance(plan, ElementsPlan)
        return _by_units(s, plan, bind_units(plan, strides, itemsize, s.negatives))
    rows = len(s.out) // runs.width
    line = plan.data[plan.axis] * itemsize if isinstance(plan, ElementsPlan) else len(s.out)
    one_line = runs.per_batch == runs.tuples
    threads = team(s.threads, len(s.updates))
    wide = runs.width >= WIDE and s.write is None
    many = runs.tuples >= FEW and rows >= 4 * threads and runs.width <= CACHED
    far = len(s.out) > (SORTED if threads > 1 else 2 * SORTED) * CACHED
    if many and far and not wide and (one_line or line > CACHED):
        return _by_destination(s, runs, rows)
    if not one_line:
        return _by_lines(s, runs, line)
    copy(s)
    return _in_order(s, runs)


def copy(s: Scatter) -> None:
    """Copy data to out in pieces; nothing to do where it stands there already."""
    if s.data is None:
        return
    size, data, write = len(s.data), s.data, s.write
    if write is not None:
        step = range(0, size, WRITTEN)
        share(lambda at: write(at, data[at : at + WRITTEN]), iter(step), team(s.threads, size))
        return
    for begin in range(0, size, PIECE):
        piece, to = s.data[begin : begin + PIECE], s.out[begin : begin + PIECE]
        _kernels.copy(piece, to, team(s.threads, len(piece)), size >= STREAMED)


def _in_order(s: Scatter, runs: Runs) -> bool:
    """Each thread goes through all tuples and applies those to its share of the output's runs."""
    pitch = runs.entries * (s.kind & 15)
    threads = team(s.threads, len(s.updates)) if runs.width >= WIDE else 1
    streamed = s.reduction == "none" and len(s.out) >= STREAMED
    step = max(1, PIECE // (runs.width + pitch))
    window = whole_elements(runs.itemsize, PIECE)
    for first in range(0, runs.tuples, step):
        n = min(step, runs.tuples - first)
        indices = s.indices[first * pitch : (first + n) * pitch]
        updates = s.updates[first * runs.width : (first + n) * runs.width]
        for column in range(0, runs.width, window):
            width = min(window, runs.width - column)
            if _kernels.scatter(
                runs.addressing, s.out, indices, s.kind, updates, first, n,
                column, width, runs.width, *s.how, threads, False, streamed,
            ):  # fmt: skip
                return False
        s.tick((first + n) / runs.tuples)
    return True


def _by_lines(s: Scatter, runs: Runs, line: int) -> bool:
    """Along the last axis: threads share the lines, each changed in cache and written once."""
    lines, data, per = runs.tuples // runs.per_batch, s.data, runs.per_batch
    if lines * line != len(s.out) or per < LONG or line > CACHED:
        copy(s)
        data = None
    update_pitch, index_pitch = per * runs.itemsize, per * (s.kind & 15)
    moved = line + update_pitch + index_pitch
    threads = min(team(s.threads, lines * moved), lines)
    windows = memoryview(bytearray(0 if data is None else threads * line))
    step = max(threads, PIECE // moved)
    for first in range(0, lines, step):
        n = min(step, lines - first)
        indices = s.indices[first * index_pitch : (first + n) * index_pitch]
        updates = s.updates[first * update_pitch : (first + n) * update_pitch]
        if data is None:
            bad = _kernels.scatter(
                runs.addressing, s.out, indices, s.kind, updates, first * per, n * per,
                0, runs.width, runs.width, *s.how, threads, True, False,
            )  # fmt: skip
        else:
            bad = _kernels.scatter_lines(
                runs.addressing, data, line, s.out, indices, s.kind, updates, first * per, n * per,
                runs.width, *s.how, windows, threads, len(s.out) >= STREAMED,
            )  # fmt: skip
        if bad:
            return False
        s.tick((first + n) / lines)
    return True


def _by_units(s: Scatter, plan: ElementsPlan, units: Units) -> bool:
    """Along another axis: tiles of columns, packed where they cover all of data."""
    off_axis = [d for d in range(len(plan.data)) if d != plan.axis]
    covered = all(plan.indices[d] == plan.data[d] for d in off_axis)
    total, source, room = units.grid.units, s.data, units.scratch
    if source is None or not covered or not room:
        copy(s)
        source, room = s.out, units.scratch if units.packs and covered else 0
    work = units.work + 2 * room
    threads = team(s.threads, total * work)
    scratch = memoryview(bytearray(threads * room))
    step = max(threads, PIECE // work)
    for first in range(0, total, step):
        stop = min(total, first + step)
        if _kernels.scatter_units(
            units.grid, source, s.out, s.indices, s.kind, s.updates, first, stop,
            *s.how, scratch, threads, len(s.out) >= STREAMED,
        ):  # fmt: skip
            return False
        s.tick(stop / total)
    return True


def _by_destination(s: Scatter, runs: Runs, rows: int) -> bool:
    """Sort tuples into parts of the output that fit the cache, then finish part after part."""
    width, pitch = runs.width, runs.entries * (s.kind & 15)
    shift = _part_shift(rows, width)
    parts = (rows + (1 << shift) - 1) >> shift
    entry = 4 + (width if width < LINE else 4)
    threads = team(s.threads, runs.tuples * (pitch + width))
    rooms = threads * GROUP * (8 + entry)
    most = max(1, (s.limit - rooms) // (GROUP * entry))
    groups = min(most, -(-runs.tuples // GROUP))
    data = s.data
    if data is not None and width << shift > LARGEST_PART:
        copy(s)
        data = None
    scratch = _room(groups * GROUP * entry + rooms)
    windows = memoryview(bytearray(0 if data is None else threads * (width << shift)))
    for first in range(0, runs.tuples, groups * GROUP):
        n = min(groups * GROUP, runs.tuples - first)
        updates = s.updates[first * width : (first + n) * width]
        ends = memoryview(bytearray(-(-n // GROUP) * parts * 4)).cast("I", (-(-n // GROUP), parts))
        if _kernels.partition(
            bind_rows(s.plan, s.negatives), s.indices[first * pitch : (first + n) * pitch], s.kind,
            updates, width, first, n, shift, scratch, ends, threads, n * entry >= STREAMED,
        ):  # fmt: skip
            return False
        work = Sorted(updates, scratch, ends, shift, width, rows)
        if data is not None and s.write is not None:
            _write_parts(s, work, data, threads)
        else:
            step = max(threads, PIECE // (width << shift))
            for part in range(0, parts, step):
                stop = min(parts, part + step)
                place = work.place(part, stop)
                source = _NOTHING if data is None else data[place]
                _apply(s, work, source, s.out[place], part, stop, windows, threads)
                s.tick((first + n * stop / parts) / runs.tuples)
        data = None  # from now on out has it
    _spare.append(scratch)
    return True


class Sorted(NamedTuple):
    """Tuples sorted by destination into parts of 2^shift rows of `width` bytes."""

    updates: Buffer
    scratch: Buffer
    ends: Buffer
    shift: int
    width: int
    rows: int

    def place(self, part: int, stop: int) -> slice:
        """Return where parts [part, stop) stand in the output, in bytes."""
        last = min(self.rows, stop << self.shift)
        return slice((part << self.shift) * self.width, last * self.width)


def _apply(
    s: Scatter, work: Sorted, data: Buffer, out: Buffer, part: int, stop: int,
    windows: Buffer, threads: int,
) -> None:  # fmt: skip
    _kernels.apply_parts(
        data, work.updates, out, work.scratch, work.ends, work.shift, work.width,
        min(work.rows, stop << work.shift), part, stop, *s.how, windows, threads,
        len(s.out) >= STREAMED,
    )  # fmt: skip


def _write_parts(s: Scatter, work: Sorted, data: Buffer, threads: int) -> None:
    """Finish parts in buffers and write them: faster than stores through a map of a file."""
    parts = work.ends.shape[1]
    step = max(1, WRITTEN // (work.width << work.shift))
    rooms: list[Buffer] = []

    def finish(part: int) -> None:
        stop = min(parts, part + step)
        place = work.place(part, stop)
        room = rooms.pop() if rooms else memoryview(bytearray(step * work.width << work.shift))
        to = room[: place.stop - place.start]
        to[:] = data[place]
        _apply(s, work, _NOTHING, to, part, stop, _NOTHING, 1)
        assert s.write is not None
        s.write(place.start, to)
        rooms.append(room)
        s.tick(stop / parts)

    share(finish, iter(range(0, parts, step)), threads)


def _part_shift(rows: int, width: int) -> int:
    """Return log2 of the rows of a part: half a cache, but no more than MOST_PARTS parts.

    Rows are numbered by 32 bits within their part, so beyond 2^42 rows there are more parts.
    """
    shift = 0
    while (width << shift) < CACHED // 2 or ((rows >> shift) > MOST_PARTS and shift < 32):
        shift += 1
    return shift


_NOTHING = memoryview(bytearray())
# Or a forked child would sort in the same memory.
_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if os.name == "posix" else {}
_spare: list[mmap.mmap] = []  # scratch of the last call: fresh pages cost more than their use


def _room(size: int) -> mmap.mmap:
    """Return at least `size` bytes of scratch, on huge pages where the system has them."""
    while _spare:
        room = _spare.pop()
        if len(room) >= size:
            return room
    room = mmap.mmap(-1, size, **_PRIVATE)
    if hasattr(mmap, "MADV_HUGEPAGE"):  # pragma: no branch - Linux has them
        room.madvise(mmap.MADV_HUGEPAGE)
    return room
