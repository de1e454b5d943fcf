"""How a sweep is cut into tasks, and where what it keeps of them stands."""

from __future__ import annotations

from typing import NamedTuple

from ndtool.runs.rows import Rows

LOCAL = 4  # bytes of a row's number within its part
MOST_PARTS = 1 << 16


class Cut(NamedTuple):
    """How a run is cut: block, tuples of a block; part, rows of a part, a power of two.

    gathers: whether rows are gathered, else updated. held: bytes that are kept in memory, of those
    that are kept. workers: how many tasks are done at once.
    """

    rows: Rows
    gathers: bool
    block: int
    part: int
    held: int
    workers: int

    @property
    def blocks(self) -> int:
        """How many blocks there are."""
        return -(-self.rows.tuples // self.block)

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return -(-self.rows.height // self.part)

    @property
    def mark(self) -> int:
        """Bytes of the number of a part, which a gather keeps for each tuple."""
        return 0 if not self.gathers else 1 if self.parts <= 256 else 2

    @property
    def pitch(self) -> int:
        """Bytes that are kept for a tuple: its row, once gathered or to be applied, and where."""
        return self.rows.width + LOCAL + self.mark

    @property
    def kept(self) -> int:
        """Bytes that are kept."""
        return self.rows.tuples * self.pitch

    @property
    def scratch(self) -> int:
        """Bytes that a task takes for each tuple of a block."""
        return 48 + self.rows.entry + 2 * self.rows.width

    @property
    def memory(self) -> int:
        """Bytes that are taken of memory at most."""
        part = min(self.part, self.rows.height) * self.rows.width
        task = min(self.block, self.rows.tuples) * self.scratch
        return min(self.held, self.kept) + self.workers * (part + task)

    @property
    def spilled(self) -> int:
        """Bytes of them that go to a file."""
        return max(0, self.kept - self.held)

    def tuples(self, block: int) -> int:
        """Return how many tuples a block has."""
        return min(self.block, self.rows.tuples - block * self.block)

    def place(self, block: int, what: str, number: int = 0) -> int:
        """Return where what is kept for a tuple of a block stands: "rows", "locals" or "marks"."""
        n, width = self.tuples(block), self.rows.width
        before = {"rows": 0, "locals": n * width, "marks": n * (width + LOCAL)}[what]
        size = {"rows": width, "locals": LOCAL, "marks": self.mark}[what]
        return block * self.block * self.pitch + before + number * size


def cut_for(rows: Rows, gathers: bool, budget: int, threads: int) -> Cut:
    """Cut a run so that it takes about `budget` bytes of memory."""
    unit = max(1, budget // 16)
    part = 1
    while 2 * part * rows.width <= unit and part < rows.height:
        part *= 2
    while -(-rows.height // part) > MOST_PARTS:
        part *= 2
    cut = Cut(rows, gathers, 1, part, budget // 2, 1)
    block = max(1, unit // cut.scratch)
    return cut._replace(block=block, workers=min(threads + (threads > 1), 4))
