"""Arrow IPC files (.arrow, Feather version 2); a single uncompressed record batch is mapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, MemberInfo
from ndtool.errors import InputError, printable
from ndtool.formats import arrow
from ndtool.formats.arrow import ColumnsSource, parquet
from ndtool.formats.decoding import library_errors
from ndtool.publish.encoded import EncodedSink
from ndtool.publish.targets import Target
from ndtool.storage.local import File

MAGIC, FEATHER_1_MAGIC = b"ARROW1", b"FEA1"

stored_dtype = arrow.stored_dtype


def recognises(storage: File) -> bool:
    """Whether a file begins with the magic string of Arrow, or of Feather version 1."""
    return storage.peek(0, 6) == MAGIC or storage.peek(0, 4) == FEATHER_1_MAGIC


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all columns, or of the selected columns `member`."""
    table = Table(storage, path)
    with library_errors(path):
        entries = arrow.entries(table, path, member, storage.size)
        for index, entry in enumerate(entries):
            if entry.metadata is not None and entry.member is not None:
                with suppress(InputError):  # nulls are reported when the column is read
                    position = table.position(entry.member, entry.metadata)
                    problem = entry.problem if position is None else ""
                    entries[index] = entry._replace(position=position, problem=problem)
        return entries


def open_source(
    storage: File, name: str, path: str, member: str | None
) -> ContiguousSource | ColumnsSource:
    """Open the selected columns, or the only column; closing the source closes the file."""
    table = Table(storage, path)
    with library_errors(path):
        member = arrow.resolve_columns(table, path, member)
        metadata = arrow.metadata_of(table, path, member)
        position = table.position(member, metadata)
        if position is None:
            return ColumnsSource(name, path, member, table, storage)
    byte_range = storage.byte_range(position, metadata.nbytes, name)
    return ContiguousSource(name, metadata, byte_range, storage)


class Table:
    """An open Arrow file."""

    def __init__(self, storage: File, path: str) -> None:
        if storage.peek(0, 4) == FEATHER_1_MAGIC:
            raise InputError(f"{printable(path)}: a Feather file of version 1: expected version 2")
        pa = arrow.library()
        self._path, self._size = path, storage.size
        with library_errors(path):
            self._buffer = pa.py_buffer(storage.byte_range(0, storage.size, path).load())
            self._file = pa.ipc.open_file(pa.BufferReader(self._buffer))
            self.schema = self._file.schema
            count = self._file.num_record_batches
            self.row_counts = [self._file.get_batch(index).num_rows for index in range(count)]

    def read(self, group: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        batch = self._file.get_batch(group)
        batch.validate(full=True)
        yield batch.select(list(columns))

    def position(self, member: str, metadata: ArrayMetadata) -> int | None:
        """Return the offset of a column's elements in the file, None if they cannot be mapped."""
        if len(self.row_counts) != 1 or not metadata.nbytes or metadata.dtype.kind == "b":
            return None
        if member not in self.schema.names:
            return None
        (batch,) = self.read(0, [member], 1)
        array = batch.column(0)
        arrow.column_values(array, metadata, False, f"{self._path}:{member}", 0)
        return self._values_offset(array, len(metadata.shape) - 1, metadata.nbytes)

    def _values_offset(self, array: Any, depth: int, nbytes: int) -> int | None:
        """Return the file offset of the values in nested lists, None if they cannot be mapped."""
        pa = arrow.library()
        for _ in range(depth):
            if not pa.types.is_fixed_size_list(array.type):
                return None
            array = array.flatten()
        if not pa.types.is_primitive(array.type):
            return None
        values = array.buffers()[1]
        slice_offset = array.offset * array.type.bit_width // 8
        offset = int(values.address - self._buffer.address + slice_offset)
        return offset if 0 <= offset <= self._size - nbytes else None


def create(target: Target, metadata: ArrayMetadata) -> EncodedSink:
    """Return a sink for a new file of one column."""
    return parquet.create_sink(target, metadata, "arrow")
