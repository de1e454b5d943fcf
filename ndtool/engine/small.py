"""Small calls: plans bound once for `_kernels.BoundCalls`, which runs them without dispatch."""

from math import prod

from ndtool._kernels import SmallCall, UpdateSpec
from ndtool.engine import bind, check, dispatch, layouts, tuning
from ndtool.engine.counting import ReductionOptions
from ndtool.rules.dtypes import NATIVE, Dtype
from ndtool.rules.modes import Handling
from ndtool.rules.plans import ElementsPlan, Plan


def bind_small_call(
    plan: Plan,
    types: dict[str, Dtype],
    negatives: bool,
    handling: Handling,
    filling: bytes | None,
    reduction_options: ReductionOptions,
) -> SmallCall | None:
    """Bind a plan for contiguous arrays; None if they need the general path.

    That is: an array is empty or needs a byte swap; updates must have no duplicates, or their
    counts are large; the out-of-bounds mode redirects, and an axis of size 0 has no valid index.
    """
    if reduction_options.duplicates == "error":
        return None
    reduction = reduction_options.reduction
    dtype, index, new = types["data"], types["indices"], types.get("updates")
    inputs = plan.data, plan.indices, plan.output
    if (
        not all(map(prod, inputs))
        or not dtype.itemsize
        or check.lacks_valid_indices(plan, handling.mode)
    ):
        return None
    order = dispatch.arithmetic_order(dtype, reduction)
    swapped = [t for t in (dtype, new) if t is not None and t.unit > 1 and t.order != order]
    if swapped or (index.unit > 1 and index.order != NATIVE):
        return None
    strides = layouts.contiguous_strides(plan.data, dtype.itemsize)
    runs = bind.bind_slices(plan, strides, dtype.itemsize, negatives)
    grid, width = None, dtype.itemsize
    if runs is not None:
        addressing, tuples, width = runs.addressing, runs.tuples, runs.width
    else:
        assert isinstance(plan, ElementsPlan)
        addressing, tuples, _ = bind.bind_check(plan, negatives)
        grid = bind.bind_units(bind.bind_panels(plan, strides, width, negatives)).grid
    spec = None
    if new is not None:
        each = reduction_options.count_itemsize(tuples, width)
        if prod(plan.output) * dtype.itemsize // width * each > tuning.SMALL_CALL:
            return None
        counts = reduction_options.bind_counts(bytearray(), tuples, width)
        spec = UpdateSpec(b"", width, reduction, dtype.name, counts)
    indices = bind.bind_indices(b"", index, handling, filling)
    return SmallCall(addressing, grid, indices, spec, plan.output, tuples, width)
