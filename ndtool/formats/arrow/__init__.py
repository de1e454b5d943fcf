"""Columns of Parquet and Arrow files as arrays, read by pyarrow, whose results are validated.

A column of numbers is an array of rank 1, one of lists of equal length of rank 2, and several
columns `a,b` are pairs.
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
BATCH = 1 << 20  # bytes of rows, about, that are decoded together
LARGEST = 64 << 20  # bytes of a row group that is a block
_NAMES = {"float": "float32", "double": "float64", "halffloat": "float16"}


class Table(Protocol):
    """An open file. lengths: the rows of each row group or record batch."""

    schema: Any
    lengths: list[int]

    def read(self, group: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield a group as record batches of some columns, of about so many rows."""


class Column(NamedTuple):
    """A column of numbers. inner: the shape of each row's element."""

    dtype: Dtype
    inner: tuple[int, ...]


def library() -> Any:
    """Import pyarrow; UsageError if it is missing."""
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
    """Return the member info of all columns, or of chosen ones."""
    entries = []
    for name in _names(table) if member is None else [member]:
        label = f"{path}:{name}"
        try:
            metadata = metadata_of(table, path, name)
            entries.append(MemberInfo(label, name, metadata, None, size, "in columns"))
        except NdtoolError as exc:
            if member is not None:
                raise
            entries.append(MemberInfo.invalid(label, name, size, exc))
    return entries


def chosen(table: Table, path: str, member: str | None) -> str:
    """Return the columns to read: the only one if none is named."""
    if member is not None:
        return member
    names = _names(table)
    if len(names) != 1:
        if not names:
            raise InputError(f"{printable(path)}: the file has no columns")
        raise members.unnamed(path, f"the file has {len(names)} columns", names[0], _listing(table))
    return names[0]


def metadata_of(table: Table, path: str, member: str) -> ArrayMetadata:
    """Return the metadata of columns, which are of one type and shape."""
    names, label = _columns(table, path, member), f"{path}:{member}"
    first, *others = (_column(table, name, f"{path}:{name}") for name in names)
    for name, column in zip(names[1:], others, strict=True):
        if column != first:
            raise InputError(
                f"{printable(label)}: {printable(name)} is {_described(column)}, and"
                f" {printable(names[0])} {_described(first)}: expected columns of one type"
            )
    inner = first.inner if len(names) == 1 else (*first.inner, len(names))
    shape = (sum(table.lengths), *inner)
    claimed = prod(size or 1 for size in shape) * first.dtype.itemsize
    if min((*table.lengths, *shape)) < 0 or claimed > shapes.MAX_SIZE:
        raise InputError(f"{printable(label)}: the file claims the shape {list(shape)}")
    step = max(table.lengths, default=0)
    if step * prod(inner) * first.dtype.itemsize > LARGEST:
        step = shape[0]
    return ArrayMetadata(first.dtype, shape, "C", (step, *inner), {})


