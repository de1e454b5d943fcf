"""Write an array to a Zarr store as complete chunks, which become visible together."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

from ndtool.arrays.assembly import library_errors
from ndtool.arrays.sink import ChunkSink, Encoding, Unpublished
from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import DtypeError, NdtoolError, OutputError, UsageError, option, printable
from ndtool.formats.codecs import default_chunks
from ndtool.formats.decoding import NETCDF_ATTRIBUTES
from ndtool.formats.numpytypes import numpy_dtype, pad_chunk
from ndtool.formats.zarr import hierarchy, location
from ndtool.formats.zarr.hierarchy import WriteKey
from ndtool.formats.zarr.location import ZarrTarget
from ndtool.formats.zarr.metadata import ZarrArray, flat_config, read_array
from ndtool.formats.zarr.metadata import create_documents as new_documents
from ndtool.machine import threads
from ndtool.publish.newfile import new_file
from ndtool.publish.newfolder import NewFolder, write_file
from ndtool.publish.sinks import SharedOutput
from ndtool.publish.targets import Target, existing
from ndtool.rules import dtypes, grid
from ndtool.rules.plans import Shape
from ndtool.storage import locations
from ndtool.storage.descriptors import os_errors, require_space, write_at
from ndtool.storage.local import Folder
from ndtool.storage.localfolder import LocalFolder
from ndtool.storage.urls import join

if TYPE_CHECKING:
    from ndtool.publish.newobjects import NewObjects

_LEVELS = re.compile(
    r"zstd:-?[0-9]{1,6}|(blosc|gzip):[0-9]"
)  # which stores have, and encoders accept


class ChunkWriter(ChunkSink):
    """A writer of the chunks or shards of an array in a store."""

    def __init__(
        self,
        name: str,
        metadata: ArrayMetadata,
        array: ZarrArray,
        node: str,
        write_key: WriteKey,
        concurrency: int = 1,
    ) -> None:
        super().__init__()
        self.name, self.metadata, self.concurrency = name, metadata, concurrency
        self._array, self._node, self._write_key = array, node, write_key
        self._dtype = numpy_dtype(metadata.dtype)

    @classmethod
    def reopen(cls, shared: SharedOutput) -> ChunkWriter:
        """Return a writer for an array that another process created, and has not published."""
        storage: Folder
        write_key: WriteKey
        if shared.lock is None:
            with os_errors(f"{shared.name}: {shared.path}", OutputError):
                storage = LocalFolder(shared.path)
            write_key, concurrency = partial(write_file, shared.path), 1
        else:
            from ndtool.publish import claims
            from ndtool.storage.remotefolder import RemoteFolder

            claims.require(join(shared.path, shared.array_path), shared.lock, ", on a worker")
            storage = RemoteFolder(shared.path, shared.pending_metadata)
            write_key, concurrency = storage.write, threads.MAX_WRITERS  # writes take long
        node = shared.array_path
        array = read_array(storage.read, shared.name, node)
        return ChunkWriter(shared.name, shared.metadata, array, node, write_key, concurrency)

    def write_chunk(self, box: grid.Box, view: memoryview) -> None:
        import numpy as np

        chunk: Any = np.ndarray(grid.box_shape(box), self._dtype, view)
        key = self._array.chunk_key(grid.coordinates(box, self.metadata.block_shape))
        with library_errors(self.name, OutputError):
            self._write_key(key, self._array.encode(pad_chunk(chunk, self.metadata.block_shape)))

    def close(self) -> None:
        """Do nothing: no file is open between writes."""


class ZarrSink(ChunkWriter):
    """A sink of a new array. metadata: from `planned_metadata`."""

    def __init__(self, target: Target, metadata: ArrayMetadata) -> None:
        zarr_target, name = location.resolve(target), target.path
        node = zarr_target.array_path
        documents, array = _create_documents(node, metadata, target, zarr_target)
        if metadata.layout != array.metadata.layout:
            raise OutputError(f"{printable(name)} changed during the run")
        self.preserved, self._is_shared = location.preserved(target, zarr_target), False
        with library_errors(name, OutputError):
            self._store = store = _create_store(zarr_target, target, documents)
        concurrency = threads.MAX_WRITERS if target.url else 1
        super().__init__(name, metadata, array, node, store.write, concurrency)
        self._has_fixed_size = array.chain.is_fixed_size
        try:
            self.fits()
        except BaseException:
            self.abort()
            raise

    def fits(self, other_nbytes: int = 0) -> bool:
        """Return True; ResourceError if the disk lacks space for the chunks and other files."""
        metadata, store, file_nbytes = self.metadata, self._store, 0
        if self._has_fixed_size:  # compressed sizes are unknown
            file_nbytes = prod(metadata.block_shape) * metadata.dtype.itemsize
        count = grid.count_blocks(metadata.shape, metadata.block_shape) if metadata.nbytes else 0
        if isinstance(store, LocalStore):  # object stores do not report free space
            nbytes = count * file_nbytes + other_nbytes  # chunks at edges are complete
            require_space(store.working_folder, count, nbytes, file_nbytes, store.path)
        return True

    def share(self) -> SharedOutput | None:
        """Return the location at which other processes can write chunks, None if they cannot."""
        self._is_shared, store = True, self._store
        if isinstance(store, LocalStore):
            return SharedOutput(self.name, self.metadata, store.working_folder, self._node, 0)
        if not locations.is_shared(store.url):
            return None
        claim = store.share_claim()
        return SharedOutput(self.name, self.metadata, store.url, self._node, 0, *claim)

    def finish(self) -> Unpublished:
        if not self._is_shared:
            self.require_all()
        with os_errors(self.name, OutputError):
            self._store.sync()
        return self._store

    def abort(self) -> None:
        self._store.drop()


def _create_store(
    zarr_target: ZarrTarget, target: Target, documents: dict[str, bytes]
) -> LocalStore | NewObjects:
    """Create an unpublished store for a new array, with the metadata of it and of its groups."""
    store: LocalStore | NewObjects
    if target.url:
        from ndtool.publish.newobjects import NewObjects

        store = NewObjects(zarr_target.path, zarr_target.array_path)
    else:
        store = LocalStore(zarr_target, target, documents)
    try:
        for key, body in documents.items():
            # The metadata of existing groups are preserved.
            if isinstance(store, LocalStore) or store.read(key) is None:
                store.write(key, body)
    except BaseException:
        store.drop()
        raise
    return store


def planned_metadata(target: Target, metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of a new array with its chunk layout, without writing."""
    _, array = _create_documents("", metadata, target, location.resolve(target))
    layout = array.metadata.layout
    assert layout is not None, "an array of a store has chunks"
    return metadata._replace(block_shape=layout.file_shape, layout=layout)


