"""Protocol buffers built from bytes, including messages that ONNX's library refuses to write."""

from collections.abc import Iterable
from typing import Any

import numpy as np

# ONNX's codes of the element types that NumPy also has.
CODES = {
    "f4": 1, "u1": 2, "i1": 3, "u2": 4, "i2": 5, "i4": 6, "i8": 7, "b1": 9, "f2": 10, "f8": 11,
    "u4": 12, "u8": 13, "c8": 14, "c16": 15,
}  # fmt: skip


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    raw = b""
    while value >= 0x80:
        raw += bytes([value & 0x7F | 0x80])
        value >>= 7
    return raw + bytes([value])


def field(number: int, value: Any) -> bytes:
    """Return one field: a number as a varint, text and bytes with their length."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def fixed_field(number: int, raw: bytes) -> bytes:
    """Return a field of 4 or 8 bytes."""
    return varint(number << 3 | {4: 5, 8: 1}[len(raw)]) + raw


def packed_field(number: int, values: Iterable[int]) -> bytes:
    return field(number, b"".join(map(varint, values)))


def message(*fields: tuple[int, Any]) -> bytes:
    return b"".join(field(number, value) for number, value in fields)


def tensor(array: Any, name: str = "a") -> bytes:
    """Return a TensorProto with raw data."""
    array = np.asarray(array)
    little = array.astype(array.dtype.newbyteorder("<"))
    code = CODES[little.dtype.str[1:]]
    dims = [(1, size) for size in array.shape]
    return message(*dims, (2, code), (8, name), (9, little.tobytes()))


def pair(key: str, value: str) -> bytes:
    return message((1, key), (2, value))


def external_tensor(shape: tuple[int, ...], code: int = 1, **keys: str) -> bytes:
    """Return a TensorProto whose data are in another file."""
    dims = [(1, size) for size in shape]
    pairs = [(13, pair(key, value)) for key, value in keys.items()]
    return message(*dims, (2, code), (8, "a"), *pairs, (14, 1))


def model(*initializers: bytes, nodes: Iterable[bytes] = (), inputs: Iterable[str] = ()) -> bytes:
    graph = b"".join(field(1, node) for node in nodes) + field(2, "main")
    graph += b"".join(field(5, initializer) for initializer in initializers)
    graph += b"".join(field(11, message((1, name))) for name in inputs)
    return message((1, 10), (7, graph), (8, message((1, ""), (2, 18))))
