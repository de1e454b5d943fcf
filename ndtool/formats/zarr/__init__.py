"""The Zarr format, versions 2 and 3: chunked arrays, read chunk by chunk.

A block is a chunk; of a shard, only the index and that chunk are read. The zarr package parses only
metadata: ndtool reads the files, and decodes them with the codecs of `chains`.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import RLock
from typing import Any

from ndtool.arrays.source import ArrayMetadata, MemberInfo, Touched
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, called, printable
from ndtool.formats import members
from ndtool.formats.numpytypes import numpy_dtype
from ndtool.formats.zarr import hierarchy, location, store, writer
from ndtool.formats.zarr.writer import ZarrSink
from ndtool.machine import pool
from ndtool.publish.targets import Target
from ndtool.rules import grid
from ndtool.rules.plans import Shape
from ndtool.storage.local import ZARR_METADATA, Fingerprint, Folder, ProgressCallback

_BITS = 1 << 10  # flags per integer in a bitmap of files
_MASK = (1 << 64) - 1


def recognises(storage: Any) -> bool:
    """Whether an opened location is a folder; only Zarr stores are opened as folders."""
    return hasattr(storage, "subfolders")


def entries(storage: Folder, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all arrays, or of one; an invalid array has no metadata."""
    if member is not None:
        return [_entry(storage, path, _choose(storage, path, member))]
    return [_entry(storage, path, member) for member in hierarchy.arrays_in(storage)]


def open_source(storage: Folder, name: str, path: str, member: str | None) -> ZarrSource:
    """Open an array, the only one if none is named; closing the source closes the store."""
    chosen = _choose(storage, path, member)
    array = store.open_array(storage, path, chosen)
    return ZarrSource(
        name, store.metadata_of(array, store.label(path, chosen)), array, storage, chosen
    )


def check(target: Target) -> tuple[str, ...] | None:
    """Validate a target without creating anything; return the preserved arrays."""
    return location.check(target)


