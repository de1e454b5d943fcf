"""Rows of fields: .txt, .csv and .tsv, with an optional header, comments and blank lines.

`_split_fields` and `Values.add` define what a row is. Blocks of rows are parsed by pyarrow or NumPy
if these are certain to agree, else line by line.
"""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

from ndtool.errors import InputError, format_count, printable, refuse
from ndtool.formats import members
from ndtool.formats.text import lines
from ndtool.formats.text.lines import Read
from ndtool.formats.text.values import Values
from ndtool.rules import numbers

DELIMITERS_BY_SUFFIX = {".csv": ",;", ".tsv": "\t"}
MIN_ARROW_BLOCKS = 1  # number of blocks of a file for which the import of pyarrow is worthwhile
MIN_ARROW_BYTES = 7 << 17  # bytes of a first block for which it is worthwhile, as others follow
_MIN_UNPARSED_BYTES = 1 << 19  # of one that NumPy cannot parse
MAX_FIELDS = 1 << 20  # of a row
_DEFAULT_DELIMITERS = ",;\t"  # of text without a suffix of DELIMITERS, if any is in its first row
_BLANKS = re.compile(rb"[ \t]+")
_COMMENT = re.compile(rb"^[ \t]*#", re.MULTILINE)
_NUMBER_START = re.compile(r"[+-]?(?:\.?[0-9]|(?:nan|inf) *\()", re.I)
_MISSING = ("na", "n/a", "#n/a", "<na>", "nat", "null", "none", "nil", "missing")  # numbers
_FIELDS = {  # a quoted field, or one without quotes around it
    delimiter: re.compile(
        rf'[{blanks}]*"([^"]*(?:""[^"]*)*)"[{blanks}]*(?=[{delimiter}]|$)|([^{delimiter}]*)'
    )
    for delimiter, blanks in ((",", " \t"), (";", " \t"), ("\t", " "))
} | {" ": re.compile(r'"([^"]*(?:""[^"]*)*)"(?=[ \t]|$)|([^ \t]*)')}
_MAX_BATCH_ROWS = 4096  # rows of which the fields are converted together
_VALID_BYTES = {"q": b"0123456789-", "d": b"0123456789-+.eE"}
_NEWLINE, _QUOTE = b'\n"'
_QUOTED = re.compile(b'"[^"]*"')


class Table(NamedTuple):
    """The properties of all rows, inferred from the first row.

    names: of the columns, if the first row is a header. first_line: the line number of that row.
    is_numbered: whether the first row is 0, 1, ..., as headers that pandas writes are.
    """

    delimiter: str
    width: int
    names: tuple[str, ...] | None
    first_line: int
    is_numbered: bool

    def column_name(self, index: int) -> str:
        """Return the name or number of a column for messages."""
        return printable(self.names[index] if self.names else str(index), 80)


def parse(
    read: Read, suffix: str, selected: tuple[str, ...] | None, values: Values, label: str
) -> tuple[int, ...]:
    """Parse a file; return its shape. selected: names or numbers of columns, None for all."""
    table, columns, has_text = None, tuple[int, ...](), False
    for count, (line_number, block) in enumerate(lines.read_blocks(read, label)):
        if table is None:
            has_text = has_text or not block.isspace()
            result = parse_first_row(line_number, block, suffix, label, selected or ())
            if result is None:
                continue
            table, skip = result
            columns = _select_columns(table, selected, label)
            line_number, block = line_number + block.count(b"\n", 0, skip), block[skip:]
        use_arrow = count >= MIN_ARROW_BLOCKS or len(block) >= MIN_ARROW_BYTES
        array = _parse_block(block, table, columns, values.fast_type, use_arrow)
        if array is None or not values.add_array(array, block):
            _add_rows(line_number, block, table, columns, values, label)
    if table is None and (selected is not None or (values.are_indices and not has_text)):
        refuse(label, "the text is empty: expected numbers, or a header alone for no rows")
    width = len(columns) or 1
    rows = values.count // width
    if table is not None and table.is_numbered and rows > 1:
        numbering = "0, 1" + ", ..." * (table.width > 2)
        values.warning = (
            f"{printable(label)}: line {table.first_line} is {numbering}: it is read as numbers,"
            " not as a header"
        )
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
    first = next(_data_lines(line_number, block), None)
    if first is None:
        return None
    number, offset, line = first
    if line[0] in "[{":
        refuse(
            label,
            f"line {number} has {line[0]} at its beginning: JSON is read from .json and .jsonl"
            " files",
        )
    if "\r" in line:
        refuse(label, f"line {number} has a carriage return: lines end in a newline")
    delimiters = DELIMITERS_BY_SUFFIX.get(suffix, _DEFAULT_DELIMITERS)
    unquoted = re.sub('"[^"]*"', "", line)
    default = delimiters[0] if suffix in DELIMITERS_BY_SUFFIX else " "
    delimiter = next((candidate for candidate in delimiters if candidate in unquoted), default)
    fields = _split_fields(line, delimiter, number, label)
    has_header = _is_header(fields, selected)
    names = tuple(field.strip(" \t") for field in fields) if has_header else None
    end = block.index(b"\n", offset) + 1
    is_numbered = len(fields) > 1 and fields == list(map(str, range(len(fields))))
    table = Table(delimiter, len(fields), names, number, is_numbered)
    return table, end if has_header else offset


