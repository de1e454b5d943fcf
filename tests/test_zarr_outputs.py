"""Outputs in Zarr stores: whole chunks, the old store or the whole new one, and no leftovers."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import environment, ndtool, save
from strategies import raw, same
from test_zarr import CODES, SHAPES, load, put, some

from ndtool.arrays import names, newfolder, sink
from ndtool.arrays.source import Facts
from ndtool.errors import DtypeError, NdtoolError, OutputError, UsageError
from ndtool.rules import dtypes

zarr = pytest.importorskip("zarr", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings(
    "ignore::zarr.errors.UnstableSpecificationWarning", "ignore::zarr.errors.ZarrUserWarning"
)

DATA = np.arange(24 * 10, dtype="<i4").reshape(24, 10)
INDICES = np.array([[3], [-1], [4]])


@pytest.fixture(autouse=True)
def here(here: Path) -> Path:
    return here


def write(argument: str, array: Any, **how: Any) -> Any:
    """Write an array through a sink; return what stayed in the store."""
    dtype = dtypes.from_descr(np.lib.format.dtype_to_descr(array.dtype))
    facts = Facts(dtype, array.shape, "C", array.shape, {})
    storing = names.Storing(
        **{k: how.pop(k) for k in ("chunks", "shards", "codec", "like") if k in how}
    )
    out = names.create(argument, facts, storing=storing, **how)
    try:
        if array.nbytes:
            sink.deliver(memoryview(raw(array)), out)
        sink.commit(out)
    finally:
        out.abort()
    return out.kept


def everything(path: str = ".") -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(Path(path).rglob("*")) if p.is_file()}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("code", CODES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_type_is_read_as_it_was_written(code: Any, shape: Any, version: int) -> None:
    array = some(code, shape)
    write("x.zarr", array, like={"zarr_format": version})
    assert same(load("x.zarr"), array)
    theirs = zarr.open_array("x.zarr", mode="r")
    assert theirs.metadata.zarr_format == version
    assert raw(np.asarray(theirs[...]).astype(array.dtype)) == raw(array)
    assert os.listdir() == ["x.zarr"]


@pytest.mark.parametrize("special", [-0.0, np.nan, 0.0])
def test_chunks_that_look_empty_keep_their_bits(special: float) -> None:
    array = np.full((6, 6), special)
    write("x.zarr", array, chunks=(3, 3))
    assert raw(load("x.zarr")) == raw(array)


@pytest.mark.parametrize("odd", [np.dtype("g"), np.dtype([("a", ">i4"), ("b", "i1")])])
def test_types_that_zarr_would_change_are_refused(odd: Any) -> None:
    with pytest.raises(DtypeError, match="Zarr 3 keeps no elements of type"):
        write("x.zarr", np.zeros(3, odd))
    assert os.listdir() == []


def test_options_say_how_it_is_stored() -> None:
    write("x.zarr", DATA, chunks=(4, 5), shards=(8, 10), codec="blosc:3")
    made = zarr.open_array("x.zarr", mode="r")
    assert (made.chunks, made.shards) == ((4, 5), (8, 10))
    assert made.compressors[0].to_dict()["configuration"]["clevel"] == 3
    assert same(load("x.zarr"), DATA)
    write("x.zarr", DATA, codec="none", chunks=(24, 3))
    made = zarr.open_array("x.zarr", mode="r")
    assert (made.chunks, made.compressors) == ((24, 3), ())
    write("x.zarr", DATA, codec="gzip:2", like={"zarr_format": 2})
    made = zarr.open_array("x.zarr", mode="r")
    assert made.compressors[0].get_config() == {"id": "gzip", "level": 2}


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("compressors", [None, "auto"])
def test_the_default_is_how_data_are_stored(version: int, compressors: Any) -> None:
    put("in.zarr", DATA, chunks=(7, 3), zarr_format=version, compressors=compressors)
    save(indices=INDICES)
    assert ndtool("gather-nd", "in.zarr", "indices.npy", "-o", "out.zarr").status == 0
    ours, theirs = (zarr.open_array(f"{one}.zarr", mode="r") for one in ("out", "in"))
    assert ours.chunks == (3, 3), "not larger than the output"
    assert ours.compressors == theirs.compressors
    assert ours.metadata.zarr_format == version
    assert (ours[...] == DATA[INDICES[:, 0]]).all()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"chunks": (3,)}, "--chunks 3 has 1 sizes: the output has rank 2"),
        ({"shards": (3, 3, 3)}, "--shards 3,3,3 has 3 sizes"),
        ({"chunks": (4, 5), "shards": (6, 5)}, "--shards 6,5 is no multiple of the chunks 4,5"),
        ({"shards": (6, 5), "like": {"zarr_format": 2}}, "Zarr version 2 has no shards"),
    ],
)
def test_wrong_options_are_refused(how: Any, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        write("x.zarr", DATA, **how)
    assert os.listdir() == []


@pytest.mark.parametrize("output", ["x.npy", "x.npz:a", "-"])
def test_options_of_chunks_are_for_stores(output: str) -> None:
    save(data=DATA, indices=INDICES)
    before = everything()
    for option in (("--chunks", "3,3"), ("--shards", "3,3"), ("--codec", "none")):
        for dry in ((), ("--dry-run",)):
            done = ndtool("gather-nd", "data.npy", "indices.npy", "-o", output, *option, *dry)
            assert done.status == 2
            assert f"{option[0]}: " in done.err
    assert everything() == before


@pytest.mark.parametrize(
    "option",
    [
        "--chunks=",
        "--chunks=0,1",
        "--shards=a",
        "--codec=lz4",
        "--codec=zstd:",
        "--codec=zstd:23",
        "--codec=none:1",
    ],
)
def test_malformed_options(option: str) -> None:
    assert ndtool("gather-nd", "a", "b", "-o", "x.zarr", option).status == 2


# Stores that have other arrays


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("consolidated", [False, True])
def test_a_new_array_leaves_the_others_as_they_are(version: int, consolidated: bool) -> None:
    put("x.zarr:a", DATA, zarr_format=version)
    put("x.zarr:g/b", DATA + 1, zarr_format=version)
    if consolidated:
        zarr.consolidate_metadata("x.zarr", zarr_format=version)
    before = everything()
    assert write("x.zarr:g/new/c", DATA + 2) == ("a", "g/b")
    after = everything()
    changed = {name for name in before if after[name] != before[name]}
    root = "zarr.json" if version == 3 else ".zmetadata"
    assert changed == ({f"x.zarr/{root}"} if consolidated else set())
    assert {name.split("/")[2] for name in after.keys() - before.keys()} == {"new"}
    assert write("x.zarr:a", DATA[:5]) == ("g/b", "g/new/c")
    group = zarr.open_group("x.zarr", mode="r")
    assert (group.metadata.consolidated_metadata is not None) == consolidated
    assert (group["a"][...] == DATA[:5]).all()
    assert (group["g/b"][...] == DATA + 1).all()
    assert (group["g/new/c"][...] == DATA + 2).all()
    assert os.listdir() == ["x.zarr"]
    assert not [name for name in os.listdir("x.zarr") if "ndtool" in name]


def test_an_array_in_a_store_that_is_not_there_yet() -> None:
    assert write("x.zarr:g/a", DATA) is None
    assert same(load("x.zarr:g/a"), DATA)
    assert sorted(zarr.open_group("x.zarr", mode="r")["g"]) == ["a"]


def test_only_and_no_clobber() -> None:
    put("x.zarr:a", DATA)
    put("x.zarr:b", DATA)
    before = everything()
    with pytest.raises(OutputError, match=r"^x\.zarr is a group of 2 arrays"):
        write("x.zarr", DATA)
    for taken in ("x.zarr:a", "x.zarr"):
        with pytest.raises(OutputError, match="exists, and nothing may be replaced"):
            write(taken, DATA, clobber=False)
    assert everything() == before
    assert write("x.zarr:c", DATA, clobber=False) == ("a", "b")
    assert write("x.zarr:d", DATA + 1, only=True) is None
    assert sorted(zarr.open_group("x.zarr", mode="r")) == ["d"]
    assert write("x.zarr", DATA, only=True) is None
    assert same(load("x.zarr"), DATA)


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("x.zarr:a/b", "x.zarr/a is not a group"),
        ("x.zarr:g", "x.zarr/g is a group: only an array is replaced"),
        ("x.zarr:other", "x.zarr/other is something else"),
        ("x.zarr:..", "can be called"),
        ("x.zarr:g/zarr.json", "can be called"),
        ("x.zarr:", "the member has no name"),
        ("x.zarr:/", "the array has no name"),
        ("plain.zarr", "is a directory: expected a file"),
        ("file.zarr", "is a file: expected the folder of a Zarr store"),
        ("x.npy", "x.npy is a directory: expected a file"),
    ],
)
def test_what_no_array_can_replace(argument: str, said: str) -> None:
    put("x.zarr:a", DATA)
    put("x.zarr:g/b", DATA)
    os.makedirs("x.zarr/other")
    os.mkdir("plain.zarr")
    Path("file.zarr").write_bytes(b"")
    put("x.npy", DATA)
    before = everything()
    for act in (lambda: write(argument, DATA), lambda: names.check(argument)):
        with pytest.raises(NdtoolError, match=said):
            act()
    assert everything() == before


def test_a_run_that_replaces_the_store_it_reads() -> None:
    put("x.zarr", DATA)
    save(indices=INDICES, updates=DATA[:3])
    done = ndtool("scatter-nd", "x.zarr", "indices.npy", "updates.npy", "-o", "x.zarr")
    assert done.status == 0, done
    wanted = DATA.copy()
    wanted[INDICES[:, 0]] = DATA[:3]
    assert same(load("x.zarr"), wanted)
    assert sorted(os.listdir()) == ["indices.npy", "updates.npy", "x.zarr"]


# Nothing is visible before it is complete


@pytest.mark.parametrize(
    "argument", ["x.zarr", "x.zarr:g/a", "old.zarr", "old.zarr:a", "old.zarr:g/b"]
)
def test_what_is_not_committed_was_never_there(argument: str) -> None:
    put("old.zarr:a" if ":" in argument else "old.zarr", DATA)
    before = everything()
    dtype = dtypes.from_code("<i4")
    out = names.create(argument, Facts(dtype, DATA.shape, "C", DATA.shape, {}))
    out.write(0, memoryview(raw(DATA))[: out._chunks.nbytes(0)], 0)
    visible = {name for name in everything() if "ndtool" not in name}
    assert visible == set(before)
    if argument.startswith("old.zarr:"):
        assert sorted(zarr.open_group("old.zarr", mode="r")) == ["a"]
    out.abort()
    assert everything() == before
    assert os.listdir() == ["old.zarr"]


@pytest.mark.parametrize("way", ["exchange", "two renames"])
def test_an_old_store_is_replaced_whole(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put("x.zarr", DATA, chunks=(1, 1))
    os.chmod("x.zarr", 0o750)
    if way == "two renames":
        monkeypatch.setattr(newfolder, "_exchanged", lambda *_: False)
    write("x.zarr", DATA[:3], chunks=(3, 10))
    assert same(load("x.zarr"), DATA[:3])
    assert sorted(everything()) == ["x.zarr/c/0/0", "x.zarr/zarr.json"]
    assert os.stat("x.zarr").st_mode & 0o777 == 0o750
    assert os.listdir() == ["x.zarr"]


@pytest.mark.parametrize("clobber", [False, True])
def test_somebody_was_faster(clobber: bool) -> None:
    dtype = dtypes.from_code("<i4")
    out = names.create("x.zarr", Facts(dtype, DATA.shape, "C", DATA.shape, {}), clobber=clobber)
    put("x.zarr", DATA + 1)
    with pytest.raises(OutputError, match=r"^x.zarr (exists|was made by others)"):
        sink.commit(out)
    out.abort()
    assert same(load("x.zarr"), DATA + 1)
    assert os.listdir() == ["x.zarr"]


SLOW = """
import sys, time
from ndtool.arrays import zarrwriter
put = zarrwriter.Chunks.put
def slowly(self, block, view):
    put(self, block, view)
    print("written", file=sys.stderr, flush=True)
    time.sleep(0.2)
