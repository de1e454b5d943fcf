"""Bytes of .npy files, with valid or arbitrary headers, and sparse files of zeros."""

import io
from math import prod
from typing import Any

import numpy as np

ARRAY = np.arange(24, dtype="<f4").reshape(2, 3, 4)


def npy(array: Any = ARRAY, pickled: bool = False) -> bytes:
    """Return the bytes that NumPy saves for an array."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickled)
    return stream.getvalue()


def npy_with_header(
    text: str, payload: bytes = b"", version: tuple[int, int] = (1, 0), length: int | None = None
) -> bytes:
    """Return a .npy file with any text as its header, and optionally a wrong header length."""
    raw = text.encode("latin-1")
    count = len(raw) if length is None else length
    width = 2 if version == (1, 0) else 4
    return b"\x93NUMPY" + bytes(version) + count.to_bytes(width, "little") + raw + payload


def write_sparse(name: str, descr: str, shape: tuple[int, ...], fortran: bool = False) -> int:
    """Write an array of zeros as a sparse file; return the offset of its data."""
    with open(name, "wb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": descr, "fortran_order": fortran, "shape": shape}
        )
        start = file.tell()
        file.truncate(start + prod(shape) * np.dtype(descr).itemsize)
    return start
