"""Arrays of zarr and h5py: the location of an opened one, from which ndtool reads it itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from ndtool.arrays.source import Source
from ndtool.errors import InputError, UsageError, printable
from ndtool.formats import locators
from ndtool.formats.locators import Name
from ndtool.inmemory import nulls
from ndtool.rules.operators import LOWERED_INPUTS
from ndtool.rules.shapes import format_shape
from ndtool.storage import locations

_LOADED = "pass {0}[...], or dask.array.from_array({0}) to a function of ndtool.dask"


def name_of(role: str, value: Any) -> str | None:
    """Return the argument for an opened zarr.Array or h5py.Dataset; None for another object.

    Raises UsageError for one that cannot be read from a location: in memory, in an archive, with
    credentials of its own, or in a file that is open for writing.
    """
    locate = _locator(value)
    if locate is None:
        return None
    location, problem = locate(value)
    if location is None or locators.parse(location[0]) != location[1]:
        raise UsageError(
            f"{nulls.describe(role, value)} {problem}: expected an array in a local file or"
            " folder, opened for reading only, or at a URL",
            hint=_LOADED.format(role),
        )
    return location[0]


def require_same(arguments: Mapping[str, Any], sources: Mapping[str, Source]) -> None:
    """Raise InputError if an opened array among arguments has another shape than its location."""
    for role, value in arguments.items():
        source = sources.get(LOWERED_INPUTS.get(role, role))
        if _locator(value) is None or source is None or role == "write_indices":
            continue
        if value.shape != source.metadata.shape:
            raise InputError(
                f"{nulls.describe(role, value)} of shape {format_shape(value.shape)}, but"
                f" {printable(source.name)} has {format_shape(source.metadata.shape)}: open it"
                " again"
            )


Location = tuple[tuple[str, Name] | None, str]  # an argument and its parsed form, or the problem


def _zarr(value: Any) -> Location:
    """Return the location of a zarr.Array."""
    store, node = value.store_path.store, value.store_path.path.strip("/")
    kind = type(store).__name__
    if kind == "LocalStore":
        path = os.path.join(os.path.abspath(store.root), node).rstrip("/")
        return (path, Name(path, None)), "whose path is ambiguous"
    if kind != "FsspecStore":
        return None, f"in a {kind}"
    files = getattr(store.fs, "sync_fs", store.fs)  # beneath a wrapper
    if files.storage_options.keys() - {"asynchronous", "loop"}:
        return None, "in a store with options of its own"
    url = files.unstrip_protocol(store.path).rstrip("/")
    if (path := locations.local_path(url)) != url:
        path = os.path.join(path, node).rstrip("/")
        return (path, Name(path, None)), "whose path is ambiguous"
    return (f"{url}:{node}" if node else url, Name(url, node or None)), "whose URL is ambiguous"


def _hdf5(value: Any) -> Location:
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
        same = os.path.samestat(os.stat(path), handle)
    except OSError:
        same = False
    if not same:
        return None, "of a file that was moved or replaced"
    return (f"{path}:{value.name}", Name(path, value.name)), "whose path is ambiguous"


# By the type's name and library, neither of which is imported here.
_LOCATORS = {("Array", "zarr"): _zarr, ("Dataset", "h5py"): _hdf5}


def _locator(value: Any) -> Callable[[Any], Location] | None:
    return _LOCATORS.get((type(value).__name__, nulls.library(type(value))))
