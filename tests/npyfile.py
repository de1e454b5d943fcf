"""Bytes of .npy files: of arrays, and of what a header claims; files of zeros that take no disk."""

import io
from typing import Any

import numpy as np

ARRAY = np.arange(24, dtype="<f4").reshape(2, 3, 4)


def npy(array: Any = ARRAY, pickled: bool = False) -> bytes:
    """Return what NumPy saves of an array."""
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=pickled)
    return stream.getvalue()
