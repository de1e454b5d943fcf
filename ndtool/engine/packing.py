"""Elements of 2, 4 and 6 bits: packed in files, the first in the lowest bits; a byte each here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

Group = tuple[int, int]  # the fewest bytes that contain complete elements, and their number


def _group(bits: int) -> Group:
    return (3, 4) if bits == 6 else (1, 8 // bits)


def unpack_blocks(blocks: Iterable[bytes], bits: int) -> Iterator[bytes]:
    """Unpack elements to a byte each; the last bytes may be padding."""
    group, rest = _group(bits)[0], b""
    for block in blocks:
        rest += block
        whole = len(rest) // group * group
        yield unpack(rest[:whole], bits)
        rest = rest[whole:]
    yield unpack(rest + bytes(-len(rest) % group), bits)


def unpack(raw: bytes, bits: int) -> bytes:
    """Unpack complete groups of elements."""
    import numpy as np

    nbytes, count = _group(bits)
    values = _joined(np.frombuffer(raw, np.uint8).reshape(-1, nbytes), 8)
    found = np.empty((len(values), count), np.uint8)
    for k in range(count):
        found[:, k] = values >> (bits * k) & ((1 << bits) - 1)
    return found.tobytes()


def pack(raw: bytes, bits: int) -> bytes:
    """Pack elements of a byte each, of which only the lowest bits count; pad with zeros."""
    import numpy as np

    nbytes, count = _group(bits)
    raw += bytes(-len(raw) % count)
    elements = np.frombuffer(raw, np.uint8) & ((1 << bits) - 1)
    values = _joined(elements.reshape(-1, count), bits)
    found = np.empty((len(values), nbytes), np.uint8)
    for k in range(nbytes):
        found[:, k] = values >> (8 * k) & 0xFF
    return found.tobytes()


def _joined(columns: Any, bits: int) -> Any:
    """Join the columns of each row to one number, the first in the lowest bits."""
    import numpy as np

    number = np.uint32 if columns.shape[1] * bits > 8 else np.uint8
    values: Any = np.zeros(len(columns), number)
    for k in range(columns.shape[1]):
        values |= columns[:, k].astype(number) << (bits * k)
    return values
