"""ndtool.xarray: pointwise selection, equal to xarray's own, and lazy for dask arrays."""

import doctest
import importlib
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from later import later

import ndtool

xr, da = later("xarray"), later("dask.array")


def isel_points(*arguments: Any, **options: Any) -> Any:
    return ndtool.xarray.isel_points(*arguments, **options)


@pytest.fixture
def dataset() -> Any:
    """Return a dataset with variables of all kinds of dimensions, types and attributes."""
    rng = np.random.default_rng(3)
    variables = {
        "t": (("time", "y", "x"), rng.random((4, 5, 6)), {"units": "K"}),
        "m": (("x", "y"), rng.integers(0, 9, (6, 5)).astype(">i2")),
        "names": (("y", "x"), np.full((5, 6), "abc", object)),
        "steps": (("time",), np.arange(4)),
        "scale": ((), 5.0),
    }
    coordinates = {
        "x": ("x", np.arange(6) * 10.0, {"axis": "X"}),
        "time": np.array(["2020-01-01", "2020-01-02", "2020-01-03", "2020-01-04"], "M8[ns]"),
        "lon": (("y", "x"), rng.random((5, 6)), {"units": "degrees"}),
        "label": ("x", list("abcdef")),
    }
    dataset_with_coordinates = xr.Dataset(variables, coordinates, {"title": "a test"})
    dataset_with_coordinates["t"].encoding["scale_factor"] = 2.0
    return dataset_with_coordinates


def array(values: Any, dims: Any, **more: Any) -> Any:
    return xr.DataArray(values, dims=dims, **more)


CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "two dimensions": lambda: {"x": [1, 5, -1], "y": [0, 3, -4]},
    "one dimension": lambda: {"x": np.array([1, 5, 1], np.uint8)},
    "dimensions apart": lambda: {"time": [3, 3, 0], "x": [1, 5, -1]},
    "all dimensions": lambda: {"time": [3, 0], "x": [1, 5], "y": [0, 0]},
    "no points": lambda: {"x": np.zeros(0, int), "y": np.zeros(0, int)},
    "two-dimensional": lambda: {"x": array([[1, 2], [3, 0]], ("a", "b")), "y": array([1, 2], "b")},
    "orthogonal": lambda: {"x": array([1, 2], "x"), "y": array([0, 1, 2], "b")},
    "along a dimension": lambda: {
        "x": array([1, 2, 3, 0], "time"),
        "y": array([4, 3, 2, 1], "time"),
    },
    "coordinates": lambda: {
        "x": array([1, 2], "p", coords={"p": [7, 8], "name": ("p", ["q", "r"])})
    },
    "variable": lambda: {"x": xr.Variable("q", [1, 2])},
    "tuple": lambda: {"x": ("q", [1, 2])},
}


def plain(indexers: dict[str, Any]) -> dict[str, Any]:
    """Return indexers as xarray takes them."""
    return {
        name: xr.Variable(*variable) if isinstance(variable, tuple)
        else variable if hasattr(variable, "dims") else array(variable, "points")
        for name, variable in indexers.items()
    }  # fmt: skip


@pytest.mark.parametrize("chunks", [None, {"x": 4, "y": 2, "time": 3}, {"x": 1}])
@pytest.mark.parametrize("name", CASES)
def test_equals_isel(dataset: Any, name: str, chunks: Any) -> None:
    chunked = dataset if chunks is None else dataset.chunk(chunks)
    indexers = CASES[name]()
    expected = dataset.isel(plain(indexers))
    points = isel_points(chunked, indexers)
    assert list(points.data_vars) == list(expected.data_vars)
    for variable in chunked.variables:
        assert points[variable].encoding == expected[variable].encoding
        assert (points[variable].chunks is None) == (chunked[variable].chunks is None)
    xr.testing.assert_identical(points.compute(), expected)
    for variable in ("t", "steps", "lon"):
        selection = {
            key: indices for key, indices in indexers.items() if key in chunked[variable].dims
        }
        selected = isel_points(chunked[variable], **selection)
        xr.testing.assert_identical(selected.compute(), dataset[variable].isel(plain(selection)))


INVENTED = ("size of x", "array of isel_points", "points of x", "0", "1", "2", "x", "y")


