"""The Zarr format, versions 2 and 3: chunked arrays, read chunk by chunk.

A block of a source is a chunk; of a shard, only the index and the requested chunk are read. The
zarr package is not used: it trusts the sizes in chunks, follows links, and takes longer to import
than most runs.
"""

from __future__ import annotations

from operator import mul
from threading import Lock
from typing import Any

from ndtool.arrays.assembly import ChunkedSource, library_errors
from ndtool.arrays.source import MemberInfo
from ndtool.engine import layouts
from ndtool.errors import InputError, NdtoolError, OutputError, UsageError, argument_name, printable
from ndtool.formats import members
from ndtool.formats.zarr import hierarchy, location, metadata, writer
from ndtool.formats.zarr.metadata import ZarrArray
from ndtool.machine import memory, signals, threads
from ndtool.rules import grid
from ndtool.rules.plans import Shape
from ndtool.storage.local import ZARR_METADATA, Fingerprint, Folder, is_zarr_store
from ndtool.storage.localfolder import LocalFolder

_BITMAP_BITS = 1 << 10  # bits of an integer in the bitmap of files that were read

check, planned_metadata, create = location.check, writer.planned_metadata, writer.ZarrSink


def recognises(storage: Folder) -> bool:
    """Whether a folder has metadata of Zarr; no other folder at a URL is opened."""
    return not isinstance(storage, LocalFolder) or is_zarr_store(storage.path)


def entries(storage: Folder, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of all arrays, or of one; an invalid array has no metadata."""
    if member is not None:
        return [_entry(storage, path, _choose(storage, path, member))]
    return [_entry(storage, path, member) for member in hierarchy.array_paths(storage)]


def open_source(storage: Folder, name: str, path: str, member: str | None) -> ZarrSource:
    """Open an array, the only one if none is named; closing the source closes the store."""
    node = _choose(storage, path, member)
    array = _read_array(storage, path, node)
    array.require_packages()
    return ZarrSource(name, array, storage, node)


def _read_array(storage: Folder, path: str, node: str) -> ZarrArray:
    label = metadata.label(path, node)
    if hierarchy.node_type(storage, node) == "group":
        raise InputError(f"{printable(label)} is a group: expected an array")
    return metadata.read_array(storage.read, label, node)


def _choose(storage: Folder, path: str, member: str | None) -> str:
    node = None if member is None else member.strip("/")
    is_path = node is not None and not {".", ".."}.intersection(node.split("/"))
    if node is not None and is_path and hierarchy.node_type(storage, node) == "array":
        return node
    nodes = {node or "/": node for node in hierarchy.array_paths(storage)}
    return members.choose(
        path, node, nodes, "the store", "array", lambda node: _entry(storage, path, node).label
    )


def _entry(storage: Folder, path: str, node: str) -> MemberInfo:
    name = metadata.label(path, node)
    try:
        array = _read_array(storage, path, node)
    except UsageError:
        raise
    except NdtoolError as exc:
        return MemberInfo.invalid(name, node or None, exc)
    return MemberInfo(name, node or None, array.metadata, None, "in chunks", array.warning)


class ZarrSource(ChunkedSource):
    """An array of a store.

    Changes during the run are detected by fingerprints of the metadata file and of all chunk files
    that were read, computed before the first read of each and again at the end.
    """

    _storage: Any

    def __init__(self, name: str, array: ZarrArray, storage: Folder, node: str) -> None:
        self.name, self.metadata, self.concurrency = name, array.metadata, storage.concurrency
        self.fill, self.warning = array.fill, array.warning
        self._array, self._storage, self._node = array, storage, node
        self._file_shape = array.metadata.file_shape  # of the elements in a file
        self._file_counts = grid.grid_shape(array.metadata.shape, self._file_shape)
        self._read_files: dict[int, int] = {}  # a bitmap, _BITMAP_BITS per item
        self._fingerprints = self._metadata_fingerprint()  # with the sum of these files' ones
        self._lock = Lock()
        if signals.is_command_line():
            memory.return_freed_memory()  # of chunks

    def read_chunk(self, index: int, box: grid.Box) -> Any:
        key = self._record_file(grid.coordinates(box, self._file_shape))
        raw = self._read_encoded(key, grid.coordinates(box, self.metadata.block_shape))
        return None if raw is None else self._array.chain.decode(raw)

    def _read_encoded(self, key: str, coordinates: Shape) -> bytes | None:
        """Return the encoded bytes of the chunk at grid coordinates, None if it is missing."""
        limit, sharding = self._array.chain.max_nbytes, self._array.sharding
        if sharding is None:
            return self._storage.read_file(key, limit)  # type: ignore[no-any-return]
        index = self._storage.read_range(key, *sharding.index_span())
        if index is None:
            return None
        shard_coordinates = tuple(
            i % n for i, n in zip(coordinates, sharding.per_shard, strict=True)
        )
        if (entry := sharding.find(index, shard_coordinates)) is None:
            return None
        offset, size = entry
        if size > limit:
            raise ValueError(f"{key} has a chunk of {size} bytes: at most {limit} are valid")
        raw: bytes | None = self._storage.read_range(key, offset, offset + size)
        if raw is None or len(raw) < size:
            raise ValueError(f"{key} is truncated")
        return raw

    def require_unchanged(self) -> None:
        change = self._storage.describe_change()
        if not change and self._current_fingerprints() != self._fingerprints:
            change = "changed during the run: its metadata or a chunk that was read is modified"
        if change:
            raise OutputError(f"{argument_name(self.name)} {change}")

    def fingerprint(self) -> Fingerprint:
        with library_errors(self.name):
            return self._storage.fingerprint(self._node)  # type: ignore[no-any-return]

    def is_same_file(self, fd: int) -> bool:
        return False

    def _record_file(self, coordinates: Shape) -> str:
        """Record the fingerprint of a chunk's file before its first read; return its key."""
        key, counts = self._array.chunk_key(coordinates), self._file_counts
        file_index = sum(map(mul, coordinates, layouts.contiguous_strides(counts, 1)))
        page, bit = divmod(file_index, _BITMAP_BITS)
        if not self._read_files.get(page, 0) >> bit & 1:
            limit = None if self._array.sharding else self._array.chain.max_nbytes
            fingerprint = self._storage.prefetch(key, limit)
            with self._lock:  # another reader of the shard may have been first
                flags = self._read_files.get(page, 0)
                if not flags >> bit & 1:
                    self._read_files[page] = flags | 1 << bit
                    self._fingerprints += hash((file_index, *fingerprint))
        return key

    def _current_fingerprints(self) -> int:
        """Return the sum of the current fingerprints of the metadata and of the files read."""
        total = [self._metadata_fingerprint()]

        def add(file_index: int) -> None:
            box = grid.box(self.metadata.shape, self._file_shape, file_index)
            key = self._array.chunk_key(grid.coordinates(box, self._file_shape))
            fingerprint = self._storage.file_fingerprint(key)
            with self._lock:
                total[0] += hash((file_index, *fingerprint))

        recorded = (
            page * _BITMAP_BITS + bit
            for page, flags in self._read_files.items()
            for bit in range(_BITMAP_BITS)
            if flags >> bit & 1
        )
        threads.run_all(add, recorded, self.concurrency)
        return total[0]

    def _metadata_fingerprint(self) -> int:
        names = (f"{self._node}/{name}".lstrip("/") for name in ZARR_METADATA[:2])
        return hash(tuple(map(self._storage.file_fingerprint, names)))
