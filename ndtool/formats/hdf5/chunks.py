"""Read chunked HDF5 datasets: complete chunks, from several threads, without h5py's lock.

h5py reads only the index of chunks. ndtool reads the bytes of a chunk, and applies the common
filters; it reads chunks with other filters through h5py, one at a time.
"""

from __future__ import annotations

import zlib
from array import array
from math import prod
from threading import Lock
from typing import Any, NamedTuple

from ndtool.arrays.source import AccessedElements, ArrayMetadata, StoredSource
from ndtool.engine import layouts
from ndtool.formats import numpytypes
from ndtool.formats.decoding import library_errors
from ndtool.formats.hdf5.datasets import DEFLATE, SHUFFLE, StorageLayout, fill_element
from ndtool.formats.hdf5.library import library
from ndtool.machine import pool
from ndtool.rules import grid
from ndtool.rules.plans import Shape
from ndtool.storage.local import File

_MIN_ENTRY_BYTES = 8  # minimum size of a chunk's entry in the file's chunk index


class Chunk(NamedTuple):
    """The byte range of a chunk. filter_mask: a bit is set for each filter that was not applied."""

    position: int
    nbytes: int
    filter_mask: int


class ChunkTable:
    """The byte ranges of a dataset's chunks, by their linear indices in the grid of chunks."""

    def __init__(self, dataset: Any, metadata: ArrayMetadata, start: int, size: int) -> None:
        """Read the chunk index. start: the offset of the signature. size: of the file in bytes."""
        import numpy as np

        rank, entries = len(metadata.shape), array("Q")
        limit = (rank + 3) * (size // _MIN_ENTRY_BYTES)

        def add(chunk: Any) -> bool | None:
            entries.extend(chunk.chunk_offset)
            entries.extend((chunk.byte_offset, chunk.size, chunk.filter_mask))
            return True if len(entries) > limit else None  # True ends the iteration

        if dataset.chunk_iter(add):
            raise ValueError("more chunks than the file has bytes for")
        table = np.frombuffer(entries, np.uint64).reshape(-1, rank + 3)
        block_counts = grid.grid_shape(metadata.shape, metadata.block_shape)
        coordinates, remainders = np.divmod(
            table[:, :rank], np.array(metadata.block_shape, np.uint64)
        )
        is_valid = (coordinates < np.array(block_counts, np.uint64)).all(1) & ~remainders.any(1)
        strides = np.array(layouts.contiguous_strides(block_counts, 1), np.uint64)
        indices = (coordinates[is_valid] * strides).sum(1, dtype=np.uint64)
        self._indices, first_rows = np.unique(indices, return_index=True)
        self._chunks = table[is_valid][first_rows, rank:]
        self._start, self._size = start, size

    def find(self, index: int) -> Chunk | None:
        """Return the byte range of a chunk, None if it was never written; ValueError if invalid."""
        row = int(self._indices.searchsorted(index))
        if row == len(self._indices) or int(self._indices[row]) != index:
            return None
        position, nbytes, filter_mask = map(int, self._chunks[row])
        position += self._start
        if position + nbytes > self._size:
            raise ValueError(
                f"a chunk of {nbytes} bytes at byte {position} exceeds the file's {self._size}"
            )
        return Chunk(position, nbytes, filter_mask)


class ChunkedSource(StoredSource):
    """A chunked dataset.

    Remote chunks that a run touches are downloaded together, any other when it is read. file:
    h5py's file, which is closed with the source.
    """

    file: Any = None
    _storage: File

    def __init__(
        self,
        name: str,
        metadata: ArrayMetadata,
        dataset: Any,
        layout: StorageLayout,
        storage: File,
        start: int,
        warning: str | None,
    ) -> None:
        self.name, self.metadata, self.warning = name, metadata, warning
        self._dataset, self._layout, self._storage, self._start = dataset, layout, storage, start
        self.concurrency = pool.MAX_THREADS if hasattr(storage, "download") else 1
        self._dtype = numpytypes.numpy_dtype(metadata.dtype)
        self._chunk_nbytes = prod(metadata.block_shape) * metadata.dtype.itemsize
        self._table: ChunkTable | None = None
        self._fill: bytes | None = None
        self._lock = Lock()

    def load(self, touched: AccessedElements | None = None) -> None:
        if (download := getattr(self._storage, "download", None)) is not None:
            download(self._ranges(touched))

    def _ranges(self, touched: AccessedElements | None) -> list[tuple[int, int]]:
        """Return the byte ranges of the chunks with touched elements, in ascending order."""
        shape, chunk_shape = self.metadata.shape, self.metadata.block_shape
        block_numbers = (
            range(grid.count_blocks(shape, chunk_shape))
            if touched is None
            else touched.blocks(chunk_shape)
        )
        with library_errors(self.name):
            chunks = [
                chunk for number in block_numbers if (chunk := self._find_chunk(number)) is not None
            ]
        return sorted((chunk.position, chunk.position + chunk.nbytes) for chunk in chunks)

    def block(self, index: int) -> memoryview:
        import numpy as np

        from ndtool.arrays.assembly import as_bytes

        box = grid.box(self.metadata.shape, self.metadata.block_shape, index)
        sizes = grid.box_shape(box)
        with library_errors(self.name):
            chunk = self._find_chunk(index)
            if chunk is None:
                return memoryview(self._fill_element() * prod(sizes))
            raw = self._decode(chunk, sizes)
            if raw is None:
                block = self._read_by_library(box)
            else:
                selection: Any = (..., *map(slice, sizes))
                block = np.frombuffer(raw, self._dtype).reshape(self.metadata.block_shape)[
                    selection
                ]
        return as_bytes(block).toreadonly()

    def _find_chunk(self, number: int) -> Chunk | None:
        with self._lock:
            if self._table is None:
                self._table = ChunkTable(
                    self._dataset, self.metadata, self._start, self._storage.size
                )
        chunk = self._table.find(number)
        limit = self._chunk_nbytes + self._chunk_nbytes // 8 + (1 << 14)
        if chunk is not None and chunk.nbytes > limit:
            raise ValueError(f"a chunk of {chunk.nbytes} bytes: at most {limit} are valid")
        return chunk

    def _fill_element(self) -> bytes:
        with self._lock:
            if self._fill is None:
                self._fill = fill_element(self._dataset, self.metadata.dtype)
        return self._fill

    def _decode(self, chunk: Chunk, sizes: Shape) -> Any:
        """Return the decoded bytes of a chunk, None if only h5py can decode it."""
        filters = self._layout.filters
        # Chunks at the end of an axis may be stored without filters, which no mask indicates.
        is_ambiguous = (
            filters and sizes != self.metadata.block_shape and chunk.nbytes == self._chunk_nbytes
        )
        if not self._layout.is_native or is_ambiguous:
            return None
        raw: Any = self._storage.read(chunk.position, chunk.nbytes, self.name)
        for i in reversed(range(len(filters))):
            if not chunk.filter_mask >> i & 1:
                raw = _DECODERS[filters[i].number](
                    raw, self._chunk_nbytes, self.metadata.dtype.itemsize
                )
        if len(raw) != self._chunk_nbytes:
            raise ValueError(f"a chunk has {len(raw)} bytes: expected {self._chunk_nbytes}")
        return raw

    def _read_by_library(self, box: grid.Box) -> Any:
        import numpy as np

        sizes = grid.box_shape(box)
        block: Any = np.empty(sizes, self._dtype)
        space, memory = self._dataset.get_space(), library().h5s.create_simple(sizes)
        space.select_hyperslab(tuple(first for first, _ in box), sizes)
        with self._lock:
            self._dataset.read(memory, space, block, self._dataset.get_type())
        return block

    def close(self) -> None:
        self._dataset = None
        if self.file is not None:
            self.file.close()
        super().close()


def _inflate(raw: Any, nbytes: int, itemsize: int) -> bytes:
    """Reverse the gzip filter; ValueError unless the result has `nbytes` bytes."""
    inflater = zlib.decompressobj()
    chunk = inflater.decompress(raw, nbytes + 1)
    if len(chunk) != nbytes or not inflater.eof:
        raise ValueError(f"a chunk is damaged, or has not {nbytes} bytes decompressed")
    return chunk


def _unshuffle(raw: Any, nbytes: int, itemsize: int) -> Any:
    """Reverse the shuffle filter, which stores the first bytes of all elements, then the second."""
    import numpy as np

    if len(raw) != nbytes:
        raise ValueError(f"a chunk has {len(raw)} bytes: expected {nbytes}")
    planes = np.frombuffer(raw, np.uint8).reshape(itemsize, -1)
    elements: Any = np.empty((planes.shape[1], itemsize), np.uint8)
    for i in range(itemsize):
        elements[:, i] = planes[i]
    return memoryview(elements.reshape(-1))


_DECODERS = {DEFLATE: _inflate, SHUFFLE: _unshuffle}
