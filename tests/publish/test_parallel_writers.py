"""Concurrent runs that write to one file, store or object: no successful run loses its output."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket
from command import environment, ndtool
from inputs import load
from limits import drop_root_capabilities, fail_with
from npyfile import ARRAY
from outputs import CREATE_OUTPUT_SCRIPT, fill, save, temporary_sink

from ndtool.errors import OutputError
from ndtool.formats import locators
from ndtool.publish import newfile

CONFLICT = (
    "(changed|was replaced|was removed|was created by (another process|others)) during the run"
)


pytestmark = pytest.mark.usefixtures("clean_workdir")


def array_names(path: str) -> set[str]:
    return {(entry.member or "").lstrip("/") for entry in locators.describe(path)}


def file_contents(path: str) -> dict[str, bytes]:
    paths = sorted(Path(path).rglob("*")) if os.path.isdir(path) else [Path(path)]
    return {str(file): file.read_bytes() for file in paths if file.is_file()}


@pytest.fixture(autouse=True)
def packages(request: pytest.FixtureRequest) -> None:
    """Skip tests of HDF5 without h5py."""
    if "x.h5" in request.node.name:
        pytest.importorskip("h5py", exc_type=ImportError)


@pytest.mark.parametrize("exists", [True, False], ids=["existing", "new"])
@pytest.mark.parametrize("target", ["a.npz", "m.safetensors", "x.h5", "s.zarr"])
def test_one_of_two_concurrent_runs_is_refused(target: str, exists: bool) -> None:
    """Arrays in separate folders of a store are both written."""
    if target == "s.zarr":
        pytest.importorskip("zarr", exc_type=ImportError)
    if exists:
        save(f"{target}:old")
    independent = exists and target == "s.zarr"
    with (
        temporary_sink(f"{target}:one") as first_sink,
        temporary_sink(f"{target}:two", ARRAY + 1) as second_sink,
    ):
        fill(first_sink, ARRAY)
        fill(second_sink, ARRAY + 1)
        first, second = first_sink.finish(), second_sink.finish()
        newfile.publish([first])
        if independent:
            newfile.publish([second])
        else:
            with pytest.raises(OutputError, match=CONFLICT):
                newfile.publish([second])
    expected = {"one": True, "old": exists, "two": independent}
    assert array_names(target) == {name for name, exists in expected.items() if exists}


@pytest.mark.parametrize("target", ["a.npz", "m.safetensors", "a", "npy:a.npz", "a.pb"])
def test_a_file_that_gained_arrays_during_the_run_is_not_replaced(target: str) -> None:
    path = target.removeprefix("npy:")
    archive = "other.safetensors" if path == "m.safetensors" else "other.npz"
    save(f"{archive}:first")
    Path(path).write_bytes(Path(archive).read_bytes())
    save(f"{archive}:more")
    with temporary_sink(target) as out:
        fill(out, ARRAY)
        file = out.finish()
        os.replace(archive, path)
        with pytest.raises(OutputError, match=f"^{path} has 2 arrays: which is to be written"):
            newfile.publish([file])
    assert array_names(path) == {"first", "more"}


@pytest.mark.parametrize("target", ["a.npz", "m.safetensors"])
def test_a_removed_file_is_not_restored(target: str) -> None:
    save(f"{target}:a")
    with temporary_sink(f"{target}:b") as out:
        fill(out, ARRAY)
        os.unlink(target)
        with pytest.raises(OutputError, match=f"^{target} was removed during the run"):
            newfile.publish([out.finish()])
    assert os.listdir() == []


@pytest.mark.parametrize("target", ["a.npz:b", "m.safetensors:b", "s.zarr:b", "s.zarr"])
def test_a_run_waits_for_the_lock_of_the_folder(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    folder = os.open(".", os.O_RDONLY)
    delays = []

    def release(seconds: float) -> None:
        delays.append(seconds)
        if len(delays) == 3:
            os.close(folder)

    fcntl.flock(folder, fcntl.LOCK_EX)
    monkeypatch.setattr("time.sleep", release)
    save(target)
    assert len(delays) == 3
    assert array_names(target.partition(":")[0]) == {target.partition(":")[2]}
    os.mkdir("other")
    save("other/x.npy")  # a .npy file is not compared, so no lock is needed
    assert len(delays) == 3


@pytest.mark.parametrize("target", ["a.npz", "m.safetensors", "x.h5", "s.zarr"])
def test_a_lock_that_is_not_released_ends_the_run(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    save(f"{target}:a")
    before = file_contents(target)
    monkeypatch.setattr(newfile, "LOCK_TIMEOUT", 0.0)
    folder = os.open(".", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_SH)  # locks of other programs may be shared
    try:
        with pytest.raises(OutputError, match="folder was locked by another process"):
            save(f"{target}:b")
        save("x.npy")
    finally:
        os.close(folder)
    assert file_contents(target) == before


def test_no_output_is_published_if_another_one_is_refused(check_files_closed: None) -> None:
    save("b.npz:old")
    with temporary_sink("a.npz:x") as first_sink, temporary_sink("./b.npz:y") as second_sink:
        fill(first_sink, ARRAY)
        fill(second_sink, ARRAY)
        files = [first_sink.finish(), second_sink.finish()]  # take one lock
        save("b.npz:more")
        with pytest.raises(OutputError, match=CONFLICT):
            newfile.publish(files)
    assert os.listdir() == ["b.npz"]


@pytest.mark.parametrize("target", ["a.npz", "m.safetensors", "x.h5", "s.zarr"])
def test_a_file_system_without_locks(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    monkeypatch.setattr(fcntl, "flock", fail_with(37))
    save(f"{target}:a")
    save(f"{target}:b")
    assert array_names(target) == {"a", "b"}
    if target != "s.zarr":
        with temporary_sink(f"{target}:c") as out:
            fill(out, ARRAY)
            save(f"{target}:d")
            with pytest.raises(OutputError, match=CONFLICT):
                newfile.publish([out.finish()])
        assert array_names(target) == {"a", "b", "d"}


def test_one_of_two_runs_that_create_a_file_is_refused_without_locks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fcntl, "flock", fail_with(37))
    with temporary_sink("a.npz:x") as first_sink, temporary_sink("a.npz:y") as second_sink:
        fill(first_sink, ARRAY)
        fill(second_sink, ARRAY)
        first, second = first_sink.finish(), second_sink.finish()
        first.require_unchanged()
        second.require_unchanged()
        first.publish()
        with pytest.raises(OutputError, match=r"^a.npz exists"):
            second.publish()
    assert array_names("a.npz") == {"x"}


def test_a_folder_that_may_not_be_read_is_written_to(workdir: Path) -> None:
    os.mkdir("d")
    save("x.npy")
    save("d/a.npz:a")
    os.chmod("d", 0o300)
    try:
        completed = ndtool("convert", "x.npy", "d/a.npz:b", preexec_fn=drop_root_capabilities)
        assert (completed.status, completed.err) == (0, "preserved a\n")
    finally:
        os.chmod("d", 0o700)
    assert array_names("d/a.npz") == {"a", "b"}


def test_a_replaced_store_gets_no_part_of_an_array() -> None:
    """Writes of chunks after the replacement do not recreate the temporary folder."""
    pytest.importorskip("zarr", exc_type=ImportError)
    save("s.zarr:g/old")
    with temporary_sink("s.zarr:g/a") as out:
        save("s.zarr:g/new", only=True)
        before = file_contents("s.zarr")
        with pytest.raises(OutputError, match=r"s.zarr.*: No such file or directory"):
            fill(out, ARRAY)
    assert file_contents("s.zarr") == before
    assert array_names("s.zarr") == {"g/new"}
    with temporary_sink("s.zarr:g/a") as out:
        fill(out, ARRAY)
        save("s.zarr", only=True)
        with pytest.raises(OutputError, match=CONFLICT + "|is not a group"):
            newfile.publish([out.finish()])
    assert array_names("s.zarr") == {""}


WRITER = (
    CREATE_OUTPUT_SCRIPT
    + """
