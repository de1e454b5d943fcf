"""Write a dataset to an HDF5 file: h5py adds or replaces it in a copy of the current file."""

from __future__ import annotations

from contextlib import closing, suppress
from math import prod
from typing import Any, NamedTuple

from ndtool.arrays.assembly import library_errors
from ndtool.arrays.sink import ChunkSink, Encoding
from ndtool.arrays.source import AccessedElements, ArrayMetadata, ChunkLayout, Source
from ndtool.errors import InputError, OutputError, UsageError, option, printable, refuse
from ndtool.formats import numpytypes
from ndtool.formats.codecs import MAX_CHUNK_BYTES, default_chunks
from ndtool.formats.hdf5 import datasets, hierarchy
from ndtool.formats.hdf5.chunks import DatasetSource
from ndtool.formats.hdf5.datasets import StoredDataset
from ndtool.formats.hdf5.hierarchy import OpenFile
from ndtool.formats.hdf5.library import OutputFile, library
from ndtool.publish.sinks import Container, FileSink
from ndtool.publish.targets import CurrentFile, Target, exists_error
from ndtool.rules import grid
from ndtool.storage.descriptors import BLOCK_SIZE, write_at
from ndtool.storage.local import File

_DEFAULT_GZIP_LEVEL = 4  # as in h5py
_COMPRESSORS = ("gzip", "zlib", "zstd", "blosc", "lz4", "bz2", "lzf")
_ALIGNMENT = 64
_ALIGNMENT_THRESHOLD = 1024  # bytes; smaller objects are not aligned
_METADATA_BYTES = 1 << 14  # approximate size of a dataset's and its groups' metadata
_CHUNK_ENTRY_BYTES = 64  # approximate size of a chunk's entry in the chunk index


class ExistingContent(NamedTuple):
    """The content of the current file. names: of the preserved datasets.

    start: the offset of the signature. size: of the file. replaced: whether a dataset has the
    target's name. reused: that dataset's description if its values are overwritten, so that its
    attributes, chunks and filters are preserved; else None.
    """

    names: tuple[str, ...] = ()
    start: int = 0
    size: int = 0
    replaced: bool = False
    reused: StoredDataset | None = None


def dataset_name(target: Target) -> str:
    """Return the path of the written dataset; UsageError if it is invalid."""
    name = hierarchy.normalize_name(target.array_name)
    if name == "/" or "\0" in name:
        raise UsageError(f"{printable(name)} cannot name a dataset of {printable(target.path)}")
    return name