@pytest.mark.parametrize("chunks", [None, {"x": 2}])
def test_any_name_of_a_variable_is_preserved(chunks: Any) -> None:
    variables = {name: ("x", [4, 5, 6]) for name in INVENTED if name not in "xy"}
    dataset = xr.Dataset(variables | {"3": (("y", "x"), np.arange(6).reshape(2, 3))})
    x = array([0, 2], "p", coords={"p": [7, 8], "4": ("p", [1, 2]), "5": 9})
    coordinates = {name: ("x", [1, 2, 3]) for name in INVENTED if name != "y"}
    named = array(np.arange(6).reshape(2, 3), ("y", "x"), name="0", coords=coordinates)
    for original in (dataset, dataset.set_coords(["0", "size of x"]), named):
        chunked = original if chunks is None else original.chunk(chunks)
        for indexers in ({"x": x}, {"x": x, "y": array([1, 0], "p")}):
            expected = original.isel(indexers)
            xr.testing.assert_identical(isel_points(chunked, indexers).compute(), expected)


def test_lazy_indexers(dataset: Any) -> None:
    chunked = dataset.drop_vars("names").chunk({"x": 4})
    expected = chunked.isel(x=array([1, 5, -1], "points"), y=array([0, 3, -4], "points"))
    x, y = (
        da.from_array(np.array([1, 5, -1]), 2),
        array(da.from_array(np.array([0, 3, -4])), "points"),
    )
    points = isel_points(chunked, x=x, y=y)
    assert points["t"].chunks is not None
    assert points["lon"].chunks is not None
    xr.testing.assert_identical(points.compute(), expected.compute())
    bad = isel_points(chunked["t"], x=x + 3, y=y)
    with pytest.raises(ndtool.BoundsError):
        bad.compute()


def test_only_selected_chunks_are_read() -> None:
    read_chunks: Counter[Any] = Counter()

    def count(block: np.ndarray, block_info: Any = None) -> np.ndarray:
        read_chunks[block_info[0]["chunk-location"]] += 1
        return block

    lazy = da.zeros((50, 60), chunks=10).map_blocks(count, dtype=float, meta=np.empty((0, 0)))
    points = isel_points(array(lazy, ("y", "x")), y=[0, 49, 0], x=[5, 55, 5])
    assert not read_chunks
    points.compute()
    assert read_chunks == {(0, 0): 1, (4, 5): 1}


def test_dims(dataset: Any) -> None:
    points = isel_points(dataset, x=[1, 2], dims="p")
    assert points["t"].dims == ("time", "y", "p")
    points = isel_points(dataset["t"], {"x": [[1, 2]], "y": [[0, 0]]}, dims=("p", "q"))
    assert points.dims == ("time", "p", "q")


def test_refusals_of_indexers(dataset: Any) -> None:
    refused = [
        (lambda: isel_points(dataset, x=[1, 6]), ndtool.BoundsError, r"x\[1\] = 6"),
        (lambda: isel_points(dataset, x=[-7]), ndtool.BoundsError, r"dimension x has size 6: valid"),
        (lambda: isel_points(dataset, x=[2**70]), ndtool.BoundsError, ""),
        (lambda: isel_points(dataset, z=[1]), ndtool.UsageError, "'z' is not a dimension: exp"),
        (lambda: isel_points(dataset, x=[True]), ndtool.DtypeError, "np.nonzero gives indices"),
        (lambda: isel_points(dataset, x=[0.5]), ndtool.DtypeError, "expected integers"),
        (lambda: isel_points(dataset, x=1), ndtool.RuleError, "has rank 0: dims has 1 name"),
        (lambda: isel_points(dataset, x=[[1]]), ndtool.RuleError, "has rank 2"),
        (lambda: isel_points(dataset, x=[1, 2], y=[1, 2, 3]), ndtool.RuleError, "points"),
        (lambda: isel_points(np.zeros(3), x=[1]), ndtool.DtypeError, "not a ndarray"),
    ]  # fmt: skip
    for call, kind, message in refused:
        with pytest.raises(kind, match=message or None):
            call()


def test_examples() -> None:
    assert doctest.testmod(importlib.import_module("ndtool.xarray")).failed == 0


@pytest.mark.parametrize("unsigned", ["u8", "u4", ">u8"])
def test_indexers_of_signed_and_unsigned_types(unsigned: str) -> None:
    field = xr.DataArray(da.arange(6, chunks=2).reshape(2, 3), dims=("y", "x"))
    rows, columns = np.array([1, 0], unsigned), np.array([2, -1])
    assert isel_points(field, y=rows, x=columns).values.tolist() == [5, 2]
    lazy = isel_points(field, y=da.from_array(np.array([0, 2**64 - 1], "u8")), x=columns)
    with pytest.raises(ndtool.BoundsError):
        lazy.compute()
