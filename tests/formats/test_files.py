"""Inputs: opened, refused, and read from standard input."""

import errno
import os
import pickle
import resource
import socket
from contextlib import contextmanager

import numpy as np
import pytest
from command import ndtool, python
from inputs import assert_refused, load, open_input, piped
from limits import fail_with
from npyfile import ARRAY, npy, npy_with_header, write_sparse

from ndtool.errors import InputError, OutputError, ResourceError, UsageError
from ndtool.formats import locators
from ndtool.formats import npy as headers
from ndtool.formats.streams import Streams
from ndtool.storage import descriptors, local, tempfiles

LARGE = np.arange(1 << 17, dtype="<i8")


def write_file(path, raw):
    with open(path, "wb") as file:
        file.write(raw)


@pytest.fixture(autouse=True)
def temporary_directory(workdir, check_files_closed, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(workdir / "tmp"))
    (workdir / "tmp").mkdir()
    yield
    assert not list((workdir / "tmp").iterdir())


@pytest.mark.parametrize("array", [ARRAY, LARGE, np.asfortranarray(ARRAY), np.zeros((0, 3))])
@pytest.mark.parametrize("name", ["x.npy", "x.npz", "-x.npy", "a b\n[red]\x1b[0m", "\udcff"])
def test_a_file_is_recognized_by_content(array, name):
    write_file(name, npy(array))
    assert np.array_equal(load(name), array)
    with open_input(name) as source:
        metadata, buffer = source.metadata, source.load()
        assert (source.name, source.warning) == (name, None)
        assert (metadata.dtype.descr, metadata.shape) == (array.dtype.str, array.shape)
        assert metadata.block_shape == metadata.shape
        assert metadata.order == ("C" if array.flags.c_contiguous else "F")
        assert metadata.notes == {"npy_version": (1, 0), "offset": 128}
        assert buffer.readonly
        assert buffer.format == "B"
        assert len(buffer) == metadata.nbytes == array.nbytes
        assert source.is_mapped == (array.nbytes > local.MAP_THRESHOLD)
        assert source.position == 128
        for kind in ("random", "sequential", "willneed"):
            source.advise(kind)
            source.advise(kind, 5000, 70_000)
            source.advise(kind, metadata.nbytes, 5)


def test_an_existing_path_takes_precedence_over_a_member():
    np.savez("x.npz", a=ARRAY, b=ARRAY + 2)
    write_file("x.npz:a", npy(ARRAY + 1))
    assert np.array_equal(load("x.npz:a"), ARRAY + 1)
    assert np.array_equal(load("x.npz:b"), ARRAY + 2)
    os.mkdir("d:e")
    np.savez("d:e/x.npz", **{"m:n": ARRAY, "o": ARRAY})
    assert np.array_equal(load("d:e/x.npz:m:n"), ARRAY)


def test_paths_without_a_readable_file():
    assert_refused("x.npy", "x.npy: No such file")
    assert_refused("x.npz:a", "^x.npz: No such file")
    assert_refused("", "No such file")
    assert_refused("a:b", "a:b: No such file")
    assert_refused("n" * 300, "name too long")
    assert_refused("a\0b", "is not a valid file name")
    assert_refused("a\n\x1b[31mb", r"^a\\n\\x1b\[31mb: No such file")
    write_file("plain", npy())
    assert_refused("plain/x", "Not a directory")
    assert_refused("plain:a", "the file holds one array, and has no members")
    os.symlink("loop", "loop")
    assert_refused("loop", "symbolic links")


def test_files_that_are_not_regular():
    os.mkdir("d")
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind("sock")
        assert "standard input" in assert_refused("sock", "sock is a socket: expected").hint
    assert_refused("d", "d is a directory: expected a file with arrays")
    completed = ndtool(
        "inspect", "/dev/tty", start_new_session=True
    )  # no terminal, so none to open
    assert completed.err == "error: /dev/tty is a device: expected a file with arrays\n"
    assert_refused("/dev/zero", "/dev/zero is a device")
    assert_refused("/dev/null", "/dev/null is a device")
    assert_refused("/proc/self/status", "no data|not a .npy")
    for argument in ("/proc/self/mem", "/proc/self/mem:x"):  # reading fails
        assert_refused(argument, "/proc/self/mem: Input/output error|No such file")
    with pytest.raises(InputError, match=r"Input/output error|No such file"):
        locators.model("/proc/self/mem")
    with pytest.raises(InputError, match="is a directory"):
        locators.describe("d")


def test_bytes_after_the_array():
    write_file("x.npy", npy() + b"abcde")
    with open_input("x.npy") as source:
        assert source.warning == "x.npy: 5 bytes after the array are ignored"
        assert bytes(source.load()) == ARRAY.tobytes()
    assert locators.describe("x.npy")[0].warning == source.warning


