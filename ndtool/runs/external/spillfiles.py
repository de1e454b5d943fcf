"""Spill stores of a cluster: files in a shared folder, or objects at a URL.

The store of a run in one process is in spillstore.py.
"""

from __future__ import annotations

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
from ndtool.publish import cleanup
from ndtool.publish.newfolder import NewFolder
from ndtool.runs.external import policy
from ndtool.runs.external.spill import Segment, SpillFolder, Table
from ndtool.storage import descriptors, locations, objects

OBJECT_BYTES = 8 << 20  # an object is uploaded when it has so many bytes
_PART = ".part"  # suffix of incomplete files
_SEGMENT_NAME = re.compile(r"([a-z]+[0-9]*)-([0-9]+)-([0-9a-f]{16})(-[0-9]+)?")
_SPILL = "spill"


class FolderStore:
    """A spill store of files in a folder that all workers share.

    Each attempt of a task writes a separate file, so that attempts never conflict.
    """

    concurrency = 1
    can_prefetch = False

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[Segment, int] = {}

    def create(self, segment: Segment) -> Segment:
        segment = _with_attempt(segment)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._files[segment] = os.open(self._segment_path(segment) + _PART, flags, 0o600)
        except OSError as exc:
            raise convert_error(exc) from None
        return segment

    def write(self, segment: Segment, offset: int, view: memoryview) -> None:
        try:
            descriptors.write_at(self._files[segment], offset, view)
        except OSError as exc:
            self._remove(segment)
            raise convert_error(exc) from None

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        try:
            descriptors.write_at(self._files[segment], os.fstat(self._files[segment]).st_size, end)
            os.close(self._files.pop(segment))  # a network file system reports errors here
            os.rename(self._segment_path(segment) + _PART, self._segment_path(segment))
        except OSError as exc:
            self._remove(segment)
            raise convert_error(exc) from None

    def _remove(self, segment: Segment) -> None:
        """Remove an incomplete segment, to free space for another attempt."""
        if (fd := self._files.pop(segment, None)) is not None:
            os.close(fd)
        with suppress(OSError):
            os.unlink(self._segment_path(segment) + _PART)

    def prefetch(self, segment: Segment, offset: int, nbytes: int) -> None:
        pass  # network file systems have no prefetch

    def read(self, segment: Segment, offset: int, buffer: memoryview) -> None:
        self._read_into(self._segment_path(segment), offset, buffer)

    def require_writable(self) -> None:
        """Raise the error of a task if the folder is not writable."""
        segment = self.create(Segment("view", 0, 0))
        os.close(self._files.pop(segment))
        os.unlink(self._segment_path(segment) + _PART)

    def write_table(self, table: Table, numbers: memoryview) -> None:
        policy.with_retries(partial(self.write_file, table.name, numbers))

    def discard_table(self, table: Table) -> None:
        pass  # it takes no memory

    def write_file(self, name: str, body: bytes | memoryview) -> None:
        """Write or replace a file that all workers can read."""
        path = os.path.join(self._path, name)
        try:
            with open(path + _PART, "wb") as file:
                file.write(body)
            os.replace(path + _PART, path)
        except OSError as exc:
            raise convert_error(exc) from None

    def read_file(self, name: str) -> bytes | None:
        """Return the content of a file of `write_file`, None if it does not exist."""
        try:
            with open(os.path.join(self._path, name), "rb") as file:
                return file.read()
        except OSError:
            return None

    def segments(self) -> dict[Segment, int]:
        """Return the complete segments, with their sizes."""
        with os.scandir(self._path) as entries:
            return _segments((entry.name, _size(entry)) for entry in entries)

    def read_lines(self, table: Table, first: int, stop: int) -> memoryview:
        buffer = memoryview(bytearray(8 * table.columns * (stop - first)))
        self._read_into(os.path.join(self._path, table.name), 8 * table.columns * first, buffer)
        return buffer.cast("q")

    def close(self) -> None:
        """Close the files of incomplete segments."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _segment_path(self, segment: Segment) -> str:
        return os.path.join(self._path, _name(segment))

    def _read_into(self, path: str, start: int, buffer: memoryview) -> None:
        try:
            with open(path, "rb", buffering=0) as file:
                count = descriptors.read_into(file.fileno(), start, buffer)
        except OSError as exc:
            raise convert_error(exc) from None
        if count < len(buffer):
            raise OutputError("a temporary file became shorter during the run")


class ObjectStore:
    """A spill store of objects at a URL.

    A segment is divided into objects, so that it need not fit in memory or on a disk.
    """

    concurrency = pool.MAX_THREADS
    can_prefetch = False

    def __init__(self, url: str) -> None:
        from ndtool.storage.remotefolder import RemoteFolder

        self._folder = RemoteFolder(url)
        self._unsent: dict[Segment, bytearray] = {}  # bytes of the next object
        self._object_counts: dict[Segment, int] = {}
        self._in_flight: set[futures.Future[None]] = set()
        self._closed = False
        self._lock = Lock()

    def create(self, segment: Segment) -> Segment:
        segment = _with_attempt(segment)
        self._unsent[segment], self._object_counts[segment] = bytearray(), 0
        return segment

    def write(self, segment: Segment, offset: int, view: memoryview) -> None:
        unsent = self._unsent[segment]
        for start in range(0, len(view), OBJECT_BYTES):
            unsent += view[start : start + OBJECT_BYTES]
            if len(unsent) >= OBJECT_BYTES:
                self._upload(segment, bytes(unsent[:OBJECT_BYTES]))
                del unsent[:OBJECT_BYTES]

    def finish(self, segment: Segment, end: bytes = b"") -> None:
        self.write(segment, 0, memoryview(end))
        unsent = self._unsent.pop(segment)
        if unsent:
            self._upload(segment, bytes(unsent))
        del self._object_counts[segment]

    def prefetch(self, segment: Segment, offset: int, nbytes: int) -> None:
        pass  # objects are read concurrently instead

    def read(self, segment: Segment, offset: int, buffer: memoryview) -> None:
        filled = 0
        while filled < len(buffer):
            number, start = divmod(offset + filled, OBJECT_BYTES)
            stop = min(OBJECT_BYTES, start + len(buffer) - filled)
            buffer[filled : filled + stop - start] = self._read_range(
                f"{_name(segment)}-{number}", start, stop
            )
            filled += stop - start

    def require_writable(self) -> None:
        """Do nothing: claiming the folder has proved that it is writable."""

    def write_table(self, table: Table, numbers: memoryview) -> None:
        policy.with_retries(partial(self.write_file, table.name, numbers))

    def discard_table(self, table: Table) -> None:
        pass  # it takes no memory

    def write_file(self, name: str, body: bytes | memoryview) -> None:
        """Write or replace an object that all workers can read."""
        self._put(name, bytes(body))

    def read_file(self, name: str) -> bytes | None:
        """Return the content of an object of `write_file`, None if it does not exist."""
        return self._folder.read(name)

    def segments(self) -> dict[Segment, int]:
        """Return the segments that have objects, with their sizes."""
        objects = self._folder.contents().items()
        return _segments((name, version.size or 0) for name, version in objects)

    def read_lines(self, table: Table, first: int, stop: int) -> memoryview:
        line = 8 * table.columns
        return memoryview(self._read_range(table.name, line * first, line * stop)).cast("q")

    def close(self) -> None:
        """Refuse further writes, and wait for those in flight."""
        with self._lock:
            self._closed = True
        futures.wait(self._in_flight)

    def _upload(self, segment: Segment, body: bytes) -> None:
        number, self._object_counts[segment] = (
            self._object_counts[segment],
            self._object_counts[segment] + 1,
        )
        try:
            self._put(f"{_name(segment)}-{number}", body)
        except BaseException:  # another attempt writes objects of other names
            self._unsent.pop(segment, None)
            raise

    def _put(self, key: str, body: bytes) -> None:
        request: futures.Future[None] = futures.Future()
        with self._lock:
            if self._closed:
                raise OutputError(f"{printable(self._folder.path)}: the run has ended")
            self._in_flight.add(request)
        try:
            self._folder.write(key, body)
        finally:
            self._in_flight.discard(request)
            request.set_result(None)

    def _read_range(self, key: str, start: int, stop: int) -> bytes:
        try:
            return self._folder.read_unchecked(key, start, stop)
        except InputError as error:
            raise _as_output_error(error) from None


SharedStore = FolderStore | ObjectStore


def open_store(path: str) -> SharedStore:
    """Return the spill store at a path or URL."""
    return ObjectStore(path) if locations.is_url(path) else FolderStore(path)


def create_folder(location: str, sweeps: bool = True) -> SpillFolder:
    """Create a spill folder in a directory, or at a URL, that all workers share.

    sweeps: whether to remove spill folders of killed runs from the directory.
    """
    if not locations.is_url(location):
        path = os.path.join(os.path.abspath(location), _SPILL)
        try:
            return NewFolder(path, False, False, False, cleans=sweeps)
        except OSError as exc:
            raise descriptors.failure(exc, location, OutputError) from None
    require_shared(location)
    from ndtool.publish import claims

    claims.clean(location)
    return claims.Claim(objects.join(location, f"{_SPILL}-{os.urandom(6).hex()}"))


def require_shared(url: str) -> None:
    """Raise UsageError if processes do not share the storage of a URL."""
    if not locations.is_shared(url):
        raise UsageError(
            f"{printable(url)}: workers cannot share it: expected s3://, gs://, az:// or a"
            " directory that all workers see"
        )


def find_abandoned(location: str) -> tuple[list[str], list[str]]:
    """Return the spill folders of killed runs in a directory or at a URL, and those in use.

    The first list has paths of the killed runs' data, the second folders that may be in use.
    """
    if locations.is_url(location):
        from ndtool.publish import claims

        return (
            claims.abandoned_folders(location, f"{_SPILL}-")
            if locations.is_shared(location)
            else ([], [])
        )
    try:
        folders, in_use = cleanup.abandoned_folders(os.path.abspath(location), _SPILL)
    except OSError:
        return [], []  # creating a folder reports the error
    return [os.path.join(path, cleanup.NEW_FOLDER) for path in folders], in_use


def reopen(path: str) -> SpillFolder | None:
    """Reopen a spill folder of a killed run; None if another run has claimed it."""
    try:
        if not locations.is_url(path):
            temporary = os.path.dirname(path)
            target = os.path.join(os.path.dirname(temporary), _SPILL)
            return NewFolder(target, False, False, False, temporary)
        from ndtool.publish import claims

        return claims.Claim(path, resumes=True)
    except (OSError, OutputError):
        return None


def _size(entry: os.DirEntry[str]) -> int:
    """Return the size of a file, 0 if a task of the killed run has just renamed it."""
    try:
        return entry.stat().st_size
    except FileNotFoundError:
        return 0


def _with_attempt(segment: Segment) -> Segment:
    return segment._replace(attempt=int.from_bytes(os.urandom(8)) >> 1)


def _name(segment: Segment) -> str:
    return f"{segment.phase}-{segment.number}-{segment.attempt:016x}"


def _segments(sizes_by_name: Iterable[tuple[str, int]]) -> dict[Segment, int]:
    """Return the segments that files or objects belong to, with their sizes."""
    sizes: Counter[Segment] = Counter()
    for name, nbytes in sizes_by_name:
        if match := _SEGMENT_NAME.fullmatch(name):
            segment = Segment(match[1], int(match[2]), 0, int(match[3], 16))
            sizes[segment] += nbytes
    return sizes


def _as_output_error(error: InputError) -> OutputError:
    """Convert the error about spilled data that cannot be read to an OutputError."""
    output_error = OutputError(error.message)
    output_error.passing = error.passing
    return output_error


def convert_error(exc: BaseException, name: str = "temporary file") -> Any:
    """Convert an OSError about a temporary file to our error; return others unchanged."""
    if isinstance(exc, OSError) and not isinstance(exc, NdtoolError):
        return descriptors.failure(exc, name, OutputError)
    return exc
