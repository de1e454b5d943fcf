"""Chunked arrays larger than memory: partitions are boxes of complete chunks, each read once."""

import json
import shutil
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from command import ndtool, save, save_stores
from inputs import open_input
from later import later

zarr = later("zarr")
SMALL_MEMORY = ("--memory", "1MiB")


@pytest.fixture(scope="module")
def written_stores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write data of 4 MiB in chunks of 64 KiB, and indices and updates of 2 MiB in other chunks."""
    folder, rng = tmp_path_factory.mktemp("stores"), np.random.default_rng(7)
    save_stores(
        folder,
        data=(rng.random((1024, 1024), np.float32), (128, 128)),
        idx=(rng.integers(-1024, 1024, (50, 1000, 2)), (4, 1000, 2)),
        upd=(rng.random((50, 1000), np.float32), (7, 300)),
    )
    return folder


@pytest.fixture
def stores(written_stores: Path, workdir: Path) -> Path:
    shutil.copytree(written_stores, workdir, dirs_exist_ok=True)
    return workdir


CALLS = {
    "gather": ("gather-nd", "data.zarr", "idx.zarr"),
    "scatter": ("scatter-nd", "data.zarr", "idx.zarr", "upd.zarr", "--reduction", "add"),
}


def direct_result(*call: str) -> bytes:
    """Return the elements that a run within ample memory writes."""
    completed = ndtool(*call, "-o", "direct.npy", "--json")
    assert completed.json["plan"]["way"] == "direct"
    return bytes(np.load("direct.npy").tobytes())


@pytest.mark.parametrize(
    ("name", "output", "options"),
    [
        ("scatter", "out.npy", ()),
        ("scatter", "out.zarr", ("--chunks", "5,500")),
        ("gather", "out.zarr", ("--chunks", "5,500")),
        ("gather", "out.zarr", ("--chunks", "7,90", "--shards", "14,180")),
        ("gather", "-", ()),
    ],
)
def test_a_sweep_of_stores_equals_direct_execution(
    stores: Path, name: str, output: str, options: tuple[str, ...]
) -> None:
    call = CALLS[name]
    result = ndtool(*call, *SMALL_MEMORY, *options, "-o", output, "--json")
    assert result.status == 0, result.err
    report = result.json if output != "-" else json.loads(result.err)
    assert report["plan"]["way"] == "sweep"
    if output != "-":
        with open_input(output) as opened:
            actual = bytes(opened.load())
    else:
        actual = np.load(BytesIO(result.out)).tobytes()
    assert actual == direct_result(*(item.replace(".zarr", ".npy") for item in call))


@pytest.mark.parametrize(("call", "rule"), [("gather", "fill"), ("scatter", "drop")])
def test_indices_out_of_bounds_are_counted_during_the_sweep(
    stores: Path, call: str, rule: str
) -> None:
    idx = zarr.open_array("idx.zarr")
    idx[31, 7, 1], idx[49, 999, 1] = 1024, 5000
    run = (*CALLS[call], *SMALL_MEMORY, "--out-of-bounds", rule, "-o", "out.npy", "--json")
    first = {"position": [31, 7], "component": 1, "axis": 1, "value": 1024, "size": 1024}
    for options in (("--dry-run",), ()):
        result = ndtool(*run, *options)
        assert (result.status, result.json["plan"]["way"]) == (0, "sweep")
        assert result.json["out_of_bounds"] == {"rule": rule, "count": 2, "first": first}
        assert "2 of 50000 index tuples are out of bounds" in result.json["warnings"][0]
    expected = direct_result(*CALLS[call], "--out-of-bounds", rule)
    assert np.load("out.npy").tobytes() == expected


@pytest.mark.parametrize(
    ("bad", "first"), [({7: 999, 9: -999}, "7] = 999"), ({0: -999}, "0] = -999")]
)
def test_bad_indices_that_every_batch_has_are_all_seen(
    workdir: Path, bad: dict[int, int], first: str
) -> None:
    store = zarr.create_array("d.zarr", shape=(55, 111, 78), chunks=(12, 43, 33), dtype="f4")
    store[...] = 1
    indices = np.arange(11)
    indices[list(bad)] = list(bad.values())
    save(i=indices)
    for axis in ("0", "1"):  # more tuples than a block, and batches that share them
        for options in ((), ("--dry-run",)):
            command = ("gather", "d.zarr", "i.npy", "--axis", axis, "-o", "o.zarr", *options)
            expected, result = ndtool(*command), ndtool(*command, *SMALL_MEMORY)
            if axis == "0":
                assert f"{len(bad)} of 11 elements\n  --> i.npy[{first}" in result.err
            assert (result.status, result.err) == (expected.status, expected.err)
            assert not Path("o.zarr").exists() or result.status == 0


def test_unselected_chunks_are_not_read(stores: Path) -> None:
    idx = zarr.open_array("idx.zarr")
    idx[...] = idx[...] % 128  # all within one chunk
    for path in Path("data.zarr/c").rglob("*"):
        if path.is_file() and path != Path("data.zarr/c/0/0"):
            path.write_bytes(b"no chunk")
    assert ndtool(*CALLS["gather"], *SMALL_MEMORY, "-o", "out.npy").status == 0
