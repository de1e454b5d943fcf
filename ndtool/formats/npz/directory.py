"""The central directory of a .npz archive: member offsets and sizes, validated before use."""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from ndtool.errors import InputError, ResourceError, printable
from ndtool.formats import npy
from ndtool.formats.decoding import inflate_limit
from ndtool.storage.descriptors import BLOCK_SIZE, Read, sequential_reader
from ndtool.storage.tempfiles import Spool

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14
METHODS = {STORED: "stored", DEFLATED: "deflate", BZIP2: "bzip2", LZMA: "lzma"}
MAX_DIRECTORY_BYTES = 16 << 20  # maximum size of a central directory: some 200,000 entries
_MAX_CACHED = 64
_header_cache: dict[bytes, npy.Header] = {}  # .npy headers by their bytes
_MAX_RATIO = 1032  # maximum ratio of deflate: 258 bytes from 2 bits

_END_RECORD = struct.Struct("<4s4H2LH")
_ZIP64_END_RECORD = struct.Struct("<4sQ2H2L4Q")
_ZIP64_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL_ENTRY = struct.Struct("<4s6H3L5H2L")
_LOCAL_HEADER = struct.Struct("<4s5H3L2H")
_UINT64 = struct.Struct("<Q")
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 0x0001, 0x0008, 0x0800
_UINT32_MAX = 0xFFFFFFFF


class Member(NamedTuple):
    """A member according to the central directory.

    name: without `.npy`. stored_name: the name in the archive. header_offset: of the local file
    header. data_limit: the offset of the central directory, which the data must precede. size: the
    decompressed size. entry_offset: of its entry, relative to the central directory.
    """

    name: str
    stored_name: bytes
    header_offset: int
    data_limit: int
    method: int
    flags: int
    compressed_size: int
    size: int
    crc: int
    entry_offset: int

    @property
    def is_mappable(self) -> bool:
        """Whether the data can be memory-mapped: uncompressed and unencrypted."""
        return self.method == STORED and not self.flags & _ENCRYPTED


class Directory(NamedTuple):
    """A parsed central directory.

    start: its offset in the file. raw: its bytes. prefix_size: number of bytes before the archive,
    which the stored offsets do not count. members: in its order; names may be duplicates.
    """

    start: int
    raw: bytes
    prefix_size: int
    comment: bytes
    members: list[Member]


def is_archive(read: Read, size: int) -> bool:
    """Whether a file starts or ends as a ZIP archive does."""
    return read(0, 4) in (b"PK\3\4", b"PK\5\6") or _end_record(read, size) is not None


def members(read: Read, size: int, name: str) -> list[Member]:
    """Return the members of an archive in central directory order.

    size: of the file. name: of the file, for messages. Raises InputError if the central directory
    is inconsistent or has duplicate names.
    """
    archive_members = [
        member
        for member in read_directory(read, size, name).members
        if not member.stored_name.endswith(b"/")  # a folder
    ]
    names: set[str] = set()
    for member in archive_members:
        if member.name in names:
            _refuse(name, f"two members have the name {member.name!r}: expected one")
        names.add(member.name)
    return archive_members


def _refuse(name: str, text: str) -> NoReturn:
    raise InputError(f"{printable(name)}: {printable(text)}")


def _read_exactly(read: Read, start: int, count: int, name: str) -> bytes:
    raw = read(start, count)
    if len(raw) < count:
        _refuse(name, f"expected {count} bytes at offset {start}, found {len(raw)}")
    return raw


def _end_record(read: Read, size: int) -> int | None:
    """Return the offset of the end record, which only a comment may follow; None without one."""
    tail = read(max(size - _END_RECORD.size - 0xFFFF, 0), _END_RECORD.size + 0xFFFF)
    offset = len(tail)
    while (offset := tail.rfind(b"PK\5\6", 0, offset)) >= 0:
        comment_size = len(tail) - offset - _END_RECORD.size
        if comment_size >= 0 and _END_RECORD.unpack_from(tail, offset)[-1] == comment_size:
            return size - len(tail) + offset
    return None


