"""Clusters and stores in S3: the objects that workers write, preserve and remove, on moto."""

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import bucket
import numpy as np
import pytest
from bucket import Bucket
from command import ndtool, save, start
from hypothesis import given, settings
from hypothesis import strategies as st
from inputs import open_input
from later import later
from test_cluster import expected_result, run_operator, stores, written_stores
from twoworkers import PATIENT, Workers, two_workers

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, UsageError
from ndtool.formats import outputs
from ndtool.machine.threads import AdmissionLock
from ndtool.outofcore import segments
from ndtool.outofcore.segments import Segment, SharedStore
from ndtool.publish import claims
from ndtool.rules import dtypes

later("dask")
later("distributed")
zarr = later("zarr")
fsspec = later("fsspec")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
__all__ = ["stores", "written_stores"]  # fixtures

BUCKET_URL = f"s3://{bucket.NAME}"
# Large chunks, because each is a request.
CHUNKS: dict[str, dict[str, Any]] = {
    "gather_nd": {"chunks": (8, 500), "shards": (8, 1000)},
    "scatter_nd": {"chunks": (128, 256)},
    "gather_elements": {"chunks": (100, 400)},
    "scatter_elements": {"chunks": (64, 64), "shards": (128, 256)},
}


@pytest.fixture(autouse=True)
def empty_memory_storage() -> Iterator[None]:
    """Clear what tests, and examples that ended while they drew, left in the process's storage."""
    store = fsspec.filesystem("memory").store
    store.clear()
    yield
    store.clear()


