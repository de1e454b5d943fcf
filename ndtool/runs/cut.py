"""How a sweep is cut into tasks, and where what it keeps of them stands.

A row is what an index tuple names: some bytes of row-major data, side by side. With rows all
operators are alike: tuples in order, a row of data for each.
"""

from __future__ import annotations

from math import prod
from typing import NamedTuple

from ndtool._kernels import MARKED
from ndtool.rules.inference import Inference
from ndtool.rules.shapes import ElementsPlan

LOCAL = 4  # bytes of a row's number within its part
TABLE = 512  # bytes of where a block's tuples of each part begin, beside 8 for each part
MOST_PARTS = 1 << 16
MOST_WORKERS = 4


class Rows(NamedTuple):
    """How many index tuples there are, the bytes of each; the rows of data, the bytes of each."""

    tuples: int
    entry: int
    height: int
    width: int


class Cut(NamedTuple):
    """How a run is cut: block, tuples of a block; shift, log2 of the rows of a part.

    gathers: whether rows are gathered, else updated. held: bytes that are kept in memory, of those
    that are kept. workers: how many tasks are done at once.
    """

    rows: Rows
    gathers: bool
    block: int
    shift: int
    held: int
    workers: int

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.rows.tuples // self.block)

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return (self.rows.height - 1 >> self.shift) + 1

    @property
    def part(self) -> int:
        """Bytes of a part."""
        return min(1 << self.shift, self.rows.height) * self.rows.width

    @property
    def mark(self) -> int:
        """Bytes of the number of a part."""
        return 1 if self.parts <= MARKED else 2

    @property
    def pitch(self) -> int:
        """Bytes that are kept for a tuple.

        The row that it names or that is to be applied, its number there, for a gather the part's.
        """
        return self.rows.width + LOCAL + self.mark * self.gathers

    @property
    def kept(self) -> int:
        """Bytes that are kept."""
        return self.rows.tuples * self.pitch

    @property
    def spilled(self) -> int:
        """Bytes of them that go to a file."""
        return max(0, self.kept - self.held)

    @property
    def scratch(self) -> int:
        """Bytes that a task works in."""
        each = 2 * (self.rows.width + LOCAL) + self.mark
        return min(self.block, self.rows.tuples) * each + 1024

    @property
    def memory(self) -> int:
        """Bytes that are taken of memory at most."""
        tables = (self.blocks + self.workers) * (TABLE + 8 * self.parts)
        return tables + min(self.held, self.kept) + self.workers * (self.part + self.scratch)

    def tuples(self, block: int) -> int:
        """Return how many tuples a block has."""
        return min(self.block, self.rows.tuples - block * self.block)

    def place(self, block: int, what: str, number: int = 0) -> int:
        """Return where what is kept for a tuple of a block stands: "rows", "local" or "marks"."""
        n, width = self.tuples(block), self.rows.width
        before = {"rows": 0, "local": n * width, "marks": n * (width + LOCAL)}[what]
        size = {"rows": width, "local": LOCAL, "marks": self.mark}[what]
        return block * self.block * self.pitch + before + number * size


def rows_of(inference: Inference) -> Rows:
    """Return what a call is in rows."""
    plan, itemsize = inference.plan, inference.dtype.itemsize
    size = inference.inputs["indices"].dtype.itemsize
    if isinstance(plan, ElementsPlan):
        return Rows(prod(plan.indices), size, prod(plan.data), itemsize)
    height = prod(plan.batch) * prod(plan.sizes)
    return Rows(plan.tuples, plan.k * size, height, plan.width * itemsize)


def cut_for(rows: Rows, gathers: bool, budget: int, threads: int) -> Cut:
    """Cut a run so that it takes about `budget` bytes of memory.

    A quarter is for what is kept; a worker has an eighth for a part, and half of that to work in.
    """
    shift = 0
    while rows.width << shift + 1 <= budget // 8 and 1 << shift < rows.height:
        shift += 1
    while rows.height - 1 >> shift >= MOST_PARTS:
        shift += 1
    block = max(1, budget // 16 // (2 * (rows.width + LOCAL) + 2))
    workers = min(threads + (threads > 1), MOST_WORKERS)
    return Cut(rows, gathers, block, shift, budget // 4, workers)
