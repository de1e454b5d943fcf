"""The command about the nodes of our operators in an ONNX model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ndtool import __version__
from ndtool.cli import against, options, records
from ndtool.cli.commands import argument, command
from ndtool.cli.console import put
from ndtool.cli.folding import lines
from ndtool.cli.talk import Talk, table
from ndtool.errors import UsageError, printable

if TYPE_CHECKING:
    from ndtool.analysis.model import ModelNode, Outcome
    from ndtool.arrays.source import Known

_COLUMNS = ("node", "operator", "attributes", "inputs", "output")


@click.pass_obj
def _model(
    talk: Talk,
    /,
    *,
    model: str,
    inputs: str | None,
    engines: tuple[str, ...] | None,
    runs: int,
    threads: int | None,
    timeout: int,
    html: str | None,
) -> None:
    from ndtool.analysis.engines import How
    from ndtool.analysis.model import Outcome, nodes, run

    if html is not None:
        from ndtool.cli import modelpage

        modelpage.check(html, model, inputs)
    if inputs is None:
        if engines is not None:
            raise UsageError("--against compares what nodes give: expected --inputs, too")
        outcome = Outcome(nodes(model), None)
    else:
        how = How(runs=runs, threads=threads, timeout=timeout)
        with against.telling(talk) as tell:
            outcome = run(model, inputs, engines or (), how, tell)
    if html is not None:
        modelpage.write(html, model, outcome, (*cells(outcome), assumed(outcome)), talk)
    _tell(talk, outcome)


def _tell(talk: Talk, outcome: Outcome) -> None:
    """Show nodes; raise what is wrong with one."""
    told = [_record(one) for one in outcome.nodes]
    if not talk.json:
        columns, shown = cells(outcome)
        put(table(columns, shown, columns[2:], 1) if shown else f"{records.NO_NODES}\n")
        put(lines(assumed(outcome), 1))
        rows = [
            (printable(one.node.node), *row)
            for one in outcome.nodes
            for row in against.cells(one.reports)
        ]
        if rows:
            put("\n")
            put(table(("node", *against.COLUMNS), rows, ("node", *against.COLUMNS[2:]), 1))
    if outcome.error is not None:
        outcome.error.more["nodes"] = told
        raise outcome.error
    if talk.json:
        talk.put_json({"version": __version__, "nodes": told})


def _record(one: ModelNode) -> dict[str, Any]:
    """Return a node for JSON."""
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
        record |= {"runs": one.runs, "engines": against.records(one.reports)}
    return record


def cells(outcome: Outcome) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Return a table of nodes: its columns, and a row for each."""
    computed = any(one.runs is not None for one in outcome.nodes)
    columns = (*_COLUMNS, "computed") if computed else _COLUMNS
    return columns, [_cells(one) for one in outcome.nodes]


def assumed(outcome: Outcome) -> list[str]:
    """Return what is assumed of sizes, a line each; of nodes that were computed nothing is."""
    return [
        f"assumed: {printable(one.node.node)}: {printable(sentence)}"
        for one in outcome.nodes
        for sentence in one.assumed
        if one.found is None
    ]


def _cells(one: ModelNode) -> tuple[str, ...]:
    node = one.node
    version = "" if one.version is None else f"-{one.version}"
    attributes = records.attributes(node)
    inputs = ", ".join(f"{name} {_shown(known)}" for name, known in one.inputs.values())
    output = f"{node.output or ''} {_shown(one.found or one.output)}"
    computed = () if one.runs is None else (_computed(one.runs),)
    cells = (node.node, node.title + version, attributes, inputs, output, *computed)
    return tuple(map(printable, cells))


def _computed(runs: int) -> str:
    return {0: "no", 1: "ok"}.get(runs, f"ok, {runs} times")


def _shown(known: Known) -> str:
    """Return a type and shape as far as they are known: float32[N,3]."""
    sizes = "..." if known.shape is None else ",".join(map(_size, known.shape))
    return f"{known.dtype or '?'}[{sizes}]"


def _size(size: int | str | None) -> str:
    return "?" if size is None else str(size)


def model() -> click.Command:
    """Return the command about models."""
    return command(
        "model",
        _model,
        (
            argument("model", metavar="MODEL.onnx"),
            options.INPUTS,
            *options.ENGINES,
            options.THREADS,
            options.HTML,
            options.QUIET,
            options.JSON,
        ),
        "Show the nodes of our operators in an ONNX model, what is known of their inputs, and with"
        " --inputs what they give.",
        "model.onnx",
    )
