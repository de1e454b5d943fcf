"""Shape inference: the rules for ranks, shapes and axes; returns a Trace and a Plan.

Notation, as in the standards: r = rank(data), q = rank(indices), b = batch_dims, k =
indices.shape[-1]. Pure functions on tuples of ints; sizes count elements. A size may also be a
Symbol, an unknown size with a name: a rule that depends on it is assumed to hold. The first broken
rule raises RuleError, with the trace up to it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from ndtool.errors import format_integer
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Plan, Shape
from ndtool.rules.symbols import Symbol
from ndtool.rules.trace import Trace, Tracer

if TYPE_CHECKING:
    from ndtool.rules.dtypes import Dtype

MAX_SIZE = 2**63 - 1  # sizes and offsets are int64 everywhere
MAX_RANK = 64  # NumPy's limit
GATHER_COMMAND = "ndtool gather DATA INDICES"  # for a hint


def _require_ranks(tracer: Tracer, data: Shape, indices: Shape) -> None:
    _require_rank(tracer, "data", data)
    _require_rank(tracer, "indices", indices)


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


@lru_cache(maxsize=1024)
def gather_nd(data: Shape, indices: Shape, batch_dims: int) -> tuple[Trace, Plan]:
    """Infer ONNX GatherND: output.shape = indices.shape[:-1] + data.shape[b+k:].

    >>> gather_nd((8, 128, 64), (8, 5, 1), 1)[1].output
    (8, 5, 64)
    """
    tracer = Tracer("gather_nd")
    _require_ranks(tracer, data, indices)
    r, q, b = len(data), len(indices), batch_dims
    _require_tuple_batches(tracer, data, indices, b)
    k = _component_count(tracer, indices)
    tracer.require(
        1 <= k <= r - b,
        "1 <= k <= r - b",
        f"1 <= {k} <= {r} - {b}",
        f"indices.shape[-1] is {k}: with rank(data) {r} and batch_dims {b} it must be in"
        f" 1..{r - b}",
        hint=f"to select {k} rows by index: {GATHER_COMMAND}" if q == 1 and k and b == 0 else "",
    )
    output = indices[:-1] + data[b + k :]
    numbers = f"{format_shape(indices[:-1])} + {format_shape(data[b + k :])}"
    _derive_output(tracer, "indices.shape[:-1] + data.shape[b+k:]", numbers, output)
    plan = _nd_plan(tracer, data, indices, output, b)
    return tracer.trace(), plan


@lru_cache(maxsize=1024)
def scatter_nd(
    data: Shape, indices: Shape, updates: Shape, batch_dims: int = 0
) -> tuple[Trace, Plan]:
    """Infer ONNX ScatterND: updates.shape must be indices.shape[:-1] + data.shape[k:].

    With b batch axes it is indices.shape[:-1] + data.shape[b+k:].

    >>> scatter_nd((4, 3), (2, 1), (2, 3))[1].output
    (4, 3)
    """
    tracer = Tracer("scatter_nd")
    _require_ranks(tracer, data, indices)
    r, b = len(data), batch_dims
    if b:
        _require_tuple_batches(tracer, data, indices, b)
    k, minus_b, start = _component_count(tracer, indices), " - b" if b else "", "b+k" if b else "k"
    tracer.require(
        0 <= k <= r - b,
        f"0 <= k <= r{minus_b}",
        f"0 <= {k} <= {r}" + (f" - {b}" if b else ""),
        f"indices.shape[-1] is {k}: with rank(data) {r}"
        + (f" and batch_dims {b}" if b else "")
        + f" it must be in 0..{r - b}",
    )
    expected = indices[:-1] + data[b + k :]
    _require_shape(
        tracer, "updates", updates, f"indices.shape[:-1] + data.shape[{start}:]", expected
    )
    _derive_output(tracer, "data.shape", format_shape(data), data)
    plan = _nd_plan(tracer, data, indices, data, b)
    return tracer.trace(), plan


def _require_tuple_batches(tracer: Tracer, data: Shape, indices: Shape, b: int) -> None:
    """Check the batch axes of index tuples."""
    r, q = len(data), len(indices)
    tracer.require(
        0 <= b < min(r, q),
        "0 <= b < min(r, q)",
        f"0 <= {format_integer(b)} < min({r}, {q})",
        f"batch_dims is {format_integer(b)}: with rank(data) {r} and rank(indices) {q} it must be"
        f" in 0..{min(r, q) - 1}",
    )
    _require_batches(tracer, data, indices, b)


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


def _nd_plan(tracer: Tracer, data: Shape, indices: Shape, output: Shape, b: int) -> Plan:
    k, tuples = indices[-1], prod(indices[:-1])
    slice_shape = data[b + k :]
    tracer.derive(
        "tuples = prod(indices.shape[:-1])",
        format_shape(indices[:-1]),
        f"{format_integer(tuples)} index tuples",
    )
    tracer.derive(
        "width = prod(data.shape[b+k:])",
        format_shape(slice_shape),
        f"{format_integer(prod(slice_shape))} elements each",
    )
    return Plan(
        tracer.operator, data, indices, output, data[:b], tuples, data[b : b + k], slice_shape
    )


@lru_cache(maxsize=1024)
def gather_elements(data: Shape, indices: Shape, axis: int) -> tuple[Trace, Plan]:
    """Infer ONNX GatherElements: output.shape = indices.shape.

    >>> gather_elements((3, 3), (2, 3), 0)[1].output
    (2, 3)
    """
    tracer = Tracer("gather_elements")
    a = _check_elements(tracer, data, indices, axis)
    _derive_output(tracer, "indices.shape", format_shape(indices), indices)
    return tracer.trace(), _elements_plan(tracer, data, indices, indices, a)


@lru_cache(maxsize=1024)
def scatter_elements(data: Shape, indices: Shape, updates: Shape, axis: int) -> tuple[Trace, Plan]:
    """Infer ONNX ScatterElements: output.shape = data.shape, updates.shape = indices.shape.

    >>> scatter_elements((3, 3), (2, 3), (2, 3), 0)[1].output
    (3, 3)
    """
    tracer = Tracer("scatter_elements")
    a = _check_elements(tracer, data, indices, axis)
    _require_shape(tracer, "updates", updates, "indices.shape", indices)
    _derive_output(tracer, "data.shape", format_shape(data), data)
    return tracer.trace(), _elements_plan(tracer, data, indices, data, a)


@lru_cache(maxsize=1024)
def gather(
    data: Shape, indices: Shape, axis: int | None = None, batch_dims: int = 0
) -> tuple[Trace, Plan]:
    """Infer ONNX Gather: output.shape = data.shape[:a] + indices.shape + data.shape[a+1:].

    With b batch axes indices.shape[b:] replaces axis a, which is b by default.

    >>> gather((128, 64), (5,), 0)[1].output
    (5, 64)
    """
    tracer = Tracer("gather")
    a, rule, expected, numbers = _infer_scalar_indices(tracer, data, indices, axis, batch_dims)
    _derive_output(tracer, rule, numbers, expected)
    return tracer.trace(), _scalar_plan(tracer, data, indices, expected, a, batch_dims)


@lru_cache(maxsize=1024)
def scatter(
    data: Shape, indices: Shape, updates: Shape, axis: int | None = None, batch_dims: int = 0
) -> tuple[Trace, Plan]:
    """Infer the inverse of `gather`: updates must have the shape that gather returns.

    >>> scatter((128, 64), (5,), (5, 64), 0)[1].output
    (128, 64)
    """
    tracer = Tracer("scatter")
    a, rule, expected, _ = _infer_scalar_indices(tracer, data, indices, axis, batch_dims)
    _require_shape(tracer, "updates", updates, rule, expected)
    _derive_output(tracer, "data.shape", format_shape(data), data)
    return tracer.trace(), _scalar_plan(tracer, data, indices, data, a, batch_dims)


def _infer_scalar_indices(
    tracer: Tracer, data: Shape, indices: Shape, axis: int | None, b: int
) -> tuple[int, str, Shape, str]:
    """Check the axis and batch axes of Gather and Scatter.

    Returns the axis, not negative, and for the trace the shape of the gathered slices: as a
    formula, as a value and as a sum of its parts.
    """
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
    components, index_shape = (
        (data[:a], indices[b:], data[a + 1 :]),
        "indices.shape[b:]" if b else "indices.shape",
    )
    rule = f"data.shape[:a] + {index_shape} + data.shape[a+1:]"
    return a, rule, sum(components, ()), " + ".join(map(format_shape, components))


def _scalar_plan(
    tracer: Tracer, data: Shape, indices: Shape, output: Shape, a: int, b: int
) -> Plan:
    """Return the plan of scalar indices along axis a; add the number of slices to the trace."""
    batch, slice_shape, index_shape = data[:a], data[a + 1 :], indices[b:]
    tuples = prod(batch) * prod(index_shape)
    tracer.derive(
        f"slices = prod(data.shape[:a]) * prod(indices.shape{'[b:]' if b else ''})",
        f"{format_shape(batch)} * {format_shape(index_shape)}",
        f"{format_integer(tuples)} slices",
    )
    tracer.derive(
        "width = prod(data.shape[a+1:])",
        format_shape(slice_shape),
        f"{format_integer(prod(slice_shape))} elements each",
    )
    sizes = data[a : a + 1]
    return Plan(tracer.operator, data, indices, output, batch, tuples, sizes, slice_shape, True, b)


def _check_elements(tracer: Tracer, data: Shape, indices: Shape, axis: int) -> int:
    """Check the ranks, axis and sizes of GatherElements or ScatterElements; return axis >= 0."""
    _require_ranks(tracer, data, indices)
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
    return a


def _elements_plan(tracer: Tracer, data: Shape, indices: Shape, output: Shape, a: int) -> Plan:
    sizes = data[a : a + 1]
    return Plan(
        tracer.operator, data, indices, output, (), prod(indices), sizes, (), True, elements_axis=a
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


_RULES: dict[str, Callable[[dict[str, Shape], Attributes], tuple[Trace, Plan]]] = {
    "gather_nd": lambda s, a: gather_nd(s["data"], s["indices"], a.batch_dims),
    "scatter_nd": lambda s, a: scatter_nd(s["data"], s["indices"], s["updates"], a.batch_dims),
    "gather_elements": lambda s, a: gather_elements(s["data"], s["indices"], a.resolved_axis),
    "scatter_elements": lambda s, a: scatter_elements(
        s["data"], s["indices"], s["updates"], a.resolved_axis
    ),
    "gather": lambda s, a: gather(s["data"], s["indices"], a.axis, a.batch_dims),
    "scatter": lambda s, a: scatter(s["data"], s["indices"], s["updates"], a.axis, a.batch_dims),
}


def _gathered_shape(data: Shape, indices: Shape, attributes: Attributes) -> Shape:
    a, b = attributes.resolved_axis % max(1, len(data)), attributes.batch_dims
    return data[:a] + indices[b:] + data[a + 1 :]


_UPDATES_SHAPES: dict[str, Callable[[Shape, Shape, Attributes], Shape]] = {
    "scatter_nd": lambda data, indices, a: (
        indices[:-1] + data[a.batch_dims + indices[-1] :] if indices else indices
    ),
    "scatter_elements": lambda data, indices, a: indices,
    "scatter": _gathered_shape,
}


def updates_shape(operator: str, data: Shape, indices: Shape, attributes: Attributes) -> Shape:
    """Return the shape that a scatter's updates must have; inference refuses invalid arguments."""
    return _UPDATES_SHAPES[operator](data, indices, attributes)


def infer(operator: str, sizes: dict[str, Shape], attributes: Attributes) -> tuple[Trace, Plan]:
    """Infer the shapes of an operator; sizes: the inputs' shapes by role."""
    trace, plan = _RULES[operator](sizes, attributes)
    return trace, plan._replace(attributes=attributes)
