"""The .npz reader validates everything that an archive declares."""

import os
import struct
import tracemalloc
import zipfile
from contextlib import closing, suppress
from unittest.mock import Mock

import inputs
import numpy as np
import pytest
from command import ndtool
from hostile import ARCHIVES, CENTRAL, END, METHODS, pack, zip64_everywhere
from inputs import load, open_input
from npyfile import ARRAY, npy, npy_with_header

from ndtool.errors import InputError, ResourceError, UsageError
from ndtool.formats import locators
from ndtool.formats.npz import archive as reader
from ndtool.formats.npz import writer
from ndtool.storage.local import open_file


@pytest.fixture
def write_archive(workdir, check_files_closed):
    """Write bytes to x.npz in a new current directory."""

    def write(raw):
        (workdir / "x.npz").write_bytes(raw)
        return "x.npz"

    return write


def check_refused(argument, reason, error_type=InputError):
    error = inputs.assert_refused(argument, reason, error_type)
    assert error.message.startswith("x.npz")
    return error


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("count", [0, 5, 100_000])
def test_every_method_is_unpacked(write_archive, method, count):
    array = np.arange(count, dtype="<i8") % 1000
    path = write_archive(pack(("a.npy", npy(array)), ("b.npy", npy()), method=METHODS[method]))
    for name in ("a", "a.npy"):
        assert np.array_equal(load(f"{path}:{name}"), array)
    assert np.array_equal(load(f"{path}:b"), ARRAY)
    with open_input(f"{path}:a") as source:
        buffer = source.load()
        assert source.is_mapped == (method == "stored" and count > 5)
        assert (source.file is None) == (method != "stored")
        assert buffer.readonly
        assert buffer.format == "B"
    assert [e.label for e in locators.describe(path)] == [f"int64[{count}]", "float32[2,3,4]"]


@pytest.mark.parametrize("method", ["bzip2", "lzma", "deflate"])
def test_a_bomb_takes_no_memory(write_archive, method, monkeypatch):
    zeros = npy(np.zeros(1 << 20, "u1"))
    raw = pack(("a.npy", zeros), method=METHODS[method])
    path = write_archive(raw)
    monkeypatch.setenv("NDTOOL_MAX_INFLATE", str(len(zeros) - 1))
    tracemalloc.start()
    error = check_refused(path, f"{len(zeros)} bytes decompressed: valid up to", ResourceError)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()
    assert f"NDTOOL_MAX_INFLATE={len(zeros)}" in error.hint
    monkeypatch.setenv("NDTOOL_MAX_INFLATE", str(len(zeros)))
    assert not load(path).any()
    monkeypatch.setenv("NDTOOL_MAX_INFLATE", "much")
    with pytest.raises(UsageError, match="NDTOOL_MAX_INFLATE is 'much': expected bytes"):
        load(path)


@pytest.mark.parametrize(("raw", "member", "reason"), ARCHIVES.values(), ids=ARCHIVES)
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bad_archives_are_refused(write_archive, raw, member, reason):
    error = check_refused(write_archive(raw) + member, reason)
    assert "allow_pickle" not in str(error)
    with suppress(InputError):
        locators.describe("x.npz")


def test_members_of_similar_names_are_told_apart(write_archive):
    path = write_archive(pack(("a.npy", npy()), ("a.npy.npy", npy(ARRAY + 1))))
    assert np.array_equal(load(f"{path}:a"), ARRAY)
    assert np.array_equal(load(f"{path}:a.npy.npy"), ARRAY + 1)


@pytest.mark.parametrize("name", ["../../x.npy", "/abs.npy", "b:c.npy", "\xe9\u2203.npy", "d/e"])
def test_names_are_never_paths(write_archive, name):
    path = write_archive(pack((name, npy()), ("other.npy", npy(ARRAY + 1))))
    assert np.array_equal(load(f"{path}:{name.removesuffix('.npy')}"), ARRAY)
    assert np.array_equal(load(f"{path}:{name}"), ARRAY)
    assert os.listdir() == ["x.npz"]


@pytest.mark.parametrize("method", METHODS)
def test_a_script_before_the_archive_is_skipped(write_archive, method):
    raw = pack(("a.npy", npy()), method=METHODS[method], prefix=b"#!/bin/sh\nexit 1\n" * 9)
    assert np.array_equal(
        load(write_archive(raw)), ARRAY
    )  # offsets count from the start of the file
    archive = pack(("a.npy", npy()), method=METHODS[method])
    assert np.array_equal(
        load(write_archive(b"#!/bin/sh\nexit\n" + archive)), ARRAY
    )  # and from the start of the archive


def test_a_member_of_a_hundred_thousand_is_read(write_archive):
    raw, names = pack(("arr_00000.npy", npy())), [b"arr_%05d.npy" % i for i in range(100_000)]
    start, stop = raw.index(CENTRAL), raw.index(END)
    members = [raw[:start].replace(names[0], name) for name in names]
    entries = [
        raw[start : start + 42] + struct.pack("<L", i * start) + name
        for i, name in enumerate(names)
    ]
    sizes = struct.pack("<2H2L", 0xFFFF, 0xFFFF, sum(map(len, entries)), start * len(names))
    tail = raw[stop : stop + 8] + sizes + raw[stop + 20 :]
    path = write_archive(zip64_everywhere(b"".join([*members, *entries, tail]), count=len(names)))
    assert np.array_equal(load(f"{path}:arr_99999"), ARRAY)
    with pytest.raises(UsageError, match="100000 members"):
        load(path)


