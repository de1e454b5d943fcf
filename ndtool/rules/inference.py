"""Type and shape inference: a plan from the types, shapes, attributes and spec of a call."""

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
)
from ndtool.rules import dtypes, mistakes, shapes, specs
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import LOWERED, OPERATORS, Attributes, Operator, operator_of
from ndtool.rules.plans import Plan, Shape
from ndtool.rules.trace import Trace, Tracer


class Input(NamedTuple):
    """The type and shape of an input; name: the argument, or the role of an array in memory."""

    name: str
    dtype: Dtype
    shape: Shape

    def view_as(self, dtype: str | None) -> "Input":
        """Return the input with void elements reinterpreted as `dtype`."""
        if dtype is None:
            return self
        try:
            return self._replace(dtype=dtypes.view_as(self.dtype, dtype))
        except DtypeError as exc:
            raise DtypeError(f"{argument_name(self.name)}: {exc.message}") from None

    @property
    def description(self) -> str:
        """The name, type and shape; the name alone if it is a type such as float32[3]."""
        text = shapes.format_type(self.dtype, self.shape)
        return text if self.name == text else f"{argument_name(self.name)}: {text}"


Inputs = dict[str, Input]  # by the standards' names: data, indices, updates


class Inference(NamedTuple):
    """The result of inference: the row of the spec, the trace of rules, the plan."""

    operator: str
    spec: str
    attributes: Attributes
    inputs: Inputs
    row: specs.OperatorVersion
    trace: Trace
    plan: Plan

    @property
    def scatters(self) -> bool:
        """Whether the operator scatters updates into a copy of data; else it gathers."""
        return operator_of(self.operator).scatters

    @property
    def requires_distinct(self) -> bool:
        """Whether duplicate index tuples are an error."""
        return self.attributes.duplicates == "error"

    @property
    def dtype(self) -> Dtype:
        """The output's element type: that of the first input."""
        return next(iter(self.inputs.values())).dtype

    @property
    def fill_bytes(self) -> bytes:
        """The bytes of the fill value, which mode "fill" and pad use."""
        from ndtool.rules import numbers

        return numbers.encode_fill(self.attributes.fill, self.dtype)

    @property
    def nbytes(self) -> int:
        return prod(self.plan.output) * self.dtype.itemsize


def infer(
    operator: str,
    inputs: Inputs,
    attributes: Attributes = Attributes(),  # noqa: B008 - immutable
    spec: str = "ndtool",
    dtype: str | None = None,
) -> Inference:
    """Infer the output of an operator.

    dtype: the actual type of void elements of data and updates. Raises RuleError with the trace up
    to the broken rule, or DtypeError, both with the inputs in `places`; UsageError for an unknown
    reduction or spec.
    """
    inputs = {
        role: value if role.endswith("indices") else value.view_as(dtype)
        for role, value in inputs.items()
    }
    types = {role: value.dtype for role, value in inputs.items()}
    sizes = {role: value.shape for role, value in inputs.items()}
    try:
        row, trace, plan = check(operator, types, sizes, attributes, spec)
    except NdtoolError as error:
        name_inputs(error, inputs)
        error.hint = (
            _numpy_hint(operator, inputs, attributes)
            or error.hint
            or _swap_hint(operator, inputs, attributes, spec)
            or _float_hint(inputs)
            or _operator_hint(operator, inputs, attributes)
        )
        raise
    return Inference(operator, spec, attributes, inputs, row, trace, plan)


def check(
    operator: str,
    types: dict[str, Dtype],
    sizes: dict[str, Shape],
    attributes: Attributes,
    spec: str,
) -> tuple[specs.OperatorVersion, Trace, Plan]:
    """Check types against a spec, then infer shapes; errors name inputs only by their roles."""
    plan: Plan
    if operator in LOWERED:
        from ndtool.rules import tensorscatter

        row = tensorscatter.accept(spec, types, attributes.mode)
        trace, lowering = tensorscatter.infer(sizes, attributes.axis)
        plan = lowering.plan
    else:
        row = specs.accept(spec, operator, types, attributes)
        if attributes.fill is not None:
            from ndtool.rules import numbers

            numbers.encode_fill(attributes.fill, types["data"])
        trace, plan = shapes.infer(operator, sizes, attributes)
        if row.limits:
            trace = specs.check_sizes(spec, row, sizes, attributes, trace)
        plan = plan._replace(attributes=resolve(attributes, row, types["indices"]))
    return row, check_bytes(plan, next(iter(types.values())).itemsize, trace), plan


