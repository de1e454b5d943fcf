"""Runs on a cluster that resume the spilled data of a run whose client was killed."""

import fcntl
import os
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save, start
from hypothesis import given, settings
from hypothesis import strategies as st
from later import later
from strategies import EXAMPLES, bits_equal
from test_cluster_faults import GATHER, SCATTER
from twoworkers import Workers, two_workers, wait_for

from ndtool import files
from ndtool.errors import BoundsError
from ndtool.formats import locators
from ndtool.formats.streams import Streams
from ndtool.inmemory import ops
from ndtool.outofcore import cluster as clusters
from ndtool.outofcore.partitioning import rows_of
from ndtool.publish import cleanup
from ndtool.rules.operators import Attributes
from ndtool.runs.calls import OpenCall, Request

later("dask")
later("distributed")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

DROPPED = ("scatter-nd", "data.npy", "bad.npy", "upd.npy", "--out-of-bounds", "drop")
FILLED = ("gather", "data.npy", "some.npy", "--axis", "1", "--out-of-bounds", "fill")
OUT_OF_BOUNDS = ("gather-nd", "data.npy", "bad.npy")
ARGUMENTS: dict[tuple[str, ...], tuple[tuple[str, ...], dict[str, Any]]] = {
    GATHER: (("data", "idx"), {}),
    SCATTER: (("data", "idx", "upd"), {"reduction": "add"}),
    DROPPED: (("data", "bad", "upd"), {"out_of_bounds": "drop"}),
    FILLED: (("data", "some"), {"axis": 1, "out_of_bounds": "fill"}),
}


class KillingWorkers(Workers):
    """Workers of runs that are killed."""

    def kill(self, command: tuple[str, ...], phase: str, *options: object, tasks: int = 2) -> None:
        """Start a run, and kill it while workers execute `tasks` tasks of a phase."""
        self.pop_records()
        self.inject_fault("wait", phase)
        process = start(*command, *options, "--scheduler", self.address)
        self.wait_for_task("begin", phase, tasks)
        process.kill()
        assert (process.communicate()[1], process.returncode) == (b"", -signal.SIGKILL)
        task_count = lambda dask_scheduler: len(dask_scheduler.tasks)  # noqa: E731
        # no further task begins
        wait_for(lambda: self.client.run_on_scheduler(task_count) <= tasks)
        self.release()
        self.wait_for_task("end", phase, tasks)
        self.pop_records()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillingWorkers]:
    folder = tmp_path_factory.mktemp("cluster")
    with two_workers(folder) as started:
        yield KillingWorkers(folder, started.client)


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
    names, arguments = ARGUMENTS[command]
    arrays = (np.load(f"{name}.npy") for name in names)
    return getattr(ops, command[0].replace("-", "_"))(*arrays, **arguments)


def resume_run(command: tuple[str, ...], workers: KillingWorkers, *options: object) -> Any:
    """Resume the killed run; return the report."""
    arguments = ("-o", "out.npy", "--scheduler", workers.address, "--resume", "--json")
    completed = ndtool(*command, *arguments, *options)
    assert (completed.status, completed.err) == (0, "")
    return completed.json


@pytest.mark.parametrize(
    ("command", "phase", "resumed"),
    [
        (GATHER, "sweep", {"split": 9, "sweep": 2}),
        (SCATTER, "split", {"split": 2}),
        *(
            pytest.param(*case, marks=pytest.mark.slow("each operator resumes in each phase"))
            for case in (
                (GATHER, "split", {"split": 2, "sweep": 0}),
                (FILLED, "replay", {"split": 12, "sweep": 8}),
                (GATHER, "replay", {"split": 9, "sweep": 8}),
                (SCATTER, "sweep", {"split": 9}),
            )
        ),
    ],
)
def test_complete_segments_are_not_recomputed(
    inputs: Path,
    cluster: KillingWorkers,
    command: tuple[str, ...],
    phase: str,
    resumed: dict[str, int],
) -> None:
    before = set(os.listdir())
    cluster.kill(command, phase, "-o", "out.npy")
    assert len(set(os.listdir()) - before) == 2
    report = resume_run(command, cluster)
    assert report["resumed"] == resumed
    begun, plan = cluster.count_begun_tasks(), report["plan"]
    tasks = {"split": plan["blocks"], "sweep": plan["partitions"], "replay": plan["blocks"]}
    assert {phase: begun[phase] + resumed.get(phase, 0) for phase in begun | resumed} == {
        phase: tasks[phase] for phase in begun | resumed
    }
    assert bits_equal(np.load("out.npy"), expected_result(command))
    assert set(os.listdir()) - before == {"out.npy"}


