"""Members of a .npz archive: where their bytes are, checked before any is believed."""

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Any, NamedTuple, NoReturn

from ndtool.arrays import npy
from ndtool.arrays.spill import Spool
from ndtool.arrays.storage import CHUNK, Read, reader
from ndtool.errors import InputError, ResourceError, UsageError, printable

STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14
METHODS = {STORED: "stored", DEFLATED: "deflate", BZIP2: "bzip2", LZMA: "lzma"}
LIMIT = 1 << 30  # bytes that a compressed member may have, unless NDTOOL_MAX_INFLATE says more
LONGEST = 16 << 20  # bytes of central directory, some 200,000 members
_MOST_PARSED = 64
_parsed: dict[bytes, npy.Header] = {}  # the last headers by their text: length, dtype, shape
_RATIO = 1032  # deflate's best: 258 bytes from 2 bits

_END = struct.Struct("<4s4H2LH")
_END64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_LOCAL = struct.Struct("<4s5H3L2H")
_WIDE = struct.Struct("<Q")
_ENCRYPTED, _DESCRIPTOR, _UTF8 = 0x0001, 0x0008, 0x0800
_BIG = 0xFFFFFFFF


class Member(NamedTuple):
    """One member as the central directory describes it.

    name: what it is called without `.npy`. stored: its name in the archive. header: where its
    local header is in the file. end: where the archive's data end. packed: bytes in the file.
    size: bytes when unpacked. method, flags and crc: the directory's. entry: where the directory
    has it.
    """

    name: str
    stored: bytes
    header: int
    end: int
    method: int
    flags: int
    packed: int
    size: int
    crc: int
    entry: int

    @property
    def mappable(self) -> bool:
        """Whether its bytes are in the file as they are."""
        return self.method == STORED and not self.flags & _ENCRYPTED


class Directory(NamedTuple):
    """The central directory, as it is.

    start: where it is in the file. raw: its entries. prefix: bytes before the archive, which its
    offsets do not count. members: in its order, perhaps several of one name.
    """

    start: int
    raw: bytes
    prefix: int
    comment: bytes
    members: list[Member]


def is_archive(read: Read, size: int) -> bool:
    """Tell whether the file starts or ends as an archive does."""
    return read(0, 4) in (b"PK\3\4", b"PK\5\6") or _end_record(read, size) is not None


def members(read: Read, size: int, name: str) -> list[Member]:
    """Return the members of the archive `name` of `size` bytes, in the directory's order.

    Raises InputError where the directory contradicts itself or calls two members the same.
    """
    found = directory(read, size, name).members
    names: set[str] = set()
    for member in found:
        if member.name in names:
            _refuse(name, f"two members are called {member.name!r}: expected one")
        names.add(member.name)
    return found


def _refuse(name: str, text: str) -> NoReturn:
    raise InputError(f"{printable(name)}: {printable(text)}")


def _exactly(read: Read, start: int, count: int, name: str) -> bytes:
    raw = read(start, count)
    if len(raw) < count:
        _refuse(name, f"expected {count} bytes at {start}, found {len(raw)}")
    return raw


def _end_record(read: Read, size: int) -> int | None:
    """Return where the end record is: the last thing in the file, but for its own comment.

    Anything looser would take the end of an archive inside a torn archive for the whole.
    """
    tail = read(max(size - _END.size - 0xFFFF, 0), _END.size + 0xFFFF)
    at = len(tail)
    while (at := tail.rfind(b"PK\5\6", 0, at)) >= 0:
        comment = at + _END.size
        if comment <= len(tail) and comment + _END.unpack_from(tail, at)[-1] == len(tail):
            return size - len(tail) + at
    return None