def _create_documents(
    array_path: str, metadata: ArrayMetadata, target: Target, zarr_target: ZarrTarget
) -> tuple[dict[str, bytes], ZarrArray]:
    """Create the metadata of a new array and its groups; return documents by key, and the array."""
    options, dtype = target.encoding, dtypes.from_descr(metadata.dtype.descr)
    like = options.data_layout
    version = zarr_target.version or (like.version if like else None) or 3
    layout = _choose_chunks(metadata.shape, dtype.itemsize, options, version)
    compressor = _compressor(options, version, dtype.itemsize)
    try:
        with library_errors(target.path, OutputError):  # kept attributes may be nested too deeply
            attributes, fields = dict[str, Any](), {"shape": list(metadata.shape)}
            if not target.url:
                attributes, kept = _description(array_path, metadata, version, zarr_target)
                fields.update(kept)
            new = new_documents(array_path, dtype, layout, compressor, attributes, fields)
            documents = {key: json.dumps(value, indent=2).encode() for key, value in new}
            array = read_array(documents.get, target.path, array_path)
        array.require_packages()
    except DtypeError:
        array = None
    if array is None or array.metadata.dtype != dtype:
        raise DtypeError(f"Zarr {version} cannot store elements of type {metadata.dtype.name}")
    return documents, array


