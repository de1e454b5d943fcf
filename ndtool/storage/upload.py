"""Uploads of remote objects: each is written to an unnamed file first, and visible when complete.

Large objects are sent to S3 as multipart uploads. Small ones, and all objects in other stores, are
sent in one request. Stores that cannot create objects atomically are refused.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Callable, Coroutine
from typing import Any

from ndtool.errors import NdtoolError, OutputError, library_message, printable, redact_urls
from ndtool.machine import signals
from ndtool.storage import failures, remote, requests
from ndtool.storage.descriptors import os_errors, read_at
from ndtool.storage.http import MAX_CONCURRENCY, Version
from ndtool.storage.s3 import S3Object

MIN_PART = 8 << 20  # minimum bytes of a part; smaller objects take one request
MAX_IN_FLIGHT = 1 << 26  # bytes of parts that are uploaded concurrently
MAX_PARTS = 10_000  # S3's limit
ABORT_TIMEOUT = 10  # timeout in seconds for aborting an upload
# Stores that create an object atomically, once it is uploaded.
ATOMIC_PROTOCOLS = ("gs", "gcs", "az", "abfs", "abfss", "memory")


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
        self._writer = writer(url)
        self.fd: int | None = unnamed_file()

    @property
    def descriptor(self) -> int:
        assert self.fd is not None, "the file is closed"
        return self.fd

    def sync(self) -> None:
        """Upload the parts, which are not visible yet."""
        signals.add_cleanup(self.drop)
        self._wait(self._writer.send(self.descriptor))

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
                current_version(self._writer.url, required=self._current is not None)
            )
        etag = self._current.etag if self._current else None
        condition: dict[str, str] = {}
        if self._must_match and etag:
            condition = {"IfMatch": etag}
        elif self._current is None and (self._must_match or not self._clobber):
            condition = {"IfNoneMatch": "*"}
        try:
            self._wait(self._writer.commit(self.descriptor, condition))
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
            requests.wait(
                asyncio.wait_for(self._writer.drop(), ABORT_TIMEOUT), self.path, OutputError
            )
        except NdtoolError:
            pass  # parts are invisible; a lifecycle rule of the bucket can remove them
        fd, self.fd = self.fd, None
        if fd is not None:
            os.close(fd)
        signals.remove_cleanup(self.drop)

    def _wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        requests.wait(coroutine, self.path, OutputError)


def current_version(url: str, required: bool = True) -> Version | None:
    """Return the version of the object at an output's URL, None if it does not exist.

    required: whether to raise an error if reads are not permitted, rather than return None.
    """

    async def version() -> Version | None:
        try:
            return await object_writer.current_version()
        except Exception as exc:
            if required or not (failures.status_of(exc) == 403 or isinstance(exc, PermissionError)):
                raise
            return None

    object_writer = writer(url)
    return requests.wait(version(), redact_urls(url), OutputError)


def require_writable(url: str, folder: bool) -> None:
    """Raise OutputError if a store denies write access, where it can be checked without a write.

    folder: whether the URL is the URL of a folder, not of an object.
    """
    object_writer = writer(remote.join(url, "zarr.json") if folder else url)
    requests.wait(object_writer.require_writable(), redact_urls(url), OutputError)


def writer(url: str) -> S3Writer | FsspecWriter:
    """Return the writer for the object at a URL; OutputError if its store is not supported."""
    protocol = url.partition("://")[0]
    if protocol in ("s3", "s3a"):
        return S3Writer(url, *remote.filesystem(url))
    if protocol in ATOMIC_PROTOCOLS:
        return FsspecWriter(url, *remote.filesystem(url))
    raise OutputError(
        f"{printable(url)}: {protocol}:// cannot be written to: expected s3://, gs://, az:// or a"
        " file"
    )


class S3Writer:
    """Writer of an S3 object."""

    def __init__(self, url: str, fs: Any, path: str) -> None:
        self.url = url
        self._object = S3Object(fs, path)
        self._creation: asyncio.Future[Any] | None = None
        self._workers: list[asyncio.Future[None]] = []
        self._parts: dict[int, dict[str, Any]] = {}

    async def current_version(self) -> Version | None:
        """Return the object's version, None if it does not exist; OutputError without a bucket."""
        try:
            return await self._object.version()
        except Exception as exc:
            if failures.status_of(exc) != 404:
                raise
        try:
            await self._object.call("head_bucket", "Bucket")
        except Exception as exc:
            if failures.status_of(exc) == 404:
                raise OutputError(f"{printable(self.url)}: there is no such bucket") from None
        return None

    async def require_writable(self) -> None:
        """Raise the server's error if writes are not permitted.

        The server checks permission before it rejects the completion of an upload that does not
        exist.
        """
        parts = {"Parts": [{"ETag": "none", "PartNumber": 1}]}
        try:
            await self._object.call(
                "complete_multipart_upload", UploadId="none", MultipartUpload=parts
            )
        except Exception as exc:
            if failures.is_denied(exc):
                raise

    async def send(self, fd: int) -> None:
        """Upload the parts of the file as a multipart upload, if it is large."""
        size = os.fstat(fd).st_size
        part_size = max(MIN_PART, -(-size // MAX_PARTS))
        if size <= MIN_PART:
            return
        # Assigned before it is awaited, so that `drop` can abort an upload that was just created.
        self._creation = asyncio.ensure_future(self._object.call("create_multipart_upload"))
        upload_id = (await asyncio.shield(self._creation))["UploadId"]
        offsets = iter(range(0, size, part_size))

        async def upload_parts() -> None:
            for offset in offsets:
                part_number = offset // part_size + 1
                body = _read_exactly(fd, offset, min(part_size, size - offset), self.url)
                response = await self._object.call(
                    "upload_part", UploadId=upload_id, PartNumber=part_number, Body=body
                )
                self._parts[part_number] = {"ETag": response["ETag"], "PartNumber": part_number}

        concurrency = max(1, min(MAX_CONCURRENCY, MAX_IN_FLIGHT // part_size))
        self._workers = [asyncio.ensure_future(upload_parts()) for _ in range(concurrency)]
        await asyncio.gather(*self._workers)

    async def commit(self, fd: int, condition: dict[str, str]) -> None:
        """Create the object, from the uploaded parts or in one request."""
        if self._creation is None:
            await self.put(_read_exactly(fd, 0, os.fstat(fd).st_size, self.url), condition)
            return
        parts = {"Parts": [self._parts[part_number] for part_number in sorted(self._parts)]}
        upload = self._creation.result()["UploadId"]

        def etag() -> str:
            digests = bytes.fromhex("".join(part["ETag"].strip('"') for part in parts["Parts"]))
            return f"{_md5(digests)}-{len(self._parts)}"

        await self._call(
            "complete_multipart_upload", condition, etag, UploadId=upload, MultipartUpload=parts
        )
        self._creation = None

    async def put(self, body: bytes, condition: dict[str, str]) -> bool:
        """Create the object in one request; FileExistsError if the condition fails.

        Returns False if the request failed but the object already has these bytes.
        """
        return await self._call("put_object", condition, lambda: _md5(body), Body=body)

    async def remove(self) -> None:
        await self._object.call("delete_object")

    async def clear(self) -> None:
        """Remove all objects in this folder."""
        prefix = {"Prefix": f"{self._object.key.rstrip('/')}/"}
        while True:
            page = await self._object.call("list_objects_v2", "Bucket", **prefix)
            keys = [{"Key": entry["Key"]} for entry in page.get("Contents", ())]
            if not keys:
                return
            request = {"Objects": keys, "Quiet": True}
            response = await self._object.call("delete_objects", "Bucket", Delete=request)
            for error in response.get("Errors", ()):
                raise OutputError(f"{printable(self.url)}: {library_message(error['Message'])}")

    async def _call(
        self, name: str, condition: dict[str, str], etag: Callable[[], str], **arguments: Any
    ) -> bool:
        """Create the object as `put` does; etag: returns its ETag, for stores that use MD5."""
        try:
            await self._object.call(name, **arguments, **condition)
        except Exception as exc:
            status = failures.status_of(exc)
            if status in (404, 409, 412) and await self._has_etag(etag):
                return False
            if "IfNoneMatch" in condition and status in (409, 412):
                raise FileExistsError from None
            if not condition or status != 501:
                raise
            # The store supports no conditions; `publish` has compared versions.
            await self._object.call(name, **arguments)
        return True

    async def _has_etag(self, etag: Callable[[], str]) -> bool:
        """Whether the object has the expected ETag.

        botocore repeats a request whose response was lost. If the first one created the object, the
        condition of the second one fails.
        """
        try:
            return ((await self._object.version()).etag or "").strip('"') == etag()
        except Exception:
            return False  # the caller raises the first error

    async def drop(self) -> None:
        """Abort the multipart upload."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        if self._creation is not None:
            upload_id = (await self._creation)["UploadId"]
            await self._object.call("abort_multipart_upload", UploadId=upload_id)
            self._creation = None


class FsspecWriter:
    """Writer of an object in another fsspec file system, by one upload."""

    def __init__(self, url: str, fs: Any, path: str) -> None:
        self.url = url
        self._object, self._fs, self._path = remote.FsspecObject(fs, path, url), fs, path

    async def current_version(self) -> Version | None:
        try:
            return await self._object.version()
        except FileNotFoundError:
            return None

    async def require_writable(self) -> None:
        """Do nothing: these stores check permission only on a write."""

    async def send(self, fd: int) -> None:
        """Do nothing: parts of an object would be visible."""

    async def commit(self, fd: int, condition: dict[str, str]) -> None:
        if not self._fs.async_impl:
            await self.put(_read_exactly(fd, 0, os.fstat(fd).st_size, self.url), condition)
            return
        await self._create("put_file", f"/dev/fd/{fd}", self._path, **_options(condition))

    async def put(self, body: bytes, condition: dict[str, str]) -> bool:
        await self._create("pipe_file", self._path, body, **_options(condition))
        return True

    async def _create(self, name: str, *arguments: Any, **options: Any) -> None:
        try:
            await self._object.call(name, *arguments, **options)
        except Exception as exc:
            if failures.is_missing(exc):
                raise OutputError(f"{printable(self.url)}: there is no such bucket") from None
            raise

    async def remove(self) -> None:
        await self._object.call("rm_file", self._path)

    async def clear(self) -> None:
        for path in await self._object.call("find", self._path):
            await self._object.call("rm_file", path)

    async def drop(self) -> None:
        """Do nothing: an incomplete upload leaves no object."""


def _options(condition: dict[str, str]) -> dict[str, str]:
    """Return fsspec's options for a condition."""
    return {"mode": "create"} if "IfNoneMatch" in condition else {}


def _md5(body: bytes) -> str:
    """Return the ETag that S3 assigns to an object sent in one request, or to a part."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()


def _read_exactly(fd: int, start: int, nbytes: int, url: str) -> bytes:
    with os_errors(f"temporary copy of {redact_urls(url)}", OutputError):
        data = read_at(fd, start, nbytes)
    assert len(data) == nbytes, "no other process writes to the file"
    return data
