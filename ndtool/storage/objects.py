"""Remote objects by their URLs: over HTTP, in S3 and in fsspec's other file systems.

fsspec's packages send the requests and find the credentials. Responses of HTTP and S3 are streamed;
all responses of an object must be of the same version.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from concurrent import futures
from contextlib import asynccontextmanager, nullcontext, suppress
from queue import Empty, SimpleQueue
from time import monotonic
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar

from ndtool.errors import (
    InputError,
    NdtoolError,
    OutputError,
    ResourceError,
    UsageError,
    library_message,
    printable,
)
from ndtool.machine import signals
from ndtool.redaction import register
from ndtool.storage import failures
from ndtool.storage.descriptors import read_at
from ndtool.storage.urls import join

T = TypeVar("T")
Write = Callable[[int, bytes], object]  # write(offset in the object, bytes)

MAX_CONCURRENCY = 64  # concurrent requests; docs/performance.md compares 64 with 10
MAX_REQUEST = 16 << 20  # maximum bytes of a request whose response is streamed
MAX_BUFFERED = 4 << 20  # maximum bytes of a request whose response is buffered in memory
MAX_BUFFERS = 10  # maximum number of responses larger than SMALL_RESPONSE in memory
SMALL_RESPONSE = 1 << 18  # bytes
MIN_PART = 8 << 20  # minimum bytes of a part of an upload; smaller objects take one request
ABORT_TIMEOUT = 10  # timeout in seconds for aborting an upload
MAX_IN_FLIGHT = 1 << 26  # bytes of parts that are uploaded concurrently
_MAX_PARTS = 10_000  # S3's limit
_CONTENT_RANGE = re.compile(r"bytes (?:([0-9]{1,18})-[0-9]*|[^/]*)/(?:([0-9]{1,18})\Z)?", re.ASCII)
_BLOCK_SIZE = 1 << 18  # bytes per read of a response
_SIGNED_SECONDS = 3600  # validity of a signed URL; it is replaced after a sixth of it
# Stores that create an object atomically, once it is uploaded.
_ATOMIC_PROTOCOLS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "memory")
_awaited: set[futures.Future[Any]] = set()  # requests for which a thread waits


class Version(NamedTuple):
    """The version of an object: headers of a response; a field is None if it was not sent."""

    etag: str | None = None
    modified: str | None = None
    size: int | None = None

    def differs(self, other: Version) -> bool:
        """Whether two versions differ in a field that both have."""
        tags = self.etag and other.etag  # ETags take precedence over times
        triples = zip(self._fields, self, other, strict=True)
        pairs = [(a, b) for name, a, b in triples if not (tags and name == "modified")]
        return any(a is not None and b is not None and a != b for a, b in pairs)


def wait(coroutine: Coroutine[Any, Any, T], url: str, kind: type[NdtoolError] = InputError) -> T:
    """Run a coroutine in fsspec's event loop, cancelled on interrupt; raise errors as `kind`."""
    from fsspec import asyn

    # A signal handler that interrupts this thread may wait for other requests. So this thread must
    # hold no lock that the event loop needs, such as that of a future.
    outcomes = SimpleQueue[tuple[Any, BaseException | None]]()

    async def run() -> None:
        try:
            outcomes.put((await coroutine, None))
        except BaseException as exc:
            outcomes.put((None, exc))

    future = asyncio.run_coroutine_threadsafe(run(), asyn.get_loop())
    _awaited.add(future)
    outcome = None
    try:
        while outcome is None:
            with suppress(Empty):
                outcome = outcomes.get(timeout=1)
            if outcome is None and not asyn.iothread[0].is_alive():
                raise ResourceError(f"{printable(url)}: not enough memory for requests")
    except BaseException:
        future.cancel()
        raise
    finally:
        _awaited.discard(future)
    result: T
    result, error = outcome
    if isinstance(error, Exception) and not isinstance(error, FileExistsError):
        error = failures.failure(error, url, kind)
    if error is not None:
        raise error from None
    return result


def finish(timeout: float) -> None:
    """Wait for requests that a signal interrupted, as the server may still execute them."""
    futures.wait(list(_awaited), timeout)


def open_object(url: str) -> RemoteObject:
    """Return the object at a URL, which may not exist."""
    fs, path = filesystem(url)
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    is_s3 = "s3" in protocols and hasattr(fs, "get_s3")
    kind = HttpObject if "http" in protocols else S3Object if is_s3 else RemoteObject
    return kind(url, fs, path)


