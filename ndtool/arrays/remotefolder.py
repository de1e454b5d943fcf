"""A folder behind a URL: many objects under one prefix, read and written one by one, each whole."""

from __future__ import annotations

from collections.abc import Coroutine
from threading import Lock
from typing import Any, Self, TypeVar

from ndtool.arrays import failures, remote, upload
from ndtool.arrays.local import ZARR_METADATA, Told, digest
from ndtool.arrays.remote import Requests, Version
from ndtool.engine import crew
from ndtool.errors import InputError, OutputError, ResourceError, printable, redacted

T = TypeVar("T")
Span = tuple[int | None, int | None]  # as a slice has it: from, to; a negative start is an end's

LARGEST = (1 << 31) + (1 << 24)  # bytes of an object that is read whole: a chunk, badly compressed
_INDICES, _INDEX = 16, 1 << 20  # ends of objects that are kept, and how many bytes one may have
METADATA = (*ZARR_METADATA, ".zattrs")


def inside(url: str, key: str, beside: bool = False) -> str:
    """Return the URL of what is in a folder; queries and links of a chain stay at the end.

    beside: whether the URL is that of a file in the folder.

    >>> inside("https://host/x.zarr?k=v", "a/zarr.json"), inside("s3://b/x/", "c")
    ('https://host/x.zarr/a/zarr.json?k=v', 's3://b/x/c')
    """
    path, rest = parted(url)
    folder = path.rpartition("/")[0] if beside else path.rstrip("/")
    return f"{folder}/{remote.quoted(url, key)}{rest}"


def parted(url: str) -> tuple[str, str]:
    """Return a URL up to a query or the links of a chain, and these."""
    ends = [at for mark in ("?", "::") if (at := url.find(mark)) > 0]
    at = min(ends, default=len(url))
    return url[:at], url[at:]


