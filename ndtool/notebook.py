"""Tables of results as HTML for notebooks, for rich, and as text; cells are escaped."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ndtool.errors import RuleError, format_columns, printable
from ndtool.rules import shapes
from ndtool.rules.inference import Inference
from ndtool.rules.trace import Trace


class Table(NamedTuple):
    """A table of text cells. title: "" for none."""

    title: str
    columns: tuple[str, ...]
    rows: Sequence[Sequence[str]]


def rich_tables(tables: Iterable[Table]) -> Any:
    """Return tables as a renderable object of rich; cells are never interpreted as markup."""
    from rich.console import Group
    from rich.table import Table as RichTable
    from rich.text import Text

    renderables = []
    for source in tables:
        rich_table = RichTable(title=Text(printable(source.title, 1000)) if source.title else None)
        for column in source.columns:
            rich_table.add_column(column)
        for row in source.rows:
            rich_table.add_row(*(Text(printable(cell, 1000)) for cell in row))
        renderables.append(rich_table)
    return Group(*renderables)


def plain_table(content: Table) -> str:
    """Return a table as plain text, one line per row."""
    rows = [[printable(cell, 1000) for cell in row] for row in (content.columns, *content.rows)]
    return (content.title and printable(content.title, 1000) + "\n") + format_columns(rows)


def html_table(caption: str, titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return an HTML table of text cells."""
    head = "".join(f"<th>{_escape_cell(title)}</th>" for title in titles)
    body = "".join(
        "<tr>" + "".join(f"<td>{_escape_cell(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    title = f"<caption>{_escape_cell(caption)}</caption>" if caption else ""
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _escape_cell(text: str) -> str:
    from html import escape  # imported here because the command line does not need it

    return escape(printable(text, 1000))


class NotebookTrace(Trace):
    """A trace that notebooks display as a table."""

    def _repr_html_(self) -> str:
        rows = [step[:3] for step in self.steps]
        return html_table(self.operator, ("rule", "with", "result"), rows)


def use_notebook_trace(error: RuleError) -> None:
    """Replace an error's trace, if any, by a trace that notebooks display as a table."""
    if isinstance(error.trace, Trace):
        error.trace = NotebookTrace(*error.trace)


class NotebookInference(Inference):
    """An inference that notebooks display as two tables: array types and trace."""

    def _repr_html_(self) -> str:
        inputs = [(role, argument.described) for role, argument in self.inputs.items()]
        assumed = [("assumed", sentence) for sentence in self.trace.assumed]
        output = ("output", shapes.described(self.dtype, self.plan.output))
        call = html_table(self.operator, ("array", "type"), [*inputs, *assumed, output])
        return call + NotebookTrace(*self.trace)._repr_html_()
