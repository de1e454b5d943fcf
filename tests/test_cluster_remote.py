"""Clusters and stores at URLs: the objects that workers write, preserve and leave there; on
moto."""

import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import bucket
import numpy as np
import pytest
from bucket import Bucket
from command import NDTOOL, environment, ndtool, save
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import opened
from strategies import same
from test_cluster import CALLS, PRELOAD, Workers, done, load, stores, wanted
from twoworkers import PATIENT, two_workers

from ndtool.arrays import source
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import BoundsError, OutputError, UsageError
from ndtool.formats import outputs
from ndtool.formats.zarr import writer
from ndtool.publish import claims, shared
from ndtool.rules import dtypes
from ndtool.runs.external import spillfiles
from ndtool.runs.external.spill import Segment, Table
from ndtool.runs.external.spillfiles import ObjectStore
from ndtool.storage import remote, upload
from ndtool.storage.remote import Version
from ndtool.storage.remotefolder import RemoteFolder

pytest.importorskip("dask", exc_type=ImportError)
pytest.importorskip("distributed", exc_type=ImportError)
zarr = pytest.importorskip("zarr", exc_type=ImportError)
fsspec = pytest.importorskip("fsspec")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
__all__ = ["stores"]  # a fixture

ROOT = f"s3://{bucket.NAME}"
# Fewer than usual: each is a request.
CHUNKS: dict[str, dict[str, Any]] = {
    "gather_nd": {"chunks": (8, 500), "shards": (8, 1000)},
    "scatter_nd": {"chunks": (128, 256)},
    "gather_elements": {"chunks": (100, 400)},
    "scatter_elements": {"chunks": (64, 64), "shards": (128, 256)},
}


