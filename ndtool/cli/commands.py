"""The commands that write an array, and helpers for all commands: parse, call, report."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from ndtool.cli import helppages, options, variables
from ndtool.cli.console import is_open_as, write_stdout
from ndtool.cli.reporter import Reporter
from ndtool.errors import (
    BoundsError,
    DifferenceError,
    NdtoolError,
    OutputError,
    UsageError,
    printable,
)
from ndtool.rules.operators import (
    COMMON,
    EVERY,
    LOWERED,
    LOWERED_INPUTS,
    Attributes,
    Operator,
    operator_of,
)

if TYPE_CHECKING:
    from ndtool.cli.html.page import Report
    from ndtool.runs.calls import OpenCall
    from ndtool.runs.request import Request


FILES = {
    "data": "data.npy", "indices": "idx.npy", "updates": "upd.npy", "output": "out.npy",
    "past": "past.npy", "update": "update.npy", "write_indices": "write.npy",
}  # fmt: skip


def flags(operator: Operator, excluded: str = "") -> list[str]:
    """Return the options of an operator's example, except the one called `excluded`."""
    attributes = operator.example.attributes.items()
    return [f"--{name.replace('_', '-')} {value}" for name, value in attributes if name != excluded]


@click.pass_obj
def _run(
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
    from ndtool.machine import signals
    from ndtool.runs import steps
    from ndtool.runs.request import Request

    if output is None and not os.isatty(1):
        output = "-"
    elif output is not None:
        _require_persistent(output)
        _require_no_terminal(output, "without -o, a preview is shown")
    reporter.data_on_stdout = not dry_run and output is not None and _is_stdout(output)
    variables.drop_inapplicable(output or "-", kwargs)
    attributes = attributes_of(operator, kwargs)
    request = Request(
        operator, output=output, clobber=not no_clobber, attributes=attributes, **kwargs
    )
    signals.install_handlers(*reporter.final_messages())
    with steps.open_call(request) as call:
        reporter.begin(call, dry_run)
        with reporting(html, call, reporter) as report, reporter.progress() as bar:
            target = steps.resolved(call)
            reporter.warn([] if target is None else target.warnings)
            for source in call.sources.values():
                source.progress = bar.of(source.metadata.nbytes)
            with steps.prepared(call, target) as ready:
                reporter.prepared(ready)
                if report:
                    report.warnings += [
                        *(target.warnings if target else ()),
                        *steps.warnings(ready),
                    ]
                if dry_run:
                    outcome = steps.rehearse(ready)
                elif target is None:
                    outcome = steps.unwritten(ready)
                else:
                    companions = [report.as_sink()] if report else []
                    progress = bar.of(ready.plan.moved)
                    outcome = steps.execute(ready, progress, companions, bar.begin)
            if report:
                warnings = [*call.warnings, *(target.warnings if target else ()), *outcome.warnings]
                report.warnings = warnings  # for a report that is published by itself
            reporter.warn(outcome.warnings)
        if ready.validated and target is None and not (dry_run or reporter.json):
            from ndtool.analysis import preview

            preview_text = preview.text(ready.validated)
            call.recheck()
            write_stdout(preview_text)
        reporter.end(ready.call, target, outcome, dry_run)


@click.pass_obj
def _convert(reporter: Reporter, /, *, output: str, no_clobber: bool, **kwargs: Any) -> None:
    from ndtool.machine import signals
    from ndtool.runs import convert

    _require_persistent(output)
    _require_no_terminal(output, "a file's name shows its format, such as x.npy")
    reporter.data_on_stdout = _is_stdout(output)
    signals.install_handlers(*reporter.final_messages())
    variables.drop_inapplicable(output, kwargs)
    request = convert.Request(output=output, clobber=not no_clobber, **kwargs)
    with convert.Conversion(request) as conversion:
        reporter.warn(conversion.warnings)
        with reporter.progress() as bar:
            preserved = conversion.run(bar.of(conversion.metadata.nbytes))
        reporter.converted(conversion, preserved)


@click.pass_obj
def _clean(reporter: Reporter, /, *, folder: str, force: bool) -> None:
    from ndtool.publish import claims, leftovers
    from ndtool.storage import locations
    from ndtool.storage.descriptors import failure

    location = locations.local_path(folder)
    failed: list[tuple[str, OSError]] = []
    if locations.is_url(location):
        removed, in_use = claims.sweep(location, force)
    else:
        try:
            (removed, failed), in_use = leftovers.sweep(location, all_boots=True), []
        except OSError as exc:
            raise failure(exc, folder) from None
    lines = [f"removed {printable(path)}\n" for path in removed]
    for claim in in_use:
        owner = f"process {claim.process} on {printable(claim.host)}"
        lines.append(f"not removed: {printable(claim.folder)}: {owner} may be using it\n")
    not_removed = [
        {"name": claim.folder, "host": claim.host, "process": claim.process} for claim in in_use
    ]
    if not lines and not failed:
        lines.append("nothing to remove\n")
    reporter.answer(lambda: {"removed": removed, "kept": not_removed}, lambda: lines)
    if failed:
        reasons = (f"{printable(path)}: {exc.strerror}" for path, exc in failed)
        raise OutputError(
            f"{printable(folder)}: some files could not be removed", places=tuple(reasons)
        )


def _require_persistent(output: str) -> None:
    """Raise UsageError for an output in the memory of this process."""
    from ndtool.formats import locators
    from ndtool.storage import locations

    path = locators.parse(output).path
    if locations.is_url(path) and not locations.is_shared(path):
        raise UsageError(
            f"{printable(output)} would be in the memory of this process only:"
            " expected a file, or a URL such as s3://bucket/x.npy"
        )


def _require_no_terminal(output: str, hint: str) -> None:
    if output == "-" and os.isatty(1):
        raise UsageError("standard output is a terminal: expected a file or a pipe", hint=hint)


@contextmanager
def reporting(html: str | None, call: "OpenCall", reporter: Reporter) -> "Iterator[Report | None]":
    """Yield the HTML report, None without --html; publish it at the end.

    It is also published if the command ends with an index out of bounds or a difference.
    """
    if html is None:
        yield None
        return
    from ndtool.cli.html.page import Report

    report = Report(html, call, reporter)
    with closing(report):
        try:
            yield report
        except (BoundsError, DifferenceError) as error:
            report.publish(error)
            raise
        report.publish()
    reporter.written(html)


@contextmanager
def reporting_on(
    html: str | None, request: "Request", reporter: Reporter
) -> "Iterator[Report | None]":
    """Open the inputs of a call once more for a report; yield it as `reporting` does."""
    if html is None:
        yield None
        return
    from ndtool.cli.html import page

    with page.call_to_verify(request) as call, reporting(html, call, reporter) as report:
        yield report


def attributes_of(operator: str, kwargs: dict[str, Any]) -> Attributes:
    """Pop an operator's attributes, and its out-of-bounds mode, from the options."""
    variables.drop_inapplicable_mode(operator_of(operator).scatters, kwargs)
    names = (*operator_of(operator).attributes, *COMMON)
    kwargs["negatives"] = not kwargs.pop("no_negatives", False)
    kwargs["include_self"] = not kwargs.pop("no_include_self", False)
    return Attributes(**{name: kwargs.pop(name) for name in names if name in kwargs})


def writes_array_to_stdout(command_line: list[str]) -> bool:
    """Whether a command line, possibly invalid, writes an array to standard output."""
    if command_line[0] not in {operator.command for operator in EVERY.values()} | {"convert"}:
        return False
    output = command_line[-1] if command_line[0] == "convert" else os.environ.get("NDTOOL_OUTPUT")
    for word, following in pairwise([*command_line, ""]):
        if word in ("-o", "--output"):
            output = following
        elif word.startswith(("-o", "--output=")):
            output = word.removeprefix("--output=").removeprefix("-o")
    return _is_stdout(output) if output else "--dry-run" not in command_line and not os.isatty(1)


def _is_stdout(output: str) -> bool:
    """Whether an output is standard output, under any name, such as /dev/stdout."""
    if output == "-":
        return True
    from ndtool.formats import locators

    try:
        return is_open_as(locators.parse(output).path, 1)
    except NdtoolError:
        return False


def command(
    path: str,
    callback: Callable[..., None],
    parameters: tuple[click.Parameter, ...],
    text: str,
    example: str,
) -> click.Command:
    """Return the command at `path`, such as `infer gather-nd`, with an example in its help.

    The list of commands shows the first part of the text.
    """
    return helppages.Command(
        path.rpartition(" ")[2],
        callback=callback,
        params=[*parameters, options.HELP],
        help=text,
        short_help=re.split(r" \(|[.:] ", text)[0].rstrip("."),
        epilog=f"\b\nExample:\n  ndtool {path} {example}",
        add_help_option=False,
    )


def attribute_options(operator: Operator) -> tuple[click.Parameter, ...]:
    """Return the options for an operator's attributes and out-of-bounds mode."""
    if operator.name in LOWERED:
        return (options.WRITE_AXIS, options.WRITE_MODE)
    own = map(options.ATTRIBUTES.__getitem__, operator.attributes)
    fill = () if operator.scatters else (options.FILL,)
    of_scatters = (options.NO_INCLUDE_SELF, options.DUPLICATES) if operator.scatters else ()
    return (*own, *of_scatters, options.OUT_OF_BOUNDS, *fill, options.PAD, options.NO_NEGATIVES)


def argument(name: str, **settings: Any) -> click.Argument:
    """Return an argument that refers to an array in a file."""
    return click.Argument([name], type=options.FILE, **settings)


def unless_lowered(operator: Operator, *parameters: click.Parameter) -> tuple[click.Parameter, ...]:
    """Return parameters, none for an operator that another one computes."""
    return () if operator.name in LOWERED else parameters


def input_arguments(operator: Operator, every: bool = False) -> Iterator[click.Argument]:
    """Yield the arguments for an operator's inputs, named as the fields of a Request.

    every: whether an optional input is required.
    """
    for role in operator.inputs:
        required = every or role != "write_indices"
        metavar = role.upper() if required else f"[{role.upper()}]"
        yield argument(LOWERED_INPUTS.get(role, role), metavar=metavar, required=required)


def _run_command(operator: Operator) -> click.Command:
    files = [FILES[role] for role in operator.inputs]
    return command(
        operator.command,
        partial(_run, operator=operator.name),
        (
            *input_arguments(operator),
            options.OUTPUT,
            *attribute_options(operator),
            options.DRY_RUN,
            options.TRACE,
            options.VERBOSE,
            *unless_lowered(operator, options.HTML),
            *options.REPORTING,
            *options.OUTPUT_FILES,
            *options.TYPES,
            *options.RESOURCES,
            *options.CLUSTER,
        ),
        operator.does,
        " ".join([*files, *flags(operator), "-o out.npy"]),
    )


def operators() -> list[click.Command]:
    """Return the commands of the operators."""
    return list(map(_run_command, EVERY.values()))


def convert() -> click.Command:
    """Return the command that copies an array."""
    return command(
        "convert",
        _convert,
        (
            argument("source", metavar="SRC"),
            argument("output", metavar="DST"),
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
            click.Argument(["folder"], metavar="DIR", type=click.Path()),
            options.FORCE,
            *options.REPORTING,
        ),
        "Remove temporary files of killed runs. DIR is a directory or a URL. Files in use are not"
        " removed.",
        ".",
    )
