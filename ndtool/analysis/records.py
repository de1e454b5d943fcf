"""Answers as JSON objects, which the option --json prints and Python's functions return."""

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
    from ndtool.analysis.engines import Report
    from ndtool.analysis.explain import Element, Origin
    from ndtool.analysis.model import ModelNode
    from ndtool.analysis.stats import Stats
    from ndtool.analysis.verify import Comparison, Difference
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.convert import Conversion
    from ndtool.runs.steps import Outcome

_BYTE_ORDERS = {"<": "little", ">": "big"}


def has_plain_indices(plan: Plan) -> bool:
    """Whether an index is one integer, not a tuple."""
    return isinstance(plan, ElementsPlan) or plan.plain


def attributes_of(inference: Inference) -> dict[str, int | str]:
    """Return the attributes of a call that its operator has."""
    return operator_of(inference.operator).given(inference.attributes)


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
        "attributes": attributes_of(inference),
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
    record = inference_record(call.reported, call.request.output)
    if outcome.preserved is not None:
        record["output"]["kept"] = outcome.preserved
    if call.request.resume:
        record["resumed"] = outcome.resumed
    rule, outside = call.inference.attributes.out_of_bounds, outcome.outside
    if rule == "error":
        return record
    count, first = (outside.count, outside.first()) if outside else (0, None)
    return {**record, "out_of_bounds": {"rule": rule, "count": count, "first": first}}


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
            **notes_of(metadata),
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


def notes_of(metadata: ArrayMetadata) -> dict[str, Any]:
    """Return the format-specific metadata of an array, with its chunks."""
    if metadata.layout is None:
        return metadata.notes
    chunks, shards, codecs, _ = metadata.layout
    listed = {"chunks": list(chunks), "shards": shards and list(shards)}
    return {**metadata.notes, **listed, "codecs": ", ".join(codecs) or "none"}


def explained_record(
    call: OpenCall, elements: list[Element], origins: list[Origin], single: bool
) -> dict[str, Any]:
    """Return an explanation as a JSON object, with iterators for long lists.

    single: whether the answer is about one element.
    """
    listed = chain(map(_element_record, elements), map(_origin_record, origins))
    answer_texts = next(listed) if single else {"explained": listed}
    return {"version": __version__, "operator": call.reported.operator, **answer_texts}


def _element_record(element: Element) -> dict[str, Any]:
    return {
        "at": element.at,
        "value": _plain(element.value),
        "updates": element.updates,
        "steps": (
            {
                "role": step.role,
                "position": step.position,
                "value": _plain(step.value),
                "indices": step.indices,
                "tuple": None if step.indices is None else step.named,
                "result": _plain(step.result),
            }
            for step in element.steps
        ),
    }


def _origin_record(origin: Origin) -> dict[str, Any]:
    return {
        "from": origin.position,
        "value": _plain(origin.value),
        "outputs": (copy.at for copy in origin.outputs),
        "count": origin.total,
        "updates": origin.element.updates if origin.element else 0,
    }


def _plain(value: Any) -> bool | int | float | str | None:
    """Return the element of a 0-d array as a JSON value; None stays None."""
    from ndtool.analysis import values

    return None if value is None else values.plain(value)


def stats_record(call: OpenCall, found: Stats) -> dict[str, Any]:
    """Return statistics as a JSON object."""
    from ndtool.analysis.stats import causes

    alone = has_plain_indices(call.inference.plan)
    return {
        "version": __version__,
        "operator": call.reported.operator,
        "tuples": found.tuples,
        "components": [_without(one._asdict(), "first") for one in found.components],
        "out_of_bounds": found.out_of_bounds,
        "first_out_of_bounds": [
            {**one._asdict(), "component": None if alone else one.component} for one in found.beyond
        ],
        "hints": causes(found, call.inference.inputs["indices"].dtype),
        "sorted": found.ascending,
        "runs": found.runs,
        "distinct": found.distinct,
        "duplicated": found.duplicated,
        "most": [{"row": one.row, "count": one.times, "tuples": one.tuples} for one in found.most],
        "bytes_touched": found.touched,
        "pages_touched": found.pages,
        "bytes_of_data": bytes_of_data(call),
        "histogram": {"runs": found.width, "tuples": found.histogram},
    }


