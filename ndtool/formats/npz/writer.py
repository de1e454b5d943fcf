"""Write a member to a .npz archive: the ZIP headers, and the preserved members."""

import struct
from itertools import pairwise
from typing import NamedTuple

from ndtool.errors import InputError, UsageError, printable
from ndtool.formats.npz import directory
from ndtool.storage.descriptors import Read

_UINT32_MAX = 0xFFFFFFFF
_ZIP64_THRESHOLD = _UINT32_MAX - (1 << 18)  # sizes and offsets from this on are in ZIP64 fields
_UINT16_MAX = 0xFFFF  # member counts from this on are in the ZIP64 end record
_ALIGNMENT = 64
_PADDING_ID = 0xD935  # of the extra field by which Android's zipalign aligns data
_UTF8 = 0x0800
_DOS_DATE = 0x21  # 1980-01-01, so that equal arrays give equal archives
_REGULAR_FILE_MODE = 0o100644 << 16
_LOCAL_HEADER_SIZE = 30  # of a local file header, without name and extra fields
_ENTRY_SIZE = 46  # of a central directory entry, without name, extra fields and comment
_HEADER_OFFSET_FIELD = 42  # position of the local file header's offset in an entry


class PreservedMembers(NamedTuple):
    """The preserved members of an archive to which a member is written.

    names: in central directory order. replaced: whether the written member replaces one. ranges:
    (start, stop, offset in the new file) of preserved byte ranges. filler: bytes before them.
    offset: of the written member. entries: the updated central directory entries. prefix_size:
    number of bytes before the archive, which the stored offsets do not count.
    """

    names: tuple[str, ...] = ()
    replaced: bool = False
    ranges: tuple[tuple[int, int, int], ...] = ()
    filler: bytes = b""
    offset: int = 0
    entries: bytes = b""
    prefix_size: int = 0
    comment: bytes = b""


NO_MEMBERS = PreservedMembers()