zarrwriter.Chunks.put = slowly
from ndtool.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("output", ["x.zarr", "old.zarr", "old.zarr:g/a"])
def test_signals_while_chunks_are_written(number: signal.Signals, output: str) -> None:
    put("old.zarr:a" if ":" in output else "old.zarr", DATA)
    save(data=DATA, indices=INDICES, updates=DATA[:3])
    before = everything()
    command = [
        sys.executable, "-c", SLOW, "scatter-nd", "data.npy", "indices.npy", "updates.npy",
        "-o", output, "--chunks", "1,1", "--threads", "2",
    ]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environment()) as child:
        assert child.stderr is not None
        assert child.stderr.readline().startswith(b"written")  # of two threads, perhaps both
        child.send_signal(number)
        rest = child.stderr.read()
    assert child.returncode == 128 + number
    assert not rest.replace(b"written", b"").strip(), rest
    assert everything() == before
    assert sorted(os.listdir()) == ["data.npy", "indices.npy", "old.zarr", "updates.npy"]


STARTED = [sys.executable, "-c", SLOW, "convert", "data.npy", "x.zarr", "--chunks", "1,1"]


@pytest.mark.parametrize("number", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGALRM, signal.SIGXCPU])
def test_signals_of_which_a_process_dies(number: signal.Signals) -> None:
    save(data=DATA)
    with subprocess.Popen(STARTED, stderr=subprocess.PIPE, env=environment()) as child:
        assert child.stderr is not None
        assert child.stderr.readline().startswith(b"written")
        child.send_signal(number)
        rest = child.stderr.read()
    assert child.returncode == -number
    assert not rest.replace(b"written", b"").strip(), rest
    assert os.listdir() == ["data.npy"]


