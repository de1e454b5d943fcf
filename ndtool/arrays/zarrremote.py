"""Zarr stores behind URLs: what the zarr package asks of one, and where a new array may go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, TypeVar

from zarr.abc.store import (
    ByteRequest,
    OffsetByteRequest,
    RangeByteRequest,
    Store,
    SuffixByteRequest,
)
from zarr.core.buffer import Buffer, BufferPrototype

from ndtool.arrays import remote
from ndtool.arrays.remotefolder import RemoteFolder, Span

T = TypeVar("T")


class RemoteStore(Store):
    """A folder behind a URL as the package wants it; requests run in the loop of those."""

    supports_writes = True
    supports_deletes = False
    supports_listing = True

    def __init__(self, folder: RemoteFolder, read_only: bool) -> None:
        super().__init__(read_only=read_only)
        self._folder = folder

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteStore) and self._folder is other._folder

    def with_read_only(self, read_only: bool = False) -> RemoteStore:
        return RemoteStore(self._folder, read_only)

    async def get(
        self, key: str, prototype: BufferPrototype, byte_range: ByteRequest | None = None
    ) -> Buffer | None:
        raw = await _away(self._folder.get(key, _span(byte_range)))
        return None if raw is None else prototype.buffer.from_bytes(raw)

    async def get_partial_values(
        self, prototype: BufferPrototype, key_ranges: Iterable[tuple[str, ByteRequest | None]]
    ) -> list[Buffer | None]:
        return [await self.get(key, prototype, span) for key, span in key_ranges]

    async def exists(self, key: str) -> bool:
        return await _away(self._folder.get(key)) is not None

    async def set(self, key: str, value: Buffer) -> None:
        await _away(self._folder.put(key, value.to_bytes()))

    async def delete(self, key: str) -> None:
        raise PermissionError("objects of a store are added, never removed")

    async def list(self) -> AsyncIterator[str]:
        async for key in self.list_prefix(""):
            yield key

    async def list_prefix(self, prefix: str) -> AsyncIterator[str]:
        waiting = [prefix.rstrip("/")]
        while waiting:
            path = waiting.pop()
            for name, below in await asyncio.to_thread(self._folder.listed, path):
                key = f"{path}/{name}".lstrip("/")
                if below:
                    waiting.append(key)
                else:
                    yield key

    async def list_dir(self, prefix: str) -> AsyncIterator[str]:
        for name, _ in await asyncio.to_thread(self._folder.listed, prefix.rstrip("/")):
            yield name


async def _away(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in fsspec's loop, where the sessions are, from the package's own."""
    return await asyncio.wrap_future(remote.started(coroutine))


def _span(asked: ByteRequest | None) -> Span | None:
    match asked:
        case None:
            return None
        case RangeByteRequest(start=start, end=end):
            return start, end
        case OffsetByteRequest(offset=offset):
            return offset, None
        case SuffixByteRequest(suffix=suffix):
            return -suffix, None
