"""What a sweep keeps between its phases.

In one process: in memory as far as that goes, else in a file without a name. In many: in files, or
in objects behind a URL.
"""

from __future__ import annotations

import mmap
import os
from concurrent import futures
from itertools import accumulate
from threading import Lock
from typing import Any, NamedTuple, Protocol

from ndtool.arrays import places, spill, storage
from ndtool.arrays.newfolder import NewFolder
from ndtool.engine import crew
from ndtool.errors import InputError, NdtoolError, OutputError, ResourceError, UsageError, printable

SEGMENT = 8 << 20  # bytes of an object: a piece is as many as it takes, none of which waits for all


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


class Keep(Protocol):
    """Where pieces and tables are kept; any task may use it.

    at_once: how many pieces are worth reading at once.
    """

    at_once: int

    def create(self, piece: Piece) -> Piece:
        """Begin a piece; return it with its attempt."""

    def write(self, piece: Piece, at: int, view: memoryview) -> None:
        """Put the next bytes of a piece, which begin at `at`."""

    def finish(self, piece: Piece) -> None:
        """Complete a piece."""

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


class Store:
    """Bytes of a known number, of which the first `held` are in memory; any thread may use it.

    phases: where what each of them keeps begins. Room on disk is reserved for what is not in
    memory. Raises ResourceError where there is too little.
    """

    at_once = 1

    def __init__(
        self, nbytes: int, held: int, directory: str | None, phases: dict[str, int]
    ) -> None:
        self._fd: int | None = None
        self._phases = phases
        self._tables: dict[str, memoryview] = {}
        self._held = min(nbytes, held)
        self._room = _memory(self._held)
        if nbytes > self._held:
            try:
                self._fd = spill.unnamed_file(directory)
                storage.reserve(self._fd, nbytes - self._held, "temporary file")
                storage.advise_random(self._fd)
            except BaseException as exc:
                self.close()
                raise _told(exc) from None

    def create(self, piece: Piece) -> Piece:
        return piece

    def write(self, piece: Piece, at: int, view: memoryview) -> None:
        start = self._phases[piece.phase] + piece.start + at
        here = max(0, min(len(view), self._held - start))
        self._room[start : start + here] = view[:here]
        if here < len(view):
            assert self._fd is not None
            try:
                storage.write_at(self._fd, start + here - self._held, view[here:])
            except OSError as exc:
                raise _told(exc) from None

    def finish(self, piece: Piece) -> None:
        pass

    def expect(self, piece: Piece, at: int, nbytes: int) -> None:
        first = self._phases[piece.phase] + piece.start + at - self._held
        start, stop = max(0, first), first + nbytes
        if start < stop:
            assert self._fd is not None
            storage.will_need(self._fd, start, stop - start)

    def read(self, piece: Piece, at: int, room: memoryview) -> None:
        start = self._phases[piece.phase] + piece.start + at
        here = max(0, min(len(room), self._held - start))
        room[:here] = self._room[start : start + here]
        if here < len(room):
            assert self._fd is not None
            try:
                storage.read_into(self._fd, start + here - self._held, room[here:])
            except OSError as exc:
                raise _told(exc) from None

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        self._tables[table.name] = numbers

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        return self._tables[table.name][first * table.columns : stop * table.columns]

    def close(self) -> None:
        """Drop everything."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


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
            self._files[piece] = os.open(self._file(piece), flags, 0o600)
        except OSError as exc:
            raise _told(exc) from None
        return piece

    def write(self, piece: Piece, at: int, view: memoryview) -> None:
        try:
            storage.write_at(self._files[piece], at, view)
        except OSError as exc:
            raise _told(exc) from None

    def finish(self, piece: Piece) -> None:
        try:
            os.close(self._files.pop(piece))  # a network file system tells now what went wrong
        except OSError as exc:
            raise _told(exc) from None

    def expect(self, piece: Piece, at: int, nbytes: int) -> None:
        pass  # of many files, on file systems that have ways of their own

    def read(self, piece: Piece, at: int, room: memoryview) -> None:
        self._fill(self._file(piece), at, room)

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        try:
            with open(os.path.join(self._path, table.name), "wb") as file:
                file.write(numbers)
        except OSError as exc:
            raise _told(exc) from None

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
            raise _told(exc) from None
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

    def finish(self, piece: Piece) -> None:
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
        self._put(table.name, bytes(numbers))

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


def keep(inside: str) -> Folder | Objects:
    """Return what tasks of many processes keep in a place."""
    return Objects(inside) if places.is_url(inside) else Folder(inside)


def place(within: str) -> Place:
    """Return a new place in a directory, or a folder behind a URL, that all workers see."""
    if not places.is_url(within):
        try:
            return NewFolder(os.path.join(os.path.abspath(within), "spill"), False, False, False)
        except OSError as exc:
            raise storage.failure(exc, within, OutputError) from None
    if not places.is_of_many(within):
        raise UsageError(
            f"{printable(within)}: each process has its own: expected s3://, gs://, az:// or a"
            " directory that all workers see"
        )
    from ndtool.arrays import claims, remotefolder

    claims.sweep(within)
    return claims.Claim(remotefolder.inside(within, f"spill-{os.urandom(6).hex()}"))


def _attempted(piece: Piece) -> Piece:
    return piece._replace(attempt=int.from_bytes(os.urandom(8)) >> 1)


def _name(piece: Piece) -> str:
    return f"{piece.phase}-{piece.number}-{piece.attempt:016x}"


def _memory(nbytes: int) -> memoryview:
    """Return writable bytes, whose pages are taken when they are used."""
    try:
        return memoryview(mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError:
        raise ResourceError(f"no memory for {nbytes} bytes to work in") from None


def _told(exc: BaseException) -> Any:
    if isinstance(exc, OSError) and not isinstance(exc, NdtoolError):
        return storage.failure(exc, "temporary file", OutputError)
    return exc
