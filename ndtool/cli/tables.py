"""The tables of answers as text for a standard stream, wrapped to a terminal."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator

from ndtool import notebook
from ndtool.cli.wrapping import terminal_columns, wrap_lines
from ndtool.notebook import Table


def format_tables(tables: Iterable[Table], fd: int) -> Iterator[str | bytes]:
    """Yield tables as text for a standard stream, with an empty line between them."""
    for n, table in enumerate(tables):
        yield "\n" * bool(n)
        yield from format_table(table, fd)


def format_table(table: Table, fd: int) -> Iterator[str | bytes]:
    """Yield a table as text: styled on a terminal, or if FORCE_COLOR is set."""
    columns = terminal_columns(fd)
    is_styled = (os.isatty(fd) or bool(os.environ.get("FORCE_COLOR"))) and not table.bars
    table = table.printable().with_bars(columns, _bar_character(fd))
    if table.columns and is_styled:
        from ndtool.cli import styled

        yield styled.format_table(table, fd)
        yield wrap_lines(table.notes, fd)
    elif table.columns:
        yield notebook.plain_table(table._replace(notes=()))
        yield wrap_lines(table.notes, fd)
    else:
        lines = notebook.row_lines(table.rows, columns)
        title = table.title.split("\n") if table.title else []
        yield wrap_lines([*title, *lines, *table.notes], fd)


def format_duration(seconds: float) -> str:
    """Return a duration as text: 1.2 ms."""
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    minutes, remaining = divmod(round(seconds), 60)
    return f"{minutes} min {remaining} s" if minutes else f"{seconds:.3g} s"


def _bar_character(fd: int) -> str:
    """Return the character that bars consist of: "#" if the encoding of the stream lacks "━"."""
    try:
        "━".encode(getattr(sys.stdout if fd == 1 else sys.stderr, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "━"