def test_indices_out_of_bounds_are_reported_after_a_resume(
    inputs: Path, cluster: KillingWorkers
) -> None:
    cluster.kill(DROPPED, "sweep", "-o", "out.npy")
    report = resume_run(DROPPED, cluster)
    found = report["out_of_bounds"]
    assert report["resumed"] == {"split": 9}
    assert (found["count"], found["first"]["value"]) == (2, -513)
    assert bits_equal(np.load("out.npy"), expected_result(DROPPED))
    cluster.kill(OUT_OF_BOUNDS, "split", "-o", "out.npy")
    with pytest.raises(BoundsError, match=r"2 of 30000 index tuples\n  --> bad.npy\[3, 0\] = -513"):
        files.gather_nd("data.npy", "bad.npy", out="x.npy", scheduler=cluster.client, resume=True)
    assert not [name for name in os.listdir() if name.startswith(".")]


class KilledRun:
    """The spilled data of a gather killed in its sweeps; tests resume copies of them."""

    def __init__(self, workers: KillingWorkers, folder: Path, name: str) -> None:
        self.workers, self._folder, self.name = workers, folder, name

    def copy(self, spill: str = "spill") -> Path:
        """Copy the data into a folder; return the path of its segments."""
        name = f"{self.name}.ndtool-{os.urandom(6).hex()}-{cleanup.boot_id()}"
        shutil.copytree(self._folder, Path(spill, name, "new"))
        return Path(spill, name, "new")

    def resume(
        self, spill: str = "spill", arrays: Any = ("data.npy", "idx.npy"), **options: Any
    ) -> files.Result:
        """Resume a copy; return the result."""
        self.workers.count_begun_tasks()
        options = {"scheduler": self.workers.client} | options
        return files.gather_nd(*arrays, spill=spill, resume=True, out="out.npy", **options)


@pytest.fixture(scope="module")
def killed_run(
    cluster: KillingWorkers, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[KilledRun]:
    folder = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        write_inputs()
        (folder / "first").mkdir()
        cluster.kill(GATHER, "sweep", "-o", "first/out.npy", "--spill", "first")
        (spill_folder,) = Path("first").glob(".spill-*")
        os.rename(spill_folder / "new", "segments")
        shutil.rmtree("first")
        yield KilledRun(cluster, folder / "segments", spill_folder.name.partition(".ndtool")[0])


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
        damage = data.draw(st.sampled_from(["none", "none", "removed", "truncated"]))
        size = path.stat().st_size
        if damage == "removed":
            path.unlink()
        elif damage == "truncated":
            os.truncate(path, data.draw(st.integers(0, size - 1)))
        missing[path.name.split("-")[0]] += damage in ("removed", "truncated")
    assert killed_run.resume().resumed == 9 - missing["split"] + 2 - missing["sweep"]
    begun = killed_run.workers.count_begun_tasks()
    assert (begun["split"], begun["sweep"]) == (missing["split"], 6 + missing["sweep"])
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))
    assert os.listdir("spill") == []


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
    assert result.resumed == 0
    assert result.warnings[0].startswith("nothing is resumed: the killed run had another call, ")
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))
    assert len(ndtool("clean", "spill", "--json").json["removed"]) == 1
    assert os.listdir("spill") == []


