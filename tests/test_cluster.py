"""A sweep on a cluster of a scheduler and two workers, with failures and false versions."""

import gc
import os
import pickle
import signal
import subprocess
import time
import weakref
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from command import NDTOOL, environment, ndtool, save, state
from strategies import same
from twoworkers import PATIENT, two_workers

from ndtool import files
from ndtool.analysis.oracle import reference
from ndtool.errors import (
    BoundsError,
    DuplicatesError,
    NdtoolError,
    OutputError,
    ResourceError,
    UsageError,
)
from ndtool.formats.zarr import newstore
from ndtool.runs import plan
from ndtool.runs.calls import OpenCall
from ndtool.runs.executors import dask
from ndtool.runs.external import worker
from ndtool.runs.request import Request

pytest.importorskip("dask", exc_type=ImportError)
pytest.importorskip("distributed", exc_type=ImportError)
zarr = pytest.importorskip("zarr", exc_type=ImportError)
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

# Each worker first loads this: it records its reads and writes, and obeys a file.
PRELOAD = """
import asyncio, os, signal, time
from ndtool.storage.remotefolder import RemoteFolder
from ndtool.formats.zarr import ZarrSource
from ndtool.formats.zarr.writer import ChunkWriter
from ndtool.runs.external import tasks

ORDER, NOTES = {folder!r} + "/order", {folder!r} + "/notes"

def noted(kind, before, at):
    def after(self, *arguments):
        with open(NOTES, "a") as notes:
            notes.write(f"{{kind}} {{self.name}} {{arguments[at]}}\\n")
        return before(self, *arguments)
    return after

def follow_orders(kind, before):
    def after(work, number, depth):
        phase = f"{{kind}}{{depth + 1}}" if depth else kind
        end = before(work, number, depth)
        try:
            with open(ORDER) as order:
                what, where = order.read().split()
            if where == phase and what == "wait":
                time.sleep(600)
            if where == phase and what == "die":
                os.unlink(ORDER)
                os.kill(os.getpid(), signal.SIGKILL)
        except FileNotFoundError:
            pass
        return end
    return after

def late(before):
    async def after(self, key, body):
        with open(NOTES, "a") as notes:
            notes.write(f"sent {{key}}\\n")
        if os.path.exists(ORDER) and open(ORDER).read() == "late put":
            await asyncio.sleep(2)
        await before(self, key, body)
    return after

if not hasattr(tasks, "follow_orders"):  # a worker loads it twice
    RemoteFolder.put = late(RemoteFolder.put)
    ZarrSource.block = noted("read", ZarrSource.block, 0)
    ChunkWriter.write_block = noted("write", ChunkWriter.write_block, 0)
    tasks.PHASES.update({{phase: follow_orders(phase, do) for phase, do in tasks.PHASES.items()}})
    tasks.follow_orders = True
"""


class Workers:
    """The cluster of these tests: its client, its workers' records, and orders to them."""

    def __init__(self, client: Any, folder: Path) -> None:
        self.client, self._folder = client, folder
        self.address: str = client.scheduler.address

    def order(self, what: str, phase: str) -> None:
        (self._folder / "order").write_text(f"{what} {phase}")

    def done(self) -> bool:
        return not (self._folder / "order").exists()

    def release(self) -> None:
        (self._folder / "order").unlink(missing_ok=True)

    def notes(self) -> Counter[str]:
        notes = self._folder / "notes"
        lines = notes.read_text().splitlines() if notes.exists() else []
        notes.unlink(missing_ok=True)
        return Counter(lines)


# Not of session scope: its threads open files, and other tests check for open files.
@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("cluster")
    with two_workers(folder, PRELOAD, **PATIENT) as client:
        yield Workers(client, folder)


@pytest.fixture
def workers(started: Workers) -> Iterator[Workers]:
    started.notes()
    yield started
    started.release()


@pytest.fixture
def stores(workdir: Path) -> Path:
    rng = np.random.default_rng(7)
    arrays = {
        "data": (rng.random((512, 512), np.float32), (64, 64)),
        "idx": (rng.integers(-512, 512, (50, 1000, 2)), (4, 1000, 2)),
        "upd": (rng.random((50, 1000), np.float32), (7, 300)),
        "rows": (rng.integers(-512, 512, (300, 400), np.int32), (100, 100)),
        "changes": (rng.random((300, 400), np.float32), (50, 400)),
    }
    save(**{name: array for name, (array, _) in arrays.items()})
    for name, (array, chunks) in arrays.items():
        made = zarr.create_array(
            f"{name}.zarr", shape=array.shape, chunks=chunks, dtype=array.dtype
        )
        made[...] = array
    return workdir


def load(argument: str) -> Any:
    return np.load(argument) if argument.endswith(".npy") else zarr.open_array(argument)[...]


