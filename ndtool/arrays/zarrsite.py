"""Where an array goes that is written to a Zarr store: what may be there, and how it is seen."""

from __future__ import annotations

import os
import stat
from typing import Any, NamedTuple, Protocol

from ndtool.arrays import places
from ndtool.arrays import zarrstore as zarr
from ndtool.arrays.local import ZARR_METADATA, Folder, LocalFolder, is_store
from ndtool.arrays.newfile import Unpublished
from ndtool.arrays.newfolder import NewFolder
from ndtool.arrays.shared import Shared
from ndtool.arrays.source import Facts
from ndtool.arrays.targets import Target, exists
from ndtool.errors import OutputError, UsageError, printable


class Site(NamedTuple):
    """Where an array goes.

    path: the folder that takes its name at the end, or the URL of the store. rest: where the array
    is in it, "" where it is the array. above: groups that it is in, from the root on. old: whether
    something is there. version: that of the store. kept: arrays that stay in it, None where it is
    the store.
    """

    path: str
    rest: str
    above: tuple[str, ...]
    old: bool
    version: int | None
    kept: tuple[str, ...] | None


def site(target: Target) -> Site:
    """Return where an array goes; NdtoolError for what may not be written there."""
    if target.url:
        return _site_behind(target)
    root, parts = _split(target)
    if target.old is not None and not stat.S_ISDIR(target.old.st_mode):
        raise OutputError(
            f"{printable(target.path)} is a file: expected the folder of a Zarr store"
        )
    if target.old is None and parts and not os.path.lexists(root):
        return Site(root, "/".join(parts), (), False, None, None)
    if not parts or target.only:
        return _root(target, root, parts)
    here, above, rest = root, [], list(parts)
    while rest:
        if zarr.kind(LocalFolder(here), "") != "group":
            raise OutputError(f"{printable(here)} is not a group: no array can be in it")
        above.append(here)
        here = os.path.join(here, rest.pop(0))
        if not os.path.lexists(here):
            break
    old = os.path.lexists(here)
    if old and not target.clobber:
        raise exists(f"{target.path}:{target.member}")
    found = zarr.kind(LocalFolder(here), "") if old else ""
    if old and found != "array":
        what = "a group" if found == "group" else "something else"
        raise OutputError(f"{printable(here)} is {what}: only an array is replaced")
    store = zarr.arrays_in(LocalFolder(root))
    kept = tuple(name for name in store if name != "/".join(parts))
    return Site(here, "/".join(rest), tuple(above), old, _version(root), kept)


def _root(target: Target, root: str, parts: list[str]) -> Site:
    target.require_replaceable()
    known = zarr.arrays_in(LocalFolder(root)) if target.old is not None else []
    if not target.only and known and known != [""]:
        raise OutputError(
            f"{printable(target.path)} is a group of {len(known)} arrays: which is to be written?",
            places=tuple(map(printable, known[: zarr.LISTED])),
            hint=f"name it, as {printable(target.path)}:{printable(known[0])};"
            " --only replaces them all",
        )
    return Site(root, "/".join(parts), (), target.old is not None, None, None)


def _site_behind(target: Target) -> Site:
    """Return where an array goes behind a URL: where nothing is, as no store can exchange many."""
    from ndtool.arrays import claims, upload
    from ndtool.arrays.remotefolder import RemoteFolder

    upload.store(target.path)  # refuses what cannot be written to
    url, parts = target.path.rstrip("/"), _parts(target)
    while zarr.kind(RemoteFolder(parent := url.rpartition("/")[0]), "") and "//" in parent:
        parts.insert(0, url.rpartition("/")[2])
        url = parent
    place, path = RemoteFolder(url), "/".join(parts)
    groups = ["/".join(parts[:depth]) for depth in range(len(parts))]
    store = zarr.kind(place, "") if parts else ""
    for group in groups if store else ():
        if zarr.kind(place, group) not in ("group", ""):
            raise OutputError(
                f"{printable(zarr.label(place.path, group))} is not a group: no array can be in it"
            )
    if zarr.kind(place, path) or (place.listed(path) and not claims.is_left(url, path)):
        raise OutputError(
            f"{printable(zarr.label(place.path, path))}: something is there, and what is behind a"
            " URL cannot be replaced by a store in one step",
            hint="remove it first, or write to another name",
        )
    if not store:
        return Site(url, path, (), False, None, None)
    kept = tuple(zarr.arrays_in(place))
    version = 3 if place.read("zarr.json") is not None else 2
    return Site(url, path, tuple(groups), False, version, kept)


