"""Parquet files, read row group by row group."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import Any

from ndtool.arrays.source import ArrayMetadata, MemberInfo
from ndtool.errors import InputError, RuleError, UsageError, printable
from ndtool.formats import arrow
from ndtool.formats.arrow import ColumnsSource
from ndtool.formats.decoding import library_errors
from ndtool.publish.encoded import EncodedSink, Write, batch_size_of
from ndtool.publish.targets import Target
from ndtool.storage.local import File

MAGIC, ENCRYPTED_MAGIC = b"PAR1", b"PARE"
DEFAULT_NAME = "output"  # name of a written column if none is given
BUFFER_SIZE = 1 << 20  # bytes of a column chunk that are read together
GROUP_BYTES = 8 << 20  # approximate bytes of a written row group

stored_dtype = arrow.stored_dtype


def recognises(storage: File) -> bool:
    """Whether a file begins with the magic string of Parquet."""
    return storage.peek(0, 4) in (MAGIC, ENCRYPTED_MAGIC)


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all columns, or of the selected ones; reads only the footer."""
    table = Table(storage, path)
    with library_errors(path):
        return arrow.entries(table, path, member, storage.size)


def open_source(storage: File, name: str, path: str, member: str | None) -> ColumnsSource:
    """Open the selected columns, or the only column; closing the source closes the file."""
    table = Table(storage, path)
    with library_errors(path):
        return ColumnsSource(name, path, arrow.resolve_columns(table, path, member), table, storage)


class _InputFile(io.RawIOBase):
    """A file object from which pyarrow reads a storage."""

    def __init__(self, storage: File, label: str) -> None:
        self._storage, self._label, self._position = storage, label, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._position = offset + (0, self._position, self._storage.size)[whence]
        return self._position

    def tell(self) -> int:
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        remaining = max(0, self._storage.size - self._position)
        count = remaining if size is None or size < 0 else min(size, remaining)
        data = self._storage.read(self._position, count, self._label)
        self._position += count
        return data


class Table:
    """An open Parquet file."""

    def __init__(self, storage: File, path: str) -> None:
        if storage.peek(0, 4) == ENCRYPTED_MAGIC:
            raise InputError(f"{printable(path)}: the file is encrypted")
        pa = arrow.library()
        with library_errors(path):
            self._file = pa.parquet.ParquetFile(
                _InputFile(storage, path), pre_buffer=False, buffer_size=BUFFER_SIZE
            )
            metadata = self._file.metadata
            self.schema = self._file.schema_arrow
            groups = range(metadata.num_row_groups)
            self.row_counts = [metadata.row_group(group).num_rows for group in groups]
        if sum(self.row_counts) != metadata.num_rows:
            raise InputError(
                f"{printable(path)}: the row groups have {sum(self.row_counts)} rows: the file"
                f" claims {metadata.num_rows}"
            )

    def read(self, group: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        batches = self._file.iter_batches(
            rows, row_groups=[group], columns=list(columns), use_threads=False
        )
        for batch in batches:
            yield batch.select(list(columns))


def create(target: Target, metadata: ArrayMetadata) -> EncodedSink:
    """Return a sink for a new file of one column."""
    return create_sink(target, metadata, "parquet")


def create_sink(target: Target, metadata: ArrayMetadata, file_format: str) -> EncodedSink:
    """Return a sink for a new file of one column. file_format: "parquet" or "arrow"."""
    path, rank = printable(target.path), len(metadata.shape)
    if rank not in (1, 2) or (rank == 2 and not metadata.shape[1]):
        raise RuleError(
            f"{path}: the output has rank {rank}, shape {metadata.shape}: a column has rank 1, or 2"
            " with lists of at least one element"
        )
    target.require_replaceable()
    try:
        (target.member or DEFAULT_NAME).encode()
    except UnicodeError:
        raise UsageError(f"{path}: the name of the column is not UTF-8") from None
    encoder = GroupEncoder(metadata, target.member or DEFAULT_NAME, file_format)
    return EncodedSink(target, metadata, encoder, batch_size_of(metadata, GROUP_BYTES), 1)


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


class GroupEncoder:
    """An encoder of rows as row groups of Parquet, or record batches of Arrow."""

    def __init__(self, metadata: ArrayMetadata, name: str, file_format: str) -> None:
        pa = arrow.library()
        self._pa, self._dtype = pa, metadata.dtype
        element_type = pa.from_numpy_dtype(arrow.stored_dtype(metadata.dtype).name)
        self._list_size = metadata.shape[1] if len(metadata.shape) == 2 else 0
        column_type = (
            pa.list_(pa.field("element", element_type, False), self._list_size)
            if self._list_size
            else element_type
        )
        self._schema = pa.schema([pa.field(name, column_type, False)])
        self._file, self._format = _OutputFile(), file_format
        self._writer: Any = None

    def add(self, rows: memoryview, write: Write) -> None:
        """Write a row group."""
        import numpy as np

        pa = self._pa
        flat = np.frombuffer(rows, self._dtype.descr)
        if self._dtype.kind == "b":
            flat = flat.view("u1").astype(bool)
        values = pa.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))
        if self._list_size:
            values = pa.FixedSizeListArray.from_arrays(values, type=self._schema.field(0).type)
        self._open_writer(write).write_batch(pa.record_batch([values], schema=self._schema))

    def finish(self, write: Write) -> None:
        self._open_writer(write).close()

    def _open_writer(self, write: Write) -> Any:
        """Return pyarrow's writer, created at first use; its output is passed to `write`."""
        self._file.write_bytes = write
        if self._writer is None and self._format == "parquet":
            self._writer = self._pa.parquet.ParquetWriter(self._file, self._schema)
        elif self._writer is None:
            self._writer = self._pa.ipc.new_file(self._file, self._schema)
        return self._writer