@pytest.fixture(scope="module")
def started(s3_server: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Start two workers whose environment has the server's address."""
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bucket.settings(s3_server.endpoint).items():
            patch.setenv(name, value) if value is not None else patch.delenv(name)
        with two_workers(folder, PRELOAD, **PATIENT) as client:
            yield Workers(client, folder)


@pytest.fixture
def workers(started: Workers, s3: Bucket) -> Iterator[Workers]:
    started.notes()
    yield started
    started.release()


def tops(s3: Bucket) -> set[str]:
    """Return the content of the bucket, folders as one entry."""
    found = s3.keys()
    return {key.split("/")[0] for key in found}


def objects(s3: Bucket, folder: str) -> dict[str, bytes]:
    """Return the objects of a folder by their relative names."""
    found = s3.keys()
    inside = [key for key in found if key.startswith(f"{folder}/")]
    return {key.removeprefix(f"{folder}/"): s3.get(key) for key in inside}


@pytest.mark.parametrize("operator", CALLS)
def test_the_objects_are_those_of_a_run_in_one_process(
    stores: Path, workers: Workers, s3: Bucket, operator: str
) -> None:
    options = CHUNKS[operator]
    done(operator, ".zarr", f"{ROOT}/out.zarr", scheduler=workers.client, **options)
    done(operator, ".zarr", f"{ROOT}/one.zarr", **options)
    assert objects(s3, "out.zarr") == objects(s3, "one.zarr")
    assert tops(s3) == {"out.zarr", "one.zarr"}
    chunks = [line for line in workers.notes() if line.startswith("write")]
    assert len(chunks) == len(objects(s3, "out.zarr")) - 1


@pytest.mark.parametrize(
    ("data", "out", "spill"),
    [("data.npy", "out.npy", f"{ROOT}/deep/spill"), (f"{ROOT}/data.zarr", f"{ROOT}/out.zarr:g/a", ".")],
)  # fmt: skip
def test_arrays_and_spilled_data_in_all_storages(
    stores: Path, workers: Workers, s3: Bucket, data: str, out: str, spill: str
) -> None:
    few = zarr.create_array("few.zarr", shape=(512, 512), chunks=(256, 256), dtype="f4")
    few[...] = np.load("data.npy")
    for path in Path("few.zarr").rglob("*"):
        if path.is_file():
            s3.put(str(path).replace("few", "data"), path.read_bytes())
    workdir = set(os.listdir())
    command = ("scatter-nd", data, "idx.npy", "upd.npy", "--reduction", "mean", "-o", out)
    flags = ("--no-include-self", "--spill", spill, "--json", "--scheduler", workers.address)
    ran = ndtool(*command, *flags)
    assert (ran.status, ran.err, ran.json["plan"]["way"]) == (0, "", "cluster")
    assert tops(s3) == {"data.zarr"} | ({"out.zarr"} if out.startswith(ROOT) else set())
    assert set(os.listdir()) - workdir == (set() if out.startswith(ROOT) else {out})
    with opened(out) as one:
        got = bytes(source.load_array(one).buffer)
    assert got == wanted("scatter_nd").tobytes()


@pytest.mark.slow("tasks of a killed worker are repeated with an object store")
@pytest.mark.parametrize(
    ("operator", "phase"),
    [("gather_nd", "split"), ("gather_nd", "sweep"), ("gather_nd", "replay"), ("scatter_nd", "split"), ("scatter_nd", "sweep")],
)  # fmt: skip
def test_tasks_of_a_killed_worker_run_again(
    stores: Path, workers: Workers, s3: Bucket, operator: str, phase: str
) -> None:
    workers.order("die", phase)
    options = {"scheduler": workers.client, "spill": f"{ROOT}/tmp/", **CHUNKS[operator]}
    done(operator, ".zarr", f"{ROOT}/out.zarr", **options)
    assert workers.done()
    done(operator, ".zarr", "out.zarr", **CHUNKS[operator])
    assert same(load("out.zarr"), wanted(operator))
    assert objects(s3, "out.zarr") == {
        str(path.relative_to("out.zarr")): path.read_bytes()
        for path in Path("out.zarr").rglob("*")
        if path.is_file()
    }
    assert tops(s3) == {"out.zarr"}
    assert s3.uploads() == []


@pytest.mark.slow("a store that throttles for long slows a run down, and does not end it")
@pytest.mark.parametrize("operator", ["gather_nd", "scatter_nd"])
def test_a_store_that_throttles_slows_a_run_down(
    stores: Path, workers: Workers, s3: Bucket, operator: str
) -> None:
    options = {"scheduler": workers.client, "spill": f"{ROOT}/tmp/", **CHUNKS[operator]}
    with bucket.throttled(rate=10, burst=10) as counts:
        result = done(operator, ".zarr", f"{ROOT}/out.zarr", **options)
    assert len(result.warnings) <= 1  # not one for each object
    done(operator, ".zarr", f"{ROOT}/one.zarr", **CHUNKS[operator])
    assert counts["refused"] > 20
    assert objects(s3, "out.zarr") == objects(s3, "one.zarr")
    assert tops(s3) == {"out.zarr", "one.zarr"}
    assert s3.uploads() == []


def begun(workers: Workers, out: str, *options: str, phase: str = "sweep") -> Any:
    """Start a run whose workers block in a phase."""
    workers.order("wait", phase)
    command = (
        "scatter-nd",
        "data.zarr",
        "idx.zarr",
        "upd.zarr",
        "-o",
        out,
        "--reduction",
        "mean",
        "--no-include-self",
    )
    ran = subprocess.Popen(
        [*NDTOOL, *command, *options, "--scheduler", workers.address],
        env=environment(),
        stderr=subprocess.PIPE,
    )
    while f"-{phase}-" not in str(workers.client.processing()):
        assert ran.poll() is None, ran.communicate()
        time.sleep(0.05)
    return ran


def ended(ran: Any, workers: Workers, number: int) -> int:
    """End a run by a signal, and unblock its tasks."""
    ran.send_signal(number)
    ran.communicate()
    workers.release()
    workers.client.restart()
    return int(ran.returncode)


@pytest.mark.slow("Ctrl-C removes the objects that workers wrote")
def test_ctrl_c_removes_what_is_in_the_bucket(stores: Path, workers: Workers, s3: Bucket) -> None:
    ran = begun(workers, f"{ROOT}/out.zarr")
    assert tops(s3) > {".out.zarr.ndtool", "out.zarr"} - {"out.zarr"}
    assert ended(ran, workers, signal.SIGINT) == 130
    assert s3.keys() == []


@pytest.mark.slow("no request of a run outlives it")
def test_pending_requests_are_awaited(stores: Path, workers: Workers, s3: Bucket) -> None:
    """Objects written after the folder is cleared would never be removed."""
    workers.order("late", "put")
    command = ("scatter-nd", "data.zarr", "idx.zarr", "upd.zarr", "-o", f"{ROOT}/out.zarr")
    ran = subprocess.Popen(
        [*NDTOOL, *command, "--spill", ".", "--scheduler", workers.address], env=environment()
    )
    while not any(line.startswith("sent c/") for line in workers.notes()):
        assert ran.poll() is None
        time.sleep(0.05)
    ran.send_signal(signal.SIGINT)
    assert ran.wait() == 130
    time.sleep(3)
    assert s3.keys() == []


@pytest.mark.slow("unfinished uploads stay invisible and are removed")
def test_files_of_a_killed_client_are_invisible_and_removed(
    stores: Path, workers: Workers, s3: Bucket
) -> None:
    s3.put("other.zarr/c/0", b"another's")
    ran = begun(workers, f"{ROOT}/out.zarr")
    living = ndtool("clean", ROOT, "--json").json
    assert living["removed"] == []
    assert {one["process"] for one in living["kept"]} == {ran.pid}
    assert ended(ran, workers, signal.SIGKILL) == -signal.SIGKILL
    assert tops(s3) > {".out.zarr.ndtool", "other.zarr"}
    assert ndtool("inspect", f"{ROOT}/out.zarr").status == 3
    cleaned = ndtool("clean", ROOT, "--json").json
    assert f"{ROOT}/out.zarr" in cleaned["removed"]
    assert len(cleaned["removed"]) == 2
    assert cleaned["kept"] == []
    assert s3.keys() == ["other.zarr/c/0"]
    assert ndtool("clean", ROOT).out == b"nothing to remove\n"


@pytest.mark.slow("the next run to the same object cleans up")
def test_the_next_run_removes_what_a_killed_one_left(
    stores: Path, workers: Workers, s3: Bucket
) -> None:
    assert ended(begun(workers, f"{ROOT}/out.zarr"), workers, signal.SIGKILL) == -signal.SIGKILL
    s3.put("out.zarr/c/99/99", b"a chunk of that run")
    done("scatter_nd", ".zarr", f"{ROOT}/out.zarr", scheduler=workers.client)
    done("scatter_nd", ".zarr", f"{ROOT}/one.zarr")
    assert objects(s3, "out.zarr") == objects(s3, "one.zarr")
    assert tops(s3) == {"out.zarr", "one.zarr"}


@pytest.mark.slow("clean takes the folder of a killed run, too, and that of its spilled data")
def test_clean_knows_the_folder_itself(stores: Path, workers: Workers, s3: Bucket) -> None:
    ran = begun(workers, f"{ROOT}/deep/out.zarr", "--spill", f"{ROOT}/tmp")
    assert ended(ran, workers, signal.SIGKILL) == -signal.SIGKILL
    assert ndtool("clean", f"{ROOT}/deep/out.zarr/", "--json").json["removed"] == [
        f"{ROOT}/deep/out.zarr"
    ]
    assert tops(s3) == {"tmp"}
    assert len(ndtool("clean", f"{ROOT}/tmp", "--json").json["removed"]) == 1
    assert s3.keys() == []


@pytest.mark.slow("spilled data in an object store are resumed")
@pytest.mark.parametrize(
    ("out", "options"), [(f"{ROOT}/out.zarr", ()), ("out.zarr", ("--spill", f"{ROOT}/tmp"))]
)
def test_segments_of_a_killed_run_are_resumed(
    stores: Path, workers: Workers, s3: Bucket, out: str, options: tuple[str, ...]
) -> None:
    ran = begun(workers, out, *options)
    assert ended(ran, workers, signal.SIGKILL) == -signal.SIGKILL
    workers.notes()
    command = (
        "scatter-nd",
        "data.zarr",
        "idx.zarr",
        "upd.zarr",
        "-o",
        out,
        "--reduction",
        "mean",
        "--no-include-self",
    )
    arguments = ("--scheduler", workers.address, "--resume", "--json", *options)
    report = ndtool(*command, *arguments).json
    assert report["resumed"] == {"split": report["plan"]["tasks"]["split"]}
    assert not [line for line in workers.notes() if "idx.zarr" in line]
    with opened(out) as one:
        assert bytes(source.load_array(one).buffer) == wanted("scatter_nd").tobytes()
    assert tops(s3) == ({"out.zarr"} if out.startswith(ROOT) else set())
    assert not [name for name in os.listdir() if name.startswith(".")]


def test_a_remote_folder_is_abandoned_and_taken_over(s3: Bucket) -> None:
    position = spillfiles.create_folder(f"{ROOT}/tmp")
    spillfiles.open_store(position.working_folder).write_file("manifest", b"{}")
    assert spillfiles.find_abandoned(f"{ROOT}/tmp") == ([], [])  # whose process is alive
    assert spillfiles.reopen(position.working_folder) is None
    position.suspend()
    position.drop()
    assert spillfiles.find_abandoned(f"{ROOT}/tmp") == ([position.working_folder], [])
    taken = spillfiles.reopen(position.working_folder)
    assert taken is not None
    assert spillfiles.find_abandoned(f"{ROOT}/tmp") == ([], [])
    assert spillfiles.open_store(taken.working_folder).read_file("manifest") == b"{}"
    assert spillfiles.open_store(taken.working_folder).read_file("starts") is None
    taken.drop()
    assert s3.keys() == []
    s3.put("tmp/.spill-1.ndtool", of(1, "another", folder="spill-1"))
    s3.put("tmp/.spill-2.ndtool", of(GONE, folder="spill-2"))
    s3.put("tmp/.spill-3.ndtool", b"another object")
    assert spillfiles.find_abandoned(f"{ROOT}/tmp") == (
        [f"{ROOT}/tmp/spill-2"],
        [f"{ROOT}/tmp/spill-1"],
    )


def test_fields_that_identify_objects(stores: Path, s3: Bucket) -> None:
    for path in Path("idx.zarr").rglob("*"):
        if path.is_file():
            s3.put(str(path), path.read_bytes())

    def report() -> Any:
        with opened(f"{ROOT}/idx.zarr") as one:
            return one.fingerprint()

    before = report()
    assert (report(), before[0]) == (before, 14)
    s3.put("idx.zarr/c/5/0/0", b"another chunk")
    assert report() != before
    save(few=np.arange(3))
    s3.put("few.npy", Path("few.npy").read_bytes())
    with opened(f"{ROOT}/few.npy") as one:
        assert one.fingerprint()[1] == os.path.getsize("few.npy")


@pytest.mark.parametrize(
    "answer",
    [
        {},
        {"a": Version(size=4)},
        {"a": Version("tag", "now", 4), "b": Version(size=4)},
        PermissionError("AccessDenied"),
    ],
)
def test_fields_that_do_not_identify_objects(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Version] | Exception
) -> None:
    """A size alone is no fingerprint, and readable objects need not be listable."""

    async def contents(url: str) -> dict[str, Version]:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(remote, "object_versions", contents)
    assert RemoteFolder("memory://x").fingerprint("") is None