def open_output(url: str) -> RemoteObject:
    """Return the object at a URL, to be created; OutputError if it cannot be."""
    protocol = url.partition("://")[0]
    if protocol not in _ATOMIC_PROTOCOLS:
        raise OutputError(
            f"{printable(url)}: {protocol}:// cannot be written to: expected s3://, gs://, az:// or"
            " a file"
        )
    try:
        return open_object(url)
    except InputError as exc:
        raise OutputError(exc.message, hint=exc.hint) from None


def filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the object's path in it."""
    register(url)
    spared = list[str]()
    if url.startswith("s3") and signals.is_command_line():
        # s3fs imports them for 0.1 s, and does not use them
        spared = [name for name in ("httpx", "httpx2") if name not in sys.modules]
        sys.modules.update(dict.fromkeys(spared))  # type: ignore[arg-type]
    try:
        import fsspec

        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as exc:
        package = getattr(exc.__cause__, "name", None) or ""
        is_named = package and package in str(exc)
        hint = "pip install 'ndtool[remote]'" + (f" {package}" if is_named else "")
        raise UsageError(f"{printable(url)}: {library_message(exc)}", hint=hint) from None
    except ValueError as exc:
        expected = ": expected s3://, gs://, https:// or another that fsspec supports"
        expected *= "Protocol" in str(exc)
        raise UsageError(f"{printable(url)}: {library_message(exc)}{expected}") from None
    except Exception as exc:
        raise failures.failure(exc, url) from None
    finally:
        for name in spared:
            sys.modules.pop(name, None)
    return fs, path