def _description(
    array_path: str, metadata: ArrayMetadata, version: int, zarr_target: ZarrTarget
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the attributes of a member, and the fields that name its dimensions and so on.

    They are those of the array that it replaces, if that has its shape; attributes that say how
    the values of another type are packed are not kept. Where metadata are consolidated, as by
    xarray, which opens no array without names, a member without any gets some of its own.
    """
    attributes, fields = dict[str, Any](), dict[str, Any]()
    if zarr_target.groups and zarr_target.exists:
        with suppress(NdtoolError):  # a damaged array is replaced, too
            old = read_array(LocalFolder(zarr_target.path).read, "", "")
            if (old.metadata.shape, old.document["zarr_format"]) == (metadata.shape, version):
                is_same_type = old.metadata.dtype == metadata.dtype
                dropped = () if is_same_type else NETCDF_ATTRIBUTES
                attributes = {k: v for k, v in old.attributes.items() if k not in dropped}
                kept = ("dimension_names", *("fill_value",) * is_same_type)
                fields = {key: old.document[key] for key in kept if key in old.document}
    name = os.path.basename(os.path.join(zarr_target.path, array_path).rstrip("/"))
    named, key = (attributes, "_ARRAY_DIMENSIONS") if version == 2 else (fields, "dimension_names")
    groups = () if named.get(key) else map(LocalFolder, zarr_target.groups)
    if any(hierarchy.read_consolidated(group, version) for group in groups):
        # With their sizes, as xarray opens no group in which a name has two of them.
        named[key] = [f"{name}_dim_{axis}_{size}" for axis, size in enumerate(metadata.shape)]
    return attributes, fields


def _choose_chunks(shape: Shape, itemsize: int, options: Encoding, version: int) -> ChunkLayout:
    """Return the shapes of chunks and shards: as requested, else of data if the ranks are equal."""
    if options.shards is not None and version == 2:
        raise UsageError(f"{option('shards')}: Zarr version 2 has no shards")
    chunks, shards, like = options.chunks, options.shards, options.layout_like(shape)
    if chunks is None and shards is None and like is not None:
        chunks, shards = like.chunks, like.shards if version == 3 else None
        if not shards:
            chunks = tuple(min(step, max(1, n)) for step, n in zip(chunks, shape, strict=True))
    if chunks is None:
        chunks = default_chunks(shape, itemsize)
        if shards is not None:
            chunks = tuple(
                next(size for size in range(limit, 0, -1) if shard % size == 0)
                for limit, shard in zip(map(min, chunks, shards), shards, strict=True)
            )
    if shards and any(n % step for n, step in zip(shards, chunks, strict=True)):
        raise UsageError(
            f"{option('shards')} {','.join(map(str, shards))} is not a multiple of the chunks"
            f" {','.join(map(str, chunks))}"
        )
    return ChunkLayout(chunks, shards or None, (), version)


def _compressor(options: Encoding, version: int, itemsize: int) -> dict[str, Any] | None:
    """Return the compressor of chunks: the requested one, else the compressor of data."""
    codec = options.codec or (_codec_of(options.data_layout) if options.data_layout else None)
    name, _, level = (codec or "zstd").partition(":")
    shuffle = "bitshuffle" if itemsize == 1 else "shuffle"
    configs: dict[str, dict[str, Any]] = {
        "none": {},
        "zstd": {"level": 0, "checksum": False},
        "gzip": {"level": 5},
        "blosc": {
            "cname": "zstd", "clevel": 5, "shuffle": shuffle, "typesize": itemsize, "blocksize": 0
        },
    }  # fmt: skip
    config = configs[name]
    if level:
        config["clevel" if name == "blosc" else "level"] = int(level)
    if name == "none":
        return None
    if version == 3:
        return {"name": name, "configuration": config}
    config.pop("checksum", None)
    return flat_config({**config, "id": name})


def _codec_of(layout: ChunkLayout) -> str | None:
    """Return the value of --codec for the compressor of a layout, None without such a value."""
    for codec in layout.codecs:
        name, *parameters = codec.split()
        if name in ("zstd", "gzip", "blosc"):
            text = ":".join([name, *parameters[-1:]])
            return text if _LEVELS.fullmatch(text) else name
    return "none" if layout.codecs in ((), ("bytes",)) else None


class LocalStore(NewFolder):
    """A temporary folder with a new array, which is renamed to the path of an array or store.

    documents: the array's metadata, by key. Raises OSError.
    """

    def __init__(
        self, zarr_target: ZarrTarget, target: Target, documents: Mapping[str, bytes]
    ) -> None:
        self._zarr_target, self._target, self._documents = zarr_target, target, documents
        self._version = zarr_target.version or 3
        # Files of consolidated metadata without the array, as they are now, and with it.
        self._hiding, self._restoring, self._listing = (list[Unpublished]() for _ in range(3))
        for group in zarr_target.groups:
            self._consolidated(group)  # raises if it cannot be updated
        clobber, sync, cleans = target.clobber, target.sync, not target.is_dry_run
        super().__init__(zarr_target.path, zarr_target.exists, clobber, sync, cleans=cleans)

    def open_folder(self) -> int:
        root = (*self._zarr_target.groups, self._zarr_target.path)[0]
        folder = os.path.dirname(os.path.realpath(root))
        return os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def require_unchanged(self) -> None:
        current = location.resolve(self._target._replace(current=existing(self._target.path)))
        if current != self._zarr_target:
            is_new = current.exists and not self._zarr_target.exists
            change = "was created by another process" if is_new else "changed"
            raise OutputError(f"{printable(self.path)} {change} during the run")
        for group in current.groups:
            if (listed := self._consolidated(group)) is None:
                continue
            path = os.path.join(group, hierarchy.consolidated_key(self._version))
            unchanged = LocalFolder(group).read(os.path.basename(path))
            hidden = self._consolidated(group, False)
            for files, body in (
                (self._hiding, hidden),
                (self._restoring, hidden and unchanged),
                (self._listing, listed),
            ):
                if body is not None:
                    status, sync = existing(path), self._target.sync
                    file = new_file(Target(path, None, status, sync=sync, only=True))
                    files.append(file)
                    write_at(file.descriptor, 0, body)
                    file.sync()

    def _consolidated(self, group: str, is_listed: bool = True) -> bytes | None:
        """Return a group's consolidated metadata with or without the array, None if they are so."""
        prefix = os.path.relpath(self._zarr_target.path, group)
        documents = {
            f"{prefix}/{key}": json.loads(body) if is_listed else None
            for key, body in self._documents.items()
        }
        with library_errors(self._zarr_target.path, OutputError):  # nested too deeply
            return hierarchy.update_consolidated(LocalFolder(group), self._version, documents)

    def publish(self) -> None:
        """Publish the array; meanwhile, no consolidated metadata describe it."""
        try:
            _publish(self._hiding)
            super().publish()
        except BaseException:
            _publish(self._restoring)
            raise
        try:
            _publish(self._listing)
        except (NdtoolError, OSError):
            raise OutputError(
                f"{printable(self.path)} is written, but its group's consolidated metadata lack it"
            ) from None

    def sync_folder(self) -> None:
        super().sync_folder()
        for file in self._listing:
            file.sync_folder()

    def drop(self) -> None:
        for file in (*self._hiding, *self._restoring, *self._listing):
            file.drop()
        super().drop()


def _publish(files: Iterable[Unpublished]) -> None:
    for file in files:
        file.publish()
