"""A fast parser of blocks of rows. It returns None where the result is uncertain."""

from __future__ import annotations

import re
import warnings
from typing import Any

from ndtool.formats.text import arrowcsv
from ndtool.formats.text.numbers import HIGHEST, LOWEST, UNSIGNED

_ALPHABETS = {"q": b"0123456789-", "d": b"0123456789-+.eE"}
_NEWLINE, _QUOTE, _ZERO, _NINE = b'\n"09'
_COMMENT = re.compile(rb"^[ \t]*#", re.MULTILINE)
_BLANK_LINES = re.compile(rb"\n\n+")
_BLANKS = re.compile(rb"[ \t]+")
_PADDED = {
    delimiter: re.compile(rb"[%b]*([%b\n])[%b]*" % (blanks, delimiter, blanks))
    for delimiter, blanks in ((b",", b" \t"), (b";", b" \t"), (b"\t", b" "), (b" ", b" "))
}


def parse(
    block: bytes,
    delimiter: bytes,
    width: int,
    columns: tuple[int, ...],
    kind: str,
    arrow: bool = False,
) -> Any | None:
    """Return the numbers of some columns of a block of lines, row by row, or None.

    width: the number of fields in a row. kind: "q" for int64 or uint64, "d" for float64. arrow:
    whether the file is so large that the import of pyarrow pays.
    """
    if not kind or (b"#" in block and _COMMENT.search(block)):
        return None
    selected = tuple(sorted(set(columns)))
    numbers = None
    if arrow and len(selected) < width and _is_quoted(block, delimiter):
        numbers = arrowcsv.parse(block, delimiter, width, selected, kind)
    if numbers is None:
        numbers = _read(block, delimiter, width, selected, kind)
    if numbers is None and (b" " in block or b"\t" in block):  # fields may be padded with blanks
        if delimiter == b" ":
            block = _BLANKS.sub(b" ", block)
        numbers = _read(_PADDED[delimiter].sub(rb"\1", block), delimiter, width, selected, kind)
    if numbers is None or columns == selected:
        return numbers
    return numbers.reshape(-1, len(selected))[
        :, [selected.index(column) for column in columns]
    ].copy()


def _read(
    block: bytes, delimiter: bytes, width: int, selected: tuple[int, ...], kind: str
) -> Any | None:
    """Return the numbers of some columns, in ascending order, or None."""
    if b"\n\n" in block or block[:1] == b"\n":
        block = _BLANK_LINES.sub(b"\n", block).lstrip(b"\n")
    if len(selected) < width or b'"' in block:
        values = _extracted(block, delimiter, width, selected)
        if values is None or b'""' in values:
            return None
        block = values.replace(b'"', b"")
    return _numbers(block, delimiter, len(selected), kind)


def _numbers(block: bytes, delimiter: bytes, width: int, kind: str) -> Any | None:
    """Return all numbers of a block; None if a field is empty, or has other characters."""
    import numpy as np

    valid = _ALPHABETS[kind] + b"\n" + (delimiter if width > 1 else b"")
    if block.translate(None, valid):
        return None
    if not block:
        return np.empty(0, np.int64)
    flat = np.frombuffer(block, np.uint8)
    ends = (flat == _NEWLINE) | (flat == delimiter[0]) if width > 1 else flat == _NEWLINE
    digits = (flat >= _ZERO) & (flat <= _NINE)
    if ends[0] or (ends[1:] & ~digits[:-1]).any():  # an empty field, or one such as "-"
        return None
    if width > 1 and not _is_table(flat[ends], width):
        return None
    # As no field is empty, equal counts mean one number in each field.
    if width > 1:
        block = block.replace(delimiter, b" ")
    code = np.dtype(np.float64 if kind == "d" else np.int64 if b"-" in block else np.uint64)
    with warnings.catch_warnings():
        # It stopped at other text: NumPy before 2.3 warns, and returns the numbers before it.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(block, code, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    if len(values) != np.count_nonzero(ends):
        return None
    if kind == "q":  # larger numbers become the limits
        limits = (LOWEST, HIGHEST) if code.kind == "i" else (-1, UNSIGNED)
        if int(values.min()) == limits[0] or int(values.max()) == limits[1]:
            return None
    return values


def _is_table(ends: Any, width: int) -> bool:
    """Whether the characters after fields are those of rows of equal length."""
    if len(ends) % width:
        return False
    rows = ends.reshape(-1, width)
    return bool((rows[:, -1] == _NEWLINE).all() and (rows[:, :-1] != _NEWLINE).all())


def _extracted(
    block: bytes, delimiter: bytes, width: int, selected: tuple[int, ...]
) -> bytes | None:
    """Return a block of some columns of rows, each of which may have any text."""
    import numpy as np

    if not block:
        return block
    flat = np.frombuffer(block, np.uint8)
    ends = (flat == _NEWLINE) | (flat == delimiter[0])
    if b'"' in block:
        in_quotes = _quoted(flat, ends)
        if in_quotes is None:
            return None
        ends &= ~in_quotes
    at = np.flatnonzero(ends)
    if not _is_table(flat[at], width):
        return None
    stops = at.reshape(-1, width)
    starts = np.concatenate(([0], at[:-1] + 1)).reshape(-1, width)
    change = np.zeros(len(flat) + 1, np.int8)
    for column in selected:
        change[starts[:, column]] += 1
        change[stops[:, column] + 1] -= 1
    selected_bytes = flat[np.cumsum(change[:-1], dtype=np.int8).view(bool)]
    ends = (selected_bytes == _NEWLINE) | (selected_bytes == delimiter[0])
    if np.count_nonzero(ends) != stops.shape[0] * len(selected):
        return None  # a quoted field has one
    order = np.full(len(selected), delimiter[0], np.uint8)
    order[-1] = _NEWLINE
    selected_bytes[ends] = np.tile(order, stops.shape[0])
    return bytes(selected_bytes.tobytes())


def _is_quoted(block: bytes, delimiter: bytes) -> bool:
    """Whether the quotes of a block, if any, are well-formed."""
    if b'"' not in block:
        return True
    import numpy as np

    flat = np.frombuffer(block, np.uint8)
    return _quoted(flat, (flat == _NEWLINE) | (flat == delimiter[0])) is not None


def _quoted(flat: Any, ends: Any) -> Any | None:
    """Return which bytes are in quotes; None unless quotes are around fields, and end in lines."""
    import numpy as np

    quotes = flat == _QUOTE
    in_quotes = (np.cumsum(quotes, dtype=np.uint8) & 1).view(bool)
    opens, closes = quotes & in_quotes, quotes & ~in_quotes
    before = np.concatenate(([True], ends[:-1] | quotes[:-1]))
    after = np.concatenate((ends[1:] | quotes[1:], [True]))
    if in_quotes[-1] or (flat[in_quotes] == _NEWLINE).any():
        return None
    if (opens & ~before).any() or (closes & ~after).any():
        return None
    return in_quotes
