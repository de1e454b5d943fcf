"""Uploads of remote objects: each is written to an unnamed file first, and visible when complete.

Large objects are sent to S3 as multipart uploads. Small ones, and all objects in other stores, are
sent in one request.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine
from typing import Any

from ndtool.errors import NdtoolError, OutputError, redact_urls
from ndtool.machine import signals
from ndtool.storage import failures, objects
from ndtool.storage.objects import Version

ABORT_TIMEOUT = 10  # timeout in seconds for aborting an upload


class Upload:
    """A new remote object, with the methods of NewFile.

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
        self.fd: int | None = unnamed_file()

    @property
    def descriptor(self) -> int:
        assert self.fd is not None, "the file is closed"
        return self.fd

    def sync(self) -> None:
        """Upload the parts, which are not visible yet."""
        signals.add_cleanup(self.drop)
        self._wait(self._object.send(self.descriptor))

    def open_folder(self) -> None:
        """Return None: object stores have conditional requests instead of locks."""

    def require_unchanged(self) -> None:
        """Raise OutputError if the condition no longer holds."""
        if self._condition is not None:
            self._condition()

    def publish(self) -> None:
        """Publish the object; OutputError if the current one may not be replaced."""
        signals.set_published(False)  # the upload may take long; the object is visible after it
        if self._must_match or not self._clobber:
            self._require_unchanged(
                current_version(self._object.url, required=self._current is not None)
            )
        etag = self._current.etag if self._current else None
        condition: dict[str, str] = {}
        if self._must_match and etag:
            condition = {"IfMatch": etag}
        elif self._current is None and (self._must_match or not self._clobber):
            condition = {"IfNoneMatch": "*"}
        try:
            self._wait(self._object.commit(self.descriptor, condition))
        except FileExistsError:
            raise self._exists_error() from None
        signals.set_published()

    def _exists_error(self) -> OutputError:
        if self._must_match:
            return OutputError(
                f"{self.path} was created by another process during the run",
                hint="--only replaces it in any case",
            )
        return OutputError(f"{self.path} exists and may not be replaced")

    def _require_unchanged(self, latest: Version | None) -> None:
        if not self._must_match and latest is not None:
            raise self._exists_error()
        if self._must_match and (self._current is None) != (latest is None):
            change = "was removed" if latest is None else "was created by another process"
            raise OutputError(f"{self.path} {change} during the run")
        if self._current is not None and latest is not None and latest.differs(self._current):
            raise OutputError(f"{self.path} changed during the run")

    def sync_folder(self) -> None:
        """Do nothing: an object is durable when the store responds."""

    def drop(self) -> None:
        """Abort the upload unless it is published, and close the file."""
        if self.fd is None:
            return
        try:
            objects.wait(
                asyncio.wait_for(self._object.drop(), ABORT_TIMEOUT), self.path, OutputError
            )
        except NdtoolError:
            pass  # parts are invisible; a lifecycle rule of the bucket can remove them
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)
        signals.remove_cleanup(self.drop)

    def _wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        objects.wait(coroutine, self.path, OutputError)


def current_version(url: str, required: bool = True) -> Version | None:
    """Return the version of the object at an output's URL, None if it does not exist.

    required: whether to raise an error if reads are not permitted, rather than return None.
    """

    async def version() -> Version | None:
        try:
            return await output.current_version()
        except Exception as exc:
            if required or not (failures.status_of(exc) == 403 or isinstance(exc, PermissionError)):
                raise
            return None

    output = objects.open_output(url)
    return objects.wait(version(), url, OutputError)


def require_writable(url: str, folder: bool) -> None:
    """Raise OutputError if a store denies write access, where it can be checked without a write.

    folder: whether the URL is the URL of a folder, not of an object.
    """
    output = objects.open_output(objects.join(url, "zarr.json") if folder else url)
    objects.wait(output.require_writable(), url, OutputError)
