"""Write an array to a Zarr store as complete chunks, which become visible together."""

from __future__ import annotations

from math import prod
from typing import Any

from ndtool.arrays.sink import PartialBlocks, Unpublished
from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import DtypeError, OutputError, UsageError, printable
from ndtool.formats.numpytypes import numpy_dtype, pad_chunk
from ndtool.formats.zarr import location, newstore
from ndtool.formats.zarr import store as zarr
from ndtool.formats.zarr.location import ZarrTarget
from ndtool.formats.zarr.newstore import WriteKey
from ndtool.machine import pool
from ndtool.publish.shared import SharedOutput
from ndtool.publish.targets import Encoding, Target
from ndtool.rules import dtypes, grid
from ndtool.rules.plans import Shape
from ndtool.storage.descriptors import os_errors


class ChunkWriter:
    """A writer of the complete chunks or shards of an array in a store."""

    streamed = False

    def __init__(
        self,
        name: str,
        metadata: ArrayMetadata,
        array: Any,
        write_key: WriteKey,
        concurrency: int = 1,
    ) -> None:
        self.name, self.metadata, self.concurrency = name, metadata, concurrency
        self._array, self._write_key, self._dtype = array, write_key, numpy_dtype(metadata.dtype)
        self._layout = zarr.layout_of(array, metadata.dtype, name)

    @classmethod
    def reopen(cls, shared: SharedOutput) -> ChunkWriter:
        """Return a writer for an array that another process created."""
        storage, write_key = newstore.reopen(shared)
        array = zarr.parse_array(storage.read, shared.name, shared.array_path)
        concurrency = 1 if shared.lock is None else pool.MAX_THREADS  # remote writes have latency
        return cls(shared.name, shared.metadata, array, write_key, concurrency)

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write a complete block, from any thread."""
        if start or len(view) != self.nbytes(block):
            raise ValueError(f"{len(view)} bytes at offset {start} are not a block")
        self.write_block(block, view)

    def write_block(self, block: int, view: memoryview | bytearray) -> None:
        """Encode and write a block."""
        import numpy as np

        box = grid.box(self.metadata.shape, self.metadata.block_shape, block)
        chunk: Any = np.ndarray(grid.box_shape(box), self._dtype, view)
        chunk_key = self._array.metadata.encode_chunk_key(
            grid.coordinates(box, self.metadata.block_shape)
        )
        key = f"{self._array.path}/{chunk_key}".lstrip("/")
        with zarr.convert_errors(self.name, OutputError):
            self._write_key(key, self._layout.encode(pad_chunk(chunk, self.metadata.block_shape)))

    def nbytes(self, block: int) -> int:
        """Return the size of a block in bytes."""
        box = grid.box(self.metadata.shape, self.metadata.block_shape, block)
        return prod(grid.box_shape(box)) * self.metadata.dtype.itemsize

    def close(self) -> None:
        """Do nothing: no file is open between writes."""


class ZarrSink:
    """A sink that writes each chunk or shard once, when all of its bytes are complete.

    metadata: from `planned_metadata`.
    """

    streamed = False

    def __init__(self, target: Target, metadata: ArrayMetadata) -> None:
        self.name, self.metadata = target.path, metadata
        self._zarr_target = location.resolve(target)
        self.preserved = self._zarr_target.preserved
        self._partial_blocks = PartialBlocks()
        self._is_shared = False
        with os_errors(self.name, OutputError):
            self._store = newstore.create_store(self._zarr_target, target)
        try:
            documents, array = _create_documents(
                self._store.array_path, metadata, target, self._zarr_target
            )
            if metadata.layout != zarr.metadata_of(array, target.path).layout:
                raise OutputError(f"{printable(self.name)} changed during the run")
            self._file_count = (
                grid.count_blocks(metadata.shape, metadata.block_shape) if metadata.nbytes else 0
            )
            self._writer = ChunkWriter(self.name, metadata, array, self._store.write)
            with zarr.convert_errors(self.name, OutputError):
                for key, body in documents.items():
                    self._store.write(key, body)
            total_nbytes, file_nbytes = (
                metadata.nbytes,
                prod(metadata.block_shape) * metadata.dtype.itemsize,
            )
            if array.compressors:  # compressed sizes are unknown
                total_nbytes = file_nbytes = 0
            self._store.require_space(self._file_count, total_nbytes, file_nbytes)
        except BaseException:
            self.abort()
            raise

    @property
    def concurrency(self) -> int:
        return self._store.concurrency

    def map(self) -> None:
        return None

    def share(self) -> SharedOutput | None:
        """Return the location at which other processes can write chunks, None if they cannot."""
        self._is_shared = True
        return self._store.share(self.name, self.metadata)

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of a block, in any order and from any thread."""
        chunk = self._partial_blocks.add(start, view, block, self._writer.nbytes(block))
        if chunk is not None:
            self._writer.write_block(block, chunk)
            self._partial_blocks.mark_written(block)

    def finish(self) -> Unpublished:
        if not self._is_shared:
            self._partial_blocks.require_all(self._file_count)
        with os_errors(self.name, OutputError):
            self._store.sync()
        return self._store

    def abort(self) -> None:
        self._store.drop()


