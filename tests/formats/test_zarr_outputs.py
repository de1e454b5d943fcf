"""Outputs in Zarr stores: every chunk is complete, and a store is replaced atomically."""

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import environment, ndtool, save, shell
from later import later
from limits import drop_root_capabilities
from outputs import list_preserved_members, temporary_sink
from strategies import bits_equal, raw_bytes
from test_zarr import CODES, SHAPES, load, put, random_array

from ndtool.arrays import sink
from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import DtypeError, NdtoolError, OutputError, UsageError
from ndtool.formats import outputs
from ndtool.publish import newfolder, sinks
from ndtool.rules import dtypes

zarr = later("zarr")
pytestmark = [
    pytest.mark.usefixtures("workdir"),
    pytest.mark.filterwarnings(
        "ignore::zarr.errors.UnstableSpecificationWarning", "ignore::zarr.errors.ZarrUserWarning"
    ),
]

DATA = np.arange(24 * 10, dtype="<i4").reshape(24, 10)
INDICES = np.array([[3], [-1], [4]])
GATHER = ("gather-nd", "data.npy", "[[3]]", "-o")


def layout_of(version: int) -> ChunkLayout:
    """Return the layout of data of another rank, of which only the version matters."""
    return ChunkLayout((1,) * 9, None, ("other",), version)


def write(argument: str, array: Any, **options: Any) -> Any:
    """Write an array through a sink; return the preserved arrays of the store."""
    dtype = dtypes.from_descr(np.lib.format.dtype_to_descr(array.dtype))
    metadata = ArrayMetadata(dtype, array.shape, "C", array.shape, {})
    encoding = outputs.Encoding(
        **{k: options.pop(k) for k in ("chunks", "shards", "codec", "data_layout") if k in options}
    )
    out = outputs.create(outputs.resolve(argument, metadata, encoding=encoding, **options))
    try:
        if array.nbytes:
            sink.write_array(memoryview(raw_bytes(array)), out)
        sinks.commit(out)
    finally:
        out.abort()
    return out.preserved


def all_files(path: str = ".") -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(Path(path).rglob("*")) if p.is_file()}


@pytest.mark.parametrize("code", CODES, ids=str)
def test_every_type_is_read_as_it_was_written(code: Any) -> None:
    for number, shape in enumerate(SHAPES):
        version = 2 if isinstance(code, list) else 2 + number % 2  # 3 has no records
        array = random_array(code, shape)
        write("x.zarr", array, data_layout=layout_of(version), only=True)
        assert bits_equal(load("x.zarr"), array)
        reference = zarr.open_array("x.zarr", mode="r")
        assert reference.metadata.zarr_format == version
        assert raw_bytes(np.asarray(reference[...]).astype(array.dtype)) == raw_bytes(array)
    assert os.listdir() == ["x.zarr"]


@pytest.mark.parametrize("unusual", [np.dtype("g"), np.dtype([("a", "i4"), ("b", "i1")])])
def test_types_that_zarr_would_change_are_refused(unusual: Any) -> None:
    with pytest.raises(DtypeError, match="Zarr 3 cannot store elements of type"):
        write("x.zarr", np.zeros(3, unusual))
    assert os.listdir() == []


def test_options_say_how_it_is_stored() -> None:
    write("x.zarr", DATA, chunks=(4, 5), shards=(8, 10), codec="blosc:3")
    array = zarr.open_array("x.zarr", mode="r")
    assert (array.chunks, array.shards) == ((4, 5), (8, 10))
    assert array.compressors[0].to_dict()["configuration"]["clevel"] == 3
    assert bits_equal(load("x.zarr"), DATA)
    write("x.zarr", DATA, codec="none", chunks=(24, 3))
    array = zarr.open_array("x.zarr", mode="r")
    assert (array.chunks, array.compressors) == ((24, 3), ())
    write("x.zarr", DATA, codec="gzip:2", data_layout=layout_of(2))
    array = zarr.open_array("x.zarr", mode="r")
    assert array.compressors[0].get_config() == {"id": "gzip", "level": 2}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_the_default_is_how_data_are_stored(version: int, compressors: Any) -> None:
    put("in.zarr", DATA, chunks=(7, 3), zarr_format=version, compressors=compressors)
    save(indices=INDICES)
    assert ndtool("gather-nd", "in.zarr", "indices.npy", "-o", "out.zarr").status == 0
    output_array, reference = (zarr.open_array(f"{item}.zarr", mode="r") for item in ("out", "in"))
    assert output_array.chunks == (3, 3), "not larger than the output"
    assert output_array.compressors == reference.compressors
    assert output_array.metadata.zarr_format == version
    assert (output_array[...] == DATA[INDICES[:, 0]]).all()


