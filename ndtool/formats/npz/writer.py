"""Write a member to a .npz archive: the ZIP headers, and the preserved members."""

import struct
from itertools import pairwise
from typing import NamedTuple
from zipfile import ZipInfo

from ndtool.errors import InputError, UsageError, printable, refuse
from ndtool.formats.npz import archive
from ndtool.formats.npz.archive import Archive
from ndtool.storage.local import File

_UINT32_MAX = 0xFFFFFFFF
_ZIP64_THRESHOLD = _UINT32_MAX  # sizes and offsets from this on are in ZIP64 fields
_UINT16_MAX = 0xFFFF  # member counts from this on are in the ZIP64 end record
_ALIGNMENT = 64
_PADDING_ID = 0xD935  # of the extra field by which Android's zipalign aligns data
_UTF8 = 0x0800
_REGULAR_FILE_MODE = 0o100644 << 16
_LOCAL_HEADER_SIZE = 30  # of a local file header, without name and extra fields
_ENTRY_SIZE = 46  # of a central directory entry, without name, extra fields and comment


class PreservedMembers(NamedTuple):
    """The preserved members of an archive to which a member is written.

    names: in central directory order. replaced: whether the written member replaces one. ranges:
    (start, stop, offset in the new file) of preserved byte ranges. offset: of the written member.
    entries: the updated central directory entries, whose offsets count from the start of the file.
    """

    names: tuple[str, ...] = ()
    replaced: bool = False
    ranges: tuple[tuple[int, int, int], ...] = ()
    offset: int = 0
    entries: bytes = b""
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


def _new_info(name: bytes, size: int, crc: int, offset: int) -> ZipInfo:
    """Return the metadata of a written member; equal arrays give equal archives."""
    info = ZipInfo(name.decode())
    info.create_system, info.create_version = 3, 45  # Unix
    info.extract_version = 45 if size >= _ZIP64_THRESHOLD or offset >= _ZIP64_THRESHOLD else 20
    info.flag_bits = 0 if name.isascii() else _UTF8
    info.CRC, info.file_size, info.compress_size, info.header_offset = crc, size, size, offset
    info.external_attr = _REGULAR_FILE_MODE
    return info


def local_header(name: bytes, size: int, crc: int, offset: int = 0) -> bytes:
    """Return a local file header at an offset, padded so that the data are aligned to 64 bytes."""
    info = _new_info(name, size, crc, 0)
    zip64 = struct.pack("<2H2Q", 1, 16, size, size) if size >= _ZIP64_THRESHOLD else b""
    padding = -(offset + _LOCAL_HEADER_SIZE + len(name) + len(zip64) + 6) % _ALIGNMENT
    extra = zip64 + struct.pack("<3H", _PADDING_ID, 2 + padding, _ALIGNMENT) + bytes(padding)
    return b"PK\3\4" + _common_fields(info, len(name), len(extra)) + name + extra


def central_directory(
    name: bytes, size: int, crc: int, preserved: PreservedMembers = NO_MEMBERS
) -> bytes:
    """Return the central directory and the end records, which follow the written member."""
    offset = preserved.offset + len(local_header(name, size, crc, preserved.offset)) + size
    entries = preserved.entries + _entry(
        _new_info(name, size, crc, preserved.offset), preserved.offset
    )
    count, length = len(preserved.names) + 1, len(entries)
    end_record = b""
    if offset >= _ZIP64_THRESHOLD or count >= _UINT16_MAX:
        end_record = struct.pack(
            "<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, offset
        )
        end_record += struct.pack("<4sLQL", b"PK\6\7", 0, offset + length, 1)
    count, offset = min(count, _UINT16_MAX), _saturate(offset)
    comment = preserved.comment
    end_record += struct.pack(
        "<4s4H2LH", b"PK\5\6", 0, 0, count, count, length, offset, len(comment)
    )
    return entries + end_record + comment


def _entry(info: ZipInfo, offset: int) -> bytes:
    """Return the central directory entry of a member, with the offset of its header."""
    values = (info.file_size, info.compress_size, offset)
    zip64 = [value for value in values if value >= _ZIP64_THRESHOLD]
    name, extra = archive.stored_name(info), archive.without_zip64(info.extra)
    if zip64:
        extra = struct.pack(f"<2H{len(zip64)}Q", 1, 8 * len(zip64), *zip64) + extra
    head = struct.pack("<4s2B", b"PK\1\2", info.create_version, info.create_system)
    head += _common_fields(info, len(name), len(extra))
    attributes = len(info.comment), 0, info.internal_attr, info.external_attr, _saturate(offset)
    return head + struct.pack("<3H2L", *attributes) + name + extra + info.comment


