"""Range requests to remote objects over HTTP, S3 and fsspec's other file systems.

Requests over HTTP and S3 are implemented here, on fsspec's sessions: they stream responses, and
they check that all responses are of the same version of the object.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import quote

from ndtool.errors import InputError, UsageError, printable, words
from ndtool.redaction import register
from ndtool.storage import failures

T = TypeVar("T")
Write = Callable[[int, bytes], object]  # takes an offset in the object and bytes

AT_ONCE = 64  # concurrent requests; 10 get half as many small ranges a second at 20 ms latency
BUFFERED = 10  # concurrent requests whose responses are buffered in memory
LARGEST = 16 << 20  # bytes of a request whose response is streamed
HELD = 4 << 20  # bytes of a request whose response is buffered in memory
_PIECE = 1 << 18
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp",
    "https": "aiohttp", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", "adl": "adlfs",
    "hf": "huggingface_hub", "sftp": "paramiko", "ssh": "paramiko", "smb": "smbprotocol",
    "oss": "ossfs", "oci": "ocifs", "tos": "tosfs", "webdav": "webdav4", "github": "requests",
}  # fmt: skip


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


def filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the object's path in it."""
    register(url)
    protocol = url.partition("://")[0]
    package = _PACKAGES.get(protocol)
    try:
        import fsspec
    except ImportError:
        raise _missing(url, "fsspec", package) from None
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as exc:
        if package is None:
            raise UsageError(f"{printable(url)}: {words(exc)}") from None
        raise _missing(url, package, package) from None
    except ValueError as exc:
        raise UsageError(
            f"{printable(url)}: {words(exc)}: expected s3://, gs://, https:// or another"
            " that fsspec knows"
        ) from None
    except Exception as exc:
        raise failures.failure(exc, url) from None
    return fs, path


def _missing(url: str, package: str, more: str | None) -> UsageError:
    also = f" {more}" if more else ""
    return UsageError(
        f"{printable(url)} needs the {package} package", hint=f"pip install 'ndtool[remote]'{also}"
    )


def requests(url: str) -> Requests:
    """Return the reader for the object at a URL."""
    fs, path = filesystem(url)
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if "http" in protocols:
        return Http(fs, path)
    if "s3" in protocols and hasattr(fs, "get_s3"):
        return S3(fs, path)
    return Plain(fs, path, url)


def quoted(url: str, key: str) -> str:
    """Return a path, percent-encoded if the URL is of HTTP."""
    return quote(key) if url.partition("://")[0] in ("http", "https") else key


def lists(url: str) -> bool:
    """Whether folders at a URL can be listed, which HTTP does not support."""
    return url.partition("://")[0] not in ("http", "https")


async def listing(url: str) -> list[tuple[str, bool]]:
    """List a remote folder: names, and whether each is a folder."""
    fs, path = filesystem(url)
    fs.invalidate_cache()
    try:
        found = await Plain(fs, path, url).call("ls", path, detail=True)
    except FileNotFoundError:
        return []
    paths = {one["name"].strip("/"): one.get("type") == "directory" for one in found}
    paths.pop(path.strip("/"), None)
    return [(name.rpartition("/")[2], below) for name, below in paths.items()]


async def contents(url: str) -> dict[str, Version]:
    """Return the versions of all objects in a remote folder, by their relative paths."""
    fs, path = filesystem(url)
    plain = Plain(fs, path, url)
    fs.invalidate_cache()
    found = await plain.call("find", path, detail=True)
    inside = f"{path.strip('/')}/"
    return {name.strip("/").removeprefix(inside): _said(one) for name, one in found.items()}


