"""Write a member to a .npz archive: its headers, and the preserved members around it."""

import struct
from itertools import pairwise
from typing import NamedTuple

from ndtool.errors import InputError, UsageError, printable
from ndtool.formats.npz import directory
from ndtool.storage.descriptors import Read

_BIG = 0xFFFFFFFF
_WIDE = _BIG - (1 << 18)  # sizes and offsets from here on are in ZIP64 fields
_MANY = 0xFFFF  # so are member counts from here on
_ALIGNMENT = 64
_PADDING = 0xD935  # ID of the extra field with which Android's zipalign pads
_UTF8 = 0x0800
_DATE = 0x21  # 1980-01-01, so that equal arrays give equal archives
_REGULAR = 0o100644 << 16
_LOCAL = 30  # size of a local file header up to its name
_FIXED = 46  # size of a central directory entry up to its name
_OFFSET = 42  # position in an entry of the local file header's offset


class PreservedMembers(NamedTuple):
    """The preserved members of an archive to which a member is written.

    names: in central directory order. replaced: whether the new member replaces an old one. ranges:
    (start, stop, offset in the new file) of preserved byte ranges. filler: bytes before them. at:
    the offset of the new member. entries: the updated central directory entries. prefix: number of
    bytes before the archive, which its offsets do not count.
    """

    names: tuple[str, ...] = ()
    replaced: bool = False
    ranges: tuple[tuple[int, int, int], ...] = ()
    filler: bytes = b""
    at: int = 0
    entries: bytes = b""
    prefix: int = 0
    comment: bytes = b""


NOTHING = PreservedMembers()


def member_name(name: str) -> bytes:
    """Return a member's name as stored, ending in `.npy`; UsageError if it is invalid.

    NumPy could open no member of an archive with a name that is not UTF-8.
    """
    try:
        raw = (name.removesuffix(".npy") + ".npy").encode("utf-8", "surrogateescape")
        raw.decode()
    except UnicodeError:
        raise UsageError(f"the member's name {printable(name, 40)} is not UTF-8") from None
    if b"\0" in raw:
        raise UsageError(f"the member's name {printable(name, 40)} has a NUL byte")
    if len(raw) > 0xFF00:
        raise UsageError(f"the member's name {printable(name, 40)} is over 65276 bytes")
    return raw


def head(name: bytes, size: int, crc: int, at: int = 0) -> bytes:
    """Return the local file header for offset `at`, padded to align the data to 64 bytes."""
    extra = struct.pack("<2H2Q", 1, 16, size, size) if size >= _WIDE else b""
    gap = -(at + _LOCAL + len(name) + len(extra) + 6) % _ALIGNMENT
    extra += struct.pack("<3H", _PADDING, 2 + gap, _ALIGNMENT) + bytes(gap)
    wide = size >= _WIDE
    return b"PK\3\4" + _common(name, size, crc, len(extra), wide) + name + extra


def tail(name: bytes, size: int, crc: int, preserved: PreservedMembers = NOTHING) -> bytes:
    """Return the central directory and its end record, which follow the new member."""
    start = preserved.at + len(head(name, size, crc, preserved.at)) + size
    entries = preserved.entries + _entry(name, size, crc, preserved.at - preserved.prefix)
    count, length, offset = len(preserved.names) + 1, len(entries), start - preserved.prefix
    end = b""
    if offset >= _WIDE or count >= _MANY:
        after = offset + length
        end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, offset)
        end += struct.pack("<4sLQL", b"PK\6\7", 0, after, 1)
    count16, offset32 = min(count, _MANY), _BIG if offset >= _WIDE else offset
    end += struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, count16, count16, length, offset32, len(preserved.comment)
    )
    return entries + end + preserved.comment


def _entry(name: bytes, size: int, crc: int, header: int) -> bytes:
    numbers = (size, size) * (size >= _WIDE) + (header,) * (header >= _WIDE)
    extra = struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers) if numbers else b""
    entry = b"PK\1\2" + struct.pack("<H", 3 << 8 | 45)
    entry += _common(name, size, crc, len(extra), bool(numbers))
    header = _BIG if header >= _WIDE else header
    return entry + struct.pack("<3H2L", 0, 0, 0, _REGULAR, header) + name + extra


def _common(name: bytes, size: int, crc: int, extra: int, wide: bool) -> bytes:
    """Return the fields common to local file headers and central directory entries."""
    flags = 0 if name.isascii() else _UTF8
    size = _BIG if size >= _WIDE else size
    version = 45 if wide else 20
    return struct.pack("<5H3L2H", version, flags, 0, 0, _DATE, crc, size, size, len(name), extra)


