"""Pointwise selection from xarray's datasets, lazily for variables in dask arrays.

>>> import xarray as xr
>>> from ndtool.xarray import isel_points
>>> array = xr.DataArray([[0, 1], [2, 3]], dims=("y", "x"), coords={"x": [10, 20]})
>>> isel_points(array, x=[1, 0], y=[0, 1]).values
array([1, 2])
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from itertools import chain, count
from typing import Any, TypeVar

import numpy as np

try:
    import dask.array as da
    import xarray as xr
except ImportError as error:
    raise ImportError(
        "ndtool.xarray needs xarray and dask: pip install 'ndtool[xarray]'"
    ) from error

from ndtool.dask import gather_nd
from ndtool.errors import BoundsError, DtypeError, RuleError, UsageError, format_value, printable
from ndtool.inmemory.arguments import index_array

T = TypeVar("T", xr.Dataset, xr.DataArray)
Dims = str | tuple[Hashable, ...]


def isel_points(
    obj: T, indexers: Mapping[Any, Any] | None = None, dims: Dims = "points", **more: Any
) -> T:
    """Select points by their indices along some dimensions, with attributes and coordinates.

    obj: a Dataset or DataArray. indexers, more: integers for each dimension: sequences, NumPy or
    dask arrays whose dimensions are `dims`, or DataArrays and Variables with dimensions of their
    own; they are broadcast. Variables without indexed dimensions are unchanged.

    The result equals obj.isel(x=DataArray(x, dims=dims), ...). Variables in dask arrays and
    variables with a dask array as indexer are selected lazily, by ndtool.dask.gather_nd.
    Raises BoundsError, for dask indexers when the result is computed; DtypeError, RuleError or
    UsageError for invalid indexers.

    >>> import dask.array as da, xarray as xr
    >>> from ndtool.xarray import isel_points
    >>> field = xr.DataArray(da.arange(6, chunks=2).reshape(2, 3), dims=("y", "x"))
    >>> isel_points(field, y=[1, 0], x=[2, -1]).values
    array([5, 2])
    """
    if isinstance(obj, xr.DataArray):
        given = [*(indexers or {}).values(), *more.values()]
        name = _unused_name(
            obj.coords, obj.dims, *(getattr(value, "coords", ()) for value in given)
        )
        points = isel_points(obj.to_dataset(name=name), indexers, dims, **more)
        return points[name].rename(obj.name)
    if not isinstance(obj, xr.Dataset):
        raise DtypeError(f"isel_points takes a Dataset or a DataArray, not a {type(obj).__name__}")
    dim_names = (dims,) if isinstance(dims, str) else tuple(dims)
    all_indexers = {**(indexers or {}), **more}
    for name in all_indexers:
        if name not in obj.dims:
            dimensions = ", ".join(map(str, obj.dims))
            raise UsageError(
                f"{format_value(name)} is not a dimension: expected some of {dimensions}"
            )
    validated = {
        name: _indexer(name, value, dim_names, obj.sizes[name])
        for name, value in all_indexers.items()
    }
    _require_equal(obj, validated)
    lazy_variables = {
        name: _select_points(variable, validated)
        for name, variable in obj.variables.items()
        if _is_lazy(variable, validated)
    }
    return _merge(obj, validated, lazy_variables)


def _indexer(name: Hashable, value: Any, dims: tuple[Hashable, ...], size: int) -> Any:
    """Return an indexer as a DataArray of integers, validated unless it is lazy."""
    if isinstance(value, tuple) and value and isinstance(value[0], str | tuple):
        value = xr.Variable(*value)
    if isinstance(value, xr.Variable):
        value = xr.DataArray(value)
    if not isinstance(value, xr.DataArray):
        value = value if isinstance(value, da.Array) else index_array(value)
        if value.ndim != len(dims):
            raise RuleError(
                f"the indexer of {printable(str(name))} has rank {value.ndim}: dims has {len(dims)}"
                f" names, {', '.join(map(str, dims))}"
            )
        value = xr.DataArray(value, dims=dims)
    if value.dtype.kind not in "iu":
        raise DtypeError(
            f"the indexer of {printable(str(name))} has dtype {value.dtype}: expected integers",
            hint="it looks like a mask: np.nonzero gives indices" * (value.dtype.kind == "b"),
        )
    if value.chunks is None:
        _require_in_bounds(name, value.values, size)
    return value


def _require_equal(obj: xr.Dataset, indexers: dict[Hashable, Any]) -> None:
    """Raise RuleError if indexers, or the dataset, have different sizes of a dimension."""
    sizes = {dim: size for dim, size in obj.sizes.items() if dim not in indexers}
    for name, indexer in indexers.items():
        for dim, size in indexer.sizes.items():
            if sizes.setdefault(dim, size) != size:
                raise RuleError(
                    f"the indexer of {printable(str(name))} has {size} elements along"
                    f" {printable(str(dim))}: expected {sizes[dim]}, as in the other arrays"
                )


def _require_in_bounds(name: Hashable, values: np.ndarray[Any, Any], size: int) -> None:
    """Raise BoundsError for an index out of bounds along a dimension."""
    is_out_of_bounds = (values >= size) | (values < -size)
    if is_out_of_bounds.any():
        first_index = np.unravel_index(int(np.argmax(is_out_of_bounds)), is_out_of_bounds.shape)
        position = tuple(map(int, first_index))
        error = BoundsError(
            position=position, value=int(values[first_index]), size=size,
            count=int(is_out_of_bounds.sum()), total=values.size,
        )  # fmt: skip
        error.name(printable(str(name)), "data")
        valid_range = error.places[1].partition(": ")[2]
        error.places = (error.places[0], f"dimension {name} has size {size}: {valid_range}")
        raise error


def _is_lazy(variable: xr.Variable, indexers: dict[Hashable, Any]) -> bool:
    """Whether points of a variable are selected lazily, as it or an indexer is a dask array."""
    variable_indexers = [indexers[dim] for dim in variable.dims if dim in indexers]
    if any(indexer.chunks is not None for indexer in variable_indexers):
        return True
    lazy = variable.chunks is not None and isinstance(variable.data, da.Array)
    return bool(variable_indexers) and lazy and not variable.dtype.hasobject


def _select_points(variable: xr.Variable, indexers: dict[Hashable, Any]) -> xr.Variable:
    """Select points of a variable, lazily."""
    indexer_variables = {dim: indexers[dim].variable for dim in variable.dims if dim in indexers}
    points: dict[Hashable, int] = {}
    for indexer in indexer_variables.values():
        points |= indexer.sizes
    for dim in variable.dims:
        if dim in points and dim not in indexer_variables:  # a dimension of points and variable
            indexer_variables[dim] = xr.Variable((dim,), np.arange(variable.sizes[dim]))
            points[dim] = variable.sizes[dim]
    indexed_dims = [dim for dim in variable.dims if dim in indexer_variables]
    unindexed_dims = [dim for dim in variable.dims if dim not in indexer_variables]
    arrays = [
        indexer_variables[dim].set_dims(points).transpose(*points).data for dim in indexed_dims
    ]
    if any(np.result_type(array, arrays[0]).kind == "f" for array in arrays):
        arrays = [_as_int64(array) for array in arrays]  # of uint64 and a signed type
    lazy = any(isinstance(array, da.Array) for array in arrays)
    indices = da.stack(arrays, -1) if lazy else np.stack(arrays, -1)
    gathered = gather_nd(variable.transpose(*indexed_dims, *unindexed_dims).data, indices)
    result = xr.Variable((*points, *unindexed_dims), gathered, variable.attrs, variable.encoding)
    dims = dict.fromkeys(
        selected_dim
        for dim in variable.dims
        for selected_dim in (indexer_variables[dim].dims if dim in indexer_variables else (dim,))
    )
    return result.transpose(*dims)


def _as_int64(indices: Any) -> Any:
    """Return indices as int64; larger ones, which are always out of bounds, are clamped."""
    if indices.dtype.kind == "u" and indices.dtype.itemsize == 8:
        indices = np.minimum(indices, np.uint64(np.iinfo(np.int64).max))
    return indices.astype(np.int64)


def _unused_name(*collections: Iterable[Hashable]) -> str:
    """Return a name that is in none of the collections."""
    used_names = set(chain(*collections))
    return next(name for name in map(str, count()) if name not in used_names)


def _merge(
    obj: xr.Dataset, indexers: dict[Hashable, Any], lazy_variables: dict[Hashable, xr.Variable]
) -> xr.Dataset:
    """Select the points of eager variables by xarray, and add the lazily selected variables."""
    sizes = {dim: np.broadcast_to(np.int8(0), obj.sizes[dim]) for dim in indexers}
    shapes: dict[Hashable, Any] = {}
    used_names = (obj.variables, obj.dims, *(indexer.coords for indexer in indexers.values()))
    for dim, zeros in sizes.items():
        shapes[_unused_name(*used_names, shapes)] = (dim, zeros)
    eager_indexers = {
        dim: indexer
        if indexer.chunks is None
        else indexer.copy(data=np.broadcast_to(np.int8(0), indexer.shape))
        for dim, indexer in indexers.items()
    }
    eager_result = (
        obj.drop_vars(list(lazy_variables))
        .assign(shapes)
        .isel(eager_indexers)
        .drop_vars(list(shapes))
    )
    coords = {name: variable for name, variable in lazy_variables.items() if name in obj.coords}
    eager_result = eager_result.assign_coords(coords)
    data_vars = {
        name: lazy_variables.get(name, eager_result.variables.get(name)) for name in obj.data_vars
    }
    merged = xr.Dataset(data_vars, eager_result.coords, eager_result.attrs)
    merged.encoding = eager_result.encoding
    return merged
