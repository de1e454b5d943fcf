"""The bytes around the one member of a .npz archive that is written."""

import struct

from ndtool.errors import UsageError, printable

_BIG = 0xFFFFFFFF
_WIDE = _BIG - (1 << 18)  # from here on sizes and offsets take 64 bits
_ALIGNMENT = 64
_PADDING = 0xD935  # an extra field for alignment, as Android's archives have it
_UTF8 = 0x0800
_DATE = 0x21  # 1980-01-01: the same array gives the same archive
_REGULAR = 0o100644 << 16


def member_name(name: str) -> bytes:
    """Return the name as the archive stores it, `.npy` at its end."""
    raw = (name.removesuffix(".npy") + ".npy").encode("utf-8", "surrogateescape")
    if len(raw) > 0xFF00:
        raise UsageError(f"the member's name {printable(name, 40)} is too long: valid 65276 bytes")
    return raw


def head(name: bytes, size: int, crc: int) -> bytes:
    """Return the local header, padded so that the member starts at a multiple of 64."""
    extra = struct.pack("<2H2Q", 1, 16, size, size) if size >= _WIDE else b""
    gap = -(30 + len(name) + len(extra) + 6) % _ALIGNMENT
    extra += struct.pack("<3H", _PADDING, 2 + gap, _ALIGNMENT) + bytes(gap)
    return b"PK\3\4" + _common(name, size, crc, len(extra)) + name + extra


def tail(name: bytes, size: int, crc: int) -> bytes:
    """Return the directory and the end record, which follow the member."""
    at = len(head(name, size, crc)) + size
    wide = size >= _WIDE
    extra = struct.pack("<2H2Q", 1, 16, size, size) if wide else b""
    entry = b"PK\1\2" + struct.pack("<H", 3 << 8 | 45) + _common(name, size, crc, len(extra))
    entry += struct.pack("<3H2L", 0, 0, 0, _REGULAR, 0) + name + extra
    end = b""
    if wide:
        after = at + len(entry)
        end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, len(entry), at)
        end += struct.pack("<4sLQL", b"PK\6\7", 0, after, 1)
    offset = _BIG if wide else at
    return entry + end + struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 1, 1, len(entry), offset, 0)


def _common(name: bytes, size: int, crc: int, extra: int) -> bytes:
    """Return the fields that the local header and the directory share."""
    wide = size >= _WIDE
    flags = 0 if name.isascii() else _UTF8
    size = _BIG if wide else size
    version = 45 if wide else 20
    return struct.pack("<5H3L2H", version, flags, 0, 0, _DATE, crc, size, size, len(name), extra)
