"""Runs on a cluster that resume the spilled data of a run whose client was killed."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import NDTOOL, environment, ndtool, save
from hypothesis import given, settings
from hypothesis import strategies as st
from strategies import EXAMPLES, bits_equal
from test_cluster_faults import NDTOOL_WITH_SHORT_TIMEOUTS, PRELOAD, ProcessCluster, wait_for
from twoworkers import two_workers

from ndtool import files
from ndtool.analysis.oracle import reference
from ndtool.errors import BoundsError, OutputError, ResourceError
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.publish import cleanup
from ndtool.runs.executors import dask
from ndtool.runs.external import resume, spill, spillfiles

pytest.importorskip("dask", exc_type=ImportError)
pytest.importorskip("distributed", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

GATHER = ("gather-nd", "data.npy", "idx.npy")
SCATTER = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "add")
DROPPED = ("scatter-nd", "data.npy", "bad.npy", "upd.npy", "--out-of-bounds", "drop")
FILLED = ("gather", "data.npy", "some.npy", "--axis", "1", "--out-of-bounds", "fill")
OUT_OF_BOUNDS = ("gather-nd", "data.npy", "bad.npy")
ARRAYS = {
    GATHER: ("data", "idx"),
    SCATTER: ("data", "idx", "upd"),
    DROPPED: ("data", "bad", "upd"),
    FILLED: ("data", "some"),
}
ARGUMENTS: dict[tuple[str, ...], dict[str, Any]] = {
    GATHER: {},
    SCATTER: {"reduction": "add"},
    DROPPED: {"out_of_bounds": "drop"},
    FILLED: {"axis": 1, "out_of_bounds": "fill"},
}


class Workers:
    """A cluster of two threads, its workers' records, and the folders of killed runs."""

    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self.folder = client, folder
        self.address: str = client.scheduler.address

    def count_begun_tasks(self) -> Counter[str]:
        """Return the number of tasks begun in each phase since the last call."""
        records = self.folder / "records"
        lines = records.read_text().splitlines() if records.exists() else []
        records.unlink(missing_ok=True)
        return Counter(phase for event, phase, _ in map(str.split, lines) if event == "begin")

    def kill(self, command: tuple[str, ...], phase: str, *options: object, tasks: int = 2) -> None:
        """Start a run, and kill it while workers execute `tasks` tasks of a phase."""
        self.count_begun_tasks()
        (self.folder / "fault").write_text(f"wait {phase}")
        process = subprocess.Popen(
            [*NDTOOL, *command, *map(str, options), "--scheduler", self.address],
            env=environment(),
            stderr=subprocess.PIPE,
        )
        records = self.folder / "records"
        wait_for(lambda: records.exists() and records.read_text().count(f"begin {phase} ") == tasks)
        process.kill()
        assert (process.communicate()[1], process.returncode) == (b"", -signal.SIGKILL)
        task_count = lambda dask_scheduler: len(dask_scheduler.tasks)  # noqa: E731
        wait_for(
            lambda: self.client.run_on_scheduler(task_count) <= tasks
        )  # no further task begins
        (self.folder / "fault").unlink()
        wait_for(lambda: records.read_text().count(f"end {phase} ") == tasks)
        self.count_begun_tasks()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("cluster")
    with two_workers(folder, PRELOAD) as client:
        yield Workers(client, folder)


@pytest.fixture
def inputs(workdir: Path) -> Path:
    write_inputs()
    return workdir


def write_inputs() -> None:
    rng = np.random.default_rng(3)
    bad = rng.integers(-512, 512, (30_000, 2))
    save(
        data=rng.random((512, 512), np.float32),
        idx=rng.integers(-512, 512, (30_000, 2)),
        upd=rng.random(30_000, np.float32),
    )
    bad[29_000, 1], bad[3, 0] = 512, -513
    save(bad=bad, some=rng.integers(-600, 600, 80))


def expected_result(command: tuple[str, ...]) -> Any:
    arrays = (np.load(f"{name}.npy") for name in ARRAYS[command])
    return getattr(reference, command[0].replace("-", "_"))(*arrays, **ARGUMENTS[command])


def resume_run(command: tuple[str, ...], workers: Workers, *options: object) -> Any:
    """Resume the killed run; return the report."""
    arguments = ("-o", "out.npy", "--scheduler", workers.address, "--resume", "--json")
    completed = ndtool(*command, *arguments, *options)
    assert (completed.status, completed.err) == (0, "")
    return completed.json


