"""Read chunked HDF5 datasets: complete chunks, from several threads, without h5py's lock.

h5py reads only the table of chunks. ndtool reads the bytes of a chunk itself and decodes the common
filters; it reads chunks with others through h5py, one at a time.
"""

from __future__ import annotations

import zlib
from array import array
from math import prod
from threading import Lock
from typing import Any, NamedTuple

from ndtool.arrays.source import ArrayMetadata, StoredSource, Touched
from ndtool.engine import layouts
from ndtool.formats import numpytypes
from ndtool.formats.decoding import library_errors
from ndtool.formats.hdf5.datasets import DEFLATE, SHUFFLE, StorageLayout, fill_element
from ndtool.formats.hdf5.library import library
from ndtool.machine import pool
from ndtool.rules import grid
from ndtool.rules.plans import Shape
from ndtool.storage.local import File

_ENTRY = 8  # minimum bytes of a chunk's entry in its table in the file


class Chunk(NamedTuple):
    """The bytes of a chunk in a file. skipped: a bit for each filter that was not applied."""

    position: int
    nbytes: int
    skipped: int


class ChunkTable:
    """The chunks of a dataset by their numbers in the grid; most datasets have several thousand."""

    def __init__(self, dataset: Any, metadata: ArrayMetadata, start: int, size: int) -> None:
        """Read the table. start: the offset of the signature. size: the bytes of the file."""
        import numpy as np

        rank, entries = len(metadata.shape), array("Q")
        limit = (rank + 3) * (size // _ENTRY)

        def add(chunk: Any) -> bool | None:
            entries.extend(chunk.chunk_offset)
            entries.extend((chunk.byte_offset, chunk.size, chunk.filter_mask))
            return True if len(entries) > limit else None  # True ends the iteration

        if dataset.chunk_iter(add):
            raise ValueError("more chunks than the file has bytes for")
        table = np.frombuffer(entries, np.uint64).reshape(-1, rank + 3)
        along = grid.blocks_along(metadata.shape, metadata.grid)
        coordinates, rest = np.divmod(table[:, :rank], np.array(metadata.grid, np.uint64))
        valid = (coordinates < np.array(along, np.uint64)).all(1) & ~rest.any(1)
        steps = np.array(layouts.contiguous_strides(along, 1), np.uint64)
        numbers = (coordinates[valid] * steps).sum(1, dtype=np.uint64)
        self._numbers, first = np.unique(numbers, return_index=True)
        self._chunks = table[valid][first, rank:]
        self._start, self._size = start, size

    def find(self, number: int) -> Chunk | None:
        """Return the bytes of a chunk, None if it was never written; ValueError if invalid."""
        row = int(self._numbers.searchsorted(number))
        if row == len(self._numbers) or int(self._numbers[row]) != number:
            return None
        position, nbytes, skipped = map(int, self._chunks[row])
        position += self._start
        if position + nbytes > self._size:
            raise ValueError(
                f"a chunk of {nbytes} bytes at byte {position} exceeds the file's {self._size}"
            )
        return Chunk(position, nbytes, skipped)


class ChunkedSource(StoredSource):
    """A chunked dataset.

    Remote chunks that a run touches are downloaded together; others one at a time. file: h5py's
    file, which is closed with the source.
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
        self.at_once = pool.MAX_THREADS if hasattr(storage, "download") else 1
        self._dtype = numpytypes.numpy_dtype(metadata.dtype)
        self._nbytes = prod(metadata.grid) * metadata.dtype.itemsize
        self._table: ChunkTable | None = None
        self._fill: bytes | None = None
        self._lock = Lock()

    def whole(self, touched: Touched | None = None) -> None:
        if (download := getattr(self._storage, "download", None)) is not None:
            download(self._ranges(touched))

    def _ranges(self, touched: Touched | None) -> list[tuple[int, int]]:
        """Return the byte ranges of the chunks with touched elements, ascending."""
        shape, step = self.metadata.shape, self.metadata.grid
        numbers = range(grid.blocks(shape, step)) if touched is None else touched.blocks(step)
        with library_errors(self.name):
            chunks = [chunk for number in numbers if (chunk := self._find(number)) is not None]
        return sorted((chunk.position, chunk.position + chunk.nbytes) for chunk in chunks)

    def block(self, number: int) -> memoryview:
        import numpy as np

        from ndtool.arrays.assembly import bytes_of

        box = grid.box(self.metadata.shape, self.metadata.grid, number)
        sizes = grid.sizes(box)
        with library_errors(self.name):
            chunk = self._find(number)
            if chunk is None:
                return memoryview(self._fill_element() * prod(sizes))
            raw = self._decoded(chunk, sizes)
            if raw is None:
                block = self._read_by_library(box)
            else:
                inside: Any = (..., *map(slice, sizes))
                block = np.frombuffer(raw, self._dtype).reshape(self.metadata.grid)[inside]
        return bytes_of(block).toreadonly()

    def _find(self, number: int) -> Chunk | None:
        with self._lock:
            if self._table is None:
                self._table = ChunkTable(
                    self._dataset, self.metadata, self._start, self._storage.size
                )
        chunk = self._table.find(number)
        limit = self._nbytes + self._nbytes // 8 + (1 << 14)
        if chunk is not None and chunk.nbytes > limit:
            raise ValueError(f"a chunk of {chunk.nbytes} bytes: at most {limit} are valid")
        return chunk

    def _fill_element(self) -> bytes:
        with self._lock:
            if self._fill is None:
                self._fill = fill_element(self._dataset, self.metadata.dtype)
        return self._fill

    def _decoded(self, chunk: Chunk, sizes: Shape) -> Any:
        """Return a chunk's elements, None if h5py has to decode them."""
        filters = self._layout.filters
        # Chunks at the end of an axis may be stored without filters, which the table does not say.
        is_ambiguous = filters and sizes != self.metadata.grid and chunk.nbytes == self._nbytes
        if not self._layout.is_native or is_ambiguous:
            return None
        raw: Any = self._storage.read(chunk.position, chunk.nbytes, self.name)
        for i in reversed(range(len(filters))):
            if not chunk.skipped >> i & 1:
                raw = _DECODERS[filters[i].number](raw, self._nbytes, self.metadata.dtype.itemsize)
        if len(raw) != self._nbytes:
            raise ValueError(f"a chunk has {len(raw)} bytes: expected {self._nbytes}")
        return raw

    def _read_by_library(self, box: grid.Box) -> Any:
        import numpy as np

        sizes = grid.sizes(box)
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


def _inflated(raw: Any, nbytes: int, itemsize: int) -> bytes:
    """Decode gzip's filter; ValueError unless the result has `nbytes` bytes."""
    inflater = zlib.decompressobj()
    chunk = inflater.decompress(raw, nbytes + 1)
    if len(chunk) != nbytes or not inflater.eof:
        raise ValueError(f"a chunk is damaged, or has not {nbytes} bytes decompressed")
    return chunk


def _unshuffled(raw: Any, nbytes: int, itemsize: int) -> Any:
    """Decode the shuffle filter, which stores the first bytes of all elements first, and so on."""
    import numpy as np

    if len(raw) != nbytes:
        raise ValueError(f"a chunk has {len(raw)} bytes: expected {nbytes}")
    planes = np.frombuffer(raw, np.uint8).reshape(itemsize, -1)
    elements: Any = np.empty((planes.shape[1], itemsize), np.uint8)
    for i in range(itemsize):
        elements[:, i] = planes[i]
    return memoryview(elements.reshape(-1))


_DECODERS = {DEFLATE: _inflated, SHUFFLE: _unshuffled}
