"""A JSON pull parser without recursion, for untrusted text: memory and stack are bounded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import NoReturn

from ndtool.errors import format_value

_GAP = re.compile(r"[ \t\n\r]*")
# Tokens of a skipped value; colons and commas are not validated.
_TOKEN = re.compile(r'[ \t\n\r,:]*("|[\[\]{}]|[-+.0-9A-Za-z]+)')


class Text:
    """A JSON text, parsed sequentially. at: the position. fail: raises an error with a text."""

    def __init__(self, text: str, fail: Callable[[str], NoReturn]) -> None:
        import json

        self.text, self.fail, self.at = text, fail, 0
        self._string = json.JSONDecoder().raw_decode

    def keys(self, what: str) -> Iterable[str]:
        """Yield the keys of an object; the caller parses each value. what: their name in errors."""
        seen = set()
        self._expect("{")
        if self._follows("}"):
            return
        while True:
            key = self.word(f"the name of a {what}")
            if key in seen:
                self.fail(f"two of the name {format_value(key)}: all must differ")
            seen.add(key)
            self._expect(":")
            yield key
            if self._follows("}"):
                return
            self._expect(",")

    def word(self, what: str) -> str:
        """Parse a string; what: the expected value, for the error."""
        self.skip()
        if self.text[self.at : self.at + 1] != '"':
            self.fail(f"expected {what} at character {self.at}")
        try:
            word, self.at = self._string(self.text, self.at)
            word.encode()
        except ValueError:  # invalid JSON, or an unpaired surrogate
            self.fail(f"expected {what} at character {self.at}")
        assert isinstance(word, str)
        return word

    def pass_value(self) -> None:
        """Skip a value of any type."""
        depth = 0
        while True:
            token = _TOKEN.match(self.text, self.at)
            if token is None:
                self.fail(f"expected a value at character {self.at}")
            self.at = token.end()
            if token[1] == '"':
                self.at -= 1
                self.word("a text")
            depth += (token[1] in "[{") - (token[1] in "]}")
            if depth <= 0:
                return

    def end(self) -> None:
        """Require the end of the text."""
        self.skip()
        if self.at < len(self.text):
            self.fail(f"expected the end at character {self.at}")

    def skip(self) -> None:
        match = _GAP.match(self.text, self.at)
        assert match is not None, "it may be empty"
        self.at = match.end()

    def _follows(self, mark: str) -> bool:
        """Skip a delimiter; return whether it was next."""
        self.skip()
        found = self.text.startswith(mark, self.at)
        self.at += found
        return found

    def _expect(self, mark: str) -> None:
        if not self._follows(mark):
            self.fail(f"expected {mark!r} at character {self.at}")
