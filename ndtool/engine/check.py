"""Validation of indices: the check for indices out of bounds, and the error about them."""

from math import prod

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
    return MODES[plan.attributes.out_of_bounds].redirects and 0 in plan.sizes


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


def locate_bounds_error(plan: Plan, indices: Indices) -> NdtoolError:
    """Return the error that reports the first index out of bounds and the number of bad tuples.

    The search is serial. Without a match, the error reports that indices changed during the run.
    """
    addressing, tuples, components = bind_check(plan)
    step = max(1, tuning.WORK_ITEM // (components * indices.itemsize))
    count = 0
    for first in range(0, tuples, step):
        n = min(step, tuples - first)
        tuple_index, component_index, bad_tuples = _kernels.locate_out_of_bounds(
            addressing, indices, first, n
        )
        if bad_tuples and not count:
            first_tuple, component = tuple_index, component_index
        count += bad_tuples
    if not count:
        return OutputError("indices changed during the run")
    value = indices.value(first_tuple * components + component)
    return make_bounds_error(plan, (first_tuple, component, value), count)


def make_bounds_error(plan: Plan, first: tuple[int, int, int], bad_count: int) -> BoundsError:
    """Return the error about indices out of bounds; first: (tuple, component, value)."""
    first_tuple, component, value = first
    axis = plan.axis_of(component)
    size = plan.data[axis]
    return BoundsError(
        position=layouts.unravel_index(first_tuple, plan.positions),
        component=None if plan.has_scalar_indices else component,
        axis=axis,
        value=value + plan.attributes.index_base,
        base=plan.attributes.index_base,
        size=size,
        count=bad_count,
        total=prod(plan.positions),
        lowest=-size if plan.attributes.negatives else 0,
    )