def planned_metadata(target: Target, metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of a new array with its chunk layout, without writing."""
    _, array = _create_documents("", metadata, target, location.resolve(target))
    layout = zarr.metadata_of(array, target.path).layout
    assert layout is not None, "an array of a store has chunks"
    return metadata._replace(block_shape=layout.file_shape, layout=layout)


def _create_documents(
    array_path: str, metadata: ArrayMetadata, target: Target, zarr_target: ZarrTarget
) -> tuple[dict[str, bytes], Any]:
    """Create the metadata of a new array and its groups; return documents by key, and the array."""
    import numpy as np

    library, path, options = zarr.library(), target.path, target.encoding
    version = (
        zarr_target.version or (options.data_layout.version if options.data_layout else None) or 3
    )
    dtype = numpy_dtype(metadata.dtype)
    serializer = {}
    if version == 3 and metadata.dtype.order == ">" and dtype.names is None:
        serializer["serializer"] = library.codecs.BytesCodec(endian="big")
    chunks, shards = _choose_chunks(metadata.shape, options, version)
    store: dict[str, Any] = {}
    with zarr.convert_errors(path, UsageError), zarr.suppress_warnings():
        try:
            zarr.run_coroutine(
                library.api.asynchronous.create_array(
                    library.storage.MemoryStore(store),
                    name=array_path or None,
                    shape=metadata.shape,
                    dtype=dtype,
                    chunks=chunks or "auto",
                    shards=shards,
                    fill_value=np.zeros((), dtype)[()],
                    zarr_format=version,
                    compressors=_compressor(options, version),
                    **serializer,
                )
            )
            documents = {key: body.to_bytes() for key, body in store.items()}
            array = zarr.parse_array(documents.get, path, array_path)
        except (ValueError, TypeError) as exc:
            if "data type" in str(exc) or isinstance(exc, TypeError):
                raise _dtype_error(metadata, version) from None
            raise
        array_metadata = zarr.metadata_of(array, path)
    if array_metadata.dtype != dtypes.from_descr(metadata.dtype.descr):
        raise _dtype_error(metadata, version)
    return documents, array


def _dtype_error(metadata: ArrayMetadata, version: int) -> DtypeError:
    return DtypeError(f"Zarr {version} cannot store elements of type {metadata.dtype.name}")


def _choose_chunks(
    shape: Shape, options: Encoding, version: int
) -> tuple[Shape | None, Shape | None]:
    """Return the shapes of chunks and shards: as requested, else of data if the ranks are equal."""
    for name, sizes in (("--chunks", options.chunks), ("--shards", options.shards)):
        if sizes is not None and len(sizes) != len(shape):
            raise UsageError(
                f"{name} {','.join(map(str, sizes))} has {len(sizes)} sizes:"
                f" the output has rank {len(shape)}"
            )
    if options.shards is not None and version == 2:
        raise UsageError("--shards: Zarr version 2 has no shards")
    chunks, shards, like = options.chunks, options.shards, options.data_layout
    if chunks is None and shards is None and like is not None and len(like.chunks) == len(shape):
        chunks = like.chunks or None
        shards = like.shards if version == 3 else None
        if chunks and not shards:
            chunks = tuple(min(step, max(1, n)) for step, n in zip(chunks, shape, strict=True))
    if chunks and shards and any(n % step for n, step in zip(shards, chunks, strict=True)):
        raise UsageError(
            f"--shards {','.join(map(str, shards))} is not a multiple of the chunks"
            f" {','.join(map(str, chunks))}"
        )
    return chunks, shards or None


def _compressor(options: Encoding, version: int) -> Any:
    """Return the compressor of chunks: the requested one, else the compressor of data."""
    codec = options.codec or (_codec_of(options.data_layout) if options.data_layout else None)
    if codec is None:
        return "auto"
    name, _, level = codec.partition(":")
    if name == "none":
        return None
    if version == 2:
        import numcodecs

        codec_types = {"zstd": numcodecs.Zstd, "gzip": numcodecs.GZip, "blosc": numcodecs.Blosc}
    else:
        from zarr import codecs

        codec_types = {
            "zstd": codecs.ZstdCodec,
            "gzip": codecs.GzipCodec,
            "blosc": codecs.BloscCodec,
        }
    key = "clevel" if name == "blosc" else "level"
    return codec_types[name](**({key: int(level)} if level else {}))


def _codec_of(layout: ChunkLayout) -> str | None:
    """Return the value of --codec for the compressor of a layout, None without such a value."""
    for codec in layout.codecs:
        name, *parameters = codec.split()
        if name in ("zstd", "gzip", "blosc"):
            return ":".join([name, *parameters[-1:]])
    return "none" if layout.codecs in ((), ("bytes",)) else None