def _is_header(fields: list[str], selected: tuple[str, ...]) -> bool:
    """Whether a row is a header: it has all selected names, or it has a name and no number.

    A field such as 5x or $5 is probably a wrong number, and a field such as NA a missing one.
    """
    stripped = [field.strip(" \t") for field in fields]
    columns = set(map(str, range(len(fields) + 1)))  # from 0, or perhaps by mistake from 1
    if selected and not columns.issuperset(selected) and set(selected) <= set(stripped):
        return True
    texts = [text for text in stripped if text]
    has_name = any(
        any(map(str.isalpha, text))
        and text.casefold() not in _MISSING
        and not numbers.is_number(text)
        for text in texts
    )
    return has_name and not any(
        _NUMBER_START.match(text) or (re.search("[0-9]", text) and not re.search(r"[^\W\d]", text))
        for text in texts
    )


def _select_columns(table: Table, selected: tuple[str, ...] | None, label: str) -> tuple[int, ...]:
    if selected is None:
        return tuple(range(table.width))
    names = table.names or tuple(map(str, range(table.width)))
    counts = Counter(names)
    for name in selected:
        if counts[name] != 1:
            reason = f"names {counts[name]} columns" if counts[name] else "is not a column"
            listing = members.listing(((column, "a column") for column in names), len(names))
            explanation = "" if table.names else ": without a header, columns have numbers from 0"
            refuse(
                label, f"{printable(repr(name))} {reason} of the file{explanation}", places=listing
            )
    positions = {name: position for position, name in enumerate(names)}
    return tuple(positions[name] for name in selected)


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
    batch_rows = 16  # few at first: the first number may show that the type is another

    def locate(field: int) -> str:
        row, column = divmod(field, len(columns))
        return f"line {line_numbers[row]}, column {table.column_name(columns[column])}"

    for line_number, _, line in _data_lines(first_line, block):
        try:
            row = _split_fields(line, table.delimiter, line_number, label)
            if len(row) != table.width:
                field_count = f"line {line_number} has {format_count(len(row), 'field')}"
                refuse(
                    label, f"{field_count}: expected {table.width}, as line {table.first_line} has"
                )
        except InputError:
            values.add(fields, locate)  # an earlier error is reported first
            raise
        fields += [row[column] for column in columns]
        line_numbers.append(line_number)
        if len(line_numbers) == batch_rows:
            values.add(fields, locate)
            fields, line_numbers, batch_rows = [], [], min(2 * batch_rows, _MAX_BATCH_ROWS)
    values.add(fields, locate)


