"""The elements of ONNX tensors: memory-mapped or decoded, from the model or external data."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, MemberInfo
from ndtool.engine import packing
from ndtool.errors import NdtoolError, printable, redact_urls, refuse
from ndtool.formats.decoding import join_blocks, open_range
from ndtool.formats.onnx.tensorproto import Element, Tensor
from ndtool.formats.onnx.wire import MAX_VARINT_BYTES
from ndtool.storage import locations
from ndtool.storage.descriptors import BLOCK_SIZE
from ndtool.storage.local import File, Fingerprint, LocalFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

_DECIMAL = re.compile("[0-9]{1,19}")


class CombinedStorage:
    """A model's file and its external data file, as one storage."""

    def __init__(self, model: LocalFile, data: File) -> None:
        self._files = (model, data)

    def describe_change(self) -> str:
        return next((change for file in self._files if (change := file.describe_change())), "")

    def fingerprint(self) -> Fingerprint:
        entries = [file.fingerprint() for file in self._files]
        return None if None in entries else entries

    def is_same_file(self, fd: int) -> bool:
        return any(file.is_same_file(fd) for file in self._files)

    def close(self) -> None:
        for file in self._files:
            file.close()


class Folder:
    """The folder of a model, which must contain the model's external data files.

    path: of the model. storage: the open model file.
    """

    def __init__(self, path: str, storage: File) -> None:
        self._path, self._storage = path, storage
        self._data_files: dict[str, tuple[str, int]] = {}

    def find_data(self, tensor: Tensor, label: str) -> tuple[str, int]:
        """Return the path of a tensor's external data file, and the offset of its elements."""
        entries = tensor.external or {}
        path, size = self._data_file(entries.get("location", ""), label)
        start = _parse_decimal(entries.get("offset", "0"), "offset", label)
        length = _parse_decimal(entries.get("length", "0"), "length", label)
        length = length or tensor.stored_nbytes  # writers may leave it out, or write 0
        if start + length > size:
            refuse(label, f"its {length} bytes at offset {start} exceed {path}, which has {size}")
        if length != tensor.stored_nbytes:
            expected = f"expected {tensor.stored_nbytes} bytes for {tensor.description}"
            refuse(label, f"{expected} in {path}, found {length}")
        return path, start

    def _data_file(self, location: str, label: str) -> tuple[str, int]:
        if location not in self._data_files:
            path = locations.companion(self._storage, self._path, location, label, "its data")
            with closing(locations.open_storage(path)) as file:
                self._data_files[location] = path, file.size
        return self._data_files[location]


def _parse_decimal(text: str, key: str, label: str) -> int:
    if not _DECIMAL.fullmatch(text):
        refuse(label, f"the {key} of its data is {text!r}: expected a number of bytes")
    return int(text)


def open_tensor(
    storage: LocalFile, name: str, label: str, folder: Folder, tensor: Tensor, kind: str
) -> ContiguousSource:
    """Open a tensor; closing the source closes the file. label: the tensor's name in messages."""
    path, start = _location(tensor, label, folder)
    metadata = _metadata(tensor, kind, path, start)
    if tensor.literal is not None:
        return ContiguousSource(name, metadata, memoryview(tensor.literal), storage)
    if path is None and tensor.decode_reason:
        buffer = _decode(tensor, label)
        return ContiguousSource(name, metadata, buffer, storage)
    bits = tensor.element.bits
    if path is None:
        return open_range(storage, name, label, metadata, start or 0, bits)
    data = locations.open_storage(path)
    both = CombinedStorage(storage, data)
    return open_range(data, name, path, metadata, start or 0, bits, owner=both)


def entry(tensor: Tensor, label: str, member: str | None, folder: Folder, kind: str) -> MemberInfo:
    """Return the member info of a tensor."""
    problem, path, start = tensor.decode_reason, None, None
    try:
        path, start = _location(tensor, label, folder)
    except NdtoolError as exc:
        problem = exc.message.removeprefix(f"{printable(label)}: ")
    metadata = _metadata(tensor, kind, path, start)
    return MemberInfo(label, member, metadata, None if problem else start, problem)


