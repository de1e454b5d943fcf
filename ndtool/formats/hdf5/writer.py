"""Write a dataset to an HDF5 file: h5py adds or replaces it in a copy of the current file."""

from __future__ import annotations

from math import prod
from typing import Any

from ndtool.arrays.assembly import library_errors
from ndtool.arrays.sink import ChunkSink
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, printable
from ndtool.formats import numpytypes
from ndtool.formats.hdf5 import datasets, hierarchy, planning
from ndtool.formats.hdf5.library import OutputFile, library
from ndtool.publish.newfile import CurrentFile
from ndtool.publish.sinks import Container, FileSink
from ndtool.publish.targets import Target
from ndtool.rules import grid
from ndtool.storage.descriptors import BLOCK_SIZE, write_at

_ALIGNMENT = 64
_ALIGNMENT_THRESHOLD = 1024  # bytes; smaller objects are not aligned
_METADATA_BYTES = 1 << 14  # approximate size of a dataset's and its groups' metadata
_CHUNK_ENTRY_BYTES = 64  # approximate size of a chunk's entry in the chunk index


def create(target: Target, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one dataset. metadata: from `planned_metadata`."""
    old_file = CurrentFile(target)
    try:
        content = planning.read_content(old_file, target, metadata)
        if planning.layout_of(target, metadata, content.reused) != metadata.layout:
            raise OutputError(f"{printable(target.path)} changed during the run")
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
        content: planning.ExistingContent,
    ) -> None:
        super().__init__(b"", metadata.nbytes, 0, old_file, content.names)
        self._target, self._metadata, self._content = target, metadata, content
        self._name = planning.dataset_name(target)
        self._output: OutputFile | None = None
        self._file: Any = None
        self.dataset: Any = None
        self.total = content.size + _METADATA_BYTES
        if content.reused is None or content.reused.position is None:
            self.total += self._values_nbytes()

    def _values_nbytes(self) -> int:
        """Return the size of new values and their index, without chunks of unknown size."""
        layout, shape = self._metadata.layout, self._metadata.shape
        if layout is None:
            return self._metadata.nbytes
        count = grid.count_blocks(shape, layout.chunks)
        chunk_nbytes = 0 if layout.codecs else prod(layout.chunks) * self._metadata.dtype.itemsize
        return count * (chunk_nbytes + _CHUNK_ENTRY_BYTES)

    def begin(self, fd: int) -> None:
        content, old_file, path = self._content, self.current, self._target.path
        if old_file is not None and old_file.file is not None:
            old_file.copy(fd, self._ranges())
        self._output = OutputFile(fd, path, content.start, content.size - content.start)
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
        self.dataset = None
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

    def finish(self, fd: int, name: str) -> None:
        self.dataset = None
        with library_errors(name, OutputError):
            self._close()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the first error of h5py's writes."""
        if self._output is not None:
            self._output.raise_error()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def drop(self) -> None:
        """Close h5py's file without further writes."""
        if self._output is not None:
            self._output.drop()
        self.dataset = None
        with library_errors(self._target.path, OutputError):
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
