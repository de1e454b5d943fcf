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
FULL = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3, 4), }"
RAW = DATA.tobytes()
TOUCHED = "touched-by-code-in-a-file"


@pytest.fixture(autouse=True)
def workdir(workdir: Path) -> Path:
    save(idx=IDX, old=DATA)
    os.rename("old.npy", "out.npy")
    return workdir


def run(*arguments: object, **options: object) -> Completed:
    """Run with 4 GiB of address space, so that memory for a false size cannot be allocated."""
    return ndtool(*arguments, **{"addresses": ADDRESS_SPACE, **options})


def lying(text: str = FULL, payload: bytes = RAW, **claims: Any) -> bytes:
    """Return a file with the data of DATA and any header."""
    return npy_with_header(text, payload, **claims)


def header(descr: str = "'<f4'", order: str = "False", shape: str = "(2, 3, 4)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}"


class Harm:
    """An object whose pickle touches a file when it is loaded."""

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return open, (TOUCHED, "w")


WRAPS = "(4294967296, 4294967296)"
SAFETENSORS = "(4, 4611686018427387905)"  # times four bytes: 16 modulo 2^64
HARMFUL = pickle.dumps(np.array([Harm()], object))

REFUSED_NPY = {
    "nothing": (b"", "no data"),
    "only the magic": (b"\x93NUMPY", "found 6"),
    "cut after the version": (b"\x93NUMPY\1\0", "truncated"),
    "another magic": (b"\x93NUMPX\1\0" + lying()[8:], "not a .npy array"),
    "text": (b"1 2 3\n4 5 6\n", "not a .npy array: it starts with b'1 2 3"),
    "a bare pickle": (HARMFUL, "a pickle, which is never loaded"),
    "version 9.0": (lying(version=(9, 0)), r"version 9\.0: valid 1\.0, 2\.0, 3\.0"),
    "a header past the end": (lying(length=60_000), "claims 60000 bytes, only 158 remain"),
    "a header of 4 GiB": (lying(version=(2, 0), length=2**32 - 1), "claims 4294967295 bytes, only"),
    "a header of no bytes": (lying(length=0), "not a Python literal"),
    "a header that is a list": (lying("[1, 2, 3]"), "not a dictionary"),
    "a header that is a number": (lying("7"), "not a dictionary"),
    "a shape that opens a file": (lying(header(shape=f"open({TOUCHED!r}, 'w')")), "not a Python literal"),
    "a shape that runs a command": (lying(header(shape="__import__('os').system('true')")), "not a Python literal"),
    "a header that calls a lambda": (lying("(lambda: {})()"), "not a dictionary"),
    "a descr that is an f-string": (lying(header(descr="f'{1}'")), "not a Python literal"),
    "3000 parentheses": (lying("(" * 3000 + ")" * 3000), "not a Python literal|not a dictionary"),
    "900 brackets in shape": (lying(header(shape="[" * 900 + "]" * 900)), "Python literal|a tuple of sizes"),
    "5000 minus signs in shape": (lying(header(shape="(" + "-" * 5000 + "1,)")), "not a Python literal"),
    "4000 sums in shape": (lying(header(shape="(" + "1+" * 4000 + "1,)")), "not a Python literal"),
    "a header of 20 kB": (lying(FULL + " " * 20_000), "claims 20062 bytes: valid up to 10000"),
    "no fortran_order": (lying("{'descr': '<f4', 'shape': (2, 3, 4)}"), "expected .*fortran_order"),
    "a key too many": (lying(FULL[:-1] + "'more': 1}"), r"has the keys \[.*more"),
    "a key that is a number": (lying("{1: 2, 'descr': '<f4', 'fortran_order': False}"), "not a string"),
    "a dictionary unpacked": (lying("{**{}, 'descr': '<f4', 'fortran_order': False, 'shape': ()}"), "a string"),
    "shape twice": (lying(FULL[:-1] + "'shape': (24,)}"), "the key 'shape' 2 times"),
    "long integers of Python 2": (lying(header(shape="(2L, 3L, 4L)")), "Python 2"),
    "a descr of two types": (lying(header(descr="',f4'")), "',f4' is not an element type"),
    "no closing brace": (lying(FULL.rstrip("}")), "not a Python literal"),
    "a NUL after the header": (lying(FULL + "\0"), "not a Python literal"),
    "a negative size": (lying(header(shape="(-1,)")), r"shape\[0\] is -1: expected a size of 0\.\."),
    "two negative sizes": (lying(header(shape="(-2, -12)")), r"shape\[0\] is -2"),
    "a float in shape": (lying(header(shape="(2.0, 12)")), r"shape\[0\] is 2\.0"),
    "a shape that is a list": (lying(header(shape="[2, 12]")), r"shape is \[2, 12\]: expected a tuple"),
    "a shape that is a number": (lying(header(shape="24")), "shape is 24: expected a tuple"),
    "a string in shape": (lying(header(shape="('2',)")), r"shape\[0\] is '2'"),
    "a bool in shape": (lying(header(shape="(True, 24)")), r"shape\[0\] is True"),
    "np.int64 in shape": (lying(header(shape="(np.int64(24),)")), "NumPy integers"),
    "a size of 10**30": (lying(header(shape=f"({10**30},)")), r"shape\[0\] is 1000+: expected a size of 0\.\."),
    "a size of 6000 digits": (lying(header(shape=f"({'9' * 6000},)")), "expected a size|not a Python literal"),
    "2**32 times 2**32 elements": (lying(header(shape=WRAPS)), "valid up to 9223372036854775807 bytes"),
    "bytes that wrap to 16": (lying(header(shape=SAFETENSORS)), "valid up to 9223372036854775807 bytes"),
    "claims 4 TiB": (lying(header(shape=f"({2**40},)")), "expected 4398046511104 bytes .* found 96"),
    "huge sizes beside one of 0": (lying(header(shape=f"(0, {2**62}, {2**62})")), "valid up to 9223372036854775807"),
    "65 axes": (lying(header(shape=f"({'1, ' * 65})")), "65 axes: valid up to 64"),
    "fortran_order is a word": (lying(header(order="'no'")), "fortran_order is 'no': valid True, False"),
    "fortran_order is 1": (lying(header(order="1")), "fortran_order is 1: valid True, False"),
    "one byte too few": (lying(payload=RAW[:-1]), "expected 96 bytes of data after the header, found 95"),
    "half of the data": (lying(payload=RAW[:48]), "expected 96 bytes .* found 48"),
    "none of the data": (lying(payload=b""), "expected 96 bytes .* found 0"),
    "pickled objects": (npy(np.array([Harm()], object), True), "Python objects are never read"),
    "objects over a bare pickle": (lying(header("'|O'", shape="(1,)"), HARMFUL), "Python objects are never read"),
    "a record with objects": (lying(header("[('a', '<f4'), ('b', '|O')]")), "Python objects are never read"),
    "bytes of length 0": (lying(header("'|S0'", shape=f"({2**40},)")), "0 bytes per element: valid 1"),
    "text of length 0": (lying(header("'<U0'", shape=f"({2**62},)")), "0 bytes per element: valid 1"),
    "void of length 0": (lying(header("'|V0'", shape=f"({2**62},)")), "0 bytes per element: valid 1"),
    "a record without fields": (lying(header("[]", shape=f"({2**62},)")), "a record has 0 bytes"),
    "a record with an empty field": (lying(header("[('a', '<f4', (0,))]")), "0 bytes"),
    "elements of 2**31 - 1 bytes": (lying(header("'|S2147483647'", shape="(1,)")),
                                    "expected 2147483647 bytes .* found 96"),
    "elements of 2**31 bytes": (lying(header("'|S2147483648'", shape="(1,)")), "valid 1..2147483647"),
}  # fmt: skip


def refused(ran: Completed, name: str, reason: str, status: int = 3) -> None:
    """Check that a run failed with one sentence about a file, and without other effects."""
    assert (ran.status, ran.out) == (status, b""), ran.err
    first = ran.err.splitlines()[0]
    assert first.startswith("error: ")
    assert name in first
    assert re.search(reason, ran.err), ran.err
    assert "Traceback" not in ran.err
    assert "allow_pickle" not in ran.err
    assert max(map(len, ran.err.splitlines())) < 500
    assert len(ran.err.splitlines()) < 20


@pytest.mark.parametrize("row", REFUSED_NPY)
def test_bad_npy(row: str, workdir: Path) -> None:
    content, reason = REFUSED_NPY[row]
    Path("bad.npy").write_bytes(content)
    before = snapshot(workdir)
    refused(run("gather-nd", "bad.npy", "idx.npy", "-o", "out.npy"), "bad.npy", reason)
    assert snapshot(workdir) == before


LOCATIONS = {
    "indices": ("gather-nd", "out.npy", "bad.npy", "-o", "out.npy"),
    "updates": ("scatter-nd", "out.npy", "idx.npy", "bad.npy", "-o", "out.npy"),
    "elements": ("scatter-elements", "bad.npy", "idx.npy", "out.npy", "-o", "out.npy"),
    "inspect": ("inspect", "bad.npy"),
    "infer": ("infer", "gather-nd", "bad.npy", "idx.npy"),
    "verify": ("verify", "gather-nd", "bad.npy", "idx.npy", "out.npy"),
    "pipe": ("gather-nd", "-", "idx.npy", "-o", "out.npy"),
}


@pytest.mark.parametrize("row", ["claims 4 TiB", "pickled objects"])
@pytest.mark.parametrize("position", LOCATIONS)
def test_bad_npy_wherever_it_is_read(row: str, position: str, workdir: Path) -> None:
    content, reason = REFUSED_NPY[row]
    Path("bad.npy").write_bytes(content)
    before = snapshot(workdir)
    piped = position == "pipe"
    ran = run(*LOCATIONS[position], stdin=content if piped else b"")
    refused(ran, "standard input" if piped else "bad.npy", reason)
    assert snapshot(workdir) == before


def test_claims_on_a_pipe_take_no_memory(workdir: Path) -> None:
    before = snapshot(workdir)
    for row in (
        "a header of 4 GiB",
        "a header of 20 kB",
        "claims 4 TiB",
        "text of length 0",
        "elements of 2**31 - 1 bytes",
    ):
        ran = run("gather-nd", "-", "idx.npy", "-o", "out.npy", stdin=REFUSED_NPY[row][0])
        refused(ran, "standard input", "")
    assert snapshot(workdir) == before


def gathered(data: object, **options: object) -> np.ndarray:
    """Return the result of a gather of both rows of `data`, in reverse order."""
    ran = run("gather-nd", data, "idx.npy", "-o", "out.npy", **options)
    assert (ran.status, ran.out, ran.err) == (0, b"", "")
    return np.load("out.npy")


def test_bytes_after_the_array() -> None:
    Path("long.npy").write_bytes(lying() + b"12345")
    ran = run("gather-nd", "long.npy", "idx.npy", "-o", "out.npy")
    assert (ran.status, ran.err) == (0, "warning: long.npy: 5 bytes after the array are ignored\n")
    assert np.array_equal(np.load("out.npy"), DATA[::-1])


STRUCTURED = np.zeros((2, 3), [("a", "<f4"), ("b", ">i2", (2,))])
STRUCTURED["a"] = np.arange(6).reshape(2, 3)
ODD_TYPES = {
    "records": STRUCTURED,
    "void of 8 bytes": np.arange(6, dtype="<i8").reshape(2, 3).view("V8"),
    "datetimes": np.arange(6).reshape(2, 3).astype("<M8[ns]"),
    "timedeltas": np.arange(6).reshape(2, 3).astype("<m8[s]"),
    "long doubles": np.arange(6).reshape(2, 3).astype(np.longdouble),
    "text": np.array([["a", "bc"], ["d", ""]], "<U2"),
    "bfloat16 as V2": np.arange(6, dtype="<u2").reshape(2, 3).view("V2"),
}


@pytest.mark.parametrize("row", ODD_TYPES)
def test_types_that_only_move(row: str, workdir: Path) -> None:
    array = ODD_TYPES[row]
    save(data=array, upd=array)
    result = gathered("data.npy")
    assert result.dtype == array.dtype
    assert result.tobytes() == array[::-1].tobytes()
    before = snapshot(workdir)
    scatter = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "-o", "out.npy", "--reduction")
    for reduction in ("add", "max"):
        ran = run(*scatter, reduction)
        refused(ran, "", "reduction", 4)
        assert "data.npy" in ran.err
        assert ("--dtype bfloat16" in ran.err) == (row == "bfloat16 as V2")
        assert snapshot(workdir) == before
    if row == "bfloat16 as V2":
        pytest.importorskip("ml_dtypes")
        assert run(*scatter, "add", "--dtype", "bfloat16").status == 0


