"""Local folders that are array stores: metadata and chunk files, by key."""

import errno
import os
import stat
from typing import Any

from ndtool.errors import InputError, printable
from ndtool.storage.descriptors import failure, os_errors, read_at
from ndtool.storage.local import (
    ZARR_METADATA,
    Fingerprint,
    Folder,
    file_type_error,
    status_fingerprint,
)

METADATA_NAMES = (*ZARR_METADATA, ".zattrs")
MAX_METADATA_SIZE = 1 << 24  # maximum bytes of a metadata file
_EXPECTED = "a file of a store"


class LocalFolder(Folder):
    """A local folder that is an array store."""

    concurrency = 1
    can_list = True

    def __init__(self, path: str) -> None:
        self.path = path
        self.status = os.stat(path)
        self._root = os.path.join(os.path.realpath(path), "")

    def read(self, key: str) -> bytes | None:
        """Read a metadata file, None if it does not exist."""
        return self.read_file(key, MAX_METADATA_SIZE)

    def read_file(self, key: str, limit: int) -> bytes | None:
        """Read a complete file, None if it does not exist; InputError if larger than `limit`."""
        return self._read(key, 0, None, limit)

    def read_range(self, key: str, start: int, stop: int | None) -> bytes | None:
        """Read a slice of a file's bytes, None if it does not exist."""
        return self._read(key, start, stop, None)

    def _read(self, key: str, start: int, stop: int | None, limit: int | None) -> bytes | None:
        path = os.path.join(self.path, key)
        try:
            fd = self._open(path)
        except (FileNotFoundError, NotADirectoryError, ValueError) as exc:
            if isinstance(exc, InputError):
                raise
            if os.path.islink(path):
                raise InputError(f"{printable(path)} is a link to a missing file") from None
            return None  # ValueError: no file can have this name
        except OSError as exc:
            raise failure(exc, path) from None
        try:
            with os_errors(path):
                size = os.fstat(fd).st_size
                if limit is not None and size > limit:
                    raise size_error(path, size, limit)
                start, stop, _ = slice(start, stop).indices(size)
                return read_at(fd, start, max(0, stop - start))
        finally:
            os.close(fd)

    def _open(self, path: str) -> int:
        """Open a regular file; InputError if a link leads out of the folder. Raises OSError."""
        real = os.path.realpath(path)
        if not real.startswith(self._root):
            raise InputError(f"{printable(path)} leads outside of the store: expected a file in it")
        flags = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
        try:
            fd = os.open(real, os.O_RDONLY | flags)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                raise file_type_error(path, stat.S_IFSOCK, _EXPECTED) from None
            raise
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            raise file_type_error(path, stat.S_IFMT(mode), _EXPECTED)
        return fd

    def subfolders(self, key: str) -> list[str]:
        """Return the names of a folder's subfolders."""
        with os.scandir(os.path.join(self.path, key)) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]

    def prefetch(self, key: str, limit: int | None) -> tuple[Any, ...]:
        """Return the fingerprint of a file before its first read; limit: see RemoteFolder."""
        return self.file_fingerprint(key)

    def file_fingerprint(self, key: str) -> tuple[Any, ...]:
        """Return the fingerprint of a file's content, () if it does not exist."""
        try:
            return status_fingerprint(os.stat(os.path.join(self.path, key)))
        except OSError:
            return ()

    def describe_change(self) -> str:
        try:
            current = os.stat(self.path)
        except OSError:
            return ""
        return "" if os.path.samestat(current, self.status) else "was replaced during the run"

    def fingerprint(self, key: str) -> Fingerprint:
        """Return the fingerprint of all files below a key, in their current state."""
        files, folders = [], [""]
        while folders:
            folder = folders.pop()
            with os.scandir(os.path.join(self.path, key, folder)) as entries:
                for entry in entries:
                    path = os.path.join(folder, entry.name)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(path)
                    else:
                        files.append((path, *self.file_fingerprint(os.path.join(key, path))))
        return digest(files)


def digest(files: list[tuple[Any, ...]]) -> Fingerprint:
    """Return the fingerprint of (name, fingerprint) rows, in any order."""
    import hashlib

    return [len(files), hashlib.sha256(repr(sorted(files)).encode()).hexdigest()]


def size_error(path: str, size: int | None, limit: int) -> InputError:
    """Return the error for a file of a store whose size exceeds the limit, or is unknown."""
    count = "an unknown number of" if size is None else size
    return InputError(f"{printable(path)} has {count} bytes: at most {limit} are valid")
