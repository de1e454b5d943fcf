"""Recompute an output the slow and obvious way, and compare every bit."""

from contextlib import ExitStack
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ndtool.analysis import reference
from ndtool.analysis.reference import New, Tick, in_order, part, pieces, silent
from ndtool.analysis.values import as_array, element
from ndtool.arrays import names, spill
from ndtool.arrays.source import Source, whole
from ndtool.arrays.streams import Streams
from ndtool.errors import BoundsError, DifferenceError, NdtoolError, OutputError, called, printable
from ndtool.rules import dtypes, shapes
from ndtool.rules.inference import Given, point_out
from ndtool.rules.operators import OPERATORS

if TYPE_CHECKING:
    from ndtool.runs.jobs import Request


def verify(request: "Request", tick: Tick = silent) -> str:
    """Check that `request.output` is what the operator gives; return its type and shape.

    What it must be is kept as a run keeps what does not fit into memory. Raises DifferenceError,
    which names the first element that differs, in row-major order.
    """
    arguments = {**request.arguments, "output": request.output or "-"}
    with ExitStack() as opened:
        streams = Streams()
        sources: dict[str, Source] = {}
        for name, argument in arguments.items():
            sources[name] = names.open_source(argument, streams, literals=name == "indices")
            opened.callback(sources[name].close)
        arrays = {name: _array(source, name, request.dtype) for name, source in sources.items()}
        try:
            described = _verified(request, arrays, called(arguments["output"]), tick)
        except (DifferenceError, BoundsError):
            _recheck(sources)  # whoever changes an input finds a difference
            raise
        _recheck(sources)
        return described


def _recheck(sources: dict[str, Source]) -> None:
    for source in sources.values():
        source.recheck()


def _verified(request: "Request", arrays: dict[str, NDArray[Any]], label: str, tick: Tick) -> str:
    result = arrays.pop("output")

    def new(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        _compare_types(result, shape, dtype, label, request.operator)
        room = spill.room(prod(shape) * dtype.itemsize, f"temporary copy of {label}")
        return np.ndarray(shape, dtype, room)

    expected = _recomputed(request, arrays, new, part(tick, 0, 0.9))
    _compare(result, expected, label, request.operator, part(tick, 0.9, 1))
    return dtypes.from_numpy(result.dtype).name + shapes.written(result.shape)


def _array(source: Source, name: str, dtype: str | None) -> NDArray[Any]:
    facts = source.facts
    taken = facts.dtype
    if dtype is not None and name != "indices":
        taken = dtypes.view_as(taken, dtype)
    return as_array(whole(source).buffer, taken, facts.shape, facts.order == "F")


def _recomputed(
    request: "Request", arrays: dict[str, NDArray[Any]], new: New, tick: Tick
) -> NDArray[Any]:
    operator = getattr(reference, request.operator)
    attributes = OPERATORS[request.operator].given(request.attributes)
    try:
        result: NDArray[Any] = operator(**arrays, **attributes, new=new, tick=tick)
    except NdtoolError as exc:
        point_out(
            exc, {role: _given(name, arrays[role]) for role, name in request.arguments.items()}
        )
        raise
    except IndexError:  # they were within bounds
        raise OutputError(f"{called(request.indices)} changed during the run") from None
    return result


def _given(name: str, array: NDArray[Any]) -> Given:
    return Given(name, dtypes.from_numpy(array.dtype), array.shape)


def _compare_types(
    result: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], label: str, operator: str
) -> None:
    if _code(result.dtype) != _code(dtype):
        raise DifferenceError(
            f"{label} has dtype {_code(result.dtype)}: {operator} gives {_code(dtype)}"
        )
    if result.shape != shape:
        raise DifferenceError(
            f"{label} has shape {shapes.written(result.shape)}:"
            f" {operator} gives {shapes.written(shape)}"
        )


def _code(dtype: np.dtype[Any]) -> str:
    return str(dtype) if dtype.kind == "V" else dtype.str


def _compare(
    result: NDArray[Any], expected: NDArray[Any], label: str, operator: str, tick: Tick
) -> None:
    """Raise DifferenceError at the first element that has other bits."""
    first, count = -1, 0
    ours, theirs = in_order(expected), in_order(result)
    for piece in pieces(result.size, result.itemsize, tick):
        left, right = _bits(ours[piece]), _bits(theirs[piece])
        if not np.array_equal(left, right):
            different = (left != right).any(axis=1)
            first = piece.start + int(different.argmax()) if first < 0 else first
            count += int(different.sum())
    if not count:
        return
    place = tuple(int(i) for i in np.unravel_index(first, result.shape))
    position = ", ".join(map(str, place))
    whole: Any = (*place, ...)  # an array still, of one element
    found, wanted = _shown(result[whole]), _shown(expected[whole])
    raise DifferenceError(
        f"{label} differs from {operator} in {count} of {result.size} elements",
        places=(f"{label}[{position}] = {found}", f"{operator} gives {wanted}"),
    )


def _bits(elements: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the bytes of each element as a row."""
    rows = np.ascontiguousarray(elements).view(np.uint8)
    return rows.reshape(len(elements), elements.itemsize)


def _shown(one: NDArray[Any]) -> str:
    return f"{printable(element(one), 80)} (bytes {printable(one.tobytes().hex(), 40)})"
