"""Standard input and pipes: places from which .npy arrays come one after the other."""

from __future__ import annotations

import os
import stat

from ndtool.arrays import npy
from ndtool.arrays.local import STREAM_HINT, LocalFile, Stretch
from ndtool.arrays.source import Entry, Flat
from ndtool.arrays.storage import CHUNK, failure, is_closed, reader
from ndtool.errors import InputError, NdtoolError, UsageError, called


class Stream:
    """A descriptor from which consecutive arrays are read; `name` is the argument for it.

    directory: where they are kept if memory is too little, None for TMPDIR.
    """

    def __init__(self, fd: int, name: str, directory: str | None = None) -> None:
        self._fd = fd
        self._name = name
        self._directory = directory
        self._count = 0
        try:
            self._status = os.fstat(fd)
            self._mode = 0 if is_closed(self._status) else self._status.st_mode
        except OSError:
            self._mode = 0

    def read(self) -> Flat:
        """Return the next array, and leave what follows it where it is."""
        self._count += 1
        label = called(self._name) + (f", array {self._count}" if self._count > 1 else "")
        if not self._mode:
            raise InputError(f"{label}: it is closed")
        if stat.S_ISCHR(self._mode) and os.isatty(self._fd):
            raise UsageError(f"{label}: it is a terminal, not an array", hint=STREAM_HINT)
        try:
            return self._from_file(label) if stat.S_ISREG(self._mode) else self._from_pipe(label)
        except NdtoolError:
            raise
        except OSError as exc:
            raise failure(exc, label) from None

    def entry(self) -> Entry:
        """Return what `inspect` tells about the next array, which is read."""
        source = self.read()
        facts = source.facts
        size = facts.notes["offset"] + facts.nbytes
        source.close()
        return Entry(self._name, None, facts, None, size, "a stream", None)

    def _from_file(self, label: str) -> Flat:
        file = LocalFile(self._fd, None)
        start = os.lseek(self._fd, 0, os.SEEK_CUR)
        header = npy.read(reader(file.look, start), max(file.size - start, 0), label)
        stretch = file.stretch(start + header.offset, header.nbytes, label)
        os.lseek(self._fd, start + header.offset + header.nbytes, os.SEEK_SET)
        return Flat(self._name, npy.facts_of(header), stretch, file)

    def _from_pipe(self, label: str) -> Flat:
        from ndtool.arrays.spill import Spool

        header = npy.read(self._exactly, None, label)
        spool = Spool(self._directory)
        buffer = memoryview(bytearray(min(header.nbytes, CHUNK)))
        left = header.nbytes
        while left:
            got = self._fill(buffer[:left])
            if not got:
                raise InputError(
                    f"{label}: expected {header.nbytes} bytes of data after the header,"
                    f" found {header.nbytes - left}"
                )
            spool.write(buffer[:got])
            left -= got
        return Flat(self._name, npy.facts_of(header), Stretch(spool.finish()))

    def _exactly(self, count: int) -> bytes:
        view = memoryview(bytearray(count))
        at = 0
        while at < count and (got := self._fill(view[at:])):
            at += got
        return bytes(view[:at])

    def _fill(self, view: memoryview) -> int:
        while True:
            try:
                return os.readv(self._fd, [view])
            except BlockingIOError:  # whoever started us made it so
                import select

                select.select([self._fd], [], [])


class Streams(Stream):
    """Standard input, and the pipes that a run reads; make it before opening files."""

    def __init__(self, fd: int = 0, directory: str | None = None) -> None:
        super().__init__(fd, "-", directory)
        self._pipes: dict[tuple[int, int], Stream] = {}

    def pipe(self, path: str) -> Stream | None:
        """Return the pipe at `path`, the same under all its names; None where there is none.

        As for cat, a FIFO is open when somebody writes to it.
        """
        if path == "-":
            return self
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None  # to be told by who opens it
        if not stat.S_ISFIFO(status.st_mode):
            return None
        if self._mode and os.path.samestat(status, self._status):
            return self
        place = status.st_dev, status.st_ino
        if place not in self._pipes:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as exc:
                raise failure(exc, path) from None
            self._pipes[place] = _Pipe(fd, path, self._directory)
        return self._pipes[place]


class _Pipe(Stream):
    """A pipe that was opened here."""

    def __del__(self) -> None:
        os.close(self._fd)