def resolve(attributes: Attributes, row: specs.OperatorVersion, indices: Dtype) -> Attributes:
    """Return attributes as a row defines them, without a pad that no index can equal."""
    pad = attributes.pad
    lowest, highest = dtypes.integer_range(8 * indices.itemsize, indices.kind != "u")
    # `rebase` compares indices with pad in their stored type.
    is_reachable = pad is not None and (lowest <= pad <= highest or attributes.rebases_indices)
    negatives = row.negatives and not attributes.rebases_indices
    return attributes._replace(pad=pad if is_reachable else None, negatives=negatives)


def check_bytes(plan: Plan, itemsize: int, trace: Trace) -> Trace:
    """Raise RuleError for an output of more than 2^63 - 1 bytes; return the trace.

    If a symbolic size may be 0, it has the rule as an assumed one.
    """
    size = prod(plan.output) * itemsize
    if int(size) <= shapes.MAX_SIZE:
        return trace
    digits, empty_names = format_integer(size), trace.sizes.may_be_empty(size)
    if not empty_names:
        raise RuleError(
            f"the output {shapes.format_shape(plan.output)} would have {digits} bytes: at most"
            " 2^63 - 1 fit"
        )
    tracer = Tracer(trace.operator, trace)
    sentence = f"the output has no elements: {' or '.join(empty_names)} is 0"
    tracer.require(None, "bytes of output < 2^63", f"{digits} < 2^63", "", sentence)
    return tracer.trace()


def name_inputs(error: NdtoolError, inputs: Inputs) -> None:
    """Add the names of the inputs to an error that names only their roles."""
    if isinstance(error, BoundsError):
        role, data_role = "indices", "data"
        if "write_indices" in inputs:
            role, data_role = "write_indices", "past"
        name, dtype, _ = inputs[role]
        error.name(_name(role, inputs), argument_name(inputs[data_role].name))
        if not error.hint and not is_literal(name):
            hint = mistakes.likeliest_cause(error.value, error.size, dtype)
            error.hint = mistakes.with_pairs(hint, name)
    elif isinstance(error, DuplicatesError):
        error.name(_name("indices", inputs))
    elif isinstance(error, RuleError | DtypeError):
        error.places = tuple(f"{role} {value.description}" for role, value in inputs.items())
        if error.hint.endswith(shapes.GATHER_COMMAND):
            names = mistakes.quote(inputs["data"].name), mistakes.quote(inputs["indices"].name)
            error.hint = error.hint.removesuffix("DATA INDICES") + " ".join(names)


def _numpy_hint(operator: str, inputs: Inputs, attributes: Attributes) -> str:
    """Return the command by which NumPy makes indices of a mask, or broadcasts updates, or ""."""
    if "indices" not in inputs:
        return ""
    data, indices, updates = inputs["data"], inputs["indices"], inputs.get("updates")
    if indices.dtype.name == "bool" and not operator.endswith("elements"):
        function = "argwhere" if operator.endswith("nd") else "flatnonzero"
        if operator.endswith("nd") or len(indices.shape) == 1:
            command = mistakes.numpy_command(
                indices.name, "indices", "x = np.load({0!r})", f"np.{function}(x)"
            )
            return command and f"it looks like a mask. Then: {command}"
    if updates is None or len(updates.shape) > len(data.shape) + len(indices.shape):
        return ""
    expected = shapes.updates_shape(operator, data.shape, indices.shape, attributes)
    padded = (1,) * (len(expected) - len(updates.shape)) + updates.shape
    if updates.shape == expected or len(padded) != len(expected):
        return ""
    if not all(size in (1, wanted) for size, wanted in zip(padded, expected, strict=True)):
        return ""
    command = mistakes.numpy_command(
        updates.name, "broadcast", "x = np.load({0!r})", f"np.broadcast_to(x, {expected})"
    )
    return command and f"updates are not broadcast. Then: {command}"


