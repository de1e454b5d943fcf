"""Outputs: complete or absent, at all targets."""

import errno
import os
import shutil
import stat
import sys
import threading
import zipfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from command import execute, ndtool
from inputs import load
from limits import fail_with
from npyfile import ARRAY, npy
from outputs import CREATE_OUTPUT_SCRIPT, fill, metadata_of, open_sink, save, temporary_sink

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, ResourceError, UsageError
from ndtool.formats import locators, outputs
from ndtool.formats.npz import writer
from ndtool.formats.streams import Streams
from ndtool.publish import cleanup, sinks
from ndtool.rules import dtypes
from ndtool.runs import direct
from ndtool.storage import tempfiles

LARGE = np.arange(1 << 17, dtype="<i8")
PREVIOUS = b"old bytes"
METADATA_OF_10_BYTES = metadata_of(np.zeros(10, "u1"))


pytestmark = pytest.mark.usefixtures("clean_workdir", "check_files_closed")


def read_bytes(path):
    with open(path, "rb") as file:
        return file.read()


@pytest.mark.parametrize("mode", ["write", "map", "items"])
@pytest.mark.parametrize("array", [ARRAY, np.zeros((0, 3)), np.array(5), np.array(["ab", "c"])])
def test_same_file_as_numpy(tmpfile_mode, mode, array):
    for _ in range(2):
        save("x.npy", array, mode)
        assert read_bytes("x.npy") == npy(array)
    assert os.listdir() == ["x.npy"]


@pytest.mark.parametrize(("offset", "count"), [(-1, 1), (96, 1), (90, 7)])
def test_writes_outside_the_array_are_refused(offset, count):
    with temporary_sink("x.npy") as out, pytest.raises(ValueError, match="exceed the array of 96"):
        out.write(offset, memoryview(bytes(count)))


def test_an_interrupt_while_publishing_leaves_nothing(tmpfile_mode, monkeypatch):
    with open("x.npy", "wb") as file:
        file.write(PREVIOUS)

    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save("x.npy")
    assert os.listdir() == ["x.npy"]
    assert read_bytes("x.npy") == PREVIOUS


def test_targets_of_links_are_replaced(tmpfile_mode):
    os.mkdir("d")
    with open("d/real.npy", "wb") as file:
        file.write(PREVIOUS)
    os.symlink("d/real.npy", "one")
    os.symlink("one", "two")
    save("two")
    assert os.readlink("two") == "one"
    assert os.readlink("one") == "d/real.npy"
    assert read_bytes("d/real.npy") == npy(ARRAY)
    os.symlink("d", "linked")
    save("linked/real.npy", ARRAY + 1)
    assert read_bytes("d/real.npy") == npy(ARRAY + 1)
    os.symlink("nowhere", "dangling")
    os.symlink("loop", "loop")
    with pytest.raises(OutputError, match="dangling: it is a dangling link"):
        open_sink("dangling")
    with pytest.raises(OutputError, match=r"loop: .*symbolic links"):
        open_sink("loop")


def test_invalid_targets_are_refused_before_any_work():
    os.mkdir("d")
    with open("plain", "wb") as file:
        file.write(PREVIOUS)
    for target, reason in {
        "d": "d is a directory",
        ".": "is a directory",
        "d/": "is a directory",
        "": "an empty name: expected a file name",
        "new/": "new/: expected a file name|No such",
        "none/x.npy": "none/x.npy: there is no folder none",
        "plain/x.npy": "there is no folder plain",
        "n" * 300: "name too long",
        "a\0b": "is not a valid file name",
        "a\n\x1b[1mb/x": r"there is no folder a\\n\\x1b\[1mb",
    }.items():
        with pytest.raises(OutputError, match=reason) as excinfo:
            open_sink(target)
        assert excinfo.value.message.isprintable()
    with pytest.raises(
        OutputError, match=r"^plain:a: the file holds one array, and has no members$"
    ):
        open_sink("plain:a")
    with pytest.raises(UsageError, match="the member has no name"):
        open_sink("x.npz:")
    with pytest.raises(UsageError, match="is over 65276 bytes"):
        open_sink("x.npz:" + "m" * 70_000)
    assert sorted(os.listdir()) == ["d", "plain"]


