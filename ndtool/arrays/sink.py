"""Arrays that are being written: the old file or the whole new one, never a part."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Protocol

from ndtool.arrays.local import Tick
from ndtool.arrays.newfile import NewFile, Pending, Unpublished, publish
from ndtool.arrays.shared import Shared
from ndtool.arrays.source import Facts
from ndtool.arrays.storage import (
    CHUNK,
    UNMAPPABLE,
    failure,
    is_closed,
    let_go,
    map_bytes,
    read_at,
    release,
    reserve,
    write_at,
    write_next,
)
from ndtool.arrays.targets import Target
from ndtool.errors import NdtoolError, OutputError, printable
from ndtool.rules.dtypes import Dtype

if TYPE_CHECKING:
    from ndtool.arrays.kept import OldFile


class Sink(Protocol):
    """One array that is being written; nothing of it is visible before `commit`.

    name: what messages call it. facts: its type, shape and grid; the bytes of each block are in
    row-major order. streamed: whether bytes must come in order. at_once: how many blocks are worth
    giving at once. kept: members that stay in the file that it goes to, None where there are none
    to stay.
    """

    name: str
    facts: Facts
    streamed: bool
    at_once: int
    kept: tuple[str, ...] | None

    def map(self) -> memoryview | None:
        """Return all of the data as writable bytes, zero at first; None where that cannot be."""

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of a block from `start` on."""

    def finish(self) -> Unpublished | None:
        """Complete everything but its name; return what is to get it, if there is something."""

    def abort(self) -> None:
        """Let go of everything, and drop what was not committed."""


def commit(*sinks: Sink) -> None:
    """Complete all sinks, then let their files take their names together."""
    publish([file for sink in sinks if (file := sink.finish()) is not None])


def deliver(room: memoryview, sink: Sink, threads: int = 1, tick: Tick | None = None) -> None:
    """Write all of the data, in row-major order; of several blocks, each of them at once."""
    facts = sink.facts
    if facts.grid == facts.shape:
        for first in range(0, facts.nbytes, CHUNK):
            stop = min(first + CHUNK, facts.nbytes)
            sink.write(first, room[first:stop])
            if tick is not None:
                tick(stop / facts.nbytes)
        return
    from ndtool.arrays import assembly

    cut = assembly.Cut(facts.shape, facts.grid, facts.dtype.itemsize)
    assembly.take_apart(room, cut, sink.write, max(threads, sink.at_once), tick)


