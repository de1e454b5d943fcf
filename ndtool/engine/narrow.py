"""Narrowed indices: validated tuples stored as linear row indices of two or four bytes.

Validation before the output changes reads all indices an additional time. If they are large, it
stores them narrowed, so that the kernels read the smaller copy.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import Addressing, Indices
from ndtool.engine import check, layouts, tuning
from ndtool.machine import scratch
from ndtool.machine.threads import limit_threads
from ndtool.rules.plans import ElementsPlan, Plan, Shape


class ValidatedPlan(NamedTuple):
    """A plan with validated indices; narrowing may merge the indexed axes of data into one."""

    plan: Plan
    indices: Indices
    negatives: bool


@contextmanager
def validate(
    plan: Plan, indices: Indices, negatives: bool, threads: int, is_row_major: bool = True
) -> Iterator[ValidatedPlan]:
    """Validate all indices; yield the plan and indices to execute, narrowed if that is faster.

    flat: whether data are in row-major order. Raises BoundsError for an index out of bounds.
    """
    itemsize = _row_index_bytes(plan, indices)
    lenient = indices.out_of_bounds != "error" or indices.skips
    if lenient or not itemsize or (len(_sizes(plan)) > 1 and not is_row_major):
        check.check(plan, indices, negatives, threads)
        yield ValidatedPlan(plan, indices, negatives)
        return
    sizes, tuples = _sizes(plan), prod(plan.positions)
    addressing = Addressing(sizes, layouts.contiguous_strides(sizes, 1), tuples, (), (), negatives)
    buffer = scratch.acquire(tuples * itemsize)
    rows_buffer = memoryview(buffer)
    pitch = len(sizes) * indices.itemsize
    step = max(1, tuning.WORK_ITEM // pitch)
    for first in range(0, tuples, step):
        n = min(step, tuples - first)
        to = rows_buffer[first * itemsize : (first + n) * itemsize]
        if _kernels.linearize_rows(
            addressing, indices, first, n, to, itemsize, limit_threads(threads, n * pitch)
        ):
            raise check.locate_bounds_error(plan, indices, negatives)
    of_rows = Indices(rows_buffer, itemsize, itemsize == 2, False, below=prod(sizes))
    yield ValidatedPlan(_by_row(plan), of_rows, False)
    scratch.release(buffer)


def _row_index_bytes(plan: Plan, indices: Indices) -> int:
    """Return the bytes of a narrowed index; 0 if narrowing would be slower."""
    sizes, tuples = _sizes(plan), prod(plan.positions)
    rows, entry = prod(sizes), len(sizes) * indices.itemsize
    itemsize = 2 if rows <= 1 << 16 else 4
    pays = entry >= 4 * itemsize and tuples * entry >= tuning.NARROW_INDICES
    return itemsize if pays and rows <= 1 << 31 and tuples * itemsize <= tuning.SCRATCH else 0


def _sizes(plan: Plan) -> Shape:
    """Return the lengths of the axes that an index tuple indexes."""
    return (plan.data[plan.axis],) if isinstance(plan, ElementsPlan) else plan.sizes


@lru_cache(maxsize=1024)
def _by_row(plan: Plan) -> Plan:
    """Return the same plan with the indexed axes merged into one axis of rows."""
    if isinstance(plan, ElementsPlan) or plan.k == 1:
        return plan
    rows = (prod(plan.sizes),)
    return plan._replace(
        data=plan.batch + rows + plan.slice_shape, indices=(*plan.positions, 1), sizes=rows
    )