@pytest.mark.parametrize(
    ("command", "phase", "resumed"),
    [
        (GATHER, "split", {"split": 2, "sweep": 0}),
        (GATHER, "sweep", {"split": 7, "sweep": 2}),
        (GATHER, "replay", {"split": 7, "sweep": 7}),
        (FILLED, "replay", {"split": 9, "sweep": 6}),  # a partition without tuples has no segment
        (SCATTER, "split", {"split": 2}),
        (SCATTER, "sweep", {"split": 7}),
    ],
)
def test_complete_segments_are_not_recomputed(
    inputs: Path, cluster: Workers, command: tuple[str, ...], phase: str, resumed: dict[str, int]
) -> None:
    before = set(os.listdir())
    cluster.kill(command, phase, "-o", "out.npy")
    assert len(set(os.listdir()) - before) == 2
    report = resume_run(command, cluster)
    assert report["resumed"] == resumed
    begun = cluster.count_begun_tasks()
    assert {phase: begun[phase] + resumed.get(phase, 0) for phase in begun | resumed} == report[
        "plan"
    ]["tasks"]
    assert bits_equal(np.load("out.npy"), expected_result(command))
    assert set(os.listdir()) - before == {"out.npy"}


def test_a_killed_run_in_place_is_resumed(inputs: Path, cluster: Workers) -> None:
    call = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "max")
    arrays = [np.load(name) for name in call[1:4]]
    cluster.kill(call, "sweep", "-o", "data.npy")
    completed = ndtool(
        *call, "-o", "data.npy", "--scheduler", cluster.address, "--resume", "--json"
    )
    assert (completed.status, completed.json["resumed"]) == (0, {"split": 7})
    assert bits_equal(np.load("data.npy"), reference.scatter_nd(*arrays, reduction="max"))
    assert not [name for name in os.listdir() if name.startswith(".")]


def test_a_run_may_be_killed_and_resumed_repeatedly(inputs: Path, cluster: Workers) -> None:
    cluster.kill(GATHER, "split", "-o", "out.npy")
    cluster.kill(GATHER, "sweep", "-o", "out.npy", "--resume")
    cluster.kill(GATHER, "replay", "-o", "out.npy", "--resume")
    assert resume_run(GATHER, cluster)["resumed"] == {"split": 7, "sweep": 7}
    assert cluster.count_begun_tasks() == {"replay": 7}
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))


def test_indices_out_of_bounds_are_reported_after_a_resume(inputs: Path, cluster: Workers) -> None:
    cluster.kill(DROPPED, "sweep", "-o", "out.npy")
    report = resume_run(DROPPED, cluster)
    assert report["resumed"] == {"split": 7}
    assert (report["out_of_bounds"]["count"], report["out_of_bounds"]["first"]["value"]) == (
        2,
        -513,
    )
    assert bits_equal(np.load("out.npy"), expected_result(DROPPED))
    cluster.kill(OUT_OF_BOUNDS, "split", "-o", "out.npy")
    with pytest.raises(BoundsError, match=r"2 of 30000 index tuples\n  --> bad.npy\[3, 0\] = -513"):
        files.gather_nd("data.npy", "bad.npy", out="x.npy", scheduler=cluster.client, resume=True)
    assert not [name for name in os.listdir() if name.startswith(".")]


class KilledRun:
    """The spilled data of a gather killed in its sweeps; tests resume copies of them."""

    def __init__(self, workers: Workers, folder: Path) -> None:
        self.workers, self._folder = workers, folder

    def copy(self, spill: str = "spill") -> Path:
        """Copy the data into a folder; return the path of its segments."""
        name = f".spill.ndtool-{os.urandom(6).hex()}-{cleanup.boot_id()}"
        shutil.copytree(self._folder, Path(spill, name, "new"))
        return Path(spill, name, "new")

    def resume(self, spill: str = "spill", **options: Any) -> files.Result:
        """Resume a copy; return the result."""
        self.workers.count_begun_tasks()
        arguments = {
            "scheduler": self.workers.client,
            "spill": spill,
            "resume": True,
            "out": "out.npy",
        }
        return files.gather_nd("data.npy", "idx.npy", **arguments | options)


@pytest.fixture(scope="module")
def killed_run(cluster: Workers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KilledRun]:
    folder = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_inputs()
        (folder / "first").mkdir()
        cluster.kill(GATHER, "sweep", "-o", "first/out.npy", "--spill", "first")
        (spill_folder,) = Path("first").glob(".spill.*")
        os.rename(spill_folder / "new", "segments")
        shutil.rmtree("first")
        yield KilledRun(cluster, folder / "segments")


