"""Runs, files and specs as the objects that JSON prints, and as the cells of tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ndtool import __version__
from ndtool.arrays.source import Entry, OperatorNode
from ndtool.errors import printable, redacted
from ndtool.rules.inference import Inference
from ndtool.rules.operators import OPERATORS
from ndtool.rules.shapes import Shape, described
from ndtool.rules.specs import Row
from ndtool.rules.symbols import Symbol
from ndtool.rules.trace import Trace

if TYPE_CHECKING:
    from ndtool.runs.convert import Conversion
    from ndtool.runs.jobs import Job
    from ndtool.runs.plan import Plan

TRACE_COLUMNS = ("rule", "with", "result")
NODE_COLUMNS = ("node", "operator", "spec", "attributes", "inputs", "output")
NO_NODES = "The model has no node of our operators."
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
    """Return bytes as people read them: 10.2 kB."""
    if count < 1000:
        return "1 byte" if count == 1 else f"{count} bytes"
    units = ["kB", "MB", "GB", "TB", "PB"]
    size = count / 1000
    while size >= 999.5 and len(units) > 1:
        size /= 1000
        del units[0]
    return f"{size:.3g} {units[0]}" if size < 1000 else f"{size:.0f} {units[0]}"


def lasted(seconds: float) -> str:
    """Return a time as people read it: 1.2 ms."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{seconds:.3g} s"


def title(inference: Inference) -> str:
    """Return the call that a trace explains, in one line."""
    inputs = [f"{role} {described(g.dtype, g.shape)}" for role, g in inference.inputs.items()]
    attributes = [f"{name} {value}" for name, value in _attributes(inference).items()]
    return f"{inference.operator}: {', '.join(inputs + attributes)}"


def _attributes(inference: Inference) -> dict[str, int | str]:
    return OPERATORS[inference.operator].given(inference.attributes)


