"""Columns of Parquet and Arrow files as arrays, read by pyarrow, whose results are validated.

A column of numbers is an array of rank 1, a column of lists of equal length an array of rank 2.
Several columns, `a,b`, are stacked along the last axis; `a.b` is the field b of structs. A folder
of Parquet files is one table. A single uncompressed record batch is mapped.
"""

from __future__ import annotations

import io
import os
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import cached_property, partial
from itertools import accumulate, groupby, islice
from math import prod
from operator import itemgetter
from struct import unpack_from
from threading import Lock
from typing import Any, NamedTuple

from ndtool.arrays.assembly import ChunkedSource, library_errors
from ndtool.arrays.source import AccessedElements, ArrayMetadata, ContiguousSource, MemberInfo
from ndtool.errors import (
    InputError,
    NdtoolError,
    RuleError,
    UsageError,
    import_extra,
    printable,
    refuse,
)
from ndtool.formats import members
from ndtool.formats.decoding import InputFile
from ndtool.formats.rows import EncodedSink, Write, batch_size_of
from ndtool.publish.targets import Target
from ndtool.rules import dtypes, grid, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.storage import local
from ndtool.storage.local import File, Fingerprint
from ndtool.storage.localfolder import LocalFolder, digest

BLOCK_BYTES = 4 << 20  # maximum bytes of a block of rows, which are decoded together
GROUP_BYTES = 8 << 20  # approximate bytes of a written row group
PARQUET, ENCRYPTED, ARROW, FEATHER_1 = b"PAR1", b"PARE", b"ARROW1", b"FEA1"
_STREAM = b"\xff\xff\xff\xff"  # before the first message of an Arrow stream
_FILE_TRAILER_SIZE = 10  # bytes of the size of a file's footer, and the magic string
_READ_BYTES = 1 << 20  # bytes of a remote column chunk that are read together
_MAX_RANK = 8  # of the value in a row
_DTYPE_NAMES = {"float": "float32", "double": "float64", "halffloat": "float16"}


def recognises(storage: File | LocalFolder) -> bool:
    """Whether a file begins as Parquet, Arrow or Feather do, or a folder has Parquet files."""
    if isinstance(storage, LocalFolder):
        return bool(local.parquet_files(storage.path)) and not local.is_zarr_store(storage.path)
    start = storage.peek(0, 8)
    if start[:4] == _STREAM and len(start) == 8:
        length = int.from_bytes(start[4:], "little")
        return 0 < length <= storage.size - 8 and length % 8 == 0
    return start[:6] == ARROW or start[:4] in (PARQUET, ENCRYPTED, FEATHER_1)


