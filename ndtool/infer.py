"""Shape inference without data: of files only the headers are read, types may stand for files."""

import os
import re
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ndtool import dtypes, files, shapes, specs
from ndtool.dtypes import Dtype
from ndtool.errors import DtypeError, RuleError, UsageError, printable
from ndtool.shapes import Plan, Shape, Trace

if TYPE_CHECKING:
    from ndtool.jobs import Job

# A dtype, which may have a unit in brackets, then a shape; no path or member looks like it.
_TYPE = re.compile(r"([^:/.\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[(.*)\]")
_SIZES = re.compile(r"(?:[0-9]{1,19}(?:, ?[0-9]{1,19})*)?")


class Given(NamedTuple):
    """An input as far as inference needs it; name: the argument."""

    name: str
    dtype: Dtype
    shape: Shape

    @property
    def described(self) -> str:
        """The argument, and where that does not say them, its type and shape."""
        described = self.dtype.name + shapes.written(self.shape)
        return described if self.name == described else f"{self.name}: {described}"


class Inference(NamedTuple):
    """What follows from the inputs' types and shapes, before any value is looked at."""

    operator: str
    spec: str
    attributes: dict[str, int | str]
    inputs: dict[str, Given]
    output: str | None
    row: specs.Row
    trace: Trace
    plan: Plan

    @property
    def nbytes(self) -> int:
        """Bytes of the output's data."""
        return prod(self.plan.output) * self.inputs["data"].dtype.itemsize


def infer(
    operator: str,
    arguments: dict[str, str],
    attribute: int = 0,
    reduction: str = "none",
    spec: str = "ndtool",
    dtype: str | None = None,
) -> Inference:
    """Infer the output of an operator from files and types such as `float32[8,128,64]`.

    arguments: by the standards' names. dtype: what elements stored as void are. Raises
    RuleError, with the trace so far, and DtypeError; both name what was given.
    """
    stdin = files.Stdin()
    inputs = {role: _given(argument, stdin) for role, argument in arguments.items()}
    if dtype is not None:
        for role in inputs.keys() - {"indices"}:
            given = inputs[role]
            inputs[role] = given._replace(dtype=dtypes.view_as(given.dtype, dtype))
    types = {role: given.dtype for role, given in inputs.items()}
    sizes = {role: given.shape for role, given in inputs.items()}
    try:
        row, trace, plan = specs.infer(operator, types, sizes, attribute, reduction, spec)
    except (RuleError, DtypeError) as exc:
        exc.places = tuple(f"{role} {given.described}" for role, given in inputs.items())
        raise
    attributes = _attributes(operator, attribute, reduction)
    return Inference(operator, spec, attributes, inputs, None, row, trace, plan)


def of_job(job: "Job") -> Inference:
    """Return what a run on files has inferred."""
    request = job.request
    return Inference(
        request.operator,
        request.spec,
        _attributes(request.operator, request.attribute, request.reduction),
        {
            role: Given(argument, job.operands.types[role], job.operands.shape(role))
            for role, argument in request.arguments.items()
        },
        request.output,
        job.row,
        job.trace,
        job.plan,
    )


def _attributes(operator: str, attribute: int, reduction: str) -> dict[str, int | str]:
    """Return the attributes that an operator has, by the standards' names."""
    result: dict[str, int | str] = {}
    if operator == "gather_nd":
        result["batch_dims"] = attribute
    elif operator != "scatter_nd":
        result["axis"] = attribute
    if operator.startswith("scatter"):
        result["reduction"] = reduction
    return result


def _given(argument: str, stdin: files.Stdin) -> Given:
    """Read `dtype[d0,d1,...]`, or the header of a file; a file of that name wins."""
    match = _TYPE.fullmatch(argument)
    if match and not os.path.lexists(argument):
        return Given(argument, dtypes.from_name(match[1]), _shape(argument, match[2]))
    entries = files.describe(argument, stdin)
    if len(entries) == 1 and (header := entries[0].header):
        return Given(argument, header.dtype, header.shape)
    with files.open_source(argument, stdin) as source:
        return Given(argument, source.dtype, source.shape)


def _shape(argument: str, sizes: str) -> Shape:
    shape = tuple(map(int, sizes.split(","))) if _SIZES.fullmatch(sizes) and sizes else ()
    if not _SIZES.fullmatch(sizes) or any(size > shapes.MOST for size in shape):
        raise UsageError(f"{printable(argument)}: expected a file or dtype[d0,d1,...]")
    if len(shape) > shapes.MOST_RANK:
        raise UsageError(f"{printable(argument)}: rank {len(shape)}: valid 0..{shapes.MOST_RANK}")
    return shape