def test_times_and_sizes_identify_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    async def contents(url: str) -> dict[str, Version]:
        return {"a": next(answers)}

    monkeypatch.setattr(remote, "object_versions", contents)
    versions = [Version(None, time, size) for time, size in (("1", 4), ("2", 4), ("1", 5))]
    answers = iter(versions)
    assert len({str(RemoteFolder("memory://x").fingerprint("")) for _ in versions}) == 3


@pytest.mark.parametrize("url", ["s3://", "s3:///", "memory://"])
def test_a_url_that_names_no_folder(url: str) -> None:
    ran = ndtool("clean", url)
    message = f"error: {url} is not a folder: expected one such as s3://bucket/folder\n"
    assert (ran.status, ran.err) == (2, message)


def test_a_bad_index_leaves_nothing(stores: Path, workers: Workers, s3: Bucket) -> None:
    idx = zarr.open_array("idx.zarr")
    idx[49, 999, 1] = 5000
    with pytest.raises(BoundsError):
        done("gather_nd", ".zarr", f"{ROOT}/out.zarr", scheduler=workers.client)
    assert s3.keys() == []


def test_nothing_is_replaced(stores: Path, workers: Workers, s3: Bucket) -> None:
    s3.put("out.zarr/c/0/0", b"another's")
    with pytest.raises(OutputError, match="cannot be replaced atomically") as caught:
        done("gather_nd", ".zarr", f"{ROOT}/out.zarr", scheduler=workers.client)
    with pytest.raises(OutputError) as alone:
        done("gather_nd", ".zarr", f"{ROOT}/out.zarr")
    assert str(caught.value) == str(alone.value)
    assert s3.keys() == ["out.zarr/c/0/0"]


