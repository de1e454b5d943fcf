"""The data that a run on a cluster resumes from one whose client was killed."""

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
from strategies import EXAMPLES, same
from test_cluster_faults import IMPATIENT, PRELOAD, Site, wait_for
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
BAD = ("gather-nd", "data.npy", "bad.npy")
ARRAYS = {
    GATHER: ("data", "idx"),
    SCATTER: ("data", "idx", "upd"),
    DROPPED: ("data", "bad", "upd"),
    FILLED: ("data", "some"),
}
HOW: dict[tuple[str, ...], dict[str, Any]] = {
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

    def begun(self) -> Counter[str]:
        """Return the number of tasks begun in each phase since the last call."""
        notes = self.folder / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        notes.unlink(missing_ok=True)
        return Counter(phase for what, phase, _ in map(str.split, lines) if what == "begin")

    def kill(self, command: tuple[str, ...], phase: str, *options: object, tasks: int = 2) -> None:
        """Start a run, and kill it while workers execute two tasks of a phase, or its only
        one."""
        self.begun()
        (self.folder / "order").write_text(f"wait {phase}")
        ran = subprocess.Popen(
            [*NDTOOL, *command, *map(str, options), "--scheduler", self.address],
            env=environment(),
            stderr=subprocess.PIPE,
        )
        notes = self.folder / "notes"
        wait_for(lambda: notes.exists() and notes.read_text().count(f"begin {phase} ") == tasks)
        ran.kill()
        assert (ran.communicate()[1], ran.returncode) == (b"", -signal.SIGKILL)
        known = lambda dask_scheduler: len(dask_scheduler.tasks)  # noqa: E731
        wait_for(lambda: self.client.run_on_scheduler(known) <= tasks)  # no further task begins
        (self.folder / "order").unlink()
        wait_for(lambda: notes.read_text().count(f"end {phase} ") == tasks)
        self.begun()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("cluster")
    with two_workers(folder, PRELOAD) as client:
        yield Workers(client, folder)


@pytest.fixture
def inputs(workdir: Path) -> Path:
    made()
    return workdir


def made() -> None:
    rng = np.random.default_rng(3)
    bad = rng.integers(-512, 512, (30_000, 2))
    save(
        data=rng.random((512, 512), np.float32),
        idx=rng.integers(-512, 512, (30_000, 2)),
        upd=rng.random(30_000, np.float32),
    )
    bad[29_000, 1], bad[3, 0] = 512, -513
    save(bad=bad, some=rng.integers(-600, 600, 80))


def wanted(command: tuple[str, ...]) -> Any:
    arrays = (np.load(f"{name}.npy") for name in ARRAYS[command])
    return getattr(reference, command[0].replace("-", "_"))(*arrays, **HOW[command])


def again(command: tuple[str, ...], workers: Workers, *options: object) -> Any:
    """Resume another run; return the report."""
    arguments = ("-o", "out.npy", "--scheduler", workers.address, "--resume", "--json")
    ran = ndtool(*command, *arguments, *options)
    assert (ran.status, ran.err) == (0, "")
    return ran.json


@pytest.mark.parametrize(
    ("command", "phase", "taken"),
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
    inputs: Path, started: Workers, command: tuple[str, ...], phase: str, taken: dict[str, int]
) -> None:
    before = set(os.listdir())
    started.kill(command, phase, "-o", "out.npy")
    assert len(set(os.listdir()) - before) == 2
    report = again(command, started)
    assert report["resumed"] == taken
    done = started.begun()
    assert {phase: done[phase] + taken.get(phase, 0) for phase in done | taken} == report["plan"][
        "tasks"
    ]
    assert same(np.load("out.npy"), wanted(command))
    assert set(os.listdir()) - before == {"out.npy"}


def test_in_place(inputs: Path, started: Workers) -> None:
    call = ("scatter-nd", "data.npy", "idx.npy", "upd.npy", "--reduction", "max")
    arrays = [np.load(name) for name in call[1:4]]
    started.kill(call, "sweep", "-o", "data.npy")
    ran = ndtool(*call, "-o", "data.npy", "--scheduler", started.address, "--resume", "--json")
    assert (ran.status, ran.json["resumed"]) == (0, {"split": 7})
    assert same(np.load("data.npy"), reference.scatter_nd(*arrays, reduction="max"))
    assert not [name for name in os.listdir() if name.startswith(".")]


def test_a_run_may_be_killed_again_and_again(inputs: Path, started: Workers) -> None:
    started.kill(GATHER, "split", "-o", "out.npy")
    started.kill(GATHER, "sweep", "-o", "out.npy", "--resume")
    started.kill(GATHER, "replay", "-o", "out.npy", "--resume")
    assert again(GATHER, started)["resumed"] == {"split": 7, "sweep": 7}
    assert started.begun() == {"replay": 7}
    assert same(np.load("out.npy"), wanted(GATHER))


def test_indices_out_of_bounds_raise_the_usual_error(inputs: Path, started: Workers) -> None:
    started.kill(DROPPED, "sweep", "-o", "out.npy")
    report = again(DROPPED, started)
    assert report["resumed"] == {"split": 7}
    assert (report["out_of_bounds"]["count"], report["out_of_bounds"]["first"]["value"]) == (
        2,
        -513,
    )
    assert same(np.load("out.npy"), wanted(DROPPED))
    started.kill(BAD, "split", "-o", "out.npy")
    with pytest.raises(BoundsError, match=r"2 of 30000 index tuples\n  --> bad.npy\[3, 0\] = -513"):
        files.gather_nd("data.npy", "bad.npy", out="x.npy", scheduler=started.client, resume=True)
    assert not [name for name in os.listdir() if name.startswith(".")]


class Killed:
    """The data of a gather killed in its sweeps; tests resume copies of it."""

    def __init__(self, workers: Workers, folder: Path) -> None:
        self.workers, self._folder = workers, folder

    def copy(self, spill: str = "spill") -> Path:
        """Copy the data into a folder; return the path of its segments."""
        name = f".spill.ndtool-{os.urandom(6).hex()}-{cleanup.boot_id()}"
        shutil.copytree(self._folder, Path(spill, name, "new"))
        return Path(spill, name, "new")

    def resume(self, spill: str = "spill", **options: Any) -> files.Result:
        """Resume a copy; return the outcome."""
        self.workers.begun()
        arguments = {
            "scheduler": self.workers.client,
            "spill": spill,
            "resume": True,
            "out": "out.npy",
        }
        return files.gather_nd("data.npy", "idx.npy", **arguments | options)


@pytest.fixture(scope="module")
def killed(started: Workers, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Killed]:
    folder = tmp_path_factory.mktemp("killed")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        made()
        (folder / "first").mkdir()
        started.kill(GATHER, "sweep", "-o", "first/out.npy", "--spill", "first")
        (left,) = Path("first").glob(".spill.*")
        os.rename(left / "new", "pieces")
        shutil.rmtree("first")
        yield Killed(started, folder / "pieces")


@pytest.fixture
def left(killed: Killed) -> Killed:
    """Yield these data, and an empty folder for copies."""
    shutil.rmtree("spill", ignore_errors=True)
    Path("spill").mkdir()
    Path("out.npy").unlink(missing_ok=True)
    return killed


@settings(max_examples=max(1, EXAMPLES // 25))
@given(st.data())
def test_any_existing_part_suffices(killed: Killed, data: st.DataObject) -> None:
    shutil.rmtree("spill", ignore_errors=True)
    Path("spill").mkdir()
    pieces = killed.copy()
    torn = Counter[str]()
    for path in sorted(pieces.glob("s[pw]*-*")):
        what = data.draw(st.sampled_from(["stays", "stays", "goes", "torn", "longer", "twice"]))
        size = path.stat().st_size
        if what == "goes":
            path.unlink()
        elif what == "torn":
            os.truncate(path, data.draw(st.integers(0, size - 1)))
        elif what == "longer":
            os.truncate(path, size + 1)
        elif what == "twice":
            shutil.copy(path, f"{path}"[:-16] + "0" * 16)
        torn[path.name.split("-")[0]] += what in ("goes", "torn", "longer")
    assert killed.resume().resumed == 7 - torn["split"] + 2 - torn["sweep"]
    done = killed.workers.begun()
    assert (done["split"], done["sweep"]) == (torn["split"], 5 + torn["sweep"])
    assert same(np.load("out.npy"), wanted(GATHER))
    assert os.listdir("spill") == []


def test_a_task_that_ends_while_it_is_inspected(
    workdir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers continue tasks that a killed client had sent."""
    spills, listed = spillfiles.FolderStore("."), os.scandir
    pieces = [spills.create(spill.Segment("split", number, 0)) for number in (0, 1)]
    for piece in pieces:
        spills.write(piece, 0, memoryview(b"piece"))
    spills.finish(pieces[0])

    def late(path: str) -> Any:
        found = list(listed(path))
        spills.finish(pieces[1])
        return nullcontext(found)

    monkeypatch.setattr(os, "scandir", late)
    assert spills.segments() == {pieces[0]: 5}


def test_a_malformed_trailer(left: Killed) -> None:
    pieces = left.copy()
    for number, end in enumerate([b"[1, 2]", b"x", b"[[], 0, 0, 0]"]):
        (path,) = pieces.glob(f"split-{number}-*")
        whole = path.read_bytes()
        path.write_bytes(whole[: -resume.REPORT_BYTES] + end.ljust(resume.REPORT_BYTES))
    assert left.resume().resumed == 4 + 2
    assert same(np.load("out.npy"), wanted(GATHER))


def touched(name: str) -> Callable[[], None]:
    before = os.stat(name)
    os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
    return lambda: os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("name", ["data.npy", "idx.npy"])
def test_inputs_that_changed(left: Killed, name: str) -> None:
    left.copy()
    back = touched(name)
    try:
        result = left.resume()
    finally:
        back()
    reason = f"nothing is resumed: {os.getcwd()}/{name} has changed"
    assert (result.resumed, result.warnings) == (0, (reason,))
    assert same(np.load("out.npy"), wanted(GATHER))
    assert os.listdir("spill") == []


def test_another_version(left: Killed) -> None:
    manifest = left.copy() / "manifest"
    report = json.loads(manifest.read_text())
    report["fingerprint"]["version"] = "0.0.9"
    manifest.write_text(json.dumps(report))
    result = left.resume()
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
def test_another_call(left: Killed, options: dict[str, Any], reason: str) -> None:
    left.copy()
    result = left.resume(**options)
    assert result.warnings == (f"nothing is resumed: {reason}",)
    assert same(np.load("out.npy"), wanted(GATHER))
    assert os.listdir("spill") == []


def test_less_memory(left: Killed) -> None:
    """The killed run's partitioning may need more memory than workers have."""
    manifest = left.copy() / "manifest"
    report = {**json.loads(manifest.read_text()), "block": 30_000, "step": [512 * 512]}
    manifest.write_text(json.dumps(report))
    result = left.resume(memory=1 << 20)
    assert result.warnings[0].endswith("'s tasks need more memory, or other chunks of the output")
    assert same(np.load("out.npy"), wanted(GATHER))
    assert os.listdir("spill") == []


def test_other_chunks_of_the_output(left: Killed) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    left.copy()
    result = left.resume(out="out.zarr", chunks=(1000,))
    assert (result.resumed, len(result.warnings)) == (0, 1)
    assert same(zarr.open_array("out.zarr")[...], wanted(GATHER))
    shutil.rmtree("out.zarr")


@pytest.mark.parametrize(
    "text", [None, "", "[]", "{}", '{"fingerprint": [], "block": 1, "group_shapes": [1]}']
)
def test_a_malformed_manifest(left: Killed, text: str | None) -> None:
    """A run may be killed before it writes its manifest."""
    manifest = left.copy() / "manifest"
    manifest.unlink() if text is None else manifest.write_text(text)
    result = left.resume()
    assert (result.resumed, result.warnings) == (0, ())
    assert os.listdir("spill") == []


def test_workers_without_a_usable_directory(left: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run with local workers removes folders of killed ones."""
    left.copy()
    monkeypatch.setattr(tempfile, "tempdir", os.path.abspath("spill"))
    assert left.resume(scheduler=None, workers=1).resumed == 9
    assert same(np.load("out.npy"), wanted(GATHER))
    assert os.listdir("spill") == []


def test_a_live_run_is_not_cleaned(left: Killed) -> None:
    folder = left.copy().parent
    held = cleanup.open_locked(str(folder))
    before = sorted(folder.rglob("*"))
    result = left.resume()
    assert (result.resumed, result.warnings) == (0, ())
    assert sorted(folder.rglob("*")) == before
    os.close(held)
    assert left.resume().resumed == 9


def test_files_of_runs_on_other_machines(left: Killed) -> None:
    folder = left.copy().parent
    theirs = folder.with_name(folder.name[:-8] + "0" * 8)
    folder.rename(theirs)
    result = left.resume()
    reason = (
        f"{theirs.absolute()} is from another machine, or from before this machine's last start"
    )
    assert (result.resumed, result.warnings) == (0, (f"nothing is resumed: {reason}",))
    assert os.listdir("spill") == [theirs.name]


def test_a_folder_removed_before_it_is_locked(
    left: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces, take = left.copy(), spillfiles.reopen

    def late(inside: str) -> Any:
        shutil.rmtree(pieces)
        return take(inside)

    monkeypatch.setattr(spillfiles, "reopen", late)
    assert left.resume().resumed == 0
    assert same(np.load("out.npy"), wanted(GATHER))


def test_a_dry_run_allocates_nothing(left: Killed) -> None:
    pieces = left.copy()
    before = sorted(pieces.iterdir())
    arguments = ("--spill", "spill", "--scheduler", left.workers.address, "-o", "out.npy")
    ran = ndtool(*GATHER, *arguments, "--resume", "--dry-run", "--no-trace")
    assert "resumed: 7 of 7 split tasks\n" in ran.err
    assert sorted(pieces.iterdir()) == before
    ran = ndtool(*GATHER, *arguments, "--resume")
    assert (ran.status, ran.err) == (0, "resumed: 7 of 7 split tasks, 2 of 7 sweep tasks\n")
    assert same(np.load("out.npy"), wanted(GATHER))


def test_data_of_too_many_files_to_fingerprint(
    left: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = left.copy() / "manifest"
    report = json.loads(manifest.read_text())
    report["fingerprint"]["data"][1] = None
    manifest.write_text(json.dumps(report))
    monkeypatch.setattr(resume, "MAX_FINGERPRINTED_CHUNKS", 0)
    assert left.resume().resumed == 7
    assert left.workers.begun() == {"sweep": 7, "replay": 7}
    assert same(np.load("out.npy"), wanted(GATHER))


def test_an_input_without_a_fingerprint(left: Killed, monkeypatch: pytest.MonkeyPatch) -> None:
    left.copy()
    monkeypatch.setattr(resume, "_input_fingerprint", lambda *_: None)
    result = left.resume()
    assert result.resumed == 0
    assert result.warnings[0].endswith("/idx.npy cannot be detected")
    assert same(np.load("out.npy"), wanted(GATHER))


def test_data_that_cannot_be_resumed_are_removed(
    left: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lonely(*_: object) -> None:
        raise ResourceError("all workers are gone")

    monkeypatch.setattr(dask.Cluster, "completed", lonely)
    monkeypatch.setattr(resume, "_input_fingerprint", lambda *_: None)
    with pytest.raises(ResourceError) as caught:
        left.resume()
    assert (not caught.value.hint, os.listdir("spill")) == (True, [])


def test_indices_that_are_written_out(inputs: Path, started: Workers) -> None:
    call = ("gather", "data.npy", "[5, 7, -1]")
    started.kill(call, "replay", "-o", "out.npy", tasks=1)
    assert again(call, started)["resumed"]["split"] == 1
    assert same(np.load("out.npy"), np.load("data.npy")[[5, 7, -1]])


def test_an_input_that_changes_during_the_run(
    left: Killed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers do not inspect the inputs that workers of the killed run had read."""
    left.copy()
    report, answers = resume._input_fingerprint, iter([["as it was"]])

    def late(role: str, name: str, source: Any) -> Any:
        return report(role, name, source) if role == "data" else next(answers, ["another"])

    manifest = next(Path("spill").glob(".*/new/manifest"))
    found = json.loads(manifest.read_text())
    found["fingerprint"]["indices"][1] = ["as it was"]
    manifest.write_text(json.dumps(found))
    monkeypatch.setattr(resume, "_input_fingerprint", late)
    with pytest.raises(OutputError, match=r"idx.npy has changed during the run"):
        left.resume()
    assert not Path("out.npy").exists()
    assert os.listdir("spill") == []


def test_only_clusters_resume(inputs: Path) -> None:
    ran = ndtool(*GATHER, "-o", "out.npy", "--resume")
    message = "error: --resume: only a run on a cluster can be resumed: expected --scheduler or --workers\n"
    assert (ran.status, ran.err) == (2, message)
    assert ndtool(*GATHER, "-o", "out.npy", env={"NDTOOL_RESUME": "1"}).status == 0


@pytest.mark.slow("a run without workers ends and is resumed")
def test_a_run_that_loses_its_workers_can_be_resumed(
    inputs: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    site = Site(tmp_path_factory.mktemp("site"))
    try:
        site.scheduler()
        site.worker("--no-nanny")
        site.order("once", "sweep")
        arguments = ("-o", "out.npy", "--scheduler", site.file, "--resume", "-q")
        run = site.start(*IMPATIENT, *SCATTER, *arguments)
        _, report = run.communicate()
        assert run.returncode == 6
        assert report.endswith(b"  hint: --resume continues this run\n")
        site.worker("--no-nanny")
        ran = ndtool(*SCATTER, *arguments[:-1], "--json")
        assert (ran.status, ran.json["resumed"]) == (0, {"split": 4})
        assert same(np.load("out.npy"), wanted(SCATTER))
        assert not [name for name in os.listdir() if name.startswith(".")]
    finally:
        site.end()


def test_fingerprints_of_store_files(workdir: Path) -> None:
    zarr = pytest.importorskip("zarr", exc_type=ImportError)
    group = zarr.create_group("g.zarr")
    group.create_array("a", shape=(4, 4), chunks=(2, 2), dtype="i4")[...] = 1
    group.create_array("b", shape=(4,), dtype="i4")[...] = 1

    def report(argument: str) -> Any:
        source = locators.open_source(argument, Streams())
        try:
            return source.fingerprint()
        finally:
            source.close()

    before = report("g.zarr:a")
    assert report("g.zarr:a") == before
    os.utime("g.zarr/b/c/0")
    assert report("g.zarr:a") == before
    os.utime("g.zarr/a/c/1/1")
    after = report("g.zarr:a")
    assert after != before
    os.unlink("g.zarr/a/c/1/1")
    assert report("g.zarr:a") not in (before, after)
