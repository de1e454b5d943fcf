"""A streaming parser of protocol buffers: yields the fields of a message with their offsets.

It reads only keys and lengths, so its memory does not depend on the size of the message. Every
length is validated against the enclosing message.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, NoReturn

from ndtool.errors import refuse
from ndtool.storage.descriptors import Read

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
SIZES = {FIXED64: 8, FIXED32: 4}
MAX_VARINT_BYTES = 10
_MAX_KEY_BYTES = 5  # maximum bytes of a key or a length, as in other parsers
MAX_TEXT_BYTES = 1 << 16  # maximum bytes of a string
_GROUPS = (3, 4)  # wire types of groups
_MAX_HEADER_BYTES = 2 * MAX_VARINT_BYTES  # of a key, and a varint or length


class Field(NamedTuple):
    """One field of a message.

    start, stop: the byte range of the value, without its length. value: the unsigned number; 0 for
    a field with a length.
    """

    number: int
    wire_type: int
    start: int
    stop: int
    value: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    @property
    def signed(self) -> int:
        """The value as a signed 64-bit integer."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


class Message(NamedTuple):
    """A message in a file, from `start` to `stop`. label: the file's name in messages."""

    read: Read
    start: int
    stop: int
    label: str

    def fields(self) -> Iterator[Field]:
        """Yield the fields in order; InputError if the last does not end with the message."""
        offset, stop = self.start, self.stop
        while offset < stop:
            header = self.read(offset, min(_MAX_HEADER_BYTES, stop - offset))
            key, i = self._parse_short_varint(header, 0, offset)
            number, wire_type = key >> 3, key & 7
            if not 0 < number < 1 << 29:
                self._refuse(offset, f"a field has the number {number}: valid 1..{(1 << 29) - 1}")
            value, value_start = 0, offset + i
            if wire_type == LENGTH:
                size, i = self._parse_short_varint(header, i, offset)
                value_start = offset + i
            elif wire_type == VARINT:
                value, i = self._parse_varint(header, i, offset)
                size = offset + i - value_start
            elif wire_type in SIZES:
                size = SIZES[wire_type]
                value = int.from_bytes(header[i : i + size], "little")
            else:
                problem = (
                    "begins or ends a group"
                    if wire_type in _GROUPS
                    else f"has the wire type {wire_type}"
                )
                self._refuse(offset, f"field {number} {problem}: valid 0, 1, 2, 5")
            if size > stop - value_start:
                remaining = max(0, stop - value_start)
                self._refuse(offset, f"field {number} claims {size} bytes, only {remaining} remain")
            offset = value_start + size
            yield Field(number, wire_type, value_start, offset, value)

    def message_in(self, field: Field) -> "Message":
        """Return the value of a field as a message."""
        if field.wire_type != LENGTH:
            problem = f"field {field.number} is not a message: expected wire type 2"
            self._refuse(field.start, problem)
        return self._replace(start=field.start, stop=field.stop)

    def parse(
        self, table: Mapping[int, tuple[str, Callable[["Message", Field], Any]]]
    ) -> dict[str, list[Any]]:
        """Return the values of fields by name, in order. table: their names and readers."""
        values: dict[str, list[Any]] = {name: [] for name, _ in table.values()}
        for field in self.fields():
            if field.number in table:
                name, read = table[field.number]
                values[name].append(read(self, field))
        return values

    def messages(self, number: int) -> "list[Message]":
        """Return the messages in all fields with a number."""
        return [self.message_in(field) for field in self.fields() if field.number == number]

    def last_field(self, number: int) -> Field | None:
        """Return the last field with a number, which overrides earlier fields; None without one."""
        fields = [field for field in self.fields() if field.number == number]
        return fields[-1] if fields else None

    def text_of(self, number: int) -> str:
        """Return the string in the last field with a number, "" if there is no such field."""
        field = self.last_field(number)
        return "" if field is None else self.text(field)

    def text(self, field: Field) -> str:
        """Return the string in a field, decoded from UTF-8 with surrogateescape."""
        if field.wire_type != LENGTH or field.nbytes > MAX_TEXT_BYTES:
            self._refuse(
                field.start, f"field {field.number} is not a string of up to {MAX_TEXT_BYTES} bytes"
            )
        return self.read_bytes(field.start, field.nbytes).decode("utf-8", "surrogateescape")

    def read_bytes(self, start: int, size: int) -> bytes:
        """Read bytes of the message; InputError if the file is too short."""
        raw = self.read(start, size)
        if len(raw) < size:
            self._refuse(start, "the file ends here")
        return raw

    def varints(self, field: Field, limit: int) -> list[int]:
        """Return the numbers in a varint field, or in a packed field of at most `limit`."""
        if field.wire_type == VARINT:
            return [field.value]
        if field.wire_type != LENGTH or field.nbytes > MAX_VARINT_BYTES * limit:
            self._refuse(
                field.start, f"field {field.number} is not a list of up to {limit} numbers"
            )
        raw, i, values = self.read_bytes(field.start, field.nbytes), 0, []
        while i < len(raw):
            value, i = self._parse_varint(raw, i, field.start)
            values.append(value)
        return values

    def _parse_short_varint(self, buffer: bytes, i: int, buffer_offset: int) -> tuple[int, int]:
        """Parse a key or a length at index i; return it and the index after it."""
        value, end = self._parse_varint(buffer, i, buffer_offset)
        if end - i > _MAX_KEY_BYTES:
            self._refuse(
                buffer_offset + i,
                f"a key or length has {end - i} bytes: valid up to {_MAX_KEY_BYTES}",
            )
        return value, end

    def _parse_varint(self, buffer: bytes, i: int, buffer_offset: int) -> tuple[int, int]:
        """Parse a varint at index i of a buffer; return it and the index after it."""
        try:
            byte = buffer[i]
            if byte < 0x80:
                return byte, i + 1
            value, start, shift = byte & 0x7F, i, 7
            while byte >= 0x80 and shift < 7 * MAX_VARINT_BYTES:
                i += 1
                byte = buffer[i]
                value |= (byte & 0x7F) << shift
                shift += 7
        except IndexError:
            self._refuse(buffer_offset + i, "a varint is truncated by the end of its message")
        if byte >= 0x80 or value >> 64:
            self._refuse(buffer_offset + start, "a varint has more than 64 bits")
        return value, i + 1

    def _refuse(self, offset: int, text: str) -> NoReturn:
        refuse(self.label, f"not a protocol buffer: at byte {offset}, {text}")


def encode_varint(value: int) -> bytes:
    """Encode a number as a varint.

    >>> encode_varint(300).hex()
    'ac02'
    """
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def encode_key(number: int, wire_type: int) -> bytes:
    """Encode the key of a field from its number and wire type."""
    return encode_varint(number << 3 | wire_type)
