"""Arrays that an argument declares: raw bytes of a file, constants, and literals of indices.

raw:TYPE[SHAPE]:PATH[@OFFSET], zeros:TYPE[SHAPE], ones:TYPE[SHAPE], full:VALUE:TYPE[SHAPE], and
`[5, 7, -1]` or `[[0, 1], [2, 0]]`.
"""

from __future__ import annotations

import os
import re
from math import prod
from typing import Any, NamedTuple, NoReturn

from ndtool.arrays.source import ArrayMetadata, Constant, ContiguousSource, trailing_bytes_warning
from ndtool.errors import (
    DtypeError,
    UsageError,
    format_count,
    format_integer,
    format_value,
    printable,
    redact_urls,
    refuse,
)
from ndtool.rules import dtypes, shapes
from ndtool.rules.dtypes import Dtype
from ndtool.storage import locations

# The type may have a unit in brackets.
_RAW_PATTERN = re.compile(r"raw:([^:\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[([^\]]*)\]:(.+)", re.DOTALL)
_CONSTANT_PATTERN = re.compile(
    r"(zeros|ones|full):(?:(.+):)?([^:\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[([^\]]*)\]"
)
_SIZES_PATTERN = re.compile(r"(?:[0-9]{1,19}(?:, ?[0-9]{1,19})*)?")
_OFFSET_PATTERN = re.compile(r"(.+)@([0-9]{1,19})", re.DOTALL)
_VALUES = {"zeros": "0", "ones": "1"}
MAX_CHARACTERS = 1 << 17  # of a literal: Linux's limit for the size of an argument
_MAX_DIGITS = 1000  # of the largest integer that is parsed
_INT64_MIN, _INT64_MAX, _UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1


def open_source(argument: str) -> ContiguousSource:
    """Open the array that an argument declares."""
    if argument.lstrip()[:1] == "[":
        return _open_literal(argument)
    return _open_raw(argument) if argument.startswith("raw:") else _open_constant(argument)


class Raw(NamedTuple):
    """A parsed raw: argument. warns_of_surplus: whether bytes after the array cause a warning."""

    dtype: Dtype
    shape: tuple[int, ...]
    path: str
    offset: int
    warns_of_surplus: bool

    @property
    def metadata(self) -> ArrayMetadata:
        """The array metadata that the argument declares."""
        return ArrayMetadata(self.dtype, self.shape, "C", self.shape, {"offset": self.offset})


def parse(argument: str) -> Raw:
    """Parse `raw:TYPE[SHAPE]:PATH[@OFFSET]`.

    If a file with the name PATH@OFFSET exists, the argument refers to it, and the offset is 0.
    Raises UsageError, and DtypeError for an unknown element type.
    """
    match = _RAW_PATTERN.fullmatch(argument)
    if match is None or not _SIZES_PATTERN.fullmatch(match[2]):
        raise UsageError(
            f"{printable(argument)}: expected raw:TYPE[SIZE,...]:FILE[@OFFSET]",
            hint="for example raw:float32[1000,64]:dump.bin@4096",
        )
    path, offset = match[3], 0
    suffix = None if os.path.lexists(path) else _OFFSET_PATTERN.fullmatch(path)
    if suffix is not None:
        path, offset = suffix[1], int(suffix[2])
    dtype, shape = _parse_type(argument, match[1], match[2], offset)
    return Raw(dtype, shape, path, offset, suffix is None)


def _parse_type(
    argument: str, name: str, sizes: str, offset: int = 0
) -> tuple[Dtype, tuple[int, ...]]:
    """Parse the TYPE and SHAPE of an argument; DtypeError or UsageError if they are invalid."""
    shape = tuple(map(int, sizes.split(","))) if sizes else ()
    dtype = dtypes.from_name(name)
    # Sizes of 0 count as 1: the strides of (0, 2**62, 2**62) overflow int64.
    nbytes = prod(size or 1 for size in shape) * dtype.itemsize
    if len(shape) > shapes.MAX_RANK or max(*shape, 0, nbytes, offset) > shapes.MAX_SIZE:
        raise UsageError(
            f"{printable(argument)}: valid up to {shapes.MAX_RANK} sizes and {shapes.MAX_SIZE}"
            " bytes, axes of size 0 counted as 1"
        )
    return dtype, shape


def _open_raw(argument: str) -> ContiguousSource:
    """Open the array of a raw: argument, memory-mapped."""
    from ndtool.formats.decoding import open_range

    raw, argument = parse(argument), redact_urls(argument)
    storage = locations.open_storage(raw.path)
    surplus = storage.size - raw.offset - raw.metadata.nbytes
    if surplus < 0:
        found = max(0, storage.size - raw.offset)
        storage.close()
        expected = f"expected {raw.metadata.nbytes} bytes at offset {raw.offset}"
        refuse(argument, f"{expected}, found {found}")
    warning = trailing_bytes_warning(argument, surplus) if raw.warns_of_surplus else None
    return open_range(storage, argument, argument, raw.metadata, raw.offset, warning=warning)


def _open_constant(argument: str) -> Constant:
    """Return the constant array of a zeros:, ones: or full: argument."""
    from ndtool.rules import numbers

    match = _CONSTANT_PATTERN.fullmatch(argument)
    kind = match[1] if match else argument.partition(":")[0]
    if (
        match is None
        or not _SIZES_PATTERN.fullmatch(match[4])
        or (kind == "full") == (match[2] is None)
    ):
        value = "VALUE:" if kind == "full" else ""
        hint = f"{kind}:{'-1:' if value else ''}float32[1000,64]"
        raise UsageError(
            f"{printable(argument)}: expected {kind}:{value}TYPE[SIZE,...]",
            hint=f"for example {hint}",
        )
    dtype, shape = _parse_type(argument, match[3], match[4])
    value = _VALUES.get(kind) or match[2]
    if not numbers.is_number(value):
        raise UsageError(
            f"{printable(argument)}: {printable(value)} is not a number such as -1 or nan"
        )
    try:
        if (
            kind != "full"
            and dtype.kind not in "biufc"
            and dtype.name not in dtypes.EXTENSION_DTYPES
        ):
            raise DtypeError(f"{kind} of {dtype.name}: expected a numeric type")
        element = numbers.encode(value, dtype)
    except DtypeError as exc:
        raise DtypeError(f"{printable(argument)}: {exc.message}") from None
    return Constant(argument, ArrayMetadata(dtype, shape, "C", shape, {}), element)


def _open_literal(argument: str) -> ContiguousSource:
    """Parse a literal to an int64 array, or to uint64 if a value requires it."""
    import array

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
    raw = array.array("Q" if dtype.kind == "u" else "q", values).tobytes()
    return ContiguousSource(argument, ArrayMetadata(dtype, shape, "C", shape, {}), memoryview(raw))


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
