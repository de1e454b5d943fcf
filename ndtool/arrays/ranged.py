"""A place behind a URL: of what formats ask for, ranges are brought to a file of our own."""

from __future__ import annotations

import asyncio
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

from ndtool.arrays import failures, remote
from ndtool.arrays.local import SMALL, Ranges, Stretch, Tick, Told
from ndtool.arrays.remote import Opened, Version
from ndtool.arrays.storage import copy_bytes, failure, map_bytes, read_at, write_at
from ndtool.errors import InputError, OutputError, ResourceError, printable, redacted

WINDOW = 1 << 16  # bytes that are asked for at once where headers are looked for
WINDOWS = 8  # that are kept
GAP = 1 << 20  # bytes between two ranges that are asked for as one
AHEAD = 1 << 26  # bytes that are asked for where somebody reads on and on


class RemoteFile:
    """An object behind a URL, with what LocalFile has.

    What was read of it stands where it stands in the object, in a sparse file without a name, as
    large as the object; `fd` is that. size: of the object. address, url: what it was opened by,
    and what may be said of that.
    """

    def __init__(self, url: str) -> None:
        self.address, self.url = url, redacted(url)
        self._requests = remote.requests(url)
        opened: Opened = self._wait(failures.persist(lambda: self._requests.open(WINDOW)))
        self._room: _Room | None = None
        self._version = opened.version
        self._ranged = opened.ranged
        self._windows = {0: opened.head}
        self._looked = 0  # where the last large look ended
        if opened.version.size is None:
            self._download()
        size = self._version.size
        assert size is not None, "it was downloaded"
        self.size: int = size

    @property
    def version(self) -> Version:
        """Which version of the object was opened."""
        return self._version

    @property
    def fd(self) -> int:
        """The file where what was read stands."""
        return self._have_room().descriptor

    def _have_room(self) -> _Room:
        if self._room is None:
            self._room = _Room(self.url, self._version.size or 0)
        return self._room

    def look(self, start: int, nbytes: int) -> bytes:
        """Return a little of it, fewer bytes only at its end; most come from a window kept."""
        nbytes = max(0, min(nbytes, self.size - start))
        for first, held in self._windows.items():
            if first <= start and start + nbytes <= first + len(held):
                return held[start - first : start - first + nbytes]
        if nbytes > WINDOW:
            reads_on, self._looked = start == self._looked, start + nbytes
            ahead = AHEAD if reads_on else nbytes
            self.bring([(start, min(start + max(nbytes, ahead), self.size))])
            return read_at(self.fd, start, nbytes)
        stop = min(start + WINDOW, self.size)
        self.bring([(start, stop)])
        self._windows[start] = read_at(self.fd, start, stop - start)
        if len(self._windows) > WINDOWS:
            del self._windows[list(self._windows)[1]]
        return self._windows[start][:nbytes]

    def read(self, start: int, nbytes: int, label: str) -> bytes:
        """Return bytes of it; OutputError where it is shorter."""
        piece = self.look(start, nbytes)
        if len(piece) < nbytes:
            raise OutputError(f"{printable(label)} changed during the run: it is shorter now")
        return piece

    def stretch(self, start: int, nbytes: int, label: str) -> Stretch:
        """Return bytes of it, which are brought when somebody says which of them are needed."""
        if nbytes <= SMALL:
            return Stretch(memoryview(self.read(start, nbytes, label)))

        def fetch(ranges: Ranges | None, tick: Tick | None) -> None:
            wanted = [(0, nbytes)] if ranges is None else ranges
            at = None
            if tick is not None:
                tick(0.0)
                at = lambda stop: tick((stop - start) / nbytes)  # noqa: E731
            self.bring(((start + first, start + stop) for first, stop in wanted), at)

        buffer = map_bytes(self.fd, start, nbytes)
        return Stretch(buffer, self, start, mapped=True, fetch=fetch)

    def copy(self, start: int, nbytes: int, fd: int, to: int) -> int:
        """Copy bytes to another file; return how many there were."""
        self.bring([(start, min(start + nbytes, self.size))])
        return copy_bytes(self.fd, start, nbytes, fd, to)

    def bring(self, ranges: Ranges, told: Callable[[int], object] | None = None) -> None:
        """Have ranges of it, ascending, in the file: those that are near in one request.

        told: where each request's range ends, when it is there.
        """
        if not self._ranged:
            self._download()
            return
        room = self._have_room()
        pieces = joined(room.missing(ranges), GAP, self._requests.largest)
        self._wait(self._bring(pieces, room, told or (lambda stop: None)))

    async def _bring(
        self, pieces: Iterator[tuple[int, int]], room: _Room, told: Callable[[int], object]
    ) -> None:
        async def one_by_one() -> None:
            for start, stop in pieces:
                await self._fetch(start, stop, room)
                told(stop)

        workers = [asyncio.ensure_future(one_by_one()) for _ in range(self._requests.at_once)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)

    async def _fetch(self, start: int, stop: int, room: _Room) -> None:
        """Bring one piece; after a cut connection, only what is still missing of it."""
        at = start

        def write(where: int, piece: bytes) -> None:
            nonlocal at
            room.write(where, piece)
            at = where + len(piece)

        await failures.persist(lambda: self._requests.fetch(at, stop, self._version, write))
        room.take_note(start, stop)

    def _download(self) -> None:
        """Bring all of it from one reply, once, where no ranges can be asked for."""
        if self._room is not None and self._room.has(0, self._version.size or 0):
            return
        room = self._have_room()
        found = self._wait(failures.persist(lambda: self._requests.download(room.write)))
        if found.differs(self._version):
            raise OutputError(f"{self.url} changed during the run")
        self._version = found
        room.take_note(0, found.size or 0)

    def change(self) -> str:
        """Say what happened to it since it was opened, nothing if nothing did."""
        try:
            now = self._wait(failures.persist(self._requests.version))
        except InputError as exc:
            return f"cannot be looked at any more: {exc.message.removeprefix(f'{self.url}: ')}"
        return "changed during the run" if now.differs(self._version) else ""

    def told(self) -> Told:
        """Return what tells the object, as it was when it was opened, from others."""
        etag, modified, size = self._version
        return [etag or modified, size] if etag or modified else None

    def is_open_as(self, fd: int) -> bool:
        """Whether a descriptor is open on it: none ever is."""
        return False

    def close(self) -> None:
        if self._room is not None:
            self._room.close()

    def __enter__(self) -> RemoteFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self, coroutine: Any) -> Any:
        return remote.wait(coroutine, self.url)


