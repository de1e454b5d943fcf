"""Validation of indices: the check for indices out of bounds, and the error about them."""

from collections.abc import Iterable
from math import prod
from typing import NamedTuple

from ndtool import _kernels
from ndtool._kernels import Indices
from ndtool.engine import layouts, tuning
from ndtool.engine.bind import bind_check
from ndtool.errors import BoundsError, NdtoolError, OutputError
from ndtool.machine.threads import limit_threads
from ndtool.rules.operators import MODES
from ndtool.rules.plans import Plan


def check(plan: Plan, indices: Indices, threads: int) -> None:
    """Raise BoundsError for the first index out of bounds in row-major order.

    In other modes than "error", only an index along an axis of size 0 is an error.
    """
    if is_error(plan):
        error = find_bounds_error(plan, indices, threads)
        if error is not None:
            raise error


def is_error(plan: Plan) -> bool:
    """Whether an index out of bounds is an error: in mode "error", or on an axis of size 0."""
    return plan.attributes.out_of_bounds == "error" or lacks_valid_indices(plan)


def lacks_valid_indices(plan: Plan) -> bool:
    """Whether the mode redirects indices, but an indexed axis of size 0 has no valid index."""
    return MODES[plan.attributes.out_of_bounds].redirect is not None and 0 in plan.sizes


def find_bounds_error(plan: Plan, indices: Indices, threads: int) -> NdtoolError | None:
    """Return an error if an index is out of bounds, whatever the mode; None if all are valid."""
    addressing, tuples, components = bind_check(plan)
    pitch = components * indices.itemsize
    if not tuples or not pitch:
        return None
    step = max(1, tuning.WORK_ITEM // pitch)
    for first in range(0, tuples, step):
        count = min(step, tuples - first)
        if _kernels.check(addressing, indices, first, count, limit_threads(threads, count * pitch)):
            return locate_bounds_error(plan, indices)
    return None


class OutOfBounds(NamedTuple):
    """The first index out of bounds of some tuples, and the number of tuples with such an index."""

    position: int
    component: int
    value: int
    tuples: int


def find_out_of_bounds(plan: Plan, indices: Indices, first: int, n: int) -> OutOfBounds | None:
    """Return the indices of n tuples from tuple `first` that are out of bounds, None if none is."""
    addressing, _, components = bind_check(plan)
    number, component, count = _kernels.locate_out_of_bounds(addressing, indices, 0, n)
    if not count:
        return None
    value = indices.value(number * components + component)
    return OutOfBounds(first + number, component, value, count)


def merge(reports: Iterable[OutOfBounds | None]) -> OutOfBounds | None:
    """Return the indices out of bounds of all blocks of tuples, None if none is."""
    found = [report for report in reports if report is not None]
    return min(found)._replace(tuples=sum(report.tuples for report in found)) if found else None


def locate_bounds_error(plan: Plan, indices: Indices) -> NdtoolError:
    """Return the error that reports the first index out of bounds and the number of bad tuples.

    The search is serial. Without a match, the error reports that indices changed during the run.
    """
    _, tuples, components = bind_check(plan)
    step = max(1, tuning.WORK_ITEM // (components * indices.itemsize))
    found = merge(
        find_out_of_bounds(
            plan, indices.since(first * components), first, min(step, tuples - first)
        )
        for first in range(0, tuples, step)
    )
    if found is None:
        return OutputError("indices changed during the run")
    return make_bounds_error(plan, found)


def make_bounds_error(plan: Plan, found: OutOfBounds) -> BoundsError:
    """Return the error about indices out of bounds."""
    axis, base = plan.axis_of(found.component), plan.attributes.index_base
    size = plan.data[axis]
    return BoundsError(
        position=layouts.unravel_index(found.position, plan.positions),
        component=None if plan.has_scalar_indices else found.component,
        axis=axis,
        value=found.value + base,
        base=base,
        size=size,
        count=found.tuples,
        total=prod(plan.positions),
        lowest=-size if plan.attributes.negatives else 0,
    )
