"""The command `model`: the gather and scatter nodes of an ONNX model."""

from __future__ import annotations

from typing import Any

import click

from ndtool.cli import against, options
from ndtool.cli.commands import command
from ndtool.cli.options import Argument, is_from_environment
from ndtool.cli.reporter import Reporter
from ndtool.errors import UsageError


@click.pass_obj
def _model(
    reporter: Reporter,
    /,
    *,
    model: str,
    inputs: str | None,
    save: str | None,
    engines: tuple[str, ...] | None,
    html: str | None,
    **options: Any,
) -> None:
    from ndtool.analysis.model import nodes, run
    from ndtool.machine import signals

    signals.install_handlers(*reporter.final_messages())
    if html is not None:
        from ndtool.cli import page

        page.check_model(html, model, inputs)
    if inputs is None:
        if engines is not None and not is_from_environment("engines"):
            raise UsageError("--against requires --inputs: it compares the outputs of nodes")
        if save is not None and not is_from_environment("save"):
            raise UsageError("--save requires --inputs: it writes the tensors of a run")
        answer = nodes(model)
    else:
        with against.engine_progress(reporter) as report_progress:
            answer = run(
                model,
                inputs,
                engines or (),
                against.pop_engine_settings(options),
                report_progress,
                save,
            )
    reporter.print_warnings(list(answer.warnings))
    if html is not None:
        page.write_model(html, model, answer, reporter)
    if answer.error is not None:
        answer.error.extra_fields["nodes"] = answer.to_dict()["nodes"]
    if answer.error is None or not reporter.json:
        reporter.print_answer(answer)
    if answer.error is not None:
        raise answer.error


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
            options.HTML,
            *options.REPORTING,
        ),
        "Show the gather and scatter nodes of an ONNX model. --inputs runs the model, with ndtool"
        " for these nodes and onnxruntime, or else the onnx package, for the others.",
        "model.onnx",
    )
