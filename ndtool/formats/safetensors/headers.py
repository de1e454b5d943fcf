"""The header of a safetensors file: 8 bytes of length, then JSON, which is untrusted."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from math import prod
from typing import Any, NamedTuple, NoReturn

from ndtool.errors import (
    DtypeError,
    InputError,
    OutputError,
    UsageError,
    format_value,
    library_message,
    printable,
    refuse,
)
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.shapes import MAX_RANK, MAX_SIZE, format_type
from ndtool.storage.local import File

LENGTH_SIZE = 8  # bytes of the header's length field
MAX_HEADER_BYTES = 100_000_000  # the safetensors package has the same limit
METADATA_KEY = "__metadata__"
_ALIGNMENT = 64  # of the data in written files
_KEYS = ("data_offsets", "dtype", "shape")
# The format's element types: ndtool's name, and bits per element.
_TYPES = {
    "BOOL": ("bool", 8), "U8": ("uint8", 8), "I8": ("int8", 8), "F8_E5M2": ("float8_e5m2", 8),
    "F8_E4M3": ("float8_e4m3fn", 8), "F8_E8M0": ("float8_e8m0fnu", 8),
    "F8_E4M3FNUZ": ("float8_e4m3fnuz", 8), "F8_E5M2FNUZ": ("float8_e5m2fnuz", 8),
    "I16": ("int16", 16), "U16": ("uint16", 16), "F16": ("float16", 16), "BF16": ("bfloat16", 16),
    "I32": ("int32", 32), "U32": ("uint32", 32), "F32": ("float32", 32), "F64": ("float64", 64),
    "I64": ("int64", 64), "U64": ("uint64", 64), "C64": ("complex64", 64),
    "F4": ("float4_e2m1fn", 4), "F6_E2M3": ("float6_e2m3fn", 6), "F6_E3M2": ("float6_e3m2fn", 6),
}  # fmt: skip
_CODES = {name: code for code, (name, _) in _TYPES.items()}
_CODE_PATTERN = re.compile("[A-Z][A-Z0-9_]{0,31}")
_MAX_VALUES = 1 << 20  # of a JSON text: each takes up to some 300 bytes of memory


class Tensor(NamedTuple):
    """A tensor's header entry. code: the element type. start, stop: offsets in the data section."""

    name: str
    code: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def dtype(self) -> Dtype:
        """The element type; DtypeError if it is unknown."""
        if self.code not in _TYPES:
            raise DtypeError(f"the element type {self.code} is unknown")
        return dtypes.little_endian(_TYPES[self.code][0])

    @property
    def alignment(self) -> int:
        """The required alignment in bytes."""
        return max(1, self.bits // 8)

    @property
    def bits(self) -> int:
        """Bits per element; 8 if the type is unknown."""
        return _TYPES.get(self.code, ("", 8))[1]


class Header(NamedTuple):
    """A parsed header.

    tensors: in the order of their offsets. metadata: the JSON text of `__metadata__`, "" if absent.
    data_offset: of the data section in the file.
    """

    tensors: tuple[Tensor, ...]
    metadata: str
    data_offset: int


def stored_dtype(dtype: Dtype) -> Dtype:
    """Return the element type as stored, little-endian; DtypeError if the format lacks it."""
    dtypes.require_one_of(dtype, _CODES, "a safetensors file")
    return dtypes.little_endian(dtype.name)


def has_header(storage: File) -> bool:
    """Whether a file begins with a header length and a JSON object."""
    head = storage.peek(0, LENGTH_SIZE + 1)  # a text file has no zero byte
    return head[LENGTH_SIZE : LENGTH_SIZE + 1] == b"{" and 0 in head[:LENGTH_SIZE]


def read_file_header(storage: File, path: str) -> Header:
    """Parse the header of an open file."""
    return read_header(lambda start, n: storage.read(start, n, path), storage.size, path)


def read_header(read: Callable[[int, int], bytes], size: int, name: str) -> Header:
    """Parse the header of a file.

    read: returns n bytes at an offset. size: of the file. name: of the file, for messages. Raises
    InputError for any violation of the format, such as gaps between tensors or trailing bytes.
    """
    length = int.from_bytes(read(0, min(LENGTH_SIZE, size)), "little")
    data_offset = LENGTH_SIZE + length
    if data_offset > size:
        refuse(name, f"the header claims {length} bytes, only {size - LENGTH_SIZE} remain")
    if length > MAX_HEADER_BYTES:
        refuse(name, f"the header claims {length} bytes: valid up to {MAX_HEADER_BYTES}")
    raw = read(LENGTH_SIZE, length)
    if len(raw) < length:
        refuse(name, f"the header is truncated: expected {length} bytes, found {len(raw)}")
    tensors, metadata = _parse_header(raw, name)
    end = 0
    tensors.sort(key=lambda tensor: (tensor.start, tensor.stop))
    for tensor in tensors:
        if tensor.start != end:
            problem = "overlaps the one" if tensor.start < end else "leaves a gap"
            refuse(
                name,
                f"invalid header: tensor {format_value(tensor.name)} begins at byte {tensor.start}"
                f" of the data and {problem} before it: expected {end}",
            )
        end = tensor.stop
    if end != size - data_offset:
        refuse(name, f"the header claims {end} bytes of data, the file has {size - data_offset}")
    return Header(tuple(tensors), metadata, data_offset)


def parse_object(raw: bytes, fail: Callable[[str], NoReturn]) -> dict[str, Any]:
    """Parse a JSON object in which no key is repeated. fail: raises an error with a message."""
    import json

    def as_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        fields: dict[str, Any] = {}
        for key, value in pairs:
            if key in fields:
                fail(f"two of the name {format_value(key)}: all must differ")
            (key + value if isinstance(value, str) else key).encode()  # no unpaired surrogates
            fields[key] = value
        return fields

    if sum(map(raw.count, (b"[", b"{", b","))) > _MAX_VALUES:
        fail(f"more than {_MAX_VALUES} values")
    try:
        document = json.loads(raw.decode(), object_pairs_hook=as_dict)
    except InputError:
        raise
    except UnicodeDecodeError:
        fail("not UTF-8")
    except (ValueError, RecursionError) as exc:
        fail(f"not JSON: {library_message(exc)}")
    if not isinstance(document, dict):
        fail("expected an object")
    return document


def _parse_header(raw: bytes, name: str) -> tuple[list[Tensor], str]:
    """Return the tensors in the order of the text, and the JSON text of the metadata."""
    import json

    def fail(problem: str) -> NoReturn:
        refuse(name, f"invalid header: {problem}")

    document, metadata = parse_object(raw, fail), ""
    if METADATA_KEY in document:
        fields = document.pop(METADATA_KEY)  # null is valid for the safetensors package, too
        if fields is not None and not (
            isinstance(fields, dict) and all(isinstance(value, str) for value in fields.values())
        ):
            fail(f"expected {METADATA_KEY} of strings, or null")
        metadata = json.dumps(fields, ensure_ascii=False)
    return [_validate(key, fields, fail) for key, fields in document.items()], metadata


def _validate(name: str, fields: Any, fail: Callable[[str], NoReturn]) -> Tensor:
    subject = f"tensor {format_value(name)}"
    if not isinstance(fields, dict) or sorted(fields) != list(_KEYS):
        found = f"the keys {', '.join(fields)}" if isinstance(fields, dict) else "no object"
        fail(f"{subject} has {found}: expected {', '.join(_KEYS)}")
    offsets, code, shape = (fields[key] for key in _KEYS)
    if not isinstance(code, str) or not _CODE_PATTERN.fullmatch(code):
        fail(f"{subject} has the dtype {format_value(code)}: expected one like F32")
    if not _are_sizes(shape) or len(shape) > MAX_RANK:
        expected = f"expected up to {MAX_RANK} sizes of 0..{MAX_SIZE}"
        fail(f"{subject} has the shape {format_value(shape)}: {expected}")
    if not _are_sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        found = f"the data_offsets {format_value(offsets)}"
        fail(f"{subject} has {found}: expected its start and stop")
    if code in _TYPES:
        bits, nbytes = _TYPES[code][1], offsets[1] - offsets[0]
        # Sizes of 0 count as 1: the strides of (0, 2**62, 2**62) overflow int64.
        if prod(size or 1 for size in shape) * bits > 8 * MAX_SIZE:
            fail(f"{subject} claims {code}{shape}: valid up to {MAX_SIZE} bytes")
        if (needed := prod(shape) * bits) != 8 * nbytes:
            size = f"{needed // 8} bytes" if needed % 8 == 0 else f"{needed} bits"
            fail(f"{subject} of {code}{shape} needs {size}, its data_offsets have {nbytes}")
    return Tensor(name, code, tuple(shape), *offsets)


def _are_sizes(value: Any) -> bool:
    return type(value) is list and all(type(n) is int and 0 <= n <= MAX_SIZE for n in value)


def encode(tensors: Iterable[Tensor], metadata: str) -> bytes:
    """Return the header of a file, with its length field, padded with spaces."""
    import json

    items = [f"{json.dumps(METADATA_KEY)}:{metadata}"] if metadata else []
    for tensor in tensors:
        fields = {
            "dtype": tensor.code,
            "shape": tensor.shape,
            "data_offsets": (tensor.start, tensor.stop),
        }
        name = json.dumps(tensor.name, ensure_ascii=False)
        items.append(f"{name}:{json.dumps(fields, separators=(',', ':'))}")
    raw = ("{" + ",".join(items) + "}").encode()
    length = len(raw) + -(LENGTH_SIZE + len(raw)) % _ALIGNMENT
    return length.to_bytes(LENGTH_SIZE, "little") + raw.ljust(length)


def tensor_name(name: str) -> str:
    """Return the name of a tensor; UsageError if it is invalid."""
    try:
        name.encode()
    except UnicodeError:
        raise UsageError(f"the tensor's name {printable(name, 40)} is not UTF-8") from None
    if name == METADATA_KEY:
        raise UsageError(
            f"no tensor may be called {METADATA_KEY}: the name is reserved for metadata"
        )
    return name


def assign_offsets(preserved: Iterable[Tensor], new: Tensor) -> list[Tensor]:
    """Assign offsets to tensors, in descending order of alignment, so that all are aligned.

    The order of tensors with equal alignment is preserved. `new` replaces a tensor with its name.
    If `new` is packed, it is the last tensor: its elements are written one per byte, and packed
    afterwards.
    """
    tensors = list(preserved)
    names = [tensor.name for tensor in tensors]
    if new.name in names:
        tensors[names.index(new.name)] = new
    else:
        tensors.append(new)
    assigned, offset = [], 0
    is_packed = new.bits % 8 != 0
    for tensor in sorted(
        tensors, key=lambda tensor: (-tensor.alignment, is_packed and tensor.name == new.name)
    ):
        stop = offset + tensor.stop - tensor.start
        assigned.append(tensor._replace(start=offset, stop=stop))
        offset = stop
    return assigned


def new_tensor(name: str, dtype: Dtype, shape: tuple[int, ...]) -> Tensor:
    """Return the header entry of an array at offset 0. dtype: from `stored_dtype`.

    Raises OutputError if packed elements do not fill the last byte: the format has no padding.
    """
    bits = prod(shape) * dtype.bits
    if bits % 8:
        raise OutputError(
            f"{format_type(dtype, shape)} has {bits} bits: a safetensors file holds multiples of 8",
            hint="an ONNX tensor, .pb, pads the last byte",
        )
    return Tensor(name, _CODES[dtype.name], shape, 0, bits // 8)