def _parts(target: Target) -> list[str]:
    """Return the names on the way to an array in its store."""
    member = target.member or ""
    parts = [part for part in member.split("/") if part]
    for part in parts:
        if part in (".", "..", *ZARR_METADATA) or part.startswith("__") or "\0" in part:
            raise UsageError(f"{printable(member)}: no array of a store can be called {part!r}")
    if target.member is not None and not parts:
        raise UsageError(f"{printable(target.path)}:{printable(member)}: the array has no name")
    return parts


def _split(target: Target) -> tuple[str, list[str]]:
    """Return the folder of the whole store, and the names on the way to the array in it."""
    root, parts = target.path.rstrip("/") or "/", _parts(target)
    while is_store(os.path.dirname(os.path.abspath(root))):
        root, name = os.path.split(os.path.abspath(root))
        parts.insert(0, name)
    return root, parts


def _version(root: str) -> int:
    return 3 if os.path.isfile(os.path.join(root, "zarr.json")) else 2


def check(target: Target) -> tuple[str, ...] | None:
    """Raise what a new array would about the target alone; return the arrays that stay."""
    zarr.library()
    place = site(target)
    if target.url:
        return place.kept
    parent = os.path.dirname(os.path.realpath(place.path))
    if not os.access(parent, os.W_OK | os.X_OK):
        raise OutputError(f"{printable(parent)}: it takes no folder")
    return place.kept


class NewStore(Unpublished, Protocol):
    """A store that is being made.

    store: as the package takes it. within: where the array is in it. at_once: chunks that are worth
    writing at once.
    """

    store: Any
    within: str
    at_once: int

    def sync(self) -> None:
        """Wait until the bytes are where they must be before it is seen."""

    def shared(self, name: str, facts: Facts) -> Shared | None:
        """Return how other processes write to it, None where they cannot."""


def output(site: Site, target: Target) -> NewStore:
    """Return the store in which a new array is made. Raises OSError."""
    return _Behind(site) if target.url else _Beside(site, target)


def again(shared: Shared) -> Any:
    """Return a store that another process makes, as the package takes it."""
    if shared.mark is None:
        return zarr.library().storage.LocalStore(shared.path)
    from ndtool.arrays.remotefolder import RemoteFolder

    shared.mark.require(", on a worker")
    return zarr.store_of(RemoteFolder(shared.path, shared.metadata), False)


class _Beside:
    """A hidden folder, which becomes that of an array or of a whole store."""

    at_once = 1

    def __init__(self, site: Site, target: Target) -> None:
        self._folder = NewFolder(site.path, site.old, target.clobber, target.sync)
        self.path, self.within, self._above = self._folder.path, site.rest, site.above
        self.store = zarr.library().storage.LocalStore(self._folder.inside)

    def sync(self) -> None:
        self._folder.sync()

    def shared(self, name: str, facts: Facts) -> Shared:
        return Shared(name, facts, self._folder.inside, self.within, 0)

    def take_name(self) -> None:
        self._folder.take_name()
        for group in self._above:
            _consolidate(LocalFolder(group), self.path)

    def sync_folder(self) -> None:
        self._folder.sync_folder()

    def drop(self) -> None:
        self._folder.drop()


class _Behind:
    """Objects behind a URL, of which the metadata come last."""

    def __init__(self, site: Site) -> None:
        from ndtool.arrays.newobjects import NewObjects

        self._objects = NewObjects(site.path, site.rest)
        self.at_once = self._objects.at_once
        self.path, self.within, self._above = self._objects.path, site.rest, site.above
        self.store = zarr.store_of(self._objects, False)

    def sync(self) -> None:
        """Do nothing: a store answers when it has an object."""

    def shared(self, name: str, facts: Facts) -> Shared | None:
        url = self._objects.url
        if not places.is_of_many(url):
            return None
        return Shared(name, facts, url, self.within, 0, *self._objects.shared())

    def take_name(self) -> None:
        self._objects.publish()
        for group in self._above:
            _consolidate(self._objects.below(group), zarr.label(self.path, self.within))

    def sync_folder(self) -> None:
        """Do nothing: see sync."""

    def drop(self) -> None:
        self._objects.drop()


def _consolidate(group: Folder, path: str) -> None:
    """Write the metadata of all that is in a group anew, where the group has them."""
    if zarr.is_consolidated(group):
        what = f"{path} is written, but not into the metadata of {group.path}"
        with zarr.said(what, OutputError), zarr.quiet():
            zarr.library().consolidate_metadata(zarr.store_of(group, False))
