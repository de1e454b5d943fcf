"""Parquet files: row groups are read one by one."""

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

MAGIC, ENCRYPTED = b"PAR1", b"PARE"
DEFAULT = "output"  # name of a written column if none is given
BUFFER = 1 << 20  # bytes of a column chunk that are read together
GROUP = 8 << 20  # bytes of a written row group

stored = arrow.stored


def recognises(storage: File) -> bool:
    """Whether a file begins as Parquet files do."""
    return storage.peek(0, 4) in (MAGIC, ENCRYPTED)


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all columns, or of chosen ones; reads only the footer."""
    table = Table(storage, path)
    with library_errors(path):
        return arrow.entries(table, path, member, storage.size)


def open_source(storage: File, name: str, path: str, member: str | None) -> ColumnsSource:
    """Open columns, the only one if none is named; closing the source closes the file."""
    table = Table(storage, path)
    with library_errors(path):
        return ColumnsSource(name, path, arrow.chosen(table, path, member), table, storage)


class _Bytes(io.RawIOBase):
    """A file for pyarrow."""

    def __init__(self, storage: File, label: str) -> None:
        self._storage, self._label, self._at = storage, label, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._storage.size)[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        remaining = max(0, self._storage.size - self._at)
        count = remaining if size is None or size < 0 else min(size, remaining)
        data = self._storage.read(self._at, count, self._label)
        self._at += count
        return data


class Table:
    """An open Parquet file."""

    def __init__(self, storage: File, path: str) -> None:
        if storage.peek(0, 4) == ENCRYPTED:
            raise InputError(f"{printable(path)}: the file is encrypted")
        pa = arrow.library()
        with library_errors(path):
            self._file = pa.parquet.ParquetFile(
                _Bytes(storage, path), pre_buffer=False, buffer_size=BUFFER
            )
            metadata = self._file.metadata
            self.schema = self._file.schema_arrow
            groups = range(metadata.num_row_groups)
            self.lengths = [metadata.row_group(group).num_rows for group in groups]
        if sum(self.lengths) != metadata.num_rows:
            raise InputError(
                f"{printable(path)}: the row groups have {sum(self.lengths)} rows: the file claims"
                f" {metadata.num_rows}"
            )

    def read(self, group: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        batches = self._file.iter_batches(
            rows, row_groups=[group], columns=list(columns), use_threads=False
        )
        for batch in batches:
            yield batch.select(list(columns))


def create(target: Target, metadata: ArrayMetadata) -> EncodedSink:
    """Return a sink for a new file of one column."""
    return sink(target, metadata, "parquet")


def sink(target: Target, metadata: ArrayMetadata, kind: str) -> EncodedSink:
    """Return a sink for a new file of one column; kind: "parquet", or "arrow"."""
    path, rank = printable(target.path), len(metadata.shape)
    if rank not in (1, 2) or (rank == 2 and not metadata.shape[1]):
        raise RuleError(
            f"{path}: the output has rank {rank}, shape {metadata.shape}: a column has rank 1, or 2"
            " with lists of at least one element"
        )
    target.require_replaceable()
    try:
        (target.member or DEFAULT).encode()
    except UnicodeError:
        raise UsageError(f"{path}: the name of the column is not UTF-8") from None
    encoder = Groups(metadata, target.member or DEFAULT, kind)
    return EncodedSink(target, metadata, encoder, batch_size_of(metadata, GROUP), 1)


class _Sequential(io.RawIOBase):
    """A file that pyarrow writes, in order."""

    write_to: Write | None = None
    _size = 0

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        if self.write_to is not None:
            self.write_to(view)
        self._size += len(view)
        return len(view)


class Groups:
    """The encoder of rows as row groups of Parquet, or record batches of Arrow."""

    def __init__(self, metadata: ArrayMetadata, name: str, kind: str) -> None:
        pa = arrow.library()
        self._pa, self._dtype = pa, metadata.dtype
        inner = pa.from_numpy_dtype(arrow.stored(metadata.dtype).name)
        self._width = metadata.shape[1] if len(metadata.shape) == 2 else 0
        column = pa.list_(pa.field("element", inner, False), self._width) if self._width else inner
        self._schema = pa.schema([pa.field(name, column, False)])
        self._file, self._kind = _Sequential(), kind
        self._writer: Any = None

    def add(self, rows: memoryview, write: Write) -> None:
        """Write a row group."""
        import numpy as np

        pa = self._pa
        flat = np.frombuffer(rows, self._dtype.descr)
        if self._dtype.kind == "b":
            flat = flat.view("u1").astype(bool)
        values = pa.array(flat.astype(flat.dtype.newbyteorder("="), copy=False))
        if self._width:
            values = pa.FixedSizeListArray.from_arrays(values, type=self._schema.field(0).type)
        self._open(write).write_batch(pa.record_batch([values], schema=self._schema))

    def finish(self, write: Write) -> None:
        self._open(write).close()

    def _open(self, write: Write) -> Any:
        """Return pyarrow's writer, which writes to the file from its first use on."""
        self._file.write_to = write
        if self._writer is None and self._kind == "parquet":
            self._writer = self._pa.parquet.ParquetWriter(self._file, self._schema)
        elif self._writer is None:
            self._writer = self._pa.ipc.new_file(self._file, self._schema)
        return self._writer