def test_two_runs_on_one_output(tmpfile_mode):
    with temporary_sink("x.npy") as first, temporary_sink("x.npy") as second:
        first.write(0, memoryview(ARRAY.tobytes()))
        second.write(0, memoryview((ARRAY + 1).tobytes()))
        sinks.commit(first)
        assert read_bytes("x.npy") == npy(ARRAY)
        sinks.commit(second)
    assert read_bytes("x.npy") == npy(ARRAY + 1)


@pytest.mark.parametrize("mode", ["write", "map", "items"])
@pytest.mark.parametrize(
    ("array", "target", "member"),
    [
        (ARRAY, "x.npz", "output"),
        (LARGE, "x.npz:a", "a"),
        (np.zeros((0, 3)), "x.npz:a.npy", "a"),
        (np.array(5), "x.npz:\xe9/\u2203", "\xe9/\u2203"),
    ],
)
def test_archives(tmpfile_mode, mode, array, target, member):
    save(target, array, mode)
    with np.load("x.npz") as archive:
        assert archive.files == [member]
        assert np.array_equal(archive[member], array)
        assert archive[member].dtype == array.dtype
    with zipfile.ZipFile("x.npz") as archive:
        assert archive.testzip() is None
        (info,) = archive.infolist()
        assert info.date_time == (1980, 1, 1, 0, 0, 0)
        assert info.compress_type == zipfile.ZIP_STORED
    (entry,) = locators.describe("x.npz")
    assert entry.position % 64 == 0
    first_content = read_bytes("x.npz")
    with closing(locators.open_source("x.npz", Streams())) as source:
        assert bytes(source.load()) == array.tobytes()
        save(target, array, mode)
    assert read_bytes("x.npz") == first_content


def test_an_existing_output_takes_precedence_over_a_member():
    with open("x.npz:a", "wb") as file:
        file.write(PREVIOUS)
    save("x.npz:a")
    assert read_bytes("x.npz:a") == npy(ARRAY)
    assert os.listdir() == ["x.npz:a"]


@pytest.mark.parametrize("array", [ARRAY, LARGE, np.zeros((0, 3))])
def test_archives_with_64_bit_sizes(monkeypatch, array):
    monkeypatch.setattr(writer, "_ZIP64_THRESHOLD", 0)
    save("x.npz:a", array)
    with np.load("x.npz") as archive:
        assert np.array_equal(archive["a"], array)
    with zipfile.ZipFile("x.npz") as archive:
        assert archive.testzip() is None
    with closing(locators.open_source("x.npz", Streams())) as source:
        assert bytes(source.load()) == array.tobytes()
        assert source.position % 64 == 0


def test_long_names(tmpfile_mode):
    for name in ("n" * 255, "\u2203" * 85, "\udcff" * 200):
        save(name)
        save(name)
        assert read_bytes(name) == npy(ARRAY)


def test_space_is_reserved_first(tmpfile_mode):
    for count in (1 << 50, 1 << 60, 2**63 - 1):
        metadata = ArrayMetadata(dtypes.from_code("<f8"), (count,), "C", (count,), {})
        with pytest.raises(ResourceError, match=r"x.npy: needs \d+ bytes") as excinfo:
            outputs.create(outputs.resolve("x.npy", metadata))
        assert str(8 * count + 128) in excinfo.value.message
    assert os.listdir() == []


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EINVAL, None])
def test_file_systems_that_cannot_reserve(monkeypatch, code):
    if code:
        monkeypatch.setattr(os, "posix_fallocate", fail_with(code))
    else:
        monkeypatch.delattr(os, "posix_fallocate")
    for mode in ("write", "map"):
        save("x.npy", mode=mode)
        assert read_bytes("x.npy") == npy(ARRAY)


