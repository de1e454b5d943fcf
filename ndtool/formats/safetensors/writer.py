"""Write a tensor to a safetensors file: the header, and the preserved tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ndtool.arrays.source import ArrayMetadata
from ndtool.errors import InputError, OutputError, printable
from ndtool.formats.safetensors import headers
from ndtool.formats.safetensors.headers import Header, Tensor
from ndtool.publish.preserved import CurrentFile
from ndtool.publish.sinks import FileSink, Frame, convert_stored
from ndtool.publish.targets import Target, exists_error
from ndtool.storage.local import File

_EMPTY = Header((), "", 0)


def create(target: Target, name: str, metadata: ArrayMetadata) -> FileSink:
    """Return a sink for one tensor of a file."""
    dtype = headers.stored(metadata.dtype)
    new = headers.new_tensor(headers.tensor_name(name), dtype, metadata.shape)
    old, header = _old(target)
    try:
        frame = TensorFrame(new, metadata, header, old)
        if frame.start_of_data > headers.LONGEST:
            raise OutputError(
                f"{printable(target.path)}: the header would have {frame.start_of_data} bytes:"
                f" valid up to {headers.LONGEST}"
            )
        return FileSink(target, metadata, frame)
    except BaseException:
        old.close()
        raise


def _old(target: Target) -> tuple[CurrentFile, Header]:
    """Return the old file and its header; OutputError if it may not be replaced."""

    def parse(file: File) -> Header:
        if not headers.begins(file):
            raise InputError(f"{printable(target.path)}: not a safetensors file")
        header = headers.of_file(file, target.path)
        if not target.clobber and target.member in _names(header.tensors):
            raise exists_error(f"{target.path}:{target.member}")
        return header

    old = CurrentFile(target)
    return old, old.read(parse, _EMPTY, "a file of the new tensor")


def _names(tensors: Iterable[Tensor]) -> tuple[str, ...]:
    return tuple(tensor.name for tensor in tensors)


class TensorFrame(Frame):
    """The bytes of a file other than the written tensor: the header and the preserved tensors.

    metadata: of the array, whose elements are stored in little-endian order, or packed.
    """

    def __init__(
        self, new: Tensor, metadata: ArrayMetadata, header: Header, old: CurrentFile
    ) -> None:
        self._dtype = metadata.dtype
        self._tensors = headers.laid_out(header.tensors, new)
        raw = headers.encode(self._tensors, header.metadata)
        self.start_of_data = len(raw)
        preserved = tuple(name for name in _names(header.tensors) if name != new.name)
        unpacked = metadata.nbytes - (new.stop - new.start)  # elements are packed at the end
        super().__init__(raw, self._tensors[-1].stop + unpacked, current=old, names=preserved)
        self._ranges = list(_preserved_ranges(header, self._tensors, len(raw), new.name))
        written = next(tensor for tensor in self._tensors if tensor.name == new.name)
        self.start = len(raw) + written.start
        self._stop = self.start + metadata.nbytes

    def begin(self, fd: int) -> None:
        if self.current is not None and self._ranges:
            self.current.copy(fd, self._ranges)
        super().begin(fd)

    def finish(self, fd: int, name: str) -> None:
        convert_stored(fd, name, self.start, self._stop, self._dtype)


def _preserved_ranges(
    header: Header, tensors: list[Tensor], data: int, new: str
) -> Iterator[tuple[int, int, int]]:
    """Yield preserved byte ranges, merged: (start, stop, new offset); data: the header's size."""
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
