"""File descriptors: memory maps, reads, writes, advice, locks and reserved disk space."""

import errno
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ndtool.errors import InputError, NdtoolError, OutputError, ResourceError, printable

CHUNK = 1 << 20
COPIED = 1 << 24  # bytes per copy_file_range call, which takes a fraction of a second
WINDOW = 1 << 14  # bytes per read of headers
EXHAUSTED = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
)  # fmt: skip
Read = Callable[[int, int], bytes]  # (offset, length) to bytes, fewer at the end of the file
closed: set[int] = set()  # standard descriptors that were closed at startup
_GET_FLAGS, _PROTECTED = 0x80086601, 0x30  # Linux's FS_IOC_GETFLAGS; append-only or immutable
LOST = "an input was truncated or a disk failed during the run"
# Errors of open where the file system has no unnamed files (O_TMPFILE).
NAMELESS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM)
# Errors of mmap where the file system has no shared maps, or none at all.
UNMAPPABLE = (errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOEXEC)


def failure(exc: OSError, name: str, kind: type[NdtoolError] = InputError) -> NdtoolError:
    """Return the NdtoolError for an OSError about the file `name`.

    It is a ResourceError if memory, disk space or a limit is exhausted, else a `kind`.
    """
    if exc.errno == errno.EFAULT:  # a write whose source is a lost page of an input's map
        return OutputError(LOST)
    if exc.errno in EXHAUSTED:
        kind = ResourceError
    return kind(f"{printable(name)}: {exc.strerror or exc}")


@contextmanager
def os_errors(name: str, kind: type[NdtoolError] = InputError) -> Iterator[None]:
    """Raise an OSError as the NdtoolError about the file `name`, see `failure`."""
    try:
        yield
    except NdtoolError:
        raise
    except OSError as exc:
        raise failure(exc, name, kind) from None


def absolute(path: str) -> str:
    """Return the absolute path; OutputError if the current directory was removed."""
    with os_errors(path, OutputError):
        return os.path.abspath(path)


def guard_descriptors() -> None:
    """Open a directory on each closed standard descriptor, so that no later file gets its number.

    Reads and writes of it still fail, as they must, and so does opening it again by a name such as
    /dev/stdout.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/", os.O_RDONLY)  # gets the lowest free number, which is fd
            closed.add(fd)


def is_closed(status: os.stat_result) -> bool:
    """Whether a status is that of the directory which replaces a closed standard descriptor."""
    return any(os.path.samestat(os.fstat(fd), status) for fd in closed)


def map_bytes(fd: int, start: int, nbytes: int, *, writable: bool = False) -> memoryview:
    """Map `nbytes` of a file from offset `start` on, shared; the offset may be unaligned.

    Raises OSError, or ValueError if the file is too short.
    """
    if not nbytes:
        return memoryview(bytearray() if writable else b"")
    import mmap

    skip = start % mmap.ALLOCATIONGRANULARITY
    access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
    area = mmap.mmap(fd, skip + nbytes, access=access, offset=start - skip)
    return memoryview(area)[skip:]


def release(view: memoryview) -> None:
    """Release a view; a map with other exports is unmapped with the last of them."""
    try:
        view.release()
    except BufferError:
        pass


def read_at(fd: int, start: int, nbytes: int) -> bytes:
    """Read `nbytes` of a file from offset `start` on, fewer only at its end."""
    data = block = os.pread(fd, nbytes, start)
    while block and len(data) < nbytes:  # a read returns 2 GiB at most
        block = os.pread(fd, nbytes - len(data), start + len(data))
        data += block
    return data


def read_into(fd: int, start: int, buffer: memoryview) -> int:
    """Read bytes of a file into a buffer from offset `start` on; return their number."""
    done = 0
    while done < len(buffer):
        count = os.preadv(fd, [buffer[done:]], start + done)
        if not count:
            break
        done += count
    return done


def advise(fd: int, kind: str, start: int = 0, nbytes: int = 0) -> None:
    """Call posix_fadvise on a byte range of a file, to its end if nbytes is 0.

    kind: "RANDOM" turns readahead off, "WILLNEED" prefetches without blocking, "DONTNEED" starts
    writeback and drops clean pages from the page cache.
    """
    try:
        os.posix_fadvise(fd, start, nbytes, getattr(os, f"POSIX_FADV_{kind}"))
    except (OSError, AttributeError):
        pass  # only advice


def reader(read: Read, start: int) -> Callable[[int], bytes]:
    """Return a function that reads sequentially from offset `start` on."""
    offset = start

    def next_bytes(count: int) -> bytes:
        nonlocal offset
        block = read(offset, count)
        offset += len(block)
        return block

    return next_bytes


class Window:
    """Buffered reader of a file, for small reads at nearby offsets."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._start = 0
        self._buffer = b""

    def read(self, start: int, nbytes: int) -> bytes:
        """Read `nbytes` of the file from offset `start` on, fewer only at its end."""
        offset = start - self._start
        if offset < 0 or offset + nbytes > len(self._buffer):
            self._start, offset = start, 0
            self._buffer = read_at(self._fd, start, max(nbytes, WINDOW))
        return self._buffer[offset : offset + nbytes]


