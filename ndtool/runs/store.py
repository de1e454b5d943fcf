"""What a sweep keeps in one process: in memory as far as that goes, then in a nameless file."""

from __future__ import annotations

import mmap
import os

from ndtool.arrays import spill, storage
from ndtool.errors import ResourceError
from ndtool.runs.spilling import Piece, Table, failed


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
                raise failed(exc) from None

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
                raise failed(exc) from None

    def finish(self, piece: Piece, end: bytes = b"") -> None:
        pass  # no other run will see it

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
                raise failed(exc) from None

    def tabulate(self, table: Table, numbers: memoryview) -> None:
        self._tables[table.name] = numbers

    def lines(self, table: Table, first: int, stop: int) -> memoryview:
        return self._tables[table.name][first * table.columns : stop * table.columns]

    def close(self) -> None:
        """Drop everything."""
        fd, self._fd = self._fd, None
        if fd is not None:
            os.close(fd)


def _memory(nbytes: int) -> memoryview:
    """Return writable bytes, whose pages are taken when they are used."""
    try:
        return memoryview(mmap.mmap(-1, max(1, nbytes), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError:
        raise ResourceError(f"no memory for {nbytes} bytes to work in") from None