def planned_metadata(target: Target, metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of a dataset, with chunks if it has any, without writing."""
    with closing(CurrentFile(target)) as old_file:
        layout = layout_of(target, metadata, read_content(old_file, target, metadata).reused)
    if layout is None:
        return metadata
    return metadata._replace(block_shape=layout.chunks, layout=layout)


def read_content(old_file: CurrentFile, target: Target, metadata: ArrayMetadata) -> ExistingContent:
    """Read the content of the current file; OutputError if it cannot be modified."""
    default, content = ExistingContent(), "a file of the new dataset"
    return old_file.read(lambda file: _parse_content(file, target, metadata), default, content)


def _parse_content(file: File, target: Target, metadata: ArrayMetadata) -> ExistingContent:
    name = dataset_name(target)
    label = f"{target.path}:{name}"
    with library_errors(target.path), closing(OpenFile(file, target.path)) as opened:
        start = opened.start
        if file.peek(start + 8, 1) >= b"\3" and file.peek(start + 11, 1) != b"\0":
            raise InputError(
                f"{printable(target.path)} is open for writing in another process, or was not"
                " closed: h5clear -s ends that"
            )
        names = tuple(dataset.name for dataset in opened.datasets() if dataset.name != name)
        existing = opened.find(name, follows=False)
        if existing is None:
            return ExistingContent(names, start, file.size)
        if not isinstance(existing, library().h5d.DatasetID):
            refuse(label, "a group: expected a dataset, or a new name")
        if not target.clobber:
            raise exists_error(label)
        reused = None
        if not target.encoding.options:
            with suppress(InputError, UsageError):
                stored = datasets.describe(opened, existing, name)
                datasets.require_filters(stored, label)
                reused = stored if _is_reusable(existing, stored, metadata) else None
        return ExistingContent(names, start, file.size, True, reused)


def _is_reusable(dataset: Any, stored: StoredDataset, metadata: ArrayMetadata) -> bool:
    """Whether the values of a dataset can be overwritten, without the loss of any bit."""
    is_same_type = (
        stored.dtype == numpytypes.numpy_dtype(metadata.dtype)
        and stored.metadata.shape == metadata.shape
    )
    has_one_link = library().h5o.get_info(dataset).rc == 1  # other links keep the current data
    has_storage = stored.position is not None or stored.kind == "chunked"
    can_encode = all(library().h5z.filter_avail(item.number) for item in stored.filters)
    is_reusable = is_same_type and has_one_link and has_storage and can_encode
    return is_reusable and stored.keeps_bits and metadata.nbytes > 0


def layout_of(
    target: Target, metadata: ArrayMetadata, reused: StoredDataset | None
) -> ChunkLayout | None:
    """Return the chunk layout of the written dataset, None if it is contiguous."""
    if reused is not None:
        return reused.metadata.layout
    options, shape = target.encoding, metadata.shape
    if options.shards is not None:
        raise UsageError(f"{option('shards')}: HDF5 has no shards")
    codecs = _codecs(options)
    chunks, like = options.chunks, options.layout_like(shape)
    if chunks is None and like is not None and options.codec != "none":
        chunks = like.chunks
    if not (metadata.nbytes and shape) or (chunks is None and options.codec in (None, "none")):
        return None
    if chunks is None:
        chunks = default_chunks(shape, metadata.dtype.itemsize)
    chunks = tuple(map(min, chunks, shape))
    if (nbytes := prod(chunks) * metadata.dtype.itemsize) > MAX_CHUNK_BYTES:
        raise UsageError(f"{option('chunks')}: {nbytes} bytes: at most {MAX_CHUNK_BYTES} are valid")
    return ChunkLayout(chunks, None, codecs, None)


def _codecs(options: Encoding) -> tuple[str, ...]:
    """Return the filters of chunks: as requested, else of data, with gzip for other compressors."""
    if options.codec is not None:
        name, _, level = options.codec.partition(":")
        if name not in datasets.CODECS:
            raise UsageError(f"{option('codec')} {name}: HDF5 has gzip or none")
        return () if name == "none" else (f"gzip {level or _DEFAULT_GZIP_LEVEL}",)
    like = options.data_layout.codecs if options.data_layout else ()
    levels = [codec.split()[1:] for codec in like if codec.split()[0] in ("gzip", "zlib")]
    level = levels[-1][-1] if levels and levels[-1] else str(_DEFAULT_GZIP_LEVEL)
    is_compressed = any(codec.split()[0] in _COMPRESSORS for codec in like)
    return ("shuffle",) * ("shuffle" in like) + (f"gzip {level}",) * is_compressed


def create(target: Target, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one dataset. metadata: from `planned_metadata`.

    UsageError for a NetCDF file, which needs named dimensions.
    """
    path = printable(target.path)
    if target.path.partition("?")[0].endswith(".nc"):
        raise UsageError(f"{path}: NetCDF files are read, not written: expected .h5")
    old_file = CurrentFile(target)
    try:
        content = read_content(old_file, target, metadata)
        if layout_of(target, metadata, content.reused) != metadata.layout:
            raise OutputError(f"{path} changed during the run")
        container = DatasetContainer(target, metadata, old_file, content)
        return (FileSink if metadata.layout is None else DatasetSink)(target, metadata, container)
    except BaseException:
        old_file.close()
        raise


class DatasetContainer(Container):
    """The bytes of a file other than the values of the written dataset."""

    def __init__(
        self,
        target: Target,
        metadata: ArrayMetadata,
        old_file: CurrentFile,
        content: ExistingContent,
    ) -> None:
        super().__init__(b"", metadata.nbytes, 0, old_file, content.names)
        self._target, self._metadata, self._content = target, metadata, content
        self._name = dataset_name(target)
        self._output: OutputFile | None = None
        self._file: Any = None
        self.dataset: Any = None
        self.total = content.size + _METADATA_BYTES
        layout, nbytes = metadata.layout, metadata.nbytes
        if layout is not None:  # the size of compressed chunks is unknown
            chunk_nbytes = 0 if layout.codecs else prod(layout.chunks) * metadata.dtype.itemsize
            count = grid.count_blocks(metadata.shape, layout.chunks)
            nbytes = count * (chunk_nbytes + _CHUNK_ENTRY_BYTES)
        if content.reused is None or content.reused.position is None:
            self.total += nbytes

    def begin(self, fd: int) -> None:
        content, old_file, path = self._content, self.current, self._target.path
        if old_file is not None and old_file.file is not None:
            old_file.copy(fd, self._ranges())
        self._output = OutputFile(fd, path, content.start, content.size)
        mode = "r+" if content.size else "w"
        try:
            with library_errors(path, OutputError):
                self._file = library().File(
                    self._output, mode, rdcc_nbytes=0,
                    alignment_threshold=_ALIGNMENT_THRESHOLD, alignment_interval=_ALIGNMENT,
                )  # fmt: skip
                self._add_dataset(fd)
            self._output.raise_error()
        except BaseException:
            self.drop()
            raise

    def _ranges(self) -> list[tuple[int, int, int]]:
        """Return the byte ranges to copy: the file without the values that are overwritten."""
        size, reused = self._content.size, self._content.reused
        if reused is None or reused.position is None:
            return [(0, size, 0)]
        end = reused.position + self._metadata.nbytes
        return [(0, reused.position, 0), (end, size, end)]

    def _add_dataset(self, fd: int) -> None:
        """Add the dataset; the file stays open if it has chunks."""
        content, encoded_name = self._content, hierarchy.encode_name(self._name)
        if content.reused is not None:
            self.dataset = library().h5d.open(self._file.id, encoded_name)
        else:
            if content.replaced:
                self._file.id.unlink(encoded_name)
            self.dataset = self._create_dataset(encoded_name)
        if self._metadata.layout is not None:
            return
        offset = self.dataset.get_offset() if self._metadata.nbytes else None
        self._close()
        if offset is not None:
            self.start = content.start + offset
            if content.reused is None:  # zeros replace the bytes of a removed dataset
                stop = min(content.size, self.start + self._metadata.nbytes)
                for position in range(self.start, stop, BLOCK_SIZE):
                    write_at(fd, position, bytes(min(BLOCK_SIZE, stop - position)))

    def _create_dataset(self, encoded_name: bytes) -> Any:
        h5py, metadata = library(), self._metadata
        h5p, h5d = h5py.h5p, h5py.h5d
        links = h5p.create(h5p.LINK_CREATE)
        links.set_create_intermediate_group(True)
        links.set_char_encoding(h5py.h5t.CSET_UTF8)
        properties = h5p.create(h5p.DATASET_CREATE)
        properties.set_obj_track_times(False)  # equal arrays give equal files
        properties.set_fill_time(h5d.FILL_TIME_NEVER)
        if metadata.layout is None:
            properties.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        else:
            properties.set_chunk(metadata.layout.chunks)
            for codec in metadata.layout.codecs:
                name, *level = codec.split()
                if name == "gzip":
                    properties.set_deflate(int(level[0]))
                else:
                    properties.set_shuffle()
        file_type = datasets.stored_type(numpytypes.numpy_dtype(metadata.dtype))
        space = h5py.h5s.create_simple(metadata.shape)
        return h5d.create(self._file.id, encoded_name, file_type, space, properties, links)

    def overwrites(self, source: DatasetSource) -> bool:
        """Whether the dataset is a source, in a copy of its file."""
        if self._content.reused is None or self.current is None or self.current.file is None:
            return False
        is_same_file = source.is_same_file(self.current.file.fd)
        return is_same_file and source.address == hierarchy.address(self.dataset)

    def finish(self, fd: int, name: str) -> None:
        self._close()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error of h5py's writes."""
        if self._output is not None:
            self._output.raise_error()

    def _close(self) -> None:
        file, self._file, self.dataset = self._file, None, None
        if file is not None:
            with library_errors(self._target.path, OutputError):
                file.close()

    def drop(self) -> None:
        """Close h5py's file without further writes."""
        if self._output is not None:
            self._output.drop()
        self._close()


class DatasetSink(ChunkSink, FileSink):
    """A sink for a chunked dataset."""

    _container: DatasetContainer

    def __init__(
        self, target: Target, metadata: ArrayMetadata, container: DatasetContainer
    ) -> None:
        ChunkSink.__init__(self)
        FileSink.__init__(self, target, metadata, container)

    def share(self) -> None:
        """Return None: other processes cannot write chunks."""

    def release(self, start: int, nbytes: int) -> None:
        """Do nothing: a chunk's position is unknown."""

    def copy_chunks(self, source: Source, touched: AccessedElements) -> AccessedElements | None:
        metadata, blocks = self.metadata, self.metadata.block_shape
        if not isinstance(source, DatasetSource) or not source.is_stored_like(metadata):
            return None
        indices = set(range(grid.count_blocks(metadata.shape, blocks)))
        is_in_place = self._container.overwrites(source)  # which the new file is a copy of
        for index in sorted(indices.difference(touched.blocks(blocks))):
            if is_in_place:
                self.mark_written(index)
                continue
            with library_errors(source.name):
                chunk = source.stored_chunk(index)
            if chunk is None:
                return None
            origin = tuple(first for first, _ in grid.box(metadata.shape, blocks, index))
            with library_errors(self.name, OutputError):
                self._container.dataset.write_direct_chunk(origin, *chunk)
            self._container.raise_error()
            self.mark_written(index)
        return touched

    def write_chunk(self, box: grid.Box, view: memoryview) -> None:
        import numpy as np

        metadata, sizes = self.metadata, grid.box_shape(box)
        chunk: Any = np.ndarray(sizes, numpytypes.numpy_dtype(metadata.dtype), view)
        origin, dataset = tuple(first for first, _ in box), self._container.dataset
        with library_errors(self.name, OutputError):
            space, memory = dataset.get_space(), library().h5s.create_simple(sizes)
            space.select_hyperslab(origin, sizes)
            dataset.write(memory, space, chunk, dataset.get_type())
        self._container.raise_error()

    def finish(self) -> Any:
        self.require_all()
        return super().finish()

    def abort(self) -> None:
        self._container.drop()
        super().abort()
