"""JSON text: a list of numbers, lists or objects (.json), or an element of it per line (.jsonl)."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ndtool.errors import InputError, printable
from ndtool.formats.text import lines
from ndtool.formats.text.numbers import MAX_NUMBER_LENGTH, Values
from ndtool.rules import shapes

Read = Callable[[int], bytes]
Batch = tuple[list[Any], Callable[[int], str]]  # elements; a function that locates one by its index
_WHITESPACE = " \t\r\n"
_WHITESPACE_RUN = re.compile(f"[{_WHITESPACE}]*")
_NEWLINE = b"\n"
_CLOSING = {"[": "],", "{": "},"}


class _NumberText(str):
    """The text of a number that is not an integer, or has many digits."""


def _parse_integer(text: str) -> int | _NumberText:
    return int(text) if len(text) <= MAX_NUMBER_LENGTH else _NumberText(text)


_decoder = json.JSONDecoder(
    parse_int=_parse_integer, parse_float=_NumberText, parse_constant=_NumberText
)
_fast_decoder = json.JSONDecoder(parse_float=_NumberText, parse_constant=_NumberText)


def parse(
    read: Read, suffix: str, selected: tuple[str, ...] | None, values: Values, label: str
) -> tuple[int, ...]:
    """Parse a file; return its shape. selected: keys, None if the elements are not objects."""
    inner_shape: tuple[int, ...] | None = None
    count, batches = 0, _read_lines if suffix == ".jsonl" else _read_list
    for elements, locate in batches(read, label):
        if selected is not None:
            elements = [
                _select(element, selected, locate(n), label) for n, element in enumerate(elements)
            ]
        if elements and inner_shape is None:
            inner_shape = _element_shape(elements[0], locate(0), label)
        flat = _flatten(elements, inner_shape or (), locate, label)
        _add_values(flat, len(flat) // (len(elements) or 1), values, locate)
        count += len(elements)
    if inner_shape is None:
        inner_shape = (len(selected),) if selected is not None and len(selected) > 1 else ()
    return (count, *inner_shape)


def _select(element: Any, keys: tuple[str, ...], location: str, label: str) -> Any:
    if type(element) is not dict:
        _refuse(
            label, f"{location}: {_describe(element)}: expected an object with {printable(keys[0])}"
        )
    for key in keys:
        if key not in element:
            keys_text = ", ".join(list(element)[:10])
            _refuse(
                label, f"{location}: no key {printable(repr(key))}: expected one of {keys_text}"
            )
    values = [element[key] for key in keys]
    return values[0] if len(keys) == 1 else values


def _element_shape(element: Any, location: str, label: str) -> tuple[int, ...]:
    shape: list[int] = []
    while type(element) is list:
        shape.append(len(element))
        if len(shape) >= shapes.MAX_RANK:
            _refuse(label, f"{location}: rank above {shapes.MAX_RANK}")
        element = element[0] if element else None
    return tuple(shape)


def _flatten(
    level: list[Any], shape: tuple[int, ...], locate: Callable[[int], str], label: str
) -> list[Any]:
    """Return the numbers of nested lists in row-major order, without recursion."""
    count = 1  # number of values in `level` for each element
    for size in shape:
        for i, value in enumerate(level):
            if type(value) is not list or len(value) != size:
                expected = f"expected a list of {size}, as before"
                _refuse(label, f"{locate(i // count)}: {_describe(value)}: {expected}")
        level = [entry for values in level for entry in values]
        count *= size
    for i, value in enumerate(level):
        if type(value) not in (int, _NumberText, bool):
            hint = "name a key, as in ids.json:KEY" if type(value) is dict else ""
            _refuse(label, f"{locate(i // count)}: {_describe(value)}: expected a number", hint)
    return level


def _describe(value: Any) -> str:
    """Describe an unexpected value in words."""
    if type(value) is list:
        return f"a list of {len(value)}"
    return "an object" if type(value) is dict else printable(json.dumps(value), 60)


def _add_values(flat: list[Any], count: int, values: Values, locate: Callable[[int], str]) -> None:
    import numpy as np

    if values.fast_type == "q" and all(type(element) is int for element in flat):
        try:
            if values.add_array(np.array(flat, np.int64)):
                return
        except OverflowError:
            pass
    texts = [str(element).lower() if type(element) is bool else element for element in flat]

    def location(i: int) -> str:
        return locate(i // count) + (f", number {i % count}" if count > 1 else "")

    values.add(texts, location)


def _read_lines(read: Read, label: str) -> Iterator[Batch]:
    for first_line, block in lines.read_blocks(read, label):
        try:
            texts = block.decode().split("\n")
        except UnicodeDecodeError as exc:
            _refuse(label, f"line {first_line + block.count(_NEWLINE, 0, exc.start)}: not UTF-8")
        line_numbers = [n for n, text in enumerate(texts, first_line) if text.strip(_WHITESPACE)]
        elements = [_decode_line(texts[n - first_line], n, label) for n in line_numbers]
        yield elements, lambda i, line_numbers=line_numbers: f"line {line_numbers[i]}"  # type: ignore[misc]


def _decode_line(text: str, line_number: int, label: str) -> Any:
    reason = "nested too deeply"
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as exc:
        reason = f"column {exc.colno}: {_json_error(exc)}"
    except RecursionError:
        pass
    return _refuse(label, f"line {line_number}, {reason}")


def _read_list(read: Read, label: str) -> Iterator[Batch]:
    """Yield the elements of a list in batches."""
    text = _ListText(read, label)
    text.skip_whitespace()
    if text.remaining[:1] != "[":
        beginning = printable(text.remaining[:20]) if text.remaining else "nothing"
        text.raise_error(0, f"not a list of numbers: it begins with {beginning}: expected [")
    text.consume(1)
    total, has_more = 0, False
    while True:
        text.skip_whitespace()
        if not has_more and text.remaining[:1] == "]":
            break
        elements, has_more = text.read_elements()
        first = total
        yield elements, lambda i, first=first: f"element {first + i}"  # type: ignore[misc]
        total += len(elements)
        if not has_more:
            break
    text.consume(1)
    text.skip_whitespace()
    if text.remaining:
        text.raise_error(0, "unexpected text after the list")


class _ListText:
    """The text of a list, read in buffers. remaining: the text that is not parsed yet."""

    def __init__(self, read: Read, label: str) -> None:
        self.remaining, self._label, self._line, self._column = "", label, 1, 1
        self._read_buffers = lines.read_buffers(read, label)
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._is_at_end = False

    def skip_whitespace(self) -> None:
        """Consume whitespace; read the next buffer if no text remains."""
        while True:
            self.consume(len(self.remaining) - len(self.remaining.lstrip(_WHITESPACE)))
            if self.remaining or not self._read_more():
                return

    def consume(self, count: int) -> None:
        """Remove parsed characters, and count lines and columns."""
        newlines = self.remaining.count("\n", 0, count)
        last = self.remaining.rfind("\n", 0, count)
        self._column = count - last if newlines else self._column + count
        self._line += newlines
        self.remaining = self.remaining[count:]

    def read_elements(self) -> tuple[list[Any], bool]:
        """Consume the next elements and a comma; return them, and whether a comma follows."""
        while True:
            end = self.remaining.rfind(_CLOSING.get(self.remaining[:1], ",")) + (
                self.remaining[:1] in _CLOSING
            )
            if end > 0:
                try:
                    values: list[Any] = _fast_decoder.decode(f"[{self.remaining[:end]}]")
                    if values:
                        self.consume(end + 1)
                        return values, True
                except (ValueError, RecursionError):
                    pass
            values, position, has_more = self._complete_elements()
            if values:
                self.consume(position)
                return values, has_more
            if len(self.remaining) > lines.MAX_LINE_BYTES:
                self._raise_syntax_error(
                    f"an element of more than {lines.MAX_LINE_BYTES} characters"
                )
            if not self._read_more():
                self._raise_syntax_error("the list does not end")

    def _complete_elements(self) -> tuple[list[Any], int, bool]:
        """Return the complete elements of the text read so far, their end, and if a comma"
        " follows."""
        values: list[Any] = []
        position, has_more = 0, True
        while has_more:
            start = self._find_token(position)
            try:
                element, stop = _decoder.raw_decode(self.remaining, start)
            except (ValueError, RecursionError):
                break
            stop = self._find_token(stop)
            if self.remaining[stop : stop + 1] not in (",", "]"):
                break
            has_more = self.remaining[stop] == ","
            values.append(element)
            position = stop + has_more
        return values, position, has_more

    def _find_token(self, position: int) -> int:
        match = _WHITESPACE_RUN.match(self.remaining, position)
        return match.end() if match else position

    def _read_more(self) -> bool:
        if self._is_at_end:
            return False
        buffer = next(self._read_buffers, None)
        self._is_at_end = buffer is None
        try:
            self.remaining += self._decode(buffer or b"", final=self._is_at_end)
        except UnicodeDecodeError:
            _refuse(self._label, f"line {self._line} or later: not UTF-8")
        return True

    def _raise_syntax_error(self, default: str) -> NoReturn:
        """Raise InputError at the first character that is not valid JSON. default: its text."""
        try:
            _, stop = _decoder.raw_decode(self.remaining, 0)
            stop = self._find_token(stop)
            if stop < len(self.remaining):
                self.raise_error(stop, "expected , or ]")
        except json.JSONDecodeError as exc:
            if exc.pos < len(self.remaining):
                self.raise_error(exc.pos, _json_error(exc))
        except RecursionError:
            self.raise_error(0, "nested too deeply")
        self.raise_error(0, default)

    def raise_error(self, position: int, text: str) -> NoReturn:
        """Raise InputError with the line and column of the character at a position."""
        self.consume(position)
        _refuse(self._label, f"line {self._line}, column {self._column}: {text}")


def _json_error(exc: json.JSONDecodeError) -> str:
    return f"not JSON: {exc.msg[:1].lower()}{exc.msg[1:]}"


def _refuse(label: str, text: str, hint: str = "") -> NoReturn:
    raise InputError(f"{printable(label)}: {text}", hint=hint) from None
