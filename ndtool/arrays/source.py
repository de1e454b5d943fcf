"""Input arrays outside memory, whatever their format: metadata and bytes.

A flat array is a grid of one block. A format that stores arrays contiguously returns a
`FlatSource`; a chunked format has its own class that implements `Source`.
"""

from collections.abc import Iterator
from math import prod
from typing import Any, NamedTuple, Protocol

from ndtool.errors import NdtoolError, OutputError, argument_name, printable
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape
from ndtool.rules.shapes import format_type
from ndtool.storage.local import ByteRange, Fingerprint, ProgressCallback


class ChunkLayout(NamedTuple):
    """The chunk and shard shapes of an array, and the codecs of its chunks.

    chunks: the shape of a chunk. shards: the shape of a shard, a file of several chunks; None if
    each chunk is a file. codecs: the codecs of a chunk, in order of encoding, each with its level:
    "zstd 3". version: of Zarr, None in other formats.
    """

    chunks: Shape
    shards: Shape | None
    codecs: tuple[str, ...]
    version: int | None

    @property
    def file_shape(self) -> Shape:
        """The shape of the elements in one file: a shard or a chunk."""
        return self.shards or self.chunks

    @property
    def is_unencoded(self) -> bool:
        """Whether chunks are stored unencoded, one in a file."""
        return not self.shards and all(codec == "bytes" for codec in self.codecs)


