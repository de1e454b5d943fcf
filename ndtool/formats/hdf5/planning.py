"""Plan an HDF5 output: the content of its old file, the chunks and filters of the dataset."""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from ndtool.arrays.source import ArrayMetadata, ChunkLayout
from ndtool.errors import InputError, OutputError, UsageError, printable
from ndtool.formats import numpytypes
from ndtool.formats.decoding import library_errors
from ndtool.formats.hdf5 import datasets, hierarchy
from ndtool.formats.hdf5.datasets import StorageLayout
from ndtool.formats.hdf5.library import library, opened
from ndtool.publish.preserved import CurrentFile
from ndtool.publish.targets import Encoding, Target, exists_error
from ndtool.rules.plans import Shape
from ndtool.storage.local import File

DEFAULT = "output"  # name of a written dataset if none is given
_CHUNK = 1 << 20  # approximate bytes of a chunk if only its compression is given
_LEVEL = 4  # of gzip, as h5py has it
_COMPRESSORS = ("gzip", "zlib", "zstd", "blosc", "lz4", "bz2", "lzma", "lzf")


class OldContent(NamedTuple):
    """The content of an old file. names: of the preserved datasets. start: its signature's offset.

    replaced: whether a dataset has the target's name. reused: the layout of that dataset if its
    values are overwritten, so that its attributes, chunks and filters are preserved; else None.
    """

    names: tuple[str, ...] = ()
    start: int = 0
    size: int = 0
    replaced: bool = False
    reused: StorageLayout | None = None


def name_of(target: Target) -> str:
    """Return the path of the written dataset; UsageError if no dataset can have it."""
    name = hierarchy.name_of(target.member or DEFAULT)
    if name == "/" or "\0" in name:
        raise UsageError(f"{printable(name)} cannot name a dataset of {printable(target.path)}")
    return name


def planned(target: Target, metadata: ArrayMetadata) -> ArrayMetadata:
    """Return the metadata of a dataset, with its chunks if it has any; write nothing."""
    old = CurrentFile(target)
    try:
        layout = layout_of(target, metadata, read(old, target, metadata).reused)
    finally:
        old.close()
    if layout is None:
        return metadata
    return metadata._replace(block_shape=layout.chunks, layout=layout)


def read(old: CurrentFile, target: Target, metadata: ArrayMetadata) -> OldContent:
    """Read the content of an old file; OutputError if the dataset cannot be written to it."""
    default, content = OldContent(), "a file of the new dataset"
    return old.read(lambda file: _content(file, target, metadata), default, content)


def _content(file: File, target: Target, metadata: ArrayMetadata) -> OldContent:
    name = name_of(target)
    label = hierarchy.label(target.path, name)
    h5file, start = opened(file, target.path)
    with library_errors(target.path), h5file:
        if file.peek(start + 8, 1) >= b"\3" and file.peek(start + 11, 1) != b"\0":
            raise InputError(
                f"{printable(target.path)} is open for writing in another process, or was not"
                " closed: h5clear -s ends that"
            )
        names = tuple(found.name for found in hierarchy.datasets(h5file) if found.name != name)
        dataset = _existing(h5file, target.path, name)
        if dataset is None:
            return OldContent(names, start, file.size)
        if not target.clobber:
            raise exists_error(label)
        options = target.encoding.options
        reused = None if options else _reusable(dataset, label, start, metadata)
        return OldContent(names, start, file.size, True, reused)


