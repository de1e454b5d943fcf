"""What a sweep keeps between its phases: on a cluster in files, or in objects behind a URL.

What one process keeps is in store.py.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from concurrent import futures
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple, Protocol

from ndtool.arrays import leftovers, places, storage
from ndtool.arrays.newfolder import NewFolder
from ndtool.engine import crew
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, printable

SEGMENT = 8 << 20  # bytes of an object: a piece is as many as it takes, none of which waits for all
_PART = ".part"  # of what is not complete
_PIECE = re.compile(r"([a-z]+)-([0-9]+)-([0-9a-f]{16})(-[0-9]+)?")
_SPILL = "spill"


class Piece(NamedTuple):
    """What one task keeps. start: where it stands among those of all tasks of its phase.

    attempt: which time that the task was done; what others left is never looked at.
    """

    phase: str
    number: int
    start: int
    attempt: int = 0


class Table(NamedTuple):
    """Numbers that tasks of a phase need of those of the phase before: `columns` in each line."""

    name: str
    columns: int


class Place(Protocol):
    """What a run on a cluster has for what is kept. inside: its path, or its URL."""

    @property
    def inside(self) -> str: ...

    def drop(self) -> None:
        """Remove it."""

    def leave(self) -> None:
        """Let go of it as it is, for another run to take over."""


class Keep(Protocol):
    """Where pieces and tables are kept; any task may use it.

    at_once: how many pieces are worth reading at once.
    """

    at_once: int

    def create(self, piece: Piece) -> Piece:
        """Begin a piece; return it with its attempt."""

    def write(self, piece: Piece, at: int, view: memoryview) -> None:
        """Put the next bytes of a piece, which begin at `at`."""

    def finish(self, piece: Piece, end: bytes = b"") -> None:
        """Complete a piece; end: what follows it for a run that takes it up."""

    def expect(self, piece: Piece, at: int, nbytes: int) -> None:
        """Be told of bytes of a piece that will be read soon."""

    def read(self, piece: Piece, at: int, room: memoryview) -> None:
        """Fill a room with bytes of a piece."""

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        """Keep a table."""

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        """Return lines of a table, one after the other."""


def read_all(keep: Keep, wanted: list[tuple[Piece, int, int]], room: memoryview) -> None:
    """Fill a room with bytes of pieces, one after the other; wanted: where, and how many, of each.

    All of them are told before the first is read, so that a disk has many to choose from.
    """
    for piece, start, nbytes in wanted:
        keep.expect(piece, start, nbytes)
    places = list(accumulate((nbytes for *_, nbytes in wanted), initial=0))

    def fetch(number: int) -> None:
        piece, start, nbytes = wanted[number]
        keep.read(piece, start, room[places[number] : places[number] + nbytes])

    crew.share(fetch, iter(range(len(wanted))), keep.at_once)


class Folder:
    """What tasks of many processes keep: files of a folder that all of them see.

    Each attempt of a task writes a file of its own, so that two never meet in one.
    """

    at_once = 1

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[Piece, int] = {}

    def create(self, piece: Piece) -> Piece:
        piece = _attempted(piece)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            self._files[piece] = os.open(self._file(piece) + _PART, flags, 0o600)
        except OSError as exc:
            raise failed(exc) from None
        return piece

    def write(self, piece: Piece, at: int, view: memoryview) -> None:
        try:
            storage.write_at(self._files[piece], at, view)
        except OSError as exc:
            raise failed(exc) from None

    def finish(self, piece: Piece, end: bytes = b"") -> None:
        try:
            storage.write_at(self._files[piece], os.fstat(self._files[piece]).st_size, end)
            os.close(self._files.pop(piece))  # a network file system tells now what went wrong
            os.rename(self._file(piece) + _PART, self._file(piece))
        except OSError as exc:
            raise failed(exc) from None

    def expect(self, piece: Piece, at: int, nbytes: int) -> None:
        pass  # of many files, on file systems that have ways of their own

    def read(self, piece: Piece, at: int, room: memoryview) -> None:
        self._fill(self._file(piece), at, room)

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        self.note(table.name, numbers)

    def note(self, name: str, body: bytes | memoryview) -> None:
        """Keep something for all, in the place of an old one."""
        path = os.path.join(self._path, name)
        try:
            with open(path + _PART, "wb") as file:
                file.write(body)
            os.replace(path + _PART, path)
        except OSError as exc:
            raise failed(exc) from None

    def noted(self, name: str) -> bytes | None:
        """Return what was kept for all, None where nothing was."""
        try:
            with open(os.path.join(self._path, name), "rb") as file:
                return file.read()
        except OSError:
            return None

    def pieces(self) -> dict[Piece, int]:
        """Return the pieces that are complete, and how many bytes they have."""
        with os.scandir(self._path) as found:
            return _pieces((one.name, _size(one)) for one in found)

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        room = memoryview(bytearray(8 * table.columns * (stop - first)))
        self._fill(os.path.join(self._path, table.name), 8 * table.columns * first, room)
        return room.cast("q")

    def close(self) -> None:
        """Let go of files that were not completed."""
        for fd in self._files.values():
            os.close(fd)
        self._files.clear()

    def _file(self, piece: Piece) -> str:
        return os.path.join(self._path, _name(piece))

    def _fill(self, path: str, start: int, room: memoryview) -> None:
        try:
            with open(path, "rb", buffering=0) as file:
                count = storage.read_into(file.fileno(), start, room)
        except OSError as exc:
            raise failed(exc) from None
        if count < len(room):
            raise OutputError("a temporary file became shorter during the run")


class Objects:
    """What Folder is, in a folder of a store behind a URL.

    A piece is as many objects as it takes, so that neither memory nor a disk need hold it.
    """

    at_once = crew.MOST

    def __init__(self, url: str) -> None:
        from ndtool.arrays.remotefolder import RemoteFolder

        self._folder = RemoteFolder(url)
        self._rest: dict[Piece, bytearray] = {}  # what does not fill an object yet
        self._sent: dict[Piece, int] = {}
        self._going: set[futures.Future[None]] = set()
        self._closed = False
        self._turn = Lock()

    def create(self, piece: Piece) -> Piece:
        piece = _attempted(piece)
        self._rest[piece], self._sent[piece] = bytearray(), 0
        return piece

    def write(self, piece: Piece, at: int, view: memoryview) -> None:
        rest = self._rest[piece]
        for start in range(0, len(view), SEGMENT):
            rest += view[start : start + SEGMENT]
            if len(rest) >= SEGMENT:
                self._send(piece, bytes(rest[:SEGMENT]))
                del rest[:SEGMENT]

    def finish(self, piece: Piece, end: bytes = b"") -> None:
        self.write(piece, 0, memoryview(end))
        rest = self._rest.pop(piece)
        if rest:
            self._send(piece, bytes(rest))
        del self._sent[piece]

    def expect(self, piece: Piece, at: int, nbytes: int) -> None:
        pass  # of many objects, which are asked for several at once

    def read(self, piece: Piece, at: int, room: memoryview) -> None:
        done = 0
        while done < len(room):
            number, start = divmod(at + done, SEGMENT)
            stop = min(SEGMENT, start + len(room) - done)
            room[done : done + stop - start] = self._span(f"{_name(piece)}-{number}", start, stop)
            done += stop - start

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        self.note(table.name, numbers)

    def note(self, name: str, body: bytes | memoryview) -> None:
        """Keep something for all, in the place of an old one."""
        self._put(name, bytes(body))

    def noted(self, name: str) -> bytes | None:
        """Return what was kept for all, None where nothing was."""
        return self._folder.read(name)

    def pieces(self) -> dict[Piece, int]:
        """Return the pieces of which an object is there, and how many bytes they have."""
        found = self._folder.contents().items()
        return _pieces((name, version.size or 0) for name, version in found)

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        line = 8 * table.columns
        return memoryview(self._span(table.name, line * first, line * stop)).cast("q")

    def close(self) -> None:
        """Send nothing any more, and wait for what is on its way."""
        with self._turn:
            self._closed = True
        futures.wait(self._going)

    def _send(self, piece: Piece, body: bytes) -> None:
        number, self._sent[piece] = self._sent[piece], self._sent[piece] + 1
        self._put(f"{_name(piece)}-{number}", body)

    def _put(self, key: str, body: bytes) -> None:
        going: futures.Future[None] = futures.Future()
        with self._turn:
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
            return self._folder.span(key, start, stop)
        except InputError as error:
            raise OutputError(error.message) from None


Kept = Folder | Objects


def keep(inside: str) -> Kept:
    """Return what tasks of many processes keep in a place."""
    return Objects(inside) if places.is_url(inside) else Folder(inside)


def place(within: str) -> Place:
    """Return a new place in a directory, or a folder behind a URL, that all workers see."""
    if not places.is_url(within):
        try:
            return NewFolder(os.path.join(os.path.abspath(within), _SPILL), False, False, False)
        except OSError as exc:
            raise storage.failure(exc, within, OutputError) from None
    if not places.is_of_many(within):
        raise UsageError(
            f"{printable(within)}: each process has its own: expected s3://, gs://, az:// or a"
            " directory that all workers see"
        )
    from ndtool.arrays import claims, remotefolder

    claims.sweep(within)
    return claims.Claim(remotefolder.inside(within, f"{_SPILL}-{os.urandom(6).hex()}"))


def left(within: str) -> tuple[list[str], list[str]]:
    """Return the insides of places in a directory, or behind a URL, that killed runs left.

    And places that may be in use, as far as is known.
    """
    if places.is_url(within):
        from ndtool.arrays import claims

        return claims.folders(within, f"{_SPILL}-") if places.is_of_many(within) else ([], [])
    try:
        found, others = leftovers.folders(os.path.abspath(within), _SPILL)
    except OSError:
        return [], []  # to be told when a place is made
    return [os.path.join(path, leftovers.INSIDE) for path in found], others


def again(inside: str) -> Place | None:
    """Return a place that a killed run left, None where another run has it now."""
    try:
        if not places.is_url(inside):
            hidden = os.path.dirname(inside)
            path = os.path.join(os.path.dirname(hidden), _SPILL)
            return NewFolder(path, False, False, False, hidden)
        from ndtool.arrays import claims

        return claims.Claim(inside, takes_over=True)
    except (OSError, OutputError):
        return None


def _size(one: os.DirEntry[str]) -> int:
    """Return the bytes of a file, 0 where a task that was on its way has renamed it since."""
    try:
        return one.stat().st_size
    except FileNotFoundError:
        return 0


def _attempted(piece: Piece) -> Piece:
    return piece._replace(attempt=int.from_bytes(os.urandom(8)) >> 1)


def _name(piece: Piece) -> str:
    return f"{piece.phase}-{piece.number}-{piece.attempt:016x}"


def _pieces(found: Iterable[tuple[str, int]]) -> dict[Piece, int]:
    """Return the pieces that some files, or objects, are, and how many bytes they have."""
    sizes: Counter[Piece] = Counter()
    for name, nbytes in found:
        if parts := _PIECE.fullmatch(name):
            piece = Piece(parts[1], int(parts[2]), 0, int(parts[3], 16))
            sizes[piece] += nbytes
    return sizes


def failed(exc: BaseException) -> Any:
    """Return what the system says of a temporary file as our error, others as they are."""
    if isinstance(exc, OSError) and not isinstance(exc, NdtoolError):
        return storage.failure(exc, "temporary file", OutputError)
    return exc
