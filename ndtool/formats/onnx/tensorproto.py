"""ONNX's TensorProto: the metadata of a tensor, validated against the sizes of its fields."""

from math import prod
from typing import NamedTuple, NoReturn

from ndtool.errors import printable, refuse
from ndtool.formats.onnx import wire
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


class Values(NamedTuple):
    """The values of a tensor in a message: all occurrences of one field.

    field, field_name: the number and name of the field. wire_type: of a value. first_field: the
    first occurrence. nbytes: of all values. field_count: the number of occurrences.
    """

    message: wire.Message
    field: int
    field_name: str
    wire_type: int
    first_field: wire.Field
    nbytes: int
    field_count: int

    @property
    def is_contiguous(self) -> bool:
        """Whether the values are contiguous: the field occurs once."""
        return self.field_count == 1


class Tensor(NamedTuple):
    """The validated metadata of a tensor; its values are not read.

    values: None if the message has no values. external: the entries of external_data, None if the
    values are in the message.
    """

    name: str
    element: Element
    shape: Shape
    values: Values | None
    external: dict[str, str] | None

    @property
    def count(self) -> int:  # type: ignore[override] # a tensor is not used as a tuple
        return prod(self.shape)

    @property
    def stored_nbytes(self) -> int:
        """Size of raw_data in bytes, with packed elements."""
        return -(-self.count * self.element.bits // 8)

    @property
    def description(self) -> str:
        """ONNX's name of the type, and the shape: "FLOAT[2, 3]"."""
        return f"{self.element.onnx_name}{list(self.shape)}"

    @property
    def field(self) -> str:
        """The name of the field with the elements, "" if the tensor has none."""
        if self.external is not None:
            return "external_data"
        return "" if self.values is None else self.values.field_name

    @property
    def decode_reason(self) -> str:
        """The reason why the elements must be decoded, "" if they can be memory-mapped."""
        values = self.values
        if self.element.bits % 8:
            return f"{self.element.bits} bits per element"
        if values is None or (values.is_contiguous and values.wire_type != wire.VARINT):
            return ""
        return "encoded number by number"

    @property
    def nbytes(self) -> int:
        return self.count * self.element.dtype.itemsize


class Fields:
    """The parsed fields of a TensorProto; of its values only the offsets."""

    def __init__(self, message: wire.Message) -> None:
        self.message = message
        self.dims: list[int] = []
        self.values: dict[int, Values] = {}
        self.external: dict[str, str] = {}
        self._external_length = 0  # characters in `external`
        self.has_unknown = False
        self._singular: dict[int, wire.Field] = {}
        for field in message.fields():
            self._add_field(field)

    def _add_field(self, field: wire.Field) -> None:
        number, message = field.number, self.message
        if number not in FIELDS:
            self.has_unknown = True
        elif field.wire_type != _WIRE_TYPES.get(number, field.wire_type):
            self.refuse(f"field {number} of TensorProto has the wrong wire type")
        elif number in VALUES:
            self._add_values(field)
        elif number == DIMS:
            self.dims += message.varints(field, MAX_RANK)
            if len(self.dims) > MAX_RANK:
                self.refuse(f"dims has more than {MAX_RANK} entries")
        elif number == EXTERNAL_DATA:
            entry = message.message_in(field)  # a StringStringEntryProto
            key, value = entry.text_of(1), entry.text_of(2)
            self._require_first(f"external_data has {printable(key)}", key in self.external)
            self.external[key] = value
            self._external_length += len(key) + len(value) + 1
            if self._external_length > _MAX_EXTERNAL_LENGTH:
                self.refuse(f"external_data has more than {_MAX_EXTERNAL_LENGTH} characters")
        elif number in (DATA_TYPE, NAME, SEGMENT, LOCATION):
            self._require_first(f"field {number} of TensorProto appears", number in self._singular)
            self._singular[number] = field

    def _add_values(self, field: wire.Field) -> None:
        number = field.number
        field_name, wire_type = VALUES[number]
        if field.wire_type not in (wire_type, wire.LENGTH):
            self.refuse(f"{field_name} has values of the wrong wire type")
        nbytes = field.nbytes
        if nbytes % wire.SIZES.get(wire_type, 1):
            self.refuse(
                f"{field_name} has {nbytes} bytes: expected a multiple of {wire.SIZES[wire_type]}"
            )
        values = self.values.get(number)
        if values is None:
            self.values[number] = Values(
                self.message, number, field_name, wire_type, field, nbytes, 1
            )
            return
        self._require_first("raw_data appears", number == RAW)
        self.values[number] = values._replace(
            nbytes=values.nbytes + nbytes, field_count=values.field_count + 1
        )

    def _require_first(self, subject: str, is_repeated: bool) -> None:
        if is_repeated:
            self.refuse(f"{subject} twice: valid once")

    def refuse(self, text: str) -> NoReturn:
        """Raise InputError about the tensor."""
        refuse(self.message.label, text)

    def tensor(self) -> Tensor:
        """Return the tensor; InputError if it contradicts the sizes of its fields."""
        element, singular = self._element(), self._singular
        if SEGMENT in singular:
            self.refuse("it is one segment of a tensor: expected a complete one")
        for axis, size in enumerate(self.dims):
            if size > MAX_SIZE:
                self.refuse(f"dims[{axis}] is {size - (1 << 64)}: expected 0..{MAX_SIZE}")
        shape = tuple(self.dims)
        if prod(size or 1 for size in shape) * element.dtype.itemsize > MAX_SIZE:
            description = format_type(element.dtype, shape)
            self.refuse(
                f"it claims {description}: valid up to {MAX_SIZE} bytes, sizes of 0 count as 1"
            )
        location = singular.get(LOCATION)
        if location is not None and location.value not in (0, 1):
            self.refuse(f"data_location is {location.signed}: valid 0 (DEFAULT), 1 (EXTERNAL)")
        external = self.external if location is not None and location.value else None
        name = self.message.text(singular[NAME]) if NAME in singular else ""
        values = self._values(element, external is not None)
        tensor = Tensor(name, element, shape, values, external)
        check_size(tensor, self)
        return tensor

    def _element(self) -> Element:
        if DATA_TYPE not in self._singular:
            self.refuse("it has no data_type: expected an ONNX TensorProto")
        code = self._singular[DATA_TYPE].signed
        if code == STRING:
            self.refuse("the elements are strings: expected a type of a fixed size")
        if code not in ELEMENTS:
            self.refuse(f"data_type is {code}: valid 1..{max(ELEMENTS)} without {STRING}")
        return ELEMENTS[code]

    def _values(self, element: Element, is_external: bool) -> Values | None:
        """Return the single field with values; the first one if all are empty."""
        fields = list(self.values.values())
        nonempty = [values for values in fields if values.nbytes] or fields[:1]
        if RAW in self.values and self.values[RAW] not in nonempty:  # other readers prefer it
            nonempty.append(self.values[RAW])
        names = [values.field_name for values in nonempty]
        if is_external and names and nonempty[0].nbytes:
            self.refuse(f"the elements are in external_data and in {names[0]}: valid in one field")
        if len(nonempty) > 1:
            self.refuse(f"the elements are in {' and in '.join(names)}: valid in one field")
        if is_external or not nonempty:
            return None
        if nonempty[0].field not in (RAW, element.field):
            field = VALUES[element.field][0]
            self.refuse(
                f"the elements are {element.onnx_name} in {names[0]}: valid in raw_data, {field}"
            )
        return nonempty[0]


def check_size(tensor: Tensor, fields: Fields) -> None:
    """Raise InputError if the values have a wrong size; external data are checked on opening."""
    values = tensor.values
    if tensor.external is not None:
        return
    nbytes = 0 if values is None else values.nbytes
    field_name = "raw_data" if values is None else values.field_name
    if values is None or values.field == RAW:
        if nbytes != tensor.stored_nbytes:
            expected = (
                f"expected {tensor.stored_nbytes} bytes of {field_name} for {tensor.description}"
            )
            fields.refuse(f"{expected}, found {nbytes}")
        return
    count = stored_count(tensor)
    if values.wire_type == wire.VARINT:
        if not count <= nbytes <= count * wire.MAX_VARINT_BYTES:
            fields.refuse(f"expected {count} values in {field_name}, found {nbytes} bytes of them")
    elif nbytes != count * (size := wire.SIZES[values.wire_type]):
        fields.refuse(
            f"expected {count} values of {size} bytes in {field_name}, found {nbytes} bytes"
        )


def stored_count(tensor: Tensor) -> int:
    """Return the expected number of values in a field other than raw_data."""
    element = tensor.element
    if element.dtype.kind == "c":
        return 2 * tensor.count
    return tensor.stored_nbytes if element.bits in (2, 4) else tensor.count


def read(message: wire.Message) -> Tensor:
    """Parse a TensorProto; InputError if it is invalid."""
    return Fields(message).tensor()
