"""Numbers in text: their grammar, and their conversion to the bytes of an element.

Text and JSON files, literals, constants and fill values have this grammar and this conversion, so
the same text is the same element everywhere, or an error everywhere.
"""

from __future__ import annotations

import math
import re
import struct

from ndtool.errors import DtypeError, format_value
from ndtool.rules import dtypes
from ndtool.rules.dtypes import NATIVE, Dtype

MAX_LENGTH = 1000  # characters of a number in a file or argument
INTEGER = re.compile("[+-]?[0-9]+")
_DIGITS = r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?"
REAL = re.compile(f"[+-]?(?:{_DIGITS})", re.I | re.A)
_COMPLEX = re.compile(
    rf"(?P<real>[+-]?(?:{_DIGITS}))?(?P<imaginary>(?(real)[+-]|[+-]?)(?:{_DIGITS}))j", re.I | re.A
)
_CODES = {"float16": "e", "float32": "f", "float64": "d", "complex64": "f", "complex128": "d"}
_PACKED_INTEGERS = ("int4", "uint4", "int2", "uint2")
_BOOLEANS = {"true": 1, "false": 0}
TIE_MASK = (1 << 28) - 1  # zero in a double halfway between two elements of a smaller type


def is_number(text: str) -> bool:
    """Whether text is a number of some element type."""
    return bool(REAL.fullmatch(text)) or text.lower() in _BOOLEANS or _components(text) is not None


def encode_fill(fill: str | None, dtype: Dtype) -> bytes:
    """Return the bytes of a fill value; None is zero bytes. Raises as `encode` does."""
    try:
        return encode("0" if fill is None else fill, dtype)
    except DtypeError as exc:
        raise DtypeError(f"fill is {exc.message}") from None


def encode(text: str, dtype: Dtype) -> bytes:
    """Return the bytes of the element that text denotes; "0" is zero bytes for every type.

    A number with a point or an exponent is rounded to the nearest element, ties to even; an integer
    must be exact. Raises DtypeError for a value that the type cannot hold.

    >>> from ndtool.rules import dtypes
    >>> encode("-1", dtypes.from_name("int16"))
    b'\\xff\\xff'
    """
    if text == "0":
        return bytes(dtype.itemsize)
    order = ">" if dtype.order == ">" or (dtype.order == "|" and NATIVE == ">") else "<"
    if dtype.kind in "biu" or dtype.name in _PACKED_INTEGERS:
        return _encode_integer(text, dtype).to_bytes(
            dtype.itemsize, "big" if order == ">" else "little"
        )
    if dtype.name not in (*_CODES, "bfloat16"):
        raise _refusal(text, dtype, "expected 0")
    components = (text,) if REAL.fullmatch(text) else _components(text)
    if components is None or (len(components) > 1 and dtype.kind != "c"):
        raise _refusal(text, dtype, "expected a number")
    values = [_round(component, text, dtype) for component in components]
    if dtype.name == "bfloat16":
        return struct.pack(f"{order}f", values[0])[slice(2) if order == ">" else slice(2, 4)]
    values += [0.0] * (dtype.kind == "c" and len(values) == 1)
    return struct.pack(order + len(values) * _CODES[dtype.name], *values)


def _encode_integer(text: str, dtype: Dtype) -> int:
    """Return an integer as unsigned bits."""
    is_signed = dtype.kind == "i" or dtype.name[0] == "i"
    lowest, highest = dtypes.integer_range(1 if dtype.kind == "b" else dtype.bits, is_signed)
    value = _BOOLEANS.get(text.lower()) if dtype.kind == "b" else None
    if value is None and INTEGER.fullmatch(text) and len(_strip_zeros(text)) <= 30:
        value = int(_strip_zeros(text))
    if value is None or not lowest <= value <= highest:
        raise _refusal(text, dtype, f"expected an integer in {lowest}..{highest}")
    return value % (1 << dtype.bits)


def _components(text: str) -> tuple[str, ...] | None:
    """Return the real and the imaginary part of a complex number; None for other text."""
    if text[:1] == "(" and text[-1:] == ")":
        text = text[1:-1]
        if REAL.fullmatch(text):
            return text, "0"
    match = _COMPLEX.fullmatch(text)
    return (match["real"] or "0", match["imaginary"]) if match else None


def _round(text: str, number: str, dtype: Dtype) -> float:
    """Return the element nearest to a real number. number: the complete text, for errors."""
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise _refusal(number, dtype, "it is too large")
    if not math.isfinite(value):
        return value
    if INTEGER.fullmatch(text):
        if _nearest(value, number, dtype) != int(_strip_zeros(text)):
            expected = f"expected an integer that it holds exactly; {text.lstrip('+')}.0 is rounded"
            raise _refusal(number, dtype, expected)
    elif dtype.itemsize < 8 and value and not _bits(value) & TIE_MASK and len(text) <= MAX_LENGTH:
        from fractions import Fraction

        if difference := Fraction(text) - Fraction(value):  # rounding twice would be wrong
            value = math.nextafter(value, math.inf if difference > 0 else -math.inf)
    return _nearest(value, number, dtype)


def _nearest(value: float, number: str, dtype: Dtype) -> float:
    """Return the element nearest to a finite double."""
    code = "<f" if dtype.name == "bfloat16" else f"<{_CODES[dtype.name]}"
    try:
        rounded: float = struct.unpack(code, struct.pack(code, value))[0]
        if dtype.name != "bfloat16":
            return rounded
        bits: int = struct.unpack("<I", struct.pack("<f", rounded))[0]
        if bits & 0xFFFF == 0x8000:  # a tie only because value was rounded to a float32
            bits += (abs(value) > abs(rounded)) - (abs(value) < abs(rounded))
        bits = (bits + 0x7FFF + (bits >> 16 & 1)) >> 16 << 16
        rounded = struct.unpack("<f", struct.pack("<I", bits))[0]
        if math.isinf(rounded):
            raise OverflowError
    except OverflowError:
        raise _refusal(number, dtype, "it is too large") from None
    return rounded


def _bits(value: float) -> int:
    bits: int = struct.unpack("<Q", struct.pack("<d", value))[0]
    return bits


def _strip_zeros(text: str) -> str:
    """Return an integer without leading zeros: Python limits the number of digits."""
    return "-" * text.startswith("-") + (text.lstrip("+-0") or "0")


def _refusal(text: str, dtype: Dtype, expected: str) -> DtypeError:
    return DtypeError(f"{format_value(text)}: data of {dtype.name} cannot hold it: {expected}")
