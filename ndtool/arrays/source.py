"""Input arrays outside memory, whatever their format: metadata and bytes.

A format that stores arrays contiguously returns a `ContiguousSource`, a chunked format a
`ChunkedSource` (`arrays/assembly.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from math import prod
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ndtool.errors import NdtoolError, OutputError, ResourceError, argument_name, printable
from ndtool.rules import grid
from ndtool.rules.dtypes import Dtype
from ndtool.rules.grid import Box
from ndtool.rules.plans import Shape
from ndtool.rules.shapes import format_type
from ndtool.storage import descriptors
from ndtool.storage.local import File, Fingerprint, ProgressCallback

if TYPE_CHECKING:
    from ndtool.engine.bind import Buffer, Operand
    from ndtool.rules.inference import Inference
    from ndtool.rules.plans import Plan

PATTERN_SIZE = 1 << 20  # bytes of equal elements per write
CACHE_SAMPLES = 16  # offsets that `cached_fraction` tests for presence in the page cache
_reads = Lock()  # serializes reads, which is fastest for disks and for the kernel's readahead


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
    def strides(self) -> tuple[int, ...]:
        """The strides of all elements in one buffer, in bytes."""
        from ndtool.engine import layouts  # a start without a run needs no kernels

        return layouts.contiguous_strides(self.shape, self.dtype.itemsize, self.order == "F")

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
    problem: str = ""
    warning: str | None = None

    @classmethod
    def invalid(cls, name: str, member: str | None, error: NdtoolError) -> MemberInfo:
        """Return the info of a member that cannot be opened because of `error`."""
        reason = error.message.removeprefix(f"{printable(name)}: ")
        return cls(name, member, None, None, reason)

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


class Storage(Protocol):
    """The storage of a source's bytes; LocalFile documents the methods."""

    def describe_change(self) -> str: ...
    def fingerprint(self) -> Fingerprint: ...
    def is_same_file(self, fd: int) -> bool: ...
    def close(self) -> None: ...


class Source:
    """An open input array; the base class of the formats' sources.

    name: the argument. warning: a warning about the file, or None. concurrency: the number of
    blocks worth reading concurrently, whatever the number of processors. progress: progress
    callback of a download, set by the caller.
    """

    name: str
    metadata: ArrayMetadata
    warning: str | None = None
    concurrency = 1
    progress: ProgressCallback | None = None
    _storage: Storage | None = None  # None in memory, and after a pipe was read

    def load(
        self,
        touched: AccessedElements | None = None,
        threads: int = 1,
        directory: str | None = None,
        dry: bool = False,
    ) -> memoryview:
        """Return all elements in one buffer, those of chunks in row-major order.

        It is writable if it is a copy for this call, which may change it.
        touched: the elements that are needed; the others may be zeros. directory: the location of a
        large temporary copy, None for TMPDIR. dry: whether to reserve space without reading.
        """
        raise NotImplementedError

    def read(
        self, shape: Shape, box: Box, buffer: memoryview, chunks: Iterable[int] | None, threads: int
    ) -> None:
        """Read a box over the leading axes into a buffer, from any thread.

        shape: of these axes, which may be merged in an array without chunks. chunks: read only
        these, by their row-major indices in the box; None for all.
        """
        raise NotImplementedError

    def require_unchanged(self) -> None:
        """Raise OutputError if the array was modified or replaced since it was opened."""
        if self._storage is not None and (change := self._storage.describe_change()):
            raise OutputError(f"{argument_name(self.name)} {change}")

    def fingerprint(self) -> Fingerprint:
        """Return a fingerprint of its bytes that is comparable between runs, or None.

        The bytes of an array without storage, such as a literal, do not change.
        """
        return [] if self._storage is None else self._storage.fingerprint()

    def is_same_file(self, fd: int) -> bool:
        """Return whether a descriptor is open on the same file."""
        return self._storage is not None and self._storage.is_same_file(fd)

    def close(self) -> None:
        """Release the bytes and close the storage."""
        if self._storage is not None:
            self._storage.close()


