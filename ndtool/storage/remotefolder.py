"""Remote folders that are array stores: objects under one prefix, read and written by key."""

from __future__ import annotations

from collections.abc import Coroutine
from threading import Lock
from typing import Any, TypeVar

from ndtool.errors import OutputError, ResourceError, printable, redact_urls
from ndtool.machine import pool
from ndtool.storage import failures, remote, requests, upload
from ndtool.storage.http import Opened, Requests, Version
from ndtool.storage.local import Fingerprint
from ndtool.storage.localfolder import LONGEST, digest, too_large

T = TypeVar("T")
Span = tuple[int | None, int | None]  # start and stop of a slice; a negative start is from the end

LARGEST = (1 << 31) + (1 << 28) + (1 << 14)  # bytes of a range: a chunk that does not compress
_INDICES, _INDEX = 16, 1 << 20  # shard indices that are cached, and bytes of one at most


class RemoteFolder:
    """A remote folder, with the methods of LocalFolder.

    pending: metadata that are not written yet, by key.
    """

    size = 0
    at_once = pool.MAX_THREADS

    def __init__(self, url: str, pending: dict[str, bytes] | None = None) -> None:
        self.url, self.path = url, redact_urls(url)
        self.can_list = remote.can_list(url)
        self._metadata: dict[str, bytes | None] = {**(pending or {})}  # cached metadata
        self._prefetched: dict[str, bytes | None] = {}  # objects prefetched by `prefetch`
        self._versions: dict[str, Version | None] = {}  # of objects read by range requests
        self._indices: dict[tuple[str, Span], bytes] = {}
        self._lock = Lock()

    def peek(self, start: int, nbytes: int) -> bytes:
        return b""

    def subfolder(self, key: str) -> RemoteFolder:
        """Return a subfolder, or this folder for "", without cached objects."""
        return RemoteFolder(remote.join(self.url, key))

    def read(self, key: str) -> bytes | None:
        """Read a metadata object, None if it does not exist; the result is cached."""
        if key not in self._metadata:
            self._metadata[key] = self._wait(self._read_file(key, LONGEST))[0]
        return self._metadata[key]

    def subfolders(self, key: str) -> list[str]:
        return [name for name, subfolder in self.listed(key) if subfolder]

    def listed(self, key: str) -> list[tuple[str, bool]]:
        """List a folder: names, and whether each is a folder."""
        return self._wait(remote.listing(remote.join(self.url, key)))

    def prefetch(self, key: str, limit: int | None) -> tuple[Any, ...]:
        """Return the fingerprint of an object's content, () if it does not exist.

        limit: the maximum size if `read_file` follows, which then takes no request; else None.
        """
        if limit is None:
            version = self._wait(self._first_version(key))
            return _fingerprint(version)
        body, version = self._wait(self._read_file(key, limit))
        with self._lock:
            self._prefetched[key] = body
        return _fingerprint(version)

    def file_fingerprint(self, key: str) -> tuple[Any, ...]:
        version = self._wait(self._version(key))
        return _fingerprint(version)

    def read_file(self, key: str, limit: int) -> bytes | None:
        with self._lock:
            if key in self._prefetched:
                return self._prefetched.pop(key)
        return self._wait(self._read_file(key, limit))[0]

    def read_range(self, key: str, start: int, stop: int | None) -> bytes | None:
        return self._wait(self._read_range(key, (start, stop)))

    async def put(self, key: str, body: bytes | memoryview) -> None:
        """Write an object, replacing an old one."""
        url = remote.join(self.url, key)
        try:
            await upload.writer(url).put(bytes(body), {})
        except Exception as exc:
            raise failures.failure(exc, redact_urls(url), OutputError) from None

    def write(self, key: str, body: bytes | memoryview) -> None:
        """Write an object, replacing an old one, and wait until it is stored."""
        self._wait(self.put(key, body))

    def read_unchecked(self, key: str, start: int, stop: int) -> bytes:
        """Read a byte range of an object, without a check of its version."""
        url = remote.join(self.url, key)
        return self._wait(self._fetch(remote.requests(url), start, stop, Version(), url))

    def change(self) -> str:
        """Return "": a prefix cannot be replaced."""
        return ""

    def contents(self, key: str = "") -> dict[str, Version]:
        """Return the versions of all objects in a folder, by their relative paths."""
        return self._wait(remote.contents(remote.join(self.url, key)))

    def fingerprint(self, key: str) -> Fingerprint:
        """Return the fingerprint of all objects below a key, None if unavailable."""
        versions = self._wait(self._contents(key)) if self.can_list else {}
        rows = [(name, one.etag or one.modified, one.size) for name, one in versions.items()]
        return digest(rows) if rows and all(tag for _, tag, _ in rows) else None

    def close(self) -> None:
        pass

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return requests.wait(coroutine, self.path)

    async def _contents(self, key: str) -> dict[str, Version]:
        """Return the versions of all objects in a folder, none if listing is not permitted."""
        try:
            return await remote.contents(remote.join(self.url, key))
        except Exception as exc:
            if failures.is_denied(exc):
                return {}
            raise

    async def _version(self, key: str) -> Version | None:
        url = remote.join(self.url, key)
        try:
            return await failures.retry(remote.requests(url).version)
        except Exception as exc:
            if failures.is_missing(exc):
                return None
            raise failures.failure(exc, redact_urls(url)) from None

    async def _first_version(self, key: str) -> Version | None:
        """Return the version of an object at its first use, which all its ranges must have."""
        if key not in self._versions:
            self._versions.setdefault(key, await self._version(key))
        return self._versions[key]

    async def _read_file(self, key: str, limit: int) -> tuple[bytes | None, Version | None]:
        url = remote.join(self.url, key)
        requests = remote.requests(url)
        try:
            opened = await failures.retry(lambda: requests.open(min(requests.largest, limit + 1)))
            size, head = opened.version.size, opened.head
            if max(size or 0, len(head)) > limit:
                raise too_large(url, size or len(head), limit)
            if size is None or len(head) < size:
                head = await _read_rest(requests, opened, limit, url)
            return head, opened.version
        except Exception as exc:
            if failures.is_missing(exc):
                return None, None
            raise failures.failure(exc, redact_urls(url)) from None

    async def _read_range(self, key: str, span: Span) -> bytes | None:
        if (key, span) in self._indices:
            return self._indices[key, span]
        version, url = await self._first_version(key), remote.join(self.url, key)
        if version is None:
            return None
        start, stop, _ = slice(*span).indices(version.size or 0)
        block = await self._fetch(remote.requests(url), start, stop, version, url)
        if (span[0] or 0) <= 0 and len(block) <= _INDEX:  # a shard index, which all chunks need
            self._indices[key, span] = block
            for old in list(self._indices)[:-_INDICES]:
                self._indices.pop(old, None)
        return block

    async def _fetch(
        self, requests: Requests, start: int, stop: int, version: Version, url: str
    ) -> bytes:
        if stop - start > LARGEST:
            raise ResourceError(f"{printable(url)}: {stop - start} bytes: at most {LARGEST}")
        try:
            return await _read_blocks(requests, start, stop, version)
        except Exception as exc:
            raise failures.failure(exc, redact_urls(url)) from None


