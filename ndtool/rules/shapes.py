"""Rank, shape and axis rules: shapes in, a Trace of every rule and a Plan out.

Notation, as in the standards: r = rank(data), q = rank(indices), b = batch_dims,
k = indices.shape[-1]. Pure functions on tuples of ints; sizes count elements. A size may also be a
Symbol, which has a name: a rule that cannot be decided then is assumed.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool.errors import RuleError, number
from ndtool.rules.operators import Attributes
from ndtool.rules.symbols import Symbol
from ndtool.rules.trace import Trace, Tracer

if TYPE_CHECKING:
    from ndtool.rules.dtypes import Dtype

Shape = tuple[int, ...]
MOST = 2**63 - 1  # sizes and offsets are int64 everywhere
MOST_RANK = 64  # NumPy's limit
PLAIN = "ndtool gather DATA INDICES"  # the call for indices that are no tuples


class NdPlan(NamedTuple):
    """N index tuples of k components, each naming one run of elements of data.

    batch: data's leading shape that the indices share. tuples: N, over all batches.
    sizes: the k axis lengths that the components index. run: the shape of one slice.
    repeated: whether every batch has the same index tuples, each one number that stands alone.
    """

    operator: str
    data: Shape
    indices: Shape
    output: Shape
    batch: Shape
    tuples: int
    sizes: Shape
    run: Shape
    repeated: bool = False

    @property
    def k(self) -> int:
        """Components per index tuple."""
        return len(self.sizes)

    @property
    def width(self) -> int:
        """Elements of one run."""
        return prod(self.run)

    @property
    def positions(self) -> Shape:
        """How index tuples are numbered in indices."""
        return self.indices if self.repeated else self.indices[:-1]

    @property
    def per_batch(self) -> int:
        """Index tuples of one batch."""
        return prod(self.positions[0 if self.repeated else len(self.batch) :])


class ElementsPlan(NamedTuple):
    """One index for each element, along one axis of data (counted from the front)."""

    operator: str
    data: Shape
    indices: Shape
    output: Shape
    axis: int

    @property
    def positions(self) -> Shape:
        """How indices are numbered."""
        return self.indices


Plan = NdPlan | ElementsPlan


def _ranks(t: Tracer, data: Shape, indices: Shape) -> None:
    _rank(t, "data", data)
    _rank(t, "indices", indices)


def _rank(t: Tracer, name: str, shape: Shape) -> None:
    rank = len(shape)
    t.require(
        rank >= 1,
        f"rank({name}) >= 1",
        f"{rank} >= 1",
        f"{name} has rank 0: rank({name}) must be at least 1",
    )


def _output(t: Tracer, rule: str, numbers: str, shape: Shape) -> None:
    t.derive(f"output.shape = {rule}", numbers, written(shape))
    rank, count = len(shape), prod(d for d in shape if d)
    t.require(
        rank <= MOST_RANK,
        f"rank(output) <= {MOST_RANK}",
        f"{rank} <= {MOST_RANK}",
        f"the output would have rank {rank}: at most {MOST_RANK} is possible",
    )
    if isinstance(count, Symbol) and int(count) <= MOST:
        return  # how many they are is not known
    t.require(
        int(count) <= MOST,
        "elements of output < 2^63",
        f"{number(count)} < 2^63",
        f"the output {written(shape)} would have {number(count)} elements: at most 2^63 - 1 fit",
    )


def _same(t: Tracer, name: str, shape: Shape, rule: str, expected: Shape) -> None:
    equal = list(map(t.sizes.equal, shape, expected))
    broken = len(shape) != len(expected) or False in equal
    names = [axis for axis, same in enumerate(equal) if same is None]
    t.require(
        False if broken else None if names else True,
        f"{name}.shape = {rule}",
        f"{written(shape)} = {written(expected)}",
        f"{name} has shape {written(shape)}: {rule} = {written(expected)} is required"
        " (no broadcasting)",
        *(f"{_axis_of(name, axis, shape)} is {expected[axis]}" for axis in names),
    )


def _components(t: Tracer, indices: Shape) -> int:
    """Return k, which no name can stand for."""
    k = indices[-1]
    if isinstance(k, Symbol):
        t.require(
            False,
            "k = indices.shape[-1]",
            str(k),
            f"indices.shape[-1] is {k}: it must be a number, how many axes of data an index"
            " tuple is about",
        )
    return k


def _axis_of(name: str, axis: int, shape: Shape) -> str:
    """Return how an assumption names a size: data's axis 0 (N)."""
    owner = f"{name}'" if name.endswith("s") else f"{name}'s"
    return f"{owner} axis {axis} ({shape[axis]})"