def _existing(file: Any, path: str, name: str) -> Any:
    """Return the dataset of a name, None if there is none; OutputError if it cannot be one."""
    h5g, h5o, h5l, h5d = library().h5g, library().h5o, library().h5l, library().h5d
    node, done = h5g.open(file.id, b"/"), ""
    for part in name[1:].split("/"):
        label = printable(hierarchy.label(path, done or "/"))
        if not isinstance(node, h5g.GroupID):
            raise OutputError(f"{label} is no group: expected one that can have {printable(part)}")
        raw, done = hierarchy.encoded(part), f"{done}/{part}"
        label = printable(hierarchy.label(path, done))
        if not node.links.exists(raw):
            return None
        if node.links.get_info(raw).type != h5l.TYPE_HARD:
            raise OutputError(f"{label} is a soft or external link: expected a dataset or group")
        node = h5o.open(node, raw)
    if not isinstance(node, h5d.DatasetID):
        raise OutputError(f"{label} is a group: expected a dataset, or a new name")
    return node


def _reusable(
    dataset: Any, label: str, start: int, metadata: ArrayMetadata
) -> StorageLayout | None:
    """Return the layout of a dataset if the new values can overwrite the old ones, else None."""
    try:
        layout = datasets.layout_of(dataset, label, start)
        old = datasets.metadata_of(dataset, label, layout)
        datasets.require_filters(layout, label)
    except (InputError, UsageError):
        return None
    dtype = numpytypes.numpy_dtype(metadata.dtype)
    fits = numpytypes.numpy_dtype(old.dtype) == dtype and old.shape == metadata.shape
    has_one_link = library().h5o.get_info(dataset).rc == 1  # other links refer to the old data
    has_storage = layout.position is not None or layout.chunks is not None
    return layout if fits and has_one_link and has_storage and metadata.nbytes else None


def layout_of(
    target: Target, metadata: ArrayMetadata, reused: StorageLayout | None
) -> ChunkLayout | None:
    """Return the chunks of a dataset, None if it is contiguous."""
    if reused is not None:
        return reused.chunk_layout
    options, shape = target.encoding, metadata.shape
    if options.shards is not None:
        raise UsageError("--shards: HDF5 has no shards")
    codecs = _codecs(options)
    chunks = options.chunks
    if chunks is not None and len(chunks) != len(shape):
        raise UsageError(
            f"--chunks {','.join(map(str, chunks))} has {len(chunks)} sizes:"
            f" the output has rank {len(shape)}"
        )
    like = None if options.codec == "none" else options.data_layout
    if chunks is None and like is not None and len(like.chunks) == len(shape):
        chunks = like.chunks
    if not (metadata.nbytes and shape) or (chunks is None and options.codec in (None, "none")):
        return None
    if chunks is None:
        chunks = _default_chunks(shape, metadata.dtype.itemsize)
    chunks = tuple(map(min, chunks, shape))
    if (nbytes := prod(chunks) * metadata.dtype.itemsize) > datasets.LARGEST:
        raise UsageError(f"--chunks: {nbytes} bytes: at most {datasets.LARGEST} are valid")
    return ChunkLayout(chunks, None, codecs, None)


def _default_chunks(shape: Shape, itemsize: int) -> Shape:
    """Return the shape of a chunk of about a MiB, of as many complete rows as fit."""
    sizes = list(shape)
    for axis in range(len(sizes)):
        others = prod(sizes) // sizes[axis] * itemsize
        sizes[axis] = min(sizes[axis], max(1, _CHUNK // others))
    return tuple(sizes)


def _codecs(options: Encoding) -> tuple[str, ...]:
    """Return the filters of chunks: the requested one, else those of data, or gzip for others."""
    if options.codec is not None:
        name, _, level = options.codec.partition(":")
        if name not in datasets.CODECS:
            raise UsageError(f"--codec {name}: HDF5 has gzip or none")
        return () if name == "none" else (f"gzip {level or _LEVEL}",)
    codecs = []
    for codec in options.data_layout.codecs if options.data_layout else ():
        name, *parameters = codec.split()
        if name == "shuffle":
            codecs.append(name)
        elif name in _COMPRESSORS:
            has_level = name in ("gzip", "zlib") and parameters
            codecs.append(f"gzip {parameters[-1] if has_level else _LEVEL}")
    return tuple(codecs[-2:] if codecs[-2:-1] == ["shuffle"] else codecs[-1:])