@pytest.mark.parametrize(
    ("out", "spill", "message"),
    [
        (f"{ROOT}/out.npy", None, "workers cannot write to it: expected a Zarr store, or a file"),
        ("memory://out.zarr", None, "workers cannot write to it"),
        ("out.npy", "memory://tmp", "workers cannot share it: expected s3://"),
        ("out.npy", "http://127.0.0.1/tmp", "cannot be written to"),
        ("out.npy", "nowhere", "nowhere"),
    ],
)
def test_locations_that_workers_do_not_share(
    stores: Path, workers: Workers, s3: Bucket, out: str, spill: str | None, message: str
) -> None:
    workdir = os.listdir()
    with pytest.raises((UsageError, OutputError), match=message):
        done("gather_nd", ".npy", out, scheduler=workers.client, spill=spill)
    assert (s3.keys(), os.listdir()) == ([], workdir)
    assert fsspec.filesystem("memory").find("/") == []


def test_a_url_for_temporary_files_is_for_clusters(stores: Path) -> None:
    ran = ndtool("gather-nd", "data.npy", "idx.npy", "-o", "x.npy", "--spill", f"{ROOT}/tmp")
    assert (ran.status, "only a cluster spills to a URL: expected a directory" in ran.err) == (2, True)  # fmt: skip
    workdir = f"file://{os.getcwd()}"
    ran = ndtool("gather-nd", "data.npy", "idx.npy", "-o", "x.npy", "--spill", workdir)
    assert (ran.status, ran.err) == (0, "")