def preserve(read: Read, size: int, path: str, name: str) -> PreservedMembers:
    """Return the preserved members of the archive `path` when its member `name` is written.

    Only a member whose name ends in .npy is replaced. The others keep their bytes, and move by
    multiples of 64, which preserves alignment. The new member starts at a multiple of 64, too, so
    that repeated replacement leaves no gaps. Raises InputError if the archive is damaged, or if
    readers could not tell the new name from an old one.
    """
    if not directory.is_archive(read, size):
        raise InputError(f"{printable(path)} is not a ZIP archive: expected one, or a new path")
    old = directory.directory(read, size, path)
    stem = name.removesuffix(".npy")
    preserved = [
        member for member in old.members
        if member.name != stem or not member.stored_name.endswith(b".npy")
    ]  # fmt: skip
    replaced = len(preserved) < len(old.members)
    if not replaced and any(member.name == stem for member in preserved):
        raise InputError(
            f"{printable(path)} has a member {printable(stem)} whose name does not end in .npy: it"
            f" is not replaced, and readers cannot tell {printable(stem)}.npy from it"
        )
    if not replaced and any(member.name == f"{stem}.npy" for member in preserved):
        raise InputError(
            f"{printable(path)} has a member {printable(stem)}.npy, stored as"
            f" {printable(stem)}.npy.npy: readers cannot tell {printable(stem)}, stored as"
            f" {printable(stem)}.npy, from it"
        )
    ranges, moves = _layout(old, _bounds(read, old, path), {m.header for m in preserved})
    entries = [_moved(old, member, moves[member.header]) for member in preserved]
    length = sum(map(len, entries)) + _FIXED + len(member_name(name)) + 28
    if length > directory.LONGEST:
        raise InputError(
            f"{printable(path)}: central directory of {length} bytes: at most {directory.LONGEST}"
        )
    start, stop, to = ranges[-1] if ranges else (0, 0, 0)
    end = to + stop - start
    return PreservedMembers(
        tuple(member.name for member in preserved),
        replaced,
        tuple(ranges),
        _filler(ranges[0][2]) if ranges else b"",
        end + -end % _ALIGNMENT,
        b"".join(entries),
        old.prefix,
        old.comment,
    )


def _bounds(read: Read, old: directory.Directory, path: str) -> list[int]:
    """Return the offsets of members and central directory; InputError if members overlap."""
    bounds = [*sorted({member.header for member in old.members}), old.start]
    following = dict(pairwise(bounds))
    for member in old.members:
        raw = read(member.header, _LOCAL)
        end = following[member.header]
        if raw[:4] != b"PK\3\4" or len(raw) < _LOCAL or end <= member.header:
            raise InputError(
                f"{printable(path)}: expected a local file header at byte {member.header}, to"
                " which the central directory refers"
            )
        stop = (
            member.header
            + _LOCAL
            + sum(struct.unpack_from("<2H", raw, 26))
            + member.compressed_size
        )
        if stop > end:
            raise InputError(
                f"{printable(path)}: {printable(member.name)} ends at byte {stop}, beyond the"
                f" next header at {end}"
            )
    return bounds


def _layout(
    old: directory.Directory, bounds: list[int], preserved: set[int]
) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
    """Return the preserved byte ranges, and how far each member moves toward the start."""
    ranges = [(0, bounds[0], 0)] if bounds[0] else []
    moves: dict[int, int] = {}
    shift = 0
    for start, stop in pairwise(bounds):
        if start not in preserved:
            shift += (stop - start) // _ALIGNMENT * _ALIGNMENT
            continue
        moves[start] = shift
        if ranges and ranges[-1][1] == start:
            start, _, to = ranges.pop()
        else:
            if not ranges and 0 < start - shift < _LOCAL:  # too small for the filler's header
                shift -= _ALIGNMENT
                moves[start] = shift
            to = start - shift
        ranges.append((start, stop, to))
    return ranges, moves


def _filler(length: int) -> bytes:
    """Return a local file header of `length` bytes to begin a file; no entry refers to it."""
    if not length:
        return b""
    common = _common(b"", 0, 0, length - _LOCAL, False)
    return b"PK\3\4" + common + bytes(length - _LOCAL)


def _moved(old: directory.Directory, member: directory.Member, shift: int) -> bytes:
    """Return the central directory entry of a member that moves `shift` bytes toward the start."""
    at = member.entry
    lengths = struct.unpack_from("<3H", old.raw, at + 28)
    extra_start = at + _FIXED + lengths[0]
    entry = old.raw[at : at + _FIXED + sum(lengths)]
    if not shift:
        return entry
    compressed_size, size = struct.unpack_from("<2L", entry, 20)
    position, form = _OFFSET, "<L"
    if struct.unpack_from("<L", entry, _OFFSET)[0] == _BIG:
        zip64_values = directory.zip64_offsets(old.raw, extra_start, extra_start + lengths[1])
        index = (compressed_size == _BIG) + (size == _BIG)
        if index < len(zip64_values):
            position, form = zip64_values[index] - at, "<Q"
    header = struct.pack(form, member.header - old.prefix - shift)
    return entry[:position] + header + entry[position + len(header) :]