@pytest.mark.parametrize("level", [5.0, "x", None, True, 1 << 40, -1, 10, [1, 2]])
def test_a_level_that_encoders_do_not_have_is_replaced_by_the_default(level: Any) -> None:
    put("in.zarr", DATA, compressors=zarr.codecs.BloscCodec(clevel=3), zarr_format=3)
    metadata = json.loads(Path("in.zarr/zarr.json").read_text())
    metadata["codecs"][-1]["configuration"]["clevel"] = level
    Path("in.zarr/zarr.json").write_text(json.dumps(metadata))
    save(indices=INDICES)
    assert ndtool("gather-nd", "in.zarr", "indices.npy", "-o", "out.zarr").status == 0
    assert zarr.open_array("out.zarr").compressors[0].clevel == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"chunks": (3,)}, "chunks 3 has 1 sizes: the output has rank 2"),
        ({"shards": (3, 3, 3)}, "shards 3,3,3 has 3 sizes"),
        ({"chunks": (4, 5), "shards": (6, 5)}, "shards 6,5 is not a multiple of the chunks 4,5"),
        ({"shards": (6, 5), "data_layout": layout_of(2)}, "Zarr version 2 has no shards"),
    ],
)
def test_wrong_options_are_refused(options: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        write("x.zarr", DATA, **options)
    assert os.listdir() == []


@pytest.mark.parametrize("output", ["x.npy", "x.npz:a", "-"])
def test_options_of_chunks_are_for_stores(output: str) -> None:
    save(data=DATA, indices=INDICES)
    before = all_files()
    for option in (("--chunks", "3,3"), ("--shards", "3,3"), ("--codec", "none")):
        for dry in ((), ("--dry-run",)):
            result = ndtool("gather-nd", "data.npy", "indices.npy", "-o", output, *option, *dry)
            assert result.status == 2
            assert f"{option[0]}: " in result.err
    assert all_files() == before


def test_malformed_options() -> None:
    options = (
        "--chunks= --chunks=0,1 --shards=a --codec=lz4 --codec=zstd: --codec=zstd:23 --codec=none:1"
    )
    for option in options.split():
        assert ndtool("gather-nd", "a", "b", "-o", "x.zarr", option).status == 2


# Stores that have other arrays


@pytest.mark.parametrize("version", [2, 3])
def test_a_new_array_leaves_the_others_as_they_are(version: int) -> None:
    put("x.zarr:a", DATA, zarr_format=version)
    put("x.zarr:g/b", DATA + 1, zarr_format=version)
    before = all_files()
    assert write("x.zarr:g/new/c", DATA + 2) == ("a", "g/b")
    after = all_files()
    assert not {name for name in before if after[name] != before[name]}
    assert {name.split("/")[2] for name in after.keys() - before.keys()} == {"new"}
    assert write("x.zarr:a", DATA[:5]) == ("g/b", "g/new/c")
    group = zarr.open_group("x.zarr", mode="r")
    assert (group["a"][...] == DATA[:5]).all()
    assert (group["g/b"][...] == DATA + 1).all()
    assert (group["g/new/c"][...] == DATA + 2).all()
    assert os.listdir() == ["x.zarr"]
    assert not [name for name in os.listdir("x.zarr") if "ndtool" in name]


KILLED_WRITER_SCRIPT = """
import os, signal, sys
from ndtool.formats.zarr import writer
from ndtool.publish import newfolder
newfolder.write_at = writer.write_at = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
writer.write_file(sys.argv[1], "c/0/0", b"a chunk")
"""


def test_a_killed_worker_leaves_nothing_in_the_store() -> None:
    """Nor next to it if the client is killed, too."""
    save(data=DATA)
    for killed in (False, True):
        with temporary_sink("x.zarr", DATA, encoding=outputs.Encoding(chunks=DATA.shape)) as out:
            command = [sys.executable, "-c", KILLED_WRITER_SCRIPT, out.share().path]
            assert subprocess.run(command, env=environment()).returncode == -signal.SIGKILL
            assert [name for _, _, names in os.walk(".") for name in names if "partial" in name]
            if killed:
                out._store.suspend()
                break
            out.write(0, memoryview(raw_bytes(DATA)))
            sinks.commit(out)
        assert sorted(all_files("x.zarr")) == ["x.zarr/c/0/0", "x.zarr/zarr.json"]
        assert sorted(os.listdir()) == ["data.npy", "x.zarr"]
    assert len(os.listdir()) == 3
    assert ndtool("clean", ".").status == 0
    assert sorted(os.listdir()) == ["data.npy", "x.zarr"]


@pytest.mark.parametrize("blocks", [(), (0,), (0, 1, 2), (0, 1, 2, 2)])
def test_a_chunk_that_was_not_written_is_an_error(blocks: tuple[int, ...]) -> None:
    with temporary_sink("x.zarr", DATA, encoding=outputs.Encoding(chunks=(6, 10))) as out:
        block_bytes = memoryview(raw_bytes(DATA)[: 6 * 10 * 4])
        for block in blocks:
            out.write(0, block_bytes, block)
        if len(blocks) == 3:
            out.write(0, block_bytes[:7], 3)
        with pytest.raises(ValueError, match=r"only \d of 4 chunks were written"):
            sinks.commit(out)
    assert os.listdir() == []


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("x.zarr:a/b", "x.zarr/a is not a group"),
        ("x.zarr", "x.zarr has 2 arrays: which is to be written?"),
        ("x.zarr:g", "x.zarr/g is a group: only an array is replaced"),
        ("x.zarr:other", "x.zarr/other is neither an array nor a group"),
        ("x.zarr:..", "can be called"),
        ("x.zarr:g/zarr.json", "can be called"),
        ("x.zarr:", "the member has no name"),
        ("x.zarr:/", "the array has no name"),
        ("plain.zarr", "is a directory: expected a file"),
        ("file.zarr", "is a file: expected a folder, a Zarr store"),
        ("x.npy", "x.npy is a directory: expected a file"),
    ],
)
def test_targets_that_cannot_be_replaced(argument: str, message: str) -> None:
    put("x.zarr:a", DATA)
    put("x.zarr:g/b", DATA)
    os.makedirs("x.zarr/other")
    os.mkdir("plain.zarr")
    Path("file.zarr").write_bytes(b"")
    put("x.npy", DATA)
    before = all_files()
    for action in (lambda: write(argument, DATA), lambda: list_preserved_members(argument, DATA)):
        with pytest.raises(NdtoolError, match=message):
            action()
    assert all_files() == before


