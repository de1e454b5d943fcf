"""Write an array to a Zarr store: complete chunks, published at the end."""

from __future__ import annotations

from math import prod
from typing import Any

from ndtool.arrays.sink import PartialBlocks, Unpublished
from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import DtypeError, OutputError, UsageError, printable
from ndtool.formats.numpytypes import numpy_dtype
from ndtool.formats.zarr import location
from ndtool.formats.zarr import store as zarr
from ndtool.formats.zarr.location import Put, ZarrTarget
from ndtool.machine import pool
from ndtool.publish.shared import Shared
from ndtool.publish.targets import Encoding, Target
from ndtool.rules import dtypes, grid
from ndtool.rules.plans import Shape
from ndtool.storage.descriptors import failure


class Chunks:
    """A writer of the complete chunks or shards of an array in a store."""

    streamed = False

    def __init__(
        self, name: str, metadata: ArrayMetadata, array: Any, put: Put, at_once: int = 1
    ) -> None:
        self.name, self.metadata, self.at_once = name, metadata, at_once
        self._array, self._put, self._dtype = array, put, numpy_dtype(metadata.dtype)
        self._layout = zarr.layout_of(array, metadata.dtype, name)

    @classmethod
    def again(cls, shared: Shared) -> Chunks:
        """Return the writer of an array that another process created."""
        storage, put = location.again(shared)
        array = zarr.array_of(storage.read, shared.name, shared.within)
        at_once = 1 if shared.lock is None else pool.MOST  # remote writes have latency
        return cls(shared.name, shared.metadata, array, put, at_once)

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write a complete block, from any thread."""
        if start or len(view) != self.nbytes(block):
            raise ValueError(f"{len(view)} bytes at {start} are no block")
        self.put(block, view)

    def put(self, block: int, view: memoryview | bytearray) -> None:
        """Encode and write a block."""
        import numpy as np

        storage = grid.box(self.metadata.shape, self.metadata.grid, block)
        sizes = grid.sizes(storage)
        part: Any = np.ndarray(sizes, self._dtype, view)
        at = tuple(first // n for (first, _), n in zip(storage, self.metadata.grid, strict=True))
        key = f"{self._array.path}/{self._array.metadata.encode_chunk_key(at)}".lstrip("/")
        with zarr.converted_errors(self.name, OutputError):
            if sizes != self.metadata.grid:  # the last chunk of an axis is padded
                whole = np.zeros(self.metadata.grid, self._dtype)
                whole[tuple(map(slice, sizes))] = part
                part = whole
            self._put(key, self._layout.encode(part))

    def nbytes(self, block: int) -> int:
        """Return the size of a block in bytes."""
        storage = grid.box(self.metadata.shape, self.metadata.grid, block)
        return prod(grid.sizes(storage)) * self.metadata.dtype.itemsize

    def close(self) -> None:
        """Do nothing: no file is open between writes."""


class ZarrSink:
    """A sink that writes each chunk or shard once, when all of its bytes are present.

    metadata: as `planned` returned them.
    """

    streamed = False

    def __init__(self, target: Target, metadata: ArrayMetadata) -> None:
        self.name, self.metadata = target.path, metadata
        self._site = location.site(target)
        self.preserved = self._site.preserved
        self._parts = PartialBlocks()
        self._is_shared = False
        try:
            self._output = location.output(self._site, target)
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        try:
            documents, array = _made(self._output.within, metadata, target, self._site)
            if metadata.layout != zarr.metadata_of(array, target.path).layout:
                raise OutputError(f"{printable(self.name)} changed during the run")
            self._files = grid.blocks(metadata.shape, metadata.grid) if metadata.nbytes else 0
            self._chunks = Chunks(self.name, metadata, array, self._output.put)
            with zarr.converted_errors(self.name, OutputError):
                for key, body in documents.items():
                    self._output.put(key, body)
            total, each = metadata.nbytes, prod(metadata.grid) * metadata.dtype.itemsize
            if array.compressors:  # compressed sizes are unknown
                total = each = 0
            self._output.require_space(self._files, total, each)
        except BaseException:
            self.abort()
            raise

    @property
    def at_once(self) -> int:
        return self._output.at_once

    def map(self) -> None:
        return None

    def shared(self) -> Shared | None:
        """Return how other processes write to it, None if they cannot."""
        self._is_shared = True
        return self._output.shared(self.name, self.metadata)

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of a block, in any order and from any thread."""
        whole = self._parts.put(start, view, block, self._chunks.nbytes(block))
        if whole is not None:
            self._chunks.put(block, whole)
            self._parts.count(block)

    def finish(self) -> Unpublished:
        if not self._is_shared:
            self._parts.require(self._files)
        try:
            self._output.sync()
        except OSError as exc:
            raise failure(exc, self.name, OutputError) from None
        return self._output

    def abort(self) -> None:
        self._output.drop()


