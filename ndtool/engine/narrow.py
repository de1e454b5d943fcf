"""Narrowed indices: validated tuples stored as linear row indices of two or four bytes.

Validation before the output changes is an additional pass over the indices. If these have many
bytes, it stores them as row indices, so that the kernels read the smaller copy.
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
from ndtool.rules.plans import ElementsPlan, Plan


class ValidatedPlan(NamedTuple):
    """A plan with validated indices; narrowing may merge the indexed axes of data into one."""

    plan: Plan
    indices: Indices


@contextmanager
def validate(
    plan: Plan, indices: Indices, threads: int, is_row_major: bool = True
) -> Iterator[ValidatedPlan]:
    """Validate all indices; yield the plan and indices to execute, narrowed if that is faster.

    is_row_major: whether data are in row-major order. Raises BoundsError for an index out of
    bounds.
    """
    itemsize = _narrow_itemsize(plan, indices)
    accepts_invalid = indices.out_of_bounds != "error" or indices.skips
    if accepts_invalid or not itemsize or (len(plan.sizes) > 1 and not is_row_major):
        check.check(plan, indices, threads)
        yield ValidatedPlan(plan, indices)
        return
    sizes, tuples = plan.sizes, prod(plan.positions)
    strides, negatives = layouts.contiguous_strides(sizes, 1), plan.attributes.negatives
    addressing = Addressing(sizes, strides, tuples, (), (), negatives)
    buffer = scratch.acquire(tuples * itemsize)
    rows_buffer = memoryview(buffer)
    pitch = len(sizes) * indices.itemsize
    step = max(1, tuning.WORK_ITEM // pitch)
    for first in range(0, tuples, step):
        n = min(step, tuples - first)
        target = rows_buffer[first * itemsize : (first + n) * itemsize]
        if _kernels.linearize_rows(
            addressing, indices, first, n, target, itemsize, limit_threads(threads, n * pitch)
        ):
            raise check.locate_bounds_error(plan, indices)
    row_indices = Indices(rows_buffer, itemsize, itemsize == 2, False, bound=prod(sizes))
    yield ValidatedPlan(_merge_indexed_axes(plan), row_indices)
    scratch.release(buffer)


def _narrow_itemsize(plan: Plan, indices: Indices) -> int:
    """Return the itemsize of narrowed indices; 0 if they should not be narrowed."""
    sizes, tuples = plan.sizes, prod(plan.positions)
    rows, tuple_bytes = prod(sizes), len(sizes) * indices.itemsize
    itemsize = 2 if rows <= 1 << 16 else 4
    fits = rows <= 1 << 31 and tuples * itemsize <= tuning.SCRATCH
    is_faster = tuple_bytes >= 4 * itemsize and tuples * tuple_bytes >= tuning.NARROW_INDICES
    return itemsize if fits and is_faster else 0


@lru_cache(maxsize=1024)
def _merge_indexed_axes(plan: Plan) -> Plan:
    """Return the same plan with the indexed axes merged into one axis of nonnegative rows."""
    plan = plan._replace(attributes=plan.attributes._replace(negatives=False))
    if isinstance(plan, ElementsPlan) or plan.k == 1:
        return plan
    rows = (prod(plan.sizes),)
    return plan._replace(
        data=plan.batch + rows + plan.slice_shape, indices=(*plan.positions, 1), sizes=rows
    )
