"""Read HDF5 datasets chunk by chunk, from several threads, without h5py's lock.

h5py reads only the index of chunks. ndtool reads the bytes of a chunk, and applies the filters of
the table of codecs; chunks with other filters, and values of a type to convert, are read by h5py,
one block at a time.
"""

from __future__ import annotations

from array import array
from contextlib import suppress
from math import prod
from threading import Lock
from typing import Any

from ndtool.arrays.assembly import ChunkedSource, library_errors
from ndtool.arrays.source import AccessedElements, ArrayMetadata
from ndtool.engine import layouts
from ndtool.formats import codecs
from ndtool.formats.codecs import Chain
from ndtool.formats.hdf5 import datasets, hierarchy
from ndtool.formats.hdf5.datasets import StoredDataset
from ndtool.formats.hdf5.hierarchy import OpenFile
from ndtool.formats.hdf5.library import library
from ndtool.machine import threads
from ndtool.rules import grid
from ndtool.storage.descriptors import map_bytes, release
from ndtool.storage.local import File

_MIN_ENTRY_BYTES = 8  # minimum size of a chunk's entry in the file's chunk index


class DatasetSource(ChunkedSource):
    """A dataset in chunks, or one that h5py reads in blocks.

    Remote chunks that a run touches are downloaded together, any other when it is read. The file is
    closed with the source.
    """

    _storage: File

    def __init__(self, name: str, file: OpenFile, dataset: Any, stored: StoredDataset) -> None:
        self.name, self.metadata = name, stored.metadata
        self.warning = datasets.attribute_warning(dataset, name)
        self._dataset, self._stored, self._file = dataset, stored, file
        self.address = hierarchy.address(dataset)
        self._storage = storage = file.storage
        self.concurrency = threads.MAX_WRITERS if storage.is_remote else 1
        self._table: tuple[Any, Any] | None = None  # indices of chunks, and byte ranges of these
        self._map: memoryview | None = None
        self._lock = Lock()
        self._nbytes = prod(stored.metadata.block_shape) * stored.dtype.itemsize
        self._chain: Chain | None = None
        if stored.kind == "chunked":
            self.fill = datasets.fill_value(dataset, stored)
            if stored.is_native and all(item.is_native for item in stored.filters):
                shape, filters = stored.metadata.block_shape, stored.filters
                chain = (codecs.make(item.config) for item in filters)
                with suppress(ValueError):  # h5py reads chunks that are compressed twice
                    self._chain = Chain(shape, stored.dtype, range(len(shape)), chain)

    def prefetch(self, touched: AccessedElements | None) -> None:
        if self._stored.kind != "chunked":
            return
        if not self._storage.is_remote:
            if not self._stored.filters:  # a map is faster than reads, if few rows are selected
                with suppress(OSError, ValueError):
                    self._map = map_bytes(self._storage.fd, 0, self._storage.size)
            return
        chunk_shape = self.metadata.block_shape
        total = grid.count_blocks(self.metadata.shape, chunk_shape)
        numbers = range(total) if touched is None else touched.blocks(chunk_shape)
        with library_errors(self.name):
            chunks = sorted(filter(None, map(self._find_chunk, numbers)))
        self._storage.download([(start, start + nbytes) for start, nbytes, _ in chunks])

    def _find_chunk(self, index: int) -> tuple[int, int, int] | None:
        """Return the offset and size of a chunk, and the mask of filters that were not applied.

        None if it was never written; ValueError if it is invalid.
        """
        with self._lock:
            self._table = self._table or self._read_table()
        indices, chunks = self._table
        row = int(indices.searchsorted(index))
        if row == len(indices) or indices[row] != index:
            return None
        position, nbytes, skipped = chunks[row].tolist()
        position, size = position + self._file.start, self._storage.size
        limit = self._nbytes + self._nbytes // 8 + (1 << 14)
        if position + nbytes > size or nbytes > limit:
            raise ValueError(
                f"a chunk of {nbytes} bytes at byte {position}: at most {limit} are valid, in a"
                f" file of {size}"
            )
        return position, nbytes, skipped

    def _read_table(self) -> tuple[Any, Any]:
        """Return the indices of stored chunks, ascending, and their offsets, sizes and masks."""
        import numpy as np

        dataset, metadata, entries = self._dataset, self.metadata, array("Q")
        rank = len(dataset.shape)
        limit = (rank + 3) * (self._storage.size // _MIN_ENTRY_BYTES)

        def add(chunk: Any) -> bool | None:
            entries.extend(chunk.chunk_offset)
            entries.extend((chunk.byte_offset, chunk.size, chunk.filter_mask))
            return True if len(entries) > limit else None  # True ends the iteration

        if dataset.chunk_iter(add):
            raise ValueError("more chunks than the file has bytes for")
        table = np.frombuffer(entries, np.uint64).reshape(-1, rank + 3)
        chunk_shape = metadata.block_shape[:rank]
        counts = grid.grid_shape(metadata.shape[:rank], chunk_shape)
        coordinates, remainders = np.divmod(table[:, :rank], np.array(chunk_shape, np.uint64))
        is_valid = (coordinates < np.array(counts, np.uint64)).all(1) & ~remainders.any(1)
        strides = np.array(layouts.contiguous_strides(counts, 1), np.uint64)
        indices = (coordinates[is_valid] * strides).sum(1, dtype=np.uint64)
        indices, first_rows = np.unique(indices.astype(np.int64), return_index=True)
        return indices, table[is_valid][first_rows, rank:]

    def is_stored_like(self, metadata: ArrayMetadata) -> bool:
        """Whether another dataset encodes chunks in the same way."""
        return (
            not self._storage.is_remote
            and self._stored.keeps_bits
            and all(item.number in datasets.NAMED_COMPLETELY for item in self._stored.filters)
            and (metadata.dtype, metadata.layout) == (self.metadata.dtype, self.metadata.layout)
        )

    def stored_chunk(self, index: int) -> tuple[bytes, int] | None:
        """Return a chunk and the mask of filters that were not applied; None if it is missing.

        None also if it may lack filters that no mask indicates.
        """
        chunk = self._find_chunk(index)
        if chunk is None or (self._stored.filters and chunk[1:] == (self._nbytes, 0)):
            return None
        position, nbytes, skipped = chunk
        return self._storage.read(position, nbytes, self.name), skipped

    def read_chunk(self, index: int, box: grid.Box) -> Any:
        """Read the chunk at a box; elements beyond the extent have NetCDF's fill value."""
        pairs = zip(box, self._stored.extent, strict=True)
        stored_box = tuple((first, max(first, min(stop, size))) for (first, stop), size in pairs)
        if stored_box == box:
            return self._read(index, box)
        import numpy as np

        padding = hierarchy.padding_value(self._dataset, self._stored.dtype, self.fill)
        block = np.full(grid.box_shape(box), padding)
        sizes = grid.box_shape(stored_box)
        if all(sizes):
            chunk = self._read(index, stored_box)
            selection = tuple(map(slice, sizes))
            block[selection] = self.fill if chunk is None else chunk[selection]
        return block

    def _read(self, index: int, box: grid.Box) -> Any:
        if self._stored.kind != "chunked":
            return self._read_by_library(box)
        chunk = self._find_chunk(index)
        if chunk is None:
            return self._read_by_library(box) if self._stored.inner_shape else None
        # Chunks at the end of an axis may be stored without filters, which no mask indicates.
        is_ambiguous = (
            self._stored.filters
            and chunk[1] == self._nbytes
            and grid.box_shape(box) != self.metadata.block_shape
        )
        if self._chain is None or is_ambiguous:
            return self._read_by_library(box)
        position, nbytes, skipped = chunk
        if self._map is not None:
            return self._chain.decode(self._map[position : position + nbytes], skipped)
        return self._chain.decode(self._storage.read(position, nbytes, self.name), skipped)

    def _read_by_library(self, box: grid.Box) -> Any:
        import numpy as np

        stored, sizes = self._stored, grid.box_shape(box)
        block: Any = np.zeros(sizes, stored.dtype)  # h5py leaves gaps between fields as they are
        rank = len(sizes) - len(stored.inner_shape)
        space = self._dataset.get_space()
        memory = library().h5s.create_simple(sizes[:rank])
        if rank:
            space.select_hyperslab(tuple(first for first, _ in box[:rank]), sizes[:rank])
        with self._lock:
            self._dataset.read(memory, space, block, datasets.memory_type(self._dataset, stored))
        return block

    def close(self) -> None:
        self._dataset = None
        if self._map is not None:
            release(self._map)
        self._file.close()
        super().close()