def _float_hint(inputs: Inputs) -> str:
    """Return the command that converts whole numbers in a float type to indices, or ""."""
    if "indices" not in inputs or inputs["indices"].dtype.kind != "f":
        return ""
    load = "x = np.load({0!r}); i = x.astype('int64'); assert (i == x).all()"
    command = mistakes.numpy_command(inputs["indices"].name, "indices", load, "i")
    return command and f"are they whole numbers? Then: {command}"


def _name(role: str, inputs: Inputs) -> str:
    """Return the name of indices in messages; a literal has none but its role."""
    name = inputs[role].name
    return role if is_literal(name) else argument_name(name)


def is_literal(name: str) -> bool:
    """Whether an argument is a literal list of indices."""
    return name.lstrip()[:1] == "["


def _swap_hint(operator: str, inputs: Inputs, attributes: Attributes, spec: str) -> str:
    """Return the hint to swap inputs, "" unless a unique minimal permutation is valid."""
    roles, permuted = tuple(inputs), []
    for order in list(permutations(roles))[1:]:
        types = {role: inputs[name].dtype for role, name in zip(roles, order, strict=True)}
        sizes = {role: inputs[name].shape for role, name in zip(roles, order, strict=True)}
        try:
            check(operator, types, sizes, attributes, spec)
        except NdtoolError:
            continue
        permuted.append([pair for pair in zip(order, roles, strict=True) if pair[0] != pair[1]])
    smallest = min(map(len, permuted), default=0)
    candidates = [swaps for swaps in permuted if len(swaps) == smallest]
    if len(candidates) != 1:
        return ""
    return "swapped? " + ", ".join(f"{name} would fit as {role}" for name, role in candidates[0])


# Operators to suggest if the shapes are invalid for the operator of the call.
_ALTERNATIVES = {
    "scatter_nd": ("scatter", "scatter_elements"),
    "scatter": ("scatter_nd", "scatter_elements"),
    "scatter_elements": ("scatter", "scatter_nd"),
    "gather_nd": ("gather",),
    "gather_elements": ("gather",),
}


def _operator_hint(operator: str, inputs: Inputs, attributes: Attributes) -> str:
    """Return the hint at another operator for which the shapes are valid, "" if there is none."""
    types = {role: value.dtype for role, value in inputs.items()}
    sizes = {role: value.shape for role, value in inputs.items()}
    names = " ".join(mistakes.quote(value.name) for value in inputs.values())
    try:
        check(operator, types, sizes, attributes, "ndtool")
        return ""  # the error is about another argument
    except NdtoolError:
        pass
    for alternative in _ALTERNATIVES.get(operator, ()):
        alternative_operator = OPERATORS[alternative]
        axes: Sequence[int | None] = (attributes.axis,)
        if attributes.axis is None and "axis" in alternative_operator.attributes:
            axes = range(len(sizes["data"]))
        for axis in axes:
            alternative_attributes = attributes._replace(axis=axis)
            try:
                check(alternative, types, sizes, alternative_attributes, "ndtool")
            except NdtoolError:
                continue
            flags = _flags(alternative_operator, alternative_attributes)
            return (
                f"{_QUESTIONS[alternative]} The shapes are valid for: ndtool"
                f" {alternative_operator.command} {names}{flags}"
            )
    return ""


def _flags(operator: Operator, attributes: Attributes) -> str:
    """Return the options of a command for attributes other than the defaults."""
    options = {
        "axis": attributes.axis or "",
        "batch_dims": attributes.batch_dims or "",
        "reduction": attributes.reduction if attributes.reduction != "none" else "",
    }
    words = [
        f" --{name.replace('_', '-')} {value}"
        for name, value in options.items()
        if name in operator.attributes and value
    ]
    words += [] if attributes.include_self else [" --no-include-self"]
    words += [] if attributes.duplicates == "last" else [f" --duplicates {attributes.duplicates}"]
    return "".join(words)


_QUESTIONS = {
    "gather": "are the indices row indices, not index tuples?",
    "scatter": "are the indices row indices, not index tuples?",
    "scatter_nd": "are the indices index tuples?",
    "scatter_elements": "is there one index for each update?",
}
