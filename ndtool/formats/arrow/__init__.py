"""Columns of Parquet and Arrow files as arrays, read by pyarrow, whose results are validated.

A column of numbers is an array of rank 1, a column of lists of equal length an array of rank 2.
Several columns, `a,b`, are stacked along the last axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from math import prod
from threading import Lock
from typing import Any, NamedTuple, Protocol

from ndtool.arrays.source import AccessedElements, ArrayMetadata, MemberInfo, StoredSource
from ndtool.errors import InputError, NdtoolError, UsageError, argument_name, printable
from ndtool.formats import members
from ndtool.formats.decoding import library_errors
from ndtool.rules import dtypes, grid, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.storage import tempfiles
from ndtool.storage.local import ByteRange, File

TYPES = ("bool", *dtypes.INTEGERS, "float16", "float32", "float64")
BATCH_BYTES = 1 << 20  # approximate bytes of rows that are decoded together
MAX_BLOCK_BYTES = 64 << 20  # maximum bytes of a row group that is a block
_DTYPE_NAMES = {"float": "float32", "double": "float64", "halffloat": "float16"}


class Table(Protocol):
    """An open Parquet or Arrow file. row_counts: of each row group or record batch."""

    schema: Any
    row_counts: list[int]

    def read(self, group: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield columns of a group as record batches. rows: the approximate size of a batch."""


class Column(NamedTuple):
    """A column of numbers. inner_shape: of the value in a row, () for a number."""

    dtype: Dtype
    inner_shape: tuple[int, ...]


def library() -> Any:
    """Import and return pyarrow; UsageError if it is missing."""
    try:
        import pyarrow
        import pyarrow.ipc
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "a Parquet or Arrow file needs the pyarrow package", hint="pip install 'ndtool[arrow]'"
        ) from None
    return pyarrow


def entries(table: Table, path: str, member: str | None, size: int) -> list[MemberInfo]:
    """Return the member info of all columns, or of the selected columns `member`."""
    entries = []
    for name in _schema_names(table) if member is None else [member]:
        label = f"{path}:{name}"
        try:
            metadata = metadata_of(table, path, name)
            entries.append(MemberInfo(label, name, metadata, None, size, "in columns"))
        except NdtoolError as exc:
            if member is not None:
                raise
            entries.append(MemberInfo.invalid(label, name, size, exc))
    return entries


def resolve_columns(table: Table, path: str, member: str | None) -> str:
    """Return the selected columns `member`, or the only column if none is selected."""
    if member is not None:
        return member
    names = _schema_names(table)
    if len(names) != 1:
        if not names:
            raise InputError(f"{printable(path)}: the file has no columns")
        raise members.unnamed_member_error(
            path, f"the file has {len(names)} columns", names[0], _listing(table)
        )
    return names[0]


def metadata_of(table: Table, path: str, member: str) -> ArrayMetadata:
    """Return the array metadata of columns; InputError unless they have equal types and shapes."""
    names, label = _split_columns(table, path, member), f"{path}:{member}"
    first, *other_columns = (_parse_column(table, name, f"{path}:{name}") for name in names)
    for name, column in zip(names[1:], other_columns, strict=True):
        if column != first:
            raise InputError(
                f"{printable(label)}: {printable(name)} is {_describe(column)}, and"
                f" {printable(names[0])} {_describe(first)}: expected columns of one type"
            )
    inner_shape = first.inner_shape if len(names) == 1 else (*first.inner_shape, len(names))
    shape = (sum(table.row_counts), *inner_shape)
    nbytes = prod(size or 1 for size in shape) * first.dtype.itemsize
    if min((*table.row_counts, *shape)) < 0 or nbytes > shapes.MAX_SIZE:
        raise InputError(f"{printable(label)}: the file claims the shape {list(shape)}")
    block_rows = max(table.row_counts, default=0)
    if block_rows * prod(inner_shape) * first.dtype.itemsize > MAX_BLOCK_BYTES:
        block_rows = shape[0]
    return ArrayMetadata(first.dtype, shape, "C", (block_rows, *inner_shape), {})