@pytest.mark.parametrize("name", ["x.npy", "x.csv"])
def test_a_file_is_synced_before_it_has_its_name_and_its_folder_afterwards(
    tmpfile_mode, name, monkeypatch
):
    synced = []
    monkeypatch.setattr(
        os, "fsync", lambda fd: synced.append((os.path.isdir(fd), os.path.exists(name)))
    )
    save(name, np.ones(3), sync=True)
    assert synced == [(False, False), (True, True)]


class PipeReader:
    """A pipe that a thread reads, and the bytes written to it."""

    def __init__(self):
        self._fd, self.write_fd = os.pipe()
        self.raw = b""
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self):
        while data := os.read(self._fd, 1 << 16):
            self.raw += data

    def close(self):
        os.close(self.write_fd)
        self._thread.join()
        os.close(self._fd)
        return self.raw


def stream_sink(fd, header, metadata=METADATA_OF_10_BYTES, name="standard output", owned=False):
    return sinks.StreamSink(fd, name, metadata, header, owned)


@pytest.mark.parametrize("mode", ["write", "map", "items"])
@pytest.mark.parametrize("array", [ARRAY, LARGE, np.zeros((0, 3)), np.array(5)])
@pytest.mark.parametrize(("memory", "blocking"), [(10, True), (tempfiles.MAX_IN_MEMORY, False)])
def test_streams(monkeypatch, mode, array, memory, blocking):
    monkeypatch.setattr(tempfiles, "MAX_IN_MEMORY", memory)
    reader = PipeReader()
    os.set_blocking(reader.write_fd, blocking)
    out = stream_sink(reader.write_fd, npy(array)[: -array.nbytes or None], metadata_of(array))
    assert out.streamed
    assert out.map() is None
    fill(out, array, mode)
    sinks.commit(out)
    out.abort()
    assert reader.close() == npy(array)


def test_a_stream_takes_bytes_in_order_only():
    reader = PipeReader()
    out = stream_sink(reader.write_fd, b"header")
    for offset, count in ((4, 1), (0, 11)):
        with pytest.raises(ValueError, match=f"at offset {offset} cannot be appended"):
            out.write(offset, memoryview(bytes(count)))
    out.write(0, memoryview(b"1234"))
    with pytest.raises(ValueError, match="only 4 of 10"):
        sinks.commit(out)
    out.abort()
    assert reader.close() == b"header1234"


def test_nothing_is_streamed_before_the_first_write():
    reader = PipeReader()
    out = stream_sink(reader.write_fd, b"header")
    with pytest.raises(KeyError), direct.output_buffer(out):
        raise KeyError
    out.abort()
    assert reader.close() == b""


STDOUT_PROGRAM = f"""{CREATE_OUTPUT_SCRIPT}
try:
    out = created("-", 12)
    out.write(0, memoryview(bytes(12)))
    sinks.commit(out)
except sinks.OutputError as exc:
    print(exc, file=sys.stderr)
"""


def run_with_stdout(redirection):
    return execute("sh", "-c", f'"$0" -c "$1" {redirection}', sys.executable, STDOUT_PROGRAM)


def test_standard_output_to_pipes_files_and_devices():
    expected = npy(np.zeros(12, "u1"))
    assert run_with_stdout("").out == expected
    assert run_with_stdout("| cat").out == expected
    run_with_stdout("> file")
    assert read_bytes("file") == expected
    run_with_stdout(">> file")
    assert read_bytes("file") == expected * 2
    assert run_with_stdout(">&-").err == "standard output: it is closed\n"
    assert run_with_stdout("> /dev/full").err == "standard output: No space left on device\n"


