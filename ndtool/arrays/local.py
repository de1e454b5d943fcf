"""Local files as places: how large they are, what they have where, whether they stay the same."""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol, Self

from ndtool.arrays.storage import (
    CHUNK,
    LOST,
    UNMAPPABLE,
    Window,
    copy_bytes,
    failure,
    is_closed,
    let_go,
    map_bytes,
    read_at,
    read_into,
    release,
)
from ndtool.errors import InputError, OutputError, printable

SMALL = 1 << 16  # bytes up to which reading is cheaper than mapping
SAMPLES = 16  # places of a file that are looked at to tell whether it is in memory
# What the folder of a Zarr store has: version 3; an array, a group, a store of version 2.
ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")
STREAM_HINT = "a stream is read through standard input: ndtool ... - < STREAM"
_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


Told = list[Any] | None  # what tells a content from others, another day, too; None: nothing does
Ranges = Iterable[tuple[int, int]]  # where bytes begin and stop, ascending
Tick = Callable[[float], object]  # is told which share is done; 0 begins anew


class File(Protocol):
    """What formats need of an open file, wherever it is; LocalFile says what each does."""

    size: int

    @property
    def fd(self) -> int: ...
    def look(self, start: int, nbytes: int) -> bytes: ...
    def read(self, start: int, nbytes: int, label: str) -> bytes: ...
    def stretch(self, start: int, nbytes: int, label: str) -> "Stretch": ...
    def copy(self, start: int, nbytes: int, fd: int, to: int) -> int: ...
    def change(self) -> str: ...
    def told(self) -> Told: ...
    def is_open_as(self, fd: int) -> bool: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class LocalFile:
    """An open file and what it was like when it was opened; `look` reads a little of it.

    path: None for a descriptor that is not ours to close.
    """

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

    def told(self) -> Told:
        """Return what tells the file, as it was when it was opened, from others."""
        return list(_told(self.status))

    def is_open_as(self, fd: int) -> bool:
        """Whether a descriptor is open on the same file."""
        try:
            return os.path.samestat(os.fstat(fd), self.status)
        except OSError:
            return False

    def stretch(self, start: int, nbytes: int, label: str) -> "Stretch":
        """Return bytes of the file, mapped unless they are few or the file cannot be."""
        if nbytes <= SMALL:
            return Stretch(memoryview(self.read(start, nbytes, label)), self, start)
        try:
            return Stretch(map_bytes(self.fd, start, nbytes), self, start, mapped=True)
        except ValueError:
            raise _shorter(label) from None
        except OSError as exc:
            if exc.errno not in UNMAPPABLE:
                raise failure(exc, label) from None
        from ndtool.arrays.spill import Spool

        spool = Spool()
        for at in range(start, start + nbytes, CHUNK):
            spool.write(self.read(at, min(CHUNK, start + nbytes - at), label))
        return Stretch(spool.finish(), self, start)

    def read(self, start: int, nbytes: int, label: str) -> bytes:
        """Return bytes of the file; OutputError, which calls it `label`, where they are gone."""
        try:
            piece = read_at(self.fd, start, nbytes)
        except OSError as exc:
            raise failure(exc, label) from None
        if len(piece) < nbytes:
            raise _shorter(label)
        return piece

    def copy(self, start: int, nbytes: int, fd: int, to: int) -> int:
        """Copy bytes to another file; return how many there were."""
        return copy_bytes(self.fd, start, nbytes, fd, to)

    def close(self) -> None:
        if self._owned:
            self._owned = False
            try:
                os.close(self.fd)
            except OSError:
                pass  # nothing was written that could be lost

    def __enter__(self) -> "LocalFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Stretch(NamedTuple):
    """Bytes that stand together.

    buffer: exactly these bytes, read-only, maybe unaligned. place, position: where they are as
    they are, None where they are nowhere else. mapped: whether the buffer is a map of them.
    fetch: brings ranges of the bytes, or all of them for None, to where the buffer is, which has
    zeros before, and tells how far it is; None where they are there.
    """

    buffer: memoryview
    place: File | None = None
    position: int | None = None
    mapped: bool = False
    fetch: Callable[[Ranges | None, Tick | None], None] | None = None

    def all(self) -> memoryview:
        """Return the buffer with all of the bytes in it."""
        if self.fetch is not None:
            self.fetch(None, None)
        return self.buffer

    def read(self, start: int, room: memoryview) -> None:
        """Fill a room with the bytes from `start` on, past the map: in large reads."""
        if not self.mapped or self.place is None or self.position is None:
            room[:] = self.buffer[start : start + len(room)]
            return
        try:
            count = read_into(self.place.fd, self.position + start, room)
        except OSError as exc:
            raise failure(exc, "an input") from None
        if count < len(room):
            raise OutputError(LOST)

    def let_go(self, start: int, nbytes: int) -> None:
        """Let the system have the memory that it keeps bytes of the file in."""
        if self.mapped and self.place is not None and self.position is not None:
            let_go(self.place.fd, self.position + start, nbytes)

    def advise(self, kind: str, start: int = 0, length: int | None = None) -> None:
        """Tell the system how bytes will be read: "random", "sequential" or "willneed"."""
        if not self.mapped or self.position is None:
            return
        import mmap

        area: Any = self.buffer.obj
        size = len(self.buffer)
        end = size if length is None else min(start + length, size)
        skip = self.position % mmap.ALLOCATIONGRANULARITY
        first = (skip + start) // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            area.madvise(getattr(mmap, f"MADV_{kind.upper()}"), first, skip + end - first)
        except (OSError, ValueError):
            pass  # only advice

    def cached(self, turn: int = 0, unknown: float = 1.0) -> float:
        """Return about which share of the bytes is in memory, `unknown` where that cannot be told.

        turn: 0 or 1, to look at other places, as the system may begin to read what was looked for.
        """
        if not self.mapped or self.place is None or self.position is None:
            return 1.0
        present, room = 0, [bytearray(1)]
        for i in range(SAMPLES):
            at = self.position + (4 * i + 2 + turn) * len(self.buffer) // (4 * SAMPLES)
            try:
                present += os.preadv(self.place.fd, room, at, os.RWF_NOWAIT)
            except BlockingIOError:
                pass  # it would have to be read
            except (OSError, AttributeError):
                return unknown
        return present / SAMPLES

    def release(self) -> None:
        """Let go of the bytes; the place stays open."""
        release(self.buffer)


