"""JSON: a list of numbers, of lists or of objects (.json), or one of them a line (.jsonl)."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ndtool.errors import InputError, printable
from ndtool.formats.text import lines
from ndtool.formats.text.numbers import LONGEST, Values
from ndtool.rules import shapes

Read = Callable[[int], bytes]
Batch = tuple[list[Any], Callable[[int], str]]  # elements, and the location of each
_BLANK = " \t\r\n"
_BLANKS = re.compile(f"[{_BLANK}]*")
_NEWLINE = b"\n"
_CLOSING = {"[": "],", "{": "},"}


class _Text(str):
    """A number as text: one that is no integer, or has many digits."""


def _integer(text: str) -> int | _Text:
    return int(text) if len(text) <= LONGEST else _Text(text)


_decoder = json.JSONDecoder(parse_int=_integer, parse_float=_Text, parse_constant=_Text)
_fast = json.JSONDecoder(parse_float=_Text, parse_constant=_Text)


def parse(
    read: Read, suffix: str, selected: tuple[str, ...] | None, values: Values, label: str
) -> tuple[int, ...]:
    """Parse a file; return its shape. selected: keys of objects, None if elements are none."""
    inner: tuple[int, ...] | None = None
    count, batches = 0, _of_lines if suffix == ".jsonl" else _of_list
    for elements, locate in batches(read, label):
        if selected is not None:
            elements = [_select(one, selected, locate(n), label) for n, one in enumerate(elements)]
        if elements and inner is None:
            inner = _shape(elements[0], locate(0), label)
        flat = _flattened(elements, inner or (), locate, label)
        _add(flat, len(flat) // (len(elements) or 1), values, locate)
        count += len(elements)
    if inner is None:
        inner = (len(selected),) if selected is not None and len(selected) > 1 else ()
    return (count, *inner)


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


def _shape(element: Any, location: str, label: str) -> tuple[int, ...]:
    shape: list[int] = []
    while type(element) is list:
        shape.append(len(element))
        if len(shape) >= shapes.MAX_RANK:
            _refuse(label, f"{location}: rank above {shapes.MAX_RANK}")
        element = element[0] if element else None
    return tuple(shape)


def _flattened(
    level: list[Any], shape: tuple[int, ...], locate: Callable[[int], str], label: str
) -> list[Any]:
    """Return the numbers of nested lists in row-major order, without recursion."""
    count = 1  # of the values in `level` for each element
    for size in shape:
        for i, value in enumerate(level):
            if type(value) is not list or len(value) != size:
                expected = f"expected a list of {size}, as before"
                _refuse(label, f"{locate(i // count)}: {_describe(value)}: {expected}")
        level = [entry for values in level for entry in values]
        count *= size
    for i, value in enumerate(level):
        if type(value) not in (int, _Text, bool):
            hint = "name a key, as in ids.json:KEY" if type(value) is dict else ""
            _refuse(label, f"{locate(i // count)}: {_describe(value)}: expected a number", hint)
    return level


def _describe(value: Any) -> str:
    """Describe a value that is not as expected."""
    if type(value) is list:
        return f"a list of {len(value)}"
    return "an object" if type(value) is dict else printable(json.dumps(value), 60)


def _add(flat: list[Any], count: int, values: Values, locate: Callable[[int], str]) -> None:
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


def _of_lines(read: Read, label: str) -> Iterator[Batch]:
    for number, block in lines.blocks(read, label):
        try:
            texts = block.decode().split("\n")
        except UnicodeDecodeError as exc:
            _refuse(label, f"line {number + block.count(_NEWLINE, 0, exc.start)}: not UTF-8")
        numbers = [line for line, text in enumerate(texts, number) if text.strip(_BLANK)]
        elements = [_decoded(texts[line - number], line, label) for line in numbers]
        yield elements, lambda line, numbers=numbers: f"line {numbers[line]}"  # type: ignore[misc]


def _decoded(text: str, number: int, label: str) -> Any:
    reason = "nested too deeply"
    try:
        return _decoder.decode(text)
    except json.JSONDecodeError as exc:
        reason = f"column {exc.colno}: {_reason(exc)}"
    except RecursionError:
        pass
    return _refuse(label, f"line {number}, {reason}")


def _of_list(read: Read, label: str) -> Iterator[Batch]:
    """Yield the elements of a list in batches."""
    text = _ListText(read, label)
    text.skip()
    if text.rest[:1] != "[":
        beginning = printable(text.rest[:20]) if text.rest else "nothing"
        text.refuse(0, f"not a list of numbers: it begins with {beginning}: expected [")
    text.drop(1)
    total, more = 0, False
    while True:
        text.skip()
        if not more and text.rest[:1] == "]":
            break
        elements, more = text.elements()
        first = total
        yield elements, lambda i, first=first: f"element {first + i}"  # type: ignore[misc]
        total += len(elements)
        if not more:
            break
    text.drop(1)
    text.skip()
    if text.rest:
        text.refuse(0, "there is more after the list")


class _ListText:
    """The text of a list, read in buffers. rest: the text that is not parsed yet."""

    def __init__(self, read: Read, label: str) -> None:
        self.rest, self._label, self._line, self._column = "", label, 1, 1
        self._buffers = lines.buffers(read, label)
        self._decode = codecs.getincrementaldecoder("utf-8")().decode
        self._ended = False

    def skip(self) -> None:
        """Drop blanks; read the next buffer if nothing remains."""
        while True:
            self.drop(len(self.rest) - len(self.rest.lstrip(_BLANK)))
            if self.rest or not self._read_more():
                return

    def drop(self, count: int) -> None:
        """Drop characters that are parsed."""
        newlines = self.rest.count("\n", 0, count)
        last = self.rest.rfind("\n", 0, count)
        self._column = count - last if newlines else self._column + count
        self._line += newlines
        self.rest = self.rest[count:]

    def elements(self) -> tuple[list[Any], bool]:
        """Return the next elements, and whether a comma follows; `rest` begins after that."""
        while True:
            end = self.rest.rfind(_CLOSING.get(self.rest[:1], ",")) + (self.rest[:1] in _CLOSING)
            if end > 0:
                try:
                    values: list[Any] = _fast.decode(f"[{self.rest[:end]}]")
                    if values:
                        self.drop(end + 1)
                        return values, True
                except (ValueError, RecursionError):
                    pass
            values, position, more = self._complete_elements()
            if values:
                self.drop(position)
                return values, more
            if len(self.rest) > lines.LONGEST:
                self._raise_error(f"an element of more than {lines.LONGEST} characters")
            if not self._read_more():
                self._raise_error("the list does not end")

    def _complete_elements(self) -> tuple[list[Any], int, bool]:
        """Return complete elements, the index after them, and whether a comma follows."""
        values: list[Any] = []
        position, more = 0, True
        while more:
            begin = self._after_blanks(position)
            try:
                element, stop = _decoder.raw_decode(self.rest, begin)
            except (ValueError, RecursionError):
                break
            stop = self._after_blanks(stop)
            if self.rest[stop : stop + 1] not in (",", "]"):
                break
            more = self.rest[stop] == ","
            values.append(element)
            position = stop + more
        return values, position, more

    def _after_blanks(self, position: int) -> int:
        match = _BLANKS.match(self.rest, position)
        return match.end() if match else position

    def _read_more(self) -> bool:
        if self._ended:
            return False
        buffer = next(self._buffers, None)
        self._ended = buffer is None
        try:
            self.rest += self._decode(buffer or b"", final=self._ended)
        except UnicodeDecodeError:
            _refuse(self._label, f"line {self._line} or later: not UTF-8")
        return True

    def _raise_error(self, default: str) -> NoReturn:
        """Raise the error at the position of the first character that is not JSON."""
        try:
            _, stop = _decoder.raw_decode(self.rest, 0)
            stop = self._after_blanks(stop)
            if stop < len(self.rest):
                self.refuse(stop, "expected , or ]")
        except json.JSONDecodeError as exc:
            if exc.pos < len(self.rest):
                self.refuse(exc.pos, _reason(exc))
        except RecursionError:
            self.refuse(0, "nested too deeply")
        self.refuse(0, default)

    def refuse(self, position: int, text: str) -> NoReturn:
        """Raise InputError with the line and column of a character."""
        self.drop(position)
        _refuse(self._label, f"line {self._line}, column {self._column}: {text}")


def _reason(exc: json.JSONDecodeError) -> str:
    return f"not JSON: {exc.msg[:1].lower()}{exc.msg[1:]}"


def _refuse(label: str, text: str, hint: str = "") -> NoReturn:
    raise InputError(f"{printable(label)}: {text}", hint=hint) from None