@pytest.mark.parametrize("method", ["stored", "deflate"])
def test_headers_of_many_members_cost_few_reads(write_archive, method, monkeypatch):
    body = npy()
    path = write_archive(
        pack(*((f"arr_{i}.npy", body) for i in range(1000)), method=METHODS[method])
    )
    reads = Mock(wraps=os.pread)
    monkeypatch.setattr(os, "pread", reads)
    entries = locators.describe(path)
    assert {entry.label for entry in entries} == {"float32[2,3,4]"}
    assert len({entry.position for entry in entries}) == (1000 if method == "stored" else 1)
    assert reads.call_count < 100


def test_headers_are_checked_against_sizes(write_archive):
    path = write_archive(pack(("a.npy", npy()), ("b.npy", npy()[:-1])))
    entries = locators.describe(path)
    assert entries[0].metadata.shape == ARRAY.shape
    assert "expected 96 bytes of data" in entries[1].problem


def test_a_too_large_directory_is_refused(write_archive):
    raw = pack(("a.npy", npy()))
    offset = raw.index(b"PK\5\6")
    with open("x.npz", "wb") as file:
        file.truncate(1 << 30)
        file.seek(1 << 30)
        end_record = bytearray(raw[offset:])
        end_record[12:20] = struct.pack("<2L", 1 << 29, 1 << 29)
        file.write(end_record)
    check_refused("x.npz", "536870912 bytes: valid up to 16777216")


def test_a_member_of_more_than_4_gib_is_read(write_archive):
    nbytes = 5 << 30
    npy_header = npy_with_header(
        f"{{'descr': '|u1', 'fortran_order': False, 'shape': ({nbytes},), }}"
    )
    size = len(npy_header) + nbytes
    name = b"big.npy"
    local = writer.local_header(name, size, 0)
    with open("x.npz", "wb") as file:
        file.write(local + npy_header)
        file.seek(len(local) + size)
        file.write(writer.central_directory(name, size, 0))
    with zipfile.ZipFile("x.npz") as archive:
        assert archive.infolist()[0].file_size == size
    entry = locators.describe("x.npz")[0]
    assert entry.metadata.shape == (nbytes,)
    assert entry.position == len(local) + len(npy_header)
    with closing(open_file("x.npz")) as file:
        (info,) = reader.Archive(file, "x.npz").infos
    assert (info.file_size, info.compress_size) == (size, size)
    assert reader.array_name(info) == "big"


def test_bytes_after_the_array_in_a_member_are_ignored_with_a_warning(write_archive):
    for method in METHODS.values():
        path = write_archive(pack(("a.npy", npy() + b"123"), method=method))
        with open_input(path) as source:
            assert source.warning == "x.npz:a: 3 bytes after the array are ignored"
            assert bytes(source.load()) == ARRAY.tobytes()


@pytest.mark.parametrize(("comment", "prefix"), [(b"", b""), (b"by hand", b"#!/bin/sh\n")])
def test_zip64_end_records_that_nothing_requires(write_archive, comment, prefix):
    raw = pack(("a.npy", npy()), ("b.npy", npy(ARRAY + 1)))
    path = write_archive(prefix + zip64_everywhere(raw, comment))
    assert np.array_equal(load(f"{path}:b"), ARRAY + 1)
    np.save("idx.npy", [0])
    completed = ndtool("gather", f"{path}:a", "idx.npy", "-o", f"{path}:c")
    assert completed.status == 0, completed.err
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == ["a.npy", "b.npy", "c.npy"]
        assert archive.comment == comment
        assert archive.testzip() is None
    assert np.array_equal(load(f"{path}:b"), ARRAY + 1)
    assert np.array_equal(load(f"{path}:c"), ARRAY[:1])


def test_folders_and_texts_are_no_arrays(write_archive):
    members = [("d/", b""), ("d/a.npy", npy()), ("readme.txt", b"text")]
    path = write_archive(zip64_everywhere(pack(*members)))
    assert np.array_equal(load(path), ARRAY)
    assert [entry.member for entry in locators.describe(path)] == ["d/a", "readme.txt"]


def test_an_archive_of_torch_is_refused_with_the_way_on(write_archive):
    path = write_archive(pack(("x/data.pkl", b"\x80"), ("x/data/0", bytes(8))))
    error = check_refused(path, "an archive of torch.save")
    assert "weights_only=True" in error.hint


def test_a_lack_of_memory_to_decompress_is_reported(write_archive, monkeypatch):
    def unpack(*_):
        raise MemoryError

    path = write_archive(pack(("a.npy", npy()), method=zipfile.ZIP_LZMA))
    monkeypatch.setattr(zipfile.ZipFile, "open", unpack)
    check_refused(path, "x.npz:a: not enough memory to decompress it", ResourceError)
