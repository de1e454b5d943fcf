"""Sinks for streams and files; a file is published only when complete."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import NamedTuple, Protocol

from ndtool.arrays.sink import Sink, Unpublished
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, ResourceError, printable
from ndtool.publish.newfile import CurrentFile, NewFile, new_file, publish
from ndtool.publish.targets import Target, existing
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype
from ndtool.storage import locations
from ndtool.storage.descriptors import (
    BLOCK_SIZE,
    NO_MMAP_ERRNOS,
    advise,
    failure,
    is_closed,
    map_bytes,
    os_errors,
    read_at,
    release,
    reserve,
    write_at,
    write_next,
)

BATCH_SIZE = 1 << 20  # approximate bytes of rows that are encoded together
Write = Callable[[bytes | memoryview], object]


def commit(*sinks: Sink) -> None:
    """Complete all sinks, then publish their files together."""
    publish([file for sink in sinks if (file := sink.finish()) is not None])


class SequentialSink(Sink):
    """Base class of sinks whose bytes are written in order."""

    streamed = True
    _position = 0

    def _advance(self, start: int, count: int) -> None:
        """Raise ValueError unless these are the next bytes."""
        if start != self._position or start + count > self.metadata.nbytes:
            raise ValueError(
                f"{count} bytes at offset {start} cannot be appended at offset"
                f" {self._position} of {self.metadata.nbytes} bytes"
            )
        self._position += count

    def _require_all(self) -> None:
        if self._position != self.metadata.nbytes:
            raise ValueError(f"only {self._position} of {self.metadata.nbytes} bytes were written")


class StreamSink(SequentialSink):
    """Sink for standard output, a FIFO or a device: bytes are written in order, irrevocably."""

    def __init__(
        self, fd: int, name: str, metadata: ArrayMetadata, header: bytes, owns_fd: bool
    ) -> None:
        self.name, self.metadata = name, metadata
        self._fd: int | None = fd
        self._owns_fd = owns_fd
        self._header = header

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write the next bytes of the data; a closed pipe raises BrokenPipeError."""
        self._advance(start, len(view))
        self._begin()
        self._send(view)

    def finish(self) -> None:
        self._begin()
        self._require_all()
        with os_errors(self.name, OutputError):
            self.abort()

    def abort(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None and self._owns_fd:
            os.close(fd)

    def _begin(self) -> None:
        """Send the header once, before the first bytes of data."""
        header, self._header = self._header, b""
        self._send(header)

    def _send(self, view: bytes | memoryview) -> None:
        assert self._fd is not None
        try:
            write_next(self._fd, view)
        except BrokenPipeError:
            raise
        except OSError as exc:
            if exc.errno == errno.ENOSPC:
                raise OutputError(f"{printable(self.name)}: {exc.strerror}") from None
            raise failure(exc, self.name, OutputError) from None


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


class Container:
    """The bytes of a file before and after the array that is written to it.

    start: the array's offset. total: bytes of the file. current: the file to be replaced, for
    formats of several arrays, with the preserved members `names`. preserved: see Sink.
    """

    def __init__(
        self,
        header: bytes,
        nbytes: int,
        offset: int = 0,
        current: CurrentFile | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self._header, self._offset, self.current = header, offset, current
        self.start = offset + len(header)
        self.total = self.start + nbytes
        self.preserved = names if current is not None and current.file is not None else None

    def begin(self, fd: int) -> None:
        """Write the header, which does not depend on the data."""
        write_at(fd, self._offset, self._header)

    def finish(self, fd: int, name: str) -> None:
        """Write the bytes that depend on all data, such as checksums or a directory."""

    def close(self) -> None:
        """Close the current file, if it is open."""
        if self.current is not None:
            self.current.close()


def convert_stored(fd: int, name: str, start: int, stop: int, dtype: Dtype) -> None:
    """Convert written elements in place to little-endian byte order, or pack them.

    Model files require both. Packed elements must be the last of the file, which becomes shorter.
    """
    is_swapped = dtype.order == ">" and dtype.swap_size > 1
    if not is_swapped and dtype.bits % 8 == 0:
        return
    from ndtool.engine import copies, packing

    for offset in range(start, stop, BLOCK_SIZE):  # a multiple of all swap and group sizes
        block = bytearray(read_at(fd, offset, min(BLOCK_SIZE, stop - offset)))
        if len(block) < min(BLOCK_SIZE, stop - offset):
            raise OutputError(f"{printable(name)}: the file became shorter")
        if is_swapped:
            copies.swap_bytes(memoryview(block), dtype.swap_size)
            write_at(fd, offset, block)
        else:
            packed = packing.pack(bytes(block), dtype.bits)
            write_at(fd, start + (offset - start) * dtype.bits // 8, packed)
    if not is_swapped:
        os.ftruncate(fd, start + -(-(stop - start) * dtype.bits // 8))


class SharedOutput(NamedTuple):
    """Location of an unpublished output, for other processes that write to it.

    name: the output's name in messages. path: path of the file, or path or URL of the Zarr store.
    array_path: the array's path in the store. start: the offset of its bytes in the file. For URLs,
    pending_metadata: objects to be written last; lock: the content of the lock object, by which
    writers verify the store.
    """

    name: str
    metadata: ArrayMetadata
    path: str
    array_path: str
    start: int
    pending_metadata: dict[str, bytes] | None = None
    lock: bytes | None = None


class SharedFile(Sink):
    """Writer of an array's bytes in a file that another process created."""

    def __init__(self, shared: SharedOutput) -> None:
        self.name, self.metadata, self._start = shared.name, shared.metadata, shared.start
        with os_errors(self.name, OutputError):
            self._fd = os.open(shared.path, os.O_WRONLY | os.O_CLOEXEC)

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of the data at offset `start`, in any order; thread-safe."""
        try:
            write_at(self._fd, self._start + start, view)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        advise(self._fd, "DONTNEED", self._start + start, len(view))

    def close(self) -> None:
        os.close(self._fd)


class FileSink(Sink):
    """Sink for a file that replaces the current file when it is published."""

    def __init__(self, target: Target, metadata: ArrayMetadata, container: Container) -> None:
        self.name, self.metadata, self.preserved = target.path, metadata, container.preserved
        self._container, self._is_dry_run = container, target.is_dry_run
        self._view: memoryview | None = None
        with os_errors(self.name, OutputError):
            self._file = new_file(target, container.current)
            try:
                reserve(self._file.descriptor, container.total, self.name)
                if not target.is_dry_run:
                    container.begin(self._file.descriptor)
            except BaseException:
                self._file.drop()
                raise

    def map(self) -> memoryview | None:
        """Map the data of the file, writable; None if the file system does not support it."""
        if self._view is None:
            fd, start = self._file.descriptor, self._container.start
            try:
                self._view = map_bytes(fd, start, self.metadata.nbytes, writable=True)
            except OSError as exc:
                if exc.errno not in NO_MMAP_ERRNOS:
                    raise failure(exc, self.name, OutputError) from None
        return self._view

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of the data at offset `start`, in any order; thread-safe."""
        if start < 0 or start + len(view) > self.metadata.nbytes:
            raise ValueError(
                f"{len(view)} bytes at offset {start} exceed the array of {self.metadata.nbytes}"
            )
        try:  # `os_errors` would take longer than a small write
            write_at(self._file.descriptor, self._container.start + start, view)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None

    def share(self) -> SharedOutput | None:
        if not isinstance(self._file, NewFile):
            return None
        path = self._file.share(cleans=not self._is_dry_run)
        return SharedOutput(self.name, self.metadata, path, "", self._container.start)

    def release(self, start: int, nbytes: int) -> None:
        advise(self._file.descriptor, "DONTNEED", self._container.start + start, nbytes)

    def finish(self) -> Unpublished:
        self._unmap()
        with os_errors(self.name, OutputError):
            self._container.finish(self._file.descriptor, self.name)
            self._file.sync()
        return self._file

    def abort(self) -> None:
        self._unmap()
        self._file.drop()
        self._container.close()

    def _unmap(self) -> None:
        if self._view is not None:
            release(self._view)
            self._view = None


class DrySink(Sink):
    """The sink of a dry run, in place of a sink whose creation has side effects.

    Such sinks are a FIFO or a device, whose reader would see it opened and closed, and a remote
    store. There is no `write`. name, metadata, streamed, preserved: as in the actual sink.
    """

    def __init__(
        self, name: str, metadata: ArrayMetadata, streamed: bool, preserved: tuple[str, ...] | None
    ) -> None:
        self.name, self.metadata = name, metadata
        self.streamed, self.preserved = streamed, preserved


def standard_output(metadata: ArrayMetadata, header: bytes) -> StreamSink:
    """Return the sink for standard output, the argument `-`."""
    try:
        is_open = not is_closed(os.fstat(1))
    except OSError:
        is_open = False
    if not is_open:
        raise OutputError("standard output: it is closed")
    return StreamSink(1, "standard output", metadata, header, owns_fd=False)


def document(path: str, content: bytes, clobber: bool, sync: bool = False) -> FileSink:
    """Return a sink with the content of a file that is no array, such as an HTML report."""
    target, shape = _document_target(path, clobber, sync), (len(content),)
    metadata = ArrayMetadata(dtypes.from_name("uint8"), shape, "C", shape, {})
    sink = FileSink(target, metadata, Container(b"", metadata.nbytes))
    try:
        sink.write(0, memoryview(content))
    except BaseException:
        sink.abort()
        raise
    return sink


def check_document(path: str, clobber: bool) -> None:
    """Raise the errors of `document` that can be detected without writing."""
    _document_target(path, clobber, False).require_folder()


def _document_target(path: str, clobber: bool, sync: bool) -> Target:
    if locations.is_url(path):
        raise OutputError(f"{printable(path)}: expected a file on this machine")
    target = Target(path, None, existing(path), clobber, sync, only=True)
    if target.is_store or not target.is_file:
        raise OutputError(f"{printable(path)} is not a regular file: expected one")
    target.require_replaceable()
    return target
