"""Remote objects, of which the requested byte ranges are downloaded to a temporary file."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from ndtool.errors import InputError, OutputError, ResourceError, printable, redacted
from ndtool.storage import failures, remote, requests
from ndtool.storage.descriptors import copy_bytes, failure, map_bytes, read_at, reserve, write_at
from ndtool.storage.http import Opened, Version
from ndtool.storage.local import SMALL, ByteRange, Fingerprint, ProgressCallback, Ranges

WINDOW = 1 << 16  # bytes per request for headers
GAP = 1 << 20  # bytes between two ranges up to which one request covers both
AHEAD = 1 << 26  # bytes per request of sequential reads


class RemoteFile:
    """A remote object, with the methods of LocalFile.

    Downloaded bytes are cached at their offsets in a sparse unnamed file, as large as the object.
    fd: that file. size: the size of the object. address: its URL. url: the URL without secrets.
    """

    def __init__(self, url: str) -> None:
        self.address, self.url = url, redacted(url)
        self._requests = remote.requests(url)
        opened: Opened = self._wait(failures.persist(lambda: self._requests.open(WINDOW)))
        self._version, self._ranged = opened.version, opened.ranged
        self._head = opened.head
        self._made: _SparseFile | None = None
        self._looked = 0  # the offset where the last large look ended
        if opened.version.size is None:
            self._download()
        self.size: int = self._version.size or 0

    @property
    def version(self) -> Version:
        """The version of the object when it was opened."""
        return self._version

    @property
    def fd(self) -> int:
        """The file of downloaded bytes."""
        return self._buffer.descriptor

    @property
    def _buffer(self) -> _SparseFile:
        """The temporary file, made when more is needed than the first bytes."""
        if self._made is None:
            self._made = _SparseFile(self.url, self._version.size or 0)
            if self._version.size is not None:
                self._made.write(0, self._head)
                self._made.take_note(0, len(self._head))
        return self._made

    def peek(self, start: int, nbytes: int) -> bytes:
        """Read a few bytes, fewer than `nbytes` only at the end of the object."""
        nbytes = max(0, min(nbytes, self.size - start))
        if start + nbytes <= len(self._head):
            return self._head[start : start + nbytes]
        reads_on = nbytes > WINDOW and start == self._looked
        self._looked = start + nbytes if nbytes > WINDOW else self._looked
        if not self._buffer.has(start, start + nbytes):
            ahead = AHEAD if reads_on else max(WINDOW, nbytes)
            self.bring([(start, min(start + ahead, self.size))])
        return read_at(self.fd, start, nbytes)

    def read(self, start: int, nbytes: int, label: str) -> bytes:
        """Read bytes; OutputError if the object is too short."""
        piece = self.peek(start, nbytes)
        if len(piece) < nbytes:
            raise OutputError(f"{printable(label)} changed during the run: it is shorter now")
        return piece

    def byte_range(self, start: int, nbytes: int, label: str) -> ByteRange:
        """Return a byte range, of which `fetch` downloads the bytes needed."""
        if nbytes <= SMALL:
            return ByteRange(memoryview(self.read(start, nbytes, label)))

        def fetch(ranges: Ranges | None, progress: ProgressCallback | None) -> None:
            wanted = [(0, nbytes)] if ranges is None else ranges
            at = None
            if progress is not None:
                progress(0.0)
                at = lambda stop: progress((stop - start) / nbytes)  # noqa: E731
            self.bring(((start + first, start + stop) for first, stop in wanted), at)

        buffer = map_bytes(self.fd, start, nbytes)
        return ByteRange(buffer, self, start, mapped=True, fetch=fetch)

    def copy(self, start: int, nbytes: int, fd: int, to: int) -> int:
        self.bring([(start, min(start + nbytes, self.size))])
        return copy_bytes(self.fd, start, nbytes, fd, to)

    def reserve(self, start: int, nbytes: int) -> None:
        """Reserve disk space for a byte range; ResourceError if there is too little."""
        self._buffer.reserve(start, start + nbytes)

    def bring(self, ranges: Ranges, completed: Callable[[int], object] | None = None) -> None:
        """Download byte ranges, in ascending order; one request covers nearby ranges.

        completed: called with the end of each request's range when it is downloaded.
        """
        if not self._ranged:
            self._download()
            return
        buffer = self._buffer
        pieces = joined(buffer.missing(ranges), GAP, self._requests.largest)
        self._wait(self._bring(pieces, buffer, completed or (lambda stop: None)))

    async def _bring(
        self,
        pieces: Iterator[tuple[int, int]],
        buffer: _SparseFile,
        completed: Callable[[int], object],
    ) -> None:
        async def one_by_one() -> None:
            for start, stop in pieces:
                await self._fetch(start, stop, buffer)
                completed(stop)

        workers = [asyncio.ensure_future(one_by_one()) for _ in range(self._requests.at_once)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _fetch(self, start: int, stop: int, buffer: _SparseFile) -> None:
        """Download a byte range; a retry requests only the missing bytes."""
        at = start

        def write(where: int, piece: bytes) -> None:
            nonlocal at
            buffer.write(where, piece)
            at = where + len(piece)

        await failures.persist(lambda: self._requests.fetch(at, stop, self._version, write))
        buffer.take_note(start, stop)

    def _download(self) -> None:
        """Download the complete object, once, from a server without range requests."""
        buffer = self._buffer
        if self._version.size is not None and buffer.has(0, self._version.size):
            return
        found = self._wait(failures.persist(lambda: self._requests.download(buffer.write)))
        if found.differs(self._version):
            raise OutputError(f"{self.url} changed during the run")
        self._version = found
        buffer.take_note(0, found.size or 0)

    def change(self) -> str:
        try:
            now = self._wait(failures.persist(self._requests.version))
        except InputError as exc:
            return f"can no longer be accessed: {exc.message.removeprefix(f'{self.url}: ')}"
        return "changed during the run" if now.differs(self._version) else ""

    def fingerprint(self) -> Fingerprint:
        etag, modified, size = self._version
        return [etag or modified, size] if etag or modified else None

    def is_open_as(self, fd: int) -> bool:
        """Return False: no descriptor refers to a remote object."""
        return False

    def close(self) -> None:
        if self._made is not None:
            self._made.close()

    def _wait(self, coroutine: Any) -> Any:
        return requests.wait(coroutine, self.url)


class _SparseFile:
    """A sparse unnamed file and the byte ranges written to it."""

    def __init__(self, label: str, size: int) -> None:
        from ndtool.storage.tempfiles import unnamed_file

        self._label = f"temporary copy of {label}"
        self._lock = Lock()  # threads read several ranges, and a cancelled request may still write
        self._starts: list[int] = []  # of the ranges present: ascending and disjoint
        self._stops: list[int] = []
        self._fd: int | None = unnamed_file()
        try:
            os.ftruncate(self._fd, size)
        except OSError as exc:
            self.close()
            raise failure(exc, self._label, ResourceError) from None

    @property
    def descriptor(self) -> int:
        """The descriptor of the open file."""
        assert self._fd is not None, "it is closed"
        return self._fd

    def reserve(self, start: int, stop: int) -> None:
        """Reserve disk space for the missing bytes of a range; ResourceError if there is none."""
        total = os.fstat(self.descriptor).st_size
        reserve(self.descriptor, total, self._label, self.missing([(start, stop)]))

    def write(self, start: int, piece: bytes) -> None:
        """Write bytes at an offset; ResourceError if the disk is full."""
        with self._lock:
            try:
                write_at(self.descriptor, start, piece)
            except OSError as exc:
                raise failure(exc, self._label, ResourceError) from None

    def take_note(self, start: int, stop: int) -> None:
        """Record that a range is present."""
        with self._lock:
            first = bisect_left(self._stops, start)
            last = bisect_right(self._starts, stop)
            if first < last:
                start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
            self._starts[first:last], self._stops[first:last] = [start], [stop]

    def missing(self, ranges: Ranges) -> Iterator[tuple[int, int]]:
        """Yield the missing subranges of byte ranges."""
        for start, stop in ranges:
            at = start
            while at < stop:
                with self._lock:
                    near = bisect_right(self._stops, at)
                    begin = self._starts[near] if near < len(self._starts) else stop
                    end = self._stops[near] if begin < stop else stop
                if at < begin:
                    yield at, min(begin, stop)
                at = end

    def has(self, start: int, stop: int) -> bool:
        """Whether all bytes of a range are present."""
        return next(self.missing([(start, stop)]), None) is None

    def close(self) -> None:
        """Close the file; its memory maps remain valid."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)


def joined(ranges: Ranges, gap: int, largest: int) -> Iterator[tuple[int, int]]:
    """Merge byte ranges at most `gap` bytes apart, and split those larger than `largest`.

    >>> list(joined([(0, 10), (15, 20), (40, 75)], 5, 30))
    [(0, 20), (40, 70), (70, 75)]
    """
    first = last = 0
    for start, stop in ranges:
        if last and start - last <= gap and stop - first <= largest:
            last = stop
            continue
        yield from _cut(first, last, largest)
        first, last = start, stop
    yield from _cut(first, last, largest)


def _cut(first: int, last: int, largest: int) -> Iterator[tuple[int, int]]:
    for start in range(first, last, largest):
        yield start, min(start + largest, last)
