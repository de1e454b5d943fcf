"""Tables of results as HTML for notebooks, for rich, and as text; cells are escaped."""

from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from ndtool.errors import format_columns, printable

_MAX_CELL = 1000  # characters
_FIRST_LINE_CELLS = 3  # cells on the first line of a row that is too wide for one line
_UNLIMITED = 1 << 30  # columns
_MAX_BAR_LENGTH = 40  # characters of a bar
RESULT_STYLES = {"ok": "green", "broken": "bold red"}  # of the results of shape rules


class Table(NamedTuple):
    """A table of text cells.

    title: "" for none, or lines of text, without names that contain line breaks. columns: () for
    rows without a header. notes: lines below the rows. bars: whether the last column has counts,
    which text and HTML also show as bars.
    """

    title: str = ""
    columns: tuple[str, ...] = ()
    rows: Sequence[Sequence[str]] = ()
    notes: Sequence[str] = ()
    bars: bool = False

    def printable(self) -> "Table":
        """Return the table with control characters and secrets escaped."""
        rows = [[printable(cell, _MAX_CELL) for cell in row] for row in self.rows]
        notes = [
            line[: len(line) - len(line.lstrip())] + printable(line.lstrip(), _MAX_CELL)
            for line in self.notes
        ]
        title = "\n".join(printable(line, _MAX_CELL) for line in self.title.split("\n"))
        return self._replace(title=title, rows=rows, notes=notes)

    def with_bars(self, available: int, character: str = "━") -> "Table":
        """Return the table with a column of bars in place of `bars`, for lines of some width."""
        if not self.bars:
            return self
        widths = [max(map(len, column)) for column in zip(self.columns, *self.rows, strict=True)]
        length = max(1, min(_MAX_BAR_LENGTH, available - sum(widths) - 2 * len(widths)))
        largest = max(1, *(int(row[-1]) for row in self.rows))
        rows = [(*row, character * -(-int(row[-1]) * length // largest)) for row in self.rows]
        return self._replace(columns=(*self.columns, ""), rows=rows, bars=False)


def rich_table(table: Table, widths: Iterable[int | None] = ()) -> Any:
    """Return the rows of a table as one of rich; cells are never interpreted as markup.

    widths: of its columns; None for the width of the cells. A violated rule is red.
    """
    from rich import box
    from rich.table import Table as RichTable
    from rich.text import Text

    result = RichTable(
        box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True,
        show_header=bool(table.columns),
    )  # fmt: skip
    count = max(map(len, (table.columns, *table.rows)))
    for _, name, width in zip_longest(range(count), table.columns, widths):
        result.add_column(name or "", width=width)
    for row in table.rows:
        result.add_row(*(Text(cell, RESULT_STYLES.get(cell, "")) for cell in row))
    return result


def rich_tables(tables: Iterable[Table]) -> Any:
    """Return tables as a renderable object of rich."""
    from rich.console import Group
    from rich.text import Text

    renderables: list[Any] = []
    for table in (table.printable().with_bars(80) for table in tables):
        renderables += [Text(table.title, "bold")] if table.title else []
        renderables += [rich_table(table)] if table.columns or table.rows else []
        renderables += map(Text, table.notes)
    return Group(*renderables)


def plain_table(content: Table, available: int = _UNLIMITED) -> str:
    """Return a table as plain text, one line per row; available: the width of rows in columns."""
    content = content.printable().with_bars(available)
    lines = [content.title] if content.title else []
    if content.columns:
        lines += format_columns([content.columns, *content.rows]).splitlines()
    else:
        lines += row_lines(content.rows, available)
    return "".join(f"{line}\n" for line in [*lines, *content.notes])


def row_lines(rows: Sequence[Sequence[str]], available: int) -> list[str]:
    """Return rows without a header as indented lines, on two lines each if they are too wide.

    A single cell is a remark.
    """
    widths: list[int] = []
    for row in rows:
        if len(row) > 1:
            widths = [max(pair) for pair in zip_longest(widths, map(len, row), fillvalue=0)]
    while widths and not widths[-1]:
        widths.pop()
    is_one_line = sum(widths) + 2 * len(widths) <= available
    count = len(widths) if is_one_line else _FIRST_LINE_CELLS
    lines = []
    for row in rows:
        first = "  ".join(map(str.ljust, row[:count], widths)).rstrip() if len(row) > 1 else row[0]
        lines.append(f"  {first}")
        if second := "  ".join(row[count:]).rstrip() if len(row) > 1 else "":
            lines.append(f"    {second}")
    return lines


def html_table(content: Table) -> str:
    """Return a table as HTML."""
    content = content.printable()
    head = "".join(f"<th>{_escape(title)}</th>" for title in content.columns)
    width = max(map(len, content.rows), default=1)
    body = "".join(
        "<tr>" + "".join(f"<td>{_escape(cell)}</td>" for cell in row) + "</tr>"
        if len(row) > 1
        else f'<tr><td colspan="{width}">{_escape(row[0])}</td></tr>'
        for row in content.rows
    )
    title = f"<caption>{_escape(content.title)}</caption>" if content.title else ""
    notes = "".join(f"<p>{_escape(note)}</p>" for note in content.notes)
    head = f"<thead><tr>{head}</tr></thead>" if head else ""
    kind = ' class="bars"' if content.bars else ""
    return f"<table{kind}>{title}{head}<tbody>{body}</tbody></table>{notes}"


def _escape(text: str) -> str:
    from html import escape  # imported here because the command line does not need it

    return escape(text)
