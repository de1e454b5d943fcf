"""New remote objects, and arrays of many objects: published when complete, else removed."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from ndtool.arrays.sink import Unpublished
from ndtool.errors import NdtoolError, OutputError, redact_urls
from ndtool.machine import signals
from ndtool.publish import claims
from ndtool.publish.claims import Claim
from ndtool.publish.cleanup import AdmissionLock
from ndtool.publish.targets import exists_error
from ndtool.storage import objects
from ndtool.storage.localfolder import METADATA_NAMES
from ndtool.storage.locations import join
from ndtool.storage.objects import Version
from ndtool.storage.remotefolder import RemoteFolder


class NewObject(Unpublished):
    """A new remote object; its bytes are written to an unnamed file first.

    Large objects are sent to S3 as multipart uploads. Small ones, and all objects in other stores,
    are sent in one request.
    current: the version of the current object, None if there is none or it is unknown. clobber:
    whether it may be replaced. requires_unchanged: whether it must be unchanged when the new object
    is published. condition: another check before publication, which raises OutputError.
    """

    def __init__(
        self,
        url: str,
        current: Version | None,
        clobber: bool,
        requires_unchanged: bool,
        condition: Callable[[], None] | None = None,
    ) -> None:
        from ndtool.storage.tempfiles import unnamed_file

        self.path = redact_urls(url)
        self._current, self._clobber, self._must_match = current, clobber, requires_unchanged
        self._condition = condition
        self._object = objects.open_output(url)
        self.descriptor = unnamed_file()

    def sync(self) -> None:
        """Upload the parts, which are not visible yet."""
        signals.add_cleanup(self.drop)
        objects.wait(self._object.send(self.descriptor), self.path, OutputError)

    def require_unchanged(self) -> None:
        if self._condition is not None:
            self._condition()

    def publish(self) -> None:
        signals.set_published(False)  # the upload may take long; the object is visible after it
        current, condition = self._current, dict[str, str]()
        if self._must_match or not self._clobber:
            latest = objects.current_version(self._object.url, required=current is not None)
            if latest is not None and (current is None or not self._must_match):
                raise self._exists_error()
            if current is not None and (latest is None or latest.differs(current)):
                change = "was removed" if latest is None else "changed"
                raise OutputError(f"{self.path} {change} during the run")
            if current is None:
                condition = {"IfNoneMatch": "*"}
            elif current.etag:
                condition = {"IfMatch": current.etag}
        try:
            objects.wait(self._object.commit(self.descriptor, condition), self.path, OutputError)
        except FileExistsError:
            raise self._exists_error() from None
        signals.set_published()

    def _exists_error(self) -> OutputError:
        if self._must_match:
            return OutputError(
                f"{self.path} was created by another process during the run",
                hint="--only replaces it in any case",
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
            location = redact_urls(join(self.url, self._path))
            raise OutputError(f"{location} was created by another process during the run")
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
        for key in sorted(
            self.pending_metadata, key=lambda key: (key.count("/"), ".zattrs" not in key)
        ):
            try:
                self._create(key, self.pending_metadata[key])
            except OutputError:
                if self._is_in_array(key) or self.subfolder("").read(key) is None:
                    raise  # a group that another process has created is accepted
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

    def _is_in_array(self, key: str) -> bool:
        """Whether a key is in the folder of the array; other runs may share a group."""
        return key.startswith(f"{self._path}/".lstrip("/"))

    def _create(self, key: str, body: bytes) -> None:
        url = join(self.url, key)
        if self._is_in_array(key):
            self._created_urls.append(url)  # before the request, as its response may be lost
        try:
            request = objects.open_output(url).put(body, {"IfNoneMatch": "*"})
            if objects.wait(request, url, OutputError) and not self._is_in_array(key):
                self._created_urls.append(url)
        except FileExistsError:
            if self._is_in_array(key):
                self._created_urls.remove(url)
            raise OutputError(
                f"{redact_urls(url)} was created by another process during the run"
            ) from None
