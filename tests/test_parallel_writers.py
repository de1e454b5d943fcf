"""Concurrent runs that write to one file, store or object: the output of a successful run is
not lost."""

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bucket import Bucket
from command import environment, ndtool
from limits import drop_root_capabilities, fail_with
from npyfile import ARRAY
from outputs import PROGRAM, fill, save, temporary_sink

from ndtool.errors import OutputError
from ndtool.formats import locators
from ndtool.publish import locking
from ndtool.publish import newfile as publishing

LOST = "(changed|was replaced|was removed|was created by (another process|others)) during the run"


@pytest.fixture(autouse=True)
def workdir(workdir: Path) -> Iterator[Path]:
    yield workdir
    assert not [name for name in os.listdir(workdir) if "ndtool-" in name]


def arrays(path: str) -> set[str]:
    return {(entry.member or "").lstrip("/") for entry in locators.describe(path)}


def content(path: str) -> dict[str, bytes]:
    found = sorted(Path(path).rglob("*")) if os.path.isdir(path) else [Path(path)]
    return {str(one): one.read_bytes() for one in found if one.is_file()}


@pytest.fixture(autouse=True)
def packages(request: pytest.FixtureRequest) -> None:
    """Skip tests of HDF5 without h5py."""
    if "x.h5" in request.node.name:
        pytest.importorskip("h5py", exc_type=ImportError)


@pytest.mark.parametrize("exists", [True, False], ids=["added", "made"])
@pytest.mark.parametrize("target", ["a.npz", "m.safetensors", "x.h5", "s.zarr"])
def test_one_of_two_concurrent_runs_is_refused(target: str, exists: bool) -> None:
    """Unless the arrays are separate folders of a store, which preserves both."""
    if target == "s.zarr":
        pytest.importorskip("zarr", exc_type=ImportError)
    if exists:
        save(f"{target}:old")
    independent = exists and target == "s.zarr"
    with temporary_sink(f"{target}:one") as one, temporary_sink(f"{target}:two", ARRAY + 1) as two:
        fill(one, ARRAY)
        fill(two, ARRAY + 1)
        first, second = one.finish(), two.finish()
        publishing.publish([first])
        if independent:
            publishing.publish([second])
        else:
            with pytest.raises(OutputError, match=LOST):
                publishing.publish([second])
    wanted = {"one": True, "old": exists, "two": independent}
    assert arrays(target) == {name for name, exists in wanted.items() if exists}


@pytest.mark.parametrize("target", ["a.npz", "m.safetensors"])
def test_a_file_that_got_several_arrays_meanwhile_is_not_replaced(target: str) -> None:
    save(target)
    with temporary_sink(target) as out:
        fill(out, ARRAY)
        file = out.finish()
        save(f"{target}:more")
        with pytest.raises(OutputError, match=f"^{target} has 2 arrays: which is to be written"):
            publishing.publish([file])
    assert arrays(target) == {"output", "more"}


@pytest.mark.parametrize("target", ["a", "npy:a.npz", "a.pb"])
def test_an_archive_by_another_name_that_got_more_arrays_meanwhile_stays(target: str) -> None:
    path = target.removeprefix("npy:")
    save("other.npz:first")
    Path(path).write_bytes(Path("other.npz").read_bytes())
    save("other.npz:more")
    with temporary_sink(target) as out:
        fill(out, ARRAY)
        file = out.finish()
        os.replace("other.npz", path)
        with pytest.raises(OutputError, match=f"^{path} has 2 arrays: which is to be written"):
            publishing.publish([file])
    assert arrays(path) == {"first", "more"}


@pytest.mark.parametrize("target", ["a.npz", "m.safetensors"])
def test_a_removed_file_is_not_restored(target: str) -> None:
    save(f"{target}:a")
    with temporary_sink(f"{target}:b") as out:
        fill(out, ARRAY)
        os.unlink(target)
        with pytest.raises(OutputError, match=f"^{target} was removed during the run"):
            publishing.publish([out.finish()])
    assert os.listdir() == []


