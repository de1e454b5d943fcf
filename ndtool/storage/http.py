"""Reading of remote objects: the protocol of readers, and range requests over HTTP.

ndtool implements requests over HTTP and S3 itself, on fsspec's sessions: it streams responses, and
checks that all of them are of the same version of the object.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

from ndtool.errors import InputError, printable
from ndtool.storage import failures

Write = Callable[[int, bytes], object]  # write(offset in the object, bytes)

MAX_CONCURRENCY = 64  # concurrent requests; docs/performance.md compares 64 with 10
MAX_REQUEST = 16 << 20  # maximum bytes of a request whose response is streamed
_BLOCK_SIZE = 1 << 18  # bytes per read of a response


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


class FirstResponse(NamedTuple):
    """The first response of a server. head: the first bytes of the object."""

    version: Version
    head: bytes
    supports_ranges: bool


class ObjectReader(Protocol):
    """Reader of one remote object, by up to `concurrency` concurrent requests.

    max_request: maximum bytes per request.
    """

    max_request: int
    concurrency: int

    async def open(self, count: int) -> FirstResponse:
        """Request the first `count` bytes and the version."""

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        """Request bytes [start, stop) and write them in order; ChangedError for another version."""

    async def download_all(self, write: Write) -> Version:
        """Request the complete object and write it in order, where ranges are unsupported."""
        raise AssertionError("the server supports ranges")

    async def version(self) -> Version:
        """Request the current version."""


class HttpObject:
    """Reader of an object on an HTTP server, perhaps without support for ranges."""

    max_request, concurrency = MAX_REQUEST, MAX_CONCURRENCY

    def __init__(
        self, fs: Any, url: str, connect_timeout: float = failures.TIMEOUT, **kwargs: Any
    ) -> None:
        """Read from `url` in a session of fsspec's.

        connect_timeout: in seconds. kwargs: options of aiohttp's requests.
        """
        self._fs, self._url, self._connect_timeout, self._options = fs, url, connect_timeout, kwargs

    async def open(self, count: int) -> FirstResponse:
        async with self._get(0, count) as response:
            if response.status == 416:  # the object is empty
                return FirstResponse(self._version(response)._replace(size=0), b"", True)
            version, ranged = self._version(response), response.status == 206
            if ranged and _range_start(response) != 0:
                raise failures.HttpStatusError(
                    response.status, "another byte range than the requested one"
                )
            head = await read_up_to(response.content.read, count)
            if not ranged and len(head) < count:
                version = version._replace(size=len(head))
            return FirstResponse(version, head, ranged and version.size is not None)

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        async with self._get(start, stop) as response:
            current = self._version(response)
            if response.status == 416 or current.differs(version):
                raise failures.ChangedError
            if response.status != 206 or _range_start(response) != start:
                raise failures.HttpStatusError(
                    response.status, "no byte range, although one was requested"
                )
            await copy_response(response.content.read, start, stop, write)

    async def download_all(self, write: Write) -> Version:
        async with self._get() as response:
            version, offset = self._version(response), 0
            while block := await response.content.read(_BLOCK_SIZE):
                write(offset, block)
                offset += len(block)
            return version._replace(size=offset)

    async def version(self) -> Version:
        async with self._get(0, 1) as response:
            return self._version(response)

    @asynccontextmanager
    async def _get(self, start: int = 0, stop: int = 0) -> AsyncIterator[Any]:
        import aiohttp
        import yarl

        fs, url = self._fs, self._url
        options = {**fs.kwargs, **self._options}
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        if stop:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        # An encoded URL must not be encoded again, or its signature may become invalid.
        encoded = fs.encoded or (url.isascii() and url.isprintable() and " " not in url)
        timeout = aiohttp.ClientTimeout(
            sock_connect=self._connect_timeout, sock_read=failures.TIMEOUT
        )
        options.setdefault("timeout", timeout)
        session = await fs.set_session()
        async with session.get(
            yarl.URL(url, encoded=encoded), headers=headers, **options
        ) as response:
            if response.status not in (200, 206, 416):
                raise failures.HttpStatusError(response.status, response.reason or "")
            if response.headers.get("Content-Encoding", "identity") != "identity":
                raise InputError(
                    f"{printable(url)}: the server compresses it, which the request forbids"
                )
            yield response

    @staticmethod
    def _version(response: Any) -> Version:
        headers = response.headers
        is_complete = response.status == 200
        size = (
            response.content_length
            if is_complete
            else object_size(headers.get("Content-Range", ""))
        )
        return Version(headers.get("ETag"), headers.get("Last-Modified"), size)


def _range_start(response: Any) -> int:
    """Return the start of a response's Content-Range, -1 if it has none."""
    text = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(text) if text.isdecimal() and len(text) < 19 else -1


def object_size(text: str) -> int | None:
    """Return the object size in a Content-Range, None if unknown or too large for any file."""
    count = text.rpartition("/")[2]
    return int(count) if count.isdecimal() and len(count) < 19 else None


async def read_up_to(read: Callable[[int], Any], count: int) -> bytes:
    """Read at most `count` bytes of a response."""
    blocks, nbytes = [], 0
    while nbytes < count and (block := await read(count - nbytes)):
        blocks.append(block)
        nbytes += len(block)
    return b"".join(blocks)


async def copy_response(read: Callable[[int], Any], start: int, stop: int, write: Write) -> None:
    """Write bytes [start, stop) of a response, in order; TruncatedError if it ends early."""
    while start < stop:
        block = await read(min(_BLOCK_SIZE, stop - start))
        if not block:
            raise failures.TruncatedError
        write(start, block)
        start += len(block)