@pytest.fixture
def run_with_empty_spill(killed_run: KilledRun) -> KilledRun:
    """Empty the spill folder and remove the output; return the killed run."""
    shutil.rmtree("spill", ignore_errors=True)
    Path("spill").mkdir()
    Path("out.npy").unlink(missing_ok=True)
    return killed_run


@settings(max_examples=max(1, EXAMPLES // 25))
@given(st.data())
def test_any_subset_of_segments_is_resumed(killed_run: KilledRun, data: st.DataObject) -> None:
    shutil.rmtree("spill", ignore_errors=True)
    Path("spill").mkdir()
    folder = killed_run.copy()
    missing = Counter[str]()
    for path in sorted(folder.glob("s[pw]*-*")):
        damage = data.draw(
            st.sampled_from(["none", "none", "removed", "truncated", "longer", "duplicated"])
        )
        size = path.stat().st_size
        if damage == "removed":
            path.unlink()
        elif damage == "truncated":
            os.truncate(path, data.draw(st.integers(0, size - 1)))
        elif damage == "longer":
            os.truncate(path, size + 1)
        elif damage == "duplicated":
            shutil.copy(path, f"{path}"[:-16] + "0" * 16)
        missing[path.name.split("-")[0]] += damage in ("removed", "truncated", "longer")
    assert killed_run.resume().resumed == 7 - missing["split"] + 2 - missing["sweep"]
    begun = killed_run.workers.count_begun_tasks()
    assert (begun["split"], begun["sweep"]) == (missing["split"], 5 + missing["sweep"])
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))
    assert os.listdir("spill") == []


def test_a_segment_that_is_completed_during_the_listing_is_ignored(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers continue tasks that a killed client had sent."""
    spills, scandir = spillfiles.FolderStore("."), os.scandir
    segments = [spills.create(spill.Segment("split", index, 0)) for index in (0, 1)]
    for segment in segments:
        spills.write(segment, 0, memoryview(b"bytes"))
    spills.finish(segments[0])

    def scan_late(path: str) -> Any:
        entries = list(scandir(path))
        spills.finish(segments[1])
        return nullcontext(entries)

    monkeypatch.setattr(os, "scandir", scan_late)
    assert spills.segments() == {segments[0]: 5}


def test_segments_with_malformed_trailers_are_recomputed(run_with_empty_spill: KilledRun) -> None:
    folder = run_with_empty_spill.copy()
    for index, trailer in enumerate([b"[1, 2]", b"x", b"[[], 0, 0, 0]"]):
        (path,) = folder.glob(f"split-{index}-*")
        raw = path.read_bytes()
        path.write_bytes(raw[: -resume.REPORT_BYTES] + trailer.ljust(resume.REPORT_BYTES))
    assert run_with_empty_spill.resume().resumed == 4 + 2
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))


def touch(name: str) -> Callable[[], None]:
    status = os.stat(name)
    os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    return lambda: os.utime(name, ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize("name", ["data.npy", "idx.npy"])
def test_changed_inputs_are_not_resumed(run_with_empty_spill: KilledRun, name: str) -> None:
    run_with_empty_spill.copy()
    restore = touch(name)
    try:
        result = run_with_empty_spill.resume()
    finally:
        restore()
    reason = f"nothing is resumed: {os.getcwd()}/{name} has changed"
    assert (result.resumed, result.warnings) == (0, (reason,))
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))
    assert os.listdir("spill") == []


def test_runs_of_another_version_are_not_resumed(run_with_empty_spill: KilledRun) -> None:
    manifest = run_with_empty_spill.copy() / "manifest"
    fields = json.loads(manifest.read_text())
    fields["fingerprint"]["version"] = "0.0.9"
    manifest.write_text(json.dumps(fields))
    result = run_with_empty_spill.resume()
    assert result.resumed == 0
    assert result.warnings[0].endswith(": the killed run had another version of ndtool")


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (
            {"out_of_bounds": "clip"},
            "the killed run had another operator, attribute, type or shape",
        ),
        ({"spec": "onnx:13"}, "the killed run had another operator, attribute, type or shape"),
    ],
)
def test_runs_of_another_call_are_not_resumed(
    run_with_empty_spill: KilledRun, options: dict[str, Any], reason: str
) -> None:
    run_with_empty_spill.copy()
    result = run_with_empty_spill.resume(**options)
    assert result.warnings == (f"nothing is resumed: {reason}",)
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))
    assert os.listdir("spill") == []


def test_runs_that_need_more_memory_are_not_resumed(run_with_empty_spill: KilledRun) -> None:
    """The killed run's partitioning may need more memory than workers have."""
    manifest = run_with_empty_spill.copy() / "manifest"
    fields = {**json.loads(manifest.read_text()), "block": 30_000, "step": [512 * 512]}
    manifest.write_text(json.dumps(fields))
    result = run_with_empty_spill.resume(memory=1 << 20)
    assert result.warnings[0].endswith("'s tasks need more memory, or other chunks of the output")
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))
    assert os.listdir("spill") == []