def written(shape: Shape) -> str:
    """Return a shape as everything shows it: [8,5,64]."""
    return "[" + ",".join(map(str, shape)) + "]"


def described(dtype: Dtype, shape: Shape) -> str:
    """Return a type and shape as everything shows them: float32[8,5,64]."""
    return dtype.name + written(shape)


@lru_cache(maxsize=1024)
def gather_nd(data: Shape, indices: Shape, batch_dims: int) -> tuple[Trace, NdPlan]:
    """Infer ONNX GatherND: output.shape = indices.shape[:-1] + data.shape[b+k:].

    Raises RuleError, with the trace so far, for the first rule that does not hold.

    >>> gather_nd((8, 128, 64), (8, 5, 1), 1)[1].output
    (8, 5, 64)
    """
    t = Tracer("gather_nd")
    _ranks(t, data, indices)
    r, q, b = len(data), len(indices), batch_dims
    t.require(
        0 <= b < min(r, q),
        "0 <= b < min(r, q)",
        f"0 <= {number(b)} < min({r}, {q})",
        f"batch_dims is {number(b)}: with rank(data) {r} and rank(indices) {q} it must be in"
        f" 0..{min(r, q) - 1}",
    )
    for d in range(b):
        t.require(
            t.sizes.equal(data[d], indices[d]),
            f"data.shape[{d}] = indices.shape[{d}]",
            f"{data[d]} = {indices[d]}",
            f"batch axis {d} differs: data has {t.sizes.shown(data[d])}, indices has"
            f" {t.sizes.shown(indices[d])}:"
            f" the first {b} axes must be equal",
            f"{_axis_of('data', d, data)} and {_axis_of('indices', d, indices)} are equal",
        )
    k = _components(t, indices)
    t.require(
        1 <= k <= r - b,
        "1 <= k <= r - b",
        f"1 <= {k} <= {r} - {b}",
        f"indices.shape[-1] is {k}: with rank(data) {r} and batch_dims {b} it must be in"
        f" 1..{r - b}",
        hint=f"{k} rows by their numbers? {PLAIN}" if q == 1 and k and b == 0 else "",
    )
    output = indices[:-1] + data[b + k :]
    numbers = f"{written(indices[:-1])} + {written(data[b + k :])}"
    _output(t, "indices.shape[:-1] + data.shape[b+k:]", numbers, output)
    plan = _nd_plan(t, data, indices, output, b)
    return t.trace(), plan


@lru_cache(maxsize=1024)
def scatter_nd(data: Shape, indices: Shape, updates: Shape) -> tuple[Trace, NdPlan]:
    """Infer ONNX ScatterND: updates.shape must be indices.shape[:-1] + data.shape[k:].

    Raises RuleError, with the trace so far, for the first rule that does not hold.

    >>> scatter_nd((4, 3), (2, 1), (2, 3))[1].output
    (4, 3)
    """
    t = Tracer("scatter_nd")
    _ranks(t, data, indices)
    r, k = len(data), _components(t, indices)
    t.require(
        0 <= k <= r,
        "0 <= k <= r",
        f"0 <= {k} <= {r}",
        f"indices.shape[-1] is {k}: with rank(data) {r} it must be in 0..{r}",
    )
    _same(t, "updates", updates, "indices.shape[:-1] + data.shape[k:]", indices[:-1] + data[k:])
    _output(t, "data.shape", written(data), data)
    plan = _nd_plan(t, data, indices, data, 0)
    return t.trace(), plan


def _nd_plan(t: Tracer, data: Shape, indices: Shape, output: Shape, b: int) -> NdPlan:
    k, tuples = indices[-1], prod(indices[:-1])
    run = data[b + k :]
    t.derive(
        "N = prod(indices.shape[:-1])", written(indices[:-1]), f"{number(tuples)} index tuples"
    )
    t.derive("W = prod(data.shape[b+k:])", written(run), f"{number(prod(run))} elements each")
    return NdPlan(t.operator, data, indices, output, data[:b], tuples, data[b : b + k], run)


@lru_cache(maxsize=1024)
def gather_elements(data: Shape, indices: Shape, axis: int) -> tuple[Trace, ElementsPlan]:
    """Infer ONNX GatherElements: output.shape = indices.shape.

    Raises RuleError, with the trace so far, for the first rule that does not hold.

    >>> gather_elements((3, 3), (2, 3), 0)[1].output
    (2, 3)
    """
    t = Tracer("gather_elements")
    a = _elements_axis(t, data, indices, axis)
    _output(t, "indices.shape", written(indices), indices)
    return t.trace(), ElementsPlan("gather_elements", data, indices, indices, a)