def directory(read: Read, size: int, name: str) -> Directory:
    """Return the directory of the archive `name`; InputError where it contradicts itself."""
    end = _end_record(read, size)
    if end is None:
        _refuse(name, "the archive is cut short: it has no end record")
    record = _exactly(read, end, size - end, name)
    _, disk, first, here, count, length, offset, _ = _END.unpack_from(record)
    comment = record[_END.size :]
    if _BIG in (length, offset) or 0xFFFF in (here, count):
        large = _zip64_end(read, end, name)
        if large is not None:
            end, disk, first, here, count, length, offset = large
    if disk or first or here != count:
        _refuse(name, "the archive is one of several volumes: expected a single file")
    start = end - length
    prefix = start - offset
    if start < 0 or prefix < 0:
        _refuse(name, f"the directory of {length} bytes at {offset} is not before its end at {end}")
    if length > LONGEST:
        _refuse(name, f"the directory has {length} bytes: valid up to {LONGEST}")
    raw = _exactly(read, start, length, name)
    members = list(_entries(raw, start, prefix, name))
    if len(members) != count:
        _refuse(name, f"the directory has {len(members)} members, its end says {count}")
    return Directory(start, raw, prefix, comment, members)


def _zip64_end(read: Read, end: int, name: str) -> tuple[int, int, int, int, int, int, int] | None:
    at = end - _LOCATOR.size
    if at < 0 or (raw := _exactly(read, at, _LOCATOR.size, name))[:4] != b"PK\6\7":
        return None
    # Bytes before the archive shift the locator's offset: then the record is just before it.
    for where in (_LOCATOR.unpack(raw)[2], at - _END64.size):
        if 0 <= where <= at - _END64.size:
            fields = _END64.unpack(_exactly(read, where, _END64.size, name))
            if fields[0] == b"PK\6\6":
                return (where, *fields[4:])
    return None


def _entries(raw: bytes, start: int, prefix: int, name: str) -> Iterator[Member]:
    """Yield what the directory says, which is at `start` of the file."""
    at, unpack, fixed = 0, _CENTRAL.unpack_from, _CENTRAL.size
    while at < len(raw):
        if len(raw) - at < fixed or raw[at : at + 4] != b"PK\1\2":
            _refuse(name, f"the directory is damaged at byte {start + at}")
        (
            _, _, _, flags, method, _, _, crc, packed, size,
            name_length, extra_length, comment_length, disk, _, _, header,
        ) = unpack(raw, at)  # fmt: skip
        name_end = at + fixed + name_length
        extra_end = name_end + extra_length
        if extra_end + comment_length > len(raw):
            _refuse(name, f"the directory is damaged at byte {start + at}")
        stored = raw[at + fixed : name_end]
        if _BIG in (packed, size, header):
            wide = _wide_numbers(raw, name_end, extra_end)
            size = wide.pop(0) if size == _BIG and wide else size
            packed = wide.pop(0) if packed == _BIG and wide else packed
            header = wide.pop(0) if header == _BIG and wide else header
        if disk not in (0, 0xFFFF):
            _refuse(name, "the archive is one of several volumes: expected a single file")
        encoding = "utf-8" if flags & _UTF8 or stored.isascii() else "cp437"
        short = stored.decode(encoding, "surrogateescape").removesuffix(".npy")
        yield Member(short, stored, header + prefix, start, method, flags, packed, size, crc, at)
        at = extra_end + comment_length


def _wide_numbers(raw: bytes, at: int, end: int) -> list[int]:
    return [_WIDE.unpack_from(raw, place)[0] for place in wide_places(raw, at, end)]


def wide_places(raw: bytes, at: int, end: int) -> range:
    """Return where extra fields have 64-bit numbers, in the order in which they are needed."""
    while at + 4 <= end:
        kind, length = struct.unpack_from("<2H", raw, at)
        if kind == 1:
            return range(at + 4, min(at + 4 + length, end) - 7, 8)
        at += 4 + length
    return range(0)


