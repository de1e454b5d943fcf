"""Element types: name, size and byte order."""

import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ndtool.errors import DtypeError, format_value, option

NATIVE = "<" if sys.byteorder == "little" else ">"
# Element types that have reductions, by the kernels' names.
ARITHMETIC = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
# Element types of indices.
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
REALS = ("bool", *INTEGERS, "float16", "float32", "float64")  # those of text and columns
# ml_dtypes' types, with their sizes in bytes. NumPy has no codes for them; .npy stores void.
EXTENSION_DTYPES = {"bfloat16": 2} | dict.fromkeys((
    "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz",
    "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn", "float6_e2m3fn",
    "float6_e3m2fn", "int1", "int2", "int4", "uint1", "uint2", "uint4",
), 1)  # fmt: skip
# Types that model files pack, with the bits per element; in memory, an element takes a byte.
PACKED = {
    "int4": 4, "uint4": 4, "int2": 2, "uint2": 2,
    "float4_e2m1fn": 4, "float6_e2m3fn": 6, "float6_e3m2fn": 6,
}  # fmt: skip
_ITEMSIZES = {
    "b": (1,), "i": (1, 2, 4, 8), "u": (1, 2, 4, 8), "f": (2, 4, 8, 12, 16), "c": (8, 16, 24, 32),
    "m": (8,), "M": (8,),
}  # fmt: skip
_NAME_PREFIXES = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_UNITS = {"Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"}  # of datetime64
_DESCR = re.compile(r"([<>|=]?)([a-zA-Z])([0-9]+)(?:\[([0-9]*)([a-zA-Z]+)\])?")
_KINDS = "biufcmMSUV"
_MAX_DIGITS = 10  # of a number in a descr
_MAX_INT32 = 2**31 - 1  # NumPy's limit for an itemsize, a field's axis and a unit's multiple
_MAX_FIELD_AXES = 64  # of a field: NumPy's limit


class Dtype(NamedTuple):
    """An element type, described without NumPy.

    name: NumPy's name, or the code of a flexible type (`U5`, `V2`); "struct" for records. descr:
    the `descr` of a .npy header, as Python data. itemsize: bytes per element. kind: NumPy's kind
    letter. order: the byte order, "<" or ">"; "|" where it has no meaning.
    """

    name: str
    descr: Any
    itemsize: int
    kind: str
    order: str

    @property
    def is_swapped(self) -> bool:
        """Whether the byte order is not the native one."""
        return self.order not in (NATIVE, "|")

    @property
    def bits(self) -> int:
        """Bits per element in model files, which pack types smaller than a byte."""
        return PACKED.get(self.name, 8 * self.itemsize)

    @property
    def swap_size(self) -> int:
        """Bytes that a byte swap reverses: an element, half a complex number, or a character."""
        if self.order == "|":
            return 1
        return {"c": self.itemsize // 2, "U": 4}.get(self.kind, self.itemsize)


@lru_cache(maxsize=256)
def from_code(code: str) -> Dtype:
    """Return the type of a descr such as "<f4", "|S3" or "<M8[ns]"."""
    dtype = _from_code(code)
    if not dtype.itemsize:
        raise DtypeError(f"{code!r} has 0 bytes per element: valid 1..{_MAX_INT32}")
    return dtype


def _from_code(code: str) -> Dtype:
    """Return the type of a descr, perhaps text or void of 0 bytes, which fields may have."""
    match = _DESCR.fullmatch(code)
    order, kind, digits, count, unit = match.groups() if match else ("",) * 5
    is_known = kind and kind in _KINDS and (unit is None or unit in _UNITS)
    is_valid_count = not count or (count[0] != "0" and _is_decimal(count))
    if not (is_known and _is_decimal(digits) and is_valid_count):
        raise DtypeError(f"{code!r} is not an element type: expected one like '<f4'")
    size = int(digits)
    is_valid_unit = unit is None or (kind in "mM" and int(count or 1) <= _MAX_INT32)
    if size not in _ITEMSIZES.get(kind, (size,)) or not is_valid_unit:
        raise DtypeError(f"{code!r} is not an element type that NumPy has")
    itemsize = 4 * size if kind == "U" else size
    if itemsize > _MAX_INT32:
        raise DtypeError(f"{code!r} has {itemsize} bytes per element: valid 1..{_MAX_INT32}")
    if kind in "SVb" or (itemsize == 1 and kind in "iu"):
        order = "|"
    elif order not in ("<", ">"):  # "|" too: NumPy reads it as native
        order = NATIVE
    unit_suffix = f"[{'' if count in (None, '1') else count}{unit}]" if unit else ""
    return Dtype(
        _name(kind, size) + unit_suffix, f"{order}{kind}{size}{unit_suffix}", itemsize, kind, order
    )


def integer_range(bits: int, is_signed: bool) -> tuple[int, int]:
    """Return the lowest and the highest integer with `bits` bits.

    >>> integer_range(8, True)
    (-128, 127)
    """
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)


