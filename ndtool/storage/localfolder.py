"""Local folders that are array stores: metadata and chunk files, by key."""

import errno
import os
import stat
from typing import Any

from ndtool.errors import InputError, printable
from ndtool.storage.descriptors import failure, read_at
from ndtool.storage.local import KINDS, ZARR_METADATA, Fingerprint, signature

METADATA = (*ZARR_METADATA, ".zattrs")
LONGEST = 1 << 24  # bytes of a metadata file, at most


class LocalFolder:
    """A local folder that is an array store; a key is a relative path.

    size: 0, as a folder has no bytes. at_once: the number of files to read concurrently, on any
    number of processors. lists: whether its content can be listed.
    """

    size = 0
    at_once = 1
    lists = True

    def __init__(self, path: str) -> None:
        self.path = path
        self.status = os.stat(path)
        self._inside = os.path.join(os.path.realpath(path), "")

    def read(self, key: str) -> bytes | None:
        """Read a metadata file, None if it does not exist."""
        return self.whole(key, LONGEST)

    def whole(self, key: str, most: int) -> bytes | None:
        """Read a complete file, None if it does not exist; InputError if larger than `most`."""
        return self._read(key, 0, None, most)

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        """Read a slice of a file's bytes, None if it does not exist."""
        return self._read(key, start, stop, None)

    def _read(self, key: str, start: int, stop: int | None, most: int | None) -> bytes | None:
        path = os.path.join(self.path, key)
        try:
            fd = self._open(path)
        except (FileNotFoundError, NotADirectoryError, ValueError) as exc:
            if isinstance(exc, InputError):
                raise
            return None  # ValueError: no file can have this name
        except OSError as exc:
            raise failure(exc, path) from None
        try:
            size = os.fstat(fd).st_size
            if most is not None and size > most:
                raise InputError(f"{printable(path)} has {size} bytes: at most {most} are valid")
            start, stop, _ = slice(start, stop).indices(size)
            return read_at(fd, start, max(0, stop - start))
        except OSError as exc:
            raise failure(exc, path) from None
        finally:
            os.close(fd)

    def _open(self, path: str) -> int:
        """Open a regular file; InputError if links lead out of the folder. Raises OSError."""
        real = os.path.realpath(path)
        if not real.startswith(self._inside):
            raise InputError(f"{printable(path)} leads outside of the store: expected a file in it")
        flags = os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
        try:
            fd = os.open(real, os.O_RDONLY | flags)
        except OSError as exc:
            if exc.errno == errno.ENXIO:
                raise _not_regular(path, stat.S_IFSOCK) from None
            raise
        mode = os.fstat(fd).st_mode
        if not stat.S_ISREG(mode):
            os.close(fd)
            raise _not_regular(path, stat.S_IFMT(mode))
        return fd

    def names(self, key: str) -> list[str]:
        """Return the names of a folder's subfolders."""
        with os.scandir(os.path.join(self.path, key)) as inside:
            return [one.name for one in inside if one.is_dir(follow_symlinks=False)]

    def ready(self, key: str, most: int | None) -> tuple[Any, ...]:
        """Return `like(key)`, before the first read of a file; most: see RemoteFolder.ready."""
        return self.like(key)

    def like(self, key: str) -> tuple[Any, ...]:
        """Return the fingerprint of a file's content, () if it does not exist."""
        try:
            return signature(os.stat(os.path.join(self.path, key)))
        except OSError:
            return ()

    def peek(self, start: int, nbytes: int) -> bytes:
        """Return no bytes, as for an empty file."""
        return b""

    def change(self) -> str:
        """Return "" unless the folder was replaced since it was opened."""
        try:
            here = os.stat(self.path)
        except OSError:
            return ""
        return "" if os.path.samestat(here, self.status) else "was replaced during the run"

    def fingerprint(self, key: str) -> Fingerprint:
        """Return the fingerprint of all files below a key, in their current state."""
        found, waiting = [], [""]
        while waiting:
            folder = waiting.pop()
            with os.scandir(os.path.join(self.path, key, folder)) as inside:
                for one in inside:
                    path = os.path.join(folder, one.name)
                    if one.is_dir(follow_symlinks=False):
                        waiting.append(path)
                    else:
                        found.append((path, *self.like(os.path.join(key, path))))
        return digest(found)

    def close(self) -> None:
        pass


def digest(found: list[tuple[Any, ...]]) -> Fingerprint:
    """Return the fingerprint of (name, fingerprint) rows, in any order."""
    import hashlib

    return [len(found), hashlib.sha256(repr(sorted(found)).encode()).hexdigest()]


def _not_regular(path: str, kind: int) -> InputError:
    what = KINDS.get(kind, "not a regular file")
    return InputError(f"{printable(path)} is {what}: expected a file of a store")
