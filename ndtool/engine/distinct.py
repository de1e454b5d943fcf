"""The check for duplicates: index tuples that select the same slice as an earlier tuple.

A bit per row of data shows which rows earlier tuples select. If memory has fewer bits than data
rows, each pass over the indices checks as many rows as there are bits.
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
from ndtool.errors import DuplicatesError, OutputError
from ndtool.rules.plans import ElementsPlan, Plan


class TupleBlock(NamedTuple):
    """Successive index tuples: the position of the first, their number, and their indices."""

    first: int
    tuple_count: int
    indices: Indices


class StoredTuples(NamedTuple):
    """The index tuples of a plan as stored, and the rows of data that they select.

    Batches that share their tuples have the same duplicates, so the tuples of one are checked.
    """

    plan: Plan
    addressing: Addressing
    tuples: int
    components: int
    rows: int


@lru_cache(maxsize=1024)
def stored_tuples(plan: Plan, negatives: bool) -> StoredTuples:
    """Bind the stored tuples of a plan to rows of data."""
    tuples = prod(plan.positions)
    if isinstance(plan, ElementsPlan):
        return StoredTuples(plan, bind_rows(plan, negatives), tuples, 1, prod(plan.data))
    once = plan._replace(batch=plan.groups, tuples=tuples)
    rows = prod(once.batch) * prod(once.sizes)
    return StoredTuples(plan, bind_rows(once, negatives), tuples, plan.k, rows)


def bitmap_bytes(plan: Plan) -> int:
    """Return the bytes of one bit per row."""
    return -(-stored_tuples(plan, True).rows // 8)


def check(plan: Plan, indices: Indices, negatives: bool) -> None:
    """Raise DuplicatesError if two tuples select the same slice or element."""
    stored = stored_tuples(plan, negatives)
    step = max(1, tuning.WORK_ITEM // max(1, stored.components * indices.itemsize))

    def blocks() -> Iterator[TupleBlock]:
        for first in range(0, stored.tuples, step):
            count = min(step, stored.tuples - first)
            yield TupleBlock(first, count, indices.since(first * stored.components))

    check_blocks(stored, blocks, bitmap_bytes(plan))


def check_blocks(
    stored: StoredTuples, blocks: Callable[[], Iterator[TupleBlock]], memory: int
) -> None:
    """Raise DuplicatesError if two tuples select the same slice or element.

    The error names the first tuple in row-major order that selects what an earlier one does, and
    the earliest of these. blocks: yields all tuples, in order. memory: the limit of the bits, in
    bytes.
    """
    second, row = stored.tuples, -1
    bits = memoryview(bytearray(max(1, min(-(-stored.rows // 8), memory))))
    for low in range(0, stored.rows, 8 * len(bits)):
        bits[:] = bytes(len(bits))
        for some in blocks():
            if some.first >= second:  # another pass found an earlier duplicate
                break
            at, selected = _find(stored, some, low, 8 * len(bits), bits)
            if 0 <= at < second:
                second, row = at, selected
            if at >= 0:
                break
    if row < 0:
        return
    for some in blocks():
        at, _ = _find(stored, some, row, 1, None)
        if at >= 0:
            positions = stored.plan.positions
            raise DuplicatesError(
                layouts.unravel_index(at, positions), layouts.unravel_index(second, positions)
            )
    raise OutputError("indices changed during the run")


def _find(
    stored: StoredTuples, some: TupleBlock, low: int, size: int, bits: memoryview | None
) -> tuple[int, int]:
    at, row = _kernels.find_duplicate(
        stored.addressing, some.indices, some.first, some.tuple_count, low, size, bits
    )
    if at == _kernels.OUT_OF_BOUNDS:
        raise OutputError("indices changed during the run")
    return at, row
