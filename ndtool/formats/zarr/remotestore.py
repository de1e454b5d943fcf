"""New arrays of remote Zarr stores, which become visible with their metadata."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import NdtoolError
from ndtool.formats.zarr import hierarchy
from ndtool.formats.zarr.hierarchy import Body, WriteKey, consolidation_error, group_errors
from ndtool.formats.zarr.location import ZarrTarget
from ndtool.formats.zarr.metadata import label
from ndtool.publish.newobjects import NewObjects
from ndtool.publish.shared import SharedOutput
from ndtool.storage import locations
from ndtool.storage.local import Folder
from ndtool.storage.localfolder import METADATA_NAMES


class RemoteStore(NewObjects):
    """Objects of a new array in a remote store, of which the metadata are written last.

    A response means that an object is stored; objects are written on the condition that they do not
    exist. array_path: of the array in the store.
    """

    def __init__(self, zarr_target: ZarrTarget) -> None:
        self.array_path, self._groups = zarr_target.array_path, zarr_target.groups
        super().__init__(zarr_target.path, zarr_target.array_path)

    def write(self, key: str, body: Body) -> None:
        # The metadata of existing groups are preserved.
        if key.rpartition("/")[2] not in METADATA_NAMES or self.read(key) is None:
            super().write(key, body)

    def require_space(self, file_count: int, nbytes: int, largest: int) -> None:
        """Check only the size of consolidated metadata: object stores do not report free space."""
        for group in self._groups:
            with group_errors(label(self.path, group)):
                hierarchy.require_consolidated_size(self.subfolder(group), self.pending_metadata)

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput | None:
        """Return the location at which other processes can write chunks, None if they cannot."""
        if not locations.is_shared(self.url):
            return None
        return SharedOutput(name, metadata, self.url, self.array_path, 0, *self.share_claim())

    def publish(self) -> None:
        super().publish()
        for group in self._groups:
            open_group = partial(self.subfolder, group)
            _consolidate(open_group, open_group().write, label(self.path, self.array_path))


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
        raise consolidation_error(path, storage.path, exc) from None