@pytest.fixture(scope="module")
def cluster(s3_server: Bucket, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    """Start two workers whose environment has the server's address."""
    folder = tmp_path_factory.mktemp("cluster")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in bucket.client_environment(s3_server.endpoint).items():
            patch.setenv(name, value) if value is not None else patch.delenv(name)
        with two_workers(folder, **PATIENT) as started:
            yield started


@pytest.fixture
def workers(cluster: Workers, s3: Bucket) -> Iterator[Workers]:
    cluster.pop_records()
    yield cluster
    cluster.release()


SPILLED = pytest.mark.slow("workers spill to objects")


def top_level_names(s3: Bucket) -> set[str]:
    """Return the names at the top of the bucket: folders and objects."""
    keys = s3.keys()
    return {key.split("/")[0] for key in keys}


def objects(s3: Bucket, folder: str) -> dict[str, bytes]:
    """Return the objects of a folder by their relative names."""
    keys = s3.keys()
    matching = [key for key in keys if key.startswith(f"{folder}/")]
    return {key.removeprefix(f"{folder}/"): s3.get(key) for key in matching}


@pytest.mark.slow("workers write the objects of one process, shards too")
@pytest.mark.parametrize("operator", ["gather_nd", "scatter_elements"])
def test_a_cluster_writes_the_objects_of_a_run_in_one_process(
    stores: Path, workers: Workers, s3: Bucket, operator: str
) -> None:
    options = CHUNKS[operator]
    run_operator(operator, ".zarr", f"{BUCKET_URL}/out.zarr", scheduler=workers.client, **options)
    run_operator(operator, ".zarr", f"{BUCKET_URL}/one.zarr", **options)
    assert objects(s3, "out.zarr") == objects(s3, "one.zarr")
    assert top_level_names(s3) == {"out.zarr", "one.zarr"}
    chunks = [line for line in workers.pop_records() if line.startswith("write")]
    assert len(chunks) == len(objects(s3, "out.zarr")) - 1


@pytest.mark.parametrize(
    ("data", "out", "spill"),
    [
        (f"{BUCKET_URL}/data.zarr", f"{BUCKET_URL}/out.zarr:g/a", "."),
        pytest.param("data.npy", "out.npy", f"{BUCKET_URL}/deep/spill", marks=SPILLED),
    ],
)
def test_arrays_and_spilled_data_may_be_remote_or_local(
    stores: Path, workers: Workers, s3: Bucket, data: str, out: str, spill: str
) -> None:
    large_chunks = zarr.create_array(
        "large_chunks.zarr", shape=(512, 512), chunks=(256, 256), dtype="f4"
    )
    large_chunks[...] = np.load("data.npy")
    for path in Path("large_chunks.zarr").rglob("*"):
        if path.is_file():
            s3.put(str(path).replace("large_chunks", "data"), path.read_bytes())
    workdir = set(os.listdir())
    command = ("scatter-nd", data, "idx.npy", "upd.npy", "--reduction", "mean", "-o", out)
    flags = ("--no-include-self", "--spill", spill, "--json", "--scheduler", workers.address)
    completed = ndtool(*command, *flags)
    assert (completed.status, completed.err, completed.json["plan"]["way"]) == (0, "", "cluster")
    assert top_level_names(s3) == {"data.zarr"} | (
        {"out.zarr"} if out.startswith(BUCKET_URL) else set()
    )
    assert set(os.listdir()) - workdir == (set() if out.startswith(BUCKET_URL) else {out})
    with open_input(out) as opened:
        raw = bytes(opened.load())
    assert raw == expected_result("scatter_nd").tobytes()


@pytest.mark.slow("a store that throttles for long slows a run down, and does not end it")
@pytest.mark.parametrize("operator", ["gather_nd", "scatter_nd"])
def test_a_store_that_throttles_slows_a_run_down(
    stores: Path, workers: Workers, s3: Bucket, operator: str
) -> None:
    options = {"scheduler": workers.client, "spill": f"{BUCKET_URL}/tmp/", **CHUNKS[operator]}
    with bucket.throttle_requests(rate=10, burst=10) as counts:
        result = run_operator(operator, ".zarr", f"{BUCKET_URL}/out.zarr", **options)
    assert len(result.warnings) <= 1  # not one for each object
    run_operator(operator, ".zarr", f"{BUCKET_URL}/one.zarr", **CHUNKS[operator])
    assert counts["refused"] > 20
    assert objects(s3, "out.zarr") == objects(s3, "one.zarr")
    assert top_level_names(s3) == {"out.zarr", "one.zarr"}
    assert s3.uploads() == []


SCATTER = (
    "scatter-nd", "data.zarr", "idx.zarr", "upd.zarr", "--reduction", "mean", "--no-include-self",
)  # fmt: skip


def start_blocked_run(workers: Workers, out: str, *options: str, phase: str = "sweep") -> Any:
    """Start a run whose workers block in a phase."""
    workers.inject_fault("wait", phase)
    process = start(*SCATTER, "-o", out, *options, "--scheduler", workers.address)
    while f"-{phase}-" not in str(workers.client.processing()):
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    return process


def kill_run(process: Any, workers: Workers) -> None:
    """Kill a run, and unblock its tasks."""
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    workers.release()
    workers.client.restart()


@pytest.mark.slow("unfinished uploads stay invisible and are removed")
def test_files_of_a_killed_client_are_invisible_and_removed(
    stores: Path, workers: Workers, s3: Bucket
) -> None:
    s3.put("other.zarr/c/0", b"another's")
    process = start_blocked_run(workers, f"{BUCKET_URL}/out.zarr")
    report = ndtool("clean", BUCKET_URL, "--json").json
    assert report["removed"] == []
    assert {entry["process"] for entry in report["kept"]} == {process.pid}
    kill_run(process, workers)
    assert top_level_names(s3) > {"out.zarr.ndtool", "other.zarr"}
    assert ndtool("inspect", f"{BUCKET_URL}/out.zarr").status == 3
    cleaned = ndtool("clean", f"{BUCKET_URL}/out.zarr/", "--json").json
    assert (cleaned["removed"], cleaned["kept"]) == ([f"{BUCKET_URL}/out.zarr"], [])
    assert len(ndtool("clean", BUCKET_URL, "--json").json["removed"]) == 1  # spilled data
    assert s3.keys() == ["other.zarr/c/0"]
    assert ndtool("clean", BUCKET_URL).out == b"nothing to remove\n"


def test_an_abandoned_remote_folder_is_reopened(s3: Bucket) -> None:
    location, found = f"{BUCKET_URL}/tmp", memoryview(bytearray(2))
    folder = segments.create_folder(location, "abc")
    table = Segment("table", (), 0, 0)
    SharedStore(folder.working_folder).write(table, [memoryview(b"{}")])
    assert segments.abandoned_folders(location) == []  # its process is alive
    assert segments.find_folder(location, "abc") is None
    folder.suspend()
    folder.drop()
    assert segments.abandoned_folders(location) == [folder.working_folder]
    assert segments.find_folder(location, "ab") is None
    reopened = segments.find_folder(location, "abc")
    assert reopened is not None
    assert segments.abandoned_folders(location) == []
    SharedStore(reopened.working_folder).read([(table, 0, found)])
    assert bytes(found) == b"{}"
    reopened.drop()
    assert s3.keys() == []
    s3.put("tmp/spill-1.ndtool", lock_object(1, "another"))
    s3.put("tmp/spill-2.ndtool", lock_object(DEAD_PROCESS))
    s3.put("tmp/spill-3.ndtool", b"another object")
    assert segments.abandoned_folders(location) == [f"{BUCKET_URL}/tmp/spill-2"]


def test_etags_identify_objects(stores: Path, s3: Bucket) -> None:
    for path in Path("idx.zarr").rglob("*"):
        if path.is_file():
            s3.put(str(path), path.read_bytes())

    def fingerprint() -> Any:
        with open_input(f"{BUCKET_URL}/idx.zarr") as opened:
            return opened.fingerprint()

    before = fingerprint()
    assert (fingerprint(), before[0]) == (before, 6)
    s3.put("idx.zarr/c/4/0/0", b"another chunk")
    assert fingerprint() != before
    save(small=np.arange(3))
    s3.put("small.npy", Path("small.npy").read_bytes())
    with open_input(f"{BUCKET_URL}/small.npy") as opened:
        assert opened.fingerprint()[1] == os.path.getsize("small.npy")


@pytest.mark.parametrize(
    ("out", "spill", "message"),
    [
        (f"{BUCKET_URL}/out.npy", None, "workers cannot write to it: expected a Zarr store"),
        ("memory://out.zarr", None, "workers cannot write to it"),
        ("out.npy", "memory://tmp", "workers cannot share it: expected s3://"),
        ("out.npy", "nowhere", "nowhere"),
    ],
)
def test_locations_that_workers_do_not_share_are_refused(
    stores: Path, workers: Workers, s3: Bucket, out: str, spill: str | None, message: str
) -> None:
    names = os.listdir()
    with pytest.raises((UsageError, OutputError), match=message):
        run_operator("gather_nd", ".npy", out, scheduler=workers.client, spill=spill)
    command = ("gather-nd", "data.npy", "idx.npy", "-o", out, "--scheduler", workers.address)
    dry_run = ndtool(*command, *(("--spill", spill) if spill else ()), "--dry-run")
    assert (dry_run.status in (2, 7), message in dry_run.err) == (True, True)
    assert (s3.keys(), os.listdir()) == ([], names)
    assert fsspec.filesystem("memory").find("/") == []


def test_only_one_run_claims_a_folder(s3: Bucket) -> None:
    claim = claims.Claim(f"{BUCKET_URL}/x.zarr/g/a")
    with pytest.raises(OutputError, match=rf"x.zarr/g/a: process {os.getpid()} on .* writes there"):
        claims.Claim(f"{BUCKET_URL}/x.zarr/g/a")
    claims.Claim(f"{BUCKET_URL}/x.zarr/g/b").release()
    s3.put("x.zarr/g/a/c/0", b"a chunk")
    claim.drop()
    claim.drop()
    assert s3.keys() == []


def test_one_of_two_runs_claims_an_abandoned_folder(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3.put("x.zarr.ndtool", lock_object(DEAD_PROCESS))
    s3.put("x.zarr/c/0/0", b"a chunk of the dead process")
    read, claims_won = claims._read, []

    def read_late(url: str) -> Any:
        claim = read(url)
        monkeypatch.setattr(claims, "_read", read)
        claims_won.append(claims.Claim(f"{BUCKET_URL}/x.zarr"))
        s3.put("x.zarr/c/0/1", b"a chunk of the live process")
        return claim

    monkeypatch.setattr(claims, "_read", read_late)
    with pytest.raises(OutputError, match="another run writes there"):
        claims.Claim(f"{BUCKET_URL}/x.zarr")
    claims_won.pop().drop()
    s3.put("x.zarr.ndtool", lock_object(DEAD_PROCESS))
    monkeypatch.setattr(claims, "_read", read_late)
    assert claims.clean(BUCKET_URL) == ([], [])
    assert s3.get("x.zarr/c/0/1") == b"a chunk of the live process"
    claims_won.pop().drop()
    assert s3.keys() == []


def test_a_run_whose_folder_was_claimed_is_not_published(s3: Bucket) -> None:
    sink = create_sink(f"{BUCKET_URL}/x.zarr")
    sink.write(0, memoryview(bytes(64)))
    s3.put("x.zarr.ndtool", lock_object(1, "another"))
    with pytest.raises(OutputError, match=r"/x\.zarr\.ndtool was replaced or removed$"):
        sink.finish().publish()
    sink.abort()
    assert s3.keys() == ["x.zarr.ndtool"]


def lock_object(process: int, machine: str | None = None, **changes: Any) -> bytes:
    """Return the content of the lock object of a process."""
    fields = {"host": "there", "machine": machine or claims._machine_id()}
    return json.dumps({**fields, "process": process, **changes}).encode()


DEAD_PROCESS = 2**22 + 1  # above the highest process ID of Linux


def test_clean_requires_force_for_files_of_other_machines(s3: Bucket) -> None:
    s3.put("x.zarr.ndtool", lock_object(1, "another"))
    s3.put("x.zarr/c/0/0", b"a chunk")
    completed = ndtool("clean", BUCKET_URL)
    assert completed.out == b"not removed: s3://bucket/x.zarr: process 1 on there may be using it\n"
    with pytest.raises(OutputError, match="process 1 on there writes there, or was killed"):
        claims.Claim(f"{BUCKET_URL}/x.zarr")
    assert ndtool("clean", BUCKET_URL, "--force").out == b"removed s3://bucket/x.zarr\n"
    assert s3.keys() == []


@pytest.mark.parametrize(
    "body",
    [b"", b"{}", b"[" * 9999, b"\xff", lock_object(DEAD_PROCESS, host=5), lock_object(True)],
)  # fmt: skip
def test_malformed_lock_objects_are_preserved(body: bytes, s3: Bucket) -> None:
    s3.put("x.zarr.ndtool", body)
    s3.put("x.zarr/c/0/0", b"a chunk")
    assert ndtool("clean", BUCKET_URL, "--force").out == b"nothing to remove\n"
    with pytest.raises(OutputError, match="another run writes there"):
        claims.Claim(f"{BUCKET_URL}/x.zarr")
    assert sorted(s3.keys()) == ["x.zarr.ndtool", "x.zarr/c/0/0"]


@pytest.mark.parametrize("metadata", ["zarr.json", ".zarray"])
def test_a_complete_array_is_preserved(metadata: str, s3: Bucket) -> None:
    s3.put("x.zarr.ndtool", lock_object(DEAD_PROCESS))
    s3.put("x.zarr/c/0/0", b"a chunk")
    s3.put(f"x.zarr/{metadata}", b"{}")
    assert ndtool("clean", BUCKET_URL).out == b"removed s3://bucket/x.zarr.ndtool\n"
    assert sorted(s3.keys()) == sorted(["x.zarr/c/0/0", f"x.zarr/{metadata}"])


def test_arrays_of_concurrent_runs_are_preserved(s3: Bucket) -> None:
    sink = create_sink(f"{BUCKET_URL}/x.zarr")
    s3.put("x.zarr/c/0/0", b"another's")
    with pytest.raises(
        OutputError, match=r"^s3://bucket/x.zarr was created by another process during the run"
    ):
        sink.share()
    sink.abort()
    assert s3.keys() == ["x.zarr/c/0/0"]
    s3.clear()
    sink = create_sink(f"{BUCKET_URL}/x.zarr")
    assert sink.share() is not None
    s3.put("x.zarr/zarr.json", b"another's")
    with pytest.raises(
        OutputError, match=r"zarr.json was created by another process during the run"
    ):
        sink.finish().publish()
    sink.abort()
    assert s3.keys() == ["x.zarr/zarr.json"]


def create_sink(target: str) -> Any:
    metadata = ArrayMetadata(dtypes.from_descr("<i4"), (4, 4), "C", (4, 4), {})
    return outputs.create(outputs.resolve(target, metadata))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), max_size=4), st.data(), st.booleans())
