"""New remote objects, and arrays of many objects: published when complete, else removed."""

from __future__ import annotations

import asyncio
import os

from ndtool.arrays.sink import Unpublished
from ndtool.errors import NdtoolError, OutputError, option, redact_urls
from ndtool.machine import signals
from ndtool.machine.threads import AdmissionLock
from ndtool.publish import claims
from ndtool.publish.claims import Claim
from ndtool.publish.targets import CurrentFile, Target, exists_error
from ndtool.storage import objects
from ndtool.storage.localfolder import METADATA_NAMES
from ndtool.storage.remotefolder import RemoteFolder
from ndtool.storage.urls import join


class NewObject(Unpublished):
    """A new remote object; its bytes are written to an unnamed file first.

    Large objects are sent to S3 as multipart uploads. Small ones, and all objects in other stores,
    are sent in one request.
    """

    def __init__(self, target: Target, current: CurrentFile) -> None:
        from ndtool.storage.tempfiles import unnamed_file

        self.path, self._version, self._current = redact_urls(target.path), target.version, current
        self._object = objects.open_output(target.path)
        self.descriptor = unnamed_file()

    def sync(self) -> None:
        """Upload the parts, which are not visible yet."""
        signals.add_cleanup(self.drop)
        objects.wait(self._object.send(self.descriptor), self.path, OutputError)

    def require_unchanged(self) -> None:
        self._current.require_unchanged()

    def publish(self) -> None:
        signals.set_published(False)  # the upload may take long; the object is visible after it
        version, condition = self._version, dict[str, str]()
        must_match = self._current.requires_unchanged
        if must_match or not self._current.may_replace:
            latest = objects.current_version(self._object.url, required=version is not None)
            if latest is not None and (version is None or not must_match):
                raise self._exists_error()
            if version is not None and (latest is None or latest.differs(version)):
                change = "was removed" if latest is None else "changed"
                raise OutputError(f"{self.path} {change} during the run")
            if version is None:
                condition = {"IfNoneMatch": "*"}
            elif version.etag:
                condition = {"IfMatch": version.etag}
        try:
            objects.wait(self._object.commit(self.descriptor, condition), self.path, OutputError)
        except FileExistsError:
            raise self._exists_error() from None
        signals.set_published()

    def _exists_error(self) -> OutputError:
        if self._current.requires_unchanged:
            return OutputError(
                f"{self.path} was created by another process during the run",
                hint=f"{option('only', True)} replaces it in any case",
            )
        return exists_error(self.path)

    def drop(self) -> None:
        """Abort the upload unless it is published, and close the file."""
        if self.descriptor < 0:
            return
        try:
            objects.wait(
                asyncio.wait_for(self._object.drop(), objects.ABORT_TIMEOUT), self.path, OutputError
            )
        except NdtoolError:
            pass  # parts are invisible; a lifecycle rule of the bucket can remove them
        fd, self.descriptor = self.descriptor, -1
        if fd >= 0:
            os.close(fd)
        signals.remove_cleanup(self.drop)


class NewObjects(RemoteFolder, Unpublished):
    """A remote store to which a run writes an array; its objects are removed on failure.

    path: the array's folder in the store, which the run claims. No object is replaced. Metadata are
    written last, from the outermost group to the array, so that an array is visible only when
    complete. pending_metadata: metadata that are not written yet, by key.
    """

    def __init__(self, url: str, path: str) -> None:
        super().__init__(url)
        self.pending_metadata: dict[str, bytes] = {}
        self._created_urls: list[str] = []
        self._admission_lock, self._is_shared = AdmissionLock(url), False
        signals.set_published(False)
        self._path, self._claim = path, Claim(join(url, path))
        signals.add_cleanup(self.drop)

    def share_claim(self) -> tuple[dict[str, bytes], bytes]:
        """Return the pending metadata and the lock object, for other processes that write chunks.

        These processes replace objects, as a task may be repeated; so the folder must be empty.
        """
        if self.list_entries(self._path):
            raise self._exists_error(join(self.url, self._path))
        self._is_shared = True
        return self.pending_metadata, self._claim.lock

    def write(self, key: str, body: bytes | memoryview) -> None:
        if key.rpartition("/")[2] in METADATA_NAMES:
            self.pending_metadata[key] = bytes(body)
            return
        with self._admission_lock.admit():
            self._create(key, bytes(body))

    def publish(self) -> None:
        """Write the metadata, the array's last; OutputError if the claim was lost."""
        claims.require(self._claim.working_folder, self._claim.lock)
        pending = self.pending_metadata
        for key in sorted(pending, key=lambda key: (key.count("/"), ".zattrs" not in key)):
            self._create(key, pending[key])
        self._created_urls.clear()
        self._claim.release()
        signals.remove_cleanup(self.drop)

    def drop(self) -> None:
        """Remove the written objects, those of other processes included, unless published."""
        self._admission_lock.close(objects.ABORT_TIMEOUT)
        objects.finish(objects.ABORT_TIMEOUT)
        try:  # metadata first, so that the array is no longer visible
            objects.wait(objects.remove(reversed(self._created_urls)), self.path, OutputError)
        except NdtoolError:
            return  # without metadata, the remaining objects are no array
        self._created_urls.clear()
        if self._is_shared:
            self._claim.drop()
        else:
            self._claim.release()
        signals.remove_cleanup(self.drop)

    def _create(self, key: str, body: bytes) -> None:
        """Create an object; OutputError if another process has, unless it is a group's."""
        url, is_group = join(self.url, key), not key.startswith(f"{self._path}/".lstrip("/"))
        if not is_group:
            self._created_urls.append(url)  # before the request, as its response may be lost
        try:
            request = objects.open_output(url).put(body, {"IfNoneMatch": "*"})
            if objects.wait(request, url, OutputError) and is_group:
                self._created_urls.append(url)
        except FileExistsError:
            if not is_group:
                self._created_urls.remove(url)
                raise self._exists_error(url) from None

    def _exists_error(self, url: str) -> OutputError:
        return OutputError(f"{redact_urls(url)} was created by another process during the run")
