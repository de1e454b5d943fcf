"""Readers of one remote object, and range requests over HTTP.

Requests over HTTP and S3 are implemented by ndtool, on fsspec's sessions: they stream responses,
and they check that all responses are of the same version of the object.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol

from ndtool.errors import InputError, printable
from ndtool.storage import failures

Write = Callable[[int, bytes], object]  # takes an offset in the object and bytes

AT_ONCE = 64  # concurrent requests; docs/performance.md has their gain over 10
LARGEST = 16 << 20  # bytes of a request whose response is streamed
_BLOCK = 1 << 18


class Version(NamedTuple):
    """Fingerprint of an object's content; a field is None if the server does not send it."""

    etag: str | None = None
    modified: str | None = None
    size: int | None = None

    def differs(self, other: Version) -> bool:
        """Whether two versions are of different content, as far as both have the same fields."""
        tags = self.etag and other.etag  # ETags take precedence over times
        triples = zip(self._fields, self, other, strict=True)
        pairs = [(a, b) for name, a, b in triples if not (tags and name == "modified")]
        return any(a is not None and b is not None and a != b for a, b in pairs)


class Opened(NamedTuple):
    """The first response. head: the first bytes. ranged: whether the server supports ranges."""

    version: Version
    head: bytes
    ranged: bool


class Requests(Protocol):
    """Reader of one object. largest: bytes per request. at_once: concurrent requests."""

    largest: int
    at_once: int

    async def open(self, count: int) -> Opened:
        """Request the first `count` bytes and the version."""

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        """Write the bytes from `start` to `stop`, in order; ChangedError if of another version."""

    async def download_all(self, write: Write) -> Version:
        """Write all bytes, in order, from one response: if `open` returns no ranges."""
        raise AssertionError("all ranges can be requested")

    async def version(self) -> Version:
        """Request the current version."""


class Http:
    """An object on an HTTP server; the first response shows whether it supports ranges."""

    largest, at_once = LARGEST, AT_ONCE

    def __init__(self, fs: Any, url: str, connect: float = failures.TIMEOUT, **kwargs: Any) -> None:
        """Read from `url` in a session of fsspec's.

        connect: timeout in seconds of a connection. kwargs: options of aiohttp's requests.
        """
        self._fs, self._url, self._connect, self._options = fs, url, connect, kwargs

    async def open(self, count: int) -> Opened:
        async with self._get(0, count) as response:
            if response.status == 416:  # the object is empty
                return Opened(self._version(response)._replace(size=0), b"", True)
            version, ranged = self._version(response), response.status == 206
            if ranged and _first(response) != 0:
                raise failures.HttpStatusError(
                    response.status, "another byte range than the requested one"
                )
            head = await read_up_to(response.content.read, count)
            if not ranged and len(head) < count:
                version = version._replace(size=len(head))
            return Opened(version, head, ranged and version.size is not None)

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        async with self._get(start, stop) as response:
            now = self._version(response)
            if response.status == 416 or now.differs(version):
                raise failures.ChangedError
            if response.status != 206 or _first(response) != start:
                raise failures.HttpStatusError(
                    response.status, "no byte range, although one was requested"
                )
            await copy_response(response.content.read, start, stop, write)

    async def download_all(self, write: Write) -> Version:
        async with self._get() as response:
            version, offset = self._version(response), 0
            while block := await response.content.read(_BLOCK):
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
        timeout = aiohttp.ClientTimeout(sock_connect=self._connect, sock_read=failures.TIMEOUT)
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
        whole = response.status == 200
        size = response.content_length if whole else object_size(headers.get("Content-Range", ""))
        return Version(headers.get("ETag"), headers.get("Last-Modified"), size)


def _first(response: Any) -> int:
    """Return the start of a response's Content-Range, -1 if it has none."""
    text = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(text) if text.isdecimal() else -1


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
    """Write the bytes from `start` to `stop`, in order; CutShortError if the response is short."""
    while start < stop:
        block = await read(min(_BLOCK, stop - start))
        if not block:
            raise failures.TruncatedError
        write(start, block)
        start += len(block)
