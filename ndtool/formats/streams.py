"""Consecutive .npy arrays, read from standard input or a pipe."""

from __future__ import annotations

import os
import stat

from ndtool.arrays.source import ContiguousSource
from ndtool.errors import InputError, UsageError, argument_name
from ndtool.formats import npy
from ndtool.storage.descriptors import BLOCK_SIZE, is_closed, os_errors, sequential_reader
from ndtool.storage.local import STREAM_HINT, LocalFile


class Stream:
    """A file descriptor from which consecutive arrays are read.

    name: the argument, "-" or the path of a FIFO. directory: for the unnamed temporary file of a
    large array, None for TMPDIR.
    """

    def __init__(self, fd: int, name: str, directory: str | None = None) -> None:
        self._fd = fd
        self.name = name
        self.directory = directory
        self._count = 0
        try:
            self._status = os.fstat(fd)
            self._mode = 0 if is_closed(self._status) else self._status.st_mode
        except OSError:
            self._mode = 0

    def read(self) -> ContiguousSource:
        """Read the next array, and no bytes after it."""
        label = self.begin()
        with os_errors(label):
            return self._from_file(label) if stat.S_ISREG(self._mode) else self._from_pipe(label)

    def begin(self) -> str:
        """Return the name of the next array in messages; raise if it cannot be read."""
        self._count += 1
        label = argument_name(self.name) + (f", array {self._count}" if self._count > 1 else "")
        if not self._mode:
            raise InputError(f"{label}: it is closed")
        if stat.S_ISCHR(self._mode) and os.isatty(self._fd):
            raise UsageError(f"{label}: it is a terminal, not an array", hint=STREAM_HINT)
        return label

    def read_bytes(self, count: int) -> bytes:
        """Read the next bytes, fewer only at the end."""
        with os_errors(argument_name(self.name)):
            return self._read_fully(count)

    def _from_file(self, label: str) -> ContiguousSource:
        file = LocalFile(self._fd, None)
        start = os.lseek(self._fd, 0, os.SEEK_CUR)
        header = npy.read_header(
            sequential_reader(file.peek, start), max(file.size - start, 0), label
        )
        metadata, position = npy.metadata_of(header), start + header.offset
        source = ContiguousSource.in_file(self.name, metadata, file, position, label)
        os.lseek(self._fd, position + header.nbytes, os.SEEK_SET)
        return source

    def _from_pipe(self, label: str) -> ContiguousSource:
        from ndtool.storage.tempfiles import Spool

        header = npy.read_header(self._read_fully, None, label)
        spool = Spool(self.directory)
        buffer = memoryview(bytearray(min(header.nbytes, BLOCK_SIZE)))
        remaining = header.nbytes
        while remaining:
            count = self._fill(buffer[:remaining])
            if not count:
                raise InputError(
                    f"{label}: expected {header.nbytes} bytes of data after the header,"
                    f" found {header.nbytes - remaining}"
                )
            spool.write(buffer[:count])
            remaining -= count
        return ContiguousSource(self.name, npy.metadata_of(header), spool.finish())

    def _read_fully(self, count: int) -> bytes:
        view = memoryview(bytearray(count))
        offset = 0
        while offset < count and (nread := self._fill(view[offset:])):
            offset += nread
        return bytes(view[:offset])

    def _fill(self, view: memoryview) -> int:
        while True:
            try:
                return os.readv(self._fd, [view])
            except BlockingIOError:  # an inherited descriptor may be non-blocking
                import select

                select.select([self._fd], [], [])


class Streams(Stream):
    """Standard input and the FIFOs of a run; created before other files are opened."""

    def __init__(self, fd: int = 0, directory: str | None = None) -> None:
        super().__init__(fd, "-", directory)
        self._pipes: dict[tuple[int, int], Stream] = {}

    def pipe(self, path: str) -> Stream | None:
        """Return the stream of a FIFO, the same for all of its paths; None for another file.

        The first call blocks until another process opens the FIFO for writing.
        """
        if path == "-":
            return self
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None  # the caller's open reports the error
        if not stat.S_ISFIFO(status.st_mode):
            return None
        if self._mode and os.path.samestat(status, self._status):
            return self
        identity = status.st_dev, status.st_ino
        if identity not in self._pipes:
            with os_errors(path):
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            self._pipes[identity] = _Pipe(fd, path, self.directory)
        return self._pipes[identity]


class _Pipe(Stream):
    """A FIFO opened by `Streams.pipe`, closed with this object."""

    def __del__(self) -> None:
        os.close(self._fd)
