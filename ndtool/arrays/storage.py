"""Where bytes are kept: maps of files, files without a name, and a spool over both."""

import errno
import os
from collections.abc import Callable
from typing import Any

from ndtool.errors import InputError, NdtoolError, OutputError, ResourceError, printable

CHUNK = 1 << 20
COPIED = 1 << 24  # bytes that the system is asked to copy at once: a fraction of a second
WINDOW = 1 << 14  # bytes that are read at once where headers are looked for
MEMORY = 4 << 20  # bytes of a spool beyond this go to a temporary file: a run may need six
EXHAUSTED = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
)  # fmt: skip
Read = Callable[[int, int], bytes]  # what a file has from an offset on, fewer bytes at its end
closed: set[int] = set()  # standard descriptors that we were started without
LOST = "an input was truncated or a disk failed during the run"
# What an open says where files without a name are unknown.
NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM)
# What a map says where a file system has no shared maps, or none at all.
UNMAPPABLE = (errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOEXEC)


def failure(exc: OSError, name: str, kind: type[NdtoolError] = InputError) -> NdtoolError:
    """Return the system's error about the file `name` as ours.

    What memory, disk and limits cannot give is a ResourceError, everything else is `kind`.
    """
    if exc.errno == errno.EFAULT:  # a write from the map of an input
        return OutputError(LOST)
    if exc.errno in EXHAUSTED:
        kind = ResourceError
    return kind(f"{printable(name)}: {exc.strerror or exc}")


def guard_descriptors() -> None:
    """Fill closed standard descriptors, so that no file that is opened later takes their place.

    Each becomes a directory: using it still fails, as it must, and so does opening it once more
    by a name such as /dev/stdout.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/", os.O_RDONLY)  # the lowest free number, so this one
            closed.add(fd)


def is_closed(status: os.stat_result) -> bool:
    """Whether that is what stands in for a closed standard descriptor."""
    return any(os.path.samestat(os.fstat(fd), status) for fd in closed)


def map_bytes(fd: int, start: int, nbytes: int, *, writable: bool = False) -> memoryview:
    """Return `nbytes` of a file from `start` on as a shared map, which may be unaligned.

    Raises OSError, or ValueError where the file is shorter than that.
    """
    if not nbytes:
        return memoryview(bytearray() if writable else b"")
    import mmap

    skip = start % mmap.ALLOCATIONGRANULARITY
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    area = mmap.mmap(fd, skip + nbytes, access=access, offset=start - skip)
    return memoryview(area)[skip:]


def release(view: memoryview) -> None:
    """Let go of a view; a map whose bytes are still in use elsewhere goes with its last user."""
    try:
        view.release()
    except BufferError:
        pass


def read_at(fd: int, start: int, nbytes: int) -> bytes:
    """Return `nbytes` of a file from `start` on, fewer only at its end."""
    piece = os.pread(fd, nbytes, start)
    if not piece or len(piece) == nbytes:
        return piece
    pieces = [piece]
    got = len(piece)
    while piece and got < nbytes:
        piece = os.pread(fd, nbytes - got, start + got)
        pieces.append(piece)
        got += len(piece)
    return b"".join(pieces)


def reader(read: Read, start: int) -> Callable[[int], bytes]:
    """Return a function that reads the next bytes each time, from `start` on."""
    at = start

    def next_bytes(count: int) -> bytes:
        nonlocal at
        piece = read(at, count)
        at += len(piece)
        return piece

    return next_bytes


class Window:
    """Small reads of a file that stand close together, served from a larger one."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._start = 0
        self._held = b""

    def read(self, start: int, nbytes: int) -> bytes:
        """Return `nbytes` of the file from `start` on, fewer only at its end."""
        at = start - self._start
        if at < 0 or at + nbytes > len(self._held):
            self._start, at = start, 0
            self._held = read_at(self._fd, start, max(nbytes, WINDOW))
        return self._held[at : at + nbytes]


def write_at(fd: int, start: int, view: Any) -> None:
    """Write all bytes of `view` to the file from `start` on; threads may do so at once."""
    left = memoryview(view).cast("B")
    while left:
        done = os.pwrite(fd, left, start)
        start += done
        left = left[done:]


