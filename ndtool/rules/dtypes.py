"""Element types: name, size, byte order, and which reductions have a meaning for them."""

import re
import sys
from functools import lru_cache
from math import prod
from typing import Any, NamedTuple

from ndtool.errors import DtypeError
from ndtool.rules.operators import REDUCTIONS

NATIVE = "<" if sys.byteorder == "little" else ">"
# The order is the kernels' numbering of arithmetic types.
ARITHMETIC = (
    "bool",
    "int8", "int16", "int32", "int64",
    "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
    "complex64", "complex128",
)  # fmt: skip
_UNORDERED = ("complex64", "complex128")
# Types that NumPy lacks and .npy stores as void; ml_dtypes has them all.
EXTENDED = {
    "bfloat16": 2,
    "float8_e3m4": 1,
    "float8_e4m3": 1,
    "float8_e4m3b11fnuz": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
}
_SIZES = {
    "b": (1,),
    "i": (1, 2, 4, 8),
    "u": (1, 2, 4, 8),
    "f": (2, 4, 8, 12, 16),
    "c": (8, 16, 24, 32),
    "m": (8,),
    "M": (8,),
}
_WORDS = {"b": "bool", "i": "int", "u": "uint", "f": "float", "c": "complex"}
_DESCR = re.compile(
    r"([<>|=]?)([biufcmMSUV])([0-9]{1,10})(\[[0-9]{0,9}(?:[YMWDhms]|ms|us|ns|ps|fs|as)\])?"
)
_LARGEST = 2**31 - 1  # NumPy's limit for one element
_AXES = 64  # of a field; NumPy's limit too


