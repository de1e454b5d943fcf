"""Plan an HDF5 output: the content of its current file, the chunks and filters of the dataset."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any, NamedTuple

from ndtool.arrays.assembly import library_errors
from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import InputError, UsageError, printable, refuse
from ndtool.formats import numpytypes
from ndtool.formats.chunked import MAX_CHUNK_BYTES, default_chunks
from ndtool.formats.hdf5 import datasets, hierarchy
from ndtool.formats.hdf5.datasets import StoredDataset
from ndtool.formats.hdf5.dimensions import Lengths
from ndtool.formats.hdf5.library import library, open_file
from ndtool.publish.newfile import CurrentFile
from ndtool.publish.targets import Encoding, Target, exists_error
from ndtool.storage.local import File

DEFAULT_NAME = "output"  # name of a written dataset if none is given
_DEFAULT_GZIP_LEVEL = 4  # as in h5py
_COMPRESSORS = ("gzip", "zlib", "zstd", "blosc", "lz4", "bz2", "lzf")


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
    name = hierarchy.normalize_name(target.member or DEFAULT_NAME)
    if name == "/" or "\0" in name:
        raise UsageError(f"{printable(name)} cannot name a dataset of {printable(target.path)}")
    return name


def planned_metadata(target: Target, metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of a dataset, with chunks if it has any, without writing."""
    old_file = CurrentFile(target)
    try:
        layout = layout_of(target, metadata, read_content(old_file, target, metadata).reused)
    finally:
        old_file.close()
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
    h5file, start = open_file(file, target.path)
    with library_errors(target.path), h5file:
        if file.peek(start + 8, 1) >= b"\3" and file.peek(start + 11, 1) != b"\0":
            raise InputError(
                f"{printable(target.path)} is open for writing in another process, or was not"
                " closed: h5clear -s ends that"
            )
        names = tuple(
            dataset.name for dataset in hierarchy.datasets(h5file) if dataset.name != name
        )
        existing = hierarchy.find_object(h5file, target.path, name, follows=False)
        if existing is None:
            return ExistingContent(names, start, file.size)
        if not isinstance(existing, library().h5d.DatasetID):
            refuse(label, "a group: expected a dataset, or a new name")
        if not target.clobber:
            raise exists_error(label)
        reused = None
        if not target.encoding.options:
            with suppress(InputError, UsageError):
                stored = datasets.describe(existing, label, start, file.size, Lengths(h5file))
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
        raise UsageError("--shards: HDF5 has no shards")
    codecs = _codecs(options)
    chunks = options.chunks
    options.require_rank(len(shape))
    like = None if options.codec == "none" else options.data_layout
    if chunks is None and like is not None and len(like.chunks) == len(shape):
        chunks = like.chunks
    if not (metadata.nbytes and shape) or (chunks is None and options.codec in (None, "none")):
        return None
    if chunks is None:
        chunks = default_chunks(shape, metadata.dtype.itemsize)
    chunks = tuple(map(min, chunks, shape))
    if (nbytes := prod(chunks) * metadata.dtype.itemsize) > MAX_CHUNK_BYTES:
        raise UsageError(f"--chunks: {nbytes} bytes: at most {MAX_CHUNK_BYTES} are valid")
    return ChunkLayout(chunks, None, codecs, None)


def _codecs(options: Encoding) -> tuple[str, ...]:
    """Return the filters of chunks: as requested, else of data, with gzip for other compressors."""
    if options.codec is not None:
        name, _, level = options.codec.partition(":")
        if name not in datasets.CODECS:
            raise UsageError(f"--codec {name}: HDF5 has gzip or none")
        return () if name == "none" else (f"gzip {level or _DEFAULT_GZIP_LEVEL}",)
    like = options.data_layout.codecs if options.data_layout else ()
    levels = [codec.split()[1:] for codec in like if codec.split()[0] in ("gzip", "zlib")]
    level = levels[-1][-1] if levels and levels[-1] else str(_DEFAULT_GZIP_LEVEL)
    is_compressed = any(codec.split()[0] in _COMPRESSORS for codec in like)
    return ("shuffle",) * ("shuffle" in like) + (f"gzip {level}",) * is_compressed
