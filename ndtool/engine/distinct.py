"""The check for duplicates: index tuples that select the same slice as an earlier tuple.

A bitmap has a bit for each row of data, set if an earlier tuple selects the row. If memory limits
the bitmap to fewer bits than rows, several passes over the indices each check a range of rows. For
few tuples, a hash table of the rows is smaller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import Addressing, Indices
from ndtool.engine import layouts, tuning
from ndtool.engine.bind import bind_rows
from ndtool.engine.counting import random_factor, row_slots
from ndtool.errors import DuplicatesError, OutputError
from ndtool.rules.plans import Plan


class TupleBlock(NamedTuple):
    """Successive index tuples: the position of the first, their count, and their indices."""

    first: int
    tuple_count: int
    indices: Indices


class StoredTuples(NamedTuple):
    """The stored index tuples of a plan, and the number of rows of data that they can select.

    Batches that share stored tuples have the same duplicates, so those of one batch are checked.
    """

    plan: Plan
    addressing: Addressing
    tuples: int
    components: int
    rows: int


@lru_cache(maxsize=1024)
def stored_tuples(plan: Plan) -> StoredTuples:
    """Bind the stored tuples of a plan to linear row indices."""
    stored, rows = plan.stored_tuples, prod(plan.slice_grid)
    return StoredTuples(plan, bind_rows(stored), stored.tuples, plan.k, rows)


def memory_bytes(plan: Plan) -> int:
    """Return the bytes of a check in one pass: of a bit for each row of data, or of a table."""
    stored = stored_tuples(plan)
    return min(-(-stored.rows // 8), _table_bytes(stored))


def _table_bytes(stored: StoredTuples) -> int:
    """Return the bytes of a hash table, at most half full."""
    return 8 * row_slots(stored.tuples)


def check(plan: Plan, indices: Indices) -> None:
    """Raise DuplicatesError if two tuples select the same slice or element."""
    stored = stored_tuples(plan)
    step = max(1, tuning.WORK_ITEM // max(1, stored.components * indices.itemsize))

    def blocks() -> Iterator[TupleBlock]:
        for first in range(0, stored.tuples, step):
            count = min(step, stored.tuples - first)
            yield TupleBlock(first, count, indices.since(first * stored.components))

    check_blocks(stored, blocks, memory_bytes(plan))


def check_blocks(
    stored: StoredTuples, blocks: Callable[[], Iterator[TupleBlock]], memory: int
) -> None:
    """Raise DuplicatesError if two tuples select the same slice or element.

    The error reports the first tuple in row-major order that selects the slice of an earlier tuple,
    and the earliest of these. blocks: yields all tuples, in order. memory: the limit of the bitmap
    or the table, in bytes.
    """
    repeated, row = stored.tuples, -1
    size, key, rows = min(-(-stored.rows // 8), memory), 0, 0
    if _table_bytes(stored) <= size:
        size, key, rows = _table_bytes(stored), random_factor(), stored.rows
    bits = memoryview(bytearray(max(1, size)))
    rows = rows or 8 * len(bits)  # of each pass
    for low in range(0, stored.rows, rows):
        if low:
            bits[:] = bytes(len(bits))
        for block in blocks():
            if block.first >= repeated:  # another pass found an earlier duplicate
                break
            position, selected = _find(stored, block, low, rows, bits, key)
            if 0 <= position < repeated:
                repeated, row = position, selected
            if position >= 0:
                break
    if row < 0:
        return
    for block in blocks():
        position, _ = _find(stored, block, row, 1, None)
        if position >= 0:
            positions = stored.plan.positions
            raise DuplicatesError(
                first=layouts.unravel_index(position, positions),
                second=layouts.unravel_index(repeated, positions),
            )
    raise OutputError("indices changed during the run")


def _find(
    stored: StoredTuples,
    block: TupleBlock,
    low: int,
    size: int,
    bits: memoryview | None,
    key: int = 0,
) -> tuple[int, int]:
    position, row = _kernels.find_duplicate(
        stored.addressing, block.indices, block.first, block.tuple_count, low, size, bits, key
    )
    if position == _kernels.OUT_OF_BOUNDS:
        raise OutputError("indices changed during the run")
    return position, row