class Http:
    """An object on an HTTP server; the first response shows whether it supports ranges."""

    largest, at_once = LARGEST, AT_ONCE

    def __init__(self, fs: Any, url: str) -> None:
        self._fs, self._url = fs, url

    async def open(self, count: int) -> Opened:
        async with self._get(0, count) as reply:
            if reply.status == 416:  # the object is empty
                return Opened(self._version(reply)._replace(size=0), b"", True)
            version, ranged = self._version(reply), reply.status == 206
            if ranged and _first(reply) != 0:
                raise failures.RefusedError(
                    reply.status, "another byte range than the requested one"
                )
            head = await _up_to(reply.content.read, count)
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
            await _pass_on(reply.content.read, start, stop, write)

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
        options = dict(fs.kwargs)
        headers = {**options.pop("headers", {}), "Accept-Encoding": "identity"}
        if stop:
            headers["Range"] = f"bytes={start}-{stop - 1}"
        # An encoded URL must not be encoded again, or its signature may become invalid.
        encoded = fs.encoded or (url.isascii() and url.isprintable() and " " not in url)
        options.setdefault(
            "timeout",
            aiohttp.ClientTimeout(total=None, sock_connect=failures.WAIT, sock_read=failures.WAIT),
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
        size = reply.content_length if whole else _total(headers.get("Content-Range", ""))
        return Version(headers.get("ETag"), headers.get("Last-Modified"), size)


def _first(reply: Any) -> int:
    """Return the start of a response's Content-Range, -1 if it has none."""
    text = reply.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    return int(text) if text.isdecimal() else -1


def _total(text: str) -> int | None:
    """Return the object size in a Content-Range, None if unknown or too large for any file."""
    total = text.rpartition("/")[2]
    return int(total) if total.isdecimal() and len(total) < 19 else None


async def _up_to(read: Callable[[int], Any], count: int) -> bytes:
    pieces, got = [], 0
    while got < count and (piece := await read(count - got)):
        pieces.append(piece)
        got += len(piece)
    return b"".join(pieces)


async def _pass_on(read: Callable[[int], Any], start: int, stop: int, write: Write) -> None:
    while start < stop:
        piece = await read(min(_PIECE, stop - start))
        if not piece:
            raise failures.CutShortError
        write(start, piece)
        start += len(piece)


class S3:
    """An object in an S3 bucket."""

    largest, at_once = LARGEST, AT_ONCE

    def __init__(self, fs: Any, path: str) -> None:
        self._fs = fs
        # botocore opens 10 by default
        fs.config_kwargs = {"max_pool_connections": AT_ONCE, **fs.config_kwargs}
        bucket, key, version = fs.split_path(path)
        if not key:
            raise InputError(f"s3://{printable(path)}: a bucket, not an object")
        self.key = key
        self._name = {"Bucket": bucket, "Key": key}
        if version:
            self._name["VersionId"] = version

    async def open(self, count: int) -> Opened:
        try:
            reply = await self.call("get_object", Range=f"bytes=0-{count - 1}")
        except Exception as exc:
            if failures.status_of(exc) != 416:
                raise
            return Opened(await self.version(), b"", True)
        async with reply["Body"] as body:
            head = await _up_to(body.read, count)
        given = reply.get("ContentRange", "bytes 0-")
        if not given.startswith("bytes 0-"):
            raise failures.RefusedError(206, "another byte range than the requested one")
        size = _total(given) or reply["ContentLength"]
        return Opened(self._version(reply)._replace(size=size), head, True)

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        same = {"IfMatch": version.etag} if version.etag else {}
        reply = await self.call("get_object", Range=f"bytes={start}-{stop - 1}", **same)
        async with reply["Body"] as body:
            if self._version(reply)._replace(size=None).differs(version):
                raise failures.ChangedError
            await _pass_on(body.read, start, stop, write)

    async def download(self, write: Write) -> Version:
        raise NotImplementedError("S3 has ranges")

    async def version(self) -> Version:
        reply = await self.call("head_object")
        return self._version(reply)._replace(size=reply["ContentLength"])

    async def call(self, operation: str, *names: str, **arguments: Any) -> Any:
        """Call an S3 operation on the object as s3fs does, without its retries.

        names: the fields of the object's name to pass, all by default.
        """
        fs = self._fs
        await fs.set_session()
        method = getattr(await fs.get_s3(self._name["Bucket"]), operation)
        name = {key: value for key, value in self._name.items() if key in names or not names}
        return await method(**fs._get_s3_method_kwargs(method, **name, **arguments))

    @staticmethod
    def _version(reply: dict[str, Any]) -> Version:
        modified = reply.get("LastModified")
        return Version(reply.get("ETag"), str(modified) if modified else None)


class Plain:
    """An object in any other fsspec file system; one request at a time unless it is async."""

    largest = HELD

    def __init__(self, fs: Any, path: str, url: str) -> None:
        self._fs, self._path, self._url = fs, path, url
        self.at_once = BUFFERED if fs.async_impl else 1

    async def open(self, count: int) -> Opened:
        version = await self.version()
        head = await self._read(0, min(count, version.size or 0))
        return Opened(version, head, True)

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        piece = await self._read(start, stop)
        if len(piece) != stop - start:
            raise failures.CutShortError
        write(start, piece)

    async def download(self, write: Write) -> Version:
        raise NotImplementedError("a file system of fsspec's has ranges")

    async def version(self) -> Version:
        self._fs.invalidate_cache()
        found = await self.call("info", self._path)
        if found.get("type") == "directory":
            raise InputError(f"{printable(self._url)}: a directory, not an object")
        if type(found.get("size")) is not int:
            raise InputError(f"{printable(self._url)}: its size is unknown")
        return _said(found)

    async def _read(self, start: int, stop: int) -> bytes:
        if stop <= start:
            return b""
        piece: bytes = await self.call("cat_file", self._path, start=start, end=stop)
        return piece

    async def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the file system, in a thread unless it is async."""
        if self._fs.async_impl:
            return await getattr(self._fs, f"_{name}")(*arguments, **options)
        return await asyncio.to_thread(getattr(self._fs, name), *arguments, **options)


def _said(found: dict[str, Any]) -> Version:
    """Return the version in fsspec's info about an object."""
    etags = "ETag", "etag", "generation", "md5"
    times = "mtime", "LastModified", "last_modified", "updated", "modified", "created"
    etag, time = (next(filter(None, map(found.get, keys)), None) for keys in (etags, times))
    return Version(etag and str(etag), time and str(time), found.get("size"))


def inside(url: str, key: str, beside: bool = False) -> str:
    """Return the URL of a key in a folder; a query or a URL chain stays at the end.

    beside: whether `url` is that of a file in the folder, not of the folder.

    >>> inside("https://host/x.zarr?k=v", "a/zarr.json"), inside("s3://b/x/", "c")
    ('https://host/x.zarr/a/zarr.json?k=v', 's3://b/x/c')
    """
    path, rest = parted(url)
    folder = path.rpartition("/")[0] if beside else path.rstrip("/")
    return f"{folder}/{quoted(url, key)}{rest}"


def parted(url: str) -> tuple[str, str]:
    """Split a URL before its query or chained URL."""
    ends = [at for mark in ("?", "::") if (at := url.find(mark)) > 0]
    at = min(ends, default=len(url))
    return url[:at], url[at:]
