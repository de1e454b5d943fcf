"""The Zarr target of an output: validation, replacement and publication."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple, Protocol

from ndtool.arrays.sink import Unpublished
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import NdtoolError, OutputError, UsageError, printable
from ndtool.formats.members import LISTED
from ndtool.formats.zarr import hierarchy
from ndtool.formats.zarr import store as zarr
from ndtool.publish import cleanup
from ndtool.publish.newfile import NewFile
from ndtool.publish.newfolder import NewFolder, write_file
from ndtool.publish.shared import SharedOutput
from ndtool.publish.targets import Target, existing, exists_error
from ndtool.storage import locations
from ndtool.storage.descriptors import absolute, require_space, reserve, write_at
from ndtool.storage.local import ZARR_METADATA, Folder, is_zarr_store
from ndtool.storage.localfolder import METADATA_NAMES, LocalFolder

Body = bytes | memoryview
Put = Callable[[str, Body], None]  # writes the value of a key of a store


class ZarrTarget(NamedTuple):
    """The Zarr target of an output.

    path: the folder that is renamed to its final name, or the URL of the store. rest: the path of
    the array in it, "" if it is the array. above: the enclosing groups, from the root on. old:
    whether the path exists. version: of the store. preserved: the preserved arrays, None if the
    path is the complete store.
    """

    path: str
    rest: str
    above: tuple[str, ...]
    old: bool
    version: int | None
    preserved: tuple[str, ...] | None


def resolve(target: Target) -> ZarrTarget:
    """Return the Zarr target of an output; NdtoolError if it may not be written."""
    if target.url:
        return _remote_target(target)
    local = _local_target(target)
    return local._replace(preserved=_preserved(target)) if local.above else local


def _local_target(target: Target) -> ZarrTarget:
    """Return the target in a local store, without the preserved arrays."""
    root, names = _split(target)
    if target.current is not None and not stat.S_ISDIR(target.current.st_mode):
        raise OutputError(f"{printable(target.path)} is a file: expected a folder, a Zarr store")
    if target.current is None and names and not os.path.lexists(root):
        return ZarrTarget(root, "/".join(names), (), False, None, None)
    if not names or target.only:
        return _root(target, root, names)
    path, above, rest = root, [], list(names)
    while rest:
        if _kind_at(path) != "group":
            raise OutputError(f"{printable(path)} is not a group: no array can be in it")
        above.append(path)
        path = os.path.join(path, rest.pop(0))
        if not os.path.lexists(path):
            break
    old = os.path.lexists(path)
    if old and not target.clobber:
        raise exists_error(f"{target.path}:{target.member}")
    kind = _kind_at(path) if old else ""
    if old and kind != "array":
        kind = "a group" if kind == "group" else "neither an array nor a group"
        raise OutputError(f"{printable(path)} is {kind}: only an array is replaced")
    version = 3 if os.path.isfile(os.path.join(root, "zarr.json")) else 2
    return ZarrTarget(path, "/".join(rest), tuple(above), old, version, None)


def _kind_at(path: str) -> str:
    """Return "array" or "group" for a local path, "" if it is neither."""
    try:
        return hierarchy.kind(LocalFolder(path), "")
    except OSError:  # a dangling link, or removed meanwhile
        return ""


def _preserved(target: Target) -> tuple[str, ...]:
    """Return the preserved arrays of a local store."""
    root, names = _split(target)
    return tuple(name for name in hierarchy.arrays_in(LocalFolder(root)) if name != "/".join(names))


def _root(target: Target, root: str, names: list[str]) -> ZarrTarget:
    target.require_replaceable()
    may_have_arrays = target.current is not None and not target.only
    arrays = hierarchy.arrays_in(LocalFolder(root)) if may_have_arrays else []
    if arrays and arrays != [""]:
        raise OutputError(
            f"{printable(target.path)} is a group of {len(arrays)} arrays: which is to be written?",
            places=tuple(map(printable, arrays[:LISTED])),
            hint=f"name it, as {printable(target.path)}:{printable(arrays[0])};"
            " --only replaces them all",
        )
    return ZarrTarget(root, "/".join(names), (), target.current is not None, None, None)


def _remote_target(target: Target) -> ZarrTarget:
    """Return the target at a URL, which must be unused: many objects cannot be replaced at once."""
    from ndtool.publish import claims
    from ndtool.storage import upload
    from ndtool.storage.remotefolder import RemoteFolder

    url, names = target.path.rstrip("/"), _member_path(target)
    if claims.is_bucket(url) and not names:
        raise OutputError(f"{printable(url)} is a bucket: expected a folder in it")
    upload.writer(target.path)  # raises if it is not writable
    while "//" in (parent := url.rpartition("/")[0]) and hierarchy.kind(RemoteFolder(parent), ""):
        names.insert(0, url.rpartition("/")[2])
        url = parent
    storage, path = RemoteFolder(url), "/".join(names)
    groups = ["/".join(names[:depth]) for depth in range(len(names))]
    store = hierarchy.kind(storage, "") if names else ""
    for group in groups if store else ():
        if hierarchy.kind(storage, group) not in ("group", ""):
            raise OutputError(
                f"{printable(zarr.label(storage.path, group))} is not a group: no array"
                " can be in it"
            )
    if hierarchy.kind(storage, path) or (
        storage.list_entries(path) and not claims.is_abandoned(url, path)
    ):
        raise OutputError(
            f"{printable(zarr.label(storage.path, path))} exists, and a store at a URL cannot be"
            " replaced atomically",
            hint="remove it first, or write to another name",
        )
    if not store:
        return ZarrTarget(url, path, (), False, None, None)
    preserved = tuple(hierarchy.arrays_in(storage))
    version = 3 if storage.read("zarr.json") is not None else 2
    return ZarrTarget(url, path, tuple(groups), False, version, preserved)


def _member_path(target: Target) -> list[str]:
    """Return the components of the member's path; UsageError if one is invalid."""
    member = target.member or ""
    names = [part for part in member.split("/") if part]
    for part in names:
        if part in (".", "..", *ZARR_METADATA) or part.startswith("__") or "\0" in part:
            raise UsageError(f"{printable(member)}: no array of a store can be called {part!r}")
    if target.member is not None and not names:
        raise UsageError(f"{printable(target.path)}:{printable(member)}: the array has no name")
    return names