def test_big_endian_arrays() -> None:
    save(data=DATA.astype(">f4"), upd=np.ones((2, 3, 4), ">f4"), more=IDX.astype(">i4"))
    assert gathered("data.npy").dtype == ">f4"
    scatter = ("scatter-nd", "data.npy", "more.npy", "upd.npy", "-o", "out.npy")
    assert run(*scatter, "--reduction", "add").status == 0
    assert np.load("out.npy").dtype == ">f4"
    assert np.array_equal(np.load("out.npy"), DATA + 1)


def test_bool_bytes_that_are_no_bools() -> None:
    Path("bool.npy").write_bytes(lying(header("'|b1'", shape="(2, 2)"), bytes([2, 0, 255, 1])))
    assert gathered("bool.npy").tobytes() == bytes([255, 1, 2, 0])
    scatter = ("scatter-nd", "bool.npy", "idx.npy", "bool.npy", "-o", "out.npy")
    assert run(*scatter, "--reduction", "max").status == 0
    assert np.load("out.npy").view("u1").tolist() == [[1, 1], [1, 1]]


@pytest.mark.parametrize("skip", [1, 2, 7])
def test_data_at_odd_offsets(skip: int) -> None:
    data = np.arange(40_000, dtype="<i8").reshape(2, -1)
    text = header("'<i8'", shape=str(data.shape)).ljust(100 + skip)
    Path("odd.npy").write_bytes(lying(text, data.tobytes()))
    assert np.array_equal(gathered("odd.npy"), data[::-1])
    scatter = ("scatter-nd", "odd.npy", "idx.npy", "odd.npy", "-o", "out.npy")
    assert run(*scatter, "--reduction", "add").status == 0
    assert np.array_equal(np.load("out.npy"), data + data[::-1])


