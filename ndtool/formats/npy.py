"""The .npy format: a header, which is validated and never executed, then the raw data."""

import os
import re
from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, MemberInfo, trailing_bytes_warning
from ndtool.errors import DtypeError, InputError, UsageError, format_value, printable, refuse
from ndtool.rules import dtypes, mistakes
from ndtool.rules.shapes import MAX_RANK, MAX_SIZE, format_type
from ndtool.storage.descriptors import BLOCK_SIZE, sequential_reader

if TYPE_CHECKING:
    from ndtool.publish.sinks import FileSink
    from ndtool.publish.targets import Target
    from ndtool.storage.local import LocalFile

MAGIC = b"\x93NUMPY"
MAX_HEADER_BYTES = 10_000  # NumPy has the same limit
_ALIGNMENT = 64
_GROWTH_AXIS_MAX_DIGITS = 21  # digits that NumPy reserves for the first axis to grow
_KEYS = ("descr", "fortran_order", "shape")
_ENCODINGS = {(1, 0): "latin-1", (2, 0): "latin-1", (3, 0): "utf-8"}
_HINTS_BY_MAGIC = {
    b"PK": "this looks like a .npz archive, which can be read from a file, not from a stream",
    b"\x1f\x8b": "this is compressed with gzip: text is read as text:FILE, another file is"
    " decompressed, then passed through -",
    b"\x89HDF": "this looks like an HDF5 file, which can be read from a file, not from a stream",
    b"\x80": "this looks like a pickle, which is never loaded: load it in Python, then np.save or"
    " safetensors' save_file writes its arrays",
    b"MATLAB 5": "this looks like a MATLAB file (version 7.3 is HDF5).",
    b"CDF": "this looks like a NetCDF-3 file: nccopy -k nc4 converts it to NetCDF-4",
}
# The program that writes the arrays of a MATLAB file {0!r} to {1!r}.npz.
_CONVERT_MATLAB = (
    "import numpy as np; from scipy.io import loadmat; x = loadmat({0!r});"
    " np.savez({1!r} + '.npz', **{{k: x[k] for k in x if k[:2] != '__'}})"
)
_TEXT_BYTES = bytes(range(32, 127)) + b"\t\r\n"


class Header(NamedTuple):
    """A parsed .npy header.

    offset: of the data. fortran: whether the data are in Fortran order.
    """

    dtype: dtypes.Dtype
    shape: tuple[int, ...]
    fortran: bool
    version: tuple[int, int]
    offset: int

    @property
    def count(self) -> int:  # type: ignore[override] # a header is not used as a tuple
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.count * self.dtype.itemsize


def read_header(read: Callable[[int], bytes], available: int | None, name: str) -> Header:
    """Parse and validate the header of a .npy array, without executing it.

    read: returns the next n bytes, fewer only at the end. available: the total number of bytes,
    header included, None if unknown. name: of the array, for messages. Raises InputError.
    """
    version, start, length = _read_prefix(read, available, name)
    raw = read(length)
    if len(raw) < length:
        refuse(name, f"the header is truncated: expected {length} bytes, found {len(raw)}")
    try:
        text = raw.decode(_ENCODINGS[version])
    except UnicodeDecodeError:
        refuse(name, "the header is not UTF-8, which version 3.0 requires")
    descr, fortran, shape = _parse_literal(text, name)
    try:
        dtype = dtypes.from_descr(descr)
    except DtypeError as exc:
        objects = "where it was written, np.save(FILE, np.array(x.tolist())) saves numbers"
        refuse(name, exc.message, objects if "Python objects" in exc.message else "")
    header = Header(dtype, shape, fortran, version, start + length)
    _check_size(header, available, name)
    return header