def read_directory(read: Read, size: int, name: str) -> Directory:
    """Parse the central directory of an archive; InputError if it is inconsistent."""
    end = _end_record(read, size)
    if end is None:
        _refuse(name, "the archive is truncated: it has no end of central directory record")
    record = _read_exactly(read, end, size - end, name)
    _, disk, first_disk, disk_entries, count, length, offset, _ = _END_RECORD.unpack_from(record)
    comment = record[_END_RECORD.size :]
    if zip64 := _zip64_end(read, end, name):  # some writers add it where nothing requires it
        end, disk, first_disk, disk_entries, count, length, offset = zip64
    if disk or first_disk or disk_entries != count:
        _refuse(name, "the archive is split into volumes: expected a single file")
    start = end - length
    prefix = start - offset
    if start < 0 or prefix < 0:
        _refuse(name, f"the central directory, {length} bytes at {offset}, extends past {end}")
    if length > MAX_DIRECTORY_BYTES:
        _refuse(
            name, f"the central directory has {length} bytes: valid up to {MAX_DIRECTORY_BYTES}"
        )
    raw = _read_exactly(read, start, length, name)
    members = list(_iter_members(raw, start, prefix, name))
    if len(members) != count:
        _refuse(name, f"expected {count} entries in the central directory, found {len(members)}")
    return Directory(start, raw, prefix, comment, members)


def _zip64_end(read: Read, end: int, name: str) -> tuple[int, int, int, int, int, int, int] | None:
    locator = end - _ZIP64_LOCATOR.size
    raw = _read_exactly(read, locator, _ZIP64_LOCATOR.size, name) if locator >= 0 else b""
    if raw[:4] != b"PK\6\7":
        return None
    # If bytes precede the archive, its offset is wrong: the record directly precedes the locator.
    for offset in (_ZIP64_LOCATOR.unpack(raw)[2], locator - _ZIP64_END_RECORD.size):
        if 0 <= offset <= locator - _ZIP64_END_RECORD.size:
            record = _read_exactly(read, offset, _ZIP64_END_RECORD.size, name)
            fields = _ZIP64_END_RECORD.unpack(record)
            if fields[0] == b"PK\6\6":
                return (offset, *fields[4:])
    return None


def _iter_members(raw: bytes, start: int, prefix: int, name: str) -> Iterator[Member]:
    """Yield the members of a central directory at offset `start` of the file."""
    offset, unpack, entry_size = 0, _CENTRAL_ENTRY.unpack_from, _CENTRAL_ENTRY.size
    while offset < len(raw):
        if len(raw) - offset < entry_size or raw[offset : offset + 4] != b"PK\1\2":
            _refuse(name, f"the central directory is damaged at byte {start + offset}")
        (
            _, _, _, flags, method, _, _, crc, compressed, size,
            name_length, extra_length, comment_length, disk, _, _, header,
        ) = unpack(raw, offset)  # fmt: skip
        name_end = offset + entry_size + name_length
        extra_end = name_end + extra_length
        if extra_end + comment_length > len(raw):
            _refuse(name, f"the central directory is damaged at byte {start + offset}")
        stored_name = raw[offset + entry_size : name_end]
        if _UINT32_MAX in (compressed, size, header):
            zip64 = _zip64_values(raw, name_end, extra_end)
            size = zip64.pop(0) if size == _UINT32_MAX and zip64 else size
            compressed = zip64.pop(0) if compressed == _UINT32_MAX and zip64 else compressed
            header = zip64.pop(0) if header == _UINT32_MAX and zip64 else header
        if disk not in (0, 0xFFFF):
            _refuse(name, "the archive is split into volumes: expected a single file")
        encoding = "utf-8" if flags & _UTF8 or stored_name.isascii() else "cp437"
        stem = stored_name.decode(encoding, "surrogateescape").removesuffix(".npy")
        yield Member(
            stem, stored_name, header + prefix, start, method, flags, compressed, size, crc, offset
        )
        offset = extra_end + comment_length


def _zip64_values(raw: bytes, start: int, end: int) -> list[int]:
    return [_UINT64.unpack_from(raw, offset)[0] for offset in zip64_offsets(raw, start, end)]


