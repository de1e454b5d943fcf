"""Type and shape inference for a call: types, shapes, attributes and a spec in, a plan out."""

import re
from collections.abc import Sequence
from itertools import permutations
from math import prod
from typing import NamedTuple

from ndtool.errors import (
    BoundsError,
    DtypeError,
    DuplicatesError,
    NdtoolError,
    RuleError,
    argument_name,
    format_integer,
    printable,
)
from ndtool.rules import dtypes, filling, mistakes, shapes, specs, tensorscatter
from ndtool.rules.dtypes import Dtype
from ndtool.rules.modes import MODES, Handling, Mode
from ndtool.rules.operators import LOWERED, OPERATORS, Attributes, operator_of
from ndtool.rules.plans import Plan, Shape
from ndtool.rules.symbols import Sizes
from ndtool.rules.trace import Step, Trace


class Input(NamedTuple):
    """Type and shape of an input; name: the argument, or the role of an array in memory."""

    name: str
    dtype: Dtype
    shape: Shape

    def viewed_as(self, dtype: str | None) -> "Input":
        """Return the input with void elements reinterpreted as `dtype`."""
        if dtype is None:
            return self
        try:
            return self._replace(dtype=dtypes.view_as(self.dtype, dtype))
        except DtypeError as exc:
            raise DtypeError(f"{argument_name(self.name)}: {exc.message}") from None

    @property
    def size(self) -> int:
        return prod(self.shape)

    @property
    def described(self) -> str:
        """The name, and the type and shape unless the name consists of them."""
        described = shapes.described(self.dtype, self.shape)
        return described if self.name == described else f"{argument_name(self.name)}: {described}"


Inputs = dict[str, Input]  # by the standards' names: data, indices, updates


class Inference(NamedTuple):
    """Result of inference: the spec's row, the trace of every rule, the plan of shapes."""

    operator: str
    spec: str
    attributes: Attributes
    inputs: Inputs
    row: specs.Row
    trace: Trace
    plan: Plan

    @property
    def scatters(self) -> bool:
        """Whether the operator scatters updates into a copy of data; else it gathers."""
        return operator_of(self.operator).scatters

    @property
    def handling(self) -> Handling:
        """How indices are handled."""
        return handling_of(self.attributes, self.row, self.inputs["indices"].dtype)

    @property
    def mode(self) -> Mode:
        return MODES[self.attributes.out_of_bounds]

    @property
    def requires_distinct(self) -> bool:
        """Whether two index tuples that select the same are an error."""
        return self.attributes.duplicates == "error"

    @property
    def dtype(self) -> Dtype:
        """The output's element type: that of the first input."""
        return next(iter(self.inputs.values())).dtype

    @property
    def filling(self) -> bytes:
        """The bytes of the fill value, for indices out of bounds in mode "fill"."""
        return filling.element(self.attributes.fill, self.dtype)

    @property
    def nbytes(self) -> int:
        return prod(self.plan.output) * self.dtype.itemsize


def handling_of(attributes: Attributes, row: specs.Row, indices: Dtype) -> Handling:
    """Return the handling of indices; without a pad that no index of the type can equal."""
    pad, bits = attributes.pad, 8 * indices.itemsize
    lowest, highest = (0, 1 << bits) if indices.kind == "u" else (-1 << bits - 1, 1 << bits - 1)
    pads = pad is not None and lowest <= pad < highest
    return Handling(attributes.out_of_bounds, pad if pads else None, row.negatives)


def infer(
    operator: str,
    inputs: Inputs,
    attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
    spec: str = "ndtool",
    dtype: str | None = None,
) -> Inference:
    """Infer the output of an operator.

    dtype: the actual type of void elements of data and updates. Raises RuleError, with the trace so
    far, or DtypeError, both with the inputs in `places`; UsageError for an unknown reduction or
    spec.
    """
    inputs = {
        role: value if role.endswith("indices") else value.viewed_as(dtype)
        for role, value in inputs.items()
    }
    types = {role: value.dtype for role, value in inputs.items()}
    sizes = {role: value.shape for role, value in inputs.items()}
    try:
        row, trace, plan = check(operator, types, sizes, attributes, spec)
    except NdtoolError as error:
        name_inputs(error, inputs)
        error.hint = (
            error.hint
            or _swapped(operator, inputs, attributes, spec)
            or _fitting(operator, inputs, attributes)
        )
        raise
    return Inference(operator, spec, attributes, inputs, row, trace, plan)


def check(
    operator: str,
    types: dict[str, Dtype],
    sizes: dict[str, Shape],
    attributes: Attributes,
    spec: str,
) -> tuple[specs.Row, Trace, Plan]:
    """Check types against a spec, then infer shapes; errors name inputs by role only."""
    plan: Plan
    if operator in LOWERED:
        row = tensorscatter.accept(spec, types, attributes.mode)
        trace, lowering = tensorscatter.infer(sizes, attributes.axis)
        plan = lowering.plan
    else:
        row = specs.accept(spec, operator, types, attributes)
        filling.element(attributes.fill, types["data"])
        trace, plan = shapes.infer(operator, sizes, attributes)
    assumed = check_bytes(plan, next(iter(types.values())).itemsize, trace.sizes)
    return row, trace._replace(steps=trace.steps + assumed), plan


