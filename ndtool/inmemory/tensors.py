"""Conversion of arrays of other libraries to NumPy arrays without a copy, and of results back.

The module of an array's type identifies its library. No array library is imported.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ndtool.errors import DtypeError, format_value, import_extra
from ndtool.inmemory import nulls

Array = NDArray[Any]


def is_tensor(value: object) -> bool:
    """Return whether a value is a torch tensor."""
    kind = getattr(sys.modules.get("torch"), "Tensor", ())  # loaded if a tensor exists
    return issubclass(type(value), kind)


def as_ndarray(name: str, value: object) -> Array:
    """Return an array-like as an ndarray with the same values and dtype.

    Memory that NumPy can address is not copied. Raises DtypeError for an array that must be
    loaded, moved, filled or cast first; the message names the call that does it.
    """
    if issubclass(type(value), np.ndarray):
        nulls.require_unmasked(name, value)
        return np.asarray(value)
    if is_tensor(value):
        return _from_torch(name, value)
    if "xarray" in nulls.libraries(value) and hasattr(type(value), "data"):
        return as_ndarray(name, _unwrap(name, value))
    require_loaded(name, value)
    nulls.require_unmasked(name, value)
    nulls.require_no_nulls(name, value)
    as_tensor = nulls.attribute(value, "to_numpy_ndarray")  # of pyarrow's tensors
    if callable(as_tensor):
        return np.asarray(as_tensor())
    converted = np.asanyarray(value)
    if converted.dtype.hasobject and not converted.size:
        converted = nulls.without_rows(value)
    nulls.require_same_dtype(name, value, converted)
    return _stack_rows(nulls.describe(name, value), np.asarray(converted))


def _stack_rows(subject: str, rows: Array) -> Array:
    """Return an array whose elements are lists of equal lengths with an axis for their elements.

    subject: what the array is, for errors. An array of other elements is returned unchanged.
    """
    if not rows.dtype.hasobject or not any(isinstance(row, np.ndarray | list) for row in rows.flat):
        return rows
    arrays: list[Array] = []
    for n, row in enumerate(rows.flat):
        if row is None:
            raise DtypeError(f"{subject} with nulls: row {n} is null")
        if len(set(map(type, row))) > 1:
            raise DtypeError(f"{subject} of lists: row {n} has elements of different types")
        array = _stack_rows(f"row {n} of {subject}", np.asarray(row))
        if arrays and (array.shape, array.dtype) != (arrays[0].shape, arrays[0].dtype):
            row_types = [f"{a.dtype}[{','.join(map(str, a.shape))}]" for a in (array, arrays[0])]
            raise DtypeError(
                f"{subject} of lists of different lengths or types: row {n} is {row_types[0]},"
                f" row 0 is {row_types[1]}"
            )
        arrays.append(array)
    return np.stack(arrays).reshape(rows.shape + arrays[0].shape)


def convert_result(value: object, result: Array) -> Any:
    """Return a result as a torch or JAX array if `value` is one, else unchanged."""
    if is_tensor(value):
        return _to_torch(result)
    if nulls.library(type(value)) in _JAX:
        return _to_jax(result)
    return result


def _to_jax(result: Array) -> Any:
    jax: Any = sys.modules["jax"]
    converted = jax.numpy.asarray(result)
    if converted.dtype == result.dtype:
        return converted
    # By default JAX truncates 64-bit elements to 32 bits.
    x64_module = jax if hasattr(jax, "enable_x64") else jax.experimental  # older versions of JAX
    with x64_module.enable_x64(True):
        return jax.numpy.asarray(result)


def _from_torch(name: str, value: Any) -> Array:
    torch: Any = sys.modules["torch"]
    subject = f"{name} is a torch tensor"
    if value.device.type == "meta":
        raise DtypeError(f"{subject} on the device meta, which stores no elements")
    if value.device.type != "cpu":
        raise DtypeError(f"{subject} on {value.device}: pass {name}.cpu()")
    if value.layout != torch.strided or value.is_quantized:
        raise DtypeError(f"{subject} that is sparse or quantized: pass a dense one")
    if is_tracked(value):
        raise DtypeError(
            f"{subject} that requires grad: pass {name}.detach()",
            hint="the functions of ndtool.torch are differentiable",
        )
    resolved = value.detach().resolve_conj().resolve_neg()
    kind = str(value.dtype).removeprefix("torch.")
    try:
        return resolved.numpy()  # type: ignore[no-any-return]
    except TypeError:  # a type that NumPy lacks
        bits = {1: torch.uint8, 2: torch.int16}.get(value.element_size())
        ml_dtype = None if bits is None else _ml_dtype(kind)
        if ml_dtype is None:
            raise DtypeError(f"{subject} of {kind}, a type that NumPy lacks") from None
        return resolved.view(bits).numpy().view(ml_dtype)  # type: ignore[no-any-return]


def is_tracked(value: Any) -> bool:
    """Return whether torch records derivatives of operations on a tensor."""
    torch: Any = sys.modules["torch"]
    if value.requires_grad:
        return bool(torch.is_grad_enabled())
    forward = torch.autograd.forward_ad
    if getattr(forward, "_current_level", 0) < 0:  # fast path
        return False
    return forward.unpack_dual(value).tangent is not None


def require_resolved(name: str, value: Any) -> None:
    """Raise DtypeError for a torch tensor that is a lazy view or requires grad."""
    if getattr(value, "requires_grad", False):
        raise DtypeError(f"{name} is a torch tensor that requires grad: pass {name}.detach()")
    if value.is_conj() or value.is_neg():
        raise DtypeError(
            f"{name} is a torch tensor with a lazy conjugation or negation: pass a resolved one"
        )


def _to_torch(result: Array) -> Any:
    torch: Any = sys.modules["torch"]
    kind = result.dtype.name
    if getattr(np, kind, None) is None and hasattr(torch, kind):
        bits = {1: np.uint8, 2: np.int16}[result.dtype.itemsize]
        return torch.from_numpy(result.view(bits)).view(getattr(torch, kind))
    return torch.from_numpy(result)


def _ml_dtype(kind: str) -> np.dtype[Any] | None:
    """Return the ml_dtypes dtype of a name, or None."""
    user = f"{format_value(kind, str)} is not one of NumPy's types: it"
    dtype = getattr(import_extra("ml_dtypes", user, "ml"), kind, None)
    return None if dtype is None else np.dtype(dtype)


def _unwrap(name: str, value: Any) -> Any:
    """Return the array that an xarray object wraps; DtypeError if it is still in a file."""
    variable = getattr(value, "variable", value)
    wrapped = getattr(variable, "_data", None)
    if not getattr(variable, "_in_memory", True) and nulls.library(type(wrapped)) == "xarray":
        raise DtypeError(f"{nulls.describe(name, value)} {_LOAD_HINT} {name}.load()")
    return variable.data


def require_loaded(name: str, value: Any) -> None:
    """Raise DtypeError for a lazy, file-backed or GPU array, which NumPy would load completely."""
    libraries = nulls.libraries(value)
    reason = next((_NOT_LOADED[name] for name in libraries if name in _NOT_LOADED), None)
    if reason is None and not {"pyarrow", "xarray"} & {*libraries}:
        for call in ("compute", "collect"):
            if callable(nulls.attribute(value, call)):
                reason = f"{_LOAD_HINT} {{0}}.{call}()"
        if nulls.attribute(value, "chunks") is not None:
            reason = reason or _SLICE_HINT
    if reason is not None:
        raise DtypeError(f"{nulls.describe(name, value)} {reason.format(name)}")


_JAX = ("jax", "jaxlib")
_LOAD_HINT = "that NumPy would load completely: pass a part of it, or"
_SLICE_HINT = f"{_LOAD_HINT} {{0}}[...]"
_NOT_LOADED = {  # by library: the message
    "cupy": "on a GPU: pass its .get()",
    "dask": "that NumPy would load completely: use ndtool.dask, or pass {0}.compute()",
    "cubed": f"{_LOAD_HINT} {{0}}.compute()",
    "tensorstore": f"{_LOAD_HINT} {{0}}.read().result()",
    "h5py": f"{_SLICE_HINT}, or its location, such as x.h5:/name, to a function of ndtool.files",
    "zarr": f"{_SLICE_HINT}, or its location, such as x.zarr, to a function of ndtool.files",
    **dict.fromkeys(
        ("h5netcdf", "h5pyd", "netCDF4", "nibabel", "pyfive", "tables", "tiledb"), _SLICE_HINT
    ),
}