def zip64_offsets(raw: bytes, offset: int, end: int) -> range:
    """Return the offsets of the 64-bit values in a ZIP64 extra field."""
    while offset + 4 <= end:
        kind, length = struct.unpack_from("<2H", raw, offset)
        if kind == 1:
            return range(offset + 4, min(offset + 4 + length, end) - 7, 8)
        offset += 4 + length
    return range(0)


def locate_data(read: Read, member: Member, label: str) -> int:
    """Validate a member's local file header and return the offset of its data."""
    raw = read(member.header_offset, _LOCAL_HEADER.size)
    if len(raw) < _LOCAL_HEADER.size or raw[:4] != b"PK\3\4":
        _refuse(label, f"expected a local file header at byte {member.header_offset}")
    fields = _LOCAL_HEADER.unpack(raw)
    flags, method, crc, compressed, size, name_length, extra_length = *fields[2:4], *fields[6:]
    name_start = member.header_offset + _LOCAL_HEADER.size
    name_and_extra = _read_exactly(read, name_start, name_length + extra_length, label)
    if name_and_extra[:name_length] != member.stored_name:
        _refuse(
            label,
            f"byte {member.header_offset} has another member: {name_and_extra[:name_length]!r}",
        )
    if flags & _ENCRYPTED or member.flags & _ENCRYPTED:
        _refuse(label, "the member is encrypted: expected an unencrypted one")
    if _UINT32_MAX in (size, compressed):
        zip64 = _zip64_values(name_and_extra, name_length, len(name_and_extra))
        size = zip64.pop(0) if size == _UINT32_MAX and zip64 else size
        compressed = zip64.pop(0) if compressed == _UINT32_MAX and zip64 else compressed
    # With a data descriptor, the local file header lacks the CRC and the sizes.
    sizes_agree = (crc, compressed, size) == (member.crc, member.compressed_size, member.size)
    if method != member.method or not (sizes_agree or flags & _DESCRIPTOR):
        _refuse(label, "its local file header and the central directory disagree")
    start: int = name_start + name_length + extra_length
    _check_sizes(start, member, label)
    return start


def _check_sizes(start: int, member: Member, label: str) -> None:
    """Raise InputError if a member's sizes contradict each other or its compression method."""
    if member.method not in METHODS:
        _refuse(label, f"compression method {member.method}: valid {', '.join(METHODS.values())}")
    if start + member.compressed_size > member.data_limit:
        available = max(member.data_limit - start, 0)
        _refuse(label, f"the member claims {member.compressed_size} bytes, only {available} remain")
    if member.method == STORED and member.size != member.compressed_size:
        _refuse(label, f"stored in {member.compressed_size} bytes, but its size is {member.size}")
    if member.method == DEFLATED and member.size > member.compressed_size * _MAX_RATIO:
        _refuse(label, f"{member.compressed_size} deflated bytes cannot expand to {member.size}")


def decompress(
    read: Read, start: int, member: Member, label: str, block_size: int = BLOCK_SIZE
) -> Iterator[bytes]:
    """Decompress a member and yield its bytes; InputError at the end if size or CRC is wrong."""
    crc = size = 0
    try:
        for block in _decompress_blocks(
            _read_compressed(read, start, member, block_size), member, label, block_size
        ):
            crc = zlib.crc32(block, crc)
            size += len(block)
            if size > member.size:
                _refuse(label, f"the member has more than the {member.size} bytes it claims")
            yield block
    except MemoryError:
        raise ResourceError(f"{printable(label)}: not enough memory to decompress it") from None
    if size != member.size:
        _refuse(label, f"expected {member.size} bytes, found {size}")
    if crc != member.crc:
        _refuse(label, f"the bytes have CRC {crc:08x}, expected {member.crc:08x}: damaged")


def _read_compressed(read: Read, start: int, member: Member, block_size: int) -> Iterator[bytes]:
    """Yield the compressed bytes of a member in blocks; the first of LZMA is its properties."""
    offset, stop = start, start + member.compressed_size
    while offset < stop:
        count = 9 if member.method == LZMA and offset == start else block_size
        block = read(offset, min(count, stop - offset))
        if not block:
            return
        yield block
        offset += len(block)


