"""A JSON pull parser without recursion, for untrusted text: memory and stack are bounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NoReturn

from ndtool.errors import format_value

_WHITESPACE = re.compile(r"[ \t\n\r]*")
# Tokens of a skipped value; colons and commas are not validated.
_TOKEN = re.compile(r'[ \t\n\r,:]*("|[\[\]{}]|[-+.0-9A-Za-z]+)')


class Parser:
    """A sequential parser of a JSON text. fail: raises an error with a message."""

    def __init__(self, text: str, fail: Callable[[str], NoReturn]) -> None:
        import json

        self.text, self.fail, self.position = text, fail, 0
        self._decode = json.JSONDecoder().raw_decode

    def keys(self, noun: str) -> Iterable[str]:
        """Yield the keys of an object; the caller parses each value. noun: of an item in errors."""
        keys = set()
        self._expect("{")
        if self._skip_delimiter("}"):
            return
        while True:
            key = self.string(f"the name of a {noun}")
            if key in keys:
                self.fail(f"two of the name {format_value(key)}: all must differ")
            keys.add(key)
            self._expect(":")
            yield key
            if self._skip_delimiter("}"):
                return
            self._expect(",")

    def string(self, expected: str) -> str:
        """Parse a string. expected: its description in errors."""
        self.skip_whitespace()
        if self.text[self.position : self.position + 1] != '"':
            self.fail(f"expected {expected} at character {self.position}")
        try:
            value, self.position = self._decode(self.text, self.position)
            value.encode()
        except ValueError:  # invalid JSON, or an unpaired surrogate
            self.fail(f"expected {expected} at character {self.position}")
        assert isinstance(value, str)
        return value

    def skip_value(self) -> None:
        """Skip a value of any type."""
        depth = 0
        while True:
            token = _TOKEN.match(self.text, self.position)
            if token is None:
                self.fail(f"expected a value at character {self.position}")
            self.position = token.end()
            if token[1] == '"':
                self.position -= 1
                self.string("a text")
            depth += (token[1] in "[{") - (token[1] in "]}")
            if depth <= 0:
                return

    def require_end(self) -> None:
        """Require the end of the text."""
        self.skip_whitespace()
        if self.position < len(self.text):
            self.fail(f"expected the end at character {self.position}")

    def skip_whitespace(self) -> None:
        match = _WHITESPACE.match(self.text, self.position)
        assert match is not None, "it may be empty"
        self.position = match.end()

    def _skip_delimiter(self, delimiter: str) -> bool:
        """Skip whitespace and a delimiter; return False if another character follows."""
        self.skip_whitespace()
        is_next = self.text.startswith(delimiter, self.position)
        self.position += is_next
        return is_next

    def _expect(self, delimiter: str) -> None:
        if not self._skip_delimiter(delimiter):
            self.fail(f"expected {delimiter!r} at character {self.position}")