class RemoteFolder:
    """What LocalFolder is for a folder, for a prefix of a store or a server.

    known: metadata that are not there yet.
    """

    size = 0
    at_once = crew.MOST

    def __init__(self, url: str, known: dict[str, bytes] | None = None) -> None:
        self.url, self.path = url, redacted(url)
        self.lists = remote.lists(url)
        self._small: dict[str, bytes | None] = {**(known or {})}  # metadata, each asked for once
        self._ready: dict[str, bytes | None] = {}  # what was looked at and will be read next
        self._versions: dict[str, Version | None] = {}  # of objects that are read in ranges
        self._indices: dict[tuple[str, Span], bytes] = {}
        self._lock = Lock()

    def look(self, start: int, nbytes: int) -> bytes:
        """Return no bytes: a folder has none."""
        return b""

    def below(self, key: str) -> RemoteFolder:
        """Return a folder in it, or it, as it is now."""
        return RemoteFolder(inside(self.url, key) if key else self.url)

    def read(self, key: str) -> bytes | None:
        """Return a small object, None where there is none; it is asked for once."""
        if key not in self._small:
            self._small[key] = self._wait(self._whole(key))[0]
        return self._small[key]

    def names(self, key: str) -> list[str]:
        """Return the names of the folders in a folder."""
        return [name for name, below in self.listed(key) if below]

    def listed(self, key: str) -> list[tuple[str, bool]]:
        """Return all names in a folder, and whether each is one itself."""
        return self._wait(remote.listing(inside(self.url, key) if key else self.url))

    def ready(self, key: str, whole: bool) -> tuple[Any, ...]:
        """Return what tells this content of an object from others; () where there is none.

        whole: whether it is read whole next: then one reply brings both.
        """
        if not whole:
            version = self._wait(self._first_version(key))
            return () if version is None else _told(version)
        body, version = self._wait(self._whole(key))
        with self._lock:
            self._ready[key] = body
        return () if version is None else _told(version)

    def like(self, key: str) -> tuple[Any, ...]:
        """Return what `ready` does, of what is there now."""
        version = self._wait(self._version(key))
        return () if version is None else _told(version)

    def peek(self, key: str, count: int) -> tuple[bytes, int] | None:
        """Return the first bytes of an object that is ready, and how many there are."""
        body = self._ready.get(key)
        return None if body is None else (body[:count], len(body))

    async def get(self, key: str, span: Span | None = None) -> bytes | None:
        """Return an object, or a part of it; None where there is none."""
        if key.rpartition("/")[2] in METADATA:
            if key not in self._small:
                self._small[key] = (await self._whole(key))[0]
            return self._small[key]
        if span is not None:
            return await self._part(key, span)
        with self._lock:
            if key in self._ready:
                return self._ready.pop(key)
        return (await self._whole(key))[0]

    async def put(self, key: str, body: bytes) -> None:
        """Write an object, in the place of an old one."""
        url = inside(self.url, key)
        try:
            await upload.store(url).put(body, {})
        except Exception as exc:
            raise failures.failure(exc, redacted(url), OutputError) from None

    def write(self, key: str, body: bytes) -> None:
        """Write an object, in the place of an old one."""
        self._wait(self.put(key, body))

    def span(self, key: str, start: int, stop: int) -> bytes:
        """Return a range of an object that nobody changes."""
        url = inside(self.url, key)
        return self._wait(self._fetched(remote.requests(url), start, stop, Version(), url))

    def change(self) -> str:
        """Say nothing: a prefix is what is under it."""
        return ""

    def contents(self, key: str = "") -> dict[str, Version]:
        """Return all objects in a folder, by their paths in it."""
        return self._wait(remote.contents(inside(self.url, key) if key else self.url))

    def told(self, key: str) -> Told:
        """Return what tells all objects in a folder, as they are now; None where nothing does."""
        found = self._wait(self._allowed(key)) if self.lists else {}
        if not found or not all(one.etag or one.modified for one in found.values()):
            return None
        return digest([(name, one.etag or one.modified, one.size) for name, one in found.items()])

    def close(self) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def _wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return remote.wait(coroutine, self.path)

    async def _allowed(self, key: str) -> dict[str, Version]:
        """Return all objects in a folder, none where they may be read, but not listed."""
        try:
            return await remote.contents(inside(self.url, key) if key else self.url)
        except Exception as exc:
            if failures.is_refused(exc):
                return {}
            raise

    async def _version(self, key: str) -> Version | None:
        url = inside(self.url, key)
        try:
            return await failures.persist(remote.requests(url).version)
        except Exception as exc:
            if failures.is_missing(exc):
                return None
            raise failures.failure(exc, redacted(url)) from None

    async def _first_version(self, key: str) -> Version | None:
        """Return the version that all ranges of an object must be of."""
        if key not in self._versions:
            self._versions.setdefault(key, await self._version(key))
        return self._versions[key]

    async def _whole(self, key: str) -> tuple[bytes | None, Version | None]:
        url = inside(self.url, key)
        requests = remote.requests(url)
        try:
            opened = await failures.persist(lambda: requests.open(requests.largest))
            size, head = opened.version.size, opened.head
            if size is None or len(head) < size:
                if size is not None and size > LARGEST:
                    raise ResourceError(
                        f"{printable(url)} has {size} bytes: at most {LARGEST} are read at once"
                    )
                head = await _rest(requests, opened)
            return head, opened.version
        except Exception as exc:
            if failures.is_missing(exc):
                return None, None
            raise failures.failure(exc, redacted(url)) from None

    async def _part(self, key: str, span: Span) -> bytes | None:
        if (key, span) in self._indices:
            return self._indices[key, span]
        version, url = await self._first_version(key), inside(self.url, key)
        if version is None:
            return None
        start, stop, _ = slice(*span).indices(version.size or 0)
        piece = await self._fetched(remote.requests(url), start, stop, version, url)
        if (span[0] or 0) <= 0 and len(piece) <= _INDEX:  # of a shard: all its chunks need it
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


def _told(version: Version) -> tuple[Any, ...]:
    return (version.etag or version.modified or version.size,)


async def _rest(requests: Requests, opened: remote.Opened) -> bytes:
    """Return all of an object of which a reply brought the beginning."""
    if opened.ranged and opened.version.size is not None:
        head, size = opened.head, opened.version.size
        return head + await _pieces(requests, len(head), size, opened.version)
    room = bytearray()

    def write(start: int, piece: bytes) -> None:
        if start + len(piece) > LARGEST:
            raise InputError(f"more than {LARGEST} bytes")
        room[start:] = piece  # another try begins anew

    found = await failures.persist(lambda: requests.download(write))
    if found.differs(opened.version):
        raise failures.ChangedError
    return bytes(room)


async def _pieces(requests: Requests, start: int, stop: int, version: Version) -> bytes:
    """Return a range of an object, in as many requests as it takes."""
    room = bytearray(max(0, stop - start))
    at = start

    def write(where: int, piece: bytes) -> None:
        nonlocal at
        room[where - start : where - start + len(piece)] = piece
        at = where + len(piece)

    while at < stop:
        await failures.persist(
            lambda: requests.fetch(at, min(stop, at + requests.largest), version, write)
        )
    return bytes(room)
