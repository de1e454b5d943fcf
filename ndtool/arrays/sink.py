"""Outputs: the old file or the whole new one, never a part."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from math import prod

from ndtool.arrays import npy, targets
from ndtool.arrays.newfile import NewFile
from ndtool.arrays.storage import (
    CHUNK,
    MEMORY,
    UNMAPPABLE,
    failure,
    is_closed,
    map_bytes,
    read_at,
    release,
    reserve,
    unnamed_file,
    write_at,
    write_next,
)
from ndtool.errors import NdtoolError, OutputError, ResourceError, printable
from ndtool.rules.dtypes import Dtype


def open_output(
    target: str | None,
    dtype: Dtype,
    shape: tuple[int, ...],
    *,
    clobber: bool = True,
    sync: bool = False,
    only: bool = False,
) -> Output:
    """Prepare an array as output: all that can be refused is refused here, before any work.

    target: a path, as `targets.resolve` takes them; `-` for standard output; None for memory.
    FIFOs and devices are written to, any other path is replaced at commit.
    clobber: whether it may be. sync: whether commit waits until the disk has everything. only:
    whether the archive of a member has no others any more.
    Raises OutputError, and ResourceError where there is not room enough.
    """
    header = npy.encode(dtype, shape)
    nbytes = prod(shape) * dtype.itemsize
    if target is None:
        return HeldOutput("the result", nbytes)
    if target == "-":
        return _stdout(header, nbytes)
    found = targets.resolve(target, clobber=clobber, only=only)
    try:
        if not found.is_file:
            fd = os.open(found.path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
            return StreamOutput(fd, found.path, header, nbytes, owned=True)
        return FileOutput(found, header, nbytes, clobber=clobber, sync=sync)
    except BaseException as exc:
        found.close()
        if isinstance(exc, OSError) and not isinstance(exc, NdtoolError):
            raise failure(exc, found.path, OutputError) from None
        raise


def check_target(
    target: str, *, clobber: bool = True, only: bool = False
) -> tuple[str, ...] | None:
    """Raise what `open_output` would about the target, as far as that shows without writing.

    Returns the members that stay in its archive, None where there is none.
    """
    return None if target == "-" else targets.check(target, clobber=clobber, only=only)


def _stdout(header: bytes, nbytes: int) -> Output:
    try:
        there = not is_closed(os.fstat(1))
    except OSError:
        there = False
    if not there:
        raise OutputError("standard output: it is closed")
    return StreamOutput(1, "standard output", header, nbytes)


class Output:
    """An array that is being written; nothing of it is visible before `commit`.

    As a context manager it drops everything at the end unless it was committed.
    """

    streamed = False
    kept: tuple[str, ...] | None = None  # members that stay in the archive, if one was there

    def __init__(self, name: str, nbytes: int) -> None:
        self.name = name
        self.nbytes = nbytes
        self._view: memoryview | None = None
        self._copied = False  # whether the view must be written out at the end

    def write(self, offset: int, view: memoryview) -> None:
        """Write bytes of the data from `offset` on, where `map` shows them if there is one."""
        if offset < 0 or offset + len(view) > self.nbytes:
            raise ValueError(f"{len(view)} bytes at {offset} are not within {self.nbytes}")
        if self._copied:
            assert self._view is not None, "the result was dropped"
            self._view[offset : offset + len(view)] = view
        else:
            self._put(offset, view)

    def map(self) -> memoryview:
        """Return all of the data as writable bytes, zero at first."""
        raise NotImplementedError

    @property
    def writer(self) -> Callable[[int, memoryview], None] | None:
        """What is faster than stores to the map, None where nothing is; to be asked after `map`."""
        return None if self._copied else self.write

    def _put(self, offset: int, view: memoryview) -> None:
        """Hand bytes of the data to the system."""
        raise NotImplementedError

    def commit(self) -> None:
        """Make the output what its name shows."""
        raise NotImplementedError

    def abort(self) -> None:
        """Drop everything that was not committed."""
        raise NotImplementedError

    def _scratch(self) -> memoryview:
        """Return bytes of our own, which `_flush` writes out."""
        self._copied = True
        label = f"temporary copy of {self.name}"
        try:
            if self.nbytes <= MEMORY:
                return memoryview(bytearray(self.nbytes))
            fd = unnamed_file()
            try:
                reserve(fd, self.nbytes, label)
                return map_bytes(fd, 0, self.nbytes, writable=True)
            finally:
                os.close(fd)
        except NdtoolError:
            raise
        except MemoryError:
            raise ResourceError(f"{printable(label)}: no memory for {self.nbytes} bytes") from None
        except OSError as exc:
            raise failure(exc, label, OutputError) from None

    def _flush(self) -> None:
        if self._view is not None:
            if self._copied:
                self._put(0, self._view)
            self._forget()

    def _forget(self) -> None:
        if self._view is not None:
            release(self._view)
            self._view = None

    def __enter__(self) -> Output:
        return self

    def __exit__(self, *_: object) -> None:
        self.abort()


class HeldOutput(Output):
    """A result that goes nowhere: `map` has it, also after commit."""

    _committed = False

    def __init__(self, name: str, nbytes: int) -> None:
        super().__init__(name, nbytes)
        self._view: memoryview | None = self._scratch()  # now: two threads would make two

    def map(self) -> memoryview:
        assert self._view is not None, "the result was dropped"
        return self._view

    def commit(self) -> None:
        self._committed = True

    def abort(self) -> None:
        if not self._committed:
            self._forget()


class StreamOutput(Output):
    """Standard output, a FIFO or a device: bytes in order, gone once they are written."""

    streamed = True

    def __init__(
        self, fd: int, name: str, header: bytes, nbytes: int, *, owned: bool = False
    ) -> None:
        super().__init__(name, nbytes)
        self._fd: int | None = fd
        self._owned = owned
        self._header = header
        self._position = 0

    def _put(self, offset: int, view: memoryview) -> None:
        """Write the next bytes of the data; a closed pipe raises BrokenPipeError."""
        if offset != self._position:
            raise ValueError(f"a stream at {self._position} cannot take bytes at {offset}")
        self._begin()
        self._send(view)
        self._position += len(view)

    def map(self) -> memoryview:
        """Return bytes that are written out at commit."""
        if self._view is None:
            self._view = self._scratch()
        return self._view

    def commit(self) -> None:
        self._flush()
        self._begin()
        if self._position != self.nbytes:
            raise ValueError(f"only {self._position} of {self.nbytes} bytes were written")
        fd, self._fd = self._fd, None
        if fd is not None and self._owned:
            try:
                os.close(fd)
            except OSError as exc:
                raise failure(exc, self.name, OutputError) from None

    def abort(self) -> None:
        self._forget()
        fd, self._fd = self._fd, None
        if fd is not None and self._owned:
            os.close(fd)

    def _begin(self) -> None:
        """Send the header once, not before there is something to follow it."""
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


class FileOutput(Output):
    """A file, plain or an archive with one member more, that replaces the old one at commit."""

    def __init__(
        self, target: targets.Target, header: bytes, nbytes: int, *, clobber: bool, sync: bool
    ) -> None:
        super().__init__(target.path, nbytes)
        self._archive = target.archive
        self._member = target.member
        self.kept = target.kept
        self._size = len(header) + nbytes
        self._at = 0 if self._archive is None else self._archive.kept.at
        self._member_start = self._at + len(self._frame(0)[0])
        self._start = self._member_start + len(header)
        self._file = NewFile(target.path, target.old, clobber or self.kept is not None, sync)
        try:
            total = self._member_start + self._size + len(self._frame(0)[1])
            reserve(self._fd, total, self.name)
            if self._archive is not None:
                self._archive.copy(self._fd)
            write_at(self._fd, self._member_start, header)
        except BaseException:
            self._file.drop()
            raise

    @property
    def _fd(self) -> int:
        assert self._file.fd is not None, "the output is closed"
        return self._file.fd

    def _put(self, offset: int, view: memoryview) -> None:
        """Write bytes of the data from `offset` on, in any order and from any thread."""
        try:
            write_at(self._fd, self._start + offset, view)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None

    def map(self) -> memoryview:
        """Return all of the data as writable bytes of the file, or of a copy without maps."""
        if self._view is None:
            try:
                self._view = map_bytes(self._fd, self._start, self.nbytes, writable=True)
            except OSError as exc:
                if exc.errno not in UNMAPPABLE:
                    raise failure(exc, self.name, OutputError) from None
                self._view = self._scratch()
        return self._view

    def commit(self) -> None:
        self._flush()
        try:
            if self._member is not None:
                head, tail = self._frame(self._crc())
                write_at(self._fd, self._at, head)
                write_at(self._fd, self._member_start + self._size, tail)
            if self._archive is not None:
                self._archive.recheck()
            self._file.publish()
        except NdtoolError:
            raise
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None

    def abort(self) -> None:
        self._forget()
        self._file.drop()
        if self._archive is not None:
            self._archive.close()

    def _frame(self, crc: int) -> tuple[bytes, bytes]:
        """Return what an archive has right before its new member and after it."""
        if self._member is None:
            return b"", b""
        from ndtool.arrays import zipwriter

        kept = zipwriter.NOTHING if self._archive is None else self._archive.kept
        return (
            zipwriter.head(self._member, self._size, crc, self._at),
            zipwriter.tail(self._member, self._size, crc, kept),
        )

    def _crc(self) -> int:
        """Return the CRC of the member, from the file: its bytes may come in any order."""
        import zlib

        crc, at, end = 0, self._member_start, self._member_start + self._size
        while at < end:
            piece = read_at(self._fd, at, min(CHUNK, end - at))
            if not piece:
                raise OutputError(f"{printable(self.name)}: the file became shorter")
            crc = zlib.crc32(piece, crc)
            at += len(piece)
        return crc