class Folder(Protocol):
    """What formats need of a folder of files, wherever it is; LocalFolder says what each does."""

    path: str
    size: int
    at_once: int
    lists: bool

    def read(self, key: str) -> bytes | None: ...
    def names(self, key: str) -> list[str]: ...
    def ready(self, key: str, whole: bool) -> tuple[Any, ...]: ...
    def like(self, key: str) -> tuple[Any, ...]: ...
    def peek(self, key: str, count: int) -> tuple[bytes, int] | None: ...
    def change(self) -> str: ...
    def told(self, key: str) -> Told: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class LocalFolder:
    """A folder that is a store of arrays; as a file, it is empty.

    A key is a path in it. at_once: files that are worth reading at once, whatever the processors.
    lists: whether it tells what is in it.
    """

    size = 0
    at_once = 1
    lists = True

    def __init__(self, path: str) -> None:
        self.path = path
        self.status = os.stat(path)

    def read(self, key: str) -> bytes | None:
        """Return a small file, None where there is none."""
        path = os.path.join(self.path, key)
        if not os.path.isfile(path):
            return None
        with open(path, "rb") as file:
            return file.read()

    def names(self, key: str) -> list[str]:
        """Return the names of the folders in a folder."""
        with os.scandir(os.path.join(self.path, key)) as inside:
            return [one.name for one in inside if one.is_dir(follow_symlinks=False)]

    def ready(self, key: str, whole: bool) -> tuple[Any, ...]:
        """Return what `like` does, before a file is read first; whole: whether all of it will."""
        return self.like(key)

    def like(self, key: str) -> tuple[Any, ...]:
        """Return what tells this content of a file from others; () where there is none."""
        try:
            return _told(os.stat(os.path.join(self.path, key)))
        except OSError:
            return ()

    def peek(self, key: str, count: int) -> tuple[bytes, int] | None:
        """Return the first bytes of a file and its size, None where there is none."""
        try:
            with open(os.path.join(self.path, key), "rb") as file:
                return file.read(count), os.fstat(file.fileno()).st_size
        except FileNotFoundError:
            return None

    def look(self, start: int, nbytes: int) -> bytes:
        """Return no bytes: a folder has none."""
        return b""

    def change(self) -> str:
        """Say if another folder is at the path now, nothing where it is the same or gone."""
        try:
            here = os.stat(self.path)
        except OSError:
            return ""
        return "" if os.path.samestat(here, self.status) else "was replaced during the run"

    def told(self, key: str) -> Told:
        """Return what tells all files in a folder of it, as they are now, from others."""
        found, waiting = [], [""]
        while waiting:
            folder = waiting.pop()
            with os.scandir(os.path.join(self.path, key, folder)) as inside:
                for one in inside:
                    path = os.path.join(folder, one.name)
                    if one.is_dir():
                        waiting.append(path)
                    else:
                        found.append((path, *self.like(os.path.join(key, path))))
        return digest(found)

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def _told(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ino


def digest(found: list[tuple[Any, ...]]) -> Told:
    """Return what stands for names and what tells their contents, in no order."""
    import hashlib

    return [len(found), hashlib.sha256(repr(sorted(found)).encode()).hexdigest()]


def is_store(path: str) -> bool:
    """Whether a folder is that of a Zarr store, or of a part of one."""
    try:
        return any(os.path.isfile(os.path.join(path, name)) for name in ZARR_METADATA)
    except ValueError:  # no file can have this name
        return False


def open_file(path: str) -> LocalFile:
    """Open a regular file; anything else is refused at once, without waiting for it."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        file = LocalFile(fd, path)
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
        f"{printable(path)} is {what}: expected a file with arrays",
        hint=STREAM_HINT if kind == stat.S_IFSOCK else "",
    )
