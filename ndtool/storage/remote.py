"""Remote objects by their URLs: over HTTP, in S3 and in fsspec's other file systems."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from importlib.util import find_spec
from typing import Any
from urllib.parse import quote

from ndtool.errors import InputError, UsageError, library_message, printable
from ndtool.redaction import register
from ndtool.storage import failures, signing
from ndtool.storage.http import (
    MAX_CONCURRENCY,
    FirstResponse,
    HttpObject,
    ObjectReader,
    Version,
    Write,
)
from ndtool.storage.s3 import S3Object, SignedS3Object

MAX_BUFFERS = 10  # maximum number of responses larger than SMALL_RESPONSE in memory
SMALL_RESPONSE = 1 << 18  # bytes
MAX_BUFFER = 4 << 20  # maximum bytes of a request whose response is buffered in memory
_PACKAGES = {
    "s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "http": "aiohttp",
    "https": "aiohttp", "abfs": "adlfs", "abfss": "adlfs", "az": "adlfs", "adl": "adlfs",
    "hf": "huggingface_hub", "sftp": "paramiko", "ssh": "paramiko", "smb": "smbprotocol",
    "oss": "ossfs", "oci": "ocifs", "tos": "tosfs", "webdav": "webdav4", "github": "requests",
}  # fmt: skip


def filesystem(url: str) -> tuple[Any, str]:
    """Return fsspec's file system for a URL, and the object's path in it."""
    register(url)
    protocol = url.partition("://")[0]
    package = _PACKAGES.get(protocol)
    try:
        import fsspec
    except ImportError:
        raise _missing_package_error(url, "fsspec", package) from None
    try:
        fs, path = fsspec.core.url_to_fs(url)
    except ImportError as exc:
        if package is None:
            raise UsageError(f"{printable(url)}: {library_message(exc)}") from None
        raise _missing_package_error(url, package, package) from None
    except ValueError as exc:
        supported = ": expected s3://, gs://, https:// or another that fsspec supports"
        hint = supported if "Protocol" in str(exc) else ""
        raise UsageError(f"{printable(url)}: {library_message(exc)}{hint}") from None
    except Exception as exc:
        raise failures.failure(exc, url) from None
    return fs, path


def _missing_package_error(url: str, package: str, extra: str | None) -> UsageError:
    extra_requirement = f" {extra}" if extra else ""
    return UsageError(
        f"{printable(url)} needs the {package} package",
        hint=f"pip install 'ndtool[remote]'{extra_requirement}",
    )


def reader(url: str) -> ObjectReader:
    """Return the reader for the object at a URL."""
    if url.startswith(("s3://", "s3a://")) and all(map(find_spec, ("fsspec", "s3fs", "aiohttp"))):
        return _s3_reader(url)
    fs, path = filesystem(url)
    protocols = (fs.protocol,) if isinstance(fs.protocol, str) else fs.protocol
    if "http" in protocols:
        return HttpObject(fs, path)
    if "s3" in protocols and hasattr(fs, "get_s3"):
        return S3Object(fs, path)
    return FsspecObject(fs, path, url)


def _s3_reader(url: str) -> ObjectReader:
    """Return the reader for an S3 object, by signed URLs if the settings permit them."""
    register(url)
    if not signing.bypasses_s3fs():
        return S3Object(*filesystem(url))
    settings = signing.find_settings(url)
    if settings is None:
        client = S3Object(*filesystem(url))
        return SignedS3Object(client.bucket, client.sign, lambda: client)

    async def sign() -> str:
        return signing.signed_url(settings)

    return SignedS3Object(settings.bucket_url, sign, lambda: S3Object(*filesystem(url)))


def quote_key(url: str, key: str) -> str:
    """Return a key as part of a URL: percent-encoded for HTTP."""
    return quote(key) if url.partition("://")[0] in ("http", "https") else key


def can_list(url: str) -> bool:
    """Whether folders at a URL can be listed, which HTTP does not support."""
    return url.partition("://")[0] not in ("http", "https")


async def list_folder(url: str) -> list[tuple[str, bool]]:
    """List a remote folder: (name, whether it is a folder) of each entry."""
    fs, path = filesystem(url)
    fs.invalidate_cache()
    try:
        entries = await FsspecObject(fs, path, url).call("ls", path, detail=True)
    except FileNotFoundError:
        return []
    paths = {entry["name"].strip("/"): entry.get("type") == "directory" for entry in entries}
    paths.pop(path.strip("/"), None)
    return [(name.rpartition("/")[2], is_folder) for name, is_folder in paths.items()]


async def object_versions(url: str) -> dict[str, Version]:
    """Return the versions of all objects in a remote folder, by their relative paths."""
    fs, path = filesystem(url)
    remote_object = FsspecObject(fs, path, url)
    fs.invalidate_cache()
    entries = await remote_object.call("find", path, detail=True)
    prefix = f"{path.strip('/')}/"
    return {
        name.strip("/").removeprefix(prefix): _version_of(info) for name, info in entries.items()
    }


class FsspecObject(ObjectReader):
    """Reader of an object in another fsspec file system; requests are concurrent if it is async."""

    max_request = MAX_BUFFER

    def __init__(self, fs: Any, path: str, url: str) -> None:
        self._fs, self._path, self._url = fs, path, url
        self.concurrency = MAX_CONCURRENCY if fs.async_impl else 1
        self._buffers = asyncio.Semaphore(MAX_BUFFERS)

    async def open(self, count: int) -> FirstResponse:
        version = await self.version()
        head = await self._read(0, min(count, version.size or 0))
        return FirstResponse(version, head, True)

    async def fetch(self, start: int, stop: int, version: Version, write: Write) -> None:
        async with self._buffers if stop - start > SMALL_RESPONSE else nullcontext():
            block = await self._read(start, stop)
            if len(block) != stop - start:
                raise failures.TruncatedError
            write(start, block)

    async def version(self) -> Version:
        self._fs.invalidate_cache()
        info = await self.call("info", self._path)
        if info.get("type") == "directory":
            raise InputError(f"{printable(self._url)}: a directory, not an object")
        if type(info.get("size")) is not int:
            raise InputError(f"{printable(self._url)}: its size is unknown")
        return _version_of(info)

    async def _read(self, start: int, stop: int) -> bytes:
        if stop <= start:
            return b""
        block: bytes = await self.call("cat_file", self._path, start=start, end=stop)
        return block

    async def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the file system, in a thread unless it is async."""
        if self._fs.async_impl:
            return await getattr(self._fs, f"_{name}")(*arguments, **options)
        return await asyncio.to_thread(getattr(self._fs, name), *arguments, **options)


