"""Inputs: arrays in .npy files, .npz archives and standard input, as read-only bytes."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from ndtool.arrays import npy
from ndtool.arrays.local import STREAM_HINT, InputFile, open_file, surplus
from ndtool.arrays.local import Source as Source
from ndtool.arrays.storage import CHUNK, Spool, failure, is_closed, reader
from ndtool.errors import InputError, NdtoolError, UsageError, printable

if TYPE_CHECKING:
    from ndtool.arrays.ziparchive import Member

LISTED = 10  # members that an error names


class Stream:
    """A descriptor from which consecutive arrays are read; `name` is the argument for it."""

    def __init__(self, fd: int, name: str) -> None:
        self._fd = fd
        self._name = name
        self._label = "standard input" if name == "-" else name
        self._count = 0
        try:
            self._status = os.fstat(fd)
            self._mode = 0 if is_closed(self._status) else self._status.st_mode
        except OSError:
            self._mode = 0

    def read(self) -> Source:
        """Return the next array, and leave what follows it where it is."""
        self._count += 1
        label = self._label + (f", array {self._count}" if self._count > 1 else "")
        if not self._mode:
            raise InputError(f"{printable(label)}: it is closed")
        if stat.S_ISCHR(self._mode) and os.isatty(self._fd):
            raise UsageError(f"{label}: it is a terminal, not an array", hint=STREAM_HINT)
        try:
            return self._from_file(label) if stat.S_ISREG(self._mode) else self._from_pipe(label)
        except NdtoolError:
            raise
        except OSError as exc:
            raise failure(exc, label) from None

    def _from_file(self, label: str) -> Source:
        file = InputFile(self._fd, None)
        start = os.lseek(self._fd, 0, os.SEEK_CUR)
        header = npy.read(reader(file.look, start), max(file.size - start, 0), label)
        position = start + header.offset
        buffer, mapped = file.read(position, header.nbytes, label)
        os.lseek(self._fd, position + header.nbytes, os.SEEK_SET)
        return Source(self._name, header, buffer, file=file, position=position, mapped=mapped)

    def _from_pipe(self, label: str) -> Source:
        header = npy.read(self._exactly, None, label)
        spool = Spool()
        buffer = memoryview(bytearray(min(header.nbytes, CHUNK)))
        left = header.nbytes
        while left:
            got = self._fill(buffer[:left])
            if not got:
                raise InputError(
                    f"{printable(label)}: expected {header.nbytes} bytes of data after the header,"
                    f" found {header.nbytes - left}"
                )
            spool.write(buffer[:got])
            left -= got
        return Source(self._name, header, spool.finish())

    def _exactly(self, count: int) -> bytes:
        view = memoryview(bytearray(count))
        at = 0
        while at < count and (got := self._fill(view[at:])):
            at += got
        return bytes(view[:at])

    def _fill(self, view: memoryview) -> int:
        while True:
            try:
                return os.readv(self._fd, [view])
            except BlockingIOError:  # whoever started us made it so
                import select

                select.select([self._fd], [], [])


class Stdin(Stream):
    """Standard input, and the pipes that a run reads; make it before opening files."""

    def __init__(self, fd: int = 0) -> None:
        super().__init__(fd, "-")
        self._pipes: dict[tuple[int, int], Stream] = {}

    def pipe(self, path: str) -> Stream | None:
        """Return the pipe at `path`, the same under all its names; None where there is none.

        As for cat, a FIFO is open when somebody writes to it.
        """
        try:
            status = os.stat(path)
        except (OSError, ValueError):
            return None  # to be told by who opens it
        if not stat.S_ISFIFO(status.st_mode):
            return None
        if self._mode and os.path.samestat(status, self._status):
            return self
        place = status.st_dev, status.st_ino
        if place not in self._pipes:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError as exc:
                raise failure(exc, path) from None
            self._pipes[place] = _Pipe(fd, path)
        return self._pipes[place]


class _Pipe(Stream):
    """A pipe that was opened here."""

    def __del__(self) -> None:
        os.close(self._fd)


def open_source(argument: str, stdin: Stdin) -> Source:
    """Open the array that `argument` names: a path, `archive.npz:member`, a pipe or `-`.

    Raises InputError for what is not an array, UsageError where a member must be named, and
    ResourceError for what is too large to be unpacked.
    """
    if argument == "-":
        return stdin.read()
    path, member = _split(argument)
    if stream := stdin.pipe(path):
        _no_members(argument, member)
        return stream.read()
    file = open_file(path)
    try:
        if _is_archive(file):
            return _from_archive(file, argument, path, member)
        return _from_npy(file, argument, member)
    except BaseException as exc:
        file.close()
        if isinstance(exc, OSError) and not isinstance(exc, NdtoolError):
            raise failure(exc, argument) from None
        raise


def _split(argument: str) -> tuple[str, str | None]:
    """Return the path and the member; the longest path that exists wins."""
    if ":" not in argument or os.path.lexists(argument):
        return argument, None
    at = len(argument)
    while (at := argument.rfind(":", 0, at)) > 0:
        if os.path.exists(argument[:at]):
            return argument[:at], argument[at + 1 :]
    path, separator, _ = argument.rpartition(".npz:")
    return (path + ".npz" if separator else argument), None


def _is_archive(file: InputFile) -> bool:
    if file.look(0, len(npy.MAGIC)) == npy.MAGIC:
        return False
    from ndtool.arrays import ziparchive

    return ziparchive.is_archive(file.look, file.size)


def _npy_header(file: InputFile, argument: str, member: str | None) -> npy.Header:
    header = npy.read(reader(file.look, 0), file.size, argument)
    _no_members(argument, member)
    return header


def _no_members(argument: str, member: str | None) -> None:
    if member is not None:
        raise InputError(f"{printable(argument)}: the file is one array: it has no members")


def _from_npy(file: InputFile, argument: str, member: str | None) -> Source:
    header = _npy_header(file, argument, member)
    buffer, mapped = file.read(header.offset, header.nbytes, argument)
    warning = surplus(argument, file.size - header.offset - header.nbytes)
    return Source(
        argument, header, buffer, file=file, position=header.offset, mapped=mapped, warning=warning
    )


def _from_archive(file: InputFile, argument: str, path: str, name: str | None) -> Source:
    from ndtool.arrays import ziparchive

    member = _choose(file, path, name)
    label = f"{path}:{member.name}"
    position, mapped = None, False
    if member.mappable:
        header, position = ziparchive.read_header(file.look, member, label)
        assert position is not None, "it is mappable"
        ziparchive.check(file.look, member, label)
        buffer, mapped = file.read(position, header.nbytes, label)
    else:
        header, buffer = ziparchive.inflate(file.look, member, label)
    warning = surplus(label, member.size - header.offset - header.nbytes)
    return Source(
        argument, header, buffer, file=file, position=position, mapped=mapped, warning=warning
    )


def _choose(file: InputFile, path: str, name: str | None) -> Member:
    from ndtool.arrays import ziparchive

    members = ziparchive.members(file.look, file.size, path)
    if not members:
        raise InputError(f"{printable(path)}: the archive has no arrays")
    if name is None and len(members) == 1:
        return members[0]
    if name is None:
        raise UsageError(
            f"{printable(path)}: the archive has {len(members)} members: name one of them",
            places=_listing(file, path, members),
            hint=f"for example {printable(path)}:{printable(members[0].name)}",
        )
    found = [m for m in members if name in (m.name, os.fsdecode(m.stored))]
    if len(found) != 1:
        reason = "is more than one member" if found else "is not a member of the archive"
        raise InputError(
            f"{printable(path)}: {printable(name)} {reason}: expected one of these",
            places=_listing(file, path, found or members),
        )
    return found[0]


def _listing(file: InputFile, path: str, members: list[Member]) -> tuple[str, ...]:
    """Return a line for each member, and for the rest how many they are."""
    lines = []
    for entry in _member_entries(file, path, members[:LISTED]):
        lines.append(f"{printable(entry.member or '', 80)}: {entry.label}")
    more = len(members) - LISTED
    return (*lines, f"and {more} more") if more > 0 else tuple(lines)


class Entry(NamedTuple):
    """What `inspect` tells about one array.

    name: the argument that opens it. header: None where it is no array. position: where its
    data are in the file, None where they cannot be mapped. problem: why not, else empty.
    """

    name: str
    member: str | None
    header: npy.Header | None
    position: int | None
    file_size: int
    problem: str
    warning: str | None

    @property
    def label(self) -> str:
        """Type and shape, or why there are none."""
        if self.header is None:
            return self.problem
        return f"{self.header.dtype.name}[{', '.join(map(str, self.header.shape))}]"


def describe(argument: str, stdin: Stdin | None = None) -> list[Entry]:
    """Return what the headers of a file, or of every member of an archive, say.

    The data are not read, so damage in them is not found; but those of a stream are. A member
    that is no array is an entry without a header; a file that is neither .npy nor .npz raises
    InputError.
    """
    path, name = _split(argument)
    stdin = stdin or Stdin()
    if argument == "-" or stdin.pipe(path):
        with open_source(argument, stdin) as source:
            header = npy.Header(
                source.dtype, source.shape, source.fortran, source.version, source.offset
            )
            return [Entry(argument, None, header, None, source.file_size, "a stream", None)]
    file = open_file(path)
    try:
        if not _is_archive(file):
            header = _npy_header(file, argument, name)
            warning = surplus(argument, file.size - header.offset - header.nbytes)
            return [Entry(path, None, header, header.offset, file.size, "", warning)]
        from ndtool.arrays import ziparchive

        if name is not None:
            return list(_member_entries(file, path, [_choose(file, path, name)]))
        members = ziparchive.members(file.look, file.size, path)
        return list(_member_entries(file, path, members))
    except OSError as exc:
        raise failure(exc, argument) from None
    finally:
        file.close()


def _member_entries(file: InputFile, path: str, members: list[Member]) -> Iterator[Entry]:
    from ndtool.arrays import ziparchive

    for member in members:
        label = f"{path}:{member.name}"
        try:
            header, position = ziparchive.read_header(file.look, member, label)
        except NdtoolError as exc:
            reason = exc.message.removeprefix(f"{printable(label)}: ")
            yield Entry(label, member.name, None, None, file.size, reason, None)
            continue
        warning = surplus(label, member.size - header.offset - header.nbytes)
        problem = "" if member.mappable else f"compressed with {ziparchive.METHODS[member.method]}"
        yield Entry(label, member.name, header, position, file.size, problem, warning)
