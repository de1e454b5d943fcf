"""Arrays of Zarr groups with consolidated metadata, as xarray writes them: added and replaced."""

import errno
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from later import later
from outputs import list_preserved_members
from strategies import bits_equal
from test_zarr import load, put
from test_zarr_outputs import DATA, all_files, write

from ndtool.errors import NdtoolError, OutputError
from ndtool.formats.zarr import hierarchy
from ndtool.publish import newfile, newfolder

zarr = later("zarr")
pytestmark = [
    pytest.mark.usefixtures("workdir"),
    pytest.mark.parametrize("version", [2, 3]),
    pytest.mark.filterwarnings("ignore::zarr.errors.ZarrUserWarning"),
]


def consolidated(version: int, path: str = "x.zarr") -> Path:
    """Consolidate the metadata of a group; return the file that has them."""
    zarr.consolidate_metadata(path, zarr_format=version)
    return Path(path) / ("zarr.json" if version == 3 else ".zmetadata")


def dataset(version: int) -> Any:
    """Return a store of xarray's, opened."""
    xarray = pytest.importorskip("xarray")
    rain = ("time", "x"), np.arange(12, dtype="f4").reshape(4, 3) - 5, {"units": "mm"}
    original = xarray.Dataset(
        {"rain": rain, "n": ("x", [0, 1, 2])}, {"time": np.arange(4) * 10}, {"title": "a"}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        original.to_zarr("x.zarr", zarr_format=version)
    return original


def reopened() -> Any:
    import xarray

    return xarray.open_zarr("x.zarr", consolidated=True).load()


def test_xarray_reads_replaced_and_added_arrays(version: int) -> None:
    original = dataset(version)
    values = original.rain.values * 0
    assert write("x.zarr:rain", values) == ("n", "time")
    assert reopened().equals(original.assign(rain=original.rain.copy(data=values)))
    assert reopened().rain.attrs == {"units": "mm"}
    write("x.zarr:rain", values.astype("i2"))
    assert reopened().rain.dtype == np.int16
    assert (reopened().rain.dims, reopened().rain.attrs) == (("time", "x"), {"units": "mm"})
    write("x.zarr:other", values[:2])
    found = reopened()
    assert found.drop_vars(
        ["rain", "other", "other_dim_0_2", "other_dim_1_3"], errors="ignore"
    ).equals(original.drop_vars("rain"))
    assert found.other.dims == ("other_dim_0_2", "other_dim_1_3")
    assert bits_equal(found.other.values, values[:2])
    for shape in ((2, 2), (), (7,)):  # its dimensions are its own, and may change
        write("x.zarr:other", np.zeros(shape, "f4"))
        assert (reopened().other.values == np.zeros(shape)).all()
        assert len(reopened().other.dims) == len(shape)
    write("x.zarr:n", np.arange(9))
    assert reopened().n.dims == ("n_dim_0_9",)
    assert reopened().title == "a"


def test_names_of_dimensions_that_others_have_are_not_reused(version: int) -> None:
    original = dataset(version)
    write("x.zarr:other", DATA)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        derived = reopened().other.rename("derived").drop_encoding()
        derived.to_zarr("x.zarr", mode="a", zarr_format=version)
    write("x.zarr:other", DATA[:5, :3])
    assert reopened().derived.dims == ("other_dim_0_24", "other_dim_1_10")
    assert bits_equal(reopened().other.values, DATA[:5, :3])
    assert reopened().rain.equals(original.rain)


def test_elements_are_not_missing_ones(version: int) -> None:
    """xarray takes Zarr 2's fill value for a mark of missing elements."""
    dataset(version)
    write("x.zarr:zeros", np.zeros(5, "f4"))
    assert (reopened().zeros.values == 0).all()


@pytest.mark.parametrize("nested", [False, True])
def test_attributes_of_other_arrays_keep_their_values(version: int, nested: bool) -> None:
    values = [0.1, 1e300, 1 << 70, float("inf"), "1e999", None]
    put("x.zarr:a", DATA, zarr_format=version, attributes={"values": values})
    consolidated(version)
    before = all_files()
    name = "g/h/b" if nested else "b"
    assert write(f"x.zarr:{name}", DATA) == ("a",)
    root = "zarr.json" if version == 3 else ".zmetadata"
    assert {key for key in before if all_files()[key] != before[key]} == {f"x.zarr/{root}"}
    group = zarr.open_consolidated("x.zarr", zarr_format=version)
    assert group["a"].attrs["values"] == values
    assert sorted(group.array_keys()) == (["a"] if nested else ["a", "b"])
    assert (group[name][...] == DATA).all()


def test_all_members_are_found_whatever_the_order_of_writes(version: int) -> None:
    put("x.zarr:g/a", DATA, zarr_format=version)
    consolidated(version)
    names = ["g/b", "h/k/c", "g-h/a", "g/a", "h/d", "e", "g/b"]
    for count, name in enumerate(names, 1):
        write(f"x.zarr:{name}", DATA[:count])
    group = zarr.open_consolidated("x.zarr", zarr_format=version)
    found = {name: item for name, item in group.members(max_depth=None) if hasattr(item, "shape")}
    assert {name: item.shape for name, item in found.items()} == {
        name: (count, 10) for count, name in enumerate(names, 1)
    }


def test_an_array_with_the_same_metadata_changes_no_other_file(version: int) -> None:
    put("x.zarr:a", DATA, zarr_format=version)
    consolidated(version)
    write("x.zarr:a", DATA)
    before = all_files()
    write("x.zarr:a", DATA + 1)
    changed = {key for key, body in all_files().items() if before[key] != body}
    assert changed
    assert all("/c/" in key or (version == 2 and "/a/0" in key) or "/a/1" in key for key in changed)
    assert (zarr.open_consolidated("x.zarr", zarr_format=version)["a"][...] == DATA + 1).all()


@pytest.mark.parametrize("damage", ["{", "1" * 5000, "list"])
def test_damaged_consolidated_metadata_are_not_replaced(version: int, damage: str) -> None:
    put("x.zarr:a", DATA, zarr_format=version)
    file = consolidated(version)
    text = file.read_text()
    changed = text.replace('"metadata": {', f'"metadata": {{"x": {damage},', 1)
    if damage == "list":
        document = json.loads(text)
        (document["consolidated_metadata"] if version == 3 else document)["metadata"] = []
        changed = json.dumps(document)
    file.write_text(changed)
    before = all_files()
    with pytest.raises(OutputError, match=r"its consolidated metadata are damaged|is not a group"):
        write("x.zarr:b", DATA)
    assert all_files() == before


@pytest.mark.parametrize("name", ["a", "b"])
def test_attributes_that_are_nested_too_deeply(version: int, name: str) -> None:
    """Of the array that is replaced, or in consolidated metadata: they are kept, or an error."""
    put("x.zarr:a", DATA, zarr_format=version, attributes={"deep": "HERE"})
    file = Path("x.zarr/a", "zarr.json" if version == 3 else ".zattrs")
    if name == "b":
        file = consolidated(version)
    text = file.read_text()
    for depth in (960, 985, 995, 10_000):  # some of which are parsed, and not written again
        file.write_text(text.replace('"HERE"', "[" * depth + "]" * depth))
        before = all_files()
        try:
            write(f"x.zarr:{name}", DATA)
        except OutputError:
            assert all_files() == before


def test_metadata_are_not_made_longer_than_they_are_read(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("x.zarr:g/a", DATA, zarr_format=version)
    root = consolidated(version)
    size, values = root.stat().st_size, hierarchy._count_values(root.read_bytes())
    before = all_files()
    for name, limit in (("MAX_METADATA_SIZE", size + 100), ("_MAX_VALUES", values + 4)):
        with monkeypatch.context() as patch:
            patch.setattr(hierarchy, name, limit)
            for attempt in (write, list_preserved_members):
                with pytest.raises(OutputError, match=r"^x.zarr: its consolidated metadata would"):
                    attempt("x.zarr:g/b", DATA)
        assert all_files() == before
    write("x.zarr:g/b", DATA)
    assert bits_equal(load("x.zarr:g/b"), DATA)


def test_sync_waits_for_all_groups_whose_metadata_change(
    version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("x.zarr:g/h/a", DATA, zarr_format=version)
    for group in ("x.zarr", "x.zarr/g"):
        consolidated(version, group)
    fsync, synced = os.fsync, []

    def spy(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        synced.append(os.path.relpath(path) if os.path.isdir(path) else "a file")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", spy)
    write("x.zarr:g/h/b", DATA, sync=True)
    last = synced[len(synced) - synced[::-1].index("a file") :]
    assert sorted(last) == ["x.zarr", "x.zarr/g", "x.zarr/g/h"]


def entries(root: str) -> dict[str, Any]:
    """Return the metadata in a group's consolidated metadata, by the file that they describe."""
    for name in ("zarr.json", ".zmetadata"):
        if os.path.exists(path := os.path.join(root, name)):
            document = json.loads(Path(path).read_text())
            if name == ".zmetadata":
                return {os.path.join(root, key): body for key, body in document["metadata"].items()}
            nodes = document["consolidated_metadata"]["metadata"]
            return {os.path.join(root, key, name): body for key, body in nodes.items()}
    raise AssertionError("not consolidated")


@pytest.mark.parametrize("name", ["a", "b"])
def test_consolidated_metadata_never_describe_another_array(
    version: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever moment a run is killed at."""
    put("x.zarr:a", DATA, zarr_format=version)
    consolidated(version)
    rename, states = os.replace, 0

    def check(*arguments: Any, **options: Any) -> Any:
        nonlocal states
        result = rename(*arguments, **options)
        for path, document in entries("x.zarr").items():
            assert json.loads(Path(path).read_text()) == document
        states += 1
        return result

    with monkeypatch.context() as patch:
        for module in (newfile, newfolder):
            patch.setattr(module.os, "replace", check)
        write(f"x.zarr:{name}", DATA[:7].astype("f8"))
    assert states >= 1
    assert any(f"/{name}/" in path for path in entries("x.zarr"))


@pytest.mark.parametrize("name", ["a", "b"])
def test_a_rename_that_fails_leaves_the_metadata(
    version: int, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("x.zarr:a", DATA, zarr_format=version)
    consolidated(version)
    before = all_files()

    def fail(*_: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(newfolder.NewFolder, "publish", fail)
    with pytest.raises(NdtoolError, match="Input/output error"):
        write(f"x.zarr:{name}", DATA[:7].astype("f8"))
    assert all_files() == before
