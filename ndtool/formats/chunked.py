"""Sizes of chunks: their limit, and the default."""

from __future__ import annotations

from math import prod

from ndtool.errors import ResourceError, printable
from ndtool.rules.plans import Shape

MAX_CHUNK_BYTES = 1 << 31  # limited because each thread has a chunk in memory


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