class ArrayMetadata(NamedTuple):
    """The metadata of an array.

    order: "C" or "F", the element order of a flat array; chunks are always in row-major order.
    block_shape: the shape of a block, equal to shape if the array is flat; the last blocks along an
    axis may be smaller. notes: format-specific metadata, for `inspect` only. layout: the chunk
    layout, in a chunked format.
    """

    dtype: Dtype
    shape: Shape
    order: str
    block_shape: Shape
    notes: dict[str, Any]
    layout: ChunkLayout | None = None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def packed_nbytes(self) -> int:
        """Bytes of the data in model files, which pack elements."""
        return -(-prod(self.shape) * self.dtype.bits // 8)

    @property
    def is_chunked(self) -> bool:
        """Whether the array is stored in chunks, or in one chunk that is its only block."""
        return self.block_shape != self.shape or self.layout is not None

    @property
    def file_shape(self) -> Shape:
        """The shape of the elements in one file of a chunked array."""
        return self.block_shape if self.layout is None else self.layout.file_shape

    @property
    def description(self) -> str:
        """The dtype and shape, as text."""
        return format_type(self.dtype, self.shape)


class MemberInfo(NamedTuple):
    """The fields that `inspect` reports about an array.

    name: the argument that opens it. metadata: None if it is no array. position: the offset of its
    bytes in the file, None if they cannot be mapped. problem: why it is no array, else empty.
    """

    name: str
    member: str | None
    metadata: ArrayMetadata | None
    position: int | None
    file_size: int
    problem: str = ""
    warning: str | None = None

    @classmethod
    def invalid(
        cls, name: str, member: str | None, file_size: int, error: NdtoolError
    ) -> "MemberInfo":
        """Return the info of a member that cannot be opened because of `error`."""
        reason = error.message.removeprefix(f"{printable(name)}: ")
        return cls(name, member, None, None, file_size, reason)

    @property
    def label(self) -> str:
        """The dtype and shape, or the problem."""
        return self.problem if self.metadata is None else self.metadata.description


class OperatorNode(NamedTuple):
    """A node of a model whose operator ndtool implements.

    model: the file. node: the node's path in it. operator, title: ndtool's and ONNX's name of the
    operator. version: the version of the operator set. attributes: the node's attributes. output:
    the name of its output, or None.
    """

    model: str
    node: str
    operator: str
    title: str
    version: int | None
    attributes: dict[str, Any]
    inputs: tuple[str, ...]
    output: str | None


class DeclaredType(NamedTuple):
    """The declared dtype and shape of a name in a model; a size may be the name of a symbol."""

    dtype: str | None
    shape: tuple[int | str | None, ...] | None

    @property
    def description(self) -> str:
        """The declared dtype and shape, as text: float32[N,3], ?[...]."""
        sizes = "..."
        if self.shape is not None:
            sizes = ",".join("?" if size is None else str(size) for size in self.shape)
        return f"{self.dtype or '?'}[{sizes}]"


class TypedNode(NamedTuple):
    """A node with the declared dtypes and shapes of its inputs and its output, by name.

    scope: the path of the graph or function that contains it.
    """

    node: OperatorNode
    scope: str
    types: dict[str, DeclaredType]


class ModelInfo(NamedTuple):
    """The nodes of a model whose operators ndtool implements, and the graph's inputs.

    scopes: nodes by scope: the graph, then each function. inputs: the graph's inputs. initialized:
    the inputs that have a value in the model.
    """

    scopes: list[list[TypedNode]]
    inputs: dict[str, DeclaredType]
    initialized: frozenset[str]


class AccessedElements(Protocol):
    """A superset of the elements that a run reads, as blocks or as byte ranges."""

    def blocks(self, block_shape: Shape) -> Iterator[int]:
        """Yield the row-major indices of the blocks with such elements, ascending."""

    def ranges(self, itemsize: int, order: str) -> Iterator[tuple[int, int]]:
        """Yield their byte ranges (start, stop) in a flat array, ascending and disjoint."""


class Source(Protocol):
    """An open input array.

    name: the argument. warning: a warning about the file, or None. concurrency: the number of
    blocks worth reading concurrently, whatever the number of processors. progress: progress
    callback of a download, set by the caller.
    """

    name: str
    metadata: ArrayMetadata
    warning: str | None
    concurrency: int
    progress: ProgressCallback | None

    def load(self, touched: AccessedElements | None = None) -> ByteRange | None:
        """Return all of the bytes if they are stored contiguously, else None.

        touched: the elements that are needed; the others may be zeros.
        """

    def block(self, index: int) -> memoryview:
        """Return the bytes of a block, by its row-major index in the grid.

        May be called from several threads at once.
        """

    def require_unchanged(self) -> None:
        """Raise OutputError if the array was modified or replaced since it was opened."""

    def fingerprint(self) -> Fingerprint:
        """Return a fingerprint of its bytes that is comparable between runs, or None."""

    def is_same_file(self, fd: int) -> bool:
        """Return whether a descriptor is open on the same file."""

    def close(self) -> None:
        """Release the bytes and close the storage."""


class Storage(Protocol):
    """The storage of a source's bytes; LocalFile documents the methods."""

    def describe_change(self) -> str: ...
    def fingerprint(self) -> Fingerprint: ...
    def is_same_file(self, fd: int) -> bool: ...
    def close(self) -> None: ...


class StoredSource:
    """Base class of sources that read from one storage; None after a pipe was read."""

    name: str
    _storage: Storage | None
    warning: str | None = None
    concurrency = 1
    progress: ProgressCallback | None = None

    def require_unchanged(self) -> None:
        if self._storage is not None and (change := self._storage.describe_change()):
            raise OutputError(f"{argument_name(self.name)} {change}")

    def fingerprint(self) -> Fingerprint:
        return None if self._storage is None else self._storage.fingerprint()

    def is_same_file(self, fd: int) -> bool:
        return self._storage is not None and self._storage.is_same_file(fd)

    def close(self) -> None:
        if self._storage is not None:
            self._storage.close()


class ContiguousSource(StoredSource):
    """A source of contiguous bytes."""

    def __init__(
        self,
        name: str,
        metadata: ArrayMetadata,
        byte_range: ByteRange,
        storage: Storage | None = None,
        warning: str | None = None,
    ) -> None:
        self.name, self.metadata, self.warning = name, metadata, warning
        self._range, self._storage = byte_range, storage

    @property
    def is_reopenable(self) -> bool:
        """Whether the storage can be reopened: it is a file, not a pipe."""
        return self._storage is not None

    @property
    def local_range(self) -> ByteRange | None:
        """All of the bytes if they are local, None if they must be downloaded."""
        return None if self._range.fetch is not None else self._range

    def reserve(self, touched: AccessedElements | None = None) -> ByteRange:
        """Return the buffer of `load` with disk space reserved, without a download."""
        if self._range.fetch is not None and touched is None:
            self._range.reserve()
        return self._range

    def load(self, touched: AccessedElements | None = None) -> ByteRange:
        self.reserve(touched)
        if self._range.fetch is not None:
            size, order = self.metadata.dtype.itemsize, self.metadata.order
            ranges = None if touched is None else touched.ranges(size, order)
            self._range.fetch(ranges, self.progress)
        return self._range

    def block(self, index: int) -> memoryview:
        assert index == 0, "a flat array is one block"
        return self.load().buffer

    def close(self) -> None:
        self._range.release()
        super().close()


def load_bytes(
    source: Source,
    touched: AccessedElements | None = None,
    threads: int = 1,
    directory: str | None = None,
    is_dry_run: bool = False,
) -> ByteRange:
    """Return all bytes of an array: as stored if contiguous, else its assembled blocks.

    touched: the elements that are needed; other blocks are not read, and are zeros. directory: the
    location of a large temporary copy, None for TMPDIR. is_dry_run: only reserve space, read
    nothing.
    """
    if is_dry_run and isinstance(source, ContiguousSource):
        return source.reserve(touched)
    byte_range = None if is_dry_run else source.load(touched)
    if byte_range is None:
        from ndtool.arrays import assembly

        metadata = source.metadata
        block_grid = assembly.BlockGrid(
            metadata.shape, metadata.block_shape, metadata.dtype.itemsize
        )
        blocks = None if touched is None else touched.blocks
        label = f"temporary copy of {argument_name(source.name)}"
        concurrency = max(threads, source.concurrency)
        read = None if is_dry_run else source.block
        byte_range = assembly.assemble(
            block_grid, read, blocks, label, concurrency, source.progress, directory
        )
    return byte_range


def trailing_bytes_warning(label: str, count: int) -> str | None:
    """Return the warning about `count` bytes after an array, None if there are none."""
    return f"{printable(label)}: {count} bytes after the array are ignored" if count else None
