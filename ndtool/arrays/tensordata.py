"""The elements of ONNX tensors: mapped where they stand, or decoded; perhaps in another file."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

from ndtool.arrays import places, tensorproto
from ndtool.arrays.local import File, LocalFile, Stretch, Told
from ndtool.arrays.source import Entry, Facts, Flat
from ndtool.arrays.storage import CHUNK
from ndtool.arrays.tensorproto import Element, Tensor, Values
from ndtool.arrays.wire import LONGEST, VARINT
from ndtool.errors import InputError, NdtoolError, printable, redacted

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DECIMAL = re.compile("[0-9]{1,19}")


class Beside:
    """A model's file and the one beside it that has the elements: a place made of both."""

    def __init__(self, model: LocalFile, data: File) -> None:
        self._files = (model, data)

    def change(self) -> str:
        return next((change for file in self._files if (change := file.change())), "")

    def told(self) -> Told:
        told = [file.told() for file in self._files]
        return None if None in told else told

    def is_open_as(self, fd: int) -> bool:
        return any(file.is_open_as(fd) for file in self._files)

    def close(self) -> None:
        for file in self._files:
            file.close()


class Folder:
    """The folder of a model, in which the files with external data must be.

    path, place: the model's, which is open.
    """

    def __init__(self, path: str, place: File) -> None:
        self._path, self._place = path, place
        # a cache may link both, model and data, to where they really are together
        folder = os.path.dirname(path)
        self._inside = (os.path.realpath(folder), os.path.dirname(os.path.realpath(path)))
        self._sizes: dict[str, tuple[str, int]] = {}

    def find(self, tensor: Tensor, label: str) -> tuple[str, int]:
        """Return the path of the file that has a tensor's elements, and where they begin in it."""
        told = tensor.external or {}
        path, size = self._file(told.get("location", ""), label)
        start = _decimal(told.get("offset", "0"), "offset", label)
        length = _decimal(told.get("length", str(max(0, size - start))), "length", label)
        if start + length > size:
            _refuse(label, f"its {length} bytes at {start} are not in {path}, which has {size}")
        if length != tensor.stored:
            what = f"expected {tensor.stored} bytes for {tensor.claimed}"
            _refuse(label, f"{what} in {path}, found {length}")
        return path, start

    def _file(self, location: str, label: str) -> tuple[str, int]:
        if location not in self._sizes:
            path, parts = places.beside(self._place, self._path, location), location.split("/")
            odd = not location or location[0] == "/" or ".." in parts or "\0" in location
            if odd or path is None:
                what = "expected a relative path inside the model's folder"
                _refuse(label, f"the location of its data is {location!r}: {what}")
            real = os.path.realpath(path)
            if not places.is_url(path) and not any(
                os.path.commonpath([real, folder]) == folder for folder in self._inside
            ):
                _refuse(label, f"its data are in {path}, a link out of the model's folder")
            with places.open_place(path) as file:
                self._sizes[location] = path, file.size
        return self._sizes[location]


def _decimal(text: str, key: str, label: str) -> int:
    if not _DECIMAL.fullmatch(text):
        _refuse(label, f"the {key} of its data is {text!r}: expected a number of bytes")
    return int(text)


def _refuse(label: str, text: str) -> NoReturn:
    raise InputError(f"{printable(label)}: {printable(text)}")


def open_tensor(
    place: LocalFile, name: str, label: str, folder: Folder, tensor: Tensor, kind: str
) -> Flat:
    """Return a tensor as a source, which closes the place; errors about it call it `label`."""
    beside, start = _where(tensor, label, folder)
    facts, warning = _facts(tensor, kind, beside, start), _warning(tensor, label)
    if beside is not None:
        data = places.open_place(beside)
        try:
            stretch = data.stretch(start or 0, tensor.stored, beside)
            if tensor.odd:
                stretch = _decoded(tensor, _cut(stretch.all()), label)
        except BaseException:
            data.close()
            raise
        return Flat(name, facts, stretch, Beside(place, data), warning)
    if tensor.odd:
        stretch = _decoded(tensor, _pieces(tensor.values), label)
    else:
        stretch = place.stretch(start or 0, facts.nbytes, label)
    return Flat(name, facts, stretch, place, warning)


def entry(
    tensor: Tensor, label: str, member: str | None, size: int, folder: Folder, kind: str
) -> Entry:
    """Return what `inspect` tells of a tensor."""
    problem, beside, start = tensor.odd, None, None
    try:
        beside, start = _where(tensor, label, folder)
    except NdtoolError as exc:
        problem = exc.message.removeprefix(f"{printable(label)}: ")
    facts, warning = _facts(tensor, kind, beside, start), _warning(tensor, label)
    return Entry(label, member, facts, None if problem else start, size, problem, warning)


def _where(tensor: Tensor, label: str, folder: Folder) -> tuple[str | None, int | None]:
    """Return the other file that has the elements, if one has, and where they begin."""
    if tensor.external is not None:
        return folder.find(tensor, label)
    return None, None if tensor.values is None else tensor.values.first.start


def _facts(tensor: Tensor, kind: str, beside: str | None, start: int | None) -> Facts:
    element, shape = tensor.element, tensor.shape
    notes = {"kind": kind, "onnx_type": element.title, "field": tensor.field or None}
    notes |= {} if beside is None else {"file": redacted(beside)}
    return Facts(element.dtype, shape, "C", shape, {**notes, "offset": start})


