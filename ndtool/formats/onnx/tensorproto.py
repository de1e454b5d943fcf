"""ONNX's TensorProto: the metadata of one tensor, validated against the bytes present."""

from math import prod
from typing import NamedTuple, NoReturn

from ndtool.errors import InputError, printable
from ndtool.formats.onnx import wire
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape
from ndtool.rules.shapes import format_type

RANK = 64
LARGEST = 2**63 - 1
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
_KINDS = {
    DATA_TYPE: wire.VARINT, SEGMENT: wire.LENGTH, DOC: wire.LENGTH, LOCATION: wire.VARINT,
    METADATA: wire.LENGTH,
}  # fmt: skip
_LONGEST_EXTERNAL = 1 << 12  # maximum number of characters in external_data


class Element(NamedTuple):
    """An element type. title: ONNX's name. field: of its values, if they are not in raw_data."""

    title: str
    dtype: Dtype
    field: int

    @property
    def bits(self) -> int:
        """The bits of an element in raw_data; elements of less than 8 bits are unpacked."""
        return self.dtype.bits


_TYPES = {  # by ONNX's number: its name, ndtool's, and the field of the values
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
    number: Element(title, dtypes.little_endian(name), field)
    for number, (title, name, field) in _TYPES.items()
}


class Values(NamedTuple):
    """The elements in a message: all fields of one number.

    field, title: the number and its name. kind: the wire type of a value. first: the first of the
    fields. nbytes: of all values. occurrences: the number of fields.
    """

    message: wire.Message
    field: int
    title: str
    kind: int
    first: wire.Field
    nbytes: int
    occurrences: int

    @property
    def together(self) -> bool:
        """Whether the values are contiguous, in a single field."""
        return self.occurrences == 1


class Tensor(NamedTuple):
    """The metadata of a tensor, validated; the values themselves are not read.

    values: None if the message has none. external: the entries of external_data, None if unused.
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
    def stored(self) -> int:
        """Size of the elements in raw_data, in bytes."""
        return -(-self.count * self.element.bits // 8)

    @property
    def claimed(self) -> str:
        """ONNX's name of the type, and the shape, as text."""
        return f"{self.element.title}{list(self.shape)}"

    @property
    def field(self) -> str:
        """The name of the field with the elements, "" if there is none."""
        if self.external is not None:
            return "external_data"
        return "" if self.values is None else self.values.title

    @property
    def decode_reason(self) -> str:
        """Why the elements must be decoded, "" if they can be memory-mapped."""
        values = self.values
        if self.element.bits % 8:
            return f"{self.element.bits} bits per element"
        if values is None or (values.together and values.kind != wire.VARINT):
            return ""
        return "encoded number by number"

    @property
    def nbytes(self) -> int:
        return self.count * self.element.dtype.itemsize


