"""Arrays of other libraries as NumPy's, over the same memory, and results as theirs.

A library is known by its types' module: none is imported that the caller has not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.errors import DtypeError, UsageError, shown

Array = NDArray[Any]


def library(value: object) -> str:
    """Return the name of the library that a value's type is from; nothing where it says none."""
    try:
        return str.partition(type(value).__module__, ".")[0]
    except Exception:  # a type may have any object there
        return ""


def is_tensor(value: object) -> bool:
    """Whether a value is torch's."""
    kind = getattr(sys.modules.get("torch"), "Tensor", ())  # there as soon as a tensor is
    return issubclass(type(value), kind)


def viewed(name: str, value: object) -> Array | None:
    """Return an array of another library as an ndarray; None where NumPy itself knows how.

    Nothing is copied that stands in this machine's memory. Raises DtypeError for what would have
    to be loaded, moved or filled in first, and says by which call.
    """
    if is_tensor(value):
        return _from_torch(name, value)
    refused = _REFUSED.get(library(value))
    if refused is not None:
        raise DtypeError(f"{name} is a {type(value).__name__} {refused}")
    view = _VIEWS.get(library(value))
    return None if view is None else view(name, value)


def like(value: object, result: Array) -> Any:
    """Return a result as an array of the library that `value` is from, torch's or JAX's."""
    if is_tensor(value):
        return _tensor(result)
    if library(value) in _JAX:
        return _jax_array(result)
    return result


def _jax_array(result: Array) -> Any:
    jax: Any = sys.modules["jax"]
    made = jax.numpy.asarray(result)
    if made.dtype == result.dtype:
        return made
    # data of 64 bits, where JAX is set to make none: it would cut the values
    wide = jax if hasattr(jax, "enable_x64") else jax.experimental  # where older ones have it
    with wide.enable_x64(True):
        return jax.numpy.asarray(result)


def _from_torch(name: str, value: Any) -> Array:
    torch: Any = sys.modules["torch"]
    what = f"{name} is a torch tensor"
    if value.device.type == "meta":
        raise DtypeError(f"{what} on meta, which has no elements")
    if value.device.type != "cpu":
        raise DtypeError(f"{what} on {value.device}: pass {name}.cpu()")
    if value.layout != torch.strided or value.is_quantized:
        raise DtypeError(f"{what} that is sparse or quantized: pass a dense one")
    plain = value.detach().resolve_conj().resolve_neg()
    kind = str(value.dtype).removeprefix("torch.")
    try:
        return plain.numpy()  # type: ignore[no-any-return]
    except TypeError:  # a type that NumPy lacks
        bits = {1: torch.uint8, 2: torch.int16}.get(value.element_size())
        extended = None if bits is None else _extended(kind)
        if extended is None:
            raise DtypeError(f"{what} of {kind}, which NumPy has no type for") from None
        return plain.view(bits).numpy().view(extended)  # type: ignore[no-any-return]


def require_plain(name: str, value: Any) -> None:
    """Refuse a torch tensor to which a write would not be seen, or not by its gradient."""
    if getattr(value, "requires_grad", False):
        raise DtypeError(f"{name} is a torch tensor that requires grad: pass {name}.detach()")
    if value.is_conj() or value.is_neg():
        raise DtypeError(f"{name} is a lazy view of a torch tensor: pass one of its own memory")


def _tensor(result: Array) -> Any:
    torch: Any = sys.modules["torch"]
    kind = result.dtype.name
    if getattr(np, kind, None) is None and hasattr(torch, kind):
        bits = {1: np.uint8, 2: np.int16}[result.dtype.itemsize]
        return torch.from_numpy(result.view(bits)).view(getattr(torch, kind))
    return torch.from_numpy(result)


def _extended(kind: str) -> np.dtype[Any] | None:
    """Return ml_dtypes' type of a name, None where it has none."""
    try:
        import ml_dtypes
    except ImportError:
        raise UsageError(
            f"{shown(kind, str)} is not one of NumPy's types: it needs the package ml_dtypes",
            hint="pip install 'ndtool[ml]'",
        ) from None
    known = getattr(ml_dtypes, kind, None)
    return None if known is None else np.dtype(known)


def _from_polars(name: str, value: Any) -> Array | None:
    """Refuse gaps and several types, of which NumPy would make floats and NaN."""
    polars: Any = sys.modules.get(library(value))
    if polars is None:
        return None
    columns = value.get_columns() if isinstance(value, polars.DataFrame) else [value]
    if not all(isinstance(column, polars.Series) for column in columns):
        return None
    parts = [part for column in columns for part in _parts(polars, column)]
    what = f"{name} is a polars {type(value).__name__}"
    if any(part.null_count() for part in parts):
        raise DtypeError(f"{what} with nulls: fill them first")
    kinds = list(dict.fromkeys(str(part.dtype) for part in parts if not part.dtype.is_nested()))
    if len(kinds) > 1:
        raise DtypeError(f"{what} of {', '.join(kinds[:5])}: cast them to one type")
    return np.asarray(value)


def _parts(polars: Any, column: Any) -> list[Any]:
    """Return a column, and where its elements are arrays or records, all that they are made of."""
    inner = []
    if isinstance(column.dtype, polars.Array):
        inner = [column.explode()]
    elif isinstance(column.dtype, polars.Struct):
        inner = column.struct.unnest().get_columns()
    return [column, *(part for one in inner for part in _parts(polars, one))]


_JAX = ("jax", "jaxlib")
_VIEWS: dict[str, Callable[[str, Any], Array | None]] = {"polars": _from_polars}
_LAZY = "that NumPy would load whole: pass a part of it,"
_REFUSED = {
    "cupy": "on a GPU: pass its .get()",
    "zarr": f"{_LAZY} such as array[:], or give its store's name to ndtool.files",
    "dask": f"{_LAZY} such as its .compute()",
}