class Dtype(NamedTuple):
    """An element type, known without NumPy.

    name: NumPy's name, or the code of a flexible type (`U5`, `V2`); "struct" for records.
    descr: what a .npy header says, as Python data. itemsize: bytes per element. kind: NumPy's
    kind letter. order: "<", ">" or "|" where byte order has no meaning.
    """

    name: str
    descr: Any
    itemsize: int
    kind: str
    order: str

    @property
    def swapped(self) -> bool:
        """Whether the bytes are in the other order than this machine's."""
        return self.order not in (NATIVE, "|")

    @property
    def unit(self) -> int:
        """Bytes that byte order reverses together: a part of a complex number or string."""
        if self.order == "|":
            return 1
        return {"c": self.itemsize // 2, "U": 4}.get(self.kind, self.itemsize)

    @property
    def arithmetic(self) -> int:
        """The kernels' number of this type, -1 where it has no arithmetic."""
        return ARITHMETIC.index(self.name) if self.name in ARITHMETIC else -1

    @property
    def reductions(self) -> tuple[str, ...]:
        """The reductions that this type has."""
        if self.name in _UNORDERED:
            return REDUCTIONS[:3]
        return REDUCTIONS if self.arithmetic >= 0 else REDUCTIONS[:1]


@lru_cache(maxsize=256)
def from_code(code: str) -> Dtype:
    """Return the type of a descr such as "<f4", "|S3" or "<M8[ns]"."""
    match = _DESCR.fullmatch(code)
    if match is None:
        raise DtypeError(f"{code!r} is not an element type: expected one like '<f4'")
    order, kind, digits, unit = match.groups()
    size = int(digits)
    if size not in _SIZES.get(kind, (size,)) or (unit and kind not in "mM"):
        raise DtypeError(f"{code!r} is not an element type that NumPy has")
    itemsize = 4 * size if kind == "U" else size
    if not 0 < itemsize <= _LARGEST:
        raise DtypeError(f"{code!r} has {itemsize} bytes per element: valid 1..{_LARGEST}")
    if order in ("", "="):
        order = NATIVE
    if kind in "SVb" or (itemsize == 1 and kind in "iu"):
        order = "|"
    return Dtype(_name(kind, size, unit), order + code.lstrip("<>|="), itemsize, kind, order)


def _name(kind: str, size: int, unit: str | None) -> str:
    if kind in "mM":
        return ("timedelta64" if kind == "m" else "datetime64") + (unit or "")
    if kind == "b":
        return "bool"
    return f"{_WORDS[kind]}{8 * size}" if kind in _WORDS else f"{kind}{size}"


def from_descr(descr: Any) -> Dtype:
    """Return the type that a .npy header's descr names; records become opaque bytes.

    Raises DtypeError for Python objects, sizes of zero and anything that is no descr.
    """
    if isinstance(descr, str):
        if _is_object(descr):
            raise DtypeError("Python objects are never read: the elements must have a fixed size")
        return from_code(descr)
    return Dtype("struct", descr, _record_size(descr, 0), "V", "|")


def _is_object(code: str) -> bool:
    return code.lstrip("<>|=") in ("O", "O4", "O8")


def _record_size(descr: Any, depth: int) -> int:
    """Return the bytes of one record: a list of (name, descr[, shape]) as NumPy writes it."""
    if isinstance(descr, str):
        return from_descr(descr).itemsize
    if not isinstance(descr, list) or not descr or depth > 32:
        raise DtypeError("the descr is neither an element type nor a list of fields")
    size, names = 0, set()
    for field in descr:
        if not isinstance(field, tuple) or len(field) not in (2, 3):
            raise DtypeError("a field is not a (name, descr) or (name, descr, shape) tuple")
        name = field[0][1] if isinstance(field[0], tuple) and len(field[0]) == 2 else field[0]
        shape = field[2] if len(field) == 3 else ()
        if not isinstance(name, str) or (name and name in names):
            raise DtypeError("a field's name is not a string, or there twice")
        if not isinstance(shape, tuple) or any(type(d) is not int or d < 0 for d in shape):
            raise DtypeError("a field's shape is not a tuple of sizes")
        names.add(name)
        item = _record_size(field[1], depth + 1)
        # Zeros count as ones, as NumPy takes no size that it could not count with.
        if len(shape) > _AXES or item * prod(d or 1 for d in shape) > _LARGEST:
            raise DtypeError(f"a field has more than {_LARGEST} bytes or {_AXES} axes")
        size += item * prod(shape)
        if size > _LARGEST:
            raise DtypeError(f"a record has more than {_LARGEST} bytes")
    if not size:
        raise DtypeError("a record has 0 bytes: it must have at least one")
    return size


def from_name(name: str) -> Dtype:
    """Return the type of a name such as "float32", "bfloat16" or a code such as "U5"."""
    if name in EXTENDED:
        size = EXTENDED[name]
        return Dtype(name, f"|V{size}", size, "V", NATIVE if size > 1 else "|")
    for kind, word in _WORDS.items():
        if name == word == "bool":
            return from_code("|b1")
        bits = name.removeprefix(word)
        if bits != name and bits.isdecimal() and int(bits) % 8 == 0:
            return from_code(f"{NATIVE}{kind}{int(bits) // 8}")
    for kind, word in (("m", "timedelta64"), ("M", "datetime64")):
        if name.startswith(word):
            return from_code(f"{NATIVE}{kind}8{name.removeprefix(word)}")
    return from_code(name)


@lru_cache(maxsize=256)
def from_numpy(dtype: Any) -> Dtype:
    """Return the type of a NumPy dtype object, ml_dtypes' included."""
    if dtype.hasobject:
        raise DtypeError(f"dtype {dtype} holds Python objects: elements must have a fixed size")
    if not dtype.itemsize:
        raise DtypeError(f"dtype {dtype} has 0 bytes per element: it must have at least one")
    if dtype.name in EXTENDED:
        return from_name(dtype.name)
    if dtype.kind == "V":
        name = "struct" if dtype.names is not None else f"V{dtype.itemsize}"
        return Dtype(name, str(dtype), dtype.itemsize, "V", "|")
    if dtype.kind not in "biufcmMSU":
        raise DtypeError(f"dtype {dtype} is not one that a .npy file can hold")
    return from_code(dtype.str)


def view_as(dtype: Dtype, name: str) -> Dtype:
    """Return `dtype`, stored as void, as the type `name` that NumPy has no code for."""
    wanted = from_name(name)
    if wanted.name == dtype.name:
        return dtype
    if dtype.kind != "V" or dtype.name == "struct" or wanted.itemsize != dtype.itemsize:
        raise DtypeError(
            f"dtype {dtype.name} cannot be taken as {name}:"
            f" only V{wanted.itemsize} elements can, which are stored without a type"
        )
    return wanted._replace(descr=dtype.descr)
