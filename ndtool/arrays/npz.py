"""The .npz format: a ZIP archive of .npy files, of which stored ones are mapped where they are."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

from ndtool.arrays import local, npy, ziparchive, zipwriter
from ndtool.arrays.local import LocalFile, Stretch
from ndtool.arrays.sink import FileSink, Frame
from ndtool.arrays.source import Entry, Facts, Flat, surplus
from ndtool.arrays.storage import CHUNK, copy_bytes, read_at, write_at
from ndtool.arrays.targets import Target, exists
from ndtool.arrays.ziparchive import Member
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, printable

LISTED = 10  # members that an error names
DEFAULT = "output"  # the member of an archive that is written without naming one


def recognises(place: LocalFile) -> bool:
    """Tell whether a file starts or ends as an archive does."""
    return ziparchive.is_archive(place.look, place.size)


def entries(place: LocalFile, path: str, member: str | None) -> list[Entry]:
    """Return what the headers of all members, or of one, say; one that is no array has no facts."""
    if member is not None:
        return list(_entries(place, path, [_choose(place, path, member)]))
    return list(_entries(place, path, ziparchive.members(place.look, place.size, path)))


def open_source(place: LocalFile, name: str, path: str, member: str | None) -> Flat:
    """Return one member, the only one where none is named; it closes the place."""
    chosen = _choose(place, path, member)
    label = f"{path}:{chosen.name}"
    if chosen.mappable:
        header, position = ziparchive.read_header(place.look, chosen, label)
        assert position is not None, "it is mappable"
        ziparchive.check(place.look, chosen, label)
        stretch = place.stretch(position, header.nbytes, label)
    else:
        header, buffer = ziparchive.inflate(place.look, chosen, label)
        stretch = Stretch(buffer)
    warning = surplus(label, chosen.size - header.offset - header.nbytes)
    return Flat(name, npy.facts_of(header), stretch, place, warning)


def _choose(place: LocalFile, path: str, name: str | None) -> Member:
    members = ziparchive.members(place.look, place.size, path)
    if not members:
        raise InputError(f"{printable(path)}: the archive has no arrays")
    if name is None and len(members) == 1:
        return members[0]
    if name is None:
        raise UsageError(
            f"{printable(path)}: the archive has {len(members)} members: name one of them",
            places=_listing(place, path, members),
            hint=f"for example {printable(path)}:{printable(members[0].name)}",
        )
    found = [m for m in members if name in (m.name, os.fsdecode(m.stored))]
    if len(found) != 1:
        reason = "is more than one member" if found else "is not a member of the archive"
        raise InputError(
            f"{printable(path)}: {printable(name)} {reason}: expected one of these",
            places=_listing(place, path, found or members),
        )
    return found[0]


def _listing(place: LocalFile, path: str, members: list[Member]) -> tuple[str, ...]:
    """Return a line for each member, and for the rest how many they are."""
    lines = []
    for entry in _entries(place, path, members[:LISTED]):
        lines.append(f"{printable(entry.member or '', 80)}: {entry.label}")
    more = len(members) - LISTED
    return (*lines, f"and {more} more") if more > 0 else tuple(lines)


def _entries(place: LocalFile, path: str, members: list[Member]) -> Iterator[Entry]:
    for member in members:
        label = f"{path}:{member.name}"
        try:
            header, position = ziparchive.read_header(place.look, member, label)
        except NdtoolError as exc:
            reason = exc.message.removeprefix(f"{printable(label)}: ")
            yield Entry(label, member.name, None, None, place.size, reason, None)
            continue
        warning = surplus(label, member.size - header.offset - header.nbytes)
        problem = "" if member.mappable else f"compressed with {ziparchive.METHODS[member.method]}"
        facts = npy.facts_of(header)
        yield Entry(label, member.name, facts, position, place.size, problem, warning)


def check(target: Target) -> tuple[str, ...] | None:
    """Raise what `create` would about the target alone; return the members that stay."""
    zipwriter.member_name(target.member or DEFAULT)
    archive = _old(target)
    if archive is None:
        return None
    archive.close()
    return archive.names


def create(target: Target, facts: Facts) -> FileSink:
    """Return a new archive of one member, or the old one with that member added or replaced."""
    name = zipwriter.member_name(target.member or DEFAULT)
    archive = _old(target)
    try:
        frame = MemberFrame(name, npy.encode(facts.dtype, facts.shape), facts.nbytes, archive)
        return FileSink(target, facts, frame)
    except BaseException:
        if archive is not None:
            archive.close()
        raise


def _old(target: Target) -> OldArchive | None:
    """Return the archive of which other members stay; OutputError if what is there must."""
    if target.member is None or target.only:
        target.require_replaceable()
        return None
    archive = OldArchive(target.path, target.old, target.member)
    if archive.replaces and not target.clobber:
        archive.close()
        raise exists(f"{target.path}:{target.member}")
    return archive


class MemberFrame(Frame):
    """What an archive has around the member that is written."""

    def __init__(self, name: bytes, header: bytes, nbytes: int, archive: OldArchive | None) -> None:
        self._name, self._archive = name, archive
        self._kept = zipwriter.NOTHING if archive is None else archive.kept
        self._size = len(header) + nbytes
        self._member = self._kept.at + len(self._head(0))
        super().__init__(header, nbytes, self._member)
        self.total += len(self._tail(0))
        self.kept = None if archive is None else archive.names
        # what others may have made meanwhile is looked at before the archive takes its name
        self.clobbers = self.kept is not None

    def begin(self, fd: int) -> None:
        if self._archive is not None:
            self._archive.copy(fd)
        super().begin(fd)

    def finish(self, fd: int, name: str) -> None:
        crc = self._crc(fd, name)
        write_at(fd, self._kept.at, self._head(crc))
        write_at(fd, self._member + self._size, self._tail(crc))

    def recheck(self) -> None:
        if self._archive is not None:
            self._archive.recheck()

    def close(self) -> None:
        if self._archive is not None:
            self._archive.close()

    def _head(self, crc: int) -> bytes:
        return zipwriter.head(self._name, self._size, crc, self._kept.at)

    def _tail(self, crc: int) -> bytes:
        return zipwriter.tail(self._name, self._size, crc, self._kept)

    def _crc(self, fd: int, name: str) -> int:
        """Return the CRC of the member, from the file: its bytes may come in any order."""
        crc, at, end = 0, self._member, self._member + self._size
        while at < end:
            piece = read_at(fd, at, min(CHUNK, end - at))
            if not piece:
                raise OutputError(f"{printable(name)}: the file became shorter")
            crc = zlib.crc32(piece, crc)
            at += len(piece)
        return crc


class OldArchive:
    """The archive to which a member is written, open until what stays of it is published anew.

    Where there is none yet, one that others make meanwhile is not replaced either.
    """

    def __init__(self, path: str, old: os.stat_result | None, member: str) -> None:
        self._path = path
        self._file: LocalFile | None = None
        self.kept = zipwriter.NOTHING
        if old is None:
            return
        try:
            self._file = local.open_file(path)
            self.kept = zipwriter.keep(self._file.look, self._file.size, path, member)
        except BaseException as exc:
            self.close()
            if isinstance(exc, InputError):
                hint = "--only replaces it by an archive of the new member alone"
                raise OutputError(exc.message, hint=hint) from None
            raise

    @property
    def names(self) -> tuple[str, ...] | None:
        """The members that stay; None where there is no archive yet."""
        return None if self._file is None else self.kept.names

    @property
    def replaces(self) -> bool:
        """Whether a member goes for the new one."""
        return self.kept.replaced

    def copy(self, fd: int) -> None:
        """Copy what stays to where it will be."""
        if self._file is None:
            return
        write_at(fd, 0, self.kept.filler)
        for start, stop, to in self.kept.pieces:
            if copy_bytes(self._file.fd, start, stop - start, fd, to) < stop - start:
                raise OutputError(f"{printable(self._path)} changed during the run")

    def recheck(self) -> None:
        """Raise OutputError if others have written to the archive, which would be lost."""
        change = ""
        if self._file is not None:
            change = self._file.change()
        elif os.path.lexists(self._path):
            change = "was made by others during the run"
        if change:
            raise OutputError(f"{printable(self._path)} {change}")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
