"""Arrays of zarr and h5py in ndtool.files: read from their locations, or refused."""

import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from strategies import bits_equal

import ndtool
from ndtool import files

zarr = pytest.importorskip("zarr", minversion="3.1", exc_type=ImportError)
h5py = pytest.importorskip("h5py", exc_type=ImportError)

DATA = np.arange(30.0).reshape(10, 3)
INDICES = np.array([[9], [0], [-3]])
UPDATES = np.ones((3, 3))
ARRAYS = {"data": DATA, "indices": INDICES, "updates": UPDATES}


def create_zarr(folder: Path, version: int) -> dict[str, Any]:
    group = zarr.open_group(folder / "x:y.store", mode="w", zarr_format=version)
    arrays = {}
    for name, array in ARRAYS.items():
        arrays[name] = group.create_array(
            f"a/{name}", shape=array.shape, chunks=(2, 1), dtype=array.dtype
        )
        arrays[name][...] = array
    return arrays


def create_hdf5(folder: Path, **options: Any) -> dict[str, Any]:
    with h5py.File(folder / "x.h5", "w") as file:
        for name, array in ARRAYS.items():
            file.create_dataset(f"a/{name}", data=array, **options)
    file = h5py.File(folder / "x.h5")
    return {name: file[f"a/{name}"] for name in ARRAYS}


KINDS = {
    "zarr 2": lambda folder: create_zarr(folder, 2),
    "zarr 3": lambda folder: create_zarr(folder, 3),
    "hdf5": create_hdf5,
    "hdf5 in chunks": lambda folder: create_hdf5(folder, chunks=(2, 1), compression="gzip"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_all_inputs(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrays = KINDS[kind](tmp_path)
    data, indices, updates = arrays.values()
    # ndtool reads the files itself: neither library loads an element
    monkeypatch.setattr(type(data), "__getitem__", None)
    assert bits_equal(files.gather_nd(data, indices).array, DATA[INDICES[:, 0]])
    expected = ndtool.scatter_nd(DATA, INDICES, UPDATES, "add")
    assert bits_equal(files.scatter_nd(data, indices, updates, "add").array, expected)
    out = str(tmp_path / "out.npy")
    assert files.scatter_nd(data, INDICES, updates, "add", out=out).output == out
    assert bits_equal(np.load(out), expected)
    with pytest.raises(ndtool.BoundsError, match=r"valid -10\.\.9"):
        files.gather(data, [10])
    with pytest.raises(ndtool.DtypeError, match=r"to a function of ndtool\.files$"):
        ndtool.gather(data, [0])
    if kind.startswith("hdf5"):
        data.file.close()


def test_zarr_by_fsspec(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    create_zarr(tmp_path, 3)
    group = zarr.open_group(f"file://{tmp_path}/x:y.store")
    assert bits_equal(files.gather(group["a/data"], [1]).array, DATA[[1]])
    remote = zarr.create_array("memory://opened/x.zarr", name="a", data=DATA, overwrite=True)
    assert bits_equal(files.gather(remote, [1]).array, DATA[[1]])


def refusal(array: Any) -> str:
    with pytest.raises(ndtool.UsageError) as excinfo:
        files.gather(array, [0])
    return str(excinfo.value)


def test_arrays_without_a_location(tmp_path: Path) -> None:
    hint = "pass data[...], or dask.array.from_array(data) to a function of ndtool.dask"
    assert hint in refusal(zarr.create_array({}, data=DATA))
    with zarr.storage.ZipStore(tmp_path / "x.zip", mode="w") as store:
        assert "in a ZipStore" in refusal(zarr.create_array(store, data=DATA))
    moved = create_hdf5(tmp_path)["data"]
    os.rename(tmp_path / "x.h5", tmp_path / "y.h5")
    assert "moved or replaced" in refusal(moved)
    create_hdf5(tmp_path)["data"].file.close()
    assert "moved or replaced" in refusal(moved)
    with h5py.File(tmp_path / "y.h5") as file:
        dataset = file["a/data"]
    assert "of a closed file" in refusal(dataset)
    with h5py.File(io.BytesIO((tmp_path / "y.h5").read_bytes())) as file:
        assert "that has no path" in refusal(file["a/data"])
    moved.file.close()


def test_unflushed_data_are_not_missed(tmp_path: Path) -> None:
    create_hdf5(tmp_path)["data"].file.close()
    with h5py.File(tmp_path / "x.h5", "r+") as file:
        file["a/data"][0] = 99
        assert "open for writing" in refusal(file["a/data"])