class ContiguousSource(Source):
    """A source of contiguous bytes: in memory, or a byte range of a file.

    buffer: the bytes, read-only, perhaps unaligned; those of a remote file are zeros before `load`.
    position: their offset in the file, or in a decompressed member. file: the file that has them,
    None in memory. is_mapped: whether the buffer is a map of the file. check: called when all bytes
    are downloaded.
    """

    file: File | None = None
    is_mapped = False
    check: Callable[[], object] | None = None

    def __init__(
        self,
        name: str,
        metadata: ArrayMetadata,
        buffer: memoryview,
        storage: Storage | None = None,
        warning: str | None = None,
        position: int | None = None,
    ) -> None:
        self.name, self.metadata, self.warning = name, metadata, warning
        self.buffer, self.position, self._storage = buffer, position, storage

    @classmethod
    def in_file(
        cls,
        name: str,
        metadata: ArrayMetadata,
        file: File,
        position: int,
        label: str,
        warning: str | None = None,
        owner: Storage | None = None,
    ) -> ContiguousSource:
        """Return the source of a byte range. owner: closed with the source instead of the file."""
        buffer, is_mapped = file.view(position, metadata.nbytes, label)
        source = cls(name, metadata, buffer, owner or file, warning, position)
        source.file, source.is_mapped = file, is_mapped
        return source

    @property
    def is_local(self) -> bool:
        """Whether no bytes must be downloaded."""
        return self.file is None or not (self.is_mapped and self.file.is_remote)

    @property
    def is_reopenable(self) -> bool:
        """Whether the storage can be reopened: it is a file, not a pipe."""
        return self._storage is not None

    def load(
        self,
        touched: AccessedElements | None = None,
        threads: int = 1,
        directory: str | None = None,
        dry: bool = False,
    ) -> memoryview:
        if self.file is not None and self.position is not None and not self.is_local:
            if touched is None:
                self.file.reserve(self.position, len(self.buffer))
            if not dry:
                self._download(self.file, self.position, touched)
        return self.buffer

    def _download(self, file: File, start: int, touched: AccessedElements | None) -> None:
        nbytes, metadata, progress = len(self.buffer), self.metadata, self.progress
        ranges: Iterable[tuple[int, int]] = [(0, nbytes)]
        if touched is not None:
            ranges = touched.ranges(metadata.dtype.itemsize, metadata.order)
        if progress is not None:
            progress(0.0)

        def report(stop: int) -> None:
            if progress is not None:
                progress((stop - start) / nbytes)

        file.download(((start + first, start + stop) for first, stop in ranges), report)
        if touched is None and self.check is not None:
            self.check()

    def read(
        self, shape: Shape, box: Box, buffer: memoryview, chunks: Iterable[int] | None, threads: int
    ) -> None:
        width = self.metadata.nbytes // max(1, prod(shape))
        for start, offset, nbytes in grid.byte_ranges(shape, box, width):
            self.read_bytes(start, buffer[offset : offset + nbytes])
            if self.is_mapped and self.file is not None and self.position is not None:
                descriptors.advise(self.file.fd, "DONTNEED", self.position + start, nbytes)

    def read_bytes(self, start: int, buffer: memoryview) -> None:
        """Copy bytes from offset `start` on into a buffer, by reads instead of the map."""
        if not self.is_mapped or self.file is None or self.position is None:
            buffer[:] = self.buffer[start : start + len(buffer)]
            return
        try:
            with _reads:
                count = descriptors.read_into(self.file.fd, self.position + start, buffer)
        except OSError as exc:
            raise descriptors.failure(exc, "an input") from None
        if count < len(buffer):
            raise OutputError(descriptors.LOST_INPUT_MESSAGE)

    def advise(self, kind: str, start: int = 0, length: int | None = None) -> None:
        """Call madvise on a byte range of the map; kind: its advice, such as "random"."""
        if not self.is_mapped or self.position is None:
            return
        import mmap

        memory_map: Any = self.buffer.obj
        size = len(self.buffer)
        end = size if length is None else min(start + length, size)
        skip = self.position % mmap.ALLOCATIONGRANULARITY
        first = (skip + start) // mmap.PAGESIZE * mmap.PAGESIZE
        try:
            memory_map.madvise(getattr(mmap, f"MADV_{kind.upper()}"), first, skip + end - first)
        except (OSError, ValueError):
            pass  # advice is optional

    def cached_fraction(self, shift: int = 0, default: float = 1.0) -> float:
        """Estimate the fraction of bytes in the page cache; `default` if it cannot be measured.

        shift: 0 or 1; 1 samples other offsets, as an earlier call may have started readahead.
        """
        if not self.is_mapped or self.file is None or self.position is None:
            return 1.0
        cached_count, buffer = 0, [bytearray(1)]
        for i in range(CACHE_SAMPLES):
            offset = self.position + (4 * i + 2 + shift) * len(self.buffer) // (4 * CACHE_SAMPLES)
            try:
                cached_count += os.preadv(self.file.fd, buffer, offset, os.RWF_NOWAIT)
            except BlockingIOError:
                pass  # not in the page cache
            except (OSError, AttributeError):
                return default
        return cached_count / CACHE_SAMPLES

    def close(self) -> None:
        descriptors.release(self.buffer)
        super().close()