@lru_cache(maxsize=1024)
def scatter_elements(
    data: Shape, indices: Shape, updates: Shape, axis: int
) -> tuple[Trace, ElementsPlan]:
    """Infer ONNX ScatterElements: output.shape = data.shape, updates.shape = indices.shape.

    Raises RuleError, with the trace so far, for the first rule that does not hold.

    >>> scatter_elements((3, 3), (2, 3), (2, 3), 0)[1].output
    (3, 3)
    """
    t = Tracer("scatter_elements")
    a = _elements_axis(t, data, indices, axis)
    _same(t, "updates", updates, "indices.shape", indices)
    _output(t, "data.shape", written(data), data)
    return t.trace(), ElementsPlan("scatter_elements", data, indices, data, a)


@lru_cache(maxsize=1024)
def gather(data: Shape, indices: Shape, axis: int) -> tuple[Trace, NdPlan]:
    """Infer ONNX Gather: output.shape = data.shape[:a] + indices.shape + data.shape[a+1:].

    Raises RuleError, with the trace so far, for the first rule that does not hold.

    >>> gather((128, 64), (5,), 0)[1].output
    (5, 64)
    """
    t = Tracer("gather")
    _rank(t, "data", data)
    a = _axis(t, data, axis)
    before, run, tuples = data[:a], data[a + 1 :], prod(data[:a]) * prod(indices)
    output = before + indices + run
    numbers = " + ".join(map(written, (before, indices, run)))
    _output(t, "data.shape[:a] + indices.shape + data.shape[a+1:]", numbers, output)
    t.derive(
        "N = prod(data.shape[:a]) * prod(indices.shape)",
        f"{written(before)} * {written(indices)}",
        f"{number(tuples)} slices",
    )
    t.derive("W = prod(data.shape[a+1:])", written(run), f"{number(prod(run))} elements each")
    sizes = data[a : a + 1]
    return t.trace(), NdPlan("gather", data, indices, output, before, tuples, sizes, run, True)


def _elements_axis(t: Tracer, data: Shape, indices: Shape, axis: int) -> int:
    """Check what both elements operators ask of ranks, axis and sizes; return axis >= 0."""
    _ranks(t, data, indices)
    r, q = len(data), len(indices)
    t.require(
        r == q,
        "rank(indices) = rank(data)",
        f"{q} = {r}",
        f"indices has rank {q}: it must equal rank(data) = {r}",
    )
    a = _axis(t, data, axis)
    for d in range(r):
        if d != a:
            t.require(
                t.sizes.at_most(indices[d], data[d]),
                f"indices.shape[{d}] <= data.shape[{d}]",
                f"{indices[d]} <= {data[d]}",
                f"indices has {t.sizes.shown(indices[d])} along axis {d}: off axis {a} it must be"
                f" at most data's {t.sizes.shown(data[d])}",
                f"{_axis_of('indices', d, indices)} is at most {_axis_of('data', d, data)}",
            )
    return a


def _axis(t: Tracer, data: Shape, axis: int) -> int:
    """Check an axis of data; return it counted from the front."""
    r = len(data)
    t.require(
        -r <= axis < r,
        "-r <= axis <= r - 1",
        f"{-r} <= {number(axis)} <= {r - 1}",
        f"axis is {number(axis)}: with rank(data) {r} it must be in {-r}..{r - 1}",
    )
    return axis % r


_RULES: dict[str, Callable[[dict[str, Shape], Attributes], tuple[Trace, Plan]]] = {
    "gather_nd": lambda s, a: gather_nd(s["data"], s["indices"], a.batch_dims),
    "scatter_nd": lambda s, a: scatter_nd(s["data"], s["indices"], s["updates"]),
    "gather_elements": lambda s, a: gather_elements(s["data"], s["indices"], a.axis),
    "scatter_elements": lambda s, a: scatter_elements(
        s["data"], s["indices"], s["updates"], a.axis
    ),
    "gather": lambda s, a: gather(s["data"], s["indices"], a.axis),
}


def infer(operator: str, sizes: dict[str, Shape], attributes: Attributes) -> tuple[Trace, Plan]:
    """Infer any of the operators; sizes by the inputs' names."""
    return _RULES[operator](sizes, attributes)


def check_bytes(plan: Plan, itemsize: int) -> None:
    """Raise RuleError for an output of more bytes than an offset can count."""
    size = prod(plan.output) * itemsize
    if int(size) > MOST:
        raise RuleError(
            f"the output {written(plan.output)} would have {number(size)} bytes:"
            " at most 2^63 - 1 fit"
        )
