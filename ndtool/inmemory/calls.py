"""Calls of operators on arrays in memory: what the compiled path does not execute itself."""

from __future__ import annotations

from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ndtool._kernels import Calls, Indices, TypedCall
from ndtool.engine import bind, check, counting, distinct, layouts, scatters, tuning
from ndtool.engine.updates import ScatterCall
from ndtool.errors import (
    BoundsError,
    NdtoolError,
    OutputError,
    ResourceError,
    RuleError,
    format_value,
)
from ndtool.inmemory import tensors, tensorscatter
from ndtool.inmemory.arguments import (
    array,
    element_type,
    index_array,
    make_attributes,
    output_buffer,
    rebase,
    require_no_overlap,
    restore_exact_index,
    string,
    thread_count,
)
from ndtool.inmemory.buffers import as_bytes, as_operand, as_void, normalize
from ndtool.machine import threads
from ndtool.rules import inference, numbers, shapes, specs
from ndtool.rules import tensorscatter as lowering
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import LOWERED, OPERATORS, Attributes, operator_of
from ndtool.rules.plans import Plan

Array = NDArray[Any]

# An operator and its arguments except arrays: name, threads, spec, then the attributes in the order
# of Attributes' fields, or as Attributes. One that an operator does not have is its default.
Call = tuple[Any, ...]


def _attributes(call: Call) -> tuple[Attributes, str]:
    """Return the attributes of a call, and the standard to validate against."""
    if type(call[3]) is Attributes:
        return call[3], call[2]
    arguments = zip(Attributes._fields, call[3:], strict=False)
    return make_attributes(call[0], arguments), string("spec", call[2])


def execute(
    data: object, indices: object, updates: object, out: Array | None, /, *call: Any
) -> Array:
    """Validate the arguments of an operator and execute it; call: see `Call`."""
    if call[0] in LOWERED:
        return COMPILED.call(*tensorscatter.lower(data, indices, updates, out, *call))
    attributes, spec = _attributes(call)
    scatters = OPERATORS[call[0]].scatters
    try:
        source, given = array("data", data), index_array(indices, attributes.out_of_bounds)
        updates_array = array("updates", updates) if scatters else None
        if out is None and not (source is data and given is indices and updates_array is updates):
            result = COMPILED.execute(source, given, updates_array, None, *call)
            if result is not None:
                return cast("Array", tensors.convert_result(data, result))
        index = rebase(given, attributes)
        inputs = {"data": source, "indices": index}
        if updates_array is not None:
            inputs["updates"] = updates_array
        types = {role: element_type(role, value.dtype) for role, value in inputs.items()}
        sizes = {role: value.shape for role, value in inputs.items()}
        plan = inference.check(call[0], types, sizes, attributes, spec)[2]
        if prod(d or 1 for d in plan.output) * source.itemsize > shapes.MAX_SIZE:
            raise RuleError(
                f"the output {shapes.format_shape(plan.output)} has a size that NumPy cannot"
                " represent"
            )
        buffer = None
        if out is not None:
            buffer = output_buffer(out, plan, source.dtype)
            if scatters and out is data:
                buffer = inputs.pop("data")
            require_no_overlap(buffer, **inputs)
        team = thread_count(call[1])
        compiled = (call[0], team, "ndtool", plan.attributes.rebased)
        result = COMPILED.execute(source, index, updates_array, buffer, *compiled)
        if result is None and updates_array is not None:
            result = _scatter(plan, types, source, index, updates_array, buffer, team)
        elif result is None:
            error = check.find_bounds_error(plan, _bind_indices(plan, types, index, team), team)
            if error is not None and check.is_error(plan):
                raise error
            result = COMPILED.execute(source, index, None, None, *compiled)
            if result is None:
                result = _without_slices(plan, types["data"], source)
            result = _copy_out(result, buffer)
    except BoundsError as error:
        restore_exact_index(error, indices)
        raise
    except NdtoolError:
        raise
    except (MemoryError, OSError) as error:
        message = f"{call[0]}: not enough memory: {format_value(error, str)}".removesuffix(": ")
        raise ResourceError(message) from error  # memory maps raise OSError
    return tensors.convert_result(data, result) if out is None else out