def copy_bytes(source: int, start: int, nbytes: int, fd: int, to: int) -> int:
    """Copy bytes of a file to another, in the system where it can; return how many there were."""
    done = 0
    try:
        while done < nbytes:
            count = os.copy_file_range(
                source, fd, min(nbytes - done, COPIED), start + done, to + done
            )
            if not count:
                break
            done += count
    except (OSError, AttributeError):
        pass  # what is left is copied here, or fails here for its own reason
    while done < nbytes and (piece := read_at(source, start + done, min(CHUNK, nbytes - done))):
        write_at(fd, to + done, piece)
        done += len(piece)
    return done


def write_next(fd: int, view: Any) -> None:
    """Write all bytes of `view` to the stream, waiting for room where it would not."""
    left = memoryview(view).cast("B")
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BlockingIOError:  # whoever made the descriptor made it so
            import select

            select.select([], [fd], [])


def reserve(fd: int, total: int, name: str) -> None:
    """Make room for a file of `total` bytes; ResourceError if there is too little.

    A map of a file without its room would end the process at the first byte too many.
    """
    space = os.fstatvfs(fd)
    free = (space.f_bavail if os.geteuid() else space.f_bfree) * space.f_frsize
    lacking = ResourceError(f"{printable(name)}: needs {total} bytes of disk, {free} are free")
    if space.f_blocks and total > free:  # where fallocate writes zeros, it would fill the disk
        raise lacking
    try:
        os.posix_fallocate(fd, 0, total)
    except (OverflowError, AttributeError) as exc:
        if isinstance(exc, OverflowError):
            raise lacking from None
        os.ftruncate(fd, total)
    except OSError as exc:
        if exc.errno in (errno.ENOSPC, errno.EDQUOT):
            raise lacking from None
        if exc.errno == errno.EFBIG:
            raise ResourceError(
                f"{printable(name)}: needs {total} bytes, more than a file may have here",
                hint="ulimit -f shows the limit on the size of files",
            ) from None
        if exc.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV):
            raise
        os.ftruncate(fd, total)


def hidden_name(name: str) -> str:
    """Return a new name for a temporary file beside `name`, short enough for any file system."""
    return f".{name[:48]}.ndtool-{os.urandom(6).hex()}"


def unnamed_file() -> int:
    """Return a descriptor of a new file without a name, in TMPDIR if that can be."""
    reason = OSError(errno.ENOENT, "no directory")
    for directory in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "."):
        if not directory:
            continue
        try:
            return _open_unnamed(directory)
        except OSError as exc:
            reason = exc
    raise ResourceError(
        f"no temporary file can be made: {reason.strerror}",
        hint="TMPDIR names the directory for temporary files",
    )


def _open_unnamed(directory: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE | os.O_EXCL, 0o600)
    except (OSError, AttributeError) as exc:
        if isinstance(exc, OSError) and exc.errno not in NAMELESS:
            raise
    path = os.path.join(directory, hidden_name("spool"))
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    return fd


class Spool:
    """Bytes that arrive in pieces: kept in memory up to MEMORY, then in an unnamed file."""

    def __init__(self) -> None:
        self.size = 0
        self._memory = bytearray()
        self._fd: int | None = None

    def write(self, piece: bytes | bytearray | memoryview) -> None:
        """Append `piece`; ResourceError if there is no room for it."""
        try:
            if self._fd is None and self.size + len(piece) > MEMORY:
                self._fd = unnamed_file()
                self._write_file(self._memory)
                self._memory = bytearray()
            if self._fd is None:
                self._memory += piece
            else:
                self._write_file(piece)
        except (OSError, MemoryError) as exc:
            raise self._full(exc) from None
        self.size += len(piece)

    def finish(self) -> memoryview:
        """Return all bytes, read-only; the spool is closed and they outlive it."""
        try:
            if self._fd is None:
                return memoryview(self._memory).toreadonly()
            return map_bytes(self._fd, 0, self.size)
        except OSError as exc:
            raise self._full(exc) from None
        finally:
            self.close()

    def close(self) -> None:
        """Drop the file, if there is one; a map of it stays."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    __del__ = close

    def _write_file(self, piece: bytes | bytearray | memoryview) -> None:
        assert self._fd is not None
        write_next(self._fd, piece)

    def _full(self, exc: OSError | MemoryError) -> NdtoolError:
        if isinstance(exc, NdtoolError):
            return exc
        reason = getattr(exc, "strerror", None) or "out of memory"
        return ResourceError(
            f"no room for a temporary copy beyond {self.size} bytes: {reason}",
            hint="TMPDIR names the directory for temporary files",
        )
