"""Shape inference from the headers of files, or from types; the reports of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from ndtool.analysis.answers import Answer, Output, Typed, Value
from ndtool.analysis.typed import header_source
from ndtool.errors import argument_name, format_size
from ndtool.formats.streams import Streams
from ndtool.notebook import Table
from ndtool.rules import inference
from ndtool.rules.inference import Inference, Input
from ndtool.rules.operators import Attributes, operator_of
from ndtool.rules.plans import Shape
from ndtool.rules.trace import COLUMNS, Step, Symbol

if TYPE_CHECKING:
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.steps import Outcome


@dataclass(frozen=True, slots=True)
class Resolved(Value):
    """The resolved standard: its name, and the operator's name and version in it."""

    standard: str
    title: str
    version: int


@dataclass(frozen=True, slots=True)
class Inferred(Answer):
    """The inferred output of a call. trace: all rules. assumed: conditions on symbolic sizes."""

    OPTIONAL: ClassVar[tuple[str, ...]] = ("assumed",)
    operator: str
    spec: str
    resolved: Resolved
    attributes: Mapping[str, int | str]
    inputs: Mapping[str, Typed]
    output: Output
    trace: tuple[Step, ...]
    assumed: tuple[str, ...] | None = None

    @property
    def title(self) -> str:
        """The call in one line: operator, inputs, attributes."""
        inputs = [f"{role} {array.description}" for role, array in self.inputs.items()]
        values = dict(self.attributes)
        if len(values) > 1 and not values.get("batch_dims"):
            values.pop("batch_dims", None)
        attributes = [f"{name} {value}" for name, value in values.items()]
        return f"{self.operator}: {', '.join(inputs + attributes)}"

    @property
    def conclusion(self) -> str:
        """The type of the output, and its size unless it is symbolic."""
        size = "" if self.output.bytes is None else f", {format_size(self.output.bytes)}"
        return f"output {self.output.description}{size}"

    @property
    def summary(self) -> list[str]:
        """The call in three lines: inputs, the rule of the output's shape, the output."""
        rule = next(rule for rule in self.trace if rule.rule.startswith("output.shape = "))
        return [self.title, f"{rule.rule} = {rule.with_}", self.conclusion]

    def arrays(self) -> Table:
        """Return the table of inputs and output."""
        arrays = {**self.inputs, "output": self.output}
        names = {role: array.name and argument_name(array.name) for role, array in arrays.items()}
        if self.output.name == "-":
            names["output"] = "standard output"
        rows = [(role, names[role] or "", array.description) for role, array in arrays.items()]
        return Table("", ("array", "name", "type"), rows)

    def rules(self) -> Table:
        """Return the trace as a table."""
        return Table(self.title, COLUMNS, self.trace)

    def tables(self) -> list[Table]:
        """Return the trace, the assumptions and the output."""
        notes = [f"assumed: {condition}" for condition in self.assumed or ()]
        return [self.rules()._replace(notes=(*notes, self.conclusion))]


@dataclass(frozen=True, slots=True)
class OutOfBounds(Value):
    """Indices out of bounds in a run: the mode, how many tuples, the first."""

    rule: str
    count: int
    first: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport(Inferred):
    """The report of a run. resumed: the number of resumed tasks, by phase. seconds: its duration.

    plan: how it was executed, with bytes read, written, spilled, and of memory.
    """

    OPTIONAL: ClassVar[tuple[str, ...]] = ("assumed", "resumed", "out_of_bounds")
    resumed: Mapping[str, int] | None
    out_of_bounds: OutOfBounds | None
    seconds: float
    threads: int
    plan: Mapping[str, Any]
    dry_run: bool
    warnings: tuple[str, ...]


def inferred(call: Inference, output: str | None = None) -> Inferred:
    """Return an inference as an answer; output: the name of the output."""
    return Inferred(**_fields(call, Output(output, *_output_type(call))))


def _output_type(call: Inference) -> tuple[str, Any, int | None]:
    nbytes = None if isinstance(call.nbytes, Symbol) else call.nbytes
    return call.dtype.name, _sizes(call.plan.output), nbytes


def _fields(call: Inference, output: Output) -> dict[str, Any]:
    row, operator = call.row, operator_of(call.operator)
    return {
        "operator": call.operator,
        "spec": call.spec,
        "resolved": Resolved(row.standard, row.title, row.version),
        "attributes": operator.attribute_values(call.attributes),
        "inputs": {
            role: Typed(argument.name, argument.dtype.name, _sizes(argument.shape))
            for role, argument in call.inputs.items()
        },
        "output": output,
        "trace": call.trace.steps,
    }


def _sizes(shape: Shape) -> tuple[int | str, ...]:
    return tuple(str(size) if isinstance(size, Symbol) else size for size in shape)


def run_report(call: OpenCall, outcome: Outcome, seconds: float, dry_run: bool) -> RunReport:
    """Return the report of a run."""
    mode, bounds = call.inference.attributes.out_of_bounds, outcome.bounds_report
    outside = None
    if mode != "error":
        count, first = (bounds.count, bounds.first()) if bounds else (0, None)
        outside = OutOfBounds(mode, count, first)
    plan = {name: value for name, value in outcome.plan._asdict().items() if name != "partitioning"}
    output = Output(call.request.output, *_output_type(call.reported), outcome.preserved)
    return RunReport(
        **_fields(call.reported, output),
        resumed=outcome.resumed if call.request.resume else None,
        out_of_bounds=outside,
        seconds=seconds,
        threads=call.threads,
        plan=plan,
        dry_run=dry_run,
        warnings=outcome.warnings,
    )


def infer(
    operator: str,
    arguments: dict[str, str],
    attributes: Attributes = Attributes(),  # noqa: B008 - a value that never changes
    spec: str = "ndtool",
    dtype: str | None = None,
    types: Mapping[str, Input] | None = None,
) -> Inferred:
    """Infer the output of an operator from files and types such as `float32[8,128,64]`.

    arguments: files and types by the standards' names. A type's sizes may be symbolic, as in
    `float32[N,64]`; the trace lists what is then assumed. dtype: the actual dtype of void-typed
    data. types: inputs of known types, by role. Raises RuleError, with the trace so far, and
    DtypeError; both mention the arguments.
    """
    streams = Streams()
    inputs, types = dict[str, Input](), types or {}
    for role in operator_of(operator).inputs:
        if role in types:
            inputs[role] = types[role]
        if role not in arguments:
            continue
        argument = arguments[role]
        data = next(iter(inputs.values())).dtype if role.startswith("update") else None
        literals = role.endswith("indices")
        source = header_source(argument, streams, literals=literals, dtype=data, symbols=True)
        inputs[role] = Input(argument, source.metadata.dtype, source.metadata.shape)
    call = inference.infer(operator, inputs, attributes, spec, dtype)
    return replace(inferred(call), assumed=call.trace.assumptions)
