"""The commands infer, explain, stats, verify, model, inspect and spec."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from ndtool.cli import options
from ndtool.cli.commands import (
    FILES,
    attribute_options,
    attributes_of,
    command,
    example_flags,
    html_report,
    input_arguments,
    omit_if_lowered,
)
from ndtool.cli.options import Argument
from ndtool.cli.reporter import Reporter
from ndtool.errors import UsageError
from ndtool.rules.operators import (
    ALL_OPERATORS,
    LOWERED,
    LOWERED_INPUTS,
    OPERATORS,
    Operator,
    operator_of,
)

if TYPE_CHECKING:
    from ndtool.analysis.engines import EngineSettings
    from ndtool.cli.page import HtmlReport
    from ndtool.runs.calls import OpenCall, Request


@click.pass_obj
def _infer(reporter: Reporter, /, *, operator: str, **options: Any) -> None:
    from ndtool.analysis import infer

    reporter.trace = True  # print the trace also if a rule is violated
    inputs = {
        role: options.pop(LOWERED_INPUTS.get(role, role)) for role in operator_of(operator).inputs
    }
    arguments = {role: argument for role, argument in inputs.items() if argument is not None}
    reporter.print_answer(
        infer.infer(operator, arguments, attributes_of(operator, options), **options)
    )


@click.pass_obj
def _explain(
    reporter: Reporter,
    /,
    *,
    operator: str,
    at: tuple[tuple[int, ...], ...],
    origins: tuple[tuple[int, ...], ...],
    list_all: bool,
    html: str | None = None,
    **options: Any,
) -> None:
    from ndtool.analysis import explain, typed

    if not at and not origins:
        raise UsageError("missing option: expected --at or --from with the position of an element")
    with _open_call(reporter, typed.open_typed_call, operator, html, options) as (call, report):
        with _progress(reporter, call) as progress:
            explanation = explain.explain(call, at, origins, list_all, progress)
        if report:
            report.add_explanation(explanation)
    reporter.print_answer(explanation)


@click.pass_obj
def _stats(
    reporter: Reporter, /, *, operator: str, html: str | None = None, **options: Any
) -> None:
    from ndtool.analysis import stats

    with _open_call(reporter, stats.open_call, operator, html, options) as (call, report):
        with _progress(reporter, call) as progress:
            statistics = stats.stats(call, progress)
        if report:
            report.stats = statistics
    reporter.print_answer(statistics)


@contextmanager
def _open_call(
    reporter: Reporter,
    open_request: Callable[[Request], OpenCall],
    operator: str,
    html: str | None,
    options: dict[str, Any],
) -> Iterator[tuple[OpenCall, HtmlReport | None]]:
    """Yield the open call of a question, and its HTML report."""
    from ndtool.runs.calls import Request

    request = Request(operator, attributes=attributes_of(operator, options), **options)
    reporter.handle_signals()
    with open_request(request) as call:
        reporter.print_warnings(call.warnings)
        with html_report(html, call, reporter) as report:
            yield call, report


@contextmanager
def _progress(reporter: Reporter, call: OpenCall | None = None) -> Iterator[Callable[..., None]]:
    """Yield a callback that shows the completed fraction, and the name of a running engine.

    call: a call whose indices are read, with their bytes.
    """

    def report_progress(fraction: float, engine_name: str = "") -> None:
        progress_bar.begin(engine_name)
        progress(fraction)

    with reporter.progress() as progress_bar:
        progress = progress_bar.callback(call.sources["indices"].metadata.nbytes if call else 0)
        yield report_progress


@click.pass_obj
def _verify(
    reporter: Reporter,
    /,
    *,
    operator: str,
    engines: tuple[str, ...] | None = None,
    html: str | None = None,
    **options: Any,
) -> None:
    from ndtool.analysis import engines as others
    from ndtool.analysis import verify

    settings = _pop_engine_settings(options)
    if options["output"] is None and engines is None:
        raise UsageError("missing argument 'OUTPUT': expected one, or --against with engines")
    with _open_call(reporter, verify.open_call, operator, html, options) as (call, report):
        with _progress(reporter) as progress:
            answer = others.verify(call, engines, settings, progress)
        if report and answer.engines is not None:
            report.add_engines(answer)
        if answer.engines is not None and not reporter.json:
            reporter.print_answer(replace(answer, comparison=None))
        answer.raise_error()
        if report and answer.comparison is not None:
            report.add_comparison(answer.comparison)
    reporter.report_verification(answer)


def _pop_engine_settings(options: dict[str, Any]) -> EngineSettings:
    """Remove the settings for engines from the options, and return them."""
    from ndtool.analysis.engines import EngineSettings

    names = EngineSettings._fields
    return EngineSettings(**{name: options.pop(name) for name in names if name in options})


@click.pass_obj
def _model(
    reporter: Reporter,
    /,
    *,
    model: str,
    inputs: str | None,
    save: str | None,
    engines: tuple[str, ...] | None,
    **options: Any,
) -> None:
    from ndtool.analysis.model import show

    reporter.handle_signals()
    settings = _pop_engine_settings(options)
    with _progress(reporter) as progress:
        answer = show(model, inputs, engines, settings, progress, save)
    reporter.print_warnings(answer.warnings)
    if answer.error is None or not reporter.json:
        reporter.print_answer(answer)
    answer.raise_error()


@click.pass_obj
def _inspect(reporter: Reporter, /, *, names: tuple[str, ...]) -> None:
    from ndtool.analysis.inspect import inspect

    reporter.handle_signals()
    answer = inspect(names)
    reporter.print_answer(answer)
    reporter.print_warnings([array.warning for array in answer.arrays if array.warning])
    answer.raise_error()


@click.pass_obj
def _spec(reporter: Reporter, /, *, command: str | None) -> None:
    from ndtool.analysis.inspect import standards

    reporter.print_answer(standards(command))


def infer(operator: Operator) -> click.Command:
    """Return the command that infers an operator's output."""
    return command(
        f"infer {operator.command}",
        partial(_infer, operator=operator.name),
        (
            *input_arguments(operator),
            *attribute_options(operator),
            options.SPEC,
            options.DTYPE,
            options.JSON,
        ),
        f"Infer the output of {operator.command}: dtype and shape. Each argument is a file, of"
        " which only the header is read, or dtype[d0,d1,...], where sizes may be symbols.",
        " ".join(
            [*map("'{}'".format, operator.example.types), *example_flags(operator, "reduction")]
        ),
    )