def planned(target: Target, metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of a new array, with its chunks; write nothing."""
    _, array = _made("", metadata, target, location.site(target))
    layout = zarr.metadata_of(array, target.path).layout
    assert layout is not None, "an array of a store has chunks"
    return metadata._replace(grid=layout.unit, layout=layout)


def _made(
    within: str, metadata: ArrayMetadata, target: Target, site: ZarrTarget
) -> tuple[dict[str, bytes], Any]:
    """Return the metadata documents of a new array and its groups, by key, and the array."""
    import numpy as np

    library, path, options = zarr.library(), target.path, target.encoding
    version = site.version or (options.like.version if options.like else None) or 3
    dtype = numpy_dtype(metadata.dtype)
    creation: dict[str, Any] = {
        "zarr_format": version,
        "compressors": _compressor(options, version),
    }
    chunks, shards = _cut(metadata.shape, options, version)
    if version == 3 and metadata.dtype.order == ">" and dtype.names is None:
        creation["serializer"] = library.codecs.BytesCodec(endian="big")
    held: dict[str, Any] = {}
    with zarr.converted_errors(path, UsageError), zarr.quiet():
        try:
            zarr.run(
                library.api.asynchronous.create_array(
                    library.storage.MemoryStore(held),
                    name=within or None,
                    shape=metadata.shape,
                    dtype=dtype,
                    chunks=chunks or "auto",
                    shards=shards,
                    fill_value=np.zeros((), dtype)[()],
                    **creation,
                )
            )
            documents = {key: body.to_bytes() for key, body in held.items()}
            array = zarr.array_of(documents.get, path, within)
        except (ValueError, TypeError) as exc:
            if "data type" in str(exc) or isinstance(exc, TypeError):
                raise _no_type(metadata, version) from None
            raise
        written = zarr.metadata_of(array, path)
    if written.dtype != dtypes.from_descr(metadata.dtype.descr):
        raise _no_type(metadata, version)
    return documents, array


def _no_type(metadata: ArrayMetadata, version: int) -> DtypeError:
    return DtypeError(f"Zarr {version} cannot store elements of type {metadata.dtype.name}")


def _cut(shape: Shape, options: Encoding, version: int) -> tuple[Shape | None, Shape | None]:
    """Return chunks and shards: the requested ones, else those of data if the ranks are equal."""
    for name, sizes in (("--chunks", options.chunks), ("--shards", options.shards)):
        if sizes is not None and len(sizes) != len(shape):
            raise UsageError(
                f"{name} {','.join(map(str, sizes))} has {len(sizes)} sizes:"
                f" the output has rank {len(shape)}"
            )
    if options.shards is not None and version == 2:
        raise UsageError("--shards: Zarr version 2 has no shards")
    chunks, shards, like = options.chunks, options.shards, options.like
    if chunks is None and shards is None and like is not None and len(like.chunks) == len(shape):
        chunks = like.chunks or None
        shards = like.shards if version == 3 else None
        if chunks and not shards:
            chunks = tuple(min(step, max(1, n)) for step, n in zip(chunks, shape, strict=True))
    if chunks and shards and any(whole % part for whole, part in zip(shards, chunks, strict=True)):
        raise UsageError(
            f"--shards {','.join(map(str, shards))} is not a multiple of the chunks"
            f" {','.join(map(str, chunks))}"
        )
    return chunks, shards or None


def _compressor(options: Encoding, version: int) -> Any:
    """Return the compressor of chunks: the requested one, else that of data."""
    codec = options.codec or (_codec_of(options.like) if options.like else None)
    if codec is None:
        return "auto"
    name, _, level = codec.partition(":")
    if name == "none":
        return None
    if version == 2:
        import numcodecs

        kinds = {"zstd": numcodecs.Zstd, "gzip": numcodecs.GZip, "blosc": numcodecs.Blosc}
    else:
        from zarr import codecs

        kinds = {"zstd": codecs.ZstdCodec, "gzip": codecs.GzipCodec, "blosc": codecs.BloscCodec}
    key = "clevel" if name == "blosc" else "level"
    return kinds[name](**({key: int(level)} if level else {}))


def _codec_of(layout: ChunkLayout) -> str | None:
    """Return the compression of chunks as a value of --codec, None if it has no such value."""
    for codec in layout.codecs:
        name, *words = codec.split()
        if name in ("zstd", "gzip", "blosc"):
            return ":".join([name, *words[-1:]])
    return "none" if layout.codecs in ((), ("bytes",)) else None