class RemoteObject:
    """An object in a file system of fsspec's, by up to `concurrency` concurrent requests.

    max_request: maximum bytes per request. is_ranged: whether byte ranges can be requested, known
    from the first response; else each response is the complete object.
    """

    max_request = MAX_BUFFERED
    is_ranged = True

    def __init__(self, url: str, fs: Any, path: str) -> None:
        self.url, self._fs, self._path = url, fs, path
        self.concurrency = MAX_CONCURRENCY if fs.async_impl else 1
        self._buffers = asyncio.Semaphore(MAX_BUFFERS)

    async def open(self, count: int) -> tuple[Version, bytes]:
        """Request the version, with the size, and the first `count` bytes."""
        version = await self.version()
        return version, await self._read(0, min(count, version.size or 0))

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        """Request bytes [start, stop) and write them in order; ChangedError for another version."""
        async with self._buffers if stop - start > SMALL_RESPONSE else nullcontext():
            block = await self._read(start, stop)
            if len(block) != stop - start:
                raise failures.TruncatedError
            write(start, block)

    async def version(self) -> Version:
        """Request the current version."""
        self._fs.invalidate_cache()
        info = await self.call("info", self._path)
        if info.get("type") == "directory":
            raise InputError(f"{printable(self.url)}: a directory, not an object")
        if type(info.get("size")) is not int:
            raise InputError(f"{printable(self.url)}: its size is unknown")
        return version_of(info)

    async def require_writable(self) -> None:
        """Raise the server's error if writes are not permitted, where it tells before a write."""

    async def put(self, body: bytes, condition: dict[str, str]) -> bool:
        """Create the object in one request; FileExistsError if the condition fails.

        Returns False if the request failed but the object already has these bytes.
        """
        mode = {"mode": "create"} if "IfNoneMatch" in condition else {}
        await self.call("pipe_file", self._path, body, **mode)
        return True

    async def send(self, fd: int) -> None:
        """Upload what can be uploaded of a file before the object becomes visible."""

    async def commit(self, fd: int, condition: dict[str, str]) -> None:
        """Create the object from the file."""
        mode = {"mode": "create"} if "IfNoneMatch" in condition else {}
        await self.call("put_file", f"/dev/fd/{fd}", self._path, **mode)

    async def drop(self) -> None:
        """Abort an upload that is not committed."""

    async def remove(self) -> None:
        await self.call("rm_file", self._path)

    async def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the file system, in a thread unless it is async."""
        if self._fs.async_impl:
            return await getattr(self._fs, f"_{name}")(*arguments, **options)
        return await asyncio.to_thread(getattr(self._fs, name), *arguments, **options)

    async def _read(self, start: int, stop: int) -> bytes:
        if start >= stop:
            return b""
        return bytes(await self.call("cat_file", self._path, start=start, end=stop))


class HttpObject(RemoteObject):
    """An object on an HTTP server, perhaps without support for ranges, in a session of fsspec's."""

    max_request = MAX_REQUEST

    async def open(self, count: int) -> tuple[Version, bytes]:
        async with self._get(0, count) as response:
            version, head = self._version(response), b""
            if response.status == 416:  # the object is empty
                return version._replace(size=0), head
            if response.status == 200:
                self.is_ranged, self.max_request = False, sys.maxsize
            while len(head) < count and (block := await response.content.read(count - len(head))):
                head += block
            if not self.is_ranged and len(head) < count:
                version = version._replace(size=len(head))
            if self.is_ranged and version.size is None:
                raise InputError(f"{printable(self.url)}: the server does not report its size")
            return version, head

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        async with self._get(start, stop) as response:
            if response.status == 416 or self._version(response).differs(version):
                raise failures.ChangedError
            position = _content_range(response)[0] or 0
            while position < stop:
                block = await response.content.read(min(_BLOCK_SIZE, stop - position))
                if not block and version.size is None:  # the end of the response is the object's
                    return
                if not block:
                    raise failures.TruncatedError
                position += len(block)
                if position > start:
                    write(max(start, position - len(block)), block[start - position :])

    async def version(self) -> Version:
        async with self._get(0, 1) as response:
            return self._version(response)

    @asynccontextmanager
    async def _get(self, start: int, stop: int) -> AsyncIterator[Any]:
        async with await self._request({"Range": f"bytes={start}-{stop - 1}"}) as response:
            if response.status not in (200, 206, 416):
                raise failures.HttpStatusError(response.status, response.reason or "")
            first, _ = _content_range(response)
            if response.status != 416 and (first is None or first > start):
                raise failures.HttpStatusError(206, "another byte range than the requested one")
            yield response

    async def _request(self, headers: dict[str, str]) -> Any:
        """Send a GET request; return aiohttp's response."""
        import aiohttp
        import yarl

        fs, path = self._fs, self._path
        timeout = aiohttp.ClientTimeout(sock_connect=failures.TIMEOUT, sock_read=failures.TIMEOUT)
        options = {"timeout": timeout, **fs.kwargs}
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity", **headers}
        # An encoded URL must not be encoded again, or its signature may become invalid.
        encoded = fs.encoded or (path.isascii() and path.isprintable() and " " not in path)
        session, url = await fs.set_session(), yarl.URL(path, encoded=encoded)
        response = await session.get(url, headers=headers, **options)
        if response.ok and response.headers.get("Content-Encoding", "identity") != "identity":
            response.close()
            raise InputError(
                f"{printable(path)}: the server compresses it, which the request forbids"
            )
        return response

    @staticmethod
    def _version(response: Any) -> Version:
        size, headers = _content_range(response)[1], response.headers
        return Version(headers.get("ETag"), headers.get("Last-Modified"), size)


