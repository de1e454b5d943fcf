"""Writing one member of an archive preserves the others byte for byte, or the run is refused."""

import io
import os
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from command import ndtool, save
from hostile import ARCHIVES, pack
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from inputs import load
from limits import drop_root_capabilities, fail_with
from npyfile import ARRAY, npy
from outputs import fill, list_preserved_members, open_sink
from outputs import save as write
from test_faults import run_with_faults

from ndtool.errors import OutputError, ResourceError, UsageError
from ndtool.formats.npz import archive as reader
from ndtool.formats.npz import writer
from ndtool.publish import sinks

LARGE = np.arange(1 << 16)
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
HAS_COPY = pytest.mark.parametrize("system", ["system copies", "copied here"])
ENTRY_FIELDS = (
    "orig_filename", "comment", "create_system", "create_version", "extract_version", "flag_bits",
    "compress_type", "date_time", "CRC", "file_size", "internal_attr", "external_attr",
)  # fmt: skip
DATA, IDX, UPD = np.arange(600.0).reshape(20, 30), np.array([[3], [0], [3]]), np.ones((3, 30))


pytestmark = pytest.mark.usefixtures("clean_workdir", "check_files_closed")


class RawMember(NamedTuple):
    """A member: its header with name and extra field, data, fields of the central directory."""

    name: str
    header: bytes
    data: bytes
    entry: dict[str, Any]


def split_archive(raw: bytes) -> list[RawMember]:
    """Split an archive; entries are without header offsets and ZIP64 fields."""
    members = []
    for info in zipfile.ZipFile(io.BytesIO(raw)).infolist():
        begin = info.header_offset
        data = begin + 30 + sum(struct.unpack_from("<2H", raw, begin + 26))
        fields = {name: getattr(info, name) for name in ENTRY_FIELDS}
        fields["extra"] = reader.without_zip64(info.extra)
        stop = data + info.compress_size
        members.append(RawMember(info.filename, raw[begin:data], raw[data:stop], fields))
    return members


def unusual_archive() -> bytes:
    """Return an archive with members of all kinds that other writers produce."""

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

        def seek(self, *_: int) -> int:
            raise OSError

        tell = seek  # type: ignore[assignment]

    pipe = Pipe()
    with zipfile.ZipFile(pipe, "w") as archive:
        archive.comment = b"what it is about \xff PK"
        for method in METHODS:
            archive.writestr(f"m{method}.npy", npy(ARRAY), method)
        with archive.open("wide.npy", "w", force_zip64=True) as file:
            file.write(npy(ARRAY))
        info = zipfile.ZipInfo("folder/", (2001, 2, 3, 4, 5, 6))
        info.external_attr = 0o40755 << 16
        archive.writestr(info, b"")
        info = zipfile.ZipInfo("extra \u2203.npy", (1999, 12, 31, 23, 59, 58))
        info.comment, info.extra, info.create_system = b"a comment", b"\xca\xfe\x04\x00abcd", 7
        archive.writestr(info, npy(LARGE))
        archive.writestr("text", "no array, no .npy")
    raw = bytearray(pipe.getvalue())
    entry = raw.index(b"PK\1\2")
    raw[entry + 8] |= 1  # encrypted, according to the central directory
    raw[raw.index(b"PK\1\2", entry + 4) + 10] = 99  # an unknown method
    return bytes(raw)


@pytest.mark.filterwarnings("ignore:Duplicate name")
def duplicate_name_archive() -> bytes:
    return pack(("same.npy", npy(ARRAY)), ("same.npy", npy(LARGE)), ("x.npy", npy(ARRAY)))


def check(before: bytes, name: str, array: Any = ARRAY) -> bytes:
    """Write a member and compare all others with the old ones; return the archive."""
    Path("a.npz").write_bytes(before)
    preserved = write(f"a.npz:{name}", array)
    after = Path("a.npz").read_bytes()
    *others, new = split_archive(after)
    stay = [raw for raw in split_archive(before) if raw.name != f"{name}.npy"]
    assert others == stay
    assert preserved == tuple(raw.name.removesuffix(".npy") for raw in stay)
    assert new.name == f"{name}.npy"
    assert new.data == npy(array)
    archive = zipfile.ZipFile(io.BytesIO(after))
    assert archive.comment == zipfile.ZipFile(io.BytesIO(before)).comment
    position = archive.infolist()[-1].header_offset + len(new.header)
    assert position % 64 == 0
    return after


