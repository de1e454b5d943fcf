"""Sweeps on a cluster of a scheduler and two workers, with failures and other versions.

Results are compared with those in memory, which tests/inmemory compares with the oracle.
"""

import gc
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import ndtool, save, save_stores, snapshot
from later import later
from strategies import bits_equal
from twoworkers import PATIENT, Workers, two_workers

from ndtool import files
from ndtool.errors import BoundsError, DuplicatesError, NdtoolError, UsageError
from ndtool.inmemory import ops
from ndtool.outofcore import cluster as clusters

later("dask")
later("distributed")
zarr = later("zarr")
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


# Not of session scope: its threads open files, and other tests check for open files.
@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Workers]:
    folder = tmp_path_factory.mktemp("cluster")
    with two_workers(folder, **PATIENT) as started:
        yield started


@pytest.fixture
def workers(cluster: Workers) -> Iterator[Workers]:
    cluster.pop_records()
    yield cluster
    cluster.release()


@pytest.fixture(scope="module")
def written_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(7)
    save_stores(
        folder,
        data=(rng.random((512, 512), np.float32), (64, 64)),
        idx=(rng.integers(-512, 512, (50, 1000, 2)), (12, 1000, 2)),
        upd=(rng.random((50, 1000), np.float32), (7, 300)),
        rows=(rng.integers(-512, 512, (300, 400), np.int32), (100, 100)),
        changes=(rng.random((300, 400), np.float32), (50, 400)),
    )
    return folder


@pytest.fixture
def stores(written_stores: Path, workdir: Path) -> Path:
    shutil.copytree(written_stores, workdir, dirs_exist_ok=True)
    return workdir


def load(argument: str) -> Any:
    return np.load(argument) if argument.endswith(".npy") else zarr.open_array(argument)[...]


CALLS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "gather_nd": (("data", "idx"), {}),
    "scatter_nd": (("data", "idx", "upd"), {"reduction": "mean", "include_self": False}),
    "gather_elements": (("data", "rows"), {"axis": 0}),
    "scatter_elements": (("data", "rows", "changes"), {"axis": 1, "reduction": "max"}),
}


def expected_result(operator: str, **options: Any) -> Any:
    roles, arguments = CALLS[operator]
    arrays = (np.load(f"{role}.npy") for role in roles)
    return getattr(ops, operator)(*arrays, **arguments, **options)


def run_operator(operator: str, suffix: str, out: str, **options: Any) -> files.Result:
    roles, arguments = CALLS[operator]
    call = getattr(files, operator)
    result: files.Result = call(*(role + suffix for role in roles), **arguments, out=out, **options)
    return result


# Chunks of outputs: some match no block of an input, some overlap several chunks of data.
STORE_OPTIONS: dict[str, dict[str, Any]] = {
    "gather_nd": {"chunks": (3, 250), "shards": (6, 500)},
    "scatter_nd": {"chunks": (32, 64), "shards": (32, 128)},
    "gather_elements": {"chunks": (50, 100)},
    "scatter_elements": {"chunks": (64, 64)},
}


@pytest.mark.parametrize(
    ("operator", "suffix", "out"),
    [
        ("gather_nd", ".zarr", "out.npy"), ("gather_elements", ".npy", "out.zarr"),
        ("scatter_nd", ".npy", "out.zarr"), ("scatter_elements", ".zarr", "out.npy"),
    ],
)  # fmt: skip
def test_a_cluster_gives_the_bits_of_the_reference(
    stores: Path, workers: Workers, operator: str, suffix: str, out: str
) -> None:
    before = snapshot(stores)
    store_options = STORE_OPTIONS[operator] if out == "out.zarr" else {}
    run_operator(operator, suffix, out, scheduler=workers.client, **store_options)
    assert bits_equal(load(out), expected_result(operator))
    assert {name.split("/")[0] for name in snapshot(stores).keys() - before.keys()} == {out}


def test_workers_read_indices_that_count_from_one(stores: Path, workers: Workers) -> None:
    indices = np.load("idx.npy") % np.array(512, "i4")
    zarr.open_array("idx.zarr")[...] = indices + 1
    run_operator("gather_nd", ".zarr", "out.npy", scheduler=workers.client, index_base=1)
    save(idx=indices)
    assert bits_equal(load("out.npy"), expected_result("gather_nd"))


