"""Normalization of indices with NumPy: negative and out-of-bounds indices become valid."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.rules.modes import MODES
from ndtool.rules.operators import Attributes


def normalize_indices(
    indices: NDArray[Any], size: int, attributes: Attributes
) -> NDArray[np.int64]:
    """Return indices of an axis as nonnegative indices; the mode redirects those out of bounds.

    If the mode does not redirect, or `size` is 0, indices out of bounds become `size`. The caller
    handles padding.
    """
    values = indices.astype(np.uint64 if indices.dtype.kind == "u" else np.int64)
    limit, redirect = values.dtype.type(size), MODES[attributes.out_of_bounds].redirect
    nonnegative = values + (values < 0) * limit if attributes.negatives else values
    invalid = (nonnegative < 0) | (nonnegative >= limit)
    if redirect is None or not size:
        normalized = np.where(invalid, limit, nonnegative)
    else:
        normalized = np.where(invalid, redirect(values, limit), nonnegative)
    return normalized.astype(np.int64)
