"""Outputs that an encoder writes row by row, such as text and columns."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Protocol

from ndtool.arrays.sink import Unpublished
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, ResourceError
from ndtool.publish.newfile import new_file
from ndtool.publish.sinks import SequentialSink
from ndtool.publish.targets import Target
from ndtool.storage.descriptors import os_errors, reserve, write_at

BATCH_SIZE = 1 << 20  # approximate bytes of rows that are encoded together
Write = Callable[[bytes | memoryview], object]


class Encoder(Protocol):
    """Encodes the rows of an array in order; write: appends bytes to the file."""

    def add(self, rows: memoryview, write: Write) -> None:
        """Encode complete rows."""

    def finish(self, write: Write) -> None:
        """Encode the end of the file."""


class EncodedSink(SequentialSink):
    """Sink for a file that an encoder writes.

    batch_size: bytes of the rows that are encoded together. min_size, max_size: bounds of the
    file's size, which depends on the elements.
    """

    def __init__(
        self,
        target: Target,
        metadata: ArrayMetadata,
        encoder: Encoder,
        batch_size: int,
        min_size: int,
        max_size: int,
    ) -> None:
        self.name, self.metadata = target.path, metadata
        self._encoder, self._batch_size = encoder, batch_size
        self._max_size, self._is_dry_run = max_size, target.is_dry_run
        self._rows, self._size = bytearray(), 0
        with os_errors(self.name, OutputError):
            self._file = new_file(target)
            try:
                reserve(self._file.descriptor, min_size, self.name)
            except BaseException:
                self._file.drop()
                raise

    def fits(self, other_nbytes: int = 0) -> bool:
        """Whether a dry run need not encode the array, as the disk has space for any elements."""
        if self._is_dry_run:
            try:
                reserve(self._file.descriptor, self._max_size, self.name)
            except ResourceError:
                return False
            finally:
                os.ftruncate(self._file.descriptor, 0)
        return True

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Encode the next bytes of the array."""
        self._advance(start, len(view))
        offset = 0
        while offset < len(view):
            data = view[offset : offset + self._batch_size - len(self._rows)]
            offset += len(data)
            if len(data) == self._batch_size:
                self._encode(data)
                continue
            self._rows += data
            if len(self._rows) == self._batch_size:
                rows, self._rows = self._rows, bytearray()
                self._encode(memoryview(rows))

    def finish(self) -> Unpublished:
        self._require_all()
        if self._rows:
            self._encode(memoryview(self._rows))
        with os_errors(self.name, OutputError):
            self._encoder.finish(self._append)
            if not self._is_dry_run:
                self._file.sync()
        return self._file

    def abort(self) -> None:
        self._file.drop()

    def _encode(self, rows: memoryview) -> None:
        with os_errors(self.name, OutputError):
            self._encoder.add(rows, self._append)

    def _append(self, data: bytes | memoryview) -> None:
        write_at(self._file.descriptor, self._size, data)
        self._size += len(data)


def batch_size_of(metadata: ArrayMetadata, nbytes: int | None = None) -> int:
    """Return the size of a batch: as many complete rows as fit in `nbytes`, at least one."""
    row = metadata.nbytes // metadata.shape[0] if metadata.nbytes else 1
    return max(1, (BATCH_SIZE if nbytes is None else nbytes) // row) * row
