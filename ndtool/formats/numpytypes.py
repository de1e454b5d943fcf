"""NumPy's dtype of an element type, and the element type of NumPy's dtype."""

from __future__ import annotations

from typing import Any

from ndtool.errors import DtypeError
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape


def numpy_dtype(dtype: Dtype) -> Any:
    """Return NumPy's dtype of an element type; DtypeError if this machine lacks it."""
    import numpy as np
    from numpy.lib.format import descr_to_dtype

    try:
        return descr_to_dtype(dtype.descr) if not isinstance(dtype.descr, np.dtype) else dtype.descr
    except TypeError:
        raise DtypeError(f"{dtype.name} is not one of NumPy's types on this machine") from None


def pad_chunk(chunk: Any, shape: Shape) -> Any:
    """Pad a chunk at the end of an axis with zeros to the chunk shape."""
    import numpy as np

    if chunk.shape == shape:
        return chunk
    full = np.zeros(shape, chunk.dtype)
    full[tuple(map(slice, chunk.shape))] = chunk
    return full


def from_numpy(dtype: Any) -> Dtype:
    """Return the element type of a dtype, which may be structured; DtypeError if unsupported."""
    from numpy.lib.format import drop_metadata, dtype_to_descr

    return dtypes.from_descr(dtype_to_descr(drop_metadata(dtype)))