class Fields:
    """The fields of a TensorProto, collected; of values only the positions."""

    def __init__(self, message: wire.Message) -> None:
        self.message = message
        self.name = ""
        self.code: int | None = None
        self.dims: list[int] = []
        self.values: dict[int, Values] = {}
        self.external: dict[str, str] = {}
        self._external_length = 0  # characters in `external`
        self.is_external = False
        self.segment = False
        self.unknown = False
        self._seen: set[int] = set()
        for field in message.fields():
            self._take(field)

    def _take(self, field: wire.Field) -> None:
        number, message = field.number, self.message
        if number not in FIELDS:
            self.unknown = True
        elif field.kind != _KINDS.get(number, field.kind):
            self.refuse(f"field {number} of TensorProto has the wrong wire type")
        elif number in VALUES:
            self._take_values(field)
        elif number == DIMS:
            self.dims += message.numbers(field, RANK)
            if len(self.dims) > RANK:
                self.refuse(f"dims has more than {RANK} entries")
        elif number == EXTERNAL_DATA:
            inner = message.message_in(field)  # a StringStringEntryProto
            pair, value = inner.text_of(1), inner.text_of(2)
            self._once(f"external_data has {printable(pair)}", pair in self.external)
            self.external[pair] = value
            self._external_length += len(pair) + len(value) + 1
            if self._external_length > _LONGEST_EXTERNAL:
                self.refuse(f"external_data has more than {_LONGEST_EXTERNAL} characters")
        elif number in (DATA_TYPE, NAME, SEGMENT, LOCATION):
            self._once(f"field {number} of TensorProto appears", number in self._seen)
            self._seen.add(number)
            self._take_one(field)

    def _take_one(self, field: wire.Field) -> None:
        if field.number == DATA_TYPE:
            self.code = field.signed
        elif field.number == NAME:
            self.name = self.message.text(field)
        elif field.number == SEGMENT:
            self.segment = True
        elif field.value not in (0, 1):
            self.refuse(f"data_location is {field.signed}: valid 0 (DEFAULT), 1 (EXTERNAL)")
        else:
            self.is_external = field.value == 1

    def _take_values(self, field: wire.Field) -> None:
        number = field.number
        title, kind = VALUES[number]
        if field.kind not in (kind, wire.LENGTH):
            self.refuse(f"{title} has values of the wrong wire type")
        nbytes = field.nbytes
        if nbytes % wire.SIZES.get(kind, 1):
            self.refuse(f"{title} has {nbytes} bytes: expected a multiple of {wire.SIZES[kind]}")
        old = self.values.get(number)
        if old is None:
            self.values[number] = Values(self.message, number, title, kind, field, nbytes, 1)
            return
        self._once("raw_data appears", number == RAW)
        self.values[number] = old._replace(
            nbytes=old.nbytes + nbytes, occurrences=old.occurrences + 1
        )

    def _once(self, what: str, twice: bool) -> None:
        if twice:
            self.refuse(f"{what} twice: valid once")

    def refuse(self, text: str) -> NoReturn:
        """Raise InputError about the tensor."""
        raise InputError(f"{printable(self.message.label)}: {text}")

    def tensor(self) -> Tensor:
        """Return the tensor, validated against the sizes of its fields."""
        element = self._element()
        if self.segment:
            self.refuse("it is one segment of a tensor: expected a complete one")
        for axis, size in enumerate(self.dims):
            if size > LARGEST:
                self.refuse(f"dims[{axis}] is {size - (1 << 64)}: expected 0..{LARGEST}")
        shape = tuple(self.dims)
        if prod(size or 1 for size in shape) * element.dtype.itemsize > LARGEST:
            claimed = format_type(element.dtype, shape)
            self.refuse(f"it claims {claimed}: valid up to {LARGEST} bytes, sizes of 0 count as 1")
        external = self.external if self.is_external else None
        tensor = Tensor(self.name, element, shape, self._values(element), external)
        check_size(tensor, self)
        return tensor

    def _element(self) -> Element:
        if self.code is None:
            self.refuse("it has no data_type: expected an ONNX TensorProto")
        if self.code == STRING:
            self.refuse("the elements are strings: expected a type of a fixed size")
        if self.code not in ELEMENTS:
            self.refuse(f"data_type is {self.code}: valid 1..{max(ELEMENTS)} without {STRING}")
        return ELEMENTS[self.code]

    def _values(self, element: Element) -> Values | None:
        """Return the only field with values; the first one if all are empty."""
        filled = [one for one in self.values.values() if one.nbytes] or [*self.values.values()][:1]
        if RAW in self.values and self.values[RAW] not in filled:  # other readers prefer it
            filled.append(self.values[RAW])
        names = [one.title for one in filled]
        if self.is_external and names and filled[0].nbytes:
            self.refuse(f"the elements are in external_data and in {names[0]}: valid in one field")
        if len(filled) > 1:
            self.refuse(f"the elements are in {' and in '.join(names)}: valid in one field")
        if self.is_external or not filled:
            return None
        if filled[0].field not in (RAW, element.field):
            field = VALUES[element.field][0]
            self.refuse(
                f"the elements are {element.title} in {names[0]}: valid in raw_data, {field}"
            )
        return filled[0]


def check_size(tensor: Tensor, fields: Fields) -> None:
    """Raise InputError if the size of the values is wrong; external data are checked on opening."""
    values = tensor.values
    if tensor.external is not None:
        return
    nbytes = 0 if values is None else values.nbytes
    title = "raw_data" if values is None else values.title
    if values is None or values.field == RAW:
        if nbytes != tensor.stored:
            expected = f"expected {tensor.stored} bytes of {title} for {tensor.claimed}"
            fields.refuse(f"{expected}, found {nbytes}")
        return
    numbers = stored_numbers(tensor)
    if values.kind == wire.VARINT:
        if not numbers <= nbytes <= numbers * wire.LONGEST:
            fields.refuse(f"expected {numbers} values in {title}, found {nbytes} bytes of them")
    elif nbytes != numbers * (size := wire.SIZES[values.kind]):
        fields.refuse(f"expected {numbers} values of {size} bytes in {title}, found {nbytes} bytes")


def stored_numbers(tensor: Tensor) -> int:
    """Return the number of values in a field other than raw_data."""
    element = tensor.element
    if element.dtype.kind == "c":
        return 2 * tensor.count
    return tensor.stored if element.bits in (2, 4) else tensor.count


def read(message: wire.Message) -> Tensor:
    """Parse a TensorProto; InputError if it is invalid."""
    return Fields(message).tensor()