class _Room:
    """A sparse file without a name, and what of it was written."""

    def __init__(self, label: str, size: int) -> None:
        from ndtool.arrays.spill import unnamed_file

        self._label = f"temporary copy of {label}"
        self._lock = Lock()  # a request that nobody waits for any more may still write
        self._starts: list[int] = []  # of what is there: ascending, apart
        self._stops: list[int] = []
        self._fd: int | None = unnamed_file()
        try:
            os.ftruncate(self._fd, size)
        except OSError as exc:
            self.close()
            raise failure(exc, self._label, ResourceError) from None

    @property
    def descriptor(self) -> int:
        """Where its bytes are."""
        assert self._fd is not None, "it is closed"
        return self._fd

    def write(self, start: int, piece: bytes) -> None:
        """Write bytes; ResourceError where there is no room for them."""
        with self._lock:
            try:
                write_at(self.descriptor, start, piece)
            except OSError as exc:
                raise failure(exc, self._label, ResourceError) from None

    def take_note(self, start: int, stop: int) -> None:
        """Know that a range is there."""
        first = bisect_left(self._stops, start)
        last = bisect_right(self._starts, stop)
        if first < last:
            start, stop = min(start, self._starts[first]), max(stop, self._stops[last - 1])
        self._starts[first:last], self._stops[first:last] = [start], [stop]

    def missing(self, ranges: Ranges) -> Iterator[tuple[int, int]]:
        """Yield what of ranges is not there."""
        for start, stop in ranges:
            at = start
            while at < stop:
                near = bisect_right(self._stops, at)
                begin = self._starts[near] if near < len(self._starts) else stop
                if at < begin:
                    yield at, min(begin, stop)
                at = self._stops[near] if begin < stop else stop

    def has(self, start: int, stop: int) -> bool:
        """Whether all of a range is there."""
        return next(self.missing([(start, stop)]), None) is None

    def close(self) -> None:
        """Let go of it; maps of it stay."""
        with self._lock:
            fd, self._fd = self._fd, None
            if fd is not None:
                os.close(fd)


def joined(ranges: Ranges, gap: int, largest: int) -> Iterator[tuple[int, int]]:
    """Yield ranges with those that are near in one, none larger than `largest`.

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