CALLS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "gather_nd": (("data", "idx"), {}),
    "scatter_nd": (("data", "idx", "upd"), {"reduction": "mean", "include_self": False}),
    "gather_elements": (("data", "rows"), {"axis": 0}),
    "scatter_elements": (("data", "rows", "changes"), {"axis": 1, "reduction": "max"}),
}


def wanted(operator: str) -> Any:
    roles, arguments = CALLS[operator]
    return getattr(reference, operator)(*(np.load(f"{role}.npy") for role in roles), **arguments)


def done(operator: str, suffix: str, out: str, **options: Any) -> files.Result:
    roles, arguments = CALLS[operator]
    call = getattr(files, operator)
    result: files.Result = call(*(role + suffix for role in roles), **arguments, out=out, **options)
    return result


# Outputs: rows of chunks that are no block of an input, and parts of several chunks of data.
STORED: dict[str, dict[str, Any]] = {
    "gather_nd": {"chunks": (3, 250), "shards": (6, 500)},
    "scatter_nd": {"chunks": (32, 64), "shards": (32, 128)},
    "gather_elements": {"chunks": (50, 100)},
    "scatter_elements": {"chunks": (64, 64)},
}


@pytest.mark.parametrize("operator", CALLS)
@pytest.mark.parametrize(("suffix", "out"), [(".zarr", "out.npy"), (".npy", "out.zarr")])
def test_a_cluster_gives_the_bits_of_the_reference(
    stores: Path, workers: Workers, operator: str, suffix: str, out: str
) -> None:
    before = state(stores)
    stored = STORED[operator] if out == "out.zarr" else {}
    done(operator, suffix, out, scheduler=workers.client, **stored)
    assert same(load(out), wanted(operator))
    assert {name.split("/")[0] for name in state(stores).keys() - before.keys()} == {out}


@pytest.mark.parametrize(("operator", "rule"), [("gather_nd", "fill"), ("scatter_nd", "drop")])
def test_a_cluster_counts_indices_out_of_bounds(
    stores: Path, workers: Workers, operator: str, rule: str
) -> None:
    idx = np.load("idx.npy")
    idx[31, 7, 1], idx[49, 999, 1] = 512, -5000
    zarr.open_array("idx.zarr")[...] = idx
    save(idx=idx)
    result = done(operator, ".zarr", "out.npy", scheduler=workers.client, out_of_bounds=rule)
    roles, arguments = CALLS[operator]
    arrays = [np.load(f"{role}.npy") for role in roles]
    call = getattr(reference, operator)
    assert same(load("out.npy"), call(*arrays, **arguments, out_of_bounds=rule))
    assert result.outside == 2
    assert "the first: idx.zarr[31, 7, 1] = 512" in result.warnings[0]


