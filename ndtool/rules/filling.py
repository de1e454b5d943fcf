"""Fill values of the out-of-bounds mode "fill": conversion of text to the bytes of an element."""

import math
import re
import struct

from ndtool.errors import DtypeError, format_value
from ndtool.rules import dtypes
from ndtool.rules.dtypes import NATIVE, Dtype

_CODES = {"float16": "e", "float32": "f", "float64": "d", "complex64": "f", "complex128": "d"}
_REAL = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(nan|inf(inity)?)"
_NUMBER = re.compile(_REAL, re.I)
_COMPONENT = re.compile(f"({_REAL})j?", re.I)
_PACKED_INTEGERS = ("int4", "uint4", "int2", "uint2")
_BOOLEANS = {"true": 1, "false": 0}


def encode(fill: str | None, dtype: Dtype) -> bytes:
    """Return the bytes of a fill value; None and "0" are zero bytes for every type.

    A number with a point or an exponent is rounded to the nearest element; an integer must be
    exact. Raises DtypeError for a value that the type cannot hold.

    >>> from ndtool.rules import dtypes
    >>> encode("-1", dtypes.from_name("int16"))
    b'\\xff\\xff'
    """
    if fill in (None, "0"):
        return bytes(dtype.itemsize)
    assert fill is not None
    order = "big" if dtype.order == ">" or (dtype.order == "|" and NATIVE == ">") else "little"
    if dtype.kind in "biu" or dtype.name in _PACKED_INTEGERS:
        is_signed = dtype.kind == "i" or dtype.name[0] == "i"
        bits = 1 if dtype.kind == "b" else dtype.bits
        lowest, highest = dtypes.integer_range(bits, is_signed)
        value = _BOOLEANS.get(fill.lower()) if dtype.kind == "b" else None
        if value is None and re.fullmatch("[+-]?[0-9]{1,30}", fill):
            value = int(fill)
        if value is None or not lowest <= value <= highest:
            raise _fill_error(fill, dtype, f"expected an integer in {lowest}..{highest}")
        return (value % (1 << dtype.bits)).to_bytes(dtype.itemsize, order)  # type: ignore[arg-type]
    if dtype.name not in (*_CODES, "bfloat16"):
        raise _fill_error(fill, dtype, "expected 0")
    try:
        components = _parse_components(fill, dtype)
        for text in _integer_literals(fill):
            if _round(float(text), dtype) != int(text):
                raise _fill_error(
                    fill, dtype, f"expected an integer that it holds exactly; {text}.0 is rounded"
                )
        if dtype.name == "bfloat16":
            return _bfloat16_bits(components[0]).to_bytes(2, order)  # type: ignore[arg-type]
        code = ("<" if order == "little" else ">") + len(components) * _CODES[dtype.name]
        return struct.pack(code, *components)
    except OverflowError:
        raise _fill_error(fill, dtype, "it is too large") from None


def is_value(fill: str) -> bool:
    """Whether text is a valid fill value of some element type."""
    if _NUMBER.fullmatch(fill) or fill.lower() in _BOOLEANS:
        return True
    try:
        complex(fill)
    except ValueError:
        return False
    return True


def _parse_components(fill: str, dtype: Dtype) -> tuple[float, ...]:
    """Parse a fill value as (value,), or as (real, imaginary) for a complex type."""
    if _NUMBER.fullmatch(fill):
        return (_parse_float(fill), 0.0)[: 1 + (dtype.kind == "c")]
    try:
        value = complex(fill) if dtype.kind == "c" else None
    except ValueError:
        value = None
    if value is None or not fill.isascii() or "_" in fill:
        raise _fill_error(fill, dtype, "expected a number")
    if "inf" not in fill.lower() and math.inf in (abs(value.real), abs(value.imag)):
        raise OverflowError
    return value.real, value.imag


def _parse_float(text: str) -> float:
    """Return the float of a text; OverflowError if it is infinite and the text is not "inf"."""
    value = float(text)
    if value in (math.inf, -math.inf) and "inf" not in text.lower():
        raise OverflowError
    return value


def _integer_literals(fill: str) -> list[str]:
    """Return the integer literals in a number: at most two, in a complex number."""
    components = [component.group().rstrip("jJ") for component in _COMPONENT.finditer(fill)]
    return [
        _strip_zeros(component) for component in components if component.lstrip("+-").isdecimal()
    ]


def _strip_zeros(text: str) -> str:
    """Return an integer literal without leading zeros: Python limits the number of digits."""
    return "-" * text.startswith("-") + (text.lstrip("+-0") or "0")


def _round(value: float, dtype: Dtype) -> float:
    """Return a value rounded to an element type."""
    if dtype.name == "bfloat16":
        return float(struct.unpack("<f", struct.pack("<I", _bfloat16_bits(value) << 16))[0])
    code = "<" + _CODES[dtype.name]
    return float(struct.unpack(code, struct.pack(code, value))[0])


def _bfloat16_bits(value: float) -> int:
    """Return the bits of a bfloat16, rounded to the nearest, ties to even."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    if value != value:
        return bits >> 16 | 0x40
    rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    if rounded & 0x7FFF == 0x7F80 and abs(value) != float("inf"):
        raise OverflowError
    return rounded


def _fill_error(fill: str, dtype: Dtype, expected: str) -> DtypeError:
    return DtypeError(
        f"fill is {format_value(fill)}: data of {dtype.name} cannot hold it: {expected}"
    )
