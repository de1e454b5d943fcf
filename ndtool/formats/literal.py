"""Index arrays as literals in an argument: `[5, 7, -1]`, `[[0, 1], [2, 0]]`."""

from __future__ import annotations

from typing import Any, NoReturn

from ndtool.arrays.source import ArrayMetadata, ContiguousSource
from ndtool.errors import UsageError, format_count, format_integer, format_value, printable
from ndtool.rules import dtypes, shapes

MAX_CHARACTERS = 1 << 17  # Linux's limit for the size of an argument
_MAX_DIGITS = 1000  # of the largest integer that is parsed
_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1


def open_source(argument: str) -> ContiguousSource:
    """Parse a literal to an int64 array, or to uint64 if a value requires it."""
    metadata, values = _parse(argument)
    import array

    raw = array.array("Q" if metadata.dtype.kind == "u" else "q", values).tobytes()
    return ContiguousSource(argument, metadata, memoryview(raw))


def _parse(argument: str) -> tuple[ArrayMetadata, list[int]]:
    if len(argument) > MAX_CHARACTERS:
        _refuse(
            argument,
            f"{len(argument)} characters: valid up to {MAX_CHARACTERS}",
            "put more indices into a file such as ids.txt, or pipe them to - with --text",
        )
    shape, values = _flatten(_parse_lists(argument), argument)
    lowest, highest = min(values, default=0), max(values, default=0)
    dtype = dtypes.from_name("uint64" if lowest >= 0 and highest > _INT64_MAX else "int64")
    bounds = (0, _UINT64_MAX) if dtype.kind == "u" else (_INT64_MIN, _INT64_MAX)
    for value in (lowest, highest):
        if not bounds[0] <= value <= bounds[1]:
            _refuse(
                argument,
                f"{format_integer(value)} is beyond 64 bits: valid {_INT64_MIN}..{_INT64_MAX}",
            )
    return ArrayMetadata(dtype, shape, "C", shape, {}), values


def _parse_lists(argument: str) -> Any:
    """Parse a literal to nested lists of integers."""
    import json

    def refuse_number(text: str) -> NoReturn:
        text = printable(text, 60)
        _refuse(argument, f"{text} is not an integer of up to 64 bits: expected indices")

    def parse_integer(text: str) -> int:
        return int(text) if len(text) <= _MAX_DIGITS else refuse_number(text)

    try:
        return json.loads(
            argument,
            parse_int=parse_integer,
            parse_float=refuse_number,
            parse_constant=refuse_number,
        )
    except UsageError:
        raise
    except (ValueError, RecursionError):
        _refuse(argument, "not a list of integers: expected one such as [5, 7, -1] or [[0, 1]]")


def _flatten(nested: Any, argument: str) -> tuple[tuple[int, ...], list[int]]:
    """Return the shape and the values in row-major order, without recursion."""
    shape: list[int] = []
    level: list[Any] = [nested]
    while any(type(item) is list for item in level):
        if len(shape) == shapes.MAX_RANK:
            _refuse(argument, f"rank above {shapes.MAX_RANK}: valid 0..{shapes.MAX_RANK}")
        texts = [
            f"a list of {format_count(len(item), 'item')}" if type(item) is list else repr(item)
            for item in level
        ]
        if mismatches := [text for text in texts if text != texts[0]]:
            found = f"axis {len(shape)} has {texts[0]} and {mismatches[0]}"
            _refuse(argument, f"ragged: {found}: expected lists of equal length")
        shape.append(len(level[0]))
        level = [entry for item in level for entry in item]
    for value in level:
        if type(value) is not int:
            _refuse(argument, f"{format_value(value)} is not an integer: expected indices")
    return tuple(shape), level


def _refuse(argument: str, text: str, hint: str = "") -> NoReturn:
    raise UsageError(f"{printable(argument, 60)}: {printable(text)}", hint=hint) from None
