"""The bytes around the member of a .npz archive that is written, and those that it keeps."""

import struct
from itertools import pairwise
from typing import NamedTuple

from ndtool.arrays import ziparchive
from ndtool.arrays.storage import Read
from ndtool.errors import InputError, UsageError, printable

_BIG = 0xFFFFFFFF
_WIDE = _BIG - (1 << 18)  # from here on sizes and offsets take 64 bits
_MANY = 0xFFFF  # from here on the count of members does
_ALIGNMENT = 64
_PADDING = 0xD935  # an extra field for alignment, as Android's archives have it
_UTF8 = 0x0800
_DATE = 0x21  # 1980-01-01: the same array gives the same archive
_REGULAR = 0o100644 << 16
_LOCAL = 30  # bytes of a local header before its name
_FIXED = 46  # bytes of a directory entry before its name
_OFFSET = 42  # where the entry has the local header's offset


class Kept(NamedTuple):
    """What stays of an archive when a member is added to it or replaced.

    names: the members, in the directory's order. replaced: whether there was one of the new
    name. pieces: (start, stop, to) of bytes of the old file. filler: what stands before them. at:
    where the new member begins. entries: the directory's, as they must be now. prefix: bytes that
    offsets do not count.
    """

    names: tuple[str, ...] = ()
    replaced: bool = False
    pieces: tuple[tuple[int, int, int], ...] = ()
    filler: bytes = b""
    at: int = 0
    entries: bytes = b""
    prefix: int = 0
    comment: bytes = b""


NOTHING = Kept()


def member_name(name: str) -> bytes:
    """Return the name as the archive stores it, `.npy` at its end.

    One that is no text would make NumPy refuse the archive, the members that stay included.
    """
    try:
        raw = (name.removesuffix(".npy") + ".npy").encode("utf-8", "surrogateescape")
        raw.decode()
    except UnicodeError:
        raise UsageError(f"the member's name {printable(name, 40)} is not UTF-8") from None
    if b"\0" in raw:
        raise UsageError(f"the member's name {printable(name, 40)} has a NUL: no name may")
    if len(raw) > 0xFF00:
        raise UsageError(f"the member's name {printable(name, 40)} is too long: valid 65276 bytes")
    return raw


def head(name: bytes, size: int, crc: int, at: int = 0) -> bytes:
    """Return the local header at `at`, padded so that the member starts at a multiple of 64."""
    extra = struct.pack("<2H2Q", 1, 16, size, size) if size >= _WIDE else b""
    gap = -(at + _LOCAL + len(name) + len(extra) + 6) % _ALIGNMENT
    extra += struct.pack("<3H", _PADDING, 2 + gap, _ALIGNMENT) + bytes(gap)
    wide = size >= _WIDE
    return b"PK\3\4" + _common(name, size, crc, len(extra), wide) + name + extra


def tail(name: bytes, size: int, crc: int, kept: Kept = NOTHING) -> bytes:
    """Return the directory and the end record, which follow the member."""
    start = kept.at + len(head(name, size, crc, kept.at)) + size
    entries = kept.entries + _entry(name, size, crc, kept.at - kept.prefix)
    count, length, offset = len(kept.names) + 1, len(entries), start - kept.prefix
    end = b""
    if offset >= _WIDE or count >= _MANY:
        after = offset + length
        end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, offset)
        end += struct.pack("<4sLQL", b"PK\6\7", 0, after, 1)
    few, near = min(count, _MANY), _BIG if offset >= _WIDE else offset
    end += struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, few, few, length, near, len(kept.comment))
    return entries + end + kept.comment


def _entry(name: bytes, size: int, crc: int, header: int) -> bytes:
    numbers = (size, size) * (size >= _WIDE) + (header,) * (header >= _WIDE)
    extra = struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""
    entry = b"PK\1\2" + struct.pack("<H", 3 << 8 | 45)
    entry += _common(name, size, crc, len(extra), bool(numbers))
    header = _BIG if header >= _WIDE else header
    return entry + struct.pack("<3H2L", 0, 0, 0, _REGULAR, header) + name + extra


def _common(name: bytes, size: int, crc: int, extra: int, wide: bool) -> bytes:
    """Return the fields that the local header and the directory share."""
    flags = 0 if name.isascii() else _UTF8
    size = _BIG if size >= _WIDE else size
    version = 45 if wide else 20
    return struct.pack("<5H3L2H", version, flags, 0, 0, _DATE, crc, size, size, len(name), extra)


