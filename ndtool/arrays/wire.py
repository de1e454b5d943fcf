"""Protocol buffers as they stand in a file: fields with their places, read one after the other.

Only the keys and lengths of a message are read, so one of any size takes no memory; every claim
is compared with the message that it stands in.
"""

from collections.abc import Iterator
from typing import NamedTuple, NoReturn

from ndtool.arrays.storage import Read
from ndtool.errors import InputError, printable

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # how the value of a field is encoded
SIZES = {FIXED64: 8, FIXED32: 4}
LONGEST = 10  # bytes of a varint
_SHORT = 5  # bytes of a key or a length, as others take them too
TEXT = 1 << 16  # bytes of a name or another short text
_GROUPS = (3, 4)
_HEAD = 2 * LONGEST  # bytes of a key and of the length or number that follows it, at most
_WINDOW = 1 << 12  # bytes that are looked at together


class Field(NamedTuple):
    """One field of a message.

    start, stop: where its value is; that of a field with a length begins after the length.
    value: the number that it is, without a sign; 0 where it has a length. held, base: bytes that
    were looked at around it, and where they stand.
    """

    number: int
    kind: int
    start: int
    stop: int
    value: int
    held: bytes
    base: int

    @property
    def nbytes(self) -> int:
        """Bytes of its value."""
        return self.stop - self.start

    @property
    def signed(self) -> int:
        """The number with its sign."""
        return self.value - (1 << 64) if self.value >> 63 else self.value


class Message(NamedTuple):
    """A message in a file, from `start` to `stop`; errors call the file `label`.

    held, base: bytes that were looked at before, and where they stand.
    """

    read: Read
    start: int
    stop: int
    label: str
    held: bytes = b""
    base: int = 0

    def fields(self) -> Iterator[Field]:
        """Yield the fields in order; InputError where they do not fill the message."""
        at, stop, held, base = self.start, self.stop, self.held, self.base
        while at < stop:
            i = at - base
            if i + _HEAD > len(held) and base + len(held) < stop:
                held, base, i = self.read(at, min(_WINDOW, stop - at)), at, 0
            key, i = self._short(held, i, base)
            number, kind = key >> 3, key & 7
            if not 0 < number < 1 << 29:
                self._refuse(at, f"a field has the number {number}: valid 1..{(1 << 29) - 1}")
            value, first = 0, base + i
            if kind == LENGTH:
                size, i = self._short(held, i, base)
                first = base + i
            elif kind == VARINT:
                value, i = self._varint(held, i, base)
                size = base + i - first
            elif kind in SIZES:
                size = SIZES[kind]
                value = int.from_bytes(held[i : i + size], "little")
            else:
                what = "begins or ends a group" if kind in _GROUPS else f"has the kind {kind}"
                self._refuse(at, f"field {number} {what}: valid 0, 1, 2, 5")
            if size > stop - first:
                left = max(0, stop - first)
                self._refuse(at, f"field {number} claims {size} bytes, only {left} are left")
            at = first + size
            yield Field(number, kind, first, at, value, held, base)

    def within(self, field: Field) -> "Message":
        """Return the message that a field is."""
        _, kind, start, stop, _, held, base = field
        if kind != LENGTH:
            self._refuse(start, f"field {field.number} is no message: expected a length")
        return Message(self.read, start, stop, self.label, held, base)

    def text(self, field: Field) -> str:
        """Return a name or another short text; what is no UTF-8 is kept as it is in arguments."""
        if field.kind != LENGTH or field.nbytes > TEXT:
            self._refuse(field.start, f"field {field.number} is no text of up to {TEXT} bytes")
        return self.bytes_of(field).decode("utf-8", "surrogateescape")

    def bytes_of(self, field: Field) -> bytes:
        """Return the bytes of a value, of which there are not many."""
        _, _, start, stop, _, held, base = field
        if stop <= base + len(held):
            return held[start - base : stop - base]
        return self.raw(start, stop - start)

    def raw(self, start: int, size: int) -> bytes:
        """Return bytes of the message, which are there."""
        raw = self.read(start, size)
        if len(raw) < size:
            self._refuse(start, "the file ends here")
        return raw

    def numbers(self, field: Field, most: int) -> list[int]:
        """Return the numbers of one field of varints, packed or alone: `most` at most."""
        if field.kind == VARINT:
            return [field.value]
        if field.kind != LENGTH or field.nbytes > LONGEST * most:
            self._refuse(field.start, f"field {field.number} is no list of up to {most} numbers")
        raw, i, found = self.bytes_of(field), 0, []
        while i < len(raw):
            value, i = self._varint(raw, i, field.start)
            found.append(value)
        return found

    def _short(self, held: bytes, i: int, base: int) -> tuple[int, int]:
        """Return a key or a length, and where it ends."""
        value, end = self._varint(held, i, base)
        if end - i > _SHORT:
            self._refuse(base + i, f"a key or length has {end - i} bytes: valid up to {_SHORT}")
        return value, end

    def _varint(self, held: bytes, i: int, base: int) -> tuple[int, int]:
        """Return a number and where it ends; `held` stands at `base` and ends with the message."""
        try:
            byte = held[i]
            if byte < 0x80:
                return byte, i + 1
            value, first, shift = byte & 0x7F, i, 7
            while byte >= 0x80 and shift < 7 * LONGEST:
                i += 1
                byte = held[i]
                value |= (byte & 0x7F) << shift
                shift += 7
        except IndexError:
            self._refuse(base + i, "a number is cut short by the end of its message")
        if byte >= 0x80 or value >> 64:
            self._refuse(base + first, "a number has more than 64 bits")
        return value, i + 1

    def _refuse(self, at: int, text: str) -> NoReturn:
        raise InputError(f"{printable(self.label)}: not a protocol buffer: at byte {at}, {text}")


def varint(value: int) -> bytes:
    """Return a number as a varint.

    >>> varint(300).hex()
    'ac02'
    """
    pieces = bytearray()
    while value >= 0x80:
        pieces.append(value & 0x7F | 0x80)
        value >>= 7
    pieces.append(value)
    return bytes(pieces)


def key(number: int, kind: int) -> bytes:
    """Return what a field begins with."""
    return varint(number << 3 | kind)
