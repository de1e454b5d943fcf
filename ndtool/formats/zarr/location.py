"""The Zarr target of an output: its path, and whether it may be written."""

from __future__ import annotations

import os
from typing import NamedTuple

from ndtool.errors import InputError, OutputError, UsageError, option, printable
from ndtool.formats.members import MAX_LISTED
from ndtool.formats.zarr import hierarchy
from ndtool.formats.zarr.metadata import label
from ndtool.publish.targets import Target, exists_error
from ndtool.storage.descriptors import absolute
from ndtool.storage.local import ZARR_METADATA, is_zarr_store
from ndtool.storage.localfolder import LocalFolder
from ndtool.storage.locations import is_bucket
from ndtool.storage.urls import join


class ZarrTarget(NamedTuple):
    """The Zarr target of an output.

    path: the folder that is created or replaced, or the URL of the store. array_path: the path of
    the array in it, "" if it is the array. groups: the enclosing groups, from the root on. exists:
    whether the path exists. version: of the Zarr format, None if the store is new. preserved: the
    preserved arrays, None if the path is the complete store.
    """

    path: str
    array_path: str
    groups: tuple[str, ...]
    exists: bool
    version: int | None
    preserved: tuple[str, ...] | None


def resolve(target: Target) -> ZarrTarget:
    """Return the Zarr target of an output; NdtoolError if it may not be written."""
    if target.url:
        try:
            return _remote_target(target)
        except InputError as exc:  # its metadata cannot be read
            raise OutputError(exc.message, hint=exc.hint) from None
    local = local_target(target)
    if not local.groups:
        return local
    root, names = _split_root(target)
    arrays = hierarchy.array_paths(LocalFolder(root))
    return local._replace(preserved=tuple(name for name in arrays if name != "/".join(names)))


def local_target(target: Target) -> ZarrTarget:
    """Return the Zarr target of an output in a local store, `preserved` not yet set."""
    root, names = _split_root(target)
    exists = target.current is not None
    if exists and not target.is_store:
        raise OutputError(f"{printable(target.path)} is a file: expected a folder, a Zarr store")
    if not names or target.only or not (exists or os.path.lexists(root)):
        target.require_replaceable()
        arrays = hierarchy.array_paths(LocalFolder(root)) if exists and not target.only else []
        if arrays and arrays != [""]:
            path = printable(target.path)
            raise OutputError(
                f"{path} is a group of {len(arrays)} arrays: which is to be written?",
                places=tuple(map(printable, arrays[:MAX_LISTED])),
                hint=f"name it, as {path}:{printable(arrays[0])};"
                f" {option('only', True)} replaces them all",
            )
        return ZarrTarget(root, "/".join(names), (), exists, None, None)
    path, groups, remaining = root, list[str](), list(names)
    while remaining and (not groups or os.path.lexists(path)):
        if _local_node_type(path) != "group":
            raise OutputError(f"{printable(path)} is not a group: no array can be in it")
        groups.append(path)
        path = os.path.join(path, remaining.pop(0))
    path_exists = os.path.lexists(path)
    if path_exists and not target.clobber:
        raise exists_error(f"{target.path}:{target.member}")
    node_type = _local_node_type(path) if path_exists else "array"
    if node_type != "array":
        node_type = "a group" if node_type == "group" else "neither an array nor a group"
        raise OutputError(f"{printable(path)} is {node_type}: only an array is replaced")
    version = 3 if os.path.isfile(os.path.join(root, "zarr.json")) else 2
    return ZarrTarget(path, "/".join(remaining), tuple(groups), path_exists, version, None)


def _local_node_type(path: str) -> str:
    """Return "array" or "group" for a local path, "" if it is neither."""
    try:
        return hierarchy.node_type(LocalFolder(path), "")
    except OSError:  # a dangling link, or removed meanwhile
        return ""


def _remote_target(target: Target) -> ZarrTarget:
    """Return the target at a URL, which must not exist: many objects cannot be replaced at once."""
    from ndtool.publish import claims
    from ndtool.storage import objects
    from ndtool.storage.remotefolder import RemoteFolder

    url, names = target.path.rstrip("/"), _member_path(target)
    if is_bucket(url) and not names:
        raise OutputError(f"{printable(url)} is a bucket: expected a folder in it")
    objects.open_output(target.path)  # raises if it is not writable
    while "//" in (parent := url.rpartition("/")[0]) and hierarchy.node_type(
        RemoteFolder(parent), ""
    ):
        names.insert(0, url.rpartition("/")[2])
        url = parent
    storage, path = RemoteFolder(url), "/".join(names)
    groups = ["/".join(names[:depth]) for depth in range(len(names))]
    root_type = hierarchy.node_type(storage, "") if names else ""
    for group in groups if root_type else ():
        if hierarchy.node_type(storage, group) not in ("group", ""):
            raise OutputError(
                f"{printable(label(storage.path, group))} is not a group: no array can be in it"
            )
    if hierarchy.node_type(storage, path) or (
        storage.list_entries(path) and not claims.is_abandoned(join(url, path))
    ):
        raise OutputError(
            f"{printable(label(storage.path, path))} exists, and a store at a URL cannot be"
            " replaced atomically",
            hint="remove it first, or write to another name",
        )
    if not root_type:
        return ZarrTarget(url, path, (), False, None, None)
    preserved = tuple(hierarchy.array_paths(storage))
    version = 3 if storage.read("zarr.json") is not None else 2
    for group in groups:
        if hierarchy.read_consolidated(RemoteFolder(join(url, group)), version) is not None:
            raise OutputError(
                f"{printable(label(storage.path, group))} has consolidated metadata, to which no"
                " array is added at a URL",
                hint="write the array to a store of its own",
            )
    return ZarrTarget(url, path, tuple(groups), False, version, preserved)


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


def _split_root(target: Target) -> tuple[str, list[str]]:
    """Return the root folder of a local store, and the components of the array's path in it."""
    root, names = target.path.rstrip("/") or "/", _member_path(target)
    while is_zarr_store(os.path.dirname(absolute(root))):
        root, name = os.path.split(absolute(root))
        names.insert(0, name)
    return root, names


def check(target: Target) -> tuple[str, ...] | None:
    """Validate a target without creating files; return the preserved arrays."""
    return resolve(target).preserved
