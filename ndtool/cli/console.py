"""The standard streams: text and tables, wrapped to a terminal; a progress bar on stderr."""

from __future__ import annotations

import errno
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from ndtool.cli.wrapping import terminal_columns, wrap_lines
from ndtool.errors import OutputError, format_size
from ndtool.storage.descriptors import write_next

if TYPE_CHECKING:
    from ndtool.notebook import Table

_INITIAL_DELAY = 1.0  # seconds before the first progress bar


def write_stdout(text: str | bytes) -> None:
    """Write a result to standard output; raise OutputError on failure."""
    try:
        write_next(1, _encode(text, sys.stdout))
    except BrokenPipeError:
        raise
    except OSError as exc:
        reason = "it is closed" if exc.errno == errno.EBADF else exc.strerror
        raise OutputError(f"standard output: {reason}") from None


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


def format_table(table: Table, fd: int) -> Iterator[str | bytes]:
    """Yield a table as text: styled on a terminal, or if FORCE_COLOR is set."""
    from ndtool import notebook

    columns = terminal_columns(fd)
    is_styled = (os.isatty(fd) or bool(os.environ.get("FORCE_COLOR"))) and not table.bars
    table = table.printable().with_bars(columns, _bar_character(fd))
    if table.columns and is_styled:
        from ndtool.cli import styled

        yield styled.format_table(table, fd)
        yield wrap_lines(table.notes, fd)
    else:
        yield wrap_lines(notebook.plain_table(table, columns).splitlines(), fd)


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
        from ndtool.cli import styled

        self._is_drawn = True
        labels = [self._phase]
        if nbytes:
            labels.append(f"{format_size(round(fraction * nbytes))} of {format_size(nbytes)}")
            labels += [f"{format_size(round(rate * nbytes))}/s"] * (rate > 0)
        if rate > 0:
            labels.append(f"{format_duration(max(1, round((1 - fraction) / rate)))} left")
        write_stderr(styled.format_progress(fraction, ", ".join(filter(None, labels))))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_drawn:
            write_stderr(b"\r\x1b[K")
