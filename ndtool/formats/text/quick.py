"""A fast parser of blocks of rows. It returns nothing where it is not certain of the result."""

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
    reads: str,
    arrow: bool = False,
) -> Any | None:
    """Return the numbers of some columns of a block of lines, row by row, or None.

    width: the number of fields in a row. reads: "q" for int64 or uint64, "d" for float64. arrow:
    whether the file is so large that the import of pyarrow pays.
    """
    if not reads or (b"#" in block and _COMMENT.search(block)):
        return None
    selected = tuple(sorted(set(columns)))
    numbers = None
    if arrow and len(selected) < width and _is_quoted(block, delimiter):
        numbers = arrowcsv.parse(block, delimiter, width, selected, reads)
    if numbers is None:
        numbers = _read(block, delimiter, width, selected, reads)
    if numbers is None and (b" " in block or b"\t" in block):  # fields may be padded with blanks
        if delimiter == b" ":
            block = _BLANKS.sub(b" ", block)
        numbers = _read(_PADDED[delimiter].sub(rb"\1", block), delimiter, width, selected, reads)
    if numbers is None or columns == selected:
        return numbers
    return numbers.reshape(-1, len(selected))[
        :, [selected.index(column) for column in columns]
    ].copy()


def _read(
    block: bytes, delimiter: bytes, width: int, selected: tuple[int, ...], reads: str
) -> Any | None:
    """Return the numbers of some columns, in ascending order, or None."""
    if b"\n\n" in block or block[:1] == b"\n":
        block = _BLANK_LINES.sub(b"\n", block).lstrip(b"\n")
    if len(selected) < width or b'"' in block:
        found = _extracted(block, delimiter, width, selected)
        if found is None or b'""' in found:
            return None
        block = found.replace(b'"', b"")
    return _numbers(block, delimiter, len(selected), reads)


def _numbers(block: bytes, delimiter: bytes, width: int, reads: str) -> Any | None:
    """Return all numbers of a block; None if a field is empty, or has other characters."""
    import numpy as np

    known = _ALPHABETS[reads] + b"\n" + (delimiter if width > 1 else b"")
    if block.translate(None, known):
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
    code = np.dtype(np.float64 if reads == "d" else np.int64 if b"-" in block else np.uint64)
    with warnings.catch_warnings():
        # It stopped at other text: NumPy before 2.3 warns, and returns what it has read.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            found = np.fromstring(block, code, sep=" ")
        except (ValueError, DeprecationWarning):
            return None
    if len(found) != np.count_nonzero(ends):
        return None
    if reads == "q":  # larger numbers become the limits
        limits = (LOWEST, HIGHEST) if code.kind == "i" else (-1, UNSIGNED)
        if int(found.min()) == limits[0] or int(found.max()) == limits[1]:
            return None
    return found


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
        inside = _quoted(flat, ends)
        if inside is None:
            return None
        ends &= ~inside
    at = np.flatnonzero(ends)
    if not _is_table(flat[at], width):
        return None
    stops = at.reshape(-1, width)
    starts = np.concatenate(([0], at[:-1] + 1)).reshape(-1, width)
    change = np.zeros(len(flat) + 1, np.int8)
    for column in selected:
        change[starts[:, column]] += 1
        change[stops[:, column] + 1] -= 1
    taken = flat[np.cumsum(change[:-1], dtype=np.int8).view(bool)]
    ends = (taken == _NEWLINE) | (taken == delimiter[0])
    if np.count_nonzero(ends) != stops.shape[0] * len(selected):
        return None  # a quoted field has one
    order = np.full(len(selected), delimiter[0], np.uint8)
    order[-1] = _NEWLINE
    taken[ends] = np.tile(order, stops.shape[0])
    return bytes(taken.tobytes())


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
    inside = (np.cumsum(quotes, dtype=np.uint8) & 1).view(bool)
    opens, closes = quotes & inside, quotes & ~inside
    before = np.concatenate(([True], ends[:-1] | quotes[:-1]))
    after = np.concatenate((ends[1:] | quotes[1:], [True]))
    if inside[-1] or (flat[inside] == _NEWLINE).any():
        return None
    if (opens & ~before).any() or (closes & ~after).any():
        return None
    return inside