class StreamSink:
    """Standard output, a FIFO or a device: bytes in order, gone once they are written."""

    streamed = True
    at_once = 1
    kept = None

    def __init__(self, fd: int, name: str, facts: Facts, header: bytes, owned: bool) -> None:
        self.name, self.facts = name, facts
        self._fd: int | None = fd
        self._owned = owned
        self._header = header
        self._position = 0

    def map(self) -> None:
        return None

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write the next bytes of the data; a closed pipe raises BrokenPipeError."""
        if start != self._position or start + len(view) > self.facts.nbytes:
            raise ValueError(f"a stream at {self._position} cannot take bytes at {start}")
        self._begin()
        self._send(view)
        self._position += len(view)

    def finish(self) -> None:
        self._begin()
        if self._position != self.facts.nbytes:
            raise ValueError(f"only {self._position} of {self.facts.nbytes} bytes were written")
        fd, self._fd = self._fd, None
        if fd is not None and self._owned:
            try:
                os.close(fd)
            except OSError as exc:
                raise failure(exc, self.name, OutputError) from None

    def abort(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None and self._owned:
            os.close(fd)

    def _begin(self) -> None:
        """Send the header once, not before there is something to follow it."""
        header, self._header = self._header, b""
        self._send(header)

    def _send(self, view: bytes | memoryview) -> None:
        assert self._fd is not None
        try:
            write_next(self._fd, view)
        except BrokenPipeError:
            raise
        except OSError as exc:
            if exc.errno == errno.ENOSPC:
                raise OutputError(f"{printable(self.name)}: {exc.strerror}") from None
            raise failure(exc, self.name, OutputError) from None


class Frame:
    """What a file has around the bytes of the one array that is written to it.

    start: where they begin. total: bytes of the whole file. old: the file of which other members,
    `names`, stay. kept: see Sink. clobbers: whether the file takes the place of another whatever
    was asked for, as what others may have made meanwhile is looked at before that. keeps: whether
    others' work would be lost if they wrote to the old file now.
    """

    def __init__(
        self,
        header: bytes,
        nbytes: int,
        at: int = 0,
        old: OldFile | None = None,
        names: tuple[str, ...] = (),
    ) -> None:
        self._header, self._at, self._old = header, at, old
        self.start = at + len(header)
        self.total = self.start + nbytes
        self.kept = names if old is not None and old.file is not None else None
        self.clobbers = self.kept is not None
        self.keeps = old is not None and old.keeps

    def begin(self, fd: int) -> None:
        """Write what does not depend on the data."""
        write_at(fd, self._at, self._header)

    def finish(self, fd: int, name: str) -> None:
        """Write what depends on the data, which are complete."""

    def recheck(self) -> None:
        """Raise OutputError if what it keeps of an old file changed: as late as can be."""
        if self._old is not None:
            self._old.recheck()

    def close(self) -> None:
        """Let go of what it had open."""
        if self._old is not None:
            self._old.close()


def put_little_endian(fd: int, name: str, start: int, stop: int, given: Dtype) -> None:
    """Turn elements that were written as the type `given` to the byte order of formats with one."""
    if given.order != ">" or given.unit == 1:
        return
    from ndtool.engine import copies

    for at in range(start, stop, CHUNK):  # a multiple of every unit
        piece = bytearray(read_at(fd, at, min(CHUNK, stop - at)))
        if len(piece) < min(CHUNK, stop - at):
            raise OutputError(f"{printable(name)}: the file became shorter")
        copies.swap(memoryview(piece), given.unit)
        write_at(fd, at, piece)


class FileSink:
    """A file that replaces the old one when it is published."""

    streamed = False
    at_once = 1

    def __init__(self, target: Target, facts: Facts, frame: Frame) -> None:
        self.name, self.facts, self.kept = target.path, facts, frame.kept
        self._frame = frame
        self._view: memoryview | None = None
        try:
            clobber = target.clobber or frame.clobbers
            self._file = target.new_file(clobber, frame.keeps)
            try:
                reserve(self._file.descriptor, frame.total, self.name)
                frame.begin(self._file.descriptor)
            except BaseException:
                self._file.drop()
                raise
        except NdtoolError:
            raise
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None

    def map(self) -> memoryview | None:
        """Return all of the data as bytes of the file; None on a file system without such maps."""
        if self._view is None:
            fd, start = self._file.descriptor, self._frame.start
            try:
                self._view = map_bytes(fd, start, self.facts.nbytes, writable=True)
            except OSError as exc:
                if exc.errno not in UNMAPPABLE:
                    raise failure(exc, self.name, OutputError) from None
        return self._view

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of the data from `start` on, in any order and from any thread."""
        if start < 0 or start + len(view) > self.facts.nbytes:
            raise ValueError(f"{len(view)} bytes at {start} are not within {self.facts.nbytes}")
        try:
            write_at(self._file.descriptor, self._frame.start + start, view)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None

    def shared(self) -> Shared | None:
        """Return how other processes write to it, None where they cannot."""
        if not isinstance(self._file, NewFile):
            return None
        return Shared(self.name, self.facts, self._file.shared(), "", self._frame.start)

    def let_go(self, start: int, nbytes: int) -> None:
        """Have the system write bytes of the data now, and let it have their memory."""
        let_go(self._file.descriptor, self._frame.start + start, nbytes)

    def finish(self) -> Pending:
        self._unmap()
        try:
            self._frame.finish(self._file.descriptor, self.name)
            self._file.sync()
            self._frame.recheck()
        except NdtoolError:
            raise
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        return self._file

    def abort(self) -> None:
        self._unmap()
        self._file.drop()
        self._frame.close()

    def _unmap(self) -> None:
        if self._view is not None:
            release(self._view)
            self._view = None


def standard_output(facts: Facts, header: bytes) -> StreamSink:
    """Return the sink that `-` names."""
    try:
        there = not is_closed(os.fstat(1))
    except OSError:
        there = False
    if not there:
        raise OutputError("standard output: it is closed")
    return StreamSink(1, "standard output", facts, header, owned=False)
