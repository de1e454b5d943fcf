"""Calls, plans, files and standards as text: lines, table rows, parts of JSON objects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ndtool.analysis.records import attributes_of, notes_of
from ndtool.arrays.source import MemberInfo, OperatorNode
from ndtool.errors import format_count, format_size, printable
from ndtool.rules.inference import Inference
from ndtool.rules.shapes import format_type
from ndtool.rules.specs import OperatorVersion
from ndtool.rules.symbols import Symbol
from ndtool.rules.trace import Trace

if TYPE_CHECKING:
    from ndtool.runs.plan import Plan

TRACE_COLUMNS = ("rule", "with", "result")
NODE_COLUMNS = ("node", "operator", "spec", "attributes", "inputs", "output")
NO_NODES = "The model has no gather or scatter nodes."
SPEC_COLUMNS = ("spec", "operator", "attributes", "indices", "data")
_TYPE_SIZES = ("8", "16", "32", "64")
_ABBREVIATIONS = tuple(
    (", ".join(word + size for size in sizes), f"{word}{sizes[0]}..{sizes[-1]}")
    for word, sizes in (
        ("uint", _TYPE_SIZES),
        ("int", _TYPE_SIZES),
        ("float", _TYPE_SIZES[1:]),
        ("complex", ("64", "128")),
    )
)


def format_duration(seconds: float) -> str:
    """Return a duration as text: 1.2 ms."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    minutes, remaining = divmod(round(seconds), 60)
    return f"{minutes} min {remaining} s" if minutes else f"{seconds:.3g} s"


def call_title(inference: Inference) -> str:
    """Return a call in one line: operator, inputs, attributes."""
    inputs = [
        f"{role} {format_type(argument.dtype, argument.shape)}"
        for role, argument in inference.inputs.items()
    ]
    values = attributes_of(inference)
    if len(values) > 1 and not values.get("batch_dims"):
        values.pop("batch_dims", None)
    attributes = [f"{name} {value}" for name, value in values.items()]
    return f"{inference.operator}: {', '.join(inputs + attributes)}"


def summary_lines(inference: Inference) -> list[str]:
    """Return a trace in three lines: inputs, the rule that gives the output's shape, output."""
    rule = inference.trace.output_step
    return [call_title(inference), f"{rule.rule} = {rule.numbers}", conclusion_lines(inference)[-1]]


def violated_rule_text(trace: Trace) -> str:
    """Return the violated rule, the last one of a trace, as a line of text."""
    rule, numbers, result, _ = trace.steps[-1]
    return f"{trace.operator}: {rule}: {numbers}: {result}"


def trace_rows(trace: Trace) -> list[tuple[str, ...]]:
    """Return the table rows of a trace."""
    return [(step.rule, step.numbers, step.result) for step in trace.steps]


def conclusion_lines(inference: Inference) -> list[str]:
    """Return lines with the assumptions and the output type, and its size unless symbolic."""
    assumed = [f"assumed: {sentence}" for sentence in inference.trace.assumptions]
    size = "" if isinstance(inference.nbytes, Symbol) else f", {format_size(inference.nbytes)}"
    return [*assumed, f"output {format_type(inference.dtype, inference.plan.output)}{size}"]


def plan_text(plan: Plan) -> str:
    """Return a run's plan as a line of text."""
    byte_counts = [
        f"{format_size(getattr(plan, kind))} {kind}" for kind in ("read", "written", "spilled")
    ]
    execution = plan.way
    if plan.partitioning is not None:
        execution += f", {format_count(plan.partitions, 'partition')}"
        execution += f", {format_count(plan.blocks, 'block')}"
    return (
        f"plan: {execution}; {', '.join(byte_counts)}, memory {format_size(plan.memory)};"
        f" {plan.reason}"
    )


def cost_lines(plan: Plan) -> list[str]:
    """Return the requests of an external plan as a line of text."""
    if plan.partitioning is None:
        return []
    counts = ", ".join(f"{count} {kind}" for kind, count in plan.requests.items()) or "none"
    return [f"requests: {counts}"]


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return a plan as a JSON object."""
    return {key: value for key, value in plan._asdict().items() if key != "partitioning"}


def resumed_text(resumed: dict[str, int]) -> str:
    """Return the numbers of resumed tasks by phase as a line of text."""
    counts = [format_count(count, f"{phase} task") for phase, count in resumed.items()]
    return f"resumed: {', '.join(counts)}"


def note_keys(members: list[MemberInfo]) -> tuple[str, ...]:
    """Return the keys of all format-specific metadata of the arrays, in order of appearance."""
    return tuple(
        dict.fromkeys(
            key for member in members if member.metadata for key in notes_of(member.metadata)
        )
    )


def array_row(member: MemberInfo, notes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the row of an array in `inspect`; format-specific metadata precede the last cell."""
    metadata, name, problem = member.metadata, printable(member.name), printable(member.problem)
    if metadata is None:
        reason = f"none: {problem.removeprefix(f'{name}: ')}"
        return (name, reason, "", "", *("" for _ in notes), "")
    big_endian = ", big-endian" if metadata.dtype.order == ">" else ""
    order = "Fortran" if metadata.order == "F" else "C"
    if metadata.block_shape != metadata.shape:
        order = f"chunks of {list(metadata.block_shape)}"
    return (
        name,
        metadata.description,
        order + big_endian,
        str(metadata.nbytes),
        *(_note_text(notes_of(metadata).get(key, "")) for key in notes),
        f"no: {problem.removeprefix('compressed with ')}" if problem else "yes",
    )


def _note_text(value: object) -> str:
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    return "" if value is None else printable(str(value))


def attributes_text(node: OperatorNode) -> str:
    """Return a node's attributes as text; `?` for a parameter of the node's ONNX function."""
    attributes = (
        (name, "?" if value is None else value) for name, value in node.attributes.items()
    )
    return ", ".join(f"{name} {value}" for name, value in attributes) or "-"


def node_row(node: OperatorNode) -> tuple[str, ...]:
    """Return the row of a node in `inspect`."""
    name = f"{node.model}:{node.node}"
    spec = "" if node.version is None else f"onnx:{node.version}"
    cells = (
        name,
        node.title,
        spec,
        attributes_text(node),
        ", ".join(node.inputs),
        node.output or "",
    )
    return tuple(map(printable, cells))


def spec_row(row: OperatorVersion) -> tuple[str, ...]:
    """Return the table row of a version of an operator in a standard."""
    reductions = f"reduction ({', '.join(row.reductions)})"
    attributes = [reductions if name == "reduction" else name for name in row.attributes]
    indices = _abbreviate_types(row.indices) + ("" if row.negatives else ", none negative")
    return (row.spec, row.title, ", ".join(attributes) or "-", indices, _abbreviate_types(row.data))


def _abbreviate_types(names: tuple[str, ...]) -> str:
    """Return element types as text, abbreviated: int8..64 for int8, int16, int32, int64."""
    text = ", ".join(names)
    for names_listed, abbreviated in _ABBREVIATIONS:
        text = text.replace(names_listed, abbreviated)
    return text
