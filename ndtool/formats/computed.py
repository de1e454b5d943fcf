"""Arrays that are computed from another array when they are read, a block at a time."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Any

import numpy as np

from ndtool.arrays import assembly
from ndtool.arrays.assembly import ChunkedSource
from ndtool.arrays.source import ArrayMetadata, Source
from ndtool.formats.codecs import default_chunks
from ndtool.inmemory.arguments import rebase
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.grid import Box
from ndtool.rules.operators import Attributes
from ndtool.rules.plans import Shape

_BLOCK_BYTES = 1 << 16  # approximate


class ComputedSource(ChunkedSource):
    """A source whose blocks are computed.

    dtype: a NumPy type. compute: returns the block at an index of the grid and a box. origin: the
    source that blocks are computed from, which is closed with this one; None if there is none.
    block_shape: None to choose one.
    """

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: Shape,
        compute: Callable[[int, Box], Any],
        origin: Source | None,
        block_shape: Shape | None = None,
    ) -> None:
        element = dtypes.from_name(dtype)
        blocks = block_shape or default_chunks(shape, element.itemsize, _BLOCK_BYTES)
        self.name, self.origin, self._compute = name, origin, compute
        self.metadata = ArrayMetadata(element, shape, "C", blocks, {})
        if origin is not None:
            self.warning, self.concurrency = origin.warning, origin.concurrency

    def read_chunk(self, index: int, box: Box) -> Any:
        return self._compute(index, box)

    def require_unchanged(self) -> None:
        if self.origin is not None:
            self.origin.require_unchanged()

    def fingerprint(self) -> Any:
        return None if self.origin is None else self.origin.fingerprint()

    def is_same_file(self, fd: int) -> bool:
        return self.origin is not None and self.origin.is_same_file(fd)

    def close(self) -> None:
        if self.origin is not None:
            self.origin.close()


def rebased(source: Source, attributes: Attributes) -> Source:
    """Return indices that count from 0, computed from those of a source; itself if they do."""
    metadata, lock = source.metadata, Lock()
    if not attributes.rebases_indices or metadata.dtype.name not in dtypes.INTEGERS:
        return source

    def compute(index: int, box: Box) -> Any:
        if isinstance(source, ChunkedSource):
            stored = source.read_block(index, box).view(_code(metadata.dtype))
            return rebase(stored, attributes)
        with lock:
            stored = as_array(source)
        return rebase(stored[assembly.box_slices(box)], attributes)

    is_chunked = isinstance(source, ChunkedSource)
    blocks = metadata.block_shape if is_chunked else None
    return ComputedSource(source.name, "int64", metadata.shape, compute, source, blocks)


def as_array(source: Source, directory: str | None = None) -> Any:
    """Return all elements of a source of numbers; directory: of a large temporary copy."""
    metadata = source.metadata
    buffer = source.load(directory=directory)
    order: Any = metadata.order
    return np.ndarray(metadata.shape, _code(metadata.dtype), buffer, order=order)


def _code(dtype: Dtype) -> str:
    return f"{dtype.order}{dtype.kind}{dtype.itemsize}"
