"""Bytes that a reader must refuse, each with a pattern of the reason: .npy files, .npz archives."""

import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO

import numpy as np
from npyfile import ARRAY, npy, npy_with_header

TOUCHED = "touched-by-code-in-a-file"
VALID = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }"


class Harmful:
    """An object whose pickle touches a file when it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (TOUCHED, "w")


OBJECTS = npy(np.array([Harmful()], object), True)


def header(
    text: str = VALID, version: tuple[int, int] = (1, 0), length: int | None = None
) -> bytes:
    return npy_with_header(text, b"", version, length)


def shaped(shape: str, descr: str = "'<f4'") -> bytes:
    return header(f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}")


LITERAL, MAPPING, TUPLE = "not a Python literal", "not a dictionary", "expected a tuple"
OBJECT, EMPTY = "Python objects are never read", "0 bytes per element: valid 1"
LARGE = "valid up to 9223372036854775807 bytes"
HEADERS: dict[str, tuple[bytes, str]] = {
    "nothing": (b"", "no data|expected a .npy array"),
    "only the magic": (b"\x93NUMPY", "found 6"),
    "half of the magic": (b"\x93NU", "found 3"),
    "cut after the version": (b"\x93NUMPY\1\0", "truncated|header length"),
    "half a length": (b"\x93NUMPY\1\0\1", "truncated|header length"),
    "another magic": (b"\x93NUMPX\1\0" + header()[8:], "not a .npy array"),
    "text": (b"1.0 2.0 3.0\n" * 20, "not a .npy array: it starts with b'1.0 2"),
    "a bare pickle": (pickle.dumps(np.array([Harmful()], object)), "not a .npy array"),
    "version 9.0": (header(version=(9, 0)), r"version 9\.0: valid 1\.0, 2\.0, 3\.0"),
    "version 1.1": (header(version=(1, 1)), r"version 1\.1"),
    "a header past the end": (header(length=6000), "truncated: expected 6000|claims 6000 bytes, only"),
    "a header of 4 GiB": (header(version=(2, 0), length=2**32 - 1), "4294967295 bytes(: valid|, only)"),
    "a header of 20 kB": (header(VALID + " " * 20_000), "claims 20059 bytes: valid up to 10000"),
    "a header of no bytes": (header(""), LITERAL),
    "a list": (header("[1, 2]"), MAPPING),
    "a number": (header("7"), MAPPING),
    "a set": (header("{1, 2}"), MAPPING),
    "a call": (header("__import__('os').system('true')"), MAPPING),
    "a lambda": (header("(lambda: {})()"), MAPPING),
    "a comprehension": (header("{k: 1 for k in 'ab'}"), MAPPING),
    "a dictionary unpacked": (header("{**{'descr': '<f4'}}"), "key that is not a string"),
    "a shape that opens a file": (shaped(f"open({TOUCHED!r}, 'w')"), LITERAL),
    "a descr that is an f-string": (shaped("(3,)", "f'{1}'"), LITERAL),
    "3000 parentheses": (header("(" * 3000 + ")" * 3000), f"{LITERAL}|{MAPPING}"),
    "900 brackets in shape": (shaped("[" * 900 + "]" * 900), "Python literal|a tuple of sizes"),
    "90 brackets in shape": (shaped("[" * 90 + "]" * 90), "shape is"),
    "9000 minus signs in shape": (shaped("(" + "-" * 9000 + "1,)"), LITERAL),
    "4500 sums in shape": (shaped("(" + "1+" * 4500 + "1,)"), LITERAL),
    "no fortran_order": (header("{'descr': '<f4', 'shape': (3,)}"), "has the keys .*expected .*fortran_order"),
    "a key too many": (header(VALID[:-1] + "'more': 1}"), r"has the keys \[.*more"),
    "a key that is a number": (header("{1: 2, 'descr': '<f4', 'fortran_order': False}"), "not a string"),
    "a key of bytes": (header(VALID.replace("'shape'", "b'shape'")), "not a string"),
    "shape twice": (header(VALID[:-1] + "'shape': (3, 4)}"), "the key 'shape' 2 times"),
    "a descr of two types": (shaped("(3,)", "',f4'"), "',f4' is not an element type"),
    "no closing brace": (header(VALID[:-1]), LITERAL),
    "a NUL after the header": (header(VALID + "\0"), LITERAL),
    "a NUL in descr": (shaped("(3,)", "'<f4\0'"), ": "),
    "a negative size": (shaped("(-1,)"), r"shape\[0\] is -1: expected a size of 0\.\."),
    "two negative sizes": (shaped("(-3, -4)"), r"shape\[0\] is -3"),
    "a float in shape": (shaped("(3.0, 4)"), r"shape\[0\] is 3\.0"),
    "a complex number in shape": (shaped("(1+2j,)"), r"shape\[0\] is \(1\+2j\)"),
    "a string in shape": (shaped("('2',)"), r"shape\[0\] is '2'"),
    "a bool in shape": (shaped("(True, 4)"), r"shape\[0\] is True"),
    "np.int64 in shape": (shaped("(np.int64(3),)"), LITERAL),
    "a shape that is a list": (shaped("[3, 4]"), rf"shape is \[3, 4\]: {TUPLE}"),
    "a shape that is a number": (shaped("(3)"), f"shape is 3: {TUPLE}"),
    "a size of 10**30": (shaped(f"({10**30},)"), r"shape\[0\] is 1000+: expected a size of 0\.\."),
    "a size of 6000 digits": (shaped(f"({'9' * 6000},)"), f"expected a size|{LITERAL}"),
    "2**32 times 2**32": (shaped("(4294967296, 4294967296)"), LARGE),
    "bytes that wrap to 16": (shaped("(4, 4611686018427387905)"), LARGE),
    "huge sizes and one of 0": (shaped(f"(0, {2**62}, {2**62})"), f"{LARGE}.*size 0 counted as 1"),
    "65 axes": (shaped("(" + "1, " * 65 + ")"), "65 axes: valid up to 64"),
    "fortran_order is a word": (header(VALID.replace("False", "'no'")), "fortran_order is 'no': valid True, False"),
    "fortran_order is 1": (header(VALID.replace("False", "1")), "fortran_order is 1: valid True, False"),
    "objects": (shaped("(3,)", "'|O'"), OBJECT),
    "objects before a bare pickle": (shaped("(1,)", "'|O'") + pickle.dumps([1]), OBJECT),
    "pickled objects": (OBJECTS, OBJECT),
    "a record with objects": (shaped("(3,)", "[('a', '<f4'), ('b', '|O')]"), OBJECT),
    "bytes of length 0": (shaped(f"({2**40},)", "'|S0'"), EMPTY),
    "text of length 0": (shaped(f"({2**62},)", "'<U0'"), EMPTY),
    "void of length 0": (shaped("(3,)", "'|V0'"), EMPTY),
    "a record without fields": (shaped(f"({2**62},)", "[]"), "a record has 0 bytes"),
    "a record with an empty field": (shaped("(3,)", "[('a', '<f4', (0,))]"), "0 bytes"),
    "elements of 2**31 bytes": (shaped("(1,)", "'|S2147483648'"), r"valid 1\.\.2147483647"),
    "descr is a number": (shaped("(3,)", "5"), ": "),
    "not UTF-8": (header(VALID.replace("<f4", "\xff"), (3, 0)), "not UTF-8"),
}  # fmt: skip
# Files that are shorter than their headers declare.
CUT = {
    "claims 4 TiB": (shaped(f"({2**40},)") + bytes(96), "expected 4398046511104 bytes .* found 96"),
    "elements of 2**31 - 1 bytes": (shaped("(1,)", "'|S2147483647'") + bytes(96), "expected 2147483647 bytes .* found 96"),
    **{f"{missing} bytes missing": (npy()[:-missing], f"expected 96 bytes of data after the header, found {96 - missing}") for missing in (1, 48, 96)},
}  # fmt: skip


# Archives: rows of tables

METHODS = {"stored": 0, "deflate": 8, "bzip2": 12, "lzma": 14}
LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"


def pack(
    *members: tuple[str, bytes], method: int = 0, prefix: bytes = b"", comment: bytes = b""
) -> bytes:
    """Return an archive; prefix: bytes before it, which its offsets count."""
    stream = BytesIO(prefix)
    stream.seek(len(prefix))
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.comment = comment
        for name, raw in members:
            archive.writestr(name, raw)
    return stream.getvalue()


def patch(raw: bytes, *fields: tuple[bytes, int, str, int]) -> bytes:
    """Return an archive with other values at offsets from the first signature of each kind."""
    changed = bytearray(raw)
    for signature, offset, form, value in fields:
        struct.pack_into(form, changed, changed.index(signature) + offset, value)
    return bytes(changed)


def sizes(raw: bytes) -> tuple[int, int]:
    """Return the compressed and the plain size of the first member."""
    compressed, plain = struct.unpack_from("<2L", raw, raw.index(CENTRAL) + 20)
    return compressed, plain


def resize(raw: bytes, size: int, compressed: int | None = None) -> bytes:
    """Change the sizes in both headers of the first member; without one, the compressed size stays."""
    compressed = sizes(raw)[0] if compressed is None else compressed
    pair = compressed | size << 32
    return patch(raw, (LOCAL, 18, "<Q", pair), (CENTRAL, 20, "<Q", pair))


def zip_bomb(nbytes: int) -> bytes:
    """Return an archive with a member of `nbytes` zeros, compressed by a factor of 1000."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = compressor.compress(bytes(1 << 24)) + compressor.flush(zlib.Z_FULL_FLUSH)
    stream = block * (nbytes >> 24) + compressor.flush()
    sized = 33, 0, len(stream), nbytes, 5
    local = struct.pack("<4s5H3L2H", LOCAL, 20, 0, 8, 0, *sized, 0) + b"a.npy"
    entry = (
        struct.pack("<4s6H3L5H2L", CENTRAL, 20, 20, 0, 8, 0, *sized, 0, 0, 0, 0, 0, 0) + b"a.npy"
    )
    end = struct.pack("<4s4H2LH", END, 0, 0, 1, 1, len(entry), len(local) + len(stream), 0)
    return local + stream + entry + end


