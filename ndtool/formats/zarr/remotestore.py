"""New arrays of remote Zarr stores, which become visible with their metadata."""

from __future__ import annotations

from collections.abc import Mapping

from ndtool.arrays.source import ArrayMetadata
from ndtool.formats.zarr.location import ZarrTarget
from ndtool.publish.newobjects import NewObjects
from ndtool.publish.sinks import SharedOutput
from ndtool.storage import locations


class RemoteStore(NewObjects):
    """Objects of a new array in a remote store, of which the metadata are written last.

    A response means that an object is stored; objects are written on the condition that they do not
    exist. documents: the metadata of the array and of its groups, by key.
    """

    def __init__(self, zarr_target: ZarrTarget, documents: Mapping[str, bytes]) -> None:
        self._array_path = zarr_target.array_path
        super().__init__(zarr_target.path, zarr_target.array_path)
        for key, body in documents.items():
            if self.read(key) is None:  # the metadata of existing groups are preserved
                self.write(key, body)

    def require_space(self, file_count: int, nbytes: int, largest: int) -> None:
        """Do nothing: object stores do not report free space."""

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput | None:
        """Return the location at which other processes can write chunks, None if they cannot."""
        if not locations.is_shared(self.url):
            return None
        return SharedOutput(name, metadata, self.url, self._array_path, 0, *self.share_claim())
