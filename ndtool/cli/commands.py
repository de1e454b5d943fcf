"""The commands that write an array, and helpers for all commands: parse, call, report."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from ndtool.cli import helppages, options
from ndtool.cli.console import is_same_file, write_stdout
from ndtool.cli.options import Argument, Parameter
from ndtool.cli.reporter import Reporter
from ndtool.errors import BoundsError, DifferenceError, UsageError, printable
from ndtool.rules.operators import (
    ALL_OPERATORS,
    COMMON_ATTRIBUTES,
    GATHER_ATTRIBUTES,
    LOWERED,
    LOWERED_INPUTS,
    SCATTER_ATTRIBUTES,
    Attributes,
    Operator,
    operator_of,
)

if TYPE_CHECKING:
    from ndtool.cli.page import HtmlReport
    from ndtool.formats.outputs import Output
    from ndtool.runs.calls import OpenCall


FILES = {
    "data": "data.npy", "indices": "idx.npy", "updates": "upd.npy", "output": "out.npy",
    "past": "past.npy", "update": "update.npy", "write_indices": "write.npy",
}  # fmt: skip


_INDEX_TEXTS = {
    **dict.fromkeys(("gather_nd", "scatter_nd"), "Integers; the last axis has the index tuples."),
    "gather_elements": "Integers, one for each element of the output.",
    "scatter_elements": "Integers, one for each element of UPDATES.",
    **dict.fromkeys(("gather", "scatter"), "Integers, the indices along the axis."),
}
_ARGUMENT_TEXTS = {
    "updates": "Array to update with, in the dtype of DATA.",
    "past": "Array to copy and update, such as a key cache.",
    "update": "Array to write into PAST, in the dtype of PAST.",
    "write_indices": "Integers, one for each batch: where UPDATE begins along the axis.",
}


def example_flags(operator: Operator, excluded: str = "") -> list[str]:
    """Return the options of an operator's example, except the one called `excluded`."""
    attributes = operator.example.attributes.items()
    return [f"--{name.replace('_', '-')} {value}" for name, value in attributes if name != excluded]


@click.pass_obj
def _run_operator(
    reporter: Reporter,
    /,
    *,
    operator: str,
    output: str | None,
    dry_run: bool,
    no_clobber: bool,
    html: str | None = None,
    **kwargs: Any,
) -> None:
    from ndtool.runs import steps
    from ndtool.runs.calls import OpenCall, Request

    if output is None and not os.isatty(1):
        output = "-"
    elif output is not None:
        _require_not_terminal(output, "without -o, a preview is shown")
    reporter.data_on_stdout = not dry_run and output is not None and _is_stdout(output)
    attributes = attributes_of(operator, kwargs)
    request = Request(
        operator, output=output, clobber=not no_clobber, attributes=attributes, **kwargs
    )
    reporter.handle_signals()
    with OpenCall(request) as call:
        reporter.report_call(call, dry_run)
        with html_report(html, call, reporter) as report, reporter.progress() as progress_bar:
            target = steps.resolve_output(call)
            reporter.data_on_stdout |= not dry_run and _writes_to_stdout(target)
            if html and target and target.target:
                from ndtool.cli import page

                page.require_distinct(html, target.target.path)
            reporter.print_warnings(target.warnings if target else ())
            for source in call.sources.values():
                source.progress = progress_bar.callback(source.metadata.nbytes)
            with steps.prepare(call, target) as prepared:
                reporter.report_plan(prepared)
                if report:
                    report.warnings = steps.warnings(prepared)
                if dry_run:
                    outcome = steps.dry_run(prepared)
                elif target is None:
                    outcome = steps.outcome(prepared)
                else:
                    companions = [report.as_sink()] if report else []
                    progress = progress_bar.callback(prepared.plan.read + prepared.plan.written)
                    outcome = steps.execute(prepared, progress, companions, progress_bar.begin)
            if report:
                report.warnings = outcome.warnings  # if it is published without an output
            reporter.print_warnings(outcome.warnings)
        if prepared.validated and target is None and not (dry_run or reporter.json):
            from ndtool.analysis import preview

            preview_text = preview.text(prepared.validated)
            call.require_unchanged()
            write_stdout(preview_text)
        reporter.report_outcome(prepared.call, outcome, dry_run)


