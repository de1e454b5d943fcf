"""File descriptors: memory maps, reads, writes, advice, locks and reserved disk space."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from ndtool.errors import InputError, NdtoolError, OutputError, ResourceError, printable

BLOCK_SIZE = 1 << 20  # bytes per read or write of sequential copies
MAX_COPY = 1 << 24  # bytes per copy_file_range call, which takes a fraction of a second
MIN_READ = 1 << 14  # minimum bytes per read of headers
EXHAUSTION_ERRNOS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.ENOMEM, errno.EMFILE, errno.ENFILE,
)  # fmt: skip
Read = Callable[[int, int], bytes]  # (offset, length) to bytes, fewer at the end of the file
closed_descriptors: set[int] = set()  # standard ones that were closed at startup
LOST_INPUT_MESSAGE = "an input was truncated or a disk failed during the run"
# Errors of open where the file system has no unnamed files (O_TMPFILE).
NO_TMPFILE_ERRNOS = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM)
# Errors of mmap where the file system supports no shared maps, or no maps.
NO_MMAP_ERRNOS = (errno.ENODEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOEXEC)


def failure(exc: OSError, name: str, kind: type[NdtoolError] = InputError) -> NdtoolError:
    """Return the NdtoolError for an OSError about the file `name`.

    It is a ResourceError if memory, disk space or a limit is exhausted, else a `kind`.
    """
    if exc.errno == errno.EFAULT:  # a write whose source is a lost page of an input's map
        return OutputError(LOST_INPUT_MESSAGE)
    if exc.errno in EXHAUSTION_ERRNOS:
        kind = ResourceError
    error = kind(f"{printable(name) or 'an empty name'}: {exc.strerror or exc}")
    error.passing = exc.errno in (errno.ENOSPC, errno.EDQUOT)
    return error


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
    """Open a directory on each closed standard descriptor, so that no file gets its number.

    Reads and writes of the descriptor still fail, and so does opening /dev/stdout or a similar
    name.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open("/", os.O_RDONLY)  # gets the lowest free number, which is fd
            closed_descriptors.add(fd)


def is_closed(status: os.stat_result) -> bool:
    """Whether a status is of the directory opened for a closed standard descriptor."""
    return any(os.path.samestat(os.fstat(fd), status) for fd in closed_descriptors)


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
    total = 0
    while total < len(buffer):
        count = os.preadv(fd, [buffer[total:]], start + total)
        if not count:
            break
        total += count
    return total


def advise(fd: int, kind: str, start: int = 0, nbytes: int = 0) -> None:
    """Call posix_fadvise on a byte range of a file, to its end if nbytes is 0.

    kind: "RANDOM" turns readahead off, "WILLNEED" prefetches without blocking, "DONTNEED" starts
    writeback and drops clean pages from the page cache.
    """
    try:
        os.posix_fadvise(fd, start, nbytes, getattr(os, f"POSIX_FADV_{kind}"))
    except (OSError, AttributeError):
        pass  # advice is optional


def sequential_reader(read: Read, start: int) -> Callable[[int], bytes]:
    """Return a function that reads sequentially from offset `start` on."""
    offset = start

    def next_bytes(count: int) -> bytes:
        nonlocal offset
        block = read(offset, count)
        offset += len(block)
        return block

    return next_bytes


class ReadBuffer:
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
            self._buffer = read_at(self._fd, start, max(nbytes, MIN_READ))
        return self._buffer[offset : offset + nbytes]


def write_at(fd: int, start: int, view: Any) -> None:
    """Write all bytes of `view` to the file at offset `start`; thread-safe."""
    remaining = memoryview(view).cast("B")
    while remaining:
        count = os.pwrite(fd, remaining, start)
        start += count
        remaining = remaining[count:]


def copy_bytes(source_fd: int, start: int, nbytes: int, target_fd: int, target_start: int) -> int:
    """Copy bytes of a file to another, in the kernel if possible; return the number copied."""
    total = 0
    try:
        while total < nbytes:
            count = os.copy_file_range(
                source_fd,
                target_fd,
                min(nbytes - total, MAX_COPY),
                start + total,
                target_start + total,
            )
            if not count:
                break
            total += count
    except (OSError, AttributeError):
        pass  # the loop below copies the remaining bytes, or raises the actual error
    while total < nbytes and (
        block := read_at(source_fd, start + total, min(BLOCK_SIZE, nbytes - total))
    ):
        write_at(target_fd, target_start + total, block)
        total += len(block)
    return total


def write_next(fd: int, view: Any) -> None:
    """Write all bytes of `view` to a stream, blocking even if its descriptor is non-blocking."""
    remaining = memoryview(view).cast("B")
    while remaining:
        try:
            remaining = remaining[os.write(fd, remaining) :]
        except BlockingIOError:  # the descriptor is inherited, and may be non-blocking
            import select

            select.select([], [fd], [])


def reserve(
    fd: int, total: int, name: str, ranges: Iterable[tuple[int, int]] | None = None
) -> None:
    """Reserve disk space for a file of `total` bytes; ResourceError if there is too little.

    Otherwise, a store through a memory map raises SIGBUS when the disk is full. ranges: the byte
    ranges to be written, None for all.
    """
    free = _free_space(fd)
    if ranges is not None:
        os.ftruncate(fd, total)
    needed = 0
    for start, stop in ((0, total),) if ranges is None else ranges:
        needed += stop - start
        error = _space_error(name, needed, free)
        if free is not None and needed > free:  # else fallocate might fill the disk with zeros
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
                raise _size_limit_error(name, total) from None
            if exc.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS, errno.ENODEV):
                raise
            os.ftruncate(fd, total)


def require_space(folder: str, file_count: int, nbytes: int, max_file_size: int, name: str) -> None:
    """Raise ResourceError if a folder's file system has no space for files of `nbytes` in all.

    max_file_size: bytes of the largest file. Nothing is reserved.
    """
    free, space = _free_space(folder), os.statvfs(folder)
    if space.f_files and file_count > space.f_favail:  # f_files is 0 where inodes are unlimited
        raise ResourceError(
            f"{printable(name)}: needs {file_count} files, the disk has inodes for {space.f_favail}"
        )
    if free is not None and nbytes > free:
        raise _space_error(name, nbytes, free)
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    except ImportError:
        return
    if limit != resource.RLIM_INFINITY and max_file_size > limit:
        raise _size_limit_error(name, max_file_size)


def _free_space(location: int | str) -> int | None:
    """Return the bytes that a file system has free for this user, None if unknown."""
    space = os.statvfs(location)
    if not space.f_blocks:
        return None
    return (space.f_bavail if os.geteuid() else space.f_bfree) * space.f_frsize


def _space_error(name: str, needed: int, free: int | None) -> ResourceError:
    available = "" if free is None else f", {free} are free"
    return ResourceError(f"{printable(name)}: needs {needed} bytes of disk space{available}")


def _size_limit_error(name: str, nbytes: int) -> ResourceError:
    return ResourceError(
        f"{printable(name)}: needs {nbytes} bytes, more than the limit on file sizes",
        hint="ulimit -f shows the limit",
    )


def temporary_name(name: str) -> str:
    """Return a unique temporary name for a file `name`, within the limit on name lengths."""
    return f".{name[:48]}.ndtool-{os.urandom(6).hex()}"


def lock(fd: int) -> bool:
    """Acquire an exclusive flock until the descriptor is closed; False if flock is unsupported.

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