class Constant(ContiguousSource):
    """A source whose elements are all equal; runs use `operand` and `fill` instead of its bytes.

    storage: the file that stores the value, None for an argument such as `zeros:`.
    """

    is_reopenable = True  # any process can open it by its argument

    def __init__(
        self,
        name: str,
        metadata: ArrayMetadata,
        element: bytes,
        storage: Storage | None = None,
        warning: str | None = None,
    ) -> None:
        super().__init__(name, metadata, memoryview(element), storage, warning)
        self.element = element
        self._is_filled = False

    def operand(self, plan: Plan) -> Operand:
        """Return the operand of a gather: a slice, or an element, that all indices select."""
        from ndtool.engine import layouts
        from ndtool.engine.bind import Operand

        slice_shape = plan.slice_shape
        itemsize = len(self.element)
        strides = layouts.contiguous_strides(slice_shape, itemsize)
        nbytes = strides[0] * slice_shape[0] if slice_shape else itemsize
        if not 0 < nbytes <= PATTERN_SIZE:
            strides, nbytes = (0,) * len(slice_shape), itemsize
        pattern = memoryview(self.element * (nbytes // itemsize))
        return Operand(pattern, 0, (0,) * (len(self.metadata.shape) - len(slice_shape)) + strides)

    def fill(self, buffer: Buffer) -> None:
        """Fill a buffer with copies of the element."""
        if not any(self.element):
            step, pattern = PATTERN_SIZE, bytes(PATTERN_SIZE)
        else:
            step = PATTERN_SIZE // len(self.element) * len(self.element)
            pattern = self.element * (step // len(self.element))
        for start in range(0, len(buffer), step):
            n = min(step, len(buffer) - start)
            buffer[start : start + n] = memoryview(pattern)[:n]

    def load(self, *_: object, **options: object) -> memoryview:
        """Return all elements, whatever the arguments; zeros occupy no memory."""
        if not self._is_filled:
            self.buffer, self._is_filled = self._allocate(), True
        return self.buffer

    def read_bytes(self, start: int, buffer: memoryview) -> None:
        self.fill(buffer)

    def _allocate(self) -> memoryview:
        nbytes = self.metadata.nbytes
        try:
            if any(self.element) or not nbytes:
                from ndtool.storage import tempfiles

                label = f"temporary copy of {argument_name(self.name)}"
                buffer = tempfiles.allocate(nbytes, label)  # a file if it is large
                self.fill(buffer)
                return buffer.toreadonly()
            import mmap

            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            return memoryview(mmap.mmap(-1, nbytes, flags, mmap.PROT_READ))
        except (MemoryError, OSError, OverflowError, ValueError):
            raise ResourceError(
                f"{argument_name(self.name)}: not enough memory for {nbytes} bytes"
            ) from None


def trailing_bytes_warning(label: str, count: int) -> str | None:
    """Return the warning about `count` bytes after an array, None if there are none."""
    return f"{printable(label)}: {count} bytes after the array are ignored" if count else None


class Inputs(Protocol):
    """The open inputs of a call; spill: the directory for copies that do not fit in memory."""

    @property
    def inference(self) -> Inference: ...
    @property
    def sources(self) -> dict[str, Source]: ...
    @property
    def threads(self) -> int: ...
    @property
    def spill(self) -> str | None: ...


def load(
    call: Inputs, role: str, touched: AccessedElements | None = None, dry: bool = False
) -> Operand:
    """Load an input in its stored layout.

    touched: the elements to read, None for all. dry: whether to reserve the space without reading.
    """
    from ndtool.engine.bind import Operand

    source = call.sources[role]
    buffer = source.load(touched, call.threads, call.spill, dry)
    return Operand(buffer, 0, source.metadata.strides)


def row_major(
    call: Inputs,
    role: str,
    order: str,
    aligned: bool = False,
    dry: bool = False,
    operand: Operand | None = None,
) -> memoryview:
    """Return the bytes of an input in row-major order and byte order `order`; copy if necessary.

    aligned: whether addresses of elements must be multiples of their size. operand: the input, if
    it is loaded. dry: whether to reserve the space for the input and its copy without reading.
    """
    from ndtool.engine import layouts

    operand, source = operand or load(call, role, dry=dry), call.sources[role]
    name, dtype, shape = call.inference.inputs[role]
    buffer: memoryview = operand.buffer
    position = source.position if isinstance(source, ContiguousSource) else None
    is_aligned = not aligned or (position or 0) % dtype.itemsize == 0
    if is_aligned and layouts.is_normalized(shape, operand.strides, dtype, order):
        return buffer
    from ndtool.engine import copies
    from ndtool.storage import tempfiles

    label = f"temporary copy of {argument_name(name)}"
    with tempfiles.open_buffer(len(buffer), label, directory=call.spill) as (copy, write):
        if not dry:
            copies.write_normalized(operand, shape, dtype, order, write, call.threads)
    return copy.toreadonly()
