"""The .npz reader validates everything that an archive declares."""

import io
import os
import struct
import sys
import tracemalloc
import zipfile
import zlib
from functools import partial
from unittest.mock import Mock

import inputs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import load, opened
from npyfile import ARRAY, npy, with_header
from strategies import EXAMPLES

from ndtool.errors import InputError, NdtoolError, ResourceError, UsageError
from ndtool.formats import locators
from ndtool.formats import npy as headers
from ndtool.formats.npz import directory, writer
from ndtool.rules.operators import Attributes
from ndtool.runs import operands
from ndtool.runs.calls import OpenCall
from ndtool.runs.request import Request
from ndtool.storage import descriptors

METHODS = {
    "stored": zipfile.ZIP_STORED,
    "deflate": zipfile.ZIP_DEFLATED,
    "bzip2": zipfile.ZIP_BZIP2,
    "lzma": zipfile.ZIP_LZMA,
}


def pack(members, method=zipfile.ZIP_STORED, prefix=b""):
    stream = io.BytesIO(prefix)
    stream.seek(len(prefix))
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, raw in members:
            archive.writestr(name, raw)
    return stream.getvalue()


@pytest.fixture
def write_archive(workdir, all_closed):
    """Write bytes to x.npz in a new current directory."""

    def write(raw):
        (workdir / "x.npz").write_bytes(raw)
        return "x.npz"

    return write


def refused(argument, reason, kind=InputError):
    error = inputs.refused(argument, reason, kind)
    assert error.message.startswith("x.npz")
    return error


def patch_central(raw, offset, form, *values):
    """Change one field of the (first) central directory entry."""
    at = raw.index(b"PK\1\2") + offset
    size = struct.calcsize(form)
    return raw[:at] + struct.pack(form, *values) + raw[at + size :]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [0, 5, 100_000])
def test_every_method_is_unpacked(write_archive, method, count):
    array = np.arange(count, dtype="<i8") % 1000
    path = write_archive(pack([("a.npy", npy(array)), ("b.npy", npy())], METHODS[method]))
    for name in ("a", "a.npy"):
        assert np.array_equal(load(f"{path}:{name}"), array)
    assert np.array_equal(load(f"{path}:b"), ARRAY)
    with opened(f"{path}:a") as source:
        byte_range = source.load()
        assert byte_range.mapped == (method == "stored" and count > 5)
        assert (byte_range.file is None) == (method != "stored")
        assert byte_range.buffer.readonly
        assert byte_range.buffer.format == "B"
    assert [e.label for e in locators.describe(path)] == [f"int64[{count}]", "float32[2,3,4]"]


def test_an_unknown_method(write_archive):
    raw = pack([("a.npy", npy())])
    at = raw.index(b"PK\3\4") + 8
    raw = raw[:at] + struct.pack("<H", 99) + raw[at + 2 :]
    refused(
        write_archive(patch_central(raw, 10, "<H", 99)), "method 99: valid stored, deflate, bzip2"
    )


@pytest.mark.parametrize("removed", [1, 10, 22, 200, 300, 600, 650])
def test_a_truncated_archive(write_archive, removed):
    raw = pack([("a.npy", npy()), ("b.npy", npy())])
    refused(write_archive(raw[:-removed]), "truncated|a .npy array")


def test_an_archive_cut_after_another_inside(write_archive):
    raw = pack([("inner.npz", pack([("a.npy", npy())])), ("b.npy", npy())])
    refused(write_archive(raw[: raw.rindex(b"b.npy") - 40]), "truncated")


