"""ONNX's TensorProto: the metadata of a tensor, validated against the sizes of its fields."""

from math import prod
from typing import NamedTuple

from ndtool.errors import printable, refuse
from ndtool.formats.onnx import wire
from ndtool.formats.onnx.wire import Field, Message
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape
from ndtool.rules.shapes import MAX_RANK, MAX_SIZE, format_type

STRING = 8
DIMS, DATA_TYPE, SEGMENT, NAME, RAW, DOC = 1, 2, 3, 8, 9, 12
EXTERNAL_DATA, LOCATION, METADATA = 13, 14, 16
# The fields that may contain elements, with the wire type of their values.
VALUES = {
    4: ("float_data", wire.FIXED32),
    5: ("int32_data", wire.VARINT),
    6: ("string_data", wire.LENGTH),
    7: ("int64_data", wire.VARINT),
    RAW: ("raw_data", wire.LENGTH),
    10: ("double_data", wire.FIXED64),
    11: ("uint64_data", wire.VARINT),
}
FIELDS = {DIMS, DATA_TYPE, SEGMENT, NAME, DOC, EXTERNAL_DATA, LOCATION, METADATA, *VALUES}
_WIRE_TYPES = {
    DATA_TYPE: wire.VARINT, SEGMENT: wire.LENGTH, DOC: wire.LENGTH, LOCATION: wire.VARINT,
    METADATA: wire.LENGTH,
}  # fmt: skip
_MAX_EXTERNAL_LENGTH = 1 << 12  # maximum number of characters in external_data


class Element(NamedTuple):
    """An element type. field: the number of the field with its values, other than raw_data."""

    onnx_name: str
    dtype: Dtype
    field: int

    @property
    def bits(self) -> int:
        """Bits per element in raw_data, where elements of less than 8 bits are packed."""
        return self.dtype.bits


_TYPES = {  # by the value of data_type: ONNX's name, ndtool's name, the field of the values
    1: ("FLOAT", "float32", 4), 2: ("UINT8", "uint8", 5), 3: ("INT8", "int8", 5),
    4: ("UINT16", "uint16", 5), 5: ("INT16", "int16", 5), 6: ("INT32", "int32", 5),
    7: ("INT64", "int64", 7), 9: ("BOOL", "bool", 5), 10: ("FLOAT16", "float16", 5),
    11: ("DOUBLE", "float64", 10), 12: ("UINT32", "uint32", 11), 13: ("UINT64", "uint64", 11),
    14: ("COMPLEX64", "complex64", 4), 15: ("COMPLEX128", "complex128", 10),
    16: ("BFLOAT16", "bfloat16", 5), 17: ("FLOAT8E4M3FN", "float8_e4m3fn", 5),
    18: ("FLOAT8E4M3FNUZ", "float8_e4m3fnuz", 5), 19: ("FLOAT8E5M2", "float8_e5m2", 5),
    20: ("FLOAT8E5M2FNUZ", "float8_e5m2fnuz", 5), 21: ("UINT4", "uint4", 5),
    22: ("INT4", "int4", 5), 23: ("FLOAT4E2M1", "float4_e2m1fn", 5),
    24: ("FLOAT8E8M0", "float8_e8m0fnu", 5), 25: ("UINT2", "uint2", 5), 26: ("INT2", "int2", 5),
    27: ("FLOAT6E2M3", "float6_e2m3fn", 5), 28: ("FLOAT6E3M2", "float6_e3m2fn", 5),
}  # fmt: skip
ELEMENTS = {
    number: Element(onnx_name, dtypes.little_endian(name), field)
    for number, (onnx_name, name, field) in _TYPES.items()
}