def copy_method(system: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if system != "system copies":
        monkeypatch.setattr(os, "copy_file_range", fail_with(18))


@HAS_COPY
@pytest.mark.parametrize(
    ("name", "method"),
    list(zip(["new", "a", "b", "c", "\xe9\u2203", "d/e"], METHODS * 2, strict=False)),
)
def test_other_members_are_preserved(
    name: str, method: int, system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_method(system, monkeypatch)
    members = [("a.npy", npy(ARRAY)), ("b.npy", npy(LARGE)), ("c.npy", npy(ARRAY + 1))]
    before = pack(*members, method=method, comment=b"comment")
    after = check(before, name, ARRAY + 2)
    with zipfile.ZipFile("a.npz") as archive:
        assert archive.testzip() is None
    with np.load("a.npz") as archive:
        expected = {"a": ARRAY, "b": LARGE, "c": ARRAY + 1, name: ARRAY + 2}
        assert set(archive.files) == set(expected)
        for key, array in expected.items():
            assert np.array_equal(archive[key], array)
            assert np.array_equal(load(f"a.npz:{key}"), array)
    if name not in "abc":
        start = zipfile.ZipFile(io.BytesIO(before)).start_dir
        assert after[:start] == before[:start]


@pytest.mark.parametrize("name", ["new", "m0", "m8", "m12", "m14", "wide", "extra \u2203"])
def test_unreadable_members_are_preserved(name: str) -> None:
    check(unusual_archive(), name, LARGE)


@pytest.mark.parametrize("name", ["folder/", "text"])
def test_a_member_without_npy_suffix_is_never_replaced(name: str) -> None:
    """Nor is an array added under a name that readers could not tell from it."""
    before = unusual_archive()
    Path("a.npz").write_bytes(before)
    for attempt in (write, list_preserved_members):
        with pytest.raises(OutputError, match=f"a member {name} whose name does not end in .npy"):
            attempt(f"a.npz:{name}")
    assert Path("a.npz").read_bytes() == before


def test_a_member_whose_stored_name_is_what_another_is_called_is_not_added() -> None:
    before = pack(("a.npy.npy", npy(LARGE)), ("b.npy", npy(ARRAY)))
    Path("a.npz").write_bytes(before)
    with pytest.raises(OutputError, match=r"a\.npz has a member a\.npy, stored as a\.npy\.npy"):
        write("a.npz:a.npy")
    assert Path("a.npz").read_bytes() == before


@pytest.mark.parametrize("name", ["new", "same", "x"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_members_of_one_name(name: str) -> None:
    after = check(duplicate_name_archive(), name)
    assert len(split_archive(after)) == {"new": 4, "same": 2, "x": 3}[name]


def test_a_name_in_another_encoding_is_the_same_name() -> None:
    raw = pack(("\xe9.npy", npy(ARRAY)), ("b.npy", npy(ARRAY)))
    raw = raw.replace(b"\xc3\xa9", b"\x82\x2d")  # cp437's e acute, and a hyphen
    raw = raw.replace(struct.pack("<H", 0x800), bytes(2))
    Path("a.npz").write_bytes(raw)
    assert write("a.npz:\xe9-", ARRAY + 1) == ("b",)
    assert np.array_equal(load("a.npz:\xe9-"), ARRAY + 1)


@pytest.mark.parametrize("member", ["m" + chr(code) for code in (0xDCFF, 0xD800, 0)], ids=ascii)
def test_a_name_that_numpy_cannot_read_is_refused(member: str) -> None:
    before = pack(("a.npy", npy(ARRAY)))
    Path("x.npz").write_bytes(before)
    with pytest.raises(
        UsageError, match=r"the member's name .* (is not UTF-8|has a NUL)"
    ) as refused:
        list_preserved_members(f"x.npz:{member}")
    assert refused.value.message.isprintable()
    assert Path("x.npz").read_bytes() == before


@pytest.mark.parametrize("counted", [True, False], ids=["offsets count it", "and do not"])
@pytest.mark.parametrize(("name", "is_zip64"), [("new", False), ("a", True), ("b", False)])
def test_bytes_before_the_archive_stay(
    name: str, counted: bool, is_zip64: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_zip64:
        monkeypatch.setattr(writer, "_ZIP64_THRESHOLD", 0)
    script = b"#!/bin/sh\nexit 1\n" * 9
    members = [("a.npy", npy(ARRAY)), ("b.npy", npy(ARRAY + 1))]
    stream = io.BytesIO(script if counted else b"")
    stream.seek(0, io.SEEK_END)
    with zipfile.ZipFile(stream, "w") as archive:
        for member in members:
            archive.writestr(*member)
    before = stream.getvalue() if counted else script + stream.getvalue()
    after = check(before, name, ARRAY + 2)
    assert after.startswith(script)
    assert np.array_equal(load(f"a.npz:{name}"), ARRAY + 2)
    assert zipfile.ZipFile(io.BytesIO(after)).testzip() is None


def test_an_archive_without_members_and_one_with_only_that() -> None:
    for before in (pack(), pack(("x.npy", npy(LARGE)))):
        assert split_archive(check(before, "x"))[0].data == npy(ARRAY)
    write("new.npz:x")
    assert Path("a.npz").read_bytes() == Path("new.npz").read_bytes()


names = st.sampled_from(["a", "b", "c", "d", "\xe9"])
arrays = st.integers(0, 3000).map(lambda n: np.arange(n, dtype="u1"))


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    methods=st.lists(st.sampled_from(METHODS), max_size=4),
    writes=st.lists(st.tuples(names, arrays), min_size=1, max_size=6),
    wide=st.booleans(),
)
def test_any_sequence_of_writes(
    methods: list[int], writes: list[tuple[str, Any]], wide: bool
) -> None:
    model = {f"old{i}": np.arange(100 + i) for i in range(len(methods))}
    with zipfile.ZipFile("a.npz", "w") as archive:
        for (name, array), method in zip(model.items(), methods, strict=True):
            archive.writestr(f"{name}.npy", npy(array), method)
    with pytest.MonkeyPatch.context() as patch:
        if wide:
            patch.setattr(writer, "_ZIP64_THRESHOLD", 0)
        for name, array in writes:
            model[name] = array
            check(Path("a.npz").read_bytes(), name, array)
    with np.load("a.npz") as archive:
        assert sorted(archive.files) == sorted(model)
        for name, array in model.items():
            assert np.array_equal(archive[name], array)
            assert np.array_equal(load(f"a.npz:{name}"), array)


@pytest.mark.slow("members are preserved where offsets need ZIP64")
def test_members_beyond_4_gib() -> None:
    size, name = (1 << 32) + 5, b"big"
    with open("a.npz", "wb") as file:  # a hole, whose CRC is not read
        file.write(writer.local_header(name, size, 0))
        file.seek(size, io.SEEK_CUR)
        file.write(writer.central_directory(name, size, 0))
    try:
        assert write("a.npz:first") == ("big",)
        assert write("a.npz:second", LARGE) == ("big", "first")
        assert write("a.npz:first", ARRAY + 1) == ("big", "second")
    except ResourceError:
        pytest.skip("no space for 4 GiB")
    with zipfile.ZipFile("a.npz") as archive:
        assert [info.header_offset > size for info in archive.infolist()] == [False, True, True]
        assert archive.infolist()[0].file_size == size
    with np.load("a.npz") as arrays:
        assert np.array_equal(arrays["first"], ARRAY + 1)
        assert np.array_equal(arrays["second"], LARGE)
    assert np.array_equal(load("a.npz:first"), ARRAY + 1)
    os.unlink("a.npz")


@HAS_COPY
def test_copying_preserved_members_uses_little_memory(
    system: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_method(system, monkeypatch)
    np.savez("a", a=np.zeros(4 << 20), b=ARRAY)
    tracemalloc.start()
    write("a.npz:b", ARRAY + 1)
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()
    assert not load("a.npz:a").any()


DAMAGED = (
    "1 bytes missing", "300 bytes missing", "a script", "a header beyond the end", "offset 7",
    "offset 100000", "a directory past the end", "a directory too long", "end record 10 is 7",
)  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGED)
@pytest.mark.parametrize(
    "options", [("--no-trace",), ("--dry-run", "--no-trace")], ids=["run", "dry run"]
)
def test_members_that_cannot_be_preserved_are_not_lost(kind: str, options: tuple[str, ...]) -> None:
    raw = ARCHIVES[kind][0]
    save(data=DATA, idx=IDX)
    Path("a.npz").write_bytes(raw)
    result = ndtool("gather-nd", "data.npy", "idx.npy", "-o", "a.npz:new", *options)
    assert (result.status, result.out) == (7, b"")
    assert result.err.startswith("error: a.npz")
    assert "hint: --only" in result.err
    assert Path("a.npz").read_bytes() == raw
    result = ndtool("gather-nd", "data.npy", "idx.npy", "-o", "a.npz:a", "--only", *options)
    assert (result.status, result.err.partition("plan: ")[0]) == (0, "")
    if "--dry-run" not in options:
        with np.load("a.npz") as archive:
            assert archive.files == ["a"]


def test_a_directory_that_would_be_too_long_to_read(monkeypatch: pytest.MonkeyPatch) -> None:
    write("a.npz:a")
    before = Path("a.npz").read_bytes()
    monkeypatch.setattr(reader, "MAX_DIRECTORY_BYTES", 100)
    with pytest.raises(OutputError, match=r"a.npz: central directory of \d+ bytes: at most 100"):
        write("a.npz:b")
    assert Path("a.npz").read_bytes() == before


def test_an_archive_that_changes_meanwhile() -> None:
    write("a.npz:a")
    for change, expected_text in (
        (lambda: write("a.npz:b", LARGE), "a.npz was replaced during the run"),
        (lambda: os.utime("a.npz", ns=(1, 1)), "a.npz changed during the run"),
        (lambda: os.truncate("a.npz", 100), "a.npz changed during the run"),
    ):
        out = open_sink("a.npz:c")
        change()
        before = Path("a.npz").read_bytes()
        fill(out, ARRAY)
        with pytest.raises(OutputError, match=expected_text):
            sinks.commit(out)
        out.abort()
        assert Path("a.npz").read_bytes() == before
        write("a.npz:a", only=True)
    out = open_sink("new.npz:c")
    write("new.npz:b")
    with pytest.raises(OutputError, match=r"new.npz was created by another process during the run"):
        sinks.commit(out)
    out.abort()
    assert np.array_equal(load("new.npz:b"), ARRAY)


def test_an_archive_that_becomes_shorter_while_it_is_copied(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write("a.npz:a", LARGE)

    def cut(*_: object) -> int:
        os.truncate("a.npz", 1000)
        return 0

    monkeypatch.setattr(os, "copy_file_range", cut)
    with pytest.raises(OutputError, match=r"^a.npz changed during the run$"):
        write("a.npz:b")


def test_an_archive_that_may_not_be_read() -> None:
    np.savez("a", **inputs())
    save(data=DATA, idx=IDX)
    os.chmod("a.npz", 0o200)
    run = ("gather-nd", "data.npy", "idx.npy", "-o", "a.npz:b")
    result = ndtool(*run, preexec_fn=drop_root_capabilities)
    assert (result.status, result.err.splitlines()[0]) == (7, "error: a.npz: Permission denied")


def file_of_two_arrays(kind: str) -> bytes:
    """Return a file of two arrays, a and b."""
    if kind == "npz":
        return pack(("a.npy", npy(ARRAY)), ("b.npy", npy(LARGE)))
    write("made.safetensors:a", only=True)
    write("made.safetensors:b")
    raw = Path("made.safetensors").read_bytes()
    os.unlink("made.safetensors")
    return raw


@pytest.mark.parametrize("kind", ["npz", "safetensors"])
@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x", "npy:x.npz", "x.pb", "x.npy"])
def test_a_file_of_several_arrays_is_replaced_with_only_alone(kind: str, name: str) -> None:
    raw, path = file_of_two_arrays(kind), Path(name.removeprefix("npy:"))
    save(data=DATA, idx=IDX)
    path.write_bytes(raw)
    run = ("gather-nd", "data.npy", "idx.npy", "--no-trace", "-o", name)
    for options in ((), ("--dry-run",), ("--no-clobber",)):
        result = ndtool(*run, *options)
        assert result.status == 7
        if options != ("--no-clobber",):
            assert result.err.splitlines() == [
                f"error: {path} has 2 arrays: which is to be written?",
                "  --> a",
                "      b",
                "  hint: "
                + f"name it, as {path}:a; " * (name != "x.pb")
                + "--only replaces the whole file",
            ]
        assert path.read_bytes() == raw
    assert ndtool(*run, "--only").status == 0
    assert np.array_equal(load(str(path)), DATA[IDX[:, 0]])


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors", "x"])
def test_a_file_of_one_array_or_of_none_is_replaced(name: str) -> None:
    for previous_content in (b"", b"no arrays", npy(LARGE), pack(), pack(("any.npy", npy(LARGE)))):
        Path(name).write_bytes(previous_content)
        write(name)
        assert np.array_equal(load(name), ARRAY)
    write("one.safetensors:any")
    os.replace("one.safetensors", name)
    write(name)
    assert np.array_equal(load(name), ARRAY)


def test_many_arrays_are_not_all_named() -> None:
    Path("a.npz").write_bytes(pack(*((f"m{i}.npy", b"") for i in range(13))))
    with pytest.raises(OutputError, match=r"a.npz has 13 arrays") as refused:
        write("a.npz")
    assert refused.value.places == (*(f"m{i}" for i in range(10)), "and 3 more")


def inputs() -> dict[str, Any]:
    down = np.zeros(UPD.shape, "i8")
    return {"data": DATA, "indices": IDX, "updates": UPD, "down": down}


def test_runs_report_preserved_members() -> None:
    np.savez("a", **inputs())
    run = ("gather-nd", "a.npz:data", "a.npz:indices", "-o")
    result = ndtool(*run, "a.npz:output", "--json")
    assert result.json["output"]["kept"] == ["data", "indices", "updates", "down"]
    assert ndtool(*run, "a.npz:output", "--quiet").err == ""
    result = ndtool(*run, "a.npz:data", "--json", "--dry-run")
    assert result.json["output"]["kept"] == ["indices", "updates", "down", "output"]
    result = ndtool(*run, "a.npz:q", "--only", "--json")
    assert "kept" not in result.json["output"]
    with np.load("a.npz") as archive:
        assert archive.files == ["q"]
    for i in range(11):
        write(f"b.npz:m{i}")
    np.savez("a", **inputs())
    result = ndtool(*run, "b.npz:m\n", env={"NDTOOL_ONLY": "0"})
    assert result.err == "preserved m0, m1, m2, m3, m4, m5, m6, m7, m8, m9 and 1 more\n"
    assert ndtool(*run, "b.npz:z", env={"NDTOOL_ONLY": "1"}).err == ""
    with np.load("b.npz") as archive:
        assert archive.files == ["z"]


@pytest.mark.slow("an archive replaced in place survives each failing call")
@pytest.mark.parametrize("unnamed", [True, False], ids=["unnamed", "hidden"])
@pytest.mark.parametrize(
    "wrongs",
    ["EIO,ENOSPC", *(pytest.param(failure, marks=pytest.mark.huge) for failure in ("SIGTERM", "SIGKILL")),
     "SIGTERM+", "SIGKILL+"],
)  # fmt: skip
def test_the_archive_is_complete_despite_failures(
    wrongs: str, unnamed: bool, workdir: Path
) -> None:
    np.savez("a", **inputs())
    before = Path("a.npz").read_bytes()
    run = ("gather-nd", "a.npz:data", "a.npz:indices", "-o", "a.npz:data", "--sync", "-q")
    assert ndtool(*run).status == 0
    after = Path("a.npz").read_bytes()
    Path("a.npz").write_bytes(before)
    calls = "open,pread,pwrite,posix_fallocate,copy_file_range,fsync,link,replace,close,fstat"
    ends = set()
    for where in run_with_faults(calls, wrongs, unnamed, run):
        now = Path("a.npz").read_bytes()
        assert now in (before, after), where
        ends.add(now == after)
        for name in [name for name in os.listdir() if "ndtool-" in name]:
            assert "SIGKILL" in wrongs, where
            os.unlink(name)
        assert os.listdir() == ["a.npz"], where
        Path("a.npz").write_bytes(before)
    assert ends == {True, False}