def test_a_file_is_recognized_by_content() -> None:
    np.savez("archive", a=DATA)
    os.rename("archive.npz", "archive.npy")
    save(array=DATA)
    os.rename("array.npy", "array.npz")
    assert np.array_equal(gathered("archive.npy"), DATA[::-1])
    assert np.array_equal(gathered("array.npz"), DATA[::-1])


def test_files_that_are_not_regular(workdir: Path) -> None:
    os.mkdir("folder")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sock")
        before = snapshot(workdir)
        for name, reason in (
            ("folder", "is a directory"),
            ("sock", "is a socket"),
            ("/dev/zero", "is a device"),
        ):
            for run_of in (("gather-nd", name, "idx.npy"), ("gather-nd", "out.npy", name)):
                refused(
                    run(*run_of, "-o", "out.npy"), name, f"{reason}: expected a file with arrays"
                )
        refused(run("gather-nd", "-", "idx.npy", "-o", "out.npy"), "standard input", "no data")
        assert snapshot(workdir) == before


def test_no_permission_to_read(workdir: Path) -> None:
    save(data=DATA)
    before = snapshot(workdir)
    os.chmod("data.npy", 0)
    ran = run(
        "gather-nd", "data.npy", "idx.npy", "-o", "out.npy", preexec_fn=drop_root_capabilities
    )
    refused(ran, "data.npy", "Permission denied")
    os.chmod("data.npy", 0o600)
    assert snapshot(workdir) == before


