"""The central directory of a .npz archive: member offsets and sizes, validated before use."""

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from ndtool.errors import InputError, ResourceError, UsageError, printable
from ndtool.formats import npy
from ndtool.storage.descriptors import BLOCK_SIZE, Read, sequential_reader
from ndtool.storage.tempfiles import Spool

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14
METHODS = {STORED: "stored", DEFLATED: "deflate", BZIP2: "bzip2", LZMA: "lzma"}
LIMIT = 1 << 30  # maximum decompressed size of a member, unless NDTOOL_MAX_INFLATE is set
LONGEST = 16 << 20  # maximum size of a central directory: some 200,000 entries
_CACHED = 64  # headers
_headers: dict[bytes, npy.Header] = {}  # a cache of .npy headers, by their bytes
_RATIO = 1032  # maximum ratio of deflate: 258 bytes from 2 bits

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_UINT64 = struct.Struct("<Q")
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 0x0001, 0x0008, 0x0800
_BIG = 0xFFFFFFFF


class Member(NamedTuple):
    """A member according to the central directory.

    name: without `.npy`. stored_name: the name in the archive. header: the offset of its local file
    header. end: the upper bound of its data, where the central directory starts. compressed_size,
    size: its compressed and decompressed size. entry: the offset of its entry in the central
    directory.
    """

    name: str
    stored_name: bytes
    header: int
    end: int
    method: int
    flags: int
    compressed_size: int
    size: int
    crc: int
    entry: int

    @property
    def mappable(self) -> bool:
        """Whether its data are stored uncompressed and unencrypted."""
        return self.method == STORED and not self.flags & _ENCRYPTED


class Directory(NamedTuple):
    """A parsed central directory.

    start: its offset in the file. raw: its bytes. prefix: number of bytes before the archive, which
    its offsets do not count. members: in its order; names may be duplicates.
    """

    start: int
    raw: bytes
    prefix: int
    comment: bytes
    members: list[Member]


def is_archive(read: Read, size: int) -> bool:
    """Whether a file starts or ends as a ZIP archive does."""
    return read(0, 4) in (b"PK\3\4", b"PK\5\6") or _end_record(read, size) is not None


def members(read: Read, size: int, name: str) -> list[Member]:
    """Return the members of the archive `name` of `size` bytes, in central directory order.

    Raises InputError if the central directory is inconsistent or has duplicate names.
    """
    directory_ = directory(read, size, name).members
    names: set[str] = set()
    for member in directory_:
        if member.name in names:
            _refuse(name, f"two members have the name {member.name!r}: expected one")
        names.add(member.name)
    return directory_


def _refuse(name: str, text: str) -> NoReturn:
    raise InputError(f"{printable(name)}: {printable(text)}")


def _exactly(read: Read, start: int, count: int, name: str) -> bytes:
    raw = read(start, count)
    if len(raw) < count:
        _refuse(name, f"expected {count} bytes at offset {start}, found {len(raw)}")
    return raw


def _end_record(read: Read, size: int) -> int | None:
    """Return the offset of the end record, None if there is none; only a comment may follow it."""
    tail = read(max(size - _END.size - 0xFFFF, 0), _END.size + 0xFFFF)
    offset = len(tail)
    while (offset := tail.rfind(b"PK\5\6", 0, offset)) >= 0:
        comment = offset + _END.size
        if comment <= len(tail) and comment + _END.unpack_from(tail, offset)[-1] == len(tail):
            return size - len(tail) + offset
    return None


def directory(read: Read, size: int, name: str) -> Directory:
    """Parse the central directory of the archive `name`; InputError if it is inconsistent."""
    end = _end_record(read, size)
    if end is None:
        _refuse(name, "the archive is truncated: it has no end of central directory record")
    record = _exactly(read, end, size - end, name)
    _, disk, first, entries_here, count, length, offset, _ = _END.unpack_from(record)
    comment = record[_END.size :]
    if _BIG in (length, offset) or 0xFFFF in (entries_here, count):
        zip64 = _zip64_end(read, end, name)
        if zip64 is not None:
            end, disk, first, entries_here, count, length, offset = zip64
    if disk or first or entries_here != count:
        _refuse(name, "the archive is split into volumes: expected a single file")
    start = end - length
    prefix = start - offset
    if start < 0 or prefix < 0:
        _refuse(name, f"the central directory, {length} bytes at {offset}, extends past {end}")
    if length > LONGEST:
        _refuse(name, f"the central directory has {length} bytes: valid up to {LONGEST}")
    raw = _exactly(read, start, length, name)
    members = list(_entries(raw, start, prefix, name))
    if len(members) != count:
        _refuse(name, f"expected {count} entries in the central directory, found {len(members)}")
    return Directory(start, raw, prefix, comment, members)


