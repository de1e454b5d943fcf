"""JSON objects of answers, which the option --json prints and functions in Python return."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

from ndtool import __version__
from ndtool.arrays.source import ArrayMetadata, MemberInfo, OperatorNode
from ndtool.rules.inference import Inference
from ndtool.rules.operators import operator_of
from ndtool.rules.plans import ElementsPlan, Plan, Shape
from ndtool.rules.symbols import Symbol
from ndtool.rules.trace import Trace

if TYPE_CHECKING:
    from ndtool.analysis.engines import EngineReport
    from ndtool.analysis.explain import Element, Origin
    from ndtool.analysis.model import ModelNode
    from ndtool.analysis.model import Outcome as ModelOutcome
    from ndtool.analysis.stats import Stats
    from ndtool.analysis.verify import Comparison, Difference
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.convert import Conversion
    from ndtool.runs.steps import Outcome

_BYTE_ORDERS = {"<": "little", ">": "big"}


def has_plain_indices(plan: Plan) -> bool:
    """Whether an index is an integer, not a tuple."""
    return isinstance(plan, ElementsPlan) or plan.has_scalar_indices


def attributes_of(inference: Inference) -> dict[str, int | str]:
    """Return the attributes of a call that its operator has."""
    return operator_of(inference.operator).attribute_values(inference.attributes)


def trace_records(trace: Trace) -> list[dict[str, str]]:
    """Return a trace as JSON objects."""
    return [
        {"rule": step.rule, "with": step.numbers, "result": step.result} for step in trace.steps
    ]


def inference_record(inference: Inference, output: str | None = None) -> dict[str, Any]:
    """Return an inference as a JSON object; output: the name of the output."""
    row = inference.row
    return {
        "version": __version__,
        "operator": inference.operator,
        "spec": inference.spec,
        "resolved": {"standard": row.standard, "title": row.title, "version": row.version},
        "attributes": attributes_of(inference),
        "inputs": {
            role: {
                "name": argument.name,
                "dtype": argument.dtype.name,
                "shape": _sizes(argument.shape),
            }
            for role, argument in inference.inputs.items()
        },
        "output": {
            "name": output,
            "dtype": inference.dtype.name,
            "shape": _sizes(inference.plan.output),
            "bytes": None if isinstance(inference.nbytes, Symbol) else inference.nbytes,
        },
        "trace": trace_records(inference.trace),
    }


def _sizes(shape: Shape) -> list[int | str]:
    return [str(size) if isinstance(size, Symbol) else size for size in shape]


def conversion_record(
    conversion: Conversion, preserved: tuple[str, ...] | None, seconds: float
) -> dict[str, Any]:
    """Return the answer of `convert` as a JSON object; preserved: the preserved members."""
    source_metadata, metadata, request = (
        conversion.source.metadata,
        conversion.metadata,
        conversion.request,
    )
    output = {
        "name": request.output,
        "dtype": conversion.output.stored_dtype.name,
        "shape": metadata.shape,
        "bytes": metadata.nbytes,
    }
    return {
        "version": __version__,
        "source": {
            "name": request.source,
            "dtype": source_metadata.dtype.name,
            "shape": source_metadata.shape,
            "order": source_metadata.order,
        },
        "output": output if preserved is None else {**output, "kept": preserved},
        "seconds": seconds,
        "warnings": conversion.warnings,
    }


def run_record(call: OpenCall, outcome: Outcome) -> dict[str, Any]:
    """Return a run as a JSON object: the inference, resumed tasks, the bounds report."""
    record = inference_record(call.reported, call.request.output)
    if outcome.preserved is not None:
        record["output"]["kept"] = outcome.preserved
    if call.request.resume:
        record["resumed"] = outcome.resumed
    mode, bounds_report = call.inference.attributes.out_of_bounds, outcome.bounds_report
    if mode == "error":
        return record
    count, first = (bounds_report.count, bounds_report.first()) if bounds_report else (0, None)
    return {**record, "out_of_bounds": {"rule": mode, "count": count, "first": first}}


def member_record(info: MemberInfo) -> dict[str, Any]:
    """Return info on a file or member as a JSON object; most keys are null if it is no array."""
    metadata = info.metadata
    properties: dict[str, Any] = dict.fromkeys(
        ("dtype", "byte_order", "shape", "order", "chunks", "bytes", "npy_version", "offset")
    )
    if metadata is not None:
        properties |= {
            "dtype": metadata.dtype.name,
            "byte_order": _BYTE_ORDERS.get(metadata.dtype.order),
            "shape": metadata.shape,
            "order": metadata.order,
            "chunks": None if metadata.block_shape == metadata.shape else metadata.block_shape,
            "bytes": metadata.nbytes,
            **notes_of(metadata),
        }
    return {
        "name": info.name,
        "member": info.member,
        **properties,
        "mappable": info.position is not None,
        "position": info.position,
        "file_size": info.file_size,
        "problem": info.problem or None,
        "warning": info.warning,
    }


def notes_of(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the format-specific metadata of an array, with those of chunks if it has any."""
    if metadata.layout is None:
        return metadata.notes
    chunks, shards, codecs, _ = metadata.layout
    layout_record = {"chunks": list(chunks), "shards": shards and list(shards)}
    return {**metadata.notes, **layout_record, "codecs": ", ".join(codecs) or "none"}


def explanation_record(
    call: OpenCall, elements: list[Element], origins: list[Origin], single: bool
) -> dict[str, Any]:
    """Return an explanation as a JSON object with iterators for lists of any length.

    single: whether only one element is explained.
    """
    records = chain(map(_element_record, elements), map(_origin_record, origins))
    fields = next(records) if single else {"explained": records}
    return {"version": __version__, "operator": call.reported.operator, **fields}


