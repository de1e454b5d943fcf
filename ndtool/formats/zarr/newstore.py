"""Unpublished Zarr stores, local or remote, which become visible when they are published."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from ndtool.arrays.sink import Unpublished
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import NdtoolError, OutputError, printable
from ndtool.formats.zarr import hierarchy, location
from ndtool.formats.zarr.location import ZarrTarget
from ndtool.formats.zarr.metadata import label
from ndtool.publish import cleanup
from ndtool.publish.newfile import NewFile
from ndtool.publish.newfolder import NewFolder, write_file
from ndtool.publish.shared import SharedOutput
from ndtool.publish.targets import Target, existing
from ndtool.storage import locations
from ndtool.storage.descriptors import require_space, reserve, write_at
from ndtool.storage.local import Folder
from ndtool.storage.localfolder import METADATA_NAMES, LocalFolder

Body = bytes | memoryview
WriteKey = Callable[[str, Body], None]  # writes the value of a key of a store


def _require_removable(zarr_target: ZarrTarget) -> None:
    """Raise OutputError if the existing array or store could not be removed."""
    if zarr_target.exists and (folder := cleanup.find_unremovable(zarr_target.path)):
        raise OutputError(
            f"{printable(folder)}: nothing can be removed from it, so {printable(zarr_target.path)}"
            " cannot be replaced"
        )


class NewStore(Unpublished):
    """An unpublished store with a new array.

    array_path: of the array in it. concurrency: number of chunks worth writing concurrently.
    """

    array_path: str
    concurrency: int

    def require_space(self, file_count: int, nbytes: int, largest: int) -> None:
        """Raise ResourceError if there is too little space, once all metadata are written.

        nbytes: of all files. largest: of a single file. Raises OutputError if consolidated metadata
        would be too large.
        """

    def write(self, key: str, body: Body) -> None:
        """Write metadata or a chunk, from any thread. Raises OSError or NdtoolError."""

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput | None:
        """Return the location at which other processes can write chunks, None if they cannot."""


def create_store(zarr_target: ZarrTarget, target: Target) -> NewStore:
    """Create an unpublished store for a new array. Raises OSError."""
    return _RemoteStore(zarr_target) if target.url else _LocalStore(zarr_target, target)


def reopen(shared: SharedOutput) -> tuple[Folder, WriteKey]:
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


class _LocalStore(NewStore):
    """A temporary folder, which is renamed to the path of an array or store."""

    concurrency = 1

    def __init__(self, zarr_target: ZarrTarget, target: Target) -> None:
        _require_removable(zarr_target)
        for group in zarr_target.groups:
            is_writable = os.access(group, os.W_OK | os.X_OK)
            if not is_writable and hierarchy.is_consolidated(LocalFolder(group)):
                raise OutputError(
                    f"{printable(group)}: its consolidated metadata cannot be written"
                )
        clobber, sync, sweeps = target.clobber, target.sync, not target.is_dry_run
        self._folder = NewFolder(zarr_target.path, zarr_target.exists, clobber, sync, cleans=sweeps)
        self.path, self.array_path, self._groups = (
            self._folder.path,
            zarr_target.array_path,
            zarr_target.groups,
        )
        self._zarr_target, self._target = zarr_target, target
        self._metadata: dict[str, bytes] = {}  # of the new array, by final path
        self._files: list[NewFile] = []  # consolidated metadata of the enclosing groups

    def write(self, key: str, body: Body) -> None:
        if key.rpartition("/")[2] in METADATA_NAMES:
            self._metadata[os.path.join(self._zarr_target.path, key)] = bytes(body)
        self._folder.write(key, body)

    def require_space(self, file_count: int, nbytes: int, largest: int) -> None:
        require_space(self._folder.working_folder, file_count, nbytes, largest, self.path)
        for group in self._groups:
            with _group_errors(group):
                hierarchy.require_consolidated_size(LocalFolder(group), self._metadata)

    def sync(self) -> None:
        self._folder.sync()

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput:
        return SharedOutput(name, metadata, self._folder.working_folder, self.array_path, 0)

    def open_folder(self) -> int:
        root = self._groups[0] if self._groups else self._zarr_target.path
        folder = os.path.dirname(os.path.realpath(root))
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def require_unchanged(self) -> None:
        current = location.local_target(self._target._replace(current=existing(self._target.path)))
        if current != self._zarr_target._replace(preserved=None):
            is_new = current.exists and not self._zarr_target.exists
            change = "was created by another process" if is_new else "changed"
            raise OutputError(f"{printable(self.path)} {change} during the run")
        for group in self._groups:
            if hierarchy.is_consolidated(storage := LocalFolder(group)):
                new_metadata = {
                    os.path.relpath(path, group): raw for path, raw in self._metadata.items()
                }
                with _group_errors(group):
                    name, body = hierarchy.consolidate(storage, new_metadata)
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
                raise _consolidation_error(self.path, os.path.dirname(file.path), exc) from None

    def sync_folder(self) -> None:
        self._folder.sync_folder()
        for file in self._files:
            file.sync_folder()

    def drop(self) -> None:
        for file in self._files:
            file.drop()
        self._folder.drop()


class _RemoteStore(NewStore):
    """Objects of a remote store, of which the metadata are written last.

    A response means that an object is stored; objects are written on the condition that they do not
    exist.
    """

    def __init__(self, zarr_target: ZarrTarget) -> None:
        from ndtool.publish.newobjects import NewObjects

        self._objects = NewObjects(zarr_target.path, zarr_target.array_path)
        self.concurrency = self._objects.concurrency
        self.path, self.array_path, self._groups = (
            self._objects.path,
            zarr_target.array_path,
            zarr_target.groups,
        )

    def write(self, key: str, body: Body) -> None:
        objects = self._objects
        # The metadata of existing groups are preserved.
        if key.rpartition("/")[2] not in METADATA_NAMES or objects.read(key) is None:
            objects.write(key, body)

    def require_space(self, file_count: int, nbytes: int, largest: int) -> None:
        """Check only the size of consolidated metadata: object stores do not report free space."""
        for group in self._groups:
            with _group_errors(label(self._objects.path, group)):
                hierarchy.require_consolidated_size(
                    self._objects.subfolder(group), self._objects.pending_metadata
                )

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput | None:
        url = self._objects.url
        if not locations.is_shared(url):
            return None
        return SharedOutput(name, metadata, url, self.array_path, 0, *self._objects.share())

    def publish(self) -> None:
        self._objects.publish()
        for group in self._groups:
            open_group = partial(self._objects.subfolder, group)
            _consolidate(open_group, open_group().write, label(self.path, self.array_path))

    def drop(self) -> None:
        self._objects.drop()


@contextmanager
def _group_errors(group: str) -> Iterator[None]:
    """Add the group's name to OutputErrors about its metadata."""
    try:
        yield
    except OutputError as exc:
        raise OutputError(f"{printable(group)}: {exc.message}") from None


def _consolidate(open_group: Callable[[], Folder], write: WriteKey, path: str) -> None:
    """Rewrite the consolidated metadata of a remote group, if it has any. open_group: opens it.

    Repeats if they lack an array: without locks, another run that listed the group earlier may have
    written them last.
    """
    storage, missing = open_group(), set[str]()
    try:
        while hierarchy.is_consolidated(storage):
            write(*hierarchy.consolidate(storage))
            storage = open_group()
            previous, missing = missing, hierarchy.unconsolidated_arrays(storage)
            if not missing or missing == previous:
                return
    except (NdtoolError, OSError) as exc:
        raise _consolidation_error(path, storage.path, exc) from None


def _consolidation_error(path: str, group: str, exc: Exception) -> OutputError:
    reason = exc.message if isinstance(exc, NdtoolError) else getattr(exc, "strerror", exc)
    return OutputError(
        f"{printable(path)} is written, but not in the metadata of {printable(group)}: {reason}"
    )
