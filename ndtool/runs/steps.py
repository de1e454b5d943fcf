"""The steps of a run: open, infer, resolve the output, plan, validate, execute, publish.

An `OpenCall` opens the inputs; `resolve_output` resolves the output; `prepare` plans, validates and
yields a `Prepared`; `execute` or `dry_run` returns an `Outcome`. All of these are immutable.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ndtool.arrays.sink import Encoding, Sink
from ndtool.arrays.source import ContiguousSource
from ndtool.engine.gathers import ProgressCallback, ignore_progress
from ndtool.errors import BoundsError, option
from ndtool.formats import outputs
from ndtool.formats.outputs import Output
from ndtool.publish import sinks
from ndtool.rules import dtypes, inference
from ndtool.rules.inference import Inference, is_literal
from ndtool.rules.operators import MODES
from ndtool.runs import direct, operands, plan
from ndtool.runs.calls import OpenCall, named_inputs
from ndtool.runs.operands import Validated
from ndtool.runs.plan import Plan

if TYPE_CHECKING:
    from ndtool.outofcore.cluster import ClusterRun

ReportCallback = Callable[[BoundsError], object]  # takes the bounds report
Execution = Callable[
    [Sink, ProgressCallback, ReportCallback, bool], Generator[str]
]  # yields each phase before it begins


class PreparedRun(NamedTuple):
    """A planned run, with validated indices if execution is direct.

    output: None if the output goes to no file. validated: None for external execution, which
    validates each block of indices before anything is published. execution: a function of a sink, a
    progress callback, a callback for the bounds report, and whether it is a dry run. on_cluster:
    the run on a cluster, None for a run in this process.
    """

    call: OpenCall
    output: Output | None
    plan: Plan
    validated: Validated | None
    execution: Execution
    on_cluster: ClusterRun | None = None


class Outcome(NamedTuple):
    """The outcome of a run.

    preserved: the preserved members of the output's file, None if none are to be preserved.
    bounds_report: describes indices out of bounds that the mode allows, None if all are valid.
    resumed: the number of resumed tasks by phase. warnings: about inputs, the output and indices,
    and why nothing was resumed.
    """

    plan: Plan
    preserved: tuple[str, ...] | None
    bounds_report: BoundsError | None
    resumed: dict[str, int]
    warnings: tuple[str, ...]


def resolve_output(call: OpenCall) -> Output | None:
    """Resolve the output of a call; None if it has none. Raises as `outputs.resolve` does."""
    request, data = call.request, call.sources["data"].metadata
    if request.output is None:
        return None
    as_void = data.dtype.name not in dtypes.EXTENSION_DTYPES  # despite --dtype
    encoding = Encoding(request.chunks, request.shards, request.codec, data.layout, as_void)
    return outputs.resolve(
        request.output, call.metadata, clobber=request.clobber, sync=request.sync,
        only=request.only, encoding=encoding,
    )  # fmt: skip


@contextmanager
def prepare(call: OpenCall, output: Output | None) -> Iterator[PreparedRun]:
    """Plan a run and, unless it is external, validate its indices.

    Raises BoundsError if an index is out of bounds and the mode does not allow that.
    """
    with ExitStack() as stack:
        if call.request.on_cluster and call.inference.nbytes:
            yield _prepare_for_cluster(call, output, stack)
            return
        limit = call.request.memory
        call = plan.fit_threads(call, limit, output)
        planned = plan.choose(call, limit, output)
        validates = planned.partitioning is None or output is None
        validated = operands.validate(call) if validates else None
        yield PreparedRun(call, output, planned, validated, _execution(call, planned, validated))


def _execution(call: OpenCall, planned: Plan, validated: Validated | None) -> Execution:
    """Return the execution of a plan in this process."""
    if planned.partitioning is not None:
        from ndtool.outofcore import execution

        return partial(execution.run, call, planned.partitioning, call.spill_directories)
    assert validated is not None, "direct execution comes after validation"
    function = direct.scatter if call.inference.scatters else direct.gather
    return lambda sink, progress, _, dry: function(validated, sink, progress, dry)


def _prepare_for_cluster(call: OpenCall, output: Output | None, stack: ExitStack) -> PreparedRun:
    """Connect to a cluster until the stack is closed, and plan a run on it."""
    from ndtool.outofcore.cluster import ClusterRun

    run = ClusterRun(call, output, stack)
    reason = f"{option('scheduler')} or {option('workers')} was given"
    planned = plan.partitioned_plan("cluster", call, run.partitioning, reason, output, run.spill)
    return PreparedRun(call, output, planned, None, run.execute, run)


def dry_run(run: PreparedRun) -> Outcome:
    """Do what `execute` does before it writes the first byte, then remove the files.

    The same code creates the output and the temporary files and reserves their space, so that a
    lack of permissions or space raises the same errors. An output whose size depends on its
    elements, and that may not fit, is computed.
    """
    call, reports = run.call, list[BoundsError]()
    sink: Sink | None = None
    try:
        if run.output is not None:
            sink = outputs.create(run.output, dry_run=True)
            if call.inference.nbytes:
                with closing(run.execution(sink, ignore_progress, reports.append, True)) as phases:
                    next(phases)
                    fits = sink.fits()
                if not fits:
                    with named_inputs(call):
                        for _ in run.execution(sink, ignore_progress, reports.append, False):
                            pass
                    sink.finish()
    finally:
        if sink is not None:
            sink.abort()
    if run.validated is None:
        from ndtool.outofcore import execution

        assert run.plan.partitioning is not None, "an external plan has a partitioning"
        with named_inputs(call):
            execution.check(call, run.plan.partitioning, reports.append)
    call.require_unchanged()
    return outcome(run, None if sink is None else sink.preserved, reports)


def execute(
    run: PreparedRun,
    progress: ProgressCallback = ignore_progress,
    companions: Sequence[Sink] = (),
    phase: Callable[[str], object] = lambda _: None,
    sink: Sink | None = None,
) -> Outcome:
    """Compute the output into a sink, and publish it when it is complete.

    progress: the progress callback, which takes a fraction. companions: complete sinks that are
    published together with it. phase: a callback for the name of each phase before it begins. sink:
    the sink to write to; None to create one for the output.
    """
    call, reports = run.call, list[BoundsError]()
    if sink is None:
        assert run.output is not None, "the run has no output"
        sink = outputs.create(run.output)
    try:
        if call.inference.nbytes:
            execution = run.execution(sink, progress, reports.append, False)
            with named_inputs(call), closing(execution) as phases:
                for name in phases:
                    sink.fits()  # when all other space is reserved
                    phase(name)
        call.require_unchanged()
        sinks.commit(sink, *companions)
    finally:
        sink.abort()
    return outcome(run, sink.preserved, reports)


def run(call: OpenCall, progress: ProgressCallback = ignore_progress) -> Outcome:
    """Run a call from beginning to end."""
    with prepare(call, resolve_output(call)) as run:
        return execute(run, progress)


def outcome(
    run: PreparedRun, preserved: tuple[str, ...] | None = None, reports: Sequence[BoundsError] = ()
) -> Outcome:
    """Return the outcome of a run; by default of one whose output is displayed."""
    for report in reports:
        inference.name_inputs(report, run.call.inference.inputs)
    bounds_report = reports[0] if reports else run.validated and run.validated.bounds_report
    resumed = run.on_cluster.resumed if run.on_cluster else {}
    return Outcome(run.plan, preserved, bounds_report, resumed, warnings(run, bounds_report))


def warnings(run: PreparedRun, bounds_report: BoundsError | None = None) -> tuple[str, ...]:
    """Return all warnings of a run: about inputs, output and indices, and why nothing is resumed.

    bounds_report: the bounds report; by default that of the validation.
    """
    call, validated = run.call, run.validated
    messages = [*call.warnings, *(run.output.warnings if run.output else ())]
    report = bounds_report or (validated and validated.bounds_report)
    if report is not None:
        messages.append(_bounds_warning(call.inference, report))
    indices = validated.indices if validated is not None else _stored_indices(call)
    if indices is not None and "indices" not in call.from_caller:
        info = call.inference.inputs["indices"]
        messages += operands.padding_warnings(
            info, indices, call.inference.plan.k, call.inference.attributes
        )
    if run.on_cluster is not None and run.on_cluster.reason:
        messages.append(f"nothing is resumed: {run.on_cluster.reason}")
    return tuple(messages)


def _stored_indices(call: OpenCall) -> memoryview | None:
    """Return the bytes of the indices if they are available without loading or copying."""
    source = call.sources["indices"]
    if (
        not isinstance(source, ContiguousSource)
        or not source.is_local
        or source.metadata.order != "C"
    ):
        return None
    return source.buffer


def _bounds_warning(inferred: Inference, bounds_report: BoundsError) -> str:
    """Return the warning about indices out of bounds: their number, and what the mode did."""
    mode, first = inferred.attributes.out_of_bounds, ", ".join(bounds_report.places)
    action = MODES[mode].participle
    if mode == "fill":
        action += f" with {inferred.attributes.fill or 0}"
    is_literal_input = is_literal(inferred.inputs["indices"].name)
    cause = f"; {bounds_report.hint}" if bounds_report.hint and not is_literal_input else ""
    return f"{bounds_report.counted} are out of bounds, and {action}; the first: {first}{cause}"
