"""The ways to scatter, and which plan takes which.

Results are those of the sequential loop: a thread owns a part of the output, and applies what
falls there in row-major order of indices. Ways: by destination (tuples are sorted into parts of
the output that fit the cache), by copies (of a small output, put together at the end), by lines
(batches have disjoint outputs), in order (of long runs every thread changes some), by units (along
an axis that is not the last).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import GROUP, LINE, Addressing, Change, How, Indices, Parts, Piece
from ndtool.engine import check, columns, layouts, narrow, scratch, tuning
from ndtool.engine.bind import Buffer, Panels, Runs, bind_panels, bind_rows, bind_runs, bind_units
from ndtool.engine.crew import Rooms, share
from ndtool.engine.gathers import Tick, silent, whole_elements
from ndtool.engine.threads import team
from ndtool.rules.dtypes import Dtype, identity
from ndtool.rules.shapes import ElementsPlan, Plan


class Scatter(NamedTuple):
    """One scatter, bound to bytes.

    data: what is copied to out first; None where it stands there already. updates, out: native,
    aligned and without gaps unless reduction is "none". limit: bytes that sorting may take, SCRATCH
    if None. write: writes bytes to out from an offset on, where that is faster than to store them.
    guarded: whether out must stay as it is where an index is out of bounds, and nobody has looked.
    """

    plan: Plan
    dtype: Dtype
    data: Buffer | None
    indices: Indices
    updates: Buffer
    reduction: str
    out: Buffer
    negatives: bool
    threads: int
    limit: int | None = None
    tick: Tick = silent
    write: Callable[[int, Buffer], object] | None = None
    guarded: bool = False

    def change(self, pitch: int) -> Change:
        """Bind the updates, each of `pitch` bytes, to what is done with them."""
        return Change(self.updates, pitch, self.reduction, self.dtype.name)

    @property
    def streamed(self) -> bool:
        """Whether the output is too large for the cache."""
        return len(self.out) >= tuning.STREAMED


def scatter(s: Scatter) -> bool:
    """Copy data to out, then apply the updates in the way that suits the plan.

    Returns False if an index is out of bounds; raises BoundsError where that must be known before.
    """
    plan, itemsize = s.plan, s.dtype.itemsize
    if not len(s.updates):
        copy(s)
        return True
    if not len(s.out):  # no index is valid where there is nothing
        return s.indices.rule == "drop"
    runs = _runs(s)
    if runs is None:
        with _guarded(s) as work:
            return _by_panels(work)
    rows = len(s.out) // runs.width
    line = plan.data[plan.axis] * itemsize if isinstance(plan, ElementsPlan) else len(s.out)
    one_line = runs.per_batch == runs.tuples
    threads = team(s.threads, len(s.updates))
    wide = runs.width >= tuning.WIDE and s.write is None
    if one_line and threads > 1 and _is_worth_copies(s, threads):
        return _by_copies(s, runs, threads)
    many = runs.tuples >= tuning.FEW and rows >= 4 * threads and runs.width <= tuning.CACHED
    far = len(s.out) > (tuning.SORTED if threads > 1 else 2 * tuning.SORTED) * tuning.CACHED
    far = far and not _kernels.near(runs.addressing, s.indices, runs.tuples) >= tuning.NEAR
    if many and far and not wide and (one_line or line > tuning.CACHED):
        return _by_destination(s, runs, rows)
    with _guarded(s) as work:
        if not one_line:
            return _by_lines(work, line)
        copy(work)
        return _in_order(work)


@contextmanager
def _guarded(s: Scatter) -> Iterator[Scatter]:
    """Look at all indices if that is still to be done, before out is changed; give what is left."""
    if not s.guarded:
        yield s
        return
    with narrow.checked(s.plan, s.indices, s.negatives, s.threads) as (plan, indices, negatives):
        yield s._replace(plan=plan, indices=indices, negatives=negatives, guarded=False)


def _runs(s: Scatter) -> Runs | None:
    """Bind the plan to the bytes of out; None along an axis that is not the last."""
    itemsize = s.dtype.itemsize
    strides = layouts.contiguous(s.plan.data, itemsize)
    return bind_runs(s.plan, strides, itemsize, s.negatives)


def copy(s: Scatter) -> None:
    """Copy data to out in pieces; nothing to do where it stands there already."""
    if s.data is None:
        return
    size, data, write, step = len(s.data), s.data, s.write, tuning.WRITTEN
    if write is not None:
        begins = iter(range(0, size, step))
        share(lambda at: write(at, data[at : at + step]), begins, team(s.threads, size))
        return
    for begin in range(0, size, tuning.PIECE):
        end = min(size, begin + tuning.PIECE)
        how = How(team(s.threads, end - begin), s.streamed)
        _kernels.copy(data[begin:end], s.out[begin:end], how)


def _in_order(s: Scatter) -> bool:
    """Each thread goes through all tuples and applies those to its share of the output's runs."""
    runs = _runs(s)
    assert runs is not None
    change, addressing = s.change(runs.width), runs.addressing
    threads = team(s.threads, len(s.updates)) if runs.width >= tuning.WIDE else 1
    how = How(threads, s.reduction == "none" and s.streamed)
    step = max(1, tuning.PIECE // (runs.width + runs.entries * s.indices.itemsize))
    window = whole_elements(runs.itemsize, tuning.PIECE)
    for first in range(0, runs.tuples, step):
        n = min(step, runs.tuples - first)
        for column in range(0, runs.width, window):
            piece = Piece(first, n, column, min(window, runs.width - column))
            if _kernels.scatter(addressing, s.indices, piece, change, s.out, False, how):
                return False
        s.tick((first + n) / runs.tuples)
    return True


def _is_worth_copies(s: Scatter, threads: int) -> bool:
    """Whether threads may change copies of their own: the bits stay, and they are small."""
    copies = threads * len(s.out)
    return copies <= min(tuning.CACHED, len(s.updates)) and bool(identity(s.dtype, s.reduction))


def _by_copies(s: Scatter, runs: Runs, threads: int) -> bool:
    """Each thread applies a share of the updates to what changes nothing; then all to data."""
    size, change, addressing = len(s.out), s.change(runs.width), runs.addressing
    copies = memoryview(bytearray(threads * size))
    how = How(threads, False, copies)
    untouched = identity(s.dtype, s.reduction) * (size // s.dtype.itemsize)
    copies[:size] = untouched
    step = max(1, tuning.PIECE // (runs.width + runs.entries * s.indices.itemsize))
    for first in range(0, runs.tuples, step):
        n = min(step, runs.tuples - first)
        copies[size:] = untouched * (threads - 1)
        if _kernels.scatter_copies(addressing, s.indices, first, n, change, size, how):
            return False
        _put_together(s, copies[size:], copies[:size])
        s.tick((first + n) / runs.tuples)
    copy(s)
    _put_together(s, copies[:size], s.out)
    return True


def _put_together(s: Scatter, copies: Buffer, out: Buffer) -> None:
    """Reduce copies of out into it, in order: each is an update of the whole."""
    whole, n = Addressing((), (), 1, (), (), False), len(copies) // len(out)
    change = Change(copies, len(out), s.reduction, s.dtype.name)
    nowhere = Indices(copies, s.indices.itemsize, False, False)  # tuples of no components
    _kernels.scatter(whole, nowhere, Piece(0, n, 0, len(out)), change, out, False, How(1))


def _by_lines(s: Scatter, line: int) -> bool:
    """Along the last axis: threads share the lines, each changed in cache and written once."""
    runs = _runs(s)
    assert runs is not None
    lines, data, per = runs.tuples // runs.per_batch, s.data, runs.per_batch
    if lines * line != len(s.out) or per < tuning.LONG or line > tuning.CACHED:
        copy(s)
        data = None
    change, addressing = s.change(runs.width), runs.addressing
    moved = line + per * (runs.itemsize + s.indices.itemsize)
    threads = min(team(s.threads, lines * moved), lines)
    windows = None if data is None else memoryview(bytearray(threads * line))
    how = How(threads, data is not None and s.streamed, windows)
    step = max(threads, tuning.PIECE // moved)
    for first in range(0, lines, step):
        n = min(step, lines - first)
        at, count = first * per, n * per
        if data is None:
            piece = Piece(at, count, 0, runs.width)
            bad = _kernels.scatter(addressing, s.indices, piece, change, s.out, True, how)
        else:
            bad = _kernels.scatter_lines(addressing, s.indices, at, count, change, data, s.out, how)
        if bad:
            return False
        s.tick((first + n) / lines)
    return True


def _by_panels(s: Scatter) -> bool:
    """Along another axis: in blocks of columns, or in tiles of them."""
    plan, itemsize = s.plan, s.dtype.itemsize
    assert isinstance(plan, ElementsPlan)
    strides = layouts.contiguous(plan.data, itemsize)
    panels = bind_panels(plan, strides, itemsize, s.negatives)
    off_axis = [d for d in range(len(plan.data)) if d != plan.axis]
    covered = all(plan.indices[d] == plan.data[d] for d in off_axis)
    if covered and s.write is not None and columns.suit(panels, panels.size):
        return _by_columns(s, panels)
    return _by_units(s, panels, covered)


def _by_columns(s: Scatter, panels: Panels) -> bool:
    """Along another axis, into a mapped file: blocks of columns, each written in whole pages."""
    data, itemsize = s.out if s.data is None else s.data, s.dtype.itemsize
    # each band goes over all indices again, but its tiles must fit into the cache
    bands = max(tuning.BANDS, -(-panels.size * LINE // (2 * tuning.TILE)))
    room, done = columns.room(panels, panels.size, bands, s.out), 0
    for block in columns.blocks(panels, panels.size, s.out, bands):
        units = bind_units(block.panels, (block.first, block.rows, block.width))
        work = units.work + 2 * units.scratch
        threads = team(s.threads, units.grid.units * work)
        how = How(threads, s.streamed, memoryview(bytearray(threads * units.scratch)))
        indices, updates = s.indices.since(block.place), s.updates[block.place * itemsize :]
        change = Change(updates, itemsize, s.reduction, s.dtype.name)
        source, step = data[block.data :], max(threads, tuning.PIECE // work)
        for first in range(0, units.grid.units, step):
            stop = min(units.grid.units, first + step)
            grid = units.grid
            if _kernels.scatter_units(grid, indices, change, source, room, first, stop, how):
                return False
        at = block.data + block.first * panels.step
        columns.spread(block, room, s.out[at:], panels.step, s.threads)
        done += block.nbytes
        s.tick(done / len(s.out))
    return True


def _by_units(s: Scatter, panels: Panels, covered: bool) -> bool:
    """Along another axis: tiles of columns, packed where they cover all of data."""
    units = bind_units(panels)
    threads = team(s.threads, units.grid.units * units.work)
    units = bind_units(panels, threads=threads)
    total, grid, source, room = units.grid.units, units.grid, s.data, units.scratch
    if source is None or not covered or not room or len(s.out) <= tuning.TILE:
        copy(s)
        source, room = s.out, units.scratch if units.packs and covered else 0
    change, work = s.change(s.dtype.itemsize), units.work + 2 * room
    threads = team(s.threads, total * work)
    how = How(threads, s.streamed, memoryview(bytearray(threads * room)) if room else None)
    step = max(threads, tuning.PIECE // work)
    for first in range(0, total, step):
        stop = min(total, first + step)
        if _kernels.scatter_units(grid, s.indices, change, source, s.out, first, stop, how):
            return False
        s.tick(stop / total)
    return True


def _by_destination(s: Scatter, runs: Runs, rows: int) -> bool:
    """Sort tuples into parts of the output that fit the cache, then finish part after part."""
    width, data = runs.width, s.data
    shift = _part_shift(rows, width)
    entry = 4 + (width if width < LINE else 4)
    threads = team(s.threads, runs.tuples * (runs.entries * s.indices.itemsize + width))
    rooms = threads * GROUP * (8 + entry)
    limit = tuning.SCRATCH if s.limit is None else s.limit
    most = max(1, (limit - rooms) // (GROUP * entry))
    groups = min(most, -(-runs.tuples // GROUP))
    large = data is not None and width << shift > tuning.LARGEST_PART
    if s.guarded and (large or groups * GROUP < runs.tuples):
        # the output changes before all indices are seen
        check.check(s.plan, s.indices, s.negatives, s.threads)
    if large:
        copy(s)
        data = None
    space = scratch.take(groups * GROUP * entry + rooms)
    windows = None if data is None else memoryview(bytearray(threads * (width << shift)))
    ends = memoryview(bytearray(groups * (((rows - 1) >> shift) + 2) * 4)).cast("I")
    work = Sorted(Parts(rows, width, shift, space, ends), s.change(width), width << shift)
    addressing, how = bind_rows(s.plan, s.negatives), How(threads, s.streamed, windows)
    for first in range(0, runs.tuples, groups * GROUP):
        n = min(groups * GROUP, runs.tuples - first)
        sorting = How(threads, n * entry >= tuning.STREAMED)
        if _kernels.partition(addressing, s.indices, first, n, work.change, work.parts, sorting):
            return False
        if data is not None and s.write is not None:
            _write_parts(s, work, data, threads)
        else:
            _store_parts(s, work, data, how, (first / runs.tuples, n / runs.tuples))
        data = None  # from now on out has it
    scratch.keep(space)
    return True


class Sorted(NamedTuple):
    """Tuples sorted by destination, what is done with their runs, and the bytes of a part."""

    parts: Parts
    change: Change
    size: int


def _store_parts(
    s: Scatter, work: Sorted, data: Buffer | None, how: How, progress: tuple[float, float]
) -> None:
    """Finish parts where they belong; those of data in rooms of their own first.

    progress: the shares of all work that were done before, and that these are.
    """
    before, share_of_all = progress
    parts, change, size = work
    step = max(how.threads, tuning.PIECE // size)
    for part in range(0, parts.parts, step):
        stop = min(parts.parts, part + step)
        place = parts.place(part, stop)
        source = None if data is None else data[place]
        _kernels.apply_parts(parts, change, source, s.out[place], part, stop, how)
        s.tick(before + share_of_all * stop / parts.parts)


def _write_parts(s: Scatter, work: Sorted, data: Buffer, threads: int) -> None:
    """Finish parts in buffers and write them: faster than stores through a map of a file."""
    parts, change, size = work
    step, how = max(1, tuning.WRITTEN // size), How(1, s.streamed)
    rooms = Rooms(step * size)

    def finish(part: int) -> None:
        stop = min(parts.parts, part + step)
        place = parts.place(part, stop)
        room = rooms.take()
        to = room[: place.stop - place.start]
        to[:] = data[place]
        _kernels.apply_parts(parts, change, None, to, part, stop, how)
        assert s.write is not None
        s.write(place.start, to)
        rooms.give(room)
        s.tick(stop / parts.parts)

    share(finish, iter(range(0, parts.parts, step)), threads)


def _part_shift(rows: int, width: int) -> int:
    """Return log2 of the rows of a part: half a cache, but no more than MOST_PARTS parts.

    Rows are numbered by 32 bits within their part, so beyond 2^42 rows there are more parts.
    """
    shift, half = 0, tuning.CACHED // 2
    while (width << shift) < half or ((rows >> shift) > tuning.MOST_PARTS and shift < 32):
        shift += 1
    return shift
