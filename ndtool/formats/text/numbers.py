"""The numbers of text files: fields to elements of a type, exactly.

`Values.add` defines what a number is. `Values.add_array` takes blocks that a faster parser has
read, and leaves all that is not certain to `add`, which also reports the errors.
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

LONGEST = 1000  # characters of a number
LOWEST, HIGHEST, UNSIGNED = -(2**63), 2**63 - 1, 2**64 - 1
_INTEGER = re.compile(r"[+-]?[0-9]+")
_SIGNED, _DOUBLE = dtypes.from_name("int64"), dtypes.from_name("float64")


class NotIntegersError(Exception):
    """A number that is no integer, in a file whose type depends on its content."""


class _FieldError(Exception):
    """The reason why a field is not an element."""


def is_number(field: str) -> bool:
    """Whether a field is a number of some type, so that its row is no header."""
    return len(field) <= LONGEST and filling.is_value(field)


class Values:
    """The elements of a text file, in a buffer or, if it is large, an unnamed file.

    count: the number of elements. fast_type: the type that a faster parser should read, "q" for
    integers and "d" for floats; "" if it has none.
    """

    def __init__(self, options: TextOptions, label: str) -> None:
        self.count, self._label, self._options = 0, label, options
        self._dtype = options.dtype or _SIGNED
        self._spool = Spool(options.directory)
        self._negative = self._unsigned = False
        dtype = self._dtype
        if dtype.kind not in "biufc" and dtype.name not in dtypes.EXTENDED:
            raise DtypeError(
                f"{printable(label)}: a text file has numbers: they cannot be {dtype.name}"
            )
        self._is_untyped = options.dtype is None
        plain = dtype.kind in "iu" or dtype.name in ("float16", "float32", "float64")
        self.fast_type = ("d" if dtype.kind == "f" else "q") if plain else ""

    def add_array(self, array: Any) -> bool:
        """Append int64, uint64 or float64 elements; False, without an effect, if one is unfit."""
        import numpy as np

        if not array.size:
            return True
        if array.dtype.kind == "f":
            narrowed = _narrowed(array, np.dtype(self._dtype.descr))
            if narrowed is None:
                return False
            return self._put(narrowed)
        smallest, largest = int(array.min()), int(array.max())
        if self._is_untyped:
            if (smallest < 0 and self._unsigned) or (largest > HIGHEST and self._negative):
                return False
            self._negative |= smallest < 0
            self._unsigned |= largest > HIGHEST
            return self._put(array)
        lowest, highest = self._range()
        return (
            lowest <= smallest and largest <= highest and self._put(array.astype(self._dtype.descr))
        )

    def add(self, fields: Sequence[Any], locate: Callable[[int], str]) -> None:
        """Append fields, which are text or int; InputError if one is no element of the type.

        locate: the location of a field, by its number.
        """
        import numpy as np

        convert = {"q": self._integer, "d": self._float}.get(self.fast_type, self._element)
        elements = list[Any]()
        try:
            for field in fields:
                elements.append(convert(field.strip(" \t") if isinstance(field, str) else field))
            if self.fast_type == "q":
                code = "u8" if self._unsigned else "i8"
                self._put(np.array(elements, code if self._is_untyped else self._dtype.descr))
                return
            if self.fast_type == "d" and self.add_array(np.array(elements, np.float64)):
                return
            if self.fast_type == "d":
                elements = []
                for field in fields:
                    elements.append(self._rounded(str(field).strip(" \t")))
        except _FieldError as exc:
            raise InputError(f"{printable(self._label)}: {locate(len(elements))}: {exc}") from None
        self._put(np.frombuffer(b"".join(elements), np.uint8), len(elements))

    def finish(self) -> tuple[Dtype, memoryview]:
        """Return the element type and the bytes."""
        dtype = dtypes.from_name("uint64") if self._unsigned else self._dtype
        return dtype, self._spool.finish()

    def _put(self, array: Any, count: int | None = None) -> bool:
        self._spool.write(memoryview(array.reshape(-1)).cast("B") if array.size else b"")
        self.count += array.size if count is None else count
        return True

    def _integer(self, field: Any) -> int:
        if type(field) is not int:
            if len(field) > LONGEST:
                raise _FieldError(f"a field of {len(field)} characters: valid up to {LONGEST}")
            if not _INTEGER.fullmatch(field):
                if not self._options.integers and self._is_untyped and is_number(field):
                    raise NotIntegersError
                raise _error(field, "an integer", "such as 5 or -1")
            field = int(field)
        value: int = field
        lowest, highest = self._range()
        if not lowest <= value <= highest:
            what = "64 bits" if self._is_untyped else self._dtype.name
            raise _FieldError(f"{format_value(value)} is beyond {what}: valid {lowest}..{highest}")
        if self._is_untyped:
            self._negative |= value < 0
            self._unsigned |= value > HIGHEST
        return value

    def _range(self) -> tuple[int, int]:
        if not self._is_untyped:
            return dtypes.integer_range(8 * self._dtype.itemsize, self._dtype.kind == "i")
        return 0 if self._unsigned else LOWEST, HIGHEST if self._negative else UNSIGNED

    def _float(self, field: Any) -> float:
        text = str(field)
        if not is_number(text) or text[-1:] in ")jJeE":
            raise _error(text, "a number", "such as 0.5, -1e3 or nan")
        return float(text)

    def _rounded(self, text: str) -> bytes:
        """Return the bytes of the float nearest to a decimal number."""
        import numpy as np

        code, double = np.dtype(self._dtype.descr), float(text)
        with np.errstate(over="ignore", under="ignore"):
            nearest = np.array(double).astype(code)
            if np.isinf(nearest) and "inf" not in text.lower():
                raise _FieldError(f"{format_value(text)} is too large for {self._dtype.name}")
            rounded = float(nearest)
            if math.isfinite(double) and rounded != double:
                from fractions import Fraction

                toward = np.array(math.inf if double > rounded else -math.inf).astype(code)
                other = np.nextafter(nearest, toward)
                halfway = double - rounded == float(other) - double
                exact = Fraction(text) - Fraction(double) if halfway else 0
                if exact:
                    nearest = (max if exact > 0 else min)(nearest, other)
        return bytes(np.asarray(nearest, code).tobytes())

    def _element(self, field: Any) -> bytes:
        """Return the bytes of an element of a type without a fast parser."""
        text = str(field)
        if not is_number(text):
            raise _error(text, "a number", "such as 0.5, -1e3 or nan")
        try:
            return filling.encode(text, self._dtype)
        except DtypeError as exc:
            raise _FieldError(exc.message.removeprefix("fill is ")) from None


def _error(field: str, what: str, example: str) -> _FieldError:
    if not field:
        return _FieldError(f"the field is empty: expected {what} {example}")
    return _FieldError(f"{format_value(field)} is not {what}: expected one {example}")


def _narrowed(doubles: Any, dtype: Any) -> Any:
    """Return doubles rounded to a type, None where the text must decide.

    Rounding twice is wrong where the double is halfway between two elements and the text is not.
    """
    import numpy as np

    if np.isinf(doubles).any():
        return None
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        narrowed = doubles.astype(dtype)
        if dtype.itemsize == 8:
            return narrowed
        rounded = narrowed.astype(np.float64)
        other = np.nextafter(narrowed, np.where(doubles > rounded, np.inf, -np.inf).astype(dtype))
        halfway = (doubles != rounded) & (doubles - rounded == other.astype(np.float64) - doubles)
    return None if halfway.any() or np.isinf(narrowed).any() else narrowed


def as_float(options: TextOptions) -> TextOptions:
    """Return the options for a file whose numbers are not all integers."""
    return options._replace(dtype=_DOUBLE)
