"""Recompute an output the slow and obvious way, and compare every bit."""

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ndtool import dtypes, files, reference, shapes
from ndtool.errors import DifferenceError, NdtoolError, called, printable
from ndtool.inference import Given, point_out
from ndtool.operators import OPERATORS
from ndtool.sources import Source
from ndtool.values import as_array, element

if TYPE_CHECKING:
    from ndtool.jobs import Request


def verify(request: "Request") -> str:
    """Check that `request.output` is what the operator gives; return its type and shape.

    Raises DifferenceError, which names the first element that differs, in row-major order.
    """
    arguments = {**request.arguments, "output": request.output or "-"}
    with ExitStack() as opened:
        stdin = files.Stdin()
        sources = {
            name: opened.enter_context(files.open_source(argument, stdin))
            for name, argument in arguments.items()
        }
        arrays = {name: _array(source, name, request.dtype) for name, source in sources.items()}
        return _verified(request, arrays, called(arguments["output"]))


def _verified(request: "Request", arrays: dict[str, NDArray[Any]], label: str) -> str:
    result = arrays.pop("output")
    expected = _recomputed(request, arrays)
    types = _code(result.dtype), _code(expected.dtype)
    if types[0] != types[1]:
        raise DifferenceError(f"{label} has dtype {types[0]}: {request.operator} gives {types[1]}")
    if result.shape != expected.shape:
        raise DifferenceError(
            f"{label} has shape {shapes.written(result.shape)}:"
            f" {request.operator} gives {shapes.written(expected.shape)}"
        )
    _compare(result, expected, label, request.operator)
    return dtypes.from_numpy(result.dtype).name + shapes.written(result.shape)


def _array(source: Source, name: str, dtype: str | None) -> NDArray[Any]:
    taken = source.dtype
    if dtype is not None and name != "indices":
        taken = dtypes.view_as(taken, dtype)
    return as_array(source.buffer, taken, source.shape, source.fortran)


def _recomputed(request: "Request", arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
    operator = OPERATORS[request.operator]
    try:
        result: NDArray[Any] = getattr(reference, request.operator)(
            **arrays, **operator.given(request.attributes)
        )
    except NdtoolError as exc:
        point_out(
            exc, {role: _given(name, arrays[role]) for role, name in request.arguments.items()}
        )
        raise
    return result


def _given(name: str, array: NDArray[Any]) -> Given:
    return Given(name, dtypes.from_numpy(array.dtype), array.shape)


def _code(dtype: np.dtype[Any]) -> str:
    return str(dtype) if dtype.kind == "V" else dtype.str


def _compare(result: NDArray[Any], expected: NDArray[Any], label: str, operator: str) -> None:
    """Raise DifferenceError at the first element that has other bits."""
    different = (_bits(result) != _bits(expected)).any(axis=-1)
    count = int(different.sum())
    if not count:
        return
    first = tuple(int(i) for i in np.unravel_index(int(different.argmax()), different.shape))
    position = ", ".join(map(str, first))
    place: Any = (*first, ...)
    found, wanted = _shown(result[place]), _shown(expected[place])
    raise DifferenceError(
        f"{label} differs from {operator} in {count} of {different.size} elements",
        places=(f"{label}[{position}] = {found}", f"{operator} gives {wanted}"),
    )


def _bits(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of every element, along one more axis."""
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return flat.reshape(*array.shape, array.dtype.itemsize)


def _shown(one: NDArray[Any]) -> str:
    return f"{printable(element(one), 80)} (bytes {printable(one.tobytes().hex(), 40)})"
