"""One input array: its bytes, the file that they are from, and whether that stays the same."""

from __future__ import annotations

import errno
import os
import stat
from typing import Any

from ndtool.arrays import npy
from ndtool.arrays.storage import (
    CHUNK,
    UNMAPPABLE,
    Spool,
    Window,
    failure,
    is_closed,
    map_bytes,
    read_at,
    release,
)
from ndtool.errors import InputError, OutputError, printable

SMALL = 1 << 16  # bytes up to which reading is cheaper than mapping
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}
STREAM_HINT = "a stream is read through standard input: ndtool ... - < STREAM"
SAMPLES = 16  # places of a file that are looked at to tell whether it is in memory


class Source:
    """One input array.

    name: the argument as given. buffer: exactly the data's bytes, read-only, maybe unaligned.
    mapped: whether they are a map of the file. position: where they are in the file, None where
    they are not there as they are. file: the file, None for a pipe. warning: what is odd about
    it without being wrong.
    """

    def __init__(
        self,
        name: str,
        header: npy.Header,
        buffer: memoryview,
        *,
        file: InputFile | None = None,
        position: int | None = None,
        mapped: bool = False,
        warning: str | None = None,
    ) -> None:
        self.name = name
        self.dtype, self.shape, self.fortran, self.version, self.offset = header
        self.nbytes = header.nbytes
        self.buffer = buffer
        self.position = position
        self.mapped = mapped
        self.warning = warning
        self.file_size = header.offset + header.nbytes if file is None else file.size
        self._file = file

    def recheck(self) -> None:
        """Raise OutputError if the file was modified or replaced since it was opened."""
        if self._file is not None and (change := self._file.change()):
            name = "standard input" if self.name == "-" else printable(self.name)
            raise OutputError(f"{name} {change}")

    def advise(self, kind: str, start: int = 0, length: int | None = None) -> None:
        """Tell the system how bytes will be read: "random", "sequential" or "willneed"."""
        if not self.mapped or self.position is None:
            return
        import mmap

        area: Any = self.buffer.obj
        end = self.nbytes if length is None else min(start + length, self.nbytes)
        skip = self.position % mmap.ALLOCATIONGRANULARITY
        first = (skip + start) // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            area.madvise(getattr(mmap, f"MADV_{kind.upper()}"), first, skip + end - first)
        except (OSError, ValueError):
            pass  # only advice

    def cached(self) -> float:
        """Return about which share of the data is in memory, 1 where that cannot be told."""
        if not self.mapped or self._file is None or self.position is None:
            return 1.0
        present, room = 0, [bytearray(1)]
        for i in range(SAMPLES):
            place = self.position + (2 * i + 1) * self.nbytes // (2 * SAMPLES)
            try:
                present += os.preadv(self._file.fd, room, place, os.RWF_NOWAIT)
            except BlockingIOError:
                pass  # it would have to be read
            except (OSError, AttributeError):
                return 1.0
        return present / SAMPLES

    def is_open_as(self, fd: int) -> bool:
        """Whether a descriptor is open on the file that the bytes are from."""
        try:
            return self._file is not None and os.path.samestat(os.fstat(fd), self._file.status)
        except OSError:
            return False

    def close(self) -> None:
        """Let go of the bytes and the file."""
        release(self.buffer)
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class InputFile:
    """An open input and what it was like when it was opened; `look` reads a little of it."""

    def __init__(self, fd: int, path: str | None) -> None:
        self.fd: int = fd
        self.path = path
        self.status = os.fstat(fd)
        self.size = self.status.st_size
        self.look = Window(fd).read
        self._owned = path is not None

    def change(self) -> str:
        """Say what happened to the file since, nothing if nothing did.

        The change time is left out: a new hard link or mode moves it too.
        """
        try:
            now, before = os.fstat(self.fd), self.status
        except OSError as exc:
            return f"cannot be looked at ({exc.strerror})"
        if (now.st_size, now.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
            return "changed during the run"
        try:
            here = before if self.path is None else os.stat(self.path)
        except OSError:
            return ""  # its name is gone, its bytes are the same
        return "" if os.path.samestat(here, before) else "was replaced during the run"

    def read(self, start: int, nbytes: int, label: str) -> tuple[memoryview, bool]:
        """Return bytes of the file and whether they are mapped, which few need not be."""
        if nbytes <= SMALL:
            return memoryview(self._piece(start, nbytes, label)), False
        try:
            return map_bytes(self.fd, start, nbytes), True
        except ValueError:
            raise _shorter(label) from None
        except OSError as exc:
            if exc.errno not in UNMAPPABLE:
                raise failure(exc, label) from None
        spool = Spool()
        for at in range(start, start + nbytes, CHUNK):
            spool.write(self._piece(at, min(CHUNK, start + nbytes - at), label))
        return spool.finish(), False

    def _piece(self, start: int, nbytes: int, label: str) -> bytes:
        try:
            piece = read_at(self.fd, start, nbytes)
        except OSError as exc:
            raise failure(exc, label) from None
        if len(piece) < nbytes:
            raise _shorter(label)
        return piece

    def close(self) -> None:
        if self._owned:
            self._owned = False
            try:
                os.close(self.fd)
            except OSError:
                pass  # nothing was written that could be lost


def open_file(path: str) -> InputFile:
    """Open a regular file; anything else is refused at once, without waiting for it."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        file = InputFile(fd, path)
    except OSError as exc:
        if fd >= 0:
            os.close(fd)
        if exc.errno == errno.ENXIO and os.path.exists(path):  # a socket, or a device not there
            raise _not_regular(path, stat.S_IFMT(os.stat(path).st_mode)) from None
        raise failure(exc, path) from None
    except ValueError as exc:
        raise InputError(f"{printable(path)}: no file can have this name: {exc}") from None
    if not stat.S_ISREG(file.status.st_mode):
        file.close()
        if is_closed(file.status):
            raise InputError(f"{printable(path)}: it is closed")
        raise _not_regular(path, stat.S_IFMT(file.status.st_mode))
    return file


def _shorter(label: str) -> OutputError:
    return OutputError(f"{printable(label)} changed during the run: it is shorter now")


def _not_regular(path: str, kind: int) -> InputError:
    what = _KINDS.get(kind, "no regular file")
    return InputError(
        f"{printable(path)} is {what}: expected a .npy or .npz file",
        hint=STREAM_HINT if kind == stat.S_IFSOCK else "",
    )


def surplus(label: str, count: int) -> str | None:
    """Return the warning about `count` bytes too many, None where there are none."""
    if not count:
        return None
    return f"{printable(label)}: {count} bytes after the array are ignored"