def test_the_name_of_a_run_has_all_that_determines_its_segments(
    inputs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing stale can have the name: each ingredient alone changes it."""

    def name(budget: int = 1 << 20, depth: int = 1, **changes: Any) -> str:
        arguments = {"data": "data.npy", "indices": "idx.npy", "out_of_bounds": "error"} | changes
        options = {key: arguments.pop(key) for key in ("spec", "dtype") if key in arguments}
        request = Request(
            arguments.pop("operator", "gather_nd"), arguments.pop("data"),
            arguments.pop("indices"), attributes=Attributes(**arguments), **options,
        )  # fmt: skip
        with OpenCall(request) as call:
            rows = rows_of(call.inference, call.sources, call.metadata, 1, on_cluster=True)
            partitioning = rows.partition(budget, depth)
            locations = {role: os.path.abspath(n) for role, n in request.arguments.items()}
            prints = {role: source.fingerprint() for role, source in call.sources.items()}
            return clusters.run_name(call.inference, partitioning, locations, prints)

    shutil.copy2("idx.npy", "same.npy")
    save(other=np.load("data.npy").reshape(1024, 256), small=np.load("idx.npy") % 256)
    save(floats=np.load("data.npy").view("i4"))
    names = [
        name(), name(out_of_bounds="clip"), name(spec="onnx:13"), name(indices="same.npy"),
        name(budget=1 << 18), name(budget=1 << 12, depth=2), name(data="floats.npy"),
        name(indices="small.npy"), name(data="other.npy", indices="small.npy"), name(pad=-1),
    ]  # fmt: skip
    assert name() == names[0]
    for changed in ("data.npy", "idx.npy"):
        restore = touch(changed)
        names.append(name())
        restore()
    monkeypatch.setattr(clusters, "__version__", "0.0.9")
    assert len({*names, name()}) == len(names) + 1


@pytest.mark.slow("a worker that starts anew reads only the inputs that the run began with")
def test_chunks_that_change_after_their_worker_is_lost_are_noticed(
    inputs: Path, cluster: KillingWorkers
) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    rows = np.load("upd.npy")
    zarr.create_array("upd.zarr", shape=rows.shape, chunks=(3000,), dtype=rows.dtype)[...] = rows
    command = ("scatter-nd", "data.npy", "idx.npy", "upd.zarr", "--reduction", "add")
    cluster.inject_fault("wait", "sweep")
    cluster.pop_records()
    process = start(*command, "-o", "out.npy", "--scheduler", cluster.address, "--no-trace")
    cluster.wait_for_task("begin", "sweep")
    zarr.open_array("upd.zarr")[:3000] = 7
    for pid in cluster.client.run(os.getpid).values():  # all workers that have read chunks
        os.kill(pid, signal.SIGKILL)
    cluster.release()
    _, stderr = process.communicate()
    assert (process.returncode, "upd.zarr changed during the run" in stderr.decode()) == (7, True)
    assert not Path("out.npy").exists()
    cluster.client.wait_for_workers(2)


def test_a_live_run_is_not_resumed_or_removed(run_with_empty_spill: KilledRun) -> None:
    folder = run_with_empty_spill.copy().parent
    lock = cleanup.open_locked(str(folder))
    before = sorted(folder.rglob("*"))
    result = run_with_empty_spill.resume()
    assert (result.resumed, result.warnings) == (0, ())
    assert sorted(folder.rglob("*")) == before
    fcntl.flock(lock, fcntl.LOCK_UN)  # else a child forked meanwhile would hold the lock
    os.close(lock)
    assert run_with_empty_spill.resume().resumed == 11


def test_a_dry_run_keeps_what_can_be_resumed(run_with_empty_spill: KilledRun) -> None:
    segments = run_with_empty_spill.copy()
    before = sorted(segments.iterdir())
    address = run_with_empty_spill.workers.address
    arguments = ("--spill", "spill", "--scheduler", address, "-o", "out.npy", "--resume")
    assert ndtool(*GATHER, *arguments, "--dry-run").status == 0
    assert sorted(segments.iterdir()) == before
    completed = ndtool(*GATHER, *arguments)
    assert (completed.status, completed.err) == (0, "resumed: 9 split tasks, 2 sweep tasks\n")
    assert bits_equal(np.load("out.npy"), expected_result(GATHER))


def test_only_clusters_resume(inputs: Path) -> None:
    completed = ndtool(*GATHER, "-o", "out.npy", "--resume")
    message = "error: --resume: only a run on a cluster can be resumed: expected --scheduler or --workers\n"
    assert (completed.status, completed.err) == (2, message)


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
