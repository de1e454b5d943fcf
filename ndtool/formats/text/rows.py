"""Rows of fields: .txt, .csv and .tsv, with an optional header, comments and blank lines."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple, NoReturn

from ndtool.errors import InputError, format_count, printable
from ndtool.formats import members
from ndtool.formats.text import fastparser, lines
from ndtool.formats.text.numbers import Values, is_number

DELIMITERS_BY_SUFFIX = {".csv": ",;", ".tsv": "\t"}
_DEFAULT_DELIMITERS = ",;\t"  # of text without a suffix of DELIMITERS, if any is in its first row
_BLANKS = re.compile(r"[ \t]+")
_NUMBER_START = re.compile(r"[+-]?\.?[0-9]")
MIN_ARROW_BLOCKS = 8  # number of blocks of a file for which the import of pyarrow is worthwhile
_BATCH_ROWS = 4096  # rows of which the fields are converted together
Read = Callable[[int], bytes]


class Table(NamedTuple):
    """The properties of all rows, inferred from the first row.

    names: of the columns, if the first row is a header. first_line: the line number of that row.
    """

    delimiter: str
    width: int
    names: tuple[str, ...] | None
    first_line: int

    def column_name(self, index: int) -> str:
        """Return the name or number of a column for messages."""
        return printable(self.names[index] if self.names else str(index), 80)


def parse(
    read: Read, suffix: str, selected: tuple[str, ...] | None, values: Values, label: str
) -> tuple[int, ...]:
    """Parse a file; return its shape. selected: names or numbers of columns, None for all."""
    table, columns = None, tuple[int, ...]()
    for count, (line_number, block) in enumerate(lines.read_blocks(read, label)):
        if table is None:
            result = parse_first_row(line_number, block, suffix, label, selected or ())
            if result is None:
                continue
            table, skip = result
            columns = _select_columns(table, selected, label)
            line_number, block = line_number + block.count(b"\n", 0, skip), block[skip:]
        delimiter, use_arrow = table.delimiter.encode(), count >= MIN_ARROW_BLOCKS
        numbers = fastparser.parse(
            block, delimiter, table.width, columns, values.fast_type, use_arrow
        )
        if numbers is None or not values.add_array(numbers):
            _add_rows(line_number, block, table, columns, values, label)
    if table is None and selected is not None:
        _refuse(label, "the file is empty: it has no columns")
    width = len(columns) or 1
    rows = values.count // width
    return (rows,) if width == 1 else (rows, width)


def column_names(read: Read, suffix: str, label: str) -> tuple[str, ...] | None:
    """Return the names of the columns, None without a header; reads blocks up to the first row."""
    for line_number, block in lines.read_blocks(read, label):
        if result := parse_first_row(line_number, block, suffix, label):
            return result[0].names
    return None


def parse_first_row(
    line_number: int, block: bytes, suffix: str, label: str, selected: tuple[str, ...] = ()
) -> tuple[Table, int] | None:
    """Parse the first row of a block; return the table, and the offset of the data in the block.

    None if the block has no row.
    """
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
                _refuse(label, f"line {line_number} has {problem}")
            delimiters = DELIMITERS_BY_SUFFIX.get(suffix, _DEFAULT_DELIMITERS)
            unquoted = re.sub('"[^"]*"', "", line)
            delimiter = next(
                (candidate for candidate in delimiters if candidate in unquoted), delimiters[0]
            )
            if suffix not in DELIMITERS_BY_SUFFIX and delimiter not in unquoted:
                delimiter = " "
            fields = _split_fields(line, delimiter, line_number, label)
            names = tuple(field.strip(" \t") for field in fields)
            has_header = _is_header(names, selected)
            table = Table(delimiter, len(fields), names if has_header else None, line_number)
            return table, stop if has_header else offset
        offset, line_number = stop, line_number + 1
    return None


def _is_header(fields: tuple[str, ...], selected: tuple[str, ...]) -> bool:
    """Whether a row is a header: it has a selected name, or no field that begins with a number.

    A field such as 5x is probably a wrong number, and not a name.
    """
    if not any(field and not is_number(field) for field in fields):
        return False
    return any(name in fields for name in selected) or not any(map(_NUMBER_START.match, fields))


def _select_columns(table: Table, selected: tuple[str, ...] | None, label: str) -> tuple[int, ...]:
    if selected is None:
        return tuple(range(table.width))
    names = table.names or tuple(map(str, range(table.width)))
    for name in selected:
        if names.count(name) != 1:
            reason = f"names {names.count(name)} columns" if name in names else "is not a column"
            listing = members.listing(((column, "a column") for column in names), len(names))
            explanation = "" if table.names else ": without a header, columns have numbers from 0"
            raise InputError(
                f"{printable(label)}: {printable(repr(name))} {reason} of the file{explanation}",
                places=listing,
            )
    return tuple(map(names.index, selected))


def _add_rows(
    first_line: int,
    block: bytes,
    table: Table,
    columns: tuple[int, ...],
    values: Values,
    label: str,
) -> None:
    """Add the rows of a block one by one; InputError with line and column for an invalid field."""
    fields: list[str] = []
    line_numbers: list[int] = []

    def locate(field: int) -> str:
        row, column = divmod(field, len(columns))
        return f"line {line_numbers[row]}, column {table.column_name(columns[column])}"

    for line_number, line in _data_lines(first_line, block):
        try:
            row = _split_fields(line, table.delimiter, line_number, label)
            if len(row) != table.width:
                field_count = f"line {line_number} has {format_count(len(row), 'field')}"
                _refuse(
                    label, f"{field_count}: expected {table.width}, as line {table.first_line} has"
                )
        except InputError:
            values.add(fields, locate)  # an earlier error is reported first
            raise
        fields += [row[column] for column in columns]
        line_numbers.append(line_number)
        if len(line_numbers) == _BATCH_ROWS:
            values.add(fields, locate)
            fields, line_numbers = [], []
    values.add(fields, locate)


def _data_lines(line_number: int, block: bytes) -> Iterator[tuple[int, str]]:
    """Yield the line numbers and the text of the lines with data."""
    offset = 0
    while offset < len(block):
        stop = block.index(b"\n", offset)
        line = block[offset:stop].decode("utf-8", "surrogateescape")
        if not _is_skipped(line):
            yield line_number, line
        offset, line_number = stop + 1, line_number + 1


def _is_skipped(line: str) -> bool:
    """Whether a line is blank or a comment."""
    return line.lstrip(" \t")[:1] in ("", "#")


def _split_fields(line: str, delimiter: str, line_number: int, label: str) -> list[str]:
    if delimiter == " ":
        line = _BLANKS.sub(" ", line).strip(" ")
    if '"' not in line:
        return line.split(delimiter)
    try:
        reader = csv.reader([line], delimiter=delimiter, strict=True, skipinitialspace=True)
        return next(reader)
    except csv.Error:
        _refuse(label, f"line {line_number} has a quote that does not end, or not at a field's end")


def _refuse(label: str, text: str) -> NoReturn:
    raise InputError(f"{printable(label)}: {text}") from None
