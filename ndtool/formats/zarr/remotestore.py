"""New arrays of remote Zarr stores, which become visible with their metadata."""

from __future__ import annotations

from collections.abc import Mapping

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError
from ndtool.formats.zarr import hierarchy
from ndtool.formats.zarr.location import ZarrTarget
from ndtool.publish.newobjects import NewObjects
from ndtool.publish.sinks import SharedOutput
from ndtool.storage import locations, objects
from ndtool.storage.objects import join


class RemoteStore(NewObjects):
    """Objects of a new array in a remote store, of which the metadata are written last.

    A response means that an object is stored; objects are written on the condition that they do not
    exist. documents: the metadata of the array and of its groups, by key.
    """

    def __init__(self, zarr_target: ZarrTarget, documents: Mapping[str, bytes]) -> None:
        self._array_path, self._groups = zarr_target.array_path, zarr_target.groups
        self._name = hierarchy.consolidated_name(zarr_target.version)
        super().__init__(zarr_target.path, zarr_target.array_path)
        for key, body in documents.items():
            if self.read(key) is None:  # the metadata of existing groups are preserved
                self.write(key, body)

    def require_space(self, file_count: int, nbytes: int, largest: int) -> None:
        """Check only consolidated metadata: object stores do not report free space."""
        for group in self._groups:
            self._consolidated(group)

    def share(self, name: str, metadata: ArrayMetadata) -> SharedOutput | None:
        """Return the location at which other processes can write chunks, None if they cannot."""
        if not locations.is_shared(self.url):
            return None
        return SharedOutput(name, metadata, self.url, self._array_path, 0, *self.share_claim())

    def publish(self) -> None:
        super().publish()
        for group in self._groups:
            while not self._add_consolidated(group):
                pass

    def _consolidated(self, group: str) -> bytes | None:
        """Return a group's consolidated metadata with the new array, None if it has none."""
        prefix, pending = f"{group}/".lstrip("/"), self.pending_metadata.items()
        documents = {
            key.removeprefix(prefix): raw for key, raw in pending if key.startswith(prefix)
        }
        return hierarchy.add_consolidated(self.subfolder(group), self._name, documents)

    def _add_consolidated(self, group: str) -> bool:
        """Update a group's consolidated metadata; False if another run changed them meanwhile."""
        url = join(self.url, f"{group}/{self._name}".lstrip("/"))
        version = objects.current_version(url)
        if (body := self._consolidated(group)) is None or version is None:
            return True
        condition = {"IfMatch": version.etag} if version.etag else {}
        try:
            objects.wait(objects.open_output(url).put(body, condition), url, OutputError)
        except OutputError:
            latest = objects.current_version(url)
            if latest is None or not latest.differs(version):
                raise
            return False
        return True
