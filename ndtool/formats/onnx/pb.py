"""The .pb format: a file of one ONNX TensorProto."""

from ndtool.arrays.source import ArrayMetadata, ContiguousSource, MemberInfo
from ndtool.errors import InputError, OutputError, UsageError, printable, refuse
from ndtool.formats.decoding import convert_stored
from ndtool.formats.onnx import tensordata, tensorproto
from ndtool.formats.onnx.tensordata import Folder
from ndtool.formats.onnx.tensorproto import Tensor
from ndtool.formats.onnx.wire import (
    LENGTH,
    MAX_TEXT_BYTES,
    VARINT,
    Message,
    encode_key,
    encode_varint,
)
from ndtool.publish.sinks import Container, FileSink
from ndtool.publish.targets import Target
from ndtool.rules import dtypes
from ndtool.rules.dtypes import Dtype
from ndtool.rules.plans import Shape
from ndtool.storage.local import LocalFile

MAX_MESSAGE_BYTES = 2**31 - 1  # maximum size of a message in Google's protobuf library
_ALIGNMENT = 64
# The key of the first field: dims, unpacked or packed, or data_type of a scalar.
_FIRST_KEYS = (b"\x08", b"\x0a", b"\x10")
_CODES = {element.dtype.name: code for code, element in tensorproto.ELEMENTS.items()}


def recognises(storage: LocalFile) -> bool:
    """Whether all fields of a file are those of a TensorProto, which has no magic number."""
    if storage.peek(0, 1) not in _FIRST_KEYS:
        return False
    try:
        message = Message(storage.peek, 0, storage.size, "")
        tensorproto.read(message)
        return all(field.number in tensorproto.FIELDS for field in message.fields())
    except InputError:
        return False


def entries(storage: LocalFile, path: str, member: str | None) -> list[MemberInfo]:
    """Return the member info of the single tensor."""
    tensor, folder = _tensor(storage, path, member), Folder(path, storage)
    return [tensordata.entry(tensor, path, tensor.name or None, folder, "tensor")]


def open_source(storage: LocalFile, name: str, path: str, member: str | None) -> ContiguousSource:
    """Open the single tensor; closing the source closes the file."""
    tensor = _tensor(storage, name, member)
    return tensordata.open_tensor(storage, name, name, Folder(path, storage), tensor, "tensor")


def _tensor(storage: LocalFile, label: str, member: str | None) -> Tensor:
    tensor = tensorproto.read(Message(storage.peek, 0, storage.size, label))
    if member not in (None, tensor.name):
        description = f"called {printable(repr(tensor.name))}" if tensor.name else "without a name"
        refuse(label, f"the file is one tensor, {description}")
    return tensor


def stored_dtype(dtype: Dtype) -> Dtype:
    """Return the element type as stored, in little-endian order; DtypeError if ONNX lacks it."""
    dtypes.require_one_of(dtype, _CODES, "an ONNX tensor")
    return tensorproto.ELEMENTS[_CODES[dtype.name]].dtype


def create(target: Target, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for a new file of one tensor, in row-major order."""
    if (size := len(_tensor_name(target))) > MAX_TEXT_BYTES:
        raise UsageError(
            f"{printable(target.path)}: the name has {size} bytes: valid up to {MAX_TEXT_BYTES}"
        )
    stored_dtype(metadata.dtype)
    nbytes = metadata.packed_nbytes
    header = encode(_CODES[metadata.dtype.name], metadata.shape, nbytes, _tensor_name(target))
    if len(header) + nbytes > MAX_MESSAGE_BYTES:
        raise OutputError(
            f"{printable(target.path)}: needs {len(header) + nbytes} bytes: valid up to"
            f" {MAX_MESSAGE_BYTES}",
            hint="a .npy file has no such limit",
        )
    return FileSink(target, metadata, TensorContainer(header, metadata))


def _tensor_name(target: Target) -> bytes:
    """Return the name of the tensor; UsageError if it is not UTF-8."""
    name = target.array_name
    try:
        return name.encode()
    except UnicodeError:
        raise UsageError(f"the tensor's name {printable(name, 40)} is not UTF-8") from None


def encode(code: int, shape: Shape, nbytes: int, name: bytes) -> bytes:
    """Return all bytes before the data: the other fields, then the key and length of raw_data.

    A doc_string of spaces aligns the data to 64 bytes, so that they can be memory-mapped.
    """
    dims = b"".join(encode_key(tensorproto.DIMS, VARINT) + encode_varint(size) for size in shape)
    head = dims + encode_key(tensorproto.DATA_TYPE, VARINT) + encode_varint(code)
    head += encode_key(tensorproto.NAME, LENGTH) + encode_varint(len(name)) + name
    doc = encode_key(tensorproto.DOC, LENGTH)
    raw = encode_key(tensorproto.RAW, LENGTH) + encode_varint(nbytes)
    blanks = -(len(head) + len(doc) + 1 + len(raw)) % _ALIGNMENT
    return head + doc + encode_varint(blanks) + b" " * blanks + raw


class TensorContainer(Container):
    """The header of a file, whose elements are stored in little-endian order, or packed."""

    def __init__(self, header: bytes, metadata: ArrayMetadata) -> None:
        super().__init__(header, metadata.nbytes)
        self._dtype = metadata.dtype

    def finish(self, fd: int, name: str) -> None:
        convert_stored(fd, name, self.start, self.total, self._dtype)
