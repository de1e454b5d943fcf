"""Remote files: the byte ranges that are read are downloaded to a temporary file."""

from __future__ import annotations

import os
import sys
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from functools import cached_property
from itertools import chain
from threading import Lock
from typing import Any, TypeVar

from ndtool.errors import InputError, ResourceError, redact_urls
from ndtool.storage import failures, objects
from ndtool.storage.descriptors import copy_bytes, map_bytes, os_errors, read_at, reserve, write_at
from ndtool.storage.local import MAP_THRESHOLD, Fingerprint, Ranges, shortened_error

T = TypeVar("T")
MIN_REQUEST = 1 << 16  # minimum bytes per request, for headers
MAX_GAP = 1 << 20  # maximum bytes between two ranges that one request covers
READAHEAD = 1 << 26  # bytes per request of sequential reads


class RemoteFile:
    """A remote object, with the methods of LocalFile.

    Downloaded bytes are cached at their offsets in a sparse unnamed file, as large as the object.
    fd: that file. version, size: of the object. address: its URL. url: its URL without secrets.
    """

    is_remote = True

    def __init__(self, url: str) -> None:
        self.address, self.url = url, redact_urls(url)
        self._object = objects.open_object(url)
        self.version, self._head = self._wait(lambda: self._object.open(MIN_REQUEST))
        if self.version.size is None:
            self._wait(self._download_all)
        self.size: int = self.version.size or 0
        self._read_end = 0  # the end of the last large `peek`

    @property
    def fd(self) -> int:
        """The descriptor of the temporary file."""
        return self._buffer.descriptor

    @cached_property
    def _buffer(self) -> _SparseFile:
        """The temporary file, created by the first read after the first response."""
        file = _SparseFile(f"temporary copy of {self.url}", self.size)
        file.write(0, self._head)
        file.record(0, len(self._head))
        return file

    async def _download_all(self) -> None:
        """Download an object of unknown size up to the end of the response, or of the disk."""
        file = self._buffer = _SparseFile(f"temporary copy of {self.url}", 0)
        await self._object.fetch(0, sys.maxsize, self.version, file.write)
        size = os.fstat(file.descriptor).st_size
        file.record(0, size)
        self.version, self._head = self.version._replace(size=size), b""

    def peek(self, start: int, nbytes: int) -> bytes:
        """Read a few bytes, fewer than `nbytes` only at the end of the object."""
        nbytes = max(0, min(nbytes, self.size - start))
        if start + nbytes <= len(self._head):
            return self._head[start : start + nbytes]
        is_sequential = nbytes > MIN_REQUEST and start == self._read_end
        self._read_end = start + nbytes if nbytes > MIN_REQUEST else self._read_end
        if any(self._buffer.missing_ranges([(start, start + nbytes)])):
            nbytes_ahead = READAHEAD if is_sequential else max(MIN_REQUEST, nbytes)
            self.download([(start, min(start + nbytes_ahead, self.size))])
        return read_at(self.fd, start, nbytes)

    def read(self, start: int, nbytes: int, label: str) -> bytes:
        """Read bytes; OutputError if the object is too short."""
        block = self.peek(start, nbytes)
        if len(block) < nbytes:
            raise shortened_error(label)
        return block

    def view(self, start: int, nbytes: int, label: str) -> tuple[memoryview, bool]:
        """Return a byte range, and whether it is a map, of zeros before `download`."""
        if nbytes <= MAP_THRESHOLD:
            return memoryview(self.read(start, nbytes, label)), False
        return map_bytes(self.fd, start, nbytes), True

    def copy(self, start: int, nbytes: int, fd: int, target_start: int) -> int:
        """Copy downloaded bytes to another file, see LocalFile."""
        return copy_bytes(self.fd, start, nbytes, fd, target_start)

    def reserve(self, start: int, nbytes: int) -> None:
        """Reserve disk space for a byte range; ResourceError if there is too little."""
        missing = self._buffer.missing_ranges([(start, start + nbytes)])
        reserve(self.fd, self.size, self._buffer.label, missing)

    def download(self, ranges: Ranges, report: Callable[[int], object] = lambda stop: None) -> None:
        """Download byte ranges, in ascending order; one request covers nearby ranges.

        report: called with the end of each downloaded range.
        """
        remote, buffer = self._object, self._buffer

        async def fetch(span: tuple[int, int]) -> None:
            await objects.read_range(remote, *span, self.version, buffer.write)
            buffer.record(*span)
            report(span[1])

        missing = buffer.missing_ranges(ranges if remote.is_ranged else [(0, self.size)])
        merged = list(merge_ranges(missing, MAX_GAP, remote.max_request))
        objects.wait(objects.for_each(fetch, merged, remote.concurrency), self.url)

    def describe_change(self) -> str:
        try:
            current = self._wait(self._object.version)
        except InputError as exc:
            return f"can no longer be accessed: {exc.message.removeprefix(f'{self.url}: ')}"
        return "changed during the run" if current.differs(self.version) else ""

    def fingerprint(self) -> Fingerprint:
        etag, modified, size = self._wait(self._object.version)
        return [etag or modified, size] if etag or modified else None

    def is_same_file(self, fd: int) -> bool:
        """Return False: no descriptor refers to a remote object."""
        return False

    def close(self) -> None:
        self.__dict__.pop("_buffer", None)  # an interrupted request may still write to it

    def _wait(self, request: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return objects.wait(failures.retry(request), self.url)


class _SparseFile:
    """A sparse unnamed file and the byte ranges written to it.

    `write` and `record`, which the event loop calls, never wait for a thread: a signal handler that
    has interrupted it may wait for the loop.
    """

    def __init__(self, label: str, size: int) -> None:
        from ndtool.storage.tempfiles import unnamed_file

        self.label = label
        self._lock = Lock()  # several threads read
        self._written = deque[tuple[int, int]]()  # ranges that are not in `_bounds` yet
        self._bounds: list[int] = []  # start, stop of the written ranges: ascending, disjoint
        self.descriptor = -1
        self.descriptor = unnamed_file()
        with os_errors(label, ResourceError):
            os.ftruncate(self.descriptor, size)

    def write(self, start: int, block: bytes) -> None:
        """Write bytes at an offset; ResourceError if the disk is full."""
        with os_errors(self.label, ResourceError):
            write_at(self.descriptor, start, block)

    def record(self, start: int, stop: int) -> None:
        """Record that a byte range is downloaded."""
        self._written.append((start, stop))

    def missing_ranges(self, ranges: Ranges) -> Iterator[tuple[int, int]]:
        """Yield the missing subranges of byte ranges."""
        for start, stop in ranges:
            while start < stop:
                with self._lock:
                    while self._written:
                        self._merge(*self._written.popleft())
                    count = bisect_right(self._bounds, start)
                    end = min([stop, *self._bounds[count : count + 1]])
                if count % 2 == 0:
                    yield start, end
                start = end

    def _merge(self, start: int, stop: int) -> None:
        first, last = bisect_left(self._bounds, start), bisect_right(self._bounds, stop)
        # An odd number of bounds before an offset means that a written range contains it.
        self._bounds[first:last] = [start] * (first % 2 == 0) + [stop] * (last % 2 == 0)

    def __del__(self) -> None:
        """Close the file; its memory maps remain valid."""
        if self.descriptor >= 0:
            os.close(self.descriptor)


def merge_ranges(ranges: Ranges, max_gap: int, max_size: int) -> Iterator[tuple[int, int]]:
    """Merge byte ranges up to `max_gap` bytes apart, and split ranges larger than `max_size`.

    >>> list(merge_ranges([(0, 10), (15, 20), (40, 75)], 5, 30))
    [(0, 20), (40, 70), (70, 75)]
    """
    first = last = 0
    for start, stop in chain(ranges, [(sys.maxsize, sys.maxsize)]):
        if last and start - last <= max_gap and stop - first <= max_size:
            last = stop
            continue
        for offset in range(first, last, max_size):
            yield offset, min(offset + max_size, last)
        first, last = start, stop
