"""Sources of arrays in chunks: a block is a chunk, which is decoded with its codecs."""

from __future__ import annotations

from math import prod
from typing import Any

from ndtool.arrays import assembly
from ndtool.errors import ResourceError, printable
from ndtool.formats.decoding import library_errors
from ndtool.formats.numpytypes import numpy_dtype
from ndtool.rules import grid
from ndtool.rules.grid import Box
from ndtool.rules.plans import Shape

MAX_CHUNK_BYTES = 1 << 31  # limited because each thread has a chunk in memory


class ChunkedSource(assembly.ChunkedSource):
    """Base class of the sources of chunked formats. fill: the element of missing chunks."""

    fill: Any = 0

    def read_chunk(self, index: int, box: Box) -> Any:
        """Read and decode the chunk at a box; return an array, None if the chunk is missing.

        A chunk at the end of an axis may have more elements than the box.
        """
        raise NotImplementedError

    def block(self, index: int) -> memoryview:
        import numpy as np

        box = grid.box(self.metadata.shape, self.metadata.block_shape, index)
        sizes = grid.box_shape(box)
        with library_errors(self.name):
            block = self.read_chunk(index, box)
            if block is None:
                block = np.empty(sizes, numpy_dtype(self.metadata.dtype))
                block[...] = self.fill
            block = block[(*map(slice, sizes), ...)]
        return assembly.as_bytes(block).toreadonly()


def require_chunk_size(label: str, nbytes: int) -> None:
    """Raise ResourceError if a chunk is larger than the limit."""
    if nbytes > MAX_CHUNK_BYTES:
        raise ResourceError(
            f"{printable(label)}: a chunk has {nbytes} bytes: at most {MAX_CHUNK_BYTES} are read at"
            " once"
        )


def default_chunks(shape: Shape, itemsize: int, nbytes: int = 1 << 20) -> Shape:
    """Return the shape of chunks of complete rows, of about `nbytes`."""
    sizes = [max(1, size) for size in shape]
    for axis in range(len(sizes)):
        slice_nbytes = prod(sizes) // sizes[axis] * itemsize
        sizes[axis] = min(sizes[axis], max(1, nbytes // slice_nbytes))
    return tuple(sizes)
