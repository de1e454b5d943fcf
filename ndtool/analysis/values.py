"""Conversion of bytes to NumPy arrays, and of elements to text and JSON."""

import os
import sys
from math import isfinite
from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype
from numpy.typing import NDArray

from ndtool.errors import UsageError, printable
from ndtool.rules.dtypes import EXTENDED, Dtype
from ndtool.rules.plans import Shape

EDGE_ITEMS = 3  # elements shown at each end of a long axis
MAX_ITEMSIZE = 256  # bytes of the largest element to show
# Dates without a unit, fields of too many axes: NumPy holds some arrays that it cannot write.
_UNWRITABLE = (ValueError, OverflowError)


def as_array(buffer: memoryview, dtype: Dtype, shape: Shape, fortran: bool = False) -> NDArray[Any]:
    """Return the array over an input's or a result's bytes, without a copy."""
    return np.ndarray(shape, _numpy(dtype), buffer, order="F" if fortran else "C")


def _numpy(dtype: Dtype) -> np.dtype[Any]:
    if dtype.name not in EXTENDED:
        try:
            plain_dtype: np.dtype[Any] = descr_to_dtype(dtype.descr)
        except TypeError:  # long doubles have other sizes on other machines
            raise UsageError(
                f"{dtype.name} is not one of NumPy's types on this machine",
                hint="operators without arithmetic can still copy its elements from file to file",
            ) from None
        return plain_dtype
    try:
        import ml_dtypes

        extended: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype.name))
    except (ImportError, AttributeError):  # an older one lacks some of the types
        raise UsageError(
            f"{dtype.name} is not one of NumPy's types: it needs the package ml_dtypes",
            hint="pip install --upgrade 'ndtool[ml]'",
        ) from None
    return extended


def format_array(array: NDArray[Any], gaps: bool) -> str:
    """Return an array as lines of text; gaps: whether to show only the ends of long axes."""
    width = _columns()
    written = _text(array, width, gaps).split("\n")
    return "\n".join([printable(line, max(width, 20)) for line in written]) + "\n"


def element(array: NDArray[Any]) -> str:
    """Return the element of a 0-d array as text."""
    if array.dtype.itemsize > MAX_ITEMSIZE:
        return f"{array.dtype.itemsize} bytes"
    try:
        return str(_legible(array)[()])
    except _UNWRITABLE:
        return str(as_void(array)[()])


def short_text(array: NDArray[Any]) -> str:
    """Return the element of a 0-d array as text of at most 80 characters."""
    return printable(element(array), 80)


def json_value(array: NDArray[Any]) -> bool | int | float | str:
    """Return the element of a 0-d array as a JSON value, as text if JSON has no exact one.

    Numbers are exact: floats of at most 64 bits, integers of magnitude at most 2^53.
    """
    extended = array.dtype.isbuiltin == 2  # registered by another package, such as bfloat16
    if array.dtype.kind in "biu" and abs(int(array)) <= 2**53:
        return bool(array) if array.dtype.kind == "b" else int(array)
    if extended or (array.dtype.kind == "f" and array.dtype.itemsize <= 8):
        value = float(array)
        return value if isfinite(value) else str(value)
    return element(array)


def _text(array: NDArray[Any], width: int, gaps: bool) -> str:
    layout: dict[str, Any] = {
        "max_line_width": width,
        "threshold": 0 if gaps else array.size,
        "edgeitems": EDGE_ITEMS,
        "suppress_small": True,
    }
    try:
        return np.array2string(_legible(array), **layout)
    except _UNWRITABLE:
        return np.array2string(as_void(array), **layout)


def _legible(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array with invalid code points in its strings escaped."""
    if array.dtype.names is not None:
        fields = [_legible(_short(array[name], array)) for name in array.dtype.names]
        shapes = [field.shape[array.ndim :] for field in fields]
        formats = [(p.dtype, s) if s else p.dtype for p, s in zip(fields, shapes, strict=True)]
        names = [f"f{i}" for i in range(len(fields))]  # NumPy writes no record with the name ""
        result = np.empty(array.shape, np.dtype({"names": names, "formats": formats}))
        for name, field in zip(names, fields, strict=True):
            result[name] = field
        return result
    if array.dtype.kind != "U":
        return array
    order, length = array.dtype.str[0], array.dtype.itemsize // 4
    points = np.ndarray((array.size, length), f"{order}u4", array.tobytes())
    texts = ["".join(map(_character, text)) for text in points.tolist()]
    return np.array(texts, np.str_).reshape(array.shape)


def _short(field: NDArray[Any], array: NDArray[Any]) -> NDArray[Any]:
    """Return a field of records; reshaped if empty, such as 2^31 rows of no elements."""
    return field if field.size else field.reshape(*array.shape, 0)


def _character(point: int) -> str:
    return chr(point) if point <= sys.maxunicode else f"\\U{point:08x}"


def as_void(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array as void bytes: copies of records would drop the padding of fields."""
    return array.view(f"V{array.dtype.itemsize}")


def _columns() -> int:
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80
