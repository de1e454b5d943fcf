"""The interface of an output array, whatever its format, and the encoding options of its chunks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool.arrays.source import AccessedElements, ArrayMetadata, ChunkLayout, Source
from ndtool.errors import UsageError, format_value, option, printable
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.plans import Shape
from ndtool.storage.descriptors import BLOCK_SIZE
from ndtool.storage.local import ProgressCallback

if TYPE_CHECKING:
    from ndtool.engine.copies import WriteAt

_MAX_LEVELS = {"zstd": 22, "blosc": 9, "gzip": 9}  # codecs and their highest levels
_CODECS = {
    f"{name}:{level}" for name, max_level in _MAX_LEVELS.items() for level in range(max_level + 1)
}


class Unpublished:
    """A new file, folder or object that is not visible under its final name, `path`.

    The methods that a subclass does not define do nothing.
    """

    path: str

    def sync(self) -> None:
        """Wait until the bytes are stored as required before publication."""

    def open_folder(self) -> int | None:
        """Open the folder to lock during the rename; None if no lock is required."""
        return None

    def require_unchanged(self) -> None:
        """Raise OutputError if the path has changed since the output was opened."""

    def publish(self) -> None:
        """Rename to the final name; OutputError if the file there may not be replaced."""

    def sync_folder(self) -> None:
        """Call fsync on the folder, if --sync was given."""

    def drop(self) -> None:
        """Remove everything that is not published."""


class Sink:
    """One output array; it is invisible to readers before `commit`.

    name: its name in messages. metadata: its metadata; each block is in row-major order. streamed:
    whether bytes must be written in order. concurrency: the number of blocks worth writing
    concurrently. preserved: the preserved members of the file, None if there is no file to
    preserve. buffer: the output, if it is in memory. The methods that a subclass does not define do
    nothing.
    """

    name: str
    metadata: ArrayMetadata
    buffer: memoryview | None = None
    streamed = False
    concurrency = 1
    preserved: tuple[str, ...] | None = None

    def map(self) -> memoryview | None:
        """Return a writable map of the data, initially zero; None if the sink cannot be mapped."""
        return self.buffer

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of a block at offset `start`."""
        raise NotImplementedError

    def copy_chunks(self, source: Source, touched: AccessedElements) -> AccessedElements | None:
        """Copy encoded chunks without touched elements, to ignore writes of them; return `touched`.

        None if chunks of the source are not encoded as those of the sink.
        """
        return None

    def release(self, start: int, nbytes: int) -> None:
        """Start writeback of a byte range and drop it from the page cache."""

    def fits(self, other_nbytes: int = 0) -> bool:
        """Whether the output fits on the disk, with other new files; False if elements decide.

        Raises ResourceError if it does not.
        """
        return True

    def share(self) -> Any:
        """Return the SharedOutput at which other processes can write, None if they cannot."""
        return None

    def finish(self) -> Unpublished | None:
        """Complete the output under its temporary name and return it; None for a stream."""
        return None

    def abort(self) -> None:
        """Release all resources, and remove the output if it is not committed."""


class ChunkSink(Sink):
    """Base class of sinks that write each chunk once, when it is complete; thread-safe."""

    def __init__(self) -> None:
        self._pending: dict[int, tuple[bytearray, list[int]]] = {}  # chunks written in part
        self._written = bytearray()  # a flag for each chunk, up to the last one that was written
        self._lock = Lock()

    def write_chunk(self, box: Box, view: memoryview) -> None:
        """Write a complete chunk, from any thread."""
        raise NotImplementedError

    def map(self) -> None:
        return None

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        """Write bytes of a chunk, in any order and from any thread."""
        if block < len(self._written) and self._written[block]:
            return
        box = grid.box(self.metadata.shape, self.metadata.block_shape, block)
        total = prod(grid.box_shape(box)) * self.metadata.dtype.itemsize
        if start < 0 or start + len(view) > total:
            raise ValueError(f"{len(view)} bytes at offset {start} exceed a block of {total}")
        if len(view) < total:
            with self._lock:
                chunk, missing = self._pending.setdefault(block, (bytearray(total), [total]))
                chunk[start : start + len(view)] = view
                missing[0] -= len(view)
                if missing[0]:
                    return
                del self._pending[block]
            view = memoryview(chunk)
        self.write_chunk(box, view)
        self.mark_written(block)

    def mark_written(self, block: int) -> None:
        with self._lock:
            self._written += bytes(max(0, block + 1 - len(self._written)))
            self._written[block] = 1

    def require_all(self) -> None:
        """Raise ValueError unless all chunks were written."""
        metadata = self.metadata
        count = grid.count_blocks(metadata.shape, metadata.block_shape) if metadata.nbytes else 0
        if (written := self._written.count(1)) < count:
            raise ValueError(f"only {written} of {count} chunks were written")


