"""The command `model`: the gather and scatter nodes of an ONNX model."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

import click

from ndtool.analysis.records import model_record
from ndtool.cli import against, options, records
from ndtool.cli.commands import command
from ndtool.cli.console import write_stdout
from ndtool.cli.options import Argument, is_from_environment
from ndtool.cli.reporter import Reporter, format_table
from ndtool.cli.wrapping import wrap_lines
from ndtool.errors import UsageError, format_count, printable
from ndtool.rules import dtypes
from ndtool.rules.operators import operator_of

if TYPE_CHECKING:
    from ndtool.analysis.model import ModelNode, Outcome

_NODE_COLUMNS = ("node", "operator", "attributes", "inputs", "output")


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
    from ndtool.analysis.model import Outcome, nodes, run
    from ndtool.machine import signals

    signals.install_handlers(*reporter.final_messages())
    if html is not None:
        from ndtool.cli.html import page

        page.check_model(html, model, inputs)
    if inputs is None:
        if engines is not None and not is_from_environment("engines"):
            raise UsageError("--against requires --inputs: it compares the outputs of nodes")
        if save is not None and not is_from_environment("save"):
            raise UsageError("--save requires --inputs: it writes the tensors of a run")
        outcome = Outcome(nodes(model), None)
    else:
        with against.engine_progress(reporter) as report_progress:
            outcome = run(
                model,
                inputs,
                engines or (),
                against.pop_engine_settings(options),
                report_progress,
                save,
            )
    reporter.print_warnings(list(outcome.warnings))
    if html is not None:
        page.write_model(
            html, model, outcome, (*node_table(outcome), remark_lines(outcome)), reporter
        )
    _print_nodes(reporter, outcome)


def _print_nodes(reporter: Reporter, outcome: Outcome) -> None:
    """Print the nodes of a model; raise the error of the node that failed."""
    record = model_record(outcome)
    if not reporter.json:
        columns, node_rows = node_table(outcome)
        write_stdout(
            format_table(columns, node_rows, columns[2:], 1)
            if node_rows
            else f"{records.NO_NODES}\n"
        )
        write_stdout(wrap_lines(remark_lines(outcome), 1))
        rows = [
            (printable(model_node.node.node), *row)
            for model_node in outcome.nodes
            for row in against.report_rows(model_node.reports)
        ]
        if commands := [
            command for model_node in outcome.nodes for command in _explain_command(model_node)
        ]:
            write_stdout("\n" + wrap_lines(commands, 1))
        if rows:
            write_stdout("\n")
            write_stdout(
                format_table(
                    ("node", *against.REPORT_COLUMNS),
                    rows,
                    ("node", *against.REPORT_COLUMNS[2:]),
                    1,
                )
            )
    if outcome.error is not None:
        outcome.error.extra_fields["nodes"] = record["nodes"]
        raise outcome.error
    if reporter.json:
        reporter.print_json(record)


def _explain_command(model_node: ModelNode) -> list[str]:
    """Return the command that explains the output of a saved node, [] if there is none."""
    if model_node.saved is None:
        return []
    operator = operator_of(model_node.node.operator)
    attributes = model_node.node.attributes
    if None in attributes.values():  # a parameter of the ONNX function that contains the node
        return []
    options_text = [
        f"--{name.replace('_', '-')} {attributes[name]}"
        for name in operator.attributes
        if name in attributes
    ]
    dtype = next(iter(model_node.inputs.values()))[1].dtype
    if dtype in dtypes.EXTENSION_DTYPES:
        options_text.append(f"--dtype {dtype}")
    files = [
        shlex.quote(model_node.saved[role]) for role in operator.inputs if role in model_node.saved
    ]
    words = [
        "ndtool explain",
        operator.command,
        *map(printable, files),
        *options_text,
        "--at I,J...",
    ]
    return [f"{printable(model_node.node.node)}: {' '.join(words)}"]


def node_table(outcome: Outcome) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return the table of nodes: column names, and a row for each node."""
    computed = any(model_node.runs is not None for model_node in outcome.nodes)
    columns = (*_NODE_COLUMNS, "computed") if computed else _NODE_COLUMNS
    return columns, [_node_row(model_node) for model_node in outcome.nodes]


def remark_lines(outcome: Outcome) -> list[str]:
    """Return lines on assumed sizes, on nodes that break rules, and on who computed others."""
    lines = [
        f"assumed: {printable(model_node.node.node)}: {printable(sentence)}"
        for model_node in outcome.nodes
        for sentence in model_node.assumed
        if model_node.actual_output is None
    ]
    lines += [
        f"breaks a rule: {printable(model_node.node.node)}: {printable(model_node.problem)}"
        for model_node in outcome.nodes
        if model_node.problem is not None
    ]
    others = [
        f"{format_count(nodes, 'node')} by {engine}" for engine, _, nodes in outcome.computed[1:]
    ]
    return [*lines, *([f"computed: {', '.join(others)}"] if others else [])]


def _node_row(model_node: ModelNode) -> tuple[str, ...]:
    node = model_node.node
    version = "" if model_node.version is None else f"-{model_node.version}"
    attributes = records.attributes_text(node)
    inputs = ", ".join(
        f"{name} {declared.description}" for name, declared in model_node.inputs.values()
    )
    output = f"{node.output or ''} {(model_node.actual_output or model_node.output).description}"
    computed_cells = {None: (), 0: ("no",), 1: ("ok",)}
    computed = computed_cells.get(model_node.runs, (f"ok, {model_node.runs} times",))
    cells = (node.node, node.title + version, attributes, inputs, output, *computed)
    return tuple(map(printable, cells))


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