def _is_decimal(digits: str) -> bool:
    return len(digits) <= _MAX_DIGITS and (digits[0] != "0" or digits == "0")


def _name(kind: str, size: int) -> str:
    if kind in "mM":
        return "timedelta64" if kind == "m" else "datetime64"
    if kind == "b":
        return "bool"
    return f"{_NAME_PREFIXES[kind]}{8 * size}" if kind in _NAME_PREFIXES else f"{kind}{size}"


_CODES = {_name(kind, size): f"{kind}{size}" for kind in _ITEMSIZES for size in _ITEMSIZES[kind]}


def from_descr(descr: Any) -> Dtype:
    """Return the type of a .npy header's descr; records become opaque bytes.

    A record's descr is normalized to NumPy's spelling, so that equal records have equal ones.
    Raises DtypeError for Python objects, sizes of zero and a malformed descr.
    """
    if isinstance(descr, str):
        _refuse_objects(descr)
        return from_code(descr)
    if not isinstance(descr, list):
        raise DtypeError("the descr is neither an element type nor a list of fields")
    fields, size = _record(descr)
    if not size:
        raise DtypeError("a record has 0 bytes: it must have at least one")
    return Dtype("struct", fields, size, "V", "|")


def _refuse_objects(code: str) -> None:
    if code.lstrip("<>|=") in ("O", "O4", "O8"):
        raise DtypeError("Python objects are never read: the elements must have a fixed size")


def _field_type(descr: Any) -> tuple[Any, int]:
    """Return a field's descr in NumPy's spelling, and its size in bytes."""
    if isinstance(descr, str):
        _refuse_objects(descr)
        dtype = _from_code(descr)
        return dtype.descr, dtype.itemsize
    if isinstance(descr, list):
        return _record(descr)
    if isinstance(descr, tuple) and len(descr) == 2:
        return _subarray(*descr)
    raise DtypeError("a field is neither of an element type nor a list of fields")


def _subarray(descr: Any, shape: Any) -> tuple[Any, int]:
    """Return the descr and the bytes of a subarray field; shape: an int or a tuple."""
    element, size = _field_type(descr)
    sizes = shape if isinstance(shape, tuple) else (shape,)
    if any(type(d) is not int or not 0 <= d <= _MAX_INT32 for d in sizes):
        raise DtypeError(
            f"a field's shape is {format_value(shape)}: expected sizes of 0..{_MAX_INT32}"
        )
    if not size:
        raise DtypeError("a field of 0 bytes has a shape: expected at least one byte")
    count = prod(sizes)
    # Strides must fit into 64 bits; NumPy computes them with axes of 0 counted as 1.
    if len(sizes) > _MAX_FIELD_AXES or prod(d or 1 for d in sizes) >= 2**63:
        raise DtypeError(
            f"a field's shape is {format_value(shape)}: valid up to {_MAX_FIELD_AXES} axes, 2^63"
            " - 1"
        )
    if max(count, size * count) > _MAX_INT32:
        raise DtypeError(f"a field has more than {_MAX_INT32} bytes")
    return ((element, sizes) if sizes else element), size * count


def _record(fields: list[Any]) -> tuple[list[Any], int]:
    """Return the descr and the bytes of a record with fields (name, descr[, shape])."""
    result: list[Any] = []
    size = end = 0
    used_names: set[str] = set()
    for field in fields:
        if not isinstance(field, tuple) or len(field) not in (2, 3):
            raise DtypeError("a field is not a (name, descr) or (name, descr, shape) tuple")
        descr, nbytes = _field_type(field[1]) if len(field) == 2 else _subarray(*field[1:])
        size += nbytes
        if size > _MAX_INT32:
            raise DtypeError(f"a record has more than {_MAX_INT32} bytes")
        if field[0] == "" and _is_padding(descr):
            continue
        result += _padding(size - nbytes - end)
        shape = descr if isinstance(descr, tuple) else (descr,)
        result.append((_field_name(field[0], used_names), *shape))
        end = size
    return result + _padding(size - end), size


