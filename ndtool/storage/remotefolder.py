"""Remote folders that are array stores: objects under one prefix, read and written by key."""

from __future__ import annotations

from collections.abc import Coroutine
from threading import Lock
from typing import Any, TypeVar

from ndtool.errors import InputError, OutputError, ResourceError, printable, redacted
from ndtool.machine import pool
from ndtool.storage import failures, remote, requests, upload
from ndtool.storage.http import Opened, Requests, Version
from ndtool.storage.local import Fingerprint
from ndtool.storage.localfolder import LONGEST, digest

T = TypeVar("T")
Span = tuple[int | None, int | None]  # start and stop of a slice; a negative start is from the end

LARGEST = (1 << 31) + (1 << 28) + (1 << 14)  # bytes of a range: a chunk that does not compress
_INDICES, _INDEX = 16, 1 << 20  # shard indices that are cached, and bytes of one at most


class RemoteFolder:
    """A remote folder, with the methods of LocalFolder.

    known: metadata that are not written yet, by key.
    """

    size = 0
    at_once = pool.MOST

    def __init__(self, url: str, known: dict[str, bytes] | None = None) -> None:
        self.url, self.path = url, redacted(url)
        self.lists = remote.lists(url)
        self._small: dict[str, bytes | None] = {**(known or {})}  # cached metadata
        self._ready: dict[str, bytes | None] = {}  # objects prefetched by `ready`
        self._versions: dict[str, Version | None] = {}  # of objects read by range requests
        self._indices: dict[tuple[str, Span], bytes] = {}
        self._lock = Lock()

    def peek(self, start: int, nbytes: int) -> bytes:
        return b""

    def below(self, key: str) -> RemoteFolder:
        """Return a subfolder, or this folder for "", without cached objects."""
        return RemoteFolder(remote.inside(self.url, key) if key else self.url)

    def read(self, key: str) -> bytes | None:
        """Read a metadata object, None if it does not exist; the result is cached."""
        if key not in self._small:
            self._small[key] = self._wait(self._whole(key, LONGEST))[0]
        return self._small[key]

    def names(self, key: str) -> list[str]:
        return [name for name, below in self.listed(key) if below]

    def listed(self, key: str) -> list[tuple[str, bool]]:
        """List a folder: names, and whether each is a folder."""
        return self._wait(remote.listing(remote.inside(self.url, key) if key else self.url))

    def ready(self, key: str, most: int | None) -> tuple[Any, ...]:
        """Return the fingerprint of an object's content, () if it does not exist.

        most: the maximum size if `whole` follows, None otherwise; one request then serves both.
        """
        if most is None:
            version = self._wait(self._first_version(key))
            return () if version is None else _fingerprint(version)
        body, version = self._wait(self._whole(key, most))
        with self._lock:
            self._ready[key] = body
        return () if version is None else _fingerprint(version)

    def like(self, key: str) -> tuple[Any, ...]:
        version = self._wait(self._version(key))
        return () if version is None else _fingerprint(version)

    def whole(self, key: str, most: int) -> bytes | None:
        with self._lock:
            if key in self._ready:
                return self._ready.pop(key)
        return self._wait(self._whole(key, most))[0]

    def part(self, key: str, start: int, stop: int | None) -> bytes | None:
        return self._wait(self._part(key, (start, stop)))

    async def put(self, key: str, body: bytes | memoryview) -> None:
        """Write an object, replacing an old one."""
        url = remote.inside(self.url, key)
        try:
            await upload.store(url).put(bytes(body), {})
        except Exception as exc:
            raise failures.failure(exc, redacted(url), OutputError) from None

    def write(self, key: str, body: bytes | memoryview) -> None:
        """Write an object, replacing an old one, and wait until it is stored."""
        self._wait(self.put(key, body))

    def span(self, key: str, start: int, stop: int) -> bytes:
        """Read a byte range of an object, without a check of its version."""
        url = remote.inside(self.url, key)
        return self._wait(self._fetched(remote.requests(url), start, stop, Version(), url))

    def change(self) -> str:
        """Return "": a prefix cannot be replaced."""
        return ""

    def contents(self, key: str = "") -> dict[str, Version]:
        """Return the versions of all objects in a folder, by their relative paths."""
        return self._wait(remote.contents(remote.inside(self.url, key) if key else self.url))

    def fingerprint(self, key: str) -> Fingerprint:
        """Return the fingerprint of all objects below a key, None if unavailable."""
        found = self._wait(self._allowed(key)) if self.lists else {}
        if not found or not all(one.etag or one.modified for one in found.values()):
            return None
        return digest([(name, one.etag or one.modified, one.size) for name, one in found.items()])

    def close(self) -> None:
        pass

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return requests.wait(coroutine, self.path)

    async def _allowed(self, key: str) -> dict[str, Version]:
        """Return the versions of all objects in a folder, none if listing is not permitted."""
        try:
            return await remote.contents(remote.inside(self.url, key) if key else self.url)
        except Exception as exc:
            if failures.is_refused(exc):
                return {}
            raise

    async def _version(self, key: str) -> Version | None:
        url = remote.inside(self.url, key)
        try:
            return await failures.persist(remote.requests(url).version)
        except Exception as exc:
            if failures.is_missing(exc):
                return None
            raise failures.failure(exc, redacted(url)) from None

    async def _first_version(self, key: str) -> Version | None:
        """Return the version of an object at its first use, which all its ranges must have."""
        if key not in self._versions:
            self._versions.setdefault(key, await self._version(key))
        return self._versions[key]

    async def _whole(self, key: str, most: int) -> tuple[bytes | None, Version | None]:
        url = remote.inside(self.url, key)
        requests = remote.requests(url)
        try:
            opened = await failures.persist(lambda: requests.open(min(requests.largest, most + 1)))
            size, head = opened.version.size, opened.head
            if max(size or 0, len(head)) > most:
                raise _too_long(url, size or len(head), most)
            if size is None or len(head) < size:
                head = await _rest(requests, opened, most, url)
            return head, opened.version
        except Exception as exc:
            if failures.is_missing(exc):
                return None, None
            raise failures.failure(exc, redacted(url)) from None

    async def _part(self, key: str, span: Span) -> bytes | None:
        if (key, span) in self._indices:
            return self._indices[key, span]
        version, url = await self._first_version(key), remote.inside(self.url, key)
        if version is None:
            return None
        start, stop, _ = slice(*span).indices(version.size or 0)
        piece = await self._fetched(remote.requests(url), start, stop, version, url)
        if (span[0] or 0) <= 0 and len(piece) <= _INDEX:  # a shard index, which all chunks need
            self._indices[key, span] = piece
            for old in list(self._indices)[:-_INDICES]:
                self._indices.pop(old, None)
        return piece

    async def _fetched(
        self, requests: Requests, start: int, stop: int, version: Version, url: str
    ) -> bytes:
        if stop - start > LARGEST:
            raise ResourceError(f"{printable(url)}: {stop - start} bytes: at most {LARGEST}")
        try:
            return await _pieces(requests, start, stop, version)
        except Exception as exc:
            raise failures.failure(exc, redacted(url)) from None