def test_runs_with_other_chunks_of_the_output_are_not_resumed(
    run_with_empty_spill: KilledRun,
) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    run_with_empty_spill.copy()
    result = run_with_empty_spill.resume(out="out.zarr", chunks=(1000,))
    assert (result.resumed, len(result.warnings)) == (0, 1)
    assert bits_equal(zarr.open_array("out.zarr")[...], expected_result(GATHER))
    shutil.rmtree("out.zarr")


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", '{"fingerprint": [], "block": 1, "group_shapes": [1]}']
)
def test_runs_with_a_malformed_manifest_are_removed(
    run_with_empty_spill: KilledRun, text: str | None
) -> None:
    """A run may be killed before it writes its manifest."""
    manifest = run_with_empty_spill.copy() / "manifest"
    manifest.unlink() if text is None else manifest.write_text(text)
    result = run_with_empty_spill.resume()
    assert (result.resumed, result.warnings) == (0, ())
    assert os.listdir("spill") == []


def test_workers_without_a_usable_directory_resume(
    run_with_empty_spill: KilledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run with local workers removes folders of killed ones."""
    run_with_empty_spill.copy()
    monkeypatch.setattr(tempfile, "tempdir", os.path.abspath("spill"))
    assert run_with_empty_spill.resume(scheduler=None, workers=1).resumed == 9
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))
    assert os.listdir("spill") == []


def test_a_live_run_is_not_resumed_or_removed(run_with_empty_spill: KilledRun) -> None:
    folder = run_with_empty_spill.copy().parent
    lock = cleanup.open_locked(str(folder))
    before = sorted(folder.rglob("*"))
    result = run_with_empty_spill.resume()
    assert (result.resumed, result.warnings) == (0, ())
    assert sorted(folder.rglob("*")) == before
    os.close(lock)
    assert run_with_empty_spill.resume().resumed == 9


def test_files_of_runs_on_other_machines_are_preserved(run_with_empty_spill: KilledRun) -> None:
    folder = run_with_empty_spill.copy().parent
    foreign = folder.with_name(folder.name[:-8] + "0" * 8)
    folder.rename(foreign)
    result = run_with_empty_spill.resume()
    reason = (
        f"{foreign.absolute()} is from another machine, or from before this machine's last start"
    )
    assert (result.resumed, result.warnings) == (0, (f"nothing is resumed: {reason}",))
    assert os.listdir("spill") == [foreign.name]


def test_a_folder_removed_before_it_is_locked_is_ignored(
    run_with_empty_spill: KilledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments, reopen = run_with_empty_spill.copy(), spillfiles.reopen

    def remove_and_reopen(path: str) -> Any:
        shutil.rmtree(segments)
        return reopen(path)

    monkeypatch.setattr(spillfiles, "reopen", remove_and_reopen)
    assert run_with_empty_spill.resume().resumed == 0
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))


def test_a_dry_run_counts_resumable_tasks_and_writes_nothing(
    run_with_empty_spill: KilledRun,
) -> None:
    segments = run_with_empty_spill.copy()
    before = sorted(segments.iterdir())
    arguments = (
        "--spill",
        "spill",
        "--scheduler",
        run_with_empty_spill.workers.address,
        "-o",
        "out.npy",
    )
    completed = ndtool(*GATHER, *arguments, "--resume", "--dry-run", "--no-trace")
    assert "resumed: 7 of 7 split tasks\n" in completed.err
    assert sorted(segments.iterdir()) == before
    completed = ndtool(*GATHER, *arguments, "--resume")
    assert (completed.status, completed.err) == (
        0,
        "resumed: 7 of 7 split tasks, 2 of 7 sweep tasks\n",
    )
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))


def test_data_without_a_fingerprint_are_read_again(
    run_with_empty_spill: KilledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = run_with_empty_spill.copy() / "manifest"
    fields = json.loads(manifest.read_text())
    fields["fingerprint"]["data"][1] = None
    manifest.write_text(json.dumps(fields))
    monkeypatch.setattr(resume, "MAX_FINGERPRINTED_CHUNKS", 0)
    assert run_with_empty_spill.resume().resumed == 7
    assert run_with_empty_spill.workers.count_begun_tasks() == {"sweep": 7, "replay": 7}
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))


def test_indices_without_a_fingerprint_are_not_resumed(
    run_with_empty_spill: KilledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_with_empty_spill.copy()
    monkeypatch.setattr(resume, "_input_fingerprint", lambda *_: None)
    result = run_with_empty_spill.resume()
    assert result.resumed == 0
    assert result.warnings[0].endswith("/idx.npy cannot be detected")
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))


def test_data_that_cannot_be_resumed_are_removed(
    run_with_empty_spill: KilledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose_workers(*_: object) -> None:
        raise ResourceError("all workers are gone")

    monkeypatch.setattr(dask.Cluster, "completed", lose_workers)
    monkeypatch.setattr(resume, "_input_fingerprint", lambda *_: None)
    with pytest.raises(ResourceError) as excinfo:
        run_with_empty_spill.resume()
    assert (not excinfo.value.hint, os.listdir("spill")) == (True, [])


def test_runs_with_literal_indices_are_resumed(inputs: Path, cluster: Workers) -> None:
    call = ("gather", "data.npy", "[5, 7, -1]")
    cluster.kill(call, "replay", "-o", "out.npy", tasks=1)
    assert resume_run(call, cluster)["resumed"]["split"] == 1
    assert bits_equal(np.load("out.npy"), np.load("data.npy")[[5, 7, -1]])


def test_an_input_that_changes_during_a_resumed_run_is_an_error(
    run_with_empty_spill: KilledRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers do not inspect the inputs that workers of the killed run had read."""
    run_with_empty_spill.copy()
    fingerprint, fingerprints = resume._input_fingerprint, iter([["unchanged"]])

    def changing_fingerprint(role: str, name: str, source: Any) -> Any:
        return (
            fingerprint(role, name, source) if role == "data" else next(fingerprints, ["changed"])
        )

    manifest = next(Path("spill").glob(".*/new/manifest"))
    fields = json.loads(manifest.read_text())
    fields["fingerprint"]["indices"][1] = ["unchanged"]
    manifest.write_text(json.dumps(fields))
    monkeypatch.setattr(resume, "_input_fingerprint", changing_fingerprint)
    with pytest.raises(OutputError, match=r"idx.npy has changed during the run"):
        run_with_empty_spill.resume()
    assert not Path("out.npy").exists()
    assert os.listdir("spill") == []


def test_only_clusters_resume(inputs: Path) -> None:
    completed = ndtool(*GATHER, "-o", "out.npy", "--resume")
    message = "error: --resume: only a run on a cluster can be resumed: expected --scheduler or --workers\n"
    assert (completed.status, completed.err) == (2, message)
    assert ndtool(*GATHER, "-o", "out.npy", env={"NDTOOL_RESUME": "1"}).status == 0


@pytest.mark.slow("a run without workers ends and is resumed")
def test_a_run_that_loses_its_workers_can_be_resumed(
    inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cluster = ProcessCluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start_scheduler()
        cluster.start_worker("--no-nanny")
        cluster.inject_fault("once", "sweep")
        arguments = ("-o", "out.npy", "--scheduler", cluster.file, "--resume", "-q")
        run = cluster.start(*NDTOOL_WITH_SHORT_TIMEOUTS, *SCATTER, *arguments)
        _, stderr = run.communicate()
        assert run.returncode == 6
        assert stderr.endswith(b"  hint: --resume continues this run\n")
        cluster.start_worker("--no-nanny")
        completed = ndtool(*SCATTER, *arguments[:-1], "--json")
        assert (completed.status, completed.json["resumed"]) == (0, {"split": 4})
        assert bits_equal(np.load("out.npy"), expected_result(SCATTER))
        assert not [name for name in os.listdir() if name.startswith(".")]
    finally:
        cluster.kill_all()


def test_fingerprints_of_stores_follow_their_files(workdir: Path) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    group = zarr.create_group("g.zarr")
    group.create_array("a", shape=(4, 4), chunks=(2, 2), dtype="i4")[...] = 1
    group.create_array("b", shape=(4,), dtype="i4")[...] = 1

    def fingerprint(argument: str) -> Any:
        source = locators.open_source(argument, Streams())
        try:
            return source.fingerprint()
        finally:
            source.close()

    before = fingerprint("g.zarr:a")
    assert fingerprint("g.zarr:a") == before
    os.utime("g.zarr/b/c/0")
    assert fingerprint("g.zarr:a") == before
    os.utime("g.zarr/a/c/1/1")
    after = fingerprint("g.zarr:a")
    assert after != before
    os.unlink("g.zarr/a/c/1/1")
    assert fingerprint("g.zarr:a") not in (before, after)
