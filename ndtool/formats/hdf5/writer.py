"""Write a dataset to an HDF5 file: a copy of the old one, in which h5py adds or replaces it."""

from __future__ import annotations

import zlib
from math import prod
from typing import Any

from ndtool.arrays.sink import PartialBlocks
from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import OutputError, printable
from ndtool.formats import numpytypes
from ndtool.formats.decoding import library_errors
from ndtool.formats.hdf5 import datasets, hierarchy, planning
from ndtool.formats.hdf5.library import OutputFile, library
from ndtool.formats.numpytypes import padded
from ndtool.publish.preserved import CurrentFile
from ndtool.publish.sinks import FileSink, Frame
from ndtool.publish.targets import Target
from ndtool.rules import grid
from ndtool.storage.descriptors import BLOCK_SIZE, write_at

_ALIGNMENT = 64
_SMALL = 1024  # bytes up to which objects are not aligned
_METADATA = 1 << 14  # approximate bytes of a dataset's and its groups' metadata
_ENTRY = 64  # approximate bytes of a chunk's entry in the table of chunks


def create(target: Target, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one dataset; metadata: as `planned` returned them."""
    old = CurrentFile(target)
    try:
        content = planning.read(old, target, metadata)
        if planning.layout_of(target, metadata, content.reused) != metadata.layout:
            raise OutputError(f"{printable(target.path)} changed during the run")
        frame = DatasetFrame(target, metadata, old, content)
        return (FileSink if metadata.layout is None else ChunkSink)(target, metadata, frame)
    except BaseException:
        old.close()
        raise


class DatasetFrame(Frame):
    """The bytes of a file other than the values of the written dataset."""

    def __init__(
        self,
        target: Target,
        metadata: ArrayMetadata,
        old: CurrentFile,
        content: planning.OldContent,
    ) -> None:
        super().__init__(b"", metadata.nbytes, 0, old, content.names)
        self._target, self._metadata, self._content = target, metadata, content
        self._name = planning.name_of(target)
        self._output: OutputFile | None = None
        self._file: Any = None
        self.dataset: Any = None
        self.total = content.size + _METADATA
        if content.reused is None or content.reused.position is None:
            self.total += self._chunk_bytes()

    def _chunk_bytes(self) -> int:
        """Return the bytes of new values and their table, without chunks of unknown size."""
        layout, shape = self._metadata.layout, self._metadata.shape
        if layout is None:
            return self._metadata.nbytes
        count = grid.count_blocks(shape, layout.chunks)
        each = 0 if layout.codecs else prod(layout.chunks) * self._metadata.dtype.itemsize
        return count * (each + _ENTRY)

    def begin(self, fd: int) -> None:
        content, old, path = self._content, self.current, self._target.path
        if old is not None and old.file is not None:
            old.copy(fd, self._ranges())
        self._output = OutputFile(fd, path, content.start, content.size - content.start)
        mode = "r+" if content.size else "w"
        try:
            with library_errors(path, OutputError):
                self._file = library().File(
                    self._output, mode, rdcc_nbytes=0,
                    alignment_threshold=_SMALL, alignment_interval=_ALIGNMENT,
                )  # fmt: skip
                self._add(fd)
            self._output.require()
        except BaseException:
            self.drop()
            raise

    def _ranges(self) -> list[tuple[int, int, int]]:
        """Return the byte ranges that are copied: all but the values that are overwritten."""
        size, reused = self._content.size, self._content.reused
        if reused is None or reused.position is None:
            return [(0, size, 0)]
        end = reused.position + self._metadata.nbytes
        return [(0, reused.position, 0), (end, size, end)]

    def _add(self, fd: int) -> None:
        """Add the dataset; the file stays open if it has chunks."""
        content, raw = self._content, hierarchy.encoded(self._name)
        if content.reused is not None:
            self.dataset = library().h5d.open(self._file.id, raw)
        else:
            if content.replaced:
                self._file.id.unlink(raw)
            self.dataset = self._created(raw)
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

    def _created(self, raw: bytes) -> Any:
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
        kind = datasets.stored_type(numpytypes.numpy_dtype(metadata.dtype))
        space = h5py.h5s.create_simple(metadata.shape)
        return h5d.create(self._file.id, raw, kind, space, properties, links)

    def finish(self, fd: int, name: str) -> None:
        self.dataset = None
        with library_errors(name, OutputError):
            self._close()
        self.require()

    def require(self) -> None:
        """Raise the first error of h5py's writes."""
        if self._output is not None:
            self._output.require()

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


class ChunkSink(FileSink):
    """A sink for a chunked dataset, which writes each chunk once, when it is complete."""

    _frame: DatasetFrame

    def __init__(self, target: Target, metadata: ArrayMetadata, frame: DatasetFrame) -> None:
        self._partial = PartialBlocks()
        super().__init__(target, metadata, frame)

    def map(self) -> None:
        return None

    def share(self) -> None:
        """Return None: other processes cannot write chunks."""

    def release(self, start: int, nbytes: int) -> None:
        """Do nothing: a chunk's position is unknown."""

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of a block, in any order and from any thread."""
        box = grid.box(self.metadata.shape, self.metadata.block_shape, block)
        nbytes = prod(grid.box_shape(box)) * self.metadata.dtype.itemsize
        chunk = self._partial.add(start, view, block, nbytes)
        if chunk is not None:
            self._put(box, chunk)
            self._partial.mark_written(block)

    def _put(self, box: grid.Box, view: memoryview) -> None:
        import numpy as np

        metadata, sizes = self.metadata, grid.box_shape(box)
        chunk: Any = np.ndarray(sizes, numpytypes.numpy_dtype(metadata.dtype), view)
        origin, dataset = tuple(first for first, _ in box), self._frame.dataset
        with library_errors(self.name, OutputError):
            assert metadata.layout is not None, "a dataset in chunks"
            names = tuple(codec.split()[0] for codec in metadata.layout.codecs)
            if names in datasets.NATIVE:
                chunk = padded(chunk, metadata.block_shape)
                dataset.write_direct_chunk(origin, _encoded(chunk, metadata.layout.codecs))
            else:
                space, memory = dataset.get_space(), library().h5s.create_simple(sizes)
                space.select_hyperslab(origin, sizes)
                dataset.write(memory, space, chunk, dataset.get_type())
        self._frame.require()

    def finish(self) -> Any:
        metadata = self.metadata
        self._partial.require_all(grid.count_blocks(metadata.shape, metadata.block_shape))
        return super().finish()

    def abort(self) -> None:
        self._frame.drop()
        super().abort()


def _encoded(array: Any, codecs: tuple[str, ...]) -> bytes:
    """Apply the filters to a chunk."""
    import numpy as np

    raw: Any = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for codec in codecs:
        name, *level = codec.split()
        if name == "shuffle":
            raw = np.ascontiguousarray(raw.reshape(-1, array.itemsize).T)
        else:
            raw = zlib.compress(raw, int(level[0]))
    return raw if isinstance(raw, bytes) else raw.tobytes()