def check_bytes(plan: Plan, itemsize: int, sizes: Sizes | None = None) -> tuple[Step, ...]:
    """Raise RuleError for an output of more than 2^63 - 1 bytes.

    sizes: the assumptions about named sizes. If one may be 0, return the rule as an assumed step.
    """
    size = prod(plan.output) * itemsize
    if int(size) <= shapes.MOST:
        return ()
    empty = (sizes or Sizes()).may_be_empty(size)
    if not empty:
        raise RuleError(
            f"the output {shapes.written(plan.output)} would have {format_integer(size)} bytes:"
            " at most 2^63 - 1 fit"
        )
    sentence = f"the output has no elements: {' or '.join(empty)} is 0"
    return (
        Step("bytes of output < 2^63", f"{format_integer(size)} < 2^63", "assumed", (sentence,)),
    )


def name_inputs(error: NdtoolError, inputs: Inputs) -> None:
    """Add the names of the inputs to an error that names only their roles."""
    if isinstance(error, BoundsError):
        lowered = "write_indices" in inputs
        name, dtype, _ = inputs["write_indices" if lowered else "indices"]
        error.name(argument_name(name), argument_name(inputs["past" if lowered else "data"].name))
        if not error.hint and not is_literal(name):
            error.hint = mistakes.likeliest(error.value, error.size, dtype)
    elif isinstance(error, DuplicatesError):
        error.name(argument_name(inputs["indices"].name))
    elif isinstance(error, RuleError | DtypeError):
        error.places = tuple(f"{role} {value.described}" for role, value in inputs.items())
        if error.hint.endswith(shapes.PLAIN):
            names = _quoted(inputs["data"].name), _quoted(inputs["indices"].name)
            error.hint = error.hint.removesuffix("DATA INDICES") + " ".join(names)


def is_literal(name: str) -> bool:
    """Whether an argument is a literal list of indices."""
    return name.lstrip()[:1] == "["


def _swapped(operator: str, inputs: Inputs, attributes: Attributes, spec: str) -> str:
    """Return the hint to swap inputs, "" unless one permutation of the fewest inputs fits."""
    roles, fitting = tuple(inputs), []
    for order in list(permutations(roles))[1:]:
        types = {role: inputs[name].dtype for role, name in zip(roles, order, strict=True)}
        sizes = {role: inputs[name].shape for role, name in zip(roles, order, strict=True)}
        try:
            check(operator, types, sizes, attributes, spec)
        except NdtoolError:
            continue
        fitting.append([pair for pair in zip(order, roles, strict=True) if pair[0] != pair[1]])
    smallest = min(map(len, fitting), default=0)
    candidates = [swaps for swaps in fitting if len(swaps) == smallest]
    if len(candidates) != 1:
        return ""
    return "swapped? " + ", ".join(f"{name} would fit as {role}" for name, role in candidates[0])


# Operators to suggest if the shapes do not fit the operator of the call.
_RELATED = {
    "scatter_nd": ("scatter", "scatter_elements"),
    "scatter": ("scatter_nd", "scatter_elements"),
    "scatter_elements": ("scatter", "scatter_nd"),
    "gather_nd": ("gather",),
    "gather_elements": ("gather",),
}


def _fitting(operator: str, inputs: Inputs, attributes: Attributes) -> str:
    """Return the hint at another operator that the shapes fit, "" if there is none."""
    types = {role: value.dtype for role, value in inputs.items()}
    sizes = {role: value.shape for role, value in inputs.items()}
    names = " ".join(_quoted(value.name) for value in inputs.values())
    try:
        check(operator, types, sizes, attributes, "ndtool")
        return ""  # another argument was refused
    except NdtoolError:
        pass
    for related in _RELATED.get(operator, ()):
        other = OPERATORS[related]
        axes: Sequence[int | None] = (attributes.axis,)
        if attributes.axis is None and "axis" in other.attributes:
            axes = range(len(sizes["data"]))
        for axis in axes:
            changed = attributes._replace(axis=axis)
            try:
                check(related, types, sizes, changed, "ndtool")
            except NdtoolError:
                continue
            flags = f" --axis {axis}" if axis else ""
            flags += f" --batch-dims {changed.batch_dims}" if changed.batch_dims else ""
            flags += f" --reduction {changed.reduction}" if changed.reduction != "none" else ""
            flags += "" if changed.include_self else " --no-include-self"
            flags += f" --duplicates {changed.duplicates}" if changed.duplicates != "last" else ""
            return f"{_MEANT[related]} the shapes fit: ndtool {other.command} {names}{flags}"
    return ""


_MEANT = {
    "gather": "plain numbers of rows?",
    "scatter": "plain numbers of rows?",
    "scatter_nd": "index tuples?",
    "scatter_elements": "an index for each update?",
}


def _quoted(name: str) -> str:
    """Return an argument quoted for a shell."""
    is_safe = re.fullmatch(r"[\w./:@%+=,-]+", name, re.ASCII)
    return name if is_safe else "'" + printable(name).replace("'", "'\\''") + "'"
