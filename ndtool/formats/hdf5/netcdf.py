"""NetCDF-4 files: HDF5 files that are read, not written."""

from __future__ import annotations

from typing import NoReturn

from ndtool.arrays.source import ArrayMetadata, MemberInfo, Source
from ndtool.errors import InputError, printable
from ndtool.formats import hdf5
from ndtool.publish.targets import Target, unsupported_error
from ndtool.rules.mistakes import quote
from ndtool.storage.local import File

recognises = hdf5.recognises
array_names = hdf5.array_names


def entries(storage: File, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all variables, or of one."""
    _require_netcdf4(storage, path)
    return hdf5.entries(storage, path, member)


def open_source(storage: File, name: str, path: str, member: str | None) -> Source:
    """Open a variable, the only one if none is named."""
    _require_netcdf4(storage, path)
    return hdf5.open_source(storage, name, path, member)


def create(target: Target, metadata: ArrayMetadata) -> NoReturn:
    """Raise UsageError: NetCDF files need named dimensions, which arrays do not have."""
    raise unsupported_error(target.path, ".nc")


def _require_netcdf4(storage: File, path: str) -> None:
    if storage.peek(0, 3) == b"CDF":
        raise InputError(
            f"{printable(path)}: NetCDF-3: expected NetCDF-4",
            hint=f"Then: nccopy -k nc4 {quote(path)} {quote(path.removesuffix('.nc') + '-nc4.nc')}",
        )
