"""Dimensions of NetCDF-4 variables, which HDF5 files have as attributes."""

from __future__ import annotations

from typing import Any

from ndtool.formats.hdf5 import hierarchy
from ndtool.formats.hdf5.library import library
from ndtool.rules.plans import Shape

_DIMENSION_ID, _COORDINATES = b"_Netcdf4Dimid", b"_Netcdf4Coordinates"
# NetCDF's fill values, by NumPy's type.
_FILL_VALUES = {
    "i1": -127, "i2": -32767, "i4": -2147483647, "i8": -9223372036854775806,
    "u1": 255, "u2": 65535, "u4": 4294967295, "u8": 18446744073709551614,
    "f4": 9.9692099683868690e36, "f8": 9.9692099683868690e36,
}  # fmt: skip


class Lengths:
    """The lengths of the dimensions of a file, from the shapes of all of its variables."""

    def __init__(self, file: Any) -> None:
        self._file = file
        self._lengths: dict[int, int] | None = None

    def shape(self, dataset: Any, label: str) -> Shape:
        """Return the shape of a dataset, of a NetCDF variable with the lengths of its dimensions.

        A variable may have fewer values than an unlimited dimension is long; the others are fill
        values.
        """
        h5py = library()
        shape = tuple(map(int, dataset.shape))
        is_netcdf = label.partition(":")[0].endswith(".nc") or any(
            h5py.h5a.exists(dataset, name) for name in (_DIMENSION_ID, _COORDINATES)
        )
        if not is_netcdf or not _is_extensible(dataset):
            return shape
        largest = dataset.get_space().get_simple_extent_dims(True)
        if self._lengths is None:
            self._lengths = self._read()
        lengths, keys = self._lengths, _dimensions(dataset) or [-1] * len(shape)
        return tuple(
            max(size, lengths.get(key, 0)) if limit == h5py.h5s.UNLIMITED else size
            for size, limit, key in zip(shape, largest, keys, strict=True)
        )

    def _read(self) -> dict[int, int]:
        lengths = dict[int, int]()
        for found in hierarchy.datasets(self._file):
            if found.node is not None and _is_extensible(found.node):
                for key, size in zip(_dimensions(found.node), found.node.shape, strict=False):
                    lengths[key] = max(lengths.get(key, 0), int(size))
        return lengths


def _is_extensible(dataset: Any) -> bool:
    space = dataset.get_space()
    is_simple = space.get_simple_extent_type() == library().h5s.SIMPLE
    return is_simple and library().h5s.UNLIMITED in space.get_simple_extent_dims(True)


def _dimensions(dataset: Any) -> list[int]:
    """Return the numbers of a variable's dimensions, [] if it has none."""
    h5py, rank = library(), len(dataset.shape)
    attributes = h5py.Dataset(dataset).attrs
    keys = list[int]()
    if h5py.h5a.exists(dataset, _COORDINATES):
        keys = list(map(int, attributes[_COORDINATES.decode()]))
    elif h5py.h5a.exists(dataset, b"DIMENSION_LIST"):  # of older versions of NetCDF
        for references in attributes["DIMENSION_LIST"][:rank]:
            scales = [h5py.h5r.dereference(item, dataset) for item in references[:1]]
            keys += [_number(scale) for scale in scales] or [-1]
    elif h5py.h5ds.is_scale(dataset) and rank == 1:  # a coordinate variable
        keys = [_number(dataset)]
    return keys if len(keys) == rank else []


def _number(scale: Any) -> int:
    """Return the number of a dimension, or a number that no other has."""
    h5py = library()
    if h5py.h5a.exists(scale, _DIMENSION_ID):
        return int(h5py.Dataset(scale).attrs[_DIMENSION_ID.decode()])
    return (1 << 32) + int(h5py.h5o.get_info(scale).addr)


def padding_value(dataset: Any, dtype: Any, stored_fill: Any) -> Any:
    """Return the value of elements that NetCDF adds. stored_fill: HDF5's fill value."""
    import numpy as np

    if library().h5a.exists(dataset, b"_FillValue"):
        attribute = np.asarray(library().Dataset(dataset).attrs["_FillValue"]).reshape(-1)
        if len(attribute) == 1 and attribute.dtype.kind == dtype.kind:
            return attribute.astype(dtype)[0]
    if stored_fill.any() or dtype.str[1:] not in _FILL_VALUES:
        return stored_fill
    return np.array(_FILL_VALUES[dtype.str[1:]]).astype(dtype)
