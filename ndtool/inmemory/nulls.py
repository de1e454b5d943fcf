"""Refusal of nulls, masks and mixed dtypes, which NumPy silently converts.

The checks use attribute names that array and table libraries share, and import no library.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.errors import DtypeError

Array = NDArray[Any]


def is_masked(kind: type) -> bool:
    """Return whether a type is a NumPy masked array, or an element of one."""
    masks = sys.modules.get("numpy.ma")  # loaded as soon as a masked array exists
    return masks is not None and issubclass(kind, masks.MaskedArray)


def describe(name: str, value: object) -> str:
    """Return the start of an error message: the name of an argument, its library and type."""
    owner = library(type(value))
    prefix = "" if owner in ("", "builtins", "__main__") else f"{owner} "
    return f"{name} is a {prefix}{type(value).__name__}"


def libraries(value: object) -> list[str]:
    """Return the names of the libraries that define a value's type and its base classes."""
    return list(map(library, type(value).__mro__))


def library(kind: type) -> str:
    """Return the name of the library that defines a type, "" if unknown."""
    try:
        return str.partition(kind.__module__, ".")[0]
    except Exception:  # __module__ may be any object
        return ""


def attribute(value: Any, name: str) -> Any:
    """Return an attribute of an array, None if it is missing, or a column or field of a table."""
    columns = hasattr(type(value), "isna") or issubclass(type(value), np.ndarray | np.generic)
    if columns and not hasattr(type(value), name):
        return None
    return getattr(value, name, None)


def require_unmasked(name: str, value: Any) -> None:
    """Raise DtypeError for an array with a mask, even if no element is masked."""
    if is_masked(type(value)):
        values = "" if name == "out" else f" {name}.filled(...), or"
        raise DtypeError(
            f"{name} is a masked array, and ndtool does not support masks: pass{values} {name}.data"
        )
    try:
        mask = attribute(value, "mask")
    except Exception:  # an unrelated property called mask
        mask = None
    if mask is None and not issubclass(type(value), np.ndarray):
        interface = getattr(value, "__array_interface__", None)
        mask = interface.get("mask") if isinstance(interface, dict) else None
    if mask is not None and not callable(mask) and np.asarray(mask).dtype.kind in "biu":
        raise DtypeError(
            f"{describe(name, value)} with a mask, and ndtool does not support masks: fill it first"
        )


def require_no_nulls(name: str, value: Any) -> None:
    """Raise DtypeError for an array or table with nulls, or with columns of different dtypes."""
    subject = describe(name, value)
    columns = [nested for column in _columns(value) for nested in _underlying_columns(column)]
    if any(map(_has_nulls, columns)):
        calls = [call for call in ("fill_null", "fillna") if hasattr(type(value), call)]
        example = "".join(f", as {name}.{call}(...) does" for call in calls[:1])
        raise DtypeError(f"{subject} with nulls: fill them first{example}")
    kinds = [_library_dtype(column) for column in columns if not _is_nested(column)]
    if any(str(kind) != str(kinds[0]) or kind != kinds[0] for kind in kinds):
        names = list(dict.fromkeys(map(str, kinds)))
        raise DtypeError(f"{subject} of {', '.join(names[:5])}: cast its columns to one type")


def require_same_dtype(name: str, value: Any, converted: Array) -> None:
    """Raise DtypeError if NumPy converted an array to a masked array or to another dtype."""
    subject = describe(name, value)
    if is_masked(type(converted)):
        raise DtypeError(
            f"{subject} that NumPy converts to a masked array, and ndtool does not support masks:"
            " fill it first"
        )
    kind = _library_dtype(value)
    if isinstance(kind, np.dtype):
        changed = converted.dtype != kind
    else:
        changed = _loses_integers(kind, converted)
    if changed and not converted.dtype.hasobject:
        raise DtypeError(
            f"{subject} of {kind}, which NumPy would convert to {converted.dtype}: cast it first"
        )


def _loses_integers(kind: object, converted: Array) -> bool:
    """Return whether another library's dtype is integral but NumPy's conversion is not."""
    name = str(kind).lower() if kind is not None else ""
    return name.startswith(("int", "uint")) and converted.dtype.kind not in "iu"


def _columns(value: Any) -> list[Any]:
    """Return the columns of a table; an array counts as one column."""
    for name in ("get_columns", "itercolumns"):  # polars; pyarrow
        columns = attribute(value, name)
        if callable(columns):
            return list(columns())
    items = attribute(value, "items")  # pandas
    if attribute(value, "columns") is not None and callable(items):
        return [column for _, column in items()]
    return [value]


def _underlying_columns(column: Any) -> list[Any]:
    """Return the columns that store a column: pandas' pyarrow array, elements of nested columns."""
    if hasattr(_library_dtype(column), "pyarrow_dtype"):
        return _underlying_columns(getattr(column, "array", column).__arrow_array__())
    if hasattr(_library_dtype(column), "value_field"):  # pyarrow's lists
        chunks = getattr(column, "chunks", [column])
        values = [nested for chunk in chunks for nested in _underlying_columns(chunk.flatten())]
        return [column, *values]
    polars: Any = sys.modules.get("polars")
    if polars is None or not isinstance(column, polars.Series):
        return [column]
    children = []
    if isinstance(column.dtype, polars.Array | polars.List):
        children = [column.explode()]
    elif isinstance(column.dtype, polars.Struct):
        children = column.struct.unnest().get_columns()
    return [column, *(nested for child in children for nested in _underlying_columns(child))]


def without_rows(column: Any) -> Array:
    """Return a column without rows as an array, with an axis for the elements of each list."""
    shape = [0]
    while True:
        dtype = _library_dtype(column)
        if hasattr(dtype, "pyarrow_dtype"):
            column = getattr(column, "array", column).__arrow_array__()
        elif hasattr(dtype, "value_field"):
            joined = column.combine_chunks() if hasattr(column, "chunks") else column
            column = joined.flatten()
            shape.append(getattr(dtype, "list_size", 0))
        elif hasattr(dtype, "inner") and library(type(column)) == "polars":
            column = column.explode()
            shape.append(0)
        else:
            elements = np.asarray(column)
            return elements.reshape(*shape, *elements.shape[1:])


def _is_nested(column: Any) -> bool:
    """Return whether a column has elements that are lists, arrays or structs."""
    dtype = _library_dtype(column)
    nested = getattr(dtype, "is_nested", None)
    return hasattr(dtype, "value_field") or (callable(nested) and bool(nested()))


def _has_nulls(column: Any) -> bool:
    count = attribute(column, "null_count")  # pyarrow, polars
    if callable(count):
        count = count()
    if count:
        return True
    if hasattr(_library_dtype(column), "value_type"):  # pyarrow dictionaries
        return bool(np.any(column.is_null()))
    isna = attribute(column, "isna")  # pandas; NaN in a column of a NumPy dtype is no null
    if isinstance(_library_dtype(column), np.dtype) or not callable(isna):
        return False
    return bool(np.any(isna()))


def _library_dtype(value: Any) -> Any:
    """Return an array's dtype, as its library gives it, or None."""
    for name in ("dtype", "type"):
        kind = attribute(value, name)
        if kind is not None and not callable(kind):
            return kind
    return None
