"""The width of a stream's terminal, and lines wrapped to it at spaces, never within names."""

import os
from collections.abc import Iterable

_UNLIMITED = 1 << 30  # columns away from a terminal: no line is wrapped
_WIDTH = 80  # columns of a terminal of unknown width


def columns(fd: int) -> int:
    """Return the columns of a stream's terminal, or a very large number if it is none."""
    if not os.isatty(fd):
        return _UNLIMITED
    variable = os.environ.get("COLUMNS", "")
    width = int(variable[:9]) if variable.isascii() and variable.isdecimal() else 0
    return width or os.get_terminal_size(fd).columns or _WIDTH


def fold(line: str, fd: int) -> str:
    """Return a line wrapped at spaces to the width of a stream's terminal."""
    if len(line) <= columns(fd):
        return line
    from textwrap import fill

    return fill(
        line,
        columns(fd),
        subsequent_indent=line[: len(line) - len(line.lstrip())] + "  ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def lines(parts: Iterable[str], fd: int) -> str:
    """Return lines for a stream, each wrapped if too long."""
    return "".join(f"{fold(part, fd)}\n" for part in parts)