def test_segments_are_read_as_they_were_written(
    sizes: list[int], data: st.DataObject, in_folder: bool
) -> None:
    fs, segment = fsspec.filesystem("memory"), Segment("split", (3, 1), 4, 0)
    fs.store.clear()  # of an example that ended while it drew
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(segments, "FILE_BYTES", 16)
        store = SharedStore(folder if in_folder else "memory://spill")
        content = np.random.default_rng(sum(sizes)).bytes(sum(sizes))
        offsets = list(accumulate(sizes, initial=0))
        views = [memoryview(content[a:b]) for a, b in pairwise(offsets)]
        for _ in range(2):  # two attempts at a task
            store.write(segment, views)
        assert max(map(len, map(fs.cat, fs.find("/spill"))), default=0) <= 16
        start = data.draw(st.integers(0, len(content)))
        buffer = memoryview(bytearray(data.draw(st.integers(0, len(content) - start))))
        store.read([(segment, start, buffer)])
        assert buffer == content[start : start + len(buffer)]


def test_missing_segments_and_ended_runs_are_errors() -> None:
    admission = AdmissionLock("spill")
    store, segment = SharedStore("memory://spill", admission), Segment("split", (), 0, 0)
    with pytest.raises(OutputError, match=r"spill/split-0\+0: there is no such"):
        store.read([(segment, 0, memoryview(bytearray(3)))])
    admission.close()
    with pytest.raises(OutputError, match="the run has ended"):
        store.write(segment, [memoryview(b"abc")])


@pytest.mark.parametrize("url", ["s3://", "memory://"])
def test_a_url_without_a_folder_is_refused(url: str) -> None:
    message = f"error: {url} is not a folder: expected one such as s3://bucket/folder\n"
    assert ndtool("clean", url).err == message
