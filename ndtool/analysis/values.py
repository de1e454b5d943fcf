"""Elements as NumPy has them, and as people read them."""

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.errors import UsageError, printable
from ndtool.rules.dtypes import EXTENDED, Dtype
from ndtool.rules.shapes import Shape

_SHOWN = 1000  # elements of a preview
_EDGE = 3  # elements at both ends of a long axis
_WIDEST = 256  # bytes of an element that is shown


def as_array(buffer: memoryview, dtype: Dtype, shape: Shape, fortran: bool = False) -> NDArray[Any]:
    """Return the array over an input's or a result's bytes, without a copy."""
    return np.ndarray(shape, _numpy(dtype), buffer, order="F" if fortran else "C")


def _numpy(dtype: Dtype) -> np.dtype[Any]:
    if dtype.name not in EXTENDED:
        try:
            known: np.dtype[Any] = np.dtype(dtype.descr)
        except TypeError:  # long doubles have other sizes on other machines
            raise UsageError(
                f"{dtype.name} is not one of NumPy's types on this machine",
                hint="elements of it can be moved from file to file",
            ) from None
        return known
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(
            f"{dtype.name} is not one of NumPy's types: it needs the package ml_dtypes",
            hint="pip install 'ndtool[ml]'",
        ) from None
    extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype.name))
    return extended


def preview(array: NDArray[Any], title: str) -> str:
    """Return a title and the array, in so few lines that any array can be shown."""
    if array.dtype.itemsize > _WIDEST:
        return f"{title}\nelements of {array.dtype.itemsize} bytes are not shown\n"
    rank, count = array.ndim, 1
    for axis in range(array.ndim - 1, -1, -1):
        count *= min(array.shape[axis], 2 * _EDGE + 1)
        if count > _SHOWN:
            break
        rank = axis
    corner = ""
    if rank and array.size:
        corner = "[" + "0, " * rank + "...] of "
        array = array[(0,) * rank + (...,)]
    width = _columns()
    text = np.array2string(
        array, max_line_width=width, threshold=_SHOWN // 10, edgeitems=_EDGE, suppress_small=True
    )
    lines = [printable(line, max(width, 20)) for line in text.split("\n")]
    return "\n".join([corner + title, *lines]) + "\n"


def _columns() -> int:
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80