def declare_512_gib(raw: bytes) -> bytes:
    """Return an archive whose directory declares a larger member in a ZIP64 field."""
    extra = struct.pack("<2H2Q", 1, 16, 1 << 39, 1 << 39)
    start, end = raw.index(CENTRAL), raw.index(END)
    raw = raw[:end] + extra + raw[end:]
    fields = (
        (CENTRAL, 20, "<Q", 2**64 - 1),
        (CENTRAL, 30, "<H", 20),
        (END, 12, "<L", end - start + 20),
    )
    return patch(raw, *fields)


def zip64_everywhere(raw: bytes, comment: bytes = b"", count: int = 0) -> bytes:
    """Return an archive with ZIP64 end records that nothing requires, as miniz writes it."""
    end = raw.rindex(END)
    entries, length, offset = struct.unpack_from("<H2L", raw, end + 10)
    count = count or entries
    record = struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, length, offset)
    record += struct.pack("<4sLQL", b"PK\6\7", 0, end, 1)
    return raw[:end] + record + raw[end : end + 20] + struct.pack("<H", len(comment)) + comment


def _archives() -> Iterator[tuple[str, bytes, str, str]]:
    """Yield rows: a name, the bytes, the member to open, and a pattern of the reason."""
    # fmt: off
    one, two = pack(("a.npy", npy())), pack(("a.npy", npy()), ("b.npy", npy(ARRAY + 1)))
    for removed in (1, 10, 22, 200, 300, 600, 650):
        yield f"{removed} bytes missing", two[:-removed], "", "truncated|a .npy array"
    nested = pack(("a.npz", one), ("b.npy", npy()))
    yield "cut after an archive inside", nested[: nested.rindex(b"b.npy") - 40], "", "truncated"
    yield "an archive inside", pack(("a.npz", one)), ":a.npz", "not a .npy array: it starts"
    yield "no members", pack(), "", "no arrays"
    yield "no members, named", pack(), ":a", "no arrays"
    yield "a script", b"#!/bin/sh\nexit 1\n" * 9, "", "not a .npy array: it starts with"
    yield ("an unknown method", patch(one, (LOCAL, 8, "<H", 99), (CENTRAL, 10, "<H", 99)), ":a", "method 99: valid stored, deflate, bzip2")
    for bit in (1, 0x41):
        yield (f"encrypted {bit}", patch(one, (LOCAL, 6, "<H", bit), (CENTRAL, 8, "<H", bit)), ":a", "encrypted")
    yield ("of another volume", patch(one, (CENTRAL, 34, "<H", 1)), "", "the archive is split into volumes")
    locator = b"PK\6\7" + struct.pack("<IQI", 0, 0, 2)
    yield ("on several disks", LOCAL + bytes(96) + locator + END + bytes(18), "", "the central directory is damaged")
    without_record = zip64_everywhere(one).replace(b"PK\6\6", b"PK\6\5")
    yield ("a ZIP64 locator without its record", without_record, "", "the central directory is damaged")
    long_header = patch(one, (LOCAL, 28, "<H", 60_000))
    yield ("a header beyond the end", long_header, ":a", f"expected 60005 bytes at offset 30, found {len(one) - 30}")
    same = pack(("a.npy", npy()), ("#.npy", npy(-ARRAY))).replace(b"#", b"a")
    for member in ("", ":a"):
        yield f"a name twice{member}", same, member, "two members have the name 'a'"
    yield ("a name with and without .npy", pack(("a", b"text"), ("a.npy", npy())), ":a", "two members have the name 'a'")
    yield ("an ambiguous name", pack(("a.npy", npy()), ("a.npy.npy", npy())), ":a.npy", "a.npy is more than one member")
    yield "a bomb that claims little", resize(zip_bomb(1 << 24), 1 << 20), ":a", "Bad CRC-32"
    deflated = pack(("a.npy", npy()), method=8)
    yield ("claims 2 GiB, deflated", resize(deflated, 0x7FFFFFFF), ":a", "cannot expand to 2147483647")
    yield ("claims 4 GiB, stored", resize(one, 2**32 - 2, 2**32 - 2), ":a", "claims 4294967294 bytes, only")
    yield "claims 512 GiB", declare_512_gib(one), ":a", "disagree"
    yield ("another checksum", patch(deflated, (LOCAL, 14, "<L", 1), (CENTRAL, 16, "<L", 1)), ":a", "CRC")
    for offset in (1, 7, 50, 100_000, 2**31, 0xFFFFFFFE, 0xFFFFFFFF):
        yield (f"offset {offset}", patch(two, (CENTRAL, 42, "<L", offset)), ":a", "local file header|another member|damaged")
    yield ("the offset of another member", patch(two, (CENTRAL, 42, "<L", two.index(LOCAL, 4))), ":a", "has another member")
    for field, form in ((8, "<H"), (10, "<H"), (12, "<L"), (16, "<L")):
        for value in (0, 7, 0x7FFF, 0xFFFF):
            yield f"end record {field} is {value}", patch(one, (END, field, form, value)), "", ": "
    yield ("a directory past the end", patch(one, (END, 16, "<L", 2**31)), "", "expected a local file header at byte")
    yield ("a directory too long", patch(one, (END, 12, "<L", 2**31)), "", "the central directory is damaged")
    lzma = pack(("a.npy", npy()), method=14)
    assert lzma[37:39] == b"\5\0"  # after the header, the name and LZMA's version
    for at, byte, reason in (
        (37, 6, "damaged"),
        (38, 1, "damaged"),
        (39, 9 * 5 * 5, "damaged"),
        (39, 8 + 9 * 4, "damaged"),
        (43, 0x7F, "a dictionary of 21[0-9]* bytes for 224 bytes"),
    ):
        yield f"LZMA byte {at} is {byte}", lzma[:at] + bytes([byte]) + lzma[at + 1 :], ":a", reason
    for name, method in METHODS.items():
        raw = pack(("a.npy", npy()), method=method)
        compressed, size = sizes(raw)
        for change in (-1, 1, 64):
            for packed, plain in ((0, change), (change, 0), (change, change)):
                fields = (CENTRAL, 20, "<L", compressed + packed), (CENTRAL, 24, "<L", size + plain)
                yield (f"{name}, sizes {packed:+} {plain:+} in the directory", patch(raw, *fields), ":a", ": ")
            yield (f"{name}, size {change}", resize(raw, size + change), ":a", ": ")  # only the data contradict it
        zeros = pack(("a.npy", npy(np.zeros(1 << 18))), method=method)
        reason = "but its size is 1000" if method == 0 else "Bad CRC-32"
        yield f"{name}, larger than declared", resize(zeros, 1000), ":a", reason
        damaged = bytearray(pack(("a.npy", npy(np.arange(5_000))), method=method))
        damaged[len(damaged) // 2] ^= 4
        yield f"{name}, a flipped bit", bytes(damaged), ":a", "CRC|damaged|expected|more than"
        for content in (b"", b"text\n", bytes(300), one):
            body = pack(("readme", content), ("a.npy", npy()), method=method)
            yield f"{name}, no array {content[:4]!r}", body, ":readme", "a .npy array"
        short = pack(("a.npy", npy()[:-1]), method=method)
        yield f"{name}, a byte short", short, ":a", "expected 96 bytes .* found 95"
        false_size = shaped(f"({1 << 37},)") + bytes(64)
        yield (f"{name}, claims 512 GiB", pack(("a.npy", false_size), method=method), ":a", "expected 549755813888 bytes of data")
    yield "pickled objects", pack(("a.npy", OBJECTS)), ":a", "objects are never read"


ARCHIVES = {name: row for name, *row in _archives()}