def _saturate(size: int) -> int:
    """Return a size or offset as stored in 32 bits, if its value is in a ZIP64 field."""
    return _UINT32_MAX if size >= _ZIP64_THRESHOLD else size


def _common_fields(info: ZipInfo, name_length: int, extra_length: int) -> bytes:
    """Return the fields common to local file headers and central directory entries."""
    year, month, day, hour, minute, second = info.date_time
    return struct.pack(
        "<2B4H3L2H", info.extract_version, info.reserved, info.flag_bits, info.compress_type,
        hour << 11 | minute << 5 | second // 2, (year - 1980) << 9 | month << 5 | day,
        info.CRC, _saturate(info.compress_size), _saturate(info.file_size),
        name_length, extra_length,
    )  # fmt: skip


def preserve(storage: File, path: str, name: str) -> PreservedMembers:
    """Return the preserved members of the archive `path` when its member `name` is written.

    Only a member whose stored name ends in .npy is replaced. The written member starts at a
    multiple of 64, so that replacing it again leaves no gap, and aligned members aligned. Raises
    InputError if the archive is damaged, or if readers could not distinguish the name from that of
    another member.
    """
    if not archive.is_archive(storage):
        raise InputError(f"{printable(path)} is not a ZIP archive: expected one, or a new path")
    opened = Archive(storage, path)
    stem = name.removesuffix(".npy")
    preserved = [
        info for info in opened.infos
        if archive.array_name(info) != stem or not info.orig_filename.endswith(".npy")
    ]  # fmt: skip
    names = tuple(map(archive.array_name, preserved))
    replaced = len(preserved) < len(opened.infos)
    if not replaced and stem in names:
        raise InputError(
            f"{printable(path)} has a member {printable(stem)} whose name does not end in .npy: it"
            f" is not replaced, and readers cannot tell {printable(stem)}.npy from it"
        )
    if not replaced and f"{stem}.npy" in names:
        raise InputError(
            f"{printable(path)} has a member {printable(stem)}.npy, stored as"
            f" {printable(stem)}.npy.npy: readers cannot tell {printable(stem)}, stored as"
            f" {printable(stem)}.npy, from it"
        )
    ranges, offsets = _layout(_bounds(opened), {info.header_offset for info in preserved})
    entries = b"".join(_entry(info, offsets[info.header_offset]) for info in preserved)
    length = len(entries) + _ENTRY_SIZE + len(member_name(name)) + 28
    if length > archive.MAX_DIRECTORY_BYTES:
        refuse(path, f"central directory of {length} bytes: at most {archive.MAX_DIRECTORY_BYTES}")
    start, stop, target = ranges[-1] if ranges else (0, 0, 0)
    end = target + stop - start
    offset = end + -end % _ALIGNMENT
    return PreservedMembers(names, replaced, tuple(ranges), offset, entries, opened.comment)


def _bounds(opened: Archive) -> list[int]:
    """Return the offsets of the members and of the directory; InputError if members overlap."""
    bounds = [*sorted({info.header_offset for info in opened.infos}), opened.start]
    next_bounds = dict(pairwise(bounds))
    path = printable(opened.name)
    for info in opened.infos:
        start, end = info.header_offset, next_bounds[info.header_offset]
        raw = opened.read(start, _LOCAL_HEADER_SIZE) if start >= 0 else b""
        if raw[:4] != b"PK\3\4" or len(raw) < _LOCAL_HEADER_SIZE or end <= start:
            raise InputError(
                f"{path}: expected a local file header at byte {start}, to which the central"
                " directory refers"
            )
        lengths = sum(struct.unpack_from("<2H", raw, 26))
        stop = start + _LOCAL_HEADER_SIZE + lengths + info.compress_size
        if stop > end:
            name = printable(archive.array_name(info))
            raise InputError(f"{path}: {name} ends at byte {stop}, beyond the next header at {end}")
    return bounds


def _layout(
    bounds: list[int], preserved_offsets: set[int]
) -> tuple[list[tuple[int, int, int]], dict[int, int]]:
    """Return the preserved byte ranges, and the new offset of each member by its offset."""
    ranges = [(0, bounds[0], 0)] if bounds[0] else []
    offsets, end = dict[int, int](), bounds[0]
    for start, stop in pairwise(bounds):
        if start not in preserved_offsets:
            continue
        ranges.append((start, stop, end))
        offsets[start], end = end, end + stop - start
    return ranges, offsets
