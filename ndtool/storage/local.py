"""Local files, and the protocols of files and folders."""

import errno
import os
import stat
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from ndtool.errors import InputError, OutputError, printable
from ndtool.storage import descriptors

MAP_THRESHOLD = 1 << 16  # bytes above which mapping is cheaper than reading
# Metadata files of Zarr: of version 3; of an array, a group and a store of version 2.
ZARR_METADATA = ("zarr.json", ".zarray", ".zgroup", ".zmetadata")
STREAM_HINT = "a stream is read through standard input: ndtool ... - < STREAM"
FILE_TYPES = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


# A fingerprint of content, comparable between runs; None if unavailable.
Fingerprint = list[Any] | None
Ranges = Iterable[tuple[int, int]]  # byte ranges (start, stop), ascending
ProgressCallback = Callable[[float], object]  # takes the completed fraction; 0 restarts


class File(Protocol):
    """Protocol of an open file, local or remote; LocalFile documents the methods."""

    size: int
    is_remote: bool

    @property
    def fd(self) -> int: ...
    def peek(self, start: int, nbytes: int) -> bytes: ...
    def read(self, start: int, nbytes: int, label: str) -> bytes: ...
    def view(self, start: int, nbytes: int, label: str) -> tuple[memoryview, bool]: ...
    def download(self, ranges: Ranges, report: Callable[[int], object] = ...) -> None: ...
    def copy(self, start: int, nbytes: int, fd: int, to: int) -> int: ...
    def reserve(self, start: int, nbytes: int) -> None: ...
    def describe_change(self) -> str: ...
    def fingerprint(self) -> Fingerprint: ...
    def is_same_file(self, fd: int) -> bool: ...
    def close(self) -> None: ...


class LocalFile:
    """An open local file, and its status when it was opened; `peek` reads a few bytes.

    path: None for a descriptor that the caller closes.
    """

    is_remote = False

    def __init__(self, fd: int, path: str | None) -> None:
        self.fd: int = fd
        self.path = path
        self.status = os.fstat(fd)
        self.size = self.status.st_size
        self.peek = descriptors.ReadBuffer(fd).read
        self._owns_fd = path is not None

    def describe_change(self) -> str:
        """Return how the file has changed since it was opened, "" if it has not.

        The ctime is not compared, as a new hard link or mode changes it, too.
        """
        try:
            status, opened = os.fstat(self.fd), self.status
        except OSError as exc:
            return f"cannot be accessed ({exc.strerror})"
        if (status.st_size, status.st_mtime_ns) != (opened.st_size, opened.st_mtime_ns):
            return "changed during the run"
        try:
            current = opened if self.path is None else os.stat(self.path)
        except OSError:
            return ""  # it was unlinked; its content is unchanged
        return "" if os.path.samestat(current, opened) else "was replaced during the run"

    def fingerprint(self) -> Fingerprint:
        """Return the fingerprint of the current file at its path."""
        try:
            status = os.fstat(self.fd) if self.path is None else os.stat(self.path)
        except OSError:  # it was unlinked; its content is unchanged
            status = os.fstat(self.fd)
        return list(status_fingerprint(status))

    def is_same_file(self, fd: int) -> bool:
        """Whether a descriptor refers to the same file."""
        try:
            return os.path.samestat(os.fstat(fd), self.status)
        except OSError:
            return False

    def view(self, start: int, nbytes: int, label: str) -> tuple[memoryview, bool]:
        """Return a byte range, and whether it is a memory map, not a copy as of few bytes."""
        if nbytes <= MAP_THRESHOLD:
            return memoryview(self.read(start, nbytes, label)), False
        try:
            return descriptors.map_bytes(self.fd, start, nbytes), True
        except ValueError:
            raise shortened_error(label) from None
        except OSError as exc:
            if exc.errno not in descriptors.NO_MMAP_ERRNOS:
                raise descriptors.failure(exc, label) from None
        from ndtool.storage.tempfiles import Spool

        spool, step = Spool(), descriptors.BLOCK_SIZE
        for offset in range(start, start + nbytes, step):
            spool.write(self.read(offset, min(step, start + nbytes - offset), label))
        return spool.finish(), False

    def read(self, start: int, nbytes: int, label: str) -> bytes:
        """Read bytes of the file; OutputError, with the name `label`, if the file is too short."""
        try:  # `os_errors` would take longer than a small read
            data = descriptors.read_at(self.fd, start, nbytes)
        except OSError as exc:
            raise descriptors.failure(exc, label) from None
        if len(data) < nbytes:
            raise shortened_error(label)
        return data

    def copy(self, start: int, nbytes: int, fd: int, target_start: int) -> int:
        """Copy bytes to another file at offset `target_start`; return the number copied."""
        return descriptors.copy_bytes(self.fd, start, nbytes, fd, target_start)

    def reserve(self, start: int, nbytes: int) -> None:
        """Do nothing: the bytes are on disk already."""

    def download(self, ranges: Ranges, report: Callable[[int], object] = lambda stop: None) -> None:
        """Do nothing, see `reserve`."""

    def close(self) -> None:
        if self._owns_fd:
            self._owns_fd = False
            try:
                os.close(self.fd)
            except OSError:
                pass  # opened for reading: no data can be lost


