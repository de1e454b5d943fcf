"""Styled text for terminals, by rich: traces, errors, tables, progress bars.

Functions return bytes for a standard stream, coloured if it is a terminal with colours or
FORCE_COLOR is set. Names and values are never interpreted as markup.
"""

import io
import os
import sys

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table as RichTable
from rich.text import Text

from ndtool.cli.wrapping import terminal_columns, wrap_line
from ndtool.notebook import RESULT_STYLES, Table, rich_table

_UNLIMITED_WIDTH = 1 << 16  # columns of a table of unlimited width
_CONSOLE_HEIGHT = 25  # lines; rich queries the terminal if no height is set
_COLUMN_GAP = 2  # spaces between the columns of a table
_PREFIXES = {
    "error: ": "bold red",
    "warning: ": "bold yellow",
    "  --> ": "bold blue",
    "  hint: ": "bold cyan",
}


def format_message(message: str) -> bytes:
    """Return an error or a warning with its prefixes coloured, wrapped to the terminal."""
    texts = []
    for line in message.splitlines():
        texts.append(Text(wrap_line(line, 2)))
        for prefix in filter(line.startswith, _PREFIXES):
            texts[-1].stylize(_PREFIXES[prefix], 0, len(prefix))
    return _render(2, *texts)


def format_summary(lines: list[str]) -> bytes:
    """Return the summary of a trace; the title is bold, a violated rule red."""
    texts = [Text(wrap_line(line, 2)) for line in lines]
    for text, line in zip(texts, lines, strict=True):
        result = line.rpartition(" ")[2]
        if result in RESULT_STYLES:
            text.stylize(RESULT_STYLES[result], len(text) - len(result))
    texts[0].stylize("bold", 0, lines[0].find(":") + 1)
    return _render(2, *texts)


def format_table(table: Table, fd: int) -> bytes:
    """Return a table as wide as the terminal: cells wrap, at spaces only.

    A line with a long word exceeds the terminal's width. A violated rule is red.
    """
    available = _console(fd).width - _COLUMN_GAP * (len(table.columns) - 1)
    cells = list(zip(table.columns, *table.rows, strict=True))
    result = rich_table(table, _column_widths(cells, available))
    lines = [wrap_line(line, fd) for line in table.title.split("\n")]
    title = [Text("\n".join(lines), "bold")] if table.title else []
    return _render(fd, *title, result)


def _column_widths(cells: list[tuple[str, ...]], available: int) -> list[int]:
    """Return the widths of columns: the widest ones are narrowed until a line is `available` wide.

    cells: the cells of each column; the first one is its name.
    """
    widths = [max(map(cell_len, column)) for column in cells]
    longest_words = [
        max(cell_len(word) for cell in column for word in cell.split() or [""]) for column in cells
    ]
    while sum(widths) > available and widths != longest_words:
        widest_column = max(
            (width, i) for i, width in enumerate(widths) if width > longest_words[i]
        )[1]
        widths[widest_column] -= 1
    return widths


def format_progress(fraction: float, label: str) -> bytes:
    """Return a progress bar that overwrites the current line."""
    console = _console(2)
    available = console.width - cell_len(label) - 2 * _COLUMN_GAP - len("100%")
    line = RichTable.grid(padding=(0, 1))
    bar = (
        [ProgressBar(total=1.0, completed=fraction, width=min(available, 40))]
        if available >= 5
        else []
    )
    line.add_row(*bar, Text(f"{fraction:4.0%}"), Text(label, no_wrap=True, overflow="ellipsis"))
    return b"\r" + _render(2, line).rstrip(b"\r\n") + b"\x1b[K"


def _render(fd: int, *renderables: RenderableType) -> bytes:
    """Return renderable objects of rich as bytes for a standard stream."""
    console = _console(fd)
    for renderable in renderables:
        if isinstance(renderable, RichTable):
            unlimited = console.options.update(max_width=_UNLIMITED_WIDTH)
            console.width = max(
                console.width, console.measure(renderable, options=unlimited).minimum
            )
        console.print(renderable, soft_wrap=isinstance(renderable, Text))
    text = console.file
    assert isinstance(text, io.TextIOWrapper)
    text.flush()
    assert isinstance(text.buffer, io.BytesIO)
    lines = text.buffer.getvalue().split(b"\n")
    return b"\n".join(line.rstrip() for line in lines)


def _console(fd: int) -> Console:
    """Return a console that renders into memory as for a standard stream."""
    terminal = os.isatty(fd)
    stream = sys.stdout if fd == 1 else sys.stderr
    text = io.TextIOWrapper(
        io.BytesIO(),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace",
        newline="\n",
    )
    return Console(
        file=text,
        force_terminal=True if terminal else None,
        width=terminal_columns(fd),
        height=_CONSOLE_HEIGHT,
        markup=False,
        emoji=False,
        highlight=False,
    )
