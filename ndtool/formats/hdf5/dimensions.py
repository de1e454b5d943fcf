"""Dimensions of NetCDF-4 variables, which HDF5 files have as attributes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ndtool.errors import InputError, printable
from ndtool.formats.hdf5.library import library
from ndtool.rules.plans import Shape

_NO_VARIABLE = b"This is a netCDF dimension but not a netCDF variable"
_DIMENSION_ID = b"_Netcdf4Dimid"
_MAX_USERS = 1 << 16  # variables of a dimension
# NetCDF's fill values, by NumPy's type.
_FILL_VALUES = {
    "i1": -127, "i2": -32767, "i4": -2147483647, "i8": -9223372036854775806,
    "u1": 255, "u2": 65535, "u4": 4294967295, "u8": 18446744073709551614,
    "f4": 9.9692099683868690e36, "f8": 9.9692099683868690e36,
}  # fmt: skip


def is_only_dimension(dataset: Any) -> bool:
    """Whether a dataset is a dimension of NetCDF without a variable."""
    h5a = library().h5a
    if not h5a.exists(dataset, b"CLASS") or not h5a.exists(dataset, b"NAME"):
        return False
    name = library().Dataset(dataset).attrs["NAME"]
    return bytes(getattr(name, "encode", lambda: name)()).startswith(_NO_VARIABLE)


def netcdf_shape(dataset: Any, label: str) -> Shape:
    """Return the shape of a dataset, of a NetCDF variable with the lengths of its dimensions.

    A variable may have fewer values than an unlimited dimension is long; the others are fill
    values.
    """
    h5py = library()
    shape, largest = dataset.get_space().shape, dataset.get_space().get_simple_extent_dims(True)
    shape = tuple(map(int, shape))
    is_netcdf = h5py.h5a.exists(dataset, _DIMENSION_ID) or label.partition(":")[0].endswith(".nc")
    if h5py.h5s.UNLIMITED not in largest or not is_netcdf:
        return shape
    lengths = list(shape)
    for axis, limit in enumerate(largest):
        if limit == h5py.h5s.UNLIMITED:
            for scale in _scales(dataset, axis):
                lengths[axis] = max(lengths[axis], *_lengths(scale, label))
    return tuple(lengths)


def _scales(dataset: Any, axis: int) -> Iterator[Any]:
    """Yield the dataset of an axis' dimension."""
    h5py = library()
    if h5py.h5a.exists(dataset, b"DIMENSION_LIST"):
        scales = list[Any]()
        h5py.h5ds.iterate(dataset, axis, scales.append, 0)
        yield from scales
        return
    # A coordinate variable is the dimension of its first axis.
    if h5py.h5ds.is_scale(dataset) and axis == 0:
        yield dataset


def _lengths(scale: Any, label: str) -> Iterator[int]:
    """Yield the lengths of a dimension in the variables that have it."""
    h5py = library()
    if not is_only_dimension(scale):
        yield int(scale.shape[0])
    yield 0
    if not h5py.h5a.exists(scale, b"REFERENCE_LIST"):
        return
    users = h5py.Dataset(scale).attrs["REFERENCE_LIST"]
    if len(users) > _MAX_USERS:
        raise InputError(f"{printable(label)}: a dimension of more than {_MAX_USERS} variables")
    for reference, axis in users:
        variable = h5py.h5r.dereference(reference, scale)
        if 0 <= axis < len(variable.shape):
            yield int(variable.shape[axis])


def padding_value(dataset: Any, dtype: Any, stored_fill: Any) -> Any:
    """Return the value of elements that NetCDF adds.

    stored_fill: HDF5's fill value, None if there is none.
    """
    import numpy as np

    if library().h5a.exists(dataset, b"_FillValue"):
        attribute = np.asarray(library().Dataset(dataset).attrs["_FillValue"]).reshape(-1)
        if len(attribute) == 1 and attribute.dtype.kind == dtype.kind:
            return attribute.astype(dtype)[0]
    if stored_fill is not None:
        return stored_fill
    if dtype.str[1:] not in _FILL_VALUES:
        return np.zeros((), dtype)
    return np.array(_FILL_VALUES[dtype.str[1:]]).astype(dtype)
