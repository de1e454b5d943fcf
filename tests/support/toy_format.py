"""The smallest chunked format: the complete contract of a new one.

A line `TOY dtype|shape|grid`, then the blocks in row-major order of the grid, each in row-major
order of its elements.
"""

from math import prod
from typing import Any

import numpy as np

from ndtool.arrays.assembly import ChunkedSource
from ndtool.arrays.sink import Sink, Unpublished
from ndtool.arrays.source import ArrayMetadata, MemberInfo
from ndtool.errors import DtypeError, InputError, NdtoolError, OutputError, printable
from ndtool.publish.newfile import new_file
from ndtool.publish.targets import Target
from ndtool.rules import dtypes, grid
from ndtool.storage.descriptors import failure, reserve, write_at

MAGIC = b"TOY "
_BLOCKS = 8  # approximate blocks of outputs along an axis, and at least three elements each


def recognises(storage: Any) -> bool:
    return bool(storage.peek(0, len(MAGIC)) == MAGIC)


def entries(storage: Any, path: str, member: str | None) -> list[MemberInfo]:
    metadata, start = _facts(storage, path)
    return [MemberInfo(path, member, metadata, None, f"blocks from byte {start} on", None)]


def open_source(storage: Any, name: str, path: str, member: str | None) -> "Blocks":
    return Blocks(storage, name, *_facts(storage, name))


def create(target: Target, metadata: ArrayMetadata) -> "BlockSink":
    return BlockSink(target, metadata)


def _facts(storage: Any, name: str) -> tuple[ArrayMetadata, int]:
    line, newline, _ = storage.peek(0, 1000).partition(b"\n")
    try:
        code, *sizes = line.removeprefix(MAGIC).decode("ascii").rsplit("|", 2)
        shape, step = (tuple(map(int, text.split(",") if text else ())) for text in sizes)
        dtype = dtypes.from_code(code)
        least = (min(size, 1) for size in shape)  # a block has elements only within the array
        if not newline or min(shape, default=0) < 0 or len(shape) != len(step):
            raise ValueError("sizes")
        if any(one < needed for one, needed in zip(step, least, strict=True)):
            raise ValueError("sizes")
    except (ValueError, DtypeError):
        raise InputError(f"{printable(name)}: no line `TOY dtype|shape|grid`") from None
    metadata = ArrayMetadata(dtype, shape, "C", step, {"toy_header": len(line) + 1})
    if len(line) + 1 + metadata.nbytes != storage.size:
        raise InputError(f"{printable(name)}: {storage.size} bytes do not fit the header")
    return metadata, len(line) + 1


class Blocks(ChunkedSource):
    """A source of several blocks."""

    def __init__(self, storage: Any, name: str, metadata: ArrayMetadata, start: int) -> None:
        self.name, self.metadata = name, metadata
        self._storage, self._start = storage, start

    def read_chunk(self, index: int, box: grid.Box) -> Any:
        at = self._start + sum(_nbytes(self.metadata, n) for n in range(index))
        storage: Any = self._storage
        raw = storage.read(at, _nbytes(self.metadata, index), self.name)
        return np.frombuffer(raw, self.metadata.dtype.descr).reshape(grid.box_shape(box))


class BlockSink(Sink):
    """A sink of several blocks."""

    def __init__(self, target: Target, metadata: ArrayMetadata) -> None:
        self.name = target.path
        self.metadata = metadata._replace(
            block_shape=tuple(min(max(3, size // _BLOCKS), size) for size in metadata.shape)
        )
        text = "|".join(
            [
                metadata.dtype.descr,
                *(",".join(map(str, s)) for s in (metadata.shape, self.metadata.block_shape)),
            ]
        )
        header = MAGIC + text.encode() + b"\n"
        self._start = len(header)
        try:
            self._file = new_file(target)
            try:
                reserve(self._file.descriptor, self._start + metadata.nbytes, self.name)
                write_at(self._file.descriptor, 0, header)
            except BaseException:
                self._file.drop()
                raise
        except OSError as exc:
            raise self._failed(exc) from None

    def write(self, start: int, view: memoryview, block: int = 0) -> None:
        at = self._start + sum(_nbytes(self.metadata, n) for n in range(block))
        try:
            write_at(self._file.descriptor, at + start, view)
        except OSError as exc:
            raise self._failed(exc) from None

    def finish(self) -> Unpublished:
        self._file.sync()
        return self._file

    def abort(self) -> None:
        self._file.drop()

    def _failed(self, exc: OSError) -> NdtoolError:
        return exc if isinstance(exc, NdtoolError) else failure(exc, self.name, OutputError)


def _nbytes(metadata: ArrayMetadata, number: int) -> int:
    box = grid.box(metadata.shape, metadata.block_shape, number)
    return prod(stop - first for first, stop in box) * metadata.dtype.itemsize
