"""The Zarr target of an output: its path, and whether it may be written."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import NamedTuple

from ndtool.errors import InputError, OutputError, UsageError, printable
from ndtool.formats.zarr import hierarchy
from ndtool.publish.targets import Target, exists_error
from ndtool.storage import locations
from ndtool.storage.descriptors import absolute
from ndtool.storage.local import ZARR_METADATA, Folder, is_zarr_store
from ndtool.storage.localfolder import LocalFolder
from ndtool.storage.urls import join


class ZarrTarget(NamedTuple):
    """The Zarr target of an output.

    path: the folder that is created or replaced, or the URL of the store. array_path: the path of
    the array in it, "" if it is the array. groups: the enclosing groups that exist, from the root
    on. exists: whether the path exists. version: of the Zarr format, None if the store is new.
    """

    path: str
    array_path: str
    groups: tuple[str, ...]
    exists: bool
    version: int | None


def resolve(target: Target) -> ZarrTarget:
    """Return the Zarr target of an output; NdtoolError if it may not be written."""
    if target.current is not None and not target.is_store:
        raise OutputError(f"{printable(target.path)} is a file: expected a folder, a Zarr store")
    try:
        return _remote_target(target) if target.url else _local_target(target)
    except InputError as exc:  # its metadata cannot be read
        raise OutputError(exc.message, hint=exc.hint) from None


def _local_target(target: Target) -> ZarrTarget:
    root, names = target.path.rstrip("/") or "/", _member_path(target)
    while is_zarr_store(os.path.dirname(absolute(root))):
        root, name = os.path.split(absolute(root))
        names.insert(0, name)
    storage, groups = None, list[str]()
    with suppress(OSError):  # it is created
        storage = LocalFolder(root)
    if storage is not None and not target.only:
        groups = _existing_groups(storage, names)
    path = os.path.join(root, *names[: len(groups)])
    exists, array_path = os.path.lexists(path), "/".join(names[len(groups) :])
    if storage is None or not groups:
        target.require_replaceable()
        return ZarrTarget(path, array_path, (), exists, None)
    if exists and not target.clobber:
        raise exists_error(f"{target.path}:{target.member}")
    node_type = hierarchy.node_type(storage, "/".join(names)) if exists else "array"
    if node_type != "array":
        node_type = "a group" if node_type == "group" else "neither an array nor a group"
        raise OutputError(f"{printable(path)} is {node_type}: only an array is replaced")
    return ZarrTarget(path, array_path, tuple(groups), exists, _version(storage))


def _existing_groups(storage: Folder, names: list[str]) -> list[str]:
    """Return the paths of the groups on the way to an array; OutputError for anything else."""
    groups = list[str]()
    for depth in range(len(names)):
        path = "/".join([storage.path, *names[:depth]])
        node_type = hierarchy.node_type(storage, "/".join(names[:depth]))
        if node_type == "array" or (not node_type and os.path.lexists(path)):
            raise OutputError(f"{printable(path)} is not a group: no array can be in it")
        if not node_type:
            break
        groups.append(path)
    return groups


def _version(storage: Folder) -> int:
    return 3 if storage.read("zarr.json") is not None else 2


def _remote_target(target: Target) -> ZarrTarget:
    """Return the target at a URL, which must not exist: many objects cannot be replaced at once."""
    from ndtool.publish import claims
    from ndtool.storage import objects
    from ndtool.storage.remotefolder import RemoteFolder

    url, names = target.path.rstrip("/"), _member_path(target)
    if locations.is_bucket(url) and not names:
        raise OutputError(f"{printable(url)} is a bucket: expected a folder in it")
    objects.open_output(target.path)  # raises if it is not writable
    while "//" in (parent := url.rpartition("/")[0]) and hierarchy.node_type(
        RemoteFolder(parent), ""
    ):
        names.insert(0, url.rpartition("/")[2])
        url = parent
    storage, path = RemoteFolder(url), "/".join(names)
    groups = _existing_groups(storage, names)
    if hierarchy.node_type(storage, path) or (
        storage.list_entries(path) and not claims.is_abandoned(join(url, path))
    ):
        raise OutputError(
            f"{printable('/'.join([storage.path, *names]))} exists, and a store at a URL cannot be"
            " replaced atomically",
            hint="remove it first, or write to another name",
        )
    version = _version(storage) if groups else None
    for depth, group in enumerate(groups):
        folder = RemoteFolder(join(url, "/".join(names[:depth])))
        if hierarchy.read_consolidated(folder, version or 3) is not None:
            raise OutputError(
                f"{printable(group)} has consolidated metadata, to which no array is added at a"
                " URL",
                hint="write the array to a store of its own",
            )
    return ZarrTarget(url, path, tuple(groups), False, version)


def _member_path(target: Target) -> list[str]:
    """Return the components of a member's path; UsageError if one is invalid."""
    member = target.member or ""
    names = [component for component in member.split("/") if component]
    for component in names:
        if (
            component in (".", "..", *ZARR_METADATA)
            or component.startswith("__")
            or "\0" in component
        ):
            raise UsageError(
                f"{printable(member)}: no array of a store can be called {component!r}"
            )
    if target.member is not None and not names:
        raise UsageError(f"{printable(target.path)}:{printable(member)}: the array has no name")
    return names


def preserved(target: Target, zarr_target: ZarrTarget) -> tuple[str, ...] | None:
    """Return the paths of the preserved arrays of a store, None if nothing is preserved."""
    if not zarr_target.groups:
        return None
    root = zarr_target.path if target.url else zarr_target.groups[0]
    storage = locations.open_folder(root)
    names = hierarchy.array_paths(storage) if storage is not None else ()
    written = os.path.relpath(os.path.join(*zarr_target[:2]), root)
    return tuple(name for name in names if name != written)


def check(target: Target) -> tuple[str, ...] | None:
    """Validate a target without creating files; return the preserved arrays."""
    return preserved(target, resolve(target))