@pytest.mark.parametrize("operator", ["gather_elements", "scatter_nd"])
def test_chunks_are_read_once_and_written_once(
    stores: Path, workers: Workers, operator: str
) -> None:
    run_operator(operator, ".zarr", "out.zarr", scheduler=workers.client, **STORE_OPTIONS[operator])
    records, out = workers.pop_records(), zarr.open_array("out.zarr")
    axes = zip(out.shape, out.shards or out.chunks, strict=True)
    file_count = np.prod([-(-size // step) for size, step in axes])
    read = [count for line, count in records.items() if "data.zarr" in line]
    written = [count for line, count in records.items() if line.startswith("write")]
    # One column of chunks is not selected.
    selected_chunks = 56 if operator == "gather_elements" else 64
    assert (len(read), set(read)) == (selected_chunks, {1})
    assert (len(written), set(written)) == (file_count, {1})


ANY_PHASE = pytest.mark.slow("tasks of each phase run again, with each output and depth")


@pytest.mark.parametrize(
    ("operator", "phase", "out", "depth"),
    [
        ("scatter_nd", "sweep", "out.zarr", 1),
        *(
            pytest.param(*case, marks=ANY_PHASE)
            for case in (
                ("gather_nd", "replay", "out.npy", 1), ("gather_nd", "sweep", "out.zarr", 1), ("scatter_nd", "split", "out.npy", 1),
                ("gather_nd", "split", "out.npy", 2), ("scatter_nd", "split2", "out.zarr", 2),
                ("gather_nd", "sweep2", "out.npy", 2), ("gather_nd", "replay", "out.npy", 2),
            )
        ),
    ],
)  # fmt: skip
def test_tasks_of_a_killed_worker_run_again(
    stores: Path, workers: Workers, operator: str, phase: str, out: str, depth: int,
    force_depth: Callable[[int], None],
) -> None:  # fmt: skip
    force_depth(depth)
    before = snapshot(stores)
    store_options = STORE_OPTIONS[operator] if out == "out.zarr" else {}
    workers.inject_fault("once", phase)
    suffix = ".zarr" if depth == 1 else ".npy"
    run_operator(operator, suffix, out, scheduler=workers.client, **store_options)
    assert workers.is_fault_injected()
    assert bits_equal(load(out), expected_result(operator))
    assert {name.split("/")[0] for name in snapshot(stores).keys() - before.keys()} == {out}


@pytest.mark.parametrize(
    "depth", [1, pytest.param(2, marks=pytest.mark.slow("workers run tasks of two levels"))]
)
def test_random_calls_on_workers_have_the_bits_of_the_reference(
    workdir: Path, workers: Workers, force_depth: Callable[[int], None], depth: int
) -> None:
    force_depth(depth)
    rng = np.random.default_rng(depth)
    for dtype, mode, reduction, pad, count in (
        ("<f4", "error", "mean", None, 20_000), (">i8", "fill", "none", -5, 20_000),
        ("<f2", "clip", "max", None, 20_000), ("<i2", "wrap", "sub", -5, 20_000),
        ("<i2", "error", "add", None, 0),
    ):  # fmt: skip
        data, upd = rng.integers(-9, 9, (512, 700)).astype(dtype), rng.integers(-3, 3, count)
        idx = rng.integers((-512, -700), (512, 700), (count, 2))
        options: dict[str, Any] = {"out_of_bounds": mode, "pad": pad}
        idx[rng.random(len(idx)) < 0.1, 1] = 9999 if mode != "error" else 3
        idx[rng.random(len(idx)) < 0.1] = 7, -5
        save(data=data, idx=idx, upd=upd.astype(dtype))
        run: dict[str, Any] = {"out": "out.npy", "scheduler": workers.client}
        files.gather_nd("data.npy", "idx.npy", **run, **options)
        assert bits_equal(np.load("out.npy"), ops.gather_nd(data, idx, **options))
        options = {**options, "out_of_bounds": "drop" if mode == "fill" else mode}
        files.scatter_nd("data.npy", "idx.npy", "upd.npy", reduction=reduction, **run, **options)
        expected = ops.scatter_nd(data, idx, upd.astype(dtype), reduction, **options)
        assert bits_equal(np.load("out.npy"), expected)


def test_a_bad_index_of_any_block_ends_the_run(stores: Path, workers: Workers) -> None:
    idx = zarr.open_array("idx.zarr")
    idx[31, 7, 1], idx[49, 999, 1] = 512, 5000
    before = snapshot(stores)
    with pytest.raises(BoundsError) as excinfo:
        run_operator("gather_nd", ".zarr", "out.npy", scheduler=workers.client)
    assert "2 of 50000 index tuples\n  --> idx.zarr[31, 7, 1] = 512\n" in str(excinfo.value)
    assert snapshot(stores) == before


def test_duplicates_are_refused_before_workers_write(stores: Path, workers: Workers) -> None:
    with pytest.raises(DuplicatesError) as excinfo:
        run_operator(
            "scatter_nd", ".zarr", "new.zarr", scheduler=workers.client, duplicates="error"
        )
    with pytest.raises(DuplicatesError) as in_memory:
        expected_result("scatter_nd", duplicates="error")
    pair = excinfo.value.first, excinfo.value.second
    assert pair == (in_memory.value.first, in_memory.value.second)
    assert not Path("new.zarr").exists()


def test_only_idempotent_reductions_update_in_place(stores: Path, workers: Workers) -> None:
    with pytest.raises(UsageError, match="mean cannot update in place"):
        run_operator("scatter_nd", ".zarr", "./data.zarr", scheduler=workers.client)
    expected = expected_result("scatter_elements")
    run_operator("scatter_elements", ".zarr", "data.zarr", scheduler=workers.client)
    assert bits_equal(load("data.zarr"), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": np.zeros(3, np.float32)}, "data: workers cannot read parts of it"),
        ({"data": "raw:float32[9]:data.npy"}, "workers cannot read parts of it"),
        ({"data": "fortran.npy"}, "fortran.npy is in Fortran order: expected C order"),
        ({"out": None}, "a run on a cluster writes to a file or store: expected -o FILE"),
        ({"workers": 2}, "scheduler and workers: expected one of them"),
        ({"scheduler": "nowhere.json"}, "nowhere.json: there is no such scheduler file"),
    ],
)
def test_unsupported_runs_on_a_cluster_are_refused(
    stores: Path, workers: Workers, change: dict[str, Any], message: str
) -> None:
    save(fortran=np.asfortranarray(np.load("data.npy")), index=np.zeros((1, 1), np.int64))
    before = snapshot(stores)
    arguments = {"data": "data.npy", "indices": "index.npy", "out": "out.npy"}
    with pytest.raises(UsageError, match=message):
        files.gather_nd(**arguments | {"scheduler": workers.client} | change)
    assert snapshot(stores) == before


@pytest.mark.parametrize("text", ["null", '{"address": 5}', "\x93NUMPY", None])
def test_a_malformed_scheduler_file_is_refused(stores: Path, text: str | None) -> None:
    name = "/dev/zero" if text is None else "s.json"
    if text is not None:
        Path(name).write_text(text, "latin-1")
    completed = ndtool("gather-nd", "data.npy", "[[0]]", "-o", "out.npy", "--scheduler", name)
    message = f"error: {name} is not a scheduler file: expected JSON with an address\n"
    assert (completed.status, completed.out, completed.err) == (2, b"", message)


def test_workers_of_another_version_are_refused(
    stores: Path, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clusters, "__version__", "9.8.7")
    message = r"the worker on \S+ has ndtool .*: expected version 9.8.7, as on the client"
    with pytest.raises(UsageError, match=message):
        run_operator("gather_nd", ".zarr", "out.npy", scheduler=workers.client)


def test_started_workers_are_not_profiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The profiler can deadlock a worker before Python 3.11.9."""
    localcluster = pytest.importorskip("ndtool.outofcore.localcluster", exc_type=ImportError)
    import dask

    monkeypatch.setenv("DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED", "True")
    with localcluster.start(1, 1, cleans=False) as (client, _):
        client.wait_for_workers(1)
        settings = client.run(dask.config.get, "distributed.worker.profile.enabled")
    assert list(settings.values()) == [False]


def test_a_failed_client_is_closed_at_once(stores: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that the garbage collector closes while another one starts waits for itself."""
    distributed = pytest.importorskip("distributed")
    monkeypatch.setattr(clusters, "ANSWER_TIMEOUT", 0.2)
    clients, errors = [], []
    initialize = distributed.Client.__init__

    def record_client(self: Any, *arguments: Any, **options: Any) -> None:
        clients.append(weakref.ref(self))
        initialize(self, *arguments, **options)

    monkeypatch.setattr(distributed.Client, "__init__", record_client)
    gc.disable()
    try:
        for address in ("tcp://127.0.0.1:1", "foo://127.0.0.1:1"):
            with pytest.raises(NdtoolError) as excinfo:
                run_operator("gather_nd", ".zarr", "out.npy", scheduler=address)
            assert address == "foo://127.0.0.1:1" or str(excinfo.value).startswith(
                "tcp://127.0.0.1:1: cannot connect to a scheduler"
            )
            errors.append(excinfo.value)  # the error must not refer to the client
    finally:
        gc.enable()
    assert clients
    assert not any(reference() for reference in clients)
