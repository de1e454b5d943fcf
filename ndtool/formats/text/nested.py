"""JSON text: a list of numbers, lists or objects (.json), or an element of it per line (.jsonl)."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from operator import itemgetter
from typing import Any, NoReturn

from ndtool.errors import ResourceError, format_value, printable, refuse
from ndtool.formats.text import lines
from ndtool.formats.text.lines import Read
from ndtool.formats.text.values import INT64_MAX, NotIntegersError, Values
from ndtool.machine import memory
from ndtool.rules import mistakes, shapes

# Elements; a function that locates an element by its index; one that returns the elements again,
# with the text of each number.
Batch = tuple[list[Any], Callable[[int], str], Callable[[], list[Any]]]
_WHITESPACE = " \t\r\n"
_FIRST_FLOAT = re.compile(rf"[\[{_WHITESPACE}]*-?[0-9]+[.eE]")
_MINUS_ZERO = re.compile("-0(?![0-9.eE])")
_PER_BYTE = 8  # bytes of memory that a byte of a list's text takes while it is parsed
_MIN_LIMIT = 64 << 20  # bytes of a list's text that are always read
_SEPARATOR = os.urandom(8).hex()  # between the lines of a text that are parsed together


class _NumberText(str):
    """The text of a number."""


class _Object(tuple[tuple[str, Any], ...]):
    """The keys and values of an object in which a key is repeated, in order."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any] | _Object:
    fields = dict(pairs)
    return fields if len(fields) == len(pairs) else _Object(pairs)


_decoder = json.JSONDecoder(object_pairs_hook=_object)
_exact_decoder = json.JSONDecoder(
    object_pairs_hook=_object,
    parse_int=_NumberText,
    parse_float=_NumberText,
    parse_constant=_NumberText,
)


