"""Almost valid files from bytes that encode choices: .npy and .npz.

A valid structure is generated, then damaged, so that a file passes the first checks. Any bytes
encode a file, whether from Hypothesis, a coverage-guided fuzzer or a random generator.
"""

import io
import struct
import warnings
import zipfile
import zlib
from typing import Any

NUMBERS = (
    0, 1, 2, 3, 7, 24, 63, 64, 65, 96, 255, 256, 9999, 10_000, 65_535, 65_536, 2**31 - 1, 2**31,
    2**32 - 2, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64, 10**30, -1, -2**63,
)  # fmt: skip
CODES = (
    "<f4", ">f4", "<i8", "|u1", "|b1", "<f2", "<c8", "<c16", "<f16", "<M8[ns]", "<m8[7D]", "<M8",
    "|S3", "<U2", "|V2", "|S0", "<U0", "|O", "O", "f", ",f4", "<f5", "<i3", "|S2147483647",
    "<U536870911", "<V2", "=i4", "i4", "<f4\\", "<f4'", "2i4", "(2,)f4", "|V1", ">U1", "\u0660",
)  # fmt: skip
LITERALS = (
    "True", "False", "None", "1", "0", "'no'", "()", "[]", "{}", "b'x'", "3L", "np.int64(3)",
    "1.0", "1e3", "-1", "+1", "...", "__import__('os')", "lambda: 0", "2,", "1_0", "0x10", "1j",
    "'a' 'b'", "f'{1}'", "(1 for x in ())", "not 1", "1 if 1 else 2", "x", "*()", "**{}", "\x00",
)  # fmt: skip
KEYS = ("descr", "fortran_order", "shape", "more", "", "'", "\\", "Descr")
NAMES = ("a.npy", "a", "b.npy", "../../x.npy", "/x", "x.npz", "", "\x1b[31m", "ü.npy", "a:b.npy")


class Choices:
    """Decodes choices from bytes; after their end, each choice is the first option."""

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._position = 0

    def below(self, count: int) -> int:
        """Choose a number in 0..count - 1."""
        width = 1 if count <= 256 else 4
        encoded = self._raw[self._position : self._position + width]
        self._position += width
        return int.from_bytes(encoded, "little") % count

    def option(self, options: tuple[Any, ...]) -> Any:
        return options[self.below(len(options))]

    def rarely(self) -> bool:
        """Return True once in eight times."""
        return self.below(8) == 7

    def bytes(self, max_count: int) -> bytes:
        count = self.below(max_count + 1)
        encoded = self._raw[self._position : self._position + count]
        self._position += count
        return encoded


def shape(choose: Choices) -> str:
    if choose.rarely():
        return choose.option(LITERALS)
    rank = choose.below(70) if choose.rarely() else choose.below(5)
    sizes = [
        choose.option(LITERALS) if choose.rarely() else str(choose.option(NUMBERS))
        if choose.rarely() else str(choose.below(6))
        for _ in range(rank)
    ]  # fmt: skip
    return "(" + ", ".join(sizes) + ("," if rank == 1 else "") + ")"


def descr(choose: Choices, depth: int = 0) -> str:
    if choose.rarely():
        return choose.option(LITERALS)
    if choose.rarely() and depth < 5:
        fields = []
        for field_number in range(choose.below(4)):
            name = choose.option(
                ("'a'", "'b'", "''", "('t', 'n')", f"'f{field_number}'", "1", "'\u00fc'")
            )
            shape_suffix = f", {shape(choose)}" if choose.rarely() else ""
            fields.append(f"({name}, {descr(choose, depth + 1)}{shape_suffix})")
        return "[" + ", ".join(fields) + "]"
    return repr(choose.option(CODES)) if choose.rarely() else repr(choose.option(CODES[:17]))


def header_text(choose: Choices) -> str:
    values = {
        "descr": descr(choose),
        "fortran_order": choose.option(LITERALS[:2])
        if not choose.rarely()
        else choose.option(LITERALS),
        "shape": shape(choose),
    }
    pairs = [f"'{key}': {value}" for key, value in values.items()]
    if choose.rarely():
        pairs.insert(choose.below(4), f"{choose.option(KEYS)!r}: {choose.option(LITERALS)}")
    if choose.rarely():
        del pairs[choose.below(len(pairs))]
    literal = "{" + ", ".join(pairs) + ", }"
    if choose.rarely():
        literal = (
            choose.option(("(", "[", "-", "{", "{**", "'", "#", "\\")) * choose.below(3000)
            + literal
        )
    if choose.rarely():
        literal = literal[: choose.below(len(literal) + 1)]
    return literal + " " * choose.below(64) + ("\n" if not choose.rarely() else "")