def aligned(columns: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Return a table in plain text, every row in one line."""
    lines = [columns, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)
    return "\n".join(padded) + "\n"


def trace_cells(trace: Trace) -> list[tuple[str, ...]]:
    """Return the rows of a trace."""
    return [(step.rule, step.numbers, step.result) for step in trace.steps]


def steps(trace: Trace) -> list[dict[str, str]]:
    """Return a trace for JSON."""
    return [{"rule": s.rule, "with": s.numbers, "result": s.result} for s in trace.steps]


def inference_record(inference: Inference, output: str | None = None) -> dict[str, Any]:
    """Return what was inferred, for JSON; output: where it goes."""
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
            "name": output and redacted(output),
            "dtype": inference.dtype.name,
            "shape": _sizes(inference.plan.output),
            "bytes": None if isinstance(inference.nbytes, Symbol) else inference.nbytes,
        },
        "trace": steps(inference.trace),
    }


def inferred_record(inference: Inference) -> dict[str, Any]:
    """Return the same, for JSON, of a call whose sizes may have names."""
    return {**inference_record(inference), "assumed": inference.trace.assumed}


def concluded(inference: Inference) -> list[str]:
    """Return what is assumed, and the output; its bytes are left out where sizes have names."""
    assumed = [f"assumed: {sentence}" for sentence in inference.trace.assumed]
    size = "" if isinstance(inference.nbytes, Symbol) else f", {sized(inference.nbytes)}"
    return [*assumed, f"output {described(inference.dtype, inference.plan.output)}{size}"]


def _sizes(shape: Shape) -> list[int | str]:
    return [str(size) if isinstance(size, Symbol) else size for size in shape]


def conversion_record(conversion: Conversion, kept: tuple[str, ...] | None) -> dict[str, Any]:
    """Return what was copied where, for JSON; kept: the members that stay."""
    origin, facts, request = conversion.source.facts, conversion.facts, conversion.request
    output = {
        "name": request.output,
        "dtype": conversion.stored.name,
        "shape": facts.shape,
        "bytes": facts.nbytes,
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


def run_record(job: Job) -> dict[str, Any]:
    """Return what was inferred for a run, for JSON, what of another one was taken up, and what
    became of indices out of bounds."""
    record = inference_record(job.inference, job.request.output)
    if job.request.resume:
        record["resumed"] = job.resumed
    rule, outside = job.inference.attributes.out_of_bounds, job.outside
    if rule == "error":
        return record
    count, first = (outside.count, outside.first()) if outside else (0, None)
    return {**record, "out_of_bounds": {"rule": rule, "count": count, "first": first}}


def plan_record(plan: Plan) -> dict[str, Any]:
    """Return how a run is done, for JSON."""
    return {key: value for key, value in plan._asdict().items() if key != "cut"}


def planned(plan: Plan) -> str:
    """Return how a run is done, in a line for people."""
    tasks = [f"{count} to {phase}" for phase, count in plan.tasks.items()]
    moved = [f"{sized(getattr(plan, what))} {what}" for what in ("read", "written", "spilled")]
    way = f"{plan.way}: {', '.join(tasks)}" if tasks else plan.way
    return f"plan: {way}; {', '.join(moved)}, memory {sized(plan.memory)}; {plan.reason}"


def resumed(taken: dict[str, int], tasks: dict[str, int]) -> str:
    """Return how many tasks are taken up, of how many, in a line for people."""
    counts = [f"{taken[phase]} of {tasks[phase]} tasks to {phase}" for phase in taken]
    return f"taken up: {', '.join(counts)}"


def entry_record(entry: Entry) -> dict[str, Any]:
    """Return what a file or member holds, for JSON; where it is no array, most keys are null."""
    facts = entry.facts
    known: dict[str, Any] = dict.fromkeys(
        ("dtype", "byte_order", "shape", "order", "chunks", "bytes", "npy_version", "offset")
    )
    if facts is not None:
        known |= {
            "dtype": facts.dtype.name,
            "byte_order": _BYTE_ORDERS.get(facts.dtype.order),
            "shape": facts.shape,
            "order": facts.order,
            "chunks": None if facts.grid == facts.shape else facts.grid,
            "bytes": facts.nbytes,
            **facts.notes,
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


def notes_of(entries: list[Entry]) -> tuple[str, ...]:
    """Return what the formats of arrays note of them, in order."""
    return tuple(
        dict.fromkeys(key for entry in entries if entry.facts for key in entry.facts.notes)
    )


def note_title(key: str) -> str:
    """Return the title of a column: `npy` for npy_version."""
    return key.removesuffix("_version").removesuffix("_type")


def entry_cells(entry: Entry, notes: tuple[str, ...]) -> tuple[str, ...]:
    """Return a row of `inspect`: what formats note stands in the middle."""
    facts, name, problem = entry.facts, printable(entry.name), printable(entry.problem)
    if facts is None:
        reason = f"none: {problem.removeprefix(f'{name}: ')}"
        return (name, reason, "", "", *("" for _ in notes), "")
    big = ", big-endian" if facts.dtype.order == ">" else ""
    order = "Fortran" if facts.order == "F" else "C"
    if facts.grid != facts.shape:
        order = f"chunks of {list(facts.grid)}"
    return (
        name,
        facts.described,
        order + big,
        str(facts.nbytes),
        *(_note(facts.notes.get(key, "")) for key in notes),
        f"no: {problem.removeprefix('compressed with ')}" if problem else "yes",
    )


def _note(value: object) -> str:
    if isinstance(value, tuple):
        return ".".join(map(str, value))
    return "" if value is None else printable(str(value))


def attributes(node: OperatorNode) -> str:
    """Return the attributes of a node; `?` for one that is a parameter of its function."""
    given = ((name, "?" if value is None else value) for name, value in node.attributes.items())
    return ", ".join(f"{name} {value}" for name, value in given) or "-"


def node_cells(node: OperatorNode) -> tuple[str, ...]:
    """Return a row of the nodes that `inspect` shows."""
    name = f"{node.model}:{node.node}"
    spec = "" if node.version is None else f"onnx:{node.version}"
    cells = (name, node.title, spec, attributes(node), ", ".join(node.inputs), node.output or "")
    return tuple(map(printable, cells))


def spec_record(row: Row) -> dict[str, Any]:
    """Return a row of the table of specs, for JSON."""
    return {"spec": _spec_name(row), **row._asdict()}


def spec_cells(row: Row) -> tuple[str, ...]:
    """Return a row of `spec`."""
    reductions = f"reduction ({', '.join(row.reductions)})"
    attributes = [reductions if name == "reduction" else name for name in row.attributes]
    indices = _ranges(row.indices) + ("" if row.negatives else ", none negative")
    return (_spec_name(row), row.title, ", ".join(attributes) or "-", indices, _ranges(row.data))


def _spec_name(row: Row) -> str:
    return row.standard if row.standard == "ndtool" else f"{row.standard}:{row.version}"


def _ranges(names: tuple[str, ...]) -> str:
    """Return types in a short form: int8..64 for int8, int16, int32, int64."""
    text = ", ".join(names)
    for listed, short in _RANGES:
        text = text.replace(listed, short)
    return text