@pytest.mark.parametrize("target", ["a.npz:b", "m.safetensors:b", "s.zarr:b", "s.zarr"])
def test_a_run_waits_for_the_lock_of_the_folder(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    folder = os.open(".", os.O_RDONLY)
    waits = []

    def release(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            os.close(folder)

    fcntl.flock(folder, fcntl.LOCK_EX)
    monkeypatch.setattr("time.sleep", release)
    save(target)
    assert len(waits) == 3
    assert arrays(target.partition(":")[0]) == {target.partition(":")[2]}
    os.mkdir("other")
    save("other/x.npy")  # which need no comparison
    assert len(waits) == 3


@pytest.mark.parametrize("target", ["a.npz", "m.safetensors", "x.h5", "s.zarr"])
def test_a_lock_that_is_not_released_ends_the_run(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    save(f"{target}:a")
    before = content(target)
    monkeypatch.setattr(locking, "PATIENCE", 0.0)
    folder = os.open(".", os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_SH)  # others' locks may be shared
    try:
        with pytest.raises(OutputError, match="folder was locked by another process"):
            save(f"{target}:b")
        save("x.npy")
    finally:
        os.close(folder)
    assert content(target) == before


def test_files_of_one_folder_take_one_lock(check_files_closed: None) -> None:
    with temporary_sink("a.npz:x") as one, temporary_sink("./b.npz:y") as two:
        fill(one, ARRAY)
        fill(two, ARRAY)
        publishing.publish([one.finish(), two.finish()])
    assert arrays("a.npz") | arrays("b.npz") == {"x", "y"}


def test_no_file_takes_its_name_where_another_one_may_not(check_files_closed: None) -> None:
    save("b.npz:old")
    with temporary_sink("a.npz:x") as one, temporary_sink("b.npz:y") as two:
        fill(one, ARRAY)
        fill(two, ARRAY)
        files = [one.finish(), two.finish()]
        save("b.npz:more")
        with pytest.raises(OutputError, match=LOST):
            publishing.publish(files)
    assert os.listdir() == ["b.npz"]


@pytest.mark.parametrize("call", ["drop", "sync_folder"])
def test_a_late_failure_leaves_nothing_of_the_other_outputs(
    call: str, check_files_closed: None
) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    save("s.zarr")
    with temporary_sink("a.npy") as one, temporary_sink("s.zarr") as two:
        fill(one, ARRAY)
        fill(two, ARRAY)
        files = [one.finish(), two.finish()]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(files[0], call, fail_with(5))
            with pytest.raises(OSError, match="Input/output error"):
                publishing.publish(files)
        assert sorted(os.listdir()) == ["a.npy", "s.zarr"]


@pytest.mark.parametrize("target", ["a.npz", "m.safetensors", "x.h5", "s.zarr"])
def test_a_file_system_without_locks(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    monkeypatch.setattr(fcntl, "flock", fail_with(37))
    save(f"{target}:a")
    save(f"{target}:b")
    assert arrays(target) == {"a", "b"}
    if target != "s.zarr":
        with temporary_sink(f"{target}:c") as out:
            fill(out, ARRAY)
            save(f"{target}:d")
            with pytest.raises(OutputError, match=LOST):
                publishing.publish([out.finish()])
        assert arrays(target) == {"a", "b", "d"}


def test_one_of_two_runs_that_create_a_file_is_refused_without_locks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fcntl, "flock", fail_with(37))
    with temporary_sink("a.npz:x") as one, temporary_sink("a.npz:y") as two:
        fill(one, ARRAY)
        fill(two, ARRAY)
        first, second = one.finish(), two.finish()
        first.recheck()
        second.recheck()
        first.publish()
        with pytest.raises(OutputError, match=r"^a.npz exists"):
            second.publish()
    assert arrays("a.npz") == {"x"}


def test_a_folder_that_may_not_be_read_is_written_to(workdir: Path) -> None:
    os.mkdir("d")
    save("x.npy")
    save("d/a.npz:a")
    os.chmod("d", 0o300)
    try:
        ran = ndtool("convert", "x.npy", "d/a.npz:b", preexec_fn=drop_root_capabilities)
        assert (ran.status, ran.err) == (0, "preserved a\n")
    finally:
        os.chmod("d", 0o700)
    assert arrays("d/a.npz") == {"a", "b"}


def test_a_replaced_store_gets_no_part_of_an_array() -> None:
    """Later writes of chunks do not recreate the temporary folder."""
    pytest.importorskip("zarr", exc_type=ImportError)
    save("s.zarr:g/old")
    with temporary_sink("s.zarr:g/a") as out:
        save("s.zarr:g/new", only=True)
        before = content("s.zarr")
        with pytest.raises(OutputError, match=r"s.zarr/g was replaced during the run"):
            fill(out, ARRAY)
    assert content("s.zarr") == before
    assert arrays("s.zarr") == {"g/new"}
    with temporary_sink("s.zarr:g/a") as out:
        fill(out, ARRAY)
        save("s.zarr", only=True)
        with pytest.raises(OutputError, match=LOST + "|is not a group"):
            publishing.publish([out.finish()])
    assert arrays("s.zarr") == {""}


def test_an_array_that_became_a_group_meanwhile_is_not_replaced() -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    save("s.zarr")
    with temporary_sink("s.zarr", ARRAY + 1) as out:
        fill(out, ARRAY + 1)
        save("s.zarr:a", only=True)
        save("s.zarr:b")
        with pytest.raises(OutputError, match=r"s.zarr is a group of 2 arrays"):
            publishing.publish([out.finish()])
    assert arrays("s.zarr") == {"a", "b"}


WRITER = (
    PROGRAM
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


def written_at_once(target: str, writers: int = 4, rounds: int = 6) -> set[str]:
    """Start processes that write arrays to one target; return the names of successful ones."""
    command = [sys.executable, "-W", "ignore", "-c", WRITER, target, str(rounds)]
    runs: list[Any] = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env=environment(), text=True)
        for _ in range(writers)
    ]
    message = [run.communicate()[0].split() for run in runs]
    assert [run.returncode for run in runs] == [0] * writers
    assert [len(lines) for lines in message] == [rounds] * writers
    return {name for lines in message for name in lines} - {"refused"}


@pytest.mark.parametrize("target", ["a.npz", "m.safetensors", "x.h5", "s.zarr", "g.zarr"])
def test_concurrent_results_are_present(target: str) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    if target == "g.zarr":  # whose metadata list all arrays
        zarr.create_group(target)
        zarr.consolidate_metadata(target)
    done = written_at_once(target)
    assert done
    assert arrays(target) == done
    assert os.listdir() == [target]
    if target.endswith(".zarr"):
        assert set(os.listdir(target)) == done | {"zarr.json"}
    if target == "g.zarr":
        assert set(zarr.open_consolidated(target)) == done


@pytest.mark.slow("runs at once on one object lose no array")
@pytest.mark.parametrize("name", ["a.npz", "m.safetensors", "s.zarr"])
def test_concurrent_results_are_in_the_object(s3: Bucket, name: str) -> None:
    pytest.importorskip("zarr", exc_type=ImportError)
    done = written_at_once(f"s3://bucket/{name}", 3, 4)
    assert done
    assert arrays(f"s3://bucket/{name}") == done
    assert not s3.uploads()
    left = s3.keys()
    assert not [key for key in left if "ndtool" in key]


@pytest.mark.slow("consolidated metadata lose no array")
def test_consolidated_metadata_list_arrays_of_concurrent_runs(s3: Bucket) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    zarr.create_group("g.zarr")
    zarr.consolidate_metadata("g.zarr")
    s3.put("g.zarr/zarr.json", Path("g.zarr/zarr.json").read_bytes())
    done = written_at_once("s3://bucket/g.zarr", 3, 4)
    assert len(done) == 12, "each array has objects of its own"
    assert arrays("s3://bucket/g.zarr") == done
