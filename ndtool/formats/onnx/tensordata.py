"""The elements of ONNX tensors: memory-mapped or decoded, from the model or external data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any, NoReturn

from ndtool.arrays.source import ArrayMetadata, Flat, MemberInfo
from ndtool.engine import packing
from ndtool.errors import InputError, NdtoolError, printable, redact_urls
from ndtool.formats.decoding import blocks_of, joined
from ndtool.formats.onnx import tensorproto
from ndtool.formats.onnx.tensorproto import Element, Tensor, Values
from ndtool.formats.onnx.wire import LONGEST, VARINT
from ndtool.storage import locations
from ndtool.storage.descriptors import CHUNK
from ndtool.storage.local import ByteRange, File, Fingerprint, LocalFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DECIMAL = re.compile("[0-9]{1,19}")


class CombinedStorage:
    """A model's file and its external data file, as one storage."""

    def __init__(self, model: LocalFile, data: File) -> None:
        self._files = (model, data)

    def change(self) -> str:
        return next((change for file in self._files if (change := file.change())), "")

    def fingerprint(self) -> Fingerprint:
        entries = [file.fingerprint() for file in self._files]
        return None if None in entries else entries

    def is_open_as(self, fd: int) -> bool:
        return any(file.is_open_as(fd) for file in self._files)

    def close(self) -> None:
        for file in self._files:
            file.close()


class Folder:
    """The folder of a model, which must contain its external data files.

    path, storage: the model's location, and its open file.
    """

    def __init__(self, path: str, storage: File) -> None:
        self._path, self._storage = path, storage
        # in a cache, model and data may both be links to files of another folder
        folder = os.path.dirname(path)
        self._inside = (os.path.realpath(folder), os.path.dirname(os.path.realpath(path)))
        self._sizes: dict[str, tuple[str, int]] = {}

    def find(self, tensor: Tensor, label: str) -> tuple[str, int]:
        """Return the path of a tensor's external data file, and the offset of its elements."""
        entries = tensor.external or {}
        path, size = self._file(entries.get("location", ""), label)
        start = _decimal(entries.get("offset", "0"), "offset", label)
        length = _decimal(entries.get("length", str(max(0, size - start))), "length", label)
        if start + length > size:
            _refuse(label, f"its {length} bytes at offset {start} exceed {path}, which has {size}")
        if length != tensor.stored:
            what = f"expected {tensor.stored} bytes for {tensor.claimed}"
            _refuse(label, f"{what} in {path}, found {length}")
        return path, start

    def _file(self, location: str, label: str) -> tuple[str, int]:
        if location not in self._sizes:
            path, parts = (
                locations.sibling(self._storage, self._path, location),
                location.split("/"),
            )
            is_invalid = not location or location[0] == "/" or ".." in parts or "\0" in location
            if is_invalid or path is None:
                what = "expected a relative path inside the model's folder"
                _refuse(label, f"the location of its data is {location!r}: {what}")
            real = os.path.realpath(path)
            if not locations.is_url(path) and not any(
                os.path.commonpath([real, folder]) == folder for folder in self._inside
            ):
                _refuse(label, f"its data are in {path}, a link out of the model's folder")
            with closing(locations.open_storage(path)) as file:
                self._sizes[location] = path, file.size
        return self._sizes[location]


def _decimal(text: str, key: str, label: str) -> int:
    if not _DECIMAL.fullmatch(text):
        _refuse(label, f"the {key} of its data is {text!r}: expected a number of bytes")
    return int(text)


def _refuse(label: str, text: str) -> NoReturn:
    raise InputError(f"{printable(label)}: {printable(text)}")


def open_tensor(
    storage: LocalFile, name: str, label: str, folder: Folder, tensor: Tensor, kind: str
) -> Flat:
    """Open a tensor; closing the source closes the file. label: its name in errors."""
    path, start = _location(tensor, label, folder)
    metadata = _metadata(tensor, kind, path, start)
    if path is not None:
        data = locations.open_storage(path)
        try:
            byte_range = data.byte_range(start or 0, tensor.stored, path)
            if tensor.decode_reason:
                byte_range = _decoded(tensor, blocks_of(byte_range.all()), label)
        except BaseException:
            data.close()
            raise
        return Flat(name, metadata, byte_range, CombinedStorage(storage, data))
    if tensor.decode_reason:
        byte_range = _decoded(tensor, _stored_blocks(tensor.values), label)
    else:
        byte_range = storage.byte_range(start or 0, metadata.nbytes, label)
    return Flat(name, metadata, byte_range, storage)


