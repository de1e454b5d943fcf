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

    def integer(self, count: int) -> int:
        """Choose a number in 0..count - 1."""
        width = 1 if count <= 256 else 4
        encoded = self._raw[self._position : self._position + width]
        self._position += width
        return int.from_bytes(encoded, "little") % count

    def pick(self, options: tuple[Any, ...]) -> Any:
        return options[self.integer(len(options))]

    def one_in_eight(self) -> bool:
        """Return True once in eight times."""
        return self.integer(8) == 7

    def bytes(self, max_count: int) -> bytes:
        count = self.integer(max_count + 1)
        encoded = self._raw[self._position : self._position + count]
        self._position += count
        return encoded


def shape(choices: Choices) -> str:
    if choices.one_in_eight():
        return choices.pick(LITERALS)
    rank = choices.integer(70) if choices.one_in_eight() else choices.integer(5)
    sizes = [
        choices.pick(LITERALS) if choices.one_in_eight() else str(choices.pick(NUMBERS))
        if choices.one_in_eight() else str(choices.integer(6))
        for _ in range(rank)
    ]  # fmt: skip
    return "(" + ", ".join(sizes) + ("," if rank == 1 else "") + ")"


def descr(choices: Choices, depth: int = 0) -> str:
    if choices.one_in_eight():
        return choices.pick(LITERALS)
    if choices.one_in_eight() and depth < 5:
        fields = []
        for field_number in range(choices.integer(4)):
            name = choices.pick(
                ("'a'", "'b'", "''", "('t', 'n')", f"'f{field_number}'", "1", "'\u00fc'")
            )
            shape_suffix = f", {shape(choices)}" if choices.one_in_eight() else ""
            fields.append(f"({name}, {descr(choices, depth + 1)}{shape_suffix})")
        return "[" + ", ".join(fields) + "]"
    return repr(choices.pick(CODES)) if choices.one_in_eight() else repr(choices.pick(CODES[:17]))


def header_text(choices: Choices) -> str:
    values = {
        "descr": descr(choices),
        "fortran_order": choices.pick(LITERALS[:2])
        if not choices.one_in_eight()
        else choices.pick(LITERALS),
        "shape": shape(choices),
    }
    pairs = [f"'{key}': {value}" for key, value in values.items()]
    if choices.one_in_eight():
        pairs.insert(choices.integer(4), f"{choices.pick(KEYS)!r}: {choices.pick(LITERALS)}")
    if choices.one_in_eight():
        del pairs[choices.integer(len(pairs))]
    literal = "{" + ", ".join(pairs) + ", }"
    if choices.one_in_eight():
        literal = (
            choices.pick(("(", "[", "-", "{", "{**", "'", "#", "\\")) * choices.integer(3000)
            + literal
        )
    if choices.one_in_eight():
        literal = literal[: choices.integer(len(literal) + 1)]
    return literal + " " * choices.integer(64) + ("\n" if not choices.one_in_eight() else "")


def npy(choices: Choices) -> bytes:
    """Return an almost valid .npy file."""
    version = choices.pick(((1, 0), (1, 0), (1, 0), (2, 0), (3, 0), (0, 0), (1, 1), (9, 0)))
    raw = header_text(choices).encode("utf-8" if version == (3, 0) else "latin-1", "replace")
    width = 2 if version[0] < 2 else 4
    length = choices.pick(NUMBERS) % 256**width if choices.one_in_eight() else len(raw) % 256**width
    payload = bytes(choices.pick((0, 1, 24, 95, 96, 97, 200, 4096, 100_000)))
    file_bytes = b"\x93NUMPY" + bytes(version) + length.to_bytes(width, "little") + raw + payload
    return damage(choices, file_bytes) if choices.one_in_eight() else file_bytes


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


def npz(choices: Choices) -> bytes:
    """Return an almost valid archive: a valid one with some of its numbers changed."""
    stream = io.BytesIO()
    with warnings.catch_warnings(action="ignore"), zipfile.ZipFile(stream, "w") as archive:
        for member_number in range(choices.integer(4)):
            info = zipfile.ZipInfo(
                choices.pick(NAMES) if choices.one_in_eight() else f"{member_number}.npy"
            )
            info.compress_type = choices.pick(METHODS)
            if choices.one_in_eight():
                info.extra = choices.bytes(40)
            if choices.one_in_eight():
                info.flag_bits |= 1 << choices.integer(16)
            content = npy(choices) if not choices.one_in_eight() else choices.bytes(200)
            with archive.open(info, "w", force_zip64=choices.one_in_eight()) as member:
                member.write(content)
        if choices.one_in_eight():
            archive.comment = choices.pick((b"PK\5\6", b"x", b"PK\5\6" + bytes(18)))
    raw = bytearray(stream.getvalue())
    if choices.one_in_eight():
        raw = add_zip64(raw)
    for _ in range(choices.integer(3)):
        change_field(choices, raw)
    archive_bytes = (b"#!/bin/sh\n" if choices.one_in_eight() else b"") + bytes(raw)
    return damage(choices, archive_bytes) if choices.one_in_eight() else archive_bytes


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


def change_field(choices: Choices, raw: bytearray) -> None:
    """Change one field of one record, in place."""
    kinds = [(signature, fields) for signature, fields in FIELDS.items() if signature in raw]
    if not kinds:
        return
    signature, fields = kinds[choices.integer(len(kinds))]
    record = raw.index(signature)
    if choices.integer(2) and raw.count(signature) > 1:
        record = raw.index(signature, record + 4)
    position, code = choices.pick(fields)
    size = struct.calcsize(code)
    if record + position + size > len(raw):
        return
    (current,) = struct.unpack_from("<" + code, raw, record + position)
    updated = current + choices.integer(5) - 2 if choices.integer(2) else choices.pick(NUMBERS)
    struct.pack_into("<" + code, raw, record + position, updated % 256**size)
    if choices.one_in_eight():  # change the central directory, too: else the two records differ
        central_record = raw.find(b"PK\1\2")
        if signature == b"PK\3\4" and central_record >= 0 and 14 <= position <= 22:
            struct.pack_into("<" + code, raw, central_record + position + 2, updated % 256**size)


def damage(choices: Choices, raw: bytes) -> bytes:
    """Return the bytes truncated, repeated, overwritten or with insertions."""
    position = choices.integer(len(raw) + 1)
    change_field = choices.integer(5)
    if change_field == 0:
        return raw[:position]
    if change_field == 1:
        return raw[position:]
    if change_field == 2:
        return raw[:position] + choices.bytes(16) + raw[position:]
    if change_field == 3:
        return raw + raw[position:]
    flipped = bytearray(raw)
    if position < len(raw):
        flipped[position] ^= 1 << choices.integer(8)
    return bytes(flipped)


def decode_file(raw: bytes) -> bytes:
    """Return the file that some bytes encode."""
    choices = Choices(raw)
    kind = choices.integer(8)
    if kind == 0:
        return raw[1:]
    if kind < 4:
        return npy(choices)
    if kind == 4:
        compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
        return npy(choices) + compressor.compress(raw) + compressor.flush()
    return npz(choices)
