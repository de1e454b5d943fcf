"""Indices as numbers within bounds, for what looks at them with NumPy."""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def within(indices: NDArray[Any], size: int, rule: str) -> NDArray[np.int64]:
    """Return indices of an axis counted from the front, those out of bounds as a rule has them.

    Where it has none for them, and that of an index is "fill" or "drop", they become `size`.
    """
    if indices.dtype.kind == "u":
        wide = indices.astype(np.uint64)
        wrapped = (wide % np.uint64(max(size, 1))).astype(np.int64)
        front = np.minimum(wide, np.uint64(size)).astype(np.int64)
    else:
        signed = indices.astype(np.int64)
        wrapped = signed % np.int64(max(size, 1))
        front = signed + np.where(signed < 0, np.int64(size), np.int64(0))
    if rule == "clip":
        return front.clip(0, size - 1)
    outside = (front < 0) | (front >= size)
    return np.where(outside, wrapped if rule == "wrap" else np.int64(size), front)