def _fingerprint(version: Version) -> tuple[Any, ...]:
    return (version.etag or version.modified or version.size,)


def _too_long(url: str, size: int, most: int) -> InputError:
    return InputError(f"{printable(url)} has {size} bytes: at most {most} are valid")


async def _rest(requests: Requests, opened: Opened, most: int, url: str) -> bytes:
    """Read the rest of an object after its first response; return all of it."""
    if opened.ranged and opened.version.size is not None:
        head, size = opened.head, opened.version.size
        return head + await _pieces(requests, len(head), size, opened.version)
    buffer = bytearray()

    def write(start: int, piece: bytes) -> None:
        if start + len(piece) > most:
            raise _too_long(url, start + len(piece), most)
        buffer[start:] = piece  # a retry starts again at 0

    found = await failures.persist(lambda: requests.download(write))
    if found.differs(opened.version):
        raise failures.ChangedError
    return bytes(buffer)


async def _pieces(requests: Requests, start: int, stop: int, version: Version) -> bytes:
    """Read a byte range of an object by requests of at most `largest` bytes."""
    buffer = bytearray(max(0, stop - start))
    at = start

    def write(where: int, piece: bytes) -> None:
        nonlocal at
        buffer[where - start : where - start + len(piece)] = piece
        at = where + len(piece)

    while at < stop:
        await failures.persist(
            lambda: requests.fetch(at, min(stop, at + requests.largest), version, write)
        )
    return bytes(buffer)