def keep(read: Read, size: int, path: str, name: str) -> Kept:
    """Return what stays of the archive `path` of `size` bytes when its member `name` is written.

    Whatever else is in it stays, byte for byte: only offsets change, by multiples of 64, so that
    aligned members stay so. The new one begins at such a multiple too, or every replacement would
    leave a gap. Raises InputError where it is damaged.
    """
    if not ziparchive.is_archive(read, size):
        raise InputError(f"{printable(path)} is no archive: expected one, or no such file")
    found = ziparchive.directory(read, size, path)
    short = name.removesuffix(".npy")
    kept = [member for member in found.members if member.name != short]
    pieces, moves = _places(found, _bounds(read, found, path), {m.header for m in kept})
    entries = [_moved(found, member, moves[member.header]) for member in kept]
    length = sum(map(len, entries)) + _FIXED + len(member_name(name)) + 28
    if length > ziparchive.LONGEST:
        raise InputError(
            f"{printable(path)}: a directory of {length} bytes: valid up to {ziparchive.LONGEST}"
        )
    start, stop, to = pieces[-1] if pieces else (0, 0, 0)
    end = to + stop - start
    return Kept(
        tuple(member.name for member in kept),
        len(kept) < len(found.members),
        tuple(pieces),
        _filler(pieces[0][2]) if pieces else b"",
        end + -end % _ALIGNMENT,
        b"".join(entries),
        found.prefix,
        found.comment,
    )


def _bounds(read: Read, found: ziparchive.Directory, path: str) -> list[int]:
    """Return where members begin, and at the end where the directory does.

    InputError where one reaches into the next: to drop one of them would spoil the other.
    """
    bounds = [*sorted({member.header for member in found.members}), found.start]
    following = dict(pairwise(bounds))
    for member in found.members:
        raw = read(member.header, _LOCAL)
        after = following[member.header]
        if raw[:4] != b"PK\3\4" or len(raw) < _LOCAL or after <= member.header:
            raise InputError(
                f"{printable(path)}: no member starts at byte {member.header}, where the"
                " directory says so"
            )
        stop = member.header + _LOCAL + sum(struct.unpack_from("<2H", raw, 26)) + member.packed
        if stop > after:
            raise InputError(
                f"{printable(path)}: {printable(member.name)} ends at byte {stop}, after what"
                f" follows it at {after}"
            )
    return bounds


def _places(
    found: ziparchive.Directory, bounds: list[int], kept: set[int]
) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
    """Return the pieces of the file that stay, and by how much each member comes forward."""
    pieces = [(0, bounds[0], 0)] if bounds[0] else []
    moves: dict[int, int] = {}
    by = 0
    for start, stop in pairwise(bounds):
        if start not in kept:
            by += (stop - start) // _ALIGNMENT * _ALIGNMENT
            continue
        moves[start] = by
        if pieces and pieces[-1][1] == start:
            start, _, to = pieces.pop()
        else:
            if not pieces and 0 < start - by < _LOCAL:  # no room for a filler
                by -= _ALIGNMENT
                moves[start] = by
            to = start - by
        pieces.append((start, stop, to))
    return pieces, moves


def _filler(length: int) -> bytes:
    """Return a local header of a member without name or bytes, which no directory has.

    A file that does not begin with a local header is no archive to NumPy.
    """
    if not length:
        return b""
    common = _common(b"", 0, 0, length - _LOCAL, False)
    return b"PK\3\4" + common + bytes(length - _LOCAL)


def _moved(found: ziparchive.Directory, member: ziparchive.Member, by: int) -> bytes:
    """Return the directory's entry of a member that comes forward."""
    at = member.entry
    lengths = struct.unpack_from("<3H", found.raw, at + 28)
    names = at + _FIXED + lengths[0]
    entry = found.raw[at : at + _FIXED + sum(lengths)]
    if not by:
        return entry
    packed, size = struct.unpack_from("<2L", entry, 20)
    where, form = _OFFSET, "<L"
    if struct.unpack_from("<L", entry, _OFFSET)[0] == _BIG:
        wide = ziparchive.wide_places(found.raw, names, names + lengths[1])
        before = (packed == _BIG) + (size == _BIG)
        if before < len(wide):
            where, form = wide[before] - at, "<Q"
    header = struct.pack(form, member.header - found.prefix - by)
    return entry[:where] + header + entry[where + len(header) :]