@pytest.mark.parametrize("operator", CALLS)
def test_chunks_are_read_once_and_written_once(
    stores: Path, workers: Workers, operator: str
) -> None:
    done(operator, ".zarr", "out.zarr", scheduler=workers.client, **STORED[operator])
    notes, out = workers.notes(), zarr.open_array("out.zarr")
    files_of = zip(out.shape, out.shards or out.chunks, strict=True)
    count = np.prod([-(-size // step) for size, step in files_of])
    read = [times for line, times in notes.items() if "data.zarr" in line]
    written = [times for line, times in notes.items() if line.startswith("write")]
    named = 56 if operator == "gather_elements" else 64  # a column of chunks is not
    assert (len(read), set(read)) == (named, {1})
    assert (len(written), set(written)) == (count, {1})


ANY_PHASE = pytest.mark.slow("tasks of each phase run again, with each output")


@pytest.mark.parametrize(
    ("operator", "phase", "out"),
    [
        pytest.param("gather_nd", "split", "out.zarr", marks=ANY_PHASE),
        pytest.param("gather_nd", "sweep", "out.zarr", marks=ANY_PHASE),
        ("gather_nd", "replay", "out.npy"),
        pytest.param("scatter_nd", "split", "out.npy", marks=ANY_PHASE),
        pytest.param("scatter_nd", "sweep", "out.npy", marks=ANY_PHASE),
        ("scatter_nd", "sweep", "out.zarr"),
    ],
)
def test_tasks_of_a_killed_worker_run_again(
    stores: Path, workers: Workers, operator: str, phase: str, out: str
) -> None:
    before = state(stores)
    stored = STORED[operator] if out == "out.zarr" else {}
    workers.order("die", phase)
    done(operator, ".zarr", out, scheduler=workers.client, **stored)
    assert workers.done()
    assert same(load(out), wanted(operator))
    assert {name.split("/")[0] for name in state(stores).keys() - before.keys()} == {out}


@pytest.mark.slow("tasks of each phase of two levels run again")
@pytest.mark.parametrize("phase", ["split", "split2", "sweep", "replay2", "replay"])
def test_tasks_of_a_killed_worker_run_again_in_levels(
    stores: Path, workers: Workers, phase: str, leveled: Callable[[int], None]
) -> None:
    leveled(2)
    for operator, out in (("gather_nd", "out.npy"), ("scatter_nd", "out.zarr")):
        if operator == "scatter_nd" and phase.startswith("replay"):
            continue
        before = state(stores)
        workers.order("die", phase)
        done(
            operator,
            ".npy",
            out,
            scheduler=workers.client,
            **STORED[operator] if out == "out.zarr" else {},
        )
        assert workers.done()
        assert same(load(out), wanted(operator))
        assert {name.split("/")[0] for name in state(stores).keys() - before.keys()} == {out}


def test_a_bad_index_of_any_block_ends_the_run(stores: Path, workers: Workers) -> None:
    idx = zarr.open_array("idx.zarr")
    idx[31, 7, 1], idx[49, 999, 1] = 512, 5000
    before = state(stores)
    with pytest.raises(BoundsError) as caught:
        done("gather_nd", ".zarr", "out.npy", scheduler=workers.client)
    assert "2 of 50000 index tuples\n  --> idx.zarr[31, 7, 1] = 512\n" in str(caught.value)
    assert state(stores) == before


def test_duplicates_are_refused_before_workers_write(stores: Path, workers: Workers) -> None:

    with pytest.raises(DuplicatesError) as caught:
        done("scatter_nd", ".zarr", "new.zarr", scheduler=workers.client, duplicates="error")
    roles, arguments = CALLS["scatter_nd"]
    arrays = (np.load(f"{role}.npy") for role in roles)
    with pytest.raises(DuplicatesError) as expected:
        reference.scatter_nd(*arrays, **arguments, duplicates="error")
    found = caught.value.first, caught.value.second
    assert found == (expected.value.first, expected.value.second)
    assert not Path("new.zarr").exists()


def test_only_idempotent_reductions_update_in_place(stores: Path, workers: Workers) -> None:
    with pytest.raises(UsageError, match="mean cannot update in place"):
        done("scatter_nd", ".zarr", "./data.zarr", scheduler=workers.client)
    expected = wanted("scatter_elements")
    done("scatter_elements", ".zarr", "data.zarr", scheduler=workers.client)
    assert same(load("data.zarr"), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros(3, np.float32)}, "data: workers cannot read parts of it"),
        ({"data": "raw:float32[9]:data.npy"}, "workers cannot read parts of it"),
        ({"data": "turned.npy"}, "turned.npy is in Fortran order: expected C order"),
        ({"out": None}, "a run on a cluster writes to a file or store: expected -o FILE"),
        ({"workers": 2}, "--scheduler and --workers: expected one of them"),
        ({"scheduler": "nowhere.json"}, "nowhere.json: there is no such scheduler file"),
    ],
)
def test_unsupported_runs_on_a_cluster_are_refused(
    stores: Path, workers: Workers, change: dict[str, Any], message: str
) -> None:
    save(turned=np.asfortranarray(np.load("data.npy")), one=np.zeros((1, 1), np.int64))
    before = state(stores)
    arguments = {
        "data": "data.npy",
        "indices": "one.npy",
        "out": "out.npy",
        "scheduler": workers.client,
    }
    with pytest.raises(UsageError, match=message):
        files.gather_nd(**arguments | change)
    assert state(stores) == before


@pytest.mark.parametrize("text", ["[]", "null", "{}", '{"address": 5}', "xx", "\x93NUMPY"])
def test_a_malformed_scheduler_file(stores: Path, text: str) -> None:
    Path("s.json").write_text(text, "latin-1")
    ran = ndtool("gather-nd", "data.npy", "[[0]]", "-o", "out.npy", "--scheduler", "s.json")
    assert (ran.status, ran.out) == (2, b"")
    assert ran.err == "error: s.json is not a scheduler file: expected JSON with an address\n"