@pytest.mark.parametrize("method", METHODS)
def test_damaged_data(write_archive, method):
    raw = bytearray(pack([("a.npy", npy(np.arange(50_000)))], METHODS[method]))
    raw[len(raw) // 2] ^= 4
    refused(write_archive(bytes(raw)), "x.npz:a: .*(CRC|damaged|expected|more than)")


@pytest.mark.parametrize("method", ["bzip2", "lzma", "deflate"])
def test_a_bomb_takes_no_memory(write_archive, method, monkeypatch):
    blank = npy(np.zeros(1 << 20, "u1"))
    raw = pack([("a.npy", blank)], METHODS[method])
    path = write_archive(raw)
    monkeypatch.setenv("NDTOOL_MAX_INFLATE", str(len(blank) - 1))
    tracemalloc.start()
    error = refused(path, f"{len(blank)} bytes decompressed: valid up to", ResourceError)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert f"NDTOOL_MAX_INFLATE={len(blank)}" in error.hint
    monkeypatch.setenv("NDTOOL_MAX_INFLATE", str(len(blank)))
    assert not load(path).any()
    monkeypatch.setenv("NDTOOL_MAX_INFLATE", "much")
    with pytest.raises(UsageError, match="NDTOOL_MAX_INFLATE is 'much': expected bytes"):
        load(path)


def resize(raw, size, packed=None):
    """Change the sizes in the local header and in the central directory."""
    packed = size if packed is None else packed
    local = raw.index(b"PK\3\4") + 18
    raw = raw[:local] + struct.pack("<2L", packed, size) + raw[local + 8 :]
    return patch_central(raw, 20, "<2L", packed, size)


@pytest.mark.parametrize("method", METHODS)
def test_a_member_larger_than_it_claims(write_archive, method):
    raw = pack([("a.npy", npy(np.zeros(1 << 18)))], METHODS[method])
    packed = struct.unpack_from("<L", raw, raw.index(b"PK\1\2") + 20)[0]
    reason = "but its size is 1000" if method == "stored" else "claims|expected"
    refused(write_archive(resize(raw, 1000, packed)), reason)


def test_a_member_that_claims_512_gib(write_archive):
    big = 1 << 39
    wide = struct.pack("<2H2Q", 1, 16, big, big)
    raw = pack([("a.npy", npy())])
    at, end = raw.index(b"PK\1\2"), raw.index(b"PK\5\6")
    entry = bytearray(raw[at:end])
    entry[20:28] = b"\xff" * 8
    entry[30:32] = struct.pack("<H", len(wide))
    length = end - at + len(wide)
    tail = bytearray(raw[end:])
    tail[12:16] = struct.pack("<L", length)
    refused(write_archive(raw[:at] + bytes(entry) + wide + bytes(tail)), "disagree")
    name = b"a.npy"
    head = writer.local_header(name, big, 0)
    end = bytearray(writer.central_directory(name, big, 0))
    body = npy()
    # The central directory is found from the end of the file, whatever its declared offset.
    record = end.index(b"PK\6\6")
    end[record + 48 : record + 56] = struct.pack("<Q", len(head) + len(body))
    refused(write_archive(head + body + bytes(end)), "claims 549755813888 bytes, only")
    text = "{'descr': '<f4', 'fortran_order': False, 'shape': (137438953472,), }"
    lying = with_header(text, bytes(64))
    for method in METHODS.values():
        refused(
            write_archive(pack([("a.npy", lying)], method)), "expected 549755813888 bytes of data"
        )


def test_a_member_larger_than_deflate_can_make_it(write_archive):
    raw = pack([("a.npy", npy())], zipfile.ZIP_DEFLATED)
    packed = struct.unpack_from("<L", raw, raw.index(b"PK\1\2") + 20)[0]
    refused(write_archive(resize(raw, 0x7FFFFFFF, packed)), "cannot expand to 2147483647")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_same_name_twice(write_archive):
    twice = pack([("a.npy", npy()), ("a.npy", npy(ARRAY + 1))])
    refused(write_archive(twice), "two members have the name 'a'")
    refused(write_archive(twice) + ":a", "two members have the name 'a'")
    shadow = pack([("a", b"text"), ("a.npy", npy())])
    refused(write_archive(shadow) + ":a", "two members have the name 'a'")


def test_an_ambiguous_name(write_archive):
    path = write_archive(pack([("a.npy", npy()), ("a.npy.npy", npy(ARRAY + 1))]))
    refused(f"{path}:a.npy", "a.npy is more than one member")
    assert np.array_equal(load(f"{path}:a"), ARRAY)
    assert np.array_equal(load(f"{path}:a.npy.npy"), ARRAY + 1)


@pytest.mark.parametrize("name", ["../../x.npy", "/abs.npy", "b:c.npy", "\xe9\u2203.npy", "d/e"])
def test_names_are_never_paths(write_archive, name):
    path = write_archive(pack([(name, npy()), ("other.npy", npy(ARRAY + 1))]))
    assert np.array_equal(load(f"{path}:{name.removesuffix('.npy')}"), ARRAY)
    assert np.array_equal(load(f"{path}:{name}"), ARRAY)
    assert os.listdir() == ["x.npz"]


@pytest.mark.parametrize("body", [b"", b"text\n", bytes(300), pack([("a.npy", npy())])])
@pytest.mark.parametrize("method", METHODS)
def test_a_member_that_is_no_array(write_archive, body, method):
    path = write_archive(pack([("readme", body), ("a.npy", npy())], METHODS[method]))
    refused(f"{path}:readme", "x.npz:readme: .*(a .npy array)")
    entry = locators.describe(path)[0]
    assert entry.metadata is None
    assert "a .npy array" in entry.problem


@pytest.mark.parametrize("method", METHODS)
def test_a_member_with_too_little_data(write_archive, method):
    refused(
        write_archive(pack([("a.npy", npy()[:-1])], METHODS[method])),
        "expected 96 bytes .* found 95",
    )


def test_a_member_of_pickled_objects(write_archive):
    objects = npy(np.array([{}], dtype=object), pickled=True)
    error = refused(write_archive(pack([("a.npy", objects)])), "objects are never read")
    assert "allow_pickle" not in str(error)


@pytest.mark.parametrize("bit", [1, 0x41])
def test_an_encrypted_member(write_archive, bit):
    raw = pack([("a.npy", npy())])
    at = raw.index(b"PK\3\4") + 6
    raw = raw[:at] + struct.pack("<H", bit) + raw[at + 2 :]
    refused(write_archive(patch_central(raw, 8, "<H", bit)), "encrypted")
    assert locators.describe("x.npz")[0].problem.startswith("the member is encrypted")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("change", [-1, 1, 64])
def test_false_sizes(write_archive, method, change):
    raw = pack([("a.npy", npy())], METHODS[method])
    packed, size = struct.unpack_from("<2L", raw, raw.index(b"PK\1\2") + 20)
    for lie in [(packed, size + change), (packed + change, size), (packed + change, size + change)]:
        refused(write_archive(patch_central(raw, 20, "<2L", *lie)), "x.npz:a: ")
    # Both agree, so only the data can contradict them.
    refused(write_archive(resize(raw, size + change, packed)), "x.npz:a: ")


@pytest.mark.parametrize("offset", [1, 50, 100_000, 0xFFFFFFFE, 0xFFFFFFFF])
def test_false_offsets(write_archive, offset):
    raw = pack([("a.npy", npy()), ("b.npy", npy())])
    refused(
        write_archive(patch_central(raw, 42, "<L", offset)) + ":a",
        "local file header|another member",
    )


def test_the_offset_of_another_member(write_archive):
    raw = pack([("a.npy", npy()), ("b.npy", npy(ARRAY + 1))])
    second = raw.index(b"PK\3\4", 4)
    refused(write_archive(patch_central(raw, 42, "<L", second)) + ":a", "has another member")


@pytest.mark.parametrize(("field", "form"), [(8, "<H"), (10, "<H"), (12, "<L"), (16, "<L")])
@pytest.mark.parametrize("value", [0, 7, 0x7FFF, 0xFFFF])
def test_a_false_end_record(write_archive, field, form, value):
    raw = pack([("a.npy", npy())])
    at = raw.index(b"PK\5\6") + field
    lying = raw[:at] + struct.pack(form, value) + raw[at + struct.calcsize(form) :]
    refused(write_archive(lying), "x.npz")


@pytest.mark.parametrize("method", METHODS)
def test_a_script_before_the_archive(write_archive, method):
    raw = pack([("a.npy", npy())], METHODS[method], prefix=b"#!/bin/sh\nexit 1\n" * 9)
    assert np.array_equal(load(write_archive(raw)), ARRAY)  # offsets relative to the script
    plain = pack([("a.npy", npy())], METHODS[method])
    assert np.array_equal(
        load(write_archive(b"#!/bin/sh\nexit\n" + plain)), ARRAY
    )  # and to the archive


def test_a_script_without_an_archive(write_archive):
    refused(write_archive(b"#!/bin/sh\nexit 1\n" * 9), "not a .npy array: it starts with")


def test_an_empty_archive(write_archive):
    refused(write_archive(pack([])), "no arrays")
    refused(write_archive(pack([])) + ":a", "no arrays")


def test_several_members_and_none_named(write_archive):
    path = write_archive(pack([(f"m{i}.npy", npy(np.zeros((i, 2)))) for i in range(14)]))
    error = refused(path, "14 members: name one", UsageError)
    assert error.places[:2] == ("m0: float64[0,2]", "m1: float64[1,2]")
    assert len(error.places) == 11
    assert error.places[-1] == "and 4 more"


def test_a_member_that_does_not_exist(write_archive):
    path = write_archive(pack([("a.npy", npy()), ("b.npy", b"text")]))
    error = refused(f"{path}:q", "q is not a member")
    assert error.places[0] == "a: float32[2,3,4]"
    assert error.places[1].startswith("b: not a .npy array")
    refused(f"{path}:", "is not a member")


def test_one_member_needs_no_name(write_archive):
    assert np.array_equal(load(write_archive(pack([("a.npy", npy())]))), ARRAY)


def test_a_hundred_thousand_members(write_archive):
    body = npy()
    path = write_archive(pack([(f"arr_{i}.npy", body) for i in range(100_000)]))
    assert np.array_equal(load(f"{path}:arr_99999"), ARRAY)
    with pytest.raises(UsageError, match="100000 members"):
        load(path)


@pytest.mark.parametrize("method", METHODS)
def test_headers_of_many_members_cost_few_reads_and_one_parse(write_archive, method, monkeypatch):
    path = write_archive(pack([(f"arr_{i}.npy", npy()) for i in range(1000)], METHODS[method]))
    reads, parsed = Mock(wraps=os.pread), Mock(wraps=headers.read_header)
    monkeypatch.setattr(directory, "_header_cache", {})
    monkeypatch.setattr(os, "pread", reads)
    monkeypatch.setattr(headers, "read_header", parsed)
    entries = locators.describe(path)
    assert {entry.label for entry in entries} == {"float32[2,3,4]"}
    assert len({entry.position for entry in entries}) == (1000 if method == "stored" else 1)
    assert reads.call_count < 100
    assert parsed.call_count == 1


def test_headers_that_are_remembered_are_few_and_checked_against_their_sizes(write_archive):
    arrays = [np.zeros((i, 1)) for i in range(200)]
    path = write_archive(pack([(f"{i}.npy", npy(array)) for i, array in enumerate(arrays)]))
    for _ in range(2):
        shapes = [entry.metadata.shape for entry in locators.describe(path)]
        assert shapes == [array.shape for array in arrays]
        assert len(directory._header_cache) <= directory._MAX_CACHED
    path = write_archive(pack([("a.npy", npy()), ("b.npy", npy()[:-1])]))
    entries = locators.describe(path)
    assert entries[0].metadata.shape == ARRAY.shape
    assert "expected 96 bytes of data" in entries[1].problem


def test_directory_too_large(write_archive):
    raw = pack([("a.npy", npy())])
    at = raw.index(b"PK\5\6")
    with open("x.npz", "wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 30)
        end = bytearray(raw[at:])
        end[12:20] = struct.pack("<2L", 1 << 29, 1 << 29)
        file.write(end)
    refused("x.npz", "536870912 bytes: valid up to 16777216")


def test_a_member_of_more_than_4_gib(write_archive):
    nbytes = 5 << 30
    head = with_header(f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({nbytes},), }}")
    size = len(head) + nbytes
    name = b"big.npy"
    local = writer.local_header(name, size, 0)
    with open("x.npz", "wb") as file:
        file.write(local + head)
        file.seek(len(local) + size)
        file.write(writer.central_directory(name, size, 0))
        end = file.tell()
    with zipfile.ZipFile("x.npz") as archive:
        assert archive.infolist()[0].file_size == size
    entry = locators.describe("x.npz")[0]
    assert entry.metadata.shape == (nbytes,)
    assert entry.position == len(local) + len(head)
    fd = os.open("x.npz", os.O_RDONLY)
    (member,) = directory.members(partial(descriptors.read_at, fd), end, "x.npz")
    assert (member.size, member.compressed_size, member.name) == (size, size, "big")
    os.close(fd)


def test_streamed_archives_have_their_sums_after_the_data(write_archive):
    class Pipe(io.RawIOBase):
        def __init__(self):
            self.raw = b""

        def writable(self):
            return True

        def write(self, written):
            self.raw += bytes(written)
            return len(written)

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", npy())
        with archive.open("b.npy", "w", force_zip64=True) as file:
            file.write(npy())
    path = write_archive(pipe.raw)
    assert np.array_equal(load(f"{path}:a"), ARRAY)
    assert np.array_equal(load(f"{path}:b"), ARRAY)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.usefixtures("workdir")
def test_files_of_numpy(save):
    arrays = {"a": ARRAY, "wide": np.arange(99_999), "f": np.asfortranarray(ARRAY)}
    save("x.npz", **arrays)
    for name in ("a", "wide"):
        assert np.array_equal(load(f"x.npz:{name}"), arrays[name])
    assert [e.metadata.order for e in locators.describe("x.npz")] == ["C", "C", "F"]


def test_bytes_after_the_array_in_a_member(write_archive):
    for method in METHODS.values():
        path = write_archive(pack([("a.npy", npy() + b"123")], method))
        with opened(path) as source:
            assert source.warning == "x.npz:a: 3 bytes after the array are ignored"
            assert bytes(source.load().buffer) == ARRAY.tobytes()


SEEDS = [pack([("a.npy", npy()), ("b.npy", npy())], m) for m in METHODS.values()]


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.integers(0, 10**6), st.binary(min_size=1, max_size=8)), max_size=4),
    removed=st.integers(0, 40),
)
def test_mutations_never_change_the_answer(tmp_path_factory, seed, edits, removed):
    raw = bytearray(seed)
    for at, written in edits:
        at %= len(raw)
        raw[at : at + len(written)] = written
    raw = raw[: len(raw) - removed]
    path = tmp_path_factory.getbasetemp() / "mutated.npz"
    path.write_bytes(raw)
    try:
        locators.describe(str(path))
        got = load(f"{path}:a")
    except NdtoolError:
        assert raw != seed
    else:
        # Only a CRC of 32 bits detects a change of these bytes.
        assert zlib.crc32(got.tobytes()) == zlib.crc32(ARRAY.tobytes())