def _zip64_end(read: Read, end: int, name: str) -> tuple[int, int, int, int, int, int, int] | None:
    at = end - _LOCATOR.size
    if at < 0 or (raw := _exactly(read, at, _LOCATOR.size, name))[:4] != b"PK\6\7":
        return None
    # Bytes before the archive shift its offsets: then the record directly precedes the locator.
    for offset in (_LOCATOR.unpack(raw)[2], at - _END64.size):
        if 0 <= offset <= at - _END64.size:
            fields = _END64.unpack(_exactly(read, offset, _END64.size, name))
            if fields[0] == b"PK\6\6":
                return (offset, *fields[4:])
    return None


def _entries(raw: bytes, start: int, prefix: int, name: str) -> Iterator[Member]:
    """Yield the members of a central directory at offset `start` of the file."""
    offset, unpack, fixed = 0, _CENTRAL.unpack_from, _CENTRAL.size
    while offset < len(raw):
        if len(raw) - offset < fixed or raw[offset : offset + 4] != b"PK\1\2":
            _refuse(name, f"the central directory is damaged at byte {start + offset}")
        (
            _, _, _, flags, method, _, _, crc, compressed, size,
            name_length, extra_length, comment_length, disk, _, _, header,
        ) = unpack(raw, offset)  # fmt: skip
        name_end = offset + fixed + name_length
        extra_end = name_end + extra_length
        if extra_end + comment_length > len(raw):
            _refuse(name, f"the central directory is damaged at byte {start + offset}")
        stored_name = raw[offset + fixed : name_end]
        if _BIG in (compressed, size, header):
            wide = _zip64_values(raw, name_end, extra_end)
            size = wide.pop(0) if size == _BIG and wide else size
            compressed = wide.pop(0) if compressed == _BIG and wide else compressed
            header = wide.pop(0) if header == _BIG and wide else header
        if disk not in (0, 0xFFFF):
            _refuse(name, "the archive is split into volumes: expected a single file")
        encoding = "utf-8" if flags & _UTF8 or stored_name.isascii() else "cp437"
        short = stored_name.decode(encoding, "surrogateescape").removesuffix(".npy")
        yield Member(
            short, stored_name, header + prefix, start, method, flags, compressed, size, crc, offset
        )
        offset = extra_end + comment_length


def _zip64_values(raw: bytes, at: int, end: int) -> list[int]:
    return [_UINT64.unpack_from(raw, offset)[0] for offset in zip64_offsets(raw, at, end)]


def zip64_offsets(raw: bytes, offset: int, end: int) -> range:
    """Return the positions of the 64-bit values in a ZIP64 extra field."""
    while offset + 4 <= end:
        kind, length = struct.unpack_from("<2H", raw, offset)
        if kind == 1:
            return range(offset + 4, min(offset + 4 + length, end) - 7, 8)
        offset += 4 + length
    return range(0)


def locate(read: Read, member: Member, label: str) -> int:
    """Validate a member's local file header and return the offset of its data."""
    raw = read(member.header, _LOCAL.size)
    if len(raw) < _LOCAL.size or raw[:4] != b"PK\3\4":
        _refuse(label, f"expected a local file header at byte {member.header}")
    fields = _LOCAL.unpack(raw)
    flags, method, crc, compressed, size, name_length, extra_length = *fields[2:4], *fields[6:]
    after = member.header + _LOCAL.size
    rest = _exactly(read, after, name_length + extra_length, label)
    if rest[:name_length] != member.stored_name:
        _refuse(label, f"byte {member.header} has another member: {rest[:name_length]!r}")
    if flags & _ENCRYPTED or member.flags & _ENCRYPTED:
        _refuse(label, "the member is encrypted: expected an unencrypted one")
    if _BIG in (size, compressed):
        wide = _zip64_values(rest, name_length, len(rest))
        size = wide.pop(0) if size == _BIG and wide else size
        compressed = wide.pop(0) if compressed == _BIG and wide else compressed
    # With a data descriptor, the local file header lacks the CRC and the sizes.
    sums_agree = (crc, compressed, size) == (member.crc, member.compressed_size, member.size)
    if method != member.method or not (sums_agree or flags & _DESCRIPTOR):
        _refuse(label, "its local file header and the central directory disagree")
    start: int = after + name_length + extra_length
    _check_claims(start, member, label)
    return start


def _check_claims(start: int, member: Member, label: str) -> None:
    """Raise InputError if a member cannot have the sizes in the central directory."""
    if member.method not in METHODS:
        _refuse(label, f"compression method {member.method}: valid {', '.join(METHODS.values())}")
    if start + member.compressed_size > member.end:
        available = max(member.end - start, 0)
        _refuse(label, f"the member claims {member.compressed_size} bytes, only {available} remain")
    if member.method == STORED and member.size != member.compressed_size:
        _refuse(label, f"stored in {member.compressed_size} bytes, but its size is {member.size}")
    if member.method == DEFLATED and member.size > member.compressed_size * _RATIO:
        _refuse(label, f"{member.compressed_size} deflated bytes cannot expand to {member.size}")