# Archives


def packed(
    *members: tuple[str, bytes], method: int = zipfile.ZIP_STORED, comment: bytes = b""
) -> bytearray:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        archive.comment = comment
        for name, content in members:
            archive.writestr(name, content)
    return bytearray(stream.getvalue())


LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
ONE = packed(("a.npy", npy(DATA)))
DEFLATED = packed(("a.npy", npy(DATA)), method=zipfile.ZIP_DEFLATED)


def patched(raw: bytearray, *fields: tuple[str, bytes, int, int]) -> bytes:
    """Return an archive with other numbers at offset `at` from its only signature of a kind."""
    raw = bytearray(raw)
    for form, signature, at, value in fields:
        struct.pack_into(form, raw, raw.index(signature) + at, value)
    return bytes(raw)


def sizes(raw: bytearray, value: int, *, stored: bool = False) -> bytes:
    """Return an archive whose only member declares another size, in both headers."""
    fields = [("<I", LOCAL, 22, value), ("<I", CENTRAL, 24, value)]
    if stored:
        fields += [("<I", LOCAL, 18, value), ("<I", CENTRAL, 20, value)]
    return patched(raw, *fields)


def flipped(raw: bytearray, part: bytes) -> bytes:
    raw = bytearray(raw)
    raw[raw.index(part) + len(part) // 2] ^= 1
    return bytes(raw)


def twice(first: str, second: str) -> bytes:
    """Return an archive with two members of equal, or nearly equal, names."""
    raw = packed((first, npy(DATA)), ("#" * len(second), npy(-DATA)))
    return bytes(raw).replace(b"#" * len(second), second.encode())


def bomb(nbytes: int) -> bytes:
    """Return an archive with a member of `nbytes` zeros, compressed by a factor of 1000."""
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    block = packer.compress(bytes(1 << 24)) + packer.flush(zlib.Z_FULL_FLUSH)
    stream = block * (nbytes >> 24) + packer.flush()
    head = struct.pack("<4s5H3L2H", LOCAL, 20, 0, 8, 0, 33, 0, len(stream), nbytes, 5, 0)
    entry = struct.pack("<4s6H3L5H2L", CENTRAL, 20, 20, 0, 8, 0, 33, 0, len(stream), nbytes, 5,
                        0, 0, 0, 0, 0, 0)  # fmt: skip
    start = len(head) + 5 + len(stream)
    end = struct.pack("<4s4H2LH", END, 0, 0, 1, 1, len(entry) + 5, start, 0)
    return head + b"a.npy" + stream + entry + b"a.npy" + end


LIES = {
    "ten bytes missing": (bytes(ONE[:-10]), "", "truncated: it has no end"),
    "half of it missing": (bytes(ONE[: len(ONE) // 2]), "", "truncated: it has no end"),
    "a flipped bit, stored": (flipped(ONE, RAW), ":a", "CRC .* damaged"),
    "another sum, deflated": (patched(DEFLATED, ("<I", LOCAL, 14, 1), ("<I", CENTRAL, 16, 1)), ":a", "CRC"),
    "a flipped bit, deflated": (flipped(DEFLATED, bytes(DEFLATED[40:60])), ":a", ""),
    "a bomb beyond the limit": (bomb(4080 << 20), ":a", "valid up to 1073741824"),
    "a bomb that claims little": (sizes(bytearray(bomb(1 << 24)), 1 << 20), ":a", "more than the 1048576"),
    "claims 4 GiB, stored": (sizes(ONE, 2**32 - 2, stored=True), ":a", "claims 4294967294 bytes, only"),
    "claims 4 GiB, deflated": (sizes(DEFLATED, 2**32 - 2), ":a", "cannot expand to"),
    "a name twice": (twice("a.npy", "a.npy"), "", "two members have the name 'a'"),
    "a name with and without .npy": (twice("a.npy", "a"), "", "two members have the name 'a'"),
    "a member of text": (bytes(packed(("a.txt", b"hello"))), ":a.txt", "not a .npy array: it starts"),
    "an archive inside": (bytes(packed(("a.npz", bytes(ONE)))), ":a.npz", "not a .npy array: it starts"),
    "cut after an archive inside": (bytes(packed(("a.npz", bytes(ONE)))[:-40]), "", "truncated|extends past|damaged"),
    "a member of no bytes": (bytes(packed(("a.npy", b""))), ":a", "no data"),
    "a member one byte short": (bytes(packed(("a.npy", npy(DATA)[:-1]))), ":a", "expected 96 bytes .* found 95"),
    "pickled objects": (bytes(packed(("a.npy", REFUSED_NPY["pickled objects"][0]))), ":a", "objects are never read"),
    "encrypted": (patched(ONE, ("<H", LOCAL, 6, 1), ("<H", CENTRAL, 8, 1)), ":a", "encrypted"),
    "an unknown method": (patched(ONE, ("<H", LOCAL, 8, 99), ("<H", CENTRAL, 10, 99)), ":a", "method 99: v"),
    "another size in the directory": (patched(ONE, ("<I", CENTRAL, 24, 128)), ":a", "disagree"),
    "both sizes are others": (patched(ONE, ("<I", CENTRAL, 24, 9), ("<I", CENTRAL, 20, 9)), ":a", "disagree"),
    "another offset": (patched(ONE, ("<I", CENTRAL, 42, 7)), ":a", "expected a local file header at byte 7"),
    "an offset past the end": (patched(ONE, ("<I", CENTRAL, 42, 2**31)), ":a", "expected a local file header at byte"),
    "a directory past the end": (patched(ONE, ("<I", END, 16, 2**31)), "", "extends past"),
    "a directory too long": (patched(ONE, ("<I", END, 12, 2**31)), "", "extends past"),
    "seven members of one": (patched(ONE, ("<H", END, 8, 7), ("<H", END, 10, 7)), "", "expected 7 entries"),
    "no members": (bytes(packed()), "", "the archive has no arrays"),
}  # fmt: skip


@pytest.mark.parametrize("row", LIES)
def test_bad_npz(row: str, workdir: Path) -> None:
    content, member, reason = LIES[row]
    Path("bad.npz").write_bytes(content)
    before = snapshot(workdir)
    ran = run("gather-nd", "bad.npz", "idx.npy", "-o", "out.npy")
    refused(ran, "bad.npz" + member, reason, 6 if row == "a bomb beyond the limit" else 3)
    assert snapshot(workdir) == before
    assert run("inspect", "bad.npz").status in (0, 3)
    assert snapshot(workdir) == before


def test_names_are_never_paths(workdir: Path) -> None:
    for name in ("../../x.npy", "/abs.npy", "..\\x.npy", "\x1b[31m.npy", "C:x.npy"):
        Path("names.npz").write_bytes(packed((name, npy(DATA)), ("b.npy", npy(-DATA))))
        member = name.removesuffix(".npy")
        assert np.array_equal(gathered(f"names.npz:{member}"), DATA[::-1])
        assert "\x1b" not in run("inspect", "names.npz").out.decode()
    assert sorted(p.name for p in workdir.iterdir()) == ["idx.npy", "names.npz", "out.npy"]


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA, zipfile.ZIP_DEFLATED])
def test_every_method_is_unpacked(method: int) -> None:
    Path("packed.npz").write_bytes(packed(("a.npy", npy(DATA)), method=method))
    assert np.array_equal(gathered("packed.npz"), DATA[::-1])
    assert np.array_equal(gathered("packed.npz:a"), DATA[::-1])


def test_a_script_before_the_archive() -> None:
    Path("script.npz").write_bytes(b"#!/bin/sh\nexit 1\n" + ONE)
    assert np.array_equal(gathered("script.npz"), DATA[::-1])
    Path("comment.npz").write_bytes(packed(("a.npy", npy(DATA)), comment=b"PK\5\6 no end"))
    assert np.array_equal(gathered("comment.npz"), DATA[::-1])


def test_members_that_must_be_named(workdir: Path) -> None:
    np.savez("two.npz", first=DATA, second=DATA[0])
    before = snapshot(workdir)
    ran = run("gather-nd", "two.npz", "idx.npy", "-o", "out.npy")
    refused(ran, "two.npz", "2 members: name one of them", 2)
    assert "first: float32[2,3,4]" in ran.err
    assert "second: float32[3,4]" in ran.err
    ran = run("gather-nd", "two.npz:third", "idx.npy", "-o", "out.npy")
    refused(ran, "two.npz", "third is not a member")
    assert "second: float32[3,4]" in ran.err
    assert snapshot(workdir) == before
    assert np.array_equal(gathered("two.npz:first"), DATA[::-1])


@pytest.mark.slow("a directory of many members is read in bounded memory")
@pytest.mark.usefixtures("without_coverage")
def test_a_hundred_thousand_members(workdir: Path) -> None:
    with zipfile.ZipFile("many.npz", "w") as archive:
        one = npy(np.int8(1))
        for number in range(100_000):
            archive.writestr(f"{number}.npy", one)
        archive.writestr("last.npy", npy(DATA))
    assert np.array_equal(gathered("many.npz:last"), DATA[::-1])
    before = time.process_time()
    zipfile.ZipFile("many.npz").close()
    plain = time.process_time() - before
    before = os.times()  # including children, which forks of another process are not
    limit = limit_resources(AS=ADDRESS_SPACE)
    ran = run("gather-nd", "many.npz", "idx.npy", "-o", "out.npy", preexec_fn=limit)
    after = os.times()
    refused(ran, "many.npz", "100001 members", 2)
    assert "and 99991 more" in ran.err
    # Quadratic time in the members would take minutes; a single pass takes this long.
    assert after.children_user - before.children_user < 20 * plain


@pytest.mark.slow("a member is read by 64-bit offsets")
def test_a_member_beyond_four_gigabytes(workdir: Path) -> None:
    count = (1 << 32) + 5
    with (
        zipfile.ZipFile("large.npz", "w") as archive,
        archive.open(zipfile.ZipInfo("a.npy"), "w", force_zip64=True) as member,
    ):
        member.write(lying(header("'|u1'", shape=f"({count},)"), b""))
        for at in range(0, count, 1 << 24):
            member.write(bytes(min(1 << 24, count - at)))
    save(idx=np.array([[count - 1], [-count]]))
    assert gathered("large.npz:a", preexec_fn=None).tolist() == [0, 0]
