"""Conversion of bytes to NumPy arrays, and of elements to text and JSON."""

import os
import sys
from math import isfinite
from typing import Any

import numpy as np
from numpy.lib.format import descr_to_dtype
from numpy.typing import NDArray

from ndtool.errors import UsageError, printable
from ndtool.rules.dtypes import EXTENSION_DTYPES, Dtype
from ndtool.rules.plans import Shape

EDGE_ITEMS = 3  # elements shown at each end of a long axis
MAX_ITEMSIZE = 256  # bytes of the largest element that is shown
# NumPy cannot format some arrays: dates without a unit, fields of too many axes.
_FORMAT_ERRORS = (ValueError, OverflowError)


def as_array(
    buffer: memoryview, dtype: Dtype, shape: Shape, strides: tuple[int, ...] | None = None
) -> NDArray[Any]:
    """Return a view of the bytes of an input or result as an array; strides: None for C order."""
    return np.ndarray(shape, _numpy_dtype(dtype), buffer, 0, strides)


def _numpy_dtype(dtype: Dtype) -> np.dtype[Any]:
    if dtype.name not in EXTENSION_DTYPES:
        try:
            numpy_dtype: np.dtype[Any] = descr_to_dtype(dtype.descr)
        except TypeError:  # the size of long double depends on the machine
            raise UsageError(
                f"{dtype.name} is not one of NumPy's types on this machine",
                hint="operators without arithmetic can still copy its elements from file to file",
            ) from None
        return numpy_dtype
    try:
        import ml_dtypes

        extended_dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, dtype.name))
    except (ImportError, AttributeError):  # older versions lack some types
        raise UsageError(
            f"{dtype.name} is not one of NumPy's types: it needs the package ml_dtypes",
            hint="pip install --upgrade 'ndtool[ml]'",
        ) from None
    return extended_dtype


def format_array(array: NDArray[Any], summarize: bool) -> str:
    """Return an array as lines of text; summarize: whether to show only both ends of long axes."""
    width = _terminal_columns()
    lines = _array_text(array, width, summarize).split("\n")
    return "\n".join([printable(line, max(width, 20)) for line in lines]) + "\n"


def element(array: NDArray[Any]) -> str:
    """Return the element of a 0-d array as text."""
    if array.dtype.itemsize > MAX_ITEMSIZE:
        return f"{array.dtype.itemsize} bytes"
    try:
        return str(_escape_strings(array)[()])
    except _FORMAT_ERRORS:
        return str(as_void(array)[()])


def short_text(array: NDArray[Any]) -> str:
    """Return the element of a 0-d array as text of at most 80 characters."""
    return printable(element(array), 80)


def json_value(array: NDArray[Any]) -> bool | int | float | str:
    """Return the element of a 0-d array as a JSON value, as text if a JSON number is not exact.

    Floats of at most 64 bits and integers of magnitude at most 2^53 are exact.
    """
    is_extended = array.dtype.isbuiltin == 2  # registered by another package, such as bfloat16
    if array.dtype.kind in "biu" and abs(int(array)) <= 2**53:
        return bool(array) if array.dtype.kind == "b" else int(array)
    if is_extended or (array.dtype.kind == "f" and array.dtype.itemsize <= 8):
        value = float(array)
        return value if isfinite(value) else str(value)
    return element(array)


def _array_text(array: NDArray[Any], width: int, summarize: bool) -> str:
    layout: dict[str, Any] = {
        "max_line_width": width,
        "threshold": 0 if summarize else array.size,
        "edgeitems": EDGE_ITEMS,
        "suppress_small": True,
    }
    try:
        return np.array2string(_escape_strings(array), **layout)
    except _FORMAT_ERRORS:
        return np.array2string(as_void(array), **layout)


def _escape_strings(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array with invalid code points in its strings escaped."""
    if array.dtype.names is not None:
        given = (array[name] for name in array.dtype.names)
        # An empty field, such as of 2^31 rows, gets a shape of size 0.
        fields = [_escape_strings(f if f.size else f.reshape(*array.shape, 0)) for f in given]
        shapes = [field.shape[array.ndim :] for field in fields]
        formats = [(p.dtype, s) if s else p.dtype for p, s in zip(fields, shapes, strict=True)]
        names = [f"f{i}" for i in range(len(fields))]  # NumPy cannot format a field named ""
        result = np.empty(array.shape, np.dtype({"names": names, "formats": formats}))
        for name, field in zip(names, fields, strict=True):
            result[name] = field
        return result
    if array.dtype.kind != "U":
        return array
    order, length = array.dtype.str[0], array.dtype.itemsize // 4
    code_points = np.ndarray((array.size, length), f"{order}u4", array.tobytes())
    texts = [
        "".join(chr(c) if c <= sys.maxunicode else f"\\U{c:08x}" for c in text)
        for text in code_points.tolist()
    ]
    return np.array(texts, np.str_).reshape(array.shape)


def as_void(array: NDArray[Any]) -> NDArray[Any]:
    """Return the array as void bytes, as copies of records would drop padding between fields."""
    return array.view(f"V{array.dtype.itemsize}")


def _terminal_columns() -> int:
    try:
        return os.get_terminal_size(1).columns or 80
    except OSError:
        return 80