# Nothing is visible before it is complete


@pytest.mark.parametrize("method", ["exchange", "two renames"])
def test_an_old_store_is_replaced_whole(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put("x.zarr", DATA, chunks=(1, 1))
    os.chmod("x.zarr", 0o750)
    if method == "two renames":
        monkeypatch.setattr(newfolder, "_exchange", lambda *_: False)
    write("x.zarr", DATA[:3], chunks=(3, 10))
    assert bits_equal(load("x.zarr"), DATA[:3])
    assert sorted(all_files()) == ["x.zarr/c/0/0", "x.zarr/zarr.json"]
    assert os.stat("x.zarr").st_mode & 0o777 == 0o750
    assert os.listdir() == ["x.zarr"]


CONVERT = ("convert", "data.npy", "x.zarr", "--chunks", "1,1")
WAITING_WRITER_SCRIPT = r"""
import os, sys
from ndtool.formats.zarr import writer
put = writer.ChunkWriter.write_chunk
def put_and_wait(self, block, view):
    put(self, block, view)
    os.write(2, b"written\n")
    os.read(0, 1)  # until the signal has been sent
writer.ChunkWriter.write_chunk = put_and_wait
from ndtool.__main__ import main
sys.exit(main())
"""


def start_writing(*arguments: str) -> Any:
    """Start a run and wait for its first chunk, after which it waits."""
    command = [sys.executable, "-c", WAITING_WRITER_SCRIPT, *arguments]
    pipes: Any = {"stdin": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen(command, env=environment(), **pipes)
    assert child.stderr is not None
    assert child.stderr.readline() == b"written\n"
    return child


def send_while_writing(number: signal.Signals, *arguments: str) -> tuple[int, bytes]:
    """Send a signal to a run after its first chunk; return its status and its messages."""
    with start_writing(*arguments) as child:
        child.send_signal(number)
        child.stdin.close()
        errors = child.stderr.read()
    return child.returncode, errors.replace(b"written\n", b"")


@pytest.mark.parametrize(
    ("number", "output"),
    [(signal.SIGTERM, "x.zarr"), (signal.SIGINT, "old.zarr"), (signal.SIGHUP, "old.zarr:g/a")],
)
def test_signals_while_chunks_are_written(number: signal.Signals, output: str) -> None:
    put("old.zarr:a" if ":" in output else "old.zarr", DATA)
    save(data=DATA, indices=INDICES, updates=DATA[:3])
    before = all_files()
    inputs = ("data.npy", "indices.npy", "updates.npy")
    options = ("-o", output, "--chunks", "1,1", "--threads", "2")
    assert send_while_writing(number, "scatter-nd", *inputs, *options) == (128 + number, b"")
    assert all_files() == before
    assert sorted(os.listdir()) == ["data.npy", "indices.npy", "old.zarr", "updates.npy"]


# A signal arrives before a chunk is written, which waits until its folder is removed.
LATE_MKDIR_SCRIPT = r"""
import atexit, os, sys, time
atexit.register(time.sleep, 1)
make = os.mkdir
def late(path, *arguments, **options):
    folder, inside, _ = f"{path}/".partition("/new/c/")
    if inside:
        os.write(2, b"writing\n")
        last = time.monotonic() + 2
        while os.path.exists(folder) and time.monotonic() < last:
            time.sleep(0.0001)
    return make(path, *arguments, **options)
os.mkdir = late
"""
COMMAND_SCRIPT = """
sys.argv[1:] = "gather-nd data.npy indices.npy -o x.zarr --chunks 1,1 --threads 1".split()
from ndtool.__main__ import program
program()
"""
FUNCTION_SCRIPT = """
import os, ndtool
try:
    ndtool.files.gather_nd("data.npy", "indices.npy", out="x.zarr", chunks=(1, 1), threads=1)
except KeyboardInterrupt:
    time.sleep(1)
    sys.exit(130 if sorted(os.listdir()) == ["data.npy", "indices.npy"] else str(os.listdir()))
"""


@pytest.mark.parametrize("program", [COMMAND_SCRIPT, FUNCTION_SCRIPT], ids=["command", "function"])
def test_nothing_is_written_after_the_output_was_removed(program: str) -> None:
    save(data=DATA, indices=INDICES)
    command = [sys.executable, "-c", LATE_MKDIR_SCRIPT + program]
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) as child:
        assert child.stderr is not None
        assert child.stderr.readline().startswith(b"writing")
        child.send_signal(signal.SIGINT)
        errors = child.stderr.read()
    assert (child.returncode, errors.replace(b"writing\n", b"")) == (130, b"")
    assert sorted(os.listdir()) == ["data.npy", "indices.npy"]


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGALRM])
def test_fatal_signals(number: signal.Signals) -> None:
    save(data=DATA)
    assert send_while_writing(number, *CONVERT) == (-number, b"")
    assert os.listdir() == ["data.npy"]


