"""Runs, files and specs as JSON objects and as table cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ndtool import __version__
from ndtool.arrays.source import ArrayMetadata, MemberInfo, OperatorNode
from ndtool.errors import printable
from ndtool.rules.inference import Inference
from ndtool.rules.operators import operator_of
from ndtool.rules.plans import Shape
from ndtool.rules.shapes import described
from ndtool.rules.specs import Row
from ndtool.rules.symbols import Symbol
from ndtool.rules.trace import Trace

if TYPE_CHECKING:
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.convert import Conversion
    from ndtool.runs.plan import Plan
    from ndtool.runs.steps import Outcome

TRACE_COLUMNS = ("rule", "with", "result")
NODE_COLUMNS = ("node", "operator", "spec", "attributes", "inputs", "output")
NO_NODES = "The model has no gather or scatter nodes."
SPEC_COLUMNS = ("spec", "operator", "attributes", "indices", "data")
_SIZES = ("8", "16", "32", "64")
_RANGES = tuple(
    (", ".join(word + size for size in sizes), f"{word}{sizes[0]}..{sizes[-1]}")
    for word, sizes in (
        ("uint", _SIZES),
        ("int", _SIZES),
        ("float", _SIZES[1:]),
        ("complex", ("64", "128")),
    )
)
_BYTE_ORDERS = {"<": "little", ">": "big"}


def sized(count: int) -> str:
    """Return a size as text: 10.2 kB."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    units = ["kB", "MB", "GB", "TB", "PB"]
    size = count / 1000
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


def lasted(seconds: float) -> str:
    """Return a duration as text: 1.2 ms."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.3g} s"


def title(inference: Inference) -> str:
    """Return a call in one line, the title of its trace."""
    inputs = [f"{role} {described(g.dtype, g.shape)}" for role, g in inference.inputs.items()]
    given = _attributes(inference)
    if len(given) > 1 and not given.get("batch_dims"):
        given.pop("batch_dims", None)
    attributes = [f"{name} {value}" for name, value in given.items()]
    return f"{inference.operator}: {', '.join(inputs + attributes)}"


def _attributes(inference: Inference) -> dict[str, int | str]:
    return operator_of(inference.operator).given(inference.attributes)


def aligned(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table as plain text, one line per row."""
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "\n".join(padded) + "\n"


def trace_cells(trace: Trace) -> list[tuple[str, ...]]:
    """Return the table rows of a trace."""
    return [(step.rule, step.numbers, step.result) for step in trace.steps]


def steps(trace: Trace) -> list[dict[str, str]]:
    """Return a trace as JSON objects."""
    return [{"rule": s.rule, "with": s.numbers, "result": s.result} for s in trace.steps]


def inference_record(inference: Inference, output: str | None = None) -> dict[str, Any]:
    """Return an inference as a JSON object; output: the name of the output."""
    row = inference.row
    return {
        "version": __version__,
        "operator": inference.operator,
        "spec": inference.spec,
        "resolved": {"standard": row.standard, "title": row.title, "version": row.version},
        "attributes": _attributes(inference),
        "inputs": {
            role: {"name": given.name, "dtype": given.dtype.name, "shape": _sizes(given.shape)}
            for role, given in inference.inputs.items()
        },
        "output": {
            "name": output,
            "dtype": inference.dtype.name,
            "shape": _sizes(inference.plan.output),
            "bytes": None if isinstance(inference.nbytes, Symbol) else inference.nbytes,
        },
        "trace": steps(inference.trace),
    }


def concluded(inference: Inference) -> list[str]:
    """Return the conditions assumed, and the output, without bytes if sizes are symbolic."""
    assumed = [f"assumed: {sentence}" for sentence in inference.trace.assumed]
    size = "" if isinstance(inference.nbytes, Symbol) else f", {sized(inference.nbytes)}"
    return [*assumed, f"output {described(inference.dtype, inference.plan.output)}{size}"]


def _sizes(shape: Shape) -> list[int | str]:
    return [str(size) if isinstance(size, Symbol) else size for size in shape]


def conversion_record(conversion: Conversion, kept: tuple[str, ...] | None) -> dict[str, Any]:
    """Return a conversion as a JSON object; kept: the preserved members."""
    origin, metadata, request = conversion.source.metadata, conversion.metadata, conversion.request
    output = {
        "name": request.output,
        "dtype": conversion.output.stored.name,
        "shape": metadata.shape,
        "bytes": metadata.nbytes,
    }
    return {
        "version": __version__,
        "source": {
            "name": request.source,
            "dtype": origin.dtype.name,
            "shape": origin.shape,
            "order": origin.order,
        },
        "output": output if kept is None else {**output, "kept": kept},
    }


def run_record(call: OpenCall, outcome: Outcome) -> dict[str, Any]:
    """Return a run as a JSON object: the inference, resumed tasks, the bounds report."""
    record = inference_record(call.asked, call.request.output)
    if outcome.preserved is not None:
        record["output"]["kept"] = outcome.preserved
    if call.request.resume:
        record["resumed"] = outcome.resumed
    rule, outside = call.inference.attributes.out_of_bounds, outcome.outside
    if rule == "error":
        return record
    count, first = (outside.count, outside.first()) if outside else (0, None)
    return {**record, "out_of_bounds": {"rule": rule, "count": count, "first": first}}