def test_only_one_run_claims_a_folder(s3: Bucket) -> None:
    one = claims.Claim(f"{ROOT}/x.zarr", "g/a")
    with pytest.raises(OutputError, match=rf"x.zarr/g/a: process {os.getpid()} on .* writes there"):
        claims.Claim(f"{ROOT}/x.zarr", "g/a")
    claims.Claim(f"{ROOT}/x.zarr", "g/b").release()
    s3.put("x.zarr/g/a/c/0", b"a chunk")
    one.drop()
    one.drop()
    assert s3.keys() == []


def test_two_runs_that_find_the_same_leftovers(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put(".x.zarr.ndtool", of(GONE))
    s3.put("x.zarr/c/0/0", b"of the dead")
    read, first = claims._read, []

    def late(url: str) -> Any:
        found = read(url)
        monkeypatch.setattr(claims, "_read", read)
        first.append(claims.Claim(f"{ROOT}/x.zarr"))
        s3.put("x.zarr/c/0/1", b"of the living")
        return found

    monkeypatch.setattr(claims, "_read", late)
    with pytest.raises(OutputError, match="another run writes there"):
        claims.Claim(f"{ROOT}/x.zarr")
    first.pop().drop()
    s3.put(".x.zarr.ndtool", of(GONE))
    monkeypatch.setattr(claims, "_read", late)
    assert claims.clean(ROOT) == ([], [])
    assert s3.get("x.zarr/c/0/1") == b"of the living"
    first.pop().drop()
    assert s3.keys() == []


def test_a_lock_object_is_of_one_folder(s3: Bucket) -> None:
    """Two folders have lock objects of one name."""
    s3.put(".x.zarr.a.b.ndtool", of(GONE, folder="x.zarr/a/b"))
    s3.put("x.zarr/a.b/c", b"somebody's")
    with pytest.raises(OutputError, match="cannot be replaced atomically"):
        begun_here(f"{ROOT}/x.zarr:a.b")
    with pytest.raises(OutputError, match="writes there, or was killed"):
        claims.Claim(f"{ROOT}/x.zarr", "a.b")
    assert s3.get("x.zarr/a.b/c") == b"somebody's"


def test_a_run_whose_folder_was_claimed_is_not_published(s3: Bucket) -> None:
    sink = begun_here(f"{ROOT}/x.zarr")
    sink.write(0, memoryview(bytes(64)))
    s3.put(".x.zarr.ndtool", of(1, "another"))
    with pytest.raises(OutputError, match=r"\.x\.zarr\.ndtool was replaced or removed$"):
        sink.finish().publish()
    sink.abort()
    assert s3.keys() == [".x.zarr.ndtool"]


def of(process: int, machine: str | None = None, **changes: Any) -> bytes:
    """Return a lock object of some process."""
    report = {"folder": "x.zarr", "host": "there", "machine": machine or claims._machine_id()}
    return json.dumps({**report, "process": process, **changes}).encode()


GONE = 2**22 + 1  # more than Linux's highest process ID


def test_files_of_other_machines_require_force(s3: Bucket) -> None:
    s3.put(".x.zarr.ndtool", of(1, "another"))
    s3.put("x.zarr/c/0/0", b"a chunk")
    ran = ndtool("clean", ROOT)
    assert ran.out == b"not removed: s3://bucket/x.zarr: process 1 on there may be using it\n"
    with pytest.raises(OutputError, match="process 1 on there writes there, or was killed"):
        claims.Claim(f"{ROOT}/x.zarr")
    assert ndtool("clean", ROOT, "--force").out == b"removed s3://bucket/x.zarr\n"
    assert s3.keys() == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[]", b"[" * 9999, b"\xff", b"null", b'"x"', of(GONE, folder=""), of(GONE, folder="../x"), of(GONE, folder=5), of(True)],
)  # fmt: skip
def test_malformed_lock_objects(body: bytes, s3: Bucket) -> None:
    s3.put(".x.zarr.ndtool", body)
    s3.put("x.zarr/c/0/0", b"a chunk")
    assert ndtool("clean", ROOT, "--force").out == b"nothing to remove\n"
    with pytest.raises(OutputError, match="another run writes there"):
        claims.Claim(f"{ROOT}/x.zarr")
    assert s3.keys() == [".x.zarr.ndtool", "x.zarr/c/0/0"]


def test_processes_of_other_users(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    s3.put(".x.zarr.ndtool", of(GONE))

    def kill(process: int, number: int) -> None:
        assert (process, number) == (GONE, 0)
        raise PermissionError

    monkeypatch.setattr(os, "kill", kill)
    assert [one.process for one in claims.clean(ROOT)[1]] == [GONE]
    monkeypatch.setattr(os, "readlink", lambda path: os.stat("nowhere"))
    assert claims._machine_id() == socket.gethostname()


async def refuse(*_: Any) -> None:
    raise PermissionError


def test_folders_that_cannot_be_removed_keep_their_lock_object(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = claims.Claim(f"{ROOT}/x.zarr")
    s3.put("x.zarr/c/0/0", b"a chunk")
    monkeypatch.setattr(upload.S3Writer, "clear", refuse)
    claim.drop()
    assert s3.keys() == [".x.zarr.ndtool", "x.zarr/c/0/0"]
    monkeypatch.setattr(upload.S3Writer, "remove", refuse)
    claim.release()
    assert s3.keys() == [".x.zarr.ndtool", "x.zarr/c/0/0"]


def test_any_store_is_cleared(workdir: Path) -> None:
    memory = fsspec.filesystem("memory")
    claim = claims.Claim("memory://x[1]*.zarr")
    memory.pipe_file("/x[1]*.zarr/c/0/0", b"a chunk")
    memory.pipe_file("/x1.zarr/c/0/0", b"another's")
    claim.drop()
    assert memory.find("/") == ["/x1.zarr/c/0/0"]
    memory.store.clear()


@pytest.mark.parametrize("metadata", ["zarr.json", ".zarray", ".zgroup"])
def test_an_array_that_is_complete_stays(metadata: str, s3: Bucket) -> None:
    s3.put(".x.zarr.ndtool", of(GONE))
    s3.put("x.zarr/c/0/0", b"a chunk")
    s3.put(f"x.zarr/{metadata}", b"{}")
    assert ndtool("clean", ROOT).out == b"removed s3://bucket/.x.zarr.ndtool\n"
    assert sorted(s3.keys()) == sorted(["x.zarr/c/0/0", f"x.zarr/{metadata}"])


def test_arrays_of_concurrent_runs_are_preserved(s3: Bucket) -> None:
    sink = begun_here(f"{ROOT}/x.zarr")
    s3.put("x.zarr/c/0/0", b"another's")
    with pytest.raises(
        OutputError, match=r"^s3://bucket/x.zarr was created by another process during the run"
    ):
        sink.share()
    sink.abort()
    assert s3.keys() == ["x.zarr/c/0/0"]
    s3.empty()
    sink = begun_here(f"{ROOT}/x.zarr")
    assert sink.share() is not None
    s3.put("x.zarr/zarr.json", b"another's")
    with pytest.raises(
        OutputError, match=r"zarr.json was created by another process during the run"
    ):
        sink.finish().publish()
    sink.abort()
    assert s3.keys() == ["x.zarr/zarr.json"]


def begun_here(target: str) -> Any:
    metadata = ArrayMetadata(dtypes.from_descr("<i4"), (4, 4), "C", (4, 4), {})
    return outputs.create(outputs.resolve(target, metadata))


def test_a_worker_that_sees_another_store(s3: Bucket) -> None:
    sink = begun_here(f"{ROOT}/x.zarr")
    report = sink.share()
    assert isinstance(report, shared.SharedOutput)
    s3.s3.delete_object(Bucket=bucket.NAME, Key=".x.zarr.ndtool")
    with pytest.raises(OutputError, match="was replaced or removed, on a worker"):
        writer.ChunkWriter.reopen(report)
    sink.abort()
    assert s3.keys() == []


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), max_size=4), st.data())
def test_pieces_are_read_as_they_were_written(sizes: list[int], data: st.DataObject) -> None:
    fs = fsspec.filesystem("memory")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spillfiles, "OBJECT_BYTES", 16)
        spills = ObjectStore("memory://spill")
        whole = np.random.default_rng(sum(sizes)).bytes(sum(sizes))
        piece, at = spills.create(Segment("split", 3, 0)), 0
        for size in sizes:
            spills.write(piece, at, memoryview(whole[at : at + size]))
            at += size
        spills.finish(piece)
        assert max(map(len, map(fs.cat, fs.find("/spill"))), default=0) <= 16
        start = data.draw(st.integers(0, len(whole)))
        memory_block = memoryview(bytearray(data.draw(st.integers(0, len(whole) - start))))
        spills.read(piece, start, memory_block)
        assert memory_block == whole[start : start + len(memory_block)]
    fs.store.clear()


def test_spilled_segments_have_trailers(stores: Path) -> None:
    save(numbers=np.arange(12))
    spills = ObjectStore("memory://spill")
    numbers = memoryview(np.arange(12))
    spills.write_table(Table("starts", 3), numbers)
    assert spills.read_lines(Table("starts", 3), 1, 3).tolist() == list(range(3, 9))
    with pytest.raises(OutputError, match="spill/split-0-0000000000000005-0: there is no such"):
        spills.read(Segment("split", 0, 0, 5), 0, memoryview(bytearray(3)))
    piece = spills.create(Segment("split", 0, 0))
    spills.write(piece, 0, memoryview(b"abc"))
    spills.close()
    with pytest.raises(OutputError, match="the run has ended"):
        spills.finish(piece)
    fsspec.filesystem("memory").store.clear()
