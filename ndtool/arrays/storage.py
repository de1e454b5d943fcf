"""Bytes of files: maps, reads, writes, and room reserved before the first of them."""

import errno
import os
import sys
from collections.abc import Callable, Iterable
from typing import Any

from ndtool.errors import InputError, NdtoolError, OutputError, ResourceError, printable

CHUNK = 1 << 20
COPIED = 1 << 24  # bytes that the system is asked to copy at once: a fraction of a second
WINDOW = 1 << 14  # bytes that are read at once where headers are looked for
EXHAUSTED = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
)  # fmt: skip
Read = Callable[[int, int], bytes]  # what a file has from an offset on, fewer bytes at its end
closed: set[int] = set()  # standard descriptors that we were started without
_GET_FLAGS, _FIXED = 0x80086601, 0x30  # Linux's FS_IOC_GETFLAGS; append-only or immutable
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


def read_into(fd: int, start: int, room: memoryview) -> int:
    """Fill a room with bytes of a file from `start` on; return how many there were."""
    done = 0
    while done < len(room):
        count = os.preadv(fd, [room[done:]], start + done)
        if not count:
            break
        done += count
    return done


def advise_random(fd: int) -> None:
    """Have no more of a file read than is asked for."""
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    except (OSError, AttributeError):
        pass  # only advice


def will_need(fd: int, start: int, nbytes: int) -> None:
    """Have bytes of a file read that are needed soon, without waiting for them."""
    try:
        os.posix_fadvise(fd, start, nbytes, os.POSIX_FADV_WILLNEED)
    except (OSError, AttributeError):
        pass  # only advice


def let_go(fd: int, start: int, nbytes: int) -> None:
    """Have pages of a file written, and dropped where they are: they are not needed again soon."""
    try:
        os.posix_fadvise(fd, start, nbytes, os.POSIX_FADV_DONTNEED)
    except (OSError, AttributeError):
        pass  # only advice


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


def reserve(fd: int, total: int, name: str, used: Iterable[tuple[int, int]] | None = None) -> None:
    """Make room for a file of `total` bytes; ResourceError if there is too little.

    A map of a file without its room would end the process at the first byte too many. used: the
    stretches that will be written, where not all will be.
    """
    space = os.fstatvfs(fd)
    free = (space.f_bavail if os.geteuid() else space.f_bfree) * space.f_frsize
    if used is not None:
        os.ftruncate(fd, total)
    needed = 0
    for start, stop in ((0, total),) if used is None else used:
        needed += stop - start
        lacking = ResourceError(f"{printable(name)}: needs {needed} bytes of disk, {free} are free")
        if space.f_blocks and needed > free:  # where fallocate writes zeros, it would fill the disk
            raise lacking
        try:
            os.posix_fallocate(fd, start, stop - start)
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


def is_fixed(path: str, folder: int | None = None) -> bool:
    """Whether attributes keep a name, or those in a folder, from being removed again.

    False where that cannot be told. folder: a descriptor that `path` is relative to.
    """
    try:
        import fcntl

        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
        try:
            flags = fcntl.ioctl(fd, _GET_FLAGS, bytes(8))
        finally:
            os.close(fd)
    except (OSError, ImportError):
        return False
    return bool(int.from_bytes(flags[:4], sys.byteorder) & _FIXED)


def hidden_name(name: str) -> str:
    """Return a new name for a temporary file beside `name`, short enough for any file system."""
    return f".{name[:48]}.ndtool-{os.urandom(6).hex()}"


def lock(fd: int) -> bool:
    """Lock what is open for as long as this process has it open; whether that can be.

    Raises BlockingIOError where another process has it.
    """
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise
    except OSError:
        return False
    return True