def planned(plan: Plan) -> str:
    """Return a run's plan as a line of text."""
    tasks = [f"{count} {phase}" for phase, count in plan.tasks.items()]
    moved = [f"{sized(getattr(plan, what))} {what}" for what in ("read", "written", "spilled")]
    way = f"{plan.way}, tasks: {', '.join(tasks)}" if tasks else plan.way
    return f"plan: {way}; {', '.join(moved)}, memory {sized(plan.memory)}; {plan.reason}"


def resumed(taken: dict[str, int], tasks: dict[str, int]) -> str:
    """Return the numbers of resumed tasks, and of all, as a line of text."""
    counts = [f"{taken[phase]} of {tasks[phase]} {phase} tasks" for phase in taken]
    return f"resumed: {', '.join(counts)}"


def entry_record(entry: MemberInfo) -> dict[str, Any]:
    """Return a file's or member's info as a JSON object; most keys are null if it is no array."""
    metadata = entry.metadata
    known: dict[str, Any] = dict.fromkeys(
        ("dtype", "byte_order", "shape", "order", "chunks", "bytes", "npy_version", "offset")
    )
    if metadata is not None:
        known |= {
            "dtype": metadata.dtype.name,
            "byte_order": _BYTE_ORDERS.get(metadata.dtype.order),
            "shape": metadata.shape,
            "order": metadata.order,
            "chunks": None if metadata.grid == metadata.shape else metadata.grid,
            "bytes": metadata.nbytes,
            **_notes(metadata),
        }
    return {
        "name": entry.name,
        "member": entry.member,
        **known,
        "mappable": entry.position is not None,
        "position": entry.position,
        "file_size": entry.file_size,
        "problem": entry.problem or None,
        "warning": entry.warning,
    }


def notes_of(entries: list[MemberInfo]) -> tuple[str, ...]:
    """Return the keys of all format-specific metadata, in order."""
    return tuple(
        dict.fromkeys(key for entry in entries if entry.metadata for key in _notes(entry.metadata))
    )


def _notes(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the format-specific metadata of an array, with its chunks."""
    if metadata.layout is None:
        return metadata.notes
    chunks, shards, codecs, _ = metadata.layout
    listed = {"chunks": list(chunks), "shards": shards and list(shards)}
    return {**metadata.notes, **listed, "codecs": ", ".join(codecs) or "none"}


def entry_cells(entry: MemberInfo, notes: tuple[str, ...]) -> tuple[str, ...]:
    """Return a row of `inspect`, with format-specific metadata before the last cell."""
    metadata, name, problem = entry.metadata, printable(entry.name), printable(entry.problem)
    if metadata is None:
        reason = f"none: {problem.removeprefix(f'{name}: ')}"
        return (name, reason, "", "", *("" for _ in notes), "")
    big = ", big-endian" if metadata.dtype.order == ">" else ""
    order = "Fortran" if metadata.order == "F" else "C"
    if metadata.grid != metadata.shape:
        order = f"chunks of {list(metadata.grid)}"
    return (
        name,
        metadata.described,
        order + big,
        str(metadata.nbytes),
        *(_note(_notes(metadata).get(key, "")) for key in notes),
        f"no: {problem.removeprefix('compressed with ')}" if problem else "yes",
    )


def _note(value: object) -> str:
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    return "" if value is None else printable(str(value))


def attributes(node: OperatorNode) -> str:
    """Return a node's attributes as text; `?` for a parameter of its function."""
    given = ((name, "?" if value is None else value) for name, value in node.attributes.items())
    return ", ".join(f"{name} {value}" for name, value in given) or "-"


def node_cells(node: OperatorNode) -> tuple[str, ...]:
    """Return a row of the node table of `inspect`."""
    name = f"{node.model}:{node.node}"
    spec = "" if node.version is None else f"onnx:{node.version}"
    cells = (name, node.title, spec, attributes(node), ", ".join(node.inputs), node.output or "")
    return tuple(map(printable, cells))


def spec_cells(row: Row) -> tuple[str, ...]:
    """Return a row of `spec`."""
    reductions = f"reduction ({', '.join(row.reductions)})"
    attributes = [reductions if name == "reduction" else name for name in row.attributes]
    indices = _ranges(row.indices) + ("" if row.negatives else ", none negative")
    return (spec_name(row), row.title, ", ".join(attributes) or "-", indices, _ranges(row.data))


def spec_name(row: Row) -> str:
    """Return the value of --spec for a row."""
    return row.spec


def _ranges(names: tuple[str, ...]) -> str:
    """Return types abbreviated: int8..64 for int8, int16, int32, int64."""
    text = ", ".join(names)
    for listed, short in _RANGES:
        text = text.replace(listed, short)
    return text
