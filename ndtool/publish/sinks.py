"""Sinks for streams and files; a file is published only when complete."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from ndtool.arrays.sink import Sink, Unpublished
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, printable
from ndtool.publish.newfile import NewFile, new_file, publish
from ndtool.publish.targets import CurrentFile, Target
from ndtool.storage.descriptors import (
    NO_MMAP_ERRNOS,
    advise,
    failure,
    is_closed,
    map_bytes,
    os_errors,
    release,
    reserve,
    write_at,
    write_next,
)


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