def locate(read: Read, member: Member, label: str) -> int:
    """Return where the member's bytes start, once its local header agrees with the directory."""
    raw = read(member.header, _LOCAL.size)
    if len(raw) < _LOCAL.size or raw[:4] != b"PK\3\4":
        _refuse(label, f"no member starts at byte {member.header}, where the directory says so")
    fields = _LOCAL.unpack(raw)
    flags, method, crc, packed, size, name_length, extra_length = *fields[2:4], *fields[6:]
    after = member.header + _LOCAL.size
    rest = _exactly(read, after, name_length + extra_length, label)
    if rest[:name_length] != member.stored:
        _refuse(label, f"byte {member.header} has another member: {rest[:name_length]!r}")
    if flags & _ENCRYPTED or member.flags & _ENCRYPTED:
        _refuse(label, "the member is encrypted: only plain ones can be read")
    if _BIG in (size, packed):
        wide = _wide_numbers(rest, name_length, len(rest))
        size = wide.pop(0) if size == _BIG and wide else size
        packed = wide.pop(0) if packed == _BIG and wide else packed
    # With a descriptor the sums come after the data, and the directory alone has them.
    sums_agree = (crc, packed, size) == (member.crc, member.packed, member.size)
    if method != member.method or not (sums_agree or flags & _DESCRIPTOR):
        _refuse(label, "the member's own header and the directory disagree about it")
    start: int = after + name_length + extra_length
    _check_claims(start, member, label)
    return start


def _check_claims(start: int, member: Member, label: str) -> None:
    """Refuse a member that cannot have the sizes that the directory claims."""
    if member.method not in METHODS:
        known = ", ".join(METHODS.values())
        _refuse(label, f"compression method {member.method}: valid {known}")
    if start + member.packed > member.end:
        room = max(member.end - start, 0)
        _refuse(label, f"the member claims {member.packed} bytes, only {room} are there")
    if member.method == STORED and member.size != member.packed:
        _refuse(label, f"stored as {member.packed} bytes, but {member.size} are claimed")
    if member.method == DEFLATED and member.size > member.packed * _RATIO:
        _refuse(label, f"{member.size} bytes cannot come from {member.packed} deflated ones")


def stream(
    read: Read, start: int, member: Member, label: str, chunk: int = CHUNK
) -> Iterator[bytes]:
    """Yield the member's bytes in pieces; InputError at the end if size or CRC are wrong."""
    crc = size = 0
    try:
        for piece in _unpack(_packed(read, start, member, chunk), member, label, chunk):
            crc = zlib.crc32(piece, crc)
            size += len(piece)
            if size > member.size:
                _refuse(label, f"the member has more than the {member.size} bytes it claims")
            yield piece
    except MemoryError:
        raise ResourceError(f"{printable(label)}: not enough memory to unpack it") from None
    if size != member.size:
        _refuse(label, f"expected {member.size} bytes, found {size}")
    if crc != member.crc:
        _refuse(label, f"the bytes have CRC {crc:08x}, expected {member.crc:08x}: damaged")


def _packed(read: Read, start: int, member: Member, chunk: int) -> Iterator[bytes]:
    """Yield the member's bytes as they are in the file, LZMA's nine of properties on their own."""
    at, stop = start, start + member.packed
    while at < stop:
        step = 9 if member.method == LZMA and at == start else chunk
        piece = read(at, min(step, stop - at))
        if not piece:
            return
        yield piece
        at += len(piece)


def _unpack(pieces: Iterator[bytes], member: Member, label: str, chunk: int) -> Iterator[bytes]:
    if member.method == STORED:
        yield from pieces
        return
    unpacker, damage = _unpacker(pieces, member, label)
    for piece in pieces:
        while True:
            try:
                out = unpacker.decompress(piece, chunk)
            except damage as exc:
                _refuse(label, f"the compressed bytes are damaged: {exc}")
            if out:
                yield out
            if unpacker.eof:
                return
            piece = getattr(unpacker, "unconsumed_tail", b"")
            if not piece and len(out) < chunk:  # a full piece may have more behind it
                break


