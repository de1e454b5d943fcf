"""Shape inference: the rules for ranks, shapes and axes; returns a Trace and a Plan.

Notation, as in the standards: r = rank(data), q = rank(indices), b = batch_dims, k =
indices.shape[-1]. Pure functions on tuples of ints; sizes count elements. A size may also be a
Symbol, an unknown size with a name: a rule that depends on it is assumed to hold. The first broken
rule raises RuleError, with the trace up to it.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool.errors import RuleError, format_integer
from ndtool.rules.operators import OPERATORS, Attributes
from ndtool.rules.plans import Plan, Shape
from ndtool.rules.trace import Symbol, Trace, Tracer

if TYPE_CHECKING:
    from ndtool.rules.dtypes import Dtype

MAX_SIZE = 2**63 - 1  # sizes and offsets are int64 everywhere
MAX_RANK = 64  # NumPy's limit
GATHER_COMMAND = "ndtool gather DATA INDICES"  # for a hint


def _require_rank(tracer: Tracer, name: str, shape: Shape) -> None:
    rank = len(shape)
    tracer.require(
        rank >= 1,
        f"rank({name}) >= 1",
        f"{rank} >= 1",
        f"{name} has rank 0: rank({name}) must be at least 1",
    )


def _derive_output(tracer: Tracer, rule: str, numbers: str, shape: Shape) -> None:
    tracer.derive(f"output.shape = {rule}", numbers, format_shape(shape))
    rank, count = len(shape), prod(d for d in shape if d)
    tracer.require(
        rank <= MAX_RANK,
        f"rank(output) <= {MAX_RANK}",
        f"{rank} <= {MAX_RANK}",
        f"the output would have rank {rank}: at most {MAX_RANK} is possible",
    )
    if isinstance(count, Symbol) and int(count) <= MAX_SIZE:
        return  # the number of elements is unknown
    tracer.require(
        int(count) <= MAX_SIZE,
        "elements of output < 2^63",
        f"{format_integer(count)} < 2^63",
        f"the output {format_shape(shape)} would have {format_integer(count)} elements: at most"
        " 2^63 - 1 fit",
    )


def _require_shape(tracer: Tracer, name: str, shape: Shape, rule: str, expected: Shape) -> None:
    equal = list(map(tracer.sizes.equal, shape, expected))
    is_broken = len(shape) != len(expected) or False in equal
    assumed = [axis for axis, is_equal in enumerate(equal) if is_equal is None]
    tracer.require(
        False if is_broken else None if assumed else True,
        f"{name}.shape = {rule}",
        f"{format_shape(shape)} = {format_shape(expected)}",
        f"{name} has shape {format_shape(shape)}: {rule} = {format_shape(expected)} is required"
        " (no broadcasting)",
        *(f"{_format_axis(name, axis, shape)} is {expected[axis]}" for axis in assumed),
    )


def _component_count(tracer: Tracer, indices: Shape) -> int:
    """Return k, the number of components of an index tuple; RuleError if it is a Symbol."""
    k = indices[-1]
    if isinstance(k, Symbol):
        tracer.require(
            False,
            "k = indices.shape[-1]",
            str(k),
            f"indices.shape[-1] is {k}: it must be a number, how many axes of data an index"
            " tuple indexes",
        )
    return k


def _format_axis(name: str, axis: int, shape: Shape) -> str:
    """Return an axis with its size as text, for an assumption: data's axis 0 (N)."""
    owner = f"{name}'" if name.endswith("s") else f"{name}'s"
    return f"{owner} axis {axis} ({shape[axis]})"


def format_shape(shape: Shape) -> str:
    """Return a shape as text, such as [8,5,64]."""
    return "[" + ",".join(map(str, shape)) + "]"


def format_type(dtype: Dtype, shape: Shape) -> str:
    """Return a type and a shape as text, such as float32[8,5,64]."""
    return dtype.name + format_shape(shape)


