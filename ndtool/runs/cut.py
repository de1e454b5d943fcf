"""How a sweep is cut into tasks, and where what it keeps of them stands.

A row is what an index tuple names: some bytes of row-major data, side by side. With rows all
operators are alike: tuples in order, a row of data for each. Rows are numbered over the leading
axes of data; a part is a box of them, of whole chunks, or of a flat array a stretch. A block is a
stretch of tuples.
"""

from __future__ import annotations

from math import lcm, prod
from typing import NamedTuple

from ndtool._kernels import MARKED
from ndtool.arrays import grid
from ndtool.arrays.grid import Box
from ndtool.arrays.source import Facts
from ndtool.rules.inference import Inference
from ndtool.rules.shapes import ElementsPlan, Shape

LOCAL = 4  # bytes of a row's number within its part
TABLE = 512  # bytes of a task's table of parts, beside 8 for each part
MOST_PARTS = (1 << 16) - 1  # one number of two bytes is that of tuples that name none
MOST_ROWS = 1 << 32  # of a part
MOST_WORKERS = 4


class Rows(NamedTuple):
    """How many index tuples there are, the bytes of each; the rows of data, the bytes of each.

    over: the axes that number the rows. strays: whether some tuples may name none of them.
    """

    tuples: int
    entry: int
    over: Shape
    width: int
    strays: bool = False

    @property
    def height(self) -> int:
        """How many rows of data there are."""
        return prod(self.over)


class Units(NamedTuple):
    """What must not be cut; of flat arrays, nothing.

    box: rows of data that parts are made of. written: tuples that blocks are made of, so that
    chunks of the output are whole. read: tuples that they should be made of, so that no chunk is
    read for two. held: bytes of a chunk, of which a task has one more at a time.
    """

    box: Shape
    written: int
    read: int
    held: int


class Cut(NamedTuple):
    """How a run is cut: block, tuples of a block; step, the shape of a part.

    gathers: whether rows are gathered, else updated. held: bytes that are kept in memory, of those
    that are kept; chunk: bytes of a chunk. workers: how many tasks are done at once.
    """

    rows: Rows
    gathers: bool
    block: int
    step: Shape
    held: int
    chunk: int
    workers: int

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.rows.tuples // self.block)

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return grid.blocks(self.rows.over, self.step)

    @property
    def part(self) -> int:
        """Bytes of a part."""
        return prod(self.step) * self.rows.width

    @property
    def piles(self) -> int:
        """How many piles tuples are sorted into: one for each part, the last for strays."""
        return self.parts + self.rows.strays

    @property
    def mark(self) -> int:
        """Bytes of the number of a pile."""
        return 1 if self.piles <= MARKED else 2

    @property
    def pitch(self) -> int:
        """Bytes that are kept for a tuple by the task that sorts it.

        Its row's number in a part; the row that is to be applied, or the number of the part.
        """
        return LOCAL + (self.mark if self.gathers else self.rows.width)

    @property
    def sorted(self) -> int:
        """Bytes that are kept of all blocks; what is gathered for them follows."""
        return self.rows.tuples * self.pitch

    @property
    def kept(self) -> int:
        """Bytes that are kept."""
        return self.sorted + self.rows.tuples * self.rows.width * self.gathers

    @property
    def spilled(self) -> int:
        """Bytes of them that go to a file."""
        return max(0, self.kept - self.held)

    @property
    def scratch(self) -> int:
        """Bytes that a task works in."""
        each = self.rows.entry + 2 * (self.rows.width + LOCAL) + self.mark
        return min(self.block, self.rows.tuples) * each + 1024

    @property
    def memory(self) -> int:
        """Bytes that are taken of memory at most."""
        tables = 8 * (self.parts + 3) * (self.blocks + 2) * (1 + self.gathers)
        tables += self.workers * (TABLE + 8 * self.parts)
        each = self.part + self.scratch + self.chunk
        return tables + min(self.held, self.kept) + self.workers * each

    def tuples(self, block: int) -> int:
        """Return how many tuples a block has."""
        return min(self.block, self.rows.tuples - block * self.block)

    def box(self, part: int) -> Box:
        """Return where a part stands among the rows."""
        return grid.box(self.rows.over, self.step, part)