def _fingerprint(version: Version | None) -> tuple[Any, ...]:
    return () if version is None else (version.etag or version.modified or version.size,)


async def _read_rest(requests: Requests, opened: Opened, limit: int, url: str) -> bytes:
    """Read the rest of an object after its first response; return all of it."""
    if opened.ranged and opened.version.size is not None:
        head, size = opened.head, opened.version.size
        return head + await _read_blocks(requests, len(head), size, opened.version)
    buffer = bytearray()

    def write(start: int, block: bytes) -> None:
        if start + len(block) > limit:
            raise too_large(url, start + len(block), limit)
        buffer[start:] = block  # a retry starts again at 0

    version = await failures.retry(lambda: requests.download_all(write))
    if version.differs(opened.version):
        raise failures.ChangedError
    return bytes(buffer)


async def _read_blocks(requests: Requests, start: int, stop: int, version: Version) -> bytes:
    """Read a byte range of an object by requests of at most `largest` bytes."""
    buffer = bytearray(max(0, stop - start))
    at = start

    def write(offset: int, block: bytes) -> None:
        nonlocal at
        buffer[offset - start : offset - start + len(block)] = block
        at = offset + len(block)

    while at < stop:
        await failures.retry(
            lambda: requests.fetch(at, min(stop, at + requests.largest), version, write)
        )
    return bytes(buffer)