def entry(
    tensor: Tensor, label: str, member: str | None, size: int, folder: Folder, kind: str
) -> MemberInfo:
    """Return the member info of a tensor."""
    problem, path, start = tensor.decode_reason, None, None
    try:
        path, start = _location(tensor, label, folder)
    except NdtoolError as exc:
        problem = exc.message.removeprefix(f"{printable(label)}: ")
    metadata = _metadata(tensor, kind, path, start)
    return MemberInfo(label, member, metadata, None if problem else start, size, problem)


def _location(tensor: Tensor, label: str, folder: Folder) -> tuple[str | None, int | None]:
    """Return the external data file, None if there is none, and the offset of the elements."""
    if tensor.external is not None:
        return folder.find(tensor, label)
    return None, None if tensor.values is None else tensor.values.first.start


def _metadata(tensor: Tensor, kind: str, path: str | None, start: int | None) -> ArrayMetadata:
    element, shape = tensor.element, tensor.shape
    notes = {"kind": kind, "onnx_type": element.title, "field": tensor.field or None}
    notes |= {} if path is None else {"file": redact_urls(path)}
    return ArrayMetadata(element.dtype, shape, "C", shape, {**notes, "offset": start})


def _stored_blocks(values: Values | None) -> Iterator[bytes]:
    """Yield the bytes of values, without the keys of their fields."""
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


def _decoded(tensor: Tensor, encoded: Iterator[bytes], label: str) -> ByteRange:
    """Decode the elements to a contiguous buffer, in memory or in an unnamed file."""
    has_varints = tensor.values is not None and tensor.values.kind == VARINT
    if has_varints:
        encoded = _converted(tensor, _numbers(encoded, label), label)
    if tensor.element.bits in ((2, 4) if has_varints else (2, 4, 6)):
        encoded = packing.unpack_blocks(encoded, tensor.element.bits)
    return joined(encoded, tensor.nbytes, label)


def _numbers(encoded: Iterator[bytes], label: str) -> Iterator[NDArray[Any]]:
    """Decode varints and yield their values in arrays."""
    import numpy as np

    rest = b""
    for block in encoded:
        raw = np.frombuffer(rest + block, np.uint8)
        ends = np.flatnonzero(raw < 0x80)
        count = int(ends[-1]) + 1 if len(ends) else 0
        rest = raw[count:].tobytes()
        starts = np.concatenate([[0], ends[:-1] + 1]) if count else ends
        lengths = ends - starts + 1
        longest = max(int(lengths.max()) if count else 0, len(rest))
        numbers = np.zeros(len(ends), np.uint64)
        for k in range(min(longest, LONGEST)):
            longer = slice(None) if k == 0 else np.flatnonzero(lengths > k)
            byte = raw[starts[longer] + k]
            if k == LONGEST - 1 and (byte > 1).any():
                longest = LONGEST + 1
            numbers[longer] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * k)
        if longest > LONGEST:
            raise InputError(f"{printable(label)}: a varint has more than 64 bits")
        yield numbers
    if rest:
        raise InputError(f"{printable(label)}: a varint is truncated by the end of its message")


def _converted(tensor: Tensor, numbers: Iterator[NDArray[Any]], label: str) -> Iterator[bytes]:
    """Convert numbers to elements; InputError if one is out of range or their count is wrong."""
    import numpy as np

    code, lowest, highest = _range(tensor.element)
    expected, count = tensorproto.stored_numbers(tensor), 0
    for block in numbers:
        signed = block.view(np.int64)
        bad = np.flatnonzero((signed < lowest) | (signed > highest))
        if len(bad) and code[2] != "8":  # any 64-bit value is valid
            position, value = count + int(bad[0]), int(signed[bad[0]])
            valid = f"valid {lowest}..{highest} for {tensor.element.title}"
            _refuse(label, f"{tensor.field}[{position}] is {value}: {valid}")
        count += len(block)
        if count <= expected:
            yield signed.astype(code).tobytes()
    if count != expected:
        _refuse(label, f"expected {expected} values in {tensor.field}, found {count}")


def _range(element: Element) -> tuple[str, int, int]:
    """Return an element type's dtype code and its range of valid integers."""
    kind, size = element.dtype.kind, element.dtype.itemsize
    bits = 1 if kind == "b" else 6 if element.bits == 6 else 8 * size
    if kind == "i" and element.bits >= 8:
        return f"<i{size}", -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return f"<u{size}", 0, (1 << bits) - 1