def test_the_next_run_removes_what_a_killed_one_left() -> None:
    save(data=DATA)
    with (
        subprocess.Popen(STARTED, stderr=subprocess.PIPE, env=environment()) as child,
        subprocess.Popen(STARTED, stderr=subprocess.PIPE, env=environment()) as other,
    ):
        for one in (child, other):
            assert one.stderr is not None
            assert one.stderr.readline().startswith(b"written")
        child.kill()
        child.wait()
        assert len(os.listdir()) == 3
        os.mkdir(".x.zarr.ndtool-0123456789ab-01234567")  # of another start of the system
        os.mkdir(".x.zarr.ndtool-mine")
        write("y.zarr", DATA)
        assert len(os.listdir()) == 5, "the one that runs still has its own"
        other.kill()
        other.wait()
    write("z.zarr", DATA)
    kept = {".x.zarr.ndtool-0123456789ab-01234567", ".x.zarr.ndtool-mine"}
    assert set(os.listdir()) == {"data.npy", "y.zarr", "z.zarr"} | kept


def test_a_store_between_two_names_is_not_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    first = newfolder.NewFolder("x.zarr", False, True, False)
    os.mkdir(os.path.join(first._hidden, "old"))
    os.close(first._lock)
    write("y.zarr", DATA)
    assert os.path.isdir(first.inside)
    os.rmdir(os.path.join(first._hidden, "old"))
    write("y.zarr", DATA)
    assert os.listdir() == ["y.zarr"]


