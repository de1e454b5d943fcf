"""Arrow IPC files (.arrow, Feather version 2): a column of one uncompressed batch is mapped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from ndtool.arrays.source import ArrayMetadata, FlatSource, MemberInfo
from ndtool.errors import InputError, printable
from ndtool.formats import arrow
from ndtool.formats.arrow import ColumnsSource, parquet
from ndtool.formats.decoding import library_errors
from ndtool.publish.encoded import EncodedSink
from ndtool.publish.targets import Target
from ndtool.storage.local import File

MAGIC, OLD = b"ARROW1", b"FEA1"

stored = arrow.stored


def recognises(storage: File) -> bool:
    """Whether a file begins as Arrow files or Feather files of version 1 do."""
    return storage.peek(0, 6) == MAGIC or storage.peek(0, 4) == OLD


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all columns, or of chosen ones."""
    table = Table(storage, path)
    with library_errors(path):
        entries = arrow.entries(table, path, member, storage.size)
        for number, entry in enumerate(entries):
            if entry.metadata is not None and entry.member is not None:
                with suppress(InputError):  # a null, which only the run reports
                    position = table.position(entry.member, entry.metadata)
                    problem = entry.problem if position is None else ""
                    entries[number] = entry._replace(position=position, problem=problem)
        return entries


def open_source(
    storage: File, name: str, path: str, member: str | None
) -> FlatSource | ColumnsSource:
    """Open columns, the only one if none is named; closing the source closes the file."""
    table = Table(storage, path)
    with library_errors(path):
        member = arrow.chosen(table, path, member)
        metadata = arrow.metadata_of(table, path, member)
        position = table.position(member, metadata)
        if position is None:
            return ColumnsSource(name, path, member, table, storage)
    byte_range = storage.byte_range(position, metadata.nbytes, name)
    return FlatSource(name, metadata, byte_range, storage)


class Table:
    """An open Arrow file."""

    def __init__(self, storage: File, path: str) -> None:
        if storage.peek(0, 4) == OLD:
            raise InputError(f"{printable(path)}: a Feather file of version 1: expected version 2")
        pa = arrow.library()
        self._path, self._size = path, storage.size
        with library_errors(path):
            self._buffer = pa.py_buffer(storage.byte_range(0, storage.size, path).load())
            self._file = pa.ipc.open_file(pa.BufferReader(self._buffer))
            self.schema = self._file.schema
            count = self._file.num_record_batches
            self.lengths = [self._file.get_batch(number).num_rows for number in range(count)]

    def read(self, group: int, columns: Sequence[str], rows: int) -> Iterator[Any]:
        batch = self._file.get_batch(group)
        batch.validate(full=True)
        yield batch.select(list(columns))

    def position(self, member: str, metadata: ArrayMetadata) -> int | None:
        """Return the offset of a column's elements in the file, None if it cannot be mapped."""
        if len(self.lengths) != 1 or not metadata.nbytes or metadata.dtype.kind == "b":
            return None
        if member not in self.schema.names:
            return None
        (batch,) = self.read(0, [member], 1)
        array = batch.column(0)
        arrow.numbers(array, metadata, False, f"{self._path}:{member}", 0)
        return self._offset(array, len(metadata.shape) - 1, metadata.nbytes)

    def _offset(self, array: Any, depth: int, nbytes: int) -> int | None:
        """Return the offset of an array's values, which are `depth` lists deep."""
        pa = arrow.library()
        for _ in range(depth):
            if not pa.types.is_fixed_size_list(array.type):
                return None
            array = array.flatten()
        if not pa.types.is_primitive(array.type):
            return None
        values = array.buffers()[1]
        skipped = array.offset * array.type.bit_width // 8
        offset = int(values.address - self._buffer.address + skipped)
        return offset if 0 <= offset <= self._size - nbytes else None


def create(target: Target, metadata: ArrayMetadata) -> EncodedSink:
    """Return a sink for a new file of one column."""
    return parquet.sink(target, metadata, "arrow")