def _read_prefix(
    read: Callable[[int], bytes], available: int | None, name: str
) -> tuple[tuple[int, int], int, int]:
    """Return the format version, and the offset and length of the header's text."""
    magic = read(8)
    if not magic:
        refuse(name, "no data: expected a .npy array")
    if magic[:6] != MAGIC[: len(magic)]:
        hint = next((h for m, h in _HINTS_BY_MAGIC.items() if magic.startswith(m)), "")
        if magic == b"MATLAB 5" and os.path.isfile(name):
            stem = os.path.splitext(name)[0]
            hint = mistakes.then(hint, mistakes.python_command(_CONVERT_MATLAB, name, stem))
        if not hint and not magic.translate(None, _TEXT_BYTES):
            hint = "numbers in text are read as text:FILE, indices and updates also by --text"
        refuse(name, f"not a .npy array: it starts with {magic!r}", hint)
    if len(magic) < 8:
        refuse(name, f"truncated: expected a magic string of 8 bytes, found {len(magic)}")
    version = (magic[6], magic[7])
    if version not in _ENCODINGS:
        refuse(name, f"format version {version[0]}.{version[1]}: valid 1.0, 2.0, 3.0")
    width = 2 if version == (1, 0) else 4
    raw = read(width)
    if len(raw) < width:
        refuse(name, "truncated before the header length")
    start, length = 8 + width, int.from_bytes(raw, "little")
    if available is not None and length > available - start:
        refuse(name, f"the header claims {length} bytes, only {available - start} remain")
    if length > MAX_HEADER_BYTES:
        refuse(name, f"the header claims {length} bytes: valid up to {MAX_HEADER_BYTES}")
    return version, start, length


def _parse_literal(text: str, name: str) -> tuple[Any, bool, tuple[int, ...]]:
    """Parse a header as a Python literal; return descr, fortran_order and shape."""
    fields = _evaluate(text, name)
    if sorted(fields) != list(_KEYS):
        refuse(name, f"the header has the keys {sorted(fields)}: expected {list(_KEYS)}")
    descr, fortran, shape = (fields[key] for key in _KEYS)
    if type(fortran) is not bool:
        refuse(name, f"fortran_order is {format_value(fortran)}: valid True, False")
    if type(shape) is not tuple:
        refuse(name, f"shape is {format_value(shape)}: expected a tuple of sizes")
    if len(shape) > MAX_RANK:
        refuse(name, f"shape has {len(shape)} axes: valid up to {MAX_RANK}")
    for axis, size in enumerate(shape):
        if type(size) is not int or not 0 <= size <= MAX_SIZE:
            refuse(name, f"shape[{axis}] is {format_value(size)}: expected a size of 0..{MAX_SIZE}")
    return descr, fortran, shape


def _evaluate(text: str, name: str) -> dict[str, Any]:
    import ast
    import warnings

    text = text.strip(" \t\n")
    if "L" in (sizes := text[(start := text.rfind("'shape'")) :]) and start >= 0:
        text = text[:start] + re.sub(r"([0-9])L(?=[ ,)])", r"\1", sizes)  # written by Python 2
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # SyntaxWarnings would go to stderr
            tree = ast.parse(text, mode="eval").body
            if not isinstance(tree, ast.Dict):
                refuse(name, f"the header is not a dictionary: {text}")
            keys = [ast.literal_eval(key) for key in tree.keys if key is not None]
            if len(keys) != len(tree.values) or not all(isinstance(k, str) for k in keys):
                refuse(name, f"the header has a key that is not a string: {text}")
            for key in keys:
                if keys.count(key) > 1:
                    refuse(name, f"the header has the key {key!r} {keys.count(key)} times")
            return dict(zip(keys, map(ast.literal_eval, tree.values), strict=True))
    except InputError:
        raise
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        integers = "the shape was written with NumPy integers: write plain ones, as np.save does"
        hint = integers if "np." in text or "numpy." in text else ""
        refuse(name, f"the header is not a Python literal: {text}", hint)


def _check_size(header: Header, available: int | None, name: str) -> None:
    """Raise InputError if the data exceed the address space or the available bytes."""
    # Sizes of 0 count as 1: the strides of (0, 2**62, 2**62) overflow int64.
    if prod(size or 1 for size in header.shape) * header.dtype.itemsize > MAX_SIZE:
        description = format_type(header.dtype, header.shape)
        refuse(
            name,
            f"the header claims {description}: valid up to {MAX_SIZE} bytes,"
            " axes of size 0 counted as 1",
        )
    if available is not None and header.nbytes > available - header.offset:
        refuse(
            name,
            f"expected {header.nbytes} bytes of data after the header,"
            f" found {available - header.offset}",
        )


def encode(dtype: dtypes.Dtype, shape: tuple[int, ...]) -> bytes:
    """Return the header of a C-ordered array, byte for byte as np.save writes it."""
    text = f"{{'descr': {dtype.descr!r}, 'fortran_order': False, 'shape': {tuple(shape)!r}, }}"
    if shape:
        text += " " * (_GROWTH_AXIS_MAX_DIGITS - len(repr(shape[0])))
    version = (1, 0) if _padded_length(len(text), 10) < 2**16 else (2, 0)
    try:
        raw = text.encode("latin-1")
    except UnicodeEncodeError:
        version, raw = (3, 0), text.encode("utf-8")
    width = 2 if version == (1, 0) else 4
    length = _padded_length(len(raw), 8 + width)
    prefix = MAGIC + bytes(version) + length.to_bytes(width, "little")
    return prefix + raw.ljust(length - 1) + b"\n"