def _decompress_blocks(
    compressed: Iterator[bytes], member: Member, label: str, block_size: int
) -> Iterator[bytes]:
    if member.method == STORED:
        yield from compressed
        return
    decompressor, damage_errors = _make_decompressor(compressed, member, label)
    for block in compressed:
        while True:
            try:
                out = decompressor.decompress(block, block_size)
            except damage_errors as exc:
                _refuse(label, f"the compressed bytes are damaged: {exc}")
            if out:
                yield out
            if decompressor.eof:
                return
            block = getattr(decompressor, "unconsumed_tail", b"")
            if not block and len(out) < block_size:  # after a full buffer, more may be pending
                break


def _make_decompressor(compressed: Iterator[bytes], member: Member, label: str) -> tuple[Any, Any]:
    """Return a decompressor, and the exception types that it raises for damaged data."""
    if member.method == DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS), zlib.error
    try:
        if member.method == BZIP2:
            import bz2

            return bz2.BZ2Decompressor(), (OSError, EOFError)
        import lzma
    except ImportError:
        _refuse(label, f"this Python cannot decompress {METHODS[member.method]}")
    properties = next(compressed, b"")
    if len(properties) != 9 or properties[2:4] != b"\5\0" or properties[4] >= 9 * 5 * 5:
        _refuse(label, "the compressed bytes are damaged: no LZMA properties")
    pb_and_lp, lc = divmod(properties[4], 9)
    pb, lp = divmod(pb_and_lp, 5)
    # A dictionary larger than the member is never used.
    dict_size = max(min(int.from_bytes(properties[5:], "little"), member.size), 4096)
    lzma_filter = {"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": dict_size}
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[lzma_filter]), lzma.LZMAError
    except (lzma.LZMAError, ValueError) as exc:
        _refuse(label, f"the compressed bytes are damaged: {exc}")


def check_member(read: Read, member: Member, label: str) -> None:
    """Read and decompress a complete member; InputError if its size or CRC is wrong."""
    for _ in decompress(read, locate_data(read, member, label), member, label):
        pass


def read_header(read: Read, member: Member, label: str) -> tuple[npy.Header, int | None]:
    """Return the .npy header of a member, and the offset of its data, None if compressed.

    Reads only the beginning of the member.
    """
    start, size = locate_data(read, member, label), member.size
    if member.is_mappable:
        header = _parse_header(
            lambda offset, n: read(start + offset, min(n, size - offset)), size, label
        )
        return header, start + header.offset
    beginning = b""
    for block in decompress(read, start, member, label, 1 << 14):
        beginning += block
        if len(beginning) >= npy.MAX_HEADER_BYTES + 12:
            break
    return _parse_header(lambda offset, n: beginning[offset : offset + n], size, label), None


def _parse_header(read: Read, size: int, label: str) -> npy.Header:
    """Parse a member's .npy header, or return an equal one from the cache."""
    text = read(0, 10 + int.from_bytes(read(0, 10)[8:], "little"))
    header = _header_cache.get(text)
    if header is None or header.nbytes > size - header.offset:
        header = npy.read_header(sequential_reader(read, 0), size, label)
        if header.offset == len(text):
            if len(_header_cache) == _MAX_CACHED:
                _header_cache.clear()
            _header_cache[text] = header
    return header


def inflate(read: Read, member: Member, label: str) -> tuple[npy.Header, memoryview]:
    """Decompress a member; return its header and data. ResourceError if it exceeds the limit."""
    start = locate_data(read, member, label)  # first, as it reports a wrong size
    limit = inflate_limit()
    if member.size > limit:
        raise ResourceError(
            f"{printable(label)}: {member.size} bytes decompressed: valid up to {limit}",
            hint=f"NDTOOL_MAX_INFLATE={member.size} allows it; a stored member has no limit",
        )
    spool = Spool()
    for block in decompress(read, start, member, label):
        spool.write(block)
    raw = spool.finish()
    header = _parse_header(lambda offset, n: bytes(raw[offset : offset + n]), member.size, label)
    return header, raw[header.offset : header.offset + header.nbytes]