@click.pass_obj
def _convert(reporter: Reporter, /, *, output: str, no_clobber: bool, **kwargs: Any) -> None:
    from ndtool.runs import convert

    _require_not_terminal(output, "a file's name shows its format, such as x.npy")
    reporter.data_on_stdout = _is_stdout(output)
    reporter.handle_signals()
    with convert.Conversion(output=output, clobber=not no_clobber, **kwargs) as conversion:
        reporter.data_on_stdout |= _writes_to_stdout(conversion.output)
        reporter.print_warnings(conversion.warnings)
        with reporter.progress() as progress_bar:
            preserved = conversion.run(progress_bar.callback(conversion.metadata.nbytes))
        reporter.report_conversion(conversion, preserved)


@click.pass_obj
def _clean(reporter: Reporter, /, *, folder: str, force: bool) -> None:
    from ndtool.analysis.cleaning import clean

    answer = clean(folder, force)
    reporter.print_answer(answer)
    answer.raise_error()


def _writes_to_stdout(output: "Output | None") -> bool:
    """Return whether an output is standard output, under any name.

    Raises UsageError for the URL of a file system in the memory of this process.
    """
    from ndtool.storage import locations

    if output is None or output.target is None:
        return output is not None
    if not locations.is_shared(output.target.path):
        raise UsageError(
            f"{printable(output.name)} would be in the memory of this process only:"
            " expected a file, or a URL such as s3://bucket/x.npy"
        )
    return is_same_file(output.target.path, 1)


def _require_not_terminal(output: str, hint: str) -> None:
    """Raise UsageError if the output is standard output and a terminal."""
    if output == "-" and os.isatty(1):
        raise UsageError("standard output is a terminal: expected a file or a pipe", hint=hint)


@contextmanager
def html_report(
    html: str | None, call: "OpenCall", reporter: Reporter
) -> "Iterator[HtmlReport | None]":
    """Yield the HTML report of a call, None without --html; publish it on exit.

    It is also published if the body raises BoundsError or DifferenceError.
    """
    if html is None:
        yield None
        return
    from ndtool.cli.page import HtmlReport

    report = HtmlReport(html, call, reporter)
    with closing(report):
        try:
            yield report
        except (BoundsError, DifferenceError) as error:
            report.publish(error)
            raise
        report.publish()
    reporter.report_file(html)


def attributes_of(operator: str, kwargs: dict[str, Any]) -> Attributes:
    """Remove an operator's attributes and out-of-bounds mode from the options; return them."""
    names = (*operator_of(operator).attributes, *COMMON_ATTRIBUTES)
    values = {name: kwargs.pop(name) for name in names if name in kwargs}
    values |= {name: not kwargs.pop(f"no_{name}") for name in names if f"no_{name}" in kwargs}
    return Attributes(**values)


def writes_array_to_stdout(command_line: list[str]) -> bool:
    """Whether a command line, possibly invalid, writes an array to standard output."""
    name = command_line[0]
    if name != "convert" and name.replace("-", "_") not in ALL_OPERATORS:
        return False
    output = command_line[-1] if name == "convert" else os.environ.get("NDTOOL_OUTPUT")
    for word, next_word in pairwise([*command_line, ""]):
        if word in ("-o", "--output"):
            output = next_word
        elif word.startswith(("-o", "--output=")):
            output = word.removeprefix("--output=").removeprefix("-o=").removeprefix("-o")
    return _is_stdout(output) if output else "--dry-run" not in command_line and not os.isatty(1)


def _is_stdout(output: str) -> bool:
    """Whether an output is standard output, under any name, such as /dev/stdout."""
    return output == "-" or is_same_file(output.removeprefix("npy:"), 1)