def stream(
    read: Read, start: int, member: Member, label: str, chunk: int = BLOCK_SIZE
) -> Iterator[bytes]:
    """Decompress a member and yield its bytes; InputError at the end if size or CRC are wrong."""
    crc = size = 0
    try:
        for block in _unpack(_compressed(read, start, member, chunk), member, label, chunk):
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


def _compressed(read: Read, start: int, member: Member, chunk: int) -> Iterator[bytes]:
    """Yield the compressed bytes of a member; LZMA's 9 bytes of properties are one item."""
    offset, stop = start, start + member.compressed_size
    while offset < stop:
        step = 9 if member.method == LZMA and offset == start else chunk
        block = read(offset, min(step, stop - offset))
        if not block:
            return
        yield block
        offset += len(block)


def _unpack(packed: Iterator[bytes], member: Member, label: str, chunk: int) -> Iterator[bytes]:
    if member.method == STORED:
        yield from packed
        return
    unpacker, damage = _unpacker(packed, member, label)
    for block in packed:
        while True:
            try:
                out = unpacker.decompress(block, chunk)
            except damage as exc:
                _refuse(label, f"the compressed bytes are damaged: {exc}")
            if out:
                yield out
            if unpacker.eof:
                return
            block = getattr(unpacker, "unconsumed_tail", b"")
            if not block and len(out) < chunk:  # after a full buffer, more may be pending
                break


def _unpacker(packed: Iterator[bytes], member: Member, label: str) -> tuple[Any, Any]:
    """Return a decompressor and the exceptions that it raises for damaged data."""
    if member.method == DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS), zlib.error
    try:
        if member.method == BZIP2:
            import bz2

            return bz2.BZ2Decompressor(), (OSError, EOFError)
        import lzma
    except ImportError:
        _refuse(label, f"this Python cannot decompress {METHODS[member.method]}")
    properties = next(packed, b"")
    if len(properties) != 9 or properties[2:4] != b"\5\0" or properties[4] >= 9 * 5 * 5:
        _refuse(label, "the compressed bytes are damaged: no LZMA properties")
    rest, lc = divmod(properties[4], 9)
    pb, lp = divmod(rest, 5)
    # A dictionary larger than the member would only waste memory.
    size = max(min(int.from_bytes(properties[5:], "little"), member.size), 4096)
    chain = {"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": size}
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[chain]), lzma.LZMAError
    except (lzma.LZMAError, ValueError) as exc:
        _refuse(label, f"the compressed bytes are damaged: {exc}")


def check(read: Read, member: Member, label: str) -> None:
    """Read a complete member; InputError if its size or CRC is wrong."""
    for _ in stream(read, locate(read, member, label), member, label):
        pass


def read_header(read: Read, member: Member, label: str) -> tuple[npy.Header, int | None]:
    """Return the .npy header of a member, and the offset of its data, None if compressed.

    Reads little more than the header.
    """
    start, size = locate(read, member, label), member.size
    if member.mappable:
        header = _header(lambda offset, n: read(start + offset, min(n, size - offset)), size, label)
        return header, start + header.offset
    beginning = b""
    for block in stream(read, start, member, label, 1 << 14):
        beginning += block
        if len(beginning) >= npy.LONGEST + 12:
            break
    return _header(lambda offset, n: beginning[offset : offset + n], size, label), None


def _header(read: Read, size: int, label: str) -> npy.Header:
    """Parse a member's .npy header, or return it from the cache: many members have equal ones."""
    text = read(0, 10 + int.from_bytes(read(0, 10)[8:], "little"))
    header = _headers.get(text)
    if header is None or header.nbytes > size - header.offset:
        header = npy.read(sequential_reader(read, 0), size, label)
        if header.offset == len(text):
            if len(_headers) == _CACHED:
                _headers.clear()
            _headers[text] = header
    return header


def inflate(read: Read, member: Member, label: str) -> tuple[npy.Header, memoryview]:
    """Decompress a member; return its header and data. ResourceError if it exceeds the limit."""
    start = locate(read, member, label)  # reports a wrong size before the limit
    limit = _limit()
    if member.size > limit:
        raise ResourceError(
            f"{printable(label)}: {member.size} bytes decompressed: valid up to {limit}",
            hint=f"NDTOOL_MAX_INFLATE={member.size} allows it; a stored member has no limit",
        )
    spool = Spool()
    for block in stream(read, start, member, label):
        spool.write(block)
    raw = spool.finish()
    header = _header(lambda offset, n: bytes(raw[offset : offset + n]), member.size, label)
    return header, raw[header.offset : header.offset + header.nbytes]


def _limit() -> int:
    text = os.environ.get("NDTOOL_MAX_INFLATE", "").strip()
    if not text:
        return LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise UsageError(f"NDTOOL_MAX_INFLATE is {printable(repr(text))}: expected bytes")
    return int(text)