def test_a_directory_entry_longer_than_the_directory(write_archive):
    raw = pack([("a.npy", npy())])
    refused(
        write_archive(patch_central(raw, 28, "<H", 60_000)),
        "the central directory is damaged at byte",
    )


def test_a_member_header_longer_than_the_archive(write_archive):
    raw = pack([("a.npy", npy())])
    raw = raw[:28] + struct.pack("<H", 60_000) + raw[30:]
    refused(
        write_archive(raw), f"x.npz:a: expected 60005 bytes at offset 30, found {len(raw) - 30}"
    )


@pytest.mark.parametrize(
    ("at", "byte", "reason"),
    [
        (37, 6, ": no LZMA properties"),
        (38, 1, ": no LZMA properties"),
        (39, 9 * 5 * 5, ": no LZMA properties"),
        (39, 8 + 9 * 4, ""),  # lc + lp may be 4 at most
    ],
)
def test_properties_that_lzma_has_not(write_archive, at, byte, reason):
    raw = bytearray(pack([("a.npy", npy())], zipfile.ZIP_LZMA))
    assert raw[37:39] == b"\5\0"  # after the header, the name and LZMA's version
    raw[at] = byte
    refused(write_archive(bytes(raw)), f"x.npz:a: the compressed bytes are damaged{reason}")