class S3Object(HttpObject):
    """An object in an S3 bucket, through s3fs's client.

    Ranges are requested by a URL that the client signs once, in half of the processor time, on its
    connections: they are private in aiobotocore, but have the configured certificates and proxies.
    """

    def __init__(self, url: str, fs: Any, path: str) -> None:
        super().__init__(url, fs, path)
        # botocore opens 10 connections by default, and signs URLs by an outdated method
        defaults = {"max_pool_connections": MAX_CONCURRENCY, "signature_version": "s3v4"}
        fs.config_kwargs = {**defaults, **fs.config_kwargs}
        bucket, key, version = fs.split_path(path)
        if not key:
            raise InputError(f"s3://{printable(path)}: a bucket, not an object")
        self._location = {"Bucket": bucket, "Key": key}
        if version:
            self._location["VersionId"] = version
        self._signed_url, self._expires = "", 0.0
        self._creation: asyncio.Future[Any] | None = None
        self._sending: asyncio.Task[Any] | None = None
        self._etags: dict[int, str] = {}  # of the uploaded parts, by number

    async def _request(self, headers: dict[str, str]) -> Any:
        response = await self._send(headers)
        if 300 <= response.status < 404:  # the bucket is in another region, or access is denied
            response.close()
            await self._call("head_object")  # redirects the client, or raises its error
            self._expires = 0.0
            response = await self._send(headers)
        if response.status == 404 and b"NoSuchBucket" in await response.content.read(1 << 12):
            raise failures.MissingBucketError
        return response

    async def _send(self, headers: dict[str, str]) -> Any:
        """Send a GET request by the signed URL."""
        fs = self._fs
        await fs.set_session()
        client = await fs.get_s3(self._location["Bucket"])
        if monotonic() > self._expires:
            parameters = fs._get_s3_method_kwargs(client.get_object, **self._location)
            self._signed_url = await client.generate_presigned_url(
                "get_object", parameters, _SIGNED_SECONDS
            )
            self._expires = monotonic() + _SIGNED_SECONDS // 6
        request = SimpleNamespace(
            method="GET", url=self._signed_url, headers=headers, body=None, stream_output=True
        )
        return (await client._endpoint.http_session.send(request)).raw

    async def require_writable(self) -> None:
        # The server checks permission before it rejects the completion of a missing upload.
        parts = {"Parts": [{"ETag": "none", "PartNumber": 1}]}
        try:
            await self._call("complete_multipart_upload", UploadId="none", MultipartUpload=parts)
        except Exception as exc:
            if failures.is_denied(exc):
                raise

    async def put(self, body: bytes, condition: dict[str, str]) -> bool:
        return await self._create_by("put_object", condition, lambda: _md5(body), Body=body)

    async def send(self, fd: int) -> None:
        size = os.fstat(fd).st_size
        if size <= MIN_PART:
            return
        part_size = max(MIN_PART, -(-size // _MAX_PARTS))
        self._sending = asyncio.current_task()
        # Assigned before it is awaited, so that `drop` can abort an upload that was just created.
        self._creation = asyncio.ensure_future(self._call("create_multipart_upload"))
        upload_id = (await asyncio.shield(self._creation))["UploadId"]

        async def upload(number: int) -> None:
            part = {"Body": read_at(fd, (number - 1) * part_size, part_size), "PartNumber": number}
            response = await self._call("upload_part", UploadId=upload_id, **part)
            self._etags[number] = response["ETag"]

        concurrency = max(1, min(MAX_CONCURRENCY, MAX_IN_FLIGHT // part_size))
        await for_each(upload, range(1, -(-size // part_size) + 1), concurrency)

    async def commit(self, fd: int, condition: dict[str, str]) -> None:
        if self._creation is None:
            await self.put(read_at(fd, 0, os.fstat(fd).st_size), condition)
            return
        tags = [self._etags[number] for number in sorted(self._etags)]
        parts = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(tags, 1)]

        def etag() -> str:
            digests = bytes.fromhex("".join(tags).replace('"', ""))
            return f"{_md5(digests)}-{len(tags)}"

        await self._create_by(
            "complete_multipart_upload", condition, etag,
            UploadId=self._creation.result()["UploadId"], MultipartUpload={"Parts": parts},
        )  # fmt: skip
        self._creation = None

    async def drop(self) -> None:
        if self._creation is not None and self._sending is not None:
            self._sending.cancel()  # a signal has interrupted the thread that waits for it
            await asyncio.gather(self._sending, return_exceptions=True)
            await self._call("abort_multipart_upload", UploadId=(await self._creation)["UploadId"])
            self._creation = None

    async def _call(self, operation: str, **arguments: Any) -> Any:
        """Call an S3 operation on the object as s3fs does, without its retries."""
        fs = self._fs
        await fs.set_session()
        method = getattr(await fs.get_s3(self._location["Bucket"]), operation)
        return await method(**fs._get_s3_method_kwargs(method, **self._location, **arguments))

    async def _create_by(
        self, name: str, condition: dict[str, str], etag: Callable[[], str], **arguments: Any
    ) -> bool:
        """Create the object as `put` does; etag: returns its ETag, for stores that use MD5."""
        try:
            await failures.retry(lambda: self._call(name, **arguments, **condition))
        except Exception as exc:
            status = failures.status_of(exc)
            if status in (404, 409, 412) and await self._has_etag(etag):
                return False
            if "IfNoneMatch" in condition and status in (409, 412):
                raise FileExistsError from None
            if not condition or status != 501:
                raise
            # The store supports no conditions; `publish` has compared versions.
            await self._call(name, **arguments)
        return True

    async def _has_etag(self, etag: Callable[[], str]) -> bool:
        """Whether the object has the expected ETag.

        A request whose response was lost is repeated. If the first one created the object, the
        condition of the second one fails.
        """
        try:
            return ((await self.version()).etag or "").strip('"') == etag()
        except Exception:
            return False  # the caller raises the first error


def current_version(url: str, required: bool = True) -> Version | None:
    """Return the version of the object at an output's URL, None if it does not exist.

    required: whether to raise an error if reads are not permitted, rather than return None.
    """
    output = open_output(url)

    async def version() -> Version | None:
        try:
            return await if_exists(output.version())
        except Exception as exc:
            if required or not failures.is_denied(exc):
                raise
            return None

    return wait(version(), url, OutputError)


def require_writable(url: str, folder: bool) -> None:
    """Raise OutputError if a store denies write access, where it can be checked without a write.

    folder: whether the URL is the URL of a folder, not of an object.
    """
    output = open_output(join(url, "zarr.json") if folder else url)
    wait(output.require_writable(), url, OutputError)


async def read_range(
    source: RemoteObject, start: int, stop: int, version: Version, write: Write
) -> None:
    """Read a byte range of an object; a retry requests only the missing bytes."""
    position = start

    def advance(offset: int, block: bytes) -> None:
        nonlocal position
        write(offset, block)
        position = offset + len(block)

    while position < stop:
        await failures.retry(
            lambda: source.fetch(
                position, min(stop, position + source.max_request), version, advance
            )
        )


async def if_exists(request: Coroutine[Any, Any, T]) -> T | None:
    """Await a request for an object; return None if it does not exist."""
    try:
        return await request
    except Exception as exc:
        if failures.is_missing(exc):
            return None
        raise


async def for_each(
    action: Callable[[T], Coroutine[Any, Any, None]], items: Iterable[T], concurrency: int
) -> None:
    """Await `action(item)` for all items, several at once; after a failure, none is in progress."""
    remaining = iter(items)

    async def worker() -> None:
        for item in remaining:
            await action(item)

    workers = [asyncio.ensure_future(worker()) for _ in range(concurrency)]
    try:
        await asyncio.gather(*workers)
    finally:
        for future in workers:
            future.cancel()
        await asyncio.gather(*workers, return_exceptions=True)


async def remove(urls: Iterable[str]) -> None:
    """Remove objects, about in this order; missing objects are ignored."""

    async def remove_one(url: str) -> None:
        await asyncio.wait_for(if_exists(open_output(url).remove()), ABORT_TIMEOUT)

    await for_each(remove_one, urls, MAX_CONCURRENCY)


async def list_folder(url: str, operation: str = "ls") -> dict[str, dict[str, Any]]:
    """Return fsspec's info about the entries of a folder ("ls") or the objects below it ("find").

    Keys are relative paths.
    """
    fs, path = filesystem(url)
    fs.invalidate_cache()
    try:
        entries = await RemoteObject(url, fs, path).call(operation, path, detail=True)
    except FileNotFoundError:
        return {}
    entries = entries if isinstance(entries, dict) else {info["name"]: info for info in entries}
    prefix = f"{path.strip('/')}/".lstrip("/")
    names = ((name.strip("/"), info) for name, info in entries.items())
    return {name.removeprefix(prefix): info for name, info in names if name.startswith(prefix)}


def version_of(info: dict[str, Any]) -> Version:
    """Return the version of an object from fsspec's info about it."""
    etags = "ETag", "etag", "generation", "md5"
    times = "mtime", "LastModified", "last_modified", "updated", "modified", "created"
    etag, time = (next(filter(None, map(info.get, keys)), None) for keys in (etags, times))
    return Version(etag and str(etag), time and str(time), info.get("size"))


def _content_range(response: Any) -> tuple[int | None, int | None]:
    """Return the start of a response's range and the total size, None if unknown or too large."""
    if response.status == 200:
        return 0, response.content_length
    match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    start, size = match.groups() if match else (None, None)
    return int(start) if start else None, int(size) if size else None


def _md5(body: bytes) -> str:
    """Return the ETag that S3 assigns to an object sent in one request, or to a part."""
    return hashlib.md5(body, usedforsecurity=False).hexdigest()