@pytest.mark.parametrize("output", ["x.zarr:a", "../x.zarr", "x.npy"])
def test_a_current_directory_that_was_removed_takes_no_output(output: str) -> None:
    save(data=DATA)
    script = 'mkdir gone; cd gone; rmdir ../gone; exec "$@"'
    data = os.path.abspath("data.npy")
    result = shell(script, "convert", data, output)
    path = output.partition(":")[0]
    assert (result.status, result.err) == (7, f"error: {path}: No such file or directory\n")


def test_the_next_run_removes_what_a_killed_one_left() -> None:
    save(data=DATA)
    with start_writing(*CONVERT) as child, start_writing(*CONVERT) as second_child:
        child.kill()
        child.wait()
        assert len(os.listdir()) == 3
        os.mkdir(".x.zarr.ndtool-0123456789ab-01234567")  # of another boot
        os.mkdir(".x.zarr.ndtool-mine")
        write("y.zarr", DATA)
        assert len(os.listdir()) == 5, "the one that runs still has its own"
        second_child.kill()
        second_child.wait()
    write("z.zarr", DATA)
    unchanged = {".x.zarr.ndtool-0123456789ab-01234567", ".x.zarr.ndtool-mine"}
    assert set(os.listdir()) == {"data.npy", "y.zarr", "z.zarr"} | unchanged