def test_a_member_of_another_volume(write_archive):
    raw = pack([("a.npy", npy())])
    refused(write_archive(patch_central(raw, 34, "<H", 1)), "the archive is split into volumes")


def test_a_zip64_locator_without_record(write_archive, monkeypatch):
    monkeypatch.setattr(writer, "_ZIP64_THRESHOLD", 0)
    name, size, crc = b"a.npy", len(npy()), zlib.crc32(npy())
    raw = writer.local_header(name, size, crc) + npy() + writer.central_directory(name, size, crc)
    assert np.array_equal(load(write_archive(raw)), ARRAY)
    at = raw.rindex(b"PK\6\6")
    refused(write_archive(raw[:at] + b"PK\6\5" + raw[at + 4 :]), "extends past")


def test_other_extra_fields_before_the_sizes(write_archive, monkeypatch):
    monkeypatch.setattr(writer, "_ZIP64_THRESHOLD", 0)
    name, size, crc = b"a.npy", len(npy()), zlib.crc32(npy())
    raw = writer.local_header(name, size, crc) + npy() + writer.central_directory(name, size, crc)
    begin = 30 + len(name)
    end = begin + struct.unpack_from("<H", raw, 28)[0]
    sizes, padding = raw[begin : begin + 20], raw[begin + 20 : end]
    turned = raw[:begin] + padding + sizes + raw[end:]
    assert np.array_equal(load(write_archive(turned)), ARRAY)