def _without(record: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != key}


def bytes_of_data(call: OpenCall) -> int:
    """Return the bytes of all data, selected or not."""
    data = call.inference.inputs["data"]
    return prod(data.shape) * data.dtype.itemsize


def comparison_record(compared: Comparison) -> dict[str, Any]:
    """Return the comparison of an output as a JSON object."""
    return {
        "equal": compared.total - compared.different,
        "different": compared.different,
        "total": compared.total,
        "first": _difference_record(compared.first),
        "largest": _difference_record(compared.largest),
        "ulps": compared.ulps,
        "examined": compared.examined,
        "lost_updates": compared.lost,
        "doubled_updates": compared.doubled,
        "compared_otherwise": compared.otherwise,
        "cause": compared.cause,
        "within": compared.within,
    }


def _difference_record(one: Difference | None) -> dict[str, Any] | None:
    if one is None:
        return None
    return {**one._asdict(), "output": _plain(one.output), "expected": _plain(one.expected)}


def engine_records(reports: Sequence[Report]) -> list[dict[str, Any]]:
    """Return reports as JSON objects."""
    found = [report._asdict() for report in reports]
    return [{**compared_record(one.pop("compared")), **one} for one in found]


def compared_record(compared: Comparison | None) -> dict[str, Any]:
    """Return a comparison, if there is one, as a JSON object."""
    return comparison_record(compared) if compared else {}


def node_record(one: ModelNode) -> dict[str, Any]:
    """Return a node as a JSON object."""
    node = one.node
    known = one.found or one.output
    record: dict[str, Any] = {
        "node": node.node,
        "operator": node.operator,
        "title": node.title,
        "version": one.version,
        "opset": node.version,
        "attributes": node.attributes,
        "inputs": {
            role: {"name": name, "dtype": known.dtype, "shape": known.shape}
            for role, (name, known) in one.inputs.items()
        },
        "output": {"name": node.output, "dtype": known.dtype, "shape": known.shape},
        "assumed": one.assumed if one.found is None else (),
    }
    if one.runs is not None:
        record |= {"runs": one.runs, "engines": engine_records(one.reports)}
    if one.saved is not None:
        record["saved"] = one.saved
    return record


def inferred_record(inference: Inference) -> dict[str, Any]:
    """Return the answer of `infer` as a JSON object."""
    return {**inference_record(inference), "assumed": inference.trace.assumed}


def verified_record(
    name: str | None, compared: Comparison | None, reports: Sequence[Report] | None = None
) -> dict[str, Any]:
    """Return the answer of `verify` as a JSON object; reports: on other engines, if requested."""
    found = {"version": __version__, "output": name, "verified": True, **compared_record(compared)}
    return found if reports is None else {**found, "engines": engine_records(reports)}


def inspection_record(
    entries: Sequence[MemberInfo], nodes: Sequence[OperatorNode]
) -> dict[str, Any]:
    """Return the answer of `inspect` as a JSON object."""
    arrays = [entry_record(entry) for entry in entries]
    return {"version": __version__, "arrays": arrays, "nodes": [one._asdict() for one in nodes]}


def model_record(nodes: Sequence[ModelNode]) -> dict[str, Any]:
    """Return the answer of `model` as a JSON object."""
    return {"version": __version__, "nodes": [node_record(one) for one in nodes]}


def converted_record(
    conversion: Conversion, kept: tuple[str, ...] | None, seconds: float
) -> dict[str, Any]:
    """Return the answer of `convert` as a JSON object; kept: the preserved members."""
    found = conversion_record(conversion, kept)
    return {**found, "seconds": seconds, "warnings": conversion.warnings}