def make_typed_call(
    arguments: Call,
    data: np.dtype[Any],
    indices: np.dtype[Any] | None,
    updates: np.dtype[Any] | None,
) -> TypedCall | None:
    """Return a call for the compiled path; None if `execute` must compute it or raise its error."""
    operator = operator_of(arguments[0])
    is_lowered = operator.name in LOWERED
    if operator.scatters != (updates is not None) or (indices is None and not is_lowered):
        return None
    try:
        attributes, spec = _attributes(arguments)
        team = thread_count(arguments[1])
        types = {"data": element_type("data", data)}
        types["indices"] = element_type(
            "indices", np.dtype(np.int64) if indices is None else indices
        )
        if updates is not None:
            types["updates"] = element_type("updates", updates)
        if is_lowered:
            given = {"past": types["data"], "update": types["updates"]}
            given["write_indices"] = types["indices"]
            lowering.accept(spec, given, attributes.mode)
            attributes = attributes._replace(negatives=False)
            row = None
        else:
            row = specs.accept(spec, operator.name, types, attributes)
            attributes = inference.resolve(attributes, row, types["indices"])
        fill = numbers.encode_fill(attributes.fill, types["data"])
    except NdtoolError:
        return None
    dtype = types["data"]
    if (row and row.limits) or not dtype.itemsize:
        return None
    index_type, stored = types["indices"], None
    if attributes.index_base or attributes.mode != "linear":
        if index_type.name == "uint64" and attributes.mode != "linear":
            return None  # int64 does not hold all of them
        stored = bind.bind_indices(b"", index_type, attributes._replace(index_base=0))
        index_type = element_type("indices", np.dtype(np.int64))
    order = scatters.arithmetic_order(dtype, attributes.reduction)
    swaps = [
        t.swap_size if t.swap_size > 1 and t.order != order else 0
        for t in (dtype, types.get("updates", dtype))
    ]
    spec_of_updates = None
    if updates is not None:  # their number and the width of slices are not known yet
        spec_of_updates = counting.update_spec(b"", dtype.itemsize, attributes, dtype)
    return TypedCall(
        operator.name, attributes, team,
        bind.bind_indices(b"", index_type, attributes, fill), stored, spec_of_updates,
        dtype.itemsize, *swaps,
    )  # fmt: skip


def _without_slices(plan: Plan, dtype: Dtype, data: Array) -> Array:
    """Return the result of a gather of no bytes, or from data without elements: the fill value."""
    result = np.empty(plan.output, data.dtype)
    if result.nbytes:
        if data.size:
            raise OutputError("indices changed during the run")
        element = numbers.encode_fill(plan.attributes.fill, dtype)
        as_void(result)[...] = as_void(np.frombuffer(element, data.dtype))
    return result


def _scatter(
    plan: Plan,
    types: dict[str, Dtype],
    data: Array,
    indices: Array,
    updates: Array,
    out: Array | None,
    team: int,
) -> Array:
    """Scatter into `out`, which may be data itself, or into a new array if it is None."""
    dtype, attributes = types["data"], plan.attributes
    index = _bind_indices(plan, types, indices, team)
    reduction = attributes.reduction
    order = scatters.arithmetic_order(dtype, reduction)
    is_normalized = layouts.is_normalized(data.shape, data.strides, dtype, order)
    target = out
    if target is None or not _is_direct(target) or (target is data and not is_normalized):
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
    if not scatters.scatter(work, None if target is data else as_operand(data), data.shape):
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


def _bind_indices(plan: Plan, types: dict[str, Dtype], indices: Array, team: int) -> Indices:
    dtype = types["indices"]
    normalized = normalize(indices, dtype, dtype.order, False, team)
    return bind.bind_indices(normalized, dtype, plan.attributes)


# NumPy's table of C functions, which compiled code of other packages imports from there, too.
ARRAY_API = np._core._multiarray_umath._ARRAY_API  # type: ignore[attr-defined]
COMPILED = Calls(
    np.ndarray, ARRAY_API, make_typed_call, threads.limit_threads,
    scatters.needs_algorithm, execute, vars(tuning),
)  # fmt: skip
