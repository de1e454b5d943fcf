"""Rows of fields: .txt, .csv and .tsv, with an optional header, comments and blank lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from ndtool.errors import InputError, format_count, printable
from ndtool.formats import members
from ndtool.formats.text import lines, quick
from ndtool.formats.text.numbers import Values, is_number

DELIMITERS = {".csv": ",;", ".tsv": "\t"}
_OTHERS = ",;\t"  # of other text, unless blanks separate its fields
_BLANKS = re.compile(r"[ \t]+")
_NUMERIC = re.compile(r"[+-]?\.?[0-9]")  # how numbers begin
LARGE = 8  # blocks of a file from which the import of pyarrow pays, if it is installed
_FEW = 4096  # rows that are parsed one by one at a time
Read = Callable[[int], bytes]


class Table(NamedTuple):
    """The properties of all rows, inferred from the first one.

    names: those of the columns, if the first row is a header. first: the number of its line.
    """

    delimiter: str
    width: int
    names: tuple[str, ...] | None
    first: int

    def column(self, number: int) -> str:
        """Return a column as messages and arguments call it."""
        return printable(self.names[number] if self.names else str(number), 80)


def parse(
    read: Read, suffix: str, selected: tuple[str, ...] | None, values: Values, label: str
) -> tuple[int, ...]:
    """Parse a file; return its shape. selected: names or numbers of columns, None for all."""
    table, columns = None, tuple[int, ...]()
    for count, (number, block) in enumerate(lines.blocks(read, label)):
        if table is None:
            result = first_row(number, block, suffix, label, selected or ())
            if result is None:
                continue
            table, skip = result
            columns = _columns(table, selected, label)
            number, block = number + block.count(b"\n", 0, skip), block[skip:]
        delimiter, arrow = table.delimiter.encode(), count >= LARGE
        numbers = quick.parse(block, delimiter, table.width, columns, values.fast_type, arrow)
        if numbers is None or not values.add_array(numbers):
            _add_exactly(number, block, table, columns, values, label)
    if table is None and selected is not None:
        _refuse(label, "the file is empty: it has no columns")
    width = len(columns) or 1
    rows = values.count // width
    return (rows,) if width == 1 else (rows, width)


def names(read: Read, suffix: str, label: str) -> tuple[str, ...] | None:
    """Return the names of the columns, None without a header; reads only the first block."""
    for number, block in lines.blocks(read, label):
        if result := first_row(number, block, suffix, label):
            return result[0].names
    return None


def first_row(
    number: int, block: bytes, suffix: str, label: str, selected: tuple[str, ...] = ()
) -> tuple[Table, int] | None:
    """Return the table that a block begins, and the bytes before its data; None if it is blank."""
    offset = 0
    while offset < len(block):
        stop = block.index(b"\n", offset) + 1
        line = block[offset : stop - 1].decode("utf-8", "surrogateescape")
        if not _is_skipped(line):
            if line[0] in "[{" or "\r" in line:
                problem = "a carriage return: lines end in a newline"
                if line[0] in "[{":
                    problem = (
                        f"{line[0]} at its beginning: JSON is read from .json and .jsonl files"
                    )
                _refuse(label, f"line {number} has {problem}")
            delimiters = DELIMITERS.get(suffix, _OTHERS)
            plain = re.sub('"[^"]*"', "", line)
            delimiter = next((one for one in delimiters if one in plain), delimiters[0])
            if suffix not in DELIMITERS and delimiter not in plain:
                delimiter = " "
            fields = _fields(line, delimiter, number, label)
            names = tuple(field.strip(" \t") for field in fields)
            header = _is_header(names, selected)
            table = Table(delimiter, len(fields), names if header else None, number)
            return table, stop if header else offset
        offset, number = stop, number + 1
    return None


def _is_header(fields: tuple[str, ...], selected: tuple[str, ...]) -> bool:
    """Whether a row has names: selected ones, or none that begins as a number (such as 5x)."""
    if not any(field and not is_number(field) for field in fields):
        return False
    return any(name in fields for name in selected) or not any(map(_NUMERIC.match, fields))


def _columns(table: Table, selected: tuple[str, ...] | None, label: str) -> tuple[int, ...]:
    if selected is None:
        return tuple(range(table.width))
    names = table.names or tuple(map(str, range(table.width)))
    for name in selected:
        if names.count(name) != 1:
            reason = f"names {names.count(name)} columns" if name in names else "is not a column"
            places = members.listed(((one, "a column") for one in names), len(names))
            numbered = "" if table.names else ": without a header, columns have numbers from 0"
            raise InputError(
                f"{printable(label)}: {printable(repr(name))} {reason} of the file{numbered}",
                places=places,
            )
    return tuple(map(names.index, selected))


def _add_exactly(
    number: int, block: bytes, table: Table, columns: tuple[int, ...], values: Values, label: str
) -> None:
    """Add the rows of a block, one by one; InputError with line and column for a bad field."""
    fields: list[str] = []
    numbers: list[int] = []

    def locate(field: int) -> str:
        row, column = divmod(field, len(columns))
        return f"line {numbers[row]}, column {table.column(columns[column])}"

    for line_number, line in _rows(number, block):
        try:
            row = _fields(line, table.delimiter, line_number, label)
            if len(row) != table.width:
                has = f"line {line_number} has {format_count(len(row), 'field')}"
                _refuse(label, f"{has}: expected {table.width}, as line {table.first} has")
        except InputError:
            values.add(fields, locate)  # an earlier error is reported first
            raise
        fields += [row[column] for column in columns]
        numbers.append(line_number)
        if len(numbers) == _FEW:
            values.add(fields, locate)
            fields, numbers = [], []
    values.add(fields, locate)


def _rows(number: int, block: bytes) -> Iterator[tuple[int, str]]:
    """Yield the lines with data, and their numbers."""
    offset = 0
    while offset < len(block):
        stop = block.index(b"\n", offset)
        line = block[offset:stop].decode("utf-8", "surrogateescape")
        if not _is_skipped(line):
            yield number, line
        offset, number = stop + 1, number + 1


def _is_skipped(line: str) -> bool:
    """Whether a line is blank or a comment."""
    return line.lstrip(" \t")[:1] in ("", "#")


def _fields(line: str, delimiter: str, number: int, label: str) -> list[str]:
    if delimiter == " ":
        line = _BLANKS.sub(" ", line).strip(" ")
    if '"' not in line:
        return line.split(delimiter)
    try:
        reader = csv.reader([line], delimiter=delimiter, strict=True, skipinitialspace=True)
        return next(reader)
    except csv.Error:
        _refuse(label, f"line {number} has a quote that does not end, or not at a field's end")


def _refuse(label: str, text: str) -> NoReturn:
    raise InputError(f"{printable(label)}: {text}") from None
