"""Duplicates that are refused: the first index tuple that selects what an earlier one does.

A bit per row of data tells. Where memory is short, each pass over the indices looks at as many rows
as have bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import OUT_OF_BOUNDS, Addressing, Indices
from ndtool.engine import layouts, tuning
from ndtool.engine.bind import bind_rows
from ndtool.errors import DuplicatesError, OutputError
from ndtool.rules.plans import ElementsPlan, NdPlan, Plan


class Tuples(NamedTuple):
    """Some successive index tuples: the number of the first one, how many, their indices."""

    first: int
    count: int
    indices: Indices


class Stored(NamedTuple):
    """The index tuples of a plan as stored, and the rows of data that they select.

    Batches that share their tuples have the same duplicates, so that they count as one.
    """

    plan: Plan
    addressing: Addressing
    tuples: int
    entries: int
    rows: int


@lru_cache(maxsize=1024)
def stored(plan: Plan, negatives: bool) -> Stored:
    """Bind the stored tuples of a plan to rows of data."""
    if isinstance(plan, ElementsPlan):
        tuples = prod(plan.indices)
        return Stored(plan, bind_rows(plan, negatives), tuples, 1, prod(plan.data))
    once = plan
    if isinstance(plan, NdPlan) and plan.plain:
        tuples = prod(plan.positions)
        once = plan._replace(batch=plan.groups, tuples=tuples)
    rows = prod(once.batch) * prod(once.sizes)
    return Stored(plan, bind_rows(once, negatives), once.tuples, plan.k, rows)


def bits_of(plan: Plan, most: int | None = None) -> int:
    """Return the bytes of a check: a bit per row; most: bytes, with more than one pass if less."""
    needed = -(-stored(plan, True).rows // 8)
    return needed if most is None else min(needed, max(most, 1))


def check(plan: Plan, indices: Indices, negatives: bool) -> None:
    """Raise DuplicatesError if two valid tuples select the same slice or element."""
    one = stored(plan, negatives)
    size = one.entries * indices.itemsize
    step = max(1, tuning.PIECE // max(1, size))

    def blocks() -> Iterator[Tuples]:
        for first in range(0, one.tuples, step):
            yield Tuples(first, min(step, one.tuples - first), indices.since(first * one.entries))

    search(one, blocks)


def search(
    one: Stored, blocks: Callable[[], Iterator[Tuples]], most: int | None = None
) -> None:
    """Raise DuplicatesError if two valid tuples select the same slice or element.

    blocks: yields all tuples, in order. most: bytes of memory for bits.
    """
    repeated, selected = one.tuples, -1
    bits = memoryview(bytearray(bits_of(one.plan, most)))
    for low in range(0, one.rows, 8 * len(bits) or 1):
        if low:
            bits[:] = bytes(len(bits))
        for some in blocks():
            if some.first > repeated:  # another pass found an earlier one
                break
            at, row = _find(one, some, low, 8 * len(bits), bits)
            if 0 <= at < repeated:
                repeated, selected = at, row
            if at >= 0:
                break
    if selected < 0:
        return
    for some in blocks():
        at, _ = _find(one, some, selected, 1, None)
        if at >= 0:
            positions = one.plan.positions
            raise DuplicatesError(
                layouts.unravel(at, positions), layouts.unravel(repeated, positions)
            )


def _find(
    one: Stored, some: Tuples, low: int, size: int, bits: memoryview | None
) -> tuple[int, int]:
    first, count, indices = some
    at, row = _kernels.find_repeated(one.addressing, indices, first, count, low, size, bits)
    if at == OUT_OF_BOUNDS:
        raise OutputError("indices changed during the run")
    return at, row
