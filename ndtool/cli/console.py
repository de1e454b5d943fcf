"""The standard streams: results on stdout; messages and a progress bar on stderr."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TextIO

from ndtool.errors import OutputError, format_size
from ndtool.storage.descriptors import write_next

_BLOCK = 1 << 16  # characters to write at a time
_INITIAL_DELAY = 1.0  # seconds before the first progress bar


def write_stdout(text: str | bytes) -> None:
    """Write a result to standard output; raise OutputError on failure."""
    try:
        write_next(1, _encode(text, sys.stdout))
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise OutputError(f"standard output: {exc.strerror}") from None


def write_stdout_blocks(fragments: Iterable[str]) -> None:
    """Write a result of any length, in large blocks."""
    texts, size = list[str](), 0
    for fragment in fragments:
        texts.append(fragment)
        size += len(fragment)
        if size >= _BLOCK:
            write_stdout("".join(texts))
            texts, size = [], 0
    if texts:
        write_stdout("".join(texts))


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


def is_open_as(path: str, fd: int) -> bool:
    """Whether a path is the file at a descriptor."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except (OSError, ValueError):
        return False


class Progress:
    """A progress bar on a terminal, after the first second; a context manager that erases it."""

    def __init__(self, enabled: bool) -> None:
        self._phase = ""
        self._next_draw = time.perf_counter() + _INITIAL_DELAY if enabled else float("inf")
        self._is_drawn = False

    def begin(self, phase: str) -> None:
        """Set the name of the phase that the bar shows."""
        self._phase = phase

    def callback(self, nbytes: int) -> Callable[[float], None]:
        """Return a progress callback for work on some bytes, 0 if unknown.

        The fraction 0 restarts the clock. Threads may call it; at worst the bar is drawn twice.
        """
        largest = start = initial = (
            0.0  # the largest fraction; the time and fraction of the initial call
        )

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
        """Draw the bar; rate: the fraction done per second."""
        from ndtool.cli import records, styled

        self._is_drawn = True
        labels = [self._phase]
        if nbytes:
            labels.append(f"{format_size(round(fraction * nbytes))} of {format_size(nbytes)}")
            labels += [f"{format_size(round(rate * nbytes))}/s"] * (rate > 0)
        if rate > 0:
            labels.append(f"{records.format_duration(max(1, round((1 - fraction) / rate)))} left")
        write_stderr(styled.format_progress(fraction, ", ".join(filter(None, labels))))

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_drawn:
            write_stderr(b"\r\x1b[K")