def write_array(
    buffer: memoryview, sink: Sink, threads: int = 1, progress: ProgressCallback | None = None
) -> None:
    """Write a row-major array to a sink, concurrently in blocks if the sink is chunked."""
    metadata = sink.metadata
    if metadata.block_shape == metadata.shape:
        for first in range(0, metadata.nbytes, BLOCK_SIZE):
            stop = min(first + BLOCK_SIZE, metadata.nbytes)
            sink.write(first, buffer[first:stop])
            if progress is not None:
                progress(stop / metadata.nbytes)
        return
    from ndtool.arrays import assembly

    threads = max(threads, sink.concurrency)
    assembly.write_blocks(buffer, metadata, (), sink.write, threads, progress)


@contextmanager
def output_buffer(
    sink: Sink,
    threads: int = 1,
    progress: ProgressCallback | None = None,
    directory: str | None = None,
    buffer: memoryview | None = None,
) -> Iterator[tuple[memoryview, WriteAt | None]]:
    """Yield a writable buffer of the complete output, and a write function if that is faster.

    The buffer is the sink's memory map if it has one, else a temporary buffer that is written at
    the end: `buffer` or a new one. directory: where a new one is stored that does not fit in
    memory; None for TMPDIR.
    """
    out = sink.map()
    if out is not None:
        yield out, sink.write
        return
    if buffer is None:
        from ndtool.storage import tempfiles

        label = f"temporary copy of {sink.name}"
        buffer = tempfiles.allocate(sink.metadata.nbytes, label, directory=directory)
    yield buffer, None
    write_array(buffer, sink, threads, progress)


def codec(text: str) -> str:
    """Validate a codec such as `zstd:3` and return it; UsageError if it is unknown."""
    if text not in _CODECS and text not in (*_MAX_LEVELS, "none"):
        choice = ", ".join(f"{name}[:0..{max_level}]" for name, max_level in _MAX_LEVELS.items())
        raise UsageError(f"{format_value(text)} is not a codec: expected {choice} or none")
    return text


class Encoding(NamedTuple):
    """Encoding options of a chunked output; None: as data is encoded, else the format's default.

    codec: zstd, blosc, gzip or none, perhaps with `:level`. data_layout: the chunk layout of data,
    None for flat data. as_void: whether element types that the format lacks may be stored as void.
    """

    chunks: tuple[int, ...] | None = None
    shards: tuple[int, ...] | None = None
    codec: str | None = None
    data_layout: ChunkLayout | None = None
    as_void: bool = True

    @property
    def options(self) -> tuple[str, ...]:
        """The options that were passed, as users write them."""
        return tuple(option(name) for name in self._fields[:3] if getattr(self, name) is not None)

    def layout_like(self, shape: Shape) -> ChunkLayout | None:
        """Return the layout of data if the ranks are equal.

        UsageError if chunks or shards have another rank.
        """
        for name, sizes in (("chunks", self.chunks), ("shards", self.shards)):
            if sizes is not None and len(sizes) != len(shape):
                raise UsageError(
                    f"{option(name)} {','.join(map(str, sizes))} has {len(sizes)} sizes: the output"
                    f" has rank {len(shape)}"
                )
        like = self.data_layout
        return like if like is not None and len(like.chunks) == len(shape) else None

    def require_no_options(self, argument: str) -> None:
        """Raise UsageError if options were passed, as the output has no chunks."""
        if self.options:
            raise UsageError(
                f"{' and '.join(self.options)}: {printable(argument)} has no chunks:"
                " expected a Zarr store or an HDF5 file, such as out.zarr"
            )