def explain(operator: Operator) -> click.Command:
    """Return the command that explains elements of an operator's output."""
    files = [FILES[role] for role in operator.inputs]
    return command(
        f"explain {operator.command}",
        partial(_explain, operator=operator.name),
        (
            *input_arguments(operator),
            *attribute_options(operator),
            options.AT,
            options.FROM,
            options.ALL,
            *options.CHECKS,
            options.MEMORY,
            *omit_if_lowered(operator, options.HTML),
            *options.REPORTING,
        ),
        f"Explain elements of {operator.command}. --at shows what an element of the output was"
        " computed from: index tuple, data and updates. --from shows where an element of"
        f" {operator.inputs[0].upper()} is copied to. Inputs other than indices may also be types,"
        " dtype[d0,d1,...].",
        " ".join(
            [*files, *example_flags(operator, "reduction"), f"--at {operator.example.output_index}"]
        ),
    )


def stats(operator: Operator) -> click.Command:
    """Return the command that prints statistics of an operator's indices."""
    is_computed_directly = operator.name in OPERATORS
    roles = ("data", "indices") if is_computed_directly else operator.inputs
    data = roles[0].upper()
    return command(
        f"stats {operator.command}",
        partial(_stats, operator=operator.name),
        (
            *islice(input_arguments(operator), len(roles)),
            *attribute_options(operator),
            *options.CHECKS,
            options.MEMORY,
            *omit_if_lowered(operator, options.HTML),
            *options.REPORTING,
        ),
        f"Print statistics of {operator.command} indices: ranges, duplicates, indices out of"
        f" bounds, bytes of {data} selected. {data} may also be dtype[d0,d1,...].",
        " ".join([*map(FILES.__getitem__, roles), *example_flags(operator)]),
    )


def verify(operator: Operator) -> click.Command:
    """Return the command that checks an operator's output."""
    files = [FILES[role] for role in (*operator.inputs, "output")]
    return command(
        f"verify {operator.command}",
        partial(_verify, operator=operator.name),
        (
            *input_arguments(operator, all_required=True),
            Argument("output", "Array to check.", required=operator.name in LOWERED),
            *attribute_options(operator),
            options.WITHIN,
            *omit_if_lowered(operator, *options.ENGINES),
            options.THREADS,
            options.MEMORY,
            options.DTYPE,
            options.TEXT,
            *omit_if_lowered(operator, options.HTML),
            *options.REPORTING,
        ),
        f"Check an output of {operator.command} against an independent, slow computation: dtype,"
        " shape and every"
        " bit. --against also checks other engines. The exit status is 8 if they differ.",
        " ".join([*files, *example_flags(operator)]),
    )


def model() -> click.Command:
    """Return the command `model`."""
    return command(
        "model",
        _model,
        (
            Argument("model", "ONNX model.", metavar="MODEL.onnx"),
            options.INPUTS,
            options.SAVE,
            options.WITHIN,
            *options.ENGINES,
            options.THREADS,
            *options.REPORTING,
        ),
        "Show the gather and scatter nodes of an ONNX model. --inputs runs the model, with ndtool"
        " for these nodes and onnxruntime, or else the onnx package, for the others.",
        "model.onnx",
    )


def inspect() -> click.Command:
    """Return the command that lists the arrays in files."""
    return command(
        "inspect",
        _inspect,
        (
            Argument(
                "names",
                "Files of arrays, and ONNX models.",
                nargs=-1,
                required=True,
                metavar="FILE...",
            ),
            *options.REPORTING,
        ),
        "List the arrays in files and the nodes of ONNX models. Only headers are read.",
        "data.npy stored.npz",
    )


def spec() -> click.Command:
    """Return the command that shows what the standards accept."""
    choice = click.Choice([operator.command for operator in ALL_OPERATORS.values()])
    return command(
        "spec",
        _spec,
        (
            Argument(
                "command", "Name of an operator.", type=choice, required=False, metavar="[OPERATOR]"
            ),
            options.JSON,
        ),
        "Show what each standard accepts: attributes, index types and data types, a row for each"
        " version.",
        "gather-nd",
    )