def test_a_sweep_between_a_folder_and_its_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    real, times = newfolder.locked, iter(("gone", "locked", "late"))

    def swept(folder: str) -> int:
        when = next(times, None)
        lock = real(folder) if when == "late" else -1
        if when is not None:
            os.rmdir(folder)
        if when == "locked":
            raise BlockingIOError
        return lock if when == "late" else real(folder)

    monkeypatch.setattr(newfolder, "locked", swept)
    write("x.zarr", DATA)
    assert same(load("x.zarr"), DATA)
    assert os.listdir() == ["x.zarr"]


def test_a_full_disk_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    put("old.zarr", DATA)
    before = everything()
    limited = f'ulimit -f 64; exec {sys.executable} -m ndtool "$@"'
    rng = np.random.default_rng(1)
    save(
        data=rng.bytes(1 << 20) and np.frombuffer(rng.bytes(1 << 20), "<i4").reshape(1024, 256),
        indices=np.arange(1024)[:, None],
    )
    before |= everything()
    done = subprocess.run(
        ["bash", "-c", limited, "ndtool", "gather-nd", "data.npy", "indices.npy", "-o", "old.zarr", "--chunks", "1024,256"],
        capture_output=True, env=environment(), check=False,
    )  # fmt: skip
    assert done.returncode == 6, done
    assert b"Traceback" not in done.stderr
    assert everything() == before


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn"])
def test_types_that_zarr_lacks(name: str) -> None:
    """What is stored as void moves as it is; what is more must be asked for."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    saved = pytest.importorskip("safetensors.numpy")
    data = np.arange(6).astype(getattr(ml_dtypes, name)).reshape(3, 2)
    code = f"V{data.itemsize}"
    saved.save_file({"a": data}, "a.safetensors")
    save(indices=np.array([[2]]))
    for more in ((), ("--dry-run",)):
        ran = ndtool("gather-nd", "a.safetensors", "indices.npy", "-o", "x.zarr", *more)
        assert ran.status == 4
        assert f"error: x.zarr: its format does not know {name}: expected one" in ran.err
        assert "warning" not in ran.err
    assert ndtool("convert", "a.safetensors", "x.zarr").status == 4
    assert sorted(os.listdir()) == ["a.safetensors", "indices.npy"]
    assert ndtool("convert", "a.safetensors", "x.zarr", "--as-void").status == 0
    for more in ((), ("--dtype", name)):
        ran = ndtool("gather-nd", "x.zarr", "indices.npy", "-o", "y.zarr", *more)
        assert (ran.status, ran.err) == (0, "")
        assert same(load("y.zarr"), data[2:].view(code))
    ran = ndtool("convert", "x.zarr", "b.safetensors", "--dtype", name)
    assert ran.status == 0, ran.err
    assert Path("b.safetensors").read_bytes().endswith(raw(data))
