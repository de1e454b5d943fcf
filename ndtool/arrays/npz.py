"""The .npz format: a ZIP archive of .npy files, of which stored ones are mapped where they are."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

from ndtool.arrays import npy, ziparchive, zipwriter
from ndtool.arrays.kept import OldFile
from ndtool.arrays.local import File, LocalFile, Ranges, Stretch, Tick
from ndtool.arrays.sink import FileSink, Frame
from ndtool.arrays.source import Entry, Facts, Flat, surplus
from ndtool.arrays.storage import CHUNK, read_at, write_at
from ndtool.arrays.targets import Target, exists
from ndtool.arrays.ziparchive import Member
from ndtool.arrays.zipwriter import Kept
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
        stretch = _checked(place, chosen, place.stretch(position, header.nbytes, label), label)
    else:
        header, buffer = ziparchive.inflate(place.look, chosen, label)
        stretch = Stretch(buffer)
    warning = surplus(label, chosen.size - header.offset - header.nbytes)
    return Flat(name, npy.facts_of(header), stretch, place, warning)


def _checked(place: LocalFile, member: Member, stretch: Stretch, label: str) -> Stretch:
    """Compare a stored member with its CRC: when all of it is there, if it must be brought."""
    bring = stretch.fetch
    if bring is None:
        ziparchive.check(place.look, member, label)
        return stretch

    def fetch(ranges: Ranges | None, tick: Tick | None) -> None:
        bring(ranges, tick)
        if ranges is None:
            ziparchive.check(place.look, member, label)

    return stretch._replace(fetch=fetch)


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
    archive, kept = _old(target)
    archive.close()
    return None if archive.file is None else kept.names


def create(target: Target, facts: Facts) -> FileSink:
    """Return a new archive of one member, or the old one with that member added or replaced."""
    name = zipwriter.member_name(target.member or DEFAULT)
    archive, kept = _old(target)
    try:
        header = npy.encode(facts.dtype, facts.shape)
        frame = MemberFrame(name, header, facts.nbytes, archive, kept)
        return FileSink(target, facts, frame)
    except BaseException:
        archive.close()
        raise


def _old(target: Target) -> tuple[OldFile, Kept]:
    """Return the archive of which other members stay; OutputError if what is there must."""

    def understand(file: File) -> Kept:
        assert target.member is not None, "or no others would stay"
        kept = zipwriter.keep(file.look, file.size, target.path, target.member)
        if kept.replaced and not target.clobber:
            raise exists(f"{target.path}:{target.member}")
        return kept

    archive = OldFile(target)
    return archive, archive.read(understand, zipwriter.NOTHING, "an archive of the new member")


class MemberFrame(Frame):
    """What an archive has around the member that is written."""

    def __init__(
        self, name: bytes, header: bytes, nbytes: int, archive: OldFile, kept: Kept
    ) -> None:
        self._name, self._archive, self._kept = name, archive, kept
        self._size = len(header) + nbytes
        self._member = self._kept.at + len(self._head(0))
        super().__init__(header, nbytes, self._member, archive, kept.names)
        self.total += len(self._tail(0))

    def begin(self, fd: int) -> None:
        if self._archive.file is not None:
            write_at(fd, 0, self._kept.filler)
            self._archive.copy(fd, self._kept.pieces)
        super().begin(fd)

    def finish(self, fd: int, name: str) -> None:
        crc = self._crc(fd, name)
        write_at(fd, self._kept.at, self._head(crc))
        write_at(fd, self._member + self._size, self._tail(crc))

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