def infer(operator: str, sizes: dict[str, Shape], attributes: Attributes) -> tuple[Trace, Plan]:
    """Infer the shapes of an operator; sizes: the inputs' shapes by role.

    A gather's output has the shape of the selected slices, a scatter's that of data, and its
    updates must have the shape of the slices.

    >>> infer("gather_nd", {"data": (8, 128, 64), "indices": (8, 5, 1)}, Attributes(1))[1].output
    (8, 5, 64)
    """
    tracer, data = Tracer(operator), sizes["data"]
    plan, rule, parts, steps = _select(tracer, sizes, attributes)
    selected: Shape = sum(parts, ())
    if OPERATORS[operator].scatters:
        _require_shape(tracer, "updates", sizes["updates"], rule, selected)
        plan, rule, numbers = plan._replace(output=data), "data.shape", format_shape(data)
    else:
        plan, numbers = plan._replace(output=selected), " + ".join(map(format_shape, parts))
    _derive_output(tracer, rule, numbers, plan.output)
    for step in steps:
        tracer.derive(*step)
    return tracer.trace(), plan._replace(attributes=attributes)


def updates_shape(operator: str, data: Shape, indices: Shape, attributes: Attributes) -> Shape:
    """Return the shape that a scatter's updates must have; () if another argument is invalid."""
    try:
        sizes = {"data": data, "indices": indices}
        return sum(_select(Tracer(operator), sizes, attributes).parts, ())
    except RuleError:
        return ()


class _Selection(NamedTuple):
    """The slices that an operator selects: a plan without output, and texts for the trace.

    rule: the shape of the slices as a formula. parts: the shapes that it adds. steps: rules about
    the plan, each with its numbers and result.
    """

    plan: Plan
    rule: str
    parts: tuple[Shape, ...]
    steps: tuple[tuple[str, str, str], ...] = ()


def _select(tracer: Tracer, sizes: dict[str, Shape], attributes: Attributes) -> _Selection:
    data, indices = sizes["data"], sizes["indices"]
    if tracer.operator.endswith("_nd"):
        return _by_tuples(tracer, data, indices, attributes.batch_dims)
    if tracer.operator.endswith("_elements"):
        return _by_elements(tracer, data, indices, attributes.resolved_axis)
    return _along_axis(tracer, data, indices, attributes.axis, attributes.batch_dims)


def _by_tuples(tracer: Tracer, data: Shape, indices: Shape, b: int) -> _Selection:
    _require_rank(tracer, "data", data)
    _require_rank(tracer, "indices", indices)
    r, q, scatters = len(data), len(indices), tracer.operator == "scatter_nd"
    has_batches = bool(b) or not scatters
    if has_batches:
        tracer.require(
            0 <= b < min(r, q),
            "0 <= b < min(r, q)",
            f"0 <= {format_integer(b)} < min({r}, {q})",
            f"batch_dims is {format_integer(b)}: with rank(data) {r} and rank(indices) {q} it must"
            f" be in 0..{min(r, q) - 1}",
        )
        _require_batches(tracer, data, indices, b)
    k, lowest = _component_count(tracer, indices), 0 if scatters else 1
    tracer.require(
        lowest <= k <= r - b,
        f"{lowest} <= k <= r" + " - b" * has_batches,
        f"{lowest} <= {k} <= {r}" + f" - {b}" * has_batches,
        f"indices.shape[-1] is {k}: with rank(data) {r}"
        + f" and batch_dims {b}" * has_batches
        + f" it must be in {lowest}..{r - b}",
        hint=f"to select {k} rows by index: {GATHER_COMMAND}"
        if q == 1 and k and b == 0 and not scatters
        else "",
    )
    leading, slice_shape, tuples = indices[:-1], data[b + k :], prod(indices[:-1])
    plan = Plan(tracer.operator, data, indices, (), data[:b], tuples, data[b : b + k], slice_shape)
    steps = (
        (
            "tuples = prod(indices.shape[:-1])",
            format_shape(leading),
            f"{format_integer(tuples)} index tuples",
        ),
        _width_step("b+k", slice_shape),
    )
    rule = f"indices.shape[:-1] + data.shape[{'b+' * has_batches}k:]"
    return _Selection(plan, rule, (leading, slice_shape), steps)


