"""Indices checked into a copy of few bytes, from which they are read from then on.

A check that comes first reads all indices once more than is needed. Where they are large, what it
leaves behind makes up for that: of a tuple the number of the row it names, in two bytes or four.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import Addressing, Indices
from ndtool.engine import check, layouts, scratch, tuning
from ndtool.engine.threads import team
from ndtool.rules.shapes import ElementsPlan, Plan, Shape


class Checked(NamedTuple):
    """Work whose indices are all within bounds; its plan may give data fewer axes than it had."""

    plan: Plan
    indices: Indices
    negatives: bool


@contextmanager
def checked(
    plan: Plan, indices: Indices, negatives: bool, threads: int, flat: bool = True
) -> Iterator[Checked]:
    """Give what is left to do when all indices are checked; raises BoundsError if one is bad.

    flat: whether data stands in row-major order.
    """
    itemsize = _bytes_of_a_number(plan, indices)
    lenient = indices.rule != "error"
    if lenient or not itemsize or (len(_sizes(plan)) > 1 and not flat):
        check.check(plan, indices, negatives, threads)
        yield Checked(plan, indices, negatives)
        return
    sizes, tuples = _sizes(plan), prod(plan.positions)
    addressing = Addressing(sizes, layouts.contiguous(sizes, 1), tuples, (), (), negatives)
    room = scratch.take(tuples * itemsize)
    numbers = memoryview(room)
    pitch = len(sizes) * indices.itemsize
    step = max(1, tuning.PIECE // pitch)
    for first in range(0, tuples, step):
        n = min(step, tuples - first)
        to = numbers[first * itemsize : (first + n) * itemsize]
        if _kernels.number(addressing, indices, first, n, to, itemsize, team(threads, n * pitch)):
            raise check.refusal(plan, indices, negatives)
    of_rows = Indices(numbers, itemsize, itemsize == 2, False, below=prod(sizes))
    yield Checked(_by_row(plan), of_rows, False)
    scratch.keep(room)


def _bytes_of_a_number(plan: Plan, indices: Indices) -> int:
    """Return the bytes that a row's number takes; 0 where a copy of the indices does not pay."""
    sizes, tuples = _sizes(plan), prod(plan.positions)
    rows, entry = prod(sizes), len(sizes) * indices.itemsize
    itemsize = 2 if rows <= 1 << 16 else 4
    pays = entry >= 4 * itemsize and tuples * entry >= tuning.NARROWED
    return itemsize if pays and rows <= 1 << 31 and tuples * itemsize <= tuning.SCRATCH else 0


def _sizes(plan: Plan) -> Shape:
    """Return the lengths of the axes that one index tuple names an element of."""
    return (plan.data[plan.axis],) if isinstance(plan, ElementsPlan) else plan.sizes


@lru_cache(maxsize=1024)
def _by_row(plan: Plan) -> Plan:
    """Return the plan of the same work, with the axes that tuples index as one axis of rows."""
    if isinstance(plan, ElementsPlan) or plan.k == 1:
        return plan
    rows = (prod(plan.sizes),)
    return plan._replace(
        data=plan.batch + rows + plan.run, indices=(*plan.positions, 1), sizes=rows
    )
