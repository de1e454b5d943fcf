"""Conversion of the fields of text files to elements of a type, exactly.

`Values.add` defines which fields are numbers, and reports errors. `Values.add_array` appends blocks
that a faster parser has converted, unless the result might differ from that of `add`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from ndtool.errors import DtypeError, InputError, format_value, printable
from ndtool.formats.table import TextOptions
from ndtool.rules import dtypes, filling
from ndtool.rules.dtypes import Dtype
from ndtool.storage.tempfiles import Spool

MAX_NUMBER_LENGTH = 1000  # characters
INT64_MIN, INT64_MAX, UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+")
_INT64, _FLOAT64 = dtypes.from_name("int64"), dtypes.from_name("float64")


class NotIntegersError(Exception):
    """The error for a number that is not an integer, in a file whose type is inferred."""


class _FieldError(Exception):
    """The error for a field that is not an element of the type."""


def is_number(field: str) -> bool:
    """Whether a field is a number of any type; a row of such fields is not a header."""
    return len(field) <= MAX_NUMBER_LENGTH and filling.is_value(field)


class Values:
    """The elements of a text file, in a buffer or, if it is large, an unnamed file.

    count: the number of elements. fast_type: the type that `add_array` requires of a faster parser,
    "q" for integers and "d" for floats; "" if elements can only be added by `add`.
    """

    def __init__(self, options: TextOptions, label: str) -> None:
        self.count, self._label, self._options = 0, label, options
        self._dtype = options.dtype or _INT64
        self._spool = Spool(options.directory)
        self._has_negative = self._needs_uint64 = False
        dtype = self._dtype
        if dtype.kind not in "biufc" and dtype.name not in dtypes.EXTENSION_DTYPES:
            raise DtypeError(
                f"{printable(label)}: a text file has numbers: they cannot be {dtype.name}"
            )
        self._is_untyped = options.dtype is None
        has_fast_type = dtype.kind in "iu" or dtype.name in ("float16", "float32", "float64")
        self.fast_type = ("d" if dtype.kind == "f" else "q") if has_fast_type else ""

    def add_array(self, array: Any) -> bool:
        """Append int64, uint64 or float64 elements, or return False if one is out of range.

        False also if rounding to the type requires the text.
        """
        import numpy as np

        if not array.size:
            return True
        if array.dtype.kind == "f":
            narrowed = _round_doubles(array, np.dtype(self._dtype.descr))
            if narrowed is None:
                return False
            return self._append(narrowed)
        smallest, largest = int(array.min()), int(array.max())
        if self._is_untyped:
            if (smallest < 0 and self._needs_uint64) or (
                largest > INT64_MAX and self._has_negative
            ):
                return False
            self._has_negative |= smallest < 0
            self._needs_uint64 |= largest > INT64_MAX
            return self._append(array)
        lowest, highest = self._integer_range()
        return (
            lowest <= smallest
            and largest <= highest
            and self._append(array.astype(self._dtype.descr))
        )

    def add(self, fields: Sequence[Any], locate: Callable[[int], str]) -> None:
        """Append fields, which are text or int; InputError if one is not an element of the type.

        locate: returns the location of a field by its index.
        """
        import numpy as np

        convert = {"q": self._parse_integer, "d": self._parse_float}.get(
            self.fast_type, self._parse_element
        )
        elements = list[Any]()
        try:
            for field in fields:
                elements.append(convert(field.strip(" \t") if isinstance(field, str) else field))
            if self.fast_type == "q":
                type_code = "u8" if self._needs_uint64 else "i8"
                self._append(
                    np.array(elements, type_code if self._is_untyped else self._dtype.descr)
                )
                return
            if self.fast_type == "d" and self.add_array(np.array(elements, np.float64)):
                return
            if self.fast_type == "d":
                elements = []
                for field in fields:
                    elements.append(self._round_decimal(str(field).strip(" \t")))
        except _FieldError as exc:
            raise InputError(f"{printable(self._label)}: {locate(len(elements))}: {exc}") from None
        self._append(np.frombuffer(b"".join(elements), np.uint8), len(elements))

    def finish(self) -> tuple[Dtype, memoryview]:
        """Return the element type and the bytes."""
        dtype = dtypes.from_name("uint64") if self._needs_uint64 else self._dtype
        return dtype, self._spool.finish()

    def _append(self, array: Any, count: int | None = None) -> bool:
        self._spool.write(memoryview(array.reshape(-1)).cast("B") if array.size else b"")
        self.count += array.size if count is None else count
        return True

    def _parse_integer(self, field: Any) -> int:
        if type(field) is not int:
            if len(field) > MAX_NUMBER_LENGTH:
                raise _FieldError(
                    f"a field of {len(field)} characters: valid up to {MAX_NUMBER_LENGTH}"
                )
            if not _INTEGER.fullmatch(field):
                if not self._options.integers and self._is_untyped and is_number(field):
                    raise NotIntegersError
                raise _field_error(field, "an integer", "such as 5 or -1")
            field = int(field)
        value: int = field
        lowest, highest = self._integer_range()
        if not lowest <= value <= highest:
            type_name = "64 bits" if self._is_untyped else self._dtype.name
            raise _FieldError(
                f"{format_value(value)} is beyond {type_name}: valid {lowest}..{highest}"
            )
        if self._is_untyped:
            self._has_negative |= value < 0
            self._needs_uint64 |= value > INT64_MAX
        return value

    def _integer_range(self) -> tuple[int, int]:
        if not self._is_untyped:
            return dtypes.integer_range(8 * self._dtype.itemsize, self._dtype.kind == "i")
        return (
            0 if self._needs_uint64 else INT64_MIN,
            INT64_MAX if self._has_negative else UINT64_MAX,
        )

    def _parse_float(self, field: Any) -> float:
        text = str(field)
        if not is_number(text) or text[-1:] in ")jJeE":
            raise _field_error(text, "a number", "such as 0.5, -1e3 or nan")
        return float(text)

    def _round_decimal(self, text: str) -> bytes:
        """Round a decimal number to the nearest float, and return its bytes."""
        import numpy as np

        code, double = np.dtype(self._dtype.descr), float(text)
        with np.errstate(over="ignore", under="ignore"):
            nearest = np.array(double).astype(code)
            if np.isinf(nearest) and "inf" not in text.lower():
                raise _FieldError(f"{format_value(text)} is too large for {self._dtype.name}")
            rounded = float(nearest)
            if math.isfinite(double) and rounded != double:
                from fractions import Fraction

                direction = np.array(math.inf if double > rounded else -math.inf).astype(code)
                neighbor = np.nextafter(nearest, direction)
                halfway = double - rounded == float(neighbor) - double
                difference = Fraction(text) - Fraction(double) if halfway else 0
                if difference:
                    nearest = (max if difference > 0 else min)(nearest, neighbor)
        return bytes(np.asarray(nearest, code).tobytes())

    def _parse_element(self, field: Any) -> bytes:
        """Convert a field to an element of a type without a fast parser, and return its bytes."""
        text = str(field)
        if not is_number(text):
            raise _field_error(text, "a number", "such as 0.5, -1e3 or nan")
        try:
            return filling.encode(text, self._dtype)
        except DtypeError as exc:
            raise _FieldError(exc.message.removeprefix("fill is ")) from None


def _field_error(field: str, expected: str, example: str) -> _FieldError:
    if not field:
        return _FieldError(f"the field is empty: expected {expected} {example}")
    return _FieldError(f"{format_value(field)} is not {expected}: expected one {example}")


def _round_doubles(doubles: Any, dtype: Any) -> Any:
    """Return doubles rounded to a type, None if the text is required to round one.

    Rounding twice is wrong if the double is halfway between two elements and the decimal is not.
    """
    import numpy as np

    if np.isinf(doubles).any():
        return None
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrowed = doubles.astype(dtype)
        if dtype.itemsize == 8:
            return narrowed
        rounded = narrowed.astype(np.float64)
        neighbors = np.nextafter(
            narrowed, np.where(doubles > rounded, np.inf, -np.inf).astype(dtype)
        )
        halfway = (doubles != rounded) & (
            doubles - rounded == neighbors.astype(np.float64) - doubles
        )
    return None if halfway.any() or np.isinf(narrowed).any() else narrowed


def float_options(options: TextOptions) -> TextOptions:
    """Return options with the element type float64, for numbers that are not all integers."""
    return options._replace(dtype=_FLOAT64)
