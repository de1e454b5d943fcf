"""The two streams: results on standard output, talk on standard error."""

import sys
from typing import TextIO

from ndtool.arrays.storage import write_next
from ndtool.errors import OutputError


def put(text: str | bytes) -> None:
    """Write a result to standard output; OutputError if it cannot take it."""
    try:
        write_next(1, _encoded(text, sys.stdout))
    except BrokenPipeError:
        raise
    except OSError as exc:
        raise OutputError(f"standard output: {exc.strerror}") from None


def say(text: str | bytes) -> None:
    """Write talk to standard error; where it is closed or full, there is nobody to tell."""
    try:
        write_next(2, _encoded(text, sys.stderr))
    except OSError:
        pass


def _encoded(text: str | bytes, stream: TextIO | None) -> bytes:
    if isinstance(text, bytes):
        return text
    return text.encode(getattr(stream, "encoding", None) or "utf-8", "backslashreplace")
