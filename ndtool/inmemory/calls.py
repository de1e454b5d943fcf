"""Calls of operators on arrays in memory: inferred once for a kind of call, then executed."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import Indices, SmallCall
from ndtool.engine import bind, check, copies, dispatch, distinct, gathers, narrow, small, tuning
from ndtool.engine.counting import ReductionOptions
from ndtool.engine.updates import ScatterCall
from ndtool.errors import BoundsError, NdtoolError, ResourceError, RuleError, format_value
from ndtool.inmemory import tensors
from ndtool.inmemory.arguments import (
    array,
    attributes_of,
    index_array,
    name_exactly,
    output_buffer,
    require_apart,
    team_of,
    type_of,
    word,
)
from ndtool.inmemory.buffers import copy_normalized, normalize, opaque, operand, raw
from ndtool.rules import filling, inference, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.modes import Handling
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.rules.plans import Plan, Shape

Array = NDArray[Any]

# An operator and its arguments except arrays: name, threads, spec, then the attributes in the order
# of Attributes' fields. An attribute that an operator does not have is its default.
Call = tuple[Any, ...]


def _attributes(call: Call) -> tuple[Attributes, str]:
    """Return the attributes of a call, and the standard to validate against."""
    arguments = zip(Attributes._fields, call[3:], strict=False)
    return attributes_of(call[0], arguments), word("spec", call[2])


class Bound(NamedTuple):
    """The inferred plan of calls that have the same shapes, dtypes and attributes.

    types: the inputs' element types. negatives: whether negative indices are valid. filling: the
    bytes of the fill value, or None.
    """

    plan: Plan
    types: dict[str, Dtype]
    negatives: bool
    handling: Handling
    filling: bytes | None


@lru_cache(maxsize=1024)
def bind_call(
    name: str,
    data: Shape,
    data_dtype: np.dtype[Any],
    indices: Shape,
    indices_dtype: np.dtype[Any],
    updates: Shape | None,
    updates_dtype: np.dtype[Any] | None,
    attributes: Attributes,
    spec: str,
) -> Bound:
    """Infer shapes and check types, once for all calls of the same kind (cached)."""
    types = {"data": type_of("data", data_dtype), "indices": type_of("indices", indices_dtype)}
    sizes = {"data": data, "indices": indices}
    if updates is not None and updates_dtype is not None:
        types["updates"], sizes["updates"] = type_of("updates", updates_dtype), updates
    row, _, plan = inference.check(name, types, sizes, attributes, spec)
    if prod(d or 1 for d in plan.output) * data_dtype.itemsize > shapes.MOST:
        raise RuleError(
            f"the output {shapes.written(plan.output)} has a size that NumPy cannot represent"
        )
    element = filling.element(attributes.fill, types["data"])
    handling = inference.handling_of(attributes, row, types["indices"])
    fills = bind.repeat_fill_value(plan, element) if handling.skips else None
    return Bound(plan, types, row.negatives, handling, fills)


def execute(call: Call, data: object, indices: object, updates: object, out: Array | None) -> Array:
    """Execute an operator on arguments that were not validated yet."""
    attributes, spec = _attributes(call)
    scatters = OPERATORS[call[0]].scatters
    try:
        source, index = array("data", data), index_array(indices, attributes.out_of_bounds)
        new = array("updates", updates) if scatters else None
        bound = bind_call(
            call[0], source.shape, source.dtype, index.shape, index.dtype,
            None if new is None else new.shape, None if new is None else new.dtype,
            attributes, spec,
        )  # fmt: skip
        buffer = None
        if out is not None:
            buffer = output_buffer(out, source.dtype, bound.plan.output)
            if scatters and out is data:
                buffer = source
            else:
                require_apart(buffer, data=source)
            require_apart(buffer, indices=index, **({} if new is None else {"updates": new}))
        team = team_of(call[1])
        if new is None:
            result = _gathered(bound, source, index, buffer, team)
        else:
            result = _scattered(
                bound,
                source,
                index,
                new,
                ReductionOptions.from_attributes(attributes),
                buffer,
                team,
            )
    except BoundsError as error:
        name_exactly(error, indices)
        raise
    except NdtoolError as error:
        _show_trace(error)
        raise
    except (MemoryError, OSError) as error:
        message = f"{call[0]}: not enough memory: {format_value(error, str)}"
        raise ResourceError(message) from error  # also an OSError of a memory map
    return tensors.like(data, result) if out is None else out


def bind_small(call: Call, data: Array, indices: Array, updates: Array | None) -> SmallCall | None:
    """Bind a small call on plain arrays; None if `execute` must compute it or raise its error."""
    if OPERATORS[call[0]].scatters and updates is None:
        return None
    try:
        attributes, spec = _attributes(call)
        team_of(call[1])
        bound = bind_call(
            call[0], data.shape, data.dtype, indices.shape, indices.dtype,
            None if updates is None else updates.shape,
            None if updates is None else updates.dtype, attributes, spec,
        )  # fmt: skip
    except NdtoolError:
        return None
    return small.bind_small_call(*bound, ReductionOptions.from_attributes(attributes))


def _show_trace(error: NdtoolError) -> None:
    """Make notebooks show the trace of a broken rule."""
    from ndtool import notebook

    if isinstance(error, RuleError):
        notebook.use_notebook_trace(error)


def _gathered(bound: Bound, data: Array, indices: Array, out: Array | None, team: int) -> Array:
    """Gather into `out`, or into a new array if it is None."""
    plan, _, negatives = bound[:3]
    index = _bound_indices(bound, indices, team)
    target = out
    if target is None or not target.flags.c_contiguous:
        target = np.empty(plan.output, data.dtype)
    all_invalid = check.lacks_valid_indices(plan, bound.handling.mode) or (
        bound.handling.pad is not None and not data.size
    )
    if out is None and target.size and not all_invalid:
        done = _move(bound, data, index, target, team)
    else:  # the caller's array must be unchanged when an index is out of bounds: check first
        flat = data.flags.c_contiguous
        with narrow.validate(plan, index, negatives, team, flat) as work:
            source = data.reshape(work.plan.data) if flat else data
            bound = bound._replace(plan=work.plan, negatives=work.negatives)
            done = not target.size or _move(bound, source, work.indices, target, team)
    if not done:
        raise check.locate_bounds_error(plan, index, negatives)
    return _copied_out(target, out)


def _move(bound: Bound, data: Array, index: Indices, target: Array, team: int) -> bool:
    """Gather into a contiguous target; False if an index is out of bounds."""
    plan, types, negatives = bound[:3]
    dtype = types["data"]
    if not data.size:
        return gathers.fill(raw(target), bound.filling)
    source = operand(data)
    chosen = dispatch.choose_gather(
        plan, dtype.itemsize, data.shape, source, target.nbytes, negatives
    )
    if chosen.packs_data:
        return _move(bound, _packed(data, dtype, team), index, target, team)
    return dispatch.gather(chosen, source, index, raw(target), team)


def _packed(data: Array, dtype: Dtype, team: int) -> Array:
    """Return a copy of data in row-major order."""
    packed = np.empty(data.shape, data.dtype)
    copy_normalized(data, dtype, dtype.order, raw(packed), team)
    return packed


def _scattered(
    bound: Bound,
    data: Array,
    indices: Array,
    updates: Array,
    reduction_options: ReductionOptions,
    out: Array | None,
    team: int,
) -> Array:
    """Scatter into `out`, which may be data itself, or into a new array if it is None."""
    plan, types, negatives = bound[:3]
    dtype, index = types["data"], _bound_indices(bound, indices, team)
    reduction = reduction_options.reduction
    order = dispatch.arithmetic_order(dtype, reduction)
    plain = copies.is_normalized(data.shape, data.strides, dtype, order)
    target = out
    if target is None or not (plain and _is_direct(target)):
        target = np.empty(plan.output, data.dtype)
    if not updates.size or check.lacks_valid_indices(plan, bound.handling.mode):
        check.check(plan, index, negatives, team)
    if reduction_options.duplicates == "error":
        check.check(plan, index, negatives, team)
        distinct.check(plan, index, negatives)
    new = normalize(updates, types["updates"], order, reduction != "none", team)
    work = ScatterCall(
        plan, dtype, None, index, new, reduction_options, raw(target), negatives, team,
        validates_first=target is out,
    )  # fmt: skip
    if not dispatch.scatter(work, None if target is data else operand(data), data.shape):
        raise check.locate_bounds_error(plan, index, negatives)
    return _copied_out(target, out)


def _is_direct(out: Array) -> bool:
    """Whether to scatter into the caller's array; small results are copied to it instead."""
    return out.flags.c_contiguous and out.flags.aligned and out.nbytes > tuning.TEMPORARY_OUTPUT


def _copied_out(result: Array, out: Array | None) -> Array:
    """Return the result, copied to `out` if the caller gave one."""
    if out is None or result is out:
        return result
    np.copyto(opaque(out), opaque(result))
    return out


def _bound_indices(bound: Bound, indices: Array, team: int) -> Indices:
    dtype = bound.types["indices"]
    normalized = normalize(indices, dtype, dtype.order, False, team)
    return bind.bind_indices(normalized, dtype, bound.handling, bound.filling)