def test_a_cleanup_between_creating_and_locking_a_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    original_locked, times = newfolder.open_locked, iter(("gone", "locked", "late"))

    def open_during_cleanup(folder: str) -> int:
        when = next(times, None)
        lock = original_locked(folder) if when == "late" else -1
        if when is not None:
            os.rmdir(folder)
        if when == "locked":
            raise BlockingIOError
        return lock if when == "late" else original_locked(folder)

    monkeypatch.setattr(newfolder, "open_locked", open_during_cleanup)
    write("x.zarr", DATA)
    assert bits_equal(load("x.zarr"), DATA)
    assert os.listdir() == ["x.zarr"]


def test_remains_of_a_replaced_store_are_reported() -> None:
    """Too few descriptors to descend, or permissions that change meanwhile."""
    put("one.zarr", np.arange(4))
    new = newfolder.NewFolder("one.zarr", replaces=True, clobber=True, sync=False)
    Path(new.working_folder, "new").touch()
    new.publish()
    hidden = new._temporary
    os.rename(hidden, "aside")
    os.mkdir(hidden)
    denied = OSError(errno.EACCES, "Permission denied")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(newfolder, "remove", lambda path: denied)
        with pytest.raises(
            OutputError, match=r"one\.zarr is written, but the replaced store remains at"
        ):
            new.drop()
    new.drop()  # once more, at the end of the run
    assert Path("one.zarr/new").exists()


def test_clean_reports_failures() -> None:
    hidden = Path(".one.zarr.ndtool-0123456789ab")
    (hidden / "new" / "c").mkdir(parents=True)
    (hidden / "new" / "c" / "0").touch()
    (hidden / "new" / "c").chmod(0o555)
    Path(".two.zarr.ndtool-0123456789ab/new").mkdir(parents=True)
    result = ndtool("clean", ".", preexec_fn=drop_root_capabilities)
    assert result.status == 7, result
    assert result.out == b"removed ./.two.zarr.ndtool-0123456789ab\n"
    assert result.err == (
        "error: .: some files could not be removed\n  --> ./.one.zarr.ndtool-0123456789ab: Permission denied\n"
    )
    result = ndtool("clean", ".", "--json", preexec_fn=drop_root_capabilities)
    assert (result.status, result.json["removed"]) == (7, [])
    (hidden / "new" / "c").chmod(0o755)
    assert ndtool("clean", ".").status == 0
    assert os.listdir() == []


@pytest.mark.parametrize("blocks", [0, 64])  # 0: not even the metadata can be written
def test_a_full_disk_leaves_nothing(blocks: int) -> None:
    put("old.zarr", DATA)
    before = all_files()
    limited = f'ulimit -f {blocks}; exec {sys.executable} -m ndtool "$@"'
    rng = np.random.default_rng(1)
    save(
        data=rng.bytes(1 << 20) and np.frombuffer(rng.bytes(1 << 20), "<i4").reshape(1024, 256),
        indices=np.arange(1024)[:, None],
    )
    before |= all_files()
    result = subprocess.run(
        ["bash", "-c", limited, "ndtool", "gather-nd", "data.npy", "indices.npy", "-o", "old.zarr", "--chunks", "1024,256"],
        capture_output=True, env=environment(), check=False,
    )  # fmt: skip
    assert result.returncode == 6, result
    assert b"Traceback" not in result.stderr
    assert all_files() == before
    assert sorted(os.listdir()) == ["data.npy", "indices.npy", "old.zarr"]
