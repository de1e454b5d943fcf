"""Fill values: text to the bytes of an element, for the out-of-bounds mode "fill"."""

import math
import re
import struct

from ndtool.errors import DtypeError, format_value
from ndtool.rules import dtypes
from ndtool.rules.dtypes import NATIVE, Dtype

_CODES = {"float16": "e", "float32": "f", "float64": "d", "complex64": "f", "complex128": "d"}
_REAL = r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]+)?|[+-]?(nan|inf(inity)?)"
_NUMBER = re.compile(_REAL, re.I)
_PART = re.compile(f"({_REAL})j?", re.I)
_PACKED = ("int4", "uint4", "int2", "uint2")
_TRUTH = {"true": 1, "false": 0}


def element(fill: str | None, dtype: Dtype) -> bytes:
    """Return the bytes of a fill value; None and "0" are zero bytes for every type.

    A number with a point or an exponent is rounded to the nearest element; an integer must be
    exact. Raises DtypeError for a value that the type cannot hold.

    >>> from ndtool.rules import dtypes
    >>> element("-1", dtypes.from_name("int16"))
    b'\\xff\\xff'
    """
    if fill in (None, "0"):
        return bytes(dtype.itemsize)
    assert fill is not None
    order = "big" if dtype.order == ">" or (dtype.order == "|" and NATIVE == ">") else "little"
    if dtype.kind in "biu" or dtype.name in _PACKED:
        signed = dtype.kind == "i" or dtype.name[0] == "i"
        bits = 1 if dtype.kind == "b" else dtype.bits
        lowest, highest = dtypes.integer_range(bits, signed)
        value = _TRUTH.get(fill.lower()) if dtype.kind == "b" else None
        if value is None and re.fullmatch("[+-]?[0-9]{1,30}", fill):
            value = int(fill)
        if value is None or not lowest <= value <= highest:
            raise _refusal(fill, dtype, f"expected an integer in {lowest}..{highest}")
        return (value % (1 << dtype.bits)).to_bytes(dtype.itemsize, order)  # type: ignore[arg-type]
    if dtype.name not in (*_CODES, "bfloat16"):
        raise _refusal(fill, dtype, "expected 0")
    try:
        components = _parts(fill, dtype)
        for text in _integers(fill):
            if _rounded(float(text), dtype) != int(text):
                raise _refusal(
                    fill, dtype, f"expected an integer that it holds exactly; {text}.0 is rounded"
                )
        if dtype.name == "bfloat16":
            return _bfloat16(components[0]).to_bytes(2, order)  # type: ignore[arg-type]
        code = ("<" if order == "little" else ">") + len(components) * _CODES[dtype.name]
        return struct.pack(code, *components)
    except OverflowError:
        raise _refusal(fill, dtype, "it is too large") from None


def is_value(fill: str) -> bool:
    """Whether text is a valid fill value of some element type."""
    if _NUMBER.fullmatch(fill) or fill.lower() in _TRUTH:
        return True
    try:
        complex(fill)
    except ValueError:
        return False
    return True


def _parts(fill: str, dtype: Dtype) -> tuple[float, ...]:
    """Return (value,), or (real, imaginary) for a complex type."""
    if _NUMBER.fullmatch(fill):
        return (_finite(fill), 0.0)[: 1 + (dtype.kind == "c")]
    try:
        value = complex(fill) if dtype.kind == "c" else None
    except ValueError:
        value = None
    if value is None or not fill.isascii() or "_" in fill:
        raise _refusal(fill, dtype, "expected a number")
    if "inf" not in fill.lower() and math.inf in (abs(value.real), abs(value.imag)):
        raise OverflowError
    return value.real, value.imag


def _finite(text: str) -> float:
    """Return the float of a text; OverflowError if it is infinite and the text is not "inf"."""
    value = float(text)
    if value in (math.inf, -math.inf) and "inf" not in text.lower():
        raise OverflowError
    return value


def _integers(fill: str) -> list[str]:
    """Return the integer literals in a number: up to two in a complex one."""
    components = [component.group().rstrip("jJ") for component in _PART.finditer(fill)]
    return [_short(component) for component in components if component.lstrip("+-").isdecimal()]


def _short(text: str) -> str:
    """Return an integer literal without leading zeros: Python limits the number of digits."""
    return "-" * text.startswith("-") + (text.lstrip("+-0") or "0")


def _rounded(value: float, dtype: Dtype) -> float:
    """Return a value rounded to an element type."""
    if dtype.name == "bfloat16":
        return float(struct.unpack("<f", struct.pack("<I", _bfloat16(value) << 16))[0])
    code = "<" + _CODES[dtype.name]
    return float(struct.unpack(code, struct.pack(code, value))[0])


def _bfloat16(value: float) -> int:
    """Return the bits of a bfloat16, rounded to the nearest, ties to even."""
    bits: int = struct.unpack("<I", struct.pack("<f", value))[0]
    if value != value:
        return bits >> 16 | 0x40
    rounded = bits + 0x7FFF + (bits >> 16 & 1) >> 16
    if rounded & 0x7FFF == 0x7F80 and abs(value) != float("inf"):
        raise OverflowError
    return rounded


def _refusal(fill: str, dtype: Dtype, expected: str) -> DtypeError:
    return DtypeError(
        f"fill is {format_value(fill)}: data of {dtype.name} cannot hold it: {expected}"
    )
