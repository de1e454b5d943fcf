"""Validation of indices: the check for indices out of bounds, and the error about them."""

from math import prod

from ndtool import _kernels
from ndtool._kernels import Indices
from ndtool.engine import layouts, tuning
from ndtool.engine.bind import bind_check
from ndtool.errors import BoundsError, NdtoolError, OutputError
from ndtool.machine.threads import limit_threads
from ndtool.rules.modes import MODES
from ndtool.rules.plans import ElementsPlan, NdPlan, Plan


def check(plan: Plan, indices: Indices, negatives: bool, threads: int) -> None:
    """Raise BoundsError for the first index out of bounds in row-major order.

    In modes other than "error", only if the mode cannot redirect it.
    """
    if is_error(plan, indices.out_of_bounds):
        error = find_bounds_error(plan, indices, negatives, threads)
        if error is not None:
            raise error


def is_error(plan: Plan, mode: str) -> bool:
    """Whether an index out of bounds is an error: in mode "error", or on an axis of size 0."""
    return mode == "error" or lacks_valid_indices(plan, mode)


def lacks_valid_indices(plan: Plan, mode: str) -> bool:
    """Whether a mode redirects indices, and an indexed axis of size 0 has no valid one."""
    sizes = plan.sizes if isinstance(plan, NdPlan) else (plan.data[plan.axis],)
    return MODES[mode].redirects and 0 in sizes


def find_bounds_error(
    plan: Plan, indices: Indices, negatives: bool, threads: int
) -> NdtoolError | None:
    """Return the error about indices out of bounds, in any mode; None if all are valid."""
    addressing, tuples, entries = bind_check(plan, negatives)
    pitch = entries * indices.itemsize
    if not tuples or not pitch:
        return None
    step = max(1, tuning.WORK_ITEM // pitch)
    for first in range(0, tuples, step):
        count = min(step, tuples - first)
        if _kernels.check(addressing, indices, first, count, limit_threads(threads, count * pitch)):
            return locate_bounds_error(plan, indices, negatives)
    return None


def locate_bounds_error(plan: Plan, indices: Indices, negatives: bool) -> NdtoolError:
    """Return the error that names the first index out of bounds and counts them all.

    The search is serial. If it finds none, the indices changed during the run.
    """
    addressing, tuples, entries = bind_check(plan, negatives)
    step = max(1, tuning.WORK_ITEM // (entries * indices.itemsize))
    count = 0
    for first in range(0, tuples, step):
        number, which, bad = _kernels.find(addressing, indices, first, min(step, tuples - first))
        if bad and not count:
            tuple_number, component = number, which
        count += bad
    if not count:
        return OutputError("indices changed during the run")
    value = indices.value(tuple_number * entries + component)
    return make_bounds_error(plan, (tuple_number, component, value), count, negatives)


def make_bounds_error(
    plan: Plan, first: tuple[int, int, int], count: int, negatives: bool
) -> BoundsError:
    """Return the error about indices out of bounds; first: its tuple, component and value."""
    tuple_number, component, value = first
    axis = len(plan.batch) + component if isinstance(plan, NdPlan) else plan.axis
    size = plan.data[axis]
    alone = isinstance(plan, ElementsPlan) or plan.plain
    return BoundsError(
        position=layouts.unravel_index(tuple_number, plan.positions),
        component=None if alone else component,
        axis=axis,
        value=value,
        size=size,
        count=count,
        total=prod(plan.positions),
        lowest=-size if negatives else 0,
    )