def command(
    path: str,
    callback: Callable[..., None],
    parameters: tuple[Parameter, ...],
    text: str,
    example: str,
) -> click.Command:
    """Return a command with its help text and an example; path: such as `infer gather-nd`.

    parameters: arguments, and options, which are made here. The list of commands shows the text up
    to the first parenthesis, colon or full stop.
    """
    return helppages.Command(
        path.rpartition(" ")[2],
        callback=callback,
        params=options.make((*parameters, options.HELP)),
        help=text,
        short_help=re.split(r" \(|[.:] ", text)[0].rstrip("."),
        epilog=f"\b\nExample:\n  ndtool {path} {example}",
        add_help_option=False,
    )


def attribute_options(operator: Operator) -> tuple[Parameter, ...]:
    """Return the options for an operator's attributes and out-of-bounds mode."""
    if operator.name in LOWERED:
        return (options.WRITE_AXIS, options.WRITE_MODE)
    others = GATHER_ATTRIBUTES if operator.scatters else SCATTER_ATTRIBUTES
    names = (*operator.attributes, *COMMON_ATTRIBUTES)
    return tuple(options.ATTRIBUTES[name] for name in names if name not in others)


def omit_if_lowered(operator: Operator, *params: Parameter) -> tuple[Parameter, ...]:
    """Return parameters, () for an operator that ndtool computes as another operator."""
    return () if operator.name in LOWERED else params


def input_arguments(operator: Operator, all_required: bool = False) -> Iterator[click.Argument]:
    """Yield the arguments for an operator's inputs, named as the fields of a Request.

    all_required: whether optional inputs are required.
    """
    for role in operator.inputs:
        required = all_required or role != "write_indices"
        metavar = role.upper() if required else f"[{role.upper()}]"
        name = LOWERED_INPUTS.get(role, role)
        yield Argument(name, argument_text(operator, role), metavar=metavar, required=required)


def argument_text(operator: Operator, role: str) -> str:
    """Return the help text of an operator's input."""
    if role == "data":
        return "Array to copy and update." if operator.scatters else "Array to gather from."
    if role == "indices":
        return _INDEX_TEXTS.get(operator.name, "Integers.")
    return _ARGUMENT_TEXTS[role]


def run(operator: Operator) -> click.Command:
    """Return the command that runs an operator."""
    files = [FILES[role] for role in operator.inputs]
    return command(
        operator.command,
        partial(_run_operator, operator=operator.name),
        (
            *input_arguments(operator),
            options.OUTPUT,
            *attribute_options(operator),
            options.DRY_RUN,
            options.TRACE,
            options.VERBOSE,
            *omit_if_lowered(operator, options.HTML),
            *options.REPORTING,
            *options.OUTPUT_FILES,
            *options.CHECKS,
            *options.EXECUTION,
            *options.CLUSTER,
        ),
        operator.summary,
        " ".join([*files, *example_flags(operator), "-o out.npy"]),
    )


def convert() -> click.Command:
    """Return the command that copies an array."""
    return command(
        "convert",
        _convert,
        (
            Argument("source", "Array to copy, in the syntax of an input.", metavar="SRC"),
            Argument(
                "output",
                "Output, in the format of its suffix; see -o of the operators.",
                metavar="DST",
            ),
            options.DTYPE,
            options.AS_VOID,
            *options.OUTPUT_FILES,
            *options.REPORTING,
        ),
        "Copy an array to another file or format. The values are unchanged, in C order.",
        "stored.npz:data table.npy",
    )


def clean() -> click.Command:
    """Return the command that removes temporary files of killed runs."""
    return command(
        "clean",
        _clean,
        (
            Argument(
                "folder",
                "Directory or URL with outputs or temporary files of runs.",
                metavar="DIR",
                type=click.Path(),
            ),
            options.FORCE,
            *options.REPORTING,
        ),
        "Remove temporary files of killed runs. Files in use are not removed.",
        ".",
    )