def _element_record(element: Element) -> dict[str, Any]:
    return {
        "at": element.position,
        "value": _json_value(element.value),
        "updates": element.updates,
        "steps": (
            {
                "role": step.role,
                "position": step.position,
                "value": _json_value(step.value),
                "indices": step.indices,
                "tuple": None if step.indices is None else step.stored,
                "result": _json_value(step.result),
            }
            for step in element.steps
        ),
    }


def _origin_record(origin: Origin) -> dict[str, Any]:
    return {
        "from": origin.position,
        "value": _json_value(origin.value),
        "outputs": (copy.position for copy in origin.outputs),
        "count": origin.total,
        "updates": origin.element.updates if origin.element else 0,
    }


def _json_value(value: Any) -> bool | int | float | str | None:
    """Return the element of a 0-d array as a JSON value; None stays None."""
    from ndtool.analysis import values

    return None if value is None else values.json_value(value)


def stats_record(call: OpenCall, stats: Stats) -> dict[str, Any]:
    """Return statistics as a JSON object."""
    from ndtool.analysis.stats import causes

    has_scalar_indices = has_plain_indices(call.inference.plan)
    return {
        "version": __version__,
        "operator": call.reported.operator,
        "tuples": stats.tuples,
        "components": [
            {key: value for key, value in component._asdict().items() if key != "lowest_valid"}
            for component in stats.components
        ],
        "out_of_bounds": stats.out_of_bounds,
        "first_out_of_bounds": [
            {**index._asdict(), "component": None if has_scalar_indices else index.component}
            for index in stats.first_out_of_bounds
        ],
        "hints": causes(stats, call.inference.inputs["indices"].dtype),
        "sorted": stats.sorted,
        "runs": stats.slice_grid,
        "distinct": stats.distinct,
        "duplicated": stats.duplicated,
        "most": [
            {"row": frequent.row, "count": frequent.frequency, "tuples": frequent.tuples}
            for frequent in stats.most_frequent
        ],
        "bytes_touched": stats.bytes_touched,
        "pages_touched": stats.pages_touched,
        "bytes_of_data": bytes_of_data(call),
        "histogram": {"runs": stats.bin_width, "tuples": stats.histogram},
    }


def bytes_of_data(call: OpenCall) -> int:
    """Return the size of data in bytes."""
    data = call.inference.inputs["data"]
    return prod(data.shape) * data.dtype.itemsize


def comparison_record(comparison: Comparison | None) -> dict[str, Any]:
    """Return the comparison of an output as a JSON object, empty if there is none."""
    if comparison is None:
        return {}
    return {
        "equal": comparison.total - comparison.different,
        "different": comparison.different,
        "total": comparison.total,
        "first": _difference_record(comparison.first),
        "largest": _difference_record(comparison.largest),
        "ulps": comparison.ulps,
        "examined": comparison.examined,
        "lost_updates": comparison.lost,
        "doubled_updates": comparison.doubled,
        "compared_otherwise": comparison.otherwise,
        "cause": comparison.cause,
        "within": comparison.within,
    }


def _difference_record(difference: Difference | None) -> dict[str, Any] | None:
    if difference is None:
        return None
    values = {
        "output": _json_value(difference.output),
        "expected": _json_value(difference.expected),
    }
    return {**difference._asdict(), **values}


def engine_records(reports: Sequence[EngineReport]) -> list[dict[str, Any]]:
    """Return reports as JSON objects."""
    records = [report._asdict() for report in reports]
    return [{**comparison_record(record.pop("comparison")), **record} for record in records]


def node_record(model_node: ModelNode) -> dict[str, Any]:
    """Return a node as a JSON object."""
    node = model_node.node
    output = model_node.actual_output or model_node.output
    record: dict[str, Any] = {
        "node": node.node,
        "operator": node.operator,
        "title": node.title,
        "version": model_node.version,
        "opset": node.version,
        "attributes": node.attributes,
        "inputs": {
            role: {"name": name, "dtype": declared.dtype, "shape": declared.shape}
            for role, (name, declared) in model_node.inputs.items()
        },
        "output": {"name": node.output, "dtype": output.dtype, "shape": output.shape},
        "assumed": model_node.assumed if model_node.actual_output is None else (),
        "problem": model_node.problem,
    }
    if model_node.runs is not None:
        record |= {"runs": model_node.runs, "engines": engine_records(model_node.reports)}
    if model_node.saved is not None:
        record["saved"] = model_node.saved
    return record


def infer_record(inference: Inference) -> dict[str, Any]:
    """Return the answer of `infer` as a JSON object."""
    return {**inference_record(inference), "assumed": inference.trace.assumptions}


def verification_record(
    name: str | None, comparison: Comparison | None, reports: Sequence[EngineReport] | None = None
) -> dict[str, Any]:
    """Return the answer of `verify` as a JSON object; reports: on other engines, if requested."""
    record = {
        "version": __version__,
        "output": name,
        "verified": True,
        **comparison_record(comparison),
    }
    return record if reports is None else {**record, "engines": engine_records(reports)}


def inspection_record(
    members: Sequence[MemberInfo], nodes: Sequence[OperatorNode]
) -> dict[str, Any]:
    """Return the answer of `inspect` as a JSON object."""
    arrays = [member_record(member) for member in members]
    return {"version": __version__, "arrays": arrays, "nodes": [node._asdict() for node in nodes]}


def model_record(outcome: ModelOutcome) -> dict[str, Any]:
    """Return the answer of `model` as a JSON object."""
    return {
        "version": __version__,
        "nodes": [node_record(node) for node in outcome.nodes],
        "computed": [item._asdict() for item in outcome.computed],
        "warnings": outcome.warnings,
    }
