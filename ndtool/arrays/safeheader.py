"""The header of a safetensors file: eight bytes of length, then JSON that is never trusted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from ndtool.arrays.flatjson import Text
from ndtool.errors import DtypeError, InputError, UsageError, printable, shown
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype

if TYPE_CHECKING:
    from ndtool.arrays.local import File

LENGTH = 8  # bytes that say how long the JSON is
LONGEST = 100_000_000  # bytes of JSON, which is the safetensors package's limit too
METADATA = "__metadata__"
_ALIGNMENT = 64  # of the data in files that are written here
_LARGEST = 2**63 - 1
_RANK = 64
_KEYS = ("data_offsets", "dtype", "shape")
# What the format calls element types, and the bits of each; wide ones are little-endian.
_TYPES = {
    "BOOL": ("bool", 8),
    "U8": ("uint8", 8),
    "I8": ("int8", 8),
    "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8),
    "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8),
    "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "I16": ("int16", 16),
    "U16": ("uint16", 16),
    "F16": ("float16", 16),
    "BF16": ("bfloat16", 16),
    "I32": ("int32", 32),
    "U32": ("uint32", 32),
    "F32": ("float32", 32),
    "F64": ("float64", 64),
    "I64": ("int64", 64),
    "U64": ("uint64", 64),
    "C64": ("complex64", 64),
    "F4": ("", 4),
    "F6_E2M3": ("", 6),
    "F6_E3M2": ("", 6),
}
_CODES = {name: code for code, (name, _) in _TYPES.items() if name}
_CODE = re.compile("[A-Z][A-Z0-9_]{0,31}")
# A value of a tensor has no braces; so that what is parsed at once takes little memory.
_VALUE = re.compile(r"[ \t\n\r]*(\{[^{}]{0,5000}\})")

_SIZE = "(?:0|[1-9][0-9]{0,18})"
# What the safetensors package writes of a tensor, parsed at once: models have ten thousands.
_PLAIN = re.compile(
    rf'\{{"dtype":"([A-Z][A-Z0-9_]{{0,31}})",'
    rf'"shape":\[((?:{_SIZE}(?:,{_SIZE}){{0,{_RANK - 1}}})?)\],'
    rf'"data_offsets":\[({_SIZE}),({_SIZE})\]\}}'
)


class Tensor(NamedTuple):
    """What a header says of one tensor. code: its element type; start, stop: within the data."""

    name: str
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def dtype(self) -> Dtype:
        """The element type; DtypeError where it is not one of whole bytes that we know."""
        name, bits = _TYPES.get(self.code, ("", 0))
        if not name:
            why = f"has {bits} bits: valid whole bytes" if bits else "is not known"
            raise DtypeError(f"the element type {self.code} {why}")
        return _little(name)

    @property
    def alignment(self) -> int:
        """Bytes at a multiple of which it must begin."""
        return max(1, _TYPES.get(self.code, ("", 8))[1] // 8)


class Header(NamedTuple):
    """What a file says of itself.

    tensors: in the order of their bytes. metadata: the text of its JSON object, empty where there
    is none. data: where the tensors' bytes begin.
    """

    tensors: tuple[Tensor, ...]
    metadata: str
    data: int


def _little(name: str) -> Dtype:
    dtype = dtypes.from_name(name)
    if name in dtypes.EXTENDED:
        return dtype._replace(order="<") if dtype.itemsize > 1 else dtype
    return dtypes.from_code(dtype.descr.replace(">", "<"))


def stored(dtype: Dtype) -> Dtype:
    """Return the type as a file has it: little-endian; DtypeError where it can have none such."""
    if dtype.name not in _CODES:
        void = dtype.kind == "V" and dtype.name not in (*dtypes.EXTENDED, "struct")
        hint = "--dtype says what elements stored as void are" if void else ""
        raise DtypeError(
            f"a safetensors file cannot hold {dtype.name}: valid {', '.join(_CODES)}", hint=hint
        )
    return _little(dtype.name)


def begins(place: File) -> bool:
    """Tell whether a file begins with the length of a header, and the header."""
    head = place.look(0, LENGTH + 1)  # of a text, no byte is zero
    return head[LENGTH : LENGTH + 1] == b"{" and 0 in head[:LENGTH]


def of_file(place: File, path: str) -> Header:
    """Return the header of a file."""
    return read(
        lambda start, count: place.read(start, min(count, place.size - start), path),
        place.size,
        path,
    )


def read(read: Callable[[int, int], bytes], size: int, name: str) -> Header:
    """Return the header of a file of `size` bytes; `read(start, n)` returns n of its bytes.

    Raises InputError, which calls the file `name`, for anything that the format forbids: so the
    tensors' bytes follow each other without gaps up to the end of the file.
    """
    length = int.from_bytes(read(0, LENGTH), "little")
    if length > size - LENGTH:
        _refuse(name, f"the header claims {length} bytes, only {size - LENGTH} are there")
    if length > LONGEST:
        _refuse(name, f"the header claims {length} bytes: valid up to {LONGEST}")
    raw = read(LENGTH, length)
    if len(raw) < length:
        _refuse(name, f"the header is cut short: expected {length} bytes, found {len(raw)}")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        _refuse(name, "the header is not UTF-8")
    tensors, metadata = _Tensors(text, name).header()
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    data = LENGTH + length
    _check_offsets(tensors, size - data, name)
    return Header(tuple(tensors), metadata, data)


def _refuse(name: str, text: str) -> NoReturn:
    raise InputError(f"{printable(name)}: {printable(text, 500)}") from None


class _Tensors:
    """The JSON of a header, of which one tensor is parsed at a time."""

    def __init__(self, text: str, name: str) -> None:
        import json

        self._name = name
        self._text = Text(text, self._fail)
        self._value = json.JSONDecoder(
            object_pairs_hook=list, parse_float=_number, parse_constant=_number
        ).decode

    def header(self) -> tuple[list[Tensor], str]:
        """Return the tensors in the order of the text, and the text of the metadata."""
        tensors, metadata = [], ""
        for key in self._text.keys("tensor"):
            if key == METADATA:
                metadata = self._metadata()
            else:
                tensors.append(self._tensor(key))
        self._text.end()
        return tensors, metadata

    def _metadata(self) -> str:
        text = self._text
        text.skip()
        start = text.at
        for _ in text.keys("metadata"):
            text.word("a metadata value, which is a string,")
        return text.text[start : text.at]

    def _tensor(self, name: str) -> Tensor:
        plain = _PLAIN.match(self._text.text, self._text.at)
        if plain is None:
            return self._checked(name, *self._fields(name))
        code, sizes, first, stop = plain.groups()
        self._text.at = plain.end()
        shape = list(map(int, sizes.split(","))) if sizes else []
        return self._checked(name, code, shape, [int(first), int(stop)])

    def _fields(self, name: str) -> tuple[Any, Any, Any]:
        """Return what the object of a tensor has, whatever it is."""
        match = _VALUE.match(self._text.text, self._text.at)
        if match is None:
            self._fail(f"tensor {shown(name)} has no object of {', '.join(_KEYS)}")
        try:
            pairs = self._value(match[1])
        except (ValueError, RecursionError):
            self._fail(f"tensor {shown(name)} is not JSON: {shown(match[1])}")
        fields = dict(pairs)
        if sorted(key for key, _ in pairs) != list(_KEYS):
            keys = ", ".join(str(key) for key, _ in pairs)
            self._fail(f"tensor {shown(name)} has the keys {keys}: expected {', '.join(_KEYS)}")
        self._text.at = match.end()
        return fields["dtype"], fields["shape"], fields["data_offsets"]

    def _checked(self, name: str, code: Any, shape: Any, offsets: Any) -> Tensor:
        if not isinstance(code, str) or not _CODE.fullmatch(code):
            self._fail(f"tensor {shown(name)} has the dtype {shown(code)}: expected such as 'F32'")
        if not _are_sizes(shape) or len(shape) > _RANK:
            self._fail(
                f"tensor {shown(name)} has the shape {shown(shape)}:"
                f" expected up to {_RANK} sizes of 0..{_LARGEST}"
            )
        if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            self._fail(
                f"tensor {shown(name)} has the data_offsets {shown(offsets)}:"
                " expected where its bytes begin and end"
            )
        tensor = Tensor(name, code, tuple(shape), *offsets)
        if wrong := _wrong_size(tensor):
            self._fail(f"tensor {shown(name)} {wrong}")
        return tensor

    def _fail(self, text: str) -> NoReturn:
        _refuse(self._name, f"the header is wrong: {text}")


def _number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no whole number")


def _are_sizes(value: Any) -> bool:
    return type(value) is list and all(type(n) is int and 0 <= n <= _LARGEST for n in value)


def _wrong_size(tensor: Tensor) -> str:
    """Say why a tensor cannot have the bytes that it claims, nothing if it can."""
    if tensor.code not in _TYPES:
        return ""
    bits = _TYPES[tensor.code][1]
    # Zeros count as ones: (0, 2**62, 2**62) has strides that no integer holds.
    if prod(size or 1 for size in tensor.shape) * bits > 8 * _LARGEST:
        return f"claims {tensor.code}{list(tensor.shape)}: valid up to {_LARGEST} bytes"
    count, there = prod(tensor.shape) * bits, tensor.stop - tensor.start
    if count != 8 * there:
        need = f"{count // 8} bytes" if count % 8 == 0 else f"{count} bits"
        return f"of {tensor.code}{list(tensor.shape)} needs {need}, its data_offsets have {there}"
    return ""


def _check_offsets(tensors: list[Tensor], size: int, name: str) -> None:
    """Refuse bytes that belong to no tensor, or to two."""
    at = 0
    for tensor in tensors:
        if tensor.start != at:
            what = "overlaps the one before it" if tensor.start < at else "leaves a gap before it"
            _refuse(
                name,
                f"the header is wrong: tensor {shown(tensor.name)} begins at byte {tensor.start}"
                f" of the data and {what}: expected {at}",
            )
        at = tensor.stop
    if at != size:
        _refuse(name, f"the header claims {at} bytes of data, {size} are there")


def encode(tensors: Iterable[Tensor], metadata: str) -> bytes:
    """Return the header of a file, its length included, padded with spaces."""
    import json

    items = [f"{json.dumps(METADATA)}:{metadata}"] if metadata else []
    for tensor in tensors:
        fields = {
            "dtype": tensor.code,
            "shape": tensor.shape,
            "data_offsets": (tensor.start, tensor.stop),
        }
        name = json.dumps(tensor.name, ensure_ascii=False)
        items.append(f"{name}:{json.dumps(fields, separators=(',', ':'))}")
    raw = ("{" + ",".join(items) + "}").encode()
    length = len(raw) + -(LENGTH + len(raw)) % _ALIGNMENT
    return length.to_bytes(LENGTH, "little") + raw.ljust(length)


def tensor_name(name: str) -> str:
    """Return a name that a tensor may have; UsageError where none may be called so."""
    try:
        name.encode()
    except UnicodeError:
        raise UsageError(f"the tensor's name {printable(name, 40)} is not UTF-8") from None
    if name == METADATA:
        raise UsageError(f"no tensor may be called {METADATA}: that is what metadata are under")
    return name


def laid_out(kept: Iterable[Tensor], new: Tensor) -> list[Tensor]:
    """Return where tensors stand in a new file: wide elements first, so that all are aligned.

    Among those of one width the order stays; the new one takes the place of that of its name.
    """
    old = list(kept)
    names = [tensor.name for tensor in old]
    if new.name in names:
        old[names.index(new.name)] = new
    else:
        old.append(new)
    placed, at = [], 0
    for tensor in sorted(old, key=lambda tensor: -tensor.alignment):
        stop = at + tensor.stop - tensor.start
        placed.append(tensor._replace(start=at, stop=stop))
        at = stop
    return placed


def new_tensor(name: str, dtype: Dtype, shape: tuple[int, ...]) -> Tensor:
    """Return an entry for an array of a type that `stored` returned."""
    return Tensor(name, _CODES[dtype.name], shape, 0, prod(shape) * dtype.itemsize)
