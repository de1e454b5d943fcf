"""Constant arrays without a file: zeros:TYPE[SHAPE], ones:TYPE[SHAPE], full:VALUE:TYPE[SHAPE]."""

from __future__ import annotations

import re

from ndtool.arrays.source import ArrayMetadata, Constant
from ndtool.errors import DtypeError, UsageError, printable
from ndtool.formats import raw
from ndtool.rules import dtypes, numbers

# KIND:[VALUE:]TYPE[SHAPE], where the type may have a unit in brackets.
_PATTERN = re.compile(
    r"(zeros|ones|full):(?:(.+):)?([^:\[\]]+(?:\[[0-9]*[A-Za-z]+\])?)\[([^\]]*)\]"
)
_VALUES = {"zeros": "0", "ones": "1"}


def open_source(argument: str) -> Constant:
    """Return the constant array of an argument."""
    metadata, element = _parse(argument)
    return Constant(argument, metadata, element)


def _parse(argument: str) -> tuple[ArrayMetadata, bytes]:
    """Return the array's metadata, and the bytes of an element."""
    match = _PATTERN.fullmatch(argument)
    kind = match[1] if match else argument.partition(":")[0]
    if (
        match is None
        or not raw.SIZES_PATTERN.fullmatch(match[4])
        or (kind == "full") == (match[2] is None)
    ):
        value = "VALUE:" if kind == "full" else ""
        hint = f"{kind}:{'-1:' if value else ''}float32[1000,64]"
        raise UsageError(
            f"{printable(argument)}: expected {kind}:{value}TYPE[SIZE,...]",
            hint=f"for example {hint}",
        )
    dtype, shape = raw.parse_type(argument, match[3], match[4])
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
    return ArrayMetadata(dtype, shape, "C", shape, {}), element