class ColumnsSource(StoredSource):
    """A source of columns; a block has as many rows as the largest row group.

    With one block, or row groups of more than MAX_BLOCK_BYTES, the complete array is decoded to
    memory or to a temporary file.
    """

    def __init__(self, name: str, path: str, member: str, table: Table, storage: File) -> None:
        self.name, self._label, self._table = name, f"{path}:{member}", table
        self.metadata = metadata_of(table, path, member)
        self._names = _split_columns(table, path, member)
        self._storage, self._lock = storage, Lock()
        self._row_nbytes = prod(self.metadata.shape[1:]) * self.metadata.dtype.itemsize
        self._buffer: memoryview | None = None
        self._group_starts = [0, *accumulate(table.row_counts)]  # first row of each group

    def load(self, touched: AccessedElements | None = None) -> ByteRange | None:
        metadata = self.metadata
        if metadata.is_chunked:
            return None
        with self._lock:
            if self._buffer is None:
                label = f"temporary copy of {argument_name(self.name)}"
                self._buffer = tempfiles.filled_buffer(metadata.nbytes, label, self._write_rows)
            return ByteRange(self._buffer)

    def block(self, index: int) -> memoryview:
        import numpy as np

        from ndtool.arrays.assembly import as_bytes

        if (byte_range := self.load()) is not None:
            return byte_range.buffer
        (first_row, last_row), *_ = grid.box(self.metadata.shape, self.metadata.block_shape, index)
        with self._lock:
            block = np.empty(
                (last_row - first_row, *self.metadata.shape[1:]), self.metadata.dtype.descr
            )
            for group, group_start in enumerate(self._group_starts[:-1]):
                if group_start < last_row and first_row < self._group_starts[group + 1]:
                    for row, values in self._batches(group):
                        start, end = max(row, first_row), min(row + len(values), last_row)
                        if start < end:
                            block[start - first_row : end - first_row] = values[
                                start - row : end - row
                            ]
        return as_bytes(block).toreadonly()

    def _write_rows(self, write: Callable[[int, memoryview], object]) -> None:
        """Decode all rows, and write them at their offsets."""
        from ndtool.arrays.assembly import as_bytes

        for group in range(len(self._table.row_counts)):
            for row, values in self._batches(group):
                write(row * self._row_nbytes, as_bytes(values))

    def _batches(self, group: int) -> Iterator[tuple[int, Any]]:
        """Yield the rows of a group in batches: the number of the first row, and an ndarray."""
        import numpy as np

        row, end = self._group_starts[group : group + 2]
        count, has_several = end - row, len(self._names) > 1
        with library_errors(self._label):
            for batch in self._table.read(
                group, self._names, max(1, BATCH_BYTES // (self._row_nbytes or 1))
            ):
                if batch.num_columns != len(self._names) or batch.num_rows > end - row:
                    break
                columns = [
                    column_values(column, self.metadata, has_several, self._label, row)
                    for column in batch.columns
                ]
                yield row, np.stack(columns, -1) if has_several else columns[0]
                row += batch.num_rows
        if row != end:
            raise InputError(
                f"{printable(self._label)}: row group {group} does not have the {count} rows that"
                " the file claims"
            )


def column_values(
    array: Any, metadata: ArrayMetadata, has_several: bool, label: str, row: int
) -> Any:
    """Return a column's rows as an ndarray; InputError for a null, or for lists of unequal length.

    row: the number of the first row. has_several: whether several columns are selected.
    """
    import numpy as np

    inner_shape = metadata.shape[1 : len(metadata.shape) - has_several]
    rows = len(array)
    array.validate(full=True)
    array = _decode_storage(array)
    for size in (*inner_shape, None):
        _require_no_null(array, label, row, rows)
        if size is None:
            break
        _require_lengths(array, size, label, row, rows)
        array = _decode_storage(array.flatten())
    dtype = np.dtype(metadata.dtype.descr)
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype != dtype or values.size != rows * prod(inner_shape):
        raise InputError(f"{printable(label)}: rows from {row} on are not {metadata.dtype.name}")
    return values.reshape(rows, *inner_shape)


def _require_no_null(array: Any, label: str, row: int, rows: int) -> None:
    if array.null_count:
        import numpy as np

        first = int(np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False))[0])
        row += first * rows // len(array)
        raise InputError(f"{printable(label)}: row {row} is null: expected a value in every row")