def npy(choose: Choices) -> bytes:
    """Return an almost valid .npy file."""
    version = choose.option(((1, 0), (1, 0), (1, 0), (2, 0), (3, 0), (0, 0), (1, 1), (9, 0)))
    raw = header_text(choose).encode("utf-8" if version == (3, 0) else "latin-1", "replace")
    width = 2 if version[0] < 2 else 4
    length = choose.option(NUMBERS) % 256**width if choose.rarely() else len(raw) % 256**width
    payload = bytes(choose.option((0, 1, 24, 95, 96, 97, 200, 4096, 100_000)))
    file_bytes = b"\x93NUMPY" + bytes(version) + length.to_bytes(width, "little") + raw + payload
    return damage(choose, file_bytes) if choose.rarely() else file_bytes


FIELDS = {
    b"PK\3\4": (
        (4, "H"), (6, "H"), (8, "H"), (14, "I"), (18, "I"), (22, "I"), (26, "H"), (28, "H"),
    ),
    b"PK\1\2": (
        (8, "H"), (10, "H"), (16, "I"), (20, "I"), (24, "I"), (28, "H"), (30, "H"), (32, "H"),
        (34, "H"), (42, "I"),
    ),
    b"PK\5\6": ((4, "H"), (6, "H"), (8, "H"), (10, "H"), (12, "I"), (16, "I"), (20, "H")),
    b"PK\6\6": ((4, "Q"), (16, "I"), (24, "Q"), (32, "Q"), (40, "Q"), (48, "Q")),
    b"PK\6\7": ((4, "I"), (8, "Q"), (16, "I")),
}  # fmt: skip
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def npz(choose: Choices) -> bytes:
    """Return an almost valid archive: a valid one with some of its numbers changed."""
    stream = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(stream, "w") as archive:
        for member_number in range(choose.below(4)):
            info = zipfile.ZipInfo(
                choose.option(NAMES) if choose.rarely() else f"{member_number}.npy"
            )
            info.compress_type = choose.option(METHODS)
            if choose.rarely():
                info.extra = choose.bytes(40)
            if choose.rarely():
                info.flag_bits |= 1 << choose.below(16)
            content = npy(choose) if not choose.rarely() else choose.bytes(200)
            with archive.open(info, "w", force_zip64=choose.rarely()) as member:
                member.write(content)
        if choose.rarely():
            archive.comment = choose.option((b"PK\5\6", b"x", b"PK\5\6" + bytes(18)))
    raw = bytearray(stream.getvalue())
    if choose.rarely():
        raw = add_zip64(raw)
    for _ in range(choose.below(3)):
        change_field(choose, raw)
    archive_bytes = (b"#!/bin/sh\n" if choose.rarely() else b"") + bytes(raw)
    return damage(choose, archive_bytes) if choose.rarely() else archive_bytes


def add_zip64(raw: bytearray) -> bytearray:
    """Return an archive with a ZIP64 end record before the usual one."""
    end_record = raw.find(b"PK\5\6")
    if end_record + 22 > len(raw):
        return raw
    count, length, offset = struct.unpack_from("<H2L", raw, end_record + 10)
    end = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, offset)
    end += struct.pack("<4sLQL", b"PK\6\7", 0, end_record, 1)
    struct.pack_into("<2H2L", raw, end_record + 8, 0xFFFF, 0xFFFF, 2**32 - 1, 2**32 - 1)
    return raw[:end_record] + end + raw[end_record:]


def change_field(choose: Choices, raw: bytearray) -> None:
    """Change one field of one record, in place."""
    kinds = [(signature, fields) for signature, fields in FIELDS.items() if signature in raw]
    if not kinds:
        return
    signature, fields = kinds[choose.below(len(kinds))]
    record = raw.index(signature)
    if choose.below(2) and raw.count(signature) > 1:
        record = raw.index(signature, record + 4)
    position, code = choose.option(fields)
    size = struct.calcsize(code)
    if record + position + size > len(raw):
        return
    (current,) = struct.unpack_from("<" + code, raw, record + position)
    updated = current + choose.below(5) - 2 if choose.below(2) else choose.option(NUMBERS)
    struct.pack_into("<" + code, raw, record + position, updated % 256**size)
    if choose.rarely():  # change the central directory, too: else the two records differ
        central_record = raw.find(b"PK\1\2")
        if signature == b"PK\3\4" and central_record >= 0 and 14 <= position <= 22:
            struct.pack_into("<" + code, raw, central_record + position + 2, updated % 256**size)


def damage(choose: Choices, raw: bytes) -> bytes:
    """Return the bytes truncated, repeated, overwritten or with insertions."""
    position = choose.below(len(raw) + 1)
    change_field = choose.below(5)
    if change_field == 0:
        return raw[:position]
    if change_field == 1:
        return raw[position:]
    if change_field == 2:
        return raw[:position] + choose.bytes(16) + raw[position:]
    if change_field == 3:
        return raw + raw[position:]
    flipped = bytearray(raw)
    if position < len(raw):
        flipped[position] ^= 1 << choose.below(8)
    return bytes(flipped)


def decode_file(raw: bytes) -> bytes:
    """Return the file that some bytes encode."""
    choose = Choices(raw)
    kind = choose.below(8)
    if kind == 0:
        return raw[1:]
    if kind < 4:
        return npy(choose)
    if kind == 4:
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        return npy(choose) + compressor.compress(raw) + compressor.flush()
    return npz(choose)