def _is_padding(item: Any) -> bool:
    """Whether NumPy reads a field without a name as padding."""
    return isinstance(item, tuple) or (isinstance(item, str) and item.startswith("|V"))


def _padding(nbytes: int) -> list[tuple[str, str]]:
    return [("", f"|V{nbytes}")] if nbytes else []


def _field_name(name: Any, used_names: set[str]) -> Any:
    """Return a field's name or (title, name); DtypeError for a duplicate."""
    title, name_text = name if isinstance(name, tuple) and len(name) == 2 else (None, name)
    if not isinstance(name_text, str) or not isinstance(title, str | None):
        raise DtypeError(
            f"a field is called {format_value(name)}: expected a name or (title, name)"
        )
    for text in (name_text,) if title is None else (name_text, title):
        if text in used_names:
            raise DtypeError(f"two fields have the name or title {text!r}: all must differ")
        used_names.add(text)
    return name_text if title is None else (title, name_text)


def from_name(name: str) -> Dtype:
    """Return the type of a name such as "float32", "bfloat16" or a code such as "U5"."""
    if name in EXTENSION_DTYPES:
        return _void_type(name, EXTENSION_DTYPES[name])
    if name in _CODES:
        return from_code(NATIVE + _CODES[name])
    for kind, prefix in (("m", "timedelta64"), ("M", "datetime64")):
        if name.startswith(prefix):
            return from_code(f"{NATIVE}{kind}8{name.removeprefix(prefix)}")
    return from_code(name)


def little_endian(name: str) -> Dtype:
    """Return the type of a name in little-endian byte order, as in model files."""
    dtype = from_name(name)
    if dtype.order == "|":
        return dtype
    return dtype._replace(order="<", descr=dtype.descr.replace(">", "<"))


def require_one_of(dtype: Dtype, names: Iterable[str], owner: str) -> None:
    """Raise DtypeError unless `names`, the types that a file `owner` can store, has `dtype`."""
    names = list(names)
    if dtype.name not in names:
        void = dtype.kind == "V" and dtype.name not in (*EXTENSION_DTYPES, "struct")
        raise DtypeError(
            f"{owner} cannot hold {dtype.name}: valid {', '.join(names)}",
            hint=f"{option('dtype')} sets the type of elements stored as void" if void else "",
        )


def _void_type(name: str, size: int) -> Dtype:
    """Return a named type that NumPy stores as void."""
    return Dtype(name, f"|V{size}", size, "V", NATIVE if size > 1 else "|")


@lru_cache(maxsize=256)
def from_numpy(dtype: Any) -> Dtype:
    """Return the type of a NumPy dtype object, ml_dtypes' included."""
    if dtype.hasobject:
        raise DtypeError(f"dtype {dtype} holds Python objects: elements must have a fixed size")
    if not dtype.itemsize:
        raise DtypeError(f"dtype {dtype} has 0 bytes per element: it must have at least one")
    if dtype.isbuiltin == 2:  # of another package: void with its name
        void = _void_type(dtype.name, dtype.itemsize)
        return void._replace(order=">") if dtype.str.startswith(">") else void
    if dtype.names is not None:
        return Dtype("struct", dtype, dtype.itemsize, "V", "|")
    if dtype.kind not in "biufcmMSUV":
        raise DtypeError(f"dtype {dtype} is not one that a .npy file can hold")
    return from_code(dtype.str)


def view_as(dtype: Dtype, name: str) -> Dtype:
    """Return the type `name` for void elements of the same size; DtypeError for other elements."""
    target = from_name(name)
    if target.name == dtype.name:
        return dtype
    if dtype.kind != "V" or dtype.name == "struct" or target.itemsize != dtype.itemsize:
        raise DtypeError(
            f"dtype {dtype.name} cannot be read as {name}:"
            f" only V{target.itemsize} elements can, which are stored without a type"
        )
    return target._replace(descr=dtype.descr)
