"""Text for terminals: traces, errors, tables and progress bars; only this knows rich.

Every function returns bytes for one of the two standard streams, coloured where it is a terminal
that can, or FORCE_COLOR is set. Names and values are never markup.
"""

import io
import os
import sys

from rich import box
from rich.console import Console, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ndtool.errors import NdtoolError

_UNLIMITED = 1 << 16  # columns where nobody looks, so that no line is folded
_RESULTS = {"ok": "green", "broken": "bold red"}


def error(exc: NdtoolError) -> bytes:
    """Return an error as plain text has it, with colours."""
    lines = [Text.assemble(("error: ", "bold red"), exc.message)]
    for i, place in enumerate(exc.places):
        lines.append(Text.assemble(("      " if i else "  --> ", "bold blue"), place))
    if exc.hint:
        lines.append(Text.assemble(("  hint: ", "bold cyan"), exc.hint))
    return _rendered(2, *lines)


def warning(text: str) -> bytes:
    """Return a warning in one line."""
    return _rendered(2, Text.assemble(("warning: ", "bold yellow"), text))


def table(
    columns: tuple[str, ...],
    rows: list[tuple[str, ...]],
    folded: tuple[str, ...],
    fd: int,
    title: str = "",
) -> bytes:
    """Return a table of which the `folded` columns give way; a broken rule is red."""
    result = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, collapse_padding=True)
    for name in columns:
        result.add_column(name, overflow="fold", no_wrap=name not in folded)
    for row in rows:
        result.add_row(*(Text(cell, _RESULTS.get(cell, "")) for cell in row))
    return _rendered(fd, *([Text(title, "bold")] if title else []), result)


def progress(share: float, label: str) -> bytes:
    """Return one line that takes the place of the one that the cursor is in."""
    bar = ProgressBar(total=1.0, completed=share, width=40)
    line = Table.grid(padding=(0, 1))
    line.add_row(bar, Text(f"{share:4.0%}"), Text(label))
    return b"\r" + _rendered(2, line).rstrip(b"\r\n") + b"\x1b[K"


def _rendered(fd: int, *parts: RenderableType) -> bytes:
    terminal = os.isatty(fd)
    stream = sys.stdout if fd == 1 else sys.stderr
    text = io.TextIOWrapper(
        io.BytesIO(),
        encoding=getattr(stream, "encoding", None) or "utf-8",
        errors="backslashreplace",
        newline="\n",
    )
    console = Console(
        file=text,
        force_terminal=True if terminal else None,
        width=None if terminal else _UNLIMITED,
        markup=False,
        emoji=False,
        highlight=False,
    )
    for part in parts:
        console.print(part, soft_wrap=isinstance(part, Text))
    text.flush()
    lines = text.buffer.getvalue().split(b"\n")
    return b"\n".join(line.rstrip() for line in lines)