target, rounds = sys.argv[1], int(sys.argv[2])
for i in range(rounds):
    name = f"{os.getpid()}_{i}"
    out = None
    try:
        out = created(f"{target}:{name}", 8)
        out.write(0, bytes([i] * 8))
        sinks.commit(out)
        print(name)
    except sinks.OutputError:
        print("refused")
    finally:
        if out is not None:
            out.abort()
"""
)


ROUNDS = int(os.environ.get("NDTOOL_TEST_ROUNDS", "6"))  # of each process


EACH_FORMAT = pytest.mark.slow("concurrent runs lose no array in any format")


def check_concurrent_writers(target: str, writers: int = 4) -> set[str]:
    """Start processes that write arrays to one target; return the names of successful ones.

    These arrays, and no others, are present with their bytes.
    """
    command = [sys.executable, "-W", "ignore", "-c", WRITER, target, str(ROUNDS)]
    processes: list[Any] = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True)
        for _ in range(writers)
    ]
    outputs = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0] * writers
    assert [len(lines) for lines in outputs] == [ROUNDS] * writers
    names = {name for lines in outputs for name in lines} - {"refused"}
    assert names
    assert array_names(target) == names
    for name in names:
        assert set(load(f"{target}:{name}").tolist()) == {int(name.partition("_")[2])}
    return names


@pytest.mark.parametrize(
    "target",
    [
        *("a.npz", "g.zarr"),
        *(pytest.param(name, marks=EACH_FORMAT) for name in ("m.safetensors", "x.h5", "s.zarr")),
    ],
)
def test_outputs_of_concurrent_runs_are_present(target: str) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    if target == "g.zarr":  # its metadata list all arrays
        zarr.create_group(target)
        zarr.consolidate_metadata(target)
    names = check_concurrent_writers(target)
    assert os.listdir() == [target]
    if target.endswith(".zarr"):
        assert set(os.listdir(target)) == names | {"zarr.json"}
    if target == "g.zarr":
        assert set(zarr.open_consolidated(target)) == names


@pytest.mark.slow("concurrent runs on one object lose no array")
@pytest.mark.parametrize("name", ["a.npz", "m.safetensors", "s.zarr"])
def test_outputs_of_concurrent_runs_are_in_the_object(s3: Bucket, name: str) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    check_concurrent_writers(f"s3://bucket/{name}", 3)
    assert not s3.uploads()
    keys = s3.keys()
    assert not [key for key in keys if "ndtool" in key]