def _split(target: Target) -> tuple[str, list[str]]:
    """Return the root folder of the store, and the components of the array's path in it."""
    root, names = target.path.rstrip("/") or "/", _member_path(target)
    while is_zarr_store(os.path.dirname(absolute(root))):
        root, name = os.path.split(absolute(root))
        names.insert(0, name)
    return root, names


def check(target: Target) -> tuple[str, ...] | None:
    """Validate a target without creating anything; return the preserved arrays."""
    zarr.library()
    return resolve(target).preserved


def _require_removable(site: ZarrTarget) -> None:
    """Raise OutputError if the existing array or store could not be removed."""
    if site.old and (folder := cleanup.find_unremovable(site.path)):
        raise OutputError(
            f"{printable(folder)}: nothing can be removed from it, so {printable(site.path)}"
            " cannot be replaced"
        )


class NewStore(Unpublished, Protocol):
    """An unpublished store.

    within: the path of the array in it. concurrency: number of chunks worth writing concurrently.
    """

    within: str
    concurrency: int

    def require_space(self, files: int, nbytes: int, largest: int) -> None:
        """Raise ResourceError if there is too little space; nbytes: of all files, largest: of one.

        OutputError if consolidated metadata would be too large. Requires `put` of all metadata.
        """

    def put(self, key: str, body: Body) -> None:
        """Write metadata or a chunk, from any thread. Raises OSError or NdtoolError."""

    def sync(self) -> None:
        """Wait until the bytes are stored as required before publication."""

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput | None:
        """Return the location where other processes can write, None if they cannot."""


def output(site: ZarrTarget, target: Target) -> NewStore:
    """Return an unpublished store for a new array. Raises OSError."""
    return _RemoteStore(site) if target.url else _LocalStore(site, target)


def reopen(shared: SharedOutput) -> tuple[Folder, Put]:
    """Reopen the unpublished store of another process; return it and a function that writes."""
    if shared.lock is None:
        try:
            return LocalFolder(shared.path), partial(write_file, shared.path)
        except OSError as exc:
            raise OutputError(
                f"{printable(shared.name)}: {printable(shared.path)}: {exc.strerror}"
            ) from None
    from ndtool.storage.remotefolder import RemoteFolder

    shared.lock.require(", on a worker")
    storage = RemoteFolder(shared.path, shared.pending_metadata)
    return storage, storage.write


