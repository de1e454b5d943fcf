"""Types, shapes, attributes and a spec in; what follows from them out, before any value is read."""

import re
from itertools import permutations
from math import prod
from typing import NamedTuple

from ndtool import notebook
from ndtool.errors import BoundsError, DtypeError, NdtoolError, RuleError, called, printable
from ndtool.rules import dtypes, filling, shapes, specs
from ndtool.rules.dtypes import Dtype
from ndtool.rules.operators import Attributes
from ndtool.rules.shapes import Plan, Shape
from ndtool.rules.trace import Trace


class Given(NamedTuple):
    """An input as far as inference needs it; name: the argument, or the role of an array."""

    name: str
    dtype: Dtype
    shape: Shape

    def taken_as(self, dtype: str | None) -> "Given":
        """Return the input with elements stored as void taken as another type."""
        if dtype is None:
            return self
        try:
            return self._replace(dtype=dtypes.view_as(self.dtype, dtype))
        except DtypeError as exc:
            raise DtypeError(f"{called(self.name)}: {exc.message}") from None

    @property
    def described(self) -> str:
        """What it is called, and where that does not say them, its type and shape."""
        described = shapes.described(self.dtype, self.shape)
        return described if self.name == described else f"{called(self.name)}: {described}"


Inputs = dict[str, Given]  # by the standards' names: data, indices, updates


class Inference(NamedTuple):
    """What is known of a call: the spec's row that it satisfies, every rule, the plan."""

    operator: str
    spec: str
    attributes: Attributes
    inputs: Inputs
    row: specs.Row
    trace: Trace
    plan: Plan

    @property
    def dtype(self) -> Dtype:
        """The output's element type: data's."""
        return self.inputs["data"].dtype

    @property
    def filling(self) -> bytes:
        """The element of what indices out of bounds name, if they are filled."""
        return filling.element(self.attributes.fill, self.dtype)

    @property
    def nbytes(self) -> int:
        """Bytes of the output's data."""
        return prod(self.plan.output) * self.dtype.itemsize

    def _repr_html_(self) -> str:
        inputs = [(role, given.described) for role, given in self.inputs.items()]
        assumed = [("assumed", sentence) for sentence in self.trace.assumed]
        output = ("output", shapes.described(self.dtype, self.plan.output))
        call = notebook.table(self.operator, ("array", "type"), [*inputs, *assumed, output])
        return call + self.trace._repr_html_()


def infer(
    operator: str,
    inputs: Inputs,
    attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
    spec: str = "ndtool",
    dtype: str | None = None,
) -> Inference:
    """Infer the output of an operator.

    dtype: what elements of data and updates are that are stored as void. Raises RuleError, with
    the trace so far, and DtypeError, both with the inputs as places; UsageError for a reduction
    or spec that does not exist.
    """
    inputs = {
        role: given if role == "indices" else given.taken_as(dtype)
        for role, given in inputs.items()
    }
    types = {role: given.dtype for role, given in inputs.items()}
    sizes = {role: given.shape for role, given in inputs.items()}
    try:
        row, trace, plan = check(operator, types, sizes, attributes, spec)
    except NdtoolError as error:
        point_out(error, inputs)
        error.hint = error.hint or _swapped(operator, inputs, attributes, spec)
        raise
    return Inference(operator, spec, attributes, inputs, row, trace, plan)


def check(
    operator: str,
    types: dict[str, Dtype],
    sizes: dict[str, Shape],
    attributes: Attributes,
    spec: str,
) -> tuple[specs.Row, Trace, Plan]:
    """Check types against a spec, then infer shapes; inputs that have no names but the roles'."""
    row = specs.accept(spec, operator, types, attributes)
    filling.element(attributes.fill, types["data"])
    trace, plan = shapes.infer(operator, sizes, attributes)
    shapes.check_bytes(plan, types["data"].itemsize)
    return row, trace, plan


def point_out(error: NdtoolError, inputs: Inputs) -> None:
    """Add the names of the inputs to an error that knows only data, indices and updates."""
    if isinstance(error, BoundsError):
        error.name(called(inputs["indices"].name), called(inputs["data"].name))
    elif isinstance(error, RuleError | DtypeError):
        error.places = tuple(f"{role} {given.described}" for role, given in inputs.items())
        if error.hint.endswith(shapes.PLAIN):
            names = _quoted(inputs["data"].name), _quoted(inputs["indices"].name)
            error.hint = error.hint.removesuffix("DATA INDICES") + " ".join(names)


def _swapped(operator: str, inputs: Inputs, attributes: Attributes, spec: str) -> str:
    """Return in which other order the inputs would fit: the one that moves the fewest of them."""
    roles, fitting = tuple(inputs), []
    for order in list(permutations(roles))[1:]:
        types = {role: inputs[given].dtype for role, given in zip(roles, order, strict=True)}
        sizes = {role: inputs[given].shape for role, given in zip(roles, order, strict=True)}
        try:
            check(operator, types, sizes, attributes, spec)
        except NdtoolError:
            continue
        fitting.append([pair for pair in zip(order, roles, strict=True) if pair[0] != pair[1]])
    fewest = min(map(len, fitting), default=0)
    best = [moved for moved in fitting if len(moved) == fewest]
    if len(best) != 1:
        return ""
    return "swapped? " + ", ".join(f"{given} would fit as {role}" for given, role in best[0])


def _quoted(name: str) -> str:
    """Return an argument as a shell takes it."""
    plain = re.fullmatch(r"[\w./:@%+=,-]+", name, re.ASCII)
    return name if plain else "'" + printable(name).replace("'", "'\\''") + "'"