class ColumnsSource(StoredSource):
    """A source of columns; a block is as long as the longest row group.

    With one block, or row groups of more than LARGEST bytes, the array is decoded at once, to
    memory or a temporary file.
    """

    def __init__(self, name: str, path: str, member: str, table: Table, storage: File) -> None:
        self.name, self._label, self._table = name, f"{path}:{member}", table
        self.metadata = metadata_of(table, path, member)
        self._names = _columns(table, path, member)
        self._storage, self._lock = storage, Lock()
        self._row = prod(self.metadata.shape[1:]) * self.metadata.dtype.itemsize
        self._buffer: memoryview | None = None
        self._offsets = [0, *accumulate(table.lengths)]  # first row of each group

    def load(self, touched: AccessedElements | None = None) -> ByteRange | None:
        metadata = self.metadata
        if metadata.is_chunked:
            return None
        with self._lock:
            if self._buffer is None:
                label = f"temporary copy of {argument_name(self.name)}"
                self._buffer = tempfiles.filled_buffer(metadata.nbytes, label, self._decode)
            return ByteRange(self._buffer)

    def block(self, index: int) -> memoryview:
        import numpy as np

        from ndtool.arrays.assembly import as_bytes

        if (byte_range := self.load()) is not None:
            return byte_range.buffer
        (first, stop), *_ = grid.box(self.metadata.shape, self.metadata.block_shape, index)
        with self._lock:
            block = np.empty((stop - first, *self.metadata.shape[1:]), self.metadata.dtype.descr)
            for group, offset in enumerate(self._offsets[:-1]):
                if offset < stop and first < self._offsets[group + 1]:
                    for row, values in self._batches(group):
                        low, high = max(row, first), min(row + len(values), stop)
                        if low < high:
                            block[low - first : high - first] = values[low - row : high - row]
        return as_bytes(block).toreadonly()

    def _decode(self, write: Callable[[int, memoryview], object]) -> None:
        """Write all rows."""
        from ndtool.arrays.assembly import as_bytes

        for group in range(len(self._table.lengths)):
            for row, values in self._batches(group):
                write(row * self._row, as_bytes(values))

    def _batches(self, group: int) -> Iterator[tuple[int, Any]]:
        """Yield the rows of a group: the first row, and an ndarray of some of them."""
        import numpy as np

        row, end = self._offsets[group : group + 2]
        count, several = end - row, len(self._names) > 1
        with library_errors(self._label):
            for batch in self._table.read(group, self._names, max(1, BATCH // (self._row or 1))):
                if batch.num_columns != len(self._names) or batch.num_rows > end - row:
                    break
                columns = [
                    numbers(column, self.metadata, several, self._label, row)
                    for column in batch.columns
                ]
                yield row, np.stack(columns, -1) if several else columns[0]
                row += batch.num_rows
        if row != end:
            raise InputError(
                f"{printable(self._label)}: row group {group} does not have the {count} rows that"
                " the file claims"
            )


def numbers(array: Any, metadata: ArrayMetadata, several: bool, label: str, row: int) -> Any:
    """Return a column's rows as ndarray; InputError for a null, or for a list of another length.

    row: the number of the first row. several: whether it is one of several columns.
    """
    import numpy as np

    inner = metadata.shape[1 : len(metadata.shape) - several]
    rows = len(array)
    array.validate(full=True)
    array = _plain(array)
    for size in (*inner, None):
        _require_no_null(array, label, row, rows)
        if size is None:
            break
        _require_lengths(array, size, label, row, rows)
        array = _plain(array.flatten())
    dtype = np.dtype(metadata.dtype.descr)
    values = array.to_numpy(zero_copy_only=False)
    if values.dtype != dtype or values.size != rows * prod(inner):
        raise InputError(f"{printable(label)}: rows from {row} on are not {metadata.dtype.name}")
    return values.reshape(rows, *inner)


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


def _plain(array: Any) -> Any:
    """Return an array without extension type, dictionary and run-length encoding."""
    pa = library()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    if pa.types.is_dictionary(array.type):
        array = array.dictionary_decode()
    if pa.types.is_run_end_encoded(array.type):
        import pyarrow.compute

        array = pyarrow.compute.run_end_decode(array)
    return array


def _names(table: Table) -> list[str]:
    return list(table.schema.names)


def _columns(table: Table, path: str, member: str) -> list[str]:
    """Return the names of columns, InputError if one is missing or not unique."""
    schema = _names(table)
    names = [member] if member in schema else member.split(",")
    for name in names:
        if schema.count(name) != 1:
            reason = f"names {schema.count(name)} columns" if name in schema else "is not a column"
            raise InputError(
                f"{printable(path)}: {printable(repr(name))} {reason} of the file",
                places=_listing(table),
            )
    return names


def _listing(table: Table) -> tuple[str, ...]:
    columns = ((field.name, printable(str(field.type), 80)) for field in table.schema)
    return members.listed(columns, len(table.schema))


def _column(table: Table, name: str, label: str) -> Column:
    """Return the type and shape of a column's elements; InputError unless they are numbers."""
    pa = library()
    inner = list[int]()
    declared = kind = table.schema.field(name).type
    while True:
        if isinstance(kind, pa.BaseExtensionType):
            kind = kind.storage_type
        elif pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
            kind = kind.value_type
        elif pa.types.is_fixed_size_list(kind):
            inner.append(kind.list_size)
            kind = kind.value_type
        elif (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and not inner:
            inner.append(_length(table, name, label))
            kind = kind.value_type
        else:
            break
    dtype = _NAMES.get(str(kind), str(kind))
    if dtype not in TYPES or len(inner) > 8:
        raise InputError(
            f"{printable(label)}: a column of {printable(str(declared), 80)}: expected numbers, or"
            " lists of them of equal length"
        )
    return Column(dtypes.from_name(dtype), tuple(inner))


def _length(table: Table, name: str, label: str) -> int:
    """Return the length of the first list of a column."""
    for group, rows in enumerate(table.lengths):
        if not rows:
            continue
        with library_errors(label):
            for batch in table.read(group, [name], 1):
                if batch.num_rows:
                    column = _plain(batch.column(0))
                    column.validate(full=True)
                    return len(column[0].values) if column[0].is_valid else 0
    return 0


def _described(column: Column) -> str:
    return column.dtype.name + (f"[{','.join(map(str, column.inner))}]" if column.inner else "")


def stored(dtype: Dtype) -> Dtype:
    """Return the type as stored, in native byte order; DtypeError if no column has it."""
    dtypes.require_one_of(dtype, TYPES, "a column")
    return dtypes.from_name(dtype.name)