def _data_lines(line_number: int, block: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield the line number, offset and text of each line that is neither blank nor a comment."""
    offset = 0
    while offset < len(block):
        stop = block.index(b"\n", offset)
        line = block[offset:stop].decode("utf-8", "surrogateescape")
        if line.lstrip(" \t")[:1] not in ("", "#"):
            yield line_number, offset, line
        offset, line_number = stop + 1, line_number + 1


def _split_fields(line: str, delimiter: str, line_number: int, label: str) -> list[str]:
    """Return the fields of a line. Quotes may enclose a field, and a pair of them is one."""
    if line.count(delimiter) >= MAX_FIELDS:
        refuse(label, f"line {line_number} has more than {MAX_FIELDS} fields")
    if delimiter == " ":
        line = line.strip(" \t")
    if '"' not in line:
        fields = line.replace("\t", " ").split(" ") if delimiter == " " else line.split(delimiter)
        return list(filter(None, fields)) if delimiter == " " else fields
    fields, position = [], 0
    while True:
        match = _FIELDS[delimiter].match(line, position)
        assert match is not None, "the second alternative may be empty"
        if match[1] is None and match[2].lstrip(" \t")[:1] == '"':
            refuse(
                label, f"line {line_number} has a quote that does not end, or not at a field's end"
            )
        fields.append(match[2] if match[1] is None else match[1].replace('""', '"'))
        position = match.end()
        if position == len(line):
            return fields
        position += 1
        if delimiter == " ":
            position = len(line) - len(line[position:].lstrip(" \t"))


def _parse_block(
    block: bytes, table: Table, columns: tuple[int, ...], kind: str, use_arrow: bool
) -> Any | None:
    """Return the numbers of the selected columns in a block of lines, in row-major order, or None.

    kind: "q" for int64 or uint64, "d" for float64.
    """
    if not kind or b"\r" in block:
        return None
    if b"#" in block and _COMMENT.search(block):
        kept = [line for line in block.split(b"\n") if not line.lstrip(b" \t").startswith(b"#")]
        block = b"\n".join(kept)
    delimiter = table.delimiter.encode()
    if delimiter == b" ":
        if b'"' in block:
            return None
        if b"\t" in block or b"  " in block:
            block = _BLANKS.sub(b" ", block)
        block = block.replace(b"\n ", b"\n").replace(b" \n", b"\n").lstrip(b" ")
    if b'"' in block and not _has_valid_quotes(block, delimiter):
        return None
    array = None
    selected = tuple(sorted(set(columns)))
    if use_arrow:
        array = _parse_by_arrow(block, delimiter, table.width, selected, kind)
    if array is None:
        array = _parse_by_numpy(block, delimiter, table.width, selected, kind)
        if array is None and not use_arrow and len(block) >= _MIN_UNPARSED_BYTES:
            array = _parse_by_arrow(block, delimiter, table.width, selected, kind)
    if array is None or columns == selected:
        return array
    positions = [selected.index(column) for column in columns]
    return array.reshape(-1, len(selected))[:, positions].copy()


def _parse_by_arrow(
    block: bytes, delimiter: bytes, width: int, selected: tuple[int, ...], kind: str
) -> Any | None:
    """Parse a block by pyarrow; None without it, and for text that only one of the two parses."""
    if kind == "q" and (b"x" in block or b"X" in block) and re.search(b"0[xX]", block):
        return None  # pyarrow reads it as a hexadecimal integer
    try:
        import pyarrow as pa
        from pyarrow import csv
    except ImportError:
        return None
    import numpy as np

    names = list(map(str, range(width)))
    selected_names = [names[column] for column in selected]
    arrow_type = pa.float64() if kind == "d" else pa.int64()
    try:
        table = csv.read_csv(
            pa.BufferReader(block),
            csv.ReadOptions(column_names=names, block_size=min(len(block) + 1, 1 << 20)),
            csv.ParseOptions(delimiter=delimiter.decode()),
            csv.ConvertOptions(
                column_types=dict.fromkeys(selected_names, arrow_type),
                include_columns=selected_names,
                null_values=[],
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid:
        return None
    if any(column.null_count for column in table.columns):
        return None
    array = np.empty((table.num_rows, len(selected)), np.float64 if kind == "d" else np.int64)
    start = 0
    for batch in table.to_batches():  # whose rows fit in a cache while columns are written to them
        stop = start + batch.num_rows
        for target, column in zip(array[start:stop].T, batch.columns, strict=True):
            # to_numpy would import pandas
            target[:] = np.frombuffer(
                column.buffers()[1], array.dtype, len(column), 8 * column.offset
            )
        start = stop
    return array if kind == "q" or np.isfinite(array).all() else None


def _parse_by_numpy(
    block: bytes, delimiter: bytes, width: int, selected: tuple[int, ...], kind: str
) -> Any | None:
    """Parse a block by NumPy; None for text that only one of the two parses."""
    import numpy as np

    valid = _VALID_BYTES[kind] + b"\n " + delimiter + b"\t" * (delimiter != b"\t")
    if block.translate(None, valid + b'"') or any(delimiter in x for x in _QUOTED.findall(block)):
        return None  # loadtxt does not count the fields of a row
    rows = [line for line in block.decode().split("\n") if line.strip(" \t")]
    if not rows:
        return np.empty(0, np.int64)
    separator = delimiter.decode()
    if {row.count(separator) for row in rows} != {width - 1}:
        return None
    dtype = np.float64 if kind == "d" else np.int64 if b"-" in block else np.uint64
    with warnings.catch_warnings():
        warnings.simplefilter("error", DeprecationWarning)  # an integer that is parsed as a float
        try:
            array = np.loadtxt(
                rows, dtype, comments=None, delimiter=separator, usecols=selected, ndmin=2,
                quotechar='"',
            )  # fmt: skip
        except (ValueError, OverflowError, DeprecationWarning):
            return None
    return array if kind == "q" or np.isfinite(array).all() else None


def _has_valid_quotes(block: bytes, delimiter: bytes) -> bool:
    """Whether quotes enclose complete fields, and end in their lines."""
    import numpy as np

    characters = np.frombuffer(block, np.uint8)
    ends, quotes = ((characters == _NEWLINE) | (characters == delimiter[0]), characters == _QUOTE)
    in_quotes = (np.cumsum(quotes, dtype=np.uint8) & 1).view(bool)
    is_opening, is_closing = quotes & in_quotes, quotes & ~in_quotes
    may_open = np.concatenate(([True], ends[:-1] | quotes[:-1]))
    may_close = np.concatenate((ends[1:] | quotes[1:], [True]))
    is_invalid = (is_opening & ~may_open) | (is_closing & ~may_close)
    is_invalid |= in_quotes & (characters == _NEWLINE)
    return not (in_quotes[-1] or is_invalid.any())
