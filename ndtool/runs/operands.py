"""Operands: the inputs of a call loaded and normalized for kernels, with validated indices.

Indices of -1 select the last element, but may be meant as padding, of which a run warns.
"""

from __future__ import annotations

import array
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool._kernels import Indices
from ndtool.arrays.source import Constant, ContiguousSource, load, row_major
from ndtool.engine import bind, check
from ndtool.engine.bind import Operand
from ndtool.errors import BoundsError, OutputError, argument_name
from ndtool.rules import mistakes
from ndtool.rules.inference import Inference, Input, is_literal
from ndtool.rules.operators import Attributes
from ndtool.runs.calls import OpenCall, named_inputs

if TYPE_CHECKING:
    from ndtool.runs.touched import TouchedByGather

SAMPLE_SIZE = 1 << 14  # maximum indices to inspect: a fraction of a millisecond
_CODES = {"int8": "b", "int16": "h", "int32": "i", "int64": "q"}


class Validated(NamedTuple):
    """A call with validated indices, which direct execution requires.

    indices: their bytes in row-major order. bounds_report: describes indices out of bounds that the
    out-of-bounds mode allows; None if all are valid.
    """

    call: OpenCall
    indices: memoryview
    bounds_report: BoundsError | None

    @property
    def bound_indices(self) -> Indices:
        """The indices, bound for kernels."""
        return bind_indices(self.call.inference, self.indices, self.attributes)

    @property
    def attributes(self) -> Attributes:
        """The attributes of the call; with mode "error" if all were valid, to detect a change."""
        attributes = self.call.inference.plan.attributes
        return attributes if self.bounds_report else attributes._replace(out_of_bounds="error")


def load_data(validated: Validated, dry: bool = False) -> Operand:
    """Load data; for a gather, only the blocks or byte ranges that its indices select."""
    call = validated.call
    data = call.sources["data"]
    if isinstance(data, Constant):
        return data.operand(call.inference.plan)
    is_in_memory = isinstance(data, ContiguousSource) and data.is_local
    is_complete = call.inference.scatters or is_in_memory
    return load(call, "data", None if is_complete else touched_by(validated), dry)


def touched_by(validated: Validated) -> TouchedByGather:
    """Return the blocks and byte ranges of data that a gather reads."""
    from ndtool.runs.touched import TouchedByGather

    inferred = validated.call.inference
    dtype = inferred.inputs["indices"].dtype
    return TouchedByGather(inferred.plan, validated.indices, dtype, validated.attributes)


def load_indices(call: OpenCall) -> memoryview:
    """Return all indices in row-major order, in their stored byte order."""
    return row_major(call, "indices", call.inference.inputs["indices"].dtype.order)


def validate(call: OpenCall) -> Validated:
    """Check every index; BoundsError if one is out of bounds and the mode does not allow that.

    DuplicatesError if two tuples select the same slice, and duplicates are an error.
    """
    plan, indices = call.inference.plan, load_indices(call)
    inputs = bind_indices(call.inference, indices, plan.attributes._replace(out_of_bounds="error"))
    error = check.find_bounds_error(plan, inputs, call.threads)
    if error is not None:
        if isinstance(error, BoundsError):
            call.name_inputs(error)
        if check.is_error(plan) or not isinstance(error, BoundsError):
            raise error
    validated = Validated(call, indices, error)
    if call.inference.requires_distinct:
        from ndtool.engine import distinct

        with named_inputs(call):
            distinct.check(plan, validated.bound_indices)
    return validated


def bind_indices(inferred: Inference, indices: memoryview, attributes: Attributes) -> Indices:
    """Bind indices and their out-of-bounds mode for kernels."""
    filling = (
        bind.repeat_fill_value(inferred.plan, inferred.fill_bytes)
        if attributes.may_skip_tuples
        else None
    )
    return bind.bind_indices(indices, inferred.inputs["indices"].dtype, attributes, filling)


def changed_error(inferred: Inference) -> OutputError:
    """Return the error that indices, once validated, have changed."""
    return OutputError(f"{argument_name(inferred.inputs['indices'].name)} changed during the run")


def padding_warnings(info: Input, indices: memoryview, k: int, attributes: Attributes) -> list[str]:
    """Return the warning that -1 may be padding, as a list of at most one.

    info: the name and type of the indices. indices: their bytes; large ones are sampled. k: the
    components of a tuple. For unsigned types, the warning says as which large number -1 is stored.
    """
    name, dtype, _ = info
    if attributes.pad is not None or not attributes.negatives:
        return _unsigned_warnings(info, attributes)
    code = _CODES.get(dtype.name)
    if code is None or not len(indices) or is_literal(name):
        return []
    total = len(indices) // dtype.itemsize
    step = -(-total // SAMPLE_SIZE) | 1  # odd, since every second index may be padding
    raw: Any = indices.cast("B")
    elements = raw.cast(code)
    columns = [array.array(code, elements[j :: k * step].tobytes()) for j in range(k)]
    for column in columns:
        if dtype.is_swapped:
            column.byteswap()
        if min(column) != -1:
            return []
    sample = "" if step == 1 else " in a sample"
    count = columns[0].count(-1) if k == 1 else list(zip(*columns, strict=True)).count((-1,) * k)
    warning = mistakes.padding_warning(count, len(columns[0]), sample, k)
    return [f"{argument_name(name)}: {warning}"] if warning else []


def _unsigned_warnings(info: Input, attributes: Attributes) -> list[str]:
    """Return the warning that no index of an unsigned type equals a negative pad."""
    pad = attributes.pad
    if pad is None or pad >= 0 or info.dtype.kind != "u":
        return []
    bits = 8 * info.dtype.itemsize
    stored = f"as {info.dtype.name} it is {2**bits + pad}" if pad >= -(1 << bits - 1) else "never"
    return [f"{argument_name(info.name)}: pad {pad} equals no index of {info.dtype.name}: {stored}"]
