"""A fast parser of blocks of rows, by NumPy; it returns None if the result is uncertain."""

from __future__ import annotations

import re
import warnings
from typing import Any

from ndtool.formats.text import arrowcsv
from ndtool.formats.text.numbers import INT64_MAX, INT64_MIN, UINT64_MAX

_VALID_BYTES = {"q": b"0123456789-", "d": b"0123456789-+.eE"}
_NEWLINE, _QUOTE, _ZERO, _NINE = b'\n"09'
_COMMENT = re.compile(rb"^[ \t]*#", re.MULTILINE)
_BLANK_LINES = re.compile(rb"\n\n+")
_BLANKS = re.compile(rb"[ \t]+")
_PADDED_DELIMITERS = {
    delimiter: re.compile(rb"[%b]*([%b\n])[%b]*" % (blanks, delimiter, blanks))
    for delimiter, blanks in ((b",", b" \t"), (b";", b" \t"), (b"\t", b" "), (b" ", b" "))
}


def parse(
    block: bytes,
    delimiter: bytes,
    width: int,
    columns: tuple[int, ...],
    kind: str,
    use_arrow: bool = False,
) -> Any | None:
    """Return the numbers of the selected columns in a block of lines, in row-major order, or None.

    width: the number of fields in a row. kind: "q" for int64 or uint64, "d" for float64. use_arrow:
    whether to try pyarrow, whose import is worthwhile for large files only.
    """
    if not kind or (b"#" in block and _COMMENT.search(block)):
        return None
    selected = tuple(sorted(set(columns)))
    numbers = None
    if use_arrow and len(selected) < width and _is_quoted(block, delimiter):
        numbers = arrowcsv.parse(block, delimiter, width, selected, kind)
    if numbers is None:
        numbers = _parse_columns(block, delimiter, width, selected, kind)
    if numbers is None and (b" " in block or b"\t" in block):  # fields may be padded with blanks
        if delimiter == b" ":
            block = _BLANKS.sub(b" ", block)
        numbers = _parse_columns(
            _PADDED_DELIMITERS[delimiter].sub(rb"\1", block), delimiter, width, selected, kind
        )
    if numbers is None or columns == selected:
        return numbers
    return numbers.reshape(-1, len(selected))[
        :, [selected.index(column) for column in columns]
    ].copy()


def _parse_columns(
    block: bytes, delimiter: bytes, width: int, selected: tuple[int, ...], kind: str
) -> Any | None:
    """Return the numbers of columns that are selected in ascending order, or None."""
    if b"\n\n" in block or block[:1] == b"\n":
        block = _BLANK_LINES.sub(b"\n", block).lstrip(b"\n")
    if len(selected) < width or b'"' in block:
        values = _extract_columns(block, delimiter, width, selected)
        if values is None or b'""' in values:
            return None
        block = values.replace(b'"', b"")
    return _parse_numbers(block, delimiter, len(selected), kind)


def _parse_numbers(block: bytes, delimiter: bytes, width: int, kind: str) -> Any | None:
    """Return all numbers of a block; None if a field is empty, or has other characters."""
    import numpy as np

    valid = _VALID_BYTES[kind] + b"\n" + (delimiter if width > 1 else b"")
    if block.translate(None, valid):
        return None
    if not block:
        return np.empty(0, np.int64)
    characters = np.frombuffer(block, np.uint8)
    ends = (
        (characters == _NEWLINE) | (characters == delimiter[0])
        if width > 1
        else characters == _NEWLINE
    )
    digits = (characters >= _ZERO) & (characters <= _NINE)
    if ends[0] or (ends[1:] & ~digits[:-1]).any():  # an empty field, or one such as "-"
        return None
    if width > 1 and not _is_table(characters[ends], width):
        return None
    # As no field is empty, equal counts mean one number in each field.
    if width > 1:
        block = block.replace(delimiter, b" ")
    dtype = np.dtype(np.float64 if kind == "d" else np.int64 if b"-" in block else np.uint64)
    with warnings.catch_warnings():
        # For invalid text, NumPy before 2.3 warns, and returns the numbers before it.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(block, dtype, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    if len(values) != np.count_nonzero(ends):
        return None
    if kind == "q":  # numbers out of range become the limits
        limits = (INT64_MIN, INT64_MAX) if dtype.kind == "i" else (-1, UINT64_MAX)
        if int(values.min()) == limits[0] or int(values.max()) == limits[1]:
            return None
    return values


def _is_table(ends: Any, width: int) -> bool:
    """Whether all rows have `width` fields. ends: the delimiter or newline after each field."""
    if len(ends) % width:
        return False
    rows = ends.reshape(-1, width)
    return bool((rows[:, -1] == _NEWLINE).all() and (rows[:, :-1] != _NEWLINE).all())


def _extract_columns(
    block: bytes, delimiter: bytes, width: int, selected: tuple[int, ...]
) -> bytes | None:
    """Return a block with the selected columns; fields of other columns may have any text."""
    import numpy as np

    if not block:
        return block
    characters = np.frombuffer(block, np.uint8)
    ends = (characters == _NEWLINE) | (characters == delimiter[0])
    if b'"' in block:
        in_quotes = _find_quoted(characters, ends)
        if in_quotes is None:
            return None
        ends &= ~in_quotes
    end_positions = np.flatnonzero(ends)
    if not _is_table(characters[end_positions], width):
        return None
    stops = end_positions.reshape(-1, width)
    starts = np.concatenate(([0], end_positions[:-1] + 1)).reshape(-1, width)
    selection_changes = np.zeros(len(characters) + 1, np.int8)
    for column in selected:
        selection_changes[starts[:, column]] += 1
        selection_changes[stops[:, column] + 1] -= 1
    selected_bytes = characters[np.cumsum(selection_changes[:-1], dtype=np.int8).view(bool)]
    ends = (selected_bytes == _NEWLINE) | (selected_bytes == delimiter[0])
    if np.count_nonzero(ends) != stops.shape[0] * len(selected):
        return None  # a quoted field contains a delimiter
    delimiters = np.full(len(selected), delimiter[0], np.uint8)
    delimiters[-1] = _NEWLINE
    selected_bytes[ends] = np.tile(delimiters, stops.shape[0])
    return bytes(selected_bytes.tobytes())


def _is_quoted(block: bytes, delimiter: bytes) -> bool:
    """Whether the quotes of a block, if any, are well-formed."""
    if b'"' not in block:
        return True
    import numpy as np

    characters = np.frombuffer(block, np.uint8)
    return (
        _find_quoted(characters, (characters == _NEWLINE) | (characters == delimiter[0]))
        is not None
    )


def _find_quoted(characters: Any, ends: Any) -> Any | None:
    """Return a mask of quoted characters; None unless quotes enclose fields and end in lines."""
    import numpy as np

    quotes = characters == _QUOTE
    in_quotes = (np.cumsum(quotes, dtype=np.uint8) & 1).view(bool)
    is_opening, is_closing = quotes & in_quotes, quotes & ~in_quotes
    may_open = np.concatenate(([True], ends[:-1] | quotes[:-1]))
    may_close = np.concatenate((ends[1:] | quotes[1:], [True]))
    if in_quotes[-1] or (characters[in_quotes] == _NEWLINE).any():
        return None
    if (is_opening & ~may_open).any() or (is_closing & ~may_close).any():
        return None
    return in_quotes