@pytest.mark.parametrize("padding", [1, 63, 4096])
def test_unaligned_data(padding):
    text = f"{{'descr': '<i8', 'fortran_order': False, 'shape': {LARGE.shape}, }}".ljust(
        padding + 200
    )
    write_file("x.npy", npy_with_header(text, LARGE.tobytes()))
    assert np.array_equal(load("x.npy"), LARGE)


def test_a_sparse_file_of_terabytes():
    nbytes = 1 << 42
    write_sparse("x.npy", "|u1", (nbytes,))
    with open_input("x.npy") as source:
        buffer = source.load()
        assert buffer[nbytes - 1] == 0
        source.advise("random")
        source.advise("willneed", nbytes - 10_000, 4096)
        del buffer


def test_a_file_that_is_truncated():
    write_file("x.npy", npy(LARGE))
    with open_input("x.npy") as source:
        os.truncate("x.npy", 4096)
        with pytest.raises(OutputError, match="changed"):
            source.require_unchanged()
    file = local.open_file("x.npy")
    for nbytes in (8192, 1 << 20):
        with pytest.raises(OutputError, match="it is shorter now"):
            file.read(128, nbytes, "x.npy")
    file.close()


def test_inputs_are_not_modified():
    write_file("x.npy", npy(LARGE))
    os.utime("x.npy", ns=(5, 5))
    load("x.npy")
    assert os.stat("x.npy").st_mtime_ns == 5
    with open_input("x.npy") as source, pytest.raises(TypeError):
        source.load()[0] = 1


def test_closing_during_a_read():
    write_file("x.npy", npy(LARGE))
    source = locators.open_source("x.npy", Streams())
    array = np.frombuffer(source.load(), "<i8")
    pickle_buffer = pickle.PickleBuffer(source.load())
    source.close()
    source.close()
    assert np.array_equal(array, LARGE)
    assert bytes(pickle_buffer) == LARGE.tobytes()


@contextmanager
def stream_of(content, step=1 << 16):
    """Yield standard input that reads content from a pipe."""
    with piped(content, step) as fd:
        yield Streams(fd)


@pytest.mark.parametrize("step", [1, 7, 1000, 1 << 16])
def test_consecutive_arrays_on_a_pipe(step):
    arrays = [ARRAY, np.zeros((0, 2)), np.asfortranarray(ARRAY), np.array(5), ARRAY[0]]
    with stream_of(b"".join(map(npy, arrays)) + b"rest", step) as stdin:
        for array in arrays:
            assert np.array_equal(load("-", stdin), array)
        assert os.read(stdin._fd, 4)[:1] == b"r"


def test_a_nonblocking_pipe_is_read():
    with stream_of(npy(LARGE), 5000) as stdin:
        os.set_blocking(stdin._fd, False)
        assert np.array_equal(load("-", stdin), LARGE)


@pytest.mark.parametrize("large", [False, True])
def test_consecutive_arrays_in_a_file(large):
    arrays = [LARGE if large else ARRAY, np.zeros((0, 2)), ARRAY + 1]
    write_file("x", b"skip" + b"".join(map(npy, arrays)) + b"rest")
    with open("x", "rb", buffering=0) as file:
        file.seek(4)
        stdin = Streams(file.fileno())
        with open_input("-", stdin) as source:
            assert source.is_mapped == large
            source.require_unchanged()
            assert bytes(source.load()) == arrays[0].tobytes()
            for array in arrays[1:]:
                assert np.array_equal(load("-", stdin), array)
            assert file.read() == b"rest"
            assert_refused("-", "standard input, array 4: no data", stdin=stdin)
            os.truncate("x", 1 << 20)
            os.utime("x", ns=(1, 1))
            with pytest.raises(OutputError, match="standard input changed during the run"):
                source.require_unchanged()


def test_standard_input_that_is_no_array(workdir):
    with stream_of(b"") as stdin:
        assert_refused("-", "standard input: no data", stdin=stdin)
    with stream_of(npy()) as stdin:
        load("-", stdin)
        assert_refused("-", "standard input, array 2: no data", stdin=stdin)
    with stream_of(b"PK\3\4" + bytes(100)) as stdin:
        assert "from a file" in assert_refused("-", "not a .npy array", stdin=stdin).hint
    fd = os.open(workdir, os.O_RDONLY)
    assert_refused("-", "standard input: Is a directory", stdin=Streams(fd))
    os.close(fd)
    assert_refused("-", "standard input: it is closed", stdin=Streams(fd))
    for device in ("/dev/null", "/dev/zero"):
        with open(device, "rb") as file:
            assert_refused("-", "no data|not a .npy", stdin=Streams(file.fileno()))
    controller, terminal = os.openpty()
    assert_refused("-", "it is a terminal", UsageError, Streams(terminal))
    os.close(controller)
    os.close(terminal)