def parse(
    read: Read, suffix: str, selected: tuple[str, ...] | None, values: Values, label: str
) -> tuple[int, ...]:
    """Parse a file; return its shape. selected: keys, None if the elements are not objects."""
    inner_shape: tuple[int, ...] | None = None
    count, batches = 0, _read_list if suffix == ".json" else _read_lines
    for elements, locate, decode_exactly in batches(read, values, label):
        items = _select_all(elements, selected, locate, label)
        if items and inner_shape is None:
            inner_shape = _element_shape(items[0], locate(0), label)
        flat, types = _flatten(items, inner_shape or (), locate, label)
        if not _add_numbers(flat, types, values):
            items = _select_all(decode_exactly(), selected, locate, label)
            flat, _ = _flatten(items, inner_shape or (), locate, label)
            _add_texts(flat, len(flat) // (len(items) or 1), values, locate)
        count += len(items)
    if inner_shape is None:
        if suffix != ".json" and values.are_indices:
            refuse(label, "the text is empty: expected an element of the array in each line")
        inner_shape = (len(selected),) if selected is not None and len(selected) > 1 else ()
    return (count, *inner_shape)


def _select_all(
    elements: list[Any], selected: tuple[str, ...] | None, locate: Callable[[int], str], label: str
) -> list[Any]:
    """Return the values of the selected keys of each element."""
    if selected is None:
        return elements
    get = itemgetter(*selected)
    if set(map(type, elements)) <= {dict}:
        with suppress(KeyError):
            found = list(map(get, elements))
            return found if len(selected) == 1 else list(map(list, found))
    n, element = next(
        (n, element)
        for n, element in enumerate(elements)
        if type(element) is not dict or not element.keys() >= set(selected)
    )
    return _refuse_object(element, selected, locate(n), label)


def _refuse_object(element: Any, selected: tuple[str, ...], location: str, label: str) -> NoReturn:
    """Raise InputError about an element that lacks a selected key, or has a key twice."""
    if type(element) not in (dict, _Object):
        expected = f"expected an object with {printable(selected[0])}"
        refuse(label, f"{location}: {_describe(element)}: {expected}")
    keys = Counter(element if type(element) is dict else [key for key, _ in element])
    for key, count in keys.items():
        if count > 1:
            refuse(label, f"{location}: the key {format_value(key)} {count} times")
    missing = next(key for key in selected if key not in keys)
    expected = printable(", ".join(islice(keys, 10)))
    refuse(label, f"{location}: no key {printable(repr(missing))}: expected one of {expected}")


def _element_shape(element: Any, location: str, label: str) -> tuple[int, ...]:
    shape: list[int] = []
    while type(element) is list:
        shape.append(len(element))
        if len(shape) >= shapes.MAX_RANK:
            refuse(label, f"{location}: rank above {shapes.MAX_RANK}")
        element = element[0] if element else None
    return tuple(shape)


def _flatten(
    level: list[Any], shape: tuple[int, ...], locate: Callable[[int], str], label: str
) -> tuple[list[Any], set[type]]:
    """Return the numbers of nested lists in row-major order, and their types; no recursion."""
    count = 1  # number of values in `level` for each element
    for size in shape:
        if set(map(type, level)) - {list} or set(map(len, level)) - {size}:
            i, value = next(
                (i, value)
                for i, value in enumerate(level)
                if type(value) is not list or len(value) != size
            )
            expected = f"expected a list of {size}, as before"
            refuse(label, f"{locate(i // count)}: {_describe(value)}: {expected}")
        level = list(chain.from_iterable(level))
        count *= size
    types = set(map(type, level))
    if invalid := types - {int, float, bool, _NumberText}:
        i, value = next((i, value) for i, value in enumerate(level) if type(value) in invalid)
        hint = ""
        if type(value) in (dict, _Object) and value:
            hint = f"name a key. Then: {mistakes.quote(f'{label}:{next(iter(dict(value)))}')}"
        refuse(label, f"{locate(i // count)}: {_describe(value)}: expected a number", hint)
    return level, types


def _describe(value: Any) -> str:
    """Describe an unexpected value in words."""
    if type(value) is list:
        return f"a list of {len(value)}"
    if type(value) in (dict, _Object):
        return "an object"
    return str(value) if type(value) is _NumberText else printable(json.dumps(value), 60)


def _add_numbers(flat: list[Any], types: set[type], values: Values) -> bool:
    """Add numbers of some types; return False if that requires their text."""
    import numpy as np

    if values.infers_type and float in types and types <= {int, float}:
        first = next(n for n in flat if type(n) is float or not 0 <= n <= INT64_MAX)
        if type(first) is float:  # as `values.add` does, which takes the text of each number
            raise NotIntegersError
    if not values.fast_type or types - {int, float} or (values.fast_type == "q" and float in types):
        return not flat
    try:
        array = np.array(flat, np.int64 if values.fast_type == "q" else np.float64)
    except OverflowError:
        return False
    if values.fast_type == "d":
        integers = (str(value) for value in flat if type(value) is int) if int in types else ()
        text = "\n".join(integers).encode()
        return not np.isinf(array).any() and values.add_array(array, text)
    return values.add_array(array)


def _add_texts(flat: list[Any], count: int, values: Values, locate: Callable[[int], str]) -> None:
    texts = [str(element).lower() if type(element) is bool else str(element) for element in flat]

    def location(i: int) -> str:
        return locate(i // count) + (f", number {i % count}" if count > 1 else "")

    values.add(texts, location)


def _decode(text: str, decoder: json.JSONDecoder = _decoder) -> Any:
    """Decode JSON; numbers remain text if some of them need it."""
    if decoder is _decoder and "-0" in text and _MINUS_ZERO.search(text):
        decoder = _exact_decoder
    try:
        return decoder.decode(text)
    except json.JSONDecodeError:
        raise
    except ValueError:  # an integer with too many digits for Python
        return _exact_decoder.decode(text)


def _read_lines(read: Read, values: Values, label: str) -> Iterator[Batch]:
    blocks = lines.read_blocks(read, label)
    for first_line, block in _with_first_line_alone(blocks) if values.infers_type else blocks:
        try:
            content = block.decode()
        except UnicodeDecodeError as exc:
            line_number = first_line + block.count(b"\n", 0, exc.start)
            refuse(label, f"line {line_number}: not UTF-8")
        texts = content.split("\n")
        line_numbers = [n for n, text in enumerate(texts, first_line) if text.strip(_WHITESPACE)]
        kept = [texts[n - first_line] for n in line_numbers]

        def locate(i: int, line_numbers: list[int] = line_numbers) -> str:
            return f"line {line_numbers[i]}"

        def decode(
            decoder: json.JSONDecoder = _exact_decoder,
            kept: list[str] = kept,
            line_numbers: list[int] = line_numbers,
        ) -> list[Any]:
            elements = _decode_together(kept, decoder)
            if elements is None:
                pairs = zip(kept, line_numbers, strict=True)
                elements = [_decode_line(text, n, decoder, label) for text, n in pairs]
            return elements

        yield decode(_decoder), locate, decode


def _with_first_line_alone(blocks: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    """Yield blocks, the first line as one: if it has a float, no other line is decoded in vain."""
    for first_line, block in blocks:
        if first_line == 1:
            line, newline, block = block.partition(b"\n")
            yield 1, line + newline
            first_line = 2
        if block:
            yield first_line, block


def _decode_together(texts: list[str], decoder: json.JSONDecoder) -> list[Any] | None:
    """Decode lines as one list, with separators between them; None if a line is not one element."""
    try:
        elements: list[Any] = _decode("[" + f',"{_SEPARATOR}",'.join(texts) + "]", decoder)
    except (ValueError, RecursionError):
        return None
    separators = elements[1::2]
    is_complete = len(elements) == max(2 * len(texts) - 1, 0)
    is_valid = is_complete and separators.count(_SEPARATOR) == len(separators)
    return elements[::2] if is_valid else None


def _decode_line(text: str, line_number: int, decoder: json.JSONDecoder, label: str) -> Any:
    try:
        return _decode(text, decoder)
    except json.JSONDecodeError as exc:
        refuse(label, f"line {line_number}, column {exc.colno}: {_json_error(exc)}")
    except RecursionError:
        refuse(label, f"line {line_number}, nested too deeply")


def _read_list(read: Read, values: Values, label: str) -> Iterator[Batch]:
    """Yield the elements of a list, which is parsed at once."""
    text = _read_document(read, label)
    start = len(text) - len(text.lstrip(_WHITESPACE))
    if text[start : start + 1] != "[":
        beginning = printable(text[start : start + 20]) if text[start:] else "nothing"
        problem = f"not a list of numbers: it begins with {beginning}: expected ["
        refuse(label, f"{_location(text, start)}: {problem}")
    if values.infers_type and _FIRST_FLOAT.match(text):
        raise NotIntegersError  # before all of them are decoded
    try:
        elements = _decode(text)
    except json.JSONDecodeError as exc:
        problem = _json_error(exc) if text[exc.pos :].strip() else "the list does not end"
        refuse(label, f"{_location(text, exc.pos)}: {problem}")
    except RecursionError:
        refuse(label, f"{_location(text, start)}: nested too deeply")
    decode = partial(_exact_decoder.decode, text)
    yield elements, "element {}".format, decode


def _read_document(read: Read, label: str) -> str:
    """Read a complete text; ResourceError if it would take more memory than is available."""
    blocks, nbytes, limit = list[bytes](), 0, _MIN_LIMIT
    for block in lines.read_buffers(read, label):
        blocks.append(block)
        nbytes += len(block)
        if nbytes > limit and nbytes > (limit := max(_MIN_LIMIT, memory.available() // _PER_BYTE)):
            raise ResourceError(
                f"{printable(label)}: a list of more than {limit} bytes does not fit in memory",
                hint="JSON Lines, .jsonl, are read line by line",
            )
    raw = b"".join(blocks)
    blocks.clear()
    try:
        return raw.decode()
    except UnicodeDecodeError as exc:
        line = raw.count(b"\n", 0, exc.start) + 1
        return refuse(label, f"line {line}: not UTF-8")


def _location(text: str, position: int) -> str:
    line, line_start = text.count("\n", 0, position) + 1, text.rfind("\n", 0, position) + 1
    return f"line {line}, column {position - line_start + 1}"


def _json_error(exc: json.JSONDecodeError) -> str:
    return f"not JSON: {exc.msg[:1].lower()}{exc.msg[1:]}"
