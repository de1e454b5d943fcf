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
_PIECE = 1 << 18


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

    async def download(self, write: Write) -> Version:
        """Write all bytes, in order, from one response."""

    async def version(self) -> Version:
        """Request the current version."""


class Http:
    """An object on an HTTP server; the first response shows whether it supports ranges."""

    largest, at_once = LARGEST, AT_ONCE

    def __init__(self, fs: Any, url: str, connect: float = failures.WAIT, **options: Any) -> None:
        """Read from `url` in a session of fsspec's.

        connect: timeout in seconds of a connection. options: of aiohttp's requests.
        """
        self._fs, self._url, self._connect, self._options = fs, url, connect, options

    async def open(self, count: int) -> Opened:
        async with self._get(0, count) as reply:
            if reply.status == 416:  # the object is empty
                return Opened(self._version(reply)._replace(size=0), b"", True)
            version, ranged = self._version(reply), reply.status == 206
            if ranged and _first(reply) != 0:
                raise failures.RefusedError(
                    reply.status, "another byte range than the requested one"
                )
            head = await up_to(reply.content.read, count)
            if not ranged and len(head) < count:
                version = version._replace(size=len(head))
            return Opened(version, head, ranged and version.size is not None)

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        async with self._get(start, stop) as reply:
            now = self._version(reply)
            if reply.status == 416 or now.differs(version):
                raise failures.ChangedError
            if reply.status != 206 or _first(reply) != start:
                raise failures.RefusedError(
                    reply.status, "no byte range, although one was requested"
                )
            await pass_on(reply.content.read, start, stop, write)

    async def download(self, write: Write) -> Version:
        async with self._get() as reply:
            version, at = self._version(reply), 0
            while piece := await reply.content.read(_PIECE):
                write(at, piece)
                at += len(piece)
            return version._replace(size=at)

    async def version(self) -> Version:
        async with self._get(0, 1) as reply:
            return self._version(reply)

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
        options.setdefault(
            "timeout",
            aiohttp.ClientTimeout(total=None, sock_connect=self._connect, sock_read=failures.WAIT),
        )
        session = await fs.set_session()
        async with session.get(yarl.URL(url, encoded=encoded), headers=headers, **options) as reply:
            if reply.status not in (200, 206, 416):
                raise failures.RefusedError(reply.status, reply.reason or "")
            if reply.headers.get("Content-Encoding", "identity") != "identity":
                raise InputError(
                    f"{printable(url)}: the server compresses it, which the request forbids"
                )
            yield reply

    @staticmethod
    def _version(reply: Any) -> Version:
        headers = reply.headers
        whole = reply.status == 200
        size = reply.content_length if whole else total(headers.get("Content-Range", ""))
        return Version(headers.get("ETag"), headers.get("Last-Modified"), size)


def _first(reply: Any) -> int:
    """Return the start of a response's Content-Range, -1 if it has none."""
    text = reply.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(text) if text.isdecimal() else -1


def total(text: str) -> int | None:
    """Return the object size in a Content-Range, None if unknown or too large for any file."""
    total = text.rpartition("/")[2]
    return int(total) if total.isdecimal() and len(total) < 19 else None


async def up_to(read: Callable[[int], Any], count: int) -> bytes:
    """Read at most `count` bytes of a response."""
    pieces, got = [], 0
    while got < count and (piece := await read(count - got)):
        pieces.append(piece)
        got += len(piece)
    return b"".join(pieces)


async def pass_on(read: Callable[[int], Any], start: int, stop: int, write: Write) -> None:
    """Write the bytes from `start` to `stop`, in order; CutShortError if the response is short."""
    while start < stop:
        piece = await read(min(_PIECE, stop - start))
        if not piece:
            raise failures.CutShortError
        write(start, piece)
        start += len(piece)
