"""Temporary storage: unnamed files, buffers of any size, and spooled streams."""

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from ndtool.errors import NdtoolError, OutputError, ResourceError, printable
from ndtool.storage.descriptors import (
    NO_TMPFILE_ERRNOS,
    map_bytes,
    os_errors,
    reserve,
    temporary_name,
    write_at,
    write_next,
)

WriteAt = Callable[[int, memoryview], object]  # takes the offset and the bytes
MAX_IN_MEMORY = 4 << 20  # bytes of a buffer in memory; a run may have six of them


def allocate(nbytes: int, label: str, directory: str | None = None) -> memoryview:
    """Return the buffer of `open_buffer`."""
    with open_buffer(nbytes, label, directory=directory) as (buffer, _):
        return buffer


@contextmanager
def open_buffer(
    nbytes: int,
    label: str,
    ranges: Iterable[tuple[int, int]] | None = None,
    directory: str | None = None,
) -> Iterator[tuple[memoryview, WriteAt]]:
    """Yield a writable buffer of zeros, in memory or, if it is large, in an unnamed file.

    Also a function write(start, bytes), which costs less than a store through the map of the file.
    ranges: the byte ranges to be written, None for all; only these occupy disk space. directory:
    see `unnamed_file`. label: the name of the buffer in errors. Raises ResourceError if memory or
    disk space is insufficient.
    """
    fd = -1

    def write(start: int, data: memoryview) -> None:
        if fd < 0:
            buffer[start : start + len(data)] = data
            return
        with os_errors(label, OutputError):
            write_at(fd, start, data)

    try:
        try:
            with os_errors(label, OutputError):
                if nbytes <= MAX_IN_MEMORY:
                    buffer = memoryview(bytearray(nbytes))
                else:
                    fd = unnamed_file(directory)
                    reserve(fd, nbytes, label, ranges)
                    buffer = map_bytes(fd, 0, nbytes, writable=True)
        except MemoryError as exc:
            if isinstance(exc, NdtoolError):
                raise
            message = f"{printable(label)}: not enough memory for {nbytes} bytes"
            raise ResourceError(message) from None
        yield buffer, write
    finally:
        if fd >= 0:
            os.close(fd)


def unnamed_file(directory: str | None = None) -> int:
    """Return the descriptor of a new unnamed file, in TMPDIR if possible.

    directory: the only directory to use, instead of TMPDIR.
    """
    if directory is not None:
        try:
            with os_errors(directory, OutputError):
                return _open_unnamed(directory)
        except ValueError as exc:
            raise OutputError(f"{printable(directory)}: {exc}") from None
    reason = OSError(errno.ENOENT, "no directory")
    for directory in (os.environ.get("TMPDIR"), "/tmp", "/var/tmp", "."):
        if not directory:
            continue
        try:
            return _open_unnamed(directory)
        except OSError as exc:
            reason = exc
    raise ResourceError(
        f"cannot create a temporary file: {reason.strerror}",
        hint="TMPDIR names the directory for temporary files",
    )


def _open_unnamed(directory: str) -> int:
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        return os.open(directory, flags | os.O_TMPFILE | os.O_EXCL, 0o600)
    except (OSError, AttributeError) as exc:
        if isinstance(exc, OSError) and exc.errno not in NO_TMPFILE_ERRNOS:
            raise
    path = os.path.join(directory, temporary_name("spool"))
    fd = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    os.unlink(path)
    return fd


class Spool:
    """Append-only buffer: in memory up to MAX_IN_MEMORY bytes, then in an unnamed file."""

    def __init__(self, directory: str | None = None) -> None:
        self.size = 0
        self._directory = directory
        self._memory = bytearray()
        self._fd: int | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Append `data`; ResourceError if memory or disk space is insufficient."""
        try:
            if self._fd is None and self.size + len(data) > MAX_IN_MEMORY:
                self._fd = unnamed_file(self._directory)
                write_next(self._fd, self._memory)
                self._memory = bytearray()
            if self._fd is None:
                self._memory += data
            else:
                write_next(self._fd, data)
        except (OSError, MemoryError) as exc:
            raise self._space_error(exc) from None
        self.size += len(data)

    def finish(self) -> memoryview:
        """Close the spool and return its bytes, read-only; they remain valid."""
        try:
            if self._fd is None:
                return memoryview(self._memory).toreadonly()
            return map_bytes(self._fd, 0, self.size)
        except OSError as exc:
            raise self._space_error(exc) from None
        finally:
            self.close()

    def close(self) -> None:
        """Close the file, if there is one; its memory map remains valid."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    __del__ = close

    def _space_error(self, exc: OSError | MemoryError) -> NdtoolError:
        if isinstance(exc, NdtoolError):
            return exc
        reason = getattr(exc, "strerror", None) or "out of memory"
        return ResourceError(
            f"no space for a temporary copy of more than {self.size} bytes: {reason}",
            hint="TMPDIR names the directory for temporary files",
        )
