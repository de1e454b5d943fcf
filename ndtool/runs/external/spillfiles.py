"""Spill stores of a cluster: files in a shared folder, or objects at a URL.

The store of a run in one process is in spillstore.py.
"""

from __future__ import annotations

import errno
import os
import re
from collections import Counter
from collections.abc import Iterable
from concurrent import futures
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Any

from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, printable
from ndtool.machine import pool
from ndtool.publish import leftovers
from ndtool.publish.newfolder import NewFolder
from ndtool.runs.external import policy
from ndtool.runs.external.spill import Segment, SpillFolder, Table
from ndtool.storage import descriptors, locations, remote

OBJECT_BYTES = 8 << 20  # bytes of an object: each is sent when it is full
_PART = ".part"  # suffix of incomplete files
_SEGMENT_NAME = re.compile(r"([a-z]+[0-9]*)-([0-9]+)-([0-9a-f]{16})(-[0-9]+)?")
_SPILL = "spill"


class FolderStore:
    """A spill store of files in a folder that all workers share.

    Each attempt of a task writes its own file, so that attempts never conflict.
    """

    at_once = 1
    prefetches = False

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[Segment, int] = {}

    def create(self, segment: Segment) -> Segment:
        segment = _attempted(segment)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._files[segment] = os.open(self._file(segment) + _PART, flags, 0o600)
        except OSError as exc:
            raise failed(exc) from None
        return segment

    def write(self, segment: Segment, at: int, view: memoryview) -> None:
        try:
            descriptors.write_at(self._files[segment], at, view)
        except OSError as exc:
            self._remove(segment)
            raise failed(exc) from None

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        try:
            descriptors.write_at(self._files[segment], os.fstat(self._files[segment]).st_size, end)
            os.close(self._files.pop(segment))  # a network file system reports errors here
            os.rename(self._file(segment) + _PART, self._file(segment))
        except OSError as exc:
            self._remove(segment)
            raise failed(exc) from None

    def _remove(self, segment: Segment) -> None:
        """Remove an incomplete segment, which takes space that another attempt needs."""
        if (fd := self._files.pop(segment, None)) is not None:
            os.close(fd)
        with suppress(OSError):
            os.unlink(self._file(segment) + _PART)

    def expect(self, segment: Segment, at: int, nbytes: int) -> None:
        pass  # network file systems have no prefetch

    def read(self, segment: Segment, at: int, buffer: memoryview) -> None:
        self._fill(self._file(segment), at, buffer)

    def require_writable(self) -> None:
        """Raise the error of a task if the folder is not writable."""
        segment = self.create(Segment("view", 0, 0))
        os.close(self._files.pop(segment))
        os.unlink(self._file(segment) + _PART)

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        policy.patiently(partial(self.write_file, table.name, numbers))

    def discard(self, table: Table) -> None:
        pass  # it takes no memory

    def write_file(self, name: str, body: bytes | memoryview) -> None:
        """Write a file that all workers can read, or replace it."""
        path = os.path.join(self._path, name)
        try:
            with open(path + _PART, "wb") as file:
                file.write(body)
            os.replace(path + _PART, path)
        except OSError as exc:
            raise failed(exc) from None

    def read_file(self, name: str) -> bytes | None:
        """Return the content of such a file, None if it does not exist."""
        try:
            with open(os.path.join(self._path, name), "rb") as file:
                return file.read()
        except OSError:
            return None

    def segments(self) -> dict[Segment, int]:
        """Return the complete segments, with their bytes."""
        with os.scandir(self._path) as entries:
            return _segments((entry.name, _size(entry)) for entry in entries)

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        buffer = memoryview(bytearray(8 * table.columns * (stop - first)))
        self._fill(os.path.join(self._path, table.name), 8 * table.columns * first, buffer)
        return buffer.cast("q")

    def close(self) -> None:
        """Close files that are not complete."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _file(self, segment: Segment) -> str:
        return os.path.join(self._path, _name(segment))

    def _fill(self, path: str, start: int, buffer: memoryview) -> None:
        try:
            with open(path, "rb", buffering=0) as file:
                count = descriptors.read_into(file.fileno(), start, buffer)
        except OSError as exc:
            raise failed(exc) from None
        if count < len(buffer):
            raise OutputError("a temporary file became shorter during the run")


class ObjectStore:
    """A spill store of objects at a URL.

    A segment is divided into objects, so that neither memory nor a disk need hold it.
    """

    at_once = pool.MAX_THREADS
    prefetches = False

    def __init__(self, url: str) -> None:
        from ndtool.storage.remotefolder import RemoteFolder

        self._folder = RemoteFolder(url)
        self._rest: dict[Segment, bytearray] = {}  # bytes that do not fill an object yet
        self._sent: dict[Segment, int] = {}
        self._going: set[futures.Future[None]] = set()
        self._closed = False
        self._lock = Lock()

    def create(self, segment: Segment) -> Segment:
        segment = _attempted(segment)
        self._rest[segment], self._sent[segment] = bytearray(), 0
        return segment

    def write(self, segment: Segment, at: int, view: memoryview) -> None:
        rest = self._rest[segment]
        for start in range(0, len(view), OBJECT_BYTES):
            rest += view[start : start + OBJECT_BYTES]
            if len(rest) >= OBJECT_BYTES:
                self._send(segment, bytes(rest[:OBJECT_BYTES]))
                del rest[:OBJECT_BYTES]

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        self.write(segment, 0, memoryview(end))
        rest = self._rest.pop(segment)
        if rest:
            self._send(segment, bytes(rest))
        del self._sent[segment]

    def expect(self, segment: Segment, at: int, nbytes: int) -> None:
        pass  # objects are read concurrently instead

    def read(self, segment: Segment, at: int, buffer: memoryview) -> None:
        done = 0
        while done < len(buffer):
            number, start = divmod(at + done, OBJECT_BYTES)
            stop = min(OBJECT_BYTES, start + len(buffer) - done)
            buffer[done : done + stop - start] = self._span(
                f"{_name(segment)}-{number}", start, stop
            )
            done += stop - start

    def require_writable(self) -> None:
        """Do nothing: the claim of the folder proved that it is writable."""

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        policy.patiently(partial(self.write_file, table.name, numbers))

    def discard(self, table: Table) -> None:
        pass  # it takes no memory

    def write_file(self, name: str, body: bytes | memoryview) -> None:
        """Write a file that all workers can read, or replace it."""
        self._put(name, bytes(body))

    def read_file(self, name: str) -> bytes | None:
        """Return the content of such a file, None if it does not exist."""
        return self._folder.read(name)

    def segments(self) -> dict[Segment, int]:
        """Return the segments that have objects, with their bytes."""
        objects = self._folder.contents().items()
        return _segments((name, version.size or 0) for name, version in objects)

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        line = 8 * table.columns
        return memoryview(self._span(table.name, line * first, line * stop)).cast("q")

    def close(self) -> None:
        """Refuse further writes, and wait for those in flight."""
        with self._lock:
            self._closed = True
        futures.wait(self._going)

    def _send(self, segment: Segment, body: bytes) -> None:
        number, self._sent[segment] = self._sent[segment], self._sent[segment] + 1
        try:
            self._put(f"{_name(segment)}-{number}", body)
        except BaseException:  # another attempt writes objects of other names
            self._rest.pop(segment, None)
            raise

    def _put(self, key: str, body: bytes) -> None:
        going: futures.Future[None] = futures.Future()
        with self._lock:
            if self._closed:
                raise OutputError(f"{printable(self._folder.path)}: the run has ended")
            self._going.add(going)
        try:
            self._folder.write(key, body)
        finally:
            self._going.discard(going)
            going.set_result(None)

    def _span(self, key: str, start: int, stop: int) -> bytes:
        try:
            return self._folder.read_unchecked(key, start, stop)
        except InputError as error:
            raise _as_output(error) from None


SharedStore = FolderStore | ObjectStore


def open_store(inside: str) -> SharedStore:
    """Return the spill store at a path or URL."""
    return ObjectStore(inside) if locations.is_url(inside) else FolderStore(inside)


def create_folder(location: str, sweeps: bool = True) -> SpillFolder:
    """Create a spill folder in a directory, or at a URL, that all workers share.

    sweeps: whether to remove folders that killed runs abandoned in the directory.
    """
    if not locations.is_url(location):
        path = os.path.join(os.path.abspath(location), _SPILL)
        try:
            return NewFolder(path, False, False, False, sweeps=sweeps)
        except OSError as exc:
            raise descriptors.failure(exc, location, OutputError) from None
    require_of_many(location)
    from ndtool.publish import claims

    claims.sweep(location)
    return claims.Claim(remote.join(location, f"{_SPILL}-{os.urandom(6).hex()}"))


def require_of_many(url: str) -> None:
    """Raise UsageError if processes do not share the storage of a URL."""
    if not locations.is_shared(url):
        raise UsageError(
            f"{printable(url)}: workers cannot share it: expected s3://, gs://, az:// or a"
            " directory that all workers see"
        )


def abandoned(location: str) -> tuple[list[str], list[str]]:
    """Return the abandoned spill folders in a directory or at a URL, and others.

    The first list has the paths of killed runs' data, the second folders that may be in use.
    """
    if locations.is_url(location):
        from ndtool.publish import claims

        return claims.folders(location, f"{_SPILL}-") if locations.is_shared(location) else ([], [])
    try:
        folders, in_use = leftovers.folders(os.path.abspath(location), _SPILL)
    except OSError:
        return [], []  # creating a folder reports the error
    return [os.path.join(path, leftovers.INSIDE) for path in folders], in_use


def reopen(inside: str) -> SpillFolder | None:
    """Reopen a spill folder of a killed run; None if another run has claimed it."""
    try:
        if not locations.is_url(inside):
            hidden = os.path.dirname(inside)
            path = os.path.join(os.path.dirname(hidden), _SPILL)
            return NewFolder(path, False, False, False, hidden)
        from ndtool.publish import claims

        return claims.Claim(inside, resumes=True)
    except (OSError, OutputError):
        return None


def _size(entry: os.DirEntry[str]) -> int:
    """Return the size of a file, 0 if a task that still ran has renamed it."""
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        return 0


def _attempted(segment: Segment) -> Segment:
    return segment._replace(attempt=int.from_bytes(os.urandom(8)) >> 1)


def _name(segment: Segment) -> str:
    return f"{segment.phase}-{segment.number}-{segment.attempt:016x}"


def _segments(sizes_by_name: Iterable[tuple[str, int]]) -> dict[Segment, int]:
    """Return the segments that files or objects belong to, with their bytes."""
    sizes: Counter[Segment] = Counter()
    for name, nbytes in sizes_by_name:
        if parts := _SEGMENT_NAME.fullmatch(name):
            segment = Segment(parts[1], int(parts[2]), 0, int(parts[3], 16))
            sizes[segment] += nbytes
    return sizes


def _as_output(error: InputError) -> OutputError:
    """Return the error about spilled data that cannot be read."""
    same = OutputError(error.message)
    same.passing = error.passing
    return same


def failed(exc: BaseException, name: str = "temporary file") -> Any:
    """Convert an OSError about a temporary file to our error; return others unchanged."""
    if isinstance(exc, OSError) and not isinstance(exc, NdtoolError):
        error = descriptors.failure(exc, name, OutputError)
        error.passing = exc.errno in (errno.ENOSPC, errno.EDQUOT)
        return error
    return exc
