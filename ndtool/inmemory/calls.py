"""Calls of operators on arrays in memory: inference, which is cached, and execution."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import LINE, Calls, Indices, TypedCall, UpdateCounts, UpdateSpec
from ndtool.engine import bind, check, copies, counting, dispatch, distinct, gathers, narrow, tuning
from ndtool.engine.updates import ScatterCall, neutral_block
from ndtool.errors import BoundsError, NdtoolError, ResourceError, RuleError, format_value
from ndtool.inmemory import tensors
from ndtool.inmemory.arguments import (
    array,
    element_type,
    index_array,
    make_attributes,
    output_buffer,
    rebase,
    require_no_overlap,
    require_rebasable,
    restore_exact_index,
    string,
    thread_count,
)
from ndtool.inmemory.buffers import as_bytes, as_operand, as_void, copy_normalized, normalize
from ndtool.machine import threads
from ndtool.rules import inference, numbers, shapes, specs, tensorscatter
from ndtool.rules.dtypes import Dtype, from_name
from ndtool.rules.operators import LOWERED, OPERATORS, Attributes, operator_of
from ndtool.rules.plans import Plan, Shape

Array = NDArray[Any]

# An operator and its arguments except arrays: name, threads, spec, then the attributes in the order
# of Attributes' fields. An attribute that an operator does not have is its default.
Call = tuple[Any, ...]


def _attributes(call: Call) -> tuple[Attributes, str]:
    """Return the attributes of a call, and the standard to validate against."""
    arguments = zip(Attributes._fields, call[3:], strict=False)
    return make_attributes(call[0], arguments), string("spec", call[2])


class BoundCall(NamedTuple):
    """The inferred plan of calls that have the same shapes, dtypes and attributes.

    types: the inputs' element types. fill_bytes: the bytes of the fill value, or None.
    """

    plan: Plan
    types: dict[str, Dtype]
    fill_bytes: bytes | None


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
) -> BoundCall:
    """Infer shapes and check types; the result is cached for calls with equal arguments."""
    types = {
        "data": element_type("data", data_dtype),
        "indices": element_type("indices", indices_dtype),
    }
    sizes = {"data": data, "indices": indices}
    if updates is not None and updates_dtype is not None:
        types["updates"], sizes["updates"] = element_type("updates", updates_dtype), updates
    _, _, plan = inference.check(name, types, sizes, attributes, spec)
    if prod(d or 1 for d in plan.output) * data_dtype.itemsize > shapes.MAX_SIZE:
        raise RuleError(
            f"the output {shapes.format_shape(plan.output)} has a size that NumPy cannot represent"
        )
    element = numbers.encode_fill(attributes.fill, types["data"])
    fill_bytes = bind.repeat_fill_value(plan, element) if plan.attributes.may_skip_tuples else None
    return BoundCall(plan, types, fill_bytes)


def execute(call: Call, data: object, indices: object, updates: object, out: Array | None) -> Array:
    """Validate the arguments of an operator and execute it."""
    attributes, spec = _attributes(call)
    scatters = OPERATORS[call[0]].scatters
    try:
        source, index = array("data", data), index_array(indices, attributes.out_of_bounds)
        updates_array = array("updates", updates) if scatters else None
        if out is None and not (source is data and index is indices and updates_array is updates):
            compiled = COMPILED.execute(call, source, index, updates_array, None)
            if compiled is not None:
                return cast("Array", tensors.convert_result(data, compiled))
        given, index = index, rebase(index, attributes)
        bound = bind_call(
            call[0], source.shape, source.dtype, index.shape, index.dtype,
            None if updates_array is None else updates_array.shape,
            None if updates_array is None else updates_array.dtype,
            attributes, spec,
        )  # fmt: skip
        buffer = None
        if out is not None:
            buffer = output_buffer(out, source.dtype, bound.plan.output)
            if scatters and out is data:
                buffer = source
            else:
                require_no_overlap(buffer, data=source)
            require_no_overlap(
                buffer,
                indices=index,
                **({} if updates_array is None else {"updates": updates_array}),
            )
            if COMPILED.execute(call, source, given, updates_array, buffer) is not None:
                return out
        team = thread_count(call[1])
        if updates_array is None:
            result = _gather(bound, source, index, buffer, team)
        else:
            result = _scatter(bound, source, index, updates_array, buffer, team)
    except BoundsError as error:
        restore_exact_index(error, indices)
        raise
    except NdtoolError as error:
        _show_trace(error)
        raise
    except (MemoryError, OSError) as error:
        message = f"{call[0]}: not enough memory: {format_value(error, str)}"
        raise ResourceError(message) from error  # memory maps raise OSError
    return tensors.convert_result(data, result) if out is None else out


def make_typed_call(
    arguments: Call,
    data: np.dtype[Any],
    indices: np.dtype[Any] | None,
    updates: np.dtype[Any] | None,
) -> TypedCall | None:
    """Return a call for the compiled path; None if `execute` must compute it or raise its error."""
    operator, stored = operator_of(arguments[0]), indices or np.dtype(np.int64)
    is_lowered = operator.name in LOWERED
    if operator.scatters != (updates is not None) or (indices is None and not is_lowered):
        return None
    try:
        attributes, spec = _attributes(arguments)
        require_rebasable(attributes)
        team = thread_count(arguments[1])
        types = {"data": element_type("data", data), "indices": element_type("indices", stored)}
        if updates is not None:
            types["updates"] = element_type("updates", updates)
        if is_lowered:
            given = {"past": types["data"], "update": types["updates"]}
            given |= {"write_indices": types["indices"]} if indices else {}
            tensorscatter.accept(spec, given, attributes.mode)
            attributes = attributes._replace(negatives=False)
            row = None
        else:
            row = specs.accept(spec, operator.name, types, attributes)
            attributes = inference.resolve(attributes, row, types["indices"])
        fill = numbers.encode_fill(attributes.fill, types["data"])
    except NdtoolError:
        return None
    dtype, read = types["data"], types["indices"]
    if attributes.converts_indices:
        read = from_name("int64")
    if (row and row.limits) or not dtype.itemsize:
        return None
    order = dispatch.arithmetic_order(dtype, attributes.reduction)
    swaps_data, swaps_updates = (
        t.swap_size > 1 and t.order != order for t in (dtype, types.get("updates", dtype))
    )
    spec_of_updates = None
    if updates is not None:
        spec_of_updates = _unbound_updates(attributes, dtype)
    return TypedCall(
        operator.name, attributes, team, bind.bind_indices(b"", read, attributes, fill),
        bind.bind_indices(b"", types["indices"]), spec_of_updates, dtype.itemsize, dtype.swap_size,
        swaps_data, swaps_updates,
    )  # fmt: skip


def _unbound_updates(attributes: Attributes, dtype: Dtype) -> UpdateSpec:
    """Return the update spec of a call whose updates and slices are not known yet."""
    counts = UpdateCounts(bytearray(), 4) if attributes.is_counted else None
    neutral = b""
    if attributes.copies_first_update and dtype.itemsize <= LINE:
        neutral = neutral_block(dtype, attributes.reduction)
    if not neutral:
        return counting.counted_updates(b"", dtype.itemsize, attributes, dtype, counts)
    name = attributes.reduction
    return UpdateSpec(b"", dtype.itemsize, name, dtype.name, "neutral", counts, neutral)


def _show_trace(error: NdtoolError) -> None:
    """Display the trace of a broken rule, in a notebook."""
    from ndtool import notebook

    if isinstance(error, RuleError):
        notebook.use_notebook_trace(error)


def _gather(bound: BoundCall, data: Array, indices: Array, out: Array | None, team: int) -> Array:
    """Gather into `out`, or into a new array if it is None."""
    plan = bound.plan
    index = _bind_indices(bound, indices, team)
    target = out
    if target is None or not target.flags.c_contiguous:
        target = np.empty(plan.output, data.dtype)
    all_invalid = check.lacks_valid_indices(plan) or (
        plan.attributes.pad is not None and not data.size
    )
    if out is None and target.size and not all_invalid:
        is_in_bounds = _gather_into(bound, data, index, target, team)
    else:  # the caller's array must be unchanged when an index is out of bounds: check first
        is_contiguous = data.flags.c_contiguous
        with narrow.validate(plan, index, team, is_contiguous) as work:
            source = data.reshape(work.plan.data) if is_contiguous else data
            bound = bound._replace(plan=work.plan)
            is_in_bounds = not target.size or _gather_into(
                bound, source, work.indices, target, team
            )
    if not is_in_bounds:
        raise check.locate_bounds_error(plan, index)
    return _copy_out(target, out)


def _gather_into(bound: BoundCall, data: Array, index: Indices, target: Array, team: int) -> bool:
    """Gather into a contiguous target; False if an index is out of bounds."""
    plan, types = bound.plan, bound.types
    dtype = types["data"]
    if not data.size:
        return gathers.fill(as_bytes(target), bound.fill_bytes)
    source = as_operand(data)
    chosen = dispatch.choose_gather(plan, dtype.itemsize, data.shape, source, target.nbytes)
    if chosen.packs_data:
        return _gather_into(bound, _pack(data, dtype, team), index, target, team)
    return dispatch.gather(chosen, source, index, as_bytes(target), team)


def _pack(data: Array, dtype: Dtype, team: int) -> Array:
    """Return a copy of data in row-major order."""
    packed = np.empty(data.shape, data.dtype)
    copy_normalized(data, dtype, dtype.order, as_bytes(packed), team)
    return packed


def _scatter(
    bound: BoundCall, data: Array, indices: Array, updates: Array, out: Array | None, team: int
) -> Array:
    """Scatter into `out`, which may be data itself, or into a new array if it is None."""
    plan, types, attributes = bound.plan, bound.types, bound.plan.attributes
    dtype, index = types["data"], _bind_indices(bound, indices, team)
    reduction = attributes.reduction
    order = dispatch.arithmetic_order(dtype, reduction)
    is_normalized = copies.is_normalized(data.shape, data.strides, dtype, order)
    target = out
    if target is None or not (is_normalized and _is_direct(target)):
        target = np.empty(plan.output, data.dtype)
    if not updates.size or check.lacks_valid_indices(plan):
        check.check(plan, index, team)
    if attributes.duplicates == "error":
        check.check(plan, index, team)
        distinct.check(plan, index)
    normalized_updates = normalize(updates, types["updates"], order, reduction != "none", team)
    work = ScatterCall(
        plan, dtype, None, index, normalized_updates, as_bytes(target), team,
        validates_first=target is out,
    )  # fmt: skip
    if not dispatch.scatter(work, None if target is data else as_operand(data), data.shape):
        raise check.locate_bounds_error(plan, index)
    return _copy_out(target, out)


def _is_direct(out: Array) -> bool:
    """Whether to scatter into the caller's array; small results are copied to it instead."""
    return out.flags.c_contiguous and out.flags.aligned and out.nbytes > tuning.TEMPORARY_OUTPUT


def _copy_out(result: Array, out: Array | None) -> Array:
    """Return the result, copied to `out` if the caller passed one."""
    if out is None or result is out:
        return result
    np.copyto(as_void(out), as_void(result))
    return out


def _bind_indices(bound: BoundCall, indices: Array, team: int) -> Indices:
    dtype = bound.types["indices"]
    normalized = normalize(indices, dtype, dtype.order, False, team)
    return bind.bind_indices(normalized, dtype, bound.plan.attributes, bound.fill_bytes)


COMPILED = Calls(
    np.ndarray, np.empty, make_typed_call, threads.limit_threads, dispatch.needs_algorithm, execute,
    tuning,
)  # fmt: skip
