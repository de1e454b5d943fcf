"""The element that takes the place of what an index out of bounds names."""

import math
import re
import struct

from ndtool.errors import DtypeError, shown
from ndtool.rules.dtypes import NATIVE, Dtype

_CODES = {"float16": "e", "float32": "f", "float64": "d", "complex64": "f", "complex128": "d"}
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(nan|inf(inity)?)", re.I)


def element(fill: str | None, dtype: Dtype) -> bytes:
    """Return the bytes of an element; nothing said, and 0, are zeros of any type.

    Raises DtypeError for what the type cannot hold. Floats are rounded.

    >>> from ndtool.rules import dtypes
    >>> element("-1", dtypes.from_name("int16"))
    b'\\xff\\xff'
    """
    if fill in (None, "0"):
        return bytes(dtype.itemsize)
    assert fill is not None
    order = "big" if dtype.order == ">" or (dtype.order == "|" and NATIVE == ">") else "little"
    if dtype.kind in "biu":
        lowest, highest = _range(dtype)
        value = {"true": 1, "false": 0}.get(fill.lower()) if dtype.kind == "b" else None
        if value is None and re.fullmatch("[+-]?[0-9]{1,30}", fill):
            value = int(fill)
        if value is None or not lowest <= value <= highest:
            raise _refusal(fill, dtype, f"expected a whole number in {lowest}..{highest}")
        return value.to_bytes(dtype.itemsize, order, signed=value < 0)  # type: ignore[arg-type]
    if dtype.name not in (*_CODES, "bfloat16"):
        raise _refusal(fill, dtype, "expected 0")
    try:
        parts = _parts(fill, dtype)
        if dtype.name == "bfloat16":
            return _bfloat16(parts[0]).to_bytes(2, order)  # type: ignore[arg-type]
        code = ("<" if order == "little" else ">") + len(parts) * _CODES[dtype.name]
        return struct.pack(code, *parts)
    except OverflowError:
        raise _refusal(fill, dtype, "it is too large") from None


def _range(dtype: Dtype) -> tuple[int, int]:
    if dtype.kind == "b":
        return 0, 1
    bits = 8 * dtype.itemsize
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.kind == "i" else (0, (1 << bits) - 1)


def _parts(fill: str, dtype: Dtype) -> tuple[float, ...]:
    """Return a number, of complex ones its two parts."""
    if _NUMBER.fullmatch(fill):
        return (_finite(fill), 0.0)[: 1 + (dtype.kind == "c")]
    try:
        value = complex(fill) if dtype.kind == "c" else None
    except ValueError:
        value = None
    if value is None:
        raise _refusal(fill, dtype, "expected a number")
    if "inf" not in fill.lower() and math.inf in (abs(value.real), abs(value.imag)):
        raise OverflowError
    return value.real, value.imag


def _finite(text: str) -> float:
    """Return a number; OverflowError for one that is infinite without saying so."""
    value = float(text)
    if value in (math.inf, -math.inf) and "inf" not in text.lower():
        raise OverflowError
    return value


def _bfloat16(value: float) -> int:
    """Return the upper half of the bits of a float32, rounded to the nearest, ties to even."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    if value != value:
        return bits >> 16 | 0x40
    rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    if rounded & 0x7FFF == 0x7F80 and abs(value) != float("inf"):
        raise OverflowError
    return rounded


def _refusal(fill: str, dtype: Dtype, expected: str) -> DtypeError:
    return DtypeError(f"fill is {shown(fill)}: data of {dtype.name} cannot have it: {expected}")