def _width_step(first: str, slice_shape: Shape) -> tuple[str, str, str]:
    width = format_integer(prod(slice_shape))
    rule = f"width = prod(data.shape[{first}:])"
    return rule, format_shape(slice_shape), f"{width} elements each"


def _along_axis(
    tracer: Tracer, data: Shape, indices: Shape, axis: int | None, b: int
) -> _Selection:
    _require_rank(tracer, "data", data)
    r, q = len(data), len(indices)
    a = None if axis is None and b else _normalize_axis(tracer, data, axis or 0)
    if b:
        limit = min(r - 1 if a is None else a, q)
        subject = f"rank(data) {r}" if a is None else f"axis {a}"
        tracer.require(
            0 <= b <= limit,
            "0 <= b <= min(a, q)",
            f"0 <= {format_integer(b)} <= min({format_integer(b) if a is None else a}, {q})",
            f"batch_dims is {format_integer(b)}: with {subject} and rank(indices) {q} it must be in"
            f" 0..{limit}",
        )
        _require_batches(tracer, data, indices, b)
    a = _normalize_axis(tracer, data, b) if a is None else a
    batch, own, slice_shape = data[:a], indices[b:], data[a + 1 :]
    own_name, tuples = "indices.shape" + "[b:]" * bool(b), prod(batch) * prod(own)
    plan = Plan(
        tracer.operator, data, indices, (), batch, tuples, data[a : a + 1], slice_shape, True, b
    )
    steps = (
        (
            f"slices = prod(data.shape[:a]) * prod({own_name})",
            f"{format_shape(batch)} * {format_shape(own)}",
            f"{format_integer(tuples)} slices",
        ),
        _width_step("a+1", slice_shape),
    )
    rule = f"data.shape[:a] + {own_name} + data.shape[a+1:]"
    return _Selection(plan, rule, (batch, own, slice_shape), steps)


def _by_elements(tracer: Tracer, data: Shape, indices: Shape, axis: int) -> _Selection:
    _require_rank(tracer, "data", data)
    _require_rank(tracer, "indices", indices)
    r, q = len(data), len(indices)
    tracer.require(
        r == q,
        "rank(indices) = rank(data)",
        f"{q} = {r}",
        f"indices has rank {q}: it must equal rank(data) = {r}",
    )
    a = _normalize_axis(tracer, data, axis)
    for d in range(r):
        if d != a:
            tracer.require(
                tracer.sizes.at_most(indices[d], data[d]),
                f"indices.shape[{d}] <= data.shape[{d}]",
                f"{indices[d]} <= {data[d]}",
                f"indices has {tracer.sizes.format_size(indices[d])} along axis {d}: except on axis"
                f" {a} it must be at most data's {tracer.sizes.format_size(data[d])}",
                f"{_format_axis('indices', d, indices)} is at most {_format_axis('data', d, data)}",
            )
    plan = Plan(
        tracer.operator, data, indices, (), (), prod(indices), data[a : a + 1], (), True,
        elements_axis=a,
    )  # fmt: skip
    return _Selection(plan, "indices.shape", (indices,))


def _require_batches(tracer: Tracer, data: Shape, indices: Shape, b: int) -> None:
    """Check that data and indices share their first b axes."""
    for d in range(b):
        tracer.require(
            tracer.sizes.equal(data[d], indices[d]),
            f"data.shape[{d}] = indices.shape[{d}]",
            f"{data[d]} = {indices[d]}",
            f"batch axis {d} differs: data has {tracer.sizes.format_size(data[d])}, indices has"
            f" {tracer.sizes.format_size(indices[d])}:"
            f" the first {b} axes must be equal",
            f"{_format_axis('data', d, data)} and {_format_axis('indices', d, indices)} are equal",
        )


def _normalize_axis(tracer: Tracer, data: Shape, axis: int) -> int:
    """Check an axis of data, and return it as axis >= 0."""
    r = len(data)
    tracer.require(
        -r <= axis < r,
        "-r <= axis <= r - 1",
        f"{-r} <= {format_integer(axis)} <= {r - 1}",
        f"axis is {format_integer(axis)}: with rank(data) {r} it must be in {-r}..{r - 1}",
    )
    return axis % r