def _unpacker(pieces: Iterator[bytes], member: Member, label: str) -> tuple[Any, Any]:
    """Return a decompressor and what it raises for bad data."""
    if member.method == DEFLATED:
        return zlib.decompressobj(-zlib.MAX_WBITS), zlib.error
    try:
        if member.method == BZIP2:
            import bz2

            return bz2.BZ2Decompressor(), (OSError, EOFError)
        import lzma
    except ImportError:
        _refuse(label, f"this Python cannot unpack {METHODS[member.method]}")
    properties = next(pieces, b"")
    if len(properties) != 9 or properties[2:4] != b"\5\0" or properties[4] >= 9 * 5 * 5:
        _refuse(label, "the compressed bytes are damaged: no LZMA properties")
    rest, lc = divmod(properties[4], 9)
    pb, lp = divmod(rest, 5)
    # A dictionary larger than the member is of no use, and a claim on memory.
    size = max(min(int.from_bytes(properties[5:], "little"), member.size), 4096)
    chain = {"id": lzma.FILTER_LZMA1, "lc": lc, "lp": lp, "pb": pb, "dict_size": size}
    try:
        return lzma.LZMADecompressor(lzma.FORMAT_RAW, filters=[chain]), lzma.LZMAError
    except (lzma.LZMAError, ValueError) as exc:
        _refuse(label, f"the compressed bytes are damaged: {exc}")


def check(read: Read, member: Member, label: str) -> None:
    """Read the whole member once; InputError if its size or CRC is wrong."""
    for _ in stream(read, locate(read, member, label), member, label):
        pass


def read_header(read: Read, member: Member, label: str) -> tuple[npy.Header, int | None]:
    """Return the .npy header of a member, and where its data are in the file as they are.

    No more is read than that needs.
    """
    start, size = locate(read, member, label), member.size
    if member.mappable:
        header = _header(lambda at, n: read(start + at, min(n, size - at)), size, label)
        return header, start + header.offset
    pieces = _Pieces(stream(read, start, member, label, 1 << 14))
    begin = pieces.read(min(size, npy.LONGEST + 12))
    return _header(lambda at, n: begin[at : at + n], size, label), None


def _header(read: Read, size: int, label: str) -> npy.Header:
    """Return a member's header; the same text, as archives of many have it, is parsed once."""
    text = read(0, 10 + int.from_bytes(read(0, 10)[8:], "little"))
    known = _parsed.get(text)
    if known is None or known.nbytes > size - known.offset:
        known = npy.read(reader(read, 0), size, label)
        if known.offset == len(text):
            if len(_parsed) == _MOST_PARSED:
                _parsed.clear()
            _parsed[text] = known
    return known


def inflate(read: Read, member: Member, label: str) -> tuple[npy.Header, memoryview]:
    """Return the header and the data of a compressed member, unpacked within the limit."""
    start = locate(read, member, label)  # a lie about the size is told before the limit is
    limit = _limit()
    if member.size > limit:
        raise ResourceError(
            f"{printable(label)}: {member.size} bytes when unpacked: valid up to {limit}",
            hint=f"NDTOOL_MAX_INFLATE={member.size} allows it; a stored member has no limit",
        )
    pieces = _Pieces(stream(read, start, member, label))
    header = npy.read(pieces.read, member.size, label)
    spool = Spool()
    left = header.nbytes
    while piece := pieces.next():
        spool.write(piece[:left])
        left -= min(left, len(piece))
    return header, spool.finish()


def _limit() -> int:
    text = os.environ.get("NDTOOL_MAX_INFLATE", "").strip()
    if not text:
        return LIMIT
    if not (text.isascii() and text.isdecimal() and len(text) < 20):
        raise UsageError(f"NDTOOL_MAX_INFLATE is {printable(repr(text))}: expected bytes")
    return int(text)


class _Pieces:
    """An iterator of bytes that can be read like a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._held = b""

    def read(self, count: int) -> bytes:
        while len(self._held) < count and (piece := next(self._pieces, b"")):
            self._held += piece
        out, self._held = self._held[:count], self._held[count:]
        return out

    def next(self) -> bytes:
        """Return what is at hand, or the next piece; nothing at the end."""
        out, self._held = self._held, b""
        return out or next(self._pieces, b"")
