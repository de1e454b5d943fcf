"""Outputs: the old file or the whole new one, never a part."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from math import prod

from ndtool import headers
from ndtool.dtypes import Dtype
from ndtool.errors import NdtoolError, OutputError, ResourceError, UsageError, printable
from ndtool.newfile import NewFile
from ndtool.storage import (
    CHUNK,
    MEMORY,
    UNMAPPABLE,
    failure,
    map_bytes,
    read_at,
    release,
    reserve,
    unnamed_file,
    write_at,
    write_next,
)

_MEMBER = "output"


def open_output(
    target: str | None,
    dtype: Dtype,
    shape: tuple[int, ...],
    *,
    clobber: bool = True,
    sync: bool = False,
) -> Output:
    """Prepare an array as output: all that can be refused is refused here, before any work.

    target: a path; `x.npz` or `x.npz:member` for an archive with that one member; `-` for
    standard output; None for memory. FIFOs and devices are written to, any other path is
    replaced at commit.
    clobber: whether it may be. sync: whether commit waits until the disk has everything.
    Raises OutputError, and ResourceError where there is not room enough.
    """
    header = headers.encode(dtype, shape)
    nbytes = prod(shape) * dtype.itemsize
    if target is None:
        return HeldOutput("the result", nbytes)
    if target == "-":
        return _stdout(header, nbytes)
    path, member = _split(target)
    try:
        old = _replaceable(path, clobber)
        if old is not None and not stat.S_ISREG(old.st_mode):
            fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
            return StreamOutput(fd, path, header, nbytes, owned=True)
        name = None if member is None else _member_name(member)
        return FileOutput(NewFile(path, old, clobber, sync), header, nbytes, name)
    except NdtoolError:
        raise
    except OSError as exc:
        raise failure(exc, path, OutputError) from None


def check_target(target: str, *, clobber: bool = True) -> None:
    """Raise what `open_output` would about the target, as far as that shows without writing."""
    if target == "-":
        return
    path, member = _split(target)
    try:
        if member is not None:
            _member_name(member)
        old = _replaceable(path, clobber)
        if old is None or stat.S_ISREG(old.st_mode):
            parent = os.path.dirname(os.path.realpath(path))
            os.stat(os.path.join(parent, "."))
            if not os.access(parent, os.W_OK | os.X_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except NdtoolError:
        raise
    except OSError as exc:
        raise failure(exc, path, OutputError) from None


def _replaceable(path: str, clobber: bool) -> os.stat_result | None:
    """Return what is at `path`; OutputError if that is a file which must stay."""
    old = _existing(path)
    if old is not None and stat.S_ISREG(old.st_mode) and not clobber:
        raise OutputError(f"{printable(path)} exists, and nothing may be replaced")
    return old


def _split(target: str) -> tuple[str, str | None]:
    if target.endswith(".npz"):
        return target, _MEMBER
    path, separator, member = target.rpartition(".npz:")
    if not separator or os.path.lexists(target):
        return target, None
    if not member:
        raise UsageError(f"{printable(target)}: the member has no name: expected x.npz:NAME")
    return path + ".npz", member


def _member_name(member: str) -> bytes:
    from ndtool import archive_writer

    return archive_writer.member_name(member)


def _stdout(header: bytes, nbytes: int) -> Output:
    try:
        os.fstat(1)
    except OSError:
        raise OutputError("standard output: it is closed") from None
    return StreamOutput(1, "standard output", header, nbytes)


def _existing(path: str) -> os.stat_result | None:
    """Return what is at `path`, None where nothing is; OutputError where no file can be."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        if os.path.islink(path):
            raise OutputError(f"{printable(path)}: a link to nothing: expected a file") from None
        if not os.path.basename(path):
            raise OutputError(f"{printable(path)}: no name of a file") from None
        return None
    except ValueError as exc:
        raise OutputError(f"{printable(path)}: no file can have this name: {exc}") from None
    for test, what in (
        (stat.S_ISDIR, "a directory"),
        (stat.S_ISBLK, "a block device"),
        (stat.S_ISSOCK, "a socket"),
    ):
        if test(status.st_mode):
            raise OutputError(f"{printable(path)} is {what}: expected a file")
    # A rename needs no permission of the file itself, but its owner took it away on purpose.
    if stat.S_ISREG(status.st_mode) and not os.access(path, os.W_OK):
        raise OutputError(f"{printable(path)} is read-only", hint="chmod u+w lets it be replaced")
    return status


class Output:
    """An array that is being written; nothing of it is visible before `commit`.

    As a context manager it drops everything at the end unless it was committed.
    """

    streamed = False

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
    """A file, plain or an archive with one member, that replaces the old one at commit."""

    def __init__(self, file: NewFile, header: bytes, nbytes: int, member: bytes | None) -> None:
        super().__init__(file.path, nbytes)
        self._file = file
        self._member = member
        self._size = len(header) + nbytes
        self._member_start = len(self._frame(0)[0])
        self._start = self._member_start + len(header)
        try:
            total = sum(map(len, self._frame(0))) + self._size
            reserve(self._fd, total, self.name)
            write_at(self._fd, self._member_start, header)
        except BaseException:
            file.drop()
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
                write_at(self._fd, 0, head)
                write_at(self._fd, self._member_start + self._size, tail)
            self._file.publish()
        except NdtoolError:
            raise
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None

    def abort(self) -> None:
        self._forget()
        self._file.drop()

    def _frame(self, crc: int) -> tuple[bytes, bytes]:
        """Return what an archive has before and after its member."""
        if self._member is None:
            return b"", b""
        from ndtool import archive_writer

        return (
            archive_writer.head(self._member, self._size, crc),
            archive_writer.tail(self._member, self._size, crc),
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
