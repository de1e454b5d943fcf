"""Unpublished local Zarr stores, which become visible when they are published."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import NdtoolError, OutputError, printable
from ndtool.formats.zarr import hierarchy, location
from ndtool.formats.zarr.hierarchy import WriteKey
from ndtool.formats.zarr.location import ZarrTarget
from ndtool.publish.newfile import NewFile
from ndtool.publish.newfolder import NewFolder, write_file
from ndtool.publish.sinks import SharedOutput
from ndtool.publish.targets import Target, existing
from ndtool.storage.descriptors import os_errors, require_space, reserve, write_at
from ndtool.storage.local import Folder
from ndtool.storage.localfolder import LocalFolder


def reopen(shared: SharedOutput) -> tuple[Folder, WriteKey]:
    """Reopen the unpublished store of another process; return it and a function that writes."""
    if shared.lock is None:
        with os_errors(f"{shared.name}: {shared.path}", OutputError):
            return LocalFolder(shared.path), partial(write_file, shared.path)
    from ndtool.publish import claims
    from ndtool.storage.objects import join
    from ndtool.storage.remotefolder import RemoteFolder

    claims.require(join(shared.path, shared.array_path), shared.lock, ", on a worker")
    storage = RemoteFolder(shared.path, shared.pending_metadata)
    return storage, storage.write


class LocalStore(NewFolder):
    """A temporary folder with a new array, which is renamed to the path of an array or store.

    documents: the array's metadata, by key. concurrency: number of chunks worth writing
    concurrently. Raises OSError.
    """

    concurrency = 1

    def __init__(
        self, zarr_target: ZarrTarget, target: Target, documents: Mapping[str, bytes]
    ) -> None:
        self._zarr_target, self._target, self._documents = zarr_target, target, documents
        self._files: list[NewFile] = []  # consolidated metadata of the enclosing groups
        clobber, sync, cleans = target.clobber, target.sync, not target.is_dry_run
        super().__init__(zarr_target.path, zarr_target.exists, clobber, sync, cleans=cleans)
        for key, body in documents.items():
            self.write(key, body)

    def require_space(self, file_count: int, nbytes: int, largest: int) -> None:
        """Raise ResourceError if there is too little space.

        nbytes: of all files. largest: of a single file. Raises OutputError if consolidated metadata
        cannot be updated.
        """
        require_space(self.working_folder, file_count, nbytes, largest, self.path)
        for group in self._zarr_target.groups:
            self._consolidated(group)

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput:
        """Return the location at which other processes can write chunks."""
        array_path = self._zarr_target.array_path
        return SharedOutput(name, metadata, self.working_folder, array_path, 0)

    def open_folder(self) -> int:
        root = (*self._zarr_target.groups, self._zarr_target.path)[0]
        folder = os.path.dirname(os.path.realpath(root))
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def require_unchanged(self) -> None:
        current = location.local_target(self._target._replace(current=existing(self._target.path)))
        if current != self._zarr_target._replace(preserved=None):
            is_new = current.exists and not self._zarr_target.exists
            change = "was created by another process" if is_new else "changed"
            raise OutputError(f"{printable(self.path)} {change} during the run")
        for group in current.groups:
            if body := self._consolidated(group):
                path = os.path.join(group, hierarchy.consolidated_name(current.version))
                file = NewFile(path, os.stat(path), True, self._target.sync)
                self._files.append(file)
                reserve(file.descriptor, len(body), path)
                write_at(file.descriptor, 0, body)
                file.sync()

    def _consolidated(self, group: str) -> bytes | None:
        """Return a group's consolidated metadata with the new array, None if it has none."""
        prefix = os.path.relpath(self._zarr_target.path, group)
        documents = {f"{prefix}/{key}": body for key, body in self._documents.items()}
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
