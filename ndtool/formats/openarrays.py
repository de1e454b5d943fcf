"""The locations of zarr.Array and h5py.Dataset objects, from which ndtool reads their data."""

from __future__ import annotations

import os
from typing import Any

from ndtool.errors import UsageError
from ndtool.formats import locators
from ndtool.formats.locators import Locator
from ndtool.inmemory import nulls
from ndtool.storage import locations

_LOADING_HINT = "pass {0}[...], or dask.array.from_array({0}) to a function of ndtool.dask"


def argument_of(role: str, value: Any) -> str | None:
    """Return the argument that locates a zarr.Array or h5py.Dataset; None for another object.

    Raises UsageError for an array without such an argument: in memory, in an archive, in a store
    with storage options such as credentials, or in a file that is open for writing.
    """
    # By the name of the type and of its library, which need not be installed.
    locators_by_type = {("Array", "zarr"): _zarr_location, ("Dataset", "h5py"): _hdf5_location}
    locate = locators_by_type.get((type(value).__name__, nulls.library(type(value))))
    if locate is None:
        return None
    location, problem = locate(value)
    if location is None or locators.parse(location[0]) != location[1]:
        raise UsageError(
            f"{nulls.describe(role, value)} {problem}: expected an array in a local file or"
            " folder, opened for reading only, or at a URL",
            hint=_LOADING_HINT.format(role),
        )
    return location[0]


# The argument with its parsed form, or None; and the problem if the argument is not valid.
Location = tuple[tuple[str, Locator] | None, str]


def _zarr_location(value: Any) -> Location:
    """Return the location of a zarr.Array."""
    store, node = value.store_path.store, value.store_path.path.strip("/")
    kind = type(store).__name__
    if kind == "LocalStore":
        path = os.path.join(os.path.abspath(store.root), node).rstrip("/")
        return (path, Locator(path, None)), "whose path is ambiguous"
    if kind != "FsspecStore":
        return None, f"in a {kind}"
    filesystem = getattr(store.fs, "sync_fs", store.fs)  # of an AsyncFileSystemWrapper
    if filesystem.storage_options.keys() - {"asynchronous", "loop"}:
        return None, "in a store with options of its own"
    url = filesystem.unstrip_protocol(store.path).rstrip("/")
    if (path := locations.local_path(url)) != url:
        path = os.path.join(path, node).rstrip("/")
        return (path, Locator(path, None)), "whose path is ambiguous"
    return (f"{url}:{node}" if node else url, Locator(url, node or None)), "whose URL is ambiguous"


def _hdf5_location(value: Any) -> Location:
    """Return the location of an h5py.Dataset."""
    if not value:
        return None, "of a closed file"
    file = value.file
    if file.mode != "r":
        return None, "of a file that is open for writing"
    if file.driver != "sec2" or value.name is None:
        return None, "that has no path"
    path, handle = os.path.abspath(os.fsdecode(file.filename)), os.fstat(file.id.get_vfd_handle())
    try:
        is_same_file = os.path.samestat(os.stat(path), handle)
    except OSError:
        is_same_file = False
    if not is_same_file:
        return None, "of a file that was moved or replaced"
    return (f"{path}:{value.name}", Locator(path, value.name)), "whose path is ambiguous"
