"""Elements of 2, 4 and 6 bits: packed in files, from the lowest bits on; a byte each in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Group = tuple[int, int]  # (bytes, elements) of the smallest group of complete elements


def _smallest_group(bits: int) -> Group:
    return (3, 4) if bits == 6 else (1, 8 // bits)


def unpack_blocks(blocks: Iterable[bytes], bits: int) -> Iterator[bytes]:
    """Unpack elements to a byte each; the last elements may be padding."""
    group, remaining = _smallest_group(bits)[0], b""
    for block in blocks:
        remaining += block
        complete_bytes = len(remaining) // group * group
        yield unpack(remaining[:complete_bytes], bits)
        remaining = remaining[complete_bytes:]
    yield unpack(remaining + bytes(-len(remaining) % group), bits)


def unpack(raw: bytes, bits: int) -> bytes:
    """Unpack complete groups of elements."""
    import numpy as np

    nbytes, count = _smallest_group(bits)
    values = _join_bits(np.frombuffer(raw, np.uint8).reshape(-1, nbytes), 8)
    elements = np.empty((len(values), count), np.uint8)
    for k in range(count):
        elements[:, k] = values >> (bits * k) & ((1 << bits) - 1)
    return elements.tobytes()


def pack(raw: bytes, bits: int) -> bytes:
    """Pack the lowest bits of elements of a byte each; pad the last byte with zeros."""
    import numpy as np

    nbytes, count = _smallest_group(bits)
    raw += bytes(-len(raw) % count)
    elements = np.frombuffer(raw, np.uint8) & ((1 << bits) - 1)
    values = _join_bits(elements.reshape(-1, count), bits)
    packed = np.empty((len(values), nbytes), np.uint8)
    for k in range(nbytes):
        packed[:, k] = values >> (8 * k) & 0xFF
    return packed.tobytes()


def _join_bits(columns: Any, bits: int) -> Any:
    """Join the columns of each row to one integer, the first column in the lowest bits."""
    import numpy as np

    dtype = np.uint32 if columns.shape[1] * bits > 8 else np.uint8
    values: Any = np.zeros(len(columns), dtype)
    for k in range(columns.shape[1]):
        values |= columns[:, k].astype(dtype) << (bits * k)
    return values