def test_no_file_gets_the_descriptor_of_a_closed_standard_input():
    np.save("x.npy", ARRAY)
    code = """
import os
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.storage import descriptors
os.close(0)
descriptors.guard_descriptors()
stdin = Streams()
locators.open_source("x.npy", stdin)
locators.open_source("-", stdin)
"""
    for program in (code, code.replace("descriptors.guard_descriptors()", "")):
        assert "InputError: standard input: it is closed" in python(program).err


def test_no_space_for_a_stream(monkeypatch):
    monkeypatch.setattr(tempfiles, "MAX_IN_MEMORY", 1000)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
        with stream_of(npy(LARGE)) as stdin:
            error = assert_refused("-", "no space for .* File too large", ResourceError, stdin)
        assert "TMPDIR" in error.hint
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("directory", ["/nonexistent", "/dev/null", ""])
def test_tmpdir_may_be_invalid(monkeypatch, directory):
    monkeypatch.setenv("TMPDIR", directory)
    monkeypatch.setattr(tempfiles, "MAX_IN_MEMORY", 1000)
    with stream_of(npy(LARGE)) as stdin:
        assert np.array_equal(load("-", stdin), LARGE)


def test_a_disk_error_in_a_header(monkeypatch):
    write_file("x.npy", npy())
    monkeypatch.setattr(os, "pread", fail_with(errno.EIO))
    for read in (locators.describe, load):
        with pytest.raises(InputError, match=r"^x.npy: Input/output error$"):
            read("x.npy")


def test_no_directory_for_temporary_files(monkeypatch):
    monkeypatch.setattr(os, "open", fail_with(errno.EROFS))
    monkeypatch.setattr(tempfiles, "MAX_IN_MEMORY", 10)
    with pytest.raises(ResourceError, match="cannot create a temporary file: Read-only") as excinfo:
        tempfiles.Spool().write(bytes(100))
    assert "TMPDIR" in excinfo.value.hint


def test_short_reads(monkeypatch):
    write_file("x.npy", npy(LARGE))
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, count, offset: pread(fd, min(count, 1000), offset))
    with open("x.npy", "rb") as file:
        assert descriptors.read_at(file.fileno(), 10, 5000) == npy(LARGE)[10:5010]
        size = len(npy(LARGE))
        assert descriptors.read_at(file.fileno(), size - 1500, 5000) == npy(LARGE)[-1500:]


RECORDS = np.zeros(
    (3, 2),
    [("id", ">i8"), ("emb", "<f4", (4,)), ("in", [("a.b", "u1"), ("c", "<f8")]), ("s", "S3")],
)
RECORDS["id"] = np.arange(6).reshape(3, 2)
RECORDS["emb"] = np.arange(24).reshape(3, 2, 4)
RECORDS["in"]["a.b"] = 7
RECORDS["in"]["c"] = RECORDS["id"] / 2


@pytest.mark.parametrize("field", ["id", "emb", "in", "in.c", "s"])
def test_a_field_of_records(field, monkeypatch):
    write_file("s.npy", npy(RECORDS))
    expected = RECORDS
    for part in field.split("."):
        expected = expected[part]
    for block_size in (1 << 20, 1):
        monkeypatch.setattr(headers, "BLOCK_SIZE", block_size)
        result = load(f"s.npy:{field}")
        assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
        assert result.tobytes() == expected.tobytes()
    (entry,) = locators.describe(f"s.npy:{field}")
    assert entry.metadata.shape == expected.shape
    assert load("s.npy").dtype == RECORDS.dtype


def test_fields_that_are_refused():
    write_file("s.npy", npy(RECORDS))
    assert_refused("s.npy:x", "s.npy: no field x: expected one of id, emb, in, s")
    assert_refused("s.npy:in.x", "no field in.x")
    assert_refused("s.npy:id.x", "no field id.x")
    write_file("f.npy", npy(np.asfortranarray(RECORDS)))
    assert_refused("f.npy:emb", "arrays in records in Fortran order")
    assert load("f.npy:id").tolist() == RECORDS["id"].tolist()
    write_file("x.npy", npy(ARRAY))
    assert_refused("x.npy:a", "the file holds one array, and has no members")
    write_file("s.npy", npy(RECORDS)[:-1])
    assert_refused("s.npy:id", "expected 216 bytes of data")
    write_file("s.npy", npy(RECORDS))
    completed = ndtool("gather", "s.npy:emb", "[2]", "-o", "s.npy:id")
    assert completed.status == 2
    assert "fields are read, not written" in completed.err
    assert ndtool("gather", "s.npy:emb", "[2]", "-o", "out.npy").status == 0
    assert np.array_equal(np.load("out.npy"), RECORDS["emb"][[2]])
