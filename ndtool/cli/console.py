"""The standard streams: text and tables, wrapped to a terminal; a progress bar on stderr."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TextIO

from ndtool import notebook
from ndtool.errors import OutputError, format_size
from ndtool.notebook import Table
from ndtool.storage.descriptors import write_next

COLOURS = {  # of prefixes of messages, and of results
    "error:": "1;31", "warning:": "1;33", "-->": "1;34", "hint:": "1;36", "ok": "32",
    "broken": "1;31",
}  # fmt: skip
_INITIAL_DELAY = 1.0  # seconds before the first progress bar


def write_stdout(text: str | bytes) -> None:
    """Write a result to standard output; raise OutputError on failure."""
    try:
        write_next(1, _encode(text, sys.stdout))
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise OutputError(f"standard output: {exc.strerror}") from None


def write_stderr(text: str | bytes) -> None:
    """Write a message to standard error; ignore failures, which cannot be reported."""
    try:
        write_next(2, _encode(text, sys.stderr))
    except OSError:
        pass


def _encode(text: str | bytes, stream: TextIO | None) -> bytes:
    if isinstance(text, bytes):
        return text
    return text.encode(getattr(stream, "encoding", None) or "utf-8", "backslashreplace")


def is_same_file(path: str, fd: int) -> bool:
    """Return whether a path refers to the file of an open descriptor."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except (OSError, ValueError):
        return False


def terminal_columns(fd: int) -> int:
    """Return the columns of the terminal at `fd`; 2^30 if it is not a terminal."""
    if not os.isatty(fd):
        return 1 << 30  # no line is wrapped
    variable = os.environ.get("COLUMNS", "")
    width = int(variable[:9]) if variable.isascii() and variable.isdecimal() else 0
    return width or os.get_terminal_size(fd).columns or 80


def wrap_lines(lines: Iterable[str], fd: int) -> str:
    """Return lines, each wrapped at spaces to the terminal at `fd`."""
    return "".join(f"{_wrap_line(line, terminal_columns(fd))}\n" for line in lines)


def _wrap_line(line: str, columns: int) -> str:
    if len(line) <= columns:
        return line
    from textwrap import fill

    return fill(
        line,
        columns,
        subsequent_indent=line[: len(line) - len(line.lstrip())] + "  ",
        break_long_words=False,
        break_on_hyphens=False,
        replace_whitespace=False,
    )


def coloured(pattern: str, text: str, fd: int) -> str:
    """Return text with the matches of a pattern in the colours of COLOURS, or else bold.

    It is coloured on a terminal or with FORCE_COLOR, but not with NO_COLOR or TERM=dumb.
    """
    is_dumb = os.environ.get("TERM") in ("dumb", "unknown")
    forced = bool(os.environ.get("FORCE_COLOR"))
    if os.environ.get("NO_COLOR") or is_dumb or not (forced or os.isatty(fd)):
        return text

    def paint(match: re.Match[str]) -> str:
        return f"\x1b[{COLOURS.get(match[0].strip(), '1')}m{match[0]}\x1b[0m"

    return re.sub(pattern, paint, text, flags=re.MULTILINE)


def format_message(message: str) -> str:
    """Return an error or a warning, wrapped, with its prefixes coloured."""
    text = wrap_lines(message.split("\n"), 2)
    return coloured("^(error:|warning:|  -->|  hint:) ", text, 2)


def format_tables(tables: Iterable[Table], fd: int) -> Iterator[str]:
    """Yield tables as text for a standard stream, with an empty line between them."""
    for n, table in enumerate(tables):
        lines = notebook.table_lines(table, terminal_columns(fd), _bar_character(fd))
        text = wrap_lines([*lines, *table.printable().notes], fd)
        yield "\n" * bool(n) + coloured("(?<=  )(ok|broken)$", text, fd)


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


class Progress:
    """A progress bar on a terminal, drawn after the first second, erased when the context exits."""

    def __init__(self, enabled: bool) -> None:
        self._phase = ""
        self._next_draw = time.perf_counter() + _INITIAL_DELAY if enabled else float("inf")
        self._is_drawn = False

    def begin(self, phase: str) -> None:
        """Set the name of the phase beside the bar."""
        self._phase = phase

    def callback(self, nbytes: int) -> Callable[[float], None]:
        """Return a callback for the completed fraction of some bytes, 0 if their number is unknown.

        The fraction 0 restarts the measurement of the rate. Several threads may call it: a race
        only draws the bar twice.
        """
        largest = start = initial = 0.0  # largest fraction; time and fraction of the first call

        def progress(fraction: float) -> None:
            nonlocal largest, start, initial
            now = time.perf_counter()
            if not fraction or not start:
                largest, start, initial = fraction, now, fraction
            largest = max(largest, fraction)
            if now >= self._next_draw:
                self._next_draw = now + 0.1
                self._draw(
                    largest, nbytes, (largest - initial) / (now - start) if now > start else 0.0
                )

        return progress

    def _draw(self, fraction: float, nbytes: int, rate: float) -> None:
        """Draw the bar; rate: the fraction completed per second."""
        self._is_drawn = True
        labels = [self._phase]
        if nbytes:
            labels.append(f"{format_size(round(fraction * nbytes))} of {format_size(nbytes)}")
            labels += [f"{format_size(round(rate * nbytes))}/s"] * (rate > 0)
        if rate > 0:
            labels.append(f"{format_duration(max(1, round((1 - fraction) / rate)))} left")
        columns, text = terminal_columns(2), f"{fraction:4.0%} {', '.join(filter(None, labels))}"
        length = min(columns - len(text) - 1, 40)
        bar = _bar_character(2) * round(fraction * length)
        text = f"{bar.ljust(length)} {text}" if length >= 5 else text
        write_stderr(f"\r{text[:columns]}\x1b[K")

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_drawn:
            write_stderr(b"\r\x1b[K")
