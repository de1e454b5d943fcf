"""Text wrapped at spaces to the width of a terminal."""

import os
from collections.abc import Iterable

_UNLIMITED_WIDTH = 1 << 30  # columns of a file or pipe: no line is wrapped
_DEFAULT_WIDTH = 80  # columns of a terminal of unknown width


def terminal_columns(fd: int) -> int:
    """Return the columns of the terminal at `fd`; 2^30 if it is not a terminal."""
    if not os.isatty(fd):
        return _UNLIMITED_WIDTH
    variable = os.environ.get("COLUMNS", "")
    width = int(variable[:9]) if variable.isascii() and variable.isdecimal() else 0
    return width or os.get_terminal_size(fd).columns or _DEFAULT_WIDTH


def wrap_line(line: str, fd: int) -> str:
    """Return a line wrapped at spaces to the terminal that a descriptor refers to."""
    if len(line) <= terminal_columns(fd):
        return line
    from textwrap import fill

    return fill(
        line,
        terminal_columns(fd),
        subsequent_indent=line[: len(line) - len(line.lstrip())] + "  ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def wrap_lines(texts: Iterable[str], fd: int) -> str:
    """Return lines, each wrapped to the terminal at `fd`."""
    return "".join(f"{wrap_line(text, fd)}\n" for text in texts)
