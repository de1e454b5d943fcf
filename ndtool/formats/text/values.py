"""The elements of a text file, converted from fields, exactly.

`Values.add` defines which fields are elements, and reports errors. `Values.add_array` appends what
a library has parsed, unless the result might differ from that of `add`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from ndtool.errors import DtypeError, InputError, format_value, printable
from ndtool.formats.table import TextOptions
from ndtool.rules import dtypes, mistakes, numbers
from ndtool.rules.dtypes import Dtype
from ndtool.storage.tempfiles import Spool

INT64_MIN, INT64_MAX, UINT64_MAX = -(2**63), 2**63 - 1, 2**64 - 1
_INT64, FLOAT64 = dtypes.from_name("int64"), dtypes.from_name("float64")
# Integers without a point or exponent that a type may have to round, which is an error.
_LONG_INTEGERS = {
    size: re.compile(rb"(?<![0-9.eE+-])[+-]?[0-9]{%d,}(?![0-9.eE])" % digits)
    for size, digits in ((8, 16), (4, 8), (2, 4))
}


class NotIntegersError(Exception):
    """The error for a number that is not an integer, in a file whose type is inferred."""


class _FieldError(Exception):
    """The error for a field that is not an element of the type."""


class Values:
    """The elements of a text file, in a buffer or, if it is large, an unnamed file.

    count: the number of elements. warning: about the file, or None. are_indices: whether empty text
    is an error, so that the output of a command that failed is not taken for indices. fast_type:
    the type that `add_array` requires of a library's parser, "q" for integers and "d" for floats;
    "" if elements can only be added by `add`. infers_type: whether NotIntegersError is raised for a
    number that is no integer. argument: the file and its columns.
    """

    def __init__(self, options: TextOptions, label: str, argument: str = "-") -> None:
        self.count, self._label, self._options = 0, label, options
        self._argument = argument
        self.warning: str | None = None
        self.are_indices = options.integers
        self._dtype = options.dtype or _INT64
        self._spool = Spool(options.directory)
        self._has_negative = self._needs_uint64 = False
        dtype = self._dtype
        if dtype.kind not in "biufc" and dtype.name not in dtypes.EXTENSION_DTYPES:
            raise DtypeError(
                f"{printable(label)}: a text file has numbers: they cannot be {dtype.name}"
            )
        self._is_untyped = options.dtype is None
        self.infers_type = self._is_untyped and not options.integers
        has_fast_type = dtype.kind in "iu" or dtype.name in ("float16", "float32", "float64")
        self.fast_type = ("d" if dtype.kind == "f" else "q") if has_fast_type else ""

    def add_array(self, array: Any, text: bytes | None = None) -> bool:
        """Append int64, uint64 or float64 elements, or return False if one is out of range.

        False also if rounding to the type requires the text of a number. text: what the array was
        parsed from; None if its integers are known to be exact.
        """
        import numpy as np

        if not array.size:
            return True
        if array.dtype.kind == "f":
            narrowed = _narrow(array, np.dtype(self._dtype.descr), text)
            return narrowed is not None and self._append(narrowed)
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

        elements = list[Any]()
        try:
            if self.fast_type == "q":
                for field in fields:
                    elements.append(self._parse_integer(field))
                type_code = "u8" if self._needs_uint64 else "i8"
                self._append(
                    np.array(elements, type_code if self._is_untyped else self._dtype.descr)
                )
                return
            texts = [str(field).strip(" \t") for field in fields]
            if self.fast_type == "d" and all(map(numbers.REAL.fullmatch, texts)):
                doubles: Any = np.array(list(map(float, texts)))
                infinite = np.flatnonzero(np.isinf(doubles))  # a number may be too large
                is_written = all("inf" in texts[n].lower() for n in infinite)
                if is_written and self.add_array(doubles, "\n".join(texts).encode()):
                    return
            for text in texts:
                elements.append(self._parse_element(text))
        except _FieldError as exc:
            is_float = self.are_indices and numbers.is_number(str(fields[len(elements)]))
            hint = self._float_hint() if is_float else ""
            message = f"{printable(self._label)}: {locate(len(elements))}: {exc}"
            raise InputError(message, hint=hint) from None
        self._append(np.frombuffer(b"".join(elements), np.uint8), len(elements))

    def _float_hint(self) -> str:
        """Return the commands that make integers of numbers such as 5.0."""
        if self._argument == "-":
            return ""
        stem = self._argument.replace(":", "-")
        load = "x = np.load({0!r}); i = x.astype('int64'); assert (i == x).all()"
        command = mistakes.numpy_command(f"{stem}.npy", "indices", load, "i")
        convert = f"ndtool convert {mistakes.quote(self._argument)} {mistakes.quote(f'{stem}.npy')}"
        return mistakes.then("are they whole numbers?", command and f"{convert} && {command}")

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
            field = field.strip(" \t")
            is_integer = numbers.INTEGER.fullmatch(field)
            if self.infers_type and not is_integer and numbers.is_number(field):
                raise NotIntegersError
            _require_length(field)
            if not is_integer:
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

    def _parse_element(self, text: str) -> bytes:
        """Convert a field to an element, and return its bytes."""
        _require_length(text)
        if not numbers.is_number(text):
            raise _field_error(text, "a number", "such as 0.5, -1e3 or nan")
        try:
            return numbers.encode(text, self._dtype)
        except DtypeError as exc:
            raise _FieldError(exc.message) from None


def _require_length(field: str) -> None:
    if len(field) > numbers.MAX_LENGTH:
        raise _FieldError(f"a field of {len(field)} characters: valid up to {numbers.MAX_LENGTH}")


def _field_error(field: str, expected: str, example: str) -> _FieldError:
    if not field:
        return _FieldError(f"the field is empty: expected {expected} {example}")
    return _FieldError(f"{format_value(field)} is not {expected}: expected one {example}")


def _narrow(doubles: Any, dtype: Any, text: bytes | None) -> Any:
    """Return doubles rounded to a type; None if that requires the text of one.

    Rounding twice is wrong if the double is halfway between two elements and the decimal is not.
    An integer that must be rounded is an error.
    """
    import numpy as np

    long_integer = _LONG_INTEGERS[dtype.itemsize]
    if dtype.itemsize == 8:
        is_exact = doubles.min() > -(2**53) and doubles.max() < 2**53  # False for a NaN
        has_long_integer = not is_exact and text is not None and long_integer.search(text)
        return None if has_long_integer else doubles.astype(dtype, copy=False)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrowed = doubles.astype(dtype)
        is_rounded = narrowed.astype(np.float64) != doubles
        is_rounded &= doubles == doubles
        is_integer = is_rounded & (doubles == np.rint(doubles))
        may_be_rounded = is_integer | (np.abs(doubles) >= 2**53)
        has_tie = (is_rounded & (doubles.view(np.uint64) & numbers.TIE_MASK == 0)).any()
    if has_tie or (np.isinf(narrowed) & np.isfinite(doubles)).any():
        return None
    has_long_integer = text is not None and may_be_rounded.any() and long_integer.search(text)
    return None if has_long_integer else narrowed
