"""Small arrays of indices that are written out: `[5, 7, -1]`, `[[0, 1], [2, 0]]`."""

from __future__ import annotations

from typing import Any, NoReturn

from ndtool.arrays.local import Stretch
from ndtool.arrays.source import Entry, Facts, Flat
from ndtool.errors import UsageError, number, printable, shown
from ndtool.rules import dtypes, shapes

LONGEST = 1 << 20  # characters
_DIGITS = 1000  # of a number that an error shows as about how large it is
_LOWEST, _HIGHEST, _UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1


def open_source(argument: str) -> Flat:
    """Return the array: int64, or uint64 where only that has all of the values."""
    facts, values = _array(argument)
    import array

    raw = array.array("Q" if facts.dtype.kind == "u" else "q", values).tobytes()
    return Flat(argument, facts, Stretch(memoryview(raw)))


def entries(argument: str) -> list[Entry]:
    """Return what is known of it."""
    facts, _ = _array(argument)
    return [Entry(argument, None, facts, None, 0, "written out", None)]


def _array(argument: str) -> tuple[Facts, list[int]]:
    if len(argument) > LONGEST:
        _refuse(argument, f"{len(argument)} characters: valid up to {LONGEST}")
    shape, values = _flat(_parsed(argument), argument)
    least, most = min(values, default=0), max(values, default=0)
    dtype = dtypes.from_name("uint64" if least >= 0 and most > _HIGHEST else "int64")
    bounds = (0, _UNSIGNED) if dtype.kind == "u" else (_LOWEST, _HIGHEST)
    for value in (least, most):
        if not bounds[0] <= value <= bounds[1]:
            _refuse(argument, f"{number(value)} is beyond 64 bits: valid {_LOWEST}..{_HIGHEST}")
    return Facts(dtype, shape, "C", shape, {}), values


def _parsed(argument: str) -> Any:
    """Return the nested lists."""
    import json

    try:
        return json.loads(argument, parse_int=_whole, parse_float=_Other, parse_constant=_Other)
    except (ValueError, RecursionError):
        _refuse(argument, "no lists of whole numbers: expected such as [5, 7, -1] or [[0, 1]]")


class _Other(str):
    """A number that is not whole, or beyond all limits."""


def _whole(text: str) -> int | _Other:
    return int(text) if len(text) <= _DIGITS else _Other(text)


def _flat(nested: Any, argument: str) -> tuple[tuple[int, ...], list[int]]:
    """Return the shape and all values, in row-major order; level by level, so none is too deep."""
    shape: list[int] = []
    level: list[Any] = [nested]
    while any(type(one) is list for one in level):
        if len(shape) == shapes.MOST_RANK:
            _refuse(argument, f"lists more than {shapes.MOST_RANK} deep: valid up to that")
        sizes = [len(one) if type(one) is list else -1 for one in level]
        if len(set(sizes)) > 1:
            odd = next(n for n, size in enumerate(sizes) if size != sizes[0])
            _refuse(
                argument,
                f"ragged: on axis {len(shape)}, {_counted(level[0])} and {_counted(level[odd])}"
                " stand side by side: expected lists of one length",
            )
        shape.append(sizes[0])
        level = [entry for one in level for entry in one]
    for value in level:
        if type(value) is not int:
            what = printable(value, 60) if isinstance(value, _Other) else shown(value)
            _refuse(argument, f"{what} is no whole number of up to 64 bits: expected indices")
    return tuple(shape), level


def _counted(entry: Any) -> str:
    """Return what one entry of a ragged list is."""
    if type(entry) is not list:
        return shown(entry)
    return f"a list of {len(entry)}"


def _refuse(argument: str, text: str) -> NoReturn:
    raise UsageError(f"{printable(argument, 60)}: {printable(text)}") from None
