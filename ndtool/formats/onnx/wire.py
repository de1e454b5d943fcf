"""A streaming parser of protocol buffers: yields the fields of a message with their offsets.

It reads only keys and lengths, so a message of any size takes little memory. Every length is
validated against the enclosing message.
"""

from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from ndtool.errors import InputError, printable
from ndtool.storage.descriptors import Read

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
SIZES = {FIXED64: 8, FIXED32: 4}
LONGEST = 10  # maximum bytes of a varint
_SHORT = 5  # maximum bytes of a key or a length, as in other parsers
TEXT = 1 << 16  # maximum bytes of a string
_GROUPS = (3, 4)
_HEAD = 2 * LONGEST  # maximum bytes of a key and the varint after it
_WINDOW = 1 << 12  # bytes per read


class Field(NamedTuple):
    """One field of a message.

    start, stop: the byte range of its value, after the length if it has one. value: the number
    itself, unsigned; 0 for a field with a length. buffer, base: buffered bytes around it, and their
    offset in the file.
    """

    number: int
    kind: int
    start: int
    stop: int
    value: int
    buffer: bytes
    base: int

    @property
    def nbytes(self) -> int:
        return self.stop - self.start

    @property
    def signed(self) -> int:
        """The value as a signed 64-bit integer."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


class Message(NamedTuple):
    """A message in a file, from `start` to `stop`. label: the file's name in errors.

    buffer, base: buffered bytes of an earlier read, and their offset in the file.
    """

    read: Read
    start: int
    stop: int
    label: str
    buffer: bytes = b""
    base: int = 0

    def fields(self) -> Iterator[Field]:
        """Yield the fields in order; InputError if they do not fill the message."""
        offset, stop, buffer, base = self.start, self.stop, self.buffer, self.base
        while offset < stop:
            i = offset - base
            if i + _HEAD > len(buffer) and base + len(buffer) < stop:
                buffer, base, i = self.read(offset, min(_WINDOW, stop - offset)), offset, 0
            key, i = self._short(buffer, i, base)
            number, kind = key >> 3, key & 7
            if not 0 < number < 1 << 29:
                self._refuse(offset, f"a field has the number {number}: valid 1..{(1 << 29) - 1}")
            value, first = 0, base + i
            if kind == LENGTH:
                size, i = self._short(buffer, i, base)
                first = base + i
            elif kind == VARINT:
                value, i = self._varint(buffer, i, base)
                size = base + i - first
            elif kind in SIZES:
                size = SIZES[kind]
                value = int.from_bytes(buffer[i : i + size], "little")
            else:
                what = "begins or ends a group" if kind in _GROUPS else f"has the wire type {kind}"
                self._refuse(offset, f"field {number} {what}: valid 0, 1, 2, 5")
            if size > stop - first:
                remaining = max(0, stop - first)
                self._refuse(offset, f"field {number} claims {size} bytes, only {remaining} remain")
            offset = first + size
            yield Field(number, kind, first, offset, value, buffer, base)

    def message_in(self, field: Field) -> "Message":
        """Return the value of a field as a message."""
        _, kind, start, stop, _, buffer, base = field
        if kind != LENGTH:
            self._refuse(start, f"field {field.number} is not a message: expected wire type 2")
        return Message(self.read, start, stop, self.label, buffer, base)

    def messages(self, number: int) -> "list[Message]":
        """Return the messages in all fields of a number."""
        return [self.message_in(field) for field in self.fields() if field.number == number]

    def last(self, number: int) -> Field | None:
        """Return the last field of a number, which overrides others, None if there is none."""
        fields = [field for field in self.fields() if field.number == number]
        return fields[-1] if fields else None

    def text_of(self, number: int) -> str:
        """Return the string in the last field of a number, "" if there is none."""
        field = self.last(number)
        return "" if field is None else self.text(field)

    def text(self, field: Field) -> str:
        """Return a short string, decoded from UTF-8 with surrogateescape."""
        if field.kind != LENGTH or field.nbytes > TEXT:
            self._refuse(field.start, f"field {field.number} is not a string of up to {TEXT} bytes")
        return self.bytes_of(field).decode("utf-8", "surrogateescape")

    def bytes_of(self, field: Field) -> bytes:
        """Return the bytes of a small value."""
        _, _, start, stop, _, buffer, base = field
        if stop <= base + len(buffer):
            return buffer[start - base : stop - base]
        return self.raw(start, stop - start)

    def raw(self, start: int, size: int) -> bytes:
        """Read bytes of the message; InputError if the file is too short."""
        raw = self.read(start, size)
        if len(raw) < size:
            self._refuse(start, "the file ends here")
        return raw

    def numbers(self, field: Field, limit: int) -> list[int]:
        """Return the numbers of a varint field, packed or single: at most `limit`."""
        if field.kind == VARINT:
            return [field.value]
        if field.kind != LENGTH or field.nbytes > LONGEST * limit:
            self._refuse(
                field.start, f"field {field.number} is not a list of up to {limit} numbers"
            )
        raw, i, values = self.bytes_of(field), 0, []
        while i < len(raw):
            value, i = self._varint(raw, i, field.start)
            values.append(value)
        return values

    def _short(self, buffer: bytes, i: int, base: int) -> tuple[int, int]:
        """Parse a key or a length in `buffer`; return it and the index after it."""
        value, end = self._varint(buffer, i, base)
        if end - i > _SHORT:
            self._refuse(base + i, f"a key or length has {end - i} bytes: valid up to {_SHORT}")
        return value, end

    def _varint(self, buffer: bytes, i: int, base: int) -> tuple[int, int]:
        """Parse a varint at index i; return it and the index after it. base: offset of `buffer`."""
        try:
            byte = buffer[i]
            if byte < 0x80:
                return byte, i + 1
            value, first, shift = byte & 0x7F, i, 7
            while byte >= 0x80 and shift < 7 * LONGEST:
                i += 1
                byte = buffer[i]
                value |= (byte & 0x7F) << shift
                shift += 7
        except IndexError:
            self._refuse(base + i, "a varint is truncated by the end of its message")
        if byte >= 0x80 or value >> 64:
            self._refuse(base + first, "a varint has more than 64 bits")
        return value, i + 1

    def _refuse(self, offset: int, text: str) -> NoReturn:
        raise InputError(
            f"{printable(self.label)}: not a protocol buffer: at byte {offset}, {text}"
        )


def varint(value: int) -> bytes:
    """Encode a number as a varint.

    >>> varint(300).hex()
    'ac02'
    """
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def key(number: int, kind: int) -> bytes:
    """Encode the key of a field from its number and wire type."""
    return varint(number << 3 | kind)
