"""Unpublished local Zarr stores, which become visible when they are published."""

from __future__ import annotations

import os
from functools import partial

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import NdtoolError, OutputError, printable
from ndtool.formats.zarr import hierarchy, location
from ndtool.formats.zarr.hierarchy import Body, WriteKey
from ndtool.formats.zarr.location import ZarrTarget
from ndtool.publish import cleanup
from ndtool.publish.newfile import NewFile
from ndtool.publish.newfolder import NewFolder, write_file
from ndtool.publish.shared import SharedOutput
from ndtool.publish.targets import Target, existing
from ndtool.storage.descriptors import require_space, reserve, write_at
from ndtool.storage.local import Folder
from ndtool.storage.localfolder import METADATA_NAMES, LocalFolder


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


class LocalStore(NewFolder):
    """A temporary folder with a new array, which is renamed to the path of an array or store.

    array_path: of the array in it. concurrency: number of chunks worth writing concurrently.
    """

    concurrency = 1

    def __init__(self, zarr_target: ZarrTarget, target: Target) -> None:
        if zarr_target.exists and (folder := cleanup.find_unremovable(zarr_target.path)):
            raise OutputError(
                f"{printable(folder)}: nothing can be removed from it, so"
                f" {printable(zarr_target.path)} cannot be replaced"
            )
        self.array_path, self._groups = zarr_target.array_path, zarr_target.groups
        self._zarr_target, self._target = zarr_target, target
        self._metadata: dict[str, bytes] = {}  # of the new array, by final path
        self._files: list[NewFile] = []  # consolidated metadata of the enclosing groups
        clobber, sync, cleans = target.clobber, target.sync, not target.is_dry_run
        super().__init__(zarr_target.path, zarr_target.exists, clobber, sync, cleans=cleans)

    def write(self, key: str, body: Body) -> None:
        """Write metadata or a chunk, from any thread. Raises OSError or NdtoolError."""
        if key.rpartition("/")[2] in METADATA_NAMES:
            self._metadata[os.path.join(self._zarr_target.path, key)] = bytes(body)
        super().write(key, body)

    def require_space(self, file_count: int, nbytes: int, largest: int) -> None:
        """Raise ResourceError if there is too little space, once all metadata are written.

        nbytes: of all files. largest: of a single file. Raises OutputError if consolidated metadata
        cannot be updated.
        """
        require_space(self.working_folder, file_count, nbytes, largest, self.path)
        for group in self._groups:
            self._consolidated(group)

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput:
        """Return the location at which other processes can write chunks."""
        return SharedOutput(name, metadata, self.working_folder, self.array_path, 0)

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
            if body := self._consolidated(group):
                name = hierarchy.consolidated_name(self._zarr_target.version)
                path = os.path.join(group, name)
                file = NewFile(path, os.stat(path), True, self._target.sync)
                self._files.append(file)
                reserve(file.descriptor, len(body), path)
                write_at(file.descriptor, 0, body)
                file.sync()

    def _consolidated(self, group: str) -> bytes | None:
        """Return a group's consolidated metadata with the new array, None if it has none."""
        documents = {os.path.relpath(path, group): raw for path, raw in self._metadata.items()}
        name = hierarchy.consolidated_name(self._zarr_target.version)
        return hierarchy.add_consolidated(LocalFolder(group), name, documents)

    def publish(self) -> None:
        super().publish()
        for file in self._files:
            try:
                file.publish()
            except (NdtoolError, OSError):
                raise OutputError(
                    f"{printable(self.path)} is written, but {printable(file.path)} lacks it"
                ) from None

    def sync_folder(self) -> None:
        super().sync_folder()
        for file in self._files:
            file.sync_folder()

    def drop(self) -> None:
        for file in self._files:
            file.drop()
        super().drop()
