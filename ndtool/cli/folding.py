"""How wide the terminal of a stream is, and lines folded to that: at spaces, never in a name."""

import os
from collections.abc import Iterable

_UNLIMITED = 1 << 30  # columns where nobody looks, so that no line is folded
_WIDTH = 80  # columns of a terminal that does not say


def columns(fd: int) -> int:
    """Return the columns of the terminal that a stream is, or more than anything needs."""
    if not os.isatty(fd):
        return _UNLIMITED
    asked = os.environ.get("COLUMNS", "")
    wanted = int(asked[:9]) if asked.isascii() and asked.isdecimal() else 0
    return wanted or os.get_terminal_size(fd).columns or _WIDTH


def fold(line: str, fd: int) -> str:
    """Return a line for a stream: where its terminal is narrower, several, folded at spaces."""
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
    """Return lines for a stream, each folded where it is too long."""
    return "".join(f"{fold(part, fd)}\n" for part in parts)