def member_name(name: str) -> bytes:
    """Encode a member's name, with the suffix `.npy`; UsageError if it is invalid.

    A name that is not UTF-8 is invalid: NumPy could open no member of such an archive.
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


def local_header(name: bytes, size: int, crc: int, offset: int = 0) -> bytes:
    """Return a local file header at an offset, padded so that the data are aligned to 64 bytes."""
    extra = struct.pack("<2H2Q", 1, 16, size, size) if size >= _ZIP64_THRESHOLD else b""
    padding = -(offset + _LOCAL_HEADER_SIZE + len(name) + len(extra) + 6) % _ALIGNMENT
    extra += struct.pack("<3H", _PADDING_ID, 2 + padding, _ALIGNMENT) + bytes(padding)
    is_zip64 = size >= _ZIP64_THRESHOLD
    return b"PK\3\4" + _common_fields(name, size, crc, len(extra), is_zip64) + name + extra


def central_directory(
    name: bytes, size: int, crc: int, preserved: PreservedMembers = NO_MEMBERS
) -> bytes:
    """Return the central directory and the end records, which follow the written member."""
    start = preserved.offset + len(local_header(name, size, crc, preserved.offset)) + size
    entries = preserved.entries + _entry(name, size, crc, preserved.offset - preserved.prefix_size)
    count, length, offset = len(preserved.names) + 1, len(entries), start - preserved.prefix_size
    end_record = b""
    if offset >= _ZIP64_THRESHOLD or count >= _UINT16_MAX:
        directory_end = offset + length
        end_record = struct.pack(
            "<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, offset
        )
        end_record += struct.pack("<4sLQL", b"PK\6\7", 0, directory_end, 1)
    count16, offset32 = (
        min(count, _UINT16_MAX),
        _UINT32_MAX if offset >= _ZIP64_THRESHOLD else offset,
    )
    end_record += struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, count16, count16, length, offset32, len(preserved.comment)
    )
    return entries + end_record + preserved.comment


def _entry(name: bytes, size: int, crc: int, header_offset: int) -> bytes:
    zip64_fields = (size, size) * (size >= _ZIP64_THRESHOLD) + (header_offset,) * (
        header_offset >= _ZIP64_THRESHOLD
    )
    extra = (
        struct.pack(f"<2H{len(zip64_fields)}Q", 1, 8 * len(zip64_fields), *zip64_fields)
        if zip64_fields
        else b""
    )
    entry = b"PK\1\2" + struct.pack("<H", 3 << 8 | 45)
    entry += _common_fields(name, size, crc, len(extra), bool(zip64_fields))
    header_offset = _UINT32_MAX if header_offset >= _ZIP64_THRESHOLD else header_offset
    return entry + struct.pack("<3H2L", 0, 0, 0, _REGULAR_FILE_MODE, header_offset) + name + extra


def _common_fields(name: bytes, size: int, crc: int, extra_length: int, is_zip64: bool) -> bytes:
    """Return the fields common to local file headers and central directory entries."""
    flags = 0 if name.isascii() else _UTF8
    size = _UINT32_MAX if size >= _ZIP64_THRESHOLD else size
    version = 45 if is_zip64 else 20
    return struct.pack(
        "<5H3L2H", version, flags, 0, 0, _DOS_DATE, crc, size, size, len(name), extra_length
    )


def preserve(read: Read, size: int, path: str, name: str) -> PreservedMembers:
    """Return the preserved members of the archive `path` when its member `name` is written.

    Only a member whose stored name ends in .npy is replaced. The offsets of the other members
    decrease by multiples of 64, which preserves alignment. The written member starts at a multiple
    of 64, too, so that repeated replacement leaves no gaps. Raises InputError if the archive is
    damaged, or if readers could not distinguish the name from that of another member.
    """
    if not directory.is_archive(read, size):
        raise InputError(f"{printable(path)} is not a ZIP archive: expected one, or a new path")
    archive = directory.read_directory(read, size, path)
    stem = name.removesuffix(".npy")
    preserved = [
        member for member in archive.members
        if member.name != stem or not member.stored_name.endswith(b".npy")
    ]  # fmt: skip
    replaced = len(preserved) < len(archive.members)
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
    ranges, shifts = _layout(
        archive, _bounds(read, archive, path), {m.header_offset for m in preserved}
    )
    entries = [_shift_entry(archive, member, shifts[member.header_offset]) for member in preserved]
    length = sum(map(len, entries)) + _ENTRY_SIZE + len(member_name(name)) + 28
    if length > directory.MAX_DIRECTORY_BYTES:
        raise InputError(
            f"{printable(path)}: central directory of {length} bytes: at most"
            f" {directory.MAX_DIRECTORY_BYTES}"
        )
    start, stop, destination = ranges[-1] if ranges else (0, 0, 0)
    end = destination + stop - start
    return PreservedMembers(
        tuple(member.name for member in preserved),
        replaced,
        tuple(ranges),
        _filler_header(ranges[0][2]) if ranges else b"",
        end + -end % _ALIGNMENT,
        b"".join(entries),
        archive.prefix_size,
        archive.comment,
    )


def _bounds(read: Read, archive: directory.Directory, path: str) -> list[int]:
    """Return the offsets of the members and of the directory; InputError if members overlap."""
    bounds = [*sorted({member.header_offset for member in archive.members}), archive.start]
    next_bounds = dict(pairwise(bounds))
    for member in archive.members:
        raw = read(member.header_offset, _LOCAL_HEADER_SIZE)
        end = next_bounds[member.header_offset]
        if raw[:4] != b"PK\3\4" or len(raw) < _LOCAL_HEADER_SIZE or end <= member.header_offset:
            raise InputError(
                f"{printable(path)}: expected a local file header at byte {member.header_offset},"
                " to which the central directory refers"
            )
        stop = (
            member.header_offset
            + _LOCAL_HEADER_SIZE
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
    archive: directory.Directory, bounds: list[int], preserved_offsets: set[int]
) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
    """Return the preserved byte ranges, and by how much each member's offset decreases."""
    ranges = [(0, bounds[0], 0)] if bounds[0] else []
    shifts: dict[int, int] = {}
    shift = 0
    for start, stop in pairwise(bounds):
        if start not in preserved_offsets:
            shift += (stop - start) // _ALIGNMENT * _ALIGNMENT
            continue
        shifts[start] = shift
        if ranges and ranges[-1][1] == start:
            start, _, destination = ranges.pop()
        else:
            # A gap at the start is filled by a local file header, which has a minimum size.
            if not ranges and 0 < start - shift < _LOCAL_HEADER_SIZE:
                shift -= _ALIGNMENT
                shifts[start] = shift
            destination = start - shift
        ranges.append((start, stop, destination))
    return ranges, shifts


def _filler_header(length: int) -> bytes:
    """Return an unreferenced local file header of `length` bytes, which fills a file's start."""
    if not length:
        return b""
    common = _common_fields(b"", 0, 0, length - _LOCAL_HEADER_SIZE, False)
    return b"PK\3\4" + common + bytes(length - _LOCAL_HEADER_SIZE)


def _shift_entry(archive: directory.Directory, member: directory.Member, shift: int) -> bytes:
    """Return a member's central directory entry with its header offset decreased by `shift`."""
    entry_offset = member.entry_offset
    lengths = struct.unpack_from("<3H", archive.raw, entry_offset + 28)
    extra_start = entry_offset + _ENTRY_SIZE + lengths[0]
    entry = archive.raw[entry_offset : entry_offset + _ENTRY_SIZE + sum(lengths)]
    if not shift:
        return entry
    compressed_size, size = struct.unpack_from("<2L", entry, 20)
    position, struct_format = _HEADER_OFFSET_FIELD, "<L"
    if struct.unpack_from("<L", entry, _HEADER_OFFSET_FIELD)[0] == _UINT32_MAX:
        zip64_values = directory.zip64_offsets(archive.raw, extra_start, extra_start + lengths[1])
        index = (compressed_size == _UINT32_MAX) + (size == _UINT32_MAX)
        if index < len(zip64_values):
            position, struct_format = zip64_values[index] - entry_offset, "<Q"
    header = struct.pack(struct_format, member.header_offset - archive.prefix_size - shift)
    return entry[:position] + header + entry[position + len(header) :]
