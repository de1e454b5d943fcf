"""A new object behind a URL: built in a file without a name, sent, and there only when complete.

Large ones go to S3 in parts, which become the object all at once; smaller ones, and those to other
stores, in one request. What a store cannot promise is not tried there.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

from ndtool import endings
from ndtool.arrays import failures, remote
from ndtool.arrays.remote import Version
from ndtool.arrays.storage import failure, read_at
from ndtool.errors import NdtoolError, OutputError, printable, redacted

PART = 8 << 20  # bytes of a part, at least; a smaller object is sent as one
HELD = 1 << 26  # bytes of parts that are on their way
MOST_PARTS = 10_000  # which is S3's limit
PATIENCE = 10  # seconds that dropping an upload may take
# Stores where an object appears when all of it has arrived, and not before.
WHOLE = ("gs", "gcs", "az", "abfs", "abfss", "memory")


class Upload:
    """What NewFile is for a path, for a URL.

    old: what is there now, as far as that is known. clobber: whether it may be replaced. keeps:
    whether the new object was made from the old one, which then must still be there.
    """

    def __init__(self, url: str, old: Version | None, clobber: bool, keeps: bool) -> None:
        from ndtool.arrays.spill import unnamed_file

        self.path = redacted(url)
        self._old, self._clobber, self._keeps = old, clobber, keeps
        self._store = store(url)
        self.fd: int | None = unnamed_file()

    @property
    def descriptor(self) -> int:
        """Where its bytes are written."""
        assert self.fd is not None, "the file is closed"
        return self.fd

    def sync(self) -> None:
        """Send what can be sent before the object is there."""
        endings.unwind()
        self._wait(self._store.send(self.descriptor))

    def take_name(self) -> None:
        """Let the object be there; OutputError if what is there may not be replaced."""
        endings.settle(False)  # to send it may take long, and it is there at the end of that
        if self._keeps or not self._clobber:
            self._require_same(existing(self._store.url))
        tag = self._old.etag if self._old else None
        condition: dict[str, str] = {}
        if self._keeps and tag:
            condition = {"IfMatch": tag}
        elif self._old is None and (self._keeps or not self._clobber):
            condition = {"IfNoneMatch": "*"}
        try:
            self._wait(self._store.commit(self.descriptor, condition))
        except FileExistsError:
            raise self._refusal() from None
        endings.settle()

    def _refusal(self) -> OutputError:
        if self._keeps:
            return OutputError(f"{self.path} was made by others during the run")
        return OutputError(f"{self.path} exists, and nothing may be replaced")

    def _require_same(self, now: Version | None) -> None:
        if not self._keeps and now is not None:
            raise self._refusal()
        if self._keeps and (self._old is None) != (now is None):
            happened = "was removed" if now is None else "was made by others"
            raise OutputError(f"{self.path} {happened} during the run")
        if self._old is not None and now is not None and now.differs(self._old):
            raise OutputError(f"{self.path} changed during the run")

    def sync_folder(self) -> None:
        """Do nothing: a store answers when it has the object."""

    def drop(self) -> None:
        """Let go of everything, and drop what was sent if the object is not there."""
        fd, self.fd = self.fd, None
        if fd is None:
            return
        try:
            remote.wait(asyncio.wait_for(self._store.drop(), PATIENCE), self.path, OutputError)
        except NdtoolError:
            pass  # nobody sees the parts; a store may be told to remove them after some days
        os.close(fd)

    def _wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        remote.wait(coroutine, self.path, OutputError)


def existing(url: str, matters: bool = True) -> Version | None:
    """Return what is at a URL that is written to, None where nothing is.

    matters: whether it must be known; who may only write to a store is not told.
    """

    async def look() -> Version | None:
        try:
            return await place.existing()
        except Exception as exc:
            if matters or not (failures.status_of(exc) == 403 or isinstance(exc, PermissionError)):
                raise
            return None

    place = store(url)
    return remote.wait(look(), redacted(url), OutputError)


def store(url: str) -> Bucket | Whole:
    """Return how objects get to where a URL points; OutputError where that cannot be."""
    protocol = url.partition("://")[0]
    if protocol in ("s3", "s3a"):
        return Bucket(url, *remote.filesystem(url))
    if protocol in WHOLE:
        return Whole(url, *remote.filesystem(url))
    raise OutputError(
        f"{printable(url)}: {protocol}:// cannot be written to: expected s3://, gs://, az:// or a"
        " file"
    )


class Bucket:
    """An object of S3's that is made."""

    def __init__(self, url: str, fs: Any, path: str) -> None:
        self.url = url
        self._object = remote.S3(fs, path)
        self._started: asyncio.Future[Any] | None = None
        self._workers: list[asyncio.Future[None]] = []
        self._parts: dict[int, dict[str, Any]] = {}

    async def existing(self) -> Version | None:
        """Return what is there; where nothing is, the bucket must be."""
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

    async def send(self, fd: int) -> None:
        """Send parts, where there is more than one."""
        size = os.fstat(fd).st_size
        part = max(PART, -(-size // MOST_PARTS))
        if size <= PART:
            return
        # Kept, so that one that was just started when the run ends can be dropped.
        self._started = asyncio.ensure_future(self._object.call("create_multipart_upload"))
        started = (await asyncio.shield(self._started))["UploadId"]
        places = iter(range(0, size, part))

        async def one_by_one() -> None:
            for at in places:
                number = at // part + 1
                body = _exactly(fd, at, min(part, size - at), self.url)
                reply = await self._object.call(
                    "upload_part", UploadId=started, PartNumber=number, Body=body
                )
                self._parts[number] = {"ETag": reply["ETag"], "PartNumber": number}

        at_once = max(1, min(remote.AT_ONCE, HELD // part))
        self._workers = [asyncio.ensure_future(one_by_one()) for _ in range(at_once)]
        await asyncio.gather(*self._workers)

    async def commit(self, fd: int, condition: dict[str, str]) -> None:
        """Make one object of the parts, or of the file."""
        if self._started is None:
            await self.put(_exactly(fd, 0, os.fstat(fd).st_size, self.url), condition)
            return
        parts = {"Parts": [self._parts[number] for number in sorted(self._parts)]}
        upload = self._started.result()["UploadId"]
        await self._call(
            "complete_multipart_upload", condition, UploadId=upload, MultipartUpload=parts
        )
        self._started = None

    async def put(self, body: bytes, condition: dict[str, str]) -> None:
        """Make the object in one request; FileExistsError where the condition is not met."""
        await self._call("put_object", condition, Body=body)

    async def remove(self) -> None:
        """Remove the object."""
        await self._object.call("delete_object")

    async def clear(self) -> None:
        """Remove all objects in the folder of this name."""
        listed = {"Prefix": f"{self._object.key.rstrip('/')}/"}
        while True:
            found = await self._object.call("list_objects_v2", "Bucket", **listed)
            keys = [{"Key": one["Key"]} for one in found.get("Contents", ())]
            if not keys:
                return
            which = {"Objects": keys, "Quiet": True}
            reply = await self._object.call("delete_objects", "Bucket", Delete=which)
            for refused in reply.get("Errors", ()):
                raise OutputError(f"{printable(self.url)}: {printable(str(refused['Message']))}")

    async def _call(self, name: str, condition: dict[str, str], **arguments: Any) -> None:
        try:
            await self._object.call(name, **arguments, **condition)
        except Exception as exc:
            status = failures.status_of(exc)
            if "IfNoneMatch" in condition and status in (409, 412):
                raise FileExistsError from None
            if not condition or status != 501:
                raise
            await self._object.call(name, **arguments)  # it knows no conditions, and was looked at

    async def drop(self) -> None:
        """Remove parts that were sent in vain."""
        for worker in self._workers:
            worker.cancel()
        await asyncio.gather(*self._workers, return_exceptions=True)
        if self._started is not None:
            started, self._started = (await self._started)["UploadId"], None
            await self._object.call("abort_multipart_upload", UploadId=started)


class Whole:
    """An object of a store that is sent in one call of fsspec's."""

    def __init__(self, url: str, fs: Any, path: str) -> None:
        self.url = url
        self._fs, self._path = fs, path

    async def existing(self) -> Version | None:
        """Return what is there."""
        try:
            return await remote.Plain(self._fs, self._path, self.url).version()
        except FileNotFoundError:
            return None

    async def send(self, fd: int) -> None:
        """Do nothing: parts would be seen."""

    async def commit(self, fd: int, condition: dict[str, str]) -> None:
        """Send the file."""
        if not self._fs.async_impl:
            await self.put(_exactly(fd, 0, os.fstat(fd).st_size, self.url), condition)
            return
        await self._fs._put_file(f"/dev/fd/{fd}", self._path, **_options(condition))

    async def put(self, body: bytes, condition: dict[str, str]) -> None:
        """Send bytes; FileExistsError where the condition is not met, as far as the store knows."""
        options = _options(condition)
        if self._fs.async_impl:
            await self._fs._pipe_file(self._path, body, **options)
        else:
            await asyncio.to_thread(self._fs.pipe_file, self._path, body, **options)

    async def remove(self) -> None:
        """Remove the object."""
        if self._fs.async_impl:
            await self._fs._rm_file(self._path)
        else:
            await asyncio.to_thread(self._fs.rm_file, self._path)

    async def clear(self) -> None:
        """Remove all objects in the folder of this name."""
        if self._fs.async_impl:
            for path in await self._fs._find(self._path):
                await self._fs._rm_file(path)
        else:
            for path in await asyncio.to_thread(self._fs.find, self._path):
                await asyncio.to_thread(self._fs.rm_file, path)

    async def drop(self) -> None:
        """Do nothing: what was not sent whole is not there."""


def _options(condition: dict[str, str]) -> dict[str, str]:
    """Return a condition as fsspec says it."""
    return {"mode": "create"} if "IfNoneMatch" in condition else {}


def _exactly(fd: int, start: int, nbytes: int, url: str) -> bytes:
    try:
        piece = read_at(fd, start, nbytes)
    except OSError as exc:
        raise failure(exc, f"temporary copy of {redacted(url)}", OutputError) from None
    assert len(piece) == nbytes, "it is our own file"
    return piece