class Tensor(NamedTuple):
    """The validated metadata of a tensor; its values are not read.

    values: the field with the values in `message`, None if it has none. external: the entries of
    external_data, None if the values are in the message. literal: the bytes of the elements of an
    attribute, else None.
    """

    name: str
    element: Element
    shape: Shape
    message: Message
    values: Field | None = None
    external: dict[str, str] | None = None
    literal: bytes | None = None

    @property
    def count(self) -> int:  # type: ignore[override] # a tensor is not used as a tuple
        return prod(self.shape)

    @property
    def stored_nbytes(self) -> int:
        """Size of raw_data in bytes, with packed elements."""
        return -(-self.count * self.element.bits // 8)

    @property
    def stored_count(self) -> int:
        """Number of values in a field other than raw_data."""
        if self.element.dtype.kind == "c":
            return 2 * self.count
        return self.stored_nbytes if self.element.bits in (2, 4) else self.count

    @property
    def description(self) -> str:
        """ONNX's name of the type, and the shape: "FLOAT[2, 3]"."""
        return f"{self.element.onnx_name}{list(self.shape)}"

    @property
    def field(self) -> str:
        """The name of the field with the elements, "" if the tensor has none."""
        if self.external is not None:
            return "external_data"
        if self.literal is not None:
            return "attribute"
        return "" if self.values is None else VALUES[self.values.number][0]

    @property
    def has_varints(self) -> bool:
        return self.values is not None and VALUES[self.values.number][1] == wire.VARINT

    @property
    def decode_reason(self) -> str:
        """The reason why the elements must be decoded, "" if they can be memory-mapped."""
        if self.element.bits % 8:
            return f"{self.element.bits} bits per element"
        if self.literal is not None:
            return "in an attribute"
        return "encoded number by number" if self.has_varints else ""

    @property
    def nbytes(self) -> int:
        return self.count * self.element.dtype.itemsize


def read(message: Message) -> Tensor:
    """Parse a TensorProto; InputError if it is invalid, or contradicts the sizes of its fields."""
    dims, external, found = list[int](), dict[str, str](), dict[int, Field]()
    label = message.label
    for field in message.fields():
        number = field.number
        name, wire_type = VALUES.get(number, (f"field {number} of TensorProto", None))
        if field.wire_type != _WIRE_TYPES.get(number, field.wire_type):
            refuse(label, f"{name} has the wrong wire type")
        if wire_type is not None and field.wire_type not in (wire_type, wire.LENGTH):
            refuse(label, f"{name} has values of the wrong wire type")
        if number == DIMS:
            dims += message.varints(field, MAX_RANK)
            if len(dims) > MAX_RANK:
                refuse(label, f"dims has more than {MAX_RANK} entries")
        elif number == EXTERNAL_DATA:
            _add_external(message, field, external)
        elif number in FIELDS and number not in (DOC, METADATA):
            if number in found:
                refuse(label, f"{name} appears twice: valid once")
            found[number] = field
    element = _element(label, found.get(DATA_TYPE))
    if SEGMENT in found:
        refuse(label, "it is one segment of a tensor: expected a complete one")
    for axis, size in enumerate(dims):
        if size > MAX_SIZE:
            refuse(label, f"dims[{axis}] is {size - (1 << 64)}: expected 0..{MAX_SIZE}")
    shape = tuple(dims)
    if prod(size or 1 for size in shape) * element.dtype.itemsize > MAX_SIZE:
        claim = f"it claims {format_type(element.dtype, shape)}"
        refuse(label, f"{claim}: valid up to {MAX_SIZE} bytes, sizes of 0 count as 1")
    location = found.get(LOCATION)
    if location is not None and location.value not in (0, 1):
        refuse(label, f"data_location is {location.signed}: valid 0 (DEFAULT), 1 (EXTERNAL)")
    is_external = location is not None and location.value == 1
    name = message.text(found[NAME]) if NAME in found else ""
    values = _values(label, element, found, is_external)
    tensor = Tensor(name, element, shape, message, values, external if is_external else None)
    if not is_external:
        _check_size(tensor)
    return tensor


def _add_external(message: Message, field: Field, external: dict[str, str]) -> None:
    entry = message.message_in(field)  # a StringStringEntryProto
    key, value = entry.text_of(1), entry.text_of(2)
    if key in external:
        refuse(message.label, f"external_data has {printable(key)} twice: valid once")
    external[key] = value
    if sum(len(key) + len(value) + 1 for key, value in external.items()) > _MAX_EXTERNAL_LENGTH:
        limit = f"more than {_MAX_EXTERNAL_LENGTH} characters"
        refuse(message.label, f"external_data has {limit}")


def _element(label: str, field: Field | None) -> Element:
    if field is None:
        refuse(label, "it has no data_type: expected an ONNX TensorProto")
    if field.signed == STRING:
        refuse(label, "the elements are strings: expected a type of a fixed size")
    if field.signed not in ELEMENTS:
        refuse(label, f"data_type is {field.signed}: valid 1..{max(ELEMENTS)} without {STRING}")
    return ELEMENTS[field.signed]


def _values(
    label: str, element: Element, found: dict[int, Field], is_external: bool
) -> Field | None:
    """Return the single field with values; the first one if all are empty."""
    fields = [field for number, field in found.items() if number in VALUES]
    nonempty = [field for field in fields if field.nbytes] or fields[:1]
    if RAW in found and found[RAW] not in nonempty:  # other readers prefer it
        nonempty.append(found[RAW])
    names = [VALUES[field.number][0] for field in nonempty]
    if is_external and names and nonempty[0].nbytes:
        refuse(label, f"the elements are in external_data and in {names[0]}: valid in one field")
    if len(nonempty) > 1:
        refuse(label, f"the elements are in {' and in '.join(names)}: valid in one field")
    if is_external or not nonempty:
        return None
    if nonempty[0].number not in (RAW, element.field):
        valid = f"valid in raw_data, {VALUES[element.field][0]}"
        refuse(label, f"the elements are {element.onnx_name} in {names[0]}: {valid}")
    return nonempty[0]


def _check_size(tensor: Tensor) -> None:
    """Raise InputError if the values have a wrong size."""
    values, label = tensor.values, tensor.message.label
    nbytes, count = 0 if values is None else values.nbytes, tensor.stored_count
    if values is None or values.number == RAW:
        if nbytes != tensor.stored_nbytes:
            expected = f"expected {tensor.stored_nbytes} bytes of raw_data"
            refuse(label, f"{expected} for {tensor.description}, found {nbytes}")
    elif tensor.has_varints:
        if not count <= nbytes <= count * wire.MAX_VARINT_BYTES:
            expected = f"expected {count} values in {tensor.field}"
            refuse(label, f"{expected}, found {nbytes} bytes of them")
    elif nbytes != count * (size := wire.SIZES[VALUES[values.number][1]]):
        expected = f"expected {count} values of {size} bytes in {tensor.field}"
        refuse(label, f"{expected}, found {nbytes} bytes")