def _padded_length(length: int, start: int) -> int:
    """Return the header length, newline included, that aligns the data to 64 bytes."""
    total = start + length + 1
    return total + _ALIGNMENT - total % _ALIGNMENT - start


def metadata_of(header: Header) -> ArrayMetadata:
    """Return the array metadata of a header."""
    notes = {"npy_version": header.version, "offset": header.offset}
    order = "F" if header.fortran else "C"
    return ArrayMetadata(header.dtype, header.shape, order, header.shape, notes)


def recognises(storage: "LocalFile") -> bool:
    """Whether a file begins with the .npy magic string."""
    return storage.peek(0, len(MAGIC)) == MAGIC


def entries(storage: "LocalFile", path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of the file's single array, or of a field; reads only the header."""
    if member is not None:
        source = open_source(storage, f"{path}:{member}", path, member)
        return [MemberInfo(source.name, member, source.metadata, None, "a field")]
    header = read_header(sequential_reader(storage.peek, 0), storage.size, path)
    warning = trailing_bytes_warning(path, storage.size - header.offset - header.nbytes)
    return [MemberInfo(path, None, metadata_of(header), header.offset, "", warning)]


def open_source(storage: "LocalFile", name: str, path: str, member: str | None) -> ContiguousSource:
    """Open the array in a file, or a field of its records; closing the source closes the file."""
    header = read_header(sequential_reader(storage.peek, 0), storage.size, path)
    if member is not None:
        return _open_field(storage, name, path, header, member)
    warning = trailing_bytes_warning(name, storage.size - header.offset - header.nbytes)
    metadata = metadata_of(header)
    return ContiguousSource.in_file(name, metadata, storage, header.offset, name, warning)


def has_fields(storage: "LocalFile") -> bool:
    """Whether the elements of a file's array are records; InputError if it is invalid."""
    header = read_header(sequential_reader(storage.peek, 0), None, "")
    return isinstance(header.dtype.descr, list)


def _open_field(
    storage: "LocalFile", name: str, path: str, header: Header, field: str
) -> ContiguousSource:
    """Copy a field of all records to a contiguous array. field: dots separate nested fields."""
    import numpy as np

    from ndtool.formats.decoding import join_blocks
    from ndtool.formats.numpytypes import from_numpy, numpy_dtype

    record = dtype = numpy_dtype(header.dtype)
    names = [field] if field in (dtype.names or ()) else field.split(".")
    for part in names:
        if part not in (dtype.names or ()) or dtype.shape:
            problem = "the file holds one array, and has no members"
            if record.names:
                problem = f"no field {printable(field)}: expected one of {', '.join(record.names)}"
            refuse(path, problem)
        dtype = dtype[part]
    try:
        element = from_numpy(dtype.base)
    except DtypeError as exc:  # text of no characters
        refuse(name, exc.message)
    shape, order = (*header.shape, *dtype.shape), "F" if header.fortran else "C"
    if dtype.shape and header.fortran:
        refuse(name, "arrays in records in Fortran order: expected C order")
    step = max(1, BLOCK_SIZE // record.itemsize) * record.itemsize

    def blocks() -> Iterator[bytes]:
        for start in range(0, header.nbytes, step):
            count = min(step, header.nbytes - start)
            records = np.frombuffer(storage.read(header.offset + start, count, name), record)
            for part in names:
                records = records[part]
            yield records.tobytes()

    nbytes = prod(shape) * element.itemsize
    metadata = ArrayMetadata(element, shape, order, shape, {"field": field})
    return ContiguousSource(name, metadata, join_blocks(blocks(), nbytes, name), storage)


def stored_dtype(dtype: dtypes.Dtype) -> dtypes.Dtype:
    """Return the element type as stored: void if NumPy lacks the type."""
    return dtypes.from_code(dtype.descr) if dtype.name in dtypes.EXTENSION_DTYPES else dtype


def create(target: "Target", metadata: ArrayMetadata) -> "FileSink":
    """Return a sink for a new file of one array, in row-major order."""
    from ndtool.publish.sinks import Container, FileSink

    if target.member is not None:
        raise UsageError(f"{printable(target.path)}: fields are read, not written")
    return FileSink(
        target, metadata, Container(encode(metadata.dtype, metadata.shape), metadata.nbytes)
    )