def planned(target: Target, metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of a new array, with its chunks; create nothing."""
    return writer.planned(target, metadata)


def create(target: Target, metadata: ArrayMetadata) -> ZarrSink:
    """Return a sink for one array of a new or existing store."""
    return ZarrSink(target, metadata)


def _choose(storage: Folder, path: str, member: str | None) -> str:
    if member is not None:
        node = member.strip("/")
        if hierarchy.kind(storage, node) == "array":
            return node
        known = hierarchy.arrays_in(storage)
        inside = [one for one in known if one.startswith(f"{node}/")]
        if inside and node:
            raise _which(storage, path, inside, f"{printable(member)} is a group of")
        raise InputError(
            f"{printable(path)}: {printable(member)} is not an array of the store",
            places=_listing(storage, path, known),
        )
    known = hierarchy.arrays_in(storage)
    if not known:
        raise InputError(f"{printable(path)}: the store has no arrays")
    if len(known) > 1:
        raise _which(storage, path, known, "the store has")
    return known[0]


def _which(storage: Folder, path: str, known: list[str], what: str) -> UsageError:
    count = f"{len(known)} arrays" if len(known) > 1 else "an array"
    return members.unnamed(path, f"{what} {count}", known[0], _listing(storage, path, known))


def _listing(storage: Folder, path: str, known: list[str]) -> tuple[str, ...]:
    lines = ((one or "/", _entry(storage, path, one).label) for one in known)
    return members.listed(lines, len(known))


def _entry(storage: Folder, path: str, node: str) -> MemberInfo:
    name = store.label(path, node)
    try:
        metadata = store.metadata_of(store.open_array(storage, path, node), name)
    except NdtoolError as exc:
        if isinstance(exc, UsageError):
            raise
        reason = exc.message.removeprefix(f"{printable(name)}: ")
        return MemberInfo(name, node or None, None, None, storage.size, reason, None)
    return MemberInfo(name, node or None, metadata, None, storage.size, "in chunks", None)


class ZarrSource:
    """An array of a store.

    Changes during the run are detected by fingerprints of the metadata file and of all chunk files
    that were read, taken before the first read and again at the end.
    """

    warning = None
    progress: ProgressCallback | None = None

    def __init__(
        self, name: str, metadata: ArrayMetadata, array: Any, storage: Folder, node: str
    ) -> None:
        self.name, self.metadata, self.at_once = name, metadata, storage.at_once
        self._array, self._storage, self._node = array, storage, node
        self._layout = store.layout_of(array, metadata.dtype, name)
        self._files = tuple(array.shards or array.chunks)  # the shape of a file's elements
        self._seen: dict[int, int] = {}  # bitmap of files read, _BITS per item
        self._sum = 0
        self._lock = RLock()
        self._metadata = self._looked_at_metadata()

    def whole(self, touched: Touched | None = None) -> None:
        return None

    def block(self, number: int) -> memoryview:
        import numpy as np

        metadata = self.metadata
        storage = grid.box(metadata.shape, metadata.grid, number)
        sizes = grid.sizes(storage)
        key = self._note(
            tuple(first // step for (first, _), step in zip(storage, self._files, strict=True))
        )
        with store.converted_errors(self.name):
            at = tuple(
                first // step for (first, _), step in zip(storage, metadata.grid, strict=True)
            )
            raw = self._read(key, at)
            if raw is None:
                block = np.zeros(sizes, numpy_dtype(metadata.dtype))
                if (fill := self._array.metadata.fill_value) is not None:
                    block[...] = fill
            else:
                within: Any = (..., *map(slice, sizes))
                chunk = self._layout.chain.decode(raw)[within]
                del raw
                block = np.ascontiguousarray(chunk).reshape(sizes)
        flat: Any = block.reshape(-1).view(np.uint8)
        return memoryview(flat).toreadonly()

    def _read(self, key: str, at: Shape) -> bytes | None:
        """Return the bytes of the chunk at grid coordinates `at`, None if it is missing."""
        most, sharding = self._layout.chain.most, self._layout.sharding
        if sharding is None:
            return self._storage.read_file(key, most)
        index = self._storage.read_range(key, *sharding.index_span())
        if index is None:
            return None
        found = sharding.find(index, tuple(i % n for i, n in zip(at, sharding.per, strict=True)))
        if found is None:
            return None
        offset, size = found
        if size > most:
            raise ValueError(f"{key} has a chunk of {size} bytes: at most {most} are valid")
        raw = self._storage.read_range(key, offset, offset + size)
        if raw is None or len(raw) < size:
            raise ValueError(f"{key} is truncated")
        return raw

    def recheck(self) -> None:
        change = self._storage.change()
        if not change and self._looked_at_metadata() != self._metadata:
            change = "changed during the run"
        if not change and self._sum_now() != self._sum:
            change = "changed during the run: a chunk that was read is modified"
        if change:
            raise OutputError(f"{called(self.name)} {change}")

    def fingerprint(self) -> Fingerprint:
        with store.converted_errors(self.name):
            return self._storage.fingerprint(self._node)

    def is_open_as(self, fd: int) -> bool:
        return False

    def close(self) -> None:
        self._storage.close()

    def _note(self, at: tuple[int, ...]) -> str:
        """Record the fingerprint of a chunk's file before its first read; return its key."""
        number, key = 0, self._key(at)
        for count, i in zip(grid.blocks_along(self.metadata.shape, self._files), at, strict=True):
            number = number * count + i
        with self._lock:
            page, bit = divmod(number, _BITS)
            seen = self._seen.get(page, 0)
            new = not seen >> bit & 1
            self._seen[page] = seen | 1 << bit
            if new and self._array.shards is not None:  # readers of its other chunks wait
                self._take_note(number, key)
        if new and self._array.shards is None:
            self._take_note(number, key)
        return key

    def _take_note(self, number: int, key: str) -> None:
        most = self._layout.chain.most if self._layout.sharding is None else None
        current = self._storage.prefetch(key, most)
        with self._lock:
            self._sum = (self._sum + hash((number, *current))) & _MASK

    def _noted(self) -> Iterator[int]:
        for page, seen in self._seen.items():
            yield from (page * _BITS + bit for bit in range(_BITS) if seen >> bit & 1)

    def _sum_now(self) -> int:
        """Return the sum of the current fingerprints of all chunk files that were read."""
        total = [0]

        def look(number: int) -> None:
            box = grid.box(self.metadata.shape, self._files, number)
            at = (first // step for (first, _), step in zip(box, self._files, strict=True))
            current = self._storage.file_fingerprint(self._key(tuple(at)))
            with self._lock:
                total[0] = (total[0] + hash((number, *current))) & _MASK

        pool.run_all(look, self._noted(), self.at_once)
        return total[0]

    def _key(self, at: tuple[int, ...]) -> str:
        """Return the key of the chunk or shard at given grid coordinates."""
        return f"{self._node}/{self._array.metadata.encode_chunk_key(at)}".lstrip("/")

    def _looked_at_metadata(self) -> tuple[tuple[Any, ...], ...]:
        names = (f"{self._node}/{name}".lstrip("/") for name in ZARR_METADATA[:2])
        return tuple(map(self._storage.file_fingerprint, names))
