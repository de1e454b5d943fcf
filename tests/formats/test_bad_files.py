"""Invalid, inconsistent and malicious files on the command line.

Each is refused with one sentence that names the file and the error, and nothing
changes.
"""

import io
import os
import pickle
import re
import socket
import struct
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Completed, ndtool, save, snapshot
from limits import ADDRESS_SPACE, drop_root_capabilities, limit_resources
from npyfile import ARRAY as DATA
from npyfile import npy, npy_with_header

IDX = np.array([[1], [0]])
VALID_HEADER = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 4), }"
PAYLOAD = DATA.tobytes()
TOUCHED = "touched-by-code-in-a-file"


@pytest.fixture(autouse=True)
def files(workdir: Path) -> None:
    save(idx=IDX, old=DATA)
    os.rename("old.npy", "out.npy")


def run(*arguments: object, **options: object) -> Completed:
    """Run with 4 GiB of address space, so that memory for a false size cannot be allocated."""
    return ndtool(*arguments, **{"addresses": ADDRESS_SPACE, **options})


def npy_bytes(text: str = VALID_HEADER, payload: bytes = PAYLOAD, **claims: Any) -> bytes:
    """Return a .npy file with any header, by default with the payload of DATA."""
    return npy_with_header(text, payload, **claims)


def header(descr: str = "'<f4'", order: str = "False", shape: str = "(2, 3, 4)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


class Harmful:
    """An object whose pickle touches a file when it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (TOUCHED, "w")


OVERFLOWING_SHAPE = "(4294967296, 4294967296)"
WRAPPED_TO_16 = "(4, 4611686018427387905)"  # times four bytes: 16 modulo 2^64
HARMFUL = pickle.dumps(np.array([Harmful()], object))

REFUSED_NPY = {
    "nothing": (b"", "no data"),
    "only the magic": (b"\x93NUMPY", "found 6"),
    "cut after the version": (b"\x93NUMPY\1\0", "truncated"),
    "another magic": (b"\x93NUMPX\1\0" + npy_bytes()[8:], "not a .npy array"),
    "text": (b"1 2 3\n4 5 6\n", "not a .npy array: it starts with b'1 2 3"),
    "a bare pickle": (HARMFUL, "a pickle, which is never loaded"),
    "version 9.0": (npy_bytes(version=(9, 0)), r"version 9\.0: valid 1\.0, 2\.0, 3\.0"),
    "a header past the end": (npy_bytes(length=60_000), "claims 60000 bytes, only 158 remain"),
    "a header of 4 GiB": (npy_bytes(version=(2, 0), length=2**32 - 1), "claims 4294967295 bytes, only"),
    "a header of no bytes": (npy_bytes(length=0), "not a Python literal"),
    "a header that is a list": (npy_bytes("[1, 2, 3]"), "not a dictionary"),
    "a header that is a number": (npy_bytes("7"), "not a dictionary"),
    "a shape that opens a file": (npy_bytes(header(shape=f"open({TOUCHED!r}, 'w')")), "not a Python literal"),
    "a shape that runs a command": (npy_bytes(header(shape="__import__('os').system('true')")), "not a Python literal"),
    "a header that calls a lambda": (npy_bytes("(lambda: {})()"), "not a dictionary"),
    "a descr that is an f-string": (npy_bytes(header(descr="f'{1}'")), "not a Python literal"),
    "3000 parentheses": (npy_bytes("(" * 3000 + ")" * 3000), "not a Python literal|not a dictionary"),
    "900 brackets in shape": (npy_bytes(header(shape="[" * 900 + "]" * 900)), "Python literal|a tuple of sizes"),
    "5000 minus signs in shape": (npy_bytes(header(shape="(" + "-" * 5000 + "1,)")), "not a Python literal"),
    "4000 sums in shape": (npy_bytes(header(shape="(" + "1+" * 4000 + "1,)")), "not a Python literal"),
    "a header of 20 kB": (npy_bytes(VALID_HEADER + " " * 20_000), "claims 20062 bytes: valid up to 10000"),
    "no fortran_order": (npy_bytes("{'descr': '<f4', 'shape': (2, 3, 4)}"), "expected .*fortran_order"),
    "an extra key": (npy_bytes(VALID_HEADER[:-1] + "'more': 1}"), r"has the keys \[.*more"),
    "a key that is a number": (npy_bytes("{1: 2, 'descr': '<f4', 'fortran_order': False}"), "not a string"),
    "a dictionary unpacked": (npy_bytes("{**{}, 'descr': '<f4', 'fortran_order': False, 'shape': ()}"), "a string"),
    "a duplicate shape": (npy_bytes(VALID_HEADER[:-1] + "'shape': (24,)}"), "the key 'shape' 2 times"),
    "a descr of two types": (npy_bytes(header(descr="',f4'")), "',f4' is not an element type"),
    "no closing brace": (npy_bytes(VALID_HEADER.rstrip("}")), "not a Python literal"),
    "a NUL after the header": (npy_bytes(VALID_HEADER + "\0"), "not a Python literal"),
    "a negative size": (npy_bytes(header(shape="(-1,)")), r"shape\[0\] is -1: expected a size of 0\.\."),
    "two negative sizes": (npy_bytes(header(shape="(-2, -12)")), r"shape\[0\] is -2"),
    "a float in shape": (npy_bytes(header(shape="(2.0, 12)")), r"shape\[0\] is 2\.0"),
    "a shape that is a list": (npy_bytes(header(shape="[2, 12]")), r"shape is \[2, 12\]: expected a tuple"),
    "a shape that is a number": (npy_bytes(header(shape="24")), "shape is 24: expected a tuple"),
    "a string in shape": (npy_bytes(header(shape="('2',)")), r"shape\[0\] is '2'"),
    "a bool in shape": (npy_bytes(header(shape="(True, 24)")), r"shape\[0\] is True"),
    "np.int64 in shape": (npy_bytes(header(shape="(np.int64(24),)")), "NumPy integers"),
    "a size of 10**30": (npy_bytes(header(shape=f"({10**30},)")), r"shape\[0\] is 1000+: expected a size of 0\.\."),
    "a size of 6000 digits": (npy_bytes(header(shape=f"({'9' * 6000},)")), "expected a size|not a Python literal"),
    "2**32 times 2**32 elements": (npy_bytes(header(shape=OVERFLOWING_SHAPE)), "valid up to 9223372036854775807 bytes"),
    "bytes that wrap to 16": (npy_bytes(header(shape=WRAPPED_TO_16)), "valid up to 9223372036854775807 bytes"),
    "claims 4 TiB": (npy_bytes(header(shape=f"({2**40},)")), "expected 4398046511104 bytes .* found 96"),
    "huge sizes and one of 0": (npy_bytes(header(shape=f"(0, {2**62}, {2**62})")), "valid up to 9223372036854775807"),
    "65 axes": (npy_bytes(header(shape=f"({'1, ' * 65})")), "65 axes: valid up to 64"),
    "fortran_order is a word": (npy_bytes(header(order="'no'")), "fortran_order is 'no': valid True, False"),
    "fortran_order is 1": (npy_bytes(header(order="1")), "fortran_order is 1: valid True, False"),
    "one byte too few": (npy_bytes(payload=PAYLOAD[:-1]), "expected 96 bytes of data after the header, found 95"),
    "half of the data": (npy_bytes(payload=PAYLOAD[:48]), "expected 96 bytes .* found 48"),
    "none of the data": (npy_bytes(payload=b""), "expected 96 bytes .* found 0"),
    "pickled objects": (npy(np.array([Harmful()], object), True), "Python objects are never read"),
    "objects before a bare pickle": (npy_bytes(header("'|O'", shape="(1,)"), HARMFUL), "Python objects are never read"),
    "a record with objects": (npy_bytes(header("[('a', '<f4'), ('b', '|O')]")), "Python objects are never read"),
    "bytes of length 0": (npy_bytes(header("'|S0'", shape=f"({2**40},)")), "0 bytes per element: valid 1"),
    "text of length 0": (npy_bytes(header("'<U0'", shape=f"({2**62},)")), "0 bytes per element: valid 1"),
    "void of length 0": (npy_bytes(header("'|V0'", shape=f"({2**62},)")), "0 bytes per element: valid 1"),
    "a record without fields": (npy_bytes(header("[]", shape=f"({2**62},)")), "a record has 0 bytes"),
    "a record with an empty field": (npy_bytes(header("[('a', '<f4', (0,))]")), "0 bytes"),
    "elements of 2**31 - 1 bytes": (npy_bytes(header("'|S2147483647'", shape="(1,)")),
                                    "expected 2147483647 bytes .* found 96"),
    "elements of 2**31 bytes": (npy_bytes(header("'|S2147483648'", shape="(1,)")), "valid 1..2147483647"),
}  # fmt: skip


def check_refused(completed: Completed, name: str, reason: str, status: int = 3) -> None:
    """Check that a run failed with one sentence about a file, and wrote nothing to stdout."""
    assert (completed.status, completed.out) == (status, b""), completed.err
    error = completed.err.splitlines()[0]
    assert error.startswith("error: ")
    assert name in error
    assert re.search(reason, completed.err), completed.err
    assert "Traceback" not in completed.err
    assert "allow_pickle" not in completed.err
    assert max(map(len, completed.err.splitlines())) < 500
    assert len(completed.err.splitlines()) < 20


@pytest.mark.parametrize("row", REFUSED_NPY)
def test_bad_npy_files_are_refused(row: str, workdir: Path) -> None:
    content, reason = REFUSED_NPY[row]
    Path("bad.npy").write_bytes(content)
    before = snapshot(workdir)
    check_refused(run("gather-nd", "bad.npy", "idx.npy", "-o", "out.npy"), "bad.npy", reason)
    assert snapshot(workdir) == before


COMMANDS = {
    "indices": ("gather-nd", "out.npy", "bad.npy", "-o", "out.npy"),
    "updates": ("scatter-nd", "out.npy", "idx.npy", "bad.npy", "-o", "out.npy"),
    "elements": ("scatter-elements", "bad.npy", "idx.npy", "out.npy", "-o", "out.npy"),
    "inspect": ("inspect", "bad.npy"),
    "infer": ("infer", "gather-nd", "bad.npy", "idx.npy"),
    "verify": ("verify", "gather-nd", "bad.npy", "idx.npy", "out.npy"),
    "pipe": ("gather-nd", "-", "idx.npy", "-o", "out.npy"),
}


@pytest.mark.parametrize("row", ["claims 4 TiB", "pickled objects"])
@pytest.mark.parametrize("command", COMMANDS)
def test_bad_npy_files_are_refused_by_every_command(row: str, command: str, workdir: Path) -> None:
    content, reason = REFUSED_NPY[row]
    Path("bad.npy").write_bytes(content)
    before = snapshot(workdir)
    is_piped = command == "pipe"
    completed = run(*COMMANDS[command], stdin=content if is_piped else b"")
    check_refused(completed, "standard input" if is_piped else "bad.npy", reason)
    assert snapshot(workdir) == before


def test_false_sizes_on_a_pipe_take_no_memory(workdir: Path) -> None:
    before = snapshot(workdir)
    for row in (
        "a header of 4 GiB",
        "a header of 20 kB",
        "claims 4 TiB",
        "text of length 0",
        "elements of 2**31 - 1 bytes",
    ):
        completed = run("gather-nd", "-", "idx.npy", "-o", "out.npy", stdin=REFUSED_NPY[row][0])
        check_refused(completed, "standard input", "")
    assert snapshot(workdir) == before


def gather_rows(data: object, **options: object) -> np.ndarray:
    """Return the result of a gather of both rows of `data`, in reverse order."""
    completed = run("gather-nd", data, "idx.npy", "-o", "out.npy", **options)
    assert (completed.status, completed.out, completed.err) == (0, b"", "")
    return np.load("out.npy")


def test_bytes_after_the_array_are_ignored_with_a_warning() -> None:
    Path("long.npy").write_bytes(npy_bytes() + b"12345")
    completed = run("gather-nd", "long.npy", "idx.npy", "-o", "out.npy")
    assert (completed.status, completed.err) == (
        0,
        "warning: long.npy: 5 bytes after the array are ignored\n",
    )
    assert np.array_equal(np.load("out.npy"), DATA[::-1])


STRUCTURED = np.zeros((2, 3), [("a", "<f4"), ("b", ">i2", (2,))])
STRUCTURED["a"] = np.arange(6).reshape(2, 3)
COPY_ONLY_TYPES = {
    "records": STRUCTURED,
    "void of 8 bytes": np.arange(6, dtype="<i8").reshape(2, 3).view("V8"),
    "datetimes": np.arange(6).reshape(2, 3).astype("<M8[ns]"),
    "timedeltas": np.arange(6).reshape(2, 3).astype("<m8[s]"),
    "long doubles": np.arange(6).reshape(2, 3).astype(np.longdouble),
    "text": np.array([["a", "bc"], ["d", ""]], "<U2"),
    "bfloat16 as V2": np.arange(6, dtype="<u2").reshape(2, 3).view("V2"),
}


@pytest.mark.parametrize("row", COPY_ONLY_TYPES)
def test_types_without_arithmetic_are_copied(row: str, workdir: Path) -> None:
    array = COPY_ONLY_TYPES[row]
    save(data=array, upd=array)
    result = gather_rows("data.npy")
    assert result.dtype == array.dtype
    assert result.tobytes() == array[::-1].tobytes()
    before = snapshot(workdir)
    scatter = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "-o", "out.npy", "--reduction")
    for reduction in ("add", "max"):
        completed = run(*scatter, reduction)
        check_refused(completed, "", "reduction", 4)
        assert "data.npy" in completed.err
        assert ("--dtype bfloat16" in completed.err) == (row == "bfloat16 as V2")
        assert snapshot(workdir) == before
    if row == "bfloat16 as V2":
        pytest.importorskip("ml_dtypes")
        assert run(*scatter, "add", "--dtype", "bfloat16").status == 0


def test_big_endian_arrays_keep_their_byte_order() -> None:
    save(data=DATA.astype(">f4"), upd=np.ones((2, 3, 4), ">f4"), idx4=IDX.astype(">i4"))
    assert gather_rows("data.npy").dtype == ">f4"
    scatter = ("scatter-nd", "data.npy", "idx4.npy", "upd.npy", "-o", "out.npy")
    assert run(*scatter, "--reduction", "add").status == 0
    assert np.load("out.npy").dtype == ">f4"
    assert np.array_equal(np.load("out.npy"), DATA + 1)


def test_bytes_of_bools_other_than_0_and_1_are_copied() -> None:
    Path("bool.npy").write_bytes(npy_bytes(header("'|b1'", shape="(2, 2)"), bytes([2, 0, 255, 1])))
    assert gather_rows("bool.npy").tobytes() == bytes([255, 1, 2, 0])
    scatter = ("scatter-nd", "bool.npy", "idx.npy", "bool.npy", "-o", "out.npy")
    assert run(*scatter, "--reduction", "max").status == 0
    assert np.load("out.npy").view("u1").tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("padding", [1, 2, 7])
def test_unaligned_data_are_read(padding: int) -> None:
    data = np.arange(40_000, dtype="<i8").reshape(2, -1)
    text = header("'<i8'", shape=str(data.shape)).ljust(100 + padding)
    Path("unaligned.npy").write_bytes(npy_bytes(text, data.tobytes()))
    assert np.array_equal(gather_rows("unaligned.npy"), data[::-1])
    scatter = ("scatter-nd", "unaligned.npy", "idx.npy", "unaligned.npy", "-o", "out.npy")
    assert run(*scatter, "--reduction", "add").status == 0
    assert np.array_equal(np.load("out.npy"), data + data[::-1])


def test_a_file_is_recognized_by_content() -> None:
    np.savez("archive", a=DATA)
    os.rename("archive.npz", "archive.npy")
    save(array=DATA)
    os.rename("array.npy", "array.npz")
    assert np.array_equal(gather_rows("archive.npy"), DATA[::-1])
    assert np.array_equal(gather_rows("array.npz"), DATA[::-1])


def test_files_that_are_not_regular_are_refused(workdir: Path) -> None:
    os.mkdir("folder")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sock")
        before = snapshot(workdir)
        for name, reason in (
            ("folder", "is a directory"),
            ("sock", "is a socket"),
            ("/dev/zero", "is a device"),
        ):
            for arguments in (("gather-nd", name, "idx.npy"), ("gather-nd", "out.npy", name)):
                check_refused(
                    run(*arguments, "-o", "out.npy"), name, f"{reason}: expected a file with arrays"
                )
        check_refused(
            run("gather-nd", "-", "idx.npy", "-o", "out.npy"), "standard input", "no data"
        )
        assert snapshot(workdir) == before


def test_a_file_without_read_permission_is_refused(workdir: Path) -> None:
    save(data=DATA)
    before = snapshot(workdir)
    os.chmod("data.npy", 0)
    completed = run(
        "gather-nd", "data.npy", "idx.npy", "-o", "out.npy", preexec_fn=drop_root_capabilities
    )
    check_refused(completed, "data.npy", "Permission denied")
    os.chmod("data.npy", 0o600)
    assert snapshot(workdir) == before


# Archives


def pack_members(
    *members: tuple[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b""
) -> bytearray:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.comment = comment
        for name, content in members:
            archive.writestr(name, content)
    return bytearray(stream.getvalue())


LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
STORED = pack_members(("a.npy", npy(DATA)))
DEFLATED = pack_members(("a.npy", npy(DATA)), method=zipfile.ZIP_DEFLATED)


def patch_fields(raw: bytearray, *fields: tuple[str, bytes, int, int]) -> bytes:
    """Return an archive with other values at offsets from the only signature of each kind."""
    raw = bytearray(raw)
    for fmt, signature, offset, value in fields:
        struct.pack_into(fmt, raw, raw.index(signature) + offset, value)
    return bytes(raw)


def declare_size(raw: bytearray, value: int, *, stored: bool = False) -> bytes:
    """Return an archive whose only member declares another size, in both headers."""
    fields = [("<I", LOCAL, 22, value), ("<I", CENTRAL, 24, value)]
    if stored:
        fields += [("<I", LOCAL, 18, value), ("<I", CENTRAL, 20, value)]
    return patch_fields(raw, *fields)


def flip_bit(raw: bytearray, segment: bytes) -> bytes:
    raw = bytearray(raw)
    raw[raw.index(segment) + len(segment) // 2] ^= 1
    return bytes(raw)


def duplicate_members(first: str, second: str) -> bytes:
    """Return an archive with two members of equal, or nearly equal, names."""
    raw = pack_members((first, npy(DATA)), ("#" * len(second), npy(-DATA)))
    return bytes(raw).replace(b"#" * len(second), second.encode())


def zip_bomb(nbytes: int) -> bytes:
    """Return an archive with a member of `nbytes` zeros, compressed by a factor of 1000."""
    compressor = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = compressor.compress(bytes(1 << 24)) + compressor.flush(zlib.Z_FULL_FLUSH)
    stream = block * (nbytes >> 24) + compressor.flush()
    local_header = struct.pack("<4s5H3L2H", LOCAL, 20, 0, 8, 0, 33, 0, len(stream), nbytes, 5, 0)
    directory_entry = struct.pack("<4s6H3L5H2L", CENTRAL, 20, 20, 0, 8, 0, 33, 0, len(stream), nbytes, 5,
                        0, 0, 0, 0, 0, 0)  # fmt: skip
    start = len(local_header) + 5 + len(stream)
    end_record = struct.pack("<4s4H2LH", END, 0, 0, 1, 1, len(directory_entry) + 5, start, 0)
    return local_header + b"a.npy" + stream + directory_entry + b"a.npy" + end_record


REFUSED_NPZ = {
    "ten bytes missing": (bytes(STORED[:-10]), "", "truncated: it has no end"),
    "half of it missing": (bytes(STORED[: len(STORED) // 2]), "", "truncated: it has no end"),
    "a flipped bit, stored": (flip_bit(STORED, PAYLOAD), ":a", "damaged: Bad CRC-32"),
    "another checksum, deflated": (patch_fields(DEFLATED, ("<I", LOCAL, 14, 1), ("<I", CENTRAL, 16, 1)), ":a", "CRC"),
    "a flipped bit, deflated": (flip_bit(DEFLATED, bytes(DEFLATED[40:60])), ":a", ""),
    "a bomb beyond the limit": (zip_bomb(4080 << 20), ":a", "valid up to 1073741824"),
    "a bomb that claims little": (declare_size(bytearray(zip_bomb(1 << 24)), 1 << 20), ":a", "Bad CRC-32"),
    "claims 4 GiB, stored": (declare_size(STORED, 2**32 - 2, stored=True), ":a", "claims 4294967294 bytes, only"),
    "claims 4 GiB, deflated": (declare_size(DEFLATED, 2**32 - 2), ":a", "cannot expand to"),
    "a name twice": (duplicate_members("a.npy", "a.npy"), "", "two members have the name 'a'"),
    "a name with and without .npy": (duplicate_members("a.npy", "a"), "", "two members have the name 'a'"),
    "a member of text": (bytes(pack_members(("a.txt", b"hello"))), ":a.txt", "not a .npy array: it starts"),
    "an archive inside": (bytes(pack_members(("a.npz", bytes(STORED)))), ":a.npz", "not a .npy array: it starts"),
    "cut after an archive inside": (bytes(pack_members(("a.npz", bytes(STORED)))[:-40]), "", "truncated|extends past|damaged"),
    "a member of no bytes": (bytes(pack_members(("a.npy", b""))), ":a", "no data"),
    "a member one byte short": (bytes(pack_members(("a.npy", npy(DATA)[:-1]))), ":a", "expected 96 bytes .* found 95"),
    "pickled objects": (bytes(pack_members(("a.npy", REFUSED_NPY["pickled objects"][0]))), ":a", "objects are never read"),
    "encrypted": (patch_fields(STORED, ("<H", LOCAL, 6, 1), ("<H", CENTRAL, 8, 1)), ":a", "encrypted"),
    "an unknown method": (patch_fields(STORED, ("<H", LOCAL, 8, 99), ("<H", CENTRAL, 10, 99)), ":a", "method 99: v"),
    "another size in the directory": (patch_fields(STORED, ("<I", CENTRAL, 24, 128)), ":a", "disagree"),
    "two false sizes": (patch_fields(STORED, ("<I", CENTRAL, 24, 9), ("<I", CENTRAL, 20, 9)), ":a", "disagree"),
    "another offset": (patch_fields(STORED, ("<I", CENTRAL, 42, 7)), ":a", "expected a local file header at byte 7"),
    "an offset past the end": (patch_fields(STORED, ("<I", CENTRAL, 42, 2**31)), ":a", "expected a local file header at byte"),
    "a directory past the end": (patch_fields(STORED, ("<I", END, 16, 2**31)), "", "expected a local file header at byte"),
    "a directory too long": (patch_fields(STORED, ("<I", END, 12, 2**31)), "", "the central directory is damaged"),
    "seven members of one": (patch_fields(STORED, ("<H", END, 8, 7), ("<H", END, 10, 7)), "", "expected 7 entries"),
    "no members": (bytes(pack_members()), "", "the archive has no arrays"),
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED_NPZ)
def test_bad_npz_files_are_refused(row: str, workdir: Path) -> None:
    content, member, reason = REFUSED_NPZ[row]
    Path("bad.npz").write_bytes(content)
    before = snapshot(workdir)
    completed = run("gather-nd", "bad.npz", "idx.npy", "-o", "out.npy")
    check_refused(
        completed, "bad.npz" + member, reason, 6 if row == "a bomb beyond the limit" else 3
    )
    assert snapshot(workdir) == before
    assert run("inspect", "bad.npz").status in (0, 3)
    assert snapshot(workdir) == before


def test_names_are_never_paths(workdir: Path) -> None:
    for name in ("../../x.npy", "/abs.npy", "..\\x.npy", "\x1b[31m.npy", "C:x.npy"):
        Path("names.npz").write_bytes(pack_members((name, npy(DATA)), ("b.npy", npy(-DATA))))
        member = name.removesuffix(".npy")
        assert np.array_equal(gather_rows(f"names.npz:{member}"), DATA[::-1])
        assert "\x1b" not in run("inspect", "names.npz").out.decode()
    assert sorted(p.name for p in workdir.iterdir()) == ["idx.npy", "names.npz", "out.npy"]


@pytest.mark.slow("a directory of many members is read in bounded memory")
@pytest.mark.usefixtures("without_coverage")
def test_a_hundred_thousand_members_are_listed_in_linear_time(workdir: Path) -> None:
    with zipfile.ZipFile("many.npz", "w") as archive:
        scalar = npy(np.int8(1))
        for i in range(100_000):
            archive.writestr(f"{i}.npy", scalar)
        archive.writestr("last.npy", npy(DATA))
    assert np.array_equal(gather_rows("many.npz:last"), DATA[::-1])
    before = time.process_time()
    zipfile.ZipFile("many.npz").close()
    plain_seconds = time.process_time() - before
    before = os.times()  # includes child processes, but not forks of the fork server
    limit = limit_resources(AS=ADDRESS_SPACE)
    completed = run("gather-nd", "many.npz", "idx.npy", "-o", "out.npy", preexec_fn=limit)
    after = os.times()
    check_refused(completed, "many.npz", "100001 members", 2)
    assert "and 99991 more" in completed.err
    # Quadratic time in the members would take minutes; a single pass takes this long.
    assert after.children_user - before.children_user < 20 * plain_seconds


@pytest.mark.slow("a member is read by 64-bit offsets")
def test_a_member_beyond_four_gigabytes_is_read(workdir: Path) -> None:
    count = (1 << 32) + 5
    with (
        zipfile.ZipFile("large.npz", "w") as archive,
        archive.open(zipfile.ZipInfo("a.npy"), "w", force_zip64=True) as member,
    ):
        member.write(npy_bytes(header("'|u1'", shape=f"({count},)"), b""))
        for start in range(0, count, 1 << 24):
            member.write(bytes(min(1 << 24, count - start)))
    save(idx=np.array([[count - 1], [-count]]))
    assert gather_rows("large.npz:a", preexec_fn=None).tolist() == [0, 0]
