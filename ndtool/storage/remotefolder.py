"""Remote folders that are array stores: objects under one prefix, read and written by key."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from ndtool.errors import InputError, NdtoolError, OutputError, redact_urls
from ndtool.machine import threads
from ndtool.storage import failures, objects
from ndtool.storage.local import Fingerprint, Folder
from ndtool.storage.localfolder import MAX_METADATA_SIZE, digest, size_error
from ndtool.storage.objects import RemoteObject, Version
from ndtool.storage.urls import is_http, join

T = TypeVar("T")
# Start and stop of a slice of an object's bytes; a negative start counts from the end.
ByteSlice = tuple[int | None, int | None]

_MAX_INDICES = 16  # cached shard indices
_MAX_INDEX_SIZE = 1 << 20  # bytes of a cached shard index


class RemoteFolder(Folder):
    """A remote folder. pending_metadata: metadata that are not written yet, by key."""

    concurrency = threads.MAX_WRITERS

    def __init__(self, url: str, pending_metadata: dict[str, bytes] | None = None) -> None:
        self.url, self.path = url, redact_urls(url)
        self.can_list = not is_http(url)
        self._metadata: dict[str, bytes | None] = {**(pending_metadata or {})}  # cached metadata
        self._prefetched: dict[str, bytes | None] = {}  # for the next `read_file`
        self._versions: dict[str, Version | None] = {}  # of objects read by range requests
        self._indices: dict[tuple[str, ByteSlice], bytes] = {}

    def read(self, key: str) -> bytes | None:
        """Read a metadata object, None if it does not exist; the result is cached."""
        if key not in self._metadata:
            self._metadata[key] = read_small(join(self.url, key), MAX_METADATA_SIZE)[0]
        return self._metadata[key]

    def subfolders(self, key: str) -> list[str]:
        return [n for n, info in self.list_entries(key).items() if info.get("type") == "directory"]

    def list_entries(self, key: str) -> dict[str, dict[str, Any]]:
        """Return fsspec's info about the entries of a folder."""
        return self._wait(objects.list_folder(join(self.url, key)), key)

    def prefetch(self, key: str, limit: int | None) -> tuple[Any, ...]:
        """Prefetch an object, and return its fingerprint, () if it does not exist.

        limit: the maximum size of the object; None to request only the fingerprint.
        """
        if limit is None:
            return _fingerprint(self._wait(self._first_version(key), key))
        body, version = read_small(join(self.url, key), limit)
        self._prefetched[key] = body
        return _fingerprint(version)

    def file_fingerprint(self, key: str) -> tuple[Any, ...]:
        return _fingerprint(self._wait(self._version(key), key))

    def read_file(self, key: str, limit: int) -> bytes | None:
        if key in self._prefetched:
            return self._prefetched.pop(key)
        return read_small(join(self.url, key), limit)[0]

    def read_range(self, key: str, start: int, stop: int | None) -> bytes | None:
        return self._wait(self._read_range(key, (start, stop)), key)

    def write(self, key: str, body: bytes | memoryview) -> None:
        """Write an object, replacing an existing one, and wait until it is stored."""
        url = join(self.url, key)
        objects.wait(objects.open_output(url).put(bytes(body), {}), url, OutputError)

    def read_unchecked(self, key: str, start: int, stop: int) -> bytes:
        """Read a byte range of an object without checking its version."""
        return self._wait(self._fetch(key, start, stop, Version()), key)

    def contents(self, key: str = "") -> dict[str, Version]:
        """Return the versions of all objects in a folder, by their relative paths."""
        entries = self._wait(objects.list_folder(join(self.url, key), "find"), key)
        return {name: objects.version_of(info) for name, info in entries.items()}

    def fingerprint(self, key: str) -> Fingerprint:
        """Return the fingerprint of all objects below a key, None if unavailable."""
        versions = dict[str, Version]()
        if self.can_list:
            with suppress(InputError):  # listing may not be permitted
                versions = self.contents(key)
        rows = [(name, tag.etag or tag.modified, tag.size) for name, tag in versions.items()]
        return digest(rows) if rows and all(tag for _, tag, _ in rows) else None

    def _wait(self, coroutine: Coroutine[Any, Any, T], key: str) -> T:
        return objects.wait(coroutine, join(self.url, key))

    async def _version(self, key: str) -> Version | None:
        return await objects.if_exists(
            failures.retry(objects.open_object(join(self.url, key)).version)
        )

    async def _first_version(self, key: str) -> Version | None:
        """Return the version of an object when it was first read; all its ranges must have it."""
        if key not in self._versions:
            self._versions.setdefault(key, await self._version(key))
        return self._versions[key]

    async def _read_range(self, key: str, span: ByteSlice) -> bytes | None:
        if (key, span) in self._indices:
            return self._indices[key, span]
        version = await self._first_version(key)
        if version is None:
            return None
        start, stop, _ = slice(*span).indices(version.size or 0)
        block = await self._fetch(key, start, stop, version)
        # A shard index, which reads of all chunks use.
        if (span[0] or 0) <= 0 and len(block) <= _MAX_INDEX_SIZE:
            self._indices[key, span] = block
            for oldest in list(self._indices)[:-_MAX_INDICES]:
                self._indices.pop(oldest, None)
        return block

    async def _fetch(self, key: str, start: int, stop: int, version: Version) -> bytes:
        return await _read_bytes(objects.open_object(join(self.url, key)), start, stop, version)


def _fingerprint(version: Version | None) -> tuple[Any, ...]:
    return () if version is None else (version.etag or version.modified or version.size,)


def read_small(
    url: str, limit: int, kind: type[NdtoolError] = InputError
) -> tuple[bytes | None, Version | None]:
    """Read an object of at most `limit` bytes with its version, None if it does not exist."""
    source = objects.open_object(url)

    async def read() -> tuple[bytes, Version]:
        count = min(source.max_request, limit + 1)
        version, head = await failures.retry(lambda: source.open(count))
        if version.size is None or version.size > limit:
            raise size_error(url, version.size, limit)
        return head + await _read_bytes(source, len(head), version.size, version), version

    return objects.wait(objects.if_exists(read()), url, kind) or (None, None)


async def _read_bytes(source: RemoteObject, start: int, stop: int, version: Version) -> bytes:
    buffer = bytearray(max(0, stop - start))

    def write(offset: int, block: bytes) -> None:
        buffer[offset - start : offset - start + len(block)] = block

    await objects.read_range(source, start, stop, version, write)
    return bytes(buffer)