def rows_of(inference: Inference, flat: bool = True) -> Rows:
    """Return what a call is in rows; flat: whether data have no other order than that of rows."""
    plan, itemsize = inference.plan, inference.dtype.itemsize
    size = inference.inputs["indices"].dtype.itemsize
    strays = inference.attributes.out_of_bounds in ("fill", "drop")
    if isinstance(plan, ElementsPlan):
        rows = Rows(prod(plan.indices), size, plan.data, itemsize, strays)
    else:
        over = plan.batch + plan.sizes
        rows = Rows(plan.tuples, plan.k * size, over, plan.width * itemsize, strays)
    return rows._replace(over=(rows.height,)) if flat else rows


def units_of(inference: Inference, sources: dict[str, Facts], output: Facts) -> Units:
    """Return what must not be cut of the chunks, and shards, of a call's arrays."""
    plan = inference.plan
    axes = len(plan.data if isinstance(plan, ElementsPlan) else plan.batch + plan.sizes)
    steps = [_files(sources["data"])]
    gathers = "updates" not in sources
    if not gathers:
        steps.append(_files(output))
    box = tuple(
        min(size, lcm(*(step[d] for step in steps if step)))
        for d, size in enumerate(plan.data[:axes])
    )
    positions = plan.output[: len(plan.output) - (len(plan.data) - axes)] if gathers else ()
    read = [
        _slab(_files(facts), plan.positions)
        for role, facts in sources.items()
        if role != "data" and not getattr(plan, "repeated", False)
    ]
    written = _slab(_files(output), positions) if gathers else 1
    files = [(_files(one) or (0,), one.dtype.itemsize) for one in (*sources.values(), output)]
    held = max(prod(shape) * itemsize for shape, itemsize in files)
    return Units(box, written, lcm(*read), held)


def read_again(inference: Inference, sources: dict[str, Facts], cut: Cut) -> int:
    """Return the bytes of chunks that are read for two blocks at most, as one ends within them."""
    if getattr(inference.plan, "repeated", False):
        return 0
    again, ends = 0, cut.blocks - 1
    for role, facts in sources.items():
        if role != "data":
            slab = _slab(_files(facts), inference.plan.positions)
            within = ends - ends * cut.block // lcm(cut.block, slab)
            again += within * slab * (facts.nbytes // cut.rows.tuples)
    return again


def _files(facts: Facts) -> Shape | None:
    """Return the shape of what is in one file of an array in chunks, None of a flat array."""
    return tuple(facts.notes.get("shards") or facts.grid) if facts.in_chunks else None


def _slab(step: Shape | None, positions: Shape) -> int:
    """Return how many positions, in order, are chunks that are not cut."""
    if step is None:
        return 1
    for d, length in enumerate(positions):
        if min(step[d], length) > 1:
            if d and length % step[d]:  # lines end in what is no whole chunk
                return prod(positions[d:])
            return min(step[d], length) * prod(positions[d + 1 :])
    return 1


def cut_for(
    rows: Rows, gathers: bool, budget: int, threads: int, units: Units | None = None
) -> Cut:
    """Cut a run so that it takes about `budget` bytes of memory, or what chunks take.

    A quarter is for what is kept; a worker has an eighth for a part, and half of that to work in.
    """
    room = budget // 8
    step = _step(rows, room, units)
    while grid.blocks(rows.over, step) > MOST_PARTS:
        room *= 2
        step = _step(rows, room, units)
    block = max(1, budget // 16 // (2 * (rows.width + LOCAL) + 2))
    if units is not None:
        both = lcm(units.read, units.written)
        unit = both if both <= block else units.written
        block = max(1, block // unit) * unit
    workers = min(threads + (threads > 1), MOST_WORKERS)
    chunk = 0 if units is None else units.held
    return Cut(rows, gathers, block, step, budget // 4, chunk, workers)


def _step(rows: Rows, room: int, units: Units | None) -> Shape:
    """Return the shape of a part of about `room` bytes."""
    most = max(1, room // max(1, rows.width))
    if units is None:
        step = 1
        while step * 2 <= most and step < rows.height:
            step *= 2
        return (min(step, rows.height),)
    shape = list(units.box)
    for d in reversed(range(len(shape))):
        times = most // prod(shape)
        if times > 1:
            shape[d] = min(rows.over[d], shape[d] * times)
        if shape[d] < rows.over[d]:
            break
    return tuple(shape)
