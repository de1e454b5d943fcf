"""What a sweep keeps between its phases.

In one process: in memory as far as that goes, else in a file without a name. In many: in files.
"""

from __future__ import annotations

import mmap
import os
from typing import Any, NamedTuple, Protocol

from ndtool.arrays import spill, storage
from ndtool.errors import NdtoolError, OutputError, ResourceError


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


class Keep(Protocol):
    """Where pieces and tables are kept; any task may use it."""

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
    at = 0
    for piece, start, nbytes in wanted:
        keep.read(piece, start, room[at : at + nbytes])
        at += nbytes


class Store:
    """Bytes of a known number, of which the first `held` are in memory; any thread may use it.

    phases: where what each of them keeps begins. Room on disk is reserved for what is not in
    memory. Raises ResourceError where there is too little.
    """

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

    def __init__(self, path: str) -> None:
        self._path = path
        self._files: dict[Piece, int] = {}

    def create(self, piece: Piece) -> Piece:
        piece = piece._replace(attempt=int.from_bytes(os.urandom(8)) >> 1)
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
        name = f"{piece.phase}-{piece.number}-{piece.attempt:016x}"
        return os.path.join(self._path, name)

    def _fill(self, path: str, start: int, room: memoryview) -> None:
        try:
            with open(path, "rb", buffering=0) as file:
                count = storage.read_into(file.fileno(), start, room)
        except OSError as exc:
            raise _told(exc) from None
        if count < len(room):
            raise OutputError("a temporary file became shorter during the run")


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
