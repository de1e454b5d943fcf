"""The lines of --verbose: access to inputs, slices selected, reduction, plan and executor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ndtool.arrays.constant import Constant
from ndtool.arrays.source import ContiguousSource
from ndtool.errors import argument_name, format_count, format_size
from ndtool.machine.threads import limit_threads
from ndtool.rules.inference import is_literal

if TYPE_CHECKING:
    from ndtool.arrays.source import Source
    from ndtool.rules.inference import Inference
    from ndtool.runs.plan import Plan
    from ndtool.runs.steps import PreparedRun

_ASSIGNED_UPDATE = {  # by --duplicates
    "last": "the last of several updates of an element",
    "first": "the first of several updates of an element",
    "error": "no element may have several updates",
}


def run_details(prepared: PreparedRun) -> list[str]:
    """Return lines on access to inputs, slices selected, reduction, plan and executor."""
    call, inference = prepared.call, prepared.call.inference
    return [
        *(f"{role}: {_describe_access(source)}" for role, source in call.sources.items()),
        _describe_selection(inference),
        *([f"updates: {_describe_reduction(inference)}"] if inference.scatters else []),
        *plan_lines(prepared.plan),
        f"executor: {_describe_executor(prepared)}",
    ]


def plan_lines(plan: Plan) -> list[str]:
    """Return a run's plan as lines of text: how, bytes, memory, requests of external execution."""
    byte_counts = [
        f"{format_size(getattr(plan, kind))} {kind}" for kind in ("read", "written", "spilled")
    ]
    execution = plan.way
    if plan.partitioning is not None:
        execution += f", {format_count(plan.partitions, 'partition')}"
        execution += f", {format_count(plan.blocks, 'block')}"
    memory = f"memory {format_size(plan.memory)}"
    lines = [f"plan: {execution}; {', '.join(byte_counts)}, {memory}; {plan.reason}"]
    if plan.partitioning is not None:
        counts = ", ".join(f"{count} {kind}" for kind, count in plan.requests.items()) or "none"
        lines.append(f"requests: {counts}")
    return lines


def _describe_access(source: Source) -> str:
    """Describe how the bytes of an input are accessed."""
    metadata, name = source.metadata, argument_name(source.name)
    if isinstance(source, Constant):
        return f"{name}, a constant, which is not stored"
    if is_literal(source.name):
        return "a literal"
    if not isinstance(source, ContiguousSource):
        return f"{name}, read by chunks of {list(metadata.block_shape)}"
    access = "fetched by byte ranges"
    if source.is_local:
        access = "mapped" if source.is_mapped else "in memory"
    order = ", in Fortran order" if metadata.order == "F" and len(metadata.shape) > 1 else ""
    return f"{name}, {access}{order}" + (", big-endian" if metadata.dtype.order == ">" else "")


def _describe_selection(inference: Inference) -> str:
    """Describe the slices or elements that the indices select."""
    plan, itemsize = inference.plan, inference.dtype.itemsize
    if plan.is_elementwise:
        return f"selection: one element of data along axis {plan.axis_of(0)} for each index"
    slices = f"{format_count(plan.width, 'element')} ({format_size(plan.width * itemsize)})"
    return f"selection: {format_count(plan.tuples, 'index tuple')}, each a slice of {slices}"


def _describe_reduction(inference: Inference) -> str:
    """Describe how updates are combined with current values."""
    attributes = inference.attributes
    if attributes.reduction != "none":
        exclusion = "" if attributes.include_self else ", without the current values"
        order = "in row-major order of indices, with any number of threads"
        return f"{attributes.reduction} {order}{exclusion}"
    return f"assigned, {_ASSIGNED_UPDATE[attributes.duplicates]}"


def _describe_executor(prepared: PreparedRun) -> str:
    """Describe the threads or the cluster that executes a plan."""
    call, request = prepared.call, prepared.call.request
    threads = format_count(call.threads, "thread")
    if prepared.plan.way == "direct":
        team_size = limit_threads(call.threads, prepared.call.inference.nbytes)
        return f"{team_size} of {threads}, at most one for each MiB of output"
    if not request.on_cluster:
        directories = ", ".join(map(argument_name, call.spill_directories or ["TMPDIR"]))
        return f"{threads} of this process; temporary files in {directories}"
    if request.workers is not None:
        return f"a Dask cluster of {format_count(request.workers, 'worker')} on this machine"
    return f"the Dask cluster of {argument_name(str(request.scheduler))}"
