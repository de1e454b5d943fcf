"""The page of `model --html`: the nodes of our operators in a model, and how engines did."""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element

from ndtool.arrays import document, sink
from ndtool.cli import markup, pageparts, records
from ndtool.cli.markup import element
from ndtool.cli.page import require_apart
from ndtool.cli.pageparts import section, wide
from ndtool.errors import called

if TYPE_CHECKING:
    from ndtool.analysis.model import Outcome
    from ndtool.cli.talk import Talk

    Table = tuple[tuple[str, ...], list[tuple[str, ...]], list[str]]


def check(path: str, model: str, inputs: str | None) -> None:
    """Raise what `write` would about its file, before a model is run."""
    document.check(path)
    require_apart("--html", path, model, inputs)


def write(path: str, model: str, outcome: Outcome, shown: Table, talk: Talk) -> None:
    """Write the page of a model; shown: its nodes, as columns and rows, and what is assumed."""
    columns, rows, assumed = shown
    nodes = wide(markup.table(columns, rows, class_="nodes"))
    none = element("p", records.NO_NODES, class_="hint")
    root = pageparts.document_of(
        f"ndtool model: {called(model)}",
        element("h1", "ndtool model"),
        element("p", called(model), class_="call"),
        pageparts.command(talk.arguments),
        None if outcome.error is None else pageparts.failure(outcome.error),
        section("Nodes", nodes if rows else none, *(element("p", line) for line in assumed)),
        *_engines(outcome),
    )
    drawn = document.create(path, markup.page(root))
    try:
        sink.commit(drawn)
    finally:
        drawn.abort()
    talk.written(path)


def _engines(outcome: Outcome) -> list[Element]:
    """Return what engines gave for what came to each node."""
    rows = [
        (one.node.node, *pageparts.engine(report))
        for one in outcome.nodes
        for report in one.reports
    ]
    if not rows:
        return []
    table = markup.table(("node", *pageparts.ENGINE_COLUMNS), rows)
    parts = [
        part
        for one in outcome.nodes
        for part in pageparts.differing(one.reports, f"{one.node.node}: ")
    ]
    return [section("Other engines", wide(table), *parts)]