def test_devices_and_fifos():
    save("/dev/null")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    with pytest.raises(OutputError, match="/dev/full: No space left on device"):
        save("/dev/full")
    with pytest.raises(OutputError, match="/dev/full: No space left on device"):
        save("/dev/full", mode="map")
    os.mkfifo("fifo")
    contents = []
    reader = threading.Thread(target=lambda: contents.append(read_bytes("fifo")))
    reader.start()
    save("fifo", LARGE, "map")
    reader.join()
    assert contents == [npy(LARGE)]
    assert stat.S_ISFIFO(os.stat("fifo").st_mode)


@pytest.mark.parametrize("code", [errno.EOPNOTSUPP, errno.EACCES])
def test_file_systems_without_unnamed_files(monkeypatch, code):
    real = os.open

    def fail(path, flags, *args, **kwargs):
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(code, os.strerror(code))
        return real(path, flags, *args, **kwargs)

    monkeypatch.setattr(os, "open", fail)
    if code == errno.EACCES:
        with pytest.raises(OutputError, match=r"x.npy: Permission denied"):
            save("x.npy")
        assert os.listdir() == []
    else:
        save("x.npy")
        assert read_bytes("x.npy") == npy(ARRAY)


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EIO])
def test_folders_that_cannot_be_synced(tmpfile_mode, monkeypatch, code):
    real = os.fsync

    def fail(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", fail)
    if code == errno.EIO:
        with pytest.raises(OutputError, match="is written, but may not survive a power failure"):
            save("x.npy", sync=True)
    else:
        save("x.npy", sync=True)
    assert read_bytes("x.npy") == npy(ARRAY)


def test_clean_preserves_files_of_others(workdir):
    name = ".x.ndtool-0123456789ab"
    for folder, files in ((name, ()), (f"{name}-01234567", ("new",)), (f"{name}-89abcdef", ("a",))):
        os.mkdir(folder)
        for file in files:
            Path(folder, file).write_bytes(b"x")
    assert sorted(ndtool("clean", ".", "--json").json["removed"]) == [
        f"./{name}", f"./{name}-01234567"
    ]  # fmt: skip
    assert os.listdir(f"{name}-89abcdef") == ["a"]
    shutil.rmtree(f"{name}-89abcdef")


def test_a_shared_file_is_locked_until_it_is_published(tmpfile_mode, monkeypatch):
    """Else another run would remove it as the file of a killed run."""
    replace, locked = os.replace, []

    def check_lock_and_replace(*args, **kwargs):
        locked.append(cleanup.clean(".")[0])
        replace(*args, **kwargs)

    monkeypatch.setattr(os, "replace", check_lock_and_replace)
    with temporary_sink("x.npy") as out:
        assert out.share() is not None
        fill(out, ARRAY)
        sinks.commit(out)
    assert locked == [[]]
    assert load("x.npy").tolist() == ARRAY.tolist()
    assert os.listdir() == ["x.npy"]


@pytest.mark.parametrize("target", ["a.npz:m", "m.safetensors:m", "x.npy"])
@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP])
def test_new_files_where_there_are_no_hard_links(monkeypatch, target, code):
    def link(*args, **options):
        raise OSError(code, os.strerror(code))

    monkeypatch.delattr(os, "O_TMPFILE")
    monkeypatch.setattr(os, "link", link)
    save(target)
    assert os.listdir() == [target.partition(":")[0]]
    assert load(target).tolist() == ARRAY.tolist()
    with temporary_sink(f"other-{target}", clobber=False) as out:
        fill(out, ARRAY)
        with pytest.raises(OutputError, match=os.strerror(code)):
            sinks.commit(out)
    assert os.listdir() == [target.partition(":")[0]]


def test_clean_preserves_the_temporary_file_of_a_live_run(workdir, monkeypatch):
    monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    with temporary_sink("live.npy") as out:
        fill(out, ARRAY)
        assert ndtool("clean", ".").out == b"nothing to remove\n"
        sinks.commit(out)
    assert np.array_equal(np.load("live.npy"), ARRAY)
