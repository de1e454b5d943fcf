"""Small calls: plans bound once for `_kernels.BoundCalls`, which executes them without dispatch."""

from math import prod

from ndtool._kernels import SmallCall, UpdateSpec
from ndtool.engine import bind, check, counting, dispatch, layouts, tuning
from ndtool.rules.dtypes import NATIVE, Dtype
from ndtool.rules.plans import ElementsPlan, Plan


def bind_small_call(plan: Plan, types: dict[str, Dtype], filling: bytes | None) -> SmallCall | None:
    """Bind a plan for contiguous arrays; None if they need the general path.

    They do if an array is empty or needs a byte swap, if updates must have no duplicates, if update
    counts exceed SMALL_CALL bytes, or if the out-of-bounds mode redirects indices along an axis of
    size 0, which has no valid index.
    """
    attributes = plan.attributes
    if attributes.duplicates == "error":
        return None
    reduction = attributes.reduction
    dtype, index_dtype, update_dtype = types["data"], types["indices"], types.get("updates")
    shapes = plan.data, plan.indices, plan.output
    if not all(map(prod, shapes)) or not dtype.itemsize or check.lacks_valid_indices(plan):
        return None
    byte_order = dispatch.arithmetic_order(dtype, reduction)
    swapped_dtypes = [
        t
        for t in (dtype, update_dtype)
        if t is not None and t.swap_size > 1 and t.order != byte_order
    ]
    if swapped_dtypes or (index_dtype.swap_size > 1 and index_dtype.order != NATIVE):
        return None
    strides = layouts.contiguous_strides(plan.data, dtype.itemsize)
    slices = bind.bind_slices(plan, strides, dtype.itemsize)
    grid, width = None, dtype.itemsize
    if slices is not None:
        addressing, tuples, width = slices.addressing, slices.tuples, slices.width
    else:
        assert isinstance(plan, ElementsPlan)
        addressing, tuples, _ = bind.bind_check(plan)
        grid = bind.bind_tiles(bind.bind_panels(plan, strides, width)).grid
    spec = None
    if update_dtype is not None:
        count_itemsize = counting.count_itemsize(attributes, tuples, width)
        if prod(plan.output) * dtype.itemsize // width * count_itemsize > tuning.SMALL_CALL:
            return None
        counts = counting.bind_counts(attributes, bytearray(), tuples, width)
        spec = UpdateSpec(b"", width, reduction, dtype.name, counts)
    indices = bind.bind_indices(b"", index_dtype, attributes, filling)
    return SmallCall(addressing, grid, indices, spec, plan.output, tuples, width)