class Folder(Protocol):
    """Base class of folders of files, local or remote; a key is a relative path.

    concurrency: the number of files worth reading concurrently on a single processor. can_list:
    whether its content can be listed. LocalFolder documents the methods.
    """

    path: str
    concurrency: int
    can_list: bool

    def read(self, key: str) -> bytes | None: ...
    def subfolders(self, key: str) -> list[str]: ...
    def prefetch(self, key: str, limit: int | None) -> tuple[Any, ...]: ...
    def file_fingerprint(self, key: str) -> tuple[Any, ...]: ...
    def read_file(self, key: str, limit: int) -> bytes | None: ...
    def read_range(self, key: str, start: int, stop: int | None) -> bytes | None: ...
    def fingerprint(self, key: str) -> Fingerprint: ...

    def describe_change(self) -> str:
        """Return "" unless the folder was replaced since it was opened."""
        return ""

    def close(self) -> None:
        """Do nothing: no file is open."""
        return


def status_fingerprint(status: os.stat_result) -> tuple[int, ...]:
    """Return a fingerprint of a file's content: size, mtime and inode."""
    return status.st_size, status.st_mtime_ns, status.st_ino


def is_zarr_store(path: str) -> bool:
    """Whether a folder is a Zarr store, or an array or group in one."""
    try:
        return any(os.path.isfile(os.path.join(path, name)) for name in ZARR_METADATA)
    except ValueError:  # no file can have this name
        return False


def parquet_files(path: str) -> list[str]:
    """Return the names of the Parquet files in a folder, sorted, an empty list for no folder."""
    try:
        names = os.listdir(path)
    except (OSError, ValueError):
        return []
    return sorted(name for name in names if name.endswith(".parquet") and name[0] not in "._")


def open_file(path: str) -> LocalFile:
    """Open a regular file without blocking; InputError for any other kind."""
    fd = -1
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        file = LocalFile(fd, path)
    except OSError as exc:
        if fd >= 0:
            os.close(fd)
        if exc.errno == errno.ENXIO and os.path.exists(path):  # a socket, or a missing device
            raise file_type_error(path, stat.S_IFMT(os.stat(path).st_mode)) from None
        raise descriptors.failure(exc, path) from None
    except ValueError as exc:
        raise InputError(f"{printable(path)} is not a valid file name: {exc}") from None
    if not stat.S_ISREG(file.status.st_mode):
        file.close()
        if descriptors.is_closed(file.status):
            raise InputError(f"{printable(path)}: it is closed")
        raise file_type_error(path, stat.S_IFMT(file.status.st_mode))
    return file


def shortened_error(label: str) -> OutputError:
    """Return the error for a file that was truncated during the run."""
    return OutputError(f"{printable(label)} changed during the run: it is shorter now")


def file_type_error(path: str, file_type: int, expected: str = "a file with arrays") -> InputError:
    """Return the error for a path that is no regular file; file_type: its stat.S_IFMT."""
    type_name = FILE_TYPES.get(file_type, "not a regular file")
    return InputError(
        f"{printable(path)} is {type_name}: expected {expected}",
        hint=STREAM_HINT if file_type == stat.S_IFSOCK else "",
    )