class _LocalStore:
    """A temporary folder, which is renamed to that of an array or store."""

    concurrency = 1

    def __init__(self, site: ZarrTarget, target: Target) -> None:
        _require_removable(site)
        for group in site.above:
            is_writable = os.access(group, os.W_OK | os.X_OK)
            if not is_writable and hierarchy.is_consolidated(LocalFolder(group)):
                raise OutputError(
                    f"{printable(group)}: its consolidated metadata cannot be written"
                )
        clobber, sync, sweeps = target.clobber, target.sync, not target.is_dry_run
        self._folder = NewFolder(site.path, site.old, clobber, sync, cleans=sweeps)
        self.path, self.within, self._above = self._folder.path, site.rest, site.above
        self._site, self._target = site, target
        self._metadata: dict[str, bytes] = {}  # of the new array, by final path
        self._files: list[NewFile] = []  # consolidated metadata of the enclosing groups

    def put(self, key: str, body: Body) -> None:
        if key.rpartition("/")[2] in METADATA_NAMES:
            self._metadata[os.path.join(self._site.path, key)] = bytes(body)
        self._folder.write(key, body)

    def require_space(self, files: int, nbytes: int, largest: int) -> None:
        require_space(self._folder.working_folder, files, nbytes, largest, self.path)
        for group in self._above:
            with _named(group):
                hierarchy.require_growth(LocalFolder(group), self._metadata)

    def sync(self) -> None:
        self._folder.sync()

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput:
        return SharedOutput(name, metadata, self._folder.working_folder, self.within, 0)

    def open_folder(self) -> int:
        root = self._above[0] if self._above else self._site.path
        folder = os.path.dirname(os.path.realpath(root))
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def recheck(self) -> None:
        now = _local_target(self._target._replace(current=existing(self._target.path)))
        if now != self._site._replace(preserved=None):
            is_new = now.old and not self._site.old
            change = "was created by another process" if is_new else "changed"
            raise OutputError(f"{printable(self.path)} {change} during the run")
        for group in self._above:
            if hierarchy.is_consolidated(storage := LocalFolder(group)):
                new = {os.path.relpath(path, group): raw for path, raw in self._metadata.items()}
                with _named(group):
                    name, body = hierarchy.consolidated(storage, new)
                self._consolidate(group, name, body)

    def _consolidate(self, group: str, name: str, body: bytes) -> None:
        """Write a group's consolidated metadata to a file that is not published yet."""
        path = os.path.join(group, name)
        file = NewFile(path, os.stat(path), True, self._target.sync)
        self._files.append(file)
        reserve(file.descriptor, len(body), path)
        write_at(file.descriptor, 0, body)
        file.sync()

    def publish(self) -> None:
        self._folder.publish()
        for file in self._files:
            try:
                file.publish()
            except (NdtoolError, OSError) as exc:
                raise _not_consolidated(self.path, os.path.dirname(file.path), exc) from None

    def sync_folder(self) -> None:
        self._folder.sync_folder()
        for file in self._files:
            file.sync_folder()

    def drop(self) -> None:
        for file in self._files:
            file.drop()
        self._folder.drop()


class _RemoteStore:
    """Remote objects, of which the metadata are written last."""

    def __init__(self, site: ZarrTarget) -> None:
        from ndtool.publish.newobjects import NewObjects

        self._objects = NewObjects(site.path, site.rest)
        self.concurrency = self._objects.concurrency
        self.path, self.within, self._above = self._objects.path, site.rest, site.above

    def put(self, key: str, body: Body) -> None:
        objects = self._objects
        if (
            key.rpartition("/")[2] not in METADATA_NAMES or objects.read(key) is None
        ):  # keeps groups
            objects.write(key, body)

    def require_space(self, files: int, nbytes: int, largest: int) -> None:
        """Check only the size of pending: an object store does not report free space."""
        for group in self._above:
            with _named(zarr.label(self._objects.path, group)):
                hierarchy.require_growth(
                    self._objects.subfolder(group), self._objects.pending_metadata
                )

    def sync(self) -> None:
        """Do nothing: a response means that the object is stored."""

    def open_folder(self) -> None:
        """Return None: object stores have no locks."""

    def recheck(self) -> None:
        """Do nothing: objects are written on the condition that they do not exist."""

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput | None:
        url = self._objects.url
        if not locations.is_shared(url):
            return None
        return SharedOutput(name, metadata, url, self.within, 0, *self._objects.share())

    def publish(self) -> None:
        self._objects.publish()
        for group in self._above:
            below = partial(self._objects.subfolder, group)
            _consolidate(below, below().write, zarr.label(self.path, self.within))

    def sync_folder(self) -> None:
        """Do nothing: see sync."""

    def drop(self) -> None:
        self._objects.drop()


@contextmanager
def _named(group: str) -> Iterator[None]:
    """Add the group's name to OutputErrors about its metadata."""
    try:
        yield
    except OutputError as exc:
        raise OutputError(f"{printable(group)}: {exc.message}") from None


def _consolidate(group: Callable[[], Folder], put: Put, path: str) -> None:
    """Rewrite the consolidated metadata of a remote group, if it has any; group: opens it.

    Repeats if an array is missing in them: without locks, another run that listed the group earlier
    may have written them last.
    """
    storage, missing = group(), set[str]()
    try:
        while hierarchy.is_consolidated(storage):
            put(*hierarchy.consolidated(storage))
            storage = group()
            previous, missing = missing, hierarchy.unconsolidated(storage)
            if not missing or missing == previous:
                return
    except (NdtoolError, OSError) as exc:
        raise _not_consolidated(path, storage.path, exc) from None


def _not_consolidated(path: str, group: str, exc: Exception) -> OutputError:
    reason = exc.message if isinstance(exc, NdtoolError) else getattr(exc, "strerror", exc)
    return OutputError(
        f"{printable(path)} is written, but not in the metadata of {printable(group)}: {reason}"
    )
