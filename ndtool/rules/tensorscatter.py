"""Rules of ONNX TensorScatter: update is written along an axis, from an index of each batch.

Notation: past has shape (B, .., s, ..), with axis a of size s; update has size n <= s on axis a.
"""

from __future__ import annotations

from typing import NamedTuple

from ndtool.errors import DtypeError, UsageError, format_integer, format_value
from ndtool.rules import shapes, specs
from ndtool.rules.dtypes import Dtype, from_name
from ndtool.rules.operators import WRITE_MODES, Attributes
from ndtool.rules.plans import Plan, Shape
from ndtool.rules.shapes import format_shape
from ndtool.rules.trace import Trace, Tracer

OPERATOR = "tensor_scatter"


class Lowering(NamedTuple):
    """The scatter that computes a call: along `axis`, with one batch axis.

    size: s, the size of the axis in past. length: n, its size in update. output: the output shape.
    """

    batch: int
    axis: int
    size: int
    length: int
    output: Shape

    @property
    def indices(self) -> Shape:
        """The shape of the indices of the scatter."""
        return (self.batch, self.length)

    @property
    def attributes(self) -> Attributes:
        return Attributes(axis=self.axis, batch_dims=1)

    @property
    def plan(self) -> Plan:
        update = (*self.output[: self.axis], self.length, *self.output[self.axis + 1 :])
        sizes = {"data": self.output, "indices": self.indices, "updates": update}
        return shapes.infer("scatter", sizes, self.attributes)[1]


def accept(spec: str, types: dict[str, Dtype], mode: str = "linear") -> specs.OperatorVersion:
    """Check the inputs' types and the mode against a spec; return its row for the operator.

    Raises DtypeError, RuleError for a standard without the operator, UsageError for an unknown mode
    or spec.
    """
    if mode not in WRITE_MODES:
        raise UsageError(f"mode is {format_value(mode)}: expected one of {', '.join(WRITE_MODES)}")
    indices = types.get("write_indices")
    if indices is not None:
        specs.require_integers("write_indices", indices)
    past, update = types["past"], types["update"]
    if not specs.is_same_type(past, update):
        raise DtypeError(
            f"update has dtype {update.name}: it must be past's, {past.name} (no silent cast)"
        )
    return specs.accept(spec, OPERATOR, {"data": past, "indices": indices or from_name("int64")})


def infer(sizes: dict[str, Shape], axis: int | None = None) -> tuple[Trace, Lowering]:
    """Infer ONNX TensorScatter: output.shape = past.shape.

    sizes: the shapes of past, update and perhaps write_indices. Raises RuleError, with the
    trace up to it, for the first broken rule.

    >>> infer({"past": (2, 8, 64), "update": (2, 1, 64), "write_indices": (2,)})[1].indices
    (2, 1)
    """
    tracer, past, update = Tracer(OPERATOR), sizes["past"], sizes["update"]
    r, q = len(past), len(update)
    tracer.require(
        r >= 2,
        "rank(past) >= 2",
        f"{r} >= 2",
        f"past has rank {r}: it must have a batch axis and the axis to write along",
    )
    tracer.require(
        r == q,
        "rank(update) = rank(past)",
        f"{q} = {r}",
        f"update has rank {q}: it must equal rank(past) = {r}",
    )
    axis = -2 if axis is None else axis
    tracer.require(
        -r <= axis < r and axis % r != 0,
        "-r <= axis <= r - 1, axis mod r != 0",
        f"{-r} <= {format_integer(axis)} <= {r - 1}",
        f"axis is {format_integer(axis)}: with rank(past) {r} it must be in {1 - r}..-1 or"
        f" 1..{r - 1}: axis 0 is the batch",
    )
    a = axis % r
    for d in range(r):
        if d != a:
            _require_size(tracer, "update", update, d, past[d], f"past.shape[{d}]")
    s, n = past[a], update[a]
    tracer.require(
        tracer.sizes.at_most(n, s),
        f"update.shape[{a}] <= past.shape[{a}]",
        f"{n} <= {s}",
        f"update has {n} elements along axis {a}: past has {s}, and it must fit",
        f"update's axis {a} ({n}) is at most past's ({s})",
    )
    if "write_indices" in sizes:
        shape = sizes["write_indices"]
        tracer.require(
            len(shape) == 1,
            "rank(write_indices) = 1",
            f"{len(shape)} = 1",
            f"write_indices has shape {format_shape(shape)}: [{past[0]}], one index for each"
            " batch, is required",
        )
        _require_size(tracer, "write_indices", shape, 0, past[0], "past.shape[0]")
    tracer.derive("output.shape = past.shape", format_shape(past), format_shape(past))
    return tracer.trace(), Lowering(past[0], a, s, n, past)


def _require_size(
    tracer: Tracer, name: str, shape: Shape, d: int, size: int, expected: str
) -> None:
    tracer.require(
        tracer.sizes.equal(shape[d], size),
        f"{name}.shape[{d}] = {expected}",
        f"{shape[d]} = {size}",
        f"{name} has shape {format_shape(shape)}: axis {d} must be {expected} ="
        f" {tracer.sizes.format_size(size)} (no broadcasting)",
        f"{name}'s axis {d} ({shape[d]}) is {size}",
    )