def _location(tensor: Tensor, label: str, folder: Folder) -> tuple[str | None, int | None]:
    """Return the path of the external data file, or None, and the offset of the elements."""
    if tensor.external is not None:
        return folder.find_data(tensor, label)
    return None, None if tensor.values is None else tensor.values.start


def _metadata(tensor: Tensor, kind: str, path: str | None, start: int | None) -> ArrayMetadata:
    element, shape = tensor.element, tensor.shape
    notes = {"kind": kind, "onnx_type": element.onnx_name, "field": tensor.field or None}
    notes |= {} if path is None else {"file": redact_urls(path)}
    return ArrayMetadata(element.dtype, shape, "C", shape, {**notes, "offset": start})


def _decode(tensor: Tensor, label: str) -> memoryview:
    """Decode the elements to a contiguous buffer, in memory or in an unnamed file."""
    message, values = tensor.message, tensor.values
    start, stop = (0, 0) if values is None else (values.start, values.stop)
    encoded: Iterator[bytes] = (
        message.read_bytes(offset, min(BLOCK_SIZE, stop - offset))
        for offset in range(start, stop, BLOCK_SIZE)
    )
    if tensor.has_varints:
        encoded = _convert(tensor, _decode_varints(encoded, label), label)
    if tensor.element.bits in ((2, 4) if tensor.has_varints else (2, 4, 6)):
        encoded = packing.unpack_blocks(encoded, tensor.element.bits)
    return join_blocks(encoded, tensor.nbytes, label)


def _decode_varints(encoded: Iterator[bytes], label: str) -> Iterator[NDArray[Any]]:
    """Decode varints and yield their values in arrays."""
    import numpy as np

    incomplete_varint = b""
    for block in encoded:
        raw = np.frombuffer(incomplete_varint + block, np.uint8)
        ends = np.flatnonzero(raw < 0x80)
        count = int(ends[-1]) + 1 if len(ends) else 0
        incomplete_varint = raw[count:].tobytes()
        starts = np.concatenate([[0], ends[:-1] + 1]) if count else ends
        lengths = ends - starts + 1
        max_length = max(int(lengths.max()) if count else 0, len(incomplete_varint))
        numbers = np.zeros(len(ends), np.uint64)
        for k in range(min(max_length, MAX_VARINT_BYTES)):
            remaining = slice(None) if k == 0 else np.flatnonzero(lengths > k)
            byte = raw[starts[remaining] + k]
            if k == MAX_VARINT_BYTES - 1 and (byte > 1).any():
                max_length = MAX_VARINT_BYTES + 1
            numbers[remaining] |= (byte & 0x7F).astype(np.uint64) << np.uint64(7 * k)
        if max_length > MAX_VARINT_BYTES:
            refuse(label, "a varint has more than 64 bits")
        yield numbers
    if incomplete_varint:
        refuse(label, "a varint is truncated by the end of its message")


def _convert(tensor: Tensor, blocks: Iterator[NDArray[Any]], label: str) -> Iterator[bytes]:
    """Convert integers to elements; InputError if one is out of range or their count is wrong."""
    import numpy as np

    code, lowest, highest = _element_range(tensor.element)
    expected, count = tensor.stored_count, 0
    for block in blocks:
        signed = block.view(np.int64)
        invalid = np.flatnonzero((signed < lowest) | (signed > highest))
        if len(invalid) and code[2] != "8":  # any 64-bit value is valid
            position, value = count + int(invalid[0]), int(signed[invalid[0]])
            valid = f"valid {lowest}..{highest} for {tensor.element.onnx_name}"
            refuse(label, f"{tensor.field}[{position}] is {value}: {valid}")
        count += len(block)
        if count <= expected:
            yield signed.astype(code).tobytes()
    if count != expected:
        refuse(label, f"expected {expected} values in {tensor.field}, found {count}")


def _element_range(element: Element) -> tuple[str, int, int]:
    """Return the dtype code of an element type, and the smallest and largest valid integer."""
    kind, size = element.dtype.kind, element.dtype.itemsize
    bits = 1 if kind == "b" else 6 if element.bits == 6 else 8 * size
    if kind == "i" and element.bits >= 8:
        return f"<i{size}", -(1 << (bits - 1)), (1 << (bits - 1)) - 1
    return f"<u{size}", 0, (1 << bits) - 1
