"""Normalization of indices with NumPy, for all but the kernels and the oracle."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.rules.operators import MODES, Attributes


def normalize_indices(
    indices: NDArray[Any], size: int, attributes: Attributes
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return indices along an axis as nonnegative ones, and a mask of those out of bounds.

    The mode redirects indices out of bounds; those that it does not redirect, and padding, become
    `size`. The mask has neither padding nor redirected indices.
    """
    # int64 and uint64 hold every index, in native byte order
    values = indices.astype(np.uint64 if indices.dtype.kind == "u" else np.int64)
    limit, redirect = values.dtype.type(size), MODES[attributes.out_of_bounds].redirect
    coordinates = values + (values < 0) * limit if attributes.negatives else values.copy()
    invalid: NDArray[np.bool_] = (coordinates < 0) | (coordinates >= limit)
    padded = np.zeros_like(invalid) if attributes.pad is None else values == attributes.pad
    skipped = invalid | padded
    if redirect is not None and size:
        redirected = np.asarray(redirect(values, limit)).astype(values.dtype)
        coordinates = np.where(invalid, redirected, coordinates)
        skipped, invalid = padded, np.zeros_like(invalid)
    return np.where(skipped, limit, coordinates).astype(np.int64), invalid & ~padded