def write_at(fd: int, start: int, view: Any) -> None:
    """Write all bytes of `view` to the file at offset `start`; thread-safe."""
    remaining = memoryview(view).cast("B")
    while remaining:
        done = os.pwrite(fd, remaining, start)
        start += done
        remaining = remaining[done:]


def copy_bytes(source: int, start: int, nbytes: int, fd: int, to: int) -> int:
    """Copy bytes of a file to another, in the kernel if possible; return the number copied."""
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
        pass  # the loop below copies the rest, or raises the actual error
    while done < nbytes and (block := read_at(source, start + done, min(CHUNK, nbytes - done))):
        write_at(fd, to + done, block)
        done += len(block)
    return done


def write_next(fd: int, view: Any) -> None:
    """Write all bytes of `view` to a stream, blocking even if its descriptor is non-blocking."""
    remaining = memoryview(view).cast("B")
    while remaining:
        try:
            remaining = remaining[os.write(fd, remaining) :]
        except BlockingIOError:  # the descriptor is inherited, and may be non-blocking
            import select

            select.select([], [fd], [])


def reserve(fd: int, total: int, name: str, used: Iterable[tuple[int, int]] | None = None) -> None:
    """Reserve disk space for a file of `total` bytes; ResourceError if there is too little.

    A store through the map of a file raises SIGBUS if the disk is full. used: the byte ranges to be
    written, None for all.
    """
    free = _free(fd)
    if used is not None:
        os.ftruncate(fd, total)
    needed = 0
    for start, stop in ((0, total),) if used is None else used:
        needed += stop - start
        error = _no_space(name, needed, free)
        if free is not None and needed > free:  # or fallocate might fill the disk with zeros
            raise error
        try:
            os.posix_fallocate(fd, start, stop - start)
        except (OverflowError, AttributeError) as exc:
            if isinstance(exc, OverflowError):
                raise error from None
            os.ftruncate(fd, total)
        except OSError as exc:
            if exc.errno in (errno.ENOSPC, errno.EDQUOT):
                raise error from None
            if exc.errno == errno.EFBIG:
                raise _too_large(name, total) from None
            if exc.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV):
                raise
            os.ftruncate(fd, total)


def require_space(folder: str, files: int, nbytes: int, largest: int, name: str) -> None:
    """Raise ResourceError if a folder's file system has no space for files of `nbytes` in all.

    largest: bytes of the largest file. Nothing is reserved.
    """
    free, space = _free(folder), os.statvfs(folder)
    if space.f_files and files > space.f_favail:  # f_files is 0 where inodes are unlimited
        raise ResourceError(
            f"{printable(name)}: needs {files} files, the disk has inodes for {space.f_favail}"
        )
    if free is not None and nbytes > free:
        raise _no_space(name, nbytes, free)
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    except ImportError:
        return
    if limit != resource.RLIM_INFINITY and largest > limit:
        raise _too_large(name, largest)


def _free(location: int | str) -> int | None:
    """Return the bytes that a file system has free for this user, None if unknown."""
    space = os.statvfs(location)
    if not space.f_blocks:
        return None
    return (space.f_bavail if os.geteuid() else space.f_bfree) * space.f_frsize


def _no_space(name: str, needed: int, free: int | None) -> ResourceError:
    available = "" if free is None else f", {free} are free"
    return ResourceError(f"{printable(name)}: needs {needed} bytes of disk space{available}")


def _too_large(name: str, nbytes: int) -> ResourceError:
    return ResourceError(
        f"{printable(name)}: needs {nbytes} bytes, more than the limit on file sizes",
        hint="ulimit -f shows the limit",
    )


def is_protected(path: str, folder: int | None = None) -> bool:
    """Whether a file or folder is append-only or immutable, so that no name can be removed.

    False if unknown. folder: a descriptor that `path` is relative to.
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
    return bool(int.from_bytes(flags[:4], sys.byteorder) & _PROTECTED)


def hidden_name(name: str) -> str:
    """Return a unique temporary name for the directory of `name`, within all length limits."""
    return f".{name[:48]}.ndtool-{os.urandom(6).hex()}"


def lock(fd: int) -> bool:
    """Take an exclusive flock until the descriptor is closed; False if locks are unsupported.

    Raises BlockingIOError if another process holds the lock.
    """
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as exc:
        if isinstance(exc, BlockingIOError):
            raise
        return False
    return True