def _require_lengths(array: Any, size: int, label: str, row: int, rows: int) -> None:
    """Raise InputError unless all lists have the length `size`."""
    import numpy as np

    lengths = np.asarray(array.value_lengths()) if hasattr(array, "value_lengths") else None
    if lengths is None or (lengths == size).all():
        return
    first = int(np.flatnonzero(lengths != size)[0])
    row += first * rows // len(array)
    raise InputError(
        f"{printable(label)}: row {row} is a list of {lengths[first]}: expected {size}, as in row 0"
    )


def _decode_storage(array: Any) -> Any:
    """Decode an Arrow array with an extension type, a dictionary or run-end encoding."""
    pa = library()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_run_end_encoded(array.type):
        import pyarrow.compute

        array = pyarrow.compute.run_end_decode(array)
    return array


def _schema_names(table: Table) -> list[str]:
    return list(table.schema.names)


def _split_columns(table: Table, path: str, member: str) -> list[str]:
    """Split the selected columns `member` at commas; InputError if one is missing or not unique."""
    schema_names = _schema_names(table)
    names = [member] if member in schema_names else member.split(",")
    for name in names:
        if schema_names.count(name) != 1:
            reason = (
                f"names {schema_names.count(name)} columns"
                if name in schema_names
                else "is not a column"
            )
            raise InputError(
                f"{printable(path)}: {printable(repr(name))} {reason} of the file",
                places=_listing(table),
            )
    return names


def _listing(table: Table) -> tuple[str, ...]:
    columns = ((field.name, printable(str(field.type), 80)) for field in table.schema)
    return members.listing(columns, len(table.schema))


def _parse_column(table: Table, name: str, label: str) -> Column:
    """Return the type and inner shape of a column; InputError unless its values are numbers."""
    pa = library()
    inner_shape = list[int]()
    declared_type = arrow_type = table.schema.field(name).type
    while True:
        if isinstance(arrow_type, pa.BaseExtensionType):
            arrow_type = arrow_type.storage_type
        elif pa.types.is_dictionary(arrow_type) or pa.types.is_run_end_encoded(arrow_type):
            arrow_type = arrow_type.value_type
        elif pa.types.is_fixed_size_list(arrow_type):
            inner_shape.append(arrow_type.list_size)
            arrow_type = arrow_type.value_type
        elif (
            pa.types.is_list(arrow_type) or pa.types.is_large_list(arrow_type)
        ) and not inner_shape:
            inner_shape.append(_first_list_length(table, name, label))
            arrow_type = arrow_type.value_type
        else:
            break
    dtype = _DTYPE_NAMES.get(str(arrow_type), str(arrow_type))
    if dtype not in TYPES or len(inner_shape) > 8:
        raise InputError(
            f"{printable(label)}: a column of {printable(str(declared_type), 80)}: expected"
            " numbers, or lists of them of equal length"
        )
    return Column(dtypes.from_name(dtype), tuple(inner_shape))


def _first_list_length(table: Table, name: str, label: str) -> int:
    """Return the length of the first list of a column."""
    for group, rows in enumerate(table.row_counts):
        if not rows:
            continue
        with library_errors(label):
            for batch in table.read(group, [name], 1):
                if batch.num_rows:
                    column = _decode_storage(batch.column(0))
                    column.validate(full=True)
                    return len(column[0].values) if column[0].is_valid else 0
    return 0


def _describe(column: Column) -> str:
    return column.dtype.name + (
        f"[{','.join(map(str, column.inner_shape))}]" if column.inner_shape else ""
    )


def stored_dtype(dtype: Dtype) -> Dtype:
    """Return the element type in native byte order; DtypeError if no column can have it."""
    dtypes.require_one_of(dtype, TYPES, "a column")
    return dtypes.from_name(dtype.name)