def test_a_worker_that_does_not_see_the_output(
    stores: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, shared = state(stores), newstore._LocalStore.share

    def elsewhere(*arguments: Any) -> Any:
        return shared(*arguments)._replace(path="/nonexistent/new")

    monkeypatch.setattr(newstore._LocalStore, "share", elsewhere)
    with pytest.raises(OutputError, match=r"^out\.zarr: .*/nonexistent/new"):
        done("gather_nd", ".zarr", "out.zarr", scheduler=workers.client)
    assert state(stores) == before


def test_a_scheduler_file_without_an_end(stores: Path) -> None:
    ran = ndtool("gather-nd", "data.npy", "[[0]]", "-o", "out.npy", "--scheduler", "/dev/zero")
    assert (ran.status, ran.err.startswith("error: /dev/zero is not a scheduler file")) == (2, True)


def test_one_version_everywhere(
    stores: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "__version__", "9.8.7")
    message = r"the worker at tcp://\S+ has ndtool .*: expected 9.8.7, as here"
    with pytest.raises(UsageError, match=message):
        done("gather_nd", ".zarr", "out.npy", scheduler=workers.client)


def test_no_scheduler(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dask, "ANSWER_TIMEOUT", 1)
    with pytest.raises(ResourceError, match=r"^tcp://127.0.0.1:1: cannot connect to a scheduler"):
        done("gather_nd", ".zarr", "out.npy", scheduler="tcp://127.0.0.1:1")


def test_a_failed_client_is_closed_at_once(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Closed by a garbage collection while another client starts, it waits for itself for ever."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(dask, "ANSWER_TIMEOUT", 0.2)
    made, errors = [], []
    client = distributed.Client.__init__

    def noting(self: Any, *arguments: Any, **options: Any) -> None:
        made.append(weakref.ref(self))
        client(self, *arguments, **options)

    monkeypatch.setattr(distributed.Client, "__init__", noting)
    gc.disable()
    try:
        for address in ("tcp://127.0.0.1:1", "foo://127.0.0.1:1"):
            with pytest.raises(NdtoolError) as caught:
                done("gather_nd", ".zarr", "out.npy", scheduler=address)
            errors.append(caught.value)  # of which the client must not be a member
    finally:
        gc.enable()
    assert made
    assert not any(one() for one in made)


def test_tasks_are_small(stores: Path) -> None:
    with OpenCall(Request("scatter_nd", "data.zarr", "idx.zarr", "upd.zarr", "out.zarr")) as job:
        cut = plan.partition_chunks(job, job.metadata, 1, 1 << 20)
        position = worker.SharedOutput("out.zarr", job.metadata, "/" + "x" * 200, "", 0)
        names = job.request.arguments
        call = worker.Call("0" * 16, "1", names, job.inference, cut, position, "/y" * 99)
        assert len(pickle.dumps((worker.perform, call, "sweep", 99_999))) < 10 << 10


@pytest.mark.slow(
    "workers remove what a killed client leaves, which takes the scheduler seconds to see"
)
@pytest.mark.parametrize(
    ("signal_name", "out"),
    [("SIGINT", "out.zarr"), ("SIGKILL", "out.zarr"), ("SIGKILL", "out.npy")],
)
def test_an_ended_client_leaves_nothing_for_long(
    stores: Path, workers: Workers, signal_name: str, out: str
) -> None:
    before = state(stores)
    workers.order("wait", "sweep")
    command = ("scatter-nd", "data.zarr", "idx.zarr", "upd.zarr", "-o", out)
    ran = subprocess.Popen(
        [*NDTOOL, *command, "--scheduler", workers.address],
        env=environment(),
        stderr=subprocess.PIPE,
    )
    while "-sweep-" not in str(workers.client.processing()):
        time.sleep(0.05)
    ran.send_signal(getattr(signal, signal_name))
    _, report = ran.communicate()
    assert (ran.returncode, report) in ((130, b""), (-signal.SIGKILL, b""))
    workers.release()
    workers.client.restart()
    if signal_name == "SIGKILL":
        left = sorted(f"./{name}" for name in os.listdir() if name.startswith("."))
        assert left
        assert sorted(ndtool("clean", ".", "--json").json["removed"]) == left
        assert ndtool("clean", ".").out == b"nothing to remove\n"
    assert state(stores) == before


def test_a_run_with_a_running_task_stays_open(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = []

    class Opened:
        users = 0

        def __init__(self, call: Any) -> None:
            self.work = SimpleNamespace(token=call.token, do=begin)

        def close(self) -> None:
            closed.append(self.work.token)

    def named(token: int) -> Any:
        return SimpleNamespace(token=token)

    def begin(phase: str, left: int) -> None:
        """Run a task while others begin, each of another run."""
        if left:
            worker.perform(named(left - 1), phase, left - 1)
        assert left not in closed

    monkeypatch.setattr(worker, "run_task", lambda work, phase, number: work.do(phase, number))
    monkeypatch.setattr(worker, "_OpenRun", Opened)
    monkeypatch.setattr(worker, "_open_runs", OrderedDict())
    worker.perform(named(9), "begin", 9)
    assert closed == []
    worker.perform(named(10), "begin", 0)
    assert len(closed) == 11 - worker.IDLE_RUNS


def test_a_run_without_an_output_is_refused(workdir: Path) -> None:
    save(data=np.zeros((4, 3)), idx=np.array([1]))
    with pytest.raises(
        UsageError, match=r"^a run on a cluster writes to a file or store: expected -o FILE$"
    ):
        files.gather("data.npy", "idx.npy", workers=1)