def _warning(tensor: Tensor, label: str) -> str | None:
    """Return what is done to elements of less than a byte, None where there are none."""
    element = tensor.element
    if element.bits % 8 == 0:
        return None
    return f"{printable(label)}: {element.title} is unpacked to {element.dtype.name}, a byte each"


def _pieces(values: Values | None) -> Iterator[bytes]:
    """Yield the bytes of values, without keys between them."""
    if values is None:
        return
    message = values.message
    if values.together:
        for start in range(values.first.start, values.first.stop, CHUNK):
            yield message.raw(start, min(CHUNK, values.first.stop - start))
        return
    gathered = bytearray()
    for field in message.fields():
        if field.number != values.field:
            continue
        for start in range(field.start, field.stop, CHUNK):
            gathered += message.raw(start, min(CHUNK, field.stop - start))
            if len(gathered) >= CHUNK:
                yield bytes(gathered)
                gathered.clear()
    yield bytes(gathered)


def _cut(buffer: memoryview) -> Iterator[bytes]:
    for start in range(0, len(buffer), CHUNK):
        yield bytes(buffer[start : start + CHUNK])


def _decoded(tensor: Tensor, encoded: Iterator[bytes], label: str) -> Stretch:
    """Return the elements as bytes that stand together, in memory or in a nameless file."""
    from ndtool.arrays import spill

    room = spill.room(tensor.nbytes, f"temporary copy of {printable(label)}")
    numbered = tensor.values is not None and tensor.values.kind == VARINT
    if numbered:
        encoded = _converted(tensor, _numbers(encoded, label), label)
    if tensor.element.bits in ((2, 4) if numbered else (2, 4, 6)):
        encoded = _unpacked(tensor.element, encoded)
    at = 0
    for piece in encoded:
        wanted = piece[: len(room) - at]  # the last byte may hold more than one needs
        room[at : at + len(wanted)] = wanted
        at += len(wanted)
    return Stretch(room.toreadonly())


def _numbers(encoded: Iterator[bytes], label: str) -> Iterator[NDArray[Any]]:
    """Yield the numbers of varints, as they come."""
    import numpy as np

    rest = b""
    for piece in encoded:
        raw = np.frombuffer(rest + piece, np.uint8)
        ends = np.flatnonzero(raw < 0x80)
        count = int(ends[-1]) + 1 if len(ends) else 0
        rest = raw[count:].tobytes()
        starts = np.concatenate([[0], ends[:-1] + 1]) if count else ends
        lengths = ends - starts + 1
        longest = max(int(lengths.max()) if count else 0, len(rest))
        numbers = np.zeros(len(ends), np.uint64)
        for k in range(min(longest, LONGEST)):
            having = slice(None) if k == 0 else np.flatnonzero(lengths > k)
            byte = raw[starts[having] + k]
            if k == LONGEST - 1 and (byte > 1).any():
                longest = LONGEST + 1
            numbers[having] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * k)
        if longest > LONGEST:
            raise InputError(f"{printable(label)}: a number has more than 64 bits")
        yield numbers
    if rest:
        raise InputError(f"{printable(label)}: a number is cut short by the end of its message")


def _converted(tensor: Tensor, numbers: Iterator[NDArray[Any]], label: str) -> Iterator[bytes]:
    """Yield numbers as elements; InputError where one does not fit, or there are not as many."""
    import numpy as np

    code, lowest, highest = _range(tensor.element)
    wanted, at = tensorproto.stored_numbers(tensor), 0
    for found in numbers:
        signed = found.view(np.int64)
        bad = np.flatnonzero((signed < lowest) | (signed > highest))
        if len(bad) and code[2] != "8":  # of 64 bits all are valid
            where, value = at + int(bad[0]), int(signed[bad[0]])
            what = f"valid {lowest}..{highest} for {tensor.element.title}"
            _refuse(label, f"{tensor.field}[{where}] is {value}: {what}")
        at += len(found)
        if at <= wanted:
            yield signed.astype(code).tobytes()
    if at != wanted:
        _refuse(label, f"expected {wanted} values in {tensor.field}, found {at}")


def _range(element: Element) -> tuple[str, int, int]:
    """Return how a number is kept as an element, and which numbers are valid."""
    kind, size = element.dtype.kind, element.dtype.itemsize
    bits = 1 if kind == "b" else 6 if element.bits == 6 else 8 * size
    if kind == "i" and element.bits >= 8:
        return f"<i{size}", -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return f"<u{size}", 0, (1 << bits) - 1


def _unpacked(element: Element, encoded: Iterator[bytes]) -> Iterator[bytes]:
    """Yield elements of less than a byte, a byte for each; the first is the lowest of its byte."""
    import numpy as np

    bits, group = element.bits, 3 if element.bits == 6 else 1
    sign = np.uint8(1 << (bits - 1) if element.dtype.kind == "i" else 0)

    def unpack(raw: bytes) -> bytes:
        each = np.unpackbits(np.frombuffer(raw, np.uint8), bitorder="little").reshape(-1, bits)
        return ((np.packbits(each, axis=1, bitorder="little") ^ sign) - sign).tobytes()

    rest = b""
    for piece in encoded:
        rest += piece
        whole = len(rest) // group * group
        yield unpack(rest[:whole])
        rest = rest[whole:]
    yield unpack(rest + bytes(-len(rest) % group))