@pytest.mark.parametrize("method", METHODS)
def test_a_member_that_becomes_shorter_while_it_is_read(write_archive, method):
    array = np.random.default_rng(0).random(1 << 14)
    raw = pack([("a.npy", npy(array))], METHODS[method])
    path = write_archive(raw)
    fd = os.open(path, os.O_RDONLY)
    try:
        (member,) = directory.members(partial(descriptors.read_at, fd), len(raw), path)
        os.truncate(path, len(raw) // 2)
        with pytest.raises(InputError, match=rf"expected {member.size} bytes, found \d+"):
            directory.check_member(partial(descriptors.read_at, fd), member, path)
    finally:
        os.close(fd)


def test_no_memory_to_unpack(write_archive, monkeypatch):
    def unpack(*_):
        raise MemoryError

    path = write_archive(pack([("a.npy", npy())], zipfile.ZIP_LZMA))
    monkeypatch.setattr(directory, "_decompress_blocks", unpack)
    refused(path, "x.npz:a: not enough memory to decompress it", ResourceError)


@pytest.mark.parametrize(("method", "module"), [("bzip2", "bz2"), ("lzma", "lzma")])
def test_a_python_that_lacks_a_method(write_archive, monkeypatch, method, module):
    path = write_archive(pack([("a.npy", npy())], METHODS[method]))
    monkeypatch.setitem(sys.modules, module, None)
    refused(path, f"x.npz:a: this Python cannot decompress {method}")


def test_data_of_a_compressed_member_know_whether_they_are_aligned(workdir):
    """Headers of other writers may have other padding."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,)}\n"
    raw = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
    assert len(raw) % 8
    with zipfile.ZipFile("x.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("u.npy", raw + np.arange(3.0).tobytes())
    np.save("d.npy", np.zeros(3))
    np.save("i.npy", np.arange(3)[:, None])
    attributes = Attributes(reduction="add")
    request = Request("scatter_nd", "d.npy", "i.npy", "x.npz:u", None, attributes)
    with OpenCall(request) as call:
        loaded = operands.load(call, "updates")
        normalized = loaded.normalized("<", True)
    assert loaded.byte_range.position == len(raw)
    assert np.frombuffer(normalized).tolist() == [0, 1, 2]
    assert np.frombuffer(normalized, np.uint8).ctypes.data % 8 == 0
