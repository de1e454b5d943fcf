"""The .pb format: one ONNX TensorProto, read where it stands and written as others read it."""

from ndtool.arrays import tensordata, tensorproto
from ndtool.arrays.local import LocalFile
from ndtool.arrays.sink import FileSink, Frame, put_little_endian
from ndtool.arrays.source import Entry, Facts, Flat
from ndtool.arrays.targets import Target
from ndtool.arrays.tensordata import Folder
from ndtool.arrays.tensorproto import Parts, Tensor
from ndtool.arrays.wire import LENGTH, TEXT, VARINT, Message, key, varint
from ndtool.errors import DtypeError, InputError, OutputError, UsageError, printable
from ndtool.rules.dtypes import EXTENDED, Dtype
from ndtool.rules.shapes import Shape

DEFAULT = "output"  # the name of a tensor that is written without naming it
LARGEST = 2**31 - 1  # bytes of a message, for those who read it with Google's library
_ALIGNMENT = 64
_FIRST = (
    b"\x08",
    b"\x0a",
    b"\x10",
)  # dims, one by one or packed, or data_type where there are none
# Elements of less than a byte are packed in ONNX.
_CODES = {
    element.dtype.name: code
    for code, element in reversed(tensorproto.ELEMENTS.items())
    if element.bits % 8 == 0
}


def recognises(place: LocalFile) -> bool:
    """Tell whether a file is one TensorProto and nothing else: there is no magic string."""
    if place.look(0, 1) not in _FIRST:
        return False
    try:
        parts = Parts(Message(place.look, 0, place.size, ""))
        parts.tensor()
        return not parts.unknown
    except InputError:
        return False


def entries(place: LocalFile, path: str, member: str | None) -> list[Entry]:
    """Return what is said of the one tensor."""
    tensor, folder = _tensor(place, path, member), Folder(path, place)
    return [tensordata.entry(tensor, path, tensor.name or None, place.size, folder, "tensor")]


def open_source(place: LocalFile, name: str, path: str, member: str | None) -> Flat:
    """Return the one tensor; it closes the place."""
    tensor = _tensor(place, name, member)
    return tensordata.open_tensor(place, name, name, Folder(path, place), tensor, "tensor")


def _tensor(place: LocalFile, label: str, member: str | None) -> Tensor:
    tensor = tensorproto.read(Message(place.look, 0, place.size, label))
    if member not in (None, tensor.name):
        called = f"called {printable(repr(tensor.name))}" if tensor.name else "without a name"
        raise InputError(f"{printable(label)}: the file is one tensor, {called}")
    return tensor


def stored(dtype: Dtype) -> Dtype:
    """Return the type as a file has it: little-endian; DtypeError where ONNX has none such."""
    if dtype.name not in _CODES:
        void = dtype.kind == "V" and dtype.name not in (*EXTENDED, "struct")
        hint = "--dtype says what elements stored as void are" if void else ""
        raise DtypeError(
            f"an ONNX tensor cannot hold {dtype.name}: valid {', '.join(_CODES)}", hint=hint
        )
    return tensorproto.ELEMENTS[_CODES[dtype.name]].dtype


def check(target: Target) -> None:
    """Raise what `create` would about the target alone; nothing of an old file is kept."""
    if (size := len(_name(target))) > TEXT:
        raise UsageError(f"{printable(target.path)}: the name has {size} bytes: valid up to {TEXT}")
    target.require_replaceable()


def create(target: Target, facts: Facts) -> FileSink:
    """Return a new file of one tensor, in row-major order."""
    check(target)
    stored(facts.dtype)
    header = encode(_CODES[facts.dtype.name], facts.shape, facts.nbytes, _name(target))
    if len(header) + facts.nbytes > LARGEST:
        raise OutputError(
            f"{printable(target.path)}: needs {len(header) + facts.nbytes} bytes: a message has up"
            f" to {LARGEST}",
            hint="a .npy file has no such limit",
        )
    return FileSink(target, facts, TensorFrame(header, facts))


def _name(target: Target) -> bytes:
    """Return the name of the tensor; UsageError where others could not read it."""
    name = target.member or DEFAULT
    try:
        return name.encode()
    except UnicodeError:
        raise UsageError(f"the tensor's name {printable(name, 40)} is not UTF-8") from None


def encode(code: int, shape: Shape, nbytes: int, name: bytes) -> bytes:
    """Return all fields, and of raw_data, the last one, its key and length.

    A doc_string of blanks lets the elements begin at a multiple of 64, so that they can be mapped.
    """
    dims = b"".join(key(tensorproto.DIMS, VARINT) + varint(size) for size in shape)
    head = dims + key(tensorproto.DATA_TYPE, VARINT) + varint(code)
    head += key(tensorproto.NAME, LENGTH) + varint(len(name)) + name
    doc = key(tensorproto.DOC, LENGTH)
    raw = key(tensorproto.RAW, LENGTH) + varint(nbytes)
    blanks = -(len(head) + len(doc) + 1 + len(raw)) % _ALIGNMENT
    return head + doc + varint(blanks) + b" " * blanks + raw


class TensorFrame(Frame):
    """What a file has around the elements, which ONNX keeps with the lowest byte first."""

    def __init__(self, header: bytes, facts: Facts) -> None:
        super().__init__(header, facts.nbytes)
        self._given = facts.dtype

    def finish(self, fd: int, name: str) -> None:
        put_little_endian(fd, name, self.start, self.total, self._given)