def entries(storage: File | LocalFolder, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all columns, or of the selected columns `member`."""
    table = _open_table(storage, path)
    found = []
    for name in table.columns if member is None else [member]:
        label = f"{path}:{name}"
        try:
            with library_errors(path):
                columns = table.select(name)
                position = ColumnsSource(label, table, columns).mapped_position()
        except NdtoolError as exc:
            if member is not None:
                raise
            found.append(MemberInfo.invalid(label, name, exc))
            continue
        problem = "in columns" if position is None else ""
        found.append(MemberInfo(label, name, columns.metadata, position, problem))
    return found


def open_source(
    storage: File | LocalFolder, name: str, path: str, member: str | None
) -> ContiguousSource | ColumnsSource:
    """Open the selected columns, or the only column; closing the source closes the storage."""
    table = _open_table(storage, path)
    with library_errors(path):
        source = ColumnsSource(name, table, table.select(member))
        position = source.mapped_position()
    if position is None or isinstance(storage, LocalFolder):
        return source
    return ContiguousSource.in_file(name, source.metadata, storage, position, name)


library = partial(import_extra, "pyarrow", "a Parquet or Arrow file", "arrow")


class Columns(NamedTuple):
    """Selected columns of one type.

    paths: of each, the name of the column, then of fields of structs. rank: of the value in a row.
    length: the length of lists, and the first row with it.
    """

    label: str
    paths: tuple[tuple[str, ...], ...]
    metadata: ArrayMetadata
    rank: int
    length: tuple[int, int] | None


class Table:
    """An open table.

    row_counts: of each row group or record batch. buffer: the bytes of an Arrow file, else None.
    """

    schema: Any
    row_counts: list[int]
    buffer: Any = None

    def __init__(self, storage: Any, path: str) -> None:
        self.storage, self.path = storage, path

    def batches(self, group: int, names: Sequence[str], rows: int) -> Iterator[Any]:
        """Yield columns as record batches from a group on. rows: the approximate size of one."""
        raise NotImplementedError

    @cached_property
    def nodes(self) -> Counter[tuple[str, ...]]:
        """How often each path of a column, or of a field in structs, occurs."""
        return Counter(path for path, _ in _walk(self.schema))

    @cached_property
    def columns(self) -> dict[str, tuple[tuple[str, ...], Any]]:
        """The path and type of each column by name, of structs those of their fields.

        A complete name is preferred to `column.field`.
        """
        is_struct = library().types.is_struct
        found = [item for item in _walk(self.schema) if not is_struct(item[1])]
        columns = {".".join(item[0]): item for item in found}
        return columns | {path[0]: (path, kind) for path, kind in found if len(path) == 1}

    @cached_property
    def group_starts(self) -> list[int]:
        """The first row of each group, then the number of rows."""
        starts = [0, *accumulate(self.row_counts)]
        if min(self.row_counts, default=0) < 0:
            refuse(self.path, f"a row group of {min(self.row_counts)} rows")
        return starts

    @cached_property
    def block_rows(self) -> int:
        return max(self.row_counts, default=0)

    def select(self, member: str | None) -> Columns:
        """Return the selected columns, or the only one; InputError unless they have one type."""
        if member is None:
            names = {name: name for name in self.columns}
            member = members.choose(self.path, None, names, "the file", "column", self._describe)
        label = f"{self.path}:{member}"
        found = [member] if member in self.columns else member.split(",")
        columns = [self._find(name) for name in found]
        (dtype, inner_shape, length), *others = (
            self._parse(*column, f"{self.path}:{name}")
            for column, name in zip(columns, found, strict=True)
        )
        for other in others:
            if other[:2] != (dtype, inner_shape):
                types = (shapes.format_type(*item) for item in (other[:2], (dtype, inner_shape)))
                refuse(label, f"columns of {' and '.join(types)}: expected columns of one type")
        rank = len(inner_shape)
        inner_shape = (*inner_shape, *([len(found)] if others else ()))
        shape, itemsize = (self.group_starts[-1], *inner_shape), dtype.itemsize
        nbytes = prod(size or 1 for size in shape) * itemsize
        if min(shape) < 0 or nbytes > shapes.MAX_SIZE:
            refuse(label, f"the file claims the shape {list(shape)}")
        rows = BLOCK_BYTES // (prod(inner_shape) * itemsize or 1)
        rows = min(self.block_rows, max(1, rows))
        metadata = ArrayMetadata(dtype, shape, "C", (rows, *inner_shape), {})
        return Columns(label, tuple(path for path, _ in columns), metadata, rank, length)

    def _find(self, name: str) -> tuple[tuple[str, ...], Any]:
        """Return the path and the type of a column; InputError unless one has this name."""
        path, arrow_type = self.columns.get(name, ((), None))
        count = max((self.nodes[path[: i + 1]] for i in range(len(path))), default=0)
        if count != 1:
            reason = f"names {count} columns" if path else "is not a column"
            lines = ((column, self._describe(column)) for column in self.columns)
            places = members.listing(lines, len(self.columns))
            refuse(self.path, f"{printable(repr(name))} {reason} of the file", places=places)
        return path, arrow_type

    def _describe(self, name: str) -> str:
        return printable(str(self.columns[name][1]), 80)

    def _parse(
        self, path: tuple[str, ...], arrow_type: Any, label: str
    ) -> tuple[Dtype, tuple[int, ...], tuple[int, int] | None]:
        """Return the dtype of a column, the shape of the value in a row, and the length of lists.

        InputError unless its values are numbers.
        """
        types = library().types
        declared_type, inner_shape, length = arrow_type, list[int](), None
        while True:
            if (storage_type := _storage_type(arrow_type)) is not arrow_type:
                arrow_type = storage_type
            elif types.is_fixed_size_list(arrow_type):
                inner_shape.append(arrow_type.list_size)
                arrow_type = arrow_type.value_type
            elif _is_list(arrow_type) and not inner_shape:
                length = self._list_length(path, label)
                inner_shape.append(length[0])
                arrow_type = arrow_type.value_type
            else:
                break
        dtype = _DTYPE_NAMES.get(str(arrow_type), str(arrow_type))
        if dtype not in dtypes.REALS or len(inner_shape) > _MAX_RANK:
            refuse(
                label,
                f"a column of {printable(str(declared_type), 80)}: expected"
                " numbers, or lists of them of equal length",
            )
        return dtypes.from_name(dtype), tuple(inner_shape), length

    def _list_length(self, path: tuple[str, ...], label: str) -> tuple[int, int]:
        """Return the length of the first list that is not empty or null, and its row."""
        import numpy as np

        row = 0
        with library_errors(label):
            for batch in self.batches(0, path[:1], 1 << 12):
                array = _column_of(batch, path)
                lengths = _values(array.value_lengths()) * ~_values(array.is_null())
                if len(indices := np.flatnonzero(lengths)):
                    return int(lengths[indices[0]]), row + int(indices[0])
                row += batch.num_rows
        return 0, 0


class ColumnsSource(ChunkedSource):
    """A source of columns, decoded in order from the row group of a block on.

    A row that is null, or a list of another length, is an error if a run reads it.
    """

    def __init__(self, name: str, table: Table, columns: Columns) -> None:
        self.name, self.metadata = name, columns.metadata
        self._table, self._columns, self._storage = table, columns, table.storage
        self._lock = Lock()
        self._touched: AccessedElements | None = None
        row_nbytes = prod(self.metadata.shape[1:]) * self.metadata.dtype.itemsize
        self._batches: Iterator[tuple[int, Any]] = iter(())
        self._current: tuple[int, Any] | None = None  # the first row of a batch, and the batch
        if not row_nbytes:  # blocks without bytes are not read
            for row, batch in self._decode(0):
                self._values(batch, row)

    def mapped_position(self) -> int | None:
        """Return the offset of the elements in the file, None if they cannot be mapped."""
        table, metadata, (path, *others) = self._table, self.metadata, self._columns.paths
        if table.buffer is None or others or len(path) > 1 or len(table.row_counts) != 1:
            return None
        if metadata.dtype.kind == "b" or not metadata.nbytes:
            return None
        self._batches = self._decode(0)
        self._current = next(self._batches)
        try:
            self._values(self._current[1], 0)
        except InputError:
            return None  # it is reported if a run reads it
        array, types = self._current[1].column(0), library().types
        for _ in range(self._columns.rank):
            if not types.is_fixed_size_list(array.type):
                return None
            array = array.flatten()
        if not types.is_primitive(array.type):
            return None
        slice_offset = array.offset * array.type.bit_width // 8
        offset = int(array.buffers()[1].address - table.buffer.address + slice_offset)
        return offset if 0 <= offset <= table.storage.size - metadata.nbytes else None

    def prefetch(self, touched: AccessedElements | None) -> None:
        self._touched = touched

    def read_chunk(self, index: int, box: grid.Box) -> Any:
        import numpy as np

        (first, last), *_ = box
        parts = []
        with self._lock, library_errors(self._columns.label):
            self._seek(first)
            while first < last:
                if self._current is None or first >= self._current[0] + self._current[1].num_rows:
                    self._current = next(self._batches)
                    continue
                row, batch = self._current
                part = batch.slice(first - row, last - first)
                parts.append(self._values(part, first))
                first += part.num_rows
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def _seek(self, row: int) -> None:
        """Continue with the batches of a row's group, unless they are the next ones anyway."""
        starts = self._table.group_starts
        group = bisect_right(starts, row) - 1
        if self._current is not None:
            first, batch = self._current
            if first <= row and first + batch.num_rows >= starts[group]:
                return
        self._batches, self._current = self._decode(group), None

    def _decode(self, group: int) -> Iterator[tuple[int, Any]]:
        """Yield batches from a group on: the number of the first row, and a record batch."""
        starts, names = self._table.group_starts, [path[0] for path in self._columns.paths]
        row, unique_names = starts[group], list(dict.fromkeys(names))
        with library_errors(self._columns.label):
            for batch in self._table.batches(
                group, unique_names, max(1, self.metadata.block_shape[0])
            ):
                if batch.num_columns != len(unique_names) or row + batch.num_rows > starts[-1]:
                    break
                yield row, batch
                row += batch.num_rows
        if row != starts[-1]:
            refuse(
                self._columns.label,
                f"the row groups do not have the {starts[-1]} rows that the file claims",
            )

    def _values(self, batch: Any, row: int) -> Any:
        """Return the rows of a batch as an ndarray. row: the number of the first one."""
        import numpy as np

        columns, rows = [], range(row, row + batch.num_rows)
        for path in self._columns.paths:
            array = _column_of(batch, path)
            try:
                values = _flatten(array, self._columns, rows)
            except InputError:
                if self._touched is None:
                    raise
                numbers = np.array(rows)
                kept = np.isin(numbers, self._touched_rows)
                read = _flatten(array.filter(_column(kept)), self._columns, numbers[kept])
                values = np.zeros((len(rows), *read.shape[1:]), read.dtype)
                values[kept] = read
            columns.append(values)
        return np.stack(columns, -1) if len(columns) > 1 else columns[0]

    @cached_property
    def _touched_rows(self) -> Any:
        import numpy as np

        assert self._touched is not None
        return np.fromiter(self._touched.blocks((1, *self.metadata.shape[1:])), np.int64)


def _column_of(batch: Any, path: tuple[str, ...]) -> Any:
    """Return a validated column of a batch, or a field of it; those of a null struct are null."""
    array = batch.column(batch.schema.get_field_index(path[0]))
    array.validate(full=True)
    for name in path[1:]:
        array = array.flatten()[array.type.get_field_index(name)]
    return _decode_storage(array)


def _flatten(array: Any, columns: Columns, rows: Any) -> Any:
    """Return a column as an ndarray. rows: their numbers.

    Raises InputError for a row that is null, or a list of another length.
    """
    import numpy as np

    inner_shape, per_row = columns.metadata.shape[1 : 1 + columns.rank], 1
    for size in (*inner_shape, None):
        if array.null_count:
            row = rows[int(_values(array.is_null()).argmax()) // per_row]
            refuse(columns.label, f"row {row} is null: expected a value in every row")
        if size is None or not per_row:
            break
        lengths = _values(array.value_lengths()) if _is_list(array.type) else None
        if lengths is not None and (lengths != size).any():
            index, like = (
                int((lengths != size).argmax()),
                columns.length[1] if columns.length else 0,
            )
            found = f"row {rows[index // per_row]} is a list of {lengths[index]}"
            refuse(columns.label, f"{found}: expected {size}, as in row {like}")
        array, per_row = _decode_storage(array.flatten()), per_row * size
    dtype, shape = np.dtype(columns.metadata.dtype.descr), (len(rows), *inner_shape)
    values = _values(array) if per_row else np.empty(0, dtype)
    if values.dtype != dtype or values.size != prod(shape):
        refuse(columns.label, f"rows from {rows[0]} on are not {dtype.name}")
    return values.reshape(shape)


def _values(array: Any) -> Any:
    """Return an array without nulls as an ndarray; pyarrow's `to_numpy` imports pandas."""
    import numpy as np

    pa = library()
    is_bool = pa.types.is_boolean(array.type)
    stored = array.cast(pa.uint8()) if is_bool else array
    dtype = np.dtype(stored.type.to_pandas_dtype())
    buffer = stored.buffers()[1] or b""
    values = np.frombuffer(buffer, dtype, len(stored), stored.offset * dtype.itemsize)
    return values.view(bool) if is_bool else values


def _column(values: Any) -> Any:
    """Return a flat ndarray as an array of a column; `pyarrow.array` imports pandas."""
    pa = library()
    is_bool = values.dtype.kind == "b"
    element_type = pa.uint8() if is_bool else pa.from_numpy_dtype(values.dtype)
    array = pa.Array.from_buffers(element_type, len(values), [None, pa.py_buffer(values)])
    return array.cast(pa.bool_()) if is_bool else array


def _walk(fields: Any, parent: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the path and type of each field, and of those in structs."""
    for field in fields:
        path = (*parent, field.name)
        yield path, field.type
        if library().types.is_struct(field.type):
            yield from _walk(field.type, path)


def _is_list(arrow_type: Any) -> bool:
    types = library().types
    kinds = (types.is_list, types.is_large_list, types.is_list_view, types.is_large_list_view)
    return any(is_kind(arrow_type) for is_kind in kinds)


def _storage_type(arrow_type: Any) -> Any:
    """Return the type of the values of an extension type or a dictionary."""
    pa = library()
    if isinstance(arrow_type, pa.BaseExtensionType):
        return arrow_type.storage_type
    return arrow_type.value_type if pa.types.is_dictionary(arrow_type) else arrow_type


def _decode_storage(array: Any) -> Any:
    """Decode an Arrow array with an extension type or a dictionary."""
    pa = library()
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


# Tables


def _open_table(storage: File | LocalFolder, path: str) -> Table:
    if isinstance(storage, LocalFolder):
        return _ParquetFolder(storage, path)
    start = storage.peek(0, 6)
    if start[:4] == ENCRYPTED:
        refuse(path, "the file is encrypted")
    if start[:4] == FEATHER_1:
        refuse(path, "a Feather file of version 1: expected version 2")
    return (_ParquetFile if start[:4] == PARQUET else _ArrowFile)(storage, path)


class _ParquetFile(Table):
    """An open Parquet file."""

    def __init__(self, storage: File, path: str) -> None:
        super().__init__(storage, path)
        library()
        import pyarrow.parquet

        with library_errors(path):
            if storage.is_remote:
                source, buffer_size = InputFile(storage, path), _READ_BYTES
            else:  # reads of a map copy nothing
                view, _ = storage.view(0, storage.size, path)
                source, buffer_size = pyarrow.BufferReader(pyarrow.py_buffer(view)), 0
            self._file = pyarrow.parquet.ParquetFile(
                source, pre_buffer=False, buffer_size=buffer_size
            )
            metadata = self._file.metadata
            self.schema = self._file.schema_arrow
            groups = range(metadata.num_row_groups)
            self.row_counts = [metadata.row_group(group).num_rows for group in groups]
        if sum(self.row_counts) != metadata.num_rows:
            refuse(
                path,
                f"the row groups have {sum(self.row_counts)} rows: the file"
                f" claims {metadata.num_rows}",
            )

    def batches(self, group: int, names: Sequence[str], rows: int) -> Iterator[Any]:
        for number in range(group, len(self.row_counts)):
            yield from (
                batch.select(list(names))
                for batch in self._file.iter_batches(
                    rows, row_groups=[number], columns=list(names), use_threads=False
                )
            )


class _ArrowFile(Table):
    """An open Arrow file or stream."""

    def __init__(self, storage: File, path: str) -> None:
        super().__init__(storage, path)
        pa = library()
        with library_errors(path):
            storage.download([(0, storage.size)])
            self.buffer = pa.py_buffer(storage.view(0, storage.size, path)[0])
            self._is_stream = storage.peek(0, 4) == _STREAM
            reader = self._open(None)
            self.schema = reader.schema
            batches = [_parse_batch(message.metadata) for message in self._messages(reader)]
            self.row_counts = [rows for rows, _ in batches]
            # Buffers in the file are copied if a reader decodes only some columns.
            self._is_compressed = any(is_compressed for _, is_compressed in batches)

    def _open(self, fields: list[int] | None) -> Any:
        """Return a reader. fields: decode only these columns, None for all."""
        ipc = library().ipc
        open_reader = ipc.open_stream if self._is_stream else ipc.open_file
        options = ipc.IpcReadOptions(included_fields=fields)
        return open_reader(library().BufferReader(self.buffer), options=options)

    def _messages(self, reader: Any) -> Iterator[Any]:
        """Yield the message of each record batch; a file has their offsets at its end."""
        ipc, data = library().ipc, memoryview(self.buffer)
        if self._is_stream:
            for message in ipc.MessageReader.open_stream(self.buffer):
                if message.type == "record batch":
                    yield message
            return
        end = len(data) - _FILE_TRAILER_SIZE
        footer = _follow(data, end - _read(data, "<i", end))
        for number in range(reader.num_record_batches):
            block = _follow(data, _find_field(data, footer, 3)) + 4 + 24 * number
            size = _read(data, "<i", block + 8) + _read(data, "<q", block + 16)
            yield ipc.read_message(self.buffer.slice(_read(data, "<q", block), size))

    def batches(self, group: int, names: Sequence[str], rows: int) -> Iterator[Any]:
        fields = sorted(map(self.schema.get_field_index, names))
        is_selection = self._is_compressed and len(fields) < len(self.schema)
        reader = self._open(fields if is_selection else None)
        batches = (
            islice(reader, group, None)
            if self._is_stream
            else map(reader.get_batch, range(group, len(self.row_counts)))
        )
        for batch in batches:
            yield batch.select(list(names))


# Arrow's metadata are tables of flatbuffers, which pyarrow has verified; it would decode a batch to
# tell its rows.


def _parse_batch(message: Any) -> tuple[int, bool]:
    """Return the rows of a record batch, and whether it is compressed, from a message's table."""
    data = memoryview(message)
    batch = _follow(data, _find_field(data, _follow(data, 0), 2))
    length = _find_field(data, batch, 0)
    return _read(data, "<q", length) if length else 0, bool(_find_field(data, batch, 3))


def _find_field(data: memoryview, table: int, number: int) -> int:
    """Return the position of a field of a table, 0 if it is missing."""
    offsets, entry = table - _read(data, "<i", table), 4 + 2 * number
    offset = _read(data, "<H", offsets + entry) if entry < _read(data, "<H", offsets) else 0
    return table + offset if offset else 0


def _follow(data: memoryview, position: int) -> int:
    return position + _read(data, "<I", position)


def _read(data: memoryview, code: str, position: int) -> int:
    return int(unpack_from(code, data, position)[0])


class _ParquetFolder(Table):
    """The Parquet files of a folder, in order of their names, as one table, and as its storage."""

    def __init__(self, folder: LocalFolder, path: str) -> None:
        super().__init__(self, path)
        self._folder = folder
        self._names = [os.path.join(folder.path, name) for name in local.parquet_files(folder.path)]
        self._fingerprint = self._current()
        self._groups = list[tuple[str, int]]()  # of each group, its file and number in it
        self.row_counts = []
        for name in self._names:
            with closing(local.open_file(name)) as file:
                table = _open_table(file, name)
                if self._groups and table.schema != self.schema:
                    refuse(name, f"its columns are not those of {self._groups[0][0]}")
                self.schema = table.schema
                self._groups += [(name, group) for group in range(len(table.row_counts))]
                self.row_counts += table.row_counts

    def batches(self, group: int, names: Sequence[str], rows: int) -> Iterator[Any]:
        for name, groups in groupby(self._groups[group:], itemgetter(0)):
            with closing(local.open_file(name)) as file:
                yield from _open_table(file, name).batches(next(groups)[1], names, rows)

    def _current(self) -> Fingerprint:
        names = map(os.path.basename, self._names)
        return digest([(name, *self._folder.file_fingerprint(name)) for name in names])

    def describe_change(self) -> str:
        return "" if self._current() == self._fingerprint else "changed during the run"

    def fingerprint(self) -> Fingerprint:
        return self._fingerprint

    def is_same_file(self, fd: int) -> bool:
        return False

    def close(self) -> None:
        """Do nothing: each file is open only while it is read."""


# Outputs


def stored_dtype(dtype: Dtype) -> Dtype:
    """Return the element type in native byte order; DtypeError if no column can have it."""
    dtypes.require_one_of(dtype, dtypes.REALS, "a column")
    return dtypes.from_name(dtype.name)


def create(target: Target, metadata: ArrayMetadata) -> EncodedSink:
    """Return a sink for a new file of one column."""
    path, rank = printable(target.path), len(metadata.shape)
    if rank not in (1, 2) or (rank == 2 and not metadata.shape[1]):
        raise RuleError(
            f"{path}: the output has rank {rank}, shape {metadata.shape}: a column has rank 1, or 2"
            " with lists of at least one element"
        )
    try:
        target.array_name.encode()
    except UnicodeError:
        raise UsageError(f"{path}: the name of the column is not UTF-8") from None
    encoder = _GroupEncoder(metadata, target)
    nbytes, min_size = metadata.nbytes, 1  # compressed, a Parquet file may have any size
    max_size = nbytes * (2 + 4 // metadata.dtype.itemsize) + (1 << 20)  # it has no short integers
    if not encoder.is_parquet:
        min_size += nbytes // (8 if metadata.dtype.kind == "b" else 1)
    batch_size = batch_size_of(metadata, GROUP_BYTES)
    return EncodedSink(target, metadata, encoder, batch_size, min_size, max_size)


class _OutputFile(io.RawIOBase):
    """A file object that pyarrow writes sequentially."""

    write_bytes: Write | None = None
    _size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.write_bytes is not None:
            self.write_bytes(view)
        self._size += len(view)
        return len(view)


class _GroupEncoder:
    """An encoder of rows as row groups of Parquet, or record batches of Arrow."""

    def __init__(self, metadata: ArrayMetadata, target: Target) -> None:
        pa = library()
        self._dtype = metadata.dtype
        element_type = pa.from_numpy_dtype(stored_dtype(metadata.dtype).name)
        self._list_size = metadata.shape[1] if len(metadata.shape) == 2 else 0
        column_type = (
            pa.list_(pa.field("element", element_type, False), self._list_size)
            if self._list_size
            else element_type
        )
        self._schema = pa.schema([pa.field(target.array_name, column_type, False)])
        self.is_parquet = target.path.partition("?")[0].endswith(".parquet")
        self._file = _OutputFile()
        self._writer: Any = None

    def add(self, rows: memoryview, write: Write) -> None:
        """Write a row group."""
        import numpy as np

        pa = library()
        flat = np.frombuffer(rows, self._dtype.descr)
        if self._dtype.kind == "b":
            flat = flat.view("u1").astype(bool)
        values = _column(flat.astype(flat.dtype.newbyteorder("="), copy=False))
        if self._list_size:
            values = pa.FixedSizeListArray.from_arrays(values, type=self._schema.field(0).type)
        self._open_writer(write).write_batch(pa.record_batch([values], schema=self._schema))

    def finish(self, write: Write) -> None:
        self._open_writer(write).close()

    def _open_writer(self, write: Write) -> Any:
        """Return pyarrow's writer, created at first use; its output is passed to `write`."""
        self._file.write_bytes = write
        if self._writer is None and self.is_parquet:
            import pyarrow.parquet

            self._writer = pyarrow.parquet.ParquetWriter(self._file, self._schema)
        elif self._writer is None:
            self._writer = library().ipc.new_file(self._file, self._schema)
        return self._writer
