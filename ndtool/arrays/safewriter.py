"""Safetensors files that are written: one tensor is new, the others stay as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ndtool.arrays import safeheader
from ndtool.arrays.kept import OldFile
from ndtool.arrays.local import File
from ndtool.arrays.safeheader import Header, Tensor
from ndtool.arrays.sink import FileSink, Frame, put_little_endian
from ndtool.arrays.source import Facts
from ndtool.arrays.targets import Target, exists
from ndtool.errors import InputError, OutputError, printable
from ndtool.rules.dtypes import Dtype

_EMPTY = Header((), "", 0)


def check(target: Target, name: str) -> tuple[str, ...] | None:
    """Raise what `create` would about the target alone; return the tensors that stay."""
    safeheader.tensor_name(name)
    old, header = _old(target)
    old.close()
    return None if old.file is None else _names(_kept(header, name))


def create(target: Target, name: str, facts: Facts) -> FileSink:
    """Return a sink for one tensor of a file."""
    dtype = safeheader.stored(facts.dtype)
    new = safeheader.new_tensor(safeheader.tensor_name(name), dtype, facts.shape)
    old, header = _old(target)
    try:
        frame = TensorFrame(new, facts.dtype, header, old)
        if frame.start_of_data > safeheader.LONGEST:
            raise OutputError(
                f"{printable(target.path)}: the header would have {frame.start_of_data} bytes:"
                f" valid up to {safeheader.LONGEST}"
            )
        return FileSink(target, facts, frame)
    except BaseException:
        old.close()
        raise


def _old(target: Target) -> tuple[OldFile, Header]:
    """Return the file of which other tensors stay; OutputError if what is there must."""

    def understand(file: File) -> Header:
        if not safeheader.begins(file):
            raise InputError(f"{printable(target.path)}: not a safetensors file")
        header = safeheader.of_file(file, target.path)
        if not target.clobber and target.member in _names(header.tensors):
            raise exists(f"{target.path}:{target.member}")
        return header

    old = OldFile(target)
    return old, old.read(understand, _EMPTY, "a file of the new tensor")


def _kept(header: Header, name: str) -> list[Tensor]:
    return [tensor for tensor in header.tensors if tensor.name != name]


def _names(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors)


class TensorFrame(Frame):
    """What a file has around the tensor that is written.

    given: the type of what is written, which the file has in little-endian order.
    """

    def __init__(self, new: Tensor, given: Dtype, header: Header, old: OldFile) -> None:
        self._given = given
        self._tensors = safeheader.laid_out(header.tensors, new)
        raw = safeheader.encode(self._tensors, header.metadata)
        self.start_of_data = len(raw)
        kept = _names(_kept(header, new.name))
        super().__init__(raw, self._tensors[-1].stop, old=old, names=kept)
        self._pieces = list(_pieces(header, self._tensors, len(raw), new.name))
        place = next(tensor for tensor in self._tensors if tensor.name == new.name)
        self.start, self._stop = len(raw) + place.start, len(raw) + place.stop

    def begin(self, fd: int) -> None:
        if self._old is not None and self._pieces:
            self._old.copy(fd, self._pieces)
        super().begin(fd)

    def finish(self, fd: int, name: str) -> None:
        put_little_endian(fd, name, self.start, self._stop, self._given)


def _pieces(
    header: Header, tensors: list[Tensor], data: int, new: str
) -> Iterator[tuple[int, int, int]]:
    """Yield (start, stop, to) of what stays, neighbours together; data: where they begin now."""
    old = {tensor.name: tensor for tensor in header.tensors}
    start = stop = to = 0
    for tensor in tensors:
        if tensor.name == new or tensor.start == tensor.stop:
            continue
        first, at = header.data + old[tensor.name].start, data + tensor.start
        if start < stop == first and to + stop - start == at:
            stop += tensor.stop - tensor.start
            continue
        if start < stop:
            yield start, stop, to
        start, stop, to = first, first + tensor.stop - tensor.start, at
    if start < stop:
        yield start, stop, to