def _version_of(info: dict[str, Any]) -> Version:
    """Return the version of an object from fsspec's info about it."""
    etags = "ETag", "etag", "generation", "md5"
    times = "mtime", "LastModified", "last_modified", "updated", "modified", "created"
    etag, time = (next(filter(None, map(info.get, keys)), None) for keys in (etags, times))
    return Version(etag and str(etag), time and str(time), info.get("size"))


def join(url: str, key: str, sibling: bool = False) -> str:
    """Return the URL of a key in a folder, the folder's for ""; a query or chained URL stays last.

    sibling: whether `url` is the URL of a file in the folder, not of the folder itself.

    >>> join("https://host/x.zarr?k=v", "a/zarr.json"), join("s3://b/x/", "c")
    ('https://host/x.zarr/a/zarr.json?k=v', 's3://b/x/c')
    """
    if not key and not sibling:
        return url
    path, suffix = split_query(url)
    folder = path.rpartition("/")[0] if sibling else path.rstrip("/")
    return f"{folder}/{quote_key(url, key)}{suffix}"


def split_query(url: str) -> tuple[str, str]:
    """Split a URL before its query or chained URL."""
    positions = [position for separator in ("?", "::") if (position := url.find(separator)) > 0]
    position = min(positions, default=len(url))
    return url[:position], url[position:]
